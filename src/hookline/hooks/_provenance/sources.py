"""Results of tools that a conversation has read, as records with fields and as free text."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from .words import MAX_VALUE, Words, numbers_in

_MAX_NAME = 80
_MAX_NAME_WORDS = 6
_FIELD_NAME = re.compile(r"[a-z][a-zA-Z0-9_]*")
_ID_NAME = re.compile(r"(?:^|_)(?:id|uid|uuid|guid|ref|nr|number)s?_?$")


def is_id_name(name: str) -> bool:
    """Return whether a field or parameter of this name identifies something."""
    return _ID_NAME.search(name) is not None


def is_name(text: str) -> bool:
    """Return whether a text can be a single value, such as a name or an address, and not prose."""
    words = text.split()
    is_sentence = len(words) > 2 and text.rstrip().endswith((".", "!", "?"))
    return len(text) <= _MAX_NAME and "\n" not in text and len(words) <= _MAX_NAME_WORDS and not is_sentence


class Record:
    """An object in a result: its fields, also those of nested lists and objects, and the prose in them."""

    def __init__(self) -> None:
        self.fields: list[tuple[str, Any]] = []
        self.texts: list[str] = []

    def add(self, name: str, value: Any) -> None:
        """Add a field."""
        if isinstance(value, str) and not is_name(value):
            self.texts.append(value)
        elif value is not None and not isinstance(value, bool):
            self.fields.append((name, value))

    @cached_property
    def values(self) -> frozenset[str]:
        """The values of the fields, as text in lower case."""
        return frozenset(_plain(value) for _, value in self.fields)

    @cached_property
    def text(self) -> str:
        """All text of the record in lower case."""
        return "\n".join((*self.texts, *map(str, self.values))).casefold()

    def __contains__(self, value: object) -> bool:
        return _plain(value) in self.values

    def matches(self, words: Words) -> int:
        """Return the number of fields that the user named."""
        return len({_plain(value) for _, value in self.fields if _is_named(value, words)})


class Source:
    """A result of a tool.

    Args:
        tool: the name of the tool.
        arguments: the arguments of its call.
        result: its result, as JSON or text.
        outside: whether it came over the network.
    """

    designated = False
    """Whether the user's words led to it: whether the arguments of its call come from there."""
    named = False
    """Whether the user named it by an address or a file name."""
    searched = False
    """Whether an argument of its call, such as a query, is in the user's words."""
    sole: Record | None = None
    """The only object in the result."""

    def __init__(self, tool: str, arguments: Mapping[str, Any], result: Any, *, outside: bool) -> None:
        self.tool, self.arguments, self.outside = tool, arguments, outside
        self.records: list[Record] = []
        self.loose = Record()
        """Names and texts that are in no object, such as the items of a list."""
        self.groups: list[list[Record]] = []
        """Objects that are beside one another in a list."""
        self._read("", _listing(result) if isinstance(result, str) else result, self.loose)

    @cached_property
    def text(self) -> str:
        """All prose, in lower case."""
        return "\n".join(text for record in (self.loose, *self.records) for text in record.texts).casefold()

    @cached_property
    def numbers(self) -> frozenset[float]:
        """The numbers in all fields and lists."""
        fields = (field for record in (self.loose, *self.records) for field in record.fields)
        return frozenset(float(value) for _, value in fields if _is_number(value))

    @cached_property
    def text_numbers(self) -> frozenset[float]:
        """The numbers in the prose."""
        return numbers_in(self.text)

    def has(self, value: str) -> bool:
        """Return whether the result contains this value; a short number only as a field of its own."""
        wanted = _plain(value)
        if wanted in self.values:
            return True
        return not wanted.isdigit() and (mentions(self.text, wanted) or any(mentions(v, wanted) for v in self.values))

    def recommends(self, value: str) -> bool:
        """Return whether prose, or a longer name, contains this value."""
        if mentions(self.text, value):
            return True
        more = len(value.split()) + 1
        return any(len(other.split()) > more and mentions(other, value) for other in self.values)

    @cached_property
    def values(self) -> frozenset[str]:
        """The values of all fields and the items of all lists, as text in lower case."""
        return self.loose.values.union(*(record.values for record in self.records))

    def _read(self, name: str, value: Any, record: Record) -> None:
        if isinstance(value, Mapping):
            own = Record()
            self.records.append(own)
            for key, item in value.items():
                entry = own
                if not _FIELD_NAME.fullmatch(key):  # the keys of a map are values too
                    if record is self.loose:  # such as prices by name: the user who names one names none of the others
                        entry = Record()
                        self.records.append(entry)
                    entry.add(name, key)
                self._read(key, item, entry)
            if record is not self.loose:
                record.fields += own.fields
                record.texts += own.texts
        elif isinstance(value, list):
            before = len(self.records)
            for item in value:
                self._read(name, item, record)
            if value and all(isinstance(item, Mapping) for item in value):
                self.groups.append(self.records[before:])
                self.sole = self.records[before] if record is self.loose and len(value) == 1 else None
        else:
            record.add(name, value)

    def extremes(self, words: Words) -> Iterator[Record]:
        """Yield the records that have the largest or smallest number in their list, if the user asked for that."""
        for choose in words.superlatives:
            for group in self.groups:
                for name in {name for record in group for name, value in record.fields if _is_number(value)}:
                    if not is_id_name(name):
                        yield from _extreme(group, name, choose)


def _listing(text: str) -> Any:
    """Return the items of a text that is only a list: short lines, each a name or names after a heading."""
    lines = [line.strip(" -*\t") for line in text.splitlines() if line.strip()]
    items = [item.strip() for line in lines for item in line.rpartition(": ")[2].split(", ")]
    return items if len(items) > 1 and all(map(is_name, items)) else text


def _extreme(group: list[Record], name: str, choose: Any) -> Iterator[Record]:
    numbers = [next((v for key, v in record.fields if key == name and _is_number(v)), None) for record in group]
    known = [number for number in numbers if number is not None]
    if len(set(known)) > 1:
        yield from (record for record, number in zip(group, numbers, strict=True) if number == choose(known))


def mentions(text: str, value: str) -> bool:
    """Return whether a text in lower case contains a value as whole words."""
    wanted = _plain(value)
    if not wanted or len(wanted) > MAX_VALUE or wanted not in text:
        return False
    return re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", text) is not None


def leaves(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the scalar values in arguments, each with the name that it has there."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from leaves(key, item)
    elif isinstance(value, list):
        for item in value:
            yield from leaves(name, item)
    elif value is not None and not isinstance(value, bool):
        yield name, value


def _plain(value: object) -> str:
    return str(value).casefold().strip()


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _is_named(value: Any, words: Words) -> bool:
    """Return whether the user wrote this name or this number; small whole numbers say too little."""
    if isinstance(value, str):
        unlabelled = value.rpartition(": ")[2]  # the label of "Price: 12" names every entry, and so none
        return words.name(value) and words.name(unlabelled)
    return (isinstance(value, float) or abs(value) >= 100) and float(value) in words.numbers
