"""Between the messages of a framework and Hookline's."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from copy import deepcopy
from typing import Any, NamedTuple

from .._base.attachment import ANY_IMAGE, UNKNOWN, Attachment, Content, sha256_of
from .._kernel.values import Message


class Translation:
    """Messages of a framework and their form in Hookline, so that unchanged ones return exactly as they were.

    With one translation for a whole run (``run.memo``), a message of the framework is also the same message for hooks
    in every request, so that they need not look at it again. A message that was changed in place is another message.

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
        self._read, self._write, self._fields = read, write, fields
        self._known: dict[int, tuple[Any, Any, Message]] = {}  # by the id of the original, which is kept alive here
        self._originals: dict[int, Any] = {}  # by the id of the message

    def read(self, originals: Iterable[Any]) -> tuple[Message, ...]:
        """Return the messages of the framework as Hookline's. Those of earlier requests are forgotten."""
        entries = [self._entry(original) for original in originals]
        self._known = {id(entry[0]): entry for entry in entries}
        self._originals = {id(message): original for original, _, message in entries}
        return tuple([message for _, _, message in entries])

    def _entry(self, original: Any) -> tuple[Any, Any, Message]:
        known, fields = self._known.get(id(original)), self._fields(original)
        if known is not None and known[1] == fields:
            return known
        return original, deepcopy(fields), self._read(original)

    def write(self, messages: Iterable[Message]) -> list[Any]:
        """Return messages as the framework's: the originals, as far as hooks did not change them."""
        return [self._originals[id(each)] if id(each) in self._originals else self._write(each) for each in messages]


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
    """

    def __init__(self) -> None:
        self.messages: list[Message] = []
        self._origins: list[Group] = []
        self._index: dict[int, int] = {}

    def add(self, message: Message, role: str, parts: list[Any], source: Any) -> None:
        """Add a message that was made of these parts of ``source``."""
        self._index[id(message)] = len(self.messages)
        self.messages.append(message)
        self._origins.append(Group(role, parts, source))

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
        if index >= len(self.messages):
            return False
        before = self.messages[index]
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
