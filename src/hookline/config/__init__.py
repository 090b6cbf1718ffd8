"""Settings of a program that runs agents: where they come from, and what is built from them."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
