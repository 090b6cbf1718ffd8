"""Processes without a shell: pipelines that are read as they print, and ended with everything they started."""

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
from typing import Literal

import msgspec

MAX_READ = 200_000_000
"""How many bytes a job may print, kept or not, before it is ended."""
MARK = "HOOKLINE_JOB"
"""The environment variable by which what a job started is found, even if it has left its process group."""
_USUAL_PATH = "/usr/local/bin:/usr/bin:/bin"
_POLL = 0.05
_PROGRESS_EVERY = 1.0
_PIECE = 65_536


def search_path() -> str:
    """Where programs are looked for: the absolute folders of this process' own search path."""
    folders = [folder for folder in os.environ.get("PATH", "").split(os.pathsep) if os.path.isabs(folder)]
    return os.pathsep.join(folders) or _USUAL_PATH


class Stopped(Exception):
    """The job was ended from outside."""


class Opening(msgspec.Struct, frozen=True):
    """A file that a descriptor of a process leads to; with ``same_as``, the other descriptor."""

    descriptor: int
    path: str = ""
    mode: Literal["read", "write", "append"] = "read"
    same_as: int | None = None


class Start(msgspec.Struct, frozen=True):
    """A process to be started."""

    program: str
    argv: tuple[str, ...]
    folder: str
    env: Mapping[str, str]
    openings: tuple[Opening, ...] = ()


class Kept:
    """What was printed, of which the first and the last part are kept."""

    def __init__(self, limit: int) -> None:
        self._half = max(limit // 2, 1)
        self._head, self._tail = bytearray(), bytearray()
        self._dropped = 0
        self.read = 0

    def add(self, data: bytes) -> None:
        """Take in what was read."""
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
        """The kept text; what was left out is told in between."""
        if not self._dropped and len(self._tail) <= self._half:
            return (self._head + self._tail).decode(errors="replace").replace("\0", "\ufffd")
        self._cut()
        head, tail = (part.decode(errors="replace").replace("\0", "\ufffd") for part in (self._head, self._tail))
        return f"{head}\n[... {self._dropped} bytes are left out here ...]\n{tail}"

    @property
    def last_line(self) -> str:
        """The last whole line that is not empty."""
        end = bytes(self._tail[-400:] or self._head[-400:])
        lines = (end.rpartition(b"\n")[0] or end).decode(errors="replace").splitlines()
        return next((line for line in reversed(lines) if line.strip()), "")


class Job:
    """The processes of one call. ``run`` belongs to a worker thread, ``stop`` may be called from any.

    Args:
        limit: how many bytes of the output are kept.
        seconds: how long all of it may take.
        progress: is told the last line that was printed, now and then.
    """

    def __init__(self, limit: int, seconds: float, progress: Callable[[str], None] = lambda line: None) -> None:
        self.output = Kept(limit)
        self.mark = os.urandom(12).hex()
        self._end, self._progress = time.monotonic() + seconds, progress
        self._told = time.monotonic()
        self._lock = threading.Lock()
        self._running: list[subprocess.Popen[bytes]] = []
        self._stopped = False

    def stop(self) -> None:
        """End everything at once; nothing is started any more."""
        with self._lock:
            self._stopped = True
            _end_all({process.pid for process in self._running}, self.mark)

    def run(self, starts: Sequence[Start]) -> int:
        """Run one pipeline to its end; the exit code of its last process, negative if a signal ended it.

        Raises:
            TimeoutError: the time is up; everything was ended.
            OverflowError: it printed too much; everything was ended.
            Stopped: :meth:`stop` was called.
            OSError: a file cannot be opened, or a program not be run.
        """
        try:
            with ExitStack() as files:
                reading = self._begin(starts, files)
            with reading:
                self._follow(reading)
        finally:
            codes = self._clear()
        if self._stopped:
            raise Stopped
        return codes[-1]

    def _clear(self) -> list[int]:
        """End what is left of a pipeline and its children, and have the system forget it; the exit codes."""
        with self._lock:
            ended = list(self._running)
            self._running.clear()
            _end_all({process.pid for process in ended}, self.mark)
        return [process.wait() for process in ended]

    def _begin(self, starts: Sequence[Start], files: ExitStack) -> _Pipe:
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

    def _spawn(self, start: Start, descriptors: Sequence[int]) -> None:
        stdin, stdout, stderr = descriptors
        with self._lock:
            if self._stopped:
                raise Stopped
            self._running.append(
                subprocess.Popen(
                    start.argv, executable=start.program, stdin=stdin, stdout=stdout, stderr=stderr, cwd=start.folder,
                    env={**start.env, MARK: self.mark}, start_new_session=True,
                )
            )  # fmt: skip

    def _follow(self, reading: _Pipe) -> None:
        """Read until all processes have ended and printed what they had to."""
        while True:
            left = self._end - time.monotonic()
            if left <= 0:
                raise TimeoutError
            data = reading.read(min(left, _POLL))
            if data:
                self.output.add(data)
                if self.output.read > MAX_READ:
                    raise OverflowError
                if time.monotonic() - self._told > _PROGRESS_EVERY and not self._stopped:
                    self._told = time.monotonic()
                    self._progress(self.output.last_line)
            elif self._stopped or all(_ended(process) for process in self._running):
                break
            elif data == b"":  # all have closed it, and some still run
                time.sleep(min(left, _POLL / 5))


class _Pipe:
    """The reading end of a pipe."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        os.set_blocking(descriptor, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(descriptor, selectors.EVENT_READ)

    def read(self, seconds: float) -> bytes | None:
        """What there is; nothing at the end, ``None`` if there was nothing for so long."""
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


def _opened(start: Start, descriptors: list[int], files: ExitStack) -> list[int]:
    """The descriptors of a process after its redirects, which count from left to right."""
    flags = {"read": os.O_RDONLY, "write": os.O_WRONLY | os.O_CREAT | os.O_TRUNC}
    flags["append"] = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    for opening in start.openings:
        if opening.same_as is not None:
            descriptors[opening.descriptor] = descriptors[opening.same_as]
            continue
        path = os.path.join(start.folder, opening.path)
        opened = os.open(path, flags[opening.mode] | os.O_NONBLOCK | os.O_NOCTTY, 0o666)  # a pipe must not hold us up
        files.callback(_close, opened)
        os.set_blocking(opened, True)
        descriptors[opening.descriptor] = opened
    return descriptors


def _close(descriptor: int) -> None:
    with suppress(OSError):
        os.close(descriptor)


def _ended(process: subprocess.Popen[bytes]) -> bool:
    """Whether it has ended, which leaves its number taken, where the system can tell so."""
    if process.returncode is not None or not hasattr(os, "waitid"):
        return process.poll() is not None
    try:
        return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # somebody else has waited for it
        return process.poll() is not None


def _end_all(leaders: Collection[int], mark: str) -> None:
    """Kill these processes, their groups and all that came of them."""
    for leader in leaders:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)
    if not sys.platform.startswith("linux") or not leaders:
        return
    for _ in range(20):  # one that is just starting another may be seen too late
        found = _offspring(leaders, mark.encode())
        if not found:
            break
        for pid in found:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)


def _offspring(leaders: Collection[int], mark: bytes) -> set[int]:
    """The living processes of these sessions, with this mark, or started by such."""
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
            parents[int(name)] = int(parent)
            with open(f"/proc/{name}/environ", "rb") as file:
                marked = mark in file.read()
        except (OSError, ValueError):  # it has ended, or is somebody else's
            continue
        if marked or int(session) in leaders:
            found.add(int(name))
    fresh = set(found)
    while fresh:
        fresh = {pid for pid, parent in parents.items() if parent in fresh} - found
        found |= fresh
    return found - {os.getpid()}
