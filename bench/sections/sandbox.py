"""Section: what the sandbox of the shell adds to a command."""

from typing import Any

from figures import prose, shown, spread, table
from lab import Lab
from section import Section

NAMES = {"off": "no sandbox", "landlock": "`landlock`", "bubblewrap": "`bubblewrap`, with Landlock inside"}


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, list[float]] = {}
    for _ in lab.turns(["the command true"], lab.pick(3, 1)):
        for level, times in lab.probe("probes.sandbox:commands", reps=lab.pick(30, 1)).items():
            taken.setdefault(level, []).extend(times)
    return {level: spread(taken[level]) for level in NAMES if level in taken}


def render(data: Any) -> str:
    rows = [[NAMES[level], shown(time, "ms")] for level, time in data.items()]
    return prose("The command `true` in the shell tool, from the call to the result.") + table(["", "a command"], rows)


SECTION = Section("sandbox", "The shell's sandbox", measure, render)
