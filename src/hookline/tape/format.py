"""The format of tapes: one line of JSON per entry, in the order in which things happened (DESIGN 6.11).

The fires of points are *moments*, in the format of records (:mod:`hookline.records.format`): arrays among the entries,
which are objects. So everything that reads records reads tapes too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import msgspec

from .._base.attachment import Attachment
from .._base.errors import PlainError
from .._base.frozen import EMPTY, Frozen
from .._kernel.payloads import ApprovalAnswer, ModelRequest, ToolCallRequest
from .._kernel.points import ON_TOKEN, POINTS, TABLE
from .._kernel.values import ErrorInfo, Ids, Message, ModelResponse, ToolSpec
from .._run.budget import NO_LIMITS, Limits
from .._run.replay_values import ErrorSnapshot
from .._run.run_agent import StreamMode
from ..records.format import MomentLine
from ..tools._tool import Effect


class TapeError(PlainError):
    """A tape cannot be read, written or replayed. The message says what to do."""


class TapeEntry(Frozen, frozen=True, tag_field="entry", omit_defaults=True):
    """One line of a tape.

    ``at`` is the time in seconds since the tape started. ``inside`` is the lane of the tool call that produced the
    entry; a replay calls no tools, so it does not produce such entries again. ``lane`` is the part of the run that the
    entry belongs to (:mod:`hookline._run.lanes`): the entries of one lane have a fixed order. ``readings`` are the
    values of ``ctx.clock``, ``ctx.random`` and ``ctx.new_id`` that were read in the lane since its previous entry, each
    with its kind.
    """

    at: float = 0.0
    inside: str = ""
    lane: str = ""
    readings: Sequence[tuple[str, Any]] = ()


class HeaderEntry(TapeEntry, frozen=True, tag="tape"):
    """The first line. ``time`` and ``monotonic`` are the clock readings at the start of the tape."""

    version: int = 0
    hookline: str = ""
    time: float = 0.0
    monotonic: float = 0.0


class RecordedSession(Frozen, frozen=True, omit_defaults=True):
    """The session in which a run started. ``fresh`` is true if the run was the first of the session."""

    id: str = ""
    key: str = ""
    platform: str = ""
    personality_id: str = ""
    personality_changes: Any = None
    fresh: bool = True


class RecordedTool(Frozen, frozen=True, omit_defaults=True):
    """The properties of a tool that guards use. ``offered`` says whether the model saw the tool."""

    spec: ToolSpec
    offered: bool = True
    folder: str = ""
    timeout: float | None = None
    untrusted: bool = False
    dangerous: bool = False
    effects: tuple[Effect, ...] | None = None
    sandbox: str = ""
    paths: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()


class RecordedBudget(Frozen, frozen=True, omit_defaults=True):
    """An outer budget of a run: its limits, and what had been used when the run started."""

    limits: Limits = NO_LIMITS
    input: int = 0
    output: int = 0
    cached: int = 0
    cost: float = 0.0
    priced: bool = True
    tool_calls: int = 0
    elapsed: float | None = None


class RunEntry(TapeEntry, frozen=True, tag="run"):
    """A run and its input. The first one of a tape is the recorded run; the others are nested in it."""

    ids: Ids = Ids()
    task: str = ""
    attachments: tuple[Attachment, ...] = ()
    instructions: str = ""
    response_format: Any = None
    messages: tuple[Message, ...] = ()
    metadata: Any = None
    session: RecordedSession = RecordedSession()
    tools: tuple[RecordedTool, ...] = ()
    model: str = ""
    provider: str = ""
    limits: Limits = NO_LIMITS
    budgets: tuple[RecordedBudget, ...] = ()
    allowed_plugins: tuple[str, ...] | None = None
    stream: StreamMode = "safe"


class ModelRequestEntry(TapeEntry, frozen=True, tag="model_request"):
    """A request to the model. ``changed`` is what differs from the last moment of ``before_llm`` of the run.

    It has the form of the changes that a hook makes (:class:`~hookline.records.format.Decision`).
    """

    number: int = 0
    run: str = ""
    purpose: str = "step"
    changed: Mapping[str, Any] = EMPTY
    model: str = ""
    provider: str = ""
    digests: Mapping[str, str] = EMPTY


REQUEST_PARTS = tuple(name for name in ModelRequest.__struct_fields__ if name != "ids")
"""The fields of a request that may differ from the last moment of ``before_llm``. The ids are those of the run."""


class ModelReplyEntry(TapeEntry, frozen=True, tag="model_reply"):
    """The reply to a request: the pieces of a streamed reply, then the response or an error.

    There is no response and no error if the call was ``cancelled``, or if the reader ``closed`` the stream early.
    """

    number: int = 0
    pieces: tuple[str, ...] = ()
    response: ModelResponse | None = None
    raised: ErrorSnapshot | None = None
    cancelled: bool = False
    closed: bool = False


class ToolCallEntry(TapeEntry, frozen=True, tag="tool_call"):
    """A call of a tool. A replay calls the tool only if it ``runs_agents``."""

    run: str = ""
    request: ToolCallRequest = ToolCallRequest("", "")
    runs_agents: bool = False


class ToolProgressEntry(TapeEntry, frozen=True, tag="tool_progress"):
    """A progress report of a tool."""

    fraction: float | None = None
    message: str = ""


class ToolResultEntry(TapeEntry, frozen=True, tag="tool_result"):
    """The result of a tool call.

    ``refused`` says that a hook blocked a model call made by the tool, ``timed_out`` that it exceeded its timeout.
    """

    value: Any = None
    raised: ErrorSnapshot | None = None
    cancelled: bool = False
    refused: bool = False
    timed_out: bool = False
    attachments: tuple[Attachment, ...] = ()


class ValidationEntry(TapeEntry, frozen=True, tag="validation"):
    """Arguments that a tool's validation changed or rejected."""

    tool: str = ""
    arguments: Any = None
    checked: Any = None
    problem: str = ""


class ApprovalEntry(TapeEntry, frozen=True, tag="approval"):
    """The decision of the approvers on a call. ``failures`` are errors of approvers that did not end the request."""

    run: str = ""
    call_id: str = ""
    attempt: int = 1
    answer: ApprovalAnswer | None = None
    by: str = ""
    failures: tuple[ErrorInfo, ...] = ()
    failed: ErrorInfo | None = None
    cancelled: bool = False


class CountEntry(TapeEntry, frozen=True, tag="count"):
    """A number from the model: a token count or a price."""

    key: str = ""
    value: float | None = None


class OnceEntry(TapeEntry, frozen=True, tag="once"):
    """A value that a hook read with ``ctx.once``, or how that failed. It is a wakeup (:class:`WakeupEntry`) too."""

    name: str = ""
    value: Any = None
    raised: ErrorSnapshot | None = None
    cancelled: bool = False


class WakeupEntry(TapeEntry, frozen=True, tag="wakeup"):
    """A part of the run continued after it had awaited something of its own: a hook, concurrent calls, a nested run.

    ``name`` is what it awaited; of a hook, its point and its name. ``timed_out`` says that the hook exceeded its
    timeout.
    """

    name: str = ""
    timed_out: bool = False


class ReadingsEntry(TapeEntry, frozen=True, tag="readings"):
    """Readings after the last other entry of a lane."""


class EventEntry(TapeEntry, frozen=True, tag="event"):
    """An event of a run: an :class:`~hookline.Event`, or a dict if its type is not one of Hookline's."""

    event: Any = None


NO_MOMENT = MomentLine("", "", 0, 0, 0.0, 0.0, msgspec.Raw(b"{}"))


class MomentEntry(EventEntry, frozen=True, tag="moment"):
    """A fire of a point: a line of a record. ``event`` is the event that it stands for."""

    moment: MomentLine = NO_MOMENT


class SteeringEntry(TapeEntry, frozen=True, tag="steering"):
    """A message that was sent into a running run."""

    run: str = ""
    text: str = ""
    attachments: tuple[Attachment, ...] = ()


class TimerEntry(TapeEntry, frozen=True, tag="timer"):
    """A time limit was reached: the ``number``-th timer of the lane fired."""

    number: int = 0


class InterruptionEntry(TapeEntry, frozen=True, tag="interruption"):
    """The task of the run was cancelled: by the caller, or by a hook that limits its own time.

    If it was the caller, a cancellation with this ``number`` follows when the run has found that out.
    """

    number: int = 0


class HookInterruptionEntry(TapeEntry, frozen=True, tag="hook_interruption"):
    """A cancellation reached a part of the run while it awaited this hook."""

    point: str = ""
    hook: str = ""


class CancellationEntry(TapeEntry, frozen=True, tag="cancellation"):
    """The run was cancelled. If its caller was cancelled, ``interruption`` says where it began.

    ``within`` is true if a hook or a consumer of events cancelled the run, so that the run could see it at once.
    ``by_hook`` is true if a hook did it, which a replay calls again: the replay does not repeat it.
    ``run`` is the lane of a nested run that was cancelled alone, and not by code that a replay executes again.
    """

    run: str = ""
    reason: str = ""
    interruption: int = 0
    within: bool = False
    by_hook: bool = False


AnyEntry = (
    HeaderEntry
    | RunEntry
    | ModelRequestEntry
    | ModelReplyEntry
    | ToolCallEntry
    | ToolProgressEntry
    | ToolResultEntry
    | ValidationEntry
    | ApprovalEntry
    | CountEntry
    | OnceEntry
    | WakeupEntry
    | ReadingsEntry
    | EventEntry
    | SteeringEntry
    | TimerEntry
    | InterruptionEntry
    | HookInterruptionEntry
    | CancellationEntry
)

decoder = msgspec.json.Decoder(AnyEntry)


def recorded_points() -> frozenset[str]:
    """Return the points whose fires are recorded as moments: all but ``on_token``.

    Its payload contains all text so far, so the moments of a long text would need much space. The pieces of the text
    are in the entry of the reply.
    """
    return _recorded_points(len(TABLE))


@lru_cache(maxsize=1)
def _recorded_points(declared: int) -> frozenset[str]:
    """Return the points that tapes record. A changed number of declared points makes the cached answer invalid."""
    return frozenset(POINTS) - {ON_TOKEN}
