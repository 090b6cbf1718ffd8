"""Copy stores from SQLite files, folders and text files to a PostgreSQL database."""

from __future__ import annotations

import os
import re
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from .artifacts import ArtifactStore, DatabaseArtifactStore, artifact_name
from .errors import StoreError
from .notes import DatabaseNotes
from .schemas import all_schemas, databases_at
from .sessions import JsonSessionStore, SqliteSessionStore
from .skills import FILE as SKILL_FILE
from .skills import STATES, DatabaseSkillStore, SkillStore
from .sql import Schema
from .sqlite import SqliteDatabase

Progress = Callable[[str, int, int], object]

_NOTES = (".md", ".txt")


class CopiedStore(msgspec.Struct, frozen=True):
    """A store that was copied: its name, the file, and the number of rows in each table."""

    name: str
    source: str
    rows: Mapping[str, int]


def copy_stores(
    sources: Sequence[str | os.PathLike[str]], url: str, progress: Progress | None = None
) -> list[CopiedStore]:
    """Copy stores to a PostgreSQL database: all of them, or none if anything goes wrong.

    Files of an earlier format are converted first, as always when they are opened. Nobody should write them meanwhile.

    Args:
        sources: SQLite files of stores, folders of sessions, skills or artifacts, and text files of notes.
        url: address of the database. Its tables are created, or must be empty.
        progress: called with the name of a table, the number of rows copied so far, and the number of all rows.

    Raises:
        StoreError: a file is not one of a store, the tables have rows already, or the database cannot be used.

    Example::

        copy_stores(["runs.db", "approvals.db", "sessions"], "postgresql://ada@db.example/shop")
    """
    with ExitStack() as stack:
        files = [_Source(each, stack) for each in sources]
        kinds = [file.schema.name for file in files]
        for name in kinds:
            if kinds.count(name) > 1:
                raise StoreError(f"two of the files are stores of {name}: copy one of them to each database")
        targets = {database.schema.name: database for database in databases_at(url)}
        for database in targets.values():
            stack.callback(database.close)
            database.create()
        copied, total = 0, sum(sum(file.counts.values()) for file in files)
        # One transaction for all stores.
        connection = stack.enter_context(next(iter(targets.values())).bulk_transaction())
        for file in files:
            target = targets[file.schema.name]
            target.begin_copy(connection, file.tables, file.seeded)
            for table in file.tables:
                for batch in file.rows(table):
                    target.copy_rows(connection, table, file.columns[table], batch)
                    copied += len(batch)
                    if progress is not None:
                        progress(f"{file.schema.name}.{table}", copied, total)
            target.end_copy(connection, file.counts, file.numbers)
    return [CopiedStore(file.schema.name, file.path, file.counts) for file in files]


class _Source:
    """A SQLite file, opened for reading; a folder or a text file becomes one first."""

    batch = 500

    def __init__(self, source: str | os.PathLike[str], stack: ExitStack) -> None:
        self.path = os.path.abspath(os.path.expanduser(os.fspath(source)))
        file = self.path
        if os.path.isdir(file) or (file.lower().endswith(_NOTES) and os.path.isfile(file)):
            file = os.path.join(stack.enter_context(TemporaryDirectory(prefix="hookline-")), "copy.db")
            (_folder_to_file if os.path.isdir(self.path) else _notes_to_file)(self.path, file)
        self.schema = _schema_of(file, self.path)
        database = SqliteDatabase(file, self.schema)
        stack.callback(database.close)
        self._db = stack.enter_context(database.transaction())
        listed = self._db.execute(
            """SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite%' AND name NOT LIKE 'hookline%'
            AND name IN (SELECT name FROM pragma_table_list WHERE type = 'table') ORDER BY rowid"""
        ).fetchall()
        self._definitions = dict(listed)
        self.tables = list(self._definitions)
        self.columns = {
            table: [column[1] for column in self._db.execute(f"PRAGMA table_info({table})")] for table in self.tables
        }
        self.counts = {table: self._count(table) for table in self.tables}
        texts = [each if isinstance(each, str) else each.sqlite for each in self.schema.statements]
        self.seeded = {found[1] for text in texts if (found := re.match(r"\s*INSERT INTO (\w+)", text))}
        self.numbers: dict[str, int] = {}
        if self._db.execute("SELECT 1 FROM sqlite_master WHERE name = 'sqlite_sequence'").fetchone():
            self.numbers = dict(self._db.execute("SELECT name, seq FROM sqlite_sequence"))

    def rows(self, table: str) -> Iterator[list[tuple[object, ...]]]:
        """Yield all rows of a table in batches, in the order in which they were added."""
        names = ", ".join(f'"{column}"' for column in self.columns[table])
        order = "" if "WITHOUT ROWID" in self._definitions[table] else "ORDER BY rowid"
        found = self._db.execute(f"SELECT {names} FROM {table} {order}")
        while batch := found.fetchmany(self.batch):
            yield batch

    def _count(self, table: str) -> int:
        (count,) = self._db.execute(f"SELECT count(*) FROM {table}").fetchone()
        return int(count)


def _schema_of(file: str, shown: str) -> Schema:
    """Return the tables of the store in a SQLite file.

    Raises:
        StoreError: it is not the file of a store.
    """
    try:
        with closing(sqlite3.connect(f"{Path(file).as_uri()}?mode=ro", uri=True)) as db:
            (mark,) = db.execute("PRAGMA application_id").fetchone()
    except sqlite3.Error as error:
        raise StoreError(
            f"{shown} cannot be read ({error}): give the file of a store, or a folder of sessions, skills or artifacts"
        ) from error
    for schema in all_schemas():
        if mark == schema.application_id or mark in schema.conversions:
            return schema
    raise StoreError(f"{shown} is not the file of a store: give a file that Hookline has written")


def _folder_to_file(folder: str, file: str) -> None:
    """Write the contents of a folder to a SQLite file.

    Raises:
        StoreError: something in the folder cannot be read, or would be left behind.
    """
    names = os.listdir(folder)
    if any(name.startswith("artifact-") for name in names):
        _artifacts_to_file(folder, file)
    elif {".proposed", ".rejected", ".queue"} & {*names} or any(
        os.path.lexists(os.path.join(folder, name, SKILL_FILE)) for name in names
    ):
        _skills_to_file(folder, file)
    else:
        _sessions_to_file(folder, file)


def _notes_to_file(path: str, file: str) -> None:
    try:
        text = Path(path).read_bytes().decode()
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"the notes in {path} cannot be read ({error}), so nothing was copied") from None
    target = DatabaseNotes(file)
    target.restore(text)
    target.close()


def _artifacts_to_file(folder: str, file: str) -> None:
    source, target = ArtifactStore(folder), DatabaseArtifactStore(file)
    if left := [name for name in os.listdir(folder) if artifact_name(name) is None]:
        raise StoreError(f"{os.path.join(folder, left[0])} is not an artifact, so nothing was copied: move it away")
    for artifact in source.list():
        target.restore(artifact, source.load(artifact.name))
    target.close()


def _skills_to_file(folder: str, file: str) -> None:
    source, target = SkillStore(folder), DatabaseSkillStore(file)
    if problems := source.problems():
        raise StoreError(f"nothing was copied, because a skill cannot be read: {problems[0]}")
    with target.db.transaction(write=True) as db:
        for state in STATES:
            for skill in source.list(state):
                path = source.path(skill.name, state)
                more = [each for each in os.listdir(path.parent) if each != SKILL_FILE] if state == "accepted" else []
                if more:
                    raise StoreError(
                        f"{path.parent / more[0]} is beside a skill, and a database has only the {SKILL_FILE}, so "
                        "nothing was copied: move it away, or keep these skills in a folder"
                    )
                db.execute(
                    "INSERT INTO skills (name, state, raw) VALUES (?, ?, ?)", (skill.name, state, source.raw(skill))
                )
        queue = source.queue()
        for ident in queue.ids():
            run = queue.get(ident)
            if run is None:
                raise StoreError(f"nothing was copied, because {ident} in {queue.folder} cannot be read: move it away")
            db.execute("INSERT INTO queue (id, run) VALUES (?, ?)", (ident, msgspec.json.encode(run)))
        outcomes = [(msgspec.json.encode(outcome),) for outcome in queue.outcomes()]
        db.executemany("INSERT INTO outcomes (data) VALUES (?)", outcomes)
    target.close()


def _sessions_to_file(folder: str, file: str) -> None:
    """Write all sessions of a folder to a SQLite file, unchanged, the last saved one last.

    Raises:
        StoreError: a session cannot be read.
    """
    target = SqliteSessionStore(file)
    found = list(JsonSessionStore(folder).files())
    with target.database.transaction(write=True) as db:
        for id, data, contents in found:
            db.execute("INSERT INTO sessions (id, data) VALUES (?, ?)", (id, data))
            rows = [(id, digest, content) for digest, content in contents.items()]
            db.executemany("INSERT INTO attachments (session, digest, data) VALUES (?, ?, ?)", rows)
    target.close()
