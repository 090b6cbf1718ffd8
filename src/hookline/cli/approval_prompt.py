"""Ask for approval of a tool call at the terminal."""

from __future__ import annotations

import asyncio
import re
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from getpass import getuser
from typing import TYPE_CHECKING, Any

import msgspec

from .._base.frozen import thaw
from .._base.workers import in_thread
from .._kernel.payloads import ApprovalRequest, Question
from .._kernel.results import HookResult
from ..config.errors import ConfigError
from ..stores.approvals import ApprovalRow
from ..stores.errors import StoreError
from .errors import say_note
from .terminal import Terminal
from .text import arguments_text, printable, short_id

if TYPE_CHECKING:
    from ..stores.approvals import ApprovalRow


ANY = {"*": "*"}
"""The pattern of any arguments at all."""

_NO = re.compile(r"n(?:o\b)?(?:\W+(.*))?$", re.IGNORECASE | re.DOTALL)
_REMEMBER = re.compile(r"(s|session|a|always)(?:\s+(.*))?$", re.IGNORECASE | re.DOTALL)


class Said(msgspec.Struct, frozen=True):
    """A decision, as ``ApprovalStore.decide`` takes it; ``skip`` is none."""

    decision: str
    message: str = ""
    arguments: dict[str, Any] | None = None
    remember: str = "once"
    pattern: dict[str, str] | None = None


class Unclear(Exception):
    """An answer that means nothing; the text says what can be answered."""


def person() -> str:
    """Who decides here."""
    try:
        return f"{getuser()}@terminal"
    except (KeyError, OSError, ImportError):  # nobody that the system knows by name
        return "unknown@terminal"


def described(
    tool: str, arguments: Mapping[str, Any], questions: Sequence[Question], agent: str = "", where: str = ""
) -> str:
    """What is to be approved: the tool, its exact arguments, who asks what, and in which run.

    A model has a say in all of these, so none may begin a line of its own.
    """
    given = arguments_text(arguments, None)
    if len(given) > 80 and arguments:
        items = thaw(arguments).items()
        given = "\n    ".join(["", *(f"{printable(n, keep='')}: {arguments_text(value, None)}" for n, value in items)])
    by = f" ({printable(agent, keep='')})" if agent else ""
    lines = ["", f"{printable(tool, keep='')}{by} wants to run with {given}"]
    for question in questions:
        why = f" ({printable(question.reason, keep='')})" if question.reason else ""
        lines.append(f"  {printable(question.hook, keep='')} asks: {printable(question.text, keep='')}{why}")
    lines += [f"  in {printable(where, keep='')}"] if where else []
    return "\n".join(lines) + "\n"


def called(row: ApprovalRow) -> str:
    """A call of a run elsewhere, as it is shown before somebody decides."""
    where = (row.root_id or row.run_id)[:16] + (f", started by {row.owner}" if row.owner else "")
    return described(row.tool, row.arguments, row.questions, row.agent, where)


def decided_text(row: ApprovalRow, pattern: Mapping[str, str] | None = None) -> str:
    """What was decided, in a line; in another one, what may be a mistake."""
    if row.edit is not None:
        strange = ", ".join(sorted(set(row.edit) - set(row.arguments)))
        note = f"\nnote: {strange} is not among the arguments it was asked with: the tool may refuse it"
        told = f"edited: it runs with {arguments_text(row.edit, 200)}, if the guards let it pass"
        return printable(told, keep="") + (printable(note) if strange else "")
    whose = f"{row.agent} for {row.owner}" if row.owner else row.agent
    later = {"session": ", and later ones in this session", "always": f", and later ones of {whose}"}
    such = " with " + " ".join(f"{name}={glob}" for name, glob in pattern.items()) if pattern else ""
    return printable(f"{row.status}{later[row.remember]}{such}" if row.remember in later else row.status, keep="")


async def asked(terminal: Terminal, *, remembers: bool = True, skips: bool = False) -> Said:
    """Ask until there is an answer that means something."""
    more = " / session / always" if remembers else ""
    question = f"Approve? yes / no [why]{more}{' / skip' if skips else ''} / edit: "
    while True:
        text = await terminal.ask(question)
        try:
            if text is None or text == "":
                return Said("skip") if skips else Said("deny")
            return await _meant(terminal, text, remembers=remembers, skips=skips)
        except Unclear as unclear:
            terminal.show(f"{unclear}\n")


async def _meant(terminal: Terminal, text: str, *, remembers: bool, skips: bool) -> Said:
    word = text.lower()
    if word in ("y", "yes"):
        return Said("approve")
    if word in ("e", "edit"):
        return Said("edit", arguments=await _edited(terminal))
    if skips and word == "skip":
        return Said("skip")
    if no := _NO.match(text):
        return Said("deny", (no[1] or "").strip())
    if remembers and (scope := _REMEMBER.match(text)):
        given = scope[2] or await terminal.ask("For which arguments? (empty: these; any; or globs: path='notes/*'): ")
        remember = "session" if scope[1].lower().startswith("s") else "always"
        return Said("approve", remember=remember, pattern=_globs(given or ""))
    kept = ", session, always" if remembers else ""
    raise Unclear(f"Type yes, no{kept}{', skip' if skips else ''} or edit; a no may say why: no, other file.")


async def _edited(terminal: Terminal) -> dict[str, Any]:
    text = await terminal.ask("All arguments anew, as JSON (empty: go back): ")
    if not text:
        raise Unclear("Nothing was changed.")
    return new_arguments(text)


def new_arguments(text: str) -> dict[str, Any]:
    """The arguments of an edit.

    Raises:
        Unclear: that is no JSON object.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, ValueError) as error:
        raise Unclear(f"That is no JSON object: {error}") from error


def _globs(text: str) -> dict[str, str] | None:
    try:
        words = shlex.split(text)
        return ANY if words == ["any"] else pattern_of(words)
    except (ValueError, ConfigError) as error:
        raise Unclear(f"That is no pattern: {error}") from error


def pattern_of(words: Iterable[str]) -> dict[str, str] | None:
    """The pattern that ``name=glob`` words make; none, if there are none.

    Raises:
        ConfigError: one of them is not of that kind.
    """
    pattern: dict[str, str] = {}
    for word in words:
        name, equals, glob = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{word!r:.80} is not NAME=GLOB, as in path='notes/*'; '*=*' is any arguments at all")
        if name in pattern:
            raise ConfigError(f"there are two globs for {name!r:.80}")
        pattern[name] = glob
    return pattern or None


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
