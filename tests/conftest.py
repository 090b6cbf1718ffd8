"""Options of all tests: fixed hypothesis examples, and the tests that are slow."""

import gc
import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.properties import ALL

# A shell ignores Ctrl-C for what it starts in the background; the programs that the tests start must not inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

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
SLOW = ("bench", "pages", "providers/local", "release", "typing")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of the slow folders."""
    folders = tuple(f"{TESTS / name}/" for name in SLOW)
    for item in items:
        if str(item.path).startswith(folders):
            item.add_marker(pytest.mark.slow)


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect without garbage collection, and exempt the collected tests from it later: it is faster."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
