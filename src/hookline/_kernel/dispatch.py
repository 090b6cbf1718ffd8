"""The hot path: one fire of one point (DESIGN 3 to 5). Everything checkable was checked before."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import msgspec

from .._base.tasks import OutOfTime, abandon, carry, unpack, within
from .errors import HookTimeout
from .hook import Entry, Phase
from .points import Point
from .records import PointFired
from .results import HookAction, Verdict
from .scope import ACTIVE, Scope
from .tally import How, Tally

Pair = tuple[Entry, Callable[..., Any]]
Quick = tuple[Entry, Callable[..., Any], frozenset[int] | None]
Found = tuple[Entry, Any, BaseException | None]

PLAIN = How()


class Chain(msgspec.Struct, frozen=True, eq=False):
    """The hooks of a point in firing order; ``simple``: rewriters only; ``quick``: they, if any is (see Entry)."""

    rewriters: tuple[Pair, ...] = ()
    guards: tuple[Pair, ...] = ()
    observers: tuple[Entry, ...] = ()
    simple: bool = True
    quick: tuple[Quick, ...] | None = None


async def fire(chain: Chain, point: Point[Any], payload: Any, scope: Scope, how: How = PLAIN) -> Verdict:
    """Fire a point: rewriters, then the validator, then guards, then always the observers.

    ``HookError`` means that a hook failed closed, ``CallRefused`` that a refused ``ctx.llm`` call left one.
    """
    walk: Iterator[Any] = iter(chain.rewriters if how is PLAIN or how.start == "rewrite" else ())
    quick = chain.quick is not None and how.start == "rewrite" and scope.deadline is None and not scope.tracing
    if quick:
        walk = iter(chain.quick or ())
        found = await _glide_async(walk, payload, scope, ACTIVE.get())
    elif scope.tracing:
        found = _trace(walk, payload, scope)
    else:
        found = _glide(walk, payload, scope)
    if found is None and chain.simple and not scope.recording:
        if how is PLAIN or how.validate is None:
            return Verdict(payload)
        payload, problem = how.validate(payload)
        return Verdict(payload) if problem is None else Verdict(payload, HookAction.INVALID, problem)
    return await _conclude(chain, Tally(point, payload, scope, how), walk, found, quick)


def _glide(walk: Iterator[Pair], payload: Any, scope: Scope) -> Found | None:
    """Call hooks until one has something to say: which, what it returned, what it raised."""
    around = scope.entry
    try:
        for entry, call in walk:
            scope.entry = entry
            result = call(scope, payload)
            if result is not None:
                return entry, result, None
    except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - on_failure decides
        return entry, None, error
    finally:
        scope.entry = around
    return None


def _trace(walk: Iterator[Pair], payload: Any, scope: Scope) -> Found | None:
    """The same, one hook at a time and by the clock, when every call is to be recorded."""
    for pair in walk:
        scope.began = time.perf_counter()
        return _glide(iter((pair,)), payload, scope) or (pair[0], None, None)
    return None


async def _conclude(chain: Chain, tally: Tally, walk: Iterator[Any], found: Found | None, quick: bool) -> Verdict:
    """Everything from the first rewriter on that had something to say."""
    scope, how = tally.scope, tally.how
    if found is not None:
        original = tally.payload
        await _go_on(tally, walk, "rewrite", found, quick)
        tally.report_early_judges([pair[0] for pair in chain.rewriters], original)
    if how.start != "observe" and tally.open:
        problem = None
        if how.validate is not None:
            tally.payload, problem = how.validate(tally.payload)
        if problem is not None:
            tally.settle(HookAction.INVALID, problem)
        elif chain.guards:
            walk = iter(chain.guards)
            await _go_on(tally, walk, "guard", (_trace if scope.tracing else _glide)(walk, tally.payload, scope))
    verdict = tally.verdict()
    if chain.observers:
        await _observe(tally, chain.observers, verdict)
        if tally.failures is not verdict.failures:
            verdict = msgspec.structs.replace(verdict, failures=tally.failures)
    if scope.recording:
        scope.emit(PointFired, point=tally.point, verb=verdict.action, hook=verdict.hook, reason=verdict.reason)
    if tally.error is not None:
        tally.error.verdict = verdict
        raise tally.error
    return verdict


async def _go_on(tally: Tally, walk: Iterator[Any], phase: Phase, found: Found | None, quick: bool = False) -> None:
    """Take up a phase at the hook that had something to say, and see it through."""
    scope, around = tally.scope, ACTIVE.get()
    glide = _trace if scope.tracing else _glide
    while found is not None:
        entry, result, error = found
        began = scope.began
        try:
            if error is not None:
                raise error
            if result is not None and hasattr(result, "__await__"):
                ACTIVE.set(around | entry.alone)
                result = await _in_time(entry, result, scope)
            scope.began = began
            if (result is not None or scope.tracing) and tally.apply(entry, phase, result):
                return
        except asyncio.CancelledError as cancelled:
            if error is None and scope.is_cancelled() and not tally.point.resilient:
                raise
            error = cancelled
        except Exception as failure:  # noqa: BLE001 - on_failure decides what becomes of it
            error = failure
        finally:
            ACTIVE.set(around)
        if error is not None and tally.fail(entry, error):
            return
        if quick and scope.deadline is not None:  # from here on each hook has only so much time
            walk, quick = ((entry, call) for entry, call, _ in walk), False
        found = await _glide_async(walk, tally.payload, scope, around) if quick else glide(walk, tally.payload, scope)


async def _glide_async(walk: Iterator[Quick], payload: Any, scope: Scope, around: frozenset[int]) -> Found | None:
    """``_glide`` that also awaits hooks which can be awaited as they are, without stopping at each."""
    outer, mark = scope.entry, ACTIVE.set
    try:
        for entry, call, quick in walk:
            if quick is not None:
                mark(around | quick if around else quick)
                result = await call(scope, payload)
            else:
                mark(around)
                scope.entry = entry
                result = call(scope, payload)
                scope.entry = outer
            if result is not None:
                return entry, result, None
    except asyncio.CancelledError as cancelled:
        if scope.is_cancelled() and not entry.point.resilient:
            raise
        return entry, None, cancelled
    except Exception as error:  # noqa: BLE001 - on_failure decides
        return entry, None, error
    finally:
        scope.entry = outer
        ACTIVE.set(around)
    return None


async def _observe(tally: Tally, observers: tuple[Entry, ...], verdict: Verdict) -> None:
    """Call every observer, async ones concurrently; none of them changes the verdict."""
    scope, payload, around, pending = tally.scope, verdict.payload, tally.scope.entry, []
    for entry in observers:
        try:
            scope.entry, scope.began = entry, time.perf_counter() if scope.tracing else 0.0
            result = entry.call(scope, payload, verdict=verdict) if entry.wants_verdict else entry.call(scope, payload)
            if result is not None and hasattr(result, "__await__"):
                pending.append(_finish(tally, entry, result, scope.began))
            elif result is not None or scope.tracing:
                tally.apply(entry, "observe", result)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - on_failure decides
            tally.fail(entry, failure)
        finally:
            scope.entry = around
    if len(pending) == 1:
        await pending[0]
    elif pending:
        tasks = [asyncio.ensure_future(carry(work)) for work in pending]
        try:
            await asyncio.wait(tasks)
            for task in tasks:
                unpack(task.result())
        except asyncio.CancelledError:
            await asyncio.sleep(0)  # each has been called at least
            for task in tasks:
                abandon(task)
            raise


async def _finish(tally: Tally, entry: Entry, awaitable: Awaitable[Any], began: float) -> None:
    token = ACTIVE.set(ACTIVE.get() | entry.alone)
    try:
        result = await _in_time(entry, awaitable, tally.scope)
        tally.scope.began = began
        if result is not None or tally.scope.tracing:
            tally.apply(entry, "observe", result)
    except asyncio.CancelledError as cancelled:
        if tally.scope.is_cancelled():
            raise
        tally.fail(entry, cancelled)
    except Exception as failure:  # noqa: BLE001 - on_failure decides what becomes of it
        tally.fail(entry, failure)
    finally:
        ACTIVE.reset(token)


async def _in_time(entry: Entry, awaitable: Awaitable[Any], scope: Scope) -> Any:
    """Await a hook within its timeout and the scope's deadline."""
    limit = entry.timeout
    if scope.deadline is not None:
        left = max(0.0, scope.deadline - time.monotonic())
        limit = left if limit is None else min(limit, left)
    try:
        return await awaitable if limit is None else await within(limit, awaitable, scope.deadline is not None)
    except OutOfTime:
        raise HookTimeout(f"still running after {limit:g} s") from None
