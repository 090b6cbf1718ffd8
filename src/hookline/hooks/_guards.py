"""All limits of a run in one plugin."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .._run.budget import DEFAULT_STEPS
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

    The step limit becomes the agent's own too, unless that was given a stricter one: so it holds even where
    ``allowed_plugins`` leaves the plugin out.

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
    hooks: list[Any] = []
    if max_steps is not None:
        hooks.append(StepsLimitHook(max_steps, soft_limit=soft_limit))
    if max_tokens is not None:
        hooks.append(TokenUsageLimitHook(max_tokens, soft_limit=soft_limit))
    if max_execution_time is not None:
        hooks.append(ExecutionTimeLimitHook(max_execution_time, soft_limit=soft_limit))
    if max_cost is not None:
        hooks.append(CostLimitHook(max_cost, soft_limit=soft_limit))
    if max_tool_calls is not None:
        hooks.append(ToolCallsLimitHook(max_tool_calls, soft_limit=soft_limit))
    reasons = () if finish_reasons is None else names_of(finish_reasons, "finish_reasons", 0)
    if reasons:
        hooks.append(FinishReasonHook(reasons))

    def configure(agent: Any) -> None:
        given = None if agent.max_steps is DEFAULT_STEPS else agent.max_steps
        agent.max_steps = min((limit for limit in (given, max_steps) if limit is not None), default=None)

    return Plugin("guards", hooks, configure=configure)
