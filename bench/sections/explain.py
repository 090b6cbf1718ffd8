"""Section: the page of a recorded run."""

from typing import Any

from figures import shown, spread, table
from lab import Lab
from section import Section

ACTIONS = {
    "draw": "draw the page",
    "filter": "filter by verb",
    "tool": "filter by tool",
    "clear": "show everything again",
    "next": "go to the next intervention",
    "search": "search",
}


def measure(lab: Lab) -> dict[str, Any]:
    found = {}
    for moments in lab.turns(lab.pick([5_000, 50_000], [40]), 1, lambda size: f"{size:,} moments"):
        one = lab.probe("probes.explain:page", moments=moments, loads=lab.pick(7, 1))
        browser = {action: spread(times) for action, times in one["browser"].items()}
        found[str(moments)] = {**one, "browser": browser}
    return dict(sorted(found.items(), key=lambda pair: int(pair[0])))


def render(data: Any) -> str:
    head = ["", *(f"{int(moments):,} moments" for moments in data)]
    rows = [
        ["make the page, CPU time", *(f"{one['seconds']:.2f} s" for one in data.values())],
        ["size", *(f"{one['megabytes']:.1f} MB" for one in data.values())],
    ]
    for action, words in ACTIONS.items():
        for name, more in ((action, ""), (f"{action}, CPU time", ", CPU time of the main thread")):
            if all(name in one["browser"] for one in data.values()):
                rows.append([f"{words}{more}", *(shown(one["browser"][name], "ms") for one in data.values())])
    return (
        "The HTML page of `hookline explain` for a run with four moments a step. Times are from the action "
        "to the next frame, in headless Chromium without a GPU.\n\n" + table(head, rows)
    )


SECTION = Section("explain", "The page of a recorded run", measure, render, modules=("playwright",))
