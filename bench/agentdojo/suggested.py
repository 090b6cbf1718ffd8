"""Measure rules that are proposed from tasks without attacks, on other tasks with attacks.

Each user task is judged once: the tasks of a suite are in four parts, by their number modulo 4, and the rules for one
part are proposed from records of the tasks in the other three, without any attack. The rules are then ordinary hooks,
not in shadow mode, of an agent that obeys every injection. Nothing is known of the attacks when rules are chosen.

Each line of the output is progress, the last one the figures.
"""

import contextlib
import io
import json
import re
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from itertools import product
from pathlib import Path
from typing import Any

from measure import _count
from pairs import Outcome, run, suite_of

from hookline import BEFORE_TOOL, HookResult
from hookline.hooks.rules import load_rules
from hookline.records import RecordHook, read_runs
from hookline.suggest import propose

PARTS = 4
LIMITS = ("1%", "10%", "100%")
"""How many of the calls by which rules are chosen the rules may interrupt."""
SUPPORT = (5, 2)
"""How often something must occur before a rule is made of it: the default, and for records of a dozen runs."""
SUITES = ("workspace", "banking", "slack", "travel")
Job = tuple[str, int, bool]


def part_of(task: str) -> int:
    """Return the part of a user task."""
    return int(re.sub(r"\D", "", task)) % PARTS


def measure(job: Job) -> tuple[Job, dict[str, Any]]:
    """Propose rules for one part of a suite, and run its tasks with them."""
    suite, part, redacted = job
    tasks = list(suite_of(suite).user_tasks)
    attacks = ["", *suite_of(suite).injection_tasks]
    pairs = [(suite, task, attack) for task in tasks if part_of(task) == part for attack in attacks]
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        records = Path(folder, "records")
        for task in tasks:
            if part_of(task) != part:
                run((suite, task, ""), "plain", [RecordHook(records, **({} if redacted else {"redact": False}))], True)
        names = {moment.tool for each in read_runs(records) for moment in each.moments if moment.point == "before_tool"}
        setups: dict[str, tuple[Sequence[Any], bool]] = {"nothing": ([], False), "names": ([_allow(names)], False)}
        for support, limit in product(SUPPORT, LIMITS):
            name = f"{support}, {limit}"
            proposal = propose(records, at_most=limit, support=support)
            found[f"{name}, rules"] = len(proposal.rules)
            file = Path(folder, f"{name}.toml")
            file.write_text(proposal.toml.replace("\nshadow = true\n", "\n"))
            hooks = load_rules(file) if proposal.rules else []
            setups[name] = (hooks, False)
            if limit == "10%":
                setups[f"{name}, person"] = (hooks, True)
        for setup, (hooks, person) in setups.items():
            outcomes = [run(pair, "plain", hooks, person) for pair in pairs]
            found[setup] = _figures(outcomes)
    return job, found


def _allow(names: set[str]) -> Any:
    """Return a guard that lets only these tools pass."""

    def allow_list(point: str, ctx: Any, request: Any) -> HookResult | None:
        return None if request.name in names else HookResult.ask("No earlier run has called this tool.")

    allow_list.points = frozenset({BEFORE_TOOL})  # type: ignore[attr-defined]
    allow_list.phase = "guard"  # type: ignore[attr-defined]
    return allow_list


def _figures(outcomes: Sequence[Outcome]) -> dict[str, int]:
    alone = [outcome for outcome in outcomes if not outcome.injection_task]
    calls = sum(len(_ground_truth(outcome.suite, outcome.user_task)) for outcome in alone)
    return {**_count(outcomes), "calls": calls, "tasks_asked": sum(bool(outcome.questions) for outcome in alone)}


def _ground_truth(suite: str, task: str) -> Sequence[Any]:
    environment = suite_of(suite).load_and_inject_default_environment({})
    user = suite_of(suite).user_tasks[task]
    return user.ground_truth(user.init_environment(environment))  # type: ignore[no-any-return]


def main(suites: Sequence[str]) -> None:
    jobs: list[Job] = list(product(suites, range(PARTS), (True, False)))
    figures: dict[str, dict[str, dict[str, Any]]] = {"redacted": {}, "plain": {}}
    with ProcessPoolExecutor() as pool:
        for done, ((suite, _, redacted), found) in enumerate(pool.map(measure, jobs), 1):
            print(json.dumps([f"{suite}, {'redacted' if redacted else 'plain'}", done, len(jobs)]), flush=True)
            whole = figures["redacted" if redacted else "plain"].setdefault(suite, {})
            for setup, numbers in found.items():
                if isinstance(numbers, int):
                    whole[setup] = whole.get(setup, 0) + numbers
                else:
                    before = whole.setdefault(setup, dict.fromkeys(numbers, 0))
                    whole[setup] = {name: before[name] + number for name, number in numbers.items()}
    print(json.dumps(figures))


if __name__ == "__main__":
    main(sys.argv[1].split(",") if len(sys.argv) > 1 else SUITES)
