"""Run the tests of each adapter with its framework really installed, in an environment of its own.

Example::

    make test-adapters                     # all frameworks of frameworks.txt
    make test-adapters ONLY=langchain      # one of them
    make test-adapters RESULTS=1           # and write what the suite finds to results.json

A framework of which several versions are supported is tested with the oldest and the newest of them, and with a version
between them if the newest needs a package that not every index has yet. The last lines say of which frameworks a newer
version is out than the newest that is tested, and which versions cannot be installed from this index.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "bench"))

from environments import Environment  # noqa: E402

# Without constraints.txt: Strands and Google ADK need older versions of libraries that Hookline's own environment has.
TOOLS = ("-e", ".[sensitive]", "hypothesis", "pytest", "pytest-asyncio", "pytest-timeout")

SHARED = ("behaviours", "vectors", "attacks", "guide", "names", "requests", "histories")
"""The tests of all adapters: ``test_NAME.py``."""


INDEX_TIME = 60
"""Seconds that the package index has to name the releases of one package."""


def frameworks(text: str) -> Iterator[tuple[str, Environment]]:
    """Read the lines of ``frameworks.txt``: each name with its environments, that of the newest version last."""
    rows = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    for index, (name, *install) in enumerate(rows):
        is_newest = all(other != name for other, *_ in rows[index + 1 :])
        suffix = "" if is_newest else f"_{install[0].partition('==')[2]}"
        yield name, Environment(f"adapter_{name}{suffix}", (*TOOLS, *install))


def newest_release(package: str) -> str | None:
    """Return the newest release of a package on the package index, or ``None`` if that cannot be found out."""
    before = ["--pre"] if re.search(r"==.*[ab]\d", package) else []
    name = package.partition("==")[0]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "index", "versions", *before, name]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=INDEX_TIME)
    except subprocess.TimeoutExpired:
        return None
    found = re.match(rf"{re.escape(name)} \((\S+)\)", done.stdout)
    return found[1] if found and not done.returncode else None


def newer_release(name: str, package: str) -> str:
    """Return what to say about newer releases than the newest tested one, such as ``langchain==1.5.0``."""
    tested, newest = package.partition("==")[2], newest_release(package)
    if newest is None:
        return f"{name}: the package index cannot be read, so whether a newer release than {tested} is out is unknown"
    return "" if newest == tested else f"{name}: {newest} is out; the newest tested version is {tested}"


def missing_here(environment: Environment, problem: str) -> str:
    """Return which requirement of a framework the package index does not have; empty if the problem is another one.

    A version of the framework itself that is not there is a mistake in ``frameworks.txt``.
    """
    found = re.search(r"No matching distribution found for (\S+)", problem)
    return found[1] if found and found[1] not in environment.install else ""


def tested(name: str, environments: Sequence[Environment], *, write_results: bool) -> tuple[int, str]:
    """Make the environments of a framework, and run its tests in each.

    Results are written from the newest version that can be installed.

    Returns:
        How often something failed, and what to say at the end.
    """
    failed = 0
    ran: list[str] = []
    missing: list[str] = []
    files = [file for file in (HERE / f"test_{each}.py" for each in (*SHARED, name)) if file.exists()]
    for environment in reversed(environments):
        package = environment.install[len(TOOLS)]
        version = package.partition("==")[2]
        print(f"{name}: {' '.join(environment.install[len(TOOLS) :])}", flush=True)
        if problem := "" if environment.made else environment.make():
            if requirement := missing_here(environment, problem):
                missing.append(f"{version} is not installable here: the package index has no {requirement}")
            else:
                failed += 1
                print(f"{name} cannot be installed: {problem}", flush=True)
            continue
        variables = {**os.environ} | ({"HOOKLINE_WRITE_ADAPTER_RESULTS": "1"} if write_results and not ran else {})
        variables.pop("PYTHONPATH", None)  # the environment contains this checkout
        command = [environment.python, "-m", "pytest", "-p", "no:cacheprovider", *map(str, files)]
        failed += bool(subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode)
        ran.append(version)
    if not missing:
        return failed, ""
    return failed + (not ran), f"{name}: {'; '.join(missing)}; tested with {' and '.join(ran) or 'no version'}"


def main() -> int:
    """Make the environments and run the tests. Return how often they failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("only", nargs="*", help="names of frameworks; by default all")
    options.add_argument("--write-results", action="store_true", help="write what the suite finds to results.json")
    given = options.parse_args()
    names: dict[str, list[Environment]] = {}
    for name, environment in frameworks((HERE / "frameworks.txt").read_text()):
        names.setdefault(name, []).append(environment)
    if unknown := [name for name in given.only if name not in names]:
        options.error(f"{unknown[0]} is not in frameworks.txt, which has {', '.join(names)}")
    failed = 0
    notes: list[str] = []
    for name in given.only or names:
        failures, note = tested(name, names[name], write_results=given.write_results)
        failed += failures
        notes += filter(None, [note, newer_release(name, names[name][-1].install[len(TOOLS)])])
    for note in notes:
        print(note, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
