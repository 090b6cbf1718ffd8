"""The first page: what runs, what is stuck, what waits for a person, and what was blocked in the last hour."""

from __future__ import annotations

import time
from functools import cache, partial

from starlette.requests import Request
from starlette.responses import Response

from ..._base.workers import in_thread
from ...stores.callers import Caller
from ...stores.run_queries import open_runs, queue_state, refusals
from ...stores.runs import RunStore
from ..routing import Endpoint, caller_of
from ..runs import RunService
from .live import LiveViews, Render
from .login import page_endpoint
from .render import base_of, page
from .sections import Sections, draw_all, draw_together

STUCK_SECONDS = 60.0
"""Seconds without an event after which a run that is not waiting for a person is called stuck."""
BLOCKED_SECONDS = 3600.0
ROWS = 20
PARTS = ("counts", "queue", "waiting", "stuck", "running", "blocked")


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
        sections = await self._live.show(request, *self._view(request))
        return page(request, "now.html", title="Now", sections=sections, live="/console/now")

    async def _stream(self, request: Request) -> Response:
        return await self._live.stream(request, *self._view(request))

    def _view(self, request: Request) -> tuple[object, Render]:
        caller, base = caller_of(request), base_of(request)
        return ("now", caller.owner, caller.scopes, base), partial(self._sections, caller, base)

    async def _sections(self, caller: Caller, base: str) -> Sections:
        return await draw_together((f"now-{name}" for name in PARTS), in_thread(self._render, caller, base))

    def _render(self, caller: Caller, base: str) -> Sections:
        # Each section reads what it shows: a list that cannot be read does not affect the others.
        values = {
            "runs": cache(partial(_OpenRuns, self._service.store, caller.owner)),
            "waiting": cache(partial(self._service.approvals.rows, status="pending", owner=caller.owner, limit=ROWS)),
            "blocked": cache(
                partial(refusals, self._service.store, ROWS, since=time.time() - BLOCKED_SECONDS, owner=caller.owner)
            ),
            "queue": cache(partial(queue_state, self._service.store)),
            "rows": ROWS,
            "caller": caller,
        }
        return draw_all("now_sections.html", base, "now", PARTS, **values)


class _OpenRuns:
    """The runs that have not ended, by what they do."""

    def __init__(self, store: RunStore, owner: str | None) -> None:
        found = open_runs(store, owner, 200)
        self.running = [each for each in found if each.run.status == "running"]
        self.stuck = [each for each in self.running if each.last_event < time.time() - STUCK_SECONDS]
        self.queued = sum(each.run.status == "queued" for each in found)
