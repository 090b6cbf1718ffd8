"""What every request of a server passes: who it is from, what they may do, and how often."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from ..base.frozen import EMPTY, freeze
from ..base.workers import in_thread
from ..stores.audit.format import json_fields, kind_of
from ..stores.audit.log import AuditLog
from ..stores.audit.records import Auth
from ..stores.errors import StoreError
from ..stores.keys import FRESH_SECONDS, RIGHTS, KeyRow, KeyStore
from ..web.guard import App, Gone, Message, Receive, Refused, Scope, Send, is_local
from .callers import ANYBODY, LOCAL, Caller
from .endpoints import OPEN, ApiError, Endpoint, told_plainly
from .headers import CORRELATION, correlation_id, secret_of
from .limits import Rates, WrongKeys
from .log_fields import logging_with
from .options import ServerOptions
from .proxies import Proxies, same_house

if TYPE_CHECKING:
    from starlette.routing import Route

log = logging.getLogger("hookline")
access = logging.getLogger("hookline.access")

Counter = Callable[[str, str, int, float], object]
"""Gets of every request the method, the route, the status and the seconds."""

Tell = Callable[[ApiError], Any]
"""Makes the body of an error."""

_GONE = 499  # in logs: whoever asked did not wait for the answer
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_LACKING = "a right is missing"
_UNREADABLE = "the keys cannot be read"
_HINT = "send Authorization: Bearer hl_..., with a key from hookline keys add"


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
        options = options or ServerOptions()
        self._keys, self._audit, self._count = keys, audit, count
        self._needed = needed or options.exposed
        self._proxies = Proxies(options.trusted_proxies)
        self._rates = Rates(options.rate, options.burst)
        self._wrong = WrongKeys()
        self._reading = asyncio.Lock()

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key, as far as is known."""
        return self._needed or (self._keys is not None and not self._keys.is_empty)

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

        ways: dict[str, dict[str, _Way]] = {}
        told: dict[str, Tell] = {}
        for endpoint in endpoints:
            table, method = ways.setdefault(endpoint.path, {}), endpoint.method.upper()
            if method in table:
                raise ValueError(f"{method} {endpoint.path} is there twice")
            way = table[method] = _Way(endpoint.scopes, _answering(endpoint), endpoint.path)
            if method == "GET" and endpoint.media != "text/event-stream":
                table.setdefault("HEAD", way)
            if endpoint.told is not None:
                told[endpoint.path] = endpoint.told
        return [Route(path, _Door(self, table, path, told.get(path, told_plainly))) for path, table in ways.items()]

    def rest(self) -> Route:
        """A route for all other paths, to be the last: without a key one does not even learn that they are unknown."""
        from starlette.routing import Route

        route = Route("/{path:path}", _Door(self, {}, "*"))
        route.path_regex = re.compile(r"(?s)(?P<path>.*)\Z")  # with line breaks, or without a slash
        return route

    # One request.

    async def admit(self, scope: Scope, visit: _Visit, way: _Way | None) -> None:
        """Find out who calls; returns if they may.

        Raises:
            ApiError: they may not.
        """
        visit.address = self._proxies.client(scope)
        house = same_house(visit.address)
        if way is not None and way.scopes == OPEN:
            self._limit(f"open {house}")
            return
        wait = self._wrong.wait(house)
        if wait:
            raise self._denied(visit, way, "too many wrong keys", house) or _too_many(
                wait, "too many wrong keys came from this address"
            )
        try:
            await self._refresh()
        except StoreError as error:
            refused = self._denied(visit, way, _UNREADABLE, house)
            if refused is None:
                log.error("API keys cannot be read: %s", error)
            raise refused or _unreadable() from None
        if self._needed or not is_local(scope):
            self._authenticate(scope, visit, way, house)
        else:
            visit.caller = Caller(LOCAL, LOCAL, frozenset(RIGHTS))
        self._limit(f"by {visit.caller.id}")
        if way is None:
            self._decide(visit, way)
            return
        if not visit.caller.may(*way.scopes):
            self._decide(visit, way, _LACKING)
            needed = " or ".join(way.scopes)
            raise ApiError(403, "forbidden", f"this key may not do that: it needs the right {needed}")
        self._decide(visit, way)

    async def _refresh(self) -> None:
        keys = self._keys
        if keys is None:
            return
        if keys.is_due:
            async with self._reading:  # one looks, those behind it wait for that
                if keys.is_due:
                    await in_thread(keys.refresh)
        if keys.problem is not None:
            raise keys.problem
        if not keys.is_empty:
            self._needed = True  # from now on: a file that is emptied opens nothing

    def _authenticate(self, scope: Scope, visit: _Visit, way: _Way | None, house: str) -> None:
        secret, why = secret_of(scope)
        row: KeyRow | None = None
        if secret is not None and self._keys is not None:
            row = self._keys.known(secret)
        if row is not None and self._keys is not None:
            visit.caller = Caller(row.id, row.name, frozenset(row.scopes), freeze(row.metadata))
            state = self._keys.state(row)
            if state == "active":
                visit.key = row
                self._keys.used(row)
                return
            why = f"the key is {state}"
        elif secret is not None:
            self._wrong.add(house)  # a key that was good once is no guess
            why = "nobody has this key"
        refused = _unauthorized("this needs a key" if secret is None else "this key is not good")
        raise self._denied(visit, way, why, house) or refused

    def _denied(self, visit: _Visit, way: _Way | None, why: str, house: str) -> ApiError | None:
        """Write down that nobody was recognised, so often from one address that nobody can fill the disk with it."""
        wait = self._rates.take(f"unknown {house}")
        if not wait:
            self._decide(visit, way, why)
        visit.caller = ANYBODY
        return _too_many(wait, "too many requests without a good key came from this address") if wait else None

    def _limit(self, who: str) -> None:
        wait = self._rates.take(who)
        if wait:
            raise _too_many(wait, "too many requests")

    def _decide(self, visit: _Visit, way: _Way | None, why: str = "") -> None:
        """Write a decision down; the thread of the log does the work."""
        if self._audit is not None:
            kind = kind_of(Auth.type, json_fields({"correlation_id": visit.correlation_id}))
            right = "" if way is None else ",".join(way.scopes)
            fields = Auth(
                "denied" if why else "granted", why, visit.caller.id, visit.caller.name, right, visit.method,
                visit.route, visit.address,
            )  # fmt: skip
            self._audit.put_short(time.time(), kind, fields)

    def lacks(self, visit: _Visit, way: _Way, right: str) -> None:
        """Write down that somebody who was let in may not do what the request is about."""
        self._decide(visit, msgspec.structs.replace(way, scopes=(right,)), _LACKING)

    async def check_again(self, visit: _Visit) -> None:
        """Look whether the key of an answer that takes its time is still good: one that is revoked gets nothing more.

        Raises:
            _Ended: it is not, or nobody knows.
        """
        if visit.key is None or self._keys is None:
            return
        try:
            await self._refresh()
        except StoreError:
            why, refused = _UNREADABLE, _unreadable()
        else:
            state = self._keys.state(visit.key)
            if state == "active":
                return
            why, refused = f"the key is {state}", _unauthorized("this key is not good any more")
        if visit.ended is None:
            self._decide(visit, None, why)
        visit.ended = refused
        raise _Ended(why)

    def seen(self, scope: Scope, visit: _Visit) -> dict[str, Any]:
        """How the request looked before the proxies that are trusted."""
        peer = scope.get("client")
        same = not visit.address or (peer is not None and peer[0] == visit.address)
        return {"client": peer if same else (visit.address, 0), "scheme": self._proxies.scheme(scope)}

    def over(self, visit: _Visit) -> None:
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


class _Way(msgspec.Struct, frozen=True):
    """What is behind the gate, and who may get there."""

    scopes: tuple[str, ...]
    app: Any
    route: str

    def __post_init__(self) -> None:
        if isinstance(self.scopes, str) or (self.scopes != OPEN and not {*self.scopes} <= {*RIGHTS}) or not self.scopes:
            raise ValueError(f"{self.route} needs rights of {', '.join(RIGHTS)}, or OPEN, not {self.scopes!r}")


class _Visit(msgspec.Struct):
    """One request, as it is logged."""

    method: str
    route: str
    correlation_id: str
    began: float
    caller: Caller = ANYBODY
    key: KeyRow | None = None
    address: str = ""
    status: int = _GONE
    ended: ApiError | None = None

    @property
    def took_its_time(self) -> bool:
        """Whether it began so long ago that its key may not be good any more."""
        return time.monotonic() > self.began + FRESH_SECONDS


class _Ended(Exception):
    """The caller may not go on."""


class _Door:
    """A path behind the gate, as an ASGI app."""

    def __init__(self, gate: Gate, ways: Mapping[str, _Way], route: str, told: Tell = told_plainly) -> None:
        self._gate, self._ways, self._route, self._told = gate, ways, route, told

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"{self._route} is for HTTP alone")
        method = scope["method"]
        visit = _Visit(method if method in _METHODS else "other", self._route, correlation_id(scope), time.monotonic())
        with logging_with(correlation_id=visit.correlation_id):
            await self._answer(scope, receive, visit, _Answered(self._gate, visit, send, self._told))

    async def _answer(self, scope: Scope, receive: Receive, visit: _Visit, answered: _Answered) -> None:
        try:
            await self._serve(scope, receive, answered, visit)
        except ApiError as error:
            await answered.refuse(error)
        except Refused as refused:
            visit.status = refused.status
            refused.headers.append(answered.header)
            raise
        except Gone:
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
            self._gate.over(visit)

    async def _serve(self, scope: Scope, receive: Receive, answered: _Answered, visit: _Visit) -> None:
        way = self._ways.get(scope["method"])
        await self._gate.admit(scope, visit, way)
        if way is None and not self._ways:
            raise ApiError(404, "not_found", "there is nothing at this path: GET /openapi.json tells what there is")
        if way is None:
            allowed = ", ".join(sorted(self._ways))
            raise ApiError(405, "method_not_allowed", f"this path takes {allowed}", {"Allow": allowed})

        async def heard() -> Message:
            message = await receive()
            if message["type"] == "http.request" and visit.took_its_time:
                await self._gate.check_again(visit)
            return message

        own = {
            "hookline.caller": visit.caller, "hookline.correlation_id": visit.correlation_id,
            "hookline.denied": lambda right: self._gate.lacks(visit, way, right),
        }  # fmt: skip
        with logging_with(caller=visit.caller.id):
            await way.app({**scope, **own, **self._gate.seen(scope, visit)}, heard, answered)


class _Answered:
    """The way back: it knows the status, and adds the correlation id."""

    def __init__(self, gate: Gate, visit: _Visit, send: Send, told: Tell) -> None:
        self._gate, self._visit, self._send, self._told, self._started = gate, visit, send, told, False
        self.header = (CORRELATION.lower().encode(), visit.correlation_id.encode())

    async def __call__(self, message: Message) -> None:
        begins = message["type"] == "http.response.start"
        if message.get("more_body") or (begins and self._visit.took_its_time):
            await self._gate.check_again(self._visit)
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
        await response(scope, receive, send)

    return answer


def _left(error: Exception) -> bool:
    """Whether this only says that whoever asked is gone."""
    from starlette.requests import ClientDisconnect

    return isinstance(error, ClientDisconnect)


def _unauthorized(why: str) -> ApiError:
    return ApiError(401, "unauthorized", f"{why}: {_HINT}", {"WWW-Authenticate": "Bearer"})


def _unreadable() -> ApiError:
    return ApiError(503, "keys_unreadable", "keys cannot be checked now: try again later")


def _too_many(wait: float, why: str) -> ApiError:
    seconds = max(1, -int(-wait // 1))
    return ApiError(429, "too_many_requests", f"{why}: try again in {seconds} s", {"Retry-After": str(seconds)})
