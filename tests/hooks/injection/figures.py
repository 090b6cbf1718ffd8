"""How many attacks the scorer catches and how many harmless texts it takes for one, as the page shows it."""

import json
from collections import defaultdict
from functools import cache
from pathlib import Path

from hookline.hooks._injection.patterns import suspicion

HERE = Path(__file__).parent
THRESHOLD = 0.5
SETS = {"dev": "learned from", "blind": "blind"}


@cache
def rows(name):
    """The texts of a file, each with whether it is found."""
    read = [json.loads(line) for line in (HERE / f"{name}.jsonl").read_text("utf-8").splitlines()]
    return [row | {"found": suspicion(row["text"]).score >= THRESHOLD} for row in read]


def table(name, head):
    """Found of all, by kind and set, as a table of Markdown; a set that is not there has no column."""
    counts = defaultdict(lambda: [0, 0])
    for row in rows(name):
        for kind in (row["kind"], "all"):
            counts[kind, row["set"]][0] += row["found"]
            counts[kind, row["set"]][1] += 1
    sets = [part for part in SETS if ("all", part) in counts]
    kinds = sorted({kind for kind, _ in counts} - {"all"})
    lines = [f"| {head} | {' | '.join(SETS[part] for part in sets)} |", f"|---{'|---' * len(sets)}|"]
    for kind in [*kinds, "all"]:
        cells = ["{} of {}".format(*counts[kind, part]) if (kind, part) in counts else "" for part in sets]
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def left_out():
    """What was measured on writers that were left out, as tables of Markdown."""
    stored = json.loads((HERE / "left_out.json").read_text("utf-8"))
    parts = [
        ("threshold", stored["all"]),
        ("writer left out, at 0.5", stored["writers"]),
        ("language, at 0.5", stored["languages"]),
        ("kind, at 0.5", stored["kinds"]),
    ]
    return "\n".join(_part(head, counts) for head, counts in parts)


def _part(head, counts):
    lines = [f"| {head} | attacks caught | false alarms |", "|---|---|---|"]
    for name, (caught, attacks, alarms, harmless) in counts.items():
        cells = [f"{caught} of {attacks}" if attacks else "", f"{alarms} of {harmless}" if harmless else ""]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(left_out())
    print(table("attacks", "attacks caught"))
    print(table("harmless", "false alarms"))
