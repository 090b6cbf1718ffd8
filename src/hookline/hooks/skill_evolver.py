"""Propose skills from finished runs, for a person to accept."""

from __future__ import annotations

import atexit
import contextvars
import logging
import weakref
from concurrent.futures import CancelledError
from contextlib import suppress
from functools import partial
from time import monotonic
from typing import Any, NamedTuple

from .._base.background_writer import BackgroundWriter
from .._base.text import describe
from .._kernel.points import ON_RUN_END
from .._kernel.state import AgentResult
from .._kernel.validation import check_integer, check_positive, check_seconds
from .._run.budget import Budget, Limits
from .._sensitive.redactor import Redactor
from ..models.protocol import Model
from ..providers.factory import resolve_model
from ..stores.skills import AnalysisOutcome, QueuedRun
from ._skill_analysis import analyse, analyst, queued_run
from .skills import check_skill_store

log = logging.getLogger("hookline")

EXIT_SECONDS = 2.0
"""Time that the program waits at exit for a running analysis to be cancelled, in seconds."""

_EXIT_REASON = "the program ends"


class _FinishedRun(NamedTuple):
    """A finished run that is not queued yet."""

    result: AgentResult[Any]
    ctx: Any
    model: Model | None


class _QueuedAnalysis(NamedTuple):
    """A run in the queue, with its context and the model to analyse it."""

    ident: str
    ctx: Any
    model: Model


class SkillEvolverHook:
    """Analyses runs with several successful tool calls, and proposes skills for a person to accept.

    The reply does not wait for the analysis. The hook writes the run to a queue, redacted and shortened, and analyses
    it in the background in a run of the agent ``skill-evolver``. That run passes all hooks of the original run, has its
    own budget and no tools. Runs that are still queued when the program ends are analysed by ``hookline skills
    analyse``. The same task with the same tools is analysed once. Failures are logged.

    Args:
        folder: a ``SkillStore``, its folder, or the file (``.db``) or address of its database.
        min_tool_calls: minimum number of successful calls in a run.
        model: the model that analyses runs; by default the model of the run.
        max_waiting: maximum number of queued runs; a new one replaces the oldest. No run is analysed while this many
            proposals wait for a person.
        max_tokens: maximum number of tokens of one analysis.
        max_seconds: maximum duration of one analysis.
        delay: seconds to wait after the reply, because the user may send the next message.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({ON_RUN_END})
    phase = "observe"
    priority = 0

    def __init__(
        self,
        folder: Any = "skills",
        *,
        min_tool_calls: int = 3,
        model: Model | str | None = None,
        max_waiting: int = 20,
        max_tokens: int = 20_000,
        max_seconds: float = 300.0,
        delay: float = 2.0,
    ) -> None:
        self.store = check_skill_store(folder)
        self.min_tool_calls = check_integer(min_tool_calls, "min_tool_calls")
        self.model = None if model is None else resolve_model(model)
        self.max_waiting = check_integer(max_waiting, "max_waiting")
        self.max_tokens = check_integer(max_tokens, "max_tokens")
        self.max_seconds = check_positive(max_seconds, "max_seconds")
        self.queue = self.store.queue(self.max_waiting)
        self._redactor = Redactor()
        linger = check_seconds(delay, "delay")
        self._writer: BackgroundWriter[_FinishedRun] = BackgroundWriter(
            self._enqueue, self._report_not_queued, limit=1000, linger=0
        )
        self._analyser: BackgroundWriter[_QueuedAnalysis] = BackgroundWriter(
            self._analyse, self._report_not_analysed, limit=self.max_waiting, linger=linger, drop_at_exit=True
        )
        self._run: Any = None
        self._full = self._exiting = False
        _all.add(self)

    @property
    def own_files(self) -> tuple[str, ...]:
        """Files that the agent's tools must not write, because only a person may accept a skill."""
        return self.store.own_files

    def __call__(self, point: str, ctx: Any, result: AgentResult[Any]) -> None:
        """Queue a run that has enough successful tool calls."""
        if result.status != "completed" or result.successful_tool_calls < self.min_tool_calls:
            return  # this also excludes the analyses themselves, which have no tools
        budget = Budget(Limits(tokens=self.max_tokens, seconds=self.max_seconds, soft=None), clock=ctx.clock)
        model = self.model or (None if ctx.llm is None else ctx.llm.model)
        if not self._writer.put(_FinishedRun(result, ctx.detached(budget=budget), model)):
            log.warning("run %s is not analysed for skills: too many runs wait to be queued", result.ids.run_id)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all runs so far are analysed; return false on timeout."""
        began = monotonic()
        if not self._writer.flush(timeout):
            return False
        return self._analyser.flush(None if timeout is None else max(0.0, began + timeout - monotonic()))

    def _enqueue(self, ended: list[_FinishedRun]) -> None:
        """Write runs to the queue; runs in a background thread."""
        for result, ctx, model in ended:
            run = queued_run(result, self._redactor, ctx.allowed_plugins)
            if self._is_unwanted(run):
                continue
            ident, dropped = self.queue.add(run)
            for old in dropped:
                log.warning("run %s is dropped from the queue for skills: too many runs wait", old)
            if model is None or not self._analyser.put(_QueuedAnalysis(ident, ctx, model)):
                log.warning("run %s waits for 'hookline skills analyse'", run.run_id)

    def _is_unwanted(self, run: QueuedRun) -> bool:
        full = len(self.store.list("proposed")) >= self.max_waiting
        if full and not self._full:
            log.warning(
                "runs are not analysed for skills: %d proposals wait for review in %s; run hookline skills review",
                self.max_waiting,
                self.store.place,
            )
        self._full = full
        return full or self.queue.has_origin(run.origin) or self.store.has_origin(run.origin)

    def _analyse(self, waiting: list[_QueuedAnalysis]) -> None:
        """Analyse queued runs one by one; runs in another background thread."""
        for ident, ctx, model in waiting:
            if self._exiting:
                return
            try:
                ask = partial(self._ask, ctx, model)
                self._log_outcome(analyse(self.store, self.queue, ident, ask, self._redactor))
            except Exception as error:  # noqa: BLE001 - the other runs are still analysed
                self._report_not_analysed(error, [])

    def _ask(self, ctx: Any, model: Model, _: QueuedRun, text: str) -> AgentResult[Any]:
        agent = analyst(model)
        # An empty context, so that no hook is skipped because it seems to be running already.
        self._run = run = contextvars.Context().run(agent.start, text, ctx=ctx)
        try:
            if self._exiting:  # the exit may have begun meanwhile
                run.cancel(_EXIT_REASON)
            return run.wait()
        finally:
            self._run = None

    def _log_outcome(self, outcome: AnalysisOutcome | None) -> None:
        if outcome is None:
            return
        if outcome.kind == "proposed":
            log.info("a skill is proposed: %s; run hookline skills review", outcome.note)
        elif outcome.kind == "failed":
            log.warning("a run was not analysed for skills: %s", outcome.note)
        elif outcome.note:
            log.info("a run produced no skill: %s", outcome.note)

    def _report_not_queued(self, error: Exception, ended: list[_FinishedRun]) -> None:
        log.warning("%d runs are not analysed for skills: %s", len(ended), describe(error))

    def _report_not_analysed(self, error: Exception, waiting: list[_QueuedAnalysis]) -> None:
        log.warning("a run was not analysed for skills: %s", describe(error))

    def shutdown(self) -> None:
        """Cancel the running analysis; its run stays in the queue."""
        self._exiting = True
        if (run := self._run) is not None:
            run.cancel(_EXIT_REASON)
            with suppress(Exception, CancelledError):
                run.wait(EXIT_SECONDS)


_all: weakref.WeakSet[SkillEvolverHook] = weakref.WeakSet()


@atexit.register
def _shutdown_all() -> None:
    for hook in list(_all):
        hook.shutdown()
