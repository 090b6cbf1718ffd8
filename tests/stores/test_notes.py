"""NotesFile."""

import errno
import os
import re
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import Agent, ScriptedModel, call, reply
from hookline._base import files
from hookline.stores import NotesFile, StoreError
from hookline.stores import notes as module
from hookline.stores.notes import DatabaseNotes, notes_at


@pytest.fixture
def notes(tmp_path, request):
    made = notes_at(tmp_path / "sub" / getattr(request, "param", "notes.md"))
    yield made
    if isinstance(made, DatabaseNotes):
        made.close()


everywhere = pytest.mark.parametrize("notes", ["notes.md", "notes.db"], indirect=True)


def texts(notes):
    return [re.sub(r"^- \d{4}-\d\d-\d\d ", "", line) for line in notes.read().splitlines()]


@everywhere
def test_notes_are_read_in_order_with_their_dates(notes):
    for text in ("buy milk", "call Ann"):
        notes.append(text)
    assert texts(notes) == ["buy milk", "call Ann"]
    assert re.fullmatch(r"(- \d{4}-\d\d-\d\d .*\n){2}", notes.read())


def test_without_a_file_there_are_no_notes(notes):
    assert (notes.read(), notes.tail()) == ("", "")
    notes.clear()
    assert not notes.path.parent.exists()


@everywhere
def test_a_note_is_always_one_line(notes):
    notes.append("one\ntwo\r\n\n  three\u2028four\x0bfive ")
    assert texts(notes) == ["one two three four five"]
    notes.append("\ud800 é 🐈")
    assert texts(notes)[1] == "? é 🐈"


@pytest.mark.parametrize("text", ["", " \n\t"])
@everywhere
def test_an_empty_note_is_refused(notes, text):
    with pytest.raises(ValueError, match="give a text"):
        notes.append(text)


def test_a_note_is_added_correctly_to_a_file_edited_by_hand(notes):
    notes.path.parent.mkdir()
    notes.path.write_bytes(b"# Mine\r\n- no line end")
    notes.append("x")
    assert notes.path.read_bytes().startswith(b"# Mine\r\n- no line end\n- ")
    assert notes.tail().splitlines()[:2] == ["# Mine", "- no line end"]


def test_the_file_is_readable_by_its_owner_only(notes):
    notes.append("x")
    assert stat.S_IMODE(notes.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(notes.path.parent.stat().st_mode) == 0o700


def test_no_number_of_characters_is_too_large(tmp_path):
    notes = NotesFile(tmp_path / "n.md")
    notes.append("milk")
    assert notes.tail(sys.maxsize) == notes.read().rstrip()


@everywhere
def test_clear_deletes_all_notes(notes):
    notes.append("x")
    notes.clear()
    assert notes.read() == ""
    notes.append("y")
    assert texts(notes) == ["y"]


class TestTail:
    @settings(deadline=None)
    @given(st.lists(st.text(alphabet="aé🐈 .-", max_size=12), max_size=8), st.integers(1, 40))
    def test_tail_returns_as_many_complete_lines_as_fit(self, tmp_path_factory, lines, most):
        notes = NotesFile(tmp_path_factory.getbasetemp() / "tail.md")
        notes.path.write_text("".join(f"{line}x\n" for line in lines))
        ends = ["\n".join(f"{line}x" for line in lines[n:]) for n in range(len(lines))]
        fitting = [end for end in ends if len(end) <= most]
        if fitting:
            assert notes.tail(most) == fitting[0]
        elif lines:
            assert notes.tail(most) == "…" + ends[-1][len(ends[-1]) - most + 1 :]
            assert len(notes.tail(most)) == most
        else:
            assert notes.tail(most) == ""

    def test_invalid_utf8_is_replaced(self, notes):
        notes.path.parent.mkdir()
        notes.path.write_bytes(b"- a\xff\xfeb\n- \xe2\x82\n")
        assert notes.tail() == "- a\ufffd\ufffdb\n- \ufffd"
        assert notes.read() == "- a\ufffd\ufffdb\n- \ufffd\n"

    def test_tail_reads_only_the_end_of_a_large_file(self, notes, monkeypatch):
        notes.path.parent.mkdir()
        with notes.path.open("wb") as file:
            file.seek(8_000_000_000)  # a sparse file
            file.write(b"\n- old\n- new\n")
        assert notes.tail(12) == "- old\n- new"

    def test_tail_omits_a_partially_read_line(self, notes):
        notes.path.parent.mkdir()
        notes.path.write_text("x" * 100 + "\n" * 40)
        assert notes.tail(10) == ""

    @pytest.mark.parametrize("most", [0, -1, True, 2.5, "9"])
    def test_an_invalid_number_of_characters_is_refused(self, notes, most):
        with pytest.raises(ValueError, match="positive whole number"):
            notes.tail(most)


WRITER = """
import sys
from hookline.stores import NotesFile
notes = NotesFile(sys.argv[1])
for n in range(100):
    notes.append(sys.argv[2] * 3000 + str(n))
"""


def test_concurrent_appends_lose_and_mix_nothing(notes):
    env = {**os.environ, "PYTHONPATH": str(Path(module.__file__).parents[2])}
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, notes.path, who], env=env) for who in "ab"]
    threads = [
        threading.Thread(target=lambda who=who: [notes.append(who * 3000 + str(n)) for n in range(100)]) for who in "cd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [writer.wait() for writer in writers] == [0, 0]
    assert sorted(texts(notes)) == sorted(who * 3000 + str(n) for who in "abcd" for n in range(100))


def test_a_locked_file_is_an_error(notes, monkeypatch):
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.05)
    notes.append("x")
    with notes.path.open() as held, files.locked(held.fileno(), 1):
        with pytest.raises(
            StoreError, match=r"notes.md cannot be written \(another program held the lock for more than 0.05 s"
        ):
            notes.append("y")
        assert texts(notes) == ["x"]
    notes.append("y")
    assert texts(notes) == ["x", "y"]


@pytest.mark.parametrize("short", [True, False])
def test_a_note_that_does_not_fit_on_the_disk_is_undone(notes, monkeypatch, short):
    notes.append("x")
    before, real = notes.read(), os.write

    def full(file, data):
        real(file, data[:5])
        if short:
            return 5
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.os, "write", full)
    with pytest.raises(StoreError, match="cannot be written"):
        notes.append("y")
    assert notes.read() == before


@pytest.mark.parametrize("kind", ["folder", "pipe"])
def test_a_path_that_is_not_a_regular_file_is_an_error_and_does_not_hang(tmp_path, kind):
    path = tmp_path / "notes"
    path.mkdir() if kind == "folder" else os.mkfifo(path)
    notes = NotesFile(path)
    for use in (notes.tail, notes.read, notes.clear, lambda: notes.append("x")):
        with pytest.raises(StoreError, match="cannot be"):
            use()


@everywhere
def test_a_model_adds_and_reads_notes(notes):
    assert [tool.name for tool in notes.tools()] == ["add_note", "read_notes"]
    assert notes.tools() is notes.tools()
    turns = [call("read_notes"), call("add_note", text="buy milk"), call("read_notes"), call("add_note", text=""), "ok"]
    result = Agent("a", llm=ScriptedModel([*turns[:-1], reply("ok")]), tools=[notes]).run("go")
    results = [message for message in result.messages if message.role == "tool"]
    assert [message.content for message in results[:2]] == ["There are no notes.", "Noted."]
    assert results[2].content.endswith(" buy milk")
    assert results[3].is_error


def test_a_note_that_is_not_text_and_a_path_that_is_not_a_path_are_refused(notes):
    with pytest.raises(TypeError, match="a note must be text, not int"):
        notes.append(3)
    with pytest.raises(TypeError, match="NotesFile takes the path of a file, as text or a Path, not NoneType"):
        NotesFile(None)


@pytest.mark.parametrize("most", [1, 20, 40, 41, 60, 1000])
def test_the_end_of_notes_in_a_database_is_that_of_a_file(tmp_path, most):
    file, stored = NotesFile(tmp_path / "notes.md"), DatabaseNotes(tmp_path / "notes.db")
    for number in range(5):
        for notes in (file, stored):
            notes.append(f"number {number} é")
    assert (stored.tail(most), stored.read()) == (file.tail(most), file.read())
    stored.close()
