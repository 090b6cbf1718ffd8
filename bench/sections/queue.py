"""Section: the queue of durable runs on PostgreSQL, before and now."""

import os
from typing import Any

from earlier import BEFORE, sources
from figures import number, prose, table
from lab import Lab
from postgres_server import postgres
from section import Section

ROWS = {
    "rate": "runs in a second",
    "cpu": "CPU of the process for a run",
    "xact_commit": "commits for a run",
    "tup_inserted": "rows inserted for a run",
    "tup_updated": "rows updated for a run",
}
PARTS = {"accepted": "A server accepts the runs", "executed": "A worker executes them"}


def measure(lab: Lab) -> dict[str, Any]:
    runs, taken = lab.pick(300, 10), dict[str, Any]()
    with postgres() as url, sources(lab) as found:
        for source in lab.turns(found if url else (), 1):
            taken[source] = lab.probe_source(found[source], "probes.run_queue:queue", url=url, runs=runs)
        load = os.getloadavg()[1]
        queued, urls = lab.pick(5_000, 20), {"SQLite": "", **({"PostgreSQL": url} if url else {})}
        waits = {
            name: lab.probe("probes.durable:turns", url=urls[name], runs=queued)
            for name in lab.turns(urls, 1, "turns, {}".format)
        }
    return {"runs": runs, "sources": taken, "load": load, "waits": {"queued": queued, "seconds": waits}}


def render(data: Any) -> str:
    found = [data["sources"][source] for source in ("before", "now") if source in data["sources"]]
    heads = [f"at {BEFORE}", "now"][-len(found) :]
    text = prose(
        "PostgreSQL, one server that executes no runs, and then one worker that executes up to 20 at once. Ten clients "
        f"start {data['runs']:,} runs of one caller, each with two model calls and a tool call that take no time. The "
        "database counts commits and rows. The machine has two cores for the database, the processes and the clients "
        f"(load average {number(data['load'])}): rates depend on what else runs there, commits and rows do not."
    )
    for part, title in PARTS.items():
        rows = [[label, *(_shown(row, each[part][row]) for each in found)] for row, label in ROWS.items()]
        text += "\n" + table([title, *heads], rows)
    return f"{text}\n{_render_waits(data['waits'])}"


def _render_waits(waits: Any) -> str:
    rows = [[name, *(f"{number(seconds)} s" for seconds in found.values())] for name, found in waits["seconds"].items()]
    return prose(
        f"{waits['queued']:,} runs of one caller are queued, and then another run: time until it begins, in a "
        "process that executes 20 at once. A run of the same caller waits for all others; callers take turns."
    ) + table(["", *next(iter(waits["seconds"].values()))], rows)


def _shown(row: str, value: float) -> str:
    return number(value) + (" ms" if row == "cpu" else "")


SECTION = Section(
    "queue", "The queue of durable runs", measure, render, modules=("a2a", "starlette", "uvicorn", "procrastinate")
)
