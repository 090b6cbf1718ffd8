"""The audit log: a file of records, each with the hash of the one before, that programs may share."""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import select
import stat
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from hashlib import sha256
from math import floor
from pathlib import Path
from typing import Any, Literal

import msgspec

from .. import __version__
from ..base.background import Background
from ..base.files import locked, replace_file
from ..base.frozen import scrub
from ..base.workers import in_forked_child
from ..kernel.values import Ids
from .audit_keys import Signer, load_signer
from .audit_lines import (
    MAX_LINE,
    START,
    VERSION,
    Head,
    archive,
    archives,
    end_of,
    first_line,
    head_of,
    head_path,
    opening_of,
    with_signature,
)
from .audit_records import OWN, Checkpoint, Fields, Lost, Open, Rotate
from .errors import StoreError
from .paths import checked_path

log = logging.getLogger("hookline")

Fsync = Literal["never", "batch", "always"]

WAITING = 32 << 20
"""Bytes that may wait to be written."""
LOCK_SECONDS = 5.0
"""How long to wait for another program that writes."""
STALL_SECONDS = 5.0
"""How long to wait for a pipe that nobody reads."""
EVERY_SECONDS = 1.0
"""How old a checkpoint may be while records are written."""
AT_EXIT = 2.0
LEAST_BYTES = 4096

NAME = 256
"""Characters of a name or an id that are written."""
MOST = 1000
"""Items of a list that are written."""

_SHORT = 1024
_ROOM = 512  # for the record that ends a file
_LONGEST = MAX_LINE // 2
_FLAGS = getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_sync: Callable[[int], None] = getattr(os, "fdatasync", os.fsync)
_TAKEN = frozenset(("v", "seq", "time", "type", "prev", "sig"))
_OWN_TYPES = frozenset(kind.type for kind in OWN)
_BREAKS = {"\x85": b"\\u0085", "\u2028": b"\\u2028", "\u2029": b"\\u2029"}  # lines end here too, say some readers

_encoder = msgspec.json.Encoder()
_logs: weakref.WeakSet[AuditLog] = weakref.WeakSet()
_second: tuple[int, bytes] = (0, b"1970-01-01T00:00:00")


class AuditError(StoreError):
    """Records of an audit log that could not be written."""


def stamp(at: float) -> bytes:
    """A Unix time as the log has it; one that no calendar knows becomes the nearest that one does."""
    global _second
    try:
        second = floor(at)
        known, text = _second
        if second != known:
            text = datetime.fromtimestamp(second, UTC).isoformat(timespec="seconds")[:19].encode()
            _second = second, text
        return b"%b.%03dZ" % (text, (at - second) * 1000)
    except (ValueError, OverflowError, OSError, TypeError):
        return b"9999-12-31T23:59:59.999Z" if at > 0 else b"0001-01-01T00:00:00.000Z"


def json_fields(value: Any) -> bytes:
    """A JSON object as it stands inside another: without braces, on one line whoever reads it."""
    try:
        data = _encoder.encode(value)
    except UnicodeEncodeError:
        data = _encoder.encode(scrub(msgspec.to_builtins(value)))
    if not data.isascii():
        for mark, escape in _BREAKS.items():
            data = data.replace(mark.encode(), escape)
    return data[1:-1]


def kind_of(type: str, ids: Ids | None = None) -> bytes:
    """The part of a record that all of that type have in a run: its type, and the ids."""
    given = {"type": type}
    for name in Ids.__struct_fields__ if ids is not None else ():
        given[name] = cut(getattr(ids, name))
    return json_fields(given)


def record_of(at: float, kind: bytes, fields: Fields | dict[str, Any]) -> bytes:
    """A record without its number and link; ``kind`` is made by :func:`kind_of`."""
    body = json_fields(fields)
    if len(body) > _SHORT:
        body = json_fields(_capped(fields))
        if len(body) > _LONGEST:
            body = b'"too_long":%d' % len(body)
    return b'"time":"%b",%b,%b' % (stamp(at), kind, body) if body else b'"time":"%b",%b' % (stamp(at), kind)


def cut(text: str, size: int = NAME) -> str:
    """A text of at most so many characters, and how many there were more."""
    return text if len(text) <= size else f"{text[:size]}…(+{len(text) - size})"


def _capped(fields: Fields | dict[str, Any]) -> dict[str, Any]:
    """Fields whose names and ids are not too long: a model may call a tool by a name of megabytes."""
    texts = fields.texts if isinstance(fields, Fields) else ()
    given = fields if isinstance(fields, dict) else msgspec.structs.asdict(fields)
    return {
        name: value if name in texts else _cap(value) for name, value in given.items() if value is not msgspec.UNSET
    }


def _cap(value: Any) -> Any:
    if isinstance(value, str):
        return cut(value)
    return [_cap(item) for item in value[:MOST]] if isinstance(value, list) else value


class _File(msgspec.Struct):
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


class AuditLog:
    """A file of records, one JSON object per line, each holding the hash of the line before.

    Whoever puts a record in does not wait: a thread writes. Threads and programs may share the file; records are
    numbered without gaps through all of them, through restarts, and from one file to the next. What cannot be written
    is counted, told in the log of the program, and written down as a ``lost`` record as soon as that is possible.

    Args:
        path: the file; made, with its folder, for its owner only. A pipe will do, without checkpoints and rotation.
            ``None``: no file.
        logger: the name of a logger that gets each record too, at INFO: JSON as its message, and as ``record.audit``.
        max_bytes: a file that would grow longer is renamed to ``NAME-000001``, and the chain goes on in a new one.
        fsync: when records are forced to the disk: ``"batch"``, some milliseconds of them together; ``"always"``, each
            by itself; ``"never"``: they outlive this program at once, but not a power cut.
        sign: the path of an Ed25519 private key (``hookline audit keygen``) that signs every line.
        checkpoint: where the head is written, so that a cut tail shows; beside the log, if left out. Another disk is
            better.
        checkpoint_every: after how many records at the latest; also after a second, and when the log is closed.
        on_checkpoint: gets each head (``seq``, ``hash``, ``time``, ``key``, ``sig``), in the writing thread.

    Raises:
        StoreError: a path that is a folder, no path and no logger, or a key that cannot be used.
        TypeError: no path.
        NotInstalled: ``sign`` needs the package ``cryptography``.
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        logger: str | None = None,
        max_bytes: int | None = None,
        fsync: Fsync = "batch",
        sign: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1000,
        on_checkpoint: Callable[[Head], object] | None = None,
    ) -> None:
        if path is None and not logger:
            raise StoreError("an audit log needs a path, or the name of a logger, such as 'hookline.audit'")
        if fsync not in ("never", "batch", "always"):
            raise StoreError(f"fsync is never, batch or always, not {fsync!r:.80}")
        if max_bytes is not None and max_bytes < LEAST_BYTES:
            raise StoreError(f"max_bytes is {LEAST_BYTES} or more, not {max_bytes!r:.80}")
        self.path = None if path is None else _absolute(path)
        self.checkpoint = None if self.path is None else head_path(self.path)
        if checkpoint is not None:
            self.checkpoint = _absolute(checkpoint)
        self.max_bytes, self.fsync = max_bytes, fsync
        self._every, self._on_checkpoint = checkpoint_every, on_checkpoint
        self._signer: Signer | None = None if sign is None else load_signer(sign)
        self._logger = None if logger is None else logging.getLogger(logger)
        self._background: Background[Any] = Background(self._write, self._broke, limit=WAITING, idle=self._rest)
        self._forget()
        self._counting = threading.Lock()
        self._all_lost = self._untold = 0
        self._why = ""
        self.working: bool | None = None
        """Whether the last records could be written; ``None`` before the first."""
        _logs.add(self)

    def _forget(self) -> None:
        """Start anew, also in a forked process: what is known of the file is its parent's."""
        self._writing = threading.Lock()
        self._file: _File | None = None
        self._known = 0, START
        self._fresh = True
        self._head, self._headed = 0, 0.0
        self._rotating = True

    def record(self, type: str, **fields: Any) -> None:
        """Put in a record of your own; what it says must be JSON. The ids of a run may be among the fields.

        Raises:
            StoreError: a type or field that the log itself uses, or what is no JSON.
        """
        taken = sorted(_TAKEN & fields.keys())
        if type in _OWN_TYPES or taken:
            raise StoreError(f"{taken[0] if taken else type!r} is the log's own: choose another name")
        if not type.isidentifier():
            raise StoreError(f"the type of a record is a name such as 'auth', not {type!r:.80}")
        ids = {name: fields.pop(name) for name in Ids.__struct_fields__ if name in fields}
        try:
            self.put(record_of(time.time(), kind_of(type), ids | fields))
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"the record {type!r} is no JSON ({error})") from None

    def put(self, record: bytes) -> None:
        """Put in a record made by :func:`record_of`, without waiting."""
        if not self._background.put(record, len(record)):
            self._lose(1, "too many records were waiting to be written")

    @property
    def lost(self) -> int:
        """How many records could not be written so far."""
        return self._all_lost

    @property
    def problem(self) -> str:
        """Why records were last lost."""
        return self._why

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until what was put in is written or lost; false if time ran out."""
        return self._background.flush(timeout)

    async def settled(self, timeout: float) -> bool:
        """The same for those who must not block."""
        aio = asyncio.get_running_loop()
        done = aio.create_future()

        def settle() -> None:
            if not done.done():
                done.set_result(None)

        def tell() -> None:
            with suppress(RuntimeError):  # that loop is closed: nobody waits any more
                aio.call_soon_threadsafe(settle)

        if not self._background.put(tell, 0):
            return False
        self._background.hurry()
        try:
            async with asyncio.timeout(timeout):
                await done
        except TimeoutError:
            return False
        return True

    def close(self, timeout: float | None = None) -> None:
        """Write what waits, and the checkpoint. A record that is put in later opens the file again."""
        if self.flush(timeout):
            self._rest()
            with self._writing:
                self._drop()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._drop()

    # The writing thread.

    def _write(self, items: list[Any]) -> None:
        records = [item for item in items if type(item) is bytes]
        if records:
            if self._logger is not None and self._logger.isEnabledFor(logging.INFO):
                for record in records:
                    self._tell(record)
            if self.path is None:
                self._works()
            else:
                with self._writing:
                    self._append(records)
        for item in items:
            if type(item) is not bytes:
                item()

    def _broke(self, error: Exception, items: list[Any]) -> None:
        """What is not foreseen, such as a logging handler that raises."""
        self._lose(sum(type(item) is bytes for item in items), f"{type(error).__name__}: {error}")
        for item in items:
            if type(item) is not bytes:
                item()

    def _tell(self, record: bytes) -> None:
        line = b'{"v":%d,%b}' % (VERSION, record)
        assert self._logger is not None
        self._logger.info("%s", line.decode(), extra={"audit": msgspec.json.decode(line)})

    def _append(self, records: list[bytes]) -> None:
        written = 0
        try:
            while written < len(records):
                with self._held() as file:
                    written += self._some(file, records[written:])
        except _Broken as broken:
            written += broken.written
            self._drop()
            self._lose(len(records) - written, broken.why)
        except Exception as error:  # noqa: BLE001 - whatever it is, the runs go on
            self._drop()
            self._lose(len(records) - written, _reason(error))
        else:
            self._works()

    @contextmanager
    def _held(self) -> Iterator[_File]:
        """The file, locked, and known to its end."""
        for _ in range(100):
            file = self._file = self._file or self._open()
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
            self._drop()
        raise OSError("the file is replaced again and again")

    def _open(self) -> _File:
        path = self.path
        assert path is not None
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        special = path.exists() and not path.is_file()
        how = os.O_WRONLY | getattr(os, "O_NONBLOCK", 0) if special else os.O_RDWR | os.O_APPEND | os.O_CREAT
        fd = os.open(path, how | _FLAGS, 0o600)
        about = os.fstat(fd)
        file = _File(fd, stat.S_ISREG(about.st_mode), (about.st_dev, about.st_ino))
        if not file.regular:
            file.seq, file.hash = self._known
            file.begun = not self._fresh
        return file

    def _is_ours(self, file: _File) -> bool:
        """Whether the open file is still the one at the path."""
        try:
            about = os.stat(self.path or "")
        except FileNotFoundError:
            return False
        return (about.st_dev, about.st_ino) == file.id

    def _look(self, file: _File, size: int) -> None:
        """Read where the file ends: somebody else wrote, or we begin.

        The chain never goes back behind what this program or the checkpoint knows: where records were cut off, the
        gap stays to be seen.
        """
        assert self.path is not None
        end = end_of(file.fd, size)
        file.begun = size > 0 and not self._fresh
        if size:
            file.number = max(1, opening_of(first_line(file.fd)).file)
        elif older := archives(self.path):
            file.number = older[-1][0] + 1
            end = _end_at(older[-1][1])
        file.size, file.torn, file.unended = size, end.torn if size else 0, end.unended if size else False
        file.seq, file.hash = max(self._known, self._checkpointed(), (end.seq, end.hash), key=lambda at: at[0])

    def _checkpointed(self) -> tuple[int, str]:
        if not self._fresh or self.checkpoint is None:
            return 0, START
        try:
            head = head_of(self.checkpoint.read_bytes())
        except OSError:
            head = None
        return (0, START) if head is None else (head.seq, head.hash)

    def _some(self, file: _File, records: Sequence[bytes]) -> int:
        """Write as many of these as the file takes; how many."""
        first: list[bytes] = []
        if not file.begun or file.torn:
            key = self._signer.key if self._signer else ""
            first.append(self._own(Open(os.getpid(), __version__, file.number, key, file.torn)))
        untold = self._untold
        if untold:
            first.append(self._own(Lost(untold, self._why)))
        most = 1 if self.fsync == "always" else len(records)
        lines = self._chained(file, [*first, *records[:most]])
        size = max(0, file.size) + file.unended
        room = None if self.max_bytes is None or not self._rotating or not file.regular else self.max_bytes - _ROOM
        if room is not None:
            fit, total = 0, size
            for line, _ in lines:
                total += len(line) + 1
                if total > room and (file.begun or fit > len(first)):
                    break
                fit += 1
            if fit <= len(first):
                self._rotate(file)
                return 0
            lines = lines[:fit]
        try:
            self._put_down(file, lines)
        except _Broken as broken:
            if untold and broken.written >= len(first):
                self._count(-untold)
            broken.written = max(0, broken.written - len(first))
            raise
        self._fresh, file.begun, file.torn = False, True, 0
        if untold:
            self._count(-untold)
        if file.regular and (file.seq - self._head >= self._every or time.monotonic() - self._headed >= EVERY_SECONDS):
            self._checkpoint(file)
        return len(lines) - len(first)

    def _own(self, fields: Fields) -> bytes:
        return record_of(time.time(), kind_of(fields.type), fields)

    def _chained(self, file: _File, records: list[bytes]) -> list[tuple[bytes, str]]:
        """Records as lines with their numbers and links, each with its hash."""
        seq, prev, signer, lines = file.seq, file.hash, self._signer, []
        for record in records:
            seq += 1
            line = b'{"v":%d,"seq":%d,%b,"prev":"%b"' % (VERSION, seq, record, prev.encode())
            line = line + b"}" if signer is None else with_signature(line, signer.sign(line))
            prev = sha256(line).hexdigest()
            lines.append((line, prev))
        return lines

    def _put_down(self, file: _File, lines: list[tuple[bytes, str]]) -> None:
        """Write whole lines, in one go where the system lets us, and force them to the disk."""
        lead = b"\n" if file.unended else b""
        data = memoryview(lead + b"".join([line + b"\n" for line, _ in lines]))
        done, failure = 0, None
        try:
            done = _write_all(file.fd, data)
            if self.fsync != "never" and file.regular and done == len(data):
                _sync(file.fd)
        except OSError as error:
            failure = error
        if failure is None and done < len(data):
            failure = OSError("only a part could be written")
        if isinstance(failure, _Partly):
            done = failure.done
        whole, at = 0, len(lead)
        for line, _ in lines:
            at += len(line) + 1
            whole += at <= done
        if whole:
            file.seq, file.hash = file.seq + whole, lines[whole - 1][1]
            self._known = file.seq, file.hash
        if failure is not None:
            raise _Broken(whole, _reason(failure))
        file.size, file.unended = max(0, file.size) + len(data), False

    def _rotate(self, file: _File) -> None:
        """End this file and give it its number: the next one to be opened goes on."""
        assert self.path is not None
        number = file.number
        while (target := archive(self.path, number)).exists():
            number += 1
        names = Rotate(target.name, archive(self.path, number + 1).name)
        try:
            self._put_down(file, self._chained(file, [self._own(names)]))
        except _Broken as broken:
            raise _Broken(0, broken.why) from None
        try:
            os.rename(self.path, target)
        except OSError as error:
            self._rotating = False
            log.warning("the audit log %s cannot be renamed (%s): it grows on", self.path, _reason(error))

    def _checkpoint(self, file: _File) -> None:
        """Write the head beside the log. Called while the file is locked, so heads only go forward."""
        if file.seq == self._head or self.checkpoint is None:
            return
        self._headed = time.monotonic()
        key = self._signer.key if self._signer else ""
        head = Head(file.seq, file.hash, stamp(time.time()).decode(), key)
        if self._signer is not None:
            from base64 import b64encode

            head = msgspec.structs.replace(head, sig=b64encode(self._signer.sign(head.signed)).decode())
        try:
            self.checkpoint.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self.checkpoint, _encoder.encode(head) + b"\n", 0o600, sync=self.fsync != "never")
        except OSError as error:
            if self._head >= 0:
                log.warning("the checkpoint %s cannot be written: %s", self.checkpoint, _reason(error))
            self._head = -1
        else:
            self._head = file.seq
        if self._logger is not None:
            self._tell(self._own(Checkpoint(head.seq, head.hash)))
        if self._on_checkpoint is not None:
            try:
                self._on_checkpoint(head)
            except Exception:
                log.exception("on_checkpoint of the audit log %s failed", self.path)

    def _rest(self) -> None:
        """Nothing to write: the checkpoint is brought up to date, the file let go."""
        if self.path is None or self._known[0] in (0, self._head) or not self.path.is_file():
            return
        with self._writing:
            try:
                with self._held() as file:
                    if file.regular:
                        self._checkpoint(file)
            except Exception as error:  # noqa: BLE001 - the next record will tell
                log.warning("the checkpoint of the audit log %s was not written: %s", self.path, _reason(error))

    def _drop(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file.fd)

    # What cannot be written.

    def _lose(self, count: int, why: str) -> None:
        with self._counting:
            self._all_lost += count
            self._untold += count
            self._why = why
            before, self.working = self.working, False
        if before is not False:
            log.warning("records of the audit log %s are being lost: %s", self.path or "", why)

    def _count(self, change: int) -> None:
        with self._counting:
            self._untold += change

    def _works(self) -> None:
        before, self.working = self.working, True
        if before is False:
            log.warning("the audit log %s can be written again; %d records were lost", self.path, self._all_lost)


class _Broken(Exception):
    """Writing failed after so many whole lines."""

    def __init__(self, written: int, why: str) -> None:
        self.written, self.why = written, why


class _Partly(OSError):
    """A write that failed after so many bytes."""

    def __init__(self, done: int, error: OSError) -> None:
        super().__init__(error.errno, error.strerror)
        self.done = done


def _write_all(fd: int, data: memoryview) -> int:
    done, end = 0, time.monotonic() + STALL_SECONDS
    while done < len(data):
        try:
            done += os.write(fd, data[done:])
        except BlockingIOError as error:  # a pipe that is full
            if not select.select([], [fd], [], max(0.0, end - time.monotonic()))[1]:
                raise _Partly(done, error) from None
        except OSError as error:
            raise _Partly(done, error) from None
    return done


def _reason(error: BaseException) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or f"{type(error).__name__}: {error}"


def _absolute(path: str | os.PathLike[str]) -> Path:
    given = Path(checked_path(path, "an audit log takes the path of a file")).expanduser().absolute()
    if given.is_dir():
        raise StoreError(f"{str(given)!r} is a folder: name a file in it")
    return given


def _end_at(path: Path) -> Any:
    fd = os.open(path, os.O_RDONLY | _FLAGS)
    try:
        return end_of(fd, os.fstat(fd).st_size)
    finally:
        os.close(fd)


@atexit.register
def _finish() -> None:
    for each in list(_logs):
        each.close(AT_EXIT)


def _after_fork() -> None:
    for each in list(_logs):
        each._drop()
        each._forget()


in_forked_child(_after_fork)
