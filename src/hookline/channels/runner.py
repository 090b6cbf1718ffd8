"""From a message to its answer: the run, and what becomes of it."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

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
from .activity import Presence
from .approvals import Approving
from .conversations import Conversations, address_of, place
from .options import GatewayOptions
from .outbox import Postman, insist
from .protocol import Answerer, Channel
from .queues import Lanes

log = logging.getLogger("hookline")

MAX_TRIES = 3
"""How often a run for one message is begun, if its program ends each time."""

MAX_FOLLOW_UPS = 8
"""How many runs may follow one another without anybody having said something."""

Order = Callable[[Session], Awaitable[str]]
"""Something other than a run that is to be done in the order of the messages; it gives the answer."""


class _Active:
    """What is going on in a conversation."""

    def __init__(self, letter: InboxItem) -> None:
        self.letter = letter
        self.run: Any = None
        self.steered: list[tuple[InboxItem, str]] = []
        self.stopped = self.broken_off = False

    @property
    def heard(self) -> list[InboxItem]:
        """The letters that were put into the run."""
        return [letter for letter, _ in self.steered]


class Answering:
    """Runs the agent for messages, those of a conversation one after another, so many at once."""

    def __init__(
        self, answerer: Answerer, conversations: Conversations, mailbox: Mailbox, postman: Postman,
        approving: Approving, channels: Mapping[str, Channel], options: GatewayOptions,
        context: Callable[[Session], AgentContext] | None, metadata: Mapping[str, Any],
    ) -> None:  # fmt: skip
        self._answerer, self._conversations, self._mailbox, self._postman = answerer, conversations, mailbox, postman
        self._channels, self._options, self._context = channels, options, context
        self._metadata, self._approving = metadata, approving
        self._follow_up: Any = getattr(answerer, "follow_up", None)
        self._active: dict[str, _Active] = {}
        self._closing = self._winding_down = False
        self._returning: set[asyncio.Task[None]] = set()
        self.lanes: Lanes[tuple[InboxItem, str | Order]] = Lanes(
            self._work, limit=options.max_concurrent, changed=self._changed
        )

    def is_full(self, key: str) -> bool:
        """Whether a further message would be one too many."""
        most, queued = self._options.max_waiting, self._options.max_queued
        if most is not None and self.lanes.waiting >= most:
            return True
        return queued is not None and self.lanes.waiting_in(key) >= queued

    def is_at_work(self, key: str) -> bool:
        """Whether a run goes on in a conversation, or waits."""
        return any(isinstance(what, str) for _, what in self.lanes.all_in(key))

    def _changed(self, key: str) -> None:
        """Tell the channel what goes on in a conversation, if it wants to know."""
        address = address_of(key)
        told: Any = getattr(self._channels.get(address.channel), "at_work", None)
        if told is None or not self._options.typing:
            return
        busy = self.lanes.busy_in(key)
        answered = busy[0].message.message_id if busy is not None and isinstance(busy[1], str) else ""
        try:
            told(address, answered, self.lanes.waiting_in(key))
        except Exception as error:  # noqa: BLE001 - it is only a sign
            log.debug("%s: at work: %s", address.channel, describe(error))

    def put(self, letter: InboxItem, what: str | Order) -> None:
        """Run the agent with this text, or carry out an order, when it is this letter's turn."""
        self.lanes.put(letter.key, (letter, what))

    def steer(self, letter: InboxItem, text: str) -> bool:
        """Put a message into the run of its conversation; false if there is none, or it is too late."""
        active = self._active.get(letter.key)
        if active is None or active.run is None or active.stopped or self.lanes.waiting_in(letter.key):
            return False
        if not active.run.steer(text):
            return False
        active.steered.append((letter, text))
        return True

    async def stop_run(self, letter: InboxItem, *, all: bool) -> None:
        """Carry out ``/stop``: the run of the conversation is cancelled; with ``all``, what waits is dropped too."""
        key = letter.key
        active = self._active.get(key)
        was_running = active is not None and not active.stopped
        if active is not None:
            active.stopped = True
            if active.run is not None:
                active.run.cancel("the user said /stop")
        dropped = [waiting for waiting, _ in self.lanes.drop(key)] if all else []
        text = notices.stopped(was_running, self.lanes.waiting_in(key), len(dropped))
        await self._reply([*dropped, letter], [text])

    def wind_down(self) -> None:
        """Begin nothing more. Runs that wait for approval are broken off: who would approve is not heard any more."""
        self._winding_down = True
        self.lanes.pause()
        self._break_off([key for key in self._active if self._approving.waits(key)], "the gateway stops")

    async def close(self) -> None:
        """Break off the runs: their messages stay in the mailbox, as if they had not begun."""
        self._closing = True
        self._break_off(list(self._active), "the gateway stops")
        await self.lanes.settled()

    async def let_go(self, keys: Sequence[str], seconds: float) -> None:
        """The same in these conversations alone; what waits there stays in the mailbox too."""
        self._break_off(keys, "the channel is gone")
        await self.lanes.let_go(keys, seconds)

    def _break_off(self, keys: Iterable[str], why: str) -> None:
        for active in [self._active[key] for key in keys if key in self._active]:
            active.broken_off = True
            if active.run is not None:
                active.run.cancel(why)

    async def _work(self, key: str, item: tuple[InboxItem, str | Order]) -> None:
        letter, what = item
        active = self._active[key] = _Active(letter)
        active.broken_off = self._closing
        try:
            session = await self._conversations.session(key, letter.message.platform)
            doing = self._answer(active, session, what) if isinstance(what, str) else self._obey(letter, session, what)
            texts = await doing
            if texts is not None:
                await self._postman.reply(key, letter.channel, [letter, *active.heard], texts)
        except LeaseLostError as error:
            log.warning("%s", error_text(error))
            self._conversations.forget(key)
            self.lanes.put_first(key, active.steered)  # each finds out for itself whose it is
        except StoreError as error:
            log.error("no answer in %s: %s", place(key), error_text(error))
            await self._reply([letter, *active.heard], [notices.FAILED])
        except Exception:
            log.exception("no answer in %s", place(key))
            await self._reply([letter, *active.heard], [notices.FAILED])
        finally:
            del self._active[key]

    async def _reply(self, letters: list[InboxItem], texts: list[str]) -> None:
        with suppress(LeaseLostError):
            await self._postman.reply(letters[0].key, letters[0].channel, letters, texts)

    async def _obey(self, letter: InboxItem, session: Session, order: Order) -> list[str | OutboundMessage]:
        if letter.tries >= MAX_TRIES:
            log.error("%s: given up after the program ended %d times during a command", place(letter.key), letter.tries)
            return [notices.COMMAND_FAILED]
        await insist(self._mailbox.begin_attempt, letter, 0)
        try:
            return [await order(session)]
        except Exception as error:  # noqa: BLE001 - a command may not end a conversation
            log.error("a command failed: %s", describe(error))
            return [notices.COMMAND_FAILED]

    async def _answer(self, active: _Active, session: Session, text: str) -> list[str | OutboundMessage] | None:
        """What to reply; ``None`` if the message is to stay in the mailbox."""
        letter = active.letter
        if letter.base is not None and (said := _said_since(session, letter.base, text)):
            log.info("%s: the answer was there when the program ended", place(letter.key))
            return [OutboundMessage(said, speaker=self._conversations.speaker(session))]
        if letter.tries >= MAX_TRIES:
            log.error("%s: given up after the program ended %d times during its run", place(letter.key), letter.tries)
            return [notices.FAILED]
        if active.stopped:
            return []
        await insist(self._mailbox.begin_attempt, letter, len(session.messages))
        texts: list[str | OutboundMessage] = []
        task = text
        for _ in range(1 + MAX_FOLLOW_UPS):
            speaker = self._conversations.speaker(session)  # after the run it may be another
            result = await self._run(active, session, task, speaker)
            if active.broken_off and (result is None or result.status == "cancelled"):
                self._conversations.forget(letter.key)  # what the broken run left in it is not kept
                with suppress(StoreError):
                    await self._mailbox.discard_attempt(letter)
                return None
            if reply := _told(result, active.stopped):
                texts.append(OutboundMessage(reply, speaker=speaker))
            task = await self._next_task(session, result)
            if not task or active.stopped:
                break
        late = self._unheard(active, session)
        await insist(self._conversations.save, session)
        if late:
            self.lanes.put_first(letter.key, late)
        return texts or ([] if active.stopped else [notices.NO_ANSWER])

    async def _run(self, active: _Active, session: Session, text: str, speaker: str) -> AgentResult[Any] | None:
        letter = active.letter
        message, channel = letter.message, self._channels.get(letter.channel)
        if channel is None:
            active.broken_off = True
            return None

        async def judge(shown: OutboundMessage) -> OutboundMessage | None:
            return await self._postman.judge(letter.key, shown)

        presence = Presence(
            channel, address_of(letter.key), judge, typing=self._options.typing, progress=self._options.progress,
            reply_to=message.message_id, speaker=speaker,
        )  # fmt: skip
        asker = self._approving.asker(letter, partial(self._rest, active, presence), lambda: active.broken_off)
        hooks = {} if asker is None else {"hooks": [asker.hook]}
        ctx = {} if self._context is None else {"ctx": self._context(session)}
        async with presence:
            try:
                active.run = self._answerer.start(
                    text, session=session, metadata={**self._metadata, **_about(letter.channel, message)},
                    correlation_id=message.message_id,
                    sinks=presence.sinks, **ctx, **hooks,
                )  # fmt: skip
                if asker is not None:
                    asker.hook.root_id = active.run.id
                if active.stopped or active.broken_off:
                    active.run.cancel("stopped before it began")
                result: AgentResult[Any] = await active.run.result()
            except RunFailedError as failure:
                log.error("%s: the run failed: %s", place(letter.key), error_text(failure))
                result = failure.result
            except Exception:
                log.exception("%s: the run could not be made", place(letter.key))
                return None
            finally:
                active.run = None
                if asker is not None:
                    await asker.over()
        return result

    def _rest(self, active: _Active, presence: Presence, waits: bool) -> None:
        """A run waits for somebody's approval, or no longer: meanwhile others may have its place."""
        presence.resting = waits
        if waits:
            self.lanes.lend()
            if self._winding_down:
                self._break_off([active.letter.key], "the gateway stops")
            return
        task = asyncio.create_task(self.lanes.take_back())
        self._returning.add(task)
        task.add_done_callback(self._returning.discard)

    async def _next_task(self, session: Session, result: AgentResult[Any] | None) -> str:
        if self._follow_up is None or result is None:
            return ""
        try:
            found = self._follow_up(session, result)
            found = await found if inspect.isawaitable(found) else found
        except Exception:  # what was answered so far is not lost for that
            log.exception("what is to follow a run cannot be told")
            return ""
        return str(found or "")

    def _unheard(self, active: _Active, session: Session) -> list[tuple[InboxItem, str | Order]]:
        """The messages that were put into a run too late for it to answer them; they are taken out again."""
        messages, steered = list(session.messages), active.steered
        while steered and messages and messages[-1] == Message("user", steered[-1][1]):
            messages.pop()
            steered = steered[:-1]
        unheard = active.steered[len(steered) :]
        if not unheard or active.stopped:
            return []
        session.messages, active.steered = tuple(messages), steered
        return list(unheard)


def _told(result: AgentResult[Any] | None, stopped: bool) -> str:
    """What people are told of a run."""
    if stopped and (result is None or result.status == "cancelled"):
        return ""  # /stop has its own answer
    if result is None or result.status == "failed":
        return notices.FAILED
    if result.status == "cancelled":
        return notices.CANCELLED
    if result.status == "stopped":
        return f"{result.reply}\n\n{notices.STOPPED_EARLY}".strip()
    return result.reply


def _said_since(session: Session, base: int, text: str) -> str:
    """The answer of a run that was over, and in the transcript, when its program ended."""
    since = session.messages[base:]
    if not since or since[0] != Message("user", text):
        return ""
    last = since[-1]
    return last.content if last.role == "assistant" and not last.tool_calls else ""


def _about(channel: str, message: InboundMessage) -> dict[str, Any]:
    return {
        "channel": channel, "platform": message.platform, "chat_id": message.chat_id, "sender": message.sender,
        "thread_id": message.thread_id, "bot": message.bot, "direct": message.direct,
    }  # fmt: skip
