"""The pages with figures: what each hook did, and what the models cost."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from math import ceil, floor, log10
from typing import Any, Literal, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..._base.workers import in_thread
from ...explain.gates import APPROVAL
from ...hooks.spending_limit import SpendingLimit
from ...stores.callers import CALLER, Caller, user_of
from ...stores.errors import StoreError
from ...stores.keys import KeyStore
from ...stores.run_figures import CostBar, Costs, Used, period_of
from ...stores.spending import SpendingAccount
from ..routing import Endpoint, caller_of, query_of
from ..runs import RunService
from ..statistics import AgentHooks, HooksView, HookView, Statistics
from ..views import Name
from .filters import PERIODS, RANGES, FiguresQuery
from .live import LiveViews, Render, Version
from .login import page_endpoint
from .render import base_of, caller_names, names_of, page
from .sections import Sections, draw_all, draw_together

log = logging.getLogger("hookline")

F = TypeVar("F", bound=FiguresQuery)

HOOKS, COST = "/console/hooks", "/console/cost"
LIVE = "/console/live"
COST_PARTS = ("totals", "chart", "tables")
BEFORE: Mapping[str, str] = {
    "hour": "the hour before",
    "day": "the day before",
    "week": "the week before",
    "month": "the 30 days before",
}
"""The period beside which the figures of each period are shown."""
MAX_ROWS = 50
"""Maximum number of rows of a table of the cost. The API has all."""
MAX_LIMITS = 100
"""Maximum number of accounts shown under the spending limits."""
DELAY = 2.0
"""Seconds between a change and its figures on an open page: other processes have stored theirs by then."""


class HooksQuery(FiguresQuery):
    """The parameters of the page with the hooks. ``hook`` is the only one to list."""

    sort: Literal["total", "calls", "p50", "p95", "verdicts", "failures"] = "total"
    hook: Name = ""


class CostQuery(FiguresQuery):
    """The parameters of the page with the cost."""


class FiguresPages:
    """The pages at ``/console/hooks`` and ``/console/cost``.

    Args:
        service: knows the runs and the agents.
        keys: the API keys, for the names of callers; ``None`` if the host application knows the callers.
        live: keeps open pages up to date.
        limits: the spending limits of the agents.
    """

    def __init__(
        self, service: RunService, keys: KeyStore | None, live: LiveViews, limits: Sequence[SpendingLimit] = ()
    ) -> None:
        self._service = service
        self._statistics = Statistics(service)
        self._keys = keys
        self._live = live
        self._limits = limits

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
        query = query_of(request, HooksQuery)
        sections = await self._live.show(request, *self._view(request, "hooks", query, self._hooks), delay=DELAY)
        return await self._page(request, "hooks.html", "Hooks", f"{LIVE}/hooks", query, sections)

    async def _stream_hooks(self, request: Request) -> Response:
        query = query_of(request, HooksQuery)
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
        query: F,
        render: Callable[[F, Caller, str], Awaitable[Sections]],
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

    async def _hooks(self, query: HooksQuery, caller: Caller, base: str) -> Sections:
        return await draw_together(("hooks-list",), self._found_hooks(query, caller, base))

    async def _found_hooks(self, query: HooksQuery, caller: Caller, base: str) -> Sections:
        found = await self._statistics.hooks(caller, query.range, agent=query.agent, owner=query.caller)
        sections: Sections = await in_thread(_render_hooks, found, query, base)
        return sections

    async def _cost(self, query: FiguresQuery, caller: Caller, base: str) -> Sections:
        sections = await draw_together((f"cost-{name}" for name in COST_PARTS), self._found_cost(query, caller, base))
        limits: Sections = await in_thread(self._render_limits, query, caller, base) if self._limits else {}
        return {**sections, **limits}

    async def _found_cost(self, query: FiguresQuery, caller: Caller, base: str) -> Sections:
        found = await self._statistics.costs(caller, query.range, agent=query.agent, owner=query.caller)
        bars = partial(self._statistics.cost_bars, caller, agent=query.agent, owner=query.caller)
        days = await bars("week")
        before: tuple[CostBar, ...] = ()
        if query.range in RANGES:
            before = await bars(query.range, now=time.time() - RANGES[query.range][1])
        sections: Sections = await in_thread(self._render_cost, found, before, days, query, caller, base)
        return sections

    def _render_limits(self, query: FiguresQuery, caller: Caller, base: str) -> Sections:
        """Draw what was spent of the limits: of everybody, or, for a caller with its own runs only, its own."""
        is_admin, problem = caller.owner is None, ""
        own = user_of({**caller.metadata, CALLER: caller.id})
        subject = (query.caller or query.agent or None) if is_admin else own
        shown = {limit.account for limit in self._limits if is_admin or limit.per == "user"}
        accounts: list[SpendingAccount] = []
        for store in {limit.store.path: limit.store for limit in self._limits}.values():
            try:
                accounts += store.accounts(subject, limit=MAX_LIMITS)
            except StoreError as error:
                log.warning("the spending limits cannot be shown: %s", error)
                problem = "What was spent cannot be read, so no model is called. The log of the server says why."
        names = caller_names(self._keys)
        values: dict[str, Any] = {
            "accounts": [each for each in accounts if each.account in shown][:MAX_LIMITS],
            "problem": problem,
            "name_of": partial(names_of, caller, names),
        }
        return draw_all("cost_limits.html", base, "cost", ("limits",), **values)

    def _render_cost(
        self,
        found: Costs,
        before: Sequence[CostBar],
        days: Sequence[CostBar],
        query: FiguresQuery,
        caller: Caller,
        base: str,
    ) -> Sections:
        by_cost = found.total.cost > 0
        sizes = [bar.used.cost if by_cost else bar.used.tokens for bar in found.bars]
        earlier = [bar.used.cost if by_cost else bar.used.tokens for bar in before] or [0] * len(sizes)
        top, lines = axis(max([*sizes, *earlier], default=0), least=0 if by_cost else 1)
        last = len(sizes) - 1
        values: dict[str, Any] = {
            "costs": found,
            "by_cost": by_cost,
            "heights": [
                (bar, 100 * size / top, was, 100 * was / top)
                for bar, size, was in zip(found.bars, sizes, earlier, strict=True)
            ],
            "lines": lines,
            "between": lines[-2][0],
            "has_before": bool(before),
            "words_before": BEFORE.get(query.range, ""),
            "labelled": [found.bars[place] for place in sorted({round(last * n / 4) for n in range(5)})]
            if sizes
            else [],
            "words": PERIODS[query.range].capitalize(),
            "today": days[-1].used if days else Used(),
            "yesterday": days[-2].used if len(days) > 1 else Used(),
            "is_admin": caller.owner is None,
            "owner_of": partial(names_of, caller, caller_names(self._keys)),
            "query": query,
            "most": MAX_ROWS,
        }
        return draw_all("cost_sections.html", base, "cost", COST_PARTS, **values)


def axis(most: float, *, least: float = 0) -> tuple[float, list[tuple[float, float]]]:
    """Return the value at the top of an axis, and its lines from the top down: each value, and its place in per cent.

    The values are round numbers, so that a label is the number that its line stands for.

    Args:
        most: the largest value to show.
        least: the smallest difference between two lines.
    """
    size = 10 ** floor(log10(most / 5)) if most > 0 else 0.2
    step = next((factor * size for factor in (1, 2, 5) if most <= 5 * factor * size * 1.000001), 10 * size)
    step = max(step, least)
    count = max(1, ceil(most / step - 0.000001))
    return count * step, [(n * step, 100 - 100 * n / count) for n in range(count, -1, -1)]


class _Order(msgspec.Struct, frozen=True):
    """The firing order of an agent: the name of a kind of call, the rules before it, the call, the rules after it."""

    agent: str
    lines: list[tuple[str, list[HookView], str, list[HookView]]]


_CALLS = (
    ("Model call", ("before_step", "before_prompt_build", "before_llm"), "model", ("after_llm", "after_step")),
    ("Tool call", ("before_tool",), "tool", ("after_tool",)),
)
_SORTS: Mapping[str, Callable[[HookView], float]] = {
    "total": lambda hook: hook.seconds,
    "calls": lambda hook: hook.calls,
    "p50": lambda hook: hook.p50 or 0.0,
    "p95": lambda hook: hook.p95 or 0.0,
    "verdicts": lambda hook: sum(count for verb, count in hook.verbs.items() if verb not in ("cont", "failed")),
    "failures": lambda hook: hook.verbs.get("failed", 0),
}


def _render_hooks(found: HooksView, query: HooksQuery, base: str) -> Sections:
    hooks = sorted(found.hooks, key=lambda hook: (-_SORTS[query.sort](hook), -hook.calls, hook.hook))
    chosen = [hook for hook in hooks if query.hook in ("", hook.hook)]
    rules = [hook for hook in chosen if _is_rule(hook)]
    total = sum(hook.seconds for hook in hooks if hook.point not in APPROVAL)
    slowest = max(rules, key=lambda hook: hook.seconds, default=None)
    values: dict[str, Any] = {
        "rules": rules,
        "others": [hook for hook in chosen if not _is_rule(hook)],
        "orders": [] if query.hook else [_order(each) for each in found.agents if any(map(_is_rule, each.hooks))],
        "total": total,
        "rest": total - sum(hook.seconds for hook in hooks if _is_rule(hook)),
        "slowest": slowest if slowest and slowest.seconds else None,
        "worst": max((hook.seconds for hook in rules or hooks), default=0.0),
        "run_seconds": found.run_seconds,
        "share": partial(_share, whole=found.run_seconds),
        "since": found.since,
        "sort": query.sort,
        "query": query,
        "has_shadow": any(hook.shadow for hook in hooks),
        "runs": partial(query.runs, found.since),
    }
    return draw_all("hooks_sections.html", base, "hooks", ("list",), **values)


def _is_rule(hook: HookView) -> bool:
    """Whether a hook is one of an agent that decides."""
    return hook.layer == "agent" and hook.phase != "observe"


def _share(seconds: float, whole: float) -> str:
    share = 100 * seconds / whole if whole else 0.0
    return f"{min(share, 100):.1f} %" if share >= 0.05 or not share else "< 0.1 %"


def _order(found: AgentHooks) -> _Order:
    rules = [hook for hook in found.hooks if _is_rule(hook)]
    lines = [
        (name, [hook for hook in rules if hook.point in before], box, [hook for hook in rules if hook.point in after])
        for name, before, box, after in _CALLS
    ]
    return _Order(found.agent, [line for line in lines if line[1] or line[3]])
