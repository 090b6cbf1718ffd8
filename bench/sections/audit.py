"""Section: how fast the audit log is written."""

from typing import Any

from figures import shown, spread, table
from lab import Lab
from section import Section

KINDS = {
    "never": "to a file, `fsync` never",
    "batch": "to a file, `fsync` once for a batch",
    "signed": "the same, every line signed",
    "verify": "verified",
}


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, list[list[float]]] = {}
    for _ in lab.turns(["the log"], lab.pick(5, 1)):
        for kind, found in lab.probe("probes.audit:rates", count=lab.pick(50_000, 50)).items():
            taken.setdefault(kind, []).append(found)
    return {kind: [spread(each) for each in zip(*found, strict=True)] for kind, found in taken.items()}


def render(data: Any) -> str:
    rows = []
    for kind, (rate, *put) in data.items():
        rows.append([KINDS[kind], shown(rate, "records"), *(shown(each, "µs") for each in put or [])])
    rows[-1].append("")
    return "Of one process, until all is in the file.\n\n" + table(
        ["", "in a second", "a record, of the run's thread"], rows
    )


SECTION = Section("audit", "The audit log", measure, render)
