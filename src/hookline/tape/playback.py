"""A replay under way: how far it has come on its tape, what differs, and why it ended early, if it did."""

from __future__ import annotations

import asyncio
from typing import Any, Never

from .._kernel.events import Event
from .._kernel.scope import ACTIVE, entered
from .._run.run import Run
from . import entries as on
from .compare import Comparison, Decision
from .lanes import LANE
from .order import Order, turns
from .played_readings import PlayedAlarms, PlayedClock
from .tape import Tape


class Playback:
    """Keeps a replayed run to its tape: compares its events, repeats what came from outside, and ends it.

    Args:
        tape: the tape.
    """

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.run: Run[Any] | None = None
        """The replayed run, once it is started."""
        self.left = ""
        """Why the replay left the tape, if it did."""
        self.clock, self.alarms = PlayedClock(tape.head), PlayedAlarms()
        self.compare = Comparison(tape)
        self.order = Order(tape.entries, self._repeat, self._missing)
        self._hooks_around = entered()
        self._cancelled = self._exact = False
        self._end = len(tape.entries)

    @property
    def lane(self) -> int:
        """The lane of the current task."""
        return LANE.get(self)

    def happened(self, event: Event) -> None:
        """Compare an event with the one on the tape."""
        if self.left:
            return
        lane = self.lane
        position, difference = self.compare.take(event, lane, lambda: self.order.next_in(lane))
        if difference and (self.order.kept or not self.compare.first):
            self.compare.differ(self.order.diverge(lane), difference)
        if position is not None:
            entry = self.tape.entries[position]
            if isinstance(entry, on.Happened):
                self.clock.advance(float(entry.event["at"]) - self.tape.head.time)
            self.passed(position)

    def passed(self, position: int) -> None:
        """An entry has come again; the time is what it was then."""
        self.clock.advance(self.tape.entries[position].at)
        self.order.produced(position)

    def _missing(self, position: int) -> None:
        self.compare.missing(position, self.tape.entries[position])

    def _repeat(self, entry: on.Entry) -> None:
        """Do again to the run what was done to it from outside."""
        self.clock.advance(entry.at)
        if isinstance(entry, on.SteeredIn) and self.run is not None and entry.run == self.tape.run.ids.run_id:
            self.run.steer(entry.text)
        elif isinstance(entry, on.AlarmRang):
            self.alarms.ring(entry)
        elif isinstance(entry, on.CancelledFrom) and self.run is not None:
            self._cancelled = True
            self.run.cancel(entry.reason)
            self.order.let_go()  # how fast each task notices is not on the tape

    async def turn_of(self, position: int) -> None:
        """Wait until everything recorded before an answer of this lane has come again."""
        await self.order.wait_for(position, self.lane, in_hook=self._in_hook())

    def _in_hook(self) -> bool:
        return ACTIVE.get() > self._hooks_around

    async def wait_to_be_cancelled(self, position: int) -> Never:
        """Wait for what cancelled a call then: the run's owner, a time limit, a failure beside it, or a hook.

        All but the last are on the tape. So where they have come again and the call goes on, the replay has no answer.
        A hook that awaits the call may have a timer of its own: the replay waits for that.
        """
        in_hook = self._in_hook()
        await self.turn_of(position)
        await turns()
        if not self.order.kept:
            self.order.repeat_before(position)
            await turns()
        if self.order.repeat_cancellation(position, at_once=in_hook):
            await turns()
        if not self._cancelled and not (in_hook and self.order.kept):
            await self.leave("what was broken off there then would have gone on", position)
        await _forever()

    async def leave(self, why: str, position: int | None = None) -> Never:
        """End the replay, as soon as everything recorded before has come again: the tape has no answer."""
        await self.turn_of(self.order.give_up(self.lane) if position is None else position)
        if not self.left:
            self.left = why
            self._end, self._exact = self.order.reached, self.order.kept
            if self._exact:
                self.compare.forget()
            else:
                self._end = self.order.furthest
            assert self.run is not None  # it was started with this
            self.run.cancel("the replay has left the tape")
        await _forever()

    def finish(self) -> tuple[list[Decision], list[Decision]]:
        """The decisions then and now, after the last event."""
        if not self.left:
            self.compare.finish(self.order.kept)
        return self.compare.decisions(self._end, self._exact)


async def _forever() -> Never:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody gives it a result")
