"""Who a request is from, what they may do, and how often: decided from its key, its address and what came before."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import msgspec

from .._base.frozen import freeze
from .._base.workers import in_thread
from .._web.middleware import Scope, is_local
from ..stores.audit.format import encode_fields, encode_type
from ..stores.audit.log import AuditLog
from ..stores.audit.records import AuthRecord
from ..stores.errors import StoreError
from ..stores.keys import FRESH_SECONDS, RIGHTS, KeyRow, KeyStore
from .callers import ANYBODY, LOCAL, Caller
from .endpoints import OPEN, ApiError
from .headers import secret_of
from .limits import Rates, WrongKeys
from .options import ServerOptions
from .proxies import Proxies, same_house

log = logging.getLogger("hookline")

GONE = 499
"""The status, in logs, of a request whose caller did not wait for the answer."""

_LACKING = "a right is missing"
_UNREADABLE = "the keys cannot be read"
_HINT = "send Authorization: Bearer hl_..., with a key from hookline keys add"


class Way(msgspec.Struct, frozen=True):
    """What is behind the gate, and who may get there."""

    scopes: tuple[str, ...]
    app: Any
    route: str

    def __post_init__(self) -> None:
        if isinstance(self.scopes, str) or (self.scopes != OPEN and not {*self.scopes} <= {*RIGHTS}) or not self.scopes:
            raise ValueError(f"{self.route} needs rights of {', '.join(RIGHTS)}, or OPEN, not {self.scopes!r}")


class Visit(msgspec.Struct):
    """One request, as it is logged."""

    method: str
    route: str
    correlation_id: str
    began: float
    caller: Caller = ANYBODY
    key: KeyRow | None = None
    address: str = ""
    status: int = GONE
    ended: ApiError | None = None

    @property
    def took_its_time(self) -> bool:
        """Whether it began so long ago that its key may not be good any more."""
        return time.monotonic() > self.began + FRESH_SECONDS


class Ended(Exception):
    """The caller may not go on."""


class Admission:
    """Decides who is let in, and writes down what it decides.

    Args:
        keys: whose keys count; ``None`` if there are none.
        options: how often callers may ask, and which proxies are trusted.
        needed: whether keys are needed in any case.
        audit: gets a record of every decision.
    """

    def __init__(self, keys: KeyStore | None, options: ServerOptions, needed: bool, audit: AuditLog | None) -> None:
        self._keys, self._audit = keys, audit
        self._needed = needed or options.exposed
        self._proxies = Proxies(options.trusted_proxies)
        self._rates = Rates(options.rate, options.burst)
        self._wrong = WrongKeys()
        self._reading = asyncio.Lock()

    @property
    def needs_keys(self) -> bool:
        """Whether callers need a key, as far as is known."""
        return self._needed or (self._keys is not None and not self._keys.is_empty)

    async def admit(self, scope: Scope, visit: Visit, way: Way | None) -> None:
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

    def _authenticate(self, scope: Scope, visit: Visit, way: Way | None, house: str) -> None:
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

    def _denied(self, visit: Visit, way: Way | None, why: str, house: str) -> ApiError | None:
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

    def _decide(self, visit: Visit, way: Way | None, why: str = "") -> None:
        """Write a decision down; the thread of the log does the work."""
        if self._audit is not None:
            kind = encode_type(AuthRecord.type, encode_fields({"correlation_id": visit.correlation_id}))
            right = "" if way is None else ",".join(way.scopes)
            fields = AuthRecord(
                "denied" if why else "granted", why, visit.caller.id, visit.caller.name, right, visit.method,
                visit.route, visit.address,
            )  # fmt: skip
            self._audit.put_short(time.time(), kind, fields)

    def lacks(self, visit: Visit, way: Way, right: str) -> None:
        """Write down that somebody who was let in may not do what the request is about."""
        self._decide(visit, msgspec.structs.replace(way, scopes=(right,)), _LACKING)

    async def check_again(self, visit: Visit) -> None:
        """Look whether the key of an answer that takes its time is still good: one that is revoked gets nothing more.

        Raises:
            Ended: it is not, or nobody knows.
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
        raise Ended(why)

    def seen(self, scope: Scope, visit: Visit) -> dict[str, Any]:
        """How the request looked before the proxies that are trusted."""
        peer = scope.get("client")
        same = not visit.address or (peer is not None and peer[0] == visit.address)
        return {"client": peer if same else (visit.address, 0), "scheme": self._proxies.scheme(scope)}


def _unauthorized(why: str) -> ApiError:
    return ApiError(401, "unauthorized", f"{why}: {_HINT}", {"WWW-Authenticate": "Bearer"})


def _unreadable() -> ApiError:
    return ApiError(503, "keys_unreadable", "keys cannot be checked now: try again later")


def _too_many(wait: float, why: str) -> ApiError:
    seconds = max(1, -int(-wait // 1))
    return ApiError(429, "too_many_requests", f"{why}: try again in {seconds} s", {"Retry-After": str(seconds)})
