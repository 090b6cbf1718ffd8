"""Typing indicator and tool progress, shown in a conversation while a run is active."""

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

TYPING_INTERVAL = 4.0
"""Seconds between two typing signals. Platforms show one for about five seconds."""

PROGRESS_INTERVAL = 1.5
"""Seconds between two edits of the progress message."""

MAX_LINES = 5
"""Maximum number of calls in the progress message; the latest calls are shown."""


class ActivityIndicator:
    """Show in a conversation that a run is active, inside an ``async with`` block.

    The progress message passes the hooks like every message. It is not stored, because losing it does no harm. Set
    ``paused`` to show no typing.

    Args:
        channel: the channel of the conversation.
        address: the conversation.
        apply_hooks: passes a message through the hooks; ``None`` if it must not be sent.
        typing: whether to show typing, if the channel can.
        progress: whether to show tool calls, if the channel can edit messages.
        reply_to: the message that is being answered.
        speaker: the display name of the agent.
    """

    events = frozenset((ToolStarted, ToolProgressed, ToolEnded))

    def __init__(
        self,
        channel: Channel,
        address: Address,
        apply_hooks: Callable[[OutboundMessage], Awaitable[OutboundMessage | None]],
        *,
        typing: bool,
        progress: bool,
        reply_to: str = "",
        speaker: str = "",
    ) -> None:
        self._channel: Any = channel
        self._address = address
        self._apply_hooks = apply_hooks
        self._reply_to = reply_to
        self._speaker = speaker
        self._typing = typing and channel.capabilities.typing
        self._progress = progress and channel.capabilities.edit
        self._tasks: list[asyncio.Task[None]] = []
        self._lines: dict[str, str] = {}  # by call id
        self._changed = asyncio.Event()
        self.paused = False

    @property
    def sinks(self) -> list[Sink]:
        """The event sinks to pass to the run."""
        return [self] if self._progress else []

    async def __aenter__(self) -> ActivityIndicator:
        if self._typing:
            self._tasks.append(asyncio.create_task(self._show_typing()))
        if self._progress:
            self._tasks.append(asyncio.create_task(self._show_progress()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    def __call__(self, event: Event) -> None:
        """Receive an event of the run."""
        lines = self._lines
        match event:
            case ToolStarted(call_id=call):
                lines.pop(call, None)  # a repeated call moves to the end
                lines[call] = event.message or event.tool
                for old in list(lines)[:-MAX_LINES]:
                    del lines[old]
            case ToolProgressed(call_id=call) if event.message and call in lines:
                lines[call] = event.message if event.fraction is None else f"{event.message} ({event.fraction:.0%})"
            case ToolEnded(call_id=call, outcome="blocked") if call in lines:
                del lines[call]  # a blocked call did nothing
            case _:
                return
        self._changed.set()

    async def _show_typing(self) -> None:
        while True:
            try:
                if not self.paused:
                    await self._channel.typing(self._address)
            except Exception as error:  # noqa: BLE001 - the run must not fail because of an indicator
                log.debug("%s: typing failed: %s", self._address.channel, describe(error))
            await asyncio.sleep(TYPING_INTERVAL)

    async def _show_progress(self) -> None:
        message_id = ""
        while True:
            await self._changed.wait()
            self._changed.clear()
            if not self._lines:
                continue
            text = "\n".join(f"· {line}" for line in self._lines.values())
            try:
                message = await self._apply_hooks(
                    OutboundMessage(text, self._reply_to, self._address.thread_id, self._speaker)
                )
                if message is None:
                    return
                if message_id:
                    await self._channel.edit(self._address, message_id, message)
                else:
                    message_id = await self._channel.send(self._address, message, key=uuid.uuid4().hex)
            except Exception as error:  # noqa: BLE001 - as above
                log.debug("%s: showing progress failed: %s", self._address.channel, describe(error))
            await asyncio.sleep(PROGRESS_INTERVAL)
