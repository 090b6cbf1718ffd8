"""Check that the tests cover at least 95 % of the lines and branches of the kernel and of the loop.

``make cover-core`` runs the tests and then this check.
"""

import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from coverage import Coverage
from run import ROOT, SOURCES

ENOUGH = 95.0


def counts() -> dict[str, dict[str, int]]:
    """Return the counts of the last run by file."""
    measured = Coverage(data_file=ROOT / ".coverage", config_file=ROOT / "pyproject.toml")
    measured.load()
    with TemporaryDirectory() as folder:
        path = Path(folder) / "coverage.json"
        measured.json_report(outfile=str(path))
        return {name: file["summary"] for name, file in json.loads(path.read_text())["files"].items()}


def main() -> None:
    found, short = counts(), False
    for part, source in SOURCES.items():
        files = [count for name, count in found.items() if source in name]
        for kind, reached, there in (
            ("lines", "covered_lines", "num_statements"),
            ("branches", "covered_branches", "num_branches"),
        ):
            percent = 100 * sum(f[reached] for f in files) / sum(f[there] for f in files)
            short = short or percent < ENOUGH
            print(f"{part}: {percent:.1f} % of {sum(f[there] for f in files)} {kind}")
    sys.exit(f"Less than {ENOUGH:g} %: see coverage report --show-missing" if short else 0)


if __name__ == "__main__":
    main()
