"""The tools to write hooks with, and the built-in hooks, which use nothing else."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
