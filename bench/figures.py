"""Medians with their spread, ratios and growth, and how they are written."""

import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Spread = dict[str, float]
"""``median``, the quartiles ``q1`` and ``q3``, and ``n``: of how many."""


def spread(values: Iterable[float]) -> Spread:
    """What is kept of a measurement that was repeated."""
    taken = sorted(values)
    q1, median, q3 = statistics.quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else taken * 3
    return {"median": median, "q1": q1, "q3": q3, "n": len(taken)}


def slopes(points: Mapping[str, float]) -> list[float]:
    """Between neighbouring sizes, the power of the size with which a cost grows: 0 not at all, 1 with the size."""
    pairs = pairwise(sorted((float(size), cost) for size, cost in points.items()))
    return [math.log(there / here) / math.log(more / less) for (less, here), (more, there) in pairs]


def number(value: float) -> str:
    """Three digits that count, and no more."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def shown(taken: Spread, unit: str, scale: float = 1.0) -> str:
    """``31.9 µs``, and in brackets the quartiles."""
    middle, low, high = (number(taken[name] * scale) for name in ("median", "q1", "q3"))
    return f"{middle} {unit}" if taken["n"] == 1 else f"{middle} {unit} ({low}\u2013{high})"


def ratio(taken: Spread, floor: Spread) -> str:
    """``4.03x``."""
    return f"{number(taken['median'] / floor['median'])}x"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table in Markdown: words to the left, figures to the right."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    lines = [head, marks, *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def prose(words: str) -> str:
    """A paragraph, in lines of a good length."""
    return textwrap.fill(words, 118, break_long_words=False, break_on_hyphens=False) + "\n\n"
