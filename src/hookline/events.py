"""What a run reports while it works."""

from ._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
