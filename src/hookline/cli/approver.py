"""Who approves a call that a hook asks about: whoever answers first, here or elsewhere; or a flag."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from .._base.workers import in_thread
from .._kernel.payloads import ApprovalRequest
from .._kernel.results import HookResult
from ..stores.errors import StoreError
from .approval_answers import Said, asked, described, person
from .failures import say_note
from .terminal import Terminal
from .text import printable, short_id

if TYPE_CHECKING:
    from ..stores.approvals import ApprovalRow

HERE = 24 * 3600.0
"""Seconds that a call waits if somebody sits here, who may be at lunch."""

DENIED = "The user denied this call."


class Approver:
    """A hook at ``approval_requested``. Approvers among the user's own hooks come first.

    A call that waits is in the file of approvals, so that it can be decided elsewhere too (``hookline approvals``).

    Args:
        mode: ``ask``, ``wait``, ``yes`` or ``deny``.
        paused: keeps the view off the terminal while a question is open.
        file: the file of approvals.
    """

    points = ("approval_requested",)
    name = "approver"
    priority = -100

    def __init__(self, mode: str, paused: Callable[[], AbstractContextManager[None]], file: str) -> None:
        self._mode, self._paused, self._file = mode, paused, file
        self._turn: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._terminal = Terminal.find() if mode == "ask" else None
        self._hook: Any = None
        self._told = False
        self._deciding: set[str] = set()

    async def __call__(self, point: str, ctx: Any, request: ApprovalRequest) -> HookResult:
        """Decide about one call."""
        if self._mode == "yes":
            return HookResult.approve(by="--yes")
        if self._mode == "deny":
            return HookResult.deny("The user denies all calls that need approval.", by="--deny")
        if self._mode == "ask" and self._terminal is None:
            name = printable(request.call.name, keep="")
            sys.stderr.write(f"denied: {name} needs approval, and there is no terminal to ask at; see --yes, --wait\n")
            return HookResult.deny("Nobody is there to approve this call.", by="no terminal")
        try:
            result: HookResult = await self._waiting().put(ctx, request)
        except StoreError as error:
            if self._terminal is None:
                raise
            return await self._alone(self._terminal, request, error)
        return result

    def _waiting(self) -> Any:
        from ..hooks.approvals import ApprovalsHook
        from ..stores.approvals import ApprovalStore

        if self._hook is None:
            store = ApprovalStore(self._file)
            self._hook = (
                ApprovalsHook(store, tell=self._say_waiting)
                if self._terminal is None
                else ApprovalsHook(store, seconds=HERE, tell=self._ask)
            )
        return self._hook

    async def _say_waiting(self, row: ApprovalRow) -> None:
        name = printable(row.tool, keep="")
        with self._paused():
            sys.stderr.write(f"waiting: {name} needs approval: hookline approvals show {short_id(row.id)}\n")

    async def _ask(self, row: ApprovalRow) -> None:
        """Ask here, and decide; if somebody else does so first, the question is withdrawn."""
        assert self._terminal is not None
        async with self._one_at_a_time():
            with self._paused():
                try:
                    await self._decide(self._terminal, row)
                except asyncio.CancelledError:
                    self._say_withdrawn(row)
                    raise

    async def _decide(self, terminal: Terminal, row: ApprovalRow) -> None:
        from ..stores.approvals import DecisionRefusedError

        terminal.show(described(row.tool, row.arguments, row.questions))
        while True:
            said = await asked(terminal)
            message = _reason(said) if said.decision == "deny" else ""
            try:
                self._deciding.add(row.id)
                await in_thread(
                    self._hook.store.decide, row.id, decision=said.decision, digest=row.digest, by=person(),
                    message=message, arguments=said.arguments, remember=said.remember, pattern=said.pattern,
                )  # fmt: skip
            except DecisionRefusedError as refused:
                terminal.show(f"That does not count: {printable(str(refused), keep='')}\n")
                if refused.code != "bad":
                    return
            except StoreError as error:
                terminal.show(f"That could not be kept: {printable(str(error), keep='')}\n")
            else:
                return

    def _one_at_a_time(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._turn is None or self._turn[0] is not loop:  # each run may have a loop of its own
            self._turn = loop, asyncio.Lock()
        return self._turn[1]

    def _say_withdrawn(self, row: ApprovalRow) -> None:
        """Who answered instead; nothing, if the run was cancelled."""
        try:
            now = self._hook.store.find(row.id)
        except StoreError:
            return
        mine = row.id in self._deciding and now.by == person()
        if not mine and now.status not in ("pending", "cancelled"):
            by = f" by {printable(now.by, keep='')}" if now.by else ""
            sys.stderr.write(f"{printable(row.tool, keep='')} was {now.status}{by}\n")

    async def _alone(self, terminal: Terminal, request: ApprovalRequest, error: StoreError) -> HookResult:
        """Ask here only: the file cannot be used."""
        if not self._told:
            self._told = True
            say_note(f"this can only be answered here: {error}")
        async with self._one_at_a_time():
            with self._paused():
                call = request.call
                terminal.show(described(call.name, call.arguments, request.questions))
                said = await asked(terminal, remembers=False)
        if said.decision == "approve":
            return HookResult.approve(by=person())
        if said.arguments is not None:
            return HookResult.edit(said.arguments, by=person())
        return HookResult.deny(_reason(said), by=person())


def _reason(said: Said) -> str:
    return f"The user denied this call: {said.message}" if said.message else DENIED
