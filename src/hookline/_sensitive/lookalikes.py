"""Normalised text: look-alikes of ASCII characters become ASCII, and invisible characters are removed."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from functools import lru_cache
from unicodedata import category, decimal, normalize

_ESCAPED = re.compile(r"\\[nrt]")
_FEW = 8
_PIECE = 1024
_CONTROLS = bytes([*range(9), *range(14, 28), 127])
_DASHES = frozenset("\u2010\u2011\u2012\u2013\u2014\u2015\u2043\u2212\u2e3a\u2e3b\ufe58")
_INVISIBLE = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")


class NormalizedText:
    """A normalised text, and the positions of its characters in the original."""

    __slots__ = ("_removed", "text")

    def __init__(self, text: str) -> None:
        self.text, self._removed = _normalize(text)

    def origin(self, index: int) -> int:
        """Return the position in the original of the character at ``index``."""
        return index if not self._removed else index + bisect_right(self._removed, index)

    def index(self, origin: int) -> int:
        """Return the number of characters of the normalised text before position ``origin`` of the original."""
        removed = self._removed
        return origin - bisect_left(range(len(removed)), origin, key=lambda index: removed[index] + index)


def _normalize(text: str) -> tuple[str, list[int]]:
    """Return the normalised text, and for each removed character the number of remaining ones before it."""
    if "\\" in text:  # in JSON and code, \n ends a line: its n does not belong to the next word
        text = _ESCAPED.sub("  ", text)
    if text.isascii() and not _has_controls(text):
        return text, []
    changed = {character: form for character in _characters(text) if (form := _form(character)) != character}
    gone = {character for character, form in changed.items() if not form}
    if len(changed) - len(gone) > _FEW:
        text = text.translate({ord(character): form for character, form in changed.items() if form})
    else:
        for character, form in changed.items():
            if form:
                text = text.replace(character, form)
    if not gone:
        return text, []
    removed = [index for index, character in enumerate(text) if character in gone]
    text = text.translate(dict.fromkeys(map(ord, gone)))
    return text, [index - before for before, index in enumerate(removed)]


def _characters(text: str) -> set[str]:
    """Return the characters of all pieces that are not plain ASCII, which are few in most texts."""
    found: set[str] = set()
    for start in range(0, len(text), _PIECE):
        piece = text[start : start + _PIECE]
        if not piece.isascii() or _has_controls(piece):
            found.update(piece)
    return found


def _has_controls(text: str) -> bool:
    raw = text.encode()
    return len(raw.translate(None, _CONTROLS)) < len(raw)


@lru_cache(maxsize=4096)
def _form(character: str) -> str:
    """Return the replacement of a character: ASCII, nothing if it is invisible, or itself."""
    code = ord(character)
    if code < 128:
        return "" if code in _CONTROLS else character
    if character in _DASHES:
        return "-"
    if character in _INVISIBLE or 0xFE00 <= code <= 0xFE0F or category(character) == "Cf" or 0x80 <= code < 0xA0:
        return character if code == 0x85 else ""
    if category(character) == "Zs":
        return " "
    digit = decimal(character, None)
    if digit is not None:
        return str(digit)
    form = normalize("NFKC", character)
    return form if len(form) == 1 and form.isascii() else character
