"""Signs of life during a run: typing, and what the agent is at."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from .._base.text import describe
from .._kernel.events import Event
from .._run.events import Sink, ToolEnded, ToolProgressed, ToolStarted
from ..stores.messages import OutboundMessage
from .protocol import Address, Channel

log = logging.getLogger("hookline")

TYPING_EVERY = 4.0
"""Seconds: platforms show it for about five."""

PROGRESS_EVERY = 1.5
"""Seconds between two changes of a message."""

MOST_LINES = 5
"""How many calls are shown: the last ones."""

Judge = Callable[[OutboundMessage], Awaitable[OutboundMessage | None]]


class Presence:
    """Shows that a run goes on, while one is inside it; its ``sinks`` are for the run's events.

    While ``resting``, nobody is at work, and no typing is shown.

    What is shown passes the hooks as every message does. It is not kept: if it gets lost, nothing is.
    """

    events = frozenset((ToolStarted, ToolProgressed, ToolEnded))

    def __init__(
        self, channel: Channel, address: Address, judge: Judge, *, typing: bool, progress: bool, reply_to: str = "",
        speaker: str = "",
    ) -> None:  # fmt: skip
        can = channel.capabilities
        self._channel: Any = channel
        self._address, self._judge, self._reply_to = address, judge, reply_to
        self._speaker = speaker
        self._typing, self._progress = typing and can.typing, progress and can.edit
        self._tasks: list[asyncio.Task[None]] = []
        self._lines: dict[str, str] = {}  # by call
        self._changed = asyncio.Event()
        self.resting = False

    @property
    def sinks(self) -> list[Sink]:
        """What the run's events are to be given to."""
        return [self] if self._progress else []

    async def __aenter__(self) -> Presence:
        if self._typing:
            self._tasks.append(asyncio.create_task(self._keep_typing()))
        if self._progress:
            self._tasks.append(asyncio.create_task(self._show()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def __call__(self, event: Event) -> None:
        """Take an event of the run."""
        lines = self._lines
        match event:
            case ToolStarted(call_id=call):
                lines.pop(call, None)  # another attempt comes last
                lines[call] = event.message or event.tool
                for old in list(lines)[:-MOST_LINES]:
                    del lines[old]
            case ToolProgressed(call_id=call) if event.message and call in lines:
                lines[call] = event.message if event.fraction is None else f"{event.message} ({event.fraction:.0%})"
            case ToolEnded(call_id=call, outcome="blocked") if call in lines:
                del lines[call]  # it was refused, and did nothing
            case _:
                return
        self._changed.set()

    async def _keep_typing(self) -> None:
        while True:
            try:
                if not self.resting:
                    await self._channel.typing(self._address)
            except Exception as error:  # noqa: BLE001 - it is only a sign
                log.debug("%s: typing: %s", self._address.channel, describe(error))
            await asyncio.sleep(TYPING_EVERY)

    async def _show(self) -> None:
        message_id = ""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._lines:
                continue
            text = "\n".join(f"· {line}" for line in self._lines.values())
            try:
                message = await self._judge(
                    OutboundMessage(text, self._reply_to, self._address.thread_id, self._speaker)
                )
                if message is None:
                    return
                if message_id:
                    await self._channel.edit(self._address, message_id, message)
                else:
                    message_id = await self._channel.send(self._address, message, key=uuid.uuid4().hex)
            except Exception as error:  # noqa: BLE001 - it is only a sign
                log.debug("%s: progress: %s", self._address.channel, describe(error))
            await asyncio.sleep(PROGRESS_EVERY)
