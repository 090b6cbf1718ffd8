"""The order of a replay: which entries of the tape have come again, and whose turn it is (DESIGN 6.11).

Nothing here looks at a clock. The order comes from the record alone:

- An entry is *needed* if a replay produces it again: an event, a request, a call. An answer of the tape is handed out
  when every needed entry before it has been produced. So however long hooks take, answers of things that go on at once
  come in the recorded order. The replay waits for a slow hook as a run does.
- What came from outside (a steering message, a cancellation, the alarm of a time limit) comes again as soon as
  everything recorded before it has been produced.
- A lane is a sequence of entries with one order. A lane that produces anything else than its next entry has diverged.
  The divergence counts once everything recorded before that entry has been produced: of two lanes that diverge, the one
  that diverges earlier on the tape is the first, whichever is faster now.
- A lane that waits for an answer has gone past its earlier entries, and past the lanes that it had begun and waited
  for; so have the lanes that wait for it. Entries of these that have not been produced are missing: a divergence, too.

After the first divergence, or a cancellation, the tape has no order to offer any more: waiting answers are handed out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

from . import entries as on
from .compare import Comparison

TURNS = 100
"""Turns of the event loop. A task begins in one; a cancellation goes through each task on its way in a few."""

_FROM_OUTSIDE = (on.SteeredIn, on.CancelledFrom, on.AlarmRang)
_DATA = (on.TapeBegan, on.LaneBegan, on.Drawn, on.Counted, on.ArgumentsChecked)


class Order:
    """How far a replay has come on its tape.

    Args:
        entries: the entries of the tape.
        repeat: does again what came from outside.
        missing: is called with the position of an entry that can not come any more.
    """

    def __init__(
        self, entries: Sequence[on.Entry], repeat: Callable[[on.Entry], None], missing: Callable[[int], None]
    ) -> None:
        self._entries, self._repeat, self._missing = entries, repeat, missing
        self._open = [_is_needed(entry) for entry in entries]
        """Whether an entry has still to be produced."""
        self._outside = [i for i, entry in enumerate(entries) if isinstance(entry, _FROM_OUTSIDE)]
        self._lanes = Lanes(entries)
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._divergence = len(entries) + 1
        self.reached = 0
        """The first position that has not been produced."""
        self.furthest = 0
        """The position after the last one that has been produced."""
        self.kept = True
        """Whether the replay has kept to the order of the tape so far."""

    def produced(self, position: int) -> None:
        """An entry has been produced again."""
        self._open[position] = False
        self.furthest = max(self.furthest, position + 1)
        self._advance()

    def is_open(self, position: int) -> bool:
        """Whether an entry has still to be produced."""
        return self._open[position]

    def next_in(self, lane: int) -> int:
        """The position of what a lane did next; if it did nothing more, of what the lane it came from did next."""
        position = next((i for i in self._lanes.positions(lane) if self._open[i]), None)
        return self._lanes.after(lane) if position is None else position

    def diverge(self, lane: int) -> int:
        """A lane does something else than its next entry, and the order ends there: the position of that entry."""
        position = self.give_up(lane)
        self._divergence = min(self._divergence, position)
        self._advance()
        return position

    def give_up(self, lane: int) -> int:
        """A lane does not come to its next entry: the position of that entry.

        Lanes that it had begun just before that entry are not waited for.
        """
        position = self.next_in(lane)
        done = [i for i in self._lanes.positions(lane) if i < position]
        for child in self._lanes.begun_in(lane, after=done[-1] if done else -1):
            for i in self._lanes.positions(child):
                if i < position:
                    self._open[i] = False
        self._advance()
        return position

    async def wait_for(self, position: int, lane: int | None = None, *, in_hook: bool = False) -> None:
        """Wait until everything recorded before this position has been produced, or the order is lost.

        Args:
            position: that of an answer.
            lane: the lane that waits for it, if one does.
            in_hook: whether a hook of this lane waits for it. Others may run at the same time.
        """
        while self.kept and self.reached < position:
            missing = self.reached
            if lane is not None and self._went_past(missing, position, lane, in_hook):
                await turns()  # a run that has just been started begins in one of these
                if self.kept and self.reached == missing and self._went_past(missing, position, lane, in_hook):
                    self._missing(missing)
                    self.let_go()
            else:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append((position, future))
                try:
                    await future
                finally:
                    self._waiting = [pair for pair in self._waiting if pair[1] is not future]

    def _went_past(self, missing: int, position: int, waiting: int, in_hook: bool) -> bool:
        """Whether an entry can not be produced any more, since this lane waits for the answer at this position."""
        lane, lanes = self._entries[missing].lane, self._lanes
        for above, limit in lanes.way_to(waiting, position):
            if missing >= limit:
                continue
            if above == lane:
                return not in_hook
            if above == waiting and above in lanes.above(lane) and lanes.run_of(lane) == lanes.run_of(above):
                return not in_hook and lane != -waiting  # which is the progress of the call that waits
            if lanes.run_of(lane) != lanes.run_of(above) and above == next(lanes.above(lane), None):
                return all(self._open[i] for i in lanes.positions(lane))  # one in the background may be slower now
        return False

    def repeat_before(self, position: int) -> None:
        """Do again what came from outside before this position, although the replay has not reached it."""
        while self._outside and self._outside[0] < position:
            self._repeat(self._entries[self._outside.pop(0)])

    def repeat_cancellation(self, position: int, *, at_once: bool) -> bool:
        """Repeat the cancellation of the run that ended the call whose answer is here; false if there is none.

        Where the task of the run is cancelled, the calls notice it first, and the run is cancelled because of that.

        Args:
            position: the answer.
            at_once: whether only such answers may lie between the two; else it may come anywhere later.
        """
        for index in range(position + 1, len(self._entries)):
            entry = self._entries[index]
            if isinstance(entry, on.CancelledFrom) and index in self._outside:
                self._outside.remove(index)
                self._repeat(entry)
                return True
            if at_once and not isinstance(entry, _DATA) and not getattr(entry, "cancelled", False):
                return False
        return False

    def let_go(self) -> None:
        """Keep to the order no longer."""
        self.kept = False
        self._wake()

    def _advance(self) -> None:
        before = self.reached
        while self.kept and self.reached < len(self._entries) and not self._open[self.reached]:
            self.reached += 1
            if isinstance(self._entries[self.reached - 1], _FROM_OUTSIDE):
                self.repeat_before(self.reached)
        if self.reached >= self._divergence:
            self.kept = False
        if not self.kept:
            self.repeat_before(self.furthest)
        if self.reached != before or not self.kept:
            self._wake()

    def _wake(self) -> None:
        """Have all that wait look whether it is their turn, in the order of the tape."""
        for _, future in sorted(self._waiting, key=lambda pair: pair[0]):
            future.get_loop().call_soon_threadsafe(_finish, future)


class Lanes:
    """The lanes of a tape: what belongs to each, and which lane began it.

    Args:
        entries: the entries of the tape.
    """

    def __init__(self, entries: Sequence[on.Entry]) -> None:
        self._entries = entries
        self._positions: dict[int, list[int]] = {}
        self._parents: dict[int, int] = {}
        self._began: dict[int, int] = {}
        for position, entry in enumerate(entries):
            if isinstance(entry, on.LaneBegan) and not entry.inside:
                self._parents.setdefault(entry.lane, entry.parent)
                self._began.setdefault(entry.lane, position)
            elif _is_needed(entry):
                self._positions.setdefault(entry.lane, []).append(position)
        self._runs = {
            lane: next((run for i in positions if (run := _run_of(entries[i]))), "")
            for lane, positions in self._positions.items()
        }

    def positions(self, lane: int) -> Sequence[int]:
        """The needed entries of a lane."""
        return self._positions.get(lane, ())

    def after(self, lane: int) -> int:
        """The position at which the lanes above went on after a lane had ended; the end of the tape if none did."""
        end = max((*self.positions(lane), self._began.get(lane, -1)))
        for above in self.above(lane):
            for position in self.positions(above):
                if position > end:
                    return position
        return len(self._entries)

    def begun_in(self, lane: int, after: int) -> Iterator[int]:
        """The lanes that a lane began after a position, directly or not."""
        return (child for child, began in self._began.items() if began > after and lane in self.above(child))

    def way_to(self, lane: int, position: int) -> Iterator[tuple[int, int]]:
        """A lane that has come to a position, and the lanes above it, each with the position to which it has come."""
        yield lane, position
        while lane in self._parents:
            position, lane = self._began[lane], self._parents[lane]
            yield lane, position

    def run_of(self, lane: int) -> str:
        """The id of the run that a lane belongs to."""
        return self._runs.get(lane, "")

    def above(self, lane: int) -> Iterator[int]:
        """The lane that began a lane, the one that began that, and so on."""
        while lane in self._parents:
            lane = self._parents[lane]
            yield lane


def _run_of(entry: on.Entry) -> str:
    """The id of the run that an entry belongs to, if it tells."""
    match entry:
        case on.Happened():
            return str(entry.event["run_id"])
        case on.RunBegan():
            return entry.ids.run_id
        case on.ModelAsked() | on.ToolCalled() | on.ApprovalAnswered():
            return entry.run
    return ""


def _is_needed(entry: on.Entry) -> bool:
    """Whether a replay produces an entry again: not what is only data, and not what happened inside a tool."""
    if isinstance(entry, on.Happened):
        return Comparison.is_compared(entry)
    return not entry.inside and not isinstance(entry, (*_DATA, *_FROM_OUTSIDE))


async def turns() -> None:
    """Let the event loop turn so often that everything that can go on has: tasks begin, cancellations arrive."""
    for _ in range(TURNS):
        await asyncio.sleep(0)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
