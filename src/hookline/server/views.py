"""What callers send and see of runs, as JSON."""

from __future__ import annotations

from typing import Annotated, Literal, Self

import msgspec

from ..stores.runs import RunRecord
from .callers import Caller

END = r"(?![\s\S])"  # of a text; "$" would let a line break pass
IdText = Annotated[str, msgspec.Meta(max_length=128, pattern=rf"^[!-~]*{END}")]
"""An id of a caller's own: at most 128 printable ASCII characters, without spaces."""
Named = Annotated[str, msgspec.Meta(max_length=200, pattern=rf"^[^\u0000-\u001f\u007f]*{END}")]
"""A name of a caller's own: at most 200 characters, none of them a control character."""
Said = Annotated[str, msgspec.Meta(min_length=1, pattern=r"\S")]
Wait = Annotated[float, msgspec.Meta(ge=0, le=60, description="Seconds to wait for it at most.")]
State = Literal[
    "queued", "running", "waiting", "completed", "stopped", "ended", "failed", "cancelled", "interrupted"
]  # fmt: skip
Number = Annotated[int, msgspec.Meta(ge=0, le=10**15 - 1)]


class RunRequest(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """What a run is started with.

    ``session`` names a conversation to go on with, ``agent`` one of those at ``/agents``; the first one if left out.
    """

    task: Said
    agent: Named = ""
    session: Named = ""
    task_id: IdText = ""
    correlation_id: IdText = ""
    wait: Wait = 0.0


class CancelRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Why a run is cancelled."""

    reason: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class MessageRequest(msgspec.Struct, forbid_unknown_fields=True):
    """What is said to a run that goes on."""

    text: Said


class OnceHeader(msgspec.Struct, rename={"key": "Idempotency-Key"}):
    """A key with which a request may be sent again."""

    key: Annotated[str, msgspec.Meta(min_length=1, max_length=255, pattern=rf"^[!-~]+{END}")] = ""


class ResumeHeader(msgspec.Struct, rename={"seq": "Last-Event-ID"}):
    """The number of the last event that was read; none, if it is empty."""

    seq: Annotated[str, msgspec.Meta(pattern=rf"^[0-9]{{0,15}}{END}")] = ""


class WaitQuery(msgspec.Struct, forbid_unknown_fields=True):
    """How long to wait for the end of a run."""

    wait: Wait = 0.0


class ListQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which runs to list."""

    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 50
    before: Annotated[Named, msgspec.Meta(description="The id of a run: those that come after it in the list.")] = ""
    agent: Named = ""
    status: State | Literal[""] = ""
    session: Named = ""


class EventsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which events to read; ``limit`` and ``wait`` are for JSON alone."""

    after: Number = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200
    wait: Wait = 0.0


class RunView(msgspec.Struct, frozen=True):
    """A run.

    ``error`` is what went wrong, ``reason`` what stopped or ended it, ``last_seq`` how many events it has so far.
    Times are seconds since 1970. ``cost`` is in US dollars, and null if it is not known.
    """

    id: str
    agent: str
    owner: str
    session: str
    task_id: str
    correlation_id: str
    transport: str
    task: str
    status: State
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
    last_seq: int

    @classmethod
    def of(cls, run: RunRecord, caller: Caller) -> Self:
        """A run as this caller sees it: what was said in it is for those who may read."""
        view = cls(**{name: getattr(run, name) for name in cls.__struct_fields__})
        if caller.may("read"):
            return view
        return msgspec.structs.replace(view, task="", reply="", error="", reason="")


class RunsPage(msgspec.Struct, frozen=True):
    """Runs, the newest first; ``next`` is the ``before`` of the next page, empty on the last one."""

    runs: tuple[RunView, ...]
    next: str


class EventView(msgspec.Struct, frozen=True):
    """An event: what every one has. The other fields depend on the type, see docs/guides/api.md."""

    seq: int
    type: str
    at: float
    run_id: str


class SentEvent(msgspec.Struct, frozen=True):
    """One event of the stream: the number, the type, and the event as JSON."""

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
    """Events of a run; ``last_seq`` is the ``after`` of the next page. If it is ``over``, no more will come."""

    events: tuple[EventView, ...]
    last_seq: int
    over: bool


class AgentView(msgspec.Struct, frozen=True):
    """An agent that is served."""

    name: str
    description: str
    tools: tuple[str, ...]


class AgentsPage(msgspec.Struct, frozen=True):
    """The agents; the first one answers where none is named."""

    agents: tuple[AgentView, ...]
