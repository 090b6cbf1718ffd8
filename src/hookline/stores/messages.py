"""Messages that come in and leave through channels: what a mailbox keeps and channel hooks see."""

from __future__ import annotations

from .._base.frozen import Frozen


class InboundMessage(Frozen, frozen=True):
    """A message that came in through a channel. ``direct``: nobody else reads it; ``mentioned``: it names the bot."""

    text: str
    platform: str = ""
    chat_id: str = ""
    sender: str = ""
    message_id: str = ""
    thread_id: str = ""
    bot: str = ""
    direct: bool = True
    mentioned: bool = False


class OutboundMessage(Frozen, frozen=True):
    """A message about to leave through a channel. ``speaker``: the name of who says it, where there are several."""

    text: str
    reply_to: str = ""
    thread_id: str = ""
    speaker: str = ""
