"""Section: backtests on recorded moments."""

from typing import Any

from figures import number, prose, shown, spread, table
from lab import Lab
from section import Section

RATES = {
    "one tool": "a guard on one tool (1 in 9 moments)",
    "every call": "a guard on every tool call (1 in 4 moments)",
    "every moment": "a guard on every moment",
    "only calls": "a guard on every moment of a record of tool calls",
}


def measure(lab: Lab) -> dict[str, Any]:
    rates: dict[str, list[float]] = {}
    workers: dict[str, list[float]] = {}
    moments = lab.pick(1_000_000, 2_000)
    for job in lab.turns(["rates", "processes"], lab.pick(3, 1)):
        kept = rates if job == "rates" else workers
        for kind, found in lab.probe(f"probes.backtest:{job}", moments=moments).items():
            kept.setdefault(kind, []).append(found)
    return {
        "rates": {kind: spread(found) for kind, found in rates.items()},
        "processes": {count: spread(found) for count, found in workers.items()},
        "large": lab.probe("probes.backtest:large", moments=moments, copies=lab.pick(10, 2)),
    }


def render(data: Any) -> str:
    rates, processes, large = data["rates"], data["processes"], data["large"]
    gain = processes["2"]["median"] / processes["1"]["median"]
    rows = [[what, shown(rates[kind], "")] for kind, what in RATES.items()]
    rows += [[f"{what}, in wall-clock time", shown(processes[count], "")] for count, what in _PROCESSES.items()]
    words = (
        f"One million recorded moments of {number(rates['bytes']['median'])} bytes each, in CPU time of one process. "
        "Lines that no hook listens to are passed over by their first bytes; the others are decoded to payloads. "
        f"Two processes are {gain:.1f} times as fast as one. {large['moments'] / 1e6:.0f} million moments "
        f"({large['GB']:.1f} GB) took {large['seconds']:.0f} s in one process, whose memory peaked at "
        f"{large['peak MB']:.0f} MB."
    )
    return prose(words) + table(["", "moments in a second"], rows)


_PROCESSES = {"1": "every moment in one process", "2": "every moment in two processes"}

SECTION = Section("backtest", "Backtests", measure, render)
