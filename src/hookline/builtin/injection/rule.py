"""One sign of an attack."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Literal
from unicodedata import normalize

from .stems import Held, Stems, needed

On = Literal["words", "text", "lines"]


class Rule:
    """One sign: looked for in the words alone, or in the text with its punctuation, as one line or as it is.

    Args:
        kind: the kind of attack it is a sign of.
        weight: how much it says, from 0 to 1.
        alternatives: patterns of folded text; any of them is the sign.
        on: what they are looked for in.
    """

    def __init__(self, kind: str, weight: float, *alternatives: str, on: On = "words") -> None:
        self.kind, self.weight, self.on = kind, weight, on
        written = normalize("NFD", "|".join(alternatives))
        self.source = normalize("NFC", re.sub("[\u0300-\u036f]+", "", written))  # as texts are folded

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """What it looks for; compiled when a text may hold it."""
        return re.compile(self.source, re.MULTILINE)

    @cached_property
    def needs(self) -> tuple[tuple[Stems, ...], ...]:
        """The words without which each alternative cannot match."""
        return needed(self.source)

    def may_match(self, held: Held) -> bool:
        """Whether a text holds the words without which it cannot match: much quicker than a search."""
        return any(all(map(held.any_of, groups)) for groups in self.needs)


class Candidates:
    """Rules by the words they need: finds those that may match a text without a look at the others."""

    def __init__(self, rules: Sequence[Rule]) -> None:
        self._rules = rules
        self._by_start: dict[str, set[int]] = {}
        self._by_piece: dict[str, set[int]] = {}
        self._always: set[int] = set()
        for place, rule in enumerate(rules):
            for groups in rule.needs:
                if not groups:
                    self._always.add(place)
                    continue
                for start in groups[0].starts:
                    self._by_start.setdefault(start, set()).add(place)
                for piece in groups[0].pieces:
                    self._by_piece.setdefault(piece, set()).add(place)

    def of(self, held: Held) -> Iterator[Rule]:
        """The rules that may match a text, in their order."""
        places = set(self._always)
        for start in self._by_start.keys() & held.starts:
            places |= self._by_start[start]
        for piece, rules in self._by_piece.items():
            if piece in held.text:
                places |= rules
        return (self._rules[place] for place in sorted(places) if self._rules[place].may_match(held))


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
