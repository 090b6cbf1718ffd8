"""The sources of earlier commits, to measure it and this checkout in one run."""

import subprocess
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from environments import HERE
from lab import Lab

BEFORE = "34f95a1d"
"""The commit that this checkout is compared with: the last one before facts."""


@contextmanager
def sources(lab: Lab, commits: Mapping[str, str] | None = None) -> Iterator[dict[str, Path | None]]:
    """Yield the source of this checkout as ``now``, and those of earlier commits, by name, if git has them."""
    with tempfile.TemporaryDirectory() as folder:
        found: dict[str, Path | None] = {}
        for name, commit in ({"before": BEFORE} if commits is None else commits).items() if not lab.quick else ():
            command = ["git", "-C", str(HERE.parent), "archive", f"--prefix={name}/", commit, "src"]
            archive = subprocess.run(command, capture_output=True, check=False)
            if not archive.returncode:
                subprocess.run(["tar", "-x", "-C", folder], input=archive.stdout, check=True)
                found[name] = Path(folder, name, "src")
        yield {**found, "now": None}
