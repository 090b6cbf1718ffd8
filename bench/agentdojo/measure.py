"""Measure attacks and solved tasks with different hooks; each line of the output is progress, the last one the figures.

Runs in the environment that `make agentdojo` creates: `python measure.py banking,slack`.
"""

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import Any

from pairs import ATTACKS, Outcome, pairs, run

from hookline.hooks import InjectionGuard, ProvenanceGuard

Hooks = Callable[[], Sequence[Any]]
SETUPS: dict[str, Hooks] = {
    "no hooks": lambda: [],
    "`InjectionGuard`": lambda: [InjectionGuard()],
    "`ProvenanceGuard`": lambda: [ProvenanceGuard()],
    "both": lambda: [InjectionGuard(action="withhold"), ProvenanceGuard()],
}
"""The hooks that are compared."""
ANSWERS = {"nobody answers": False, "a person answers": True}

Job = tuple[str, str, str, tuple[str, str, str]]


def jobs(suites: Sequence[str], setups: Iterable[str], attacks: Iterable[str]) -> list[Job]:
    """Return every combination of hooks, wording of the attack, approver and pair of tasks."""
    return [
        (setup, attack, answers, pair)
        for setup in setups
        for attack in attacks
        for answers in (ANSWERS if SETUPS[setup]() else ("nobody answers",))
        for pair in pairs(suites)
    ]


def measure(job: Job) -> tuple[Job, Outcome]:
    """Run one combination."""
    setup, attack, answers, pair = job
    return job, run(pair, attack, SETUPS[setup](), ANSWERS[answers])


def main(suites: Sequence[str]) -> None:
    work = jobs(suites, SETUPS, ATTACKS)
    found: dict[str, list[Outcome]] = {}
    with ProcessPoolExecutor() as pool:
        for done, (job, outcome) in enumerate(pool.map(measure, work, chunksize=20)):
            found.setdefault("|".join(job[:3]), []).append(outcome)
            if done % 20 == 0:
                print(json.dumps([job[0], done, len(work)]), flush=True)
    print(json.dumps({key: figures(outcomes) for key, outcomes in found.items()}))


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
    main(sys.argv[1].split(",") if len(sys.argv) > 1 else ("workspace", "banking", "slack", "travel"))
