"""Section: records in Parquet, read with DuckDB."""

from typing import Any

from figures import prose, shown, spread, table
from lab import Lab
from section import Section

RATES = {
    "export": "export to Parquet",
    "scan": "count all moments by their point",
    "filter": "count the calls of one tool",
    "one_tool": "backtest of a guard on one tool (1 in 12 moments)",
    "every_call": "backtest of a guard on every call (1 in 4 moments)",
}


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, list[float]] = {}
    for _ in lab.turns(["records in Parquet"], lab.pick(3, 1)):
        for kind, found in lab.probe("probes.parquet:rates", moments=lab.pick(1_000_000, 2_000)).items():
            taken.setdefault(kind, []).append(found)
    return {kind: spread(found) for kind, found in taken.items()}


def render(data: Any) -> str:
    rows = [[what, shown(data[kind], "million", 1e-6)] for kind, what in RATES.items()]
    lines, columns, peak = (
        shown(data[kind], unit)
        for kind, unit in (("line bytes", "bytes"), ("parquet bytes", "bytes"), ("peak MB", "MB"))
    )
    words = (
        "One million recorded moments, one process and one thread, in CPU time. A guard that looks at earlier messages "
        "needs all lines, so it is as fast as with files of moments. "
        f"A moment takes {lines} in a file of moments and {columns} in Parquet; the peak of the memory was {peak}."
    )
    return prose(words) + table(["", "moments in a second"], rows)


SECTION = Section("parquet", "Records in Parquet", measure, render, modules=("duckdb", "pyarrow"))
