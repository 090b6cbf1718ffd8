"""The table and the chart of docs/guides/small-models.md."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from slm.tasks import KINDS

FIGURES = ("solved", "repeats", "unfinished", "echoes", "schema errors", "turns", "tokens")
Rows = dict[str, list[dict[str, Any]]]

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PAGE, CHART = GUIDES / "small-models.md", GUIDES / "small-models.svg"
BEGIN, END = "<!-- measured -->\n", "<!-- end -->"
COLORS = ("#2a6f97", "#61a5c2", "#e09f3e", "#9a8c98")


def summary(rows: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    """The figures of several tasks together."""
    rows = list(rows)
    return {name: sum(int(row[name]) for row in rows) for name in FIGURES}


def by_kind(rows: list[dict[str, Any]]) -> list[tuple[int, int]]:
    """How many tasks of each kind are solved, and how many there are."""
    groups = [[row for row in rows if row["kind"] == kind] for kind in KINDS]
    return [(sum(row["solved"] for row in group), len(group)) for group in groups]


def table(rows: Rows) -> tuple[list[str], list[list[str]]]:
    """Heads and cells, a line for each setup."""
    heads = ["", *KINDS, *FIGURES]
    cells = []
    for setup, found in rows.items():
        total = summary(found)
        kinds = [f"{solved}/{count}" for solved, count in by_kind(found)]
        cells.append([setup, *kinds, f"{total['solved']}/{len(found)}", *(f"{total[name]:,}" for name in FIGURES[1:])])
    return heads, cells


def write(rows: Rows, model: str) -> None:
    """Put table and chart in their places."""
    heads, cells = table(rows)
    lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *cells]
    made = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    seconds = sum(row["seconds"] for found in rows.values() for row in found)
    said = f"\n{sum(map(len, rows.values()))} runs on {model}, {seconds / 60:.0f} minutes.\n"
    page = PAGE.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{made}{said}\n{END}{after}")
    CHART.write_text(chart(rows))


def chart(rows: Rows) -> str:
    """Tasks solved with each setup, as bars of the four kinds."""
    total = max(map(len, rows.values()))
    left, scale, height = 170, 440 / total, 30
    parts: list[str] = []
    y = 44
    for index, kind in enumerate(KINDS):
        x = left + index * 110
        parts.append(f'<rect x="{x}" y="12" width="12" height="12" rx="2" fill="{COLORS[index]}"/>')
        parts.append(f'<text x="{x + 18}" y="22">{escape(kind)}</text>')
    for setup, found in rows.items():
        parts.append(f'<text x="{left - 10}" y="{y + 16}" text-anchor="end">{escape(setup)}</text>')
        parts.append(f'<rect x="{left}" y="{y}" width="{total * scale:.0f}" height="22" rx="3" fill="#8882"/>')
        at: float = left
        for color, (solved, _) in zip(COLORS, by_kind(found), strict=True):
            width = solved * scale
            if solved:
                parts.append(f'<rect x="{at:.1f}" y="{y}" width="{width:.1f}" height="22" fill="{color}"/>')
                parts.append(
                    f'<text x="{at + width / 2:.1f}" y="{y + 16}" fill="#fff" text-anchor="middle">{solved}</text>'
                )
            at += width
        y += height
    parts.append(f'<text x="{left + total * scale:.0f}" y="{y + 6}" text-anchor="end">tasks solved, of {total}</text>')
    style = "text{font:13px system-ui,sans-serif;fill:#667}text[fill]{fill:#fff}"
    body = "\n".join(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 {y + 16}" role="img" '
        f'aria-label="Tasks solved with each setup">\n<style>{style}</style>\n{body}\n</svg>\n'
    )


def save(rows: Rows, path: Path) -> None:
    """Every run, as JSON."""
    path.write_text(json.dumps(rows, indent=1))
