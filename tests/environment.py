"""The environment of Python programs that tests start."""

import os
from pathlib import Path

ROOT = Path(__file__).parents[1]


def with_source() -> dict[str, str]:
    """Return this environment, with the code under test first in the paths that Python imports from."""
    paths = (str(ROOT / "src"), str(ROOT), os.environ.get("PYTHONPATH", ""))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths))}
