"""The tables of tickets, how they are looked for there, and what is said of those that cannot be had."""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Iterable
from typing import Any

from .._base.text import duration_text
from .ticket_rows import COLUMNS, TicketChange, TicketError, TicketRow, cut, number_of, one_of

SCHEMA = (
    """CREATE TABLE tickets (
        number INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, description TEXT NOT NULL,
        criteria TEXT NOT NULL, column TEXT NOT NULL, tier TEXT NOT NULL, assignee TEXT NOT NULL,
        created_by TEXT NOT NULL, created REAL NOT NULL, changed REAL NOT NULL, summary TEXT NOT NULL,
        reason TEXT NOT NULL, changes INTEGER NOT NULL, hold TEXT, held_until REAL
    )""",
    "CREATE INDEX by_column ON tickets (column, number)",
    "CREATE INDEX by_assignee ON tickets (assignee, number)",
    """CREATE TABLE history (
        ticket INTEGER NOT NULL REFERENCES tickets (number), seq INTEGER NOT NULL, at REAL NOT NULL, by TEXT NOT NULL,
        what TEXT NOT NULL, from_column TEXT NOT NULL, to_column TEXT NOT NULL, text TEXT NOT NULL,
        assignee TEXT NOT NULL, run_id TEXT NOT NULL, PRIMARY KEY (ticket, seq)
    ) WITHOUT ROWID""",
    "CREATE INDEX outcomes ON history (assignee, to_column)",
)
NOW = "CASE WHEN column = 'verifying' AND held_until <= ? THEN 'running' ELSE column END"
"""The column that a ticket is in at a time: a hold that has lasted too long is none."""
ROW = (
    f"number, title, description, criteria, {NOW}, tier, assignee, created_by, created, changed, summary, reason, "
    "changes, hold"
)
"""What makes a ticket, and the hold on it."""


def found(db: sqlite3.Connection, number: int) -> tuple[TicketRow, str | None]:
    """The ticket of a number, and the hold on it."""
    row = db.execute(f"SELECT {ROW} FROM tickets WHERE number = ?", (time.time(), number)).fetchone()
    if row is None:
        raise TicketError(f"there is no ticket T-{number}")
    return as_ticket(row), row[-1]


def as_ticket(row: tuple[Any, ...]) -> TicketRow:
    """A ticket from what ``ROW`` selects."""
    number, title, description, criteria, *rest = row[:-1]
    return TicketRow(f"T-{number}", title, description, tuple(json.loads(criteria)), *rest)


def last_change(db: sqlite3.Connection, ticket: TicketRow) -> TicketChange:
    """How it came into its column."""
    query = "SELECT * FROM history WHERE ticket = ? AND what != 'commented' ORDER BY seq DESC LIMIT 1"
    return TicketChange(*db.execute(query, (number_of(ticket.id),)).fetchone()[1:])


def ago(change: TicketChange) -> str:
    """What somebody did, and how long ago."""
    return f"{change.what} by {change.by} {duration_text(max(0.0, time.time() - change.at))} ago"


def why_taken(ticket: TicketRow, who: str, last: TicketChange, run_id: str, *, completing: bool = False) -> str:
    """Why a ticket cannot be had."""
    if ticket.column == "todo":
        return f"{ticket.id} is not started: start it first"
    if ticket.column == "running" and last.by == who:
        if run_id and last.run_id == run_id:
            return f"{ticket.id} is yours already: go on with it"
        return f"{ticket.id} was {ago(last)}: if that was you, go on with it; else choose another one"
    if ticket.column == "verifying":
        return f"{ticket.id} is being judged, {ago(last)}: wait for the verdict"
    if ticket.column == "review":
        return f"{ticket.id} waits for a review, {ago(last)}: somebody else must accept it"
    return f"{ticket.id} is {ticket.column}, {ago(last)}" + ("" if completing else ": choose another one")


def can_fold(db: sqlite3.Connection) -> None:
    """SQLite's own ``lower`` knows only the letters from A to Z."""
    db.create_function("folded", 1, str.casefold, deterministic=True)


def chosen_by(columns: Iterable[str], assignee: str | None, text: str) -> tuple[str, tuple[Any, ...]]:
    """The condition that chooses tickets, and its values; :func:`can_fold` makes it work."""
    names = [columns] if isinstance(columns, str) else list(columns)
    chosen = list(dict.fromkeys(one_of(name, COLUMNS, "column") for name in names))
    now, where, values = time.time(), [], []
    if set(chosen) != set(COLUMNS):
        stored = {*chosen, "verifying"} if "running" in chosen else chosen
        where.append(f"column IN ({', '.join('?' * len(stored))}) AND {NOW} IN ({', '.join('?' * len(chosen))})")
        values += [*stored, now, *chosen]
    if assignee is not None:
        where.append("assignee = ?")
        values.append(cut(assignee))
    for word in cut(text, 1000).split():
        where.append("instr(folded('T-' || number || ' ' || title || ' ' || description || ' ' || assignee), ?) > 0")
        values.append(word.casefold())
    return " AND ".join(where) or "1", tuple(values)
