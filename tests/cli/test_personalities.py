"""Personalities at the command line."""

import json
import logging

import pytest

from hookline import HooklineError
from hookline.cli.app import run_app
from hookline.cli.errors import report_error
from hookline.providers.local import weights
from hookline.stores import JsonSessionStore


@pytest.fixture
def people(folder):
    made = folder / "personalities"
    made.mkdir()
    (made / "coder.toml").write_text('description = "Writes code"\ninstructions = "coder"\ndelegates = ["critic"]')
    (made / "critic.toml").write_text('description = "Finds faults"\ntools = ["calculate"]\nmax_steps = 1')
    (folder / "hookline.toml").write_text('personalities = "personalities"\npersonality = "coder"')
    return made


HANDOFF = {"tool": "handoff", "arguments": {"to": "critic", "message": "Judge it."}}


@pytest.mark.slow
def test_a_chat_shows_the_active_personality_and_switches(terminal, people, script):
    chat = terminal("chat", "--model", script("Hello.", HANDOFF, "It is weak.", "Still weak."), "--session", "s")
    chat.wait_for("coder · turns.json")
    chat.wait_for("coder❯ ")
    chat.send("Hi\n")
    chat.wait_for("Hello.")
    chat.wait_for("coder❯ ")
    chat.send("What of this?\n")
    chat.wait_for("(critic takes over)")
    chat.wait_for("It is weak.")
    chat.wait_for("critic❯ ")
    (people / "critic.toml").write_text("instructions = ")
    chat.send("/personality\n")
    chat.wait_for("(active)")
    chat.wait_for("note: ")
    chat.wait_for("is used")
    chat.wait_for("critic❯ ")
    chat.send("And?\n")
    chat.wait_for("Still weak.")
    chat.wait_for("critic❯ ")
    chat.send("/personality nobody\n")
    chat.wait_for("There is no personality 'nobody'.")
    chat.send("/personality coder\n")
    chat.wait_for("Switched to coder.")
    chat.wait_for("coder❯ ")
    chat.send("/clear\n")
    chat.wait_for("coder❯ ")
    chat.send("/personality critic\n")
    chat.wait_for("critic❯ ")
    chat.send("/quit\n")
    assert chat.end() == 0
    (people / "critic.toml").write_text('description = "Finds faults"')
    again = terminal("chat", "--model", "scripted:turns.json", "--session", "s", "--personality", "coder")
    again.wait_for("coder❯ ")
    again.send("/quit\n")
    assert again.end() == 0


def test_a_run_continues_after_a_handoff(hookline, people, script):
    done = hookline("run", "What of this?", "--model", script(HANDOFF, "It is weak."))
    assert done.returncode == 0, done.stderr
    assert done.stdout == "It is weak.\n"
    assert "completed · 2 steps · 1 tool call" in done.stderr


def test_a_run_of_another_personality(hookline, people, script):
    done = hookline(
        "run",
        "x",
        "--model",
        script({"tool": "read_file", "arguments": {"path": "x"}}, "hm"),
        "--personality",
        "critic",
    )
    assert done.returncode == 3  # one step is all it has
    assert "Unknown tool 'read_file'" in done.stderr


@pytest.fixture
def program(folder, monkeypatch, capsys):
    """The program in this process: its exit code, stdout and stderr."""
    monkeypatch.chdir(folder)
    monkeypatch.setattr(logging.getLogger("hookline"), "propagate", True)  # it is as it was afterwards

    def run(*args):
        try:
            code = run_app(args)
        except HooklineError as error:
            code = report_error(error, args)
        return code, *capsys.readouterr()

    return run


def test_personalities_are_shown_with_problems_in_their_files(program, people, script):
    model = script("hm")
    code, out, _ = program("personalities", "--model", model)
    assert code == 0
    for words in ("coder · Writes code · the first", "delegates  critic", "tools      calculate"):
        assert words in out
    (people / "bad.toml").write_text("toolz = []")
    code, out, _ = program("personalities", "--model", model, "--personality", "nobody")
    assert code == 2
    assert "unknown key 'toolz'" in out
    assert "no personality is called 'nobody'" in out
    code, out, _ = program("personalities", "--model", model, "--json")
    assert code == 2
    shown = json.loads(out)
    assert [(each["id"], each["first"]) for each in shown["personalities"]] == [("coder", True), ("critic", False)]
    assert "unknown key 'toolz'" in shown["problems"][0]
    (people.parent / "hookline.toml").unlink()
    assert "hookline new personality" in program("personalities")[1]


def test_a_new_personality_can_be_used_at_once(program, folder, script):
    assert program("new", "personality", "critic")[0] == 0
    model = script("hm")
    code, out, _ = program("personalities", "--personalities", "personalities", "--model", model)
    assert (code, "critic · Finds weak points" in out) == (0, True)
    code, _, told = program("new", "personality", "critic")
    assert code == 2
    assert "already exists; nothing was written" in told
    assert "try 'a_b'" in program("new", "personality", "../a b")[2]
    assert [path.name for path in folder.iterdir()] == ["personalities", "hookline.toml", "turns.json"]


@pytest.mark.slow
def test_a_personality_on_the_embedded_model(hookline, people, folder):
    (people / "critic.toml").write_text(
        'instructions = "Answer in one word."\ntools = []\nparams = { max_tokens = 12 }'
    )
    where = {"HOOKLINE_CACHE": str(weights.fetch().parent), "HOOKLINE_SESSIONS": "sessions"}
    done = hookline("run", "Say hello.", "--personality", "critic", "--session", "s", **where)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    assert JsonSessionStore(folder / "sessions").load("s").personality_id == "critic"


def test_control_characters_in_personality_files_are_escaped(people, capsys, monkeypatch):
    monkeypatch.chdir(people.parent)
    (people / "critic.toml").write_text('description = "evil\\u001b[2J"')
    assert run_app(["personalities"]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert r"evil\x1b[2J" in out
