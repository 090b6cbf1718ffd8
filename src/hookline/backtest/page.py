"""The report of a backtest as one HTML page."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from .._base.frozen import EMPTY
from .._base.text import counted
from ..explain.html import html_page
from .report import KINDS, Cell, Example, HookFailure, Kind, Report

_IN_HEADLINE = 3


def headline(report: Report) -> str:
    """Return the answer of a report in one sentence.

    Example::

        headline(report)  # "2 of 1,204 runs would differ: 3 newly blocked, 1 no longer asked."
    """
    if not report.runs:
        return "The records contain no runs, so nothing was judged."
    found: list[tuple[Kind, int]] = [
        (kind, number) for kind in KINDS if kind != "same" and (number := report.total(kind).total)
    ]
    if not found and not report.judged and report.failures:
        return f"No moment could be judged in {counted(report.runs, 'run')}, because the rules failed."
    if not found and not report.judged:
        return f"The rules were not called: {counted(report.runs, 'run')}, and no moment at their points and tools."
    if not found:
        return f"No decision would differ in {counted(report.runs, 'run')}."
    named = [f"{number:,} {in_words(kind)}" for kind, number in found[:_IN_HEADLINE]]
    if len(found) > _IN_HEADLINE:
        named.append(f"{sum(number for _, number in found[_IN_HEADLINE:]):,} other differences")
    return f"{report.different_runs:,} of {counted(report.runs, 'run')} would differ: {', '.join(named)}."


def how_sure(report: Report) -> str:
    """Return how far the answer of a report can be trusted, as a sentence; empty if no moment was judged."""
    found, guesses = report.differences, report.certainty.guess
    if not report.moments or not report.judged:
        return ""
    if not found.total:
        return f"{counted(guesses, 'answer')} may be wrong: see the guesses." if guesses else "That is certain."
    if found.exact == found.total:
        return "That is certain: up to the first difference, each run went exactly this way."
    are = "is" if found.exact == 1 else "are"
    parts = [f"{found.exact:,} of {counted(found.total, 'difference')} {are} certain"]
    if found.conditional:
        parts.append(f"{found.conditional:,} came later in a run that would have differed before")
    if found.guess:
        guessed = "is a guess" if found.guess == 1 else "are guesses"
        parts.append(f"{found.guess:,} {guessed}, because a hook read something that is not recorded")
    return f"{'; '.join(parts)}."


def in_words(kind: Kind) -> str:
    """Return a kind of difference as it is shown."""
    return kind.replace("_", " ")


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
