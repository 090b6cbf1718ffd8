"""Skills that grow out of runs: proposed after the reply, for a person to accept."""

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
from .._run.budget import Budget, Limits
from ..models.protocol import Model
from ..providers.names import as_model
from ..stores.skills import Outcome, QueuedRun, SkillQueue
from ._sensitive.redactor import Redactor
from ._skill_analysis import analyse, analyst, queued_run
from ._support.validation import check_integer, check_positive, check_seconds
from .skills import store_of

log = logging.getLogger("hookline")

AT_EXIT = 2.0
"""Seconds that the end of the program waits for an analysis to break off."""

_LEAVING = "the program ends"


class _Ended(NamedTuple):
    """A run that is to be queued."""

    result: AgentResult[Any]
    ctx: Any
    model: Model | None


class _Waiting(NamedTuple):
    """A run that is queued."""

    ident: str
    ctx: Any
    model: Model


class SkillEvolverHook:
    """Looks at runs with several successful tool calls, after the reply, and proposes skills for a person to accept.

    Nothing waits for it: a run is queued in a file, without secrets and cut short, and looked at in the background by
    a run of its own, of the agent ``skill-evolver``. That run passes all hooks of the run it looks at, has a budget of
    its own and calls no tools. What the program leaves behind when it ends is looked at by ``hookline skills analyse``.
    The same task with the same tools is looked at once. Failures are logged.

    Args:
        folder: the skills, as a ``SkillStore`` or its folder.
        min_tool_calls: how many calls of a run must have succeeded.
        model: the model that looks at runs; that of the run if left out.
        max_waiting: how many runs may wait, the oldest is dropped for a new one; while so many proposals wait for a
            person, no further run is looked at.
        max_tokens: how many tokens one analysis may take.
        max_seconds: how long it may take.
        delay: seconds after the reply in which nothing is asked: the next message may come.

    Raises:
        RegistrationError: a folder or a model that cannot be used, or a number that makes no sense.
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
        self.store = store_of(folder)
        self.min_tool_calls = check_integer(min_tool_calls, "min_tool_calls")
        self.model = None if model is None else as_model(model)
        self.max_waiting = check_integer(max_waiting, "max_waiting")
        self.max_tokens, self.max_seconds = (
            check_integer(max_tokens, "max_tokens"),
            check_positive(max_seconds, "max_seconds"),
        )
        self.queue = SkillQueue(self.store.folder, self.max_waiting)
        self._redactor = Redactor()
        linger = check_seconds(delay, "delay")
        self._writer: BackgroundWriter[_Ended] = BackgroundWriter(self._keep, self._not_kept, limit=1000, linger=0)
        self._analyser: BackgroundWriter[_Waiting] = BackgroundWriter(
            self._look, self._not_looked, limit=self.max_waiting, linger=linger, drop_at_exit=True
        )
        self._run: Any = None
        self._full = self._leaving = False
        _all.add(self)

    @property
    def own_files(self) -> tuple[str, ...]:
        """What no tool of the agent may write: a skill is one only if a person accepted it."""
        return (str(self.store.folder),)

    def __call__(self, point: str, ctx: Any, result: AgentResult[Any]) -> None:
        """Queue one run, if there is enough to learn from."""
        if result.status != "completed" or result.successful_tool_calls < self.min_tool_calls:
            return  # so an analysis, which has no tools, is not looked at itself
        budget = Budget(Limits(tokens=self.max_tokens, seconds=self.max_seconds, soft=None), clock=ctx.clock)
        model = self.model or (None if ctx.llm is None else ctx.llm.model)
        if not self._writer.put(_Ended(result, ctx.detached(budget=budget), model)):
            log.warning("the run %s is not looked at for skills: too many wait to be queued", result.ids.run_id)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until all runs so far have been looked at; false if time ran out."""
        began = monotonic()
        if not self._writer.flush(timeout):
            return False
        return self._analyser.flush(None if timeout is None else max(0.0, began + timeout - monotonic()))

    def _keep(self, ended: list[_Ended]) -> None:
        """Write runs into the queue; in a thread."""
        for result, ctx, model in ended:
            run = queued_run(result, self._redactor, ctx.allowed_plugins)
            if self._has_no_use_for(run):
                continue
            ident, dropped = self.queue.add(run)
            for old in dropped:
                log.warning("the run %s is not looked at for skills any more: too many wait", old)
            if model is None or not self._analyser.put(_Waiting(ident, ctx, model)):
                log.warning("the run %s waits for 'hookline skills analyse'", run.run_id)

    def _has_no_use_for(self, run: QueuedRun) -> bool:
        full = len(self.store.list("proposed")) >= self.max_waiting
        if full and not self._full:
            log.warning(
                "runs are not looked at for skills: %d proposals wait for you in %s; type hookline skills review",
                self.max_waiting,
                self.store.folder,
            )
        self._full = full
        return full or self.queue.holds(run.origin) or self.store.knows(run.origin)

    def _look(self, waiting: list[_Waiting]) -> None:
        """Look at queued runs, one after another; in another thread."""
        for ident, ctx, model in waiting:
            if self._leaving:
                return
            try:
                ask = partial(self._ask, ctx, model)
                self._tell(analyse(self.store, self.queue, ident, ask, self._redactor))
            except Exception as error:  # noqa: BLE001 - the others have their turn
                self._not_looked(error, [])

    def _ask(self, ctx: Any, model: Model, _: QueuedRun, text: str) -> AgentResult[Any]:
        agent = analyst(model)
        # Nothing of what runs around here, so that no hook is left out because it happens to be running.
        self._run = run = contextvars.Context().run(agent.start, text, ctx=ctx)
        try:
            if self._leaving:  # since a moment ago
                run.cancel(_LEAVING)
            return run.wait()
        finally:
            self._run = None

    def _tell(self, outcome: Outcome | None) -> None:
        if outcome is None:
            return
        if outcome.kind == "proposed":
            log.info("a skill is proposed: %s; type hookline skills review", outcome.note)
        elif outcome.kind == "failed":
            log.warning("a run was not looked at for skills: %s", outcome.note)
        elif outcome.note:
            log.info("a run gave no skill: %s", outcome.note)

    def _not_kept(self, error: Exception, ended: list[_Ended]) -> None:
        log.warning("%d runs are not looked at for skills: %s", len(ended), describe(error))

    def _not_looked(self, error: Exception, waiting: list[_Waiting]) -> None:
        log.warning("a run was not looked at for skills: %s", describe(error))

    def leave(self) -> None:
        """Break off what goes on; it stays in the queue."""
        self._leaving = True
        if (run := self._run) is not None:
            run.cancel(_LEAVING)
            with suppress(Exception, CancelledError):
                run.wait(AT_EXIT)


_all: weakref.WeakSet[SkillEvolverHook] = weakref.WeakSet()


@atexit.register
def _leave_all() -> None:
    for hook in list(_all):
        hook.leave()
