"""Section: what OpenTelemetry adds to a step."""

from typing import Any

from figures import ratio, shown, spread, table
from lab import Lab
from section import Section


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, list[float]] = {}
    for _ in lab.turns(["spans and metrics"], lab.pick(3, 1)):
        for name, times in lab.probe("probes.telemetry:steps", reps=lab.pick(9, 1), runs=lab.pick(10, 1)).items():
            taken.setdefault(name, []).extend(times)
    return {name: spread(times) for name, times in taken.items()}


def render(data: Any) -> str:
    rows = [[name, shown(time, "µs"), ratio(time, data["without it"])] for name, time in data.items()]
    return (
        "CPU time of a step of the standard run with `OpenTelemetryHook`: 20 spans and 40 measurements in a run.\n\n"
        + table(["", "a step", "ratio"], rows)
    )


SECTION = Section("telemetry", "OpenTelemetry", measure, render, modules=("opentelemetry.sdk",))
