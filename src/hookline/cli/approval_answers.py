"""What a person at a terminal is shown of a call that needs approval, and what the answer means."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from getpass import getuser
from typing import Any

import msgspec

from .._base.frozen import thaw
from .._kernel.payloads import Question
from ..config.errors import ConfigError
from ..stores.approvals import ApprovalRow
from .terminal import Terminal
from .text import arguments_text, printable

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
