"""Serving HTTP: one port for everything that is reached through it, and what every request passes first."""
