"""``hookline run --tape`` and ``hookline replay`` as programs."""

import json

import pytest

READ = {"tool": "read_file", "arguments": {"path": "notes.txt"}}
RULES = """
from hookline import HookResult, guard

@guard("before_tool", tools="read_*")
def no_notes(ctx, call):
    if "notes" in call.arguments.get("path", ""):
        return HookResult.block("Notes are private.", reason="rule 7")
"""


@pytest.fixture
def tape(hookline, script, folder):
    """A recorded run of two steps."""
    (folder / "notes.txt").write_text("Buy milk.\n")
    (folder / "rules.py").write_text(RULES)
    done = hookline("run", "What must I buy?", "-m", script(READ, "Milk."), "--tape", "monday.tape")
    assert (done.returncode, done.stdout) == (0, "Milk.\n")
    return folder / "monday.tape"


def test_the_same_hooks_decide_the_same_without_the_model_and_the_files(hookline, tape, folder):
    (folder / "turns.json").unlink()
    (folder / "notes.txt").unlink()
    done = hookline("replay", "monday.tape")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:2] == ["monday.tape", "completed"]
    assert "same" in done.stdout


def test_a_new_rule_shows_what_it_would_have_done_and_the_exit_code_tells(hookline, tape, folder):
    tape.with_name("tuesday.tape").write_bytes(tape.read_bytes())
    done = hookline("replay", "monday.tape", "tuesday.tape", "--hooks", "rules.py")
    assert done.returncode == 1
    assert done.stdout.count("now before_tool no_notes: block (rule 7); then nothing") == 2
    assert "from there on the tape has no answers: the model would have been sent other messages" in done.stdout
    assert done.stdout.rstrip().endswith("2 tapes, 2 different")


def test_json_tells_the_decisions_then_and_now(hookline, tape):
    done = hookline("replay", "monday.tape", "--hooks", "rules.py", "--loose", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, told["same"], told["left"], told["then"]) == (1, False, "", [])
    assert [(each["hook"], each["verb"]) for each in told["now"]] == [("no_notes", "block")]


def test_a_tape_can_be_shown_as_the_run_looked(hookline, tape):
    done = hookline("replay", "monday.tape", "--show")
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[:3] == ["task: What must I buy?", "step 1", '  calls read_file {"path":"notes.txt"}']
    assert "Milk." in lines
    assert lines[-1].startswith("completed · 2 steps · 1 tool call")


def test_what_is_no_tape_is_bad_input(hookline, tape):
    done = hookline("replay", "notes.txt")
    assert done.returncode == 2
    assert done.stderr.startswith("error: notes.txt is no tape")


def test_a_torn_tape_is_told(hookline, tape):
    tape.write_bytes(tape.read_bytes()[:-30])
    done = hookline("replay", "monday.tape")
    assert "note: monday.tape: its last line is torn" in done.stderr


def test_tools_may_not_change_a_tape(hookline, script, tape):
    before = tape.read_bytes()
    turns = {"tool": "write_file", "arguments": {"path": "monday.tape", "content": "x"}}, "ok"
    done = hookline("run", "go", "--write", "-m", script(*turns))
    assert "hook PathGuard blocks" in done.stderr
    assert tape.read_bytes() == before
