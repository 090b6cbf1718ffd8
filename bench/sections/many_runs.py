"""Section: a store with a million runs."""

import os
import statistics
import tempfile
from typing import Any

from figures import number, prose, table
from lab import Lab
from postgres_server import postgres
from section import Section

BEFORE = {
    "failed runs of the busiest owner": "340 to 790 ms",
    "failed runs of the busiest agent": "340 to 790 ms",
    "runs with a rare tool": "2,200 ms on SQLite",
    "refusals by a rare verb": "8,300 ms",
    "the calls of a run": "400 to 1,100 ms",
    "a text that two runs have": "5,400 ms",
    "start of a server": "6 to 11 s",
    "accept a run meanwhile, longest": "more than 50 s",
}
"""Figures measured at 34f95a1d, which had other tables, with a million runs on a machine of this kind."""


def measure(lab: Lab) -> dict[str, Any]:
    runs, found = lab.pick(1_000_000, 50), {}
    with tempfile.TemporaryDirectory() as folder, postgres() as url:
        for name, place in {"SQLite": f"{folder}/runs.db", "PostgreSQL": url}.items():
            if place:
                found[name] = {
                    "filled": lab.probe("probes.many_runs:filled", place=place, runs=runs),
                    "queries": lab.probe("probes.many_runs:queries", place=place, runs=runs, times=lab.pick(5, 1)),
                    "empty": _started(lab, _empty(place)),
                    "started": _started(lab, place),
                    "pruned": lab.probe("probes.many_runs:pruned", place=place),
                }
    return {"runs": runs, "load": os.getloadavg()[1], "databases": found}


def _started(lab: Lab, place: str) -> float:
    """Return the median seconds of starts after a first one, which may create tables."""
    times = [lab.probe("probes.many_runs:started", place=place) for _ in range(lab.pick(4, 2))]
    return float(statistics.median(times[1:]))


def _empty(place: str) -> str:
    """Return a place beside this one where nothing is stored."""
    return place.replace("schema=hookline", "schema=empty") if "schema=" in place else f"{place}.empty"


def render(data: Any) -> str:
    found = data["databases"]
    rows = [
        [name, *(f"{each['queries'][name]:,.1f} ms" for each in found.values())]
        for name in next(iter(found.values()))["queries"]
    ]
    rows.append(["start of a server, empty store", *(f"{each['empty']:,.1f} s" for each in found.values())])
    rows.append(["start of a server", *(f"{each['started']:,.1f} s" for each in found.values())])
    pruned = [each["pruned"] for each in found.values()]
    rows.append(["delete a tenth", *(f"{each['runs'] / each['seconds']:,.0f} runs/s" for each in pruned)])
    rows.append(["accept a run meanwhile, median", *(f"{each['median wait']:,.0f} ms" for each in pruned)])
    rows.append(["accept a run meanwhile, longest", *(f"{each['longest wait']:,.0f} ms" for each in pruned)])
    return prose(
        f"A store with {data['runs']:,} runs, each with seven events, five facts and a journal. Pages have 51 runs. A "
        "search reads until the page is full or nothing is left. `bench/stored_runs.py` fills a store. Medians, while "
        f"other programs used the two cores (load average {number(data['load'])}). The first column is what a review "
        f"measured at 34f95a1d, which stored other tables. {data.get('remark', '')}".rstrip()
    ) + table(["", "before", *found], [[row[0], BEFORE.get(row[0], ""), *row[1:]] for row in rows])


SECTION = Section("many_runs", "A million stored runs", measure, render, modules=("starlette", "uvicorn"))
