"""Refuse tools that no guard names."""

from .._run.strict import Strict

__all__ = ["Strict"]
