"""Queues of durable runs: which process executes a run next.

A queue only says that a run should be executed now. The journal decides who may execute it, so a run that is queued
twice, or by mistake, does no harm; and a run that was lost by the queue is found in the journal and queued again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Protocol

from ..stores.sql import Connection
from .concurrency import RunSlots

log = logging.getLogger("hookline")

Execute = Callable[[str], Awaitable[None]]


class RunQueue(Protocol):
    """A queue of durable runs."""

    async def open(self, execute: Execute | None, digests: Sequence[str]) -> None:
        """Open the queue, and execute the runs in it with ``execute``, unless that is ``None``.

        Args:
            execute: executes a run by id. It must not raise.
            digests: digests of the hooks, instructions and tools that this process has.

        Raises:
            StoreError: the database cannot be used.
        """
        ...

    async def put(self, run_id: str, session_id: str, digest: str) -> None:
        """Queue a run, unless it is queued.

        Args:
            run_id: the run.
            session_id: its conversation, whose runs are executed one after another.
            digest: if not empty, only a process with this digest can execute the run.

        Raises:
            StoreError: the database cannot be used.
        """
        ...

    def put_in(self, run_id: str, session_id: str) -> Callable[[Connection], object] | None:
        """Return the function that queues a new run in the transaction that stores it.

        ``None`` if the queue is not in the database: then :meth:`put` follows the transaction.
        """
        ...

    async def remove(self, run_id: str) -> None:
        """Remove a run that waits in the queue.

        Raises:
            StoreError: the database cannot be used.
        """
        ...

    def pause(self) -> None:
        """Begin no more runs."""
        ...

    async def close(self) -> None:
        """Wait until the runs of this process have ended or were suspended, and close the queue."""
        ...


class LocalQueue:
    """A queue in this process, for SQLite.

    Args:
        concurrency: how many runs are executed at once.
    """

    def __init__(self, concurrency: int) -> None:
        self._slots = RunSlots(concurrency)
        self._execute: Execute | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    async def open(self, execute: Execute | None, digests: Sequence[str]) -> None:
        """Start to execute runs."""
        self._execute = execute

    async def put(self, run_id: str, session_id: str, digest: str) -> None:
        """Execute a run in a task. A run that is put while it is executed is executed again afterwards."""
        if self._execute is None:
            return
        if run_id in self._tasks:
            self._again.add(run_id)
            return
        task = asyncio.create_task(self._run(run_id, self._execute), name=f"hookline-{run_id}")
        self._tasks[run_id] = task
        task.add_done_callback(lambda _: self._tasks.pop(run_id, None))

    def put_in(self, run_id: str, session_id: str) -> None:
        """Return nothing: this queue is in memory. If the process ends, the run is found in its journal."""

    async def remove(self, run_id: str) -> None:
        """Do nothing: the task of a run that has ended returns at once."""

    async def _run(self, run_id: str, execute: Execute) -> None:
        await self._slots.acquire()
        try:
            while self._execute is not None:
                self._again.discard(run_id)
                try:
                    await execute(run_id)
                except Exception:
                    log.exception("the run %s could not be executed", run_id)
                if run_id not in self._again:
                    return
        finally:
            self._slots.release()

    def pause(self) -> None:
        """Begin no more runs."""
        self._execute = None

    async def close(self) -> None:
        """Wait until all tasks have ended. Runs that wait for a slot stay in the store."""
        self.pause()
        if self._tasks:
            await asyncio.wait(list(self._tasks.values()))
