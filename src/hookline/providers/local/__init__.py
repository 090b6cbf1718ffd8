"""Models that run in this process: the embedded one, and any GGUF file."""
