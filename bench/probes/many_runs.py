"""Measure a store with many runs: pages, filters, text search, the start of a server, and the deletion of old runs."""

import asyncio
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

from stored_runs import DAYS, MADE, RARE_TOOL, RARE_VERB, RARE_WORD, fill, run_id

from hookline import Agent, ScriptedModel, reply
from hookline.config.settings import Settings
from hookline.server import build_server
from hookline.stores.run_figures import costs, hook_figures
from hookline.stores.run_queries import refusals
from hookline.stores.run_statistics import run_stats
from hookline.stores.runs import NewRun, RunRecord, RunStore, StoredEvent

PAGE = 51
PART = 10
"""Old runs are one in ten."""
WEEK = 7 * 86400.0


def filled(place: str, runs: int) -> float:
    """Fill a store, and return the seconds that it took."""
    return fill(place, runs)


def queries(place: str, runs: int, times: int = 5) -> dict[str, float]:
    """Return the median milliseconds of each page and filter. Each one is read to its end, however long that takes."""
    store = RunStore(place)
    listed: dict[str, Any] = {"outermost": True}
    base, now = min(runs, MADE), time.time()
    middle = run_id(runs // base // 2, base // 2)
    questions: dict[str, Callable[[], Any]] = {
        "the newest runs": lambda: store.runs(PAGE, **listed),
        "a page in the middle": lambda: store.runs(PAGE, before=middle, **listed),
        "runs of an owner": lambda: store.runs(PAGE, owner="key_7", **listed),
        "failed runs of an owner": lambda: store.runs(PAGE, owner="key_7", states=("failed",), **listed),
        "failed runs of the busiest owner": lambda: store.runs(PAGE, owner="key_0", states=("failed",), **listed),
        "failed runs of the busiest agent": lambda: store.runs(PAGE, agent="agent_0", states=("failed",), **listed),
        "failed or cancelled runs": lambda: store.runs(PAGE, states=("failed", "cancelled"), **listed),
        "open runs of an owner": lambda: store.runs(PAGE, owner="key_7", states=("queued", "running"), **listed),
        "runs with a common tool": lambda: store.runs(PAGE, tool="shell", **listed),
        "runs with a rare tool": lambda: store.runs(PAGE, tool=RARE_TOOL, **listed),
        "runs with a common verb": lambda: store.runs(PAGE, verb="block", **listed),
        "runs with a rare verb": lambda: store.runs(PAGE, verb=RARE_VERB, **listed),
        "refusals by a rare verb": lambda: refusals(store, PAGE, verb=RARE_VERB),
        "the newest refusals": lambda: refusals(store, PAGE),
        "the calls of a run": lambda: store.calls(middle),
        "the facts of a run and its subagents": lambda: store.tree_facts(middle),
        "a common text": lambda: store.runs(PAGE, text="archive", **listed),
        "a text that few runs have": lambda: store.runs(PAGE, text="word17", **listed),
        "a text that two runs have": lambda: store.runs(PAGE, text=RARE_WORD, **listed),
        "a text that no run has": lambda: store.runs(PAGE, text="nowhere", **listed),
        "a common text in the runs of an owner": lambda: store.runs(PAGE, text="archive", owner="key_7", **listed),
        "statistics of a week": lambda: run_stats(store, since=now - WEEK),
        "statistics of 30 days": lambda: run_stats(store, since=now - 30 * 86400),
        "statistics of 30 days of an owner": lambda: run_stats(store, since=now - 30 * 86400, owner="key_7"),
        "figures of hooks of a month": lambda: hook_figures(store, "month"),
        "costs of a month": lambda: costs(store, "month"),
    }
    found = {}
    for name, ask in questions.items():
        taken = []
        for _ in range(times):
            began = time.perf_counter()
            ask()
            taken.append(1000 * (time.perf_counter() - began))
            if sum(taken) > 10_000:
                break
        found[name] = statistics.median(taken)
    store.close()
    return found


def started(place: str) -> float:
    """Return the seconds until a server with this store accepts runs."""
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            runs=place,
            sessions=f"{folder}/sessions.db",
            approval_file=f"{folder}/approvals.db",
            server={"port": 0, "keys": f"{folder}/keys.db", "durable": True},
        )
        agent = Agent("agent_0", llm=ScriptedModel([reply("done")], loop=True))

        async def start() -> float:
            began = time.perf_counter()
            server = build_server(settings, agent, home=Path(folder))
            await server.start()
            taken = time.perf_counter() - began
            await server.stop(grace=0)
            return taken

        return asyncio.run(start())


def pruned(place: str, days: float = DAYS - DAYS / PART) -> dict[str, float]:
    """Delete the oldest runs as a server does. Return the seconds, and how long new runs took meanwhile, in ms."""
    store, is_over = RunStore(place), threading.Event()
    waits: list[float] = []

    def accept() -> None:
        other = RunStore(place)
        for number in count(1):
            id, now = f"run_new{number}", time.time()
            run = RunRecord(id, "agent_0", "me", "s", id, id, id, "api", "x", created=now, host="durable")
            began = time.perf_counter()
            other.accept([NewRun(run, StoredEvent(id, 1, "run_accepted", now, b"{}"), b"{}")], limit=10**6)
            waits.append(1000 * (time.perf_counter() - began))
            if is_over.wait(0.05):
                break
        other.close()

    for _ in store.tidy():  # sums of hours that are too old
        pass
    thread = threading.Thread(target=accept)
    thread.start()
    began = time.perf_counter()
    deleted = store.prune_served(days)
    taken = time.perf_counter() - began
    is_over.set()
    thread.join()
    store.close()
    return {"runs": deleted, "seconds": taken, "median wait": statistics.median(waits), "longest wait": max(waits)}
