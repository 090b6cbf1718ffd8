"""What the records of an audit log say: one flat shape for each type."""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

Text = str | UnsetType
"""Written only where the log keeps texts (``content=True``)."""


class Fields(msgspec.Struct, frozen=True, gc=False):
    """What a record has besides its number, time, type and ids; ``when`` says when it is written."""

    type: ClassVar[str] = ""
    when: ClassVar[str] = ""
    texts: ClassVar[frozenset[str]] = frozenset()
    """The fields that are texts, and so are written only where the log keeps them."""

    def __init_subclass__(cls, **_: object) -> None:
        cls.texts = frozenset(name for name, kind in cls.__annotations__.items() if "Unset" in kind or kind == "Text")


class RunStart(Fields, frozen=True):
    """A run begins."""

    type = "run_start"
    when = "a run begins"


class Task(Fields, frozen=True):
    """The task of a run."""

    type = "task"
    when = "the task is taken in, as it left `on_run_start`"

    chars: int
    text: Text = UNSET


class Model(Fields, frozen=True):
    """A model call."""

    type = "model"
    when = "a model call is over; rejected replies too"

    provider: str
    model: str
    organization_id: str
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    finish_reason: str
    purpose: str
    hop: int
    attempt: int
    duration_ms: float
    source: str
    verb: str
    tool_calls: list[str]
    call_ids: list[str]
    content: Text = UNSET
    arguments: list[Text] | UnsetType = UNSET


class Verdict(Fields, frozen=True):
    """What one hook said."""

    type = "verdict"
    when = "a hook said something, or failed"

    hook: str
    point: str
    phase: str
    verb: str
    reason: str
    error: Text = UNSET


class Shadow(Fields, frozen=True):
    """What a hook on trial would have said."""

    type = "shadow"
    when = "a hook under `shadow` would have said something"

    hook: str
    point: str
    verb: str
    reason: str


class Notice(Fields, frozen=True):
    """Something odd about the hooks themselves."""

    type = "notice"
    when = "hooks got in each other's way: `judged_before_rewrite`, `merge_lost`, `retry_ignored`"

    kind: str
    point: str
    hook: str
    about: str


class ToolStart(Fields, frozen=True):
    """An attempt of a call begins."""

    type = "tool_start"
    when = "an attempt of a call starts, after it was judged; a call that is refused never starts"

    call_id: str
    tool: str
    digest: str
    attempt: int
    arguments: Text = UNSET


class ToolEnd(Fields, frozen=True):
    """An attempt of a call is over."""

    type = "tool"
    when = "an attempt of a call is over, as it left `after_tool`"

    call_id: str
    tool: str
    digest: str
    attempt: int
    outcome: str
    duration_ms: float
    result: Text = UNSET
    error: Text = UNSET


class ApprovalAsked(Fields, frozen=True):
    """A call waits for approval."""

    type = "approval_asked"
    when = "a call waits for approval"

    call_id: str
    tool: str
    digest: str
    arguments: Text = UNSET
    questions: list[str] | UnsetType = UNSET


class Approval(Fields, frozen=True):
    """An approval was decided."""

    type = "approval"
    when = "an approval was decided, or cancelled"

    call_id: str
    decision: str
    by: str
    digest: str
    message: Text = UNSET


class Stop(Fields, frozen=True):
    """A stop was asked for."""

    type = "stop"
    when = "a stop signal is recorded"

    kind: str
    hook: str
    message: Text = UNSET


class Error(Fields, frozen=True):
    """Something failed."""

    type = "error"
    when = "a model, a tool or a hook failed, or a call was blocked"

    where: str
    error_type: str
    source: str
    call_id: str
    fatal: bool
    message: Text = UNSET


class Steered(Fields, frozen=True):
    """Somebody spoke into a run."""

    type = "steered"
    when = "somebody put a message into the running conversation"

    chars: int
    text: Text = UNSET


class RunEnd(Fields, frozen=True):
    """A run is over."""

    type = "run_end"
    when = "a run is over"

    status: str
    stop: str
    hook_ended: str
    steps: int
    tool_calls: int
    input_tokens: int
    output_tokens: int
    cached_tokens: int
    cost: float | None
    elapsed_ms: float
    errors: int
    task: Text = UNSET
    reply: Text = UNSET


class Auth(Fields, frozen=True):
    """Whether somebody may call a server."""

    type = "auth"
    when = "a server let a request in (`granted`) or not (`denied`, and why); of the ids it has only `correlation_id`"

    decision: str
    why: str
    caller: str
    name: str
    right: str
    method: str
    route: str
    address: str


class Open(Fields, frozen=True):
    """A process begins to write, or a file begins."""

    type = "open"
    when = "a program begins to write, or a file begins; `torn`: so many bytes of half a line are before it"

    pid: int
    version: str
    file: int = 1
    key: str = ""
    torn: int = 0


class Rotate(Fields, frozen=True):
    """The last line of a file."""

    type = "rotate"
    when = "the last line of a file that is full: its name from now on, and that of the next when it is full"

    file: str
    next: str


class Lost(Fields, frozen=True):
    """Records that could not be written."""

    type = "lost"
    when = "writing works again after so many records could not be written"

    count: int
    why: str


class Checkpoint(Fields, frozen=True):
    """The head of the log, for a logger."""

    type = "checkpoint"
    when = "the head was written beside the log; sent to the logger only, so that another machine knows it"

    seq: int
    hash: str


OWN = (Open, Rotate, Lost, Checkpoint)
"""What the log writes about itself: these records have no ids."""
TYPES: tuple[type[Fields], ...] = (
    RunStart, Task, Model, Verdict, Shadow, Notice, ToolStart, ToolEnd, ApprovalAsked, Approval, Stop, Error, Steered,
    RunEnd, Auth, *OWN,
)  # fmt: skip
