"""Helpers below the kernel: frozen data, threads, tasks, texts, files. They know nothing about hooks."""
