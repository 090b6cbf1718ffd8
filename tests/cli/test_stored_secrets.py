"""What the commands store has no secrets if the settings name the hook for sensitive data."""

import json

import pytest

from ..secret_scene import leaks, planted

CONFIG = """
runs = "runs.db"
sessions = "sessions"
audit = "audit.jsonl"
hooks = [{ use = "SensitiveDataHook", args = { requests = true, extra = { planted = "qzx7[a-z]+91" } } }]
"""
TOOLS = """
from hookline import tool


@tool
def look_up() -> str:
    '''Look it up.'''
    return "found qzx7inresult91"


@tool
def fail() -> str:
    '''Fail.'''
    raise ValueError("cannot log in with qzx7inerror91")
"""


@pytest.mark.parametrize("options", [["--record"], ["--durable"]])
def test_a_run_of_the_command_line_stores_no_secret(hookline, folder, env, script, options):
    (folder / "hookline.toml").write_text(CONFIG)
    (folder / "tools.py").write_text(TOOLS)
    turns = [{"tool": "look_up", "arguments": {}}, {"tool": "fail", "arguments": {}}, f"It is {planted('inreply')}."]
    model = script(*turns)
    task = f"The key is {planted('intask')}."
    done = hookline("run", task, "-m", model, "--tools", "tools.py", "--session", "talk", *options)
    assert done.returncode == 0, done.stderr
    assert "[planted]" in done.stdout
    (folder / "turns.json").unlink()
    (folder / "tools.py").unlink()
    for file in folder.rglob("*.pyc"):
        file.unlink()
    exact = "--durable" not in options
    assert leaks(folder, exact=exact) == leaks(env["HOME"], exact=exact) == []
    listed = hookline("runs", "--json")
    assert listed.returncode == 0
    assert json.loads(listed.stdout)
    assert "intask91" not in listed.stdout
