"""The queue of durable runs on PostgreSQL, which all servers and workers of a database share.

It is procrastinate: a job for each run, a lock for each conversation, heartbeats of workers, and notifications of new
jobs. What it does not do is done by the journal: it decides who may execute a run. So a job says only that a run should
be executed now, and is deleted when a process has done so or has suspended the run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Any

from .._base.text import error_text
from ..stores.errors import StoreError
from ..stores.runs import RunStore
from ..stores.sql import Connection
from .queue import Execute

if TYPE_CHECKING:
    from procrastinate import JobContext
    from procrastinate.jobs import Job

    from ..stores.postgres import PostgresDatabase

log = logging.getLogger("hookline")

NAME = "runs"
"""Name of the queue. Runs that only some processes can continue are in queues ``runs-DIGEST``."""
TASK = "hookline_run"
"""Name of the jobs."""
CHECK_SECONDS = 1.0
"""Interval in seconds at which jobs of processes that have ended are looked for."""
RETRY_SECONDS = 1.0
"""Seconds until the queue is used again after an error."""
CLOSE_SECONDS = 10.0
"""Seconds that the end of the last jobs may take to be stored."""


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
        self._lease = store.journal.lease_seconds
        self._concurrency = concurrency
        self._execute: Execute | None = None
        self._queues: list[str] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._paused = False
        self._ended: dict[int, float] = {}
        """When jobs ended here. The queue deletes them, unless the database accepts no changes just then."""

    async def open(self, execute: Execute | None, digests: Sequence[str]) -> None:
        """Create the tables of the queue if there are none, and start to execute runs."""
        from procrastinate import App, PsycopgConnector

        await asyncio.to_thread(create_queue, self._db)
        # A job that is lost in a power failure is found in the journal, so no commit waits for the disk.
        configure = partial(_configure, self._db.settings_for(_namespace(self._db), synchronous_commit="off"))
        pool: dict[str, Any] = {"min_size": 1, "max_size": 5, "timeout": 10.0, "configure": configure}
        self._app = App(connector=PsycopgConnector(conninfo=self._db.conninfo, **pool))
        self._run_task = self._app.task(name=TASK, queue=NAME, pass_context=True)(self._run)
        with self._errors():
            await self._app.open_async()
        self._execute = execute
        self._queues = [NAME, *(f"{NAME}-{digest}" for digest in digests)]
        if execute is not None:
            self._tasks = [asyncio.create_task(self._work()), asyncio.create_task(self._keep_retrying())]

    async def put(self, run_id: str, session_id: str, digest: str) -> None:
        """Add a job for a run, unless one waits. One that waits for another version of the agent is replaced."""
        from procrastinate.exceptions import AlreadyEnqueued

        queue = f"{NAME}-{digest}" if digest else NAME
        deferrer = self._run_task.configure(queue=queue, lock=session_id, queueing_lock=run_id)
        defer = partial(deferrer.defer_async, run_id=run_id, session_id=session_id, digest=digest)
        with self._errors(), suppress(AlreadyEnqueued):
            try:
                await defer()
            except AlreadyEnqueued:
                if await self._delete(run_id, but_not_in=queue):
                    await defer()

    def put_in(self, run_id: str, session_id: str) -> Callable[[Connection], object]:
        """Return the function that adds the job of a new run in the transaction that stores the run."""
        from procrastinate import App, SyncPsycopgConnector

        def defer(db: Connection) -> None:
            with self._errors():
                # It uses the given connection only, so it is not opened.
                App(connector=SyncPsycopgConnector()).configure_task(
                    TASK,
                    queue=NAME,
                    lock=session_id,
                    queueing_lock=run_id,
                    connection=self._db.lend(db, _namespace(self._db)),
                ).defer(run_id=run_id, session_id=session_id, digest="")

        return defer

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

    async def _run(self, context: JobContext, run_id: str, session_id: str, digest: str) -> None:
        if self._paused or self._execute is None:
            await self.put(run_id, session_id, digest)
            return
        try:
            await self._execute(run_id)
        except Exception:
            log.exception("the run %s could not be executed", run_id)
        finally:
            if context.job.id is not None:
                self._ended[context.job.id] = time.monotonic()

    async def _work(self) -> None:
        """Execute jobs until the queue is paused."""
        while not self._paused:
            try:
                await self._app.run_worker_async(
                    queues=self._queues,
                    concurrency=self._concurrency,
                    install_signal_handlers=False,
                    delete_jobs="always",
                    fetch_job_polling_interval=self._lease / 3,
                    update_heartbeat_interval=self._lease / 3,
                    stalled_worker_timeout=self._lease,
                )
            except asyncio.CancelledError:
                return
            except Exception as error:  # noqa: BLE001 - the database may be back soon
                log.error("the queue of runs cannot be used: %s", error_text(error))
            await asyncio.sleep(RETRY_SECONDS)

    async def _keep_retrying(self) -> None:
        from procrastinate.exceptions import ProcrastinateException

        while not self._paused:
            await asyncio.sleep(CHECK_SECONDS)
            try:
                await self._retry_stalled()
            except (ProcrastinateException, StoreError) as error:
                log.error("the queue of runs cannot be used: %s", error_text(error))

    async def _retry_stalled(self) -> None:
        """Queue the runs of processes that have ended: their jobs hold the locks of their conversations.

        A process shows every third of a lease that it lives. So if it has not done so for two thirds, its job is free
        no later than its run. If the process lives nevertheless, the journal keeps its run from others.
        """
        from procrastinate.exceptions import ProcrastinateException
        from procrastinate.jobs import Status

        manager = self._app.job_manager
        stalled = list(await manager.get_stalled_jobs(seconds_since_heartbeat=self._lease * 2 / 3))
        stalled += await self._left_over()
        for job in stalled:
            with suppress(ProcrastinateException):  # another process has done it
                await manager.finish_job(job, Status.FAILED, delete_job=True)
                await self.put(*(str(job.task_kwargs[name]) for name in ("run_id", "session_id", "digest")))

    async def _left_over(self) -> list[Job]:
        """Return the jobs that ended in this process a while ago, and could not be deleted."""
        before = time.monotonic() - CHECK_SECONDS
        ended = {id for id, at in self._ended.items() if at < before}
        if not ended:
            return []
        found = [job for job in await self._app.job_manager.list_jobs_async(status="doing") if job.id in ended]
        for id in ended.difference(job.id for job in found):
            del self._ended[id]
        return found

    def pause(self) -> None:
        """Take no more jobs from the queue."""
        if not self._paused:
            self._paused = True
            for task in self._tasks:
                task.cancel()

    async def close(self) -> None:
        """Wait for the last jobs, and close the connections."""
        self.pause()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=CLOSE_SECONDS)
        with suppress(Exception):  # the database may be gone
            await self._app.close_async()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        from procrastinate.exceptions import AlreadyEnqueued, ProcrastinateException

        try:
            yield
        except AlreadyEnqueued:
            raise
        except (ProcrastinateException, OSError) as error:
            raise StoreError(f"the queue of runs in {self._db.path} cannot be used ({error_text(error)})") from error


async def _configure(settings: str, connection: Any) -> None:
    """Make each statement of procrastinate a transaction of its own: it has only such."""
    await connection.set_autocommit(True)
    await connection.execute(settings)


def _namespace(db: Any) -> str:
    return f"{db.prefix}_queue"


def create_queue(db: PostgresDatabase) -> bool:
    """Create the tables of the queue in the database of the runs, unless they exist. Return whether they were created.

    Raises:
        StoreError: the database cannot be used.
    """
    from procrastinate.schema import SchemaManager

    return db.create_beside(_namespace(db), "procrastinate_jobs", SchemaManager.get_schema())
