"""The tools that ship with Hookline. Import them from ``hookline.tools``."""
