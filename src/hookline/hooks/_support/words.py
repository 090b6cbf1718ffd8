"""Lists of words, phrases and expressions that a text must or must not contain."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from ..._kernel.errors import RegistrationError

WordPattern = str | re.Pattern[str]

_INVISIBLE = re.compile(  # ignorable characters in Unicode, and control characters other than whitespace
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180d\u180f\u2065\u3164"
    r"\ufe00-\ufe0f\uffa0\ufff0-\ufff8\U000e0000-\U000e0fff]"
)


class WordList:
    """Words, phrases and compiled expressions.

    Words match as whole words in any case, Unicode form and spacing; expressions are searched in the text as it was
    written.

    Args:
        entries: the words, phrases and expressions.
        name: the argument that they come from, for error messages.

    Raises:
        RegistrationError: it is not a list, or an entry has the wrong type.
    """

    def __init__(self, entries: Iterable[WordPattern], name: str) -> None:
        self._rules = _rules(entries, name)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def find(self, text: str) -> str | None:
        """Return the first entry that the text contains; ``None`` if it contains none."""
        if not self._rules:
            return None
        plain = normalize_text(text)
        return next((rule.name for rule in self._rules if rule.matches(text, plain)), None)


class _Rule:
    """A compiled entry."""

    def __init__(self, entry: WordPattern) -> None:
        self._as_written = not isinstance(entry, str)
        if isinstance(entry, str):
            self.name, words = entry, normalize_text(entry)
            self._pattern = re.compile(_boundary(words[0], "(?<!") + re.escape(words) + _boundary(words[-1], "(?!"))
        else:
            self.name, self._pattern = entry.pattern, entry

    def matches(self, text: str, plain: str) -> bool:
        return self._pattern.search(text if self._as_written else plain) is not None


def _rules(entries: Any, name: str) -> tuple[_Rule, ...]:
    if isinstance(entries, (str, re.Pattern, Mapping)) or not isinstance(entries, Iterable):
        raise RegistrationError(f"{name} must be a list of words and expressions: [{entries!r}]")
    given = tuple(entries)
    for entry in given:
        words = isinstance(entry, str) and normalize_text(entry)
        if not words and not (isinstance(entry, re.Pattern) and isinstance(entry.pattern, str)):
            raise RegistrationError(f"{name}: an entry must be a word, a phrase or re.compile(...), not {entry!r}")
    return tuple(map(_Rule, given))


def normalize_text(text: str) -> str:
    """Normalise case, compatible characters and whitespace, and remove invisible characters."""
    text = _INVISIBLE.sub("", text)
    if not text.isascii():
        from unicodedata import category, normalize

        text = normalize("NFKC", normalize("NFKC", text).casefold())
        for character in set(text):
            if category(character) == "Cf":
                text = text.replace(character, "")
    return " ".join(text.casefold().split())


def _boundary(edge: str, look: str) -> str:
    """Return a condition that no word character is next to a word; not for scripts that are written without spaces."""
    from unicodedata import east_asian_width

    has_boundary = re.match(r"\w", edge) is not None and east_asian_width(edge) not in ("W", "F")
    return rf"{look}\w)" if has_boundary else ""
