"""The files of a folder of records.

::

    FOLDER/20261116T183412Z-4711-000001.moments    a segment: runs, one block of lines after the other
    FOLDER/labels.jsonl                            labels that people gave afterwards

A run in progress has a segment for itself, so that blocks are never interleaved; a finished run leaves its segment to
the next one. So a process has as many segments as runs at the same time. Whenever a run starts a call of a model or
tool, or asks a person, everything so far is in the file: a crash loses at most the result of the last call. A process
holds a lock on its segments, which the operating system releases when the process dies.

``logging.handlers`` can rotate files too, but there all runs write to one file.
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
"""Size from which no further run is appended to a segment, in bytes."""
MAX_SIZE = 1_000_000_000
"""Total size of the segments of a folder, in bytes."""
_DAY = 86400.0
MAX_AGE = 90 * _DAY
"""Age at which segments are deleted, in seconds."""
_MAX_HELD = 1 << 16
_NAME = re.compile(r"(\d{8})T\d{6}Z-\d+-\d+" + re.escape(SUFFIX))
_CREATE = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_EXCL
_OPEN = os.O_RDWR | os.O_APPEND | getattr(os, "O_NOFOLLOW", 0)
_numbers = count(1)


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
        segment_size: size from which no further run is appended to a segment.
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
        # Segments are deleted as a whole, so a folder with a small limit needs small ones.
        self._segment_size = segment_size if max_size is None else min(segment_size, max(max_size // 4, 1))
        self._max_size, self._max_age = max_size, max_age
        self._lock = threading.Lock()
        self._idle: list[Segment] = []
        self._writers: set[BlockWriter] = set()
        _folders.add(self)
        weakref.finalize(self, _close, self._idle)

    def start(self, on_error: Callable[[OSError], object]) -> BlockWriter:
        """Start the block of a run. ``on_error`` is called once if it cannot be continued.

        Raises:
            OSError: no segment can be written.
        """
        with self._lock:
            writer = BlockWriter(self, self._segment(), on_error)
            self._writers.add(writer)
        return writer

    def release(self, writer: BlockWriter, segment: Segment | None) -> None:
        """Take a segment back for the next run; ``None`` if it is closed."""
        with self._lock:
            self._writers.discard(writer)
            if segment is not None:
                self._idle.append(segment)

    def close(self) -> None:
        """Close the segments that no run uses, so that another process may append to them."""
        with self._lock:
            _close(self._idle)

    def forget(self) -> None:
        """Close all files without writing, in a forked process: they belong to the parent."""
        self._lock = threading.Lock()
        writers, self._writers = self._writers, set()
        for writer in writers:
            writer.abandon()
        _close(self._idle)

    def _segment(self) -> Segment:
        now = time.time()
        while self._idle:
            segment = self._idle.pop()
            if now < segment.until and segment.size < self._segment_size and segment.exists():
                return segment
            segment.close()
        os.makedirs(self.path, 0o700, exist_ok=True)
        keep = None if self._max_size is None else max(self._max_size - self._segment_size, 0)
        remove_old_segments(self.path, keep, self._max_age, now)
        day = time.strftime("%Y%m%d", time.gmtime(now))
        return self._reopened(day) or self._created(day, now)

    def _reopened(self, day: str) -> Segment | None:
        """Return the newest segment of the day if it has room and no process writes to it."""
        names = sorted(name for name in os.listdir(self.path) if name.startswith(day) and _NAME.fullmatch(name))
        for name in names[-1:]:
            path = os.path.join(self.path, name)
            with suppress(OSError):  # it was just removed, or belongs to another user
                file = os.open(path, _OPEN)
                if try_lock(file):
                    state = os.fstat(file)
                    is_private = os.name == "nt" or not state.st_mode & 0o077
                    fits = state.st_nlink and 0 < state.st_size < self._segment_size
                    if fits and is_private and _version(file) == VERSION:
                        return Segment(path, file, state.st_size)
                os.close(file)
        return None

    def _created(self, day: str, now: float) -> Segment:
        stamp = f"{day}{time.strftime('T%H%M%SZ', time.gmtime(now))}-{os.getpid()}"
        while True:
            path = os.path.join(self.path, f"{stamp}-{next(_numbers):06}{SUFFIX}")  # names sort by their age
            with suppress(FileExistsError):
                file = os.open(path, _CREATE, 0o600)
                if try_lock(file):  # another process may hold the lock for a moment, while it looks for a segment
                    return Segment(path, file, 0)
                os.close(file)


class Segment:
    """A segment that this process has locked. ``digests`` are the hooks that it contains."""

    def __init__(self, path: str, file: int, size: int) -> None:
        self.path, self.file, self.size = path, file, size
        self.until = (time.time() // _DAY + 1) * _DAY
        """The end of the day."""
        self.digests: set[str] = set()
        self.held = b""
        """Lines that are written together with the next one."""
        if not size:
            self.held = first_line()
        elif not _ends_with_newline(file):  # its writer died: readers skip and report the torn line
            self.held = b"\n"

    def exists(self) -> bool:
        """Whether nobody has deleted the file."""
        return os.fstat(self.file).st_nlink > 0

    def close(self) -> None:
        """Close the file, and release its lock."""
        with suppress(OSError):
            os.close(self.file)


class BlockWriter:
    """Writes the block of a run in progress to its segment."""

    def __init__(self, folder: RecordFolder, segment: Segment, on_error: Callable[[OSError], object]) -> None:
        self._folder = folder
        self._segment = segment
        self._on_error = on_error
        self._is_open = True

    def write(self, data: bytes) -> None:
        """Append lines, after those that were held. After an error and in a forked process nothing happens."""
        if not self._is_open:
            return
        segment = self._segment
        if segment.held:
            data, segment.held = segment.held + data, b""
        try:
            written = os.write(segment.file, data)
            while written < len(data):  # a signal, or the disk is nearly full
                written += os.write(segment.file, data[written:])
            segment.size += written
        except OSError as error:
            on_error = self._on_error
            self.abandon()
            on_error(error)

    def hold(self, data: bytes) -> None:
        """Append a line that is written together with the next one: half as many writes, and no call waits for it."""
        if len(self._segment.held) > _MAX_HELD:
            self.write(data)
        else:
            self._segment.held += data

    def has_hooks(self, digest: str) -> bool:
        """Whether the segment contains the hooks with this digest."""
        return digest in self._segment.digests

    def hold_hooks(self, digest: str, line: bytes) -> None:
        """Append the hooks with this digest."""
        self._segment.digests.add(digest)
        self.hold(line)

    def finish(self) -> None:
        """End the block. The next run may use the segment."""
        self.write(b"")
        if self._is_open:
            self._is_open = False
            self._on_error = _ignore
            self._folder.release(self, self._segment)

    def abandon(self) -> None:
        """Close the segment and leave it as it is."""
        if self._is_open:
            self._is_open = False
            self._on_error = _ignore
            self._segment.close()
            self._folder.release(self, None)


def _ignore(error: OSError) -> None:
    """Replace the callback of a writer that is finished, which would be a reference cycle."""


def _ends_with_newline(file: int) -> bool:
    os.lseek(file, -1, os.SEEK_END)
    return os.read(file, 1) == b"\n"


def _version(file: int) -> int:
    """Return the version of the format of a segment; -1 if its first line is damaged."""
    try:
        return _decode_header(os.pread(file, 1 << 12, 0).partition(b"\n")[0]).header.format
    except msgspec.DecodeError:
        return -1


_decode_header = msgspec.json.Decoder(HeaderLine).decode


def first_line(source: str = "") -> bytes:
    """Return the first line of a file. ``source`` is the system that the runs are imported from."""
    return msgspec.json.encode(HeaderLine("hookline", Header(VERSION, __version__, time.time(), source))) + b"\n"


def is_held(path: str) -> bool:
    """Whether a process writes to a segment, or keeps it for its next run."""
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
            if _unlink_unused(segment.path):
                removed.append(segment)
    return removed


def _unlink_unused(path: str) -> bool:
    """Delete a segment, unless a process has begun to write to it. Return whether it is deleted."""
    file = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
    try:
        is_free = try_lock(file)
        if is_free and os.name != "nt":  # Windows does not delete an open file
            os.unlink(path)
    finally:
        os.close(file)
    if is_free and os.name == "nt":
        os.unlink(path)
    return is_free


def _close(segments: list[Segment]) -> None:
    """Close segments. It takes a list, because the folder may no longer exist."""
    while segments:
        segments.pop().close()


_folders: weakref.WeakSet[RecordFolder] = weakref.WeakSet()


def _forget_all() -> None:
    for folder in list(_folders):
        folder.forget()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
