"""Section: the standard run with and without audit and observability."""

from typing import Any

from figures import number, prose, ratio, shown, spread, table
from lab import Lab, title
from section import Section

BESIDE = ("bare", "agent_framework_", "smolagents_", "strands_")
"""Peers that it is compared with, which have nothing of the kind on."""


def measure(lab: Lab) -> dict[str, Any]:
    beside = [peer for peer in BESIDE if peer in lab.peers]
    ours: dict[str, list[float]] = {}
    others: dict[str, list[float]] = {peer: [] for peer in beside}
    for name in lab.turns(["hookline_", *beside], lab.pick(5, 1), title):
        if name == "hookline_":
            for label, times in lab.probe("probes.watched:steps", reps=lab.pick(4, 1), runs=lab.pick(100, 1)).items():
                ours.setdefault(label, []).extend(times)
        else:
            others[name] += lab.peer(name, "loop", specs={"none": {}}, reps=lab.pick(15, 1))["none"]
    return {
        "hookline": {label: spread(times) for label, times in ours.items()},
        "others": {name: spread(times) for name, times in others.items()},
    }


def render(data: Any) -> str:
    ours, floor = data["hookline"], data["others"]["bare"]
    rows = [
        [
            f"hookline, {label}", shown(time, "µs"), ratio(time, floor),
            f"+{number(time['median'] - ours['none']['median'])} µs" if label != "none" else "",
        ]
        for label, time in ours.items()
    ]  # fmt: skip
    rows += [
        [f"{title(name)}, none", shown(time, "µs"), ratio(time, floor), ""] for name, time in data["others"].items()
    ]
    return prose(
        "CPU time for a step of the standard run in all threads, of 100 runs in a row and until all of it is written. "
        "Other peers as they are without anything of the kind."
    ) + table(["what is on", "a step", "to the floor", "it adds"], rows)


SECTION = Section("watched", "Audit and observability, on and off", measure, render)
