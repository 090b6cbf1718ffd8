"""Section: what a tape costs, and how fast it is replayed."""

from typing import Any

from figures import Spread, number, prose, shown, spread, table
from lab import Lab
from section import Section

SIZES = [20, 200]


def measure(lab: Lab) -> dict[str, dict[str, Spread]]:
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in lab.turns(["tapes"], lab.pick(9, 1)):
        found = lab.probe("probes.replay:figures", sizes=lab.pick(SIZES, [2]), total=lab.pick(1000, 2))
        for steps, values in found.items():
            values["added"] = values["recorded"] - values["live"]
            values["rate"] = 1e6 / values["replayed"]
            values["ratio"] = values["replayed"] / values["live"]
            for name, value in values.items():
                taken.setdefault(steps, {}).setdefault(name, []).append(value)
    return {steps: {name: spread(each) for name, each in values.items()} for steps, values in taken.items()}


def render(data: Any) -> str:
    rows = [
        [
            f"{steps} steps",
            shown(found["added"], "µs"),
            f"{number(found['bytes']['median'] / 1000)} kB",
            shown(found["rate"], "steps"),
            f"{number(found['ratio']['median'])}x a live step",
        ]
        for steps, found in data.items()
    ]
    words = (
        "CPU time of one process. A step is one model call and one tool call; the model replies at once. The tape "
        "contains the moments of all points. A strict replay compares every event and every fire."
    )
    head = [
        "a run of",
        "recording adds to a step",
        "a step on the tape",
        "replayed in a second",
        "time of a replayed step",
    ]
    return prose(words) + table(head, rows)


SECTION = Section("tapes", "Tapes", measure, render)
