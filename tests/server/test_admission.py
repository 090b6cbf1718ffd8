"""Limits on accepting durable runs, which all servers of a database share."""

from contextlib import AsyncExitStack

import msgspec
import pytest

from hookline.server.agents import Agents
from hookline.server.errors import BusyError
from hookline.server.options import ServerOptions
from hookline.server.runs import RunService
from hookline.stores.approvals import ApprovalStore
from hookline.stores.runs import RunStore
from hookline.stores.sessions import JsonSessionStore
from tests.server.rig import ADMIN, ME, OTHER, make


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
