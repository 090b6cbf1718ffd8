"""The order of a replay: which entries of the tape have been produced again, and which may come next (DESIGN 6.11).

The order comes from the tape alone; no clock is read:

- An entry is *needed* if a replay produces it again: an event, a request, a call. The tape returns an answer when every
  needed entry before it has been produced. So answers to concurrent calls come in the recorded order, however long
  hooks take. The replay waits for a slow hook just as a run does.
- A *wakeup* is where a part of the run continued after it had awaited a hook, ``ctx.once``, concurrent calls or a
  nested run. In a replay, it waits until everything recorded before has been produced, and what follows waits for it.
  A hook that is no longer called has no wakeup: the replay skips it when its branch is past it.
- External input (a steering message, a cancellation, the timer of a time limit) is repeated as soon as everything
  recorded before it has been produced; a cancelled caller, where the run saw that first. Until then, hooks wait for
  their turn too, so that no part of the run is ahead of it.
- A cancellation interrupts the hooks that it interrupted in the recording, and no others: a hook that is faster now
  waits for it, and a hook or an answer that came before it reached that part of the run comes before it again.
- A branch is a sequence of entries with a fixed order. A branch that produces anything but its next entry has diverged.
  The divergence counts once everything recorded before that entry has been produced: if two branches diverge, the first
  divergence is the earlier one on the tape, even if the other branch is faster now.
- A branch that waits for an answer has passed its earlier entries, and the branches that it had started and waited for;
  so have the branches that wait for it. Entries of these that have not been produced are missing, which is also a
  divergence.

After the first divergence or a cancellation, the order no longer applies, and all waiting answers are returned.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, Generic, TypeVar

from .._base.tasks import finish, settle
from .._kernel.events import HookExecuted
from .._kernel.hook import HookEntry
from .._run.events import Steered
from . import format as fmt
from .compare import is_compared, run_of

_EXTERNAL = (fmt.SteeringEntry, fmt.CancellationEntry, fmt.TimerEntry, fmt.InterruptionEntry)
_DATA = (
    fmt.HeaderEntry,
    fmt.BranchEntry,
    fmt.ReadingsEntry,
    fmt.CountEntry,
    fmt.OnceEntry,
    fmt.WakeupEntry,
    fmt.ValidationEntry,
    fmt.HookInterruptionEntry,
)
_NOT_PRODUCED = frozenset((*_DATA, *_EXTERNAL))
_WAKEUPS = (fmt.OnceEntry, fmt.WakeupEntry)

T = TypeVar("T")
_NONE: Mapping[object, Any] = {}


class PerTape(Generic[T]):
    """A context variable that has one value for each tape being recorded or replayed."""

    def __init__(self, name: str, default: T) -> None:
        self.default = default
        self.values: ContextVar[Mapping[object, T]] = ContextVar(name, default=_NONE)

    def get(self, tape: object) -> T:
        """Return the value for this tape."""
        return self.values.get().get(tape, self.default)

    def set(self, tape: object, value: T) -> Token[Mapping[object, T]]:
        """Set the value for the current task and the tasks that it starts."""
        return self.values.set({**self.values.get(), tape: value})

    def reset(self, token: Token[Mapping[object, T]]) -> None:
        """Restore the previous value."""
        self.values.reset(token)


BRANCH: PerTape[int] = PerTape("hookline_tape_branch", 0)
"""The branch of the current task in a replay: a tool call, an approval or a nested run. The branch of a progress report
has the number of its tool call, negated."""

PLACE: PerTape[tuple[int, int]] = PerTape("hookline_tape_place", (0, 0))
"""The place of the current task in a recording: its branch, and the number of the tool call that it is part of, unless
a replay calls that tool too."""


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
        self.branches = Branches(entries)
        self._pending = self.branches.needed[:]
        """For each entry, whether it is still to be produced."""
        self._late = _late_steering(entries)
        """The steering messages that came too late for a request, by the position of that request."""
        late = {position for positions in self._late.values() for position in positions}
        self._external = [position for position in _external(entries) if position not in late]
        for position in (*self._external, *self.branches.all_wakeups()):
            self._pending[position] = True
        self._is_repeating = False
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
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
        self._pass_wakeups(self._entries[position].branch, position)
        if position >= self.furthest:
            self.furthest = position + 1
        self._advance()

    def claim(self, branch: int, position: int) -> None:
        """Expect a wakeup, for whose turn a task is about to wait. Earlier ones of the branch do not come any more."""
        wakeups = self.branches.wakeups(branch)
        if position in wakeups:
            wakeups.remove(position)
        self.skip_wakeups(branch, position)

    def woke(self, position: int) -> None:
        """Mark a wakeup as repeated."""
        self._pending[position] = False
        self._advance()

    def wakeup_of(self, branch: int, name: str) -> int | None:
        """Return the position of the next wakeup of a branch that has this name, or ``None`` if there is none."""
        for position in self.branches.wakeups(branch) if self.has_turns else ():
            entry = self._entries[position]
            if type(entry) is fmt.WakeupEntry and entry.name == name:
                return position
        return None

    def is_next(self, hook: HookEntry, branch: int, position: int) -> bool:
        """Return whether a branch has produced all its entries before the end of this hook."""
        before = (i for i in self.branches.positions(branch) if i < position and self._pending[i])
        return all(self._is_of_other_observer(i, hook) for i in before)

    def skip_wakeups(self, branch: int, position: int) -> None:
        """Do not wait for the wakeups of a branch before this position."""
        self._pass_wakeups(branch, position)
        self._advance()

    def _pass_wakeups(self, branch: int, position: int) -> None:
        wakeups = self.branches.wakeups(branch)
        while wakeups and wakeups[0] < position:
            self._pending[wakeups.pop(0)] = False

    def is_pending(self, position: int) -> bool:
        """Return whether an entry is still to be produced."""
        return self._pending[position]

    def next_in(self, branch: int) -> int:
        """Return the position of a branch's next entry, or of the next one of its ancestors if the branch has ended."""
        position = next((i for i in self.branches.positions(branch) if self._pending[i]), None)
        return self.branches.after(branch) if position is None else position

    def diverge(self, branch: int) -> int:
        """Record that a branch did something other than its next entry. Return the position of that entry."""
        position = self.give_up(branch)
        self._divergence = min(self._divergence, position)
        self._advance()
        return position

    def give_up(self, branch: int) -> int:
        """Record that a branch will not reach its next entry. Return the position of that entry.

        The replay does not wait for branches that this one started just before that entry.
        """
        position = self.next_in(branch)
        done = [i for i in self.branches.positions(branch) if i < position]
        for child in self.branches.started_in(branch, after=done[-1] if done else -1):
            self._pass_wakeups(child, position)
            for i in self.branches.positions(child):
                if i < position:
                    self._pending[i] = False
        self.skip_wakeups(branch, position)
        return position

    @property
    def has_turns(self) -> bool:
        """Whether wakeups wait for their turn."""
        return self.intact and not self._is_limited

    def end_turns(self) -> None:
        """Do not wait for wakeups any more."""
        self._is_limited = True
        for position in self.branches.all_wakeups():
            self._pending[position] = False
        self._advance()
        self._wake()

    async def wait_for(
        self, position: int, branch: int | None = None, *, in_hook: bool = False, is_wakeup: bool = False
    ) -> None:
        """Wait until everything recorded before this position has been produced, or the order is lost.

        Args:
            position: the position of an answer.
            branch: the branch that waits for it, if any.
            in_hook: whether a hook of this branch waits for it. Other hooks may run at the same time.
            is_wakeup: whether it is a wakeup.
        """
        while self.intact and self.reached < position and (self.has_turns or not is_wakeup):
            missing = self.reached
            if branch is not None and self._is_past(missing, position, branch, in_hook):
                await settle()  # a run that was just started begins within these iterations
                if self.intact and self.reached == missing and self._is_past(missing, position, branch, in_hook):
                    if isinstance(self._entries[missing], _WAKEUPS):
                        self.woke(missing)
                        continue
                    self._missing(missing)
                    self.abandon()
            else:
                future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                self._waiting.append((position, future))
                try:
                    await future
                finally:
                    self._waiting = [pair for pair in self._waiting if pair[1] is not future]

    def _is_past(self, missing: int, position: int, waiting: int, in_hook: bool) -> bool:
        """Return whether the branch ``waiting``, which waits for the answer at a position, is past a missing entry."""
        branch, branches = self._entries[missing].branch, self.branches
        run = branches.run_of(branch)
        for ancestor, limit in branches.ancestors_at(waiting, position):
            if missing >= limit:
                continue
            if ancestor == branch:
                return not in_hook
            same_run = run == branches.run_of(ancestor)
            if ancestor == waiting and ancestor in branches.ancestors(branch) and same_run:
                return not in_hook and branch != -waiting  # progress reports of the waiting call may still come
            if not same_run and ancestor == next(branches.ancestors(branch), None):
                # A run in the background that has produced something may only be slower now.
                return all(self._pending[i] for i in branches.positions(branch))
        return False

    async def hold(self, branch: int) -> None:
        """Wait for the external input that came before the next entry of a branch: a cancellation interrupts it."""
        while self.intact and self._external and self._external[0] < self.next_in(branch):
            await self.wait_for(self._external[0] + 1)
            await settle()

    @property
    def expects_input(self) -> bool:
        """Whether there is external input that has not been repeated."""
        return bool(self._external)

    def interruption_of(self, hook: HookEntry, branch: int) -> int | None:
        """Return the position at which a hook that a branch has called was interrupted, or ``None`` if it was not."""
        for position in self.branches.interruptions(branch):
            entry = self._entries[position]
            assert isinstance(entry, fmt.HookInterruptionEntry)
            if (entry.point, entry.hook) == (hook.point, hook.name) and self.is_next(hook, branch, position):
                return position
        return None

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
            if isinstance(entry, fmt.CancellationEntry) and index in self._external:
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
        if not self._waiting:
            return
        for _, future in sorted(self._waiting, key=lambda pair: pair[0]):
            future.get_loop().call_soon_threadsafe(finish, future)


class Branches:
    """The branches of a tape: the entries of each, and the branch that started it.

    Args:
        entries: the entries of the tape.
    """

    def __init__(self, entries: Sequence[fmt.TapeEntry]) -> None:
        self._entries = entries
        self.needed = list(map(_is_needed, entries))
        """For each entry, whether a replay produces it again."""
        self._positions: dict[int, list[int]] = {}
        self._parents: dict[int, int] = {}
        self._started: dict[int, int] = {}
        self._interruptions: dict[int, list[int]] = {}
        self._wakeups: dict[int, list[int]] = {}
        for position, entry in enumerate(entries):
            if type(entry) is fmt.HookInterruptionEntry and not entry.inside:
                self._interruptions.setdefault(entry.branch, []).append(position)
            elif isinstance(entry, _WAKEUPS) and not entry.inside:
                self._wakeups.setdefault(entry.branch, []).append(position)
            elif type(entry) is fmt.BranchEntry and not entry.inside:
                self._parents.setdefault(entry.branch, entry.parent)
                self._started.setdefault(entry.branch, position)
            elif self.needed[position]:
                positions = self._positions.get(entry.branch)
                if positions is None:
                    self._positions[entry.branch] = [position]
                else:
                    positions.append(position)
        self._runs = {
            branch: next((run for i in positions if (run := _run_of(entries[i]))), "")
            for branch, positions in self._positions.items()
        }

    def positions(self, branch: int) -> Sequence[int]:
        """Return the positions of the needed entries of a branch."""
        return self._positions.get(branch, ())

    def interruptions(self, branch: int) -> list[int]:
        """Return the positions at which hooks of a branch were interrupted. The caller removes what it repeats."""
        return self._interruptions.get(branch, [])

    def wakeups(self, branch: int) -> list[int]:
        """Return the positions at which a branch continued. The caller removes those that are repeated or skipped."""
        return self._wakeups.get(branch, [])

    def all_wakeups(self) -> Iterator[int]:
        """Yield the positions of the wakeups of all branches."""
        for positions in self._wakeups.values():
            yield from positions

    def after(self, branch: int) -> int:
        """Return the position at which an ancestor went on after a branch had ended, or the end of the tape."""
        end = max((*self.positions(branch), self._started.get(branch, -1)))
        for ancestor in self.ancestors(branch):
            for position in self.positions(ancestor):
                if position > end:
                    return position
        return len(self._entries)

    def started_in(self, branch: int, after: int) -> Iterator[int]:
        """Return the branches that a branch or its descendants started after a position."""
        return (child for child, start in self._started.items() if start > after and branch in self.ancestors(child))

    def ancestors_at(self, branch: int, position: int) -> Iterator[tuple[int, int]]:
        """Yield a branch at a position and its ancestors, each with the position that it had reached by then."""
        yield branch, position
        while branch in self._parents:
            position, branch = self._started[branch], self._parents[branch]
            yield branch, position

    def run_of(self, branch: int) -> str:
        """Return the id of the run that a branch belongs to."""
        return self._runs.get(branch, "")

    def ancestors(self, branch: int) -> Iterator[int]:
        """Yield the ancestors of a branch: the branch that started it, the branch that started that one, and so on."""
        while branch in self._parents:
            branch = self._parents[branch]
            yield branch


def _run_of(entry: fmt.TapeEntry) -> str:
    """Return the id of the run that an entry belongs to, or ``""`` if the entry does not name it."""
    match entry:
        case fmt.EventEntry():
            return run_of(entry.event)
        case fmt.RunEntry():
            return entry.ids.run_id
        case fmt.ModelRequestEntry() | fmt.ToolCallEntry() | fmt.ApprovalEntry():
            return entry.run
    return ""


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
                is_input = not entry.interruption
            case _:
                is_input = isinstance(entry, _EXTERNAL)
        if is_input:
            found.append(position)
    return found


def _late_steering(entries: Sequence[fmt.TapeEntry]) -> dict[int, list[int]]:
    """Return the steering messages that came when the messages of the next request had been collected.

    Their positions are returned by the position of that request: a replay sends them after it.
    """
    found: dict[int, list[int]] = {}
    waiting: dict[str, list[int]] = {}
    for position, entry in enumerate(entries):
        match entry:
            case fmt.SteeringEntry():
                waiting.setdefault(entry.run, []).append(position)
            case fmt.EventEntry(event=Steered() as event):
                waiting.pop(event.run_id, None)
            case fmt.ModelRequestEntry(purpose="step", run=run) if run in waiting:
                found[position] = waiting.pop(run)
    return found


def _comes_later(entry: fmt.TapeEntry) -> bool:
    """Return whether the run saw an external input when it awaited something, and not before."""
    if isinstance(entry, fmt.CancellationEntry):
        return not entry.within or entry.inside > 0
    return isinstance(entry, (fmt.InterruptionEntry, fmt.TimerEntry))
