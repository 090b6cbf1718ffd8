"""Serving HTTP: one port for all that is reached through it, what every request passes first, and how it starts."""
