"""The audit log: a background thread writes records to a file of chained lines and to a logger."""

from __future__ import annotations

import asyncio
import atexit
import glob
import logging
import os
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..._base.background_writer import BackgroundWriter
from ..._base.workers import after_fork_in_child
from ..._kernel.values import Ids
from ..errors import StoreError
from ..paths import checked_path
from .file import AuditFile, AuditWriteError, Fsync, reason
from .format import VERSION, AuditHead, checkpoint_path, encode_record, encode_type
from .keys import load_signer
from .records import LOG_RECORDS, AuditRecord, CheckpointRecord, LostRecord

if TYPE_CHECKING:
    from .index import AuditIndex, LogIndexer

log = logging.getLogger("hookline")

MAX_QUEUED_BYTES = 32 << 20
"""Maximum size of the records that wait to be written."""
EXIT_SECONDS = 2.0
"""Seconds that the process waits at exit for the last records and the checkpoint."""
INDEX_SECONDS = 0.2
"""Seconds for which records are collected before they are added to the index."""
INDEX_CLOSE_SECONDS = 10.0
"""Maximum number of seconds that closing a log waits for its index."""
MIN_FILE_BYTES = 4096
"""Smallest value of ``max_bytes``."""

_SHORT = 512  # estimated size in bytes of a record without texts
_TOO_MANY = "too many records were waiting to be written"
_RESERVED = frozenset(("v", "seq", "time", "type", "prev", "sig"))
_LOG_TYPES = frozenset(kind.type for kind in LOG_RECORDS)
_logs: weakref.WeakSet[AuditLog] = weakref.WeakSet()


class AuditError(StoreError):
    """Records of an audit log could not be written."""


class AuditLog:
    """Write records to a file, one JSON object per line, each with the hash of the line before it.

    Adding a record does not block: a background thread writes it. Threads and processes may share the file. Records
    are numbered without gaps across processes, restarts and rotated files. Records that cannot be written are counted
    and reported to the logger ``hookline``; a ``lost`` record follows as soon as writing works again.

    Args:
        path: the file, created together with its folder, readable by its owner only. It may be a pipe, without
            checkpoints and rotation. ``None`` writes no file.
        logger: name of a logger that also gets each record at INFO: the JSON as message, the object as
            ``record.audit``.
        max_bytes: rename the file to ``NAME-000001`` before it grows larger, and continue the chain in a new file.
        keep_files: number of full files to keep. Older ones are deleted, and a ``prune`` record says which. By default
            all are kept.
        fsync: when to sync the file to disk: ``"batch"`` after every few milliseconds of records, ``"always"`` after
            each record, ``"never"`` leaves it to the system: records survive a crash of the process, but not a power
            failure.
        sign: path of an Ed25519 private key (``hookline audit keygen``) to sign every line with.
        checkpoint: file for the head of the log, which reveals that records were cut off; beside the log by default.
            Another disk is safer.
        checkpoint_every: maximum number of records between checkpoints. A checkpoint is also written after a second,
            and when the log is closed.
        on_checkpoint: called in the background thread with each head (``seq``, ``hash``, ``time``, ``key``, ``sig``).
        index: an :class:`AuditIndex`, or the file or the address of its database, which gets the names in each record,
            and reveals that the log was cut off or deleted. Another thread adds the records, from the file, so that
            a database that is away delays nothing and misses nothing. It needs a path of a regular file.

    Raises:
        StoreError: ``path`` is a folder, both ``path`` and ``logger`` are missing, or the key or the index cannot be
            used.
        TypeError: ``path`` is not a path.
        NotInstalledError: ``sign`` needs the package ``cryptography``.

    Example::

        log = AuditLog("audit.jsonl", max_bytes=100_000_000)
        log.record("deploy", version="1.2.3")
        log.close()
        assert verify_audit("audit.jsonl").ok
    """

    def __init__(
        self,
        path: str | os.PathLike[str] | None,
        *,
        logger: str | None = None,
        max_bytes: int | None = None,
        keep_files: int | None = None,
        fsync: Fsync = "batch",
        sign: str | os.PathLike[str] | None = None,
        checkpoint: str | os.PathLike[str] | None = None,
        checkpoint_every: int = 1000,
        on_checkpoint: Callable[[AuditHead], object] | None = None,
        index: AuditIndex | str | os.PathLike[str] | None = None,
    ) -> None:
        if path is None and not logger:
            raise StoreError("an audit log needs the path of a file, or the name of a logger such as 'hookline.audit'")
        if fsync not in ("never", "batch", "always"):
            raise StoreError(f"fsync must be never, batch or always, not {fsync!r:.80}")
        if max_bytes is not None and max_bytes < MIN_FILE_BYTES:
            raise StoreError(f"max_bytes must be at least {MIN_FILE_BYTES}, not {max_bytes!r:.80}")
        if keep_files is not None and keep_files < 1:
            raise StoreError(f"keep_files must be at least 1, not {keep_files!r:.80}")
        if path is None and index is not None:
            raise StoreError("an index of an audit log needs the path of a file")
        self.path = None if path is None else _absolute(path)
        self.index = _open_index(index) if isinstance(index, (str, os.PathLike)) else index
        self._settings: dict[str, Any] = {
            "max_bytes": max_bytes,
            "keep_files": keep_files,
            "fsync": fsync,
            "signer": None if sign is None else load_signer(sign),
            "checkpoint": checkpoint_path(self.path or Path("none")) if checkpoint is None else _absolute(checkpoint),
            "every": checkpoint_every,
            "on_head": self._on_head,
            "on_prune": self._on_prune,
        }
        self._on_checkpoint = on_checkpoint
        self._logger = None if logger is None else logging.getLogger(logger)
        self._background: BackgroundWriter[Any] = BackgroundWriter(
            self._write, self._on_error, limit=MAX_QUEUED_BYTES, idle=self._on_idle
        )
        self._indexing: BackgroundWriter[None] = BackgroundWriter(
            self._update_index,
            self._on_index_error,
            linger=INDEX_SECONDS,
            idle=self._on_index_idle,
            drop_at_exit=True,
        )
        self._total_lost = self._failures = 0
        self._why = ""
        self.is_working: bool | None = None
        """Whether the last records were written; ``None`` before the first."""
        self._reset()
        _logs.add(self)

    def _reset(self) -> None:
        """Initialize the state of this process. A forked child must not keep the state of its parent."""
        self._writing = threading.Lock()
        self._counting = threading.Lock()
        self._unreported = 0
        self._file = None if self.path is None else AuditFile(self.path, **self._settings)
        self._indexer: LogIndexer | None = None
        if self.index is not None and self.path is not None:
            self._indexer = self.index.indexer(self.path)
        self._index_problem = ""

    def record(self, type: str, **fields: Any) -> None:
        """Add a record of your own, with JSON values. The ids of a run may be among the fields.

        Raises:
            StoreError: the type or a field name is reserved, or a value is not JSON.
        """
        taken = sorted(_RESERVED & fields.keys())
        if type in _LOG_TYPES or taken:
            raise StoreError(f"{taken[0] if taken else type!r} is reserved for the audit log: choose another name")
        if not type.isidentifier():
            raise StoreError(f"the type of a record must be an identifier such as 'auth', not {type!r:.80}")
        ids = {name: fields.pop(name) for name in Ids.__struct_fields__ if name in fields}
        try:
            self.put(encode_record(time.time(), encode_type(type), ids | fields))
        except (TypeError, ValueError, RecursionError) as error:
            raise StoreError(f"the fields of the record {type!r} are not JSON: {error}") from None

    def copy_to(self, logger: str) -> None:
        """Send each further record to a logger too, at INFO: the JSON as message, the object as ``record.audit``."""
        self._logger = logging.getLogger(logger)

    def put(self, record: bytes) -> None:
        """Add an encoded record without blocking; see :func:`encode_record`."""
        if not self._background.put(record, len(record)):
            self.count_lost(1, _TOO_MANY)

    def put_short(self, at: float, kind: bytes, fields: AuditRecord) -> None:
        """Add a record without texts. The background thread encodes it, which is faster for many records."""
        if not self._background.put((at, kind, fields), _SHORT):
            self.count_lost(1, _TOO_MANY)

    @property
    def own_files(self) -> tuple[str, ...]:
        """Files of the log: the log, its checkpoint, a glob for the names of full files, and those of its index."""
        if self.path is None:
            return ()
        stem, suffix = glob.escape(self.path.stem), glob.escape(self.path.suffix)
        index = () if self.index is None else self.index.own_files
        return str(self.path), str(self._settings["checkpoint"]), f"{stem}-[0-9]*{suffix}", *index

    @property
    def lost(self) -> int:
        """Number of records that could not be written so far."""
        return self._total_lost

    @property
    def failures(self) -> int:
        """Number of times that records were lost or could not be synced to disk."""
        return self._failures

    @property
    def problem(self) -> str:
        """Reason for the last failure."""
        return self._why

    def flush(self, timeout: float | None = None) -> bool:
        """Wait until all added records are written or lost; return false on timeout."""
        return self._background.flush(timeout)

    async def flush_async(self, timeout: float) -> bool:
        """Wait like :meth:`flush`, without blocking the event loop."""
        loop = asyncio.get_running_loop()
        done = loop.create_future()

        def resolve() -> None:
            if not done.done():
                done.set_result(None)

        def on_written() -> None:
            with suppress(RuntimeError):  # the loop is closed, so nothing waits for the future
                loop.call_soon_threadsafe(resolve)

        if not self._background.put(on_written, 0):
            return False
        self._background.write_now()
        try:
            async with asyncio.timeout(timeout):
                await done
        except TimeoutError:
            return False
        return True

    def close(self, timeout: float | None = None) -> None:
        """Write all added records, the checkpoint and the index, and close the file. A later record opens it again.

        If the index cannot be written within some seconds, the next program that writes the log completes it.
        """
        if self.flush(timeout):
            self._on_idle()
            with self._writing:
                if self._file is not None:
                    self._file.close()
            if self._indexing.pending or self._index_problem:
                self._start_indexing()
                self._indexing.flush(INDEX_CLOSE_SECONDS if timeout is None else timeout)

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()  # type: ignore[union-attr]

    # The background thread.

    def _write(self, items: list[Any]) -> None:
        records = self._encoded(items)
        if records:
            logger = self._logger
            logged = logger is not None and logger.isEnabledFor(logging.INFO) and logger.hasHandlers()
            for record in records if logged else ():
                self._log(record)
            if self._file is None and not logged:
                self.count_lost(len(records), "the logger discards INFO: set its level to INFO and add a handler")
            else:
                with self._writing:
                    self._append(records)
        for item in items:
            if callable(item):
                item()

    def _encoded(self, items: list[Any]) -> list[bytes]:
        """Encode the records among the queued items."""
        records = []
        for item in items:
            if type(item) is bytes:
                records.append(item)
            elif type(item) is tuple:
                try:
                    records.append(encode_record(*item))
                except Exception as error:  # noqa: BLE001 - the other records can still be written
                    self.count_lost(1, reason(error))
        return records

    def _on_error(self, error: Exception, items: list[Any]) -> None:
        """Handle an unexpected error, such as a logging handler that raises."""
        self.count_lost(sum(not callable(item) for item in items), reason(error))
        for item in items:
            if callable(item):
                item()

    def _append(self, records: list[bytes]) -> None:
        unreported = self._unreported
        try:
            if self._file is not None:
                self._file.append(records, LostRecord(unreported, self._why) if unreported else None)
        except AuditWriteError as error:
            self._mark_reported(unreported if error.lost_reported else 0)
            self.count_lost(len(records) - error.written, error.why)
        else:
            self._mark_reported(unreported)
            before, self.is_working = self.is_working, True
            if before is False:
                log.warning("the audit log %s can be written again; %d records were lost", self.path, self._total_lost)
            self._start_indexing()

    def _log(self, record: bytes) -> None:
        line = b'{"v":%d,%b}' % (VERSION, record)
        assert self._logger is not None
        self._logger.info("%s", line.decode(), extra={"audit": msgspec.json.decode(line)})

    def _on_head(self, head: AuditHead) -> None:
        if self._logger is not None:
            record = CheckpointRecord(head.seq, head.hash)
            self._log(encode_record(time.time(), encode_type(record.type), record))
        if self._on_checkpoint is not None:
            try:
                self._on_checkpoint(head)
            except Exception:
                log.exception("on_checkpoint of the audit log %s failed", self.path)

    def _on_idle(self) -> None:
        """Update the checkpoint while there is nothing to write."""
        with self._writing:
            try:
                if self._file is not None:
                    self._file.write_checkpoint()
            except Exception as error:  # noqa: BLE001 - writing the next record reports the problem
                log.warning("cannot write the checkpoint of the audit log %s: %s", self.path, reason(error))

    # The index, in a thread of its own: a database that is away must not delay the file.

    def _start_indexing(self) -> None:
        if self._indexer is not None:
            with suppress(RuntimeError):  # no thread can be started now: the next record tries again
                self._indexing.put(None, 0)  # never refused: an update that runs may have read the file already

    def _update_index(self, _: list[None]) -> None:
        assert self._indexer is not None
        if not self._indexer.path.is_file():
            return  # a pipe
        self._indexer.update()
        if self._index_problem:
            self._index_problem = ""
            log.warning("the index of the audit log %s can be written again, and is complete", self.path)

    def _on_index_error(self, error: Exception, _: list[None]) -> None:
        before, self._index_problem = self._index_problem, reason(error)
        if not before:
            log.warning("the index of the audit log %s cannot be written: %s", self.path, self._index_problem)

    def _on_index_idle(self) -> None:
        """Try again what failed."""
        if self._index_problem:
            self._start_indexing()

    def _on_prune(self, last: int) -> None:
        if self._indexer is not None:
            self._indexer.pruned = last

    # Lost records.

    def count_lost(self, count: int, why: str) -> None:
        """Count records that were not written; a ``count`` of 0 means that they were not synced to disk."""
        with self._counting:
            self._total_lost += count
            self._unreported += count
            self._failures += 1
            self._why = why
            before, self.is_working = self.is_working, False
        if before is not False:
            log.warning("audit log %s: records are being lost: %s", self.path or "", why)

    def _mark_reported(self, count: int) -> None:
        if count:
            with self._counting:
                self._unreported -= count


def _open_index(path: str | os.PathLike[str]) -> AuditIndex:
    from .index import AuditIndex  # a database takes time to import, and most logs have no index

    return AuditIndex(path)


def _absolute(path: str | os.PathLike[str]) -> Path:
    given = Path(checked_path(path, "an audit log takes the path of a file")).expanduser().absolute()
    if given.is_dir():
        raise StoreError(f"{str(given)!r} is a folder: give the path of a file")
    return given


@atexit.register
def _at_exit() -> None:
    for each in list(_logs):
        each.close(EXIT_SECONDS)


def _after_fork() -> None:
    for each in list(_logs):
        if each._file is not None:
            each._file.close()
        each._reset()


after_fork_in_child(_after_fork)
