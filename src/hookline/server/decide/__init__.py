"""``POST /decide``: programs in any language ask the hooks of an agent about single moments (DESIGN 6.22)."""
