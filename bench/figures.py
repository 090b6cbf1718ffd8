"""Medians with quartiles, ratios and growth rates, and their formatting."""

import math
import statistics
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

Spread = dict[str, float]
"""``median``, the quartiles ``q1`` and ``q3``, and ``n``: of how many."""


def spread(values: Iterable[float]) -> Spread:
    """Return the median and the quartiles of repeated measurements."""
    taken = sorted(values)
    q1, median, q3 = statistics.quantiles(taken, n=4, method="inclusive") if len(taken) > 1 else taken * 3
    return {"median": median, "q1": q1, "q3": q3, "n": len(taken)}


def slopes(points: Mapping[str, float]) -> list[float]:
    """Return the growth exponent between neighbouring sizes: 0 is constant, 1 is linear."""
    pairs = pairwise(sorted((float(size), cost) for size, cost in points.items()))
    return [math.log(there / here) / math.log(more / less) for (less, here), (more, there) in pairs]


def number(value: float) -> str:
    """Format a number with three significant digits."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def shown(taken: Spread, unit: str, scale: float = 1.0) -> str:
    """Format a measurement: ``31.9 µs``, with the quartiles in brackets."""
    middle, low, high = (number(taken[name] * scale) for name in ("median", "q1", "q3"))
    return f"{middle} {unit}" if taken["n"] == 1 else f"{middle} {unit} ({low}\u2013{high})"


def ratio(taken: Spread, floor: Spread) -> str:
    """Format a ratio: ``4.03x``."""
    return f"{number(taken['median'] / floor['median'])}x"


def table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Return a Markdown table with text aligned left and figures aligned right."""
    marks = ["---", *["---:"] * (len(head) - 1)]
    lines = [head, marks, *[[str(cell) for cell in row] for row in rows]]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def prose(words: str) -> str:
    """Wrap a paragraph."""
    return textwrap.fill(words, 118, break_long_words=False, break_on_hyphens=False) + "\n\n"
