"""Helpers below the kernel: frozen data, threads, tasks, texts, files. They do not depend on hooks."""
