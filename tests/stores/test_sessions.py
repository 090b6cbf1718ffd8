"""JsonSessionStore and SqliteSessionStore."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Agent, Message, ScriptedModel, Session, call, reply, tool
from hookline.hooks import PersistSessionHook
from hookline.payloads import ToolCall
from hookline.stores import JsonSessionStore, SqliteSessionStore, StoreError, sessions
from tests.environment import with_source

HI, HELLO = Message("user", "hi"), Message("assistant", "hello")

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
objects = st.dictionaries(st.text(max_size=5), json_values, max_size=3)
calls = st.builds(ToolCall, st.text(max_size=5), st.text(max_size=5), objects | st.text(max_size=9))
maybe = st.none() | st.text(max_size=5)
messages = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    st.text(max_size=30),
    st.lists(calls, max_size=2).map(tuple),
    maybe,
    maybe,
    st.booleans(),
    maybe,
)
names = st.text(min_size=1, max_size=300) | st.text(alphabet="aAbB.%/\\~-_ ", min_size=1, max_size=6)


BROKEN = {
    "empty": b"",
    "half": b'{"version": 1, "id": "x", "mess',
    "no object": b"[1]",
    "no version": b'{"id": "x"}',
    "wrong type": b'{"version": 1, "id": "x", "messages": 3}',
    "not text": b"\xff\xfe\0",
    "wrong message": b'{"version": 1, "id": "x", "messages": [{"role": "king"}]}',
    "newer": b'{"version": 2, "id": "x", "turns": []}',
    "deep": b'{"version": 1, "id": ' + b"[" * 99999,
}

WRITER = """
import sys
from hookline import Message, Session
from hookline.stores import JsonSessionStore, SqliteSessionStore
store = {"json": JsonSessionStore, "sqlite": SqliteSessionStore}[sys.argv[1]](sys.argv[2])
session = store.load("x") or Session("x")
for n in range(20):
    session.messages = (*session.messages, Message("user", sys.argv[3] * 5_000 + str(n)))
    store.save(session)
"""


class JsonBackend:
    """Direct access of a test to the files of a store."""

    name = "json"
    advice = "repair the file or move it away"

    def __init__(self, folder):
        self.place = folder / "kept"

    def open(self):
        return JsonSessionStore(self.place)

    def data(self, id):
        return self.open()._path(id).read_bytes()

    def put(self, id, data):
        self.open()._path(id).write_bytes(data)

    def rename(self, old, new):
        store = self.open()
        store._path(old).rename(store._path(new))

    def files(self):
        return [self.open()._path("x")], self.place


class SqliteBackend:
    """Direct access of a test to the database of a store."""

    name = "sqlite"
    advice = "delete it with store.delete('x')"

    def __init__(self, folder):
        self.place = folder / "kept" / "sessions.db"

    def open(self):
        return SqliteSessionStore(self.place)

    def _do(self, *args):
        with closing(sqlite3.connect(self.place)) as db, db:
            rows = db.execute(*args).fetchall()
        db.close()
        return rows

    def data(self, id):
        return self._do("SELECT data FROM sessions WHERE id = ?", (id,))[0][0]

    def put(self, id, data):
        self._do("UPDATE sessions SET data = ? WHERE id = ?", (data, id))

    def rename(self, old, new):
        self._do("UPDATE sessions SET id = ? WHERE id = ?", (new, old))

    def files(self):
        return [self.place, Path(f"{self.place}-wal")], self.place.parent


@pytest.fixture(params=[JsonBackend, SqliteBackend], ids=lambda kind: kind.name)
def backend(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
def store(backend):
    return backend.open()


class TestEverySessionStore:
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", [JsonBackend, SqliteBackend])
    @settings(deadline=None)
    @given(names, st.lists(messages, max_size=4), objects, st.text(), st.text(), st.text())
    def test_a_saved_session_is_loaded_unchanged(
        self, tmp_path_factory, kind, id, contents, data, key, platform, personality
    ):
        store = kind(tmp_path_factory.getbasetemp() / "whole").open()
        session = Session(id, contents, data, key=key, platform=platform, personality_id=personality)
        contents = list(session.messages)  # calls that shared an id got new ids
        store.save(session)
        back = store.load(id)
        assert back.id == id
        assert list(back.messages) == contents
        assert back.metadata == data
        assert (back.key, back.platform, back.personality_id) == (key, platform, personality)
        assert store.delete(id)

    @pytest.mark.parametrize(
        "id", ["../x", "/etc/passwd", "..", ".", "a/b", "a\\b", "a\0b", "CON", "nul", "a:b", "é", " ", "x" * 9999]
    )
    @pytest.mark.sqlite
    def test_unusual_ids_stay_in_the_store(self, backend, store, tmp_path, id):
        store.save(Session(id, [HI]))
        _, folder = backend.files()
        assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} == {folder}
        assert list(store.load(id).messages) == [HI]
        assert [summary.id for summary in store.list()] == [id]

    def test_names_that_differ_in_case_only_are_two_sessions(self, store):
        store.save(Session("Talk", [HI]))
        store.save(Session("talk", [HELLO]))
        assert [list(store.load(id).messages) for id in ("Talk", "talk")] == [[HI], [HELLO]]

    @pytest.mark.parametrize("id", ["", "\ud800"])
    def test_an_invalid_id_is_refused(self, store, id):
        for use in (lambda: store.save(Session(id)), lambda: store.load(id), lambda: store.delete(id)):
            with pytest.raises(StoreError, match="give it an id|use another"):
                use()

    def test_an_unknown_session_is_not_found(self, store):
        assert store.load("x") is None
        assert not store.delete("x")
        assert list(store.list()) == []

    def test_a_deleted_session_is_gone(self, store):
        store.save(Session("x"))
        assert store.delete("x")
        assert store.load("x") is None

    def test_the_list_summarizes_all_sessions_newest_first(self, store, monkeypatch):
        contents = {"a": [HI, HELLO], "b": [HELLO], "c": [Message("user", "x \n y" * 99)]}
        for at, (id, messages) in enumerate(contents.items()):
            monkeypatch.setattr(sessions.time, "time", lambda at=at: 100.0 + at)
            store.save(Session(id, messages))
        assert [(s.id, s.messages, s.saved_at, s.title, s.problem) for s in store.list()] == [
            ("c", 1, 102.0, ("x y" * 99)[:80], ""),
            ("b", 1, 101.0, "", ""),
            ("a", 2, 100.0, "hi", ""),
        ]

    def test_a_chat_continues_in_another_process(self, backend, store):
        @tool
        def ping() -> str:
            return "pong"

        session = Session("chat", metadata={"lang": "it"})
        agent = Agent("a", llm=ScriptedModel([call("ping"), reply("one"), reply("two")]), tools=[ping])
        for task in ("first", "second"):
            agent.run(task, session=session)
            store.save(session)
            back = backend.open().load("chat")
            assert list(back.messages) == list(session.messages)
        other = Agent("a", llm=ScriptedModel([reply("three")]))
        other.run("third", session=back)
        contents = ["first", "", "pong", "one", "second", "two", "third"]
        assert [m.content for m in other.model.requests[0].messages] == contents
        assert back.metadata == {"lang": "it"}

    @pytest.mark.parametrize("started", [True, False])
    def test_a_first_run_stays_the_first_across_processes(self, store, started):
        session = Session("x")
        if started:
            session.first_run()
        store.save(session)
        assert session.started == started  # reading ``started`` does not change it
        assert store.load("x").first_run() == (not started)

    @pytest.mark.parametrize("kind", BROKEN)
    @pytest.mark.sqlite
    def test_an_unreadable_session_is_reported_and_not_overwritten(self, backend, store, kind):
        store.save(Session("x", [HI]))
        store.save(Session("y", [HI]))
        backend.put("x", BROKEN[kind])
        with pytest.raises(StoreError) as caught:
            store.load("x")
        assert str(backend.place) in str(caught.value)
        assert ("update Hookline" if kind == "newer" else backend.advice) in str(caught.value)
        with pytest.raises(StoreError, match="cannot be read|newer"):
            store.save(Session("x", [HELLO]))
        assert backend.data("x") == BROKEN[kind]
        assert {s.id: bool(s.problem) for s in store.list()} == {"x": True, "y": False}

    @pytest.mark.sqlite
    def test_a_session_stored_under_a_wrong_name_is_an_error(self, backend, store):
        store.save(Session("x", [HI]))
        backend.rename("x", "y")
        with pytest.raises(StoreError, match="holds the session 'x'"):
            store.load("y")
        assert [bool(s.problem) for s in store.list()] == [True]

    @pytest.mark.sqlite
    def test_a_folder_that_cannot_be_created_is_an_error(self, tmp_path, backend):
        (tmp_path / "kept").write_text("")
        with pytest.raises(StoreError, match=r"cannot (save|be read|be created)"):
            type(backend)(tmp_path / "kept").open().save(Session("x"))

    @pytest.mark.sqlite
    def test_files_are_readable_by_their_owner_only(self, backend, store):
        store.save(Session("x", [HI]))
        files, folder = backend.files()
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * len(files)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    @pytest.mark.sqlite
    def test_the_stored_format_is_plain_json_with_a_version(self, backend, store):
        store.save(Session("x", [HI], {"n": 1}))
        data = json.loads(backend.data("x"))
        assert (data["version"], data["id"], data["metadata"]) == (1, "x", {"n": 1})
        assert data["messages"][0]["content"] == "hi"

    @pytest.mark.parametrize("new", [True, False])
    @pytest.mark.slow
    def test_concurrent_saves_lose_nothing_and_leave_no_incomplete_session(self, backend, store, new):
        if not new:
            store.save(Session("x", [HI]))
        env = with_source()
        command = [sys.executable, "-c", WRITER, backend.name, backend.place]
        writers = [subprocess.Popen([*command, who], env=env) for who in "ab"]
        sizes = [0]
        try:
            while any(writer.poll() is None for writer in writers):
                found = store.load("x")
                sizes.append(len(found.messages) if found else 0)
        finally:
            codes = [writer.wait() for writer in writers]
        assert codes == [0, 0]
        assert sizes == sorted(sizes)
        contents = [message.content for message in store.load("x").messages]
        assert contents[: len(contents) - 40] == ([] if new else ["hi"])
        for who in "ab":
            assert [text for text in contents if text[0] == who] == [who * 5_000 + str(n) for n in range(20)]
        assert len(store.list()) == 1

    def test_threads_may_share_a_store(self, store):
        session = Session("x")

        def work(n):
            session.save(session.messages, (), [Message("user", str(n))], {"n": n})
            store.save(session)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        back = store.load("x")
        assert (list(back.messages), back.metadata) == (list(session.messages), session.metadata)


@given(st.lists(names, min_size=2, max_size=4, unique=True))
def test_no_two_names_share_a_file_and_none_leaves_the_folder(tmp_path_factory, ids):
    folder = tmp_path_factory.getbasetemp() / "names"
    files = [JsonSessionStore(folder)._path(id) for id in ids]
    assert len({file.name.casefold() for file in files}) == len(ids)
    for file in files:
        assert file.resolve().parent == folder.resolve()
        assert file.name.isascii()
        assert len(file.name) < 200


def test_a_failed_save_keeps_the_stored_session(tmp_path, monkeypatch):
    store = JsonSessionStore(tmp_path)
    store.save(Session("x", [HI]))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="cannot save the session 'x'.*No space left"):
        store.save(Session("x", [HELLO]))
    assert list(store.load("x").messages) == [HI]
    assert {path.name for path in store.folder.iterdir()} == {".lock", "session-x.json"}


def test_concurrent_saves_leave_only_the_lock_file(tmp_path):
    store = JsonSessionStore(tmp_path)
    for _ in range(3):
        store.save(Session("x", [HI]))
    assert {path.name for path in store.folder.iterdir()} == {".lock", "session-x.json"}


def test_sqlite_lists_in_the_order_of_saving_even_if_the_clock_jumps_back(tmp_path, monkeypatch):
    store = SqliteSessionStore(tmp_path / "s.db")
    for id, at in {"a": 300.0, "b": 200.0, "c": 100.0}.items():
        monkeypatch.setattr(sessions.time, "time", lambda at=at: at)
        store.save(Session(id))
    store.save(Session("a"))
    assert [s.id for s in store.list()] == ["a", "c", "b"]


def texts(session):
    return [message.content for message in session.messages]


def add_messages(session, *contents):
    session.messages = (*session.messages, *(Message("user", text) for text in contents))
    return session


class TestSavingWhatOthersSavedMeanwhile:
    def test_two_continuations_of_one_session_are_both_kept(self, backend, store):
        store.save(Session("t", [HI, HELLO]))
        one, two = store.load("t"), backend.open().load("t")
        for session, task in ((one, "one?"), (two, "two?")):
            hooks = [PersistSessionHook(store)]
            Agent("a", llm=ScriptedModel([reply(task[:3])]), hooks=hooks).run(task, session=session)
        whole = ["hi", "hello", "one?", "one", "two?", "two"]
        assert texts(store.load("t")) == texts(two) == whole
        store.save(add_messages(one, "three"))
        assert texts(store.load("t")) == texts(one) == [*whole, "three"]

    def test_two_new_sessions_with_one_id_are_both_kept_even_if_equal(self, store):
        for n in "12":
            store.save(add_messages(Session("t", metadata={"n": n}), "hi", "hello"))
        assert texts(store.load("t")) == ["hi", "hello"] * 2
        assert store.load("t").metadata == {"n": "2"}

    def test_a_session_created_from_the_stored_messages_continues_them(self, store):
        store.save(Session("t", [HI]))
        for messages in ([HI, HELLO], [HI, HELLO, HI]):
            store.save(Session("t", messages))
            assert list(store.load("t").messages) == messages
        other = add_messages(Session("t", [HI, HELLO, HI]), "mine")
        store.save(add_messages(store.load("t"), "theirs"))
        store.save(other)
        assert texts(other) == ["hi", "hello", "hi", "theirs", "mine"]

    def test_saving_again_changes_nothing(self, store):
        session = Session("t", [HI])
        for _ in range(3):
            store.save(session)
        assert list(store.load("t").messages) == list(session.messages) == [HI]

    def test_a_rewritten_transcript_replaces_the_stored_one(self, store):
        store.save(Session("t", [HI, HELLO, HI]))
        session = store.load("t")
        session.messages = (Message("user", "summary"), HI)
        store.save(session)
        assert texts(store.load("t")) == ["summary", "hi"]

    @pytest.mark.parametrize("rewritten", [True, False])
    def test_a_rewritten_transcript_loses_no_messages_of_others(self, store, rewritten):
        store.save(Session("t", [HI, HELLO]))
        mine, theirs = store.load("t"), store.load("t")
        if rewritten:
            theirs.messages = (Message("user", "their summary"), HELLO)
        store.save(add_messages(theirs, "theirs"))
        mine.messages = (Message("user", "my summary"), HELLO)
        store.save(add_messages(mine, "mine"))
        kept = ["their summary", "hello"] if rewritten else ["hi", "hello"]
        assert texts(store.load("t")) == texts(mine) == [*kept, "theirs", "my summary", "mine"]

    def test_a_save_of_another_process_is_noticed(self, store):
        session = Session("s", [Message("user", "one")])
        store.save(session)
        store.save(session)
        other = store.load("s")
        other.messages = (*other.messages, Message("user", "theirs"))
        store.save(other)
        session.messages = (*session.messages, Message("user", "mine"))
        store.save(session)
        assert [message.content for message in store.load("s").messages] == ["one", "theirs", "mine"]

    def test_a_session_deleted_meanwhile_is_saved_completely(self, store):
        session = Session("t", [HI])
        store.save(session)
        store.delete("t")
        store.save(add_messages(session, "more"))
        assert texts(store.load("t")) == ["hi", "more"]

    def test_threads_with_their_own_sessions_lose_nothing(self, backend, store):
        store.save(Session("t", [HI]))

        def work(n):
            session = backend.open().load("t")
            for turn in range(5):
                store.save(add_messages(session, f"{n}.{turn}"))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        contents = texts(store.load("t"))
        assert (contents[0], len(contents)) == ("hi", 31)
        for n in range(6):
            assert [text for text in contents if text.startswith(f"{n}.")] == [f"{n}.{turn}" for turn in range(5)]

    def test_messages_of_a_current_run_follow_messages_added_by_a_save(self, store):
        store.save(Session("t", [HI]))
        session = store.load("t")
        base = session.messages
        store.save(add_messages(store.load("t"), "theirs"))
        store.save(session)
        session.save(base, (*base, HELLO), (HELLO,), {})
        assert texts(session) == ["hi", "theirs", "hello"]

    def test_messages_added_during_a_merging_save_stay_at_the_end(self, store, monkeypatch):
        store.save(Session("t", [HI]))
        mine = store.load("t")
        store.save(add_messages(store.load("t"), "theirs"))
        add_messages(mine, "mine")
        with monkeypatch.context() as patch:
            patch.setattr(sessions.time, "time", lambda: add_messages(mine, "late") and 1.0)
            store.save(mine)
        assert texts(store.load("t")) == ["hi", "theirs", "mine"]
        assert texts(mine) == ["hi", "theirs", "mine", "late"]
        store.save(mine)
        assert texts(store.load("t")) == ["hi", "theirs", "mine", "late"]

    def test_the_next_save_makes_up_for_a_failed_one(self, store, monkeypatch):
        store.save(Session("t", [HI]))
        mine = store.load("t")
        store.save(add_messages(store.load("t"), "theirs"))
        with monkeypatch.context() as patch:
            patch.setattr(sessions.SessionRecord, "to_json", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.save(add_messages(mine, "mine"))
        assert texts(mine) == ["hi", "mine"]
        store.save(mine)
        assert texts(store.load("t")) == ["hi", "theirs", "mine"]

    def test_a_session_in_two_stores_is_merged_separately(self, tmp_path):
        one, two, three = JsonSessionStore(tmp_path), SqliteSessionStore(":memory:"), SqliteSessionStore(":memory:")
        three.save(Session("t", [HELLO]))
        session = Session("t", [HI])
        for store in (one, two, three):
            store.save(session)
        assert [texts(store.load("t")) for store in (one, two, three)] == [["hi"], ["hi"], ["hello", "hi"]]

    def test_a_started_session_stays_started(self, store):
        begun = Session("t")
        begun.first_run()
        store.save(begun)
        store.save(Session("t"))
        assert not store.load("t").first_run()

    def test_a_renamed_session_loses_nothing_and_gets_no_messages_of_others(self, store):
        session = add_messages(Session("own"), "one")
        store.save(session.renamed("copy"))
        store.save(add_messages(store.load("copy"), "theirs"))
        for text in ("two", "three"):
            store.save(add_messages(session, text).renamed("copy"))
        assert texts(store.load("copy")) == ["one", "theirs", "two", "three"]
        assert texts(session) == ["one", "two", "three"]


def test_a_value_that_is_not_a_session_is_refused(store):
    with pytest.raises(TypeError, match=r"takes a Session, not str: save\(Session\(id, messages\)\)"):
        store.save("x")


def test_a_folder_that_is_not_a_path_is_refused():
    with pytest.raises(TypeError, match="takes a folder, as text or a Path, not NoneType"):
        JsonSessionStore(None)


def test_a_file_in_place_of_the_folder_is_an_error_with_advice(tmp_path):
    (tmp_path / "kept").write_text("")
    store = JsonSessionStore(tmp_path / "kept")
    for use in (store.list, lambda: store.load("x"), lambda: store.save(Session("x")), lambda: store.delete("x")):
        with pytest.raises(StoreError, match=r"that is a file: give a folder, or a file that ends in \.db for SQLite"):
            use()


def test_an_inaccessible_folder_is_an_error_with_advice(tmp_path, monkeypatch):
    store = JsonSessionStore(tmp_path)
    store.save(Session("x", [HI]))

    def closed(path, *_):
        raise PermissionError(13, "Permission denied", str(path))

    with monkeypatch.context() as patch:
        patch.setattr(os, "listdir", closed)
        with pytest.raises(StoreError, match="cannot be listed.*give a folder that you can read"):
            store.list()
    monkeypatch.setattr(os, "open", closed)
    for use in (lambda: store.save(Session("x", [HELLO])), lambda: store.delete("x")):
        with pytest.raises(StoreError, match="give a folder that you can write to"):
            use()


def test_a_locked_folder_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "LOCK_SECONDS", 0.05)
    one, two = JsonSessionStore(tmp_path), JsonSessionStore(tmp_path)
    with one._locked(), pytest.raises(StoreError, match="another program held the lock"):
        two.save(Session("x"))


@pytest.mark.parametrize(("name", "kind"), [("s", JsonSessionStore), ("s.db", SqliteSessionStore)])
def test_the_extension_of_a_path_determines_the_kind_of_store(tmp_path, name, kind):
    assert type(sessions.session_store_at(tmp_path / name)) is kind


@pytest.mark.parametrize("kind", [JsonSessionStore, SqliteSessionStore])
def test_a_change_of_the_working_folder_does_not_affect_a_store(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = kind("kept.db")
    store.save(Session("x", [HI]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert store.load("x").messages == (HI,)
