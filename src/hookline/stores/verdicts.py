"""Verdicts of hooks and decisions of people, from facts: the same ones in lists of a run, of refusals and in counts."""

from __future__ import annotations

import msgspec

from .facts import Gate, RunFact

HAS_VERDICTS = "kind IN ('fire', 'model', 'shadow', 'approval') AND (hook != '' OR refused = 1)"
"""The condition for facts with verdicts."""


class Verdict(msgspec.Struct, frozen=True):
    """The result of a hook in a run or in one of its subagents, whose id is ``run_id``.

    ``seq`` is its number in the run that was asked about. The verb ``denied`` is that of a person, ``by``, who denied a
    call; ``shadow`` is that of a hook in shadow mode, whose reason says what it would have done. ``refused`` says
    whether it prevented something. ``rules`` is the digest of the rules in force.
    """

    seq: int
    at: float
    run_id: str
    point: str
    hook: str
    phase: str
    verb: str
    reason: str
    error: str
    tool: str
    call_id: str
    by: str
    refused: bool
    rules: str
    duration: float | None


def verdict_of(seq: int, fact: RunFact, verb: str, gate: Gate) -> Verdict:
    """Return one of the verdicts of a fact."""
    is_failure = verb == "failed"
    return Verdict(
        seq=seq,
        at=fact.at,
        run_id=fact.run.run_id,
        point=fact.point,
        hook=gate.hook,
        phase=gate.phase,
        verb=verb,
        reason="" if is_failure else gate.reason,
        error=gate.reason if is_failure else "",
        tool=fact.tool,
        call_id=fact.call_id,
        by=fact.source if fact.kind == "approval" else "",
        refused=gate.refused,
        rules=fact.run.rules,
        duration=gate.microseconds / 1e6 if fact.kind in ("fire", "model") else None,
    )


def decisions_of(fact: RunFact) -> list[tuple[str, Gate]]:
    """Return the verdicts of a fact, with their verbs in lists."""
    if fact.kind == "shadow":
        would = "" if fact.verb == "failed" else f"would {fact.verb}: "
        return [("shadow", Gate(fact.hook, "", fact.verb, 0, f"{would}{fact.reason}".removesuffix(": ")))]
    if fact.kind == "approval":
        return [(fact.verb, Gate("", "", fact.verb, 0, fact.reason, fact.refused))]
    return [(gate.verb, gate) for gate in fact.decisions]
