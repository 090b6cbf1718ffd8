"""The file of an audit log: chained lines that several programs append to, rotated, with a checkpoint beside it."""

from __future__ import annotations

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
from ..._base.package import __version__
from .format import (
    START,
    VERSION,
    AuditHead,
    End,
    archive,
    archives,
    end_of,
    first_line,
    head_of,
    kind_of,
    opening_of,
    record_of,
    stamp,
    with_signature,
)
from .keys import Signer
from .records import Fields, Lost, Open, Rotate

log = logging.getLogger("hookline")

Fsync = Literal["never", "batch", "always"]
At = tuple[int, str]
"""The number and the hash of a record."""

LOCK_SECONDS = 5.0
"""How long to wait for another program that writes."""
STALL_SECONDS = 5.0
"""How long to wait for a pipe that nobody reads."""
EVERY_SECONDS = 1.0
"""How old a checkpoint may be while records are written."""

_ROOM = 512  # for the record that ends a file
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)


class Unwritten(Exception):
    """Writing failed after so many records; ``told`` says whether that of earlier losses was among them."""

    def __init__(self, written: int, why: str, told: bool = False) -> None:
        super().__init__(why)
        self.written, self.why, self.told = written, why, told


class _Handle(msgspec.Struct):
    """The open file, and where we know it to end."""

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


class AuditFile:
    """Appends records to the file of a log. One thread at a time may use it; other programs have their own.

    Args:
        path: the file; if it is a pipe or a device, there is no tail to read, no rotation and no checkpoint.
        max_bytes: beyond this, the file is put aside under a number.
        fsync: when lines are forced to the disk.
        signer: signs every line.
        checkpoint: where the head is written.
        every: after how many records at the latest.
        on_head: gets each head.
    """

    def __init__(
        self,
        path: Path,
        *,
        max_bytes: int | None,
        fsync: Fsync,
        signer: Signer | None,
        checkpoint: Path,
        every: int,
        on_head: Callable[[AuditHead], object],
    ) -> None:
        self.path, self.checkpoint, self.max_bytes, self.fsync = path, checkpoint, max_bytes, fsync
        self._signer, self._every, self._on_head = signer, every, on_head
        self._handle: _Handle | None = None
        self._known: At = (0, START)
        self._fresh = True
        self._head, self._headed = 0, 0.0
        self._rotating = max_bytes is not None

    def append(self, records: Sequence[bytes], lost: Lost | None = None) -> None:
        """Write records, and before them what was ``lost``.

        Raises:
            Unwritten: not all could be written; it says how many were.
        """
        written, told = 0, False
        try:
            while written < len(records):
                with self._held() as file:
                    some = self._some(file, records[written:], None if told else lost)
                    written, told = written + some, told or some > 0
        except Unwritten as broken:
            self.close()
            raise Unwritten(written + broken.written, broken.why, told or broken.told) from None
        except Exception as error:
            self.close()
            raise Unwritten(written, reason(error), told) from error

    def write_head(self) -> None:
        """Bring the checkpoint up to date.

        Raises:
            OSError: the file cannot be read.
        """
        if self._known[0] not in (0, self._head) and self.path.is_file():
            with self._held() as file:
                self._write_head(file)

    def close(self) -> None:
        """Let go of the file; the next record opens it again."""
        file, self._handle = self._handle, None
        if file is not None:
            with suppress(OSError):
                os.close(file.fd)

    # The file, and where it ends.

    @contextmanager
    def _held(self) -> Iterator[_Handle]:
        """The file, locked, and known to its end."""
        for _ in range(100):
            file = self._handle = self._handle or self._open()
            if not file.regular:
                yield file
                return
            with locked(file.fd, LOCK_SECONDS):
                if self._is_ours(file):
                    size = os.fstat(file.fd).st_size
                    if size != file.size:
                        self._look(file, size)
                    yield file
                    return
            self.close()
        raise OSError("the file is replaced again and again")

    def _open(self) -> _Handle:
        path = self.path
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        special = path.exists() and not path.is_file()
        how = os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) if special else os.O_RDWR | os.O_APPEND | os.O_CREAT
        fd = os.open(path, how | _FLAGS, 0o600)
        about = os.fstat(fd)
        file = _Handle(fd, stat.S_ISREG(about.st_mode), (about.st_dev, about.st_ino))
        if not file.regular:
            file.seq, file.hash = self._known
            file.begun = not self._fresh
        return file

    def _is_ours(self, file: _Handle) -> bool:
        """Whether the open file is still the one at the path."""
        try:
            about = os.stat(self.path)
        except FileNotFoundError:
            return False
        return (about.st_dev, about.st_ino) == file.id

    def _look(self, file: _Handle, size: int) -> None:
        """Read where the file ends: somebody else wrote, or we begin.

        The chain never goes back behind what this program or the checkpoint knows: where records were cut off, the
        gap stays to be seen.
        """
        if size:
            end = end_of(file.fd, size)
            file.number = max(1, opening_of(first_line(file.fd)).file)
            file.torn, file.unended = end.torn, end.unended
        else:
            end, file.torn, file.unended = End(), 0, False
            if older := archives(self.path):
                file.number, end = older[-1][0] + 1, _end_at(older[-1][1])
        file.size, file.begun = size, size > 0 and not self._fresh
        file.seq, file.hash = max(self._known, self._checkpointed(), (end.seq, end.hash), key=lambda at: at[0])

    def _checkpointed(self) -> At:
        if not self._fresh:
            return 0, START
        try:
            head = head_of(self.checkpoint.read_bytes())
        except OSError:
            head = None
        return (0, START) if head is None else (head.seq, head.hash)

    # Lines.

    def _some(self, file: _Handle, records: Sequence[bytes], lost: Lost | None) -> int:
        """Write as many of these as the file takes; how many."""
        first: list[bytes] = []
        if not file.begun or file.torn:
            first.append(self._opening(file))
        if lost is not None:
            first.append(_own(lost))
        lines = self._chained(file, [*first, *(records[:1] if self.fsync == "always" else records)])
        if self._rotating and file.regular:
            fit = self._fitting(file, lines, len(first))
            if fit <= len(first):
                self._rotate(file)
                return 0
            lines = lines[:fit]
        try:
            self._put_down(file, lines)
        except Unwritten as broken:
            told = lost is not None and broken.written >= len(first)
            raise Unwritten(max(0, broken.written - len(first)), broken.why, told) from None
        self._fresh, file.begun, file.torn = False, True, 0
        if file.regular and (file.seq - self._head >= self._every or time.monotonic() - self._headed >= EVERY_SECONDS):
            self._write_head(file)
        return len(lines) - len(first)

    def _opening(self, file: _Handle) -> bytes:
        key = self._signer.key if self._signer else ""
        return _own(Open(os.getpid(), __version__, file.number, key, file.torn))

    def _fitting(self, file: _Handle, lines: list[tuple[bytes, str]], own: int) -> int:
        """How many lines fit; into a new file, at least one record does."""
        assert self.max_bytes is not None
        fit, total = 0, file.size + file.unended
        for line, _ in lines:
            total += len(line) + 1
            if total > self.max_bytes - _ROOM and (file.begun or fit > own):
                break
            fit += 1
        return fit

    def _chained(self, file: _Handle, records: Sequence[bytes]) -> list[tuple[bytes, str]]:
        """Records as lines with their numbers and links, each with its hash."""
        seq, prev, signer, lines = file.seq, file.hash, self._signer, []
        for record in records:
            seq += 1
            line = b'{"v":%d,"seq":%d,%b,"prev":"%b"' % (VERSION, seq, record, prev.encode())
            line = line + b"}" if signer is None else with_signature(line, signer.sign(line))
            prev = sha256(line).hexdigest()
            lines.append((line, prev))
        return lines

    def _put_down(self, file: _Handle, lines: list[tuple[bytes, str]]) -> None:
        """Write whole lines, in one go where the system lets us, and force them to the disk."""
        lead = b"\n" if file.unended else b""
        data = memoryview(lead + b"".join([line + b"\n" for line, _ in lines]))
        done, failure = _write_all(file.fd, data)
        if failure is None and self.fsync != "never" and file.regular:
            try:
                _sync(file.fd)
            except OSError as error:
                failure = error
        whole, at = 0, len(lead)
        for line, _ in lines:
            at += len(line) + 1
            whole += at - 1 <= done  # one that lacks only its end is whole
        if whole:
            file.seq, file.hash = self._known = file.seq + whole, lines[whole - 1][1]
        if failure is not None:
            raise Unwritten(whole, reason(failure))
        file.size, file.unended = file.size + len(data), False

    def _rotate(self, file: _Handle) -> None:
        """End this file and give it its number: the next one to be opened goes on."""
        number = file.number
        while (target := archive(self.path, number)).exists():
            number += 1
        last = [self._opening(file)] if file.torn else []
        last.append(_own(Rotate(target.name, archive(self.path, number + 1).name)))
        try:
            self._put_down(file, self._chained(file, last))
        except Unwritten as broken:
            raise Unwritten(0, broken.why) from None
        try:
            os.rename(self.path, target)
        except OSError as error:
            self._rotating = False
            log.warning("the audit log %s cannot be renamed (%s): it grows on", self.path, reason(error))

    def _write_head(self, file: _Handle) -> None:
        """Write the head. Called while the file is locked, so heads only go forward."""
        if file.seq == self._head:
            return
        self._headed = time.monotonic()
        head = AuditHead(file.seq, file.hash, stamp(time.time()).decode(), self._signer.key if self._signer else "")
        if self._signer is not None:
            head = msgspec.structs.replace(head, sig=b64encode(self._signer.sign(head.signed)).decode())
        try:
            self.checkpoint.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.checkpoint, msgspec.json.encode(head) + b"\n", 0o600, sync=self.fsync != "never")
        except OSError as error:
            if self._head >= 0:
                log.warning("the checkpoint %s cannot be written: %s", self.checkpoint, reason(error))
            self._head = -1
        else:
            self._head = file.seq
        self._on_head(head)


def _own(fields: Fields) -> bytes:
    return record_of(time.time(), kind_of(fields.type), fields)


def _write_all(fd: int, data: memoryview) -> tuple[int, OSError | None]:
    """Write all of it; how many bytes were, and what went wrong."""
    done, end = 0, time.monotonic() + STALL_SECONDS
    while done < len(data):
        try:
            done += os.write(fd, data[done:])
        except BlockingIOError as error:  # a pipe that is full
            if not select.select([], [fd], [], max(0.0, end - time.monotonic()))[1]:
                return done, error
        except OSError as error:
            return done, error
    return done, None


def _end_at(path: Path) -> End:
    fd = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        return end_of(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


def reason(error: BaseException) -> str:
    """Why something could not be written, without paths."""
    return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"
