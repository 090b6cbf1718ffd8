"""The page of one run: its timeline with the verdicts of hooks, live, and the forms to steer and to cancel it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..._base.text import counted
from ..._base.workers import in_thread
from ...explain.from_events import EventsView
from ...explain.from_facts import stored_view
from ...explain.view import HookOutcome, MomentView, RunView, count_totals, hook_outcomes
from ...explain.words import QUIET_POINTS
from ...stores.approvals import ApprovalRow
from ...stores.callers import Caller
from ...stores.keys import KeyStore
from ...stores.runs import RunRecord
from ..errors import ApiError, UnknownRunError
from ..explain import RunRecords
from ..replay import tape_response
from ..routing import Endpoint, caller_of, json_response
from ..runs import RunService
from .approvals import approval_card, card_id
from .live import LiveViews, Render
from .login import form, page_endpoint, wants_sections
from .render import base_of, caller_names, fragment, names_of, page
from .sections import Sections, add_event, draw, draw_all, draw_together
from .timeline import Timeline, kind_of, step_line

MAX_STEPS = 100
"""Number of steps that a page shows at once."""
FEW_STEPS = 30
"""Up to this number of steps, all of them are open at first."""
CONVERSATION = 20
"""Number of runs of the same conversation that the page links to."""

PAGE = "/console/runs/{id}"
LIVE = "/console/runs/{id}/live"
STEER = "/console/runs/{id}/messages"
CANCEL = "/console/runs/{id}/cancel"
TAPE = "/console/runs/{id}/tape"
TEMPLATE = "run_sections.html"
PARTS = ("head", "actions", "axis", "older")


class RunPage:
    """The page of a run, from its events, and for callers with the right ``admin`` also from its record.

    Args:
        service: knows the runs.
        keys: the API keys, for the names of callers; ``None`` if the host application knows the callers.
        live: keeps open pages up to date.
        records: the records of the runs.
        is_audited: whether there is an audit log to link to.
    """

    def __init__(
        self, service: RunService, keys: KeyStore | None, live: LiveViews, records: RunRecords, *, is_audited: bool
    ) -> None:
        self._service = service
        self._keys = keys
        self._live = live
        self._records = records
        self._is_audited = is_audited

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        pages = (
            ("GET", PAGE, self._show, ("read",), "console_run"),
            ("GET", LIVE, self._stream, ("read",), "console_run_live"),
            ("POST", STEER, self._steer, ("run",), "console_steer"),
            ("POST", CANCEL, self._cancel, ("run",), "console_cancel"),
            ("GET", TAPE, self._tape, ("admin",), "console_tape"),
        )
        return [page_endpoint(method, path, handler, scopes, name) for method, path, handler, scopes, name in pages]

    async def _show(self, request: Request) -> Response:
        caller, base = caller_of(request), base_of(request)
        run = await self._service.get(request.path_params["id"], caller)
        is_record = request.query_params.get("from") == "record"
        first = _first(request)
        if is_record:
            if not caller.may("admin"):
                raise ApiError(403, "forbidden", "the record contains what hooks hid: it needs the right admin")
            view = await self._records.view(run.id)
            made = in_thread(RunSections(base, caller, first, self._names).render, run, view)
            sections = await draw_together((f"run-{name}" for name in PARTS), made)
        else:
            sections = await self._live.show(request, *self._view(request, run.id))
        conversation = await self._service.list(caller, session_id=run.session_id, limit=CONVERSATION)
        stream = LIVE.format(id=quote(run.id)) + ("" if first is None else f"?{first=}")
        values: dict[str, Any] = {} if is_record or run.is_over else {"live": stream}
        return page(
            request,
            "run.html",
            title=f"{run.agent}: {' '.join(run.task.split())[:60] or run.id}",
            run=run,
            sections=sections,
            cards=[html for name, html in sections.items() if not name.startswith("run-")],
            conversation=conversation[::-1],
            is_record=is_record,
            records=self._records.is_on,
            has_record=is_record or await self._has_record(run, caller),
            is_audited=self._is_audited,
            has_tape=caller.may("admin") and self._records.tape(run.id) is not None,
            **values,
        )

    async def _has_record(self, run: RunRecord, caller: Caller) -> bool:
        """Return whether the caller may read the record of a run, or of the run that it is nested in."""
        if not self._records.is_on or not caller.may("admin"):
            return False
        ids = [id for id in (run.id, run.parent_run_id) if id]
        return bool(await asyncio.to_thread(self._records.places, ids))

    async def _stream(self, request: Request) -> Response:
        run = await self._service.get(request.path_params["id"], caller_of(request))
        return await self._live.stream(request, *self._view(request, run.id))

    def _view(self, request: Request, id: str) -> tuple[object, Render]:
        caller, base, first = caller_of(request), base_of(request), _first(request)
        made = _EventSections(self._service, id, caller, RunSections(base, caller, first, self._names))
        return ("run", id, first, base, caller.id, caller.scopes), made.sections

    def _names(self) -> dict[str, str]:
        """Return the names of callers by their ids."""
        return caller_names(self._keys)

    async def _steer(self, request: Request) -> Response:
        id, caller, fields = request.path_params["id"], caller_of(request), await form(request)
        text = fields.get("text", "").strip()
        await self._service.get(id, caller)  # who may not see the run learns nothing about it
        if not text:
            raise ApiError(400, "empty", "write a message for the run first")
        await self._service.steer(id, caller, text)
        return _done(request, id)

    async def _cancel(self, request: Request) -> Response:
        id, caller, fields = request.path_params["id"], caller_of(request), await form(request)
        await self._service.cancel(id, caller, fields.get("reason", "").strip())
        return _done(request, id)

    async def _tape(self, request: Request) -> Response:
        run = await self._service.get(request.path_params["id"], caller_of(request))
        return tape_response(self._records, run.id)


def _first(request: Request) -> int | None:
    """Return the position of the first step to show; ``None`` for the last steps."""
    given = request.query_params.get("first", "")
    return int(given) if given.isascii() and given.isdigit() and len(given) < 9 else None


def _done(request: Request, id: str) -> Response:
    """Answer a form. A page with scripts gets what changes from its stream."""
    if wants_sections(request):
        return json_response({})
    return RedirectResponse(base_of(request) + PAGE.format(id=quote(id)), 303)


class _EventSections:
    """The sections of a run from its events. Each call reads the events that are new, and renders what they changed."""

    def __init__(self, service: RunService, id: str, caller: Caller, sections: RunSections) -> None:
        self._service = service
        self._id = id
        self._caller = caller
        self._sections = sections
        self._built = EventsView()
        self._last: Sections = {}
        self._over = False

    async def sections(self) -> Sections:
        """Render the sections."""
        return await draw_together((f"run-{name}" for name in PARTS), self._found())

    async def _found(self) -> Sections:
        if self._over:
            return self._last
        try:
            run = await self._service.get(self._id, self._caller)
        except UnknownRunError:  # old runs are deleted
            return self._last
        self._last = await in_thread(self._render, run)
        return self._last

    def _render(self, run: RunRecord) -> Sections:
        built = self._built
        while found := self._service.store.events(run.id, built.seq):
            for event in found:
                add_event(built, event)
        if not built.seq and not run.is_served:
            self._over = run.is_over
            return self._sections.render(run, stored_view(self._service.store, run))
        built.view.rules = built.view.rules or self._service.store.rules(run.id)
        waiting = () if run.status != "waiting" else self._service.approvals.rows(status="pending", root_id=run.id)
        sections = self._sections.render(run, built.view, set(built.changed), waiting)
        built.changed.clear()  # after an error, the same steps are drawn again
        self._over = run.is_over and built.seq >= run.last_seq
        return sections


class RunSections:
    """Renders a run. Steps that have not changed are kept.

    Args:
        base: the path at which the server is mounted.
        caller: the caller who sees the page.
        first: the position of the first step to show; ``None`` for the last steps.
        names: returns the names of callers by their ids.
    """

    def __init__(self, base: str, caller: Caller, first: int | None, names: Callable[[], Mapping[str, str]]) -> None:
        self._base = base
        self._caller = caller
        self._first = first
        self._names = names
        self._steps: dict[int, str] = {}
        self._scale: tuple[float, bool] = (0.0, True)

    def render(
        self,
        run: RunRecord,
        view: RunView,
        changed: set[int] | None = None,
        waiting: Sequence[ApprovalRow] = (),
    ) -> Sections:
        """Return the sections.

        Args:
            run: the record of the run.
            view: the run.
            changed: the positions of the steps that have changed since the last call; ``None`` for all.
            waiting: its calls that wait for approval.
        """
        is_open, count = not run.is_over, len(view.steps)
        if is_open:
            count_totals(view)
        timeline = Timeline(view, is_open)
        if changed is None or self._scale != (timeline.total, is_open):
            self._steps.clear()  # every bar has another length
            self._scale = timeline.total, is_open
        first = max(0, count - MAX_STEPS) if self._first is None else min(self._first, max(0, count - 1))
        shown = range(first, min(count, first + MAX_STEPS))
        values = {
            "run": run,
            "view": view,
            "is_open": is_open,
            "caller": self._caller,
            "timeline": timeline,
            "shown": shown,
            "page_of": MAX_STEPS,
            "owner": names_of(self._caller, self._names(), run.owner),
            "counted": counted,
        }
        made = draw_all(TEMPLATE, self._base, "run", PARTS, **values)
        path = PAGE.format(id=quote(run.id))
        for row in reversed(waiting):
            made[card_id(row.id)] = approval_card(row, self._caller, self._names(), self._base, path, "run-asks")
        for position in shown:
            # The last steps are rendered again: they are open at first, and the one before was the last until now.
            if position not in self._steps or changed is None or position in changed or position >= count - 2:
                make = partial(self._step, view, position, values)
                self._steps[position] = draw(f"run-step-{position}", make, tag="li", into="run-steps")
            made[f"run-step-{position}"] = self._steps[position]
        return made

    def _step(self, view: RunView, position: int, values: dict[str, object]) -> str:
        step = view.steps[position]
        line = step_line(step, position)
        is_last = position == len(view.steps) - 1
        return fragment(
            TEMPLATE,
            self._base,
            section="step",
            step=step,
            position=position,
            line=line,
            is_shown=len(view.steps) <= FEW_STEPS or bool(line.verdicts) or is_last,
            kind_of=kind_of,
            step_line=step_line,
            quiet=QUIET_POINTS,
            hooks_at=partial(_hooks_at, view),
            **values,
        )


def _hooks_at(view: RunView, moment: MomentView) -> list[HookOutcome]:
    """Return what each hook did at a moment, in firing order; nothing if only those that spoke are known."""
    chain = view.chains[moment.chain] if view.chains else []
    return hook_outcomes(moment, chain) if chain else []
