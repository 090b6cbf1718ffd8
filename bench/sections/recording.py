"""Section: what records and tapes add to a step."""

from typing import Any

from figures import number, prose, shown, spread, table
from lab import Lab
from section import Section

LENGTHS = (20, 200)
SIZES = (100, 1000, 10_000)


def measure(lab: Lab) -> dict[str, Any]:
    steps: dict[str, dict[str, list[float]]] = {}
    sizes: dict[str, dict[str, float]] = {}
    texts: dict[str, dict[str, list[float]]] = {}
    for _ in lab.turns(["records and tapes"], lab.pick(5, 1)):
        found = lab.probe("probes.recording:steps", reps=lab.pick(7, 1), total=lab.pick(400, 20), lengths=list(LENGTHS))
        for length, data in found.items():
            sizes[length] = data["bytes"]
            for name, times in data["times"].items():
                steps.setdefault(length, {}).setdefault(name, []).extend(times)
        for size, times_of in lab.probe("probes.recording:texts", reps=lab.pick(3, 1), sizes=list(SIZES)).items():
            for name, times in times_of.items():
                texts.setdefault(size, {}).setdefault(name, []).extend(times)
    return {
        "steps": {length: {name: spread(times) for name, times in data.items()} for length, data in steps.items()},
        "bytes": sizes,
        "texts": {size: {name: spread(times) for name, times in data.items()} for size, data in texts.items()},
    }


def render(data: Any) -> str:
    rows = [
        [
            name,
            *(cell for length in LENGTHS for cell in _cells(data, str(length), name)),
        ]
        for name in data["steps"][str(LENGTHS[0])]
    ]
    heads = [head for length in LENGTHS for head in (f"a step of {length}", "it adds", "bytes")]
    texts = [
        [
            f"{int(size):,} characters",
            *(_added(times[name], times["nothing"]) for name in ("without redaction", "with redaction")),
        ]
        for size, times in data["texts"].items()
    ]
    return (
        prose(
            "CPU time for a step (a model call and a tool call, no hooks) of runs of 20 and of 200 steps, with "
            "everything written and, unless it says otherwise, with redaction. Runs follow one another."
        )
        + table(["what is on", *heads], rows)
        + "\n\n"
        + prose(
            "Redaction searches every text once. These are the main points of a run of 20 steps in which each result "
            "is a new text; what it adds to a step:"
        )
        + table(["each result", "without redaction", "with redaction"], texts)
    )


def _cells(data: Any, length: str, name: str) -> list[str]:
    time, bare = data["steps"][length][name], data["steps"][length]["nothing"]
    if name == "nothing":
        return [shown(time, "µs"), "", ""]
    return [shown(time, "µs"), _added(time, bare), f"{data['bytes'][length][name]:,.0f}"]


def _added(time: Any, bare: Any) -> str:
    return f"+{number(time['median'] - bare['median'])} µs"


SECTION = Section("recording", "Records and tapes, on and off", measure, render)
