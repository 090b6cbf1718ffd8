"""One sign of an attack."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Literal

_BETWEEN = re.compile(r"[\W_]+")
_SPACE = re.compile(r"\s+")
_LENGTHS = (7, 5, 4, 3, 2)


class Held:
    """A folded text, as signs are looked for in it."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.words = _BETWEEN.sub(" ", text).split()

    @cached_property
    def line(self) -> str:
        """The text as one line."""
        return _SPACE.sub(" ", self.text)


def starts_of(words: Iterable[str]) -> set[str]:
    """The beginnings of words, in a few lengths."""
    different = set(words)
    return set().union(*([word[:length] for word in different] for length in _LENGTHS))


class Rule:
    """One sign that is a form, not a wording.

    Args:
        kind: the kind of attack it is a sign of.
        weight: how much it says, from 0 to 1.
        needs: pieces of which a text that can match holds at least one: quicker to look for than the patterns.
        alternatives: patterns of folded text; any of them is the sign.
        on: ``text`` looks for them in the text as one line, ``lines`` in the text as it is, where ``^`` begins a line.
    """

    def __init__(
        self, kind: str, weight: float, needs: tuple[str, ...], *alternatives: str, on: Literal["text", "lines"]
    ) -> None:
        self.kind, self.weight, self.needs, self._on = kind, weight, needs, on
        self._pattern = re.compile("|".join(alternatives), re.MULTILINE)

    def found(self, held: Held) -> str | None:
        """What a text holds of it."""
        if not any(piece in held.text for piece in self.needs):
            return None
        match = self.search(held)
        return None if match is None else match[0].strip()

    def search(self, held: Held) -> re.Match[str] | None:
        """Look for it, whatever the text holds."""
        return self._pattern.search(held.text if self._on == "lines" else held.line)


class Core:
    """Words that are looked for in the letters of a text alone, as they are, 13 places on, and backwards.

    Args:
        kind: the kind of attack they are a sign of.
        first: the words it begins with.
        rest: a pattern of what follows.
    """

    def __init__(self, kind: str, first: tuple[str, ...], rest: str) -> None:
        self.kind = kind
        self.pattern = re.compile(f"(?:{'|'.join(first)}){rest}")
        self._first = first
        self._turned = [[codecs.encode(word, "rot13") for word in first], [word[::-1] for word in first]]

    def found(self, letters: str, *, turned: bool) -> Iterator[str]:
        """What the letters say, if it is this; ``turned`` for the turned readings too."""
        readings = [letters] if any(word in letters for word in self._first) else []
        if turned:
            rot13, backwards = (any(word in letters for word in words) for words in self._turned)
            readings += [codecs.encode(letters, "rot13")] if rot13 else []
            readings += [letters[::-1]] if backwards else []
        for reading in readings:
            if match := self.pattern.search(reading):
                yield match[0]
