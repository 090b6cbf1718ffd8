"""What each point carries. One frozen class per point; ``points.py`` says which goes where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from .._base.frozen import Frozen, FrozenDict, History, as_sealed, digest, empty, freeze, json_text
from . import values as v
from .values import Ids, Message, Outcome, Usage, Where


class SessionStart(Frozen, frozen=True):
    """``session_start``."""

    session_id: str
    session_key: str = ""
    platform: str = ""
    personality_id: str = ""
    ids: Ids = Ids()


class RunStart(Frozen, frozen=True):
    """``on_run_start``."""

    task: str
    ids: Ids = Ids()

    editable = frozenset(("task",))


class PromptBuild(Frozen, frozen=True):
    """``before_prompt_build``."""

    history: Sequence[Message] = ()
    personality_id: str = ""
    ids: Ids = Ids()

    def __post_init__(self) -> None:
        self._seal("history", as_sealed)


class PromptParts(Frozen, frozen=True):
    """What handlers of ``before_prompt_build`` may give."""

    prepend_system: str | None = None
    append_system: str | None = None
    override_system: str | None = None


class StepStart(Frozen, frozen=True):
    """``before_step``."""

    index: int
    ids: Ids = Ids()


class ModelRequest(Frozen, frozen=True):
    """``before_llm``: exactly what the model will be given."""

    messages: Sequence[Message] = ()
    tools: tuple[v.ToolSpec, ...] = ()
    model: str = ""
    hop: int = 0
    attempt: int = 1
    purpose: str = "step"
    response_format: Any = None
    tool_choice: str | None = None
    params: Mapping[str, Any] = msgspec.field(default_factory=empty)
    ids: Ids = Ids()

    editable = frozenset(("messages", "tools", "model", "response_format", "tool_choice", "params"))

    def __post_init__(self) -> None:
        if type(self.messages) is not History:
            self._seal("messages", as_sealed)
        if type(self.tools) is not tuple:
            self._seal("tools", tuple)
        if self.response_format is not None and type(self.response_format) is not FrozenDict:
            self._seal("response_format", freeze)
        if type(self.params) is not FrozenDict:
            self._seal("params", freeze)


class TokenDelta(Frozen, frozen=True):
    """``on_token``: ``text`` so far, ``delta`` what is new to show; ``generation`` numbers the replies of a run."""

    delta: str
    text: str = ""
    hop: int = 0
    final: bool = False
    purpose: str = "step"
    ids: Ids = Ids()
    generation: int = 0

    editable = frozenset(("delta",))


class ModelReply(Frozen, frozen=True):
    """``after_llm``. ``source`` is ``"model"``, or the hook that answered in its place."""

    content: str = ""
    tool_calls: tuple[v.ToolCall, ...] = ()
    hop: int = 0
    attempt: int = 1
    purpose: str = "step"
    usage: Usage = Usage()
    cost: float | None = None
    finish_reason: str = "stop"
    model: str = ""
    provider: str = ""
    organization_id: str = ""
    duration: float = 0.0
    request: ModelRequest = msgspec.field(default_factory=ModelRequest)
    source: str = "model"
    ids: Ids = Ids()

    editable = frozenset(("content", "tool_calls", "finish_reason"))

    def __post_init__(self) -> None:
        if type(self.tool_calls) is not tuple:
            self._seal("tool_calls", tuple)


class ToolCallRequest(Frozen, frozen=True):
    """``before_tool``. ``raw`` is what the model sent when that was no JSON object."""

    id: str
    name: str
    arguments: Mapping[str, Any] = msgspec.field(default_factory=empty)
    hop: int = 0
    attempt: int = 1
    raw: str | None = None
    ids: Ids = Ids()

    editable = frozenset(("name", "arguments", "raw"))

    def __post_init__(self) -> None:
        if type(self.arguments) is not FrozenDict:
            self._seal("arguments", freeze)

    @property
    def digest(self) -> str:
        """A SHA-256 over the tool's name and its exact arguments."""
        return digest([self.name, self.arguments])


class Progress(Frozen, frozen=True):
    """``on_progress``. ``outcome`` is set at ``tool_end``."""

    phase: Literal["tool_start", "progress", "tool_end"]
    call_id: str
    tool: str
    message: str = ""
    fraction: float | None = None
    attempt: int = 1
    outcome: Outcome | None = None
    ids: Ids = Ids()


class ToolCallResult(Frozen, frozen=True):
    """``after_tool``. ``result`` is JSON; the model reads ``text``, which is the error if there is one."""

    id: str
    name: str
    arguments: Mapping[str, Any] = msgspec.field(default_factory=empty)
    result: Any = None
    error: str | None = None
    outcome: Outcome = "ok"
    duration: float = 0.0
    hop: int = 0
    attempt: int = 1
    ids: Ids = Ids()

    editable = frozenset(("result", "error"))

    def __post_init__(self) -> None:
        if type(self.arguments) is not FrozenDict:
            self._seal("arguments", freeze)
        if type(self.result) is not str:
            self._seal("result", freeze)

    @property
    def text(self) -> str:
        """What the model is given."""
        if self.error is not None:
            return self.error
        return self.result if isinstance(self.result, str) else json_text(self.result)


class ToolPath(Frozen, frozen=True):
    """``tool_end_with_path``."""

    tool: str
    file_path: str
    working_dir: str
    call_id: str = ""
    ids: Ids = Ids()


class Stopping(Frozen, frozen=True):
    """``on_stop``: the recorded signals, strongest first."""

    signals: tuple[v.StopSignal, ...]
    ids: Ids = Ids()


class Failure(Frozen, frozen=True):
    """``on_error``. Only failures of a model (``where == "model"``) take a verb."""

    errors: tuple[v.ErrorInfo, ...]
    where: Where
    fatal: bool = False
    purpose: str = ""
    hop: int = 0
    attempt: int = 1
    request: ModelRequest | None = None
    ids: Ids = Ids()

    def refuses(self, verb: str) -> str | None:
        """Retry, answer and end are for model failures only."""
        return None if self.where == "model" else f"only for model failures (this one: where={self.where!r})"


class Compaction(Frozen, frozen=True):
    """``before_compaction``."""

    messages: Sequence[Message]
    reason: str = ""
    ids: Ids = Ids()

    editable = frozenset(("messages", "reason"))

    def __post_init__(self) -> None:
        self._seal("messages", as_sealed)


class Question(Frozen, frozen=True):
    """Why a call needs approval, and which hook says so."""

    text: str
    hook: str = ""
    reason: str = ""


class ApprovalRequest(Frozen, frozen=True):
    """``approval_requested``. ``digest`` binds the decision to these exact arguments."""

    call: ToolCallRequest
    questions: tuple[Question, ...]
    digest: str


class ApprovalAnswer(Frozen, frozen=True):
    """An approver's answer: exactly one of ``approve``, ``deny`` (a message), ``edit`` (arguments)."""

    approve: bool = False
    deny: str | None = None
    edit: Mapping[str, Any] | None = None
    by: str = ""

    def __post_init__(self) -> None:
        if self.edit is not None and type(self.edit) is not FrozenDict:
            self._seal("edit", freeze)


class ApprovalDecision(Frozen, frozen=True):
    """``approval_decided``."""

    call_id: str
    decision: Literal["approved", "denied", "edited", "cancelled"]
    by: str
    digest: str
    message: str = ""
    ids: Ids = Ids()
