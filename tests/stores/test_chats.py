"""ChatStore: a client that polls at any time gets all messages."""

import re
import sqlite3

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.stores.chats import _FILES, _TABLES, ChatStore
from hookline.stores.errors import StoreError
from tests.properties import examples

steps = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.sampled_from("ab"), st.sampled_from("klmn"), st.text(max_size=5)),
        st.tuples(st.just("edit"), st.sampled_from("ab"), st.integers(1, 10), st.text(max_size=5)),
        st.tuples(st.just("read"), st.sampled_from("ab"), st.integers(1, 3)),
    ),
    max_size=25,
)


@settings(max_examples=examples(60), deadline=None)
@given(steps)
def test_a_reader_that_polls_at_any_time_gets_all_changes(steps):
    store = ChatStore(":memory:")
    seen, rev = {"a": {}, "b": {}}, {"a": 0, "b": 0}

    def read(chat, limit):
        found = store.since("web", chat, rev[chat], limit=limit)
        for one in found:
            seen[chat][one.seq] = one.text
            rev[chat] = one.rev
        return len(found) == limit

    for what, chat, *rest in steps:
        if what == "add":
            store.add("web", chat, *rest)
        elif what == "edit":
            store.edit("web", chat, *rest)
        else:
            read(chat, *rest)
    for chat in "ab":
        while read(chat, 2):
            pass
        assert seen[chat] == {one.seq: one.text for one in store.since("web", chat)}
    store.close()


def test_a_key_is_stored_once_per_chat_and_channel():
    store = ChatStore(":memory:")
    first, new = store.add("web", "a", "k", "one")
    assert new
    assert store.add("web", "a", "k", "two") == (first, False)
    assert store.add("web", "b", "k", "other chat")[1]
    assert store.add("hook", "a", "k", "other channel")[1]
    assert [one.text for one in store.since("web", "a")] == ["one"]


def test_old_messages_are_deleted_by_number_and_by_age(tmp_path, monkeypatch):
    store = ChatStore(tmp_path / "c.db", max_messages=3, keep_days=1)
    for number in range(6):
        store.add("web", "a", f"k{number}", str(number))
    store.add("web", "b", "k", "b")
    assert [one.text for one in store.since("web", "a")] == ["3", "4", "5"]
    later = __import__("time").time() + 2 * 86_400
    monkeypatch.setattr("hookline.stores.chats.time.time", lambda: later)
    store.add("web", "c", "k", "c")
    assert not store.since("web", "a")
    assert not store.since("web", "b")
    assert store.since("web", "c")


def test_another_process_sees_changes_and_their_chats(tmp_path):
    one, two = ChatStore(tmp_path / "c.db"), ChatStore(tmp_path / "c.db")
    newest, _ = two.changed("web", 2**62)
    seq, _ = one.add("web", "a", "k", "hello")
    assert two.changed("web", newest) == (seq, ["a"])
    assert two.changed("hook", newest) == (seq, [])
    assert one.edit("web", "a", seq, "changed")
    assert not one.edit("web", "b", seq, "not its chat")
    assert [found.text for found in two.since("web", "a", seq)] == ["changed"]


def test_a_message_with_a_lone_surrogate_is_stored():
    store = ChatStore(":memory:")
    store.add("web", "a", "k", "x\ud800y")
    assert [one.text for one in store.since("web", "a")] == ["x?y"]


@pytest.mark.sqlite
def test_a_file_of_another_store_is_refused(tmp_path):
    (tmp_path / "c.db").write_text("my notes, " * 100)
    with pytest.raises(StoreError, match="not a SQLite database"):
        ChatStore(tmp_path / "c.db").add("web", "a", "k", "x")


@pytest.mark.sqlite
def test_a_file_of_the_previous_version_is_upgraded_once(tmp_path):
    old = sqlite3.connect(tmp_path / "c.db")
    for statement in (each for each in _TABLES if each != _FILES):
        old.execute(re.sub(r"(speaker|kind) TEXT NOT NULL DEFAULT '', ", "", statement))
    old.execute("INSERT INTO messages VALUES (1, 1, 'web', 'a', 'out', 'k', 'from before', '', '', 9e9)")
    old.execute("UPDATE counter SET last = 1")
    old.execute(f"PRAGMA application_id={0x486B4C43}")
    old.execute("PRAGMA user_version=1")
    old.commit()
    old.close()
    for turn in (1, 2):
        store = ChatStore(tmp_path / "c.db")
        store.add("web", "a", f"new{turn}", "now", speaker="Ada")
        assert [(one.text, one.speaker) for one in store.since("web", "a")] == [("from before", "")] + [
            ("now", "Ada")
        ] * turn
        assert store.add_file_part("web", "a", "f", turn - 1, b"x") == turn
