"""Exit codes, and which one a run has earned."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..models.errors import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    NotInstalledError,
    UnknownModelError,
    UnreachableError,
)

if TYPE_CHECKING:
    from .._kernel.state import AgentResult

COMPLETED, FAILED, BAD_INPUT, STOPPED, ENDED, CANCELLED, UNREAD = 0, 1, 2, 3, 4, 130, 141

MEANINGS = {
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
