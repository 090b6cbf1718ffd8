"""A transcript in groups that stay together, and the search for how many of them must go."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Sequence

from .._kernel.values import Message

Group = tuple[Message, ...]


def groups(messages: Iterable[Message]) -> list[Group]:
    """Messages in groups: one that calls tools and all its results are one, every other message is its own."""
    found: list[list[Message]] = []
    for message in messages:
        if message.role == "tool" and found:
            found[-1].append(message)
        else:
            found.append([message])
    return [tuple(group) for group in found]


def last_user(messages: Sequence[Message]) -> Message | None:
    """The last message of role user."""
    return next((message for message in reversed(messages) if message.role == "user"), None)


def must_stay(parts: Sequence[Group], *keep: Message | None) -> set[int]:
    """Where the groups are that may not go: system messages, the last user message, the newest group, and ``keep``."""
    newest_first = range(len(parts) - 1, -1, -1)
    stay = {i for i in newest_first if parts[i][0].role == "system" or i == len(parts) - 1}
    stay.update([i for i in newest_first if parts[i][0].role == "user"][:1])
    for message in keep:
        stay.update([i for i in newest_first if parts[i][0] == message][:1])
    return stay


def without(parts: Sequence[Group], gone: Iterable[int]) -> tuple[Message, ...]:
    """The messages of all groups but these."""
    left_out = set(gone)
    return tuple(message for i, group in enumerate(parts) if i not in left_out for message in group)


async def least(low: int, high: int, fits: Callable[[int], Awaitable[bool]]) -> int:
    """The least number from ``low`` on that fits, if all larger ones do too; ``high`` is taken to fit."""
    while low < high:
        middle = (low + high) // 2
        if await fits(middle):
            high = middle
        else:
            low = middle + 1
    return high
