"""Calls that wait for approval, and standing permissions, in one SQLite file that programs may share."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from socket import gethostname
from typing import Any

import msgspec

from .._base.frozen import freeze, scrub, thaw
from .._base.text import is_number
from .._kernel.payloads import ApprovalRequest
from .._kernel.values import Ids
from .approval_rows import ApprovalRow, DecisionRefusedError, GrantRow, checked_pattern, uncovered
from .approval_table import (
    FIELDS,
    GRANT,
    ROW,
    SCHEMA,
    by_grant,
    by_id,
    clean,
    grant_of,
    grant_values,
    grants_for,
    owner_value,
    row_of,
    status_now,
    values_of,
    write,
)
from .approval_watch import Tell, Watch, wake
from .errors import StoreError
from .programs import born
from .sqlite import Database, storable

KEEP_DAYS = 90.0
"""How long calls that were decided, and permissions for a session, are kept."""

MAX_MESSAGE = 4000

_STATUS = {"approve": "approved", "deny": "denied", "edit": "edited"}
_SCOPES = ("once", "session", "always")


class ApprovalStore:
    """Keeps the calls that wait for approval, who decided what, and what was allowed for good.

    Each call is decided once, however many programs try; a decision must name the digest of what the decider saw. A
    call whose time is over, or whose program is gone, is not pending any more. See docs/guides/approvals.md.

    Args:
        path: the file, made when it is first needed, for this user only; ``:memory:`` forgets with the program.

    Raises:
        StoreError: the path cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.db = Database(path, holds="approvals", mark=0x486B4C41, version=1, schema=SCHEMA, durable=True)
        self._watch = Watch(self.path, self._look)
        self._pruned = float("-inf")

    @property
    def path(self) -> str:
        """The file."""
        return self.db.path

    def open(self) -> None:
        """Make sure that the file is there and can be written.

        Raises:
            StoreError: it cannot; it says why, and what to do.
        """
        with self.db.transaction(write=True):
            pass

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    def ask(
        self, request: ApprovalRequest, *, seconds: float, ids: Ids, owner: str = "", root_id: str = ""
    ) -> ApprovalRow:
        """Put a call to people; if a grant covers it, it is approved at once, by that.

        Args:
            request: the call, its questions and its digest.
            seconds: how long it may be decided.
            ids: of the run that asks.
            owner: who started that run.
            root_id: the run that was started, if this one is inside it.

        Raises:
            StoreError: the file cannot be used.
        """
        if not is_number(seconds) or not 0 < seconds < 1e12:
            raise StoreError(f"a call waits for a number of seconds above 0, not {seconds!r:.80}")
        call, now = request.call, time.time()
        row = ApprovalRow(
            f"appr_{secrets.token_hex(16)}", storable(ids.run_id), storable(root_id or ids.run_id), storable(call.id),
            call.attempt, storable(call.name), scrub(thaw(call.arguments)), clean(request.questions), request.digest,
            storable(ids.agent), storable(ids.session_id), storable(owner), storable(ids.correlation_id), now,
            now + seconds, "pending", None, "", "", None, "once",
        )  # fmt: skip
        with self.db.transaction(write=True) as db:
            self._prune(db, now)
            for grant in grants_for(db, row):
                if grant.covers(row.digest, row.arguments, row.hooks):
                    row = by_grant(row, grant, now)
                    break
            values = (*values_of(row), gethostname(), os.getpid(), born(os.getpid()))
            columns = f"{', '.join(FIELDS)}, host, pid, born"
            db.execute(f"INSERT INTO approvals ({columns}) VALUES ({', '.join('?' * len(values))})", values)
        return row

    def rows(
        self, *, status: str = "", owner: str | None = None, root_id: str = "", limit: int = 100
    ) -> list[ApprovalRow]:
        """Calls that were put to people, the newest first.

        Args:
            status: only those; all, if left out.
            owner: only those of this owner; ``None``: of everybody.
            root_id: only those of this run, and of the runs inside it.
            limit: at most so many.

        Raises:
            StoreError: the file cannot be used.
        """
        wanted, values = ["1"], list[Any]()
        if status:
            wanted.append("status IN (?, 'pending')" if status != "pending" else "status = 'pending'")
            values += [status] if status != "pending" else []
        for column, value in (("owner", owner), ("root_id", root_id or None)):
            if value is not None:
                wanted.append(f"{column} = ?")
                values.append(storable(value))
        found: list[ApprovalRow] = []
        with self.db.transaction() as db:
            for found_values in db.execute(f"{ROW} WHERE {' AND '.join(wanted)} ORDER BY seq DESC", values):
                if len(found) >= limit:
                    break
                row = row_of(found_values)
                if status in ("", row.status):
                    found.append(row)
        return found

    def find(self, id: str, *, owner: str | None = None, short: bool = False) -> ApprovalRow:
        """The call with this id.

        Args:
            id: its id.
            owner: whose it must be; ``None``: anybody's.
            short: the beginning of its id is enough if no other begins so, with or without ``appr_``.

        Raises:
            StoreError: there is none, or more than one; or the file cannot be used.
        """
        with self.db.transaction() as db:
            return self._found(db, id, owner, short=short)

    def decide(
        self, id: str, *, decision: str, digest: str, by: str, message: str = "",
        arguments: Mapping[str, Any] | None = None, remember: str = "once", pattern: Mapping[str, str] | None = None,
        owner: str | None = None,
    ) -> ApprovalRow:  # fmt: skip
        """Decide about a call that waits; whoever is first, decides.

        Args:
            id: the call's.
            decision: ``approve``, ``deny`` or ``edit``.
            digest: of what the decider saw, the row's ``digest``.
            by: who decides.
            message: why; with ``deny``, the model is told.
            arguments: with ``edit``, those to run it with, if the guards let them pass.
            remember: with ``approve``: ``once``, or a grant for this agent, in this ``session`` or ``always``.
            pattern: what the grant is for, argument names with globs; without one, for exactly these arguments.
            owner: whose it must be; ``None``: anybody's.

        Raises:
            DecisionRefusedError: it does not count; ``code`` says why.
            StoreError: there is no such call, or the file cannot be used.
        """
        edit, globs = _checked(decision, digest, by, message, arguments, remember, pattern)
        with self.db.transaction(write=True) as db:
            row, now = self._found(db, id, owner), time.time()
            if row.status != "pending":
                raise DecisionRefusedError("gone", _gone(row), row)
            if not secrets.compare_digest(row.digest.encode(), storable(digest).encode()):
                raise DecisionRefusedError("digest", f"{id} is not the call that was shown: look at it again", row)
            row = msgspec.structs.replace(
                row, status=_STATUS[decision], decided=now, by=storable(by), message=storable(message), edit=edit,
                remember=remember,
            )  # fmt: skip
            write(db, row)
            if remember != "once":
                grant = _grant(row, globs, now)
                marks = ", ".join("?" * len(grant_values(grant)))
                columns = ", ".join(GrantRow.__struct_fields__)
                db.execute(f"INSERT INTO grants ({columns}) VALUES ({marks})", grant_values(grant))
                self._apply(db, grant, now)
        wake(self.path)
        return row

    def settle(self, id: str, status: str) -> ApprovalRow:
        """End the waiting of a call, ``expired`` or ``cancelled``; the row as it is, if somebody was quicker.

        Raises:
            StoreError: there is no such call, or the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            db.execute(
                "UPDATE approvals SET status = ?, decided = ? WHERE id = ? AND status = 'pending'",
                (status, time.time(), id),
            )
            row = self._found(db, id, None)
        wake(self.path)
        return row

    def waiting(self, id: str, tell: Tell) -> AbstractContextManager[None]:
        """Inside the block, have ``tell`` called once when the call is decided, by whichever program.

        It gets the row, or the exception if the file can no longer be used, and is called in another thread.
        """
        return self._watch.waiting(id, tell)

    def grants(self, *, owner: str | None = None) -> list[GrantRow]:
        """The standing permissions, the newest first.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            found = db.execute(f"{GRANT} WHERE coalesce(?, owner) = owner ORDER BY seq DESC", (owner_value(owner),))
            return [grant_of(values) for values in found]

    def revoke(self, id: str, *, owner: str | None = None, short: bool = False) -> None:
        """Take a permission back: from here on it answers no call.

        Raises:
            StoreError: there is no such permission, or more than one; or the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            found = by_id(db, "SELECT id FROM grants", id, owner, "permission", short=short)
            db.execute("DELETE FROM grants WHERE id = ?", found[:1])

    def counts(self) -> int:
        """How many calls wait.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            asked = db.execute("SELECT status, expires, asked, host, pid, born FROM approvals WHERE status = 'pending'")
            return sum(status_now(*values) == "pending" for values in asked)

    def _found(self, db: sqlite3.Connection, id: str, owner: str | None, *, short: bool = False) -> ApprovalRow:
        return row_of(by_id(db, ROW, id, owner, "call", short=short))

    def _look(self, ids: Sequence[str]) -> Mapping[str, ApprovalRow]:
        found: dict[str, ApprovalRow] = {}
        with self.db.transaction() as db:
            for id in ids:
                values = db.execute(f"{ROW} WHERE id = ?", (id,)).fetchone()
                if values is not None:
                    found[id] = row_of(values, as_kept=True)  # who waits knows itself when its time is over
        return found

    def _apply(self, db: sqlite3.Connection, grant: GrantRow, now: float) -> None:
        """Approve what waits already and is covered too."""
        for values in db.execute(f"{ROW} WHERE status = 'pending' AND tool = ?", (grant.tool,)).fetchall():
            row = row_of(values)
            if row.status != "pending" or grant.id not in {found.id for found in grants_for(db, row)}:
                continue
            if grant.covers(row.digest, row.arguments, row.hooks):
                write(db, by_grant(row, grant, now))

    def _prune(self, db: sqlite3.Connection, now: float) -> None:
        if time.monotonic() < self._pruned + 3600:
            return
        self._pruned = time.monotonic()
        before = now - KEEP_DAYS * 24 * 3600
        db.execute("DELETE FROM approvals WHERE coalesce(decided, expires) < ?", (before,))
        db.execute("DELETE FROM grants WHERE scope = 'session' AND at < ?", (before,))


def _checked(
    decision: str, digest: str, by: str, message: str, arguments: Any, remember: str, pattern: Any
) -> tuple[dict[str, Any] | None, dict[str, str] | None]:
    """The arguments of an edit and the pattern of a grant, if this is a decision that can be made."""
    if decision not in _STATUS:
        raise DecisionRefusedError("bad", f"a decision is approve, deny or edit, not {decision!r:.80}")
    if not all(isinstance(text, str) for text in (digest, by, message)) or not by.strip():
        raise DecisionRefusedError("bad", "a decision needs the digest of what was seen, and who decides, as texts")
    if len(message) > MAX_MESSAGE:
        raise DecisionRefusedError("bad", f"a message has at most {MAX_MESSAGE} characters")
    if remember not in _SCOPES:
        raise DecisionRefusedError("bad", f"remember is once, session or always, not {remember!r:.80}")
    if remember != "once" and decision != "approve":
        raise DecisionRefusedError("bad", "only an approval can be remembered")
    if pattern is not None and remember == "once":
        raise DecisionRefusedError("bad", "a pattern is for a permission: remember it for the session, or always")
    if (arguments is not None) != (decision == "edit"):
        raise DecisionRefusedError("bad", "an edit, and nothing else, takes the new arguments")
    edit = None
    if arguments is not None:
        try:
            edit = scrub(thaw(freeze(arguments)))
        except (TypeError, ValueError, RecursionError) as error:
            raise DecisionRefusedError("bad", f"the new arguments are no JSON object: {error}") from error
        if not isinstance(edit, dict):
            raise DecisionRefusedError("bad", "the new arguments must be a JSON object")
    return edit, None if pattern is None else checked_pattern(pattern)


def _gone(row: ApprovalRow) -> str:
    what = {"expired": "its time is over", "cancelled": "its run is over"}.get(row.status, f"it was {row.status}")
    who = f" by {row.by}" if row.by else ""
    return f"{row.id} does not wait any more: {what}{who}"


def _grant(row: ApprovalRow, pattern: dict[str, str] | None, now: float) -> GrantRow:
    if row.remember == "session" and not row.session_id:
        raise DecisionRefusedError("bad", "this call has no session that it could be allowed for")
    if pattern is not None and (problem := uncovered(pattern, row.arguments)):
        raise DecisionRefusedError("bad", f"the pattern does not cover this call itself: {problem}", row)
    return GrantRow(
        f"grant_{secrets.token_hex(16)}", row.remember, row.session_id, row.agent, row.owner, row.tool,
        scrub(pattern or {}), None if pattern else row.arguments, row.digest, row.hooks, row.by, now,
    )  # fmt: skip
