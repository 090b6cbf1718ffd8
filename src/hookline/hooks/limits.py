"""Limits as hooks: each one declares :class:`hookline.Limits`, which the ledger of a run counts and checks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .._base.names import is_number
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelRequest
from .._kernel.points import BEFORE_LLM, BEFORE_STEP
from .._kernel.results import HookResult
from .._kernel.state import AgentState
from .._kernel.values import Message
from .._run.budget import NO_LIMITS, STEPS, Limits, wrap_up
from .checks import positive, whole


class _LimitHook:
    """A limit for the runs that it is registered for. The run's ledger enforces ``limits`` and tells the model."""

    points = frozenset({BEFORE_STEP})
    priority = 200

    def __init__(self, limit: float, limits: Limits) -> None:
        self.limit, self.soft_limit, self.limits = limit, limits.soft, limits

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Let everything pass: the ledger has looked already."""


class StepsLimitHook(_LimitHook):
    """Stops a run after a number of steps, and asks the model to wrap up before.

    Args:
        max_steps: how many steps may run.
        step_counter: counts them from the state instead; the steps that the run began if left out.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no whole number above 0, or a counter that cannot be called.
    """

    def __init__(
        self,
        max_steps: int,
        step_counter: Callable[[AgentState], int] | None = None,
        *,
        soft_limit: float | None = 0.8,
    ) -> None:
        limits = Limits(steps=whole(max_steps, "max_steps"), soft=soft_limit)
        super().__init__(max_steps, limits if step_counter is None else NO_LIMITS)
        self.soft_limit, self.step_counter = soft_limit, step_counter
        if step_counter is not None:
            if not callable(step_counter):
                raise RegistrationError(f"step_counter is a function of the state, not {step_counter!r}")
            self.points = frozenset({BEFORE_STEP, BEFORE_LLM})  # the ledger knows nothing of what it counts

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """With a counter of its own: stop at the limit, and put a note into requests that come near it."""
        if self.step_counter is None:
            return None
        used = self.step_counter(ctx.state)
        if not is_number(used):
            raise TypeError(f"step_counter gave {used!r}; it must give a number")
        if point == BEFORE_STEP and used >= self.limit:
            signal = STEPS.reached(used, self.limit)
            return HookResult.stop(signal.message, kind=signal.kind)
        near = self.soft_limit is not None and used / self.limit >= self.soft_limit
        if not (near and isinstance(payload, ModelRequest) and payload.purpose == "step"):
            return None
        note = Message("user", wrap_up([STEPS.line(used, self.limit)]))
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

    def __init__(self, max_total_tokens: int, *, soft_limit: float | None = 0.8) -> None:
        limit = whole(max_total_tokens, "max_total_tokens")
        super().__init__(limit, Limits(tokens=limit, soft=soft_limit))


class ExecutionTimeLimitHook(_LimitHook):
    """Stops a run that has taken a number of seconds, and asks the model to wrap up before.

    What is being waited for when the time is up is broken off.

    Args:
        max_seconds: how long the run may take.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no number above 0.
    """

    def __init__(self, max_seconds: float, *, soft_limit: float | None = 0.8) -> None:
        limit = positive(max_seconds, "max_seconds")
        super().__init__(limit, Limits(seconds=limit, soft=soft_limit))


class CostLimitHook(_LimitHook):
    """Stops a run that has cost an amount of money, and asks the model to wrap up before.

    All model calls count, as for tokens. Calls whose price nobody knows count as free.

    Args:
        max_cost: USD.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no number above 0.
    """

    def __init__(self, max_cost: float, *, soft_limit: float | None = 0.8) -> None:
        limit = positive(max_cost, "max_cost")
        super().__init__(limit, Limits(cost=limit, soft=soft_limit))


class ToolCallsLimitHook(_LimitHook):
    """Stops a run that has made a number of tool calls, and asks the model to wrap up before.

    Of a batch that would go past the limit, the calls within it run, and the others are cancelled.

    Args:
        max_tool_calls: how many calls may run; retries count, blocked calls do not.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no whole number above 0.
    """

    def __init__(self, max_tool_calls: int, *, soft_limit: float | None = 0.8) -> None:
        limit = whole(max_tool_calls, "max_tool_calls")
        super().__init__(limit, Limits(tool_calls=limit, soft=soft_limit))
