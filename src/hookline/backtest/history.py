"""The state of a recorded run at one of its moments: messages, metadata and requests, from the moments before it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import msgspec

from .._base.frozen import History, empty, freeze
from .._kernel.payloads import ModelReply, ModelRequest, RunStart, ToolCallResult
from .._kernel.points import POINTS
from .._kernel.state import AgentResult
from .._kernel.values import Message
from ..records.format import Decision, MomentLine, Notes, RunInfo
from ..records.reading import changed_by, continued, decode_moment

KEPT_BYTES = 64 << 20
"""The size of a run up to which its lines are kept for hooks that look at earlier moments."""

_set = msgspec.structs.force_setattr
_decode_request = msgspec.json.Decoder(ModelRequest).decode
_decode_reply = msgspec.json.Decoder(ModelReply).decode
_decode_result = msgspec.json.Decoder(ToolCallResult).decode
_decode_start = msgspec.json.Decoder(RunStart).decode
_REJECTED = frozenset(("retry", "end", "failed"))
_AFTER_CALLS = frozenset(("before_step", "after_step", "on_stop", "on_run_end"))
assert POINTS.keys() >= _AFTER_CALLS


class Requests:
    """The requests of one run to the model, restored from what each of them added to the one before."""

    def __init__(self) -> None:
        self._last: ModelRequest | None = None
        self.sent: dict[str, ModelRequest] = {}
        """The last request of each purpose, as the hooks left it."""

    def restore(self, request: ModelRequest, notes: Notes | None) -> ModelRequest:
        """Add to a decoded request the messages and tools that the request before it already had."""
        before, self._last = self._last, request
        if before is None or notes is None:
            _set(request, "messages", History(request.messages))
            return request
        _set(request, "messages", continued(before.messages, notes.kept, request.messages))
        if notes.tools_kept:
            _set(request, "tools", before.tools)
        return request

    def complete(self, result: AgentResult[Any], notes: Notes | None) -> None:
        """Add the messages to a result that its record leaves out: the last ones of the last request."""
        if notes is not None and notes.kept and self._last is not None:
            messages = (*self._last.messages[-notes.kept :], *result.messages)
            _set(result, "messages", messages)

    def settle(self, request: ModelRequest, decisions: Iterable[Decision] | None) -> None:
        """Keep a restored request as the recorded hooks left it, for the reply or failure that follows."""
        self.sent[request.purpose] = request if decisions is None else changed_by(request, decisions)


class RestoredState:
    """The messages, metadata and system prompt of a run at one moment. ``missing`` says what could not be restored."""

    def __init__(self, info: RunInfo) -> None:
        self.messages: History[Message] = History()
        self.metadata: Mapping[str, Any] = freeze(info.metadata) if info.metadata else empty()
        self.system_prompt = info.system
        self.missing = "the messages of the run before its first model call"
        self._requests = Requests()
        self._calls: tuple[str, ...] = ()
        self._results: dict[str, Message] = {}

    def add(self, line: MomentLine, replaced: frozenset[str]) -> None:
        """Apply a moment that came before the one that is being judged."""
        point = line.point
        if point in _AFTER_CALLS:
            self._close_calls()
        if point == "before_llm":
            self._begin_call(line)
        elif point == "after_llm":
            self._add_reply(line)
        elif point == "after_tool":
            result = changed_by(_decode_result(line.payload), line.decisions)
            text = Message("tool", result.text, (), result.id, result.name, result.error is not None)
            if result.attachments and result.error is None:
                text = text.replace(attachments=result.attachments)
            self._results[result.id] = text
        elif point == "on_run_start":
            start = changed_by(_decode_start(line.payload), line.decisions)
            self.messages = self.messages.plus(Message("user", start.task, attachments=start.attachments))
        for decision in line.decisions or ():
            if decision.state is not None and decision.hook not in replaced:
                self._change(decision.state)

    def _begin_call(self, line: MomentLine) -> None:
        """Take the messages from a request: a request contains the whole conversation, after the system prompt."""
        self._close_calls()
        request = self._requests.restore(_decode_request(line.payload), line.notes)
        if request.purpose != "step" or request.attempt > 1:
            return  # the request of a hook, or one with a note about the last attempt
        messages = request.messages
        if messages and messages[0].role == "system":
            self.system_prompt = messages[0].content
            messages = History(messages[1:])
        self.messages = History(messages)
        self.missing = ""

    def _add_reply(self, line: MomentLine) -> None:
        if line.verdict is not None and line.verdict.verb in _REJECTED:
            return
        reply = changed_by(_decode_reply(line.payload), line.decisions)
        if reply.purpose == "step":
            self.messages = self.messages.plus(Message("assistant", reply.content, reply.tool_calls))
            self._calls = tuple(call.id for call in reply.tool_calls)

    def _close_calls(self) -> None:
        """Add the results of the calls in the order of the calls, as the loop does when all of them are finished."""
        results, self._results = self._results, {}
        calls, self._calls = self._calls, ()
        self.messages = self.messages.plus(*(results[call] for call in calls if call in results))

    def _change(self, changed: Mapping[str, Any]) -> None:
        if "metadata" in changed:
            self.metadata = freeze(changed["metadata"])
        if "system_prompt" in changed:
            self.system_prompt = str(changed["system_prompt"])
        if "messages" in changed:
            part = changed["messages"]
            new = msgspec.convert(part["new"], tuple[Message, ...])
            self.messages = History((*self.messages[: part["kept"]], *new))


class TreeLines:
    """The lines of a run tree up to the current one, for hooks that look back. They are decoded only then."""

    # Class attributes as defaults: most trees never change them.
    _size = 0
    _lost = False
    _next = (0, 0)
    is_partial = False
    """Whether the source left out moments that no hook listens to."""
    is_needed = False
    """Whether a hook looked at earlier moments, although some are left out."""

    def __init__(self) -> None:
        self._blocks: list[tuple[bytes, int]] = []
        self._states: dict[int, RestoredState] = {}

    def keep(self, data: bytes, start: int) -> None:
        """Keep the lines of a block from this position on."""
        self._size += len(data) - start
        if self._size > KEPT_BYTES:
            self._blocks, self._lost = [], True
        if not self._lost:
            self._blocks.append((data, start))

    def lines(self) -> Iterator[bytes]:
        """Return all lines of the kept blocks. The last block may contain lines of the next tree."""
        for number, (data, start) in enumerate(self._blocks):
            end = -1 if number < len(self._blocks) - 1 else data.find(b'\n["run",0,', start + 1)
            yield from data[start : len(data) if end < 0 else end].split(b"\n")

    def state(self, run: int, infos: Mapping[int, RunInfo], end: int, replaced: frozenset[str]) -> RestoredState:
        """Return the state of a run at the line before this position of the last block, which is being judged."""
        if self.is_partial:
            self.is_needed = True  # the unit is judged again with all its lines
            return RestoredState(infos[run])
        if self._lost:
            state = RestoredState(infos[run])
            state.missing = "the messages of a very long run"
            return state
        last = len(self._blocks) - 1
        position = self._blocks[last][0].rfind(b"\n", 0, max(end - 1, 0)) + 1
        first, begin = self._next
        for number in range(first, last + 1):
            data, start = self._blocks[number]
            end = position if number == last else len(data)
            for line in data[max(start, begin) : end].split(b"\n"):
                self._add(line, infos, replaced)
            begin = 0
        self._next = last, max(position, self._next[1] if first == last else 0)
        state = self._states.setdefault(run, RestoredState(infos[run]))
        data = self._blocks[last][0]
        if data.startswith(b'["before_llm",', position) and self._next[1] == position:
            end = data.find(b"\n", position)
            self._next = last, len(data) if end < 0 else end  # a request shows the messages already at its own moment
            self._add(data[position : self._next[1]], infos, replaced)
        return state

    def _add(self, raw: bytes, infos: Mapping[int, RunInfo], replaced: frozenset[str]) -> None:
        try:
            moment = decode_moment(raw)
            if moment.run not in self._states:
                self._states[moment.run] = RestoredState(infos[moment.run])
            self._states[moment.run].add(moment, replaced)
        except (msgspec.DecodeError, KeyError, TypeError, ValueError):
            return  # not a moment, or a damaged one, which the account already has
