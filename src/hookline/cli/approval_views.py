"""Calls that wait for approval, and permissions, on a screen or as plain text."""

from __future__ import annotations

import re
import time
from collections.abc import Sequence
from typing import Any

import msgspec
from rich.console import Group
from rich.table import Table
from rich.text import Text

from ..stores.approvals import ApprovalRow, GrantRow
from .screen import console, facts, nearby, show, state, table
from .text import ID_LENGTH, arguments_text, counted, printable, short, short_id
from .times import roughly

_GRANT = re.compile(rf"\bgrant_([0-9a-f]{{{ID_LENGTH}}})[0-9a-f]*")

NARROW = 100
"""Columns below which less of a call is listed: show tells the rest."""


def questions_of(row: ApprovalRow, width: int = 60) -> str:
    """Who asks what."""
    return short(
        "; ".join(f"{q.hook}: {q.text}" + (f" ({q.reason})" if q.reason else "") for q in row.questions), width
    )


def show_rows(rows: Sequence[ApprovalRow], *, all: bool, file: str) -> None:
    """A line for each call, the newest last; where there is none, in which file."""
    if not rows:
        none = "No call was ever put to anybody" if all else "Nothing waits for approval"
        show(Text(f"{none} in {one_line(nearby(file))}."), soft_wrap=True)
        return
    now = time.time()
    narrow = console().width < NARROW
    left_out = ({"agent", "asked by"} if narrow else set()) if all else {"state", *(["agent"] if narrow else [])}
    last = "by" if all else "expires in"
    heads = ("id", "state", "tool", "arguments", "asked by", "agent", "age", last)
    lines = [
        (
            short_id(row.id), state(row.status), short(row.tool, 30), arguments_text(row.arguments, 60),
            short("; ".join(q.text for q in row.questions), 60) if narrow else questions_of(row), short(row.agent, 20),
            roughly(now - row.asked), _became(row) if all else roughly(row.expires - now),
        )
        for row in reversed(rows)
    ]  # fmt: skip
    _table(heads, lines, left_out, keep=("id", "state", "tool", "agent", "age", "expires in"))


def _table(heads: Sequence[str], lines: Sequence[Sequence[Any]], left_out: set[str], keep: Sequence[str]) -> None:
    """A table without some of its columns."""
    shown = [number for number, head in enumerate(heads) if head not in left_out]
    table([heads[number] for number in shown], [[line[number] for number in shown] for line in lines], keep=keep)


def _became(row: ApprovalRow) -> str:
    if row.status == "pending":
        return f"expires in {roughly(row.expires - time.time())}"
    later = {"session": " (session)", "always": " (always)"}.get(row.remember, "")
    return short(_GRANT.sub(r"\1", row.by), 40) + later


def show_row(row: ApprovalRow) -> None:
    """All there is to know about a call."""
    asked = [(f"{q.hook} asks", q.text + (f" ({q.reason})" if q.reason else "")) for q in row.questions]
    items: list[tuple[str, ...]] = [
        ("state", row.status + (f" by {row.by}" if row.by else "")),
        *([("message", row.message)] if row.message else []),
        *([("remembered", row.remember)] if row.remember != "once" else []),
        ("asked", _when(row.asked)),
        *([("decided", _when(row.decided))] if row.decided is not None else [("expires", _when(row.expires))]),
        *asked,
        ("agent", row.agent),
        ("session", row.session_id),
        ("run", row.run_id + (f" in {row.root_id}" if row.root_id != row.run_id else "")),
        ("call", row.call_id + (f", attempt {row.attempt}" if row.attempt > 1 else "")),
        *([("owner", row.owner)] if row.owner else []),
        ("digest", row.digest),
    ]
    facts(f"{one_line(row.tool)}  {row.id}", [(one_line(label), one_line(text)) for label, text, *_ in items])
    show(Text("\n  arguments", style="dim"), Text(pretty(row.arguments)))
    if row.edit is not None:
        show(Text("\n  edited to", style="dim"), Text(pretty(row.edit)))


def pretty(arguments: dict[str, Any]) -> str:
    """Exact arguments as indented JSON, which escapes all that would begin a line of its own."""
    text = msgspec.json.format(msgspec.json.encode(arguments), indent=2).decode()
    return "\n".join(f"  {printable(line, keep='')}" for line in text.split("\n"))


def show_grants(rows: Sequence[GrantRow], *, file: str) -> None:
    """A line for each permission, the newest last; where there is none, in which file."""
    if not rows:
        show(Text(f"Nothing is allowed for a session or for good in {one_line(nearby(file))}."), soft_wrap=True)
        return
    lines = [
        (
            short_id(row.id), short(row.tool, 30), _covered(row), _where(row), short(", ".join(row.hooks), 40),
            short(row.by, 30), roughly(time.time() - row.at),
        )
        for row in reversed(rows)
    ]  # fmt: skip
    left_out = {"answers"} if console().width < NARROW else set()
    _table(
        ("id", "tool", "arguments", "where", "answers", "by", "age"), lines, left_out, keep=("id", "tool", "by", "age")
    )


def _covered(row: GrantRow) -> str:
    if not row.pattern:
        return f"exactly {arguments_text(row.arguments, 60)}"
    if row.pattern == {"*": "*"}:
        return "any"
    return short(", ".join(f"{name}={glob}" for name, glob in row.pattern.items()), 60)


def _where(row: GrantRow) -> str:
    owner = f" of {row.owner}" if row.owner else ""
    of = f"session {short(row.session_id, 16)}" if row.scope == "session" else f"agent {row.agent}"
    return short(f"{of}{owner}", 50)


def drawn(rows: Sequence[ApprovalRow], skipped: int, file: str) -> Any:
    """What waits, for the live view."""
    now = time.time()
    made = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="bold")
    for head in ("id", "tool", "arguments", "agent", "age", "expires in"):
        made.add_column(head, no_wrap=True, overflow="ellipsis")
    for row in reversed(rows):
        cells = (
            short_id(row.id), short(row.tool, 30), arguments_text(row.arguments, 60), short(row.agent, 20),
            roughly(now - row.asked), roughly(row.expires - now),
        )  # fmt: skip
        made.add_row(*map(Text, cells))
    note = f"{counted(skipped, 'call')} skipped: hookline approvals approve ID" if skipped else ""
    title = Text(f"{counted(len(rows), 'call')} waiting" if rows else f"Nothing waits in {one_line(nearby(file))}.")
    return Group(title, *([made] if rows else []), Text(" · ".join(filter(None, (note, "Ctrl-C leaves"))), style="dim"))


def one_line(text: str) -> str:
    """A text that cannot begin a line of its own."""
    return printable(text, keep="")


def _when(at: float) -> str:
    ago = time.time() - at
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    return f"{when} ({roughly(ago)} ago)" if ago >= 0 else f"{when} (in {roughly(-ago)})"
