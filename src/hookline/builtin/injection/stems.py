"""What a pattern cannot match without: read off the pattern itself, so that most rules need no search at all."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property

import msgspec

_WORDS = re.compile(r"[^\W_]+")
_BETWEEN = re.compile(r"\W+")
_SPACE = re.compile(r"\s+")
_LENGTHS = (7, 5, 4, 3, 2)
_KEPT = 3
_NO_LETTERS = re.compile(r"(?!\^)(?:\\[ns]|\\?[^\w\\])+")
_NOT_IN_A_WORD = r"?<!\w)"
_COMMON = frozenset(" .,:;'\"-()!?/")


class Stems(msgspec.Struct, frozen=True):
    """Some beginnings of words and some other pieces: a text that can match holds at least one of them."""

    starts: frozenset[str]
    pieces: frozenset[str] = frozenset()

    @property
    def cost(self) -> float:
        """How likely an ordinary text holds one, roughly: short ones are everywhere, and pieces take a search."""
        return sum(map(_commonness, self.starts)) + 100 * sum(map(_commonness, self.pieces))

    def joined(self, other: Stems) -> Stems:
        """Either of the two."""
        return Stems(self.starts | other.starts, self.pieces | other.pieces)


def _commonness(stem: str) -> float:
    return 0.25 ** len(stem) * (1 if stem.isascii() else 0.001)


class Held:
    """A folded text, its words with one space between them, and the beginnings of these."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.spaced = _BETWEEN.sub(" ", text)
        self.words = self.spaced.replace("_", " ").split()
        self.starts = starts_of(self.words)

    @cached_property
    def line(self) -> str:
        """The text as one line."""
        return _SPACE.sub(" ", self.text)

    def any_of(self, stems: Stems) -> bool:
        """Whether the text holds one of these stems."""
        return not stems.starts.isdisjoint(self.starts) or any(piece in self.text for piece in stems.pieces)


def starts_of(words: Iterable[str]) -> set[str]:
    """The beginnings of words, in the lengths that stems have."""
    different = set(words)
    return set().union(*([word[:length] for word in different] for length in _LENGTHS))


def needed(pattern: str) -> tuple[tuple[Stems, ...], ...]:
    """The stems of each alternative of a pattern: one of each group of at least one alternative is in what it matches.

    An alternative that may match without any known word is an empty group: it has to be searched for.
    """
    return tuple(_best(groups) for groups in _Parser(pattern).alternatives()[0])


def _best(groups: list[Stems]) -> tuple[Stems, ...]:
    return tuple(sorted(groups, key=lambda stems: stems.cost)[:_KEPT])


class _Parser:
    """A reader of the part of the syntax of regular expressions that the rules use."""

    def __init__(self, pattern: str) -> None:
        self.pattern, self.at = pattern, 0

    def alternatives(self, fresh: bool = False) -> tuple[list[list[Stems]], bool]:
        """The groups of each alternative up to the end of this bracket, and whether a word begins after it."""
        found, ends = [], []
        while True:
            groups, end = self._sequence(fresh)
            found.append(groups)
            ends.append(end)
            if self.pattern[self.at : self.at + 1] != "|":
                return found, all(ends)
            self.at += 1

    def _sequence(self, fresh: bool) -> tuple[list[Stems], bool]:
        groups: list[Stems] = []
        literal, begins = "", fresh  # the characters read last, and whether a word begins with the first of them

        def flush() -> None:
            nonlocal literal
            groups.extend(_pieces(literal, begins))
            literal = ""

        while self.at < len(self.pattern) and self.pattern[self.at] not in "|)":
            start = self.at
            character, inner, after = self._atom(fresh)
            least = self._least()
            if character and least is None:
                if not literal:
                    begins = fresh
                literal += character
                fresh = not (character.isalnum() or character == "_")
                continue
            flush()
            if self.pattern.startswith(r"\b", start):
                fresh = True
            elif least == 0:
                fresh = fresh and after
            else:
                groups.extend(_pieces(character, fresh) if character else inner)
                fresh = after
        flush()
        return groups, fresh

    def _atom(self, fresh: bool) -> tuple[str, list[Stems], bool]:
        """The next thing: a character, or what a bracket needs, and whether a word begins after it."""
        character = self.pattern[self.at]
        self.at += 1
        if character == "(":
            return self._bracket(fresh)
        if character == "[":
            start = self.at
            self.at = self.pattern.index("]", self.at + 1 + (self.pattern[self.at] == "^")) + 1
            while self.pattern[self.at - 2] == "\\":
                self.at = self.pattern.index("]", self.at) + 1
            return "", [], _NO_LETTERS.fullmatch(self.pattern, start, self.at - 1) is not None
        if character == "\\":
            character = self.pattern[self.at]
            self.at += 1
            return ("", [], character in "sW") if character.isalnum() else (character, [], True)
        if character in ".^$":
            return "", [], character == "^"
        return character, [], not (character.isalnum() or character == "_")

    def _bracket(self, fresh: bool) -> tuple[str, list[Stems], bool]:
        if self.pattern.startswith(_NOT_IN_A_WORD, self.at):
            self.at = self.pattern.index(")", self.at) + 1
            return "", [], True
        looking = re.compile(r"\?(<?[=!])").match(self.pattern, self.at)
        opening = re.compile(r"\?<?[=!]|\?:|").match(self.pattern, self.at)
        self.at += len(opening[0]) if opening else 0
        alternatives, after = self.alternatives(fresh)
        self.at += 1
        if looking:
            return "", [], fresh
        if len(alternatives) == 1:
            return "", alternatives[0], after
        either = Stems(frozenset())
        for groups in alternatives:
            if not groups:
                return "", [], after
            either = either.joined(_best(groups)[0])
        return "", [either], after

    def _least(self) -> int | None:
        """How often the thing before must be there at least, if a number is given; ``None`` for once."""
        number = re.compile(r"(?:([?*])|(\+)|\{(\d+)(?:,\d*)?\})[?+]?").match(self.pattern, self.at)
        if number is None:
            return None
        self.at = number.end()
        return 0 if number[1] else 1 if number[2] else int(number[3])


def _pieces(literal: str, begins: bool) -> list[Stems]:
    """The stems of a run of characters; those at the beginning of a word are told from the others."""
    found = []
    for word in _WORDS.finditer(literal):
        if word.start() or begins:
            stem = word[0][: next((length for length in _LENGTHS if len(word[0]) >= length), 0)]
            found += [Stems(frozenset({stem}))] if stem else []
        elif len(word[0]) > 1 or not word[0].isascii():
            found.append(Stems(frozenset(), frozenset({word[0]})))
    marks = re.findall(r"[^\w\s]+|_", literal)
    return found + [Stems(frozenset(), frozenset({mark})) for mark in marks if len(mark) > 1 or mark not in _COMMON]
