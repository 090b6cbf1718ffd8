"""The limits of a run, and the budget that counts usage and checks it against them (DESIGN 5.4)."""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from functools import lru_cache, reduce
from types import ModuleType
from typing import Any, NamedTuple, Protocol

import msgspec

from .._base.frozen import Frozen
from .._base.text import is_number
from .._kernel.errors import RegistrationError
from .._kernel.registry import HookStack
from .._kernel.values import StopKind, StopSignal, Usage

DEFAULT_STEPS = 20
"""The step limit of a run that sets no other step limit."""


class Clock(Protocol):
    """A source of time, such as the ``time`` module.

    Optional methods are ``call_later(seconds, callback)``, for time limits, and ``stamp()``, the time for events.
    """

    def time(self) -> float:
        """Return the Unix time."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never decrease."""
        ...


class Limits(Frozen, frozen=True, kw_only=True):
    """Limits of a run or a conversation; ``None`` means no limit. A run stops when a limit is reached (``>=``).

    If several limits apply, the lowest one counts.

    Example::

        Agent("helper", llm=model, limits=Limits(steps=10, cost=0.5))  # for each run
        agent.run("Find it.", limits=Limits(seconds=30))  # for this run
        AgentContext(limits=Limits(cost=5))  # for all runs of a conversation together

    Args:
        steps: model replies in one run. Without a limit a run stops after 20 steps; ``math.inf`` removes this limit.
        tokens: input and output tokens of all model calls.
        seconds: wall-clock time. A call that is still running then is cancelled.
        cost: USD, as far as prices are known.
        tool_calls: executed tool calls.
        soft: a fraction of each limit. Once the usage reaches it, each request contains a note that asks the model to
            finish; ``None`` for no note.

    Raises:
        RegistrationError: a limit is negative or not a number, or ``soft`` is not between 0 and 1.
    """

    steps: int | float | None = None
    tokens: int | float | None = None
    seconds: float | None = None
    cost: float | None = None
    tool_calls: int | float | None = None
    soft: float | None = 0.8

    def __post_init__(self) -> None:
        for meter in METERS:
            value = getattr(self, meter.field)
            if value is None:
                continue
            if not (is_number(value) and (0 <= value <= _LARGEST or value == math.inf)):
                raise RegistrationError(
                    f"Limits({meter.field}={value!r:.80}): a limit must be 0 or more, such as {meter.field}=10; "
                    "None means no limit"
                )
            # Normalise for messages: counts are integers, amounts are floats.
            if meter.digits is None and isinstance(value, float) and value.is_integer():
                msgspec.structs.force_setattr(self, meter.field, int(value))
            elif meter.digits is not None and isinstance(value, int):
                msgspec.structs.force_setattr(self, meter.field, float(value))
        if self.soft is not None and not (is_number(self.soft) and 0 < self.soft < 1):
            raise RegistrationError(
                f"Limits(soft={self.soft!r:.80}): soft must be between 0 and 1, or None for no note to the model"
            )

    def stricter(self, other: Limits) -> Limits:
        """Return the lower value of each limit. ``soft`` only counts if its object sets a limit."""
        lowest = {m.field: _lowest(getattr(self, m.field), getattr(other, m.field)) for m in METERS}
        soft = [each.soft for each in (self, other) if each._finite()] or [self.soft, other.soft]
        return Limits(**lowest, soft=_lowest(*soft))

    def _finite(self) -> bool:
        return any(getattr(self, meter.field) not in (None, math.inf) for meter in METERS)


class Meter(NamedTuple):
    """A quantity that is counted: its limit, its attribute in the budget, and its names in messages."""

    field: str
    used: str
    kind: StopKind
    name: str
    unit: str
    digits: int | None = None

    def reached(self, used: float, limit: float, hook: str = "") -> StopSignal:
        """Return the signal that stops a run at this limit."""
        return StopSignal(self.kind, f"{self.name} reached: {round(used, self.digits)}/{limit}", hook)

    def line(self, used: float, limit: float) -> str:
        """Return the usage as a sentence for the model."""
        return f"You have used {round(used, self.digits)} of {limit} {self.unit}."


METERS = (
    Meter("steps", "steps", "steps_limit", "Step limit", "steps"),
    Meter("tokens", "tokens", "token_limit", "Token limit", "tokens"),
    Meter("seconds", "elapsed", "time_limit", "Time limit", "seconds", 1),
    Meter("cost", "known_cost", "cost_limit", "Cost limit", "USD", 4),
    Meter("tool_calls", "tool_calls", "tool_calls_limit", "Tool call limit", "tool calls"),
)
STEPS, TOKENS, SECONDS, COST, TOOL_CALLS = METERS
_LARGEST = sys.float_info.max
NO_LIMITS = Limits()


class Spending(Frozen, frozen=True, omit_defaults=True):
    """The usage of a budget at one time, which another process continues with. ``seconds`` is the elapsed time."""

    usage: Usage = Usage()
    cost: float = 0.0
    priced: bool = True
    tool_calls: int = 0
    seconds: float = 0.0


class Budget:
    """The usage of a run or a conversation, and its limits.

    Everything except steps is also counted, live, in ``parent``, whose limits apply too. ``cost`` is ``None`` after a
    call of unknown price; the cost limit then only considers known prices.

    Example::

        budget = Budget(Limits(cost=5))
        agent.run("Summarise the report.", ctx=AgentContext(budget=budget))
        print(budget.tokens, budget.left.cost)

    Args:
        limits: the limits.
        parent: a budget, or several, in which the usage also counts.
        clock: the source of time.

    Raises:
        TypeError: ``limits`` is not a :class:`Limits`.
    """

    def __init__(
        self,
        limits: Limits = NO_LIMITS,
        *,
        parent: Budget | tuple[Budget, ...] | None = None,
        clock: Clock | ModuleType = time,
    ) -> None:
        if not isinstance(limits, Limits):
            raise TypeError(f"Budget takes Limits: write Budget(Limits(tokens=20000)), not Budget({limits!r:.80})")
        self.parents: tuple[Budget, ...] = () if parent is None else parent if isinstance(parent, tuple) else (parent,)
        self._own = limits
        self._input = self._output = self._cached = 0
        self._cost, self._priced = 0.0, True
        self.tool_calls = 0
        self.steps = 0
        self.clock: Any = clock
        self._began: float | None = None
        self._earlier = 0.0  # seconds in another process
        self._lock = threading.Lock()
        self._enforce((("", limits),))

    def __repr__(self) -> str:
        return f"Budget(tokens={self.tokens}, cost={self.cost}, tool_calls={self.tool_calls}, steps={self.steps})"

    def child(self, limits: Limits = NO_LIMITS, *, outer: Budget | None = None) -> Budget:
        """Create a budget that also counts in this one, and in ``outer``, the budget of the outer run."""
        parents = (self,) if outer is None or outer in self.chain() else (self, outer)
        return Budget(limits, parent=parents, clock=self.clock)

    def chain(self) -> Iterator[Budget]:
        """Yield this budget and all its parents."""
        yield self
        for parent in self.parents:
            yield from parent.chain()

    # Limits.

    def join(self, declared: tuple[tuple[str, Limits], ...]) -> None:
        """Apply the limits that hooks declare, by the names of the hooks, in addition to the limits of the run.

        A run without a step limit gets the default. It never makes more steps than its parents allow.
        """
        own = self._own
        if own.steps is None and not any(limits.steps is not None for _, limits in declared):
            own = _with_default(own)
        parts = (("", own), *declared)
        for above in [parent.limits for parent in self.parents if parent.limits.steps is not None]:
            parts = (*parts, ("", Limits(steps=above.steps, soft=above.soft)))
        self._enforce(parts)

    def _enforce(self, parts: tuple[tuple[str, Limits], ...]) -> None:
        self._parts = parts
        self.limits, self._hard, self._soft = _in_force(tuple([limits for _, limits in parts]))

    @property
    def without_hooks(self) -> Limits:
        """The limits that no hook declared."""
        return _in_force(tuple([limits for name, limits in self._parts if not name])).limits

    @property
    def limited(self) -> bool:
        """Whether anything except steps is limited, here or in a parent."""
        return bool(self._hard) or (bool(self.parents) and any(parent.limited for parent in self.parents))

    def exceeded(self, *, steps: bool = True) -> StopSignal | None:
        """Return a signal for the first limit that is reached, here or in a parent. Steps only count here."""
        if steps and self.limits.steps is not None and self.steps >= self.limits.steps:
            return self._signal(STEPS)
        for meter, limit in self._hard:
            if getattr(self, meter.used) >= limit:
                return self._signal(meter)
        for parent in self.parents:
            if (parent._hard or parent.parents) and (signal := parent.exceeded(steps=False)) is not None:
                return signal
        return None

    def out_of_time(self) -> StopSignal | None:
        """Return a signal if a time limit is reached, here or in a parent."""
        if self.limits.seconds is not None and self.elapsed >= self.limits.seconds:
            return self._signal(SECONDS)
        return next(filter(None, [parent.out_of_time() for parent in self.parents]), None)

    def _signal(self, meter: Meter) -> StopSignal:
        limit = getattr(self.limits, meter.field)
        hook = next((name for name, part in self._parts if getattr(part, meter.field) == limit), "")
        return meter.reached(getattr(self, meter.used), limit, hook)

    @property
    def left(self) -> Limits:
        """The remaining amounts, considering the parents; ``None`` means no limit."""
        own = [(m.field, getattr(self.limits, m.field), getattr(self, m.used)) for m in METERS]
        left = Limits(**{field: max(0, limit - used) for field, limit, used in own if limit is not None})
        for parent in self.parents:
            left = left.stricter(msgspec.structs.replace(parent.left, steps=None))
        return left

    def seconds_left(self) -> float | None:
        """Return the remaining time in seconds; ``None`` means no limit."""
        left = None if self.limits.seconds is None else max(0.0, self.limits.seconds - self.elapsed)
        for parent in self.parents:
            left = _lowest(left, parent.seconds_left())
        return left

    def tool_calls_left(self) -> bool:
        """Whether another tool call may run."""
        own = self.limits.tool_calls is None or self.tool_calls < self.limits.tool_calls
        for parent in self.parents:
            own = own and parent.tool_calls_left()
        return own

    def note(self) -> str:
        """Return a note for the model if a limit is near, here or in a parent, else an empty string."""
        if not self._soft and not self.parents:
            return ""
        lines: dict[str, None] = {}
        self._collect_notes(lines, steps=self.steps - 1)  # the current step is already counted
        return wrap_up_note(lines) if lines else ""

    def _collect_notes(self, lines: dict[str, None], steps: int = 0) -> None:
        for meter, limit, own, share in self._soft:
            used = steps if meter is STEPS else getattr(self, meter.used)
            if used / own >= share:
                lines[meter.line(used, limit)] = None
        for parent in self.parents:
            parent._collect_notes(lines)  # steps are left out: they belong to another run

    # Usage.

    def begin(self) -> None:
        """Start the clock if it is not running."""
        if self._began is None:
            self._began = self.clock.monotonic()
        for parent in self.parents:
            parent.begin()

    @property
    def elapsed(self) -> float:
        """Seconds since the first run started."""
        return self._earlier + (0.0 if self._began is None else self.clock.monotonic() - self._began)

    @property
    def usage(self) -> Usage:
        """The tokens of all model calls."""
        return Usage(self._input, self._output, self._cached)

    @property
    def cost(self) -> float | None:
        """The cost in USD, or ``None`` after a call of unknown price."""
        return self._cost if self._priced else None

    @property
    def known_cost(self) -> float:
        """The cost in USD of the calls with a known price, which the limit considers."""
        return self._cost

    @property
    def tokens(self) -> int:
        """Input and output tokens of all model calls."""
        return self._input + self._output

    def charge(self, usage: Usage, cost: float | None) -> None:
        """Count one model call."""
        with self._lock:
            self._input += usage.input_tokens
            self._output += usage.output_tokens
            self._cached += usage.cached_tokens
            if cost is None:
                self._priced = False
            else:
                self._cost += cost
        for parent in self.parents:
            parent.charge(usage, cost)

    def count_tool_call(self, calls: int = 1) -> None:
        """Count one executed tool call, or several."""
        with self._lock:
            self.tool_calls += calls
        for parent in self.parents:
            parent.count_tool_call(calls)

    def count_step(self) -> None:
        """Count one step in this budget only."""
        self.steps += 1

    @property
    def spending(self) -> Spending:
        """The usage so far."""
        return Spending(self.usage, self._cost, self._priced, self.tool_calls, self.elapsed)

    def resume(self, spent: Spending) -> None:
        """Continue with what was spent in another process. A budget that has been used here knows it already."""
        if self.spending == Spending():
            self.charge(spent.usage, spent.cost)
            self.count_tool_call(spent.tool_calls)
            self._priced, self._earlier = spent.priced, spent.seconds


class BudgetView:
    """A read-only view of a budget: ``ctx.budget``."""

    __slots__ = ("_budget",)

    def __init__(self, budget: Budget) -> None:
        self._budget = budget

    def __repr__(self) -> str:
        return repr(self._budget)

    @property
    def limits(self) -> Limits:
        """The limits of this run. Those of the conversation and of outer runs apply in addition."""
        return self._budget.limits

    @property
    def left(self) -> Limits:
        """The remaining amounts, such as ``ctx.budget.left.tokens``; ``None`` means no limit."""
        return self._budget.left

    @property
    def usage(self) -> Usage:
        """The tokens of all model calls."""
        return self._budget.usage

    @property
    def tokens(self) -> int:
        """Input and output tokens of all model calls."""
        return self._budget.tokens

    @property
    def cost(self) -> float | None:
        """The cost in USD, or ``None`` after a call of unknown price."""
        return self._budget.cost

    @property
    def known_cost(self) -> float:
        """The cost in USD of the calls with a known price, which the limit considers."""
        return self._budget.known_cost

    @property
    def tool_calls(self) -> int:
        """The number of executed tool calls."""
        return self._budget.tool_calls

    @property
    def steps(self) -> int:
        """The number of started steps in this run."""
        return self._budget.steps

    @property
    def elapsed(self) -> float:
        """Seconds since the first run started."""
        return self._budget.elapsed

    def exceeded(self, *, steps: bool = True) -> StopSignal | None:
        """Return a signal for the first limit that is reached, or ``None``."""
        return self._budget.exceeded(steps=steps)


def declared_limits(
    stacks: Iterable[HookStack], allowed_plugins: tuple[str, ...] | None
) -> tuple[tuple[str, Limits], ...]:
    """Return the limits that hooks declare in an attribute ``limits``, with the names of the hooks.

    Hooks of plugins that are not allowed do not count, and neither do observers, which decide nothing.
    """
    entries = [entry for stack in stacks for layer in stack.layers for entry in layer]
    found = [
        (entry.name, entry.hook.limits)
        for entry in entries
        if isinstance(getattr(entry.hook, "limits", None), Limits)
        and entry.phase != "observe"
        and (entry.plugin is None or allowed_plugins is None or entry.plugin in allowed_plugins)
    ]
    return tuple(dict.fromkeys(found))


def wrap_up_note(lines: Iterable[str]) -> str:
    """Return the note for the model with these lines."""
    return "\n".join(lines) + " Wrap up now: finish with what you have and give your final answer."


def _lowest(*values: float | None) -> float | None:
    return min((value for value in values if value is not None), default=None)


@lru_cache(maxsize=256)
def _with_default(limits: Limits) -> Limits:
    return msgspec.structs.replace(limits, steps=DEFAULT_STEPS)


class _InForce(NamedTuple):
    """The combination of several limits.

    ``hard`` are the limits without steps; ``soft`` are the limits that the model is notified about, with the share.
    """

    limits: Limits
    hard: tuple[tuple[Meter, float], ...]
    soft: tuple[tuple[Meter, float, float, float], ...]


@lru_cache(maxsize=256)
def _in_force(parts: tuple[Limits, ...]) -> _InForce:
    merged = reduce(Limits.stricter, parts)
    endless = [meter.field for meter in METERS if getattr(merged, meter.field) == math.inf]
    limits = msgspec.structs.replace(merged, **dict.fromkeys(endless)) if endless else merged
    held = [(meter, limit) for meter in METERS if (limit := getattr(limits, meter.field)) is not None]
    soft = [
        (meter, limit, own, part.soft)
        for meter, limit in held
        for part in parts
        if limit and (own := getattr(part, meter.field)) and part.soft is not None
    ]
    return _InForce(limits, tuple([each for each in held if each[0] is not STEPS]), tuple(soft))
