"""The results and failures of the hooks of one fire, combined into a verdict (DESIGN 4.3, 5.1)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from .._base.frozen import freeze
from .errors import CallRefusedError, HookError, InvalidResultError
from .events import HookExecuted, JudgedBeforeRewrite, MergeLost, RetryIgnored
from .hook import HookEntry, Phase, selects, tool_of
from .payloads import Question
from .points import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    SESSION_START,
    Point,
)
from .results import SETTLING, HookAction, HookAnswer, HookResult, Verdict, parse_result
from .scope import Recorder, Scope
from .state import AgentState
from .values import ErrorInfo, StopSignal

log = logging.getLogger("hookline")

_FINAL = SETTLING | {HookAction.INVALID}
_NOTED = frozenset((HookAction.RETRY, HookAction.KEEP_GOING))
_STOPPABLE = frozenset((ON_RUN_START, BEFORE_STEP, BEFORE_LLM, BEFORE_TOOL))
"""Points after which a stop signal takes effect before the next action."""
_AFTERWARDS = frozenset((AFTER_TOOL, AFTER_STEP, ON_STOP, ON_ERROR, ON_RUN_END))
"""Points that come after the action: an end after a tool call, for example, does not undo the call."""
_REJECTED_BY_CLAIM = "before_ticket_complete"
"""The point at which a claim rejects something. Tickets declare it, above the kernel."""


class RecordedResult(NamedTuple):
    """The result or failure of one hook, for a recorder. ``state`` is the state before the hook's ``state=``."""

    entry: HookEntry
    result: HookResult | None
    error: str | None
    took: float
    state: AgentState | None = None


class Settlement:
    """The results of the hooks so far, at one fire of a point.

    ``no_retry`` is the reason why a ``retry`` would be ignored; it is empty if a retry is possible.
    """

    # Class attributes as defaults: most fires have no result, and then nothing is set on the instance.
    has_results = False
    action: HookAction = HookAction.CONT
    value: Any = None
    hook = ""
    reason = ""
    answer: HookAnswer | None = None
    asks: tuple[Question, ...] = ()
    signals: tuple[StopSignal, ...] = ()
    failures: tuple[ErrorInfo, ...] = ()
    changed: tuple[HookEntry, ...] = ()
    merged: dict[str, tuple[Any, str]] = {}  # noqa: RUF012 - replaced, never changed
    error: HookError | CallRefusedError | None = None
    began = 0.0
    recorder: Recorder | None = None
    recorded_results: tuple[RecordedResult, ...] = ()
    """The results of all hooks, if there is a recorder."""

    point: Point[Any]
    payload: Any
    scope: Scope
    no_retry: str

    @property
    def is_open(self) -> bool:
        """Whether further hooks may still decide."""
        return (self.error is None or self.point.resilient) and self.action not in _FINAL

    def settle(self, action: HookAction, value: Any, hook: str = "", reason: str = "") -> None:
        """Settle the point with this verb."""
        self.has_results = True
        self.action, self.value = action, value
        self.hook, self.reason = hook, reason

    def mark_invalid(self, problem: str) -> None:
        """Settle the point because the payload is invalid: no guard is called."""
        self.settle(HookAction.INVALID, problem)

    def apply(self, entry: HookEntry, phase: Phase, result: Any) -> bool:
        """Apply one result. Return whether it settles the point (DESIGN 4.3)."""
        if result is None:
            self._emit_executed(entry, HookAction.CONT)
            return False
        self.has_results = True
        parsed = parse_result(result, self.point, self.payload, entry.name, phase)
        state = None
        if parsed.state is not None:
            state = self.scope.state
            self._apply_state(entry, phase, parsed.state)
        if self.recorder is not None:
            took = time.perf_counter() - self.began
            self.recorded_results += (RecordedResult(entry, parsed, None, took, state),)
        verb, value, name = parsed.action, parsed.value, entry.name
        refused = self._is_refusal(verb, phase)
        self._emit_executed(entry, verb, parsed.reason, note=value if verb in _NOTED else "", refused=refused)
        if verb is HookAction.REPLACE:
            self.payload = value
            self.changed += (entry,)
        elif verb is HookAction.ANSWER:
            self.answer = self.answer or HookAnswer(value, name, parsed.reason)
            return phase == "rewrite"
        elif verb is HookAction.ASK:
            self.asks += (Question(value, name, parsed.reason),)
        elif verb is HookAction.STOP:
            self.signals += (StopSignal(parsed.kind, value, name),)  # type: ignore[arg-type]
        elif verb is HookAction.KEEP_GOING:
            if self.action is not HookAction.KEEP_GOING:
                self.settle(verb, value, name, parsed.reason)
        elif verb is HookAction.MERGE:
            for field in value.keys() & self.merged.keys():
                self.scope.emit(MergeLost, point=self.point, hook=name, field=field, kept=self.merged[field][1])
            self.merged = {field: (given, name) for field, given in value.items()} | self.merged
        elif verb is HookAction.RETRY and self.no_retry:
            self.scope.emit(RetryIgnored, point=self.point, hook=name, why=self.no_retry)
            if self.no_retry == "retry_limit":
                self.signals += (StopSignal("retry_limit", "Retry limit reached.", name),)
                if refused:  # a reply that a guard rejects is not used (DESIGN 4.6)
                    self.settle(verb, value, name, parsed.reason)
                    return True
        elif verb is not HookAction.CONT:
            self.settle(verb, value, name, parsed.reason)
            return True
        return False

    def _is_refusal(self, verb: HookAction, phase: Phase) -> bool:
        """Whether a result prevents something. For a failure, :meth:`fail` knows.

        The lists of refusals, statistics and traces use this answer: ``HookExecuted.refused``.
        """
        match verb:
            case HookAction.BLOCK:
                return True
            case HookAction.END:
                return self.point not in _AFTERWARDS
            case HookAction.RETRY:  # over the limit, only a guard's rejection of a reply still counts
                over_limit = self.no_retry == "retry_limit" and phase == "guard"
                return self.point == AFTER_LLM and (not self.no_retry or over_limit)
            case HookAction.STOP:
                return self.point in _STOPPABLE
            case HookAction.CLAIM:
                return self.point == _REJECTED_BY_CLAIM
        return False

    def _apply_state(self, entry: HookEntry, phase: Phase, state: Any) -> None:
        where = f"hook {entry.name!r} at {self.point}"
        if self.point.model != "pipeline" or phase == "observe":
            raise InvalidResultError(f"{where}: only rewriters and guards at a pipeline point may return state=")
        try:
            self.scope.accept_state(state)
        except TypeError as error:
            raise InvalidResultError(f"{where}: {error}") from error

    def fail(self, entry: HookEntry, failure: BaseException) -> bool:
        """Apply the failure policy of a hook (DESIGN 5.1). Return whether it settles the point."""
        self.has_results = True
        cancellation = self.scope.cancellation
        if self.point.resilient and isinstance(failure, asyncio.CancelledError) and cancellation.is_cancelled():
            cancellation.start_grace_period()  # a cancellation is not a failure; the remaining hooks still run
            return False
        if isinstance(failure, CallRefusedError):
            self.error = self.error or failure
            return not self.point.resilient
        error = HookError(entry.name, self.point, failure)
        closed = entry.on_failure == "closed" and self.error is None  # the first one prevents the action
        refused = entry.on_failure == "block" or (closed and not _is_afterwards(self.point))
        self._emit_executed(entry, HookAction.FAILED, error=str(error), refused=refused, location=error.location)
        if self.recorder is not None:
            took = time.perf_counter() - self.began
            self.recorded_results += (RecordedResult(entry, None, str(error), took),)
        if closed:
            self.error = error  # raised to the caller; all other failures are logged
            return not self.point.resilient
        log.warning("%s (on_failure=%s)", error, entry.on_failure, exc_info=failure)
        self.failures += (_info(error, error.cause, fatal=entry.on_failure == "closed"),)
        if entry.on_failure == "block":
            # The exception may contain secrets, so only the errors and the log show it, not the model.
            self.settle(HookAction.BLOCK, f"Blocked: the hook {entry.name!r} failed.", entry.name, "the hook failed")
        return entry.on_failure == "block"

    def _emit_executed(
        self,
        entry: HookEntry,
        verb: str,
        reason: str = "",
        error: str | None = None,
        note: str = "",
        *,
        refused: bool = False,
        location: str = "",
    ) -> None:
        if not self.scope.has_consumers:
            return
        took = time.perf_counter() - self.began if self.scope.tracing else None
        call_id = str(getattr(self.payload, "id", getattr(self.payload, "call_id", "")))
        self.scope.emit(
            HookExecuted,
            point=self.point,
            hook=entry.name,
            phase=entry.phase,
            verb=verb,
            reason=str(reason),
            error=error,
            duration=took,
            call_id=call_id,
            note=note,
            tool=tool_of(self.payload) if self.point.tool else "",
            refused=refused,
            location=location,
        )

    def report_judged_before_rewrite(self, entries: Sequence[HookEntry], payload: Any) -> None:
        """Report rewriters that let a payload pass before a later hook changed it (DESIGN 4.2)."""
        if not self.scope.has_consumers:
            return
        before = entries[: entries.index(self.changed[-1])]
        early = tuple(e.name for e in before if e not in self.changed and selects(e.tools, payload))
        if early:
            self.scope.emit(JudgedBeforeRewrite, point=self.point, hooks=early, by=self.changed[-1].name)

    def verdict(self) -> Verdict:
        """Return the verdict of the rewriters and guards: the strongest result wins."""
        if not self.has_results:
            return Verdict(self.payload)
        action, value, hook, reason = self.action, self.value, self.hook, self.reason
        failed: ErrorInfo | None = None
        if self.error is not None:
            action, value, hook, reason = HookAction.FAILED, None, self.error.hook, str(self.error)
            cause = self.error.cause if isinstance(self.error, HookError) else self.error
            failed = _info(self.error, cause, fatal=True)
        elif self.merged:
            fields = {name: given for name, (given, _) in self.merged.items()}
            action, hook = HookAction.MERGE, self.merged.get("error", next(iter(self.merged.values())))[1]
            value = self.point.result().replace(fields) if self.point.result else freeze(fields)
        elif action is HookAction.CONT:
            if self.asks:
                action, hook, reason = HookAction.ASK, self.asks[0].hook, self.asks[0].reason
            elif self.answer is not None:
                action, hook, reason = HookAction.ANSWER, self.answer.hook, self.answer.reason
            elif self.signals:
                action, hook, reason = HookAction.STOP, self.signals[0].hook, self.signals[0].message
            elif self.changed:
                action, hook = HookAction.REPLACE, self.changed[-1].name
        return Verdict(
            self.payload, action, value, hook, reason, self.answer, self.asks, self.signals, self.failures, failed
        )


def _is_afterwards(point: Point[Any]) -> bool:
    """Whether a closed failure at a point can prevent nothing. A denied approval has an event of its own."""
    return point in _AFTERWARDS or point == APPROVAL_REQUESTED or (point.model == "observe" and point != SESSION_START)


def _info(error: HookError | CallRefusedError, cause: BaseException, *, fatal: bool) -> ErrorInfo:
    """Return a failure as data for observers, because an exception could be changed in place."""
    return ErrorInfo("hook", type(cause).__name__, str(error), error.hook, fatal=fatal)
