"""The context of one A2A request: its caller, the agent, and the readers to close afterwards."""

from __future__ import annotations

from typing import TYPE_CHECKING

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder

from ...stores.callers import Caller
from ...stores.runs import RunRecord
from ..agents import ServedAgent
from ..live_run import EventReader
from ..routing import correlation_of, missing_right_recorder

if TYPE_CHECKING:
    from starlette.requests import Request

_SCOPE_KEY = "hookline.a2a"


class RequestContext:
    """One A2A request. Its readers are closed with it.

    Args:
        caller: the caller.
        agent: the agent that the request is for.
        base_url: the URL of the server, with the path at which it is mounted.
        needs_key: whether callers need a key.
        request: the HTTP request.
    """

    def __init__(self, caller: Caller, agent: ServedAgent, base_url: str, needs_key: bool, request: Request) -> None:
        self.caller = caller
        self.agent = agent
        self.base_url = base_url
        self.needs_key = needs_key
        self.scope = request.scope
        self._correlation_id = correlation_of(request)
        given = (request.headers.get("x-correlation-id"), request.headers.get("x-request-id"))
        self._is_given = self._correlation_id in given
        self._readers: list[EventReader] = []
        self.record_missing_right = missing_right_recorder(request)
        """Audits that the caller lacks a right."""

    def correlation_id(self, from_message: str = "") -> str:
        """Return the correlation id: from the request headers, else from the message, else a generated one."""
        return from_message if from_message and not self._is_given else self._correlation_id

    def add_reader(self, reader: EventReader) -> EventReader:
        """Close this reader at the end of the request."""
        self._readers.append(reader)
        return reader

    def close(self) -> None:
        """Close all readers."""
        for reader in self._readers:
            reader.close()

    def attach(self, request: Request) -> None:
        """Make this context available to the handler."""
        request.scope[_SCOPE_KEY] = self


class _AuthenticatedUser(User):
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._caller.name


class ContextBuilder(ServerCallContextBuilder):
    """Build the SDK's call context from a request that passed the gate."""

    def build(self, request: Request) -> ServerCallContext:
        """Return the context of one call."""
        context: RequestContext = request.scope[_SCOPE_KEY]
        state = {"hookline": context, "headers": dict(request.headers)}
        return ServerCallContext(user=_AuthenticatedUser(context.caller), state=state)


def request_context(context: ServerCallContext) -> RequestContext:
    """Return our context, which is stored inside the SDK's call context."""
    found: RequestContext = context.state["hookline"]
    return found


def may_see(caller: Caller, run: RunRecord) -> bool:
    """Return whether a caller may see the texts of a run: it has the right ``read``, or started the run."""
    return caller.may("read") or (caller.may("run") and caller.id == run.owner)


def version_of(context: ServerCallContext) -> str:
    """Return the protocol version of the called method."""
    return "0.3" if "/" in context.state.get("method", "") else "1.0"
