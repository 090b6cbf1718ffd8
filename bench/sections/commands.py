"""Section: the commands of a developer's agent that the default guards interrupt."""

from typing import Any

from figures import prose, table
from lab import Lab
from section import Section

LISTS = {"reading": "commands that read", "working": "commands that work"}
PLACES = {"sandbox": "in a sandbox", "none": "without a sandbox"}


def measure(lab: Lab) -> dict[str, Any]:
    wanted = [(name, place) for name in LISTS for place in PLACES]
    found: dict[str, Any] = {}
    for name, place in lab.turns(wanted, 1, lambda each: f"{each[0]}, {PLACES[each[1]]}"):
        counted = lab.probe("probes.commands:interrupted", name=name, sandboxed=place == "sandbox")
        found.setdefault(name, {})[place] = counted
    return found


def render(data: Any) -> str:
    rows = []
    for place, where in PLACES.items():
        for name, title in LISTS.items():
            for half in ("seen", "set aside"):
                found = data[name][place][half]
                share = 100 * (found["asked"] + found["blocked"]) / found["commands"]
                rows.append(
                    [f"{title}, {where}, {half}", found["commands"], found["asked"], found["blocked"], f"{share:.1f} %"]
                )
    return prose(
        "Command lines as agents of developers write them (`bench/commands`: git, rg, find, sed, python -c, pytest, "
        "npm, cargo, docker and others), judged by the guards of `hookline run --shell --write`. A command is "
        "interrupted if a person is asked, or if it is blocked. Every second command of each list is set aside: no "
        "rule was changed for it. Without a sandbox the profile `strict` lets only programs run "
        "that are known to read. Commands that need a network are not interrupted in a sandbox "
        "without one, but they fail there. The dangerous commands of the tests run for real in "
        "`tests/hooks/test_dangerous_commands.py`, with canaries outside."
    ) + table(["", "commands", "asked", "blocked", "interrupted"], rows)


SECTION = Section("commands", "Commands that the guards interrupt", measure, render)
