"""Run the agent for messages and turn the results into replies."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from .._base.attachment import Attachment
from .._base.text import describe, error_text
from .._kernel.state import AgentResult
from .._kernel.values import Message
from .._run.context import AgentContext
from .._run.session import Session
from .._run.termination import RunFailedError
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError, Mailbox
from ..stores.messages import InboundMessage, OutboundMessage
from . import notices
from .activity import ActivityIndicator
from .approvals import Approvals
from .conversations import Conversations, address_of, label_of
from .files import FileReader
from .options import GatewayOptions
from .outbox import Outbox, retry_store
from .protocol import Answerer, Channel
from .queues import ConversationQueues

log = logging.getLogger("hookline")

MAX_TRIES = 3
"""Maximum number of runs that are started for one message if the process ends during each of them."""

MAX_FOLLOW_UPS = 8
"""Maximum number of follow-up runs after one message, for example after handoffs."""

CommandCall = Callable[[Session], Awaitable[str]]
"""A command that waits in the queue like a message; it returns the reply."""

Replies = list[str | OutboundMessage]


class _ActiveItem:
    """The item that a conversation is processing, and its run."""

    def __init__(self, item: InboxItem) -> None:
        self.item = item
        self.run: Any = None
        self.steered: list[tuple[InboxItem, str]] = []  # with the texts before the notes about their files
        self.stopped = False  # by /stop
        self.interrupted = False  # by a shutdown: the message is answered later

    @property
    def answered(self) -> list[InboxItem]:
        """The message, and the messages that were steered into its run."""
        return [self.item, *(item for item, _ in self.steered)]


class Runner:
    """Run the agent for messages: one at a time per conversation, and a limited number in total."""

    def __init__(
        self,
        answerer: Answerer,
        conversations: Conversations,
        mailbox: Mailbox,
        outbox: Outbox,
        approvals: Approvals,
        channels: Mapping[str, Channel],
        options: GatewayOptions,
        context: Callable[[Session], AgentContext] | None,
        metadata: Mapping[str, Any],
    ) -> None:
        self._answerer = answerer
        self._conversations = conversations
        self._mailbox = mailbox
        self._outbox = outbox
        self._approvals = approvals
        self._channels = channels
        self._options = options
        self._context = context
        self._metadata = metadata
        self._follow_up: Any = getattr(answerer, "follow_up", None)
        self._active: dict[str, _ActiveItem] = {}
        self._closing = False
        self._winding_down = False
        self._slot_tasks: set[asyncio.Task[None]] = set()
        self.queues: ConversationQueues[tuple[InboxItem, str | CommandCall]] = ConversationQueues(
            self._process, limit=options.max_concurrent, changed=self._notify_channel
        )

    def is_full(self, key: str) -> bool:
        """Whether the queue of all conversations, or of this one, has reached its limit."""
        max_waiting, max_queued = self._options.max_waiting, self._options.max_queued
        if max_waiting is not None and self.queues.waiting >= max_waiting:
            return True
        return max_queued is not None and self.queues.waiting_in(key) >= max_queued

    def has_runs(self, key: str) -> bool:
        """Whether a conversation has an active or waiting run."""
        return any(isinstance(work, str) for _, work in self.queues.items(key))

    def put(self, item: InboxItem, work: str | CommandCall) -> None:
        """Queue a run with this text, or a command."""
        self.queues.put(item.key, (item, work))

    async def steer(self, item: InboxItem, text: str) -> bool:
        """Add a message to the active run of its conversation. Return false if no run will read it."""
        if not self._can_steer(item.key):
            return False
        session = await self._conversations.session(item.key, item.message.platform)
        content, files = await self._with_files(item, session, text)
        active = self._active.get(item.key)  # the run may have ended while the files were read
        if active is None or not self._can_steer(item.key) or not active.run.steer(content, files):
            return False
        active.steered.append((item, text))
        return True

    def _can_steer(self, key: str) -> bool:
        active = self._active.get(key)
        return active is not None and active.run is not None and not active.stopped and not self.queues.waiting_in(key)

    async def _with_files(self, item: InboxItem, session: Session, text: str) -> tuple[str, list[Attachment]]:
        """Read the files of a message that the model takes. Return them, and the text with a note about the others."""
        channel = self._channels.get(item.channel)
        if not item.message.files or channel is None:
            return text, []
        reader = FileReader(channel, self._conversations.agent(session))
        files, notes = await reader.read(item.message.files)
        return "\n".join([text, *notes]), files

    async def stop_run(self, item: InboxItem, *, all: bool) -> None:
        """Carry out ``/stop``: cancel the run of the conversation, and with ``all`` drop its waiting messages."""
        key = item.key
        active = self._active.get(key)
        was_running = active is not None and not active.stopped
        if active is not None:
            active.stopped = True
            if active.run is not None:
                active.run.cancel("the user sent /stop")
        dropped = [waiting for waiting, _ in self.queues.clear(key)] if all else []
        text = notices.stopped(was_running, self.queues.waiting_in(key), len(dropped))
        await self._reply([*dropped, item], [text])

    def wind_down(self) -> None:
        """Start no more runs. Interrupt runs that wait for an approval, since no more replies are read."""
        self._winding_down = True
        self.queues.pause()
        self._interrupt([key for key in self._active if self._approvals.is_pending(key)], "the gateway is stopping")

    async def close(self) -> None:
        """Interrupt all runs. Their messages stay in the mailbox for the next start."""
        self._closing = True
        self._interrupt(list(self._active), "the gateway is stopping")
        await self.queues.wait_until_idle()

    async def cancel(self, keys: Sequence[str], timeout: float) -> None:
        """Interrupt the runs of these conversations. Their messages stay in the mailbox."""
        self._interrupt(keys, "the channel was removed")
        await self.queues.cancel(keys, timeout)

    def _interrupt(self, keys: Iterable[str], reason: str) -> None:
        for active in [self._active[key] for key in keys if key in self._active]:
            active.interrupted = True
            if active.run is not None:
                active.run.cancel(reason)

    def _notify_channel(self, key: str) -> None:
        """Notify the channel of the message that is being answered and the number of waiting messages."""
        address = address_of(key)
        callback: Any = getattr(self._channels.get(address.channel), "activity_changed", None)
        if callback is None or not self._options.typing:
            return
        current = self.queues.current(key)
        answering = current[0].message.message_id if current is not None and isinstance(current[1], str) else ""
        try:
            callback(address, answering, self.queues.waiting_in(key))
        except Exception as error:  # noqa: BLE001 - the run must not fail because of an indicator
            log.debug("%s: activity_changed failed: %s", address.channel, describe(error))

    async def _process(self, key: str, queued: tuple[InboxItem, str | CommandCall]) -> None:
        item, work = queued
        active = self._active[key] = _ActiveItem(item)
        active.interrupted = self._closing
        try:
            session = await self._conversations.session(key, item.message.platform)
            if isinstance(work, str):
                replies = await self._answer(active, session, work)
            else:
                replies = await self._run_command(item, session, work)
            if replies is not None:
                await self._outbox.reply(key, item.channel, active.answered, replies)
        except LeaseLostError as error:
            log.warning("%s", error_text(error))
            self._conversations.forget(key)
            self.queues.put_first(key, active.steered)  # their own lease is checked when their turn comes
        except StoreError as error:
            log.error("no answer in %s: %s", label_of(key), error_text(error))
            await self._reply(active.answered, [notices.FAILED])
        except Exception:
            log.exception("no answer in %s", label_of(key))
            await self._reply(active.answered, [notices.FAILED])
        finally:
            del self._active[key]

    async def _reply(self, answered: list[InboxItem], texts: list[str]) -> None:
        with suppress(LeaseLostError):
            await self._outbox.reply(answered[0].key, answered[0].channel, answered, texts)

    async def _run_command(self, item: InboxItem, session: Session, command: CommandCall) -> Replies:
        if item.tries >= MAX_TRIES:
            log.error("%s: giving up: the process ended %d times during a command", label_of(item.key), item.tries)
            return [notices.COMMAND_FAILED]
        await retry_store(self._mailbox.begin_attempt, item, 0)
        try:
            return [await command(session)]
        except Exception as error:  # noqa: BLE001 - a failing command must not end the conversation
            log.error("a command failed: %s", describe(error))
            return [notices.COMMAND_FAILED]

    async def _answer(self, active: _ActiveItem, session: Session, text: str) -> Replies | None:
        """Run the agent and return its replies; ``None`` if the message must stay in the mailbox."""
        item = active.item
        if item.base is not None and (finished := _finished_answer(session, item, text)):
            log.info("%s: the run had finished when the process ended: its answer is sent", label_of(item.key))
            return [OutboundMessage(finished, speaker=self._conversations.speaker(session))]
        if item.tries >= MAX_TRIES:
            log.error("%s: giving up: the process ended %d times during the run", label_of(item.key), item.tries)
            return [notices.FAILED]
        if active.stopped:
            return []
        await retry_store(self._mailbox.begin_attempt, item, len(session.messages))
        replies: Replies = []
        task, files = await self._with_files(item, session, text)
        for _ in range(1 + MAX_FOLLOW_UPS):
            speaker = self._conversations.speaker(session)  # the run may change the speaker
            result = await self._run(active, session, task, files, speaker)
            files = []  # they belong to the first run
            if active.interrupted and (result is None or result.status == "cancelled"):
                self._conversations.forget(item.key)  # discards the messages of the interrupted run
                with suppress(StoreError):
                    await self._mailbox.discard_attempt(item)
                return None
            if reply := _reply_text(result, active.stopped):
                replies.append(OutboundMessage(reply, speaker=speaker))
            task = await self._next_task(session, result)
            if not task or active.stopped:
                break
        late = self._take_unanswered(active, session)
        await retry_store(self._conversations.save, session)
        if late:
            self.queues.put_first(item.key, late)
        return replies or ([] if active.stopped else [notices.NO_ANSWER])

    async def _run(
        self, active: _ActiveItem, session: Session, text: str, files: list[Attachment], speaker: str
    ) -> AgentResult[Any] | None:
        item = active.item
        message, channel = item.message, self._channels.get(item.channel)
        if channel is None:
            active.interrupted = True
            return None
        indicator = ActivityIndicator(
            channel,
            address_of(item.key),
            partial(self._outbox.apply_hooks, item.key),
            typing=self._options.typing,
            progress=self._options.progress,
            reply_to=message.message_id,
            speaker=speaker,
        )
        approvals = self._approvals.for_run(
            item, partial(self._set_waiting, active, indicator), lambda: active.interrupted
        )
        hooks = {} if approvals is None else {"hooks": [approvals.hook]}
        ctx = {} if self._context is None else {"ctx": self._context(session)}
        async with indicator:
            try:
                active.run = self._answerer.start(
                    text,
                    session=session,
                    metadata={**self._metadata, **_message_metadata(item.channel, message)},
                    correlation_id=message.message_id,
                    sinks=indicator.sinks,
                    **({"attachments": files} if files else {}),
                    **ctx,
                    **hooks,
                )
                if approvals is not None:
                    approvals.hook.root_id = active.run.id
                if active.stopped or active.interrupted:
                    active.run.cancel("stopped before it began")
                result: AgentResult[Any] = await active.run.result()
            except RunFailedError as failure:
                log.error("%s: the run failed: %s", label_of(item.key), error_text(failure))
                result = failure.result
            except Exception:
                log.exception("%s: the run could not be started", label_of(item.key))
                return None
            finally:
                active.run = None
                if approvals is not None:
                    await approvals.wait_closed()
        return result

    def _set_waiting(self, active: _ActiveItem, indicator: ActivityIndicator, waiting: bool) -> None:
        """Free the slot of a run while it waits for an approval, and stop showing typing."""
        indicator.paused = waiting
        if waiting:
            self.queues.release_slot()
            if self._winding_down:
                self._interrupt([active.item.key], "the gateway is stopping")
            return
        task = asyncio.create_task(self.queues.reacquire_slot())
        self._slot_tasks.add(task)
        task.add_done_callback(self._slot_tasks.discard)

    async def _next_task(self, session: Session, result: AgentResult[Any] | None) -> str:
        if self._follow_up is None or result is None:
            return ""
        try:
            task = self._follow_up(session, result)
            task = await task if inspect.isawaitable(task) else task
        except Exception:  # the replies so far must still be sent
            log.exception("follow_up failed")
            return ""
        return str(task or "")

    def _take_unanswered(self, active: _ActiveItem, session: Session) -> list[tuple[InboxItem, str | CommandCall]]:
        """Remove steered messages that came too late for the run from its transcript, and return them."""
        messages, steered = list(session.messages), active.steered
        while steered and messages and _is_message(messages[-1], *steered[-1]):
            messages.pop()
            steered = steered[:-1]
        unanswered = active.steered[len(steered) :]
        if not unanswered or active.stopped:
            return []
        session.messages, active.steered = tuple(messages), steered
        return list(unanswered)


def _reply_text(result: AgentResult[Any] | None, stopped: bool) -> str:
    """Return the reply for the result of a run."""
    if stopped and (result is None or result.status == "cancelled"):
        return ""  # /stop has its own reply
    if result is None or result.status == "failed":
        return notices.FAILED
    if result.status == "cancelled":
        return notices.CANCELLED
    if result.status == "stopped":
        return f"{result.reply}\n\n{notices.STOPPED_EARLY}".strip()
    return result.reply


def _is_message(message: Message, item: InboxItem, text: str) -> bool:
    """Whether a message of a transcript is this received one. Notes about its files may follow the text."""
    if not item.message.files:
        return message == Message("user", text)
    return message.role == "user" and (message.content == text or message.content.startswith(f"{text}\n"))


def _finished_answer(session: Session, item: InboxItem, text: str) -> str:
    """Return the answer of a run that had finished and was saved when its process ended."""
    since = session.messages[item.base :]
    if not since or not _is_message(since[0], item, text):
        return ""
    last = since[-1]
    return last.content if last.role == "assistant" and not last.tool_calls else ""


def _message_metadata(channel: str, message: InboundMessage) -> dict[str, Any]:
    return {
        "channel": channel,
        "platform": message.platform,
        "chat_id": message.chat_id,
        "sender": message.sender,
        "thread_id": message.thread_id,
        "bot": message.bot,
        "direct": message.direct,
    }
