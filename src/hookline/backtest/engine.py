"""Judge the moments of one unit of a record, and report what differs (DESIGN 6.13).

This is the part that decides how fast a backtest is. Lines that no hook listens to are passed over by their first
bytes. The others are decoded to payloads and given to the hooks one by one; only a moment at which a hook decides
something, then or now, goes through the dispatcher.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from .._base.text import describe, shorten
from .._kernel.dispatch import Firing, HookOutcome
from .._kernel.errors import HookError
from .._kernel.payloads import Failure, ModelReply, ModelRequest, ToolCallRequest, ToolCallResult
from .._kernel.points import POINTS
from .._kernel.registry import HookStack
from .._kernel.results import HookAction, Verdict
from .._run.model_call import MAX_RETRIES
from ..models.protocol import Model
from ..records.format import (
    VERSION,
    HeaderLine,
    HookInfo,
    HooksLine,
    Label,
    LabelLine,
    MomentLine,
    Notes,
    RunInfo,
    RunLine,
)
from .compare import STOPPING, Outcome, kind_of, outcome_of, subject_of
from .confinement import RuleTimeoutError
from .context import PROBE, BacktestContext, RecordedClock, RefusedError
from .history import Requests, RunState, TreeLines, changed_by
from .judge import Dispatcher, Route, Rules, known_point
from .played import PlayedFailureError, chain_of, not_called, played_entry
from .report import (
    EXAMPLES,
    Cell,
    Certainty,
    Confusion,
    Count,
    Example,
    Guess,
    Kind,
    Problem,
    Report,
    Trouble,
)
from .sources import Account, Source, Unit, Wanted
from .where import Where

MAX_HANGS = 3
"""A hook that exceeds the time limit this often in one unit is not called in the rest of the unit."""

_set = msgspec.structs.force_setattr
_NO_NOTES = Notes()
_decode_run = msgspec.json.Decoder(RunLine).decode
_decode_label = msgspec.json.Decoder(LabelLine).decode
_decode_hooks = msgspec.json.Decoder(HooksLine).decode
_decode_header = msgspec.json.Decoder(HeaderLine).decode
_decode_moment = msgspec.json.Decoder(MomentLine).decode
_decode_end = msgspec.json.Decoder(tuple[str, int, dict[str, Any]]).decode
_decode_decided = msgspec.json.Decoder(dict[str, Any]).decode
_STRUCTURE = (b'["run",', b'["end",', b'["label",', b'["hooks",', b'["hookline",', b'["approval_decided",')
_PAYLOAD = "the payload does not fit its point"
_NO_JSON = "the line is not JSON"
_FAILED = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError, KeyError)


class Test(msgspec.Struct, frozen=True):
    """What is tested: the rules, what they are compared with, and how."""

    rules: HookStack
    baseline: HookStack | None = None
    without: tuple[str, ...] = ()
    where: Where = msgspec.field(default_factory=Where)
    model: Model | None = None
    since: float = 0.0
    """Runs that started before this Unix time are left out."""
    labels: Mapping[str, Mapping[str, Label]] = msgspec.field(default_factory=dict)
    """Labels from other files: by run id, then by call id or ``#n``."""
    examples: int = EXAMPLES


class RecordedRunContext:
    """One recorded run: its line, decoded when it is first needed, and the contexts of the hooks that judge it."""

    def __init__(self, raw: bytes, tree: Tree) -> None:
        self._raw = raw
        self._tree = tree
        self.requests = Requests()
        self.edited: set[str] = set()
        """The ids of calls whose arguments a person edited: they are judged again, without rewriters."""
        info = _decode_run(raw).info
        self.info: RunInfo = info
        self.ids = info.ids
        self.is_wanted = tree.test.where.wants_run(info) if tree.test.where.filters_runs else True
        outer = tree.runs.get(info.outer) if info.outer is not None else None
        self.depth: int = outer.depth + 1 if outer is not None else 0
        self.number = _decode_run(raw).run
        self.now = BacktestContext(self, tree.clock, tree.state_now, tree.test.model)
        self.then = BacktestContext(self, tree.clock, tree.state_then, tree.test.model)

    def state(self) -> RunState:
        """Return the state of the run at the current line."""
        return self._tree.state_of(self.number)


class Tree:
    """An outermost run with its nested runs, while its lines are read."""

    def __init__(self, test: Test, clock: RecordedClock, first: int) -> None:
        self.test = test
        self.clock = clock
        self.first = first
        """The position of the first line in the unit."""
        self.others = 0
        """Lines of the tree that are not moments."""
        self.left_out = 0
        self.runs: dict[int, RecordedRunContext] = {}
        self.waiting: dict[int, bytes] = {}
        """Lines of runs that are not decoded yet."""
        self.state_now: dict[int, Any] = {}
        self.state_then: dict[int, Any] = {}
        self.lines = TreeLines()
        self.line = 0
        self.replaced: frozenset[str] = frozenset()
        self.differs_at = -1
        """The number of moments up to and including the first different decision; -1 if there is none."""
        self.guessed = 0
        """Moments before that at which a decision was a guess."""
        self.guessing: dict[str, None] = {}
        """Hooks that have read something that was not recorded: all their later decisions here are guesses."""
        self.decided: dict[str, tuple[bool, bool, Certainty]] = {}
        """By call id: whether the call was stopped then, whether it is now, and how sure that is."""
        self.labels: dict[str, Label] = {}
        self.status = ""
        self.is_old = False
        """Whether the run started too early, so that it does not count."""

    def run(self, number: int) -> RecordedRunContext | None:
        """Return a run of this tree; ``None`` if its line is missing or damaged."""
        run = self.runs.get(number)
        if run is None and number in self.waiting:
            raw = self.waiting.pop(number)
            try:
                run = self.runs[number] = RecordedRunContext(raw, self)
            except _FAILED:
                return None
            if number == 0:
                self.clock.started = run.info.time
        return run

    def state_of(self, number: int) -> RunState:
        """Return the state of a run at the current line."""
        for waiting in list(self.waiting):
            self.run(waiting)
        infos = {number: run.info for number, run in self.runs.items()}
        return self.lines.state(number, infos, self.line, self.replaced)


class Tally:
    """The numbers of a report while they grow."""

    def __init__(self) -> None:
        self.runs = self.nested = self.different = self.moments = self.judged = 0
        self.exact = self.conditional = self.guess = 0
        self.cells: dict[tuple[str, str, str, Kind], tuple[list[int], list[Example]]] = {}
        self.troubles: dict[tuple[str, Problem, str], tuple[list[int], list[Example]]] = {}
        self.guesses: Counter[tuple[str, str]] = Counter()
        self.confusion: dict[str, dict[str, list[int]]] = {"then": {}, "now": {}}
        self.notes: dict[str, None] = {}

    def add(self, other: Tally) -> None:
        """Add the numbers of one run tree."""
        for name in ("runs", "nested", "different", "moments", "judged", "exact", "conditional", "guess"):
            setattr(self, name, getattr(self, name) + getattr(other, name))
        for mine, theirs in ((self.cells, other.cells), (self.troubles, other.troubles)):
            for key, (count, examples) in theirs.items():
                total, kept = mine.setdefault(key, ([0] * len(count), []))  # type: ignore[arg-type]
                total[:] = [a + b for a, b in zip(total, count, strict=True)]
                kept.extend(examples[: EXAMPLES - len(kept)])
        self.guesses.update(other.guesses)
        for side, counts in other.confusion.items():
            for key, numbers in counts.items():
                total = self.confusion[side].setdefault(key, [0, 0, 0])
                total[:] = [a + b for a, b in zip(total, numbers, strict=True)]
        self.notes.update(other.notes)

    def label(self, side: str, *, bad: bool, stopped: bool, certainty: Certainty) -> None:
        """Count a labelled call."""
        key = f"{'bad' if bad else 'good'}_{'stopped' if stopped else 'passed'}"
        self.confusion[side].setdefault(key, [0, 0, 0])[_CERTAINTIES.index(certainty)] += 1

    def report(self, rules: tuple[str, ...], baseline: tuple[str, ...] | None, account: Account) -> Report:
        """Return the numbers as a report."""
        part = Report(
            rules,
            baseline,
            0,
            self.runs,
            self.nested,
            self.different,
            self.moments,
            self.judged,
            Count(self.exact, self.conditional, self.guess),
            tuple(Cell(*key, Count(*count), tuple(found)) for key, (count, found) in self.cells.items()),
            tuple(Trouble(*key, count[0], tuple(found)) for key, (count, found) in self.troubles.items()),
            tuple(Guess(hook, read, count) for (hook, read), count in self.guesses.items()),
            account.entries(),
            _confusion(self.confusion["then"]),
            _confusion(self.confusion["now"]),
            0.0,
            tuple(self.notes),
        )
        return Report.merge([part])


_CERTAINTIES: tuple[Certainty, ...] = ("exact", "conditional", "guess")


def _confusion(counts: Mapping[str, list[int]]) -> Confusion:
    return Confusion(**{key: Count(*numbers) for key, numbers in counts.items()})


class Engine:
    """Judges units of a record in this process.

    Args:
        test: what is tested.
        source: where the lines come from.
    """

    def __init__(self, test: Test, source: Source) -> None:
        self._test = test
        self._source = source
        self.now = Rules(test.rules, test.without)
        self.then = None if test.baseline is None else Rules(test.baseline, (), len(self.now.entries))
        self.hooks = tuple(
            entry.name for rules in (self.now, self.then) if rules is not None for entry in rules.entries
        )
        """The names of the hooks by their number."""
        self._points = self.now.points | (self.then.points if self.then is not None else frozenset())
        self._tracks_requests = bool(self._points & {"after_llm", "on_error", "before_llm"})
        points = {*self._points, *(("before_llm",) if self._tracks_requests else ())}
        self._prefixes = tuple(f'["{point}",'.encode() for point in sorted(points) if known_point(point) is not None)
        self._dispatcher = Dispatcher()
        self._clock = RecordedClock()
        self.wanted = Wanted(
            {
                point: tuple(
                    dict.fromkeys(
                        glob
                        for rules in (self.now, self.then)
                        if rules is not None
                        for entry in rules.at(point)
                        for glob in entry.tools or ("*",)
                    )
                )
                for point in sorted(points)
            }
        )

    def give_up(self, hook: str) -> None:
        """Do not call a hook any more."""
        for rules in (self.now, self.then):
            if rules is not None:
                rules.give_up(hook)

    def close(self) -> None:
        """Release the event loop."""
        self._dispatcher.close()

    # Reading.

    def judge(self, unit: Unit, stuck: Mapping[int, tuple[str, Problem, str]] | None = None) -> Report:
        """Judge one unit.

        Args:
            unit: the unit.
            stuck: moments of this unit at which a hook did not return or ended its process, by their number, with the
                hook, the problem and a message. They are not judged again.
        """
        self._unit = unit
        self._account = Account(unit.file)
        self._total = Tally()
        self._tally = self._total
        self._routes_now: dict[bytes, Route | None] = {}
        self._routes_then: dict[bytes, Route | None] = {}
        self._hooks: dict[str, tuple[HookInfo, ...]] = {}
        self._stuck = stuck or {}
        self._hangs: Counter[str] = Counter()
        self._tree: Tree | None = None
        self._number = 0
        self._position = 0
        given_up = set(self.now.given_up)
        for hook in sorted(given_up):
            self._tally.notes[f"{hook} hung too often, and was not called in parts of the records"] = None
        self._dropped = 0
        is_tape = unit.file.endswith(".tape")
        try:
            for block in self._source.blocks(unit, self.wanted, self._account):
                self._read(block.data, block.left_out, is_tape=is_tape)
            self._end_tree()
        finally:
            for rules in (self.now, self.then):
                if rules is not None and rules.given_up != given_up:
                    rules.recover(given_up)
        return self._total.report(self.now.names, None if self.then is None else self.then.names, self._account)

    def _read(self, data: bytes, left_out: int, *, is_tape: bool) -> None:
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        if is_tape:
            moments_only = [line for line in lines if not line.startswith(b"{")]
            self._dropped += len(lines) - len(moments_only)
            lines = moments_only
        # In a sound block each line begins with [" and ends with ]. Counting is much faster than looking at each line.
        elif data.count(b'\n["') != len(lines) - 1 or data.count(b"]\n") != len(lines) or not data.startswith(b'["'):
            lines = self._sound_lines(lines)
        if self._tree is not None:
            self._tree.lines.keep(lines, 0, len(data))
        moments, structure = self._prefixes, _STRUCTURE
        base = self._position
        for index, line in enumerate(lines):
            if line.startswith(moments):
                self._moment(line, index, base + index, lines)
            elif line.startswith(structure):
                self._structure(line, index, base + index, lines)
        self._position = base + len(lines)
        if left_out and self._tree is not None:
            self._tree.left_out += left_out

    def _sound_lines(self, lines: list[bytes]) -> list[bytes]:
        """Return the lines that look like JSON arrays, and report the others."""
        found = []
        for index, line in enumerate(lines):
            if line.startswith(b'["') and line.endswith(b"]"):
                found.append(line)
            elif line.strip():
                why = "the line is an entry of a tape" if line.startswith(b'{"entry"') else _NO_JSON
                number = self._position + self._dropped + index + 1
                self._account.skip(why, 0 if self._unit.start else number)
        self._dropped += len(lines) - len(found)
        return found

    def _skip(self, why: str, position: int | None = None) -> None:
        """Count a skipped line. Its number is known if the unit starts with the file and no line was dropped."""
        is_known = position is not None and not self._unit.start and not self._dropped
        self._account.skip(why, position + 1 if is_known and position is not None else 0)

    def _structure(self, line: bytes, index: int, position: int, lines: list[bytes]) -> None:
        kind = line[2:5]
        tree = self._tree
        try:
            if kind == b"run":
                number = int(line[7 : line.index(b",", 7)])
                if number == 0:
                    self._end_tree(position)
                    tree = self._begin_tree(line, position, lines, index)
                    self._tally.runs += 1
                elif tree is not None:
                    tree.others += 1
                    self._tally.nested += 1
                if tree is not None:
                    tree.waiting[number] = line
                    tree.runs.pop(number, None)
                return
            if kind == b"hoo":
                if line.startswith(b'["hooks"'):
                    found = _decode_hooks(line)
                    self._hooks[found.digest] = found.hooks
                elif _decode_header(line).header.format > VERSION:
                    self._skip("a newer version of the format", position)
            elif tree is None:
                self._skip("the line belongs to a run that the file does not contain", position)
            elif kind == b"end":
                _, number, end = _decode_end(line)
                if number == 0:
                    tree.status = str(end.get("status", ""))
            elif kind == b"lab":
                label = _decode_label(line)
                tree.labels[label.label.call_id or f"#{label.n}"] = label.label
            elif kind == b"app":
                self._decided(tree, _decode_moment(line))
                return  # this is a moment
        except _FAILED:
            self._skip("the line has missing or invalid fields", position)
        if tree is not None:
            tree.others += 1

    def _begin_tree(self, line: bytes, position: int, lines: list[bytes], index: int) -> Tree:
        test = self._test
        tree = self._tree = Tree(test, self._clock, position)
        tree.replaced = self.now.replaced
        tree.lines.keep(lines, index, 0)
        tree.is_old = bool(test.since) and _decode_run(line).info.time < test.since
        if tree.is_old or test.where.filters_status:  # count it apart: at its end it may turn out not to be wanted
            self._tally = Tally()
        return tree

    def _end_tree(self, position: int | None = None) -> None:
        """Add up the tree that ends before this line."""
        tree, self._tree = self._tree, None
        if tree is None:
            return
        end = self._position if position is None else position
        tally = self._tally
        moments = end - tree.first - 1 - tree.others + tree.left_out
        exact = moments if tree.differs_at < 0 else min(tree.differs_at, moments)
        tally.moments += moments
        tally.guess += tree.guessed
        tally.exact += exact - tree.guessed
        tally.conditional += moments - exact
        tally.different += tree.differs_at >= 0
        self._add_labels(tree)
        for routes in (self._routes_now, self._routes_then):
            for route in routes.values():
                if route is not None and (route.silent[0] or route.silent[1]):
                    self._count("", route, "same", [*route.silent, 0])
                    route.silent = [0, 0]
        if tally is not self._total:
            if not tree.is_old and self._test.where.wants_status(tree.status):
                self._total.add(tally)
            self._tally = self._total

    # Judging one moment.

    def _route(self, rules: Rules, routes: dict[bytes, Route | None], head: bytes, at: tuple[str, str]) -> Route | None:
        point = known_point(at[0])
        is_wanted = point is not None and self._test.where.wants_moment(*at)
        routes[head] = route = rules.route(point, at[1]) if point is not None and is_wanted else None
        return route

    def _moment(self, line: bytes, index: int, position: int, lines: list[bytes]) -> None:
        """Judge one moment."""
        tree = self._tree
        cut = line.find(b'",') + 3
        head = line[: line.find(b'"', cut)]
        route = self._routes_now.get(head, 0)
        if route == 0:
            try:
                found = msgspec.json.decode(head + b'"]', type=tuple[str, str])
            except msgspec.DecodeError:
                self._skip("the line has missing or invalid fields", position)
                return
            route = self._route(self.now, self._routes_now, head, found)
            if self.then is not None:
                self._route(self.then, self._routes_then, head, found)
        before = self._routes_then.get(head) if self.then is not None else None
        if route is None and before is None and not (self._tracks_requests and line.startswith(b'["before_llm"')):
            if line.startswith(b'["approval_decided",') and tree is not None:
                self._structure(line, index, position, lines)
            return
        if tree is None:
            self._skip("the line belongs to a run that the file does not contain", position)
            return
        if tree.is_old:
            return
        tree.line = index
        shape = route or before or _request_route()
        try:
            row = shape.decode(line)
        except msgspec.ValidationError:
            self._skip(_PAYLOAD, position)
            tree.others += 1
            return
        except _FAILED:
            self._skip(_NO_JSON, position)
            tree.others += 1
            return
        run = tree.runs.get(row.run) or tree.run(row.run)
        if run is None:
            self._skip("the line belongs to a run that the file does not contain", position)
            tree.others += 1
            return
        payload = row.payload
        if shape.has_ids:
            _set(payload, "ids", run.ids)
        if self._tracks_requests:
            payload = _with_request(payload, row, run)
        if line.startswith(b'["approval_decided",'):
            self._decided(tree, _decode_moment(line))
        if not run.is_wanted or (route is None and before is None):
            return
        self._number += 1
        if self._stuck and self._number in self._stuck:
            self._report_stuck(route or shape, row, run, payload)
            return
        self._tally.judged += 1
        clock = self._clock
        clock.now = row.at - row.took
        PROBE.moment += 1
        PROBE.position[0] = self._number
        # The usual case: no hook decided anything, and none does now.
        if before is None and route is not None and row.decisions is None and row.verdict is None and not route.slow:
            notes = row.notes
            if notes is None or (not notes.inexact and route.point != "before_tool"):
                first = self._call(route, run.now, payload)
                if first is None:
                    if not PROBE.reads and not PROBE.refusals and not tree.guessing:
                        route.silent[tree.differs_at >= 0] += 1
                        if route.point == "before_tool":
                            tree.decided[payload.id] = _PASSED_EXACTLY if tree.differs_at < 0 else _PASSED
                        return
                    self._conclude(route, row, run, tree, payload, _NOTHING, _NOTHING, position)
                    return
                now = self._fire(self.now, route, row, run, run.now, payload, first)
                if now is not None:
                    self._conclude(route, row, run, tree, payload, _NOTHING, now, position)
                return
        self._judge_slowly(route, before, row, run, tree, payload, position)

    def _call(self, route: Route, ctx: BacktestContext, payload: Any) -> HookOutcome | None:
        """Call hooks in order until one returns a value or raises."""
        probe = PROBE
        probe.active = True
        try:
            for entry, call, number in route.calls:
                probe.entry = entry
                probe.position[1] = number
                result = call(ctx, payload)
                if result is not None:
                    return entry, result, None
        except (Exception, RuleTimeoutError, SystemExit) as error:  # noqa: BLE001 - on_failure decides
            return entry, None, error  # pyright: ignore[reportPossiblyUnboundVariable] # only the call of a hook raises
        finally:
            probe.active = False
        return None

    def _judge_slowly(
        self,
        route: Route | None,
        before: Route | None,
        row: Any,
        run: RecordedRunContext,
        tree: Tree,
        payload: Any,
        position: int,
    ) -> None:
        """Judge a moment at which a hook decided something, or that is compared with a baseline."""
        shape = route or before
        assert shape is not None
        recorded = self._recorded(shape, row, payload)
        now: Outcome | None
        then: Outcome | None = recorded
        if self.then is not None:
            then = recorded
            if before is not None or self._drops(self.then, row):
                then = self._fire(self.then, before or shape, row, run, run.then, payload)
        now = recorded
        if route is not None or self._drops(self.now, row):
            now = self._fire(self.now, route or shape, row, run, run.now, payload)
        if now is None or then is None:
            return
        if self.then is not None and kind_of(recorded, then) != "same" and tree.differs_at < 0:
            differs = self._index(tree, row, position)
            self._conclude(shape, row, run, tree, payload, then, now, position)
            tree.differs_at = differs
            return
        self._conclude(shape, row, run, tree, payload, then, now, position)

    @staticmethod
    def _drops(rules: Rules, row: Any) -> bool:
        return any(decision.hook in rules.replaced for decision in row.decisions or ())

    def _recorded(self, route: Route, row: Any, payload: Any) -> Outcome:
        """Return the recorded decision. Its value comes from playing the decisions of the hooks once more."""
        verdict = row.verdict
        if verdict is None:
            return _NOTHING
        decisions = row.decisions or ()
        closed = verdict.verb == HookAction.FAILED
        chain = chain_of([played_entry(decision, route.point, None, closed) for decision in decisions])
        try:
            found, _ = self._dispatcher.fire(
                chain, route.point, payload, _scope(), no_retry=_no_retry(row, payload), between=_between(row, payload)
            )
        except _FAILED:
            return Outcome(verdict.verb, verdict.hook, verdict.reason, is_known=False)
        played = outcome_of(found)
        if played.verb != verdict.verb:
            return Outcome(verdict.verb, verdict.hook, verdict.reason, is_known=False)
        return Outcome(verdict.verb, verdict.hook, verdict.reason, played.value, played.payload)

    def _fire(
        self,
        rules: Rules,
        route: Route,
        row: Any,
        run: RecordedRunContext,
        ctx: BacktestContext,
        payload: Any,
        first: HookOutcome | None = None,
    ) -> Outcome | None:
        """Fire the point with the tested hooks and the recorded decisions; ``None`` if it could not be judged."""
        if first is not None and isinstance(first[2], _NOT_JUDGED):
            self._no_decision(first[0].name, first[2], route, row, run, payload)
            return None
        kept = [decision for decision in row.decisions or () if decision.hook not in rules.replaced]
        chain = route.chain
        if kept:
            closed = row.verdict is not None and row.verdict.verb == HookAction.FAILED
            digest = run.info.hooks
            chain = rules.chain(route, kept, digest, self._recorded_hooks(digest), closed=closed)
        is_edited = type(payload) is ToolCallRequest and payload.id in run.edited
        PROBE.active = True
        try:
            verdict, firing = self._dispatcher.fire(
                chain,
                route.point,
                payload,
                ctx._scope,  # type: ignore[arg-type]
                no_retry=_no_retry(row, payload),
                between=_between(row, payload),
                first=first,
                only_guards=is_edited,
                waits=route.waits,
            )
        except _NOT_JUDGED as error:
            self._no_decision(PROBE.hook, error, route, row, run, payload)
            return None
        finally:
            PROBE.active = False
        self._note_failures(firing, verdict, route, row, run, payload)
        found = outcome_of(verdict)
        if is_edited and found.verb == HookAction.ASK:  # the questions of an edited call are answered
            return Outcome(payload=found.payload)
        return found

    def _recorded_hooks(self, digest: str) -> Sequence[HookInfo]:
        if digest and digest not in self._hooks:
            self._hooks[digest] = self._source.hooks(self._unit, digest)
        return self._hooks.get(digest, ())

    def _index(self, tree: Tree, row: Any, position: int) -> int:
        """Return the number of moments of a tree up to and including this one."""
        return int(row.n) + 1 if tree.left_out else position - tree.first - tree.others

    def _conclude(
        self,
        route: Route,
        row: Any,
        run: RecordedRunContext,
        tree: Tree,
        payload: Any,
        then: Outcome,
        now: Outcome,
        position: int,
    ) -> None:
        """Count the difference between two decisions."""
        kind = kind_of(then, now)
        hook = then.hook if kind.startswith("no_longer") else now.hook
        guesses = self._guesses(route, row, run, tree, kind, then, now)
        certainty: Certainty = "exact"
        if guesses:
            certainty = "guess"
        elif tree.differs_at >= 0:
            certainty = "conditional"
        if guesses and tree.differs_at < 0:
            tree.guessed += 1
        for hook_name, read in guesses:
            self._tally.guesses[hook_name, read] += 1
        numbers = [0, 0, 0]
        numbers[_CERTAINTIES.index(certainty)] = 1
        found = self._count(hook, route, kind, numbers)
        if kind != "same" and len(found) < self._test.examples:
            found.append(self._example(route, row, run, payload, certainty, then, now))
        if kind != "same" and tree.differs_at < 0:
            tree.differs_at = self._index(tree, row, position)
        if route.point == "before_tool":
            tree.decided[payload.id] = (then.verb in STOPPING, now.verb in STOPPING, certainty)

    def _guesses(
        self,
        route: Route,
        row: Any,
        run: RecordedRunContext,
        tree: Tree,
        kind: Kind,
        then: Outcome,
        now: Outcome,
    ) -> list[tuple[str, str]]:
        """Return why the answer about a moment is a guess: hooks, and what they read."""
        found = list(PROBE.reads)
        for hook, what in PROBE.refusals:
            self._trouble(hook, "refused", what, None)
            found.append((hook, f"refused: {what}"))
        PROBE.reads.clear()
        PROBE.refusals.clear()
        tree.guessing.update(dict.fromkeys(hook for hook, _ in found))
        known = {hook for hook, _ in found}
        found += [
            (entry.name, "what it read earlier in the run")
            for entry, _, _ in route.calls
            if entry.name in tree.guessing and entry.name not in known
        ]
        notes = row.notes
        if notes is not None and notes.inexact:
            names = dict.fromkeys(entry.name for entry, _, _ in route.calls)
            found += [(name, f"a payload that was {_INEXACT[notes.inexact]} in the record") for name in names]
        if kind.startswith("no_longer") and then.hook in self.now.replaced:
            digest = run.info.hooks
            order = self.now.order(str(route.point), digest, self._recorded_hooks(digest))
            skipped = not_called(order, then.hook, route.tool, self.now.replaced.__contains__)
            found += [(name, f"it was not called then, because {then.hook} decided first") for name in skipped]
        return found

    def _count(self, hook: str, route: Route, kind: Kind, numbers: list[int]) -> list[Example]:
        count, examples = self._tally.cells.setdefault((hook, str(route.point), route.tool, kind), ([0, 0, 0], []))
        for index, number in enumerate(numbers):
            count[index] += number
        return examples

    def _example(
        self,
        route: Route,
        row: Any,
        run: RecordedRunContext,
        payload: Any,
        certainty: Certainty,
        then: Outcome,
        now: Outcome,
    ) -> Example:
        reason = now.reason or then.reason
        return Example(
            run.ids.run_id,
            row.n,
            str(route.point),
            route.tool,
            subject_of(payload),
            str(then),
            str(now),
            shorten(reason, 200),
            certainty,
            self._unit.file,
        )  # fmt: skip - the fields in their order

    # Troubles of hooks.

    def _trouble(self, hook: str, problem: Problem, message: str, example: Example | None) -> None:
        count, examples = self._tally.troubles.setdefault((hook, problem, shorten(message, 200)), ([0], []))
        count[0] += 1
        if example is not None and len(examples) < self._test.examples:
            examples.append(example)

    def _note_failures(
        self, firing: Firing, verdict: Verdict, route: Route, row: Any, run: RecordedRunContext, payload: Any
    ) -> None:
        if not verdict.failures and verdict.error is None:
            return
        example = self._example(route, row, run, payload, "exact", _NOTHING, _NOTHING)
        cause = firing.error.cause if isinstance(firing.error, HookError) else firing.error
        if verdict.error is not None and cause is not None and not isinstance(cause, PlayedFailureError):
            self._failure(verdict.error.source, cause, example)
        for info in verdict.failures:
            if info.type == PlayedFailureError.__name__:
                continue
            if info.type != RefusedError.__name__:  # refusals are counted where they happen
                problem: Problem = "out_of_memory" if info.type == "MemoryError" else "raised"
                self._trouble(info.source, problem, info.message.partition(": ")[2] or info.message, example)

    def _failure(self, hook: str, cause: BaseException, example: Example) -> None:
        if isinstance(cause, RefusedError):
            return
        problem: Problem = "out_of_memory" if isinstance(cause, MemoryError) else "raised"
        self._trouble(hook, problem, describe(cause), example)

    def _no_decision(
        self, hook: str, error: BaseException, route: Route, row: Any, run: RecordedRunContext, payload: Any
    ) -> None:
        """Report a hook that was interrupted, or that tried to end the process."""
        PROBE.reads.clear()
        PROBE.refusals.clear()
        if isinstance(error, SystemExit):
            self._report_problem(hook, "raised", describe(error), route, row, run, payload)
            return
        self._report_problem(hook, "timed_out", "it exceeded the time limit", route, row, run, payload)
        self._count_hang(hook)

    def _count_hang(self, hook: str) -> None:
        """Stop calling a hook that hangs again and again: a rule that always hangs would take days."""
        self._hangs[hook] += 1
        if self._hangs[hook] < MAX_HANGS:
            return
        for rules in (self.now, self.then):
            if rules is not None:
                rules.give_up(hook)
        self._routes_now.clear()
        self._routes_then.clear()
        self._tally.notes[
            f"{hook} hung {MAX_HANGS} times in a part of the record and was not called in the rest of it"
        ] = None

    def _report_problem(
        self, hook: str, problem: Problem, message: str, route: Route, row: Any, run: RecordedRunContext, payload: Any
    ) -> None:
        example = self._example(route, row, run, payload, "exact", _NOTHING, _NOTHING)
        self._trouble(hook, problem, message, example)
        self._skip(f"the hook {hook} did not judge the moment: {message}")

    def _report_stuck(self, route: Route, row: Any, run: RecordedRunContext, payload: Any) -> None:
        hook, problem, message = self._stuck[self._number]
        self._report_problem(hook, problem, message, route, row, run, payload)
        self._count_hang(hook)

    # Labels.

    def _decided(self, tree: Tree, line: MomentLine) -> None:
        """Use the decision of a person as a label, and remember edited calls."""
        fields = _decode_decided(line.payload)
        call_id, decision = str(fields.get("call_id", "")), fields.get("decision")
        if decision == "edited" and (run := tree.run(line.run)) is not None:
            run.edited.add(call_id)
        elif decision in ("approved", "denied"):
            tree.labels.setdefault(call_id, Label(decision, call_id, str(fields.get("by", ""))))

    def _add_labels(self, tree: Tree) -> None:
        for number in list(tree.waiting) if self._test.labels else ():
            tree.run(number)
        labels = dict(tree.labels)
        for run in tree.runs.values() if self._test.labels else ():
            labels.update(self._test.labels.get(run.ids.run_id, {}))
        if not labels:
            return
        decided = tree.decided | _recorded_decisions(tree, labels.keys() - tree.decided.keys())
        for key, label in labels.items():
            if key not in decided:
                continue
            then, now, certainty = decided[key]
            self._tally.label("then", bad=label.is_bad, stopped=then, certainty="exact")
            self._tally.label("now", bad=label.is_bad, stopped=now, certainty=certainty)


_NOT_JUDGED = (RuleTimeoutError, SystemExit)
_NOTHING = Outcome()
_PASSED_EXACTLY: tuple[bool, bool, Certainty] = (False, False, "exact")
_PASSED: tuple[bool, bool, Certainty] = (False, False, "conditional")
_INEXACT = {"redacted": "redacted", "cut": "cut", "partial": "not complete"}


def _recorded_decisions(tree: Tree, keys: Iterable[str]) -> dict[str, tuple[bool, bool, Certainty]]:
    """Return the decisions about calls that are labelled by position, or that no tested hook judges."""
    found: dict[str, tuple[bool, bool, Certainty]] = {}
    wanted = set(keys)
    for block, first in tree.lines.blocks if wanted else ():
        for line in block[first:]:
            if not line.startswith(b'["before_tool",'):
                continue
            try:
                moment = _decode_moment(line)
                call_id = str(_decode_decided(moment.payload).get("id", ""))
            except _FAILED:
                continue
            stopped = moment.verdict is not None and moment.verdict.verb in STOPPING
            for key in (call_id, f"#{moment.n}"):
                if key in wanted:
                    found[key] = tree.decided.get(call_id, (stopped, stopped, "exact"))
    return found


_request: list[Route] = []


def _request_route() -> Route:
    """Return a route that only decodes requests, for hooks that see the replies to them."""
    if not _request:
        _request.append(Route(POINTS["before_llm"], "", [], {}))
    return _request[0]


def _scope() -> Any:
    """Return a scope for recorded decisions, which do not look at it."""
    from .._kernel.scope import Scope

    return Scope(None)


def _with_request(payload: Any, row: Any, run: RecordedRunContext) -> Any:
    """Restore the messages of a request, and the request of a reply or failure."""
    if type(payload) is ModelRequest:
        payload = run.requests.restore(payload, row.notes)
        run.requests.settle(payload, row.decisions)
    elif type(payload) in (ModelReply, Failure):
        request = run.requests.sent.get(payload.purpose)
        if request is not None:
            _set(payload, "request", request)
    return payload


def _no_retry(row: Any, payload: Any) -> str:
    """Return why a retry is not possible at this moment, as the loop would."""
    decisions = row.decisions or ()
    ignored = any(d.verb == HookAction.RETRY for d in decisions) and (
        row.verdict is None or row.verdict.verb != HookAction.RETRY
    )
    limit = getattr(payload, "attempt", 1) > MAX_RETRIES
    if type(payload) is ToolCallResult and payload.outcome not in ("ok", "error"):
        return f"the call was {payload.outcome}"
    if limit:
        return "retry_limit"
    return "the run is ending" if ignored else ""


def _between(row: Any, payload: Any) -> Callable[[Firing], None] | None:
    """Return what happens between rewriters and guards at ``before_tool``: the arguments are validated."""
    if type(payload) is not ToolCallRequest:
        return None

    def validate(firing: Firing) -> None:
        notes, verdict = row.notes or _NO_NOTES, row.verdict
        is_invalid = verdict is not None and verdict.verb == HookAction.INVALID
        if notes.checked is None and not is_invalid:
            return
        then = changed_by(payload, row.decisions)
        if (firing.payload.name, firing.payload.arguments) != (then.name, then.arguments):
            PROBE.note("the validation of other arguments")
        elif is_invalid:
            firing.mark_invalid(verdict.reason)
        else:
            firing.payload = msgspec.structs.replace(firing.payload, arguments=notes.checked, raw=None)

    return validate
