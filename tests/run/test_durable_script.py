"""A durable run with a scripted model continues with the turn after those that it has had (DESIGN 6.17)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline import Agent, HookResult, guard, hook, tool
from hookline.errors import RunWaitingError
from hookline.hooks import ModelRetryHook
from hookline.models import RateLimitError
from hookline.stores import RunStore, StoreError
from hookline.tape import TapeHook, replay
from hookline.teams import Team
from hookline.testing import ScriptedModel, call, reply
from tests.durable_scene import World
from tests.run.test_durable import Crashes, check_transcript, interrupt, killed_in_tool, run_until_tool
from tests.waiting import wait_until


@pytest.fixture
def store(tmp_path: Path) -> Iterator[RunStore]:
    store = RunStore(tmp_path / "runs.db")
    yield store
    store.close()


def contents(result: Any) -> list[str]:
    return [message.content for message in result.messages]


class Office:
    """A boss and a helper with one script, a guard that asks the model, and a tool that asks it too."""

    TURNS = (
        call("work", n=1),
        reply("The guard says yes."),
        call("delegate", to="helper", task="help"),
        call("work", n=2),
        reply("The guard says yes again."),
        RateLimitError("slow down"),
        reply("I helped."),
        call("ask"),
        reply("asked inside the tool"),
        [call("work", n=3), call("work", n=4)],
        reply("yes to 3"),
        reply("yes to 4"),
        reply("All is done."),
    )

    def __init__(self, *, stream: bool) -> None:
        self.model = ScriptedModel(list(self.TURNS))

        @tool
        async def work(n: int) -> str:
            """Work."""
            return f"worked {n}"

        @tool
        async def ask(ctx: Any) -> str:
            """Ask the model."""
            return (await ctx.llm.complete("And you?", purpose="inside")).content

        @guard("before_tool", tools="work", name="judge")
        async def judge(ctx: Any, request: Any) -> Any:
            opinion = await ctx.llm.complete("Is this fine?", purpose="judge")
            return HookResult.cont(reason=opinion.content)

        hooks: list[Any] = [judge, ModelRetryHook(base_delay=0.001)]
        if stream:
            hooks.append(hook("on_token", name="reader")(lambda ctx, delta: None))
        helper = Agent("helper", llm=self.model, tools=[work])
        self.boss = Agent("boss", llm=self.model, tools=[work, ask, Team([helper])], hooks=hooks)


@pytest.mark.parametrize("step", [7, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.parametrize("stream", [False, True], ids=["whole replies", "streamed"])
def test_a_run_continues_its_script_from_every_entry_of_the_journal(tmp_path: Path, stream: bool, step: int) -> None:
    (tmp_path / "world").mkdir()
    crashes = Crashes(World(tmp_path / "world"))
    first = Office(stream=stream).boss.run("go", durable=crashes.store, run_id="r")
    assert first.reply == "All is done."
    for _, store in crashes.worlds(each_entry=True, step=step):
        result = Office(stream=stream).boss.run("go", durable=store, run_id="r")
        assert contents(result) == contents(first)
        check_transcript(result)


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_concurrent_agents_with_one_script_get_each_turn_once(tmp_path: Path, step: int) -> None:
    (tmp_path / "world").mkdir()
    crashes = Crashes(World(tmp_path / "world"))

    def office() -> Agent:
        @tool
        async def work(n: int) -> str:
            """Work."""
            await asyncio.sleep(0.001 * n)
            return f"worked {n}"

        delegates = [call("delegate", to=name, task="help") for name in ("ann", "bob", "eve")]
        works = [[f"turn {n}. ", call("work", n=n % 4)] for n in range(6)]
        model = ScriptedModel([delegates, *works, *(reply(f"said {n}") for n in range(3)), reply("done")])

        # A helper works twice and then says something, whatever turn it gets.
        @hook("after_llm", name="in_order")
        def in_order(ctx: Any, answer: Any) -> Any:
            said = sum(message.role == "assistant" for message in ctx.state.messages)
            if ctx.ids.agent == "boss" or (said < 2) == bool(answer.tool_calls):
                return None
            changes = {"tool_calls": (call("work", n=1).replace(id=f"w{said}"),)} if said < 2 else {"tool_calls": ()}
            return HookResult.replace({**changes, "content": answer.content or "nothing"})

        team = Team([Agent(name, llm=model, tools=[work]) for name in ("ann", "bob", "eve")])
        return Agent("boss", llm=model, tools=[team], hooks=[in_order])

    def said(store: RunStore) -> list[bytes]:
        """Return the replies of all models, from the journal."""
        entries = [msgspec.json.decode(entry) for entry in store.journal.entries("r")]
        replies = [
            entry[3]["response"] for entry in entries if entry[1] == "answered" and entry[2].startswith("model ")
        ]
        return sorted(msgspec.json.encode((each.get("content"), each.get("tool_calls"))) for each in replies)

    assert office().run("go", durable=crashes.store, run_id="r").status == "completed"
    once = said(crashes.store)
    assert len(once) == len(set(once)) == 11
    for _, store in crashes.worlds(each_entry=True, step=step):
        assert office().run("go", durable=store, run_id="r").status == "completed"
        assert said(store) == once


def test_a_call_in_flight_is_made_again_with_the_turn_that_it_had(store: RunStore) -> None:
    turns = [call("work"), reply("one two three"), reply("wrong")]
    began = asyncio.Event()

    @tool
    def work() -> str:
        """Work."""
        return "worked"

    class Slow(ScriptedModel):
        async def stream(self, request: Any) -> Any:
            async for piece in super().stream(request):
                yield piece
                if piece == "one":
                    began.set()
                    await asyncio.Event().wait()

    async def execute(agent: Agent) -> None:
        run = agent.start("go", durable=store, run_id="r")
        await began.wait()
        run.suspend()
        await wait_until(lambda: store.journal.get("r").status == "interrupted")

    reader = hook("on_token", name="reader")(lambda ctx, delta: None)
    agent = Agent("a", llm=Slow(turns), tools=[work], hooks=[reader])
    asyncio.run(execute(agent))
    agent.model.turns[1] = reply("the same")  # the model that was interrupted, in the same process
    assert agent.run("go", durable=store, run_id="r").reply == "the same"


def test_a_model_that_has_advanced_in_this_process_skips_nothing(store: RunStore) -> None:
    decided: list[bool] = []

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    @hook("approval_requested")
    def later(ctx: Any, request: Any) -> Any:
        return HookResult.approve(by="anna") if decided else HookResult.wait()

    asks = guard("before_tool", name="asks")(lambda ctx, request: HookResult.ask("really?"))
    agent = Agent("a", llm=ScriptedModel([call("pay"), reply("done")]), tools=[pay], hooks=[asks, later])
    for _ in range(3):
        with pytest.raises(RunWaitingError):
            agent.run("go", durable=store, run_id="r")
    decided.append(True)
    assert agent.run("go", durable=store, run_id="r").reply == "done"


def test_a_call_that_could_not_be_stored_is_made_again_with_the_turn_that_it_had(store: RunStore) -> None:
    append = store.journal.append

    def refuse(*args: Any) -> None:
        raise StoreError("the disk is full")

    @hook("before_llm")
    def fill(ctx: Any, request: Any) -> None:
        if request.hop == 1 and not filled:
            filled.append(True)
            store.journal.append = refuse  # type: ignore[method-assign]

    @tool
    def work() -> str:
        """Work."""
        return "worked"

    filled: list[bool] = []
    agent = Agent("a", llm=ScriptedModel([call("work"), reply("done"), reply("wrong")]), tools=[work], hooks=[fill])
    with pytest.raises(StoreError):
        agent.run("go", durable=store, run_id="r")
    assert len(agent.model.requests) == 2
    store.journal.append = append  # type: ignore[method-assign]
    interrupt(store)
    assert agent.run("go", durable=store, run_id="r").reply == "done"


def test_a_run_that_is_not_the_first_of_its_script_continues_after_its_own_turns(
    tmp_path: Path, store: RunStore
) -> None:
    world = World(tmp_path)

    def agent() -> Agent:
        turns = [reply("first"), call("pay", n=1), reply("second"), reply("third")]
        return Agent("a", llm=ScriptedModel(turns), tools=[killed_in_tool(world)])

    before = agent()
    assert before.run("hello", durable=store, run_id="hello").reply == "first"
    run_until_tool(before, store, world)
    assert agent().run("go", durable=store, run_id="r").reply == "second"


def test_a_run_that_has_ended_counts_for_the_runs_after_it(store: RunStore) -> None:
    def agent() -> Agent:
        return Agent("a", llm=ScriptedModel([reply("first"), reply("second"), reply("third")]))

    assert agent().run("one", durable=store, run_id="1").reply == "first"
    again = agent()
    assert again.run("one", durable=store, run_id="1").reply == "first"
    assert again.run("two", durable=store, run_id="2").reply == "second"
    assert again.run("one", durable=store, run_id="1").reply == "first"
    assert again.run("three", durable=store, run_id="3").reply == "third"


def test_a_run_that_is_interrupted_twice_continues_its_script(tmp_path: Path, store: RunStore) -> None:
    began: list[int] = []
    limit = 0

    @tool
    async def work(n: int) -> str:
        """Work, or be interrupted."""
        began.append(n)
        if n > limit:
            await asyncio.Event().wait()
        return f"worked {n}"

    def agent() -> Agent:
        turns = [call("work", n=1), call("work", n=2), reply("done"), reply("wrong")]
        return Agent("a", llm=ScriptedModel(turns), tools=[work])

    async def interrupted() -> None:
        run = agent().start("go", durable=store, run_id="r")
        await wait_until(lambda: began[-1:] == [limit + 1])
        run.suspend()
        await wait_until(lambda: store.journal.get("r").status == "interrupted")

    for limit in (0, 1):
        asyncio.run(interrupted())
    limit = 2
    assert agent().run("go", durable=store, run_id="r").reply == "done"
    assert began == [1, 1, 2, 2]


def test_a_tape_of_a_run_that_continued_is_replayed_without_a_model(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)

    def agent() -> Agent:
        tape = TapeHook(tmp_path / "again.tape")
        turns = [call("pay", n=1), reply("done")]
        return Agent("a", llm=ScriptedModel(turns), tools=[killed_in_tool(world)], hooks=[tape])

    run_until_tool(agent(), store, world)
    assert agent().run("go", durable=store, run_id="r").reply == "done"
    assert replay(tmp_path / "again.tape", []).result.reply == "done"
