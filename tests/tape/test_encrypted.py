"""Tapes are encrypted if the operator gives a key, and everything that reads tapes decrypts them."""

import os

import pytest

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline._sensitive.encryption import make_key
from hookline.backtest import backtest
from hookline.cli.app import run_app
from hookline.tape import Tape, TapeError, TapeHook, replay

SECRET = "the password is swordfish"


@tool
def look_up() -> str:
    """Look it up."""
    return SECRET


def agent(*hooks):
    model = ScriptedModel([call("look_up"), reply(f"It says: {SECRET}")], loop=True)
    return Agent("helper", llm=model, tools=[look_up], hooks=hooks)


@pytest.fixture
def tape(tmp_path, monkeypatch):
    monkeypatch.setenv("HOOKLINE_DATA_KEYS", make_key())
    agent(TapeHook(tmp_path / "one.tape")).run(f"Check that {SECRET}.")
    return tmp_path / "one.tape"


def test_an_encrypted_tape_is_read_with_its_key_only(tape, monkeypatch):
    assert b"swordfish" not in tape.read_bytes()
    assert Tape.load(tape).run.task == f"Check that {SECRET}."
    assert replay(tape, agent()).same
    old, new = Tape.load(tape).header.time, make_key()
    monkeypatch.setenv("HOOKLINE_DATA_KEYS", f"{new},{os.environ['HOOKLINE_DATA_KEYS']}")
    assert Tape.load(tape).header.time == old
    monkeypatch.setenv("HOOKLINE_DATA_KEYS", new)
    with pytest.raises(TapeError, match="encrypted with the key .* which this process does not have"):
        Tape.load(tape)


def test_an_encrypted_tape_that_was_cut_off_is_read_up_to_there(tape):
    tape.write_bytes(tape.read_bytes() + b"hookline-encrypted:12345678:gAAA")
    loaded = Tape.load(tape)
    assert loaded.truncated
    assert loaded.result.reply == f"It says: {SECRET}"


@pytest.mark.parametrize("command", [["explain"], ["replay", "--show"], ["record", "show"]])
def test_commands_read_encrypted_tapes(tape, command, capsys, monkeypatch):
    monkeypatch.chdir(tape.parent)
    run_app([*command, str(tape)])
    assert "swordfish" in capsys.readouterr().out


def test_a_backtest_reads_encrypted_tapes(tape, tmp_path, monkeypatch):
    rules = tmp_path / "rules.py"
    rules.write_text(
        'from hookline import HookResult, guard\n\n\n@guard("after_tool")\ndef no(ctx, done):\n'
        '    return HookResult.block("no") if "swordfish" in str(done.result) else None\n'
    )
    assert backtest(str(rules), [tape]).moments > 0
    monkeypatch.setenv("HOOKLINE_DATA_KEYS", make_key())
    (skipped,) = backtest(str(rules), [tape]).skipped
    assert "encrypted with the key" in skipped.reason
