"""Helpers for messages: grouping and trimming a transcript, shortening texts, adding to the system message."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import Any

from ..._kernel.payloads import ModelReply, ModelRequest
from ..._kernel.results import HookResult
from ..._kernel.values import Message, ModelResponse

MessageGroup = tuple[Message, ...]


def group_messages(messages: Iterable[Message]) -> list[MessageGroup]:
    """Group each message that calls tools with its results; every other message is a group of its own."""
    found: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and found:
            found[-1].append(message)
        else:
            found.append([message])
    return [tuple(group) for group in found]


def last_user_message(messages: Sequence[Message]) -> Message | None:
    """Return the last message of role user."""
    return next((message for message in reversed(messages) if message.role == "user"), None)


def required_groups(groups: Sequence[MessageGroup], *keep: Message | None) -> set[int]:
    """Return the indexes of groups that must not be removed.

    These are system messages, the last user message, the newest group, and the groups of the messages in ``keep``.
    """
    newest_first = range(len(groups) - 1, -1, -1)
    required = {i for i in newest_first if groups[i][0].role == "system" or i == len(groups) - 1}
    required.update([i for i in newest_first if groups[i][0].role == "user"][:1])
    for message in keep:
        required.update([i for i in newest_first if groups[i][0] == message][:1])
    return required


def messages_without(groups: Sequence[MessageGroup], removed: Iterable[int]) -> tuple[Message, ...]:
    """Return the messages of all groups except those with the ``removed`` indexes."""
    skipped = set(removed)
    return tuple(message for i, group in enumerate(groups) if i not in skipped for message in group)


async def smallest_fitting(low: int, high: int, fits: Callable[[int], Awaitable[bool]]) -> int:
    """Return the smallest number from ``low`` to ``high`` that fits, by bisection.

    If a number fits, all larger ones must fit too; ``high`` is assumed to fit.
    """
    while low < high:
        middle = (low + high) // 2
        if await fits(middle):
            high = middle
        else:
            low = middle + 1
    return high


def excerpt(text: str, limit: int, hint: str = "") -> str:
    """Shorten a text to ``limit`` characters: its beginning, a mark for the omitted part, and its end.

    Args:
        text: the full text.
        limit: maximum number of characters, including the mark.
        hint: text to add to the mark, such as where the full text is stored.
    """
    if len(text) <= limit:
        return text
    room = limit - len(omission_mark(len(text), hint))
    if room <= 0:
        return omission_mark(len(text), hint).strip()[:limit]
    head, tail = (room + 1) // 2, room // 2
    return f"{text[:head]}{omission_mark(len(text) - room, hint)}{text[len(text) - tail :]}"


def omission_mark(count: int, hint: str = "") -> str:
    """Return the mark that replaces ``count`` characters."""
    return f"\n[... {count} characters left out{hint} ...]\n"


async def add_system_text(hook: object, ctx: Any, request: ModelRequest, make: Callable[[], str]) -> HookResult | None:
    """Add a hook's text to the system message of a step's request.

    ``make`` runs in a thread, once for each run, also if a durable run continues in another process. If it raises, the
    error is raised once and the run continues without the text. A request that contains the text already is unchanged.
    """
    if request.purpose != "step":
        return None
    state: dict[str, str] = ctx.own_state(hook, dict)
    if "text" not in state:
        state["text"] = ""
        state["text"] = await ctx.once(f"text of {type(hook).__name__}", partial(asyncio.to_thread, make))
    text = state["text"]
    if not text.strip():
        return None
    messages = list(request.messages)
    at = next((index for index, message in enumerate(messages) if message.role == "system"), None)
    if at is None:
        messages.insert(0, Message("system", text))
    elif text in messages[at].content:
        return None
    else:
        before = messages[at].content
        messages[at] = messages[at].replace(content=f"{before}\n\n{text}" if before else text)
    return HookResult.replace(request.replace(messages=messages), reason="context added")


def to_response(reply: ModelReply) -> ModelResponse:
    """Turn a reply into a response that a hook can answer with.

    It has no usage and no cost: these were counted when the reply was made.
    """
    return ModelResponse(
        reply.content,
        reply.tool_calls,
        finish_reason=reply.finish_reason,
        cost=0.0,
        model=reply.model,
        provider=reply.provider,
        organization_id=reply.organization_id,
    )
