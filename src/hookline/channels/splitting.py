"""Split long texts into parts that a platform accepts."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_BREAKS = (
    re.compile(r"\n[^\S\n]*\n\s*"),  # paragraph
    re.compile(r"\n\s*"),
    re.compile(r"(?<=[.!?…。！？])[\"'”’)\]]*\s+"),  # sentence  # noqa: RUF001
    re.compile(r"\s+"),
)
_FENCE = re.compile(r"(?m)^[ ]{0,3}(`{3,}|~{3,})([^\n`]*)$")
_MIN_FILL = 0.3
"""Minimum fraction of a part that must be filled to cut it at a better break; otherwise the next kind is tried."""


def split(text: str, limit: int | None, length: Callable[[str], int] = len) -> list[str]:
    """Split a text into parts of at most ``limit``, between paragraphs, lines, sentences or words if possible.

    White space at the cuts is dropped. A code block that is cut is closed in one part and opened again in the next. A
    visible character is never cut, unless it alone is longer than the limit.

    Args:
        text: the text to send.
        limit: the longest part, as measured by ``length``; ``None`` for no limit.
        length: measures a text as the platform does.
    """
    rest = text.strip()
    if limit is None or length(rest) <= limit:
        return [rest] if rest else []
    parts: list[str] = []
    opening = ""  # the line that reopens the code block in which the last part was cut
    while rest:
        if len(rest) <= limit and length(opening + rest) <= limit:  # measuring all of the rest each time would be slow
            parts.append(opening + rest)
            break
        room = limit - length(opening)
        end = _cut(rest, room, length)
        fence = _open_fence(opening + rest[:end])
        if fence:
            end = _cut(rest, room - length(f"\n{fence[0]}"), length)
            fence = _open_fence(opening + rest[:end])
        if end <= 0 or (opening and not rest[:end].strip()):  # no room for fences: cut the code as plain text
            opening, fence = "", None
            end = max(1, _cut(rest, limit, length))
        part = opening + rest[:end].rstrip()
        opening = ""
        if fence:
            part, opening = f"{part}\n{fence[0]}", f"{fence[0]}{fence[1]}\n"
            rest = rest[end:].lstrip("\n")
        else:
            rest = rest[end:].lstrip()
        if part:
            parts.append(part)
    return parts


def _cut(text: str, room: int, length: Callable[[str], int]) -> int:
    """Return the index at which to cut."""
    fits = _fitting(text, room, length)
    if fits >= len(text):
        return len(text)
    for pattern in _BREAKS:
        best = 0
        for found in pattern.finditer(text, 0, min(len(text), fits + 1)):
            if found.start() <= fits and found.start() > 0:
                best = found.start()
        if best >= fits * _MIN_FILL and best > 0:
            return best
    end = fits
    while end > 0 and is_inside_character(text, end):
        end -= 1
    return end or fits


def _fitting(text: str, room: int, length: Callable[[str], int]) -> int:
    """Return how many characters fit."""
    low, high = 0, min(len(text), max(room, 0))
    while low < high:
        middle = (low + high + 1) // 2
        if length(text[:middle]) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _open_fence(text: str) -> tuple[str, str] | None:
    """Return the fence and the info string of the code block in which a text ends."""
    found: tuple[str, str] | None = None
    for match in _FENCE.finditer(text):
        marks, info = match[1], match[2]
        if found is None:
            found = marks, info
        elif marks.startswith(found[0]) and not info.strip():
            found = None
    return found


def is_inside_character(text: str, at: int) -> bool:
    """Whether a position is inside a visible character, which may consist of several code points."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    if before == "\r" and after == "\n":
        return True
    if before == "\u200d" or after == "\u200d" or unicodedata.category(after) in ("Mn", "Me", "Mc"):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":  # skin tones, region flags
        return True
    if _is_flag(before) and _is_flag(after):
        start = at
        while start > 0 and _is_flag(text[start - 1]):
            start -= 1
        return (at - start) % 2 == 1
    return _is_jamo(before) and _is_jamo(after)


def _is_flag(character: str) -> bool:
    return "\U0001f1e6" <= character <= "\U0001f1ff"


def _is_jamo(character: str) -> bool:
    return "\u1100" <= character <= "\u11ff"
