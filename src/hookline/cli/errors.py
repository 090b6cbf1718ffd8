"""Exit codes and error messages of the command line."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .._base.text import describe, error_text
from .._kernel.errors import HooklineError
from ..models.errors import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    NotInstalledError,
    UnknownModelError,
    UnreachableError,
)
from .text import printable

if TYPE_CHECKING:
    from .._kernel.state import AgentResult


COMPLETED, FAILED, BAD_INPUT, STOPPED, ENDED, CANCELLED, UNREAD = 0, 1, 2, 3, 4, 130, 141

EXIT_CODES = {
    COMPLETED: "completed",
    FAILED: "failed",
    BAD_INPUT: "bad input or setup: options, configuration, hooks, key, model or server",
    STOPPED: "stopped by a limit or a hook",
    ENDED: "ended by a hook",
    CANCELLED: "cancelled with Ctrl-C",
    UNREAD: "nobody reads the output any more",
}

_BY_STATUS = {
    "completed": COMPLETED,
    "stopped": STOPPED,
    "ended": ENDED,
    "cancelled": CANCELLED,
    "failed": FAILED,
}
_SETUP = (AuthError, BadRequestError, ContextOverflowError, UnknownModelError, UnreachableError, NotInstalledError)


class ReaderGone(Exception):
    """Whoever read our output has left."""


def exit_code(result: AgentResult[Any], failure: BaseException | None = None) -> int:
    """The exit code for a run; a model that cannot even be asked for the first time is bad setup."""
    if result.status == "failed" and not result.steps and _is_setup(failure):
        return BAD_INPUT
    return _BY_STATUS[result.status]


def _is_setup(failure: BaseException | None) -> bool:
    from ..providers.local.weights import WeightsError

    while failure is not None:
        if isinstance(failure, (*_SETUP, WeightsError)):
            return True
        failure = failure.__cause__
    return False


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


def quiet_logs(debug: bool) -> None:
    """Keep the library's own records, with their tracebacks, off stderr unless they are wanted."""
    logger = logging.getLogger("hookline")
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s: %(message)s")
    else:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
