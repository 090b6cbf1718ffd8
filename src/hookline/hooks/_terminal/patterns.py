"""Patterns of commands: ``"git push *"`` is a program, a word after it, and any others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase

from ..._kernel.errors import RegistrationError
from ..._kernel.validation import check_names
from ..._toolbox.command_line import Word

Pattern = tuple[str, ...]

_LETTER = re.compile("-[A-Za-z]")
_PIECE = re.compile(r"\[!?\]?[^\]]*\]|.", re.DOTALL)
_MAX_GLOB = 1000


def parse_patterns(given: Iterable[str], name: str) -> tuple[Pattern, ...]:
    """Split patterns into words.

    Raises:
        RegistrationError: a pattern does not begin with a program.
    """
    patterns = tuple(tuple(pattern.split()) for pattern in check_names(given, name, 0))
    for pattern in patterns:
        if not pattern or pattern[0] == "*":
            raise RegistrationError(f"{name}: a pattern must begin with a program, such as 'git commit *'")
    return patterns


def matches(pattern: Pattern, words: Sequence[Word]) -> bool:
    """Return whether the words certainly match the whole pattern; a ``*`` at its end stands for any number of words."""
    if pattern[-1] == "*":
        pattern = pattern[:-1]
        words = words[: len(pattern)]
    return len(words) == len(pattern) and all(map(_is_match, words, pattern))


def _is_match(word: Word, part: str) -> bool:
    return not word.expansions and fnmatchcase(word.text, part)


def may_occur(pattern: Pattern, words: Sequence[Word]) -> bool:
    """Return whether a command may match a pattern: its program, and the other words in this order among others.

    A glob or a variable may stand for any word that fits. A long option may be abbreviated or have a value, and a
    letter may be one of several.
    """
    if not _may_match(words[0], pattern[0]) and not fnmatchcase(os.path.basename(words[0].text), pattern[0]):
        return False
    left = iter(words[1:])
    return all(any(_may_match(word, part) for word in left) for part in pattern[1:] if part != "*")


def _may_match(word: Word, part: str) -> bool:
    text = word.text
    if fnmatchcase(text, part) or (word.pattern and overlap(word.pattern, part)):
        return True
    if part.startswith("--"):
        option = text.partition("=")[0]
        return len(option) > 2 and (part.startswith(option) or fnmatchcase(option, part))
    return bool(_LETTER.fullmatch(part) and re.match("-[A-Za-z]", text) and part[1] in text)


def overlap(first: str, second: str) -> bool:
    """Return whether some text may match both globs. Sets such as ``[a-z]`` count as any character."""
    if len(first) > _MAX_GLOB:
        return True
    one, two = _PIECE.findall(first), _PIECE.findall(second)
    below = [all(piece == "*" for piece in two[at:]) for at in range(len(two) + 1)]
    for piece in reversed(one):
        row = [piece == "*" and below[-1]]
        for at in range(len(two) - 1, -1, -1):
            if "*" in (piece, two[at]):  # a star matches nothing, or one more piece of the other glob
                row.append(below[at] or row[-1])
            else:
                same = piece == two[at] or any(len(each) > 1 or each == "?" for each in (piece, two[at]))
                row.append(same and below[at + 1])
        below = row[::-1]
    return below[0]
