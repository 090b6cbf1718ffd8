"""Try rules on recorded runs: choose both, and see which decisions would differ."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import chain
from typing import Any
from urllib.parse import quote

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..._base.workers import in_thread
from ...backtest.page import tone_of
from ...stores.callers import Caller
from ..errors import UnknownRunError
from ..replay import MAX_RUNS, ReplayService, ReplayView
from ..replayed import Difference, ReplayedCell
from ..routing import Endpoint, caller_of, json_response, query_of
from ..runs import RunService
from .filters import CHOICES, RANGES, RecordedQuery
from .live import LiveViews, Render, Version
from .login import form_lists, page_endpoint, wants_sections
from .render import base_of, page
from .sections import Sections, draw_all, draw_together

PAGE = "/console/replay"
LIVE = "/console/live/replay"
TRY = "/console/replay/{id}"
TRY_LIVE = "/console/replay/{id}/live"
CANCEL = "/console/replay/{id}/cancel"
ROWS = 50
TRIES = 5
"""Number of earlier tries that the page links to."""
TEMPLATE = "replay_sections.html"
LISTED, TRIED = ("rows", "pages", "tries"), ("head", "cells", "runs")


class ReplayPages:
    """The pages at ``/console/replay``. A record has what hooks hid, so they need the right ``admin``.

    Args:
        service: tries rules on recorded runs.
        runs: knows the runs.
        live: keeps open pages up to date.
    """

    def __init__(self, service: ReplayService, runs: RunService, live: LiveViews) -> None:
        self._service = service
        self._runs = runs
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        pages = (
            ("GET", PAGE, self._show, "console_replay"),
            ("POST", PAGE, self._start, "console_replay_start"),
            ("GET", LIVE, self._stream, "console_replay_live"),
            ("GET", TRY, self._show_try, "console_replay_try"),
            ("GET", TRY_LIVE, self._stream_try, "console_replay_try_live"),
            ("POST", CANCEL, self._cancel, "console_replay_cancel"),
        )
        return [page_endpoint(method, path, handler, ("admin",), name) for method, path, handler, name in pages]

    # Choosing.

    async def _show(self, request: Request) -> Response:
        query = query_of(request, RecordedQuery)
        agents, given = self._runs.agents.list(), query.query()
        return page(
            request,
            "replay.html",
            title="Replay",
            query=query,
            sections=await self._live.show(request, *self._view(request, query)),
            rules=await in_thread(self._service.rules),
            is_recorded=self._service.records.is_on,
            max_runs=MAX_RUNS,
            agents=[each.name for each in agents],
            tools=sorted({tool for each in agents for tool in each.tools}),
            ranges=RANGES,
            choices=CHOICES,
            live=f"{LIVE}?{given}" if given else LIVE,
        )

    async def _stream(self, request: Request) -> Response:
        return await self._live.stream(request, *self._view(request, query_of(request, RecordedQuery)))

    def _view(self, request: Request, query: RecordedQuery) -> tuple[object, Render, Version]:
        caller, base = caller_of(request), base_of(request)
        key = "replay", query.query(), caller.id, caller.owner, base
        return key, partial(self._sections, query, caller, base), self._version

    async def _version(self) -> object:
        return self._service.jobs.version

    async def _sections(self, query: RecordedQuery, caller: Caller, base: str) -> Sections:
        return await draw_together((f"replay-{name}" for name in LISTED), self._found(query, caller, base))

    async def _found(self, query: RecordedQuery, caller: Caller, base: str) -> Sections:
        try:
            found, more = await self._recorded(query, caller)
        except UnknownRunError:
            found, more = [], ""  # it was deleted
        values: dict[str, Any] = {
            "rows": found,
            "more": query.query(before=more) if more else "",
            "query": query,
            "tries": [ReplayView.of(job) for job in self._service.jobs.list()[:TRIES]],
        }
        return draw_all(TEMPLATE, base, "replay", LISTED, **values)

    async def _recorded(self, query: RecordedQuery, caller: Caller) -> tuple[list[Any], str]:
        if not query.run:
            return await self._service.recorded(caller, ROWS, query.before, **query.chosen())
        run = await self._runs.get(query.run, caller)
        place = (await in_thread(self._service.records.places, [run.id])).get(run.id)
        return ([] if place is None else [(run, not place.position)]), ""

    async def _start(self, request: Request) -> Response:
        fields = await form_lists(request)
        ids = fields.get("shown" if "all" in fields else "run", [])
        job = await self._service.start(fields.get("rules", [""])[-1], ids, caller_of(request))
        return RedirectResponse(base_of(request) + TRY.format(id=quote(job.id)), 303)

    # One try.

    async def _show_try(self, request: Request) -> Response:
        job = self._service.jobs.get(request.path_params["id"])
        sections = await self._live.show(request, *self._try_view(request))
        values: dict[str, Any] = {} if job.is_over else {"live": TRY_LIVE.format(id=quote(job.id))}
        return page(
            request,
            "replay_try.html",
            title=f"Replay: {job.given['name']}",
            rules=job.given["name"],
            sections=sections,
            **values,
        )

    async def _stream_try(self, request: Request) -> Response:
        return await self._live.stream(request, *self._try_view(request))

    def _try_view(self, request: Request) -> tuple[object, Render, Version]:
        job, caller, base = self._service.jobs.get(request.path_params["id"]), caller_of(request), base_of(request)
        return ("try", job.id, caller.id, base), partial(self._try_sections, job.id, caller, base), self._version

    async def _try_sections(self, id: str, caller: Caller, base: str) -> Sections:
        return await draw_together((f"replay-{name}" for name in TRIED), self._found_try(id, caller, base))

    async def _found_try(self, id: str, caller: Caller, base: str) -> Sections:
        view = ReplayView.of(self._service.jobs.get(id))
        tasks = {}
        for each in () if view.result is None else view.result.runs:
            try:
                tasks[each.run_id] = (await self._runs.get(each.run_id, caller)).task
            except UnknownRunError:
                tasks[each.run_id] = ""  # it was deleted meanwhile
        listed = list(chain.from_iterable(each.differences for each in view.result.runs)) if view.result else []
        values: dict[str, Any] = {
            "view": view,
            "tasks": tasks,
            "split": _split,
            "examples_of": partial(_examples_of, listed),
            "mark_of": _mark,
            "tone_of": tone_of,
        }
        return draw_all(TEMPLATE, base, "replay", TRIED, **values)

    async def _cancel(self, request: Request) -> Response:
        job = await self._service.jobs.cancel(request.path_params["id"])
        if wants_sections(request):
            return json_response(await self._try_sections(job.id, caller_of(request), base_of(request)))
        return RedirectResponse(base_of(request) + TRY.format(id=quote(job.id)), 303)


EXAMPLES = 50
"""Number of different calls that a row of the table lists."""


def _examples_of(listed: Sequence[Difference], cell: ReplayedCell) -> list[Difference]:
    """Return the first calls that a row of the table counts."""
    key = cell.hook, cell.point, cell.tool, cell.kind
    return [each for each in listed if (each.hook, each.point, each.tool, each.kind) == key][:EXAMPLES]


def _mark(kind: str) -> str:
    """Return the gate of a kind of difference, by what it does now."""
    if kind.startswith("no longer"):
        return "passed"
    marks = {"newly blocked": "blocked", "newly ended": "blocked", "newly asked": "asked", "raised": "failed"}
    return marks.get(kind, "changed")


def _split(decision: str) -> tuple[str, str]:
    """Return the verb of a decision in words, and the rest: who decided, and why."""
    verb, _, rest = decision.partition(" ")
    return verb.rstrip(":"), rest
