"""Write the results page: every measured section with its date and machine."""

import re
from collections import Counter
from pathlib import Path
from typing import Any

import environments
import machine
from figures import number, prose, table
from lab import title
from sections import SECTIONS, agentdojo_, growth

COMMAND = "make bench"


def write(folder: Path, results: dict[str, Any]) -> None:
    """Write ``RESULTS.md`` and the charts from the figures."""
    charts = folder / "charts"
    charts.mkdir(parents=True, exist_ok=True)
    there = {name: found | results["runs"][found["run"]] for name, found in results["sections"].items()}
    for name, found in there.items():
        for file, drawn in SECTIONS[name].draw(found["data"]).items():
            (charts / file).write_text(drawn)
    (folder / "RESULTS.md").write_text(page(there))


def page(there: dict[str, Any]) -> str:
    """Return the page as Markdown."""
    main = Counter(found["run"] for found in there.values()).most_common(1)[0][0]
    run = next(found for found in there.values() if found["run"] == main)
    parts = [
        "# Benchmarks\n\n",
        summary(there),
        prose(
            f"Measured on {main[:10]} on {machine.one_line(run['machine'])}. `{COMMAND}` measures all of this again "
            f"and writes this page; `{COMMAND} SECTIONS=dispatch,loops` only some of it."
        ),
        prose(
            "Peers take turns, each in a process and an environment of its own, in another order in every round, "
            "each through its documented API. Figures are medians, in brackets the quartiles; ratios are to the "
            "floor of the same run. Everything measured is in [results.json](results.json)."
        ),
        "".join(f"- [{SECTIONS[name].title}](#{anchor(SECTIONS[name].title)})\n" for name in there),
        "- [Versions](#versions)\n",
    ]
    for name, found in there.items():
        section = SECTIONS[name]
        parts.append(f"\n## {section.title}\n\n")
        if found["run"] != main:
            parts.append(f"*Measured in another run, {elsewhere(found, run)}.*\n\n")
        parts.append(section.render(found["data"]))
    parts.append(versions(there))
    return "".join(parts)


def elsewhere(found: dict[str, Any], main: dict[str, Any]) -> str:
    """Return the date of a section, and its machine if that differs."""
    where = "" if found["machine"] == main["machine"] else f", on {machine.one_line(found['machine'])}"
    return f"on {found['run'][:10]}{where}"


def anchor(heading: str) -> str:
    """Return the anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def summary(there: dict[str, Any]) -> str:
    """Return a summary in a few sentences."""
    sentences = [
        _loops(there), _dispatch(there), _concurrent(there), _watched(there), _growth(there), _agentdojo(there),
    ]  # fmt: skip
    return prose(" ".join(sentence for sentence in sentences if sentence))


def _loops(there: dict[str, Any]) -> str:
    if "loops" not in there:
        return ""
    none = there["loops"]["data"]["kinds"]["no hooks"]
    mine, floor = none["hookline_"]["median"], none["bare"]["median"]
    others = {peer: time["median"] / mine for peer, time in none.items() if peer not in ("bare", "hookline_")}
    first = (
        f"A step of Hookline costs {number(mine)} µs of CPU, {number(mine / floor)} times that of a hand-written loop"
    )
    return first + (f"; other frameworks take {_range(others)}." if others else ".")


def _range(ratios: dict[str, float]) -> str:
    low, high = min(ratios, key=ratios.__getitem__), max(ratios, key=ratios.__getitem__)
    if low == high:
        return f"{number(ratios[low])} times that ({title(low)})"
    return f"{number(ratios[low])} ({title(low)}) to {number(ratios[high])} ({title(high)}) times that"


def _dispatch(there: dict[str, Any]) -> str:
    if "dispatch" not in there:
        return ""
    data = there["dispatch"]["data"]
    mine = {label: out["sizes"]["10"]["median"] for label, out in data.items() if label.startswith("hookline")}
    sentences = " and ".join(
        f"{number(time)} µs for {label.removeprefix('hookline, ')}" for label, time in mine.items()
    )
    others = [
        (out["sizes"]["10"]["median"], label)
        for label, out in data.items()
        if not label.startswith(("hookline", "for-loop"))
    ]
    first = f"Ten hooks that do nothing take {sentences}"
    return first + (f", those of others from {number(min(others)[0])} µs ({min(others)[1]}) on." if others else ".")


def _concurrent(there: dict[str, Any]) -> str:
    if "concurrent" not in there:
        return ""
    data = there["concurrent"]["data"]
    peers = {peer: found["over_ideal"]["median"] for peer, found in data["peers"].items()}
    mine = peers["hookline_"]
    others = {peer: over / mine for peer, over in peers.items() if peer not in ("bare", "hookline_")}
    first = f"{data['runs']:,} runs at once take {number(mine)} times the ideal"
    return first + (f"; others {_range(others)}." if others else ".")


def _watched(there: dict[str, Any]) -> str:
    if "watched" not in there:
        return ""
    ours = there["watched"]["data"]["hookline"]
    more = ours["audit and observability"]["median"] - ours["none"]["median"]
    return f"A tamper-evident audit log and statistics of every run in a database add {number(more)} µs to a step."


def _growth(there: dict[str, Any]) -> str:
    if "growth" not in there:
        return ""
    slope, where = growth.steepest(there["growth"]["data"])
    if slope <= growth.LINEAR:
        return "Cost never grows faster than hooks, messages, tools and steps do."
    return f"Cost grows as hooks, messages, tools and steps do, or slower, but for {where} (power {slope:.2f})."


def _agentdojo(there: dict[str, Any]) -> str:
    if "agentdojo" not in there:
        return ""
    found = agentdojo_.totals(there["agentdojo"]["data"], "guards")
    return (
        f"On AgentDojo, with a model that obeys every injection, {found['by_call_succeeded']:,} of "
        f"{found['by_call']:,} attacks through tool calls succeed with the guards, and {found['solved']} of "
        f"{found['tasks']} tasks are solved without a question."
    )


def versions(there: dict[str, Any]) -> str:
    """Return the table of installed versions."""
    known: dict[str, dict[str, str]] = {}
    for found in there.values():
        known |= found["versions"]
    rows = []
    for each in environments.peers():
        if given := known.get(each.name):
            pinned = [wanted.partition("==")[0] for wanted in each.install]
            more = len(given) - len(pinned)
            named = ", ".join(f"{name} {given.get(name, '')}" for name in pinned)
            rows.append([title(each.name), named + (f", and {more} more" if more else "")])
    skipped = sorted({name for found in there.values() for name in found["skipped"]} - set(known))
    note = f"\nNot measured: {', '.join(map(title, skipped))}.\n" if skipped else ""
    return "\n## Versions\n\n" + table(["peer", "installed"], rows).replace("---:", "---") + note
