"""Ask before sensitive tools run."""

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
from ._support.validation import check_names


class PlanModeHook:
    """Asks for approval before certain tools run, and puts the question to an approver if it has one.

    Without an approver, whoever is a hook at ``approval_requested`` decides, and nobody means no. An approver
    that raises or gives anything else than it may means no, and is reported. It speaks for this hook's own
    question only: where other hooks ask about the same call, its yes leaves their questions open.

    Args:
        confirm: globs of the names of tools that need approval.
        approver: a function of the :class:`ApprovalRequest`, or of the context and that; it gives ``True``,
            ``False``, a message for the model that means no, or ``HookResult.approve()``, ``.deny(message)`` or
            ``.edit(arguments)``. If it is not async, it runs in a thread.
        question: what is asked; ``{tool}`` stands for the tool's name.

    Raises:
        RegistrationError: no tools, an approver that cannot be called so, or an empty question.
    """

    points = frozenset({BEFORE_TOOL, APPROVAL_REQUESTED})
    phase: ClassVar[Mapping[str, str]] = {BEFORE_TOOL: "guard"}
    priority = 100

    def __init__(
        self,
        confirm: Iterable[str],
        approver: Callable[..., Any] | None = None,
        *,
        question: str = "May {tool} run?",
    ) -> None:
        self.confirm = check_names(confirm, "confirm")
        if not isinstance(question, str) or not question.strip():
            raise RegistrationError(f"question is text, not {question!r}")
        self.approver, self.question = approver, question
        self._takes_ctx = approver is not None and _takes_ctx(approver)
        call = approver if inspect.isroutine(approver) else type(approver).__call__
        self._is_async = inspect.iscoroutinefunction(call)

    async def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Ask about a call, or have the approver answer."""
        asked, key = ctx.hook_state.setdefault(id(self), Counter()), _key(point, payload)
        if point == BEFORE_TOOL:
            if not any(fnmatchcase(payload.name, glob) for glob in self.confirm):
                return None
            asked[key] += 1
            return HookResult.ask(self.question.replace("{tool}", payload.name), reason="plan mode")
        if self.approver is None or key not in asked:
            return None
        said = await self._decide(ctx, payload)
        if said.value.get("deny") is not None or asked[key] == len(payload.questions):
            return said
        if said.value.get("edit") is not None:
            return HookResult.deny("This call needs several approvals and cannot be edited. Make it as it should be.")
        # A yes to one of several questions must not answer the others, but several plan modes can do so together.
        given = ctx.hook_state.setdefault(id(PlanModeHook), {}).setdefault(key, {})
        given[id(self)] = asked[key]
        return said if sum(given.values()) == len(payload.questions) else None

    async def _decide(self, ctx: Any, request: ApprovalRequest) -> HookResult:
        assert self.approver is not None
        args = (ctx, request) if self._takes_ctx else (request,)
        said = await (self.approver(*args) if self._is_async else in_thread(self.approver, *args))
        if isinstance(said, bool):
            return HookResult.approve() if said else HookResult.deny()
        if isinstance(said, str):
            return HookResult.deny(said)
        if isinstance(said, HookResult) and said.action is HookAction.CLAIM and _is_clear(said.value):
            return said
        expected = "True, False, a message, or HookResult.approve(), .deny(message) or .edit(arguments)"
        raise TypeError(f"the approver gave {said!r:.80}; expected {expected}")


def _is_clear(claim: Mapping[str, Any]) -> bool:
    return sum(claim.get(verb) not in (None, False) for verb in ("approve", "deny", "edit")) == 1


def _key(point: str, payload: Any) -> tuple[str, int]:
    call = payload if point == BEFORE_TOOL else payload.call
    return call.id, call.attempt


def _takes_ctx(approver: Any) -> bool:
    """Whether it is a function of two, the context and the request, and not of one."""
    if not callable(approver):
        raise RegistrationError(f"approver is a function of the request, not {approver!r}")
    try:
        signature = inspect.signature(approver)
    except (TypeError, ValueError):  # a builtin that does not tell
        return False
    for args in (("request",), ("ctx", "request")):
        try:
            signature.bind(*args)
        except TypeError:
            continue
        return len(args) == 2
    raise RegistrationError(f"approver must take (request) or (ctx, request), not {signature}")
