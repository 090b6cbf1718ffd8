"""What people are told when something goes wrong."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Sequence
from typing import Any

from .._base.text import describe, error_text
from .._kernel.errors import HooklineError
from .exits import BAD_INPUT, CANCELLED, FAILED
from .text import printable


def say_error(message: str) -> None:
    """``error: …`` on stderr."""
    sys.stderr.write(f"error: {printable(message)}\n")


def say_note(message: str) -> None:
    """``note: …`` on stderr, in one line."""
    sys.stderr.write(f"note: {printable(message, keep='')}\n")


def say_failure(error: BaseException, *, debug: bool) -> None:
    """What an error says, with the traceback if it is wanted."""
    if debug:
        traceback.print_exception(error)
    say_error(error_text(error))


def report(error: Exception, args: Sequence[str]) -> int:
    """Say in a sentence what went wrong, with the traceback if it was asked for; the exit code."""
    import typer

    if isinstance(error, typer.Abort):  # Ctrl-C or Ctrl-D at a question
        return CANCELLED
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # a mistake in the arguments, found by typer
        say_error(format_message())
        context: Any = getattr(error, "ctx", None)
        if context is not None:
            sys.stderr.write(f"Try: {context.command_path} --help\n")
        return BAD_INPUT
    if debugging(args):
        traceback.print_exception(error)
    if isinstance(error, HooklineError):
        say_error(error_text(error))
        return BAD_INPUT
    say_error(f"{describe(error)} (--debug shows where)")
    return FAILED


def debugging(args: Sequence[str]) -> bool:
    """Whether tracebacks are wanted; asked when the settings may be what is wrong."""
    from ..config.errors import ConfigError
    from ..config.sources import load

    if "--debug" in args:
        return True
    try:
        return load().settings.debug
    except ConfigError:
        return False
