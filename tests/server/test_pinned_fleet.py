"""Runs on PostgreSQL that no worker can continue: the queue for their version must not hold up their conversation."""

import asyncio
from contextlib import asynccontextmanager

import msgspec
import pytest

from hookline import Agent, ScriptedModel, call, guard, reply, tool
from hookline.server import durable as durable_module
from hookline.server.agents import Agents
from hookline.server.options import ServerOptions
from hookline.server.runs import RunService
from hookline.stores.approvals import ApprovalStore
from hookline.stores.runs import QueuedRun, RunStore
from hookline.stores.sessions import session_store_at
from tests.server.rig import ME
from tests.waiting import wait_until

LEASE = 1.0


@guard("before_tool")
def other_rule(ctx, request):
    return None


class Shop:
    """Agents whose tool does not return before the shop opens."""

    def __init__(self):
        self.calls, self.open = 0, asyncio.Event()

        @tool
        async def work() -> str:
            """Work."""
            self.calls += 1
            await self.open.wait()
            return "done"

        def turn(request):
            return reply("done") if request.messages[-1].role == "tool" else call("work")

        self.parts = {"llm": ScriptedModel([turn], loop=True), "tools": [work]}

    def agent(self, *hooks):
        return Agent("helper", **self.parts, hooks=hooks)


@asynccontextmanager
async def worker(url, agent, **options):
    store = RunStore(url, pinned=True, lease_seconds=LEASE)
    service = RunService(
        Agents({"helper": agent}),
        store,
        approvals=ApprovalStore(url),
        sessions=session_store_at(url),
        options=msgspec.convert({"durable": True, "lease_seconds": LEASE, **options}, ServerOptions),
    )
    await service.open()
    try:
        yield service
    finally:
        await service.close(grace=0)
        service.approvals.close()
        store.close()


@pytest.fixture
async def interrupted(postgres_url, monkeypatch):
    """A run that a worker has begun, whose job is in the queue for its version."""
    monkeypatch.setattr(durable_module, "CHECK_SECONDS", 0.05)
    shop = Shop()
    async with worker(postgres_url, shop.agent(), grace=0) as service:
        run = await service.start(ME, "Work.", session="talk")
        await wait_until(lambda: shop.calls == 1)
        digest = service._store.journal.get(run.id).digest
    async with worker(postgres_url, shop.agent(other_rule)) as service:
        await service._durable._queue.put(QueuedRun(run.id, run.session_id, run.owner, digest))
    shop.open.set()
    return shop, run


async def test_a_conversation_goes_on_after_a_run_was_refused(postgres_url, interrupted):
    shop, run = interrupted
    async with worker(postgres_url, shop.agent(other_rule), pin_seconds=0.01) as service:
        assert (await service.wait(run.id, ME, timeout=30)).status == "failed"
        second = await service.start(ME, "Work again.", session="talk")
        assert (await service.wait(second.id, ME, timeout=30)).status == "completed"


async def test_a_run_that_is_unpinned_is_queued_for_every_worker(postgres_url, interrupted):
    shop, run = interrupted
    async with worker(postgres_url, shop.agent(other_rule)) as service:
        assert service._store.journal.unpin(run.id)
        assert (await service.wait(run.id, ME, timeout=30)).status == "completed"
    assert shop.calls == 2


async def test_old_and_new_workers_side_by_side_complete_their_own_runs(postgres_url, interrupted):
    shop, run = interrupted
    async with worker(postgres_url, shop.agent(other_rule)) as new, worker(postgres_url, shop.agent()) as old:
        assert (await new.wait(run.id, ME, timeout=30)).status == "completed"
        assert [old._store.journal.get(run.id).digest] == old._durable.digests
        second = await old.start(ME, "Work.")
        assert (await old.wait(second.id, ME, timeout=30)).status == "completed"
