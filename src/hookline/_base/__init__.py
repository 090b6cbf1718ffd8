"""What the kernel is made with: frozen data, worker threads, name help. Knows nothing of hooks."""
