"""Convert the logs of other systems to records."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
