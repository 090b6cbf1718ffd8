"""Cancel and steer runs that another process executes, through messages in the database that the processes share."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Literal

import msgspec

from .._base.attachment import Attachment, AttachmentError
from .._base.attachment_files import available_data
from .._base.tasks import wait_at_most, wake_from_thread
from .._base.text import error_text
from .._run.journal import CONTROL
from .._sensitive.encryption import DataKeyError
from ..stores.controls import Control, ControlStore, Kind
from ..stores.errors import StoreError
from .errors import BusyError, ConflictError
from .live_run import MAX_UNREAD, LiveRun

log = logging.getLogger("hookline")

POLL_SECONDS = 2.0
"""Polling interval for messages whose announcement was lost."""
ANSWER_SECONDS = 2.0
"""Seconds that a sender waits for the answer to its message."""

_UNREADABLE = "cancelled; the reason is encrypted with a key that the process of the run does not have"

IsOver = Callable[[], Awaitable[bool]]


class Cancel(msgspec.Struct, frozen=True):
    """Stop the run."""

    reason: str


class File(msgspec.Struct, frozen=True):
    """An attachment with its content; without content it is at ``url``."""

    media_type: str
    name: str
    url: str
    data: bytes | None

    @classmethod
    def of(cls, attachment: Attachment) -> File:
        """Return an attachment with its content."""
        data = None if attachment.url else available_data(attachment)
        return cls(attachment.media_type, attachment.name, attachment.url, data)

    def attachment(self) -> Attachment:
        """Return the attachment.

        Raises:
            AttachmentError: its content was not available to the sender.
        """
        if self.data is None and not self.url:
            raise AttachmentError(f"the content of {self.name!r:.80} is not available")
        return Attachment.of(self.url if self.data is None else self.data, self.media_type, self.name, None)


class Steer(msgspec.Struct, frozen=True):
    """Give the run a message of the user."""

    text: str
    files: tuple[File, ...] = ()


class ControlAnswer(msgspec.Struct, frozen=True):
    """What became of a message: ``problem`` says why it was refused."""

    code: Literal["done", "conflict", "busy", "attachment"] = "done"
    problem: str = ""

    def check(self) -> None:
        """Raise the error that the process of the run had."""
        errors = {"conflict": ConflictError, "busy": BusyError, "attachment": AttachmentError}
        if self.code in errors:
            raise errors[self.code](self.problem)


class ControlSender:
    """Send messages to runs that other processes execute.

    Args:
        store: the store of messages.
    """

    def __init__(self, store: ControlStore) -> None:
        self._store = store

    async def cancel(self, run_id: str, reason: str) -> None:
        """Ask for the end of a run.

        Raises:
            StoreError: the database cannot be used.
        """
        await asyncio.to_thread(self._store.send, run_id, "cancel", msgspec.json.encode(Cancel(reason)))

    async def has_waiting(self, run_id: str) -> bool:
        """Return whether messages wait for a run. A later message must not overtake them.

        Raises:
            StoreError: the database cannot be used.
        """
        return await asyncio.to_thread(self._store.waiting, run_id) > 0

    async def steer(self, run_id: str, text: str, attachments: Sequence[Attachment], is_over: IsOver) -> None:
        """Send a message of the user, and wait a moment until the run has it. Otherwise it gets the message later.

        Args:
            run_id: the run.
            text: the text.
            attachments: files for the model.
            is_over: returns whether the run has ended.

        Raises:
            ConflictError: the run does not accept messages, or this process does not have its key.
            BusyError: too many messages wait for the run.
            AttachmentError: a file cannot be used.
            StoreError: the database cannot be used.
        """
        waiting = await asyncio.to_thread(self._store.waiting, run_id)
        if waiting >= MAX_UNREAD:
            raise BusyError(f"the run {run_id} has not read {waiting} messages yet: wait until it has")
        data = await asyncio.to_thread(lambda: msgspec.json.encode(Steer(text, tuple(map(File.of, attachments)))))
        try:
            seq = await asyncio.to_thread(self._store.send, run_id, "steer", data)
        except DataKeyError as error:
            raise ConflictError(f"the run {run_id} accepts no messages here: {error}") from None
        answered = asyncio.Event()
        wake = partial(wake_from_thread, asyncio.get_running_loop(), answered)
        deadline = time.monotonic() + ANSWER_SECONDS
        with self._store.watch(wake, seq):
            while (answer := await asyncio.to_thread(self._store.answer_to, seq)) is None:
                if await is_over() and await asyncio.to_thread(self._store.withdraw, seq):
                    raise ConflictError(f"the run {run_id} has ended: only a running run accepts messages")
                left = deadline - time.monotonic()
                if left <= 0:
                    return
                await wait_at_most(answered, left)
                answered.clear()
        msgspec.json.decode(answer, type=ControlAnswer).check()


DONE = msgspec.json.encode(ControlAnswer()).decode()
"""The answer to a message that was carried out."""


class ControlReceiver:
    """Take the messages to runs of this process, and carry them out.

    A message to a durable run has been carried out when it is in the journal, which says so to its sender in the same
    transaction. If this process ends before that, the next one that executes the run takes the message again.

    Args:
        store: the store of messages.
        runs: returns the runs of this process.
    """

    def __init__(self, store: ControlStore, runs: Callable[[], Iterable[LiveRun]]) -> None:
        self._store = store
        self._runs = runs
        self._new = asyncio.Event()
        self.looked = 0
        """How often messages to the live runs were looked for."""
        self._answers: list[tuple[int, ControlAnswer]] = []
        self._task: asyncio.Task[None] | None = None

    def open(self) -> None:
        """Start to receive."""
        self._task = asyncio.create_task(self._receive(), name="hookline-controls")

    async def close(self) -> None:
        """Stop receiving."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])

    async def _receive(self) -> None:
        with self._store.watch(partial(wake_from_thread, asyncio.get_running_loop(), self._new)):
            while True:
                await wait_at_most(self._new, POLL_SECONDS)
                self._new.clear()
                self.looked += 1
                try:
                    await self._take()
                except StoreError as error:
                    log.error("messages to runs cannot be read: %s", error_text(error))
                except Exception:
                    log.exception("messages to runs could not be carried out")

    async def deliver(self, live: LiveRun) -> None:
        """Take the messages to a durable run before it begins here, so that it gets them however short it is.

        Raises:
            StoreError: the database cannot be used.
        """
        for message in await asyncio.to_thread(self._store.take, [live.record.id], "cancel", "steer"):
            self._carry_out(message, live)

    async def _take(self) -> None:
        runs = {live.record.id: live for live in self._runs() if not live.closed}
        begun = [id for id, live in runs.items() if live.run is not None or live.durable is not None]
        queued = [id for id in runs if id not in begun]
        wanted: tuple[tuple[list[str], tuple[Kind, ...]], ...] = ((begun, ("cancel", "steer")), (queued, ("cancel",)))
        for ids, kinds in wanted:
            for message in await asyncio.to_thread(self._store.take, ids, *kinds):
                self._carry_out(message, runs[message.run_id])
        while self._answers:
            seq, answer = self._answers[0]
            await asyncio.to_thread(self._store.answer, [seq], msgspec.json.encode(answer).decode())
            del self._answers[0]

    def _carry_out(self, message: Control, live: LiveRun) -> None:
        is_stopping = live.durable is not None and live.durable.is_stopping
        if live.detached or is_stopping or message.seq in live.controls:
            return  # the next process that executes the run takes it; or it was carried out here
        live.controls.add(message.seq)
        if message.kind == "steer" and live.run is None and live.durable is not None:
            live.when_begun.append(partial(self._carry_out_now, message, live))
        else:
            self._carry_out_now(message, live)

    def _carry_out_now(self, message: Control, live: LiveRun) -> None:
        token = CONTROL.set(str(message.seq))
        try:
            answer = _carry_out(message, live)
        finally:
            CONTROL.reset(token)
        if answer.code != "done" or live.durable is None:  # otherwise the journal answers
            self._answers.append((message.seq, answer))
            self._new.set()


def _carry_out(message: Control, live: LiveRun) -> ControlAnswer:
    if message.problem:
        log.warning("%s", message.problem, extra={"run_id": message.run_id})
    if message.kind == "cancel":  # whoever may write the database may cancel, with any key
        live.stop(_UNREADABLE if message.problem else msgspec.json.decode(message.data, type=Cancel).reason)
        return ControlAnswer()
    if message.problem:
        return ControlAnswer("conflict", f"the run did not get the message: {message.problem}")
    steer = msgspec.json.decode(message.data, type=Steer)
    try:
        live.steer(steer.text, [each.attachment() for each in steer.files])
    except ConflictError as error:
        return ControlAnswer("conflict", error_text(error))
    except BusyError as error:
        return ControlAnswer("busy", error_text(error))
    except AttachmentError as error:
        return ControlAnswer("attachment", error_text(error))
    return ControlAnswer()
