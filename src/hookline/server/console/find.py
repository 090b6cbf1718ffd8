"""Find a run, an agent, a hook or a tool by a part of its name."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import Response

from ...stores.callers import Caller
from ..errors import UnknownRunError
from ..routing import Endpoint, caller_of, json_response
from ..runs import RunService
from .live import LiveViews
from .login import page_endpoint, wants_sections
from .render import base_of, fragment, page
from .run import PAGE as RUN_PAGE

PATH = "/console/find"
MAX_TEXT = 200
MAX_RUNS = 8
MAX_NAMES = 6


class Found(NamedTuple):
    """Something that was found: its kind, its name, more about it, and the path of its page."""

    kind: str
    name: str
    more: str
    path: str


class FindPage:
    """The page at ``/console/find``, and the list in the dialog that every page has.

    Args:
        service: knows the runs and the agents.
        live: adds what is around all pages.
    """

    def __init__(self, service: RunService, live: LiveViews) -> None:
        self._service = service
        self._live = live

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        return [page_endpoint("GET", PATH, self._show, ("read",), "console_find")]

    async def _show(self, request: Request) -> Response:
        text = request.query_params.get("text", "").strip()[:MAX_TEXT]
        found = await self._found(text, caller_of(request)) if text else []
        html = fragment("find_list.html", base_of(request), found=found, text=text)
        if wants_sections(request):
            return json_response({"found": html})
        await self._live.add_frame(request)
        return page(request, "find.html", title="Find", text=text, list=html)

    async def _found(self, text: str, caller: Caller) -> list[Found]:
        agents = self._service.agents.list()
        hooks = dict.fromkeys(each.hook for places in self._service.hook_orders().values() for each in places)
        tools = dict.fromkeys(tool for each in agents for tool in each.tools)
        found = [
            Found("agent", each.name, each.description, f"/console/runs?{urlencode({'agent': each.name})}")
            for each in agents
        ]
        found += [Found("hook", name, "", f"/console/hooks?{urlencode({'hook': name})}") for name in hooks]
        found += [Found("tool", name, "", f"/console/runs?{urlencode({'tool': name})}") for name in tools]
        named = [each for each in found if text.lower() in each.name.lower()]
        best = sorted(named, key=lambda each: (not each.name.lower().startswith(text.lower()), len(each.name)))
        return [*await self._runs(text, caller), *best[:MAX_NAMES]]

    async def _runs(self, text: str, caller: Caller) -> list[Found]:
        try:
            runs = [await self._service.get(text, caller)]
        except UnknownRunError:
            runs = (await self._service.search(caller, limit=MAX_RUNS, text=text)).runs[:MAX_RUNS]
        return [
            Found(
                "run", run.task.strip()[:MAX_TEXT] or run.id, f"{run.agent}, {run.status}", RUN_PAGE.format(id=run.id)
            )
            for run in runs
        ]
