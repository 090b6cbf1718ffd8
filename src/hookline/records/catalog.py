"""Which runs are in the files of records, and where each begins.

A folder may have a gigabyte of records. Files only grow at their end, so after the first look only what is new is read.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

from .format import SUFFIX
from .reading import INVALID, decode_run

_TREE = b'["run",0,'


class Place(NamedTuple):
    """The file of a recorded run, and the position of the line in which it begins."""

    file: Path
    position: int


class _Known:
    """A file as far as it was read."""

    def __init__(self) -> None:
        self.end = 0
        self.runs: dict[str, int] = {}


class RunCatalog:
    """The outermost runs in folders of records. It may be used from several threads.

    Args:
        folders: the folders, which need not exist yet.

    Example::

        catalog = RunCatalog([Path("records")])
        place = catalog.find("run_50b4")
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = folders
        self._files: dict[tuple[int, int], tuple[Path, _Known]] = {}
        self._lock = threading.Lock()

    def runs(self) -> dict[str, Place]:
        """Return the runs that are recorded now, by their ids."""
        with self._lock:
            self._refresh()
            found = self._files.values()
            return {id: Place(path, at) for path, known in found for id, at in known.runs.items()}

    def find(self, id: str) -> Place | None:
        """Return where a run is recorded; ``None`` if it is not."""
        return self.runs().get(id)

    def _refresh(self) -> None:
        seen: dict[tuple[int, int], tuple[Path, _Known]] = {}
        folders = [folder for folder in self._folders if folder.is_dir()]
        for path in (path for folder in folders for path in sorted(folder.rglob(f"*{SUFFIX}"))):
            with suppress(OSError), open(path, "rb") as file:  # it may have been deleted meanwhile
                state = os.fstat(file.fileno())
                id = state.st_dev, state.st_ino
                known = self._files[id][1] if id in self._files else _Known()
                if state.st_size < known.end:
                    known = _Known()  # another file that got the number of a deleted one
                _read(file, known)
                seen[id] = path, known
        self._files = seen


def _read(file: BinaryIO, known: _Known) -> None:
    """Add the runs that begin in the part of a file that was not read yet."""
    file.seek(known.end)
    for line in file:
        if not line.endswith(b"\n"):
            return  # it is being written
        if line.startswith(_TREE):
            with suppress(*INVALID):
                if id := decode_run(line).info.ids.run_id:  # empty in a damaged line
                    known.runs[id] = known.end
        known.end += len(line)
