"""Writes runs and events to the store in a background thread, several of them in one transaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import Context

from .._base.text import error_text
from ..stores.runs import RunRecord, RunStore, StoredEvent
from .errors import UnavailableError

log = logging.getLogger("hookline")

LINGER = 0.005
"""Seconds to collect events before they are written: a transaction costs as much as many rows."""
AGAIN = 1.0
"""Seconds between attempts to write a file that could not be written."""


class Recorder:
    """Writes runs and events in the order of :meth:`put`. What cannot be written is kept and tried again.

    Args:
        store: the store.
        committed: called with the events that have been written.
        stuck: called when the file cannot be written.
    """

    def __init__(
        self, store: RunStore, committed: Callable[[Sequence[StoredEvent]], None], stuck: Callable[[], None]
    ) -> None:
        self._store, self._committed, self._stuck = store, committed, stuck
        self._runs: dict[str, RunRecord] = {}
        self._events: list[StoredEvent] = []
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "hookline-runs")
        self.problem = ""
        """Why the file cannot be written now; empty if it can."""

    def put(self, run: RunRecord | None = None, event: StoredEvent | None = None) -> None:
        """Queue a run as it is now, an event, or both."""
        if run is not None:
            self._runs[run.id] = run
        if event is not None:
            self._events.append(event)
        if self._task is None:
            self._task = asyncio.create_task(self._write(), context=Context())  # its log lines belong to no request

    async def flushed(self) -> None:
        """Wait until everything queued so far is in the file.

        Raises:
            UnavailableError: the file cannot be written now.
        """
        if self._task is None:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(done)
        await done

    async def close(self, seconds: float) -> None:
        """Write what is left, for at most ``seconds``."""
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            log.error("%d events of runs are lost: %s", len(self._events), self.problem)
        self._thread.shutdown()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._runs or self._events or self._waiting:
                if not self._waiting:
                    await asyncio.sleep(LINGER)
                runs, events, waiting = self._runs, self._events, self._waiting
                self._runs, self._events, self._waiting = {}, [], []
                try:
                    await loop.run_in_executor(self._thread, self._store.write, runs.values(), events)
                except BaseException as error:
                    self._runs, self._events = {**runs, **self._runs}, [*events, *self._events]
                    if not isinstance(error, Exception):
                        self._give_up(waiting, self.problem or "the server stops")
                        raise
                    self._give_up(waiting, error_text(error) or repr(error))
                    await asyncio.sleep(AGAIN)
                    continue
                self.problem = ""
                self._committed(events)
                for each in waiting:
                    if not each.done():
                        each.set_result(None)
        finally:
            self._task = None

    def _give_up(self, waiting: Sequence[asyncio.Future[None]], problem: str) -> None:
        if problem != self.problem:
            log.error("runs cannot be stored: %s", problem)
        self.problem = problem
        self._stuck()
        for each in waiting:
            if not each.done():
                each.set_exception(UnavailableError("runs cannot be stored now: try again later"))
