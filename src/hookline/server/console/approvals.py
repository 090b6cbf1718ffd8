"""The inbox: calls that wait for a person in all runs, what was decided, and standing permissions."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from typing import Any, NoReturn, cast

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..._base.text import shorten
from ..._base.workers import in_thread
from ...stores.approvals import ApprovalRow, exact_pattern
from ...stores.callers import Caller
from ...stores.keys import KeyStore
from ...stores.runs import RunStore
from ..approvals import ApprovalService, Decision
from ..errors import ApiError
from ..routing import Endpoint, caller_of, correlation_of, json_response
from .live import LiveViews, Render
from .login import form, own_path, page_endpoint, wants_sections
from .render import base_of, caller_names, fragment, names_of, page
from .sections import Sections, draw, draw_all, draw_together

PATH = "/console/approvals"
WAITING = "approvals-waiting"
PARTS = ("count", "decided", "grants")
MAX_WAITING = 100
MAX_DECIDED = 30
_TASK = 100
"""Characters of the task of the run that asks."""
MAX_FORM = 500_000
"""Longest form in bytes: it can contain the edited arguments of a call."""


class ApprovalsPage:
    """The page at ``/console/approvals``.

    Args:
        approvals: decides about calls.
        runs: the runs that ask.
        keys: the names of callers; ``None`` if the host application knows them.
        live: keeps open pages up to date.
    """

    def __init__(self, approvals: ApprovalService, runs: RunStore, keys: KeyStore | None, live: LiveViews) -> None:
        self._approvals = approvals
        self._runs = runs
        self._keys = keys
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        see, decide = ("read", "approve"), ("approve",)
        pages = (
            ("GET", PATH, self._show, see, "console_approvals"),
            ("GET", f"{PATH}/live", self._stream, see, "console_approvals_live"),
            ("POST", f"{PATH}/{{id}}", self._decide, decide, "console_decide"),
            ("POST", f"{PATH}/grants/{{id}}/revoke", self._revoke, decide, "console_revoke"),
        )
        return [page_endpoint(method, path, handler, scopes, name) for method, path, handler, scopes, name in pages]

    async def _show(self, request: Request) -> Response:
        sections = await self._live.show(request, *self._view(request))
        return page(request, "approvals.html", title="Approvals", sections=sections, live=f"{PATH}/live")

    async def _stream(self, request: Request) -> Response:
        return await self._live.stream(request, *self._view(request))

    def _view(self, request: Request) -> tuple[object, Render]:
        caller, base = caller_of(request), base_of(request)
        key = "approvals", caller.id, caller.owner, caller.may("approve"), base
        return key, partial(self._sections, caller, base)

    async def _decide(self, request: Request) -> Response:
        fields, caller = await form(request, MAX_FORM), caller_of(request)
        row = await self._approvals.find(request.path_params["id"], caller)
        await self._approvals.decide(row.id, decision_of(fields, row), caller, correlation_of(request))
        return await self._done(request, fields)

    async def _revoke(self, request: Request) -> Response:
        await self._approvals.revoke(request.path_params["id"], caller_of(request), correlation_of(request))
        return await self._done(request, {})

    async def _done(self, request: Request, fields: Mapping[str, str]) -> Response:
        """Answer a script with the sections of the page, and a browser without scripts with the page it came from."""
        if not wants_sections(request):
            return RedirectResponse(base_of(request) + own_path(fields.get("next", PATH)), 303)
        sections = await self._sections(caller_of(request), base_of(request))
        return json_response({card_id(request.path_params["id"]): "", **sections})

    async def _sections(self, caller: Caller, base: str) -> Sections:
        return await draw_together((f"approvals-{name}" for name in PARTS), in_thread(self._render, caller, base))

    def _render(self, caller: Caller, base: str) -> Sections:
        store = self._approvals.store
        waiting = self._approvals.rows(caller, status="pending", limit=MAX_WAITING)
        newest = store.rows(owner=caller.owner, limit=MAX_WAITING + MAX_DECIDED)
        values: dict[str, Any] = {
            "count": len(waiting),
            "decided": [row for row in newest if row.status != "pending"][:MAX_DECIDED],
            "grants": store.grants(owner=caller.owner),
            "may_decide": caller.may("approve"),
        }
        parts = draw_all("approvals_sections.html", base, "approvals", PARTS, **values)
        names, tasks = caller_names(self._keys), open_tasks(self._runs, caller.owner) if waiting else {}
        # The oldest call is the first, so that a new one does not move the others.
        return parts | {
            card_id(row.id): approval_card(row, caller, names, base, task=tasks.get(row.root_id, ""))
            for row in reversed(waiting)
        }


def card_id(id: str) -> str:
    """Return the id of the element of a waiting call."""
    return f"approval-{id}"


def open_tasks(store: RunStore, owner: str | None) -> dict[str, str]:
    """Return the tasks of the runs that may wait for a decision, by their ids."""
    found = store.runs(MAX_WAITING, outermost=True, owner=owner, states=("running", "waiting"))
    return {run.id: run.task for run in found}


def approval_card(
    row: ApprovalRow,
    caller: Caller,
    names: Mapping[str, str],
    base: str,
    next: str = PATH,
    into: str = WAITING,
    task: str = "",
) -> str:
    """Render a waiting call, with its buttons if the caller may decide.

    Args:
        row: the call.
        caller: sees the card.
        names: the names of callers by their ids.
        base: the path at which the server is mounted.
        next: the page that follows a decision in a browser without scripts.
        into: the id of the element that a new card is added to.
        task: the task of the run, if it is known.
    """
    id = card_id(row.id)

    def make() -> str:
        return fragment(
            "approval_card.html",
            base,
            id=id,
            row=row,
            owner=names_of(caller, names, row.owner),
            may_decide=caller.may("approve"),
            objection=row.objection(caller.id),
            sees_run=caller.owner in (None, row.owner),
            single=row.needed + len(row.approved_by) == 1,  # two people approve a call as it is, and once
            pattern=exact_pattern(row.arguments),
            next=next,
            into=into,
            task=shorten(" ".join(task.split()), _TASK),
        )

    return draw(id, make, tag="article", into=into)


def decision_of(fields: Mapping[str, str], row: ApprovalRow) -> Decision:
    """Return the decision that a form contains.

    Raises:
        ApiError: a field is missing or invalid.
    """
    given: dict[str, Any] = {name: fields.get(name, "") for name in ("decision", "digest", "message")}
    if given["decision"] == "edit":
        given["arguments"] = _arguments(fields.get("arguments", ""))
    if given["decision"] == "approve" and fields.get("remember", "once") != "once":
        given["remember"] = fields["remember"]
        pattern = {name: glob for key, glob in fields.items() if (name := key.removeprefix("pattern.")) != key}
        if pattern and pattern != exact_pattern(row.arguments):
            given["pattern"] = pattern
    try:
        return msgspec.convert(given, cast("type[Decision]", Decision))
    except msgspec.ValidationError as error:
        raise ApiError(422, "bad_decision", f"nothing was decided: {error}") from None


def _arguments(text: str) -> dict[str, Any]:
    def refuse(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not JSON")

    try:
        found = json.loads(text, parse_constant=refuse)  # unlike msgspec, it says in which line the mistake is
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ApiError(422, "bad_json", f"the arguments are not JSON: {error.msg} in {where}") from None
    except (ValueError, RecursionError) as error:
        raise ApiError(422, "bad_json", f"the arguments cannot be used: {error}") from None
    if not isinstance(found, dict):
        raise ApiError(422, "bad_json", 'the arguments must be a JSON object, such as {"path": "notes/a.txt"}')
    return found
