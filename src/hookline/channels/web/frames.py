"""Frames that the chat page and the server exchange over a WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec

from ...explain.words import OUTCOMES, verb_words
from ...stores.chats import MAX_FILES, ChatMessage
from ..protocol import ApprovalPrompt, Draft, Step

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

log = logging.getLogger("hookline")

STEPS = "steps"
"""The kind of a stored message with the steps of a run."""
_STATES = {"running": ("running", "blue"), "waiting": ("waits for approval", "violet"), "ok": ("done", "green")}

IDLE = ("", 0)
"""Activity of a conversation in which no message is being answered and none waits."""


class HelloFrame(msgspec.Struct, tag="hello", frozen=True):
    """The first frame: the conversation of the page, and the last change that the page has received."""

    chat: str
    after: int = 0


class UploadedFile(msgspec.Struct, frozen=True):
    """A file that the page has uploaded."""

    id: str
    name: str = ""


class MessageFrame(msgspec.Struct, tag="message", frozen=True):
    """A message with its files. Its id stays the same when the page sends it again."""

    id: str
    text: str
    files: Annotated[tuple[UploadedFile, ...], msgspec.Meta(max_length=MAX_FILES)] = ()


class DecisionFrame(msgspec.Struct, tag="decision", frozen=True):
    """A pressed button below a call. ``key`` is the key of the message that shows the call."""

    id: str
    key: str
    decision: Literal["approve", "session", "deny"]


class PingFrame(msgspec.Struct, tag="ping", frozen=True):
    """A check of the connection."""


Frame = HelloFrame | MessageFrame | DecisionFrame | PingFrame

_decoder: msgspec.json.Decoder[Frame] = msgspec.json.Decoder(Frame)


class PageConnection:
    """The connection of one open page, and the state that the page has received.

    ``rev`` is the last change of the chat that was sent; ``activity``, ``prompts`` and ``draft`` are the state that it
    shows.
    """

    def __init__(self, socket: WebSocket, chat: str, rev: int) -> None:
        self.socket = socket
        self.chat = chat
        self.rev = rev
        self.wake = asyncio.Event()
        self.typing = False
        self.activity: tuple[str, int] = IDLE
        self.prompts: Sequence[ApprovalPrompt] = ()
        self.draft: Draft | None = None

    async def send(self, type: str, **fields: Any) -> None:
        """Send a frame."""
        await self.socket.send_text(msgspec.json.encode({"type": type, **fields}).decode())

    async def send_draft(self, draft: Draft | None) -> None:
        """Send a reply that is being written: what was added to it, if the page has the beginning."""
        before, self.draft = self.draft, draft
        if draft is None:
            await self.send("draft", to="", text="")
        elif before is not None and _continues(draft, before):
            await self.send("draft_more", to=draft.reply_to, text=draft.text[len(before.text) :])
        else:
            await self.send("draft", to=draft.reply_to, speaker=draft.speaker, text=draft.text)


def _continues(draft: Draft, before: Draft) -> bool:
    return bool(before.text) and before.reply_to == draft.reply_to and draft.text.startswith(before.text)


async def receive_frame(socket: WebSocket) -> Frame | None:
    """Receive the next frame; ``None`` if it is invalid.

    Raises:
        WebSocketDisconnect: the page has closed the connection.
    """
    from starlette.websockets import WebSocketDisconnect

    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    try:
        return _decoder.decode(message.get("text") or "")
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


async def close_socket(socket: WebSocket, code: int, reason: str) -> None:
    """Close a connection, even if it is closed already."""
    try:
        await socket.close(code, reason)
    except Exception as error:  # noqa: BLE001 - the connection is closed already
        log.debug("a connection was closed before: %s", error)


def is_id(text: str) -> bool:
    """Whether a text is an id as the page generates them, long enough that it cannot be guessed."""
    return 20 <= len(text) <= 64 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def message_fields(message: ChatMessage) -> dict[str, Any]:
    """Return the fields of a frame that shows a stored message."""
    fields = {
        "seq": message.seq,
        "side": message.side,
        "text": message.text,
        "at": round(message.at, 3),
        "rev": message.rev,
    }
    if message.side == "in":
        return fields | {"id": message.key}
    shown = {"steps": msgspec.Raw(message.text.encode()), "text": ""} if message.kind == STEPS else {}
    return fields | {"speaker": message.speaker, "to": message.reply_to, "key": message.key} | shown


def steps_text(steps: Sequence[Step], you: str) -> str:
    """Return steps as the page gets them: with words and colours for states and verdicts.

    Args:
        steps: the steps.
        you: the person who sees the page, as decisions name them.
    """
    return msgspec.json.encode([_step_fields(step, you) for step in steps]).decode()


def _step_fields(step: Step, you: str) -> dict[str, Any]:
    verdicts = []
    for each in step.verdicts:
        word, tone = verb_words(each.verb)
        reason = "by you" if each.reason == f"by {you}" else each.reason
        verdicts.append({"word": word, "tone": tone, "hook": each.hook, "reason": reason})
    word, tone = _STATES.get(step.state) or (step.state, OUTCOMES.get(step.state, "grey"))
    return {"tool": step.tool, "text": step.text, "state": word, "tone": tone, "verdicts": verdicts}
