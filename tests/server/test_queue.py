"""The queue of durable runs: a job for each run, and callers that take turns."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest
from procrastinate.exceptions import ConnectorException

from hookline import call, reply, tool
from hookline.server import durable as durable_module
from hookline.server.agents import Agents
from hookline.server.options import ServerOptions
from hookline.server.postgres_queue import SHARE
from hookline.server.runs import RunService
from hookline.stores.approvals import ApprovalStore
from hookline.stores.runs import RunStore
from hookline.stores.sessions import JsonSessionStore
from tests.server.fleet import fleet_of
from tests.server.rig import ADMIN, ME, OTHER, Blocker, make
from tests.waiting import wait_until

MANY = 25


def added_jobs(fleet):
    """The number of jobs that were ever added to the queue, or refused by it."""
    query = f"SELECT last_value FROM {fleet.store.db.prefix}_queue.procrastinate_jobs_id_seq"
    with fleet.store.db.transaction() as db:
        return db.execute(query).fetchone()[0]


async def test_a_run_has_one_job_however_long_it_waits(tmp_path, postgres_url):
    """The runs wait for longer than a lease, while the worker looks for lost ones."""
    async with fleet_of(tmp_path, postgres_url, workers=1, pace=0.3, lease=3.0) as fleet:
        runs = [await fleet.service.start(ME, f"task {n}") for n in range(MANY)]
        runs += [await fleet.service.start(OTHER, f"task {n}", session="one") for n in range(5)]
        for run in runs:
            owner = ME if run.owner == ME.id else OTHER
            assert (await fleet.service.wait(run.id, owner, timeout=60)).status == "completed"
        assert added_jobs(fleet) == len(runs)


async def test_a_run_whose_job_was_lost_gets_another_one(tmp_path, postgres_url):
    async with fleet_of(tmp_path, postgres_url, workers=0) as fleet:
        run = await fleet.service.start(ME, "task")
        await fleet.service._durable._queue.remove(run.id)
        await fleet.add()
        assert (await fleet.service.wait(run.id, ME, timeout=30)).status == "completed"
        assert added_jobs(fleet) == 2


async def test_a_process_that_takes_its_own_run_again_first_ends_what_it_does_for_it(
    tmp_path, postgres_url, monkeypatch
):
    """So it does if it had no connection for longer than a lease."""
    monkeypatch.setattr(durable_module, "CHECK_SECONDS", 0.02)
    moments = []

    @tool
    async def work() -> str:
        """Work; the first time, until it is cancelled."""
        moments.append("begins")
        try:
            if len(moments) == 1:
                await asyncio.Event().wait()
        finally:
            moments.append("ends")
        return "done"

    agent = make([call("work"), reply("done")], tools=[work])
    async with server_at(postgres_url, tmp_path, agent, durable=True, max_runs=2) as service:
        run = await service.start(ME, "task")
        await wait_until(lambda: moments)
        service._store.db.execute("UPDATE durable_runs SET lease = 0 RETURNING 1", write=True)
        old = "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'"
        await service._durable._queue._app.connector.execute_query_async(old)
        run = await service.wait(run.id, ME, timeout=30)
        assert (run.status, run.error) == ("completed", "")
        assert moments == ["begins", "ends"] * 2
        kinds = [kind for (kind,) in service._store.db.execute("SELECT kind FROM facts ORDER BY id")]
        assert kinds == ["model", "tool", "model", "run"]


async def test_a_process_begins_runs_although_the_queue_failed_while_another_one_goes_on(tmp_path, postgres_url):
    """Other processes have forgotten it, as they do with one that was paused, so it cannot take the next job."""
    blocker = Blocker()
    async with server_at(postgres_url, tmp_path, blocker.agent(), durable=True, max_runs=2) as service:
        long = await service.start(ME, "task")
        await wait_until(lambda: blocker.entered == 1)
        await service._durable._queue._app.connector.execute_query_async("DELETE FROM procrastinate_workers")
        await service.start(ME, "task")
        await wait_until(lambda: blocker.entered == 2)
        blocker.open.set()
        assert (await service.wait(long.id, ME, timeout=60)).status == "completed"


async def test_the_next_run_of_a_conversation_begins_when_the_one_before_it_has_ended(tmp_path, postgres_url):
    """The process looks for jobs only when it is told of one: otherwise, the lease gives it a third of an hour."""
    blocker, options = Blocker(), {"durable": True, "max_runs": 2}
    async with server_at(postgres_url, tmp_path, blocker.agent(), lease=3600.0, **options) as service:
        runs = [await service.start(ME, "task", session="one")]
        await wait_until(lambda: blocker.entered == 1)
        runs += [await service.start(ME, "task", session="one") for _ in range(2)]
        blocker.open.set()
        for run in runs:
            assert (await service.wait(run.id, ME, timeout=60)).status == "completed"


async def test_a_job_is_not_lost_with_the_answer_of_the_database_that_gave_it(tmp_path, postgres_url, monkeypatch):
    """The process lives, so no other one ever takes its jobs."""
    blocker = Blocker(closed=False)
    async with server_at(postgres_url, tmp_path, blocker.agent(), durable=True) as service:
        manager, lost = service._durable._queue._app.job_manager, []
        fetch = manager.fetch_job

        async def lose_the_first(*args):
            job = await fetch(*args)
            if job is not None and not lost:
                lost.append(job)
                raise ConnectorException("the connection was cut")
            return job

        monkeypatch.setattr(manager, "fetch_job", lose_the_first)
        run = await service.start(ME, "task")
        assert (await service.wait(run.id, ME, timeout=60)).status == "completed"
        assert lost


async def test_a_job_that_cannot_be_deleted_is_deleted_when_the_database_is_back(tmp_path, postgres_url, monkeypatch):
    """Until then it holds the lock of its conversation."""
    blocker = Blocker(closed=False)
    async with server_at(postgres_url, tmp_path, blocker.agent(), durable=True) as service:
        manager, failed = service._durable._queue._app.job_manager, []
        finish = manager.finish_job

        async def fail_once(*args, **options):
            if not failed:
                failed.append(1)
                raise ConnectorException("the connection was cut")
            await finish(*args, **options)

        monkeypatch.setattr(manager, "finish_job", fail_once)
        for _ in range(2):
            run = await service.start(ME, "task", session="one")
            assert (await service.wait(run.id, ME, timeout=60)).status == "completed"
        assert failed


async def test_a_process_uses_the_queues_of_several_schemas(tmp_path, postgres_url):
    """They share connections, on which statements are prepared."""
    agent = Blocker().agent()
    async with (
        server_at(f"{postgres_url}_one", tmp_path / "one", agent, durable=True) as one,
        server_at(f"{postgres_url}_two", tmp_path / "two", agent, durable=True) as two,
    ):
        for service in (one, two):
            for n in range(SHARE):
                await service.start(ME, f"task {n}")


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    return tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")


@asynccontextmanager
async def server_at(place, folder, agent, *, lease=15.0, **options):
    store, approvals = RunStore(place, pinned=True, lease_seconds=lease), ApprovalStore(folder / "approvals.db")
    service = RunService(
        Agents({"helper": agent}),
        store,
        approvals=approvals,
        sessions=JsonSessionStore(folder / "sessions"),
        options=msgspec.convert({"max_runs_per_caller": 1000, "max_runs": 1, **options}, ServerOptions),
    )
    await service.open()
    try:
        yield service
    finally:
        await service.close(grace=0)
        approvals.close()
        store.close()


async def test_a_run_that_has_begun_goes_on_before_new_ones(place, tmp_path):
    blocker = Blocker()
    async with server_at(place, tmp_path, blocker.agent(), durable=True) as service:
        begun = await service.start(ME, "task")
        await wait_until(lambda: blocker.entered == 1)
        new = [await service.start(OTHER, f"task {n}") for n in range(3)]
    blocker.open.set()  # the server has suspended the run, and queued it again after the others
    async with server_at(place, tmp_path, blocker.agent(), durable=True) as service:
        for run in [begun, *new]:
            assert (await service.wait(run.id, ADMIN, timeout=60)).status == "completed"
        ended = sorted([begun, *new], key=lambda run: service.store.get(run.id).ended)
    assert ended == [begun, *new]


@pytest.mark.parametrize("durable", [True, False])
async def test_the_many_runs_of_a_caller_do_not_delay_the_run_of_another(place, tmp_path, durable):
    blocker = Blocker()
    async with server_at(place, tmp_path, blocker.agent(), durable=durable) as service:
        many = [await service.start(ME, f"task {n}") for n in range(MANY)]
        await wait_until(lambda: blocker.entered == 1)
        one = await service.start(OTHER, "task")
        if not durable:  # it waits for its conversation first, and the others do not take long
            await wait_until(lambda: one.owner in service._executor._slots._queues)
        blocker.open.set()
        for run in [*many, one]:
            assert (await service.wait(run.id, ADMIN, timeout=60)).status == "completed"
        began = sorted([*many, one], key=lambda run: service.store.get(run.id).started)
        assert began.index(one) <= SHARE + 1
        if durable:
            assert [run for run in began if run is not one] == many  # those of a caller stay in order
