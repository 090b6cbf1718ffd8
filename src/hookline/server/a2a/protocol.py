"""Calls of the A2A protocol, versions 1.0 and 0.3, with the SDK."""

from __future__ import annotations

from typing import Any

from a2a.server.routes.agent_card_routes import create_agent_card_routes
from a2a.server.routes.jsonrpc_dispatcher import JsonRpcDispatcher
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive, Scope, Send

from ...stores.audit.log import AuditLog
from ..auth import ANONYMOUS
from ..errors import ApiError, UnknownAgentError
from ..routing import Gate, caller_of, until_disconnect
from ..runs import RunService
from .cards import agent_card
from .compat import check_old_request, complete_old_response
from .context import ContextBuilder, RequestContext
from .handler import Handler
from .history import History
from .jsonrpc import InvalidJsonRpcError, check_request, silence_sdk_logs
from .push import PushNotifier

CARD_SECONDS = 300
"""Seconds for which clients may keep a card."""


class A2aProtocol:
    """Answers the requests of A2A.

    Args:
        service: runs the agents.
        gate: knows the present rights of callers, and whether they use API keys, which the agent card then says.
        audit: gets a record of every standing permission that is given.
        push: sends notifications.
        history: keeps the messages of callers.
    """

    def __init__(
        self, service: RunService, gate: Gate, audit: AuditLog | None, push: PushNotifier, history: History
    ) -> None:
        silence_sdk_logs()
        self.push = push
        self._gate, self._service, self._options = gate, service, service.options
        handler = Handler(service, push, history, audit)
        self._dispatcher = JsonRpcDispatcher(handler, ContextBuilder(), enable_v0_3_compat=True)

    async def card(self, request: Request) -> Response:
        """Return the card of an agent, with headers for caches."""
        context = await self._context(request)
        card = agent_card(context.agent, context.base_url, needs_key=context.needs_key)
        shared = "public" if self._options.public_card else "private"
        (route,) = create_agent_card_routes(card, cache_control=f"{shared}, max-age={CARD_SECONDS}")
        response: Response = await route.endpoint(request)
        return response

    async def call(self, request: Request) -> Response:
        """Answer a JSON-RPC call."""
        context = await self._context(request)
        try:
            called = check_request(await request.body())
            check_old_request(called)
        except InvalidJsonRpcError as error:
            return JSONResponse(error.response)
        context.attach(request)
        try:
            response = await until_disconnect(request.receive, self._dispatcher.handle_requests(request))
        except BaseException:
            context.close()
            raise
        if not hasattr(response, "ping_interval"):
            context.close()
            return complete_old_response(called, response)
        stream: Any = response  # the class of streams is private to the SDK
        stream.ping_interval = self._options.heartbeat
        return _Stream(stream, context)

    async def _context(self, request: Request) -> RequestContext:
        caller = caller_of(request)
        try:
            agent = self._service.agents.find(request.path_params.get("agent", ""))
        except UnknownAgentError as error:  # the error lists the agents, which only callers with a key may see
            message = "there is no such agent" if caller.id == ANONYMOUS.id else str(error)
            raise ApiError(404, "unknown_agent", message) from None
        prefix = request.scope.get("root_path", "")
        base_url = self._options.public_url or f"{request.url.scheme}://{request.url.netloc}{prefix}"
        needs_key = self._gate.uses_keys and await self._gate.currently_needs_keys()
        return RequestContext(caller, agent, base_url, needs_key, request)


class _Stream(Response):
    """A streaming response that closes the context of its request at the end."""

    def __init__(self, inner: Any, context: RequestContext) -> None:
        super().__init__()
        self._inner = inner
        self._context = context

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._inner(scope, receive, send)
        finally:
            self._context.close()
