"""DESIGN 7.6 and 5.1: if a fail-closed hook fails, the guarded action does not happen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    ON_TOKEN,
    SESSION_START,
    Agent,
    AgentContext,
    AgentResult,
    HookError,
    HookRegistry,
    HookResult,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
)
from hookline.events import Failed, PointFired
from hookline.hooks import HookAction
from hookline.points import APPROVAL_DECIDED, POINTS
from hookline.testing import EventLog, sample
from tests.cases import each_case
from tests.properties import examples

from .strategies import LIMIT, HookSpec, check_transcript, hook_specs


def fails(*_: Any) -> None:
    raise RuntimeError("a fault")


def cancels(*_: Any) -> None:
    raise asyncio.CancelledError


def nonsense(*_: Any) -> Any:
    return 42


def wrong_verb(*_: Any) -> Any:
    return HookResult(HookAction.INVALID)


END_OF_TEST = threading.Event()


@pytest.fixture(autouse=True)
def release_blocked_threads() -> Iterator[None]:
    END_OF_TEST.clear()
    yield
    END_OF_TEST.set()


def blocks(*_: Any) -> None:
    END_OF_TEST.wait()


def later(fault: Callable[..., Any]) -> Callable[..., Any]:
    async def fail(ctx: Any, payload: Any) -> Any:
        await asyncio.sleep(0)
        return fault()

    return fail


async def hangs(ctx: Any, payload: Any) -> None:
    await asyncio.sleep(3600)


async def hangs_on(ctx: Any, payload: Any) -> None:
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        await asyncio.sleep(LIMIT)


FAULTS = {
    "raises": fails,
    "raises, async": later(fails),
    "raises CancelledError": cancels,
    "raises CancelledError, async": later(cancels),
    "returns nonsense": nonsense,
    "returns nonsense, async": later(nonsense),
    "returns a wrong verb": wrong_verb,
    "hangs": hangs,
    "hangs and will not be cancelled": hangs_on,
    "blocks in its thread": blocks,
}
each_fault = each_case("fault", FAULTS.values())


def faulty(point: Any, fault: Callable[..., Any], **options: Any) -> Any:
    """Create a hook named ``faulty`` that fails in this way."""
    takes_time = fault in (hangs, hangs_on, blocks)
    made = hook(point, name="faulty", timeout=LIMIT if takes_time else None, **options)

    def sync(ctx: Any, payload: Any) -> Any:
        return fault(ctx, payload)

    return made(fault if asyncio.iscoroutinefunction(fault) else sync)


class Harness:
    """An agent with one tool that records everything."""

    def __init__(self, *hooks: Any, turns: Any = None) -> None:
        self.worked: list[int] = []
        self.session, self.log = Session("s"), EventLog()
        self.model = ScriptedModel(turns or [[call("work", n=1), call("work", n=2)], "done"])

        def work(n: int = 0) -> str:
            self.worked.append(n)
            return "the output"

        self.agent = Agent("a", llm=self.model, tools=[work], hooks=hooks)
        self.error: RunFailedError | None = None

    async def run(self) -> AgentResult:
        try:
            return await self.agent.arun("a task", session=self.session, sinks=[self.log])
        except RunFailedError as failed:
            self.error = failed
            return failed.result
        finally:
            check_transcript(self.session.messages)

    @property
    def contents(self) -> list[str]:
        return [message.content for message in self.session.messages]


def nothing_was_asked(harness: Harness) -> bool:
    return not harness.model.requests and not harness.worked


def reply_is_not_recorded(harness: Harness) -> bool:
    return harness.contents == ["a task"] and not harness.worked


def nothing_ran(harness: Harness) -> bool:
    return not harness.worked


def output_is_withheld(harness: Harness) -> bool:
    return harness.worked == [1, 2] and "the output" not in harness.contents[:3] and len(harness.model.requests) == 1


def no_step_follows(harness: Harness) -> bool:
    return len(harness.model.requests) == 1


DECIDING = {
    ON_RUN_START: lambda harness: nothing_was_asked(harness) and not harness.contents,
    BEFORE_PROMPT_BUILD: nothing_was_asked,
    BEFORE_STEP: nothing_was_asked,
    BEFORE_LLM: nothing_was_asked,
    ON_TOKEN: reply_is_not_recorded,
    AFTER_LLM: reply_is_not_recorded,
    BEFORE_TOOL: nothing_ran,
    AFTER_TOOL: output_is_withheld,
    AFTER_STEP: no_step_follows,
    ON_STOP: lambda harness: len(harness.model.requests) == 2,
    ON_RUN_END: lambda harness: harness.contents[-1] == "done",
}
"""Each point of a run whose hooks decide, and that what they guard did not happen."""

PHASES = [
    (point, phase)
    for point in DECIDING
    for phase in ("rewrite", "guard", "observe")
    if phase != "guard" or point.model == "pipeline"
]


@each_fault
@pytest.mark.parametrize(("point", "phase"), PHASES)
async def test_a_closed_failure_keeps_the_guarded_action_from_happening(point: Any, phase: str, fault: Any) -> None:
    verdicts = []
    watch = observer(point)(lambda ctx, payload, verdict: verdicts.append(verdict))
    harness = Harness(faulty(point, fault, phase=phase, on_failure="closed"), watch)
    result = await harness.run()
    assert DECIDING[point](harness)
    assert result.status == "failed"
    assert "'faulty'" in str(harness.error)
    assert [(error.where, error.source) for error in result.errors] == [("hook", "faulty")] * len(result.errors)
    assert result.errors
    assert verdicts
    if phase != "observe":
        assert verdicts[0].action == "failed"
        assert verdicts[0].hook == "faulty"


def test_the_table_above_names_every_point_of_a_run_that_decides() -> None:
    own = {p for p in POINTS.values() if p.fired_by == "the loop" and p.model != "observe"}
    assert own == DECIDING.keys() | {ON_ERROR, APPROVAL_REQUESTED}


@each_fault
async def test_a_failing_approver_denies(fault: Any) -> None:
    ask = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.ask("?") if request.arguments["n"] == 1 else None)
    approve = hook(APPROVAL_REQUESTED, priority=-1)(lambda ctx, request: HookResult.approve())
    harness = Harness(ask, faulty(APPROVAL_REQUESTED, fault), approve)
    result = await harness.run()
    assert harness.worked == [2]
    assert result.status == "completed"
    assert "faulty" in {error.source for error in result.errors}


@each_fault
async def test_a_failure_inside_on_error_fails_the_run_and_does_not_fire_it_again(fault: Any) -> None:
    fired = []
    count = hook(ON_ERROR, priority=1)(lambda ctx, failure: fired.append(failure.where))
    answer = hook(ON_ERROR, priority=-1)(lambda ctx, failure: HookResult.answer("mended"))
    harness = Harness(count, faulty(ON_ERROR, fault), answer, turns=[RuntimeError("down"), "done"])
    result = await harness.run()
    assert fired == ["model"]
    assert result.status == "failed"
    assert "faulty" in [error.source for error in result.errors]
    assert "mended" not in harness.contents


@each_fault
@pytest.mark.parametrize("point", [SESSION_START, ON_PROGRESS, APPROVAL_DECIDED])
async def test_a_closed_observer_ends_the_run_where_nothing_can_be_decided(point: Any, fault: Any) -> None:
    ask = guard(BEFORE_TOOL)(lambda ctx, request: HookResult.ask("?"))
    approve = hook(APPROVAL_REQUESTED)(lambda ctx, request: HookResult.approve())
    harness = Harness(ask, approve, faulty(point, fault, on_failure="closed"))
    result = await harness.run()
    assert result.status == "failed"
    assert "'faulty'" in str(harness.error)
    assert len(harness.model.requests) == (point != SESSION_START)
    if point != ON_PROGRESS:
        assert not harness.worked


@each_fault
@pytest.mark.parametrize("phase", ["rewrite", "guard"])
async def test_a_blocking_failure_blocks_that_call_and_no_other(phase: str, fault: Any) -> None:
    seen = []
    watch = observer(BEFORE_TOOL)(lambda ctx, request, verdict: seen.append(verdict.action))
    results = []
    after = observer(AFTER_TOOL)(lambda ctx, result: results.append(result.outcome))
    harness = Harness(watch, after, turns=[[call("work", n=1), call("other"), call("work", n=2)], "done"])
    harness.agent.tools._tools["other"] = harness.agent.tools.get("work")
    harness.agent.register_hook(faulty(BEFORE_TOOL, fault, phase=phase, on_failure="block", tools="other"))
    result = await harness.run()
    assert result.status == "completed"
    assert sorted(harness.worked) == [1, 2]
    assert seen == ["cont", "block", "cont"]
    assert results == ["ok", "blocked", "ok"]
    assert "faulty" in {error.source for error in result.errors}


@each_fault
@pytest.mark.parametrize(("point", "phase"), PHASES)
async def test_an_open_failure_is_reported_and_the_run_continues(point: Any, phase: str, fault: Any) -> None:
    errors = []
    reported = observer(ON_ERROR)(lambda ctx, failure: errors.extend(e.source for e in failure.errors))
    harness = Harness(faulty(point, fault, phase=phase, on_failure="open"), reported)
    result = await harness.run()
    assert result.status == "completed"
    assert sorted(harness.worked) == [1, 2]
    assert set(errors) == {"faulty"}
    assert len(errors) == len(harness.log.of(Failed))


@each_fault
@pytest.mark.parametrize("point", [p for p in POINTS.values() if p.fired_by != "the loop" and p.model != "observe"])
async def test_outside_a_run_a_closed_failure_reaches_the_caller(point: Any, fault: Any) -> None:
    seen = []
    watch = observer(point)(lambda ctx, payload: seen.append(payload))
    registry = HookRegistry([faulty(point, fault), watch])
    with pytest.raises(HookError, match=f"'faulty' failed at {point}"):
        await registry.fire(point, sample(point), ctx=AgentContext())
    assert len(seen) == 1


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(hook_specs((BEFORE_TOOL, APPROVAL_REQUESTED)), max_size=5),
    st.sampled_from(list(FAULTS.values())),
    st.sampled_from([-5, 0, 5]),
    st.sampled_from(["closed", "block"]),
)
def test_no_other_hook_gets_a_call_past_a_guard_that_failed(
    specs: list[HookSpec], fault: Any, priority: int, policy: str
) -> None:
    hooks = [spec.build(f"{spec.say}_{i}") for i, spec in enumerate(specs)]
    harness = Harness(*hooks, faulty(BEFORE_TOOL, fault, phase="guard", priority=priority, on_failure=policy))
    asyncio.run(harness.run())
    assert not harness.worked


VERBS = {
    "block": (BEFORE_TOOL, lambda: HookResult.block("no")),
    "end": (BEFORE_TOOL, lambda: HookResult.end("over")),
    "answer": (BEFORE_TOOL, lambda: HookResult.answer("served")),
    "ask": (BEFORE_TOOL, lambda: HookResult.ask("?")),
    "stop": (BEFORE_TOOL, lambda: HookResult.stop("enough")),
    "end after": (AFTER_TOOL, lambda: HookResult.end("over")),
    "retry": (AFTER_LLM, lambda: HookResult.retry("again")),
    "failed": (BEFORE_STEP, fails),
}


@pytest.mark.parametrize("phase", ["rewrite", "guard"])
@pytest.mark.parametrize("verb", VERBS)
async def test_observers_are_called_after_every_decision(verb: str, phase: str) -> None:
    point, speak = VERBS[verb]
    seen: list[str] = []

    @observer(point)
    def first(ctx: Any, payload: Any, verdict: Any) -> None:
        seen.append(f"first {verdict.action}")
        raise RuntimeError("observers do not stop observers")

    @observer(point)
    async def second(ctx: Any, payload: Any, verdict: Any) -> None:
        await asyncio.sleep(0)
        seen.append(f"second {verdict.action}")

    decide = hook(point, phase=phase)(lambda ctx, payload: speak())
    harness = Harness(decide, first, second)
    await harness.run()
    word = verb.split()[0]
    assert seen[:2] == [f"first {word}", f"second {word}"]
    assert len(seen) == 2 * len([event for event in harness.log.of(PointFired) if event.point == point])


@pytest.mark.parametrize("number", [1, 2, 3])
async def test_observers_are_called_though_the_run_is_being_cancelled(number: int) -> None:
    seen = []

    async def look(ctx: Any, step: Any) -> None:
        seen.append(step.index)

    cancel = guard(BEFORE_STEP)(lambda ctx, step: ctx.interrupt.cancel())
    result = await Harness(cancel, *(observer(BEFORE_STEP)(look) for _ in range(number))).run()
    assert result.status == "cancelled"
    assert seen == [0] * number


async def test_a_refused_call_inside_on_error_does_not_hide_the_failure() -> None:
    stop = hook(ON_RUN_START)(lambda ctx, start: HookResult.stop("enough"))

    @hook(ON_ERROR)
    async def explain(ctx: Any, failure: Any) -> None:
        await ctx.llm.complete("what went wrong?")

    result = await Harness(stop, faulty(BEFORE_PROMPT_BUILD, fails), explain).run()
    assert result.status == "failed"


@pytest.mark.parametrize("layer", ["agent", "conversation", "run"])
async def test_a_guard_of_any_layer_guards_alone(layer: str) -> None:
    harness, bad = Harness(), faulty(BEFORE_TOOL, fails, phase="guard")
    options: dict[str, Any] = {}
    if layer == "agent":
        harness.agent.register_hook(bad)
    elif layer == "conversation":
        options["ctx"] = AgentContext(hooks=[bad])
    else:
        options["hooks"] = [bad]
    with pytest.raises(RunFailedError, match="faulty"):
        await harness.agent.arun("a task", **options)
    assert not harness.worked
