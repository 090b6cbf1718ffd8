"""Complete a run when the model finishes for a given reason."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from .._base.text import did_you_mean
from .._kernel.errors import RegistrationError
from .._kernel.points import AFTER_STEP
from .._kernel.results import HookResult
from .._kernel.state import AgentState
from .._kernel.validation import check_names
from .._kernel.values import Step
from ..models.protocol import FINISH_REASONS


class FinishReasonHook:
    """Completes a run after a step whose model reply finished for one of the given reasons.

    Args:
        stop_reasons: values of :data:`hookline.models.FINISH_REASONS`.
        finish_reason_resolver: function that returns the reason from the state; by default that of the last step.

    Raises:
        RegistrationError: there are no reasons, a reason is unknown, or the resolver is not callable.
    """

    points = frozenset({AFTER_STEP})
    priority = -200

    def __init__(
        self, stop_reasons: Iterable[str], finish_reason_resolver: Callable[[AgentState], str | None] | None = None
    ) -> None:
        self.stop_reasons = check_names(stop_reasons, "stop_reasons")
        for reason in self.stop_reasons:
            if reason not in FINISH_REASONS:
                known = ", ".join(FINISH_REASONS)
                problem = f"unknown finish reason {reason!r}.{did_you_mean(reason, FINISH_REASONS)} Known: {known}"
                raise RegistrationError(problem)
        if finish_reason_resolver is not None and not callable(finish_reason_resolver):
            raise RegistrationError(
                f"finish_reason_resolver must be a function of the state, not {finish_reason_resolver!r}"
            )
        self.finish_reason_resolver = finish_reason_resolver

    def __call__(self, point: str, ctx: Any, step: Step) -> HookResult | None:
        """Stop the run if the step finished for one of the reasons."""
        resolve = self.finish_reason_resolver
        reason = step.finish_reason if resolve is None else resolve(ctx.state)
        if reason not in self.stop_reasons:
            return None
        return HookResult.stop(f"The model finished: {reason}", kind="finish_reason")
