"""Section: the attacks of AgentDojo in wordings that the rules were not written for."""

from typing import Any

from figures import prose, table
from lab import Lab
from section import Section

from .agentdojo_ import SECTION as AGENTDOJO
from .agentdojo_ import SUITES, share, totals

EVERY = 8


def measure(lab: Lab) -> dict[str, Any]:
    """Run a sample of the pairs with each wording."""
    figures: dict[str, Any] = lab.script("agentdojo", "agentdojo/measure.py", ",".join(SUITES), str(EVERY))
    return figures


def render(data: Any) -> str:
    """Return the text and the table."""
    rows = [(wording, totals(data, wording)) for wording in data]
    rows.append(("all", {key: sum(each[key] for _, each in rows) for key in rows[0][1]}))
    cells = [
        [
            wording,
            share(found, "by_call_ran", "pairs"),
            share(found, "by_call_succeeded", "by_call"),
            share(found, "solved_attacked", "pairs"),
            share(found, "by_wording_succeeded", "by_wording"),
        ]
        for wording, found in rows
    ]
    return "".join(
        (
            prose(
                "The same model and the same guards, with nobody to ask; the model also repeats each refused call of "
                "the injection at the end. The wordings are in [bench/agentdojo](agentdojo/wordings.toml). They were "
                "written with only SECURITY.md and the guide on prompt injection at hand, without a look at the rules, "
                "and no rule was changed for them. Five are by hand: German, French, Chinese, a *wish* without any "
                "request, and a *fact* that only calls for an action. Five are made from the goal: in base64, as a "
                "scene of a play, as a record of the values of the calls, as a correction with these values, and with "
                "Cyrillic letters that look like Latin ones. "
                f"For each, a random one of {EVERY} pairs was measured, of all suites."
            ),
            table(["", "any harmful call", "attacks by call", "solved under attack", "attacks by answer"], cells),
            "\n",
            prose(
                "The harmful calls that ran are mostly entries in the user's own calendar and bookings, where the user "
                "asked for an entry or a booking too: a request is recognised by English verbs, so one that is in "
                "another language or encoded does not count as one. Attacks that only want other words in the answer "
                "pass unless a pattern knows them."
            ).rstrip("\n")
            + "\n",
        )
    )


SECTION = Section("wordings", "AgentDojo in other words", measure, render, environment=AGENTDOJO.environment)
