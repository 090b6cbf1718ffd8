"""The audit log: what is put in is written by a thread, into a file of chained records and to a logger."""

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
from typing import Any

import msgspec

from ..._base.background_writer import BackgroundWriter
from ..._base.workers import after_fork_in_child
from ..._kernel.values import Ids
from ..errors import StoreError
from ..paths import checked_path
from .file import AuditFile, Fsync, Unwritten, reason
from .format import VERSION, AuditHead, head_path, kind_of, record_of
from .keys import load_signer
from .records import OWN, Checkpoint, Fields, Lost

log = logging.getLogger("hookline")

WAITING = 32 << 20
"""Bytes that may wait to be written."""
AT_EXIT = 2.0
"""Seconds that the end of the program waits for the last records and the checkpoint."""
LEAST_BYTES = 4096
"""How short a file may be at most before it is put aside."""

_SHORT = 512  # bytes that a record without texts is taken for
_TAKEN = frozenset(("v", "seq", "time", "type", "prev", "sig"))
_OWN_TYPES = frozenset(kind.type for kind in OWN)
_logs: weakref.WeakSet[AuditLog] = weakref.WeakSet()


class AuditError(StoreError):
    """Records of an audit log that could not be written."""


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
        NotInstalledError: ``sign`` needs the package ``cryptography``.
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
        on_checkpoint: Callable[[AuditHead], object] | None = None,
    ) -> None:
        if path is None and not logger:
            raise StoreError("an audit log needs a path, or the name of a logger, such as 'hookline.audit'")
        if fsync not in ("never", "batch", "always"):
            raise StoreError(f"fsync is never, batch or always, not {fsync!r:.80}")
        if max_bytes is not None and max_bytes < LEAST_BYTES:
            raise StoreError(f"max_bytes is {LEAST_BYTES} or more, not {max_bytes!r:.80}")
        self.path = None if path is None else _absolute(path)
        self._settings: dict[str, Any] = {
            "max_bytes": max_bytes,
            "fsync": fsync,
            "signer": None if sign is None else load_signer(sign),
            "checkpoint": head_path(self.path or Path("none")) if checkpoint is None else _absolute(checkpoint),
            "every": checkpoint_every,
            "on_head": self._headed,
        }
        self._on_checkpoint = on_checkpoint
        self._logger = None if logger is None else logging.getLogger(logger)
        self._background: BackgroundWriter[Any] = BackgroundWriter(
            self._write, self._broke, limit=WAITING, idle=self._rest
        )
        self._all_lost = self._failures = 0
        self._why = ""
        self.working: bool | None = None
        """Whether the last records could be written; ``None`` before the first."""
        self._forget()
        _logs.add(self)

    def _forget(self) -> None:
        """Start anew, also in a forked process: what is known of the file, and to be told in it, is its parent's."""
        self._writing, self._counting = threading.Lock(), threading.Lock()
        self._untold = 0
        self._file = None if self.path is None else AuditFile(self.path, **self._settings)

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
        """Put in a record as the log writes it, without waiting."""
        self._wait_for_it(record, len(record))

    def put_short(self, at: float, kind: bytes, fields: Fields) -> None:
        """Put in a record without texts, which the writing thread makes: many at once cost less."""
        self._wait_for_it((at, kind, fields), _SHORT)

    def _wait_for_it(self, item: Any, size: int) -> None:
        if not self._background.put(item, size):
            self.lose(1, "too many records were waiting to be written")

    @property
    def own_files(self) -> tuple[str, ...]:
        """Its files: the paths of itself and of its checkpoint, and a glob of the names of those that are full."""
        if self.path is None:
            return ()
        stem, suffix = glob.escape(self.path.stem), glob.escape(self.path.suffix)
        return str(self.path), str(self._settings["checkpoint"]), f"{stem}-[0-9]*{suffix}"

    @property
    def lost(self) -> int:
        """How many records could not be written so far."""
        return self._all_lost

    @property
    def failures(self) -> int:
        """How often records were lost, or could not be forced to the disk."""
        return self._failures

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
        self._background.write_now()
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
                if self._file is not None:
                    self._file.close()

    def __del__(self) -> None:
        if getattr(self, "_file", None) is not None:
            self._file.close()  # type: ignore[union-attr]

    # The writing thread.

    def _write(self, items: list[Any]) -> None:
        records = self._made(items)
        if records:
            heard = self._logger is not None and self._logger.isEnabledFor(logging.INFO) and self._logger.hasHandlers()
            for record in records if heard else ():
                self._tell(record)
            if self._file is None and not heard:
                self.lose(len(records), "the logger takes no INFO: give it that level and a handler")
            else:
                with self._writing:
                    self._append(records)
        for item in items:
            if callable(item):
                item()

    def _made(self, items: list[Any]) -> list[bytes]:
        """The records among what was put in."""
        records = []
        for item in items:
            if type(item) is bytes:
                records.append(item)
            elif type(item) is tuple:
                try:
                    records.append(record_of(*item))
                except Exception as error:  # noqa: BLE001 - the others can be written all the same
                    self.lose(1, reason(error))
        return records

    def _broke(self, error: Exception, items: list[Any]) -> None:
        """What is not foreseen, such as a logging handler that raises."""
        self.lose(sum(not callable(item) for item in items), reason(error))
        for item in items:
            if callable(item):
                item()

    def _append(self, records: list[bytes]) -> None:
        untold = self._untold
        try:
            if self._file is not None:
                self._file.append(records, Lost(untold, self._why) if untold else None)
        except Unwritten as broken:
            self._tell_of(untold if broken.told else 0)
            self.lose(len(records) - broken.written, broken.why)
        else:
            self._tell_of(untold)
            before, self.working = self.working, True
            if before is False:
                log.warning("the audit log %s can be written again; %d records were lost", self.path, self._all_lost)

    def _tell(self, record: bytes) -> None:
        line = b'{"v":%d,%b}' % (VERSION, record)
        assert self._logger is not None
        self._logger.info("%s", line.decode(), extra={"audit": msgspec.json.decode(line)})

    def _headed(self, head: AuditHead) -> None:
        if self._logger is not None:
            self._tell(record_of(time.time(), kind_of(Checkpoint.type), Checkpoint(head.seq, head.hash)))
        if self._on_checkpoint is not None:
            try:
                self._on_checkpoint(head)
            except Exception:
                log.exception("on_checkpoint of the audit log %s failed", self.path)

    def _rest(self) -> None:
        """Nothing to write: the checkpoint is brought up to date."""
        with self._writing:
            try:
                if self._file is not None:
                    self._file.write_head()
            except Exception as error:  # noqa: BLE001 - the next record will tell
                log.warning("the checkpoint of the audit log %s was not written: %s", self.path, reason(error))

    # What cannot be written.

    def lose(self, count: int, why: str) -> None:
        """Count records that are not written, or not forced to the disk (0)."""
        with self._counting:
            self._all_lost += count
            self._untold += count
            self._failures += 1
            self._why = why
            before, self.working = self.working, False
        if before is not False:
            log.warning("records of the audit log %s are being lost: %s", self.path or "", why)

    def _tell_of(self, count: int) -> None:
        if count:
            with self._counting:
                self._untold -= count


def _absolute(path: str | os.PathLike[str]) -> Path:
    given = Path(checked_path(path, "an audit log takes the path of a file")).expanduser().absolute()
    if given.is_dir():
        raise StoreError(f"{str(given)!r} is a folder: name a file in it")
    return given


@atexit.register
def _finish() -> None:
    for each in list(_logs):
        each.close(AT_EXIT)


def _after_fork() -> None:
    for each in list(_logs):
        if each._file is not None:
            each._file.close()
        each._forget()


after_fork_in_child(_after_fork)
