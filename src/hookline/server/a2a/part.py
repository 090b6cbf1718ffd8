"""The A2A part of a server: its endpoints."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from ..._base.errors import NotInstalledError
from ...stores.audit.log import AuditLog
from ...stores.runs import RunStore
from ..callers import ANYBODY, LOCAL, RIGHTS
from ..endpoints import OPEN, ApiError, Endpoint, caller_of
from ..errors import UnknownAgentError
from ..leaving import unless_gone
from ..service import RunService


class A2aPart:
    """Serves the agents of a service over A2A, 1.0 and 0.3.

    Args:
        service: has the runs; open it before this, and close it before this.
        store: the file of the runs, where receivers of push notifications are kept too.
        audit: gets a record of every standing permission that is given.
        push: settings for :class:`Push`.

    Raises:
        NotInstalledError: a2a-sdk is missing.
    """

    def __init__(self, service: RunService, store: RunStore, audit: AuditLog | None = None, **push: Any) -> None:
        if find_spec("a2a") is None:
            raise NotInstalledError("a2a-sdk", "server")
        from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher

        from .envelope import keep_quiet
        from .handler import Handler
        from .push import Push
        from .visits import Contexts

        keep_quiet()
        self._service, self._options = service, service.options
        self.push = Push(service, store.push_subscriptions, hosts=self._options.push_hosts, **push)
        self._dispatcher = JsonRpcDispatcher(Handler(service, self.push, audit), Contexts(), enable_v0_3_compat=True)

    async def open(self) -> None:
        """Send what an earlier program could not.

        Raises:
            StoreError: the file cannot be used.
        """
        await self.push.open()

    async def close(self) -> None:
        """Let go of the receivers."""
        await self.push.close()

    def endpoints(self) -> Sequence[Endpoint]:
        """What can be asked for."""
        seen = OPEN if self._options.public_card else RIGHTS
        card = "/.well-known/agent-card.json"
        return [
            Endpoint("GET", card, self._card, seen, "first_agent_card", "The A2A card of the first agent", answer=dict),
            Endpoint("GET", f"/a2a/{{agent}}{card}", self._card, seen, "agent_card", "The A2A card of an agent",
                     answer=dict, problems=(404,)),
            Endpoint("POST", "/a2a/{agent}", self._call, ("read", "run", "approve"), "a2a",
                     "A2A JSON-RPC, versions 1.0 and 0.3", body=dict, answer=dict, problems=(404,)),
        ]  # fmt: skip

    async def _card(self, request: Request) -> Response:
        from a2a.server.request_handlers.response_helpers import agent_card_to_dict

        from .cards import card_of

        visit = self._visit(request)
        return JSONResponse(agent_card_to_dict(card_of(visit.agent, visit.base, keyed=visit.keyed)))

    async def _call(self, request: Request) -> Response:
        from .envelope import Refused, check

        visit = self._visit(request)
        try:
            check(await request.body())
        except Refused as refused:
            return JSONResponse(refused.answer)
        visit.enter(request)
        try:
            response = await unless_gone(request.receive, self._dispatcher.handle_requests(request))
        except BaseException:
            visit.close()
            raise
        if not hasattr(response, "ping_interval"):
            visit.close()
            return response
        from .streams import closing

        return closing(response, visit, self._options.heartbeat)

    def _visit(self, request: Request) -> Any:
        from .visits import Visit

        caller = caller_of(request)
        try:
            agent, _, _ = self._service.agents.find(request.path_params.get("agent", ""))
        except UnknownAgentError as error:  # which ones there are is for callers
            said = "there is no such agent" if caller.id == ANYBODY.id else str(error)
            raise ApiError(404, "unknown_agent", said) from None
        base = self._options.public_url or f"{request.url.scheme}://{request.url.netloc}"
        keyed = self._options.exposed or caller.id not in (LOCAL, ANYBODY.id)
        return Visit(caller, agent, base, keyed, request)
