"""The list of runs, and the list of what hooks and people refused."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..._base.workers import in_thread
from ...stores.callers import Caller
from ...stores.keys import KeyStore
from ...stores.run_queries import refusals, verdict_counts
from ...stores.runs import STATES, RunSearch, page_of
from ..errors import UnknownRunError
from ..routing import Endpoint, caller_of, query_of
from ..runs import RunService
from .filters import CHOICES, RANGES, RefusalsQuery, RunsQuery
from .live import LiveViews, Render
from .login import page_endpoint
from .render import base_of, caller_names, names_of, page
from .sections import Sections, draw_all, draw_together

Q = TypeVar("Q", RunsQuery, RefusalsQuery)

RUNS, BLOCKED = "/console/runs", "/console/blocked"
LIVE = "/console/live"
ROWS = 50
ARGUMENTS = 300
"""Characters of the arguments of a refused call that a list shows."""
ORIGINS = ("server", "command line", "library")
"""Origins of runs that the filter suggests; others have the name of a channel, a framework or a coding agent."""
QUIET = ("claim", "merge")
"""Verbs that a row does not show: other marks, and the page of the run, say the same."""


class RunsPages:
    """The pages at ``/console/runs`` and ``/console/blocked``.

    Args:
        service: knows the runs.
        keys: the API keys, for the names of callers; ``None`` if the host application knows the callers.
        live: keeps open pages up to date.
    """

    def __init__(self, service: RunService, keys: KeyStore | None, live: LiveViews) -> None:
        self._service = service
        self._keys = keys
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        pages = (
            (RUNS, self._show_runs, "console_runs"),
            (f"{LIVE}/runs", self._stream_runs, "console_runs_live"),
            (BLOCKED, self._show_blocked, "console_blocked"),
            (f"{LIVE}/blocked", self._stream_blocked, "console_blocked_live"),
        )
        return [page_endpoint("GET", path, handler, ("read",), name) for path, handler, name in pages]

    async def _show_runs(self, request: Request) -> Response:
        query = query_of(request, RunsQuery)
        sections = await self._live.show(request, *self._view(request, "runs", query, self._runs))
        return await self._page(
            request, "runs.html", "Runs", f"{LIVE}/runs", query, sections, states=STATES, origins=ORIGINS
        )

    async def _stream_runs(self, request: Request) -> Response:
        return await self._live.stream(request, *self._view(request, "runs", query_of(request, RunsQuery), self._runs))

    async def _show_blocked(self, request: Request) -> Response:
        query = query_of(request, RefusalsQuery)
        sections = await self._live.show(request, *self._view(request, "blocked", query, self._blocked))
        return await self._page(request, "blocked.html", "Blocked", f"{LIVE}/blocked", query, sections)

    async def _stream_blocked(self, request: Request) -> Response:
        return await self._live.stream(
            request, *self._view(request, "blocked", query_of(request, RefusalsQuery), self._blocked)
        )

    def _view(
        self, request: Request, name: str, query: Q, render: Callable[[Q, Caller, str], Awaitable[Sections]]
    ) -> tuple[object, Render]:
        caller, base = caller_of(request), base_of(request)
        return (name, query.query(), caller.id, caller.owner, base), partial(render, query, caller, base)

    async def _page(
        self,
        request: Request,
        template: str,
        title: str,
        live: str,
        query: RunsQuery | RefusalsQuery,
        sections: Sections,
        **values: Any,
    ) -> Response:
        agents, given = self._service.agents.list(), query.query()
        return page(
            request,
            template,
            title=title,
            query=query,
            sections=sections,
            agents=[each.name for each in agents],
            tools=sorted({tool for each in agents for tool in each.tools}),
            hooks=sorted({each.hook for places in self._service.hook_orders().values() for each in places}),
            callers=await in_thread(self._names) if caller_of(request).owner is None else {},
            ranges=RANGES,
            choices=CHOICES,
            live=f"{live}?{given}" if given else live,
            **values,
        )

    async def _runs(self, query: RunsQuery, caller: Caller, base: str) -> Sections:
        return await draw_together(("runs-rows", "runs-pages"), self._found_runs(query, caller, base))

    async def _found_runs(self, query: RunsQuery, caller: Caller, base: str) -> Sections:
        try:
            if query.before:
                await self._service.get(query.before, caller)
            found = await self._service.search(caller, limit=ROWS + 1, before=query.before, **query.chosen())
        except UnknownRunError:
            found = RunSearch([])  # it was deleted
        sections: Sections = await in_thread(self._render_runs, found, query, caller, base)
        return sections

    def _render_runs(self, found: RunSearch, query: RunsQuery, caller: Caller, base: str) -> Sections:
        runs, names = page_of(found.runs, ROWS), self._names()
        last = runs[-1].id if len(found.runs) > len(runs) else found.stopped_at
        values: dict[str, Any] = {
            "rows": runs,
            "more": query.query(before=last) if last else "",
            "search": found,
            "marks": verdict_counts(self._service.store, [run.id for run in runs]),
            "quiet": QUIET,
            "owner_of": partial(names_of, caller, names),
            "query": query,
        }
        return draw_all("runs_sections.html", base, "runs", ("rows", "pages"), **values)

    async def _blocked(self, query: RefusalsQuery, caller: Caller, base: str) -> Sections:
        return await draw_together(("blocked-rows", "blocked-pages"), self._found_blocked(query, caller, base))

    async def _found_blocked(self, query: RefusalsQuery, caller: Caller, base: str) -> Sections:
        await self._service.stored()
        sections: Sections = await in_thread(self._render_blocked, query, caller, base)
        return sections

    def _render_blocked(self, query: RefusalsQuery, caller: Caller, base: str) -> Sections:
        chosen, names = query.chosen(), self._names()
        chosen["owner"] = (query.caller or None) if caller.owner is None else caller.owner
        found = refusals(self._service.store, ROWS + 1, before=query.before, **chosen)
        rows = [msgspec.structs.replace(each, arguments=_short(each.arguments)) for each in found[:ROWS]]
        last = rows[-1].id if len(found) > len(rows) else ""
        values: dict[str, Any] = {
            "rows": rows,
            "more": query.query(before=last) if last else "",
            "choices": CHOICES,
            "owner_of": partial(names_of, caller, names),
            "query": query,
        }
        return draw_all("blocked_sections.html", base, "blocked", ("rows", "pages"), **values)

    def _names(self) -> dict[str, str]:
        """Return the names of callers by their ids."""
        return caller_names(self._keys)


def _short(arguments: str) -> str:
    return arguments if len(arguments) <= ARGUMENTS else f"{arguments[:ARGUMENTS]} …"
