"""Queues of durable runs: which process executes a run next.

A queue only says that a run should be executed now. The journal decides who may execute it, so a run that is queued
twice, or by mistake, does no harm; and a run that was lost by the queue is found in the journal and queued again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

from ..stores.runs import QueuedRun, RunRecord, RunStore
from ..stores.sql import Connection
from .concurrency import RunSlots

log = logging.getLogger("hookline")

MAX_NEW = 100_000
"""Maximum number of new runs that are read from a file at once: all, or those of one caller would hide others."""

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

    async def put(self, run: QueuedRun) -> None:
        """Queue a run, unless it is queued.

        Raises:
            StoreError: the database cannot be used.
        """
        ...

    def put_in(self, db: Connection, runs: Sequence[RunRecord]) -> None:
        """Queue new runs in the transaction that stores them, as the last part of it.

        A run is held back if its caller has enough runs in the queue: :meth:`fill` queues it later. If the queue is not
        in the database, nothing is done: then :meth:`put` follows the transaction.
        """
        ...

    async def fill(self, owner: str | None = None) -> None:
        """Queue new runs that are not in the queue, and are not to be held back.

        Args:
            owner: the caller whose run was just taken from the queue; if ``None``, all callers.

        Raises:
            StoreError: the database cannot be used.
        """
        ...

    async def queued(self) -> Mapping[str, str | None]:
        """Return the runs that the queue has: for those that wait, the digest of their process; otherwise ``None``.

        Raises:
            StoreError: the database cannot be used.
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
        store: the store of runs.
        concurrency: how many runs are executed at once.
    """

    def __init__(self, store: RunStore, concurrency: int) -> None:
        self._store = store
        self._slots = RunSlots(concurrency)
        self._execute: Execute | None = None
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._again: set[str] = set()

    async def open(self, execute: Execute | None, digests: Sequence[str]) -> None:
        """Start to execute runs."""
        self._execute = execute

    async def put(self, run: QueuedRun) -> None:
        """Execute a run in a task. A run that is put while it is executed is executed again afterwards."""
        id = run.run_id
        if self._execute is None:
            return
        if id in self._tasks:
            self._again.add(id)
            return
        task = asyncio.create_task(self._run(run, self._execute), name=f"hookline-{id}")
        self._tasks[id] = task
        task.add_done_callback(lambda _: self._tasks.pop(id, None))

    def put_in(self, db: Connection, runs: Sequence[RunRecord]) -> None:
        """Do nothing: this queue is in memory. If the process ends, a run is found in its journal."""

    async def fill(self, owner: str | None = None) -> None:
        """Execute the new runs that other processes stored. None is held back: callers take turns for the slots."""
        if owner is None:
            for run in await asyncio.to_thread(self._store.to_execute, begun=False, limit=MAX_NEW):
                if run.run_id not in self._tasks:
                    await self.put(run)

    async def queued(self) -> Mapping[str, str | None]:
        """Return the runs of the tasks."""
        return dict.fromkeys(self._tasks)

    async def remove(self, run_id: str) -> None:
        """Do nothing: the task of a run that has ended returns at once."""

    async def _run(self, run: QueuedRun, execute: Execute) -> None:
        await self._slots.acquire(run.owner, begun=run.begun)
        try:
            while self._execute is not None:
                self._again.discard(run.run_id)
                try:
                    await execute(run.run_id)
                except Exception:
                    log.exception("the run %s could not be executed", run.run_id)
                if run.run_id not in self._again:
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
