"""Limits as hooks: each one declares :class:`hookline.Limits`, which the ledger of a run counts and checks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from .._base.text import is_number
from .._kernel.errors import RegistrationError
from .._kernel.points import BEFORE_LLM, BEFORE_STEP, Point
from .._kernel.results import HookResult
from .._kernel.state import AgentState
from .._kernel.values import Message
from .._run.budget import COST, NO_LIMITS, SECONDS, STEPS, TOKENS, TOOL_CALLS, Limits, Meter, wrap_up_note
from ..plugins.plugin import Plugin
from ._support.validation import check_integer, check_names, check_positive
from .finish_reason import FinishReasonHook


class _LimitHook:
    """A limit for the runs that it is registered for. The run's ledger enforces ``limits`` and tells the model."""

    points: frozenset[Point[Any]] = frozenset({BEFORE_STEP})
    priority = 200
    meter: ClassVar[Meter]

    def __init__(self, limit: float, soft_limit: float | None) -> None:
        self.limit, self.soft_limit = limit, soft_limit
        self.limits = Limits(**{self.meter.field: limit}, soft=soft_limit)

    def used(self, ctx: Any) -> float:
        """What counts against the limit so far."""
        return getattr(ctx.budget, self.meter.used)  # type: ignore[no-any-return]

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Stop at the limit, where the ledger has not: under ``shadow``, it does not know of it."""
        used = self.used(ctx)
        if used < self.limit:
            return None
        signal = self.meter.reached(used, self.limit)
        return HookResult.stop(signal.message, kind=signal.kind)


class StepsLimitHook(_LimitHook):
    """Stops a run after a number of steps, and asks the model to wrap up before.

    Args:
        max_steps: how many steps may run.
        step_counter: counts them from the state instead; the steps that the run began if left out.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no whole number above 0, or a counter that cannot be called.
    """

    meter = STEPS

    def __init__(
        self,
        max_steps: int,
        step_counter: Callable[[AgentState], int] | None = None,
        *,
        soft_limit: float | None = 0.8,
    ) -> None:
        super().__init__(check_integer(max_steps, "max_steps"), soft_limit)
        self.step_counter = step_counter
        if step_counter is not None:
            if not callable(step_counter):
                raise RegistrationError(f"step_counter is a function of the state, not {step_counter!r}")
            # The ledger knows nothing of what it counts: stop and note are left to this hook.
            self.limits, self.points = NO_LIMITS, frozenset({BEFORE_STEP, BEFORE_LLM})

    def used(self, ctx: Any) -> float:
        """Steps, or what the counter gives."""
        if self.step_counter is None:
            return super().used(ctx)
        count = self.step_counter(ctx.state)
        if not is_number(count):
            raise TypeError(f"step_counter gave {count!r}; it must give a number")
        return count

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Stop at the limit; with a counter of its own, put a note into requests that come near it."""
        if point != BEFORE_LLM:
            return super().__call__(point, ctx, payload)
        if self.step_counter is None or self.soft_limit is None or payload.purpose != "step":
            return None
        if (used := self.used(ctx)) / self.limit < self.soft_limit:
            return None
        note = Message("user", wrap_up_note([STEPS.line(used, self.limit)]))
        return HookResult.replace({"messages": (*payload.messages, note)}, reason="the step limit is near")


class TokenUsageLimitHook(_LimitHook):
    """Stops a run that has used a number of tokens, and asks the model to wrap up before.

    Input and output of all model calls count: retries, those of hooks, and those of subagents.

    Args:
        max_total_tokens: how many tokens may be used.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no whole number above 0.
    """

    meter = TOKENS

    def __init__(self, max_total_tokens: int, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(check_integer(max_total_tokens, "max_total_tokens"), soft_limit)


class ExecutionTimeLimitHook(_LimitHook):
    """Stops a run that has taken a number of seconds, and asks the model to wrap up before.

    What is being waited for when the time is up is broken off.

    Args:
        max_seconds: how long the run may take.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no number above 0.
    """

    meter = SECONDS

    def __init__(self, max_seconds: float, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(check_positive(max_seconds, "max_seconds"), soft_limit)


class CostLimitHook(_LimitHook):
    """Stops a run that has cost an amount of money, and asks the model to wrap up before.

    All model calls count, as for tokens. Calls whose price nobody knows count as free.

    Args:
        max_cost: USD.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no number above 0.
    """

    meter = COST

    def __init__(self, max_cost: float, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(check_positive(max_cost, "max_cost"), soft_limit)


class ToolCallsLimitHook(_LimitHook):
    """Stops a run that has made a number of tool calls, and asks the model to wrap up before.

    Of a batch that would go past the limit, the calls within it run, and the others are cancelled.

    Args:
        max_tool_calls: how many calls may run; retries count, blocked calls do not.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no whole number above 0.
    """

    meter = TOOL_CALLS

    def __init__(self, max_tool_calls: int, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(check_integer(max_tool_calls, "max_tool_calls"), soft_limit)


def guards(
    max_steps: int | None = 20,
    max_tokens: int | None = 32768,
    max_execution_time: float | None = 300.0,
    max_cost: float | None = None,
    max_tool_calls: int | None = None,
    finish_reasons: Iterable[str] | None = (),
    *,
    soft_limit: float | None = 0.8,
) -> Plugin:
    """A plugin called "guards" that stops runs at the usual limits; ``None`` switches one off.

    The step limit becomes the agent's own too, unless the agent has a stricter one: so it holds even where
    ``allowed_plugins`` leaves the plugin out. ``max_steps=None`` lifts the 20 steps of an agent without limits.

    Args:
        max_steps: steps.
        max_tokens: input and output tokens of all model calls.
        max_execution_time: seconds.
        max_cost: USD.
        max_tool_calls: tool calls that run.
        finish_reasons: some of :data:`hookline.models.FINISH_REASONS`, which complete the run.
        soft_limit: from this share of a limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that makes no sense, or an unknown finish reason.
    """
    given: list[tuple[Any, float | None]] = [
        (StepsLimitHook, max_steps),
        (TokenUsageLimitHook, max_tokens),
        (ExecutionTimeLimitHook, max_execution_time),
        (CostLimitHook, max_cost),
        (ToolCallsLimitHook, max_tool_calls),
    ]
    hooks = [kind(limit, soft_limit=soft_limit) for kind, limit in given if limit is not None]
    reasons = () if finish_reasons is None else check_names(finish_reasons, "finish_reasons", 0)
    if reasons:
        hooks.append(FinishReasonHook(reasons))

    steps = Limits(steps=math.inf if max_steps is None else max_steps, soft=soft_limit)

    def configure(agent: Any) -> None:
        agent.limits = agent.limits.stricter(steps)

    return Plugin("guards", hooks, configure=configure)
