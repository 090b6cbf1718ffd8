"""The result of trying rules on recorded runs. It needs no web server, so that a process with it starts quickly."""

from __future__ import annotations

import msgspec


class Difference(msgspec.Struct, frozen=True):
    """A moment about which the rules decide differently.

    ``then`` and ``now`` are decisions in words, such as ``blocked by no_sudo: sudo is not allowed``; empty if no hook
    decided. ``certainty`` is ``exact`` up to the first difference of a run, then ``conditional``; ``guess`` if a hook
    read something that is not recorded.
    """

    run_id: str
    n: int
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


class Replayed(msgspec.Struct, frozen=True):
    """Runs under other rules. ``hooks`` are the names of the rules, ``digest`` is that of their file.

    ``sure`` says how far the answer can be trusted.
    """

    headline: str
    hooks: tuple[str, ...]
    digest: str
    sure: str
    runs: tuple[ReplayedRun, ...]
