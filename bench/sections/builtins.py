"""Section: the cost of one fire of each built-in hook."""

from typing import Any

from charts import OURS, Bar, bars
from figures import number, prose, ratio, shown, spread, table
from lab import Lab
from section import Section


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, dict[str, list[float]]] = {}
    for _ in lab.turns(["each built-in hook"], lab.pick(3, 1)):
        for name, found in lab.probe("probes.builtin_hooks:fires", reps=lab.pick(9, 1)).items():
            for which, times in found.items():
                taken.setdefault(name, {}).setdefault(which, []).extend(times)
    return {name: {which: spread(times) for which, times in found.items()} for name, found in taken.items()}


def render(data: Any) -> str:
    rows = [[name, shown(found["hook"], "µs"), ratio(found["hook"], found["noop"])] for name, found in data.items()]
    return (
        prose(
            "CPU time of one fire, with a request of 10 messages and a result of 2 KB; the floor is a hook that "
            "does nothing, at the same point, in the same registry and taking turns."
        )
        + "![One fire of each built-in hook](charts/builtins.svg)\n\n"
        + table(["", "a fire", "to the floor"], rows)
    )


def draw(data: Any) -> dict[str, str]:
    rows = [
        Bar(name, time["median"], f"{number(time['median'])} µs", time["q1"], time["q3"], OURS)
        for name, time in ((name, found["hook"]) for name, found in data.items())
    ]
    return {"builtins.svg": bars("One fire of each built-in hook", "CPU µs", rows)}


SECTION = Section("builtins", "Each built-in hook", measure, render, draw)
