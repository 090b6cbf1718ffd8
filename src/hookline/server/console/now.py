"""The first page: what runs, what is stuck, what waits for a person, and what was blocked in the last hour."""

from __future__ import annotations

import time
from functools import partial

from starlette.requests import Request
from starlette.responses import Response

from ..._base.workers import in_thread
from ...stores.run_queries import open_runs, refusals
from ..auth import Caller
from ..routing import Endpoint, caller_of
from ..runs import RunService
from .live import LiveViews, Render, Sections
from .login import page_endpoint
from .render import base_of, fragment, page

STUCK_SECONDS = 60.0
"""Seconds without an event after which a run that is not waiting for a person is called stuck."""
BLOCKED_SECONDS = 3600.0
ROWS = 20


class NowPage:
    """The page at ``/``.

    Args:
        service: knows the runs.
        live: keeps open pages up to date.
    """

    def __init__(self, service: RunService, live: LiveViews) -> None:
        self._service = service
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        pages = (("/", self._show, "console_now"), ("/console/now", self._stream, "console_now_live"))
        return [page_endpoint("GET", path, handler, ("read",), name) for path, handler, name in pages]

    async def _show(self, request: Request) -> Response:
        sections = await self._live.show(*self._view(request))
        return page(request, "now.html", title="Now", sections=sections, live="/console/now")

    async def _stream(self, request: Request) -> Response:
        return await self._live.stream(*self._view(request))

    def _view(self, request: Request) -> tuple[object, Render]:
        caller, base = caller_of(request), base_of(request)
        return ("now", caller.owner, caller.scopes, base), partial(self._sections, caller, base)

    async def _sections(self, caller: Caller, base: str) -> Sections:
        sections: Sections = await in_thread(self._render, caller, base)
        return sections

    def _render(self, caller: Caller, base: str) -> Sections:
        store, now = self._service.store, time.time()
        runs = open_runs(store, caller.owner, 200)
        waiting = self._service.approvals.rows(status="pending", owner=caller.owner, limit=ROWS)
        running = [each for each in runs if each.run.status == "running"]
        stuck = [each for each in running if each.last_event < now - STUCK_SECONDS]
        values = {
            "running": running,
            "stuck": stuck,
            "queued": sum(each.run.status == "queued" for each in runs),
            "waiting": waiting,
            "blocked": refusals(store, ROWS, since=now - BLOCKED_SECONDS, owner=caller.owner),
            "rows": ROWS,
            "caller": caller,
        }
        names = ("counts", "waiting", "stuck", "running", "blocked")
        return {f"now-{name}": fragment("now_sections.html", base, section=name, **values) for name in names}
