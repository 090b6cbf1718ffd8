"""A conversation across runs: its transcript and the user's data about it."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from .._base.frozen import EMPTY, History, private_copy
from .._kernel.values import Message


class Session:
    """What outlives a run. Hand the same session to several runs and they share a transcript.

    Args:
        id: how stores and channels know it; made up if left out.
        messages: what was said before, as messages or mappings of their fields.
        metadata: the user's data; each run starts from it and leaves its own here.
        key: how a channel found it.
        platform: where it takes place.
        personality_id: who the agent is in it.
        personality_changes: what is different about that personality in it: its ``id``, and fields.
    """

    def __init__(
        self,
        id: str = "",
        messages: Iterable[Message] = (),
        metadata: Mapping[str, Any] = EMPTY,
        *,
        key: str = "",
        platform: str = "",
        personality_id: str = "",
        personality_changes: Mapping[str, Any] = EMPTY,
    ) -> None:
        self.id = id
        self.messages: Sequence[Message] = _distinct(map(Message.of, messages)) if messages else ()
        self.metadata = metadata
        self.key, self.platform, self.personality_id = key, platform, personality_id
        self.personality_changes = personality_changes
        self._fresh = [] if self.messages else [True]
        self._lock = threading.Lock()
        self._saving = threading.Lock()
        self._given = self.messages
        self._stored: dict[Any, tuple[Sequence[Message], Sequence[Message]]] = {}  # by place: its own, what is there
        self._written: dict[Any, tuple[bytes, bool]] = {}  # by place: the digest of that, and whether it says started

    @property
    def metadata(self) -> Mapping[str, Any]:
        """The user's data. Each read gives a copy of its own; assign a mapping to change it."""
        return private_copy(self._metadata)  # type: ignore[no-any-return]

    @metadata.setter
    def metadata(self, data: Mapping[str, Any]) -> None:
        self._metadata = private_copy(data)

    @property
    def personality_changes(self) -> Mapping[str, Any]:
        """What is different about the personality here. Each read gives a copy; assign a mapping to change it."""
        return private_copy(self._personality_changes)  # type: ignore[no-any-return]

    @personality_changes.setter
    def personality_changes(self, changes: Mapping[str, Any]) -> None:
        self._personality_changes = private_copy(changes)

    def __repr__(self) -> str:
        return f"Session({self.id!r}, {len(self.messages)} messages)"

    def first_run(self) -> bool:
        """Whether this is the first run of the session; true once."""
        try:
            return self._fresh.pop()
        except IndexError:
            return False

    @property
    def started(self) -> bool:
        """Whether it has had its first run."""
        return not self._fresh

    def snapshot(self) -> tuple[Sequence[Message], Mapping[str, Any]]:
        """Messages and metadata as one and the same run left them, for stores."""
        with self._lock:
            return self.messages, self.metadata

    def renamed(self, id: str) -> Session:
        """What it is now under another id, for stores; they know it again when it is saved so another time."""
        return _Renamed(self, id)

    def settle(self, place: Any, taken: Sequence[Message], merged: Sequence[Message]) -> None:
        """Note what a store made of ``taken``, and take it over; what was added since stays at the end."""
        with self._lock:
            if merged is not taken:
                self.messages = (
                    merged if self.messages is taken else History((*merged, *added_messages(taken, self.messages)))
                )
            self._stored[place] = tuple(merged), tuple(merged)

    def save(
        self, base: Sequence[Message], messages: Sequence[Message], added: Sequence[Message], data: Mapping[str, Any]
    ) -> None:
        """Take over what a run made of ``base``.

        If another run saved meanwhile, only the messages this run ``added`` are put after its. Both runs may have
        used the same call ids, since some models number their calls: then those of this run are renamed.
        """
        with self._lock:
            if self.messages is base:
                self.messages = messages
            else:
                self.messages = History((*self.messages, *with_unique_call_ids(self.messages, added)))
            self.metadata = data


class _Renamed(Session):
    """A copy for stores. What others said under its id is stored with it, but is no part of this conversation."""

    def __init__(self, session: Session, id: str) -> None:
        messages, metadata = session.snapshot()
        super().__init__(
            id, messages, metadata, key=session.key, platform=session.platform, personality_id=session.personality_id,
            personality_changes=session.personality_changes,
        )  # fmt: skip
        if session.started:
            self.first_run()
        self._saving, self._given, self._stored = session._saving, session._given, session._stored
        self._written = session._written

    def settle(self, place: Any, taken: Sequence[Message], merged: Sequence[Message]) -> None:
        self._stored[place] = tuple(taken), tuple(merged)


def with_unique_call_ids(before: Sequence[Message], added: Sequence[Message]) -> Sequence[Message]:
    """Messages to put after others, with new ids for the calls whose ids are taken there, and for their results."""
    taken = {call.id for message in before for call in message.tool_calls}
    wanted = [call.id for message in added for call in message.tool_calls]
    if taken.isdisjoint(wanted):
        return added
    renamed: dict[str, str] = {}
    for id in wanted:
        new, number = id, 2
        while new in taken:
            new, number = f"{id}_{number}", number + 1
        taken.add(new)
        renamed[id] = new
    return [
        message.replace(
            tool_calls=tuple(call.replace(id=renamed[call.id]) for call in message.tool_calls),
            call_id=message.call_id if message.call_id is None else renamed.get(message.call_id, message.call_id),
        )
        if message.tool_calls or message.call_id is not None
        else message
        for message in added
    ]


def _distinct(messages: Iterable[Message]) -> tuple[Message, ...]:
    """Messages in which no two calls have the same id: some models number the calls of each reply from 0."""
    given = tuple(messages)
    ids = [call.id for message in given for call in message.tool_calls]
    if len(ids) == len(set(ids)):
        return given
    distinct: list[Message] = []
    turn: list[Message] = []
    for message in given:
        if message.role != "tool":
            distinct += with_unique_call_ids(distinct, turn)
            turn = []
        turn.append(message)
    return (*distinct, *with_unique_call_ids(distinct, turn))


def added_messages(before: Sequence[Message], after: Sequence[Message]) -> Sequence[Message]:
    """The messages that were added to a transcript, even if it was rewritten meanwhile."""
    known = Counter(message.to_json() for message in before)
    added = []
    for message in after:
        data = message.to_json()
        if known[data] > 0:
            known[data] -= 1
        else:
            added.append(message)
    return added
