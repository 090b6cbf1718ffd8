"""Generate `reference/adapters.md`: what hooks can do in the loops of other frameworks, as the tests found it."""

import json
from pathlib import Path

from hookline.points import POINTS

from .markdown import cell, code, table

RESULTS = Path(__file__).parents[2] / "tests" / "adapters" / "results.json"
"""Written by `make test-adapters RESULTS=1`, and compared by the same tests in every other run."""

HEAD = """# Hooks in other frameworks

The same forty behaviours are tested in Hookline's own loop and, under their [adapters](../guides/other-frameworks.md),
in the loops of other frameworks: with the framework really installed, a scripted model in it, and each behaviour in
every way in which the framework runs (async, sync, streaming). This page is generated from the results
(`make test-adapters RESULTS=1`, then `make docs`); the tests fail if they find anything else.

A number means that the framework cannot express the behaviour. Attaching a hook that needs it is then refused, with the
alternative; the notes below the table have the reasons.

"""


def page(_: str) -> str:
    """Return the page."""
    results = {name: found for name, found in json.loads(RESULTS.read_text()).items() if name != "Plain loop"}
    notes: list[str] = []
    rows = []
    for sentence in results["Hookline"]["behaviours"]:
        cells = []
        for name, found in results.items():
            answer = found["behaviours"].get(sentence, "not tested")
            if answer.startswith("no: "):
                note = f"{name}: {answer.removeprefix('no: ')}"
                if note not in notes:
                    notes.append(note)
                answer = f"[{notes.index(note) + 1}](#notes)"
            cells.append(answer)
        rows.append((_sentence(sentence), *cells))
    heads = tuple(f"{name} {found['version']}".strip() for name, found in results.items())
    numbered = "".join(f"{number}. {note}\n" for number, note in enumerate(notes, 1))
    return HEAD + table(("Behaviour", *heads), rows) + "\n## Notes\n\n" + (numbered or "There are none.\n")


def _sentence(name: str) -> str:
    """Return the name of a behaviour as a sentence, with the names of points as code."""
    for point in POINTS:
        if "_" in point:
            name = name.replace(point.replace("_", " "), code(point))
    return cell(name[:1].upper() + name[1:])
