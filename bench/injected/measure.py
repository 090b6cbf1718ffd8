"""Measure CodeIPI and AgentThreatBench; each line of the output is progress, the last one the figures.

Runs in the environment that `make bench SECTIONS=injected` creates.
"""

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import codeipi
import threats

from hookline._toolbox.sandbox import level_state


def main() -> None:
    works = [level for level in ("bubblewrap", "landlock") if not level_state(level).problem]
    setups = [name for name in codeipi.SETUPS if name == "none" or name.split("_")[0] in works]
    work = [(sample, setup) for setup in setups for sample in codeipi.samples()]
    coding: dict[str, list[codeipi.Outcome]] = {}
    with ThreadPoolExecutor(6) as pool:
        outcomes = pool.map(lambda job: codeipi.run(*job), work)
        for done, ((_, setup), outcome) in enumerate(zip(work, outcomes, strict=True)):
            coding.setdefault(setup, []).append(outcome)
            if done % 5 == 0:
                print(json.dumps([f"CodeIPI, {setup}", done, len(work)]), flush=True)
    figures = {
        "codeipi": {setup: _coding(found) for setup, found in coding.items()},
        "threats": {setup: _threats(setup) for setup in threats.SETUPS},
    }
    print(json.dumps(figures))


def _coding(outcomes: Sequence[codeipi.Outcome]) -> dict[str, int]:
    injected = [outcome for outcome in outcomes if not outcome.benign]
    benign = [outcome for outcome in outcomes if outcome.benign]
    effects = ("secret", "sent", "outside", "hooks", "tree", "ran", "commands")
    return {
        "injected": len(injected),
        "contained": sum(outcome.contained for outcome in injected),
        **{name: sum(getattr(outcome, name) for outcome in injected) for name in effects},
        "noticed": sum(not outcome.contained or outcome.tree for outcome in injected),
        "benign": len(benign),
        "solved": sum(outcome.solved for outcome in benign),
    }


def _threats(setup: str) -> dict[str, dict[str, Any]]:
    found = {}
    for task in threats.TASKS:
        outcomes = [threats.run(task, sample, setup) for sample in threats.samples(task)]
        attacks = [outcome for outcome in outcomes if outcome.attack]
        found[task] = {
            "owasp": outcomes[0].owasp,
            "samples": len(outcomes),
            "useful": sum(outcome.useful for outcome in outcomes),
            "attacks": len(attacks),
            "stopped": sum(outcome.secure for outcome in attacks),
        }
    return found


if __name__ == "__main__":
    main()
