"""A hook that notices when a model calls the same tool with the same arguments again and again."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from .._base.frozen import digest
from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest, ToolCallResult
from .._kernel.points import AFTER_TOOL, BEFORE_TOOL
from .._kernel.results import HookResult
from ._support.validation import check_bool, check_integer
from ._tool_results import as_sentence


class _Seen(msgspec.Struct):
    """The calls of a run: what each one was and in which step, and what was good of it."""

    calls: dict[str, tuple[str, int]] = {}
    good: dict[str, str] = {}


class LoopDetectorHook:
    """Gives a hint at an exact repeat of a tool call, and ends the turn if that does not help.

    A repeat is the same tool with the same arguments in one run, in whatever order these are written. The hint, in
    place of a second result, says what the call gave before. A call that has not succeeded yet may be made again: only
    breaking off applies to it. Of calls that are alike in one reply, the first runs and the others get a hint, too.
    The reply of a turn that is ended is made of the last good result of that call.

    Args:
        hint_after: how many times a call may be made before a repeat gets a hint.
        break_after: how many times before a repeat ends the turn.
        answer: answer the user from the last good result where a hint would be given: small models do not
            take hints.

    Raises:
        RegistrationError: numbers that are no whole numbers, 1 or more, or a break before the hint.
    """

    points = frozenset({BEFORE_TOOL, AFTER_TOOL})
    phase: ClassVar[dict[str, str]] = {BEFORE_TOOL: "guard", AFTER_TOOL: "guard"}
    priority = 60
    on_failure = "open"

    def __init__(self, hint_after: int = 1, break_after: int = 2, *, answer: bool = False) -> None:
        self.hint_after, self.break_after = (
            check_integer(hint_after, "hint_after"),
            check_integer(break_after, "break_after"),
        )
        if break_after < hint_after:
            raise RegistrationError(f"break_after ({break_after}) comes before hint_after ({hint_after})")
        self.answer = check_bool(answer, "answer")

    def __call__(self, point: str, ctx: Any, payload: ToolCallRequest | ToolCallResult) -> HookResult | None:
        """Look at a call before it runs, and at what came of it."""
        seen: _Seen = ctx.hook_state.setdefault(id(self), _Seen())
        call = digest([payload.name, payload.arguments])
        if isinstance(payload, ToolCallResult) and payload.id in seen.calls:
            if payload.outcome in ("ok", "answered"):
                seen.good[call] = payload.text
            return None
        return self._judge(payload, call, seen)  # of a result: its arguments did not fit, so no guard was asked

    def _judge(self, payload: ToolCallRequest | ToolCallResult, call: str, seen: _Seen) -> HookResult | None:
        seen.calls[payload.id] = (call, payload.hop)  # in the place of what it was before somebody edited it
        alike = [hop for id, (other, hop) in seen.calls.items() if other == call and id != payload.id]
        before, good = len(set(alike) - {payload.hop}), seen.good.get(call)
        reason = f"loop: {payload.name} was called {before + 1} times alike"
        if before >= self.break_after or (self.answer and before >= self.hint_after and good is not None):
            said = f"I called {payload.name} again and again, without getting any further."
            return HookResult.end(as_sentence(good) if good else said, reason=reason)
        if not isinstance(payload, ToolCallRequest):
            return None
        if alike.count(payload.hop) >= self.hint_after:
            return HookResult.block(
                "This call stands in your reply twice. It runs once: use that result.", reason="twice"
            )
        if before >= self.hint_after and good is not None:
            hint = f"You have already called {payload.name} with these arguments. It gave: {good:.2000}\n"
            hint += "Do not call it again: use this result, do what is left to do, or answer the user."
            return HookResult.block(hint, reason=reason)
        return None
