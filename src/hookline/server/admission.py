"""Store new runs, several in one transaction."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from .._base.workers import in_thread
from ..stores.errors import LockedFileError
from ..stores.runs import Accepted, NewRun, RunRecord, RunStore
from ..stores.sql import Connection

AT_ONCE = 50
"""Maximum number of runs in a transaction."""


class Admission:
    """Stores new runs. Those that come while others are being stored are stored together afterwards.

    A transaction for each of them would take a thread, which competes with the runs for the interpreter.

    Args:
        store: the store.
        limit: maximum number of unfinished runs of a caller; see :meth:`RunStore.accept`.
        max_queued: maximum number of durable runs that no process has begun.
        also: called with the runs that are stored, inside the transaction.
    """

    def __init__(
        self,
        store: RunStore,
        limit: int | None = None,
        max_queued: int | None = None,
        also: Callable[[Connection, Sequence[RunRecord]], object] | None = None,
    ) -> None:
        self._store = store
        self._limit, self._max_queued, self._also = limit, max_queued, also
        self._waiting: list[tuple[NewRun, asyncio.Future[Accepted]]] = []
        self._task: asyncio.Task[None] | None = None

    async def accept(self, new: NewRun) -> Accepted:
        """Store a run with its first event: see :meth:`RunStore.accept`.

        Raises:
            StoreError: the file cannot be used.
        """
        stored: asyncio.Future[Accepted] = asyncio.get_running_loop().create_future()
        self._waiting.append((new, stored))
        if self._task is None:
            self._task = asyncio.create_task(self._write())
        return await stored

    async def _write(self) -> None:
        while self._waiting:
            new, self._waiting = self._waiting[:AT_ONCE], self._waiting[AT_ONCE:]
            await self._store_all(new)
        self._task = None

    async def _store_all(self, new: Sequence[tuple[NewRun, asyncio.Future[Accepted]]]) -> None:
        try:
            answers = await in_thread(self._accept, [each for each, _ in new])
        except Exception as error:  # noqa: BLE001 - each caller gets it
            is_outage = isinstance(error.__cause__, self._store.db.outages) and not isinstance(error, LockedFileError)
            if len(new) > 1 and not is_outage:  # nothing is stored, and only one of them may be wrong
                for each in new:
                    await self._store_all([each])
                return
            for _, stored in new:
                if not stored.done():
                    stored.set_exception(error)
        else:
            for (_, stored), answer in zip(new, answers, strict=True):
                if not stored.done():
                    stored.set_result(answer)

    def _accept(self, new: Sequence[NewRun]) -> list[Accepted]:
        return self._store.accept(new, limit=self._limit, max_queued=self._max_queued, also=self._also)
