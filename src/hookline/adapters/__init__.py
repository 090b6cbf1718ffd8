"""Hookline's hooks inside the loops of other frameworks, and other systems' hooks inside Hookline's loop."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
