"""What callers send and see of approvals, as JSON."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

import msgspec

from ..stores.approvals import ApprovalRow, GrantRow
from .views import Named

Message = Annotated[str, msgspec.Meta(max_length=4000)]
Digest = Annotated[
    str, msgspec.Meta(min_length=1, max_length=200, description="The digest of the call that was looked at.")
]
Glob = Annotated[str, msgspec.Meta(max_length=1000)]
Status = Literal["pending", "approved", "denied", "edited", "expired", "cancelled"]
Scope = Literal["once", "session", "always"]


class Approve(msgspec.Struct, forbid_unknown_fields=True, tag_field="decision", tag="approve"):
    """Let the call run.

    ``remember`` it for this ``session``, or ``always`` for this agent; then ``pattern`` says for which arguments, by
    name and glob; without one, for exactly these.
    """

    digest: Digest
    message: Message = ""
    remember: Scope = "once"
    pattern: Annotated[dict[str, Glob], msgspec.Meta(min_length=1, max_length=100)] | None = None


class Deny(msgspec.Struct, forbid_unknown_fields=True, tag_field="decision", tag="deny"):
    """Do not let the call run; the model is told the message."""

    digest: Digest
    message: Message = ""


class Edit(msgspec.Struct, forbid_unknown_fields=True, tag_field="decision", tag="edit"):
    """Let the call run with other arguments, if the guards let them pass."""

    digest: Digest
    arguments: dict[str, Any]
    message: Message = ""


Decision = Approve | Deny | Edit


class ApprovalsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which calls to list; ``all`` are also those that were decided."""

    status: Status | Literal["all"] = "pending"
    run: Annotated[Named, msgspec.Meta(description="Of this run only, and of the runs inside it.")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 100


class QuestionView(msgspec.Struct, frozen=True):
    """What a hook asks about a call."""

    text: str
    hook: str
    reason: str


class ApprovalView(msgspec.Struct, frozen=True):
    """A call that was put to people.

    ``run_id`` is the run that was started, ``asked_in`` the one that asks, which may be inside it. ``digest`` is of the
    tool and its arguments: a decision must name it. ``edit`` are the arguments that somebody gave it instead.
    """

    id: str
    status: Status
    run_id: str
    asked_in: str
    call_id: str
    attempt: int
    tool: str
    arguments: dict[str, Any]
    questions: tuple[QuestionView, ...]
    digest: str
    agent: str
    owner: str
    correlation_id: str
    asked: float
    expires: float
    decided: float | None
    by: str
    message: str
    edit: dict[str, Any] | None
    remember: Scope

    @classmethod
    def of(cls, row: ApprovalRow) -> Self:
        """A call as callers see it."""
        questions = tuple(QuestionView(each.text, each.hook, each.reason) for each in row.questions)
        own: dict[str, Any] = {"run_id": row.root_id, "asked_in": row.run_id, "questions": questions}
        return cls(**{name: getattr(row, name) for name in cls.__struct_fields__ if name not in own}, **own)


class ApprovalsPage(msgspec.Struct, frozen=True):
    """Calls that were put to people, the newest first."""

    approvals: tuple[ApprovalView, ...]


class GrantView(msgspec.Struct, frozen=True):
    """A standing permission: for the calls of ``tool`` that ``pattern`` covers, or that have exactly ``arguments``."""

    id: str
    scope: Literal["session", "always"]
    agent: str
    owner: str
    tool: str
    pattern: dict[str, str]
    arguments: dict[str, Any] | None
    hooks: tuple[str, ...]
    by: str
    at: float

    @classmethod
    def of(cls, row: GrantRow) -> Self:
        """A permission as callers see it."""
        return cls(**{name: getattr(row, name) for name in cls.__struct_fields__})


class GrantsPage(msgspec.Struct, frozen=True):
    """Standing permissions, the newest first."""

    grants: tuple[GrantView, ...]
