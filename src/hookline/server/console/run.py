"""The page of one run: its calls as hook lines, live, one of them in full, and the forms to steer and to cancel it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import groupby
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..._base.text import counted
from ..._base.workers import in_thread
from ...explain.from_events import LIMIT, EventsView
from ...explain.from_facts import stored_view
from ...explain.gates import GateCall
from ...explain.view import (
    TEXT_LIMIT,
    DecisionView,
    ModelCall,
    NestedRun,
    RunView,
    ToolCallView,
    count_totals,
    whole_length,
)
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
from .lines import MAX_SLOTS, Fires
from .live import LiveViews, Render
from .login import form, page_endpoint, wants_sections
from .render import base_of, caller_names, fragment, names_of, page
from .sections import Sections, add_event, draw, draw_all, draw_together
from .timeline import spans
from .tree import Row, Strip, Tree

MAX_STEPS = 100
"""Number of steps that a page shows at once."""
FEW_ROWS = 40
"""Up to this number of rows, all of them are open at first."""
CONVERSATION = 20
"""Number of runs of the same conversation that the page links to."""

PAGE = "/console/runs/{id}"
LIVE = "/console/runs/{id}/live"
STEER = "/console/runs/{id}/messages"
CANCEL = "/console/runs/{id}/cancel"
TAPE = "/console/runs/{id}/tape"
CALL = "/console/runs/{id}/call"
TEXT = "/console/runs/{id}/text"
TEMPLATE = "run_sections.html"
_WHOLE = 10_000_000
ALONE = 3
"""Of a call with many gates, this many in a row that let it pass are shown one by one."""
"""Number of characters of a text in a file; a page shows fewer."""
PARTS = ("head", "actions", "strip", "cols", "older")


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
            ("GET", CALL, self._call, ("read",), "console_call"),
            ("GET", TEXT, self._text, ("read",), "console_text"),
            ("POST", STEER, self._steer, ("run",), "console_steer"),
            ("POST", CANCEL, self._cancel, ("run",), "console_cancel"),
            ("GET", TAPE, self._tape, ("admin",), "console_tape"),
        )
        return [page_endpoint(method, path, handler, scopes, name) for method, path, handler, scopes, name in pages]

    async def _show(self, request: Request) -> Response:
        caller, base = caller_of(request), base_of(request)
        run = await self._service.get(request.path_params["id"], caller)
        is_record, first = _is_record(request), _first(request)
        if is_record:
            view = await self._recorded(run, caller)
            sections = await draw_together(
                (f"run-{name}" for name in PARTS),
                in_thread(RunSections(base, caller, first, self._names).render, run, view),
            )
            await self._live.add_frame(request)
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
            drawer=await self._drawer(request, run) if "call" in request.query_params else "",
            **values,
        )

    async def _recorded(self, run: RunRecord, caller: Caller, limit: int = TEXT_LIMIT) -> RunView:
        if not caller.may("admin"):
            raise ApiError(403, "forbidden", "the record contains what hooks hid: it needs the right admin")
        return await self._records.view(run.id, limit=limit)

    async def _call(self, request: Request) -> Response:
        """Answer a script with one call of a run in full, and a browser without scripts with the page that has it."""
        run = await self._service.get(request.path_params["id"], caller_of(request))
        if not wants_sections(request):
            return RedirectResponse(f"{base_of(request)}{PAGE.format(id=quote(run.id))}?{request.url.query}", 303)
        return json_response({"run-drawer": await self._drawer(request, run)})

    async def _text(self, request: Request) -> Response:
        """Answer with a whole text of a call, as a file. The page shows the beginning of a long one."""
        run = await self._service.get(request.path_params["id"], caller_of(request))
        part = request.query_params.get("part", "")
        row, _, _ = await self._row(request, run, _WHOLE)
        texts = _texts(row).get(part)
        if not texts:
            raise ApiError(404, "not_found", "the call has no such text")
        text = texts[""] if "" in texts else "\n\n".join(f"{name}:\n{value}" for name, value in texts.items())
        headers = {"Content-Disposition": f'attachment; filename="{part}.txt"', "X-Content-Type-Options": "nosniff"}
        return Response(text, media_type="text/plain; charset=utf-8", headers=headers)

    async def _drawer(self, request: Request, run: RunRecord) -> str:
        """Return one call of a run in full."""
        limit = TEXT_LIMIT if _is_record(request) else LIMIT
        row, view, is_open = await self._row(request, run, limit)
        where = {"call": row.key, **({"from": "record"} if _is_record(request) else {})}
        texts = {
            name: f"{TEXT.format(id=quote(run.id))}?{urlencode({**where, 'part': name})}"
            for name, parts in _texts(row).items()
            if any(len(text) > limit for text in parts.values())  # a text that was cut says so at its end
        }
        make = partial(_draw_call, row, view, base_of(request), texts, is_open=is_open)
        html: str = await in_thread(partial(draw, "run-drawer", make, tag="aside"))
        return html

    async def _row(self, request: Request, run: RunRecord, limit: int) -> tuple[Row, RunView, bool]:
        """Return the row that an address names, its run, and whether this has not ended.

        Args:
            request: names the row.
            run: the record of the run.
            limit: the number of characters of each text.
        """
        caller, key = caller_of(request), request.query_params.get("call", "")
        view = await self._recorded(run, caller, limit) if _is_record(request) else None
        await self._service.stored()

        def found() -> tuple[Row, RunView, bool]:
            store = self._service.store
            shown = stored_view(store, run, limit=limit) if view is None else view
            fires = Fires(store.tree_facts(run.id) if view is None else ())
            tree = Tree(shown, run.id, fires, is_open=not run.is_over)
            row = tree.find(key)
            if row is None:
                raise ApiError(404, "not_found", "the run has no such call")
            return row, shown, tree.is_open

        row: tuple[Row, RunView, bool] = await in_thread(found)
        return row

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


def _is_record(request: Request) -> bool:
    return request.query_params.get("from") == "record"


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
            if run.is_over:
                await self._service.stored()  # its last facts
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
        fires = Fires(self._service.store.tree_facts(run.id))
        built.view.rules = built.view.rules or self._service.store.rules(run.id)
        waiting = () if run.status != "waiting" else self._service.approvals.rows(status="pending", root_id=run.id)
        sections = self._sections.render(run, built.view, set(built.changed), waiting, fires)
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
        self._drawn: object = None

    def render(
        self,
        run: RunRecord,
        view: RunView,
        changed: set[int] | None = None,
        waiting: Sequence[ApprovalRow] = (),
        fires: Fires | None = None,
    ) -> Sections:
        """Return the sections.

        Args:
            run: the record of the run.
            view: the run.
            changed: the positions of the steps that have changed since the last call; ``None`` for all.
            waiting: its calls that wait for approval.
            fires: the gates of its calls; ``None`` if the view has them.
        """
        is_open, count = not run.is_over, len(view.steps)
        if is_open:
            count_totals(view)
        tree = Tree(view, run.id, fires or Fires(()), is_open=is_open)
        now = time.time() - view.time if is_open and view.time else 0.0  # what goes on is as long as it lasts
        strip = Strip(tree, max(view.until, view.elapsed, now))
        everything = list(tree.walk())
        first = max(0, count - MAX_STEPS) if self._first is None else min(self._first, max(0, count - 1))
        shown = range(first, min(count, first + MAX_STEPS))
        few = len(everything) <= FEW_ROWS
        drawn = tree.slots.key, is_open, few
        if changed is None or self._drawn != drawn:
            self._steps.clear()  # every line has other columns
            self._drawn = drawn
        values = {
            "run": run,
            "view": view,
            "is_open": is_open,
            "caller": self._caller,
            "strip": strip,
            "slots": tree.slots,
            "loud": sum(row.loud for row in everything),
            "failed": sum(row.failed for row in everything),
            "calls": sum(row.kind == "call" for row in everything),
            "waited": sum(
                end - begin
                for row in everything
                if row.item
                for kind, begin, end in spans(row.item)
                if kind == "wait" and end is not None
            ),
            "hooked": sum(gate.took for row in everything for gate in row.gates),
            "why": _failure(tree) if run.status == "failed" else "",
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
                make = partial(self._step, tree.rows[position], strip, few=few or position == count - 1)
                self._steps[position] = draw(f"run-step-{position}", make, tag="li", into="run-steps")
            made[f"run-step-{position}"] = self._steps[position]
        return made

    def _step(self, row: Row, strip: Strip, *, few: bool) -> str:
        return fragment(TEMPLATE, self._base, section="step", row=row, strip=strip, few=few)


class Decided(NamedTuple):
    """The decision of a hook at a point."""

    point: str
    view: DecisionView


class Shown(NamedTuple):
    """A gate in the drawer: what is drawn, and what the hook decided there."""

    gate: GateCall
    decisions: list[Decided]


def _texts(row: Row) -> dict[str, dict[str, str]]:
    """Return the texts of a call that may be long. Each argument has a name."""
    if isinstance(row.item, ToolCallView):
        return {"arguments": dict(row.item.arguments), "result": {"": row.item.result}}
    return {"reply": {"": row.item.text}} if isinstance(row.item, ModelCall) else {}


def _draw_call(row: Row, view: RunView, base: str, texts: Mapping[str, str], *, is_open: bool) -> str:
    """Draw one call, with its gates and what they changed, and links to the texts that are not shown in full."""
    moments = row.item.moments if row.item is not None and not isinstance(row.item, NestedRun) else []
    decided = [Decided(moment.point, each) for moment in moments for each in moment.decisions]
    gates = [Shown(gate, [each for each in decided if _is_at(each, gate)]) for gate in row.gates]
    others = [each for each in decided if not any(_is_at(each, gate) for gate in row.gates)]
    return fragment(
        "run_drawer.html",
        base,
        row=row,
        view=view,
        call=row.item if isinstance(row.item, ToolCallView) else None,
        model=row.item if isinstance(row.item, ModelCall) else None,
        before=_parts([each for each in gates if each.gate.key[0] < 2], few=len(gates) <= MAX_SLOTS),
        after=_parts([each for each in gates if each.gate.key[0] >= 2], few=len(gates) <= MAX_SLOTS),
        others=others,
        moments=moments,
        is_open=is_open,
        texts=texts,
        sizes={name: sum(map(whole_length, parts.values())) for name, parts in _texts(row).items()},
        counted=counted,
    )


def _parts(gates: Sequence[Shown], *, few: bool) -> list[list[Shown]]:
    """Return gates in parts that are shown together: unless there are few, those in a row that let the call pass."""
    found: list[list[Shown]] = []
    for quiet, part in groupby(gates, key=lambda each: each.gate.state == "passed" and not each.decisions):
        each = list(part)
        found += [each] if quiet and not few and len(each) > ALONE else [[one] for one in each]
    return found


def _is_at(decided: Decided, gate: GateCall) -> bool:
    """Whether a hook decided something at this gate."""
    return GateCall(decided.point, decided.view.hook, "").key == gate.key


def _failure(tree: Tree) -> str:
    """Say in which step a run failed."""
    last = next((row for row in reversed(list(tree.walk())) if row.failed), None)
    top = None if last is None else tree.rows[int(last.key.partition(".")[0])]
    return "" if top is None or top.step.index < 0 else f" in {top.name.lower()}"
