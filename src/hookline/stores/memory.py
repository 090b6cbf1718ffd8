"""Long-term memory: facts with their history, preferences, and episodes."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import isfinite
from typing import Any

import msgspec

from .._base.frozen import EMPTY, Frozen, freeze, json_text, scrub
from .._base.text import is_number
from ..tools._tool import Tool
from .errors import StoreError
from .sqlite import Database

_MAX_LINE = 500


class Fact(Frozen, frozen=True):
    """Something that is, or was, so: from ``valid_from`` until just before ``valid_to`` (Unix time)."""

    key: str
    value: Any
    scope: str = ""
    source: str = ""
    valid_from: float = 0.0
    valid_to: float | None = None
    recorded_at: float = 0.0
    seq: int = 0

    def __post_init__(self) -> None:
        if type(self.value) is not str:
            self._seal("value", freeze)


class Episode(Frozen, frozen=True):
    """Something that happened."""

    kind: str
    summary: str
    outcome: str = "ok"
    data: Any = EMPTY
    scope: str = ""
    run_id: str = ""
    session_id: str = ""
    agent: str = ""
    recorded_at: float = 0.0
    seq: int = 0

    def __post_init__(self) -> None:
        self._seal("data", freeze)


def text_of(name: str, value: str, *, empty: bool = True) -> str:
    """A text that can be kept: without halves of characters.

    Raises:
        TypeError: it is no text.
        ValueError: it is empty, and may not be.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} is text, not {type(value).__name__}")
    if not (empty or value.strip()):
        raise ValueError(f"{name} is empty: name what it is about")
    return str(scrub(value))


def json_of(value: Any) -> str:
    """JSON text that is the same for equal values.

    Raises:
        TypeError: it is not JSON.
        ValueError: nor is a number in it.
    """
    given = scrub(freeze(value))
    text = msgspec.json.encode(given, order="sorted")
    if msgspec.json.decode(text) != given:
        raise ValueError("NaN and infinite numbers are not JSON: leave them out")
    return text.decode()


def moment_of(name: str, value: float | None) -> float | None:
    """A Unix time, if one was given.

    Raises:
        ValueError: it is no time.
    """
    if value is None:
        return None
    if not (is_number(value) and isfinite(value)):
        raise ValueError(f"{name} is Unix time in seconds, not {value!r}")
    return float(value)


def limit_of(name: str, value: int | None) -> int:
    """A limit as SQLite wants it: -1 for none.

    Raises:
        ValueError: it is no limit.
    """
    if value is None:
        return -1
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} is a whole number from 0 on, or None for no limit, not {value!r}")
    return min(value, 1 << 60)


_SCHEMA = (
    "CREATE TABLE clock (latest REAL NOT NULL)",
    "INSERT INTO clock VALUES (0)",
    """CREATE TABLE facts (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        key TEXT NOT NULL, value TEXT NOT NULL, scope TEXT NOT NULL, source TEXT NOT NULL,
        valid_from REAL NOT NULL, valid_to REAL, recorded_at REAL NOT NULL,
        CHECK (valid_to IS NULL OR valid_to >= valid_from)
    )""",
    "CREATE INDEX facts_by_key ON facts (scope, key, seq)",
    """CREATE TABLE preferences (
        scope TEXT NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, set_at REAL NOT NULL, PRIMARY KEY (scope, key)
    )""",
    """CREATE TABLE episodes (
        seq INTEGER PRIMARY KEY AUTOINCREMENT,
        kind TEXT NOT NULL, summary TEXT NOT NULL, outcome TEXT NOT NULL, data TEXT NOT NULL, scope TEXT NOT NULL,
        run_id TEXT NOT NULL, session_id TEXT NOT NULL, agent TEXT NOT NULL, recorded_at REAL NOT NULL
    )""",
    "CREATE INDEX episodes_by_kind ON episodes (kind, seq)",
    "CREATE INDEX episodes_by_scope ON episodes (scope, seq)",
)
_FACT = "SELECT key, value, scope, source, valid_from, valid_to, recorded_at, seq FROM facts f"
_VALID = "{0}.valid_from <= :at AND ({0}.valid_to IS NULL OR {0}.valid_to > :at)"
_NEWEST = (  # what was said last of a key holds, where several would be valid
    f"{_VALID.format('f')} AND NOT EXISTS (SELECT 1 FROM facts g WHERE g.scope = f.scope AND g.key = f.key "
    f"AND g.seq > f.seq AND {_VALID.format('g')})"
)
_EPISODE = "SELECT kind, summary, outcome, data, scope, run_id, session_id, agent, recorded_at, seq FROM episodes"


class MemoryStore:
    """Facts, preferences and episodes in one SQLite file; a toolset, too (``remember``, ``recall``, ``forget``).

    Threads, programs and any number of runs may share a file. No fact is ever overwritten: one that no longer holds
    has an end, and only :meth:`erase` takes it away. Its time never runs backwards, whatever the clock of the machine
    does. Each scope has facts, preferences and episodes of its own.

    Args:
        path: the file, made when it is first needed; ``:memory:`` forgets with the program.

    Raises:
        TypeError: that is no path.
    """

    def __init__(self, path: str | os.PathLike[str] = ":memory:") -> None:
        self._db = Database(path, contents="memories", application_id=0x486B4C4D, version=1, schema=_SCHEMA)

    @property
    def path(self) -> str:
        """The file."""
        return self._db.path

    def __repr__(self) -> str:
        return f"MemoryStore({self.path!r})"

    # Facts.

    def add_fact(
        self,
        key: str,
        value: Any,
        *,
        scope: str = "",
        source: str = "",
        valid_from: float | None = None,
        valid_to: float | None = None,
    ) -> Fact:
        """Record that ``key`` is ``value``; what was said of it before ends where this begins.

        The same value again changes nothing. A fact whose time is over is history: it ends nothing.

        Args:
            key: what it is about.
            value: JSON.
            scope: whose it is, or where it holds; each scope has facts of its own.
            source: who says so.
            valid_from: since when, in Unix time; now if left out.
            valid_to: until when; until further notice if left out.

        Raises:
            TypeError: a value that is not JSON, or a key that is not text.
            ValueError: an empty key, or an end before the beginning.
            StoreError: the file cannot be used.
        """
        key, scope, source = text_of("key", key, empty=False), text_of("scope", scope), text_of("source", source)
        value, begin, end = json_of(value), moment_of("valid_from", valid_from), moment_of("valid_to", valid_to)
        with self._db.transaction(write=True) as db:
            now = _tick(db)
            begin = now if begin is None else begin
            if end is not None and end < begin:
                raise ValueError(f"valid_to ({end}) is before valid_from ({begin}): a fact cannot end before it begins")
            known = self._fact(db, key, scope, begin)
            if known is not None and json_of(known.value) == value and end in (None, known.valid_to):
                return known
            if end is None or end > now:
                db.execute(
                    "UPDATE facts SET valid_to = max(valid_from, :begin) WHERE scope = :scope AND key = :key "
                    "AND (valid_to IS NULL OR valid_to > :begin) AND (:end IS NULL OR valid_from < :end)",
                    {"scope": scope, "key": key, "begin": begin, "end": end},
                )
            made = db.execute(
                "INSERT INTO facts (key, value, scope, source, valid_from, valid_to, recorded_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (key, value, scope, source, begin, end, now),
            )
            return Fact(key, self._value(value), scope, source, begin, end, now, made.lastrowid or 0)

    def fact(self, key: str, *, scope: str = "", at: float | None = None) -> Fact | None:
        """What is known of ``key`` at a time, now if left out.

        Raises:
            StoreError: the file cannot be used.
        """
        at = moment_of("at", at)
        with self._db.transaction() as db:
            return self._fact(db, text_of("key", key), text_of("scope", scope), _now(db) if at is None else at)

    def facts(self, *, scope: str | None = None, at: float | None = None, limit: int | None = None) -> Sequence[Fact]:
        """The facts that are valid at a time, now if left out: the one said last first.

        Args:
            scope: of this scope only; of all if left out.
            at: Unix time.
            limit: how many at most.

        Raises:
            StoreError: the file cannot be used.
        """
        at, limit = moment_of("at", at), limit_of("limit", limit)
        where, scope = ("", "") if scope is None else (" AND f.scope = :scope", text_of("scope", scope))
        with self._db.transaction() as db:
            rows = db.execute(
                f"{_FACT} WHERE {_NEWEST}{where} ORDER BY seq DESC LIMIT :limit",
                {"at": _now(db) if at is None else at, "scope": scope, "limit": limit},
            )
            return [self._made(row) for row in rows]

    def history(self, key: str, *, scope: str = "") -> Sequence[Fact]:
        """Everything that was ever said of ``key``, in the order in which it was said.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            found = (text_of("scope", scope), text_of("key", key))
            return [self._made(row) for row in db.execute(f"{_FACT} WHERE scope = ? AND key = ? ORDER BY seq", found)]

    def forget_fact(self, key: str, *, scope: str = "") -> bool:
        """End whatever is valid of ``key`` now or later; whether there was anything. Its history stays (:meth:`erase`).

        Raises:
            StoreError: the file cannot be used.
        """
        key, scope = text_of("key", key), text_of("scope", scope)
        with self._db.transaction(write=True) as db:
            ended = db.execute(
                "UPDATE facts SET valid_to = max(valid_from, :now) WHERE scope = :scope AND key = :key "
                "AND (valid_to IS NULL OR valid_to > max(valid_from, :now))",
                {"scope": scope, "key": key, "now": _tick(db)},
            )
            return ended.rowcount > 0

    # Preferences.

    def set_preference(self, key: str, value: Any, *, scope: str = "") -> None:
        """Keep what the user prefers, as JSON, in the place of what was kept before.

        Args:
            key: what it is about.
            value: JSON.
            scope: whose it is; each scope has preferences of its own.

        Raises:
            TypeError: a value that is not JSON.
            StoreError: the file cannot be used.
        """
        key, value, scope = text_of("key", key, empty=False), json_of(value), text_of("scope", scope)
        with self._db.transaction(write=True) as db:
            db.execute(
                "INSERT OR REPLACE INTO preferences (scope, key, value, set_at) VALUES (?, ?, ?, ?)",
                (scope, key, value, _tick(db)),
            )

    def preferences(self, *, scope: str | None = None) -> Mapping[str, Any]:
        """Preferences by key.

        Args:
            scope: of this scope only; of all if left out, where of a key that several have, one is given.

        Raises:
            StoreError: the file cannot be used.
        """
        found: Mapping[str, Any] = freeze({key: value for _, key, value in self._preferences(scope)})
        return found

    def forget_preference(self, key: str, *, scope: str = "") -> bool:
        """Forget a preference; whether there was one.

        Raises:
            StoreError: the file cannot be used.
        """
        given = text_of("scope", scope), text_of("key", key)
        with self._db.transaction(write=True) as db:
            return db.execute("DELETE FROM preferences WHERE scope = ? AND key = ?", given).rowcount > 0

    # Episodes.

    def add_episode(
        self,
        kind: str,
        summary: str,
        *,
        outcome: str = "ok",
        data: Mapping[str, Any] | None = None,
        scope: str = "",
        run_id: str = "",
        session_id: str = "",
        agent: str = "",
    ) -> Episode:
        """Record that something happened.

        Args:
            kind: what sort of thing, such as ``"tool"``.
            summary: in a sentence.
            outcome: how it ended.
            data: more about it, as a JSON object.
            scope: whose it is; each scope has episodes of its own.
            run_id: the run it happened in.
            session_id: the conversation.
            agent: who did it.

        Raises:
            TypeError: data that is not JSON.
            StoreError: the file cannot be used.
        """
        given = (text_of("kind", kind, empty=False), text_of("summary", summary), text_of("outcome", outcome))
        ids = (
            text_of("scope", scope), text_of("run_id", run_id), text_of("session_id", session_id),
            text_of("agent", agent),
        )  # fmt: skip
        text = json_of({} if data is None else data)
        with self._db.transaction(write=True) as db:
            now = _tick(db)
            made = db.execute(
                "INSERT INTO episodes (kind, summary, outcome, data, scope, run_id, session_id, agent, recorded_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*given, text, *ids, now),
            )
            return Episode(*given, self._value(text), *ids, now, made.lastrowid or 0)

    def episodes(
        self, limit: int | None = 10, *, kind: str | None = None, scope: str | None = None
    ) -> Sequence[Episode]:
        """What happened, the newest first.

        Args:
            limit: how many at most; ``None`` for all.
            kind: of this kind only.
            scope: of this scope only; of all if left out.

        Raises:
            StoreError: the file cannot be used.
        """
        wanted = {name: text_of(name, value) for name, value in (("kind", kind), ("scope", scope)) if value is not None}
        condition = " AND ".join(f"{name} = :{name}" for name in wanted) or "TRUE"
        with self._db.transaction() as db:
            rows = db.execute(
                f"{_EPISODE} WHERE {condition} ORDER BY seq DESC LIMIT :limit",
                {**wanted, "limit": limit_of("limit", limit)},
            )
            return [
                Episode(kind, summary, outcome, self._value(data), *more)
                for kind, summary, outcome, data, *more in rows
            ]

    # For good.

    def erase(self, scope: str, key: str | None = None) -> int:
        """Delete what is kept in a scope for good: facts with all their history, preferences and episodes.

        The file is written anew, so that nothing of it is left in there either. That takes a moment if it is large.

        Args:
            scope: whose; ``""`` is what has none.
            key: only the fact and the preference of this key, and no episodes.

        Returns:
            How many facts, old ones too, preferences and episodes there were.

        Raises:
            StoreError: the file cannot be used, or somebody reads it all the while: then try again.
        """
        given, where, tables = [text_of("scope", scope)], "scope = ?", ["facts", "preferences"]
        if key is None:
            tables.append("episodes")
        else:
            given, where = [*given, text_of("key", key)], "scope = ? AND key = ?"
        with self._db.transaction(write=True) as db:
            erased = sum(db.execute(f"DELETE FROM {table} WHERE {where}", given).rowcount for table in tables)
        self._db.compact()
        return erased

    # For models.

    def render(self, *, max_facts: int = 20, max_episodes: int = 5, scope: str | None = None) -> str:
        """Facts, preferences and the latest episodes as text for a prompt, one line each; empty if there are none.

        Args:
            max_facts: how many facts, the ones said last.
            max_episodes: how many episodes.
            scope: of this scope only; of all if left out, and those of a scope say which.

        Raises:
            StoreError: the file cannot be used.
        """
        facts = [
            fact_line(fact.key, fact.value, fact.scope, scope) for fact in self.facts(scope=scope, limit=max_facts)
        ]
        happened = self.episodes(max_episodes, scope=scope)
        episodes = [fact_line(f"{e.kind} ({e.outcome})", e.summary, e.scope, scope) for e in happened]
        parts = {
            "What you know:": facts[::-1],
            "What the user prefers:": [fact_line(key, value, of, scope) for of, key, value in self._preferences(scope)],
            "What happened lately, the newest last:": episodes[::-1],
        }
        return "\n\n".join("\n".join([title, *map(bullet, items)]) for title, items in parts.items() if items)

    def tools(self) -> Sequence[Tool]:
        """``remember``, ``recall`` and ``forget`` for a model; its facts have no scope."""
        return self._tools

    @cached_property
    def _tools(self) -> tuple[Tool, ...]:
        from .._toolbox.memory import memory_tools  # imported here because it is in a layer above

        return memory_tools(self)

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _fact(self, db: sqlite3.Connection, key: str, scope: str, at: float) -> Fact | None:
        row = db.execute(
            f"{_FACT} WHERE scope = :scope AND key = :key AND {_VALID.format('f')} ORDER BY seq DESC LIMIT 1",
            {"scope": scope, "key": key, "at": at},
        ).fetchone()
        return None if row is None else self._made(row)

    def _preferences(self, scope: str | None) -> Sequence[tuple[str, str, Any]]:
        condition, given = ("TRUE", ()) if scope is None else ("scope = ?", (text_of("scope", scope),))
        with self._db.transaction() as db:
            rows = db.execute(f"SELECT scope, key, value FROM preferences WHERE {condition} ORDER BY key, scope", given)
            return [(scope, key, self._value(value)) for scope, key, value in rows]

    def _made(self, row: Sequence[Any]) -> Fact:
        return Fact(row[0], self._value(row[1]), *row[2:])

    def _value(self, text: str) -> Any:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, TypeError, RecursionError) as error:
            raise StoreError(f"{self.path} holds a value that is not JSON ({error}): move the file away") from error


def _now(db: sqlite3.Connection) -> float:
    """The time; never before anything that was recorded."""
    (latest,) = db.execute("SELECT latest FROM clock").fetchone()
    return max(time.time(), float(latest))


def _tick(db: sqlite3.Connection) -> float:
    """The time, for something to be recorded now."""
    now = _now(db)
    db.execute("UPDATE clock SET latest = ?", (now,))
    return now


def fact_line(key: str, value: Any, scope: str = "", only_scope: str | None = None) -> str:
    """Format an entry as ``key: value``. The scope comes first unless all entries are of ``only_scope``."""
    prefix = f"[{scope}] " if scope and only_scope is None else ""
    return f"{prefix}{key}: {value if isinstance(value, str) else json_text(value)}"


def bullet(text: str) -> str:
    """Format an entry as one line of a list, cut if it is long."""
    flat = " ".join(text.split())
    return f"- {flat}" if len(flat) <= _MAX_LINE else f"- {flat[:_MAX_LINE]}…"
