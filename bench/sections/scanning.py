"""Section: how fast text is scanned for sensitive data."""

from typing import Any

from figures import shown, spread, table
from lab import Lab
from section import Section


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, list[float]] = {}
    for _ in lab.turns(["clean text"], lab.pick(3, 1)):
        found = lab.probe("probes.scanning:speeds", reps=lab.pick(3, 1), size=lab.pick(4_000_000, 10_000))
        for name, speeds in found.items():
            taken.setdefault(name, []).extend(speeds)
    return {name: spread(speeds) for name, speeds in taken.items()}


def render(data: Any) -> str:
    rows = [[name, shown(speed, "MB/s")] for name, speed in data.items()]
    return "Clean text, looked through for all kinds of sensitive data.\n\n" + table(["", "of CPU time"], rows)


SECTION = Section("scanning", "The search for sensitive data", measure, render)
