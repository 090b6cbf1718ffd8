"""Accepting durable runs: each is stored as a whole, and its limits are shared by all servers of a database."""

import asyncio
from contextlib import AsyncExitStack, contextmanager

import msgspec
import pytest

from hookline.server.agents import Agents
from hookline.server.errors import BusyError, IdempotencyError
from hookline.server.options import ServerOptions
from hookline.server.runs import RunService
from hookline.stores.approvals import ApprovalStore
from hookline.stores.errors import StoreError
from hookline.stores.runs import RunStore
from hookline.stores.sessions import JsonSessionStore
from tests.server.rig import ADMIN, ME, OTHER, make
from tests.waiting import wait_until


@pytest.fixture(params=["sqlite", "postgresql"])
async def servers(request, tmp_path):
    """Make two servers that share a database and leave the runs to workers."""
    place = tmp_path / "runs.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    async with AsyncExitStack() as stack:

        async def serve(**options):
            made = []
            for _ in range(2):
                store, approvals = RunStore(place, pinned=True), ApprovalStore(tmp_path / "approvals.db")
                service = RunService(
                    Agents({"helper": make()}),
                    store,
                    approvals=approvals,
                    sessions=JsonSessionStore(tmp_path / "sessions"),
                    options=msgspec.convert({"durable": True, "execute": False, **options}, ServerOptions),
                )
                await service.open()
                stack.push_async_callback(service.close, grace=0)
                stack.callback(approvals.close)
                stack.callback(store.close)
                made.append(service)
            return made

        yield serve


async def test_the_runs_of_a_caller_count_at_all_servers(servers):
    one, other = await servers(max_runs_per_caller=2)
    first = await one.start(ME, "a")
    await other.start(ME, "b")
    for server in (one, other):
        with pytest.raises(BusyError, match="2 of your runs are running or queued"):
            await server.start(ME, "c")
    await other.start(OTHER, "d")
    await other.cancel(first.id, ADMIN)
    await one.start(ME, "e")


async def test_the_queue_of_all_servers_has_one_limit(servers):
    one, other = await servers(max_queued=2)
    first = await one.start(ME, "a")
    await other.start(OTHER, "b")
    for server in (one, other):
        with pytest.raises(BusyError, match="too many runs are queued: try again later"):
            await server.start(ME, "c")
    await other.cancel(first.id, ADMIN)
    await one.start(ME, "d")


async def test_event_streams_are_limited_at_each_server(servers):
    one, other = await servers(max_streams=1)
    run = await one.start(ME, "a")
    readers = [await server.read(run.id, ME) for server in (one, other)]
    for server in (one, other):
        with pytest.raises(BusyError, match="too many streams are open"):
            await server.read(run.id, ME)
    for reader in readers:
        reader.close()


PARTS = ("runs", "events", "idempotency_keys", "durable_runs")


@pytest.mark.parametrize("part", [*PARTS, "jobs"])
async def test_a_run_that_is_not_stored_as_a_whole_is_not_accepted_and_its_key_is_free(servers, part):
    one, other = await servers(execute=True, max_runs_per_caller=1)
    request = {"idempotency_key": "k", "request": {"task": "a"}}
    if part == "jobs" and not one.is_shared:
        pytest.skip("the queue of a file is in memory")
    with refusing(one.store, part if part in PARTS else f"{one.store.db.prefix}_queue.procrastinate_jobs"):
        with pytest.raises(StoreError):
            await one.start(ME, "a", **request)
        assert one.problem
        with one.store.db.transaction() as db:
            assert [db.execute(f"SELECT count(*) FROM {each}").fetchone()[0] for each in PARTS] == [0, 0, 0, 0]
    run = await other.start(ME, "a", **request)
    assert (await one.start(ME, "a", **request)).id == run.id
    assert (await other.wait(run.id, ME)).status == "completed"
    await wait_until(lambda: not one.problem)


@contextmanager
def refusing(store, table):
    """Let the database refuse new rows of a table inside the block, at whatever moment they are written."""
    if store.db.is_shared:
        body = "RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE 'no'; END $$"
        trigger = f"CREATE TRIGGER refused BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION refuse()"
        before, after = (f"CREATE FUNCTION refuse() {body}", trigger), ("DROP FUNCTION refuse CASCADE",)
    else:
        before = (f"CREATE TRIGGER refused BEFORE INSERT ON {table} BEGIN SELECT RAISE(ABORT, 'no'); END",)
        after = ("DROP TRIGGER refused",)
    for statement in before:
        store.db.execute(statement, write=True)
    yield
    for statement in after:
        store.db.execute(statement, write=True)


async def test_requests_with_one_key_at_several_servers_start_one_run(servers):
    both = await servers(max_runs_per_caller=1)
    starting = [each.start(ME, "a", idempotency_key="k", request={"task": "a"}) for each in both * 5]
    assert len({run.id for run in await asyncio.gather(*starting)}) == 1
    with pytest.raises(IdempotencyError):
        await both[0].start(ME, "b", idempotency_key="k", request={"task": "b"})
    assert await both[0].count(ME) == 1


async def test_a_run_is_executed_although_the_server_ends_as_soon_as_it_is_stored(servers, monkeypatch):
    """Its job is stored with it on PostgreSQL; with a file, the other process looks for it each second."""
    executing, _ = await servers(execute=True)
    ending, _ = await servers()

    async def end(run):
        raise StoreError("the process ends here")

    monkeypatch.setattr(ending._durable._queue, "put", end)
    run = await ending.start(ME, "a")
    assert (await executing.wait(run.id, ME)).status == "completed"
