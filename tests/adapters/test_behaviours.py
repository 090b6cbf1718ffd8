"""Every behaviour in every loop that is installed here: Hookline's own, and other frameworks under their adapters."""

import json
import os
from importlib.metadata import version
from pathlib import Path

import pytest

from hookline.errors import RegistrationError

from .behaviours import BEHAVIOURS, Bench
from .loops import installed

RESULTS = Path(__file__).parent / "results.json"
"""What each framework can express, as the suite found it. The table in the documentation is made from it."""

WRITE = "HOOKLINE_WRITE_ADAPTER_RESULTS" in os.environ
"""Whether to write the results instead of comparing them: `make test-adapters RESULTS=1`."""

DRIVERS = installed()


@pytest.fixture(scope="session")
def results():
    found = {}
    yield found
    if WRITE:
        known = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
        for driver in [driver for driver in DRIVERS if driver.name in found]:
            package = "" if driver.support is None or driver.name == "Plain loop" else driver.support.package
            release = version(package) if package else ""
            ordered = {sentence: found[driver.name].get(sentence, "failed") for sentence in BEHAVIOURS}
            known[driver.name] = {"package": package, "version": release, "behaviours": ordered}
        RESULTS.write_text(json.dumps(known, indent=1, sort_keys=False) + "\n")


def test_there_are_forty_behaviours():
    assert len(BEHAVIOURS) == 40


@pytest.mark.filterwarnings("ignore:agent.run.. blocks the event loop")  # in a sync tool, which Google ADK calls there
@pytest.mark.parametrize("sentence", BEHAVIOURS)
@pytest.mark.parametrize(
    ("driver", "mode"), [pytest.param(each, mode, id=f"{each.name}-{mode}") for each in DRIVERS for mode in each.modes]
)
async def test_behaviour(driver, mode, sentence, tmp_path, results):
    check, needs = BEHAVIOURS[sentence]
    missing = driver.support.missing if driver.support is not None else {}
    refused = [instead for need in needs if (instead := missing.get(need) or missing.get(need.partition(".")[0]))]
    bench = Bench(driver, mode, tmp_path)
    if refused:
        with pytest.raises(RegistrationError) as error:
            await check(bench)
        assert driver.name in str(error.value)
        assert refused[0] in str(error.value)
        assert bench.model.requests == []
        found = f"no: {refused[0]}"
    elif sentence in driver.cannot:
        with pytest.raises(Exception):  # noqa: PT011
            await check(bench)  # it is declared, so it must not work by chance
        found = f"no: {driver.cannot[sentence]}"
    else:
        await check(bench)
        found = "yes"
    results.setdefault(driver.name, {})[sentence] = found
    if not WRITE:
        assert json.loads(RESULTS.read_text())[driver.name]["behaviours"][sentence] == found
