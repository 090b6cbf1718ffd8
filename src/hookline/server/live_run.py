"""Runs of this process: their state, and writing and reading their events."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager
from contextvars import Context
from functools import cache, partial
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from .._base.attachment import Attachment
from .._base.frozen import encoded
from .._base.tasks import wait_at_most, wake_from_thread
from .._base.text import error_text
from .._kernel.events import Event, HookExecuted, PointFired
from .._kernel.values import Usage
from .._run.events import (
    AllEventsExcept,
    ApprovalAsked,
    ApprovalDecided,
    ModelCalled,
    RunFinished,
    Steered,
    StepStarted,
    SubagentEvent,
    ToolEnded,
    ToolStarted,
    is_silent,
)
from .._run.run import Run
from ..stores.facts import RunFact
from ..stores.runs import RunRecord, RunStore, StoredEvent, ended_run, limit_bytes
from .concurrency import RunSlots
from .errors import BusyError, ConflictError, UnavailableError
from .events import RunClosed

if TYPE_CHECKING:
    from .._run.durable import DurableRun

log = logging.getLogger("hookline")

KEPT_EVENTS = 256
"""Maximum number of stored events of a run that are kept in memory for readers."""
KEPT_BYTES = 500_000
"""Maximum size in bytes of the stored events of a run that are kept in memory."""
PAGE_EVENTS = 200
"""Maximum number of events that a reader returns at once."""
PAGE_BYTES = 256_000
"""Maximum size in bytes of the events that a reader returns at once, not counting the last event."""
COLLECT_SECONDS = 0.005
"""Seconds for which events are collected before they are written: one transaction costs as much as many rows."""
MAX_COLLECT_SECONDS = 0.05
"""Seconds for which events are collected at most, if the last transaction took that long."""
FACT_SECONDS = 0.5
"""Seconds for which facts are collected before they are written: many of them add to the same sums. Somebody who reads
statistics gets all of them; a process that is killed loses those that it has not written."""
MAX_UNREAD = 100
"""Maximum number of unread messages for one run."""
RETRY_SECONDS = 1.0
"""Seconds to wait after a write error before the next attempt."""

_TRACKED = frozenset({StepStarted, Steered, ToolStarted, ToolEnded, ApprovalAsked, ApprovalDecided})
"""Events that change the state of a :class:`LiveRun`."""

_TEXTS = frozenset({"task", "reply", "error", "reason"})

_CHECKED = frozenset({SubagentEvent, HookExecuted, PointFired, RunFinished, ModelCalled})
"""Events that a :class:`LiveRun` may leave out or change."""


@cache
def _tag(kind: type[Event]) -> str:
    return str(kind.__struct_config__.tag)


class Put(Protocol):
    """Stores the row of a run, an event, and a record of :meth:`RunStore.add`."""

    def __call__(
        self,
        run: RunRecord | None = None,
        event: StoredEvent | None = None,
        record: RunFact | RunRecord | None = None,
    ) -> None:
        """Store them soon, in this order."""
        ...


class LiveRun:
    """A served run of this process. It belongs to the event loop of the service.

    Events get new numbers, because a run that hands over is followed by another one in the same list, which begins
    and ends with an event of the service. Readers get stored events only, so that everything they have seen is still
    there after a crash. While the file cannot be written, they get events from memory instead.

    Args:
        record: the state of the run.
        put: stores a run, an event or a fact.
        is_stuck: whether the file cannot be written now.
        events: the events so far, if they are few. They are stored.
        task: the task as the caller gave it. That of the record is cleaned, because it is stored and shown.
        clean: replaces what must not be stored; see :meth:`Agents.clean`.
        is_hosted: whether a program executes the run, and asks about its moments.
    """

    def __init__(
        self,
        record: RunRecord,
        put: Put,
        is_stuck: Callable[[], bool] = lambda: False,
        events: Sequence[StoredEvent] = (),
        *,
        task: str = "",
        clean: Callable[[str], str] = str,
        is_hosted: bool = False,
    ) -> None:
        self._record = record
        self.is_hosted = is_hosted
        self.given_task = task
        self._clean = clean
        self.last_seq = record.last_seq
        """The number of the last event, stored or not."""
        self.run: Run[Any] | None = None
        self.task: asyncio.Task[Any] | None = None
        self.durable: DurableRun | None = None
        """The journal of a durable run."""
        self.attachments: tuple[Attachment, ...] = ()
        self.controls: set[int] = set()
        """The numbers of the messages of other processes that were carried out here."""
        self.when_begun: list[Callable[[], object]] = []
        """Called when the run begins here."""
        self.stop_reason = ""
        """Why the run has been asked to stop; empty if it has not."""
        self.final_status = ""
        """The status that a stopped run gets instead of ``cancelled``."""
        self.closed = False
        """Whether the run has ended; a durable run has when its end is stored."""
        self.detached = False
        """Whether this process no longer executes the run, which has not ended."""
        self.unread = 0
        """The number of messages from callers that the run has not read yet."""
        self.pending: dict[tuple[str, str], str] = {}
        self._has_last_event = False
        self._steps = 0
        self._tools: dict[tuple[str, str], str] = {}
        self._put = put
        self._is_stuck = is_stuck
        self._slots: RunSlots | None = None
        self._has_slot = False
        self._stored_seq = record.last_seq
        self._events = list(events)
        self._event_bytes = sum(len(event.data) for event in events)
        self._first_seq = record.last_seq + 1 - len(events)
        self._waiters: list[asyncio.Future[None]] = []

    @property
    def record(self) -> RunRecord:
        """The state of the run."""
        return msgspec.structs.replace(self._record, last_seq=self.last_seq)

    def update(self, **fields: Any) -> None:
        """Change fields of the record and store it."""
        self._record = msgspec.structs.replace(self.record, **self._cleaned(fields))
        self._put(self._record, None)

    def _cleaned(self, fields: dict[str, Any]) -> dict[str, Any]:
        """Clean the texts of a record. Events come cleaned from the run."""
        return {name: self._clean(value) if value and name in _TEXTS else value for name, value in fields.items()}

    def add_event(self, event: Event) -> None:
        """Number an event and store it. This is the event sink of the run.

        Fired points and hooks without a result are left out: they would be most of the events.
        """
        if self.closed or self._has_last_event:  # a run that ignores its cancellation may continue for a while
            return
        kind, inner = type(event), event
        if kind in _CHECKED:
            if kind is SubagentEvent:
                inner = event.event  # type: ignore[attr-defined]
            if type(inner) is PointFired or (type(inner) is HookExecuted and is_silent(inner)):
                return
            if kind is RunFinished:  # the messages are in the events before it, and in the session
                event = event.replace(result=event.result.replace(messages=(), steps=()))  # type: ignore[attr-defined]
            if isinstance(inner, ModelCalled) and inner.server:  # an address of the operator's network
                hidden = inner.replace(server="")
                event = hidden if inner is event else event.replace(event=hidden)
        seq = self.last_seq + 1
        data = encoded(msgspec.structs.replace(event, seq=seq))
        self.last_seq = seq
        stored = StoredEvent(self._record.id, seq, _tag(kind), event.at, data)
        if type(inner) in _TRACKED:
            self._track(inner, is_nested=inner is not event)
        self._events.append(stored)
        self._event_bytes += len(data)
        self._put(None, stored)

    def put_fact(self, record: RunFact | RunRecord) -> None:
        """Store a fact, or the row of a subagent's run."""
        if not self.closed:
            self._put(record=record)

    vars(add_event)["events"] = AllEventsExcept(PointFired)  # a run that nobody asks for every fire is much cheaper

    @property
    def activity(self) -> str:
        """A description of what the run is doing now, for people."""
        if self.pending:
            return f"asks for {', '.join(self.pending.values())}"
        return ", ".join(self._tools.values()) or (f"step {self._steps}" if self._steps else "")

    def _track(self, event: Event, *, is_nested: bool) -> None:
        """Update the state from an event. Calls of subagents wait for approval too."""
        match event:
            case StepStarted():
                self._steps += not is_nested
            case ToolStarted():
                self._tools[event.run_id, event.call_id] = event.tool
            case ToolEnded():
                self._tools.pop((event.run_id, event.call_id), None)
            case Steered():
                self.unread = max(0, self.unread - 1)
            case ApprovalAsked():
                self.pending[event.run_id, event.call_id] = event.tool
                self._approvals_changed()
            case ApprovalDecided():
                self.pending.pop((event.run_id, event.call_id), None)
                self._approvals_changed()

    def _approvals_changed(self) -> None:
        """Release the slot while the run waits for a person, and take it back afterwards."""
        self.update(status="waiting" if self.pending else "running")
        if self._slots is not None and self._has_slot is bool(self.pending):
            (self._slots.release if self.pending else self._slots.acquire_now)()
            self._has_slot = not self.pending

    @asynccontextmanager
    async def slot(self, slots: RunSlots) -> AsyncIterator[None]:
        """Hold a slot inside the block, except while the run waits for a person."""
        await slots.acquire(self.record.owner)
        self._slots, self._has_slot = slots, True
        try:
            yield
        finally:
            self._slots = None
            if self._has_slot:
                slots.release()

    def mark_stored(self, seq: int) -> None:
        """Mark all events up to ``seq`` as stored, drop events that need not stay in memory, and wake readers."""
        self._stored_seq = seq
        self.wake_readers()
        count = min(seq, self.last_seq - KEPT_EVENTS) + 1 - self._first_seq
        drop = count if count > KEPT_EVENTS else 0
        self._event_bytes -= sum(len(event.data) for event in self._events[:drop])
        while self._event_bytes > KEPT_BYTES and self._first_seq + drop <= seq:
            self._event_bytes -= len(self._events[drop].data)
            drop += 1
        del self._events[:drop]
        self._first_seq += drop

    def events_after(self, seq: int, limit: int) -> Sequence[StoredEvent] | None:
        """Return the events after ``seq``; ``None`` if they are no longer in memory."""
        start = seq + 1 - self._first_seq
        last = self.last_seq if self._is_stuck() else self._stored_seq
        return None if start < 0 else self._events[start : min(start + limit, last + 1 - self._first_seq)]

    def is_read(self, seq: int) -> bool:
        """Return whether ``seq`` is the last event: no further event exists or will follow."""
        return self.closed and seq >= self.last_seq

    def finish(self, status: str, **fields: Any) -> None:
        """Mark the run finished. Later calls are ignored."""
        if not self.closed:
            self.close(self.add_last_event(status, **fields))

    def add_last_event(self, status: str, **fields: Any) -> RunRecord:
        """Store the last event with the final record, and return that record for :meth:`close`.

        Until then, everybody sees a run that goes on: the end of a durable run must be stored first.
        """
        self.run = None
        ended, started = time.time(), self.record.started
        elapsed = None if started is None else ended - started  # of a run without a result
        fields = {"elapsed": elapsed, **self._cleaned(fields)}
        over = msgspec.structs.replace(self.record, status=status, ended=ended, **fields)
        self.add_event(closing_event(over))
        self._has_last_event = True
        over = msgspec.structs.replace(over, last_seq=self.last_seq)
        self._put(over, record=ended_run(over))
        return over

    def close(self, over: RunRecord) -> None:
        """Mark the run finished, with its final record."""
        self._record = over
        self.closed = True
        self.wake_readers()

    def begin(self, run: Run[Any]) -> None:
        """Set the run that was started."""
        self.run = run
        waiting, self.when_begun = self.when_begun, []
        for action in waiting:
            action()

    def stop(self, reason: str) -> None:
        """Ask the run to stop. A run that has not begun finishes at once."""
        if self.stop_reason:
            return
        self.stop_reason = reason
        if self.run is not None:
            if self.durable is not None and self.durable.is_recovering:
                self.durable.defer(partial(self.run.cancel, reason))
            else:
                self.run.cancel(reason)
            return
        if self.durable is not None:
            return  # its executor ends it
        self.finish(self.final_status or "cancelled", reason=reason)
        if self.task is not None:
            self.task.cancel()  # the task may not have begun either

    def detach(self) -> None:
        """Let readers read the store from now on, because this process no longer executes the run."""
        self.detached = True
        self.run = None
        self.wake_readers()

    @property
    def takes_messages(self) -> bool:
        """Whether the run can get a message now. Otherwise a durable run gets it later, from the store."""
        durable = self.durable
        return durable is None or (self.run is not None and not durable.is_recovering and not durable.is_stopping)

    def steer(self, text: str, attachments: Sequence[Attachment]) -> None:
        """Send a message to the run, with files for the model.

        Raises:
            AttachmentError: a file is larger than the agent's limit.
            ConflictError: the run is not running.
            BusyError: too many messages wait for the run.
        """
        if self.unread >= MAX_UNREAD:
            raise BusyError(f"the run {self.record.id} has not read {self.unread} messages yet: wait until it has")
        if self.run is None or self.stop_reason or not self.run.steer(text, attachments):
            raise not_running(self.record)
        self.unread += 1
        self.attachments += tuple(attachments)

    def discard(self) -> None:
        """Stop a run that another process has ended, and store nothing more."""
        self.closed = True
        self.wake_readers()
        if self.run is not None:
            self.run.cancel("another process has ended the run")
        elif self.task is not None:
            self.task.cancel()

    def interrupt(self) -> None:
        """Stop the run because the server stops."""
        self.final_status = "interrupted"
        self.stop("the server stopped")

    async def changed(self, timeout: float | None) -> bool:
        """Wait for an event or the end of the run. Return false after a timeout."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            if timeout is None:
                await waiter
            else:
                await asyncio.wait([waiter], timeout=timeout)
            return waiter.done()
        finally:
            if not waiter.done() or waiter.cancelled():
                self._waiters = [each for each in self._waiters if each is not waiter]

    def wake_readers(self) -> None:
        """Wake all readers so that they check for new events."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)


def not_running(run: RunRecord) -> ConflictError:
    """Return the error for a message to a run that is not running."""
    return ConflictError(f"the run {run.id} is {run.status}: only a running run accepts messages")


def closing_event(run: RunRecord) -> RunClosed:
    """Return the last event of a finished run."""
    return RunClosed(
        at=run.ended or 0.0,
        run_id=run.id,
        status=run.status,
        reply=run.reply,
        error=run.error,
        reason=run.reason,
        usage=Usage(run.input_tokens, run.output_tokens, run.cached_tokens),
        cost=run.cost,
    )


class RunRecorder:
    """Write runs and events in a background thread, in the order of :meth:`put`, several in one transaction.

    After an error, everything that could not be written is kept and tried again.

    Args:
        store: the store.
        on_stored: called with the events that have been written.
        on_lost: called with the ids of runs that another process had ended.
        on_error: called when the file cannot be written, and then for everything that is queued.
    """

    def __init__(
        self,
        store: RunStore,
        on_stored: Callable[[Sequence[StoredEvent]], None],
        on_lost: Callable[[set[str]], None],
        on_error: Callable[[], None],
    ) -> None:
        self._store = store
        self._on_stored = on_stored
        self._on_lost = on_lost
        self._on_error = on_error
        self._runs: dict[str, RunRecord] = {}
        self._events: list[StoredEvent] = []
        self._records: list[RunFact | RunRecord] = []
        self._records_due: float | None = None
        """When the first of the records is to be written, by the clock of the event loop."""
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None
        self._thread = ThreadPoolExecutor(1, "hookline-runs")
        self._is_checking = self._is_closing = False
        self.problem = ""
        """Why the file cannot be written now; empty if it can."""

    def put(
        self,
        run: RunRecord | None = None,
        event: StoredEvent | None = None,
        record: RunFact | RunRecord | None = None,
    ) -> None:
        """Queue the current state of a run, an event, or a record of :meth:`RunStore.add`, for writing."""
        if event is not None:
            self._events.append(event)
        if run is not None:
            self._runs[run.id] = run
        if record is not None:
            self._records.append(record)
            if self._records_due is None:
                loop = asyncio.get_running_loop()
                self._records_due = loop.time() + FACT_SECONDS
                loop.call_at(self._records_due, self._start)
        if self._task is None and (event is not None or run is not None):
            self._start()
        if self.problem:  # readers get events from memory
            self._on_error()

    @property
    def _has_due_records(self) -> bool:
        due = self._records_due
        return due is not None and (self._is_closing or asyncio.get_running_loop().time() >= due)

    def report(self, problem: str) -> None:
        """Note that a run could not be stored. Until the file can be written again, :attr:`problem` says so."""
        self._fail((), problem)
        self._is_checking = True
        self._start()

    def _start(self) -> None:
        if self._task is None:
            self._task = asyncio.create_task(self._write(), context=Context())  # its log lines belong to no request

    async def flushed(self) -> None:
        """Wait until everything queued so far is in the file.

        Raises:
            UnavailableError: the file cannot be written now.
        """
        if self._records:
            self._start()
        if self._task is None:
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(done)
        await done

    async def close(self, seconds: float) -> None:
        """Write all queued items, for at most ``seconds``, and stop."""
        self._is_checking, self._is_closing = False, True
        if self._records:
            self._start()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=seconds)
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
            log.error("%d events of runs are lost: %s", len(self._events), self.problem)
        self._thread.shutdown()

    async def _write(self) -> None:
        loop = asyncio.get_running_loop()
        took = 0.0
        try:
            while self._runs or self._events or self._has_due_records or self._waiters or self._is_checking:
                if not self._waiters:  # a busy database gets larger transactions
                    await asyncio.sleep(RETRY_SECONDS if self._is_checking else max(COLLECT_SECONDS, took))
                runs, events, waiters = self._runs, self._events, self._waiters
                self._runs, self._events, self._waiters = {}, [], []
                records = list[RunFact | RunRecord]()
                if waiters or self._has_due_records:
                    records, self._records, self._records_due = self._records, [], None
                try:
                    # A caller may wait for writes that are done by now. An empty write could fail without anything left
                    # to try again, and the problem would stay.
                    lost = set[str]()
                    if runs or events or records or self._is_checking:
                        write = partial(self._store.write, runs.values(), events, records)
                        began = loop.time()
                        lost = await loop.run_in_executor(self._thread, write)
                        took = min(loop.time() - began, MAX_COLLECT_SECONDS)
                except BaseException as error:
                    self._runs, self._events = {**runs, **self._runs}, [*events, *self._events]
                    if records:
                        self._records, self._records_due = [*records, *self._records], 0.0
                    if not isinstance(error, Exception):
                        self._fail(waiters, self.problem or "the server stops")
                        raise
                    self._fail(waiters, error_text(error) or repr(error))
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self.problem, self._is_checking = "", False
                self._on_stored(events)
                if lost:
                    self._on_lost(lost)
                for each in waiters:
                    if not each.done():
                        each.set_result(None)
        finally:
            self._task = None

    def _fail(self, waiters: Sequence[asyncio.Future[None]], problem: str) -> None:
        if problem != self.problem:
            log.error("runs cannot be stored: %s", problem)
        self.problem = problem
        self._on_error()
        for each in waiters:
            if not each.done():
                each.set_exception(UnavailableError("runs cannot be stored now: try again later"))


class RunWatch:
    """Wait for changes of a run that another process executes. Call :meth:`close` when done.

    Args:
        store: the store of runs.
        run_id: the run.
    """

    def __init__(self, store: RunStore, run_id: str) -> None:
        self._store = store
        self.run_id = run_id
        self._stack = ExitStack()
        self._change = asyncio.Event()
        self._watching = False

    async def changed(self, timeout: float | None = None) -> None:
        """Return after a change, after ``timeout`` seconds, or after the polling interval: look at the run then.

        On PostgreSQL, the first call begins to watch and returns at once, because the run may have changed before.
        """
        if not self._watching and self._store.db.is_shared:
            self._watching = True
            loop = asyncio.get_running_loop()
            self._stack.enter_context(self._store.watch(self.run_id, partial(wake_from_thread, loop, self._change)))
            return
        poll = self._store.poll_seconds
        await wait_at_most(self._change, poll if timeout is None else min(poll, timeout))
        self._change.clear()

    def wake(self) -> None:
        """Let :meth:`changed` return at once."""
        self._change.set()

    def close(self) -> None:
        """Stop watching."""
        self._stack.close()


class EventReader:
    """Return the events of a run after a number, without loss or repetition, until the run has ended.

    A reader holds no events, so slow readers cost no memory. Call :meth:`close` when done, also before the end.

    Args:
        run: the run.
        after: the number of the last event that the client has read.
        store: the store of events.
        find_live: finds a run of this process by id.
        load: loads the record of a run.
        on_close: called once, when the reader is closed.
        is_stopping: whether the server stops.
        watch: waits for changes by another process.
    """

    def __init__(
        self,
        run: RunRecord,
        after: int,
        store: RunStore,
        find_live: Callable[[str], LiveRun | None],
        load: Callable[[str], Awaitable[RunRecord]],
        on_close: Callable[[], None],
        is_stopping: Callable[[], bool],
        watch: RunWatch,
    ) -> None:
        self.run_id = run.id
        self.seq = max(0, after)
        self._store = store
        self._find_live = find_live
        self._load = load
        self._on_close: Callable[[], None] | None = on_close
        self._is_stopping = is_stopping
        self._live: LiveRun | None = None
        self._watch = watch

    async def more(self, timeout: float | None = None) -> Sequence[StoredEvent] | None:
        """Wait for the next events. Return an empty list after ``timeout`` seconds, and ``None`` after the last event.

        ``None`` is also returned when the server stops while the run goes on in another process. Events that have
        happened but are not in the file yet are waited for regardless of the timeout.

        Raises:
            StoreError: the file cannot be read.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:
            if self._live is None or self._live.detached:
                self._live = self._find_live(self.run_id)
            left = None if deadline is None else deadline - time.monotonic()
            found = await self._from_file() if self._live is None else self._live.events_after(self.seq, PAGE_EVENTS)
            if found is None:
                found = await self._from_file()
            if found:
                found = limit_bytes(found, PAGE_BYTES)
                self.seq = found[-1].seq
                return found
            if self._live is not None:
                if self._live.is_read(self.seq):
                    return None
                if self._live.last_seq > self.seq:  # further events are being written
                    left = None
                if (left is not None and left <= 0) or not await self._live.changed(left):
                    return ()
                continue
            run = await self._load(self.run_id)
            if run.last_seq <= self.seq if run.is_over else self._is_stopping():
                return None
            if left is not None and left <= 0:
                return ()
            if not run.is_over:
                await self._watch.changed(left)

    async def _from_file(self) -> Sequence[StoredEvent]:
        return await asyncio.to_thread(self._store.events, self.run_id, self.seq, PAGE_EVENTS, PAGE_BYTES)

    async def __aiter__(self) -> AsyncIterator[StoredEvent]:
        """Iterate over single events."""
        while (found := await self.more()) is not None:
            for event in found:
                yield event

    def close(self) -> None:
        """Stop reading. Later calls are ignored."""
        self._watch.close()
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()
