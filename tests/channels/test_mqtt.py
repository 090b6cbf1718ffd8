import asyncio
import gc
import json
import ssl
import subprocess
from datetime import UTC, datetime, timedelta

import aiomqtt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline._base.errors import NotInstalledError
from hookline.channels.mqtt.channel import MqttChannel
from hookline.channels.mqtt.messages import MessageIds, Topic, parse_payload, reply_payload
from hookline.channels.protocol import Address, ChannelError, UndeliverableError
from hookline.stores.messages import OutboundMessage

from ..waiting import wait_until
from .conformance import Conformance, Rig, ready
from .platforms import MOSQUITTO, Inbox, Mosquitto

needs_broker = pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed: apt install mosquitto")


@pytest.fixture
def broker(tmp_path):
    broker = Mosquitto(tmp_path).start()
    yield broker
    broker.stop(kill=True)


@pytest.fixture
def channel(broker):
    return MqttChannel("farm", "127.0.0.1", broker.port)


async def said(client, *wanted):
    """The next messages that a device receives."""
    messages = client.messages
    return [await anext(messages) for _ in wanted]


class MqttRig(Rig):
    def __init__(self, channel, person, screen):
        self.channel, self.person, self.screen, self.seen = channel, person, screen, []

    async def say(self, text):
        await self.person.publish(f"hookline/{self.chat}/in", text, qos=1)

    async def heard(self):
        async with asyncio.timeout(60):
            self.seen.append(json.loads((await anext(self.screen.messages)).payload)["text"])
        return self.seen


@needs_broker
class TestConformance(Conformance):
    @pytest.fixture(params=["5", "3.1.1"])
    async def rig(self, broker, request):
        async with broker.client() as person, broker.client("hookline/+/out") as screen:
            yield MqttRig(MqttChannel("farm", "127.0.0.1", broker.port, version=request.param), person, screen)


@needs_broker
@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_each_device_has_its_own_conversation(broker, version):
    channel, inbox = MqttChannel("farm", "127.0.0.1", broker.port, version=version), Inbox()
    await ready(channel, inbox)
    async with broker.client("hookline/robot 1/out", protocol=aiomqtt.ProtocolVersion.V5) as robot:
        await robot.publish("hookline/robot 1/in", "hello", qos=1)
        form = {"id": 7, "text": "hi 🌱", "sender": "anna", "thread": "t"}
        await robot.publish("hookline/türe/in", json.dumps(form), qos=1)
        await wait_until(lambda: len(inbox.messages) == 2)
        by_chat = {message.chat_id: message for message in inbox.messages}
        plain, formed = by_chat["robot 1"], by_chat["türe"]
        assert (plain.text, plain.sender, plain.thread_id, plain.platform, plain.direct) == (
            "hello",
            "robot 1",
            "",
            "mqtt",
            True,
        )
        assert (formed.text, formed.message_id, formed.sender, formed.thread_id) == ("hi 🌱", "7", "türe/anna", "t")
        address = Address("farm", "robot 1", "t")
        assert await channel.send(address, OutboundMessage("done", reply_to="7"), key="key-1") == "key-1"
        reply = await anext(robot.messages)
        assert json.loads(reply.payload) == {
            "id": "key-1",
            "text": "done",
            "reply_to": "7",
            "thread": "t",
            "automated": True,
        }
        if version == "5":
            assert ("id", "key-1") in reply.properties.UserProperty
    await channel.stop()


@needs_broker
async def test_a_reply_can_be_plain_text(broker):
    channel = MqttChannel("farm", "127.0.0.1", broker.port, reply_format="text", max_length=64)
    assert channel.capabilities.max_length == 64
    assert channel.capabilities.length("ü") == 2
    await ready(channel, Inbox())
    async with broker.client("hookline/+/out") as robot:
        await channel.send(Address("farm", "r"), OutboundMessage("grüß \ud800"), key="k")
        assert (await anext(robot.messages)).payload == "grüß ?".encode()
    await channel.stop()


@needs_broker
@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_messages_are_queued_while_the_channel_is_disconnected(broker, version):
    first, inbox = MqttChannel("farm", "127.0.0.1", broker.port, version=version), Inbox()
    await ready(first, inbox)
    await first.stop()
    async with broker.client() as robot:
        for n in range(30):
            await robot.publish("hookline/r/in", f"{n}", qos=1)
    broker.stop()
    broker.start()
    await ready(MqttChannel("farm", "127.0.0.1", broker.port, version=version), inbox)
    await wait_until(lambda: len(inbox.messages) == 30)
    assert inbox.texts == [str(n) for n in range(30)]


@needs_broker
@pytest.mark.parametrize("kill", [False, True])
async def test_a_restart_of_the_broker_loses_no_message(broker, channel, kill):
    inbox, numbers = Inbox(), iter(range(10_000))
    await ready(channel, inbox)
    acknowledged = []

    async def talk():
        while len(acknowledged) < 120:
            try:
                async with broker.client() as robot:
                    while len(acknowledged) < 120:
                        text = str(next(numbers))
                        await robot.publish("hookline/r/in", json.dumps({"id": text, "text": text}), qos=1, timeout=1)
                        acknowledged.append(text)
            except aiomqtt.MqttError:
                await asyncio.sleep(0.01)  # not acknowledged: a device says something new

    talking, killed = asyncio.create_task(talk()), []
    for after in (20, 60):
        await wait_until(lambda after=after: len(acknowledged) >= after)
        await asyncio.to_thread(broker.stop, kill)
        killed += [len(acknowledged)] if kill else []
        await asyncio.to_thread(broker.start)
    await talking
    # mosquitto acknowledges a message before it writes it down: a kill in between loses that one, and it alone
    unsure = {text for count in killed for text in acknowledged[count - 1 : count + 1]}
    await wait_until(lambda: set(acknowledged) - unsure <= set(inbox.texts))
    texts = [int(text) for text in inbox.texts]
    assert texts == sorted(texts)
    await wait_until(lambda: channel.health().ok)
    await channel.stop()


@needs_broker
@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_a_message_is_acknowledged_only_when_it_is_stored(broker, version):
    def build():
        return MqttChannel("farm", "127.0.0.1", broker.port, version=version)

    async def full(message):
        raise OSError("the disk is full")

    first, inbox = build(), Inbox()
    await ready(first, full)
    async with broker.client() as robot:
        await robot.publish("hookline/r/in", "precious", qos=1)
        await wait_until(lambda: "disk is full" in first.health().detail)
    await first.stop()  # as it could not be stored, the broker still has it
    second = build()
    await ready(second, inbox)
    await wait_until(lambda: inbox.texts == ["precious"])
    await second.stop()
    third, later = build(), Inbox()
    await ready(third, later)
    async with broker.client() as robot:
        await robot.publish("hookline/r/in", "next", qos=1)
        await wait_until(lambda: later.messages)
    await third.stop()
    assert later.texts == ["next"]


@needs_broker
@pytest.mark.parametrize("version", ["5", "3.1.1"])
async def test_a_redelivered_message_keeps_its_id(broker, version):
    channel, inbox = MqttChannel("farm", "127.0.0.1", broker.port, version=version), Inbox()
    await ready(channel, inbox)
    inbox.open.clear()
    async with broker.client() as robot:
        await robot.publish("hookline/r/in", "once", qos=1)
    await wait_until(lambda: inbox.messages)
    broker.stop()  # before it hears that the message arrived
    inbox.open.set()
    broker.start()
    await wait_until(lambda: max(inbox.offered.values()) == 2)
    async with broker.client() as robot:
        await robot.publish("hookline/r/in", "once", qos=1)
    await wait_until(lambda: inbox.texts == ["once", "once"])
    await channel.stop()


@needs_broker
async def test_invalid_messages_are_ignored(broker, caplog):
    inbox = Inbox()
    async with broker.client() as robot:
        await robot.publish("hookline/old/in", "said long ago", qos=1, retain=True)
        for version in ("5", "3.1.1"):
            channel = MqttChannel(version, "127.0.0.1", broker.port, version=version, max_size=1_000_000)
            await ready(channel, inbox)
            for payload in (b"", b" \n", b"\xff\xfe", b"x" * 1_000_001, b'{"text": ""}'):
                await robot.publish("hookline/r/in", payload, qos=1)
            await robot.publish("hookline//in", "nobody", qos=1)
            await robot.publish("hookline/r/in", b"y" * 1_000_000, qos=1)
            await wait_until(lambda: inbox.messages)
            await channel.stop()
            assert inbox.texts.pop() == "y" * 1_000_000
            assert [message.chat_id for message in inbox.messages] == ["r"]
            inbox.messages.clear()
    assert "max_size is 1,000,000" in caplog.text
    assert "not UTF-8 text" in caplog.text


@needs_broker
async def test_a_message_retained_while_subscribed_is_accepted(broker, channel):
    inbox = Inbox()
    await ready(channel, inbox)
    async with broker.client() as robot:
        await robot.publish("hookline/r/in", "now", qos=1, retain=True)
        await wait_until(lambda: inbox.texts == ["now"])
    await channel.stop()
    await ready(channel, inbox)
    async with broker.client() as robot:
        await robot.publish("hookline/r/in", "later", qos=1)
        await wait_until(lambda: len(inbox.messages) == 2)
    await channel.stop()
    assert inbox.texts == ["now", "later"]


@needs_broker
async def test_messages_of_an_older_subscription_are_ignored(broker, caplog):
    inbox = Inbox()
    old = MqttChannel("farm", "127.0.0.1", broker.port, topic="old/{device}")
    await ready(old, inbox)
    await old.stop()
    new = MqttChannel("farm", "127.0.0.1", broker.port)
    await ready(new, inbox)
    async with broker.client() as robot:
        await robot.publish("old/r", "stale", qos=1)
        await robot.publish("hookline/r/in", "fresh", qos=1)
    await wait_until(lambda: inbox.messages)
    await new.stop()
    assert inbox.texts == ["fresh"]
    assert "older subscription" in caplog.text


@needs_broker
async def test_a_message_that_cannot_be_read_does_not_stop_the_others(broker, channel, monkeypatch, caplog):
    def fails(payload):
        if payload == b"bad":
            raise RuntimeError("never seen before")
        return parse_payload(payload)

    monkeypatch.setattr("hookline.channels.mqtt.channel.parse_payload", fails)
    inbox = Inbox()
    await ready(channel, inbox)
    async with broker.client() as robot:
        await robot.publish("hookline/r/in", "bad", qos=1)
        await robot.publish("hookline/r/in", "good", qos=1)
        await wait_until(lambda: inbox.messages)
    await channel.stop()
    assert inbox.texts == ["good"]
    assert "never seen before" in caplog.text


@needs_broker
async def test_the_status_topic_shows_whether_the_agent_is_online(broker):
    channel = MqttChannel("farm", "127.0.0.1", broker.port, status_topic="farm/agent")
    await ready(channel, Inbox())
    async with broker.client("farm/agent") as robot:
        status = robot.messages
        assert (await anext(status)).payload == b"online"
        channel._connection._client.socket().shutdown(2)  # as a crash would: no farewell
        assert (await anext(status)).payload == b"offline"
        assert (await anext(status)).payload == b"online"
        await wait_until(lambda: channel.health().ok)
        await channel.stop()
        assert (await anext(status)).payload == b"offline"


@needs_broker
async def test_the_channel_connects_when_the_broker_becomes_available(tmp_path):
    broker, inbox = Mosquitto(tmp_path), Inbox()
    channel = MqttChannel("farm", "127.0.0.1", broker.port)
    await channel.start(inbox)
    await wait_until(lambda: "refused" in channel.health().detail.lower())
    with pytest.raises(ChannelError, match=r"not connected to 127.0.0.1:\d+: .*refused"):
        await channel.send(Address("farm", "r"), OutboundMessage("hi"), key="k")
    broker.start()
    try:
        await wait_until(lambda: channel.health().ok)
        await channel.stop()
    finally:
        broker.stop()


@needs_broker
async def test_a_wrong_password_is_reported(tmp_path):
    passwords = tmp_path / "passwords"
    subprocess.run(["mosquitto_passwd", "-c", "-b", passwords, "agent", "right"], check=True, capture_output=True)
    broker = Mosquitto(tmp_path, f"password_file {passwords}\n", anonymous=False).start()
    try:
        for version in ("5", "3.1.1"):
            wrong = MqttChannel(
                "farm", "127.0.0.1", broker.port, username="agent", password="wrong-one", version=version
            )
            await wrong.start(Inbox())
            await wait_until(lambda wrong=wrong: "not auth" in wrong.health().detail.lower())
            assert not wrong.health().ok
            assert "wrong-one" not in wrong.health().detail
            await wrong.stop()
        right = MqttChannel("farm", "127.0.0.1", broker.port, username="agent", password="right")
        await ready(right, Inbox())
        await right.stop()
    finally:
        broker.stop()


@needs_broker
async def test_a_reply_that_the_broker_rejects_is_undeliverable(tmp_path):
    rules = tmp_path / "acl"
    rules.write_text("topic read hookline/+/in\n")
    broker = Mosquitto(tmp_path, f"acl_file {rules}\n").start()
    try:
        channel = MqttChannel("farm", "127.0.0.1", broker.port)
        await ready(channel, Inbox())
        with pytest.raises(UndeliverableError, match=r"rejects the message to hookline/r/out: Not auth"):
            await channel.send(Address("farm", "r"), OutboundMessage("hi"), key="k")
        await channel.stop()
    finally:
        broker.stop()


@needs_broker
async def test_a_send_fails_as_soon_as_the_connection_is_lost(broker, channel, monkeypatch):
    monkeypatch.setattr("hookline.channels.mqtt.channel._RESPONSE_TIMEOUT", 1000.0)
    await ready(channel, Inbox())
    broker.process.send_signal(19)  # it no longer answers
    sending = asyncio.create_task(channel.send(Address("farm", "r"), OutboundMessage("hi"), key="k"))
    await wait_until(lambda: channel._sending._count)
    broker.stop(kill=True)
    with pytest.raises(ChannelError) as caught:
        await sending
    assert not isinstance(caught.value, UndeliverableError)
    await wait_until(lambda: not channel.health().ok)
    await channel.stop()


@needs_broker
async def test_two_clients_with_the_same_id_are_reported(broker, channel):
    await ready(channel, Inbox())
    other = MqttChannel("other", "127.0.0.1", broker.port, client_id=channel.client_id)
    await other.start(Inbox())
    await wait_until(lambda: f"does another program use the client id {channel.client_id}" in channel.health().detail)
    await other.stop()
    await wait_until(lambda: channel.health().ok)
    await channel.stop()


@needs_broker
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # paho leaves a failed socket to the gc
async def test_the_connection_can_be_encrypted(tmp_path):
    ca = certificate(tmp_path)
    broker = Mosquitto(tmp_path, f"certfile {tmp_path}/cert.pem\nkeyfile {tmp_path}/key.pem\n").start()
    try:
        channel, inbox = MqttChannel("farm", "localhost", broker.port, tls=True, ca_file=str(ca)), Inbox()
        await ready(channel, inbox)
        async with broker.client(tls_context=ssl.create_default_context(cafile=ca), tls_insecure=True) as robot:
            await robot.publish("hookline/r/in", "secret", qos=1)
            await wait_until(lambda: inbox.texts == ["secret"])
        await channel.stop()
        stranger = MqttChannel("farm", "localhost", broker.port, tls=True)
        await stranger.start(inbox)
        await wait_until(lambda: "certificate verify failed" in stranger.health().detail)
        await stranger.stop()
        gc.collect()
    finally:
        broker.stop()


def certificate(folder):
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key, name = ec.generate_private_key(ec.SECP256R1()), x509.Name([])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + timedelta(days=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), True)
        .add_extension(x509.BasicConstraints(True, None), True)
        .sign(key, hashes.SHA256())
    )
    (folder / "cert.pem").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    (folder / "key.pem").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "cert.pem"


@pytest.mark.parametrize("device", ["", "a/b", "+", "#", "a\0", "x" * 70_000, "\ud800"])
async def test_a_reply_to_an_invalid_device_name_is_undeliverable(device):
    with pytest.raises(UndeliverableError, match="not a device name"):
        await MqttChannel().send(Address("mqtt", device), OutboundMessage("hi"), key="k")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": ""}, "needs a name"),
        ({"host": "mqtt://x"}, "not a host name"),
        ({"port": 0}, "1 to 65535"),
        ({"topic": "hookline/in"}, "as a whole level"),
        ({"topic": "a/{device}x"}, "as a whole level"),
        ({"topic": "{device}/{device}"}, "as a whole level"),
        ({"topic": "a/{device}/#"}, "without the wildcards"),
        ({"topic": 3}, "not an MQTT topic"),
        ({"topic": "$share/group/{device}"}, "reserved for the broker"),
        ({"reply_topic": "out"}, "reply_topic 'out' must contain"),
        ({"reply_topic": "hookline/{device}/in"}, "answer itself"),
        ({"topic": "a/{device}", "reply_topic": "{device}/b"}, "answer itself"),
        ({"status_topic": "hookline/x/in"}, "status_topic .* answer itself"),
        ({"status_topic": "x" * 70_000}, "too long"),
        ({"version": "4"}, "must be '5' or"),
        ({"qos": 2}, "must be 0 or 1"),
        ({"reply_format": "xml"}, "'json' or 'text'"),
        ({"password": "secret"}, "requires a username"),
        ({"keepalive": 0}, "keepalive 0"),
        ({"session_expiry": -1}, "session_expiry"),
        ({"max_size": 1.5}, "max_size"),
        ({"ca_file": "ca.pem"}, "require tls"),
        ({"tls": True, "key_file": "k"}, "requires a cert_file"),
        ({"tls": True, "ca_file": "/nowhere.pem"}, "cannot be read"),
    ],
)
def test_invalid_settings_are_rejected(settings, words):
    with pytest.raises(ChannelError, match=words):
        MqttChannel(**settings)


def test_a_missing_package_is_reported(monkeypatch):
    monkeypatch.setattr("hookline.channels.mqtt.channel.find_spec", lambda name: None)
    with pytest.raises(NotInstalledError, match=r"pip install .*\[channels\]"):
        MqttChannel()


levels = st.lists(st.sampled_from(["a", "b", "in", "out", "{device}", ""]), min_size=1, max_size=4).map("/".join)


@given(levels, levels, st.sampled_from(["a", "b", "in", "out", "c"]))
def test_reply_topics_never_overlap_with_device_topics(topic, reply, device):
    try:
        MqttChannel(topic=topic, reply_topic=reply)
    except ChannelError:
        return
    assert Topic(topic, "topic").device(Topic(reply, "reply_topic").for_device(device)) is None


@given(st.text(st.characters(exclude_characters="/+#\0", exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_the_device_name_can_be_read_from_its_topic(device):
    topic = Topic("x/{device}/y", "topic")
    assert topic.device(topic.for_device(device)) == device
    assert topic.device(f"x/{device}/z") is None
    assert topic.device(f"x/{device}") is None


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda text: text.encode("utf-8", "replace")))
def test_every_payload_is_parsed_as_text_or_ignored(payload):
    said = parse_payload(payload)
    try:
        text = payload.decode()
    except UnicodeDecodeError:
        assert said is None
        return
    if not text.lstrip().startswith("{"):
        assert (said.text if said else "") == (text if text.strip() else "")


def test_json_that_is_nested_too_deeply_is_treated_as_text():
    payload = b'{"text": "x", "y": ' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    assert parse_payload(payload).text == payload.decode()


scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10)
json_values = scalars | st.lists(scalars, max_size=3) | st.dictionaries(st.text(max_size=5), scalars, max_size=3)


@given(st.dictionaries(st.sampled_from(["id", "text", "sender", "thread", "x"]), json_values))
def test_an_object_with_a_text_is_a_message_and_other_json_is_treated_as_text(form):
    payload = json.dumps(form).encode()
    said = parse_payload(payload)
    fits = isinstance(form.get("text"), str) and isinstance(form.get("sender", ""), str)
    fits = fits and all(
        isinstance(form.get(name, ""), (str, int)) and not isinstance(form.get(name), bool) for name in ("id", "thread")
    )
    if not fits:
        assert said.text == payload.decode()
        assert not said.id
    elif form["text"].strip():
        assert (said.text, said.id) == (form["text"], str(form.get("id", "")))
    else:
        assert said is None
    if said is not None:
        said.text.encode()  # always valid Unicode


@given(st.text(max_size=50), st.text(max_size=5), st.text(max_size=5))
def test_every_reply_is_valid_json(text, reply_to, thread):
    fields = json.loads(reply_payload(OutboundMessage(text, reply_to), thread, "key", "json"))
    assert fields["text"] == text
    assert fields["id"] == "key"
    assert (fields.get("reply_to", ""), fields.get("thread", "")) == (reply_to, thread)


@given(st.lists(st.tuples(st.integers(1, 3), st.sampled_from([b"yes", b"no"]), st.booleans()), min_size=1, max_size=30))
def test_only_a_redelivered_packet_has_the_same_id(packets):
    ids, last = MessageIds(), {}
    given_out = set()
    for packet, payload, again in packets:
        id = ids.id_of(packet, "t", payload, again)
        if again and last.get(packet, (None, None))[0] == payload:
            assert id == last[packet][1]
        else:
            assert id not in given_out
        given_out.add(id)
        last[packet] = (payload, id)


def test_ids_are_forgotten_some_time_after_the_acknowledgement():
    ids = MessageIds()
    first, second = ids.id_of(1, "t", b"x", False), ids.id_of(2, "t", b"x", False)
    ids.acknowledged(1)
    ids.forget(60)
    assert ids.id_of(1, "t", b"x", True) == first
    ids.forget(-1)
    assert ids.id_of(1, "t", b"x", True) != first  # a new message whose first delivery we never saw
    assert ids.id_of(2, "t", b"x", True) == second
