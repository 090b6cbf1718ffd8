"""Encode the fires of a run as lines of a record.

The work per fire is kept small, because recording may stay on in production: a payload is reduced to the fields that
differ from their defaults, a request to its new messages, and each line is encoded once.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count, islice
from operator import attrgetter
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from .._base.frozen import History, json_encoder, plain, scrub
from .._kernel.fire_observers import CallReport, FireObserver, FireReport
from .._kernel.hook import function_of
from .._kernel.payloads import (
    ApprovalDecision,
    ApprovalRequest,
    ErrorReport,
    ModelReply,
    ModelRequest,
    RunStart,
    Stopping,
    ToolCallRequest,
    ToolCallResult,
)
from .._kernel.points import POINTS
from .._kernel.registry import HookStack
from .._kernel.results import HookAction, HookResult
from .._kernel.state import AgentResult, AgentState
from .._kernel.values import Ids, Message
from ..tools._tool import Tool
from ..tools.registry import ToolRegistry
from . import format as fmt
from .labels import is_person
from .redaction import Redacted, text_fields
from .rules import hook_digest, rule_of

log = logging.getLogger("hookline")

_STATE_PARTS = ("messages", "metadata", "system_prompt", "response_format")
_RESULTS = frozenset((ModelReply, ToolCallResult, AgentResult, RunStart, Stopping))
"""Payloads after which the run does not wait: another moment follows, or the end of the run."""
_REQUESTS = (ModelReply, ErrorReport)
"""Payloads whose ``request`` a reader restores from the previous ``before_llm``."""

_encode = json_encoder.encode
_now = time.perf_counter


class _SlimMessage(msgspec.Struct, omit_defaults=True, gc=False):
    """A message without the fields that have their default value."""

    role: str
    content: str = ""
    tool_calls: Any = ()
    call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    hook: str | None = None
    attachments: Any = ()


class _SlimRequest(msgspec.Struct, omit_defaults=True, gc=False):
    """A request without default values, tools that are known, and messages that are known."""

    messages: list[_SlimMessage]
    model: str
    hop: int = 0
    attempt: int = 1
    purpose: str = "step"
    tools: Any = None
    response_format: Any = None
    tool_choice: str | None = None
    params: Any = None


_message_fields = attrgetter(*_SlimMessage.__struct_fields__)


def _slim_message(message: Message) -> _SlimMessage:
    return _SlimMessage(*_message_fields(message))


class _Form:
    """How a class of payloads is recorded: without ids, requests and the fields that have their default value.

    ``slim`` is a class with the recorded fields, ``texts`` the fields that may contain sensitive texts.
    """

    def __init__(self, cls: type[msgspec.Struct]) -> None:
        fields = [field for field in msgspec.structs.fields(cls) if _is_recorded(cls, field)]
        self.names = tuple(field.name for field in fields)
        self.slim = msgspec.defstruct(
            f"Slim{cls.__name__}",
            [(f.name, Any) if f.required else (f.name, Any, _default(f)) for f in fields],
            omit_defaults=True,
            gc=False,
        )
        read = ["output_or_none" if cls is AgentResult and name == "output" else name for name in self.names]
        get = attrgetter(*read) if read else lambda payload: ()
        self.values: Callable[[Any], Sequence[Any]] = get if len(fields) != 1 else lambda payload: (get(payload),)
        self.texts = tuple(name for name in text_fields(cls) if name in self.names)
        self.tool = next((name for name in ("tool", "name") if name in self.names), "") if _is_about_tool(cls) else ""


def _is_recorded(cls: type, field: Any) -> bool:
    # The ids of the run are in its line; other ids, as those of a subagent, are part of the payload.
    return not (field.name == "ids" and field.type is Ids) and not (cls in _REQUESTS and field.name == "request")


def _default(field: Any) -> Any:
    """Return a default value that the encoder recognises: it compares constants, and empty lists and dicts."""
    if field.default is not msgspec.NODEFAULT:
        return field.default
    return msgspec.field(default_factory=field.default_factory)


_forms: dict[type, _Form] = {}


def _form(cls: type[msgspec.Struct]) -> _Form:
    found = _forms.get(cls)
    if found is None:
        found = _forms[cls] = _Form(cls)
    return found


def slim(payload: Any) -> Any:
    """Return a payload without ids, requests and the fields that have their default value, for the encoder."""
    form = _form(type(payload))
    return form.slim(*form.values(payload))


def _is_about_tool(cls: type[Any]) -> bool:
    return any(point.tool and point.payload is cls for point in POINTS.values())


def new_messages(before: Sequence[Message], now: Sequence[Message]) -> tuple[int, Sequence[Message]]:
    """Return how many messages at the beginning are those of ``before``, and the others.

    For a request that continues the previous one, as usual, this takes a time that depends only on the new messages.
    """
    if type(now) is History:
        tail = now.tail_after(before)
        if tail is not None:
            return len(now) - len(tail), tail
    kept = 0
    for old, new in zip(before, now, strict=False):
        if old is not new and old != new:
            break
        kept += 1
    return kept, now[kept:]


def changes(before: Any, after: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return the new values of the fields that differ; messages as ``{"kept": n, "new": […]}``."""
    found: dict[str, Any] = {}
    stored, changed = msgspec.structs.asdict(before), msgspec.structs.asdict(after)
    for name in names:
        old, new = stored[name], changed[name]
        if old is new or old == new:
            continue
        if name == "messages":
            kept, added = new_messages(old, new)
            found[name] = {"kept": kept, "new": [_slim_message(message) for message in added]}
        else:
            found[name] = new
    return found


_REQUEST_TEXTS = ("response_format", "params")
_RUN_TEXTS = ("task", "system", "metadata")
_RESULT_TEXTS = ("reply", "stop", "hook_ended", "task", "errors", "output", "tool_names")
_END_TEXTS = ("reply", "stop_message")


@lru_cache(maxsize=32)
def _names_of(points: frozenset[str]) -> Mapping[str, str]:
    return {point: str.__str__(point) for point in points}


class RunTree:
    """The lines of an outermost run and its nested runs.

    Args:
        write: appends a line to the record. It must not raise.
        hold: appends a line that may be written together with the next one; by default like ``write``.
        take: appends the items of a line, for a record that encodes many lines at once; then the others are not called.
    """

    def __init__(
        self,
        write: Callable[[bytes], object] = lambda data: None,
        hold: Callable[[bytes], object] | None = None,
        take: Callable[[tuple[Any, ...]], object] | None = None,
    ) -> None:
        self.write = write
        self.hold = write if hold is None else hold
        self.take = take
        self.positions = count()
        self.numbers = count()
        self.started = time.perf_counter()

    def line(self, *items: Any) -> None:
        """Write one line; together with the next one if possible."""
        if self.take is not None:
            self.take(items)
        else:
            self.hold(encode_line(items))


def encode_line(items: Any) -> bytes:
    """Encode a line: the items of an array, or a struct. Invalid Unicode is replaced."""
    try:
        return _encode(items) + b"\n"
    except UnicodeEncodeError:
        return _encode(scrub(plain(items))) + b"\n"


def without_payload(line: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the items of a moment whose payload cannot be encoded."""
    point = POINTS.get(line[0])
    missing = () if point is None else _form(point.payload).names
    return (*line[:6], {}, None, *(line[8:9] or (None,)), fmt.Notes(inexact="partial", missing=missing), *line[10:])


class MomentEncoder(FireObserver):
    """Records the fires of one run.

    Args:
        tree: the lines of the run and the runs around it.
        info: the input of the run.
        points: the points to record.
        redacted: replaces sensitive texts; ``None`` to record them.
        place: returns the last item of each moment in a tape; called just before the moment is written.
    """

    wants_time = True

    def __init__(
        self,
        tree: RunTree,
        info: fmt.RunInfo,
        points: frozenset[str],
        redacted: Redacted | None = None,
        place: Callable[[], Any] | None = None,
    ) -> None:
        self._tree = tree
        self._redacted = redacted
        self._place = place
        self._names = _names_of(points)
        """The names of the points as plain strings, which the encoder accepts."""
        self.points = points
        self.number = next(tree.numbers)
        self.request = ModelRequest()
        """The last request, as it arrived at ``before_llm``."""
        self._asked: dict[str, tuple[str, int]] = {}
        """The tools and positions of calls that wait for an approval, by their ids."""
        if redacted is not None:
            info = redacted.replaced(info, _RUN_TEXTS)
        tree.line("run", self.number, info)

    def fire_ended(self, fire: FireReport) -> None:
        """Record a fire."""
        arrived, verdict = fire.payload, fire.verdict
        cls = type(arrived)
        name = self._names[fire.point]
        took = fire.took and round(fire.took, 7)
        how = None
        if verdict.action is not HookAction.CONT:
            how = fmt.RecordedVerdict(str(verdict.action), verdict.hook, verdict.reason)
        try:
            decided = last = checked = None
            if fire.calls and (results := fire.results):
                decided, last = _decisions(results, arrived)
            if cls is ToolCallRequest and verdict.action is not HookAction.INVALID:
                final = verdict.payload.arguments
                if final != (arrived if last is None else last).arguments:
                    checked = final
            position = self._write(name, arrived, took, decided, how, checked)
            if verdict.action is HookAction.ASK:
                tool = arrived.name if self._redacted is None else self._redacted.value(arrived.name)
                self._asked[arrived.id] = tool, position
        except Exception as error:  # noqa: BLE001 - a payload of the program may contain anything
            self._write_without_payload(name, arrived, took, how, error)

    def _write_without_payload(
        self, name: str, payload: Any, took: float, verdict: fmt.RecordedVerdict | None, error: Exception
    ) -> None:
        log.warning("a payload of %s cannot be recorded: %s", name, error)
        notes = fmt.Notes(inexact="partial", missing=_form(type(payload)).names)
        # The reason of the verdict may not be redacted.
        how = None if verdict is None else fmt.RecordedVerdict(verdict.verb, verdict.hook)
        at, position = time.perf_counter() - self._tree.started, next(self._tree.positions)
        line: tuple[Any, ...] = (name, "", self.number, position, at, took, {}, None, how, notes)
        self._tree.line(*line, *(() if self._place is None else (self._place(),)))

    def _write(
        self,
        name: str,
        payload: Any,
        took: float,
        decided: list[fmt.Decision] | None,
        verdict: fmt.RecordedVerdict | None,
        checked: Any,
    ) -> int:
        """Write a moment and return its position."""
        cls, tree, redacted = type(payload), self._tree, self._redacted
        fields: Any
        notes = None
        tool = ""
        if redacted is not None:
            redacted.how = ""
        if cls is ModelRequest:
            fields, notes = self._request(payload)
        else:
            form = _forms.get(cls) or _form(cls)
            fields = form.slim(*form.values(payload))
            if redacted is not None:
                if cls is ModelReply:
                    if fields.content not in redacted.texts:
                        fields.content = redacted.value(fields.content)
                    if fields.tool_calls:
                        fields.tool_calls = redacted.calls(fields.tool_calls)
                elif cls is ToolCallRequest:
                    if fields.name not in redacted.texts:  # a model may call a tool that does not exist
                        fields.name = redacted.value(fields.name)
                    fields.arguments = redacted.object(fields.arguments)
                    if fields.raw is not None:
                        fields.raw = redacted.value(fields.raw)
                elif cls is AgentResult:
                    fields.steps = redacted.steps(fields.steps)
                    redacted.fields(fields, _RESULT_TEXTS)
                else:
                    redacted.fields(fields, form.texts)
            if cls is AgentResult:
                kept, added = self._added_messages(payload.messages)
                fields.messages = self._slim_messages(added)
                notes = fmt.Notes(kept) if kept else None
            if form.tool:
                tool = getattr(payload, form.tool)
            elif cls is ApprovalRequest:
                tool = payload.call.name
            if tool and redacted is not None and tool not in redacted.texts:
                tool = redacted.value(tool)
            if checked is not None:
                notes = fmt.Notes(checked=checked if redacted is None else redacted.object(checked))
        if redacted is not None:
            if decided:
                decided = redacted.value(decided)
            if verdict is not None:
                verdict = redacted.value(verdict)
            if redacted.how:
                notes = (notes or fmt.Notes()).replace(inexact=redacted.how)
        at = int((_now() - tree.started) * 1e6) / 1e6
        position = next(tree.positions)
        line: tuple[Any, ...]
        if self._place is not None:
            line = (name, tool, self.number, position, at, took, fields, decided, verdict, notes, self._place())
        elif notes is not None:
            line = (name, tool, self.number, position, at, took, fields, decided, verdict, notes)
        elif verdict is not None or decided is not None:
            line = (name, tool, self.number, position, at, took, fields, decided, verdict)
        else:
            line = (name, tool, self.number, position, at, took, fields)
        if tree.take is not None:
            tree.take(line)
        else:
            try:
                data = _encode(line) + b"\n"
            except UnicodeEncodeError:
                data = encode_line(line)
            if cls in _RESULTS:
                tree.hold(data)
            else:
                tree.write(data)
        if cls is ApprovalDecision:
            self._label(payload)
        return position

    def _label(self, decided: ApprovalDecision) -> None:
        """Label a call that a person approved or denied, for backtests."""
        asked = self._asked.pop(decided.call_id, None)
        if asked is not None and decided.decision in ("approved", "denied") and is_person(decided.by):
            label = fmt.Label(decided.decision, decided.call_id, decided.by, decided.message)
            clean = label if self._redacted is None else self._redacted.value(label)
            self._tree.line("label", asked[0], self.number, asked[1], clean)

    def _added_messages(self, messages: Sequence[Message]) -> tuple[int, Sequence[Message]]:
        """Return how many messages at the beginning are the last ones of the last request, and the others."""
        before = self.request.messages
        if type(messages) is History:
            tail = messages.tail_after_end_of(before)
            if tail is not None:
                return len(messages) - len(tail), tail
        first = messages[0] if messages else None
        start = next((index for index, old in enumerate(before) if old is first), len(before))
        kept = len(before) - start
        if kept > len(messages) or not all(map(operator.is_, islice(before, start, None), messages)):
            kept = 0
        return kept, messages[kept:]

    def _slim_messages(self, messages: Sequence[Message]) -> list[_SlimMessage]:
        """Return messages without default values and sensitive texts."""
        found = [_SlimMessage(*_message_fields(message)) for message in messages]
        redacted = self._redacted
        if redacted is not None:
            for message in found:
                if message.content not in redacted.texts:
                    message.content = redacted.value(message.content)
                if message.tool_calls:
                    message.tool_calls = redacted.calls(message.tool_calls)
                if message.name is not None and message.name not in redacted.texts:
                    message.name = redacted.value(message.name)
                if message.attachments:
                    message.attachments = redacted.value(message.attachments)
        return found

    def _request(self, request: ModelRequest) -> tuple[_SlimRequest, fmt.Notes]:
        """Return a request with its new messages only."""
        redacted, tools = self._redacted, request.tools
        before, self.request = self.request, request
        kept, added = new_messages(before.messages, request.messages)
        tools_kept = before.tools is tools or before.tools == tools
        slim = _SlimRequest(self._slim_messages(added), request.model, request.hop, request.attempt, request.purpose)
        if not tools_kept:
            slim.tools = tools if redacted is None else redacted.tools(tools)
        if request.response_format is not None:
            slim.response_format = request.response_format
        if request.tool_choice is not None:
            slim.tool_choice = request.tool_choice
        if request.params:
            slim.params = request.params
        if redacted is not None and (slim.params or slim.response_format):
            redacted.fields(slim, _REQUEST_TEXTS)
        return slim, fmt.NO_NOTES if not kept and not tools_kept else fmt.Notes(kept, tools_kept)

    def finish(self, result: AgentResult[Any] | None) -> None:
        """Write the line at the end of the run, with its result; ``None`` if it has none."""
        end = _run_end(result)
        self._tree.line("end", self.number, end if self._redacted is None else self._redacted.replaced(end, _END_TEXTS))


def _run_end(result: AgentResult[Any] | None) -> fmt.RunEnd:
    """Return the end of a run as a line."""
    if result is None:
        return fmt.RunEnd()
    stop = result.stop
    return fmt.RunEnd(
        result.status,
        stop.kind if stop is not None else "",
        stop.message if stop is not None else "",
        result.reply,
        len(result.steps),
        result.tool_calls,
        result.usage,
        result.cost,
        round(result.elapsed, 6),
        len(result.errors),
    )


def _decisions(calls: Sequence[CallReport], payload: Any) -> tuple[list[fmt.Decision], Any]:
    """Return the decisions of the hooks, and the payload after the last rewriter."""
    found = []
    for one in calls:
        entry, result = one.entry, one.result
        if result is None:
            verb = str(HookAction.FAILED)
            found.append(
                fmt.Decision(entry.name, entry.phase, verb, error=one.error, took=one.took, refused=one.refused)
            )
            continue
        value, changed = _value(result), None
        if result.action is HookAction.REPLACE:
            changed = changes(payload, result.value, _form(type(payload)).names)
            payload, value = result.value, None
        state = None
        if one.state is not None and isinstance(result.state, AgentState):
            state = changes(one.state, result.state, _STATE_PARTS)
        took = round(one.took, 7)
        verb = str(result.action)
        found.append(
            fmt.Decision(entry.name, entry.phase, verb, result.reason, value, changed, state, None, took, one.refused)
        )
    return found, payload


def _value(result: HookResult) -> Any:
    if result.action is HookAction.STOP:
        return {"kind": result.kind, "message": result.value}
    return result.value


_tool_infos: WeakKeyDictionary[ToolRegistry, tuple[fmt.ToolInfo, ...]] = WeakKeyDictionary()


def tool_infos(tools: ToolRegistry) -> tuple[fmt.ToolInfo, ...]:
    """Describe the tools of a run. A registry is immutable, so the result is kept for the next run."""
    found = _tool_infos.get(tools)
    if found is None:
        found = _tool_infos[tools] = tuple(map(_tool_info, tools))
    return found


def _tool_info(tool: Tool) -> fmt.ToolInfo:
    effects = None if tool.effects is None else tuple(sorted(tool.effects))
    return fmt.ToolInfo(tool.name, effects, tool.untrusted, tool.dangerous, tool.sandbox)


_described: dict[int, tuple[HookStack, str, tuple[fmt.HookInfo, ...]]] = {}
_MAX_DESCRIBED = 64


def describe_hooks(stack: HookStack) -> tuple[str, tuple[fmt.HookInfo, ...]]:
    """Return the hooks of a run and a digest of them. Stacks are immutable, so the result is kept."""
    known = _described.get(id(stack))
    if known is None or known[0] is not stack:
        hooks = tuple(_hook_infos(stack))
        digest = hashlib.sha256(_encode(hooks)).hexdigest()[:16]
        if len(_described) >= _MAX_DESCRIBED:
            _described.clear()
        known = _described[id(stack)] = stack, digest, hooks
    return known[1], known[2]


def _hook_infos(stack: HookStack) -> Iterable[fmt.HookInfo]:
    found: dict[tuple[int, str], tuple[Any, str, str | None, dict[str, fmt.HookAtPoint]]] = {}
    for point in sorted(stack.points):
        for order, entry in enumerate(stack.entries(point)):
            at = fmt.HookAtPoint(entry.phase, entry.priority, entry.tools, entry.on_failure, order)
            key = id(entry.hook), entry.name
            found.setdefault(key, (entry.hook, entry.name, entry.plugin, {}))[3][str(point)] = at
    for hook, name, plugin, points in found.values():
        function = function_of(hook)
        home = function if inspect.isroutine(function) else type(function)
        module = str(getattr(home, "__module__", "") or "")
        # The arguments of an observer, such as the run that it belongs to, make no difference.
        decides = any(at.phase != "observe" for at in points.values())
        yield fmt.HookInfo(name, points, hook_digest(hook) if decides else rule_of(function), module, plugin or "")
