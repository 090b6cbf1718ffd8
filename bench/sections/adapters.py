"""Section: the cost of Hookline's hooks in the loops of other frameworks."""

from typing import Any

from figures import number, prose, ratio, shown, spread, table
from lab import Lab, title
from section import Section

ADAPTED = ("agent_framework_", "google_adk_", "langchain_", "openai_agents_", "pydantic_ai_", "strands_")
KINDS = {
    "bare": {},
    "adapter": {"adapter": True},
    "hooks": {"adapter": True, "hooks": "async"},
    "own hooks": {"hooks": "async"},
}

SHORT, LONG = 10, 200
GROWN = {
    f"{kind} {steps}": {**spec, "steps": steps}
    for steps in (SHORT, LONG)
    for kind, spec in {
        "bare": {},
        "guard": {"adapter": True, "hooks": "guard"},
        "own": {"hooks": "async", "n": 1},
    }.items()
}
"""Runs of two lengths: bare, with one guard, and with one hook of the framework on each point."""


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, dict[str, list[float]]] = {}
    peers = [peer for peer in lab.peers if peer in ADAPTED]
    for peer in lab.turns(peers, lab.pick(3, 1), title):
        for kind, times in lab.peer(peer, "loop", specs=KINDS, reps=lab.pick(10, 1)).items():
            taken.setdefault(peer, {}).setdefault(kind, []).extend(times)
    for peer in lab.turns(peers, 1, title):
        for kind, times in lab.peer(peer, "loop", specs=GROWN, reps=lab.pick(3, 1)).items():
            taken[peer].setdefault(kind, []).extend(times)
    return {peer: {kind: spread(times) for kind, times in kinds.items()} for peer, kinds in taken.items()}


def cost(kinds: Any, steps: int) -> tuple[str, str, str, str]:
    """Return the time of a bare step of a run of this length, and what hooks add to it."""
    bare, guard, own = (kinds[f"{kind} {steps}"] for kind in ("bare", "guard", "own"))
    guard_adds, own_adds = (f"+{number(each['median'] - bare['median'])} µs" for each in (guard, own))
    return shown(bare, "µs"), guard_adds, ratio(guard, bare), own_adds


def render(data: Any) -> str:
    rows = [
        [
            title(peer),
            shown(kinds["bare"], "µs"),
            f"+{number(kinds['adapter']['median'] - kinds['bare']['median'])} µs",
            ratio(kinds["adapter"], kinds["bare"]),
            f"+{number(kinds['hooks']['median'] - kinds['bare']['median'])} µs",
            ratio(kinds["hooks"], kinds["bare"]),
            f"+{number(kinds['own hooks']['median'] - kinds['bare']['median'])} µs",
        ]
        for peer, kinds in sorted(data.items())
    ]
    head = [
        "",
        "a step without hooks",
        "the adapter adds",
        "ratio",
        "with 10 hooks on each point",
        "ratio",
        "10 of its own",
    ]
    added = ("one guard adds", "ratio", "one of its own adds")
    grown_head = ["", f"a bare step of {SHORT}", *added, f"a bare step of {LONG}", *added]
    grown = [
        [
            title(peer),
            *[text for steps in (SHORT, LONG) for text in cost(kinds, steps)],
        ]
        for peer, kinds in sorted(data.items())
        if f"bare {LONG}" in kinds
    ]
    text = prose(
        "The standard run of ten steps in the loop of each framework: CPU time for a step, bare, with the adapter "
        "and no hooks, with the adapter and ten async hooks that do nothing before and after the run, each model "
        "call and each tool call, and with ten hooks of the framework itself instead."
    ) + table(head, rows)
    if not grown:  # measured before there were runs of two lengths
        return text
    about = prose(
        f"The same with one guard on tool calls, in runs of {SHORT} and of {LONG} steps, and with one hook of the "
        "framework on each point instead."
    )
    return f"{text}\n{about}{table(grown_head, grown)}"


SECTION = Section("adapters", "Hookline in other frameworks", measure, render)
