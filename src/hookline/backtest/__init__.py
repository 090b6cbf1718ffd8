"""Judge recorded moments with other hooks, without running an agent (DESIGN 6.13)."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
