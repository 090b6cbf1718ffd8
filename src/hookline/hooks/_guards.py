"""All limits of a run in one plugin."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .._run.budget import Limits
from ..plugins.plugin import Plugin
from .checks import names_of
from .finish_reason import FinishReasonHook
from .limits import CostLimitHook, ExecutionTimeLimitHook, StepsLimitHook, TokenUsageLimitHook, ToolCallsLimitHook


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
    reasons = () if finish_reasons is None else names_of(finish_reasons, "finish_reasons", 0)
    if reasons:
        hooks.append(FinishReasonHook(reasons))

    steps = Limits(steps=math.inf if max_steps is None else max_steps, soft=soft_limit)

    def configure(agent: Any) -> None:
        agent.limits = agent.limits.stricter(steps)

    return Plugin("guards", hooks, configure=configure)
