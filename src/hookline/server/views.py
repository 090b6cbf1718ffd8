"""JSON types of the runs API: requests, query parameters, headers and responses."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import msgspec

from ..stores.callers import Caller
from ..stores.runs import RunFilter, RunRecord

END = r"(?![\s\S])"  # the end of the text; "$" would let a line break pass
IdText = Annotated[str, msgspec.Meta(max_length=128, pattern=rf"^[!-~]*{END}")]
"""An id chosen by the caller: at most 128 printable ASCII characters, without spaces."""
Name = Annotated[str, msgspec.Meta(max_length=200, pattern=rf"^[^\u0000-\u001f\u007f]*{END}")]
"""A name chosen by the caller: at most 200 characters, without control characters."""
Text = Annotated[str, msgspec.Meta(min_length=1, pattern=r"\S")]
Wait = Annotated[float, msgspec.Meta(ge=0, le=60, description="The maximum number of seconds to wait.")]
RunStatus = Literal[
    "queued", "running", "waiting", "completed", "stopped", "ended", "failed", "cancelled", "interrupted"
]
Sequence = Annotated[int, msgspec.Meta(ge=0, le=10**15 - 1)]


class AttachmentInput(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """A file for the model: its content in Base64 as ``data``, or a ``url`` that the vendor of the model fetches.

    ``media_type`` is found from the content and the name if left out.
    """

    data: str = ""
    url: str = ""
    media_type: Annotated[str, msgspec.Meta(max_length=100)] = ""
    name: Name = ""


Files = Annotated[tuple[AttachmentInput, ...], msgspec.Meta(max_length=20)]


class RunRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The run to start.

    ``agent`` is a name from ``/agents``; the first one if left out. ``session`` names a conversation to continue; a
    new one if left out. ``attachments`` are images, PDF, audio and other files for the model.
    """

    task: Text
    agent: Name = ""
    session: Name = ""
    task_id: IdText = ""
    correlation_id: IdText = ""
    wait: Wait = 0.0
    attachments: Files = ()


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """The reason for cancelling a run."""

    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class MessageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """A message to a running run, with files for the model."""

    text: Text
    attachments: Files = ()


class IdempotencyHeader(msgspec.Struct, rename={"key": "Idempotency-Key"}):
    """A key that makes it safe to send a request again."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=rf"^[!-~]+{END}")] = ""


class ResumeHeader(msgspec.Struct, rename={"seq": "Last-Event-ID"}):
    """The number of the last event that the client has read; empty for none."""

    seq: Annotated[str, msgspec.Meta(pattern=rf"^[0-9]{{0,15}}{END}")] = ""


class WaitQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The time to wait for the run to finish."""

    wait: Wait = 0.0


Time = Annotated[float, msgspec.Meta(ge=0, le=1e12, description="A Unix time in seconds.")]


class ListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A filter for runs, and the position of a page.

    ``status`` may be given several times. ``since`` and ``until`` limit the time at which a run was accepted. ``tool``
    selects runs that called a tool or tried to; ``hook`` and ``verb`` those with such a verdict, also of a person who
    denied a call; ``text`` those with a text in the task or the reply; ``model`` those that called a model. ``owner``
    is for admins, who see the runs of all callers. ``origin`` selects runs by where they came from.
    """

    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    before: Annotated[Name, msgspec.Meta(description="The id of a run: list older runs only.")] = ""
    agent: Name = ""
    status: tuple[RunStatus | Literal[""], ...] = ()
    session: Name = ""
    owner: Name = ""
    since: Time = 0.0
    until: Time = 0.0
    tool: Name = ""
    hook: Name = ""
    verb: Name = ""
    text: Name = ""
    correlation_id: IdText = ""
    model: Name = ""
    origin: Name = ""

    def chosen(self) -> RunFilter:
        """Return the filter for the store."""
        return {
            "agent": self.agent,
            "session": self.session,
            "owner": self.owner or None,
            "states": tuple(each for each in dict.fromkeys(self.status) if each),
            "created_from": self.since,
            "created_to": self.until,
            "tool": self.tool,
            "hook": self.hook,
            "verb": self.verb,
            "text": self.text,
            "correlation_id": self.correlation_id,
            "model": self.model,
            "origin": self.origin,
        }


class FeedQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Where the stream begins, as Unix time; now if left out. ``type`` may be given several times."""

    after: Time = 0.0
    type: tuple[Name, ...] = ()


class FeedHeader(msgspec.Struct, rename={"at": "Last-Event-ID"}):
    """The id of the last event that the client has read; empty for none."""

    at: Annotated[str, msgspec.Meta(pattern=rf"^([0-9]{{1,12}}(\.[0-9]{{1,6}})?)?{END}")] = ""


class FeedEvent(msgspec.Struct, frozen=True):
    """An event of a run."""

    run: str
    event: EventView


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The range of events to read. ``limit`` and ``wait`` apply to JSON responses only."""

    after: Sequence = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    wait: Wait = 0.0


class RunView(msgspec.Struct, frozen=True):
    """A run.

    ``error`` says what went wrong, ``reason`` what stopped or ended the run, ``last_seq`` is its number of events so
    far. Times are Unix times in seconds. ``elapsed`` is the number of seconds that the run took, without the time that
    it was queued or suspended. ``cost`` is in US dollars, and null if it is unknown.

    ``origin`` says where the run came from: ``server``, ``command line``, ``library``, ``channel NAME``, or the name of
    a framework or a coding agent. Only admins see runs that no caller started. What the server did not serve has no
    ``transport``, and mostly neither texts nor events.
    """

    id: str
    agent: str
    owner: str
    session: str
    task_id: str
    correlation_id: str
    origin: str
    transport: str
    task: str
    status: RunStatus
    reply: str
    error: str
    reason: str
    steps: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    created: float
    started: float | None
    ended: float | None
    elapsed: float | None
    last_seq: int

    @classmethod
    def of(cls, run: RunRecord, caller: Caller) -> Self:
        """Return a run as this caller may see it: the texts are left out without the right ``read``."""
        view = cls(**{name: getattr(run, name) for name in cls.__struct_fields__})
        if caller.may("read"):
            return view
        return msgspec.structs.replace(view, task="", reply="", error="", reason="")


class RunsPage(msgspec.Struct, frozen=True):
    """Runs, the newest first. ``next`` is the value of ``before`` for the next page, empty on the last one."""

    runs: tuple[RunView, ...]
    next: str


class EventView(msgspec.Struct, frozen=True):
    """The fields that every event has. The others depend on its type, see docs/guides/api.md."""

    seq: int
    type: str
    at: float
    run_id: str


class SentEvent(msgspec.Struct, frozen=True):
    """One event of the stream: its number, its type, and the event as JSON."""

    id: Annotated[str, msgspec.Meta(pattern="^[0-9]+$")]
    event: str
    data: Annotated[
        str,
        msgspec.Meta(
            extra_json_schema={
                "contentMediaType": "application/json",
                "contentSchema": {"$ref": "#/components/schemas/EventView"},
            }
        ),
    ]


class EventsPage(msgspec.Struct, frozen=True):
    """Events of a run. ``last_seq`` is the value of ``after`` for the next page; ``over`` marks the last page."""

    events: tuple[EventView, ...]
    last_seq: int
    over: bool


class AgentView(msgspec.Struct, frozen=True):
    """A served agent."""

    name: str
    description: str
    tools: tuple[str, ...]


class AgentsPage(msgspec.Struct, frozen=True):
    """The served agents. The first one is the default."""

    agents: tuple[AgentView, ...]
