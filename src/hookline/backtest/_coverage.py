"""Which tools, arguments and points the hooks of a program really judge, on recorded runs.

A backtest calls the guards one by one, with arguments that note what is read of them. Their decisions do not count
here: each guard is called for each call that it selects, also if another one would have stopped the call before.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from typing import Any

import msgspec

from .._base.frozen import Frozen
from .._base.text import describe, shorten
from .._kernel.hook import HookEntry, direct_call
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import BEFORE_LLM, BEFORE_TOOL, POINTS
from .._kernel.registry import HookStack
from .._run.strict import covers
from ..records.account import Skipped
from ._backtest import TIME_LIMIT, Hooks, Progress, backtest, hook_stack
from .confinement import RuleTimeoutError
from .context import unwatched
from .expressions import Condition
from .judge import is_coroutine
from .report import HookFailure, Report
from .watched_arguments import WatchedArguments, noting, watch

MAX_NAMES = 1000
"""Names of tools, and of the arguments of a tool, that are counted apart. Names come from models."""
OTHERS = "(others)"
MAX_HANGS = 3
"""A guard that exceeds the time limit this often is not called any more."""

_BUILT_IN = "hookline.hooks."
"""Hooks of Hookline pass single values to threads, and never all arguments."""
_WATCH: Any = object()
_FIRST = 1e9
"""The priority of the watched guards. They come before the recorded ones, whose blocks would end the moment."""


class Argument(Frozen, frozen=True):
    """An argument of a tool: the calls that had it, and in how many of them a guard looked at it.

    ``read`` counts calls in which a guard read it by name, and ``whole`` those in which a guard read all arguments
    together, for example to log or compare them.
    """

    name: str
    calls: int = 0
    read: int = 0
    whole: int = 0


class ToolCoverage(Frozen, frozen=True):
    """A tool that was called.

    ``guards`` are those that judge it: they name it with ``tools=``, looked at one of its arguments, or decided
    something about a call. ``idle`` are guards that were called for it and did nothing of that.
    """

    tool: str
    calls: int = 0
    nested: int = 0
    """Calls in nested runs."""
    guards: tuple[str, ...] = ()
    idle: tuple[str, ...] = ()
    arguments: tuple[Argument, ...] = ()

    @property
    def unread(self) -> tuple[Argument, ...]:
        """The arguments that no guard ever looked at."""
        return tuple(each for each in self.arguments if not each.read and not each.whole)

    @property
    def read_as_a_whole(self) -> tuple[Argument, ...]:
        """The arguments that guards only read together with all others."""
        return tuple(each for each in self.arguments if each.whole and not each.read)


class PointCoverage(Frozen, frozen=True):
    """A recorded point at which hooks can decide, and the hooks that may."""

    point: str
    moments: int = 0
    deciders: tuple[str, ...] = ()


class PurposeCoverage(Frozen, frozen=True):
    """The model calls of one purpose: ``step`` for those of the loop."""

    purpose: str
    calls: int = 0


class Coverage(Frozen, frozen=True):
    """The share of recorded runs that hooks judge.

    Example::

        found = coverage("rules.py", ["records/"])
        print(found.uncovered_tools, [(tool.tool, argument.name) for tool in found.tools for argument in tool.unread])
    """

    rules: tuple[str, ...] = ()
    files: int = 0
    runs: int = 0
    moments: int = 0
    tools: tuple[ToolCoverage, ...] = ()
    """The tools that were called, those with the most calls first."""
    points: tuple[PointCoverage, ...] = ()
    purposes: tuple[PurposeCoverage, ...] = ()
    failures: tuple[HookFailure, ...] = ()
    """Guards that failed. They may have looked at more if they had not."""
    skipped: tuple[Skipped, ...] = ()
    seconds: float = 0.0

    @property
    def uncovered_tools(self) -> tuple[str, ...]:
        """The tools that were called and that no guard judges."""
        return tuple(each.tool for each in self.tools if not each.guards)

    @property
    def undecided_points(self) -> tuple[str, ...]:
        """The recorded points at which no hook decides."""
        return tuple(each.point for each in self.points if not each.deciders)

    def fail_if(self, expression: str) -> str | None:
        """Return why an expression such as ``"uncovered_tools > 0"`` is true, or ``None`` if it is not.

        Names: ``uncovered_tools``, ``unread_arguments``, ``undecided_points``, ``tools``, ``calls``, ``runs``,
        ``moments``, ``skipped`` and ``failed`` (calls at which a guard failed).

        Raises:
            BacktestError: the expression is invalid; the message suggests a similar name.
        """
        return coverage_condition(expression).reason(lambda name, part: self._number(name))

    def _number(self, name: str) -> int:
        numbers = {
            "uncovered_tools": len(self.uncovered_tools),
            "unread_arguments": sum(len(each.unread) for each in self.tools),
            "undecided_points": len(self.undecided_points),
            "tools": len(self.tools),
            "calls": sum(each.calls for each in self.tools),
            "runs": self.runs,
            "moments": self.moments,
            "skipped": sum(each.count for each in self.skipped),
            "failed": sum(each.count for each in self.failures),
        }
        assert numbers.keys() == set(_NUMBERS)
        return numbers[name]


_NUMBERS = (
    "uncovered_tools",
    "unread_arguments",
    "undecided_points",
    "tools",
    "calls",
    "runs",
    "moments",
    "skipped",
    "failed",
)


def coverage_condition(expression: str) -> Condition:
    """Parse an expression for :meth:`Coverage.fail_if`, to report mistakes before the records are read.

    Raises:
        BacktestError: the expression is invalid.
    """
    return Condition(expression, _NUMBERS, (), (), example="uncovered_tools > 0")


def coverage(
    rules: Hooks,
    records: Iterable[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    where: Iterable[str] | str = (),
    since: float | None = None,
    time_limit: float = TIME_LIMIT,
    progress: Progress | None = None,
) -> Coverage:
    """Return which tools, arguments and points of recorded runs are judged by hooks.

    Args:
        rules: the hooks, or a reference to them, such as ``"rules.py"``.
        records: files and folders of records (``.moments``) and tapes.
        where: only count these runs and moments, as for :func:`backtest`.
        since: leave out runs that started before this Unix time.
        time_limit: seconds that the guards may take for one call.
        progress: as for :func:`backtest`.

    Raises:
        BacktestError: there are no rules or no records.
        RecordError: a record does not exist.
        LoadError: the rules cannot be loaded.

    Example::

        found = coverage([no_sudo], ["records/"])
        for tool in found.tools:
            print(tool.tool, tool.calls, tool.guards, [argument.name for argument in tool.unread])
    """
    meter = _Meter(hook_stack(rules))
    report = backtest(meter.hooks, records, where=where, since=since, time_limit=time_limit, progress=progress)
    return meter.result(report)


class _Tool:
    """The counts of one tool while they grow."""

    def __init__(self) -> None:
        self.calls = self.nested = 0
        self.called: dict[str, bool] = {}
        """The guards that were called, and whether they did anything."""
        self.arguments: Counter[str] = Counter()
        self.read: Counter[str] = Counter()
        self.whole: Counter[str] = Counter()

    def known(self, names: Iterable[str]) -> list[str]:
        """Return names of arguments as they are counted."""
        room = len(self.arguments) < MAX_NAMES
        return [name if room or name in self.arguments else OTHERS for name in names]


class _Meter:
    """Counts calls, and what guards look at."""

    def __init__(self, stack: HookStack) -> None:
        self._stack = stack
        self.names = tuple(dict.fromkeys(e.name for point in sorted(stack.points) for e in stack.entries(point)))
        self._tools: dict[str, _Tool] = {}
        self._points: Counter[str] = Counter()
        self._purposes: Counter[str] = Counter()
        self._failures: Counter[tuple[str, str, str]] = Counter()
        self._read: set[str] = set()
        self._whole = False
        guards = [e for e in stack.chain(BEFORE_TOOL).guards if not e.wants_guards]
        watched = [(_AsyncGuard if is_coroutine(e.hook) else _SyncGuard)(e, self, i) for i, e in enumerate(guards)]
        self.hooks: Sequence[Any] = [_Counter(self), _Calls(self), *watched]

    def count(self, point: str, payload: Any) -> None:
        """Count a moment."""
        self._points[str(point)] += 1
        if point == BEFORE_LLM:
            known = payload.purpose in self._purposes or len(self._purposes) < MAX_NAMES
            self._purposes[payload.purpose if known else OTHERS] += 1

    def begin(self, ctx: Any, request: ToolCallRequest) -> None:
        """Count a call, before its guards are called."""
        tool = self._tool(request.name)
        tool.calls += 1
        tool.nested += ctx.depth > 0
        tool.arguments.update(tool.known(request.arguments))
        self._read, self._whole = set(), False

    def _tool(self, name: str) -> _Tool:
        if name not in self._tools and len(self._tools) >= MAX_NAMES:
            name = OTHERS
        return self._tools.setdefault(name, _Tool())

    def looked(self, entry: HookEntry, ctx: Any, name: str, arguments: WatchedArguments, *, decided: bool) -> None:
        """Note what a guard did with a call. Several guards that read the same argument of a call count once."""
        tool, given = self._tool(name), set(dict.keys(arguments))
        read = (arguments.read & given) - self._read
        tool.read.update(tool.known(read))
        self._read |= read
        if arguments.whole and not self._whole:
            tool.whole.update(tool.known(given))
            self._whole = True
        if not tool.called.get(entry.name):
            did = bool(arguments.read or arguments.whole or decided)
            tool.called[entry.name] = did or _names(entry, ctx, name)

    def failed(self, entry: HookEntry, problem: str, message: str) -> None:
        """Count a guard that failed."""
        self._failures[entry.name, problem, shorten(message, 200)] += 1

    def result(self, report: Report) -> Coverage:
        """Return the counts."""
        tools = sorted(self._tools.items(), key=lambda each: (-each[1].calls, each[0]))
        return Coverage(
            self.names,
            report.files,
            report.runs,
            report.moments,
            tuple(_tool_coverage(name, tool) for name, tool in tools),
            tuple(
                PointCoverage(point, number, self._deciders(point))
                for point, number in self._points.most_common()
                if POINTS[point].model != "observe"
            ),
            tuple(PurposeCoverage(purpose, number) for purpose, number in self._purposes.most_common()),
            tuple(HookFailure(hook, problem, text, n) for (hook, problem, text), n in sorted(self._failures.items())),  # type: ignore[arg-type]
            report.skipped,
            report.seconds,
        )

    def _deciders(self, point: str) -> tuple[str, ...]:
        entries = (entry for entry in self._stack.entries(point) if entry.phase != "observe")
        return tuple(dict.fromkeys(entry.name for entry in entries))


def _names(entry: HookEntry, ctx: Any, tool: str) -> bool:
    """Whether a guard says that it judges a tool, as :class:`hookline.hooks.Strict` understands it."""
    with unwatched():  # the guard itself does not read the tools
        return covers(entry, tool, ctx.tool_registry.get(tool))


def _tool_coverage(name: str, tool: _Tool) -> ToolCoverage:
    arguments = tuple(
        Argument(each, number, tool.read[each], tool.whole[each]) for each, number in tool.arguments.most_common()
    )
    guards = tuple(guard for guard, did in tool.called.items() if did)
    idle = tuple(guard for guard, did in tool.called.items() if not did)
    return ToolCoverage(name, tool.calls, tool.nested, guards, idle, arguments)


class _Counter:
    """Counts the moments of all points."""

    name = "coverage"
    priority = _FIRST

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter
        self.points = tuple(POINTS)

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        self._meter.count(point, payload)


class _Calls:
    """Counts the calls that reach the guards."""

    name = "coverage of calls"
    points = (BEFORE_TOOL,)
    phase = "guard"
    priority = _FIRST

    def __init__(self, meter: _Meter) -> None:
        self._meter = meter

    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> None:
        self._meter.begin(ctx, request)


class _Guard:
    """A guard that is watched. It never decides anything, so that all guards are called."""

    points = (BEFORE_TOOL,)
    phase = "guard"

    def __init__(self, entry: HookEntry, meter: _Meter, order: int) -> None:
        self.name, self.tools, self.priority = entry.name, entry.tools, _FIRST - 1 - order
        self._entry, self._meter = entry, meter
        self._judge = direct_call(entry)
        self._threads = not type(entry.hook).__module__.startswith(_BUILT_IN)
        self._declared = getattr(entry.hook, "reads_arguments", _WATCH)
        """The arguments that a rule of a file reads; ``None`` for all. They need not be watched."""
        self._hangs = 0

    def _note_declared(self, arguments: WatchedArguments) -> None:
        if self._declared is not _WATCH:
            arguments.read = set(self._declared or ())
            arguments.whole = self._declared is None

    def _failed(self, error: BaseException) -> None:
        if isinstance(error, RuleTimeoutError):
            self._hangs += 1
            self._meter.failed(self._entry, "timed_out", "it exceeded the time limit")
        else:
            self._meter.failed(self._entry, "raised", describe(error))


class _SyncGuard(_Guard):
    def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> None:
        if self._hangs >= MAX_HANGS:
            return
        watched, arguments = _watched(request)
        result = None
        noted = noting(arguments, threads=self._threads) if self._declared is _WATCH else nullcontext()
        try:
            with noted:
                result = self._judge(ctx, watched)
        except (Exception, RuleTimeoutError) as error:  # noqa: BLE001 - a failure is counted
            self._failed(error)
        self._note_declared(arguments)
        self._meter.looked(self._entry, ctx, request.name, arguments, decided=result is not None)


class _AsyncGuard(_Guard):
    async def __call__(self, point: str, ctx: Any, request: ToolCallRequest) -> None:
        if self._hangs >= MAX_HANGS:
            return
        watched, arguments = _watched(request)
        result = None
        noted = noting(arguments, threads=self._threads) if self._declared is _WATCH else nullcontext()
        try:
            with noted:
                result = await self._judge(ctx, watched)
        except (Exception, RuleTimeoutError) as error:  # noqa: BLE001 - a failure is counted
            self._failed(error)
        self._note_declared(arguments)
        self._meter.looked(self._entry, ctx, request.name, arguments, decided=result is not None)


def _watched(request: ToolCallRequest) -> tuple[ToolCallRequest, WatchedArguments]:
    """Return a copy of a request whose arguments are watched."""
    arguments = watch(request.arguments)
    copy = msgspec.structs.replace(request)
    msgspec.structs.force_setattr(copy, "arguments", arguments)
    return copy, arguments
