"""Section: how fast text is scanned for sensitive data."""

from typing import Any

from figures import shown, spread, table
from lab import Lab
from section import Section


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, list[float]] = {}
    larger: dict[str, list[float]] = {}
    growth: dict[str, list[float]] = {}
    sizes = {"size": lab.pick(20_000, 1_000), "larger": lab.pick(80_000, 4_000)}
    for _ in lab.turns(["clean text"], lab.pick(3, 1)):
        found = lab.probe("probes.scanning:speeds", reps=lab.pick(3, 1), size=lab.pick(4_000_000, 10_000))
        for name, speeds in found.items():
            taken.setdefault(name, []).extend(speeds)
        for name, (small, large) in lab.probe("probes.scanning:stream_seconds", **sizes).items():
            larger.setdefault(name, []).append(large)
            growth.setdefault(name, []).append(large / small)
    return {
        "speeds": {name: spread(speeds) for name, speeds in taken.items()},
        "streams": {name: {"seconds": spread(larger[name]), "growth": spread(growth[name])} for name in larger},
        "characters": sizes["larger"],
    }


def render(data: Any) -> str:
    rows = [[name, shown(speed, "MB/s")] for name, speed in data["speeds"].items()]
    streams = [[name, shown(one["seconds"], "s"), shown(one["growth"], "x")] for name, one in data["streams"].items()]
    size = f"{data['characters']:,}"
    return (
        "Clean text, looked through for all kinds of sensitive data.\n\n"
        + table(["", "of CPU time"], rows)
        + f"\n{size} characters, streamed in pieces of 4, also texts that are held back as long as possible. "
        "Four times the text takes four times the time if the work is linear, and sixteen times if it is quadratic.\n\n"
        + table(["", "CPU time", "times that of a quarter of it"], streams)
    )


SECTION = Section("scanning", "The search for sensitive data", measure, render)
