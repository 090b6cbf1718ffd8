"""What every request of a server passes: a door on each path, which asks who may enter, answers errors, and logs."""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from .._base.frozen import EMPTY
from .._web.middleware import App, ClientDisconnectedError, Message, Receive, RequestRejectedError, Scope, Send
from ..stores.audit.log import AuditLog
from ..stores.errors import StoreError
from ..stores.keys import KeyStore
from .admission import Admission, Visit, Way
from .endpoints import ApiError, Endpoint, told_plainly
from .errors import ServiceError
from .headers import CORRELATION, correlation_id
from .log_fields import logging_with
from .options import ServerOptions
from .refusals import refusal

if TYPE_CHECKING:
    from starlette.routing import Route

log = logging.getLogger("hookline")
access = logging.getLogger("hookline.access")

Counter = Callable[[str, str, int, float], object]
"""Gets of every request the method, the route, the status and the seconds."""

Tell = Callable[[ApiError], Any]
"""Makes the body of an error."""

_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))


class Gate:
    """Lets requests in. What is not allowed is refused: for those without a key every path looks the same.

    No key is needed only while there never was one, the server listens to this machine alone, and the request comes
    from there. If keys cannot be read, nobody is let in.

    Args:
        keys: whose keys count; ``None`` if there are none.
        options: how often callers may ask, and which proxies are trusted.
        needed: whether keys are needed in any case.
        audit: gets a record of every decision.
        count: gets of every request the method, the route, the status and the seconds.
    """

    def __init__(
        self,
        keys: KeyStore | None,
        options: ServerOptions | None = None,
        *,
        needed: bool = False,
        audit: AuditLog | None = None,
        count: Counter | None = None,
    ) -> None:
        self._admission = Admission(keys, options or ServerOptions(), needed, audit)
        self._audit, self._count = audit, count

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key, as far as is known."""
        return self._admission.needs_keys

    @property
    def is_audited(self) -> bool:
        """Whether its decisions are written down."""
        return self._audit is not None

    def routes(self, endpoints: Iterable[Endpoint]) -> list[Route]:
        """Starlette routes of endpoints, one for each path.

        Raises:
            ValueError: an endpoint says neither which rights it needs nor ``OPEN``, or is there twice.
        """
        from starlette.routing import Route

        ways: dict[str, dict[str, Way]] = {}
        told: dict[str, Tell] = {}
        for endpoint in endpoints:
            table, method = ways.setdefault(endpoint.path, {}), endpoint.method.upper()
            if method in table:
                raise ValueError(f"{method} {endpoint.path} is there twice")
            way = table[method] = Way(endpoint.scopes, _answering(endpoint), endpoint.path)
            if method == "GET" and endpoint.media != "text/event-stream":
                table.setdefault("HEAD", way)
            if endpoint.told is not None:
                told[endpoint.path] = endpoint.told
        return [Route(path, self._door(path, table, told.get(path, told_plainly))) for path, table in ways.items()]

    def rest(self) -> Route:
        """A route for all other paths, to be the last: without a key one does not even learn that they are unknown."""
        from starlette.routing import Route

        route = Route("/{path:path}", self._door("*", {}, told_plainly))
        route.path_regex = re.compile(r"(?s)(?P<path>.*)\Z")  # with line breaks, or without a slash
        return route

    def _door(self, route: str, ways: Mapping[str, Way], told: Tell) -> _Door:
        return _Door(self._admission, self._count, route, ways, told)


class _Door:
    """A path behind the gate, as an ASGI app."""

    def __init__(
        self, admission: Admission, count: Counter | None, route: str, ways: Mapping[str, Way], told: Tell
    ) -> None:
        self._admission, self._count, self._route, self._ways, self._told = admission, count, route, ways, told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{self._route} is for HTTP alone")
        method = scope["method"]
        visit = Visit(method if method in _METHODS else "other", self._route, correlation_id(scope), time.monotonic())
        with logging_with(correlation_id=visit.correlation_id):
            await self._answer(scope, receive, visit, _Answered(self._admission, visit, send, self._told))

    async def _answer(self, scope: Scope, receive: Receive, visit: Visit, answered: _Answered) -> None:
        try:
            await self._serve(scope, receive, answered, visit)
        except ApiError as error:
            await answered.refuse(error)
        except RequestRejectedError as refused:
            visit.status = refused.status
            refused.headers.append(answered.header)
            raise
        except ClientDisconnectedError:
            raise
        except Exception as error:
            if visit.ended is not None:
                await answered.refuse(visit.ended)
                return
            if _left(error):
                return
            log.exception("%s %s failed, correlation id %s", visit.method, visit.route, visit.correlation_id)
            said = f"something went wrong here: it is in the log under {visit.correlation_id}"
            await answered.refuse(ApiError(500, "internal", said))
        finally:
            self._over(visit)

    async def _serve(self, scope: Scope, receive: Receive, answered: _Answered, visit: Visit) -> None:
        way = self._ways.get(scope["method"])
        await self._admission.admit(scope, visit, way)
        if way is None and not self._ways:
            raise ApiError(404, "not_found", "there is nothing at this path: GET /openapi.json tells what there is")
        if way is None:
            allowed = ", ".join(sorted(self._ways))
            raise ApiError(405, "method_not_allowed", f"this path takes {allowed}", {"Allow": allowed})

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "http.request" and visit.took_its_time:
                await self._admission.check_again(visit)
            return message

        own = {
            "hookline.caller": visit.caller, "hookline.correlation_id": visit.correlation_id,
            "hookline.denied": lambda right: self._admission.lacks(visit, way, right),
        }  # fmt: skip
        with logging_with(caller=visit.caller.id):
            await way.app({**scope, **own, **self._admission.seen(scope, visit)}, heard, answered)

    def _over(self, visit: Visit) -> None:
        """Log a request and count it."""
        seconds = time.monotonic() - visit.began
        told: dict[str, Any] = {
            "method": visit.method, "route": visit.route, "status": visit.status, "ms": round(seconds * 1000, 1),
            "caller": visit.caller.id,
        }  # fmt: skip
        access.info(
            "%s %s %d %.1f ms caller=%s correlation_id=%s", *told.values(), visit.correlation_id, extra=told,
        )  # fmt: skip
        if self._count is not None:
            self._count(visit.method, visit.route, visit.status, seconds)


class _Answered:
    """The way back: it knows the status, and adds the correlation id."""

    def __init__(self, admission: Admission, visit: Visit, send: Send, told: Tell) -> None:
        self._admission, self._visit, self._send, self._told, self._started = admission, visit, send, told, False
        self.header = (CORRELATION.lower().encode(), visit.correlation_id.encode())

    async def __call__(self, message: Message) -> None:
        begins = message["type"] == "http.response.start"
        if message.get("more_body") or (begins and self._visit.took_its_time):
            await self._admission.check_again(self._visit)
        await (self._begin(message) if begins else self._send(message))

    async def _begin(self, message: Message) -> None:
        self._started, self._visit.status = True, message["status"]
        headers = [pair for pair in message.get("headers", ()) if bytes(pair[0]).lower() != self.header[0]]
        await self._send({**message, "headers": [*headers, self.header]})

    async def refuse(self, error: ApiError) -> None:
        """Answer with an error; what has begun is left unfinished, which the other end notices."""
        if self._started:
            return
        body = msgspec.json.encode(self._told(error))
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        headers += [(name.lower().encode(), value.encode("latin-1")) for name, value in error.headers.items()]
        await self._begin({"type": "http.response.start", "status": error.status, "headers": headers})
        await self._send({"type": "http.response.body", "body": body})


def _answering(endpoint: Endpoint) -> App:
    """An endpoint as an ASGI app."""
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await endpoint.call(Request(scope, receive, send))
        except HTTPException as error:
            raise ApiError(error.status_code, "bad_request", error.detail, error.headers or EMPTY) from None
        except (ServiceError, StoreError) as error:
            raise refusal(error) from None
        await response(scope, receive, send)

    return answer


def _left(error: Exception) -> bool:
    """Whether this only says that whoever asked is gone."""
    from starlette.requests import ClientDisconnect

    return isinstance(error, ClientDisconnect)
