"""The prompt of a conversation."""

import stat
from functools import partial

import pytest
from prompt_toolkit.application import create_app_session
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document
from prompt_toolkit.input import create_pipe_input
from prompt_toolkit.output import DummyOutput

from hookline import Agent, ScriptedModel
from hookline._run.run_hooks import clean_for
from hookline.cli.chat_input import ChatInput, files_like
from hookline.hooks import SensitiveDataHook

COMMANDS = {"/help": "list these commands", "/hooks": "show the hooks", "/attach": "attach a file"}


@pytest.fixture
def keys():
    with create_pipe_input() as pipe, create_app_session(input=pipe, output=DummyOutput()):
        yield pipe


@pytest.fixture
def asking(keys, tmp_path):
    def make():
        return ChatInput(COMMANDS, tmp_path / "data" / "history", lambda: "status")

    return make


def completions(asking, text, *, tab=True):
    completer = asking()._session.completer
    return [each.text for each in completer.get_completions(Document(text), CompleteEvent(completion_requested=tab))]


def test_a_pasted_text_is_one_message(keys, asking):
    keys.send_text("see: \x1b[200~one\r\ntwo\nthree\x1b[201~\r")
    assert asking().read() == "see: one\ntwo\nthree"


def test_alt_enter_begins_a_new_line(keys, asking):
    keys.send_text("one\x1b\rtwo\r")
    assert asking().read() == "one\ntwo"


def test_earlier_messages_come_back_in_a_later_session(keys, asking, tmp_path):
    keys.send_text("first\r")
    asking().read()
    keys.send_text("\x1b[A\r")
    assert asking().read() == "first"
    assert stat.S_IMODE((tmp_path / "data" / "history").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "data").stat().st_mode) == 0o700


def test_the_file_of_earlier_messages_has_no_sensitive_values(keys, tmp_path):
    agent = Agent("a", llm=ScriptedModel([]), hooks=[SensitiveDataHook()])
    keys.send_text("write to bob@example.com\r")
    asking = ChatInput(COMMANDS, tmp_path / "history", lambda: "", partial(clean_for, agent))
    assert asking.read() == "write to bob@example.com"
    assert "write to [email]" in (tmp_path / "history").read_text()
    assert "bob" not in (tmp_path / "history").read_text()


def test_a_history_that_cannot_be_written_does_not_matter(keys, tmp_path):
    (tmp_path / "file").write_text("no folder")
    keys.send_text("hello\r")
    assert ChatInput(COMMANDS, tmp_path / "file" / "history", lambda: "").read() == "hello"


def test_text_typed_before_the_prompt_is_sent_only_with_enter(keys, asking):
    chat = asking()
    keys.send_text("first\rrm\rthen")
    assert chat.read() == "first"
    keys.send_text(" more\r")
    assert chat.read(typed="typed ") == "typed rm\nthen more"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("/h", ["/help", "/hooks"]),
        ("/attach my", ["my notes.txt"]),
        ("/attach fo", ["folder/"]),
        ("read folder/", ["folder/deep.md"]),
        ("read .h", [".hidden"]),
        ("nothing like it", []),
    ],
)
def test_commands_and_files_are_completed(asking, tmp_path, monkeypatch, text, found):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    for name in ("my notes.txt", "folder/deep.md", ".hidden"):
        (tmp_path / name).touch()
    assert completions(asking, text) == found


def test_files_are_offered_in_a_message_only_after_tab(asking, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "readme").touch()
    assert completions(asking, "rea", tab=False) == []
    assert completions(asking, "rea") == ["readme"]


def test_a_folder_that_cannot_be_read_has_no_files():
    assert files_like("/nowhere/at/all/") == []
