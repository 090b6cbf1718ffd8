"""Programs that combine runs, hooks, threads and cancellation keep every promise (DESIGN 4.5, 4.8, 6.6 and 7)."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import AFTER_TOOL, BEFORE_STEP, BEFORE_TOOL, AgentResult
from hookline._run import waiters
from hookline._run.journal import Append
from hookline.events import Event, RunFinished, RunStarted, SubagentEvent, ToolEnded, ToolSettled, ToolStarted
from hookline.payloads import Usage
from hookline.stores import RunStore, StoreError
from hookline.tape import Tape, TapeHook, areplay
from hookline.tape.format import CancellationEntry
from tests.durable_scene import call_keys
from tests.properties import examples

from .programs import (
    FEATURES,
    HANG,
    REPLY,
    Action,
    Call,
    Do,
    Feature,
    Fire,
    Ledger,
    Program,
    Programs,
    Rule,
    Script,
    Start,
    Warden,
    World,
    declared_point,
    execute,
    execute_foreign,
    programs,
    run_program,
)
from .strategies import STATUSES

pytestmark = pytest.mark.filterwarnings("ignore:.*blocks the event loop:RuntimeWarning")


@pytest.fixture(scope="module", autouse=True)
def _point() -> Iterator[None]:
    with declared_point():
        yield


@pytest.fixture(scope="module", autouse=True)
def _short_stall() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(waiters, "STALL_SECONDS", HANG / 4)
        yield


def check_guarded(ledger: Ledger) -> None:
    """Check that no tool function ran with arguments that the outermost guard had not accepted."""
    assert ledger.violations == [], ledger.violations


def check_ends(ledger: Ledger) -> None:
    """Check that each run ended once, with one status, and that each call and each attempt has one end."""
    assert set(ledger.ends.values()) <= {1}
    finished = {}
    for run_id, events in ledger.events.items():
        kinds = Counter(type(event) for event in events)
        assert kinds[RunStarted] == kinds[RunFinished] == ledger.ends[run_id] == 1, (run_id, kinds)
        assert isinstance(events[-1], RunFinished)
        finished[run_id] = events[-1].result
        check_calls(finished[run_id], events)
    for result in ledger.results:
        assert result.status in STATUSES
        if result.ids.run_id in finished:
            assert finished[result.ids.run_id].status == result.status
    flat = [event.event if isinstance(event, SubagentEvent) else event for event in ledger.stream]
    streamed = {event.ids.run_id for event in flat if isinstance(event, RunStarted)}
    inside = {run_id for run_id, result in finished.items() if not result.ids.agent.endswith("~")}
    assert {run_id for run_id in inside if not began_late(ledger, run_id)} <= streamed
    for run_id in {event.run_id for event in ledger.stream}:  # there are two after a handoff
        seqs = [event.seq for event in ledger.stream if event.run_id == run_id]
        assert seqs == list(range(1, len(seqs) + 1))
        check_nested([event for event in ledger.stream if event.run_id == run_id])


def began_late(ledger: Ledger, run_id: str) -> bool:
    """Return whether a run began after the end of a run around it: the thread of a tool may outlive a cancelled run."""
    began = ledger.events[run_id][0]
    assert isinstance(began, RunStarted)
    outer = ledger.events.get(began.ids.parent_run_id)
    return outer is not None and (outer[-1].at <= began.at or began_late(ledger, began.ids.parent_run_id))


def check_nested(stream: list[Event]) -> None:
    """Check that a run ended after all its nested runs, except detached ones."""
    nested = [event for event in stream if isinstance(event, SubagentEvent) and not event.ids.agent.endswith("~")]
    started = [event.ids.run_id for event in nested if isinstance(event.event, RunStarted)]
    assert sorted(started) == sorted(event.ids.run_id for event in nested if isinstance(event.event, RunFinished))
    assert isinstance(stream[-1], RunFinished)


def check_calls(result: AgentResult[Any], events: list[Any]) -> None:
    """Check that each call has one settled event and one result, and each attempt that started one end."""
    called = [call.id for message in result.messages for call in message.tool_calls]
    assert called == [message.call_id for message in result.messages if message.role == "tool"]
    assert Counter(event.call_id for event in events if isinstance(event, ToolSettled)) == Counter(called)
    ends = Counter((event.call_id, event.attempt) for event in events if isinstance(event, ToolEnded))
    starts = Counter((event.call_id, event.attempt) for event in events if isinstance(event, ToolStarted))
    assert set(ends.values()) <= {1}
    assert set(starts.values()) <= {1}
    assert starts.keys() <= ends.keys()
    assert {call_id for call_id, _ in ends} == set(called)


def used(replies: int) -> Usage:
    return Usage(REPLY.input_tokens * replies, REPLY.output_tokens * replies)


WIPE = Script(((Call(value=3),),))
"""An agent whose only call is refused."""


def calls(*does: Action, tool: Literal["work", "block"] = "work") -> Script:
    """Return an agent whose only call does this."""
    return Script(((Call(tool, does=does),),))


@settings(max_examples=examples(240), deadline=None)
@example(Program(calls(Start(WIPE, "run", beside_guard=True), tool="block"), Warden(busy=True)))
@example(Program(calls(Fire((Start(WIPE),)))))
@example(Program(calls(Fire((Start(WIPE),), "ctx", "thread"))))
@example(Program(Script(((Call(),),), (Rule(BEFORE_TOOL, "guard", "ask"),)), approver="edit to 3"))
@example(Program(Script(((Call(),),), (Rule(BEFORE_STEP, does=(Start(WIPE, "run"),)),))))
@given(programs)
def test_a_program_keeps_every_promise(program: Program) -> None:
    ledger = Ledger()
    world = World(program, ledger)

    async def play() -> AgentResult[Any] | None:
        result = await execute(world, world.root(), world.options())
        await world.settle()
        return result

    result = run_program(program, play)
    check_guarded(ledger)
    check_ends(ledger)
    assert world.budget.usage == used(ledger.replies[True])
    if result is not None:
        assert result.status in STATUSES


@settings(max_examples=examples(100), deadline=None)
@given(programs)
def test_a_program_in_the_loop_of_another_framework_keeps_every_promise(program: Program) -> None:
    program = replace(program, then=None, warden=replace(program.warden, layer="agent"))
    ledger = Ledger()
    world = World(program, ledger)

    async def play() -> None:
        await execute_foreign(world)
        await world.settle()

    run_program(program, play)
    check_guarded(ledger)
    assert set(ledger.ends.values()) <= {1}


def check_tape(program: Program) -> None:
    """Check that a replay of the tape of a program makes the same decisions, and calls no model and no tool."""
    recorded, replayed = Ledger(), Ledger()
    world = World(program, recorded)

    async def play() -> None:
        with TemporaryDirectory() as folder:
            path = Path(folder) / "run.tape"
            options = world.options()
            options["hooks"] = [*options.get("hooks", ()), TapeHook(path)]
            result = await execute(world, world.root(), options)
            await world.settle()
            check_guarded(recorded)
            check_ends(recorded)
            if result is None:
                return  # the caller was cancelled, and got no result
            other = World(program, replayed, replaying=True)
            given = other.options()
            again = await areplay(path, other.root(), ctx=given["ctx"], run_hooks=given.get("hooks", ()))
            await other.settle()
            reported = again.first_difference, again.stop_reason
            assert replayed.violations == [], replayed.violations
            if again.stop_reason.endswith("which is not replayed"):
                return  # a refused model call inside a tool: a replay says that it cannot repeat it
            if result.status != "cancelled" and not is_interrupted(again.tape):
                assert reported == ("", ""), reported
                assert (again.result.status, again.result.usage) == (result.status, result.usage)

    run_program(program, play)


def check_journal(program: Program, commits: int) -> None:
    """Check that no committed call is repeated if the process ends after some commits and another one continues."""
    ledger = Ledger()
    world = World(program, ledger)

    async def play() -> None:
        with TemporaryDirectory() as folder, closing(RunStore(Path(folder) / "runs.db")) as store:
            died = await die_after(commits, store, world)
            check_guarded(ledger)
            if not died:
                check_ends(ledger)
            committed = committed_calls(store)
            other = World(program, ledger)
            before = len(ledger.ran)
            result = await execute(other, other.root(), {**other.options(), "durable": store, "run_id": "r"}, "start")
            await other.settle()
            assert result is not None
            check_guarded(ledger)
            repeated = [at for key, at in ledger.ran[before:] if key in committed or not died]
            assert repeated == []
            events = store.events("r", limit=100_000)
            assert [event.seq for event in events] == list(range(1, len(events) + 1))
            assert events[-1].type == "run_finished", [event.type for event in events[-5:]]

    run_program(program, play)


COMBINATIONS: tuple[tuple[Feature, ...], ...] = ((), *((feature,) for feature in FEATURES), FEATURES)
"""No feature, each of them alone, and all together."""


@pytest.mark.parametrize("features", COMBINATIONS, ids=lambda features: "+".join(features) or "plain")
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_a_tape_of_a_program_replays_the_same(features: tuple[Feature, ...], data: st.DataObject) -> None:
    check_tape(data.draw(Programs(*features).programs()))


def test_a_fire_in_a_thread_is_on_the_tape_in_order_with_its_events() -> None:
    fails = Rule(BEFORE_TOOL, verb="block", on=1, is_async=True, inherit=False, does=(Do("fail"),))
    fire = Fire(
        (Start(Script(((Call(value=1),),), (fails,)), "stream", beside_guard=True),), "registry with ctx", "pool"
    )
    nested = Start(Script(((Call(value=1, does=(Do("yield"),)),),)), "start", "to_thread")
    agent = Script(((Call(),),), (Rule(BEFORE_TOOL, verb="block", is_async=True, priority=1, does=(nested,)),))
    warden = Warden(layer="run", is_async=True, in_thread=True, does=(fire,))
    for _ in range(5):
        check_tape(Program(agent, warden, door="stream", watched=False))


def test_the_error_of_a_hook_at_a_point_that_a_tool_fired_is_in_the_replayed_result() -> None:
    check_tape(Program(Script(((Call(does=(Fire((Do("fail"),), "ctx"),)),),)), Warden()))


def test_a_cancellation_from_a_thread_is_on_the_tape_before_its_consequences() -> None:
    retries = Rule(AFTER_TOOL, verb="retry", on=1, is_async=True, priority=-1)
    agent = Script(((Call("block", 1),),), (retries,))
    cancelled = Start(Script(((Call("block", does=(Do("cancel"),)),),)), "start", ctx="given")
    warden = Warden(layer="run", is_async=True, does=(Fire((cancelled,), "ctx"),))
    for _ in range(5):
        check_tape(Program(agent, warden, door="run"))


def test_the_cancellation_of_a_detached_run_with_hooks_of_its_own_is_on_the_tape() -> None:
    cancelled = Start(
        Script(((Call(value=1, does=(Do("cancel"),)),),)), "run", ctx="detached", inherit=False, beside_guard=True
    )
    fire = Fire((cancelled,), "registry with ctx", "to_thread")
    asks = Rule(BEFORE_TOOL, "guard", "ask", is_async=True, does=(fire,))
    check_tape(Program(Script(((Call(),),), (asks,)), Warden(is_async=True), approver="none", door="start"))


@pytest.mark.parametrize("features", COMBINATIONS, ids=lambda features: "+".join(features) or "plain")
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_a_durable_program_that_is_resumed_repeats_no_committed_call(
    features: tuple[Feature, ...], data: st.DataObject
) -> None:
    check_journal(data.draw(Programs(*features).programs()), data.draw(st.integers(1, 12)))


async def die_after(commits: int, store: RunStore, world: World) -> bool:
    """Run a program until its process ends after this many commits. Return false if the run ended before."""
    journal, number, aio = store.journal, 0, asyncio.get_running_loop()
    append, died = journal.append, False

    def append_until_death(write: Append) -> None:
        nonlocal number, died
        number += 1
        if number > commits:
            died = True
            aio.call_soon_threadsafe(run.cancel, "the process has ended")
            raise StoreError("the process has ended")
        append(write)

    journal.append = append_until_death  # type: ignore[method-assign]
    world.run = run = world.root().start("go", **world.options(), durable=store, run_id="r")
    world.cancel = lambda: run.cancel("from outside")
    await run.settled()
    await world.settle()
    journal.append = append  # type: ignore[method-assign]
    if died:
        with store.db.transaction(write=True) as db:
            db.execute("UPDATE durable_runs SET lease = 0 WHERE run_id = 'r'")
    return died


def committed_calls(store: RunStore) -> set[str]:
    """Return the keys of the calls of tools whose results are in the journal."""
    written = store.db.execute("SELECT data FROM journal ORDER BY seq")
    entries = [entry for (data,) in written for entry in msgspec.json.decode(data)]
    return {key for kind, key in call_keys(entries, "r") if kind == "answered"}


def is_interrupted(tape: Tape) -> bool:
    """Whether a run on the tape was cancelled: then only the decisions before that are the same (DESIGN 7.11)."""
    return any(isinstance(entry, CancellationEntry) for entry in tape.entries)
