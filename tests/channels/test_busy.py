"""Messages and commands that arrive during a run."""

import asyncio

import pytest

from hookline import Agent, Limits, ScriptedModel, reply
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.protocol import ChannelError, Command

from ..waiting import wait_until


class Held(ScriptedModel):
    """A model that repeats the message once ``go`` is set; ``asked`` holds the messages so far."""

    def __init__(self):
        super().__init__()
        self.asked, self.go = [], asyncio.Event()

    async def complete(self, request):
        said = [message.content for message in request.messages if message.role == "user"]
        self.asked.append(said)
        await self.go.wait()
        return reply(f"echo {said[-1]}")

    async def stream(self, request):
        yield await self.complete(request)


@pytest.fixture
async def held(gateways):
    model = Held()

    async def make(**options):
        gateway, channel = await gateways(answerer=Agent("bot", llm=model), **options)
        await channel.say("one")
        await wait_until(lambda: model.asked)
        return gateway, channel, model

    yield make
    model.go.set()


async def test_a_message_during_a_run_waits_for_its_turn(held):
    gateway, channel, model = await held()
    await channel.say("two")
    await wait_until(lambda: gateway.status().waiting == 1)
    model.go.set()
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo one", "echo two"]


async def test_a_message_during_a_run_can_steer_it(held):
    gateway, channel, model = await held(when_busy="steer")
    await channel.say("two", message_id="m2")
    await gateway._inbox.queues.wait_until_idle()
    model.go.set()
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo two"]
    assert model.asked[-1] == ["one", "two"]
    assert not await channel.say("two", message_id="m2")
    assert channel.sent[-1].message.reply_to == "m2"


async def test_a_message_that_comes_too_late_to_steer_is_answered_afterwards(gateways):
    ended, go = asyncio.Event(), asyncio.Event()

    from hookline import observer

    @observer("on_run_end")
    async def hold(ctx, result):
        ended.set()
        await go.wait()

    model = Held()
    model.go.set()
    gateway, channel = await gateways(answerer=Agent("bot", llm=model, hooks=[hold]), when_busy="steer")
    await channel.say("one")
    await ended.wait()
    await channel.say("two")
    await gateway._inbox.queues.wait_until_idle()
    go.set()
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo one", "echo two"]
    assert model.asked[-1] == ["one", "two"]


async def test_steering_a_run_that_a_limit_stops_does_not_lose_the_message(gateways):
    model = Held()
    agent = Agent("bot", llm=model, limits=Limits(steps=1))
    gateway, channel = await gateways(answerer=agent, when_busy="steer")
    await channel.say("one")
    await wait_until(lambda: model.asked)
    await channel.say("two")
    await gateway._inbox.queues.wait_until_idle()
    model.go.set()
    await gateway.wait_until_idle()
    assert channel.texts()[-1] == "echo two"
    assert model.asked[-1] == ["one", "two"]  # once, though it had been put into the first run


async def test_stop_cancels_the_run_and_keeps_waiting_messages(held):
    gateway, channel, model = await held()
    await channel.say("two")
    await channel.say("/stop")
    await channel.replies(1)
    model.go.set()
    await gateway.wait_until_idle()
    assert channel.texts() == [
        "Stopped. 1 message is still waiting; /stop all drops them.",
        "echo two",
    ]


async def test_stop_all_drops_waiting_messages(held):
    gateway, channel, model = await held()
    await channel.say("two", message_id="m2")
    await channel.say("/stop all")
    await gateway.wait_until_idle()
    assert channel.texts() == ["Stopped. 1 waiting message was dropped."]
    assert len(model.asked) == 1
    assert not await channel.say("two", message_id="m2")


async def test_stop_with_nothing_to_stop_says_so(gateways):
    gateway, channel = await gateways()
    await channel.say("/stop")
    await gateway.wait_until_idle()
    assert channel.texts() == ["Nothing is running."]


async def test_stop_affects_only_its_own_conversation(held):
    gateway, channel, model = await held()
    await channel.say("/stop", chat="another")
    await channel.replies(1, "another")
    model.go.set()
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo one"]


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (
            "/stpo",
            "There is no command /stpo. Did you mean /stop? /help lists all commands. To send it as a message",
        ),
        ("//etc/passwd", "echo /etc/passwd"),
        ("/ is a slash", "echo / is a slash"),
        ("/HELP", "/stop: cancel"),
        ("/stop\n", "Nothing is running."),
        ("/stop\tall\n", "Nothing is running."),
        ("and/or", "echo and/or"),
    ],
)
async def test_commands_are_recognized(gateways, said, answer):
    gateway, channel = await gateways()
    await channel.say(said)
    await gateway.wait_until_idle()
    assert channel.texts()[0].startswith(answer)


async def test_an_unknown_command_is_not_repeated_at_full_length(gateways):
    gateway, channel = await gateways()
    await channel.say("/" + "x" * 1_000_000)
    await gateway.wait_until_idle()
    (answer,) = channel.texts()
    assert answer.startswith("There is no command /xxx")
    assert len(answer) < 300


async def test_an_empty_message_is_not_answered(gateways):
    gateway, channel = await gateways()
    await channel.say("  ")
    await gateway.wait_until_idle()
    assert channel.sent == []


@pytest.mark.parametrize("limit", ["max_waiting", "max_queued"])
async def test_a_message_beyond_the_limit_is_refused_with_a_reply(held, limit):
    gateway, channel, model = await held(**{limit: 1}, busy_reply="busy!")
    await channel.say("two")
    await channel.say("three", message_id="m3")
    await channel.replies(1)
    assert channel.texts() == ["busy!"]
    model.go.set()
    await gateway.wait_until_idle()
    assert channel.texts() == ["busy!", "echo one", "echo two"]
    assert gateway.status().refused == 1


async def test_a_message_beyond_the_limit_can_be_queued(held):
    gateway, channel, model = await held(max_waiting=1, when_full="queue")
    await channel.say("two")
    await channel.say("three")
    await channel.replies(1)
    model.go.set()
    await gateway.wait_until_idle()
    assert channel.texts()[0].startswith("I am busy")
    assert channel.texts()[1:] == ["echo one", "echo two", "echo three"]


async def test_a_stopping_gateway_lets_runs_finish_and_keeps_waiting_messages(held, gateways):
    gateway, channel, model = await held()
    await channel.say("two")
    stopping = asyncio.create_task(gateway.stop(grace=30))
    await wait_until(lambda: gateway._runner.queues._paused)
    assert await channel.say("three")  # messages are still stored
    model.go.set()
    await stopping
    assert channel.texts() == ["echo one"]
    with pytest.raises(ChannelError):
        await channel.say("four")
    _, channel = await gateways()
    assert await channel.replies(2) == ["echo two", "echo three"]


async def test_a_stop_without_grace_interrupts_runs_and_the_next_gateway_repeats_them(held, gateways):
    gateway, channel, model = await held()
    await channel.say("two")
    await gateway.stop(grace=0)
    assert channel.texts() == []
    assert gateway.status().waiting == 2
    for _ in range(4):  # however often it is stopped so
        model.asked.clear()
        gateway, channel = await gateways(answerer=Agent("bot", llm=model))
        await wait_until(lambda: model.asked)
        await gateway.stop(grace=0)
    _, channel = await gateways()
    assert await channel.replies(2) == ["echo one", "echo two"]


async def test_a_second_stop_without_grace_ends_the_grace_period(held):
    gateway, channel, model = await held()
    stopping = asyncio.create_task(gateway.stop(grace=600))
    await asyncio.sleep(0)
    await gateway.stop(grace=0)
    await stopping
    assert channel.texts() == []


class Watching(MemoryChannel):
    """A channel that records the activity of its conversations."""

    def __init__(self):
        super().__init__()
        self.told = []

    def activity_changed(self, address, message_id, waiting):
        self.told.append((message_id, waiting))


async def test_a_channel_is_notified_of_the_current_message_and_the_number_of_waiting_ones(held):
    channel = Watching()
    gateway, channel, model = await held(channel=channel)
    first = channel.told[-1][0]
    assert channel.told[-1] == (first, 0)
    assert first
    await channel.say("two", message_id="m2")
    await channel.say("/help")
    await channel.replies(1)
    await wait_until(lambda: channel.told[-1] == (first, 1))
    model.go.set()
    await gateway.wait_until_idle()
    assert ("m2", 0) in channel.told
    assert channel.told[-1] == ("", 0)


async def test_a_channel_is_notified_of_recovered_and_dropped_messages(held, gateways):
    gateway, _, model = await held()
    await gateway.stop(grace=0)
    model.asked.clear()
    channel = Watching()
    gateway, _ = await gateways(answerer=Agent("bot", llm=model), channel=channel)
    await wait_until(lambda: channel.told and channel.told[-1][0])
    await channel.say("two")
    await wait_until(lambda: channel.told[-1][1] == 1)
    await channel.say("/stop all")
    await gateway.wait_until_idle()
    assert channel.told[-1] == ("", 0)


@pytest.mark.parametrize("fault", ["typing", "raises"])
async def test_a_failing_or_disabled_notification_does_not_affect_runs(gateways, fault):
    channel = Watching()
    if fault == "raises":
        channel.told = None
    gateway, _ = await gateways(channel=channel, typing=fault != "typing")
    await channel.say("one")
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo one"]
    assert not channel.told


async def test_a_queued_command_says_so_and_a_read_only_command_runs_immediately(gateways):
    async def named(session, argument):
        return f"named {argument}".strip()

    model = Held()
    agent = Agent("bot", llm=model)
    agent.commands = {"name": Command("a name", named, read_only=True)}
    gateway, channel = await gateways(answerer=agent)
    await channel.say("/name x")
    await channel.say("/new")
    await channel.replies(2)
    await channel.say("one")
    await wait_until(lambda: model.asked)
    await channel.say("/name")
    await channel.say("/name y")
    await channel.replies(4)
    later = "This will be done after the current run. /stop ends that run."
    assert channel.texts() == ["named x", "Started a new conversation.", "named", later]
    model.go.set()
    await gateway.wait_until_idle()
    assert channel.texts()[4:] == ["echo one", "named y"]
