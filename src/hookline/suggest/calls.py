"""The calls in records, with what each of them could have known of the calls before it."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec

from ..backtest.sources import Source, Unit, UnitAccount, Wanted
from ..records import format as fmt
from ..records.account import Skipped
from ..records.reading import INVALID, Part, decode_label, decode_run
from ..stores.callers import user_of

DAY = 86400.0
_REFUSED = frozenset(("block", "answer", "end", "stop", "invalid"))
"""Verdicts after which a call does not run."""
_BEFORE_TOOL = b'["before_tool",'
_RUN = b'["run",'
_LABEL = b'["label",'


class Run:
    """A recorded run. ``tree`` is the outermost run around it; runs of one ``conversation`` share their history."""

    __slots__ = ("agent", "caller", "conversation", "file", "id", "task", "time", "tree")

    def __init__(self, info: fmt.RunInfo, file: str, tree: Run | None) -> None:
        ids = info.ids
        self.id, self.agent, self.file, self.task = ids.run_id, ids.agent, file, info.task
        self.time = info.time
        self.tree: Run = self if tree is None else tree
        self.caller = user_of(info.metadata) if isinstance(info.metadata, Mapping) else ""
        if not self.caller and tree is not None:
            self.caller = tree.caller
        self.conversation: str = (ids.session_id or ids.run_id) if tree is None else tree.conversation


class Call:
    """A call of a tool.

    ``is_bad`` says that a person denied it or labelled it as bad. ``has_run`` is false if a hook blocked or answered
    it. ``seen`` are the tools that were called before it in the conversation, ``own`` is the number of these calls that
    were of the same tool, and ``day`` the number of calls of this tool by the caller in the 24 hours before.
    """

    __slots__ = (
        "arguments",
        "day",
        "has_run",
        "id",
        "is_bad",
        "is_inexact",
        "n",
        "own",
        "run",
        "same",
        "seen",
        "time",
        "tool",
    )

    def __init__(self, tool: str, arguments: Mapping[str, Any], run: Run, id: str, n: int, time: float) -> None:
        self.tool, self.arguments, self.run, self.id, self.n, self.time = tool, arguments, run, id, n, time
        self.is_bad = self.is_inexact = False
        self.has_run = True
        self.seen: frozenset[str] = frozenset()
        self.own = self.day = 0
        self.same: frozenset[Same] = frozenset()
        """Arguments of earlier calls that had the value of an argument of this one."""


Same = tuple[str, str, str]
"""An argument of this call, and the tool and the argument of an earlier call that had the same value."""


class _Payload(msgspec.Struct, frozen=True):
    id: str = ""
    name: str = ""
    arguments: dict[str, Any] = {}
    attempt: int = 1


class _Line(msgspec.Struct, frozen=True, array_like=True):
    point: str
    tool: str
    run: int
    n: int
    at: float
    took: float
    payload: _Payload
    decisions: msgspec.Raw = msgspec.Raw(b"null")
    verdict: fmt.RecordedVerdict | None = None
    notes: fmt.Notes | None = None


_decode = msgspec.json.Decoder(_Line).decode
_decode_decisions = msgspec.json.Decoder(tuple[fmt.Decision, ...] | None).decode


class Calls:
    """All calls of records, those of a conversation in order.

    Args:
        source: the records.
        labels: labels of people beside the records: by run id, then by call id or ``#n``.
        since: leave out runs that started before this Unix time.
    """

    def __init__(self, source: Source, labels: Mapping[str, Mapping[str, fmt.Label]], since: float = 0.0) -> None:
        self._source, self._labels, self._since = source, labels, since
        self._replaced = source.replaced()
        self._values: dict[str, str] = {}
        self.calls: list[Call] = []
        self.runs: list[Run] = []
        self.moments = self.files = 0
        skipped: list[Skipped] = []
        units = source.units()
        for unit in units:
            account = UnitAccount(unit.file)
            self._read(unit, account)
            skipped += account.entries()
        self.skipped = (*source.skipped(), *skipped)
        self.files = len({unit.file for unit in units})
        self.calls.sort(key=lambda call: (call.run.tree.time, call.time))
        remember(self.calls)

    def _read(self, unit: Unit, account: UnitAccount) -> None:
        tree: dict[int, Run] = {}
        by_place: dict[int, Call] = {}
        by_id: dict[tuple[int, str], Call] = {}
        for line, position, data in _lines(self._source, unit, account):
            try:
                if line.startswith(_BEFORE_TOOL):
                    self.moments += 1
                    self._add(_decode(line), tree, by_place, by_id)
                elif line.startswith(_RUN):
                    found = decode_run(line)
                    if found.run == 0:
                        tree, by_place, by_id = {}, {}, {}
                        if not self._is_wanted(found.info):
                            continue
                    elif 0 not in tree:
                        continue
                    run = tree[found.run] = Run(found.info, unit.file, tree.get(0))
                    self.runs.append(run)
                elif line.startswith(_LABEL):
                    label = decode_label(line)
                    call = by_place.get(label.n) or by_id.get((label.run, label.label.call_id))
                    if call is not None:
                        call.is_bad = label.label.is_bad
                else:
                    self.moments += not line.startswith(fmt.OTHER_LINES)
            except INVALID:
                account.skip_in(data, position, "the line is not a line of a record")

    def _is_wanted(self, info: fmt.RunInfo) -> bool:
        part: Part = (info.ids.run_id, info.time)
        return info.time >= self._since and part not in self._replaced

    def _add(
        self, line: _Line, tree: Mapping[int, Run], by_place: dict[int, Call], by_id: dict[tuple[int, str], Call]
    ) -> None:
        run = tree.get(line.run)
        if run is None or (line.payload.attempt > 1 and (line.run, line.payload.id) in by_id):
            return
        arguments: Mapping[str, Any] = line.payload.arguments
        for decision in _decode_decisions(line.decisions) or ():
            arguments = (decision.changed or {}).get("arguments", arguments)
        notes = line.notes or fmt.NO_NOTES
        if notes.checked is not None:
            arguments = notes.checked
        time = run.tree.time + line.at if run.tree.time else 0.0
        call = Call(line.tool, self._shared(arguments), run, line.payload.id, line.n, time)
        call.has_run = line.verdict is None or line.verdict.verb not in _REFUSED
        call.is_inexact = notes.inexact in ("redacted", "cut")
        given = self._labels.get(run.id)
        if given:
            label = given.get(call.id) or given.get(f"#{line.n}")
            call.is_bad = label is not None and label.is_bad
        by_place[line.n] = by_id[line.run, call.id] = call
        self.calls.append(call)

    def _shared(self, arguments: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return arguments whose texts are shared with earlier calls, so that a long history fits into the memory."""
        share = self._values.setdefault
        return {
            name: share(value, value) if type(value) is str and len(value) < 200 else value
            for name, value in arguments.items()
        }


def _lines(source: Source, unit: Unit, account: UnitAccount) -> Iterator[tuple[bytes, int, bytes]]:
    """Yield the lines of moments and runs, each with its position in its block."""
    wanted = Wanted({"before_tool": ()}, labelled=True)
    for block in source.blocks(unit, wanted, account):
        position = 0
        for line in block.data.split(b"\n"):
            if line.startswith(b"["):
                yield line, position, block.data
            position += len(line) + 1


class _Conversation:
    __slots__ = ("counts", "seen", "values")

    def __init__(self) -> None:
        self.seen: frozenset[str] = frozenset()
        self.counts: Counter[str] = Counter()
        self.values: dict[Any, set[tuple[str, str]]] = {}


MAX_VALUES = 400
"""Values of a conversation that are compared with later ones."""


def remember(calls: Sequence[Call]) -> None:
    """Note for each call which calls came before it. Those of a conversation must be in order."""
    conversations: dict[str, _Conversation] = {}
    days: dict[tuple[str, str], deque[float]] = {}
    sets: dict[tuple[frozenset[str], str], frozenset[str]] = {}
    sames: dict[frozenset[Same], frozenset[Same]] = {}
    for call in calls:
        past = conversations.get(call.run.conversation)
        if past is None:
            past = conversations[call.run.conversation] = _Conversation()
        call.seen, call.own = past.seen, past.counts[call.tool]
        pairs = [(name, value) for name, value in call.arguments.items() if type(value) is str and value]
        if past.values:
            found = frozenset((name, *other) for name, value in pairs for other in past.values.get(value, ()))
            call.same = sames.setdefault(found, found)
        if not call.has_run:
            continue
        past.counts[call.tool] += 1
        if call.tool not in past.seen:
            key = past.seen, call.tool
            past.seen = sets[key] if key in sets else sets.setdefault(key, past.seen | {call.tool})
        for name, value in pairs:
            if value in past.values or len(past.values) < MAX_VALUES:
                past.values.setdefault(value, set()).add((call.tool, name))
    for call in sorted(calls, key=lambda call: call.time):
        if not call.time:
            continue
        times = days.setdefault((call.run.caller, call.tool), deque())
        while times and times[0] <= call.time - DAY:
            times.popleft()
        call.day = len(times)
        if call.has_run:
            times.append(call.time)
