"""The moments in a tape: everything that reads records reads tapes too."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings

from hookline import (
    AFTER_LLM,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_TOKEN,
    Agent,
    HookResult,
    Limits,
    ModelRequest,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.records import RecordedRun, RecordHook, read_runs
from hookline.records.format import HookAtPoint
from hookline.records.reading import judged_payload
from hookline.tape import Tape, TapeHook
from hookline.tape import format as fmt
from hookline.teams import Team
from tests.properties import examples

from ..invariants.strategies import TOOLS, Scenario, scenarios


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@guard(BEFORE_TOOL, tools="add")
def small(ctx: Any, request: Any) -> HookResult | None:
    return HookResult.block("Too large.", reason="a limit") if request.arguments["a"] > 9 else None


@hook(BEFORE_LLM)
def brief(ctx: Any, request: ModelRequest) -> ModelRequest:
    return request.replace(params={"max_tokens": 5})


@hook(AFTER_LLM)
def noted(ctx: Any, reply: Any) -> HookResult:
    return HookResult.cont(reason="seen", state=ctx.state.replace(metadata={"hop": reply.request.hop}))


def recorded(path: Path, *turns: Any, hooks: Any = (), tools: Any = (add,)) -> RecordedRun:
    Agent("a", llm=ScriptedModel(turns), tools=list(tools)).run("go", hooks=[TapeHook(path), *hooks])
    (run,) = read_runs([path])
    return run


def at(run: RecordedRun, point: str) -> list[Any]:
    return [moment for moment in run.moments if moment.point == point]


def test_a_tape_contains_what_each_hook_made_of_each_moment(tmp_path: Path) -> None:
    calls = [call("add", a=1, b="2"), call("add", a=10, b=2)]
    run = recorded(tmp_path / "run.tape", calls, "done", hooks=[small, brief, noted])
    first, second = at(run, "before_tool")
    assert (first.payload.id, first.payload.attempt, first.payload.arguments) == ("call_0_0", 1, {"a": 1, "b": "2"})
    assert judged_payload(first).arguments == {"a": 1, "b": 2}
    assert (second.verdict.verb, second.verdict.hook, second.verdict.reason) == ("block", "small", "a limit")
    (block,) = second.decisions
    assert (block.phase, block.value) == ("guard", "Too large.")
    requests = at(run, "before_llm")
    assert [moment.payload.params for moment in requests] == [{}, {}]
    assert [moment.decisions[0].changed for moment in requests] == [{"params": {"max_tokens": 5}}] * 2
    assert [message.role for message in requests[1].payload.messages] == ["user", "assistant", "tool", "tool"]
    assert [moment.decisions[0].state for moment in at(run, "after_llm")] == [
        {"metadata": {"hop": 0}},
        {"metadata": {"hop": 1}},
    ]
    assert run.end is not None
    assert (run.end.status, run.end.reply) == ("completed", "done")


def test_a_tape_names_the_hooks_with_phase_globs_and_source(tmp_path: Path) -> None:
    run = recorded(tmp_path / "run.tape", "done", hooks=[small, brief])
    hooks = {each.name: each for each in run.hooks}
    guarded = hooks["small"].points["before_tool"]
    assert isinstance(guarded, HookAtPoint)
    assert (guarded.phase, guarded.tools) == ("guard", ("add",))
    assert hooks["small"].source != hooks["brief"].source != ""


def test_nested_runs_of_a_tape_are_nested_in_its_record(tmp_path: Path) -> None:
    helper = Agent("helper", llm=ScriptedModel([call("add", a=1, b=2), "3"]), tools=[add])
    run = recorded(tmp_path / "run.tape", call("delegate", to="helper", task="sum"), "ok", tools=[Team([helper])])
    (nested,) = run.nested
    assert (run.info.ids.agent, nested.info.ids.agent) == ("a", "helper")
    assert [moment.tool for moment in at(nested, "before_tool")] == ["add"]


def test_pieces_of_streamed_text_are_in_the_reply_and_not_moments(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"

    @observer(ON_TOKEN)
    def look(ctx: Any, token: Any) -> None:
        pass

    run = recorded(path, "one two three", hooks=[look])
    assert at(run, "on_token") == []
    (reply,) = [entry for entry in Tape.load(path).entries if isinstance(entry, fmt.ModelReplyEntry)]
    assert reply.pieces == ("one", " two", " three")


def test_a_request_is_written_as_its_difference_from_the_moment_before_it(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    recorded(path, call("add", a=1, b=2), "done", hooks=[brief])
    requests = [
        json.loads(line) for line in path.read_text().splitlines() if line.startswith('{"entry":"model_request"')
    ]
    assert [request["changed"] for request in requests] == [{"params": {"max_tokens": 5}}] * 2
    first, second = Tape.load(path).requests
    assert (first.params, second.params) == ({"max_tokens": 5}, {"max_tokens": 5})
    assert [message.content for message in second.messages] == ["go", "", "3"]
    assert [spec.name for spec in second.tools] == ["add"]


def moments_of(run: RecordedRun) -> list[Any]:
    """Return the moments of a run as a reader sees them, without times and positions."""
    found = []
    for one in run.tree():
        for moment in one.moments:
            decisions = [msgspec.structs.replace(decision, took=0.0) for decision in moment.decisions]
            line = one.number, moment.point, moment.tool, moment.fields, decisions, moment.verdict, moment.notes
            found.append(line)
    return found


async def recorded_twice(scenario: Scenario, folder: Path) -> tuple[RecordedRun, RecordedRun]:
    hooks = [spec.build(f"{spec.say}_{i}") for i, spec in enumerate(scenario.hooks)]
    agent = Agent(
        "a",
        llm=ScriptedModel(scenario.turns, loop=True),
        tools=TOOLS,
        hooks=hooks,
        limits=Limits(steps=scenario.max_steps),
    )
    recorders = [TapeHook(folder / "run.tape"), RecordHook(folder / "records")]
    try:
        async with asyncio.timeout(20):
            await agent.arun("a task", session=Session("s"), hooks=recorders)
    except RunFailedError:
        pass
    (taped,) = read_runs([folder / "run.tape"])
    (recorded,) = read_runs([folder / "records"])
    return taped, recorded


@pytest.mark.slow
@given(scenarios())
@settings(max_examples=examples(25), deadline=None, phases=(Phase.reuse, Phase.generate))
def test_a_tape_has_the_moments_that_a_record_of_the_run_has(scenario: Scenario) -> None:
    with TemporaryDirectory() as folder:
        taped, recorded = asyncio.run(recorded_twice(scenario, Path(folder)))
    points = {moment.point for run in recorded.tree() for moment in run.moments}
    assert points
    assert [line for line in moments_of(taped) if line[1] in points] == moments_of(recorded)
    assert taped.end == recorded.end


@pytest.mark.parametrize("changing", [False, True])
def test_each_message_is_digested_once_however_long_the_run_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changing: bool
) -> None:
    """Digests of whole requests made recording quadratic."""
    digested = 0
    to_json = fmt.Message.to_json

    def counted(message: Any) -> bytes:
        nonlocal digested
        digested += 1
        return to_json(message)

    @hook(BEFORE_LLM)
    def reminded(ctx: Any, request: ModelRequest) -> ModelRequest:
        return request.replace(messages=(*request.messages, fmt.Message("user", "Be brief.")))

    monkeypatch.setattr(fmt.Message, "to_json", counted)
    counts = {}
    for steps in (20, 200):
        digested = 0
        model = ScriptedModel([*(call("add", a=1, b=2) for _ in range(steps - 1)), "done"])
        agent = Agent("a", llm=model, tools=[add], limits=Limits(steps=999), hooks=[reminded] if changing else [])
        agent.run("go", hooks=[TapeHook(tmp_path / "run.tape")])
        counts[steps] = digested
    added = 3 if changing else 2
    assert counts == {steps: added * steps - 1 for steps in (20, 200)}
