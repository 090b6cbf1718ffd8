"""The runs that importers build from logs, and their lines in a record."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from pathlib import Path
from typing import Any

import msgspec

from .._base.frozen import any_digest, parse_object
from .._kernel.values import Ids, Usage
from ..records.format import (
    NO_NOTES,
    Decision,
    HookAtPoint,
    HookInfo,
    Label,
    Notes,
    RecordedVerdict,
    RunEnd,
    RunInfo,
    ToolInfo,
)
from ..records.redaction import NEVER_SENSITIVE, Redacted, Redaction

POINTS = ("on_run_start", "before_llm", "after_llm", "before_tool", "after_tool", "on_run_end")
"""The points that an imported run has moments of."""

Json = dict[str, Any]
_encode = msgspec.json.Encoder().encode
_FIRST = b'["run",0,'
_BETWEEN = (b'["hookline",', b'["hooks",')
"""Lines that belong to no run: the header, and hooks, which are written once."""


class Moment(msgspec.Struct):
    """A moment of an imported run. ``missing`` names the fields of the payload that the log does not contain."""

    point: str
    tool: str
    time: float
    payload: Json
    missing: tuple[str, ...] = ()
    kept: int = 0
    tools_kept: bool = False
    decisions: tuple[Decision, ...] = ()
    n: int = -1


class CallLabel(msgspec.Struct):
    """A person's decision about a call."""

    label: Label
    moment: Moment


class Call(msgspec.Struct):
    """A tool call of a run: the call in the model's reply, its moment at ``before_tool``, and whether it has a result.

    The moment is ``None`` until the call is added to the run.
    """

    id: str
    name: str
    arguments: Json
    raw: str | None = None
    moment: Moment | None = None
    time: float = 0.0
    answered: bool = False

    @classmethod
    def of(cls, id: Any, name: Any, arguments: Any) -> Call:
        """Make a call from what a model sent: arguments that are not a JSON object are kept as text."""
        parsed, raw = parse_object(arguments if arguments is not None else {})
        return cls(str(id or ""), str(name or ""), dict(parsed), raw)

    def as_json(self) -> Json:
        """Return the call as it is in a message."""
        fields: Json = {"id": self.id, "name": self.name, "arguments": self.arguments}
        return fields if self.raw is None else fields | {"raw": self.raw}


class ImportedRun:
    """A run of another system. An importer adds what happened, in order; :class:`RunEncoder` writes its lines.

    Args:
        ids: the ids of the run.
        time: Unix time of the start; 0 if the log has no times.
        task: the user's message that started the run.
    """

    def __init__(self, ids: Ids, *, time: float = 0.0, task: str = "") -> None:
        self.ids, self.time, self.task = ids, time, task
        self.system = self.model = self.provider = ""
        self.metadata: Json = {}
        self.tools: dict[str, None] = {}
        self.call_id = ""
        self.items: list[Moment | CallLabel | ImportedRun] = []
        self.calls: dict[str, Call] = {}
        self._all_calls: list[Call] = []
        self.transcript: list[Json] = []
        self.usage = Usage()
        self.reply_text = ""
        self.hop = -1
        self.end: RunEnd | None = None
        self._sent = 0
        self._tool_specs: Sequence[Json] = ()

    def start(self) -> None:
        """Add ``on_run_start``."""
        self.items.append(Moment("on_run_start", "", self.time, {"task": self.task}))

    def say(self, message: Json) -> None:
        """Add a message that the next request contains."""
        self.transcript.append(message)

    def set_messages(self, messages: list[Json]) -> None:
        """Set all messages of the next request. Those at the start of the previous request are not written again."""
        before, same = self.transcript[: self._sent], 0
        while same < min(len(before), len(messages)) and before[same] == messages[same]:
            same += 1
        self.transcript, self._sent = list(messages), same

    def ask(self, time: float, request: Json, missing: tuple[str, ...], tools: Sequence[Json] = ()) -> None:
        """Add ``before_llm`` for the messages so far. ``request`` has the other fields of the request."""
        if not request.get("purpose"):
            self.hop += 1
        new = self.transcript[self._sent :]
        moment = Moment("before_llm", "", time, {"messages": new, **_without_empty(request)}, missing, self._sent)
        if self.hop > 0:
            moment.payload["hop"] = self.hop
        if tools and tools == self._tool_specs:
            moment.tools_kept = True
        elif tools:
            moment.payload["tools"] = self._tool_specs = tools
            self.tools.update(dict.fromkeys(str(tool.get("name", "")) for tool in tools))
        self._sent = len(self.transcript)
        self.items.append(moment)

    def reply(self, time: float, content: str, calls: Sequence[Call], reply: Json, missing: tuple[str, ...]) -> None:
        """Add ``after_llm``. ``reply`` has the other fields; its calls are added with :meth:`call`."""
        payload: Json = {"content": content} if content else {}
        if calls:
            payload["tool_calls"] = [call.as_json() for call in calls]
        payload |= _without_empty(reply)
        if self.hop > 0:
            payload["hop"] = self.hop
        usage = payload.get("usage")
        if usage is not None:
            self.usage += usage
        self.items.append(Moment("after_llm", "", time, payload, missing))
        if not reply.get("purpose"):
            self.say(_without_empty({"role": "assistant", "content": content, "tool_calls": payload.get("tool_calls")}))
            self.reply_text = content or self.reply_text

    def call(self, time: float, call: Call, missing: tuple[str, ...] = ()) -> None:
        """Add ``before_tool``."""
        payload = call.as_json()
        if self.hop > 0:
            payload["hop"] = self.hop
        call.moment, call.time = Moment("before_tool", call.name, time, payload, missing), time
        self.calls[call.id] = call
        self._all_calls.append(call)
        self.tools[call.name] = None
        self.items.append(call.moment)

    def result(
        self,
        time: float,
        call: Call,
        text: str,
        *,
        outcome: str = "ok",
        duration: float = 0.0,
        missing: tuple[str, ...],
    ) -> None:
        """Add ``after_tool`` and the message with the result."""
        call.answered = True
        payload: Json = {"id": call.id, "name": call.name, "arguments": call.arguments}
        failed = outcome != "ok"
        payload |= {"error": text, "outcome": outcome} if failed else {"result": text}
        if duration > 0:
            payload["duration"] = round(duration, 6)
        if self.hop > 0:
            payload["hop"] = self.hop
        self.items.append(Moment("after_tool", call.name, time, payload, missing))
        message: Json = {"role": "tool", "content": text, "call_id": call.id, "name": call.name}
        self.say(message | {"is_error": True} if failed else message)

    def decide(self, moment: Moment, decision: Decision) -> None:
        """Record what a rule of the other system made of a moment. The decision must be complete: it is played back."""
        moment.decisions = (*moment.decisions, decision)

    def label(self, call: Call, label: Label) -> None:
        """Record what a person said about a call."""
        if call.moment is not None:
            self.items.append(CallLabel(label, call.moment))

    def finish(self, time: float, status: str, *, cost: float | None = None, missing: tuple[str, ...]) -> None:
        """Add ``on_run_end`` and the end of the run. A run that is never finished is an interrupted one."""
        for item in self.items:
            if isinstance(item, ImportedRun):
                self.usage += item.usage  # as in Hookline, the usage of a run includes that of its subagents
        elapsed = max(0.0, time - self.time) if time and self.time else 0.0
        names = tuple(call.name for call in self._all_calls)
        good = sum(
            1
            for item in self.items
            if isinstance(item, Moment) and item.point == "after_tool" and "error" not in item.payload
        )
        self.end = RunEnd(
            status=status,
            reply=self.reply_text,
            steps=self.hop + 1,
            tool_calls=len(names),
            usage=self.usage,
            cost=cost,
            elapsed=round(elapsed, 6),
        )
        result = {
            "reply": self.reply_text,
            "status": status,
            "task": self.task,
            "usage": self.usage,
            "tool_calls": len(names),
            "tool_names": names,
            "successful_tool_calls": good,
            "elapsed": round(elapsed, 6),
        }
        payload = _without_empty(result) | {"cost": cost}
        self.items.append(Moment("on_run_end", "", time, payload, missing))

    @property
    def unanswered(self) -> int:
        """The number of calls without a result."""
        return sum(not call.answered for call in self._all_calls)

    @property
    def hooks(self) -> tuple[HookInfo, ...]:
        """The rules of the other system that decided something in this run or in its nested runs."""
        found: dict[str, dict[str, str]] = {}
        for run in self.tree():
            for item in run.items:
                if isinstance(item, Moment):
                    for decision in item.decisions:
                        found.setdefault(decision.hook, {})[item.point] = decision.phase
        return tuple(
            HookInfo(name, {point: HookAtPoint(phase=phase) for point, phase in sorted(points.items())})
            for name, points in sorted(found.items())
        )

    def tree(self) -> Iterator[ImportedRun]:
        """Yield this run and all runs inside it."""
        yield self
        for item in self.items:
            if isinstance(item, ImportedRun):
                yield from item.tree()


class RunEncoder:
    """Encodes imported runs as lines of a record.

    Args:
        redaction: replaces sensitive texts, and shortens long ones.
        known: digests of the runs that were imported before, which are not encoded again.
    """

    def __init__(self, redaction: Redaction, known: Set[bytes] = frozenset()) -> None:
        self._redacted = Redacted(redaction)
        self._known = known
        self._hooks: set[str] = set()
        self.runs = self.moments = self.labels = 0
        self.repeated = 0
        """The number of outermost runs that were imported before."""

    def encode(self, run: ImportedRun) -> bytes:
        """Return the lines of a run with its nested runs; nothing if it was imported before."""
        lines: list[bytes] = []
        hooks = run.hooks
        key = any_digest([msgspec.to_builtins(hook) for hook in hooks])[:12] if hooks else ""
        self._block = _Block(run.time, key)
        counts = self.runs, self.moments, self.labels
        self._run(run, None, lines)
        lines.append(b"")
        encoded = b"\n".join(lines)
        if self._known and _digest(encoded) in self._known:
            self.runs, self.moments, self.labels = counts
            self.repeated += 1
            return b""
        if hooks and key not in self._hooks:
            self._hooks.add(key)
            encoded = _encode(("hooks", key, hooks)) + b"\n" + encoded
        return encoded

    def _run(self, run: ImportedRun, outer: int | None, lines: list[bytes]) -> None:
        block = self._block
        number, block.runs = block.runs, block.runs + 1
        info = RunInfo(
            ids=run.ids,
            time=run.time,
            task=self._cleaned(run.task),
            system=self._cleaned(run.system),
            model=run.model,
            provider=run.provider,
            metadata=self._cleaned(run.metadata) or None,
            tools=tuple(ToolInfo(self._cleaned(name)) for name in run.tools),
            hooks=block.hooks,
            points=POINTS,
            outer=outer,
            call_id=run.call_id,
            at=block.at(run.time),
        )
        lines.append(_encode(("run", number, info)))
        self.runs += 1
        for item in run.items:
            if isinstance(item, ImportedRun):
                self._run(item, number, lines)
            elif isinstance(item, Moment):
                lines.append(self._moment(item, number))
            else:
                label = item.label.replace(note=self._cleaned(item.label.note))
                lines.append(_encode(("label", self._cleaned(item.moment.tool), number, item.moment.n, label)))
                self.labels += 1
        if run.end is not None:
            end, clean = run.end, self._cleaned
            end = end.replace(reply=clean(end.reply), stop_message=clean(end.stop_message))
            lines.append(_encode(("end", number, end)))

    def _moment(self, moment: Moment, run: int) -> bytes:
        block = self._block
        moment.n, block.moments = block.moments, block.moments + 1
        self.moments += 1
        self._redacted.how = ""
        payload = self._fields(moment.payload)
        notes = Notes(
            kept=moment.kept,
            tools_kept=moment.tools_kept,
            inexact=self._redacted.how or ("partial" if moment.missing else ""),
            missing=moment.missing,
        )
        line: list[Any] = [moment.point, self._cleaned(moment.tool), run, moment.n, block.at(moment.time), 0, payload]
        if moment.decisions:
            decisions = [
                each.replace(
                    reason=self._cleaned(each.reason), value=self._cleaned(each.value), error=self._cleaned(each.error)
                )
                for each in moment.decisions
            ]
            last = decisions[-1]
            line += [decisions, RecordedVerdict(last.verb, last.hook, last.reason)]
        if notes != NO_NOTES:
            line += [None] * (9 - len(line)) + [notes]
        return _encode(line)

    def _fields(self, fields: Json) -> Json:
        """Return the fields of a payload, message or call without sensitive texts."""
        clean = self._redacted.value
        return {
            name: value
            if name in NEVER_SENSITIVE
            else [self._fields(each) for each in value]
            if name in ("messages", "tool_calls", "tools") and isinstance(value, list)
            else clean(value)
            for name, value in fields.items()
        }

    def _cleaned(self, value: Any) -> Any:
        return self._redacted.value(value) if value else value


def known_runs(files: Iterable[Path]) -> set[bytes]:
    """Return digests of the runs in files that earlier imports wrote."""
    found = set()
    for file in files:
        block: list[bytes] = []
        with file.open("rb") as lines:
            for line in lines:
                if line.startswith(_FIRST):
                    found.add(_digest(b"".join(block)))
                    block.clear()
                if not line.startswith(_BETWEEN):
                    block.append(line)
        found.add(_digest(b"".join(block)))
    return found


def _digest(lines: bytes) -> bytes:
    return hashlib.blake2b(lines, digest_size=16).digest()


class _Block(msgspec.Struct):
    """The numbers of the runs and moments of a block."""

    time: float
    hooks: str
    runs: int = 0
    moments: int = 0

    def at(self, time: float) -> float:
        """Return the seconds since the start of the block; 0 if the log has no times."""
        return round(max(0.0, time - self.time), 6) if time and self.time else 0.0


def _without_empty(fields: Mapping[str, Any]) -> Json:
    return {name: value for name, value in fields.items() if value not in (None, "", [], (), {})}
