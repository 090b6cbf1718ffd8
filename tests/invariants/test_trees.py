"""DESIGN 7.10: trees of agents that delegate, under hooks, faults, limits and cancellation."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_RUN_START,
    Agent,
    AgentContext,
    AgentResult,
    Budget,
    HookResult,
    Limits,
    RunFailedError,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    tool,
)
from hookline.events import RunFinished, RunStarted, SubagentEvent
from hookline.payloads import Usage
from hookline.points import SUBAGENT_ENDED, SUBAGENT_SPAWNED, SUBAGENT_SPAWNING
from hookline.teams import Team
from tests.properties import examples

FAULTY = (ON_RUN_START, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_RUN_END, SUBAGENT_SPAWNING)
WATCHED = (SUBAGENT_SPAWNED, SUBAGENT_ENDED)


@dataclass(frozen=True)
class Node:
    """An agent that calls these tools and children in each step, then answers or fails."""

    steps: tuple[tuple[Any, ...], ...]
    breaks: bool = False


@dataclass(frozen=True)
class Fault:
    """A hook that fails at the ``nth`` fire of a point in the whole tree."""

    point: str
    nth: int
    policy: str


@dataclass
class Seen:
    """The recorded events and results of a tree of runs."""

    usage: Usage = Usage()
    ran: list[int] = field(default_factory=list)
    judged: list[int] = field(default_factory=list)
    reported: Counter[tuple[str, str]] = field(default_factory=Counter)
    results: list[AgentResult] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    number: int = 0


def nodes(depth: int) -> st.SearchStrategy[Node]:
    item: Any = st.sampled_from(["work", "ghost"])
    if depth:
        item = st.one_of(item, nodes(depth - 1))
    steps = st.lists(st.lists(item, min_size=1, max_size=3).map(tuple), max_size=2).map(tuple)
    return st.builds(Node, steps, st.booleans() if depth < 3 else st.just(False))


FAULTS = st.lists(
    st.one_of(
        st.builds(Fault, st.sampled_from(FAULTY), st.integers(1, 6), st.sampled_from(["closed", "open"])),
        st.builds(Fault, st.sampled_from(WATCHED), st.integers(1, 3), st.sampled_from(["closed", "open"])),
    ),
    max_size=2,
)


@tool
async def work(n: int, ctx: AgentContext) -> str:
    """Work."""
    ctx.deps.ran.append(n)
    return "worked"


class Counting(ScriptedModel):
    """A model that counts its usage in the whole tree."""

    def __init__(self, seen: Seen, turns: Any) -> None:
        super().__init__(turns)
        self.seen = seen

    def _next(self, request: Any) -> Any:
        response = super()._next(request)
        self.seen.usage = self.seen.usage + response.usage
        return response


def build(node: Node, seen: Seen, hooks: Any = (), name: str = "root") -> Agent:
    """Create the agent of a node with a team of its children."""
    children: list[Agent] = []

    def one(item: Any) -> Any:
        seen.number += 1
        if item == "work":
            return call("work", n=seen.number)
        if item == "ghost":
            return call("delegate", to="ghost", task="x")
        child = build(item, seen, name=f"{name}.{len(children)}")
        children.append(child)
        return call("delegate", to=child.name, task=f"task {seen.number}")

    turns: list[Any] = [[one(item) for item in step] for step in node.steps]
    turns.append(ValueError("broken") if node.breaks else f"{name} is done")
    team = [Team(children, max_depth=4, max_handoffs=0)] if children else []
    return Agent(name, llm=Counting(seen, turns), tools=[work, *team], hooks=hooks)


def watchers(seen: Seen, faults: list[Fault], blocked: int, cancel: Any) -> list[Any]:
    """Create the hooks of the root, which all others inherit."""
    fired: Counter[str] = Counter()

    @guard(BEFORE_TOOL, priority=1000)
    def judge(ctx: Any, payload: Any) -> Any:
        if payload.name == "work":
            seen.judged.append(payload.arguments["n"])
        return HookResult.block("not this") if payload.arguments.get("n") == blocked else None

    @observer(*WATCHED)
    def tell(point: str, ctx: Any, payload: Any) -> None:
        seen.reported[str(point), payload.child.run_id] += 1

    @observer(ON_RUN_END)
    def end(ctx: Any, result: Any) -> None:
        seen.results.append(result)

    @hook(BEFORE_LLM)
    def clock(ctx: Any, payload: Any) -> None:
        fired["clock"] += 1
        cancel(fired["clock"])

    def faulty(fault: Fault) -> Any:
        def fail(ctx: Any, payload: Any) -> None:
            fired[str(id(fault))] += 1
            if fired[str(id(fault))] == fault.nth:
                raise ValueError("fault")

        decorate = observer if fault.point in WATCHED else hook
        return decorate(fault.point, on_failure=fault.policy)(fail)

    return [judge, tell, end, clock, *map(faulty, faults)]


async def play(node: Node, faults: list[Fault], blocked: int, cancel_at: int, tokens: int | None) -> Seen:
    seen, runs = Seen(), []

    def cancel(count: int) -> None:
        if count == cancel_at:
            runs[0].cancel("enough")

    agent = build(node, seen, watchers(seen, faults, blocked, cancel))
    ctx = AgentContext(budget=Budget(Limits(tokens=tokens)), deps=seen)
    runs.append(agent.start("go", ctx=ctx, sinks=[seen.events.append]))
    try:
        root = await runs[0].result()
    except RunFailedError as failed:
        root = failed.result
    seen.root = root  # type: ignore[attr-defined]
    return seen


@settings(max_examples=examples(80), deadline=None)
@given(nodes(3), FAULTS, st.integers(0, 8), st.integers(0, 12), st.sampled_from([None, None, 3, 15]))
async def test_a_tree_of_runs_keeps_every_promise(node, faults, blocked, cancel_at, tokens):
    seen = await play(node, faults, blocked, cancel_at, tokens)
    flat = [event.event if isinstance(event, SubagentEvent) else event for event in seen.events]

    # There is one complete stream for all runs.
    assert [event.seq for event in seen.events] == list(range(1, len(seen.events) + 1))
    assert isinstance(seen.events[-1], RunFinished)
    started = Counter(event.ids.run_id for event in flat if isinstance(event, RunStarted))
    ended = Counter(event.result.ids.run_id for event in flat if isinstance(event, RunFinished))
    assert started == ended
    assert set(started.values()) == {1}
    parents = {event.ids.run_id: event.ids.parent_run_id for event in flat if isinstance(event, RunStarted)}
    assert [parent for parent in parents.values() if parent not in parents] == [""]

    # Every run except the root was spawned, and ended once.
    spawned = {run for point, run in seen.reported if point == SUBAGENT_SPAWNED}
    assert spawned == {run for point, run in seen.reported if point == SUBAGENT_ENDED}
    assert set(seen.reported.values()) <= {1}
    assert set(started) - {seen.root.ids.run_id} <= spawned

    # Every call has one result, in order.
    for result in seen.results:
        calls = [made.id for message in result.messages for made in message.tool_calls]
        assert calls == [message.call_id for message in result.messages if message.role == "tool"]

    # The guard of the root judged every call that ran, and no blocked call ran.
    assert set(seen.ran) <= set(seen.judged)
    assert blocked not in seen.ran

    # The budget of the root counts the whole tree.
    assert seen.root.usage == seen.usage
