"""The MQTT channel: devices and robots exchange messages with an agent through a broker."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..._base.errors import NotInstalledError
from ..._base.tasks import wait_at_most
from ..._base.text import describe, error_text, is_number
from ...stores.messages import InboundMessage, OutboundMessage
from ..protocol import Address, Capabilities, ChannelError, Deliver, Health, UndeliverableError
from ..receiving import MAX_DELAY, Backoff, InFlight, RetryingDelivery
from .messages import MessageIds, Topic, checked_topic, parse_payload, reply_payload

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

    from .client import MqttConnection

log = logging.getLogger("hookline")

_RESPONSE_TIMEOUT = 10.0
_SUSPICIOUS_LOSSES = 3  # connections in a row that were lost soon after they were made
_NEVER_EXPIRES = 0xFFFFFFFF  # session expiry in MQTT 5


class MqttChannel:
    """Exchange messages with devices through an MQTT broker. Each device is a conversation.

    A device publishes plain text, or a JSON object with ``text`` and optionally ``id``, ``sender`` and ``thread``. The
    broker queues messages while the channel is disconnected, and a message is acknowledged once the gateway has stored
    it. Retained messages, empty messages and messages that are not text are ignored.

    Example::

        MqttChannel(host="broker.example.org", topic="robots/{device}/in", reply_topic="robots/{device}/out")

    Args:
        name: the name of the channel.
        host: the host name of the broker.
        port: its port; 1883, or 8883 with TLS, if left out.
        topic: the topic for messages from devices; the level ``{device}`` is the name of the device.
        reply_topic: the topic for replies.
        status_topic: a topic for the retained states ``online`` and ``offline``; the latter is also the last will.
        username: the user name for the broker.
        password: the password for the broker.
        tls: whether to use TLS, or an SSL context.
        ca_file: trusted certificates, instead of those of the system.
        cert_file: a client certificate, if the broker requires one.
        key_file: the key of the client certificate.
        client_id: our client id, under which the broker queues messages; ``hookline-NAME`` if left out. Only one
            client can be connected under an id.
        version: the MQTT version, ``"5"`` or ``"3.1.1"``.
        qos: the quality of service: 1, or 0 if messages may be lost.
        keepalive: seconds without traffic after which the connection is checked.
        session_expiry: how many seconds the broker queues messages (MQTT 5; with 3.1.1 the broker decides).
        reply_format: ``"json"``, with ``id``, ``text``, ``reply_to`` and ``thread``, or ``"text"``.
        max_size: the largest payload in bytes; larger ones are ignored.
        max_length: the longest text of a reply in bytes; longer ones are split.

    Raises:
        ChannelError: a setting is invalid.
        NotInstalledError: the package ``aiomqtt`` is missing.
    """

    def __init__(
        self,
        name: str = "mqtt",
        host: str = "localhost",
        port: int | None = None,
        *,
        topic: str = "hookline/{device}/in",
        reply_topic: str = "hookline/{device}/out",
        status_topic: str | None = None,
        username: str | None = None,
        password: str | None = None,
        tls: bool | ssl.SSLContext = False,
        ca_file: str | None = None,
        cert_file: str | None = None,
        key_file: str | None = None,
        client_id: str | None = None,
        version: str = "5",
        qos: int = 1,
        keepalive: int = 30,
        session_expiry: int = 7 * 24 * 3600,
        reply_format: str = "json",
        max_size: int = 1_048_576,
        max_length: int | None = None,
    ) -> None:
        port = (8883 if tls else 1883) if port is None else port
        _check(name, host, port, version, qos, reply_format, password is not None and username is None)
        for label, value, least, most in (
            ("keepalive", keepalive, 1, 65_535),
            ("session_expiry", session_expiry, 0, _NEVER_EXPIRES),
            ("max_size", max_size, 1, math.inf),
            ("max_length", max_length, 1, math.inf),
        ):
            if value is not None and not (is_number(value) and int(value) == value and least <= value <= most):
                raise ChannelError(f"{label} {value!r} must be a whole number of at least {least}")
        self.name, self.client_id = name, client_id or f"hookline-{name}"
        self._topic = Topic(topic, "topic")
        self._reply_topic = Topic(reply_topic, "reply_topic")
        self._status_topic = status_topic and checked_topic(status_topic, "status_topic")
        for label, other in (("reply_topic", reply_topic), ("status_topic", status_topic)):
            if other and self._topic.overlaps(other):
                raise ChannelError(
                    f"{label} {other!r} overlaps with {topic!r}: the agent would answer itself. Choose another topic"
                )
        if find_spec("aiomqtt") is None:
            raise NotInstalledError("aiomqtt", "channels")
        self._options: dict[str, Any] = {
            "host": host,
            "port": port,
            "version": version,
            "session_expiry": session_expiry,
            "keepalive": keepalive,
            "username": username,
            "password": password,
            "tls_context": _tls_context(tls, ca_file, cert_file, key_file),
        }
        self._broker = f"{host}:{port}"
        self._qos = qos
        self._reply_format = reply_format
        self._max_size = max_size
        self._keepalive = keepalive
        self.capabilities = Capabilities(max_length=max_length, length=_bytes)
        self._ids = MessageIds()
        self._health = Health(False, "not started")
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._connection: MqttConnection | None = None
        self._sending = InFlight()

    async def start(self, deliver: Deliver) -> None:
        """Connect to the broker in the background, and reconnect after a lost connection.

        Raises:
            ChannelError: the channel is started already.
        """
        if self._task is not None:
            raise ChannelError(f"the channel {self.name!r} is started already: stop it first")
        self._stopping, self._health = asyncio.Event(), Health(False, f"connecting to {self._broker}")
        self._task = asyncio.create_task(self._serve(deliver), name=f"hookline mqtt {self.name}")

    async def stop(self) -> None:
        """Disconnect. The broker queues new messages."""
        if self._task is None:
            return
        self._stopping.set()
        if self._connection is not None:
            self._connection.changed.set()
        try:
            await self._task
        finally:
            self._task, self._health = None, Health(False, "stopped")

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Publish a reply and wait for the acknowledgement. The id is ``key``, since MQTT has no message ids.

        Raises:
            ChannelError: the broker cannot be reached.
            UndeliverableError: the device name is invalid, or the broker rejects the reply.
        """
        from .client import MqttError, RejectedError

        topic = self._reply_topic.for_device(address.chat_id)
        if topic is None:
            raise UndeliverableError(f"{address.chat_id!r} is not a device name: it is empty or contains /, + or #")
        if (connection := self._connection) is None:
            raise ChannelError(f"the channel {self.name!r} is not connected to {self._broker}: {self._health.detail}")
        payload = reply_payload(message, message.thread_id or address.thread_id, key, self._reply_format)
        try:
            with self._sending:
                await connection.send(topic, payload, self._qos, key=key)
        except RejectedError as error:
            raise UndeliverableError(error_text(error)) from None
        except ValueError as error:
            raise UndeliverableError(f"a reply of {len(payload):,} bytes to {topic} cannot be sent: {error}") from None
        except (MqttError, OSError) as error:
            raise ChannelError(f"{self._broker}: {error_text(error)}") from None
        return key

    def health(self) -> Health:
        """Whether the channel is connected to the broker."""
        return self._health

    async def _serve(self, deliver: Deliver) -> None:
        delivery, backoff, losses = RetryingDelivery(deliver, self._stopping, self._report), Backoff(), 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                await self._run_connection(delivery)
            except Exception as error:  # noqa: BLE001 - every error leads to a reconnection
                losses = losses + 1 if self._health.ok else losses
                detail = f"{self._broker}: {self._explain(error, losses)}"
                if self._health.detail != detail:
                    log.warning("channel %s: %s", self.name, detail)
                self._health = Health(False, detail)
            self._ids.forget(2 * self._keepalive)
            if time.monotonic() - began > MAX_DELAY:
                backoff.reset()
                losses = 0
            await wait_at_most(self._stopping, backoff.next())

    async def _run_connection(self, delivery: RetryingDelivery) -> None:
        async with self._connect() as connection:
            await connection.listen(self._topic.filter, self._qos)
            if self._status_topic:
                await connection.send(self._status_topic, b"online", self._qos, retain=True)
            self._connection, self._health = connection, Health(True, f"connected to {self._broker}")
            try:
                while not self._stopping.is_set():
                    await self._deliver_messages(connection, delivery)
                    await connection.changed.wait()
                await self._sending.wait_until_idle()
            finally:
                self._connection = None
            if self._status_topic:
                await connection.send(self._status_topic, b"offline", self._qos, retain=True)

    def _connect(self) -> MqttConnection:
        import aiomqtt

        from .client import MqttConnection

        will = aiomqtt.Will(self._status_topic, b"offline", self._qos, True) if self._status_topic else None
        return MqttConnection(**self._options, identifier=self.client_id, will=will, timeout=_RESPONSE_TIMEOUT)

    async def _deliver_messages(self, connection: MqttConnection, delivery: RetryingDelivery) -> None:
        received = connection.take_messages()
        messages = (message for each in received if (message := self._parse(each)) is not None)
        if not await delivery.deliver_all(messages):
            return  # without an acknowledgement, the broker sends them again
        for each in received:
            connection.ack(each)
            self._ids.acknowledged(each.mid)

    def _parse(self, received: MQTTMessage) -> InboundMessage | None:
        try:
            return self._to_inbound(received)
        except Exception as error:  # noqa: BLE001 - a broken message must not block the others
            log.error("channel %s: a message cannot be read and is ignored: %s", self.name, describe(error))
            return None

    def _to_inbound(self, received: MQTTMessage) -> InboundMessage | None:
        try:
            topic, payload = received.topic, bytes(received.payload)
        except UnicodeDecodeError:
            topic, payload = "", b""
        device = self._topic.device(topic)
        message = None
        if device is None:
            reason = "it belongs to an older subscription of this client id, or names no device"
        elif received.retain:
            reason = "it is retained, and so not a new message"
        elif len(payload) > self._max_size:
            reason = f"it has {len(payload):,} bytes, and max_size is {self._max_size:,}"
        else:
            message, reason = parse_payload(payload), "it is empty or not UTF-8 text"
        if device is None or message is None:
            log.warning("channel %s: a message on %r is ignored: %s", self.name, topic, reason)
            return None
        return InboundMessage(
            message.text,
            platform="mqtt",
            chat_id=device,
            sender=f"{device}/{message.sender}" if message.sender else device,
            message_id=message.id or self._ids.id_of(received.mid, topic, payload, received.qos > 0 and received.dup),
            thread_id=message.thread,
            automated=message.automated,
        )

    def _report(self, detail: str) -> None:
        self._health = Health(not detail, detail or f"connected to {self._broker}")

    def _explain(self, error: BaseException, losses: int) -> str:
        text = error_text(error)
        if "timed out" in text and self._options["version"] == "5":
            text += " (if the broker does not support MQTT 5, set version to 3.1.1)"
        elif losses >= _SUSPICIOUS_LOSSES or "taken over" in text:
            text += f" (does another program use the client id {self.client_id}? Each needs its own)"
        return text


def _check(name: str, host: str, port: int, version: str, qos: int, reply_format: str, password_alone: bool) -> None:
    if not (isinstance(name, str) and name):
        raise ChannelError("a channel needs a name")
    if not (isinstance(host, str) and host and "/" not in host):
        raise ChannelError(f"host {host!r} is not a host name, such as broker.example.org")
    if not (isinstance(port, int) and 0 < port < 65_536):
        raise ChannelError(f"port {port!r} must be a number from 1 to 65535")
    if version not in ("5", "3.1.1"):
        raise ChannelError(f"version {version!r} must be '5' or '3.1.1'")
    if qos not in (0, 1):
        raise ChannelError(f"qos {qos!r} must be 0 or 1; 1 with an id in each message has the effect of 2")
    if reply_format not in ("json", "text"):
        raise ChannelError(f"reply_format {reply_format!r} must be 'json' or 'text'")
    if password_alone:
        raise ChannelError("a password requires a username")


def _tls_context(
    tls: bool | ssl.SSLContext, ca: str | None, cert: str | None, key: str | None
) -> ssl.SSLContext | None:
    if not tls and (ca or cert or key):
        raise ChannelError("ca_file, cert_file and key_file require tls = true")
    if key and not cert:
        raise ChannelError("key_file requires a cert_file")
    if not tls or isinstance(tls, ssl.SSLContext):
        return tls or None
    try:
        context = ssl.create_default_context(cafile=ca)
        if cert:
            context.load_cert_chain(cert, key)
    except (OSError, ssl.SSLError) as error:
        raise ChannelError(f"the certificates cannot be read: {error}") from None
    return context


def _bytes(text: str) -> int:
    return len(text.encode("utf-8", "replace"))
