"""Hook points of channels and their payloads."""

from __future__ import annotations

from .._base.frozen import Frozen
from .._kernel.points import Point
from .messages import InboundMessage, OutboundMessage


class Inbound(Frozen, frozen=True):
    """Payload of ``message_received`` and ``inbound_claim``. ``channel`` is the name of the channel."""

    message: InboundMessage
    session_id: str = ""
    channel: str = ""


class Outbound(Frozen, frozen=True):
    """Payload of ``message_sending``, ``before_dispatch`` and ``message_sent``. Only the last has a ``message_id``."""

    chat_id: str
    message: OutboundMessage
    platform: str = ""
    message_id: str = ""
    channel: str = ""


class MessageChange(Frozen, frozen=True):
    """Result of a ``message_sending`` hook that replaces the message."""

    message: OutboundMessage | None = None


MESSAGE_RECEIVED = Point(
    "message_received",
    Inbound,
    model="observe",
    fired_by="a channel gateway",
    when="a channel accepted a message",
    closed="the message is not handled",
    names={"Ethos": "message_received"},
)
INBOUND_CLAIM = Point(
    "inbound_claim",
    Inbound,
    model="claim",
    fired_by="a channel gateway",
    when="before a message is processed; a handler may claim it",
    closed="the message is not handled",
    names={"Ethos": "inbound_claim"},
)
MESSAGE_SENDING = Point(
    "message_sending",
    Outbound,
    model="merge",
    result=MessageChange,
    fired_by="a channel gateway",
    when="before a message is sent",
    closed="the message is not sent",
    names={"Ethos": "message_sending"},
)
BEFORE_DISPATCH = Point(
    "before_dispatch",
    Outbound,
    model="claim",
    fired_by="a channel gateway",
    when="after message_sending; a claim suppresses the send",
    closed="the message is not sent",
    names={"Ethos": "before_dispatch"},
)
MESSAGE_SENT = Point(
    "message_sent",
    Outbound,
    model="observe",
    fired_by="a channel gateway",
    when="after a message was sent",
    closed="the failure is reported",
    names={"Ethos": "message_sent"},
)
