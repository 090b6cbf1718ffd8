"""Strategies for random agents, hooks, tools, scripts and cancellations."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

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
    AgentResult,
    HookResult,
    Limits,
    Message,
    RunFailedError,
    ScriptedModel,
    Session,
    hook,
    tool,
)
from hookline.models import ModelResponse
from hookline.payloads import ToolCall
from hookline.points import APPROVAL_DECIDED, TOOL_END_WITH_PATH, Point
from hookline.testing import EventLog

LIMIT = 0.02
"""The timeout of a hook that may hang."""

LOOP_POINTS = (
    SESSION_START,
    ON_RUN_START,
    BEFORE_PROMPT_BUILD,
    BEFORE_STEP,
    BEFORE_LLM,
    ON_TOKEN,
    AFTER_LLM,
    BEFORE_TOOL,
    ON_PROGRESS,
    AFTER_TOOL,
    TOOL_END_WITH_PATH,
    AFTER_STEP,
    ON_STOP,
    ON_ERROR,
    ON_RUN_END,
    APPROVAL_REQUESTED,
    APPROVAL_DECIDED,
)
"""The points that a run fires by itself."""

FAULTS = ("raise", "hang", "nonsense", "cancelled")
STATUSES = {"completed", "stopped", "ended", "cancelled", "failed"}


# What hooks say.


@dataclass(frozen=True)
class HookSpec:
    """A hook that returns ``say`` at its ``when``-th call, and nothing at the others."""

    point: Point
    phase: str
    say: str
    is_async: bool = False
    priority: int = 0
    on_failure: str | None = None
    when: int = 0

    def build(self, name: str) -> Any:
        calls = -1

        def speak(ctx: Any, payload: Any) -> Any:
            nonlocal calls
            calls += 1
            return say(self.say, self.point, ctx, payload) if calls == self.when else None

        async def speak_async(ctx: Any, payload: Any) -> Any:
            if self.say == "hang" and calls + 1 == self.when:
                await asyncio.sleep(3600)
            if self.say == "think" and calls + 1 == self.when:
                await ctx.llm.complete("hm")
            await asyncio.sleep(0)
            return speak(ctx, payload)

        return hook(
            self.point,
            name=name,
            phase=self.phase,
            priority=self.priority,
            on_failure=self.on_failure,
            timeout=LIMIT if self.say == "hang" else None,
        )(speak_async if self.is_async else speak)


def say(what: str, point: Point, ctx: Any, payload: Any) -> Any:
    """Return the result for a verb, or perform a fault."""
    match what:
        case "nothing" | "think":
            return None
        case "raise":
            raise RuntimeError("a fault")
        case "cancelled":
            raise asyncio.CancelledError
        case "hang":
            return time.sleep(4 * LIMIT)  # only in a thread: the hook is sync and has a timeout
        case "nonsense":
            return object()
        case "replace":
            return payload.replace(CHANGES[point](payload))
        case "state":
            return HookResult.cont(state=ctx.state.with_messages(Message("user", "a note")))
        case "merge":
            return {"append_system": "more"}
        case "edit":
            return HookResult.edit({"n": 7})
        case "approve" | "deny":
            return getattr(HookResult, what)()
    return getattr(HookResult, what)("said")


CHANGES = {
    ON_RUN_START: lambda p: {"task": p.task + "!"},
    BEFORE_LLM: lambda p: {"messages": [*p.messages, Message("user", "a hint")]},
    ON_TOKEN: lambda p: {"delta": p.delta.upper()},
    AFTER_LLM: lambda p: {"content": "changed", "tool_calls": [*p.tool_calls, ToolCall("c1", "fine", {})]},
    BEFORE_TOOL: lambda p: {"name": "fine", "arguments": {"n": 3}},
    AFTER_TOOL: lambda p: {"result": "changed", "error": None},
    ON_RUN_END: lambda p: {"reply": "changed"},
}


@st.composite
def hook_specs(draw: st.DrawFn, points: tuple[Point, ...] = LOOP_POINTS) -> HookSpec:
    """A hook at a random point, with a verb that its phase and point allow, or a fault."""
    point = draw(st.sampled_from(points))
    phases = {"pipeline": ["rewrite", "guard", "observe"], "observe": ["observe"]}
    phase = draw(st.sampled_from(phases.get(point.model, ["rewrite", "observe"])))
    is_async = draw(st.booleans())
    verbs = ["nothing"]
    if phase != "observe":
        verbs += {"merge": ["merge"], "claim": ["approve", "deny", "edit"], "pipeline": ["state"]}[point.model]
        verbs += sorted(point.verbs - {"replace"} if phase == "guard" else point.verbs)
    if is_async:
        verbs.append("think")
    policies = [None, "closed", "open"] + ["block"] * (point == BEFORE_TOOL and phase != "observe")
    return HookSpec(
        point,
        phase,
        draw(st.sampled_from(verbs * 2 + list(FAULTS))),
        is_async,
        priority=draw(st.integers(-2, 2)),
        on_failure=draw(st.sampled_from(policies)),
        when=draw(st.integers(0, 2)),
    )


# Tools, and what models do with them.


def fine(n: int = 0) -> int:
    return n


async def slow(n: int = 0) -> int:
    await asyncio.sleep(0.005)
    return n


async def endless() -> None:
    await asyncio.sleep(3600)


async def stubborn() -> str:
    try:
        await asyncio.sleep(0.01)
    except asyncio.CancelledError:
        await asyncio.sleep(0.002)
    return "too late"


async def talkative(ctx: Any) -> str:
    ctx.progress(0.5, "half way")
    await asyncio.sleep(0)
    ctx.progress(1.0, "done")
    return "said"


def broken() -> None:
    raise ValueError("broken")


async def gone() -> None:
    raise asyncio.CancelledError


def odd(path: str = "a/b") -> list[Any]:
    return [2**70, float("nan"), object(), {1: {2}}]


TOOLS = tuple(map(tool, (fine, slow, stubborn, talkative, broken, gone, odd)))
"""Made once: reading the signatures again for each example would take half of its time."""

_good = st.fixed_dictionaries({}, optional={"n": st.integers(-3, 3)})
_bad = st.sampled_from(["not json", "[1]", '{"n": "x"}', {"nn": 1}, {"n": None}, None])

calls = st.builds(
    ToolCall,
    id=st.sampled_from(["", "c1", "c1", "c2", "c3"]),
    name=st.sampled_from([made.name for made in TOOLS] + ["fine"] * 4 + ["slow"] * 2 + ["no_such_tool", ""]),
    arguments=st.one_of(_good, _good, _bad),
)

turns = st.one_of(
    st.lists(calls, min_size=1, max_size=4).map(lambda batch: ModelResponse(tool_calls=tuple(batch))),
    st.lists(calls, min_size=1, max_size=2).map(lambda batch: ModelResponse("with text", tool_calls=tuple(batch))),
    st.sampled_from(["some text", "some text", "", RuntimeError("the model is down"), lambda request: 3]),
)


# Whole scenarios.


@dataclass(frozen=True)
class Scenario:
    """An agent with a script. ``cancel`` is a number of events or seconds after which its run is cancelled."""

    hooks: tuple[HookSpec, ...]
    turns: tuple[Any, ...]
    listening: bool = True
    cancel: int | float | None = None
    runs: int = 1
    max_steps: int = 4


@st.composite
def scenarios(draw: st.DrawFn, runs: int = 1) -> Scenario:
    """Random hooks and turns, possibly with a cancellation at a random moment."""
    listening = draw(st.booleans())
    moment = st.integers(1, 60) if listening else st.sampled_from([0.0, 0.001, 0.003, 0.006])
    return Scenario(
        tuple(draw(st.lists(hook_specs(), max_size=6))),
        tuple(draw(st.lists(turns, min_size=1, max_size=5))),
        listening,
        draw(st.none() | moment),
        runs,
    )


@dataclass
class Played:
    """The recorded payloads, events and result of one run."""

    session: Session
    log: EventLog = field(default_factory=EventLog)
    fired: list[tuple[str, Any]] = field(default_factory=list)
    result: AgentResult | None = None
    raised: BaseException | None = None

    def at(self, point: Point) -> list[Any]:
        """Return the payloads at a point."""
        return [payload for name, payload in self.fired if name == point]


def recorder(played: Played, *points: Point) -> list[Any]:
    """Create hooks that record every fire of these points first."""

    def record(point: Point, ctx: Any, payload: Any) -> None:
        played.fired.append((point, payload))

    return [hook(point, priority=1000, phase=None)(record) for point in points]


async def play(scenario: Scenario, *watch: Point) -> list[Played]:
    """Run the scenario to its end, with a timeout."""
    session, model = Session("s"), ScriptedModel(scenario.turns, loop=True)
    specs = [spec.build(f"{spec.say}_{i}") for i, spec in enumerate(scenario.hooks)]
    all_played = []
    for _ in range(scenario.runs):
        played = Played(session)
        hooks = [*recorder(played, *watch, ON_RUN_END), *specs]
        agent = Agent("a", llm=model, tools=TOOLS, hooks=hooks, limits=Limits(steps=scenario.max_steps))
        async with asyncio.timeout(10):
            await (_listened if scenario.listening else _awaited)(agent, played, scenario.cancel)
        all_played.append(played)
    return all_played


async def _listened(agent: Agent, played: Played, cancel: int | float | None) -> None:
    def sink(event: Any) -> None:
        played.log(event)
        if len(played.log) == cancel:
            run.cancel("now")

    run = agent.start("a task", session=played.session, sinks=[sink])
    try:
        played.result = await run.result()
    except RunFailedError as failed:
        played.result, played.raised = failed.result, failed


async def _awaited(agent: Agent, played: Played, cancel: int | float | None) -> None:
    task = asyncio.ensure_future(agent.arun("a task", session=played.session))
    if cancel is not None:
        asyncio.get_running_loop().call_later(cancel, task.cancel)
    await asyncio.wait([task])
    if task.cancelled():
        played.raised = asyncio.CancelledError()
    elif isinstance(task.exception(), RunFailedError):
        played.raised = task.exception()
        played.result = played.raised.result
    else:
        played.result = task.result()


def check_transcript(messages: Any) -> None:
    """Check that every call has one result right after its message, in call order, and that ids are unique."""
    left, ids = list(messages), []
    while left:
        message = left.pop(0)
        assert message.role != "tool", f"a result without a call: {message}"
        wanted = [call.id for call in message.tool_calls]
        results = [left.pop(0) for _ in wanted if left]
        assert [(m.role, m.call_id) for m in results] == [("tool", id) for id in wanted], message
        ids += wanted
    assert all(ids)
    assert len(ids) == len(set(ids)), ids
