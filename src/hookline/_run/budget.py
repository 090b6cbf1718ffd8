"""The ledger of a run: what it used, what it may use, and whose ledger it counts in."""

from __future__ import annotations

import threading
import time
from types import ModuleType
from typing import Any, Protocol

from .._kernel.values import StopKind, StopSignal, Usage


class Clock(Protocol):
    """Where time comes from; the ``time`` module is one.

    It may also have ``call_later(seconds, callback)``, for time limits, and ``stamp()``, the time that events carry.
    """

    def time(self) -> float:
        """Unix time."""

    def monotonic(self) -> float:
        """Seconds that never run backwards."""


class _Default(int):
    """A number that nobody chose, so that a plugin may put another in its place."""


DEFAULT_STEPS = _Default(20)
"""The step limit of an agent that was given none; it is not the same object as a 20 that was given."""

_NO_LIMITS = (None, None, None, None)


class Budget:
    """Tokens, cost, time, tool calls and steps used so far, with optional limits.

    Everything but steps also counts, live, in ``parent``, whose limits hold as well. ``cost`` is
    ``None`` once a call of unknown price was made; its limit then looks at what is known. Limits are
    reached at ``>=``.

    Raises:
        ValueError: a limit that is not a number, 0 or more.
    """

    def __init__(
        self,
        *,
        max_steps: int | None = None,
        max_tokens: int | None = None,
        max_seconds: float | None = None,
        max_cost: float | None = None,
        max_tool_calls: int | None = None,
        parent: Budget | None = None,
        clock: Clock | ModuleType = time,
    ) -> None:
        self.max_steps, self.max_tokens, self.max_seconds = max_steps, max_tokens, max_seconds
        self.max_cost, self.max_tool_calls = max_cost, max_tool_calls
        limits = (max_tokens, max_seconds, max_cost, max_tool_calls)
        self._limited = limits != _NO_LIMITS
        for value in (max_steps, *limits):
            if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float)) or not value >= 0):
                raise ValueError(f"a limit is a number, 0 or more, or None for none; not {value!r}")
        self.parent = parent
        self._input = self._output = self._cached = 0
        self._cost, self._priced = 0.0, True
        self.tool_calls = 0
        self.steps = 0
        self.clock: Any = clock
        self._began: float | None = None
        self._lock: threading.Lock | None = None  # there is one once several runs count here

    def __repr__(self) -> str:
        return f"Budget(tokens={self.tokens}, cost={self.cost}, tool_calls={self.tool_calls}, steps={self.steps})"

    def child(self, *, max_steps: int | None = None) -> Budget:
        """A ledger that counts in this one too."""
        self._lock = self._lock or threading.Lock()
        return Budget(max_steps=max_steps, parent=self, clock=self.clock)

    @property
    def limited(self) -> bool:
        """Whether anything but steps is limited, here or above."""
        return self._limited or (self.parent is not None and self.parent.limited)

    def begin(self) -> None:
        """Start the clock, if it is not running."""
        if self._began is None:
            self._began = self.clock.monotonic()
        if self.parent is not None:
            self.parent.begin()

    @property
    def elapsed(self) -> float:
        """Seconds since the first run on this ledger began."""
        return 0.0 if self._began is None else self.clock.monotonic() - self._began

    def seconds_left(self) -> float | None:
        """How long the work on this ledger may still take; ``None`` for as long as it likes."""
        own = None if self.max_seconds is None else max(0.0, self.max_seconds - self.elapsed)
        above = None if self.parent is None else self.parent.seconds_left()
        return own if above is None else above if own is None else min(own, above)

    def out_of_time(self) -> StopSignal | None:
        """The time limit as a signal, if it is reached, here or above."""
        if self._late():
            return _reached("time_limit", "Time limit", round(self.elapsed, 1), self.max_seconds or 0)
        return None if self.parent is None else self.parent.out_of_time()

    def _late(self) -> bool:
        return self.max_seconds is not None and self.elapsed >= self.max_seconds

    @property
    def usage(self) -> Usage:
        """The tokens of all model calls."""
        return Usage(self._input, self._output, self._cached)

    @property
    def cost(self) -> float | None:
        """USD spent, or ``None`` once a call of unknown price was made."""
        return self._cost if self._priced else None

    @property
    def known_cost(self) -> float:
        """USD spent on the calls whose price is known: what the limit looks at."""
        return self._cost

    @property
    def tokens(self) -> int:
        """Input and output tokens of all model calls."""
        return self._input + self._output

    def charge(self, usage: Usage, cost: float | None) -> None:
        """Count one model call."""
        self._add(usage.input_tokens, usage.output_tokens, usage.cached_tokens, cost, 0)

    def count_tool_call(self) -> None:
        """Count one tool call that runs."""
        self._add(0, 0, 0, 0.0, 1)

    def _add(self, input: int, output: int, cached: int, cost: float | None, tool_calls: int) -> None:
        if self._lock is not None:
            self._lock.acquire()
        self._input += input
        self._output += output
        self._cached += cached
        self.tool_calls += tool_calls
        self._cost += cost or 0.0
        self._priced = self._priced and cost is not None
        if self._lock is not None:
            self._lock.release()
        if self.parent is not None:
            self.parent._add(input, output, cached, cost, tool_calls)

    def count_step(self) -> None:
        """Count one step, here only."""
        self.steps += 1

    def tool_calls_left(self) -> bool:
        """Whether one more tool call may run."""
        own = self.max_tool_calls is None or self.tool_calls < self.max_tool_calls
        return own and (self.parent is None or self.parent.tool_calls_left())

    def exceeded(self, *, steps: bool = True) -> StopSignal | None:
        """The first limit that is reached, here or above, as a signal; ``steps`` counts here only."""
        if steps and self.max_steps is not None and self.steps >= self.max_steps:
            return _reached("steps_limit", "Step limit", self.steps, self.max_steps)
        if not self._limited:
            return None if self.parent is None else self.parent.exceeded(steps=False)
        if self.max_tokens is not None and self.tokens >= self.max_tokens:
            return _reached("token_limit", "Token limit", self.tokens, self.max_tokens)
        if self._late():
            return self.out_of_time()
        if self.max_cost is not None and self._cost >= self.max_cost:
            return _reached("cost_limit", "Cost limit", round(self._cost, 4), self.max_cost)
        if self.max_tool_calls is not None and self.tool_calls >= self.max_tool_calls:
            return _reached("tool_calls_limit", "Tool call limit", self.tool_calls, self.max_tool_calls)
        return self.parent.exceeded(steps=False) if self.parent is not None else None


def _reached(kind: StopKind, what: str, used: float, limit: float) -> StopSignal:
    return StopSignal(kind, f"{what} reached: {used}/{limit}")
