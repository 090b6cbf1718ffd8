"""Payloads: the frozen values that hooks receive, one class per point. ``points.py`` assigns them to points."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, Self

import msgspec

from .._base.attachment import Attachment
from .._base.frozen import Frozen, FrozenDict, History, as_sealed, digest, empty, freeze, json_text
from . import values as v
from .values import Ids, Message, Outcome, Usage, Where

_set = msgspec.structs.force_setattr
_SEALED = frozenset((History, tuple))


class SessionStart(Frozen, frozen=True):
    """Payload of ``session_start``: the session that a first run opens.

    Example::

        @observer(SESSION_START)
        def greet(ctx: AgentContext, session: SessionStart) -> None:
            print(f"session {session.session_id} on {session.platform}")
    """

    session_id: str
    session_key: str = ""
    platform: str = ""
    personality_id: str = ""
    ids: Ids = Ids()


class RunStart(Frozen, frozen=True):
    """Payload of ``on_run_start``: the task of the run and its attachments, which hooks may rewrite.

    Example::

        @guard(ON_RUN_START)
        def only_images(ctx: AgentContext, start: RunStart) -> HookResult | None:
            wrong = [str(each) for each in start.attachments if not each.media_type.startswith("image/")]
            return HookResult.end(f"Only images are accepted, not {wrong[0]}.") if wrong else None
    """

    task: str
    ids: Ids = Ids()
    attachments: tuple[Attachment, ...] = ()

    editable = frozenset(("task", "attachments"))

    def __post_init__(self) -> None:
        if type(self.attachments) is not tuple:
            self._seal("attachments", tuple)


class PromptBuild(Frozen, frozen=True):
    """Payload of ``before_prompt_build``: the transcript for which the system prompt is built.

    Example::

        @hook(BEFORE_PROMPT_BUILD)
        def add_date(ctx: AgentContext, build: PromptBuild) -> HookResult:
            return HookResult.merge(append_system=f"Today is {date.today()}.")
    """

    history: Sequence[Message] = ()
    personality_id: str = ""
    ids: Ids = Ids()

    def __post_init__(self) -> None:
        self._seal("history", as_sealed)


class PromptParts(Frozen, frozen=True):
    """The fields that handlers of ``before_prompt_build`` may return."""

    prepend_system: str | None = None
    append_system: str | None = None
    override_system: str | None = None


class StepStart(Frozen, frozen=True):
    """Payload of ``before_step``: the number of the step, from 0."""

    index: int
    ids: Ids = Ids()


class ModelRequest(Frozen, frozen=True):
    """Payload of ``before_llm``: the complete request to the model.

    Example::

        @hook(BEFORE_LLM)
        def be_brief(ctx: AgentContext, request: ModelRequest) -> ModelRequest:
            return request.replace(params={**request.params, "max_tokens": 200})
    """

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
        if type(self.messages) not in _SEALED:
            _set(self, "messages", as_sealed(self.messages))
        if type(self.tools) is not tuple:
            self._seal("tools", tuple)
        if self.response_format is not None and type(self.response_format) is not FrozenDict:
            self._seal("response_format", freeze)
        if type(self.params) is not FrozenDict:
            self._seal("params", freeze)


class TokenDelta(Frozen, frozen=True):
    """Payload of ``on_token``: a piece of streamed text.

    ``delta`` is the new piece, ``text`` everything so far; ``generation`` numbers the replies of a run.

    Example::

        @observer(ON_TOKEN)
        def show(ctx: AgentContext, token: TokenDelta) -> None:
            print(token.delta, end="", flush=True)
    """

    delta: str
    text: str = ""
    hop: int = 0
    final: bool = False
    purpose: str = "step"
    ids: Ids = Ids()
    generation: int = 0

    editable = frozenset(("delta",))


class ModelReply(Frozen, frozen=True):
    """Payload of ``after_llm``: the model's reply. ``source`` is ``"model"`` or the hook that answered instead.

    ``response_id`` is the vendor's id of the reply, if it has one.

    Example::

        @hook(AFTER_LLM)
        def no_empty_reply(ctx: AgentContext, reply: ModelReply) -> HookResult | None:
            return None if reply.content or reply.tool_calls else HookResult.retry("Please answer the question.")
    """

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
    response_id: str = ""

    editable = frozenset(("content", "tool_calls", "finish_reason"))

    def __post_init__(self) -> None:
        if type(self.tool_calls) is not tuple:
            self._seal("tool_calls", tuple)


class ToolCallRequest(Frozen, frozen=True):
    """Payload of ``before_tool``: a tool call. ``raw`` is the model's text if its arguments were not a JSON object.

    Example::

        @guard(BEFORE_TOOL, tools="delete_*")
        def only_in_tmp(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
            path = str(request.arguments["path"])
            return None if path.startswith("/tmp/") else HookResult.block("Only files in /tmp may be deleted.")
    """

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
            _set(self, "arguments", freeze(self.arguments))

    @property
    def digest(self) -> str:
        """The SHA-256 of the tool's name and its exact arguments."""
        return digest([self.name, self.arguments])


class Progress(Frozen, frozen=True):
    """Payload of ``on_progress``: the start, progress or end of a tool call. ``outcome`` is set at ``tool_end``.

    Example::

        @observer(ON_PROGRESS)
        def show(ctx: AgentContext, progress: Progress) -> None:
            print(progress.message)
    """

    phase: Literal["tool_start", "progress", "tool_end"]
    call_id: str
    tool: str
    message: str = ""
    fraction: float | None = None
    attempt: int = 1
    outcome: Outcome | None = None
    ids: Ids = Ids()


WITHHELD = "The result was withheld: its hooks did not finish."
"""The text that takes the place of a result whose hooks at ``after_tool`` failed closed."""


class ToolCallResult(Frozen, frozen=True):
    """Payload of ``after_tool``: the result of a tool call, as JSON. The model reads ``text`` and ``attachments``.

    Example::

        @hook(AFTER_TOOL)
        def shorten(ctx: AgentContext, result: ToolCallResult) -> ToolCallResult:
            return result.with_text(result.text[:1000])
    """

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
    attachments: tuple[Attachment, ...] = ()

    editable = frozenset(("result", "error", "attachments"))

    def __post_init__(self) -> None:
        if type(self.arguments) is not FrozenDict:
            _set(self, "arguments", freeze(self.arguments))
        if type(self.result) is not str:
            self._seal("result", freeze)
        if type(self.attachments) is not tuple:
            self._seal("attachments", tuple)

    @property
    def text(self) -> str:
        """The text for the model: the error if there is one, else the result."""
        if self.error is not None:
            return self.error
        return self.result if isinstance(self.result, str) else json_text(self.result)

    def with_text(self, text: str) -> Self:
        """Return a copy in which the model reads this text, be it a result or an error.

        Use it to redact: ``replace(result=...)`` leaves the text of an error as it is.

        Example::

            result.with_text(result.text.replace(SECRET, "[secret]"))
        """
        return self.replace(result=text) if self.error is None else self.replace(result=None, error=text)


class ToolPath(Frozen, frozen=True):
    """Payload of ``tool_end_with_path``: a path among the arguments of a finished tool call."""

    tool: str
    file_path: str
    working_dir: str
    call_id: str = ""
    ids: Ids = Ids()


class Stopping(Frozen, frozen=True):
    """Payload of ``on_stop``: the stop signals, strongest first.

    Example::

        @hook(ON_STOP)
        def run_tests(ctx: AgentContext, stopping: Stopping) -> HookResult | None:
            return None if tests_pass() else HookResult.keep_going("The tests fail. Fix them.")
    """

    signals: tuple[v.StopSignal, ...]
    ids: Ids = Ids()


class ErrorReport(Frozen, frozen=True):
    """Payload of ``on_error``: a failure. Hooks may return a verb only for a failed model (``where == "model"``).

    Example::

        @hook(ON_ERROR)
        def retry_model(ctx: AgentContext, failure: ErrorReport) -> HookResult | None:
            return HookResult.retry() if failure.where == "model" and failure.attempt < 3 else None
    """

    errors: tuple[v.ErrorInfo, ...]
    where: Where
    fatal: bool = False
    purpose: str = ""
    hop: int = 0
    attempt: int = 1
    request: ModelRequest | None = None
    ids: Ids = Ids()

    def refuses(self, verb: str) -> str | None:
        """Reject every verb unless a model failed."""
        return None if self.where == "model" else f"only for model failures, not for where={self.where!r}"


class Compaction(Frozen, frozen=True):
    """Payload of ``before_compaction``: the messages to compact, and why."""

    messages: Sequence[Message]
    reason: str = ""
    ids: Ids = Ids()

    editable = frozenset(("messages", "reason"))

    def __post_init__(self) -> None:
        self._seal("messages", as_sealed)


class Question(Frozen, frozen=True):
    """A question for the approver, and the hook that asks it."""

    text: str
    hook: str = ""
    reason: str = ""


class ApprovalRequest(Frozen, frozen=True):
    """Payload of ``approval_requested``: a call that needs approval. ``digest`` binds the decision to its arguments.

    Example::

        @hook(APPROVAL_REQUESTED)
        def ask_on_terminal(ctx: AgentContext, request: ApprovalRequest) -> HookResult:
            answer = input(f"Run {request.call.name}({dict(request.call.arguments)})? [y/N] ")
            return HookResult.approve(by="user") if answer == "y" else HookResult.deny("The user said no.")
    """

    call: ToolCallRequest
    questions: tuple[Question, ...]
    digest: str


def unanswered(questions: Iterable[Question], waited: str = "") -> str:
    """Return what the model reads about a call that nobody approved: also the reasons of the questions."""
    reasons = "; ".join(dict.fromkeys(question.reason for question in questions if question.reason))
    return f"Nobody approved this call{waited}." + (f" It needs an approval: {reasons}." if reasons else "")


class ApprovalAnswer(Frozen, frozen=True):
    """An approver's answer: exactly one of ``approve``, ``deny`` (a message), ``edit`` (arguments) and ``wait``.

    ``asked_at`` is the Unix time at which the approver was first asked, perhaps by an earlier process.
    """

    approve: bool = False
    deny: str | None = None
    edit: Mapping[str, Any] | None = None
    by: str = ""
    wait: bool = False
    asked_at: float | None = None

    def __post_init__(self) -> None:
        if self.edit is not None and type(self.edit) is not FrozenDict:
            self._seal("edit", freeze)


class ApprovalDecision(Frozen, frozen=True):
    """Payload of ``approval_decided``: the decision about a call, and who made it."""

    call_id: str
    decision: Literal["approved", "denied", "edited", "cancelled"]
    by: str
    digest: str
    message: str = ""
    ids: Ids = Ids()
