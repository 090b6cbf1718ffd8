"""Workers on one database: takeover after kill -9 and SIGSTOP, handover at SIGTERM, and hookline worker itself."""

import os
import random
import signal
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager

import pytest

from hookline.server.agents import Agents
from hookline.server.options import ServerOptions
from hookline.server.runs import RunService
from hookline.stores.approvals import ApprovalStore
from hookline.stores.runs import RunStore
from hookline.stores.sessions import JsonSessionStore
from tests.durable_scene import World, make_agent
from tests.server import worker_scene
from tests.server.rig import ME, read_all
from tests.waiting import wait_until


class Fleet:
    """A service that executes nothing, and worker processes."""

    def __init__(self, folder, url, pace):
        self.world, self.url, self.pace = World(folder), url, pace
        self.workers = []
        self.store = RunStore(url, lease_seconds=worker_scene.LEASE)
        self.service = RunService(
            Agents({"boss": make_agent(self.world)}),
            self.store,
            approvals=ApprovalStore(url),
            sessions=JsonSessionStore(folder / "sessions"),
            options=ServerOptions(durable=True, execute=False, max_runs_per_caller=1000),
        )

    async def add(self, count=1):
        for _ in range(count):
            environment = {**os.environ, "PACE": str(self.pace), "PYTHONUNBUFFERED": "1"}
            command = [sys.executable, "-m", "tests.server.worker_scene", str(self.world.folder), self.url]
            with open(self.world.folder / "output", "ab") as output:
                worker = subprocess.Popen(command, env=environment, stdout=output, stderr=output)
            self.workers.append(worker)
        await wait_until(lambda: {w.pid for w in self.workers if w.poll() is None} <= self.noted("workers"))

    def noted(self, name):
        return {int(line[-1]) for line in self.world.lines(name)}

    async def end(self, worker, how=signal.SIGKILL):
        worker.send_signal(how)
        await wait_until(lambda: worker.poll() is not None)

    async def executing(self, run_id):
        """Return the worker that executes a run, once it has called a tool."""
        await wait_until(lambda: self.ran(run_id))
        pid = self.store.journal.get(run_id).pid
        return next(worker for worker in self.workers if worker.pid == pid)

    def ran(self, run_id):
        """The tool calls of a run and of its subagents, each time one was made: key, tool, argument, run, process."""
        return [line for line in self.world.lines("ran") if line[3] == run_id]

    async def check(self, run_id):
        """Check that a run completed with valid events and results, and return how often each tool call was made."""
        run = await self.service.get(run_id, ME)
        assert run.status == "completed", (run.status, run.error, run.reason)
        events = await read_all(self.service, run_id)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert [event["type"] for event in events].count("run_closed") == 1
        ended = [e for e in events if e["type"] == "tool_ended"]
        assert len({(e["run_id"], e["call_id"]) for e in ended}) == len(ended)
        stored = self.service._sessions.load(run.session_id).messages
        asked = [call.id for message in stored for call in message.tool_calls]
        assert sorted(asked) == sorted(message.call_id for message in stored if message.role == "tool")
        assert len([line for line in self.ran(run_id) if line[1] == "pay"]) <= 1
        return Counter(line[0] for line in self.ran(run_id))


@asynccontextmanager
async def fleet_of(tmp_path, url, workers=2, pace=0.05):
    fleet = Fleet(tmp_path, url, pace)
    try:
        await fleet.service.open()
        await fleet.add(workers)
        yield fleet
    finally:
        for worker in fleet.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()
        await fleet.service.close(grace=0)
        fleet.service.approvals.close()
        fleet.store.close()


@pytest.mark.slow
async def test_another_worker_continues_a_run_whose_worker_is_killed(tmp_path, postgres_url):
    async with fleet_of(tmp_path, postgres_url, pace=0.2) as fleet:
        run = await fleet.service.start(ME, "go")
        victim = await fleet.executing(run.id)
        seen = [(event.seq, event.data) for event in fleet.store.events(run.id)]
        await fleet.end(victim)
        run = await fleet.service.wait(run.id, ME, timeout=60)
        made = await fleet.check(run.id)
        assert [(event.seq, event.data) for event in fleet.store.events(run.id)][: len(seen)] == seen
        assert max(made.values()) <= 2
        assert fleet.store.journal.get(run.id).pid != victim.pid


@pytest.mark.slow
async def test_a_paused_worker_loses_its_run_and_begins_no_call_when_it_wakes_up(tmp_path, postgres_url):
    async with fleet_of(tmp_path, postgres_url, pace=0.2) as fleet:
        run = await fleet.service.start(ME, "go")
        victim = await fleet.executing(run.id)
        victim.send_signal(signal.SIGSTOP)
        run = await fleet.service.wait(run.id, ME, timeout=60)
        before = await fleet.check(run.id)
        ledger = len(fleet.world.lines("ledger"))
        victim.send_signal(signal.SIGCONT)
        victim.send_signal(signal.SIGTERM)
        await wait_until(lambda: victim.poll() is not None)
        after = await fleet.check(run.id)
        late = after - before
        assert all(count == 1 for count in late.values())  # at most the calls that were in flight
        assert len(late) <= 3
        assert len(fleet.world.lines("ledger")) == ledger


@pytest.mark.slow
async def test_a_worker_that_gets_sigterm_hands_over_and_no_call_is_made_twice(tmp_path, postgres_url):
    async with fleet_of(tmp_path, postgres_url) as fleet:
        runs = [await fleet.service.start(ME, "go") for _ in range(8)]
        await fleet.executing(runs[-1].id)
        await fleet.end(fleet.workers[0], signal.SIGTERM)
        assert fleet.workers[0].returncode == 0, (tmp_path / "output").read_text()[-2000:]
        for run in runs:
            await fleet.service.wait(run.id, ME, timeout=60)
            made = await fleet.check(run.id)
            assert set(made.values()) == {1}
        assert sum(run.epoch > 1 for run in fleet.store.journal.runs(limit=100)) > 0


@pytest.mark.slow
async def test_three_workers_complete_thirty_runs_while_workers_are_killed(tmp_path, postgres_url):
    rng = random.Random(7)
    async with fleet_of(tmp_path, postgres_url, workers=3, pace=0.15) as fleet:
        runs = [await fleet.service.start(ME, "go") for _ in range(30)]
        await fleet.executing(runs[0].id)
        kills = 0
        while kills < 5 and (done := sum(fleet.store.get(run.id).is_over for run in runs)) < len(runs):
            ready = fleet.noted("workers")
            living = [worker for worker in fleet.workers if worker.poll() is None and worker.pid in ready]
            await fleet.end(rng.choice(living))
            kills += 1
            await fleet.add()
            await wait_until(lambda done=done: sum(fleet.store.get(run.id).is_over for run in runs) > done)
        made = Counter()
        for run in runs:
            await fleet.service.wait(run.id, ME, timeout=120)
            made += await fleet.check(run.id)
        repeated = sum(count - 1 for count in made.values())
        assert kills > 1
        assert repeated <= kills * 6 * 4  # the calls in flight: at most four for each of six runs of a killed worker
