"""Run pipelines of processes without a shell, read their output, and kill everything they started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from typing import Any, Literal

import msgspec

MAX_READ = 200_000_000
"""Maximum number of bytes that a job may print, kept or not, before it is killed."""
MARK = "HOOKLINE_JOB"
"""The environment variable that identifies the processes of a job, even those that left its process group."""
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
_POLL = 0.05
_PATIENCE = 20
_PROGRESS_EVERY = 1.0
_WATCH_EVERY = 0.25
_PIECE = 65_536
_PIPE_SIZE = 1_048_576


def set_variables(ctx: Any, variables: Mapping[str, str]) -> None:
    """Set environment variables for the commands of a run, and of the runs nested in it.

    Args:
        ctx: the context of the run.
        variables: the names and values. ``HOME`` and ``TMPDIR`` stay those of the tool, and folders that the tool
            searches for programs stay on its ``PATH``.
    """
    ctx.tree_state[id(set_variables)] = dict(variables)


def run_variables(ctx: Any, path: str) -> dict[str, str]:
    """Return the variables of :func:`set_variables` for a tool that searches programs in these folders."""
    given = {} if ctx is None else ctx.tree_state.get(id(set_variables), {})
    variables = {name: value for name, value in given.items() if name not in ("HOME", "TMPDIR", MARK)}
    # A relative folder would depend on where the agent is, so that it could put a program there.
    folders = [folder for folder in given.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    return {**variables, "PATH": os.pathsep.join(dict.fromkeys((*folders, *path.split(os.pathsep))))}


def search_path() -> str:
    """Return the folders in which programs are searched: the absolute ones in this process's ``PATH``."""
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    return os.pathsep.join(folders) or _USUAL_PATH


class JobStoppedError(Exception):
    """The job was stopped from outside."""


class FileRedirect(msgspec.Struct, frozen=True):
    """A redirect of a descriptor to a file, or with ``same_as`` to another descriptor."""

    descriptor: int
    path: str = ""
    mode: Literal["read", "write", "append"] = "read"
    same_as: int | None = None


class ProcessSpec(msgspec.Struct, frozen=True):
    """A process to be started."""

    program: str
    argv: tuple[str, ...]
    folder: str
    env: Mapping[str, str]
    openings: tuple[FileRedirect, ...] = ()


class OutputBuffer:
    """The output of a job. Only the first and the last part are kept."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0
        self.read = 0

    def add(self, data: bytes) -> None:
        """Add output."""
        self.read += len(data)
        room = self._half - len(self._head)
        if room > 0:
            self._head += data[:room]
            data = data[room:]
        self._tail += data
        if len(self._tail) > 2 * self._half:
            self._cut()

    def _cut(self) -> None:
        more = len(self._tail) - self._half
        if more > 0:
            self._dropped += more
            del self._tail[:more]

    @property
    def text(self) -> str:
        """The kept output, with a note where a part was omitted."""
        if not self._dropped and len(self._tail) <= self._half:
            return (self._head + self._tail).decode(errors="replace").replace("\0", "\ufffd")
        self._cut()
        head, tail = (part.decode(errors="replace").replace("\0", "\ufffd") for part in (self._head, self._tail))
        return f"{head}\n[... {self._dropped} bytes omitted ...]\n{tail}"

    @property
    def last_line(self) -> str:
        """The last complete line that is not empty."""
        end = bytes(self._tail[-400:] or self._head[-400:])
        lines = (end.rpartition(b"\n")[0] or end).decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")


class ProcessJob:
    """The processes of one call. ``run`` blocks a worker thread; ``stop`` may be called from any thread.

    Args:
        limit: how many bytes of the output are kept.
        seconds: time limit for the whole job.
        progress: called from time to time with the last line of output.
        watch: called about four times a second with the ids of all processes of the job. If it returns a text, they are
            killed for this reason.
    """

    def __init__(
        self,
        limit: int,
        seconds: float,
        progress: Callable[[str], None] = lambda line: None,
        watch: Callable[[Collection[int]], str | None] | None = None,
    ) -> None:
        self.output = OutputBuffer(limit)
        self.mark = os.urandom(12).hex()
        self._end, self._progress = time.monotonic() + seconds, progress
        self._last_progress = self._last_watch = time.monotonic()
        self._watch = watch
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopped = False

    def stop(self) -> None:
        """Kill all processes now, and start no more."""
        with self._lock:
            self._stopped = True
            kill_all({process.pid for process in self._running}, self.mark)

    def run(self, starts: Sequence[ProcessSpec]) -> int:
        """Run one pipeline and return the exit code of its last process, negative if a signal ended it.

        Raises:
            TimeoutError: the time is up; everything was killed.
            OverflowError: it used or printed too much; everything was killed.
            JobStoppedError: :meth:`stop` was called.
            OSError: a file cannot be opened, or a program cannot be run.
        """
        try:
            with ExitStack() as files:
                reading = self._begin(starts, files)
            with reading:
                self._follow(reading)
        finally:
            codes = self._clear()
        if self._stopped:
            raise JobStoppedError
        return codes[-1]

    def _clear(self) -> list[int]:
        """Kill the processes of a pipeline and their children, reap them, and return the exit codes."""
        with self._lock:
            ended = list(self._running)
            self._running.clear()
            kill_all({process.pid for process in ended}, self.mark)
        return [process.wait() for process in ended]

    def _begin(self, starts: Sequence[ProcessSpec], files: ExitStack) -> _Pipe:
        def pipe() -> tuple[int, int]:
            reader, writer = os.pipe()
            files.callback(_close, writer)
            return reader, writer

        reader, writer = pipe()
        reading = _Pipe(reader)
        try:
            source = os.open(os.devnull, os.O_RDONLY)
            files.callback(_close, source)
            for number, start in enumerate(starts, 1):
                following, sink = (-1, writer) if number == len(starts) else pipe()
                if following >= 0:
                    files.callback(_close, following)
                self._spawn(start, _opened(start, [source, sink, writer], files))
                source = following
        except BaseException:
            reading.close()
            raise
        return reading

    def _spawn(self, start: ProcessSpec, descriptors: Sequence[int]) -> None:
        stdin, stdout, stderr = descriptors
        with self._lock:
            if self._stopped:
                raise JobStoppedError
            self._running.append(
                subprocess.Popen(
                    start.argv,
                    executable=start.program,
                    stdin=stdin,
                    stdout=stdout,
                    stderr=stderr,
                    cwd=start.folder,
                    env={**start.env, MARK: self.mark},
                    start_new_session=True,
                )
            )

    def _follow(self, reading: _Pipe) -> None:
        """Read until all processes have ended and their output is complete."""
        while True:
            left = self._end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            self._check_usage()
            data = reading.read(min(left, _POLL))
            if data:
                self.output.add(data)
                if self.output.read > MAX_READ:
                    raise OverflowError(f"after {MAX_READ} bytes, because it printed too much")
                if time.monotonic() - self._last_progress > _PROGRESS_EVERY and not self._stopped:
                    self._last_progress = time.monotonic()
                    self._progress(self.output.last_line)
            elif self._stopped or all(has_ended(process) for process in self._running):
                self._read_rest(reading)
                break
            elif data == b"":  # all processes have closed the pipe, and some still run
                time.sleep(min(left, _POLL / 5))

    def _read_rest(self, reading: _Pipe) -> None:
        """Read the output since the last read. A pipe holds at most 1 MB; other processes may still write to it."""
        for _ in range(_PIPE_SIZE // _PIECE):
            data = reading.read(0)
            if not data:
                break
            self.output.add(data)

    def _check_usage(self) -> None:
        if self._watch is None or time.monotonic() - self._last_watch < _WATCH_EVERY:
            return
        problem = self._watch(_descendants({process.pid for process in self._running}, self.mark.encode()))
        if problem is not None:
            raise OverflowError(f"because it {problem}")
        self._last_watch = time.monotonic()


class _Pipe:
    """The reading end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(descriptor, selectors.EVENT_READ)

    def read(self, seconds: float) -> bytes | None:
        """Return the available data: ``b""`` at the end, ``None`` if nothing came in time."""
        if not self._selector.select(seconds):
            return None
        try:
            return os.read(self._descriptor, _PIECE)
        except BlockingIOError:
            return None

    def close(self) -> None:
        self._selector.close()
        _close(self._descriptor)

    def __enter__(self) -> _Pipe:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


_STREAMS = {f"/dev/{name}": number for number, name in enumerate(("stdin", "stdout", "stderr"))}
_STREAMS |= {f"{folder}/{number}": number for folder in ("/dev/fd", "/proc/self/fd") for number in range(3)}


def _opened(start: ProcessSpec, descriptors: list[int], files: ExitStack) -> list[int]:
    """Return the descriptors of a process after its redirects, which apply from left to right."""
    flags = {"read": os.O_RDONLY, "write": os.O_WRONLY | os.O_CREAT | os.O_TRUNC}
    flags["append"] = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for opening in start.openings:
        if opening.same_as is not None:
            descriptors[opening.descriptor] = descriptors[opening.same_as]
            continue
        path = os.path.normpath(os.path.join(start.folder, opening.path))
        if path in _STREAMS:  # of the command, not of this process: its terminal belongs to the user
            descriptors[opening.descriptor] = descriptors[_STREAMS[path]]
            continue
        opened = os.open(
            path, flags[opening.mode] | os.O_NONBLOCK | os.O_NOCTTY, 0o666
        )  # opening a named pipe must not block
        files.callback(_close, opened)
        os.set_blocking(opened, True)
        descriptors[opening.descriptor] = opened
    return descriptors


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, without reaping it where the system supports that."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # it was already reaped elsewhere
        return process.poll() is not None


def kill_all(leaders: Collection[int], mark: str) -> None:
    """Kill these processes, their groups and all their descendants."""
    if sys.platform.startswith("linux") and leaders:
        alone = 0
        for _ in range(100):  # a process may start another one while we look
            found = _descendants(leaders, mark.encode())
            if not found:
                break
            # The leader of a sandbox is the parent of all whose own parent has ended, also of those that were missed
            # here. It kills them and ends, so it is killed only if it does not.
            if others := found.difference(leaders):
                alone = 0
            elif (alone := alone + 1) < _PATIENCE:
                time.sleep(_POLL / 10)
                continue
            for pid in others or found:
                with suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
    for leader in leaders:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


def _descendants(leaders: Collection[int], mark: bytes) -> set[int]:
    """Return the running processes of these sessions or with this mark, and their descendants."""
    parents: dict[int, int] = {}
    found: set[int] = set()
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                state, parent, _, session = file.read().rpartition(b")")[2].split()[:4]
            if state in (b"Z", b"X"):
                continue
        except (OSError, ValueError):  # it has ended
            continue
        parents[int(name)] = int(parent)
        if int(session) in leaders or _is_marked(name, mark):
            found.add(int(name))
    fresh = set(found)
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found - {os.getpid()}


def _is_marked(pid: str, mark: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read()
    except OSError:  # it has ended, belongs to another user, or is in a sandbox
        return False
