"""Idempotency keys: a request that is sent again starts no second run."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from socket import gethostname
from typing import Any

import msgspec

from .._base.text import error_text
from ..stores.errors import StoreError
from ..stores.processes import process_start
from ..stores.runs import IdempotencyKey, RunStore
from .errors import ConflictError, IdempotencyError
from .turns import Turns

log = logging.getLogger("hookline")


class IdempotencyKeys:
    """The keys with which callers mark requests that they may send again; each stands for one run.

    Args:
        store: stores the keys, beside the runs.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._turns = Turns()

    @asynccontextmanager
    async def run_of(self, owner: str, key: str, asked: Any, fresh: str) -> AsyncIterator[str]:
        """The id of the run that a key stands for: ``fresh`` if it is new. If the block fails, the key is released.

        Args:
            owner: the id of the caller.
            key: the key; if empty, every request starts a run.
            asked: the request as JSON; it must be the same whenever the key is used.
            fresh: the id of the run that will be started inside the block.

        Raises:
            IdempotencyError: the key was used for a different request.
            ConflictError: another process is about to start that run.
            StoreError: the file cannot be used.
        """
        if not key:
            yield fresh
            return
        digest = hashlib.sha256(msgspec.json.encode(asked, order="sorted")).hexdigest()
        wanted = IdempotencyKey(
            owner, key, digest, fresh, time.time(), gethostname(), os.getpid(), process_start(os.getpid())
        )
        async with self._turns.of((owner, key)):  # later requests find the run of the first one
            found, exists = await asyncio.to_thread(self._store.reserve, wanted)
            if found.digest != digest:
                raise IdempotencyError("this Idempotency-Key was used for another request: take a new one for each")
            if found.run_id != fresh and not exists:
                raise ConflictError("a request with this Idempotency-Key is being answered: try again")
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
            log.error("the key of the run %s stays taken: %s", run_id, error_text(error))
