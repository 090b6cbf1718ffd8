"""Run the agent for messages and turn the results into replies.

With a journal, a run that was interrupted or suspended is continued later, here or by another gateway: its message
stays in the mailbox meanwhile, and is the first of its conversation.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from .._base.attachment import Attachment
from .._base.frozen import encoded, plain
from .._base.text import describe, error_text
from .._base.workers import in_thread
from .._kernel.errors import HooklineError
from .._kernel.state import AgentResult
from .._kernel.values import Ids, Message
from .._run.context import AgentContext, obey, services_of, set_deps, set_origin
from .._run.durable import DurableRun
from .._run.halt import POLL_SECONDS, Halt, HaltSwitch
from .._run.journal import (
    JournalFormatError,
    RecoveryError,
    RunHaltedError,
    RunPinnedError,
    RunSuspendedError,
    RunWaitingError,
    contents_of,
    listed_task,
)
from .._run.journal import LeaseLostError as RunLostError
from .._run.run_hooks import clean_for
from .._run.session import Session
from .._run.termination import RunFailedError
from .._sensitive.encryption import DataKeyError
from ..stores.callers import Caller, DepsFactory, create_deps
from ..stores.errors import StoreError
from ..stores.mailbox import InboxItem, LeaseLostError, Mailbox
from ..stores.messages import InboundMessage, OutboundMessage
from ..stores.sessions import SessionRecord
from ..stores.spending import REACHED
from . import notices
from .activity import ActivityIndicator
from .approvals import Approvals
from .conversations import Conversations, address_of, label_of
from .durable import ClaimedRun, DurableOutcome, Journals, MessageHead, run_id_of
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

SUSPEND_SECONDS = 4.0
"""Seconds for calls in flight of a durable run that is suspended."""

FIRST_DELAY, MAX_DELAY = 1.0, 60.0
"""Seconds after which a run is continued that waits for an approver of its own; each time, they are doubled."""

CommandCall = Callable[[Session], Awaitable[str]]
"""A command that waits in the queue like a message; it returns the reply."""

Replies = list[str | OutboundMessage]
Queued = tuple[InboxItem, str | CommandCall]


class _ActiveItem:
    """The item that a conversation is processing, and its run."""

    def __init__(self, item: InboxItem) -> None:
        self.item = item
        self.run: Any = None
        self.steered: list[tuple[InboxItem, str]] = []  # with the texts before the notes about their files
        self.stopped = False  # by /stop
        self.interrupted = False  # by a shutdown: the message is answered later
        self.durable: DurableRun | None = None

    def cancel(self, reason: str) -> None:
        """Cancel the run; one that is being recovered, when it has caught up with its journal."""
        if self.run is not None and self.durable is not None and self.durable.is_recovering:
            self.durable.defer(partial(self.run.cancel, reason))
        elif self.run is not None:
            self.run.cancel(reason)

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
        journals: Journals | None,
        deps: DepsFactory | None,
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
        self._journals = journals
        self._deps = deps
        self._follow_up: Any = getattr(answerer, "follow_up", None)
        self._active: dict[str, _ActiveItem] = {}
        self._closing = False
        self._winding_down = False
        self._switches: tuple[HaltSwitch, ...] | None = None
        """The stop switches that all runs obey, once the first one is known."""
        self._tasks: set[asyncio.Task[None]] = set()
        self._take_ups: dict[str, asyncio.Task[None]] = {}
        """By conversation, the tasks that wait until a run that was suspended can go on."""
        self._delays: dict[str, float] = {}
        self._to_stop: set[str] = set()
        """Conversations with a run that was suspended, and is to be cancelled."""
        self.queues: ConversationQueues[Queued] = ConversationQueues(
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
        if not self._is_steered(item):
            self.queues.put(item.key, (item, work))

    def _is_steered(self, item: InboxItem) -> bool:
        """Whether a message is part of the active run of its conversation, as its journal says."""
        active = self._active.get(item.key)
        return active is not None and any(each.seq == item.seq for each, _ in active.steered)

    async def steer(self, item: InboxItem, text: str) -> bool:
        """Add a message to the active run of its conversation. Return false if no run will read it."""
        if self._is_steered(item):
            return True
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
        was_running = self.queues.is_held(key) or (active is not None and not active.stopped)
        if active is not None:
            active.stopped = True
            active.cancel("the user sent /stop")
        elif self.queues.is_held(key):
            self._to_stop.add(key)
        dropped = [waiting for waiting, _ in self.queues.clear(key)] if all else []
        text = notices.stopped(was_running, self.queues.waiting_in(key) - self.queues.is_held(key), len(dropped))
        await self._reply([*dropped, item], [text])
        if key in self._to_stop:
            self.queues.resume(key)

    def wind_down(self) -> None:
        """Start no more runs. Interrupt runs that wait for an approval, since no more replies are read."""
        self._winding_down = True
        self.queues.pause()
        self._interrupt([key for key in self._active if self._approvals.is_pending(key)], "the gateway is stopping")

    async def close(self) -> None:
        """Interrupt all runs. Their messages stay in the mailbox for the next start."""
        self._closing = True
        for task in self._take_ups.values():
            task.cancel()
        self._interrupt(list(self._active), "the gateway is stopping")
        await self.queues.wait_until_idle()

    async def cancel(self, keys: Sequence[str], timeout: float) -> None:
        """Interrupt the runs of these conversations. Their messages stay in the mailbox."""
        self._interrupt(keys, "the channel was removed")
        for key in keys:
            if (task := self._take_ups.pop(key, None)) is not None:
                task.cancel()
        await self.queues.cancel(keys, timeout)

    def _interrupt(self, keys: Iterable[str], reason: str) -> None:
        for active in [self._active[key] for key in keys if key in self._active]:
            active.interrupted = True
            if active.durable is not None:
                self._spawn(active.durable.suspend_after(SUSPEND_SECONDS))
            elif active.run is not None:
                active.run.cancel(reason)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

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

    async def _process(self, key: str, queued: Queued) -> None:
        item, work = queued
        active = self._active[key] = _ActiveItem(item)
        active.interrupted = self._closing
        active.stopped = key in self._to_stop
        self._to_stop.discard(key)
        if (task := self._take_ups.pop(key, None)) is not None:
            task.cancel()
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
        if self._journals is not None:
            return await self._answer_durably(active, session, text, self._journals)
        item = active.item
        if item.base is not None and (finished := _finished_answer(session, item, text)):
            log.info("%s: the run had finished when the process ended: its answer is sent", label_of(item.key))
            return [OutboundMessage(finished, speaker=self._conversations.speaker(session))]
        if item.tries >= MAX_TRIES:
            log.error("%s: giving up: the process ended %d times during the run", label_of(item.key), item.tries)
            return [notices.FAILED]
        if active.stopped:
            return []
        if (halt := await self._halt(session)) is not None:
            return [notices.halted(halt.text)]
        await retry_store(self._mailbox.begin_attempt, item, len(session.messages))
        task, files = await self._with_files(item, session, text)
        metadata = {**self._metadata, **_message_metadata(item.channel, item.message)}
        replies, status = await self._run_agents(active, session, task, files, metadata)
        if status == "interrupted":
            await self._leave(active)
            return None
        late = self._take_unanswered(active, session)
        await retry_store(self._conversations.save, session)
        if late:
            self.queues.put_first(item.key, late)
        return replies

    async def _leave(self, active: _ActiveItem) -> None:
        """Leave a message in the mailbox, without what its run has added to the conversation."""
        self._conversations.forget(active.item.key)
        with suppress(StoreError):
            await self._mailbox.discard_attempt(active.item)

    async def _leave_to_others(self, key: str) -> None:
        """Leave a conversation to another process, which has the version of the agent that its run needs."""
        self.queues.clear(key)
        self._conversations.forget(key)
        await retry_store(self._mailbox.leave, key)

    async def _run_agents(
        self, active: _ActiveItem, session: Session, task: str, files: list[Attachment], metadata: Mapping[str, Any]
    ) -> tuple[Replies, str]:
        """Run the agent, and those that it hands over to. Return their replies and the status of the last run."""
        try:
            deps = await self._create_deps(metadata)
        except HooklineError:  # it is in the log
            return [OutboundMessage(notices.FAILED)], "failed"
        replies: Replies = []
        status = ""
        for number in range(1, 2 + MAX_FOLLOW_UPS):
            speaker = self._conversations.speaker(session)  # the run may change the speaker
            result = await self._run(active, session, task, files, metadata, deps, speaker, number)
            status = "failed" if result is None else result.status
            files = []  # they belong to the first run
            if active.interrupted and active.durable is None and (result is None or result.status == "cancelled"):
                return [], "interrupted"
            if reply := _reply_text(result, active.stopped):
                replies.append(OutboundMessage(reply, speaker=speaker))
            task = await self._next_task(session, result)
            if not task or active.stopped:
                break
        return replies or ([] if active.stopped else [notices.NO_ANSWER]), status

    async def _create_deps(self, metadata: Mapping[str, Any]) -> Any:
        """Return the ``deps`` of a run, also of one that another process began, which stored this metadata."""
        if self._deps is None:
            return None
        sender = Caller(f"{metadata['channel']}:{metadata['sender']}", metadata["sender"], metadata=metadata)
        return await create_deps(self._deps, sender)

    # Durable runs.

    async def _answer_durably(
        self, active: _ActiveItem, session: Session, text: str, journals: Journals
    ) -> Replies | None:
        """Answer a message as :meth:`_answer` does, or continue its run from the journal."""
        item = active.item
        if not active.stopped and (halt := await self._halt(session)) is not None:
            if not await journals.is_begun(item):
                return [notices.halted(halt.text)]
            await self._wait_for_release(active, text, halt)
            return None
        try:
            claimed = await journals.claim(item, partial(self._head, item, session, text))
            if isinstance(claimed, DurableOutcome):
                return await self._stored_replies(active, claimed)
            active.durable = claimed.durable
            async with claimed.durable.opened():
                return await self._continue(active, session, claimed)
        except (JournalFormatError, DataKeyError) as error:
            return await self._keep(active, text, journals, error)
        except (RunPinnedError, RecoveryError) as error:
            if isinstance(error, RunPinnedError) and await journals.is_elsewhere(error.digest):
                await self._leave_to_others(item.key)
                return None
            log.error("%s: %s", label_of(item.key), error_text(error))
            self._conversations.forget(item.key)
            outcome = await journals.end(item, "failed", DurableOutcome((OutboundMessage(notices.CHANGED),)))
            await self._approvals.end_run(item.key, run_id_of(item))
            return await self._stored_replies(active, outcome)
        except RunLostError as error:
            log.warning("%s: %s", label_of(item.key), error_text(error))
            self._conversations.forget(item.key)
            return None
        except RunHaltedError as halted:
            await self._wait_for_release(active, text, halted.halt)
            return None
        except RunSuspendedError:
            await self._leave(active)
            return None
        except RunWaitingError:
            await self._leave(active)
            self._suspend(active, text)
            return None
        except LeaseLostError:
            raise
        except StoreError as error:
            log.error("%s: the run is interrupted: %s", label_of(item.key), error_text(error))
            await self._leave(active)
            self._suspend(active, text)
            return None

    # The stop switch.

    async def _halt(self, session: Session) -> Halt | None:
        """Return the halt of the runs of this gateway, or ``None``."""
        if self._switches is None:
            self._switches = services_of(self._make_context(session)).halts
        return await self._read_switches()

    async def _read_switches(self) -> Halt | None:
        found: list[Halt | None] = [await in_thread(switch.current) for switch in self._switches or ()]
        return next(filter(None, found), None)

    async def _wait_for_release(self, active: _ActiveItem, text: str, halt: Halt) -> None:
        """Keep the message of a durable run that is halted, and say so to the people who wait for it."""
        item = active.item
        token = f"{run_id_of(item)} halted {halt.at}"  # the same in every process: it is said once
        await self._outbox.reply(item.key, item.channel, [], [notices.waits_until_released(halt.text)], token=token)
        await self._leave(active)
        self._suspend(active, text)

    def _make_context(self, session: Session) -> AgentContext:
        """Return the context of a run."""
        ctx = AgentContext(session=session) if self._context is None else self._context(session)
        if self._journals is not None:
            obey(ctx, self._journals.halts)
        return ctx

    async def _keep(
        self, active: _ActiveItem, text: str, journals: Journals, error: JournalFormatError | DataKeyError
    ) -> Replies | None:
        """Keep a run that another version of Hookline, or a process with its key, can continue; ``/stop`` ends it."""
        item = active.item
        if active.stopped:
            outcome = await journals.end(item, "cancelled", DurableOutcome())
            await self._approvals.end_run(item.key, run_id_of(item))
            return await self._stored_replies(active, outcome)
        if isinstance(error, JournalFormatError) and await journals.is_elsewhere(error.digest):
            await self._leave_to_others(item.key)
            return None
        log.error("%s: %s", label_of(item.key), error)
        await self._leave(active)
        self._suspend(active, text)
        return None

    async def _head(self, item: InboxItem, session: Session, text: str) -> MessageHead:
        """Return everything that the run of a message depends on, for its journal."""
        task, files = await self._with_files(item, session, text)
        run_id, agent = run_id_of(item), str(getattr(self._answerer, "name", ""))
        return MessageHead(
            ids=Ids(run_id, run_id, item.message.message_id or run_id, session.id, agent),
            task=task,
            metadata=plain({**self._metadata, **_message_metadata(item.channel, item.message)}),
            attachments=tuple(files),
            contents=contents_of(files),
            conversation=SessionRecord.snapshot(session).to_json().decode(),
            origin=f"channel {item.channel}",
            listed=listed_task(task, partial(clean_for, self._answerer)),
        )

    async def _continue(self, active: _ActiveItem, session: Session, claimed: ClaimedRun) -> Replies:
        """Execute a run from its journal and store its outcome; return its replies."""
        item, durable, head = active.item, claimed.durable, claimed.head
        if active.interrupted:
            await durable.suspend_after(0)
        if durable.error is not None:
            raise durable.error
        if active.stopped and not durable.is_recovering:
            return await self._finish(active, durable, [], "cancelled")
        if item.tries >= MAX_TRIES:
            log.error("%s: giving up: the process ended %d times during the run", label_of(item.key), item.tries)
            return await self._finish(active, durable, [notices.FAILED], "failed")
        await retry_store(self._mailbox.begin_attempt, item, len(session.messages))
        if not claimed.is_new:
            session = head.session()
            self._conversations.replace(item.key, session)
            following = await retry_store(self._mailbox.following, item)
            self._adopt(active, _steered_among(following, durable.steering))
        before = len(session.messages)
        replies, status = await self._run_agents(
            active, session, head.task, list(head.attachments), head.metadata or {}
        )
        late = self._take_unanswered(active, session)
        await retry_store(self._conversations.save_once, session, before)
        replies = await self._finish(active, durable, replies, status)
        if late:
            self.queues.put_first(item.key, late)
        return replies

    async def _finish(self, active: _ActiveItem, durable: DurableRun, replies: Replies, status: str) -> Replies:
        """Store the outcome of a run: from now on its replies are sent, whatever happens."""
        messages = tuple(OutboundMessage(each) if isinstance(each, str) else each for each in replies)
        await durable.finish(status, encoded(DurableOutcome(messages, tuple(item.seq for item, _ in active.steered))))
        self._delays.pop(active.item.key, None)
        if status != "completed":
            await self._approvals.end_run(active.item.key, durable.run_id)
        return replies

    async def _stored_replies(self, active: _ActiveItem, outcome: DurableOutcome) -> Replies:
        """Return the replies of a run that has ended, with the messages that they answer."""
        if outcome.steered:
            following = await retry_store(self._mailbox.following, active.item)
            self._adopt(active, [(each, "") for each in following if each.seq in outcome.steered])
        return list(outcome.replies)

    def _adopt(self, active: _ActiveItem, steered: list[tuple[InboxItem, str]]) -> None:
        """Make messages that were steered into the run before it was interrupted part of it again."""
        active.steered = steered
        seqs = {item.seq for item, _ in steered}
        self.queues.take(active.item.key, lambda queued: queued[0].seq in seqs)

    def _suspend(self, active: _ActiveItem, text: str) -> None:
        """Let a message wait, with those after it, until its run can go on. No run exists meanwhile."""
        key = active.item.key
        self.queues.hold(key, (active.item, text))
        if active.stopped:  # the run did not notice, because it was being suspended
            self._to_stop.add(key)
        if not self._closing:
            self._take_ups[key] = self._spawn(self._take_up(key))

    async def _take_up(self, key: str) -> None:
        """Continue a run when a call that it waits for is decided; to stop it, or if there is none, after a while.

        While all runs are halted, none is continued.
        """
        if self._approvals.is_pending(key) and key not in self._to_stop:
            await self._approvals.wait_for_decision(key)
        else:
            delay = self._delays.get(key, FIRST_DELAY)
            self._delays[key] = min(2 * delay, MAX_DELAY)
            await asyncio.sleep(delay)
        while key not in self._to_stop and await self._read_switches() is not None:
            await asyncio.sleep(POLL_SECONDS)
        self.queues.resume(key)

    # One run.

    async def _run(
        self,
        active: _ActiveItem,
        session: Session,
        text: str,
        files: list[Attachment],
        metadata: Mapping[str, Any],
        deps: Any,
        speaker: str,
        number: int,
    ) -> AgentResult[Any] | None:
        """Run the agent once. In a durable run, the runs have ids that are the same in every process."""
        item, durable = active.item, active.durable
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
            stream=not self._conversations.judges_replies(session),
            reply_to=message.message_id,
            speaker=speaker,
        )
        approvals = self._approvals.for_run(
            item, partial(self._set_waiting, active, indicator), lambda: active.interrupted, durable=durable is not None
        )
        hooks = {} if approvals is None else {"hooks": [approvals.hook]}
        ctx = self._make_context(session)
        set_origin(ctx, f"channel {item.channel}")
        if self._deps is not None:
            set_deps(ctx, deps)
        if durable is not None:
            environment = services_of(ctx).environment
            environment.name_run(durable.run_id if number == 1 else f"{durable.run_id}_{number}")
            environment.boundary = durable
        session.metadata = metadata  # what the operator gave to earlier runs does not count
        async with indicator:
            try:
                active.run = self._answerer.start(
                    text,
                    session=session,
                    metadata=metadata,
                    correlation_id=message.message_id,
                    sinks=indicator.sinks,
                    **({"attachments": files} if files else {}),
                    ctx=ctx,
                    **hooks,
                )
                if approvals is not None:
                    approvals.hook.root_id = active.run.id
                if active.stopped or (active.interrupted and durable is None):
                    active.cancel("stopped before it began")
                result: AgentResult[Any] = await active.run.result()
            except RunFailedError as failure:
                log.error("%s: the run failed: %s", label_of(item.key), error_text(failure))
                result = failure.result
            except Exception:
                if durable is not None and durable.error is not None:
                    raise durable.error from None
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
        self._spawn(self.queues.reacquire_slot())

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

    def _take_unanswered(self, active: _ActiveItem, session: Session) -> list[Queued]:
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


def text_of(message: InboundMessage) -> str:
    """Return the text of a message for the agent: ``//`` at its beginning stands for one slash."""
    return message.text.removeprefix("/") if message.text.startswith("//") else message.text


def _steered_among(items: Sequence[InboxItem], steering: Sequence[Message]) -> list[tuple[InboxItem, str]]:
    """Return the messages of the mailbox that were steered into a run, in order, with their texts."""
    found: list[tuple[InboxItem, str]] = []
    rest = list(items)
    for message in steering:
        for number, item in enumerate(rest):
            if _is_message(message, item, text_of(item.message)):
                found.append((item, text_of(item.message)))
                rest = rest[number + 1 :]
                break
    return found


def _reply_text(result: AgentResult[Any] | None, stopped: bool) -> str:
    """Return the reply for the result of a run."""
    if stopped and (result is None or result.status == "cancelled"):
        return ""  # /stop has its own reply
    if result is None or result.status == "failed":
        return notices.FAILED
    if result.status == "cancelled":
        return notices.CANCELLED
    if result.status == "stopped" and result.stop is not None and result.stop.kind == "halted":
        return f"{result.reply}\n\n{notices.halted(result.stop.message)}".strip()
    if result.status == "stopped" and result.stop is not None and result.stop.message.startswith(REACHED):
        return f"{result.reply}\n\n{notices.STOPPED_EARLY} {result.stop.message}".strip()
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
