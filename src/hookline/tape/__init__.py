"""Tapes: the recording of a run, and what the same or other hooks make of it (DESIGN 6.11)."""
