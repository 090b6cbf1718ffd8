"""The result of trying rules on recorded runs. It needs no web server, so that a process with it starts quickly."""

from __future__ import annotations

import msgspec


class Difference(msgspec.Struct, frozen=True):
    """A moment about which the rules decide differently.

    ``hook`` is the one that decides now, or that decided then and no longer does. ``then`` and ``now`` are decisions
    in words, such as ``blocked by no_sudo: not allowed``; empty if no hook decided. ``certainty`` is ``exact`` up
    to the first difference of a run, then ``conditional``; ``guess`` if a hook read something that is not recorded.
    """

    run_id: str
    n: int
    hook: str
    point: str
    tool: str
    subject: str
    kind: str
    then: str
    now: str
    certainty: str


class ReplayedRun(msgspec.Struct, frozen=True):
    """A run under other rules. ``different`` counts all moments that differ, also those that are not listed."""

    run_id: str
    moments: int = 0
    judged: int = 0
    different: int = 0
    differences: tuple[Difference, ...] = ()
    problems: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""

    @property
    def needs_reading(self) -> bool:
        """Whether something went wrong, or needs a remark."""
        return bool(self.error or self.problems or self.notes)


class ReplayedCell(msgspec.Struct, frozen=True):
    """The moments of one hook, point, tool and kind of difference, by how sure the answer about them is.

    ``hook`` is empty if no hook decided anything.
    """

    hook: str
    point: str
    tool: str
    kind: str
    exact: int
    conditional: int
    guess: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.exact + self.conditional + self.guess


class Replayed(msgspec.Struct, frozen=True):
    """Runs under other rules. ``hooks`` are the names of the rules, ``digest`` is that of their file.

    ``sure`` says how far the answer can be trusted. ``cells`` are the differences of all runs, counted as ``hookline
    backtest`` does.
    """

    headline: str
    hooks: tuple[str, ...]
    digest: str
    sure: str
    cells: tuple[ReplayedCell, ...]
    runs: tuple[ReplayedRun, ...]
