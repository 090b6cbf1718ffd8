"""Messages that channels receive and send, as mailboxes store them and channel hooks see them."""

from __future__ import annotations

from .._base.frozen import Frozen


class InboundFile(Frozen, frozen=True):
    """A file in a message. Its channel reads the content by ``id``, when an agent is about to answer the message.

    ``size`` is what the platform says, in bytes; 0 if it says nothing.
    """

    id: str
    name: str = ""
    size: int = 0


class InboundMessage(Frozen, frozen=True):
    """A message that a channel received.

    ``direct`` is true if only the bot and the sender can read it; ``mentioned`` is true if it mentions the bot.
    ``automated`` is true if the platform says that a program wrote it. ``attachments`` lists the kinds of its
    attachments, such as ``photo``, and ``files`` are those that the channel can read. ``digest`` is set if the sender
    pressed a button below a call that waits for approval: it is the digest of that call, and only the sender sees the
    reply.
    """

    text: str
    platform: str = ""
    chat_id: str = ""
    sender: str = ""
    message_id: str = ""
    thread_id: str = ""
    bot: str = ""
    direct: bool = True
    mentioned: bool = False
    automated: bool = False
    attachments: tuple[str, ...] = ()
    digest: str = ""
    files: tuple[InboundFile, ...] = ()


class OutboundMessage(Frozen, frozen=True):
    """A message that a channel is about to send. ``speaker`` names its author if several agents share the chat."""

    text: str
    reply_to: str = ""
    thread_id: str = ""
    speaker: str = ""
