"""Between the messages of a framework and Hookline's."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from .._base.attachment import ANY_IMAGE, UNKNOWN, Attachment, Content, sha256_of
from .._base.frozen import History
from .._kernel.values import Message, ToolCall, ToolSpec
from ..tools._tool import jsonable

replace = msgspec.structs.replace

_ATOMS = (str, type(None), int, float, bytes, type, Enum)


class _Unknown:
    """The place of a value in a copy of fields that may change without a trace. It equals nothing."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return False


def _copied(value: Any) -> Any:
    """Return a copy of fields, to see later whether one was changed in place."""
    if isinstance(value, _ATOMS):
        return value
    kind = type(value)
    if kind is dict:
        return {key: item if isinstance(item, _ATOMS) else _copied(item) for key, item in value.items()}
    if kind in (list, tuple):
        return kind([item if isinstance(item, _ATOMS) else _copied(item) for item in value])
    return _Unknown()


def _are_same(copy: Any, fields: Any) -> bool:
    """Whether fields are still as they were when they were copied."""
    try:
        return bool(copy == fields)
    except Exception:  # noqa: BLE001 - a value that cannot be compared, such as a table
        return False


class Reading(NamedTuple):
    """The messages of one request: those of the framework, and for each of them the messages that hooks see."""

    originals: list[Any]
    each: list[tuple[Message, ...]]
    messages: History[Message]
    """All messages that hooks see."""


class ToolSpecs:
    """Descriptions of tools for hooks. One is made anew only if the framework describes the tool in another way.

    Example::

        specs = ToolSpecs()
        spec = specs.spec("shell", "Runs a command.", {"type": "object"})
        specs.spec("shell", "Runs a command.", {"type": "object"}) is spec  # True
    """

    def __init__(self) -> None:
        self._known: dict[str, tuple[Any, ToolSpec]] = {}

    def spec(self, name: str, description: str, parameters: Any) -> ToolSpec:
        """Return the description of a tool."""
        values = name, description, parameters
        return self.made_of(values, lambda: ToolSpec(name, description, jsonable(parameters)))

    def made_of(self, values: tuple[Any, ...], make: Callable[[], ToolSpec]) -> ToolSpec:
        """Return the description that ``make`` returns for these values, the name of the tool first."""
        copy, spec = self._known.get(values[0], (_Unknown(), None))
        if spec is None or not _are_same(copy, values):
            spec = make()
            self._known[values[0]] = _copied(values), spec
        return spec


class _Links:
    """What results take from the calls before them: a name, and an id if the framework removed it.

    Args:
        id_prefix: the beginning of the ids that replace removed ones.
    """

    def __init__(self, id_prefix: str) -> None:
        self._id_prefix = id_prefix
        self._made = 0
        self._open: dict[str | None, deque[str]] = {}
        """The new ids that have no result yet, by the name of the tool."""
        self._names: dict[str | None, str] = {}

    def add(self, message: Message) -> Message:
        """Return the next message of the conversation with its ids and its name."""
        if message.role == "tool":
            if self._id_prefix and not message.call_id:
                waiting = self._open.get(message.name)
                message = message.replace(call_id=waiting.popleft() if waiting else f"{self._id_prefix}0")
            if message.name is None and message.call_id in self._names:
                message = message.replace(name=self._names[message.call_id])
        elif message.tool_calls:
            if self._id_prefix and not all(call.id for call in message.tool_calls):
                message = message.replace(tool_calls=tuple(map(self._with_id, message.tool_calls)))
            self._names.update([(call.id, call.name) for call in message.tool_calls])
        return message

    def _with_id(self, call: ToolCall) -> ToolCall:
        if call.id:
            return call
        self._made += 1
        made = f"{self._id_prefix}{self._made}"
        self._open.setdefault(call.name, deque()).append(made)
        return replace(call, id=made)


Columns = tuple[list[Any], ...]


class Reader:
    """Reads the messages of a framework for hooks. With one reader for a whole run, only new and changed ones are read.

    So a request costs little more in a long conversation, and a message of the framework is also the same message for
    hooks in every request. A message that was changed in place is another message, unless its values are equal to those
    before, such as ``1`` and ``True``.

    Args:
        fields: returns the values of messages of the framework that ``read`` looks at: texts, numbers, and lists,
            tuples and dicts of them. They come in columns, because those of a whole conversation are read and compared
            in every request, which is fast for long lists; the columns of two messages are those of each of them,
            joined. A message with other values is read again in every request.
        read: returns the messages that hooks see. Results of tools without a name get that of the call before them.
        id_prefix: the beginning of new ids for calls that have none; empty to leave them so. Results without an id get
            that of a call of the same tool, in order.

    Example::

        reader = Reader(lambda given: ([each["text"] for each in given],), lambda each: [Message("user", each["text"])])
        reader.read([{"text": "Hello"}]).messages  # (Message("user", "Hello"),)
    """

    def __init__(
        self, fields: Callable[[list[Any]], Columns], read: Callable[[Any], Iterable[Message]], id_prefix: str = ""
    ) -> None:
        self._columns_of, self._read, self._id_prefix = fields, read, id_prefix
        self.specs = ToolSpecs()
        """The descriptions of the tools in the requests that it reads."""
        self._originals: list[Any] = []
        self._forget()

    def _forget(self) -> None:
        self._columns: Columns = ()
        self._fields: list[Columns] = []
        """The columns of each message."""
        self._unlinked: list[tuple[Message, ...]] = []
        self._each: list[tuple[Message, ...]] = []
        self._messages: History[Message] = History()
        self._links = _Links(self._id_prefix)

    def read(self, originals: Iterable[Any]) -> Reading:
        """Return the messages of the framework as hooks see them. Those of earlier requests are forgotten."""
        given = list(originals)
        known: dict[int, tuple[Any, tuple[Message, ...], tuple[Message, ...]]] = {}
        if not self._begin(given):  # something else than new messages at the end
            entries = zip(self._fields, self._unlinked, self._each, strict=True)
            known = dict(zip(map(id, self._originals), entries, strict=True))
            self._forget()
        for original in given[len(self._fields) :]:
            fields = self._columns_of([original])
            copy, unlinked, messages = known.pop(id(original), (_Unknown(), (), ()))
            if not _are_same(copy, fields):
                copy, unlinked = _copied(fields), tuple(self._read(original))
            linked = tuple(map(self._links.add, unlinked))
            self._add(copy, unlinked, messages if messages == linked else linked)
        self._originals = given
        return Reading(given, self._each, self._messages)

    def _begin(self, given: list[Any]) -> bool:
        """Whether messages begin with all those of the last request, as they were then."""
        size = len(self._fields)
        return size == 0 or (len(given) >= size and _are_same(self._columns, self._columns_of(given[:size])))

    def _add(self, fields: Columns, unlinked: tuple[Message, ...], messages: tuple[Message, ...]) -> None:
        self._columns = self._columns or tuple([[] for _ in fields])
        for column, values in zip(self._columns, fields, strict=True):
            column.extend(values)
        self._fields.append(fields)
        self._unlinked.append(unlinked)
        self._each.append(messages)
        self._messages = self._messages.plus(*messages)


class Translation:
    """Messages of a framework and their form in Hookline, so that unchanged ones return exactly as they were.

    Args:
        read: returns a message of the framework as Hookline's.
        write: returns a message of Hookline as the framework's.
        fields: returns the values that ``read`` depends on, to see whether a message was changed in place.

    Example::

        translation = Translation(to_hookline, to_framework, lambda given: given["text"])
        messages = translation.read(request.messages)
        request.messages = translation.write(messages)  # the same objects, unless a hook changed something
    """

    def __init__(
        self, read: Callable[[Any], Message], write: Callable[[Message], Any], fields: Callable[[Any], Any]
    ) -> None:
        self._write = write
        self._reader = Reader(lambda given: (list(map(fields, given)),), lambda given: (read(given),))
        self.specs = self._reader.specs
        self._reading = Reading([], [], History())

    def read(self, originals: Iterable[Any]) -> Sequence[Message]:
        """Return the messages of the framework as Hookline's. Those of earlier requests are forgotten."""
        self._reading = self._reader.read(originals)
        return self._reading.messages

    def write(self, messages: Sequence[Message]) -> list[Any]:
        """Return messages as the framework's: the originals, as far as hooks did not change them."""
        given = self._reading
        if messages is given.messages:
            return list(given.originals)
        originals = {id(message): each for message, each in zip(given.messages, given.originals, strict=True)}
        return [originals[id(each)] if id(each) in originals else self._write(each) for each in messages]


class Group(NamedTuple):
    """Parts that become one message of the framework. ``source`` is the message that they came from, or ``None``."""

    role: str
    parts: list[Any]
    source: Any = None


class Transcript:
    """Hookline's view of the messages of a framework, and the way back.

    A message of a framework is a list of parts: several tool results, images, reasoning, cache points. Hookline's
    messages contain text and calls. So a message remembers the parts that it was made of: one that no hook changed goes
    back as it came, and one whose text a hook changed keeps its other parts.

    Args:
        reading: the messages of a request.
        split: returns the parts of a message of the framework, a group for each message that hooks see.
    """

    def __init__(self, reading: Reading, split: Callable[[Any], Sequence[Group]]) -> None:
        self._reading, self._split = reading, split

    @cached_property
    def _messages(self) -> Sequence[Message]:
        return tuple(self._reading.messages)

    @cached_property
    def _origins(self) -> list[Group]:
        return [group for original in self._reading.originals for group in self._split(original)]

    @cached_property
    def _index(self) -> dict[int, int]:
        return {id(message): index for index, message in enumerate(self._messages)}

    def contains(self, message: Message) -> bool:
        """Return whether this very message is part of the transcript."""
        return id(message) in self._index

    def restore(
        self,
        messages: Iterable[Message],
        build: Callable[[Message, Sequence[Any]], Group],
        merged: frozenset[str],
    ) -> list[Group]:
        """Return the messages of the framework for these messages.

        Args:
            messages: the messages after the hooks.
            build: makes the parts of a new or changed message; its second argument is the parts that a changed
                message had before.
            merged: roles of which neighbouring new messages become one.
        """
        found = list(messages)
        kept = {index for message in found if (index := self._index.get(id(message))) is not None}
        groups: list[Group] = []
        previous = -1
        for message in found:
            index = self._index.get(id(message))
            if index is None:
                following = previous + 1
                changed = following not in kept and self._is_version_of(message, following)
                group = build(message, self._origins[following].parts if changed else ())
                if changed:
                    previous, group = following, group._replace(source=self._origins[following].source)
            else:
                previous, group = index, self._origins[index]
            last = groups[-1] if groups else None
            if last is not None and _same_message(last, group, merged):
                groups[-1] = last._replace(parts=[*last.parts, *group.parts])
            else:
                groups.append(group)
        return groups

    def _is_version_of(self, message: Message, index: int) -> bool:
        if index >= len(self._messages):
            return False
        before = self._messages[index]
        return before.role == message.role and before.call_id == message.call_id


def _same_message(last: Group, group: Group, merged: frozenset[str]) -> bool:
    if last.source is not None and group.source is not None:
        return last.source is group.source
    return last.role == group.role and group.role in merged


def split_system(messages: Iterable[Message]) -> tuple[str, list[Message]]:
    """Return the text of all system messages, and the other messages."""
    system, others = [], []
    for message in messages:
        if message.role == "system":
            system.append(message.content)
        else:
            others.append(message)
    return "\n\n".join(system), others


def file_of(media_type: str, data: bytes | None = None, url: str = "", name: str = "") -> Attachment:
    """Return a file in a message of a framework: its content, or the URL where the vendor finds it."""
    if data is None:
        return Attachment(media_type or ANY_IMAGE, sha256_of(url.encode()), 0, name, url)
    content = Content(sha256_of(data), data)  # the attachment keeps it
    return Attachment(media_type or UNKNOWN, content.digest, len(data), name)


def files_in(parts: Iterable[Any], read: Callable[[Any], Attachment | None]) -> tuple[Attachment, ...]:
    """Return the files among the parts of a message. ``read`` returns the file of a part, or ``None``."""
    return tuple([file for part in parts if (file := read(part)) is not None])


def without_removed(
    parts: Iterable[Any], files: Sequence[Attachment], read: Callable[[Any], Attachment | None]
) -> list[Any]:
    """Return the parts of a message without the files that a hook removed from it."""
    kept = {file.digest for file in files}
    return [part for part in parts if (file := read(part)) is None or file.digest in kept]
