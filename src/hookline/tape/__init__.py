"""Record runs to tapes, and replay a tape with the same or other hooks (DESIGN 6.11)."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
