"""Run the tests of each adapter with its framework really installed, in an environment of its own.

Example::

    make test-adapters                     # all frameworks of frameworks.txt
    make test-adapters ONLY=langchain      # one of them
    make test-adapters RESULTS=1           # and write what the suite finds to results.json

A framework of which several versions are supported is tested with the oldest and the newest of them. The last lines say
of which frameworks a newer version is out than the newest that is tested.
"""

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Iterator
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
        yield name, Environment(f"adapter_{name}" if is_newest else f"adapter_{name}_oldest", (*TOOLS, *install))


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


def tested(name: str, environment: Environment, *, write_results: bool) -> bool:
    """Make an environment and run the tests of a framework in it. Return whether they pass."""
    print(f"{name}: {' '.join(environment.install[len(TOOLS) :])}", flush=True)
    if problem := "" if environment.made else environment.make():
        print(f"{name} cannot be installed: {problem}", flush=True)
        return False
    files = [file for file in (HERE / f"test_{each}.py" for each in (*SHARED, name)) if file.exists()]
    write = write_results and not environment.name.endswith("_oldest")
    variables = {**os.environ} | ({"HOOKLINE_WRITE_ADAPTER_RESULTS": "1"} if write else {})
    variables.pop("PYTHONPATH", None)  # the environment contains this checkout
    command = [environment.python, "-m", "pytest", "-p", "no:cacheprovider", *map(str, files)]
    return not subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


def main() -> int:
    """Make the environments and run the tests. Return how often they failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("only", nargs="*", help="names of frameworks; by default all")
    options.add_argument("--write-results", action="store_true", help="write what the suite finds to results.json")
    given = options.parse_args()
    known = list(frameworks((HERE / "frameworks.txt").read_text()))
    names = dict.fromkeys(name for name, _ in known)
    if unknown := [name for name in given.only if name not in names]:
        options.error(f"{unknown[0]} is not in frameworks.txt, which has {', '.join(names)}")
    chosen = [(name, environment) for name, environment in known if not given.only or name in given.only]
    failed = sum(not tested(name, environment, write_results=given.write_results) for name, environment in chosen)
    for name, environment in dict(chosen).items():  # the newest of each
        if told := newer_release(name, environment.install[len(TOOLS)]):
            print(told, flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
