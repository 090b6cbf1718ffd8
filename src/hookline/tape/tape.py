"""Read a tape from its file."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from .._base.attachment import Content
from .._base.attachment_files import ATTACHMENTS_SUFFIX, folder_contents
from .._kernel import events as kernel_events
from .._kernel.events import Event, PointFired
from .._kernel.payloads import ModelRequest
from .._kernel.points import BEFORE_LLM
from .._kernel.results import HookAction
from .._kernel.state import AgentResult
from .._kernel.values import Ids
from .._run import events
from .._sensitive.encryption import DataKeyError, open_lines
from ..hooks.shadow_mode import ShadowDecided
from ..records.format import TAPE_SUFFIX, MomentLine, Place, RecordedVerdict, RunInfo, RunLine
from ..records.reading import apply_changes, decode_line, decode_tape_head, restore
from . import format as fmt
from .format import TapeError

TEXT_EVENTS = (events.TextDelta, events.Discarded)
"""The events about streamed text. Those of a run are recorded only if someone else wants them too."""


class Tape:
    """The recording of a run, as :class:`TapeHook` wrote it.

    Args:
        entries: the lines of the tape.
        path: the file that it was read from.
        truncated: whether the last line is incomplete because the program was killed while it wrote.

    Example::

        tape = Tape.load("tapes/run-1.tape")
        print(tape.result, len(tape.requests))
    """

    def __init__(self, entries: Sequence[fmt.TapeEntry], path: Path | None = None, truncated: bool = False) -> None:
        self.entries, self.path, self.truncated = tuple(entries), path, truncated
        self._contents: list[Content] = []
        """The contents of attachments, so that moments that are decoded later find them."""
        runs = [entry for entry in self.entries if isinstance(entry, fmt.RunEntry)]
        if not self.entries or not isinstance(self.entries[0], fmt.HeaderEntry) or not runs:
            raise TapeError(f"{path or 'the tape'} is not a tape, or ends before its run starts")
        self.header: fmt.HeaderEntry = self.entries[0]
        self.run: fmt.RunEntry = runs[0]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tape:
        """Read a tape. An incomplete last line is ignored.

        Raises:
            TapeError: the file cannot be read, is not a tape, or has another version of the format.
        """
        file = Path(path)
        try:
            with open_lines(file) as stream:
                lines = stream.read().split(b"\n")
        except DataKeyError as error:
            raise TapeError(str(error)) from error
        except OSError as error:
            raise TapeError(f"the tape {file} cannot be read: {error.strerror or error}") from error
        truncated = bool(lines.pop())
        contents = folder_contents(f"{file}{ATTACHMENTS_SUFFIX}")  # attachments in the entries find them
        found: list[fmt.TapeEntry] = []
        runs: dict[int, str] = {}
        for number, line in enumerate(lines, 1):
            try:
                if number == 1:
                    _check_first(line, file)
                entry = _moment(line, runs) if line.startswith(b"[") else _typed(fmt.decoder.decode(line))
                if entry is not None:
                    found.append(entry)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                where = "is not a tape" if number == 1 else f"is damaged in line {number}"
                raise TapeError(f"{file} {where}: {error}") from error
        tape = cls(found, file, truncated)
        tape._contents = contents
        return tape

    @cached_property
    def result(self) -> AgentResult[Any] | None:
        """The result of the run; ``None`` if the tape ends before the run does."""
        for entry in reversed(self.entries):
            event = entry.event if type(entry) is fmt.EventEntry else None
            if isinstance(event, events.RunFinished) and self._is_own(event):
                return event.result
        return None

    @property
    def name(self) -> str:
        """The name of the tape's file, or the id of its run."""
        return self.path.name if self.path is not None else self.run.ids.run_id

    def events(self) -> Iterator[Event]:
        """Yield the events of the runs in order. Events of nested runs are wrapped in :class:`SubagentEvent`.

        Fires of points are moments, not events: read them with :func:`hookline.records.read_runs`.
        """
        for entry in self.entries:
            event = entry.event if type(entry) is fmt.EventEntry else None
            if not isinstance(event, Event):
                continue
            if self._is_own(event):
                yield event
            elif event.run_id in self._ids:
                yield events.SubagentEvent(event.seq, event.at, self.run.ids.run_id, event, self._ids[event.run_id])

    @cached_property
    def text_runs(self) -> frozenset[str]:
        """The ids of the runs whose events about streamed text were recorded."""
        found = (entry.event for entry in self.entries if type(entry) is fmt.EventEntry)
        return frozenset(event.run_id for event in found if isinstance(event, TEXT_EVENTS))

    @cached_property
    def _ids(self) -> Mapping[str, Ids]:
        return {entry.ids.run_id: entry.ids for entry in self.entries if isinstance(entry, fmt.RunEntry)}

    def _is_own(self, event: Event) -> bool:
        return event.run_id == self.run.ids.run_id

    @cached_property
    def requests(self) -> tuple[ModelRequest, ...]:
        """All requests to models, with all their messages."""
        return tuple(self._requests())

    @property
    def first_request(self) -> ModelRequest | None:
        """The first request of a step."""
        return next((request for request in self._requests() if request.purpose == "step"), None)

    def _requests(self) -> Iterator[ModelRequest]:
        last = {run: ModelRequest(ids=ids) for run, ids in self._ids.items()}
        """The last request of each run, as it arrived at ``before_llm``."""
        for entry in self.entries:
            if isinstance(entry, fmt.MomentEntry) and entry.event.point == BEFORE_LLM:
                run = entry.event.run_id
                last[run] = restore(entry.moment, RunInfo(last[run].ids), last[run])
            elif isinstance(entry, fmt.ModelRequestEntry):
                yield apply_changes(last.get(entry.run, ModelRequest()), entry.changed)


def tape_files(paths: Iterable[str | os.PathLike[str]], *, since: float | None = None) -> list[Path]:
    """Return tapes: the given files, and the tapes in the given folders at any depth, oldest first.

    Args:
        paths: files and folders.
        since: leave out runs that started before this Unix time. Tapes that cannot be read are not left out.
    """
    found: dict[Path, None] = {}
    for path in map(Path, paths):
        inside = sorted(path.rglob(f"*{TAPE_SUFFIX}"), key=_written) if path.is_dir() else [path]
        found.update(dict.fromkeys(file for file in inside if since is None or _is_recent(file, since)))
    return list(found)


def _written(file: Path) -> tuple[float, str]:
    try:
        return file.stat().st_mtime, file.name
    except OSError:  # a broken link; reading it reports that
        return 0.0, file.name


def _is_recent(file: Path, since: float) -> bool:
    """Return whether a run started after a time, by the first line: the time of the file may be that of a copy."""
    try:
        with open_lines(file) as stream:
            return decode_tape_head(stream.readline(_MAX_HEADER)).time >= since
    except (OSError, DataKeyError, msgspec.DecodeError):
        return True


_MAX_HEADER = 10_000
"""Maximum length of the first line of a tape."""


def _check_first(line: bytes, file: Path) -> None:
    """Check that a first line is the header of a tape that this version of Hookline reads."""
    if line.startswith(b'["hookline",'):
        raise TapeError(f"{file} is a record, not a tape, and cannot be replayed: use hookline backtest")
    head = decode_tape_head(line)
    if head.problem:
        raise TapeError(f"{file} has {head.problem}")
    if head.entry != "tape":
        raise TapeError(f"{file} is not a tape: its first line is not the header of a tape")


def _moment(line: bytes, runs: dict[int, str]) -> fmt.MomentEntry | None:
    """Return the entry of a moment; ``None`` for the other lines of a record. ``runs`` collects the ids of the runs."""
    decoded = decode_line(line)
    if isinstance(decoded, RunLine):
        runs[decoded.run] = decoded.info.ids.run_id
    if not isinstance(decoded, MomentLine):
        return None
    place = decoded.place or _NO_PLACE
    how = decoded.verdict or _PASSED
    run_id = runs.get(decoded.run, "")
    event = PointFired(run_id=run_id, point=decoded.point, verb=how.verb, hook=how.hook, reason=how.reason)
    return fmt.MomentEntry(0.0, place.inside, place.lane, place.readings, event, decoded)


_NO_PLACE = Place()
_PASSED = RecordedVerdict(str(HookAction.CONT))


def _kinds() -> dict[str, type[Event]]:
    found = [value for module in (events, kernel_events) for value in vars(module).values()]
    kinds = [kind for kind in (*found, ShadowDecided) if isinstance(kind, type) and issubclass(kind, Event)]
    return {str(kind.__struct_config__.tag): kind for kind in kinds}


_KINDS = _kinds()


def _typed(entry: fmt.TapeEntry) -> fmt.TapeEntry:
    """Return an entry; an event of one of Hookline's types as an object of that type."""
    if type(entry) is not fmt.EventEntry:
        return entry
    kind = _KINDS.get(entry.event.get("type", ""))
    event = entry.event if kind is None else msgspec.convert(entry.event, kind)
    return fmt.EventEntry(entry.at, entry.inside, entry.lane, entry.readings, event)
