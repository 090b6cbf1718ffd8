"""The words in the tasks and replies of runs, for the search of texts.

They are taken from what is stored in the row of a run, in the same transaction, so a search finds nothing that the row
does not show. Both databases index the words that are found here, so both find the same runs: SQLite with FTS5, whose
rows are numbered by the creation of the run, and PostgreSQL with a GIN index. A row also has words for the owner and
the agent of its run, so that a search in the runs of one caller does not depend on the number of the others.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator

from .sql import Connection, Database, PerDialect, Statement

MAX_TEXT = 200_000
"""Characters of a text in which words are looked for."""
MAX_WORDS = 100_000
"""Maximum number of characters of the words of a run."""
MAX_WORD = 64
_PER_MICROSECOND = 1024
_PAGES_AT_ONCE = 500
"""Pages of the index that one transaction writes."""

_SPACELESS = "\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff"
"""Characters of scripts without spaces: each one is a word."""
_WORD = rf"[{_SPACELESS}]|[^\W_{_SPACELESS}]+"
_WANTED = rf"({_WORD})(\*?)"
# They are compiled when first used, which takes time that a program without a search need not spend to start.

_VECTOR = "array_to_tsvector(array_remove(string_to_array(words, ' '), ''))"
_LETTERS = "a-z0-9\\u0080-\\U0010ffff"
_OLD_WORDS = (
    f"regexp_replace(regexp_replace(lower(substr(task || ' ' || reply, 1, {MAX_WORDS})), "
    f"'[{_LETTERS}]{{{MAX_WORD + 1},}}', ' ', 'g'), '[^{_LETTERS}]+', ' ', 'g')"
)
SCHEMA: tuple[Statement, ...] = (
    PerDialect(
        "CREATE TABLE run_texts (id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, words TEXT NOT NULL)",
        'CREATE TABLE run_texts (id BIGINT NOT NULL, run_id TEXT COLLATE "C" PRIMARY KEY, words TEXT NOT NULL)',
    ),
    PerDialect("", "CREATE INDEX run_texts_by_time ON run_texts (id)"),
    PerDialect(
        """CREATE VIRTUAL TABLE run_words USING fts5(
            words, content = 'run_texts', content_rowid = 'id', detail = none, columnsize = 0,
            tokenize = "ascii tokenchars '_'"
        )""",
        f"CREATE INDEX run_words ON run_texts USING gin ({_VECTOR})",
    ),
    PerDialect(
        """CREATE TRIGGER run_texts_added AFTER INSERT ON run_texts BEGIN
            INSERT INTO run_words (rowid, words) VALUES (new.id, new.words);
        END""",
        "",
    ),
    PerDialect(
        """CREATE TRIGGER run_texts_changed AFTER UPDATE ON run_texts BEGIN
            INSERT INTO run_words (run_words, rowid, words) VALUES ('delete', old.id, old.words);
            INSERT INTO run_words (rowid, words) VALUES (new.id, new.words);
        END""",
        "",
    ),
    PerDialect(
        """CREATE TRIGGER run_texts_deleted AFTER DELETE ON run_texts BEGIN
            INSERT INTO run_words (run_words, rowid, words) VALUES ('delete', old.id, old.words);
        END""",
        "",
    ),
    # The runs of earlier versions.
    PerDialect(
        f"""INSERT INTO run_texts SELECT CAST(created * 1000000 AS INTEGER) * {_PER_MICROSECOND} - 1
            + row_number() OVER (PARTITION BY CAST(created * 1000000 AS INTEGER) ORDER BY run_id), run_id,
            'owner_' || lower(hex(owner)) || ' agent_' || lower(hex(agent)) || ' '
            || replace(lower(substr(task || ' ' || reply, 1, {MAX_WORDS})), '_', ' ')
            FROM runs WHERE task != '' OR reply != ''""",
        f"""INSERT INTO run_texts SELECT CAST(floor(created * 1000000) AS BIGINT) * {_PER_MICROSECOND}, run_id,
            'owner_' || encode(convert_to(owner, 'UTF8'), 'hex') || ' agent_'
            || encode(convert_to(agent, 'UTF8'), 'hex') || ' ' || {_OLD_WORDS}
            FROM runs WHERE task != '' OR reply != ''""",
    ),
)
_ADD = """INSERT INTO run_texts (id, run_id, words)
    SELECT coalesce((SELECT max(id) + 1 FROM run_texts WHERE id >= :first AND id < :last), :first), :run_id, :words
    WHERE true ON CONFLICT (run_id) DO """


def forget_words(database: Database) -> Iterator[int]:
    """Remove the words of deleted runs from the index, in steps. Yield 0 after each transaction.

    FTS5 only marks them as deleted. It removes them when it merges the parts of the index.
    """
    pages = -_PAGES_AT_ONCE  # a negative number begins to merge all parts into one
    while not database.is_shared:
        with database.transaction(write=True, lock=None) as db:
            (before,) = db.execute("SELECT total_changes()").fetchone()
            db.execute("INSERT INTO run_words (run_words, rank) VALUES ('merge', ?)", (pages,))
            (after,) = db.execute("SELECT total_changes()").fetchone()
        yield 0
        if after - before < 2:  # nothing was merged
            return
        pages = _PAGES_AT_ONCE


def add_text(
    db: Connection,
    run_id: str,
    created: float,
    owner: str,
    agent: str,
    task: str,
    reply: str = "",
    *,
    replace: bool = False,
) -> None:
    """Index the texts of a run inside the transaction that stores them.

    ``replace`` replaces the words that were there; otherwise they stay.
    """
    if not task and not reply:
        return
    words, left = dict.fromkeys(_scope(owner, agent)), MAX_WORDS
    for text in (task, reply):
        for found in re.finditer(_WORD, _plain(text[:MAX_TEXT])):
            word = found[0][:MAX_WORD]
            if word not in words and left > 0:
                words[word] = None
                left -= len(word) + 1
    first = _number(created)
    values = {"first": first, "last": first + _PER_MICROSECOND, "run_id": run_id, "words": " ".join(words)}
    db.execute(_ADD + ("UPDATE SET words = excluded.words" if replace else "NOTHING"), values)


def find_text(
    database: Database, db: Connection, text: str, limit: int, *, before: str = "", owner: str = "", agent: str = ""
) -> list[tuple[float, str]]:
    """Return runs that have all words of a text, the newest first: when each was created, and its id.

    Args:
        database: the database.
        db: its connection.
        text: the words, in upper or lower case. ``*`` at the end of a word stands for more letters.
        limit: the maximum number of runs.
        before: the id of a run: only runs that come after it.
        owner: only runs of this owner.
        agent: only runs of this agent.
    """
    wanted = [(found[1][:MAX_WORD], bool(found[2])) for found in re.finditer(_WANTED, _plain(text[:MAX_TEXT]))]
    if not wanted:
        return []
    words = [*((word, False) for word in _scope(owner, agent)), *wanted]
    later, values = "", list[object]()
    if before:
        later = f"""AND id < coalesce((SELECT id FROM run_texts WHERE run_id = ?),
            (SELECT CAST(created * 1000000 AS INTEGER) * {_PER_MICROSECOND} FROM runs WHERE run_id = ?))"""
        values += before, before
    if database.is_shared:
        # The words are a part of the statement, because PostgreSQL has to know them to choose an index.
        query = " & ".join(f"{word}:*" if more else word for word, more in words)
        statement = f"SELECT id, run_id FROM run_texts WHERE {_VECTOR} @@ CAST('{query}' AS tsquery) {later}"
    else:
        query = " ".join(f'"{word}"{"*" if more else ""}' for word, more in words)
        statement = f"""SELECT id, run_id FROM run_words JOIN run_texts ON id = run_words.rowid
            WHERE run_words MATCH ? {later.replace("id <", "run_words.rowid <", 1)}"""
        values.insert(0, query)
    order = "id" if database.is_shared else "run_words.rowid"
    found = db.execute(f"{statement} ORDER BY {order} DESC LIMIT ?", (*values, limit)).fetchall()
    return [(number // _PER_MICROSECOND / 1e6, str(run_id)) for number, run_id in found]


def _plain(text: str) -> str:
    return unicodedata.normalize("NFKC", text).casefold()


def _scope(owner: str, agent: str) -> Iterator[str]:
    """Yield the words for an owner and an agent. No text has them, because its words have no underscore."""
    if owner:
        yield f"owner_{owner.encode(errors='replace').hex()}"
    if agent:
        yield f"agent_{agent.encode(errors='replace').hex()}"


def _number(created: float) -> int:
    """Return the first of the numbers of runs that were created in a microsecond."""
    return int(min(max(created, 0.0), 8e9) * 1_000_000) * _PER_MICROSECOND
