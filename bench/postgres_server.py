"""A PostgreSQL server for measurements."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]


@contextmanager
def postgres() -> Iterator[str]:
    """Start PostgreSQL with its usual settings, as far as they concern the disk; yield its address, or nothing."""
    sys.path.append(str(ROOT))
    clusters: Any = import_module("tests.postgres_cluster")
    sys.path.remove(str(ROOT))
    if clusters.MISSING:
        yield ""
        return
    cluster = clusters.Cluster(fsync="on", full_page_writes="on", autovacuum="on")
    try:
        yield cluster.url()
    finally:
        cluster.remove()
