"""A tape, read from its file."""

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
from . import entries as on
from .errors import TapeError


class Tape:
    """The recording of a run, as :class:`TapeHook` wrote it.

    Args:
        entries: its lines.
        path: where it came from.
        torn: whether its last line is not whole: its program was killed while it wrote.
    """

    def __init__(self, entries: Sequence[on.Entry], path: Path | None = None, torn: bool = False) -> None:
        self.entries, self.path, self.torn = tuple(entries), path, torn
        runs = [entry for entry in self.entries if isinstance(entry, on.RunBegan)]
        if not self.entries or not isinstance(self.entries[0], on.TapeBegan) or not runs:
            raise TapeError(f"{path or 'the tape'} is no tape, or ends before its run begins")
        self.head: on.TapeBegan = self.entries[0]
        self.run: on.RunBegan = runs[0]

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tape:
        """Read a tape. One whose last line is torn is read up to there.

        Raises:
            TapeError: it cannot be read, is no tape, or one of another version.
        """
        place = Path(path)
        try:
            lines = place.read_bytes().split(b"\n")
        except OSError as error:
            raise TapeError(f"the tape {place} cannot be read: {error.strerror or error}") from error
        torn = bool(lines.pop())
        found: list[on.Entry] = []
        for number, line in enumerate(lines, 1):
            try:
                if number == 1:
                    _check_version(line, place)
                found.append(on.decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                where = "is no tape" if number == 1 else f"is damaged in line {number}"
                raise TapeError(f"{place} {where}: {error}") from error
        return cls(found, place, torn)

    @property
    def result(self) -> AgentResult[Any] | None:
        """How the run ended; ``None`` if the tape ends before."""
        last = next((e for e in self.events() if isinstance(e, events.RunFinished) and self._is_own(e)), None)
        return None if last is None else last.result

    @property
    def name(self) -> str:
        """The name of its file, or the id of its run."""
        return self.path.name if self.path is not None else self.run.ids.run_id

    def events(self) -> Iterator[Event]:
        """The events of its runs, in order. Those of runs inside are :class:`SubagentEvent`, as in a run's stream."""
        runs = {entry.ids.run_id: entry.ids for entry in self.entries if isinstance(entry, on.RunBegan)}
        for entry in self.entries:
            if isinstance(entry, on.Happened) and (event := as_event(entry.event)) is not None:
                if self._is_own(event):
                    yield event
                elif event.run_id in runs:
                    yield events.SubagentEvent(event.seq, event.at, self.run.ids.run_id, event, runs[event.run_id])

    def _is_own(self, event: Event) -> bool:
        return event.run_id == self.run.ids.run_id

    @cached_property
    def requests(self) -> tuple[ModelRequest, ...]:
        """Every request that went to a model, whole."""
        found, before = list[ModelRequest](), dict[str, Sequence[Message]]()
        for entry in self.entries:
            if isinstance(entry, on.ModelAsked):
                messages = (*before.get(entry.run, ())[: entry.kept], *entry.request.messages)
                before[entry.run] = messages
                found.append(entry.request.replace(messages=messages))
        return tuple(found)


class _Head(msgspec.Struct):
    entry: str
    version: int


def _check_version(line: bytes, place: Path) -> None:
    head = msgspec.json.decode(line, type=_Head)
    if head.entry != "tape_began":
        raise TapeError(f"{place} is no tape: it does not begin like one")
    if head.version != on.VERSION:
        raise TapeError(
            f"{place} has format {head.version} of tapes, and this version of Hookline reads {on.VERSION}: "
            "use the version that wrote it"
        )


def _kinds() -> dict[str, type[Event]]:
    found = [value for module in (events, kernel_events) for value in vars(module).values()]
    kinds = [kind for kind in (*found, ShadowDecided) if isinstance(kind, type) and issubclass(kind, Event)]
    return {str(kind.__struct_config__.tag): kind for kind in kinds}


_KINDS = _kinds()


def as_event(data: Any) -> Event | None:
    """An event from its JSON; ``None`` for one of a program's own."""
    kind = _KINDS.get(data.get("type", ""))
    return None if kind is None else msgspec.convert(data, kind)
