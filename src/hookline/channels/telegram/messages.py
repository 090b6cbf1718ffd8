"""Convert Telegram messages: sender, text, and whether the bot is mentioned."""

from __future__ import annotations

from telegram import Message, MessageEntity, User
from telegram.constants import ChatType, MessageAttachmentType
from telegram.helpers import effective_message_type

from ..._base.attachment import file_name
from ..._base.frozen import scrub
from ...stores.messages import InboundFile, InboundMessage

_START, _HELP = "/start", "/help"  # the app sends /start when a person opens a chat with a bot
_ATTACHMENTS = frozenset(kind.value for kind in MessageAttachmentType)


def to_inbound(message: Message, bot: User) -> InboundMessage | None:
    """Convert a message for the gateway; ``None`` if it is not meant for the bot, such as "Anna joined the group"."""
    sender = message.from_user
    if message.is_automatic_forward or (sender and sender.is_bot and not message.sender_chat):
        return None
    text, mentioned, for_others = _strip_mention(
        message.text or message.caption or "", message.entities or message.caption_entities, bot
    )
    if for_others:
        return None
    kind = "text" if message.text else effective_message_type(message)
    attachments: tuple[str, ...] = ()
    files: tuple[InboundFile, ...] = ()
    if kind is not None and kind in _ATTACHMENTS:
        attachments, files = (str(kind),), _files(message)
        note = kind.replace("_", " ") + ("" if files else ": not readable here")
        text = f"[{note}] {text}".rstrip()
    elif not message.text:
        return None
    if text.split()[:1] == [_START]:
        text = _HELP
    author = message.sender_chat or sender or message.chat
    return InboundMessage(
        scrub(text),
        platform="telegram",
        chat_id=str(message.chat.id),
        sender=str(author.id),
        message_id=str(message.message_id),
        thread_id=str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else "",
        bot=str(bot.id),
        direct=message.chat.type == ChatType.PRIVATE,
        mentioned=mentioned or _is_reply_to_bot(message.reply_to_message, bot),
        attachments=attachments,
        files=files,
    )


def _files(message: Message) -> tuple[InboundFile, ...]:
    """Return the file of a message, if models may take it: a photo in its largest size, a document, voice or audio."""
    if message.photo:
        photo = message.photo[-1]
        return (InboundFile(photo.file_id, "photo.jpg", photo.file_size or 0),)
    if message.voice:
        return (InboundFile(message.voice.file_id, "voice.ogg", message.voice.file_size or 0),)
    if file := message.audio or (None if message.animation else message.document):
        return (InboundFile(file.file_id, file_name(file.file_name or ""), file.file_size or 0),)
    return ()


def _is_reply_to_bot(earlier: Message | None, bot: User) -> bool:
    """Whether a message replies to the bot. In a topic that the bot opened, every message replies to the opening."""
    return bool(earlier and not earlier.forum_topic_created and earlier.from_user and earlier.from_user.id == bot.id)


def _strip_mention(text: str, entities: tuple[MessageEntity, ...], bot: User) -> tuple[str, bool, bool]:
    """Remove the bot's name from the beginning or end.

    Returns:
        the text, whether it mentions the bot, and whether it is a command for another bot.
    """
    units, mentioned, name = text.encode("utf-16-le", "surrogatepass"), False, f"@{bot.username}".lower()
    for entity in sorted(entities, key=lambda each: each.offset, reverse=True):
        start, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        words = _text(units[start:end])
        if entity.type == MessageEntity.BOT_COMMAND and "@" in words:
            command, _, addressee = words.partition("@")
            if f"@{addressee}".lower() == name:
                mentioned, units = True, units[: start + 2 * len(command)] + units[end:]
            elif start == 0:
                return text, mentioned, True
        elif (entity.type == MessageEntity.MENTION and words.lower() == name) or (
            entity.type == MessageEntity.TEXT_MENTION and entity.user is not None and entity.user.id == bot.id
        ):
            mentioned = True
            before, after = _text(units[:start]), _text(units[end:])
            if not before.strip():
                units = after.lstrip(" \t\n,:;").encode("utf-16-le", "surrogatepass")
            elif not after.strip(" \t\n.,!?"):
                units = (before.rstrip(" \t\n,") + after.strip()).encode("utf-16-le", "surrogatepass")
    return (_text(units).strip() or text), mentioned, False


def _text(units: bytes) -> str:
    return units.decode("utf-16-le", "surrogatepass")
