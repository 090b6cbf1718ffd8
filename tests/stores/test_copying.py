"""copy_stores: from SQLite files and JSON files to a PostgreSQL database, all or nothing."""

import sqlite3
from contextlib import closing

import pytest

from hookline import Attachment, Session
from hookline._kernel.values import Message
from hookline.stores import (
    ApprovalStore,
    AuditIndex,
    AuditLog,
    JsonSessionStore,
    MemoryStore,
    SqliteSessionStore,
    TicketBoard,
    verify_audit,
)
from hookline.stores.artifacts import ArtifactStore, DatabaseArtifactStore
from hookline.stores.blackboard import DatabaseBlackboard
from hookline.stores.calls import CallStore
from hookline.stores.chats import ChatStore
from hookline.stores.copying import copy_stores
from hookline.stores.errors import StoreError
from hookline.stores.facts import Gate, ObservedRun, RunFact
from hookline.stores.keys import KeyStore
from hookline.stores.mailbox import gateway_database
from hookline.stores.notes import DatabaseNotes, NotesFile
from hookline.stores.runs import RunRecord, RunStore, StoredEvent
from hookline.stores.schemas import STORES, all_schemas
from hookline.stores.skills import STATES, AnalysisOutcome, DatabaseSkillStore, QueuedRun, Skill, SkillStore
from hookline.stores.spending import Amount, Calendar, SpendingStore
from tests.postgres_cluster import MISSING
from tests.stores.test_approvals import ask

pytestmark = [pytest.mark.skipif(bool(MISSING), reason=MISSING), pytest.mark.sqlite]

NAMES = (
    "runs",
    "approvals",
    "keys",
    "memory",
    "tickets",
    "chats",
    "sessions",
    "artifacts",
    "notes",
    "audit",
    "skills",
    "blackboard",
    "spending",
    "calls",
    "gateway",
)


def contents(database, tables):
    """Return all rows of all tables, without the order of rows."""
    with database.transaction() as db:
        return {
            table: sorted(map(repr, db.execute(f"SELECT {', '.join(names)} FROM {table}")))
            for table, names in tables.items()
        }


def tables_of(path):
    with closing(sqlite3.connect(path)) as db, db:
        listed = [name for (name,) in db.execute("SELECT name FROM pragma_table_list WHERE type = 'table'")]
        found = {
            name: [f'"{column[1]}"' for column in db.execute(f"PRAGMA table_info({name})")]
            for name in listed
            if not name.startswith(("sqlite", "hookline"))
        }
    db.close()
    return found


STORE_CLASSES = (
    RunStore,
    ApprovalStore,
    KeyStore,
    MemoryStore,
    TicketBoard,
    ChatStore,
    SqliteSessionStore,
    DatabaseArtifactStore,
    DatabaseNotes,
    AuditIndex,
    DatabaseSkillStore,
    DatabaseBlackboard,
    SpendingStore,
    CallStore,
)


def opened(place):
    """Return the stores at a function of names, and their databases."""
    made = [cls(place(name)) for cls, name in zip(STORE_CLASSES, NAMES, strict=False)]
    databases = [
        next(getattr(store, name) for name in ("db", "_db", "_database") if hasattr(store, name)) for store in made
    ]
    return [*made, gateway := gateway_database(place("gateway"))], [*databases, gateway]


def fill_skills(store):
    for name in ("kept", "waiting", "bad"):
        store.propose(Skill(name, f"For {name}.", "Grüße\n\n---\n1. Do it.", origin=name, source_tools=("a", "b")))
    store.accept("kept")
    store.reject("bad")
    queue = store.queue()
    ident, _ = queue.add(QueuedRun("run/1", "task", "text", ("look",), "o1"))
    queue.add(QueuedRun("run/2", "task", "text", (), "o2", allowed_plugins=("p",)))
    with queue.claim(ident) as run:
        queue.finish(ident, run, AnalysisOutcome("failed", "why"))


def skills_in(store):
    queue = store.queue()
    shown = [(skill, store.raw(skill)) for state in STATES for skill in store.list(state)]
    return shown, [(ident, queue.get(ident)) for ident in queue.ids()], queue.outcomes()


def fill(place):
    stores, _ = opened(place)
    (
        runs,
        approvals,
        keys,
        memory,
        board,
        chats,
        sessions,
        artifacts,
        notes,
        index,
        skills,
        shared,
        spending,
        calls,
        gateway,
    ) = stores
    runs.write([RunRecord("run_1", "bot", "me", "", "", "", "", "http", "a\0b \x1a0 ünï")], [])
    runs.write([], [StoredEvent("run_1", n, "x", 0.1 * n, b'{"n": "\\u0000"}\0') for n in range(1, 1201)])
    run = ObservedRun("run_2", "bot", owner="me")
    gates = [(Gate(f"hook {n}", "guard", "block", 7, "a\0b ünï", refused=True),) for n in range(50)]
    facts = [
        RunFact(run, 1.0, "fire", n, "before_tool", hook=gate.hook, gates=(gate,)) for n, (gate,) in enumerate(gates)
    ]
    runs.add([RunRecord("run_2", "bot", "", "", "", "", "", "", "", cost=None)], facts)
    ask(approvals)
    calls.add("ann", "run_2 call_1", "refund", [])
    for name in ("first", "second"):
        keys.add(name, ["run"])
    keys.revoke("first")
    memory.add_fact("home", {"city": "Oslo"})
    memory.add_fact("home", "Rome")
    memory.add_episode("tool", "done")
    memory.erase("", "home")
    ticket = board.create("Write", by="ada", criteria=["a"])
    board.start(ticket.id, by="bob")
    chats.add("web", "1", "k", "Hi.")
    attached = Attachment.of(b"content", media_type="text/plain")
    sessions.save(Session("s", [Message("user", "Look.", attachments=(attached,))]))
    artifacts.save("a\0.txt", b"\0\xff")
    notes.append("Ann prefers tea.")
    fill_skills(skills)
    shared.set("a\0b", {"c": [None, "\0"]})
    shared.set("gone", 1)
    shared.delete("gone")
    spending.reserve("user 1d", "a\0b", "call", Amount(0.1, 5), calendar=Calendar("1d"), usd_limit=1.0)
    log = AuditLog(place("log").with_suffix(".jsonl"), index=index)
    for n in range(20):
        log.record("tool", run_id=f"run_{n}", tool="a\0b", outcome="ok")
    log.close()
    with gateway.transaction(write=True) as db:
        db.execute("INSERT INTO people VALUES ('c', 's', 1.5)")
        db.execute("INSERT INTO codes VALUES ('c', 't', ?, ?, 2.5)", (b"\0salt", b"\xff"))
    for store in stores:
        store.close()


def test_every_row_of_every_store_is_copied(tmp_path, postgres_url):
    fill(lambda name: tmp_path / f"{name}.db")
    seen = []
    copied = copy_stores(
        [tmp_path / f"{name}.db" for name in NAMES], postgres_url, lambda *progress: seen.append(progress)
    )
    only_postgres = {"leases", "limits"}  # those of running processes
    assert {each.name for each in copied} == {schema.name for schema in all_schemas()} - only_postgres
    total = sum(sum(each.rows.values()) for each in copied)
    assert seen[-1][1:] == (total, total)
    before, sources = opened(lambda name: tmp_path / f"{name}.db")
    after, targets = opened(lambda name: postgres_url)
    for source, target in zip(sources, targets, strict=True):
        tables = tables_of(source.path)
        stamps = tables.pop("stamp", None)  # it changes whenever keys change
        assert contents(source, tables) == contents(target, tables), source.schema.name
        assert tables or stamps
    assert before[0].facts("run_2") == after[0].facts("run_2")
    assert len(after[0].verdicts("run_2")) == 50
    assert before[2].keys() == after[2].keys()
    assert after[6].load("s").messages[0].attachments[0].data == b"content"
    new = [store.add_fact("home", "x").seq for store in (before[3], after[3])]
    assert new == [3, 3]  # the numbers of erased facts are not used again
    assert after[4].create("Next", by="ada").id == "T-2"
    for store in (*before, *after):
        store.close()


def test_sessions_in_json_files_are_copied_unchanged(tmp_path, postgres_url):
    folder = JsonSessionStore(tmp_path / "sessions")
    attachment = Attachment.of(b"content", media_type="text/plain")
    for id in ("one", "two", "../odd"):
        folder.save(Session(id, [Message("user", "Hi.", attachments=(attachment,))], {"id": id}))
    copy_stores([tmp_path / "sessions"], postgres_url)
    store = SqliteSessionStore(postgres_url)
    assert store.list() == folder.list()
    for id in ("one", "two", "../odd"):
        assert (store.load(id).metadata, store.load(id).messages) == ({"id": id}, folder.load(id).messages)
        assert store.load(id).messages[0].attachments[0].data == b"content"
    store.close()


def test_an_audit_log_goes_on_in_the_copied_index(tmp_path, postgres_url):
    def write(place):
        log = AuditLog(tmp_path / "log.jsonl", index=place)
        log.record("test", n=1)
        log.close()
        log.index.close()

    write(tmp_path / "index.db")
    copy_stores([tmp_path / "index.db"], postgres_url)
    write(postgres_url)
    index = AuditIndex(postgres_url)
    assert [log.seq for log in index.logs()] == [4]
    assert sorted(record.seq for record in index.records()) == [1, 2, 3, 4]
    assert verify_audit(tmp_path / "log.jsonl", index=index).ok
    index.close()


def test_a_folder_of_skills_is_copied_unchanged(tmp_path, postgres_url):
    folder = SkillStore(tmp_path / "skills")
    fill_skills(folder)
    by_hand = tmp_path / "skills" / "by-hand"
    by_hand.mkdir()
    (by_hand / "SKILL.md").write_text("Written by hand,\nwithout front matter.\n")
    (copied,) = copy_stores([tmp_path / "skills"], postgres_url)
    assert copied.rows == {"skills": 4, "queue": 2, "outcomes": 1}
    store = DatabaseSkillStore(postgres_url)
    assert skills_in(store) == skills_in(folder)
    store.close()


def test_a_text_file_of_notes_is_copied_unchanged(tmp_path, postgres_url):
    notes = NotesFile(tmp_path / "notes.md")
    notes.append("Ann prefers tea.")
    with open(notes.path, "a", encoding="utf-8") as file:
        file.write("\n# By hand\n  indented \u2028 x\x85y\r\nlast")
    copy_stores([notes.path], postgres_url)
    store = DatabaseNotes(postgres_url)
    assert store.read() == notes.path.read_bytes().decode() + "\n"
    store.close()


def test_a_folder_of_artifacts_is_copied_unchanged(tmp_path, postgres_url):
    folder = ArtifactStore(tmp_path / "artifacts")
    for name, data in (("a\0.txt", b"\0\xff"), ("../odd", b""), ("report.md", "Grüße".encode())):
        folder.save(name, data)
    copy_stores([tmp_path / "artifacts"], postgres_url)
    store = DatabaseArtifactStore(postgres_url)
    assert store.list() == folder.list()
    assert [store.load(each.name) for each in store.list()] == [folder.load(each.name) for each in folder.list()]
    store.close()


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("artifact", "is not an artifact, so nothing was copied"),
        ("beside", "script.py is beside a skill, and a database has only the SKILL.md"),
        ("invalid", "nothing was copied, because a skill cannot be read"),
        ("queued", "nothing was copied, because .* cannot be read"),
        ("notes.md", "the notes in .* cannot be read .*, so nothing was copied"),
    ],
)
def test_what_a_database_would_not_keep_of_a_folder_prevents_the_copy(tmp_path, postgres_url, kind, reason):
    if kind == "notes.md":
        (tmp_path / "notes.md").write_bytes(b"\xff")
    elif kind == "artifact":
        ArtifactStore(tmp_path / "folder").save("a", "text")
        (tmp_path / "folder" / "readme.txt").write_text("mine")
    else:
        folder = SkillStore(tmp_path / "folder")
        fill_skills(folder)
        if kind == "beside":
            (tmp_path / "folder" / "kept" / "script.py").write_text("print()")
        elif kind == "invalid":
            (tmp_path / "folder" / "kept" / "SKILL.md").write_text(" ")
        else:
            (tmp_path / "folder" / ".queue" / f"{folder.queue().ids()[0]}.json").write_text("{")
    with pytest.raises(StoreError, match=reason):
        copy_stores([tmp_path / (kind if kind == "notes.md" else "folder")], postgres_url)
    store = DatabaseSkillStore(postgres_url)
    assert store.list() == []
    store.close()


def test_if_one_store_cannot_be_copied_none_is(tmp_path, postgres_url):
    memory, board = MemoryStore(tmp_path / "memory.db"), TicketBoard(tmp_path / "tickets.db")
    memory.add_fact("home", "Oslo")
    board.create("Write", by="ada")
    with board._db.transaction(write=True) as db:
        db.execute("UPDATE tickets SET changes = 'damaged'")
    with pytest.raises(StoreError, match="damaged"):
        copy_stores([memory.path, board.path], postgres_url)
    target = MemoryStore(postgres_url)
    assert target.facts() == []
    with board._db.transaction(write=True) as db:
        db.execute("UPDATE tickets SET changes = 1")
    copy_stores([memory.path, board.path], postgres_url)  # again, after the repair
    assert target.fact("home").value == "Oslo"
    for store in (memory, board, target):
        store.close()


def test_a_store_that_has_rows_is_never_overwritten(tmp_path, postgres_url):
    memory, target = MemoryStore(tmp_path / "memory.db"), MemoryStore(postgres_url)
    memory.add_fact("home", "Oslo")
    target.add_fact("home", "Rome")
    with pytest.raises(StoreError, match="has memories already .*, and nothing was copied"):
        copy_stores([memory.path], postgres_url)
    assert [fact.value for fact in target.facts()] == ["Rome"]
    memory.close()
    target.close()


@pytest.mark.parametrize("kind", ["missing", "text", "other"])
def test_a_file_that_is_not_a_store_is_refused(tmp_path, postgres_url, kind):
    path = tmp_path / "x.db"
    if kind == "text":
        path.write_text("not a database, but long enough to be read as one" * 20)
    elif kind == "other":
        sqlite3.connect(path).execute("CREATE TABLE mine (x)").connection.close()
    with pytest.raises(StoreError, match="give"):
        copy_stores([path], postgres_url)


def test_every_store_with_tables_is_listed():
    from pathlib import Path

    import hookline.stores.copying as module

    folder = Path(module.__file__).parent
    with_tables = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for path in folder.rglob("*.py")
        if "\nSCHEMA = Schema(" in path.read_text()
    }
    assert with_tables == set(STORES)


def test_files_of_different_stores_are_told_apart():
    schemas = all_schemas()
    for each in ("application_id", "name"):
        assert len({getattr(schema, each) for schema in schemas}) == len(schemas)
