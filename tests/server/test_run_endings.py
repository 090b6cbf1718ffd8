"""Each run ends once with the right status, whatever happens to processes, files and tools."""

import asyncio
import json
import os
import threading
import time

import msgspec
import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, call, guard, reply, tool
from hookline._kernel.events import Event
from hookline._kernel.values import ToolCall, Usage
from hookline.models.scripted import ScriptedModel
from hookline.server import runs as runs_module
from hookline.server.events import RunAccepted
from hookline.server.live_run import LiveRun, RunRecorder
from hookline.stores.errors import StoreError
from hookline.stores.leases import process_start
from hookline.stores.runs import RunRecord, RunStore
from hookline.teams import Team

from ..waiting import wait_until
from .rig import ME, make, read_all, service_at, serving


def left_behind(**fields):
    """A run of a dead process."""
    program = {"created": time.time(), "host": os.uname().nodename, "pid": 2**22 + 1}
    about = ("helper", ME.id, "s", "served-s", "t", "c", "api", "task")
    return RunRecord(fields.pop("id", "run_left"), *about, status="running", **{**program, **fields})


async def test_concurrent_readers_close_an_abandoned_run_once(tmp_path):
    services = [service_at(tmp_path), service_at(tmp_path)]
    for service in services:
        await service.open()
    services[0]._store.write([left_behind()], [])
    try:
        seen = await asyncio.gather(*(service.get("run_left", ME) for service in services * 8))
        events = await read_all(services[0], "run_left")
    finally:
        for service in services:
            await service.close(grace=0)
    assert {(run.status, run.last_seq, run.ended) for run in seen} == {("interrupted", 1, seen[0].ended)}
    assert [(event["seq"], event["type"]) for event in events] == [(1, "run_closed")]


async def test_lists_and_counts_include_abandoned_runs_as_interrupted(tmp_path):
    async with serving(tmp_path) as service:
        service._store.write([left_behind()], [])
        assert await service.count(ME, states=["running"]) == 0
        service._store.write([left_behind(id="run_other")], [])
        assert await service.list(ME, states=["running"]) == []
        assert [run.status for run in await service.list(ME)] == ["interrupted"] * 2


@pytest.mark.skipif(process_start(os.getpid()) is None, reason="the system does not tell when programs began")
async def test_a_run_of_a_dead_process_is_interrupted_even_if_its_pid_was_reused(tmp_path):
    RunStore(tmp_path / "runs.db").write([left_behind(pid=os.getpid(), born=1.5)], [])  # as in a container
    async with serving(tmp_path) as service:
        assert (await service.get("run_left", ME)).status == "interrupted"


async def test_a_clock_change_ends_no_run_of_another_process(tmp_path, monkeypatch):
    run = left_behind(pid=os.getpid(), born=process_start(os.getpid()))
    RunStore(tmp_path / "runs.db").write([run], [])
    for jump in (-7200, 7200):
        now = time.time() + jump
        with monkeypatch.context() as patch:
            patch.setattr(time, "time", lambda now=now: now)
            async with serving(tmp_path) as service:
                assert (await service.get("run_left", ME)).status == "running"


class Relay:
    """An answerer that hands over endlessly."""

    name, hooks = "helper", ()

    def __init__(self, after=lambda: None):
        self.agent, self.after = make(), after

    def start(self, task, **options):
        return self.agent.start(task, **options)

    async def follow_up(self, session, result):
        self.after()
        return "go on"


async def test_a_run_that_hands_over_endlessly_is_stopped_and_not_completed(tmp_path):
    async with serving(tmp_path, Relay()) as service:
        run = await service.wait((await service.start(ME, "x")).id, ME)
    assert (run.status, run.reason) == ("stopped", "handed over more than 8 times")


async def test_replies_before_a_failed_handover_are_kept(tmp_path, caplog):
    def fail():
        raise RuntimeError("nobody to hand over to")

    async with serving(tmp_path, Relay(fail)) as service:
        run = await service.wait((await service.start(ME, "x", session="talk")).id, ME)
        kept = service._executor._sessions.load(run.session_id)
    assert (run.status, run.reply) == ("failed", "done")
    assert run.error == "the follow-up failed with an internal error: RuntimeError"
    assert [message.content for message in kept.messages] == ["x", "done"]
    assert "nobody to hand over to" in caplog.text


async def test_a_run_cancelled_between_two_agents_is_not_completed(tmp_path):
    stops = []
    async with serving(tmp_path, Relay(lambda: [stop() for stop in stops])) as service:
        stops.append(lambda: next(iter(service._live.values())).stop("cancelled by me"))
        run = await service.wait((await service.start(ME, "x")).id, ME)
    assert (run.status, run.reason) == ("cancelled", "cancelled by me")


async def test_a_late_cancellation_has_no_effect(tmp_path, monkeypatch):
    async with serving(tmp_path) as service:
        real = service._executor.save

        async def saved(session):
            next(iter(service._live.values())).stop("cancelled by me")
            return await real(session)

        monkeypatch.setattr(service._executor, "save", saved)
        run = await service.wait((await service.start(ME, "x")).id, ME)
    assert (run.status, run.reason, run.reply) == ("completed", "", "done")


async def test_a_tool_that_ignores_cancellation_does_not_block_the_shutdown(tmp_path, monkeypatch):
    monkeypatch.setattr(runs_module, "CANCEL_SECONDS", 0.2)
    free, entered = asyncio.Event(), asyncio.Event()

    @tool
    async def deaf() -> str:
        """Ignore the cancellation."""
        entered.set()
        while not free.is_set():
            try:
                await free.wait()
            except asyncio.CancelledError:
                pass
        return "at last"

    service = service_at(tmp_path, make([call("deaf"), reply("done")], tools=[deaf]))
    await service.open()
    run = await service.start(ME, "x")
    await asyncio.wait_for(entered.wait(), 30)
    handle = service._live[run.id].run
    await asyncio.wait_for(service.close(grace=0), 30)
    before = RunStore(tmp_path / "runs.db").events(run.id)
    assert RunStore(tmp_path / "runs.db").get(run.id).status == "interrupted"
    assert [task for task in asyncio.all_tasks() if task.get_name().startswith("hookline-run")] == []
    free.set()
    await handle.settled()
    assert RunStore(tmp_path / "runs.db").events(run.id) == before
    assert before[-1].type == "run_closed"


async def test_an_invalid_history_leaves_no_run_behind(tmp_path):
    async with serving(tmp_path) as service:
        with pytest.raises(TypeError):
            await service.start(ME, "x", history=[3])
        assert service.unfinished() == []
        assert await service.count(ME) == 0


@pytest.mark.parametrize("durable", [False, True])
async def test_a_caller_that_disconnects_while_the_run_is_being_stored_starts_it_once(tmp_path, monkeypatch, durable):
    async with serving(tmp_path, durable=durable) as service:
        accept, storing, go_on = service._store.accept, threading.Event(), threading.Event()

        def slow(*args, **options):
            storing.set()
            go_on.wait(20)
            return accept(*args, **options)

        monkeypatch.setattr(service._store, "accept", slow)
        first = asyncio.create_task(service.start(ME, "x", idempotency_key="k", request={"task": "x"}))
        await wait_until(storing.is_set)
        first.cancel()
        await asyncio.wait([first])
        go_on.set()
        again = await service.start(ME, "x", idempotency_key="k", request={"task": "x"})
        assert (await service.wait(again.id, ME)).status == "completed"
        assert [run.id for run in await service.list(ME)] == [again.id]


class Odd(Event, frozen=True):
    what: object = None


def test_an_event_that_cannot_be_encoded_leaves_no_gap():
    stored = []
    live = LiveRun(left_behind(), lambda run, event: stored.append(event) if event else None)
    live.add_event(RunAccepted())
    with pytest.raises(TypeError):
        live.add_event(Odd(what=object()))
    live.add_event(RunAccepted())
    assert [event.seq for event in stored] == [1, 2]
    live.mark_stored(2)
    assert [json.loads(event.data)["seq"] for event in live.events_after(1, 10)] == [2]


async def test_numbers_too_large_for_the_store_do_not_affect_other_runs(tmp_path):
    class Model(ScriptedModel):
        async def complete(self, *args, **kwargs):
            answer = await super().complete(*args, **kwargs)
            return answer.replace(usage=Usage(2**70, 1))

    agents = Agent("huge", llm=Model([reply("a")], loop=True)), make()
    async with serving(tmp_path, *agents) as service:
        huge, usual = await service.start(ME, "1", agent="huge"), await service.start(ME, "2", agent="helper")
        for run in (huge, usual):
            assert (await service.wait(run.id, ME)).status == "completed"
            events = await read_all(service, run.id)
            assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert service.problem == ""


async def test_waiting_for_writes_in_progress_causes_no_empty_write(tmp_path):
    writes, free = [], threading.Event()

    class Store:
        def write(self, runs, events, *records):
            writes.append(list(runs))
            free.wait()

    writer = RunRecorder(Store(), lambda events: None, lambda ids: None, lambda: None)
    writer.put(left_behind())
    await wait_until(lambda: writes)
    flushed = asyncio.create_task(writer.flushed())
    await asyncio.sleep(0)
    free.set()
    await flushed
    assert len(writes) == 1
    assert writer.problem == ""
    await writer.close(1)


async def test_an_unknown_write_error_loses_no_event(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.server.live_run.RETRY_SECONDS", 0.01)
    real, broken = RunStore.write, []

    def write(self, runs, events, *records):
        if broken:
            raise MemoryError(broken.pop())
        real(self, runs, events, *records)

    monkeypatch.setattr(RunStore, "write", write)
    async with serving(tmp_path) as service:
        run = await service.start(ME, "x")
        broken.append("no room")
        assert (await service.wait(run.id, ME)).status == "completed"
        await wait_until(lambda: not service.problem and not service._live)
    events = RunStore(tmp_path / "runs.db").events(run.id)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert events[-1].type == "run_closed"


async def test_calls_of_subagents_wait_under_the_run_each_separately(tmp_path):
    free = asyncio.Event()

    @tool
    async def act(n: int) -> str:
        """Act."""
        await free.wait()
        return f"did {n}"

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("May it?") if request.name == "act" else None

    def calls(n):  # the same id in both
        return Agent(f"inner_{n}", llm=ScriptedModel([ToolCall("same", "act", {"n": n}), reply("x")]), tools=[act])

    team = Team(max_handoffs=0)
    both = [call("delegate", to=f"inner_{n}", task="go") for n in (1, 2)]
    outer = make([both, reply("done")], tools=[team], hooks=[ask])
    for agent in (outer, calls(1), calls(2)):
        team.add(agent)
    async with serving(tmp_path, outer) as service:
        run, store = await service.start(ME, "x"), service.approvals
        await wait_until(lambda: len(store.rows(status="pending", root_id=run.id)) == 2)
        first, second = store.rows(owner=ME.id)
        assert (first.call_id, second.call_id, first.root_id) == ("same", "same", run.id)
        assert len({first.run_id, second.run_id, run.id}) == 3
        states = []
        for row in (first, second):
            await wait_until(lambda: len(service._live[run.id].pending) == len(store.rows(status="pending")))
            states.append((await service.get(run.id, ME)).status)
            store.decide(row.id, decision="approve", digest=row.digest, by="ann")
        await wait_until(lambda: service._live[run.id].record.status == "running")
        free.set()
        over = await service.wait(run.id, ME)
    assert (states, over.status) == (["waiting", "waiting"], "completed")


async def test_the_latest_record_of_a_run_is_stored_after_a_write_error(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.server.live_run.RETRY_SECONDS", 0.01)
    store, failed, go_on = RunStore(tmp_path / "runs.db"), threading.Event(), threading.Event()
    real = store.write

    def write(*what):
        if not failed.is_set():
            failed.set()
            assert go_on.wait(60)
            raise StoreError("the disk is full")
        real(*what)

    store.write = write
    recorder = RunRecorder(store, lambda events: None, lambda ids: None, lambda: None)
    mine, other = left_behind(), left_behind(id="run_other")
    recorder.put(mine)
    recorder.put(other)
    await wait_until(failed.is_set)
    recorder.put(msgspec.structs.replace(mine, status="completed"))
    go_on.set()
    await wait_until(lambda: recorder._task is None)
    await recorder.close(60)
    assert (store.get(mine.id).status, store.get(other.id).status) == ("completed", "interrupted")


async def test_a_run_cancelled_while_queued_stays_cancelled(tmp_path):
    free = asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        await free.wait()
        return "x"

    async with serving(tmp_path, make([call("wait"), reply("done")], tools=[wait])) as service:
        first, second = [await service.start(ME, text, session="talk") for text in "12"]
        await wait_until(lambda: service._executor._session_locks._locks and service._live[first.id].run)
        await asyncio.sleep(0)  # the second run now waits for the first
        assert (await service.cancel(second.id, ME)).status == "cancelled"
        free.set()
        await service.wait(first.id, ME)
        events = await read_all(service, second.id)
        await wait_until(lambda: not service._live)
        assert (service._executor._session_locks._locks, service._keys._locks._locks, service.counts()["readers"]) == (
            {},
            {},
            0,
        )
    assert [(event["type"], event.get("status")) for event in events] == [
        ("run_accepted", None),
        ("run_closed", "cancelled"),
    ]
    stored = RunStore(tmp_path / "runs.db").get(second.id)
    assert (stored.status, stored.reason) == ("cancelled", "cancelled by me")


async def test_opening_the_service_closes_the_runs_of_dead_processes(tmp_path):
    RunStore(tmp_path / "runs.db").write([left_behind()], [])
    async with serving(tmp_path):
        assert RunStore(tmp_path / "runs.db").get("run_left").status == "interrupted"


async def test_a_returned_result_is_stored(tmp_path, monkeypatch):
    async with serving(tmp_path) as service:
        run = await service.start(ME, "x")
        monkeypatch.setattr("hookline.server.live_run.COLLECT_SECONDS", 0.3)
        returned = await service.wait(run.id, ME)
        assert RunStore(tmp_path / "runs.db").get(run.id) == returned
    assert returned.status == "completed"
