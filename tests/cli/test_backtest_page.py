"""``hookline backtest --html`` as a program."""

import json
import re

import pytest

from hookline import Agent, ScriptedModel, call
from hookline.records import RecordHook
from hookline.tools import Tool

RULES = """
from hookline import BEFORE_TOOL, HookResult, guard

@guard(BEFORE_TOOL, tools="shell")
def no_shell(ctx, request):
    return HookResult.block("no shell")
"""


@pytest.fixture
def records(folder, monkeypatch):
    monkeypatch.chdir(folder)
    (folder / "rules.py").write_text(RULES)
    shell = Tool(lambda command: "ok", name="shell", description="Run a command.")
    model = ScriptedModel([call("shell", command="</script><script>alert(1)</script>"), "done"])
    Agent("a", llm=model, tools=[shell], hooks=[RecordHook("records")]).run("Work.")
    return folder / "records"


def test_the_page_says_how_it_was_made_and_only_its_owner_may_read_it(in_process, records, folder):
    code, out, err = in_process("backtest", "rules.py", "records", "--since", "1d", "--html", "report.html")
    assert (code, "written: report.html" in err) == (0, True)
    assert "1 of 1 run would differ: 1 newly blocked." in out
    page = (folder / "report.html").read_text()
    assert (folder / "report.html").stat().st_mode & 0o777 == 0o600
    data = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[0])
    about = data["about"]
    assert {name: about[name] for name in about if name != "Made"} == {
        "Rules": "rules.py",
        "Records": "records",
        "Since": "1d",
    }
    assert "Hookline" in about["Made"]
    assert "alert(1)" in data["report"]["cells"][0]["examples"][0]["subject"]
    assert "<script>alert" not in page


def test_the_command_of_an_example_works(in_process, records, folder):
    import shlex

    in_process("backtest", "rules.py", "records", "--html", "report.html")
    page = (folder / "report.html").read_text()
    data = json.loads(re.findall(r'<script type="application/json">(.*?)</script>', page, re.DOTALL)[0])
    program, *arguments = shlex.split(data["report"]["cells"][0]["examples"][0]["command"])
    assert program == "hookline"
    code, out, _ = in_process(*arguments)
    assert code == 0
    assert "shell ok" in out


def test_a_page_that_cannot_be_written_is_an_error(in_process, records):
    code, _, err = in_process("backtest", "rules.py", "records", "--html", "nowhere/report.html")
    assert code == 2
    assert "nowhere/report.html cannot be written: No such file or directory" in err
