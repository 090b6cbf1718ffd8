"""The end of the task that awaits a durable run suspends the run; only ``run.cancel()`` ends it (DESIGN 6.17).

A run is interrupted at a *moment*: one of its models, tools, hooks or approvers waits there, once, until it is
cancelled. Then the run is continued by an agent that has seen nothing of that.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hookline import (
    Agent,
    AgentContext,
    HookResult,
    Limits,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline._run.durable import DurableRun
from hookline.agents import Interrupt
from hookline.errors import RunSuspendedError, RunWaitingError
from hookline.events import Discarded, RunFinished
from hookline.models import ModelResponse
from hookline.payloads import AgentResult, ToolCall
from hookline.stores import RunStore
from hookline.teams import Team
from tests.durable_scene import World
from tests.waiting import block_until, wait_until


class Moments:
    """Makes a run wait at a moment, once. What it does is noted in a world."""

    def __init__(self, world: World, chosen: str = "") -> None:
        self.world, self.chosen = world, chosen
        self.reached = threading.Event()

    async def reach(self, moment: str) -> None:
        """Wait until the caller is cancelled, if this is the chosen moment and the first time."""
        if moment == self.chosen and not self.reached.is_set():
            self.reached.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.world.note("cancelled", moment)


class Model:
    """A model that answers by the number of replies in the request."""

    name, provider = "counting", "test"

    def __init__(self, moments: Moments, who: str) -> None:
        self.moments, self.who = moments, who

    async def complete(self, request: Any) -> ModelResponse:
        number = sum(message.role == "assistant" for message in request.messages)
        self.moments.world.note("asked", self.who, request.purpose, number)
        await self.moments.reach(f"model {request.purpose} of {self.who}")
        if request.purpose != "step":
            return ModelResponse("fine")
        if self.who == "helper":
            return ModelResponse("", (ToolCall("h", "write", {"n": 9}),)) if not number else ModelResponse("helped")
        calls = (
            (ToolCall("a", "write", {"n": 1}),),
            (ToolCall("b", "write", {"n": 2}), ToolCall("c", "hold", {"n": 3}), ToolCall("d", "write", {"n": 4})),
            (ToolCall("e", "delegate", {"to": "helper", "task": "help"}),),
            (ToolCall("f", "pay", {"n": 5}),),
            (ToolCall("g", "delegate", {"to": "helper", "task": "help"}), ToolCall("i", "write", {"n": 6})),
        )
        return ModelResponse("", calls[number]) if number < len(calls) else ModelResponse("done")

    async def stream(self, request: Any) -> AsyncIterator[str | ModelResponse]:
        response = await self.complete(request)
        if response.content:
            yield response.content[:2]
            await self.moments.reach(f"text of {self.who}")
            yield response.content[2:]
        yield response

    def count_tokens(self, content: Any) -> int:
        return 5


def make_agent(world: World, moment: str = "") -> tuple[Agent, Moments]:
    """Return an agent that waits at a moment."""
    moments = Moments(world, moment)

    @tool
    async def write(n: int, ctx: Any) -> str:
        """Write."""
        world.note("ran", ctx.call_key, "write", n)
        await moments.reach(f"tool write {n}")
        world.note("wrote", n)
        return f"wrote {n}"

    @tool
    async def hold(n: int, ctx: Any) -> str:
        """Write, with a time limit of its own."""
        world.note("ran", ctx.call_key, "hold", n)
        async with asyncio.timeout(60):
            await moments.reach("tool with a time limit")
        with suppress(TimeoutError):
            async with asyncio.timeout(0.001):
                await asyncio.Event().wait()
        world.note("wrote", n)
        return f"held {n}"

    @tool
    async def pay(n: int, ctx: Any) -> str:
        """Pay."""
        world.note("ran", ctx.call_key, "pay", n)
        await moments.reach("tool after approval")
        world.note("wrote", n)
        return f"paid {n}"

    @hook("on_run_start", name="starts")
    async def starts(ctx: Any, start: Any) -> None:
        await moments.reach("on_run_start")

    @guard("before_tool", tools="write", name="judge")
    async def judge(ctx: Any, request: Any) -> Any:
        if request.id == "a":
            await moments.reach("guard")
            with suppress(TimeoutError):
                async with asyncio.timeout(60):
                    await ctx.llm.complete("Is this fine?", purpose="judge")
            await ctx.once("day", lambda: moments.reach("once"))
        return None

    @guard("before_tool", tools="pay", name="asks")
    def asks(ctx: Any, request: Any) -> Any:
        return HookResult.ask("really?")

    @hook("approval_requested", name="person")
    async def person(ctx: Any, request: Any) -> Any:
        world.note("person", request.call.id)
        await moments.reach("approval")
        return HookResult.approve(by="anna")

    @observer("after_step", name="steps")
    async def steps(ctx: Any, step: Any) -> None:
        await moments.reach(f"after step {step.index}")

    @observer("on_run_end", name="ended")
    async def ended(ctx: Any, result: Any) -> None:
        await moments.reach("on_run_end")
        world.note("ended", ctx.agent_name, result.status)

    helper = Agent("helper", llm=Model(moments, "helper"), tools=[write])
    hooks = [starts, judge, asks, person, steps, ended]
    boss = Agent("boss", llm=Model(moments, "boss"), tools=[write, hold, pay, Team([helper])], hooks=hooks)
    return boss, moments


MOMENTS = (
    "on_run_start",
    "model step of boss",
    "text of boss",
    "guard",
    "model judge of boss",
    "once",
    "tool write 1",
    "after step 0",
    "tool write 2",
    "tool with a time limit",
    "model step of helper",
    "text of helper",
    "tool write 9",
    "approval",
    "tool after approval",
    "after step 3",
    "on_run_end",
)


def ignore(event: Any) -> None:
    """Read the events, so that text is streamed."""


@pytest.fixture
def store(tmp_path: Path) -> RunStore:
    return RunStore(tmp_path / "runs.db")


def kept(result: AgentResult[Any]) -> tuple[Any, ...]:
    """Return the part of a result that an interruption must not change."""
    transcript = [(each.role, each.content, each.tool_calls, each.call_id) for each in result.messages]
    return result.status, result.reply, transcript, result.tool_calls, [step.outcomes for step in result.steps]


def never_interrupted(folder: Path) -> tuple[tuple[Any, ...], list[str], int]:
    """Return the result of the run, the types of its events, and the number of its calls to models."""
    folder.mkdir()
    world, store = World(folder), RunStore(folder / "runs.db")
    result = make_agent(world)[0].run("go", durable=store, run_id="r", session=Session("s"), sinks=[ignore])
    return kept(result), [event.type for event in store.events("r", limit=1000)], len(world.lines("asked"))


async def by_cancelling_the_task(agent: Agent, moments: Moments, store: RunStore) -> None:
    task = asyncio.ensure_future(agent.arun("go", durable=store, run_id="r", session=Session("s"), sinks=[ignore]))
    await wait_until(moments.reached.is_set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert task.cancelled()


async def by_a_time_limit(agent: Agent, moments: Moments, store: RunStore) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(None) as limit:
            reached = asyncio.ensure_future(wait_until(moments.reached.is_set))
            reached.add_done_callback(lambda _: limit.reschedule(0))
            await agent.arun("go", durable=store, run_id="r", session=Session("s"), sinks=[ignore])


async def by_ending_the_program(agent: Agent, moments: Moments, store: RunStore) -> None:
    agent.start("go", durable=store, run_id="r", session=Session("s"), sinks=[ignore])
    await wait_until(moments.reached.is_set)  # asyncio.run() cancels what is left


async def by_leaving_the_stream(agent: Agent, moments: Moments, store: RunStore) -> None:
    events = agent.stream("go", durable=store, run_id="r", session=Session("s"), sinks=[ignore])
    reader = asyncio.ensure_future(_read(events))
    await wait_until(moments.reached.is_set)
    reader.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reader
    await events.aclose()


async def _read(events: AsyncIterator[Any]) -> None:
    async for _ in events:
        pass


WAYS = (
    (by_cancelling_the_task, MOMENTS),
    (by_ending_the_program, MOMENTS),
    (by_a_time_limit, MOMENTS[1::4]),
    (by_leaving_the_stream, MOMENTS[2::4]),
)
Way = Callable[[Agent, Moments, RunStore], Awaitable[None]]


@pytest.mark.parametrize(("way", "at"), WAYS)
def test_a_run_that_is_interrupted_goes_on_as_if_it_had_not_been(tmp_path: Path, way: Way, at: tuple[str, ...]) -> None:
    expected, types, asked = never_interrupted(tmp_path / "expected")
    for moment in at:
        folder = tmp_path / moment.replace(" ", "_")
        folder.mkdir()
        world, store = World(folder), RunStore(folder / "runs.db")
        agent, moments = make_agent(world, moment)
        asyncio.run(way(agent, moments, store))  # type: ignore[arg-type]

        stored = store.journal.get("r")
        assert stored is not None
        assert (stored.status, stored.lease, stored.attempts) == ("interrupted", 0.0, 0), moment
        assert world.lines("cancelled") == [[moment]], moment
        before = [event.type for event in store.events("r", limit=1000)]
        assert "cancelled" not in str(entries_of(store)), moment
        committed = [line[0] for line in world.lines("wrote")]

        result = make_agent(world)[0].run(
            "go", durable=store, run_id="r", session=(session := Session("s")), sinks=[ignore]
        )
        assert kept(result) == expected, moment
        assert tuple(session.messages) == tuple(result.messages)
        after = store.events("r", limit=1000)
        assert [event.seq for event in after] == list(range(1, len(after) + 1)), moment
        assert [event.type for event in after][: len(before)] == before, moment
        written = [line[0] for line in world.lines("wrote")]
        assert sorted(written) == ["1", "2", "3", "4", "5", "6", "9", "9"], moment
        assert written[: len(committed)] == committed
        keys = [line[0] for line in world.lines("ran")]
        in_flight = 3 if moment in ("tool write 2", "tool with a time limit") else 2
        assert len(keys) - len(set(keys)) <= in_flight, moment
        assert len(world.lines("asked")) <= asked + 1, moment
        ends = world.lines("ended")
        assert sorted(ends) == [["boss", "completed"], ["helper", "completed"], ["helper", "completed"]], moment
        store.close()


def entries_of(store: RunStore) -> list[Any]:
    """Return the entries of the journal."""
    with store.db.transaction() as db:
        rows = db.execute("SELECT data FROM journal WHERE run_id = 'r' ORDER BY seq").fetchall()
    return [entry for (data,) in rows for entry in msgspec.json.decode(data)]


def test_only_an_explicit_cancellation_ends_a_run(tmp_path: Path) -> None:
    async def by_its_handle(agent: Agent, store: RunStore, moments: Moments) -> AgentResult[Any]:
        run = agent.start("go", durable=store, run_id="r")
        await wait_until(moments.reached.is_set)
        run.cancel("enough")
        return await run.result()

    async def by_its_interrupt(agent: Agent, store: RunStore, moments: Moments) -> AgentResult[Any]:
        ctx = AgentContext(interrupt=Interrupt())
        task = asyncio.ensure_future(agent.arun("go", durable=store, run_id="r", ctx=ctx))
        await wait_until(moments.reached.is_set)
        ctx.interrupt.cancel("enough")
        return await task

    for way in (by_its_handle, by_its_interrupt):
        world, store = World(tmp_path), RunStore(tmp_path / f"{way.__name__}.db")
        agent, moments = make_agent(world, "tool write 9")
        result = asyncio.run(way(agent, store, moments))
        assert (result.status, result.stop and result.stop.message) == ("cancelled", "enough")
        assert make_agent(world)[0].run("go", durable=store, run_id="r").status == "cancelled"


def test_a_run_whose_loop_ends_before_it_begins_is_given_back_at_once(tmp_path: Path, store: RunStore) -> None:
    agent, _ = make_agent(World(tmp_path))

    async def program() -> None:
        agent.start("go", durable=store, run_id="r")
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()

    asyncio.run(program())
    stored = store.journal.get("r")
    assert stored is not None
    assert (stored.status, stored.lease, entries_of(store)) == ("interrupted", 0.0, [])
    assert agent.run("go", durable=store, run_id="r").reply == "done"


def test_an_interrupted_recovery_leaves_the_journal_as_it_was(tmp_path: Path, store: RunStore) -> None:
    world = World(tmp_path)
    agent, moments = make_agent(world, "tool after approval")
    asyncio.run(by_cancelling_the_task(agent, moments, store))
    before = entries_of(store), len(store.events("r", limit=1000))
    agent, moments = make_agent(world, "guard")
    asyncio.run(by_cancelling_the_task(agent, moments, store))
    assert (entries_of(store), len(store.events("r", limit=1000))) == before
    assert make_agent(world)[0].run("go", durable=store, run_id="r").reply == "done"


def test_a_call_that_must_not_be_repeated_has_an_unknown_outcome_after_an_interruption(
    tmp_path: Path, store: RunStore
) -> None:
    world = World(tmp_path)
    moments = Moments(world, "in tool")

    @tool(repeatable=False)
    async def pay() -> str:
        """Pay."""
        world.note("ran", "pay")
        await moments.reach("in tool")
        return "paid"

    class Payer(Model):
        async def complete(self, request: Any) -> ModelResponse:
            paid = any(message.role == "tool" for message in request.messages)
            return ModelResponse("done") if paid else ModelResponse("", (ToolCall("a", "pay", {}),))

    agent = Agent("payer", llm=Payer(moments, "payer"), tools=[pay])
    asyncio.run(by_cancelling_the_task(agent, moments, store))
    result = agent.run("go", durable=store, run_id="r")
    assert "The outcome of this call is unknown" in result.messages[2].content
    assert len(world.lines("ran")) == 1


async def test_the_caller_does_not_wait_for_a_tool_that_ignores_its_cancellation(
    tmp_path: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hookline._run.run.GRACE", 0.01)
    world, may_end = World(tmp_path), asyncio.Event()

    @tool
    async def write(n: int) -> str:
        """Write."""
        world.note("ran", n)
        while not may_end.is_set():
            with suppress(asyncio.CancelledError):
                await may_end.wait()
        return "late"

    agent = Agent("boss", llm=Model(Moments(world), "boss"), tools=[write])
    task = asyncio.ensure_future(agent.arun("go", durable=store, run_id="r"))
    await wait_until(lambda: world.lines("ran"))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await wait_until(lambda: (run := store.journal.get("r")) is not None and run.status == "interrupted")
    may_end.set()


@pytest.mark.parametrize("end_waits", [False, True])
async def test_a_run_whose_end_is_being_stored_has_ended(
    tmp_path: Path, store: RunStore, monkeypatch: pytest.MonkeyPatch, end_waits: bool
) -> None:
    ending, storing, may_store, append = threading.Event(), threading.Event(), threading.Event(), store.journal.append
    finished: list[Any] = []

    def slow(write: Any, **options: Any) -> None:
        if write.status or (end_waits and ending.is_set()):
            storing.set()
            may_store.wait()
        append(write, **options)

    @observer("on_run_end", name="last")
    async def last(ctx: Any, result: Any) -> None:
        if end_waits and ctx.agent_name == "boss":  # the end waits for the write of what came before it
            ending.set()
            ctx.emit(Discarded, hop=0, attempt=1, reason="none")
            await wait_until(storing.is_set)

    def sink(event: Any) -> None:
        if isinstance(event, RunFinished):
            finished.append(event)

    monkeypatch.setattr(store.journal, "append", slow)
    agent, _ = make_agent(World(tmp_path))
    run = agent.start("go", durable=store, run_id="r", hooks=[last], sinks=[sink])
    await wait_until(lambda: storing.is_set() and finished)
    run.suspend()
    may_store.set()
    assert (await run.result()).status == "completed"
    stored = store.journal.get("r")
    assert stored is not None
    assert stored.status == "completed"


async def test_a_time_limit_inside_the_run_does_not_interrupt_it(tmp_path: Path, store: RunStore) -> None:
    moments = Moments(World(tmp_path), "model judge of boss")

    @guard("before_tool", name="impatient")
    async def impatient(ctx: Any, request: Any) -> Any:
        if request.id == "a":
            with suppress(TimeoutError):
                async with asyncio.timeout(0.01):
                    await ctx.llm.complete("Is this fine?", purpose="judge")
            return HookResult.block("nobody knows")
        return None

    @tool
    def write(n: int) -> str:
        """Write."""
        return f"wrote {n}"

    class Short(Model):
        async def complete(self, request: Any) -> ModelResponse:
            response = await super().complete(request)
            done = any(message.role == "tool" for message in request.messages)
            return ModelResponse("done") if done and request.purpose == "step" else response

    agent = Agent("boss", llm=Short(moments, "boss"), tools=[write], hooks=[impatient])
    result = await agent.arun("go", durable=store, run_id="r")
    assert (result.status, result.messages[2].content) == ("completed", "nobody knows")


async def test_a_run_can_be_suspended_by_its_handle(tmp_path: Path, store: RunStore) -> None:
    agent, moments = make_agent(World(tmp_path), "tool write 1")
    run = agent.start("go", durable=store, run_id="r")
    await wait_until(moments.reached.is_set)
    run.suspend()
    with pytest.raises(RunSuspendedError, match="run r is suspended in this process"):
        await run.result()
    assert (await agent.arun("go", durable=store, run_id="r")).reply == "done"


async def test_a_run_that_is_not_durable_is_cancelled_instead(tmp_path: Path) -> None:
    agent, moments = make_agent(World(tmp_path), "tool write 1")
    run = agent.start("go")
    await wait_until(moments.reached.is_set)
    run.suspend("the user left")
    result = await run.result()
    assert (result.status, result.stop and result.stop.message) == ("cancelled", "the user left")


PROGRAM = """
import asyncio, sys
from pathlib import Path

from hookline.stores import RunStore
from tests.durable_scene import World
from tests.run.test_durable_cancel import make_agent

folder, how = Path(sys.argv[1]), sys.argv[2]
store = RunStore(folder / "runs.db")
agent, moments = make_agent(World(folder), sys.argv[3])
if how == "run":
    agent.run("go", durable=store, run_id="r")
else:
    asyncio.run(agent.arun("go", durable=store, run_id="r"))
"""


@pytest.mark.parametrize("how", ["run", "asyncio.run"])
@pytest.mark.parametrize("moment", ["model step of helper", "tool write 2"])
def test_ctrl_c_suspends_the_run_of_a_program(tmp_path: Path, store: RunStore, how: str, moment: str) -> None:
    world = World(tmp_path)
    args = [sys.executable, "-c", PROGRAM, str(tmp_path), how, moment]
    process = subprocess.Popen(args, stderr=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": _path()})
    name = "asked" if moment.startswith("model") else "ran"
    sought = "helper" if name == "asked" else "2"
    block_until(lambda: any(sought in line for line in world.lines(name)))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert errors.rstrip().endswith("KeyboardInterrupt")
    stored = store.journal.get("r")
    assert stored is not None
    assert (stored.status, stored.lease) == ("interrupted", 0.0)
    assert not world.lines("ended")
    result = make_agent(world)[0].run("go", durable=store, run_id="r")
    assert (result.status, result.reply) == ("completed", "done")
    numbers = [event.seq for event in store.events("r", limit=1000)]
    assert numbers == list(range(1, len(numbers) + 1))


def _path() -> str:
    root = Path(__file__).parents[2]
    return os.pathsep.join((str(root / "src"), str(root)))


class Payments:
    """An agent whose payments wait for approval. While the run is being suspended, the store waits, too."""

    def __init__(self, store: RunStore, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paid, self.ended = list[int](), list[str]()
        self.storing, self.go_on = threading.Event(), threading.Event()
        append = store.journal.append

        def slow(write: Any, **options: Any) -> None:
            if write.status == "waiting":
                self.storing.set()
                self.go_on.wait(20)
            append(write, **options)

        monkeypatch.setattr(store.journal, "append", slow)

    def agent(self, *, nested: bool = False, **options: Any) -> Agent:
        """Return the agent, or one that delegates to it."""

        @tool
        def pay(n: int) -> str:
            """Pay."""
            self.paid.append(n)
            return "paid"

        @guard("before_tool", tools="pay")
        def asks(ctx: Any, request: Any) -> Any:
            return HookResult.ask("really?")

        @hook("approval_requested")
        def person(ctx: Any, request: Any) -> Any:
            return HookResult.approve(by="anna") if self.go_on.is_set() else HookResult.wait()

        @observer("on_run_end")
        def end(ctx: Any, result: Any) -> None:
            self.ended.append(f"{ctx.agent_name} {result.status}")

        def turn(request: Any) -> Any:
            return reply("done") if request.messages[-1].role == "tool" else [call("pay", n=1), call("pay", n=2)]

        def delegate(request: Any) -> Any:
            return reply("done") if request.messages[-1].role == "tool" else call("delegate", to="payer", task="pay")

        hooks = [asks, person, end]
        payer = Agent("payer", llm=ScriptedModel([turn], loop=True), tools=[pay], hooks=hooks, **options)
        if not nested:
            return payer
        return Agent("boss", llm=ScriptedModel([delegate], loop=True), tools=[Team([payer])], hooks=[end])


@pytest.mark.parametrize("nested", [False, True])
def test_a_cancellation_that_comes_while_a_run_is_being_suspended_ends_it_when_it_goes_on(
    store: RunStore, monkeypatch: pytest.MonkeyPatch, nested: bool
) -> None:
    payments, session = Payments(store, monkeypatch), Session("s")
    agent = payments.agent(nested=nested)
    run = agent.start("go", durable=store, run_id="r", session=session)
    block_until(payments.storing.is_set)
    assert not run.steer("Hurry.")  # it would be lost
    run.cancel("enough")
    payments.go_on.set()
    with pytest.raises(RunWaitingError):
        run.wait()
    assert (list(session.messages), payments.ended) == ([], [])
    result = agent.run("go", durable=store, run_id="r", session=session)
    assert (result.status, result.stop and result.stop.message, payments.paid) == ("cancelled", "enough", [])
    assert sorted(set(payments.ended)) == (["boss cancelled", "payer cancelled"] if nested else ["payer cancelled"])
    stored = store.journal.get("r")
    assert stored is not None
    assert stored.status == "cancelled"


async def test_a_cancellation_that_comes_while_a_run_that_was_suspended_is_unwound_ends_it_when_it_goes_on(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    payments, seen = Payments(store, monkeypatch), list[bool]()
    agent, fail = payments.agent(), DurableRun._fail

    def cancel() -> None:
        seen.append(run.done)
        run.cancel("enough")

    def fail_and_cancel(durable: DurableRun, error: BaseException) -> None:
        fail(durable, error)
        asyncio.get_running_loop().call_soon(cancel)

    monkeypatch.setattr(DurableRun, "_fail", fail_and_cancel)
    run = agent.start("go", durable=store, run_id="r")
    await asyncio.to_thread(payments.storing.wait, 20)
    payments.go_on.set()
    with pytest.raises(RunWaitingError):
        await run.result()
    monkeypatch.undo()
    assert seen == [False]
    assert (await agent.arun("go", durable=store, run_id="r")).status == "cancelled"
    assert payments.paid == []


def test_a_time_limit_that_is_reached_while_a_run_is_being_suspended_does_not_end_it_here(
    store: RunStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    payments = Payments(store, monkeypatch)
    agent = payments.agent(limits=Limits(seconds=0.3))
    run = agent.start("go", durable=store, run_id="r")
    block_until(payments.storing.is_set)
    block_until(lambda: run._engine.cancellation.triggered)
    payments.go_on.set()
    with pytest.raises(RunWaitingError):
        run.wait()
    stored = store.journal.get("r")
    assert stored is not None
    assert (stored.status, payments.ended) == ("waiting", [])
