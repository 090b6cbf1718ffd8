"""ObservabilityHook: records runs in the :class:`RunStore` that ``hookline stats`` reads."""

from __future__ import annotations

import logging
import os
import time
from collections import deque
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .._base.background_writer import BackgroundWriter
from .._base.text import error_text
from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.points import BEFORE_STEP, ON_RUN_END
from .._kernel.validation import check_path
from ..stores.errors import StoreError
from ..stores.facts import NAME, ObservedRun, RunFact
from ..stores.runs import RunRecord, RunStore
from ._facts import FactObserver, FactRecorder, PutRecord

if TYPE_CHECKING:
    from .._run.engine import Engine
    from .._run.halt import HaltSwitch

log = logging.getLogger("hookline")

LIMIT = 50_000
"""Maximum number of unwritten records. Further ones are lost, and the loss is reported."""
LINGER = 0.5
"""Seconds to collect records before they are written: one transaction costs as much as many rows, and many of them add
to the same sums."""


class ObservabilityHook(FactRecorder):
    """Records every run, model call, tool call, verdict, approval and error in a SQLite file.

    ``hookline stats`` shows them. Only names, numbers and times are recorded, and the beginning of the reasons of
    hooks, without sensitive data: no texts, arguments or results. Each fire of a point has a row with the hooks that
    were called and their durations (``store.facts(run_id)``). A thread writes the file, so that runs do not wait for
    it. If records cannot be written, they are lost; the loss is logged, reported in the ``errors`` of the next run that
    ends, and stored in the file as soon as it can be written again.

    A run that ``hookline serve`` stores in the same file has one row: see :class:`RunStore`.

    Example:
        >>> agent = Agent("helper", llm="openai:gpt-5-mini", hooks=[ObservabilityHook("runs.db", keep_days=90)])

    Args:
        path: the file, or a :class:`RunStore`.
        keep_days: the number of days to keep records; by default they are kept for ever. Sums by day stay.
        on_failure: with ``"closed"``, runs fail at their next step while records cannot be written; with ``"open"``,
            they continue.

    Raises:
        RegistrationError: an argument is invalid.
    """

    halts: HaltSwitch | None = None
    """The stop switch that runs with this hook obey: that of their list, with ``Agent(runs=...)`` and in a mounted
    server. Otherwise none: a hook that only observes must not stop runs because its file cannot be read."""

    def __init__(
        self,
        path: str | os.PathLike[str] | RunStore,
        *,
        keep_days: float | None = None,
        on_failure: Literal["open", "closed"] = "open",
    ) -> None:
        if on_failure not in ("open", "closed"):
            raise RegistrationError(f"on_failure must be 'open' or 'closed', not {on_failure!r:.80}")
        if on_failure == "closed":
            self.points = frozenset({BEFORE_STEP, ON_RUN_END})
            self.on_failure = {BEFORE_STEP: "closed"}
        if not isinstance(path, RunStore):
            try:
                path = RunStore(check_path(path, "path must be a SQLite file, such as 'runs.db'"), keep_days=keep_days)
            except StoreError as error:
                raise RegistrationError(str(error)) from error
        elif keep_days is not None:
            raise RegistrationError("keep_days belongs to the store: RunStore(path, keep_days=...)")
        super().__init__(path.db)
        self.store = path
        self._writer: BackgroundWriter[None] = BackgroundWriter(self._write, self._failed, linger=LINGER)
        self._begin()

    def _begin(self) -> None:
        """Start without records, also after a fork: the parent process writes its own records."""
        self._pid = os.getpid()
        self._records: deque[RunFact | RunRecord] = deque()
        self._open.clear()
        self._awake = False
        self._writing = self._lost = 0
        self._gap: RunFact | None = None
        self._problem = self._logged = ""

    def observe_fires(self, engine: Engine) -> FactObserver | None:
        """Return the fire observer that records a run."""
        if self._pid != os.getpid():
            self._begin()
        return super().observe_fires(engine)

    def __call__(self, point: str, ctx: Any, payload: Any) -> Awaitable[None] | None:
        """Report records that were lost since the last run; before a step, make sure that they can be written."""
        if point == BEFORE_STEP:
            return None if self._gap is None else self._check()
        if (problem := self.problem()) is not None:
            raise StoreError(problem)
        return None

    async def _check(self) -> None:
        """Wait for the next attempt to write: the file may be usable again."""
        await in_thread(self.flush)
        if self._gap is not None:
            raise StoreError(f"records of runs cannot be written: {self._gap.outcome}")

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all records are written or lost. Return false after ``timeout`` seconds."""
        return self._writer.flush(timeout)

    def problem(self) -> str | None:
        """Return a message about records lost since the last call; ``None`` if none were lost."""
        if not self._problem:
            return None
        lost, problem = self._lost, self._problem
        self._lost, self._problem = 0, ""
        return f"{lost:,} records of runs were lost: {problem}"

    def storage_of(self, engine: Engine) -> PutRecord:
        """Return the function that stores records soon."""
        return self._put

    def _put(self, record: RunFact | RunRecord) -> None:
        if len(self._records) >= LIMIT:
            self._lose(1, f"more than {LIMIT:,} records wait to be written to {self.store.path}")
            return
        self._records.append(record)
        if not self._awake:  # the writer is woken once for all records that wait
            self._awake = True
            self._writer.put(None)

    def _write(self, _: list[None]) -> None:
        self._awake = False
        records, gap = [self._records.popleft() for _ in range(len(self._records))], self._gap
        self._writing = len(records)
        facts = [each for each in records if isinstance(each, RunFact)]
        runs = [each for each in records if not isinstance(each, RunFact)]
        self.store.add(runs, facts if gap is None else [gap, *facts])
        self._logged = ""
        if gap is not None:
            self._gap = None

    def _failed(self, error: Exception, _: list[None]) -> None:
        self._lose(self._writing, error_text(error) or type(error).__name__)

    def _lose(self, records: int, problem: str) -> None:
        self._lost += records
        self._problem = problem
        gap = self._gap or RunFact(ObservedRun(""), time.time(), "gap", outcome=problem[:NAME])
        self._gap = msgspec.structs.replace(gap, seq=gap.seq + records)
        if problem != self._logged:
            self._logged = problem
            log.error("records of runs were lost: %s", problem)
