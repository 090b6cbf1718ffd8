"""Measure durable runs: what a call costs, how soon another process sees an event, lists of many runs, and a fleet."""

import asyncio
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec
from peers.hookline_ import FakeModel, add
from probes.serve import ME, agent
from probes.serve_client import Connection
from workload import PROMPT, Spec

from hookline import Agent
from hookline.config.settings import Settings
from hookline.server.build import build_server
from hookline.stores import RunStore
from hookline.stores.run_statistics import run_stats
from hookline.stores.runs import DURABLE, PARTS, RunRecord

ROOT = Path(__file__).parents[2]


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
    bench = Agent("bench", llm=FakeModel(Spec(steps=steps)), tools=[add], max_steps=math.inf)
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


CONFIG = """
model = "openai:none"
default_tools = false
tools = ["tools.py"]
hooks = ["tools.py"]
audit = "none"

[server]
port = 0
durable = true
max_queued = 100000
max_runs_per_caller = 100000
rate = 1e9
burst = 1000000
"""
TOOLS = """
from hookline import BEFORE_LLM, HookResult, hook, tool
from hookline.payloads import ToolCall
from hookline.models import ModelResponse


@tool
async def add(a: int, b: int) -> str:
    return "3"


@hook(BEFORE_LLM)
def model(ctx, request):
    turn = sum(message.role == "assistant" for message in request.messages)
    call = ToolCall("c0", "add", {"a": 1, "b": 2})
    return HookResult.answer(ModelResponse("", (call,)) if turn == 0 else ModelResponse("done"))
"""


def fleet(url: str, workers: int, runs: int) -> dict[str, float]:
    """Measure a server and its workers: how many runs of two model calls and a tool call they complete in a second.

    Returns that ``rate``, and the milliseconds of ``cpu`` time for a run in the server and the workers together.

    Args:
        url: a PostgreSQL database.
        workers: number of worker processes.
        runs: number of runs, a multiple of 10: ten clients start them as fast as they can.
    """
    with _place(url) as place, ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "hookline.toml").write_text(CONFIG)
        (folder / "tools.py").write_text(TOOLS)
        processes: list[subprocess.Popen[str]] = []

        def start(*args: str) -> Iterator[str]:
            command = [sys.executable, "-m", "hookline", *args]
            path = str(ROOT / "src")
            env = {**os.environ, "PYTHONPATH": path, "HOOKLINE_DATABASE": place, "HOOKLINE_TRUST": "1",
                   "OPENAI_API_KEY": "none", "XDG_DATA_HOME": str(folder)}  # fmt: skip
            process = subprocess.Popen(command, cwd=folder, env=env, stderr=subprocess.PIPE, text=True)
            processes.append(process)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            assert process.stderr is not None
            return iter(process.stderr)

        log = start("serve", "--no-execute")
        line = next(line for line in log if "listening at" in line)
        address = line.partition("listening at ")[2].partition(",")[0]
        threading.Thread(target=list, args=(log,), daemon=True).start()
        for log in [start("worker", "--concurrency", "20") for _ in range(workers)]:
            assert any("executing the runs" in line for line in log)
            threading.Thread(target=list, args=(log,), daemon=True).start()
        store = RunStore(place)
        stack.callback(store.close)
        used, began = _cpu_seconds(processes), time.perf_counter()
        asyncio.run(_accept(address, runs))
        while store.count(served=True, states=("completed",)) < runs:
            time.sleep(0.1)
        seconds = time.perf_counter() - began
        return {"rate": runs / seconds, "cpu": (_cpu_seconds(processes) - used) * 1e3 / runs}


def _cpu_seconds(processes: list[subprocess.Popen[str]]) -> float:
    """Return the CPU time that processes have used."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


async def _accept(address: str, runs: int) -> None:
    clients = [Connection(address) for _ in range(10)]

    async def send(client: Connection, number: int) -> None:
        for _ in range(number):
            await client.json("POST", "/runs", {"task": "go"})
        client.close()

    await asyncio.gather(*(send(client, runs // len(clients)) for client in clients))


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
            "look for runs to take over": lambda: [store.to_execute()],
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
    columns = {name: _columns(store, name) for name in ("runs", "durable_runs", "journal", "events", *PARTS[:2])}
    every: dict[str, Iterator[tuple[Any, ...]]] = {
        "runs": map(msgspec.structs.astuple, records),
        "durable_runs": (
            (id, "bench", "waiting" if number % (runs // WAITING) == 0 else "completed", 1, 0.0, "", 0, None, 1, began,
             began + 1, b"{}" * 100, b"[]", "")
            for number, (id, began) in enumerate(zip(ids, at, strict=True))
        ),
        "journal": ((id, 1, b"[[]]" * 100) for id in ids),
        "events": (
            (id, seq, "token", began, b"{}" * 50, "", "", "", 0)
            for id, began in zip(ids, at, strict=True)
            for seq in (1, 2)
        ),
        "model_calls": (
            (id, began, hop, 1, "step", "fake", "bench", "", "model", "cont", "stop", 100, 20, 0, 0.001, 0.5)
            for id, began in zip(ids, at, strict=True)
            for hop in (1, 2)
        ),
        "tool_calls": ((id, began, "c0", 1, "add", "ok", 0.1) for id, began in zip(ids, at, strict=True)),
    }  # fmt: skip
    if store.db.is_shared:
        with store.db.bulk_transaction() as connection:  # type: ignore[attr-defined]
            for table, rows in every.items():
                store.db.copy_rows(connection, table, columns[table], rows)  # type: ignore[attr-defined]
        store.db.execute("ANALYZE", write=True)  # as autovacuum does after a while
        return
    with store.db.transaction(write=True) as db:
        for table, rows in every.items():
            db.executemany(f"INSERT INTO {table} VALUES ({','.join('?' * len(columns[table]))})", rows)


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
