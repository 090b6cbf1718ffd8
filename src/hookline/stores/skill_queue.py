"""Runs that wait to be looked at for skills, as small files, so that a program may end before their turn comes."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING

import msgspec

from .._base.files import locked, name_in_file, replace_file
from .._base.frozen import Frozen
from .errors import StoreError
from .paths import checked_path, folder_advice

if TYPE_CHECKING:
    from pathlib import Path

MAX_TRIES = 3
"""How often a run is looked at if that fails."""
KEPT = 500
"""How many outcomes are remembered."""

_MAX_ID = 150
_MAX_BYTES = 1_000_000


class QueuedRun(Frozen, frozen=True):
    """What is known of a run that waits: its beginning and end in words, never the whole of it."""

    run_id: str
    task: str
    text: str
    tools: tuple[str, ...] = ()
    origin: str = ""
    allowed_plugins: tuple[str, ...] | None = None
    tries: int = 0


class Outcome(Frozen, frozen=True):
    """What came of a run: ``proposed``, ``nothing``, ``unusable`` or ``failed``, and why."""

    kind: str
    note: str = ""
    run_id: str = ""
    origin: str = ""
    at: float = 0.0


class SkillQueue:
    """The runs that wait, oldest first, in ``.queue/`` of a folder of skills. Programs may share it.

    Args:
        folder: the folder of skills.
        limit: how many may wait.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = 20) -> None:
        from pathlib import Path

        self.folder = Path(checked_path(folder, "SkillQueue takes a folder")).expanduser().absolute() / ".queue"
        self.limit = limit

    def add(self, run: QueuedRun) -> tuple[str, Sequence[str]]:
        """Have a run wait; what it waits under, and the ids of those that had to go for it.

        Raises:
            StoreError: it cannot be written.
        """
        try:
            name = name_in_file(run.run_id.encode(errors="replace").decode())[:_MAX_ID]
            ident = f"{time.time_ns():020d}-{name}"
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file(ident), msgspec.json.encode(run), 0o600)
            waiting = self.ids()
            gone = [old for old in waiting[: max(0, len(waiting) - self.limit)] if old != ident]
            for old in gone:
                self._drop(old)
        except OSError as error:
            advice = folder_advice(self.folder, error)
            raise StoreError(f"a run cannot be queued in {self.folder}: {error}{advice}") from error
        return ident, gone

    def ids(self) -> Sequence[str]:
        """What the runs wait under, oldest first.

        Raises:
            StoreError: the folder cannot be read.
        """
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"the runs that wait in {self.folder} cannot be listed: {error}") from error
        return sorted(name.removesuffix(".json") for name in names if name[:20].isdigit() and name.endswith(".json"))

    def get(self, ident: str) -> QueuedRun | None:
        """A run that waits; ``None`` if it does not any more, or if its file is damaged."""
        try:
            path = self._file(ident)
            if path.is_symlink() or path.stat().st_size > _MAX_BYTES:
                return None
            return msgspec.json.decode(path.read_bytes(), type=QueuedRun)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def holds(self, origin: str) -> bool:
        """Whether a run with the same task and tools waits, or has been looked at."""
        waiting = (self.get(ident) for ident in self.ids())
        return any(run.origin == origin for run in waiting if run is not None) or any(
            outcome.origin == origin for outcome in self.outcomes() if outcome.kind != "failed"
        )

    @contextmanager
    def claimed(self, ident: str) -> Iterator[QueuedRun | None]:
        """A run, for one program at a time: ``None`` if another has it, or had it."""
        with ExitStack() as stack:
            run, lock = None, self._file(ident, "lock")
            with suppress(OSError, TimeoutError):
                file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
                stack.callback(os.close, file)
                stack.enter_context(locked(file, 0))
                run = self.get(ident)
                if run is None and self._file(ident).exists():
                    os.replace(self._file(ident), self._file(ident, "damaged"))
            yield run
            if not self._file(ident).exists():
                with suppress(OSError):
                    lock.unlink()

    def settle(self, ident: str, run: QueuedRun, outcome: Outcome) -> None:
        """What came of a run that is claimed; one that failed waits for another try, up to ``MAX_TRIES``.

        Raises:
            StoreError: it cannot be written.
        """
        try:
            self._note(outcome.replace(run_id=run.run_id, origin=run.origin, at=outcome.at or time.time()))
            if outcome.kind == "failed" and run.tries + 1 < MAX_TRIES and self._file(ident).exists():
                replace_file(self._file(ident), msgspec.json.encode(run.replace(tries=run.tries + 1)), 0o600)
            else:
                self._drop(ident)
        except OSError as error:
            raise StoreError(f"what came of a run cannot be written in {self.folder}: {error}") from error

    def outcomes(self) -> Sequence[Outcome]:
        """What came of the last runs, oldest first; lines that cannot be read are left out."""
        try:
            lines = self._file("outcomes", "jsonl").read_bytes().splitlines()
        except OSError:
            return []
        found = []
        for line in lines[-KEPT:]:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                found.append(msgspec.json.decode(line, type=Outcome))
        return found

    def _note(self, outcome: Outcome) -> None:
        """Remember an outcome. Of two at the same moment one may be forgotten: a run is then looked at again."""
        lines = [msgspec.json.encode(one) for one in (*self.outcomes()[1 - KEPT :], outcome)]
        replace_file(self._file("outcomes", "jsonl"), b"\n".join(lines) + b"\n", 0o600, sync=False)

    def _drop(self, ident: str) -> None:
        self._file(ident).unlink(missing_ok=True)

    def _file(self, ident: str, ending: str = "json") -> Path:
        return self.folder / f"{ident}.{ending}"
