"""One request: who sends it, to which agent, and what must be closed when it is over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from a2a.auth.user import User
from a2a.server.context import ServerCallContext
from a2a.server.routes.common import ServerCallContextBuilder

from ..agents import ServedAgent
from ..callers import Caller
from ..endpoints import correlation_of, denial_of
from ..reading import Reader

if TYPE_CHECKING:
    from starlette.requests import Request

_KEY = "hookline.a2a"


class Visit:
    """One request. What it reads is closed with it, however it ends."""

    def __init__(self, caller: Caller, agent: ServedAgent, base: str, keyed: bool, request: Request) -> None:
        self.caller, self.agent, self.base, self.keyed = caller, agent, base, keyed
        self._id = correlation_of(request)
        self._given = self._id in (request.headers.get("x-correlation-id"), request.headers.get("x-request-id"))
        self._readers: list[Reader] = []
        self.denied = denial_of(request)
        """Writes down that the caller lacks a right."""

    def correlation(self, named: str) -> str:
        """The correlation id: that of the request, else the one that a message names, else one that was made up."""
        return named if named and not self._given else self._id

    def keep(self, reader: Reader) -> Reader:
        """Close this too, at the end."""
        self._readers.append(reader)
        return reader

    def close(self) -> None:
        """Nobody waits any more."""
        for reader in self._readers:
            reader.close()

    def enter(self, request: Request) -> None:
        """Have the handler find this."""
        request.scope[_KEY] = self


class _Known(User):
    def __init__(self, caller: Caller) -> None:
        self._caller = caller

    @property
    def is_authenticated(self) -> bool:
        return True

    @property
    def user_name(self) -> str:
        return self._caller.name


class Contexts(ServerCallContextBuilder):
    """Makes the context of a call from a request that the gate has let in."""

    def build(self, request: Request) -> ServerCallContext:
        """The context of one call."""
        visit: Visit = request.scope[_KEY]
        state = {"visit": visit, "headers": dict(request.headers)}
        return ServerCallContext(user=_Known(visit.caller), state=state)


def visit_of(context: ServerCallContext) -> Visit:
    """Who calls, and whom."""
    visit: Visit = context.state["visit"]
    return visit


def version_of(context: ServerCallContext) -> str:
    """The version of the protocol that the method is from."""
    return "0.3" if "/" in context.state.get("method", "") else "1.0"
