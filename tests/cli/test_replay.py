"""``hookline run --tape`` and ``hookline replay`` as programs."""

import json

import pytest

from hookline.config.factory import build_agent, make_context
from hookline.config.settings import Settings
from hookline.tape import TapeHook

READ = {"tool": "read_file", "arguments": {"path": "notes.txt"}}
RULES = """
from hookline import HookResult, guard

@guard("before_tool", tools="read_*")
def no_notes(ctx, call):
    if "notes" in call.arguments.get("path", ""):
        return HookResult.block("Notes are private.", reason="rule 7")
"""


@pytest.fixture
def tape(script, folder, monkeypatch):
    """A recorded run of two steps."""
    monkeypatch.chdir(folder)
    (folder / "notes.txt").write_text("Buy milk.\n")
    (folder / "rules.py").write_text(RULES)
    settings = Settings(model=script(READ, "Milk."))
    build_agent(settings, hooks=[TapeHook("monday.tape")]).run("What must I buy?", ctx=make_context(settings))
    return folder / "monday.tape"


def test_a_run_is_recorded_and_replayed_by_the_program_without_the_model_and_the_files(hookline, script, folder):
    (folder / "notes.txt").write_text("Buy milk.\n")
    done = hookline("run", "What must I buy?", "-m", script(READ, "Milk."), "--tape", "monday.tape")
    assert (done.returncode, done.stdout) == (0, "Milk.\n")
    (folder / "turns.json").unlink()
    (folder / "notes.txt").unlink()
    done = hookline("replay", "monday.tape")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[1].split()[:2] == ["monday.tape", "completed"]
    assert "same" in done.stdout


def test_a_new_rule_shows_its_decision_and_exits_with_1(in_process, tape):
    tape.with_name("tuesday.tape").write_bytes(tape.read_bytes())
    code, out, _ = in_process("replay", "monday.tape", "tuesday.tape", "--hooks", "rules.py")
    assert code == 1
    assert out.count("  replayed  ┃ no_notes blocked the call at before_tool: rule 7\n") == 2
    assert "The replay ends here: the next request to the model has other messages than the recorded one" in out
    assert out.rstrip().endswith("2 tapes, 2 different")


def test_json_tells_the_decisions_then_and_now(in_process, tape):
    code, out, _ = in_process("replay", "monday.tape", "--hooks", "rules.py", "--loose", "--json")
    told = json.loads(out)
    assert (code, told["same"], told["left"], told["then"]) == (1, False, "", [])
    assert [(each["hook"], each["verb"]) for each in told["now"]] == [("no_notes", "block")]


def test_a_tape_can_be_shown_as_the_run_looked(in_process, tape):
    code, out, _ = in_process("replay", "monday.tape", "--show")
    lines = out.splitlines()
    assert (code, lines[:3]) == (0, ["task: What must I buy?", "step 1", '  calls read_file {"path":"notes.txt"}'])
    assert "Milk." in lines
    assert lines[-1].startswith("completed · 2 steps · 1 tool call")


def test_a_file_that_is_not_a_tape_is_invalid_input(in_process, tape):
    code, _, told = in_process("replay", "notes.txt")
    assert code == 2
    assert told.startswith("error: notes.txt is not a tape")


REFUSED = (
    "version 3 of the tape format, and this version of Hookline reads only version 5: record it again, or use the "
    "version of Hookline that wrote it"
)


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (["replay", "monday.tape"], 2),
        (["replay", "monday.tape", "--show"], 2),
        (["explain", "monday.tape"], 2),
        (["explain", "last", "--records", "."], 2),
        (["diff", "monday.tape", "monday.tape"], 2),
        (["backtest", "rules.py", "monday.tape"], 5),
        (["coverage", "rules.py", "monday.tape"], 5),
        (["record", "ls", "--records", "."], 0),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_every_command_that_reads_tapes_says_what_to_do_with_one_of_another_version(in_process, tape, command, code):
    tape.write_bytes(tape.read_bytes().replace(b'"version":5,', b'"version":3,', 1))
    done, out, told = in_process(*command)
    assert (done, REFUSED in " ".join((out + told).split())) == (code, True)


def test_an_incomplete_last_line_is_noted(in_process, tape):
    tape.write_bytes(tape.read_bytes()[:-30])
    assert "note: monday.tape: its last line is incomplete" in in_process("replay", "monday.tape")[2]


def test_plugins_that_a_replay_ignores_are_noted(in_process, tape):
    (tape.parent / "hookline.toml").write_text('plugins = ["absent"]\n')
    assert "note: a replay does not use plugins: absent" in in_process("replay", "monday.tape")[2]


def test_tools_may_not_change_a_tape(script, tape):
    before = tape.read_bytes()
    turns = {"tool": "write_file", "arguments": {"path": "monday.tape", "content": "x"}}, "ok"
    settings = Settings(model=script(*turns, name="write.json"), write=True)
    result = build_agent(settings).run("go", ctx=make_context(settings))
    assert [error.source for error in result.errors] == ["PathGuard"]
    assert tape.read_bytes() == before


def aged(tape, name, days):
    """Copy a tape as if its run had started so many days ago."""
    head, _, rest = tape.read_bytes().partition(b"\n")
    fields = json.loads(head)
    fields["time"] -= days * 86400
    copy = tape.parent / name
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(json.dumps(fields).encode() + b"\n" + rest)
    return copy


def test_a_folder_of_tapes_is_replayed_from_a_time_on(in_process, tape):
    for name, days in (("tapes/new.tape", 1), ("tapes/deep/week.tape", 6), ("tapes/old.tape", 30)):
        aged(tape, name, days)
    (tape.parent / "tapes" / "notes.txt").write_text("not a tape")
    code, out, told = in_process("replay", "tapes", "--since", "7d")
    assert (code, told) == (0, "")
    assert sorted(line.split()[0] for line in out.splitlines()[1:3]) == ["new.tape", "week.tape"]
    assert out.rstrip().endswith("2 tapes, 0 different")
    assert in_process("replay", "tapes")[1].rstrip().endswith("3 tapes, 0 different")
    code, _, told = in_process("replay", "tapes", "--since", "5h")
    assert (code, told) == (2, "error: there are no tapes in tapes since 5h\n")
    code, _, told = in_process("replay", "tapes", "--since", "tomorrow")
    assert code == 2
    assert told.startswith("error: --since: expected 30m, 24h, 7d, 2w or a date")


@pytest.mark.parametrize("json_lines", [False, True])
def test_a_damaged_tape_is_reported_and_the_others_are_replayed(in_process, tape, json_lines):
    data = tape.read_bytes()
    aged(tape, "tapes/a.tape", 3)
    damaged = data.replace(b'{"entry":"model_reply"', b'{"entry":"model_re\xff"')
    (tape.parent / "tapes" / "b.tape").write_bytes(damaged)
    aged(tape, "tapes/c.tape", 1)
    options = ["--json"] if json_lines else []
    code, out, told = in_process("replay", "tapes", *options)
    assert code == 2
    assert told.startswith("error: tapes/b.tape is damaged in line ")
    assert told.count("\n") == 1
    if json_lines:
        lines = {line["tape"]: line for line in map(json.loads, out.splitlines())}
        assert (lines["a.tape"]["same"], lines["c.tape"]["same"]) == (True, True)
        assert lines["b.tape"]["error"].startswith("tapes/b.tape is damaged in line")
    else:
        assert [line.split()[0] for line in out.splitlines()[1:3]] == ["a.tape", "c.tape"]
        assert out.rstrip().endswith("3 tapes, 0 different, 1 damaged")


def test_tapes_are_a_setting_of_a_run(hookline, script, folder):
    (folder / "hookline.toml").write_text('tapes = "tapes"\n')
    assert hookline("run", "go", "-m", script("done", "done"), "--trust").returncode == 0
    assert hookline("run", "go", "-m", script("done", "done"), "--tapes", "others", "--trust").returncode == 0
    for name in ("tapes", "others"):
        (made,) = (folder / name).glob("*.tape")
        assert b'"reply":"done"' in made.read_bytes()
    assert hookline("replay", "tapes", "others", "--trust").stdout.rstrip().endswith("2 tapes, 0 different")
