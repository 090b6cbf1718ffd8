"""Measure the queue of durable runs on PostgreSQL: a server that accepts runs, and a worker that executes them."""

import asyncio
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import psycopg
from probes.serve_client import Connection

import hookline
from hookline.stores import RunStore

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
CLIENTS = 10
COUNTERS = ("xact_commit", "tup_inserted", "tup_updated", "tup_deleted")


def new_place(url: str) -> str:
    """Return the address of an empty installation in a database."""
    return url.replace("schema=hookline", f"schema=b{uuid4().hex[:24]}")


class Fleet:
    """A project whose server and workers share a database.

    Args:
        place: address of the database.
        folder: an empty folder.
    """

    def __init__(self, place: str, folder: Path) -> None:
        self._place, self._folder = place, folder
        (folder / "hookline.toml").write_text(CONFIG)
        (folder / "tools.py").write_text(TOOLS)

    @contextmanager
    def server(self) -> Iterator[tuple[subprocess.Popen[str], str]]:
        """Run a server that executes no runs; yield its process and its address."""
        with self._process("listening at", "serve", "--no-execute") as (process, line):
            yield process, line.partition("listening at ")[2].partition(",")[0]

    @contextmanager
    def worker(self) -> Iterator[subprocess.Popen[str]]:
        """Run a worker that executes 20 runs at once."""
        with self._process("executing the runs", "worker", "--concurrency", "20") as (process, _):
            yield process

    @contextmanager
    def _process(self, sign: str, *args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
        env = {**os.environ, "PYTHONPATH": str(Path(hookline.__file__).parents[1]), "HOOKLINE_DATABASE": self._place,
               "HOOKLINE_TRUST": "1", "OPENAI_API_KEY": "none", "XDG_DATA_HOME": str(self._folder)}  # fmt: skip
        command = [sys.executable, "-m", "hookline", *args]
        with subprocess.Popen(command, cwd=self._folder, env=env, stderr=subprocess.PIPE, text=True) as process:
            assert process.stderr is not None
            try:
                line = next(line for line in process.stderr if sign in line)
                reader = threading.Thread(target=list, args=(process.stderr,))
                reader.start()
                yield process, line
            finally:
                process.terminate()
                reader.join()


async def post(address: str, runs: int) -> None:
    """Start runs as fast as ten clients can."""
    clients = [Connection(address) for _ in range(CLIENTS)]

    async def send(client: Connection, number: int) -> None:
        for _ in range(number):
            await client.json("POST", "/runs", {"task": "go"})
        client.close()

    await asyncio.gather(*(send(client, runs // CLIENTS) for client in clients))


def cpu_seconds(*processes: subprocess.Popen[str]) -> float:
    """Return the CPU time that processes have used."""
    ticks = 0
    for process in processes:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def queue(url: str, runs: int) -> dict[str, dict[str, float]]:
    """Let a server accept runs of two model calls and a tool call, and after it a worker execute all of them.

    Returns for both, ``accepted`` and ``executed``: the ``rate`` of runs in a second, the milliseconds of ``cpu`` of
    the process for a run, and its commits and changed rows for a run, as the database counts them.

    Args:
        url: a PostgreSQL database.
        runs: number of runs, a multiple of 10.
    """
    place = new_place(url)
    with tempfile.TemporaryDirectory() as folder:
        fleet, found = Fleet(place, Path(folder)), {}
        with fleet.server(), fleet.worker() as process:  # creates the tables
            idle = cpu_seconds(process)
        with _counted(place, runs) as counted:
            with fleet.server() as (process, address):
                used, began = cpu_seconds(process), time.perf_counter()
                asyncio.run(post(address, runs))
                rate = runs / (time.perf_counter() - began)
                found["accepted"] = {"rate": rate, "cpu": (cpu_seconds(process) - used) * 1e3 / runs}
            found["accepted"] |= counted()
        store = RunStore(place)
        with _counted(place, runs) as counted:
            with fleet.worker() as process:  # it may have executed some of them by now
                until_completed(store, runs)
                used = cpu_seconds(process) - idle
            query = "SELECT min(started), max(ended) FROM runs"
            ((first, last),) = store.db.execute(query)
            store.close()
            found["executed"] = {"rate": runs / (last - first), "cpu": used * 1e3 / runs, **counted()}
    return found


def until_completed(store: RunStore, runs: int) -> None:
    """Wait until this number of runs has been completed."""
    while store.count(served=True, states=("completed",)) < runs:
        time.sleep(0.2)


@contextmanager
def _counted(place: str, runs: int) -> Iterator[Callable[[], dict[str, float]]]:
    """Yield a function that returns what the database has counted in the block for each run.

    A connection reports its figures at the latest when it ends, so the processes must have ended by then.
    """
    with psycopg.connect(place.partition("&schema")[0], autocommit=True) as connection:

        def read() -> list[int]:
            connection.execute("SELECT pg_stat_clear_snapshot()")
            query = f"SELECT {', '.join(COUNTERS)} FROM pg_stat_database WHERE datname = current_database()"
            return list(connection.execute(query).fetchone() or ())

        time.sleep(1.5)  # the connections that have just ended
        before = read()

        def counted() -> dict[str, float]:
            time.sleep(1.5)
            return {name: (after - first) / runs for name, first, after in zip(COUNTERS, before, read(), strict=True)}

        yield counted
