"""Text as a reader takes it: characters that look like ASCII become ASCII, and unseen ones are left out."""

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
_UNSEEN = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")


class Plain:
    """A text in its plain form, and where each character of that was in the original."""

    __slots__ = ("_left_out", "text")

    def __init__(self, text: str) -> None:
        self.text, self._left_out = _plain(text)

    def origin(self, index: int) -> int:
        """Where the character at ``index`` of the plain text stands in the original."""
        return index if not self._left_out else index + bisect_right(self._left_out, index)

    def index(self, origin: int) -> int:
        """How many characters of the plain text stand before ``origin`` in the original."""
        left_out = self._left_out
        return origin - bisect_left(range(len(left_out)), origin, key=lambda place: left_out[place] + place)


def _plain(text: str) -> tuple[str, list[int]]:
    """The plain text; for each character left out, how many stayed before it."""
    if "\\" in text:  # in JSON and code, \n ends a line: its n is no part of what follows
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
    left_out = [index for index, character in enumerate(text) if character in gone]
    text = text.translate(dict.fromkeys(map(ord, gone)))
    return text, [index - before for before, index in enumerate(left_out)]


def _characters(text: str) -> set[str]:
    """Every character that is not plainly ASCII: few pieces of most texts have any."""
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
    """A character as one of ASCII, as nothing if it is not seen, or as it is."""
    code = ord(character)
    if code < 128:
        return "" if code in _CONTROLS else character
    if character in _DASHES:
        return "-"
    if character in _UNSEEN or 0xFE00 <= code <= 0xFE0F or category(character) == "Cf" or 0x80 <= code < 0xA0:
        return character if code == 0x85 else ""
    if category(character) == "Zs":
        return " "
    digit = decimal(character, None)
    if digit is not None:
        return str(digit)
    form = normalize("NFKC", character)
    return form if len(form) == 1 and form.isascii() else character
