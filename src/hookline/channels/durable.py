"""Durable runs of a gateway: the run that answers a message has a journal, so another process can continue it.

The mailbox says which process answers a message, and the journal what of the answer has been done (DESIGN 6.17). The
head of the journal has the text of the message, its files and the conversation. A message that was steered into the
run is found by its text among the messages that follow, so it is not answered twice. Requests for approval have
tokens that follow from the approval: the next process does not show them again, and accepts a decision at once.
Workers do not execute these runs, because the channel shows typing, progress and questions.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, NamedTuple

import msgspec

from .._base.frozen import encoded
from .._base.text import error_text
from .._base.workers import in_thread
from .._run.durable import DurableRun
from .._run.journal import Claim, RunHead, RunHeldError, StoredRun, with_contents
from .._run.session import Session
from ..stores.errors import StoreError
from ..stores.halts import HaltStore
from ..stores.mailbox import InboxItem
from ..stores.messages import OutboundMessage
from ..stores.pinning import digest_of, version_of
from ..stores.runs import RunStore
from ..stores.sessions import SessionRecord
from .outbox import retry_store

log = logging.getLogger("hookline")

HELD_SECONDS = 0.5
"""Polling interval while the process that had the conversation before holds the lease of its run."""
PRUNE_SECONDS = 3600.0
"""Interval in seconds at which old journals are deleted."""
PREFIX = "msg_"
"""The beginning of the ids of these runs."""


class MessageHead(RunHead, frozen=True, omit_defaults=True):
    """The input of the run that answers a message. ``conversation`` is the session with which it began, as JSON."""

    conversation: str = ""

    def session(self) -> Session:
        """Return the conversation as it was when the run began.

        Raises:
            StoreError: it cannot be read.
        """
        where = f"the conversation in the journal of run {self.ids.run_id}"
        return SessionRecord.read(self.conversation.encode(), where, "send /stop").session(None)


class DurableOutcome(msgspec.Struct, frozen=True):
    """The end of such a run: its replies, and the numbers of the messages that they answer besides the first."""

    replies: tuple[OutboundMessage, ...] = ()
    steered: tuple[int, ...] = ()


class ClaimedRun(NamedTuple):
    """A run that this process executes. ``is_new`` is true if this process has created it."""

    durable: DurableRun
    head: MessageHead
    is_new: bool


_heads = msgspec.json.Decoder(MessageHead)
_outcomes = msgspec.json.Decoder(DurableOutcome)


def run_id_of(item: InboxItem) -> str:
    """Return the id of the run that answers a message: the same in every process."""
    given = msgspec.json.encode([item.key, item.message.message_id, item.seq, item.at])
    return f"{PREFIX}{hashlib.sha256(given).hexdigest()[:24]}"


def is_of_gateway(run: StoredRun) -> bool:
    """Whether a durable run answers a message of a gateway, which continues it."""
    return run.run_id.startswith(PREFIX) and bool(_heads.decode(run.start).conversation)


class Journals:
    """The journals of the runs that answer messages.

    Args:
        store: the store of runs, events and journals.
        answerer: the agent or roster of the gateway. A run is continued only where it behaves the same.
        keep_days: how many days the journals of finished runs are kept.
    """

    def __init__(self, store: RunStore, answerer: Any, keep_days: float) -> None:
        self._store = store
        self._answerer = answerer
        self._keep_days = keep_days
        self._pruned = float("-inf")

    async def open(self) -> None:
        """Say that this process executes runs, so that others can leave those with its version to it.

        Raises:
            StoreError: the database cannot be used.
        """
        version = version_of(self._answerer)
        await in_thread(self._store.workers.register, {version.digest: version.parts})

    async def close(self) -> None:
        """Say that this process does not execute runs any more."""
        try:
            await in_thread(self._store.workers.unregister)
        except StoreError as error:
            log.error("%s", error_text(error))

    @property
    def halts(self) -> HaltStore:
        """The stop switch of the runs."""
        return self._store.halts

    async def is_begun(self, item: InboxItem) -> bool:
        """Whether the run that answers a message has a journal."""
        return await retry_store(in_thread, self._store.journal.get, run_id_of(item)) is not None

    async def is_elsewhere(self, digest: str) -> bool:
        """Whether another running process has the version with this digest."""
        return digest in await retry_store(in_thread, self._store.workers.digests)

    async def claim(self, item: InboxItem, head: Callable[[], Awaitable[MessageHead]]) -> ClaimedRun | DurableOutcome:
        """Take the run that answers a message, or return its outcome if it has ended. Wait while it is held.

        Args:
            item: the message.
            head: makes the input of the run, if it does not exist yet.

        Raises:
            JournalFormatError: the journal of the run has another format.
            RunPinnedError: the run was started with other hooks, instructions or tools.
        """
        stored = await retry_store(in_thread, self._store.journal.get, run_id_of(item))
        start = b"" if stored is not None else encoded(await head())
        return await self._claim(item, start, digest_of(self._answerer))

    async def end(self, item: InboxItem, status: str, outcome: DurableOutcome) -> DurableOutcome:
        """End a run without executing it; return its outcome, which is another one if the run had ended before."""
        claimed = await self._claim(item, b"{}", "", to_end=True)
        if isinstance(claimed, DurableOutcome):
            return claimed
        async with claimed.durable.opened():
            await claimed.durable.finish(status, encoded(outcome))
        return outcome

    async def _claim(
        self, item: InboxItem, start: bytes, digest: str, *, to_end: bool = False
    ) -> ClaimedRun | DurableOutcome:
        run_id, journal = run_id_of(item), self._store.journal
        name = getattr(self._answerer, "name", "")
        take = partial(journal.claim, run_id, name, start, digest, to_end=to_end)
        while True:
            began = time.monotonic()
            try:
                claim: Claim = await retry_store(in_thread, take)
            except RunHeldError:  # its process has lost the conversation, or has just ended
                await asyncio.sleep(HELD_SECONDS)
                continue
            if claim.run.is_over:
                return _outcomes.decode(claim.run.result or b"{}")
            durable = DurableRun(journal, claim, began)
            return ClaimedRun(durable, with_contents(_heads, claim.run.start), claim.run.start == start)

    async def prune(self) -> None:
        """Delete old journals, once an hour."""
        if time.monotonic() < self._pruned + PRUNE_SECONDS:
            return
        self._pruned = time.monotonic()
        try:
            await in_thread(self._store.journal.prune, self._keep_days, PREFIX)
        except StoreError as error:
            log.error("old journals could not be deleted: %s", error_text(error))
