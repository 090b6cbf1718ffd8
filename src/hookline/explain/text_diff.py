"""Differences between two texts, by words, in a form that people read.

``difflib`` compares; this module makes its result readable: whole words, no fragments between two changes, and long
parts that are the same left out. Long texts are compared by lines, because comparing words takes quadratic time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from typing import Literal

Op = Literal["=", "-", "+", "~"]
"""The same, removed, added, or a note about a part that is left out."""
Part = tuple[Op, str]

_WORD = re.compile(r"\w+|\s+|[^\w\s]")
_MAX_COMPARISONS = 400_000
"""Maximum product of the numbers of words (or lines) of two texts that are compared."""
_SMALL = 4
"""An equal part between two changes that is shorter is shown as changed: people read words, not fragments."""


def diff_text(old: str, new: str) -> list[Part]:
    """Return the parts of both texts: ``=`` is in both, ``-`` only in ``old``, ``+`` only in ``new``.

    Example::

        >>> diff_text("rm -rf /tmp/x", "rm -r /tmp/x")
        [('=', 'rm -'), ('-', 'rf'), ('+', 'r'), ('=', ' /tmp/x')]
    """
    if old == new:
        return [("=", old)] if old else []
    for split in (_WORD.findall, _lines):
        before, after = split(old), split(new)
        start = _common(before, after)
        end = _common(before[start:][::-1], after[start:][::-1])
        middle, changed = before[start : len(before) - end], after[start : len(after) - end]
        if len(middle) * len(changed) <= _MAX_COMPARISONS:
            parts = [*_equal(before[:start]), *_compare(middle, changed), *_equal(before[len(before) - end :])]
            return _join(parts)
    start = _common(old, new)
    parts = [*_equal([old[:start]]), ("-", old[start:]), ("+", new[start:])]
    return _join(parts)


def fold(parts: Iterable[Part], *, keep: int = 60, longest: int = 3000) -> list[Part]:
    """Leave out the middle of long equal parts, and the end of very long changes; a ``~`` part says how much."""
    parts = list(parts)
    shown: list[Part] = []
    for position, (op, text) in enumerate(parts):
        if op == "=" and len(text) > 2 * keep + 40:
            head = _cut_at_space(text[:keep]) if position else ""
            tail = text[-keep:].partition(" ")[2] or text[-keep:] if position < len(parts) - 1 else ""
            left_out = len(text) - len(head) - len(tail)
            shown.extend((("=", head), ("~", f"{left_out:,} equal characters"), ("=", tail)))
        elif op in "+-" and len(text) > longest:
            shown.extend(((op, text[:longest]), ("~", f"{len(text) - longest:,} more characters")))
        else:
            shown.append((op, text))
    return [part for part in shown if part[1]]


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def _common(one: Sequence[str], other: Sequence[str]) -> int:
    """Return the number of equal items at the beginning."""
    for position, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return position
    return min(len(one), len(other))


def _equal(items: Sequence[str]) -> list[Part]:
    text = "".join(items)
    return [("=", text)] if text else []


def _compare(before: Sequence[str], after: Sequence[str]) -> list[Part]:
    parts: list[Part] = []
    for op, i, j, k, l in SequenceMatcher(None, before, after, autojunk=False).get_opcodes():  # noqa: E741
        if op == "equal":
            parts.append(("=", "".join(before[i:j])))
        else:
            parts.extend((("-", "".join(before[i:j])), ("+", "".join(after[k:l]))))
    return parts


def _join(parts: Sequence[Part]) -> list[Part]:
    """Join neighbouring changes, and equal parts between them that are too small to help a reader."""
    joined: list[Part] = []
    removed = added = ""

    def close() -> None:
        nonlocal removed, added
        if removed:
            joined.append(("-", removed))
        if added:
            joined.append(("+", added))
        removed = added = ""

    for position, (op, text) in enumerate(parts):
        small = op == "=" and 0 < position < len(parts) - 1 and len(text.strip()) < _SMALL and "\n" not in text
        if op == "-" or small:
            removed += text
        if op == "+" or small:
            added += text
        if op == "=" and not small:
            close()
            joined.append((op, text))
    close()
    return joined


def _cut_at_space(text: str) -> str:
    head, space, _ = text.rpartition(" ")
    return head + space if space else text
