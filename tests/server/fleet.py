"""A fleet for tests: a service that executes nothing, and worker processes (``worker_scene.py``)."""

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import asynccontextmanager

import msgspec

from hookline.server.agents import Agents
from hookline.server.options import ServerOptions
from hookline.server.runs import RunService
from hookline.stores.approvals import ApprovalStore
from hookline.stores.runs import RunStore
from hookline.stores.sessions import JsonSessionStore
from tests.durable_scene import World, call_keys, make_agent
from tests.server import worker_scene
from tests.server.rig import ME, read_all
from tests.waiting import wait_until


class Fleet:
    """A service that executes nothing, and worker processes."""

    def __init__(self, folder, url, pace, lease):
        self.world, self.url, self.pace, self.lease = World(folder), url, pace, lease
        self.workers = []
        self.store = RunStore(url, lease_seconds=lease)
        self.service = RunService(
            Agents({"boss": make_agent(self.world)}),
            self.store,
            approvals=ApprovalStore(url),
            sessions=JsonSessionStore(folder / "sessions"),
            options=ServerOptions(durable=True, execute=False, max_runs_per_caller=1000),
        )

    async def add(self, count=1, **variables):
        """Start workers, with these environment variables, and wait until they work."""
        for _ in range(count):
            scene = {"PACE": str(self.pace), "LEASE": str(self.lease), "PYTHONUNBUFFERED": "1"}
            environment = {**os.environ, **scene, **variables}
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

    def working(self):
        """The workers that have started and not ended."""
        ready = self.noted("workers")
        return [worker for worker in self.workers if worker.poll() is None and worker.pid in ready]

    def held_by(self, worker):
        """The runs whose last process was this worker, and that have not ended."""
        return [run.run_id for run in self.store.journal.runs("running", limit=1000) if run.pid == worker.pid]

    def ran(self, run_id):
        """The tool calls of a run and of its subagents, each time one was made: key, tool, argument, run, process."""
        return [line for line in self.world.lines("ran") if line[3] == run_id]

    async def check(self, run_id, caller=ME, ran=None):
        """Check that a run completed with valid events and results, and return how often each tool call was made.

        ``ran`` is what :meth:`ran` returns for the run, if the caller has read it.
        """
        ran = self.ran(run_id) if ran is None else ran
        run = await self.service.get(run_id, caller)
        assert run.status == "completed", (run.status, run.error, run.reason)
        events = await read_all(self.service, run_id, caller)
        assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
        assert [event["type"] for event in events].count("run_closed") == 1
        ended = [e for e in events if e["type"] == "tool_ended"]
        assert len({(e["run_id"], e["call_id"]) for e in ended}) == len(ended)
        stored = self.service._sessions.load(run.session_id).messages
        asked = [call.id for message in stored for call in message.tool_calls]
        assert sorted(asked) == sorted(message.call_id for message in stored if message.role == "tool")
        assert len([line for line in ran if line[1] == "pay"]) <= 1
        made = Counter(line[0] for line in ran)
        self.check_journal(run_id, made)
        return made

    def check_journal(self, run_id, made):
        """Check that a tool call was made again only if its journal says that it was in flight: never after its result.

        An entry ``resumed`` says that. A call has one intent and one answer in the journal, however often it was made.
        """
        with self.store.db.transaction() as db:
            rows = db.execute("SELECT data FROM journal WHERE run_id = ? ORDER BY seq", (run_id,)).fetchall()
        entries = [entry for (data,) in rows for entry in msgspec.json.decode(data)]
        found = {kind: Counter[str]() for kind in ("asked", "answered", "resumed")}
        for kind, key in call_keys(entries, run_id):
            found[kind][key] += 1
        assert set(made) <= set(found["asked"])
        for key, count in made.items():
            assert found["asked"][key] == found["answered"][key] == 1
            assert count <= 1 + found["resumed"][key], (run_id, key)


@asynccontextmanager
async def fleet_of(tmp_path, url, workers=2, pace=0.05, lease=worker_scene.LEASE):
    fleet = Fleet(tmp_path, url, pace, lease)
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
