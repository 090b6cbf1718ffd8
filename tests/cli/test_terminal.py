"""The program at a terminal: questions and conversations."""

import asyncio
import json
import os
import select
from math import inf
from types import SimpleNamespace

import pytest

from hookline.cli.terminal import Terminal
from tests.waiting import wait_until

CALL = {"tool": "calculate", "arguments": {"expression": "6*7"}}
RULES = """
from hookline import HookResult, guard

@guard("before_tool")
def careful(ctx, request):
    return HookResult.ask("Is this needed?", reason="rule 7")
"""


@pytest.fixture(autouse=True)
def rules(folder):
    (folder / "rules.py").write_text(RULES)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answers", "result"),
    [
        (["yes\n"], "tool calculate ok: 42"),
        (["no\n"], "The user denied this call."),
        (["perhaps\n", "e\n", "?not json\n", "edit\n", '?{"expression": "2+3"}\n'], "tool calculate ok: 5"),
        (["\x04"], "The user denied this call."),
    ],
)
def test_a_person_can_approve_deny_or_edit_a_call(terminal, script, answers, result):
    screen = terminal("run", "task", "-m", script(CALL, "done"), "--hooks", "rules.py")
    screen.wait_for('calculate wants to run with {"expression":"6*7"}')
    screen.wait_for("careful asks: Is this needed? (rule 7)")
    for answer in answers:
        screen.wait_for("(empty: go back): " if answer.startswith("?") else "[e]dit: ")
        screen.send(answer.removeprefix("?"))
    assert screen.end() == 0
    assert result in screen.text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "result"),
    [
        ([("[e]dit: ", "y")], "tool calculate ok: 42"),
        ([("[e]dit: ", "n"), ("no reason): ", "wrong sum\n")], "The user denied this call: wrong sum"),
        ([("[e]dit: ", "s"), ("'notes/*'): ", "\n")], "tool calculate ok: 42"),
        ([("[e]dit: ", "e"), ("go back): ", '{"expression": "2+3"}\n')], "tool calculate ok: 5"),
        ([("[e]dit: ", "x"), ("[e]dit: ", "y")], "tool calculate ok: 42"),
    ],
)
def test_one_key_decides_about_a_call(terminal, script, keys, result):
    screen = terminal("run", "task", "-m", script(CALL, "done"), "--hooks", "rules.py")
    for words, pressed in keys:
        screen.wait_for(words)
        screen.send(pressed)
    assert screen.end() == 0
    assert result in screen.text


async def test_an_arrow_key_answers_nothing(monkeypatch):
    reads, read = [], Terminal._read
    monkeypatch.setattr(Terminal, "_read", lambda self, question: reads.append(question) or read(self, question))
    end, fd = os.openpty()
    try:
        asked = asyncio.create_task(Terminal(fd).ask_key("Approve? "))
        await wait_until(lambda: reads == ["Approve? "])
        os.write(end, b"\x1b[A")
        await wait_until(lambda: reads == ["Approve? ", ""])
        os.write(end, b"y")
        assert await asked == "y"
    finally:
        os.close(end)
        os.close(fd)


async def test_a_question_for_one_key_waits_until_nobody_types(monkeypatch):
    shown, pauses = [], []
    end, fd = os.openpty()

    async def type_on(seconds):
        """Go on typing during the first two pauses."""
        pauses.append(seconds)
        monkeypatch.setattr(Terminal, "last_key_at", -inf)
        if len(pauses) < 3:
            os.write(end, b"y")
            await wait_until(lambda: select.select([fd], [], [], 0)[0])

    monkeypatch.setattr(Terminal, "show", lambda self, text: shown.append((text, len(pauses))))
    monkeypatch.setattr(Terminal, "last_key_at", inf)
    monkeypatch.setattr("hookline.cli.terminal.asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": type_on}))
    try:
        asked = asyncio.create_task(Terminal(fd).ask_key("Approve? "))
        await wait_until(lambda: shown)
        assert shown == [("Approve? ", 3)]
        assert not asked.done()
        os.write(end, b"n")
        assert await asked == "n"
    finally:
        os.close(end)
        os.close(fd)


@pytest.mark.slow
def test_esc_at_the_question_cancels_the_run(terminal, script):
    screen = terminal("run", "task", "-m", script(CALL, "done"), "--hooks", "rules.py")
    screen.wait_for("[e]dit: ")
    screen.send("\x1b")
    screen.wait_for("cancelled")
    assert screen.end() == 130


@pytest.mark.slow
def test_the_question_about_a_call_is_shown_once(terminal, script):
    screen = terminal("run", "task", "-m", script(CALL, "done"), "--hooks", "rules.py")
    screen.wait_for("[e]dit: ")
    screen.send("yes\n")
    assert screen.end() == 0
    assert [screen.text.count(part) for part in ("Is this needed?", "rule 7", "careful")] == [1, 1, 1]


@pytest.mark.slow
def test_ctrl_c_at_the_question_cancels_the_run(terminal, script):
    screen = terminal("run", "task", "-m", script(CALL, "done"), "--hooks", "rules.py")
    screen.wait_for("[e]dit: ")
    screen.interrupt("cancelled")
    assert screen.end() == 130


@pytest.mark.slow
def test_input_typed_before_the_question_approves_nothing(terminal, script):
    screen = terminal(
        "run", "task", "-m", script(["one two three four ", CALL], "done", delay=0.2), "--hooks", "rules.py"
    )
    screen.wait_for("step 1")
    screen.send("yes\n")
    screen.wait_for("[e]dit: ")
    screen.send("no\n")
    assert screen.end() == 0
    assert "The user denied this call." in screen.text


@pytest.mark.slow
def test_a_conversation_is_streamed_saved_and_resumed(terminal, script, folder):
    args = ["--session", "notes", "--sessions", "kept"]
    chat = terminal("chat", "-m", script("Hello there.", "It is late."), *args)
    chat.wait_for("session notes: 0 messages")
    chat.wait_for("❯ ")
    chat.send("hi\n")
    chat.wait_for("Hello there.")
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    assert chat.end() == 0
    again = terminal("chat", "-m", script("Welcome back."), *args)
    again.wait_for("session notes: 2 messages")
    again.wait_for("❯ ")
    again.send("me again\n")
    again.wait_for("Welcome back.")
    again.wait_for("❯ ")
    again.send("/session\n")
    again.wait_for("session notes: 4 messages")
    again.wait_for("❯ ")
    again.send("\x04")
    assert again.end() == 0


@pytest.mark.slow
def test_ctrl_c_cancels_the_reply_and_the_chat_continues(terminal, script):
    chat = terminal("chat", "-m", script("one two three " * 100, "I am back.", delay=0.05), TERM="xterm")
    chat.wait_for("❯ ")
    chat.send("count\n")
    chat.wait_for("two three")
    chat.interrupt("(cancelled")
    chat.wait_for("❯ ")
    chat.send("and now?\n")
    chat.wait_for("I am back.")
    chat.wait_for("❯ ")
    chat.interrupt("(Ctrl-C again or Ctrl-D quits)")
    chat.wait_for("❯ ")
    chat.send("\x04")
    assert chat.end() == 0


@pytest.mark.slow
def test_esc_interrupts_the_reply_and_typed_keys_wait_at_the_next_prompt(terminal, script):
    chat = terminal("chat", "-m", script("one two three " * 100, "I am back.", delay=0.05), TERM="xterm")
    chat.wait_for("❯ ")
    chat.send("count\r")
    chat.wait_for("two three")
    chat.send("and now?\r")
    chat.wait_for("one two three one two")
    assert "and now?" not in chat.text
    chat.send("\x1b")
    chat.wait_for("the text above is incomplete")
    chat.wait_for("(cancelled")
    chat.wait_for("and now?")
    assert "I am back." not in chat.text
    chat.send("\r")
    chat.wait_for("I am back.")
    chat.wait_for("❯ ")
    chat.send("\x04")
    assert chat.end() == 0


@pytest.mark.slow
@pytest.mark.parametrize("term", ["xterm", "dumb"])
def test_a_second_ctrl_c_leaves_the_chat(terminal, script, term):
    chat = terminal("chat", "-m", script("Hello."), TERM=term)
    chat.wait_for("❯ ")
    chat.send("\x03")
    chat.wait_for("(Ctrl-C again or Ctrl-D quits)")
    chat.wait_for("❯ ")
    chat.send("\x03")
    assert chat.end() == 0


@pytest.mark.slow
def test_after_a_reply_that_ctrl_c_cancelled_a_second_ctrl_c_leaves(terminal, script):
    chat = terminal("chat", "-m", script("one two three " * 100, delay=0.05), TERM="xterm")
    chat.wait_for("❯ ")
    chat.send("count\r")
    chat.wait_for("two three")
    chat.send("\x03")
    chat.wait_for("(cancelled")
    chat.wait_for("❯ ")
    chat.send("\x03")
    assert chat.end() == 0
    assert "Ctrl-C again" not in chat.text


@pytest.mark.slow
def test_after_esc_one_ctrl_c_does_not_leave(terminal, script):
    chat = terminal("chat", "-m", script("one two three " * 100, "I am back.", delay=0.05), TERM="xterm")
    chat.wait_for("❯ ")
    chat.send("count\r")
    chat.wait_for("two three")
    chat.send("\x1b")
    chat.wait_for("(cancelled")
    chat.wait_for("❯ ")
    chat.send("\x03")
    chat.wait_for("(Ctrl-C again or Ctrl-D quits)")
    chat.wait_for("❯ ")
    chat.send("\x04")
    assert chat.end() == 0


@pytest.mark.slow
def test_slash_commands_tell_about_the_conversation(terminal, script):
    chat = terminal(
        "chat", "-m", script("Two words.", {"error": "OverloadedError", "message": "too busy"}), "--hooks", "rules.py"
    )
    chat.wait_for("❯ ")
    for said, words in {
        "hi": "Two words.",
        "/tokens": "1 turn: ",
        "/tools": "calculate",
        "/hooks": "rules.py:4",
        "/hlep": "Did you mean '/help'?",
        "/help": "/clear",
        "/session": "without a name: 2 messages",
        "/clear": "Conversation cleared.",
        "again": "error: too busy",
    }.items():
        chat.send(f"{said}\n")
        chat.wait_for(words)
        chat.wait_for("❯ ")
    chat.send("/session\n")
    chat.wait_for("1 message,")
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    assert chat.end() == 0


@pytest.mark.slow
def test_a_model_cannot_take_over_the_terminal(terminal, script):
    turn = {"tool": "calculate", "arguments": {"expression": "\x1b[2J\u202e1"}}
    screen = terminal("run", "task", "-m", script(turn, "\x1b]0;owned\x07done"), "--hooks", "rules.py")
    screen.wait_for("[e]dit: ")
    screen.send("no\n")
    screen.end()
    assert json.dumps("\x1b")[1:-1].lower() in screen.text.lower()
    assert "\x1b[2J" not in screen.text
    assert "\u202e" not in screen.text
    assert "\x1b]0;" not in screen.text


@pytest.mark.slow
def test_a_model_cannot_take_over_the_conversation_with_its_name(terminal, script):
    chat = terminal("chat", "-m", script("x", name="evil\x1b[2J.json"))
    chat.wait_for(r"evil\x1b[2J.json (scripted)")
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    assert chat.end() == 0
    assert "\x1b[2J" not in chat.text


@pytest.mark.slow
def test_a_session_that_cannot_be_saved_does_not_end_the_conversation(terminal, script, folder):
    args = ["--session", "notes", "--sessions", "kept"]
    chat = terminal("chat", "-m", script("Hello there.", "It is late."), *args)
    chat.wait_for("session notes: 0 messages")
    chat.wait_for("❯ ")
    (folder / "kept").write_text("no folder")
    chat.send("hi\n")
    chat.wait_for("Hello there.")
    chat.wait_for("error: ")
    chat.wait_for("❯ ")
    chat.send("/clear\n")
    chat.wait_for("error: ")
    chat.wait_for("❯ ")
    (folder / "kept").unlink()
    chat.send("and now?\n")
    chat.wait_for("It is late.")
    chat.wait_for("❯ ")
    chat.send("/quit\n")
    assert chat.end() == 0
    assert "Traceback" not in chat.text
    assert list((folder / "kept").glob("*.json"))
