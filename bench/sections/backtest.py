"""Section: backtests on recorded moments."""

from typing import Any

from figures import number, prose, shown, spread, table
from lab import Lab
from section import Section

RULES = {
    "one tool": "a guard on one tool",
    "every call": "a guard on every tool call",
    "every moment": "a guard on every moment",
}


def measure(lab: Lab) -> dict[str, Any]:
    rates: dict[str, dict[str, list[float]]] = {}
    workers: dict[str, list[float]] = {}
    moments = lab.pick(1_000_000, 2_000)
    for job in lab.turns(["rates", "processes"], lab.pick(3, 1)):
        found = lab.probe(f"probes.backtest:{job}", moments=moments)
        for points, kinds in found.items() if job == "rates" else ():
            for kind, rate in kinds.items():
                rates.setdefault(points, {}).setdefault(kind, []).append(rate)
        for count, rate in found.items() if job == "processes" else ():
            workers.setdefault(count, []).append(rate)
    return {
        "rates": {points: {kind: spread(found) for kind, found in kinds.items()} for points, kinds in rates.items()},
        "processes": {count: spread(found) for count, found in workers.items()},
        "large": lab.probe("probes.backtest:large", moments=moments, copies=lab.pick(10, 2)),
    }


def render(data: Any) -> str:
    rates, processes, large = data["rates"], data["processes"], data["large"]
    gain = processes["2"]["median"] / processes["1"]["median"]
    rows = [
        [what, *(shown(rates[points][kind], "") if kind in rates[points] else "" for points in rates)]
        for kind, what in RULES.items()
    ]
    sizes = [number(kinds["bytes"]["median"]) for kinds in rates.values()]
    rows.append(["bytes of a moment", *sizes])
    words = (
        "One million recorded moments, in CPU time of one process: moments in a second, by the points that were "
        "recorded. Lines that no hook listens to are passed over by their first bytes; the others are decoded to "
        "payloads. The guard on one tool judges one moment in nine of the main points, one in seventeen of all points. "
        f"In wall-clock time, two processes judge every one of the main moments {gain:.1f} times as fast as one "
        f"({number(processes['2']['median'])} and {number(processes['1']['median'])} in a second). "
        f"{large['moments'] / 1e6:.0f} million moments ({large['GB']:.1f} GB) took {large['seconds']:.0f} s in one "
        f"process, whose memory peaked at {large['peak MB']:.0f} MB."
    )
    return prose(words) + table(["", *(_POINTS[points] for points in rates)], rows)


_POINTS = {"main points": "main points", "all points": "all points", "calls": "only tool calls"}

SECTION = Section("backtest", "Backtests", measure, render)
