import asyncio
import json

import pytest

from hookline import Agent, ScriptedModel
from hookline.channels import MqttChannel, TelegramChannel
from hookline.channels.access import Access
from hookline.channels.gateway import Gateway
from hookline.stores.mailbox import Mailbox
from hookline.stores.sessions import SqliteSessionStore

from ..waiting import wait_until
from .bot_api import GROUP, TOKEN, BotApi
from .platforms import MOSQUITTO, Mosquitto


@pytest.fixture
async def serve(tmp_path):
    """A gateway with an agent that repeats each message."""
    made = []

    async def start(channel):
        model = ScriptedModel([lambda request: f"echo {request.messages[-1].content}"], loop=True)
        gateway = Gateway(
            Agent("bot", llm=model),
            [channel],
            mailbox=Mailbox(tmp_path / "gateway.db"),
            sessions=SqliteSessionStore(tmp_path / "sessions.db"),
            access={channel.name: Access(None, mention=True)},
        )
        await gateway.start()
        made.append(gateway)
        return gateway

    yield start
    for gateway in made:
        await gateway.stop()


@pytest.mark.skipif(MOSQUITTO is None, reason="mosquitto is not installed: apt install mosquitto")
async def test_devices_get_every_answer_despite_restarts(serve, tmp_path):
    broker = Mosquitto(tmp_path).start()
    answers = {}

    async def listen(robot):
        async for message in robot.messages:
            answers[json.loads(message.payload)["reply_to"]] = json.loads(message.payload)["text"]

    async def talk(first, last, meanwhile=None):
        async with broker.client("hookline/robot/out", identifier="robot", clean_session=False) as robot:
            listening = asyncio.create_task(listen(robot))
            for n in range(first, last):
                await robot.publish("hookline/robot/in", json.dumps({"id": n, "text": f"number {n}"}), qos=1)
            if meanwhile is not None:
                await meanwhile()
            await wait_until(lambda: len(answers) == last)
            listening.cancel()

    async def restart():
        await gateway.stop()
        await serve(MqttChannel("farm", "127.0.0.1", broker.port))

    try:
        channel = MqttChannel("farm", "127.0.0.1", broker.port)
        gateway = await serve(channel)
        await wait_until(lambda: channel.health().ok)
        await talk(0, 10)
        await asyncio.to_thread(broker.stop)
        await asyncio.to_thread(broker.start)
        await talk(10, 20)  # perhaps before the channel is connected again
        await talk(20, 30, restart)
        assert answers == {str(n): f"echo number {n}" for n in range(30)}
    finally:
        broker.stop(kill=True)


@pytest.mark.slow
async def test_people_on_telegram_are_answered_where_they_wrote(serve):
    async with BotApi() as api:
        gateway = await serve(TelegramChannel("phone", token=TOKEN, base_url=api.url))
        api.fail("sendmessage", 429, "Too Many Requests: retry after 0", retry_after=0.05)
        await api.say("hello")
        await api.say("to nobody in particular", GROUP)
        mention = {"entities": [{"type": "mention", "offset": 0, "length": 10}]}
        await api.say("@Agent_Bot hi", GROUP, message_thread_id=9, is_topic_message=True, **mention)
        await wait_until(lambda: api.texts() and api.texts(GROUP["id"]))
        assert api.texts() == ["echo hello"]
        (answer,) = api.chats[GROUP["id"]].values()
        assert (answer["text"], answer["asked"]["message_thread_id"]) == ("echo hi", "9")
        await api.say("/start")
        await wait_until(lambda: len(api.texts()) == 2)
        assert "/stop" in api.texts()[1]
        await api.say("word " * 2000)
        await wait_until(lambda: "".join(api.texts()[2:]).count("word") == 2000)
        assert len(api.texts()) == 5
        await gateway.stop()
