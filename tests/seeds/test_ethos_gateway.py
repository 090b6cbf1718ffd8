"""The Ethos HookRegistry reference on the gateway, personalities and plugins, kept by the real ones."""

import textwrap

import pytest

from hookline import Agent, HookRegistry, HookResult, ScriptedModel, call, hook, observer, tool
from hookline.channels import Access, Gateway, MemoryChannel
from hookline.payloads import OutboundMessage
from hookline.plugins import Plugin, PluginManager
from hookline.stores import Mailbox, SqliteSessionStore
from hookline.teams import Roster

GATEWAY = ("message_received", "inbound_claim", "message_sending", "before_dispatch", "message_sent")
LOOP = ("session_start", "before_prompt_build", "before_llm_call", "after_llm_call", "agent_done")


@tool
def echo(text: str) -> str:
    """Echo the text."""
    return text


@tool
def wipe() -> str:
    """Wipe everything."""
    return "wiped"


def answer(request):
    return f"echo {request.messages[-1].content}"


def offered(request):
    return " ".join(spec.name for spec in request.tools)


def bot(turns=(answer,), **options):
    return Agent("bot", llm=ScriptedModel(turns, loop=True), tools=[echo, wipe], **options)


def note(seen, *points, plugin=""):
    """An observer that writes down where it was asked."""
    return observer(*points)(lambda ctx, p: seen.append(plugin or p))


@pytest.fixture
async def opened(tmp_path):
    """Open gateways, all on the same files: ``await opened(answerer, access=...)`` gives gateway and channel."""
    gateways = []

    async def open_(answerer, access=None):
        channel = MemoryChannel("telegram")
        gateway = Gateway(
            answerer,
            [channel],
            mailbox=Mailbox(tmp_path / "gateway.db"),
            sessions=SqliteSessionStore(tmp_path / "sessions.db"),
            access=access and {"telegram": access},
        )
        await gateway.start()
        gateways.append(gateway)
        return gateway, channel

    yield open_
    for gateway in gateways:
        await gateway.stop(grace=0)


@pytest.fixture
def folder(tmp_path):
    """Two personalities, one with all plugins and one without any."""
    made = tmp_path / "personalities"
    made.mkdir()
    (made / "full.toml").write_text('description = "Has everything"')
    (made / "bare.toml").write_text("plugins = []")
    return made


async def said(gateway, channel, *texts, **fields):
    """What the channel was given after each of these texts."""
    replies = []
    for text in texts:
        before = len(channel.sent)
        await channel.say(text, **fields)
        await gateway.wait_until_idle()
        replies.append([each.message.text for each in channel.sent[before:]])
    return replies


# A hook fires inside the loop or the gateway, and all are in the same registry


async def test_the_gateway_fires_its_points_around_the_turn_on_the_registry_of_the_loop(opened):
    registry, order = HookRegistry(), []
    for name in (*GATEWAY, *LOOP):
        registry.register(observer(name)(lambda ctx, p, *, name=name: order.append(name)))
    answerer = bot(hooks=registry)
    gateway, channel = await opened(answerer)
    assert await said(gateway, channel, "hi") == [["echo hi"]]
    assert order == [*GATEWAY[:2], *LOOP, *GATEWAY[2:]]
    assert answerer.hooks is registry


async def test_hooks_of_the_gateway_know_the_session_as_those_of_the_loop_do(opened):
    registry, seen = HookRegistry(), []
    for name in (*GATEWAY, "agent_done"):
        registry.on(name, lambda ctx, p: seen.append((ctx.session.id, ctx.session.platform)), phase=None)
    gateway, channel = await opened(bot(hooks=registry))
    await said(gateway, channel, "hi")
    assert len(seen) == 6
    assert len(set(seen)) == 1
    assert seen[0][1] == "telegram"


# Their payloads


async def test_message_received_has_the_message_and_the_session_of_the_turn(opened):
    seen = []
    gateway, channel = await opened(bot(hooks=[note(seen, "message_received", "session_start", "agent_done")]))
    await said(gateway, channel, "hi", sender="ada", chat="42")
    received, started, done = seen
    message = received.message
    assert (message.text, message.sender, message.platform, message.chat_id) == ("hi", "ada", "telegram", "42")
    assert received.session_id == started.session_id == done.ids.session_id != ""


async def test_session_start_carries_key_platform_and_personality_of_the_conversation(opened, folder):
    seen = []
    gateway, channel = await opened(Roster(bot(hooks=[note(seen, "session_start")]), folder, first="full"))
    await said(gateway, channel, "hi", "again", chat="42")
    (payload,) = seen
    assert "telegram" in payload.session_key
    assert "42" in payload.session_key
    assert (payload.platform, payload.personality_id) == ("telegram", "full")


async def test_session_start_fires_once_for_a_conversation_also_after_a_restart(opened):
    seen, hooks = [], []
    hooks.append(note(seen, "session_start"))
    gateway, channel = await opened(bot(hooks=hooks))
    await said(gateway, channel, "one", "two")
    await gateway.stop(grace=5)
    gateway, channel = await opened(bot(hooks=hooks))
    await said(gateway, channel, "three", "/new", "four")
    await said(gateway, channel, "elsewhere", chat="other")
    assert len({payload.session_id for payload in seen}) == len(seen) == 3
    assert len({payload.session_key for payload in seen}) == 2


async def test_agent_done_tells_of_the_turn_that_a_message_led_to(opened, folder):
    seen = []

    @observer("agent_done")
    def done(ctx, payload):
        seen.append((payload, ctx.session.personality_id))

    turns = [[call("echo", text="a"), call("nothing")], "done"]
    gateway, channel = await opened(Roster(bot(turns, hooks=[done]), folder, first="full"))
    await said(gateway, channel, "do it")
    ((payload, personality),) = seen
    assert (payload.reply, len(payload.steps), payload.task, personality) == ("done", 2, "do it", "full")
    assert (payload.successful_tool_calls, payload.tool_calls, set(payload.tool_names)) == (1, 2, {"echo", "nothing"})


# The points of the gateway


async def test_message_sending_can_rewrite_the_message_before_it_hits_the_adapter(opened):
    seen = []

    @hook("message_sending")
    def shout(ctx, payload):
        seen.append((payload.chat_id, payload.message.text))
        return {"message": OutboundMessage(payload.message.text.upper())}

    gateway, channel = await opened(bot(hooks=[shout]))
    assert await said(gateway, channel, "hi", chat="42") == [["ECHO HI"]]
    assert seen == [("42", "echo hi")]


async def test_before_dispatch_sees_chat_platform_and_final_text_and_can_suppress_the_send(opened):
    seen, sent = [], []

    @hook("message_sending")
    def shout(ctx, payload):
        return {"message": OutboundMessage(payload.message.text.upper())}

    @hook("before_dispatch")
    def dedup(ctx, payload):
        known = (payload.chat_id, payload.platform, payload.message.text)
        seen.append(known)
        return {"handled": seen.count(known) > 1}

    gateway, channel = await opened(bot(hooks=[shout, dedup, note(sent, "message_sent")]))
    assert await said(gateway, channel, "hi", "hi", "ho", chat="42") == [["ECHO HI"], [], ["ECHO HO"]]
    assert seen[:2] == [("42", "telegram", "ECHO HI")] * 2
    assert [payload.message.text for payload in sent] == ["ECHO HI", "ECHO HO"]


async def test_message_sent_tells_what_the_adapter_was_given_and_the_id_it_got_there(opened):
    seen = []
    gateway, channel = await opened(bot(hooks=[note(seen, "message_sent")]))
    await said(gateway, channel, "hi", chat="42")
    (there,) = channel.sent
    (payload,) = seen
    assert (payload.chat_id, payload.platform, payload.message) == ("42", "telegram", there.message)
    assert payload.message_id == there.id != ""


async def test_who_claims_an_inbound_message_owns_it_and_the_agent_is_not_asked(opened):
    asked = []

    def claim(name, word):
        def decide(ctx, payload):
            asked.append(name)
            return {"handled": word in payload.message.text, "reply": f"{name} has it"}

        return hook("inbound_claim", name=name)(decide)

    gateway, channel = await opened(bot(hooks=[claim("mail", "letter"), claim("shop", "order")]))
    assert await said(gateway, channel, "my letter", "my order", "hi") == [
        ["mail has it"],
        ["shop has it"],
        ["echo hi"],
    ]
    assert asked == ["mail", "mail", "shop", "mail", "shop"]


@pytest.mark.parametrize("on_failure", ["closed", "open"])
async def test_a_broken_claim_lets_nothing_leave_unless_it_fails_open(opened, on_failure):
    # A deliberate difference: claims fail open there, whatever they guard.
    @hook("before_dispatch", on_failure=on_failure)
    def broken(ctx, payload):
        raise RuntimeError("the index is gone")

    gateway, channel = await opened(bot(hooks=[broken]))
    assert await said(gateway, channel, "hi") == [[] if on_failure == "closed" else ["echo hi"]]


# allowedPlugins, derived from the active personality


async def test_the_plugins_of_the_active_personality_take_part_in_gateway_and_loop(opened, folder):
    seen = []
    loud = Plugin("loud", hooks=[note(seen, *GATEWAY, *LOOP[1:], plugin="loud")])
    (folder / "full.toml").write_text('plugins = ["loud"]')
    base = bot(hooks=[note(seen, *GATEWAY, *LOOP[1:], plugin="built-in")], plugins=[loud])
    gateway, channel = await opened(Roster(base, folder, first="full"))
    every = len(GATEWAY) + len(LOOP[1:])
    await said(gateway, channel, "hi")
    assert (seen.count("loud"), seen.count("built-in")) == (every, every)
    await said(gateway, channel, "/personality bare")
    seen.clear()
    await said(gateway, channel, "hi")
    assert (seen.count("loud"), seen.count("built-in")) == (0, every)
    await said(gateway, channel, "/personality full")
    seen.clear()
    await said(gateway, channel, "hi")
    assert seen.count("loud") == every


@pytest.mark.parametrize(("allowed", "text"), [(None, "LOUD"), (["loud"], "LOUD"), ([], "echo hi")])
async def test_the_plugins_of_an_agent_without_personalities_are_filtered_at_the_gateway_too(opened, allowed, text):
    loud = Plugin("loud", hooks=[hook("message_sending")(lambda ctx, p: {"message": {"text": "LOUD"}})])
    gateway, channel = await opened(bot(plugins=[loud], allowed_plugins=allowed))
    assert await said(gateway, channel, "hi") == [[text]]


async def test_the_guards_of_the_active_personality_judge_its_messages(opened, folder):
    (folder / "rules.py").write_text(
        textwrap.dedent("""
            from hookline import hook

            @hook("before_dispatch")
            def quiet(ctx, payload):
                return {"handled": "secret" in payload.message.text}
            """)
    )
    (folder / "careful.toml").write_text('guards = ["rules.py:quiet"]')
    gateway, channel = await opened(Roster(bot(), folder, first="careful"))
    assert await said(gateway, channel, "a secret", "/personality full", "a secret") == [
        [],
        ["Switched to full."],
        ["echo a secret"],
    ]


# personality_switched


async def test_personality_switched_tells_the_session_and_both_personalities(opened, folder):
    seen = []
    gateway, channel = await opened(
        Roster(bot(hooks=[note(seen, "personality_switched", "message_received")]), folder, first="full")
    )
    assert await said(gateway, channel, "/personality bare") == [["Switched to bare."]]
    received, switched = seen
    assert (switched.session_id, switched.from_, switched.to) == (received.session_id, "full", "bare")


async def test_personality_switched_can_substitute_a_different_config_which_outlives_the_conversation(opened, folder):
    @hook("personality_switched")
    def careful(ctx, payload):
        return {"personality": {"tools": ["echo"]}}

    gateway, channel = await opened(Roster(bot([offered], hooks=[careful]), folder, first="bare"))
    talk = ["go", "/personality full", "go", "/new", "go"]
    replies = [reply for (reply,) in await said(gateway, channel, *talk)]
    assert [replies[i] for i in (0, 2, 4)] == ["echo wipe", "echo", "echo"]


async def test_personality_switched_can_name_another_and_a_handler_that_breaks_undoes_the_switch(opened, folder):
    @hook("personality_switched")
    def judge(ctx, payload):
        if ctx.session.messages:
            raise RuntimeError("the list of roles is gone")
        return {"personality": "bare"}

    gateway, channel = await opened(Roster(bot(hooks=[judge]), folder))
    assert await said(gateway, channel, "/personality full") == [["Switched to bare."]]
    ((text,),) = (await said(gateway, channel, "hi", "/personality full"))[1:]
    assert text.startswith("The switch to full was rejected")
    assert "bare (active)" in (await said(gateway, channel, "/personality"))[0][0]


async def test_a_config_that_can_no_longer_be_used_is_told_and_can_be_changed(opened, folder, caplog):
    @hook("personality_switched")
    def careful(ctx, payload):
        return {"personality": {"tools": ["wipe"]}} if payload.to == "full" else None

    gateway, channel = await opened(Roster(bot(hooks=[careful]), folder))
    await said(gateway, channel, "/personality full")
    await gateway.stop(grace=5)
    less = Agent("bot", llm=ScriptedModel([answer], loop=True), tools=[echo])
    gateway, channel = await opened(Roster(less, folder))
    ((sorry,), (now,), (text,)) = await said(gateway, channel, "hi", "/personality bare", "hi")
    assert sorry.startswith("Sorry, something went wrong")
    assert (now, text) == ("Switched to bare.", "echo hi")
    assert "there is no tool 'wipe'" in caplog.text


# Channel safety


async def test_who_is_not_admitted_reaches_no_hook_and_gets_no_answer(opened):
    seen = []
    gateway, channel = await opened(bot(hooks=[note(seen, *GATEWAY)]), access=Access(allow=["ada"]))
    assert await said(gateway, channel, "hi", sender="eve") == [[]]
    assert seen == []
    assert await said(gateway, channel, "hi", sender="ada") == [["echo hi"]]
    assert len(seen) == 5


async def test_a_channel_guard_can_keep_a_message_in_and_an_answer_back(opened):
    asked = []

    @observer("message_received", on_failure="closed")
    def short(ctx, payload):
        if len(payload.message.text) > 20:
            raise ValueError("too long")

    @hook("before_dispatch")
    def no_keys(ctx, payload):
        return HookResult.claim(reason="a key") if "sk-" in payload.message.text else None

    gateway, channel = await opened(bot(hooks=[short, no_keys, note(asked, "before_llm_call")]))
    refused, kept, sent = await said(gateway, channel, "x" * 21, "my key is sk-1", "hi")
    assert refused == ["Sorry, your message could not be processed."]
    assert (kept, sent) == ([], ["echo hi"])
    assert len(asked) == 2


# Plugins: the SDK registers with the plugin's id, the loader takes everything out again


MANIFEST = 'id = "loud"\nversion = "1.0"\napi = "1"\nactivate = "code.py:activate"\npermissions = ["rewrite"]\n'
CODE = """
from hookline import hook, observer

def activate(api):
    api.add_hook(hook("message_sending")(lambda ctx, p: {"message": {"text": p.message.text + "!"}}))
    api.add_hook(hook("inbound_claim")(lambda ctx, p: {"handled": p.message.text == "ping", "reply": "pong"}))
    api.add_hook(observer("agent_done")(lambda ctx, p: None))
"""


async def test_the_plugin_loader_registers_for_gateway_and_loop_and_deactivate_removes_every_handler(opened, tmp_path):
    home = tmp_path / "plugins" / "loud"
    home.mkdir(parents=True)
    (home / "plugin.toml").write_text(MANIFEST)
    (home / "code.py").write_text(CODE)
    registry = HookRegistry([note([], "message_sent")])
    answerer = bot(hooks=registry)
    manager = PluginManager(answerer, folder=home.parent, installed=False)
    gateway, channel = await opened(answerer)
    manager.activate("loud")
    points = ("message_sending", "inbound_claim", "agent_done")
    assert [entry.plugin for point in points for entry in registry.stack.entries(point)] == ["loud"] * 3
    assert await said(gateway, channel, "hi", "ping") == [["echo hi!"], ["pong!"]]
    manager.deactivate("loud")
    assert len(registry) == 1
    assert await said(gateway, channel, "hi", "ping") == [["echo hi"], ["echo ping"]]
