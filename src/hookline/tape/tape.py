"""Read a tape from its file."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from .._kernel import events as kernel_events
from .._kernel.events import Event
from .._kernel.payloads import ModelRequest
from .._kernel.state import AgentResult
from .._kernel.values import Message
from .._run import events
from ..hooks.shadow_mode import ShadowDecided
from . import format as fmt
from .format import TapeError


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

    def __init__(self, entries: Sequence[fmt.Entry], path: Path | None = None, truncated: bool = False) -> None:
        self.entries, self.path, self.truncated = tuple(entries), path, truncated
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
            lines = file.read_bytes().split(b"\n")
        except OSError as error:
            raise TapeError(f"the tape {file} cannot be read: {error.strerror or error}") from error
        truncated = bool(lines.pop())
        found: list[fmt.Entry] = []
        for number, line in enumerate(lines, 1):
            try:
                if number == 1:
                    _check_version(line, file)
                found.append(fmt.decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                where = "is not a tape" if number == 1 else f"is damaged in line {number}"
                raise TapeError(f"{file} {where}: {error}") from error
        return cls(found, file, truncated)

    @property
    def result(self) -> AgentResult[Any] | None:
        """The result of the run; ``None`` if the tape ends before the run does."""
        last = next((e for e in self.events() if isinstance(e, events.RunFinished) and self._is_own(e)), None)
        return None if last is None else last.result

    @property
    def name(self) -> str:
        """The name of the tape's file, or the id of its run."""
        return self.path.name if self.path is not None else self.run.ids.run_id

    def events(self) -> Iterator[Event]:
        """Yield the events of the runs in order. Events of nested runs are wrapped in :class:`SubagentEvent`."""
        runs = {entry.ids.run_id: entry.ids for entry in self.entries if isinstance(entry, fmt.RunEntry)}
        for entry in self.entries:
            if isinstance(entry, fmt.EventEntry) and (event := as_event(entry.event)) is not None:
                if self._is_own(event):
                    yield event
                elif event.run_id in runs:
                    yield events.SubagentEvent(event.seq, event.at, self.run.ids.run_id, event, runs[event.run_id])

    def _is_own(self, event: Event) -> bool:
        return event.run_id == self.run.ids.run_id

    @cached_property
    def requests(self) -> tuple[ModelRequest, ...]:
        """All requests to models, with all their messages."""
        found, before = list[ModelRequest](), dict[str, Sequence[Message]]()
        for entry in self.entries:
            if isinstance(entry, fmt.ModelRequestEntry):
                messages = (*before.get(entry.run, ())[: entry.kept], *entry.request.messages)
                before[entry.run] = messages
                found.append(entry.request.replace(messages=messages))
        return tuple(found)


class _Head(msgspec.Struct):
    entry: str
    version: int


def _check_version(line: bytes, file: Path) -> None:
    head = msgspec.json.decode(line, type=_Head)
    if head.entry != "tape_began":
        raise TapeError(f"{file} is not a tape: its first line is not the header of a tape")
    if head.version != fmt.VERSION:
        raise TapeError(
            f"{file} has version {head.version} of the tape format, and this version of Hookline reads only "
            f"{fmt.VERSION}: use the version of Hookline that wrote it"
        )


def _kinds() -> dict[str, type[Event]]:
    found = [value for module in (events, kernel_events) for value in vars(module).values()]
    kinds = [kind for kind in (*found, ShadowDecided) if isinstance(kind, type) and issubclass(kind, Event)]
    return {str(kind.__struct_config__.tag): kind for kind in kinds}


_KINDS = _kinds()


def as_event(data: Any) -> Event | None:
    """Convert JSON to an event; ``None`` if the type is not one of Hookline's."""
    kind = _KINDS.get(data.get("type", ""))
    return None if kind is None else msgspec.convert(data, kind)
