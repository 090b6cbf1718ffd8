"""Every reply carries the name of its speaker."""

import json

from hookline import Agent, HookResult, ScriptedModel, call, guard, hook, tool
from hookline.channels.in_memory import MemoryChannel
from hookline.payloads import OutboundMessage
from hookline.stores.mailbox import Mailbox
from hookline.teams import Team
from hookline.teams.roster import Roster

from ..waiting import wait_until
from .conftest import echo


def said(channel):
    return [(each.message.speaker, each.message.text) for each in channel.sent]


async def test_replies_have_the_name_of_the_personality_and_notices_have_none(gateways, tmp_path):
    folder = tmp_path / "personalities"
    folder.mkdir()
    (folder / "ada.toml").write_text('name = "Ada Lovelace"\ndescription = "x"')
    (folder / "ben.toml").write_text('description = "x"')
    roster = Roster(Agent("base", llm=ScriptedModel([echo], loop=True)), folder)
    _, channel = await gateways(answerer=roster)
    for number, text in enumerate(["hi", "/personality ada", "hi", "/personality ben", "hi"], 1):
        await channel.say(text)
        await channel.replies(number)
    assert said(channel) == [
        ("", "echo hi"),
        ("", "Switched to Ada Lovelace."),
        ("Ada Lovelace", "echo hi"),
        ("", "Switched to ben."),
        ("ben", "echo hi"),
    ]


async def test_after_a_handoff_each_reply_has_the_name_of_its_speaker(gateways):
    team = Team()
    team.add(Agent("desk", llm=ScriptedModel([call("handoff", to="writer", message="go on")]), tools=[team]))
    team.add(Agent("writer", llm=ScriptedModel(["a poem", "another"]), tools=[team]))
    _, channel = await gateways(answerer=team)
    await channel.say("a poem, please")
    await channel.replies(1)
    await channel.say("more")
    await channel.replies(len(channel.sent) + 1)
    *first, poem, another = said(channel)
    assert {speaker for speaker, _ in first} <= {"desk"}
    assert (poem, another) == (("writer", "a poem"), ("writer", "another"))


async def test_the_guards_of_the_agent_that_handed_over_judge_the_calls_after_it(gateways, tmp_path):
    canary = tmp_path / "canary"
    canary.write_text("alive")
    wipe = tool(name="wipe")(canary.unlink)

    @guard("before_tool", tools="wipe")
    def no_wiping(ctx, request):
        return HookResult.block("No wiping.")

    team, handoff = Team(), call("handoff", to="writer", message="go on")
    team.add(Agent("desk", llm=ScriptedModel([handoff]), tools=[team], hooks=[no_wiping]))
    turns = [call("wipe"), "first", call("wipe"), "second", call("wipe"), "third"]
    team.add(Agent("writer", llm=ScriptedModel(turns), tools=[team, wipe]))
    _, channel = await gateways(answerer=team)
    await channel.say("a poem, please")
    await wait_until(lambda: ("writer", "first") in said(channel))
    await channel.say("more")
    await wait_until(lambda: ("writer", "second") in said(channel))
    sent = len(channel.sent)
    await channel.say("/new")  # the writer stays, and so do the guards
    await channel.replies(sent + 1)
    await channel.say("again")
    await wait_until(lambda: ("writer", "third") in said(channel))
    assert canary.exists()


async def test_a_single_agent_has_no_speaker_name_and_hooks_can_set_one(gateways):
    @hook("message_sending")
    def name(ctx, payload):
        return {"message": payload.message.replace(speaker="Robot")} if payload.message.text == "echo who" else None

    _, channel = await gateways(hooks=[name])
    await channel.say("hello")
    await channel.replies(1)
    await channel.say("who")
    await channel.replies(2)
    assert said(channel) == [("", "echo hello"), ("Robot", "echo who")]


async def test_a_stored_reply_without_a_speaker_is_still_sent(gateways, tmp_path):
    box = Mailbox(tmp_path / "gateway.db")
    await box.open()
    key = json.dumps(["memory", "", "chat", ""])
    await box.transact(lambda db: db.execute("INSERT INTO conversations (key) VALUES (?)", (key,)))
    old = json.dumps({"text": "from before", "reply_to": "", "thread_id": ""})
    await box.transact(
        lambda db: db.execute(
            "INSERT INTO outbox (key, channel, message, token, notice, at, state, holder) "
            "VALUES (?, 'memory', ?, 't', 0, 9e9, 'waiting', '')",
            (key, old),
        )
    )
    await box.close()
    _, channel = await gateways(channel=MemoryChannel())
    assert await channel.replies(1) == ["from before"]
    assert channel.sent[0].message == OutboundMessage("from before")
