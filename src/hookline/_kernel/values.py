"""The values that travel: messages, tool calls, usage, steps, signals, errors."""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from .._base.frozen import EMPTY, Frozen, FrozenDict, freeze, parse_object

Role = Literal["system", "user", "assistant", "tool"]
Outcome = Literal["ok", "error", "blocked", "answered", "cancelled"]
Where = Literal["model", "tool", "hook", "output"]
Status = Literal["completed", "stopped", "ended", "cancelled", "failed"]
StopKind = Literal[
    "error", "stop_requested", "user_requested", "steps_limit", "token_limit", "time_limit", "cost_limit",
    "tool_calls_limit", "retry_limit", "finish_reason", "completed", "unknown",
]  # fmt: skip
STOP_KINDS: tuple[str, ...] = get_args(StopKind)  # strongest first (DESIGN 5.4)


class Ids(Frozen, frozen=True):
    """Who and where: the ids every payload of a run carries."""

    run_id: str = ""
    task_id: str = ""
    correlation_id: str = ""
    session_id: str = ""
    agent: str = ""
    parent_run_id: str = ""


class Usage(Frozen, frozen=True):
    """Tokens used. ``input_tokens`` counts cached ones too."""

    input_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: Usage) -> Usage:
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_tokens + other.cached_tokens,
        )


class ToolCall(Frozen, frozen=True):
    """A call as the model made it.

    ``arguments`` is always a frozen JSON object. Text is parsed; where the model sent no object,
    ``arguments`` is empty and ``raw`` holds what came instead.
    """

    id: str
    name: str
    arguments: Any = EMPTY
    raw: str | None = None

    def __post_init__(self) -> None:
        if type(self.arguments) is FrozenDict:
            return
        arguments, raw = parse_object(self.arguments)
        msgspec.structs.force_setattr(self, "arguments", arguments)
        msgspec.structs.force_setattr(self, "raw", raw if self.raw is None else self.raw)


class ToolSpec(Frozen, frozen=True):
    """A tool as a model sees it: name, description, JSON schema of the parameters."""

    name: str
    description: str = ""
    parameters: Any = EMPTY

    def __post_init__(self) -> None:
        if type(self.parameters) is not FrozenDict:
            self._seal("parameters", freeze)


class Message(Frozen, frozen=True):
    """One message of a transcript.

    ``call_id`` and ``name`` belong to tool results; ``hook`` names the hook whose ``end`` wrote it.
    """

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    name: str | None = None
    is_error: bool = False
    hook: str | None = None

    def __post_init__(self) -> None:
        if type(self.tool_calls) is not tuple:
            self._seal("tool_calls", tuple)


class ModelResponse(Frozen, frozen=True):
    """What a model gives back. ``cost`` is in USD; ``None`` means unknown."""

    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    usage: Usage = Usage()
    finish_reason: str = "stop"
    cost: float | None = None
    model: str = ""
    provider: str = ""
    organization_id: str = ""

    def __post_init__(self) -> None:
        if type(self.tool_calls) is not tuple:
            self._seal("tool_calls", tuple)


class StopSignal(Frozen, frozen=True):
    """A recorded wish to stop: what kind, why, and who."""

    kind: StopKind = "stop_requested"
    message: str = ""
    hook: str = ""


class ErrorInfo(Frozen, frozen=True):
    """One failure, as data. ``source`` failed; ``retry_after`` is a provider's wish, in seconds."""

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
