"""Transcripts for hooks that read ``transcript_path``: one file per conversation, in the format of Claude Code."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..._base.files import file_name_for
from ..._base.frozen import thaw
from ..._kernel.values import Message
from .protocol import encode

Translate = Callable[[str, Mapping[str, Any]], tuple[str, dict[str, Any]]]


class Transcript:
    """The transcript of one conversation. Messages are appended shortly before a hook is called.

    Args:
        folder: the folder of the file.
        name: the id of the session, or that of a subagent.
        translate: turns the name and the arguments of a call into those of Claude Code.
    """

    def __init__(self, folder: Path, name: str, translate: Translate) -> None:
        self.path = folder / f"{file_name_for(name)}.jsonl"
        self._translate = translate
        self._written: dict[int, Message] = {}  # by identity; the values keep the ids from being used again
        self._last: str | None = None

    def append(self, messages: Sequence[Message], session: str, cwd: str) -> None:
        """Write the messages that are not in the file yet. Only the user may read it."""
        new = [message for message in messages if id(message) not in self._written]
        if not new and self._last is not None:
            return
        lines = b""
        for message in new:
            self._written[id(message)] = message
            line = {
                "parentUuid": self._last,
                "uuid": str(uuid.uuid4()),
                "sessionId": session,
                "cwd": cwd,
                "timestamp": time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime()),
                **self._content(message),
            }
            self._last = line["uuid"]
            lines += encode(line) + b"\n"
        opened = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        with open(opened, "ab") as file:
            file.write(lines)

    def _content(self, message: Message) -> dict[str, Any]:
        if message.role == "tool":
            block: dict[str, Any] = {"type": "tool_result", "tool_use_id": message.call_id, "content": message.content}
            if message.is_error:
                block["is_error"] = True
            return {"type": "user", "message": {"role": "user", "content": [block]}}
        if message.role != "assistant":
            return {"type": message.role, "message": {"role": message.role, "content": message.content}}
        blocks: list[dict[str, Any]] = [{"type": "text", "text": message.content}] if message.content else []
        for call in message.tool_calls:
            name, arguments = self._translate(call.name, thaw(call.arguments))
            blocks.append({"type": "tool_use", "id": call.id, "name": name, "input": arguments})
        return {"type": "assistant", "message": {"role": "assistant", "content": blocks}}
