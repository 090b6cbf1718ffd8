"""Hooks in recovered runs: the built-in ones, and those that read clocks, stores and models (DESIGN 6.17).

Each run continues from every one of its entries, as in ``test_durable.py``.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
from collections import Counter
from collections.abc import Callable
from contextlib import closing, nullcontext, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from hookline import Agent, HookResult, Limits, Session, guard, hook, hooks, observer, tool
from hookline._run import waiters
from hookline.errors import HooklineError, ModelError, RecoveryError
from hookline.hooks import MemoryInjectionHook, PersistSessionHook, RateLimitHook, ResponseCacheHook, SpendingLimit
from hookline.models import ModelResponse
from hookline.payloads import AgentResult, ToolCall
from hookline.stores import MemoryStore, RunStore, SpendingStore, SqliteSessionStore
from hookline.teams import Team
from tests.durable_scene import World
from tests.run.test_durable import (
    EACH_ENTRY,
    CountingModel,
    Crashes,
    _with_usage,
    delegate_that_hangs,
    hang,
    killed_by,
    killed_in_tool,
    recover_everywhere,
    run_until_tool,
    text_of,
)
from tests.waiting import wait_until

TWO_CALLS = [ToolCall("c", "note", {"n": 1}), ToolCall("d", "note", {"n": 2}), "done"]


@pytest.fixture(autouse=True)
def short_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiters, "STALL_SECONDS", 20.0)


@pytest.fixture
def crashes(tmp_path: Path) -> Crashes:
    (tmp_path / "world").mkdir()
    return Crashes(World(tmp_path / "world"))


def noter(world: World, hooks: list[Any], replies: list[Any] = TWO_CALLS, **options: Any) -> Agent:
    """Return an agent that notes 1 and 2."""

    @tool
    def note(n: int) -> str:
        """Note a number."""
        world.note("ran", n)
        return f"noted {n}"

    return Agent("a", llm=CountingModel(replies, world), tools=[note], hooks=hooks, **options)


def completed(result: AgentResult[Any], world: World) -> None:
    assert (result.status, result.reply) == ("completed", "done"), result.errors


@EACH_ENTRY
def test_times_that_a_deciding_hook_reads_as_an_observer_are_recorded(crashes: Crashes, step: int) -> None:
    class Intervals:
        points = ("after_llm", "before_tool")
        phase = {"after_llm": "observe", "before_tool": "guard"}  # noqa: RUF012
        name = "intervals"

        def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
            times = ctx.own_state(self, list)
            if point == "after_llm":
                times.append((ctx.clock.time(), ctx.random.random(), ctx.new_id("x")))
                return None
            return HookResult.cont(reason=f"{times}")

    recover_everywhere(crashes, lambda world: noter(world, [Intervals()]), completed, step)


@EACH_ENTRY
def test_values_that_a_deciding_hook_reads_once_as_an_observer_are_recorded(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        class Reader:
            points = ("after_llm", "before_tool")
            phase = {"after_llm": "observe", "before_tool": "guard"}  # noqa: RUF012
            name = "reader"

            async def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
                seen = ctx.own_state(self, list)
                if point == "after_llm":
                    world.note("read", payload.hop)
                    seen.append(await ctx.once("lines", lambda: len(world.lines("read"))))
                    return None
                return HookResult.cont(reason=f"{seen}")

        return noter(world, [Reader()])

    recover_everywhere(crashes, make, completed, step)


@EACH_ENTRY
def test_a_tool_whose_model_call_failed_is_not_called_again(crashes: Crashes, step: int) -> None:
    class Failing(CountingModel):
        async def complete(self, request: Any) -> ModelResponse:
            if request.purpose == "tool":
                raise ModelError("overloaded")
            return await super().complete(request)

    def make(world: World) -> Agent:
        @tool
        async def think(ctx: Any) -> str:
            """Ask the model."""
            world.note("ran", "think")
            return str((await ctx.llm.complete("What is this?", purpose="tool")).content)

        replies = [ToolCall("c", "think", {}), ToolCall("d", "think", {}), "done"]
        return Agent("a", llm=Failing(replies, world), tools=[think])

    def check(result: AgentResult[Any], world: World) -> None:
        completed(result, world)
        assert "overloaded" in text_of(result)

    recover_everywhere(crashes, make, check, step)


@EACH_ENTRY
def test_a_value_whose_model_call_failed_is_not_read_again(crashes: Crashes, step: int) -> None:
    class Failing(CountingModel):
        async def complete(self, request: Any) -> ModelResponse:
            if request.purpose == "judge":
                raise ModelError("overloaded")
            return await super().complete(request)

    def make(world: World) -> Agent:
        @guard("before_tool", name="judge")
        async def judge(ctx: Any, request: Any) -> Any:
            async def read() -> str:
                return str((await ctx.llm.complete("May it?", purpose="judge")).content)

            try:
                said = await ctx.once("said", read)
            except Exception as error:  # noqa: BLE001
                said = type(error).__name__
            return HookResult.cont(reason=said)

        agent = noter(world, [judge])
        agent.model = Failing(TWO_CALLS, world)
        return agent

    recover_everywhere(crashes, make, completed, step)


@EACH_ENTRY
def test_a_memory_that_the_run_changes_is_not_read_again(crashes: Crashes, step: int) -> None:
    def make(world: World) -> Agent:
        memory = MemoryStore(world.folder / "memory.db")

        @tool
        def note(n: int) -> str:
            """Note a number."""
            memory.add_fact(f"number {n}", n)
            world.note("ran", n)
            return f"noted {n}"

        return Agent("a", llm=CountingModel(TWO_CALLS, world), tools=[note], hooks=[MemoryInjectionHook(memory)])

    recover_everywhere(crashes, make, completed, step)


def test_a_conversation_that_was_saved_just_before_the_crash_has_each_message_once(crashes: Crashes) -> None:
    def run(world: World, store: RunStore) -> list[tuple[str, str]]:
        with closing(SqliteSessionStore(world.folder / "sessions.db")) as sessions:
            session = sessions.load("s") or Session("s")
            noter(world, [PersistSessionHook(sessions)]).run("go", durable=store, run_id="r", session=session)
        return [(message.role, message.content) for message in session.messages]

    expected = run(crashes.world, crashes.store)
    *_, (world, _) = crashes.worlds(each_entry=True, step=1000)
    shutil.copy(crashes.world.folder / "sessions.db", world.folder)
    with closing(RunStore(world.folder / "runs.db")) as again:
        assert run(world, again) == expected


def test_a_reply_from_the_cache_is_the_same_in_a_process_whose_cache_is_empty(crashes: Crashes) -> None:
    cache = ResponseCacheHook(ttl=60)
    noter(crashes.world, [cache]).run("go")
    first = [cache]

    def make(world: World) -> Agent:
        return noter(world, [first.pop() if first else ResponseCacheHook(ttl=60)])

    recover_everywhere(crashes, make, completed, 3)
    assert cache.hits == 3


def test_a_call_over_the_limit_of_a_minute_is_blocked_in_a_process_that_has_counted_nothing(crashes: Crashes) -> None:
    def make(world: World) -> Agent:
        limit = RateLimitHook(None, per_minute=2)
        if not crashes.commits:
            noter(world, [limit], [TWO_CALLS[0], "done"]).run("another run")
        return noter(world, [limit])

    def check(result: AgentResult[Any], world: World) -> None:
        completed(result, world)
        was_blocked.append("2 tool calls in a minute" in text_of(result))

    was_blocked: list[bool] = []
    recover_everywhere(crashes, make, check, 3)
    assert was_blocked[0]
    assert was_blocked[-1]


BUILT_IN: dict[str, Callable[[World], Any]] = {
    "ContextCompactionHook": lambda world: hooks.ContextCompactionHook(12),
    "EpisodeLoggerHook": lambda world: hooks.EpisodeLoggerHook(MemoryStore(world.folder / "memory.db")),
    "InjectionGuard": lambda world: hooks.InjectionGuard(),
    "LoopDetectorHook": lambda world: hooks.LoopDetectorHook(),
    "NotesInjectorHook": lambda world: hooks.NotesInjectorHook(world.folder / "ran"),
    "PathGuard": lambda world: hooks.PathGuard(world.folder),
    "PlanModeHook": lambda world: hooks.PlanModeHook(confirm=["note"]),
    "ProvenanceGuard": lambda world: hooks.ProvenanceGuard(),
    "RateLimitHook": lambda world: hooks.RateLimitHook(1),
    "SchemaRetryHook": lambda world: hooks.SchemaRetryHook(),
    "SensitiveDataHook": lambda world: hooks.SensitiveDataHook(),
    "TimingHook": lambda world: hooks.TimingHook(),
    "TokenBudgetHook": lambda world: hooks.TokenBudgetHook(30),
    "TokenUsageLimitHook": lambda world: hooks.TokenUsageLimitHook(25),
    "ToolCallsLimitHook": lambda world: hooks.ToolCallsLimitHook(1),
    "CostLimitHook": lambda world: hooks.CostLimitHook(0.7),
    "ToolOutputTruncatorHook": lambda world: hooks.ToolOutputTruncatorHook(200),
    "ToolRetryHook": lambda world: hooks.ToolRetryHook(),
}


@pytest.mark.parametrize("name", BUILT_IN)
@pytest.mark.parametrize("step", [20, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_with_a_built_in_hook_continues_from_everywhere(crashes: Crashes, name: str, step: int) -> None:
    """With a new hook, as in another process, or with the same one, as after an approval in the same process."""
    same = BUILT_IN[name](crashes.world)
    results: list[str] = []

    def check(result: AgentResult[Any], world: World) -> None:
        results.append(f"{result.status} {result.reply} {re.sub('fence_[0-9a-f]+', 'fence', text_of(result))}")

    replies = [_with_usage(each) for each in TWO_CALLS]
    made: list[World] = []

    def make(world: World) -> Agent:
        made.append(world)
        return noter(world, [same if len(made) % 2 else BUILT_IN[name](world)], replies)

    recover_everywhere(crashes, make, check, step)
    assert len(set(results)) == 1


# Other ways of a run: each continues from everywhere.


def scene_output(world: World) -> Agent:
    """Ask again for a reply of the right type."""
    return noter(world, [], [TWO_CALLS[0], "not a number", "17"], output_type=int)


def scene_retries(world: World) -> Agent:
    """Call the model again after an error, and then another model."""

    class Overloaded(CountingModel):
        async def complete(self, request: Any) -> ModelResponse:
            raise ModelError("overloaded")

    agent = noter(
        world,
        [hooks.ModelRetryHook(2, base_delay=0.001, on=[ModelError]), hooks.FallbackModelHook(CountingModel(TWO_CALLS))],
    )
    agent.model = Overloaded([])
    return agent


def scene_keep_going(world: World) -> Agent:
    """Go on where the run would stop."""

    @hook("on_stop")
    def go_on(ctx: Any, stop: Any) -> Any:
        return HookResult.keep_going("Once more.") if len(ctx.state.messages) < 6 else None

    return noter(world, [go_on], [TWO_CALLS[0], "done", "done"])


def scene_failing_tool(world: World) -> Agent:
    """Make three calls at once, one of which fails, and retry it."""

    @tool
    async def work(n: int) -> str:
        """Work."""
        if n == 2:
            raise ValueError("two is bad")
        await asyncio.sleep(0)
        return f"did {n}"

    calls = ModelResponse("", tuple([ToolCall(f"c{n}", "work", {"n": n}) for n in (1, 2, 3)]))
    return Agent(
        "a", llm=CountingModel([calls, "done"]), tools=[work], hooks=[hooks.ToolRetryHook(2, base_delay=0.001)]
    )


def scene_ended_in_tool(world: World) -> Agent:
    """End the run because of a model call inside a tool."""

    @tool
    async def think(ctx: Any) -> str:
        """Ask the model."""
        return str((await ctx.llm.complete("What is this?", purpose="tool")).content)

    @guard("before_llm", name="stern")
    def stern(ctx: Any, request: Any) -> Any:
        return HookResult.end("No thinking here.") if request.purpose == "tool" else None

    return Agent("a", llm=CountingModel([ToolCall("c", "think", {}), "done"]), tools=[think], hooks=[stern])


def scene_timer_in_tool(world: World) -> Agent:
    """Run an agent with a time limit inside a tool."""

    @tool
    async def ask(ctx: Any) -> str:
        """Ask another agent."""

        model = CountingModel([ToolCall("h", "hang", {}), "x"])
        limited = Agent("limited", llm=model, tools=[hang], limits=Limits(seconds=0.03))
        return (await limited.arun("x", ctx=ctx)).status

    replies = [ToolCall("c", "ask", {}), ToolCall("d", "ask", {}), "done"]
    return Agent("a", llm=CountingModel(replies), tools=[ask], limits=Limits(seconds=60))


@pytest.mark.parametrize(
    "make",
    [scene_output, scene_retries, scene_keep_going, scene_failing_tool, scene_ended_in_tool, scene_timer_in_tool],
)
@EACH_ENTRY
def test_a_run_continues_from_everywhere(crashes: Crashes, make: Callable[[World], Agent], step: int) -> None:
    results: list[str] = []

    def check(result: AgentResult[Any], world: World) -> None:
        results.append(f"{result.status} {result.reply} {result.output_or_none!r} {text_of(result)}")

    recover_everywhere(crashes, make, check, step)
    assert len(set(results)) == 1, results


def test_another_verdict_after_a_time_limit_stops_recovery_before_any_call(tmp_path: Path) -> None:
    store, world = RunStore(tmp_path / "runs.db"), World(tmp_path)

    def agent(verdict: Any) -> Agent:
        replies = [
            ToolCall("c", "delegate", {"to": "helper", "task": "hang"}),
            ToolCall("w", "wipe", {}),
            ToolCall("p", "pay", {"n": 1}),
            "done",
        ]

        @tool
        def wipe() -> str:
            """Wipe."""
            world.note("wiped")
            return "wiped"

        @guard("before_tool", tools="wipe", name="no_wiping")
        def no_wiping(ctx: Any, request: Any) -> Any:
            return verdict

        tools = [delegate_that_hangs(0.03), wipe, killed_in_tool(world)]
        return Agent("a", llm=CountingModel(replies), tools=tools, hooks=[no_wiping])

    run_until_tool(agent(HookResult.block("no")), store, world)
    with pytest.raises(RecoveryError, match="no_wiping"):
        agent(None).run("go", durable=store, run_id="r")
    assert not world.lines("wiped")
    assert len(world.lines("ran")) == 1
    assert agent(HookResult.block("no")).run("go", durable=store, run_id="r").reply == "done"
    store.close()


def test_recovery_that_stops_leaves_the_journal_unchanged(tmp_path: Path) -> None:
    """One of two subagents was in flight; the other one's guard decides differently."""
    store, world = RunStore(tmp_path / "runs.db"), World(tmp_path)

    def boss(verdict: Any) -> Agent:
        @tool
        async def note() -> str:
            """Note."""
            world.note("noted")
            return "noted"

        @guard("before_tool", tools="note", name="picky")
        async def picky(ctx: Any, request: Any) -> Any:
            await asyncio.sleep(0.1)  # the other subagent goes on meanwhile
            return verdict

        payer = Agent("payer", llm=CountingModel([ToolCall("p", "pay", {"n": 1}), "x"]), tools=[killed_in_tool(world)])
        writer = Agent("writer", llm=CountingModel([ToolCall("w", "note", {}), "x"]), tools=[note])
        calls = [ToolCall(name, "delegate", {"to": name, "task": "x"}) for name in ("payer", "writer")]
        model = CountingModel([ModelResponse("", tuple(calls)), "done"])
        return Agent("boss", llm=model, tools=[Team([payer, writer])], hooks=[picky])

    def journal() -> list[Any]:
        with store.db.transaction() as db:
            return db.execute("SELECT * FROM journal ORDER BY 1, 2").fetchall()

    async def until_both(run: Any) -> None:
        await wait_until(lambda: world.lines("ran") and world.lines("noted"))
        await asyncio.sleep(0.05)

    killed_by(boss(None), store, until_both)
    before, events = journal(), store.events("r", limit=1000)
    with pytest.raises(RecoveryError, match="picky"):
        boss(HookResult.block("no")).run("go", durable=store, run_id="r")
    assert (journal(), store.events("r", limit=1000)) == (before, events)
    assert boss(None).run("go", durable=store, run_id="r").reply == "done"
    store.close()


def test_an_audit_log_has_each_call_once_except_around_the_crash(crashes: Crashes) -> None:
    def make(world: World) -> Agent:
        return noter(world, [hooks.AuditLogHook(world.folder / "audit.jsonl", on_failure="closed")])

    recover_everywhere(crashes, make, completed, 12)
    for folder in crashes.world.folder.parent.iterdir():
        lines = [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]
        calls = Counter(line["call_id"] for line in lines if line["type"] == "tool")
        assert calls.keys() == {"c", "d"}
        assert calls.total() <= 3


@EACH_ENTRY
def test_a_call_whose_arguments_an_observer_changed_in_place_is_blocked_again(crashes: Crashes, step: int) -> None:
    @observer("before_tool")
    def spoil(ctx: Any, request: Any) -> None:
        dict.__setitem__(request.arguments, "n", 3)

    def check(result: AgentResult[Any], world: World) -> None:
        completed(result, world)
        assert ["3"] not in world.lines("ran")

    recover_everywhere(crashes, lambda world: noter(world, [spoil]), check, step)


def test_a_call_whose_edited_arguments_an_observer_changed_in_place_is_blocked_again(crashes: Crashes) -> None:
    """The call was as it should be before the approvers were asked, so recovery asks for their answer."""

    @guard("before_tool")
    def asks(ctx: Any, request: Any) -> HookResult:
        return HookResult.ask("Really?")

    @observer("before_tool")
    def spoil(ctx: Any, request: Any) -> None:
        if request.arguments["n"] == 5:
            dict.__setitem__(request.arguments, "n", 3)

    @hook("approval_requested")
    async def edits(ctx: Any, asked: Any) -> HookResult:
        return HookResult.edit({"n": 5})

    def check(result: AgentResult[Any], world: World) -> None:
        completed(result, world)
        assert world.lines("ran") == []

    recover_everywhere(crashes, lambda world: noter(world, [asks, spoil, edits]), check, 1)


@pytest.mark.parametrize("catches", [False, True])
def test_a_limit_that_refused_a_model_call_inside_a_tool_still_stops_the_run(crashes: Crashes, catches: bool) -> None:
    @tool
    async def note(ctx: Any, n: int) -> str:
        """Ask the model, at the limit."""
        with suppress(HooklineError) if catches else nullcontext():
            return (await ctx.llm.complete("What do you think?")).content
        return "refused"

    def make(world: World) -> Agent:
        helper = Agent("helper", llm=CountingModel(TWO_CALLS), tools=[note], limits=Limits(tool_calls=1))
        boss = CountingModel([ToolCall("d", "delegate", {"to": "helper", "task": "go"}), "done"])
        return Agent("boss", llm=boss, tools=[Team([helper])])

    recover_everywhere(crashes, make, completed, 1)


def test_a_guard_that_need_not_wait_to_judge_an_edited_call_again_does_not_stop_recovery(crashes: Crashes) -> None:
    @guard("before_tool", priority=1)
    async def waits(ctx: Any, request: Any) -> None:
        await asyncio.sleep(0)

    @guard("before_tool")
    async def asks(ctx: Any, request: Any) -> HookResult | None:
        if request.arguments["n"] == 5:
            return None
        await asyncio.sleep(0)
        return HookResult.ask("Really?")

    @hook("approval_requested")
    async def edits(ctx: Any, asked: Any) -> HookResult:
        return HookResult.edit({"n": 5})

    def check(result: AgentResult[Any], world: World) -> None:
        completed(result, world)
        assert set(map(tuple, world.lines("ran"))) == {("5",)}

    recover_everywhere(crashes, lambda world: noter(world, [waits, asks, edits]), check, 1)


@EACH_ENTRY
def test_a_run_that_continues_is_charged_once_for_each_call(crashes: Crashes, step: int) -> None:
    replies = [_with_usage(each) for each in TWO_CALLS]
    with closing(SpendingStore(crashes.world.folder.parent / "spending.db")) as store:

        def make(world: World) -> Agent:
            limit = SpendingLimit(10.0, store=store, reserve_usd=0.7, max_reply_tokens=20)
            return noter(world, [limit], replies)

        def check(result: AgentResult[Any], world: World) -> None:
            completed(result, world)
            (account,) = store.accounts()
            spent.append((account.spent.tokens, account.reserved.tokens, account.calls))

        spent: list[tuple[int, int, int]] = [(0, 0, 0)]
        recover_everywhere(crashes, make, check, step)
        added = [(after[0] - before[0], after[1], after[2] - before[2]) for before, after in pairwise(spent)]
        assert added[0] == (33, 0, 3)
        begun = [each for each in added[1:] if each != added[0]]  # the others ended before the limit had begun
        assert len(begun) > len(added) / 2
        assert added == [added[0]] * (len(added) - len(begun)) + [(0, 0, 0)] * len(begun)
