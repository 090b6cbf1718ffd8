"""The record types of an audit log, with one flat struct for each type.

The class attributes ``type`` and the field names are written to the file, so they do not change.
"""

from __future__ import annotations

from typing import ClassVar

import msgspec
from msgspec import UNSET, UnsetType

Text = str | UnsetType
"""A field that is written only if the log keeps texts (``content=True``)."""

Files = list[str] | UnsetType
"""Attachments, each as its digest, media type and size; written only if there are any."""


class AuditRecord(msgspec.Struct, frozen=True, gc=False):
    """Fields of a record besides its number, time, type and ids; ``when`` describes when it is written."""

    type: ClassVar[str] = ""
    when: ClassVar[str] = ""
    texts: ClassVar[frozenset[str]] = frozenset()
    """Names of the fields that are texts."""

    def __init_subclass__(cls, **_: object) -> None:
        cls.texts = frozenset(name for name, kind in cls.__annotations__.items() if "Unset" in kind or kind == "Text")


class RunStartRecord(AuditRecord, frozen=True):
    """A run started."""

    type = "run_start"
    when = "a run starts"

    rules: str


class TaskRecord(AuditRecord, frozen=True):
    """The task of a run."""

    type = "task"
    when = "the run accepts its task, as changed by `on_run_start` hooks"

    chars: int
    text: Text = UNSET
    attachments: Files = UNSET


class ModelRecord(AuditRecord, frozen=True):
    """A model call ended."""

    type = "model"
    when = "a model call ends, also if its reply was rejected"

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


class VerdictRecord(AuditRecord, frozen=True):
    """A hook returned a result, or failed."""

    type = "verdict"
    when = "a hook returns a result other than `None`, or fails"

    hook: str
    point: str
    phase: str
    verb: str
    reason: str
    rules: str
    error: Text = UNSET


class ShadowRecord(AuditRecord, frozen=True):
    """A hook in shadow mode would have returned a result."""

    type = "shadow"
    when = "a hook under `shadow` would have returned a result other than `None`"

    hook: str
    point: str
    verb: str
    reason: str


class NoticeRecord(AuditRecord, frozen=True):
    """Hooks interfered with each other."""

    type = "notice"
    when = "hooks interfere with each other: `judged_before_rewrite`, `merge_lost`, `retry_ignored`"

    kind: str
    point: str
    hook: str
    about: str


class ToolStartRecord(AuditRecord, frozen=True):
    """An attempt of a tool call started."""

    type = "tool_start"
    when = "an attempt of a tool call starts, after hooks allowed it; a blocked call never starts"

    call_id: str
    tool: str
    digest: str
    attempt: int
    arguments: Text = UNSET


class ToolEndRecord(AuditRecord, frozen=True):
    """An attempt of a tool call ended."""

    type = "tool"
    when = "an attempt of a tool call ends, with its result as changed by `after_tool` hooks"

    call_id: str
    tool: str
    digest: str
    attempt: int
    outcome: str
    duration_ms: float
    result: Text = UNSET
    error: Text = UNSET
    attachments: Files = UNSET


class ApprovalAskedRecord(AuditRecord, frozen=True):
    """A tool call waits for approval."""

    type = "approval_asked"
    when = "a tool call waits for approval"

    call_id: str
    tool: str
    digest: str
    arguments: Text = UNSET
    questions: list[str] | UnsetType = UNSET


class ApprovalRecord(AuditRecord, frozen=True):
    """An approval was decided."""

    type = "approval"
    when = "an approval is decided or cancelled"

    call_id: str
    decision: str
    by: str
    digest: str
    message: Text = UNSET


class VoteRecord(AuditRecord, frozen=True):
    """Somebody approved a call that needs another person too, or tried to decide without the right to do so."""

    type = "approval_vote"
    when = (
        "somebody approves a call through a server that needs another person too (`approved`), or tries to approve one "
        "that a policy does not let them approve (`refused`, and why)"
    )

    action: str
    approval: str
    by: str
    tool: str
    digest: str
    why: str


class StopRecord(AuditRecord, frozen=True):
    """A stop signal was set."""

    type = "stop"
    when = "a stop signal is set"

    kind: str
    hook: str
    message: Text = UNSET


class ErrorRecord(AuditRecord, frozen=True):
    """Something failed."""

    type = "error"
    when = "a model, a tool or a hook fails, or a call is blocked"

    where: str
    error_type: str
    source: str
    call_id: str
    fatal: bool
    message: Text = UNSET


class SteeredRecord(AuditRecord, frozen=True):
    """A message was added to a running conversation."""

    type = "steered"
    when = "a message is added to the running conversation"

    chars: int
    text: Text = UNSET
    attachments: Files = UNSET


class RunEndRecord(AuditRecord, frozen=True):
    """A run ended."""

    type = "run_end"
    when = "a run ends"

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


class AuthRecord(AuditRecord, frozen=True):
    """A server accepted or rejected a request."""

    type = "auth"
    when = "a server accepts (`granted`) or rejects (`denied`) a request; of the ids it has only `correlation_id`"

    decision: str
    why: str
    caller: str
    name: str
    right: str
    method: str
    route: str
    address: str


class HaltRecord(AuditRecord, frozen=True):
    """Somebody halted all runs, or released them."""

    type = "halt"
    when = "somebody halts all runs (`halted`) or releases them (`released`); of the ids it has only `correlation_id`"

    action: str
    by: str
    reason: str


class OpenRecord(AuditRecord, frozen=True):
    """A process started to write to the log, or a new file started."""

    type = "open"
    when = (
        "a process starts to write, or a new file starts; `torn` is the size in bytes of an incomplete line before it, "
        "`unproven` is true if the checkpoint was missing, so that lines before it may have been removed"
    )

    pid: int = 0
    version: str = ""
    file: int = 1
    key: str = ""
    torn: int = 0
    unproven: bool = False


class RotateRecord(AuditRecord, frozen=True):
    """Last record of a full file."""

    type = "rotate"
    when = "a file is full; `file` is its new name, `next` the name that the next file will get"

    file: str
    next: str


class PruneRecord(AuditRecord, frozen=True):
    """The oldest full files are deleted."""

    type = "prune"
    when = (
        "the oldest `files` are deleted (`keep_files`); `last` and `hash` are the number and hash of their last record"
    )

    files: int = 0
    last: int = 0
    hash: str = ""


class LostRecord(AuditRecord, frozen=True):
    """Earlier records could not be written."""

    type = "lost"
    when = "writing works again after `count` records could not be written"

    count: int = 0
    why: str = ""


class CheckpointRecord(AuditRecord, frozen=True):
    """The checkpoint was updated."""

    type = "checkpoint"
    when = "the checkpoint is updated; sent to the logger only, so that another machine has a copy"

    seq: int
    hash: str


LOG_RECORDS = (OpenRecord, RotateRecord, PruneRecord, LostRecord, CheckpointRecord)
"""Records of the log about itself, which have no ids."""
RECORD_TYPES: tuple[type[AuditRecord], ...] = (
    RunStartRecord,
    TaskRecord,
    ModelRecord,
    VerdictRecord,
    ShadowRecord,
    NoticeRecord,
    ToolStartRecord,
    ToolEndRecord,
    ApprovalAskedRecord,
    ApprovalRecord,
    VoteRecord,
    StopRecord,
    ErrorRecord,
    SteeredRecord,
    RunEndRecord,
    AuthRecord,
    HaltRecord,
    *LOG_RECORDS,
)
