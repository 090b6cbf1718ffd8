"""The numbers of a run are the same in its result, in the lists, on its page, in its report and at the terminal."""

import asyncio
import re

import pytest

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.cli.app import run_app
from hookline.records import RecordHook
from hookline.teams import Team
from tests.server.console.rig import console


@tool
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    await asyncio.sleep(0.02)
    return a + b


def office(folder):
    """An agent that calls two tools, one of them for a subagent that calls four."""
    team = Team()
    twice = [call("add", a=1, b=2), call("add", a=3, b=4)]
    clerk = Agent("clerk", llm=ScriptedModel([twice, twice, reply("done")]), tools=[add])
    turns = [[call("delegate", to="clerk", task="add"), call("add", a=1, b=1)], reply("all done")]
    boss = Agent("boss", llm=ScriptedModel(turns), tools=[team, add], hooks=[RecordHook(folder)])
    team.add(clerk)
    team.add(boss)
    return boss


def facts(html):
    """The facts in the head of a page."""
    found = re.search(r'<ul class="facts">(.*?)</ul>', html, re.DOTALL)[1]
    lines = re.findall("<li>(.*?)</li>", found.replace("<li>tool calls", "<li>calls"), re.DOTALL)
    texts = [" ".join(re.sub("<[^>]*>", " ", line).split()) for line in lines]
    return dict(text.split(" ", 1) for text in texts if " " in text)


async def test_the_numbers_of_a_run_are_the_same_everywhere(tmp_path, capsys):
    async with (
        console(tmp_path, office(tmp_path / "records")) as made,
        made.logged_in("admin", "run", "read") as browser,
    ):
        begun = (await browser.post("/runs", json={"task": "go", "wait": 30})).json()
        run = (await browser.get(f"/runs/{begun['id']}")).json()
        page = facts((await browser.get(f"/console/runs/{run['id']}")).text)
        record = facts((await browser.get(f"/console/runs/{run['id']}?from=record")).text)
        view = (await browser.get(f"/runs/{run['id']}/explain", headers={"accept": "application/json"})).json()
    assert run["status"] == "completed"
    assert page.pop("hooks")  # the time of hooks is in the facts of a run
    assert page == record
    assert (page["calls"], page["steps"]) == ("2", "2")
    assert page["subagents"] == "1 (3 steps, 4 tool calls)"
    assert (view["tool_calls"], view["subagents"]) == (run["tool_calls"], {"runs": 1, "steps": 3, "tool_calls": 4})
    assert view["elapsed"] == pytest.approx(run["elapsed"], abs=1e-6)
    assert [view[name] for name in ("input_tokens", "output_tokens")] == [run["input_tokens"], run["output_tokens"]]
    assert run_app(["explain", "--records", str(tmp_path / "records"), run["id"]]) == 0
    shown = capsys.readouterr().out
    assert "2 steps · 2 tool calls · 1 subagent (3 steps, 4 tool calls)" in shown
