"""The order of a replay: which entries of the tape have been produced again, and which may come next (DESIGN 6.11).

The order comes from the tape alone; no clock is read:

- An entry is *needed* if a replay produces it again: an event, a request, a call. The tape returns an answer when every
  needed entry before it has been produced. So answers to concurrent calls come in the recorded order, however long
  hooks take. The replay waits for a slow hook just as a run does.
- A *wakeup* is where a part of the run continued after it had awaited a hook, ``ctx.once``, concurrent calls or a
  nested run. In a replay, it waits until everything recorded before has been produced, and what follows waits for it.
  A hook that is no longer called has no wakeup: the replay skips it when its lane is past it.
- External input (a steering message, a cancellation, the timer of a time limit) is repeated as soon as everything
  recorded before it has been produced; a cancelled caller, where the run saw that first. Until then, hooks wait for
  their turn too, so that no part of the run is ahead of it.
- A cancellation interrupts the hooks that it interrupted in the recording, and no others: a hook that is faster now
  waits for it, and a hook or an answer that came before it reached that part of the run comes before it again.
- A lane that produces anything but its next entry has diverged.
  The divergence counts once everything recorded before that entry has been produced: if two lanes diverge, the first
  divergence is the earlier one on the tape, even if the other lane is faster now.
- A lane that waits for an answer has passed its earlier entries, and the lanes that it had started and waited for;
  so have the lanes that wait for it. Entries of these that have not been produced are missing, which is also a
  divergence.

After the first divergence or a cancellation, the order no longer applies, and all waiting answers are returned.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence

from .._base.tasks import settle
from .._kernel.events import HookExecuted, PointFired
from .._kernel.hook import HookEntry
from .._run.events import RunStarted, Signalled, Steered, StepFinished, StepStarted
from .._run.lanes import ancestors_of, parent_of, run_of
from .._run.waiters import Waiters
from . import format as fmt
from .compare import is_compared

_EXTERNAL = (fmt.SteeringEntry, fmt.CancellationEntry, fmt.TimerEntry, fmt.InterruptionEntry)
_DATA = (
    fmt.HeaderEntry,
    fmt.ReadingsEntry,
    fmt.CountEntry,
    fmt.OnceEntry,
    fmt.WakeupEntry,
    fmt.ValidationEntry,
    fmt.HookInterruptionEntry,
)
_NOT_PRODUCED = frozenset((*_DATA, *_EXTERNAL))
_WAKEUPS = (fmt.OnceEntry, fmt.WakeupEntry)


class Order:
    """The progress of a replay on its tape.

    Args:
        entries: the entries of the tape.
        repeat: repeats an external input.
        missing: called with the position of an entry that can no longer be produced.
        passed: called with each position when everything up to it has been produced.
    """

    def __init__(
        self,
        entries: Sequence[fmt.TapeEntry],
        repeat: Callable[[fmt.TapeEntry], None],
        missing: Callable[[int], None],
        passed: Callable[[int], None] = lambda position: None,
    ) -> None:
        self._entries, self._repeat, self._missing, self._passed = entries, repeat, missing, passed
        self.lanes = Lanes(entries)
        self._pending = self.lanes.needed[:]
        """For each entry, whether it is still to be produced."""
        self._late = _late_steering(entries)
        """The steering messages that came too late for a request, by the position of that request."""
        late = {position for positions in self._late.values() for position in positions}
        self._external = [position for position in _external(entries) if position not in late]
        self._cancelled_by_hook = max((i for i, entry in enumerate(entries) if _is_by_hook(entry)), default=-1)
        for position in (*self._external, *self.lanes.all_wakeups()):
            self._pending[position] = True
        self._entries_ahead: dict[str, _Ahead] = {}
        self._starts_ahead: dict[str, _Ahead] = {}
        self._is_repeating = False
        self.waiters = Waiters()
        self._divergence = len(entries) + 1
        self.reached = 0
        """The first position that has not been produced."""
        self.furthest = 0
        """The position after the last one that has been produced."""
        self.intact = True
        """Whether the replay has followed the order of the tape so far."""
        self._is_limited = False
        """Whether a time limit has been reached, after which each part of the run reacts at its own speed."""

    def produced(self, position: int) -> None:
        """Mark an entry as produced."""
        self._pending[position] = False
        self._pass_wakeups(self._entries[position].lane, position)
        if position >= self.furthest:
            self.furthest = position + 1
        self._advance()

    def claim(self, lane: str, position: int) -> None:
        """Expect a wakeup, for whose turn a task is about to wait. Earlier ones of the lane do not come any more."""
        wakeups = self.lanes.wakeups(lane)
        if position in wakeups:
            wakeups.remove(position)
        self.skip_wakeups(lane, position)

    def woke(self, position: int) -> None:
        """Mark a wakeup as repeated."""
        self._pending[position] = False
        self._advance()

    def wakeup_of(self, lane: str, name: str) -> int | None:
        """Return the position of the next wakeup of a lane that has this name, or ``None`` if there is none."""
        for position in self.lanes.wakeups(lane) if self.has_turns else ():
            entry = self._entries[position]
            if type(entry) is fmt.WakeupEntry and entry.name == name:
                return position
        return None

    def is_next(self, hook: HookEntry, lane: str, position: int) -> bool:
        """Return whether a lane has produced all its entries before the end of this hook."""
        before = (i for i in self._ahead(lane).until(position) if self._pending[i])
        return all(self._is_of_timer(i) or self._is_of_other_observer(i, hook) for i in before)

    def skip_wakeups(self, lane: str, position: int) -> None:
        """Do not wait for the wakeups of a lane before this position."""
        self._pass_wakeups(lane, position)
        self._advance()

    def _pass_wakeups(self, lane: str, position: int) -> None:
        wakeups = self.lanes.wakeups(lane)
        while wakeups and wakeups[0] < position:
            self._pending[wakeups.pop(0)] = False

    def is_pending(self, position: int) -> bool:
        """Return whether an entry is still to be produced."""
        return self._pending[position]

    def next_in(self, lane: str) -> int:
        """Return the position of a lane's next entry, or of the next one of its ancestors if the lane has ended."""
        position = self._ahead(lane).first()
        return self.lanes.after(lane) if position is None else position

    def _ahead(self, lane: str) -> _Ahead:
        """Return the entries of a lane that are still to be produced."""
        ahead = self._entries_ahead.get(lane)
        if ahead is None:
            ahead = self._entries_ahead[lane] = _Ahead(self.lanes.positions(lane), self._pending)
        return ahead

    def next_from(self, lane: str) -> int:
        """Return the position at which a lane continues: that of its next entry or wakeup, or of a lane it starts."""
        starts = self._starts_ahead.get(lane)
        if starts is None:
            starts = self._starts_ahead[lane] = _Ahead(self.lanes.starts(lane), self._pending)
        wakeup = next((i for i in self.lanes.wakeups(lane) if self._pending[i]), None)
        return min(i for i in (self.next_in(lane), wakeup, starts.first(), len(self._entries)) if i is not None)

    def diverge(self, lane: str) -> int:
        """Record that a lane did something other than its next entry. Return the position of that entry."""
        position = self.give_up(lane)
        self._divergence = min(self._divergence, position)
        self._advance()
        return position

    def give_up(self, lane: str) -> int:
        """Record that a lane will not reach its next entry. Return the position of that entry.

        The replay does not wait for lanes that this one started just before that entry.
        """
        position = self.next_in(lane)
        positions = self.lanes.positions(lane)
        done = bisect_left(positions, position)
        for child in self.lanes.started_in(lane, after=positions[done - 1] if done else -1):
            self._pass_wakeups(child, position)
            for i in self.lanes.positions(child):
                if i < position:
                    self._pending[i] = False
        self.skip_wakeups(lane, position)
        return position

    @property
    def has_turns(self) -> bool:
        """Whether wakeups wait for their turn."""
        return self.intact and not self._is_limited

    def end_turns(self) -> None:
        """Do not wait for wakeups any more."""
        self._is_limited = True
        for position in self.lanes.all_wakeups():
            self._pending[position] = False
        self._advance()
        self._wake()

    async def wait_for(
        self, position: int, lane: str | None = None, *, in_hook: bool = False, is_wakeup: bool = False
    ) -> None:
        """Wait until everything recorded before this position has been produced, or the order is lost.

        Args:
            position: the position of an answer.
            lane: the lane that waits for it, if any.
            in_hook: whether a hook of this lane waits for it. Other hooks may run at the same time.
            is_wakeup: whether it is a wakeup.
        """
        while self.intact and self.reached < position and (self.has_turns or not is_wakeup):
            missing = self.reached
            if lane is not None and self._is_past(missing, position, lane, in_hook):
                await settle()  # a run that was just started begins within these iterations
                if self.intact and self.reached == missing and self._is_past(missing, position, lane, in_hook):
                    if isinstance(self._entries[missing], _WAKEUPS):
                        self.woke(missing)
                        continue
                    self._missing(missing)
                    self.abandon()
            else:
                await self.waiters.wait(position)

    def _is_past(self, missing: int, position: int, waiting: str, in_hook: bool) -> bool:
        """Return whether the lane ``waiting``, which waits for the answer at a position, is past a missing entry."""
        lane, lanes = self._entries[missing].lane, self.lanes
        for ancestor, limit in lanes.ancestors_at(waiting, position):
            if missing >= limit:
                continue
            if ancestor == lane:
                return not in_hook
            same_run = run_of(lane) == run_of(ancestor)
            if ancestor == waiting and ancestor in ancestors_of(lane) and same_run:
                return not in_hook and lane != f"{waiting}!"  # progress reports of the waiting call may still come
            if not same_run and ancestor == parent_of(lane):
                # A run in the background that has produced something may only be slower now.
                return all(self._pending[i] for i in lanes.positions(lane))
        return False

    async def hold(self, lane: str) -> None:
        """Wait for the external input that came before the next entry of a lane: a cancellation interrupts it."""
        while self.intact and self._external and self._external[0] < self.next_in(lane):
            await self.wait_for(self._external[0] + 1)
            await settle()

    @property
    def expects_input(self) -> bool:
        """Whether there is external input that has not been repeated, or a hook is to cancel the run."""
        return bool(self._external) or self.reached <= self._cancelled_by_hook

    def interruption_of(self, hook: HookEntry, lane: str) -> int | None:
        """Return the position at which a hook that a lane has called was interrupted, or ``None`` if it was not."""
        for position in self.lanes.interruptions(lane):
            entry = self._entries[position]
            assert isinstance(entry, fmt.HookInterruptionEntry)
            if (entry.point, entry.hook) == (hook.point, hook.name) and self.is_next(hook, lane, position):
                return position
        return None

    def _is_of_timer(self, position: int) -> bool:
        """Return whether an entry is the signal of a time limit, which a timer sets while the lane waits."""
        event, before = getattr(self._entries[position], "event", None), self._entries[position - 1]
        return isinstance(event, Signalled) and isinstance(before, fmt.TimerEntry)

    def _is_of_other_observer(self, position: int, hook: HookEntry) -> bool:
        """Return whether an entry is the result of an observer that is called together with this one."""
        event = getattr(self._entries[position], "event", None)
        if hook.phase != "observe" or not isinstance(event, HookExecuted):
            return False
        return event.phase == "observe" and event.point == hook.point and event.hook != hook.name

    def repeat_before(self, position: int) -> None:
        """Repeat the external input before this position, although the replay has not reached it."""
        while self._external and self._external[0] < position:
            self._repeat_first()
        for request in [each for each in self._late if each < position]:
            self._repeat_late(request)

    def _repeat_late(self, request: int) -> None:
        """Send the steering messages that came too late for the request at this position."""
        for position in self._late.pop(request, ()):
            self._repeat(self._entries[position])

    def _repeat_first(self) -> None:
        position = self._external.pop(0)
        self._pending[position] = False
        self._repeat(self._entries[position])

    def _repeat_in_turn(self) -> None:
        """Repeat the external input that has been reached, unless that has been done meanwhile."""
        self._is_repeating = False
        if self._external and self._external[0] == self.reached:
            self._repeat_first()
            self._advance()

    def repeat_cancellation(self, position: int, *, at_once: bool) -> bool:
        """Repeat the cancellation of the run that ended a call. Return false if the tape has none.

        When the task of a run is cancelled, its calls notice first and the run is cancelled because of that. So the
        cancellation comes after the answers of the calls on the tape.

        Args:
            position: the position of the call's answer.
            at_once: whether only answers of cancelled calls may be between the two.
        """
        for index in range(position + 1, len(self._entries)):
            entry = self._entries[index]
            if isinstance(entry, fmt.CancellationEntry) and not entry.run and index in self._external:
                self._external.remove(index)
                self._pending[index] = False
                self._repeat(entry)
                return True
            if at_once and not isinstance(entry, _DATA) and not getattr(entry, "cancelled", False):
                return False
        return False

    def abandon(self) -> None:
        """Stop following the order of the tape."""
        self.intact = False
        self._wake()

    def _advance(self) -> None:
        before = self.reached
        pending, end = self._pending, len(self._pending)
        while self.intact and self.reached < end:
            if self._external and self._external[0] == self.reached:
                if _comes_later(self._entries[self.reached]):
                    self._repeat_soon()
                    break
                self._repeat_first()
            if pending[self.reached]:
                break
            self._passed(self.reached)
            self._repeat_late(self.reached)
            self.reached += 1
        if self.reached >= self._divergence:
            self.intact = False
        if not self.intact:
            self.repeat_before(self.furthest)
        if self.reached != before or not self.intact:
            self._wake()

    def _repeat_soon(self) -> None:
        """Repeat external input when the current task awaits something, as it did in the recording."""
        if not self._is_repeating:
            self._is_repeating = True
            asyncio.get_running_loop().call_soon(self._repeat_in_turn)

    def _wake(self) -> None:
        """Wake all waiting tasks in the order of the tape; each checks whether it may go on."""
        self.waiters.wake(lambda waiter: True)

    async def watch(self) -> None:
        """Give up the order if an entry of the tape does not occur again: a replay never hangs."""
        await self.waiters.watch(lambda: sum(self._pending), self._stalled)

    def _stalled(self) -> None:
        if self.intact and self.reached < len(self._entries):
            self._missing(self.reached)
            self.abandon()


class _Ahead:
    """The positions of a lane that are still to be produced.

    An entry that was produced does not become pending again. So the search goes on where the last one ended, and all
    searches in a lane together look at each of its positions once.

    Args:
        positions: positions on the tape, in ascending order.
        pending: for each entry of the tape, whether it is still to be produced.
    """

    __slots__ = ("_done", "_pending", "_positions")

    def __init__(self, positions: Sequence[int], pending: Sequence[bool]) -> None:
        self._positions, self._pending = positions, pending
        self._done = 0

    def first(self) -> int | None:
        """Return the first of them, or ``None`` if there is none."""
        positions, pending = self._positions, self._pending
        while self._done < len(positions):
            position = positions[self._done]
            if pending[position]:
                return position
            self._done += 1
        return None

    def until(self, end: int) -> Sequence[int]:
        """Return the positions from the first of them up to ``end``. Some of these may have been produced."""
        self.first()
        return self._positions[self._done : bisect_left(self._positions, end)]


class Lanes:
    """The lanes of a tape: the entries of each, and where it begins.

    Args:
        entries: the entries of the tape.
    """

    def __init__(self, entries: Sequence[fmt.TapeEntry]) -> None:
        self._entries = entries
        self.needed = list(map(_is_needed, entries))
        """For each entry, whether a replay produces it again."""
        self._positions: dict[str, list[int]] = {}
        self._started: dict[str, int] = {}
        self._starts: dict[str, list[int]] = {}
        self._interruptions: dict[str, list[int]] = {}
        self._wakeups: dict[str, list[int]] = {}
        for position, entry in enumerate(entries):
            kind, lane = type(entry), entry.lane
            if entry.inside:
                continue
            if kind is fmt.HookInterruptionEntry:
                self._interruptions.setdefault(lane, []).append(position)
            elif kind in _WAKEUPS:
                self._wakeups.setdefault(lane, []).append(position)
            elif self.needed[position]:
                positions = self._positions.get(lane)
                if positions is None:
                    self._positions[lane] = [position]
                else:
                    positions.append(position)
            if lane and lane not in self._started:
                self._started[lane] = position
                self._starts.setdefault(parent_of(lane) or "", []).append(position)

    def has(self, lane: str) -> bool:
        """Return whether the tape has entries of a lane."""
        return lane in self._started

    def positions(self, lane: str) -> Sequence[int]:
        """Return the positions of the needed entries of a lane."""
        return self._positions.get(lane, ())

    def starts(self, lane: str) -> Sequence[int]:
        """Return the positions at which the lanes begin that a lane has started."""
        return self._starts.get(lane, ())

    def interruptions(self, lane: str) -> list[int]:
        """Return the positions at which hooks of a lane were interrupted. The caller removes what it repeats."""
        return self._interruptions.get(lane, [])

    def wakeups(self, lane: str) -> list[int]:
        """Return the positions at which a lane continued. The caller removes those that are repeated or skipped."""
        return self._wakeups.get(lane, [])

    def all_wakeups(self) -> Iterator[int]:
        """Yield the positions of the wakeups of all lanes."""
        for positions in self._wakeups.values():
            yield from positions

    def after(self, lane: str) -> int:
        """Return the position at which an ancestor went on after a lane had ended, or the end of the tape."""
        end = max((*self.positions(lane)[-1:], self._started.get(lane, -1)))
        for ancestor in ancestors_of(lane):
            positions = self.positions(ancestor)
            following = bisect_right(positions, end)
            if following < len(positions):
                return positions[following]
        return len(self._entries)

    def started_in(self, lane: str, after: int) -> Iterator[str]:
        """Return the lanes that a lane or its descendants started after a position."""
        return (child for child, start in self._started.items() if start > after and lane in ancestors_of(child))

    def ancestors_at(self, lane: str, position: int) -> Iterator[tuple[str, int]]:
        """Yield a lane at a position and its ancestors, each with the position that it had reached by then."""
        yield lane, position
        for ancestor in ancestors_of(lane):
            position = min(position, self._started.get(lane, position))
            lane = ancestor
            yield lane, position


def _is_needed(entry: fmt.TapeEntry) -> bool:
    """Return whether a replay produces an entry again. Mere data and entries from inside a tool are not produced."""
    if entry.inside or type(entry) in _NOT_PRODUCED:
        return False
    return not isinstance(entry, fmt.EventEntry) or is_compared(entry.event)


def _external(entries: Sequence[fmt.TapeEntry]) -> list[int]:
    """Return the positions of the external input that a replay repeats.

    A cancelled caller is repeated where the run saw it first, and not where the run had found out that it is cancelled.
    """
    callers = {entry.interruption for entry in entries if isinstance(entry, fmt.CancellationEntry)}
    found = []
    for position, entry in enumerate(entries):
        match entry:
            case fmt.InterruptionEntry():
                is_input = entry.number in callers
            case fmt.CancellationEntry():
                is_input = not entry.interruption and not entry.by_hook
            case _:
                is_input = isinstance(entry, _EXTERNAL)
        if is_input:
            found.append(position)
    return found


def _is_by_hook(entry: fmt.TapeEntry) -> bool:
    return isinstance(entry, fmt.CancellationEntry) and entry.by_hook


def _late_steering(entries: Sequence[fmt.TapeEntry]) -> dict[int, list[int]]:
    """Return the steering messages that a run saw later than they came, by the entry after which a replay sends them.

    If the run was about to stop, hooks of ``on_stop`` had begun, or it would have gone on without them. Otherwise, a
    step may have sent its request without the message.
    """
    found: dict[int, list[int]] = {}
    waiting: dict[str, list[int]] = {}
    lanes, stopping, seen = dict[str, str](), set[str](), set[str]()
    for position, entry in enumerate(entries):
        begins, event = entry.lane not in seen, getattr(entry, "event", None)
        seen.add(entry.lane)
        for run in [each for each in waiting if each in stopping]:
            is_own = entry.lane == lanes[run] and _is_of_hook(entry)
            if is_own or (begins and parent_of(entry.lane) == lanes[run]):
                found.setdefault(position, []).extend(waiting.pop(run))
        match entry:
            case fmt.SteeringEntry():
                waiting.setdefault(entry.run, []).append(position)
            case fmt.ModelRequestEntry(purpose="step", run=run) if run in waiting:
                found.setdefault(position, []).extend(waiting.pop(run))
        match event:
            case RunStarted():
                lanes[event.run_id] = entry.lane
            case StepFinished():
                stopping.add(event.run_id)
            case StepStarted() | Signalled():
                stopping.discard(event.run_id)
            case Steered():
                waiting.pop(event.run_id, None)
    return found


def _is_of_hook(entry: fmt.TapeEntry) -> bool:
    """Return whether an entry is by a hook of its run: an end of it, or what it asked for."""
    if isinstance(entry, fmt.EventEntry):
        return isinstance(entry.event, (HookExecuted, PointFired))
    return isinstance(entry, (*_WAKEUPS, fmt.ModelRequestEntry))


def _comes_later(entry: fmt.TapeEntry) -> bool:
    """Return whether the run saw an external input when it awaited something, and not before."""
    if isinstance(entry, fmt.CancellationEntry):
        return not entry.within or bool(entry.inside)
    return isinstance(entry, (fmt.InterruptionEntry, fmt.TimerEntry))
