"""Judge payloads with hooks, in the real dispatcher but without a run."""

from __future__ import annotations

import asyncio
import dis
import inspect
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .._base.tasks import running_loop
from .._kernel.dispatch import Chain, Firing, HookOutcome
from .._kernel.hook import HookEntry, direct_call, function_of, matches, tool_of
from .._kernel.points import Point
from .._kernel.registry import HookStack
from .._kernel.results import Verdict
from .._kernel.scope import CURRENT, Scope
from ..records.format import Decision, HookInfo, Notes, RecordedVerdict
from .context import PROBE, unwatched
from .errors import BacktestError
from .playback import Slot, chain_of, merged_chain, merged_order
from .unrecorded import unrecorded_reads

Call = Callable[[Any, Any], Any]


class Rules:
    """Hooks that judge recorded moments, compiled for each point and tool.

    Args:
        stack: the hooks.
        without: names of recorded hooks whose decisions are dropped.
        number: the number of the first hook, for the probe.
    """

    def __init__(self, stack: HookStack, without: Iterable[str] = (), number: int = 0) -> None:
        given = [entry for point in sorted(stack.points) for entry in stack.entries(point)]
        entries = [_watched(entry, index) for index, entry in enumerate(given, number)]
        self._entries: dict[str, list[HookEntry]] = {}
        for entry in entries:
            self._entries.setdefault(str(entry.point), []).append(entry)
        self.names = tuple(dict.fromkeys(entry.name for entry in entries))
        self.replaced = frozenset((*self.names, *without))
        """Names of recorded hooks whose decisions do not count."""
        self.points = frozenset(self._entries)
        self.entries = entries
        self.numbers = {id(entry): index for index, entry in enumerate(entries, number)}
        self._orders: dict[tuple[str, str], tuple[Slot, ...]] = {}
        self.given_up: set[str] = set()
        """Names of hooks that are no longer called, because they hung too often."""

    @property
    def may_wait(self) -> bool:
        """Whether a hook may wait for something, so that an event loop is needed."""
        return any(is_coroutine(entry.hook) and may_wait(entry.hook) for entry in self.entries)

    def at(self, point: str) -> list[HookEntry]:
        """Return the hooks at a point, in calling order."""
        return [entry for entry in self._entries.get(point, ()) if entry.name not in self.given_up]

    def order(self, point: str, digest: str, recorded: Sequence[HookInfo]) -> tuple[Slot, ...]:
        """Return the order of these hooks and the recorded ones, whose digest is ``digest``."""
        key = point, digest
        if key not in self._orders:
            self._orders[key] = merged_order(self.at(point), recorded, point, self.replaced)
        return self._orders[key]

    def chain(
        self,
        point: Point[Any],
        decisions: Sequence[Decision],
        digest: str,
        recorded: Sequence[HookInfo],
        *,
        failed_closed: bool,
    ) -> Chain:
        """Return these hooks with the recorded decisions at their places."""
        return merged_chain(self.order(str(point), digest, recorded), decisions, point, failed_closed=failed_closed)

    def give_up(self, *hooks: str) -> None:
        """Do not call these hooks any more, in addition to those that were given up before."""
        self.given_up.update(hooks)
        self._orders.clear()

    def recover(self, given_up: Iterable[str]) -> None:
        """Give up only these hooks."""
        self.given_up = set(given_up)
        self._orders.clear()

    def route(self, point: Point[Any], tool: str) -> Route | None:
        """Return the hooks for a point and a tool; ``None`` if there are none."""
        return Route(point, tool, self.at(str(point)), self.numbers) or None


def _watched(entry: HookEntry, number: int) -> HookEntry:
    """Return an entry that tells the probe when its hook is called. The backtest has its own time limit."""
    inner = _noting_reads(entry)
    probe, globs = PROBE, entry.tools

    def call(ctx: Any, payload: Any, **verdict: Any) -> Any:
        if globs and not _selects(globs, payload):
            return None
        probe.position[1] = number
        return inner(ctx, payload, **verdict)

    is_async = is_coroutine(entry.hook)
    return msgspec.structs.replace(entry, call=call, timeout=None, is_async=is_async and not globs)


def _noting_reads(entry: HookEntry) -> Any:
    """Return the function of a hook. If its code reads something that is not recorded, each call tells the probe."""
    inner, reads = direct_call(entry), unrecorded_reads(entry.hook)

    def call(ctx: Any, payload: Any, **verdict: Any) -> Any:
        for read in reads:
            PROBE.note(read)
        return inner(ctx, payload, **verdict)

    return call if reads else inner


def _selects(globs: tuple[str, ...], payload: Any) -> bool:
    return matches(tool_of(payload), globs)


def is_coroutine(hook: Any) -> bool:
    """Whether a hook is an async function or has an async ``__call__``."""
    fn = function_of(hook)
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)


def may_wait(hook: Any) -> bool:
    """Whether an async hook may wait for something, so that it needs an event loop: it contains an ``await``."""
    fn = function_of(hook)
    code = getattr(inspect.unwrap(fn), "__code__", None) or getattr(type(fn).__call__, "__code__", None)
    if code is None:
        return True
    return any(step.opname in ("GET_AWAITABLE", "GET_AITER", "GET_ANEXT") for step in dis.get_instructions(code))


class Route:
    """The hooks at one point for one tool.

    ``calls`` are the rewriters and guards that are called, with their functions and numbers; ``chain`` is the whole
    chain, for moments at which one of them decides: a rewriter may rename the tool.
    """

    __slots__ = ("calls", "chain", "is_call", "point", "slow", "tool", "waits")

    def __init__(self, point: Point[Any], tool: str, entries: list[HookEntry], numbers: Mapping[int, int]) -> None:
        self.point, self.tool = point, tool
        chosen = [entry for entry in entries if not entry.tools or matches(tool, entry.tools)]
        self.chain = chain_of(entries)
        self.calls: tuple[tuple[HookEntry, Call, int], ...] = tuple(
            (entry, _noting_reads(entry), numbers[id(entry)])
            for entry in (*self.chain.rewriters, *self.chain.guards)
            if entry in chosen
        )
        self.waits = any(is_coroutine(entry.hook) and may_wait(entry.hook) for entry in chosen)
        # Observers are called after the verdict, which only the dispatcher knows.
        self.slow = bool(set(chosen) & set(self.chain.observers))
        self.is_call = point == "before_tool"

    def __bool__(self) -> bool:
        return bool(self.calls) or self.slow


def row_decoder(point: Point[Any]) -> msgspec.json.Decoder[Any]:
    """Return a decoder for the moments of a point, with the payload as an object."""
    if point not in _decoders:
        row = msgspec.defstruct(
            f"Moment_{point}",
            [
                ("point", str),
                ("tool", str),
                ("run", int),
                ("n", int),
                ("at", float),
                ("took", float),
                ("payload", point.payload),
                ("decisions", tuple[Decision, ...] | None, None),
                ("verdict", RecordedVerdict | None, None),
                ("notes", Notes | None, None),
            ],
            array_like=True,
            gc=False,
        )
        _decoders[point] = msgspec.json.Decoder(row)
    return _decoders[point]


_decoders: dict[str, msgspec.json.Decoder[Any]] = {}


class Dispatcher:
    """Drives the real dispatcher: without an event loop where no hook waits, else with one."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop | None = None

    def close(self) -> None:
        """Close the event loop."""
        if self._loop is not None:
            self._loop.close()

    def fire(
        self,
        chain: Chain,
        point: Point[Any],
        payload: Any,
        scope: Scope,
        *,
        no_retry: str = "",
        between: Callable[[Firing], None] | None = None,
        first: HookOutcome | None = None,
        only_guards: bool = False,
        waits: bool = False,
    ) -> tuple[Verdict, Firing]:
        """Fire a point.

        Args:
            chain: its hooks.
            point: the point.
            payload: the payload.
            scope: the scope of the recorded run.
            no_retry: why a retry is not possible, or an empty string.
            between: called between rewriters and guards.
            first: the outcome of a hook that was called already, and with it all hooks before it.
            only_guards: skip the rewriters.
            waits: whether a hook may wait, so that an event loop is needed.
        """
        firing = Firing(chain, point, payload, scope, no_retry)
        work = _phases(firing, between, first, only_guards)
        token = CURRENT.set(scope)
        try:
            if waits:
                return self._run(work), firing
            if (verdict := _drive(work)) is not None:
                return verdict, firing
        finally:
            CURRENT.reset(token)
        work.close()
        # A function that is not async returned an awaitable that waits: call all hooks again, with an event loop.
        return self.fire(
            chain, point, payload, scope, no_retry=no_retry, between=between, only_guards=only_guards, waits=True
        )

    def _run(self, work: Coroutine[Any, Any, Verdict]) -> Verdict:
        if self._loop is None:
            with unwatched():  # the loop itself opens a socket pair
                self._loop = asyncio.new_event_loop()
        return self._loop.run_until_complete(work)


def check_no_loop(rules: Iterable[Rules]) -> None:
    """Check that this process can run an event loop, if a hook needs one.

    Raises:
        BacktestError: a loop is already running.
    """
    if running_loop() is not None and any(each.may_wait for each in rules):
        raise BacktestError(
            "these rules contain async hooks that wait, so they need an event loop of their own, and one is already "
            "running here: use 'await asyncio.to_thread(backtest, ...)' or workers=1"
        )


def _drive(work: Coroutine[Any, Any, Verdict]) -> Verdict | None:
    """Run a coroutine that does not wait; return ``None`` if it does."""
    try:
        work.send(None)
    except StopIteration as finished:
        return finished.value  # type: ignore[no-any-return]
    return None


async def _phases(
    firing: Firing, between: Callable[[Firing], None] | None, first: HookOutcome | None, only_guards: bool
) -> Verdict:
    chain = firing.chain
    in_guards = first is not None and first[0].phase == "guard"
    if first is not None and not in_guards:
        await firing.call_remaining(_from(chain.rewriters, first[0]), "rewrite", first)
    elif not only_guards and not in_guards:
        await firing.rewrite()
    if between is not None and firing.is_open:
        between(firing)
    if in_guards and first is not None:
        await firing.call_remaining(_from(chain.guards, first[0]), "guard", first)
    else:
        await firing.guard()
    return await firing.conclude()


def _from(entries: tuple[HookEntry, ...], entry: HookEntry) -> tuple[HookEntry, ...]:
    return entries[entries.index(entry) :]
