"""Tool calls that wait for a person's approval, the decisions, and standing grants, in one SQLite file."""

from __future__ import annotations

import logging
import os
import re
import secrets
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatchcase
from itertools import chain, islice
from typing import Any

import msgspec

from .._base.frozen import digest as digest_of
from .._base.frozen import freeze, json_problem, json_text, scrub, thaw
from .._base.text import is_number, printable
from .._base.workers import after_fork_in_child
from .._kernel.payloads import ApprovalRequest, Question
from .._kernel.values import Ids
from .approval_policy import ApprovalPolicy, as_text
from .database import open_database
from .errors import LockedFileError, NotFoundError, StoreError
from .sql import Connection, Leases, Schema, storable

log = logging.getLogger("hookline")

KEEP_DAYS = 90.0
"""Days that decided calls, and grants for a session, are kept."""
POLL_SECONDS, WATCHED_POLL_SECONDS = 0.5, 5.0
"""Polling intervals for decisions of other processes: in a file, and where they are announced."""
MAX_MESSAGE = 4000
MAX_GLOB = 1000
MAX_PATTERN_NAMES = 100
MAX_EDIT_VALUES = 10_000
"""Most values in the arguments of an edit: texts, numbers, lists and objects. To check more would delay a server."""

_STATUS = {"approve": "approved", "deny": "denied", "edit": "edited"}
_DECIDED = "decided"  # the topic of announcements
_SCOPES = ("once", "session", "always")
_NESTED = (Mapping, list, tuple)
_POLICY = "approval policy"
_TOO_FEW = "The approval policy lets too few people approve this call."
_GLOB_CHARACTERS = re.compile(r"([*?[])")


class Approval(msgspec.Struct, frozen=True):
    """One person's approval of a call: how the person is recorded, the name in the policy or else the id, the time."""

    by: str
    person: str
    at: float


class ApprovalRow(msgspec.Struct, frozen=True):
    """A tool call that needs approval, with its exact arguments and its status.

    ``status`` is ``pending``, ``approved``, ``denied``, ``edited``, ``expired`` or ``cancelled``. ``digest`` is a hash
    of the tool's name and the arguments; a decision must contain it. ``run_id`` is the run that asks, and ``root_id``
    the outermost run that it belongs to. ``remember`` is ``once``, ``session`` or ``always``. ``asked_by`` is the id of
    the person who started the run, ``policy`` says who may approve the call, and ``approved_by`` has the approvals so
    far: a call that needs two people stays pending after the first.
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
    asked_by: str = ""
    policy: ApprovalPolicy | None = None
    approved_by: tuple[Approval, ...] = ()

    @property
    def needed(self) -> int:
        """Number of people who must still approve the call."""
        if self.status != "pending":
            return 0
        needed = 1 if self.policy is None else self.policy.needed(self.tool, self.arguments)
        return max(0, needed - len(self.approved_by))

    @property
    def approvers(self) -> tuple[str, ...]:
        """Names of the people who may still approve the call; empty if no policy limits them."""
        if self.policy is None or self.status != "pending":
            return ()
        return self.policy.approvers(self.tool, self.arguments, self.asked_by, self._persons)

    @property
    def who_is_needed(self) -> str:
        """Sentences that say who has approved a pending call and who may; empty if no policy limits them."""
        if self.policy is None or self.status != "pending":
            return ""
        done = " and ".join(each.by for each in self.approved_by)
        more = "One more person" if done else {1: "One person", 2: "Two people"}[self.needed]
        return f"{f'Approved by {done}. ' if done else ''}{more} must approve it: {' or '.join(self.approvers)}."

    def objection(self, id: str, arguments: Mapping[str, Any] | None = None) -> str:
        """Return the reason why a person may not approve the call, with these arguments; empty if they may."""
        if self.policy is None:
            return ""
        given = self.arguments if arguments is None else arguments
        return self.policy.objection(id, self.tool, given, self.asked_by, self._persons)

    @property
    def _persons(self) -> list[str]:
        return [each.person for each in self.approved_by]

    @property
    def hooks(self) -> tuple[str, ...]:
        """Names of the hooks that ask for approval."""
        return tuple(sorted({question.hook for question in self.questions}))


class GrantRow(msgspec.Struct, frozen=True):
    """A standing permission that approves later calls of a tool.

    With the ``scope`` ``session`` it holds in the session ``session_id``, with ``always`` in every session. It holds
    only for runs of ``agent`` and ``owner``, and only for questions of ``hooks``. It covers the calls that match
    ``pattern``; if the pattern is empty, calls with exactly ``arguments``. ``person`` gave it: where a policy says who
    may approve a call, it covers only calls that one person must approve, and that this person may.
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
    person: str = ""

    def covers(self, row: ApprovalRow, arguments: Mapping[str, Any]) -> bool:
        """Whether the grant answers all questions about a call of its tool with these arguments."""
        if not set(row.hooks) <= set(self.hooks):
            return False
        if row.policy is not None and (row.needed > 1 or row.approved_by or row.objection(self.person)):
            return False
        return matches(self.pattern, arguments) if self.pattern else row.digest == self.digest


class DecisionRefusedError(StoreError):
    """A decision was not accepted.

    ``code`` is ``gone`` (the call is already decided, or its run has ended), ``digest`` (the decider saw other
    arguments), ``rights`` (the policy does not let the decider approve it) or ``bad`` (the decision is not valid).
    ``row`` is the call as stored, if it was read.
    """

    def __init__(self, code: str, message: str, row: ApprovalRow | None = None) -> None:
        super().__init__(message)
        self.code = code
        self.row = row


# Patterns of grants.


def matches(pattern: Mapping[str, str], arguments: Mapping[str, Any]) -> bool:
    """Whether a pattern covers these arguments.

    Every argument must match the glob for its name, or else the glob for ``*``. Each name in the pattern must be an
    argument. Texts are compared as they are, other values as JSON.
    """
    return not _mismatch(pattern, arguments)


def _mismatch(pattern: Mapping[str, str], arguments: Mapping[str, Any]) -> str:
    """Return the reason why a pattern does not cover these arguments; empty if it does."""
    for name in pattern:
        if name != "*" and name not in arguments:  # the tool may have a default value that nobody has reviewed
            return f"the call has no argument {name!r:.80}"
    for name, value in arguments.items():
        glob = pattern.get(name, pattern.get("*"))
        if glob is None:
            return f"the pattern has no glob for {name!r:.80}, and none for all others ('*')"
        if not fnmatchcase(as_text(value), glob):
            return f"{name!r:.80} does not match {glob!r:.80}"
    return ""


def exact_pattern(arguments: Mapping[str, Any]) -> dict[str, str] | None:
    """Return the pattern that matches exactly these arguments, which people start from to write a wider one.

    It is ``None`` if lines of visible text of at most :data:`MAX_GLOB` characters cannot express it.
    """
    globs = {name: _GLOB_CHARACTERS.sub(r"[\1]", as_text(value)) for name, value in arguments.items()}
    if "*" in globs or not 0 < len(globs) <= MAX_PATTERN_NAMES:
        return None
    return globs if all(name and glob.isprintable() and len(glob) <= MAX_GLOB for name, glob in globs.items()) else None


def _checked_pattern(pattern: object) -> dict[str, str]:
    if not isinstance(pattern, Mapping) or not 0 < len(pattern) <= MAX_PATTERN_NAMES:
        raise DecisionRefusedError("bad", 'a pattern must map argument names to globs, such as {"path": "notes/*"}')
    for name, glob in pattern.items():
        if not isinstance(name, str) or not isinstance(glob, str) or not name or len(glob) > MAX_GLOB:
            text = f"the glob for {name!r:.80} must be a text of at most {MAX_GLOB} characters"
            raise DecisionRefusedError("bad", text)
    return dict(pattern)


class ApprovalStore:
    """Store calls that need approval, the decisions, and standing grants.

    Each call is decided once, even if several processes try. A decision must contain the digest of the call that the
    decider saw. A call that has expired, or whose process has ended, is not pending. See docs/guides/approvals.md.

    Args:
        path: the file, created when first used, readable by its owner only; ``:memory:`` keeps everything in memory;
            or the address of a PostgreSQL database.
        policy: who may approve the calls that this program asks about. It is stored with each call, so that every
            program that shares the store obeys it. By default, anyone who can decide can approve.

    Raises:
        StoreError: the path cannot be used.

    Example::

        store = ApprovalStore("approvals.db")
        for row in store.rows(status="pending"):
            store.decide(row.id, decision="approve", digest=row.digest, by="ada")
    """

    def __init__(self, path: str | os.PathLike[str], *, policy: ApprovalPolicy | None = None) -> None:
        self.db = open_database(path, SCHEMA, durable=True)
        self.policy = policy
        self.clean: Callable[[str], str] = str
        """Replaces what must not be stored in the message of a decision."""
        self._watcher = _Watcher(self.path, self._stored, is_shared=self.db.is_shared)
        self._pruned = float("-inf")

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.db.path

    def open(self) -> None:
        """Make sure that the file exists and can be written.

        Raises:
            StoreError: the file cannot be used; the message says why, and what to do.
        """
        with self.db.transaction(write=True):
            pass

    def close(self) -> None:
        """Close the file."""
        self.db.close()

    def ask(
        self,
        request: ApprovalRequest,
        *,
        seconds: float,
        ids: Ids,
        owner: str = "",
        root_id: str = "",
        asked_by: str = "",
        durable: bool = False,
        clean: Callable[[Any], Any] = lambda value: value,
    ) -> ApprovalRow:
        """Store a call that needs approval.

        If a grant covers the call, it is approved at once. If too few people may approve it, it is denied at once.

        Args:
            request: the call, its questions and its digest.
            seconds: time until the call expires.
            ids: ids of the run that asks.
            owner: owner of the run.
            root_id: the outermost run, if the run that asks is nested.
            asked_by: id of the person who started the run; the owner if left out.
            durable: whether the run can be suspended: the call waits even if no process does, and if the run asks about
                it again, the same row is returned.
            clean: replaces what must not be stored in the arguments and questions. The digest is that of the call.

        Raises:
            StoreError: the file cannot be used.
        """
        if not is_number(seconds) or not 0 < seconds < 1e12:
            raise StoreError(f"seconds must be a positive number, not {seconds!r:.80}")
        call = request.call
        now, exact = time.time(), scrub(thaw(call.arguments))
        row = ApprovalRow(
            id=f"appr_{secrets.token_hex(16)}",
            run_id=storable(ids.run_id),
            root_id=storable(root_id or ids.run_id),
            call_id=storable(call.id),
            attempt=call.attempt,
            tool=storable(call.name),
            arguments=scrub(thaw(clean(call.arguments))),
            questions=_storable_questions(clean(request.questions)),
            digest=request.digest,
            agent=storable(ids.agent),
            session_id=storable(ids.session_id),
            owner=storable(owner),
            correlation_id=storable(ids.correlation_id),
            asked=now,
            expires=now + seconds,
            status="pending",
            decided=None,
            by="",
            message="",
            edit=None,
            remember="once",
            asked_by=storable(asked_by or owner),
            policy=self.policy,
        )
        if row.policy is not None and row.arguments != exact:
            row = msgspec.structs.replace(row, policy=row.policy.for_hidden_arguments(call.name, exact))
        if row.policy is not None and len(row.approvers) < row.needed:
            row = msgspec.structs.replace(row, status="denied", decided=now, by=_POLICY, message=_TOO_FEW)
        process = ("", 0, None) if durable else self.db.leases.owner()
        with self.db.transaction(write=True) as db:
            self._prune(db, now)
            if durable and (known := self._asked_before(db, row)) is not None:
                return known
            for grant in _grants_for(db, row) if row.status == "pending" else ():
                if grant.covers(row, exact):
                    row = _approved_by(row, grant, now)
                    break
            values = (*_encode_call(row), *process)
            columns = f"{', '.join(_CALL_FIELDS)}, host, pid, born"
            db.execute(f"INSERT INTO approvals ({columns}) VALUES ({', '.join('?' * len(values))})", values)
        return row

    def rows(
        self, *, status: str = "", owner: str | None = None, root_id: str = "", limit: int = 100
    ) -> list[ApprovalRow]:
        """Return stored calls, newest first.

        Args:
            status: only calls with this status; by default all.
            owner: only calls of this owner; ``None`` for all owners.
            root_id: only calls of this run and the runs nested in it.
            limit: maximum number of calls.

        Raises:
            StoreError: the file cannot be used.
        """
        conditions, values = ["1 = 1"], list[Any]()
        if status == "pending":
            conditions.append("status = 'pending'")
        elif status:
            conditions.append("status IN (?, 'pending')")  # a pending row may have expired, see _status_now
            values.append(status)
        for column, value in (("owner", owner), ("root_id", root_id or None)):
            if value is not None:
                conditions.append(f"{column} = ?")
                values.append(storable(value))
        query = f"{_CALL} WHERE {' AND '.join(conditions)} ORDER BY seq DESC"
        if not status:
            query, values = f"{query} LIMIT ?", [*values, limit]
        found = map(self._decode_call, self.db.execute(query, values))
        return list(islice((row for row in found if status in ("", row.status)), limit))

    def find(self, id: str, *, owner: str | None = None, short: bool = False) -> ApprovalRow:
        """Return the call with this id.

        Args:
            id: id of the call.
            owner: required owner; ``None`` for any.
            short: accept an unambiguous prefix of the id, with or without ``appr_``.

        Raises:
            StoreError: no call, or more than one, has the id; or the file cannot be used.
        """
        with self.db.transaction() as db:
            return self._find(db, id, owner, short=short)

    def decide(
        self,
        id: str,
        *,
        decision: str,
        digest: str,
        by: str,
        message: str = "",
        arguments: Mapping[str, Any] | None = None,
        remember: str = "once",
        pattern: Mapping[str, str] | None = None,
        owner: str | None = None,
        person: str = "",
    ) -> ApprovalRow:
        """Decide a pending call. The first decision counts, unless the call needs the approval of two people.

        Args:
            id: id of the call.
            decision: ``approve``, ``deny`` or ``edit``.
            digest: ``digest`` of the call that the decider saw.
            by: name of the decider.
            message: reason; after ``deny`` the model gets it.
            arguments: with ``edit``, the new arguments, which guards check again.
            remember: with ``approve``: ``once``, or a grant for this agent in this ``session`` or ``always``.
            pattern: argument names and globs that the grant covers; by default exactly these arguments.
            owner: required owner; ``None`` for any.
            person: id of the decider in the policy; by default ``by``.

        Raises:
            DecisionRefusedError: the decision was not accepted; see ``code``.
            StoreError: the call does not exist, or the file cannot be used.
        """
        edit, globs = _checked_decision(decision, digest, by, message, arguments, remember, pattern)
        message = self.clean(message)
        with self.db.transaction(write=True) as db:
            row = self._find(db, id, owner)
            now = time.time()
            if row.status != "pending":
                raise DecisionRefusedError("gone", _why_not_pending(row), row)
            if not secrets.compare_digest(row.digest.encode(), storable(digest).encode()):
                raise DecisionRefusedError(
                    "digest", f"{id} differs from the call that was shown: look at it again", row
                )
            if decision != "deny":
                row = _with_approval(row, Approval(storable(by), storable(person or by), now), edit, remember)
            if decision == "deny" or not row.needed:
                row = msgspec.structs.replace(
                    row,
                    status=_STATUS[decision],
                    decided=now,
                    by=storable(by) if decision == "deny" else " and ".join(each.by for each in row.approved_by),
                    message=storable(message),
                    edit=edit,
                    remember=remember,
                )
            _update_decision(db, row)
            if remember != "once":
                grant = _new_grant(row, globs, now)
                values = _encode_grant(grant)
                columns = ", ".join(GrantRow.__struct_fields__)
                db.execute(f"INSERT INTO grants ({columns}) VALUES ({', '.join('?' * len(values))})", values)
                self._apply(db, grant, now)
        self._announce()
        return row

    def forget(self, run_ids: Sequence[str]) -> None:
        """Delete the calls of runs, and of the runs nested in them. Grants stay.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            db.executemany("DELETE FROM approvals WHERE root_id = ?", [(storable(id),) for id in run_ids])

    def clean_decision(self, row: ApprovalRow, clean: Callable[[Any], Any]) -> None:
        """Replace what must not be stored in a decision that its run has got: the program that decides cannot know it.

        Raises:
            StoreError: the file cannot be used.
        """
        message, edit = clean(row.message), clean(row.edit)
        if message != row.message or edit != row.edit:
            changed = storable(message), None if edit is None else json_text(edit), row.id
            with self.db.transaction(write=True) as db:
                db.execute("UPDATE approvals SET message = ?, edit = ? WHERE id = ?", changed)

    def end_pending(self, id: str, status: str) -> ApprovalRow:
        """Mark a pending call as ``expired`` or ``cancelled``; a call that is already decided does not change.

        Raises:
            StoreError: the call does not exist, or the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            db.execute(
                "UPDATE approvals SET status = ?, decided = ? WHERE id = ? AND status = 'pending'",
                (status, time.time(), id),
            )
            row = self._find(db, id, None)
        self._announce()
        return row

    def cancel_run(self, run_id: str, *more: str) -> int:
        """Cancel the pending calls of runs that have ended or were deleted, and of their subagents.

        Returns the number of calls.

        Raises:
            StoreError: the file cannot be used.
        """
        now, run_ids = time.time(), (run_id, *more)
        statement = f"""UPDATE approvals SET status = 'cancelled', decided = ?
            WHERE status = 'pending' AND expires > ? AND root_id IN ({", ".join("?" * len(run_ids))})"""
        with self.db.transaction(write=True) as db:
            cancelled = int(db.execute(statement, (now, now, *map(storable, run_ids))).rowcount)
        if cancelled:
            self._announce()
        return cancelled

    def waiting_runs(self, before: float) -> list[str]:
        """Return the ids of the durable runs with calls that wait for approval since before a Unix time.

        Raises:
            StoreError: the file cannot be used.
        """
        query = """SELECT DISTINCT root_id FROM approvals
            WHERE status = 'pending' AND host = '' AND asked < ? AND expires > ? ORDER BY root_id"""
        return [id for (id,) in self.db.execute(query, (before, time.time()))]

    @contextmanager
    def watch(self, id: str, callback: Callback) -> Iterator[None]:
        """Inside the ``with`` block, call ``callback`` once when any process decides the call.

        The callback runs in another thread. It gets the row, or an exception if the file can no longer be used.
        """
        with self.db.listen(_DECIDED, self._watcher.wake), self._watcher.watch(id, callback):
            yield

    def _announce(self) -> None:
        """Wake those who wait for decisions, in this process and in others."""
        _wake_watchers(self.path)
        self.db.announce(_DECIDED)

    def grants(self, *, owner: str | None = None) -> list[GrantRow]:
        """Return standing grants, newest first.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            query = f"{_GRANT} WHERE coalesce(?, owner) = owner ORDER BY seq DESC"
            return [_decode_grant(values) for values in db.execute(query, (_storable_owner(owner),))]

    def revoke(self, id: str, *, owner: str | None = None, short: bool = False) -> None:
        """Delete a grant, so that it approves no further calls.

        Raises:
            StoreError: no grant, or more than one, has the id; or the file cannot be used.
        """
        with self.db.transaction(write=True) as db:
            found = _find_by_id(db, "SELECT id FROM grants", id, owner, "permission", short=short)
            db.execute("DELETE FROM grants WHERE id = ?", found[:1])

    def pending_count(self) -> int:
        """Return number of pending calls.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            asked = db.execute("SELECT status, expires, asked, host, pid, born FROM approvals WHERE status = 'pending'")
            return sum(_status_now(self.db.leases, *values) == "pending" for values in asked)

    def pulse(self) -> tuple[object, ...]:
        """Return a value that differs after every new call, every decision, and every change of the grants.

        Raises:
            StoreError: the file cannot be used.
        """
        with self.db.transaction() as db:
            newest = db.execute("SELECT max(seq) FROM approvals").fetchone()
            grants = db.execute("SELECT max(seq), count(*) FROM grants").fetchone()
            pending = db.execute(
                "SELECT seq, approved_by FROM approvals WHERE status = 'pending' ORDER BY seq"
            ).fetchall()
            return newest, grants, *pending

    def _find(self, db: Connection, id: str, owner: str | None, *, short: bool = False) -> ApprovalRow:
        return self._decode_call(_find_by_id(db, _CALL, id, owner, "call", short=short))

    def _decode_call(self, values: Sequence[Any], *, as_stored: bool = False) -> ApprovalRow:
        """Decode a row; ``as_stored`` keeps the stored status, even if the call has expired since."""
        fields = dict(zip(_CALL_FIELDS, values, strict=False))
        try:
            fields["arguments"] = msgspec.json.decode(fields["arguments"], type=dict[str, Any])
            fields["questions"] = msgspec.json.decode(fields["questions"], type=tuple[Question, ...])
            fields["edit"] = (
                None if fields["edit"] is None else msgspec.json.decode(fields["edit"], type=dict[str, Any])
            )
            fields["asked_by"] = fields["asked_by"] or ""
            fields["policy"] = msgspec.json.decode(fields["policy"] or "null", type=ApprovalPolicy | None)
            fields["approved_by"] = msgspec.json.decode(fields["approved_by"] or "[]", type=tuple[Approval, ...])
        except (msgspec.DecodeError, TypeError) as error:
            raise StoreError(f"the stored call {fields['id']} is damaged: {error}") from error
        if not as_stored:
            fields["status"] = _status_now(
                self.db.leases, fields["status"], fields["expires"], fields["asked"], *values[-3:]
            )
        return ApprovalRow(**fields)

    def _asked_before(self, db: Connection, row: ApprovalRow) -> ApprovalRow | None:
        """Return the row of the same call of a durable run, if the run has asked about it before."""
        found = db.execute(
            f"""{_CALL} WHERE run_id = ? AND call_id = ? AND attempt = ? AND digest = ? AND host = ''
            AND status != 'cancelled' ORDER BY seq DESC LIMIT 1""",
            (row.run_id, row.call_id, row.attempt, row.digest),
        ).fetchone()
        return None if found is None else self._decode_call(found)

    def _stored(self, ids: Sequence[str]) -> Mapping[str, ApprovalRow]:
        """Return the rows with these ids and their stored status. Callers of :meth:`watch` check for expiry."""
        found: dict[str, ApprovalRow] = {}
        with self.db.transaction() as db:
            for id in ids:
                values = db.execute(f"{_CALL} WHERE id = ?", (id,)).fetchone()
                if values is not None:
                    found[id] = self._decode_call(values, as_stored=True)
        return found

    def _apply(self, db: Connection, grant: GrantRow, now: float) -> None:
        """Approve the pending calls that a new grant covers."""
        for values in db.execute(f"{_CALL} WHERE status = 'pending' AND tool = ?", (grant.tool,)).fetchall():
            row = self._decode_call(values)
            if row.status != "pending" or grant.id not in {found.id for found in _grants_for(db, row)}:
                continue
            if grant.pattern and digest_of([row.tool, row.arguments]) != row.digest:
                continue  # some arguments were not stored, and what stands in their place may match any pattern
            if grant.covers(row, row.arguments):
                _update_decision(db, _approved_by(row, grant, now))

    def _prune(self, db: Connection, now: float) -> None:
        if time.monotonic() < self._pruned + 3600:
            return
        self._pruned = time.monotonic()
        before = now - KEEP_DAYS * 24 * 3600
        db.execute("DELETE FROM approvals WHERE coalesce(decided, expires) < ?", (before,))
        db.execute("DELETE FROM grants WHERE scope = 'session' AND at < ?", (before,))


def _with_approval(row: ApprovalRow, approval: Approval, edit: dict[str, Any] | None, remember: str) -> ApprovalRow:
    """Return a call with one more approval, which the policy of the call allows.

    Raises:
        DecisionRefusedError: the policy does not allow it.
    """
    if row.policy is not None:
        objection = row.objection(approval.person) or (edit is not None and row.objection(approval.person, edit))
        if objection:
            raise DecisionRefusedError("rights", str(objection), row)
        if row.policy.needed(row.tool, row.arguments) > 1 and (edit is not None or remember != "once"):
            text = "this call needs two people, who approve it as it is and once: deny it, and say what to change"
            raise DecisionRefusedError("rights", text, row)
        if edit is not None and row.policy.needed(row.tool, edit) > 1:
            raise DecisionRefusedError("rights", "two people must approve a call with these arguments", row)
        approval = msgspec.structs.replace(approval, person=row.policy.person(approval.person))
    return msgspec.structs.replace(row, approved_by=(*row.approved_by, approval))


def _checked_decision(
    decision: str, digest: str, by: str, message: str, arguments: Any, remember: str, pattern: Any
) -> tuple[dict[str, Any] | None, dict[str, str] | None]:
    """Check the arguments of :meth:`ApprovalStore.decide`; return the new arguments and the pattern."""
    if decision not in _STATUS:
        raise DecisionRefusedError("bad", f"decision must be approve, deny or edit, not {decision!r:.80}")
    if not all(isinstance(text, str) for text in (digest, by, message)) or not by.strip():
        raise DecisionRefusedError(
            "bad", "a decision needs the digest of the call and the name of the decider, as text"
        )
    if len(message) > MAX_MESSAGE:
        raise DecisionRefusedError("bad", f"the message must have at most {MAX_MESSAGE} characters")
    if remember not in _SCOPES:
        raise DecisionRefusedError("bad", f"remember must be once, session or always, not {remember!r:.80}")
    if remember != "once" and decision != "approve":
        raise DecisionRefusedError("bad", "only an approval can be remembered")
    if pattern is not None and remember == "once":
        raise DecisionRefusedError("bad", "a pattern needs remember=session or remember=always")
    if (arguments is not None) != (decision == "edit"):
        raise DecisionRefusedError("bad", "arguments are required for edit, and not allowed for other decisions")
    edit = None
    if arguments is not None:
        if _has_more_values(arguments, MAX_EDIT_VALUES):
            raise DecisionRefusedError("bad", f"the new arguments have more than {MAX_EDIT_VALUES:,} values")
        try:
            edit = thaw(freeze(arguments))
            if problem := json_problem(edit):
                raise ValueError(problem)
        except (TypeError, ValueError, RecursionError) as error:
            raise DecisionRefusedError("bad", f"the new arguments are not a JSON object: {error}") from error
        if not isinstance(edit, dict):
            raise DecisionRefusedError("bad", "the new arguments must be a JSON object")
    return edit, None if pattern is None else _checked_pattern(pattern)


def _has_more_values(value: Any, limit: int) -> bool:
    values, level = 0, [value]
    while level and values <= limit:
        values += len(level)
        inner = [each.values() if isinstance(each, Mapping) else each for each in level if isinstance(each, _NESTED)]
        level = list(islice(chain.from_iterable(inner), limit + 1))
    return values > limit


def _why_not_pending(row: ApprovalRow) -> str:
    reasons = {"expired": "it has expired", "cancelled": "its run has ended"}
    by = f" by {printable(row.by, keep='')}" if row.by else ""
    return f"{row.id} is no longer pending: {reasons.get(row.status, f'it was {row.status}')}{by}"


def _new_grant(row: ApprovalRow, pattern: dict[str, str] | None, now: float) -> GrantRow:
    if row.remember == "session" and not row.session_id:
        raise DecisionRefusedError("bad", "the call has no session: remember it once or always")
    if pattern is not None and (problem := _mismatch(pattern, row.arguments)):
        raise DecisionRefusedError("bad", f"the pattern does not cover this call: {problem}", row)
    return GrantRow(
        id=f"grant_{secrets.token_hex(16)}",
        scope=row.remember,
        session_id=row.session_id,
        agent=row.agent,
        owner=row.owner,
        tool=row.tool,
        pattern=scrub(pattern or {}),
        arguments=None if pattern else row.arguments,
        digest=row.digest,
        hooks=row.hooks,
        by=row.by,
        at=now,
        person=row.approved_by[-1].person,
    )


# Tables.

_TABLES = (
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
_POLICIES = (
    "ALTER TABLE approvals ADD COLUMN asked_by TEXT",
    "ALTER TABLE approvals ADD COLUMN policy TEXT",
    "ALTER TABLE approvals ADD COLUMN approved_by TEXT",
    "ALTER TABLE grants ADD COLUMN person TEXT",
)
SCHEMA = Schema(
    "approvals",
    contents="approvals",
    application_id=0x486B4C41,
    version=2,
    statements=(*_TABLES, *_POLICIES),
    upgrades={1: _POLICIES},
    min_writer=2,  # a program of the first version would let everybody approve
)
_CALL_FIELDS = ApprovalRow.__struct_fields__
_CALL = f"SELECT {', '.join(_CALL_FIELDS)}, host, pid, born FROM approvals"
_GRANT = f"SELECT {', '.join(GrantRow.__struct_fields__)} FROM grants"


def _grants_for(db: Connection, row: ApprovalRow) -> list[GrantRow]:
    """Return grants for the tool, owner, agent and session of a call, oldest first."""
    found = db.execute(
        f"{_GRANT} WHERE tool = ? AND owner = ? AND agent = ? AND (scope = 'always' OR "
        "scope = 'session' AND session_id = ?) ORDER BY seq",
        (row.tool, row.owner, row.agent, row.session_id),
    )
    return [_decode_grant(values) for values in found]


def _approved_by(row: ApprovalRow, grant: GrantRow, now: float) -> ApprovalRow:
    return msgspec.structs.replace(row, status="approved", decided=now, by=f"grant {grant.id} of {grant.by}")


def _find_by_id(db: Connection, select: str, id: str, owner: str | None, what: str, *, short: bool) -> tuple[Any, ...]:
    """Return the values of the only row with this id and owner.

    Raises:
        NotFoundError: there is no such row.
        StoreError: there is more than one.
    """
    id = storable(id) if isinstance(id, str) else ""
    where, values = "id = ?", list[Any]([id])
    if short and id:
        start = len("grant_" if what == "permission" else "appr_") + 1
        where, values = f"? IN (substr(id, 1, ?), substr(id, {start}, ?))", [id, len(id), len(id)]
    query = f"{select} WHERE {where} AND coalesce(?, owner) = owner ORDER BY seq LIMIT 2"
    found = db.execute(query, (*values, _storable_owner(owner))).fetchall()
    if not found:
        command = "hookline approvals grants" if what == "permission" else "hookline approvals --all"
        raise NotFoundError(f"there is no {what} {id!r}: {command} lists the ids")
    if len(found) > 1:
        raise StoreError(f"more than one {what} begins with {id!r}: give more of its id")
    return tuple(found[0])


def _storable_owner(owner: str | None) -> str | None:
    return None if owner is None else storable(owner)


def _storable_questions(questions: Sequence[Question]) -> tuple[Question, ...]:
    return tuple(Question(storable(q.text), storable(q.hook), storable(q.reason)) for q in questions)


def _encode_call(row: ApprovalRow) -> tuple[Any, ...]:
    values = {name: getattr(row, name) for name in _CALL_FIELDS}
    values["arguments"] = json_text(row.arguments)
    values["questions"] = json_text(row.questions)
    values["edit"] = None if row.edit is None else json_text(row.edit)
    values["policy"] = None if row.policy is None else msgspec.json.encode(row.policy).decode()
    values["approved_by"] = json_text(row.approved_by)
    return tuple(values.values())


def _status_now(
    leases: Leases, status: str, expires: float, asked: float, host: str, pid: int, born: float | None
) -> str:
    """Return the current status of a call. A process that has ended cannot store that its calls expired."""
    if status != "pending":
        return status
    if expires <= time.time():
        return "expired"
    if not host:  # of a durable run, which needs no process to wait
        return "pending"
    return "pending" if leases.is_held(host, pid, asked, born) else "cancelled"


def _update_decision(db: Connection, row: ApprovalRow) -> None:
    edit = None if row.edit is None else json_text(row.edit)
    db.execute(
        """UPDATE approvals SET status = ?, decided = ?, by = ?, message = ?, edit = ?, remember = ?, approved_by = ?
        WHERE id = ?""",
        (row.status, row.decided, row.by, row.message, edit, row.remember, json_text(row.approved_by), row.id),
    )


def _encode_grant(grant: GrantRow) -> tuple[Any, ...]:
    values = {name: getattr(grant, name) for name in GrantRow.__struct_fields__}
    values |= {name: json_text(values[name]) for name in ("pattern", "arguments", "hooks")}
    return tuple(values.values())


def _decode_grant(values: Sequence[Any]) -> GrantRow:
    fields: dict[str, Any] = dict(zip(GrantRow.__struct_fields__, values, strict=True))
    fields |= {name: msgspec.json.decode(fields[name]) for name in ("pattern", "arguments", "hooks")}
    fields["hooks"] = tuple(fields["hooks"])
    fields["person"] = fields["person"] or ""
    return GrantRow(**fields)


# Waiting for decisions.

Callback = Callable[["ApprovalRow | Exception"], object]
_watchers: weakref.WeakSet[_Watcher] = weakref.WeakSet()


class _Watcher:
    """Poll the file for decisions, with one thread for all callers that wait in this process.

    The thread runs only while a caller waits. A locked file is read again later; every other error goes to all callers.

    Args:
        path: path of the file. A decision of this process wakes all watchers of the same path.
        read: returns the stored rows with the given ids.
        is_shared: whether decisions are announced, so that polling is only for lost announcements.
    """

    def __init__(
        self, path: str, read: Callable[[Sequence[str]], Mapping[str, ApprovalRow]], *, is_shared: bool
    ) -> None:
        self.path = path
        self._read = read
        self._is_shared = is_shared
        self.reset()
        _watchers.add(self)

    def reset(self) -> None:
        """Initialize the state of this process. A forked child has neither the thread nor the callers of its parent."""
        self._lock = threading.Lock()
        self._wake = threading.Event()
        self._waiting: dict[object, tuple[str, Callback]] = {}
        self._thread: threading.Thread | None = None

    @contextmanager
    def watch(self, id: str, callback: Callback) -> Iterator[None]:
        """See :meth:`ApprovalStore.watch`."""
        key = object()
        with self._lock:
            if self._thread is None:
                thread = threading.Thread(target=self._poll, name="hookline-approvals", daemon=True)
                thread.start()  # if no thread can be started, the next caller tries again
                self._thread = thread
            self._waiting[key] = id, callback
        self.wake()  # the call may have been decided already
        try:
            yield
        finally:
            with self._lock:
                self._waiting.pop(key, None)
                if not self._waiting:
                    self.wake()

    def wake(self) -> None:
        """Poll at once."""
        self._wake.set()

    def _poll(self) -> None:
        locked = False
        while True:
            self._wake.wait(WATCHED_POLL_SECONDS if self._is_shared else POLL_SECONDS)
            self._wake.clear()
            with self._lock:
                waiting = dict(self._waiting)
                if not waiting:
                    self._thread = None
                    return
            found: Mapping[str, Any] = {}
            problem: Exception = StoreError(f"the call is no longer in {self.path}: the file was deleted or replaced")
            try:
                found = self._read([id for id, _ in waiting.values()])
            except LockedFileError as error:
                if not locked:
                    log.warning("cannot read decisions about pending calls: %s", error)
                locked = True
                continue
            except Exception as error:  # noqa: BLE001 - the callers get it
                problem = error
            locked = False
            for key, (id, callback) in waiting.items():
                outcome = found.get(id, problem)
                if not isinstance(outcome, ApprovalRow) or outcome.status != "pending":
                    with self._lock:
                        self._waiting.pop(key, None)
                    try:
                        callback(outcome)
                    except Exception:
                        log.exception("the callback for the decision about %s failed", id)


def _wake_watchers(path: str) -> None:
    for watcher in list(_watchers):
        if watcher.path == path:
            watcher.wake()


def _after_fork() -> None:
    for watcher in list(_watchers):
        watcher.reset()


after_fork_in_child(_after_fork)
