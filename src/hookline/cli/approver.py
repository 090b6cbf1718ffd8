"""Who approves a call that a hook asks about: the person at the terminal, or a flag."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import msgspec

from ..base.frozen import thaw
from ..kernel.payloads import ApprovalRequest
from ..kernel.results import HookResult
from .terminal import Terminal
from .text import arguments_text, printable

QUESTION = "Approve? yes / no / edit: "


class Approver:
    """A hook at ``approval_requested``. Approvers among the user's own hooks come first.

    Args:
        mode: ``ask``, ``yes`` or ``deny``.
        paused: keeps the view off the terminal while a question is open.
    """

    points = ("approval_requested",)
    name = "approver"
    priority = -100

    def __init__(self, mode: str, paused: Callable[[], AbstractContextManager[None]]) -> None:
        self._mode, self._paused = mode, paused
        self._turn: asyncio.Lock | None = None
        self._terminal = Terminal.find() if mode == "ask" else None

    async def __call__(self, point: str, ctx: Any, request: ApprovalRequest) -> HookResult:
        """Decide about one call."""
        if self._mode == "yes":
            return HookResult.approve(by="--yes")
        if self._mode == "deny":
            return HookResult.deny("The user denies all calls that need approval.", by="--deny")
        if self._terminal is None:
            name = printable(request.call.name, keep="")
            sys.stderr.write(f"denied: {name} needs approval, and there is no terminal to ask at; see --yes\n")
            return HookResult.deny("Nobody is there to approve this call.", by="no terminal")
        self._turn = self._turn or asyncio.Lock()
        async with self._turn:  # one question at a time
            with self._paused():
                return await self._ask(self._terminal, request)

    async def _ask(self, terminal: Terminal, request: ApprovalRequest) -> HookResult:
        terminal.show(described(request))
        while True:
            answer = (await terminal.ask(QUESTION) or "no").lower()
            if answer in ("y", "yes"):
                return HookResult.approve(by="user")
            if answer in ("n", "no"):
                return HookResult.deny("The user denied this call.", by="user")
            if answer in ("e", "edit"):
                edited = await self._edited(terminal, request)
                if edited is not None:
                    return HookResult.edit(edited, by="user")
            else:
                terminal.show("Type yes, no or edit.\n")

    async def _edited(self, terminal: Terminal, request: ApprovalRequest) -> dict[str, Any] | None:
        text = await terminal.ask("New arguments, as JSON (empty: keep them): ")
        if not text:
            return None
        try:
            return msgspec.json.decode(text, type=dict[str, Any])
        except (msgspec.DecodeError, ValueError) as error:
            terminal.show(f"That is no JSON object: {error}\n")
            return None


def described(request: ApprovalRequest) -> str:
    """What is to be approved: the tool, its exact arguments, and who asks what.

    A model has a say in all of these, so none may begin a line of its own.
    """
    call = request.call
    arguments = arguments_text(call.arguments, None)
    if len(arguments) > 80 and call.arguments:
        given = thaw(call.arguments).items()
        fields = [f"{printable(name, keep='')}: {arguments_text(value, None)}" for name, value in given]
        arguments = "\n    ".join(["", *fields])
    lines = ["", f"{printable(call.name, keep='')} wants to run with {arguments}"]
    for question in request.questions:
        why = f" ({printable(question.reason, keep='')})" if question.reason else ""
        lines.append(f"  {printable(question.hook, keep='')} asks: {printable(question.text, keep='')}{why}")
    return "\n".join(lines) + "\n"
