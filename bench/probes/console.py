"""Measure the web console: its list of runs in a browser, rows that change, and what open pages cost the runs."""

import asyncio
import os
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import cycle, islice, product
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx

from hookline import BEFORE_TOOL, Agent, HookResult, Limits, ScriptedModel, call, guard, reply, tool
from hookline.config.settings import Settings
from hookline.server import build_server
from hookline.stores.facts import Gate, ObservedRun, RunFact, Sums, Tally, add_sums
from hookline.stores.runs import RunRecord, RunStore, StoredEvent

PAGES = {
    "now": "/",
    "newest": "/console/runs",
    "older": "/console/runs?before={half}",
    "status": "/console/runs?status=failed&status=cancelled",
    "tool": "/console/runs?tool=rare",
    "word": "/console/runs?text=part 123 of",
    "text": "/console/runs?text=nowhere",
    "blocked": "/console/blocked",
    "hooks": "/console/hooks",
    "cost": "/console/cost?range=month",
}
STREAMS = (
    "/console/now",
    "/console/approvals/live",
    "/console/live/runs",
    "/console/live/runs?status=failed",
    "/console/live/runs?text=archive",
    "/console/live/runs?text=nowhere",
    "/console/live/runs?tool=rare",
    "/console/live/blocked",
    "/console/live/hooks",
    "/console/live/cost",
)
"""The streams of the pages that are open during a run: each of them is rendered for itself."""
DRAWN = """() => new Promise((done) => requestAnimationFrame(() => setTimeout(() => done(performance.now()))))"""
COUNT = """() => {
  const table = document.querySelector("#runs-rows");
  window.swaps = 0;
  const isMark = (each) => each.target.closest?.(".r-line");
  const observer = new MutationObserver((changes) => { window.swaps += changes.some(isMark); });
  observer.observe(table, { attributes: true, childList: true, subtree: true });
}"""
"""Count the updates of the table."""
STEPS = 5


@tool
async def shell(command: str) -> str:
    """Run a command."""
    return "done"


@guard(BEFORE_TOOL)
async def no_deleting(ctx: Any, payload: Any) -> HookResult | None:
    """Block a command that deletes something, after a while."""
    name, _, seconds = payload.arguments["command"].partition(" ")
    await asyncio.sleep(float(seconds))
    return HookResult.block("Nothing is deleted.") if name == "rm" else None


def _turn(request: Any) -> Any:
    """Call a tool in as many steps as the task says, with the command that it says."""
    steps, _, command = next(str(each.content) for each in request.messages if each.role == "user").partition(" ")
    done = sum(each.role == "tool" for each in request.messages)
    return call("shell", command=command) if done < int(steps) else reply("done")


def fill(path: Path, count: int) -> None:
    """Store runs that have ended: one in ten with a blocked call, one in 5,000 with a rare tool."""
    store, now = RunStore(path), time.time()
    for first in range(0, count, 2_000):
        runs, events, facts = [], [], []
        for n in range(first, min(first + 2_000, count)):
            id, at = f"run_{n:06d}", now - (count - n) * 5
            status = "failed" if n % 20 == 0 else "cancelled" if n % 33 == 0 else "completed"
            known: dict[str, Any] = {
                **dict.fromkeys(("session_id", "task_id", "correlation_id"), id),
                **{"agent": "clerk", "owner": "", "session": "", "transport": "api", "status": status, "last_seq": 2},
                **{"task": f"Look at part {n} of the archive. " * 3, "reply": "Nothing was found there. " * 10},
                **{"steps": 2, "tool_calls": 1, "input_tokens": 1_000, "output_tokens": 100, "cost": 0.01},
                **{"created": at, "started": at, "ended": at + 3, "elapsed": 3.0},
            }
            runs.append(RunRecord(id, **known))
            name = "rare" if n % 5_000 == 0 else "shell"
            events.append(StoredEvent(id, 1, "tool_started", at, b'{"type":"tool_started"}'))
            observed = ObservedRun(id, "clerk", asked="clerk")
            facts.append(RunFact(observed, at, "tool", tool=name, outcome="ok"))
            if n % 10 == 0:
                gates = (Gate("no_deleting", "guard", "block", 5, "rule 3", True),)
                known = {"tool": name, "hook": "no_deleting", "verb": "block", "refused": True, "reason": "rule 3"}
                facts.append(RunFact(observed, at, "fire", point="before_tool", **known, gates=gates))
        store.write(runs, events, facts)
    for at in range(int(now) - count * 5, int(now), 3600):
        with store.db.transaction(write=True) as db:
            add_sums(db, _figures(at // 300 * 300))
    store.close()


def _figures(at: int) -> Tally:
    """Return what ten hooks and three models did for ten callers in an hour."""
    tally, callers = Tally(), [f"key_{n}" for n in range(10)]
    for owner, hook, point in product(callers, range(10), ("before_llm", "before_tool", "after_tool")):
        whose = owner, at, "clerk", "clerk", "hook", f"hook_{hook}", point
        tally.update({(*whose, "cont", "", "", took): Sums(6, last=at) for took in range(12, 17)})
        tally[*whose, "block", "", "", 14] = Sums(1, last=at)
    for owner, model in product(callers, range(3)):
        key = owner, at, "clerk", "clerk", "model", f"model-{model}", "", "", "", "", 80
        tally[key] = Sums(48, 48.0, 24_000, 2_400, 0, 0.24, last=at)
    return tally


@contextmanager
def server(count: int) -> Iterator[str]:
    """Serve a console with this number of runs, in another thread; yields its address."""
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder, "runs.db"), count)
        settings = Settings(
            runs=f"{folder}/runs.db",
            sessions=f"{folder}/sessions.db",
            approval_file=f"{folder}/approvals.db",
            server={"port": 0, "keys": f"{folder}/keys.db", "max_runs": 200, "max_runs_per_caller": 500, "rate": 1e6},
        )
        agent = Agent(
            "clerk",
            llm=ScriptedModel([_turn], loop=True),
            tools=[shell],
            hooks=[no_deleting],
            limits=Limits(steps=10**6),
        )
        made, loop = build_server(settings, agent, home=Path(folder)), asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(made.start(), loop).result()
            yield made.url
        finally:
            asyncio.run_coroutine_threadsafe(made.stop(grace=0), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


@contextmanager
def browser() -> Iterator[Any]:
    """A tab of Chromium; ``None`` if there is no browser."""
    from playwright.sync_api import sync_playwright

    chromium = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        yield None
        return
    with sync_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        opened = driver.chromium.launch(executable_path=chromium, args=options)
        yield opened.new_page(viewport={"width": 1400, "height": 900})
        opened.close()


def pages(count: int, loads: int) -> dict[str, list[float]]:
    """Return how many milliseconds each list takes, from the click to the first frame with its rows.

    Names with ``, CPU time`` have that of the browser's main thread, and names with ``, server`` how long the server
    takes to answer.
    """
    found: dict[str, list[float]] = {}
    with server(count) as url, browser() as tab:
        if tab is None:
            return {}
        tab.goto(f"{url}/healthz")
        busy = _meter(tab)
        with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
            for name, path in [*PAGES.items()] * loads:
                began = time.perf_counter()
                client.get(path.format(half=f"run_{count // 2:06d}")).raise_for_status()
                found.setdefault(f"{name}, server", []).append(1000 * (time.perf_counter() - began))
        for _ in range(loads):
            for name, path in PAGES.items():
                tab.goto(f"{url}/healthz")  # no other page is open meanwhile
                tab.wait_for_timeout(600)  # the server ends what it does for the last page
                before = busy()
                tab.goto(url + path.format(half=f"run_{count // 2:06d}"), wait_until="domcontentloaded")
                found.setdefault(name, []).append(tab.evaluate(DRAWN))
                found.setdefault(f"{name}, CPU time", []).append(1000 * (busy() - before))
    return found


def _meter(tab: Any) -> Callable[[], float]:
    """Return a function that returns the seconds of CPU time that the main thread of a tab has used."""
    metrics = tab.context.new_cdp_session(tab)
    metrics.send("Performance.enable", {"timeDomain": "threadTicks"})  # whatever else the machine does

    def busy() -> float:
        taken = metrics.send("Performance.getMetrics")["metrics"]
        return float(next(one["value"] for one in taken if one["name"] == "TaskDuration"))

    return busy


def live(rows: int, seconds: float) -> dict[str, float]:
    """Return the share of the browser's main thread that rows take which all change twice a second."""
    with server(0) as url, browser() as tab, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        if tab is None:
            return {}
        ids = [client.post("/runs", json={"task": "1000000 rm 0.4"}).json()["id"] for _ in range(rows)]
        tab.goto(f"{url}/console/runs", wait_until="domcontentloaded")
        tab.locator(".rl .g").nth(min(rows, 50) - 1).wait_for(state="attached")
        tab.evaluate(COUNT)
        busy = _meter(tab)
        before, began = busy(), time.perf_counter()
        tab.wait_for_timeout(seconds * 1000)
        used, took = busy() - before, time.perf_counter() - began
        swaps = tab.evaluate("window.swaps")
        for id in ids:
            client.post(f"/runs/{id}/cancel")
        return {"share": used / took, "updates": swaps / took}


def watched(consoles: int, runs: int) -> dict[str, float]:
    """Return the seconds of a run of five steps while this number of pages of the console is open."""
    with server(1_000) as url, httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
        reader = asyncio.new_event_loop()
        thread = threading.Thread(target=reader.run_forever)
        thread.start()
        paths = islice(cycle(STREAMS), consoles)
        streams = [asyncio.run_coroutine_threadsafe(_read(url, path), reader) for path in paths]
        times = []
        try:
            time.sleep(0.5 if consoles else 0.0)
            for _ in range(runs):
                began = time.perf_counter()
                client.post("/runs", json={"task": f"{STEPS} ls 0", "wait": 60}).raise_for_status()
                times.append(time.perf_counter() - began)
        finally:
            for each in streams:
                each.cancel()
            asyncio.run_coroutine_threadsafe(asyncio.sleep(0.1), reader).result()
            reader.call_soon_threadsafe(reader.stop)
            thread.join()
            reader.close()
    return {"median": statistics.median(times), "p95": sorted(times)[int(len(times) * 0.95)]}


async def _read(url: str, path: str) -> None:
    """Read the stream of a page until it is cancelled. A browser does more with it, but in another process."""
    where = urlsplit(url)
    stream, out = await asyncio.open_connection(where.hostname, where.port)
    out.write(f"GET {path} HTTP/1.1\r\nHost: {where.netloc}\r\n\r\n".encode())
    try:
        while await stream.read(65_536):
            pass
    finally:
        out.close()
