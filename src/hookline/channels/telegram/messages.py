"""What a Telegram message means here: who said what to whom, and whether the bot is meant."""

from __future__ import annotations

from telegram import Message, MessageEntity, User
from telegram.constants import ChatType, MessageAttachmentType
from telegram.helpers import effective_message_type

from ..._base.frozen import scrub
from ...stores.messages import InboundMessage

_OPENING, _HELP = "/start", "/help"  # Telegram itself sends the former for people who open a chat with a bot
_ATTACHMENTS = frozenset(kind.value for kind in MessageAttachmentType)


def incoming(message: Message, me: User) -> InboundMessage | None:
    """A message as the gateway takes it; ``None`` for what nobody said to us, such as "Anna joined the group"."""
    sender, said = message.from_user, message.text or message.caption or ""
    if message.is_automatic_forward or (sender and sender.is_bot and not message.sender_chat):
        return None
    text, named, for_others = _addressed(said, message.entities or message.caption_entities, me)
    if for_others:
        return None
    kind = "text" if message.text else effective_message_type(message)
    if kind is not None and kind in _ATTACHMENTS:
        text = f"[{kind.replace('_', ' ')}: it cannot be read here] {text}".rstrip()
    elif not message.text:
        return None
    if text.split()[:1] == [_OPENING]:
        text = _HELP
    who = message.sender_chat or sender or message.chat
    return InboundMessage(
        scrub(text),
        platform="telegram",
        chat_id=str(message.chat.id),
        sender=str(who.id),
        message_id=str(message.message_id),
        thread_id=str(message.message_thread_id) if message.is_topic_message and message.message_thread_id else "",
        bot=str(me.id),
        direct=message.chat.type == ChatType.PRIVATE,
        mentioned=named or _answers_us(message.reply_to_message, me),
    )


def _answers_us(earlier: Message | None, me: User) -> bool:
    """Whether a reply is to something we said; in a topic that we opened, every message is a reply to the opening."""
    return bool(earlier and not earlier.forum_topic_created and earlier.from_user and earlier.from_user.id == me.id)


def _addressed(text: str, entities: tuple[MessageEntity, ...], me: User) -> tuple[str, bool, bool]:
    """The text without our name at its beginning or end, whether it names us, and whether it commands another bot."""
    units, named, name = text.encode("utf-16-le", "surrogatepass"), False, f"@{me.username}".lower()
    for entity in sorted(entities, key=lambda one: one.offset, reverse=True):
        start, end = 2 * entity.offset, 2 * (entity.offset + entity.length)
        words = _text(units[start:end])
        if entity.type == MessageEntity.BOT_COMMAND and "@" in words:
            command, _, bot = words.partition("@")
            if f"@{bot}".lower() == name:
                named, units = True, units[: start + 2 * len(command)] + units[end:]
            elif start == 0:
                return text, named, True
        elif (entity.type == MessageEntity.MENTION and words.lower() == name) or (
            entity.type == MessageEntity.TEXT_MENTION and entity.user is not None and entity.user.id == me.id
        ):
            named = True
            before, after = _text(units[:start]), _text(units[end:])
            if not before.strip():
                units = after.lstrip(" \t\n,:;").encode("utf-16-le", "surrogatepass")
            elif not after.strip(" \t\n.,!?"):
                units = (before.rstrip(" \t\n,") + after.strip()).encode("utf-16-le", "surrogatepass")
    return (_text(units).strip() or text), named, False


def _text(units: bytes) -> str:
    return units.decode("utf-16-le", "surrogatepass")
