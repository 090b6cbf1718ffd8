"""The hot path: fire one point (DESIGN 3 to 5).

Everything that can be checked about a hook was checked at registration, so this module only calls hooks. A fire has
three phases: rewriters, guards, observers. ``fire`` runs all of them. At ``before_tool`` the loop runs them one by one,
because it validates the arguments between rewriters and guards (DESIGN 4.2).

``call_hooks`` is the loop in which most fires end. :class:`Firing` is a fire with a result, or one that is watched. It
reads in this order: what a fire holds; its phases; how hooks are called; how a result or a failure is applied (DESIGN
4.3, 5.1); how the verdict is made; what is reported to fire observers (DESIGN 4.11).
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Coroutine, Iterable, Iterator, Sequence
from typing import Any

import msgspec

from .._base.frozen import freeze
from .._base.tasks import StillRunningError, abandon, capture_exit, raise_exit
from .errors import CallRefusedError, HookError, HookTimeoutError, InvalidResultError
from .events import JudgedBeforeRewrite, MergeLost, RetryIgnored
from .fire_observers import CallReport, FireReport
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
from .scope import HOOK_CALL, NO_HOOKS, HookCall, Scope, is_being_closed
from .state import AgentState
from .values import ErrorInfo, StopSignal

log = logging.getLogger("hookline")

_FINAL = SETTLING | {HookAction.INVALID}
_STOPPABLE = frozenset((ON_RUN_START, BEFORE_STEP, BEFORE_LLM, BEFORE_TOOL))
"""Points after which a stop signal takes effect before the next action."""
_AFTERWARDS = frozenset((AFTER_TOOL, AFTER_STEP, ON_STOP, ON_ERROR, ON_RUN_END))
"""Points that come after the action: an end after a tool call, for example, does not undo the call."""
_REJECTED_BY_CLAIM = "before_ticket_complete"
"""The point at which a claim rejects something. Tickets declare it, above the kernel."""


_MANY = 8
"""Of so many guards, those of a tool are chosen at once. Fewer are asked one by one."""
_MAX_NAME = 128
_MAX_TOOLS = 256
"""Tools whose guards are remembered. Names come from models, and must not fill the memory."""


class Chain(msgspec.Struct, frozen=True, eq=False):
    """The hooks of one point in calling order. ``simple`` means that all of them are rewriters."""

    rewriters: tuple[HookEntry, ...] = ()
    guards: tuple[HookEntry, ...] = ()
    observers: tuple[HookEntry, ...] = ()
    simple: bool = True
    selected: dict[str, tuple[HookEntry, ...]] = {}
    """The guards of each tool, if there are many and some are for certain tools only."""

    def guards_of(self, payload: Any) -> tuple[HookEntry, ...]:
        """Return the guards that are called for a payload, so that a call pays only for the guards of its tool."""
        if len(self.guards) < _MANY or not any(entry.tools for entry in self.guards):
            return self.guards
        tool = tool_of(payload)
        found = self.selected.get(tool)
        if found is None:
            found = tuple(entry for entry in self.guards if selects(entry.tools, payload))
            if len(self.selected) < _MAX_TOOLS and len(tool) <= _MAX_NAME:
                self.selected[tool] = found
        return found


HookOutcome = tuple[HookEntry, Any, BaseException | None]
"""A hook with its return value and the exception it raised."""


def call_hooks(entries: Iterator[HookEntry], payload: Any, scope: Scope) -> tuple[HookOutcome, HookCall] | None:
    """Call hooks in order until one returns a value or raises. Most fires end with this loop.

    The value may be the awaitable of an async hook, which :meth:`Firing.call_remaining` awaits. So the call of that
    hook, which is returned too, has not ended.
    """
    ctx, outer = scope.ctx, HOOK_CALL.get()
    try:
        for entry in entries:
            call = HookCall(entry.id_set, outer, True)
            HOOK_CALL.set(call)
            result = entry.call(ctx, payload)
            if result is not None:
                return (entry, result, None), call
            call.hooks = NO_HOOKS
    except (Exception, asyncio.CancelledError, GeneratorExit) as error:  # noqa: BLE001 - on_failure decides
        return (entry, None, error), call  # pyright: ignore[reportPossiblyUnboundVariable] # only a hook raises
    finally:
        HOOK_CALL.set(outer)
    return None


class Firing:
    """One fire of one point: runs its phases, collects the results of the hooks and makes the verdict.

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
    stop_reason = ""
    failures: tuple[ErrorInfo, ...] = ()
    changed: tuple[HookEntry, ...] = ()
    change_reason = ""
    merged: dict[str, tuple[Any, str, str]] = {}  # noqa: RUF012 - replaced, never changed
    """The value of each field, the hook that returned it, and its reason."""
    error: HookError | CallRefusedError | None = None
    published = False
    started = 0.0
    """The time at which the fire began, if it is timed."""
    calls: tuple[CallReport, ...] = ()
    """The calls of hooks that are reported at the end of the fire: see :class:`FireReport`."""

    def __init__(self, chain: Chain, point: Point[Any], payload: Any, scope: Scope, no_retry: str) -> None:
        self.chain = chain
        self.point = point
        self.payload = self.arrived = payload
        self.scope = scope
        self.no_retry = no_retry
        self.watch = watch = scope.fire_observers[point]
        if watch.is_timed:
            self.started = time.perf_counter()

    @property
    def is_open(self) -> bool:
        """Whether further hooks may still decide."""
        return (self.error is None or self.point.resilient) and self.action not in _FINAL

    # The phases.

    def rewrite(self) -> Awaitable[None]:
        """Call the rewriters."""
        return self._call(self.chain.rewriters, "rewrite")

    def guard(self) -> Awaitable[None]:
        """Call the guards, unless the point is already settled."""
        return self._call(self.chain.guards_of(self.payload) if self.is_open else (), "guard")

    async def _call(self, entries: tuple[HookEntry, ...], phase: Phase) -> None:
        """Call the hooks of a phase until one of them settles the point."""
        if not entries:
            return
        if self.watch.is_timed:
            await self.call_remaining(entries, phase)
            return
        remaining = iter(entries)
        first = call_hooks(remaining, self.payload, self.scope)
        if first is not None:
            outcome, call = first
            await self.call_remaining((outcome[0], *remaining), phase, outcome, call)

    async def conclude(self) -> Verdict:
        """Call the observers in any case and return the verdict. ``self.error`` is set if a hook failed closed."""
        verdict = self.verdict()
        if self.chain.observers:
            await self.scope.boundary.call_observers(self, verdict)
            if self.failures is not verdict.failures:
                verdict = msgspec.structs.replace(verdict, failures=self.failures)
        self.publish(verdict)
        if self.error is not None:
            self.error.verdict = verdict
        return verdict

    # Calling hooks.

    async def call_remaining(
        self,
        entries: Iterable[HookEntry],
        phase: Phase,
        first: HookOutcome | None = None,
        first_call: HookCall | None = None,
    ) -> None:
        """Call hooks, await the async ones and apply their results, until one of them settles the point.

        This is the async continuation of :func:`call_hooks`; ``first`` is the outcome of the first entry, and
        ``first_call`` its call, if it was called there. A hook counts as running until it ends (``HookCall``), so that
        a model call or run that it starts does not call it again (DESIGN 4.8).
        """
        scope, before, began = self.scope, self.payload, 0.0
        ctx, is_timed, every_call = scope.ctx, self.watch.is_timed, bool(self.watch.of_all_calls)
        latest = outer = HOOK_CALL.get()
        try:
            for entry in entries:
                raised = None
                latest = call = first_call or HookCall(entry.id_set, outer, True)
                first_call = None
                HOOK_CALL.set(call)
                if is_timed:
                    began = time.perf_counter()
                try:
                    if first is not None:
                        (_, result, raised), first = first, None
                        if raised is not None:
                            raise raised
                    else:
                        try:
                            result = entry.call(ctx, self.payload)
                        except (asyncio.CancelledError, GeneratorExit) as own:  # nothing interrupts a plain call
                            raised = own
                            raise
                    if entry.is_async or hasattr(result, "__await__"):
                        call.is_sync = False
                        if (
                            entry.timeout is not None
                            or not scope.boundary.is_direct
                            or scope.cancellation.deadline is not None
                        ):
                            result = self._in_time(entry, result)
                        result = await result
                    call.hooks = NO_HOOKS
                    if (result is not None or every_call) and self.apply(entry, phase, result, began):
                        return
                except asyncio.CancelledError as cancelled:
                    is_interrupted = raised is None and scope.cancellation.is_cancelled()
                    if is_interrupted and not self.point.resilient:
                        raise
                    if not is_interrupted:
                        call.end()
                    if self.fail(entry, cancelled, began):
                        return
                except GeneratorExit as closed:
                    if raised is None and is_being_closed(scope):
                        raise
                    call.end()
                    if self.fail(entry, closed, began):
                        return
                except Exception as failure:  # noqa: BLE001 - on_failure decides what becomes of it
                    call.end(failure)
                    if self.fail(entry, failure, began):
                        return
        finally:
            if latest is not outer and HOOK_CALL.get() is latest:  # not if Python closes it in another context
                HOOK_CALL.set(outer)
            if self.changed and phase == "rewrite":
                self.report_judged_before_rewrite(self.chain.rewriters, before)

    async def _in_time(self, entry: HookEntry, awaitable: Awaitable[Any]) -> Any:
        """Await the result of a hook, limited by its timeout and by the deadline after a cancellation."""
        limit, deadline = entry.timeout, self.scope.cancellation.deadline
        if deadline is not None:
            left = max(0.0, deadline - time.monotonic())
            limit = left if limit is None else min(limit, left)
        try:
            return await self.scope.boundary.await_hook(self, entry, awaitable, limit, deadline is not None)
        except StillRunningError:
            raise HookTimeoutError(f"still running after {limit:g} s") from None

    async def call_observers(self, observers: tuple[HookEntry, ...], verdict: Verdict) -> None:
        """Call every observer, the async ones concurrently. None of them changes the verdict."""
        scope, payload = self.scope, verdict.payload
        pending: list[Coroutine[Any, Any, None]] = []
        ctx, outer = scope.ctx, HOOK_CALL.get()
        is_timed, every_call = self.watch.is_timed, bool(self.watch.of_all_calls)
        try:
            for entry in observers:
                began = time.perf_counter() if is_timed else 0.0
                call = HookCall(entry.id_set, outer, True)
                HOOK_CALL.set(call)
                try:
                    if entry.wants_verdict:
                        result = entry.call(ctx, payload, verdict=verdict)
                    else:
                        result = entry.call(ctx, payload)
                    if result is not None and hasattr(result, "__await__"):
                        pending.append(self._observed(entry, result, began, call))
                        continue
                    call.hooks = NO_HOOKS
                    if result is not None or every_call:
                        self.apply(entry, "observe", result, began)
                except (Exception, asyncio.CancelledError, GeneratorExit) as failure:  # noqa: BLE001 - on_failure decides
                    call.hooks = NO_HOOKS
                    self.fail(entry, failure, began)
        finally:
            HOOK_CALL.set(outer)
        if len(pending) == 1:
            await pending[0]
        elif pending:
            tasks = [asyncio.ensure_future(capture_exit(work)) for work in pending]
            try:
                await asyncio.wait(tasks)
                for task in tasks:
                    raise_exit(task.result())
            except asyncio.CancelledError:
                await asyncio.sleep(0)  # every observer has at least started
                for task in tasks:
                    abandon(task)
                raise

    async def _observed(self, entry: HookEntry, awaitable: Awaitable[Any], began: float, call: HookCall) -> None:
        call.is_sync = False
        HOOK_CALL.set(call)
        try:
            result = await self._in_time(entry, awaitable)
            call.hooks = NO_HOOKS
            if result is not None or self.watch.of_all_calls:
                self.apply(entry, "observe", result, began)
        except asyncio.CancelledError as cancelled:
            if self.scope.cancellation.is_cancelled():
                raise
            call.end()
            self.fail(entry, cancelled, began)
        except GeneratorExit as closed:
            if is_being_closed(self.scope):
                raise
            call.end()
            self.fail(entry, closed, began)
        except Exception as failure:  # noqa: BLE001 - on_failure decides what becomes of it
            call.end(failure)
            self.fail(entry, failure, began)
        finally:
            if HOOK_CALL.get() is call:  # not if Python closes this coroutine in another context
                HOOK_CALL.set(call.outer)

    # Results and failures.

    def settle(self, action: HookAction, value: Any, hook: str = "", reason: str = "") -> None:
        """Settle the point with this verb."""
        self.has_results = True
        self.action, self.value = action, value
        self.hook, self.reason = hook, reason

    def mark_invalid(self, problem: str) -> None:
        """Settle the point because the payload is invalid: no guard is called."""
        self.settle(HookAction.INVALID, problem)

    def apply(self, entry: HookEntry, phase: Phase, result: Any, began: float) -> bool:
        """Apply one result. Return whether it settles the point (DESIGN 4.3)."""
        if result is None:
            self._report_call(entry, began)
            return False
        self.has_results = True
        parsed = parse_result(result, self.point, self.payload, entry.name, phase)
        state = None
        if parsed.state is not None:
            state = self.scope.state
            self._apply_state(entry, phase, parsed.state)
        verb, value, name = parsed.action, parsed.value, entry.name
        refused = self._is_refusal(verb, phase)
        self._report_call(entry, began, parsed, refused=refused, state=state)
        if verb is HookAction.REPLACE:
            self.payload = value
            self.changed += (entry,)
            self.change_reason = parsed.reason
        elif verb is HookAction.ANSWER:
            self.answer = self.answer or HookAnswer(value, name, parsed.reason)
            return phase == "rewrite"
        elif verb is HookAction.ASK:
            self.asks += (Question(value, entry.asks_as or name, parsed.reason),)
        elif verb is HookAction.STOP:
            self._signal(StopSignal(parsed.kind, value, name), parsed.reason)  # type: ignore[arg-type]
        elif verb is HookAction.KEEP_GOING:
            if self.action is not HookAction.KEEP_GOING:
                self.settle(verb, value, name, parsed.reason)
        elif verb is HookAction.MERGE:
            for field in value.keys() & self.merged.keys():
                self.scope.emit(MergeLost, point=self.point, hook=name, field=field, kept=self.merged[field][1])
            self.merged = {field: (given, name, parsed.reason) for field, given in value.items()} | self.merged
        elif verb is HookAction.RETRY and self.no_retry:
            self.scope.emit(RetryIgnored, point=self.point, hook=name, why=self.no_retry)
            if self.no_retry == "retry_limit":
                self._signal(StopSignal("retry_limit", "Retry limit reached.", name), "Retry limit reached.")
                if refused:  # a reply that a guard rejects is not used (DESIGN 4.6)
                    self.settle(verb, value, name, parsed.reason)
                    return True
        elif verb is not HookAction.CONT:
            self.settle(verb, value, name, parsed.reason)
            return True
        return False

    def _signal(self, signal: StopSignal, reason: str) -> None:
        """Add a stop signal. The verdict has the reason of the first one."""
        self.stop_reason = self.stop_reason if self.signals else reason
        self.signals += (signal,)

    def _is_refusal(self, verb: HookAction, phase: Phase) -> bool:
        """Whether a result prevents something. For a failure, :meth:`fail` knows.

        The lists of refusals, statistics and traces use this answer: ``HookExecuted.refused``.
        """
        if verb is HookAction.REPLACE:  # the usual case
            return False
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

    def fail(self, entry: HookEntry, failure: BaseException, began: float) -> bool:
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
        self._report_call(entry, began, error=str(error), location=error.location, refused=refused)
        if closed:
            self.error = error  # raised to the caller; all other failures are logged
            return not self.point.resilient
        log.warning("%s (on_failure=%s)", error, entry.on_failure, exc_info=failure)
        self.failures += (_info(error, error.cause, fatal=entry.on_failure == "closed"),)
        if entry.on_failure == "block":
            # The exception may contain secrets, so only the errors and the log show it, not the model.
            self.settle(HookAction.BLOCK, f"Blocked: the hook {entry.name!r} failed.", entry.name, "the hook failed")
        return entry.on_failure == "block"

    # The verdict.

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
            fields = {name: given for name, (given, _, _) in self.merged.items()}
            action = HookAction.MERGE
            _, hook, reason = self.merged.get("error", next(iter(self.merged.values())))
            value = self.point.result().replace(fields) if self.point.result else freeze(fields)
        elif action is HookAction.CONT:
            if self.asks:
                action, hook, reason = HookAction.ASK, self.asks[0].hook, self.asks[0].reason
            elif self.answer is not None:
                action, hook, reason = HookAction.ANSWER, self.answer.hook, self.answer.reason
            elif self.signals:
                action, hook, reason = HookAction.STOP, self.signals[0].hook, self.stop_reason
            elif self.changed:
                action, hook, reason = HookAction.REPLACE, self.changed[-1].name, self.change_reason
        return Verdict(
            self.payload, action, value, hook, reason, self.answer, self.asks, self.signals, self.failures, failed
        )

    # Reports.

    def report_judged_before_rewrite(self, entries: Sequence[HookEntry], payload: Any) -> None:
        """Report rewriters that let a payload pass before a later hook changed it (DESIGN 4.2)."""
        if not self.scope.has_consumers:
            return
        before = entries[: entries.index(self.changed[-1])]
        early = tuple(e.name for e in before if e not in self.changed and selects(e.tools, payload))
        if early:
            self.scope.emit(JudgedBeforeRewrite, point=self.point, hooks=early, by=self.changed[-1].name)

    def _report_call(
        self,
        entry: HookEntry,
        began: float,
        result: HookResult | None = None,
        *,
        error: str | None = None,
        location: str = "",
        refused: bool = False,
        state: AgentState | None = None,
    ) -> None:
        """Report a call of a hook to the fire observers, unless the hook is for other tools and was not called."""
        watch = self.watch
        is_silent = result is None and error is None
        if (not watch.of_results and not watch.of_fires) or (is_silent and not selects(entry.tools, self.payload)):
            return
        took = time.perf_counter() - began if watch.is_timed else 0
        call = CallReport(entry, self.point, self.payload, result, error, location, refused, took, state)
        if watch.of_fires:
            self.calls += (call,)
        for observer in watch.of_all_calls if is_silent else watch.of_results:
            observer.hook_called(call)

    def publish(self, verdict: Verdict) -> None:
        """Report this fire to the fire observers, once."""
        if self.published:
            return
        self.published = True
        if self.watch.of_fires:
            took = time.perf_counter() - self.started if self.watch.is_timed else 0
            fire = FireReport(self.point, self.arrived, verdict, self.calls, took)
            for observer in self.watch.of_fires:
                observer.fire_ended(fire)


async def fire(
    chain: Chain, point: Point[Any], payload: Any, scope: Scope, no_retry: str = ""
) -> tuple[Verdict, Firing | None]:
    """Fire a point: rewriters, guards, observers. Return the verdict, and the firing if any hook had a result."""
    if chain.simple and point not in scope.fire_observers.watched_points:
        remaining = iter(chain.rewriters)
        first = call_hooks(remaining, payload, scope)
        if first is None:
            return Verdict(payload), None
        outcome, call = first
        firing = Firing(chain, point, payload, scope, no_retry)
        await firing.call_remaining((outcome[0], *remaining), "rewrite", outcome, call)
        if not firing.has_results:
            return Verdict(payload), None
    else:
        firing = Firing(chain, point, payload, scope, no_retry)
        if chain.rewriters:
            await firing.rewrite()
        if chain.guards:
            await firing.guard()
    return await firing.conclude(), firing


def _is_afterwards(point: Point[Any]) -> bool:
    """Whether a closed failure at a point can prevent nothing. A denied approval has an event of its own."""
    return point in _AFTERWARDS or point == APPROVAL_REQUESTED or (point.model == "observe" and point != SESSION_START)


def _info(error: HookError | CallRefusedError, cause: BaseException, *, fatal: bool) -> ErrorInfo:
    """Return a failure as data for observers, because an exception could be changed in place."""
    return ErrorInfo("hook", type(cause).__name__, str(error), error.hook, fatal=fatal)
