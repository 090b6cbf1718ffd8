"""Helpers that the built-in hooks share."""
