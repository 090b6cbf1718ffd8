"""Results of tools that a conversation has read, as records with fields and as free text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..._base.text import snake_case
from .moments import Moments, moments
from .words import EMAIL, MAX_VALUE, Superlative, Words, identifying, is_address, numbers_in, tokens

_MAX_NAME = 80
_MAX_NAME_WORDS = 6
_FIELD_NAME = re.compile(r"[a-z][a-zA-Z0-9_]*")
_ID_NAME = re.compile(r"(?:^|_)(?:id|uid|uuid|guid|ref|nr|number)s?_?$")
_OWN_ID = re.compile(r"_?(?:id|uid|uuid|guid)_?")

# Kinds of fields, by the end of their names.
_FOR_WHOM = (
    "to|cc|bcc|recipient|receiver|participant|attendee|member|invitee|guest|viewer|editor|watcher|follower|subscriber|"
    "assignee|with"
)
_PLACE = (
    "folder|mailbox|inbox|box|directory|dir|channel|group|room|section|list|label|tag|category|categories|country|city|"
    "region|place|location"
)
_STATE = (
    "status|state|type|kind|class|priority|importance|severity|flag|role|language|locale|currency|unit|format|mime|"
    "visibility|permission|access"
)
_WHEN = "date|day|time|timestamp|year|month|week|start|end|created|modified|updated|received|sent|due|deadline|at|on"
_OF_IT = "(?:_(?:name|title|id|e?mail|address|text|value))?"
_ATTRIBUTE = re.compile(rf"(?:^|_)(?:{_FOR_WHOM}|{_PLACE}|{_STATE}|{_WHEN})(?:e?s)?{_OF_IT}_?$")
"""Entries that have nothing else in common share these."""
_TEXT = re.compile(
    r"(?:^|_)(?:body|text|content|message|description|note|comment|snippet|preview|summary|memo|html|markdown|reason|"
    r"query|search|filter|term|keyword|q)s?_?$"
)
"""Fields with prose, or with the query of a search."""
_TITLE = re.compile(r"(?:^|_)(?:title|subject|headline|topic)_?$")
_WRITER = "sender|from|author|by|reporter|organi[sz]er|creator"
_BY = re.compile(rf"(?:^|_)(?:{_WRITER}|user|username|handle)(?:_name)?_?$")
_WRITTEN_BY = re.compile(rf"(?:^|_)(?:{_WRITER})(?:_(?:name|id|e?mail|address))?_?$")
_AUTHOR = re.compile(rf"(?:^|_)(?:{_WRITER}|e?mail|address|url|uri|link|website|site|iban)_?$")
"""The address of the one whose entry it is."""
_HOLDER = re.compile(r"(?:^|_)(?:owner|user|username|handle|nick|display)(?:_name)?_?$")
"""Its author, unless it names another one: then it may be the user."""
_NAME = re.compile(rf"(?:^|_)(?:name|filename|file|path)_?$|{_TITLE.pattern}|{_AUTHOR.pattern}|{_HOLDER.pattern}")
_CONTAINER = re.compile(rf"(?:^|_)(?:{_PLACE})(?:_name)?_?$")
AMOUNT = re.compile(r"(?:^|_)(?:amount|sum|total|price|cost|fee|value)_?$")
_BARE = re.compile(r"[\d\s:./,TZ+-]+")
"""A number or a date without words around it."""


def is_id_name(name: str) -> bool:
    """Return whether a field or parameter of this name identifies something."""
    return _ID_NAME.search(name) is not None


def is_name(text: str) -> bool:
    """Return whether a text can be a single value, such as a name or an address, and not prose."""
    words = text.split()
    is_sentence = len(words) > 2 and text.rstrip().endswith((".", "!", "?"))
    return len(text) <= _MAX_NAME and "\n" not in text and len(words) <= _MAX_NAME_WORDS and not is_sentence


@dataclass(frozen=True)
class Field:
    """A value in an object."""

    name: str
    value: Any
    single: bool
    """Whether it is the only value of its name, and not an item of a list."""

    @property
    def can_name(self) -> bool:
        """Whether the object can be known by it: not by its kind, its time, or whom it is for."""
        if _is_number(self.value):
            return self.single and (is_id_name(self.name) or AMOUNT.search(self.name) is not None)
        return self.single and _ATTRIBUTE.search(self.name) is None

    @property
    def is_name(self) -> bool:
        """Whether it is the usual name of its object: a name, a title or an author."""
        return self.can_name and _NAME.search(self.name) is not None

    @property
    def is_own_id(self) -> bool:
        """Whether it identifies the object itself: ``id``, and not ``sender_id``."""
        return _OWN_ID.fullmatch(self.name) is not None

    @cached_property
    def key(self) -> frozenset[str]:
        """The words of the value, which "Re: Agenda" and "Agenda" have in common."""
        words = identifying(self.value) if isinstance(self.value, str) else None
        return words or frozenset((_plain(self.value),))

    def is_named(self, words: Words, *, in_message: bool) -> bool:
        """Return whether the user refers to the object by this field."""
        text = str(self.value)
        if _OWN_ID.fullmatch(self.name) and not EMAIL.fullmatch(text) and words.contain(text):
            return True
        if not isinstance(self.value, str):
            return words.contain(text) if is_id_name(self.name) else _is_named(self.value, words)
        if is_address(text):
            return (_WRITTEN_BY if in_message else _AUTHOR).search(self.name) is not None and words.mention_source(text)
        unlabelled = self.value.rpartition(": ")[2]  # the label of "Price: 12" names every entry, and so none
        return all(words.single_out(name, of_message=in_message) for name in (self.value, unlabelled))


class Record:
    """An object in a result: its fields, also those of nested lists and objects, and the prose in them.

    Args:
        name: the name that it has in another object.
        holder: that object.
    """

    def __init__(self, name: str = "", holder: Record | None = None) -> None:
        self.fields: list[Field] = []
        self.texts: list[str] = []
        self._holder = holder
        self._written = _WRITTEN_BY.search(snake_case(name)) is not None

    def add(self, name: str, value: Any, *, single: bool = True) -> None:
        """Add a field, or a text."""
        name = snake_case(name)
        if isinstance(value, str) and (_TEXT.search(name) or not is_name(value)):
            self.texts.append(value)
        elif value is not None and not isinstance(value, bool):
            self.fields.append(Field(name, value, single))
            self._written = self._written or _WRITTEN_BY.search(name) is not None

    def add_part(self, name: str, part: Record, *, single: bool) -> None:
        """Add the fields of a nested object. One with a text of its own, such as a mail in a folder, is no part."""
        if part.has_text:
            return
        self._written = self._written or part._written
        outer = Field(snake_case(name), None, single)
        self.fields += part.fields if outer.can_name else (Field(outer.name, each.value, False) for each in part.fields)

    @property
    def is_message(self) -> bool:
        """Whether the object names its author, or is part of one that does."""
        return self._written or (self._holder is not None and self._holder.is_message)

    @property
    def has_text(self) -> bool:
        """Whether it is an entry that somebody wrote, such as a mail."""
        return bool(self.texts) or any(_TITLE.search(field.name) for field in self.fields)

    @cached_property
    def names(self) -> tuple[Field, ...]:
        """The fields by which the object can be known."""
        known = [field for field in self.fields if field.can_name]
        if self.is_message:
            known = [field for field in known if not _HOLDER.search(field.name)]
        if any(field.is_name for field in known):
            known = [field for field in known if field.is_name or is_id_name(field.name) or _is_number(field.value)]
        if not known and not self.has_text:  # a list of folders or rooms
            known = [field for field in self.fields if field.single and _CONTAINER.search(field.name)]
        return tuple(known)

    def is_from(self, people: Iterable[frozenset[str]]) -> bool:
        """Return whether one of these names is that of the author: "Ann" of "Ann Lee" and of ann.lee@firm.example."""
        authors = [str(field.value) for field in self.fields if _WRITTEN_BY.search(field.name)]
        return any(name <= set(tokens(author.partition("@")[0])) for name in people for author in authors)

    def named_by(self, words: Words) -> list[Field]:
        """Return the fields by which the user refers to the object."""
        return [field for field in self.names if field.is_named(words, in_message=self.is_message)]

    @cached_property
    def values(self) -> frozenset[str]:
        """The values of the fields, as text in lower case."""
        return frozenset(_plain(field.value) for field in self.fields)

    @cached_property
    def text(self) -> str:
        """All text of the record in lower case."""
        return "\n".join((*self.texts, *map(str, self.values))).casefold()

    @cached_property
    def numbers(self) -> frozenset[float]:
        """The numbers that are a field of their own, also as text."""
        found = (field.value for field in self.fields)
        known = (float(value) if _is_number(value) else _as_number(value) for value in found)
        return frozenset(number for number in known if number is not None)

    @cached_property
    def text_numbers(self) -> frozenset[float]:
        """The numbers in its texts, and in its fields beside words."""
        return frozenset().union(*map(numbers_in, self._wordings))

    @cached_property
    def text_moments(self) -> Moments:
        """The dates and times in its texts, and in its fields beside words."""
        return Moments.union(map(moments, self._wordings))

    @cached_property
    def moments(self) -> Moments:
        """All dates and times."""
        return Moments.union((self.text_moments, *(moments(f.value) for f in self.fields if isinstance(f.value, str))))

    @property
    def _wordings(self) -> list[str]:
        strings = [field.value for field in self.fields if isinstance(field.value, str)]
        return [*self.texts, *(text for text in strings if not _BARE.fullmatch(text))]

    def __contains__(self, value: object) -> bool:
        return _plain(value) in self.values

    def refers_to(self, value: str) -> bool:
        """Return whether the object has this value as text or id: a file of 14 bytes says nothing about the file 14."""
        wanted = _plain(value)
        return any(
            _plain(field.value) == wanted and (isinstance(field.value, str) or is_id_name(field.name))
            for field in self.fields
        )

    def is_known_by(self, name: frozenset[str]) -> bool:
        """Return whether the object has a name of these words."""
        return any(field.key == name for field in self.names)

    def contradicts(self, other: Record, value: str) -> bool:
        """Return whether this object casts doubt on a value of another object of the same name.

        It has something else in that place, or it is something else: they have nothing in common but the name.
        """
        if value in self or self.values <= other.values:
            return False
        if len(self.values & other.values) <= 1:
            return True
        wanted = _plain(value)
        places = {field.name for field in other.fields if _plain(field.value) == wanted}
        exact = is_address(value)
        return any(field.name in places or (exact and is_address(str(field.value))) for field in self.fields)

    def matches(self, words: Words) -> int:
        """Return the number of fields that contain what the user wrote, also those that name a kind of entries."""
        return len({_plain(field.value) for field in self.fields if _is_named(field.value, words)})


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
    searched: tuple[frozenset[str], ...] = ()
    """The words of each argument of its call by which the user refers to something, such as a query."""
    sole: Record | None = None
    """The only object in the result."""

    def __init__(self, tool: str, arguments: Mapping[str, Any], result: Any, *, outside: bool) -> None:
        self.tool, self.arguments, self.outside = tool, arguments, outside
        self.raw = result if isinstance(result, str) else ""
        self.records: list[Record] = []
        self.loose = Record()
        """Names and texts that are in no object, such as the items of a list."""
        self.groups: list[list[Record]] = []
        """Objects that are beside one another in a list."""
        self._read("", _listing(result) if isinstance(result, str) else result, self.loose)

    @property
    def label(self) -> str:
        """What the result is, for people: the tool, and the first argument that says what it read."""
        given = (value for _, value in leaves("", self.arguments) if isinstance(value, str) and value)
        what = next(given, "")
        return f"{self.tool} {what!r:.60}" if what else self.tool

    def places(self, kind: re.Pattern[str]) -> dict[str, str]:
        """Return the values of a kind, such as accounts, each with the place where it stands first."""
        found: dict[str, str] = {}
        for number, line in enumerate(self.raw.splitlines(), 1):
            for value in kind.findall(line):
                found.setdefault(value, f"line {number}")
        for record in (self.loose, *self.records):
            name = next((str(field.value) for field in record.names), "")
            entry = f" of the entry {name!r:.40}" if name and record is not self.loose else ""
            for field in record.fields:
                for value in kind.findall(str(field.value)):
                    found.setdefault(value, f"the {field.name or 'list'}{entry}")
            for text in record.texts:
                for value in kind.findall(text):
                    found.setdefault(value, f"in the text{entry}")
        return found

    @cached_property
    def text(self) -> str:
        """All prose, in lower case."""
        return "\n".join(text for record in (self.loose, *self.records) for text in record.texts).casefold()

    @cached_property
    def numbers(self) -> frozenset[float]:
        """The numbers in all fields and lists."""
        return frozenset().union(*(record.numbers for record in (self.loose, *self.records)))

    @cached_property
    def text_numbers(self) -> frozenset[float]:
        """The numbers in texts, however short, such as "Refund 7300"; not those that are a field of their own."""
        return frozenset().union(*(record.text_numbers for record in (self.loose, *self.records)))

    @cached_property
    def text_moments(self) -> Moments:
        """The dates and times in texts, however short."""
        return Moments.union(record.text_moments for record in (self.loose, *self.records))

    @cached_property
    def moments(self) -> Moments:
        """All dates and times, also those in fields."""
        return Moments.union(record.moments for record in (self.loose, *self.records))

    def has(self, value: str) -> bool:
        """Return whether the result contains this value; a short number only as a field of its own."""
        wanted = _plain(value)
        if wanted in self.values:
            return True
        return not wanted.isdigit() and (mentions(self.text, wanted) or any(mentions(v, wanted) for v in self.values))

    def was_given(self, value: str) -> bool:
        """Return whether an argument of the call contains this value."""
        return any(mentions(_plain(argument), value) for _, argument in leaves("", self.arguments))

    def recommends(self, value: str) -> bool:
        """Return whether prose, or a longer name, contains this value."""
        if mentions(self.text, value):
            return True
        more = len(value.split()) + 1
        return any(len(other.split()) > more and mentions(other, value) for other in self.values)

    def offers(self, value: str, *, authors: bool) -> bool:
        """Return whether the result lists this name; one that is only the author of a text counts with ``authors``."""
        wanted = _plain(value)
        if wanted in self.loose.values:
            return True
        return any(
            _plain(field.value) == wanted and (authors or not (record.has_text and _BY.search(field.name)))
            for record in self.records
            for field in record.fields
        )

    def beside(self, value: str) -> frozenset[str]:
        """Return the other names in the lists and fields where the result has this name."""
        wanted = _plain(value)
        found = self.loose.values if wanted in self.loose.values else frozenset()
        names = {field.name for record in self.records for field in record.fields if _plain(field.value) == wanted}
        same = {_plain(f.value) for record in self.records for f in record.fields if f.name in names}
        return (found | same) - {wanted}

    @cached_property
    def values(self) -> frozenset[str]:
        """The values of all fields and the items of all lists, as text in lower case."""
        return self.loose.values.union(*(record.values for record in self.records))

    def find(self) -> Iterator[Record]:
        """Yield the only object that a search returned, if its name contains what the user referred to."""
        if self.sole is not None and any(wanted <= field.key for wanted in self.searched for field in self.sole.names):
            yield self.sole

    def _read(self, name: str, value: Any, record: Record, *, single: bool = True) -> None:
        if isinstance(value, Mapping):
            own = Record(name, record)
            self.records.append(own)
            for key, item in value.items():
                entry = own
                if not _FIELD_NAME.fullmatch(key):  # the keys of a map are values too
                    if record is self.loose:  # such as prices by name: the user who names one names none of the others
                        entry = Record()
                        self.records.append(entry)
                    entry.add(name, key, single=record is self.loose)
                self._read(key, item, entry)
            if record is not self.loose:
                record.add_part(name, own, single=single)
        elif isinstance(value, list):
            group = []
            for item in value:
                before = len(self.records)
                self._read(name, item, record, single=False)
                group += self.records[before : before + 1]
            if value and all(isinstance(item, Mapping) for item in value):
                self.groups.append(group)
                self.sole = group[0] if record is self.loose and len(value) == 1 else None
        else:
            record.add(name, value, single=single)

    def extremes(self, words: Words) -> Iterator[Record]:
        """Yield the record that has the largest or smallest number in its list, if the user asked for that."""
        for superlative in words.superlatives:
            for group in self.groups:
                names = {field.name for record in group for field in record.fields if _is_number(field.value)}
                found = [_extreme(group, name, superlative) for name in _compared(names, superlative)]
                if found and found[0] is not None and all(each is found[0] for each in found):
                    yield found[0]


def is_reference(name: str, value: str, words: Words) -> bool:
    """Return whether the user refers to something by this argument of a call that reads: not by a folder or a time."""
    return _ATTRIBUTE.search(snake_case(name)) is None and not is_address(value) and words.single_out(value)


def _listing(text: str) -> Any:
    """Return the items of a text that is only a list: short lines, each a name or names after a heading."""
    lines = [line.strip(" -*\t") for line in text.splitlines() if line.strip()]
    items = [item.strip() for line in lines for item in line.rpartition(": ")[2].split(", ")]
    return items if len(items) > 1 and all(map(is_name, items)) else text


def _compared(names: Set[str], superlative: Superlative) -> Set[str]:
    """Return the fields that a superlative can be about: those that the user names, else the usual ones, else all."""
    numbers = {name for name in names if not is_id_name(name)}
    named = {name for name in numbers if superlative.words & set(tokens(name))}
    usual = {name for name in numbers if re.search(rf"(?:^|_)(?:{superlative.usual})_?$", name)}
    return named or usual or (set() if superlative.needs_field else numbers)


def _extreme(group: list[Record], name: str, superlative: Superlative) -> Record | None:
    """Return the one record with the largest or smallest number of a field."""
    numbers = [
        next((f.value for f in record.fields if f.name == name and _is_number(f.value)), None) for record in group
    ]
    known = [number for number in numbers if number is not None]
    if len(set(known)) < 2:
        return None
    found = [record for record, number in zip(group, numbers, strict=True) if number == superlative.choose(known)]
    return found[0] if len(found) == 1 else None


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


def _as_number(value: object) -> float | None:
    return next(iter(numbers_in(value)), None) if isinstance(value, str) and _BARE.fullmatch(value) else None


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
