"""Records of runs: moments, one line per fire of a point, and the hook that writes them (DESIGN 6.13)."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
