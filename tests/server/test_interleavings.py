"""Random interleavings: each run ends once, and each reader gets each event once."""

import asyncio
import json
import threading
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import BEFORE_TOOL, Agent, HookResult, Limits, ScriptedModel, call, guard, reply, tool
from hookline.server.errors import ConflictError, UnavailableError
from hookline.stores.approvals import DecisionRefusedError
from tests.properties import examples

from ..waiting import wait_until
from .rig import ADMIN, ME, read_all, service_at
from .wire import is_whole

RUNS = st.integers(0, 5)
DOINGS = st.one_of(
    st.tuples(st.just("start"), st.sampled_from(["talk", "blocker", "ask"]), st.sampled_from(["", "mine", "other"])),
    st.tuples(st.just("follow"), RUNS, st.integers(0, 30)),
    st.tuples(st.just("look"), RUNS, st.integers(1, 8)),
    st.tuples(st.sampled_from(["cancel", "approve", "deny", "steer", "wait"]), RUNS, st.just(0)),
    st.tuples(st.just("open"), st.just(0), st.just(0)),
    st.tuples(st.just("pause"), st.integers(1, 30), st.booleans()),
)


class Callers:
    """Concurrent callers of one service."""

    def __init__(self, folder):
        self.opened = asyncio.Event()

        @tool
        async def blocker() -> str:
            """Wait."""
            await self.opened.wait()
            return "through"

        @guard(BEFORE_TOOL)
        def careful(ctx, payload):
            asks = any(message.content == "ask" for message in ctx.state.messages if message.role == "user")
            return HookResult.ask("May it?") if asks else None

        def turn(request):
            last = request.messages[-1]
            return reply("done talking") if last.role == "tool" or last.content == "talk" else call("blocker")

        agent = Agent(
            "helper", llm=ScriptedModel([turn], loop=True), tools=[blocker], hooks=[careful], limits=Limits(steps=4)
        )
        self.service = service_at(folder, agent, max_runs=3)
        self.started, self.tasks, self.seen, self.followed = [], [], {}, []

    def do(self, what, which, more):
        """Start an action."""
        if what == "start":
            self.tasks.append(asyncio.create_task(self.start(which, more)))
        elif what == "open":
            self.opened.set()
        elif which < len(self.started):
            self.tasks.append(asyncio.create_task(getattr(self, what)(self.started[which], more)))

    async def start(self, task, session):
        run = await self.service.start(ME, task, session=session)
        self.started.append(run.id)
        self.seen[run.id] = []

    async def follow(self, id, after):
        events = await read_all(self.service, id, after=after)
        self.followed.append((id, after, [each["seq"] for each in events]))

    async def look(self, id, most):
        """Resume a reader, read a few events and disconnect."""
        seen = self.seen.pop(id, None)
        if seen is None:
            return  # this reader is in use
        reader = await self.service.read(id, ME, len(seen))
        seen += [json.loads(event.data) for event in (await reader.more(0.001) or ())[:most]]
        reader.close()
        self.seen[id] = seen

    async def wait(self, id, _):
        await self.service.wait(id, ME)

    async def cancel(self, id, _):
        run = await self.service.cancel(id, ME)
        assert run.is_over

    async def steer(self, id, _):
        with suppress(ConflictError):
            await self.service.steer(id, ME, "be quick")

    async def approve(self, id, _):
        await self.decide(id, "approve")

    async def deny(self, id, _):
        await self.decide(id, "deny")

    async def decide(self, id, decision):
        for row in self.service.approvals.rows(status="pending", root_id=id):
            with suppress(DecisionRefusedError):
                await asyncio.to_thread(
                    self.service.approvals.decide, row.id, decision=decision, digest=row.digest, by="me"
                )


@pytest.mark.slow
@settings(max_examples=examples(25))
@given(st.lists(DOINGS, max_size=25), st.booleans())
async def test_each_run_ends_once_and_each_reader_gets_each_event_once(tmp_path_factory, doings, patient):
    before, threads = asyncio.all_tasks(), {thread.name for thread in threading.enumerate()}
    callers = Callers(tmp_path_factory.mktemp("served"))
    service = callers.service
    await service.open()
    for what, which, more in [("start", "talk", ""), *doings]:
        if what == "pause":
            for _ in range(which):
                await asyncio.sleep(0.001 if more else 0)
        else:
            callers.do(what, which, more)
    callers.opened.set()
    await wait_until(lambda: len(callers.started) == 1 + sum(what == "start" for what, _, _ in doings))
    if patient:
        async with asyncio.timeout(60):
            while any(service.counts()[state] for state in ("queued", "running", "waiting")):
                for id in callers.started:
                    await callers.decide(id, "approve")
                await asyncio.sleep(0.005)
    await service.close(grace=0)
    await asyncio.wait_for(asyncio.gather(*callers.tasks), 60)

    for id in callers.started:
        run = await service.get(id, ADMIN)
        events = await read_all(service, id)
        assert is_whole(events, run.status)
        assert [each["type"] for each in events].count("run_closed") == 1
        assert run.status in ("completed", "cancelled") + (() if patient else ("interrupted",)), run
        seen = callers.seen[id]
        assert seen == events[: len(seen)], "a resumed reader continues where it stopped"
    for id, after, seqs in callers.followed:
        assert seqs == list(range(after + 1, (await service.get(id, ADMIN)).last_seq + 1))
    await wait_until(lambda: not service.approvals.rows(status="pending"))  # no call of a finished run waits
    assert not any(service.counts().values())
    assert not service._live
    assert not service._executor._session_locks._locks
    assert asyncio.all_tasks() == before
    for store in (service._store, service.approvals):
        store.close()
    left = {thread.name for thread in threading.enumerate()} - threads
    assert not [name for name in left if name.startswith("hookline-run-log")]
    try:
        await service.start(ME, "too late")
    except UnavailableError:
        pass
    else:
        raise AssertionError
