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

from hookline import Agent, Message, ScriptedModel, Session, call, reply, tool
from hookline.hooks import PersistSessionHook
from hookline.payloads import ToolCall
from hookline.stores import JsonSessionStore, SqliteSessionStore, StoreError, sessions

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
from hookline import Message, Session
from hookline.stores import JsonSessionStore, SqliteSessionStore
store = {"json": JsonSessionStore, "sqlite": SqliteSessionStore}[sys.argv[1]](sys.argv[2])
session = store.load("x") or Session("x")
for n in range(20):
    session.messages = (*session.messages, Message("user", sys.argv[3] * 5_000 + str(n)))
    store.save(session)
"""


class Json:
    """What a test does with a store of JSON files behind its back."""

    name = "json"
    mend = "mend it or move it away"

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
    mend = "delete it with store.delete('x')"

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
    @pytest.mark.slow
    @pytest.mark.parametrize("kind", [Json, Sqlite])
    @settings(deadline=None)
    @given(names, st.lists(messages, max_size=4), objects, st.text(), st.text(), st.text())
    def test_a_session_comes_back_as_it_was(self, tmp_path_factory, kind, id, said, data, key, platform, personality):
        store = kind(tmp_path_factory.getbasetemp() / "whole").open()
        session = Session(id, said, data, key=key, platform=platform, personality_id=personality)
        said = list(session.messages)  # calls that share an id have got ids of their own
        store.save(session)
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
            monkeypatch.setattr(sessions.time, "time", lambda at=at: 100.0 + at)
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
        assert ("update Hookline" if kind == "newer" else behind.mend) in str(caught.value)
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

    @pytest.mark.parametrize("new", [True, False])
    def test_two_programs_that_save_at_once_lose_nothing_and_never_leave_half_a_session(self, behind, store, new):
        if not new:
            store.save(Session("x", [HI]))
        env = {**os.environ, "PYTHONPATH": str(Path(sessions.__file__).parents[2])}
        command = [sys.executable, "-c", WRITER, behind.name, behind.place]
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
        said = [message.content for message in store.load("x").messages]
        assert said[: len(said) - 40] == ([] if new else ["hi"])
        for who in "ab":
            assert [text for text in said if text[0] == who] == [who * 5_000 + str(n) for n in range(20)]
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
    assert {path.name for path in store.folder.iterdir()} == {".lock", "session-x.json"}


def test_files_that_are_saved_at_once_leave_only_their_lock_behind(tmp_path):
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


def say(session, *said):
    session.messages = (*session.messages, *(Message("user", text) for text in said))
    return session


class TestSavingWhatOthersSavedMeanwhile:
    def test_two_conversations_that_went_on_from_one_are_both_kept(self, behind, store):
        store.save(Session("t", [HI, HELLO]))
        one, two = store.load("t"), behind.open().load("t")
        for session, task in ((one, "one?"), (two, "two?")):
            hooks = [PersistSessionHook(store)]
            Agent("a", llm=ScriptedModel([reply(task[:3])]), hooks=hooks).run(task, session=session)
        whole = ["hi", "hello", "one?", "one", "two?", "two"]
        assert texts(store.load("t")) == texts(two) == whole
        store.save(say(one, "three"))
        assert texts(store.load("t")) == texts(one) == [*whole, "three"]

    def test_conversations_that_were_both_new_are_both_kept_even_if_they_say_the_same(self, store):
        for n in "12":
            store.save(say(Session("t", metadata={"n": n}), "hi", "hello"))
        assert texts(store.load("t")) == ["hi", "hello"] * 2
        assert store.load("t").metadata == {"n": "2"}

    def test_a_session_made_of_what_is_stored_goes_on_from_it(self, store):
        store.save(Session("t", [HI]))
        for messages in ([HI, HELLO], [HI, HELLO, HI]):
            store.save(Session("t", messages))
            assert list(store.load("t").messages) == messages
        other = say(Session("t", [HI, HELLO, HI]), "mine")
        store.save(say(store.load("t"), "theirs"))
        store.save(other)
        assert texts(other) == ["hi", "hello", "hi", "theirs", "mine"]

    def test_saving_again_changes_nothing(self, store):
        session = Session("t", [HI])
        for _ in range(3):
            store.save(session)
        assert list(store.load("t").messages) == list(session.messages) == [HI]

    def test_a_transcript_that_was_rewritten_replaces_what_nobody_else_changed(self, store):
        store.save(Session("t", [HI, HELLO, HI]))
        session = store.load("t")
        session.messages = (Message("user", "summary"), HI)
        store.save(session)
        assert texts(store.load("t")) == ["summary", "hi"]

    @pytest.mark.parametrize("rewritten", [True, False])
    def test_of_a_transcript_that_was_rewritten_here_nothing_of_the_others_is_lost(self, store, rewritten):
        store.save(Session("t", [HI, HELLO]))
        mine, theirs = store.load("t"), store.load("t")
        if rewritten:
            theirs.messages = (Message("user", "their summary"), HELLO)
        store.save(say(theirs, "theirs"))
        mine.messages = (Message("user", "my summary"), HELLO)
        store.save(say(mine, "mine"))
        kept = ["their summary", "hello"] if rewritten else ["hi", "hello"]
        assert texts(store.load("t")) == texts(mine) == [*kept, "theirs", "my summary", "mine"]

    def test_what_somebody_else_wrote_is_noticed_also_if_only_that_differs(self, store):
        session = Session("s", [Message("user", "one")])
        store.save(session)
        store.save(session)
        other = store.load("s")
        other.messages = (*other.messages, Message("user", "theirs"))
        store.save(other)
        session.messages = (*session.messages, Message("user", "mine"))
        store.save(session)
        assert [message.content for message in store.load("s").messages] == ["one", "theirs", "mine"]

    def test_a_session_that_was_deleted_meanwhile_is_saved_whole(self, store):
        session = Session("t", [HI])
        store.save(session)
        store.delete("t")
        store.save(say(session, "more"))
        assert texts(store.load("t")) == ["hi", "more"]

    def test_threads_with_sessions_of_their_own_lose_nothing(self, behind, store):
        store.save(Session("t", [HI]))

        def work(n):
            session = behind.open().load("t")
            for turn in range(5):
                store.save(say(session, f"{n}.{turn}"))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        said = texts(store.load("t"))
        assert (said[0], len(said)) == ("hi", 31)
        for n in range(6):
            assert [text for text in said if text.startswith(f"{n}.")] == [f"{n}.{turn}" for turn in range(5)]

    def test_a_run_that_is_under_way_goes_after_what_a_save_brought_in(self, store):
        store.save(Session("t", [HI]))
        session = store.load("t")
        base = session.messages
        store.save(say(store.load("t"), "theirs"))
        store.save(session)
        session.save(base, (*base, HELLO), (HELLO,), {})
        assert texts(session) == ["hi", "theirs", "hello"]

    def test_what_is_added_while_a_save_brings_others_in_stays_at_the_end(self, store, monkeypatch):
        store.save(Session("t", [HI]))
        mine = store.load("t")
        store.save(say(store.load("t"), "theirs"))
        say(mine, "mine")
        with monkeypatch.context() as patch:
            patch.setattr(sessions.time, "time", lambda: say(mine, "late") and 1.0)
            store.save(mine)
        assert texts(store.load("t")) == ["hi", "theirs", "mine"]
        assert texts(mine) == ["hi", "theirs", "mine", "late"]
        store.save(mine)
        assert texts(store.load("t")) == ["hi", "theirs", "mine", "late"]

    def test_a_save_that_fails_is_made_up_for_by_the_next(self, store, monkeypatch):
        store.save(Session("t", [HI]))
        mine = store.load("t")
        store.save(say(store.load("t"), "theirs"))
        with monkeypatch.context() as patch:
            patch.setattr(sessions.SessionRecord, "to_json", lambda self: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                store.save(say(mine, "mine"))
        assert texts(mine) == ["hi", "mine"]
        store.save(mine)
        assert texts(store.load("t")) == ["hi", "theirs", "mine"]

    def test_two_stores_of_one_session_are_not_taken_for_each_other(self, tmp_path):
        one, two, three = JsonSessionStore(tmp_path), SqliteSessionStore(":memory:"), SqliteSessionStore(":memory:")
        three.save(Session("t", [HELLO]))
        session = Session("t", [HI])
        for store in (one, two, three):
            store.save(session)
        assert [texts(store.load("t")) for store in (one, two, three)] == [["hi"], ["hi"], ["hello", "hi"]]

    def test_a_session_that_has_begun_stays_begun(self, store):
        begun = Session("t")
        begun.first_run()
        store.save(begun)
        store.save(Session("t"))
        assert not store.load("t").first_run()

    def test_under_another_id_nothing_is_lost_and_the_conversation_stays_its_own(self, store):
        session = say(Session("own"), "one")
        store.save(session.renamed("copy"))
        store.save(say(store.load("copy"), "theirs"))
        for text in ("two", "three"):
            store.save(say(session, text).renamed("copy"))
        assert texts(store.load("copy")) == ["one", "theirs", "two", "three"]
        assert texts(session) == ["one", "two", "three"]


def test_what_is_no_session_is_refused(store):
    with pytest.raises(TypeError, match=r"takes a Session, not str: save\(Session\(id, messages\)\)"):
        store.save("x")


def test_what_is_no_folder_is_refused():
    with pytest.raises(TypeError, match="takes a folder, as text or a Path, not NoneType"):
        JsonSessionStore(None)


def test_a_file_in_place_of_the_folder_is_named_and_says_what_to_give(tmp_path):
    (tmp_path / "kept").write_text("")
    store = JsonSessionStore(tmp_path / "kept")
    for use in (store.list, lambda: store.load("x"), lambda: store.save(Session("x")), lambda: store.delete("x")):
        with pytest.raises(StoreError, match=r"that is a file: give a folder, or a file that ends in \.db for SQLite"):
            use()


def test_a_folder_that_may_not_be_used_says_what_to_give(tmp_path, monkeypatch):
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


def test_a_folder_that_another_program_holds_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(sessions, "LOCK_SECONDS", 0.05)
    one, two = JsonSessionStore(tmp_path), JsonSessionStore(tmp_path)
    with one._alone(), pytest.raises(StoreError, match="locked for 0.05 s by another program"):
        two.save(Session("x"))


@pytest.mark.parametrize(("name", "kind"), [("s", JsonSessionStore), ("s.db", SqliteSessionStore)])
def test_the_name_of_a_path_decides_which_store_it_is(tmp_path, name, kind):
    assert type(sessions.session_store_at(tmp_path / name)) is kind


@pytest.mark.parametrize("kind", [JsonSessionStore, SqliteSessionStore])
def test_a_program_that_changes_its_working_folder_finds_its_sessions(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    store = kind("kept.db")
    store.save(Session("x", [HI]))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert store.load("x").messages == (HI,)
