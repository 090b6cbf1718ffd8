"""The list of runs, and the list of what hooks and people refused."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ..._base.workers import in_thread
from ...explain.gates import STRENGTH, GateCall
from ...explain.words import gate_of, verb_words
from ...stores.callers import Caller
from ...stores.facts import Gate
from ...stores.keys import KeyStore
from ...stores.run_figures import RefusalGroup, period_of, refusal_groups
from ...stores.run_queries import Refusal, RefusalFilter, refused_calls, verdict_times
from ...stores.runs import STATES, RunRecord, RunSearch, page_of
from ..errors import UnknownRunError
from ..routing import Endpoint, caller_of, query_of
from ..runs import RunService
from .filters import CHOICES, RANGES, RefusalsQuery, RunsQuery
from .lines import HookLine, Slots, gate_call
from .live import LiveViews, Render
from .login import page_endpoint
from .render import base_of, caller_names, fragment, names_of, page
from .sections import Sections, draw_all, draw_together

Q = TypeVar("Q", RunsQuery, RefusalsQuery)

RUNS, BLOCKED = "/console/runs", "/console/blocked"
LIVE = "/console/live"
ROWS = 50
MAX_GROUPS, EVENTS, NEWEST = 200, 5, 300
MAX_WAITING = 200
"""Number of groups of refusals, of events in each of them, and of the newest refusals that are looked through."""
MAX_COUNT = 5_000
"""How far the runs of a state are counted."""
_COUNTS = {state: f"runs-count-{state}" for state in STATES}
"""The ids of the numbers of runs in each state."""
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
            request,
            "runs.html",
            "Runs",
            f"{LIVE}/runs",
            query,
            sections,
            states=STATES,
            origins=ORIGINS,
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
        return await draw_together(("runs-rows", "runs-pages", *_COUNTS), self._found_runs(query, caller, base))

    async def _found_runs(self, query: RunsQuery, caller: Caller, base: str) -> Sections:
        try:
            if query.before:
                await self._service.get(query.before, caller)
            found = await self._service.search(caller, limit=ROWS + 1, before=query.before, **query.chosen())
        except UnknownRunError:
            found = RunSearch([])  # it was deleted
        counts = await self._counts(query, caller)
        sections: Sections = await in_thread(self._render_runs, found, counts, query, caller, base)
        return sections

    def _render_runs(
        self, found: RunSearch, counts: dict[str, int], query: RunsQuery, caller: Caller, base: str
    ) -> Sections:
        runs, names = page_of(found.runs, ROWS), self._names()
        times = verdict_times(self._service.store, [run.id for run in runs])
        last = runs[-1].id if len(found.runs) > len(runs) else found.stopped_at
        values: dict[str, Any] = {
            "rows": runs,
            "more": query.query(before=last) if last else "",
            "search": found,
            "lines": {run.id: _run_line(run, times.get(run.id, ())) for run in runs},
            "questions": self._questions(caller) if any(run.status == "waiting" for run in runs) else {},
            "owner_of": partial(names_of, caller, names),
            "query": query,
        }
        return {
            **draw_all("runs_sections.html", base, "runs", ("rows", "pages"), **values),
            **{
                id: fragment("runs_count.html", base, id=id, count=counts.get(state), most=MAX_COUNT)
                for state, id in _COUNTS.items()
            },
        }

    async def _blocked(self, query: RefusalsQuery, caller: Caller, base: str) -> Sections:
        return await draw_together(("blocked-rows", "blocked-pages"), self._found_blocked(query, caller, base))

    async def _found_blocked(self, query: RefusalsQuery, caller: Caller, base: str) -> Sections:
        await self._service.stored()
        sections: Sections = await in_thread(self._render_blocked, query, caller, base)
        return sections

    def _render_blocked(self, query: RefusalsQuery, caller: Caller, base: str) -> Sections:
        chosen, names = query.chosen(), self._names()
        chosen["owner"] = (query.caller or None) if caller.owner is None else caller.owner
        found, groups = [], []
        if query.is_grouped:
            groups = self._groups(query, chosen["owner"])
        else:
            found = refused_calls(self._service.store, ROWS + 1, before=query.before, **chosen)
        rows = [_shortened(*each) for each in found[:ROWS]]
        last = rows[-1][0].id if len(found) > len(rows) else ""
        values: dict[str, Any] = {
            "rows": rows,
            "groups": groups,
            "line_of": _refusal_line,
            "runs_of": partial(_runs_of, query),
            "may_replay": caller.may("admin"),
            "more": query.query(before=last) if last else "",
            "choices": CHOICES,
            "owner_of": partial(names_of, caller, names),
            "query": query,
        }
        return draw_all("blocked_sections.html", base, "blocked", ("rows", "pages"), **values)

    def _groups(
        self, query: RefusalsQuery, owner: str | None
    ) -> list[tuple[RefusalGroup, list[tuple[Refusal, tuple[Gate, ...]]]]]:
        """Return the refusals by rule and reason, each with the newest of them."""
        store = self._service.store
        since = period_of(query.period)[1]
        chosen: RefusalFilter = {
            "owner": owner,
            "agent": query.agent,
            "tool": query.tool,
            "hook": query.hook,
            "verb": query.verb,
            "since": since,
        }
        groups = refusal_groups(
            store,
            query.period,
            owner=owner,
            agent=query.agent,
            tool=query.tool,
            hook=query.hook,
            verb=query.verb,
        )[:MAX_GROUPS]
        newest = refused_calls(store, NEWEST, **chosen)
        found = []
        for group in groups:
            events = [_shortened(*each) for each in newest if _is_in(group, each[0])][:EVENTS]
            # People, and hooks that fail, give each time a reason of their own: the newest is shown.
            reason = group.reason or (events[0][0].reason if events else "")
            found.append((msgspec.structs.replace(group, reason=reason), events))
        return found

    def _questions(self, caller: Caller) -> dict[str, str]:
        """Return what runs wait for, by their ids: the question of the call that waits longest."""
        waiting = self._service.approvals.rows(status="pending", owner=caller.owner, limit=MAX_WAITING)
        return {
            row.root_id: "; ".join(f"{each.hook or 'a hook'} asks: {each.text}" for each in row.questions)
            for row in waiting
        }

    async def _counts(self, query: RunsQuery, caller: Caller) -> dict[str, int]:
        """Return the number of runs in each state; none for filters that look at each run."""
        if query.text or query.tool or query.hook or query.verb or query.model:
            return {}
        return await self._service.state_counts(caller, MAX_COUNT + 1, **query.chosen())

    def _names(self) -> dict[str, str]:
        """Return the names of callers by their ids."""
        return caller_names(self._keys)


def _shortened(each: Refusal, gates: tuple[Gate, ...]) -> tuple[Refusal, tuple[Gate, ...]]:
    short = each.arguments if len(each.arguments) <= ARGUMENTS else f"{each.arguments[:ARGUMENTS]} …"
    return msgspec.structs.replace(each, arguments=short), gates


def _is_in(group: RefusalGroup, each: Refusal) -> bool:
    """Whether a refusal is one of a group: reasons of people and of failures are not counted one by one."""
    same = (group.hook, group.by, group.verb) == (each.hook, each.by, each.verb)
    return same and (bool(group.by) or group.verb == "failed" or group.reason == each.reason)


def _refusal_line(each: Refusal, gates: tuple[Gate, ...]) -> HookLine:
    """Return the hook line of a call that was refused: the gates at the point where it was."""
    passed = [gate_call(each.point, gate) for gate in gates if gate.phase != "observe"]
    if not each.hook:
        passed = [GateCall("before_tool", each.by or "a person", "denied", "denied", refused=True)]
    kind = "call" if "tool" in each.point or each.tool else "step"
    after = each.point in ("after_tool", "after_llm")
    return Slots([passed]).line(passed, kind, "ok" if after else "no")


def _runs_of(query: RefusalsQuery, group: RefusalGroup) -> str:
    """Return the parameters of the list of the runs that something was refused in."""
    chosen = RunsQuery(agent=query.agent, caller=query.caller, range=query.range or "day")
    return chosen.query(hook=group.hook, verb=group.verb, tool=query.tool)


class RunLine(NamedTuple):
    """The verdicts of a run along its time: places, states and words, where it ends, and how many are left out."""

    marks: list[tuple[float, str, str]]
    end: float
    more: int
    words: str


_LINE, _APART, _MARKS = 156.0, 8.0, 18


def _run_line(run: RunRecord, verdicts: Sequence[tuple[float, str]]) -> RunLine:
    began = run.started or run.created
    until = max([run.ended or time.time(), *(at for at, _ in verdicts)])
    length = max(until - began, 0.001)
    end = _LINE if run.ended is not None else _LINE * 0.85
    places: dict[int, tuple[str, str]] = {}
    spoken = [(at, verb) for at, verb in verdicts if verb not in QUIET]
    drawn = _answered(spoken, waits=run.status == "waiting")
    for at, verb in drawn:
        place = int(min(max((at - began) / length, 0.0), 1.0) * (end - 10) / _APART)
        state = gate_of(verb)
        known = places.get(place)
        if known is None or STRENGTH.index(state) > STRENGTH.index(known[0]):
            places[place] = state, verb_words(verb)[0]
    marks = [(8.0 + place * _APART, *said) for place, said in sorted(places.items())]
    counts = Counter(verb_words(verb)[0] for _, verb in spoken)
    words = ", ".join(f"{count} \u00d7 {word}" if count > 1 else word for word, count in counts.items())
    return RunLine(marks, end, max(0, len(drawn) - len(marks)), words or "no verdicts")


def _answered(verdicts: Sequence[tuple[float, str]], *, waits: bool) -> list[tuple[float, str]]:
    """Return verdicts without the questions that were denied or wait: the denial or the end of the line says so."""
    found: list[tuple[float, str]] = []
    for at, verb in (*verdicts, *([(0.0, "")] if waits else [])):
        if verb in ("denied", ""):
            asked = next((n for n in reversed(range(len(found))) if found[n][1] == "ask"), None)
            if asked is not None:
                del found[asked]
        if verb:
            found.append((at, verb))
    return found
