"""A refusal is the same in statistics, lists of records and explain, from whatever a run is shown."""

import json

import pytest

from hookline import Agent, HookResult, ScriptedModel, call, guard, hook, reply, tool
from hookline.stores import RunStore
from tests.waiting import block_until


@tool(effects=[])
def note(name: str) -> str:
    """Read a note."""
    return name


@guard("before_tool")
def keep(ctx, request):
    if request.arguments["name"] == "taxes":
        return HookResult.block("No taxes.")
    return HookResult.ask("Sure?") if request.arguments["name"] == "mail" else None


@guard("before_tool", on_failure="block")
def broken(ctx, request):
    if request.arguments["name"] == "hard":
        raise RuntimeError("broken")


@guard("after_llm")
def no_codes(ctx, answer):
    return HookResult.retry("No codes.") if "4711" in answer.content else None


@hook("approval_requested")
def deny(ctx, request):
    return HookResult.deny("No.")


REFUSED = 4
"""The block, the failed hook, the denied call and the rejected reply; the invalid call is none."""


@pytest.fixture
def run(folder, monkeypatch):
    monkeypatch.chdir(folder)
    names = ("taxes", "hard", "mail", "fine")
    turns = [*(call("note", name=name) for name in names), call("note", nom="x"), reply("It is 4711."), reply("Done.")]
    agent = Agent(
        "bob", llm=ScriptedModel(turns), tools=[note], hooks=[keep, broken, no_codes, deny],
        record="records", runs="runs.db",
    )  # fmt: skip
    result = agent.run("Go.")
    assert (result.status, result.reply) == ("completed", "Done.")
    block_until(lambda: (row := RunStore("runs.db").get(result.ids.run_id)) is not None and row.is_over)
    return result.ids.run_id


def test_every_door_counts_the_same_refusals(run, in_process):
    stats = json.loads(in_process("stats", "--json", "--runs", "runs.db")[1])
    (listed,) = json.loads(in_process("record", "ls", "--json", "--records", "records")[1])
    assert sum(each["count"] for each in stats["refusals"]) == listed["blocked"] == REFUSED


@pytest.mark.parametrize("records", ["records", "elsewhere"], ids=["record", "facts"])
def test_explain_shows_what_was_refused(run, in_process, records):
    _, shown, _ = in_process("explain", run, "--only", "blocked", "--runs", "runs.db", "--records", records, "--full")
    shown = shown[shown.index("\nStep") :]  # below the header
    for text in ("blocked keep", "failed broken", "denied", "retry no_codes"):
        assert text in shown, text
    assert "INVALID" not in shown.upper()
    assert shown.count("note ") - shown.count("note ok") == 3 or records == "records"
    _, shown, _ = in_process("explain", run, "--only", "invalid", "--runs", "runs.db", "--records", records)
    assert "note" in shown or records == "elsewhere"


def test_a_record_and_the_events_of_the_same_run_do_not_differ(folder, monkeypatch):
    monkeypatch.chdir(folder)
    from hookline.explain import compare, explain
    from hookline.explain.comparison import summary
    from hookline.explain.from_facts import stored_view
    from hookline.records import read_runs

    names = ("taxes", "hard", "mail", "fine")
    turns = [*(call("note", name=name) for name in names), call("note", nom="x"), reply("It is 4711."), reply("Done.")]
    hooks = [keep, broken, no_codes, deny]
    store = RunStore("durable.db")
    agent = Agent("bob", llm=ScriptedModel(turns), tools=[note], hooks=hooks, record="records", instructions="Be kind.")
    result = agent.run("Go.", durable=store)
    (recorded,) = read_runs(["records"])
    found = compare(explain(recorded), stored_view(store, store.find(result.ids.run_id)))
    assert [pair for pair in found.pairs if not pair.same] == []
    assert "do not have the requests to the model" in summary(found)
    assert found.same


def test_events_say_what_was_refused(folder, monkeypatch):
    monkeypatch.chdir(folder)
    from hookline.explain.from_facts import stored_view
    from hookline.explain.view import is_refused

    names = ("taxes", "hard", "mail")
    turns = [*(call("note", name=name) for name in names), reply("It is 4711."), reply("Done.")]
    agent = Agent("bob", llm=ScriptedModel(turns), tools=[note], hooks=[keep, broken, no_codes, deny])
    store = RunStore("durable.db")
    result = agent.run("Go.", durable=store)
    view = stored_view(store, store.find(result.ids.run_id))
    assert view.has_texts
    assert sum(is_refused(item) for step in view.steps for item in step.items) == REFUSED
