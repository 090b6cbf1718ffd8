"""Durable served runs: execute them from their journals, and suspend them (DESIGN 6.17)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from .._base.attachment import Attachment
from .._base.frozen import json_encoder, plain
from .._base.text import error_text
from .._kernel.errors import HooklineError
from .._kernel.values import Ids
from .._run.durable import DurableRun
from .._run.journal import (
    NO_MARK,
    RUN_STATUSES,
    Append,
    Claim,
    JournalAnswer,
    JournalFormatError,
    LeaseLostError,
    RecoveryError,
    RunHead,
    RunHeldError,
    RunPinnedError,
    RunSuspendedError,
    RunWaitingError,
    StoredRun,
    contents_of,
    control_of,
    waiting_calls,
    with_contents,
)
from .._run.session import Session
from ..stores.approvals import ApprovalStore
from ..stores.errors import StoreError
from ..stores.pinning import digest_of, version_of
from ..stores.runs import Accepted, IdempotencyKey, RunRecord, RunStore, StoredEvent, run_row
from ..stores.sessions import SessionRecord
from .agents import Agents
from .auth import Caller
from .control import DONE, Cancel, ControlReceiver
from .errors import UnknownAgentError
from .executor import RunExecutor
from .live_run import LiveRun, closing_event
from .options import ServerOptions
from .queue import LocalQueue, RunQueue

log = logging.getLogger("hookline")

CHECK_SECONDS = 1.0
"""Interval in seconds at which runs are looked for that no process executes, or whose approval was decided."""
CANCEL_SECONDS = 5.0
"""Seconds for which a server that executes no runs leaves the cancellation of a run to a worker."""
MAX_ASK_SECONDS = 60.0
"""Longest interval in seconds at which a run is continued that waits for an approver of its own."""
MAX_WAITING = 100_000
"""Maximum number of waiting runs and calls that are looked at."""


def open_queue(store: RunStore, concurrency: int) -> RunQueue:
    """Return the queue for a store: on PostgreSQL all processes share one, otherwise the process has its own."""
    if store.db.is_shared:
        from .postgres_queue import PostgresQueue

        return PostgresQueue(store, concurrency)
    return LocalQueue(concurrency)


class ServedHead(RunHead, frozen=True, omit_defaults=True):
    """The input of a served run. With ``keeps_session``, ``messages`` is the conversation, which the caller keeps."""

    keeps_session: bool = False


_heads = msgspec.json.Decoder(ServedHead)


class DurableRuns:
    """Execute the durable runs of a store, here or in other processes that share it.

    Args:
        executor: runs the agents.
        agents: the served agents.
        store: the store of runs, events and journals.
        approvals: the store of calls that wait for approval.
        queue: tells which run is next.
        live: the runs of this process by id.
        controls: takes the messages to the runs of this process.
        on_executing: called when this process begins or ceases to execute a run.
        options: limits: ``max_attempts`` and ``pin_seconds``.
    """

    def __init__(
        self,
        executor: RunExecutor,
        agents: Agents,
        store: RunStore,
        approvals: ApprovalStore,
        queue: RunQueue,
        live: dict[str, LiveRun],
        controls: ControlReceiver,
        on_executing: Callable[[str], None],
        options: ServerOptions,
    ) -> None:
        self._executor = executor
        self._agents = agents
        self._store = store
        self._approvals = approvals
        self._queue = queue
        self._live = live
        self._controls = controls
        self._on_executing = on_executing
        self._max_attempts = options.max_attempts
        self._pin_seconds = options.pin_seconds
        self._queued: dict[str, float] = {}
        """When this process found a run that nobody executes, and queued it."""
        self._pinned: dict[str, float] = {}
        """By the runs that no process can continue, when this process noticed it."""
        self._durable: dict[str, DurableRun] = {}
        self._unreleased: dict[str, DurableRun] = {}
        """Runs that this process ceased to execute because of the database, and whose lease it could not end yet."""
        self._logged: set[str] = set()
        """Runs that this process leaves to others for a reason that has been logged."""
        self._stop_reasons: dict[str, str] = {}
        self._claiming: set[str] = set()
        self._task: asyncio.Task[None] | None = None
        self._is_leaving = False
        self.executes = True
        """Whether this process executes runs."""

    # Start and stop.

    async def open(self, *, execute: bool = True) -> None:
        """Start to execute runs; without ``execute``, only queue them.

        Raises:
            StoreError: the database cannot be used.
        """
        self.executes = execute
        await self._queue.open(self.execute if execute else None, self.digests)
        if execute:
            await asyncio.to_thread(self._register)
            log.info("durable runs are pinned to the digest %s", ", ".join(self.digests))
            await self._look()
            self._task = asyncio.create_task(self._keep_looking(), name="hookline-durable")

    async def suspend(self, grace: float) -> None:
        """Suspend all runs after their calls in flight, which get ``grace`` seconds: other processes resume them."""
        self._is_leaving = True
        if self._task is not None:
            self._task.cancel()
        self._queue.pause()
        await asyncio.gather(*(durable.suspend_after(grace) for durable in list(self._durable.values())))

    async def close(self) -> None:
        """Suspend all runs at once, and close the queue."""
        await self.suspend(0.0)
        await self._release()
        with suppress(StoreError):  # then the row is ignored, because the process has ended
            await asyncio.to_thread(self._store.workers.unregister)
        await self._queue.close()

    @property
    def digests(self) -> list[str]:
        """The digests of the agents of this process."""
        return sorted({digest_of(self._agents.find(served.name)[1]) for served in self._agents.list()})

    def _register(self) -> None:
        """Say which versions this process has."""
        versions = [version_of(self._agents.find(served.name)[1]) for served in self._agents.list()]
        self._store.workers.register({version.digest: version.parts for version in versions})

    # Accepting.

    async def accept(
        self,
        record: RunRecord,
        event: StoredEvent,
        caller: Caller,
        personality: str,
        given: Session | None,
        attachments: Sequence[Attachment],
        key: IdempotencyKey | None,
        limit: int,
    ) -> Accepted:
        """Store a new run and queue it, in one transaction: once it is stored, it will be executed.

        Args:
            record: the run.
            event: its first event.
            caller: its owner.
            personality: the personality that answers.
            given: the conversation before the task, if the caller keeps it.
            attachments: files for the model.
            key: the idempotency key.
            limit: maximum number of unfinished runs of the caller.

        Raises:
            StoreError: the database cannot be used.
        """
        head = ServedHead(
            ids=Ids(record.id, record.task_id, record.correlation_id, record.session_id, record.agent),
            task=record.task,
            messages=() if given is None else tuple(given.messages),
            metadata=plain(self._executor.metadata_of(record, caller)),
            attachments=tuple(attachments),
            contents=contents_of(attachments),
            personality=personality,
            keeps_session=given is not None,
        )
        start, job = json_encoder.encode(head), self._queue.put_in(record.id, record.session_id)
        store = partial(self._store.accept, record, event, start, key=key, limit=limit, also=job)
        accepted = await asyncio.to_thread(store)
        if accepted.stored and job is None:
            await self._put(record.id, record.session_id)
        return accepted

    async def _put(self, run_id: str, session_id: str, digest: str = "") -> None:
        if digest and not self._store.db.is_shared and digest not in self.digests:
            return  # only this process has the queue
        try:
            await self._queue.put(run_id, session_id, digest)
        except StoreError as error:  # it is found again when the queue can be used
            log.error("the run %s could not be queued: %s", run_id, error_text(error))

    # Finding runs.

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                # A new run is in the queue. If its job was lost, it is found later.
                shared = self._store.db.is_shared
                await self._release()
                await asyncio.to_thread(self._register)
                await self._look(self._store.journal.lease_seconds if shared else 0.0)
            except StoreError as error:
                log.error("the durable runs cannot be read: %s", error_text(error))
            except Exception:
                log.exception("a durable run could not be queued")

    async def _release(self) -> None:
        """Give back the runs whose lease could not be ended when the database failed.

        They go on at once, and the outage does not count as an end of their process.
        """
        for run_id, durable in list(self._unreleased.items()):
            if await durable.release():
                self._unreleased.pop(run_id, None)

    async def _look(self, queued_seconds: float = 0.0) -> None:
        """Queue the runs that no process executes, and those that wait for an approval that was decided."""
        free = await asyncio.to_thread(self._store.to_execute, queued_seconds)
        for run in await asyncio.to_thread(self._decided):
            record = await asyncio.to_thread(self._store.get, run.run_id)
            if record is not None and record.is_durable:  # others belong to gateways and programs
                free.append((run.run_id, record.session_id, run.digest))
        have = {"", *self.digests}
        if not have.issuperset(digest for _, _, digest in free):
            have |= await asyncio.to_thread(self._store.workers.digests)
        shared, now = self._store.db.is_shared, time.monotonic()
        recent = now - self._store.journal.lease_seconds / 3
        self._queued = {run_id: at for run_id, at in self._queued.items() if at > recent}
        for run_id, session_id, digest in free:
            if digest in have and run_id not in self._queued:
                await self._put(run_id, session_id, digest)
                if shared:  # its job waits for a free process
                    self._queued[run_id] = now
        pinned = [run_id for run_id, _, digest in free if digest not in have]
        self._pinned = {run_id: self._pinned.get(run_id, 0.0) for run_id in pinned}
        for run_id in pinned:
            await self._report_pinned(run_id)

    async def _report_pinned(self, run_id: str) -> None:
        """Log that no process can continue a run, once; end the run after a time."""
        since = self._pinned[run_id]
        if since and time.monotonic() < since + self._pin_seconds:
            return
        for run in await asyncio.to_thread(self._store.workers.pinned, run_id):
            if not since:
                log.warning("%s", run.problem)
                self._pinned[run_id] = time.monotonic()
                continue
            with suppress(RunHeldError):
                await self._end(run_id, "failed", error=run.refusal)

    def _decided(self, run_id: str = "") -> list[StoredRun]:
        """Return the runs that were suspended and need not wait any more; with an id, only this run.

        A call of such a run was decided, or the run is to be cancelled: the message came too late for the process that
        had it.
        """
        if run_id:
            found = self._store.journal.get(run_id)
            waiting = [found] if found is not None and found.status == "waiting" else []
        else:
            waiting = self._store.journal.runs("waiting", limit=MAX_WAITING, with_input=False)
        if not waiting:
            return []
        cancelled = self._store.controls.cancelled()
        rows = self._approvals.rows(status="pending", root_id=run_id, limit=MAX_WAITING)
        pending = {(row.run_id, row.call_id, row.attempt) for row in rows}
        return [run for run in waiting if run.run_id in cancelled or self._can_go_on(run, pending)]

    def _can_go_on(self, run: StoredRun, pending: set[tuple[str, str, int]]) -> bool:
        """Whether a call of a run that was suspended was decided, or an approver of its own can be asked again.

        Nobody tells when such an approver has decided, so it is asked after intervals that grow with the waiting time.
        """
        undecided = {*waiting_calls(run)} - pending
        if not undecided:
            return False
        asked = self._approvals.rows(root_id=run.run_id, limit=MAX_WAITING)
        if not undecided.isdisjoint((row.run_id, row.call_id, row.attempt) for row in asked):
            return True
        return time.time() - run.changed >= min(max((run.changed - run.created) / 10, CHECK_SECONDS), MAX_ASK_SECONDS)

    # Executing.

    async def execute(self, run_id: str) -> None:
        """Execute a run until it ends or is suspended. Do nothing if it is not its turn."""
        try:
            while await self._execute(run_id):
                pass
        except RunHeldError:
            pass  # another process executes it
        except LeaseLostError as lost:
            log.warning("%s", lost, extra={"run_id": run_id})
        except StoreError as error:  # it is taken up again when its lease has expired
            log.error("the run %s is interrupted: %s", run_id, error_text(error))

    async def _execute(self, run_id: str) -> bool:
        """Execute a run. Return whether it was suspended, but can go on at once."""
        record, first_open = await asyncio.to_thread(self._find, run_id)
        if record is None or record.is_over:
            return False
        if self._is_leaving:
            await self._put(run_id, record.session_id)
            return False
        if first_open != run_id:
            return False  # it is queued again when the run before it ends
        try:
            _, answerer, _ = self._agents.find(record.agent)
        except UnknownAgentError as error:
            self._leave_to_others(run_id, error)
            return False
        try:
            claim, began = await self._claim(run_id, digest_of(answerer))
        except (RunPinnedError, JournalFormatError) as pinned:
            if pinned.digest:
                await self._put(run_id, record.session_id, pinned.digest)
            else:  # somebody has unpinned it, but only a version with its format of journals can execute it
                self._leave_to_others(run_id, pinned)
            return False
        return not claim.run.is_over and await self._execute_claimed(record, claim, began, answerer)

    def _leave_to_others(self, run_id: str, reason: Exception) -> None:
        """Log, once, why this process does not execute a run."""
        if run_id not in self._logged:
            log.warning("the run %s is left to others: %s", run_id, reason)
            self._logged.add(run_id)

    def _find(self, run_id: str) -> tuple[RunRecord | None, str | None]:
        """Return a run, and the id of the run of its conversation whose turn it is."""
        record = self._store.get(run_id)
        return record, None if record is None else self._store.first_open(record.session_id)

    async def _claim(self, run_id: str, digest: str, *, to_end: bool = False) -> tuple[Claim, float]:
        """Take the lease of a run. If this process has it, the run is live by the time this raises ``RunHeldError``."""
        if run_id in self._unreleased:
            await self._release()
        while run_id in self._claiming:
            await asyncio.sleep(0.005)
        self._claiming.add(run_id)
        began = time.monotonic()
        try:
            claim = partial(self._store.journal.claim, run_id, "", b"", digest, to_end=to_end)
            return await asyncio.to_thread(claim), began
        finally:
            self._claiming.discard(run_id)

    async def _execute_claimed(self, record: RunRecord, claim: Claim, began: float, answerer: Any) -> bool:
        run_id = record.id
        log_ = _EventLog(self._store)
        # The journal says that the run has not ended, whatever an earlier process wrote into its row.
        record = msgspec.structs.replace(record, last_seq=claim.last_event, ended=None, elapsed=None)
        live = LiveRun(record, log_.put)
        durable = DurableRun(log_, claim, began, stores_events=False)
        log_.attach(live, durable)
        if claim.run.status == "running":  # its process has not released it
            former = f"process {claim.run.pid} on {claim.run.host.partition('#')[0]}"
            log.warning("run %s is taken over from %s", run_id, former, extra={"run_id": run_id})
        live.task, live.durable = asyncio.current_task(), durable
        live.stop_reason = self._stop_reasons.pop(run_id, "")
        self._live[run_id], self._durable[run_id] = live, durable
        self._on_executing(run_id)
        again = False
        try:
            async with durable.opened():
                try:
                    await self._controls.deliver(live)
                    await self._run(live, durable, claim, answerer)
                except RecoveryError as error:
                    # The journal is unchanged, but the same rules would differ again.
                    await self._end_claimed(record, claim, "failed", error=error_text(error))
        except RunWaitingError:
            again = bool(await asyncio.to_thread(self._decided, run_id))
            if live.stop_reason:  # it was asked to stop while it was suspended
                self._stop_reasons[run_id], again = live.stop_reason, True
        except RunSuspendedError as suspended:
            log.info("%s", suspended, extra={"run_id": run_id})
            again = True
        finally:
            self._live.pop(run_id, None)
            self._durable.pop(run_id, None)
            live.detach()
            self._on_executing(run_id)
            if isinstance(durable.error, (StoreError, RunSuspendedError)) and not await durable.release():
                self._unreleased[run_id] = durable
        if live.closed:
            await asyncio.to_thread(self._cancel_questions, run_id)
        if again and self._is_leaving:
            await self._put(run_id, record.session_id, claim.run.digest)
            again = False
        await self._queue_next(record.session_id, run_id)
        return again

    async def _queue_next(self, session_id: str, after: str) -> None:
        """Queue the run that waited for this one, if it has ended."""
        following = await asyncio.to_thread(self._store.first_open, session_id)
        if following is not None and following != after:
            await self._put(following, session_id)

    async def _run(self, live: LiveRun, durable: DurableRun, claim: Claim, answerer: Any) -> None:
        head = with_contents(_heads, claim.run.start)
        record, begun = live.record, bool(claim.entries)
        live.attachments = head.attachments
        if claim.run.attempts >= self._max_attempts:
            error = (
                f"the run was interrupted {claim.run.attempts} times: the processes that executed it ended. Their logs "
                "or those of the system say why: a tool may crash, or need too much memory"
            )
            return await _finish(live, durable, "failed", error=error)
        if live.stop_reason and not begun:
            return await _finish(live, durable, "cancelled", reason=live.stop_reason)
        live.update(status="running", started=record.started or time.time())
        try:
            session = await self._session(durable, record, head)
            save = None
            if not head.keeps_session:
                save = partial(self._save, durable, durable.written, len(session.messages), bool(claim.run.epoch))
            status, fields = await self._executor.run_agents(live, answerer, session, head.metadata or {}, save=save)
        except Exception as error:
            if durable.error is not None:
                raise durable.error from None
            if not isinstance(error, HooklineError):
                log.exception("the run %s failed", record.id)
            known = isinstance(error, HooklineError)
            text = error_text(error) if known else f"the run failed with an internal error: {type(error).__name__}"
            return await _finish(live, durable, "failed", error=text)
        return await _finish(live, durable, status, **fields)

    async def _session(self, durable: DurableRun, record: RunRecord, head: ServedHead) -> Session:
        """Return the conversation as it was when the run began."""
        if head.keeps_session:
            return Session(record.session_id, head.messages, platform=record.transport, personality_id=head.personality)
        # The stored conversation has the contents of its attachments, also for the recorded one.
        stored = await self._executor.load(record, head.personality)
        call = await durable.begin("session")
        if call.answered is not None:
            data = (await durable.answer_of(call)).value.encode()
            return SessionRecord.read(data, f"the journal of run {record.id}", "cancel the run").session(None)

        async def work() -> tuple[Session, JournalAnswer]:
            return stored, JournalAnswer(value=SessionRecord.snapshot(stored).to_json().decode())

        return await call.make(work)

    async def _save(self, durable: DurableRun, written: int, before: int, is_again: bool, session: Session) -> str:
        """Save the conversation, unless a process did so just before it ended.

        Args:
            durable: the run.
            written: number of entries up to the conversation with which the run began: they must be committed first.
            before: number of messages of that conversation.
            is_again: whether another process has executed the run.
            session: the conversation.
        """
        await durable.commit(written)
        with suppress(StoreError):  # saving says what is wrong
            if is_again and await self._executor.was_saved(session, before):
                return ""
        return await self._executor.save(session)

    # Ending and cancelling.

    async def cancel(self, run_id: str, reason: str) -> bool:
        """Cancel a run that no process executes. Return false if another process executes it.

        A run that has begun is taken up, here or by a worker, so that its hooks see its end. If no worker does so soon,
        the run is ended without them.
        """
        record = await asyncio.to_thread(self._store.get, run_id)
        stored = await asyncio.to_thread(self._store.journal.get, run_id)
        if record is None or stored is None or record.is_over:
            return True
        if self.executes and stored.epoch:
            self._stop_reasons[run_id] = reason
            try:
                await self.execute(run_id)
            finally:
                self._stop_reasons.pop(run_id, None)
        elif stored.epoch:
            message = msgspec.json.encode(Cancel(reason))
            await asyncio.to_thread(self._store.controls.send, run_id, "cancel", message)
            await self._put(run_id, record.session_id, stored.digest)
            deadline = time.monotonic() + CANCEL_SECONDS
            while time.monotonic() < deadline and not await self._is_over(run_id):
                await asyncio.sleep(CANCEL_SECONDS / 50)
        if await self._is_over(run_id):
            return True
        try:
            await self._end(run_id, "cancelled", reason=reason)
        except RunHeldError:
            return False
        return True

    async def _is_over(self, run_id: str) -> bool:
        record = await asyncio.to_thread(self._store.get, run_id)
        return record is None or record.is_over

    async def _end(self, run_id: str, status: str, **fields: str) -> None:
        """End a run without executing it.

        Raises:
            RunHeldError: another process executes the run.
        """
        record = await asyncio.to_thread(self._store.get, run_id)
        claim, _ = await self._claim(run_id, "", to_end=True)
        if record is not None and not claim.run.is_over:
            await self._end_claimed(record, claim, status, **fields)
            with suppress(StoreError):
                await self._queue.remove(run_id)
            await self._queue_next(record.session_id, run_id)

    async def _end_claimed(self, record: RunRecord, claim: Claim, status: str, **fields: str) -> None:
        seq = claim.last_event + 1
        over = msgspec.structs.replace(record, status=status, ended=time.time(), last_seq=seq, **fields)
        event = closing_event(over).replace(seq=seq)
        events = [(seq, "run_closed", event.at, event.to_json(), *NO_MARK)]
        write = Append(record.id, claim.epoch, len(claim.entries) + 1, (), events, status, b"null")
        await asyncio.to_thread(self._store.journal.append, write, row=run_row(over))
        await asyncio.to_thread(self._cancel_questions, record.id)

    def _cancel_questions(self, run_id: str) -> None:
        """Cancel the questions of a run that has ended."""
        for row in self._approvals.rows(status="pending", root_id=run_id):
            self._approvals.end_pending(row.id, "cancelled")


async def _finish(live: LiveRun, durable: DurableRun, status: str, **fields: Any) -> None:
    """End a run: its last event, its row and its status in the journal are one transaction.

    The end becomes visible only after it is stored. If it cannot be stored, the run has not ended, and goes on later.
    """
    live.add_last_event(status, **fields)
    await durable.finish(status, b"null")


class _EventLog:
    """The journal of a served run: what it appends includes the row of the run and the events that readers see."""

    def __init__(self, store: RunStore) -> None:
        self._journal, self._controls = store.journal, store.controls
        self.lease_seconds = store.journal.lease_seconds
        self.get, self.claim, self.renew = store.journal.get, store.journal.claim, store.journal.renew
        self.discount, self.entries = store.journal.discount, store.journal.entries
        self._written: RunRecord | None = None
        self._over: RunRecord | None = None
        """The final record, which is stored with the end of the journal."""

    def attach(self, live: LiveRun, durable: DurableRun) -> None:
        """Store the events of this run."""
        self._live, self._put_event = live, durable.put_event
        self._stored_seq = live.record.last_seq
        self._loop = asyncio.get_running_loop()

    def put(self, run: RunRecord | None, event: StoredEvent | None) -> None:
        """Store an event with the next entries of the journal. The row of the run is stored with them."""
        if run is not None and run.is_over:
            self._over = run
        if event is not None:
            self._put_event(event.row)

    def append(self, write: Append) -> None:
        """Append entries and events in one transaction, and what belongs to them.

        That is the row of the run, if it has changed, and the answers to the messages that the entries carry out.
        """
        status, last = write.status, write.events[-1][0] if write.events else self._stored_seq
        record = self._live.record if self._over is None or status not in RUN_STATUSES else self._over
        row = msgspec.structs.replace(record, last_seq=last)
        if status in ("waiting", "interrupted"):
            row = msgspec.structs.replace(row, status="waiting" if status == "waiting" else "queued")
        changed = bool(status) or self._written != msgspec.structs.replace(row, last_seq=0)
        carried_out = [int(key) for entry in write.entries if (key := control_of(entry))]

        answer = partial(self._controls.answer_in, seqs=carried_out, answer=DONE) if carried_out else None
        self._journal.append(write, row=run_row(row) if changed else None, also=answer)
        if carried_out:
            self._controls.announce_answers(carried_out)
        if changed:
            self._written = msgspec.structs.replace(row, last_seq=0)
        if record is self._over:
            self._loop.call_soon_threadsafe(self._live.close, record)
        if last > self._stored_seq:
            self._stored_seq = last
            self._loop.call_soon_threadsafe(self._live.mark_stored, last)
