"""Long texts in parts that a platform takes."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable

_BREAKS = (
    re.compile(r"\n[^\S\n]*\n\s*"),  # a paragraph
    re.compile(r"\n\s*"),
    re.compile(r"(?<=[.!?…。！？])[\"'”’)\]]*\s+"),  # a sentence  # noqa: RUF001
    re.compile(r"\s+"),
)
_FENCE = re.compile(r"(?m)^[ ]{0,3}(`{3,}|~{3,})([^\n`]*)$")
_SHARE = 0.3
"""How full a part must be at least to be cut at a better place: else a poorer one is taken."""


def split(text: str, limit: int | None, length: Callable[[str], int] = len) -> list[str]:
    """The text in parts of at most ``limit``, cut between paragraphs, lines, sentences or words if that can be.

    White space at the cuts is left out. A block of code that is cut is closed in one part and opened again in the
    next. What people see as one character is never cut, unless it alone is longer than the limit.

    Args:
        text: what to send.
        limit: how long a part may be; ``None`` for any length.
        length: how long a text is, as the platform counts.
    """
    rest = text.strip()
    if limit is None or length(rest) <= limit:
        return [rest] if rest else []
    parts: list[str] = []
    opening = ""  # the line that opens the block of code which the last part was cut in
    while rest:
        if len(rest) <= limit and length(opening + rest) <= limit:  # to measure all that is left each time takes long
            parts.append(opening + rest)
            break
        room = limit - length(opening)
        end = _cut(rest, room, length)
        fence = _open_fence(opening + rest[:end])
        if fence:
            end = _cut(rest, room - length(f"\n{fence[0]}"), length)
            fence = _open_fence(opening + rest[:end])
        if end <= 0 or (opening and not rest[:end].strip()):  # no room for marks around code: it is cut as plain text
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
    """Where to cut: the index of what comes after."""
    fits = _fitting(text, room, length)
    if fits >= len(text):
        return len(text)
    for pattern in _BREAKS:
        best = 0
        for found in pattern.finditer(text, 0, min(len(text), fits + 1)):
            if found.start() <= fits and found.start() > 0:
                best = found.start()
        if best >= fits * _SHARE and best > 0:
            return best
    end = fits
    while end > 0 and joined(text, end):
        end -= 1
    return end or fits


def _fitting(text: str, room: int, length: Callable[[str], int]) -> int:
    """How many characters fit."""
    low, high = 0, min(len(text), max(room, 0))
    while low < high:
        middle = (low + high + 1) // 2
        if length(text[:middle]) <= room:
            low = middle
        else:
            high = middle - 1
    return low


def _open_fence(text: str) -> tuple[str, str] | None:
    """The marks, and what follows them, of the block of code that a text ends in."""
    found: tuple[str, str] | None = None
    for match in _FENCE.finditer(text):
        marks, info = match[1], match[2]
        if found is None:
            found = marks, info
        elif marks.startswith(found[0]) and not info.strip():
            found = None
    return found


def joined(text: str, at: int) -> bool:
    """Whether the characters before and after this place are seen as one, or are halves of one."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    if "\ud800" <= before <= "\udbff" and "\udc00" <= after <= "\udfff":
        return True
    if before == "\r" and after == "\n":
        return True
    if before == "\u200d" or after == "\u200d" or unicodedata.category(after) in ("Mn", "Me", "Mc"):
        return True
    if "\U0001f3fb" <= after <= "\U0001f3ff" or "\U000e0020" <= after <= "\U000e007f":  # skins, and flags of regions
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
