"""A runner for mutmut that collects the tests once: each mutant's process has them from the start."""

import os
from collections.abc import Iterable
from contextlib import redirect_stdout
from pathlib import Path
from random import Random

import pytest
from _pytest.config import _prepareconfig
from mutmut.runners.harness import PytestRunner
from mutmut.utils.file_utils import change_cwd
from mutmut.workers import isolation

TIMEOUT = 36  # mutmut's exit code for a timeout
WIDE, ENOUGH = 100, 20  # a test with more than WIDE cases is run with ENOUGH of them


def _enough(items: list[pytest.Item]) -> list[pytest.Item]:
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    tables = (table if len(table) <= WIDE else Random(0).sample(table, ENOUGH) for table in cases.values())
    return [item for table in tables for item in table]


class CollectedRunner(PytestRunner):
    """A runner for mutmut that collects the tests only once for all mutants."""

    session: pytest.Session
    items: dict[str, pytest.Item]

    def run_tests(self, *, mutant_name: str | None, tests: Iterable[str]) -> int:
        if mutant_name is None:
            return super().run_tests(mutant_name=mutant_name, tests=tests)
        with change_cwd("mutants"):
            return self._judge(mutant_name.rpartition("__mutmut_")[0], list(tests))

    def collect(self) -> None:
        """Collect all tests, before the process of the first mutant is forked."""
        with change_cwd("mutants"), redirect_stdout(Path(os.devnull).open("w")):
            options = ["--rootdir=.", "-q", "-s", "--tb=native", "--assert=plain"]
            config = _prepareconfig([*options, *self._pytest_add_cli_args, *self._pytest_add_cli_args_test_selection])
            config._do_configure()
            self.session = session = pytest.Session.from_config(config)
            config.hook.pytest_sessionstart(session=session)
            config.hook.pytest_collection(session=session)
            self.items = {item.nodeid: item for item in _enough(session.items)}

    def _judge(self, function: str, tests: list[str]) -> int:
        failed, killers = Failed(), Killers(function)
        self.session.config.pluginmanager.register(failed)
        items = [self.items[test] for test in sorted(tests, key=killers.rank) if test in self.items]
        for item, after in zip(items, [*items[1:], None], strict=True):
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if failed.report is not None:
                if "Failed: Timeout" in failed.report.longreprtext:
                    return TIMEOUT  # not recorded: a test that fails fast should come first the next time
                killers.note(item.nodeid)
                return 1
        return 0


class Killers:
    """The tests that killed mutants of a function and its module, which run first the next time."""

    def __init__(self, function: str) -> None:
        self.function, self.file = function, Path("killers.txt")
        module, self._ranks = function.rpartition(".")[0], {}
        for line in self.file.read_text().splitlines() if self.file.exists() else ():
            victim, test = line.split(" ", 1)
            if victim == function:
                self._ranks[test] = 0
            elif victim.startswith(f"{module}."):
                self._ranks.setdefault(test, 1)

    def rank(self, test: str) -> int:
        """Return the rank of a test in the order."""
        return self._ranks.get(test, 2)

    def note(self, test: str) -> None:
        """Record a test that killed a mutant."""
        with self.file.open("a") as file:
            print(self.function, test, file=file)


class Failed:
    """The first test that failed."""

    report: pytest.TestReport | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.report is None:
            self.report = report


def use_collected_tests() -> None:
    """Replace the runner of mutmut with this one."""
    startup = isolation.ForkRunner.startup

    def collect_and_start(runner: isolation.ForkRunner) -> None:
        runner.test_runner.collect()
        startup(runner)

    isolation.PytestRunner, isolation.ForkRunner.startup = CollectedRunner, collect_and_start
