"""Encode the fires of a run as lines of a record.

The work per fire is kept small, because recording may stay on in production: a payload is reduced to the fields that
differ from their defaults, a request to its new messages, and each line is encoded once.
"""

from __future__ import annotations

import hashlib
import inspect
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from itertools import count
from typing import Any
from weakref import WeakKeyDictionary

import msgspec

from .._base.frozen import History, json_encoder, plain, scrub
from .._kernel.dispatch import Firing
from .._kernel.hook import function_of
from .._kernel.payloads import ApprovalRequest, Failure, ModelReply, ModelRequest, ToolCallRequest
from .._kernel.points import ON_RUN_END, POINTS
from .._kernel.registry import HookStack
from .._kernel.results import HookAction, HookResult, Verdict
from .._kernel.settlement import RecordedResult
from .._kernel.state import AgentResult, AgentState
from .._kernel.values import Ids, Message
from . import format as fmt

log = logging.getLogger("hookline")

_STATE_PARTS = ("messages", "metadata", "system_prompt", "response_format")
_REQUESTS = (ModelReply, Failure)
"""Payloads whose ``request`` a reader restores from the previous ``before_llm``."""

_encode = json_encoder.encode


class _SlimMessage(msgspec.Struct, omit_defaults=True, gc=False):
    """A message without the fields that have their default value."""

    role: str
    content: str = ""
    tool_calls: Any = ()
    call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    hook: str | None = None


def _slim_message(message: Message) -> _SlimMessage:
    return _SlimMessage(
        message.role,
        message.content,
        message.tool_calls,
        message.call_id,
        message.name,
        message.is_error,
        message.hook,
    )


_known_defaults: dict[type, tuple[tuple[str, Any], ...]] = {}


def _defaults(cls: type[msgspec.Struct]) -> tuple[tuple[str, Any], ...]:
    """Return the fields of a payload that are recorded, each with its default value. The ids are in the run's line."""
    if cls not in _known_defaults:
        found = []
        for field in msgspec.structs.fields(cls):
            if field.type is Ids or (cls in _REQUESTS and field.name == "request"):
                continue
            factory = field.default_factory
            found.append((field.name, field.default if factory is msgspec.NODEFAULT else factory()))
        _known_defaults[cls] = tuple(found)
    return _known_defaults[cls]


def slim(payload: Any) -> dict[str, Any]:
    """Return the fields of a payload that differ from their defaults, without ids and requests."""
    found = {}
    for name, default in _defaults(type(payload)):
        value = getattr(payload, name)
        if value is not default and value != default:
            found[name] = value
    return found


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
    for name in names:
        old, new = getattr(before, name), getattr(after, name)
        if old is new or old == new:
            continue
        if name == "messages":
            kept, added = new_messages(old, new)
            found[name] = {"kept": kept, "new": [_slim_message(message) for message in added]}
        else:
            found[name] = new
    return found


_TOOL_FIELDS: dict[type, str | None] = {}


def _tool(payload: Any) -> str:
    cls = type(payload)
    if cls not in _TOOL_FIELDS:
        fields = cls.__struct_fields__
        _TOOL_FIELDS[cls] = next((n for n in ("tool", "name") if n in fields), None) if _is_about_tool(cls) else None
    field = _TOOL_FIELDS[cls]
    if field is not None:
        return str(getattr(payload, field))
    return payload.call.name if cls is ApprovalRequest else ""


def _is_about_tool(cls: type[Any]) -> bool:
    return any(point.tool and point.payload is cls for point in POINTS.values())


class RunTree:
    """The lines of an outermost run and its nested runs.

    Args:
        write: appends bytes to the record. It must not raise.
    """

    def __init__(self, write: Callable[[bytes], object]) -> None:
        self.write = write
        self.positions = count()
        self.numbers = count()
        self.started = time.perf_counter()

    def line(self, *items: Any) -> None:
        """Write one line."""
        self.write(encode_line(items))


def encode_line(items: Sequence[Any]) -> bytes:
    """Encode a line. Invalid Unicode is replaced."""
    try:
        return _encode(items) + b"\n"
    except UnicodeEncodeError:
        return _encode(scrub(plain(items))) + b"\n"


class MomentEncoder:
    """Records one run: the :class:`~hookline._kernel.scope.Recorder` of its engine.

    Args:
        tree: the lines of the run and the runs around it.
        info: the input of the run.
        points: the points to record.
    """

    def __init__(self, tree: RunTree, info: fmt.RunInfo, points: frozenset[str]) -> None:
        self._tree = tree
        self._points = points
        self.points = points | {ON_RUN_END}
        """The points whose fires this recorder must see: the result of the run comes from ``on_run_end``."""
        self.number = next(tree.numbers)
        self._messages: Sequence[Message] = ()
        self._tools: Any = ()
        self._result: AgentResult[Any] | None = None
        tree.line("run", self.number, info)

    def passed(self, point: str, payload: Any) -> None:
        """Record a fire of a point that has no hooks."""
        if type(payload) is AgentResult:
            self._result = payload
        if point in self._points:
            self._write(point, payload, 0.0, None, None, None)

    def take(self, firing: Firing, verdict: Verdict) -> None:
        """Record a fire with the results of its hooks."""
        point = firing.point
        if type(firing.arrived) is AgentResult:
            self._result = verdict.payload
        if point not in self._points:
            return
        took = time.perf_counter() - firing.started
        results = firing.recorded_results
        decided = last = None
        if results:
            decided, last = _decisions(results, firing.arrived)
        how = None
        if verdict.action is not HookAction.CONTINUE:
            how = fmt.Verdict(str(verdict.action), verdict.hook, verdict.reason)
        checked = None
        if type(firing.arrived) is ToolCallRequest and verdict.action is not HookAction.INVALID:
            final = verdict.payload.arguments
            if final != (firing.arrived if last is None else last).arguments:
                checked = final
        self._write(point, firing.arrived, took, decided, how, checked)

    def _write(
        self,
        point: str,
        payload: Any,
        took: float,
        decided: list[fmt.Decision] | None,
        verdict: fmt.Verdict | None,
        checked: Any,
    ) -> None:
        tree = self._tree
        notes = None
        if type(payload) is ModelRequest:
            fields, notes = self._request(payload)
        else:
            fields = slim(payload)
            if checked is not None:
                notes = fmt.Notes(checked=checked)
        position = next(tree.positions)
        at = round(time.perf_counter() - tree.started, 6)
        line: tuple[Any, ...] = (str.__str__(point), _tool(payload), self.number, position, at, round(took, 7), fields)
        if notes is not None:
            line += (decided, verdict, notes)
        elif verdict is not None or decided is not None:
            line += (decided, verdict)
        try:
            data = encode_line(line)
        except Exception as error:  # noqa: BLE001 - a payload of the program may contain anything
            log.debug("the payload of %s cannot be recorded: %s", point, error)
            lost = fmt.Notes(inexact="partial", missing=tuple(fields))
            data = encode_line((*line[:6], {}, None, verdict, lost))
        tree.write(data)

    def _request(self, request: ModelRequest) -> tuple[dict[str, Any], fmt.Notes]:
        """Return a request with its new messages only."""
        kept, added = new_messages(self._messages, request.messages)
        self._messages = request.messages
        tools_kept = self._tools is request.tools or self._tools == request.tools
        self._tools = request.tools
        fields: dict[str, Any] = {"messages": [_slim_message(message) for message in added], "model": request.model}
        if not tools_kept:
            fields["tools"] = request.tools
        for name in ("hop", "response_format", "tool_choice", "params"):
            if value := getattr(request, name):
                fields[name] = value
        if request.attempt != 1:
            fields["attempt"] = request.attempt
        if request.purpose != "step":
            fields["purpose"] = request.purpose
        return fields, fmt.Notes(kept=kept, tools_kept=tools_kept)

    def finish(self) -> None:
        """Write the line at the end of the run."""
        self._tree.line("end", self.number, _run_end(self._result))


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


def _decisions(results: Sequence[RecordedResult], payload: Any) -> tuple[list[fmt.Decision], Any]:
    """Return the decisions of the hooks, and the payload after the last rewriter."""
    found = []
    for one in results:
        entry, result = one.entry, one.result
        if result is None:
            found.append(fmt.Decision(entry.name, entry.phase, str(HookAction.FAILED), error=one.error, took=one.took))
            continue
        value, changed = _value(result), None
        if result.action is HookAction.MODIFY:
            changed = changes(payload, result.value, [name for name, _ in _defaults(type(payload))])
            payload, value = result.value, None
        state = None
        if one.state is not None and isinstance(result.state, AgentState):
            state = changes(one.state, result.state, _STATE_PARTS)
        took = round(one.took, 7)
        verb = str(result.action)
        found.append(fmt.Decision(entry.name, entry.phase, verb, result.reason, value, changed, state, None, took))
    return found, payload


def _value(result: HookResult) -> Any:
    if result.action is HookAction.STOP:
        return {"kind": result.kind, "message": result.value}
    return result.value


def tool_infos(tools: Iterable[Any]) -> tuple[fmt.ToolInfo, ...]:
    """Describe the tools of a run."""
    return tuple(
        fmt.ToolInfo(
            tool.name,
            None if tool.effects is None else tuple(sorted(tool.effects)),
            tool.untrusted,
            tool.dangerous,
        )
        for tool in tools
    )


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
        source, module = _source(function_of(hook))
        yield fmt.HookInfo(name, points, source, module, plugin or "")


def _source(hook: Any) -> tuple[str, str]:
    """Return a digest of the source code of a hook, and its module."""
    home = hook if inspect.isroutine(hook) else type(hook)
    return _source_digest(home), str(getattr(home, "__module__", "") or "")


_digests: WeakKeyDictionary[Any, str] = WeakKeyDictionary()


def _source_digest(home: Any) -> str:
    try:
        if home not in _digests:
            _digests[home] = hashlib.sha256(inspect.getsource(home).encode()).hexdigest()[:16]
        return _digests[home]
    except (OSError, TypeError):
        return ""
