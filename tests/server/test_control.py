"""Messages to durable runs: each is carried out once, also if no process, or one that is killed, has the run."""

import asyncio
import signal
import threading
from contextlib import asynccontextmanager

import pytest

from hookline import Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.server import durable as durable_module
from hookline.server import executor
from hookline.server.agents import Agents
from hookline.server.control import ControlReceiver
from hookline.server.errors import ConflictError
from hookline.server.options import ServerOptions
from hookline.server.runs import RunService
from hookline.stores.approvals import ApprovalStore
from hookline.stores.runs import RunStore
from hookline.stores.sessions import JsonSessionStore
from tests.server.fleet import fleet_of
from tests.server.rig import ME, read_all, serving
from tests.waiting import block_until, wait_until


@guard("before_tool", tools="pay")
def ask(ctx, request):
    return HookResult.ask("really?")


@tool
async def pay() -> str:
    """Pay."""
    return "paid"


def payer():
    """An agent whose call waits for approval, and whose reply is everything that the user said."""

    def turn(request):
        if request.messages[-1].role == "user" and len(request.messages) == 1:
            return call("pay")
        return reply(" ".join(message.content for message in request.messages if message.role == "user"))

    return Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[pay], hooks=[ask])


@asynccontextmanager
async def serving_at(url, folder, **options):
    """A service that shares a PostgreSQL database with others."""
    store, approvals = RunStore(url, **options), ApprovalStore(url)
    service = RunService(
        Agents({"helper": payer()}),
        store,
        approvals=approvals,
        sessions=JsonSessionStore(folder / "sessions"),
        options=ServerOptions(durable=True),
    )
    await service.open()
    try:
        yield service
    finally:
        await service.close(grace=0)
        approvals.close()
        store.close()


@pytest.fixture
def suspends_at_once(monkeypatch):
    monkeypatch.setattr(executor, "HOLD_SECONDS", 0.01)
    monkeypatch.setattr(durable_module, "CHECK_SECONDS", 0.02)


async def wait_until_suspended(service, run_id):
    await wait_until(lambda: service._store.journal.get(run_id).status == "waiting" and not service._live)


def approve(service):
    (row,) = service.approvals.rows(status="pending")
    service.approvals.decide(row.id, decision="approve", digest=row.digest, by="anna")


async def test_a_message_does_not_overtake_one_that_waits_for_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.server.control.ANSWER_SECONDS", 0.01)
    sent, take = asyncio.Event(), ControlReceiver._take

    async def take_late(receiver):
        await sent.wait()
        await take(receiver)

    monkeypatch.setattr(ControlReceiver, "_take", take_late)
    gate, begun = asyncio.Event(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        begun.set()
        await gate.wait()
        return "waited"

    model = ScriptedModel(
        [call("wait"), lambda request: " ".join(m.content for m in request.messages if m.role == "user")]
    )
    async with serving(tmp_path, Agent("helper", llm=model, tools=[wait]), durable=True) as service:
        run = await service.start(ME, "Go.")
        await begun.wait()
        await service._control_sender.steer(run.id, "one", (), lambda: asyncio.sleep(0, False))
        await service.steer(run.id, ME, "two")
        sent.set()
        await wait_until(lambda: service._store.controls.waiting(run.id) == 0)
        gate.set()
        assert (await service.wait(run.id, ME)).reply == "Go. one two"


@pytest.mark.usefixtures("suspends_at_once")
@pytest.mark.parametrize("restart", [False, True])
async def test_messages_to_a_run_that_was_suspended_are_read_in_order_when_it_goes_on(tmp_path, monkeypatch, restart):
    monkeypatch.setattr("hookline.server.control.ANSWER_SECONDS", 0.01)
    async with serving(tmp_path, payer(), durable=True) as service:
        run = await service.start(ME, "Pay.")
        await wait_until_suspended(service, run.id)
        await service.steer(run.id, ME, "one")
        await service.steer(run.id, ME, "two")
        if not restart:
            approve(service)
            run = await service.wait(run.id, ME)
    if restart:
        async with serving(tmp_path, payer(), durable=True) as service:
            approve(service)
            run = await service.wait(run.id, ME)
            with pytest.raises(ConflictError):
                await service.steer(run.id, ME, "three")
    assert (run.status, run.reply) == ("completed", "Pay. one two")


async def test_a_message_to_a_running_run_is_in_its_journal_when_it_is_accepted(tmp_path):
    entered = asyncio.Event()

    @tool
    async def hang() -> str:
        """Hang."""
        entered.set()
        await asyncio.sleep(60)
        return "never"

    def agent():
        def turn(request):
            return reply("done") if request.messages[-1].role == "user" and entered.is_set() else call("hang")

        return Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[hang])

    async with serving(tmp_path, agent(), durable=True, grace=0) as service:
        run = await service.start(ME, "Go.")
        await entered.wait()
        await service.steer(run.id, ME, "stop that")
        with service._store.db.transaction() as db:
            rows = db.execute("SELECT data FROM journal WHERE run_id = ?", (run.id,)).fetchall()
    assert sum(b"stop that" in bytes(data) for (data,) in rows) == 1


@pytest.mark.usefixtures("suspends_at_once")
@pytest.mark.parametrize("elsewhere", [False, True])
async def test_a_message_to_a_run_that_is_being_suspended_is_read_once_when_it_goes_on(
    tmp_path, monkeypatch, elsewhere
):
    monkeypatch.setattr("hookline.server.control.ANSWER_SECONDS", 0.01)
    async with serving(tmp_path, payer(), durable=True) as service:
        append, storing, go_on = service._store.journal.append, threading.Event(), threading.Event()

        def slow(write, **options):
            if write.status == "waiting":
                storing.set()
                go_on.wait(20)
            append(write, **options)

        monkeypatch.setattr(service._store.journal, "append", slow)
        run = await service.start(ME, "Pay.")
        await wait_until(storing.is_set)
        if elsewhere:  # the message comes from another server
            await service._control_sender.steer(run.id, "now", (), lambda: asyncio.sleep(0, result=False))
            await service._control_receiver._take()
        else:
            steering = asyncio.create_task(service.steer(run.id, ME, "now"))
            await asyncio.wait([steering], timeout=0.1)
        go_on.set()
        if not elsewhere:
            await steering
        await wait_until_suspended(service, run.id)
        approve(service)
        assert (await service.wait(run.id, ME)).reply == "Pay. now"


@pytest.mark.usefixtures("suspends_at_once")
async def test_a_cancellation_that_comes_too_late_for_the_process_that_suspends_a_run_ends_the_run(
    tmp_path, postgres_url, monkeypatch
):
    """The message is stored when the process of the run has looked for messages for the last time."""
    async with serving_at(postgres_url, tmp_path) as executing, serving_at(postgres_url, tmp_path) as other:
        other._durable._queue.pause()
        run = await executing.start(ME, "Pay.")
        await wait_until(lambda: run.id in executing._live)
        send = other._control_sender.cancel

        async def late(run_id, reason):
            await wait_until_suspended(executing, run_id)
            await send(run_id, reason)

        monkeypatch.setattr(other._control_sender, "cancel", late)
        assert (await other.cancel(run.id, ME, "not needed")).status == "cancelled"
        assert executing._store.journal.get(run.id).status == "cancelled"


@pytest.mark.usefixtures("suspends_at_once")
async def test_a_run_that_is_cancelled_while_it_is_suspended_does_not_wait_for_the_queue(
    tmp_path, postgres_url, monkeypatch
):
    """A job of a run waits for the job before it, and nobody announces when that ends."""
    async with serving_at(postgres_url, tmp_path, lease_seconds=3600) as service:
        decided, cancelling = service._durable._decided, []

        def cancel_first(run_id=""):
            if run_id and not cancelling:
                loop.call_soon_threadsafe(lambda: cancelling.append(loop.create_task(service.cancel(run.id, ME))))
                block_until(lambda: service._live[run.id].stop_reason)
            return decided(run_id)

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(service._durable, "_decided", cancel_first)
        run = await service.start(ME, "Pay.")
        await wait_until(lambda: cancelling)
        assert (await cancelling[0]).status == "cancelled"


# Processes. The worker is killed with the message in its hands; the next one gets it again.

MOMENTS = ("control_taken 1", "control_unwritten 1", "control_written 1")


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_killed_worker_leaves_a_message_to_the_next_one_and_the_run_gets_it_once(
    tmp_path, postgres_url, moment
):
    async with fleet_of(tmp_path, postgres_url, workers=0, pace=0.2) as fleet:
        await fleet.add(KILL_AT=moment)
        run = await fleet.service.start(ME, "go")
        await fleet.executing(run.id)
        await fleet.service.steer(run.id, ME, "canary")
        await wait_until(lambda: fleet.workers[0].poll() is not None)
        assert fleet.workers[0].returncode == -signal.SIGKILL
        await fleet.add()
        await fleet.service.wait(run.id, ME, timeout=60)
        await fleet.check(run.id)
        events = await read_all(fleet.service, run.id)
        assert [event["text"] for event in events if event["type"] == "steered"] == ["canary"]


@pytest.mark.slow
@pytest.mark.parametrize("moment", MOMENTS)
async def test_a_killed_worker_leaves_a_cancellation_to_the_next_one(tmp_path, postgres_url, monkeypatch, moment):
    monkeypatch.setattr("hookline.server.runs.CANCEL_SECONDS", 0.01)
    async with fleet_of(tmp_path, postgres_url, workers=0, pace=0.2) as fleet:
        await fleet.add(KILL_AT=moment)
        run = await fleet.service.start(ME, "go")
        await fleet.executing(run.id)
        monkeypatch.setattr(durable_module, "CANCEL_SECONDS", 0.01)
        is_over = (await fleet.service.cancel(run.id, ME, "enough")).is_over
        assert not is_over or moment == "control_written 1"  # the end may be in the same write
        await wait_until(lambda: fleet.workers[0].poll() is not None)
        await fleet.add()
        run = await fleet.service.wait(run.id, ME, timeout=60)
        assert (run.status, run.reason) == ("cancelled", "enough")
        ended = [line for line in fleet.world.lines("ended") if line[0] == run.id]
        assert {line[1] for line in ended} == {"cancelled"}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 0])
async def test_a_run_that_was_suspended_is_cancelled_through_a_server_that_executes_nothing(
    tmp_path, postgres_url, monkeypatch, workers
):
    (tmp_path / "later").touch()
    async with fleet_of(tmp_path, postgres_url, workers=1, pace=0.01) as fleet:
        run = await fleet.service.start(ME, "go")
        await wait_until(lambda: fleet.store.journal.get(run.id).status == "waiting")
        if not workers:
            await fleet.end(fleet.workers[0], signal.SIGTERM)
            monkeypatch.setattr(durable_module, "CANCEL_SECONDS", 0.1)
        run = await fleet.service.cancel(run.id, ME, "not needed")
        assert (run.status, run.reason) == ("cancelled", "not needed")
        # A worker calls the hooks of its end; without one, the run ends all the same.
        ended = [line[1] for line in fleet.world.lines("ended") if line[0] == run.id]
        assert ended == ["cancelled"] * workers
