"""Wait for a person to approve or deny tool calls, through a shared approval store."""

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
from .._kernel.payloads import ApprovalRequest, unanswered
from .._kernel.points import APPROVAL_REQUESTED
from .._kernel.results import HookResult
from .._kernel.scope import scope_of
from .._kernel.validation import check_path, check_positive
from ..stores.approvals import ApprovalRow, ApprovalStore
from ..stores.errors import StoreError

log = logging.getLogger("hookline")

CLEANUP_SECONDS = 2.0
"""Time that a cancelled run waits for the store, in seconds."""

CLOCK_INTERVAL = 5.0
"""Seconds between checks of the wall clock, which advances while the machine sleeps and may be changed."""

WATCH_INTERVAL = 1.0
"""Seconds between two checks for calls of other programs."""

MAX_WATCHED = 10_000
"""Maximum number of waiting calls that are watched."""

Notifier = Callable[[ApprovalRow], Awaitable[object]]


class ApprovalPending(Event, frozen=True):
    """A call waits in the approval store, under this approval id, until ``expires``."""

    call_id: str = ""
    approval: str = ""
    expires: float = 0.0


class ApprovalsHook:
    """Puts each call that needs approval into a store, and waits until a person decides about it.

    A person decides with ``hookline approvals`` in any terminal, or a program with ``store.decide(...)``. A decision
    that was remembered for the session, or permanently, applies at once. A call that is not decided in time is denied.
    If the store cannot be used, the call is denied and the error is reported.

    Example::

        agent = Agent("a", llm=model, tools=[deploy], hooks=[PlanModeHook(["deploy"]), ApprovalsHook("approvals.db")])

    Args:
        store: an :class:`ApprovalStore`, or the path of its SQLite file.
        seconds: time to wait for a decision.
        owner: user that the runs are for; a remembered decision applies only to its owner.
        asked_by: id of the person who starts the runs, who may not approve their calls if the store has a policy; by
            default the owner.
        root_id: id of the root run, for calls of subagents; by default the run that asks.
        hold_seconds: time to wait in a durable run before the run is suspended until there is a decision.
        notify: async function that gets each waiting call, to notify a person, or to ask and ``decide``. It is
            cancelled when the call is decided. If it fails, the error is logged and the call keeps waiting.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({APPROVAL_REQUESTED})
    name = "approvals"
    priority = -100

    def __init__(
        self,
        store: str | os.PathLike[str] | ApprovalStore,
        *,
        seconds: float = 3600.0,
        owner: str = "",
        asked_by: str = "",
        root_id: str = "",
        hold_seconds: float = 60.0,
        notify: Notifier | None = None,
    ) -> None:
        if not isinstance(store, ApprovalStore):
            try:
                store = ApprovalStore(check_path(store, "store must be a SQLite file, such as 'approvals.db'"))
            except StoreError as error:
                raise RegistrationError(str(error)) from error
        for name, text in (("owner", owner), ("asked_by", asked_by), ("root_id", root_id)):
            if not isinstance(text, str):
                raise RegistrationError(f"{name} must be text, not {text!r:.80}")
        if notify is not None and (not callable(notify) or isinstance(notify, type)):
            raise RegistrationError(f"notify must be an async function of an approval, not {notify!r:.80}")
        self.store, self.seconds = store, check_positive(seconds, "seconds")
        self.hold_seconds = check_positive(hold_seconds, "hold_seconds")
        self.owner, self.asked_by, self.root_id, self.notify = owner, asked_by, root_id, notify

    async def __call__(self, point: str, ctx: Any, request: ApprovalRequest) -> HookResult:
        """Return the decision about one call.

        Raises:
            StoreError: the store cannot be used.
        """
        try:
            return await self.wait_for_decision(ctx, request)
        except StoreError as error:
            log.error("a call of %r is denied, because the approval store cannot be used: %s", request.call.name, error)
            raise

    async def wait_for_decision(self, ctx: Any, request: ApprovalRequest) -> HookResult:
        """Return the decision about one call; the caller handles errors of the store.

        Raises:
            StoreError: the store cannot be used.
        """
        durable = bool(getattr(ctx, "is_durable", False))
        row = await self._ask(request, ctx, durable)
        if row.status == "pending":
            ctx.emit(ApprovalPending, call_id=row.call_id, approval=row.id, expires=row.expires)
            row = await self._wait(row, self.hold_seconds if durable else None, ctx)
            if row.status == "pending":
                return HookResult.wait(reason=f"approval {row.id}")
        if row.digest != request.digest:
            raise StoreError(f"the decision about approval {row.id} is for a different call")
        await in_thread(self.store.clean_decision, row, scope_of(ctx).clean)
        return result_of(row, self.seconds)

    def asked_for(self) -> tuple[str, str]:
        """Return the owner and the id of the root run of a call that asks."""
        return self.owner, self.root_id

    async def _ask(self, request: ApprovalRequest, ctx: Any, durable: bool) -> ApprovalRow:
        asked: list[ApprovalRow] = []
        cancelled = threading.Event()
        owner, root_id = self.asked_for()
        clean = scope_of(ctx).clean

        def ask() -> ApprovalRow:
            row = self.store.ask(
                request,
                seconds=self.seconds,
                ids=ctx.ids,
                owner=owner,
                root_id=root_id,
                asked_by=self.asked_by,
                durable=durable,
                clean=clean,
            )
            asked.append(row)
            if cancelled.is_set():
                self.store.end_pending(row.id, "cancelled")
            return row

        try:
            return await in_thread(ask)  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            if not _is_suspended(ctx):
                cancelled.set()  # the thread continues, and must cancel the approval that no code waits for
                for row in asked:
                    await self._cancel(row)
            raise

    async def _wait(self, row: ApprovalRow, hold: float | None, ctx: Any) -> ApprovalRow:
        """Wait for the decision. After ``hold`` seconds, return the row although the call is still pending."""
        notification = None if self.notify is None else asyncio.ensure_future(_notify(self.notify, row))
        try:
            decided = await wait_until_decided(
                self.store, row, self.seconds if hold is None else min(hold, self.seconds)
            )
            if decided is not None:
                return decided
            if hold is not None and time.time() < row.expires:
                return row
            return await in_thread(self.store.end_pending, row.id, "expired")  # type: ignore[no-any-return]
        except asyncio.CancelledError:
            if not _is_suspended(ctx):
                await self._cancel(row)
            raise
        finally:
            if notification is not None:
                notification.cancel()
                await asyncio.wait([notification], timeout=CLEANUP_SECONDS)

    async def _cancel(self, row: ApprovalRow) -> None:
        with suppress(StoreError, StillRunningError):
            await with_timeout(CLEANUP_SECONDS, in_thread(self.store.end_pending, row.id, "cancelled"), shielded=True)


def _is_suspended(ctx: Any) -> bool:
    """Whether the run is suspended: the process that resumes it waits for the same decision."""
    return getattr(ctx, "is_suspended", False)


async def wait_until_decided(store: ApprovalStore, row: ApprovalRow, seconds: float) -> ApprovalRow | None:
    """Wait until any process decides a call; ``None`` if it expires before that, or after ``seconds``.

    Raises:
        StoreError: the store cannot be used.
    """
    loop = asyncio.get_running_loop()
    decided: asyncio.Future[ApprovalRow | Exception] = loop.create_future()

    def set_outcome(outcome: ApprovalRow | Exception) -> None:
        if not decided.done():
            decided.set_result(outcome)

    def on_outcome(outcome: ApprovalRow | Exception) -> None:
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(set_outcome, outcome)

    with store.watch(row.id, on_outcome):
        until = loop.time() + seconds
        while not decided.done() and loop.time() < until and time.time() < row.expires:
            await asyncio.wait([decided], timeout=min(until - loop.time(), CLOCK_INTERVAL))
    if not decided.done():
        return None
    outcome = decided.result()
    if isinstance(outcome, Exception):
        raise outcome if isinstance(outcome, StoreError) else StoreError(error_text(outcome)) from outcome
    return outcome


async def watch_approvals(store: ApprovalStore, notify: Notifier) -> None:
    """Call ``notify`` for the waiting calls of all programs that share the approvals file, until this is cancelled.

    Each call of ``notify`` is cancelled when its call no longer waits. An error of ``notify`` is logged.

    Example::

        async with links.serve(port=8430):
            await watch_approvals(links.store, links)

    Args:
        store: the store of the approvals file.
        notify: as for :class:`ApprovalsHook`.
    """
    notifying: dict[str, asyncio.Task[None]] = {}
    try:
        while True:
            try:
                waiting = {row.id: row for row in await in_thread(store.rows, status="pending", limit=MAX_WATCHED)}
            except StoreError as error:
                log.error("the waiting calls cannot be read: %s", error_text(error))
            else:
                for id in notifying.keys() - waiting.keys():
                    notifying.pop(id).cancel()
                for id in waiting.keys() - notifying.keys():
                    notifying[id] = asyncio.create_task(_notify(notify, waiting[id]))
            await asyncio.sleep(WATCH_INTERVAL)
    finally:
        for task in notifying.values():
            task.cancel()
        await asyncio.gather(*notifying.values(), return_exceptions=True)


async def _notify(notify: Notifier, row: ApprovalRow) -> None:
    try:
        await notify(row)
    except Exception as error:  # noqa: BLE001 - the call can still be decided elsewhere
        log.error("no notification was sent for approval %s: %s", row.id, error_text(error) or repr(error))


def result_of(row: ApprovalRow, seconds: float) -> HookResult:
    """Return the hook result for a decided approval."""
    reason = f"approval {row.id}" + ("" if row.remember == "once" else f", remembered: {row.remember}")
    by = row.by
    answer: dict[str, Any]
    match row.status:
        case "approved":
            answer = {"approve": True}
        case "edited" if row.edit is not None:
            answer = {"edit": row.edit}
        case "denied":
            answer = {"deny": row.message or "This call was denied."}
        case "expired":
            by = "expired"
            answer = {"deny": unanswered(row.questions, f" within {seconds:g} s")}
        case _:
            by = "cancelled"
            answer = {"deny": "This call is no longer waiting for approval."}
    return HookResult.claim(by=by, reason=reason, asked_at=row.asked, **answer)
