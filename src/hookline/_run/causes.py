"""Why a run leaves its normal course, and which cause wins when several meet (DESIGN 5.5)."""

from __future__ import annotations

import asyncio
from typing import Any

from .._kernel.errors import CallRefusedError, HooklineError
from .._kernel.results import Verdict
from .._kernel.state import AgentResult
from .._kernel.values import STOP_KINDS, Status, StopSignal

_STRENGTH = {kind: place for place, kind in enumerate(STOP_KINDS)}
_RANK: dict[Status, int] = {"completed": 0, "stopped": 1, "ended": 2, "cancelled": 3, "failed": 4}


class Ended(Exception):
    """A hook said ``end``."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.value)
        self.verdict = verdict
        self.reply: str = verdict.value
        self.hook = verdict.hook
        self.reason = verdict.reason


class Stopped(Exception):
    """A checkpoint found a recorded signal: the step is over."""


def status_of(cause: BaseException | None) -> Status:
    """The status a cause gives to a run."""
    if cause is None or isinstance(cause, Stopped):
        return "stopped"
    if isinstance(cause, Ended):
        return "ended"
    if isinstance(cause, asyncio.CancelledError):
        return "cancelled"
    if isinstance(cause, CallRefusedError) and cause.status in _RANK:
        return cause.status
    return "failed"


def stronger(old: BaseException | None, new: BaseException) -> BaseException:
    """The cause that holds when both happened; of equals the first."""
    return new if old is None or _RANK[status_of(new)] > _RANK[status_of(old)] else old


class RunFailedError(HooklineError):
    """A run ended ``failed``. ``result`` holds everything up to the failure."""

    def __init__(self, result: AgentResult[Any], cause: BaseException | None = None) -> None:
        first = result.errors[-1].message if result.errors else "unknown failure"
        super().__init__(str(cause) if cause is not None else first)
        self.result = result
        self.__cause__ = cause


def strength(signal: StopSignal) -> int:
    """Where a stop signal stands in the order of DESIGN 5.4; 0 is the strongest."""
    return _STRENGTH[signal.kind]
