"""One connection to an MQTT broker: ``aiomqtt``, acknowledging a message only when it is in safe hands."""

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
_NEVER = (0x87, 0x90, 0x95, 0x99)  # not authorized, topic name invalid, packet too large, payload format invalid


class Refused(MqttError):
    """The broker will never take what was published."""


class Connection(aiomqtt.Client):
    """A connection that adds to ``aiomqtt`` what it has no way to say.

    A message is acknowledged by :meth:`ack` and not before, it tells whether it was sent before (``dup``), and the
    broker's answer to what is published is looked at.
    """

    def __init__(self, host: str, port: int, *, version: str, session_expiry: int, **options: Any) -> None:
        session: dict[str, Any]
        if version == "5":
            lasting = Properties(PacketTypes.CONNECT)  # type: ignore[no-untyped-call]
            lasting.SessionExpiryInterval = session_expiry
            session = {"protocol": aiomqtt.ProtocolVersion.V5, "clean_start": False, "properties": lasting}
        else:
            session = {"protocol": aiomqtt.ProtocolVersion.V311, "clean_session": False}
        super().__init__(host, port, **session, **options)
        self._client.manual_ack_set(True)
        self.is_v5 = version == "5"
        self.stirred = asyncio.Event()
        """Set when messages have come or the connection is lost."""
        self._arrived: list[MQTTMessage] = []
        self._answers: dict[int, asyncio.Future[ReasonCode]] = {}

    async def __aenter__(self) -> Connection:
        try:
            await super().__aenter__()
        except MqttError:
            self._client.disconnect()  # aiomqtt leaves the socket of a failed handshake open
            raise
        self._disconnected.add_done_callback(self._stir)
        return self

    def arrivals(self) -> list[MQTTMessage]:
        """The messages that have come since the last call.

        Raises:
            MqttError: the connection is lost. What had come on it is sent again on the next one.
        """
        self.stirred.clear()
        if self._disconnected.done():
            raise self._lost()
        arrived, self._arrived = self._arrived, []
        return arrived

    def ack(self, message: MQTTMessage) -> None:
        """Tell the broker that a message is in safe hands."""
        self._client.ack(message.mid, message.qos)

    async def hear(self, topics: str, qos: int) -> None:
        """Subscribe; not to what we publish ourselves, nor to what was said before we listened.

        Raises:
            MqttError: the connection is lost, or the broker does not allow it.
        """
        options = SubscribeOptions(qos, noLocal=True, retainHandling=SubscribeOptions.RETAIN_DO_NOT_SEND)
        codes = await (self.subscribe(topics, options=options) if self.is_v5 else self.subscribe(topics, qos))
        for code in codes:
            if isinstance(code, ReasonCode) and code.is_failure:
                raise MqttError(f"the broker does not let us subscribe to {topics}: {code}")

    async def put(self, topic: str, payload: bytes, qos: int, *, retain: bool = False, key: str = "") -> None:
        """Publish, and wait until the broker has it. ``key`` becomes a user property where there are such.

        Raises:
            Refused: the broker never takes it.
            MqttError: the connection is lost, there was no answer in time, or the broker does not take it now.
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
        answer = self._answers[info.mid] = asyncio.get_running_loop().create_future()
        try:
            waiting: set[asyncio.Future[Any]] = {answer, self._disconnected}
            await asyncio.wait(waiting, timeout=self.timeout, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._answers[info.mid]
        if not answer.done():
            raise self._lost() if self._disconnected.done() else MqttError("the broker does not answer")
        code = answer.result()
        if code.is_failure:
            kind = Refused if code.value in _NEVER else MqttError
            raise kind(f"the broker refuses what we publish to {topic}: {code}")

    def _stir(self, disconnected: asyncio.Future[None]) -> None:
        self.stirred.set()
        if not disconnected.cancelled():
            disconnected.exception()  # looked at, so that asyncio does not complain where nobody waits for it

    def _lost(self) -> MqttError:
        cause = self._disconnected.exception()
        told = isinstance(cause, aiomqtt.MqttCodeError) and getattr(cause.rc, "value", _UNSPECIFIED) != _UNSPECIFIED
        return MqttError(f"the connection was lost: {cause}" if told else "the connection was lost")

    def _on_message(self, client: Client, userdata: Any, message: MQTTMessage) -> None:
        self._arrived.append(message)
        self.stirred.set()

    def _on_publish(
        self, client: Client, userdata: Any, mid: int, reason_code: ReasonCode, properties: Properties
    ) -> None:
        if (answer := self._answers.get(mid)) is not None and not answer.done():
            answer.set_result(reason_code)
