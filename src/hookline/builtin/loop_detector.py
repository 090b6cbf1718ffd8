"""A hook that notices when a model calls the same tool with the same arguments again and again."""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from ..base.frozen import json_text
from ..kernel.errors import RegistrationError
from ..kernel.payloads import ToolCallRequest, ToolCallResult
from ..kernel.points import AFTER_TOOL, BEFORE_TOOL
from ..kernel.results import HookResult
from .checks import flag, whole
from .wording import as_sentence


class _Seen(msgspec.Struct):
    """One call, as a model made it in this run."""

    ids: set[str]
    good: str | None = None


class LoopDetectorHook:
    """Gives a hint at an exact repeat of a tool call, and ends the turn if that does not help.

    A repeat is the same tool with the same arguments in one run. The hint, in place of a second result, says what
    the call gave before. A call that has not succeeded yet may be made again: only breaking off applies to it.
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

    def __init__(self, hint_after: int = 1, break_after: int = 2, *, answer: bool = False) -> None:
        self.hint_after, self.break_after = whole(hint_after, "hint_after"), whole(break_after, "break_after")
        if break_after < hint_after:
            raise RegistrationError(f"break_after ({break_after}) comes before hint_after ({hint_after})")
        self.answer = flag(answer, "answer")

    def __call__(self, point: str, ctx: Any, payload: ToolCallRequest | ToolCallResult) -> HookResult | None:
        """Look at a call before it runs, and at what came of it."""
        calls: dict[str, _Seen] = ctx.hook_state.setdefault(id(self), {})
        seen = calls.setdefault(f"{payload.name} {json_text(payload.arguments)}", _Seen(set()))
        if isinstance(payload, ToolCallRequest):
            return self._judge(payload, seen)
        if payload.id not in seen.ids:  # its arguments did not fit: no guard was asked
            return self._judge(payload, seen)
        if payload.outcome in ("ok", "answered"):
            seen.good = payload.text
        return None

    def _judge(self, call: ToolCallRequest | ToolCallResult, seen: _Seen) -> HookResult | None:
        before = len(seen.ids - {call.id})
        seen.ids.add(call.id)
        if before >= self.break_after or (self.answer and before >= self.hint_after and seen.good is not None):
            said = f"I called {call.name} again and again, without getting any further."
            reply = said if seen.good is None else as_sentence(seen.good)
            return HookResult.end(reply, reason=f"loop: {call.name} was called {before + 1} times alike")
        if before >= self.hint_after and seen.good is not None and isinstance(call, ToolCallRequest):
            hint = f"You have already called {call.name} with these arguments. It gave: {seen.good:.2000}\n"
            hint += "Do not call it again: use this result, do what is left to do, or answer the user."
            return HookResult.block(hint, reason=f"loop: {call.name} was called {before + 1} times alike")
        return None
