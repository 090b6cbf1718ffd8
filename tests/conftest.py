"""Hypothesis tries the same examples each time; ``HYPOTHESIS_PROFILE=here`` looks for new ones."""

import gc
import os
import signal

import pytest
from hypothesis import HealthCheck, settings

if (
    signal.getsignal(signal.SIGINT) is signal.SIG_IGN
):  # the tests run in the background: programs that they start do not
    signal.signal(signal.SIGINT, signal.default_int_handler)

patient = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # both measure the machine
settings.register_profile("here", patient)
settings.register_profile("ci", patient, derandomize=True)
settings.register_profile("mutants", patient, derandomize=True, max_examples=10)  # see tests/mutation
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))  # random exploration: HYPOTHESIS_PROFILE=here


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """The thousands of tests are there to stay: nobody has to look through them for garbage, neither now nor later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
