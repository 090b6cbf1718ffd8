"""Section: a step at earlier commits and now."""

import os
from typing import Any

from earlier import BEFORE, sources
from figures import number, prose, table
from lab import Lab
from section import Section

FASTEST = "cf440084"
"""The commit at which a bare step took the least time."""


def measure(lab: Lab) -> dict[str, Any]:
    lowest: dict[str, dict[str, float]] = {}
    with sources(lab, {FASTEST: FASTEST, BEFORE: BEFORE}) as found:
        for source in lab.turns(found, lab.pick(8, 1)):
            times = lab.probe_source(found[source], "probes.any_version:steps", reps=lab.pick(15, 1))
            known = lowest.setdefault(source, times)
            lowest[source] = {label: min(took, known[label]) for label, took in times.items()}
        return {"steps": {source: lowest[source] for source in found}, "load": os.getloadavg()[1]}


def render(data: Any) -> str:
    steps = data["steps"]
    rows = [[label, *(f"{number(times[label])} µs" for times in steps.values())] for label in steps["now"]]
    return prose(
        "CPU time of a step of a run of 50 steps. The lowest of many measurements, because other programs may use the "
        f"machine (load average {number(data['load'])}); the versions take turns. Since {FASTEST}, a run has got a "
        "stop switch, lanes for tapes, and journals. A hook that is registered late takes effect at the next point. "
        "Hooks get copies of JSON, and a call is blocked if one of them changed its arguments in place. Arguments "
        "that JSON cannot express are rejected."
    ) + table(["", *(source if source == "now" else f"at {source}" for source in steps)], rows)


SECTION = Section("versions", "A step at earlier commits and now", measure, render)
