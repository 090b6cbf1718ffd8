"""Section: a thousand concurrent runs in one thread, for every peer that supports it."""

from typing import Any

from charts import FLOOR, OTHER, OURS, Bar, bars
from figures import number, prose, ratio, shown, spread, table
from lab import Lab, title
from section import Section

ABLE = {
    "bare", "hookline_", "agent_framework_", "google_adk_", "langchain_", "openai_agents_", "pydantic_ai_", "strands_"
}  # fmt: skip
"""Peers whose loop does not block."""
ROUNDS, PATIENCE = 3, 15.0
"""A peer that took more seconds than that is measured once."""


def measure(lab: Lab) -> dict[str, Any]:
    runs, taken, slow = lab.pick(1000, 5), dict[str, list[dict[str, float]]](), set[str]()
    for peer in lab.turns([peer for peer in lab.peers if peer in ABLE], lab.pick(ROUNDS, 1), title):
        if peer not in slow:
            options = lab.pick({}, {"delay": 0.001})
            taken.setdefault(peer, []).append(found := lab.peer(peer, "concurrent", runs=runs, **options))
            if found["seconds"] > PATIENCE:
                slow.add(peer)
    keys = ("over_ideal", "kb_per_run")
    peers = {peer: {key: spread(each[key] for each in found) for key in keys} for peer, found in taken.items()}
    return {"runs": runs, "peers": peers}


def render(data: Any) -> str:
    peers = data["peers"]
    floor = peers["bare"]["over_ideal"]
    rows = [
        [
            title(peer), shown(found["over_ideal"], "times"), ratio(found["over_ideal"], floor),
            shown(found["kb_per_run"], "KB"), f"{found['over_ideal']['n']:.0f}",
        ]
        for peer, found in sorted(peers.items(), key=lambda each: each[1]["over_ideal"]["median"])
    ]  # fmt: skip
    head = ["", "wall time over the ideal", "to the floor", "memory of a run", "rounds"]
    return (
        prose(
            f"{data['runs']:,} standard runs in one thread, whose model sleeps for 50 ms at each of ten steps: the "
            f"ideal is half a second. Peers that took more than {PATIENCE:.0f} s were measured once. smolagents "
            "has no async loop."
        )
        + "![Many runs at once](charts/concurrent.svg)\n\n"
        + table(head, rows)
    )


def draw(data: Any) -> dict[str, str]:
    colors = {"bare": FLOOR, "hookline_": OURS}
    rows = [
        Bar(title(peer), time["median"], f"{number(time['median'])}x", time["q1"], time["q3"], colors.get(peer, OTHER))
        for peer, time in ((peer, found["over_ideal"]) for peer, found in data["peers"].items())
    ]
    return {"concurrent.svg": bars(f"{data['runs']:,} runs at once", "wall time over the ideal", rows)}


SECTION = Section("concurrent", "1,000 runs at once", measure, render, draw)
