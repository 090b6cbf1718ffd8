"""All runs of a project are in one list: of the command line, programs, servers, channels and other frameworks."""

import asyncio
import json
import re

import pytest

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.cli import approval_prompt
from hookline.cli.app import run_app

from .rig import console

RULES = """
from hookline import HookResult, guard

@guard("before_tool", tools="write_file")
def judge(ctx, request):
    if request.arguments["path"] == "secret.txt":
        return HookResult.block("No.", reason="that file is secret")
    return HookResult.ask("Write?")
"""


@tool
def look() -> str:
    """Look at something."""
    return "seen"


@pytest.fixture
def project(tmp_path, monkeypatch, capsys):
    """A folder, and a function that runs commands in it. It returns what they print on stdout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("HOOKLINE_TRUST", "1")
    monkeypatch.setattr("hookline.cli.run.piped_text", str)
    monkeypatch.setattr(approval_prompt, "HOLD_SECONDS", 0.01)
    (tmp_path / "rules.py").write_text(RULES)

    def command(*args, expect=0):
        capsys.readouterr()
        assert run_app([*args, "--runs", "runs.db"]) == expect, capsys.readouterr().err
        return capsys.readouterr().out

    def run(task, *turns, expect=0, more=()):
        (tmp_path / "turns.json").write_text(json.dumps(turns))
        options = ["-m", "scripted:turns.json", "--write", "--hooks", "rules.py", "--approval-file", "approvals.db"]
        return command("run", task, *options, *more, expect=expect)

    command.run = run
    command.folder = tmp_path
    return command


def write(path):
    return {"tool": "write_file", "arguments": {"path": path, "content": "x"}}


def rows(html):
    """The id, status and origin of each run in the list of the console."""
    found = re.findall(r'<tr id="run-([^"]*)">(.*?)</tr>', html, re.DOTALL)
    pills = [re.search(r'class="status (\w+)"', row)[1] for _, row in found]
    origins = [re.search(r'data-label="from">([^<]*)<', row)[1] for _, row in found]
    return list(zip((id for id, _ in found), pills, origins, strict=True))


async def test_runs_of_the_command_line_are_in_the_list_of_a_server_with_the_same_database(project):
    await asyncio.to_thread(project.run, "Write it.", write("secret.txt"), "I may not.")
    await asyncio.to_thread(project.run, "Write it.", write("a.txt"), "Denied.")  # nobody answers at the terminal
    async with console(project.folder) as made, made.logged_in("admin", "read", "run") as browser:
        served = (await browser.post("/runs", json={"task": "Say hello.", "wait": 30})).json()
        found = (await browser.get("/runs")).json()["runs"]
        shown = rows((await browser.get("/console/runs")).text)
        listed = json.loads(await asyncio.to_thread(project, "runs", "--json"))
        assert [run["origin"] for run in found] == ["server", "command line", "command line"]
        assert found[0]["id"] == served["id"]
        assert shown == [(run["id"], run["status"], run["origin"]) for run in found]
        names = ("status", "origin", "agent", "steps", "cost", "created", "task")
        assert [[run["run_id"], *(run[name] for name in names)] for run in listed] == [
            [run["id"], *(run[name] for name in names)] for run in found
        ]
        denied, blocked = found[1]["id"], found[2]["id"]
        for id, words in ((blocked, ("judge", "that file is secret", "blocked")), (denied, ("denied", "asked"))):
            answer = await browser.get(f"/runs/{id}")
            assert (answer.status_code, answer.json()["tool_calls"]) == (200, 1)
            page = await browser.get(f"/console/runs/{id}")
            assert page.status_code == 200
            assert [word for word in (*words, "write_file", "are stored, not its texts") if word not in page.text] == []
            told = await browser.get(f"/runs/{id}/explain", headers={"accept": "application/json"})
            assert told.status_code == 200
            assert (told.json()["model"], "write_file" in told.text) == ("turns.json", True)
            printed = await asyncio.to_thread(project, "explain", id)
            assert ("write_file" in printed, "1 tool call" in printed) == (True, True)
            events = (await browser.get(f"/runs/{id}/events", headers={"accept": "application/json"})).json()
            assert (events["events"], events["over"]) == ([], True)
        stats = json.loads(await asyncio.to_thread(project, "stats", "--json"))
        (person,) = [each["hook"] for each in stats["refusals"] if each["verb"] == "denied"]
        for chosen, expected in (
            (f"hook={person}", [denied]),
            (f"hook={person}&verb=denied", [denied]),
            (f"hook={person}&verb=block", []),
            ("tool=write_file", [denied, blocked]),
            ("hook=judge&verb=block", [blocked]),
            ("verb=denied", [denied]),
            ("model=turns.json", [denied, blocked]),
            ("origin=command+line", [denied, blocked]),
            ("status=completed&agent=hookline", [denied, blocked]),
            ("tool=nothing", []),
        ):
            assert [run["id"] for run in (await browser.get(f"/runs?{chosen}")).json()["runs"]] == expected, chosen
            assert [row[0] for row in rows((await browser.get(f"/console/runs?{chosen}")).text)] == expected, chosen
        for chosen, expected in ((f"hook={person}", denied), ("hook=judge&verb=block", blocked)):
            page = (await browser.get(f"/console/blocked?{chosen}")).text
            shown = re.findall(r'<tr id="refusal-.*?</tr>', page, re.DOTALL)
            assert [expected in each for each in shown] == [True], chosen
        for name, id, word in ((person, denied, "denied"), ("judge", blocked, "blocked")):
            told = await asyncio.to_thread(project, "explain", id, "--hook", name)
            assert ("Nothing in this run matches" in told, word in told) == (False, True), name
        async with made.logged_in("read", "run") as other:
            assert (await other.get("/runs")).json()["runs"] == []
            assert (await other.get(f"/runs/{blocked}")).status_code == 404
            assert (await other.get(f"/console/runs/{blocked}")).status_code == 404


async def test_a_call_of_the_command_line_that_waits_for_approval_leads_to_its_run(project):
    turns, more = (write("a.txt"), "Done."), ("--durable", "--wait")
    await asyncio.to_thread(project.run, "Write it.", *turns, expect=6, more=more)
    async with console(project.folder) as made, made.logged_in("admin", "read", "run", "approve") as browser:
        (run,) = (await browser.get("/runs?status=waiting")).json()["runs"]
        assert (run["origin"], run["task"], run["status"]) == ("command line", "Write it.", "waiting")
        approvals = (await browser.get("/console/approvals")).text
        assert re.findall(r'href="(/console/runs/[^"]*)">the run “Write it.”<', approvals) == [
            f"/console/runs/{run['id']}"
        ]
        page = await browser.get(f"/console/runs/{run['id']}")
        assert (page.status_code, "a.txt" in page.text, "not its texts" in page.text) == (200, True, False)
        assert "Cancel the run" not in page.text
        assert (await browser.post(f"/runs/{run['id']}/cancel", json={})).status_code == 409
        assert [row[:2] for row in rows((await browser.get("/console/runs")).text)] == [(run["id"], "waiting")]
    assert (await asyncio.to_thread(project, "runs", "delete", "last")).startswith("deleted run_")
    assert json.loads(await asyncio.to_thread(project, "runs", "--json")) == []


async def test_a_program_that_serves_an_agent_lists_its_own_runs_of_it_too(project):
    agent = Agent("helper", llm=ScriptedModel([call("look"), reply("Done.")], loop=True), tools=[look])
    async with console(project.folder, agent) as made, made.logged_in("admin", "read", "run") as browser:
        served = (await browser.post("/runs", json={"task": "Look.", "wait": 30})).json()
        streamed = [event async for event in agent.stream("Look around.")][-1].run_id

        async def listed():
            return [(run["id"], run["origin"]) for run in (await browser.get("/runs?status=completed")).json()["runs"]]

        for _ in range(200):
            if len(found := await listed()) == 2:
                break
            await asyncio.sleep(0.05)
        assert found == [(streamed, "library"), (served["id"], "server")]
        page = (await browser.get(f"/console/runs/{streamed}")).text
        assert [word for word in ("look", "Step 2", "are stored, not its texts") if word not in page] == []
        metrics_and_recorder = len(list(agent.hooks))
    assert (metrics_and_recorder, len(list(agent.hooks))) == (2, 0)
