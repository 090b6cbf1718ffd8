"""Section: throughput and latency of the gateway."""

from typing import Any

from figures import prose, shown, spread, table
from lab import Lab
from section import Section

KINDS = {
    "flood": "all sent at once",
    "talk": "each conversation says its next when it has its answer",
    "webhook flood, fetched": "the first through a signed webhook, replies fetched",
    "webhook talk, fetched": "the second through a signed webhook, replies fetched",
    "webhook talk, posted": "the same, replies posted to a callback",
}
FIGURES = ("per_second", "p50", "p95", "cpu")


def measure(lab: Lab) -> dict[str, Any]:
    kinds = lab.pick(list(KINDS), ["talk", "webhook talk, posted"])
    size = {"conversations": lab.pick(200, 2), "messages": lab.pick(4000, 4)}
    taken: dict[str, list[dict[str, float]]] = {}
    for kind in lab.turns(kinds, lab.pick(3, 1)):
        found = lab.probe("probes.gateway:talk", kind=kind, **size)
        if found["lost"] or found["out_of_order"] or found.get("twice"):
            raise RuntimeError(f"the gateway lost messages, or their order: {found}")
        taken.setdefault(kind, []).append(found)
    figures = {kind: {name: spread(found[name] for found in taken[kind]) for name in FIGURES} for kind in kinds}
    return {**size, "kinds": figures}


def render(data: Any) -> str:
    rows = [
        [
            KINDS[kind], shown(found["per_second"], "messages"), shown(found["p50"], "ms", 1e3),
            shown(found["p95"], "ms", 1e3), shown(found["cpu"], "ms", 1e3),
        ]
        for kind, found in data["kinds"].items()
    ]  # fmt: skip
    head = ["", "in a second", "to its answer, p50", "p95", "CPU of a message"]
    return prose(
        f"{data['messages']:,} messages of {data['conversations']} conversations at once, a scripted model, every "
        "message and every reply on disk before it counts. None is lost, and none is out of order within its "
        "conversation. The webhook is served on this machine, and another process talks to it, so the two share its "
        "cores; CPU is that of the gateway."
    ) + table(head, rows)


SECTION = Section("gateway", "The gateway", measure, render, modules=("starlette", "uvicorn"))
