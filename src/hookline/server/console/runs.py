"""The list of runs, and the list of what hooks and people refused."""

from __future__ import annotations

from functools import partial
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..._base.workers import in_thread
from ...stores.keys import KeyStore
from ...stores.run_queries import refusals, verdict_counts
from ...stores.runs import STATES, RunRecord
from ..auth import Caller
from ..errors import UnknownRunError
from ..routing import Endpoint, caller_of, query_of
from ..runs import RunService
from .filters import CHOICES, RANGES, RefusalsQuery, RunsQuery
from .live import LiveViews, Sections
from .login import error_page
from .render import base_of, caller_names, fragment, names_of, page

RUNS, BLOCKED = "/console/runs", "/console/blocked"
LIVE = "/console/live"
ROWS = 50
ARGUMENTS = 300
"""Characters of the arguments of a refused call that a list shows."""
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
        return [
            Endpoint("GET", path, handler, ("read",), name, media="text/html", error_page=error_page, described=False)
            for path, handler, name in pages
        ]

    async def _show_runs(self, request: Request) -> Response:
        query, caller, base = query_of(request, RunsQuery), caller_of(request), base_of(request)
        sections = await self._runs(query, caller, base)
        return await self._page(request, "runs.html", "Runs", f"{LIVE}/runs", query, sections, states=STATES)

    async def _stream_runs(self, request: Request) -> Response:
        query, caller, base = query_of(request, RunsQuery), caller_of(request), base_of(request)
        key = "runs", query.query(), caller.id, caller.owner, base
        return await self._live.stream(key, partial(self._runs, query, caller, base))

    async def _show_blocked(self, request: Request) -> Response:
        query, caller, base = query_of(request, RefusalsQuery), caller_of(request), base_of(request)
        sections = await self._blocked(query, caller, base)
        return await self._page(request, "blocked.html", "Blocked", f"{LIVE}/blocked", query, sections)

    async def _stream_blocked(self, request: Request) -> Response:
        query, caller, base = query_of(request, RefusalsQuery), caller_of(request), base_of(request)
        key = "blocked", query.query(), caller.id, caller.owner, base
        return await self._live.stream(key, partial(self._blocked, query, caller, base))

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
            callers=await in_thread(self._names) if caller_of(request).owner is None else {},
            ranges=RANGES,
            choices=CHOICES,
            live=f"{live}?{given}" if given else live,
            **values,
        )

    async def _runs(self, query: RunsQuery, caller: Caller, base: str) -> Sections:
        try:
            if query.before:
                await self._service.get(query.before, caller)
            found = await self._service.list(caller, limit=ROWS + 1, before=query.before, **query.chosen())
        except UnknownRunError:
            found = []  # it was deleted
        sections: Sections = await in_thread(self._render_runs, found, query, caller, base)
        return sections

    def _render_runs(self, found: list[RunRecord], query: RunsQuery, caller: Caller, base: str) -> Sections:
        runs, names = found[:ROWS], self._names()
        values: dict[str, Any] = {
            "rows": runs,
            "more": query.query(before=runs[-1].id) if len(found) > len(runs) else "",
            "marks": verdict_counts(self._service.store, [run.id for run in runs]),
            "quiet": QUIET,
            "owner_of": partial(names_of, caller, names),
            "query": query,
        }
        return {
            f"runs-{name}": fragment("runs_sections.html", base, section=name, **values) for name in ("rows", "pages")
        }

    async def _blocked(self, query: RefusalsQuery, caller: Caller, base: str) -> Sections:
        sections: Sections = await in_thread(self._render_blocked, query, caller, base)
        return sections

    def _render_blocked(self, query: RefusalsQuery, caller: Caller, base: str) -> Sections:
        chosen, names = query.chosen(), self._names()
        chosen["owner"] = (query.caller or None) if caller.owner is None else caller.owner
        found = refusals(self._service.store, ROWS + 1, before=query.before, **chosen)
        rows = [msgspec.structs.replace(each, arguments=_short(each.arguments)) for each in found[:ROWS]]
        values: dict[str, Any] = {
            "rows": rows,
            "more": query.query(before=rows[-1].id) if len(found) > len(rows) else "",
            "choices": CHOICES,
            "owner_of": partial(names_of, caller, names),
            "query": query,
        }
        parts = ("rows", "pages")
        return {f"blocked-{name}": fragment("blocked_sections.html", base, section=name, **values) for name in parts}

    def _names(self) -> dict[str, str]:
        """Return the names of callers by their ids."""
        return caller_names(self._keys)


def _short(arguments: str) -> str:
    return arguments if len(arguments) <= ARGUMENTS else f"{arguments[:ARGUMENTS]} …"
