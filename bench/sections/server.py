"""Section: streams, latency and cost of the server."""

from typing import Any

from figures import Spread, number, prose, ratio, shown, spread, table
from lab import Lab
from section import Section

COSTS = {
    "bare": "a run alone, whose events are counted",
    "service": "served to the same process: stored, and read again",
    "flood": "served over HTTP, words without a pause",
    "sse": "served over HTTP, a pause before each word",
    "a2a": "the same through A2A",
    "openai": "the same as chat completions",
}
STREAMS = {
    "flood": "server-sent events, words without a pause",
    "sse": "server-sent events",
    "stalled": "server-sent events, beside 20 clients that never read",
    "resume": "server-sent events, each leaves twice and comes back",
    "a2a": "A2A",
    "openai": "chat completions of OpenAI",
}


def measure(lab: Lab) -> dict[str, Any]:
    kinds = lab.pick(list(dict.fromkeys([*COSTS, *STREAMS])), ["bare", "service", "resume"])
    clients = lab.pick(500, 3)
    taken: dict[str, list[dict[str, Any]]] = {}
    for kind in lab.turns(kinds, lab.pick(3, 1)):
        found = lab.probe("probes.serve:serve", kind=kind, clients=clients, delay=lab.pick(0.2, 0.0))
        if any(found.get(name) for name in ("dropped", "lost", "repeated")):
            raise RuntimeError(f"the server dropped clients, lost events or repeated them: {found}")
        taken.setdefault(kind, []).append(found)
    events = taken["service"][0]["events"]
    return {
        "clients": clients,
        "events": events // clients,
        "costs": {kind: spread(each["cpu"] / events for each in taken[kind]) for kind in kinds if kind in COSTS},
        "streams": {kind: _stream(taken[kind], clients) for kind in kinds if kind in STREAMS},
    }


def _stream(found: list[dict[str, Any]], clients: int) -> dict[str, Spread]:
    return {
        **{
            f"{name} {p}": spread(each[name][p] for each in found)
            for name in ("first", "whole")
            for p in ("p50", "p95")
        },
        "per_second": spread(each["events"] / each["took"] for each in found),
        "cpu": spread(each["cpu"] / clients for each in found),
        "memory": spread(max(0.0, each["rss"]["peak"] - each["rss"]["before"]) / clients for each in found),
        "peak": spread(each["rss"]["peak"] for each in found),
    }


def render(data: Any) -> str:
    rows = [
        [
            STREAMS[kind], _pair(out, "first"), _pair(out, "whole"), shown(out["per_second"], "messages"),
            shown(out["cpu"], "ms", 1e3), shown(out["peak"], "MB"), shown(out["memory"], "kB", 1e3),
        ]
        for kind, out in data["streams"].items()
    ]  # fmt: skip
    head = [
        "",
        "first event, p50 / p95",
        "last, p50 / p95",
        "in a second",
        "CPU of a run",
        "memory at most",
        "of it a stream",
    ]
    costs = [
        [COSTS[kind], shown(cost, "µs", 1e6), ratio(cost, data["costs"]["bare"])]
        for kind, cost in data["costs"].items()
    ]
    return (
        prose(
            f"{data['clients']} clients at once, in another process, each with a connection and a run of three "
            f"steps, two tool calls and {data['events']} events, by a scripted model with a pause of 200 ms before "
            "each of its 34 words, 7.2 s in all. Every event is in a file before it is sent. None is lost, "
            "repeated or out of order, and no client is dropped. Both processes share the cores; CPU and memory "
            "are the server's."
        )
        + table(head, rows)
        + "\nCPU for each event that is stored:\n\n"
        + table(["", "an event", "ratio"], costs)
    )


def _pair(out: dict[str, Spread], name: str) -> str:
    return " / ".join(number(out[f"{name} {p}"]["median"]) for p in ("p50", "p95")) + " s"


SECTION = Section("server", "The server", measure, render, modules=("a2a", "starlette", "uvicorn"))
