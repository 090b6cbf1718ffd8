"""Record the facts of served runs: what the pages, statistics and lists of a server show."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from .._kernel.points import BEFORE_STEP, ON_RUN_END
from ..hooks._facts import FactObserver, FactRecorder, PutRecord
from ..records.rules import rules_of
from ..stores.errors import StoreError
from ..stores.facts import ObservedRun
from ..stores.runs import RunRecord
from ..stores.sql import Database

if TYPE_CHECKING:
    from .._run.engine import Engine


class ServedFacts(FactRecorder):
    """Records the facts of served runs, and of the runs of their subagents. All runs share one hook.

    The facts of a run that hands over to another agent, which is a run of its own, are those of the served run. The row
    of a served run, and the fact that it ended, are written by the server: it may end without having begun.

    Args:
        db: the database of the runs.
        problem: says why records cannot be stored now, and nothing if they can: the run fails at its next step then;
            ``None`` if it goes on. What could not be stored is tried again.
    """

    def __init__(self, db: Database, problem: Callable[[], str] | None = None) -> None:
        super().__init__(db)
        self._problem = problem
        self._runs: dict[str, tuple[RunRecord, PutRecord]] = {}
        if problem is not None:
            self.points = frozenset({BEFORE_STEP, ON_RUN_END})
            self.on_failure = {BEFORE_STEP: "closed"}

    @contextmanager
    def recording(self, run: RunRecord, put: PutRecord) -> Iterator[None]:
        """Record a served run inside the block. ``put`` stores a record with the events of the run."""
        self._runs[run.id] = run, put
        try:
            yield
        finally:
            del self._runs[run.id]

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Before a step, make sure that records can be stored, if they must be."""
        if point == BEFORE_STEP and self._problem is not None and (problem := self._problem()):
            raise StoreError(f"records of runs cannot be written: {problem}")

    def describe(self, engine: Engine, outer: FactObserver | None) -> ObservedRun:
        """Return what facts say about a run."""
        if outer is not None:
            return super().describe(engine, outer)
        (served, _), rules = self._runs[engine.services.origin.root_id], rules_of(engine.hooks.stack)
        return ObservedRun(served.id, engine.ids.agent, "", served.id, served.agent, served.owner, rules)

    def storage_of(self, engine: Engine) -> PutRecord | None:
        """Return the function that stores records with the events of the run; ``None`` if the served run has ended."""
        _, put = self._runs.get(engine.services.origin.root_id, (None, None))
        return put

    def counts_run(self, facts: FactObserver) -> bool:
        """Whether the run itself is recorded, too."""
        return not facts.is_outermost
