"""The stop switch over HTTP: read it, switch it on, and release it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Self

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .._run.halt import Halt
from ..stores.audit.log import AuditLog
from ..stores.callers import Caller
from ..stores.halts import HaltStore, audit_halt
from .approvals import caller_label
from .errors import ApiError
from .routing import Endpoint, body_of, caller_of, correlation_of, json_response

MAX_REASON = 1000
"""Maximum length of a reason in characters."""


class HaltRequest(msgspec.Struct, forbid_unknown_fields=True):
    """Halt all runs. Everybody sees the reason: callers of the API, people in channels, and models."""

    reason: Annotated[str, msgspec.Meta(max_length=MAX_REASON)] = ""


class PastHalt(msgspec.Struct, frozen=True):
    """A halt that was released."""

    reason: str
    by: str
    at: float
    released: float | None
    released_by: str


class HaltView(msgspec.Struct, frozen=True):
    """Whether all runs are halted: why, by whom, and since when (Unix time). ``past`` are earlier halts, newest first.

    If the switch cannot be read, runs are halted too, and ``text`` says so.
    """

    halted: bool
    text: str = ""
    reason: str = ""
    by: str = ""
    at: float | None = None
    past: tuple[PastHalt, ...] = ()

    @classmethod
    def of(cls, halt: Halt | None, history: list[Halt]) -> Self:
        """Return the view of the halt that is in force, if there is one, and of earlier ones."""
        past = tuple(
            PastHalt(each.reason, each.by, each.at, each.released, each.released_by)
            for each in history
            if each.released is not None
        )
        if halt is None:
            return cls(False, past=past)
        return cls(True, halt.text, halt.reason, halt.by, halt.at or None, past)


def checked_reason(text: str) -> str:
    """Return a reason as one line.

    Raises:
        ApiError: it is too long.
    """
    if len(text) > MAX_REASON:
        raise ApiError(422, "bad_reason", f"a reason has at most {MAX_REASON} characters")
    return " ".join(text.split())


class HaltService:
    """Switch the runs of a server on and off, for the HTTP API and the console.

    Args:
        store: the switch.
        audit: gets a record of every act; ``None`` disables them.
    """

    def __init__(self, store: HaltStore, audit: AuditLog | None) -> None:
        self.store = store
        self._audit = audit

    async def current(self) -> Halt | None:
        """Return the halt that is in force, or ``None``."""
        return await asyncio.to_thread(self.store.current)

    async def halt(self, reason: str, caller: Caller, correlation_id: str) -> None:
        """Halt all runs. If they are halted already, that halt stays.

        Raises:
            StoreError: the database cannot be used.
        """
        halt = await asyncio.to_thread(self.store.halt, reason, by=caller_label(caller))
        if halt is not None:
            audit_halt(self._audit, halt, correlation_id)

    async def release(self, caller: Caller, correlation_id: str) -> None:
        """Release the runs.

        Raises:
            StoreError: the database cannot be used.
        """
        released = await asyncio.to_thread(self.store.release, by=caller_label(caller))
        if released is not None:
            audit_halt(self._audit, released, correlation_id)


_HALT = """Within seconds, no run of any process that uses the database begins a model call or a tool call, until the
halt is released. Durable runs wait and go on then; other runs that are in progress stop. `POST /runs` gets the status
503. If runs are halted already, that halt and its reason stay."""


class HaltApi:
    """The endpoints of the stop switch.

    Args:
        service: switches it.
    """

    def __init__(self, service: HaltService) -> None:
        self._service = service

    def endpoints(self) -> list[Endpoint]:
        """Return the endpoints."""
        admin = ("admin",)
        return [
            Endpoint(
                "GET", "/halt", self._get, ("read",), "get_halt", "Get whether all runs are halted", response=HaltView
            ),
            Endpoint(
                "POST",
                "/halt",
                self._halt,
                admin,
                "halt",
                "Halt all runs",
                body=HaltRequest | None,
                response=HaltView,
                description=_HALT,
            ),
            Endpoint("DELETE", "/halt", self._release, admin, "release", "Release all runs", response=HaltView),
        ]

    async def _view(self) -> Response:
        halt = await self._service.current()
        history = [] if halt is not None and halt.problem else await asyncio.to_thread(self._service.store.history)
        return json_response(HaltView.of(halt, history))

    async def _get(self, request: Request) -> Response:
        return await self._view()

    async def _halt(self, request: Request) -> Response:
        given = await body_of(request, HaltRequest, optional=True)
        await self._service.halt(given.reason, caller_of(request), correlation_of(request))
        return await self._view()

    async def _release(self, request: Request) -> Response:
        await self._service.release(caller_of(request), correlation_of(request))
        return await self._view()
