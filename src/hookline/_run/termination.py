"""Causes for the early end of a run; the strongest one determines its status (DESIGN 5.5)."""

from __future__ import annotations

import asyncio
from typing import Any

from .._kernel.errors import CallRefusedError, HooklineError
from .._kernel.results import Verdict
from .._kernel.state import AgentResult
from .._kernel.values import STOP_KINDS, Status, StopSignal

_SIGNAL_RANK = {kind: rank for rank, kind in enumerate(STOP_KINDS)}
_STATUS_RANK: dict[Status, int] = {"completed": 0, "stopped": 1, "ended": 2, "cancelled": 3, "failed": 4}


class RunEndedError(Exception):
    """A hook returned ``end``."""

    def __init__(self, verdict: Verdict) -> None:
        super().__init__(verdict.value)
        self.verdict = verdict
        self.reply: str = verdict.value
        self.hook = verdict.hook
        self.reason = verdict.reason


class RunStoppedError(Exception):
    """A checkpoint found a stop signal, so the current step ends."""


class RunFailedError(HooklineError):
    """A run ended with the status ``failed``. ``result`` contains everything up to the failure.

    Example::

        try:
            result = agent.run("Summarise the report.")
        except RunFailedError as error:
            print(error, error.result.messages)
    """

    def __init__(self, result: AgentResult[Any], cause: BaseException | None = None) -> None:
        first = result.errors[-1].message if result.errors else "unknown failure"
        super().__init__(str(cause) if cause is not None else first)
        self.result = result
        self.__cause__ = cause


def status_of(cause: BaseException | None) -> Status:
    """Return the status that a cause gives to its run."""
    if cause is None or isinstance(cause, RunStoppedError):
        return "stopped"
    if isinstance(cause, RunEndedError):
        return "ended"
    if isinstance(cause, asyncio.CancelledError):
        return "cancelled"
    if isinstance(cause, CallRefusedError) and cause.status in _STATUS_RANK:
        return cause.status
    return "failed"


def stronger_cause(old: BaseException | None, new: BaseException) -> BaseException:
    """Return the cause that determines the status. If two are equally strong, the first one wins."""
    return new if old is None or _STATUS_RANK[status_of(new)] > _STATUS_RANK[status_of(old)] else old


def signal_rank(signal: StopSignal) -> int:
    """Return the rank of a stop signal in the order of DESIGN 5.4; 0 is the strongest."""
    return _SIGNAL_RANK[signal.kind]
