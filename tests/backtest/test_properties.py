"""A backtest with the recorded hooks finds no difference; with another guard, it finds the first one of a real run."""

from __future__ import annotations

import asyncio
import tempfile
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import BEFORE_TOOL, Agent, HookResult, Limits, RunFailedError, ScriptedModel, guard
from hookline.backtest import backtest
from hookline.records import RecordHook, read_runs
from hookline.records.format import MAIN_POINTS
from tests.invariants.strategies import LOOP_POINTS, TOOLS, HookSpec, hook_specs, turns
from tests.properties import examples

RECORDED = tuple(point for point in LOOP_POINTS if point in MAIN_POINTS)
NOT_HERE = ("hang", "think", "cancelled")
"""They depend on time or on a model, which a backtest does not have."""

specs = hook_specs(RECORDED).filter(lambda spec: spec.say not in NOT_HERE)


def build(hooks: tuple[HookSpec, ...]) -> list[Any]:
    return [spec.build(f"{spec.say}_{index}") for index, spec in enumerate(hooks)]


def record(folder: str, hooks: list[Any], script: tuple[Any, ...]) -> None:
    model = ScriptedModel(script, loop=True)
    agent = Agent("a", llm=model, tools=TOOLS, hooks=[*hooks, RecordHook(folder)], limits=Limits(steps=3))

    async def run() -> None:
        try:
            await agent.arun("a task")
        except RunFailedError:
            pass

    asyncio.run(run())


def differences(report: Any) -> list[Any]:
    return [cell for cell in report.cells if cell.kind != "same"]


@settings(max_examples=examples(40))
@given(st.lists(specs, max_size=5).map(tuple), st.lists(turns, min_size=1, max_size=4).map(tuple))
def test_the_same_hooks_decide_the_same(hooks, script):
    with tempfile.TemporaryDirectory() as folder:
        record(folder, build(hooks), script)
        same = backtest([*build(hooks), guard(BEFORE_TOOL, name="another")(lambda ctx, request: None)], folder)
        assert not differences(same), differences(same)
        assert same.runs == 1
        assert same.certainty.conditional == 0
        assert not same.skipped


@settings(max_examples=examples(40))
@given(st.lists(specs, max_size=5).map(tuple), st.lists(turns, min_size=1, max_size=4).map(tuple), st.data())
def test_some_of_the_same_hooks_decide_the_same(hooks, script, data):
    """The others keep their recorded decisions, at their places in the order."""
    kept = data.draw(st.sets(st.sampled_from(range(len(hooks))))) if hooks else set()
    with tempfile.TemporaryDirectory() as folder:
        record(folder, build(hooks), script)
        some = [hook for index, hook in enumerate(build(hooks)) if index in kept]
        report = backtest([*some, guard(BEFORE_TOOL, name="another")(lambda ctx, request: None)], folder)
        assert not differences(report), differences(report)


@settings(max_examples=examples(40))
@given(st.lists(turns, min_size=1, max_size=4).map(tuple), st.integers(-3, 3))
def test_the_first_difference_is_that_of_a_real_run(script, limit):
    """A stateless guard decides about the same call first, whether it judges the record or the run itself."""

    @guard(BEFORE_TOOL, name="rule", tools=["fine", "slow"])
    def rule(ctx, request):
        return HookResult.block("too large") if request.arguments.get("n", 0) > limit else None

    with tempfile.TemporaryDirectory() as folder:
        record(f"{folder}/before", [], script)
        report = backtest([rule], f"{folder}/before")
        record(f"{folder}/after", [rule], script)
        (run,) = read_runs([f"{folder}/after"])
        real = next((m for m in run.moments if m.verdict is not None and m.verdict.hook == "rule"), None)
        found = [example for cell in differences(report) for example in cell.examples if example.certainty == "exact"]
        assert (real is None) == (not found)
        if real is not None:
            assert (found[0].n, found[0].point, found[0].tool) == (real.position, real.point, real.tool)


def test_all_points_of_a_run_that_are_recorded_take_part():
    assert {str(point) for point in RECORDED} == set(MAIN_POINTS) & {str(point) for point in LOOP_POINTS}
