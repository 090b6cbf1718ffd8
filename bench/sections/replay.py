"""Section: how fast tapes are replayed."""

from typing import Any

from figures import Spread, number, prose, shown, spread, table
from lab import Lab
from section import Section


def measure(lab: Lab) -> dict[str, dict[str, Spread]]:
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in lab.turns(["tapes"], lab.pick(9, 1)):
        found = lab.probe("probes.replay:steps", sizes=lab.pick([20, 200], [2]), total=lab.pick(1000, 2))
        for steps, times in found.items():
            values = taken.setdefault(steps, {"rate": [], "ratio": []})
            values["rate"].append(1e6 / times["replayed"])
            values["ratio"].append(times["replayed"] / times["live"])
    return {steps: {name: spread(each) for name, each in values.items()} for steps, values in taken.items()}


def render(data: Any) -> str:
    rows = [
        [f"{steps} steps", shown(found["rate"], "steps"), f"{number(found['ratio']['median'])}x"]
        for steps, found in data.items()
    ]
    words = (
        "CPU time of one process, with the time to read the tape. A strict replay runs the loop again and compares "
        "every event and every fire. The live run has a model that replies at once."
    )
    head = ["a run of", "replayed in a second", "time of a step, compared with the live run"]
    return prose(words) + table(head, rows)


SECTION = Section("replay", "Replays of tapes", measure, render)
