"""The stop switch of a project or a fleet: while it is on, no run begins a call (DESIGN 6.19)."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from time import monotonic, sleep

from .._base.frozen import Frozen
from .._base.text import error_text
from .._kernel.values import StopSignal
from .events import log

POLL_SECONDS = 1.0
"""Interval in seconds at which the switch is read while runs use it."""
GRACE_SECONDS = 10.0
"""Seconds for which runs go on with what was read last if the switch cannot be read. Then nothing new begins."""


class Halt(Frozen, frozen=True):
    """A halt: why, who switched it on, and when. ``released`` is when it was switched off, and ``released_by`` by whom.

    ``problem`` is set if the switch cannot be read, so that nobody knows whether it is on. It may name files, so only
    operators should see it.
    """

    reason: str = ""
    by: str = ""
    at: float = 0.0
    released: float | None = None
    released_by: str = ""
    problem: str = ""

    @property
    def text(self) -> str:
        """The halt as one sentence for people and models."""
        if self.problem:
            return "halted because the stop switch cannot be read"
        return f"halted{f' by {self.by}' if self.by else ''}{f': {self.reason}' if self.reason else ''}"


class HaltSwitch:
    """Tells runs whether they are halted. A subclass reads the switch.

    While runs use the switch, a thread reads it each second, so that a check in a run costs nothing. If it cannot be
    read for 10 s, it counts as switched on: nobody can switch off agents whose switch is broken.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        """Held while the switch is read."""
        self._users = 0
        self._thread: threading.Thread | None = None
        self._found: Halt | None = None
        self._read_at: float | None = None
        """Monotonic time at which the last successful reading began."""
        self._tried_at = float("-inf")
        """Monotonic time at which the last reading began."""
        self._problem = "it has not been read yet"

    def read(self) -> Halt | None:
        """Read the switch: return the halt, or ``None``. It may block, and raises an error if that is not possible."""
        raise NotImplementedError

    def current(self) -> Halt | None:
        """Return the halt, or ``None``. The switch is read again if that was more than a second ago; it may block."""
        if not self._is_fresh:
            self._refresh()
        return self._known()

    async def current_async(self) -> Halt | None:
        """Do the same as :meth:`current` without blocking the event loop."""
        return self._known() if self._is_fresh else await asyncio.to_thread(self.current)

    def latest(self) -> Halt | None:
        """Return the halt that was read last, or ``None``. It does not block while :meth:`watched` is in use."""
        now = monotonic()
        if now - self._tried_at > GRACE_SECONDS and not self._turn.locked():
            self._refresh()  # the thread had no time, as in a paused process
            now = monotonic()
        read_at = self._read_at
        return self._found if read_at is not None and now - read_at <= GRACE_SECONDS else self._known()

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Read the switch each second inside the block, beginning now."""
        with self._lock:
            self._users += 1
        try:
            self.current()
            self._watch()
            yield
        finally:
            with self._lock:
                self._users -= 1

    def _watch(self) -> None:
        with self._lock:
            if self._thread is None or not self._thread.is_alive():  # a forked process does not have the thread
                self._thread = threading.Thread(target=self._keep_reading, name="hookline-halt", daemon=True)
                self._thread.start()

    def _keep_reading(self) -> None:
        while True:
            sleep(POLL_SECONDS)
            with self._lock:
                if not self._users:
                    self._thread = None
                    return
            self._refresh()

    def _refresh(self) -> None:
        """Read the switch, unless another thread has done that less than a second ago.

        A reading by another thread is waited for, but not for ever: a forked process may have inherited the lock.
        """
        is_mine = self._turn.acquire(timeout=GRACE_SECONDS)
        try:
            if self._is_due:
                self._try_to_read()
        finally:
            if is_mine:
                self._turn.release()

    def _try_to_read(self) -> None:
        began = self._tried_at = monotonic()
        try:
            found = self.read()
        except Exception as error:  # noqa: BLE001 - whatever it is, nobody knows whether runs are halted
            problem = error_text(error) or type(error).__name__
            if problem != self._problem:
                log.error("the stop switch cannot be read: %s", problem)
            self._problem = problem
        else:
            self._note(found, began)

    def _note(self, found: Halt | None, at: float) -> None:
        """Note what was true at a monotonic time. What another thread has read or switched since then counts more."""
        with self._lock:
            if self._read_at is None or at >= self._read_at:
                self._found, self._read_at, self._problem = found, at, ""

    @property
    def _is_due(self) -> bool:
        return monotonic() - self._tried_at > POLL_SECONDS

    @property
    def _is_fresh(self) -> bool:
        return self._is_known and not self._is_due  # otherwise another thread may be reading it for the first time

    @property
    def _is_known(self) -> bool:
        return self._read_at is not None and monotonic() - self._read_at <= GRACE_SECONDS

    def _known(self) -> Halt | None:
        return self._found if self._is_known else Halt(problem=self._problem or "its database does not answer")


def find_halt(switches: Sequence[HaltSwitch]) -> Halt | None:
    """Return the first halt of these switches, or ``None``, without blocking."""
    for switch in switches:
        if (halt := switch.latest()) is not None:
            return halt
    return None


def halt_signal(halt: Halt) -> StopSignal:
    """Return the signal that stops a run because of a halt."""
    return StopSignal("halted", halt.text)


def watched(switches: Sequence[HaltSwitch]) -> AbstractContextManager[None]:
    """Read these switches each second inside the block, beginning now."""
    return _all_watched(switches) if switches else nullcontext()


@contextmanager
def _all_watched(switches: Sequence[HaltSwitch]) -> Iterator[None]:
    with ExitStack() as stack:
        for switch in switches:
            stack.enter_context(switch.watched())
        yield
