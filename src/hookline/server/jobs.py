"""Long work for people, such as verifying an audit log, in a process of its own.

The work is a Python module that reads one JSON object from its input, and writes JSON lines:
``{"done": 1, "total": 9}`` for progress, and ``{"result": …}`` or ``{"error": "…"}`` at its end. A process can be
stopped at any time, takes no processor time from the event loop, and keeps the code of rules out of the server.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
import time
import uuid
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import msgspec

from .._base.errors import HooklineError
from .._base.text import describe, error_text
from .errors import BusyError, ConflictError, ServiceError

log = logging.getLogger("hookline")

AT_ONCE = 1
"""Number of jobs of a kind that run at once. The others wait."""
MAX_WAITING = 8
"""Number of jobs of a kind that may wait."""
KEPT = 20
"""Number of finished jobs that are kept, with their results."""
MAX_RESULT = 64 << 20
"""Maximum size of a result in bytes."""

JobStatus = Literal["queued", "running", "done", "failed", "cancelled"]


class UnknownJobError(ServiceError):
    """There is no job with this id: it began at another server, before a restart, or too long ago."""

    code = "unknown_job"
    status = 404


class Job(msgspec.Struct):
    """A piece of work. ``given`` is what it works on, ``result`` what its process returned."""

    id: str
    module: str
    given: dict[str, Any]
    by: str
    created: float
    status: JobStatus = "queued"
    done: int = 0
    total: int = 0
    result: Any = None
    error: str = ""
    ended: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether it has ended."""
        return self.status not in ("queued", "running")

    @property
    def share(self) -> float:
        """The part that is done, from 0 to 1."""
        return 1.0 if self.status == "done" else min(1.0, self.done / self.total) if self.total else 0.0


class Jobs:
    """The jobs of one kind, in the memory of this server.

    Args:
        module: the module that a process executes, such as ``hookline.server.verify_process``.
    """

    def __init__(self, module: str) -> None:
        self._module = module
        self._jobs: OrderedDict[str, Job] = OrderedDict()
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._free = asyncio.Semaphore(AT_ONCE)
        self.version = 0
        """A number that grows with every change."""

    def start(self, given: dict[str, Any], by: str) -> Job:
        """Start a job, or queue it.

        Args:
            given: JSON for the process.
            by: the name of the caller.

        Raises:
            BusyError: too many jobs wait.
        """
        if len(self._tasks) >= AT_ONCE + MAX_WAITING:
            raise BusyError("too many of these are waiting: try again when one has ended")
        job = Job(f"job_{uuid.uuid4().hex}", self._module, given, by, time.time())
        self._jobs[job.id] = job
        task = self._tasks[job.id] = asyncio.create_task(self._run(job), name=f"hookline-{job.id}")
        task.add_done_callback(lambda _: self._tasks.pop(job.id, None))
        for old in [each.id for each in self._jobs.values() if each.is_over][:-KEPT]:
            del self._jobs[old]
        self.version += 1
        return job

    def get(self, id: str) -> Job:
        """Return a job.

        Raises:
            UnknownJobError: there is none with this id.
        """
        try:
            return self._jobs[id]
        except KeyError:
            raise UnknownJobError(
                "this server has no such job: it began at another server, before a restart, or too long ago"
            ) from None

    def list(self) -> list[Job]:
        """Return the jobs, newest first."""
        return [*self._jobs.values()][::-1]

    async def cancel(self, id: str) -> Job:
        """Stop a job, and return it when its process has ended.

        Raises:
            UnknownJobError: there is none with this id.
            ConflictError: it has ended.
        """
        job, task = self.get(id), self._tasks.get(id)
        if job.is_over or task is None:
            raise ConflictError("it has already ended")
        task.cancel()
        await asyncio.wait([task])
        return job

    async def close(self) -> None:
        """Stop all jobs."""
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)

    async def _run(self, job: Job) -> None:
        try:
            async with self._free:
                self._change(job, status="running")
                job.error = await _work(job, lambda: self._change(job))
                self._change(job, status="failed" if job.error else "done", ended=time.time())
        except asyncio.CancelledError:
            self._change(job, status="cancelled", ended=time.time())
            raise
        except Exception as error:
            log.exception("a background job failed")
            self._change(job, status="failed", error=describe(error), ended=time.time())

    def _change(self, job: Job, **fields: Any) -> None:
        for name, value in fields.items():
            setattr(job, name, value)
        self.version += 1


class _Line(msgspec.Struct):
    """A line that a process writes."""

    done: int = 0
    total: int = 0
    result: Any = msgspec.UNSET
    error: str = ""


_decode_line = msgspec.json.Decoder(_Line).decode


async def _work(job: Job, changed: Callable[[], object]) -> str:
    """Execute a job in a process, and return why it failed, or nothing."""
    path = os.pathsep.join(each or os.getcwd() for each in sys.path)  # it finds the modules that this process finds
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        job.module,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,  # what rules print is not a message of the server
        env={**os.environ, "PYTHONPATH": path},
        limit=MAX_RESULT,
        start_new_session=True,  # so that its own processes are stopped with it
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        with suppress(ConnectionError):  # it has died, which is noticed next
            process.stdin.write(msgspec.json.encode(job.given))
            process.stdin.close()
        async for data in process.stdout:
            line = _decode_line(data)
            if line.error:
                return line.error
            if line.result is not msgspec.UNSET:
                job.result = line.result
                return ""
            job.done, job.total = line.done, line.total
            changed()
        return f"its process ended without a result (exit code {await process.wait()})"
    finally:
        with suppress(ProcessLookupError, PermissionError):
            if hasattr(os, "killpg"):
                os.killpg(process.pid, signal.SIGKILL)
            else:
                process.kill()
        await asyncio.shield(process.wait())


def serve_job(work: Callable[[dict[str, Any], Callable[[int, int], object]], Any]) -> None:
    """Execute a job in this process: the main function of its module.

    Args:
        work: called with what is given and a function for progress. Its result is written as JSON, its exception as
            the reason of a failure.
    """
    with os.fdopen(os.dup(1), "wb") as out:
        os.dup2(2, 1)  # what other code prints does not get into the answer

        def send(line: dict[str, Any]) -> None:
            out.write(msgspec.json.encode(line) + b"\n")
            out.flush()

        try:
            result = work(
                msgspec.json.decode(sys.stdin.buffer.read()), lambda done, total: send(_progress(done, total))
            )
        except BaseException as error:  # noqa: BLE001 - rules may raise anything, also SystemExit
            send({"error": error_text(error) if isinstance(error, HooklineError) else describe(error)})
        else:
            send({"result": result})


def _progress(done: int, total: int) -> dict[str, Any]:
    return {"done": done, "total": total}
