"""``hookline coverage`` as a program."""

import json

import pytest

from hookline import Agent, ScriptedModel, call
from hookline.records import RecordHook
from hookline.tools import Tool

RULES = """
from hookline import BEFORE_TOOL, HookResult, guard

@guard(BEFORE_TOOL, tools="shell")
def no_sudo(ctx, request):
    print("judging")
    return HookResult.block("no sudo") if "sudo" in request.arguments["command"] else None
"""


def shell(command: str, timeout: int) -> str:
    """Run a command."""
    return "ok"


def calc(a: int) -> int:
    """Compute."""
    return a


@pytest.fixture
def records(folder, monkeypatch):
    """A folder with rules and one recorded run."""
    monkeypatch.chdir(folder)
    (folder / "rules.py").write_text(RULES)
    model = ScriptedModel([call("shell", command="ls", timeout=3), call("calc", a=1), "done"])
    Agent("a", llm=model, tools=[Tool(shell), Tool(calc)], hooks=[RecordHook("records")]).run("Work.")
    return folder / "records"


def test_the_table_shows_what_no_guard_looks_at(hookline, records):
    done = hookline("coverage", "rules.py", "records")
    assert (done.returncode, done.stderr) == (0, "judging\n")
    lines = [line.split() for line in done.stdout.splitlines()]
    assert done.stdout.startswith("No guard judges 1 of 2 tools. 2 arguments were never looked at. 1 run, 2 calls.\n")
    assert ["shell", "1", "no_sudo", "timeout", "(1)"] in lines
    assert ["calc", "1", "none", "a", "(1)"] in lines
    assert "Points without a decider: before_llm (3), after_llm (3), after_tool (2)" in done.stdout
    assert "Model calls by purpose: step (3)" in done.stdout


def test_json_is_the_result_and_nothing_that_rules_print(hookline, records):
    found = json.loads(hookline("coverage", "rules.py", "records", "--json").stdout)
    assert found["uncovered_tools"] == ["calc"]
    assert {tool["tool"]: tool["guards"] for tool in found["tools"]} == {"shell": ["no_sudo"], "calc": []}


def test_the_records_of_the_settings_are_the_default(in_process, records, folder):
    (folder / "hookline.toml").write_text('records = "records"\n')
    code, out, _ = in_process("coverage", "rules.py")
    assert (code, "1 run, 2 calls." in out) == (0, True)


@pytest.mark.parametrize("command", ["coverage", "backtest"])
def test_the_rules_that_the_user_names_need_no_further_trust(hookline, records, folder, command):
    (folder / "hookline.toml").write_text('hooks = ["own.py"]\n')
    (folder / "own.py").write_text(RULES)
    assert hookline("trust", "--yes", HOOKLINE_TRUST="").returncode == 0
    done = hookline(command, "rules.py", "records", HOOKLINE_TRUST="")
    assert (done.returncode, "trusted" in done.stderr) == (0, False)


@pytest.mark.parametrize(("condition", "code"), [("uncovered_tools > 0", 1), ("uncovered_tools > 1", 0)])
def test_a_check_decides_the_exit_code(in_process, records, condition, code):
    found, _, err = in_process("coverage", "rules.py", "records", "--fail-if", condition)
    assert (found, "--fail-if uncovered_tools > 0: uncovered_tools is 1" in err) == (code, bool(code))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["rules.py", "nowhere"], "nowhere"),
        (["missing.py", "records"], "missing.py"),
        (["rules.py", "records", "--fail-if", "uncovered > 0"], "there is no 'uncovered'. Did you mean"),
        (["rules.py", "records", "--since", "soon"], "--since: expected"),
        (["rules.py", "records", "--where", "colour=red"], "there is no 'colour'"),
    ],
)
def test_a_mistake_is_explained(in_process, records, arguments, message):
    code, _, err = in_process("coverage", *arguments)
    assert code == 2
    assert message in err


def test_damaged_lines_and_failing_guards_are_reported(in_process, records, folder):
    file = next(records.rglob("*.moments"))
    file.write_bytes(file.read_bytes() + b'garbage\n["before_tool","shell",0')
    (folder / "broken.py").write_text(RULES.replace('"command"', '"cmd"'))
    code, _, err = in_process("coverage", "broken.py", "records")
    assert code == 5
    assert "the guard 'no_sudo' failed at 1 call: KeyError: 'cmd'" in err
    assert "the last line is incomplete" in err


def test_text_of_models_cannot_control_the_terminal(in_process, folder, records):
    model = ScriptedModel([call("calc", **{"a\x1b[31m": 1}), "done"])
    anything = Tool(lambda **given: "ok", name="calc", description="x")
    Agent("a", llm=model, tools=[anything], hooks=[RecordHook("hostile")]).run("Work.")
    code, out, _ = in_process("coverage", "rules.py", "hostile")
    assert code == 0
    assert "\x1b[31m (" not in out


def test_records_without_runs_are_not_a_success(in_process, records, folder):
    (folder / "empty.moments").touch()
    code, out, _ = in_process("coverage", "rules.py", "empty.moments")
    assert (code, out.splitlines()[0]) == (5, "No tool was called in the records, because they contain no runs.")
