"""Statistics over HTTP: what hooks decided, what models cost, and what happened in the recorded runs."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Annotated

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .._base.workers import in_thread
from ..config.hook_order import HookPlace
from ..stores.callers import Caller
from ..stores.run_figures import (
    CostBar,
    Costs,
    HookFigures,
    Period,
    cost_bars,
    costs,
    hook_figures,
    period_of,
    run_seconds,
)
from ..stores.run_statistics import RunStats, run_stats
from ..stores.verdicts import Verdict
from .routing import Endpoint, caller_of, json_response, query_of
from .runs import RunService
from .views import Name, Sequence, Time

_HOOKS = """The hooks of each agent at each point, in firing order, with their figures in the runs of the agent and its
subagents. `layer` is `run` for hooks that the server adds, and empty for hooks that were called but belong to a
subagent or are no longer registered. `verbs` has the number of results by verb: `cont` let everything pass, `failed`
raised an error. `shadow` has what a hook in shadow mode would have done. `p50` and `p95` are seconds, with an error of
at most 10 %, and `seconds` is the duration of all calls. `source` is shown to admins only. Hooks with the same
name at a point are counted together. `hooks` at the top has each hook once, with its figures in the runs of all these
agents."""

_COSTS = """The use of models: in all, over time, and by agent, caller and model. `cost` is in US dollars and covers the
calls with a known price; `unpriced` is the number of the others. A call of a subagent belongs to the agent that was
asked. Admins also get what other commands and programs used that record their runs in the same database, without a
caller."""

_STATS = """The same as `hookline stats --json`: statistics of the runs of the server, and of the runs that an
`ObservabilityHook` recorded in the same database. Callers get those of their own runs and their subagents, admins those
of all runs, also of other commands. By default, of the runs that began in the last 24 hours."""

_VERDICTS = """Results of hooks that did something, in the run and in its subagents, and calls that a person denied.
`refused` says whether the verdict prevented something, and `rules` is the digest of the rules in force. The verb
`shadow` is that of a hook in shadow mode, whose reason says what it would have done."""

_DAY = 86400.0


class FiguresQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which runs are counted. ``owner`` is for admins, who see the figures of all callers. Days are in UTC."""

    range: Annotated[Period, msgspec.Meta(description="How far back.")] = "day"
    agent: Name = ""
    owner: Name = ""


class StatsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """Which runs are counted. ``owner`` is for admins, who see the statistics of all callers."""

    since: Time | None = None
    agent: Name = ""
    model: Name = ""
    owner: Name = ""


class HookView(msgspec.Struct, frozen=True):
    """One hook at one point, and what it did."""

    point: str
    hook: str
    phase: str
    priority: float | None
    on_failure: str
    tools: tuple[str, ...]
    layer: str
    plugin: str
    source: str
    calls: int
    verbs: dict[str, int]
    shadow: dict[str, int]
    p50: float | None
    p95: float | None
    seconds: float = 0.0

    @property
    def spoke(self) -> bool:
        """Whether the hook ever did something else than letting pass."""
        return bool(self.shadow) or any(verb != "cont" for verb in self.verbs)


class AgentHooks(msgspec.Struct, frozen=True):
    """The hooks of one agent at all points, in firing order."""

    agent: str
    hooks: tuple[HookView, ...]


class HooksView(msgspec.Struct, frozen=True):
    """The hooks of the agents, and what they did since the Unix time ``since``; 0 for always.

    ``hooks`` has each of them once, with its figures in the runs of all these agents together.
    ``run_seconds`` is the duration of all runs of that time, with those of subagents.
    """

    since: float
    agents: tuple[AgentHooks, ...]
    hooks: tuple[HookView, ...] = ()
    run_seconds: float = 0.0


class VerdictsQuery(msgspec.Struct, forbid_unknown_fields=True):
    """The page of verdicts: those after the one with the number ``after``."""

    after: Sequence = 0
    limit: Annotated[int, msgspec.Meta(ge=1, le=1000)] = 200


class VerdictsPage(msgspec.Struct, frozen=True):
    """Verdicts in a run, in order. ``next`` is the value of ``after`` for the next page, 0 on the last one."""

    verdicts: tuple[Verdict, ...]
    next: int


class Statistics:
    """The figures that a caller may see.

    Args:
        service: knows the runs and the agents.
    """

    def __init__(self, service: RunService) -> None:
        self._service = service

    async def hooks(self, caller: Caller, period: str, *, agent: str = "", owner: str = "") -> HooksView:
        """Return the hooks of the served agents in firing order, and what they did.

        Raises:
            StoreError: the file cannot be read.
        """
        await self._service.stored()
        found: HooksView = await in_thread(self._hooks, caller, period, agent, _whose(caller, owner))
        return found

    def _hooks(self, caller: Caller, period: str, agent: str, owner: str | None) -> HooksView:
        now, by_agent = time.time(), dict[str, dict[tuple[str, str], HookFigures]]()
        for each in hook_figures(self._service.store, period, owner=owner, agent=agent, now=now):
            by_agent.setdefault(each.agent, {})[each.point, each.hook] = each
        orders = {name: places for name, places in self._service.hook_orders().items() if agent in ("", name)}
        agents = [
            AgentHooks(name, tuple(_joined(orders.get(name, ()), by_agent.get(name, {}), caller.owner is None)))
            for name in dict.fromkeys((*orders, *by_agent))
        ]
        whole = run_seconds(self._service.store, period, owner=owner, agent=agent, now=now)
        together = {
            (each.point, each.hook): each
            for each in hook_figures(self._service.store, period, owner=owner, agent=agent, now=now, together=True)
        }
        places = {(place.point, place.hook): place for each in orders.values() for place in each}
        hooks = _joined(places.values(), together, caller.owner is None)
        return HooksView(period_of(period, now)[1], tuple(agents), tuple(hooks), whole)

    async def costs(self, caller: Caller, period: str, *, agent: str = "", owner: str = "") -> Costs:
        """Return what the models were used for.

        Raises:
            StoreError: the file cannot be read.
        """
        await self._service.stored()
        found: Costs = await in_thread(costs, self._service.store, period, agent=agent, owner=_whose(caller, owner))
        return found

    async def cost_bars(
        self, caller: Caller, period: str, *, agent: str = "", owner: str = "", now: float | None = None
    ) -> tuple[CostBar, ...]:
        """Return what the models were used for over time, until now or until a Unix time.

        Raises:
            StoreError: the file cannot be read.
        """
        await self._service.stored()
        store, whose = self._service.store, _whose(caller, owner)
        found: tuple[CostBar, ...] = await in_thread(cost_bars, store, period, agent=agent, owner=whose, now=now)
        return found


class StatisticsApi:
    """The endpoints for statistics.

    Args:
        service: knows the runs and the agents.
    """

    def __init__(self, service: RunService) -> None:
        self._service = service
        self._statistics = Statistics(service)

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        read = ("read",)
        return [
            Endpoint(
                "GET",
                "/hooks",
                self._hooks,
                read,
                "list_hooks",
                "List the hooks in firing order, and what they did",
                query=FiguresQuery,
                response=HooksView,
                description=_HOOKS,
            ),
            Endpoint(
                "GET",
                "/costs",
                self._costs,
                read,
                "get_costs",
                "Get tokens and cost by day, agent, caller and model",
                query=FiguresQuery,
                response=Costs,
                description=_COSTS,
            ),
            Endpoint(
                "GET",
                "/stats",
                self._stats,
                read,
                "get_stats",
                "Get statistics of the recorded runs",
                query=StatsQuery,
                response=RunStats,
                description=_STATS,
            ),
            Endpoint(
                "GET",
                "/runs/{id}/verdicts",
                self._verdicts,
                read,
                "list_verdicts",
                "List the verdicts of hooks and people in a run",
                query=VerdictsQuery,
                response=VerdictsPage,
                errors=(404,),
                description=_VERDICTS,
            ),
        ]

    async def _hooks(self, request: Request) -> Response:
        query, caller = query_of(request, FiguresQuery), caller_of(request)
        found = await self._statistics.hooks(caller, query.range, agent=query.agent, owner=query.owner)
        return json_response(found)

    async def _costs(self, request: Request) -> Response:
        query, caller = query_of(request, FiguresQuery), caller_of(request)
        found = await self._statistics.costs(caller, query.range, agent=query.agent, owner=query.owner)
        return json_response(found)

    async def _stats(self, request: Request) -> Response:
        query, caller = query_of(request, StatsQuery), caller_of(request)
        await self._service.stored()
        found = await in_thread(
            run_stats,
            self._service.store,
            since=time.time() - _DAY if query.since is None else query.since,
            agent=query.agent or None,
            model=query.model or None,
            owner=_whose(caller, query.owner),
        )
        return json_response(found)

    async def _verdicts(self, request: Request) -> Response:
        query = query_of(request, VerdictsQuery)
        run = await self._service.get(request.path_params["id"], caller_of(request))
        await self._service.stored()
        found = await in_thread(self._service.store.verdicts, run.id, query.after, query.limit + 1)
        page = tuple(found[: query.limit])
        return json_response(VerdictsPage(page, page[-1].seq if len(found) > len(page) else 0))


def _whose(caller: Caller, owner: str) -> str | None:
    """Return the caller whose runs are counted: everyone's, or one's, for admins, and otherwise the own ones."""
    return (owner or None) if caller.owner is None else caller.owner


def _joined(
    places: Iterable[HookPlace], figures: dict[tuple[str, str], HookFigures], with_source: bool
) -> Iterable[HookView]:
    """Yield hooks in firing order with their figures, and then those with figures that are not registered."""
    left = dict(figures)
    for place in places:
        key = place.point, place.hook
        left.pop(key, None)
        view = _view(place, figures.get(key, HookFigures("", *key)))
        yield view if with_source else msgspec.structs.replace(view, source="")
    for (point, hook), found in left.items():
        yield _view(HookPlace(point, hook, "", 0.0, "", layer=""), found)


def _view(place: HookPlace, found: HookFigures) -> HookView:
    return HookView(
        point=place.point,
        hook=place.hook,
        phase=place.phase,
        priority=place.priority if place.layer else None,
        on_failure=place.on_failure,
        tools=place.tools,
        layer=place.layer,
        plugin=place.plugin,
        source=place.source,
        calls=found.calls,
        verbs=found.verbs,
        shadow=found.shadow,
        p50=found.p50,
        p95=found.p95,
        seconds=found.seconds,
    )
