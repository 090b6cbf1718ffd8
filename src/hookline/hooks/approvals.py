"""Put calls to people, wherever they are."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from .._base.tasks import StillRunningError, with_timeout
from .._base.text import error_text
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.events import Event
from .._kernel.payloads import ApprovalRequest
from .._kernel.points import APPROVAL_REQUESTED
from .._kernel.results import HookResult
from .._kernel.values import Ids
from ..stores.approvals import ApprovalRow, ApprovalStore
from ..stores.errors import StoreError
from ._support.validation import check_path, check_positive

log = logging.getLogger("hookline")

CLEANING = 2.0
"""Seconds that a cancelled run waits for the file."""

CLOCK = 5.0
"""Seconds between two looks at the clock, which goes on while a machine sleeps, and may be set."""

Teller = Callable[[ApprovalRow], Awaitable[object]]


class ApprovalPending(Event, frozen=True):
    """A call is in the file of approvals, under this id, and waits there until ``expires``."""

    call_id: str = ""
    approval: str = ""
    expires: float = 0.0


class ApprovalsHook:
    """Puts each call that needs approval into a file, and waits until somebody decides about it.

    ``hookline approvals`` in any terminal decides, or ``store.decide(...)`` in any program that shares the file. A
    permission that was given for the session, or for good, answers at once. A call that nobody decides in time is
    denied; if the file cannot be used, it is denied too, and that is reported.

    Args:
        store: the file, or an :class:`ApprovalStore`.
        seconds: how long a call waits.
        owner: who the runs are for: permissions hold for their own owner only.
        root_id: the run that was started, where this takes part in runs inside it; if left out, the run that asks.
        tell: an async function that is given each call that waits, to tell somebody, or to ask and ``decide``. It is
            cancelled when the call is decided. If it fails, that is logged, and the call waits on.

    Raises:
        RegistrationError: no path, no number of seconds, or something that cannot tell.
    """

    points = frozenset({APPROVAL_REQUESTED})
    name = "approvals"
    priority = -100

    def __init__(
        self, store: str | os.PathLike[str] | ApprovalStore, *, seconds: float = 3600.0, owner: str = "",
        root_id: str = "", tell: Teller | None = None,
    ) -> None:  # fmt: skip
        if not isinstance(store, ApprovalStore):
            try:
                store = ApprovalStore(check_path(store, "store= is a SQLite file, such as 'approvals.db'"))
            except StoreError as error:
                raise RegistrationError(str(error)) from error
        for name, text in (("owner", owner), ("root_id", root_id)):
            if not isinstance(text, str):
                raise RegistrationError(f"{name} is text, not {text!r:.80}")
        if tell is not None and (not callable(tell) or isinstance(tell, type)):
            raise RegistrationError(f"tell is an async function of a row, not {tell!r:.80}")
        self.store, self.seconds = store, check_positive(seconds, "seconds")
        self.owner, self.root_id, self.tell = owner, root_id, tell

    async def __call__(self, point: str, ctx: Any, request: ApprovalRequest) -> HookResult:
        """The decision about one call.

        Raises:
            StoreError: the file cannot be used.
        """
        try:
            return await self.put(ctx, request)
        except StoreError as error:
            log.error("a call of %r could not be put to anybody, and is denied: %s", request.call.name, error)
            raise

    async def put(self, ctx: Any, request: ApprovalRequest) -> HookResult:
        """The same, where somebody else says what happens if the file cannot be used.

        Raises:
            StoreError: it cannot.
        """
        row = await self._ask(request, ctx.ids)
        if row.status == "pending":
            ctx.emit(ApprovalPending, call_id=row.call_id, approval=row.id, expires=row.expires)
            row = await self._decided(row)
        if row.digest != request.digest:
            raise StoreError(f"what was decided about {row.id} is not the call that waits")
        return answer_of(row, self.seconds)

    async def _ask(self, request: ApprovalRequest, ids: Ids) -> ApprovalRow:
        asked: list[ApprovalRow] = []
        left = threading.Event()

        def ask() -> ApprovalRow:
            row = self.store.ask(request, seconds=self.seconds, ids=ids, owner=self.owner, root_id=self.root_id)
            asked.append(row)
            if left.is_set():
                self.store.settle(row.id, "cancelled")
            return row

        try:
            return await in_thread(ask)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            left.set()  # the thread goes on, and must not leave behind a call that nobody waits for
            for row in asked:
                await self._cancel(row)
            raise

    async def _decided(self, row: ApprovalRow) -> ApprovalRow:
        loop = asyncio.get_running_loop()
        news: asyncio.Future[ApprovalRow | Exception] = loop.create_future()

        def hear(outcome: ApprovalRow | Exception) -> None:
            if not news.done():
                news.set_result(outcome)

        def tell(outcome: ApprovalRow | Exception) -> None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(hear, outcome)

        telling = None if self.tell is None else asyncio.ensure_future(self._tell(row))
        try:
            with self.store.waiting(row.id, tell):
                until = loop.time() + self.seconds
                while not news.done() and loop.time() < until and time.time() < row.expires:
                    await asyncio.wait([news], timeout=min(until - loop.time(), CLOCK))
            outcome = news.result() if news.done() else await in_thread(self.store.settle, row.id, "expired")
        except asyncio.CancelledError:
            await self._cancel(row)
            raise
        finally:
            if telling is not None:
                telling.cancel()
                await asyncio.wait([telling], timeout=CLEANING)
        if isinstance(outcome, StoreError):
            raise outcome
        if isinstance(outcome, Exception):
            raise StoreError(error_text(outcome)) from outcome
        return outcome

    async def _tell(self, row: ApprovalRow) -> None:
        assert self.tell is not None
        try:
            await self.tell(row)
        except Exception as error:  # noqa: BLE001 - others can still decide
            log.error("nobody was told of %s, which waits for approval: %s", row.id, error_text(error) or repr(error))

    async def _cancel(self, row: ApprovalRow) -> None:
        with suppress(StoreError, StillRunningError):
            await with_timeout(CLEANING, in_thread(self.store.settle, row.id, "cancelled"), shielded=True)


def answer_of(row: ApprovalRow, seconds: float) -> HookResult:
    """What a row that is decided means for its call."""
    reason = f"approval {row.id}" + ("" if row.remember == "once" else f", remembered: {row.remember}")
    match row.status:
        case "approved":
            return HookResult.approve(by=row.by, reason=reason)
        case "edited" if row.edit is not None:
            return HookResult.edit(row.edit, by=row.by, reason=reason)
        case "denied":
            return HookResult.deny(row.message or "This call was denied.", by=row.by, reason=reason)
        case "expired":
            return HookResult.deny(f"Nobody approved this call within {seconds:g} s.", by="expired", reason=reason)
        case _:
            return HookResult.deny("This call is no longer waiting for approval.", by="cancelled", reason=reason)
