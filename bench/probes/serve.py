"""Measure many clients that follow runs of one server, with a scripted model.

The server is built as ``hookline serve`` builds it: every run and event is on disk before a client sees it. Each run
has three steps and two tool calls, and streams its text word by word, with a pause before each word. Clients run in
another process. ``bare``: the same runs without a server. ``service``: served runs, read in this process.
"""

import asyncio
import gc
import json
import os
import resource
import statistics
import sys
import tempfile
import time
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from probes.serve_client import AGENT, FINAL

from hookline import Agent, ScriptedModel, call, tool
from hookline.config.settings import Settings
from hookline.server import Caller
from hookline.server.build import build_server

HERE = Path(__file__).parent
KINDS = ("bare", "service", "flood", "sse", "stalled", "resume", "a2a", "openai")
STREAMED = KINDS[2:]
AT_ONCE = KINDS[:3]
"""Kinds without a pause between words, to measure the throughput."""
ME = Caller("local", "local", frozenset(("read", "run")))
MUCH = "x" * 20_000
WORDS = {"go": ("I shall look at this first.", "Then I look again at that.", FINAL), "say much": (f"{MUCH} " * 50,)}


def agent(delay: float) -> Agent:
    """Return the scripted agent: two tool calls and a short answer, or one long answer."""

    @tool
    async def look(at: int) -> str:
        """Look at something."""
        await asyncio.sleep(delay)
        return f"number {at} is there"

    def turn(request: Any) -> Any:
        roles = [message.role for message in request.messages]
        asked = next(message.content for message in reversed(request.messages) if message.role == "user")
        step = roles[::-1].index("user") // 2
        text = WORDS[asked][step]
        return [text, call("look", at=step)] if step + 1 < len(WORDS[asked]) else text

    model = ScriptedModel([turn], delay=delay, loop=True)
    model.requests = _Forgetful()
    return Agent(AGENT, llm=model, tools=[look])


class _Forgetful(list[Any]):
    """A list that drops everything: recorded requests would distort the memory figures."""

    def append(self, _: Any) -> None:
        pass


def rss() -> float:
    """Return the resident memory of this process in megabytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


@asynccontextmanager
async def serving(folder: str, delay: float, clients: int) -> Any:
    """Start a server whose limits admit all clients."""
    room = {"max_runs": clients + 20, "max_runs_per_caller": clients + 50, "rate": 1e9, "burst": 1_000_000}
    settings = Settings(
        server={"port": 0, "max_streams_per_caller": clients + 50, **room},
        runs=f"{folder}/runs.db", sessions=f"{folder}/sessions.db", approval_file=f"{folder}/approvals.db",
    )  # fmt: skip
    server = build_server(settings, agent(delay), home=Path(folder))
    await server.start()
    yield server
    await server.stop(grace=0)


async def bare(clients: int, delay: float) -> int:
    """Run without a server, and return the number of events."""
    seen: list[None] = []
    bench = agent(delay)
    runs = [bench.start("go", sinks=[lambda _: seen.append(None)]) for _ in range(clients)]
    await asyncio.gather(*(run.result() for run in runs))
    return len(seen)


async def within(server: Any, clients: int) -> int:
    """Read served runs in this process, and return the number of events."""

    async def one() -> int:
        run = await server.service.start(ME, "go")
        reader = await server.service.read(run.id, ME)
        count = len([event.seq async for event in reader])
        reader.close()
        return count

    return sum(await asyncio.gather(*(one() for _ in range(clients))))


async def inside(kind: str, folder: str, clients: int, delay: float) -> dict[str, Any]:
    """Run one of the kinds without clients."""
    if kind == "bare":
        await bare(2, 0.0)
        began, cpu = time.perf_counter(), time.process_time()
        events = await bare(clients, delay)
        took = time.perf_counter() - began
    else:
        async with serving(folder, delay, clients) as server:
            await within(server, 2)
            began, cpu = time.perf_counter(), time.process_time()
            events = await within(server, clients)
            took = time.perf_counter() - began
    return {"events": events, "took": took, "cpu": time.process_time() - cpu}


async def outside(kind: str, folder: str, clients: int, delay: float) -> dict[str, Any]:
    """Run the clients in another process."""
    async with serving(folder, delay, clients) as server:
        command = [str(HERE / "serve_client.py"), kind, server.url, "--clients", str(clients)]
        client = await asyncio.create_subprocess_exec(
            sys.executable, *command, limit=2**26, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
        )
        assert client.stdin is not None
        assert client.stdout is not None
        assert await client.stdout.readline() == b"ready\n"
        while server.service.unfinished():
            await asyncio.sleep(0.1)  # the unread text is being streamed
        await server.service.list(ME)  # everything is on disk now
        gc.collect()
        before, cpu = rss(), time.process_time()
        client.stdin.write(b"\n")
        outcome: dict[str, Any] = json.loads(await client.stdout.readline() or "null")
        cpu = time.process_time() - cpu
        assert await client.wait() == 0, "a client failed"
        while server.service.counts()["readers"]:
            await asyncio.sleep(0.01)
        gc.collect()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3 * 1.024
        outcome |= {"cpu": cpu, "rss": {"before": before, "peak": peak, "after": rss()}}
    for name in ("first", "whole"):
        cuts = statistics.quantiles(outcome[name], n=100)
        outcome[name] = {"p50": cuts[49], "p95": cuts[94]}
    return outcome


async def _measured(kind: str, clients: int, delay: float) -> dict[str, Any]:
    """Return times and costs, and whether each client received everything in order."""
    delay = 0.0 if kind in AT_ONCE else delay
    with tempfile.TemporaryDirectory() as folder:
        how = outside if kind in STREAMED else inside
        found = await how(kind, folder, clients, delay)
    return {"clients": clients, **found}


def serve(kind: str, clients: int, delay: float) -> dict[str, Any]:
    """Run one kind of measurement."""
    return asyncio.run(_measured(kind, clients, delay))
