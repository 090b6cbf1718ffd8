"""Limit the number of tokens of each model request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from .._kernel.errors import RegistrationError
from .._kernel.payloads import ModelRequest
from .._kernel.points import BEFORE_LLM
from .._kernel.results import HookResult
from .._kernel.validation import check_integer
from .._kernel.values import Message
from ._injection.fence import excerpt_with_fence
from ._support.messages import (
    MessageGroup,
    group_messages,
    last_user_message,
    messages_without,
    required_groups,
    smallest_fitting,
)

MIN_RESULT_CHARS = 100
"""Minimum length to which a tool result is shortened, in characters."""


class TokenBudgetHook:
    """Keeps every model request within a number of tokens, by removing its oldest messages.

    Tokens are counted by the model's tokenizer, if it has one, and include the tools. The hook changes only the
    request, never the transcript. It removes the oldest messages first; a message that calls tools and its results stay
    together, and the rest begins with a user message. System messages, the task of the run, the last user message and
    the newest messages are never removed. If these alone are too long, the hook shortens long tool results. If that is
    not enough, the run stops with ``token_limit`` and the model is not called.

    Args:
        max_context_tokens: maximum number of tokens, including the reply.
        reserve: number of these tokens to keep free for the reply.

    Raises:
        RegistrationError: a number is invalid, or ``reserve`` leaves no tokens for the request.
    """

    points = frozenset({BEFORE_LLM})
    phase = "rewrite"
    priority = -200

    def __init__(self, max_context_tokens: int, *, reserve: int = 0) -> None:
        limit = check_integer(max_context_tokens, "max_context_tokens") - check_integer(reserve, "reserve", 0)
        if limit < 1:
            raise RegistrationError(
                f"reserve={reserve} leaves nothing of {max_context_tokens} tokens: use a smaller reserve"
            )
        self.max_context_tokens, self.reserve, self.limit = max_context_tokens, reserve, limit

    async def __call__(self, point: str, ctx: Any, request: ModelRequest) -> HookResult | None:
        """Trim a request that is too long."""
        task = None
        if request.purpose == "step":
            task = ctx.own_state(self, lambda: last_user_message(ctx.state.messages))
        if await ctx.llm.count_request(request) <= self.limit:
            return None
        parts = group_messages(request.messages)
        stay = required_groups(parts, task)
        if request.purpose == "step":
            stay |= required_groups(parts[: _end(parts, ctx.state.messages)])
        free = [i for i in range(len(parts)) if i not in stay]
        left, takes = await self._newest(ctx, request, parts, stay, free), 0
        if left is None:
            left, takes = await self._shortened(ctx, request, messages_without(parts, free))
        if left is None:
            message = f"Context limit: the messages that must stay have {takes} tokens, and {self.limit} are allowed."
            return HookResult.stop(message, "token_limit")
        done = f"removed {len(request.messages) - len(left)} messages{' and shortened results' if takes else ''}"
        return HookResult.replace(request.replace(messages=left), reason=done)

    async def _newest(
        self, ctx: Any, request: ModelRequest, parts: Sequence[MessageGroup], stay: set[int], free: Sequence[int]
    ) -> Sequence[Message] | None:
        """Return as many of the newest messages as fit; ``None`` if the required ones alone are too long."""
        first = min((i for i in stay if parts[i][0].role != "system"), default=len(parts))
        cuts = [n for n in range(1, len(free)) if parts[min(free[n], first)][0].role == "user"]
        cuts += [len(free)] if free else []

        async def fits(index: int) -> bool:
            return await self._count(ctx, request, messages_without(parts, free[: cuts[index]])) <= self.limit

        if not cuts or not await fits(len(cuts) - 1):
            return None
        return messages_without(parts, free[: cuts[await smallest_fitting(0, len(cuts) - 1, fits)]])

    async def _shortened(
        self, ctx: Any, request: ModelRequest, messages: Sequence[Message]
    ) -> tuple[Sequence[Message] | None, int]:
        """Shorten tool results until the messages fit. Return them or ``None``, and the tokens of the shortest form."""
        longest = max((len(m.content) for m in messages if m.role == "tool"), default=0)

        async def count(limit: int) -> int:
            return await self._count(ctx, request, _cut(messages, limit))

        takes = await count(MIN_RESULT_CHARS)
        if takes > self.limit:
            return None, takes
        low, high = MIN_RESULT_CHARS, longest
        while low * 2 < high:  # from below, because counting a very long text is slow
            if await count(low * 2) > self.limit:
                high = low * 2
            else:
                low *= 2
        while high - low > 16 + low // 16:
            middle = (low + high) // 2
            low, high = (middle, high) if await count(middle) <= self.limit else (low, middle)
        return _cut(messages, low), takes

    @staticmethod
    async def _count(ctx: Any, request: ModelRequest, messages: Sequence[Message]) -> int:
        counted: int = await ctx.llm.count_request(msgspec.structs.replace(request, messages=messages))
        return counted


def _end(parts: Sequence[MessageGroup], transcript: Sequence[Message]) -> int:
    """Return the number of groups up to the newest of the transcript; hooks added the groups after it."""
    newest = next((message for message in reversed(transcript) if message.role != "tool"), None)
    calls = [call.id for call in newest.tool_calls] if newest is not None else []
    for i in range(len(parts) - 1, -1, -1):
        first = parts[i][0]
        if [call.id for call in first.tool_calls] == calls if calls else first == newest:
            return i + 1
    return len(parts)


def _cut(messages: Sequence[Message], limit: int) -> tuple[Message, ...]:
    return tuple(
        msgspec.structs.replace(m, content=excerpt_with_fence(m.content, limit)) if m.role == "tool" else m
        for m in messages
    )
