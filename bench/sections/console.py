"""Section: the web console."""

from typing import Any

from figures import prose, shown, spread, table
from lab import Lab
from section import Section

PAGES = {
    "now": "the first page",
    "newest": "the newest runs",
    "older": "a page in the middle",
    "status": "failed or cancelled runs",
    "tool": "runs with a tool that 1 of 5,000 called",
    "word": "a text that one old run has",
    "text": "a text that no run has",
    "blocked": "the page of what was blocked",
    "hooks": "the page of the hooks, of 24 hours",
    "cost": "the page of the cost, of 30 days",
}


def measure(lab: Lab) -> dict[str, Any]:
    count, rows, consoles = lab.pick(100_000, 100), lab.pick(50, 2), lab.pick(20, 2)
    lists = lab.probe("probes.console:pages", count=count, loads=lab.pick(7, 1))
    live = [lab.probe("probes.console:live", rows=rows, seconds=lab.pick(10, 1)) for _ in range(lab.pick(3, 1))]
    times: dict[int, list[dict[str, float]]] = {}
    for open_pages in lab.turns([0, consoles], lab.pick(5, 1)):
        found = lab.probe("probes.console:watched", consoles=open_pages, runs=lab.pick(200, 3))
        times.setdefault(open_pages, []).append(found)
    return {
        "count": count,
        "rows": rows,
        "lists": {name: spread(each) for name, each in lists.items()},
        "live": {name: spread(each[name] for each in live) for name in live[0]},
        "watched": {
            str(number): {name: spread(each[name] for each in found) for name in ("median", "p95")}
            for number, found in sorted(times.items())
        },
    }


def render(data: Any) -> str:
    lists = [
        [words, *(shown(data["lists"][each], "ms") for each in (f"{name}, server", name, f"{name}, CPU time"))]
        for name, words in PAGES.items()
        if name in data["lists"]
    ]
    watched = [
        [f"{number} open pages", shown(each["median"], "ms", 1e3), shown(each["p95"], "ms", 1e3)]
        for number, each in data["watched"].items()
    ]
    text = prose(
        f"Lists of 50 rows from {data['count']:,} stored runs in SQLite, in headless Chromium without a GPU: from the "
        "start of the navigation to the first frame with the rows, including the server. A search for a text stops "
        "after 100 ms, says how far it looked, and offers to go on."
    ) + table(["", "answer of the server", "drawn after", "CPU time of the main thread"], lists)
    if data["live"]:
        share, updates = data["live"]["share"], data["live"]["updates"]
        text += "\n" + prose(
            f"{data['rows']} rows of running runs that all change: {shown(updates, 'updates')} of the table in a "
            f"second take {shown(share, '%', 100)} of the CPU time of the browser's main thread."
        )
    return (
        text
        + prose(
            "A run of five steps over HTTP while pages of the console are open: ten different ones, such as Now, "
            "Blocked, Hooks, and Runs with filters."
        )
        + table(["", "a run, median", "p95"], watched)
    )


SECTION = Section("console", "The web console", measure, render, modules=("playwright", "starlette", "uvicorn"))
