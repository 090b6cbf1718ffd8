"""The model interface, the model providers, their errors, and a scripted model for tests."""

from .._base.lazy import attach

__getattr__, __dir__ = attach(__name__)
