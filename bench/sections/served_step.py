"""Section: what a step of a served run costs, with each part of the server on and off."""

import os
from typing import Any

from earlier import BEFORE, sources
from figures import number, prose, table
from lab import Lab
from section import Section

PARTS = {
    "events": "the server: its runs and their events in a database",
    "records": "records, for `explain` and `backtest`",
    "audit": "the audit log",
    "metrics": "metrics for Prometheus, with the time of every hook",
    "facts": "facts, for statistics",
}


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, dict[str, list[float]]] = {}
    with sources(lab) as places:
        for round_, source in enumerate(lab.turns(places, lab.pick(3, 1))):
            options = {"reps": lab.pick(3, 1), "runs": lab.pick(50, 5), "seed": round_}
            found = lab.probe_source(places[source], "probes.served_step:steps", **options)
            for kind, times in found.items():
                taken.setdefault(source, {}).setdefault(kind, []).extend(times)
    lowest = {source: {kind: min(times) for kind, times in found.items()} for source, found in taken.items()}
    return {**lowest, "load": os.getloadavg()[1]}


def render(data: Any) -> str:
    now, before = data["now"], data.get("before", {})
    both = [before, now] if before else [now]
    ends = ["", f"at {BEFORE}", "now"] if before else ["", "now"]

    def row(label: str, kind: str, other: str = "") -> list[str]:
        return [label, *(number(each[kind] - (each[other] if other else 0.0)) + " µs" for each in both)]

    steps = [
        row("a step without any of it", "nothing"),
        row("**a step with everything on**", "everything"),
        *(row(f"everything but {label}", f"all but {part}") for part, label in PARTS.items()),
    ]
    alone = [row(label, f"only {part}", "nothing") for part, label in PARTS.items()]
    return (
        prose(
            "CPU time of a step in all threads, until everything is written: five runs at once, each of ten steps and "
            "nine tool calls with one guard, so a tenth of what a run costs at its start and end is part of a step. "
            "The lowest of nine measurements, because other programs may use the machine (load average "
            f"{number(data['load'])}); both sources take turns. Since facts replaced figures, a server always records "
            "them, so they are part of the server too; the hook for statistics then records nothing of its own."
        )
        + table(ends, steps)
        + "\nWhat one part adds to a step without the others:\n\n"
        + table(ends, alone)
    )


SECTION = Section("served_step", "A step of a served run", measure, render, modules=("a2a", "starlette", "uvicorn"))
