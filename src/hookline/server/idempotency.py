"""Idempotency keys: a repeated request does not start a second run."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from .._base.text import error_text
from ..stores.errors import StoreError
from ..stores.runs import IdempotencyKey, RunStore
from .concurrency import KeyedLocks
from .errors import ConflictError, IdempotencyError

log = logging.getLogger("hookline")


class IdempotencyKeys:
    """The idempotency keys of callers. Each key belongs to one run.

    Args:
        store: stores the keys, together with the runs.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._locks = KeyedLocks()

    @asynccontextmanager
    async def run_of(self, owner: str, key: str, request: Any, fresh: str) -> AsyncIterator[str]:
        """Reserve a key and yield the id of its run: ``fresh`` if the key is new. If the block fails, release the key.

        Args:
            owner: the id of the caller.
            key: the key; if empty, every request starts a run.
            request: the request as JSON; it must be the same whenever the key is used.
            fresh: the id of the run that will be started inside the block.

        Raises:
            IdempotencyError: the key was used for a different request.
            ConflictError: another process is about to start that run.
            StoreError: the file cannot be used.
        """
        if not key:
            yield fresh
            return
        digest = hashlib.sha256(msgspec.json.encode(request, order="sorted")).hexdigest()
        process = await asyncio.to_thread(self._store.db.leases.owner)
        wanted = IdempotencyKey(owner, key, digest, fresh, time.time(), *process)
        async with self._locks.hold((owner, key)):  # later requests find the run of the first one
            found, exists = await asyncio.to_thread(self._store.reserve, wanted)
            if found.digest != digest:
                raise IdempotencyError(
                    "this Idempotency-Key was used for a different request: use a new key for each request"
                )
            if found.run_id != fresh and not exists:
                raise ConflictError("a request with this Idempotency-Key is being handled: try again")
            try:
                yield found.run_id
            except BaseException:
                if found.run_id == fresh:
                    await self._release(fresh)
                raise

    async def _release(self, run_id: str) -> None:
        try:
            await asyncio.to_thread(self._store.release, run_id)
        except StoreError as error:
            log.error("the idempotency key of the run %s could not be released: %s", run_id, error_text(error))
