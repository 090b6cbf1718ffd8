"""Streams of a request, which close what they read when they end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from starlette.responses import Response

from .visits import Visit

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send


class _Closing(Response):
    def __init__(self, inner: Any, visit: Visit) -> None:
        super().__init__()
        self._inner, self._visit = inner, visit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await self._inner(scope, receive, send)
        finally:
            self._visit.close()


def closing(response: Any, visit: Visit, heartbeat: float) -> Response:
    """A stream that shows that it is alive, and after which nothing of the visit is left open."""
    response.ping_interval = heartbeat
    return _Closing(response, visit)
