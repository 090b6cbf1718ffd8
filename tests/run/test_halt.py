"""The stop switch: while it is on, no run begins a call, and nobody can answer before it (DESIGN 6.19)."""

from __future__ import annotations

import asyncio
import os
import threading
from pathlib import Path
from typing import Any

import pytest

from hookline import Agent, AgentContext, HookResult, guard, hook, tool
from hookline._run import halt as halt_module
from hookline._run.halt import Halt, HaltSwitch
from hookline.errors import CallRefusedError, RunHaltedError
from hookline.events import Event, Signalled, ToolStarted
from hookline.payloads import StopSignal
from hookline.points import AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_RUN_END, ON_STOP
from hookline.stores import RunStore, StoreError
from hookline.tape import TapeHook, replay
from hookline.testing import ScriptedModel, call, reply

HALTED = StopSignal("halted", "halted by ada: it charges twice")
UNREADABLE = "halted because the stop switch cannot be read"


class World:
    """An agent whose tool ``pay`` halts all runs, and what happened."""

    def __init__(self, path: str | Path = ":memory:") -> None:
        self.store = RunStore(path)
        self.done: list[str] = []
        self.model = ScriptedModel([call("pay", to="bob"), reply("paid")])

    @property
    def ctx(self) -> AgentContext[Any]:
        return AgentContext(halts=self.store.halts)

    def halt(self) -> None:
        self.store.halts.halt("it charges twice", by="ada")

    def release(self) -> None:
        self.store.halts.release(by="ada")

    def agent(self, name: str = "bob", **options: Any) -> Agent:
        @tool
        def pay(to: str) -> str:
            """Pay somebody, and then halt everything."""
            self.done.append(f"paid {to}")
            self.halt()
            return "ok"

        return Agent(name, llm=self.model, tools=[pay], **options)


def test_a_halted_run_calls_no_model_and_no_hook_can_answer_for_it():
    world = World()
    world.halt()
    asked: list[str] = []

    @hook(BEFORE_LLM, priority=10_000)
    def answer(ctx, request):
        asked.append("llm")
        return HookResult.answer("from the cache")

    result = world.agent(hooks=[answer]).run("Pay bob.", ctx=world.ctx)
    assert (result.status, result.stop) == ("stopped", HALTED)
    assert (asked, world.done, world.model.requests) == ([], [], [])


def test_a_halt_during_a_tool_call_lets_the_call_finish_and_begins_no_other():
    world = World()
    result = world.agent().run("Pay bob.", ctx=world.ctx)
    assert (result.status, result.stop) == ("stopped", HALTED)
    assert world.done == ["paid bob"]
    assert len(world.model.requests) == 1
    assert [m.content for m in result.messages if m.role == "tool"] == ["ok"]


def test_after_the_release_the_conversation_goes_on():
    world = World()
    agent, ctx = world.agent(), world.ctx
    assert agent.run("Pay bob.", ctx=ctx).stop == HALTED
    world.release()
    assert agent.run("Go on.", ctx=ctx).reply == "paid"


def test_no_hook_can_keep_a_halted_run_going():
    world = World()

    @hook(ON_STOP)
    def stubborn(ctx, stopping):
        return HookResult.keep_going("go on")

    result = world.agent(hooks=[stubborn]).run("Pay bob.", ctx=world.ctx)
    assert (result.status, result.stop, len(world.model.requests)) == ("stopped", HALTED, 1)


def test_a_call_that_is_approved_while_the_run_is_halted_does_not_run():
    world = World()

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("really?")

    @hook("approval_requested")
    def approve(ctx, request):
        world.halt()
        return HookResult.approve()

    result = world.agent(hooks=[ask, approve]).run("Pay bob.", ctx=world.ctx)
    assert (result.stop, world.done) == (HALTED, [])
    assert result.messages[-1].content == "Cancelled: halted by ada: it charges twice."


def test_of_a_batch_the_calls_that_run_finish_and_the_calls_that_wait_for_a_slot_do_not_begin():
    world, started = World(), list[str]()
    running = threading.Event()

    @tool
    async def slow(name: str) -> str:
        """Work."""
        started.append(name)
        if name == "second":
            running.set()
            world.halt()
        while not running.is_set():
            await asyncio.sleep(0)
        return name

    batch = [call("slow", name=name) for name in ("first", "second", "third", "fourth")]
    agent = Agent("bob", llm=ScriptedModel([batch, reply("done")]), tools=[slow], max_parallel_tools=2)
    result = agent.run("Work.", ctx=world.ctx)
    assert (result.stop, started) == (HALTED, ["first", "second"])
    stopped = "Cancelled: halted by ada: it charges twice."
    assert [m.content for m in result.messages if m.role == "tool"] == ["first", "second", stopped, stopped]


@pytest.mark.parametrize("options", [{}, {"inherit": False}])
def test_nested_runs_are_halted_even_if_they_inherit_nothing(options: dict[str, Any]):
    world = World()
    inner = Agent("inner", llm=ScriptedModel([reply("never")]))
    found: list[Any] = []

    @tool
    async def delegate() -> str:
        """Ask another agent."""
        world.halt()
        found.append((await inner.arun("Work.", **options)).stop)
        return "ok"

    outer = Agent("outer", llm=ScriptedModel([call("delegate"), reply("done")]), tools=[delegate])
    assert outer.run("Work.", ctx=world.ctx).stop == HALTED
    assert (found, inner.model.requests) == ([HALTED], [])


def test_hooks_cannot_call_a_model_in_a_halted_run():
    world, refused = World(), list[str]()

    @hook(ON_RUN_END)
    async def summarise(ctx, result):
        try:
            await ctx.llm.complete("Summarise it.")
        except CallRefusedError as error:
            refused.append(error.status)

    assert world.agent(hooks=[summarise]).run("Pay bob.", ctx=world.ctx).stop == HALTED
    assert refused == ["stopped"]


def test_a_halted_run_is_marked_by_an_event():
    world, events = World(), list[Event]()
    world.agent().run("Pay bob.", ctx=world.ctx, sinks=[events.append])
    assert [event.signal for event in events if isinstance(event, Signalled)] == [HALTED]


@pytest.mark.parametrize("hooked", [True, False])
def test_the_replay_of_a_halted_run_stops_at_the_same_place(tmp_path, hooked: bool):
    world = World()

    @hook(AFTER_TOOL)
    def look(ctx, result):
        return None

    agent = world.agent(hooks=[look] if hooked else [])
    recorded = agent.run("Pay bob.", ctx=world.ctx, hooks=[TapeHook(tmp_path / "a.tape")])
    world.release()
    played = replay(tmp_path / "a.tape", agent)
    assert (played.first_difference, played.result.stop) == ("", HALTED)
    assert len(played.result.messages) == len(recorded.messages)
    assert world.done == ["paid bob"]


# Durable runs wait.


def test_a_durable_run_is_suspended_and_goes_on_after_the_release(tmp_path):
    world = World(tmp_path / "runs.db")
    agent = world.agent()
    with pytest.raises(RunHaltedError, match=r"is suspended \(halted by ada: it charges twice\): resume it") as halted:
        agent.run("Pay bob.", durable=world.store, run_id="pay")
    assert halted.value.halt.reason == "it charges twice"
    with pytest.raises(RunHaltedError):  # also in a process that begins while it is halted
        world.agent().run("Pay bob.", durable=RunStore(tmp_path / "runs.db"), run_id="pay")
    world.release()
    assert agent.run("Pay bob.", durable=world.store, run_id="pay").reply == "paid"
    assert (world.done, len(world.model.requests)) == (["paid bob"], 2)


def test_a_durable_run_that_is_halted_before_it_began_begins_after_the_release(tmp_path):
    store = RunStore(tmp_path / "runs.db")
    agent = Agent("bob", llm=ScriptedModel([reply("hi")]))
    store.halts.halt("stop")
    for _ in range(2):
        with pytest.raises(RunHaltedError):
            agent.run("Hello.", durable=store, run_id="one")
    assert agent.model.requests == []
    stored = store.journal.get("one")
    assert stored is not None
    assert stored.status == "interrupted"
    store.halts.release()
    assert agent.run("Hello.", durable=store, run_id="one").reply == "hi"


def test_the_result_of_a_durable_run_that_has_ended_is_returned_while_it_is_halted(tmp_path):
    store = RunStore(tmp_path / "runs.db")
    agent = Agent("bob", llm=ScriptedModel([reply("hi")]))
    agent.run("Hello.", durable=store, run_id="one")
    store.halts.halt("stop")
    assert agent.run("Hello.", durable=store, run_id="one").reply == "hi"


def test_the_calls_in_flight_of_a_durable_batch_finish_and_are_not_made_again(tmp_path):
    world, made = World(tmp_path / "runs.db"), list[str]()

    @tool
    async def work(name: str) -> str:
        """Work."""
        made.append(name)
        if name == "first":
            world.halt()
            await asyncio.sleep(0.1)
        return name

    batch = [call("work", name=name) for name in ("first", "second")]
    agent = Agent("bob", llm=ScriptedModel([batch, reply("done")]), tools=[work], max_parallel_tools=1)
    with pytest.raises(RunHaltedError):
        agent.run("Work.", durable=world.store, run_id="one")
    assert made == ["first"]
    world.release()
    assert agent.run("Work.", durable=world.store, run_id="one").reply == "done"
    assert made == ["first", "second"]


def test_a_call_of_a_durable_run_that_is_approved_while_it_is_halted_runs_after_the_release(tmp_path):
    world = World(tmp_path / "runs.db")

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("really?")

    @hook("approval_requested")
    def approve(ctx, request):
        world.halt()
        return HookResult.approve()

    agent = world.agent(hooks=[ask, approve])
    started: list[Event] = []
    with pytest.raises(RunHaltedError):
        agent.run("Pay bob.", durable=world.store, run_id="pay", sinks=[started.append])
    assert world.done == []
    assert not [event for event in started if isinstance(event, ToolStarted)]
    world.release()
    with pytest.raises(RunHaltedError):  # the tool halts again
        agent.run("Pay bob.", durable=world.store, run_id="pay")
    assert world.done == ["paid bob"]


# It fails closed.


class Broken(HaltSwitch):
    """A switch that can be read as long as ``works``."""

    def __init__(self) -> None:
        super().__init__()
        self.works = True

    def read(self) -> Halt | None:
        if not self.works:
            raise StoreError("the disk is on fire")
        return None


def test_a_switch_that_cannot_be_read_counts_as_on_after_a_grace_period(monkeypatch):
    switch = Broken()
    now = [1000.0]
    monkeypatch.setattr(halt_module, "monotonic", lambda: now[0])
    assert switch.current() is None
    switch.works = False
    now[0] += 9
    assert switch.current() is None
    now[0] += 2
    halted = switch.current()
    assert halted is not None
    assert (halted.text, halted.problem) == (UNREADABLE, "the disk is on fire")
    switch.works = True
    now[0] += 2
    assert switch.current() is None


def test_callers_that_come_while_the_switch_is_read_for_the_first_time_wait_for_it():
    began, may_end = threading.Event(), threading.Event()

    class Slow(HaltSwitch):
        def read(self) -> Halt | None:
            began.set()
            may_end.wait(10)
            return None

    switch, found = Slow(), list[Halt | None]()
    callers = [threading.Thread(target=lambda: found.append(switch.current())) for _ in range(2)]
    for caller in callers:
        caller.start()
        began.wait(10)
    callers[1].join(0.1)  # it does not say that the switch cannot be read
    may_end.set()
    for caller in callers:
        caller.join(10)
    assert found == [None, None]


def test_a_switch_that_was_never_read_stops_the_run_with_the_reason():
    switch = Broken()
    switch.works = False
    model = ScriptedModel([reply("never")])
    result = Agent("bob", llm=model).run("Hi.", ctx=AgentContext(halts=switch))
    assert result.stop == StopSignal("halted", UNREADABLE)
    assert model.requests == []


def test_a_database_that_does_not_exist_halts_nothing_and_one_that_vanished_does(tmp_path, monkeypatch):
    store = RunStore(tmp_path / "runs.db")
    assert store.halts.read() is None
    assert not (tmp_path / "runs.db").exists()
    store.open()
    assert store.halts.read() is None
    os.remove(tmp_path / "runs.db")
    with pytest.raises(StoreError, match="is gone"):
        store.halts.read()


def test_a_damaged_database_stops_runs(tmp_path):
    (tmp_path / "runs.db").write_bytes(b"not a database" * 1000)
    result = Agent("bob", llm=ScriptedModel([reply("never")])).run(
        "Hi.", ctx=AgentContext(halts=RunStore(tmp_path / "runs.db").halts)
    )
    assert result.stop == StopSignal("halted", UNREADABLE)


def test_a_switch_of_another_process_is_seen_while_a_run_is_going_on(tmp_path):
    here, elsewhere = RunStore(tmp_path / "runs.db"), RunStore(tmp_path / "runs.db")
    here.open()

    @tool
    async def wait() -> str:
        """Wait until the halt has arrived here."""
        elsewhere.halts.halt("stop", by="ada")
        while here.halts.latest() is None:
            await asyncio.sleep(0.01)
        return "ok"

    model = ScriptedModel([call("wait"), reply("never")])
    result = Agent("bob", llm=model, tools=[wait]).run("Wait.", ctx=AgentContext(halts=here.halts))
    assert (result.stop, len(model.requests)) == (StopSignal("halted", "halted by ada: stop"), 1)


def test_an_agent_obeys_the_switch_of_the_list_that_its_runs_are_in(tmp_path):
    world = World(tmp_path / "runs.db")
    result = world.agent(runs=world.store).run("Pay bob.")
    assert (result.status, result.stop, world.done) == ("stopped", HALTED, ["paid bob"])
    assert world.agent(runs=tmp_path / "runs.db").run("Go on.").stop == HALTED
    world.release()
    assert world.agent(runs=world.store).run("Go on.").reply == "paid"


def test_a_list_behind_a_link_to_a_folder_that_is_gone_cannot_be_read_so_nothing_begins(tmp_path):
    (tmp_path / "runs.db").symlink_to(tmp_path / "volume" / "runs.db")
    world = World(tmp_path / "other.db")
    result = world.agent(runs=tmp_path / "runs.db").run("Pay bob.")
    assert (result.stop.kind, world.done) == ("halted", [])
    (tmp_path / "volume").mkdir()  # a file that is not there yet has no halt
    assert world.agent(runs=RunStore(tmp_path / "runs.db")).run("Go on.").stop.kind != "halted"


def test_an_agent_inside_a_run_obeys_the_switch_of_its_own_list_too(tmp_path):
    world = World(tmp_path / "runs.db")
    inner, found = world.agent("inner", runs=world.store), []

    @tool
    async def ask() -> str:
        """Ask the other agent."""
        found.append((await inner.arun("Pay bob.")).stop)
        return "ok"

    result = Agent("outer", llm=ScriptedModel([call("ask"), reply("Done.")]), tools=[ask]).run("Go.")
    assert (result.reply, found, world.done) == ("Done.", [HALTED], ["paid bob"])


def test_halting_twice_keeps_the_first_halt_and_the_history_has_both_acts():
    halts = RunStore(":memory:").halts
    halts.halt("first", by="ada")
    assert halts.halt("second", by="bob") is None
    released = halts.release(by="eve")
    assert released is not None
    assert halts.release(by="eve") is None
    assert [(each.reason, each.by, each.released_by) for each in halts.history()] == [("first", "ada", "eve")]


def test_halts_takes_a_stop_switch():
    with pytest.raises(TypeError, match=r"halts= takes a stop switch such as RunStore\('runs.db'\).halts, not str"):
        AgentContext(halts="runs.db")  # type: ignore[arg-type]
