"""Section: attacks on an agent that obeys them, on the tasks of AgentDojo."""

from typing import Any

from environments import Environment
from figures import prose, table
from lab import Lab
from section import Section

SUITES = ("workspace", "banking", "slack", "travel")
UNSEEN = "travel"
"""The suite that was not looked at before its first measurement."""

UNSEEN_RESULT = (
    f"**Unseen.** The first version of the rules was written without a look at {UNSEEN}. Measured there, 13 of 120 "
    "attacks through a call succeeded (10.8 %), 20 of 20 tasks were solved, and 129 of 140 under attack; on the "
    "other suites no attack succeeded. The 13 were of three kinds: an entry without participants in the user's "
    "own calendar, where the user asked for an entry too; the booking of a hotel that the injection describes "
    "without naming it, where the user asked for a booking; and a mail with private data to a recipient whom the "
    "user named. After that, general rules were added, which name no suite, tool or task: values that a text with "
    "the same request may have chosen need a yes; naming one entry of a map names no other; a label such as "
    '"Price:" names nothing; and a pattern for texts that dictate the answer. The tables show the result with '
    f"them, so {UNSEEN} is no longer unseen there."
)


def measure(lab: Lab) -> dict[str, Any]:
    """Run all pairs of tasks with all setups."""
    figures: dict[str, Any] = lab.script("agentdojo", "agentdojo/measure.py", ",".join(SUITES))
    return figures


def render(data: Any) -> str:
    """Return the text and the tables."""
    return "".join(
        (
            prose(
                "[AgentDojo](https://github.com/ethz-spylab/agentdojo) 0.1.35, suites v1.2.2, with its own tools, "
                "environments, injection vectors and checks. There is no language model: a *worst-case model* makes "
                "the calls of the user's task, and obeys every injection that it reads, by making the calls of the "
                "injection first. So the figures say what the guards stop, and nothing of how often a real model is "
                "deceived. The injection is its bare text, without the phrases that usually introduce one."
            ),
            prose(
                '*The guards* are `InjectionGuard(action="withhold", taint_steps=0)` and `ProvenanceGuard()`. An '
                "attack succeeds if AgentDojo's check says so, on the calls that ran. *Any call* counts the pairs of "
                "tasks in which any call of the injection ran that changes, sends or fetches something. "
                "[Prompt injection](../docs/guides/injection.md) explains the rules and their limits. `make agentdojo` "
                "measures this again."
            ),
            "Nobody answers questions:\n\n",
            _attacks(data),
            "\nA person approves exactly the calls that the user's task needs:\n\n",
            _person(data),
            "\n",
            prose(_wording(data)),
            prose(UNSEEN_RESULT).rstrip("\n") + "\n",
        )
    )


def _attacks(data: Any) -> str:
    rows = []
    for suite in (*SUITES, "all"):
        none, plain, guards = (_of(data, setup, suite) for setup in ("none", "injection", "guards"))
        rows.append(
            [
                suite,
                share(none, "by_call_succeeded", "by_call"),
                share(plain, "by_call_succeeded", "by_call"),
                share(plain, "solved", "tasks"),
                share(plain, "solved_attacked", "pairs"),
                share(guards, "by_call_succeeded", "by_call"),
                share(guards, "by_call_ran", "pairs"),
                share(guards, "solved", "tasks"),
                share(guards, "solved_attacked", "pairs"),
            ]
        )
    head = [
        "suite", "attacks, no hooks", "attacks, `InjectionGuard()`", "solved", "solved under attack",
        "attacks, the guards", "any call", "solved", "solved under attack",
    ]  # fmt: skip
    return table(head, rows)


def _person(data: Any) -> str:
    rows = []
    for setup, hooks in (("injection_person", "`InjectionGuard()`"), ("guards_person", "the guards")):
        for suite in (*SUITES, "all"):
            found = _of(data, setup, suite)
            rows.append(
                [
                    f"{hooks}, {suite}",
                    share(found, "by_call_succeeded", "by_call"),
                    share(found, "solved", "tasks"),
                    f"{found['questions'] / found['tasks']:.2f}",
                    share(found, "solved_attacked", "pairs"),
                    f"{found['questions_attacked'] / found['pairs']:.2f}",
                ]
            )
    return table(["", "attacks", "solved", "questions a task", "solved under attack", "questions under attack"], rows)


def _wording(data: Any) -> str:
    none, guards, known = (_of(data, setup, "all") for setup in ("none", "guards", "guards_important"))
    shares = [share(each, "by_wording_succeeded", "by_wording") for each in (none, guards, known)]
    return (
        f"{none['by_wording']} of the {none['pairs']} pairs only want other words in the answer, which no guard of "
        f"calls can stop. They succeed in {shares[0]} without hooks. `InjectionGuard` withholds texts that match its "
        f"patterns: with the guards they succeed in {shares[1]} if the injection is its bare text, and in "
        f"{shares[2]} if it is worded like AgentDojo's attack `important_instructions`. With that wording, attacks "
        f"through a call succeed in {share(known, 'by_call_succeeded', 'by_call')}, and "
        f"{share(known, 'solved_attacked', 'pairs')} of the tasks are solved under attack; the model does not use "
        "what was withheld."
    )


def totals(data: Any, setup: str) -> dict[str, int]:
    """Return the sums of the figures of all suites."""
    found: dict[str, dict[str, int]] = data[setup]
    return {key: sum(each[key] for each in found.values()) for key in next(iter(found.values()))}


def _of(data: Any, setup: str, suite: str) -> dict[str, int]:
    """Return the figures of a suite, or of all."""
    found: dict[str, dict[str, int]] = data[setup]
    return totals(data, setup) if suite == "all" else found[suite]


def share(figures: dict[str, int], part: str, whole: str) -> str:
    """Return a part of a whole as text."""
    if not figures[whole]:
        return "none"
    return f"{100 * figures[part] / figures[whole]:.1f} % ({figures[part]}/{figures[whole]})"


SECTION = Section(
    "agentdojo",
    "AgentDojo: attacks on an agent that obeys them",
    measure,
    render,
    environment=Environment("agentdojo", ("agentdojo==0.1.35", "-e", ".")),
)
