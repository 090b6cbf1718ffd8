"""Options of all tests: fixed hypothesis examples, and the tests that are slow."""

import gc
import hashlib
import os
import runpy
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.postgres_cluster import MISSING, Cluster

# A shell ignores Ctrl-C for what it starts in the background; the programs that the tests start must not inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Deadlines and the health check would measure the machine, not the code.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("fixed", patient, derandomize=True)
settings.register_profile("fuzz", patient, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "300")))  # tests/fuzz.py
settings.register_profile("mutants", patient, derandomize=True, max_examples=10)  # tests/mutation
settings.load_profile("fixed")

# The tests write configuration files and use them; those of trust itself unset this.
os.environ["HOOKLINE_TRUST"] = "1"

TESTS = Path(__file__).parent
# Everything in these folders is slow; elsewhere slow tests are marked one by one.
SLOW = ("bench", "pages", "providers/local", "release", "typing")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests of stores run on PostgreSQL."""
    parser.addoption("--database", choices=["sqlite", "postgresql"], default="sqlite", help="where stores keep data")


def pytest_configure(config: pytest.Config) -> None:
    """Start PostgreSQL, and use it instead of SQLite files, also in the programs that tests start."""
    if config.getoption("--database") == "sqlite" or config.option.collectonly:
        return
    if MISSING:
        raise pytest.UsageError(MISSING)
    if not hasattr(config, "workerinput"):  # one server for all processes of the tests
        cluster = Cluster()
        config.add_cleanup(cluster.remove)
        os.environ["HOOKLINE_TEST_POSTGRES"] = f"postgresql://postgres@/postgres?host={cluster.folder}"
        paths = (str(TESTS / "postgres"), os.environ.get("PYTHONPATH"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    runpy.run_path(str(TESTS / "postgres/sitecustomize.py"))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the slow folders, and skip those of SQLite files when the stores are elsewhere."""
    folders = [TESTS / name for name in SLOW]
    for item in items:
        if any(folder in item.path.parents for folder in folders):
            item.add_marker(pytest.mark.slow)
        if config.getoption("--database") != "sqlite" and item.get_closest_marker("sqlite"):
            item.add_marker(pytest.mark.skip(reason="a promise about SQLite files"))


@pytest.fixture(scope="session")
def cluster():
    """A PostgreSQL server, for tests that need one whatever ``--database`` says."""
    if MISSING:
        pytest.skip(MISSING)
    started = Cluster()
    yield started
    started.remove()


@pytest.fixture
def postgres_url(cluster, request):
    """The address of a database of the test's own."""
    return cluster.url(f"t{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:24]}")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without garbage collection, and exempt the collected tests from it later: it is faster."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
