"""Files in the messages of people: read them from their channel, and say which ones the model does not get."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from .._base.attachment import MAX_SIZE, Attachment, AttachmentError, check_size, file_name
from .._base.text import describe
from ..models.attachments import ANY_TYPE, accepts
from ..stores.messages import InboundFile
from .protocol import Channel

log = logging.getLogger("hookline")

READ_SECONDS = 60.0
"""Seconds that a channel may take to read a file."""
MAX_FILES = 20
"""Maximum number of files that are read for one message."""


class FileReader:
    """Read the files of messages for an agent, within its limits.

    A file that cannot be read, or that the model does not take, does not fail the run: the model reads why it is
    missing. In a run it would fail this message and, as part of the conversation, all later ones.

    Args:
        channel: the channel that received the files.
        agent: the agent that answers; what it does not say (``max_attachment``, ``model``) has the usual value.
    """

    def __init__(self, channel: Channel, agent: Any) -> None:
        self._channel: Any = channel
        self._max_size: int | None = getattr(agent, "max_attachment", MAX_SIZE)
        model = getattr(agent, "model", None)
        self._types = ANY_TYPE if model is None else getattr(model, "attachment_types", ())

    async def read(self, files: Iterable[InboundFile]) -> tuple[list[Attachment], list[str]]:
        """Return the files that could be read, and a note for the model about each of the others."""
        found: list[Attachment] = []
        notes: list[str] = []
        for at, file in enumerate(files):
            name = file_name(file.name) or "a file"
            try:
                if at >= MAX_FILES:
                    raise AttachmentError(f"a message may have {MAX_FILES} files")
                found.append(await self._read(file, name))
            except AttachmentError as error:
                notes.append(f"[{name} is not shown: {error}]")
            except Exception as error:  # noqa: BLE001 - the message must be answered without the file
                log.warning("%s: a file of a message cannot be read: %s", self._channel.name, describe(error))
                notes.append(f"[{name} is not shown: it could not be read]")
        return found, notes

    async def _read(self, file: InboundFile, name: str) -> Attachment:
        check_size(file.size, name, self._max_size)
        async with asyncio.timeout(READ_SECONDS):
            data = await self._channel.read_file(file, self._max_size)
        made = Attachment.of(data, name=name, max_size=self._max_size)
        if not accepts(self._types, made):
            raise AttachmentError(f"you cannot read this type: {made}")
        return made
