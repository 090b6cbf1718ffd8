"""The queue of durable runs on PostgreSQL, which all servers and workers of a database share.

It is procrastinate: a job for each run, a lock for each conversation, heartbeats of workers, and notifications of new
jobs. What it does not do is done by the journal: it decides who may execute a run. So a job says only that a run should
be executed now, and is deleted when a process has done so or has suspended the run.

The loop that takes jobs is our own: after any error of the database, that of procrastinate takes no job before all runs
that it executes have ended, and one of them may take hours.

Jobs are taken in the order in which they were added, whoever owns them. So only a few conversations of a caller have a
waiting job at a time (``SHARE``): the other runs are held back, without a job, and get one as the former begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

import msgspec

from .._base.tasks import abandon, wait_at_most
from .._base.text import error_text
from ..stores.errors import StoreError
from ..stores.runs import DURABLE, IN_TURN, QueuedRun, RunRecord, RunStore
from ..stores.sql import Connection
from .queue import Execute

if TYPE_CHECKING:
    from procrastinate.jobs import Job

    from ..stores.postgres import PostgresDatabase

log = logging.getLogger("hookline")

NAME = "runs"
"""Name of the queue. Runs that only some processes can continue are in queues ``runs-DIGEST``."""
TASK = "hookline_run"
"""Name of the jobs."""
SHARE = 10
"""Number of conversations of a caller that may have a waiting job."""
CHECK_SECONDS = 1.0
"""Interval in seconds at which jobs of processes that have ended are looked for."""
POLLS = 3
"""How often in the time of a lease a process looks for jobs of which it was not notified, and shows that it lives."""
RETRY_SECONDS = 1.0
"""Seconds until the queue is used again after an error."""
CLOSE_SECONDS = 10.0
"""Seconds that the end of the last jobs may take to be stored."""

_OWNERS = f"""WITH RECURSIVE owners (owner) AS (
    SELECT min(owner) FROM runs WHERE status = 'queued' AND ended IS NULL AND transport != ''
    UNION ALL SELECT (SELECT min(r.owner) FROM runs r WHERE r.status = 'queued' AND r.ended IS NULL
        AND r.transport != '' AND r.owner > owners.owner) FROM owners WHERE owner IS NOT NULL
) SELECT owner, {{waiting}} < {SHARE} FROM owners
    WHERE owner IS NOT NULL AND (SELECT held.run_id FROM ({{held}}) AS held) IS NOT NULL"""
"""The callers that have new runs without a job, and whether their share has room. Each takes one look at an index."""


class PostgresQueue:
    """A queue in the PostgreSQL database of the runs.

    Args:
        store: the store of runs.
        concurrency: how many runs this process executes at once.

    Raises:
        StoreError: the package procrastinate is missing.
    """

    def __init__(self, store: RunStore, concurrency: int) -> None:
        try:
            import procrastinate  # noqa: F401 - it is used later
        except ImportError as error:
            raise StoreError("durable runs on PostgreSQL need a package: pip install 'hookline[postgres]'") from error
        self._db: PostgresDatabase = store.db  # type: ignore[assignment]
        self._jobs = jobs_of(self._db)
        self._lease = store.journal.lease_seconds
        self._slots = asyncio.Semaphore(concurrency)
        self._queues: list[str] = []
        self._taking: asyncio.Task[None] | None = None
        self._listening: asyncio.Task[None] | None = None
        self._keeping: list[asyncio.Task[None]] = []
        self._closing = asyncio.Event()
        self._working: dict[int, asyncio.Task[None]] = {}
        """The tasks that execute jobs, by the ids of these."""
        self._again: dict[str, QueuedRun | None] = {}
        """The runs of the jobs that this process executes, each with what is queued when its job has been deleted."""
        self._may_have_jobs = asyncio.Event()
        self._worker: int | None = None
        """The number of this process in the queue."""
        self._is_unsure = False
        """Whether the queue may say that this process executes jobs of which it knows nothing, because of an error."""
        self._paused = False
        self._held_back: set[str] = set()
        """The callers that have runs without a job, as far as this process knows."""
        self._filling: set[str] = set()

    async def open(self, execute: Execute | None, digests: Sequence[str]) -> None:
        """Create the tables of the queue if there are none, and start to execute runs."""
        from procrastinate import App, PsycopgConnector

        await asyncio.to_thread(create_queue, self._db)
        # A job that is lost in a power failure is found in the journal, so no commit waits for the disk.
        configure = partial(_configure, self._db.settings_for(namespace_of(self._db), synchronous_commit="off"))
        pool: dict[str, Any] = {"min_size": 1, "max_size": 5, "timeout": 10.0, "configure": configure}
        connector = PsycopgConnector(pool_factory=_pool, conninfo=self._db.conninfo, **pool)
        self._app = App(connector=connector)
        with self._errors():
            await self._app.open_async()
        self._queues = [NAME, *(f"{NAME}-{digest}" for digest in digests)]
        if execute is not None:
            self._taking = asyncio.create_task(self._take_jobs(execute), name="hookline-queue")
            self._listening = asyncio.create_task(self._listen())
            self._keeping = [asyncio.create_task(self._keep_alive()), asyncio.create_task(self._keep_retrying())]

    async def put(self, run: QueuedRun) -> None:
        """Add a job for a run, unless one waits. One that waits for another version of the agent is replaced.

        While this process executes the run, its job holds the lock of the conversation, and nobody could take another
        one: that is added when the lock is free, so that all processes are notified then.
        """
        if run.run_id in self._again:
            self._again[run.run_id] = run
        else:
            await self._add(run)

    async def _add(self, run: QueuedRun) -> None:
        from procrastinate.exceptions import AlreadyEnqueued

        job = _job(run)
        defer = partial(self._app.job_manager.defer_job_async, job)
        with self._errors(), suppress(AlreadyEnqueued):
            try:
                await defer()
            except AlreadyEnqueued:
                if await self._delete(run.run_id, but_not_in=job.queue):
                    await defer()

    def put_in(self, db: Connection, runs: Sequence[RunRecord]) -> None:
        """Add the jobs of new runs in the transaction that stores them, as the last part of it."""
        owners = sorted({run.owner for run in runs})
        query = f"""SELECT r.owner, j.lock FROM {self._jobs} j JOIN runs r ON r.run_id = j.queueing_lock
            WHERE j.status = 'todo' AND r.owner IN ({",".join("?" * len(owners))})"""
        queued: dict[str, set[str]] = {owner: set() for owner in owners}
        for owner, conversation in db.execute(query, owners):
            queued[owner].add(conversation)
        to_queue = list[QueuedRun]()
        for run in runs:
            conversations = queued[run.owner]
            if len(conversations) >= SHARE:
                self._held_back.add(run.owner)
            elif run.session_id not in conversations:
                conversations.add(run.session_id)
                to_queue.append(QueuedRun(run.id, run.session_id, run.owner))
        if to_queue:
            self.defer(db, to_queue)

    def defer(self, db: Connection, runs: Sequence[QueuedRun]) -> None:
        """Add jobs inside a transaction, as the last part of it."""
        from procrastinate import App, SyncPsycopgConnector

        with self._errors():
            connection = self._db.lend(db, namespace_of(self._db))
            app = App(connector=SyncPsycopgConnector())  # it uses the given connection only, so it is not opened
            app.job_manager.batch_defer_jobs(list(map(_job, runs)), connection)

    async def fill(self, owner: str | None = None) -> None:
        """Add jobs for runs that were held back, up to the share of their callers, and for those whose job was lost.

        Raises:
            StoreError: the database cannot be used.
        """
        if owner is None:
            for each in await asyncio.to_thread(self._find_held_back):
                await self._fill(each)
        elif owner in self._held_back and owner not in self._filling:
            await self._fill(owner)

    async def _fill(self, owner: str) -> None:
        from procrastinate.exceptions import AlreadyEnqueued

        self._filling.add(owner)
        try:
            with suppress(AlreadyEnqueued):  # another process has just queued such a run
                await asyncio.to_thread(self._add_jobs, owner)
        finally:
            self._filling.discard(owner)

    def _find_held_back(self) -> list[str]:
        """Note the callers that have runs without a job, and return those whose share has room."""
        held, waiting = self._held("owners.owner", 1), self._waiting("owners.owner")
        rows = self._db.execute(_OWNERS.format(held=held, waiting=waiting))
        self._held_back = {owner for owner, _ in rows}
        return sorted(owner for owner, has_room in rows if has_room)

    def _add_jobs(self, owner: str) -> None:
        query = f"SELECT run_id, session_id, owner, {self._waiting('?')} FROM ({self._held('?', SHARE + 1)}) AS held"
        # Servers hold this lock while they accept a run of the caller.
        with self._db.transaction(write=True, lock=f"admission {owner}") as db:
            found = db.execute(query, (owner, owner)).fetchall()
            room = SHARE - found[0][-1] if found else 0
            runs = [QueuedRun(*run) for *run, _ in found[: max(0, room)]]
            if runs:
                self.defer(db, runs)
        if len(runs) == len(found):
            self._held_back.discard(owner)

    def _held(self, owner: str, limit: int) -> str:
        """Return the query for the first new runs of a caller that have no job, although it is their turn.

        It looks at one run after another, in the order of an index, until it has found enough. With joins, PostgreSQL
        would read all runs that wait, whenever it does not know how many there are.
        """
        return f"""SELECT r.run_id, r.session_id, r.owner FROM runs r
            WHERE r.owner = {owner} AND r.status = 'queued' AND r.ended IS NULL AND r.transport != ''
            AND r.host = '{DURABLE}' AND {IN_TURN}
            AND (SELECT d.status FROM durable_runs d WHERE d.run_id = r.run_id) = 'new'
            AND (SELECT j.id FROM {self._jobs} j
                WHERE j.queueing_lock = r.run_id AND j.status IN ('todo', 'doing') LIMIT 1) IS NULL
            ORDER BY r.created, r.run_id LIMIT {limit}"""

    def _waiting(self, owner: str) -> str:
        """Return the query for the number of conversations of a caller that have a waiting job."""
        return f"""(SELECT count(DISTINCT j.lock) FROM {self._jobs} j JOIN runs r ON r.run_id = j.queueing_lock
            WHERE j.status = 'todo' AND r.owner = {owner})"""

    async def queued(self) -> dict[str, str | None]:
        """Return the runs that have a job: for those that wait, the digest of their process; otherwise ``None``."""
        query = f"SELECT queueing_lock, status, args->>'digest' FROM {self._jobs} WHERE status IN ('todo', 'doing')"
        rows = await asyncio.to_thread(self._db.execute, query)
        found: dict[str, str | None] = {}
        for run_id, status, digest in rows:
            found[run_id] = None if status == "doing" or found.get(run_id, "") is None else digest
        return found

    async def remove(self, run_id: str) -> None:
        """Delete the job of a run: it would block the conversation if no process listens to its queue."""
        with self._errors():
            await self._delete(run_id)

    async def _delete(self, run_id: str, but_not_in: str = "") -> bool:
        """Delete the jobs of a run that wait, except those in one queue. Return whether there were any."""
        manager = self._app.job_manager
        waiting = await manager.list_jobs_async(queueing_lock=run_id, status="todo")
        ids = [job.id for job in waiting if job.queue != but_not_in and job.id is not None]
        for id in ids:
            await manager.cancel_job_by_id_async(id, delete_job=True)
        return bool(ids)

    # Executing.

    async def _take_jobs(self, execute: Execute) -> None:
        """Take jobs while there are free slots, until the queue is paused."""
        from psycopg.errors import ForeignKeyViolation

        while not self._paused:
            await self._slots.acquire()
            self._may_have_jobs.clear()
            job, pause = None, self._lease / POLLS
            try:
                job = await self._take()
            except Exception as error:  # noqa: BLE001 - the database may be back soon
                self._is_unsure, pause = True, RETRY_SECONDS
                if isinstance(error.__cause__, ForeignKeyViolation):  # others took this process for one that has ended
                    self._worker = None
                log.error("the queue of runs cannot be used: %s", _reason(error))
            if job is None or job.id is None:
                self._slots.release()
                await wait_at_most(self._may_have_jobs, pause)
            else:
                self._again[_run_of(job).run_id] = None
                self._working[job.id] = asyncio.create_task(self._work(job, execute), name=f"hookline-job-{job.id}")

    async def _take(self) -> Job | None:
        """Take the next job from the queue, if there is one."""
        manager = self._app.job_manager
        if self._worker is None:
            await manager.prune_stalled_workers(self._lease)
            self._worker = await manager.register_worker()
            await self._retry_stalled()  # runs of the process before this one have begun, and come before new ones
        if self._is_unsure:
            self._is_unsure = False
            jobs = await manager.list_jobs_async(status="doing", worker_id=self._worker)
            await self._queue_again(job for job in jobs if job.id not in self._working)
        return await manager.fetch_job(self._queues, self._worker)

    async def _work(self, job: Job, execute: Execute) -> None:
        """Execute the run of a job, delete the job, and queue the run again if it is to go on."""
        from procrastinate.jobs import Status

        run = _run_of(job)
        try:
            if self._paused:
                await self.put(run)
            else:
                await execute(run.run_id)
        except Exception:
            log.exception("the run %s could not be executed", run.run_id)
        try:
            await self._app.job_manager.finish_job(job, Status.SUCCEEDED, delete_job=True)
        except Exception as error:  # noqa: BLE001 - it is deleted when the database is back
            if not _is_gone(error):
                self._is_unsure = True
        del self._working[job.id]  # type: ignore[arg-type] # it has a number
        if (again := self._again.pop(run.run_id, None)) is not None:
            with self._logged():  # a run that could not be queued is found again
                await self._add(again)
        self._slots.release()
        self._may_have_jobs.set()

    async def _queue_again(self, jobs: Iterable[Job]) -> None:
        """Replace jobs that no process executes: they hold the locks of their conversations."""
        from procrastinate.exceptions import ProcrastinateException
        from procrastinate.jobs import Status

        for job in jobs:
            try:
                await self._app.job_manager.finish_job(job, Status.FAILED, delete_job=True)
            except ProcrastinateException as error:
                if not _is_gone(error):
                    raise
            else:
                await self._add(msgspec.structs.replace(_run_of(job), begun=True))

    async def _listen(self) -> None:
        """Look for jobs at once when the database says that there are some."""

        async def notified(**_: object) -> None:
            self._may_have_jobs.set()

        while True:
            with suppress(Exception):  # without notifications, it takes longer
                await self._app.job_manager.listen_for_jobs(on_notification=notified, queues=self._queues)
            await asyncio.sleep(RETRY_SECONDS)

    async def _keep_alive(self) -> None:
        """Show that this process lives, so that its jobs stay its own."""
        while not await wait_at_most(self._closing, self._lease / POLLS):
            if self._worker is not None:
                with self._logged():
                    await self._app.job_manager.update_heartbeat(self._worker)

    async def _keep_retrying(self) -> None:
        while not await wait_at_most(self._closing, CHECK_SECONDS):
            with self._logged():
                await self._retry_stalled()

    async def _retry_stalled(self) -> None:
        """Queue the runs of processes that have ended: their jobs hold the locks of their conversations.

        A process shows every third of a lease that it lives. So if it has not done so for two thirds, its job is free
        no later than its run. If the process lives nevertheless, the journal keeps its run from others.
        """
        seconds = self._lease * 2 / 3
        await self._queue_again(await self._app.job_manager.get_stalled_jobs(seconds_since_heartbeat=seconds))

    def pause(self) -> None:
        """Take no more jobs from the queue."""
        self._paused = True
        self._may_have_jobs.set()

    async def close(self) -> None:
        """Wait for the last jobs, and close the connections."""
        self.pause()
        with suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_SECONDS):
                while busy := {task for task in (self._taking, *self._working.values()) if task and not task.done()}:
                    await asyncio.wait(busy)
        self._closing.set()
        if self._listening is not None:
            abandon(self._listening)
            await asyncio.wait(self._keeping, timeout=CLOSE_SECONDS)
        with suppress(Exception):  # the database may be gone
            if self._worker is not None:
                await self._app.job_manager.unregister_worker(self._worker)
        with suppress(Exception):
            await self._app.close_async()

    @contextmanager
    def _logged(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # noqa: BLE001 - the database may be back soon
            log.error("the queue of runs cannot be used: %s", _reason(error))

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from procrastinate.exceptions import AlreadyEnqueued, ProcrastinateException

        try:
            yield
        except AlreadyEnqueued:
            raise
        except (ProcrastinateException, OSError) as error:
            raise StoreError(f"the queue of runs in {self._db.path} cannot be used ({_reason(error)})") from error


def _job(run: QueuedRun) -> Job:
    """Return the job of a run."""
    from procrastinate.jobs import Job

    return Job(
        id=None,
        task_name=TASK,
        task_kwargs={"run_id": run.run_id, "session_id": run.session_id, "digest": run.digest},
        queue=f"{NAME}-{run.digest}" if run.digest else NAME,
        lock=run.session_id,
        queueing_lock=run.run_id,
        priority=int(run.begun),
    )


def _run_of(job: Job) -> QueuedRun:
    """Return the run of a job."""
    run_id, session_id, digest = (str(job.task_kwargs[name]) for name in ("run_id", "session_id", "digest"))
    return QueuedRun(run_id, session_id, "", digest, begun=job.priority > 0)


def _is_gone(error: Exception) -> bool:
    """Whether a job could not be deleted because another process has done it."""
    from psycopg.errors import RaiseException

    return isinstance(error.__cause__, RaiseException)


def _reason(error: BaseException) -> str:
    """Return what the database said. The exceptions of procrastinate have no message of their own."""
    while error.__cause__ is not None:
        error = error.__cause__
    return error_text(error).strip().partition("\n")[0]


async def _configure(settings: str, connection: Any) -> None:
    """Make each statement of procrastinate a transaction of its own: it has only such."""
    await connection.set_autocommit(True)
    await connection.execute(settings)


def _pool(**options: Any) -> Any:
    """Return the connections of procrastinate. It would ask the server whether one is alive before each use of it."""
    from psycopg_pool import AsyncConnectionPool

    return AsyncConnectionPool(**{**options, "check": _check})


async def _check(connection: Any) -> None:
    from psycopg import OperationalError

    from ..stores.postgres import has_ended

    if has_ended(connection):
        await connection.close()  # otherwise the pool would offer it again
        raise OperationalError("the server has closed the connection")


def namespace_of(db: Any) -> str:
    """Return the schema of the queue in the database of a run store."""
    return f"{db.prefix}_queue"


def jobs_of(db: Any) -> str:
    """Return the table of jobs in the database of a run store."""
    return f"{namespace_of(db)}.procrastinate_jobs"


def delete_waiting_job(db: Any, run_id: str) -> None:
    """Delete the job of a run that no process has taken from the queue.

    Raises:
        StoreError: the database cannot be used.
    """
    with db.transaction(write=True, lock=None) as connection:
        lent = db.lend(connection, namespace_of(db))
        lent.execute("DELETE FROM procrastinate_jobs WHERE queueing_lock = %s AND status = 'todo'", (run_id,))


def create_queue(db: PostgresDatabase) -> bool:
    """Create the tables of the queue in the database of the runs, unless they exist. Return whether they were created.

    Raises:
        StoreError: the database cannot be used.
    """
    from procrastinate.schema import SchemaManager

    return db.create_beside(namespace_of(db), "procrastinate_jobs", SchemaManager.get_schema())
