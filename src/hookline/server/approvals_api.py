"""Calls that wait for approval, over plain HTTP."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, cast

from starlette.requests import Request
from starlette.responses import Response

from .._base.text import error_text
from ..stores.approvals import ApprovalRow, DecisionRefusedError
from ..stores.audit.log import AuditLog
from ..stores.errors import NotFoundError
from .approval_views import (
    ApprovalsPage,
    ApprovalsQuery,
    ApprovalView,
    Approve,
    Decision,
    Edit,
    GrantsPage,
    GrantView,
)  # fmt: skip
from .endpoints import ApiError, Endpoint, caller_of, correlation_of
from .grant_records import GrantRecords, name_of
from .requests import answer, body_of, query_of
from .service import RunService

log = logging.getLogger("hookline")


class ApprovalsApi:
    """Look at the calls that wait, decide about them, and see and take back standing permissions.

    A caller has to do with the calls of its own runs only, unless it is an admin.

    Args:
        service: whose runs they are of.
        audit: gets a record of every permission that is given or taken back here; decisions are in the run's own.
    """

    def __init__(self, service: RunService, audit: AuditLog | None = None) -> None:
        self._store, self._records = service.approvals, GrantRecords(service.approvals, audit)

    def endpoints(self) -> list[Endpoint]:
        """What can be asked for."""
        see, decide = ("read", "approve"), ("approve",)
        return [
            Endpoint(
                "GET", "/approvals", self._list, see, "list_approvals", "List calls that wait for approval",
                query=ApprovalsQuery, answer=ApprovalsPage,
            ),
            Endpoint(
                "GET", "/approvals/{id}", self._get, see, "get_approval", "Look at a call",
                answer=ApprovalView,
            ),
            Endpoint(
                "POST", "/approvals/{id}", self._decide, decide, "decide_approval", "Decide about a call",
                body=Decision, answer=ApprovalView, problems=(409, 410), about=_DECIDE,
            ),
            Endpoint(
                "GET", "/grants", self._grants, see, "list_grants", "List standing permissions",
                answer=GrantsPage,
            ),
            Endpoint(
                "DELETE", "/grants/{id}", self._revoke, decide, "revoke_grant",
                "Take a standing permission back", status=204,
            ),
        ]  # fmt: skip

    async def _list(self, request: Request) -> Response:
        wanted, caller = query_of(request, ApprovalsQuery), caller_of(request)
        rows = await asyncio.to_thread(
            self._store.rows, status="" if wanted.status == "all" else wanted.status, owner=caller.owner,
            root_id=wanted.run, limit=wanted.limit,
        )  # fmt: skip
        return answer(ApprovalsPage(tuple(map(ApprovalView.of, rows))))

    async def _get(self, request: Request) -> Response:
        return answer(ApprovalView.of(await self._find(request)))

    async def _find(self, request: Request) -> ApprovalRow:
        id = request.path_params["id"]
        try:
            return await asyncio.to_thread(self._store.find, id, owner=caller_of(request).owner)
        except NotFoundError:
            raise _unknown("call", id) from None

    async def _decide(self, request: Request) -> Response:
        decision = await body_of(request, cast("type[Decision]", Decision))
        caller, row = caller_of(request), await self._find(request)
        given: dict[str, Any] = {"decision": "deny"}
        if isinstance(decision, Approve):
            given = {"decision": "approve", "remember": decision.remember, "pattern": decision.pattern}
        elif isinstance(decision, Edit):
            given = {"decision": "edit", "arguments": decision.arguments}
        try:
            row = await asyncio.to_thread(
                self._store.decide, row.id, digest=decision.digest, by=name_of(caller), message=decision.message,
                owner=caller.owner, **given,
            )  # fmt: skip
        except DecisionRefusedError as refused:
            raise _refusal(refused) from None
        except NotFoundError:
            raise _unknown("call", row.id) from None
        await self._records.decided(row, correlation_of(request))
        return answer(ApprovalView.of(row))

    async def _grants(self, request: Request) -> Response:
        rows = await asyncio.to_thread(self._store.grants, owner=caller_of(request).owner)
        return answer(GrantsPage(tuple(map(GrantView.of, rows))))

    async def _revoke(self, request: Request) -> Response:
        id, caller = request.path_params["id"], caller_of(request)
        grants = await asyncio.to_thread(self._store.grants, owner=caller.owner)
        grant = next((each for each in grants if each.id == id), None)
        if grant is None:
            raise _unknown("permission", id)
        try:
            await asyncio.to_thread(self._store.revoke, id, owner=caller.owner)
        except NotFoundError:  # somebody was quicker
            raise _unknown("permission", id) from None
        self._records.revoked(grant, caller, correlation_of(request))
        return Response(status_code=204)


def _unknown(what: str, id: str) -> ApiError:
    return ApiError(404, f"unknown_{'approval' if what == 'call' else 'grant'}", f"there is no {what} {id!r:.80}")


def _refusal(refused: DecisionRefusedError) -> ApiError:
    over = refused.row is not None and refused.row.status in ("expired", "cancelled")
    if refused.code == "gone":
        return ApiError(
            410 if over else 409, refused.row.status if over and refused.row else "decided", error_text(refused)
        )
    if refused.code == "digest":
        return ApiError(409, "other_digest", error_text(refused))
    return ApiError(422, "bad_decision", error_text(refused))


_DECIDE = """The first decision counts. `digest` is that of the call as it was looked at: for another one, the decision
is refused. What becomes of the run is seen in its events."""
