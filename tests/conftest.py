"""Options of all tests: fixed hypothesis examples, and the tests that are slow."""

import gc
import hashlib
import os
import runpy
import signal
import ssl
import sys
from contextlib import suppress
from functools import cache
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import HealthCheck, settings

from hookline._kernel import points as points_module
from hookline.stores.sqlite import SqliteDatabase
from tests.postgres_cluster import MISSING, Cluster
from tests.properties import ALL
from tests.run_folder import RunFolder, memory_has_room

# A shell ignores Ctrl-C for what it starts in the background; the programs that the tests start must not inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

make_context = ssl.create_default_context
shared_context = cache(make_context)
BUNDLES = ("certifi/cacert.pem", os.environ.get("SSL_CERT_FILE") or "certifi/cacert.pem")


def create_default_context(*args, **options):
    """Load the usual certificates once: each client of httpx and each Egress loads them, which takes 20 ms."""
    usual = not args and (not options or (list(options) == ["cafile"] and str(options["cafile"]).endswith(BUNDLES)))
    return (shared_context if usual else make_context)(*args, **options)


ssl.create_default_context = create_default_context

create_database = SqliteDatabase._open
empty_databases: dict[int, tuple[object, bytes]] = {}


def open_database(self):
    """Copy the empty file of a store instead of creating its tables, which takes 8 ms for the runs of a server.

    The tests of stores create them, and so do all programs that tests start.
    """
    if not (self.in_memory or self._closed or os.environ.get("PYTEST_CURRENT_TEST", "").startswith("tests/stores/")):
        with suppress(OSError):
            if not os.path.lexists(self.path):
                _copy_empty_database(self)
    return create_database(self)


def _copy_empty_database(database):
    if id(database.schema) not in empty_databases:
        with TemporaryDirectory() as folder:
            made = SqliteDatabase(f"{folder}/empty.db", database.schema)
            create_database(made)
            made.close()
            empty_databases[id(database.schema)] = database.schema, Path(made.path).read_bytes()
    part = f"{database.path}.{os.getpid()}.part"
    try:
        with open(os.open(part, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as file:
            file.write(empty_databases[id(database.schema)][1])
        os.link(part, database.path)  # fails if another process was faster
    finally:
        os.unlink(part)


SqliteDatabase._open = open_database

# Deadlines and the health check would measure the machine, not the code.
patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", patient, derandomize=True, max_examples=ALL // 4)
settings.register_profile("all", patient, derandomize=True, max_examples=ALL)
settings.register_profile("fuzz", patient, max_examples=int(os.environ.get("FUZZ_EXAMPLES", "300")))  # tests/fuzz.py
settings.register_profile("mutants", patient, derandomize=True, max_examples=10)  # tests/mutation
settings.load_profile("few")

# The tests write configuration files and use them; those of trust itself unset this.
os.environ["HOOKLINE_TRUST"] = "1"

TESTS = Path(__file__).parent
# Everything in these folders is slow; elsewhere slow tests are marked one by one.
SLOW_FOLDERS = tuple(f"{TESTS / name}/" for name in ("bench", "pages", "providers/local", "release", "typing"))
# The tests in these folders write to databases, which wait for the disk at each commit: their files are in memory where
# it has room. Elsewhere that does not do, because a sandbox has a /dev of its own.
IN_MEMORY = ("channels", "server", "stores")
# Tests with one of these fixtures run on PostgreSQL always.
ON_POSTGRES = frozenset(("cluster", "own_cluster", "postgres_url"))
DATA = pytest.StashKey[str]()
numbers = count()
FOLDER = "TEST_RUN_FOLDER"
"""Variable with the folder of this test run, for all its processes. Hookline refuses unknown variables HOOKLINE_…."""


@pytest.fixture
def tmp_path(request, tmp_path):
    """A folder of the test's own."""
    if Path(request.path).relative_to(TESTS).parts[0] in IN_MEMORY and memory_has_room():
        with TemporaryDirectory(dir=os.environ[FOLDER], ignore_cleanup_errors=True) as folder:
            yield Path(folder)
    else:
        yield tmp_path


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let the tests of stores run on PostgreSQL."""
    parser.addoption("--database", choices=["sqlite", "postgresql"], default="sqlite", help="where stores keep data")


def pytest_configure(config: pytest.Config) -> None:
    """Make the folders of this test run; with ``--database postgresql``, use PostgreSQL instead of SQLite files."""
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        folder = RunFolder()
        config.add_cleanup(folder.remove)
        os.environ[FOLDER] = folder.path
        data = TemporaryDirectory(prefix="hookline-data-", ignore_cleanup_errors=True)
        config.add_cleanup(data.cleanup)
        os.environ["XDG_DATA_HOME"] = data.name
    config.stash[DATA] = os.environ["XDG_DATA_HOME"]
    if config.getoption("--database") == "sqlite" or config.option.collectonly or MISSING:
        return
    if not is_worker:  # the programs that tests start inherit these variables
        cluster = Cluster(os.environ[FOLDER])
        os.environ["TEST_RUN_POSTGRES"] = f"postgresql://postgres@/postgres?host={cluster.folder}"
        paths = (str(TESTS / "postgres"), os.environ.get("PYTHONPATH"))
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    sys.path.insert(0, str(TESTS / "postgres"))  # for tests that give their sys.path to a program
    runpy.run_path(str(TESTS / "postgres/sitecustomize.py"))


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave the slow folders alone where only the fast tests run: each process of the tests would import them."""
    return (config.option.markexpr == "not slow" and str(collection_path).startswith(SLOW_FOLDERS)) or None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the tests of the slow folders, choose those that ``--database`` makes a difference for, and sort."""
    for item in items:
        if str(item.path).startswith(SLOW_FOLDERS):
            item.add_marker(pytest.mark.slow)
    if config.getoption("--database") != "sqlite":
        config.hook.pytest_deselected(items=[item for item in items if not _depends_on_database(item)])
        items[:] = filter(_depends_on_database, items)
        for item in items if MISSING else ():
            item.add_marker(pytest.mark.skip(reason=MISSING))
    # Tests with a longer time limit than usual start first: at the end, all processes but one would wait for them.
    usual = float(config.getini("timeout"))
    items.sort(key=lambda item: not any(mark.args[0] > usual for mark in item.iter_markers("timeout")))


def _depends_on_database(item: pytest.Item) -> bool:
    """Whether a test uses files of its own, which ``--database`` replaces. Property tests make their files themselves.

    The others are not about a store, are about SQLite files, or use PostgreSQL whatever ``--database`` says.
    """
    if item.get_closest_marker("sqlite") or not ON_POSTGRES.isdisjoint(item.fixturenames):
        return False
    return "tmp_path" in item.fixturenames or item.get_closest_marker("hypothesis") is not None


@pytest.fixture(scope="session")
def cluster():
    """A PostgreSQL server that all tests share, for those that need one whatever ``--database`` says."""
    if MISSING:
        pytest.skip(MISSING)
    return Cluster(os.environ[FOLDER])


@pytest.fixture(scope="module")
def own_cluster():
    """A PostgreSQL server that the tests of one module may stop; they start it again."""
    if MISSING:
        pytest.skip(MISSING)
    started = Cluster()
    yield started
    started.remove()


@pytest.fixture
def postgres_url(cluster, request):
    """The address of a database of the test's own."""
    return cluster.url(f"t{hashlib.sha256(request.node.nodeid.encode()).hexdigest()[:24]}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Let each test store the data of a user in a folder of its own, which neither others nor the real user find.

    A history or a conversation that tests share would differ with the tests that run at the same time.
    """
    os.environ["XDG_DATA_HOME"] = os.path.join(item.config.stash[DATA], f"{os.getpid()}-{next(numbers)}")


def pytest_runtest_logfinish() -> None:
    """Give up the leases of stores that no longer exist. Each has a thread, and every test has leases of its own."""
    postgres = sys.modules.get("hookline.stores.postgres")
    for leases in list(postgres._leases.values()) if postgres else ():
        if not leases.users:
            leases.leases.close()


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without garbage collection, and exempt the collected tests from it later: it is faster."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture
def own_points():
    """Remove the points that a test declares."""
    before, names = dict(points_module.TABLE), dict(points_module.NAMES)
    yield
    for table, was in ((points_module.TABLE, before), (points_module.NAMES, names)):
        table.clear()
        table.update(was)
