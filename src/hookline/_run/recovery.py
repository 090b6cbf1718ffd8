"""The recovery of a durable run: which entries of its journal have happened again, and which may come next.

It is for a journal what ``Order`` is for a tape (DESIGN 6.11, 6.17). While :attr:`Recovery.is_active`, the durable run
answers calls from the entries, compares each event with them, and lets each part of the run go on at the entry at which
it went on in the journal; a part whose wakeup is not in the journal waits for its end. After a cancellation or a time
limit, the events of that run may differ until its next step, because the journal does not record how fast each task
reacts.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

import msgspec

from .._kernel.points import ON_TOKEN
from . import waiters
from .journal import JournalEntry, Steering, entry_decoder, steering_decoder, with_contents
from .lanes import is_part_of, parent_of, run_of
from .waiters import Waiter, Waiters

_EXTERNAL = frozenset(("steer", "cancel", "timer"))
"""Kinds of entries for input from outside."""
_SOFT = frozenset(("event", "text", "observed", "spent", "wakeup"))
"""Kinds of entries that recovery may skip after a cancellation or a time limit."""
_SKIPPED = frozenset(("text", "observed", "wakeup"))
"""Kinds of entries that need not occur again."""


class Recovery:
    """The progress of a recovery.

    Args:
        entries: the entries of the journal.
        repeat: repeats an external input; called with its entry and its position.
        charge: repeats what a tool or an observer did to its run.
        differ: called with the journal's version and the present one when something else happens now.
        ended: called when everything in the journal has happened again.
    """

    def __init__(
        self,
        entries: Sequence[bytes],
        *,
        repeat: Callable[[JournalEntry, int], None],
        charge: Callable[[JournalEntry], None],
        differ: Callable[[str, str], None],
        ended: Callable[[], None],
    ) -> None:
        self._repeat, self._charge, self._differ, self._ended = repeat, charge, differ, ended
        self.entries: list[JournalEntry] = []
        """The entries, without draws and counts."""
        self.draws: dict[tuple[str, str], deque[Any]] = {}
        """The values that the run has read, by lane and kind."""
        self.counts: dict[str, float | None] = {}
        """Token counts and prices from models, by key."""
        self.last_time: float | None = None
        """The last reading of the monotonic clock."""
        self.root = "0"
        """The lane of the latest outermost run: a journal may have several consecutive ones."""
        self.is_in_root = False
        """Whether that run has not ended."""
        self.is_stopped = False
        """Whether this process executes the run no longer, so that nothing waits for its turn."""
        self._done: list[bool] = []
        """For each entry, whether it has happened again."""
        self._lanes: dict[str, deque[int]] = {}
        """By lane, the positions of the entries that have not happened again."""
        self._started: dict[str, deque[int]] = {}
        """By lane, the positions at which the lanes that it started begin."""
        self._inputs: deque[int] = deque()
        """The positions of external input that has not been repeated yet."""
        self._claimed: set[int] = set()
        """The positions of wakeups for whose turn a task waits."""
        self._relaxed: list[tuple[int, float, str]] = []
        """Ranges of positions in which events of a run may differ, because they follow a cancellation or a time limit:
        the first and the last one, and the lane of the run."""
        self._late: dict[int, list[Callable[[], None]]] = {}
        """What to do after the request at a position."""
        self._waiters = Waiters()
        self._reached = 0
        """The first position that has not happened again."""
        for data in entries:
            self._load(entry_decoder.decode(data))
        self.has_cuts = any(entry.kind == "cancel" and entry.lane for entry in self.entries)
        """Whether a nested run was cancelled alone."""

    def _load(self, entry: JournalEntry) -> None:
        if entry.kind == "draws":
            for kind, value in msgspec.json.decode(entry.data):
                self.draws.setdefault((entry.lane, kind), deque()).append(value)
                if kind == "monotonic":
                    self.last_time = value
            return
        if entry.kind == "count":
            self.counts[entry.key] = msgspec.json.decode(entry.data)
            return
        position = len(self.entries)
        if entry.kind in _EXTERNAL:
            self._inputs.append(position)
        else:
            if entry.lane not in self._lanes and (outer := parent_of(entry.lane)) is not None:
                for before in (outer, f"{entry.lane}?"):  # a call begins after its approval, which has no end
                    self._started.setdefault(before, deque()).append(position)
            self._lanes.setdefault(entry.lane, deque()).append(position)
        self.entries.append(entry)
        self._done.append(False)

    @property
    def is_active(self) -> bool:
        """Whether the journal has entries that have not happened again yet."""
        return self._reached < len(self.entries)

    @property
    def steering(self) -> list[Steering]:
        """The steering messages in the journal."""
        return [with_contents(steering_decoder, each.data) for each in self.entries if each.kind == "steer"]

    def stop(self) -> None:
        """Let all waiting tasks go on, because this process executes the run no longer."""
        self.is_stopped = True
        self._wake()

    async def watch(self) -> None:
        """Report a difference if an entry does not occur again."""
        await self._waiters.watch(lambda: sum(self._done), self._stalled)

    def _stalled(self) -> None:
        if self.is_active:
            self._differ(describe(self.entries[self._reached]), f"nothing for {waiters.STALL_SECONDS:g} s")

    # Positions.

    def head(self, lane: str) -> int | None:
        """Return the position of the next entry of a lane, or ``None`` if there is none."""
        positions, claimed = self._lanes.get(lane, ()), 0
        while claimed < len(positions):
            position = positions[claimed]
            entry = self.entries[position]
            if position in self._claimed:
                claimed += 1
                continue
            if entry.kind == "spent":
                self._charge(entry)
            elif entry.kind != "resumed":
                return position
            self.remove(lane, position)
        return None

    def starts(self, lane: str) -> bool:
        """Return whether a lane is to start another one, so that what it awaited before has ended."""
        started = self._started.get(lane, ())
        while started and (self._done[started[0]] or started[0] in self._claimed):
            started.popleft()
        return bool(started)

    def take(self, lane: str) -> None:
        """Mark the next entry of a lane as repeated."""
        position = self.head(lane)
        assert position is not None  # the caller has seen it
        self.remove(lane, position)

    def remove(self, lane: str, position: int) -> None:
        """Mark an entry of a lane as repeated."""
        self._lanes[lane].remove(position)
        self._done[position] = True
        for action in self._late.pop(position, ()):
            action()
        self.advance()

    def has(self, lane: str, position: int) -> bool:
        """Return whether the entry of a lane at a position has not happened again yet."""
        return position in self._lanes[lane]

    def is_entry(self, position: int, kind: str, key: str) -> bool:
        """Return whether an entry has this kind and key."""
        entry = self.entries[position]
        return entry.kind == kind and entry.key == key

    def is_done(self, position: int) -> bool:
        """Return whether an entry has happened again."""
        return self._done[position]

    def after(self, position: int, action: Callable[[], None]) -> None:
        """Call ``action()`` when the entry at a position has happened again."""
        self._late.setdefault(position, []).append(action)

    def advance(self) -> None:
        """Repeat the external input at the current position, and wake the tasks that wait for this position."""
        while self._reached < len(self.entries):
            entry = self.entries[self._reached]
            if entry.kind in _EXTERNAL and not self._done[self._reached]:
                self._done[self._reached] = True
                self._repeat(entry, self._reached)
            elif entry.kind == "spent" and not self._done[self._reached]:
                # A run that outlives the observer or tool that started it writes into a lane that may have ended.
                self._done[self._reached] = True
                self._lanes[entry.lane].remove(self._reached)
                self._charge(entry)
            if not self._done[self._reached]:
                break
            self._reached += 1
        if not self.is_active:
            self._ended()
        self._wake()

    def _wake(self) -> None:
        self._waiters.wake(self._may_continue)

    def _may_continue(self, waiter: Waiter) -> bool:
        if self._reached >= waiter.position or self.is_stopped:
            return True
        return waiter.wakeup_in is not None and self.was_cut(waiter.wakeup_in)

    async def wait_for(self, position: int, wakeup_in: str | None = None) -> None:
        """Wait until everything before a position has happened again.

        With ``wakeup_in``, it is a wakeup in this lane, and does not wait after a cancellation or a time limit.
        """
        if self._reached < position and not self.is_stopped:
            await self._waiters.wait(position, wakeup_in)

    # Wakeups.

    def wakeup_of(self, lane: str, name: str) -> int | None:
        """Return the position of the next wakeup of a lane that has this name."""
        ahead = self._lanes.get(lane, ()) if self.is_active else ()
        return next((i for i in ahead if self.is_entry(i, "wakeup", name) and i not in self._claimed), None)

    def claim(self, position: int) -> None:
        """Expect a wakeup, for whose turn a task is about to wait."""
        self._claimed.add(position)

    # External input.

    def input_before_next(self, lane: str) -> int | None:
        """Return the position of the external input that the journal has before the next entry of a lane.

        If the lane starts another one before that, such as a tool call, the input may follow after that.
        """
        if not self.is_active:
            return None
        head, inputs = self.head(lane), self._inputs
        while inputs and self._done[inputs[0]]:
            inputs.popleft()
        if not inputs or (head is not None and head < inputs[0]):
            return None
        if self.starts(lane) and self._started[lane][0] < inputs[0]:
            return None
        return inputs[0]

    def entry_before_steering(self, position: int, lane: str) -> int | None:
        """Return the position of the entry after which a run saw the steering message at a position; ``None``: at once.

        If the run was about to stop, hooks of ``on_stop`` had begun, or it would have gone on without them. Otherwise,
        a step may have sent its request without the message.
        """
        begins, is_stopping = self._started.get(lane, ()), False
        for index, entry in enumerate(self.entries):
            name = entry.key.partition(" ")[0] if entry.kind == "event" and entry.lane == lane else ""
            if index < position:
                is_stopping = name == "step_finished" or (is_stopping and name != "step_started")
                continue
            if name == "steered":
                return None
            if _is_step(entry, lane):
                return index
            if is_stopping and (index in begins or _is_of_hook(entry, lane)):
                return None if self._done[index] or entry.kind == "spent" else index
            is_stopping = is_stopping and name not in ("step_started", "signalled")
        return None

    def has_timer(self, lane: str, number: int) -> bool:
        """Return whether a timer of a lane fires in the rest of the journal."""
        return any(
            entry.kind == "timer" and entry.lane == lane and msgspec.json.decode(entry.data) == number
            for entry in self.entries[self._reached :]
        )

    # After a cancellation or a time limit.

    def relax(self, run: str, position: int | None = None) -> None:
        """Allow the events of a run after a position to differ; without a position, from here on.

        The outermost run has reacted when it begins its next step. From there on, its events are compared again.
        """
        entries = self.entries
        if position is None:
            position = self._reached - 1
        until = next((float(i) for i in range(position + 1, len(entries)) if _is_step(entries[i], self.root)), inf)
        self._relaxed.append((position, until, run))
        for index in range(position + 1, len(entries)):
            if entries[index].kind in _SOFT and self.is_relaxed(index):
                self._done[index] = True

    def is_relaxed(self, position: int) -> bool:
        """Return whether an entry may differ."""
        lane = self.entries[position].lane
        nested = self._is_nested(lane)
        return any(
            start < position and (nested or position < end) and is_part_of(lane, run)
            for start, end, run in self._relaxed
        )

    def was_cut(self, lane: str) -> bool:
        """Return whether a cancellation or a time limit has ended the run of a lane, or reached it."""
        return any(is_part_of(lane, run) for _, _, run in self._relaxed)

    def waits_for_end(self, lane: str) -> bool:
        """Return whether a lane whose await had not ended in the journal waits for the end of the journal."""
        nested = self._is_nested(lane)
        is_over = any((nested or end == inf) and is_part_of(lane, run) for _, end, run in self._relaxed)
        return self.is_active and not is_over

    def _is_nested(self, lane: str) -> bool:
        return not self.is_in_root or run_of(lane) != self.root

    # Events.

    def take_text(self, lane: str) -> bool:
        """Mark shown text as repeated. Return false if it is new."""
        head = self.head(lane)
        if head is not None and self.entries[head].kind == "text":
            self.take(lane)
        return head is not None

    def take_event(self, lane: str, key: str) -> bool:
        """Mark an event as repeated, or report that it differs. Return false if it is new."""
        while (head := self.head(lane)) is not None:
            entry = self.entries[head]
            if entry.kind == "event" and entry.key == key:
                self.take(lane)
                return True
            if entry.kind not in _SKIPPED:
                if self.is_relaxed(head):
                    return self._take_relaxed_event(lane, key)
                self._differ(describe(entry), describe(JournalEntry(lane, "event", key)))
                return True
            self.take(lane)
        if (instead := self._instead_of(lane)) is not None:
            self._differ(describe(self.entries[instead]), describe(JournalEntry(lane, "event", key)))
            return True
        return False

    def _take_relaxed_event(self, lane: str, key: str) -> bool:
        positions = self._lanes[lane]
        for position in positions:
            entry = self.entries[position]
            if entry.kind == "event" and entry.key == key:
                positions.remove(position)
                return True
        return False

    def _instead_of(self, lane: str) -> int | None:
        """Return the position of what the outer lane did instead of starting this call or approval, if it did that."""
        outer = parent_of(lane)
        if lane in self._lanes or outer is None or run_of(lane) != run_of(outer) or not self.is_active:
            return None
        head = self.head(outer)
        return None if head is None or self.entries[head].kind in _SKIPPED or self.is_relaxed(head) else head

    # Calls.

    def find_asked(self, lane: str) -> int | None:
        """Return the position of the next entry of a lane, skipping entries about text and observers."""
        while (head := self.head(lane)) is not None:
            entry = self.entries[head]
            if entry.kind in _SKIPPED or (entry.kind == "event" and self.is_relaxed(head)):
                self.take(lane)
            else:
                return head
        return None

    def answer_to(self, lane: str, key: str) -> int | None:
        """Return the position of the answer to a call, whose partial output that was shown before is skipped."""
        answered = next((p for p in self._lanes[lane] if self.is_entry(p, "answered", key)), None)
        if answered is not None:
            marks = [p for p in self._lanes[lane] if p < answered and self.is_entry(p, "resumed", key)]
            for position in [p for p in self._lanes[lane] if marks and p <= marks[-1]]:
                if _is_about_text(self.entries[position]) or position in marks:
                    self.remove(lane, position)
        return answered

    def skip_text(self, lane: str, until: float = inf) -> bool:
        """Skip entries about text before a position. Return whether text was shown."""
        was_shown = False
        while (head := self.head(lane)) is not None and head < until and _is_about_text(self.entries[head]):
            was_shown = was_shown or self.entries[head].kind == "text"
            self.take(lane)
        return was_shown


def _is_step(entry: JournalEntry, run: str) -> bool:
    """Whether an entry is the request of a step of the run with this lane."""
    return entry.kind == "asked" and entry.lane == run and entry.key.startswith("model step ")


def _is_of_hook(entry: JournalEntry, run: str) -> bool:
    """Whether an entry of the run with this lane is by one of its hooks: an end of it, or what it asked for."""
    if entry.kind == "event":
        return entry.lane == run and entry.key.startswith("hook_executed ")
    return entry.lane == run and entry.kind in ("asked", "observed", "wakeup")


def _is_about_text(entry: JournalEntry) -> bool:
    """Whether an entry is about shown text or about observers: recovery may skip it."""
    if entry.kind == "wakeup":
        return entry.key.startswith(f"{ON_TOKEN} ")
    return entry.kind in ("text", "observed") or entry.key.startswith(f"hook_executed {ON_TOKEN} ")


_DIGEST = re.compile(r" #[0-9a-f]{16}$")


def describe(entry: JournalEntry) -> str:
    """Describe an entry for an error message."""
    text = _DIGEST.sub("", entry.key)
    if entry.kind == "event":
        name, _, rest = text.partition(" ")
        if name == "hook_executed":
            return f"hook decision {rest!r}"
        return f"event {name}{f' ({rest})' if rest else ''}"
    if entry.kind == "asked":
        what, _, rest = text.partition(" ")
        return f"a {what} call ({rest})"
    return f"{entry.kind} {text}".strip()
