"""Authenticate requests by API key, check the caller's rights, and apply the rate limits."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from typing import Any

import msgspec

from .._base.frozen import EMPTY, Frozen, freeze
from .._base.workers import in_thread
from .._web.middleware import Scope, is_local
from ..stores.audit.format import encode_fields, encode_type
from ..stores.audit.log import AuditLog
from ..stores.audit.records import AuthRecord
from ..stores.errors import StoreError
from ..stores.keys import CACHE_SECONDS, RIGHTS, KeyRow, KeyStore, Right
from .errors import ApiError
from .options import ServerOptions
from .proxies import Proxies, network_of
from .rate_limits import RateLimiter, WrongKeyLimiter

__all__ = ["ANONYMOUS", "LOCAL", "PUBLIC", "RIGHTS", "Authenticator", "Caller", "Operation", "RequestInfo", "Right"]

log = logging.getLogger("hookline")

LOCAL = "local"
"""The id of a caller on this machine, where no key is needed."""

PUBLIC: tuple[str, ...] = ("public",)
"""The scopes of an endpoint that needs no key. Missing scopes are an error, so they never make an endpoint public."""

CLIENT_DISCONNECTED = 499
"""The status, in logs, of a request whose client disconnected before the response."""

_MISSING_RIGHT = "a right is missing"
_UNREADABLE = "the keys cannot be read"
_HINT = "send Authorization: Bearer hl_..., with a key from hookline keys add"


class Caller(Frozen, frozen=True):
    """The sender of a request. ``metadata`` comes from its key and is passed on to hooks."""

    id: str
    name: str
    scopes: frozenset[str]
    metadata: Mapping[str, Any] = EMPTY

    def may(self, *scopes: str) -> bool:
        """Return whether the caller has at least one of these rights."""
        return not self.scopes.isdisjoint(scopes)

    @property
    def owner(self) -> str | None:
        """The owner of the runs that the caller can see: itself, or ``None`` for all runs."""
        return None if "admin" in self.scopes else self.id


ANONYMOUS = Caller("", "", frozenset())
"""The caller of a public endpoint."""


class Operation(msgspec.Struct, frozen=True):
    """One method of one path: the scopes that allow it, and the ASGI app that handles it."""

    scopes: tuple[str, ...]
    app: Any
    route: str

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
    address: str = ""
    status: int = CLIENT_DISCONNECTED
    revoked: ApiError | None = None
    """Set when the key stops being valid while the request is handled."""

    @property
    def is_old(self) -> bool:
        """Whether the request started so long ago that its key must be checked again."""
        return time.monotonic() > self.began + CACHE_SECONDS


class KeyRevokedError(Exception):
    """The key stopped being valid while its request was handled."""


class Authenticator:
    """Authenticate and authorize requests, and audit each decision.

    Args:
        keys: the API keys; ``None`` if there are none.
        options: rate limits and trusted proxies.
        keys_required: whether keys are needed even for requests from this machine.
        audit: gets a record of every decision.
    """

    def __init__(
        self, keys: KeyStore | None, options: ServerOptions, keys_required: bool, audit: AuditLog | None
    ) -> None:
        self._keys = keys
        self._audit = audit
        self._keys_required = keys_required or options.exposed
        self._proxies = Proxies(options.trusted_proxies)
        self._rates = RateLimiter(options.rate, options.burst)
        self._wrong_keys = WrongKeyLimiter()
        self._refreshing = asyncio.Lock()

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key, according to the last check of the key store."""
        return self._keys_required or (self._keys is not None and not self._keys.is_empty)

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
            self._limit(f"open {network}")
            return
        wait = self._wrong_keys.wait(network)
        if wait:
            raise self._reject_unknown(request, operation, "too many wrong keys", network) or _too_many(
                wait, "too many wrong keys came from this address"
            )
        try:
            await self._refresh()
        except StoreError as error:
            rejection = self._reject_unknown(request, operation, _UNREADABLE, network)
            if rejection is None:
                log.error("the API keys cannot be read: %s", error)
            raise rejection or _unreadable() from None
        if self._keys_required or not is_local(scope):
            self._authenticate(scope, request, operation, network)
        else:
            request.caller = Caller(LOCAL, LOCAL, frozenset(RIGHTS))
        self._limit(f"by {request.caller.id}")
        if operation is not None and not request.caller.may(*operation.scopes):
            self._record(request, operation, _MISSING_RIGHT)
            needed = " or ".join(operation.scopes)
            raise ApiError(403, "forbidden", f"this key does not have the right {needed}, which the request needs")
        self._record(request, operation)

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
        if row is not None and self._keys is not None:
            request.caller = Caller(row.id, row.name, frozenset(row.scopes), freeze(row.metadata))
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

    def _limit(self, caller: str) -> None:
        wait = self._rates.take(caller)
        if wait:
            raise _too_many(wait, "too many requests")

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
        """Check the key of a long request again, so that requests with a revoked key end.

        Raises:
            KeyRevokedError: the key is no longer valid, or the keys cannot be read.
        """
        if request.key is None or self._keys is None:
            return
        try:
            await self._refresh()
        except StoreError:
            reason, rejection = _UNREADABLE, _unreadable()
        else:
            state = self._keys.state(request.key)
            if state == "active":
                return
            reason, rejection = f"the key is {state}", _unauthorized("this key is no longer valid")
        if request.revoked is None:
            self._record(request, None, reason)
        request.revoked = rejection
        raise KeyRevokedError(reason)

    def client_scope(self, scope: Scope, request: RequestInfo) -> dict[str, Any]:
        """Return the ASGI fields ``client`` and ``scheme`` of the client's own connection, before trusted proxies."""
        peer = scope.get("client")
        same = not request.address or (peer is not None and peer[0] == request.address)
        return {"client": peer if same else (request.address, 0), "scheme": self._proxies.scheme(scope)}


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


def _unauthorized(reason: str) -> ApiError:
    return ApiError(401, "unauthorized", f"{reason}: {_HINT}", {"WWW-Authenticate": "Bearer"})


def _unreadable() -> ApiError:
    return ApiError(503, "keys_unreadable", "keys cannot be checked at the moment: try again later")


def _too_many(wait: float, reason: str) -> ApiError:
    seconds = max(1, -int(-wait // 1))
    return ApiError(429, "too_many_requests", f"{reason}: try again in {seconds} s", {"Retry-After": str(seconds)})
