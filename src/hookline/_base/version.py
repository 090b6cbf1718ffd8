"""The version of Hookline."""

__version__ = "0.1.0"
