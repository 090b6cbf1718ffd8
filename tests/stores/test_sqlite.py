"""Database: a SQLite file shared by threads, processes and forks."""

import os
import shutil
import sqlite3
import stat
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import pytest

from hookline import Session
from hookline.stores import (
    ApprovalStore,
    KeyStore,
    MemoryStore,
    RunStore,
    SqliteSessionStore,
    StoreError,
    TicketBoard,
    sqlite,
)
from hookline.stores.chats import ChatStore
from hookline.stores.mailbox import gateway_database
from hookline.stores.sql import WRITERS, Schema
from hookline.stores.sqlite import SqliteDatabase

SCHEMA = ("CREATE TABLE words (word TEXT)",)
pytestmark = pytest.mark.sqlite
ENV = {**os.environ, "PYTHONPATH": str(Path(sqlite.__file__).parents[2])}
fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")


def database(path, **options):
    tables = {"contents": "words", "application_id": 7, "version": 1, "statements": SCHEMA}
    given = {name: options.pop(name) for name in [*options] if name in Schema.__struct_fields__}
    return SqliteDatabase(path, Schema("words", **{**tables, **given}), **options)


def add(db, word):
    with db.transaction(write=True) as connection:
        connection.execute("INSERT INTO words VALUES (?)", (word,))


def words(db):
    with db.transaction() as connection:
        return sorted(word for (word,) in connection.execute("SELECT word FROM words"))


def in_child(work):
    """Run ``work`` in a forked process; return the text of its result."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(writer, str(work()).encode())
        except BaseException as error:
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        result = pipe.read().decode()
    os.waitpid(child, 0)
    return result


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sub" / "words.db"


def test_the_file_is_created_when_first_used(path):
    db = database(path)
    assert not path.parent.exists()
    assert words(db) == []
    assert path.exists()


def test_file_and_folder_are_readable_by_their_owner_only(path):
    db = database(path)
    add(db, "a")
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert {stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()} == {0o600}


def test_the_connection_has_the_documented_settings(path):
    db = database(path)
    add(db, "a")
    with db.transaction() as connection:
        found = [
            connection.execute(f"PRAGMA {name}").fetchone()[0]
            for name in (
                "journal_mode",
                "synchronous",
                "foreign_keys",
                "busy_timeout",
                "application_id",
                "user_version",
            )
        ]
    assert found == ["wal", 1, 1, 5000, 7, 1]


def test_a_database_in_memory_is_shared_by_threads_and_lost_when_closed():
    db = database(":memory:")
    threads = [threading.Thread(target=add, args=(db, str(n))) for n in range(9)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(words(db)) == 9
    db.close()
    with pytest.raises(StoreError, match="closed"):
        words(db)


def test_data_survives_closing(path):
    db = database(path)
    add(db, "a")
    db.close()
    db.close()
    with pytest.raises(StoreError, match="closed: create another"):
        words(db)
    assert words(database(path)) == ["a"]


def test_a_failing_block_is_rolled_back(path):
    db = database(path)

    def fail():
        with db.transaction(write=True) as connection:
            connection.execute("INSERT INTO words VALUES ('a')")
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        fail()
    assert words(db) == []
    add(db, "b")
    assert words(db) == ["b"]


@fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_opens_its_own_connection(path):
    db = database(path)
    add(db, "parent")
    before = db._connection
    assert in_child(lambda: (add(db, "child"), db._connection is not before, words(db))[1:]) == (
        "(True, ['child', 'parent'])"
    )
    assert db._connection is before
    add(db, "again")
    assert words(db) == ["again", "child", "parent"]


@fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_during_a_transaction_of_another_thread_does_not_hang(path):
    db = database(path)
    with db.transaction(write=True):  # holds the lock, as another thread would
        assert in_child(lambda: db._lock.acquire(timeout=1)) == "True"


@fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_keeps_a_copy_of_a_database_in_memory(path):
    db = database(":memory:")
    add(db, "a")
    assert in_child(lambda: words(db)) == "['a']"


OPENER = """
import sys, time
from hookline.stores import MemoryStore
while time.time() < float(sys.argv[2]):
    pass
MemoryStore(sys.argv[1]).add_episode("opened", sys.argv[3])
"""


@pytest.mark.slow
def test_processes_may_create_the_file_at_the_same_time(path):
    at = str(time.time() + 1)
    openers = [subprocess.Popen([sys.executable, "-c", OPENER, path, at, str(n)], env=ENV) for n in range(4)]
    assert [opener.wait() for opener in openers] == [0] * 4
    assert sorted(e.summary for e in MemoryStore(path).episodes()) == list("0123")


GARBAGE = {
    "text": b"this is a letter to my aunt\n" * 50,
    "a few bytes": b"hello",
    "zeros": b"\0" * 4096,
    "a damaged header": b"SQLite format 3\0" + b"\xff" * 4080,
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_a_file_that_is_not_a_database_is_an_error_and_unchanged(tmp_path, kind):
    path = tmp_path / "x.db"
    path.write_bytes(GARBAGE[kind])
    for use in (words, lambda db: add(db, "a")):
        with pytest.raises(StoreError, match="move it away") as caught:
            use(database(path))
        assert str(path) in str(caught.value)
    assert path.read_bytes() == GARBAGE[kind]


def test_a_damaged_database_is_an_error_and_can_be_moved_away_while_in_use(path):
    db = database(path)
    for n in range(2000):
        add(db, str(n) * 20)
    db.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xab" * (len(data) - 4096)
    path.write_bytes(data)
    db = database(path)
    with pytest.raises(StoreError, match=r"damaged: move it away"):
        words(db)
    assert path.read_bytes() == data
    for file in list(path.parent.iterdir()):
        file.rename(f"{file}.old")
    add(db, "new")
    assert words(db) == ["new"]


def test_a_database_of_another_program_is_refused(tmp_path):
    path = tmp_path / "other.db"
    other = sqlite3.connect(path)
    other.execute("CREATE TABLE facts (mine TEXT)")
    other.commit()
    other.close()
    before = path.read_bytes()
    with pytest.raises(StoreError, match="not one of memories: give another path"):
        MemoryStore(path).add_fact("a", 1)
    assert path.read_bytes() == before


def test_two_kinds_of_stores_cannot_share_a_file(path):
    MemoryStore(path).add_fact("a", 1)
    with pytest.raises(StoreError, match="not one of sessions: give another path"):
        SqliteSessionStore(path).save(Session("x"))
    assert MemoryStore(path).fact("a").value == 1


def test_a_file_of_a_newer_hookline_is_refused(path):
    add(database(path, version=2, min_writer=2), "a")
    with pytest.raises(StoreError, match=r"newer Hookline \(format 2\): update Hookline"):
        add(database(path), "b")
    assert words(database(path, version=2, min_writer=2)) == ["a"]


def test_a_file_without_its_tables_is_an_error_with_advice(path):
    db = database(path)
    add(db, "a")
    with db.transaction(write=True) as connection:
        connection.execute("DROP TABLE words")
    with pytest.raises(StoreError, match="was changed by another program"):
        words(db)


def test_a_locked_file_is_an_error_for_all_waiting_threads(path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.3)
    db = database(path)
    add(db, "a")
    holder = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    holder.execute("BEGIN IMMEDIATE")
    errors, tries = [], []
    db._connection.set_trace_callback(tries.append)

    def work(n):
        try:
            add(db, str(n))
        except StoreError as error:
            errors.append(str(error))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(40)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(errors) == 40
    assert tries.count("BEGIN IMMEDIATE") < 20  # most threads fail at once behind the first
    assert all(str(path) in error and "locked for 0.3 s by another program" in error for error in errors)
    assert words(db) == ["a"]  # reading still works
    holder.execute("ROLLBACK")
    holder.close()
    add(db, "b")
    assert words(db) == ["a", "b"]


def test_a_reader_that_queued_behind_a_writer_of_a_locked_file_reads(path, monkeypatch):
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.3)
    db = database(path)
    add(db, "a")
    holder = sqlite3.connect(path, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    waits, errors = threading.Event(), []
    db._connection.set_trace_callback(lambda statement: waits.set())

    def write():
        try:
            add(db, "b")
        except StoreError as error:
            errors.append(str(error))

    writer = threading.Thread(target=write)
    writer.start()
    waits.wait()
    assert words(db) == ["a"]
    writer.join()
    (error,) = errors
    assert "locked for 0.3 s" in error
    holder.close()


def test_enabling_wal_is_retried_while_the_file_is_busy(path, monkeypatch):
    path.parent.mkdir()
    reader = sqlite3.connect(path, isolation_level=None)
    marks = (WRITERS, "CREATE TABLE hookline_schema AS SELECT 1 AS min_writer")
    for statement in (*SCHEMA, *marks, "PRAGMA application_id=7", "PRAGMA user_version=1", "BEGIN"):
        reader.execute(statement)
    reader.execute("SELECT * FROM words").fetchall()  # the journal mode cannot change during a read
    real, waits = sqlite3.connect, []

    def release(seconds):
        waits.append(seconds)
        reader.execute("COMMIT")

    monkeypatch.setattr(sqlite.time, "sleep", release)
    monkeypatch.setattr(sqlite.sqlite3, "connect", lambda path, **options: real(path, **{**options, "timeout": 0}))
    db = database(path)
    with db.transaction() as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    assert len(waits) == 1
    reader.close()


@pytest.mark.parametrize("kind", [MemoryStore, SqliteSessionStore])
def test_a_path_that_is_not_text_is_refused(kind):
    with pytest.raises(TypeError, match="takes the path of a file, or ':memory:', as text or a Path, not NoneType"):
        kind(None)


@pytest.mark.parametrize("path", ["", "a\0b"])
def test_an_empty_path_or_one_with_a_null_character_is_refused(path):
    with pytest.raises(StoreError, match="is not a path"):
        MemoryStore(path)


def test_a_folder_in_place_of_the_file_is_an_error(tmp_path):
    with pytest.raises(StoreError, match="cannot be opened"):
        MemoryStore(tmp_path).facts()


def test_a_folder_that_cannot_be_created_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="cannot be created.*that you can write to"):
        MemoryStore(tmp_path / "file" / "m.db").facts()


@fork
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_read_only_file_can_be_read_and_writing_is_an_error_with_advice():
    folder = Path(tempfile.mkdtemp())

    def as_nobody():
        if os.geteuid() == 0:
            os.setuid(65534)
        db = database(folder / "words.db")
        with pytest.raises(StoreError) as caught:
            add(db, "b")
        return words(db), caught.value

    def while_another_writes():
        state = iter([(False, 1, 1), (False, 2, 1)])
        SqliteDatabase._fingerprint = lambda self: next(state)
        return as_nobody()

    try:
        db = database(folder / "words.db")
        add(db, "a")
        db.close()
        (folder / "words.db").chmod(0o444)
        for mode in (0o777, 0o555):
            folder.chmod(mode)
            result = in_child(as_nobody)
            assert result.startswith("(['a'], ")
            assert "read-only: make the file and its folder writable" in result
            if mode == 0o777:
                for name in ("words.db-wal", "words.db-shm"):
                    (folder / name).unlink(missing_ok=True)
        assert "cannot be read while another program writes it" in in_child(while_another_writes)
        folder.chmod(0o777)
        (folder / "words.db-wal").write_bytes(b"what a program that crashed left")
        folder.chmod(0o555)
        assert in_child(as_nobody).startswith("StoreError: ")
        folder.chmod(0o777)
        (folder / "words.db-wal").unlink()
        assert words(database(folder / "words.db")) == ["a"]
    finally:
        folder.chmod(0o700)
        shutil.rmtree(folder)


def test_a_full_disk_is_an_error_and_keeps_stored_data(path):
    db = database(path)
    add(db, "a")
    with db.transaction() as connection:
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        connection.execute(f"PRAGMA max_page_count={pages}")
    with pytest.raises(StoreError, match="disk is full: free some space"):
        add(db, "b" * 100_000)
    assert words(db) == ["a"]


def test_every_store_has_its_own_application_id(path):
    kinds = (MemoryStore, SqliteSessionStore, RunStore, ApprovalStore, TicketBoard, KeyStore, ChatStore)
    stores = [kind(path) for kind in kinds]
    databases = [next(each for each in vars(store).values() if isinstance(each, SqliteDatabase)) for store in stores]
    marks = [each.schema.application_id for each in (*databases, gateway_database(path))]
    assert len(set(marks)) == len(kinds) + 1


def test_a_pinned_file_that_was_moved_or_replaced_is_not_written(path, tmp_path):
    db = database(path, pinned=True)
    add(db, "first")
    path.rename(tmp_path / "elsewhere.db")
    with pytest.raises(StoreError, match="was moved or deleted while in use: put it back, or restart the program"):
        add(db, "lost")
    shutil.copy(tmp_path / "elsewhere.db", path)
    with pytest.raises(StoreError, match="put it back"):
        add(db, "lost")
    (tmp_path / "elsewhere.db").rename(path)
    add(db, "second")
    assert words(db) == ["first", "second"]
    db.close()
    assert words(database(path)) == ["first", "second"]


@pytest.mark.parametrize("ends", [("",), ("", "-wal", "-shm")], ids=["the file alone", "with what is beside it"])
def test_a_deleted_file_is_created_again(path, ends):
    db = database(path)
    add(db, "old")
    for end in ends:
        Path(f"{path}{end}").unlink()
    assert words(db) == []
    add(db, "new")
    assert words(db) == words(database(path)) == ["new"]


def test_a_replaced_file_is_opened_again(path, tmp_path):
    db, other = database(path), database(tmp_path / "other.db")
    add(db, "here")
    add(other, "there")
    other.close()
    for end in ("", "-wal", "-shm"):
        Path(f"{path}{end}").rename(tmp_path / f"away.db{end}")
    (tmp_path / "other.db").rename(path)
    add(db, "too")
    assert words(db) == words(database(path)) == ["there", "too"]


def test_a_closed_store_stays_closed_when_its_file_is_deleted(path):
    db = database(path)
    add(db, "old")
    db.close()
    path.unlink()
    with pytest.raises(StoreError, match="has been closed"):
        add(db, "new")
    assert not path.exists()
