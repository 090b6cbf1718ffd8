"""What an open page and its server say to each other, over a WebSocket."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from ...stores.chats import ChatMessage
from ..protocol import Asked

if TYPE_CHECKING:
    from starlette.websockets import WebSocket

log = logging.getLogger("hookline")

IDLE = ("", 0)
"""No message is being answered, and none waits."""


class Hello(msgspec.Struct, tag="hello", frozen=True):
    """Which conversation a browser is in, and the last change that it has seen."""

    chat: str
    after: int = 0


class Said(msgspec.Struct, tag="message", frozen=True):
    """A message; its id is the same when it is sent again."""

    id: str
    text: str


class Ping(msgspec.Struct, tag="ping", frozen=True):
    """A question whether the server is there."""


_FRAMES: msgspec.json.Decoder[Hello | Said | Ping] = msgspec.json.Decoder(Hello | Said | Ping)


class Browser:
    """One open page."""

    def __init__(self, socket: WebSocket, chat: str, rev: int) -> None:
        self.socket, self.chat, self.rev = socket, chat, rev
        self.wake, self.typing = asyncio.Event(), False
        self.shown: tuple[str, int] = IDLE
        self.asked: Sequence[Asked] = ()

    async def tell(self, type: str, **fields: Any) -> None:
        """Say something to it."""
        await self.socket.send_text(msgspec.json.encode({"type": type, **fields}).decode())


async def frame_of(socket: WebSocket) -> Hello | Said | Ping | None:
    """The next thing that a browser says; ``None`` if it is not understood.

    Raises:
        WebSocketDisconnect: it is gone.
    """
    from starlette.websockets import WebSocketDisconnect

    message = await socket.receive()
    if message["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(message.get("code", 1006))
    try:
        return _FRAMES.decode(message.get("text") or "")
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


async def close(socket: WebSocket, code: int, reason: str) -> None:
    """Close a connection, if it is not closed already."""
    try:
        await socket.close(code, reason)
    except Exception as error:  # noqa: BLE001 - it is closed already
        log.debug("a connection was closed before: %s", error)


def is_id(text: str) -> bool:
    """Whether this is an id as pages make them up: nobody guesses one."""
    return 20 <= len(text) <= 64 and text.isascii() and text.replace("-", "").replace("_", "").isalnum()


def fields_of(one: ChatMessage) -> dict[str, Any]:
    """A message that was kept, as it is shown."""
    mine = {"id": one.key} if one.side == "in" else {"speaker": one.speaker, "to": one.reply_to, "key": one.key}
    fields = {"seq": one.seq, "side": one.side, "text": one.text, "at": round(one.at, 3), "rev": one.rev}
    return fields | mine
