"""Section: durable runs."""

import json
import sqlite3
import tempfile
from typing import Any

from figures import number, prose, ratio, shown, spread, table
from lab import Lab
from postgres_server import postgres
from section import Section

DBOS = "dbos_"
WORKERS = (1, 2, 4)


def measure(lab: Lab) -> dict[str, Any]:
    steps, reps, runs = lab.pick(50, 3), lab.pick(3, 1), lab.pick(100_000, 100)
    costs: dict[str, list[float]] = {}
    late: dict[str, list[dict[str, float]]] = {}
    stored: dict[str, dict[str, list[float]]] = {}
    with postgres() as address:
        urls = {"SQLite": "", **({"PostgreSQL": address} if address else {})}
        kinds = {"not durable": ("plain", ""), "SQLite, synced": ("synced", "")}
        kinds |= {name: ("durable", url) for name, url in urls.items()}
        dbos = [f"DBOS steps, {name}" for name in urls] if DBOS in lab.pythons else []
        for name in lab.turns([*kinds, *dbos], lab.pick(3, 1)):
            if name in kinds:
                kind, url = kinds[name]
                found = lab.probe("probes.durable:calls", kind=kind, url=url, steps=steps, reps=reps)
            else:
                found = _dbos_steps(lab, urls[name.rpartition(" ")[2]], steps, reps)
            costs.setdefault(name, []).extend(found)
        for name in lab.turns(lab.pick(list(urls), list(urls)[-1:]), lab.pick(2, 1), "following, {}".format):
            late.setdefault(name, []).append(
                lab.probe("probes.durable:follow", url=urls[name], delay=lab.pick(0.03, 0.0))
            )
        for name in lab.turns(urls, 1, "many runs, {}".format):
            stored[name] = lab.probe("probes.durable:stored", url=urls[name], runs=runs, reps=lab.pick(10, 2))
        fleets: dict[int, list[dict[str, float]]] = {}
        for workers in lab.turns(
            lab.pick(WORKERS, WORKERS[:1]) if address else (), lab.pick(2, 1), "{} workers".format
        ):
            many = lab.pick(400, 10)
            fleets.setdefault(workers, []).append(
                lab.probe("probes.durable:fleet", url=address, workers=workers, runs=many)
            )
    return {
        "steps": steps,
        "runs": runs,
        "calls": {name: spread(times) for name, times in costs.items()},
        "follow": {
            name: {p: spread(each[p] for each in found) for p in ("p50", "p95")} for name, found in late.items()
        },
        "fleets": {
            str(workers): {what: spread(each[what] for each in found) for what in ("rate", "cpu")}
            for workers, found in sorted(fleets.items())
        },
        "stored": {name: {what: spread(times) for what, times in found.items()} for name, found in stored.items()},
    }


def _dbos_steps(lab: Lab, url: str, steps: int, reps: int) -> list[float]:
    with tempfile.TemporaryDirectory() as folder:
        if url:
            address = url.replace("postgresql://", "postgresql+psycopg://").partition("&schema")[0]
        else:
            sqlite3.connect(f"{folder}/steps.db").execute("PRAGMA journal_mode = WAL").connection.close()
            address = f"sqlite:///{folder}/steps.db"
        options = json.dumps({"url": address, "steps": steps, "reps": reps})
        times: list[float] = lab.script(DBOS, "probes/dbos_steps.py", options)["times"]
    return times


def render(data: Any) -> str:
    plain = data["calls"]["not durable"]
    calls = [[name, shown(time, "ms"), ratio(time, plain)] for name, time in sorted(data["calls"].items())]
    late = [
        [name, *(f"{number(found[p]['median'])} ms" for p in ("p50", "p95"))] for name, found in data["follow"].items()
    ]
    names = list(data["stored"])
    stored = [[what, *(shown(data["stored"][name][what], "ms") for name in names)] for what in data["stored"][names[0]]]
    fleets = [
        [workers, shown(found["rate"], "runs"), shown(found["cpu"], "ms")] for workers, found in data["fleets"].items()
    ]
    return (
        prose(
            f"Wall time for a call of a model or a tool that take no time themselves, in runs of {data['steps']} model "
            "calls, one run at a time. DBOS has each call as a step of a workflow, without hooks and without events; "
            "its SQLite file is in WAL mode. PostgreSQL is on the same machine and waits for the disk at each commit; "
            "SQLite does so only where it says *synced*."
        )
        + table(["", "a call", "ratio"], calls)
        + "\n"
        + prose(
            "Two servers share a database. A client of one follows a run of the other: time from an event to its "
            "arrival."
        )
        + table(["", "p50", "p95"], late)
        + "\n"
        + prose(
            "A server and its workers on PostgreSQL: runs of two model calls and a tool call, which take no time, in a "
            "second. Ten clients start them as fast as they can; a worker executes 20 at once. All of them and the "
            "database share the cores of this machine, so more workers than cores add nothing. The CPU time is that of "
            "a run in the server and the workers together, without the database."
        )
        + table(["workers", "runs in a second", "CPU of a run"], fleets)
        + "\n"
        + prose(
            f"{data['runs']:,} stored durable runs, each with a journal, two events and three records of "
            "`ObservabilityHook`; ten of them wait for an approval. Statistics of all runs read every record."
        )
        + table(["", *names], stored)
    )


SECTION = Section("durable", "Durable runs", measure, render, modules=("a2a", "starlette", "uvicorn"))
