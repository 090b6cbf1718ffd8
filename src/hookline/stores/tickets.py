"""A board of tickets in one SQLite file, which agents and people may share."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterable, Sequence
from itertools import islice
from secrets import token_hex
from typing import Any, Literal, get_args

import msgspec
from msgspec.structs import replace

from .._base.frozen import scrub
from .._base.text import did_you_mean, duration_text, is_number
from .database import open_database
from .errors import StoreError
from .sql import Connection, Schema

Column = Literal["todo", "running", "verifying", "needs_revision", "review", "done", "cancelled"]
Tier = Literal["auto", "review", "ask"]
COLUMNS: tuple[str, ...] = get_args(Column)
"""Columns of a board, in display order."""
OPEN_COLUMNS = COLUMNS[:5]
"""Columns of unfinished tickets."""
TIERS: tuple[str, ...] = get_args(Tier)
"""Levels of autonomy of the agent that works on a ticket."""

MAX_TITLE, MAX_TEXT, MAX_NAME, MAX_CRITERIA, MAX_CRITERION = 200, 20_000, 100, 20, 500

_NO_LIMIT = 1 << 60
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_ID = re.compile(r"(?:[Tt]-|#)?0*([1-9][0-9]{0,17})")


class TicketError(StoreError):
    """A ticket does not exist, or its column or its assignee does not allow a change."""


class TicketRow(msgspec.Struct, frozen=True):
    """A ticket. ``summary`` describes its last completion; ``reason`` says why the completion was rejected.

    ``changes`` is the number of entries in its history.
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
    """An entry of a ticket's history: who did what and when, between which columns, and with which comment.

    ``assignee`` is the assignee at that time, ``run_id`` the run that made the change.
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


def ticket_number(id: object) -> int:
    """Return the number in an id such as ``T-12``, ``t-12``, ``#12`` or ``12``.

    Raises:
        TicketError: ``id`` is not an id.
    """
    found = _ID.fullmatch(str(id).strip()) if isinstance(id, (str, int)) and not isinstance(id, bool) else None
    if found is None:
        raise TicketError(f"{id!r:.80} is not a ticket id: ids look like T-1")
    return int(found[1])


def _checked_text(text: object, name: str, limit: int, *, one_line: bool = False) -> str:
    """Remove control characters and lone surrogates from a text.

    Raises:
        TicketError: the value is not text, or too long.
    """
    if not isinstance(text, str):
        raise TicketError(f"the {name} must be text, not {type(text).__name__}")
    if len(text) > 4 * limit:
        raise TicketError(f"the {name} has {len(text):,} characters: shorten it to at most {limit:,}")
    kept = _CONTROL.sub("", scrub(text.replace("\r\n", "\n"))).strip()
    kept = " ".join(kept.split()) if one_line else kept
    if len(kept) > limit:
        raise TicketError(f"the {name} has {len(kept):,} characters: shorten it to at most {limit:,}")
    return kept


def shorten(text: object, limit: int = MAX_TEXT) -> str:
    """Clean a text like :func:`_checked_text`, but truncate it instead of raising an error."""
    kept = _CONTROL.sub("", scrub(str(text)[: limit + 1])).strip()
    return kept if len(kept) <= limit else f"{kept[: limit - 1]}…"


def _checked_name(name: object, what: str) -> str:
    """Clean the name of a person or an agent.

    Raises:
        TicketError: the name is empty, too long or not text.
    """
    kept = _checked_text(name, what, MAX_NAME, one_line=True)
    if not kept:
        raise TicketError(f"the {what} is empty: give a name")
    return kept


def _checked_criteria(criteria: Any) -> tuple[str, ...]:
    """Clean acceptance criteria, and drop empty ones.

    Raises:
        TicketError: the value is not a list of texts, or the list is too long.
    """
    if isinstance(criteria, str) or not isinstance(criteria, Iterable):
        raise TicketError(f"the criteria must be a list of texts, not {criteria!r:.80}")
    found = [_checked_text(item, "criterion", MAX_CRITERION, one_line=True) for item in criteria]
    found = [item for item in found if item]
    if len(found) > MAX_CRITERIA:
        raise TicketError(f"{len(found)} criteria are too many: give at most {MAX_CRITERIA}, or create several tickets")
    return tuple(found)


def _checked_choice(value: object, known: Iterable[str], what: str) -> str:
    """Return a value unchanged.

    Raises:
        TicketError: the value is not a known name.
    """
    names = tuple(known)
    if not isinstance(value, str) or value not in names:
        hint = did_you_mean(value, names) if isinstance(value, str) else ""
        raise TicketError(f"{value!r:.80} is not a {what}: give one of {', '.join(names)}.{hint}")
    return value


_TABLES = (
    """CREATE TABLE tickets (
        number INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT NOT NULL, description TEXT NOT NULL,
        criteria TEXT NOT NULL, "column" TEXT NOT NULL, tier TEXT NOT NULL, assignee TEXT NOT NULL,
        created_by TEXT NOT NULL, created REAL NOT NULL, changed REAL NOT NULL, summary TEXT NOT NULL,
        reason TEXT NOT NULL, changes INTEGER NOT NULL, hold TEXT, held_until REAL
    )""",
    'CREATE INDEX by_column ON tickets ("column", number)',
    "CREATE INDEX by_assignee ON tickets (assignee, number)",
    """CREATE TABLE history (
        ticket INTEGER NOT NULL REFERENCES tickets (number), seq INTEGER NOT NULL, at REAL NOT NULL, by TEXT NOT NULL,
        what TEXT NOT NULL, from_column TEXT NOT NULL, to_column TEXT NOT NULL, text TEXT NOT NULL,
        assignee TEXT NOT NULL, run_id TEXT NOT NULL, PRIMARY KEY (ticket, seq)
    ) WITHOUT ROWID""",
    "CREATE INDEX outcomes ON history (assignee, to_column)",
)
SCHEMA = Schema("tickets", contents="tickets", application_id=0x486B4C54, version=1, statements=_TABLES)
_CHANGE = "seq, at, by, what, from_column, to_column, text, assignee, run_id"
_COLUMN_NOW = """CASE WHEN "column" = 'verifying' AND held_until <= ? THEN 'running' ELSE "column" END"""
"""SQL for the column of a ticket at a given time: an expired hold has no effect."""
_ROW = (
    f"number, title, description, criteria, {_COLUMN_NOW}, tier, assignee, created_by, created, changed, summary, "
    "reason, changes, hold"
)
"""SQL columns of a ticket and its hold."""


def _find_ticket(db: Connection, number: int) -> tuple[TicketRow, str | None]:
    """Return the ticket with this number, and its hold."""
    row = db.execute(f"SELECT {_ROW} FROM tickets WHERE number = ?", (time.time(), number)).fetchone()
    if row is None:
        raise TicketError(f"there is no ticket T-{number}")
    return _decode_ticket(row), row[-1]


def _decode_ticket(row: tuple[Any, ...]) -> TicketRow:
    number, title, description, criteria, *rest = row[:-1]
    return TicketRow(f"T-{number}", title, description, tuple(json.loads(criteria)), *rest)


def _last_change(db: Connection, ticket: TicketRow) -> TicketChange:
    """Return the change that moved a ticket to its column."""
    query = f"SELECT {_CHANGE} FROM history WHERE ticket = ? AND what != 'commented' ORDER BY seq DESC LIMIT 1"
    return TicketChange(*db.execute(query, (ticket_number(ticket.id),)).fetchone())


def _describe(change: TicketChange) -> str:
    """Describe a change: what, by whom, and how long ago."""
    return f"{change.what} by {change.by} {duration_text(max(0.0, time.time() - change.at))} ago"


def _why_not_available(
    ticket: TicketRow, who: str, last: TicketChange, run_id: str, *, completing: bool = False
) -> str:
    """Explain why a ticket cannot be started or completed."""
    if ticket.column == "todo":
        return f"{ticket.id} is not started: start it first"
    if ticket.column == "running" and last.by == who:
        if run_id and last.run_id == run_id:
            return f"{ticket.id} is already yours: continue with it"
        return f"{ticket.id} was {_describe(last)}: if that was you, continue with it; otherwise choose another ticket"
    if ticket.column == "verifying":
        return f"{ticket.id} is being judged, {_describe(last)}: wait for the verdict"
    if ticket.column == "review":
        return f"{ticket.id} is waiting for review, {_describe(last)}: someone else must accept it"
    return f"{ticket.id} is {ticket.column}, {_describe(last)}" + ("" if completing else ": choose another ticket")


def _condition(columns: Iterable[str], assignee: str | None) -> tuple[str, tuple[Any, ...]]:
    """Return the SQL condition for :meth:`TicketBoard.list`, and its values."""
    names = [columns] if isinstance(columns, str) else list(columns)
    chosen = list(dict.fromkeys(_checked_choice(name, COLUMNS, "column") for name in names))
    now, where, values = time.time(), [], []
    if set(chosen) != set(COLUMNS):
        stored = {*chosen, "verifying"} if "running" in chosen else chosen
        where.append(
            f'"column" IN ({", ".join("?" * len(stored))}) AND {_COLUMN_NOW} IN ({", ".join("?" * len(chosen))})'
        )
        values += [*stored, now, *chosen]
    if assignee is not None:
        where.append("assignee = ?")
        values.append(shorten(assignee))
    return " AND ".join(where) or "1 = 1", tuple(values)


def _words(text: str) -> list[str]:
    return [word.casefold() for word in shorten(text, 1000).split()]


def _contains(ticket: TicketRow, words: Sequence[str]) -> bool:
    """Whether all words occur in a ticket. Databases compare only the letters from A to Z without case."""
    text = f"{ticket.id} {ticket.title} {ticket.description} {ticket.assignee}".casefold()
    return all(word in text for word in words)


_BOARD = "board"
"""Author of changes that the board makes automatically."""


class TicketBoard:
    """Store tickets with their columns and their complete history in one SQLite file.

    Each change is one transaction that checks the column and the assignee first: if two agents want the same ticket,
    one gets it, and the other gets an error that names the first. The columns are ``todo``, ``running``, ``verifying``
    (a completion is being judged), ``needs_revision``, ``review``, ``done`` and ``cancelled``.

    Args:
        path: the file, created when first used; ``:memory:`` keeps everything in memory; or the
            address of a PostgreSQL database.
        hold_seconds: maximum time to judge a completion. After that the ticket is running again, because the process
            that judges it may be gone.

    Raises:
        StoreError: ``path`` or ``hold_seconds`` is not valid.

    Example::

        board = TicketBoard("tickets.db")
        ticket = board.create("Write the report", by="ada", criteria=["It has a summary."])
        board.start(ticket.id, by="bob")
        hold = board.hold(ticket.id, "Written, with a summary.", by="bob")
        assert board.accept(ticket.id, hold, by="ada").column == "done"
    """

    def __init__(self, path: str | os.PathLike[str], *, hold_seconds: float = 600.0) -> None:
        if not is_number(hold_seconds) or not 0 < hold_seconds < 1e9:
            raise StoreError(f"hold_seconds must be a positive number, not {hold_seconds!r:.80}")
        self._db = open_database(path, SCHEMA)
        self.hold_seconds = hold_seconds

    @property
    def path(self) -> str:
        """Path of the file."""
        return self._db.path

    def exists(self) -> bool:
        """Whether the board has been used: its file, or its tables in a database, exist.

        Raises:
            StoreError: it cannot be determined.
        """
        return self._db.exists()

    # Reading.

    def get(self, id: str | int) -> TicketRow:
        """Return the ticket with this id.

        Raises:
            TicketError: the ticket does not exist.
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            return _find_ticket(db, ticket_number(id))[0]

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
        """Return tickets, oldest first.

        Args:
            columns: only tickets in these columns.
            assignee: only tickets of this assignee; ``""`` for unassigned ones.
            text: words that must all occur in title, description, assignee or id.
            limit: maximum number of tickets.
            offset: number of tickets to skip.
            newest: newest first.

        Raises:
            TicketError: a column does not exist.
            StoreError: the file cannot be used.
        """
        (where, values), words = _condition(columns, assignee), _words(text)
        order, page = "DESC" if newest else "ASC", (max(0, limit), max(0, offset))
        query = f"SELECT {_ROW} FROM tickets WHERE {where} ORDER BY number {order}"
        with self._db.transaction() as db:
            if not words:
                rows = db.execute(f"{query} LIMIT ? OFFSET ?", (time.time(), *values, *page))
                return [_decode_ticket(row) for row in rows]
            tickets = map(_decode_ticket, db.execute(query, (time.time(), *values)))
            found = (ticket for ticket in tickets if _contains(ticket, words))
            return [*islice(found, page[1], page[1] + page[0])]

    def count(self, columns: Iterable[str] = COLUMNS, *, assignee: str | None = None, text: str = "") -> int:
        """Return number of tickets that :meth:`list` returns without a limit.

        Raises:
            TicketError: a column does not exist.
            StoreError: the file cannot be used.
        """
        if words := _words(text):
            everything = self.list(columns, assignee=assignee, limit=_NO_LIMIT)
            return sum(_contains(ticket, words) for ticket in everything)
        where, values = _condition(columns, assignee)
        with self._db.transaction() as db:
            (number,) = db.execute(f"SELECT count(*) FROM tickets WHERE {where}", values).fetchone()
        return int(number)

    def counts(self) -> dict[str, int]:
        """Return number of tickets in each column.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            numbers = dict(
                db.execute(f"SELECT {_COLUMN_NOW}, count(*) FROM tickets GROUP BY 1", (time.time(),)).fetchall()
            )
        return {column: numbers.get(column, 0) for column in COLUMNS}

    def pulse(self) -> object:
        """Return a value that differs after every change of a ticket, and when a hold expires.

        Raises:
            StoreError: the file cannot be used.
        """
        if not self.exists():
            return None
        query = f"SELECT {_COLUMN_NOW}, count(*), sum(changes) FROM tickets GROUP BY 1 ORDER BY 1"
        with self._db.transaction() as db:
            return db.execute(query, (time.time(),)).fetchall()

    def history(self, id: str | int) -> Sequence[TicketChange]:
        """Return all changes of a ticket, oldest first.

        Raises:
            TicketError: the ticket does not exist.
            StoreError: the file cannot be used.
        """
        number = ticket_number(id)
        with self._db.transaction() as db:
            _find_ticket(db, number)
            query = f"SELECT {_CHANGE} FROM history WHERE ticket = ? ORDER BY seq"
            return [TicketChange(*row) for row in db.execute(query, (number,))]

    def success_ratio(self, assignee: str) -> float | None:
        """Return fraction of the assignee's judged completions that were accepted; ``None`` if none was judged.

        Raises:
            StoreError: the file cannot be used.
        """
        query = "SELECT count(*) FROM history WHERE assignee = ? AND to_column = ? AND from_column != to_column"
        with self._db.transaction() as db:
            done, rejected = (db.execute(query, (assignee, to)).fetchone()[0] for to in ("done", "needs_revision"))
        return done / (done + rejected) if done + rejected else None

    # Changing.

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
        """Create a ticket in ``todo``.

        Args:
            title: the task, on one line.
            by: author of the ticket.
            description: details.
            criteria: acceptance criteria.
            assignee: person or agent who should do it; by default anyone.
            tier: ``auto``, ``review`` (another person or agent must accept the completed ticket) or ``ask`` (starting
                and completing it need approval). The tier cannot be changed later.
            run_id: run that creates the ticket.

        Raises:
            TicketError: a text is empty, too long or not text.
            StoreError: the file cannot be used.
        """
        heading, maker = (
            _checked_text(title, "title", MAX_TITLE, one_line=True),
            _checked_name(by, "name of the author"),
        )
        if not heading:
            raise TicketError("the title is empty: describe the task in a few words")
        owner = _checked_name(assignee, "assignee") if assignee else ""
        about, listed = _checked_text(description, "description", MAX_TEXT), _checked_criteria(criteria)
        values = (heading, about, json.dumps(listed), "todo", _checked_choice(tier, TIERS, "tier"), owner, maker)
        with self._db.transaction(write=True) as db:
            now = time.time()
            (number,) = db.execute(
                'INSERT INTO tickets (title, description, criteria, "column", tier, assignee, created_by, created, '
                "changed, summary, reason, changes) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, '', '', 0) RETURNING number",
                (*values, now, now),
            ).fetchone()
            ticket, _ = _find_ticket(db, number)
            return self._change(db, replace(ticket, column=""), maker, "created", "todo", run_id=run_id)

    def start(self, id: str | int, *, by: str, run_id: str = "") -> TicketRow:
        """Start to work on a ticket in ``todo`` or ``needs_revision``.

        Raises:
            TicketError: the ticket is assigned to someone else, or is in another column.
            StoreError: the file cannot be used.
        """
        who = _checked_name(by, "name of the assignee")
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            if ticket.column not in ("todo", "needs_revision"):
                raise TicketError(_why_not_available(ticket, who, _last_change(db, ticket), run_id))
            if ticket.assignee not in ("", who):
                raise TicketError(f"{ticket.id} is assigned to {ticket.assignee}: choose another ticket")
            return self._change(db, ticket, who, "started", "running", run_id=run_id, assignee=who)

    def hold(self, id: str | int, summary: str, *, by: str, hold: str | None = None, run_id: str = "") -> str:
        """Submit a completion for judgement: move the ticket to ``verifying``, where no one else can complete it.

        :meth:`accept`, :meth:`reject` or :meth:`release_hold` ends the hold, or it expires after ``hold_seconds``.

        Returns:
            The token of the hold.

        Raises:
            TicketError: the ticket is not running, or is assigned to someone else.
            StoreError: the file cannot be used.
        """
        who, done = _checked_name(by, "name of the assignee"), _checked_text(summary, "summary", MAX_TEXT)
        if not done:
            raise TicketError("the summary is empty: describe what was done, and how each criterion is met")
        token = hold or token_hex(8)
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            if ticket.column not in ("running", "needs_revision"):
                raise TicketError(_why_not_available(ticket, who, _last_change(db, ticket), run_id, completing=True))
            if ticket.assignee != who:
                if not ticket.assignee:
                    raise TicketError(f"{ticket.id} is not assigned: start it first")
                raise TicketError(f"{ticket.id} is assigned to {ticket.assignee}: only the assignee can complete it")
            until = time.time() + self.hold_seconds
            self._change(
                db, ticket, who, "completing", "verifying", done, run_id, summary=done, hold=token, held_until=until
            )
        return token

    def accept(self, id: str | int, hold: str, *, by: str, run_id: str = "") -> TicketRow:
        """Accept a completion: move the ticket to ``done``, or to ``review`` if its tier requires that.

        Raises:
            TicketError: the hold has ended.
            StoreError: the file cannot be used.
        """
        with self._db.transaction(write=True) as db:
            ticket = self._held(db, id, hold)
            to, what = ("review", "completed") if ticket.tier == "review" else ("done", "accepted")
            return self._change(db, ticket, by, what, to, run_id=run_id, reason="")

    def reject(self, id: str | int, hold: str, reason: str, *, by: str, run_id: str = "") -> TicketRow:
        """Reject a completion: move the ticket to ``needs_revision``.

        Raises:
            TicketError: the hold has ended.
            StoreError: the file cannot be used.
        """
        why = shorten(reason)
        with self._db.transaction(write=True) as db:
            ticket = self._held(db, id, hold)
            return self._change(db, ticket, by, "rejected", "needs_revision", why, run_id, reason=why)

    def release_hold(self, id: str | int, hold: str, reason: str, *, by: str, run_id: str = "") -> bool:
        """End a hold without a judgement: move the ticket back to ``running``; return whether the hold existed.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction(write=True) as db:
            try:
                ticket = self._held(db, id, hold)
            except TicketError:
                return False
            self._change(db, ticket, by, "not judged", "running", shorten(reason), run_id)
        return True

    def release(self, id: str | int, reason: str = "", *, by: str, run_id: str = "") -> TicketRow:
        """Move a ticket back to ``todo`` and remove its assignee.

        Raises:
            TicketError: the ticket is finished or being judged, or is assigned to someone else.
            StoreError: the file cannot be used.
        """
        who, why = _checked_name(by, "name of the assignee"), _checked_text(reason, "reason", MAX_TEXT)
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            if ticket.column not in ("todo", "running", "needs_revision") or ticket.assignee != who:
                assigned = f" and assigned to {ticket.assignee}" if ticket.assignee else ""
                raise TicketError(f"{ticket.id} is {ticket.column}{assigned}: only its assignee can release it")
            return self._change(db, ticket, who, "released", "todo", why, run_id, assignee="")

    def comment(self, id: str | int, text: str, *, by: str, run_id: str = "") -> TicketRow:
        """Add a comment to a ticket's history.

        Raises:
            TicketError: the ticket does not exist, or the comment is empty.
            StoreError: the file cannot be used.
        """
        who, comment = _checked_name(by, "name of the author"), _checked_text(text, "comment", MAX_TEXT)
        if not comment:
            raise TicketError("the comment is empty: write a text")
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            return self._change(db, ticket, who, "commented", ticket.column, comment, run_id)

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
        """Move a ticket to any column but ``verifying``, as an administrator; a hold ends.

        Args:
            id: id of the ticket.
            column: new column. A move to ``todo`` removes the assignee unless ``assignee`` is given.
            by: name of the administrator.
            reason: reason; required for ``needs_revision``.
            assignee: new assignee.
            expected: move the ticket only if it is in this column.

        Raises:
            TicketError: the ticket is already in the column or not in the expected one, ``running`` lacks an assignee,
                or the assignee accepts their own work.
            StoreError: the file cannot be used.
        """
        who, why = _checked_name(by, "name of the person who moves it"), _checked_text(reason, "reason", MAX_TEXT)
        _checked_choice(column, [name for name in COLUMNS if name != "verifying"], "column to move to")
        with self._db.transaction(write=True) as db:
            ticket = self._current(db, id)
            owner = "" if column == "todo" else ticket.assignee
            if assignee is not None:
                owner = _checked_name(assignee, "assignee") if assignee else ""
            if expected is not None and ticket.column != _checked_choice(expected, COLUMNS, "column"):
                raise TicketError(
                    f"{ticket.id} is {ticket.column}, not {expected}: {_describe(_last_change(db, ticket))}"
                )
            if ticket.column == column and ticket.assignee == owner:
                raise TicketError(f"{ticket.id} is already {column}: {_describe(_last_change(db, ticket))}")
            if column == "running" and not owner:
                raise TicketError(f"{ticket.id} has no assignee: name one to run it")
            if column == "needs_revision" and not why:
                raise TicketError(f"{ticket.id} needs a reason for the revision: give one")
            if (ticket.column, column, ticket.assignee) == ("review", "done", who):
                raise TicketError(f"{who} did the work on {ticket.id}: someone else must accept it")
            rejection = {"needs_revision": why, "done": ""}.get(column, ticket.reason)
            return self._change(db, ticket, who, "moved", column, why, assignee=owner, reason=rejection)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    # Parts of a transaction.

    def _current(self, db: Connection, id: str | int) -> TicketRow:
        """Return the ticket, after ending an expired hold."""
        ticket, hold = _find_ticket(db, ticket_number(id))
        if hold is None or ticket.column == "verifying":
            return ticket
        why = f"not judged within {duration_text(self.hold_seconds)}"
        return self._change(db, replace(ticket, column="verifying"), _BOARD, "not judged", "running", why)

    def _held(self, db: Connection, id: str | int, hold: str) -> TicketRow:
        """Return the ticket if it still has this hold. An expired hold counts if the ticket has not changed since."""
        ticket, current = _find_ticket(db, ticket_number(id))
        if current is None or current != hold:
            change = _describe(_last_change(db, ticket))
            raise TicketError(f"{ticket.id} is {ticket.column} now, so nothing was changed: {change}")
        return replace(ticket, column="verifying")

    def _change(
        self,
        db: Connection,
        ticket: TicketRow,
        by: str,
        what: str,
        to: str,
        text: str = "",
        run_id: str = "",
        **changed: Any,
    ) -> TicketRow:
        """Change a ticket and add an entry to its history."""
        number, seq, at = ticket_number(ticket.id), ticket.changes + 1, max(time.time(), ticket.changed)
        fields = {**changed, "column": to, "changed": at, "changes": seq}
        if to != "verifying":
            fields |= {"hold": None, "held_until": None}
        settings = ", ".join(f'"{name}" = ?' for name in fields)
        db.execute(f"UPDATE tickets SET {settings} WHERE number = ?", (*fields.values(), number))
        owner = changed.get("assignee") or ticket.assignee
        entry = (number, seq, at, _checked_name(by, "name of the author"), what, ticket.column, to, text, owner, run_id)
        db.execute(f"INSERT INTO history (ticket, {_CHANGE}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", entry)
        return _find_ticket(db, number)[0]
