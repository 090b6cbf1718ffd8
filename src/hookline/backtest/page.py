"""The report of a backtest as one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .._base.frozen import EMPTY
from ..explain.html import html_page
from .report import Cell, Example, HookFailure, Report, headline, how_sure


def tone_of(kind: str) -> str:
    """Return the colour of a kind of difference, the same on pages and in the terminal."""
    kind = kind.replace(" ", "_")
    if kind in ("newly_blocked", "newly_ended", "raised"):
        return "red"
    if kind.endswith("_asked"):
        return "violet"
    return "grey" if kind == "same" else "amber"


def explain_command(example: Example) -> str:
    """Return the command that shows the moment of an example. It is quoted for a shell: ids come from records."""
    id = example.run_id
    options = ["--at", str(example.n), *(["--records", example.file] if example.file else [])]
    words = [*options, "--", id] if id.startswith("-") else [id, *options]
    return shlex.join(["hookline", "explain", *words])


def report_page(report: Report, *, about: Mapping[str, str] = EMPTY) -> str:
    """Return a report as one HTML page that needs no other file and no network.

    Args:
        report: the report.
        about: what the report was made from, as names and values for people, such as the files of rules and records.

    Example::

        Path("report.html").write_text(report_page(report, about={"Rules": "rules.py"}), encoding="utf-8")
    """
    title = headline(report)
    return html_page(
        title,
        assets=("theme.css", "common.js", "backtest.css", "backtest.js"),
        data={"headline": title, "sure": how_sure(report), "about": dict(about), "report": _shown(report)},
        body='<div id="page"></div><noscript>This page draws the report with JavaScript.</noscript>',
    )


def _shown(report: Report) -> dict[str, Any]:
    shown: dict[str, Any] = msgspec.to_builtins(report)
    shown["differences"] = msgspec.to_builtins(report.differences)
    for part in ("labels", "labels_then"):
        confusion = getattr(report, part)
        shown[part] |= {"precision": confusion.precision, "recall": confusion.recall, "total": confusion.total}
    for cell in shown["cells"]:
        cell["tone"] = tone_of(cell["kind"])
    groups: list[tuple[str, Sequence[Cell | HookFailure]]] = [("cells", report.cells), ("failures", report.failures)]
    for group, items in groups:
        for made, item in zip(shown[group], items, strict=True):
            made["examples"] = [{**msgspec.structs.asdict(e), "command": explain_command(e)} for e in item.examples]
    return shown
