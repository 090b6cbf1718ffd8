"""Points: the moments at which hooks are called (DESIGN 3). The points of a run are declared here.

Channels, teams and tickets declare their points in their own packages, which are imported when an unknown name or the
whole table is needed. A program declares its own points with the same class::

    DEPLOYED = Point("deployed", Deployment, model="observe")

    @observer(DEPLOYED)
    def announce(ctx, deployment): ...
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Literal, Self

from .._base.frozen import Frozen
from .._base.package import POINT_MODULES
from .._base.text import closest_match, snake_case
from . import payloads as p
from .errors import RegistrationError
from .state import AgentResult
from .values import Step

if TYPE_CHECKING:  # with a default, so that a plain ``Point`` is any point; in ``typing`` from Python 3.13 on
    from typing_extensions import TypeVar

    Payload_co = TypeVar("Payload_co", bound=Frozen, covariant=True, default=Any)
else:
    from typing import TypeVar

    Payload_co = TypeVar("Payload_co", bound=Frozen, covariant=True)

Model = Literal["pipeline", "merge", "claim", "observe"]

LOOP = "the loop"
TABLE: dict[str, Point[Any]] = {}  # the points declared so far; POINTS contains all of them
NAMES: dict[str, Point[Any]] = {}  # the same points by every name and alias
_imported: list[str] = []  # the modules of POINT_MODULES, once they are imported
_RUN_POINTS: list[str] = []  # names of the points below, once all of them are declared


class Point(str, Generic[Payload_co]):
    """A named moment at which hooks are called. It is a string, so ``point == "before_tool"`` works.

    For type checkers, ``Point("deployed", Deployment)`` is a ``Point[Deployment]``, which determines the types of its
    hooks.

    Args:
        name: the name of the point.
        payload: the type of its payload.
        model: how the results of its hooks are combined.
        verbs: the verbs that its hooks may return, at a pipeline point.
        result: the type that merge and claim handlers return.
        when: when it is fired, for people.
        closed: the effect of a closed failure, for people.
        fired_by: the component that fires it, for people.
        names: its names in other frameworks, which work as aliases.
        tool: whether hooks can select calls with ``tools=``.
        resilient: whether later hooks are called even after a failure.

    Example::

        DEPLOYED = Point("deployed", Deployment, model="observe")
        await ctx.fire(DEPLOYED, Deployment(version="1.2"))
    """

    def __new__(cls, name: str, payload: type[Payload_co] | None = None, **_: object) -> Self:
        """Create the string. Pickle and copy call this with the name alone."""
        return super().__new__(cls, name)

    def __init__(
        self,
        name: str,
        payload: type[Payload_co],
        *,
        model: Model = "pipeline",
        verbs: Iterable[str] = (),
        result: type[Frozen] | None = None,
        when: str = "",
        closed: str = "the run fails",
        fired_by: str = LOOP,
        names: Mapping[str, str] | None = None,
        tool: bool = False,
        resilient: bool = False,
    ) -> None:
        self.payload = payload
        self.model = model
        self.verbs = frozenset(verbs)
        self.result = result
        self.when = when
        self.closed = closed
        self.fired_by = fired_by
        self.names = names or {}
        self.tool = tool
        self.resilient = resilient
        if model != "pipeline" and self.verbs:
            raise RegistrationError(f"point {name!r}: only pipeline points have verbs")
        import_declarations()  # so that a name that is already taken is rejected here
        known = TABLE.get(name)
        if known is not None and known._shape() != self._shape():
            raise RegistrationError(f"point {name!r} is already declared with another payload, model or verbs")
        for alias in self.aliases:
            if NAMES.get(alias, self) != self:
                raise RegistrationError(f"point {name!r}: the name {alias!r} belongs to point {NAMES[alias]!s}")
        TABLE[name] = self
        NAMES.update(dict.fromkeys(self.aliases, self))

    @property
    def aliases(self) -> set[str]:
        """All names of the point in snake case: its own and those of other frameworks."""
        return {snake_case(alias) for alias in (self, *self.names.values())}

    def _shape(self) -> tuple[object, ...]:
        return self.payload.__name__, self.model, self.verbs


def resolve(name: str) -> Point[Any]:
    """Return the point with this name or alias.

    Raises:
        RegistrationError: there is none; the message suggests a similar name.
    """
    if isinstance(name, Point):
        return name
    if not isinstance(name, str):
        raise RegistrationError(f"a point must be a name, not {type(name).__name__} ({name!r})")
    key = snake_case(name)
    if key not in NAMES:
        import_declarations()
    if key not in NAMES:
        raise RegistrationError(f"unknown point {name!r}.{_suggestion(key)}")
    return NAMES[key]


def _suggestion(key: str) -> str:
    """Say what to write instead of an unknown name: a moment of another framework has its answer here."""
    known = closest_match(key, {**NAMES, **_ELSEWHERE})
    if known is None:
        return (
            " Usual ones are on_run_start, before_llm, after_llm, before_tool and after_tool; hookline.points has all."
        )
    if known in _ELSEWHERE:
        return f" {_ELSEWHERE[known]}"
    point = NAMES[known]
    alias = next((name for name in point.names.values() if snake_case(name) == known), None)
    if alias is None or known == point:
        return f" Did you mean {str(point)!r}?"
    return f" Did you mean {alias!r}, which is {str(point)!r} here?"


_ELSEWHERE = {
    "session_end": "A session has no end; 'on_run_end' is fired at the end of each run.",
    "post_tool_use_failure": "'after_tool' is fired for failed calls too; their result has an 'error'.",
    "post_tool_batch": "'after_step' is fired after all calls of a reply.",
    "notification": "'approval_requested' is fired when a person is asked.",
    "subagent_stop": "'subagent_ended' is fired when a subagent has ended; its own 'on_stop' can keep it going.",
    "wrap_tool_call": "Use 'before_tool' and 'after_tool', or the method 'wrap' of a hook.",
    "wrap_tool_execute": "Use 'before_tool' and 'after_tool', or the method 'wrap' of a hook.",
    "wrap_model_call": "Use 'before_llm' and 'after_llm', or the method 'wrap' of a hook.",
    "wrap_model_request": "Use 'before_llm' and 'after_llm', or the method 'wrap' of a hook.",
    "on_model_error_callback": "'on_error' is fired if a model fails.",
    "on_model_request_error": "'on_error' is fired if a model fails.",
    "on_tool_error_callback": "'after_tool' is fired for failed calls too; their result has an 'error'.",
    "on_tool_execute_error": "'after_tool' is fired for failed calls too; their result has an 'error'.",
    "on_handoff": "'subagent_spawning' is fired before another agent starts.",
    "on_user_message_callback": "'on_run_start' is fired with the task.",
    "on_event_callback": "The events of a run are those of agent.stream(...), or go to sinks=.",
    "message_added_event": "The events of a run are those of agent.stream(...), or go to sinks=.",
    "before_tools_event": "'after_llm' is fired with all calls of a reply.",
    "after_tools_event": "'after_step' is fired after all calls of a reply.",
    "before_tool_validate": "At 'before_tool', rewriters run before the arguments are validated, and guards after it.",
    "input_guardrail": "Use a guard at 'on_run_start'.",
    "output_guardrail": "Use a guard at 'after_llm'.",
    "tool_input_guardrail": "Use a guard at 'before_tool', with tools=.",
    "tool_output_guardrail": "Use a hook at 'after_tool', with tools=.",
}
"""Names of moments in other frameworks that are no aliases of a point, and what to use instead."""


def import_declarations() -> None:
    """Import the modules that declare the points of other packages, after the points of a run are declared."""
    if tuple(_imported) != POINT_MODULES and _RUN_POINTS:
        _imported[:] = POINT_MODULES  # before the imports: these modules call this function again
        for name in POINT_MODULES:
            import_module(name)


def is_fired_by_loop(point: Point[Any]) -> bool:
    """Whether only the loop of a run fires this point."""
    return point in _RUN_POINTS and point.fired_by == LOOP


class _Points(Mapping[str, Point[Any]]):
    """All declared points by name.

    The order does not depend on imports and is that of DESIGN 3: the points of a run, those of the modules in
    ``POINT_MODULES``, then those of programs and plugins.
    """

    def __getitem__(self, name: str) -> Point[Any]:
        if name not in TABLE:
            import_declarations()
        return TABLE[name]

    def __iter__(self) -> Iterator[str]:
        import_declarations()
        names = dict.fromkeys(_RUN_POINTS)
        for module in _imported:
            names |= {str(each): None for each in vars(import_module(module)).values() if isinstance(each, Point)}
        return iter([name for name in names | dict.fromkeys(TABLE.copy()) if name in TABLE])

    def __len__(self) -> int:
        import_declarations()
        return len(TABLE)

    def __repr__(self) -> str:
        return f"<points {', '.join(self)}>"


POINTS: Mapping[str, Point[Any]] = _Points()

SESSION_START = Point(
    "session_start",
    p.SessionStart,
    model="observe",
    when="first run of a session, before anything else",
    names={"Ethos": "session_start", "Claude Code": "SessionStart"},
)
ON_RUN_START = Point(
    "on_run_start",
    p.RunStart,
    verbs=("replace", "end", "stop"),
    when="once per run; then the user message is appended",
    names={
        "EdgeVox": "ON_RUN_START",
        "Cognesy": "BeforeExecution",
        "Claude Code": "UserPromptSubmit",
        "LangChain": "before_agent",
        "pydantic-ai": "before_run",
        "OpenAI Agents": "on_agent_start",
        "Strands": "BeforeInvocationEvent",
        "Google ADK": "before_run_callback",
    },
)
BEFORE_PROMPT_BUILD = Point(
    "before_prompt_build",
    p.PromptBuild,
    model="merge",
    result=p.PromptParts,
    when="once per run, before the system prompt is joined",
    names={"Ethos": "before_prompt_build"},
)
BEFORE_STEP = Point(
    "before_step", p.StepStart, verbs=("stop", "end"), when="start of each step", names={"Cognesy": "BeforeStep"}
)
BEFORE_LLM = Point(
    "before_llm",
    p.ModelRequest,
    verbs=("replace", "answer", "end", "stop"),
    when="before every model call, whatever its purpose",
    names={
        "EdgeVox": "BEFORE_LLM",
        "Ethos": "before_llm_call",
        "Forge": "BeforeLLMCall",
        "LangChain": "before_model",
        "pydantic-ai": "before_model_request",
        "OpenAI Agents": "on_llm_start",
        "Strands": "BeforeModelCallEvent",
        "Google ADK": "before_model_callback",
    },
)
ON_TOKEN = Point(
    "on_token", p.TokenDelta, verbs=("replace", "end"), when="each streamed piece, and once more with final=True"
)
AFTER_LLM = Point(
    "after_llm",
    p.ModelReply,
    verbs=("replace", "retry", "end", "stop"),
    when="after each model call, including calls that a hook answered",
    closed="the run fails; the reply is not added to the transcript",
    names={
        "EdgeVox": "AFTER_LLM",
        "Ethos": "after_llm_call",
        "Forge": "AfterLLMCall",
        "LangChain": "after_model",
        "pydantic-ai": "after_model_request",
        "OpenAI Agents": "on_llm_end",
        "Strands": "AfterModelCallEvent",
        "Google ADK": "after_model_callback",
    },
)
BEFORE_TOOL = Point(
    "before_tool",
    p.ToolCallRequest,
    verbs=("replace", "block", "answer", "ask", "end", "stop"),
    tool=True,
    when="for each call of a batch, in order, before any of them runs",
    closed="the run fails; no call of the batch runs",
    names={
        "EdgeVox": "BEFORE_TOOL",
        "Cognesy": "BeforeToolUse",
        "Ethos": "before_tool_call",
        "Forge": "BeforeToolExec",
        "Claude Code": "PreToolUse",
        "pydantic-ai": "before_tool_execute",
        "OpenAI Agents": "on_tool_start",
        "Strands": "BeforeToolCallEvent",
        "Google ADK": "before_tool_callback",
    },
)
ON_PROGRESS = Point(
    "on_progress",
    p.Progress,
    model="observe",
    tool=True,
    when="while tools run: tool_start, progress, tool_end",
    closed="the run fails; running tools are cancelled",
    names={"Forge": "OnProgress"},
)
AFTER_TOOL = Point(
    "after_tool",
    p.ToolCallResult,
    verbs=("replace", "retry", "end", "stop"),
    tool=True,
    when="for each call, in call order, including blocked and failed calls",
    closed="the run fails; the model gets an error without the output",
    names={
        "EdgeVox": "AFTER_TOOL",
        "Cognesy": "AfterToolUse",
        "Ethos": "after_tool_call",
        "Forge": "AfterToolExec",
        "Claude Code": "PostToolUse",
        "pydantic-ai": "after_tool_execute",
        "OpenAI Agents": "on_tool_end",
        "Strands": "AfterToolCallEvent",
        "Google ADK": "after_tool_callback",
    },
)
TOOL_END_WITH_PATH = Point(
    "tool_end_with_path",
    p.ToolPath,
    model="observe",
    tool=True,
    when="after a call whose arguments named a path",
    names={"Ethos": "tool_end_with_path"},
)
AFTER_STEP = Point("after_step", Step, verbs=("stop",), when="after each step", names={"Cognesy": "AfterStep"})
ON_STOP = Point(
    "on_stop",
    p.Stopping,
    verbs=("keep_going",),
    when="when the loop is about to stop",
    names={"Cognesy": "OnStop", "Claude Code": "Stop"},
)
ON_ERROR = Point(
    "on_error",
    p.ErrorReport,
    verbs=("retry", "answer", "end"),
    when="any failure",
    names={"Cognesy": "OnError", "Forge": "OnError"},
)
ON_RUN_END = Point(
    "on_run_end",
    AgentResult,
    verbs=("replace",),
    resilient=True,
    when="exactly once per run",
    closed="the status becomes failed, after all hooks have run",
    names={
        "EdgeVox": "ON_RUN_END",
        "Cognesy": "AfterExecution",
        "Ethos": "agent_done",
        "LangChain": "after_agent",
        "pydantic-ai": "after_run",
        "OpenAI Agents": "on_agent_end",
        "Strands": "AfterInvocationEvent",
        "Google ADK": "after_run_callback",
    },
)
BEFORE_COMPACTION = Point(
    "before_compaction",
    p.Compaction,
    verbs=("replace", "block"),
    fired_by="a compactor",
    when="before a history is compacted",
    names={"Claude Code": "PreCompact"},
)
APPROVAL_REQUESTED = Point(
    "approval_requested",
    p.ApprovalRequest,
    model="claim",
    result=p.ApprovalAnswer,
    when="a hook returned ask; approvers are hooks here, and an unclaimed call is denied",
    closed="the call is denied",
    names={"Claude Code": "PermissionRequest"},
)
APPROVAL_DECIDED = Point(
    "approval_decided", p.ApprovalDecision, model="observe", when="after an approval was decided, or cancelled"
)

_RUN_POINTS.extend(TABLE)
