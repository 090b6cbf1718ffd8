"""Following a run: its events as they come, and the calls in them that wait for somebody's yes."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from ...stores.approvals import ApprovalRow, ApprovalStore
from ...stores.runs import RunRecord, StoredEvent
from ..reading import Reader
from .mapping import Key, Story, Update, asks_in

LOOK_SECONDS = 3.0
"""How long a call that waits for approval may take to be in the file of approvals."""
MAX_CALLS = 1000
"""How many calls of a run are looked through."""
_PAUSE = 0.02

Page = tuple[Sequence[StoredEvent], Mapping[Key, ApprovalRow | None]]


class Following:
    """A run as a task, told from its first event on.

    Args:
        run: the run.
        reader: its events, from the first one on.
        approvals: where calls wait.
    """

    def __init__(self, run: RunRecord, reader: Reader, approvals: ApprovalStore) -> None:
        self.story = Story(run)
        self._reader, self._approvals = reader, approvals
        self._kept: Page | None = None

    async def begin(self) -> None:
        """Take the first event alone: with it every run begins.

        Raises:
            StoreError: a file cannot be read.
        """
        page = await self.page()
        if page is not None:
            events, rows = page
            self.story.take(events[:1], rows)
            self._kept = (events[1:], rows) if events[1:] else None

    async def catch_up(self) -> None:
        """Take all events that are there.

        Raises:
            StoreError: a file cannot be read.
        """
        while (page := await self.page(timeout=0)) is not None and page[0]:
            self.story.take(*page)

    async def more(self) -> list[Update] | None:
        """What the next events change, as soon as there are some; ``None`` after the last one.

        Raises:
            StoreError: a file cannot be read.
        """
        page = await self.page()
        return None if page is None else self.story.take(*page)

    async def settle(self) -> None:
        """Go on until the run is over, or a call waits for approval.

        Raises:
            StoreError: a file cannot be read.
        """
        while not self.story.over and not self.story.waiting and await self.more() is not None:
            pass

    async def page(self, timeout: float | None = None) -> Page | None:
        """The next events, not yet taken, and the calls in them that wait; no events if time ran out.

        Raises:
            StoreError: a file cannot be read.
        """
        kept, self._kept = self._kept, None
        if kept is not None:
            return kept
        events = await self._reader.more(timeout)
        if events is None:
            return None
        asks = asks_in(events)
        return events, await self._rows(asks) if asks else {}

    async def _rows(self, asks: Mapping[Key, str]) -> dict[Key, ApprovalRow | None]:
        """The calls that wait, of those; ``None`` for one that is not in the file: somebody else decides about it."""
        until = asyncio.get_running_loop().time() + LOOK_SECONDS
        while True:
            rows = await asyncio.to_thread(self._approvals.rows, root_id=self.story.run.id, limit=MAX_CALLS)
            named = {(row.run_id, row.call_id, row.digest): row for row in reversed(rows)}  # of a retry, the last one
            found = {key: named.get((*key, digest)) for key, digest in asks.items()}
            if None not in found.values() or asyncio.get_running_loop().time() >= until:
                break
            await asyncio.sleep(_PAUSE)
        return {key: row for key, row in found.items() if row is None or row.status == "pending"}
