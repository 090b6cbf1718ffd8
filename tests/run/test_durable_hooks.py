"""Hooks in recovered runs: the built-in ones, and those that read clocks, stores and models (DESIGN 6.17).

Each run continues from every one of its entries, as in ``test_durable.py``.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from hookline import Agent, HookResult, Session, guard, hooks, tool
from hookline._run import durable
from hookline.errors import ModelError
from hookline.hooks import MemoryInjectionHook, PersistSessionHook, RateLimitHook, ResponseCacheHook
from hookline.payloads import AgentResult, ModelResponse, ToolCall
from hookline.stores import MemoryStore, RunStore, SqliteSessionStore
from tests.durable_scene import World
from tests.run.test_durable import EACH_ENTRY, CountingModel, Crashes, _with_usage, recover_everywhere, text_of

TWO_CALLS = [ToolCall("c", "note", {"n": 1}), ToolCall("d", "note", {"n": 2}), "done"]


@pytest.fixture(autouse=True)
def short_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(durable, "STALL_SECONDS", 5.0)


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
            times = ctx.hook_state.setdefault(id(self), [])
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
                seen = ctx.hook_state.setdefault(id(self), [])
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
@pytest.mark.parametrize("step", [16, pytest.param(1, marks=pytest.mark.slow)])
def test_a_run_with_a_built_in_hook_continues_from_everywhere(crashes: Crashes, name: str, step: int) -> None:
    results: list[str] = []

    def check(result: AgentResult[Any], world: World) -> None:
        results.append(f"{result.status} {result.reply} {re.sub('fence_[0-9a-f]+', 'fence', text_of(result))}")

    replies = [_with_usage(each) for each in TWO_CALLS]
    recover_everywhere(crashes, lambda world: noter(world, [BUILT_IN[name](world)], replies), check, step)
    assert len(set(results)) == 1
