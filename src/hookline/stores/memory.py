"""Long-term memory: facts with their history, preferences, and episodes."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from functools import cached_property
from math import inf, isfinite
from typing import Any

import msgspec

from .._base.frozen import EMPTY, Frozen, freeze, has_non_finite, json_text, scrub
from .._base.text import is_number
from ..tools._tool import Tool
from .database import open_database
from .errors import StoreError
from .sql import Connection, Schema, upsert

_MAX_RECALLED = 50

_MAX_LINE = 500
_NO_LIMIT = 1 << 60


class Fact(Frozen, frozen=True):
    """A fact that is valid from the Unix time ``valid_from`` until just before ``valid_to``."""

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
    """An event that was recorded, such as a tool call."""

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


def _text(name: str, value: str, *, empty: bool = True) -> str:
    """Return a text without lone surrogates.

    Raises:
        TypeError: the value is not text.
        ValueError: the text is empty, which ``empty`` does not allow.
    """
    if not isinstance(value, str):
        raise TypeError(f"{name} must be text, not {type(value).__name__}")
    if not (empty or value.strip()):
        raise ValueError(f"{name} is empty: give a name")
    return str(scrub(value))


def _encode(value: Any) -> str:
    """Encode a value as JSON, which is equal for equal values.

    Raises:
        TypeError: the value is not JSON.
        ValueError: the value contains a number that is not JSON.
    """
    given = freeze(value)
    if has_non_finite(given):
        raise ValueError("NaN and infinite numbers are not JSON: leave them out")
    return msgspec.json.encode(scrub(given), order="sorted").decode()


def _time(name: str, value: float | None) -> float | None:
    """Return a Unix time, or ``None``.

    Raises:
        ValueError: the value is not a time.
    """
    if value is None:
        return None
    if not (is_number(value) and isfinite(value)):
        raise ValueError(f"{name} must be a Unix time in seconds, not {value!r}")
    return float(value)


def _limit(name: str, value: int | None) -> int:
    """Return a limit for SQL.

    Raises:
        ValueError: the value is not a limit.
    """
    if value is None:
        return _NO_LIMIT
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"{name} must be a whole number from 0, or None for no limit, not {value!r}")
    return min(value, _NO_LIMIT)


_TABLES = (
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
SCHEMA = Schema("memory", contents="memories", application_id=0x486B4C4D, version=1, statements=_TABLES)
_FACT = "SELECT key, value, scope, source, valid_from, valid_to, recorded_at, seq FROM facts f"
_VALID = "{0}.valid_from <= :at AND ({0}.valid_to IS NULL OR {0}.valid_to > :at)"
_LATER = "CASE WHEN valid_from > :begin THEN valid_from ELSE :begin END"
_PREFERENCE_ROW = upsert("preferences", ("scope", "key", "value", "set_at"), ("scope", "key"))
_NEWEST = (  # if several facts of a key are valid, the last recorded one wins
    f"{_VALID.format('f')} AND NOT EXISTS (SELECT 1 FROM facts g WHERE g.scope = f.scope AND g.key = f.key "
    f"AND g.seq > f.seq AND {_VALID.format('g')})"
)
_EPISODE = "SELECT kind, summary, outcome, data, scope, run_id, session_id, agent, recorded_at, seq FROM episodes"


class MemoryStore:
    """Store facts, preferences and episodes in one SQLite file.

    It is also a toolset with the tools ``remember``, ``recall`` and ``forget``. Threads, processes and any number of
    runs may share a file. Facts are never overwritten: a fact that is no longer valid gets an end, and only
    :meth:`erase` deletes it. Recorded times never decrease, even if the clock of the machine does. Each scope has its
    own facts, preferences and episodes.

    Args:
        path: the file, created when first used; ``:memory:`` keeps everything in memory; or the
            address of a PostgreSQL database.

    Raises:
        TypeError: ``path`` is not a path.

    Example::

        memory = MemoryStore("memory.db")
        memory.add_fact("home", "Oslo")
        assert memory.fact("home").value == "Oslo"
        agent = Agent("helper", llm=model, tools=[memory])
    """

    def __init__(self, path: str | os.PathLike[str] = ":memory:") -> None:
        self._db = open_database(path, SCHEMA)

    @property
    def path(self) -> str:
        """Path of the file."""
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
        """Record that ``key`` is ``value``. Earlier facts about the key end where this one begins.

        Recording the current value again changes nothing. A fact that has already ended does not end other facts.

        Args:
            key: subject of the fact.
            value: JSON.
            scope: owner or area of the fact.
            source: origin of the fact.
            valid_from: Unix time at which it becomes valid; now by default.
            valid_to: Unix time at which it ends; by default it has no end.

        Raises:
            TypeError: the value is not JSON, or the key is not text.
            ValueError: the key is empty, or the end is before the beginning.
            StoreError: the file cannot be used.
        """
        key, scope, source = (
            _text("key", key, empty=False),
            _text("scope", scope),
            _text("source", source),
        )
        value, begin, end = _encode(value), _time("valid_from", valid_from), _time("valid_to", valid_to)
        with self._db.transaction(write=True) as db:
            now = _tick(db)
            begin = now if begin is None else begin
            if end is not None and end < begin:
                raise ValueError(f"valid_to ({end}) is before valid_from ({begin}): a fact cannot end before it begins")
            known = self._fact(db, key, scope, begin)
            if known is not None and _encode(known.value) == value and end in (None, known.valid_to):
                return known
            if end is None or end > now:
                db.execute(
                    f"UPDATE facts SET valid_to = {_LATER} WHERE scope = :scope AND key = :key "
                    "AND (valid_to IS NULL OR valid_to > :begin) AND valid_from < :end",
                    {"scope": scope, "key": key, "begin": begin, "end": inf if end is None else end},
                )
            (seq,) = db.execute(
                "INSERT INTO facts (key, value, scope, source, valid_from, valid_to, recorded_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?) RETURNING seq",
                (key, value, scope, source, begin, end, now),
            ).fetchone()
            return Fact(key, self._decode(value), scope, source, begin, end, now, seq)

    def fact(self, key: str, *, scope: str = "", at: float | None = None) -> Fact | None:
        """Return the fact about ``key`` that is valid at the Unix time ``at``, now by default.

        Raises:
            StoreError: the file cannot be used.
        """
        at = _time("at", at)
        with self._db.transaction() as db:
            return self._fact(db, _text("key", key), _text("scope", scope), _now(db) if at is None else at)

    def facts(self, *, scope: str | None = None, at: float | None = None, limit: int | None = None) -> Sequence[Fact]:
        """Return the facts that are valid at a time, the last recorded one first.

        Args:
            scope: only facts of this scope; by default of all scopes.
            at: Unix time; now by default.
            limit: maximum number of facts.

        Raises:
            StoreError: the file cannot be used.
        """
        at, limit = _time("at", at), _limit("limit", limit)
        where, scope = ("", "") if scope is None else (" AND f.scope = :scope", _text("scope", scope))
        with self._db.transaction() as db:
            rows = db.execute(
                f"{_FACT} WHERE {_NEWEST}{where} ORDER BY seq DESC LIMIT :limit",
                {"at": _now(db) if at is None else at, "scope": scope, "limit": limit},
            )
            return [self._decode_fact(row) for row in rows]

    def history(self, key: str, *, scope: str = "") -> Sequence[Fact]:
        """Return all facts ever recorded about ``key``, in the order of recording.

        Raises:
            StoreError: the file cannot be used.
        """
        with self._db.transaction() as db:
            found = (_text("scope", scope), _text("key", key))
            return [
                self._decode_fact(row) for row in db.execute(f"{_FACT} WHERE scope = ? AND key = ? ORDER BY seq", found)
            ]

    def forget_fact(self, key: str, *, scope: str = "") -> bool:
        """End all facts about ``key`` that are valid now or later; return whether there were any.

        Their history stays; :meth:`erase` deletes it.

        Raises:
            StoreError: the file cannot be used.
        """
        key, scope = _text("key", key), _text("scope", scope)
        with self._db.transaction(write=True) as db:
            ended = db.execute(
                f"UPDATE facts SET valid_to = {_LATER} WHERE scope = :scope AND key = :key "
                f"AND (valid_to IS NULL OR valid_to > {_LATER})",
                {"scope": scope, "key": key, "begin": _tick(db)},
            )
            return ended.rowcount > 0

    # Preferences.

    def set_preference(self, key: str, value: Any, *, scope: str = "") -> None:
        """Store a preference of the user, replacing an earlier one with the same key.

        Args:
            key: subject of the preference.
            value: JSON.
            scope: owner of the preference.

        Raises:
            TypeError: the value is not JSON.
            StoreError: the file cannot be used.
        """
        key, value, scope = _text("key", key, empty=False), _encode(value), _text("scope", scope)
        with self._db.transaction(write=True) as db:
            db.execute(
                _PREFERENCE_ROW,
                (scope, key, value, _tick(db)),
            )

    def preferences(self, *, scope: str | None = None) -> Mapping[str, Any]:
        """Return preferences by key.

        Args:
            scope: only preferences of this scope; by default of all scopes, with one value per key.

        Raises:
            StoreError: the file cannot be used.
        """
        found: Mapping[str, Any] = freeze({key: value for _, key, value in self._preferences(scope)})
        return found

    def forget_preference(self, key: str, *, scope: str = "") -> bool:
        """Delete a preference; return whether it existed.

        Raises:
            StoreError: the file cannot be used.
        """
        given = _text("scope", scope), _text("key", key)
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
        """Record an event.

        Args:
            kind: kind of event, such as ``"tool"``.
            summary: description in one sentence.
            outcome: result.
            data: details as a JSON object.
            scope: owner of the episode.
            run_id: run in which it happened.
            session_id: session in which it happened.
            agent: agent that was involved.

        Raises:
            TypeError: ``data`` is not JSON.
            StoreError: the file cannot be used.
        """
        given = (
            _text("kind", kind, empty=False),
            _text("summary", summary),
            _text("outcome", outcome),
        )
        places = {"scope": scope, "run_id": run_id, "session_id": session_id, "agent": agent}
        ids = {name: _text(name, value) for name, value in places.items()}
        text = _encode({} if data is None else data)
        with self._db.transaction(write=True) as db:
            now = _tick(db)
            (seq,) = db.execute(
                "INSERT INTO episodes (kind, summary, outcome, data, scope, run_id, session_id, agent, recorded_at) "
                "VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?) RETURNING seq",
                (*given, text, *ids.values(), now),
            ).fetchone()
            return Episode(*given, self._decode(text), **ids, recorded_at=now, seq=seq)

    def episodes(
        self, limit: int | None = 10, *, kind: str | None = None, scope: str | None = None
    ) -> Sequence[Episode]:
        """Return episodes, newest first.

        Args:
            limit: maximum number of episodes; ``None`` for all.
            kind: only episodes of this kind.
            scope: only episodes of this scope; by default of all scopes.

        Raises:
            StoreError: the file cannot be used.
        """
        wanted = {name: _text(name, value) for name, value in (("kind", kind), ("scope", scope)) if value is not None}
        condition = " AND ".join(f"{name} = :{name}" for name in wanted) or "TRUE"
        with self._db.transaction() as db:
            rows = db.execute(
                f"{_EPISODE} WHERE {condition} ORDER BY seq DESC LIMIT :limit",
                {**wanted, "limit": _limit("limit", limit)},
            )
            return [
                Episode(kind, summary, outcome, self._decode(data), *more)
                for kind, summary, outcome, data, *more in rows
            ]

    # Deletion.

    def erase(self, scope: str, key: str | None = None) -> int:
        """Delete the facts of a scope with all their history, its preferences and its episodes.

        The file is rewritten, so that it no longer contains the deleted bytes. That takes a while for a large file.

        Args:
            scope: the scope; ``""`` for entries without a scope.
            key: delete only the facts and the preference with this key, and no episodes.

        Returns:
            The number of deleted facts, including ended ones, preferences and episodes.

        Raises:
            StoreError: the file cannot be used, or another connection kept reading it; in that case, try again.
        """
        given, where, tables = [_text("scope", scope)], "scope = ?", ["facts", "preferences"]
        if key is None:
            tables.append("episodes")
        else:
            given, where = [*given, _text("key", key)], "scope = ? AND key = ?"
        with self._db.transaction(write=True) as db:
            erased = sum(db.execute(f"DELETE FROM {table} WHERE {where}", given).rowcount for table in tables)
        self._db.compact()
        return erased

    # Use by models.

    def render(self, *, max_facts: int = 20, max_episodes: int = 5, scope: str | None = None) -> str:
        """Format facts, preferences and the latest episodes as text for a prompt, one line each.

        Args:
            max_facts: maximum number of facts, the last recorded ones.
            max_episodes: maximum number of episodes.
            scope: only entries of this scope; by default all, each marked with its scope.

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
        """Return the tools ``remember``, ``recall`` and ``forget`` for a model, which use facts without a scope."""
        return self._tools

    @cached_property
    def _tools(self) -> tuple[Tool, ...]:
        def remember(key: str, value: str) -> str:
            """Remember a fact for later conversations.

            Args:
                key: what the fact is about, in a word or two
                value: the fact
            """
            self.add_fact(key.strip(), value, source="remember")
            return f"Remembered: {key.strip()}."

        def recall(query: str = "") -> str:
            """Recall facts that were remembered.

            Args:
                query: words to search for; leave it empty for all facts
            """
            words = query.casefold().split()
            lines = [fact_line(fact.key, fact.value) for fact in self.facts(scope="")]
            found = [item for item in lines if all(word in item.casefold() for word in words)]
            more = (
                [f"({len(found) - _MAX_RECALLED} more: give words to search for)"] if len(found) > _MAX_RECALLED else []
            )
            return "\n".join([*map(bullet, found[:_MAX_RECALLED]), *more]) or "Nothing is remembered about that."

        def forget(key: str) -> str:
            """Forget a fact that is no longer true.

            Args:
                key: the key of the fact, as recall shows it
            """
            if self.forget_fact(key.strip()):
                return f"Forgotten: {key.strip()}."
            raise ValueError(f"there is no fact {key!r:.80}; use recall to see the facts")

        return Tool(remember, effects=[]), Tool(recall, effects=[]), Tool(forget, effects=[])

    def close(self) -> None:
        """Close the file."""
        self._db.close()

    def _fact(self, db: Connection, key: str, scope: str, at: float) -> Fact | None:
        row = db.execute(
            f"{_FACT} WHERE scope = :scope AND key = :key AND {_VALID.format('f')} ORDER BY seq DESC LIMIT 1",
            {"scope": scope, "key": key, "at": at},
        ).fetchone()
        return None if row is None else self._decode_fact(row)

    def _preferences(self, scope: str | None) -> Sequence[tuple[str, str, Any]]:
        condition, given = ("TRUE", ()) if scope is None else ("scope = ?", (_text("scope", scope),))
        with self._db.transaction() as db:
            rows = db.execute(f"SELECT scope, key, value FROM preferences WHERE {condition} ORDER BY key, scope", given)
            return [(scope, key, self._decode(value)) for scope, key, value in rows]

    def _decode_fact(self, row: Sequence[Any]) -> Fact:
        return Fact(row[0], self._decode(row[1]), *row[2:])

    def _decode(self, text: str) -> Any:
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, TypeError, RecursionError) as error:
            raise StoreError(
                f"{self.path} is damaged: a value in it is not JSON ({error}): move the file away"
            ) from error


def _now(db: Connection) -> float:
    """Return the current time, but never before the last recorded time."""
    (latest,) = db.execute("SELECT latest FROM clock").fetchone()
    return max(time.time(), float(latest))


def _tick(db: Connection) -> float:
    """Return the current time for a new entry, stored as the last recorded time."""
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
