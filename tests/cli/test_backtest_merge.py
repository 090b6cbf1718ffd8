"""``hookline backtest --merge``: the reports of several processes become one."""

import json

import pytest

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.records import RecordHook
from hookline.records.parquet import export_parquet

RULES = """
from hookline import BEFORE_TOOL, HookResult, guard

@guard(BEFORE_TOOL, tools="shell")
def no_rm(ctx, request):
    return HookResult.block("No.") if request.arguments["command"].startswith("rm") else None
"""


@tool
def shell(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


@pytest.fixture
def parts(folder):
    """Two parts of a history, one of them as Parquet, and the rules."""
    (folder / "rules.py").write_text(RULES)
    (folder / "other.py").write_text(RULES.replace("no_rm", "other"))
    for month, count in (("october", 2), ("november", 3)):
        recorder = RecordHook(folder / month)
        for number in range(count):
            turns = [call("shell", command=f"rm {number}"), call("shell", command="ls"), reply("end")]
            Agent("bob", llm=ScriptedModel(turns), tools=[shell], hooks=[recorder]).run(f"Task {number}")
    export_parquet([folder / "november"], folder / "november.parquet")
    return folder


@pytest.fixture
def reports(parts, hookline):
    """The reports about the parts, in files."""
    for name, records in (("a.json", "october"), ("b.json", "november.parquet")):
        done = hookline("backtest", "rules.py", records, "--json")
        assert done.returncode == 0, done.stderr
        (parts / name).write_text(done.stdout)
    return parts


def test_merged_reports_say_the_same_as_one_backtest_of_everything(reports, hookline):
    whole = json.loads(hookline("backtest", "rules.py", "october", "november", "--json").stdout)
    done = hookline("backtest", "--merge", "a.json", "b.json", "--json")
    assert done.returncode == 0
    merged = json.loads(done.stdout)
    assert (merged["runs"], merged["judged"]) == (5, 10)
    for name in ("rules", "runs", "different_runs", "moments", "judged", "certainty", "labels", "failures"):
        assert merged[name] == whole[name], name
    assert [(cell["kind"], cell["count"]) for cell in merged["cells"]] == [
        (cell["kind"], cell["count"]) for cell in whole["cells"]
    ]


def test_conditions_and_the_page_work_on_merged_reports(reports, hookline):
    done = hookline("backtest", "--merge", "a.json", "b.json", "--fail-if", "newly_blocked > 4", "--html", "all.html")
    assert done.returncode == 1
    assert "5 runs" in done.stdout
    assert "no_rm" in (reports / "all.html").read_text()
    assert hookline("backtest", "--merge", "a.json", "b.json", "--fail-if", "newly_blocked > 5").returncode == 0


def test_reports_that_do_not_fit_together_are_refused(reports, hookline):
    (reports / "c.json").write_text(hookline("backtest", "other.py", "october", "--json").stdout)
    (reports / "d.json").write_text("{}]")
    cases = {
        ("a.json", "c.json"): "different rules",
        ("a.json", "a.json"): "a.json is named twice",
        ("a.json", "d.json"): "d.json is not a report that 'hookline backtest --json' wrote",
        ("a.json", "no.json"): "no.json cannot be read",
        ("a.json", "b.json", "--since", "7d"): "--since cannot be combined with --merge",
    }
    for args, said in cases.items():
        done = hookline("backtest", "--merge", *args)
        assert done.returncode == 2
        assert said in done.stderr
