"""Facts about the package that must be known before the rest of it is imported."""

__version__ = "0.1.0"

POINT_MODULES = ("hookline.stores.channel_points", "hookline.teams.points", "hookline.stores.ticket_points")
"""The modules above the kernel that declare hook points, in the order of the table in the documentation."""
