"""The beginning and the end of a text that is too long."""

from __future__ import annotations


def excerpt(text: str, limit: int, where: str = "") -> str:
    """At most ``limit`` characters of a text: its head, a mark that says how many are left out, its tail.

    Args:
        text: the whole.
        limit: how many characters there may be, the mark included.
        where: what the mark also says, such as where the whole is.
    """
    if len(text) <= limit:
        return text
    room = limit - len(left_out(len(text), where))
    if room <= 0:
        return left_out(len(text), where).strip()[:limit]
    head, tail = (room + 1) // 2, room // 2
    return f"{text[:head]}{left_out(len(text) - room, where)}{text[len(text) - tail :]}"


def left_out(count: int, where: str = "") -> str:
    """The mark that stands where so many characters were."""
    return f"\n[... {count} characters left out{where} ...]\n"
