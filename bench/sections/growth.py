"""Section: how the cost grows with hooks, messages, tools and steps."""

from typing import Any

from charts import lines
from figures import Spread, number, prose, shown, slopes, spread, table
from lab import Lab
from section import Section

SIZES = {
    "hooks": [1, 10, 100, 1000],
    "messages": [10, 100, 1000, 10_000],
    "tools": [1, 10, 100, 1000],
    "steps": [10, 100, 1000, 10_000],
}
ON = "with audit and observability"
WORDS = {
    "hooks": "hooks on each main point: a step",
    "messages": "earlier messages: a run of ten steps, for each",
    "tools": "tools on offer: a step",
    "steps": "steps: the whole run",
}
LINEAR = 1.1
"""A slope up to this is called linear: the rest is noise."""


def measure(lab: Lab) -> dict[str, Any]:
    sizes = {kind: lab.pick(given, [1, 3]) for kind, given in SIZES.items()}
    fires: dict[str, dict[str, list[float]]] = {}
    taken: dict[str, dict[str, dict[str, list[float]]]] = {kind: {"alone": {}, ON: {}} for kind in SIZES}
    jobs = ["fire", *((kind, way) for kind in SIZES for way in ("alone", ON))]
    for job in lab.turns(jobs, lab.pick(3, 1), lambda job: job if isinstance(job, str) else " ".join(job)):
        if isinstance(job, str):
            found = lab.peer("hookline_", "dispatch", sizes=sizes["hooks"], reps=lab.pick(5, 1))
            for label, out in found.items():
                _note(fires.setdefault(label.removeprefix("hookline, "), {}), out["sizes"])
        else:
            kind, way = job
            options = {"kind": kind, "sizes": sizes[kind], "watched": way == ON, "reps": lab.pick(3, 1)}
            _note(taken[kind][way], lab.probe("probes.growth:steps", **options))
    return {
        "fires": {label: _spreads(found) for label, found in fires.items()},
        "kinds": {kind: {way: _spreads(found) for way, found in ways.items()} for kind, ways in taken.items()},
        "later": _spreads(lab.probe("probes.growth:later_steps", sizes=sizes["messages"], reps=lab.pick(15, 1))),
        "made": {
            what: _spreads(found)
            for what, found in lab.probe("probes.growth:made", sizes=sizes["hooks"], reps=lab.pick(5, 1)).items()
        },
        "memory": lab.probe("probes.growth:memory", sizes=sizes["steps"]),
    }


def _note(kept: dict[str, list[float]], found: dict[str, list[float]]) -> None:
    for size, times in found.items():
        kept.setdefault(size, []).extend(times)


def _spreads(found: dict[str, list[float]]) -> dict[str, Spread]:
    return {size: spread(times) for size, times in found.items()}


def costs(data: Any) -> dict[str, dict[str, dict[str, float]]]:
    """Return the cost by size for each dimension: in µs, for steps of the whole run, and in bytes."""
    out = {"hooks at one point: a fire": {label: _medians(found) for label, found in data["fires"].items()}}
    for kind, ways in data["kinds"].items():
        out[WORDS[kind]] = {way: _medians(found, whole=kind == "steps") for way, found in ways.items()}
    out["earlier messages: from one model call to the next"] = {"alone": _medians(data["later"])}
    for what, found in data["made"].items():
        out[f"{what}, before a first run"] = {"alone": _medians(found)}
    out["steps: memory"] = {"alone": data["memory"]}
    return out


def _medians(found: Any, whole: bool = False) -> dict[str, float]:
    return {size: time["median"] * (float(size) if whole else 1.0) for size, time in found.items()}


def steepest(data: Any) -> tuple[float, str]:
    """Return the steepest slope and its location."""
    return max(
        (max(slopes(found)), f"{what}, {way}") for what, ways in costs(data).items() for way, found in ways.items()
    )


def render(data: Any) -> str:
    rows = [
        [what, way, *(f"{slope:.2f}" for slope in slopes(found)), f"**{max(slopes(found)):.2f}**"]
        for what, ways in costs(data).items()
        for way, found in ways.items()
    ]
    longest = max(len(row) for row in rows) - 3
    head = ["what grows", "", *(f"{_nth(i)} tenfold" for i in range(1, longest + 1)), "steepest"]
    slope, where = steepest(data)
    verdict = "Nothing grows faster than that." if slope <= LINEAR else f"The steepest is {where}, with {slope:.2f}."
    parts = [
        prose(
            "Each size is ten times the one before it. A slope of 0 says that the cost does not grow, of 1 that "
            f"it grows as the size does, of 2 with its square. {verdict} A conversation is taken in once, when a "
            "run begins, and given back once, when it ends; the steps between do not look at all of it. Whoever "
            "registers hooks one by one copies the list of those there are each time, which for a thousand is still "
            "little beside the rest; `HookRegistry.extend` takes them all at once."
        ),
        table(head, rows),
        "\n![Growth with hooks](charts/growth-hooks.svg)\n\n",
        _sized("hooks at one point", {label: _cells(found) for label, found in data["fires"].items()}),
    ]
    for kind, ways in data["kinds"].items():
        columns = {f"a step, {way}": _cells(found) for way, found in ways.items()}
        if kind == "messages":
            columns["from one model call to the next"] = _cells(data["later"])
        if kind == "steps":
            columns["memory of a run"] = {size: f"{number(held / 1e3)} kB" for size, held in data["memory"].items()}
        if kind != "hooks":
            parts.append(f"\n![Growth with {kind}](charts/growth-{kind}.svg)\n")
        parts.append("\n" + _sized({"hooks": "hooks on each main point"}.get(kind, kind), columns))
    parts.append("\n" + _sized("before a first run", {what: _cells(found) for what, found in data["made"].items()}))
    return "".join(parts)


def _nth(i: int) -> str:
    return {1: "first", 2: "second", 3: "third"}[i]


def _cells(found: Any) -> dict[str, str]:
    return {size: shown(time, "µs") for size, time in found.items()}


def _sized(what: str, columns: dict[str, dict[str, str]]) -> str:
    """Return a row for each size."""
    sizes = next(iter(columns.values()))
    return table([what, *columns], [[f"{int(size):,}", *(cells[size] for cells in columns.values())] for size in sizes])


def draw(data: Any) -> dict[str, str]:
    found = costs(data)
    charts = {}
    for kind, words in WORDS.items():
        series = {
            f"a {'run' if kind == 'steps' else 'step'}, {way.removeprefix('with ')}": costs
            for way, costs in found[words].items()
        }
        if kind == "hooks":
            series |= {f"a fire, {label}": costs for label, costs in found["hooks at one point: a fire"].items()}
        what = {"hooks": "hooks on a point", "messages": "earlier messages"}.get(kind, kind)
        charts[f"growth-{kind}.svg"] = lines(f"How cost grows with {kind}", what, "CPU µs", series)
    return charts


SECTION = Section("growth", "Growth", measure, render, draw)
