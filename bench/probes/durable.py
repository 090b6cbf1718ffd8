"""Measure durable runs: what a call costs, how soon another process sees an event, lists of many runs, and a fleet."""

import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from peers.hookline_ import FakeModel, add
from probes.run_queue import Fleet, cpu_seconds, post, until_completed
from probes.serve import ME, agent
from probes.serve_client import Connection
from workload import PROMPT, Spec

from hookline import Agent, Limits
from hookline.config.settings import Settings
from hookline.server import Caller
from hookline.server.agents import Agents
from hookline.server.build import build_server
from hookline.server.options import ServerOptions
from hookline.server.runs import RunService
from hookline.stores import ApprovalStore, RunStore
from hookline.stores.facts import ObservedRun, RunFact
from hookline.stores.run_statistics import run_stats
from hookline.stores.runs import DURABLE, RunRecord
from hookline.stores.sessions import JsonSessionStore

ROOT = Path(__file__).parents[2]
OTHER = Caller("other", "other", ME.scopes)


@contextmanager
def _place(url: str) -> Iterator[str]:
    """Yield the address of an empty place for runs: in PostgreSQL, or a new file."""
    with tempfile.TemporaryDirectory() as folder:
        name = f"b{uuid4().hex[:24]}"
        yield url.replace("schema=hookline", f"schema={name}") if url else f"{folder}/runs.db"


def calls(kind: str, url: str, steps: int, reps: int) -> list[float]:
    """Return milliseconds of wall time for each call of a model or a tool, which take no time themselves.

    Args:
        kind: ``plain``, ``durable``, or ``synced``.
        url: a PostgreSQL database, or empty for a SQLite file.
        steps: number of model calls of a run; each but the last has a tool call.
        reps: number of runs.
    """
    bench = Agent("bench", llm=FakeModel(Spec(steps=steps)), tools=[add], limits=Limits(steps=math.inf))
    found = []
    with _place(url) as place:
        store = RunStore(place, synced=kind == "synced")
        options: dict[str, Any] = {} if kind == "plain" else {"durable": store}

        async def run() -> None:
            await bench.arun(PROMPT, **options)  # connects, and creates the tables
            for _ in range(reps):
                began = time.perf_counter()
                await bench.arun(PROMPT, **options)
                found.append((time.perf_counter() - began) * 1e3 / (2 * steps - 1))

        asyncio.run(run())
        store.close()
    return found


def follow(url: str, delay: float) -> dict[str, float]:
    """Return milliseconds from an event in one server to its arrival at a client of another, and the number of events.

    Args:
        url: a PostgreSQL database, or empty for a SQLite file that both share.
        delay: seconds between two pieces of text.
    """
    with _place(url) as place, _server(place, delay) as first, _server(place, delay) as second:
        late = asyncio.run(_follow(first, second))
    cuts = statistics.quantiles(late, n=100)
    return {"p50": cuts[49], "p95": cuts[94], "events": len(late)}


async def _follow(first: str, second: str) -> list[float]:
    starter, follower = Connection(first), Connection(second)
    run = await starter.json("POST", "/runs", {"task": "go"})
    await follower.ask("GET", f"/runs/{run['id']}/events")
    late = []
    async for block in follower.pieces():
        now = time.time()
        for line in block.decode().splitlines():
            if line.startswith("data: "):
                late.append((now - json.loads(line.removeprefix("data: "))["at"]) * 1e3)
    starter.close()
    follower.close()
    return late[1:]  # the first one was there before the client was


@contextmanager
def _server(place: str, delay: float) -> Iterator[str]:
    """Start a server in another process; yield its address."""
    code = f"from probes.durable import serve; serve({place!r}, {delay!r})"
    path = os.pathsep.join(map(str, (ROOT / "bench", ROOT / "src")))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.stdin.close()


def serve(place: str, delay: float) -> None:
    """Serve until the standard input ends."""

    async def run() -> None:
        with tempfile.TemporaryDirectory() as folder:
            settings = Settings(
                server={"port": 0, "keys": f"{folder}/keys.db"}, runs=place, sessions=f"{folder}/sessions.db",
                approval_file=f"{folder}/approvals.db",
            )  # fmt: skip
            server = build_server(settings, agent(delay), home=Path(folder))
            await server.start()
            print(server.url, flush=True)
            await asyncio.to_thread(sys.stdin.read)
            await server.stop(grace=0)

    asyncio.run(run())


def fleet(url: str, workers: int, runs: int) -> dict[str, float]:
    """Measure a server and its workers: how many runs of two model calls and a tool call they complete in a second.

    Returns that ``rate``, and the milliseconds of ``cpu`` time for a run in the server and the workers together.

    Args:
        url: a PostgreSQL database.
        workers: number of worker processes.
        runs: number of runs, a multiple of 10: ten clients start them as fast as they can.
    """
    with _place(url) as place, ExitStack() as stack:
        started = Fleet(place, Path(stack.enter_context(tempfile.TemporaryDirectory())))
        server, address = stack.enter_context(started.server())
        processes = [server, *(stack.enter_context(started.worker()) for _ in range(workers))]
        store = RunStore(place)
        stack.callback(store.close)
        used, began = cpu_seconds(*processes), time.perf_counter()
        asyncio.run(post(address, runs))
        until_completed(store, runs)
        seconds = time.perf_counter() - began
        return {"rate": runs / seconds, "cpu": (cpu_seconds(*processes) - used) * 1e3 / runs}


def turns(url: str, runs: int) -> dict[str, float]:
    """Measure how long a run waits for its start behind many runs that one caller has queued.

    Returns the seconds from the start of a worker until a run of ``the same caller`` and one of ``another caller``
    begin, each of which was accepted last.

    Args:
        url: a PostgreSQL database, or empty for a SQLite file.
        runs: number of queued runs.
    """
    return {whose: asyncio.run(_wait_behind(url, runs, whose)) for whose in ("the same caller", "another caller")}


async def _wait_behind(url: str, runs: int, whose: str) -> float:
    with _place(url) as place, ExitStack() as stack:
        store, approvals = RunStore(place), ApprovalStore(":memory:")
        stack.callback(store.close)
        stack.callback(approvals.close)
        sessions = JsonSessionStore(stack.enter_context(tempfile.TemporaryDirectory()))
        agents = Agents({"bench": Agent("bench", llm=FakeModel(Spec(steps=2)), tools=[add])})

        async def serve(*, execute: bool) -> RunService:
            limits = ServerOptions(
                durable=True, execute=execute, max_runs=20, max_queued=runs + 1, max_runs_per_caller=runs + 1
            )
            service = RunService(agents, store, approvals=approvals, sessions=sessions, options=limits)
            await service.open()
            return service

        accepting = await serve(execute=False)
        for _ in range(runs):
            await accepting.start(ME, "go")
        last = await accepting.start(ME if whose == "the same caller" else OTHER, "go")
        began, executing = time.time(), await serve(execute=True)
        try:
            while (found := store.get(last.id)) is None or found.started is None:
                await asyncio.sleep(0.01)
            return found.started - began
        finally:
            await executing.close(grace=0)
            await accepting.close(grace=0)


WAITING = 10
"""Runs among the stored ones that wait for an approval."""


def stored(url: str, runs: int, reps: int) -> dict[str, list[float]]:
    """Return milliseconds for questions about many stored durable runs, ten of which wait for an approval.

    Args:
        url: a PostgreSQL database, or empty for a SQLite file.
        runs: number of stored runs.
        reps: how often each question is asked.
    """
    with _place(url) as place, ExitStack() as stack:
        store = RunStore(place)
        stack.callback(store.close)
        now = time.time()
        _fill(store, runs, now)
        middle, session = f"run_{runs // 2:08}", "s5"
        questions: dict[str, Callable[[], Any]] = {
            "list the newest 50": lambda: store.runs(50, served=True, owner=ME.id),
            "list 50 in the middle": lambda: store.runs(50, served=True, owner=ME.id, before=middle),
            "list those that wait": lambda: store.runs(50, served=True, states=("waiting",)),
            "list 50 that failed": lambda: store.runs(50, served=True, states=("failed",)),
            "list 50 of a rare agent": lambda: store.runs(50, served=True, agent="rare"),
            "list 50 of a conversation": lambda: store.runs(50, served=True, session_id=session),
            "list 50 since a minute": lambda: store.runs(50, served=True, since=now - 60),
            "one run": lambda: store.get(middle),
            "one run by the beginning of its id": lambda: store.find(middle[:-1] + "0"),
            "count the queued": lambda: [store.count(served=True, states=("queued",))],
            "look for runs to take over": lambda: [store.to_execute(begun=True)],
            "look for runs of ended processes": lambda: [store.abandoned()],
            "hookline runs list": lambda: store.journal.runs("new", "running", "waiting", "interrupted"),
            "hookline runs list --all": lambda: store.journal.runs(limit=1000),
            "hookline doctor": store.journal.states,
            "hookline stats --since 1h": lambda: run_stats(store, since=now - 3600),
        }
        found: dict[str, list[float]] = {}

        def ask(name: str, question: Callable[[], Any]) -> None:
            began = time.perf_counter()
            assert question(), name
            found.setdefault(name, []).append((time.perf_counter() - began) * 1e3)

        for _ in range(reps):
            for name, question in questions.items():
                ask(name, question)
        ask("hookline stats, all runs", lambda: run_stats(store))
        old = min(500, runs // 2)
        days = (runs - old) / 24 / 3600
        ask(f"delete {old} old runs", lambda: store.prune_served(days))
        ask(f"delete the statistics of {old} old runs", lambda: store.prune(days))
    return found


def _fill(store: RunStore, runs: int, now: float) -> None:
    """Store runs of the last ``runs`` seconds, one a second, each with a journal, events and the records of a hook."""
    numbers = range(runs)
    at = [now - runs + number for number in numbers]
    ids = [f"run_{number:08}" for number in numbers]
    records = (_record(ids[number], number, runs, at[number]) for number in numbers)
    columns = {name: _columns(store, name) for name in ("runs", "durable_runs", "journal", "events")}
    every: dict[str, Iterator[tuple[Any, ...]]] = {
        "runs": map(msgspec.structs.astuple, records),
        "durable_runs": (
            (id, "bench", "waiting" if number % (runs // WAITING) == 0 else "completed", 1, 0.0, "", 0, None, 1, began,
             began + 1, b"{}" * 100, b"[]", "")
            for number, (id, began) in enumerate(zip(ids, at, strict=True))
        ),
        "journal": ((id, 1, b"[[]]" * 100) for id in ids),
        "events": (
            (id, seq, "token", began, b"{}" * 50)
            for id, began in zip(ids, at, strict=True)
            for seq in (1, 2)
        ),
    }  # fmt: skip
    if store.db.is_shared:
        with store.db.bulk_transaction() as connection:  # type: ignore[attr-defined]
            for table, rows in every.items():
                store.db.copy_rows(connection, table, columns[table], rows)  # type: ignore[attr-defined]
    else:
        with store.db.transaction(write=True) as db:
            for table, rows in every.items():
                db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(columns[table]))})", rows)
    for first in range(0, runs, 1000):
        pairs = zip(ids[first : first + 1000], at[first : first + 1000], strict=True)
        store.add((), [fact for id, began in pairs for fact in _facts(id, began)])
    if store.db.is_shared:
        store.db.execute("ANALYZE", write=True)  # as autovacuum does after a while


def _facts(id: str, at: float) -> Iterator[RunFact]:
    run = ObservedRun(id, "bench", asked="bench", owner=ME.id)
    for hop in (1, 2):
        yield RunFact(
            run, at, "model", model="fake", source="model", outcome="stop", hop=hop, attempt=1, input_tokens=100,
            output_tokens=20, cost=0.001, duration=0.5,
        )  # fmt: skip
    yield RunFact(run, at, "tool", call_id="c0", tool="add", outcome="ok", attempt=1, duration=0.1)


def _columns(store: RunStore, table: str) -> list[str]:
    if not store.db.is_shared:
        return [name for _, name, *_ in store.db.execute(f"PRAGMA table_info({table})")]
    query = """SELECT column_name FROM information_schema.columns
        WHERE table_schema = current_schema() AND table_name = ? ORDER BY ordinal_position"""
    return [str(name) for (name,) in store.db.execute(query, (table,))]


def _record(id: str, number: int, runs: int, at: float) -> RunRecord:
    waits, failed = number % (runs // WAITING) == 0, number % 97 == 1
    return RunRecord(
        id, "rare" if number % 10_000 == 3 else "bench", ME.id, "s", f"s{number % 100}", f"t{number}", f"c{number}",
        "api", task="Add the numbers. " * 5, status="waiting" if waits else "failed" if failed else "completed",
        reply="" if waits else "It is done. " * 10, created=at, started=at, ended=None if waits else at + 1,
        elapsed=None if waits else 1.0, host=DURABLE, observed=True,
    )  # fmt: skip
