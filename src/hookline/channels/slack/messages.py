"""Convert what people do on Slack: messages they write, and buttons they press below a call."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import msgspec

from ..._base.attachment import file_name
from ..._base.frozen import Frozen, scrub
from ...stores.messages import InboundFile, InboundMessage

_WRITTEN = frozenset((None, "file_share", "thread_broadcast", "me_message"))
"""Subtypes of messages that a person wrote. The others are edits, deletions, and notes such as "Anna joined"."""

_REFERENCE = re.compile(r"<([@#!]?)([^<>|]*)(?:\|([^<>]*))?>")
_PRESS = re.compile(r"press:([A-Z0-9]{1,40}):[0-9.]{1,40}")
_COMMANDS = {"hookline_approve": "/approve {}", "hookline_session": "/approve {} session", "hookline_deny": "/deny {}"}


class Bot(Frozen, frozen=True):
    """The bot that a token belongs to: the id of its user, its id as a bot, its name, and where it is installed."""

    user: str
    bot: str
    name: str
    workspace: str = ""
    organization: str = ""

    def is_in(self, workspace: str, organization: str) -> bool:
        """Return whether the bot is installed in this workspace, or in the whole organization. Unknown ids match.

        A request of an app that is installed in a whole organization can name the organization alone.
        """
        if organization and organization == self.organization:
            return True
        if workspace:
            return workspace == self.workspace or not self.workspace
        return not organization or not self.workspace


class ButtonValue(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The value of a button: the code and the digest of the call it is about, and the thread of the conversation."""

    code: str
    digest: str
    thread: str = ""


def to_inbound(event: Mapping[str, Any], bot: Bot) -> InboundMessage | None:
    """Convert an event for the gateway; ``None`` if it is not a message of a person.

    A message in a channel belongs to the conversation of its thread, or begins one: replies to it go to a thread.
    """
    chat, at, sender = event.get("channel"), event.get("ts"), event.get("user")
    if event.get("subtype") not in _WRITTEN or event.get("bot_id") or event.get("hidden"):
        return None
    if not (isinstance(chat, str) and isinstance(at, str) and isinstance(sender, str) and chat and at and sender):
        return None
    direct = event.get("channel_type") == "im" or chat.startswith("D")
    text, mentioned = _plain(str(event.get("text") or ""), bot)
    shared = [file for file in event.get("files") or () if isinstance(file, Mapping)]
    notes = [f"[{_name(file)}{'' if _is_readable(file) else ': not readable here'}]" for file in shared]
    return InboundMessage(
        scrub(" ".join([*notes, text]).rstrip()),
        platform="slack",
        chat_id=chat,
        sender=sender,
        message_id=at,
        thread_id=str(event.get("thread_ts") or ("" if direct else at)),
        bot=bot.user,
        direct=direct,
        mentioned=mentioned or event.get("parent_user_id") == bot.user,
        attachments=tuple(_kind(file) for file in shared),
        files=tuple(
            InboundFile(str(file["id"]), _name(file), _size(file.get("size"))) for file in shared if _is_readable(file)
        ),
    )


def _kind(file: Mapping[str, Any]) -> str:
    return str(file.get("filetype") or "file")


def _name(file: Mapping[str, Any]) -> str:
    return scrub(file_name(str(file.get("name") or ""))) or _kind(file)


def _is_readable(file: Mapping[str, Any]) -> bool:
    """Whether Slack has the content: not for deleted files, and not for links to files elsewhere."""
    return bool(file.get("id")) and file.get("mode") not in ("external", "tombstone", "hidden_by_limit")


def _size(value: Any) -> int:
    return value if type(value) is int and value > 0 else 0


def to_decision(body: Mapping[str, Any], bot: Bot) -> InboundMessage | None:
    """Convert a pressed button into the command that it stands for; ``None`` if it is not one of our buttons."""
    try:
        (action,) = body["actions"]
        command = _COMMANDS[action["action_id"]]
        value = msgspec.json.decode(action["value"], type=ButtonValue)
        chat, sender, at = body["channel"]["id"], body["user"]["id"], action["action_ts"]
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError):
        return None
    return InboundMessage(
        command.format(value.code),
        platform="slack",
        chat_id=chat,
        sender=sender,
        message_id=f"press:{sender}:{at}",
        thread_id=value.thread,
        bot=bot.user,
        direct=chat.startswith("D"),
        mentioned=True,
        digest=value.digest,
    )


def person_who_pressed(message_id: str) -> str:
    """Return the person who pressed the button with this message id; empty if it is the id of another message."""
    found = _PRESS.fullmatch(message_id)
    return found[1] if found else ""


def _plain(text: str, bot: Bot) -> tuple[str, bool]:
    """Return a text without Slack's markup and without the bot's name at its beginning or end, and whether the bot is
    mentioned.
    """
    name = rf"<@{re.escape(bot.user)}(?:\|[^<>]*)?>"
    mentioned = re.search(name, text) is not None
    if mentioned:
        rest = re.sub(rf"^\s*{name}[\s,:;]*", "", text)
        rest = re.sub(rf"[\s,]*{name}\s*([.!?]?)\s*$", r"\1", rest)
        text = re.sub(name, f"@{bot.name}", rest if rest.strip() else text)
    text = _REFERENCE.sub(_readable, text)
    return text.replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&").strip(), mentioned


def _readable(reference: re.Match[str]) -> str:
    """Return what a reference in angle brackets stands for: a person, a channel, a group or a link."""
    kind, target, label = reference[1], reference[2], reference[3] or ""
    if kind == "!":
        return label or f"@{target.partition('^')[0]}"
    if kind:
        return f"{kind}{label or target}"
    target = target.removeprefix("mailto:")
    return target if not label or label in target else f"{label} ({target})"
