"""Section: what a call pays for rules of a file, beside the same rules in Python."""

from typing import Any

from figures import prose, shown, spread, table
from lab import Lab
from section import Section


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, list[float]] = {}
    sizes = {"batch": lab.pick(20, 2), "history": lab.pick(200, 3)}
    for _ in lab.turns(["rules of a file"], lab.pick(5, 1)):
        for name, times in lab.probe("probes.rules:judged", reps=lab.pick(3, 1), **sizes).items():
            taken.setdefault(name, []).extend(times)
    return {name: spread(times) for name, times in taken.items()}


def render(data: Any) -> str:
    return prose(
        "One fire of `before_tool`: a call that all rules allow, with conditions about two of its arguments. Rules of "
        "other tools cost nothing, because the guards of a tool are chosen once. `called()` does not depend on the "
        "number of calls before; a condition that reads `history` pays for each of them."
    ) + table(["", "time"], [[name, shown(time, "µs")] for name, time in data.items()])


SECTION = Section("rules", "Rules without code", measure, render, modules=("cel_expr_python",))
