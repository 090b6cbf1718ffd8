"""The point table: every moment a hook can take part in, declared once (DESIGN 3)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, Self

from .._base.frozen import Frozen
from .._base.names import nearest, snake
from . import payloads as p
from .errors import RegistrationError
from .state import AgentResult
from .values import Step

Model = Literal["pipeline", "merge", "claim", "observe"]

POINTS: dict[str, Point] = {}  # every declared point by name, in the order of the table
_NAMES: dict[str, Point] = {}


class Point(str):
    """A named moment. It is its own name, so ``point == "before_tool"`` works.

    ``payload`` travels through it. ``model`` says how its hooks are combined, ``verbs`` what they may return,
    ``result`` what merge and claim handlers give. ``when``, ``closed`` (what a closed failure means there),
    ``fired_by`` and ``names`` (what other systems call it) are for people. Hooks can select calls by ``tools=``
    where ``tool`` is set; a failure skips no later hook where it is ``resilient``.
    """

    def __new__(cls, name: str, *_: object, **__: object) -> Self:
        """A string of that name."""
        return super().__new__(cls, name)

    def __init__(
        self, name: str, payload: type[Frozen], *, model: Model = "pipeline", verbs: Iterable[str] = (),
        result: type[Frozen] | None = None, when: str = "", closed: str = "the run fails", fired_by: str = "the loop",
        names: Mapping[str, str] | None = None, tool: bool = False, resilient: bool = False,
    ) -> None:  # fmt: skip
        self.payload, self.model, self.verbs, self.result = payload, model, frozenset(verbs), result
        self.when, self.closed, self.fired_by, self.names = when, closed, fired_by, names or {}
        self.tool, self.resilient = tool, resilient
        if model != "pipeline" and self.verbs:
            raise RegistrationError(f"point {name!r}: only pipeline points have verbs")
        known = POINTS.get(name)
        if known is not None and known._shape() != self._shape():
            raise RegistrationError(f"point {name!r} is already declared, with another shape")
        aliases = {snake(alias) for alias in (name, *self.names.values())}
        for alias in aliases:
            if _NAMES.get(alias, self) != self:
                raise RegistrationError(f"point {name!r}: the name {alias!r} belongs to point {_NAMES[alias]!s}")
        POINTS[name] = self
        _NAMES.update(dict.fromkeys(aliases, self))

    def _shape(self) -> tuple[object, ...]:
        return self.payload.__name__, self.model, self.verbs


def resolve(name: str) -> Point:
    """The point of that name or alias; ``RegistrationError``, with the nearest name, if there is none."""
    if isinstance(name, Point):
        return name
    if not isinstance(name, str):
        raise RegistrationError(f"a point is a name, not {type(name).__name__} ({name!r})")
    point = _NAMES.get(snake(name))
    if point is None:
        raise RegistrationError(f"unknown point {name!r}.{nearest(snake(name), _NAMES)}")
    return point


CHANNEL, TEAM = "a channel gateway", "a team"

# fmt: off
SESSION_START = Point("session_start", p.SessionStart, model="observe", when="first run of a session, before all else",
    names={"Ethos": "session_start"})
ON_RUN_START = Point("on_run_start", p.RunStart, verbs=("replace", "end", "stop"),
    when="once per run; then the user message is appended",
    names={"EdgeVox": "ON_RUN_START", "Cognesy": "BeforeExecution"})
BEFORE_PROMPT_BUILD = Point("before_prompt_build", p.PromptBuild, model="merge", result=p.PromptParts,
    when="once per run, before the system prompt is joined", names={"Ethos": "before_prompt_build"})
BEFORE_STEP = Point("before_step", p.StepStart, verbs=("stop", "end"), when="start of each step",
    names={"Cognesy": "BeforeStep"})
BEFORE_LLM = Point("before_llm", p.ModelRequest, verbs=("replace", "answer", "end", "stop"),
    when="before every model call, whatever its purpose",
    names={"EdgeVox": "BEFORE_LLM", "Ethos": "before_llm_call", "Forge": "BeforeLLMCall"})
ON_TOKEN = Point("on_token", p.TokenDelta, verbs=("replace", "end"),
    when="each streamed piece, and once more with final=True")
AFTER_LLM = Point("after_llm", p.ModelReply, verbs=("replace", "retry", "end", "stop"),
    when="after each model call, answered ones too", closed="the run fails; the reply is not recorded",
    names={"EdgeVox": "AFTER_LLM", "Ethos": "after_llm_call", "Forge": "AfterLLMCall"})
BEFORE_TOOL = Point("before_tool", p.ToolCallRequest,
    verbs=("replace", "block", "answer", "ask", "end", "stop"), tool=True,
    when="for each call of a batch, in order, before any of them runs",
    closed="the run fails; no call of the batch runs",
    names={"EdgeVox": "BEFORE_TOOL", "Cognesy": "BeforeToolUse", "Ethos": "before_tool_call",
           "Forge": "BeforeToolExec"})
ON_PROGRESS = Point("on_progress", p.Progress, model="observe", tool=True,
    when="while tools run: tool_start, progress, tool_end", closed="the run fails; what still runs is cancelled",
    names={"Forge": "OnProgress"})
AFTER_TOOL = Point("after_tool", p.ToolCallResult, verbs=("replace", "retry", "end", "stop"), tool=True,
    when="for each call, in call order, blocked and failed ones too",
    closed="the run fails; the model gets an error without the output",
    names={"EdgeVox": "AFTER_TOOL", "Cognesy": "AfterToolUse", "Ethos": "after_tool_call", "Forge": "AfterToolExec"})
TOOL_END_WITH_PATH = Point("tool_end_with_path", p.ToolPath, model="observe", tool=True,
    when="after a call whose arguments named a path", names={"Ethos": "tool_end_with_path"})
AFTER_STEP = Point("after_step", Step, verbs=("stop",), when="after each step", names={"Cognesy": "AfterStep"})
ON_STOP = Point("on_stop", p.Stopping, verbs=("keep_going",), when="when the loop is about to stop",
    names={"Cognesy": "OnStop"})
ON_ERROR = Point("on_error", p.Failure, verbs=("retry", "answer", "end"), when="any failure",
    names={"Cognesy": "OnError", "Forge": "OnError"})
ON_RUN_END = Point("on_run_end", AgentResult, verbs=("replace",), resilient=True, when="exactly once per run",
    closed="the status becomes failed, after all hooks have run",
    names={"EdgeVox": "ON_RUN_END", "Cognesy": "AfterExecution", "Ethos": "agent_done"})
BEFORE_COMPACTION = Point("before_compaction", p.Compaction, verbs=("replace", "block"), fired_by="a compactor",
    when="before a history is compacted")
APPROVAL_REQUESTED = Point("approval_requested", p.ApprovalRequest, model="claim", result=p.ApprovalAnswer,
    when="a hook asked; approvers are hooks here, unclaimed means deny", closed="the call is denied")
APPROVAL_DECIDED = Point("approval_decided", p.ApprovalDecision, model="observe",
    when="after an approval was decided, or cancelled")
MESSAGE_RECEIVED = Point("message_received", p.Inbound, model="observe", fired_by=CHANNEL,
    when="a channel accepted a message", closed="the message is not handled", names={"Ethos": "message_received"})
INBOUND_CLAIM = Point("inbound_claim", p.Inbound, model="claim", fired_by=CHANNEL,
    when="which handler owns this message", closed="the message is not handled", names={"Ethos": "inbound_claim"})
MESSAGE_SENDING = Point("message_sending", p.Outbound, model="merge", result=p.MessageChange, fired_by=CHANNEL,
    when="before an outbound message leaves", closed="the message is not sent", names={"Ethos": "message_sending"})
BEFORE_DISPATCH = Point("before_dispatch", p.Outbound, model="claim", fired_by=CHANNEL,
    when="after message_sending; a claim suppresses the send", closed="the message is not sent",
    names={"Ethos": "before_dispatch"})
MESSAGE_SENT = Point("message_sent", p.Outbound, model="observe", fired_by=CHANNEL, when="after a message left",
    closed="it is reported", names={"Ethos": "message_sent"})
SUBAGENT_SPAWNING = Point("subagent_spawning", p.Subagent, model="merge", result=p.SubagentChange, fired_by=TEAM,
    when="before a subagent starts", closed="the subagent is refused", names={"Ethos": "subagent_spawning"})
SUBAGENT_SPAWNED = Point("subagent_spawned", p.Subagent, model="observe", fired_by=TEAM,
    when="after a subagent started", names={"Ethos": "subagent_spawned"})
SUBAGENT_ENDED = Point("subagent_ended", p.Subagent, model="observe", fired_by=TEAM, when="when a subagent ended",
    names={"Ethos": "subagent_ended"})
PERSONALITY_SWITCHED = Point("personality_switched", p.PersonalitySwitched,
    model="merge", result=p.PersonalityChange, fired_by=TEAM, when="after a switch", closed="the switch is undone",
    names={"Ethos": "personality_switched"})
BEFORE_TICKET_COMPLETE = Point("before_ticket_complete", p.Ticket, model="claim", fired_by=TEAM,
    when="before a ticket is done; a claim rejects the completion", closed="the completion is rejected",
    names={"Ethos": "before_ticket_complete"})
AFTER_TICKET_REVISION = Point("after_ticket_revision", p.Ticket, model="observe", fired_by=TEAM,
    when="after such a rejection", names={"Ethos": "after_ticket_revision"})
# fmt: on
