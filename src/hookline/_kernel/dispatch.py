"""The hot path: fire one point (DESIGN 3 to 5).

Everything that can be checked about a hook was checked at registration, so this module only calls hooks. A fire has
three phases: rewriters, guards, observers. ``fire`` runs all of them. At ``before_tool`` the loop runs them one by one,
because it validates the arguments between rewriters and guards (DESIGN 4.2).
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Iterable, Iterator
from typing import Any

import msgspec

from .._base.tasks import StillRunningError, abandon, capture_exit, raise_exit
from .errors import HookTimeoutError
from .events import PointFired
from .hook import HookEntry, Phase
from .points import Point
from .results import Verdict
from .scope import HOOK_CALL, NO_HOOKS, HookCall, Scope, is_being_closed
from .settlement import Settlement


class Chain(msgspec.Struct, frozen=True, eq=False):
    """The hooks of one point in calling order. ``simple`` means that all of them are rewriters."""

    rewriters: tuple[HookEntry, ...] = ()
    guards: tuple[HookEntry, ...] = ()
    observers: tuple[HookEntry, ...] = ()
    simple: bool = True


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


class Firing(Settlement):
    """One fire of one point: runs its phases and collects the results of the hooks."""

    published = False

    def __init__(self, chain: Chain, point: Point[Any], payload: Any, scope: Scope, no_retry: str) -> None:
        self.chain = chain
        self.point = point
        self.payload = payload
        self.scope = scope
        self.no_retry = no_retry
        if point in scope.recorded_points:
            self.recorder = scope.recorder
            self.arrived = payload
            self.started = time.perf_counter()

    async def rewrite(self) -> None:
        """Call the rewriters."""
        if self.chain.rewriters:
            await self._call(self.chain.rewriters, "rewrite")

    async def guard(self) -> None:
        """Call the guards, unless the point is already settled."""
        if self.chain.guards and self.is_open:
            await self._call(self.chain.guards, "guard")

    async def _call(self, entries: tuple[HookEntry, ...], phase: Phase) -> None:
        """Call the hooks of a phase until one of them settles the point."""
        if self.scope.tracing or self.recorder is not None:  # each call is timed
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

    def publish(self, verdict: Verdict) -> None:
        """Publish this fire, once: to the recorder, and as an event if a consumer wants it."""
        if self.published:
            return
        self.published = True
        if self.recorder is not None:  # before a consumer of the event can cancel the run
            self.recorder.take(self, verdict)
        if self.scope.wants_fires:
            self.scope.emit(PointFired, point=self.point, verb=verdict.action, hook=verdict.hook, reason=verdict.reason)

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
        scope, before = self.scope, self.payload
        ctx, tracing = scope.ctx, scope.tracing
        timing = tracing or self.recorder is not None
        latest = outer = HOOK_CALL.get()
        try:
            for entry in entries:
                raised = None
                latest = call = first_call or HookCall(entry.id_set, outer, True)
                first_call = None
                HOOK_CALL.set(call)
                if timing:
                    self.began = time.perf_counter()
                try:
                    if first is not None:
                        (_, result, raised), first = first, None
                        if raised is not None:
                            raise raised
                    else:
                        result = entry.call(ctx, self.payload)
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
                    if (result is not None or tracing) and self.apply(entry, phase, result):
                        return
                except asyncio.CancelledError as cancelled:
                    is_interrupted = raised is None and scope.cancellation.is_cancelled()
                    if is_interrupted and not self.point.resilient:
                        raise
                    if not is_interrupted:
                        call.end()
                    if self.fail(entry, cancelled):
                        return
                except GeneratorExit as closed:
                    if raised is None and is_being_closed(scope):
                        raise
                    call.end()
                    if self.fail(entry, closed):
                        return
                except Exception as failure:  # noqa: BLE001 - on_failure decides what becomes of it
                    call.end(failure)
                    if self.fail(entry, failure):
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
        scope, payload, pending = self.scope, verdict.payload, list[Any]()
        ctx, tracing, outer = scope.ctx, scope.tracing, HOOK_CALL.get()
        timing = tracing or self.recorder is not None
        try:
            for entry in observers:
                began = self.began = time.perf_counter() if timing else 0.0
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
                    if result is not None or tracing:
                        self.apply(entry, "observe", result)
                except (Exception, asyncio.CancelledError, GeneratorExit) as failure:  # noqa: BLE001 - on_failure decides
                    call.hooks = NO_HOOKS
                    self.fail(entry, failure)
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
            if result is not None or self.scope.tracing:
                self.began = began
                self.apply(entry, "observe", result)
        except asyncio.CancelledError as cancelled:
            if self.scope.cancellation.is_cancelled():
                raise
            call.end()
            self.fail(entry, cancelled)
        except GeneratorExit as closed:
            if is_being_closed(self.scope):
                raise
            call.end()
            self.fail(entry, closed)
        except Exception as failure:  # noqa: BLE001 - on_failure decides what becomes of it
            call.end(failure)
            self.fail(entry, failure)
        finally:
            if HOOK_CALL.get() is call:  # not if Python closes this coroutine in another context
                HOOK_CALL.set(call.outer)


async def fire(
    chain: Chain, point: Point[Any], payload: Any, scope: Scope, no_retry: str = ""
) -> tuple[Verdict, Firing | None]:
    """Fire a point: rewriters, guards, observers. Return the verdict, and the firing if any hook had a result."""
    if chain.simple and not scope.wants_fires and not scope.tracing and point not in scope.recorded_points:
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
        await firing.rewrite()
        await firing.guard()
    return await firing.conclude(), firing
