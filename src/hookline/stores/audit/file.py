"""The file of an audit log: chained lines appended by several processes, with rotation and a checkpoint."""

from __future__ import annotations

import glob
import logging
import os
import select
import stat
import time
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from hashlib import sha256
from pathlib import Path
from typing import Literal

import msgspec

from ..._base.files import locked, replace_file
from ..._base.own_files import OwnFile, register_own_file
from ..._base.package import __version__
from .format import (
    START,
    VERSION,
    AuditHead,
    FileEnd,
    append_signature,
    archive_path,
    archive_paths,
    encode_record,
    encode_type,
    find_end,
    parse_head,
    parse_open,
    read_first_line,
    timestamp,
)
from .keys import Signer
from .records import AuditRecord, LostRecord, OpenRecord, PruneRecord, RotateRecord

log = logging.getLogger("hookline")

Fsync = Literal["never", "batch", "always"]
Position = tuple[int, str]
"""Number and hash of a record."""

LOCK_SECONDS = 5.0
"""Seconds to wait while another process writes."""
STALL_SECONDS = 5.0
"""Seconds to wait while the reader of a pipe does not read."""
CHECKPOINT_SECONDS = 1.0
"""Maximum age of the checkpoint while records are written."""

_ROOM = 512  # bytes reserved for the last record of a file
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class AuditWriteError(Exception):
    """Writing failed after ``written`` records. ``lost_reported``: a ``lost`` record was written before them."""

    def __init__(self, written: int, why: str, lost_reported: bool = False) -> None:
        super().__init__(why)
        self.written = written
        self.why = why
        self.lost_reported = lost_reported


class _Handle(msgspec.Struct):
    """The open file, and its known end."""

    fd: int
    regular: bool
    id: tuple[int, int]
    size: int = -1
    seq: int = 0
    hash: str = START
    number: int = 1
    torn: int = 0
    unended: bool = False
    begun: bool = False
    unproven: bool = False


class AuditFile:
    """Append records to the file of a log. Not thread-safe; other processes may append to the same file.

    Args:
        path: the file. A pipe or a device has no end to read, no rotation and no checkpoint.
        max_bytes: rename the file to an archive before it grows larger.
        keep_files: number of archives to keep; older ones are deleted.
        fsync: when to sync lines to disk.
        signer: signs every line.
        checkpoint: path of the checkpoint.
        every: maximum number of records between checkpoints.
        on_head: called with each head that is written.
        on_prune: called with the number of the last record of archives that are deleted next.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int | None,
        keep_files: int | None,
        fsync: Fsync,
        signer: Signer | None,
        checkpoint: Path,
        every: int,
        on_head: Callable[[AuditHead], object],
        on_prune: Callable[[int], object],
    ) -> None:
        self.path, self.checkpoint, self.max_bytes, self.fsync = path, checkpoint, max_bytes, fsync
        self._keep_files = keep_files
        archives = f"{glob.escape(path.stem)}-[0-9]*{glob.escape(path.suffix)}"
        register_own_file(self, OwnFile(str(path), "Hookline's audit log", beside=True, others=archives))
        register_own_file(self, OwnFile(str(checkpoint), "Hookline's audit log", beside=True))
        self._signer, self._every = signer, every
        self._on_head, self._on_prune = on_head, on_prune
        self._handle: _Handle | None = None
        self._last_written: Position = (0, START)
        self._fresh = True  # no record written yet
        self._checkpoint_seq, self._checkpoint_at = 0, 0.0
        self._rotating = max_bytes is not None

    def append(self, records: Sequence[bytes], lost: LostRecord | None = None) -> None:
        """Write records, preceded by the record ``lost``.

        Raises:
            AuditWriteError: not all records could be written.
        """
        written, lost_reported = 0, False
        try:
            while written < len(records):
                with self._locked() as file:
                    count = self._append_some(file, records[written:], None if lost_reported else lost)
                    written, lost_reported = written + count, lost_reported or count > 0
        except AuditWriteError as error:
            self.close()
            raise AuditWriteError(written + error.written, error.why, lost_reported or error.lost_reported) from None
        except Exception as error:
            self.close()
            raise AuditWriteError(written, reason(error), lost_reported) from error

    def write_checkpoint(self) -> None:
        """Update the checkpoint.

        Raises:
            OSError: the file cannot be read.
        """
        if self._last_written[0] not in (0, self._checkpoint_seq) and self.path.is_file():
            with self._locked() as file:
                self._write_checkpoint(file)

    def close(self) -> None:
        """Close the file. The next record opens it again."""
        file, self._handle = self._handle, None
        if file is not None:
            with suppress(OSError):
                os.close(file.fd)

    # Opening the file and finding its end.

    @contextmanager
    def _locked(self) -> Iterator[_Handle]:
        """Lock the file and find its end."""
        for _ in range(100):
            file = self._handle = self._handle or self._open()
            if not file.regular:
                yield file
                return
            with locked(file.fd, LOCK_SECONDS):
                if self._is_current(file):
                    size = os.fstat(file.fd).st_size
                    if size != file.size:
                        self._read_end(file, size)
                    yield file
                    return
            self.close()
        raise OSError("another process keeps replacing the file")

    def _open(self) -> _Handle:
        path = self.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        special = path.exists() and not path.is_file()
        how = os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) if special else os.O_RDWR | os.O_APPEND | os.O_CREAT
        fd = os.open(path, how | _FLAGS, 0o600)
        about = os.fstat(fd)
        file = _Handle(fd, stat.S_ISREG(about.st_mode), (about.st_dev, about.st_ino))
        if not file.regular:
            file.seq, file.hash = self._last_written
            file.begun = not self._fresh
        return file

    def _is_current(self, file: _Handle) -> bool:
        """Whether the open file is still the one at the path."""
        try:
            about = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (about.st_dev, about.st_ino) == file.id

    def _read_end(self, file: _Handle, size: int) -> None:
        """Find the last record of the file, after opening it and after another process has written to it.

        The chain always continues after the last record that this process or the checkpoint has stored. So if records
        were cut off, the gap in the numbers stays visible.
        """
        if size:
            end = find_end(file.fd, size)
            file.number = max(1, parse_open(read_first_line(file.fd)).file)
            file.torn, file.unended = end.torn, end.unended
        else:
            end, file.torn, file.unended = FileEnd(), 0, False
            if older := archive_paths(self.path):
                file.number, end = older[-1][0] + 1, _end_of_archive(older[-1][1])
        file.size, file.begun = size, size > 0 and not self._fresh
        checkpoint = self._read_checkpoint()
        file.unproven = self._fresh and end.seq > 0 and checkpoint[0] == 0
        known = (self._last_written, checkpoint, (end.seq, end.hash))
        file.seq, file.hash = max(known, key=lambda position: position[0])

    def _read_checkpoint(self) -> Position:
        if not self._fresh:
            return 0, START
        try:
            head = parse_head(self.checkpoint.read_bytes())
        except OSError:
            head = None
        return (0, START) if head is None else (head.seq, head.hash)

    # Writing lines.

    def _append_some(self, file: _Handle, records: Sequence[bytes], lost: LostRecord | None) -> int:
        """Write as many records as fit into the file; return their number."""
        first: list[bytes] = []
        old: list[Path] = []
        end = FileEnd()
        if not file.begun or file.torn:
            first.append(self._open_record(file))
            old = self._surplus_archives() if file.regular else []
            if old:  # recorded first: the chain must explain every file that is missing
                end = _end_of_archive(old[-1])
                first.append(_encode(PruneRecord(len(old), end.seq, end.hash)))
        if lost is not None:
            first.append(_encode(lost))
        lines = self._chain(file, [*first, *(records[:1] if self.fsync == "always" else records)])
        if self._rotating and file.regular:
            fit = self._count_fitting(file, lines, len(first))
            if fit <= len(first):
                self._rotate(file)
                return 0
            lines = lines[:fit]
        try:
            self._write_lines(file, lines)
        except AuditWriteError as error:
            lost_reported = lost is not None and error.written >= len(first)
            raise AuditWriteError(max(0, error.written - len(first)), error.why, lost_reported) from None
        self._fresh, file.begun, file.torn, file.unproven = False, True, 0, False
        if old:
            self._on_prune(end.seq)
        for path in old:
            with suppress(OSError):
                path.unlink()
        age = time.monotonic() - self._checkpoint_at
        if file.regular and (file.seq - self._checkpoint_seq >= self._every or age >= CHECKPOINT_SECONDS):
            self._write_checkpoint(file)
        return len(lines) - len(first)

    def _open_record(self, file: _Handle) -> bytes:
        key = self._signer.key if self._signer else ""
        return _encode(OpenRecord(os.getpid(), __version__, file.number, key, file.torn, file.unproven))

    def _surplus_archives(self) -> list[Path]:
        if self._keep_files is None:
            return []
        return [path for _, path in archive_paths(self.path)[: -self._keep_files]]

    def _count_fitting(self, file: _Handle, lines: list[tuple[bytes, str]], own: int) -> int:
        """Return number of lines that fit into the file; a new file takes at least one record of any size."""
        assert self.max_bytes is not None
        fit, total = 0, file.size + file.unended
        for line, _ in lines:
            total += len(line) + 1
            if total > self.max_bytes - _ROOM and (file.begun or fit > own):
                break
            fit += 1
        return fit

    def _chain(self, file: _Handle, records: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """Turn records into numbered, linked and signed lines; return each line with its hash."""
        seq, prev = file.seq, file.hash
        signer, lines = self._signer, []
        for record in records:
            seq += 1
            line = b'{"v":%d,"seq":%d,%b,"prev":"%b"' % (VERSION, seq, record, prev.encode())
            line = line + b"}" if signer is None else append_signature(line, signer.sign(line))
            prev = sha256(line).hexdigest()
            lines.append((line, prev))
        return lines

    def _write_lines(self, file: _Handle, lines: list[tuple[bytes, str]]) -> None:
        """Write lines with a single system call if possible, and sync them to disk."""
        lead = b"\n" if file.unended else b""
        data = memoryview(lead + b"".join([line + b"\n" for line, _ in lines]))
        done, failure = _write_all(file.fd, data)
        if failure is None and self.fsync != "never" and file.regular:
            try:
                _sync(file.fd)
            except OSError as error:
                failure = error
        complete, at = 0, len(lead)
        for line, _ in lines:
            at += len(line) + 1
            complete += at - 1 <= done  # a line that lacks only its line end is complete
        if complete:
            file.seq, file.hash = self._last_written = file.seq + complete, lines[complete - 1][1]
        if failure is not None:
            raise AuditWriteError(complete, reason(failure))
        file.size, file.unended = file.size + len(data), False

    def _rotate(self, file: _Handle) -> None:
        """Write the last record of a full file and rename the file. The chain continues in the next file."""
        number = file.number
        while (target := archive_path(self.path, number)).exists():
            number += 1
        last = [self._open_record(file)] if file.torn else []
        last.append(_encode(RotateRecord(target.name, archive_path(self.path, number + 1).name)))
        try:
            self._write_lines(file, self._chain(file, last))
        except AuditWriteError as error:
            raise AuditWriteError(0, error.why) from None
        try:
            os.rename(self.path, target)
        except OSError as error:
            self._rotating = False
            log.warning("the audit log %s cannot be renamed (%s): it grows beyond max_bytes", self.path, reason(error))

    def _write_checkpoint(self, file: _Handle) -> None:
        """Write the checkpoint. The file is locked, so that an older checkpoint never replaces a newer one."""
        if file.seq == self._checkpoint_seq:
            return
        self._checkpoint_at = time.monotonic()
        head = AuditHead(file.seq, file.hash, timestamp(time.time()).decode(), self._signer.key if self._signer else "")
        if self._signer is not None:
            head = msgspec.structs.replace(head, sig=b64encode(self._signer.sign(head.signed)).decode())
        try:
            self.checkpoint.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.checkpoint, msgspec.json.encode(head) + b"\n", 0o600, sync=self.fsync != "never")
        except OSError as error:
            if self._checkpoint_seq >= 0:
                log.warning("cannot write the checkpoint %s: %s", self.checkpoint, reason(error))
            self._checkpoint_seq = -1
        else:
            self._checkpoint_seq = file.seq
        self._on_head(head)


def _encode(record: AuditRecord) -> bytes:
    return encode_record(time.time(), encode_type(record.type), record)


def _write_all(fd: int, data: memoryview) -> tuple[int, OSError | None]:
    """Write all data; return the number of bytes written, and the error if there was one."""
    done, end = 0, time.monotonic() + STALL_SECONDS
    while done < len(data):
        try:
            done += os.write(fd, data[done:])
        except BlockingIOError as error:  # the pipe is full
            if not select.select([], [fd], [], max(0.0, end - time.monotonic()))[1]:
                return done, error
        except OSError as error:
            return done, error
    return done, None


def _end_of_archive(path: Path) -> FileEnd:
    fd = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        return find_end(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def reason(error: BaseException) -> str:
    """Describe an error without paths."""
    return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
