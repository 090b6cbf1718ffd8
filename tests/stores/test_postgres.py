"""PostgresDatabase: the tables of stores in a PostgreSQL database that processes share."""

import asyncio
import itertools
import os
import resource
import signal
import subprocess
import sys
import threading
import time

import pytest

from hookline import Session
from hookline.stores import ApprovalStore, MemoryStore, SqliteSessionStore, TicketBoard, postgres
from hookline.stores.chats import ChatStore
from hookline.stores.database import open_database
from hookline.stores.errors import LockedFileError, StoreError
from hookline.stores.keys import KeyStore
from hookline.stores.mailbox import gateway_database
from hookline.stores.paths import without_password
from hookline.stores.runs import RunRecord, RunStore, StoredEvent
from hookline.stores.sql import Schema
from tests.environment import with_source
from tests.postgres_cluster import MISSING
from tests.waiting import block_until

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)

TABLES = ("CREATE TABLE words (seq INTEGER PRIMARY KEY AUTOINCREMENT, word TEXT, data BLOB, number INTEGER, at REAL)",)
WORDS = Schema("words", contents="words", application_id=7, version=1, statements=TABLES)


@pytest.fixture
def own_url(postgres_url):
    """An address with connections that no other test uses."""
    return f"{postgres_url}&application_name=alone"


@pytest.fixture
def open_words(postgres_url):
    opened = []

    def make(schema=WORDS, url=postgres_url):
        opened.append(open_database(url, schema))
        return opened[-1]

    yield make
    for database in opened:
        database.close()


def add(database, word, **options):
    with database.transaction(write=True, **options) as db:
        db.execute("INSERT INTO words (word) VALUES (?)", (word,))


def words(database):
    with database.transaction() as db:
        return [word for (word,) in db.execute("SELECT word FROM words ORDER BY seq")]


def run(id, **more):
    return RunRecord(id, "bot", "me", "", "", "", "", "http", "task", created=1.0, **more)


# Values.


@pytest.mark.parametrize(
    "row",
    [
        ("", b"", 0, 0.0),
        ("a\0b\x1ac\x1a0\x1a1", b"\0\xff", -(2**63), 1e308),
        ("%s %% ? :name 'x'", b"?", 2**63 - 1, -0.5),
        ("é 漢 😀 \n\t\x7f", bytes(range(256)), 1, float("inf")),
        (None, None, None, None),
    ],
)
def test_every_value_comes_back_as_it_was_stored(open_words, row):
    database = open_words()
    with database.transaction(write=True) as db:
        db.execute("INSERT INTO words (word, data, number, at) VALUES (?, ?, ?, ?)", row)
        db.executemany("INSERT INTO words (word, data, number, at) VALUES (?, ?, ?, ?)", [row, row])
    with database.transaction() as db:
        named = dict(zip("abcd", row, strict=True))
        stored = db.execute("SELECT word, data, number, at FROM words").fetchall()
        found = db.execute("SELECT count(*) FROM words WHERE word = :a AND number = :c", named).fetchone()
    assert stored == [row] * 3
    assert found == (0 if row[0] is None else 3,)


def test_truth_values_are_stored_as_numbers(open_words):
    database = open_words()
    with database.transaction(write=True) as db:
        db.execute("INSERT INTO words (number) VALUES (?)", (True,))
    with database.transaction() as db:
        assert db.execute("SELECT number FROM words").fetchone() == (1,)
        (total,) = db.execute("SELECT sum(number) FROM words").fetchone()
    assert (type(total), total) == (int, 1)


@pytest.mark.parametrize(("value", "error"), [(2**63, OverflowError), (object(), TypeError), ("\ud800", UnicodeError)])
def test_a_value_that_cannot_be_stored_is_an_error_and_the_rest_of_the_transaction_goes_on(open_words, value, error):
    database = open_words()
    with database.transaction(write=True) as db:
        with pytest.raises(error):
            db.execute("INSERT INTO words (word) VALUES (?)", (value,))
        db.execute("INSERT INTO words (word) VALUES ('a')")
    assert words(database) == ["a"]


def test_marks_inside_quotes_are_text(open_words):
    database = open_words()
    with database.transaction(write=True) as db:
        db.execute("INSERT INTO words (word) VALUES ('? :name 100%')")
        assert db.execute("SELECT word FROM words WHERE word LIKE '%:name%' AND ? = ?", (1, 1)).fetchall() == [
            ("? :name 100%",)
        ]


@pytest.mark.parametrize("id", ["a\0b", "../x", "é", " ", "a\x1a0", "x" * 5000, "'; DROP TABLE sessions; --"])
def test_unusual_session_ids_are_kept_apart(postgres_url, id):
    store = SqliteSessionStore(postgres_url)
    store.save(Session(id, metadata={"n": 1}))
    store.save(Session("other"))
    assert store.load(id).metadata == {"n": 1}
    assert {each.id for each in store.list()} == {id, "other"}
    assert store.delete(id)
    assert store.load(id) is None
    store.close()


# Transactions.


def test_an_error_rolls_back_and_the_connection_is_used_again(open_words):
    database = open_words()
    with pytest.raises(ZeroDivisionError), database.transaction(write=True) as db:
        db.execute("INSERT INTO words (word) VALUES ('a')")
        raise ZeroDivisionError
    with pytest.raises(StoreError, match="cannot be used"), database.transaction(write=True) as db:
        db.execute("INSERT INTO words (word) VALUES ('a')")
        db.execute("SELEKT")
    assert words(database) == []


def test_a_reading_transaction_sees_one_state_and_cannot_write(open_words):
    database = open_words()
    add(database, "a")
    with database.transaction() as db:
        db.execute("SELECT 1 FROM words").fetchall()
        add(database, "b")
        assert db.execute("SELECT count(*) FROM words").fetchone() == (1,)
    with pytest.raises(StoreError, match="read-only"), database.transaction() as db:
        db.execute("INSERT INTO words (word) VALUES ('c')")


def test_what_a_writing_transaction_read_is_still_true_when_it_writes(open_words):
    database = open_words()
    add(database, "0")

    def count_up():
        for _ in range(20):
            with database.transaction(write=True) as db:
                (word,) = db.execute("SELECT word FROM words").fetchone()
                db.execute("UPDATE words SET word = ?", (str(int(word) + 1),))

    threads = [threading.Thread(target=count_up) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert words(database) == ["80"]


@pytest.mark.parametrize(
    ("held", "wanted", "waits"),
    [("", "", True), ("", "x", True), ("x", "", True), ("x", "x", True), ("x", "y", False), ("", None, False)],
)
def test_a_lock_excludes_the_same_lock_and_the_whole_store(open_words, own_url, monkeypatch, held, wanted, waits):
    database = open_words(url=own_url)
    add(database, "a")
    monkeypatch.setattr(postgres, "_SESSION", {"lock_timeout": 50})  # of the next connection: creating tables may wait
    with database.transaction(write=True, lock=held):
        if waits:
            with pytest.raises(LockedFileError, match="locked for 5 s by another program"):
                add(database, "b", lock=wanted)
        else:
            add(database, "b", lock=wanted)


STOPPED = """
import sys, time
from hookline.stores.memory import MemoryStore
store = MemoryStore(sys.argv[1])
with store._db.transaction(write=True) as db:
    db.execute("UPDATE clock SET latest = 5e9")
    print("in", flush=True)
    time.sleep(600)
"""


@pytest.mark.slow
def test_a_process_that_is_stopped_inside_a_transaction_blocks_others_for_a_few_seconds_only(postgres_url):
    store = MemoryStore(postgres_url)
    store.add_fact("home", "Oslo")
    child = subprocess.Popen([sys.executable, "-c", STOPPED, postgres_url], env=with_source(), stdout=subprocess.PIPE)
    try:
        assert child.stdout.readline() == b"in\n"
        os.kill(child.pid, signal.SIGSTOP)

        def works():
            try:
                return store.add_fact("home", "Rome")
            except LockedFileError:
                return None

        block_until(works)
        assert store.fact("home").value == "Rome"
    finally:
        child.kill()
        child.wait()
        child.stdout.close()
        store.close()


@pytest.mark.parametrize("count", [1, 2, 150])
def test_a_transaction_that_is_idle_after_many_rows_is_ended_by_the_server(open_words, count):
    database = open_words()
    with database.transaction(write=True) as db:
        db.executemany("INSERT INTO words (word) VALUES (?)", [(f"{n:04}",) for n in range(count)])
    assert words(database) == [f"{n:04}" for n in range(count)]
    watcher = open_words()
    with pytest.raises(StoreError), database.transaction(write=True) as db:  # noqa: PT012 - it is ended at any statement
        (pid,) = db.execute("SELECT pg_backend_pid()").fetchone()
        db.execute("SET LOCAL idle_in_transaction_session_timeout = 200")
        db.executemany("INSERT INTO words (word) VALUES (?)", [(f"again {n}",) for n in range(count)])

        def is_ended():
            with watcher.transaction() as other:
                return not other.execute("SELECT 1 FROM pg_stat_activity WHERE pid = ?", (pid,)).fetchall()

        block_until(is_ended)
    assert len(words(database)) == count


@pytest.mark.parametrize("mode", ["session", "transaction"])
def test_a_pooler_that_shares_connections_between_transactions_is_refused(open_words, monkeypatch, mode):
    """PgBouncer is not installed for the tests, so the numbers are those that it shows."""
    numbers = itertools.count(-1, -1) if mode == "session" else itertools.repeat(-1)
    monkeypatch.setattr(postgres, "_backend_pid", lambda connection: next(numbers))
    monkeypatch.setattr(postgres, "_servers", {})
    database = open_words()
    if mode == "session":
        add(database, "a")
    else:
        with pytest.raises(StoreError, match="a connection pooler in transaction mode.* set it to session mode"):
            add(database, "a")


def test_a_paused_process_does_not_hold_the_locks_of_the_queue(open_words):
    """The queue has connections of its own, which the server must end in the same way."""
    import psycopg

    database = open_words()
    with psycopg.connect(database.conninfo) as connection:
        connection.execute(database.settings_for("queue"))
        shown = [connection.execute(f"SHOW {name}").fetchone()[0] for name in ("search_path", *postgres._SESSION)]
    assert shown == ["queue", "5s", "5s", "1min"]


# Versions.


def test_threads_that_use_a_new_database_at_once_create_the_tables_once(open_words):
    databases = [open_words() for _ in range(8)]
    threads = [threading.Thread(target=add, args=(database, str(n))) for n, database in enumerate(databases)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(words(databases[0])) == sorted(map(str, range(8)))


def test_a_newer_format_is_refused(open_words):
    add(
        open_words(Schema("words", contents="words", application_id=7, version=3, statements=TABLES, min_writer=2)), "a"
    )
    with pytest.raises(StoreError, match=r"words in .* were written by a newer Hookline \(format 3\): update Hookline"):
        words(open_words())


def test_an_earlier_format_is_refused_until_it_is_upgraded(open_words):
    add(open_words(), "a")
    upgrades = {1: ("ALTER TABLE words ADD COLUMN more TEXT NOT NULL DEFAULT 'x'",)}
    later = Schema("words", contents="words", application_id=7, version=2, statements=TABLES, upgrades=upgrades)
    database = open_words(later)
    with pytest.raises(StoreError, match="have format 1, and this Hookline needs format 2: .* hookline db upgrade"):
        words(database)
    assert (database.upgrade(), database.upgrade()) == (True, False)
    with database.transaction() as db:
        assert db.execute("SELECT word, more FROM words").fetchall() == [("a", "x")]


def test_an_upgrade_that_fails_changes_nothing(open_words):
    add(open_words(), "a")
    upgrades = {1: ("DROP TABLE words", "ALTER TABLE nothing ADD COLUMN x TEXT")}
    later = Schema("words", contents="words", application_id=7, version=2, statements=TABLES, upgrades=upgrades)
    with pytest.raises(StoreError):
        open_words(later).upgrade()
    assert words(open_words()) == ["a"]


def test_schemas_keep_installations_apart(open_words, cluster):
    one, other = (open_words(url=cluster.url(name)) for name in ("shop_a", "shop_b"))
    add(one, "a")
    assert (words(one), words(other)) == (["a"], [])


def test_every_store_works_in_one_database(postgres_url):
    runs, approvals, keys = RunStore(postgres_url), ApprovalStore(postgres_url), KeyStore(postgres_url)
    memory, board, chats = MemoryStore(postgres_url), TicketBoard(postgres_url), ChatStore(postgres_url)
    sessions, gateway = SqliteSessionStore(postgres_url), gateway_database(postgres_url)
    runs.write([run("run_1")], [StoredEvent("run_1", 1, "x", 1.0, b"{}")])
    _, secret = keys.add("ci", ["run"])
    memory.add_fact("home", "Oslo")
    ticket = board.create("Write", by="ada")
    chats.add("web", "1", "k", "Hi.")
    sessions.save(Session("s"))
    with gateway.transaction(write=True) as db:
        db.execute("INSERT INTO people VALUES ('c', 's', 1.0)")
    assert (runs.get("run_1").status, approvals.pending_count(), keys.find(secret).name) == ("interrupted", 0, "ci")
    assert (memory.fact("home").value, board.get(ticket.id).title, sessions.load("s").id) == ("Oslo", "Write", "s")
    assert [message.text for message in chats.since("web", "1")] == ["Hi."]
    for store in (runs, approvals, keys, memory, board, chats, sessions, gateway):
        store.close()


# Outages.


def test_a_restart_of_the_server_is_not_noticed_between_transactions(own_cluster):
    database = open_database(own_cluster.url("one"), WORDS)
    add(database, "a")
    with database.transaction(), database.transaction():  # two connections
        pass
    own_cluster.restart()
    add(database, "b")
    assert words(database) == ["a", "b"]
    database.close()


def test_while_the_server_is_away_there_is_a_clear_error_and_nothing_is_lost(own_cluster):
    database = open_database(own_cluster.url("two"), WORDS)
    add(database, "a")
    own_cluster.stop()
    for _ in range(2):
        with pytest.raises(StoreError, match="cannot be reached"):
            add(database, "b")
    own_cluster.start()
    add(database, "c")
    assert words(database) == ["a", "c"]
    database.close()


def test_a_connection_that_is_cut_inside_a_transaction_is_an_error(cluster, open_words):
    database, other = open_words(), open_words()
    unknown = pytest.raises(StoreError, match="cannot be reached; whether the last change was stored is not known")
    with unknown, database.transaction(write=True) as db:
        db.execute("INSERT INTO words (word) VALUES ('a')")
        (pid,) = db.execute("SELECT pg_backend_pid()").fetchone()
        with other.transaction() as second:
            second.execute("SELECT pg_terminate_backend(?)", (pid,)).fetchone()
        db.execute("INSERT INTO words (word) VALUES ('b')")
    add(database, "c")
    assert words(database) == ["c"]


def test_a_connection_is_used_again_when_many_files_are_open(open_words):
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(4096, hard)), hard))
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(1100)]
    try:
        database, pids = open_words(), set()
        for _ in range(3):
            with database.transaction() as db:
                pids.add(db.execute("SELECT pg_backend_pid()").fetchone()[0])
    finally:
        for file in files:
            os.close(file)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert len(pids) == 1


def test_a_forked_child_uses_its_own_connections(open_words):
    database = open_words()

    def add_connection():
        with database.transaction(write=True) as db:
            db.execute("INSERT INTO words (word) VALUES (CAST(pg_backend_pid() AS TEXT))")

    add_connection()
    child = os.fork()
    if not child:
        try:
            add_connection()
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    add_connection()
    parent, child, again = words(database)
    assert parent == again != child


# Passwords.

SECRET = "s3cr3t"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://ada:s3cr3t@db.example:5432/shop", "postgresql://ada@db.example:5432/shop"),
        ("postgresql://ada@db.example/shop?sslmode=require", "postgresql://ada@db.example/shop?sslmode=require"),
        ("postgresql://db.example:5432/shop", "postgresql://db.example:5432/shop"),
        ("postgresql:///shop?host=/run&user=ada&password=s3cr3t", "postgresql:///shop"),
        ("postgresql://ada:x@s3cr3t@db.example/shop", "postgresql://ada@db.example/shop"),
        ("postgresql://ada:x/s3cr3t@db.example/shop", "postgresql://ada@db.example/shop"),
        ("postgresql://ada:s3cr3t?@db.example/shop", "postgresql://ada@db.example/shop"),
        ("postgresql://ada:s3cr3t", "postgresql://ada"),
    ],
)
def test_the_address_is_shown_without_its_password(url, shown):
    assert without_password(url) == shown


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ada:{SECRET}@127.0.0.1:1/shop",
        f"postgresql://ada@127.0.0.1:1/shop?password={SECRET}",
        f"postgresql://ada:{SECRET}@host:port/shop",
        f"postgresql://ada:x/{SECRET}@db.example/shop",
        f"postgresql://ada:{SECRET}@127.0.0.1:1/shop?schema=A B",
        f"postgresql://ada:{SECRET}@127.0.0.1:1/shop?nonsense=1",
    ],
)
def test_no_error_has_the_password(url, caplog):
    with pytest.raises(StoreError) as raised:
        words(open_database(url, WORDS))
    chain, error = [], raised.value
    while error is not None:
        chain.append(repr(error))
        error = error.__cause__
    assert SECRET not in "".join(chain) + caplog.text


# Announcements.

ANNOUNCER = """
import sys
from hookline.stores.runs import RunRecord, RunStore, StoredEvent
store = RunStore(sys.argv[1])
store.open()
print("ready", flush=True)
for line in sys.stdin:
    store.write([], [StoredEvent(line.strip(), 1, "x", 1.0, b"{}")])
store.close()
"""


def test_a_listener_hears_what_another_process_stores_and_nothing_else(own_url):
    store, heard, others = RunStore(own_url), threading.Event(), threading.Event()
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with (
        subprocess.Popen([sys.executable, "-c", ANNOUNCER, own_url], env=with_source(), **pipes) as child,
        store.watch("run_1", heard.set),
        store.watch("run_2", others.set),
    ):
        assert child.stdout.readline() == "ready\n"
        block_until(heard.is_set)  # it listens now
        heard.clear()
        others.clear()
        child.stdin.write("run_1\n")
        child.stdin.flush()
        block_until(heard.is_set)
        assert not others.is_set()
        child.stdin.close()
    store.close()


def test_a_listener_is_called_after_the_server_was_away(own_cluster):
    database, heard = open_database(own_cluster.url("three"), WORDS), threading.Event()
    with database.listen("x", heard.set):
        block_until(heard.is_set)
        own_cluster.restart()
        heard.clear()
        block_until(heard.is_set)
        heard.clear()

        def announced():
            database.announce("x")
            return heard.is_set()

        block_until(announced)
    database.close()


def test_a_listener_of_a_store_that_is_opened_while_another_is_closed_hears_everything(own_url):
    """The thread of the first listener may not have ended when the second one begins."""
    first, heard = open_database(own_url, WORDS), threading.Event()
    entered, go_on = threading.Event(), threading.Event()

    def busy():
        entered.set()
        go_on.wait()

    with first.listen("x", busy):
        entered.wait()  # the thread is in a callback, so it ends later
        closing = threading.Thread(target=first.close)
        closing.start()
        block_until(lambda: first._server._listener.running is None)
        second = open_database(own_url, WORDS)
        with second.listen("y", heard.set):
            go_on.set()
            closing.join()
            block_until(heard.is_set)
            heard.clear()
            second.announce("y")
            block_until(heard.is_set)
    second.close()


async def test_a_watcher_of_an_approval_is_woken_by_a_decision_of_another_connection(postgres_url, monkeypatch):
    from hookline.stores import approvals as module
    from tests.stores.test_approvals import ask

    monkeypatch.setattr(module, "POLL_SECONDS", 3600.0)
    store, other, decided = ApprovalStore(postgres_url), ApprovalStore(postgres_url), threading.Event()
    row = ask(store)
    monkeypatch.setattr(module, "_wake_watchers", lambda path: None)  # as in another process
    with store.watch(row.id, lambda outcome: decided.set()):
        await asyncio.to_thread(time.sleep, 0)
        other.decide(row.id, decision="approve", digest=row.digest, by="ada")
        await asyncio.to_thread(block_until, decided.is_set)
    store.close()
    other.close()


def test_psycopg_is_imported_only_when_an_address_is_used():
    code = (
        "import sys; from hookline import stores; stores.RunStore(':memory:').open(); print('psycopg' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=with_source(), capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
