"""Hooks that come with Hookline, one file for each concern."""
