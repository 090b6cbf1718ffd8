"""Hooks that stop a run at a limit, and tell the model before it comes to that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

from .._base.names import is_number
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelRequest, ToolCallRequest
from .._kernel.points import BEFORE_LLM, BEFORE_STEP, BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.state import AgentState
from .._kernel.values import Message
from .checks import positive, whole

_USED, _WRAP_UP = "You have used ", " Wrap up now: finish with what you have and give your final answer."


class _Limit(ABC):
    """One limit on what the run's ledger counts; the classes below say on what."""

    points = frozenset({BEFORE_STEP, BEFORE_LLM})
    phase: ClassVar[Mapping[str, str]] = {BEFORE_TOOL: "guard"}
    priority = 200
    stops_at = frozenset({BEFORE_STEP, BEFORE_LLM})
    kind: ClassVar[str]
    what: ClassVar[str]
    unit: ClassVar[str]
    digits: ClassVar[int | None] = None

    def __init__(self, limit: float, name: str, soft_limit: float | None) -> None:
        self.limit = whole(limit, name) if self.digits is None else positive(limit, name)
        if soft_limit is not None and not (is_number(soft_limit) and 0 < soft_limit < 1):
            problem = f"soft_limit is a share of the limit between 0 and 1, or None for no note; not {soft_limit!r}"
            raise RegistrationError(problem)
        self.soft_limit = soft_limit

    @abstractmethod
    def used(self, point: str, ctx: Any) -> float:
        """What counts against the limit so far."""

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Stop at the limit; put a note into requests that come near it."""
        used = self.used(point, ctx)
        if point in self.stops_at and used >= self.limit:
            if any(signal.kind == self.kind for signal in ctx.state.signals):
                return None  # said already
            return HookResult.stop(self.reached(used), kind=self.kind)
        near = self.soft_limit is not None and used / self.limit >= self.soft_limit
        return self._note(used, payload) if near and point == BEFORE_LLM and payload.purpose == "step" else None

    def reached(self, used: float) -> str:
        """The message of the stop."""
        return f"{self.what} reached: {round(used, self.digits)}/{self.limit}"

    def _note(self, used: float, request: ModelRequest) -> HookResult:
        """The request with one message at its end for all limits that are near."""
        messages, line = list(request.messages), f"{_USED}{round(used, self.digits)} of {self.limit} {self.unit}."
        last = messages[-1] if messages else Message("user")
        if last.role == "user" and last.content.startswith(_USED) and last.content.endswith(_WRAP_UP):
            line = f"{last.content.removesuffix(_WRAP_UP)}\n{line}"  # another limit has put its note there
            messages.pop()
        messages.append(Message("user", line + _WRAP_UP))
        return HookResult.replace({"messages": messages}, reason=f"the {self.what.lower()} is near")


class StepsLimitHook(_Limit):
    """Stops a run after so many steps, and asks the model to wrap up before.

    Args:
        max_steps: how many steps may run.
        step_counter: counts them from the state instead; the steps that the run began if left out.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no whole number above 0, or a counter that cannot be called.
    """

    stops_at = frozenset({BEFORE_STEP})
    kind, what, unit = "steps_limit", "Step limit", "steps"

    def __init__(
        self,
        max_steps: int,
        step_counter: Callable[[AgentState], int] | None = None,
        *,
        soft_limit: float | None = 0.8,
    ) -> None:
        super().__init__(max_steps, "max_steps", soft_limit)
        if step_counter is not None and not callable(step_counter):
            raise RegistrationError(f"step_counter is a function of the state, not {step_counter!r}")
        self.step_counter = step_counter

    def used(self, point: str, ctx: Any) -> float:
        """Steps; at the model call of a step, those before it."""
        if self.step_counter is None:
            return int(ctx.budget.steps) - (point == BEFORE_LLM)
        count = self.step_counter(ctx.state)
        if not is_number(count):
            raise TypeError(f"step_counter gave {count!r}; it must give a number")
        return count


class TokenUsageLimitHook(_Limit):
    """Stops a run that has used so many tokens, and asks the model to wrap up before.

    Input and output of all model calls count: retries, those of hooks, and those of subagents.

    Args:
        max_total_tokens: how many tokens may be used.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no whole number above 0.
    """

    kind, what, unit = "token_limit", "Token limit", "tokens"

    def __init__(self, max_total_tokens: int, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(max_total_tokens, "max_total_tokens", soft_limit)

    def used(self, point: str, ctx: Any) -> float:
        """Tokens."""
        return int(ctx.budget.tokens)


class ExecutionTimeLimitHook(_Limit):
    """Stops a run that has taken so many seconds, and asks the model to wrap up before.

    It looks at the clock before each step, model call and tool call. It cannot break off what hangs: for that,
    use ``Budget(max_seconds=)``.

    Args:
        max_seconds: how long the run may take.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no number above 0.
    """

    points = frozenset({BEFORE_STEP, BEFORE_LLM, BEFORE_TOOL})
    stops_at = points
    kind, what, unit, digits = "time_limit", "Time limit", "seconds", 1

    def __init__(self, max_seconds: float, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(max_seconds, "max_seconds", soft_limit)

    def used(self, point: str, ctx: Any) -> float:
        """Seconds on the ledger's clock."""
        return float(ctx.budget.elapsed)


class CostLimitHook(_Limit):
    """Stops a run that has cost so much, and asks the model to wrap up before.

    All model calls count, as for tokens. Calls whose price nobody knows count as free.

    Args:
        max_cost: USD.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no number above 0.
    """

    kind, what, unit, digits = "cost_limit", "Cost limit", "USD", 4

    def __init__(self, max_cost: float, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(max_cost, "max_cost", soft_limit)

    def used(self, point: str, ctx: Any) -> float:
        """USD, as far as prices are known."""
        return float(ctx.budget.known_cost)


class ToolCallsLimitHook(_Limit):
    """Stops a run that has made so many tool calls, and asks the model to wrap up before.

    Of a batch that would go past the limit, the calls within it run, and the others are blocked.

    Args:
        max_tool_calls: how many calls may run; retries count, blocked calls do not.
        soft_limit: from this share of the limit on, each request ends with a note; ``None`` for none.

    Raises:
        RegistrationError: a limit that is no whole number above 0.
    """

    points = frozenset({BEFORE_STEP, BEFORE_LLM, BEFORE_TOOL})
    stops_at = frozenset({BEFORE_STEP})
    kind, what, unit = "tool_calls_limit", "Tool call limit", "tool calls"

    def __init__(self, max_tool_calls: int, *, soft_limit: float | None = 0.8) -> None:
        super().__init__(max_tool_calls, "max_tool_calls", soft_limit)

    def used(self, point: str, ctx: Any) -> float:
        """Tool calls that ran."""
        return int(ctx.budget.tool_calls)

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """As for every limit; a single call over it is blocked, since a stop would cancel the whole batch."""
        return self._judge(ctx, payload) if point == BEFORE_TOOL else super().__call__(point, ctx, payload)

    def _judge(self, ctx: Any, request: ToolCallRequest) -> HookResult | None:
        # The ledger counts a batch when all of it is judged, so those let pass before are counted here.
        batch = (request.hop, request.attempt, request.id if request.attempt > 1 else "")
        if ctx.hook_state.get(id(self), (None,))[0] != batch:
            ctx.hook_state[id(self)] = batch, set()
        passed: set[str] = ctx.hook_state[id(self)][1]
        passed -= {error.call_id for error in ctx.state.errors if error.type == "Blocked"}
        used = ctx.budget.tool_calls + len(passed - {request.id})
        if used >= self.limit:
            not_done = "This call did not run." if request.attempt == 1 else "This call has run and does not run again."
            return HookResult.block(f"{self.reached(used)}. {not_done}", reason=self.kind)
        passed.add(request.id)
        return None
