"""A board of tickets in one SQLite file, which agents, programs and people may share."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import time
from collections.abc import Iterable, Sequence
from secrets import token_hex
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from .._base.frozen import scrub
from .._base.text import did_you_mean, duration_text, is_number
from .errors import StoreError
from .sqlite import Database

Column = Literal["todo", "running", "verifying", "needs_revision", "review", "done", "cancelled"]
Tier = Literal["auto", "review", "ask"]
COLUMNS: tuple[str, ...] = get_args(Column)
"""The columns of a board, in the order in which they are shown."""
OPEN = COLUMNS[:5]
"""Those whose tickets are not over."""
TIERS: tuple[str, ...] = get_args(Tier)
"""How much an agent may do alone."""

MAX_TITLE, MAX_TEXT, MAX_NAME, MAX_CRITERIA, MAX_CRITERION = 200, 20_000, 100, 20, 500

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ID = re.compile(r"(?:[Tt]-|#)?0*([1-9][0-9]{0,17})")


class TicketError(StoreError):
    """A ticket that is not there, or a change that its column, its assignee or somebody quicker does not allow."""


class TicketRow(msgspec.Struct, frozen=True):
    """A ticket as it is now; ``summary`` is what the last completion said, ``reason`` why it was rejected.

    ``changes`` counts the entries of its history.
    """

    id: str
    title: str
    description: str
    criteria: tuple[str, ...]
    column: str
    tier: str
    assignee: str
    created_by: str
    created: float
    changed: float
    summary: str
    reason: str
    changes: int


class TicketChange(msgspec.Struct, frozen=True):
    """One entry of a ticket's history: what who did when, between which columns, and what they said to it.

    ``assignee`` is whose ticket it was then, ``run_id`` the run that did it.
    """

    seq: int
    at: float
    by: str
    what: str
    from_column: str
    to_column: str
    text: str
    assignee: str
    run_id: str


def number_of(id: object) -> int:
    """The number in an id such as ``T-12``; ``t-12``, ``#12`` and ``12`` are the same.

    Raises:
        TicketError: it is no id.
    """
    found = _ID.fullmatch(str(id).strip()) if isinstance(id, (str, int)) and not isinstance(id, bool) else None
    if found is None:
        raise TicketError(f"{id!r:.80} is no ticket: ids look like T-1")
    return int(found[1])


def cleaned(text: object, name: str, limit: int, *, one_line: bool = False) -> str:
    """A text that can be kept and shown: without control characters or halves of characters.

    Raises:
        TicketError: it is no text, or too long.
    """
    if not isinstance(text, str):
        raise TicketError(f"the {name} is text, not {type(text).__name__}")
    if len(text) > 4 * limit:
        raise TicketError(f"the {name} has {len(text):,} characters: at most {limit:,} are kept, make it shorter")
    kept = _CONTROL.sub("", scrub(text.replace("\r\n", "\n"))).strip()
    kept = " ".join(kept.split()) if one_line else kept
    if len(kept) > limit:
        raise TicketError(f"the {name} has {len(kept):,} characters: at most {limit:,} are kept, make it shorter")
    return kept


def cut(text: object, limit: int = MAX_TEXT) -> str:
    """A reason that somebody else gave, shortened where it is too long: it may not stand in the way."""
    kept = _CONTROL.sub("", scrub(str(text)[: limit + 1])).strip()
    return kept if len(kept) <= limit else f"{kept[: limit - 1]}…"


def name_of(name: object, what: str) -> str:
    """Who somebody is.

    Raises:
        TicketError: it is no name, or empty.
    """
    kept = cleaned(name, what, MAX_NAME, one_line=True)
    if not kept:
        raise TicketError(f"the {what} is empty: say who it is")
    return kept


def criteria_of(criteria: Any) -> tuple[str, ...]:
    """What must be so for a ticket to be done; empty ones are left out.

    Raises:
        TicketError: no list of texts, or too many.
    """
    if isinstance(criteria, str) or not isinstance(criteria, Iterable):
        raise TicketError(f"the criteria are a list of texts, not {criteria!r:.80}")
    found = [cleaned(item, "criterion", MAX_CRITERION, one_line=True) for item in criteria]
    found = [item for item in found if item]
    if len(found) > MAX_CRITERIA:
        raise TicketError(f"{len(found)} criteria are too many: at most {MAX_CRITERIA}, make several tickets of it")
    return tuple(found)


def one_of(value: object, known: Iterable[str], what: str) -> str:
    """One of the names that there are.

    Raises:
        TicketError: it is none of them.
    """
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise TicketError(f"{value!r:.80} is no {what}: give one of {', '.join(names)}.{hint}")
    return value


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


_BOARD = "board"
"""Who did what the board does by itself."""


class TicketBoard:
    """Keeps tickets, each in a column and with its whole history, in one SQLite file.

    A change is one transaction that looks at the column and the assignee first: of two who are after the same
    ticket one gets it, and the other is told who was quicker. Columns: ``todo``, ``running``, ``verifying`` (a
    completion is being judged), ``needs_revision``, ``review``, ``done``, ``cancelled``.

    Args:
        path: the file, made when it is first needed; ``:memory:`` forgets with the program.
        hold_seconds: for how long a completion may be judged; after that the ticket is running again, in case
            the program that had it judged is gone.

    Raises:
        StoreError: the path, or the number of seconds, cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str], *, hold_seconds: float = 600.0) -> None:
        if not is_number(hold_seconds) or not 0 < hold_seconds < 1e9:
            raise StoreError(f"hold_seconds is a number above 0, not {hold_seconds!r:.80}")
        self._db = Database(path, holds="tickets", mark=0x486B4C54, version=1, schema=SCHEMA)
        self.hold_seconds = hold_seconds

    @property
    def path(self) -> str:
        """The file."""
        return self._db.path

    # To look at.

    def get(self, id: str | int) -> TicketRow:
        """The ticket with this id.

        Raises:
            TicketError: there is none.
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            return found(db, number_of(id))[0]

    def list(
        self,
        columns: Iterable[str] = COLUMNS,
        *,
        assignee: str | None = None,
        text: str = "",
        limit: int = 50,
        offset: int = 0,
        newest: bool = False,
    ) -> Sequence[TicketRow]:
        """Tickets, the oldest first.

        Args:
            columns: the columns to look in.
            assignee: only theirs; ``""`` for those that nobody has.
            text: words that title, description, assignee or id must hold, all of them.
            limit: at most so many.
            offset: how many to pass over.
            newest: the newest first.

        Raises:
            TicketError: there is no such column.
            StoreError: the file cannot be used.
        """
        where, values = chosen_by(columns, assignee, text)
        order = "DESC" if newest else "ASC"
        query = f"SELECT {ROW} FROM tickets WHERE {where} ORDER BY number {order} LIMIT ? OFFSET ?"
        with self._db.transaction() as db:
            can_fold(db)
            rows = db.execute(query, (time.time(), *values, max(0, limit), max(0, offset)))
            return [as_ticket(row) for row in rows]

    def count(self, columns: Iterable[str] = COLUMNS, *, assignee: str | None = None, text: str = "") -> int:
        """How many tickets :meth:`list` would give without a limit.

        Raises:
            TicketError: there is no such column.
            StoreError: the file cannot be used.
        """
        where, values = chosen_by(columns, assignee, text)
        with self._db.transaction() as db:
            can_fold(db)
            (number,) = db.execute(f"SELECT count(*) FROM tickets WHERE {where}", values).fetchone()
        return int(number)

    def counts(self) -> dict[str, int]:
        """How many tickets are in each column.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            numbers = dict(db.execute(f"SELECT {NOW}, count(*) FROM tickets GROUP BY 1", (time.time(),)).fetchall())
        return {column: numbers.get(column, 0) for column in COLUMNS}

    def history(self, id: str | int) -> Sequence[TicketChange]:
        """Everything that happened to a ticket, without gaps, oldest first.

        Raises:
            TicketError: there is no such ticket.
            StoreError: the file cannot be used.
        """
        number = number_of(id)
        with self._db.transaction() as db:
            found(db, number)
            query = "SELECT * FROM history WHERE ticket = ? ORDER BY seq"
            return [TicketChange(*row[1:]) for row in db.execute(query, (number,))]

    def success_ratio(self, assignee: str) -> float | None:
        """Of this assignee's completions that were judged, the share that was not rejected; ``None`` if none was.

        Raises:
            StoreError: the file cannot be used.
        """
        query = "SELECT count(*) FROM history WHERE assignee = ? AND to_column = ? AND from_column != to_column"
        with self._db.transaction() as db:
            done, rejected = (db.execute(query, (assignee, to)).fetchone()[0] for to in ("done", "needs_revision"))
        return done / (done + rejected) if done + rejected else None

    # To change.

    def create(
        self,
        title: str,
        *,
        by: str,
        description: str = "",
        criteria: Sequence[str] = (),
        assignee: str = "",
        tier: str = "auto",
        run_id: str = "",
    ) -> TicketRow:
        """A new ticket, in ``todo``.

        Args:
            title: what is to be done, on one line.
            by: who says so.
            description: more about it.
            criteria: what must be so for it to be done.
            assignee: who is to do it; anybody, if left out.
            tier: ``auto``, ``review`` (when it is complete, somebody else must accept it) or ``ask`` (starting and
                completing it need approval). It stays as it is.
            run_id: the run in which it is made.

        Raises:
            TicketError: a text that is empty, too long or no text.
            StoreError: the file cannot be used.
        """
        heading, maker = cleaned(title, "title", MAX_TITLE, one_line=True), name_of(by, "name of who creates it")
        if not heading:
            raise TicketError("the title is empty: say in a few words what is to be done")
        owner = name_of(assignee, "assignee") if assignee else ""
        about, listed = cleaned(description, "description", MAX_TEXT), criteria_of(criteria)
        values = (heading, about, json.dumps(listed), "todo", one_of(tier, TIERS, "tier"), owner, maker)
        with self._db.transaction(write=True) as db:
            now = time.time()
            made = db.execute(
                f"INSERT INTO tickets VALUES (NULL, {', '.join('?' * 7)}, ?, ?, '', '', 0, NULL, NULL)",
                (*values, now, now),
            )
            ticket, _ = found(db, made.lastrowid or 0)
            return self._put(db, replace(ticket, column=""), maker, "created", "todo", run_id=run_id)

    def start(self, id: str | int, *, by: str, run_id: str = "") -> TicketRow:
        """Take a ticket that is to be done, or to be revised, and work on it.

        Raises:
            TicketError: somebody else has it, or it is over.
            StoreError: the file cannot be used.
        """
        who = name_of(by, "name of who starts it")
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            if ticket.column not in ("todo", "needs_revision"):
                raise TicketError(why_taken(ticket, who, last_change(db, ticket), run_id))
            if ticket.assignee not in ("", who):
                raise TicketError(f"{ticket.id} is assigned to {ticket.assignee}: choose another one")
            return self._put(db, ticket, who, "started", "running", run_id=run_id, assignee=who)

    def hold(self, id: str | int, summary: str, *, by: str, hold: str | None = None, run_id: str = "") -> str:
        """Begin to complete a ticket: it is ``verifying``, so that nobody else completes it. Gives the hold's name.

        :meth:`accept`, :meth:`reject` or :meth:`give_back` ends it; so does ``hold_seconds``.

        Raises:
            TicketError: it is not running, or somebody else's.
            StoreError: the file cannot be used.
        """
        who, said = name_of(by, "name of who completes it"), cleaned(summary, "summary", MAX_TEXT)
        if not said:
            raise TicketError("the summary is empty: say what was done, and how each criterion is met")
        token = hold or token_hex(8)
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            if ticket.column not in ("running", "needs_revision"):
                raise TicketError(why_taken(ticket, who, last_change(db, ticket), run_id, completing=True))
            if ticket.assignee != who:
                whose = (
                    f"{ticket.assignee}'s: only they can complete it" if ticket.assignee else "nobody's: start it first"
                )
                raise TicketError(f"{ticket.id} is {whose}")
            until = time.time() + self.hold_seconds
            self._put(
                db, ticket, who, "completing", "verifying", said, run_id, summary=said, hold=token, held_until=until
            )
        return token

    def accept(self, id: str | int, hold: str, *, by: str, run_id: str = "") -> TicketRow:
        """A completion holds: the ticket is ``done``, or in ``review`` if its tier says so.

        Raises:
            TicketError: it is not held any more.
            StoreError: the file cannot be used.
        """
        with self._db.transaction(write=True) as db:
            ticket = self._held(db, id, hold)
            to, what = ("review", "completed") if ticket.tier == "review" else ("done", "accepted")
            return self._put(db, ticket, by, what, to, run_id=run_id, reason="")

    def reject(self, id: str | int, hold: str, reason: str, *, by: str, run_id: str = "") -> TicketRow:
        """A completion does not hold: the ticket ``needs_revision``.

        Raises:
            TicketError: it is not held any more.
            StoreError: the file cannot be used.
        """
        why = cut(reason)
        with self._db.transaction(write=True) as db:
            ticket = self._held(db, id, hold)
            return self._put(db, ticket, by, "rejected", "needs_revision", why, run_id, reason=why)

    def give_back(self, id: str | int, hold: str, reason: str, *, by: str, run_id: str = "") -> bool:
        """A completion was not judged: the ticket is running again. Whether it was still held.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction(write=True) as db:
            try:
                ticket = self._held(db, id, hold)
            except TicketError:
                return False
            self._put(db, ticket, by, "not judged", "running", cut(reason), run_id)
        return True

    def release(self, id: str | int, reason: str = "", *, by: str, run_id: str = "") -> TicketRow:
        """Put a ticket back into ``todo``, for anybody.

        Raises:
            TicketError: it is not running or to be revised, or somebody else's.
            StoreError: the file cannot be used.
        """
        who, why = name_of(by, "name of who releases it"), cleaned(reason, "reason", MAX_TEXT)
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            if ticket.column not in ("todo", "running", "needs_revision") or ticket.assignee != who:
                whose = f", and {ticket.assignee}'s" if ticket.assignee else ""
                raise TicketError(f"{ticket.id} is {ticket.column}{whose}: only its assignee can release it")
            return self._put(db, ticket, who, "released", "todo", why, run_id, assignee="")

    def comment(self, id: str | int, text: str, *, by: str, run_id: str = "") -> TicketRow:
        """Write something into a ticket's history.

        Raises:
            TicketError: there is no such ticket, or nothing to write.
            StoreError: the file cannot be used.
        """
        who, said = name_of(by, "name of who comments"), cleaned(text, "comment", MAX_TEXT)
        if not said:
            raise TicketError("the comment is empty: write something")
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            return self._put(db, ticket, who, "commented", ticket.column, said, run_id)

    def move(
        self,
        id: str | int,
        column: str,
        *,
        by: str,
        reason: str = "",
        assignee: str | None = None,
        expected: str | None = None,
    ) -> TicketRow:
        """Move a ticket to any column but ``verifying``, as the people in charge may; what held it there ends.

        Args:
            id: the ticket.
            column: where to; in ``todo`` it is nobody's, unless ``assignee`` says whose.
            by: who does it.
            reason: why; needed for ``needs_revision``.
            assignee: whose it is from now on.
            expected: only if it is in this column.

        Raises:
            TicketError: it is there already, or elsewhere than expected; nobody is to run it; or who did the work
                accepts it.
            StoreError: the file cannot be used.
        """
        who, why = name_of(by, "name of who moves it"), cleaned(reason, "reason", MAX_TEXT)
        one_of(column, [name for name in COLUMNS if name != "verifying"], "column to move to")
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            owner = "" if column == "todo" else ticket.assignee
            if assignee is not None:
                owner = name_of(assignee, "assignee") if assignee else ""
            if expected is not None and ticket.column != one_of(expected, COLUMNS, "column"):
                raise TicketError(f"{ticket.id} is {ticket.column}, not {expected}: {ago(last_change(db, ticket))}")
            if ticket.column == column and ticket.assignee == owner:
                raise TicketError(f"{ticket.id} is {column} already: {ago(last_change(db, ticket))}")
            if column == "running" and not owner:
                raise TicketError(f"nobody has {ticket.id}: say who is to run it")
            if column == "needs_revision" and not why:
                raise TicketError(f"say why {ticket.id} needs revision, so that it can be revised")
            if (ticket.column, column, ticket.assignee) == ("review", "done", who):
                raise TicketError(f"{who} did the work on {ticket.id}: somebody else must accept it")
            told = {"needs_revision": why, "done": ""}.get(column, ticket.reason)
            return self._put(db, ticket, who, "moved", column, why, assignee=owner, reason=told)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # Inside a transaction.

    def _current(self, db: sqlite3.Connection, id: str | int) -> TicketRow:
        """The ticket as it is; a hold that lasted too long is ended."""
        ticket, hold = found(db, number_of(id))
        if hold is None or ticket.column == "verifying":
            return ticket
        why = f"no judgement came in {duration_text(self.hold_seconds)}"
        return self._put(db, replace(ticket, column="verifying"), _BOARD, "not judged", "running", why)

    def _held(self, db: sqlite3.Connection, id: str | int, hold: str) -> TicketRow:
        """The ticket, if this hold is still on it; late is not too late as long as nobody else did anything."""
        ticket, current = found(db, number_of(id))
        if current is None or current != hold:
            told = ago(last_change(db, ticket))
            raise TicketError(f"{ticket.id} is {ticket.column} by now, so nothing was changed: {told}")
        return replace(ticket, column="verifying")

    def _put(
        self,
        db: sqlite3.Connection,
        ticket: TicketRow,
        by: str,
        what: str,
        to: str,
        text: str = "",
        run_id: str = "",
        **changed: Any,
    ) -> TicketRow:
        """Change a ticket, and say so in its history."""
        number, seq, at = number_of(ticket.id), ticket.changes + 1, max(time.time(), ticket.changed)
        fields = {**changed, "column": to, "changed": at, "changes": seq}
        if to != "verifying":
            fields |= {"hold": None, "held_until": None}
        settings = ", ".join(f"{name} = ?" for name in fields)
        db.execute(f"UPDATE tickets SET {settings} WHERE number = ?", (*fields.values(), number))
        owner = changed.get("assignee") or ticket.assignee
        entry = (number, seq, at, name_of(by, "name of who does it"), what, ticket.column, to, text, owner, run_id)
        db.execute("INSERT INTO history VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", entry)
        return found(db, number)[0]
