"""Limit the steps, tokens, time, cost and tool calls of a run.

Each hook declares :class:`hookline.Limits`, which the budget of the run enforces.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, ClassVar

from .._base.text import is_number
from .._kernel.errors import RegistrationError
from .._kernel.points import BEFORE_LLM, BEFORE_STEP, Point
from .._kernel.results import HookResult
from .._kernel.state import AgentState
from .._kernel.validation import check_integer, check_names, check_positive
from .._kernel.values import Message
from .._run.budget import COST, NO_LIMITS, SECONDS, STEPS, TOKENS, TOOL_CALLS, Limits, Meter, wrap_up_note
from ..plugins.plugin import Plugin
from .finish_reason import FinishReasonHook


class _LimitHook:
    """Base of the limit hooks. The run's budget enforces ``limits`` and adds the notes for the model."""

    points: frozenset[Point[Any]] = frozenset({BEFORE_STEP})
    priority = 200
    meter: ClassVar[Meter]

    def __init__(self, limit: float, soft_limit: float | None) -> None:
        self.limit, self.soft_limit = limit, soft_limit
        self.limits = Limits(**{self.meter.field: limit}, soft=soft_limit)

    def used(self, ctx: Any) -> float:
        """Return the amount used so far."""
        return getattr(ctx.budget, self.meter.used)  # type: ignore[no-any-return]

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Stop at the limit. This is needed in ``shadow`` mode, where the budget does not enforce the limit."""
        used = self.used(ctx)
        if used < self.limit:
            return None
        signal = self.meter.reached(used, self.limit)
        return HookResult.stop(signal.message, kind=signal.kind)


class StepsLimitHook(_LimitHook):
    """Stops a run after ``max_steps`` steps, and asks the model to finish shortly before.

    Args:
        max_steps: maximum number of steps.
        step_counter: function that counts steps from the state; by default the run's own count.
        soft_limit: fraction of the limit from which each request asks the model to finish; ``None`` to disable.

    Raises:
        RegistrationError: the limit is not a whole number above 0, or ``step_counter`` is not callable.
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
                raise RegistrationError(f"step_counter must be a function of the state, not {step_counter!r}")
            # The budget cannot count these steps, so this hook stops the run and adds the note itself.
            self.limits, self.points = NO_LIMITS, frozenset({BEFORE_STEP, BEFORE_LLM})

    def used(self, ctx: Any) -> float:
        """Return the number of steps, from ``step_counter`` if there is one."""
        if self.step_counter is None:
            return super().used(ctx)
        count = self.step_counter(ctx.state)
        if not is_number(count):
            raise TypeError(f"step_counter returned {count!r}; it must return a number")
        return count

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Stop at the limit; with a ``step_counter``, add the note to requests near the limit."""
        if point != BEFORE_LLM:
            return super().__call__(point, ctx, payload)
        if self.step_counter is None or self.soft_limit is None or payload.purpose != "step":
            return None
        if (used := self.used(ctx)) / self.limit < self.soft_limit:
            return None
        note = Message("user", wrap_up_note([STEPS.line(used, self.limit)]))
        return HookResult.replace({"messages": (*payload.messages, note)}, reason="the step limit is near")


class TokenUsageLimitHook(_LimitHook):
    """Stops a run after ``max_total_tokens`` tokens, and asks the model to finish shortly before.

    Input and output of all model calls count, including retries and calls by hooks and subagents.

    Args:
        max_total_tokens: maximum number of tokens.
        soft_limit: fraction of the limit from which each request asks the model to finish; ``None`` to disable.

    Raises:
        RegistrationError: the limit is not a whole number above 0.
    """

    meter = TOKENS

    def __init__(self, max_total_tokens: int, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(check_integer(max_total_tokens, "max_total_tokens"), soft_limit)


class ExecutionTimeLimitHook(_LimitHook):
    """Stops a run after ``max_seconds`` seconds, and asks the model to finish shortly before.

    Calls that are in progress at that time are cancelled.

    Args:
        max_seconds: maximum duration of the run.
        soft_limit: fraction of the limit from which each request asks the model to finish; ``None`` to disable.

    Raises:
        RegistrationError: the limit is not a number above 0.
    """

    meter = SECONDS

    def __init__(self, max_seconds: float, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(check_positive(max_seconds, "max_seconds"), soft_limit)


class CostLimitHook(_LimitHook):
    """Stops a run that has cost ``max_cost``, and asks the model to finish shortly before.

    All model calls count, as for tokens. Calls of unknown price count as free.

    Args:
        max_cost: maximum cost in USD.
        soft_limit: fraction of the limit from which each request asks the model to finish; ``None`` to disable.

    Raises:
        RegistrationError: the limit is not a number above 0.
    """

    meter = COST

    def __init__(self, max_cost: float, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(check_positive(max_cost, "max_cost"), soft_limit)


class ToolCallsLimitHook(_LimitHook):
    """Stops a run after ``max_tool_calls`` tool calls, and asks the model to finish shortly before.

    If a batch of calls exceeds the limit, the first ones run and the others are cancelled.

    Args:
        max_tool_calls: maximum number of calls that run; retries count, blocked calls do not.
        soft_limit: fraction of the limit from which each request asks the model to finish; ``None`` to disable.

    Raises:
        RegistrationError: the limit is not a whole number above 0.
    """

    meter = TOOL_CALLS

    def __init__(self, max_tool_calls: int, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(check_integer(max_tool_calls, "max_tool_calls"), soft_limit)


def limits_plugin(
    max_steps: int | None = 20,
    max_tokens: int | None = 32768,
    max_execution_time: float | None = 300.0,
    max_cost: float | None = None,
    max_tool_calls: int | None = None,
    finish_reasons: Iterable[str] | None = (),
    *,
    soft_limit: float | None = 0.8,
) -> Plugin:
    """Create a plugin called "limits" that stops runs at the usual limits; ``None`` disables a limit.

    The step limit also becomes the agent's own limit, unless the agent has a stricter one. So it applies even to runs
    whose ``allowed_plugins`` exclude the plugin. ``max_steps=None`` removes the default limit of 20 steps.

    Example::

        agent = Agent("a", llm=model, tools=[search], plugins=[limits_plugin(max_steps=50, max_cost=1.0)])

    Args:
        max_steps: maximum number of steps.
        max_tokens: maximum number of input and output tokens of all model calls.
        max_execution_time: maximum duration in seconds.
        max_cost: maximum cost in USD.
        max_tool_calls: maximum number of tool calls that run.
        finish_reasons: values of :data:`hookline.models.FINISH_REASONS` that complete the run.
        soft_limit: fraction of a limit from which each request asks the model to finish; ``None`` to disable.

    Raises:
        RegistrationError: a limit or a finish reason is invalid.
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

    return Plugin("limits", hooks, configure=configure)
