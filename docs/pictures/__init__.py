"""The pictures of the docs, drawn from the code: see ../draw.py."""
