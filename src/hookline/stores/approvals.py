"""Tool calls that wait for a person's approval, the decisions, and standing grants, in one SQLite file."""

from __future__ import annotations

import logging
import os
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from fnmatch import fnmatchcase
from socket import gethostname
from typing import Any

import msgspec

from .._base.frozen import freeze, json_text, scrub, thaw
from .._base.text import is_number
from .._base.workers import after_fork_in_child
from .._kernel.payloads import ApprovalRequest, Question
from .._kernel.values import Ids
from .errors import LockedFileError, NotFoundError, StoreError
from .processes import born, is_running
from .sqlite import Database, storable

MAX_GLOB = 1000
MAX_NAMES = 100


class ApprovalRow(msgspec.Struct, frozen=True):
    """A call that was put to people, with its exact arguments, and what became of it.

    ``status``: ``pending``, ``approved``, ``denied``, ``edited``, ``expired`` or ``cancelled``. ``digest`` is of the
    tool's name and the arguments: a decision must name it. ``root_id`` is the run that was started, ``run_id`` the one
    that asks, which may be inside it. ``remember``: ``once``, ``session`` or ``always``.
    """

    id: str
    run_id: str
    root_id: str
    call_id: str
    attempt: int
    tool: str
    arguments: dict[str, Any]
    questions: tuple[Question, ...]
    digest: str
    agent: str
    session_id: str
    owner: str
    correlation_id: str
    asked: float
    expires: float
    status: str
    decided: float | None
    by: str
    message: str
    edit: dict[str, Any] | None
    remember: str

    @property
    def hooks(self) -> tuple[str, ...]:
        """The names of the hooks that ask."""
        return tuple(sorted({question.hook for question in self.questions}))


class GrantRow(msgspec.Struct, frozen=True):
    """A standing permission, which answers later calls of a tool.

    ``scope``: ``session``, in the session ``session_id``; or ``always``, in every session. Either way only for runs of
    the agent ``agent`` and of ``owner``, and only the questions of ``hooks``. It is for the calls that ``pattern``
    covers; if that is empty, for those with exactly ``arguments``.
    """

    id: str
    scope: str
    session_id: str
    agent: str
    owner: str
    tool: str
    pattern: dict[str, str]
    arguments: dict[str, Any] | None
    digest: str
    hooks: tuple[str, ...]
    by: str
    at: float

    def covers(self, digest: str, arguments: Mapping[str, Any], hooks: Iterable[str]) -> bool:
        """Whether it answers all that these hooks ask about a call of its tool."""
        if not set(hooks) <= set(self.hooks):
            return False
        return matches(self.pattern, arguments) if self.pattern else digest == self.digest


class DecisionRefusedError(StoreError):
    """A decision that does not count.

    ``code`` is ``gone`` (it was decided, or is over), ``digest`` (what was shown is not what waits) or ``bad`` (such a
    decision cannot be made). ``row`` is the call as it is now, if it was looked at.
    """

    def __init__(self, code: str, message: str, row: ApprovalRow | None = None) -> None:
        super().__init__(message)
        self.code, self.row = code, row


def matches(pattern: Mapping[str, str], arguments: Mapping[str, Any]) -> bool:
    """Whether a pattern covers these arguments.

    Every argument must match the glob of its name, or else that of ``*``; a name in the pattern must be among the
    arguments. Text is compared as it is, every other value as JSON.
    """
    return not uncovered(pattern, arguments)


def uncovered(pattern: Mapping[str, str], arguments: Mapping[str, Any]) -> str:
    """Why a pattern does not cover these arguments; nothing, if it does."""
    for name in pattern:
        if name != "*" and name not in arguments:  # it may have a default, which nobody looked at
            return f"it has no argument {name!r:.80}"
    for name, value in arguments.items():
        glob = pattern.get(name, pattern.get("*"))
        if glob is None:
            return f"there is no glob for {name!r:.80}, nor one for all others, '*'"
        if not fnmatchcase(_text(value), glob):
            return f"{name!r:.80} is not like {glob!r:.80}"
    return ""


def checked_pattern(pattern: object) -> dict[str, str]:
    """A pattern that can be used.

    Raises:
        DecisionRefusedError: it cannot (``bad``).
    """
    if not isinstance(pattern, Mapping) or not 0 < len(pattern) <= MAX_NAMES:
        raise DecisionRefusedError("bad", 'a pattern is argument names with globs, such as {"path": "notes/*"}')
    for name, glob in pattern.items():
        if not isinstance(name, str) or not isinstance(glob, str) or not name or len(glob) > MAX_GLOB:
            raise DecisionRefusedError("bad", f"in a pattern, {name!r:.80} needs a glob, a text of at most {MAX_GLOB}")
    return dict(pattern)


def _text(value: Any) -> str:
    value = scrub(value)
    return value if isinstance(value, str) else msgspec.json.encode(value, order="sorted").decode()


SCHEMA = (
    """CREATE TABLE approvals (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, run_id TEXT, root_id TEXT, call_id TEXT,
        attempt INTEGER, tool TEXT, arguments TEXT, questions TEXT, digest TEXT, agent TEXT, session_id TEXT,
        owner TEXT, correlation_id TEXT, asked REAL, expires REAL, status TEXT NOT NULL, decided REAL, by TEXT,
        message TEXT, edit TEXT, remember TEXT, host TEXT, pid INTEGER, born REAL
    )""",
    "CREATE INDEX approvals_pending ON approvals (seq) WHERE status = 'pending'",
    "CREATE INDEX approvals_root ON approvals (root_id)",
    """CREATE TABLE grants (
        seq INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT NOT NULL UNIQUE, scope TEXT, session_id TEXT, agent TEXT,
        owner TEXT, tool TEXT, pattern TEXT, arguments TEXT, digest TEXT, hooks TEXT, by TEXT, at REAL
    )""",
    "CREATE INDEX grants_tool ON grants (tool)",
)
_SHOWN = "hookline approvals shows what waits, --all what was decided"
FIELDS = ApprovalRow.__struct_fields__
ROW = f"SELECT {', '.join(FIELDS)}, host, pid, born FROM approvals"
GRANT = f"SELECT {', '.join(GrantRow.__struct_fields__)} FROM grants"


def grants_for(db: sqlite3.Connection, row: ApprovalRow) -> list[GrantRow]:
    """The grants that could answer this call, the oldest first."""
    found = db.execute(
        f"{GRANT} WHERE tool = ? AND owner = ? AND agent = ? AND (scope = 'always' OR "
        "scope = 'session' AND session_id = ?) ORDER BY seq",
        (row.tool, row.owner, row.agent, row.session_id),
    )
    return [grant_of(values) for values in found]


def by_grant(row: ApprovalRow, grant: GrantRow, now: float) -> ApprovalRow:
    """The call, approved by a grant."""
    return msgspec.structs.replace(row, status="approved", decided=now, by=f"grant {grant.id} of {grant.by}")


def by_id(
    db: sqlite3.Connection, select: str, id: str, owner: str | None, what: str, *, short: bool
) -> tuple[Any, ...]:
    """The values of the one row with this id, if it is this owner's.

    Raises:
        NotFoundError: there is none.
        StoreError: there is more than one.
    """
    id = storable(id) if isinstance(id, str) else ""
    where, values = "id = ?", list[Any]([id])
    if short and id:
        where, values = "? IN (substr(id, 1, ?), substr(id, instr(id, '_') + 1, ?))", [id, len(id), len(id)]
    query = f"{select} WHERE {where} AND coalesce(?, owner) = owner ORDER BY seq LIMIT 2"
    found = db.execute(query, (*values, owner_value(owner))).fetchall()
    if not found:
        shown = {"permission": "hookline approvals grants shows them"}.get(what, _SHOWN)
        raise NotFoundError(f"there is no {what} {id!r}: {shown}")
    if len(found) > 1:
        raise StoreError(f"more than one {what} begins with {id!r}: give more of its id")
    return tuple(found[0])


def owner_value(owner: str | None) -> str | None:
    """What an owner is compared with; everybody's is nothing."""
    return None if owner is None else storable(owner)


def clean(questions: Sequence[Question]) -> tuple[Question, ...]:
    """Questions that SQLite can hold."""
    return tuple(Question(storable(q.text), storable(q.hook), storable(q.reason)) for q in questions)


def values_of(row: ApprovalRow) -> tuple[Any, ...]:
    """A call as the values of its columns."""
    values = {name: getattr(row, name) for name in FIELDS}
    values["arguments"], values["questions"] = json_text(row.arguments), json_text(row.questions)
    values["edit"] = None if row.edit is None else json_text(row.edit)
    return tuple(values.values())


def write(db: sqlite3.Connection, row: ApprovalRow) -> None:
    """Keep what was decided."""
    edit = None if row.edit is None else json_text(row.edit)
    db.execute(
        "UPDATE approvals SET status = ?, decided = ?, by = ?, message = ?, edit = ?, remember = ? WHERE id = ?",
        (row.status, row.decided, row.by, row.message, edit, row.remember, row.id),
    )


def row_of(values: Sequence[Any], *, as_kept: bool = False) -> ApprovalRow:
    """A call, of the values of its columns; ``as_kept``: what the file says, although its time may be over."""
    fields = dict(zip(FIELDS, values, strict=False))
    try:
        fields["arguments"] = msgspec.json.decode(fields["arguments"], type=dict[str, Any])
        fields["questions"] = msgspec.json.decode(fields["questions"], type=tuple[Question, ...])
        fields["edit"] = None if fields["edit"] is None else msgspec.json.decode(fields["edit"], type=dict[str, Any])
    except (msgspec.DecodeError, TypeError) as error:
        raise StoreError(f"{fields['id']} is not as Hookline wrote it: {error}") from error
    if not as_kept:
        fields["status"] = status_now(fields["status"], fields["expires"], fields["asked"], *values[-3:])
    return ApprovalRow(**fields)


def status_now(status: str, expires: float, asked: float, host: str, pid: int, birth: float | None) -> str:
    """What a call is now: nobody may be left to write that its time is over, or that its program is gone."""
    if status != "pending":
        return status
    if expires <= time.time():
        return "expired"
    mine = birth is None and pid == os.getpid() and host == gethostname()
    return "pending" if mine or is_running(host, pid, asked, birth) else "cancelled"


def grant_values(grant: GrantRow) -> tuple[Any, ...]:
    """A grant as the values of its columns."""
    values = {name: getattr(grant, name) for name in GrantRow.__struct_fields__}
    values |= {name: json_text(values[name]) for name in ("pattern", "arguments", "hooks")}
    return tuple(values.values())


def grant_of(values: Sequence[Any]) -> GrantRow:
    """A grant, of the values of its columns."""
    fields: dict[str, Any] = dict(zip(GrantRow.__struct_fields__, values, strict=True))
    fields |= {name: msgspec.json.decode(fields[name]) for name in ("pattern", "arguments", "hooks")}
    fields["hooks"] = tuple(fields["hooks"])
    return GrantRow(**fields)


log = logging.getLogger("hookline")

EVERY = 0.5
"""Seconds between two looks at the file, for what other programs decided."""

Tell = Callable[["ApprovalRow | Exception"], object]
_watches: weakref.WeakSet[Watch] = weakref.WeakSet()


class Watch:
    """Tells those who wait for a row when it is no longer pending.

    The thread is there only while somebody waits. A file that is locked is looked at again; any other failure is told
    to all who wait.

    Args:
        path: the file; a decision that this program makes about it wakes all watches of it at once.
        look: the rows with these ids.
    """

    def __init__(self, path: str, look: Callable[[Sequence[str]], Mapping[str, ApprovalRow]]) -> None:
        self._path, self._look = path, look
        self.forget()
        _watches.add(self)

    def forget(self) -> None:
        """Begin anew: a forked program has neither the thread nor those who wait."""
        self._lock, self._news = threading.Lock(), threading.Event()
        self._waiting: dict[object, tuple[str, Tell]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def waiting(self, id: str, tell: Tell) -> Iterator[None]:
        """Have ``tell`` called, in the thread that looks, with the row once it is decided, or with what went wrong."""
        key = object()
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._work, name="hookline-approvals", daemon=True)
                thread.start()  # there may be no room for one: then it is tried again with the next who waits
                self._thread = thread
            self._waiting[key] = id, tell
        self._news.set()  # it may have been decided already
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(key, None)
                if not self._waiting:
                    self._news.set()

    def _work(self) -> None:
        locked = False
        while True:
            self._news.wait(EVERY)
            self._news.clear()
            with self._lock:
                waiting = dict(self._waiting)
                if not waiting:
                    self._thread = None
                    return
            found: Mapping[str, Any] = {}
            problem: Exception = StoreError(f"it is no longer in {self._path}, which somebody deleted or replaced")
            try:
                found = self._look([id for id, _ in waiting.values()])
            except LockedFileError as error:
                if not locked:
                    log.warning("decisions about calls that wait cannot be seen: %s", error)
                locked = True
                continue
            except Exception as error:  # noqa: BLE001 - whoever waits is told
                problem = error
            locked = False
            for key, (id, tell) in waiting.items():
                outcome = found.get(id, problem)
                if not isinstance(outcome, ApprovalRow) or outcome.status != "pending":
                    with self._lock:
                        self._waiting.pop(key, None)
                    try:
                        tell(outcome)
                    except Exception:
                        log.exception("what was decided about %s could not be told", id)


def wake(path: str) -> None:
    """Something was decided in this file: all who wait for it in this program look at once."""
    for watch in list(_watches):
        if watch._path == path:
            watch._news.set()


def _after_fork() -> None:
    for watch in list(_watches):
        watch.forget()


after_fork_in_child(_after_fork)


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
