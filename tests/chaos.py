"""A fleet under constant faults: two servers, two workers and PostgreSQL, while a client posts runs all the time.

    make chaos MINUTES=10            ten minutes of faults
    make chaos MINUTES=10 SEED=1234  the same faults in the same order

Every few seconds a process is killed, stopped with SIGTERM or paused for 40 seconds, PostgreSQL is restarted, its
connections are cut or hang, or it refuses to write because it is read-only or its disk is full. The client repeats each
request with the same key until it is accepted. At the end everything may settle, and a report says whether each
accepted run ended exactly once, and whether what the database says is consistent. If something is wrong, the logs of
the processes are kept, with what the database says of the runs that have not ended, and what each process is doing.

As ``python -m tests.chaos serve FOLDER URL PORT`` it is one of the servers.
"""

import argparse
import asyncio
import math
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter, defaultdict
from contextlib import suppress
from pathlib import Path

import httpx
import msgspec

from hookline.server.build import build_server
from tests.durable_scene import World, make_agent
from tests.postgres_cluster import MISSING, Cluster
from tests.run_folder import RunFolder
from tests.server.fleet import Fleet
from tests.server.rig import ADMIN
from tests.server.worker_scene import settings_of
from tests.stacks import log_with_times, write_stacks_on_signal

ROOT = Path(__file__).parent.parent
LEASE = 6.0
PACE = 0.1
OPEN_RUNS = 25
"""Number of accepted runs that have not ended at a time: a machine can execute only so many."""
PAUSE_SECONDS = 40.0
STUCK_SECONDS = 120.0
"""Seconds after the last fault without the end of another run, after which the runs that have not ended are stuck."""


async def serve(folder: Path, url: str, port: int) -> None:
    """Serve without executing, until SIGTERM."""
    write_stacks_on_signal()
    settings = settings_of(folder, url)
    options = {"port": port, "execute": False, "rate": 1e6, "burst": 100_000, "max_runs_per_caller": 10_000}
    settings = msgspec.structs.replace(settings, server={**settings.server, "max_queued": 10_000, **options})
    server = build_server(settings, make_agent(World(folder)))
    loop, stops = asyncio.get_running_loop(), []
    loop.add_signal_handler(signal.SIGTERM, lambda: stops.append(asyncio.ensure_future(server.stop())))
    await server.start()
    await server.wait()


class Proxy:
    """A proxy of the socket of PostgreSQL, whose connections can be cut, and can hang."""

    def __init__(self, folder: str, target: str) -> None:
        self.folder, self._target = folder, target
        self._writers: set[asyncio.StreamWriter] = set()
        self._flowing = asyncio.Event()
        self._flowing.set()

    async def start(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._connect, f"{self.folder}/.s.PGSQL.5432")

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            there = await asyncio.open_unix_connection(f"{self._target}/.s.PGSQL.5432")
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, there[1]}
        try:
            await asyncio.gather(self._copy(reader, there[1]), self._copy(there[0], writer))
        finally:
            self._writers -= {writer, there[1]}

    async def _copy(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                await self._flowing.wait()
                writer.write(data)
                await writer.drain()
        with suppress(OSError, RuntimeError):
            writer.close()

    def cut(self) -> None:
        """Cut all connections, in the middle of whatever they carry."""
        for writer in list(self._writers):
            writer.transport.abort()

    async def hang(self, seconds: float) -> None:
        """Carry nothing for a while, and then cut the connections."""
        self._flowing.clear()
        await asyncio.sleep(seconds)
        self.cut()
        self._flowing.set()


class Chaos:
    """The fleet, the client and the faults.

    Args:
        minutes: how long faults happen.
        seed: decides which ones.
    """

    def __init__(self, minutes: float, seed: int) -> None:
        self.minutes, self.rng = minutes, random.Random(seed)
        self.place = RunFolder()
        self.folder = Path(self.place.path) / "world"
        self.folder.mkdir()
        self.cluster = Cluster(autovacuum="on", autovacuum_naptime="3s")
        self.proxy = Proxy(self.place.path, self.cluster.folder)
        self.url = f"postgresql://postgres@/postgres?host={self.place.path}&schema=hookline"
        self.ports = [_free_port() for _ in range(2)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.paused: dict[str, float] = {}
        self.faults: Counter[str] = Counter()
        self.accepted: dict[str, str] = {}
        """The runs, by the keys of their requests."""
        self.posted = 0
        self.ended: set[str] = set()
        self.last_end = time.monotonic()
        self.longest_pause = 0.0
        """Longest time in seconds in which no run ended."""
        self.calls = self.repeated = 0
        """Number of tool calls, and how often one was made again because it was in flight when its process ended."""
        self.is_posting = True

    # Processes.

    def start(self, name: str) -> None:
        """Start a server or a worker."""
        kind, number = name.split()
        program = {
            "server": ["tests.chaos", "serve", str(self.folder), self.url, str(self.ports[int(number)])],
            "worker": ["tests.server.worker_scene", str(self.folder), self.url],
        }[kind]
        scene = {"PACE": str(PACE), "LEASE": str(LEASE), "MAX_ATTEMPTS": "1000", "PYTHONUNBUFFERED": "1"}
        with open(self.folder / f"{kind}-{number}.log", "ab") as log:
            command = [sys.executable, "-m", *program]
            environment = {**os.environ, **scene}
            self.processes[name] = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=log)

    async def keep_running(self) -> None:
        """Start processes again that have ended, as a supervisor does, and wake those that were paused long enough."""
        while True:
            for name, process in list(self.processes.items()):
                if self.paused.get(name, float("inf")) < time.monotonic():
                    del self.paused[name]
                    process.send_signal(signal.SIGCONT)
                if process.poll() is not None:
                    self.paused.pop(name, None)
                    self.start(name)
            await asyncio.sleep(0.2)

    # The client.

    async def post(self) -> None:
        """Post runs, each until a server has accepted it."""
        async with httpx.AsyncClient(timeout=15.0) as client:
            while self.is_posting:
                while len(self.accepted) - len(self.ended) >= OPEN_RUNS and self.is_posting:
                    await asyncio.sleep(0.2)
                if not self.is_posting:
                    return
                key, self.posted = f"key-{self.posted}", self.posted + 1
                body = {"task": "go", **({"session": f"talk {self.posted % 7}"} if self.posted % 3 == 0 else {})}
                while key not in self.accepted:
                    url = f"http://127.0.0.1:{self.rng.choice(self.ports)}/runs"
                    with suppress(httpx.HTTPError):
                        response = await client.post(url, json=body, headers={"Idempotency-Key": key})
                        if response.status_code in (200, 201, 202):
                            self.accepted[key] = response.json()["id"]
                            break
                        if response.status_code < 500:
                            raise RuntimeError(f"refused: {response.status_code} {response.text}")
                    await asyncio.sleep(0.3)

    async def watch(self) -> None:
        """Note which runs have ended, as the database says."""
        while True:
            with suppress(Exception):  # the database is being restarted
                ended = {id for (id,) in await asyncio.to_thread(self.rows, _ENDED)}
                if ended != self.ended:
                    self.ended, self.last_end = ended, time.monotonic()
            if not self.ended.issuperset(self.accepted.values()):
                self.longest_pause = max(self.longest_pause, time.monotonic() - self.last_end)
            await asyncio.sleep(0.5)

    def rows(self, query: str) -> list[tuple]:
        """Ask the database itself, not through the proxy."""
        import psycopg

        settings = "-c search_path=hookline_runs -c default_transaction_read_only=off"
        where = f"postgresql://postgres@/postgres?host={self.cluster.folder}"
        with psycopg.connect(where, options=settings) as connection:
            return connection.execute(query).fetchall()

    # Faults.

    async def fault(self) -> None:
        """Let something bad happen."""
        name = self.rng.choice(sorted({*self.processes} - {*self.paused}))
        what = self.rng.choices(*zip(*_FAULTS.items(), strict=True))[0]
        if what == "pause" and self.paused:
            what = "kill"
        self.faults[what] += 1
        print(f"{time.strftime('%X')} {what}{f' {name}' if what in _OF_PROCESSES else ''}", flush=True)
        if what in ("kill", "stop"):
            self.processes[name].send_signal(signal.SIGKILL if what == "kill" else signal.SIGTERM)
        elif what == "pause":
            self.processes[name].send_signal(signal.SIGSTOP)
            self.paused[name] = time.monotonic() + PAUSE_SECONDS
        elif what == "cut":
            self.proxy.cut()
        elif what == "hang":
            await self.proxy.hang(self.rng.uniform(1, LEASE * 2))
        elif what == "restart":
            await asyncio.to_thread(self.cluster.stop, self.rng.choice(["fast", "immediate"]))
            await asyncio.sleep(self.rng.uniform(0, LEASE))
            await asyncio.to_thread(self.cluster.start)
        else:
            how = "read-only" if what == "read-only" else "file size"
            with self.cluster.full(how, "hookline_runs.journal"):
                await asyncio.sleep(self.rng.uniform(1, LEASE))

    async def run(self) -> list[str]:
        """Run the trial, and return what is wrong."""
        proxying = await self.proxy.start()
        for kind in ("server", "worker"):
            for number in range(2):
                self.start(f"{kind} {number}")
        tasks = [asyncio.create_task(work) for work in (self.keep_running(), self.watch())]
        client = asyncio.create_task(self.post())
        try:
            await self._until(lambda: len(self.accepted) >= OPEN_RUNS / 2, 60)
            until = time.monotonic() + self.minutes * 60
            while time.monotonic() < until and not client.done():
                await self.fault()
                await asyncio.sleep(self.rng.uniform(0.5, 5))
            self.is_posting = False
            for name in list(self.paused):
                self.paused[name] = 0.0
            print(f"{time.strftime('%X')} everything may settle", flush=True)
            self.last_end = time.monotonic()
            await self._until(client.done)
            if client.done():
                client.result()
            await self._until(lambda: self.ended.issuperset(self.accepted.values()))
            await self._until(lambda: not self.rows(_JOBS), 3 * LEASE)
            found = await self.problems()
            if found:
                await self.explain()
            return found
        finally:
            for task in (*tasks, client):
                task.cancel()
            for process in self.processes.values():
                process.send_signal(signal.SIGCONT)
                process.kill()
                process.wait()
            proxying.close()
            self.proxy.cut()
            await asyncio.sleep(0.1)  # the connections end

    async def _until(self, condition, seconds: float = math.inf) -> None:
        """Wait for a condition: for some seconds, or as long as runs end."""
        until = time.monotonic() + seconds
        while time.monotonic() < min(until, self.last_end + STUCK_SECONDS if seconds == math.inf else until):
            if await asyncio.to_thread(condition):
                return
            await asyncio.sleep(0.5)

    # The report.

    async def problems(self) -> list[str]:
        """Return what is wrong now that everything has settled."""
        found = [f"{name}: {row}" for name, query in _INVARIANTS.items() for row in self.rows(query)[:5]]
        if len(set(self.accepted.values())) != self.posted or len(self.accepted) != self.posted:
            found.append(f"{self.posted} requests, {len(set(self.accepted.values()))} runs")
        stored = dict(self.rows("SELECT run_id, correlation_id FROM runs WHERE transport != ''"))
        accepted = {*self.accepted.values()}
        found += [f"accepted, but not stored: {id}" for id in sorted(accepted - {*stored})[:5]]
        found += [f"stored, but not accepted: {id}" for id in sorted({*stored} - accepted)[:5]]
        fleet = Fleet(self.folder, self.cluster.url("hookline"), PACE, LEASE)
        ran = defaultdict[str, list[list[str]]](list)
        for line in fleet.world.lines("ran"):  # the file is long: it is read once for all runs
            ran[line[3]].append(line)
        try:
            await fleet.service.open()
            for id in sorted(accepted.intersection(stored)):
                try:
                    made = await fleet.check(id, ADMIN, ran[stored[id]])
                    self.calls += len(made)
                    self.repeated += made.total() - len(made)
                except AssertionError as error:
                    found.append(f"{id}: {str(error) or traceback.extract_tb(error.__traceback__)[-1].line}")
        finally:
            await fleet.service.close(grace=0)
            fleet.service.approvals.close()
            fleet.store.close()
        return found if self.calls else [*found, "no tool call was found in the journals"]

    async def explain(self) -> None:
        """Write what the database says of the runs that have not ended, and what each process is doing, to the logs."""
        with open(self.folder / "database.log", "w") as out:
            for title, query in _ABOUT_OPEN.items():
                print(f"--- {title}", file=out)
                try:
                    for row in self.rows(query):
                        print(*row, sep=" | ", file=out)
                except Exception as error:  # noqa: BLE001 - the other queries may tell more
                    print(error, file=out)
        for process in self.processes.values():
            process.send_signal(signal.SIGUSR1)
        await asyncio.sleep(3)  # they write their stacks

    def keep_logs(self, folder: str) -> str:
        """Copy the logs to a folder, or to a new one, and return its path."""
        path = Path(folder or tempfile.mkdtemp(prefix="hookline-chaos-"))
        path.mkdir(parents=True, exist_ok=True)
        for log in (*self.folder.glob("*.log"), Path(self.cluster.folder, "log")):
            (path / log.name).write_bytes(log.read_bytes())
        return str(path)


_FAULTS = {"kill": 10, "stop": 3, "pause": 2, "cut": 4, "hang": 2, "restart": 2, "read-only": 1, "full disk": 1}
"""How often each fault happens, relative to the others."""
_OF_PROCESSES = ("kill", "stop", "pause")
_OVER = "('completed', 'stopped', 'ended', 'failed', 'cancelled', 'interrupted')"
_ENDED = f"SELECT run_id FROM runs WHERE transport != '' AND status IN {_OVER}"
_JOBS = "SELECT id, status, queueing_lock FROM hookline_queue.procrastinate_jobs"
_JOURNAL_OVER = "d.status IN ('completed', 'stopped', 'ended', 'failed', 'cancelled')"
_INVARIANTS = {
    "the journal is open, but the run has ended": f"""SELECT d.run_id, d.status, r.status FROM durable_runs d
        JOIN runs r ON r.run_id = d.run_id WHERE r.status IN {_OVER} AND NOT {_JOURNAL_OVER}""",
    "the journal has ended, but the run is open": f"""SELECT d.run_id, d.status, r.status FROM durable_runs d
        JOIN runs r ON r.run_id = d.run_id WHERE r.status NOT IN {_OVER} AND {_JOURNAL_OVER}""",
    "the run has not ended": f"SELECT run_id, status FROM runs WHERE transport != '' AND status NOT IN {_OVER}",
    "the key has no run": """SELECT owner, key, run_id FROM idempotency_keys k
        WHERE NOT EXISTS (SELECT 1 FROM runs r WHERE r.run_id = k.run_id)""",
    "the job is left": _JOBS,
}
"""Queries that find nothing after everything has settled, when all runs have ended."""


_OPEN_RUNS = f"SELECT run_id FROM runs WHERE transport != '' AND status NOT IN {_OVER}"
_NOW = "extract(epoch FROM clock_timestamp())"
_ABOUT_OPEN = {
    "runs by status": "SELECT status, count(*) FROM runs GROUP BY 1",
    "open runs: id, conversation, status, seconds since accepted": f"""SELECT run_id, session_id, status,
        round({_NOW} - created::numeric, 1) FROM runs WHERE run_id IN ({_OPEN_RUNS}) ORDER BY created""",
    "journals of open runs: id, status, epoch, attempts, lease left, host, pid, since change, entries": f"""
        SELECT d.run_id, d.status, d.epoch, d.attempts, round(d.lease::numeric - {_NOW}, 1), d.host, d.pid,
        round({_NOW} - d.changed::numeric, 1), (SELECT count(*) FROM journal j WHERE j.run_id = d.run_id)
        FROM durable_runs d WHERE d.run_id IN ({_OPEN_RUNS}) ORDER BY d.created""",
    "jobs: id, run, status, queue, conversation, priority, worker, seconds since its heartbeat": """
        SELECT j.id, j.queueing_lock, j.status, j.queue_name, j.lock, j.priority, j.worker_id,
        round(extract(epoch FROM now() - w.last_heartbeat), 1) FROM hookline_queue.procrastinate_jobs j
        LEFT JOIN hookline_queue.procrastinate_workers w ON w.id = j.worker_id ORDER BY j.id""",
    "workers of the queue: id, seconds since heartbeat": """SELECT id,
        round(extract(epoch FROM now() - last_heartbeat), 1) FROM hookline_queue.procrastinate_workers""",
    "leases of processes: id, pid, seconds left": f"""SELECT id, pid, round(until::numeric - {_NOW}, 1)
        FROM hookline_leases.leases""",
    "connections: pid, application, state, seconds, waits for, blocked by, statement": """SELECT pid, application_name,
        state, round(extract(epoch FROM now() - state_change), 1), wait_event_type || ' ' || wait_event,
        pg_blocking_pids(pid), left(query, 200) FROM pg_stat_activity WHERE backend_type = 'client backend'""",
    "size of the largest relations": """SELECT oid::regclass, pg_relation_size(oid) FROM pg_class
        WHERE relkind IN ('r', 'i', 't') ORDER BY 2 DESC LIMIT 20""",
}
"""Queries that say why runs may not have ended."""


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def main() -> int:
    """Run the trial and print its report; with ``serve``, be one of the servers."""
    if sys.argv[1:2] == ["serve"]:
        log_with_times()
        asyncio.run(serve(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
        return 0
    parser = argparse.ArgumentParser(description="A fleet under constant faults.")
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--keep-logs", default="", help="folder for the logs, which are kept then in any case")
    options = parser.parse_args()
    if MISSING:
        print(MISSING)
        return 1
    seed = random.SystemRandom().randrange(2**31) if options.seed is None else options.seed
    print(f"{options.minutes:g} minutes, seed {seed}", flush=True)
    chaos = Chaos(options.minutes, seed)
    problems: list[str] = ["the trial did not come to its end"]
    try:
        problems = asyncio.run(chaos.run())
        made = ", ".join(f"{count} × {what}" for what, count in sorted(chaos.faults.items()))
        print(f"Faults: {made}.\n{len(chaos.accepted)} runs were accepted, {len(chaos.ended)} ended.")
        print(f"They made {chaos.calls} tool calls, and {chaos.repeated} of these again, which were in flight.")
        print(f"The longest time in which no run ended was {chaos.longest_pause:.0f} s.")
    finally:
        if options.keep_logs or problems:
            print(f"The logs are in {chaos.keep_logs(options.keep_logs)}.")
        chaos.cluster.remove()
        chaos.place.remove()
    for problem in problems:
        print(f"WRONG: {problem}")
    if problems:
        print(f"To run this trial again: make chaos MINUTES={options.minutes:g} SEED={seed}")
        return 1
    print("Each accepted run ended exactly once, and nothing contradicts itself.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
