"""Section: decisions for programs in other languages."""

from typing import Any

from figures import prose, ratio, shown, spread, table
from lab import Lab
from section import Section

KINDS = {
    "http": "`POST /decide`",
    "socket": "`POST /decide` through a Unix socket",
    "starlette": "a route of Starlette that decides nothing",
}
SIZES = {"one": (1, 2000), "many": (16, 250)}
FIGURES = ("p50", "p95", "per_second", "cpu")


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, dict[str, list[dict[str, float]]]] = {size: {kind: [] for kind in KINDS} for size in SIZES}
    for size, kind in lab.turns([(size, kind) for size in SIZES for kind in KINDS], lab.pick(5, 1), str):
        sessions, questions = lab.pick(SIZES[size], (2, 10))
        taken[size][kind].append(lab.probe("probes.decide:decide", kind=kind, sessions=sessions, questions=questions))
    return {
        size: {kind: {name: spread(each[name] for each in found) for name in FIGURES} for kind, found in kinds.items()}
        for size, kinds in taken.items()
    }


def render(data: Any) -> str:
    rows = []
    for size, kinds in data.items():
        for kind, found in kinds.items():
            rows.append(
                [
                    f"{KINDS[kind]}, {SIZES[size][0]} at once" if size == "many" else KINDS[kind],
                    shown(found["p50"], "ms", 1e3), shown(found["p95"], "ms", 1e3),
                    shown(found["per_second"], "questions"), shown(found["cpu"], "µs", 1e6),
                    ratio(found["cpu"], kinds["starlette"]["cpu"]),
                ]
            )  # fmt: skip
    head = ["", "answer, p50", "p95", "in a second", "CPU of a question", "ratio"]
    return prose(
        "Questions about a call and its result, one after another in each session: parsed, judged by three guards, "
        "recorded as events and facts in a file, and written to the audit log. Another process asks, so the two "
        "share the cores; CPU is the server's. A server is one process."
    ) + table(head, rows)


SECTION = Section("decide", "Decisions for other programs", measure, render, modules=("starlette", "uvicorn"))
