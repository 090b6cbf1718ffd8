"""Ask for approval before certain tools run."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any, ClassVar

from .._base.workers import in_thread
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ApprovalRequest
from .._kernel.points import APPROVAL_REQUESTED, BEFORE_TOOL
from .._kernel.results import HookAction, HookResult
from .._kernel.validation import check_names
from ..tools._tool import Effect, check_effects
from ..tools.registry import ToolView
from ._support.tools import may


class PlanModeHook:
    """Asks for approval before certain tools run, and lets an approver function decide if it has one.

    Without an approver, other hooks at ``approval_requested`` decide; if there are none, the call is denied. An
    approver that raises, or returns an unexpected value, denies the call, and the error is reported. The approver
    decides only this hook's own question: if other hooks ask about the same call, its approval leaves their questions
    open.

    Example::

        PlanModeHook(["delete_*"], approver=lambda request: request.call.arguments["path"].startswith("/tmp/"))
        PlanModeHook(effects=["write", "delete"])

    Args:
        confirm: globs of the tools that need approval.
        effects: effects that need approval: every tool that may have one of them, which includes tools that declare
            nothing and tools that run code.
        approver: a function ``(request)`` or ``(ctx, request)`` of the :class:`ApprovalRequest`. It returns ``True``,
            ``False``, a message for the model (which denies the call), or ``HookResult.approve()``, ``.deny(message)``
            or ``.edit(arguments)``. If it is not async, it runs in a thread.
        question: the question; ``{tool}`` is replaced by the name of the tool.

    Raises:
        RegistrationError: an argument is invalid.
    """

    points = frozenset({BEFORE_TOOL, APPROVAL_REQUESTED})
    phase: ClassVar[Mapping[str, str]] = {BEFORE_TOOL: "guard"}
    priority = 100

    def __init__(
        self,
        confirm: Iterable[str] = (),
        approver: Callable[..., Any] | None = None,
        *,
        effects: Iterable[Effect] = (),
        question: str = "May {tool} run?",
    ) -> None:
        self.confirm, self.effects = check_names(confirm, "confirm", 0), check_effects(effects, "effects")
        if not self.confirm and not self.effects:
            raise RegistrationError("give at least one tool as confirm=['write_*'], or one effect as effects=['write']")
        if not isinstance(question, str) or not question.strip():
            raise RegistrationError(f"question must be text, not {question!r}")
        self.approver, self.question = approver, question
        self._takes_ctx = approver is not None and _takes_ctx(approver)
        call = approver if inspect.isroutine(approver) else type(approver).__call__
        self._is_async = inspect.iscoroutinefunction(call)

    def covers(self, tool: ToolView) -> bool:
        """Whether the hook asks about calls of the tool."""
        named = any(fnmatchcase(tool.name, glob) for glob in self.confirm)
        return named or (bool(self.effects) and tool.may(*self.effects))

    async def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Ask about a call, or let the approver decide."""
        asked, key = ctx.own_state(self, Counter), _key(point, payload)
        if point == BEFORE_TOOL:
            named = any(fnmatchcase(payload.name, glob) for glob in self.confirm)
            if not named and not may(ctx, payload.name, self.effects):
                return None
            asked[key] += 1
            return HookResult.ask(self.question.replace("{tool}", payload.name), reason="plan mode")
        if self.approver is None or key not in asked:
            return None
        decision = await self._decide(ctx, payload)
        if decision.value.get("deny") is not None or asked[key] == len(payload.questions):
            return decision
        if decision.value.get("edit") is not None:
            return HookResult.deny(
                "This call needs several approvals and cannot be edited. Make the call with the right arguments."
            )
        # Approving one of several questions must not approve the others; several PlanModeHooks approve them together.
        approved = ctx.own_state(PlanModeHook, dict).setdefault(key, {})
        approved[id(self)] = asked[key]
        return decision if sum(approved.values()) == len(payload.questions) else None

    async def _decide(self, ctx: Any, request: ApprovalRequest) -> HookResult:
        assert self.approver is not None
        args = (ctx, request) if self._takes_ctx else (request,)
        result = await (self.approver(*args) if self._is_async else in_thread(self.approver, *args))
        if isinstance(result, bool):
            return HookResult.approve() if result else HookResult.deny()
        if isinstance(result, str):
            return HookResult.deny(result)
        if isinstance(result, HookResult) and result.action is HookAction.CLAIM and _is_one_decision(result.value):
            return result
        expected = "True, False, a message, or HookResult.approve(), .deny(message) or .edit(arguments)"
        raise TypeError(f"the approver returned {result!r:.80}; expected {expected}")


def _is_one_decision(claim: Mapping[str, Any]) -> bool:
    return sum(claim.get(verb) not in (None, False) for verb in ("approve", "deny", "edit")) == 1


def _key(point: str, payload: Any) -> tuple[str, int]:
    call = payload if point == BEFORE_TOOL else payload.call
    return call.id, call.attempt


def _takes_ctx(approver: Any) -> bool:
    """Return whether the approver takes (ctx, request), and not only (request)."""
    if not callable(approver):
        raise RegistrationError(f"approver must be a function of the request, not {approver!r}")
    try:
        signature = inspect.signature(approver)
    except (TypeError, ValueError):  # a builtin without a signature
        return False
    for args in (("request",), ("ctx", "request")):
        try:
            signature.bind(*args)
        except TypeError:
            continue
        return len(args) == 2
    raise RegistrationError(f"approver must take (request) or (ctx, request), not {signature}")
