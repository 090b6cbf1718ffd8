"""Processes that judge the units of a record.

``multiprocessing.Pool`` and ``concurrent.futures`` lose all work when a process dies or has to be ended, and a rule
that hangs in C code can only be stopped that way. Here each process has a pipe and a few bytes of shared memory with
its position, so that the parent can name the hook and the moment, and continue after it.
"""

from __future__ import annotations

import gc
import logging
import mmap
import multiprocessing
import os
import signal
import time
import warnings
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

import msgspec

from ..records.account import Skipped
from .confinement import RuleTimeoutError, confine, limit_memory, time_limit
from .context import PROBE
from .engine import Engine
from .judge import check_no_loop
from .report import Problem, Report
from .sources import Unit

MAX_RESTARTS = 10
"""A hook that makes processes hang or die this often is not called any more."""
_GRACE = 2.0
"""Seconds beyond the time limit after which a process without a sign of life is ended."""
_MEMORY_EXIT, _HUNG_EXIT = 77, 78


class Judged(NamedTuple):
    """A unit that was judged. ``runs`` are hashes of the ids of its outermost runs."""

    unit: Unit
    report: Report
    runs: array[int]


class Limits(msgspec.Struct, frozen=True):
    """The limits of the hooks: seconds for each moment, bytes of memory, and what they may do."""

    seconds: float
    memory: int
    allowed: frozenset[str] = frozenset()


def can_fork() -> bool:
    """Whether this system can start processes that have the loaded rules."""
    return "fork" in multiprocessing.get_all_start_methods()


def judge_here(engine: Engine, units: list[Unit], limits: Limits) -> Iterator[Judged]:
    """Judge units in this process, without a memory limit. Code in C that does not return is not interrupted."""
    check_no_loop(engine.rules)
    confine(limits.allowed, own_process=False)
    with _quiet(), time_limit(limits.seconds):
        for unit in units:
            report = engine.judge(unit)
            yield Judged(unit, report, engine.run_hashes)


def judge_in_processes(
    engine: Engine, units: list[Unit], limits: Limits, count: int, *, tick: Callable[[], object] = lambda: None
) -> Iterator[Judged]:
    """Judge units in several processes, and yield their reports in the order of the units.

    Args:
        engine: the engine, which the processes get as it is.
        units: the units.
        limits: the limits of the hooks.
        count: the number of processes.
        tick: called several times a second.
    """
    done: dict[int, tuple[Report, array[int]]] = {}
    waiting = list(range(len(units)))[::-1]
    following = 0
    workers = [_Worker(engine, units, limits) for _ in range(min(count, len(units)))]
    restarts: Counter[str] = Counter()
    try:
        while following < len(units):
            for worker in workers:
                if worker.unit is None and waiting:
                    worker.start(waiting.pop())
            ready = wait([end for worker in workers for end in worker.ends()], timeout=0.2)
            tick()
            for worker in workers:
                if worker.unit is None:
                    continue
                if worker.connection in ready and (answer := worker.receive()) is not None:
                    done[worker.finish()] = answer
                elif worker.has_died() or worker.hangs():
                    if worker.died_again:
                        number = worker.finish()
                        done[number] = _unread(engine, units[number]), array("q")
                        worker.restart()
                        continue
                    hook = worker.hook
                    restarts[hook] += 1
                    if restarts[hook] >= MAX_RESTARTS:
                        engine.give_up(hook)
                    worker.restart()
            while following in done:
                yield Judged(units[following], *done.pop(following))
                following += 1
    finally:
        for worker in workers:
            worker.stop()


class _Worker:
    """A process that judges one unit after the other."""

    def __init__(self, engine: Engine, units: list[Unit], limits: Limits) -> None:
        self._engine, self._units, self._limits = engine, units, limits
        self._shared = mmap.mmap(-1, 64)
        self._position = memoryview(self._shared).cast("q")
        self.unit: int | None = None
        self._stuck: dict[int, tuple[str, Problem, str]] = {}
        self._begin()

    def _begin(self) -> None:
        fork: Any = multiprocessing.get_context("fork")
        self.connection, inner = fork.Pipe()
        self._position[2] += 1
        self._seen = self._position[2], time.monotonic()
        self._process = fork.Process(
            target=_work, args=(self._engine, self._units, self._limits, inner, self._position), daemon=True
        )
        with warnings.catch_warnings():
            # From Python 3.12 on, forking a process with threads is a warning, because a lock may be held. The child
            # only calls rules and writes to its own pipe.
            warnings.simplefilter("ignore", DeprecationWarning)
            self._process.start()
        inner.close()

    def ends(self) -> tuple[Any, ...]:
        """Return what becomes ready when the process has an answer or dies."""
        return (self.connection, self._process.sentinel)

    def start(self, unit: int) -> None:
        """Judge a unit."""
        self.unit, self._stuck = unit, {}
        self._send()

    def _send(self) -> None:
        self._seen = self._position[2], time.monotonic()
        try:
            self.connection.send((self.unit, self._stuck))
        except OSError:
            pass  # it has died, which is noticed next

    def receive(self) -> tuple[Report, array[int]] | None:
        """Return the report about the unit and its runs; ``None`` if the process has died."""
        try:
            report = Report.from_json(self.connection.recv_bytes())
            return report, array("q", self.connection.recv_bytes())
        except (EOFError, OSError):
            return None

    def finish(self) -> int:
        """Mark the process as idle, and return the unit that it has judged."""
        unit, self.unit = self.unit, None
        assert unit is not None
        return unit

    def has_died(self) -> bool:
        """Whether the process has ended."""
        return not self._process.is_alive()

    def hangs(self) -> bool:
        """Whether the process has given no sign of life for longer than a hook may take."""
        beat, now = self._position[2], time.monotonic()
        if beat != self._seen[0]:
            self._seen = beat, now
        return now - self._seen[1] > self._limits.seconds + _GRACE

    @property
    def hook(self) -> str:
        """The hook that was called last."""
        return self._engine.hooks[self._position[1]]

    @property
    def died_again(self) -> bool:
        """Whether the process died at a moment that no hook judged, so that reading the unit is the reason."""
        return self._moment in self._stuck

    @property
    def _moment(self) -> int:
        """The number of the last moment in the unit."""
        return self._position[0] - self._position[3]

    def restart(self) -> None:
        """Start a new process. It judges the same unit again, but not the moment at which this one hung or died."""
        hangs = self._process.is_alive()
        self._end()
        if self.unit is None:
            self._begin()
            return
        hook = self.hook
        if hangs or self._process.exitcode == _HUNG_EXIT:
            problem: tuple[str, Problem, str] = (hook, "timed_out", "it exceeded the time limit and did not react")
        elif self._process.exitcode == _MEMORY_EXIT:
            problem = hook, "out_of_memory", "it needed more memory than the limit"
        else:
            problem = hook, "crashed", f"the process ended {_ending(self._process.exitcode)}"
        self._stuck[self._moment] = problem
        self._begin()
        self._send()

    def stop(self) -> None:
        """End the process."""
        self._end()
        self._position.release()
        self._shared.close()

    def _end(self) -> None:
        self._process.kill()
        self._process.join()
        self.connection.close()


def _unread(engine: Engine, unit: Unit) -> Report:
    """Return the report about a unit that ends every process that reads it."""
    baseline = None if engine.then is None else engine.then.names
    reason = "a part of it ended each process that judged it, perhaps because of the memory limit"
    return Report(engine.now.names, baseline, skipped=(Skipped(unit.file, reason),))


def _ending(code: int | None) -> str:
    if code is not None and code < 0:
        try:
            return f"with {signal.Signals(-code).name}"
        except ValueError:
            return f"with signal {-code}"
    return f"with exit code {code}"


def _work(engine: Engine, units: list[Unit], limits: Limits, connection: Connection, position: memoryview) -> None:
    """Judge units until the parent closes the pipe. Runs in its own process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends this process
    gc.freeze()  # what the parent has loaded is not garbage
    PROBE.position = position
    confine(limits.allowed, own_process=True)
    limit_memory(limits.memory)

    def beat() -> None:
        position[2] += 1

    try:
        with _quiet(), time_limit(limits.seconds, beat, lambda: os._exit(_HUNG_EXIT)):
            while True:
                number, stuck = connection.recv()
                report = None
                while report is None:
                    try:
                        report = engine.judge(units[number], stuck)
                    except RuleTimeoutError:  # the timer fired just after the hook had returned: judge it again
                        continue
                connection.send_bytes(report.to_json())
                connection.send_bytes(engine.run_hashes.tobytes())
    except (EOFError, OSError):
        pass  # the parent has ended
    except MemoryError:
        os._exit(_MEMORY_EXIT)


class _quiet:  # noqa: N801 - used like a function
    """Keep the failures of hooks out of the log: the report counts them."""

    def __enter__(self) -> None:
        self._log = logging.getLogger("hookline")
        self._before = self._log.disabled
        self._log.disabled = True

    def __exit__(self, *_: object) -> None:
        self._log.disabled = self._before
