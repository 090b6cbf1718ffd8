"""Identify callers by API key or with the host application, check their rights, and apply the rate limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Any

import msgspec

from .._base.frozen import EMPTY
from .._base.workers import in_thread
from .._web.middleware import SAFE_METHODS, Scope, header, is_local, is_peer, is_same_origin
from ..stores.audit.format import encode_fields, encode_type
from ..stores.audit.log import AuditLog
from ..stores.audit.records import AuthRecord
from ..stores.callers import Caller
from ..stores.errors import StoreError
from ..stores.keys import CACHE_SECONDS, OPERATOR, RIGHTS, KeyRow, KeyStore, Right
from ..stores.limits import BucketStore
from .errors import ApiError
from .options import LoginOptions, ServerOptions
from .proxies import Proxies, network_of
from .rate_limits import RateLimiter, SharedRateLimiter, WrongKeyLimiter

if TYPE_CHECKING:
    from starlette.requests import Request

__all__ = [
    "ANONYMOUS",
    "LOCAL",
    "PUBLIC",
    "RIGHTS",
    "USER",
    "Authenticator",
    "Operation",
    "RequestInfo",
    "Right",
]

log = logging.getLogger("hookline")

LOCAL = "local"
"""The id of a caller on this machine, where no key is needed."""

USER = "user:"
"""The id of a person whom a proxy has authenticated begins with this, so that it is never the id of a key."""

LOGIN_COOKIE = "hookline_login"
"""The cookie of a browser that is logged in; see :meth:`KeyStore.add_login`."""

PUBLIC: tuple[str, ...] = ("public",)
"""The scopes of an endpoint that needs no key. Missing scopes are an error, so they never make an endpoint public."""

CLIENT_DISCONNECTED = 499
"""The status, in logs, of a request whose client disconnected before the response."""

MAX_PERSON = 200
"""Maximum length of the name of a person in an identity header."""

CHECK_SECONDS = 10.0
"""Seconds after which the host application is asked again who the caller of an open stream is."""

_MISSING_RIGHT = "a right is missing"
_UNREADABLE = "the keys cannot be read"
_HINT = "send Authorization: Bearer hl_..., with a key from hookline keys add"


Authenticate = Callable[["Request"], "Caller | Awaitable[Caller | None] | None"]
"""Returns the caller of a request, or ``None`` if it has none. It may be a coroutine function."""

ANONYMOUS = Caller("", "", frozenset())
"""The caller of a public endpoint."""


class Operation(msgspec.Struct, frozen=True):
    """One method of one path: the scopes that allow it, and the ASGI app that handles it."""

    scopes: tuple[str, ...]
    app: Any
    route: str
    decides: bool = False
    """Whether its requests are questions about decisions, which have a rate limit of their own."""

    def __post_init__(self) -> None:
        valid = self.scopes == PUBLIC or {*self.scopes} <= {*RIGHTS}
        if isinstance(self.scopes, str) or not self.scopes or not valid:
            raise ValueError(
                f"the scopes of {self.route} must be some of {', '.join(RIGHTS)}, or PUBLIC, not {self.scopes!r}"
            )


class RequestInfo(msgspec.Struct):
    """One request, as it is logged and audited."""

    method: str
    route: str
    correlation_id: str
    began: float
    caller: Caller = ANONYMOUS
    key: KeyRow | None = None
    login: str = ""
    """The cookie of a browser that is logged in."""
    scope: Scope = {}
    checked: float = 0.0
    """When the host application last named the caller."""
    address: str = ""
    status: int = CLIENT_DISCONNECTED
    revoked: ApiError | None = None
    """Set when the key stops being valid while the request is handled."""

    @property
    def is_old(self) -> bool:
        """Whether the request started so long ago that its key must be checked again."""
        return time.monotonic() > self.began + CACHE_SECONDS


class KeyRevokedError(Exception):
    """The caller lost its access while its request was handled."""


class ProxyLogin:
    """Identify people by a header of a reverse proxy that has authenticated them.

    Args:
        options: the header, the addresses of the proxy, and the rights of people.
    """

    def __init__(self, options: LoginOptions) -> None:
        self._options = options
        self._header = options.header.lower().encode()
        self._proxies = Proxies(options.addresses)

    def identify(self, scope: Scope) -> tuple[Caller | None, str]:
        """Return the person of a request; ``None`` if the request names nobody, and the problem if it must not."""
        named = [
            value.decode("utf-8", "surrogateescape").strip(" \t")
            for key, value in scope["headers"]
            if key == self._header
        ]
        if not named:
            return None, ""
        if not self._proxies.is_peer(scope):
            return None, "an identity header came from an address that is not trusted"
        name = named[0]  # "ann and user:ben" would read like two people who have approved a call
        if len(named) > 1 or not 0 < len(name) <= MAX_PERSON or not name.isprintable() or " and " in name:
            return None, "the identity header does not name one person"
        return self.caller(USER + name), ""

    def caller(self, id: str) -> Caller:
        """Return the person with this id, with the rights that the options give."""
        name = id.removeprefix(USER)
        return Caller(id, name, frozenset(RIGHTS if name in self._options.admins else self._options.rights))


class Authenticator:
    """Authenticate and authorize requests, and audit each decision.

    Args:
        keys: the API keys; ``None`` if there are none.
        options: rate limits and trusted proxies.
        keys_required: whether keys are needed even for requests from this machine.
        audit: gets a record of every decision.
        authenticate: identifies callers instead of keys, see :func:`hookline.server.asgi`.
        buckets: the rate limits of callers, if all replicas share them.
    """

    def __init__(
        self,
        keys: KeyStore | None,
        options: ServerOptions,
        keys_required: bool,
        audit: AuditLog | None,
        authenticate: Authenticate | None = None,
        buckets: BucketStore | None = None,
    ) -> None:
        self._keys = keys
        self._application = authenticate
        self._audit = audit
        self._keys_required = keys_required or options.exposed
        self._proxies = Proxies(options.trusted_proxies)
        self._login = None if options.login is None else ProxyLogin(options.login)
        self._rates = RateLimiter(options.rate, options.burst)
        self._shared_rates = None if buckets is None else SharedRateLimiter(buckets, self._rates)
        self._decisions = RateLimiter(options.decide_rate, options.decide_burst)
        self._wrong_keys = WrongKeyLimiter()
        self._refreshing = asyncio.Lock()

    @property
    def uses_keys(self) -> bool:
        """Whether callers are identified by API keys, and not by a host application."""
        return self._application is None

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key, according to the last check of the key store."""
        return self._keys_required or (self._keys is not None and not self._keys.is_empty)

    async def currently_needs_keys(self) -> bool:
        """Check the key store, and return whether callers need a key; also if it cannot be read."""
        try:
            await self._refresh()
        except StoreError as error:
            log.error("the API keys cannot be read: %s", error)
            return True
        return self.needs_keys

    async def admit(self, scope: Scope, request: RequestInfo, operation: Operation | None) -> None:
        """Identify the caller and check its rights. Return normally if the request is allowed.

        Args:
            scope: the ASGI scope.
            request: gets the caller, its key and its address.
            operation: the requested operation; ``None`` if there is none at this path or with this method.

        Raises:
            ApiError: the request is not allowed.
        """
        request.address = self._proxies.client_address(scope)
        network = network_of(request.address)
        if operation is not None and operation.scopes == PUBLIC:
            _limit(self._rates.take(f"open {network}"))
            return
        if self._application is None:
            await self._admit_key(scope, request, operation, network)
        else:
            await self._admit_user(self._application, scope, request, operation, network)
        await self._limit_caller(f"by {request.caller.id}", operation)
        if operation is not None and not request.caller.may(*operation.scopes):
            self._record(request, operation, _MISSING_RIGHT)
            raise _forbidden("this key" if request.key else "the caller", operation)
        self._record(request, operation)

    async def _limit_caller(self, caller: str, operation: Operation | None) -> None:
        if operation is not None and operation.decides:
            _limit(self._decisions.take(caller))
        else:
            _limit(self._rates.take(caller) if self._shared_rates is None else await self._shared_rates.take(caller))

    async def _admit_key(self, scope: Scope, request: RequestInfo, operation: Operation | None, network: str) -> None:
        try:
            await self._refresh()
        except StoreError as error:
            rejection = self._reject_unknown(request, operation, _UNREADABLE, network)
            if rejection is None:
                log.error("the API keys cannot be read: %s", error)
            raise rejection or _unreadable() from None
        wait = self._wrong_keys.wait(network)  # without an await until the key is checked: requests come together
        if wait:
            raise self._reject_unknown(request, operation, "too many wrong keys", network) or _too_many(
                wait, "too many wrong keys came from this address"
            )
        if self._login is not None and self._admit_person(self._login, scope, request, operation, network):
            return
        by_socket = is_peer(scope) and not has_secret(scope)  # the system has authenticated the user
        if not by_socket and (self._keys_required or not is_local(scope)):
            self._authenticate(scope, request, operation, network)
        else:
            request.caller = Caller(LOCAL, LOCAL, frozenset(RIGHTS))

    def _admit_person(
        self, login: ProxyLogin, scope: Scope, request: RequestInfo, operation: Operation | None, network: str
    ) -> bool:
        """Identify the person whom the proxy names. Return false if it names nobody, so that a key is needed."""
        person, problem = login.identify(scope)
        if problem:
            raise self._reject_unknown(request, operation, problem, network) or _unauthorized(problem)
        if person is None:
            return False
        _check_same_origin(scope)  # the proxy knows the browser by a cookie
        request.caller = person
        return True

    async def _admit_user(
        self,
        authenticate: Authenticate,
        scope: Scope,
        request: RequestInfo,
        operation: Operation | None,
        network: str,
    ) -> None:
        try:
            request.caller = await _ask_application(authenticate, scope)
        except ApiError as error:
            rejection = self._reject_unknown(request, operation, "the application rejected the request", network)
            raise rejection or error from None
        request.scope, request.checked = scope, time.monotonic()

    async def _refresh(self) -> None:
        keys = self._keys
        if keys is None:
            return
        if keys.is_stale:
            async with self._refreshing:  # one request refreshes, the others wait for it
                if keys.is_stale:
                    await in_thread(keys.refresh)
        if keys.problem is not None:
            raise keys.problem
        if not keys.is_empty:
            self._keys_required = True  # it never becomes false again: emptying the key file must not open the server

    def _authenticate(self, scope: Scope, request: RequestInfo, operation: Operation | None, network: str) -> None:
        secret, problem = secret_of(scope)
        row = None if secret is None or self._keys is None else self._keys.lookup(secret)
        login = "" if secret is not None else cookie_of(scope)
        if login and self._keys is not None and (found := self._keys.lookup_login(login)) is not None:
            _check_same_origin(scope)
            request.login = login
            if found.key_id == OPERATOR:
                request.caller = Caller(LOCAL, LOCAL, frozenset(RIGHTS))
                return
            row = self._keys.lookup_key(found.key_id)
        if row is not None and self._keys is not None:
            request.caller = _caller_of(row)
            state = self._keys.state(row)
            if state == "active":
                request.key = row
                self._keys.mark_used(row)
                return
            problem = f"the key is {state}"
        elif secret is not None:
            self._wrong_keys.add(network)  # a revoked or expired key does not count as a guess
            problem = "no such key"
        rejection = _unauthorized("a key is needed" if secret is None else "this key is not valid")
        raise self._reject_unknown(request, operation, problem, network) or rejection

    def open_login(self, scope: Scope, route: str, secret: str, seconds: float) -> str:
        """Log a browser in with a key, and return the value of its cookie. Wrong keys are counted as usual.

        Raises:
            ApiError: the key is not valid, too many wrong keys came from this address, or a page of another server
                sends the request.
            StoreError: the keys cannot be read or written.
        """
        request, network = self._login_request(scope, route)
        if wait := self._wrong_keys.wait(network):
            raise self._reject_unknown(request, None, "too many wrong keys", network) or _too_many(
                wait, "too many wrong keys came from this address"
            )
        row = None if self._keys is None else self._keys.find(secret)
        if row is None or self._keys is None:
            self._wrong_keys.add(network)
            rejection = self._reject_unknown(request, None, "no such key", network)
            raise rejection or _unauthorized("this key is not valid")
        cookie = self._keys.add_login(row.id, seconds)
        request.caller = _caller_of(row)
        self._record(request, None)
        return cookie

    def use_login_link(self, scope: Scope, route: str, secret: str, seconds: float) -> str | None:
        """Log a browser in with a link, and return the value of its cookie; ``None`` if the link is not valid.

        Raises:
            ApiError: too many requests without a valid key or link came from this address, or a page of another
                server sends the request.
            StoreError: the keys cannot be read or written.
        """
        request, network = self._login_request(scope, route)
        cookie = None if self._keys is None else self._keys.use_link(secret, seconds)
        if cookie is None:
            if rejection := self._reject_unknown(request, None, "no such link", network):
                raise rejection
            return None
        request.caller = Caller(LOCAL, LOCAL, frozenset(RIGHTS))
        self._record(request, None)
        return cookie

    def _login_request(self, scope: Scope, route: str) -> tuple[RequestInfo, str]:
        """Return a login as it is audited, and the network that it comes from. ``scope`` has passed the gate.

        Raises:
            ApiError: a page of another server sends it, which would log a browser in as somebody else.
        """
        _check_same_origin(scope)
        address = str((scope.get("client") or ("",))[0])
        request = RequestInfo(scope["method"], route, scope["hookline.correlation_id"], time.monotonic())
        request.address = address
        return request, network_of(address)

    def _reject_unknown(
        self, request: RequestInfo, operation: Operation | None, reason: str, network: str
    ) -> ApiError | None:
        """Audit an unauthenticated request. Beyond a rate limit it is not audited, so that no address can fill the
        disk, and the error to raise is returned.
        """
        wait = self._rates.take(f"unknown {network}")
        if not wait:
            self._record(request, operation, reason)
        request.caller = ANONYMOUS
        return _too_many(wait, "too many requests without a valid key came from this address") if wait else None

    def _record(self, request: RequestInfo, operation: Operation | None, reason: str = "") -> None:
        """Audit a decision; a reason makes it a denial. The thread of the audit log writes it."""
        if self._audit is not None:
            kind = encode_type(AuthRecord.type, encode_fields({"correlation_id": request.correlation_id}))
            rights = "" if operation is None else ",".join(operation.scopes)
            fields = AuthRecord(
                "denied" if reason else "granted",
                reason,
                request.caller.id,
                request.caller.name,
                rights,
                request.method,
                request.route,
                request.address,
            )
            self._audit.put_short(time.time(), kind, fields)

    def record_missing_right(self, request: RequestInfo, operation: Operation, right: str) -> None:
        """Audit that an authenticated caller lacks the right that the content of its request needs."""
        self._record(request, msgspec.structs.replace(operation, scopes=(right,)), _MISSING_RIGHT)

    async def check_still_valid(self, request: RequestInfo) -> None:
        """Check the caller of a long request again, so that requests without access end.

        Raises:
            KeyRevokedError: the key is no longer valid, the application no longer accepts the caller, or neither can
                be checked.
        """
        if self._application is not None:
            await self._check_user(self._application, request)
            return
        if self._keys is None or (request.key is None and not request.login):
            return
        try:
            await self._refresh()
        except StoreError:
            reason, rejection = _UNREADABLE, _unreadable()
        else:
            state: str = "active" if request.key is None else self._keys.state(request.key)
            if request.login and self._keys.lookup_login(request.login) is None:
                state = "logged out"
            if state == "active":
                return
            reason, rejection = f"the key is {state}", _unauthorized("this key is no longer valid")
        self._revoke(request, reason, rejection)

    async def current_caller(self, id: str, scope: Scope | None) -> Caller | None:
        """Return the caller with this id and its present rights; ``None`` if it has no access or that is not known.

        It is for what goes on after the request of a caller, such as push notifications.

        Args:
            id: the caller.
            scope: the request of the caller, which the host application is asked about again; ``None`` if the request
                was made to an earlier process. Keys need no request.

        Raises:
            StoreError: the keys cannot be read now.
        """
        if self._application is not None:
            return await self._current_user(self._application, id, scope)
        if id == LOCAL:  # as for open streams: it has access as long as it needed no key when it began
            return Caller(LOCAL, LOCAL, frozenset(RIGHTS))
        if id.startswith(USER) and self._login is not None:  # the proxy is not asked again
            return self._login.caller(id)
        await self._refresh()
        row = None if self._keys is None else self._keys.lookup_key(id)
        return None if row is None or self._keys is None or self._keys.state(row) != "active" else _caller_of(row)

    async def _current_user(self, authenticate: Authenticate, id: str, scope: Scope | None) -> Caller | None:
        if scope is None:
            return None
        try:
            caller = await _ask_application(authenticate, scope)
        except ApiError:
            return None
        except Exception:
            log.exception("the application could not say whether %s still has access", id)
            return None
        return caller if caller.id == id else None

    async def _check_user(self, authenticate: Authenticate, request: RequestInfo) -> None:
        if request.caller.id == ANONYMOUS.id or time.monotonic() < request.checked + CHECK_SECONDS:
            return
        try:
            caller = await _ask_application(authenticate, request.scope)
        except ApiError as error:
            self._revoke(request, "the application rejected the request", error)
        except Exception:
            log.exception("the application could not say whether %s still has access", request.caller.id)
            self._revoke(request, "the application failed", _unauthorized_user())
        else:
            if (caller.id, caller.scopes) != (request.caller.id, request.caller.scopes):
                self._revoke(request, "the caller or its rights changed", _unauthorized_user())
        request.checked = time.monotonic()

    def _revoke(self, request: RequestInfo, reason: str, rejection: ApiError) -> None:
        if request.revoked is None:
            self._record(request, None, reason)
        request.revoked = rejection
        raise KeyRevokedError(reason)

    def client_scope(self, scope: Scope, request: RequestInfo) -> dict[str, Any]:
        """Return the ASGI fields ``client`` and ``scheme`` of the client's own connection, before trusted proxies."""
        peer = scope.get("client")
        same = not request.address or (peer is not None and peer[0] == request.address)
        return {"client": peer if same else (request.address, 0), "scheme": self._proxies.scheme(scope)}


def _caller_of(row: KeyRow) -> Caller:
    return Caller(row.id, row.name, frozenset(row.scopes), row.metadata)


async def _ask_application(authenticate: Authenticate, scope: Scope) -> Caller:
    """Return the caller that the host application names.

    Raises:
        ApiError: the application names none, or raises an ``HTTPException``.
        TypeError, ValueError: it names something else than a caller, or one without an id of its own.
    """
    from starlette.exceptions import HTTPException
    from starlette.requests import Request

    request = Request(scope)  # without the body, which the endpoint reads
    try:
        if iscoroutinefunction(authenticate):
            caller = await authenticate(request)
        else:  # a plain function may wait for a database, which must not block the event loop
            caller = await in_thread(authenticate, request)
    except HTTPException as error:
        raise ApiError(error.status_code, "unauthorized", str(error.detail), error.headers or EMPTY) from None
    if caller is None:
        raise _unauthorized_user()
    if not isinstance(caller, Caller):
        raise TypeError(f"authenticate= returned {type(caller).__name__}: return a hookline.server.Caller or None")
    if caller.id in (ANONYMOUS.id, LOCAL):
        raise ValueError(f"authenticate= returned a caller with the id {caller.id!r}: give it an id of its own")
    return caller


def secret_of(scope: Scope) -> tuple[str | None, str]:
    """Return the key in a request's headers; ``None`` and the problem if there is none, or more than one."""
    found = set()
    for key, value in scope["headers"]:
        if key == b"authorization":
            scheme, _, rest = value.decode("latin-1").strip().partition(" ")
            if scheme.lower() == "bearer":
                found.add(rest.strip())
        elif key == b"x-api-key":
            found.add(value.decode("latin-1").strip())
    if len(found) > 1:
        return None, "two keys were given"
    return (found.pop(), "") if found else (None, "no key was given")


def has_secret(scope: Scope) -> bool:
    """Whether a request's headers name a key, or several."""
    return any(key in (b"authorization", b"x-api-key") for key, _ in scope["headers"])


def cookie_of(scope: Scope) -> str:
    """Return the cookie of a browser that is logged in; empty if there is none, or more than one."""
    pairs = [pair.strip().partition("=") for pair in (header(scope, b"cookie") or "").split(";")]
    found = {value for name, _, value in pairs if name == LOGIN_COOKIE}
    return found.pop() if len(found) == 1 else ""


def _check_same_origin(scope: Scope) -> None:
    """Check that a request which changes something was sent by a page of this server, as the browser says.

    A cookie is sent by the browser whoever made it send the request, so a request that does not say where it comes from
    is not enough. Nor is a page of another origin that the setting ``origins`` lists: such a page has its own key.

    Raises:
        ApiError: it was not, or the browser does not say it.
    """
    site = header(scope, b"sec-fetch-site")
    own = site == "same-origin" if site is not None else is_same_origin(scope)
    if scope["method"] not in SAFE_METHODS and not own:
        raise ApiError(403, "cross_site", "the request does not come from a page of this server")


def _forbidden(who: str, operation: Operation) -> ApiError:
    needed = " or ".join(operation.scopes)
    return ApiError(403, "forbidden", f"{who} does not have the right {needed}, which the request needs")


def _unauthorized_user() -> ApiError:
    return ApiError(401, "unauthorized", "this application does not know the caller: log in first")


def _unauthorized(reason: str) -> ApiError:
    return ApiError(401, "unauthorized", f"{reason}: {_HINT}", {"WWW-Authenticate": "Bearer"})


def _unreadable() -> ApiError:
    return ApiError(503, "keys_unreadable", "keys cannot be checked at the moment: try again later")


def _limit(wait: float) -> None:
    if wait:
        raise _too_many(wait, "too many requests")


def _too_many(wait: float, reason: str) -> ApiError:
    seconds = max(1, -int(-wait // 1))
    return ApiError(429, "too_many_requests", f"{reason}: try again in {seconds} s", {"Retry-After": str(seconds)})
