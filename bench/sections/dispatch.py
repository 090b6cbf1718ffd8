"""Section: one fire of n no-op hooks, for every peer whose hooks can be called alone."""

from typing import Any

from charts import FLOOR, OTHER, OURS, Bar, bars
from figures import prose, ratio, shown, spread, table
from lab import Lab, title
from section import Section

SIZES = ("10", "100")


def measure(lab: Lab) -> dict[str, Any]:
    taken: dict[str, Any] = {}
    for peer in lab.turns(lab.peers, lab.pick(5, 1), title):
        found = lab.peer(peer, "dispatch", sizes=list(map(int, SIZES)), reps=lab.pick(7, 1))
        for label, out in found.items():
            kept = taken.setdefault(label, {"async": out["async"], "sizes": {n: [] for n in SIZES}})
            for n in SIZES:
                kept["sizes"][n] += out["sizes"][n]
    return {
        label: {"async": out["async"], "sizes": {n: spread(times) for n, times in out["sizes"].items()}}
        for label, out in sorted(taken.items(), key=lambda each: min(each[1]["sizes"]["10"]))
    }


def floor(data: Any, label: str) -> Any:
    """Return the figures of the for-loop over functions of the same kind."""
    is_async = data[label]["async"] and ", sync" not in label
    return data["for-loop, async hooks" if is_async else "for-loop, sync hooks"]["sizes"]


def render(data: Any) -> str:
    rows = []
    for label, out in data.items():
        cells = [[shown(out["sizes"][n], "µs"), ratio(out["sizes"][n], floor(data, label)[n])] for n in SIZES]
        rows.append([label, *cells[0], *cells[1]])
    head = ["", "n = 10", "to the floor", "n = 100", "to the floor"]
    return (
        prose(
            "CPU time; the floor is a plain `for` over functions of the same kind, sync or async. "
            "agent-framework and openai-agents have no documented way to call their hooks alone."
        )
        + "![One fire of ten hooks](charts/dispatch.svg)\n\n"
        + table(head, rows)
    )


def draw(data: Any) -> dict[str, str]:
    def color(label: str) -> str:
        return OURS if label.startswith("hookline") else FLOOR if label.startswith("for-loop") else OTHER

    rows = []
    for label, out in data.items():
        time = out["sizes"]["10"]
        label_text = f"{shown({**time, 'n': 1}, 'µs')} · {ratio(time, floor(data, label)['10'])}"
        rows.append(Bar(label, time["median"], label_text, time["q1"], time["q3"], color(label)))
    return {"dispatch.svg": bars("One fire of ten hooks that do nothing", "CPU µs and ratio to the floor", rows)}


SECTION = Section("dispatch", "One fire of n hooks", measure, render, draw)
