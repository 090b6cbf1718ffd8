"""Tapes of runs whose tools and hooks use threads without a copy of the context, and detached runs (DESIGN 6.11)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from hookline import Agent, AgentContext, HookRegistry, HookResult, ScriptedModel, call, hook, tool
from hookline._run import waiters
from hookline.events import Event
from hookline.payloads import Frozen
from hookline.points import Point
from hookline.tape import TapeHook, areplay
from hookline.teams import Team

NOTED = "test_thread_noted"


class Note(Frozen, frozen=True):
    text: str = ""


@pytest.fixture(autouse=True)
def _point(own_points: Any) -> None:
    Point(NOTED, Note, verbs=("replace",), when="a tool noted something")


class Seen(Event, frozen=True):
    text: str = ""


def in_bare_thread(work: Callable[[], Awaitable[Any]]) -> None:
    """Do work in an event loop of a thread without a copy of the context, and wait for it."""
    errors: list[BaseException] = []

    async def main() -> None:
        await work()

    def target() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


def noted() -> Any:
    @hook(NOTED)
    async def says_noted(ctx: Any, note: Any) -> HookResult:
        await asyncio.sleep(0)
        return HookResult.cont(reason="noted")

    return says_noted


async def fire(ctx: AgentContext) -> None:
    await ctx.fire(NOTED, Note())


async def fire_in_registry(ctx: AgentContext) -> None:
    await HookRegistry([noted()]).fire(NOTED, Note(), ctx=ctx)


async def ask(ctx: AgentContext) -> None:
    assert ctx.llm is not None
    await ctx.llm.complete("What do you think?")


async def emit(ctx: AgentContext) -> None:
    ctx.emit(Seen, text="seen")


async def read(ctx: AgentContext) -> None:
    await ctx.once("value", lambda: 1)


@pytest.mark.parametrize("action", [fire, fire_in_registry, ask, emit, read])
async def test_what_a_tool_does_in_a_thread_without_its_context_is_part_of_the_tool(
    tmp_path: Path, action: Callable[[AgentContext], Awaitable[None]]
) -> None:
    def agent() -> Agent:
        @tool
        def work(ctx: AgentContext) -> str:
            """Work in a thread of its own."""
            in_bare_thread(lambda: action(ctx))
            return "did it"

        model = ScriptedModel([call("work"), "I think so.", "done"] if action is ask else [call("work"), "done"])
        return Agent("a", llm=model, tools=[work], hooks=[noted()])

    path = tmp_path / "run.tape"
    result = await agent().arun("go", hooks=[TapeHook(path)])
    assert result.reply == "done"
    again = await areplay(path, agent())
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert again.result.usage == result.usage


async def test_a_model_call_of_a_hook_in_a_thread_is_on_the_tape_in_order_with_its_events(tmp_path: Path) -> None:
    def agent() -> Agent:
        @tool
        def work() -> str:
            """Work."""
            return "did it"

        @hook("before_tool")
        async def judge(ctx: Any, request: Any) -> HookResult:
            await asyncio.to_thread(lambda: asyncio.run(ask(ctx)))
            return HookResult.cont(reason="asked")

        @hook("before_llm", "after_llm")
        def says(ctx: Any, payload: Any) -> HookResult:
            return HookResult.cont(reason=type(payload).__name__)

        model = ScriptedModel([[call("work"), call("work")], "Fine.", "Fine.", "done"])
        return Agent("a", llm=model, tools=[work], hooks=[judge, says])

    for number in range(5):
        path, first = tmp_path / f"{number}.tape", agent()
        await first.arun("go", hooks=[TapeHook(path)])
        again = await areplay(path, agent())
        assert (again.first_difference, again.stop_reason) == ("", "")
        assert isinstance(first.model, ScriptedModel)
        assert [each.messages for each in again.tape.requests] == [each.messages for each in first.model.requests]


async def test_a_run_in_a_thread_without_the_context_of_its_hook_has_the_same_id_again(tmp_path: Path) -> None:
    """The hook starts its run after a tool has started one in the same way, and a replay does not call the tool."""

    def agent(*, replays: bool) -> Agent:
        helper = Agent("helper", llm=ScriptedModel(["yes"] * 9))
        called = threading.Event()

        @hook("before_step")
        async def starts(ctx: Any, step: Any) -> None:
            if not replays:
                await asyncio.to_thread(called.wait, 5)
            await asyncio.to_thread(in_bare_thread, lambda: helper.arun("go", ctx=ctx))

        starts.inherit = False  # type: ignore[attr-defined]

        @tool
        def work(ctx: AgentContext) -> str:
            """Start a run in a thread of its own."""
            in_bare_thread(lambda: helper.arun("go", ctx=ctx))
            called.set()
            return "did it"

        member = Agent("member", llm=ScriptedModel(["done"]), hooks=[starts])
        model = ScriptedModel([[call("work"), call("delegate", to="member", task="go")], "done"])
        return Agent("a", llm=model, tools=[work, Team([member])])

    path = tmp_path / "run.tape"
    result = await agent(replays=False).arun("go", hooks=[TapeHook(path)])
    assert result.steps[0].outcomes == ("ok", "ok")
    again = await areplay(path, agent(replays=True))
    assert (again.first_difference, again.stop_reason) == ("", "")


async def test_a_detached_run_that_began_after_the_recorded_run_does_not_begin_in_a_replay(tmp_path: Path) -> None:
    left: list[Any] = []

    def agent() -> Agent:
        late = Agent("late", llm=ScriptedModel(["late"]))

        @hook("on_run_end")
        def starts(ctx: Any, result: Any) -> None:
            left.append(late.start("go", ctx=ctx.detached()))

        return Agent("a", llm=ScriptedModel(["done"]), hooks=[starts])

    path = tmp_path / "run.tape"
    await agent().arun("go", hooks=[TapeHook(path)])
    again = await areplay(path, agent())
    assert (again.first_difference, again.stop_reason) == ("", "")
    for run in left:
        await run.settled()


async def test_a_replay_that_is_stuck_ends_and_names_the_entry_that_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hook that a tool has fired does not know the tool, so a run in a thread of the hook is not part of it."""
    monkeypatch.setattr(waiters, "STALL_SECONDS", 0.5)

    def agent() -> Agent:
        helper = Agent("helper", llm=ScriptedModel(["yes"]))

        @hook(NOTED)
        async def starts(ctx: Any, note: Any) -> None:
            await asyncio.to_thread(in_bare_thread, lambda: helper.arun("go", ctx=ctx))

        @tool
        async def work(ctx: AgentContext) -> str:
            """Fire a point."""
            await ctx.fire(NOTED, Note())
            return "did it"

        return Agent("a", llm=ScriptedModel([call("work"), "done"]), tools=[work], hooks=[starts])

    path = tmp_path / "run.tape"
    await agent().arun("go", hooks=[TapeHook(path)])
    again = await asyncio.wait_for(areplay(path, agent()), 60)
    assert again.first_difference == "recorded: run; replayed: nothing"
