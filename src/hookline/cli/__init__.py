"""The command line program ``hookline``."""
