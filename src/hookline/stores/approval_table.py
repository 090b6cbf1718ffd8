"""The tables of approvals and permissions: what their rows are in a SQLite file."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Sequence
from socket import gethostname
from typing import Any

import msgspec

from .._base.frozen import json_text
from .._kernel.payloads import Question
from .approval_rows import ApprovalRow, GrantRow
from .errors import NotFoundError, StoreError
from .programs import is_running
from .sqlite import storable

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
