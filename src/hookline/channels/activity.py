"""Typing indicator, tool calls and the reply as it is written, shown in a conversation while a run is active."""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from .._base.text import describe
from .._kernel.events import Event
from .._run.events import Discarded, ModelReplied, Sink, TextDelta
from ..stores.messages import OutboundMessage
from .protocol import Address, Channel, Draft, Step
from .steps import EVENTS, StepCollector

log = logging.getLogger("hookline")

TYPING_INTERVAL = 4.0
"""Seconds between two typing signals. Platforms show one for about five seconds."""

PROGRESS_INTERVAL = 1.5
"""Seconds between two edits of the progress message."""

STEPS_INTERVAL = 0.2
"""Seconds between two changes of the steps, in channels that show steps."""

MAX_LINES = 5
"""Maximum number of calls in the progress message; the latest calls are shown."""

_TEXT = frozenset((TextDelta, Discarded, ModelReplied))


class ActivityIndicator:
    """Show in a conversation that a run is active, inside an ``async with`` block.

    The tool calls are shown as steps, if the channel can, and otherwise in a message that is edited. Their texts pass
    the hooks like every message. They are not stored, because losing them does no harm. Set ``paused`` to show no
    typing.

    Args:
        channel: the channel of the conversation.
        address: the conversation.
        apply_hooks: passes a message through the hooks; ``None`` if it must not be sent.
        typing: whether to show typing, if the channel can.
        progress: whether to show tool calls, if the channel can show steps or edit messages.
        stream: whether to show the reply while it is written, if the channel can.
        reply_to: the message that is being answered.
        speaker: the display name of the agent.
    """

    def __init__(
        self,
        channel: Channel,
        address: Address,
        apply_hooks: Callable[[OutboundMessage], Awaitable[OutboundMessage | None]],
        *,
        typing: bool,
        progress: bool,
        stream: bool = False,
        reply_to: str = "",
        speaker: str = "",
    ) -> None:
        self._channel: Any = channel
        self._address = address
        self._apply_hooks = apply_hooks
        self._reply_to = reply_to
        self._speaker = speaker
        self._typing = typing and channel.capabilities.typing
        self._has_steps = hasattr(channel, "show_steps")
        self._progress = progress and (self._has_steps or channel.capabilities.edit)
        self._stream = stream and hasattr(channel, "draft_changed")
        self.events = (EVENTS if self._progress else frozenset()) | (_TEXT if self._stream else frozenset())
        self._tasks: list[asyncio.Task[None]] = []
        self._collector = StepCollector()
        self._allowed: dict[str, str] = {}  # texts as the hooks changed them
        self._key = uuid.uuid4().hex
        self._message_id = ""
        self._text = ""
        self._changed = asyncio.Event()
        self._showing: asyncio.Task[None] | None = None
        self._suppressed = False
        self.paused = False

    @property
    def sinks(self) -> list[Sink]:
        """The event sinks to pass to the run."""
        return [self] if self.events else []

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
        if self._showing is not None:
            await asyncio.wait([self._showing])  # an older state must not be stored after the last one
        if self._has_steps and self._changed.is_set():
            await self._show()  # how the last calls ended

    def __call__(self, event: Event) -> None:
        """Receive an event of the run."""
        match event:
            case TextDelta(purpose="step"):
                self._show_draft(self._text + event.text)
            case Discarded(purpose="step"):
                self._show_draft("")
            case ModelReplied(purpose="step") if event.tool_calls:
                self._show_draft("")  # it was not the reply
        if self._progress and self._collector.take(event):
            self._changed.set()

    def _show_draft(self, text: str) -> None:
        if text == self._text or not self._stream:
            return
        self._text = text
        try:
            self._channel.draft_changed(self._address, Draft(self._reply_to, self._speaker, text))
        except Exception as error:  # noqa: BLE001 - the run must not fail because of an indicator
            log.debug("%s: showing the reply failed: %s", self._address.channel, describe(error))

    async def _show_typing(self) -> None:
        while True:
            try:
                if not self.paused:
                    await self._channel.typing(self._address)
            except Exception as error:  # noqa: BLE001 - as above
                log.debug("%s: typing failed: %s", self._address.channel, describe(error))
            await asyncio.sleep(TYPING_INTERVAL)

    async def _show_progress(self) -> None:
        while True:
            await self._changed.wait()
            if self._has_steps:
                self._showing = asyncio.create_task(self._show())
                await asyncio.shield(self._showing)
            else:
                await self._show()
            await asyncio.sleep(STEPS_INTERVAL if self._has_steps else PROGRESS_INTERVAL)

    async def _show(self) -> None:
        self._changed.clear()
        try:
            if not self._suppressed:
                await (self._show_steps() if self._has_steps else self._edit_progress())
        except Exception as error:  # noqa: BLE001 - as above
            log.debug("%s: showing progress failed: %s", self._address.channel, describe(error))

    async def _show_steps(self) -> None:
        steps = [await self._checked(step) for step in self._collector.steps]
        if not self._suppressed:
            await self._channel.show_steps(self._address, self._key, self._reply_to, self._speaker, steps)

    async def _checked(self, step: Step) -> Step:
        """Return a step with texts that passed the hooks."""
        verdicts = [each.replace(reason=await self._allow(each.reason)) for each in step.verdicts]
        return step.replace(text=await self._allow(step.text), verdicts=tuple(verdicts))

    async def _allow(self, text: str) -> str:
        if text and text not in self._allowed:
            message = await self._apply_hooks(self._message(text))
            self._suppressed = self._suppressed or message is None
            self._allowed[text] = "" if message is None else message.text
        return self._allowed.get(text, "")

    def _message(self, text: str) -> OutboundMessage:
        return OutboundMessage(text, self._reply_to, self._address.thread_id, self._speaker)

    async def _edit_progress(self) -> None:
        # A blocked call did nothing, and a call that waits is shown where people decide about it.
        lines = [step.text for step in self._collector.steps if step.text and step.state != "blocked"]
        if not lines:
            return
        message = await self._apply_hooks(self._message("\n".join(f"· {line}" for line in lines[-MAX_LINES:])))
        if message is None:
            self._suppressed = True
        elif self._message_id:
            await self._channel.edit(self._address, self._message_id, message)
        else:
            self._message_id = await self._channel.send(self._address, message, key=self._key)
