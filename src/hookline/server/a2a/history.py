"""The history of a task: the messages of its callers as they were sent, without what must not be stored."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec
from a2a.types import Message, Part, Role
from google.protobuf.json_format import MessageToDict, ParseDict

from ..._base.attachment import Attachment, AttachmentError
from ...stores.callers import Caller
from ...stores.runs import RunRecord
from ...stores.task_messages import TaskMessage, TaskMessageStore
from ..errors import UnknownAttachmentError
from ..runs import RunService
from .messages import MessageContent

Clean = Callable[[str], str]
"""Replaces what must not be stored in a text."""

_KEPT = ("messageId", "extensions", "referenceTaskIds")


class StoredMessage(msgspec.Struct, frozen=True):
    """A message as it is stored: ``text`` is what the run got, ``message`` the message without its files.

    A part with a file has its description as ``attachment``: the run keeps the content.
    """

    text: str
    message: dict[str, Any]


class ReceivedMessage(msgspec.Struct, frozen=True):
    """A message of a caller, with the number of the last event before it."""

    event_seq: int
    steered: bool
    text: str
    message: Message


class History:
    """Store and read the messages of tasks.

    Args:
        service: runs the agents, and keeps the files of messages.
        store: the store of the messages.
    """

    def __init__(self, service: RunService, store: TaskMessageStore) -> None:
        self._service = service
        self._store = store

    async def add(
        self, run: RunRecord, message: Message, content: MessageContent, *, event_seq: int = 0, steered: bool = False
    ) -> None:
        """Store a message. ``event_seq`` is the number of the last event that came before it.

        Raises:
            StoreError: the file cannot be used.
        """

        def clean(text: str) -> str:
            return str(self._service.agents.clean(run.agent, text))

        stored = StoredMessage(clean(content.text), _stored_message(message, content.attachments, clean))
        row = TaskMessage(run.id, event_seq, steered, msgspec.json.encode(stored))
        await asyncio.to_thread(self._store.add, row)

    async def read(self, runs: Iterable[RunRecord], caller: Caller) -> dict[str, list[ReceivedMessage]]:
        """Return the messages of runs by run, in order, with the files that are still stored.

        Raises:
            StoreError: a file cannot be used.
        """
        by_id = {run.id: run for run in runs}
        rows = await asyncio.to_thread(self._store.for_runs, by_id)
        return {id: [await self._received(row, by_id[id], caller) for row in found] for id, found in rows.items()}

    async def _received(self, row: TaskMessage, run: RunRecord, caller: Caller) -> ReceivedMessage:
        stored = msgspec.json.decode(row.data, type=StoredMessage)
        parts = stored.message.pop("parts")
        message = ParseDict(stored.message, Message(), ignore_unknown_fields=True)
        message.role, message.task_id, message.context_id = Role.ROLE_USER, run.id, run.session
        for each in parts:
            found = each.pop("attachment", None)
            part = ParseDict(each, Part(), ignore_unknown_fields=True)
            if found is not None:
                await self._add_file(part, msgspec.convert(found, Attachment), run, caller)
            message.parts.append(part)
        return ReceivedMessage(row.event_seq, row.steered, stored.text, message)

    async def _add_file(self, part: Part, file: Attachment, run: RunRecord, caller: Caller) -> None:
        """Add a file to its part; in words if its content is not stored any more."""
        if file.url:
            part.url = file.url
            return
        try:
            kept = await self._service.attachment(run.id, caller, file.digest)
            part.raw = await asyncio.to_thread(lambda: kept.data)
        except (UnknownAttachmentError, AttachmentError):
            part.text = f"[{file}, which is not stored here now]"


def _stored_message(message: Message, files: Sequence[Attachment], clean: Clean) -> dict[str, Any]:
    given = MessageToDict(message)
    left = iter(files)
    parts = [_stored_part(part, left, clean) for part in given.get("parts", ())]
    found = {name: given[name] for name in _KEPT if name in given}
    return found | {"parts": parts} | _metadata(given, clean)


def _stored_part(part: dict[str, Any], files: Iterable[Attachment], clean: Clean) -> dict[str, Any]:
    found = {name: clean(part[name]) for name in ("mediaType", "filename") if name in part} | _metadata(part, clean)
    if "text" in part:
        return found | {"text": clean(part["text"])}
    if "data" not in part:
        file = next(iter(files))
        shown = msgspec.structs.replace(file, name=clean(file.name), url=clean(file.url))
        return found | {"attachment": msgspec.to_builtins(shown)}
    text, value = _cleaned(part["data"], clean)
    return found | ({"text": text} if value is None else {"data": value})


def _metadata(given: Mapping[str, Any], clean: Clean) -> dict[str, Any]:
    _, value = _cleaned(given.get("metadata", {}), clean)
    return {"metadata": value} if isinstance(value, dict) and value else {}


def _cleaned(value: Any, clean: Clean) -> tuple[str, Any]:
    """Return data as cleaned JSON, and as data; ``None`` if the cleaned text is not JSON any more."""
    before = json.dumps(value, ensure_ascii=False)
    text = clean(before)
    if text == before:
        return text, value
    try:
        return text, json.loads(text)
    except ValueError:
        return text, None
