"""Shares with an interval.

The calls of one run are alike, so a hundred calls of one run say less than a hundred calls of a hundred runs. The
interval is Wilson's, which is right for shares near nothing, with the number of calls divided by the *design effect*:
how much more the share varies between runs than it would if calls were drawn one by one (Korn and Graubard, 1998).
Without any hit the effect cannot be seen, and the calls of a run count as one opinion. A bootstrap by run would say
that a share of nothing is certain, and would need random numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from .._base.frozen import Frozen

Z = 1.96
"""For 95 %."""


class Share(Frozen, frozen=True):
    """``hits`` of ``total``, and the interval of 95 %."""

    hits: int = 0
    total: int = 0
    low: float = 0.0
    high: float = 1.0

    @property
    def value(self) -> float | None:
        """The share; ``None`` of nothing."""
        return self.hits / self.total if self.total else None

    def __str__(self) -> str:
        if not self.total:
            return "no calls"
        return f"{percent(self.hits / self.total)} ({percent(self.low)} to {percent(self.high)})"


def percent(share: float) -> str:
    """Return a share as text: ``0.04 %``, ``2.5 %``, ``12 %``."""
    value = 100 * share
    digits = 0 if value >= 10 or value == 0 else 1 if value >= 0.1 else 2
    return f"{value:.{digits}f} %"


def share_of(hits: Mapping[int, int], sizes: Mapping[int, int]) -> Share:
    """Return the share of hits among the calls of several runs.

    Args:
        hits: the number of hits by run; runs without any may be left out.
        sizes: the number of calls by run.
    """
    total, count = sum(sizes.values()), sum(hits.values())
    if not total:
        return Share()
    share = count / total
    squares = sum(size * size for size in sizes.values())
    alike = squares / total  # the effect if all calls of a run are the same
    if 0 < count < total and len(sizes) > 1:
        spread = squares * share * share  # the sum over all runs; those without a hit need no visit
        spread += sum(
            (hit - share * sizes[run]) ** 2 - (share * sizes[run]) ** 2 for run, hit in hits.items() if run in sizes
        )
        variance = spread / total**2 * len(sizes) / (len(sizes) - 1)
        effect = variance / (share * (1 - share) / total)
    else:
        effect = alike
    return Share(count, total, *wilson(share, total / min(max(effect, 1.0), max(alike, 1.0))))


def wilson(share: float, number: float) -> tuple[float, float]:
    """Return Wilson's interval for a share of a number of independent observations."""
    middle = share + Z * Z / (2 * number)
    half = Z * math.sqrt(share * (1 - share) / number + Z * Z / (4 * number * number))
    scale = 1 + Z * Z / number
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def simple_share(count: int, of: int) -> Share:
    """Return the share of independent observations, such as attacks."""
    return Share(count, of, *wilson(count / of, of)) if of else Share()


def counts_by_run(runs: Sequence[int]) -> dict[int, int]:
    """Return how often each number occurs."""
    found: dict[int, int] = {}
    for run in runs:
        found[run] = found.get(run, 0) + 1
    return found
