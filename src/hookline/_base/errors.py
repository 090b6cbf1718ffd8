"""The errors that every layer may raise."""

from __future__ import annotations


class HooklineError(Exception):
    """The base of all errors raised by Hookline itself."""


class PlainError(HooklineError):
    """An error whose words are meant for models and people: as a tool's result they stand without its name."""
