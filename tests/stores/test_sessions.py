"""Sessions that outlive a program."""

import json
import os
import sqlite3
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    Agent,
    JsonSessionStore,
    Message,
    ScriptedModel,
    Session,
    SqliteSessionStore,
    StoreError,
    ToolCall,
    call,
    reply,
    tool,
)
from hookline.stores import record

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
    Message, st.sampled_from(["system", "user", "assistant", "tool"]), st.text(max_size=30),
    st.lists(calls, max_size=2).map(tuple), maybe, maybe, st.booleans(), maybe,
)  # fmt: skip
names = st.text(min_size=1, max_size=300) | st.text(alphabet="aAbB.%/\\~-_ ", min_size=1, max_size=6)


BROKEN = {
    "empty": b"", "half": b'{"version": 1, "id": "x", "mess', "no object": b"[1]", "no version": b'{"id": "x"}',
    "wrong type": b'{"version": 1, "id": "x", "messages": 3}', "not text": b"\xff\xfe\0",
    "wrong message": b'{"version": 1, "id": "x", "messages": [{"role": "king"}]}',
    "newer": b'{"version": 2, "id": "x", "turns": []}', "deep": b'{"version": 1, "id": ' + b"[" * 99999,
}  # fmt: skip

WRITER = """
import sys
from hookline import JsonSessionStore, Message, Session, SqliteSessionStore
store = {"json": JsonSessionStore, "sqlite": SqliteSessionStore}[sys.argv[1]](sys.argv[2])
for n in range(40):
    store.save(Session("x", [Message("user", sys.argv[3] * 20_000)]))
"""


class Json:
    """What a test does with a store of JSON files behind its back."""

    name = "json"

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


class Sqlite:
    """What a test does with a SQLite store behind its back."""

    name = "sqlite"

    def __init__(self, folder):
        self.place = folder / "kept" / "sessions.db"

    def open(self):
        return SqliteSessionStore(self.place)

    def _do(self, *args):
        with sqlite3.connect(self.place) as db:
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


@pytest.fixture(params=[Json, Sqlite], ids=lambda kind: kind.name)
def behind(request, tmp_path):
    return request.param(tmp_path)


@pytest.fixture
def store(behind):
    return behind.open()


class TestEverySessionStore:
    @pytest.mark.parametrize("kind", [Json, Sqlite])
    @settings(deadline=None)
    @given(names, st.lists(messages, max_size=4), objects, st.text(), st.text(), st.text())
    def test_a_session_comes_back_as_it_was(self, tmp_path_factory, kind, id, said, data, key, platform, personality):
        store = kind(tmp_path_factory.getbasetemp() / "whole").open()
        store.save(Session(id, said, data, key=key, platform=platform, personality_id=personality))
        back = store.load(id)
        assert back.id == id
        assert list(back.messages) == said
        assert back.metadata == data
        assert (back.key, back.platform, back.personality_id) == (key, platform, personality)
        assert store.delete(id)

    @pytest.mark.parametrize(
        "id", ["../x", "/etc/passwd", "..", ".", "a/b", "a\\b", "a\0b", "CON", "nul", "a:b", "é", " ", "x" * 9999]
    )
    def test_wild_names_stay_where_they_belong(self, behind, store, tmp_path, id):
        store.save(Session(id, [HI]))
        _, folder = behind.files()
        assert {path.parent for path in tmp_path.rglob("*") if path.is_file()} == {folder}
        assert list(store.load(id).messages) == [HI]
        assert [summary.id for summary in store.list()] == [id]

    def test_names_that_differ_in_case_only_are_two_sessions(self, store):
        store.save(Session("Talk", [HI]))
        store.save(Session("talk", [HELLO]))
        assert [list(store.load(id).messages) for id in ("Talk", "talk")] == [[HI], [HELLO]]

    @pytest.mark.parametrize("id", ["", "\ud800"])
    def test_an_id_that_cannot_be_stored_is_refused(self, store, id):
        for use in (lambda: store.save(Session(id)), lambda: store.load(id), lambda: store.delete(id)):
            with pytest.raises(StoreError, match="give it one|use another"):
                use()

    def test_what_is_not_there_is_not_found(self, store):
        assert store.load("x") is None
        assert not store.delete("x")
        assert list(store.list()) == []

    def test_a_deleted_session_is_gone(self, store):
        store.save(Session("x"))
        assert store.delete("x")
        assert store.load("x") is None

    def test_the_list_tells_what_there_is_newest_first(self, store, monkeypatch):
        said = {"a": [HI, HELLO], "b": [HELLO], "c": [Message("user", "x \n y" * 99)]}
        for at, (id, messages) in enumerate(said.items()):
            monkeypatch.setattr(record.time, "time", lambda at=at: 100.0 + at)
            store.save(Session(id, messages))
        assert [(s.id, s.messages, s.saved_at, s.title, s.problem) for s in store.list()] == [
            ("c", 1, 102.0, ("x y" * 99)[:80], ""), ("b", 1, 101.0, "", ""), ("a", 2, 100.0, "hi", ""),
        ]  # fmt: skip

    def test_a_chat_goes_on_in_another_program(self, behind, store):
        @tool
        def ping() -> str:
            return "pong"

        session = Session("chat", metadata={"lang": "it"})
        agent = Agent("a", llm=ScriptedModel([call("ping"), reply("one"), reply("two")]), tools=[ping])
        for task in ("first", "second"):
            agent.run(task, session=session)
            store.save(session)
            back = behind.open().load("chat")
            assert list(back.messages) == list(session.messages)
        other = Agent("a", llm=ScriptedModel([reply("three")]))
        other.run("third", session=back)
        said = ["first", "", "pong", "one", "second", "two", "third"]
        assert [m.content for m in other.model.requests[0].messages] == said
        assert back.metadata == {"lang": "it"}

    @pytest.mark.parametrize("started", [True, False])
    def test_a_first_run_stays_the_first_across_programs(self, store, started):
        session = Session("x")
        if started:
            session.first_run()
        store.save(session)
        assert session.started == started  # looking does not count
        assert store.load("x").first_run() == (not started)

    @pytest.mark.parametrize("kind", BROKEN)
    def test_what_cannot_be_read_is_named_and_kept(self, behind, store, kind):
        store.save(Session("x", [HI]))
        store.save(Session("y", [HI]))
        behind.put("x", BROKEN[kind])
        with pytest.raises(StoreError) as caught:
            store.load("x")
        assert str(behind.place) in str(caught.value)
        assert ("update Hookline" if kind == "newer" else "mend it or move it away") in str(caught.value)
        with pytest.raises(StoreError, match="cannot be read|newer"):
            store.save(Session("x", [HELLO]))
        assert behind.data("x") == BROKEN[kind]
        assert {s.id: bool(s.problem) for s in store.list()} == {"x": True, "y": False}

    def test_what_stands_under_another_name_is_not_taken_for_its_session(self, behind, store):
        store.save(Session("x", [HI]))
        behind.rename("x", "y")
        with pytest.raises(StoreError, match="holds the session 'x'"):
            store.load("y")
        assert [bool(s.problem) for s in store.list()] == [True]

    def test_a_folder_that_cannot_be_made_is_an_error(self, tmp_path, behind):
        (tmp_path / "kept").write_text("")
        with pytest.raises(StoreError, match=r"cannot (save|be read|be made)"):
            type(behind)(tmp_path / "kept").open().save(Session("x"))

    def test_only_the_user_may_read_the_files(self, behind, store):
        store.save(Session("x", [HI]))
        files, folder = behind.files()
        assert [stat.S_IMODE(file.stat().st_mode) for file in files] == [0o600] * len(files)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_what_is_written_is_plain_json_with_a_version(self, behind, store):
        store.save(Session("x", [HI], {"n": 1}))
        data = json.loads(behind.data("x"))
        assert (data["version"], data["id"], data["metadata"]) == (1, "x", {"n": 1})
        assert data["messages"][0]["content"] == "hi"

    def test_two_programs_that_save_at_once_never_leave_half_a_session(self, behind, store):
        store.save(Session("x", [Message("user", "a" * 20_000)]))
        env = {**os.environ, "PYTHONPATH": str(Path(record.__file__).parents[2])}
        command = [sys.executable, "-c", WRITER, behind.name, behind.place]
        writers = [subprocess.Popen([*command, who], env=env) for who in "ab"]
        seen = set()
        try:
            while any(writer.poll() is None for writer in writers):
                (message,) = store.load("x").messages
                seen.add((message.content[0], len(set(message.content)), len(message.content)))
        finally:
            codes = [writer.wait() for writer in writers]
        assert codes == [0, 0]
        assert seen <= {("a", 1, 20_000), ("b", 1, 20_000)}
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


def test_a_save_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
    store = JsonSessionStore(tmp_path)
    store.save(Session("x", [HI]))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="cannot save the session 'x'.*No space left"):
        store.save(Session("x", [HELLO]))
    assert list(store.load("x").messages) == [HI]
    assert len(list(store.folder.iterdir())) == 1


def test_files_that_are_saved_at_once_leave_nothing_else_behind(tmp_path):
    store = JsonSessionStore(tmp_path)
    for _ in range(3):
        store.save(Session("x", [HI]))
    assert [path.name for path in store.folder.iterdir()] == ["session-x.json"]


def test_sqlite_lists_in_the_order_of_saving_even_if_the_clock_jumps_back(tmp_path, monkeypatch):
    store = SqliteSessionStore(tmp_path / "s.db")
    for id, at in {"a": 300.0, "b": 200.0, "c": 100.0}.items():
        monkeypatch.setattr(record.time, "time", lambda at=at: at)
        store.save(Session(id))
    store.save(Session("a"))
    assert [s.id for s in store.list()] == ["a", "c", "b"]


@pytest.mark.parametrize("kind", [JsonSessionStore, SqliteSessionStore])
def test_a_program_that_changes_its_working_folder_finds_its_sessions(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = kind("kept.db")
    store.save(Session("x", [HI]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert store.load("x").messages == (HI,)
