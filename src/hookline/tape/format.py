"""The format of tapes: one line of JSON per entry, in the order in which things happened (DESIGN 6.11).

The fires of points are *moments*, in the format of records (:mod:`hookline.records.format`): arrays among the entries,
which are objects. So everything that reads records reads tapes too.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from hashlib import sha256
from typing import Any

import msgspec

from .._base.attachment import Attachment
from .._base.errors import PlainError
from .._base.frozen import EMPTY, Frozen, History, digest, plain, scrub
from .._base.text import error_text
from .._kernel.errors import ModelError
from .._kernel.payloads import ApprovalAnswer, ModelRequest, ToolCallRequest
from .._kernel.points import ON_TOKEN, POINTS, TABLE
from .._kernel.values import ErrorInfo, Ids, Message, ModelResponse, ToolSpec, Usage
from .._run.budget import NO_LIMITS, Limits
from .._run.options import StreamMode
from ..models.errors import ProviderError
from ..records.format import MomentLine
from ..tools._tool import Effect

VERSION = 3
"""The version of the format. Hookline also reads version 2 (:func:`decode_version_2`)."""


class TapeError(PlainError):
    """A tape cannot be read, written or replayed. The message says what to do."""


class Entry(Frozen, frozen=True, tag_field="entry", omit_defaults=True):
    """One line of a tape.

    ``at`` is the time in seconds since the tape started. ``inside`` is the number of the tool call that produced the
    entry; a replay calls no tools, so it does not produce such entries again. ``branch`` is the number of the part of
    the run that the entry belongs to: parts that run concurrently, such as the calls of a batch, have a branch each,
    and the entries of one branch have a fixed order. ``readings`` are the values of ``ctx.clock``, ``ctx.random`` and
    ``ctx.new_id`` that were read in the branch since its previous entry, each with its kind.
    """

    at: float = 0.0
    inside: int = 0
    branch: int = 0
    readings: Sequence[tuple[str, Any]] = ()


class HeaderEntry(Entry, frozen=True, tag="tape"):
    """The first line. ``time`` and ``monotonic`` are the clock readings at the start of the tape."""

    version: int = 0
    hookline: str = ""
    time: float = 0.0
    monotonic: float = 0.0


class BranchEntry(Entry, frozen=True, tag="branch"):
    """The branch ``parent`` started this branch for a tool call, an approval, a progress report or a nested run.

    ``run`` is set if the branch belongs to that run; ``call_id`` and ``attempt`` too if it belongs to a tool call.
    """

    parent: int = 0
    run: str = ""
    call_id: str = ""
    attempt: int = 0


class RecordedSession(Frozen, frozen=True, omit_defaults=True):
    """The session in which a run started. ``fresh`` is true if the run was the first of the session."""

    id: str = ""
    key: str = ""
    platform: str = ""
    personality_id: str = ""
    personality_changes: Any = None
    fresh: bool = True


class RecordedTool(Frozen, frozen=True, omit_defaults=True):
    """The properties of a tool that guards use. ``offered`` says whether the model saw the tool.

    Tapes of earlier versions have no ``effects``: their tools are undeclared, and keep the flags that were recorded.
    """

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


class RunEntry(Entry, frozen=True, tag="run"):
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
    stream: StreamMode | None = None  # older tapes: all text was live, and not all void text was withdrawn


class ModelRequestEntry(Entry, frozen=True, tag="model_request"):
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


class RecordedError(Frozen, frozen=True, omit_defaults=True):
    """The properties of an error that a run can react to."""

    type: str
    message: str
    family: str = ""
    retry_after: float | None = None

    @classmethod
    def from_error(cls, error: BaseException) -> RecordedError:
        """Record an error."""
        family = next((name for name, kind in _FAMILIES.items() if isinstance(error, kind)), "")
        return cls(type(error).__name__, error_text(error), family, getattr(error, "retry_after", None))

    def error(self) -> BaseException:
        """Make an error with the recorded type name, message and base class."""
        kind = _FAMILIES.get(self.family, Exception)
        made: BaseException = type(self.type, (kind,), {})(self.message)
        if self.family == "provider":
            made.retry_after = self.retry_after  # type: ignore[attr-defined]
        return made


_FAMILIES: dict[str, type[BaseException]] = {
    "provider": ProviderError,
    "model": ModelError,
    "plain": PlainError,
    "cancelled": asyncio.CancelledError,
}


class ModelReplyEntry(Entry, frozen=True, tag="model_reply"):
    """The reply to a request: the pieces of a streamed reply, then the response or an error.

    There is no response and no error if the call was ``cancelled``, or if the reader ``closed`` the stream early.
    """

    number: int = 0
    pieces: tuple[str, ...] = ()
    response: ModelResponse | None = None
    raised: RecordedError | None = None
    cancelled: bool = False
    closed: bool = False


class ToolCallEntry(Entry, frozen=True, tag="tool_call"):
    """A call of a tool. A replay calls the tool only if it ``runs_agents``."""

    number: int = 0
    run: str = ""
    request: ToolCallRequest = ToolCallRequest("", "")
    runs_agents: bool = False


class ToolProgressEntry(Entry, frozen=True, tag="tool_progress"):
    """A progress report of a tool."""

    number: int = 0
    fraction: float | None = None
    message: str = ""


class ToolResultEntry(Entry, frozen=True, tag="tool_result"):
    """The result of a tool call. ``refused`` says that a hook blocked a model call made by the tool."""

    number: int = 0
    value: Any = None
    raised: RecordedError | None = None
    cancelled: bool = False
    refused: bool = False
    attachments: tuple[Attachment, ...] = ()


class ValidationEntry(Entry, frozen=True, tag="validation"):
    """Arguments that a tool's validation changed or rejected."""

    tool: str = ""
    arguments: Any = None
    checked: Any = None
    problem: str = ""


class ApprovalEntry(Entry, frozen=True, tag="approval"):
    """The decision of the approvers on a call. ``failures`` are errors of approvers that did not end the request."""

    number: int = 0
    run: str = ""
    call_id: str = ""
    attempt: int = 1
    answer: ApprovalAnswer | None = None
    by: str = ""
    failures: tuple[ErrorInfo, ...] = ()
    failed: ErrorInfo | None = None
    cancelled: bool = False


class CountEntry(Entry, frozen=True, tag="count"):
    """A number from the model: a token count or a price."""

    key: str = ""
    value: float | None = None


class ReadingsEntry(Entry, frozen=True, tag="readings"):
    """Readings after the last other entry of a branch; in version 2, those before the next entry of the branch."""


class EventEntry(Entry, frozen=True, tag="event"):
    """An event of a run: an :class:`~hookline.Event`, or a dict if its type is not one of Hookline's."""

    event: Any = None


NO_MOMENT = MomentLine("", "", 0, 0, 0.0, 0.0, msgspec.Raw(b"{}"))


class MomentEntry(EventEntry, frozen=True, tag="moment"):
    """A fire of a point: a line of a record. ``event`` is the event that it stands for."""

    moment: MomentLine = NO_MOMENT


class SteeringEntry(Entry, frozen=True, tag="steering"):
    """A message that was sent into a running run."""

    run: str = ""
    text: str = ""
    attachments: tuple[Attachment, ...] = ()


class TimerEntry(Entry, frozen=True, tag="timer"):
    """A time limit was reached: the ``number``-th timer of the branch fired."""

    number: int = 0


class CancellationEntry(Entry, frozen=True, tag="cancellation"):
    """The run was cancelled from outside."""

    reason: str = ""


AnyEntry = (
    HeaderEntry
    | BranchEntry
    | RunEntry
    | ModelRequestEntry
    | ModelReplyEntry
    | ToolCallEntry
    | ToolProgressEntry
    | ToolResultEntry
    | ValidationEntry
    | ApprovalEntry
    | CountEntry
    | ReadingsEntry
    | EventEntry
    | SteeringEntry
    | TimerEntry
    | CancellationEntry
)

decoder = msgspec.json.Decoder(AnyEntry)

_VERSION_2 = {
    "tape_began": "tape",
    "lane_began": "branch",
    "run_began": "run",
    "model_asked": "model_request",
    "model_answered": "model_reply",
    "tool_called": "tool_call",
    "tool_reported": "tool_progress",
    "tool_answered": "tool_result",
    "arguments_checked": "validation",
    "approval_answered": "approval",
    "counted": "count",
    "drawn": "readings",
    "happened": "event",
    "steered_in": "steering",
    "alarm_rang": "timer",
    "cancelled_from": "cancellation",
}
"""The names of entries in version 2, which has an event for each fire instead of a moment."""


def decode_version_2(line: bytes) -> Entry:
    """Decode an entry of a tape of version 2.

    Raises:
        msgspec.DecodeError: it is not an entry.
    """
    data = msgspec.json.decode(line, type=dict[str, Any])
    data["entry"] = _VERSION_2.get(data.get("entry", ""), "")
    data["branch"] = data.pop("lane", 0)
    for old, new in (("ledgers", "budgets"), ("values", "readings")):
        if old in data:
            data[new] = data.pop(old)
    if data["entry"] == "model_request":
        request = data.pop("request")
        data["purpose"] = request["purpose"]
        data["changed"] = {**request, "messages": {"kept": data.pop("kept", 0), "new": request["messages"]}}
    return msgspec.convert(data, AnyEntry)  # type: ignore[no-any-return]


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


_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")


def without_addresses(text: str) -> str:
    """Remove object addresses, as in ``<object at 0x7f...>``: they differ in every process."""
    return _ADDRESS.sub(" at 0x", text) if " at 0x" in text else text


_NO_ATTACHMENTS = b',"attachments":[]}'


def _without_empty_attachments(message: bytes) -> bytes:
    """Return the JSON of a message without attachments as older versions wrote it: old tapes contain its digest."""
    return message[: -len(_NO_ATTACHMENTS)] + b"}" if message.endswith(_NO_ATTACHMENTS) else message


NO_SETTINGS = digest((None, None, {}))[:16]


class RequestDigests:
    """Digests of requests to the model: one per part, so that a replay can name the part that differs.

    The name of the model is left out because a replay calls no model. A conversation grows by a few messages from one
    request to the next, so each message is digested once, and the digest of the messages, which is that of their
    digests, is continued where the previous request ended.
    """

    def __init__(self) -> None:
        self._messages: dict[int, tuple[Message, bytes]] = {}
        """The digest of each message by its identity; with the message, so that its identity is not reused."""
        self._last: dict[tuple[str, str], tuple[Sequence[Message], Any]] = {}
        """By run and purpose, the messages of the last request and the hash of their digests."""
        self._tools: tuple[Any, str] = (), digest(())[:16]
        """The tools of the last request, and their digest."""

    def of(self, request: ModelRequest) -> dict[str, str]:
        """Return the digests of a request."""
        if request.tools is not self._tools[0]:
            self._tools = request.tools, digest(request.tools)[:16]
        settings = request.response_format, request.tool_choice, request.params
        return {
            "messages": self._digest_of_request(request),
            "tools": self._tools[1],
            "settings": NO_SETTINGS if settings == (None, None, {}) else digest(settings)[:16],
        }

    def request_key(self, request: ModelRequest) -> str:
        """Return the key of the token count of a whole request."""
        return "request " + " ".join(self.of(request).values())

    def count_key(self, content: str | Sequence[Message]) -> str:
        """Return the key of the token count of a text or of messages."""
        if isinstance(content, str):
            return digest(scrub(content))[:16]
        return sha256(self._digests_of(content)).hexdigest()[:16]

    def _digest_of_request(self, request: ModelRequest) -> str:
        key, messages = (request.ids.run_id, request.purpose), request.messages
        before, known = self._last.get(key, ((), None))
        tail = messages.tail_after(before) if type(messages) is History else None
        state = sha256() if tail is None or known is None else known.copy()
        state.update(self._digests_of(messages if tail is None or known is None else tail))
        self._last[key] = messages, state
        return str(state.hexdigest())[:16]

    def _digests_of(self, messages: Sequence[Message]) -> bytes:
        known, found = self._messages, []
        for message in messages:
            pair = known.get(id(message))
            if pair is None:
                data = _without_empty_attachments(message.to_json())
                if b" at 0x" in data:
                    data = without_addresses(data.decode()).encode()
                pair = known[id(message)] = message, sha256(data).digest()
            found.append(pair[1])
        return b"".join(found)


class Version2Digests(RequestDigests):
    """The digests in tapes of version 2."""

    def of(self, request: ModelRequest) -> dict[str, str]:
        """Return the digests of a request."""
        parts = {
            "messages": [
                without_addresses(_without_empty_attachments(message.to_json()).decode())
                for message in request.messages
            ],
            "tools": plain(request.tools),
            "settings": [plain(request.response_format), request.tool_choice, plain(request.params)],
        }
        return {name: digest(part)[:16] for name, part in parts.items()}

    def count_key(self, content: str | Sequence[Message]) -> str:
        """Return the key of the token count of a text or of messages."""
        if isinstance(content, str):
            return digest(scrub(content))[:16]
        messages = [msgspec.json.decode(_without_empty_attachments(message.to_json())) for message in content]
        return digest(messages)[:16]


def price_key(usage: Usage) -> str:
    """Return the key of a price."""
    return f"price {usage.to_json().decode()}"


def outcome_of(error: BaseException) -> dict[str, Any]:
    """Return the entry fields for a call that raised: cancelled from outside, or ended by its own error."""
    task = asyncio.current_task() if isinstance(error, asyncio.CancelledError) else None
    if isinstance(error, GeneratorExit) or (task is not None and task.cancelling()):
        return {"cancelled": True}
    return {"raised": RecordedError.from_error(error)}
