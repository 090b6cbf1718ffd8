"""MQTT: robots and devices talk to an agent through a broker."""

from __future__ import annotations

import asyncio
import logging
import math
import ssl
import time
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from ..._base.errors import NotInstalledError
from ..._base.text import describe, error_text, is_number
from ...stores.messages import InboundMessage, OutboundMessage
from ..protocol import Address, Capabilities, ChannelError, Deliver, Health, UndeliverableError
from ..receiving import LONGEST_WAIT, Busy, Handover, Waits, pause
from .messages import Redeliveries, Topic, fixed_topic, read, written

if TYPE_CHECKING:
    from paho.mqtt.client import MQTTMessage

    from .client import Connection

log = logging.getLogger("hookline")

_ANSWER_TIME = 10.0
_SUSPICIOUS = 3  # connections lost in a row soon after they were made
_FOR_EVER = 0xFFFFFFFF  # of a session, in MQTT 5


class MqttChannel:
    """A channel to devices through an MQTT broker; each device is a conversation.

    A device publishes text, or a JSON object with ``text`` and, if it likes, ``id``, ``sender`` and ``thread``. The
    broker keeps what is said while nobody listens, and is told that a message arrived once the gateway has stored it.
    Retained messages, empty ones and what is no text are left out.

    Args:
        name: the channel's name.
        host: the broker.
        port: its port; 1883, or 8883 with TLS, if left out.
        topic: where devices speak; the level ``{device}`` is who.
        reply_topic: where they are answered.
        status_topic: where ``online`` and ``offline`` are kept for devices to see, the latter by a last will.
        username: for the broker.
        password: for the broker.
        tls: whether to encrypt, or a context of your own that says how.
        ca_file: certificates to trust instead of the system's.
        cert_file: a certificate of our own, if the broker asks for one.
        key_file: its key.
        client_id: our name at the broker, under which it keeps what we missed; of two with one name only one can be
            connected. ``hookline-NAME`` if left out.
        version: of MQTT, ``"5"`` or ``"3.1.1"``.
        qos: 1, or 0 for devices to which losing a message is no loss.
        keepalive: seconds after which a silent connection is looked at.
        session_expiry: seconds for which the broker keeps what we missed (MQTT 5; 3.1.1 leaves it to the broker).
        reply_format: ``"json"``, with ``id``, ``text``, ``reply_to`` and ``thread``, or ``"text"``.
        max_size: bytes; a longer payload is left out.
        max_length: bytes of text in a reply; longer ones are split.

    Raises:
        ChannelError: a setting that cannot work.
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
            ("session_expiry", session_expiry, 0, _FOR_EVER),
            ("max_size", max_size, 1, math.inf),
            ("max_length", max_length, 1, math.inf),
        ):
            if value is not None and not (is_number(value) and int(value) == value and least <= value <= most):
                raise ChannelError(f"{label} {value!r} is not a whole number from {least} on")
        self.name, self.client_id = name, client_id or f"hookline-{name}"
        self._topic, self._replies = Topic(topic, "topic"), Topic(reply_topic, "reply_topic")
        self._status_topic = status_topic and fixed_topic(status_topic, "status_topic")
        for label, other in (("reply_topic", reply_topic), ("status_topic", status_topic)):
            if other and self._topic.meets(other):
                raise ChannelError(
                    f"{label} {other!r} could be read as {topic!r}: the agent would answer itself. Choose another"
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
            "tls_context": _context(tls, ca_file, cert_file, key_file),
        }
        self._where = f"{host}:{port}"
        self._qos, self._format, self._max_size, self._keepalive = qos, reply_format, max_size, keepalive
        self.capabilities = Capabilities(max_length=max_length, length=_bytes)
        self._ids = Redeliveries()
        self._health = Health(False, "not started")
        self._task: asyncio.Task[None] | None = None
        self._stopping = asyncio.Event()
        self._connection: Connection | None = None
        self._sending = Busy()

    async def start(self, deliver: Deliver) -> None:
        """Connect, and stay connected.

        Raises:
            ChannelError: it is started already.
        """
        if self._task is not None:
            raise ChannelError(f"the channel {self.name!r} is started already: stop it first")
        self._stopping, self._health = asyncio.Event(), Health(False, f"connecting to {self._where}")
        self._task = asyncio.create_task(self._serve(deliver), name=f"hookline mqtt {self.name}")

    async def stop(self) -> None:
        """Disconnect; the broker keeps what comes from now on."""
        if self._task is None:
            return
        self._stopping.set()
        if self._connection is not None:
            self._connection.stirred.set()
        try:
            await self._task
        finally:
            self._task, self._health = None, Health(False, "stopped")

    async def send(self, address: Address, message: OutboundMessage, *, key: str) -> str:
        """Publish a reply and wait until the broker has it; ``key`` is its id, since MQTT has none.

        Raises:
            ChannelError: no connection. UndeliverableError: an invalid device name, or the broker refuses.
        """
        from .client import MqttError, Refused

        topic = self._replies.of(address.chat_id)
        if topic is None:
            raise UndeliverableError(
                f"{address.chat_id!r} is not the name of a device: it is empty or has one of / + #"
            )
        if (connection := self._connection) is None:
            raise ChannelError(f"the channel {self.name!r} is not connected to {self._where}: {self._health.detail}")
        payload = written(message, message.thread_id or address.thread_id, key, self._format)
        try:
            with self._sending:
                await connection.put(topic, payload, self._qos, key=key)
        except Refused as error:
            raise UndeliverableError(error_text(error)) from None
        except ValueError as error:
            raise UndeliverableError(f"a reply of {len(payload):,} bytes to {topic}: {error}") from None
        except (MqttError, OSError) as error:
            raise ChannelError(f"{self._where}: {error_text(error)}") from None
        return key

    def health(self) -> Health:
        """Whether there is a connection."""
        return self._health

    async def _serve(self, deliver: Deliver) -> None:
        handover, waits, losses = Handover(deliver, self._stopping, self._trouble), Waits(), 0
        while not self._stopping.is_set():
            began = time.monotonic()
            try:
                await self._session(handover)
            except Exception as error:  # noqa: BLE001 - whatever it is, we connect again
                losses = losses + 1 if self._health.ok else losses
                detail = f"{self._where}: {self._why(error, losses)}"
                if self._health.detail != detail:
                    log.warning("channel %s: %s", self.name, detail)
                self._health = Health(False, detail)
            self._ids.forget(2 * self._keepalive)
            if time.monotonic() - began > LONGEST_WAIT:
                waits.reset()
                losses = 0
            await pause(waits.next(), self._stopping)

    async def _session(self, handover: Handover) -> None:
        async with self._connect() as connection:
            await connection.hear(self._topic.filter, self._qos)
            if self._status_topic:
                await connection.put(self._status_topic, b"online", self._qos, retain=True)
            self._connection, self._health = connection, Health(True, f"connected to {self._where}")
            try:
                while not self._stopping.is_set():
                    await self._take_in(connection, handover)
                    await connection.stirred.wait()
                await self._sending.over()
            finally:
                self._connection = None
            if self._status_topic:
                await connection.put(self._status_topic, b"offline", self._qos, retain=True)

    def _connect(self) -> Connection:
        import aiomqtt

        from .client import Connection

        will = aiomqtt.Will(self._status_topic, b"offline", self._qos, True) if self._status_topic else None
        return Connection(**self._options, identifier=self.client_id, will=will, timeout=_ANSWER_TIME)

    async def _take_in(self, connection: Connection, handover: Handover) -> None:
        arrived = connection.arrivals()
        if not await handover.take(message for one in arrived if (message := self._readable(one)) is not None):
            return  # not acknowledged, so it comes again
        for one in arrived:
            connection.ack(one)
            self._ids.acknowledged(one.mid)

    def _readable(self, arrived: MQTTMessage) -> InboundMessage | None:
        try:
            return self._message(arrived)
        except Exception as error:  # noqa: BLE001 - one that cannot be read must not stop all others
            log.error("channel %s: a message cannot be read, and is left out: %s", self.name, describe(error))
            return None

    def _message(self, arrived: MQTTMessage) -> InboundMessage | None:
        try:
            topic, payload = arrived.topic, bytes(arrived.payload)
        except UnicodeDecodeError:
            topic, payload = "", b""
        device = self._topic.device(topic)
        said = None
        if device is None:
            reason = "it is an older subscription of this client id, or names no device"
        elif arrived.retain:
            reason = "it is retained: nobody is saying it now"
        elif len(payload) > self._max_size:
            reason = f"it has {len(payload):,} bytes, and max_size is {self._max_size:,}"
        else:
            said, reason = read(payload), "it is empty or no UTF-8 text"
        if device is None or said is None:
            log.warning("channel %s: a message on %r is left out: %s", self.name, topic, reason)
            return None
        return InboundMessage(
            said.text,
            platform="mqtt",
            chat_id=device,
            sender=f"{device}/{said.sender}" if said.sender else device,
            message_id=said.id or self._ids.id_of(arrived.mid, topic, payload, arrived.qos > 0 and arrived.dup),
            thread_id=said.thread,
        )

    def _trouble(self, detail: str) -> None:
        self._health = Health(not detail, detail or f"connected to {self._where}")

    def _why(self, error: BaseException, losses: int) -> str:
        said = error_text(error)
        if "timed out" in said and self._options["version"] == "5":
            said += " (if it knows no MQTT 5, set version to 3.1.1)"
        elif losses >= _SUSPICIOUS or "taken over" in said:
            said += f" (does another program use the client id {self.client_id}? It must be its own)"
        return said


def _check(name: str, host: str, port: int, version: str, qos: int, form: str, password_alone: bool) -> None:
    if not (isinstance(name, str) and name):
        raise ChannelError("a channel needs a name")
    if not (isinstance(host, str) and host and "/" not in host):
        raise ChannelError(f"host {host!r} is not the name of a machine, such as broker.example.org")
    if not (isinstance(port, int) and 0 < port < 65_536):
        raise ChannelError(f"port {port!r} is not a number from 1 to 65535")
    if version not in ("5", "3.1.1"):
        raise ChannelError(f"version {version!r} is not one of '5' and '3.1.1'")
    if qos not in (0, 1):
        raise ChannelError(f"qos {qos!r} is not 0 or 1; 1 with an id in each message gives what 2 would")
    if form not in ("json", "text"):
        raise ChannelError(f"reply_format {form!r} is not 'json' or 'text'")
    if password_alone:
        raise ChannelError("a password needs a username too")


def _context(tls: bool | ssl.SSLContext, ca: str | None, cert: str | None, key: str | None) -> ssl.SSLContext | None:
    if not tls and (ca or cert or key):
        raise ChannelError("ca_file, cert_file and key_file need tls = true")
    if key and not cert:
        raise ChannelError("key_file needs a cert_file")
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
