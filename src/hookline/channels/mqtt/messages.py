"""Topics with a device level, payloads, and ids for messages without one."""

from __future__ import annotations

import hashlib
import time
from typing import Any
from uuid import uuid4

import msgspec

from ..._base.frozen import json_text
from ...stores.messages import OutboundMessage
from ..protocol import ChannelError

DEVICE = "{device}"
_MAX_TOPIC = 65_535


class Topic:
    """A topic template with one level ``{device}``, such as ``hookline/{device}/in``.

    Raises:
        ChannelError: the template is invalid.
    """

    def __init__(self, template: str, setting: str) -> None:
        checked_topic(template.replace(DEVICE, "device", 1) if isinstance(template, str) else template, setting)
        self.template, self._levels = template, template.split("/")
        if self._levels.count(DEVICE) != 1 or template.count(DEVICE) != 1:
            raise ChannelError(
                f"{setting} {template!r} must contain {DEVICE} once, as a whole level, such as hookline/{DEVICE}/in"
            )
        self._at = self._levels.index(DEVICE)

    @property
    def filter(self) -> str:
        """The subscription for all devices."""
        return self.template.replace(DEVICE, "+")

    def device(self, topic: str) -> str | None:
        """Return the device in a topic; ``None`` if the topic does not match the template."""
        levels = topic.split("/")
        if len(levels) != len(self._levels) or topic != self.template.replace(DEVICE, levels[self._at]):
            return None
        return levels[self._at] or None

    def for_device(self, device: str) -> str | None:
        """Return the topic of a device; ``None`` if the name is invalid."""
        if not device or any(c in device for c in "/+#\0"):
            return None
        topic = self.template.replace(DEVICE, device)
        try:
            return topic if len(topic.encode()) <= _MAX_TOPIC else None
        except UnicodeEncodeError:
            return None

    def overlaps(self, other: str) -> bool:
        """Whether a topic of some device could also match ``other``, a topic or a template."""
        levels = other.split("/")
        return len(levels) == len(self._levels) and all(
            DEVICE in (mine, theirs) or mine == theirs for mine, theirs in zip(self._levels, levels, strict=True)
        )


def checked_topic(topic: str, setting: str) -> str:
    """Return a topic if messages can be published to it.

    Raises:
        ChannelError: the topic is invalid.
    """
    if not isinstance(topic, str) or not topic or any(c in topic for c in "+#\0"):
        raise ChannelError(f"{setting} {topic!r} is not an MQTT topic: use a text without the wildcards + and #")
    if topic.startswith("$"):
        raise ChannelError(f"{setting} {topic!r} begins with $: such topics are reserved for the broker")
    try:
        fits = len(topic.encode()) <= _MAX_TOPIC
    except UnicodeEncodeError:
        fits = False
    if not fits:
        raise ChannelError(f"{setting} is not valid Unicode, or too long for an MQTT topic")
    return topic


class DeviceMessage(msgspec.Struct):
    """A message from a device."""

    text: str
    id: str = ""
    sender: str = ""
    thread: str = ""
    automated: bool = False


class _JsonPayload(msgspec.Struct):
    text: str
    id: str | int = ""
    sender: str = ""
    thread: str | int = ""
    automated: Any = False


_decoder = msgspec.json.Decoder(_JsonPayload)


def parse_payload(payload: bytes) -> DeviceMessage | None:
    """Parse a payload: a JSON object with a ``text``, or plain text. ``None`` if it is empty or not UTF-8."""
    try:
        plain = payload.decode()
    except UnicodeDecodeError:
        return None
    if plain.lstrip()[:1] == "{":
        try:
            fields = _decoder.decode(payload)
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            pass  # other JSON is treated as plain text
        else:
            return (
                DeviceMessage(fields.text, str(fields.id), fields.sender, str(fields.thread), fields.automated is True)
                if fields.text.strip()
                else None
            )
    return DeviceMessage(plain) if plain.strip() else None


def reply_payload(message: OutboundMessage, thread: str, key: str, reply_format: str) -> bytes:
    """Encode a reply; ``reply_format`` is ``json`` or ``text``.

    As JSON it says that a program wrote it, so that another gateway on the broker recognises it.
    """
    if reply_format == "text":
        return message.text.encode("utf-8", "replace")
    fields = {"id": key, "text": message.text, "reply_to": message.reply_to, "thread": thread, "automated": True}
    return json_text({name: value for name, value in fields.items() if value or name == "text"}).encode()


class MessageIds:
    """Ids for messages without one: the same id for a redelivery, another id for a repeated text.

    The broker marks a redelivery as a duplicate and uses the same packet id.
    """

    def __init__(self) -> None:
        self._known: dict[int, tuple[bytes, str, float | None]] = {}

    def id_of(self, packet: int, topic: str, payload: bytes, duplicate: bool) -> str:
        """Return the id of the message in a packet."""
        content = hashlib.sha256(b"%d %s%s" % (len(topic), topic.encode("utf-8", "replace"), payload)).digest()
        known = self._known.get(packet)
        if duplicate and known is not None and known[0] == content:
            return known[1]
        self._known[packet] = (content, new_id := uuid4().hex, None)
        return new_id

    def acknowledged(self, packet: int) -> None:
        """Record that a packet was acknowledged. The acknowledgement may still get lost."""
        if (known := self._known.get(packet)) is not None:
            self._known[packet] = (*known[:2], time.monotonic())

    def forget(self, seconds: float) -> None:
        """Forget packets acknowledged at least ``seconds`` ago: the broker may use their ids again."""
        limit = time.monotonic() - seconds
        self._known = {packet: known for packet, known in self._known.items() if known[2] is None or known[2] >= limit}
