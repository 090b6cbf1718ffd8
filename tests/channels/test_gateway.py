import asyncio
import logging
from pathlib import Path

import pytest

from hookline import (
    Agent,
    AgentContext,
    HookResult,
    Limits,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.channels.factory import build_gateway
from hookline.channels.gateway import Gateway
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.protocol import Capabilities, ChannelError, Command, UndeliverableError
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.hooks import ObservabilityHook, SpendingLimit
from hookline.payloads import InboundMessage, Usage
from hookline.stores.mailbox import Mailbox
from hookline.stores.messages import OutboundMessage
from hookline.stores.sessions import SqliteSessionStore
from hookline.teams import Team


async def test_a_message_passes_every_point_in_order_and_its_answer_is_sent(gateways):
    seen = []

    @observer("message_received", "message_sent")
    def watch(point, ctx, payload):
        seen.append((str(point), payload.message.text))

    @hook("inbound_claim", "message_sending", "before_dispatch", "on_run_start")
    def steps(point, ctx, payload):
        seen.append((str(point), getattr(payload, "task", "") or payload.message.text))

    gateway, channel = await gateways(hooks=[watch, steps])
    assert await channel.say("hi", message_id="m1")
    await gateway.wait_until_idle()
    assert seen == [
        ("message_received", "hi"),
        ("inbound_claim", "hi"),
        ("on_run_start", "hi"),
        ("message_sending", "echo hi"),
        ("before_dispatch", "echo hi"),
        ("message_sent", "echo hi"),
    ]
    (sent,) = channel.sent
    assert (sent.message.text, sent.message.reply_to) == ("echo hi", "m1")


async def test_the_runs_of_a_channel_are_in_the_list_of_runs_under_its_name(gateways, tmp_path):
    recorder = ObservabilityHook(tmp_path / "runs.db")
    gateway, channel = await gateways(hooks=[recorder])
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert recorder.flush(20)
    (run,) = recorder.store.runs(outermost=True)
    assert (run.origin, run.agent, run.status) == (f"channel {channel.name}", "bot", "completed")
    recorder.store.close()


async def test_a_message_that_is_delivered_again_is_not_answered_again(gateways):
    gateway, channel = await gateways()
    assert await channel.say("hi", message_id="m1")
    assert not await channel.say("hi", message_id="m1")
    assert await channel.say("hi", message_id="m1", chat="another")
    await gateway.wait_until_idle()
    assert channel.texts() == channel.texts("another") == ["echo hi"]
    assert gateway.status().duplicates == 1


async def test_a_conversation_keeps_its_history_until_new(gateways):
    count = [lambda request: str(len(request.messages))]
    gateway, channel = await gateways(answerer=Agent("bot", llm=ScriptedModel(count, loop=True)))
    for text in ("one", "two", "/new", "three"):
        await channel.say(text)
        await gateway.wait_until_idle()
    assert channel.texts() == ["1", "3", "Started a new conversation.", "1"]


async def test_conversations_do_not_mix(gateways):
    count = [lambda request: str(len(request.messages))]
    gateway, channel = await gateways(answerer=Agent("bot", llm=ScriptedModel(count, loop=True)))
    await channel.say("one", chat="a")
    await channel.say("one", chat="b")
    await channel.say("one", chat="a", thread_id="t")
    await channel.say("one", chat="a", bot="other")
    await gateway.wait_until_idle()
    assert {each.message.text for each in channel.sent} == {"1"}


async def test_hooks_see_the_origin_of_a_message(gateways):
    seen = {}

    @hook("on_run_start")
    def look(ctx, start):
        seen.update(ctx.state.metadata, correlation=ctx.correlation_id, platform=ctx.session.platform)

    gateway, channel = await gateways(hooks=[look])
    await channel.say("hi", sender="ada", message_id="m1", direct=False, mentioned=True)
    await gateway.wait_until_idle()
    assert seen["sender"] == "ada"
    assert seen["chat_id"] == "chat"
    assert seen["direct"] is False
    assert (seen["platform"], seen["channel"], seen["correlation"]) == ("memory", "memory", "m1")


async def test_a_conversation_does_not_keep_metadata_that_the_operator_has_removed(gateways):
    seen = []

    @hook("on_run_start")
    def look(ctx, start):
        seen.append(ctx.state.metadata.get("user_role"))

    for metadata in ({"user_role": "admin"}, {}):
        gateway, channel = await gateways(hooks=[look], metadata=metadata)
        await channel.say("hi", message_id=f"m{len(seen)}")
        await gateway.wait_until_idle()
        await gateway.stop()
    assert seen == ["admin", None]


@pytest.mark.parametrize("field", ["reply", "text"])
async def test_a_hook_that_claims_a_message_replies_instead_of_the_agent(gateways, field):
    @hook("inbound_claim")
    def mine(ctx, inbound):
        return {"handled": True, field: "claimed"} if inbound.message.text == "ping" else None

    gateway, channel = await gateways(hooks=[mine])
    await channel.say("ping")
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert channel.texts() == ["claimed", "echo hi"]


async def test_a_claimed_message_without_a_reply_is_not_answered(gateways):
    @hook("inbound_claim")
    def mine(ctx, inbound):
        return HookResult.claim()

    gateway, channel = await gateways(hooks=[mine])
    await channel.say("ping")
    await gateway.wait_until_idle()
    assert channel.sent == []


async def test_a_hook_can_change_a_reply(gateways):
    @hook("message_sending")
    def shout(ctx, outbound):
        return {"message": OutboundMessage(outbound.message.text.upper(), outbound.message.reply_to)}

    gateway, channel = await gateways(hooks=[shout])
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert channel.texts() == ["ECHO HI"]


async def test_a_hook_that_claims_a_dispatch_suppresses_the_reply(gateways):
    @hook("before_dispatch")
    def mute(ctx, outbound):
        return {"handled": outbound.message.text == "echo quiet"}

    gateway, channel = await gateways(hooks=[mute])
    await channel.say("quiet")
    await channel.say("loud")
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo loud"]


@pytest.mark.parametrize("point", ["message_sending", "before_dispatch"])
async def test_a_message_is_not_sent_when_a_hook_before_it_fails(gateways, caplog, point):
    @hook(point)
    def broken(ctx, outbound):
        if outbound.message.text == "echo secret":
            raise RuntimeError("cannot judge")

    gateway, channel = await gateways(hooks=[broken])
    await channel.say("secret")
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo hi"]
    assert gateway.status().failed == 1
    assert "cannot judge" in caplog.text


async def test_the_sender_gets_a_notice_when_inbound_claim_fails(gateways, caplog):
    @hook("inbound_claim")
    def broken(ctx, inbound):
        raise RuntimeError("cannot tell")

    gateway, channel = await gateways(hooks=[broken])
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert channel.texts() == ["Sorry, your message could not be processed."]
    assert "cannot tell" in caplog.text


async def test_a_failed_run_is_reported_without_internals(gateways, caplog):
    gateway, channel = await gateways([RuntimeError("password=hunter2 at /srv/db"), "well again"])
    await channel.say("hi")
    await channel.say("hi")
    await gateway.wait_until_idle()
    failed, well = channel.texts()
    assert "something went wrong" in failed
    assert "hunter2" not in failed
    assert well == "well again"


async def test_a_reply_says_that_a_limit_stopped_its_run(gateways):
    @tool
    def look() -> str:
        """Look."""
        return "nothing"

    agent = Agent("bot", llm=ScriptedModel([call("look")], loop=True), tools=[look], limits=Limits(steps=2))
    gateway, channel = await gateways(answerer=agent)
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert channel.texts() == ["I had to stop before I was finished."]


async def test_a_hook_that_ends_a_run_provides_the_reply(gateways):
    @guard("before_llm")
    def no(ctx, request):
        return HookResult.end("not today")

    gateway, channel = await gateways(hooks=[no])
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert channel.texts() == ["not today"]


async def test_messages_are_answered_in_order_and_conversations_run_concurrently(gateways):
    go, running = asyncio.Event(), []

    async def slow(request):
        running.append(1)
        await go.wait()
        return f"echo {request.messages[-1].content}"

    class Slow(ScriptedModel):
        async def complete(self, request):
            return reply(await slow(request))

        async def stream(self, request):
            yield reply(await slow(request))

    gateway, channel = await gateways(answerer=Agent("bot", llm=Slow()), max_concurrent=2)
    for chat in "abc":
        for text in "12":
            await channel.say(text, chat=chat)
    while len(running) < 2:
        await asyncio.sleep(0.01)
    assert gateway.status().running == 2
    go.set()
    await gateway.wait_until_idle()
    assert [channel.texts(chat) for chat in "abc"] == [["echo 1", "echo 2"]] * 3


async def test_long_replies_are_split_and_sent_in_order(gateways):
    channel = MemoryChannel(capabilities=Capabilities(max_length=20))
    gateway, _ = await gateways([" ".join(["word"] * 30)], channel=channel)
    await channel.say("hi", message_id="m1")
    await gateway.wait_until_idle()
    assert " ".join(channel.texts()) == " ".join(["word"] * 30)
    assert all(len(text) <= 20 for text in channel.texts())
    assert [each.message.reply_to for each in channel.sent] == ["m1"] + [""] * (len(channel.sent) - 1)


async def test_a_send_that_fails_is_tried_again_with_the_same_key_and_order_is_kept(gateways, caplog):
    gateway, channel = await gateways()
    tried = []
    send = channel.send

    async def noted(address, message, *, key):
        tried.append((message.text, key))
        return await send(address, message, key=key)

    channel.send = noted
    channel.failures.extend([ChannelError("not now", retry_after=0.01), ValueError("a bug of the channel")])
    await channel.say("one")
    await channel.say("two")
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo one", "echo two"]
    assert [text for text, _ in tried] == ["echo one"] * 3 + ["echo two"]
    assert len({key for text, key in tried if text == "echo one"}) == 1
    assert gateway.status().retried == 2
    assert "not now" in caplog.text


async def test_an_undeliverable_reply_is_given_up_and_reported(gateways, caplog):
    gateway, channel = await gateways()
    channel.failures.append(UndeliverableError("the chat is gone"))
    await channel.say("one")
    await channel.say("two")
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo two"]
    assert gateway.status().failed == 1
    assert "the chat is gone" in caplog.text


async def test_a_send_that_hangs_counts_as_failed(gateways):
    gateway, channel = await gateways(send_timeout=0.05)
    send, hang = channel.send, [True]

    async def slow(address, message, *, key):
        if hang and hang.pop():
            await asyncio.Event().wait()
        return await send(address, message, key=key)

    channel.send = slow
    await channel.say("one")
    await gateway.wait_until_idle()
    assert channel.texts() == ["echo one"]
    assert gateway.status().retried == 1


async def test_typing_and_tool_progress_are_shown_during_a_run(gateways):
    @tool
    async def look() -> str:
        """Look."""
        while not channel.sent:
            await asyncio.sleep(0.01)
        return "seen"

    channel = MemoryChannel(capabilities=Capabilities(edit=True, typing=True))
    gateway, _ = await gateways([call("look"), "done"], tools=[look], channel=channel)
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert channel.typed
    assert "look" in channel.texts()[0]
    assert channel.texts()[-1] == "done"


async def test_progress_messages_pass_the_hooks(gateways):
    @tool
    def look() -> str:
        """Look."""
        return "seen"

    @hook("before_dispatch")
    def only_answers(ctx, outbound):
        return {"handled": outbound.message.text != "done"}

    channel = MemoryChannel(capabilities=Capabilities(edit=True))
    gateway, _ = await gateways([call("look"), "done"], tools=[look], hooks=[only_answers], channel=channel)
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert channel.texts() == ["done"]


async def test_a_follow_up_runs_at_once_and_both_replies_are_sent(gateways):
    class Roster:
        def __init__(self):
            self.agent = Agent("bot", llm=ScriptedModel([lambda r: f"did {r.messages[-1].content}"], loop=True))
            self.hooks = self.agent.hooks
            self.asked = []

        def plugins_for(self, session):
            return ["kept"]

        def start(self, task, **options):
            return self.agent.start(task, **options)

        def follow_up(self, session, result):
            self.asked.append(session.id)
            return "the rest" if len(self.asked) == 1 else None

        async def hello(self, session, argument):
            session.personality_id = argument
            return f"now {argument}"

        @property
        def commands(self):
            return {"be": Command("be somebody", self.hello)}

    roster, seen = Roster(), []
    for name in ("kept", "other"):
        roster.hooks.on("message_received", lambda ctx, payload, name=name: seen.append(name), plugin=name)
    gateway, channel = await gateways(answerer=roster)
    for text in ("work", "/be kind", "/help"):
        await channel.say(text)
        await gateway.wait_until_idle()
    assert channel.texts()[:2] == ["did work", "did the rest"]
    assert "now kind" in channel.texts()
    assert any("/be: be somebody" in text for text in channel.texts())
    assert set(seen) == {"kept"}
    kept = SqliteSessionStore(gateway._conversations._store.path).load(roster.asked[0])
    assert kept.personality_id == "kind"


async def test_a_gateway_needs_channels_of_different_names(tmp_path):
    agent = Agent("bot", llm=ScriptedModel())
    store = {"mailbox": Mailbox(tmp_path / "m.db"), "sessions": SqliteSessionStore(tmp_path / "s.db")}
    with pytest.raises(ConfigError, match="at least one channel"):
        Gateway(agent, [], **store)
    with pytest.raises(ConfigError, match="cannot be called 'user'"):
        Gateway(agent, [MemoryChannel("user")], **store)
    with pytest.raises(ConfigError, match="two channels are called 'memory'"):
        Gateway(agent, [MemoryChannel(), MemoryChannel()], **store)


async def test_an_agent_that_needs_deps_needs_a_gateway_whose_contexts_have_them(tmp_path):
    @tool
    def which(ctx: AgentContext[Path]) -> str:
        """Name the file."""
        return ctx.deps.name

    def context(session: Session) -> AgentContext[Path]:
        return AgentContext(session=session, deps=Path("shop.db"))

    model = ScriptedModel([call("which"), lambda request: request.messages[-1].content])
    agent = Agent("bot", llm=model, deps_type=Path, tools=[which])
    store = {"mailbox": Mailbox(tmp_path / "m.db"), "sessions": SqliteSessionStore(tmp_path / "s.db")}
    channel = MemoryChannel()
    for answerer in (agent, Team([Agent("first", llm=ScriptedModel()), agent])):
        with pytest.raises(ConfigError, match="agent 'bot' needs deps of the type Path: Gateway"):
            Gateway(answerer, [channel], **store)
        with pytest.raises(ConfigError, match="agent 'bot' needs deps of the type Path: give deps="):
            build_gateway(Settings(channels=["memory"]), answerer)
    gateway = Gateway(agent, [channel], **store, context=context)
    await gateway.start()
    await channel.say("hi")
    await gateway.wait_until_idle()
    await gateway.stop(grace=0)
    assert channel.texts() == ["shop.db"]


async def test_a_channel_that_cannot_start_stops_the_others(tmp_path, gateways):
    class Broken(MemoryChannel):
        async def start(self, deliver):
            raise ChannelError("no such host")

    well = MemoryChannel("well")
    gateway = Gateway(
        Agent("bot", llm=ScriptedModel()),
        [well, Broken()],
        mailbox=Mailbox(tmp_path / "m.db"),
        sessions=SqliteSessionStore(tmp_path / "s.db"),
    )
    with pytest.raises(ChannelError, match="no such host"):
        await gateway.start()
    with pytest.raises(ChannelError, match="not started"):
        await well.say("hi")


async def test_a_message_without_an_id_is_refused(gateways):
    gateway, channel = await gateways()
    with pytest.raises(ChannelError, match="message_id"):
        await channel._deliver(InboundMessage("x"))


async def test_a_message_delivered_by_a_hook_passes_all_hooks(gateways):
    seen = []

    @observer("message_sent")
    async def forward(ctx, outbound):
        seen.append(outbound.chat_id)
        if outbound.chat_id == "one":
            await channel.say("forwarded", chat="two")

    gateway, channel = await gateways(hooks=[forward])
    await channel.say("hi", chat="one")
    await channel.replies(1, "two")
    await gateway.wait_until_idle()
    assert seen == ["one", "two"]


async def test_an_error_of_the_answerer_is_reported_and_ends_no_conversation(gateways, caplog):
    class Broken:
        def __init__(self):
            self.agent, self.broken = Agent("bot", llm=ScriptedModel(["well"], loop=True)), True
            self.hooks = self.agent.hooks

        def start(self, task, **options):
            if self.broken:
                raise ValueError("secret mistake")
            return self.agent.start(task, **options)

    answerer = Broken()
    gateway, channel = await gateways(answerer=answerer)
    await channel.say("hi")
    await gateway.wait_until_idle()
    answerer.broken = False
    await channel.say("hi")
    await gateway.wait_until_idle()
    assert "something went wrong" in channel.texts()[0]
    assert channel.texts()[1:] == ["well"]
    assert "secret mistake" in caplog.text


async def test_texts_of_messages_are_not_logged(gateways, caplog):
    caplog.set_level(logging.DEBUG, logger="hookline")
    gateway, channel = await gateways()
    await channel.say("my secret is 1234")
    await gateway.wait_until_idle()
    assert "1234" not in caplog.text


@pytest.mark.slow
async def test_a_conversation_with_the_embedded_model(gateways):
    agent = Agent("bot", llm="local", params={"max_tokens": 8})
    gateway, channel = await gateways(answerer=agent)
    await channel.say("Hello!")
    await channel.say("And now?")
    await gateway.wait_until_idle()
    assert len(channel.texts()) == 2
    assert all(text.strip() for text in channel.texts())
    session = next(iter(gateway._conversations._cached.values()))
    assert [message.role for message in session.messages] == ["user", "assistant"] * 2


async def test_a_sender_who_has_spent_the_allowance_is_told_so(gateways, tmp_path):
    limit = SpendingLimit(tokens=40, store=tmp_path / "spending.db", max_reply_tokens=25)
    gateway, channel = await gateways([reply("well", usage=Usage(10, 10)), "again"], hooks=[limit])
    await channel.say("hi", sender="ann")
    await channel.say("hi", sender="ann")
    await channel.say("hi", sender="ben")
    await gateway.wait_until_idle()
    first, second, third = channel.texts()
    assert (first, third) == ("well", "again")
    assert second.startswith(f"I had to stop before I was finished. Spending limit of user {channel.name}:ann reached")
    assert "There is room again at" in second
    assert {each.subject for each in limit.store.accounts()} == {f"{channel.name}:ann", f"{channel.name}:ben"}
