"""Run the tests of each adapter with its framework really installed, in an environment of its own.

Example::

    make test-adapters                     # all frameworks of frameworks.txt
    make test-adapters ONLY=langchain      # one of them
    make test-adapters RESULTS=1           # and write what the suite finds to results.json
"""

import argparse
import os
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

SHARED = ("behaviours", "vectors", "attacks", "guide", "names", "requests")
"""The tests of all adapters: ``test_NAME.py``."""


def frameworks() -> Iterator[tuple[str, Environment]]:
    """Read ``frameworks.txt``: each name with its environment."""
    for line in (HERE / "frameworks.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, *install = line.split()
            yield name, Environment(f"adapter_{name}", (*TOOLS, *install))


def main() -> int:
    """Make the environments and run the tests. Return the number of frameworks that failed."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("only", nargs="*", help="names of frameworks; by default all")
    options.add_argument("--write-results", action="store_true", help="write what the suite finds to results.json")
    given = options.parse_args()
    known = dict(frameworks())
    if unknown := [name for name in given.only if name not in known]:
        options.error(f"{unknown[0]} is not in frameworks.txt, which has {', '.join(known)}")
    failed = 0
    for name in given.only or known:
        environment = known[name]
        print(f"{name}: {' '.join(environment.install[len(TOOLS) :])}", flush=True)
        if problem := "" if environment.made else environment.make():
            print(f"{name} cannot be installed: {problem}", flush=True)
            failed += 1
            continue
        files = [file for file in (HERE / f"test_{each}.py" for each in (*SHARED, name)) if file.exists()]
        variables = {**os.environ} | ({"HOOKLINE_WRITE_ADAPTER_RESULTS": "1"} if given.write_results else {})
        variables.pop("PYTHONPATH", None)  # the environment contains this checkout
        command = [environment.python, "-m", "pytest", "-p", "no:cacheprovider", *map(str, files)]
        failed += bool(subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode)
    return failed


if __name__ == "__main__":
    sys.exit(main())
