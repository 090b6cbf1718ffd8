"""Exit codes and error messages of the command line."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from .._base.text import describe, error_text
from .._kernel.errors import HookError, HooklineError
from ..models.errors import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    NotInstalledError,
    UnknownModelError,
    UnreachableError,
)
from .output import short_path
from .text import printable

if TYPE_CHECKING:
    from .._kernel.state import AgentResult
    from ..records.account import Skipped


COMPLETED, FAILED, BAD_INPUT, STOPPED, ENDED, SKIPPED, WAITING, CANCELLED, OUTPUT_CLOSED = 0, 1, 2, 3, 4, 5, 6, 130, 141

EXIT_CODES = {
    COMPLETED: "completed",
    FAILED: "failed",
    BAD_INPUT: "invalid input or setup: options, settings, hooks, API key, model, server",
    STOPPED: "stopped by a limit, a hook or a halt",
    ENDED: "ended by a hook",
    SKIPPED: "completed, but a part of the input could not be used",
    WAITING: "suspended: a durable run waits for an approval, or is halted",
    CANCELLED: "cancelled with Ctrl-C",
    OUTPUT_CLOSED: "the reader of the output closed the pipe",
}

_BY_STATUS = {
    "completed": COMPLETED,
    "stopped": STOPPED,
    "ended": ENDED,
    "cancelled": CANCELLED,
    "failed": FAILED,
}
_SETUP_ERRORS = (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    UnknownModelError,
    UnreachableError,
    NotInstalledError,
)


class OutputClosedError(Exception):
    """The program that read our output has closed the pipe."""


def exit_code(result: AgentResult[Any], failure: BaseException | None = None) -> int:
    """Return the exit code for a run. A model that cannot be called even once is a setup error."""
    if result.status == "failed" and not result.steps and _is_setup_error(failure):
        return BAD_INPUT
    return _BY_STATUS[result.status]


def _is_setup_error(failure: BaseException | None) -> bool:
    from ..providers.local.weights import WeightsError

    while failure is not None:
        if isinstance(failure, (*_SETUP_ERRORS, WeightsError)):
            return True
        failure = failure.__cause__
    return False


def print_error(message: str) -> None:
    """Print ``error: MESSAGE`` to stderr."""
    sys.stderr.write(f"error: {printable(message)}\n")


def print_note(message: str) -> None:
    """Print ``note: MESSAGE`` to stderr, on one line."""
    sys.stderr.write(f"note: {printable(message, keep='')}\n")


def print_skipped(skipped: Iterable[Skipped]) -> None:
    """Print notes about lines of records that were skipped."""
    for each in skipped:
        print_note(str(each.replace(file=short_path(each.file))))


def print_failure(error: BaseException, *, debug: bool) -> None:
    """Print an exception's message to stderr, after its traceback if ``debug`` is set.

    For the failure of a hook, it also names the file and line of the hook's code. Further lines of the message are
    indented: a model can have written them, and only the program writes to the first column.
    """
    if debug:
        traceback.print_exception(error)
    failed = error if isinstance(error, HookError) else error.__cause__
    location = failed.location if isinstance(failed, HookError) else ""
    message = printable(error_text(error)).replace("\n", "\n  ")
    print_error(f"{message} ({location})" if location else message)


def report_error(error: Exception, args: Sequence[str]) -> int:
    """Print an error message, with the traceback if the user asked for it, and return the exit code."""
    import typer

    if isinstance(error, typer.Abort):  # Ctrl-C or Ctrl-D at a prompt
        return CANCELLED
    format_message = getattr(error, "format_message", None)
    if format_message is not None:  # typer rejected the arguments
        print_error(format_message())
        context: Any = getattr(error, "ctx", None)
        if context is not None:
            sys.stderr.write(f"Try: {context.command_path} --help\n")
        return BAD_INPUT
    if wants_traceback(args):
        traceback.print_exception(error)
    if isinstance(error, HooklineError):
        print_error(error_text(error))
        return BAD_INPUT
    print_error(f"{describe(error)} (--debug shows the traceback)")
    return FAILED


def wants_traceback(args: Sequence[str]) -> bool:
    """Return whether to print tracebacks. The settings themselves may be invalid at this point."""
    from ..config.errors import ConfigError
    from ..config.sources import load

    if "--debug" in args:
        return True
    try:
        return load().settings.debug
    except ConfigError:
        return False


def set_up_logging(debug: bool) -> None:
    """Keep the library's log records off stderr unless ``debug`` is set: the views show what happens."""
    logger = logging.getLogger("hookline")
    if debug:
        logging.basicConfig(level=logging.INFO, format="%(name)s %(levelname)s: %(message)s")
    else:
        logger.addHandler(logging.NullHandler())
        logger.propagate = False
