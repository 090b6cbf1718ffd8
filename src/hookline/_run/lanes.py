"""Lanes: the parts of a run whose entries in a tape or a journal have a fixed order (DESIGN 6.11).

A lane is named by the structure of the run, and not by ids or by a counter, so that a replay and a resumed run find it:

=================  =========================================================
the run            ``""`` on a tape; ``1``, ``2`` for the runs of a journal
a tool call        ``LANE/HOP.INDEX.ATTEMPT``
its approval       ``LANE/HOP.INDEX.ATTEMPT?``
its progress       ``LANE/HOP.INDEX.ATTEMPT!``
a nested run       ``LANE/run.N``, the N-th run that the lane has started
... of a tool      ``LANE/tool/run.N``, if the code of the tool has started it
a detached run     ``LANE&N``
an observer        ``LANE~``; ``LANE~N`` if what it reads is recorded
=================  =========================================================
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import nullcontext
from contextvars import ContextVar, Token
from itertools import count

import msgspec

LIVE, INSIDE, PAST = "", "inside", "past"
"""Replay modes of a lane in a journal: part of the run; inside a call or an observer, which recovery does not repeat;
or inside work that had already finished."""
WATCHING, WATCHING_PAST = "watching", "watching past"
"""Replay modes of an observer whose hook also decides. Its readings are recorded, because recovery calls it again."""
NEW = frozenset((INSIDE, WATCHING))
"""Replay modes in which events are new."""
UNJOURNALED = frozenset((INSIDE, PAST))
"""Replay modes in which calls are not answered from the journal."""


class Lane(msgspec.Struct, frozen=True, eq=False):
    """The lane of a task.

    Attributes:
        path: the name of the lane.
        mode: its replay mode in a journal.
        tools: the lanes of the tool calls that it is part of, the outermost first; without tools that only run agents,
            because a replay calls those.
        tree: counts the runs that each lane has started. All lanes of an outermost run have the same one.
        on_tape: the name of the lane on a tape. A replay calls all observers, in the lane of their run; recovery calls
            only some of them, so that these have their own lanes in a journal.
    """

    path: str = ""
    mode: str = LIVE
    tools: tuple[Lane, ...] = ()
    tree: dict[str, Iterator[int]] = msgspec.field(default_factory=dict)
    on_tape: str = ""

    def part(self, name: str) -> Lane:
        """Return the lane of a part, such as a tool call."""
        return Lane(self.path + name, self.mode, self.tools, self.tree, self.on_tape + name)

    def of_observer(self, number: int | str = "") -> Lane:
        """Return the lane of an observer in a journal."""
        return Lane(f"{self.path}~{number}", self.mode, self.tools, self.tree, self.on_tape)

    def in_mode(self, mode: str) -> Lane:
        """Return this lane in another replay mode."""
        return Lane(self.path, mode, self.tools, self.tree, self.on_tape)

    def of_tool(self) -> Lane:
        """Return the lane of the code of a tool, whose call has this lane."""
        return Lane(self.path, INSIDE, (*self.tools, self), self.tree, self.on_tape)

    def of_progress(self) -> Lane:
        """Return the lane of the progress reports of a tool, whose call has this lane."""
        return Lane(f"{self.path}!", INSIDE, self.tools, self.tree, f"{self.on_tape}!")

    def of_run(self, *, detached: bool) -> Lane:
        """Return the lane of a run that this lane starts now.

        A replay does not call the tools. So the runs that their code starts are not among those of the hooks that the
        call has.
        """
        mode = self.mode and (INSIDE if self.mode in NEW else PAST)
        kind = "&" if detached else "/run."
        is_of_tool = bool(self.tools) and self.tools[-1].path == self.path
        path, on_tape = (f"{each}/tool" if is_of_tool else each for each in (self.path, self.on_tape))
        number = next(self.tree.setdefault(path, count(1)))
        number_on_tape = next(self.tree.setdefault(f"{on_tape} on tape", count(1)))
        return Lane(f"{path}{kind}{number}", mode, self.tools, self.tree, f"{on_tape}{kind}{number_on_tape}")


LANE: ContextVar[Lane | None] = ContextVar("hookline_lane", default=None)
"""The lane of the current task; ``None`` outside runs that are recorded, replayed or durable."""


class in_lane:  # noqa: N801 - used like a function
    """Enter a lane inside the block. ``None`` leaves all lanes."""

    __slots__ = ("_lane", "_token")

    def __init__(self, lane: Lane | None) -> None:
        self._lane = lane
        self._token: Token[Lane | None] | None = None

    def __enter__(self) -> None:
        if self._lane is not LANE.get():
            self._token = LANE.set(self._lane)

    def __exit__(self, *_: object) -> None:
        if self._token is not None:
            try:
                LANE.reset(self._token)
            except ValueError:  # Python closes a coroutine in another context
                return


NO_LANE = nullcontext()
"""Enters nothing: a run that is not recorded, replayed or durable has no lanes."""


def lane_in(given: Lane | None) -> Lane | None:
    """Return the lane of the current task; in a thread without a copy of the context, the lane of its ``ctx``."""
    lane = LANE.get()
    return given if lane is None or (given is not None and lane.tree is not given.tree) else lane


_PART = re.compile(r"[/&~][^/&~!]*$|!$")
_RUN = re.compile(r".*(?:/run\.|&)[0-9]+")


def parent_of(path: str) -> str | None:
    """Return the lane that started a lane; ``None`` for that of the outermost run."""
    found = _PART.search(path)
    return path[: found.start()] if found is not None else None


def ancestors_of(path: str) -> Iterator[str]:
    """Yield the lane that started a lane, the lane that started that one, and so on."""
    parent = parent_of(path)
    while parent is not None:
        yield parent
        parent = parent_of(parent)


def run_of(path: str) -> str:
    """Return the lane of the run that a lane is part of."""
    found = _RUN.match(path)
    return found[0] if found is not None else re.split("[/~]", path, maxsplit=1)[0]


def is_detached(path: str) -> bool:
    """Return whether a lane is that of a detached run."""
    _, mark, number = path.rpartition("&")
    return bool(mark) and number.isdecimal()


def is_part_of(path: str, whole: str) -> bool:
    """Return whether a lane is that of a run or a call, or of a part of it."""
    return path == whole or (path.startswith(whole) and path[len(whole)] in "/&~!")
