"""Section: what a step pays for."""

from typing import Any

from figures import number, prose, shown, spread, table
from lab import Lab
from section import Section


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, dict[str, list[float]]] = {"steps": {}, "alone": {}, "floor": {}}
    for what in lab.turns(list(taken), lab.pick(3, 1)):
        if what == "floor":
            found = lab.peer("bare", "loop", specs={"floor": {"steps": lab.pick(100, 3)}}, reps=lab.pick(15, 1))
        elif what == "steps":
            found = lab.probe("probes.promises:steps", reps=lab.pick(15, 1), length=lab.pick(100, 3))
        else:
            found = lab.probe("probes.promises:alone", reps=lab.pick(15, 1))
        for label, times in found.items():
            taken[what].setdefault(label, []).extend(times)
    return {what: {label: spread(times) for label, times in found.items()} for what, found in taken.items()}


def render(data: Any) -> str:
    bare, floor = data["steps"]["nothing"], data["floor"]["floor"]
    parts = [[label, shown(time, "µs")] for label, time in data["alone"].items()]
    rest = bare["median"] - floor["median"] - sum(time["median"] for time in data["alone"].values())
    rows = [
        [label, shown(time, "µs"), f"{number(time['median'] - bare['median'])} µs"]
        for label, time in data["steps"].items()
        if label != "nothing"
    ]
    return (
        prose(
            f"A step of a run of 100 steps without hooks takes {number(bare['median'])} µs of CPU, of which the "
            f"hand-written loop, with the same model and tool, takes {number(floor['median'])} µs. These parts of it "
            "were measured alone:"
        )
        + table(["in every step", ""], [*parts, ["everything else", f"{number(rest)} µs"]])
        + "\n"
        + prose(
            "Everything else is the order of a step: whether a hook listens at each of its points, which may change at "
            "any time; checkpoints, where a stop or a cancellation takes effect; one result for each call, whatever "
            "happens; and the coroutines that do this. What is switched on adds to that. A point at which nobody "
            "listens is not fired, and an event that nobody takes is not made:"
        )
        + table(["switched on", "a step", "adds"], rows)
    )


SECTION = Section("promises", "What a step pays for", measure, render)
