"""The pages with figures: what each hook did, and what the models cost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from itertools import groupby
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..._base.workers import in_thread
from ...stores.callers import Caller
from ...stores.keys import KeyStore
from ...stores.run_figures import Costs, Period, period_of
from ..routing import Endpoint, caller_of, query_of
from ..runs import RunService
from ..statistics import AgentHooks, HooksView, Statistics
from .filters import PERIODS, FiguresQuery
from .live import LiveViews, Render, Version
from .login import page_endpoint
from .render import base_of, caller_names, names_of, page
from .sections import Sections, draw_all, draw_together

HOOKS, COST = "/console/hooks", "/console/cost"
LIVE = "/console/live"
COST_PARTS = ("totals", "chart", "tables")
DELAY = 2.0
"""Seconds between a change and its figures on an open page: other processes have stored theirs by then."""


class CostQuery(FiguresQuery):
    """The parameters of the page with the cost. Its first look is at a week, because it is about days."""

    range: Period = "week"


class FiguresPages:
    """The pages at ``/console/hooks`` and ``/console/cost``.

    Args:
        service: knows the runs and the agents.
        keys: the API keys, for the names of callers; ``None`` if the host application knows the callers.
        live: keeps open pages up to date.
    """

    def __init__(self, service: RunService, keys: KeyStore | None, live: LiveViews) -> None:
        self._service = service
        self._statistics = Statistics(service)
        self._keys = keys
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        pages = (
            (HOOKS, self._show_hooks, "console_hooks"),
            (f"{LIVE}/hooks", self._stream_hooks, "console_hooks_live"),
            (COST, self._show_cost, "console_cost"),
            (f"{LIVE}/cost", self._stream_cost, "console_cost_live"),
        )
        return [page_endpoint("GET", path, handler, ("read",), name) for path, handler, name in pages]

    async def _show_hooks(self, request: Request) -> Response:
        query = query_of(request, FiguresQuery)
        sections = await self._live.show(request, *self._view(request, "hooks", query, self._hooks), delay=DELAY)
        return await self._page(request, "hooks.html", "Hooks", f"{LIVE}/hooks", query, sections)

    async def _stream_hooks(self, request: Request) -> Response:
        query = query_of(request, FiguresQuery)
        return await self._live.stream(request, *self._view(request, "hooks", query, self._hooks), delay=DELAY)

    async def _show_cost(self, request: Request) -> Response:
        query = query_of(request, CostQuery)
        sections = await self._live.show(request, *self._view(request, "cost", query, self._cost), delay=DELAY)
        return await self._page(request, "cost.html", "Cost", f"{LIVE}/cost", query, sections)

    async def _stream_cost(self, request: Request) -> Response:
        query = query_of(request, CostQuery)
        return await self._live.stream(request, *self._view(request, "cost", query, self._cost), delay=DELAY)

    def _view(
        self,
        request: Request,
        name: str,
        query: FiguresQuery,
        render: Callable[[FiguresQuery, Caller, str], Awaitable[Sections]],
    ) -> tuple[object, Render, Version]:
        caller, base = caller_of(request), base_of(request)
        key = name, query.query(), caller.id, caller.owner, base

        async def begin() -> object:
            return period_of(query.range)  # also without a new run, old ones leave the period

        return key, partial(render, query, caller, base), begin

    async def _page(
        self, request: Request, template: str, title: str, live: str, query: FiguresQuery, sections: Sections
    ) -> Response:
        given = query.query()
        return page(
            request,
            template,
            title=title,
            query=query,
            sections=sections,
            agents=[(each.name, each.name) for each in self._service.agents.list()],
            callers=await in_thread(caller_names, self._keys) if caller_of(request).owner is None else {},
            periods=PERIODS,
            live=f"{live}?{given}" if given else live,
        )

    async def _hooks(self, query: FiguresQuery, caller: Caller, base: str) -> Sections:
        return await draw_together(("hooks-list",), self._found_hooks(query, caller, base))

    async def _found_hooks(self, query: FiguresQuery, caller: Caller, base: str) -> Sections:
        found = await self._statistics.hooks(caller, query.range, agent=query.agent, owner=query.caller)
        sections: Sections = await in_thread(_render_hooks, found, query, base)
        return sections

    async def _cost(self, query: FiguresQuery, caller: Caller, base: str) -> Sections:
        return await draw_together((f"cost-{name}" for name in COST_PARTS), self._found_cost(query, caller, base))

    async def _found_cost(self, query: FiguresQuery, caller: Caller, base: str) -> Sections:
        found = await self._statistics.costs(caller, query.range, agent=query.agent, owner=query.caller)
        sections: Sections = await in_thread(self._render_cost, found, query, caller, base)
        return sections

    def _render_cost(self, found: Costs, query: FiguresQuery, caller: Caller, base: str) -> Sections:
        by_cost = found.total.cost > 0
        sizes = [bar.used.cost if by_cost else bar.used.tokens for bar in found.bars]
        values: dict[str, Any] = {
            "costs": found,
            "by_cost": by_cost,
            "heights": [(bar, 100 * size / (max(sizes) or 1)) for bar, size in zip(found.bars, sizes, strict=True)],
            "most": max(sizes, default=0),
            "is_admin": caller.owner is None,
            "owner_of": partial(names_of, caller, caller_names(self._keys)),
            "query": query,
        }
        return draw_all("cost_sections.html", base, "cost", COST_PARTS, **values)


def _render_hooks(found: HooksView, query: FiguresQuery, base: str) -> Sections:
    values: dict[str, Any] = {
        "agents": [_AgentView.of(each) for each in found.agents],
        "since": found.since,
        "has_shadow": any(hook.shadow for each in found.agents for hook in each.hooks),
        "runs": partial(query.runs, found.since),
    }
    return draw_all("hooks_sections.html", base, "hooks", ("list",), **values)


class _AgentView(msgspec.Struct, frozen=True):
    """The hooks of an agent for the page: by point, those that are not registered, and those that never spoke."""

    name: str
    points: list[tuple[str, list[Any]]]
    others: list[Any]
    silent: list[str]

    @classmethod
    def of(cls, found: AgentHooks) -> _AgentView:
        known = [hook for hook in found.hooks if hook.layer]
        spoke = {hook.hook for hook in known if hook.spoke}
        deciding = dict.fromkeys(hook.hook for hook in known if hook.phase != "observe" and hook.layer == "agent")
        silent = [name for name in deciding if name not in spoke]
        points = [(point, list(group)) for point, group in groupby(known, lambda hook: hook.point)]
        return cls(found.agent, points, [hook for hook in found.hooks if not hook.layer], silent)
