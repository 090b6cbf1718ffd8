"""Calls that wait for approval, and standing permissions, in one SQLite file that programs may share."""

from __future__ import annotations

import os
import secrets
import sqlite3
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from socket import gethostname
from typing import Any

import msgspec

from ..base.frozen import freeze, json_text, scrub, thaw
from ..base.names import is_number
from ..kernel.payloads import ApprovalRequest, Question
from ..kernel.values import Ids
from .approval_rows import ApprovalRow, DecisionRefused, GrantRow, checked_pattern, matches
from .approval_watch import Tell, Watch, wake
from .errors import StoreError
from .runs import is_running
from .sqlite import Database, storable

KEEP_DAYS = 90.0
"""How long calls that were decided, and permissions for a session, are kept."""

MAX_MESSAGE = 4000

_SCHEMA = (
    """CREATE TABLE approvals (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, run_id TEXT, root_id TEXT, call_id TEXT,
        attempt INTEGER, tool TEXT, arguments TEXT, questions TEXT, digest TEXT, agent TEXT, session_id TEXT,
        owner TEXT, correlation_id TEXT, asked REAL, expires REAL, status TEXT NOT NULL, decided REAL, by TEXT,
        message TEXT, edit TEXT, remember TEXT, host TEXT, pid INTEGER
    )""",
    "CREATE INDEX approvals_pending ON approvals (seq) WHERE status = 'pending'",
    "CREATE INDEX approvals_root ON approvals (root_id)",
    """CREATE TABLE grants (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, scope TEXT, session_id TEXT, agent TEXT,
        owner TEXT, tool TEXT, pattern TEXT, arguments TEXT, digest TEXT, hooks TEXT, by TEXT, at REAL
    )""",
    "CREATE INDEX grants_tool ON grants (tool)",
)
_FIELDS = ApprovalRow.__struct_fields__
_ROW = f"SELECT {', '.join(_FIELDS)}, host, pid FROM approvals"
_GRANT = f"SELECT {', '.join(GrantRow.__struct_fields__)} FROM grants"
_STATUS = {"approve": "approved", "deny": "denied", "edit": "edited"}
_SCOPES = ("once", "session", "always")


class ApprovalStore:
    """Keeps the calls that wait for approval, who decided what, and what was allowed for good.

    Each call is decided once, however many programs try; a decision must name the digest of what the decider saw. A
    call whose time is over, or whose program is gone, is not pending any more. See docs/approvals.md.

    Args:
        path: the file, made when it is first needed, for this user only; ``:memory:`` forgets with the program.

    Raises:
        StoreError: the path cannot be used.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path: str | os.PathLike[str] = path
        self.db = self._database()
        self._file: tuple[int, int] | None = None
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
        with self._transaction(write=True):
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
            call.attempt, storable(call.name), scrub(thaw(call.arguments)), _clean(request.questions), request.digest,
            storable(ids.agent), storable(ids.session_id), storable(owner), storable(ids.correlation_id), now,
            now + seconds, "pending", None, "", "", None, "once",
        )  # fmt: skip
        with self._transaction(write=True) as db:
            self._prune(db, now)
            for grant in _grants_for(db, row):
                if grant.covers(row.digest, row.arguments, row.hooks):
                    row = _by_grant(row, grant, now)
                    break
            values = (*_values(row), gethostname(), os.getpid())
            columns = f"{', '.join(_FIELDS)}, host, pid"
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
        with self._transaction() as db:
            for values_of in db.execute(f"{_ROW} WHERE {' AND '.join(wanted)} ORDER BY seq DESC", values):
                if len(found) >= limit:
                    break
                row = _row(values_of)
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
        with self._transaction() as db:
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
            remember: with ``approve``: ``once``, or a grant for this ``session``, or ``always`` for this agent.
            pattern: what the grant is for, argument names with globs; without one, for exactly these arguments.
            owner: whose it must be; ``None``: anybody's.

        Raises:
            DecisionRefused: it does not count; ``code`` says why.
            StoreError: there is no such call, or the file cannot be used.
        """
        edit, globs = _checked(decision, digest, by, message, arguments, remember, pattern)
        with self._transaction(write=True) as db:
            row, now = self._found(db, id, owner), time.time()
            if row.status != "pending":
                raise DecisionRefused("gone", _gone(row), row)
            if not secrets.compare_digest(row.digest.encode(), storable(digest).encode()):
                raise DecisionRefused("digest", f"{id} is not the call that was shown: look at it again", row)
            row = msgspec.structs.replace(
                row, status=_STATUS[decision], decided=now, by=storable(by), message=storable(message), edit=edit,
                remember=remember,
            )  # fmt: skip
            _write(db, row)
            if remember != "once":
                grant = _grant(row, globs, now)
                marks = ", ".join("?" * len(_grant_values(grant)))
                columns = ", ".join(GrantRow.__struct_fields__)
                db.execute(f"INSERT INTO grants ({columns}) VALUES ({marks})", _grant_values(grant))
                self._apply(db, grant, now)
        wake(self.path)
        return row

    def settle(self, id: str, status: str) -> ApprovalRow:
        """End the waiting of a call, ``expired`` or ``cancelled``; the row as it is, if somebody was quicker.

        Raises:
            StoreError: there is no such call, or the file cannot be used.
        """
        with self._transaction(write=True) as db:
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
        with self._transaction() as db:
            found = db.execute(f"{_GRANT} WHERE coalesce(?, owner) = owner ORDER BY seq DESC", (_owner(owner),))
            return [_grant_row(values) for values in found]

    def revoke(self, id: str, *, owner: str | None = None, short: bool = False) -> None:
        """Take a permission back: from here on it answers no call.

        Raises:
            StoreError: there is no such permission, or more than one; or the file cannot be used.
        """
        with self._transaction(write=True) as db:
            found = _by_id(db, "SELECT id FROM grants", id, owner, "permission", short=short)
            db.execute("DELETE FROM grants WHERE id = ?", found[:1])

    def counts(self) -> int:
        """How many calls wait.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._transaction() as db:
            asked = db.execute("SELECT status, expires, host, pid, asked FROM approvals WHERE status = 'pending'")
            return sum(_now(*values) == "pending" for values in asked)

    def _database(self) -> Database:
        return Database(
            self._path, holds="approvals", mark=0x486B4C41, version=1, schema=_SCHEMA, durable=True
        )  # fmt: skip

    @contextmanager
    def _transaction(self, *, write: bool = False) -> Iterator[sqlite3.Connection]:
        """On the file that has the name now: one that was deleted would never be seen by others."""
        if self._file is not None and self._file != _identity(self.path):
            self.db.close()
            self.db, self._file = self._database(), None
        with self.db.transaction(write=write) as db:
            if self._file is None and not self.db.in_memory:
                self._file = _identity(self.path)
            yield db

    def _found(self, db: sqlite3.Connection, id: str, owner: str | None, *, short: bool = False) -> ApprovalRow:
        return _row(_by_id(db, _ROW, id, owner, "call", short=short))

    def _look(self, ids: Sequence[str]) -> Mapping[str, ApprovalRow]:
        found: dict[str, ApprovalRow] = {}
        with self._transaction() as db:
            for id in ids:
                values = db.execute(f"{_ROW} WHERE id = ?", (id,)).fetchone()
                if values is not None:
                    found[id] = _row(values, as_kept=True)  # who waits knows itself when its time is over
        return found

    def _apply(self, db: sqlite3.Connection, grant: GrantRow, now: float) -> None:
        """Approve what waits already and is covered too."""
        for values in db.execute(f"{_ROW} WHERE status = 'pending' AND tool = ?", (grant.tool,)).fetchall():
            row = _row(values)
            if row.status != "pending" or grant.id not in {found.id for found in _grants_for(db, row)}:
                continue
            if grant.covers(row.digest, row.arguments, row.hooks):
                _write(db, _by_grant(row, grant, now))

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
        raise DecisionRefused("bad", f"a decision is approve, deny or edit, not {decision!r:.80}")
    if not all(isinstance(text, str) for text in (digest, by, message)) or not by.strip():
        raise DecisionRefused("bad", "a decision needs the digest of what was seen, and who decides, as texts")
    if len(message) > MAX_MESSAGE:
        raise DecisionRefused("bad", f"a message has at most {MAX_MESSAGE} characters")
    if remember not in _SCOPES:
        raise DecisionRefused("bad", f"remember is once, session or always, not {remember!r:.80}")
    if remember != "once" and decision != "approve":
        raise DecisionRefused("bad", "only an approval can be remembered")
    if pattern is not None and remember == "once":
        raise DecisionRefused("bad", "a pattern is for a permission: remember it for the session, or always")
    if (arguments is not None) != (decision == "edit"):
        raise DecisionRefused("bad", "an edit, and nothing else, takes the new arguments")
    edit = None
    if arguments is not None:
        try:
            edit = scrub(thaw(freeze(arguments)))
        except (TypeError, ValueError, RecursionError) as error:
            raise DecisionRefused("bad", f"the new arguments are no JSON object: {error}") from error
        if not isinstance(edit, dict):
            raise DecisionRefused("bad", "the new arguments must be a JSON object")
    return edit, None if pattern is None else checked_pattern(pattern)


def _gone(row: ApprovalRow) -> str:
    what = {"expired": "its time is over", "cancelled": "its run is over"}.get(row.status, f"it was {row.status}")
    who = f" by {row.by}" if row.by else ""
    return f"{row.id} does not wait any more: {what}{who}"


def _grant(row: ApprovalRow, pattern: dict[str, str] | None, now: float) -> GrantRow:
    if row.remember == "session" and not row.session_id:
        raise DecisionRefused("bad", "this call has no session that it could be allowed for")
    if pattern is not None and not matches(pattern, row.arguments):
        raise DecisionRefused("bad", "the pattern does not cover this call itself: every argument must match a glob")
    return GrantRow(
        f"grant_{secrets.token_hex(16)}", row.remember, row.session_id, row.agent, row.owner, row.tool,
        scrub(pattern or {}), None if pattern else row.arguments, row.digest, row.hooks, row.by, now,
    )  # fmt: skip


def _grants_for(db: sqlite3.Connection, row: ApprovalRow) -> list[GrantRow]:
    """The grants that could answer this call, the oldest first."""
    found = db.execute(
        f"{_GRANT} WHERE tool = ? AND owner = ? AND (scope = 'session' AND session_id = ? OR "
        "scope = 'always' AND agent = ?) ORDER BY seq",
        (row.tool, row.owner, row.session_id, row.agent),
    )
    return [_grant_row(values) for values in found]


def _by_grant(row: ApprovalRow, grant: GrantRow, now: float) -> ApprovalRow:
    return msgspec.structs.replace(row, status="approved", decided=now, by=f"grant {grant.id} of {grant.by}")


def _by_id(
    db: sqlite3.Connection, select: str, id: str, owner: str | None, what: str, *, short: bool
) -> tuple[Any, ...]:
    id = storable(id) if isinstance(id, str) else ""
    where, values = "id = ?", list[Any]([id])
    if short and id:
        where, values = "? IN (substr(id, 1, ?), substr(id, instr(id, '_') + 1, ?))", [id, len(id), len(id)]
    query = f"{select} WHERE {where} AND coalesce(?, owner) = owner ORDER BY seq LIMIT 2"
    found = db.execute(query, (*values, _owner(owner))).fetchall()
    if not found:
        raise StoreError(f"there is no {what} {id!r}: hookline approvals shows what waits, --all what was decided")
    if len(found) > 1:
        raise StoreError(f"more than one {what} begins with {id!r}: give more of its id")
    return tuple(found[0])


def _owner(owner: str | None) -> str | None:
    return None if owner is None else storable(owner)


def _clean(questions: Sequence[Question]) -> tuple[Question, ...]:
    return tuple(Question(storable(q.text), storable(q.hook), storable(q.reason)) for q in questions)


def _values(row: ApprovalRow) -> tuple[Any, ...]:
    values = {name: getattr(row, name) for name in _FIELDS}
    values["arguments"], values["questions"] = json_text(row.arguments), json_text(row.questions)
    values["edit"] = None if row.edit is None else json_text(row.edit)
    return tuple(values.values())


def _write(db: sqlite3.Connection, row: ApprovalRow) -> None:
    edit = None if row.edit is None else json_text(row.edit)
    db.execute(
        "UPDATE approvals SET status = ?, decided = ?, by = ?, message = ?, edit = ?, remember = ? WHERE id = ?",
        (row.status, row.decided, row.by, row.message, edit, row.remember, row.id),
    )


def _row(values: Sequence[Any], *, as_kept: bool = False) -> ApprovalRow:
    fields = dict(zip(_FIELDS, values, strict=False))
    host, pid = values[-2:]
    fields["arguments"] = msgspec.json.decode(fields["arguments"])
    fields["questions"] = msgspec.json.decode(fields["questions"], type=tuple[Question, ...])
    fields["edit"] = None if fields["edit"] is None else msgspec.json.decode(fields["edit"])
    if not as_kept:
        fields["status"] = _now(fields["status"], fields["expires"], host, pid, fields["asked"])
    return ApprovalRow(**fields)


def _now(status: str, expires: float, host: str, pid: int, asked: float) -> str:
    """What a call is now: nobody may be left to write that its time is over, or that its program is gone."""
    if status != "pending":
        return status
    if expires <= time.time():
        return "expired"
    mine = pid == os.getpid() and host == gethostname()
    return "pending" if mine or is_running(host, pid, asked) else "cancelled"


def _grant_values(grant: GrantRow) -> tuple[Any, ...]:
    values = {name: getattr(grant, name) for name in GrantRow.__struct_fields__}
    values |= {name: json_text(values[name]) for name in ("pattern", "arguments", "hooks")}
    return tuple(values.values())


def _grant_row(values: Sequence[Any]) -> GrantRow:
    fields = dict(zip(GrantRow.__struct_fields__, values, strict=True))
    fields |= {name: msgspec.json.decode(fields[name]) for name in ("pattern", "arguments", "hooks")}
    return GrantRow(**fields | {"hooks": tuple(fields["hooks"])})


def _identity(path: str) -> tuple[int, int] | None:
    try:
        file = os.stat(path)
    except OSError:
        return None
    return file.st_dev, file.st_ino
