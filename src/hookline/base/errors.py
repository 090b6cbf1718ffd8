"""The errors that every layer may raise."""

from __future__ import annotations


class HooklineError(Exception):
    """The base of all errors raised by Hookline itself."""


class NotInstalled(HooklineError, ImportError):
    """A part of Hookline needs a package that is not installed; the message has the command."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed: pip install 'hookline[{extra}]'", name=package)
        self.extra = extra
