"""Measure Hookline beside a hand-written loop and other frameworks, and write bench/RESULTS.md with its charts.

python bench/run.py                             # everything: about 25 minutes, and 30 more for small_models
python bench/run.py --sections dispatch,loops   # only these; the page keeps what was measured of the others before
python bench/run.py --sections none             # nothing: writes the page again
python bench/run.py --quick --out FOLDER        # tiny sizes, no other frameworks: does it work?

Figures are kept in results.json beside the page. Other frameworks are installed under bench/venvs, as bench/peers.txt
says; one that cannot be installed is left out.
"""

import argparse
import compileall
import json
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "src")]

import environments  # noqa: E402
import page  # noqa: E402
from environments import Environment  # noqa: E402
from lab import Lab  # noqa: E402
from machine import machine  # noqa: E402
from sections import SECTIONS  # noqa: E402
from slm.report import write_guide  # noqa: E402

Results = dict[str, dict[str, Any]]
"""``runs``: by when they began, on what machine and beside what. ``sections``: by name, their run and their figures."""
PEERS = ("dispatch", "loops", "concurrent", "start", "watched", "durable", "adapters")
"""Sections in which there are others."""


class Display:
    """Show progress and elapsed time; without a terminal, one line per section."""

    def __init__(self, console: Console, sections: int) -> None:
        self.console = console
        self.progress = Progress(
            SpinnerColumn(), TextColumn("{task.description:52}"), BarColumn(24), MofNCompleteColumn(),
            TimeElapsedColumn(), console=console, disable=not console.is_terminal,
        )  # fmt: skip
        self.whole = self.progress.add_task("sections", total=sections)
        self.now = self.progress.add_task("", total=None, visible=False)

    def begin(self, title: str) -> None:
        self.progress.update(self.whole, description=title)
        self.progress.reset(self.now, description="", total=None, visible=True)

    def tell(self, what: str, done: int, of: int) -> None:
        self.progress.update(self.now, description=f"  {what[:50]}", completed=done, total=of)

    def end(self, title: str, seconds: float) -> None:
        self.progress.advance(self.whole)
        self.progress.update(self.now, visible=False)
        self.console.print(f"{title}: {seconds:.0f} s", highlight=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sections", default="", help="some of: " + ", ".join(SECTIONS))
    parser.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    parser.add_argument("--out", type=Path, default=HERE, help="where the page, the charts and the figures go")
    options = parser.parse_args()
    if options.quick and options.out == HERE:
        parser.error("a quick run measures nothing: say with --out where it may write")
    names = [name for name in options.sections.split(",") if name and name != "none"]
    if unknown := set(names) - set(SECTIONS):
        parser.error(f"there is no section {', '.join(sorted(unknown))}; there are {', '.join(SECTIONS)}")
    names = names or ([] if options.sections else list(SECTIONS))
    console = Console(stderr=True)
    options.out.mkdir(parents=True, exist_ok=True)
    file = options.out / "results.json"
    results = json.loads(file.read_text()) if file.exists() else {"runs": {}, "sections": {}}
    for name, run, found in measured(names, options.quick, console):
        results["runs"][found["run"]] = run
        results["sections"][name] = found
        file.write_text(json.dumps(results := tidy(results), indent=1) + "\n")
    page.write(options.out, results)
    if "small_models" in names and options.out == HERE:
        write_guide(results["sections"]["small_models"]["data"])
    console.print(f"Written: {options.out / 'RESULTS.md'}", highlight=False, soft_wrap=True)


def tidy(results: Results) -> Results:
    """Put the sections in the order of the page, and drop runs that no section refers to."""
    sections = {name: results["sections"][name] for name in SECTIONS if name in results["sections"]}
    used = {found["run"] for found in sections.values()}
    return {"runs": {run: about for run, about in results["runs"].items() if run in used}, "sections": sections}


def measured(names: list[str], quick: bool, console: Console) -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Measure the sections one by one; yield the name, the facts about this run, and the figures."""
    there: dict[str, Environment] = {}
    if beside := not quick and bool(set(names) & set(PEERS)):
        with console.status("Installing other frameworks ..."):
            there = environments.make_all(console.print)
    compileall.compile_dir(HERE.parent / "src", quiet=1)  # users import compiled bytecode
    pythons = {name: str(each.python) for name, each in there.items()}
    if quick:
        pythons |= {f"{name}_": sys.executable for name in ("dbos", "pluggy") if find_spec(name) is not None}
    display, began = Display(console, len(names)), datetime.now(UTC).isoformat(timespec="seconds")
    lab = Lab(pythons, quick=quick, tell=display.tell)
    about = {
        "machine": machine(),
        "versions": {name: environments.versions(each) for name, each in there.items()},
        "skipped": [each.name for each in environments.peers() if beside and each.name not in there],
    }
    with display.progress:
        for name in names:
            section = SECTIONS[name]
            if missing := [module for module in section.modules if find_spec(module.split(".")[0]) is None]:
                console.print(f"{section.title}: left out, {', '.join(missing)} is not installed")
                continue
            display.begin(section.title)
            if section.environment is not None and (failed := provide(section.environment, lab)):
                console.print(f"{section.title}: left out, {failed}")
                continue
            start = time.monotonic()
            data = section.measure(lab)
            display.end(section.title, seconds := time.monotonic() - start)
            yield name, about, {"run": began, "seconds": round(seconds), "data": data}


def provide(environment: Environment, lab: Lab) -> str:
    """Create the environment of a section. Return why there is none, or nothing."""
    if lab.quick:
        return "it needs an environment of its own"
    lab.tell(f"installing {environment.install[0]}", 0, 1)
    lab.pythons[environment.name] = str(environment.python)
    return "" if environment.made else environment.make()


if __name__ == "__main__":
    main()
