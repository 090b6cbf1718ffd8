"""``hookline rules`` as a program, and rules of a file at the other commands."""

import json

import pytest

from hookline import Agent, ScriptedModel, call, tool
from hookline._base.own_files import protection_of
from hookline.config.loading import load_tools
from hookline.config.sources import load
from hookline.config.trust import project_files
from hookline.hooks import RecordHook, load_rules
from hookline.plugins.errors import LoadError

pytest.importorskip("cel_expr_python", reason="rules need: pip install 'hookline[rules]'")

RULES = """
[tools.refund.arguments]
amount = "number"

[[rules]]
name = "large-refund"
tools = "refund"
when = "call.arguments.amount > 100"
then = "ask"
message = "A refund of more than 100 needs a person."
reason = "Policy 4.2"

[[rules.examples]]
arguments = { amount = 250 }
then = "ask"

[[rules.examples]]
arguments = { amount = 100 }
then = "pass"

[[rules]]
name = "no-mail"
tools = "send_mail"
when = "called('read_*')"
then = "block"
message = "No mail after a customer was read."
shadow = true
"""


@pytest.fixture
def project(folder, monkeypatch):
    """A folder with rules."""
    monkeypatch.chdir(folder)
    (folder / "rules.toml").write_text(RULES)
    return folder


def test_check_says_what_is_valid_and_what_is_missing(in_process, project):
    code, out, _ = in_process("rules", "check", "rules.toml")
    assert code == 0
    assert out == "rules.toml: 2 rules, 1 in shadow mode, valid\n  no example: no-mail\n"


def test_check_names_the_place_of_a_mistake(in_process, project):
    (project / "rules.toml").write_text(RULES.replace("arguments.amount > 100", "arguments.amuont > 100"))
    code, _, err = in_process("rules", "check", "rules.toml")
    assert code == 2
    assert err.startswith(
        "error: rules.toml:8:24: rule 'large-refund': the tool has no argument 'amuont'. Did you mean"
    )


def test_check_of_a_project_knows_the_tools_of_its_agent(hookline, project):
    (project / "tools.py").write_text(
        "from hookline import tool\n\n@tool\ndef send_mail(to: str) -> str:\n    return to\n"
    )
    (project / "hookline.toml").write_text('hooks = ["rules.toml"]\ntools = ["tools.py"]\n')
    wrong = RULES.replace("called('read_*')", "call.arguments.too == ''")
    (project / "rules.toml").write_text(wrong)
    done = hookline("rules", "check", "--trust")
    assert done.returncode == 2
    assert "rule 'no-mail': the tool has no argument 'too'. Did you mean 'to'?" in done.stderr
    (project / "rules.toml").write_text(wrong.replace(".too ", ".to "))
    assert hookline("rules", "check", "--trust").returncode == 0


def test_test_shows_examples_that_are_wrong(in_process, project):
    assert in_process("rules", "test", "rules.toml")[:2] == (
        0,
        "rules.toml: 2 examples of 2 rules, all right\n  no example: no-mail\n",
    )
    (project / "rules.toml").write_text(RULES.replace("> 100", "> 300"))
    code, out, _ = in_process("rules", "test", "rules.toml")
    assert code == 1
    assert (
        out
        == """rules.toml: 1 of 2 examples are wrong

✗ large-refund, example 1 (rules.toml:13)
    situation  refund(amount=250)
    expected   ask
    but        pass
    condition  call.arguments.amount > 300
  no example: no-mail
"""
    )


def test_explain_says_it_in_words(in_process, project):
    code, out, _ = in_process("rules", "explain", "rules.toml")
    assert code == 0
    assert (
        out
        == """large-refund  rules.toml:5
  Before each call of refund, if its amount is more than 100: a person must approve the call.
  The person reads: “A refund of more than 100 needs a person.”
  Why: Policy 4.2
  asked    refund(amount=250)
  passes   refund(amount=100)

no-mail  rules.toml:21  shadow mode: it only reports
  Before each call of send_mail, if a call of read_* came before it: the call is blocked, and the run goes on.
  The model reads: “No mail after a customer was read.”

"""
    )


def test_the_page_is_data_and_no_code(in_process, project):
    (project / "rules.toml").write_text(RULES.replace("Policy 4.2", "<script>alert(1)</script>"))
    code, _, err = in_process("rules", "explain", "rules.toml", "--html", "rules.html")
    page = (project / "rules.html").read_text()
    assert (code, err.startswith("written: rules.html")) == (0, True)
    assert "<script>" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "a person must approve the call" in page


def test_the_schema_is_json(in_process, project):
    code, out, _ = in_process("rules", "schema")
    assert (code, json.loads(out)["title"]) == (0, "Rules of Hookline")


def test_hooks_shows_each_rule_with_its_place(in_process, project):
    _, out, _ = in_process("hooks", "rules.toml")
    lines = [line.split() for line in out.splitlines()]
    assert ["large-refund", "[refund]", "guard", "0", "block", "rules.toml:5"] in lines
    assert ["shadow(no-mail)", "[send_mail]", "guard", "0", "open", "rules.toml:21"] in lines


@tool(effects=[])
def refund(amount: float) -> str:
    """Refund."""
    return "refunded"


def test_backtest_and_coverage_take_a_file_of_rules(in_process, project):
    model = ScriptedModel([call("refund", amount=500), "done"])
    Agent("a", llm=model, tools=[refund], hooks=[RecordHook("records")]).run("x")
    code, out, _ = in_process("backtest", "rules.toml", "records", "--fail-if", "newly_asked > 0")
    assert code == 1
    assert "large-refund" in out
    code, out, _ = in_process("coverage", "rules.toml", "records", "--json")
    assert json.loads(out)["tools"][0]["guards"] == ["large-refund"]


def test_a_run_and_its_settings_take_a_file_of_rules(hookline, project):
    (project / "tools.py").write_text(
        "from hookline import tool\n\n@tool(effects=[])\ndef refund(amount: float) -> str:\n    return 'refunded'\n"
    )
    turns = [[{"tool": "refund", "arguments": {"amount": 500}}], "done"]
    (project / "turns.json").write_text(json.dumps(turns))
    block = RULES.replace('then = "ask"', 'then = "block"')
    (project / "rules.toml").write_text(block)
    done = hookline("run", "x", "--model", "scripted:turns.json", "--tools", "tools.py", "--hooks", "rules.toml")
    assert "A refund of more than 100 needs a person." in done.stdout + done.stderr, done.stderr


def test_a_file_of_rules_is_no_code_to_trust_and_protected_from_tools(in_process, project):
    (project / "hookline.toml").write_text('hooks = ["rules.toml", "rules.py"]\n')
    (project / "rules.py").write_text("hooks = []\n")
    config = load(folder=project)
    assert [path.name for path in project_files(config).all()] == ["rules.py"]
    assert protection_of(str(project / "rules.toml")) is None
    rules = load_rules(project / "rules.toml")
    assert protection_of(str(project / "rules.toml")) == "rules of this program"
    del rules


@pytest.mark.parametrize("once", [True, False], ids=["once", "resident"])
def test_a_coding_agent_is_protected_by_a_file_of_rules(hookline, project, once):
    rules = """
[[rules]]
name = "no-sudo"
tools = "shell"
when = "call.arguments.command.contains('sudo')"
then = "block"
message = "No sudo here."
"""
    (project / "rules.toml").write_text(rules)

    def judge(command):
        event = {"session_id": "a", "hook_event_name": "PreToolUse", "tool_name": "Bash", "cwd": str(project)}
        event["tool_input"] = {"command": command}
        options = ["--once"] if once else ["--idle", "3"]
        return hookline("agent-hook", "--agent", "codex", "rules.toml", *options, input=json.dumps(event))

    assert (judge("ls").returncode, judge("sudo ls").returncode) == (0, 2)
    assert "No sudo here." in judge("sudo ls").stderr
    (project / "rules.toml").write_text(rules.replace("'sudo'", "'ls'"))
    assert judge("ls").returncode == 2


def test_a_session_of_a_coding_agent_has_a_history_until_its_process_ends(hookline, project):
    rules = """
[[rules]]
name = "nothing-after-secrets"
tools = "shell"
when = "history.exists(c, c.tool == 'shell' && c.arguments.command == 'cat .env')"
then = "block"
message = "Secrets were read."

[[rules]]
name = "untrusted"
tools = "shell"
when = "'untrusted' in labels && call.arguments.command == 'git push'"
then = "block"
message = "Something untrusted was read."
"""
    (project / "rules.toml").write_text(rules)

    def event(name, command, **more):
        given = {"session_id": "a", "hook_event_name": name, "tool_name": "Bash", "cwd": str(project), **more}
        given |= {"tool_input": {"command": command}, "tool_use_id": command}
        arguments = ["agent-hook", "--agent", "codex", "rules.toml", "--idle", "20"]
        return hookline(*arguments, input=json.dumps(given)).returncode

    assert event("PreToolUse", "cat .env") == 0
    assert event("PostToolUse", "cat .env", tool_response="KEY=1") == 0
    assert event("PreToolUse", "ls") == 2
    (project / "rules.toml").write_text(rules + "# changed")
    assert event("PreToolUse", "ls") == 0  # its arguments are forgotten, which is no failure
    assert event("PreToolUse", "git push") == 2


def test_rules_are_no_tools(in_process, project):
    with pytest.raises(LoadError, match="has rules, not tools: name it in hooks"):
        load_tools(["rules.toml"], project)
