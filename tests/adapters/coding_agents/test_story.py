"""A session of Claude Code under ``hookline agent-hook``, with a restart in the middle: every place tells its story."""

import json
import os
import subprocess
import sys
from contextlib import closing

import httpx
import pytest
from bs4 import BeautifulSoup

from hookline import Agent, ScriptedModel
from hookline.config.settings import Settings
from hookline.explain import explain
from hookline.explain.find import find_run
from hookline.explain.view import ToolCallView
from hookline.server import Caller, asgi
from hookline.stores import RunStore, run_stats, verify_audit
from tests.waiting import block_until

pytestmark = [
    pytest.mark.slow,  # real processes
    pytest.mark.skipif(not hasattr(os, "fork"), reason="the resident process needs fork"),
]

CONFIGURATION = """
hooks = ["rules.py"]
folder = "."
shell = true
runs = "runs.db"
record = true
records = "records"
audit = "audit.jsonl"
max_tool_calls = 6
"""
RULES = """
from hookline import BEFORE_TOOL, HookResult, guard, hook
from hookline.points import AFTER_TOOL, APPROVAL_REQUESTED

@hook(BEFORE_TOOL, tools="fetch")
def plain_address(ctx, request):
    if "?" in request.arguments["url"]:
        return request.replace(arguments={**request.arguments, "url": request.arguments["url"].split("?")[0]})

@guard(BEFORE_TOOL, tools=["fetch", "WebSearch"])
def judge(ctx, request):
    words = str(request.arguments)
    if "bad.example" in words:
        return HookResult.block("Not this site.")
    return HookResult.ask("May it be searched?") if "secret plans" in words else None

@hook(APPROVAL_REQUESTED)
def approver(ctx, asked):
    return HookResult.approve(by="anna") if "approved" in str(asked.call.arguments) else None

@hook(AFTER_TOOL)
def redact(ctx, result):
    if "hunter2" in str(result.result):
        return result.replace(result=str(result.result).replace("hunter2", "[hidden]"))
"""


def fetch(url):
    return {"tool_name": "WebFetch", "tool_input": {"url": url, "prompt": "Read."}}


def search(words):
    return {"tool_name": "WebSearch", "tool_input": {"query": words}}


def play(claude):
    """Play a session: two prompts, a subagent, and new rules in the middle of the first prompt."""

    def before(id, given, **fields):
        found = claude.send("PreToolUse", tool_use_id=id, prompt_id="prompt_1", **given, **fields)
        return found.get("hookSpecificOutput", {})

    def after(id, given, response, **fields):
        found = claude.send(
            "PostToolUse",
            tool_use_id=id,
            prompt_id="prompt_1",
            tool_response=response,
            duration_ms=20,
            **given,
            **fields,
        )
        return found.get("hookSpecificOutput", {})

    claude.send("SessionStart", source="startup")
    claude.send("UserPromptSubmit", prompt="Read the news.", prompt_id="prompt_1")
    assert before("t1", fetch("https://bad.example/"))["permissionDecision"] == "deny"
    assert before("t2", search("secret plans, approved")) == {}
    assert after("t2", search("secret plans, approved"), "nothing") == {}
    changed = before("t3", fetch("https://news.example/?id=7"))["updatedInput"]
    assert changed == {"url": "https://news.example/", "prompt": "Read."}
    # Two calls at the same time; one of them is in flight when the rules change, and the other is never made.
    before("t4", search("the password"))
    assert before("t5", search("secret plans"))["permissionDecision"] == "ask"
    rules = claude.folder / "rules.py"
    rules.write_text(rules.read_text() + "\n# Changed.\n")
    assert after("t4", search("the password"), "it is hunter2") == {
        "hookEventName": "PostToolUse",
        "updatedToolOutput": "it is [hidden]",
    }
    assert after("t3", {"tool_name": "WebFetch", "tool_input": changed}, "the news") == {}
    before("t6", {"tool_name": "Task", "tool_input": {"prompt": "Look.", "description": "Look"}})
    inner = {"agent_id": "helper"}
    assert before("t7", fetch("https://bad.example/2"), **inner)["permissionDecision"] == "deny"
    claude.send("SubagentStop", prompt_id="prompt_1", last_assistant_message="Nothing.", **inner)
    after("t6", {"tool_name": "Task", "tool_input": {"prompt": "Look.", "description": "Look"}}, "Nothing.")
    assert before("t8", search("never made")) == {}
    claude.send("Stop", prompt_id="prompt_1", last_assistant_message="Nothing new.")
    claude.send("UserPromptSubmit", prompt="Thanks.", prompt_id="prompt_2")
    claude.send("Stop", prompt_id="prompt_2", last_assistant_message="You are welcome.")
    claude.send("SessionEnd", reason="exit")


def program(claude, *arguments):
    """Return what the program prints, as JSON."""
    command = [sys.executable, "-P", "-m", "hookline", *arguments]
    done = subprocess.run(command, cwd=claude.folder, env=claude.env(), capture_output=True, check=False)
    assert done.stdout, done.stderr
    return json.loads(done.stdout)


CALLS = [
    *(("fetch", "blocked"), ("WebSearch", "ok"), ("WebSearch", "ok"), ("fetch", "ok"), ("fetch", "blocked")),
    *(("Task", "ok"), ("WebSearch", "cancelled")),
]
"""All calls but the one about which the user was asked before the restart, and which nobody mentioned afterwards."""


async def test_every_place_tells_the_same_story(new):
    claude = new(CONFIGURATION, name="hookline.toml")
    (claude.folder / "rules.py").write_text(RULES)
    play(claude)
    with closing(RunStore(claude.folder / "runs.db")) as store:
        block_until(lambda: [run.status for run in store.runs(outermost=True)] == ["completed"] * 2)
        tell_list(store)
        await tell_console(claude)
    tell_records(claude)
    tell_audit(claude)


def tell_list(store):
    """Check the list of runs and the statistics."""
    second, first = store.runs(outermost=True)
    assert [run.id for run in (first, second)] == ["prompt_1", "prompt_2"]
    assert (first.agent, first.origin, first.session_id, first.tool_calls) == (
        "claude-code",
        "claude-code",
        "session",
        6,
    )
    (inner,) = [run for run in store.runs() if run.parent_run_id]
    assert (inner.parent_run_id, inner.status) == ("prompt_1", "completed")
    calls = store.calls("prompt_1")
    assert sorted((call.name, call.outcome) for call in calls) == sorted(CALLS)
    stats = run_stats(store)
    counted = [(each.tool, outcome) for each in stats.tools for outcome, n in each.outcomes.items() for _ in range(n)]
    assert sorted(counted) == sorted(CALLS)
    assert [(each.hook, each.verb, each.tool, each.count) for each in stats.refusals] == [
        ("judge", "block", "fetch", 2)
    ]
    assert [(each.tool, each.decisions) for each in stats.approvals] == [("WebSearch", {"approved": 1})]


async def tell_console(claude):
    """Check the API and a page of a server with this list."""
    settings = Settings(runs=str(claude.folder / "runs.db"), records=str(claude.folder / "records"))
    caller = Caller("ann", scopes=frozenset(("read", "admin")))
    agent = Agent("helper", llm=ScriptedModel([]))
    app = asgi({"helper": agent}, authenticate=lambda request: caller, settings=settings, home=claude.folder)
    transport = httpx.ASGITransport(app)
    async with app, httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1:8420") as client:
        found = (await client.get("/runs/prompt_1")).json()
        assert (found["status"], found["agent"], found["origin"]) == ("completed", "claude-code", "claude-code")
        page = BeautifulSoup((await client.get("/console/blocked?by=events")).text, "lxml")
        assert [row.select_one(".ev-w").text for row in page.select("#blocked-rows tbody tr")] == ["Not this site."] * 2
        assert "WebSearch" in (await client.get("/console/runs/prompt_1")).text


def tell_records(claude):
    """Check what ``explain`` and ``backtest`` say, with the parts of both processes."""
    records = str(claude.folder / "records")
    view = explain(find_run("prompt_1", [records]).run)
    assert (view.status, view.reply, view.task) == ("completed", "Nothing new.", "Read the news.")
    calls = [item for _, step, _ in view.all_steps() for item in step.items if isinstance(item, ToolCallView)]
    assert sorted((call.id, call.tool) for call in calls) == [
        *(("t1", "fetch"), ("t2", "WebSearch"), ("t3", "fetch"), ("t4", "WebSearch"), ("t5", "WebSearch")),
        *(("t6", "Task"), ("t7", "fetch"), ("t8", "WebSearch")),
    ]
    about = {call.id: call for call in calls}
    assert (about["t2"].decision, about["t2"].decided_by) == ("approved", "anna")
    assert about["t4"].result == "it is [hidden]"
    assert [run.status for run in about["t6"].runs] == ["completed"]
    assert about["t8"].outcome == "cancelled"
    shown = program(claude, "explain", "prompt_1", "--json", "--trust")
    assert shown["tool_calls"] == 6
    report = program(claude, "backtest", "rules.py", "records", "--json")
    assert {(cell["hook"], cell["kind"]) for cell in report["cells"] if cell["kind"] != "same"} == set()
    assert sum(cell["count"]["exact"] for cell in report["cells"] if cell["hook"] == "judge") == 4
    (claude.folder / "looser.py").write_text(RULES.replace('if "bad.example" in words', "if False"))
    looser = program(claude, "backtest", "looser.py", "records", "--json")
    different = [(cell["hook"], cell["kind"], cell["count"]) for cell in looser["cells"] if cell["kind"] != "same"]
    # The command's own guard comes last, so nobody knows what it would have said about these calls.
    assert different == [("judge", "no_longer_blocked", {"exact": 0, "conditional": 0, "guess": 2})]


def tell_audit(claude):
    """Check the audit log, which two processes have written."""
    path = claude.folder / "audit.jsonl"
    assert verify_audit(path).ok
    records = [json.loads(line) for line in path.read_text().splitlines()]
    ended = [(each["tool"], each["outcome"]) for each in records if each["type"] == "tool"]
    assert sorted(ended) == sorted(CALLS)
    verdicts = [(each["hook"], each["verb"]) for each in records if each["type"] == "verdict"]
    assert verdicts.count(("judge", "block")) == 2
    assert [each["by"] for each in records if each["type"] == "approval"] == ["anna"]
    assert [each["status"] for each in records if each["type"] == "run_end"] == ["completed"] * 3
