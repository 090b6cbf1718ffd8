"""Plugins: what they are, where they are found, how they are switched on and off."""
