"""DESIGN 7.11: a tape replayed with the same hooks gives the same decisions, with no model or tool called."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import Phase, assume, given, settings

from hookline import Agent, AgentContext, AgentResult, Limits, RunFailedError, ScriptedModel, Session, call, tool
from hookline.errors import HooklineError
from hookline.events import HookExecuted
from hookline.tape._replay import Replay, areplay
from hookline.tape.format import CancellationEntry, EventEntry
from hookline.tape.recording import TapeHook
from tests.properties import examples

from ..invariants.strategies import TOOLS, Scenario, scenarios


async def recorded(scenario: Scenario, path: Path) -> AgentResult | None:
    """Run a scenario once, with a tape."""
    hooks = [spec.build(f"{spec.say}_{i}") for i, spec in enumerate(scenario.hooks)]
    model = ScriptedModel(scenario.turns, loop=True)
    agent = Agent("a", llm=model, tools=TOOLS, hooks=hooks, limits=Limits(steps=scenario.max_steps))
    seen = 0

    def cancel(event: Any) -> None:
        nonlocal seen
        seen += 1
        if seen == scenario.cancel:
            run.cancel("now")

    run = agent.start("a task", session=Session("s"), hooks=[TapeHook(path)], sinks=[cancel])
    try:
        return await run.result()
    except RunFailedError as failed:
        return failed.result


async def again(scenario: Scenario, path: Path) -> Replay:
    """Replay it with newly created hooks."""
    hooks = [spec.build(f"{spec.say}_{i}") for i, spec in enumerate(scenario.hooks)]
    return await areplay(path, hooks)


async def played_twice(scenario: Scenario) -> tuple[AgentResult | None, Replay]:
    with TemporaryDirectory() as folder, suppress(asyncio.CancelledError):
        path = Path(folder) / "run.tape"
        async with asyncio.timeout(20):
            result = await recorded(scenario, path)
            return result, await again(scenario, path)
    raise AssertionError("it was cancelled")


async def test_a_limit_that_refused_a_model_call_inside_a_tool_stops_the_replay_too(tmp_path: Path) -> None:
    @tool
    async def think(ctx: AgentContext) -> str:
        """Ask the model, at the limit."""
        with suppress(HooklineError):
            return (await ctx.llm.complete("What do you think?")).content
        return "refused"

    def agent() -> Agent:
        return Agent("a", llm=ScriptedModel([call("think")], loop=True), tools=[think], limits=Limits(tool_calls=1))

    path = tmp_path / "run.tape"
    result = await agent().arun("go", hooks=[TapeHook(path)])
    replay = await areplay(path, agent())
    assert (replay.first_difference, replay.stop_reason) == ("", "")
    assert replay.result.stop == result.stop
    assert result.stop.kind == "tool_calls_limit"


def decided_before_the_cancellation(replay: Replay) -> int:
    entries = replay.tape.entries
    end = next((i for i, entry in enumerate(entries) if isinstance(entry, CancellationEntry)), len(entries))
    executed = [entry.event for entry in entries[:end] if isinstance(entry, EventEntry)]
    return sum(isinstance(event, HookExecuted) and bool(event.verb != "cont" or event.reason) for event in executed)


@pytest.mark.slow
@given(scenarios())
@settings(max_examples=examples(40), deadline=None, phases=(Phase.reuse, Phase.generate))
def test_the_same_hooks_decide_the_same_without_model_and_tools(scenario: Scenario) -> None:
    assume(all(spec.say != "hang" for spec in scenario.hooks))  # their timeouts are real time
    result, replay = asyncio.run(played_twice(scenario))
    assert result is not None
    if isinstance(scenario.cancel, int):  # calls that were about to finish may finish now or not
        before = decided_before_the_cancellation(replay)
        assert replay.replayed[:before] == replay.recorded[:before]
        return
    assert (replay.first_difference, replay.stop_reason) == ("", "")
    assert replay.recorded == replay.replayed
    assert (replay.result.status, replay.result.stop) == (result.status, result.stop)
