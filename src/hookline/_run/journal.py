"""The journal of a durable run: its values, its writer, and the store that it needs (DESIGN 6.17)."""

from __future__ import annotations

import asyncio
import contextvars
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from contextvars import ContextVar
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec

from .._base.attachment import Attachment, known_content
from .._base.attachment_files import available_data
from .._base.errors import PlainError
from .._base.frozen import Frozen, encoded, json_encoder
from .._base.tasks import forever, running_loop
from .._base.workers import call_in_thread, in_thread
from .._kernel.errors import CallRefusedError, HooklineError
from .._kernel.events import Event
from .._kernel.payloads import ApprovalAnswer, ToolCallRequest
from .._kernel.values import ErrorInfo, Ids, Message, ModelResponse, StopSignal, Usage
from .._sensitive.encryption import decrypted
from .budget import Spending
from .events import log
from .halt import Halt
from .replay_values import ErrorSnapshot

JOURNAL_FORMAT = 3
"""Version of the entries of a journal. It increases when older journals can no longer be resumed."""

CONTROL: ContextVar[str] = ContextVar("hookline_durable_control", default="")
"""The id of the control message that is being carried out. It is the key of the entry in the journal."""

COLLECT_SECONDS = 0.005
"""Seconds for which entries are collected before a commit, if no task waits for them: a commit is expensive."""
MAX_COLLECT_SECONDS = 0.1
"""The same if commits take long, because the database has much to do: as long as the last one took, up to this time."""
RUN_STATUSES = frozenset(("completed", "stopped", "ended", "failed", "cancelled"))


class RunHeldError(HooklineError):
    """Another process executes the run, or its lease has not expired yet."""

    def __init__(self, run_id: str, host: str, pid: int, seconds: float) -> None:
        super().__init__(
            f"run {run_id} is executed by process {pid} on {host}: if that process hangs, end it, or try again in "
            f"{seconds:.0f} s if it does not renew its lease"
        )


class LeaseLostError(HooklineError):
    """Another process has taken over the run, so this process has stopped executing it."""

    def __init__(self, run_id: str) -> None:
        super().__init__(f"run {run_id} was taken over by another process, which stores its result")
        self.run_id = run_id


class RecoveryError(HooklineError):
    """A run cannot be resumed, because it differs from its journal; the message names the first difference."""


class JournalFormatError(RecoveryError):
    """A run cannot be resumed, because a version of Hookline with another format of journals began it.

    ``run_id`` identifies the run, ``format`` is the format of its journal, and ``digest`` identifies the hooks,
    instructions and tools of a served run. The run is not changed.
    """

    def __init__(self, run_id: str, format: int, digest: str = "") -> None:
        super().__init__(
            f"run {run_id} cannot be continued: its journal has format {format}, and this version of Hookline reads "
            f"only format {JOURNAL_FORMAT}. Continue it with the version of Hookline that began it, or start its task "
            "again as a new run; the run is unchanged"
        )
        self.run_id, self.format, self.digest = run_id, format, digest


class RunWaitingError(HooklineError):
    """A durable run is suspended until its calls are approved or denied.

    ``run_id`` identifies the run; ``calls`` are the calls that wait for approval.

    Example::

        try:
            result = agent.run("Pay the invoice.", durable=store, run_id="invoice-17")
        except RunWaitingError as waiting:
            print("waiting for approval:", waiting.calls)
    """

    def __init__(self, run_id: str, calls: Sequence[ToolCallRequest]) -> None:
        names = ", ".join(dict.fromkeys(call.name for call in calls))
        super().__init__(f"run {run_id} waits for the approval of {names}: resume it after the decision")
        self.run_id = run_id
        self.calls = tuple(calls)


class RunSuspendedError(HooklineError):
    """This process has suspended a durable run. This or another process can resume it.

    ``run_id`` identifies the run.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(
            f"run {run_id} is suspended in this process: to resume it, repeat the call here or in another process"
        )
        self.run_id = run_id


class RunHaltedError(RunSuspendedError):
    """A durable run is suspended because a stop switch is on. Resume it after the release.

    ``run_id`` identifies the run, and ``halt`` says why, who switched it on, and when.
    """

    def __init__(self, run_id: str, halt: Halt) -> None:
        HooklineError.__init__(self, f"run {run_id} is suspended ({halt.text}): resume it after the release")
        self.run_id, self.halt = run_id, halt


class RunPinnedError(HooklineError):
    """A durable run was started with other hooks, instructions or tools, so this process cannot resume it."""

    def __init__(self, run_id: str, digest: str) -> None:
        super().__init__(
            f"run {run_id} was started with other hooks, instructions or tools (digest {digest}): resume it in a "
            "process that has them"
        )
        self.run_id, self.digest = run_id, digest


class OutcomeUnknownError(PlainError):
    """The process ended during a call of a tool that must not be called twice."""


class StoredRun(msgspec.Struct, frozen=True):
    """A durable run in a store.

    ``start`` is its input and ``result`` its result, both as JSON. For a suspended run, ``result`` lists the calls that
    wait for approval (see :func:`waiting_calls`). ``attempts`` counts how often a process claimed the run since a
    process last released it. An attempt that ended because the database could not be used does not count. ``digest``
    identifies the hooks, instructions and tools that a served run was started with.
    """

    run_id: str
    agent: str
    status: str
    epoch: int
    lease: float
    host: str
    pid: int
    born: float | None
    attempts: int
    created: float
    changed: float
    start: bytes
    result: bytes | None
    digest: str = ""

    @property
    def is_over(self) -> bool:
        """Whether the run has ended."""
        return self.status in RUN_STATUSES

    def check_key(self) -> None:
        """Check that this process can read the input and the result of the run. A store decrypts them where it can.

        Raises:
            DataKeyError: they are encrypted, and this process does not have the key.
        """
        what = f"the journal of run {self.run_id}"
        decrypted(self.start, what)
        decrypted(self.result or b"", what)

    def check_format(self) -> None:
        """Check that this version of Hookline can resume the run.

        Raises:
            JournalFormatError: the run has begun, and its journal has another format.
        """
        if self.epoch and (format := format_of(self.start)) != JOURNAL_FORMAT:
            raise JournalFormatError(self.run_id, format, self.digest)


class Claim(msgspec.Struct, frozen=True):
    """The right to execute a run: its epoch, the number of its last event, and its journal."""

    run: StoredRun
    epoch: int
    last_event: int
    entries: tuple[bytes, ...]


EventRow = tuple[int, str, float, bytes]
"""An event: number, type, time, and JSON."""


class Append(msgspec.Struct, frozen=True):
    """A write to the journal of a run: one transaction, which fails if the epoch is not the current one.

    ``seq`` is the number of the first entry. A ``status`` ends the lease: ``waiting``, ``interrupted``, or the status
    of the result. ``result`` is the result of an ended run, or the calls that a suspended run waits for, as JSON.
    ``recovery_seconds`` is the time since the claim, in the first write of a process that resumes a run. ``following``
    is the run to create after a handoff: its id, agent and input. ``records`` are what the store keeps about runs for
    statistics.
    """

    run_id: str
    epoch: int
    seq: int
    entries: Sequence[bytes] = ()
    events: Sequence[EventRow] = ()
    status: str = ""
    result: bytes | None = None
    recovery_seconds: float | None = None
    following: tuple[str, str, bytes] | None = None
    records: Sequence[Any] = ()


class Journal(Protocol):
    """A store of journals (``stores/journal.py``). The methods block."""

    lease_seconds: float

    def get(self, run_id: str) -> StoredRun | None:
        """Return a run."""
        ...

    def claim(self, run_id: str, agent: str, start: bytes, digest: str = "") -> Claim:
        """Take the lease of a run, or create it."""
        ...

    def entries(self, run_id: str) -> tuple[bytes, ...]:
        """Return the entries of a run."""
        ...

    def renew(self, run_id: str, epoch: int) -> None:
        """Extend the lease."""
        ...

    def append(self, write: Append) -> None:
        """Write entries and events in one transaction."""
        ...

    def is_in(self, database: Any) -> bool:
        """Whether the journals are in this database."""
        ...

    def discount(self, run_id: str, epoch: int) -> None:
        """Do not count an attempt that ended because the database could not be used."""
        ...

    def abandon(self, run_id: str, epoch: int) -> None:
        """Let this process claim the run again, although the database could not be used to end its lease."""
        ...


class JournalStore(Protocol):
    """A store that ``durable=`` takes: a :class:`hookline.stores.RunStore`."""

    @property
    def journal(self) -> Journal:
        """The journals of the store."""
        ...


class RunHead(Frozen, frozen=True, omit_defaults=True):
    """The input of a durable run, which recovery starts from.

    ``spent`` is the earlier spending of the conversation. The input of a run after a handoff also contains the changes
    of the handoff in the session: the agent or personality that answers, and the agents whose guards still apply.
    ``settings`` are those with which a program was told to begin it, for the program that continues it. ``origin`` says
    where the run came from, and ``listed`` is the task for the list of runs, if hooks of the agent replace a part of
    everything that is stored.
    """

    ids: Ids = Ids()
    task: str = ""
    messages: tuple[Message, ...] = ()
    metadata: Any = None
    fresh: bool = True
    attachments: tuple[Attachment, ...] = ()
    contents: Mapping[str, bytes] = {}
    spent: Spending = Spending()
    personality: str = ""
    personality_changes: Any = None
    handed_over_by: tuple[str, ...] = ()
    settings: Any = None
    origin: str = ""
    listed: str | None = None


def listed_task(task: str, clean: Callable[[str], str]) -> str | None:
    """Return the task for the list of runs; ``None`` if it is the task itself."""
    listed = clean(task)
    return None if listed == task else listed


class JournalEntry(msgspec.Struct, array_like=True, frozen=True):
    """An entry of a journal. Entries of one lane have a fixed order."""

    lane: str
    kind: str
    key: str = ""
    data: msgspec.Raw = msgspec.Raw(b"null")


class Refusal(msgspec.Struct, omit_defaults=True):
    """The refusal of a call of ``ctx.llm`` inside a tool or a hook."""

    message: str
    status: str
    reply: str = ""
    hook: str = ""
    reason: str = ""

    def error(self) -> CallRefusedError:
        """Return the refusal as an error."""
        return CallRefusedError(**msgspec.structs.asdict(self))


class JournalAnswer(msgspec.Struct, omit_defaults=True):
    """The outcome of a call. ``cut`` means that the call was cancelled, ``timed_out`` that its tool timed out."""

    pieces: Sequence[str] = ()
    response: ModelResponse | None = None
    value: Any = None
    attachments: tuple[Attachment, ...] = ()
    contents: Mapping[str, bytes] = {}
    approval: ApprovalAnswer | None = None
    by: str = ""
    failures: tuple[ErrorInfo, ...] = ()
    failed: ErrorInfo | None = None
    raised: ErrorSnapshot | None = None
    refused: Refusal | None = None
    timed_out: bool = False
    cut: bool = False


class Steering(msgspec.Struct, omit_defaults=True):
    """A steering message for a run."""

    run: str
    message: Message
    contents: Mapping[str, bytes] = {}


class Spent(msgspec.Struct, array_like=True):
    """Usage of a model call inside a tool or an observer, a tool call there, or a signal that one of them set."""

    run: str
    usage: Usage = Usage()
    cost: float | None = None
    is_tool_call: bool = False
    signal: StopSignal | None = None


HasContents = TypeVar("HasContents", bound=RunHead | JournalAnswer | Steering)

entry_decoder = msgspec.json.Decoder(JournalEntry)
answer_decoder = msgspec.json.Decoder(JournalAnswer)
head_decoder = msgspec.json.Decoder(RunHead)
steering_decoder = msgspec.json.Decoder(Steering)
spent_decoder = msgspec.json.Decoder(Spent)
failures_decoder = msgspec.json.Decoder(tuple[ErrorInfo, ...] | None)


def following_id(run_id: str) -> str:
    """Return the id of the durable run that follows after a handoff: ``order-7``, ``order-7+1``, ``order-7+2``."""
    first, _, count = run_id.rpartition("+")
    return f"{first}+{int(count) + 1}" if first and count.isdecimal() else f"{run_id}+1"


class _Format(msgspec.Struct):
    format: int = 1


def format_of(start: bytes) -> int:
    """Return the format of the journal of a run, which is stored with its input. Format 1 was not stored."""
    return msgspec.json.decode(start, type=_Format).format


def with_format(start: bytes) -> bytes:
    """Return the input of a run that begins now, with the format of its journal."""
    return msgspec.json.encode({"format": JOURNAL_FORMAT, **msgspec.json.decode(start, type=dict[str, msgspec.Raw])})


def head_of(run: StoredRun) -> RunHead:
    """Return the input of a stored run.

    Raises:
        DataKeyError: it is encrypted, and this process does not have the key.
    """
    run.check_key()
    return with_contents(head_decoder, run.start)


def stored_head(journal: Journal, run_id: str, agent: str, task: str) -> RunHead | None:
    """Return the input of a run, or ``None`` if the store does not have the run.

    Raises:
        HooklineError: it is a run of another agent or task.
    """
    stored = journal.get(run_id)
    if stored is None:
        return None
    head = head_of(stored)
    if head.ids.agent != agent:
        raise HooklineError(f"run {run_id} was started by agent {head.ids.agent!r}, not {agent!r}")
    if head.task != task:
        raise HooklineError(f"run {run_id} has another task: {head.task!r:.80}; use another run_id")
    return head


def waiting_calls(run: StoredRun) -> tuple[tuple[str, str, int], ...]:
    """Return the calls that a suspended run waits for: the id of the run, the id of the call and its attempt."""
    return msgspec.json.decode(run.result or b"[]", type=tuple[tuple[str, str, int], ...])


def control_of(entry: bytes) -> str:
    """Return the id of the control message of an encoded entry; empty if it has none."""
    return entry_decoder.decode(entry).key if entry.startswith((b'["","steer","', b'["","cancel","')) else ""


def contents_of(attachments: Sequence[Attachment]) -> dict[str, bytes]:
    """Return the contents of attachments by digest, for the journal."""
    return {each.digest: data for each in attachments if (data := available_data(each)) is not None}


def with_contents(decoder: msgspec.json.Decoder[HasContents], data: bytes | msgspec.Raw) -> HasContents:
    """Decode a value that contains attachments and, separately, their contents."""
    decoded = decoder.decode(data)
    if not decoded.contents:
        return decoded
    kept = [known_content(digest, partial(bytes, content)) for digest, content in decoded.contents.items()]
    again = decoder.decode(data)  # its attachments find the contents by their digests
    del kept
    return again


_Flush = tuple[str, bytes | None, asyncio.Future[bool]]
"""Status and result to write, and a future whose result says whether all entries so far are committed."""


class Writer:
    """Writes the journal of one run in the background, and keeps its lease."""

    def __init__(
        self, journal: Journal, claim: Claim, claimed_at: float, fail: Callable[[BaseException], None]
    ) -> None:
        self._journal, self._run_id, self._epoch = journal, claim.run.run_id, claim.epoch
        self._fail = fail
        self._next = len(claim.entries) + 1
        self._last_event = claim.last_event
        self._lock = threading.Lock()
        self._appending = threading.Lock()
        """Held during a write, because the order of writes is the order of the journal."""
        self._drawn: dict[str, list[tuple[str, Any]]] = {}
        self._entries: list[bytes] = []
        self._events: list[EventRow] = []
        self._records: list[Any] = []
        self._flushes: list[_Flush] = []
        self._is_writing = False
        self._timer: asyncio.TimerHandle | None = None
        self._commit_seconds = 0.0
        """Seconds that the last write took."""
        self._loop: asyncio.AbstractEventLoop | None = None
        self._deadline = claimed_at + journal.lease_seconds
        self._recovers_since = claimed_at if claim.entries else None
        self.muted = claim.epoch == 0
        """Whether new entries and events are dropped."""
        self.is_ending = False
        """Whether a write that ends the lease has been requested."""
        self.is_released = False
        """Whether this process has ended its lease, or has lost it."""
        self._is_closing = False
        """Whether earlier entries must still be written, although new ones are dropped."""
        self.is_held = False
        """Whether only requested commits are written, so that a failed recovery leaves the journal unchanged."""
        self.count = 0
        """Number of entries so far. It changes whenever the run does something."""
        self.committed = 0
        """Number of these entries that are committed."""
        self.following: tuple[str, str, bytes] | None = None
        """The run to create when this one ends, because of a handoff."""

    def put(self, lane: str, kind: str, key: str = "", data: Any = None) -> None:
        """Append an entry, from any thread. A later transaction writes it."""
        if not self.muted:
            self.add_entry(lane, kind, key, data)
            self._start()

    def add_entry(self, lane: str, kind: str, key: str, data: Any) -> None:
        """Append an entry to the next transaction."""
        entry = encoded((lane, kind, key, data))
        with self._lock:
            self._entries.append(entry)
            self.count += 1

    def put_draw(self, lane: str, kind: str, value: Any) -> None:
        """Append a value that the run has read. It is written before the next entry of any lane."""
        if not self.muted:
            with self._lock:
                self._drawn.setdefault(lane, []).append((kind, value))

    def put_event(self, event: Event) -> None:
        """Append an event, with the next number."""
        if self.muted:
            return
        with self._lock:
            self._last_event += 1
            stored = msgspec.structs.replace(event, seq=self._last_event)
            tag = str(event.__struct_config__.tag)
            self._events.append((self._last_event, tag, event.at, encoded(stored)))
        self._start()

    def put_numbered(self, row: EventRow) -> None:
        """Append an event that the caller has numbered."""
        if not self.muted:
            with self._lock:
                self._events.append(row)
            self._start()

    def put_record(self, record: Any) -> bool:
        """Append a record about a run to the next transaction. Return false if there will be none."""
        if self.muted:
            return False
        with self._lock:
            self._records.append(record)
        return True

    async def flush(self, status: str = "", result: bytes | None = None) -> bool:
        """Wait until all entries are committed; with a status, end the lease in the same transaction.

        Returns false if this process no longer executes the run.
        """
        if self.muted:
            return False
        if self.is_in_own_loop:
            return await self._request(status, result)
        # A run that a hook started in another thread has its own loop, and the hook may block the loop of the journal.
        return bool(await in_thread(self._write_here))

    def suspend(self, result: bytes) -> asyncio.Future[bool]:
        """Write all entries, and end the lease of a run that waits for the approval of the calls in ``result``.

        Returns a future whose result says whether the write is committed.
        """
        return self._request("waiting", result)

    def close(self) -> asyncio.Future[bool] | None:
        """Drop new entries, write the existing ones, and end the lease, so that another process can resume the run.

        During recovery, only the end of the lease is written. Returns a future that is done when the lease has ended;
        ``None`` if it had ended before. If the end of the run is already being written, that write is not changed.
        """
        if self.muted:
            return None
        if self.is_ending:
            return self._request("", None)
        self.muted = self._is_closing = True
        if self.is_held:
            self._take_pending()
        return self._request("interrupted", None)

    def _request(self, status: str, result: bytes | None) -> asyncio.Future[bool]:
        """Request an immediate write of all entries so far."""
        self.is_ending = self.is_ending or bool(status)
        done: asyncio.Future[bool] = (self._loop or asyncio.get_running_loop()).create_future()
        self._flushes.append((status, result, done))
        self._start(at_once=True)
        return done

    def end_hold(self) -> None:
        """Write the entries that recovery held back."""
        if self.is_held:
            self.is_held = False
            if self._entries or self._events:
                self._start()

    def begin(self) -> None:
        """Use the running event loop for the writes."""
        self._loop = asyncio.get_running_loop()

    @property
    def is_in_own_loop(self) -> bool:
        """Whether the current code runs in the event loop of the writes."""
        return self._loop is None or running_loop() is self._loop

    async def keep_lease(self) -> None:
        """Renew the lease until the run ends."""
        while True:
            await asyncio.sleep(self._journal.lease_seconds / 3)
            if self.muted:
                return
            try:
                await self._renew()
            except HooklineError as error:
                log.warning("the lease of run %s could not be renewed: %s", self._run_id, error)

    async def release(self) -> None:
        """End the lease of a run that this process cannot continue. No entry is written.

        If another process has claimed the run in the meantime, the attempt of this process does not count.
        """
        try:
            if not self.is_released:
                await in_thread(self._give_back)
                self.is_released = True
        except HooklineError:  # the database cannot be used: for other processes, the lease expires
            self._journal.abandon(self._run_id, self._epoch)

    def _give_back(self) -> None:
        try:
            self._journal.append(Append(self._run_id, self._epoch, self._next, status="interrupted"))
        except LeaseLostError:
            self._journal.discount(self._run_id, self._epoch)

    async def check_lease(self) -> None:
        """Make sure that this process holds the lease; renew it if it may have expired. Otherwise, do not return."""
        if time.monotonic() >= self._deadline:
            try:
                await self._renew()
            except HooklineError as error:
                self._fail(error)
                await forever()

    async def _renew(self) -> None:
        began = time.monotonic()
        try:
            await in_thread(self._journal.renew, self._run_id, self._epoch)
            self._deadline = began + self._journal.lease_seconds
        except LeaseLostError as error:
            if self.is_released:  # the run has ended meanwhile, and a detached run goes on
                return
            self._fail(error)
            await forever()

    def _start(self, *, at_once: bool = False) -> None:
        """Schedule a write of the pending entries, in the event loop of the run, unless a write is under way."""
        if self._is_writing or (self._timer is not None and not at_once):
            return
        loop = running_loop()
        if self._loop is None:
            self._loop = loop
        if self._loop is None or (self.is_held and not self._flushes):
            return
        if loop is None or loop is not self._loop:
            with suppress(RuntimeError):  # the loop is closed
                self._loop.call_soon_threadsafe(self._start)
            return
        if self._timer is not None:
            self._timer.cancel()
        self._is_writing = at_once
        context = contextvars.Context()
        if at_once:
            loop.call_soon(self._write, context=context)
        else:
            seconds = max(COLLECT_SECONDS, min(self._commit_seconds, MAX_COLLECT_SECONDS))
            self._timer = loop.call_later(seconds, self._write, context=context)

    def _take_pending(self) -> tuple[list[bytes], list[EventRow], list[Any], int]:
        """Return the entries, events and records to write, and the number of entries up to the last of them."""
        with self._lock:
            draws = [json_encoder.encode((lane, "draws", "", values)) for lane, values in self._drawn.items()]
            entries, events, records = self._entries, self._events, self._records
            self._drawn, self._entries, self._events, self._records = {}, [], [], []
            return [*draws, *entries], events, records, self.count

    def _write(self) -> None:
        """Write all pending entries, in a thread. Entries that are added in the meantime are in the next write."""
        self._timer = None
        if not self._appending.acquire(blocking=False):  # a run in another thread writes, and then starts this write
            self._is_writing = False
            return
        flushes = self._flushes
        self._is_writing = bool(self._entries or self._events or flushes) and (not self.muted or self._is_closing)
        if not self._is_writing:
            self._appending.release()
            _resolve(flushes, False)
            return
        self._flushes = []
        entries, events, records, count = self._take_pending()
        status, result = next(((status, result) for status, result, _ in flushes if status), ("", None))
        began = time.monotonic()
        recovery = None if self._recovers_since is None else began - self._recovers_since
        following = self.following if status in RUN_STATUSES else None
        about = self._run_id, self._epoch, self._next
        write = Append(*about, entries, events, status, result, recovery, following, records)
        call_in_thread(partial(self._append, write, count), partial(self._written, write, began, flushes))

    def _append(self, write: Append, count: int) -> None:
        """Write to the journal, and let the next write begin."""
        try:
            self._journal.append(write)
            self._next += len(write.entries)
            self.committed = count
            if write.status:  # a detached run in another thread writes nothing from here on
                self.muted = self.is_released = True
        finally:
            self._appending.release()

    def _write_here(self) -> bool:
        """Write all pending entries in this thread. Return false if this process no longer executes the run."""
        self._appending.acquire()
        if self.muted:
            self._appending.release()
            return False
        entries, events, records, count = self._take_pending()
        try:
            write = Append(self._run_id, self._epoch, self._next, entries, events, records=records)
            self._append(write, count)
            return True
        except HooklineError as error:
            self._fail(error)
            return False
        finally:
            if self._loop is not None:
                with suppress(RuntimeError):  # the loop is closed
                    self._loop.call_soon_threadsafe(partial(self._start, at_once=True))

    def _written(self, write: Append, began: float, flushes: list[_Flush], error: BaseException | None) -> None:
        """Wake the tasks that wait for a write, and begin the next write."""
        self._recovers_since = None
        self._commit_seconds = time.monotonic() - began
        if error is not None:  # the run must not go on without its journal
            self._is_closing = False
            self._fail(error)
        else:
            if write.status:
                self._is_closing = False
            if self._deadline < began:  # no process has claimed the run, but the lease must be renewed before a call
                self._deadline = 0.0
        _resolve(flushes, error is None)
        if self._flushes or self.muted:
            self._write()
        else:
            self._is_writing = False
            if self._entries or self._events:
                self._start()


def _resolve(flushes: Sequence[_Flush], committed: bool) -> None:
    for _, _, done in flushes:
        if not done.done():
            done.set_result(committed)
