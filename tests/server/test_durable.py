"""Durable served runs: another service continues them from their journals."""

import asyncio
import json
import os
import signal
import sys
import threading
import time
from contextlib import closing

import msgspec
import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, hook, observer, reply, tool
from hookline._run.journal import JOURNAL_FORMAT
from hookline.server import durable as durable_module
from hookline.server import executor as executor_module
from hookline.stores.approvals import ApprovalStore
from hookline.stores.errors import StoreError
from hookline.stores.run_figures import costs
from hookline.stores.run_statistics import run_stats
from hookline.stores.runs import RunStore
from hookline.teams import Team
from tests.journals import set_format
from tests.server import poison_scene
from tests.server.rig import ME, Blocker, make, read_all, service_at, serving
from tests.waiting import wait_until


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    """Look for runs often, and suspend them at once."""
    monkeypatch.setattr(durable_module, "CHECK_SECONDS", 0.02)
    monkeypatch.setattr(executor_module, "HOLD_SECONDS", 0.02)


def numbers(events):
    return [event["seq"] for event in events]


class Counter:
    """An agent whose tool notes each call, and whose second call does not return before it is opened."""

    def __init__(self):
        self.calls, self.seen = [], []
        self.open = asyncio.Event()

        @tool
        async def work(n: int, ctx) -> str:
            """Work."""
            self.calls.append((n, ctx.call_key))
            if n == 2:
                await self.open.wait()
            return f"did {n}"

        @observer("after_tool")
        def seen(ctx, payload):
            self.seen.append(payload.arguments["n"])

        self.parts = {"tools": [work], "hooks": [seen]}

    def agent(self):
        turns = [call("work", n=1), call("work", n=2), call("work", n=3), reply("done")]
        return Agent("helper", llm=ScriptedModel(turns, loop=True), **self.parts)


async def test_a_durable_run_completes_and_its_events_are_numbered_without_gap(tmp_path):
    async with serving(tmp_path, make([reply("hello")]), durable=True) as service:
        run = await service.start(ME, "Say hello.", session="s")
        run = await service.wait(run.id, ME)
        assert (run.status, run.reply) == ("completed", "hello")
        events = await read_all(service, run.id)
        assert numbers(events) == list(range(1, len(events) + 1))
        assert (events[0]["type"], events[-1]["type"]) == ("run_accepted", "run_closed")
        assert service._sessions.load(run.session_id).messages[-1].content == "hello"


async def test_the_next_server_continues_a_run_whose_server_was_stopped(tmp_path):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
        before = service._live[run.id].record.last_seq
        await wait_until(lambda: len(service._store.events(run.id)) == before)
        seen = [event.data for event in service._store.events(run.id)]
    counter.open.set()
    assert not service._store.get(run.id).is_over
    async with serving(tmp_path, counter.agent(), durable=True) as service:
        run = await service.wait(run.id, ME)
        assert run.status == "completed"
        events = await read_all(service, run.id)
        assert numbers(events) == list(range(1, len(events) + 1))
        assert [event.data for event in service._store.events(run.id)][: len(seen)] == seen
        assert service._store.journal.totals()["recoveries"][0] == 1
    assert [n for n, _ in counter.calls] == [1, 2, 2, 3]
    assert counter.calls[1] == counter.calls[2]
    assert counter.seen == [1, 2, 3]


async def test_calls_of_a_run_that_goes_on_at_another_server_are_counted_once(tmp_path):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
    counter.open.set()
    async with serving(tmp_path, counter.agent(), durable=True) as service:
        assert (await service.wait(run.id, ME)).status == "completed"
        assert costs(service.store, "hour").total.calls == 4
        stats = run_stats(service.store)
        assert (stats.totals.runs, stats.totals.model_calls, stats.totals.tool_calls) == (1, 4, 3)


async def test_calls_in_flight_finish_within_the_grace_period_and_no_other_call_begins(tmp_path):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=30) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
        draining = asyncio.create_task(service.drain())
        await wait_until(lambda: service._durable._is_leaving)
        counter.open.set()
        await draining
    assert [n for n, _ in counter.calls] == [1, 2]
    assert service._store.get(run.id).status == "queued"
    async with serving(tmp_path, counter.agent(), durable=True) as service:
        assert (await service.wait(run.id, ME)).status == "completed"
    assert [n for n, _ in counter.calls] == [1, 2, 3]


@pytest.mark.parametrize("moment", ["claimed", "conversation read"])
async def test_a_server_that_stops_while_a_run_begins_leaves_it_to_the_next_one(tmp_path, monkeypatch, moment):
    counter = Counter()
    counter.open.set()
    entered, goes_on = threading.Event(), threading.Event()

    def slowly(function):
        def wait(*args, **options):
            result = function(*args, **options)
            entered.set()
            assert goes_on.wait(60)
            return result

        return wait

    service = service_at(tmp_path, counter.agent(), durable=True)
    await service.open()
    first = await service.start(ME, "Work.", session="s")
    assert (await service.wait(first.id, ME)).status == "completed"
    owner, name = {"claimed": (service.store, "take_turn"), "conversation read": (service._sessions, "load")}[moment]
    with monkeypatch.context() as patched:
        patched.setattr(owner, name, slowly(getattr(owner, name)))
        run = await service.start(ME, "Work.", session="s")
        await wait_until(entered.is_set)
        closing = asyncio.create_task(service.close(grace=30))
        await wait_until(lambda: service._durable._is_leaving)
        goes_on.set()
        await asyncio.wait_for(closing, 90)
    assert len(counter.calls) == 3
    async with serving(tmp_path, counter.agent(), durable=True) as service:
        assert (await service.wait(run.id, ME)).status == "completed"
    assert len(counter.calls) == 6


@guard(BEFORE_TOOL, tools="pay")
def ask(ctx, request):
    return HookResult.ask("Pay this?")


def payer(paid):
    @tool
    def pay(amount: int) -> str:
        """Pay."""
        paid.append(amount)
        return "paid"

    def turn(request):
        return reply("Thanks.") if request.messages[-1].role == "tool" else call("pay", amount=5)

    return Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[pay], hooks=[ask])


async def wait_until_suspended(service, run_id):
    await wait_until(lambda: service._store.journal.get(run_id).status == "waiting" and run_id not in service._live)


@pytest.mark.parametrize("restart", [False, True])
async def test_a_run_that_waits_for_an_approval_holds_no_process_and_goes_on_after_the_decision(tmp_path, restart):
    paid = []
    async with serving(tmp_path, payer(paid), durable=True) as service:
        run = await service.start(ME, "Pay.")
        await wait_until_suspended(service, run.id)
        assert (await service.get(run.id, ME)).status == "waiting"
        assert service._durable._durable == {}
        if not restart:
            decide(tmp_path)
            assert (await service.wait(run.id, ME)).reply == "Thanks."
    if restart:
        decide(tmp_path)
        async with serving(tmp_path, payer(paid), durable=True) as service:
            assert (await service.wait(run.id, ME)).reply == "Thanks."
            assert numbers(events := await read_all(service, run.id)) == list(range(1, len(events) + 1))
    assert paid == [5]


@pytest.mark.parametrize("damaged", [b"[[", b'{"calls": 1}', b"\xff"])
async def test_a_waiting_row_that_cannot_be_read_is_reported_and_stops_no_server(tmp_path, damaged, caplog):
    async with serving(tmp_path, payer([]), durable=True) as service:
        run = await service.start(ME, "Pay.")
        await wait_until_suspended(service, run.id)
        with service._store.db.transaction(write=True) as db:
            db.execute("UPDATE durable_runs SET result = ? WHERE run_id = ?", (damaged, run.id))
    caplog.clear()  # the first server may have seen it before it stopped; each one reports it once
    async with serving(tmp_path, payer([]), durable=True) as service:
        other = await service.start(ME, "Pay.")
        await wait_until_suspended(service, other.id)
        decide(tmp_path, run_id=other.id)
        assert (await service.wait(other.id, ME)).reply == "Thanks."
        assert (await service.get(run.id, ME)).status == "waiting"
    told = [record.message for record in caplog.records if run.id in record.message and "hookline db" in record.message]
    assert len(told) == 1
    assert told[0].startswith(f"the calls that the run {run.id} waits for cannot be read (")


def decide(folder, decision="approve", run_id=""):
    store = ApprovalStore(folder / "approvals.db")
    (row,) = store.rows(status="pending", root_id=run_id)
    store.decide(row.id, decision=decision, digest=row.digest, by="anna")
    store.close()


async def test_a_question_whose_storing_is_under_way_when_the_server_stops_stays_open(tmp_path, monkeypatch):
    paid, ask, stopped = [], ApprovalStore.ask, threading.Event()

    def slow(self, *args, **options):
        row = ask(self, *args, **options)
        stopped.wait(20)  # it is stored, and the server does not know yet
        return row

    monkeypatch.setattr(ApprovalStore, "ask", slow)
    async with serving(tmp_path, payer(paid), durable=True) as service:
        run = await service.start(ME, "Pay.")
        await wait_until(lambda: service.approvals.rows(status="pending"))
    stopped.set()
    await asyncio.sleep(0.2)  # the thread goes on, and must not withdraw the question
    decide(tmp_path)
    async with serving(tmp_path, payer(paid), durable=True) as service:
        assert (await service.wait(run.id, ME)).reply == "Thanks."
    assert paid == [5]


async def test_a_question_that_is_asked_while_the_server_stops_stays_open(tmp_path, monkeypatch):
    monkeypatch.setattr(executor_module, "HOLD_SECONDS", 60.0)
    paid = []
    async with serving(tmp_path, payer(paid), durable=True) as service:
        run = await service.start(ME, "Pay.")
        await wait_until(lambda: service.approvals.rows(status="pending"))
    decide(tmp_path)
    async with serving(tmp_path, payer(paid), durable=True) as service:
        assert (await service.wait(run.id, ME)).reply == "Thanks."
    assert paid == [5]


async def test_the_runs_of_a_conversation_stay_in_order_while_one_waits(tmp_path):
    paid = []
    async with serving(tmp_path, payer(paid), durable=True) as service:
        first = await service.start(ME, "Pay.", session="s")
        await wait_until_suspended(service, first.id)
        second = await service.start(ME, "Pay again.", session="s")
        await asyncio.sleep(0.1)
        assert (await service.get(second.id, ME)).status == "queued"
        decide(tmp_path)
        await service.wait(first.id, ME)
        await wait_until_suspended(service, second.id)
        decide(tmp_path)
        assert (await service.wait(second.id, ME)).status == "completed"
        tasks = [m.content for m in service._sessions.load(first.session_id).messages if m.role == "user"]
    assert (tasks, paid) == (["Pay.", "Pay again."], [5, 5])


async def test_a_run_that_was_suspended_can_be_cancelled(tmp_path):
    paid, ended = [], []
    agent = payer(paid)
    agent.hooks.register(observer("on_run_end")(lambda ctx, result: ended.append(result.status)))
    async with serving(tmp_path, agent, durable=True) as service:
        run = await service.start(ME, "Pay.")
        await wait_until_suspended(service, run.id)
        run = await service.cancel(run.id, ME, "not needed")
        assert (run.status, run.reason) == ("cancelled", "not needed")
        assert service.approvals.rows(status="pending") == []
        events = await read_all(service, run.id)
        assert events[-1]["type"] == "run_closed"
    assert (paid, ended) == ([], ["cancelled"])


async def test_a_queued_run_can_be_cancelled_before_it_begins(tmp_path):
    blocker = Blocker()
    async with serving(tmp_path, blocker.agent(), durable=True, max_runs=1) as service:
        first = await service.start(ME, "One.")
        await wait_until(lambda: blocker.entered)
        second = await service.start(ME, "Two.")
        assert (await service.cancel(second.id, ME, "no")).status == "cancelled"
        blocker.open.set()
        assert (await service.wait(first.id, ME)).status == "completed"
    assert blocker.entered == 1


async def test_other_rules_do_not_continue_a_run_until_it_is_refused_with_a_reason(tmp_path, caplog):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
        (digest,) = service._durable.digests
    counter.open.set()
    other = counter.agent()
    other.hooks.register(ask)
    async with serving(tmp_path, other, durable=True) as service:
        (here,) = service._durable.digests
        (pinned,) = service._store.workers.pinned()
        assert (pinned.digest, pinned.digests, pinned.different) == (digest, (here,), ("hook ask",))
        problem = f"run {run.id} waits for a worker with digest {digest}; the running workers have {here} (different: "
        looked = await watched(service, "_look", times=3)
        assert (await service.get(run.id, ME)).status == "queued"
        assert looked.executed in ([], [run.id])  # nothing tries it again and again; a job of the queue may, once
        assert [record.message.startswith(problem) for record in caplog.records if run.id in record.message] == [True]
    async with serving(tmp_path, other, durable=True, pin_seconds=0.01) as service:
        run = await service.wait(run.id, ME)
    assert run.status == "failed"
    assert "other hooks, instructions or tools" in run.error
    assert run.error.endswith("(different: hook ask)")
    assert len(counter.calls) == 2


class Watched:
    """How often a method of durable runs was called, and which runs were executed meanwhile."""

    def __init__(self):
        self.calls, self.executed = 0, []


async def watched(service, name, times):
    """Wait until a method was called so often."""
    seen, runs = Watched(), service._durable
    real, execute = getattr(runs, name), runs._execute

    async def count(*args):
        await real(*args)
        seen.calls += 1

    async def note(run_id):
        seen.executed.append(run_id)
        await execute(run_id)

    setattr(runs, name, count)
    runs._execute = note
    await wait_until(lambda: seen.calls >= times)
    return seen


async def test_a_run_is_not_refused_while_another_process_has_its_version(tmp_path):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
        versions = service._store.workers._registered[1]
    other = counter.agent()
    other.hooks.register(ask)
    store = RunStore(tmp_path / "runs.db")
    store.workers.register(versions)  # as a worker that is busy
    elsewhere = service_at(tmp_path, other, durable=True, pin_seconds=1e-6)
    elsewhere._store.workers.register = lambda versions, slots: None
    await elsewhere.open()
    await watched(elsewhere, "_look", times=3)
    assert (await elsewhere.get(run.id, ME)).status == "queued"
    store.workers.unregister()
    assert (await elsewhere.wait(run.id, ME)).status == "failed"
    await elsewhere.close(grace=0)
    store.close()


async def test_a_run_that_is_unpinned_goes_on_with_other_rules(tmp_path):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
    counter.open.set()
    other = counter.agent()
    other.hooks.register(ask)
    async with serving(tmp_path, other, durable=True) as service:
        assert service._store.journal.unpin(run.id)
        assert (await service.wait(run.id, ME)).status == "completed"
    assert [n for n, _ in counter.calls] == [1, 2, 2, 3]


def stored(store):
    return [store.db.execute(f"SELECT * FROM {name}") for name in ("durable_runs", "journal", "events", "runs")]


@pytest.mark.parametrize("digest", ["of the other version", ""])  # without one, somebody has unpinned the run
async def test_a_run_of_another_journal_format_waits_unchanged_for_the_version_that_began_it(tmp_path, caplog, digest):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
        (own,) = service._durable.digests
    counter.open.set()
    with closing(RunStore(tmp_path / "runs.db")) as store:
        set_format(store, 1, digest)
    async with serving(tmp_path, counter.agent(), durable=True) as service:
        before = stored(service._store)
        says = f"run {run.id} cannot be continued: its journal has format 1"
        await wait_until(lambda: says in caplog.text)
        await watched(service, "_look", times=3)
        assert caplog.text.count(says) == 1
        assert "Continue it with the version of Hookline that began it" in caplog.text
        assert stored(service._store) == before
        set_format(service._store, JOURNAL_FORMAT, own)
        assert (await service.wait(run.id, ME)).status == "completed"
    assert [n for n, _ in counter.calls] == [1, 2, 2, 3]


@pytest.mark.parametrize("how", ["cancelled", "failed"])
async def test_a_run_of_another_journal_format_can_be_ended(tmp_path, how):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
    with closing(RunStore(tmp_path / "runs.db")) as store:
        set_format(store, 1, "of the other version")
    pin_seconds = 0.01 if how == "failed" else 3600
    async with serving(tmp_path, counter.agent(), durable=True, pin_seconds=pin_seconds) as service:
        if how == "cancelled":
            await service.cancel(run.id, ME)
        run = await service.wait(run.id, ME)
        assert run.status == how
        assert ("journals have format 1, and no worker of that version is left" in run.error) == (how == "failed")
    assert len(counter.calls) == 2


async def test_a_run_that_waits_for_an_approval_is_shown_and_refused_after_the_decision(tmp_path):
    paid = []
    async with serving(tmp_path, payer(paid), durable=True) as service:
        run = await service.start(ME, "Pay.")
        await wait_until_suspended(service, run.id)
    other = payer(paid)
    other.instructions = "Be strict."
    async with serving(tmp_path, other, durable=True, pin_seconds=0.01) as service:
        (pinned,) = service._store.workers.pinned()
        assert (pinned.status, pinned.different) == ("waiting", ("instructions of helper",))
        await watched(service, "_look", times=3)
        assert (await service.get(run.id, ME)).status == "waiting"  # a person may still decide
        decide(tmp_path)
        run = await service.wait(run.id, ME)
    assert run.status == "failed"
    assert paid == []


async def test_a_run_that_ends_its_processes_fails_after_some_attempts(tmp_path):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
    with service._store.db.transaction(write=True) as db:
        db.execute("UPDATE durable_runs SET attempts = 3")
    service._store.close()
    async with serving(tmp_path, counter.agent(), durable=True, max_attempts=3) as service:
        run = await service.wait(run.id, ME)
    assert (run.status, run.error.split(":")[0]) == ("failed", "the run was interrupted 3 times")


async def test_outages_of_the_database_do_not_count_as_ends_of_the_process(tmp_path, monkeypatch):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, max_attempts=1) as service:
        append = service._store.journal.append

        def fail(*args, **options):
            raise StoreError("the disk is full")

        run = await service.start(ME, "Work.")
        for outage in range(1, 4):
            await wait_until(lambda n=outage: len(counter.calls) == n + 1)
            monkeypatch.setattr(service._store.journal, "append", fail)
            service._live[run.id].run.steer("Hurry.")
            await wait_until(lambda: service._durable._unreleased)
            assert not service._live
            monkeypatch.setattr(service._store.journal, "append", append)
        await wait_until(lambda: len(counter.calls) == 5)
        counter.open.set()
        run = await service.wait(run.id, ME)
    assert (run.status, run.reply) == ("completed", "done")
    assert len({key for _, key in counter.calls}) == 3


async def test_a_run_whose_agent_no_process_knows_is_logged_once(tmp_path, caplog):
    service = service_at(tmp_path, make(name="helper"), durable=True, execute=False)
    await service.open()
    run = await service.start(ME, "Work.")
    await service.close(grace=0)
    service._store.close()
    async with serving(tmp_path, make(name="other"), durable=True) as service:
        looks, look = [], service._durable._look

        async def counted(*args):
            await look(*args)
            looks.append(args)

        service._durable._look = counted
        await wait_until(lambda: len(looks) > 3)
    told = [record.message for record in caplog.records if run.id in record.message]
    assert len(told) == 1, told
    assert f"the run {run.id} is left to others" in told[0]


async def test_a_conversation_that_was_saved_before_the_crash_is_not_saved_twice(tmp_path, monkeypatch, caplog):
    service = service_at(tmp_path, make([reply("hello")]), durable=True)
    real = service._store.journal.append

    def crash(write, **options):
        if write.status in ("completed", "interrupted"):
            raise durable_module.StoreError("the process ends here")
        real(write, **options)

    monkeypatch.setattr(service._store.journal, "append", crash)
    await service.open()
    run = await service.start(ME, "Hi.", session="s")
    await wait_until(lambda: service._sessions.load(run.session_id) is not None and not service._live)
    await service.close(grace=0)
    with service._store.db.transaction(write=True) as db:
        db.execute("UPDATE durable_runs SET lease = 0")
    async with serving(tmp_path, make([reply("hello")]), durable=True) as service:
        assert (await service.wait(run.id, ME)).status == "completed"
        messages = service._sessions.load(run.session_id).messages
        events = await read_all(service, run.id)
    assert [message.role for message in messages if message.role != "system"] == ["user", "assistant"]
    assert [event["type"] for event in events].count("run_closed") == 1
    assert f"run {run.id} is taken over from process {os.getpid()} on " in caplog.text
    assert json.loads(json.dumps(numbers(events))) == list(range(1, len(events) + 1))


async def test_recovery_with_another_decision_fails_the_run_before_any_call_and_names_the_hook(tmp_path):
    counter, strict = Counter(), []

    @guard(BEFORE_TOOL, name="mood")
    def mood(ctx, request):
        return HookResult.block("not today") if strict else None

    counter.parts["hooks"].append(mood)
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
    counter.open.set()
    strict.append(True)
    async with serving(tmp_path, counter.agent(), durable=True) as service:
        run = await service.wait(run.id, ME)
        events = await read_all(service, run.id)
    assert run.status == "failed"
    assert "mood" in run.error
    assert len(counter.calls) == 2
    assert numbers(events) == list(range(1, len(events) + 1))


async def test_a_tool_that_must_not_be_repeated_is_not_called_again(tmp_path):
    calls, told, hang = [], [], asyncio.Event()

    @tool(repeatable=False)
    async def pay() -> str:
        """Pay."""
        calls.append(1)
        await hang.wait()
        return "paid"

    def turn(request):
        if request.messages[-1].role == "tool":
            told.append(request.messages[-1].content)
            return reply("done")
        return call("pay")

    def agent():
        return Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[pay])

    async with serving(tmp_path, agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Pay.")
        await wait_until(lambda: calls)
    async with serving(tmp_path, agent(), durable=True) as service:
        assert (await service.wait(run.id, ME)).status == "completed"
    assert len(calls) == 1
    assert "outcome of this call is unknown" in told[0]


async def test_a_run_that_was_handed_over_between_agents_has_one_stream_of_events(tmp_path):
    counter = Counter()

    class Relay:
        """An agent whose second run follows the first, in the same served run."""

        name = "helper"

        def __init__(self):
            self.agent = counter.agent()
            self.hooks, self.tools, self.instructions = self.agent.hooks, self.agent.tools, ""

        def start(self, task, **options):
            return self.agent.start(task, **options)

        def follow_up(self, session, result):
            tasks = [message for message in session.messages if message.role == "user"]
            return "Go on." if len(tasks) == 1 else None

    def turn(request):
        done = sum(message.role == "tool" for message in request.messages)
        asked = sum(message.role == "user" for message in request.messages)
        return reply(f"part {asked}") if done == asked else call("work", n=asked)

    counter.agent = lambda: Agent("helper", llm=ScriptedModel([turn], loop=True), **counter.parts)
    async with serving(tmp_path, Relay(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.")
        await wait_until(lambda: len(counter.calls) == 2)
    counter.open.set()
    async with serving(tmp_path, Relay(), durable=True) as service:
        run = await service.wait(run.id, ME)
        events = await read_all(service, run.id)
    assert (run.status, run.reply) == ("completed", "part 1\n\npart 2")
    assert [n for n, _ in counter.calls] == [1, 2, 2]
    assert numbers(events) == list(range(1, len(events) + 1))
    assert [event["run_id"] for event in events if event["type"] == "run_started"] == [run.id, f"{run.id}_2"]


async def test_a_run_is_cancelled_although_it_is_just_being_taken_up(tmp_path, monkeypatch):
    blocker = Blocker(closed=False)
    async with serving(tmp_path, blocker.agent(), durable=True) as service:
        claim, claimed, go_on = service._store.take_turn, threading.Event(), threading.Event()

        def slow(*args, **options):
            made = claim(*args, **options)
            if not claimed.is_set():
                claimed.set()
                go_on.wait()
            return made

        monkeypatch.setattr(service._store, "take_turn", slow)
        run = await service.start(ME, "Work.")
        await wait_until(claimed.is_set)
        cancelling = asyncio.create_task(service.cancel(run.id, ME))
        await wait_until(lambda: run.id in service._durable._stop_reasons)
        await asyncio.wait([cancelling], timeout=0.1)
        go_on.set()
        assert (await cancelling).status == "cancelled"
    assert not blocker.entered


async def test_a_run_whose_end_was_stored_by_a_cancellation_is_returned_as_cancelled(tmp_path, monkeypatch):
    blocker = Blocker(closed=False)
    async with serving(tmp_path, blocker.agent(), durable=True) as service:
        journal = service._store.journal
        claim, append = service._store.take_turn, journal.append
        claimed, go_on, stored = threading.Event(), threading.Event(), threading.Event()

        def slow_claim(*args, **options):
            made = claim(*args, **options)
            if not claimed.is_set():
                claimed.set()
                go_on.wait()
            return made

        def slow_append(write, **options):
            append(write, **options)
            if write.status == "cancelled":  # it is committed, but this process does not know it yet
                stored.wait(60)

        monkeypatch.setattr(service._store, "take_turn", slow_claim)
        monkeypatch.setattr(journal, "append", slow_append)
        run = await service.start(ME, "Work.")
        await wait_until(claimed.is_set)
        cancelling = asyncio.create_task(service.cancel(run.id, ME))
        await wait_until(lambda: run.id in service._durable._stop_reasons)
        go_on.set()
        await wait_until(lambda: service._store.get(run.id).is_over)
        await asyncio.wait([cancelling], timeout=0.2)
        stored.set()
        assert (await cancelling).status == "cancelled"


async def test_a_run_is_cancelled_although_it_is_just_being_suspended(tmp_path, monkeypatch):
    paid = []
    async with serving(tmp_path, payer(paid), durable=True) as service:
        decided, entered, go_on = service._durable._decided, threading.Event(), threading.Event()

        def slow(run_id=""):
            if run_id:
                entered.set()
                go_on.wait()
            return decided(run_id)

        monkeypatch.setattr(service._durable, "_decided", slow)
        run = await service.start(ME, "Pay.")
        await wait_until(entered.is_set)
        cancelling = asyncio.create_task(service.cancel(run.id, ME))
        await wait_until(lambda: service._live[run.id].stop_reason)
        go_on.set()
        assert (await cancelling).status == "cancelled"
        assert service._store.journal.get(run.id).status == "cancelled"
    assert not paid


async def test_an_approver_that_waits_is_asked_again_after_growing_intervals(tmp_path):
    asked = []

    @tool
    def pay() -> str:
        """Pay."""
        return "paid"

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("May I?")

    @hook("approval_requested")
    def later(ctx, request):
        asked.append(time.monotonic())
        return HookResult.wait()

    agent = Agent("helper", llm=ScriptedModel([call("pay")], loop=True), tools=[pay], hooks=[ask, later])
    async with serving(tmp_path, agent, durable=True) as service:
        run = await service.start(ME, "Pay.")
        await wait_until(lambda: len(asked) == 2)
        durable = service._durable
        while not (stored := await asyncio.to_thread(durable._store.journal.runs, "waiting")):
            await asyncio.sleep(0.001)
        old = msgspec.structs.replace(stored[0], created=time.time() - 100, changed=time.time() - 5)
        assert not durable._can_go_on(old, set())
        assert durable._can_go_on(msgspec.structs.replace(old, changed=old.changed - 6), set())
        assert (await service.cancel(run.id, ME)).status == "cancelled"


async def test_a_served_team_goes_on_with_the_agent_that_took_over_after_a_restart(tmp_path):
    wiped, entered, opened = [], [], asyncio.Event()

    def team():
        @tool
        async def look() -> str:
            """Look."""
            entered.append("look")
            await opened.wait()
            return "seen"

        @tool
        def wipe() -> str:
            """Wipe."""
            wiped.append("wiped")

        @guard(BEFORE_TOOL, tools="wipe")
        def no_wiping(ctx, request):
            return HookResult.block("No wiping.")

        def clerk(request):
            return call("handoff", to="expert", message="yours")

        def expert(request):
            done = sum(message.role == "tool" for message in request.messages)
            return [call("look"), call("wipe"), reply("It is done.")][done - 1]

        made = Team()
        made.add(Agent("clerk", "At the desk.", llm=ScriptedModel([clerk], loop=True), tools=[made], hooks=[no_wiping]))
        made.add(Agent("expert", llm=ScriptedModel([expert], loop=True), tools=[made, look, wipe]))
        return made

    async with serving(tmp_path, team(), durable=True, grace=0) as service:
        assert [(agent.description, agent.tools) for agent in service.agents.list()] == [
            ("At the desk.", ("delegate", "handoff"))
        ]
        run = await service.start(ME, "Help.")
        await wait_until(lambda: entered == ["look"])
    opened.set()
    async with serving(tmp_path, team(), durable=True) as service:
        run = await service.wait(run.id, ME)
    assert (run.status, run.reply.splitlines()[-1]) == ("completed", "It is done.")
    assert entered == ["look", "look"]  # it was in flight
    assert wiped == []  # the guard of the clerk still applies


@pytest.mark.slow
async def test_a_poison_run_fails_after_its_attempts_and_other_runs_are_executed(tmp_path):
    service = service_at(tmp_path, poison_scene.make_agent(tmp_path), durable=True, execute=False)
    await service.open()
    poison = await service.start(ME, "Die.")
    other = await service.start(ME, "Live.")
    command = [sys.executable, "-m", "tests.server.poison_scene", str(tmp_path)]
    codes = []
    while not all(service._store.get(run.id).is_over for run in (poison, other)):
        assert len(codes) < 6
        worker = await asyncio.create_subprocess_exec(*command)
        stopping = asyncio.create_task(stop_when_over(service, (poison, other), tmp_path / "stop"))
        codes.append(await worker.wait())
        stopping.cancel()
    poison, other = service._store.get(poison.id), service._store.get(other.id)
    await service.close(grace=0)
    assert (other.status, other.reply) == ("completed", "alive")
    assert poison.status == "failed"
    assert poison.error.startswith("the run was interrupted 3 times: the processes that executed it ended.")
    assert (tmp_path / "deaths").read_text().split() == ["died"] * 3
    assert codes == [-signal.SIGKILL] * 3 + [0]


async def stop_when_over(service, runs, stop):
    await wait_until(lambda: all(service._store.get(run.id).is_over for run in runs))
    stop.touch()


class Outage:
    """Writes to journals that fail, or wait until they are released, depending on the status that they store."""

    def __init__(self, service, monkeypatch):
        self.entered, self.go_on = threading.Event(), threading.Event()
        self.put_back = []
        """The rows of runs that were given back, as they were then."""
        self._failing, self._waiting = frozenset(), frozenset()
        real = service._store.journal.append

        def append(write, **options):
            if write.status in self._failing:
                raise StoreError("the database cannot be used")
            if write.status in self._waiting:
                self.entered.set()
                self.go_on.wait(20)
            real(write, **options)
            if write.status == "interrupted":
                self.put_back.append(service._store.get(write.run_id))

        monkeypatch.setattr(service._store.journal, "append", append)

    def fail(self, *statuses):
        self._failing = frozenset(statuses)

    def hold(self, *statuses):
        self._waiting = frozenset(statuses)


@pytest.mark.parametrize("restart", [False, True])
async def test_a_run_whose_end_cannot_be_stored_goes_on_and_completes_once(tmp_path, monkeypatch, restart):
    counter = Counter()
    counter.open.set()
    async with serving(tmp_path, counter.agent(), durable=True) as service:
        outage = Outage(service, monkeypatch)
        outage.fail("completed")
        run = await service.start(ME, "Work.")
        await wait_until(lambda: outage.put_back)
        assert [(row.status, row.ended, row.reply) for row in outage.put_back[:1]] == [("queued", None, "")]
        if not restart:
            outage.fail()
            run = await service.wait(run.id, ME)
    if restart:
        async with serving(tmp_path, counter.agent(), durable=True) as service:
            run = await service.wait(run.id, ME)
            events = await read_all(service, run.id)
            assert numbers(events) == list(range(1, len(events) + 1))
            assert [event["type"] for event in events].count("run_closed") == 1
    assert (run.status, run.reply) == ("completed", "done")
    assert [n for n, _ in counter.calls] == [1, 2, 3]


async def test_a_server_that_stops_while_it_loads_the_session_of_a_run_stops_and_another_executes_the_run(
    tmp_path, monkeypatch
):
    counter = Counter()
    counter.open.set()
    entered, go_on = threading.Event(), threading.Event()

    async with serving(tmp_path, counter.agent(), durable=True) as service:
        sessions = service._executor._sessions
        load = sessions.load

        def load_late(session_id):
            entered.set()
            go_on.wait(60)
            return load(session_id)

        monkeypatch.setattr(sessions, "load", load_late)
        run = await service.start(ME, "Work.", session="s")
        await wait_until(entered.is_set)
        closing = asyncio.create_task(service.close(grace=30))
        await wait_until(lambda: service._store.journal.get(run.id).status == "interrupted")
        go_on.set()
        await asyncio.wait_for(closing, 90)
    assert counter.calls == []
    async with serving(tmp_path, counter.agent(), durable=True) as service:
        run = await service.wait(run.id, ME)
    assert (run.status, run.reply) == ("completed", "done")


async def test_a_run_that_an_earlier_process_left_with_an_end_in_its_row_goes_on(tmp_path):
    counter = Counter()
    async with serving(tmp_path, counter.agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Work.", session="s")
        await wait_until(lambda: len(counter.calls) == 2)
    with service._store.db.transaction(write=True) as db:
        db.execute("UPDATE runs SET ended = ?, elapsed = 1.0, reply = 'done'", (time.time(),))
    counter.open.set()
    async with serving(tmp_path, counter.agent(), durable=True) as service:
        second = await service.start(ME, "Work more.", session="s")
        run, second = await service.wait(run.id, ME), await service.wait(second.id, ME)
    assert (run.status, second.status) == ("completed", "completed")
    assert run.ended <= second.ended


@pytest.mark.parametrize("cancelled", [False, True])
async def test_nobody_sees_the_end_of_a_run_before_it_is_stored(tmp_path, monkeypatch, cancelled):
    blocker = Blocker(closed=cancelled)
    async with serving(tmp_path, blocker.agent(), durable=True) as service:
        outage = Outage(service, monkeypatch)
        outage.hold("completed", "cancelled")
        run = await service.start(ME, "Work.")
        if cancelled:
            await wait_until(lambda: blocker.entered)
            cancelling = asyncio.create_task(service.cancel(run.id, ME))
        await wait_until(outage.entered.is_set)
        shown = [await service.get(run.id, ME), *await service.list(ME), await service.wait(run.id, ME, timeout=0.01)]
        assert [(each.status, each.ended, each.reply) for each in shown] == [("running", None, "")] * 3
        outage.go_on.set()
        run = await (cancelling if cancelled else service.wait(run.id, ME))
        assert run.status == service._store.journal.get(run.id).status == ("cancelled" if cancelled else "completed")
        assert (await read_all(service, run.id))[-1]["status"] == run.status


async def test_a_cancellation_that_comes_while_a_run_is_being_suspended_ends_it_once(tmp_path, monkeypatch):
    paid, ended = [], []
    agent = payer(paid)
    agent.hooks.register(observer("on_run_end")(lambda ctx, result: ended.append(result.status)))
    async with serving(tmp_path, agent, durable=True) as service:
        outage = Outage(service, monkeypatch)
        outage.hold("waiting")
        run = await service.start(ME, "Pay.")
        await wait_until(outage.entered.is_set)
        cancelling = asyncio.create_task(service.cancel(run.id, ME, "not needed"))
        await wait_until(lambda: service._live[run.id].stop_reason)
        await asyncio.wait([cancelling], timeout=0.1)
        outage.go_on.set()
        run = await cancelling
        assert (run.status, run.reason) == ("cancelled", "not needed")
        assert service._store.journal.get(run.id).status == service._store.get(run.id).status == "cancelled"
    assert (paid, ended) == ([], ["cancelled"])


async def test_a_run_that_cannot_store_what_its_model_answers_calls_it_less_and_less_often(tmp_path, monkeypatch):
    """On a full disk, for example: otherwise, it would call its model each second until there is space."""
    full, asked, looked = [True], [], []

    def turn(request):
        asked.append(1)
        return reply("done")

    async with serving(tmp_path, Agent("helper", llm=ScriptedModel([turn], loop=True)), durable=True) as service:
        store, durable = service.store, service._durable
        append, to_execute = store.journal.append, store.to_execute

        def append_if_there_is_space(write, **options):
            if full and write.entries:
                raise StoreError("the disk is full")
            append(write, **options)

        def look(**options):
            looked.append(1)
            return to_execute(**options)

        monkeypatch.setattr(store.journal, "append", append_if_there_is_space)
        monkeypatch.setattr(store, "to_execute", look)
        monkeypatch.setattr(durable_module, "FIRST_PAUSE", 3600.0)
        monkeypatch.setattr(durable_module, "MAX_PAUSE", 3600.0)
        run = await service.start(ME, "task")
        await wait_until(lambda: durable._is_failing(run.id))
        before = len(looked)
        await wait_until(lambda: len(looked) > before + 20)
        assert len(asked) == 2  # at first it went on at once
        full.clear()
        monkeypatch.setattr(durable, "_is_failing", lambda run_id: False)  # an hour later
        assert (await service.wait(run.id, ME, timeout=60)).status == "completed"
        assert len(asked) == 3
