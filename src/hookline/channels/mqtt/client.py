"""Connection to an MQTT broker, based on ``aiomqtt``, with manual acknowledgement of messages."""

from __future__ import annotations

import asyncio
from typing import Any

import aiomqtt
from aiomqtt import MqttError as MqttError  # noqa: PLC0414 - the channel catches it
from paho.mqtt.client import MQTT_ERR_SUCCESS, Client, MQTTMessage
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

_UNSPECIFIED = 0x80
_PERMANENT = (0x87, 0x90, 0x95, 0x99)  # not authorized, topic name invalid, packet too large, payload format invalid


class RejectedError(MqttError):
    """The broker permanently rejects a published message."""


class MqttConnection(aiomqtt.Client):
    """A connection with features that ``aiomqtt`` does not offer.

    Messages are acknowledged only by :meth:`ack`, they keep their duplicate flag (``dup``), and the reason code of the
    broker for a published message is checked.
    """

    def __init__(self, host: str, port: int, *, version: str, session_expiry: int, **options: Any) -> None:
        session: dict[str, Any]
        if version == "5":
            properties = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            properties.SessionExpiryInterval = session_expiry
            session = {"protocol": aiomqtt.ProtocolVersion.V5, "clean_start": False, "properties": properties}
        else:
            session = {"protocol": aiomqtt.ProtocolVersion.V311, "clean_session": False}
        super().__init__(host, port, **session, **options)
        self._client.manual_ack_set(True)
        self.is_v5 = version == "5"
        self.changed = asyncio.Event()
        """Set when messages have arrived or the connection is lost."""
        self._messages: list[MQTTMessage] = []
        self._acknowledgements: dict[int, asyncio.Future[ReasonCode]] = {}

    async def __aenter__(self) -> MqttConnection:
        try:
            await super().__aenter__()
        except MqttError:
            self._client.disconnect()  # aiomqtt leaves the socket of a failed handshake open
            raise
        self._disconnected.add_done_callback(self._on_disconnected)
        return self

    def take_messages(self) -> list[MQTTMessage]:
        """Return the messages that have arrived since the last call.

        Raises:
            MqttError: the connection is lost. The broker sends unacknowledged messages again on the next one.
        """
        self.changed.clear()
        if self._disconnected.done():
            raise self._connection_error()
        messages, self._messages = self._messages, []
        return messages

    def ack(self, message: MQTTMessage) -> None:
        """Acknowledge a message."""
        self._client.ack(message.mid, message.qos)

    async def listen(self, topics: str, qos: int) -> None:
        """Subscribe, without our own and without retained messages.

        Raises:
            MqttError: the connection is lost, or the broker does not allow the subscription.
        """
        options = SubscribeOptions(qos, noLocal=True, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        codes = await (self.subscribe(topics, options=options) if self.is_v5 else self.subscribe(topics, qos))
        for code in codes:
            if isinstance(code, ReasonCode) and code.is_failure:
                raise MqttError(f"the broker does not allow the subscription to {topics}: {code}")

    async def send(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, key: str = "") -> None:
        """Publish a message and wait for the acknowledgement. In MQTT 5, ``key`` becomes the user property ``id``.

        Raises:
            RejectedError: the broker permanently rejects the message.
            MqttError: the connection is lost, the broker does not respond, or it rejects the message for now.
        """
        properties = None
        if key and self.is_v5:
            properties = Properties(PacketTypes.PUBLISH)  # type: ignore[no-untyped-call]
            properties.UserProperty = ("id", key)
        info = self._client.publish(topic, payload, qos, retain, properties)
        if info.rc != MQTT_ERR_SUCCESS:
            raise aiomqtt.MqttCodeError(info.rc)
        if info.is_published():
            return
        acknowledgement = self._acknowledgements[info.mid] = asyncio.get_running_loop().create_future()
        try:
            waiting: set[asyncio.Future[Any]] = {acknowledgement, self._disconnected}
            await asyncio.wait(waiting, timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._acknowledgements[info.mid]
        if not acknowledgement.done():
            raise self._connection_error() if self._disconnected.done() else MqttError("the broker does not respond")
        code = acknowledgement.result()
        if code.is_failure:
            kind = RejectedError if code.value in _PERMANENT else MqttError
            raise kind(f"the broker rejects the message to {topic}: {code}")

    def _on_disconnected(self, disconnected: asyncio.Future[None]) -> None:
        self.changed.set()
        if not disconnected.cancelled():
            disconnected.exception()  # retrieved, so that asyncio does not log it as never retrieved

    def _connection_error(self) -> MqttError:
        cause = self._disconnected.exception()
        has_reason = (
            isinstance(cause, aiomqtt.MqttCodeError) and getattr(cause.rc, "value", _UNSPECIFIED) != _UNSPECIFIED
        )
        return MqttError(f"the connection was lost: {cause}" if has_reason else "the connection was lost")

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        self._messages.append(message)
        self.changed.set()

    def _on_publish(
        self, client: Client, userdata: Any, mid: int, reason_code: ReasonCode, properties: Properties
    ) -> None:
        if (waiting := self._acknowledgements.get(mid)) is not None and not waiting.done():
            waiting.set_result(reason_code)
