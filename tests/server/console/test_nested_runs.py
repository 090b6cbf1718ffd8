"""A run includes its nested runs in every list, and a nested run can be named by itself."""

import asyncio
import json

import pytest

from hookline import Agent, HookResult, ScriptedModel, call, guard, hook, reply, tool
from hookline.cli.app import run_app
from hookline.explain.from_facts import stored_view
from hookline.hooks import AuditLogHook, ObservabilityHook, shadow
from hookline.stores import RunStore
from hookline.teams import Team

from .rig import console


@tool(effects=[])
def look(place: str) -> str:
    """Look at a place."""
    return place


@guard("before_tool", tools="look")
def judge(ctx, request):
    place = request.arguments["place"]
    return {"cellar": HookResult.block("dark"), "attic": HookResult.ask("Go up?")}.get(place)


@hook("approval_requested")
def deny(ctx, request):
    return HookResult.deny("No.", by="ann")


@guard("before_tool", name="trial", tools="look")
def trial(ctx, request):
    return HookResult.block("never")


@pytest.fixture
def tree(tmp_path):
    """The ids of a run, of its subagent, and of the subagent of that one."""
    turns = [call("look", place="cellar"), call("look", place="attic")]
    agent, ids = None, []

    @hook("on_run_end")
    def noted(ctx, result):
        if result.ids.run_id not in ids:
            ids.insert(0, result.ids.run_id)

    recorder = ObservabilityHook(tmp_path / "runs.db")
    audit = AuditLogHook(tmp_path / "audit.jsonl", fsync="never")
    for name in ("third", "second", "first"):
        more = [] if agent is None else [call("delegate", to=agent.name, task="Go.")]
        tools = [look] if agent is None else [look, Team([agent])]
        model = ScriptedModel([*turns, *more, reply("Done.")])
        hooks = [judge, deny, shadow(trial), noted, recorder, audit] if name == "first" else []
        agent = Agent(name, llm=model, tools=tools, hooks=hooks)
    assert agent.run("Go.").status == "completed"
    assert recorder.flush()
    audit.log.close()
    return ids


def of_view(view):
    """The verdicts in a view of a run: of hooks, and of people who denied."""
    found = [(each.hook, each.verb) for moment in view.moments() for each in moment.decisions if each.verb != "cont"]
    calls = [item for _, step, _ in view.all_steps() for item in step.items if hasattr(item, "decided_by")]
    return sorted(found + [(each.decided_by, "denied") for each in calls if each.decision == "denied"])


@pytest.mark.sqlite
async def test_a_run_has_the_verdicts_of_its_nested_runs_at_every_door(tree, tmp_path, capsys):
    path = str(tmp_path / "runs.db")
    store = RunStore(path)
    async with console(tmp_path) as made, made.logged_in("admin", "read", "run") as browser:
        for depth, id in enumerate(tree):
            answer = (await browser.get(f"/runs/{id}/verdicts")).json()["verdicts"]
            capsys.readouterr()
            assert await asyncio.to_thread(run_app, ["stats", path, "--run", id, "--json"]) == 0
            shown = json.loads(capsys.readouterr().out)
            assert shown["verdicts"] == answer
            listed = sorted((each["hook"] or each["by"], each["verb"]) for each in answer if each["verb"] != "shadow")
            runs = 3 - depth
            own = [("ann", "denied"), ("deny", "claim"), ("judge", "ask"), ("judge", "block")]
            assert listed == sorted(own * runs), id
            assert sum(each["verb"] == "shadow" for each in answer) == runs
            view = stored_view(store, store.get(id))
            assert of_view(view) == listed
            explained = await browser.get(f"/runs/{id}/explain", headers={"accept": "application/json"})
            assert explained.json()["id"] == id
            looks = [each for each in shown["calls"] if each["name"] == "look"]
            assert len(looks) == 2 * runs
            assert {each["run_id"] for each in shown["calls"]} == {*tree[depth:]}
            numbers = {name: shown["run"][name] for name in ("steps", "tool_calls", "input_tokens")}
            assert numbers == {
                "steps": view.step_count,
                "tool_calls": view.tool_calls,
                "input_tokens": view.input_tokens,
            }


@pytest.mark.sqlite
def test_the_audit_log_of_a_run_has_the_records_of_its_nested_runs(tree, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOOKLINE_AUDIT", "audit.jsonl")
    for depth, id in enumerate(tree):
        for command in (("show", "--tail", "0"), ("search", "--limit", "1000", "--audit-index", "index.db")):
            capsys.readouterr()
            assert run_app(["audit", *command, "--run", id, "--runs", "runs.db", "--json"]) == 0
            out = capsys.readouterr().out
            found = json.loads(out) if command[0] == "search" else [json.loads(line) for line in out.splitlines()]
            assert {each["run_id"] for each in found} == {*tree[depth:]}, command
            verdicts = [(each["hook"], each["verb"]) for each in found if each["type"] == "verdict"]
            assert verdicts.count(("judge", "block")) == 3 - depth
