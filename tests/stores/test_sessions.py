"""Sessions that outlive a program."""

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Agent, JsonSessionStore, Message, ScriptedModel, Session, StoreError, ToolCall, call, reply, tool
from hookline.stores import sessions

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


@pytest.fixture
def store(tmp_path):
    return JsonSessionStore(tmp_path / "kept")


@given(names, st.lists(messages, max_size=4), objects, st.text(), st.text(), st.text())
def test_a_session_comes_back_as_it_was(tmp_path_factory, id, said, data, key, platform, personality):
    store = JsonSessionStore(tmp_path_factory.getbasetemp() / "sessions")
    store.save(Session(id, said, data, key=key, platform=platform, personality_id=personality))
    back = store.load(id)
    assert back.id == id
    assert list(back.messages) == said
    assert back.metadata == data
    assert (back.key, back.platform, back.personality_id) == (key, platform, personality)
    assert store.delete(id)


@given(st.lists(names, min_size=2, max_size=4, unique=True))
def test_no_two_names_share_a_file_and_none_leaves_the_folder(tmp_path_factory, ids):
    folder = tmp_path_factory.getbasetemp() / "names"
    files = [JsonSessionStore(folder)._path(id) for id in ids]
    assert len({file.name.casefold() for file in files}) == len(ids)
    for file in files:
        assert file.resolve().parent == folder.resolve()
        assert file.name.isascii()
        assert len(file.name) < 200


@pytest.mark.parametrize(
    "id", ["../x", "/etc/passwd", "..", ".", "a/b", "a\\b", "a\0b", "CON", "nul", "a:b", "é", " ", "x" * 9999]
)
def test_wild_names_stay_in_the_folder(store, tmp_path, id):
    store.save(Session(id, [HI]))
    assert [path.parent for path in tmp_path.rglob("*.json")] == [store.folder]
    assert list(store.load(id).messages) == [HI]
    assert [summary.id for summary in store.list()] == [id]


def test_names_that_differ_in_case_only_are_two_sessions(store):
    store.save(Session("Talk", [HI]))
    store.save(Session("talk", [HELLO]))
    assert [list(store.load(id).messages) for id in ("Talk", "talk")] == [[HI], [HELLO]]
    assert len({path.name.lower() for path in store.folder.iterdir()}) == 2


@pytest.mark.parametrize("id", ["", "\ud800"])
def test_an_id_that_cannot_be_stored_is_refused(store, id):
    for use in (lambda: store.save(Session(id)), lambda: store.load(id), lambda: store.delete(id)):
        with pytest.raises(StoreError, match="give it one|use another"):
            use()


def test_what_is_not_there_is_not_found(store):
    assert store.load("x") is None
    assert not store.delete("x")
    assert list(store.list()) == []


def test_a_deleted_session_is_gone(store):
    store.save(Session("x"))
    assert store.delete("x")
    assert store.load("x") is None


def test_the_list_tells_what_there_is_newest_first(store, monkeypatch):
    for at, (id, said) in enumerate({"a": [HI, HELLO], "b": [HELLO], "c": [Message("user", "x \n y" * 99)]}.items()):
        monkeypatch.setattr(sessions.time, "time", lambda at=at: 100.0 + at)
        store.save(Session(id, said))
    assert [(s.id, s.messages, s.saved_at, s.title, s.problem) for s in store.list()] == [
        ("c", 1, 102.0, ("x y" * 99)[:80], ""), ("b", 1, 101.0, "", ""), ("a", 2, 100.0, "hi", ""),
    ]  # fmt: skip


def test_a_chat_goes_on_in_another_program(store):
    @tool
    def ping() -> str:
        return "pong"

    session = Session("chat", metadata={"lang": "it"})
    agent = Agent("a", llm=ScriptedModel([call("ping"), reply("one"), reply("two")]), tools=[ping])
    for task in ("first", "second"):
        agent.run(task, session=session)
        store.save(session)
        back = JsonSessionStore(store.folder).load("chat")
        assert list(back.messages) == list(session.messages)
    other = Agent("a", llm=ScriptedModel([reply("three")]))
    other.run("third", session=back)
    assert [m.content for m in other.model.requests[0].messages] == [
        "first",
        "",
        "pong",
        "one",
        "second",
        "two",
        "third",
    ]
    assert back.metadata == {"lang": "it"}


@pytest.mark.parametrize("started", [True, False])
def test_a_first_run_stays_the_first_across_programs(store, started):
    session = Session("x")
    if started:
        session.first_run()
    store.save(session)
    assert session.started == started  # looking does not count
    assert store.load("x").first_run() == (not started)


BROKEN = {
    "empty": b"", "half": b'{"version": 1, "id": "x", "mess', "no object": b"[1]", "no version": b'{"id": "x"}',
    "wrong type": b'{"version": 1, "id": "x", "messages": 3}', "not text": b"\xff\xfe\0",
    "wrong message": b'{"version": 1, "id": "x", "messages": [{"role": "king"}]}',
    "newer": b'{"version": 2, "id": "x", "turns": []}', "deep": b'{"version": 1, "id": ' + b"[" * 99999,
}  # fmt: skip


@pytest.mark.parametrize("kind", BROKEN)
def test_a_broken_file_is_named_and_kept(store, kind):
    store.save(Session("x", [HI]))
    store.save(Session("y", [HI]))
    path = store._path("x")
    path.write_bytes(BROKEN[kind])
    with pytest.raises(StoreError) as caught:
        store.load("x")
    assert str(path) in str(caught.value)
    assert ("update Hookline" if kind == "newer" else "mend it or move it away") in str(caught.value)
    with pytest.raises(StoreError, match="cannot be read|newer"):
        store.save(Session("x", [HELLO]))
    assert path.read_bytes() == BROKEN[kind]
    assert {s.id: bool(s.problem) for s in store.list()} == {"x": True, "y": False}


def test_a_file_under_another_name_is_not_taken_for_its_session(store):
    store.save(Session("x", [HI]))
    store._path("x").rename(store._path("y"))
    with pytest.raises(StoreError, match="holds the session 'x', not 'y'"):
        store.load("y")
    assert [bool(s.problem) for s in store.list()] == [True]


def test_a_save_that_fails_leaves_what_was_there(store, monkeypatch):
    store.save(Session("x", [HI]))

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StoreError, match="cannot save the session 'x'.*No space left"):
        store.save(Session("x", [HELLO]))
    assert list(store.load("x").messages) == [HI]
    assert len(list(store.folder.iterdir())) == 1


def test_a_folder_that_cannot_be_made_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match=r"cannot (save|be read)"):
        JsonSessionStore(tmp_path / "file" / "kept").save(Session("x"))


def test_only_the_user_may_read_the_files(store):
    store.save(Session("x", [HI]))
    assert stat.S_IMODE(store._path("x").stat().st_mode) == 0o600
    assert stat.S_IMODE(store.folder.stat().st_mode) == 0o700


def test_the_file_is_plain_json_with_a_version(store):
    store.save(Session("x", [HI], {"n": 1}))
    data = json.loads(store._path("x").read_text())
    assert (data["version"], data["id"], data["metadata"], data["messages"][0]["content"]) == (1, "x", {"n": 1}, "hi")


WRITER = """
import sys
from hookline import JsonSessionStore, Message, Session
store = JsonSessionStore(sys.argv[1])
for n in range(40):
    store.save(Session("x", [Message("user", sys.argv[2] * 20_000)]))
"""


def test_two_programs_that_save_at_once_never_leave_half_a_file(store):
    store.save(Session("x", [Message("user", "a" * 20_000)]))
    env = {**os.environ, "PYTHONPATH": str(Path(sessions.__file__).parents[2])}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, store.folder, who], env=env) for who in "ab"]
    seen = set()
    try:
        while any(writer.poll() is None for writer in writers):
            (message,) = store.load("x").messages
            seen.add((message.content[0], len(set(message.content)), len(message.content)))
    finally:
        codes = [writer.wait() for writer in writers]
    assert codes == [0, 0]
    assert seen <= {("a", 1, 20_000), ("b", 1, 20_000)}
    assert [path.name for path in store.folder.iterdir()] == ["session-x.json"]


def test_threads_may_share_a_store(store):
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
