"""Idempotency keys: a repeated request does not start a second run."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec

from ..stores.runs import IdempotencyKey, RunStore
from .concurrency import KeyedLocks
from .errors import IdempotencyError


class IdempotencyKeys:
    """The idempotency keys of callers. Each key belongs to one run, and is stored with it in one transaction.

    Args:
        store: stores the keys, together with the runs.
    """

    def __init__(self, store: RunStore) -> None:
        self._store = store
        self._locks = KeyedLocks()

    @asynccontextmanager
    async def key_for(
        self, owner: str, key: str, request: Any, fresh: str
    ) -> AsyncIterator[tuple[IdempotencyKey | None, str]]:
        """Yield the key to store with a new run, and the id of the run that has the key, if there is one.

        Later requests with the key wait until the block has ended, and find the run of the first one.

        Args:
            owner: the id of the caller.
            key: the key; if empty, every request starts a run.
            request: the request as JSON; it must be the same whenever the key is used.
            fresh: the id of the new run.

        Raises:
            IdempotencyError: the key was used for a different request.
            StoreError: the file cannot be used.
        """
        if not key:
            yield None, ""
            return
        digest = hashlib.sha256(msgspec.json.encode(request, order="sorted")).hexdigest()
        wanted = IdempotencyKey(owner, key, digest, fresh, time.time())
        async with self._locks.hold((owner, key)):
            found = await asyncio.to_thread(self._store.key, owner, key)
            yield wanted, "" if found is None else run_of(found, wanted)


def run_of(found: IdempotencyKey, wanted: IdempotencyKey) -> str:
    """Return the id of the run that has a key.

    Raises:
        IdempotencyError: the key was used for a different request.
    """
    if found.digest != wanted.digest:
        raise IdempotencyError("this Idempotency-Key was used for a different request: use a new key for each request")
    return found.run_id
