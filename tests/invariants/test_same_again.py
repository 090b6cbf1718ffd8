"""A run with the same hooks goes the same way again, from its tape and from its journal (DESIGN 6.11, 6.17, 7.11).

Each promise is checked for both. Three subagents run concurrently, and everything takes other times the second time:
pauses are numbers of iterations of the event loop, from a seed, so no test depends on a clock.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hookline import Agent, HookResult, call, hook, observer, tool
from hookline._run import waiters
from hookline._run.journal import Append
from hookline.hooks import load_rules
from hookline.models import ModelResponse
from hookline.payloads import ToolCall
from hookline.stores import CallStore, RunStore
from hookline.tape import TapeHook, areplay
from hookline.teams import Team
from tests.durable_scene import World
from tests.properties import examples
from tests.run.test_durable import CountingModel, Crashes

POINTS = ("before_tool", "after_tool", "before_llm", "after_llm")


@pytest.fixture(autouse=True)
def short_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "STALL_SECONDS", 20.0)


class Process:
    """The differences between two processes that execute the same run.

    Args:
        seed: how long everything takes.
        is_first: whether this process records the run. Otherwise it repeats it.
    """

    def __init__(self, seed: int, *, is_first: bool) -> None:
        self.is_first = is_first
        self._random = Random(seed)

    async def pause(self) -> None:
        """Let other tasks run."""
        for _ in range(self._random.choice((0, 1, 2, 5, 17))):
            await asyncio.sleep(0)


class Counter:
    """A hook that counts all calls of the tree and says the number."""

    points = frozenset(POINTS)
    name = "counter"

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult:
        return counted(ctx, self)


def counted(ctx: Any, owner: object) -> HookResult:
    """Count in the state that all runs of the tree share."""
    state = ctx.tree_state
    state[id(owner)] = number = state.get(id(owner), 0) + 1
    return HookResult.cont(reason=f"number {number}")


def sync_counter(process: Process) -> list[Any]:
    return [Counter()]


def counter_after_once(process: Process) -> list[Any]:
    class Reader(Counter):
        async def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult:  # type: ignore[override]
            await ctx.once("pause", process.pause)
            return counted(ctx, self)

    return [Reader()]


def counter_after_a_pause_of_another_hook(process: Process) -> list[Any]:
    @hook(*POINTS, priority=10)
    async def slow(ctx: Any, payload: Any) -> None:
        await process.pause()

    return [slow, Counter()]


def counter_after_observers(process: Process) -> list[Any]:
    @observer(*POINTS)
    async def watch(ctx: Any, payload: Any) -> None:
        await process.pause()

    return [watch, Counter()]


def token_count(process: Process) -> list[Any]:
    @hook("before_llm")
    def sized(ctx: Any, request: Any) -> HookResult:
        return HookResult.cont(reason=f"{ctx.llm.count_tokens('text')} tokens")

    return [sized]


def hook_that_timed_out(process: Process) -> list[Any]:
    """The hook never ends in the first process, and ends at once in the second one."""

    @hook(*POINTS, timeout=0.001, on_failure="open", priority=10)
    async def judge(ctx: Any, payload: Any) -> None:
        if process.is_first:
            await asyncio.Event().wait()

    return [judge, Counter()]


def hook_that_timed_out_while_it_read(process: Process) -> list[Any]:
    """The same, with a reading that was interrupted: the second process does not make it up."""

    async def read() -> str:
        if process.is_first:
            await asyncio.Event().wait()
        return "late"

    @hook("before_tool", timeout=0.001, on_failure="open", priority=10)
    async def judge(ctx: Any, payload: Any) -> HookResult:
        return HookResult.cont(reason=await ctx.once("value", read))

    return [judge, Counter()]


def hook_that_was_in_time(process: Process) -> list[Any]:
    """The hook has much time in the first process, and too little in the second one."""

    @hook(*POINTS, timeout=60 if process.is_first else 1e-6, on_failure="open", priority=10)
    async def judge(ctx: Any, payload: Any) -> None:
        await asyncio.sleep(0)
        await process.pause()

    return [judge, Counter()]


def hook_that_runs_an_agent(process: Process) -> list[Any]:
    """The hook before it does not wait, so that all that follows is that of the nested run."""

    @hook("before_tool", priority=10)
    async def first(ctx: Any, request: Any) -> None:
        pass

    @hook("before_tool")
    async def judge(ctx: Any, request: Any) -> HookResult:
        reviewer = Agent("reviewer", llm=PricedModel(["fine"], process))
        return HookResult.cont(reason=(await reviewer.arun(request.name)).reply)

    return [first, judge, Counter()]


def hook_that_also_observes(process: Process) -> list[Any]:
    """Recovery calls it again where it observes, because its state depends on that."""

    class Both:
        name, points = "both", frozenset({"before_tool", "after_tool"})
        phase = {"before_tool": "rewrite", "after_tool": "observe"}  # noqa: RUF012 - of the protocol

        async def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
            await ctx.once("pause", process.pause)
            ctx.hook_state[id(self)] = ctx.new_id()
            return HookResult.cont(reason="seen") if point == "before_tool" else None

    return [Both(), Counter()]


def observer_and_hook_that_run_agents(process: Process) -> list[Any]:
    """Recovery does not call the observer again. The runs that it started do not count among those of the hook."""

    async def reviewed(request: Any) -> str:
        return (await Agent("reviewer", llm=PricedModel(["fine"], process)).arun(request.name)).reply

    @observer("before_tool")
    async def watch(ctx: Any, request: Any) -> None:
        await reviewed(request)

    @hook("before_tool")
    async def judge(ctx: Any, request: Any) -> HookResult:
        return HookResult.cont(reason=await reviewed(request))

    return [watch, judge]


def runs_an_agent_that_is_cancelled(process: Process, by: str) -> list[Any]:
    """The nested run is cancelled alone, by code that is not called again."""

    @tool
    async def stop(ctx: Any) -> str:
        """Cancel this run."""
        await process.pause()
        if by != "observer":
            ctx.interrupt.cancel("enough")
        if by == "tool that waits":
            await asyncio.Event().wait()
        return "stopped"

    @observer("before_tool", tools="stop")
    async def watch(ctx: Any, request: Any) -> None:
        if by == "observer":
            ctx.interrupt.cancel("enough")

    @hook("before_tool", priority=10, tools=("work", "limited"))
    async def judge(ctx: Any, request: Any) -> HookResult:
        model = PricedModel([ModelResponse("", (ToolCall("s", "stop", {}),)), "fine"], process)
        reviewer = Agent("reviewer", llm=model, tools=[stop], hooks=[watch])
        return HookResult.cont(reason=(await reviewer.arun(request.name)).status)

    return [judge, Counter()]


def hook_whose_agent_is_cancelled_by_its_tool(process: Process) -> list[Any]:
    return runs_an_agent_that_is_cancelled(process, "tool")


def hook_whose_agent_is_cancelled_by_a_tool_that_waits(process: Process) -> list[Any]:
    return runs_an_agent_that_is_cancelled(process, "tool that waits")


def hook_whose_agent_is_cancelled_by_an_observer(process: Process) -> list[Any]:
    return runs_an_agent_that_is_cancelled(process, "observer")


RULES = """
[[rules]]
name = "of-the-tree"
tools = "work"
when = "count('work') >= 3 || history.exists(c, c.tool == 'limited' && c.outcome == 'error')"
then = "block"
message = "Enough in this run."

[[rules]]
name = "of-the-caller"
tools = "limited"
when = "count('limited', duration('1h')) >= 2 || 'two' in labels && count('limited') > 3"
then = "block"
message = "Enough in an hour."

[[rules]]
name = "two"
point = "after_tool"
tools = "*"
when = "result.text == 'did 2'"
then = "label"
label = "two"
"""


def rules_that_ask_what_came_before(process: Process) -> list[Any]:
    pytest.importorskip("cel_expr_python", reason="rules need: pip install 'hookline[rules]'")
    with TemporaryDirectory() as folder:
        (Path(folder) / "rules.toml").write_text(RULES)
        rules = load_rules(Path(folder) / "rules.toml", store=CallStore(":memory:"))
    return [*rules, Counter()]


HOOKS: tuple[Callable[[Process], list[Any]], ...] = (
    sync_counter,
    counter_after_once,
    counter_after_a_pause_of_another_hook,
    counter_after_observers,
    token_count,
    hook_that_timed_out,
    hook_that_timed_out_while_it_read,
    hook_that_was_in_time,
    hook_that_runs_an_agent,
    hook_that_also_observes,
    observer_and_hook_that_run_agents,
    hook_whose_agent_is_cancelled_by_its_tool,
    hook_whose_agent_is_cancelled_by_a_tool_that_waits,
    hook_whose_agent_is_cancelled_by_an_observer,
    rules_that_ask_what_came_before,
)
COMBINED = tuple(each for each in HOOKS if each is not observer_and_hook_that_run_agents)
"""Hooks that are tried together. Recovery cannot know what they count in the runs of an observer (DESIGN 6.17)."""
EACH_HOOK = pytest.mark.parametrize("hooks", HOOKS, ids=lambda each: each.__name__)


class PricedModel(CountingModel):
    """A model whose token counts are others in another process."""

    def __init__(self, replies: list[Any], process: Process) -> None:
        super().__init__(replies)
        self._process = process

    async def complete(self, request: Any) -> ModelResponse:
        await self._process.pause()
        return await super().complete(request)

    def count_tokens(self, content: Any) -> int:
        return 10 if self._process.is_first else 11


Batches = tuple[int, ...]
"""The number of concurrent calls in each step of a subagent."""


def team(process: Process, hooks: list[Any], helpers: tuple[Batches, ...] = ((1, 1), (1, 1), (1, 1))) -> Agent:
    """Return an agent that delegates to all its helpers at once."""

    @tool
    async def work(n: int) -> str:
        """Work for a while."""
        await process.pause()
        return f"did {n}"

    @tool(timeout=60)
    async def limited(n: int) -> str:
        """Work for a while, with a timeout."""
        await process.pause()
        return f"did {n}"

    def helper(name: str, batches: Batches) -> Agent:
        steps = [
            ModelResponse(
                "",
                tuple(
                    ToolCall(f"{name}{step}.{n}", "limited" if n % 2 else "work", {"n": n}) for n in range(1, size + 1)
                ),
            )
            for step, size in enumerate(batches)
        ]
        return Agent(name, llm=PricedModel([*steps, "done"], process), tools=[work, limited])

    members = [helper(f"helper{i}", batches) for i, batches in enumerate(helpers)]
    calls = tuple(ToolCall(each.name, "delegate", {"to": each.name, "task": "go"}) for each in members)
    model = PricedModel([ModelResponse("", calls), "done"], process)
    return Agent("boss", llm=model, tools=[Team(members)], hooks=hooks)


@pytest.mark.parametrize("seeds", [range(1), pytest.param(range(1, 3), marks=pytest.mark.slow)], ids=["one", "more"])
@EACH_HOOK
async def test_a_replay_is_the_same_at_any_speed(
    tmp_path: Path, hooks: Callable[[Process], list[Any]], seeds: range
) -> None:
    path = tmp_path / "run.tape"
    for seed in seeds:
        first = Process(seed, is_first=True)
        await team(first, hooks(first)).arun("go", hooks=[TapeHook(path)])
        for other in range(4):
            again = Process(100 * seed + other, is_first=False)
            replay = await areplay(path, team(again, hooks(again)))
            assert (replay.first_difference, replay.stop_reason) == ("", "")


@EACH_HOOK
async def test_a_tape_of_a_durable_run_is_that_of_any_run(
    tmp_path: Path, hooks: Callable[[Process], list[Any]]
) -> None:
    path, first, again = tmp_path / "run.tape", Process(1, is_first=True), Process(2, is_first=False)
    with closing(RunStore(tmp_path / "runs.db")) as store:
        await team(first, hooks(first)).arun("go", durable=store, run_id="r", hooks=[TapeHook(path)])
    replay = await areplay(path, team(again, hooks(again)))
    assert (replay.first_difference, replay.stop_reason) == ("", "")


@pytest.mark.timeout(600)  # it continues the run hundreds of times
@pytest.mark.parametrize("step", [67, pytest.param(1, marks=pytest.mark.slow)])
@EACH_HOOK
def test_a_run_continues_from_each_entry_of_its_journal_at_any_speed(
    tmp_path: Path, hooks: Callable[[Process], list[Any]], step: int
) -> None:
    (tmp_path / "world").mkdir()
    crashes = Crashes(World(tmp_path / "world"))
    first = Process(1, is_first=True)
    team(first, hooks(first)).run("go", durable=crashes.store, run_id="r")
    for number, (_, store) in enumerate(crashes.worlds(each_entry=True, step=step)):
        again = Process(number, is_first=False)
        result = team(again, hooks(again)).run("go", durable=store, run_id="r")
        assert (result.status, result.reply) == ("completed", "done")


_batches = st.lists(st.integers(1, 3), max_size=2).map(tuple)
_helpers = st.lists(_batches, min_size=1, max_size=3).map(tuple)
_hooks = st.lists(st.sampled_from(COMBINED), min_size=1, max_size=3, unique=True)


def check_same_again(
    helpers: tuple[Batches, ...], hooks: Sequence[Callable[[Process], list[Any]]], seed: int, ends: Sequence[float]
) -> None:
    """Check a tree of runs with these hooks: its replay, and its recovery after these parts of its journal."""

    def agent(process: Process) -> Agent:
        return team(process, [each for make in hooks for each in make(process)], helpers)

    with TemporaryDirectory() as folder:
        path, store = Path(folder) / "run.tape", RunStore(Path(folder) / "runs.db")
        entries, head = list[bytes](), list[Any]()
        append, claim = store.journal.append, store.journal.claim

        def recorded(write: Append) -> None:
            append(write)
            entries.extend(write.entries)

        store.journal.append = recorded  # type: ignore[method-assign]
        store.journal.claim = lambda *args: head.extend(args) or claim(*args)  # type: ignore[method-assign, func-returns-value]
        agent(Process(seed, is_first=True)).run("go", durable=store, run_id="r", hooks=[TapeHook(path)])
        store.close()
        replay = asyncio.run(areplay(path, agent(Process(seed + 1, is_first=False))))
        assert (replay.first_difference, replay.stop_reason) == ("", "")
        for number, end in enumerate(int(each * len(entries)) for each in ends):
            continued = continued_from(Path(folder) / f"{number}.db", head, entries[:end])
            result = agent(Process(seed + 2 + number, is_first=False)).run("go", durable=continued, run_id="r")
            assert result.status == "completed"
            continued.close()


@pytest.mark.parametrize(
    ("helpers", "hooks", "seed"),
    [
        (((2, 3),), (hook_that_was_in_time, hook_whose_agent_is_cancelled_by_its_tool, sync_counter), 3947),
        (((3,),), (hook_whose_agent_is_cancelled_by_its_tool, hook_that_timed_out), 269932),
        (((1, 2),), (hook_that_runs_an_agent, hook_whose_agent_is_cancelled_by_its_tool), 989338),
        (
            ((2,), ()),
            (
                counter_after_a_pause_of_another_hook,
                hook_whose_agent_is_cancelled_by_a_tool_that_waits,
                hook_that_was_in_time,
            ),
            903156,
        ),
    ],
)
def test_hooks_beside_a_nested_run_that_is_cancelled_go_the_same_way_again(
    helpers: tuple[Batches, ...], hooks: tuple[Callable[[Process], list[Any]], ...], seed: int
) -> None:
    check_same_again(helpers, hooks, seed, (0.2, 0.5, 0.9))


@pytest.mark.slow
@given(_helpers, _hooks, st.integers(0, 10**6), st.lists(st.floats(0, 1), min_size=3, max_size=3))
@settings(
    max_examples=examples(40),
    deadline=None,
    derandomize=True,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_any_tree_with_any_of_these_hooks_goes_the_same_way_again(
    helpers: tuple[Batches, ...], hooks: list[Callable[[Process], list[Any]]], seed: int, ends: list[float]
) -> None:
    check_same_again(helpers, hooks, seed, ends)


def continued_from(path: Path, head: list[Any], entries: list[bytes]) -> RunStore:
    """Return a store with a run whose process ended after these entries."""
    store = RunStore(path)
    epoch = store.journal.claim(*head[:3]).epoch
    if entries:
        store.journal.append(Append("r", epoch, 1, entries))
    store.journal.append(Append("r", epoch, len(entries) + 1, status="interrupted"))
    return store


def reader(process: Process, helpers: tuple[Batches, ...] = ((1,),)) -> Agent:
    """Return an agent with one subagent, and a hook that reads something and has time enough."""

    @hook(*POINTS, timeout=60)
    async def judge(ctx: Any, payload: Any) -> HookResult:
        await process.pause()
        return HookResult.cont(reason=await ctx.once("value", lambda: "first" if process.is_first else "second"))

    return team(process, [judge, Counter()], helpers)


@pytest.mark.parametrize("runs_agent", [False, True])
async def test_a_message_that_comes_while_a_hook_of_on_stop_works_comes_then_again(
    tmp_path: Path, runs_agent: bool
) -> None:
    """The hook is called again, although the message alone would have kept the run going."""
    (tmp_path / "world").mkdir()
    crashes, path, runs = Crashes(World(tmp_path / "world")), tmp_path / "run.tape", list[Any]()

    def agent(process: Process) -> Agent:
        @hook("on_stop")
        async def verify(ctx: Any, payload: Any) -> HookResult | None:
            if process.is_first and len(runs) == 1:
                runs.pop().steer("more")
            if runs_agent:
                await Agent("reviewer", llm=PricedModel(["fine"], process)).arun("review")
            await process.pause()
            answers = sum(message.role == "assistant" for message in ctx.state.messages)
            return HookResult.keep_going("go on") if answers < 3 else None

        verify.inherit = False  # type: ignore[attr-defined]
        return Agent("a", llm=PricedModel(["one", "two", "three"], process), hooks=[verify])

    run = agent(Process(1, is_first=True)).start("go", durable=crashes.store, run_id="r", hooks=[TapeHook(path)])
    runs.append(run)
    result = await run.result()
    assert [m.content for m in result.messages if m.role == "user"] == ["go", "more", "go on"]
    replay = await areplay(path, agent(Process(2, is_first=False)))
    assert (replay.first_difference, replay.stop_reason) == ("", "")
    for number, (_, store) in enumerate(crashes.worlds(each_entry=True)):
        again = await agent(Process(number, is_first=False)).arun("go", durable=store, run_id="r")
        assert (again.status, again.reply) == ("completed", "three")


async def test_a_call_that_an_observer_changed_in_place_is_blocked_again_with_the_arguments_that_were_judged(
    tmp_path: Path,
) -> None:
    """Recovery does not call the observer again, so nothing may depend on what it did to the arguments."""
    (tmp_path / "world").mkdir()
    crashes, path, judged = Crashes(World(tmp_path / "world")), tmp_path / "run.tape", list[Any]()

    def agent(process: Process) -> Agent:
        @observer("before_tool")
        def change(ctx: Any, request: Any) -> None:
            dict.__setitem__(request.arguments, "amount", 9)

        @hook("after_tool")
        def judge(ctx: Any, result: Any) -> HookResult | None:
            judged.append(dict(result.arguments))
            return HookResult.retry() if result.arguments["amount"] == 9 else None

        @tool
        def pay(amount: int) -> str:
            """Pay."""
            raise AssertionError("the call is blocked")

        return Agent("a", llm=PricedModel([call("pay", amount=1), "done"], process), tools=[pay], hooks=[change, judge])

    first = await agent(Process(1, is_first=True)).arun("go", durable=crashes.store, run_id="r", hooks=[TapeHook(path)])
    assert first.messages[2].content == "Blocked: a hook changed the arguments of this call in place."
    replay = await areplay(path, agent(Process(2, is_first=False)))
    assert (replay.first_difference, replay.stop_reason) == ("", "")
    for number, (_, store) in enumerate(crashes.worlds(each_entry=True)):
        again = await agent(Process(number, is_first=False)).arun("go", durable=store, run_id="r")
        assert (again.status, again.reply) == ("completed", "done")
    assert set(map(repr, judged)) == {"{'amount': 1}"}


async def test_a_reading_that_failed_fails_again(tmp_path: Path) -> None:
    path, seen = tmp_path / "run.tape", list[str]()

    def agent(*, fails: bool) -> Agent:
        def read() -> str:
            if fails:
                raise OSError("unreachable")
            return "there"

        @hook("before_llm")
        async def look(ctx: Any, request: Any) -> HookResult:
            try:
                return HookResult.cont(reason=await ctx.once("look", read))
            except Exception as error:  # noqa: BLE001 - a replay raises an error of the same name
                seen.append(f"{type(error).__name__}: {error}")
                return HookResult.cont(reason="nothing")

        return Agent("a", llm=CountingModel(["done"]), hooks=[look])

    await agent(fails=True).arun("go", hooks=[TapeHook(path)])
    assert (await areplay(path, agent(fails=False))).same
    assert seen == ["OSError: unreachable"] * 2


async def test_a_replay_without_a_hook_that_waited_has_no_other_difference(tmp_path: Path) -> None:
    """The places where the run continued after that hook do not count as missing."""

    @hook("before_tool")
    def named(ctx: Any, request: Any) -> HookResult:
        return HookResult.cont(reason=request.name)

    path = tmp_path / "run.tape"
    first = Process(1, is_first=True)
    slow, _ = counter_after_a_pause_of_another_hook(first)
    await team(first, [slow, named]).arun("go", hooks=[TapeHook(path)])
    for seed in range(4):
        replay = await areplay(path, team(Process(seed, is_first=False), [named]))
        assert (replay.first_difference, replay.stop_reason) == ("", "")


async def test_a_tape_names_the_hook_that_timed_out(tmp_path: Path) -> None:
    path = tmp_path / "run.tape"
    first = Process(1, is_first=True)
    await team(first, hook_that_timed_out(first), ((1,),)).arun("go", hooks=[TapeHook(path)])
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    wakeups = [line for line in lines if isinstance(line, dict) and line["entry"] == "wakeup"]
    assert {line["name"] for line in wakeups if line.get("timed_out")} == {f"{point} judge" for point in POINTS}
