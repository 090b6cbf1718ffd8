"""The first page: what runs, what is stuck, what waits for a person, what was refused, what failed, and the cost."""

from __future__ import annotations

import time
from collections import Counter
from functools import cache, partial

import msgspec
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from ..._base.workers import in_thread
from ...stores.callers import Caller
from ...stores.keys import KeyStore
from ...stores.run_figures import RefusalGroup, activity, refusal_groups
from ...stores.run_queries import open_runs, queue_state, refusals
from ...stores.runs import RunRecord, RunStore
from ..routing import Endpoint, caller_of
from ..runs import RunService
from .approvals import approval_card, card_id, open_tasks
from .filters import RefusalsQuery
from .live import LiveViews, Render
from .login import page_endpoint
from .render import base_of, caller_names, page
from .sections import Sections, draw_all, draw_together

STUCK_SECONDS = 60.0
"""Seconds without an event after which a run that is not waiting for a person is called stuck."""
DAY = 86400.0
ROWS = 20
FAILED, NEWEST = 8, 50
"""Number of failures that are listed, and of failed runs and of denials that are looked through."""
PARTS = ("counts", "queue", "waiting", "stuck", "running", "failed", "blocked")


class NowPage:
    """The page at ``/``.

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
            ("/", self._show, "console_now"),
            ("/console", self._go, "console"),
            ("/console/now", self._stream, "console_now_live"),
        )
        return [page_endpoint("GET", path, handler, ("read",), name) for path, handler, name in pages]

    async def _go(self, request: Request) -> Response:
        return RedirectResponse(f"{base_of(request)}/", 303)

    async def _show(self, request: Request) -> Response:
        sections = await self._live.show(request, *self._view(request))
        return page(request, "now.html", title="Now", sections=sections, live="/console/now")

    async def _stream(self, request: Request) -> Response:
        return await self._live.stream(request, *self._view(request))

    def _view(self, request: Request) -> tuple[object, Render]:
        caller, base = caller_of(request), base_of(request)
        return ("now", caller.id, caller.owner, caller.scopes, base), partial(self._sections, caller, base)

    async def _sections(self, caller: Caller, base: str) -> Sections:
        return await draw_together((f"now-{name}" for name in PARTS), in_thread(self._render, caller, base))

    def _render(self, caller: Caller, base: str) -> Sections:
        # Each section reads what it shows: a list that cannot be read does not affect the others.
        service, owner = self._service, caller.owner
        waiting = cache(partial(service.approvals.rows, status="pending", owner=owner, limit=ROWS))
        values = {
            "runs": cache(partial(_OpenRuns, service.store, owner)),
            "waiting": waiting,
            "activity": cache(partial(activity, service.store, owner=owner)),
            "blocked": cache(partial(_refused, service.store, owner)),
            "failed": cache(partial(_failed, service.store, owner)),
            "refused_of": lambda group: RefusalsQuery(hook=group.hook, verb=group.verb).query(),
            "queue": cache(partial(queue_state, service.store)),
            "rows": ROWS,
            "caller": caller,
        }
        made = draw_all("now_sections.html", base, "now", PARTS, **values)
        names = caller_names(self._keys)
        rows = waiting()
        tasks = open_tasks(service.store, owner) if rows else {}
        # The oldest call is the first, so that a new one does not move the others.
        return made | {
            card_id(row.id): approval_card(row, caller, names, base, "/", "now-asks", tasks.get(row.root_id, ""))
            for row in reversed(rows)
        }


class _OpenRuns:
    """The runs that have not ended, by what they do."""

    def __init__(self, store: RunStore, owner: str | None) -> None:
        found = open_runs(store, owner, 200)
        self.running = [each for each in found if each.run.status == "running"]
        self.stuck = [each for each in self.running if each.last_event < time.time() - STUCK_SECONDS]
        self.moving = [each for each in self.running if each not in self.stuck]
        self.queued = sum(each.run.status == "queued" for each in found)


def _refused(store: RunStore, owner: str | None) -> list[RefusalGroup]:
    """Return what was refused in the last 24 hours. People give each denial its own reason: the newest is shown."""
    groups = refusal_groups(store, "day", owner=owner)[:ROWS]
    if not any(group.by for group in groups):
        return groups
    newest = refusals(store, NEWEST, owner=owner, verb="denied", since=time.time() - DAY)
    reasons = {each.by: each.reason for each in reversed(newest)}
    return [msgspec.structs.replace(group, reason=reasons.get(group.by, "")) if group.by else group for group in groups]


def _failed(store: RunStore, owner: str | None) -> list[tuple[RunRecord, int]]:
    """Return the newest runs that failed in the last 24 hours, each with how often its task failed for its reason."""
    states = ("failed", "interrupted")
    found = store.runs(NEWEST, outermost=True, owner=owner, states=states, created_from=time.time() - DAY)
    counts = Counter(map(_failure, found))
    newest = {_failure(run): run for run in reversed(found)}
    return [(run, counts[_failure(run)]) for run in found if newest[_failure(run)] is run][:FAILED]


def _failure(run: RunRecord) -> tuple[str, str, str]:
    return run.agent, run.task, run.error or run.reason or run.status
