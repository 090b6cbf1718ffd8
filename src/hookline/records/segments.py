"""The files of a folder of records.

::

    FOLDER/20261116T183412Z-4711-000001.moments    a segment: finished runs, one block of lines after the other
    FOLDER/live/4711-0.moments                     a run that is in progress, or whose process died
    FOLDER/labels.jsonl                            labels that people gave afterwards

A run is written to a live file. Whenever it starts a call of a model or tool, or asks a person, everything so far is in
the file, so a crash loses at most the result of the last call. At its end the block is appended to the segment of the
process. A process holds a lock on its segment and on
its live files; the operating system releases it when the process dies. The next recorder moves such leftover live files
to a segment.

``logging.handlers`` can rotate files too, but its files are shared by all runs, so that runs would be interleaved.
"""

from __future__ import annotations

import os
import re
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import NamedTuple

import msgspec

from .._base.files import project_name, try_lock, user_folder
from .._base.package import __version__
from .format import SUFFIX, VERSION, Header, HeaderLine

SEGMENT_SIZE = 64_000_000
"""Size at which a new segment is started, in bytes."""
MAX_SIZE = 1_000_000_000
"""Total size of the segments of a folder, in bytes."""
_DAY = 86400.0
MAX_AGE = 90 * _DAY
"""Age at which segments are deleted, in seconds."""
LIVE = "live"
_CHUNK = 1 << 20
_LOCK_SECONDS = 5.0
_MAX_HELD = 1 << 16
_EMPTY_SECONDS = 60.0
_NAME = re.compile(r"(\d{8})T\d{6}Z-\d+-\d+" + re.escape(SUFFIX))
_CREATE = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
_numbers = count()
_OPEN = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)


def default_records_path(project: str | os.PathLike[str]) -> Path:
    """Return the folder of the records of a project, in the user's data folder.

    Example::

        default_records_path("/srv/shop")  # ~/.local/share/hookline/records-shop-7d4c1a90b2
    """
    return user_folder("data") / f"records-{project_name(project)}"


class OldSegment(NamedTuple):
    """A segment that was deleted, or would be."""

    path: str
    size: int
    time: float


class RecordFolder:
    """Writes the records of a process to a folder.

    Args:
        path: the folder; it is created with the first run, for its owner only.
        segment_size: size at which a new segment is started.
        max_size: total size of the segments; the oldest are deleted when a new one is started.
        max_age: age in seconds at which segments are deleted.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        segment_size: int = SEGMENT_SIZE,
        max_size: int | None = MAX_SIZE,
        max_age: float | None = MAX_AGE,
    ) -> None:
        self.path = os.path.abspath(os.path.expanduser(os.fspath(path)))
        self._live_path = os.path.join(self.path, LIVE)
        # Segments are deleted as a whole, so a folder with a small limit needs small ones.
        self._segment_size = segment_size if max_size is None else min(segment_size, max(max_size // 4, 1))
        self._max_size, self._max_age = max_size, max_age
        self._lock = threading.Lock()
        self._open: list[_Segment] = []
        """The segment that this process writes to, if it has one."""
        self._live: set[LiveRecord] = set()
        self._idle: list[LiveFile] = []
        """Empty live files, which this process has locked."""
        self._is_prepared = False
        _folders.add(self)
        weakref.finalize(self, _close, self._idle, self._open)

    def start(self, now: float, on_error: Callable[[OSError], object]) -> LiveRecord:
        """Start the record of a run. ``on_error`` is called once if it cannot be continued.

        Raises:
            OSError: it cannot be written.
        """
        with self._lock:
            if not self._is_prepared:
                os.makedirs(self.path, 0o700, exist_ok=True)
                os.makedirs(self._live_path, 0o700, exist_ok=True)
                self._is_prepared = True
                self._adopt()
            file = self._idle.pop() if self._idle else self._new_live_file()
            live = LiveRecord(self, *file, on_error)
            self._live.add(live)
        live.write_aside(first_line(now))
        return live

    def _new_live_file(self) -> LiveFile:
        while True:
            path = os.path.join(self._live_path, f"{os.getpid()}-{next(_numbers)}{SUFFIX}")
            try:
                file = os.open(path, _CREATE, 0o600)
            except FileExistsError:  # of a process that had the same number
                continue
            except FileNotFoundError:  # someone removed the folder
                os.makedirs(self._live_path, 0o700)
                continue
            _wait_for_lock(file)
            return LiveFile(file, path)

    def finish(self, live: LiveRecord, rest: bytes) -> None:
        """Append the block of a run and ``rest`` to the segment, and empty its live file.

        Raises:
            OSError: the segment cannot be written. The live file remains: it is a valid record.
        """
        with self._lock:
            self._live.discard(live)
            try:
                self._append(live.file, live.size, live.aside, rest)
                os.ftruncate(live.file, 0)
            except BaseException:
                os.close(live.file)
                raise
            # Another run can use the file: to create and remove one for each run would cost more than to fill it.
            self._idle.append(LiveFile(live.file, live.path))

    def close(self) -> None:
        """Close the segment, so that another process may append to it, and remove the empty live files."""
        with self._lock:
            _close(self._idle, self._open)

    def forget(self) -> None:
        """Close all files without writing, in a forked process: they belong to the parent."""
        self._lock = threading.Lock()
        for live in list(self._live):
            live.abandon()
        for idle in self._idle:
            os.close(idle.file)
        self._idle.clear()
        _close([], self._open)

    def discard(self, live: LiveRecord) -> None:
        """Forget a live file that is left behind."""
        self._live.discard(live)

    # Segments.

    def _append(self, file: int, size: int, aside: list[Aside], rest: bytes = b"") -> None:
        """Append the block in an open live file to the segment; the lines aside come first, or are left out."""
        segment = self._writable_segment()
        segment.begin()
        try:
            new = [one for one in aside if one.digest and one.digest not in segment.digests]
            for one in new:
                segment.copy(file, one.start, one.end)
            at = 0
            for one in aside:
                segment.copy(file, at, one.start)
                at = one.end
            segment.copy(file, at, size)
            if rest:
                segment.write(rest)
        except BaseException:
            segment.undo()
            raise
        segment.digests.update(one.digest for one in new)

    def _writable_segment(self) -> _Segment:
        now = time.time()
        if self._open:
            current = self._open[0]
            if now < current.until and current.size < self._segment_size and current.exists():
                return current
            _close([], self._open)
        day = time.strftime("%Y%m%d", time.gmtime(now))
        os.makedirs(self.path, 0o700, exist_ok=True)
        room = self._segment_size
        remove_old_segments(
            self.path, None if self._max_size is None else max(self._max_size - room, 0), self._max_age, now
        )
        segment = self._reopened(day) or self._created(day, now)
        self._open.append(segment)
        return segment

    def _reopened(self, day: str) -> _Segment | None:
        """Return the newest segment of the day if it has room and no other process writes to it."""
        names = sorted(name for name in os.listdir(self.path) if name.startswith(day) and _NAME.fullmatch(name))
        for name in names[-1:]:
            path = os.path.join(self.path, name)
            with suppress(OSError):  # it was just removed, or belongs to another user
                file = os.open(path, _OPEN)
                if try_lock(file):
                    state = os.fstat(file)
                    if state.st_nlink and 0 < state.st_size < self._segment_size:
                        return _Segment(path, file, state.st_size)
                os.close(file)
        return None

    def _created(self, day: str, now: float) -> _Segment:
        stamp = f"{day}{time.strftime('T%H%M%SZ', time.gmtime(now))}-{os.getpid()}"
        while True:
            path = os.path.join(self.path, f"{stamp}-{next(_numbers):06}{SUFFIX}")  # names sort by their age
            try:
                file = os.open(path, _CREATE, 0o600)
            except FileExistsError:
                continue
            _wait_for_lock(file)
            segment = _Segment(path, file, 0)
            segment.write(first_line(now))
            return segment

    # Live files of processes that died.

    def _adopt(self) -> None:
        """Move live files that no process holds to the segment."""
        for path in live_files(self.path):
            try:
                file = os.open(path, _OPEN)
            except OSError:
                continue  # it was just finished, or belongs to another user
            try:
                if not try_lock(file):
                    continue
                state = os.fstat(file)
                if not state.st_nlink or not state.st_size:
                    # Another process has moved it; or is about to write its first line, or died before it did.
                    if state.st_nlink and time.time() - state.st_mtime > _EMPTY_SECONDS:
                        _remove_open(path, file)
                    continue
                size, aside = _scanned(file)
                self._append(file, size, aside)
                _remove_open(path, file)
            finally:
                os.close(file)

    def adopt(self) -> None:
        """Move the live files of processes that died to a segment.

        Raises:
            OSError: the folder cannot be written.
        """
        with self._lock:
            if os.path.isdir(self._live_path):
                self._adopt()


class LiveFile(NamedTuple):
    """An open and locked live file."""

    file: int
    path: str


class Aside(NamedTuple):
    """A line of a live file that is not part of its block: its first line, or hooks, which have a digest."""

    start: int
    end: int
    digest: str = ""


class LiveRecord:
    """The record of a run in progress."""

    def __init__(self, folder: RecordFolder, file: int, path: str, on_error: Callable[[OSError], object]) -> None:
        self._folder = folder
        self.file, self.path = file, path
        self._on_error = on_error
        self.size = 0
        self.aside: list[Aside] = []
        self.is_open = True
        self._held = b""

    def write(self, data: bytes) -> None:
        """Append lines, after those that were held. After an error and in a forked process nothing happens."""
        if not self.is_open:
            return
        if self._held:
            data, self._held = self._held + data, b""
        try:
            written = os.write(self.file, data)
            while written < len(data):  # a signal, or the disk is nearly full
                written += os.write(self.file, data[written:])
            self.size += written
        except OSError as error:
            self.abandon()
            self._on_error(error)

    def hold(self, data: bytes) -> None:
        """Append a line that is written together with the next one: half as many writes, and no call waits for it."""
        if len(self._held) > _MAX_HELD:
            self.write(data)
        else:
            self._held += data

    def write_aside(self, data: bytes, digest: str = "") -> None:
        """Hold a line that a segment contains once: the first line of a file, or the hooks with this digest."""
        start = self.size + len(self._held)
        self._held += data
        self.aside.append(Aside(start, start + len(data), digest))

    def finish(self) -> None:
        """Move the record to the segment; see :meth:`RecordFolder.finish`."""
        if self.is_open:
            self.is_open = False
            self._folder.finish(self, self._held)

    def abandon(self) -> None:
        """Close the file and leave it as it is."""
        if self.is_open:
            self.is_open = False
            self._folder.discard(self)
            with suppress(OSError):
                os.close(self.file)


class _Segment:
    """A segment that this process writes to."""

    def __init__(self, path: str, file: int, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.until = (time.time() // _DAY + 1) * _DAY
        """The end of the day."""
        self.digests: set[str] = set()
        if size and os.pread(file, 1, size - 1) != b"\n":  # its writer died: readers skip and report the torn line
            self.write(b"\n")

    def write(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.write(self.file, view)
            self.size += written
            view = view[written:]

    def copy(self, file: int, start: int, end: int) -> None:
        while start < end:
            data = os.pread(file, min(end - start, _CHUNK), start)
            if not data:
                raise OSError(f"{self.path}: the live file of a run is shorter than it was written")
            self.write(data)
            start += len(data)

    def begin(self) -> None:
        self._begun = self.size

    def undo(self) -> None:
        with suppress(OSError):
            os.ftruncate(self.file, self._begun)
            self.size = self._begun

    def exists(self) -> bool:
        return os.fstat(self.file).st_nlink > 0

    def close(self) -> None:
        with suppress(OSError):
            os.close(self.file)


def first_line(now: float) -> bytes:
    """Return the first line of a file."""
    return msgspec.json.encode(HeaderLine("hookline", Header(VERSION, __version__, now))) + b"\n"


def live_files(folder: str | os.PathLike[str]) -> list[str]:
    """Return the live files in a folder of records."""
    try:
        names = os.listdir(os.path.join(folder, LIVE))
    except OSError:
        return []
    return [os.path.join(folder, LIVE, name) for name in sorted(names) if name.endswith(SUFFIX)]


def is_held(path: str) -> bool:
    """Whether a process is writing to a live file or segment."""
    try:
        file = os.open(path, os.O_RDONLY)
    except OSError:
        return False
    try:
        return not try_lock(file)
    finally:
        os.close(file)


def old_segments(
    folder: str | os.PathLike[str], max_size: int | None, max_age: float | None, now: float
) -> Iterator[OldSegment]:
    """Return the segments that are too old, and the oldest ones beyond a total size. Segments in use are left out.

    Files with other names, such as imported records, do not count.
    """
    found = []
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
        for entry in entries:
            if _NAME.fullmatch(entry.name) and entry.is_file(follow_symlinks=False):
                with suppress(FileNotFoundError):
                    state = entry.stat()
                    found.append(OldSegment(entry.path, state.st_size, state.st_mtime))
    found.sort(key=lambda segment: segment.path)
    total = sum(segment.size for segment in found)
    for segment in found:
        is_old = max_age is not None and now - segment.time > max_age
        if (is_old or (max_size is not None and total > max_size)) and not is_held(segment.path):
            total -= segment.size
            yield segment


def remove_old_segments(
    folder: str | os.PathLike[str], max_size: int | None, max_age: float | None, now: float
) -> list[OldSegment]:
    """Delete the segments of :func:`old_segments`, and return them."""
    removed = []
    for segment in old_segments(folder, max_size, max_age, now):
        with suppress(OSError):  # another process has removed it, or it belongs to another user
            os.unlink(segment.path)
            removed.append(segment)
    return removed


def _scanned(file: int) -> tuple[int, list[Aside]]:
    """Return the size of the whole lines of a live file, and the lines that are not part of its block."""
    size, aside = 0, []
    with open(file, "rb", closefd=False) as lines:
        lines.seek(0)
        for line in lines:
            if not line.endswith(b"\n"):
                break
            end = size + len(line)
            if line.startswith(b'["hookline",'):
                aside.append(Aside(size, end))
            elif line.startswith(b'["hooks","'):
                aside.append(Aside(size, end, line[10:].partition(b'"')[0].decode("ascii", "replace")))
            size = end
    return size, aside


def _close(idle: list[LiveFile], segments: list[_Segment]) -> None:
    """Remove empty live files and close a segment. It takes lists, because the folder may no longer exist."""
    while idle:
        one = idle.pop()
        _remove_open(one.path, one.file)
        os.close(one.file)
    while segments:
        segments.pop().close()


def _wait_for_lock(file: int) -> None:
    """Lock a new file. Another process may hold the lock for a moment, while it looks for leftover files."""
    end = time.monotonic() + _LOCK_SECONDS
    while not try_lock(file):
        if time.monotonic() > end:
            raise OSError("another process has locked a new file of records")
        time.sleep(0.001)


def _remove_open(path: str, file: int) -> None:
    """Remove a file before its lock is released, so that no other process takes it for a leftover."""
    try:
        os.unlink(path)
    except PermissionError:  # Windows does not remove open files: an empty file is not a record
        os.ftruncate(file, 0)
    except FileNotFoundError:
        pass


_folders: weakref.WeakSet[RecordFolder] = weakref.WeakSet()


def _forget_all() -> None:
    for folder in list(_folders):
        folder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
