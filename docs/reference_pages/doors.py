"""Generate `reference/doors.md`: the cases that every door tells in the same way, from the vectors of the tests."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from hookline.points import POINTS

from .markdown import cell, code, table

VECTORS = Path(__file__).parents[2] / "tests" / "conformance" / "vectors.py"

HEAD = """# The same verdict at every door

An agent can be run in many ways, and there are many places to see what its hooks decided: here they are called
doors. A guard that blocks a call at one of them blocks it at each, and each gives the same hook, verb and reason. This
page lists the cases that the tests run at each door (`tests/conformance/`). It is generated from the cases and from
what each door cannot do (`make docs`).

A case is a table in a file of `tests/conformance/vectors/`: what the model says, which hooks judge it, and the one
story that every door must tell about it. ✓ means that a test compares the story of the door with it. A number is the
reason why the door cannot run the case, or, after ✓, why it shows less of it; the [notes](#notes) have them.
"""

KINDS = {
    "own": (
        "Hookline itself",
        "Ways to run an agent of Hookline, programs that ask a server, and places where a run is seen.",
    ),
    "framework": (
        "Frameworks",
        "Loops of others with Hookline's hooks. Their tests need their packages (`make test-adapters`).",
    ),
    "agent": (
        "Coding agents",
        "Each is a loop of a few lines that obeys the bytes of the answers as the real agent does, which "
        "`make test-agents` drives too; Cursor's were only read in its code. What it cannot do becomes a denial, "
        "because the call would run otherwise ([the table by agent](../guides/coding-agents.md)).",
    ),
}
"""The parts of the page."""

WORDS = {
    "status": "status",
    "stop": "stop reason",
    "reply": "reply",
    "shown": "streamed text",
    "heard": "what the model gets",
    "ran": "what tools get",
    "verdicts": "verdicts of hooks",
    "points": "verdicts of points",
    "calls": "calls",
    "approvals": "approvals",
    "refusals": "refusals",
    "attempts": "attempts of calls",
}
"""The parts of a story, for people."""


def page(_: str) -> str:
    """Return the page."""
    data = _vectors()
    text, notes = HEAD, list[str]()
    for kind, (title, about) in KINDS.items():
        doors = [door for door in data.doors().values() if door.kind == kind]
        text += f"\n## {title}\n\n{about}\n\n"
        told = [(door.name, cell(door.says), ", ".join(_shows(door.shows))) for door in doors]
        text += table(("door", "what it is", "what it shows"), told) + "\n" + _cases(data, doors, notes)
    return text + "\n## Notes\n\n" + "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1))


def _cases(data: Any, doors: list[Any], notes: list[str]) -> str:
    """Return the table of the cases at some doors, and the cases that none of them can run."""
    rows, none = [], dict[str, list[str]]()
    for title, vectors in data.groups().values():
        possible = []
        for vector in vectors:
            refused = [door.why_not(vector) for door in doors]
            if all(refused):
                reasons = " ".join(dict.fromkeys(each.reason for each in refused))
                none.setdefault(reasons, []).append(vector.says)
            else:
                possible.append((cell(vector.says), *(_mark(door, vector, notes) for door in doors)))
        if possible:
            rows += [(f"**{_title(title)}**", *("" for _ in doors)), *possible]
    text = table(("case", *(door.name for door in doors)), rows)
    if none:
        text += "\nNone of them can run these cases:\n\n"
    for reasons, cases in none.items():
        text += f"- {reasons}\n" + "".join(f"  - {says}\n" for says in cases)
    return text


def _vectors() -> Any:
    """Load the module of the vectors, which needs none of the doors."""
    spec = spec_from_file_location("conformance_vectors", VECTORS)
    if spec is None or spec.loader is None:
        raise LookupError(f"{VECTORS} cannot be loaded")
    module = sys.modules[spec.name] = module_from_spec(spec)  # msgspec looks up the types of a module by its name
    spec.loader.exec_module(module)
    return module


def _title(text: str) -> str:
    """Return the title of a group, with the name of its point as code."""
    name, colon, rest = text.partition(":")
    return f"{code(name) if name in POINTS else name.capitalize()}{colon}{rest}"


def _shows(names: tuple[str, ...]) -> list[str]:
    """Return what a door shows, in words: all of a part, or some of its fields."""
    parts: dict[str, list[str]] = {}
    for name in names:
        part, _, field = name.partition(".")
        parts.setdefault(part, []).extend([field] if field else [])
    return [f"{WORDS[part]} ({', '.join(fields)})" if fields else WORDS[part] for part, fields in parts.items()]


def _mark(door: Any, vector: Any, notes: list[str]) -> str:
    refused = door.why_not(vector)
    reasons = door.notes(vector) if refused is None else [refused.reason]
    for reason in reasons:
        if reason not in notes:
            notes.append(reason)
    numbers = " ".join(f"[{notes.index(reason) + 1}](#notes)" for reason in reasons)
    return numbers if refused is not None else f"✓ {numbers}".rstrip()
