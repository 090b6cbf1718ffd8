"""Tables and a chart of the ablation, for the results page and docs/guides/small-models.md."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import charts
import figures
from slm.tasks import KINDS

FIGURES = ("solved", "repeats", "unfinished", "echoes", "schema errors", "turns", "tokens")
Rows = dict[str, list[dict[str, Any]]]
Summaries = dict[str, Any]
"""``model``, ``seconds``, and ``setups``: by name, how many tasks of each kind are solved of how many, and figures."""

GUIDES = Path(__file__).parents[2] / "docs" / "guides"
PAGE, CHART = GUIDES / "small-models.md", GUIDES / "small-models.svg"
BEGIN, END = "<!-- measured -->\n", "<!-- end -->"


def summaries(rows: Rows, model: str) -> Summaries:
    """Return the figures that are kept of all runs."""
    seconds = sum(row["seconds"] for found in rows.values() for row in found)
    return {"model": model, "seconds": seconds, "setups": {setup: summary(found) for setup, found in rows.items()}}


def summary(rows: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Combine the figures of several tasks."""
    groups = {kind: [row["solved"] for row in rows if row["kind"] == kind] for kind in KINDS}
    kinds = {kind: [sum(group), len(group)] for kind, group in groups.items() if group}
    return {"kinds": kinds, **{name: sum(int(row[name]) for row in rows) for name in FIGURES}}


def tasks(found: dict[str, Any]) -> int:
    """Return the number of tasks of a setup."""
    return sum(count for _, count in found["kinds"].values())


def table(data: Summaries) -> tuple[list[str], list[list[str]]]:
    """Return the header and one row per setup."""
    cells = [
        [
            setup,
            *(f"{solved}/{count}" for solved, count in found["kinds"].values()),
            f"{found['solved']}/{tasks(found)}",
            *(f"{found[name]:,}" for name in FIGURES[1:]),
        ]
        for setup, found in data["setups"].items()
    ]
    return ["", *kinds_of(data), *FIGURES], cells


def kinds_of(data: Summaries) -> tuple[str, ...]:
    """Return the kinds of tasks that were run."""
    return tuple(next(iter(data["setups"].values()))["kinds"])


def words(data: Summaries) -> str:
    """Return the text for the results page."""
    return (
        "The embedded model without help, with all hooks of the bundle, and grounded as well, on held-out tasks.\n"
        "[Small models](../docs/guides/small-models.md) says what the tasks are, and what came of this.\n\n"
        "![Tasks solved with each setup](charts/small-models.svg)\n\n" + made(data)
    )


def made(data: Summaries) -> str:
    """Return the table and the duration."""
    runs = sum(map(tasks, data["setups"].values()))
    return figures.table(*table(data)) + f"\n{runs} runs on {data['model']}, {data['seconds'] / 60:.0f} minutes.\n"


def write_guide(data: Summaries) -> None:
    """Write the table and the chart into the guide."""
    page = PAGE.read_text()
    before, after = page.partition(BEGIN)[0], page.partition(END)[2]
    PAGE.write_text(f"{before}{BEGIN}\n{made(data)}\n{END}{after}")
    CHART.write_text(chart(data))


def chart(data: Summaries) -> str:
    """Draw the solved tasks of each setup as bars of the kinds."""
    total = max(map(tasks, data["setups"].values()))
    rows = {setup: [solved for solved, _ in found["kinds"].values()] for setup, found in data["setups"].items()}
    return charts.stacks("Tasks solved with each setup", f"tasks solved, of {total}", kinds_of(data), rows, total)
