"""Judge the moments of one unit of a record, and report what differs (DESIGN 6.13).

This is the part that decides how fast a backtest is. Lines that no hook listens to are passed over by their first
bytes. The others are decoded to payloads and given to the hooks one by one; only a moment at which a hook decides
something, then or now, goes through the dispatcher.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from io import BytesIO
from typing import Any

import msgspec

from .._base.text import describe, shorten
from .._kernel.dispatch import Firing, HookOutcome
from .._kernel.errors import HookError, InvalidResultError
from .._kernel.payloads import ApprovalDecision, ModelRequest, ToolCallRequest, ToolCallResult
from .._kernel.points import AFTER_LLM, APPROVAL_DECIDED, BEFORE_LLM, ON_ERROR, ON_RUN_END, POINTS, Point
from .._kernel.registry import HookStack
from .._kernel.results import SETTLING, HookAction, HookResult, Verdict, parse_result
from .._kernel.scope import Scope
from .._kernel.state import AgentResult
from .._run.model_call import MAX_RETRIES
from ..models.protocol import Model
from ..records.account import NO_RUN
from ..records.format import NO_NOTES, TAPE_SUFFIX, VERSION, Decision, HookInfo, Label
from ..records.labels import is_person
from ..records.reading import (
    TREE,
    Part,
    changed_by,
    decode_header,
    decode_hooks,
    decode_label,
    decode_moment,
    decode_run,
)
from .compare import STOPPING, MomentOutcome, kind_of, outcome_of, subject_of
from .confinement import RuleTimeoutError
from .context import PROBE, BacktestContext, RecordedClock, RefusedError
from .judge import Dispatcher, Route, Rules, is_coroutine, row_decoder
from .playback import PlayedFailureError, chain_of, is_playable, not_called, played_entry
from .report import EXAMPLES, Certainty, Example, Kind, Problem, Report
from .sources import Source, Unit, UnitAccount, Wanted
from .tally import CERTAINTIES, Tally
from .trees import DecidedCall, JudgedRun, RunTree
from .where import Where

MAX_HANGS = 3
"""A hook that exceeds the time limit this often in one unit is not called in the rest of the unit."""

Stuck = Mapping[int, tuple[str, Problem, str]]
"""Moments of a unit that are not judged: their numbers, with the hook, the problem and a message."""

_set = msgspec.structs.force_setattr
_NO_RUNS: dict[int, JudgedRun] = {}
_SPECIAL = frozenset((BEFORE_LLM, AFTER_LLM, ON_ERROR, ON_RUN_END, APPROVAL_DECIDED))
_NOTHING = MomentOutcome()
_NOT_JUDGED = (RuleTimeoutError, SystemExit)
_decode_end = msgspec.json.Decoder(tuple[str, int, dict[str, Any]]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode
_decode_head = msgspec.json.Decoder(tuple[str, str]).decode
_BAD_PAYLOAD = "the payload does not fit its point"
_BAD_FIELDS = "the line has missing or invalid fields"
_NO_JSON = "the line is not JSON"
_REFORMATTED = "the run has spaces between the fields of its lines, which Hookline does not write"
_BAD_DECISION = "the line has a recorded decision that is damaged"
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError, KeyError)
_INEXACT = {"redacted": "redacted", "cut": "cut", "partial": "not complete"}


class Test(msgspec.Struct, frozen=True):
    """The subject of a backtest: the rules, what they are compared with, and which runs."""

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
    """The number of examples that are kept of each kind of difference."""
    replaced: frozenset[Part] = frozenset()
    """The records that a later one of the same run replaces: they are left out."""


class Target:
    """The hooks at one point for one tool: the tested ones and the baseline."""

    __slots__ = (
        "calls",
        "is_call",
        "is_judged",
        "is_needed",
        "is_quick",
        "now",
        "route",
        "silent",
        "silent_after",
        "then",
    )

    def __init__(self, now: Route | None, then: Route | None, route: Route) -> None:
        self.now, self.then = now, then
        self.route = route
        """One of them, or a route without hooks for lines that are only decoded."""
        self.is_judged = now is not None or then is not None
        self.is_needed = self.is_judged or route.point in (BEFORE_LLM, APPROVAL_DECIDED)
        """Whether lines are decoded: requests are needed by later moments, and decisions of people are labels."""
        self.is_call = route.is_call
        self.calls = () if now is None else now.calls
        self.is_quick = now is not None and then is None and not now.slow
        """Whether calling the hooks one by one is enough, as long as none of them decides anything."""
        self.silent = self.silent_after = 0
        """How often no hook decided anything, before and after the first different decision of a run."""


class Reader:
    """Reads the lines of one point.

    ``prefixes`` are how the lines begin that may have hooks: with the point, and with the tool if all of them name
    theirs. ``is_selective`` says that some of these lines are not judged nevertheless, and need not be decoded.
    """

    __slots__ = ("alike", "decode", "has_ids", "is_selective", "is_special", "point", "prefixes", "targets")

    def __init__(self, point: Point[Any], prefixes: tuple[bytes, ...], *, is_selective: bool) -> None:
        self.point = point
        self.prefixes = prefixes
        self.is_selective = is_selective
        self.decode = row_decoder(point).decode
        self.has_ids = "ids" in point.payload.__struct_fields__
        self.is_special = point in _SPECIAL
        """Whether the payload needs more than decoding."""
        self.targets: dict[str, Target] = {}
        """The hooks by the name of the tool."""
        self.alike: Reader | None = None
        """The reader of another point whose name begins with the same bytes."""


class Moment:
    """A moment that is being judged."""

    __slots__ = ("payload", "route", "row", "run", "tree")

    def __init__(self, route: Route, row: Any, run: JudgedRun, tree: RunTree, payload: Any) -> None:
        self.route, self.row, self.run, self.tree = route, row, run, tree
        self.payload = payload

    @property
    def is_edited(self) -> bool:
        """Whether this is a call whose arguments a person edited, which is judged for the second time."""
        edited = self.run.edited
        return self.route.is_call and edited is not None and self.payload.id in edited

    @property
    def failed_closed(self) -> bool:
        """Whether the run failed here when it was recorded."""
        verdict = self.row.verdict
        return verdict is not None and verdict.verb == HookAction.FAILED


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
        self.rules = [self.now] if self.then is None else [self.now, self.then]
        self.hooks = tuple(entry.name for rules in self.rules for entry in rules.entries)
        """The names of the hooks by their number."""
        points = {point for rules in self.rules for point in rules.points}
        self._needs_requests = bool(points & {"before_llm", "after_llm", "on_error", "on_run_end"})
        if self._needs_requests:
            points.add("before_llm")
        self.wanted = Wanted({point: self._globs(point) for point in sorted(points)}, labelled=bool(test.labels))
        others = (*_OTHERS, "end") if test.where.filters_status else _OTHERS
        self._others = tuple(f'["{name}",'.encode() for name in others)
        self._skipped: set[bytes] = set()
        """The first bytes of lines that are not looked at."""
        self._dispatcher = Dispatcher()
        self._number = 0
        self._clock = RecordedClock()
        self._heads: dict[bytes, bool] = {}
        """Whether lines with these first bytes, up to the tool, are decoded."""
        self._all_readers = [reader for point in self.wanted.points if (reader := self._reader(point)) is not None]
        self._readers: dict[bytes, Reader] = {}
        self._short: dict[bytes, Reader] = {}
        """The readers of points whose names are so short that the first bytes of their lines also contain the tool."""
        for reader in self._all_readers:
            name = f'{reader.point}","'.encode()
            if len(name) < _NAME_END - 2:
                self._short[name] = reader
                continue
            name = name[: _NAME_END - 2]
            reader.alike, self._readers[name] = self._readers.get(name), reader

    def _reader(self, point: str) -> Reader | None:
        known, globs = POINTS.get(point), self.wanted.points[point]
        if known is None:
            return None
        plain = [_PLAIN.match(glob)[0] for glob in globs]  # type: ignore[index] # it matches an empty string, too
        is_whole = bool(globs) and all(map(str.__eq__, plain, globs))
        prefixes = {f'["{point}","{tool}' + '"' * is_whole for tool in plain or [""]}
        is_selective = (not is_whole and bool(globs)) or self._test.where.filters_moments
        return Reader(known, tuple(prefix.encode() for prefix in prefixes), is_selective=is_selective)

    def _forget_targets(self) -> None:
        for reader in self._all_readers:
            reader.targets.clear()
        self._heads.clear()

    def _globs(self, point: str) -> tuple[str, ...]:
        entries = [entry for rules in self.rules for entry in rules.at(point)]
        if not all(entry.tools for entry in entries):
            return ()
        return tuple(dict.fromkeys(glob for entry in entries for glob in entry.tools))

    def give_up(self, hook: str) -> None:
        """Do not call a hook any more."""
        for rules in self.rules:
            rules.give_up(hook)

    def close(self) -> None:
        """Release the event loop."""
        self._dispatcher.close()

    # Reading.

    def judge(self, unit: Unit, stuck: Stuck | None = None) -> Report:
        """Judge one unit, except the moments in ``stuck``, which are reported with their problem."""
        try:
            return self._judge(unit, stuck or {})
        except _LinesNeededError:  # a hook looked at earlier moments: from now on, the source leaves out nothing
            self.wanted = self.wanted.replace(everything=True)
            return self._judge(unit, stuck or {})

    def _judge(self, unit: Unit, stuck: Stuck) -> Report:
        self._unit = unit
        self.run_hashes = array("q")
        """Hashes of the ids of the outermost runs of the unit."""
        self._is_tape = unit.file.endswith(TAPE_SUFFIX)
        self._account = UnitAccount(unit.file)
        self._tally = self._total = Tally(self._test.examples)
        self._forget_targets()
        self._hooks: dict[str, Sequence[HookInfo]] = {}
        self._stuck = stuck
        self._first_number = self._counted = PROBE.position[3] = self._number
        self._hangs: Counter[str] = Counter()
        self._tree: RunTree | None = None
        self._begun = False
        PROBE.hooks = self.hooks
        PROBE.clear()
        given_up = [set(rules.given_up) for rules in self.rules]
        for hook in sorted(self.now.given_up):
            self._total.notes[f"{hook} hung too often, and was not called in parts of the records"] = None
        try:
            data = b""
            try:
                for block in self._source.blocks(unit, self.wanted, self._account):
                    data = block.data
                    self._read(data, block.left_out)
            except OSError as error:  # of the source: those of hooks are caught. Another process deleted the file.
                self._account.skip(f"cannot be read: {error.strerror or error}")
            self._end_tree(data, len(data))
            self._count_silent()
            if not unit.start and not self._begun and not self._account.entries() and _has_moments(data):
                self._account.skip("it contains no run in the form that Hookline writes")
        finally:
            for rules, before in zip(self.rules, given_up, strict=True):
                rules.recover(before)
        return self._total.report(self.now.names, None if self.then is None else self.then.names, self._account)

    def _read(self, data: bytes, left_out: int) -> None:
        """Judge the moments in whole lines."""
        if self._tree is not None:
            self._tree.lines.keep(data, 0)
        self._begins_at = 0
        self._left_out = left_out
        readers, skipped, probe, clock, position = self._readers, self._skipped, PROBE, self._clock, PROBE.position
        tree, stuck, number, lines = self._tree, self._stuck, self._number, BytesIO(data)
        runs = _NO_RUNS if tree is None else tree.runs
        if tree is not None:
            tree.stream = lines
        for line in lines:
            name = line[2:_NAME_END]
            if name in skipped:  # the usual case, so the cheapest test
                if line[-2] != _END:
                    self._check_line(line, data, lines.tell() - len(line))
                continue
            reader = readers.get(name)
            if reader is None and self._short:
                reader = next((each for first, each in self._short.items() if name.startswith(first)), None)
            if reader is None:
                self._number = number
                self._read_other(line, name, data, lines.tell() - len(line))
                tree = self._tree
                if tree is not None:
                    tree.stream, runs = lines, tree.runs
                continue
            while reader is not None and not line.startswith(reader.prefixes):
                reader = reader.alike
            if reader is None or (reader.is_selective and not self._selects(reader, line)):
                if line[-2] != _END:
                    self._check_line(line, data, lines.tell() - len(line))
                continue
            try:
                row = reader.decode(line)
            except _INVALID as error:
                self._bad_moment(error, data, lines.tell() - len(line))
                continue
            run = runs.get(row.run)
            if run is None and (tree is None or (run := tree.run(row.run)) is None):
                self._skip_moment(NO_RUN, data, lines.tell() - len(line))
                continue
            assert tree is not None
            payload = row.payload
            if reader.has_ids:
                _set(payload, "ids", run.ids)
            if reader.is_special:
                try:
                    self._prepare(payload, row, run, tree)
                except _INVALID:
                    self._skip_moment(_BAD_DECISION, data, lines.tell() - len(line))
                    continue
            target = reader.targets.get(row.tool)
            if target is None:
                target = self._target(reader, row.tool)
            if not (target.is_judged and run.is_judged):
                continue
            number += 1
            position[0] = number
            clock.moment = row
            if stuck and number - self._first_number in stuck:
                self._report_stuck(Moment(target.route, row, run, tree, payload), number)
                continue
            notes = row.notes
            then: MomentOutcome | None = _NOTHING
            if row.decisions is not None or row.verdict is not None:
                then = self._decision_of_replaced(row, payload)
            if then is None or not target.is_quick or (notes is not None and (target.is_call or notes.inexact)):
                self._compare(target, Moment(target.route, row, run, tree, payload))
                continue
            ctx = run.now
            outcome: HookOutcome | None = None
            probe.active = True
            try:
                for entry, call, hook in target.calls:
                    position[1] = hook
                    result = call(ctx, payload)
                    if result is not None:
                        outcome = entry, result, None
                        break
            except (Exception, RuleTimeoutError, SystemExit) as error:  # noqa: BLE001 - on_failure decides
                outcome = entry, None, error  # pyright: ignore[reportPossiblyUnboundVariable] # only a hook raises
            finally:
                probe.active = False
            if outcome is None and then is _NOTHING and not probe.noted and not tree.guessing:
                # The usual case: no hook decided anything then, and none does now.
                if tree.differs_n < 0:
                    target.silent += 1
                else:
                    target.silent_after += 1
                continue
            moment = Moment(target.route, row, run, tree, payload)
            now = _NOTHING if outcome is None else self._settle(target.route, moment, outcome)
            if now is not None:
                self._conclude(moment, then, now)
        self._number = number
        if tree is not None:
            tree.last_n = max(tree.last_n, _last_n(data, self._begins_at, len(data)))

    def _decision_of_replaced(self, row: Any, payload: Any) -> MomentOutcome | None:
        """Return the recorded decision if it is that of one guard, which is replaced. ``None`` for all other cases."""
        decisions, verdict = row.decisions, row.verdict
        if decisions is None or verdict is None or len(decisions) != 1:
            return None
        only = decisions[0]
        if only.verb not in SETTLING or only.phase != "guard" or only.verb != verdict.verb:
            return None
        return (
            MomentOutcome(only.verb, only.hook, only.reason, only.value, payload)
            if only.hook in self.now.replaced
            else None
        )

    def _prepare(self, payload: Any, row: Any, run: JudgedRun, tree: RunTree) -> None:
        """Complete a payload that refers to earlier moments, and take note of the decisions of people."""
        if type(payload) is ModelRequest:
            run.requests.restore(payload, row.notes)
            run.requests.settle(payload, row.decisions)
        elif type(payload) is ApprovalDecision:
            self._decided(tree, row.run, payload.call_id, payload.decision, payload.by)
        elif type(payload) is AgentResult:
            run.requests.complete(payload, row.notes)
        else:
            request = run.requests.sent.get(payload.purpose)
            if request is not None:
                _set(payload, "request", request)

    def _skip(self, reason: str, data: bytes, position: int) -> None:
        """Count a skipped line."""
        self._account.skip_in(data, position, reason)

    def _skip_moment(self, reason: str, data: bytes, position: int) -> None:
        """Count a skipped line that may be a moment. A decision about it may differ, so all later ones are guesses."""
        self._skip(reason, data, position)
        if self._tree is not None:
            self._tree.is_damaged = True
            self._tree.guessing = frozenset(self.hooks)

    def _bad_moment(self, error: BaseException, data: bytes, start: int) -> None:
        """Report a moment that cannot be decoded."""
        self._skip_moment(_BAD_PAYLOAD if isinstance(error, msgspec.ValidationError) else _NO_JSON, data, start)

    def _read_other(self, line: bytes, name: bytes, data: bytes, start: int) -> None:
        """Read a line that is not a judged moment. Remember the first bytes of lines that are not looked at."""
        if line.startswith(self._others):
            try:
                if line.startswith(b'["run",'):
                    self._run_line(line, data, start)
                else:
                    self._structure(line, data, start)
            except _INVALID:
                self._skip(_BAD_FIELDS, data, start)
        elif line[-2:-1] != b"]":
            self._check_line(line, data, start)
        elif name not in _LONG_NAMES and len(self._skipped) < _MAX_SKIPPED:
            self._skipped.add(name)

    def _check_line(self, line: bytes, data: bytes, start: int) -> None:
        """Report a line that does not end like an array, unless it is empty or the entry of a tape."""
        if line.strip() and not (self._is_tape and line.startswith(b"{")):
            is_entry = line.startswith(b'{"entry"')
            self._skip_moment("an entry of a tape in a file of moments" if is_entry else _NO_JSON, data, start)

    def _structure(self, line: bytes, data: bytes, start: int) -> None:
        tree = self._tree
        if line.startswith(b'["hooks",'):
            found = decode_hooks(line)
            self._hooks[found.digest] = found.hooks
        elif line.startswith(b'["hookline",'):
            if decode_header(line).header.format > VERSION:
                self._skip("a newer version of the format", data, start)
        elif tree is None:
            self._skip(NO_RUN, data, start)
        elif line.startswith(b'["end",'):
            _, number, end = _decode_end(line)
            if number == 0:
                tree.status = str(end.get("status", ""))
        elif line.startswith(b'["label",'):
            label = decode_label(line)
            tree.labels[label.label.call_id or f"#{label.n}"] = label.label
        else:
            moment = decode_moment(line)
            fields = _decode_fields(moment.payload)
            self._decided(tree, moment.run, *(str(fields.get(name, "")) for name in ("call_id", "decision", "by")))

    def _run_line(self, line: bytes, data: bytes, start: int) -> None:
        number = 0 if line.startswith(TREE) else int(line[7 : line.index(b",", 7)])
        if number == 0:
            self._end_tree(data, start)
            self._begin_tree(line, data, start)
            if not line.startswith(TREE):  # then lines of moments may not be recognized either
                self._skip_moment(_REFORMATTED, data, start)
            self._tally.runs += 1
        elif self._tree is not None:
            self._tally.nested += 1
        if self._tree is not None:
            self._tree.add_run(number, line)

    def _begin_tree(self, line: bytes, data: bytes, start: int) -> None:
        test = self._test
        self._begun = True
        tree = self._tree = RunTree(self._clock, test.where, test.model, self.now.replaced)
        tree.lines.keep(data, start)
        self._begins_at = start
        if self._left_out:
            tree.left_out = self._left_out
            tree.delivered = sum(_MOMENT.match(each) is not None for each in data.split(b"\n"))
            tree.lines.is_partial = True
        if test.since or test.replaced:
            info = decode_run(line).info
            tree.is_left_out = info.time < test.since or (info.ids.run_id, info.time) in test.replaced
        if not tree.is_left_out and (run_id := _RUN_ID.search(line)):
            self.run_hashes.append(hash(run_id[1]))
        if tree.is_left_out or test.where.filters_status:  # count it apart: it may turn out not to be wanted
            self._count_silent()
            self._tally = Tally(self._test.examples)

    def _end_tree(self, data: bytes, end: int) -> None:
        """Add up the tree that ends before this position."""
        tree, self._tree = self._tree, None
        if tree is None:
            return
        if tree.lines.is_needed:
            raise _LinesNeededError
        tally = self._tally
        moments = max(tree.last_n, _last_n(data, self._begins_at, end)) + 1
        if tree.left_out:
            moments = tree.left_out + tree.delivered
        tally.judged += self._number - self._counted
        self._counted = self._number
        tally.moments += moments
        if tree.differs_n < 0:
            tally.guess += tree.guessed
            tally.exact += moments - tree.guessed
        else:
            sure = min(tree.differs_n + 1, moments)
            guessed_after = min(tree.guessed_after, moments - sure)
            tally.guess += tree.guessed + guessed_after
            tally.exact += sure - tree.guessed
            tally.conditional += moments - sure - guessed_after
            tally.different += 1
        if tree.labels or self._test.labels:
            self._add_labels(tree)
        tree.release()
        if tally is not self._total:
            self._count_silent()
            if not tree.is_left_out and self._test.where.wants_status(tree.status):
                self._total.add(tally)
            self._tally = self._total

    # Judging one moment.

    def _selects(self, reader: Reader, line: bytes) -> bool:
        """Whether a line is decoded, by its tool."""
        head = line[: line.find(b'"', line.find(b'",') + 3)]
        selected = self._heads.get(head)
        if selected is None:
            try:
                _, tool = _decode_head(head + b'"]')
            except _INVALID:
                return True  # to be reported
            selected = self._heads[head] = self._target(reader, tool).is_needed
        return selected

    def _target(self, reader: Reader, tool: str) -> Target:
        """Return the hooks for a point and a tool."""
        target = reader.targets.get(tool)
        if target is None:
            point = reader.point
            now = then = None
            if self._test.where.wants_moment(str(point), tool):
                now = self.now.route(point, tool)
                then = None if self.then is None else self.then.route(point, tool)
            target = reader.targets[tool] = Target(now, then, now or then or Route(point, tool, [], {}))
        return target

    def _settle(self, route: Route, moment: Moment, outcome: HookOutcome) -> MomentOutcome | None:
        """Return the decision of the hooks, of which the one in ``outcome`` was the first to return something."""
        entry, result, error = outcome
        if error is None and entry.phase == "guard" and type(result) is HookResult and result.action in SETTLING:
            # As in most cases: a guard decides, and that is the verdict.
            try:
                parsed = parse_result(result, route.point, moment.payload, entry.name, "guard")
            except InvalidResultError:
                return self._fire(self.now, route, moment, moment.run.now, outcome)
            if parsed.state is None and not (parsed.action is HookAction.RETRY and _no_retry(moment)):
                return MomentOutcome(str(parsed.action), entry.name, str(parsed.reason), parsed.value, moment.payload)
        return self._fire(self.now, route, moment, moment.run.now, outcome)

    def _compare(self, target: Target, moment: Moment) -> None:
        """Judge a moment at which a hook decided something then, or that is compared with a baseline."""
        if not all(map(is_playable, moment.row.decisions or ())):
            self._counted += 1  # it was not judged
            self._skip_moment(_BAD_DECISION, b"", 0)
            return
        recorded = self._recorded(moment)
        then: MomentOutcome | None = recorded
        now: MomentOutcome | None = recorded
        if self.then is not None and (target.then is not None or self._drops(self.then, moment)):
            then = self._fire(self.then, target.then or moment.route, moment, moment.run.then)
        if target.now is not None or self._drops(self.now, moment):
            now = self._fire(self.now, target.now or moment.route, moment, moment.run.now)
        if then is None or now is None:
            return
        self._conclude(moment, then, now)
        if self.then is not None and kind_of(recorded, then) != "same":
            self._diverge(moment)  # the baseline itself decides differently, so the run would have gone another way

    @staticmethod
    def _drops(rules: Rules, moment: Moment) -> bool:
        return any(decision.hook in rules.replaced for decision in moment.row.decisions or ())

    def _recorded(self, moment: Moment) -> MomentOutcome:
        """Return the recorded decision. Its value comes from playing the decisions of the hooks once more."""
        verdict, point, decisions = moment.row.verdict, moment.route.point, moment.row.decisions
        if verdict is None:
            return _NOTHING
        played = [played_entry(each, point, None, moment.failed_closed) for each in decisions or ()]
        try:
            found, _ = self._dispatcher.fire(
                chain_of(played),
                point,
                moment.payload,
                Scope(None),
                no_retry=_no_retry(moment),
                between=_validation(moment),
            )
            outcome = outcome_of(found)
            if outcome.verb == verdict.verb:
                known = MomentOutcome(verdict.verb, verdict.hook, verdict.reason, outcome.value, outcome.payload)
                return _answered(moment, known)
        except _INVALID:
            pass  # a damaged decision
        return _answered(moment, MomentOutcome(verdict.verb, verdict.hook, verdict.reason, is_known=False))

    def _fire(
        self, rules: Rules, route: Route, moment: Moment, ctx: BacktestContext, first: HookOutcome | None = None
    ) -> MomentOutcome | None:
        """Fire the point with the tested hooks and the recorded decisions; ``None`` if it could not be judged."""
        if first is not None and isinstance(first[2], _NOT_JUDGED):
            self._no_decision(first[0].name, first[2], moment)
            return None
        row, run = moment.row, moment.run
        if first is not None and hasattr(first[1], "__await__") and not is_coroutine(first[0].hook):
            route.waits = True  # a plain function that returns an awaitable: who knows what it waits for
        kept = [decision for decision in row.decisions or () if decision.hook not in rules.replaced]
        chain = route.chain
        if kept:
            hooks = self._recorded_hooks(run.start.hooks)
            chain = rules.chain(route.point, kept, run.start.hooks, hooks, failed_closed=moment.failed_closed)
        PROBE.active = True
        try:
            verdict, firing = self._dispatcher.fire(
                chain,
                route.point,
                moment.payload,
                ctx.scope,
                no_retry=_no_retry(moment),
                between=_validation(moment),
                first=first,
                only_guards=moment.is_edited,
                waits=route.waits,
            )
        except _NOT_JUDGED as error:
            self._no_decision(PROBE.hook, error, moment)
            return None
        finally:
            PROBE.active = False
        if kept and verdict.payload is not moment.payload:
            self._note_other_payload(kept, verdict, moment)
        if verdict.error is not None or verdict.failures:
            self._note_failures(firing, verdict, moment)
        return _answered(moment, outcome_of(verdict))

    @staticmethod
    def _note_other_payload(kept: Sequence[Decision], verdict: Verdict, moment: Moment) -> None:
        """Note that the decision of a recorded guard is about another payload than the one that reached it now."""
        guards = [decision.hook for decision in kept if decision.phase == "guard"]
        if guards and not _is_recorded(verdict.payload, moment):
            for hook in guards:
                PROBE.noted = True
                PROBE.reads[hook, "nothing: its decision then was about another payload"] = None

    def _recorded_hooks(self, digest: str) -> Sequence[HookInfo]:
        if digest and digest not in self._hooks:
            self._hooks[digest] = self._source.hooks(self._unit, digest)
        return self._hooks.get(digest, ())

    def _conclude(self, moment: Moment, then: MomentOutcome, now: MomentOutcome) -> None:
        """Count the difference between two decisions."""
        tree, route = moment.tree, moment.route
        kind = kind_of(then, now)
        guesses = self._guesses(moment, kind, then)
        certainty: Certainty = "guess" if guesses else "exact" if tree.differs_n < 0 else "conditional"
        if guesses and tree.differs_n < 0:
            tree.guessed += 1
        elif guesses:
            tree.guessed_after += 1
        if guesses:
            self._tally.guesses.update(guesses)
        numbers = [0, 0, 0]
        numbers[CERTAINTIES.index(certainty)] = 1
        hook = then.hook if kind.startswith("no_longer") else now.hook
        examples = self._tally.cell(hook, str(route.point), route.tool, kind, numbers)
        if route.is_call:
            tree.decided[moment.payload.id] = then.verb in STOPPING, now.verb in STOPPING, certainty
        if kind != "same":
            if len(examples) < self._test.examples:
                examples.append(self._example(moment, certainty, then, now))
            self._diverge(moment)

    @staticmethod
    def _diverge(moment: Moment) -> None:
        """Remember the first moment of a tree at which a decision differs."""
        if moment.tree.differs_n < 0:
            moment.tree.differs_n = moment.row.n

    def _guesses(self, moment: Moment, kind: Kind, then: MomentOutcome) -> list[tuple[str, str]]:
        """Return why the answer about a moment is a guess: hooks, and what they read."""
        tree, route = moment.tree, moment.route
        notes = moment.row.notes
        is_inexact = notes is not None and notes.inexact
        if not (PROBE.noted or tree.guessing or is_inexact or kind.startswith("no_longer")):
            return []
        found = list(PROBE.reads)
        for hook, what in PROBE.refusals:
            self._tally.failure(hook, "refused", shorten(what, 200), self._example(moment))
            found.append((hook, "what it was refused"))
        PROBE.clear()
        names = [entry.name for entry, _, _ in route.calls]
        known = {hook for hook, _ in found}
        earlier = "lines of the run that are damaged" if tree.is_damaged else "what it read earlier in the run"
        found += [(name, earlier) for name in names if name in tree.guessing - known]
        tree.guessing |= known
        if notes is not None and is_inexact:
            found += [(name, f"a payload that is {_INEXACT[notes.inexact]} in the record") for name in names]
        if kind.startswith("no_longer") and then.hook in self.now.replaced:
            digest = moment.run.start.hooks
            recorded = self._recorded_hooks(digest)
            if digest and not recorded:
                found.append((then.hook, "the hooks after it, which are missing in the record"))
            order = self.now.order(str(route.point), digest, recorded)
            later = not_called(order, then.hook, route.tool)
            found += [(name, f"nothing: it was not called then, because {then.hook} decided first") for name in later]
        return list(dict.fromkeys(found))

    def _example(
        self,
        moment: Moment,
        certainty: Certainty = "exact",
        then: MomentOutcome = _NOTHING,
        now: MomentOutcome = _NOTHING,
    ) -> Example:
        return Example(
            moment.run.ids.run_id,
            moment.row.n,
            str(moment.route.point),
            moment.route.tool,
            subject_of(moment.payload),
            str(then),
            str(now),
            shorten(now.reason or then.reason, 200),
            certainty,
            self._unit.file,
        )

    def _count_silent(self) -> None:
        """Count the moments at which no hook decided anything."""
        for target in [target for reader in self._all_readers for target in reader.targets.values()]:
            if target.silent or target.silent_after:
                route = target.route
                self._tally.cell("", str(route.point), route.tool, "same", [target.silent, target.silent_after, 0])
                target.silent = target.silent_after = 0

    # Hooks that fail.

    def _note_failures(self, firing: Firing, verdict: Verdict, moment: Moment) -> None:
        example = self._example(moment)
        cause = firing.error.cause if isinstance(firing.error, HookError) else firing.error
        if verdict.error is not None and cause is not None:
            self._failure(verdict.error.source, type(cause).__name__, describe(cause), example)
        for info in verdict.failures:
            self._failure(info.source, info.type, info.message.partition(": ")[2] or info.message, example)

    def _failure(self, hook: str, kind: str, message: str, example: Example) -> None:
        if kind not in (PlayedFailureError.__name__, RefusedError.__name__):  # refusals are counted when they happen
            problem: Problem = "out_of_memory" if kind == "MemoryError" else "raised"
            self._tally.failure(hook, problem, shorten(message, 200), example)

    def _no_decision(self, hook: str, error: BaseException, moment: Moment) -> None:
        """Report a hook that was interrupted, or that tried to end the process."""
        PROBE.clear()
        if isinstance(error, SystemExit):
            self._report_problem(hook, "raised", describe(error), moment)
            return
        self._report_problem(hook, "timed_out", "it exceeded the time limit", moment)
        self._count_hang(hook)

    def _report_stuck(self, moment: Moment, number: int) -> None:
        hook, problem, message = self._stuck[number - self._first_number]
        self._report_problem(hook, problem, message, moment)
        self._count_hang(hook)

    def _report_problem(self, hook: str, problem: Problem, message: str, moment: Moment) -> None:
        self._counted += 1  # it was not judged
        self._tally.failure(hook, problem, message, self._example(moment))
        self._account.skip(f"the hook {hook} did not judge the moment: {message}")

    def _count_hang(self, hook: str) -> None:
        """Stop calling a hook that hangs again and again: a rule that always hangs would take days."""
        self._hangs[hook] += 1
        if self._hangs[hook] >= MAX_HANGS:
            self._count_silent()
            self.give_up(hook)
            self._forget_targets()
            note = f"{hook} hung {MAX_HANGS} times in a part of the records, and was not called in its rest"
            self._total.notes[note] = None

    # Labels.

    def _decided(self, tree: RunTree, number: int, call_id: str, decision: str, by: str) -> None:
        """Use the decision of a person as a label, and remember edited calls."""
        if decision == "edited" and (run := tree.run(number)) is not None:
            run.edited = (run.edited or set()) | {call_id}
        elif decision in ("approved", "denied") and is_person(by):
            label = Label("approved" if decision == "approved" else "denied", call_id, by)
            tree.labels.setdefault(call_id, label)

    def _add_labels(self, tree: RunTree) -> None:
        labels = dict(tree.labels)
        for run in tree.all_runs() if self._test.labels else ():
            labels.update(self._test.labels.get(run.ids.run_id, {}))
        if not labels:
            return
        decided = tree.decided | _recorded_decisions(tree, labels.keys() - tree.decided.keys())
        for key, label in labels.items():
            if key in decided:
                then, now, certainty = decided[key]
                self._tally.label("then", bad=label.is_bad, stopped=then, certainty="exact")
                self._tally.label("now", bad=label.is_bad, stopped=now, certainty=certainty)


def _recorded_decisions(tree: RunTree, keys: Iterable[str]) -> dict[str, DecidedCall]:
    """Return the decisions about calls that are labelled by position, or about which no tested hook decided."""
    found: dict[str, DecidedCall] = {}
    wanted = set(keys)
    for line in tree.lines.lines() if wanted else ():
        if not line.startswith(b'["before_tool",'):
            continue
        try:
            moment = decode_moment(line)
            call_id = str(_decode_fields(moment.payload).get("id", ""))
        except _INVALID:
            continue
        stopped = moment.verdict is not None and moment.verdict.verb in STOPPING
        certainty: Certainty = "conditional" if 0 <= tree.differs_n < moment.n else "exact"
        for key in wanted & {call_id, f"#{moment.n}"}:
            found[key] = tree.decided.get(call_id, (stopped, stopped, certainty))
    return found


class _LinesNeededError(Exception):
    """A hook read something for which the source must not leave out lines."""


_MAX_SKIPPED = 1000
_OTHERS = ("run", "label", "approval_decided", "hooks", "hookline")
"""The first items of other lines that are looked at; the ends of runs only if their status matters."""
_RUN_ID = re.compile(rb'"run_id":"([^"]+)"')
_MOMENT = re.compile(rb'\["(?!(?:run|end|label|hooks|hookline)")[^"]*","(?:[^"\\]|\\.)*",-?\d+,(\d+),')


def _has_moments(data: bytes) -> bool:
    """Whether lines contain more than the beginning of a record."""
    return any(line.strip() and not line.startswith((b'["hookline"', b'["hooks"')) for line in data.split(b"\n"))


_END = ord("]")
_NAME_END = 12
"""Where the first bytes of a line end that tell points apart, almost always."""
_LONG_NAMES = frozenset(f'{name}","'[: _NAME_END - 2].encode() for name in _OTHERS if len(name) > _NAME_END - 4)
"""Beginnings of longer names: other points may begin like them."""
_PLAIN = re.compile(r"[\w.-]*")


def _last_n(data: bytes, begin: int, end: int) -> int:
    """Return the position of the last moment in a part of a block; -1 if there is none."""
    while end > begin:
        start = data.rfind(b"\n", begin, end - 1) + 1 or begin
        found = _MOMENT.match(data, start)
        if found is not None:
            return int(found[1])
        end = start
    return -1


def _answered(moment: Moment, outcome: MomentOutcome) -> MomentOutcome:
    """Return an outcome without questions about an edited call, which are already answered."""
    return _NOTHING if outcome.verb == HookAction.ASK and moment.is_edited else outcome


def _no_retry(moment: Moment) -> str:
    """Return why a retry is not possible at this moment, as the loop does."""
    payload, row = moment.payload, moment.row
    if type(payload) is ToolCallResult and payload.outcome not in ("ok", "error"):
        return f"the call was {payload.outcome}"
    if getattr(payload, "attempt", 1) > MAX_RETRIES:
        return "retry_limit"
    was_retried = row.verdict is not None and row.verdict.verb == HookAction.RETRY
    if not was_retried and any(decision.verb == HookAction.RETRY for decision in row.decisions or ()):
        return "the run is ending"
    return ""


def _is_recorded(payload: Any, moment: Moment) -> bool:
    """Whether a payload after the rewriters is the one that the recorded guards saw."""
    then = changed_by(moment.payload, moment.row.decisions)
    if type(payload) is not ToolCallRequest:
        return bool(payload == then)
    checked = (moment.row.notes or NO_NOTES).checked
    arguments = then.arguments if checked is None else checked
    return bool((payload.name, payload.arguments) == (then.name, arguments))


def _validation(moment: Moment) -> Callable[[Firing], None] | None:
    """Return what happens between rewriters and guards at ``before_tool``: the arguments are validated.

    The tool itself is not available, so only the recorded result for the recorded arguments is known.
    """
    payload, row = moment.payload, moment.row
    if type(payload) is not ToolCallRequest:
        return None
    checked = (row.notes or NO_NOTES).checked
    is_invalid = row.verdict is not None and row.verdict.verb == HookAction.INVALID
    if checked is None and not is_invalid:
        return None

    def validate(firing: Firing) -> None:
        then = changed_by(payload, row.decisions)
        if (firing.payload.name, firing.payload.arguments) != (then.name, then.arguments):
            PROBE.note("the validation of other arguments than the recorded ones")
        elif is_invalid:
            firing.mark_invalid(row.verdict.reason)
        else:
            firing.payload = msgspec.structs.replace(firing.payload, arguments=checked, raw=None)

    return validate
