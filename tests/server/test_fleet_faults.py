"""Servers and workers under load while they, or the database, fail: nothing is lost, and nothing is done twice.

What is checked of each run is in ``Fleet.check``: it completed; its events have no gap and no repetition; its
conversation is valid; and a tool was called again only if the journal says that the call was in flight.
"""

import asyncio
import random
import signal

import pytest

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.server.agents import Agents
from hookline.server.options import ServerOptions
from hookline.server.runs import RunService
from hookline.stores.approvals import ApprovalStore
from hookline.stores.errors import StoreError
from hookline.stores.runs import RunStore
from hookline.stores.sessions import JsonSessionStore
from tests.postgres_cluster import Cluster
from tests.server.fleet import fleet_of
from tests.server.rig import ME, read_all
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture
def own_cluster():
    """A PostgreSQL server that a test may stop. It keeps what it has committed, as a server does."""
    cluster = Cluster(fsync="on")
    yield cluster
    cluster.remove()


async def complete(fleet, runs):
    """Wait for all runs, check them, and return how often a call was repeated."""
    repeated = 0
    for run in runs:
        await fleet.service.wait(run.id, ME)
        repeated += sum(count - 1 for count in (await fleet.check(run.id)).values())
    return repeated


async def test_nothing_is_lost_when_workers_are_killed_paused_and_stopped_under_load(tmp_path, postgres_url):
    rng = random.Random(21)
    async with fleet_of(tmp_path, postgres_url, workers=3, pace=0.15) as fleet:
        runs, lost = [], {}
        for how in (signal.SIGSTOP, signal.SIGKILL, signal.SIGTERM, signal.SIGSTOP):
            batch = [await fleet.service.start(ME, "go") for _ in range(3)]
            runs += batch
            await fleet.executing(batch[0].id)
            while not (held := [each for each in fleet.working() if each not in lost and fleet.held_by(each)]):
                await asyncio.sleep(0.01)
            victim = rng.choice(held)
            if how == signal.SIGSTOP:
                victim.send_signal(how)
                lost[victim] = fleet.held_by(victim)
            else:
                await fleet.end(victim, how)
            await fleet.add()
        # The paused workers wake up when others have taken what they held.
        for worker, held in lost.items():
            await wait_until(lambda p=worker.pid, held=held: all(fleet.store.journal.get(id).pid != p for id in held))
            worker.send_signal(signal.SIGCONT)
        await complete(fleet, runs)
        for worker in lost:
            await fleet.end(worker, signal.SIGTERM)
            assert worker.returncode == 0, (tmp_path / "output").read_text()[-2000:]
        # After they woke up, they have changed nothing of these runs.
        await complete(fleet, runs)


@pytest.mark.parametrize("how", ["immediate", "fast"])
async def test_nothing_is_lost_when_the_database_restarts_under_load(tmp_path, own_cluster, how):
    async with fleet_of(tmp_path, own_cluster.url(), workers=2, pace=0.1) as fleet:
        pids = {worker.pid for worker in fleet.workers}
        runs = []
        for _ in range(2):
            batch = [await fleet.service.start(ME, "go") for _ in range(5)]
            runs += batch
            await fleet.executing(batch[0].id)
            await asyncio.to_thread(own_cluster.stop, how)
            await asyncio.to_thread(own_cluster.start)
        runs.append(await fleet.service.start(ME, "go"))  # the server accepts runs again
        await complete(fleet, runs)
        assert {worker.pid for worker in fleet.working()} == pids


async def test_a_run_survives_more_restarts_of_the_database_than_ends_of_its_process(tmp_path, own_cluster):
    async with fleet_of(tmp_path, own_cluster.url(), workers=0, pace=0.6) as fleet:
        await fleet.add(2, MAX_ATTEMPTS="3")
        pids = {worker.pid for worker in fleet.workers}
        run = await fleet.service.start(ME, "go")
        for _ in range(5):
            made = len(fleet.ran(run.id))
            await wait_until(lambda made=made: len(fleet.ran(run.id)) > made)
            await asyncio.to_thread(own_cluster.stop, "immediate")
            await asyncio.to_thread(own_cluster.start)
        assert (await fleet.service.get(run.id, ME)).status in ("running", "queued")  # all restarts hit it
        await complete(fleet, [run])
        assert {worker.pid for worker in fleet.working()} == pids


async def test_a_run_whose_workers_are_killed_fails_after_its_attempts(tmp_path, postgres_url):
    async with fleet_of(tmp_path, postgres_url, workers=0, pace=0.6) as fleet:
        run = await fleet.service.start(ME, "go")
        for _ in range(3):
            await fleet.add(MAX_ATTEMPTS="3")
            await wait_until(lambda: fleet.store.journal.get(run.id).pid == fleet.workers[-1].pid)
            await fleet.end(fleet.workers[-1], signal.SIGKILL)
        await fleet.add(MAX_ATTEMPTS="3")
        run = await fleet.service.wait(run.id, ME)
        assert (run.status, run.error.partition(":")[0]) == ("failed", "the run was interrupted 3 times")


async def test_nothing_is_lost_when_all_connections_are_cut_under_load(tmp_path, own_cluster):
    async with fleet_of(tmp_path, own_cluster.url(), workers=2, pace=0.1) as fleet:
        pids = {worker.pid for worker in fleet.workers}
        runs = []
        for _ in range(4):
            batch = [await fleet.service.start(ME, "go") for _ in range(3)]
            runs += batch
            await fleet.executing(batch[0].id)
            await asyncio.to_thread(own_cluster.cut_connections)
        runs.append(await fleet.service.start(ME, "go"))
        await complete(fleet, runs)
        assert {worker.pid for worker in fleet.working()} == pids


@pytest.mark.parametrize("how", ["file size", "read-only"])
async def test_when_the_database_is_full_no_tool_starts_and_runs_go_on_when_there_is_space(tmp_path, own_cluster, how):
    async with fleet_of(tmp_path, own_cluster.url(), workers=1, pace=0.1) as fleet:
        pids = {worker.pid for worker in fleet.workers}
        runs = [await fleet.service.start(ME, "go") for _ in range(4)]
        await fleet.executing(runs[0].id)
        with own_cluster.full(how, "hookline_runs.journal"):
            await wait_until(lambda: "is interrupted" in (tmp_path / "output").read_text())
            if how == "read-only":
                with pytest.raises(StoreError, match="are read-only"):
                    await fleet.service.start(ME, "go")
        await complete(fleet, runs)
        assert {worker.pid for worker in fleet.working()} == pids


@pytest.mark.parametrize("how", ["locked", "cut"])
async def test_a_run_whose_end_cannot_be_stored_goes_on_when_it_can_and_completes_once(tmp_path, own_cluster, how):
    """While the last tool of the run works, the rows of runs are locked, and perhaps the connection is cut."""
    import psycopg

    entered, opened, calls = asyncio.Event(), asyncio.Event(), []

    @tool
    async def work() -> str:
        """Work."""
        calls.append(1)
        entered.set()
        await opened.wait()
        return "did it"

    def turn(request):
        return reply("done") if request.messages[-1].role == "tool" else call("work")

    store, approvals = RunStore(own_cluster.url()), ApprovalStore(own_cluster.url())
    service = RunService(
        Agents({"helper": Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[work])}),
        store,
        approvals=approvals,
        sessions=JsonSessionStore(tmp_path / "sessions"),
        options=ServerOptions(durable=True),
    )
    await service.open()
    run = await service.start(ME, "go")
    await entered.wait()
    with psycopg.connect(f"postgresql://postgres@/postgres?host={own_cluster.folder}") as locking:
        locking.execute("LOCK TABLE hookline_runs.runs IN EXCLUSIVE MODE")
        opened.set()
        if how == "locked":
            await wait_until(lambda: service._durable._unreleased)
        else:
            waiting = "SELECT pid FROM pg_locks WHERE NOT granted AND relation = 'hookline_runs.runs'::regclass"
            await wait_until(lambda: locking.execute(waiting).fetchone())
            locking.execute(f"SELECT pg_terminate_backend(pid) FROM ({waiting}) AS blocked")
        assert not (await service.get(run.id, ME)).is_over
        locking.rollback()
    run = await service.wait(run.id, ME)
    assert (run.status, run.reply, len(calls)) == ("completed", "done", 1)
    events = await read_all(service, run.id)
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert [event["type"] for event in events].count("run_closed") == 1
    assert store.journal.get(run.id).epoch == 2
    await service.close(grace=0)
    approvals.close()
    store.close()
