"""Models that run in this process, with llama.cpp."""
