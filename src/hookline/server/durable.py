"""Durable served runs: execute them from their journals, and suspend them (DESIGN 6.17)."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any

import msgspec

from .._base.attachment import Attachment
from .._base.frozen import json_encoder, plain
from .._base.text import error_text
from .._base.workers import in_thread
from .._kernel.errors import HooklineError
from .._kernel.values import Ids
from .._run.durable import DurableRun
from .._run.journal import (
    RUN_STATUSES,
    Append,
    Claim,
    JournalAnswer,
    JournalFormatError,
    LeaseLostError,
    RecoveryError,
    RunHaltedError,
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
from .._sensitive.encryption import DataKeyError
from ..stores.approvals import ApprovalStore
from ..stores.callers import Caller, DepsError
from ..stores.errors import StoreError
from ..stores.facts import RunFact
from ..stores.pinning import digest_of, version_of
from ..stores.runs import (
    Accepted,
    IdempotencyKey,
    NewRun,
    QueuedRun,
    RunRecord,
    RunStore,
    StoredEvent,
    ended_run,
    first_open,
    index_texts,
    run_row,
)
from ..stores.sessions import SessionRecord
from ..stores.sql import Connection
from .admission import Admission
from .agents import Agents
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
FIRST_PAUSE = 1.0
"""Seconds for which a run waits that the database interrupted twice before it had stored anything new. They double."""
MAX_PAUSE = 60.0
"""Maximum number of seconds for which such a run waits."""
DEPS_TRIES = 8
"""Times that a process creates the ``deps`` of a run before the run fails; with the pauses, over two minutes."""
MAX_WAITING = 100_000
"""Maximum number of waiting runs and calls that are looked at."""


def open_queue(store: RunStore, concurrency: int) -> RunQueue:
    """Return the queue for a store: on PostgreSQL all processes share one, otherwise the process has its own."""
    if store.db.is_shared:
        from .postgres_queue import PostgresQueue

        return PostgresQueue(store, concurrency)
    return LocalQueue(store, concurrency)


class ServedHead(RunHead, frozen=True, omit_defaults=True):
    """The input of a served run.

    With ``keeps_session``, ``messages`` is the conversation, which the caller keeps. ``is_first`` says that the
    conversation begins with this run, so that nothing is stored of it.
    """

    keeps_session: bool = False
    is_first: bool = False


_heads = msgspec.json.Decoder(ServedHead)


class _Failing(msgspec.Struct, frozen=True):
    """A run that waits because a database failed: with how many entries it had begun, and until when it waits.

    ``times`` is how often it was interrupted with the same entries before.
    """

    entries: int
    times: int
    until: float


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
        options: limits: ``max_attempts``, ``max_runs``, ``max_runs_per_caller``, ``max_queued`` and ``pin_seconds``.
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
        self._admission = Admission(store, options.max_runs_per_caller, options.max_queued, queue.put_in)
        self._max_attempts, self._max_runs = options.max_attempts, options.max_runs
        self._pin_seconds = options.pin_seconds
        self._pinned: dict[str, float] = {}
        """By the runs that no process can continue, when this process noticed it."""
        self._durable: dict[str, DurableRun] = {}
        self._unreleased: dict[str, DurableRun] = {}
        """Runs that this process ceased to execute because of the database, and whose lease it could not end yet."""
        self._failing: dict[str, _Failing] = {}
        """Runs of this process that the database interrupted before they had stored anything new."""
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
        return sorted({digest_of(self._agents.answerer(served.name).object) for served in self._agents.list()})

    def _register(self) -> None:
        """Say which versions this process has."""
        versions = [version_of(self._agents.answerer(served.name).object) for served in self._agents.list()]
        self._store.workers.register({version.digest: version.parts for version in versions}, self._max_runs)

    # Accepting.

    async def accept(
        self,
        record: RunRecord,
        task: str,
        event: StoredEvent,
        caller: Caller,
        personality: str,
        given: Session | None,
        attachments: Sequence[Attachment],
        key: IdempotencyKey | None,
        *,
        is_first: bool,
    ) -> Accepted:
        """Store a new run and queue it, in one transaction: once it is stored, it will be executed.

        Args:
            record: the run.
            task: the task as the caller gave it.
            event: its first event.
            caller: its owner.
            personality: the personality that answers.
            given: the conversation before the task, if the caller keeps it.
            attachments: files for the model.
            key: the idempotency key.
            is_first: whether the conversation begins with this run.

        Raises:
            StoreError: the database cannot be used.
        """
        head = ServedHead(
            ids=Ids(record.id, record.task_id, record.correlation_id, record.session_id, record.agent),
            task=task,
            messages=() if given is None else tuple(given.messages),
            metadata=plain(self._executor.metadata_of(record, caller)),
            attachments=tuple(attachments),
            contents=contents_of(attachments),
            personality=personality,
            keeps_session=given is not None,
            is_first=is_first,
        )
        accepted = await self._admission.accept(NewRun(record, event, json_encoder.encode(head), key))
        if accepted.stored and not self._store.db.is_shared:  # otherwise the queue is in the database
            await self._put(QueuedRun(record.id, record.session_id, record.owner))
        return accepted

    async def _put(self, run: QueuedRun | None) -> None:
        if run is None:
            return
        if run.digest and not self._store.db.is_shared and run.digest not in self.digests:
            return  # only this process has the queue
        try:
            await self._queue.put(run)
        except StoreError as error:  # it is found again when the queue can be used
            log.error("the run %s could not be queued: %s", run.run_id, error_text(error))

    # Finding runs.

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self._release()
                await asyncio.to_thread(self._register)
                await self._look()
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

    async def _look(self) -> None:
        """Queue the runs that the queue has lost, and those that wait for an approval that was decided."""
        if await self._store.halts.current_async() is not None:
            return
        # In this order: a run that ends meanwhile is not free, although its job is gone.
        queued = await self._queue.queued()
        free = await asyncio.to_thread(self._store.to_execute, begun=True)
        for run in await asyncio.to_thread(self._decided):
            record = await asyncio.to_thread(self._store.get, run.run_id)
            if record is not None and record.is_durable:  # others belong to gateways and programs
                free.append(QueuedRun(run.run_id, record.session_id, record.owner, run.digest, begun=True))
        have = {"", *self.digests}
        if not have.issuperset(each.digest for each in free):
            have |= await asyncio.to_thread(self._store.workers.digests)
        for each in free:
            if self._is_failing(each.run_id):
                continue
            if each.digest in have and queued.get(each.run_id, "missing") not in (None, each.digest):
                await self._put(each)
        await self._queue.fill()  # after those that have begun, which go on before new ones
        pinned = [each.run_id for each in free if each.digest not in have]
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
        try:
            undecided = {*waiting_calls(run)} - pending
        except msgspec.MsgspecError as error:
            if run.run_id not in self._logged:
                text = "the calls that the run %s waits for cannot be read (%s): hookline db repair"
                log.error(text, run.run_id, error)
                self._logged.add(run.run_id)
            return False
        if not undecided:
            return False
        asked = self._approvals.rows(root_id=run.run_id, limit=MAX_WAITING)
        if not undecided.isdisjoint((row.run_id, row.call_id, row.attempt) for row in asked):
            return True
        return time.time() - run.changed >= min(max((run.changed - run.created) / 10, CHECK_SECONDS), MAX_ASK_SECONDS)

    # Executing.

    async def execute(self, run_id: str) -> None:
        """Execute a run until it ends or is suspended. Do nothing if it is not its turn."""
        if run_id not in self._stop_reasons and self._is_failing(run_id):
            return  # it is found again
        try:
            while await self._execute(run_id):
                pass
            self._failing.pop(run_id, None)
        except RunHeldError:
            pass  # another process executes it
        except LeaseLostError as lost:
            log.warning("%s", lost, extra={"run_id": run_id})
        except (StoreError, DepsError) as error:  # it is taken up again when its lease has expired, or after a pause
            log.error("the run %s is interrupted: %s", run_id, error_text(error))

    async def _execute(self, run_id: str) -> bool:
        """Execute a run. Return whether it was suspended, but can go on at once."""
        is_halted = run_id not in self._stop_reasons and await self._store.halts.current_async() is not None
        if self._is_leaving or is_halted:  # after a halt, it is found again
            record = await asyncio.to_thread(self._store.get, run_id)
            if record is not None and not record.is_over and self._is_leaving:
                begun = record.started is not None
                await self._put(QueuedRun(run_id, record.session_id, record.owner, begun=begun))
            return False
        try:
            async with self._claiming_of(run_id):
                began, looked = time.monotonic(), self._controls.looked
                turn = await in_thread(self._store.take_turn, run_id, self._digest)
        except (RunPinnedError, JournalFormatError) as pinned:
            record = await asyncio.to_thread(self._store.get, run_id)
            if record is not None:
                await self._fill(record.owner)
            if pinned.digest and record is not None:
                await self._put(QueuedRun(run_id, record.session_id, record.owner, pinned.digest, begun=True))
            else:  # somebody has unpinned it, but only a version with its format of journals can execute it
                self._leave_to_others(run_id, pinned)
            return False
        except DataKeyError as error:
            self._leave_to_others(run_id, error)
            return False
        record, claim = turn.record, turn.claim
        if record is None:
            return False
        await self._fill(record.owner)
        if not turn.is_first:
            return False  # it has ended, or is queued again when the run before it ends
        try:
            answerer = self._agents.answerer(record.agent).object
        except UnknownAgentError as error:
            self._leave_to_others(run_id, error)
            return False
        if claim is None or claim.run.is_over:
            return False
        return await self._execute_claimed(record, claim, began, answerer, None if turn.has_messages else looked)

    def _digest(self, agent: str) -> str | None:
        """Return the digest of an agent of this process, or ``None``."""
        try:
            return digest_of(self._agents.answerer(agent).object)
        except UnknownAgentError:
            return None

    async def _fill(self, owner: str) -> None:
        """Queue a run of a caller that was held back, instead of one that was taken from the queue."""
        try:
            await self._queue.fill(owner)
        except StoreError as error:  # it is queued later
            log.error("the next run of a caller could not be queued: %s", error_text(error))

    def _is_failing(self, run_id: str) -> bool:
        """Whether a run waits because the database interrupted it again and again."""
        failing = self._failing.get(run_id)
        return failing is not None and time.monotonic() < failing.until

    def _failed(self, run_id: str, entries: int) -> None:
        """Note that a run was interrupted by a database, or has no ``deps`` yet. Its journal has this many entries.

        On a full disk, for example, a run cannot store what its model answered. Each time that it goes on, it calls
        the model again.
        """
        before, now = self._failing.get(run_id), time.monotonic()
        times = before.times + 1 if before is not None and before.entries == entries else 0
        pause = min(FIRST_PAUSE * 2.0 ** (times - 1), MAX_PAUSE) if times else 0.0
        self._failing = {id: each for id, each in self._failing.items() if now < each.until + MAX_PAUSE}
        self._failing[run_id] = _Failing(entries, times, now + pause)

    def _may_try_again(self, run_id: str) -> bool:
        """Whether a run, whose ``deps`` could not be created, goes on later; else it fails."""
        failing = self._failing.get(run_id)
        return failing is None or failing.times + 2 < DEPS_TRIES

    def _leave_to_others(self, run_id: str, reason: Exception) -> None:
        """Log, once, why this process does not execute a run."""
        if run_id not in self._logged:
            log.warning("the run %s is left to others: %s", run_id, reason)
            self._logged.add(run_id)

    @asynccontextmanager
    async def _claiming_of(self, run_id: str) -> AsyncIterator[None]:
        """Take the lease of a run inside the block. If it raises because this process has it, the run is live."""
        if run_id in self._unreleased:
            await self._release()
        while run_id in self._claiming:
            await asyncio.sleep(0.005)
        self._claiming.add(run_id)
        try:
            yield
        finally:
            self._claiming.discard(run_id)

    async def _execute_claimed(
        self, record: RunRecord, claim: Claim, began: float, answerer: Any, looked: int | None
    ) -> bool:
        """Execute a run. Return whether it was suspended, but can go on at once.

        ``looked`` is how often messages had been looked for before the claim found none; ``None`` if it found some.
        """
        run_id = record.id
        while (former := self._durable.get(run_id)) is not None:  # this process could not renew its lease in time
            former.lose()
            await asyncio.sleep(0.005)
        log_ = _EventLog(self._store)
        # The journal says that the run has not ended, whatever an earlier process wrote into its row.
        record = msgspec.structs.replace(record, last_seq=claim.last_event, ended=None, elapsed=None)
        live = LiveRun(record, log_.put, clean=partial(self._agents.clean, record.agent))
        durable = DurableRun(log_, claim, began, stores_events=False)
        log_.attach(live, durable)
        if claim.run.status == "running":  # its process has not released it
            process = f"process {claim.run.pid} on {claim.run.host.partition('#')[0]}"
            log.warning("run %s is taken over from %s", run_id, process, extra={"run_id": run_id})
        live.task, live.durable = asyncio.current_task(), durable
        live.stop_reason = self._stop_reasons.pop(run_id, "")
        self._live[run_id], self._durable[run_id] = live, durable
        self._on_executing(run_id)
        again, following = False, None
        try:
            async with durable.opened():
                try:
                    if self._is_leaving:  # since it was claimed
                        durable.suspend()
                    if looked != self._controls.looked:
                        await self._controls.deliver(live)
                    await self._run(live, durable, claim, answerer)
                except RecoveryError as error:
                    # The journal is unchanged, but the same rules would differ again.
                    following = await self._end_claimed(record, claim, "failed", error=error_text(error))
        except DepsError:  # such as a database of the application that is down: the run goes on later
            self._failed(run_id, len(claim.entries))
            raise
        except RunWaitingError:
            again = bool(await asyncio.to_thread(self._decided, run_id))
            if live.stop_reason:  # it was asked to stop while it was suspended
                self._stop_reasons[run_id], again = live.stop_reason, True
        except RunSuspendedError as suspended:
            log.info("%s", suspended, extra={"run_id": run_id})
            again = not isinstance(suspended, RunHaltedError)  # it is found again after the release
        finally:
            self._live.pop(run_id, None)
            self._durable.pop(run_id, None)
            live.detach()
            self._on_executing(run_id)
            if isinstance(durable.error, StoreError):
                self._failed(run_id, len(claim.entries))
            if isinstance(durable.error, (StoreError, RunSuspendedError)) and not await durable.release():
                self._unreleased[run_id] = durable
        if live.closed and durable.may_have_asked:
            await asyncio.to_thread(self._approvals.cancel_run, run_id)
        if again and self._is_leaving:
            await self._put(QueuedRun(run_id, record.session_id, record.owner, claim.run.digest, begun=True))
            again = False
        await self._put(following or log_.following)
        return again

    async def _run(self, live: LiveRun, durable: DurableRun, claim: Claim, answerer: Any) -> None:
        head = with_contents(_heads, claim.run.start)
        record, begun = live.record, bool(claim.entries)
        live.attachments, live.given_task = head.attachments, head.task
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
            if isinstance(error, DepsError) and self._may_try_again(record.id):
                raise
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
        if head.is_first:
            stored = self._executor.new_session(record, head.personality)
        else:
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
            await self._put(QueuedRun(run_id, record.session_id, record.owner, stored.digest, begun=True))
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
        async with self._claiming_of(run_id):
            claim = await asyncio.to_thread(self._store.journal.claim, run_id, "", b"", to_end=True)
        if record is not None and not claim.run.is_over:
            following = await self._end_claimed(record, claim, status, **fields)
            with suppress(StoreError):
                await self._queue.remove(run_id)
            await self._put(following)

    async def _end_claimed(self, record: RunRecord, claim: Claim, status: str, **fields: str) -> QueuedRun | None:
        """End a run that this process has claimed. Return the run of its conversation that waited for it."""
        seq = claim.last_event + 1
        clean = {name: self._agents.clean(record.agent, text) for name, text in fields.items()}
        over = msgspec.structs.replace(record, status=status, ended=time.time(), last_seq=seq, **clean)
        event = closing_event(over).replace(seq=seq)
        events = [(seq, "run_closed", event.at, event.to_json())]
        records = [ended_run(over)]
        write = Append(record.id, claim.epoch, len(claim.entries) + 1, (), events, status, b"null", records=records)
        following = list[QueuedRun | None]()

        def also(db: Connection) -> None:
            index_texts(over, db)
            following.append(first_open(db, record.session_id))

        await asyncio.to_thread(self._store.journal.append, write, row=run_row(over), also=also)
        await asyncio.to_thread(self._approvals.cancel_run, record.id)
        return following[-1]


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
        self.discount, self.entries, self.is_in = store.journal.discount, store.journal.entries, store.journal.is_in
        self.abandon = store.journal.abandon
        self._db = store.db
        self._written: RunRecord | None = None
        self._over: RunRecord | None = None
        """The final record, which is stored with the end of the journal."""
        self.following: QueuedRun | None = None
        """The run of the conversation that waited for the end of this one."""

    def attach(self, live: LiveRun, durable: DurableRun) -> None:
        """Store the events of this run."""
        self._live, self._durable = live, durable
        self._stored_seq = live.last_seq
        self._loop = asyncio.get_running_loop()

    def put(
        self,
        run: RunRecord | None = None,
        event: StoredEvent | None = None,
        record: RunFact | RunRecord | None = None,
    ) -> None:
        """Store an event and a record with the next entries of the journal, and with them the row of the run."""
        if run is not None and run.is_over:
            self._over = run
        if event is not None:
            self._durable.put_event(event.row)
        if record is not None:
            self._durable.put_record(self._db, record)

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

        def also(db: Connection) -> None:
            if carried_out:
                self._controls.answer_in(db, seqs=carried_out, answer=DONE)
            if record is self._over:
                index_texts(row, db)
                self.following = first_open(db, row.session_id)

        extra = also if carried_out or record is self._over else None
        self._journal.append(write, row=run_row(row) if changed else None, also=extra)
        if carried_out:
            self._controls.announce_answers(carried_out)
        if changed:
            self._written = msgspec.structs.replace(row, last_seq=0)
        if record is self._over:
            self._loop.call_soon_threadsafe(self._live.close, record)
        if last > self._stored_seq:
            self._stored_seq = last
            self._loop.call_soon_threadsafe(self._live.mark_stored, last)
