"""Measure attacks and solved tasks with different hooks; each line of the output is progress, the last one the figures.

Runs in the environment that `make agentdojo` creates: `python measure.py banking,slack`. With a number,
`python measure.py banking,slack 4`, a random quarter of the pairs is measured in each of the other wordings.
"""

import contextlib
import io
import json
import random
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NamedTuple

from pairs import Outcome, pairs, run
from wordings import wordings

from hookline.hooks import InjectionGuard, ProvenanceGuard


class Setup(NamedTuple):
    """The hooks of a measurement, how the attack is worded, and whether a person answers questions."""

    hooks: Callable[[], Sequence[Any]]
    attack: str = "plain"
    person: bool = False
    again: bool = False


def guard_set() -> Sequence[Any]:
    """The documented guard set."""
    return [InjectionGuard(action="withhold", taint_steps=0), ProvenanceGuard()]


SETUPS = {
    "none": Setup(lambda: []),
    "injection": Setup(lambda: [InjectionGuard()]),
    "injection_person": Setup(lambda: [InjectionGuard()], person=True),
    "guards": Setup(guard_set),
    "guards_person": Setup(guard_set, person=True),
    "guards_important": Setup(guard_set, attack="important"),
}
WORDED = {wording: Setup(guard_set, wording, again=True) for wording in wordings()}
"""A model that also repeats refused calls, with the documented guard set and each wording."""

Job = tuple[str, tuple[str, str, str]]


def measure(job: Job) -> tuple[str, Outcome]:
    """Run one pair of tasks with one setup."""
    name, pair = job
    hooks, attack, person, again = (SETUPS | WORDED)[name]
    with contextlib.redirect_stdout(io.StringIO()):  # some checks of AgentDojo print
        return name, run(pair, attack, hooks(), person, again)


def main(suites: Sequence[str], every: int = 0) -> None:
    work = [(name, pair) for name in SETUPS for pair in pairs(suites)]
    if every:
        attacked = [pair for pair in pairs(suites) if pair[-1]]
        work = [
            (name, pair)
            for name, setup in WORDED.items()
            for pair in random.Random(setup.attack).sample(attacked, len(attacked) // every)
        ]
    found: dict[str, list[Outcome]] = {}
    with ProcessPoolExecutor() as pool:
        for done, (name, outcome) in enumerate(pool.map(measure, work, chunksize=20)):
            found.setdefault(name, []).append(outcome)
            if done % 20 == 0:
                print(json.dumps([name, done, len(work)]), flush=True)
    print(json.dumps({name: figures(outcomes) for name, outcomes in found.items()}))


def figures(outcomes: Sequence[Outcome]) -> dict[str, dict[str, int]]:
    """Count the outcomes of one combination of hooks, by suite."""
    names = dict.fromkeys(outcome.suite for outcome in outcomes)
    return {name: _count([outcome for outcome in outcomes if outcome.suite == name]) for name in names}


def _count(outcomes: Sequence[Outcome]) -> dict[str, int]:
    alone = [outcome for outcome in outcomes if not outcome.injection_task]
    attacked = [outcome for outcome in outcomes if outcome.injection_task]
    calls = [outcome for outcome in attacked if not outcome.wording]
    wording = [outcome for outcome in attacked if outcome.wording]
    return {
        "tasks": len(alone),
        "solved": sum(outcome.solved for outcome in alone),
        "questions": sum(outcome.questions for outcome in alone),
        "pairs": len(attacked),
        "solved_attacked": sum(outcome.solved for outcome in attacked),
        "questions_attacked": sum(outcome.questions for outcome in attacked),
        "by_call": len(calls),
        "by_call_succeeded": sum(outcome.attacked for outcome in calls),
        "by_call_ran": sum(outcome.harmed for outcome in attacked),
        "by_wording": len(wording),
        "by_wording_succeeded": sum(outcome.attacked for outcome in wording),
    }


if __name__ == "__main__":
    main(
        sys.argv[1].split(",") if len(sys.argv) > 1 else ("workspace", "banking", "slack", "travel"),
        int(sys.argv[2]) if len(sys.argv) > 2 else 0,
    )
