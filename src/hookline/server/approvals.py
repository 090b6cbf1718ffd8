"""The approvals API over HTTP: decide about waiting calls, and list and revoke standing permissions (grants)."""

from __future__ import annotations

import asyncio
import logging
from typing import Annotated, Any, Literal, Self, cast

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .._base.text import error_text
from ..stores.approvals import ApprovalRow, ApprovalStore, DecisionRefusedError, GrantRow
from ..stores.audit.log import AuditLog
from ..stores.audit.records import VoteRecord
from ..stores.callers import Caller
from ..stores.errors import NotFoundError, StoreError
from .auth import LOCAL, USER
from .errors import ApiError
from .routing import Endpoint, body_of, caller_of, correlation_of, json_response, query_of
from .runs import RunService
from .views import Name

log = logging.getLogger("hookline")

Message = Annotated[str, msgspec.Meta(max_length=4000)]
Digest = Annotated[
    str, msgspec.Meta(min_length=1, max_length=200, description="The digest of the call as the caller saw it.")
]
Glob = Annotated[str, msgspec.Meta(max_length=1000)]
ApprovalStatus = Literal["pending", "approved", "denied", "edited", "expired", "cancelled"]
GrantScope = Literal["once", "session", "always"]
MAX_WAITING = 1000
"""Maximum number of waiting calls that are searched for those that a caller may approve."""


class Approve(msgspec.Struct, forbid_unknown_fields=True, tag_field="decision", tag="approve"):
    """Let the call run.

    ``remember`` the approval for this ``session``, or ``always`` for this agent. ``pattern`` then limits it to
    arguments that match, by name and glob; without a pattern it covers exactly these arguments.
    """

    digest: Digest
    message: Message = ""
    remember: GrantScope = "once"
    pattern: Annotated[dict[str, Glob], msgspec.Meta(min_length=1, max_length=100)] | None = None


class Deny(msgspec.Struct, forbid_unknown_fields=True, tag_field="decision", tag="deny"):
    """Do not let the call run. The model gets the message."""

    digest: Digest
    message: Message = ""


class Edit(msgspec.Struct, forbid_unknown_fields=True, tag_field="decision", tag="edit"):
    """Let the call run with other arguments, which pass the guards again."""

    digest: Digest
    arguments: dict[str, Any]
    message: Message = ""


Decision = Approve | Deny | Edit


class ApprovalsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """A filter for calls; the status ``all`` includes decided calls."""

    status: ApprovalStatus | Literal["all"] = "pending"
    run: Annotated[Name, msgspec.Meta(description="List calls of this run and of the runs inside it only.")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=200)] = 100


class QuestionView(msgspec.Struct, frozen=True):
    """A question that a hook asks about a call."""

    text: str
    hook: str
    reason: str


class PersonApproval(msgspec.Struct, frozen=True):
    """One person's approval of a call: how it is recorded, the name in the policy or else the id, and the time."""

    by: str
    person: str
    at: float


class ApprovalView(msgspec.Struct, frozen=True):
    """A call that needs or needed approval.

    ``run_id`` is the run that was started, ``asked_in`` the run that asks, which may be inside it. ``digest`` is
    computed from the tool and its arguments: a decision must name it. ``edit`` has the arguments of an edited call.
    ``approved_by`` has the approvals so far, ``needed`` the number of people who must still approve a waiting call, and
    ``approvers`` their names; without a policy anybody may who has the right.
    """

    id: str
    status: ApprovalStatus
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
    remember: GrantScope
    asked_by: str
    approved_by: tuple[PersonApproval, ...]
    needed: int
    approvers: tuple[str, ...]

    @classmethod
    def of(cls, row: ApprovalRow) -> Self:
        """Return the view of a stored call."""
        questions = tuple(QuestionView(each.text, each.hook, each.reason) for each in row.questions)
        approved = tuple(PersonApproval(each.by, each.person, each.at) for each in row.approved_by)
        own: dict[str, Any] = {"run_id": row.root_id, "asked_in": row.run_id, "questions": questions}
        own["approved_by"] = approved
        return cls(**{name: getattr(row, name) for name in cls.__struct_fields__ if name not in own}, **own)


class ApprovalsPage(msgspec.Struct, frozen=True):
    """Calls that need or needed approval, the newest first."""

    approvals: tuple[ApprovalView, ...]


class GrantView(msgspec.Struct, frozen=True):
    """A standing permission for calls of ``tool`` that match ``pattern``, or have exactly these ``arguments``."""

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
        """Return the view of a stored permission."""
        return cls(**{name: getattr(row, name) for name in cls.__struct_fields__})


class GrantsPage(msgspec.Struct, frozen=True):
    """Standing permissions, the newest first."""

    grants: tuple[GrantView, ...]


def caller_label(caller: Caller) -> str:
    """Return the name of a caller in decisions and audit records.

    A person behind a proxy is ``user:NAME``: people choose their names, which can read like the name of a key.
    """
    if caller.id == LOCAL:
        return "a local user"
    has_key = caller.id not in (caller.name, f"{USER}{caller.name}")  # a program or a proxy names its callers itself
    return f"key {caller.name} ({caller.id})" if has_key else caller.id


class ApprovalService:
    """Decide about waiting calls, and revoke standing permissions, for the HTTP API, the console and A2A.

    A caller can access the calls of its own runs, and those that a policy lets it approve. With the right ``admin`` it
    can access all. Runs audit the final decisions about their calls; what else happens here is audited here.

    Args:
        store: the waiting calls and permissions.
        audit: gets a record of every permission that is given or revoked, of every approval that is not enough, and of
            every decision that a policy refuses; ``None`` disables them.
    """

    def __init__(self, store: ApprovalStore, audit: AuditLog | None) -> None:
        self.store = store
        self._audit = audit

    def rows(self, caller: Caller, *, status: str = "", root_id: str = "", limit: int = 100) -> list[ApprovalRow]:
        """Return the calls that a caller can access, newest first.

        Raises:
            StoreError: the file cannot be used.
        """
        found = self.store.rows(status=status, owner=caller.owner, root_id=root_id, limit=limit)
        if caller.owner is None or status not in ("", "pending"):
            return found
        waiting = self.store.rows(status="pending", root_id=root_id, limit=MAX_WAITING)
        more = [row for row in waiting if row.owner != caller.owner and _may_access(row, caller)]
        return sorted([*found, *more], key=lambda row: row.asked, reverse=True)[:limit] if more else found

    async def find(self, id: str, caller: Caller) -> ApprovalRow:
        """Return a call.

        Raises:
            ApiError: there is no such call, or the caller cannot access it.
            StoreError: the file cannot be used.
        """
        try:
            row = await asyncio.to_thread(self.store.find, id)
        except NotFoundError:
            raise _unknown_approval(id) from None
        if not _may_access(row, caller):
            raise _unknown_approval(id)
        return row

    async def decide(self, id: str, decision: Decision, caller: Caller, correlation_id: str) -> ApprovalRow:
        """Decide about a call, and return it.

        Raises:
            ApiError: there is no such call, or the decision was not accepted.
            StoreError: the file cannot be used.
        """
        row = await self.find(id, caller)
        given: dict[str, Any] = {"decision": "deny"}
        if isinstance(decision, Approve):
            given = {"decision": "approve", "remember": decision.remember, "pattern": decision.pattern}
        elif isinstance(decision, Edit):
            given = {"decision": "edit", "arguments": decision.arguments}
        given |= {"digest": decision.digest, "message": decision.message}
        try:
            return await self.store_decision(row, caller, correlation_id, **given)
        except DecisionRefusedError as error:
            raise _decision_error(error) from None
        except NotFoundError:
            raise _unknown_approval(row.id) from None

    async def store_decision(
        self, row: ApprovalRow, caller: Caller, correlation_id: str, **decision: Any
    ) -> ApprovalRow:
        """Decide about a call that the caller can access, with the arguments of :meth:`ApprovalStore.decide`.

        Raises:
            DecisionRefusedError: the decision was not accepted.
            StoreError: the call does not exist, or the file cannot be used.
        """
        by = caller_label(caller)
        try:
            done = await asyncio.to_thread(
                self.store.decide, row.id, by=by, person=caller.id, owner=row.owner, **decision
            )
        except DecisionRefusedError as error:
            if error.code == "rights":
                self._record_vote("refused", row, by, correlation_id, str(error))
            raise
        if done.status == "pending":
            self._record_vote("approved", done, by, correlation_id)
        if done.remember != "once":
            await self._record_given(done, correlation_id)
        return done

    async def revoke(self, id: str, caller: Caller, correlation_id: str) -> None:
        """Revoke a standing permission.

        Raises:
            ApiError: there is no such permission, or it belongs to another caller.
            StoreError: the file cannot be used.
        """
        grants = await asyncio.to_thread(self.store.grants, owner=caller.owner)
        grant = next((each for each in grants if each.id == id), None)
        if grant is None:
            raise _unknown_grant(id)
        try:
            await asyncio.to_thread(self.store.revoke, id, owner=caller.owner)
        except NotFoundError:  # another request revoked it in between
            raise _unknown_grant(id) from None
        self._record_grant("revoked", grant, caller_label(caller), correlation_id)

    async def _record_given(self, row: ApprovalRow, correlation_id: str) -> None:
        """Audit the permission that a decision created."""
        try:
            grants = await asyncio.to_thread(self.store.grants, owner=row.owner)
        except StoreError as error:  # the decision is valid even if it is not audited
            log.error("the permission created by %s is not in the audit log: %s", row.id, error_text(error))
            return
        for grant in grants:
            if (grant.at, grant.by, grant.tool, grant.digest) == (row.decided, row.by, row.tool, row.digest):
                self._record_grant("given", grant, row.by, correlation_id, approval=row.id, run_id=row.root_id)
                return

    def _record_grant(self, action: str, grant: GrantRow, by: str, correlation_id: str, **more: str) -> None:
        if self._audit is not None:
            self._audit.record(
                "grant",
                action=action,
                grant=grant.id,
                by=by,
                scope=grant.scope,
                tool=grant.tool,
                agent=grant.agent,
                owner=grant.owner,
                pattern=grant.pattern,
                digest=grant.digest,
                hooks=list(grant.hooks),
                correlation_id=correlation_id,
                **more,
            )

    def _record_vote(self, action: str, row: ApprovalRow, by: str, correlation_id: str, why: str = "") -> None:
        if self._audit is not None:
            self._audit.record(
                VoteRecord.type,
                action=action,
                approval=row.id,
                by=by,
                tool=row.tool,
                digest=row.digest,
                why=why,
                correlation_id=correlation_id,
                run_id=row.root_id,
            )


def _may_access(row: ApprovalRow, caller: Caller) -> bool:
    if caller.owner in (None, row.owner):
        return True
    if row.policy is None:
        return False
    took_part = row.policy.person(caller.id) in {each.person for each in row.approved_by}
    return took_part or not row.objection(caller.id)


_DECIDE = """The first decision counts, unless a policy wants two people to approve the call: then it stays pending
after the first approval. `digest` must be that of the call as the caller saw it, or the decision is
rejected. The events of the run show what happens next."""


class ApprovalsApi:
    """The endpoints for waiting calls and standing permissions.

    Args:
        service: runs the agents.
        audit: gets a record of what is decided here, besides the records of the runs.
    """

    def __init__(self, service: RunService, audit: AuditLog | None = None) -> None:
        self._service = ApprovalService(service.approvals, audit)

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        see, decide = ("read", "approve"), ("approve",)
        return [
            Endpoint(
                "GET",
                "/approvals",
                self._list,
                see,
                "list_approvals",
                "List calls that wait for approval",
                query=ApprovalsQuery,
                response=ApprovalsPage,
            ),
            Endpoint(
                "GET", "/approvals/{id}", self._get, see, "get_approval", "Get a waiting call", response=ApprovalView
            ),
            Endpoint(
                "POST",
                "/approvals/{id}",
                self._decide,
                decide,
                "decide_approval",
                "Approve, deny or edit a waiting call",
                body=Decision,
                response=ApprovalView,
                errors=(403, 409, 410),
                description=_DECIDE,
            ),
            Endpoint(
                "GET", "/grants", self._grants, see, "list_grants", "List standing permissions", response=GrantsPage
            ),
            Endpoint(
                "DELETE",
                "/grants/{id}",
                self._revoke,
                decide,
                "revoke_grant",
                "Revoke a standing permission",
                status=204,
            ),
        ]

    async def _list(self, request: Request) -> Response:
        query, caller = query_of(request, ApprovalsQuery), caller_of(request)
        rows = await asyncio.to_thread(
            self._service.rows,
            caller,
            status="" if query.status == "all" else query.status,
            root_id=query.run,
            limit=query.limit,
        )
        return json_response(ApprovalsPage(tuple(map(ApprovalView.of, rows))))

    async def _get(self, request: Request) -> Response:
        row = await self._service.find(request.path_params["id"], caller_of(request))
        return json_response(ApprovalView.of(row))

    async def _decide(self, request: Request) -> Response:
        decision = await body_of(request, cast("type[Decision]", Decision))
        id, caller = request.path_params["id"], caller_of(request)
        row = await self._service.decide(id, decision, caller, correlation_of(request))
        return json_response(ApprovalView.of(row))

    async def _grants(self, request: Request) -> Response:
        rows = await asyncio.to_thread(self._service.store.grants, owner=caller_of(request).owner)
        return json_response(GrantsPage(tuple(map(GrantView.of, rows))))

    async def _revoke(self, request: Request) -> Response:
        await self._service.revoke(request.path_params["id"], caller_of(request), correlation_of(request))
        return Response(status_code=204)


def _unknown_approval(id: str) -> ApiError:
    return ApiError(404, "unknown_approval", f"there is no call {id!r:.80}")


def _unknown_grant(id: str) -> ApiError:
    return ApiError(404, "unknown_grant", f"there is no permission {id!r:.80}")


def _decision_error(error: DecisionRefusedError) -> ApiError:
    message = error_text(error)
    if error.code == "gone":
        if error.row is not None and error.row.status in ("expired", "cancelled"):
            return ApiError(410, error.row.status, message)
        return ApiError(409, "decided", message)
    if error.code == "digest":
        return ApiError(409, "other_digest", message)
    if error.code == "rights":
        return ApiError(403, "may_not_approve", message)
    return ApiError(422, "bad_decision", message)
