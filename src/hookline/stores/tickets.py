"""A board of tickets in one SQLite file, which many agents, programs and people may work on at once."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from secrets import token_hex
from typing import Any

from msgspec.structs import replace

from .._base.text import duration_text, is_number
from .errors import StoreError
from .sqlite import Database
from .ticket_queries import NOW, ROW, SCHEMA, ago, as_ticket, can_fold, chosen_by, found, last_change, why_taken
from .ticket_rows import (
    COLUMNS,
    MAX_TEXT,
    MAX_TITLE,
    TIERS,
    TicketChange,
    TicketError,
    TicketRow,
    cleaned,
    criteria_of,
    cut,
    name_of,
    number_of,
    one_of,
)

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
