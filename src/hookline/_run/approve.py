"""The option ``approve`` of an agent: one function that decides about calls (DESIGN 6.10)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from inspect import isawaitable
from typing import Any, TypeVar

from .._kernel.errors import RegistrationError
from .._kernel.payloads import ApprovalRequest, ToolCallRequest
from .._kernel.points import APPROVAL_REQUESTED, BEFORE_TOOL
from .._kernel.results import HookResult
from .context import AgentContext

DepsT = TypeVar("DepsT")

Approval = bool | str | Mapping[str, Any] | HookResult | None
"""The return value of an ``approve`` function: see :class:`hookline.Agent`."""
Approve = Callable[[AgentContext[DepsT], ApprovalRequest], Approval | Awaitable[Approval]]


class ApproveHook:
    """Asks about each call of a tool that may do more than read, and answers all questions with a function.

    It is an ordinary hook, so everything that applies to approvals applies to it: digests, events, audit, journals.

    Args:
        decide: the function.

    Raises:
        RegistrationError: it is not a function.
    """

    points = (BEFORE_TOOL, APPROVAL_REQUESTED)
    phase = {BEFORE_TOOL: "guard"}  # noqa: RUF012 - never changed

    def __init__(self, decide: Approve[Any]) -> None:
        if not callable(decide):
            raise RegistrationError(f"approve= takes a function of (ctx, request), not {decide!r:.80}")
        self.decide = decide
        name = getattr(decide, "__name__", type(decide).__name__)
        self.name = name if name.isidentifier() else "approve"

    def __call__(
        self, point: str, ctx: AgentContext[Any], payload: Any
    ) -> HookResult | Awaitable[HookResult | None] | None:
        """Ask about a call, or decide about it."""
        return _question(ctx, payload) if point == BEFORE_TOOL else self._decision(ctx, payload)

    async def _decision(self, ctx: AgentContext[Any], request: ApprovalRequest) -> HookResult | None:
        answer = self.decide(ctx, request)
        return _verb(await answer if isawaitable(answer) else answer)


def _question(ctx: AgentContext[Any], request: ToolCallRequest) -> HookResult | None:
    tools = ctx.tool_registry
    if tools is not None and ((tool := tools.get(request.name)) is None or not tool.dangerous):
        return None
    return HookResult.ask(f"May {request.name} run?", reason=f"{request.name} may do more than read")


def _verb(answer: Approval) -> HookResult | None:
    if answer is None or isinstance(answer, HookResult):
        return answer
    if isinstance(answer, bool):
        return HookResult.approve() if answer else HookResult.deny()
    if isinstance(answer, str):
        return HookResult.deny(answer)
    if isinstance(answer, Mapping):
        return HookResult.edit(answer)
    raise TypeError(
        f"approve= returned {type(answer).__name__}; expected True, False, a text that says why not, a dict of other "
        "arguments, or None to leave the decision to another approver"
    )
