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
from .._kernel.points import BEFORE_LLM
from .._kernel.registry import HookStack
from .._kernel.results import HookAction, Verdict
from .._kernel.scope import Scope
from .._run.model_call import MAX_RETRIES
from ..models.protocol import Model
from ..records.format import VERSION, HeaderLine, HookInfo, HooksLine, Label, LabelLine, MomentLine, Notes
from .compare import STOPPING, Outcome, kind_of, outcome_of, subject_of
from .confinement import RuleTimeoutError
from .context import PROBE, BacktestContext, RecordedClock, RefusedError
from .history import changed_by
from .judge import Dispatcher, Route, Rules, known_point
from .played import PlayedFailureError, chain_of, not_called, played_entry
from .report import EXAMPLES, Certainty, Example, Kind, Problem, Report
from .sources import Account, Source, Unit, Wanted
from .tally import CERTAINTIES, Tally
from .trees import DecidedCall, JudgedRun, RunTree, decode_run
from .where import Where

MAX_HANGS = 3
"""A hook that exceeds the time limit this often in one unit is not called in the rest of the unit."""

Stuck = Mapping[int, tuple[str, Problem, str]]
"""Moments of a unit that are not judged: their numbers, with the hook, the problem and a message."""

_set = msgspec.structs.force_setattr
_NO_NOTES = Notes()
_NOTHING = Outcome()
_NOT_JUDGED = (RuleTimeoutError, SystemExit)
_decode_label = msgspec.json.Decoder(LabelLine).decode
_decode_hooks = msgspec.json.Decoder(HooksLine).decode
_decode_header = msgspec.json.Decoder(HeaderLine).decode
_decode_moment = msgspec.json.Decoder(MomentLine).decode
_decode_end = msgspec.json.Decoder(tuple[str, int, dict[str, Any]]).decode
_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode
_decode_head = msgspec.json.Decoder(tuple[str, str]).decode
_STRUCTURE = (b'["run",', b'["end",', b'["label",', b'["hooks",', b'["hookline",', b'["approval_decided",')
_BAD_PAYLOAD = "the payload does not fit its point"
_BAD_FIELDS = "the line has missing or invalid fields"
_NO_JSON = "the line is not JSON"
_NO_RUN = "the line belongs to a run that the file does not contain"
_INVALID = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, TypeError, ValueError, KeyError)
_INEXACT = {"redacted": "redacted", "cut": "cut", "partial": "not complete"}


class Test(msgspec.Struct, frozen=True):
    """What is tested: the rules, what they are compared with, and which runs."""

    rules: HookStack
    baseline: HookStack | None = None
    without: tuple[str, ...] = ()
    where: Where = msgspec.field(default_factory=Where)
    model: Model | None = None
    since: float = 0.0
    """Runs that started before this Unix time are left out."""
    labels: Mapping[str, Mapping[str, Label]] = msgspec.field(default_factory=dict)
    """Labels from other files: by run id, then by call id or ``#n``."""


class Target:
    """The hooks for the lines that begin with the same point and tool: the tested ones and the baseline."""

    __slots__ = ("now", "route", "then")

    def __init__(self, now: Route | None, then: Route | None, route: Route) -> None:
        self.now, self.then = now, then
        self.route = route
        """One of them, or a route without hooks for lines that are only decoded."""


class Moment:
    """A moment that is being judged."""

    __slots__ = ("payload", "position", "route", "row", "run", "tree")

    def __init__(self, route: Route, row: Any, run: JudgedRun, tree: RunTree, payload: Any, position: int) -> None:
        self.route, self.row, self.run, self.tree = route, row, run, tree
        self.payload = payload
        self.position = position

    @property
    def index(self) -> int:
        """The number of moments of the tree up to and including this one."""
        tree = self.tree
        return int(self.row.n) + 1 if tree.left_out else self.position - tree.first - tree.others

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
        self._rules = [self.now] if self.then is None else [self.now, self.then]
        self.hooks = tuple(entry.name for rules in self._rules for entry in rules.entries)
        """The names of the hooks by their number."""
        points = {point for rules in self._rules for point in rules.points}
        self._needs_requests = bool(points & {"before_llm", "after_llm", "on_error"})
        if self._needs_requests:
            points.add("before_llm")
        self._prefixes = tuple(f'["{point}",'.encode() for point in sorted(points))
        self.wanted = Wanted({point: self._globs(point) for point in sorted(points)}, labelled=bool(test.labels))
        self._dispatcher = Dispatcher()
        self._clock = RecordedClock()
        self._no_hooks = Route(BEFORE_LLM, "", [], {})

    def _globs(self, point: str) -> tuple[str, ...]:
        entries = [entry for rules in self._rules for entry in rules.at(point)]
        if not all(entry.tools for entry in entries):
            return ()
        return tuple(dict.fromkeys(glob for entry in entries for glob in entry.tools))

    def give_up(self, hook: str) -> None:
        """Do not call a hook any more."""
        for rules in self._rules:
            rules.give_up(hook)

    def close(self) -> None:
        """Release the event loop."""
        self._dispatcher.close()

    # Reading.

    def judge(self, unit: Unit, stuck: Stuck | None = None) -> Report:
        """Judge one unit, except the moments in ``stuck``, which are reported with their problem."""
        try:
            return self._judge(unit, stuck)
        except _LinesNeededError:  # a hook looked at earlier moments: from now on, the source leaves out nothing
            self.wanted = self.wanted.replace(everything=True)
            return self._judge(unit, stuck)

    def _judge(self, unit: Unit, stuck: Stuck | None) -> Report:
        self._unit = unit
        self._account = Account(unit.file)
        self._tally = self._total = Tally()
        self._targets: dict[bytes, Target | None] = {}
        self._hooks: dict[str, Sequence[HookInfo]] = {}
        self._stuck: Stuck = stuck or {}
        self._hangs: Counter[str] = Counter()
        self._tree: RunTree | None = None
        self._number = 0
        self._position = 0
        self._dropped = 0
        self._left_out = 0
        given_up = [set(rules.given_up) for rules in self._rules]
        for hook in sorted(self.now.given_up):
            self._total.notes[f"{hook} hung too often, and was not called in parts of the records"] = None
        try:
            for block in self._source.blocks(unit, self.wanted, self._account):
                self._read(block.data, block.left_out)
            self._end_tree(self._position)
            self._count_silent()
        finally:
            for rules, before in zip(self._rules, given_up, strict=True):
                rules.recover(before)
        return self._total.report(self.now.names, None if self.then is None else self.then.names, self._account)

    def _read(self, data: bytes, left_out: int) -> None:
        lines = data.split(b"\n")
        if not lines[-1]:
            lines.pop()
        # In a sound block each line begins with [" and ends with ]. Counting is much faster than looking at each line.
        if data.count(b'\n["') != len(lines) - 1 or data.count(b"]\n") != len(lines) or not data.startswith(b'["'):
            lines = self._sound_lines(lines)
        if self._tree is not None:
            self._tree.lines.keep(lines, 0, len(data))
        moments, structure = self._prefixes, _STRUCTURE
        base, self._left_out = self._position, left_out
        for index, line in enumerate(lines):
            if line.startswith(moments):
                self._moment(line, index, base + index)
            elif line.startswith(structure):
                self._structure(line, index, base + index, lines)
        self._position = base + len(lines)

    def _sound_lines(self, lines: list[bytes]) -> list[bytes]:
        """Return the lines that look like JSON arrays, and report the others. The entries of a tape are no mistake."""
        found = []
        is_tape = self._unit.file.endswith(".tape")
        for index, line in enumerate(lines):
            if line.startswith(b'["') and line.endswith(b"]"):
                found.append(line)
            elif line.strip() and not (is_tape and line.startswith(b"{")):
                why = "an entry of a tape in a file of moments" if line.startswith(b'{"entry"') else _NO_JSON
                number = self._position + self._dropped + index + 1
                self._account.skip(why, 0 if self._unit.start else number)
        self._dropped += len(lines) - len(found)
        return found

    def _skip(self, why: str, position: int) -> None:
        """Count a skipped line. Its number is known if the unit starts with the file and no line was dropped."""
        self._account.skip(why, 0 if self._unit.start or self._dropped else position + 1)

    def _structure(self, line: bytes, index: int, position: int, lines: list[bytes]) -> None:
        """Read a line that is not a moment, or the decision of a person."""
        kind, tree = line[2:5], self._tree
        try:
            if kind == b"run":
                self._run_line(line, index, position, lines)
                return
            if line.startswith(b'["hooks"'):
                found = _decode_hooks(line)
                self._hooks[found.digest] = found.hooks
            elif kind == b"hoo":
                if _decode_header(line).header.format > VERSION:
                    self._skip("a newer version of the format", position)
            elif tree is None:
                self._skip(_NO_RUN, position)
            elif kind == b"end":
                _, number, end = _decode_end(line)
                if number == 0:
                    tree.status = str(end.get("status", ""))
            elif kind == b"lab":
                label = _decode_label(line)
                tree.labels[label.label.call_id or f"#{label.n}"] = label.label
            else:
                self._decided(tree, _decode_moment(line))
                return  # this is a moment
        except _INVALID:
            self._skip(_BAD_FIELDS, position)
        if tree is not None:
            tree.others += 1

    def _run_line(self, line: bytes, index: int, position: int, lines: list[bytes]) -> None:
        number = int(line[7 : line.index(b",", 7)])
        if number == 0:
            self._end_tree(position)
            self._begin_tree(line, position, lines, index)
            self._tally.runs += 1
        elif self._tree is not None:
            self._tree.others += 1
            self._tally.nested += 1
        if self._tree is not None:
            self._tree.add_run(number, line)

    def _begin_tree(self, line: bytes, position: int, lines: list[bytes], index: int) -> None:
        test = self._test
        tree = self._tree = RunTree(position, self._clock, test.where, test.model, self.now.replaced)
        tree.lines.keep(lines, index, 0)
        tree.left_out = self._left_out
        tree.lines.is_partial = self._left_out > 0
        tree.is_old = bool(test.since) and decode_run(line).info.time < test.since
        if tree.is_old or test.where.filters_status:  # count it apart: it may turn out not to be wanted
            self._count_silent()
            self._tally = Tally()

    def _end_tree(self, position: int) -> None:
        """Add up the tree that ends before this line."""
        tree, self._tree = self._tree, None
        if tree is None:
            return
        if tree.lines.is_needed:
            raise _LinesNeededError
        tally = self._tally
        moments = position - tree.first - 1 - tree.others + tree.left_out
        sure = moments if tree.differs_at < 0 else min(tree.differs_at, moments)
        tally.moments += moments
        tally.guess += tree.guessed
        tally.exact += sure - tree.guessed
        tally.conditional += moments - sure
        tally.different += tree.differs_at >= 0
        self._add_labels(tree)
        if tally is not self._total:
            self._count_silent()
            if not tree.is_old and self._test.where.wants_status(tree.status):
                self._total.add(tally)
            self._tally = self._total

    # Judging one moment.

    def _moment(self, line: bytes, index: int, position: int) -> None:
        """Judge a line with a point that a hook listens to."""
        head = line[: line.find(b'"', line.find(b'",') + 3)]
        try:
            target = self._targets[head]
        except KeyError:
            target = self._new_target(head)
        if target is None:
            return
        tree, route = self._tree, target.now
        if tree is None:
            self._skip(_NO_RUN, position)
            return
        try:
            row = target.route.decode(line)
            run = tree.runs.get(row.run) or tree.run(row.run)
        except _INVALID as error:
            self._skip(_BAD_PAYLOAD if isinstance(error, msgspec.ValidationError) else _NO_JSON, position)
            tree.others += 1
            return
        if run is None:
            self._skip(_NO_RUN, position)
            tree.others += 1
            return
        payload = row.payload
        if target.route.has_ids:
            _set(payload, "ids", run.ids)
        if self._needs_requests:
            payload = _with_request(payload, row, run)
        tree.line = index
        if target.route.is_approval:
            self._decided(tree, _decode_moment(line))
        if not run.is_wanted or tree.is_old or (route is None and target.then is None):
            return
        self._number = number = self._number + 1
        if self._stuck and number in self._stuck:
            self._report_stuck(Moment(target.route, row, run, tree, payload, position))
            return
        self._tally.judged += 1
        self._clock.now = row.at - row.took
        PROBE.moment += 1
        PROBE.position[0] = number
        if (
            row.decisions is not None
            or row.verdict is not None
            or route is None
            or route.slow
            or target.then is not None
            or (row.notes is not None and (route.is_call or row.notes.inexact))
        ):
            self._compare(target, Moment(target.route, row, run, tree, payload, position))
            return
        # The usual case: nothing was decided then. If nothing is decided now, there is nothing more to do.
        first = self._call(route, run.now, payload)
        if first is None and not PROBE.reads and not PROBE.refusals and not tree.guessing:
            route.silent[tree.differs_at >= 0] += 1
            return
        moment = Moment(route, row, run, tree, payload, position)
        now = _NOTHING if first is None else self._fire(self.now, route, moment, run.now, first)
        if now is not None:
            self._conclude(moment, _NOTHING, now)

    def _new_target(self, head: bytes) -> Target | None:
        """Find the hooks for a point and a tool."""
        try:
            name, tool = _decode_head(head + b'"]')
        except _INVALID:
            return None
        point = known_point(name)
        now = then = None
        if point is not None and self._test.where.wants_moment(name, tool):
            now = self.now.route(point, tool)
            then = None if self.then is None else self.then.route(point, tool)
        route = now or then or (self._no_hooks if name == BEFORE_LLM and self._needs_requests else None)
        target = self._targets[head] = None if route is None else Target(now, then, route)
        return target

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

    def _compare(self, target: Target, moment: Moment) -> None:
        """Judge a moment at which a hook decided something then, or that is compared with a baseline."""
        recorded = self._recorded(moment)
        then: Outcome | None = recorded
        now: Outcome | None = recorded
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

    def _recorded(self, moment: Moment) -> Outcome:
        """Return the recorded decision. Its value comes from playing the decisions of the hooks once more."""
        verdict, point = moment.row.verdict, moment.route.point
        if verdict is None:
            return _NOTHING
        played = [played_entry(each, point, None, moment.failed_closed) for each in moment.row.decisions or ()]
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
                return Outcome(verdict.verb, verdict.hook, verdict.reason, outcome.value, outcome.payload)
        except _INVALID:
            pass  # a damaged decision
        return Outcome(verdict.verb, verdict.hook, verdict.reason, is_known=False)

    def _fire(
        self, rules: Rules, route: Route, moment: Moment, ctx: BacktestContext, first: HookOutcome | None = None
    ) -> Outcome | None:
        """Fire the point with the tested hooks and the recorded decisions; ``None`` if it could not be judged."""
        if first is not None and isinstance(first[2], _NOT_JUDGED):
            self._no_decision(first[0].name, first[2], moment)
            return None
        row, run = moment.row, moment.run
        kept = [decision for decision in row.decisions or () if decision.hook not in rules.replaced]
        chain = route.chain
        if kept:
            hooks = self._recorded_hooks(run.info.hooks)
            chain = rules.chain(route.point, kept, run.info.hooks, hooks, failed_closed=moment.failed_closed)
        is_edited = route.is_call and moment.payload.id in run.edited
        PROBE.active = True
        try:
            verdict, firing = self._dispatcher.fire(
                chain,
                route.point,
                moment.payload,
                ctx._scope,  # type: ignore[arg-type]
                no_retry=_no_retry(moment),
                between=_validation(moment),
                first=first,
                only_guards=is_edited,
                waits=route.waits,
            )
        except _NOT_JUDGED as error:
            self._no_decision(PROBE.hook, error, moment)
            return None
        finally:
            PROBE.active = False
        if verdict.error is not None or verdict.failures:
            self._note_failures(firing, verdict, moment)
        found = outcome_of(verdict)
        if is_edited and found.verb == HookAction.ASK:  # the questions about an edited call are already answered
            return _NOTHING
        return found

    def _recorded_hooks(self, digest: str) -> Sequence[HookInfo]:
        if digest and digest not in self._hooks:
            self._hooks[digest] = self._source.hooks(self._unit, digest)
        return self._hooks.get(digest, ())

    def _conclude(self, moment: Moment, then: Outcome, now: Outcome) -> None:
        """Count the difference between two decisions."""
        tree, route = moment.tree, moment.route
        kind = kind_of(then, now)
        guesses = self._guesses(moment, kind, then)
        certainty: Certainty = "guess" if guesses else "exact" if tree.differs_at < 0 else "conditional"
        if guesses and tree.differs_at < 0:
            tree.guessed += 1
        self._tally.guesses.update(guesses)
        numbers = [0, 0, 0]
        numbers[CERTAINTIES.index(certainty)] = 1
        hook = then.hook if kind.startswith("no_longer") else now.hook
        examples = self._tally.cell(hook, str(route.point), route.tool, kind, numbers)
        if route.is_call:
            tree.decided[moment.payload.id] = then.verb in STOPPING, now.verb in STOPPING, certainty
        if kind != "same":
            if len(examples) < EXAMPLES:
                examples.append(self._example(moment, certainty, then, now))
            self._diverge(moment)

    @staticmethod
    def _diverge(moment: Moment) -> None:
        """Remember the first moment of a tree at which a decision differs."""
        tree = moment.tree
        if tree.differs_at < 0:
            tree.differs_at = moment.index
            tree.differs_n = moment.row.n

    def _guesses(self, moment: Moment, kind: Kind, then: Outcome) -> list[tuple[str, str]]:
        """Return why the answer about a moment is a guess: hooks, and what they read."""
        tree, route = moment.tree, moment.route
        found = list(PROBE.reads)
        for hook, what in PROBE.refusals:
            self._tally.trouble(hook, "refused", shorten(what, 200), self._example(moment))
            found.append((hook, "what it was refused"))
        PROBE.reads.clear()
        PROBE.refusals.clear()
        names = [entry.name for entry, _, _ in route.calls]
        known = {hook for hook, _ in found}
        found += [(name, "what it read earlier in the run") for name in names if name in tree.guessing.keys() - known]
        tree.guessing.update(dict.fromkeys(known))
        notes = moment.row.notes
        if notes is not None and notes.inexact:
            found += [(name, f"a payload that is {_INEXACT[notes.inexact]} in the record") for name in names]
        if kind.startswith("no_longer") and then.hook in self.now.replaced:
            digest = moment.run.info.hooks
            order = self.now.order(str(route.point), digest, self._recorded_hooks(digest))
            later = not_called(order, then.hook, route.tool)
            found += [(name, f"nothing: it was not called then, because {then.hook} decided first") for name in later]
        return list(dict.fromkeys(found))

    def _example(
        self, moment: Moment, certainty: Certainty = "exact", then: Outcome = _NOTHING, now: Outcome = _NOTHING
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
        for target in self._targets.values():
            route = None if target is None else target.now
            if route is not None and route.silent != [0, 0]:
                self._tally.cell("", str(route.point), route.tool, "same", [*route.silent, 0])
                route.silent = [0, 0]

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
            self._tally.trouble(hook, problem, shorten(message, 200), example)

    def _no_decision(self, hook: str, error: BaseException, moment: Moment) -> None:
        """Report a hook that was interrupted, or that tried to end the process."""
        PROBE.reads.clear()
        PROBE.refusals.clear()
        if isinstance(error, SystemExit):
            self._report_problem(hook, "raised", describe(error), moment)
            return
        self._report_problem(hook, "timed_out", "it exceeded the time limit", moment)
        self._count_hang(hook)

    def _report_stuck(self, moment: Moment) -> None:
        hook, problem, message = self._stuck[self._number]
        self._report_problem(hook, problem, message, moment)
        self._count_hang(hook)

    def _report_problem(self, hook: str, problem: Problem, message: str, moment: Moment) -> None:
        self._tally.trouble(hook, problem, message, self._example(moment))
        self._account.skip(f"the hook {hook} did not judge the moment: {message}")

    def _count_hang(self, hook: str) -> None:
        """Stop calling a hook that hangs again and again: a rule that always hangs would take days."""
        self._hangs[hook] += 1
        if self._hangs[hook] >= MAX_HANGS:
            self._count_silent()
            self.give_up(hook)
            self._targets.clear()
            note = f"{hook} hung {MAX_HANGS} times in a part of the records, and was not called in its rest"
            self._total.notes[note] = None

    # Labels.

    def _decided(self, tree: RunTree, line: MomentLine) -> None:
        """Use the decision of a person as a label, and remember edited calls."""
        fields = _decode_fields(line.payload)
        call_id, decision = str(fields.get("call_id", "")), fields.get("decision")
        if decision == "edited" and (run := tree.run(line.run)) is not None:
            run.edited.add(call_id)
        elif decision in ("approved", "denied"):
            tree.labels.setdefault(call_id, Label(decision, call_id, str(fields.get("by", ""))))

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


class _LinesNeededError(Exception):
    """A hook read something for which the source must not leave out lines."""


def _recorded_decisions(tree: RunTree, keys: Iterable[str]) -> dict[str, DecidedCall]:
    """Return the decisions about calls that are labelled by position, or about which no tested hook decided."""
    found: dict[str, DecidedCall] = {}
    wanted = set(keys)
    for block, first in tree.lines.blocks if wanted else ():
        for line in block[first:]:
            if not line.startswith(b'["before_tool",'):
                continue
            try:
                moment = _decode_moment(line)
                call_id = str(_decode_fields(moment.payload).get("id", ""))
            except _INVALID:
                continue
            stopped = moment.verdict is not None and moment.verdict.verb in STOPPING
            certainty: Certainty = "conditional" if 0 <= tree.differs_n < moment.n else "exact"
            for key in wanted & {call_id, f"#{moment.n}"}:
                found[key] = tree.decided.get(call_id, (stopped, stopped, certainty))
    return found


def _with_request(payload: Any, row: Any, run: JudgedRun) -> Any:
    """Restore the messages of a request, and the request of a reply or failure."""
    if type(payload) is ModelRequest:
        payload = run.requests.restore(payload, row.notes)
        run.requests.settle(payload, row.decisions)
    elif type(payload) in (ModelReply, Failure):
        request = run.requests.sent.get(payload.purpose)
        if request is not None:
            _set(payload, "request", request)
    return payload


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


def _validation(moment: Moment) -> Callable[[Firing], None] | None:
    """Return what happens between rewriters and guards at ``before_tool``: the arguments are validated.

    The tool itself is not available, so only the recorded result for the recorded arguments is known.
    """
    payload, row = moment.payload, moment.row
    if type(payload) is not ToolCallRequest:
        return None
    checked = (row.notes or _NO_NOTES).checked
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
