"""What MQTT messages mean here: topics with a device in them, payloads, and ids for messages that have none."""

from __future__ import annotations

import hashlib
import time
from uuid import uuid4

import msgspec

from ..._base.frozen import json_text
from ...stores.messages import OutboundMessage
from ..protocol import ChannelError

DEVICE = "{device}"
_LONGEST_TOPIC = 65_535


class Topic:
    """A topic with one level ``{device}``, such as ``hookline/{device}/in``.

    Raises:
        ChannelError: it is none.
    """

    def __init__(self, template: str, setting: str) -> None:
        fixed_topic(template.replace(DEVICE, "device", 1) if isinstance(template, str) else template, setting)
        self.template, self._levels = template, template.split("/")
        if self._levels.count(DEVICE) != 1 or template.count(DEVICE) != 1:
            raise ChannelError(
                f"{setting} {template!r} needs {DEVICE} once, as a whole level, such as hookline/{DEVICE}/in"
            )
        self._at = self._levels.index(DEVICE)

    @property
    def filter(self) -> str:
        """What to subscribe to, to hear every device."""
        return self.template.replace(DEVICE, "+")

    def device(self, topic: str) -> str | None:
        """The device in a topic; ``None`` if it is another topic or names none."""
        levels = topic.split("/")
        if len(levels) != len(self._levels) or topic != self.template.replace(DEVICE, levels[self._at]):
            return None
        return levels[self._at] or None

    def of(self, device: str) -> str | None:
        """The topic of a device; ``None`` if no device can have that name."""
        if not device or any(c in device for c in "/+#\0"):
            return None
        topic = self.template.replace(DEVICE, device)
        try:
            return topic if len(topic.encode()) <= _LONGEST_TOPIC else None
        except UnicodeEncodeError:
            return None

    def meets(self, other: str) -> bool:
        """Whether some device could have a topic that is also one of ``other``, a topic with or without a device."""
        levels = other.split("/")
        return len(levels) == len(self._levels) and all(
            DEVICE in (mine, theirs) or mine == theirs for mine, theirs in zip(self._levels, levels, strict=True)
        )


def fixed_topic(topic: str, setting: str) -> str:
    """A topic that can be published to.

    Raises:
        ChannelError: it cannot.
    """
    if not isinstance(topic, str) or not topic or any(c in topic for c in "+#\0"):
        raise ChannelError(f"{setting} {topic!r} is not an MQTT topic: a text without the wildcards + and #")
    if topic.startswith("$"):
        raise ChannelError(f"{setting} {topic!r} begins with $: such topics are the broker's own")
    try:
        fits = len(topic.encode()) <= _LONGEST_TOPIC
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise ChannelError(f"{setting} is not valid Unicode, or longer than an MQTT topic may be")
    return topic


class Said(msgspec.Struct):
    """What a device said."""

    text: str
    id: str = ""
    sender: str = ""
    thread: str = ""


class _Form(msgspec.Struct):
    text: str
    id: str | int = ""
    sender: str = ""
    thread: str | int = ""


_form = msgspec.json.Decoder(_Form)


def read(payload: bytes) -> Said | None:
    """The message in a payload: a JSON object with a ``text``, or else plain text. ``None``: no text at all."""
    try:
        plain = payload.decode()
    except UnicodeDecodeError:
        return None
    if plain.lstrip()[:1] == "{":
        try:
            form = _form.decode(payload)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # JSON of another form is what a device has to say, as it stands
        else:
            return Said(form.text, str(form.id), form.sender, str(form.thread)) if form.text.strip() else None
    return Said(plain) if plain.strip() else None


def written(message: OutboundMessage, thread: str, key: str, form: str) -> bytes:
    """A reply as a payload, ``json`` or ``text``."""
    if form == "text":
        return message.text.encode("utf-8", "replace")
    fields = {"id": key, "text": message.text, "reply_to": message.reply_to, "thread": thread}
    return json_text({name: value for name, value in fields.items() if value or name == "text"}).encode()


class Redeliveries:
    """Ids for messages that have none: the same when the broker sends one again, another when the text is repeated.

    A broker marks what it sends again, and uses the packet id of the first time.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, str, float | None]] = {}

    def id_of(self, packet: int, topic: str, payload: bytes, again: bool) -> str:
        """The id of the message in this packet."""
        content = hashlib.sha256(b"%d %s%s" % (len(topic), topic.encode("utf-8", "replace"), payload)).digest()
        known = self._known.get(packet)
        if again and known is not None and known[0] == content:
            return known[1]
        self._known[packet] = (content, fresh := uuid4().hex, None)
        return fresh

    def acknowledged(self, packet: int) -> None:
        """The broker has been told that this one arrived; it may not have heard it."""
        if (known := self._known.get(packet)) is not None:
            self._known[packet] = (*known[:2], time.monotonic())

    def forget(self, seconds: float) -> None:
        """Forget what was acknowledged so long ago that the broker must have heard it: its packet ids are used anew."""
        limit = time.monotonic() - seconds
        self._known = {packet: known for packet, known in self._known.items() if known[2] is None or known[2] >= limit}
