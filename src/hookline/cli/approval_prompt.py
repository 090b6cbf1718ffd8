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
from .errors import print_note
from .terminal import Terminal
from .text import arguments_text, printable, short_id

if TYPE_CHECKING:
    from ..stores.approval_policy import ApprovalPolicy
    from ..stores.approvals import ApprovalRow


ANY_ARGUMENTS = {"*": "*"}
"""The pattern that matches any arguments."""

_DENY = re.compile(r"n(?:o\b)?(?:\W+(.*))?$", re.IGNORECASE | re.DOTALL)
_REMEMBER = re.compile(r"(s|session|a|always)(?:\s+(.*))?$", re.IGNORECASE | re.DOTALL)


class ApprovalDecision(msgspec.Struct, frozen=True):
    """A person's decision, with the parameters of ``ApprovalStore.decide``; ``skip`` leaves the call undecided."""

    decision: str
    message: str = ""
    arguments: dict[str, Any] | None = None
    remember: str = "once"
    pattern: dict[str, str] | None = None


class UnclearAnswerError(Exception):
    """The typed answer is not understood; the message lists the valid answers."""


def current_user() -> str:
    """Return the name under which decisions of this terminal are recorded."""
    try:
        return f"{getuser()}@terminal"
    except (KeyError, OSError, ImportError):  # the system has no name for this user
        return "unknown@terminal"


def describe_call(
    tool: str,
    arguments: Mapping[str, Any],
    questions: Sequence[Question],
    agent: str = "",
    where: str = "",
    needed: str = "",
) -> str:
    """Describe a call for approval: the tool, its exact arguments, the questions of hooks, the run, and who may decide.

    The model influences all of these texts, so none of them may start a new line and look like output of this program.
    A terminal also needs :func:`indent_overflow`, because it breaks lines that are too long.
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
    lines += [f"  {printable(needed, keep='')}"] if needed else []
    return "\n".join(lines) + "\n"


def describe_row(row: ApprovalRow) -> str:
    """Describe a stored call, with its run and the owner of that run."""
    where = (row.root_id or row.run_id)[:16] + (f", started by {row.owner}" if row.owner else "")
    return describe_call(row.tool, row.arguments, row.questions, row.agent, where, row.who_is_needed)


def decision_text(row: ApprovalRow, pattern: Mapping[str, str] | None = None) -> str:
    """Describe a decision in one line, and a likely mistake in a second one."""
    if row.status == "pending":
        return printable(row.who_is_needed, keep="")
    if row.edit is not None:
        new = ", ".join(sorted(set(row.edit) - set(row.arguments)))
        note = f"\nnote: the original call has no argument {new}: the tool may reject the call"
        text = f"edited: the call runs with {arguments_text(row.edit, 200)} if the guards allow it"
        return printable(text, keep="") + (printable(note) if new else "")
    agent = f"{row.agent} for {row.owner}" if row.owner else row.agent
    later = {"session": ", and later calls in this session", "always": f", and later calls of {agent}"}
    matching = " with " + " ".join(f"{name}={glob}" for name, glob in pattern.items()) if pattern else ""
    return printable(f"{row.status}{later[row.remember]}{matching}" if row.remember in later else row.status, keep="")


async def ask_decision(terminal: Terminal, *, remembers: bool = True, skips: bool = False) -> ApprovalDecision:
    """Ask until the answer is understood. One key is enough; a whole answer can be pasted, such as ``no, other file``.

    Args:
        terminal: the terminal to ask at.
        remembers: whether ``session`` and ``always`` are offered.
        skips: whether ``skip`` is offered.
    """
    more = " / [s]ession / [a]lways" if remembers else ""
    question = f"Approve? [y]es / [n]o{more}{' / s[k]ip' if skips else ''} / [e]dit: "
    while True:
        text = await terminal.ask_key(question)
        try:
            if text is None or text == "":
                return ApprovalDecision("skip") if skips else ApprovalDecision("deny")
            return await _parse_answer(terminal, text, remembers=remembers, skips=skips)
        except UnclearAnswerError as error:
            terminal.show(f"{error}\n")


async def _parse_answer(terminal: Terminal, text: str, *, remembers: bool, skips: bool) -> ApprovalDecision:
    word = text.lower()
    if word in ("y", "yes"):
        return ApprovalDecision("approve")
    if word in ("e", "edit"):
        return ApprovalDecision("edit", arguments=await _ask_arguments(terminal))
    if skips and word in ("k", "skip"):
        return ApprovalDecision("skip")
    if word == "n":
        why = await terminal.ask("Why? (the model gets your answer; empty: no reason): ")
        return ApprovalDecision("deny", why or "")
    if no := _DENY.match(text):
        return ApprovalDecision("deny", (no[1] or "").strip())
    if remembers and (scope := _REMEMBER.match(text)):
        given = scope[2] or await terminal.ask(
            "For which arguments? (empty: these; any; or patterns such as path='notes/*'): "
        )
        remember = "session" if scope[1].lower().startswith("s") else "always"
        return ApprovalDecision("approve", remember=remember, pattern=_parse_globs(given or ""))
    kept = ", s (this session), a (always)" if remembers else ""
    raise UnclearAnswerError(f"Press y (yes), n (no){kept}{', k (skip)' if skips else ''} or e (edit).")


async def _ask_arguments(terminal: Terminal) -> dict[str, Any]:
    text = await terminal.ask("All arguments as JSON (empty: go back): ")
    if not text:
        raise UnclearAnswerError("Nothing was changed.")
    return parse_arguments(text)


def parse_arguments(text: str) -> dict[str, Any]:
    """Parse the new arguments of an edited call.

    Raises:
        UnclearAnswerError: the text is not a JSON object.
    """
    try:
        return msgspec.json.decode(text, type=dict[str, Any])
    except (msgspec.DecodeError, ValueError) as error:
        raise UnclearAnswerError(f"The arguments must be a JSON object: {error}") from error


def _parse_globs(text: str) -> dict[str, str] | None:
    try:
        words = shlex.split(text)
        return ANY_ARGUMENTS if words == ["any"] else parse_pattern(words)
    except (ValueError, ConfigError) as error:
        raise UnclearAnswerError(f"Invalid pattern: {error}") from error


def parse_pattern(words: Iterable[str]) -> dict[str, str] | None:
    """Parse words such as ``path=notes/*`` into a pattern; ``None`` without words.

    Raises:
        ConfigError: a word is not ``NAME=GLOB``, or a name occurs twice.
    """
    pattern: dict[str, str] = {}
    for word in words:
        name, equals, glob = word.partition("=")
        if not equals or not name:
            raise ConfigError(f"{word!r:.80} is not NAME=GLOB, as in path='notes/*'; '*=*' matches any arguments")
        if name in pattern:
            raise ConfigError(f"{name!r:.80} has two patterns: give one")
        pattern[name] = glob
    return pattern or None


WAIT_SECONDS = 24 * 3600.0
"""Seconds that a call waits for a person at this terminal."""

DURABLE_SECONDS = 30 * 24 * 3600.0
"""Seconds until a call of a durable run expires, which waits without a process."""

HOLD_SECONDS = 10.0
"""Seconds after which a durable run is suspended, if there is no terminal to ask at."""

DENIED = "The user denied this call."


class Approver:
    """A hook at ``approval_requested`` that asks at the terminal. The user's own approvers come first.

    A waiting call is stored in the approval file, so that ``hookline approvals`` can decide it too. The first decision
    counts.

    Args:
        mode: ``ask``, ``wait``, ``yes`` or ``deny``.
        paused: keeps the view off the terminal while a question is open.
        file: the approval file.
        policy: who may approve the calls.
    """

    points = ("approval_requested",)
    name = "approver"
    priority = -100

    def __init__(
        self,
        mode: str,
        paused: Callable[[], AbstractContextManager[None]],
        file: str,
        policy: ApprovalPolicy | None = None,
    ) -> None:
        self._mode, self._paused, self._file, self._policy = mode, paused, file, policy
        self._lock: tuple[asyncio.AbstractEventLoop, asyncio.Lock] | None = None
        self._terminal = Terminal.find() if mode == "ask" else None
        self._hook: Any = None
        self._noted = False
        self._deciding: set[str] = set()

    @property
    def prompts(self) -> bool:
        """Whether the questions are shown at the terminal, so that a view need not repeat them."""
        return self._terminal is not None

    async def __call__(self, point: str, ctx: Any, request: ApprovalRequest) -> HookResult:
        """Decide about one call."""
        if self._mode == "yes":
            return HookResult.approve(by="--yes")
        if self._mode == "deny":
            return HookResult.deny("The user denies all calls that need approval.", by="--deny")
        if self._mode == "ask" and self._terminal is None:
            name = printable(request.call.name, keep="")
            sys.stderr.write(
                f"denied: {name} needs approval, and there is no terminal to ask at (see --yes and --wait)\n"
            )
            return HookResult.deny("There is no terminal at which this call could be approved.", by="no terminal")
        try:
            result: HookResult = await self._store_hook(ctx).wait_for_decision(ctx, request)
        except StoreError as error:
            if self._terminal is None or self._policy is not None:
                raise
            return await self._ask_without_file(self._terminal, request, error)
        return result

    def _store_hook(self, ctx: Any) -> Any:
        from ..hooks.approvals import ApprovalsHook
        from ..stores.approvals import ApprovalStore

        if self._hook is None:
            store, me = ApprovalStore(self._file, policy=self._policy), current_user()
            if self._terminal is not None:
                self._hook = ApprovalsHook(
                    store, asked_by=me, seconds=WAIT_SECONDS, hold_seconds=WAIT_SECONDS, notify=self._ask
                )
            elif ctx.is_durable:
                self._hook = ApprovalsHook(
                    store, asked_by=me, seconds=DURABLE_SECONDS, hold_seconds=HOLD_SECONDS, notify=self._print_waiting
                )
            else:
                self._hook = ApprovalsHook(store, asked_by=me, notify=self._print_waiting)
        return self._hook

    async def _print_waiting(self, row: ApprovalRow) -> None:
        name = printable(row.tool, keep="")
        with self._paused():
            sys.stderr.write(f"waiting: {name} needs approval: hookline approvals show {short_id(row.id)}\n")
            if row.who_is_needed:
                sys.stderr.write(f"{printable(row.who_is_needed, keep='')}\n")

    async def _ask(self, row: ApprovalRow) -> None:
        """Ask at this terminal and store the decision. The question is withdrawn if the call is decided elsewhere."""
        assert self._terminal is not None
        async with self._one_at_a_time():
            with self._paused():
                try:
                    await self._decide(self._terminal, row)
                except asyncio.CancelledError:
                    self._print_withdrawn(row)
                    raise

    async def _decide(self, terminal: Terminal, row: ApprovalRow) -> None:
        from ..stores.approvals import DecisionRefusedError

        terminal.show(describe_call(row.tool, row.arguments, row.questions, needed=row.who_is_needed))
        while True:
            decision = await ask_decision(terminal)
            message = _denial(decision) if decision.decision == "deny" else ""
            try:
                self._deciding.add(row.id)
                done = await in_thread(
                    self._hook.store.decide,
                    row.id,
                    decision=decision.decision,
                    digest=row.digest,
                    by=current_user(),
                    message=message,
                    arguments=decision.arguments,
                    remember=decision.remember,
                    pattern=decision.pattern,
                )
            except DecisionRefusedError as refused:
                terminal.show(f"Not accepted: {printable(str(refused), keep='')}\n")
                if refused.code not in ("bad", "rights"):
                    return
            except StoreError as error:
                terminal.show(f"The decision could not be stored: {printable(str(error), keep='')}\n")
            else:
                if done.status == "pending":
                    terminal.show(f"{decision_text(done)}\n")
                return

    def _one_at_a_time(self) -> asyncio.Lock:
        loop = asyncio.get_running_loop()
        if self._lock is None or self._lock[0] is not loop:  # each run may have its own event loop
            self._lock = loop, asyncio.Lock()
        return self._lock[1]

    def _print_withdrawn(self, row: ApprovalRow) -> None:
        """Print who decided the call instead; nothing if the run was cancelled."""
        try:
            now = self._hook.store.find(row.id)
        except StoreError:
            return
        mine = row.id in self._deciding and now.by == current_user()
        if not mine and now.status not in ("pending", "cancelled"):
            by = f" by {printable(now.by, keep='')}" if now.by else ""
            sys.stderr.write(f"{printable(row.tool, keep='')} was {now.status}{by}\n")

    async def _ask_without_file(self, terminal: Terminal, request: ApprovalRequest, error: StoreError) -> HookResult:
        """Ask at this terminal only, because the approval file cannot be used."""
        if not self._noted:
            self._noted = True
            print_note(f"this call can only be decided here, not with hookline approvals: {error}")
        async with self._one_at_a_time():
            with self._paused():
                call = request.call
                terminal.show(describe_call(call.name, call.arguments, request.questions))
                decision = await ask_decision(terminal, remembers=False)
        if decision.decision == "approve":
            return HookResult.approve(by=current_user())
        if decision.arguments is not None:
            return HookResult.edit(decision.arguments, by=current_user())
        return HookResult.deny(_denial(decision), by=current_user())


def _denial(decision: ApprovalDecision) -> str:
    return f"The user denied this call: {decision.message}" if decision.message else DENIED
