"""Detect that the model repeats the same tool call."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from .._base.frozen import any_digest
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest, ToolCallResult
from .._kernel.points import AFTER_TOOL, BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_bool, check_integer
from ._tool_results import as_sentence


class _CallHistory(msgspec.Struct):
    """The calls of a run by id, as digest and step; and the last successful result by digest."""

    calls: dict[str, tuple[str, int]] = {}
    results: dict[str, str] = {}


class LoopDetectorHook:
    """Blocks a repeated tool call with a hint, and ends the run if the model keeps repeating it.

    A repeat is the same tool with the same arguments in one run; the order of the arguments does not matter. The hint
    contains the result of the earlier call. A call that has not succeeded yet gets no hint, but can end the run. If one
    reply contains the same call several times, the first runs and the others get a hint. When the hook ends the run,
    the reply is the last successful result of that call.

    Args:
        hint_after: number of calls before a repeat gets a hint.
        break_after: number of calls before a repeat ends the run.
        answer: end the run with the last successful result instead of giving a hint; small models ignore hints.

    Raises:
        RegistrationError: a number is not a whole number above 0, or ``break_after`` is less than ``hint_after``.
    """

    points = frozenset({BEFORE_TOOL, AFTER_TOOL})
    phase: ClassVar[dict[str, str]] = {BEFORE_TOOL: "guard", AFTER_TOOL: "guard"}
    priority = 60
    on_failure = "open"

    def __init__(self, hint_after: int = 1, break_after: int = 2, *, answer: bool = False) -> None:
        self.hint_after = check_integer(hint_after, "hint_after")
        self.break_after = check_integer(break_after, "break_after")
        if break_after < hint_after:
            raise RegistrationError(f"break_after ({break_after}) must not be less than hint_after ({hint_after})")
        self.answer = check_bool(answer, "answer")

    def __call__(self, point: str, ctx: Any, payload: ToolCallRequest | ToolCallResult) -> HookResult | None:
        """Check a call before it runs, and remember its result."""
        history: _CallHistory = ctx.own_state(self, _CallHistory)
        call = any_digest([payload.name, payload.arguments])
        if isinstance(payload, ToolCallResult) and payload.id in history.calls:
            if payload.outcome in ("ok", "answered"):
                history.results[call] = payload.text
            return None
        # A result without a call had invalid arguments: it never reached the guards at before_tool.
        return self._judge(payload, call, history)

    def _judge(self, payload: ToolCallRequest | ToolCallResult, call: str, history: _CallHistory) -> HookResult | None:
        history.calls[payload.id] = (call, payload.hop)  # replaces the call as it was before an edit
        same = [hop for id, (other, hop) in history.calls.items() if other == call and id != payload.id]
        before, result = len(set(same) - {payload.hop}), history.results.get(call)
        reason = f"loop: {payload.name} was called {before + 1} times with the same arguments"
        if before >= self.break_after or (self.answer and before >= self.hint_after and result is not None):
            reply = as_sentence(result) if result else f"I called {payload.name} repeatedly without making progress."
            return HookResult.end(reply, reason=reason)
        if not isinstance(payload, ToolCallRequest):
            return None
        if same.count(payload.hop) >= self.hint_after:
            return HookResult.block(
                "Your reply contains this call twice. It runs once: use that result.", reason="twice"
            )
        if before >= self.hint_after and result is not None:
            hint = f"You have already called {payload.name} with these arguments. It gave: {result:.2000}\n"
            hint += "Do not call it again: use this result, do what is left to do, or answer the user."
            return HookResult.block(hint, reason=reason)
        return None
