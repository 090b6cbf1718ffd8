"""The values inside payloads: messages, tool calls, usage, steps, stop signals and errors."""

from __future__ import annotations

from collections.abc import Mapping
from math import inf
from typing import Any, Literal, get_args

import msgspec

from .._base.attachment import Attachment, file_part
from .._base.frozen import Frozen, FrozenDict, empty, freeze, parse_object
from .._base.text import did_you_mean

Role = Literal["system", "user", "assistant", "tool"]
Outcome = Literal["ok", "error", "blocked", "answered", "cancelled"]
Where = Literal["model", "tool", "hook", "output", "framework"]
Status = Literal["completed", "stopped", "ended", "cancelled", "failed"]
StopKind = Literal[
    "error",
    "halted",
    "stop_requested",
    "user_requested",
    "steps_limit",
    "token_limit",
    "time_limit",
    "cost_limit",
    "tool_calls_limit",
    "retry_limit",
    "finish_reason",
    "completed",
    "unknown",
]
STOP_KINDS: tuple[str, ...] = get_args(StopKind)  # strongest first (DESIGN 5.4)


class Ids(Frozen, frozen=True):
    """The ids that every payload of a run contains."""

    run_id: str = ""
    task_id: str = ""
    correlation_id: str = ""
    session_id: str = ""
    agent: str = ""
    parent_run_id: str = ""


class Usage(Frozen, frozen=True):
    """The number of tokens used. ``input_tokens`` includes cached tokens."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """The sum of input and output tokens."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


class ToolCall(Frozen, frozen=True):
    """A tool call in a model's reply.

    ``arguments`` is always a frozen JSON object; text is parsed. If the model sent anything else, ``arguments`` is
    empty and ``raw`` contains the model's text.
    """

    _other_keys = ("type", "function")

    id: str
    name: str
    arguments: Any = msgspec.field(default_factory=empty)
    raw: str | None = None

    def __post_init__(self) -> None:
        kind = type(self.arguments)
        if kind is FrozenDict:
            return
        if kind is dict:  # the usual case
            try:
                msgspec.structs.force_setattr(self, "arguments", freeze(self.arguments))
            except (ValueError, TypeError, RecursionError):
                pass  # parse_object says what is wrong with it
            else:
                return
        arguments, raw = parse_object(self.arguments)
        msgspec.structs.force_setattr(self, "arguments", arguments)
        msgspec.structs.force_setattr(self, "raw", raw if self.raw is None else self.raw)

    @classmethod
    def _read_mapping(cls, given: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Convert OpenAI's ``{"id", "type": "function", "function": {"name", "arguments"}}`` to fields."""
        if "function" not in given:
            return given
        fields = dict(given)
        kind, function = fields.pop("type", "function"), fields.pop("function")
        if kind != "function":
            raise TypeError(f"{path}.type: expected 'function', got {kind!r:.80}")
        if not isinstance(function, Mapping):
            raise TypeError(f"{path}.function: expected a mapping, got {type(function).__name__}")
        for name in function:
            if name not in ("name", "arguments"):
                raise TypeError(
                    f"{path}.function has no field {name!r}.{did_you_mean(str(name), ('name', 'arguments'))}"
                )
            if name in fields:
                raise TypeError(f"{path} has {name!r} twice: in the call and in its 'function'")
        return {**fields, **function}


class ToolSpec(Frozen, frozen=True):
    """The description of a tool for the model: name, purpose, and JSON schema of the parameters."""

    name: str
    description: str = ""
    parameters: Any = msgspec.field(default_factory=empty)

    def __post_init__(self) -> None:
        if type(self.parameters) is not FrozenDict:
            self._seal("parameters", freeze)


class Message(Frozen, frozen=True):
    """One message of a transcript.

    ``call_id`` and ``name`` are set for tool results; ``hook`` is set if a hook wrote the message with ``end``.
    ``attachments`` are the images, PDF, audio and other files in a user message or a tool result.

    Functions that take messages also accept a mapping of these fields, or a message in OpenAI's format::

        Message("user", "What is the weather in Berlin?")
        Message.of({"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "42"}]})
    """

    _other_keys = ("tool_call_id",)

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    hook: str | None = None
    attachments: tuple[Attachment, ...] = ()

    def __post_init__(self) -> None:
        if type(self.tool_calls) is not tuple:
            self._seal("tool_calls", tuple)
        if type(self.attachments) is not tuple:
            self._seal("attachments", tuple)

    @classmethod
    def _read_mapping(cls, given: Mapping[str, Any], path: str) -> Mapping[str, Any]:
        """Convert a message in OpenAI's format to fields."""
        fields = {
            name: item for name, item in given.items() if name not in _OFTEN_EMPTY or (item is not None and item != [])
        }
        if "tool_call_id" in fields:
            call_id = fields.pop("tool_call_id")
            if fields.setdefault("call_id", call_id) != call_id:
                raise TypeError(f"{path} has two call ids: 'call_id' and 'tool_call_id'")
        if fields.get("role") == "developer":
            fields["role"] = "system"
        content = fields.get("content")
        if isinstance(content, (list, tuple)):
            texts, files = [], []
            for i, part in enumerate(content):
                where = f"{path}.content[{i}]"
                file = file_part(part, where)
                if file is None:
                    texts.append(_text_part(part, where))
                else:
                    files.append(file)
            fields["content"] = "\n".join(texts)
            if files:
                fields["attachments"] = (*fields.get("attachments", ()), *files)
        return fields


_OFTEN_EMPTY = frozenset(("content", "tool_calls", "refusal", "audio", "function_call", "annotations"))
"""Fields that are often ``null`` or empty in OpenAI's messages, and are then ignored."""


def _text_part(part: Any, path: str) -> str:
    if not isinstance(part, Mapping) or part.get("type") != "text":
        kind = part.get("type") if isinstance(part, Mapping) else type(part).__name__
        raise TypeError(
            f"{path} is of type {kind!r:.80}; a message may contain parts of type text, image_url, input_audio and file"
        )
    for name in part:
        if name not in ("type", "text"):
            raise TypeError(f"{path} has no field {name!r}.{did_you_mean(str(name), ('type', 'text'))}")
    text = part.get("text")
    if not isinstance(text, str):
        raise TypeError(f"{path}.text: expected text, got {type(text).__name__}")
    return text


_MOST_USD, _MOST_TOKENS = 1e9, 10**12


class ModelResponse(Frozen, frozen=True):
    """The reply of a model. ``cost`` is in USD; ``None`` means unknown. ``id`` is the vendor's id of the reply.

    A cost that is negative or not a finite number counts as unknown, and a negative number of tokens as 0: no reply
    makes room in a limit. The largest cost is 1e9, and the largest number of tokens 1e12, so that sums can be stored.

    Example::

        ModelResponse(content="It is sunny.", usage=Usage(120, 8), cost=0.0004)
    """

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish_reason: str = "stop"
    cost: float | None = None
    model: str = ""
    provider: str = ""
    organization_id: str = ""
    id: str = ""

    def __post_init__(self) -> None:
        if type(self.tool_calls) is not tuple:
            self._seal("tool_calls", tuple)
        cost, usage = self.cost, self.usage
        if cost is not None and not 0 <= cost <= _MOST_USD:
            msgspec.structs.force_setattr(self, "cost", _MOST_USD if _MOST_USD < cost < inf else None)
        counts = usage.input_tokens, usage.output_tokens, usage.cached_tokens
        if min(counts) < 0 or max(counts) > _MOST_TOKENS:
            limited = (min(max(count, 0), _MOST_TOKENS) for count in counts)
            msgspec.structs.force_setattr(self, "usage", Usage(*limited))


class StopSignal(Frozen, frozen=True):
    """A request to stop the run: its kind, a message, and the hook that made it."""

    kind: StopKind = "stop_requested"
    message: str = ""
    hook: str = ""


class ErrorInfo(Frozen, frozen=True):
    """A failure as data.

    ``source`` names the failed hook, tool, model or framework; ``retry_after`` is the wait in seconds that a provider
    asks for.
    """

    where: Where
    type: str
    message: str
    source: str = ""
    call_id: str = ""
    fatal: bool = False
    retry_after: float | None = None


class Step(Frozen, frozen=True):
    """A finished step: one model reply and the tool calls it made. The payload of ``after_step``."""

    index: int
    content: str = ""
    tool_names: tuple[str, ...] = ()
    outcomes: tuple[Outcome, ...] = ()
    usage: Usage = Usage()
    finish_reason: str = ""
    duration: float = 0.0
