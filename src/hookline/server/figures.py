"""Count what hooks decide and what models cost in served runs, for the pages Hooks and Cost."""

from __future__ import annotations

import asyncio
import logging
from contextvars import Context
from typing import Any

from .._base.text import error_text
from .._kernel.events import Event, HookExecuted
from .._kernel.payloads import ModelReply
from .._kernel.points import AFTER_LLM
from .._kernel.results import Verdict
from ..hooks.shadow_mode import ShadowDecided
from ..stores.errors import StoreError
from ..stores.run_figures import FigureStore, HookKey, ModelKey, Tally, Used, took
from ..stores.runs import RunRecord

log = logging.getLogger("hookline")

WRITE_SECONDS = 1.0
"""Seconds for which a process counts before it writes: what it has not written is lost if it is killed."""
_TEXT = 200


class FigureRecorder:
    """Collects the figures of the runs of this process, and writes them once a second. It belongs to one event loop.

    If they cannot be written, they are kept and tried again.

    Args:
        store: the store.
    """

    def __init__(self, store: FigureStore) -> None:
        self._store = store
        self._tally = Tally()
        self._task: asyncio.Task[None] | None = None
        self._writing = asyncio.Lock()
        self._problem = ""

    def hook_called(self, key: HookKey) -> None:
        """Count a call of a hook, or a decision in shadow mode."""
        self._tally.hooks[key] += 1
        if self._task is None:
            self._start()

    def model_called(self, run_id: str, key: ModelKey, used: Used) -> None:
        """Count a call of a model."""
        self._tally.models[key] = self._tally.models.get(key, Used()) + used
        self._tally.models_of.add((run_id, key.model))
        if self._task is None:
            self._start()

    async def flushed(self) -> None:
        """Write what was counted so far. An error is logged, and what could not be written is kept."""
        async with self._writing:
            taken, self._tally = self._tally, Tally()
            if not taken:
                return
            try:
                await asyncio.to_thread(self._store.add, taken)
                self._problem = ""
            except BaseException as error:
                taken.add(self._tally)
                self._tally = taken
                if not isinstance(error, StoreError):
                    raise
                if error_text(error) != self._problem:
                    self._problem = error_text(error)
                    log.error("figures of hooks and models cannot be stored: %s", self._problem)

    async def close(self) -> None:
        """Write what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        await self.flushed()

    def _start(self) -> None:
        self._task = asyncio.create_task(self._write(), context=Context())  # its log lines belong to no request

    async def _write(self) -> None:
        try:
            while self._tally:
                await asyncio.sleep(WRITE_SECONDS)
                await self.flushed()
        finally:
            self._task = None


class FiguresHook:
    """Counts in one served run, and in the runs of its subagents.

    It is an observer at ``after_llm``, because only observers there see the replies that a hook rejected.

    Args:
        recorder: collects the figures.
        run: the run.
    """

    points = frozenset({AFTER_LLM})
    phase = "observe"
    priority = 0
    events = frozenset({HookExecuted, ShadowDecided})
    every_call = True

    def __init__(self, recorder: FigureRecorder, run: RunRecord) -> None:
        self._recorder = recorder
        self._run_id = run.id
        self._whose = run.owner, run.agent

    def __call__(self, point: str, ctx: Any, payload: ModelReply, verdict: Verdict) -> None:
        """Count a reply of the model."""
        if payload.source != "model":
            return
        usage, cost = payload.usage, payload.cost
        tokens = usage.input_tokens, usage.output_tokens, usage.cached_tokens
        used = Used(1, *tokens, cost or 0.0, int(cost is None))
        self._recorder.model_called(self._run_id, ModelKey(*self._whose, payload.model[:_TEXT]), used)

    def on_event(self, event: Event) -> None:
        """Count a call of a hook, or a decision in shadow mode."""
        owner, agent = self._whose
        if isinstance(event, HookExecuted):
            place, verb, duration = (str(event.point), event.hook[:_TEXT]), str(event.verb), took(event.duration)
            self._recorder.hook_called(HookKey(owner, agent, *place, 0, verb, duration))
        elif isinstance(event, ShadowDecided):
            place, verb = (str(event.point), f"shadow({event.hook})"[:_TEXT]), str(event.verb)
            self._recorder.hook_called(HookKey(owner, agent, *place, 1, verb, took(None)))
