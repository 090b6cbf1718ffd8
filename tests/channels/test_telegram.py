import asyncio
import json
import logging
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline._base.errors import NotInstalledError
from hookline.channels.protocol import Address, ChannelError, UndeliverableError
from hookline.channels.telegram.channel import TelegramChannel
from hookline.errors import AttachmentError
from hookline.stores.messages import InboundFile, OutboundMessage

from ..waiting import wait_until
from .bot_api import ANNA, GROUP, ME, TOKEN, BotApi
from .conformance import ApiRig, Conformance, ready
from .platforms import Inbox

API = BotApi
CHAT = Address("phone", "7", bot="4711")


@pytest.fixture
async def channel(api):
    channel = TelegramChannel("phone", token=TOKEN, base_url=api.url)
    yield channel
    await channel.stop()


class TestConformance(Conformance):
    @pytest.fixture
    def rig(self, channel, api):
        return ApiRig(channel, api, "7")


async def heard(channel, api, *updates):
    """The messages that the gateway receives."""
    inbox = Inbox()
    await ready(channel, inbox)
    for update in updates:
        await api.happens(**update)
    last = await api.say("the last one")
    await wait_until(lambda: not api.updates)
    await channel.stop()
    messages = sorted(inbox.messages, key=lambda message: int(message.message_id))
    assert messages.pop().message_id == last
    return messages


async def test_a_message_has_its_sender_and_chat(channel, api):
    topic = api.message("in a topic", GROUP, message_thread_id=9, is_topic_message=True)
    thread = api.message("a reply thread", GROUP, message_thread_id=9)
    anonymous = api.message("from the admins", GROUP, {**ME, "id": 1087968824, "username": "x"}, sender_chat=GROUP)
    *group, private = await heard(
        channel, api, *({"message": one} for one in (topic, thread, anonymous, api.message("hi 👋")))
    )
    assert (private.text, private.chat_id, private.sender, private.direct, private.mentioned, private.bot) == (
        "hi 👋",
        "7",
        "7",
        True,
        False,
        "4711",
    )
    assert private.platform == "telegram"
    assert {(m.text, m.thread_id, m.sender, m.direct) for m in group} == {
        ("in a topic", "9", "7", False),
        ("a reply thread", "", "7", False),
        ("from the admins", "", "-100", False),
    }


def named(text, name="@agent_bot", kind="mention", **more):
    start = len(text[: text.index(name)].encode("utf-16-le")) // 2
    return {"text": text, "entities": [{"type": kind, "offset": start, "length": len(name), **more}]}


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        (named("@agent_bot, what is 👋?"), "what is 👋?"),
        (named("👋 what is it, @agent_bot?"), "👋 what is it?"),
        (named("👋 tell @agent_bot that"), "👋 tell @agent_bot that"),
        (named("@agent_bot"), "@agent_bot"),
        (named("Agent: go", "Agent", "text_mention", user=ME), "go"),
        (named("/stop@Agent_Bot all", "/stop@Agent_Bot", "bot_command"), "/stop all"),
        ({"text": "yes", "reply_to_message": {"message_id": 1, "date": 1, "chat": GROUP, "from": ME}}, "yes"),
    ],
)
async def test_a_mention_in_a_group_is_recognized(channel, api, fields, text):
    (message,) = await heard(channel, api, {"message": {**api.message(chat=GROUP), **fields}})
    assert (message.text, message.mentioned) == (text, True)


@pytest.mark.parametrize(
    "fields",
    [
        {"text": "hello all"},
        named("@other_bot hello", "@other_bot"),
        named("mail a@agent_bot.org", "a@agent_bot.org", "email"),
        named("Anna: go", "Anna", "text_mention", user=ANNA),
        {
            "text": "in a topic that we opened",
            "reply_to_message": {
                "message_id": 1,
                "date": 1,
                "chat": GROUP,
                "from": ME,
                "forum_topic_created": {"name": "t", "icon_color": 1},
            },
        },
    ],
)
async def test_other_group_messages_do_not_mention_the_bot(channel, api, fields):
    (message,) = await heard(channel, api, {"message": {**api.message(chat=GROUP), **fields}})
    assert (message.text, message.mentioned) == (fields["text"], False)


async def test_files_are_named_in_the_text_and_others_are_received_as_a_note(channel, api):
    photo = [{"file_id": size, "file_unique_id": "x", "width": 1, "height": 1} for size in ("small", "large")]
    voice = {"file_id": "v", "file_unique_id": "x", "duration": 3, "file_size": 99}
    document = {"file_id": "d", "file_unique_id": "x", "file_name": "../a.pdf"}
    video = {"file_id": "x", "file_unique_id": "x", "duration": 3, "width": 1, "height": 1}
    caption = {"caption": "@agent_bot look!", "caption_entities": [{"type": "mention", "offset": 0, "length": 10}]}
    first, second, third, fourth = await heard(
        channel,
        api,
        {"message": api.message(photo=photo, **caption)},
        {"message": api.message(voice=voice)},
        {"message": api.message(document=document)},
        {"message": api.message(video=video)},
    )
    assert (first.text, first.mentioned, first.files) == ("[photo] look!", True, (InboundFile("large", "photo.jpg"),))
    assert (second.text, second.files) == ("[voice]", (InboundFile("v", "voice.ogg", 99),))
    assert (third.text, third.files) == ("[document]", (InboundFile("d", "a.pdf"),))
    assert (fourth.text, fourth.files) == ("[video: not readable here]", ())
    assert (first.attachments, second.attachments, fourth.attachments) == (("photo",), ("voice",), ("video",))


async def test_a_file_is_read_within_the_limit(channel, api):
    api.files["x"] = b"12345"
    with pytest.raises(ChannelError, match="is not started"):
        await channel.read_file(InboundFile("x"), 5)
    await ready(channel, Inbox())
    assert await channel.read_file(InboundFile("x"), 5) == b"12345"
    with pytest.raises(AttachmentError, match="the limit for an attachment is 4 bytes"):
        await channel.read_file(InboundFile("x"), 4)
    with pytest.raises(ChannelError, match="Wrong file_id") as error:
        await channel.read_file(InboundFile("gone"), 5)
    assert TOKEN not in str(error.value)


@pytest.mark.parametrize("text", ["/start", "/start campaign-7", "/start@Agent_Bot"])
async def test_the_start_command_is_converted_to_help(channel, api, text):
    command = text.split()[0]
    (message,) = await heard(channel, api, {"message": api.message() | named(text, command, "bot_command")})
    assert message.text == "/help"


async def test_messages_for_others_are_ignored(channel, api):
    messages = [
        api.message(chat=GROUP, new_chat_members=[ANNA]),
        api.message("from a bot", GROUP, {**ME, "id": 5, "username": "another"}),
        api.message(
            "from the linked channel", GROUP, is_automatic_forward=True, sender_chat={"id": -5, "type": "channel"}
        ),
        api.message(chat=GROUP) | named("/help@other_bot", "/help@other_bot", "bot_command"),
    ]
    edited = {"edited_message": {**api.message("oops"), "edit_date": 1_700_000_001}}
    post = {"channel_post": api.message("news", {"id": -6, "type": "channel", "title": "News"}, None)}
    assert await heard(channel, api, edited, post, *({"message": one} for one in messages)) == []


async def test_an_update_is_acknowledged_only_after_it_is_stored(channel, api):
    inbox = Inbox()

    async def full(message):
        raise OSError("the disk is full")

    await ready(channel, full)
    await api.say("precious")
    await wait_until(lambda: "disk is full" in channel.health().detail)
    await channel.stop()
    assert [update["message"]["text"] for update in api.updates] == ["precious"]
    fresh = TelegramChannel("phone", token=TOKEN, base_url=api.url)
    await ready(fresh, inbox)
    await wait_until(lambda: inbox.texts == ["precious"] and not api.updates)
    await fresh.stop()


async def test_a_message_fetched_again_after_a_crash_has_the_same_id(channel, api):
    inbox = Inbox()
    await api.say("once")
    inbox.open.clear()
    await channel.start(inbox)
    await wait_until(lambda: inbox.messages)
    other = TelegramChannel("phone", token=TOKEN, base_url=api.url)  # the first one never got to confirm it
    inbox.open.set()
    channel._task.cancel()
    await asyncio.gather(channel._task, return_exceptions=True)
    await ready(other, inbox)
    await wait_until(lambda: not api.updates)
    await other.stop()
    assert inbox.texts == ["once"]
    channel._task = None
    await channel._close()


async def test_an_unreadable_update_does_not_block_the_others(channel, api, caplog):
    inbox = Inbox()
    await api.say("before")
    await api.happens(message={"message_id": "no date, no chat"})
    await api.say("after")
    await channel.start(inbox)
    await wait_until(lambda: inbox.texts == ["before", "after"])
    await wait_until(lambda: not api.updates)
    assert "the update [101] cannot be parsed" in caplog.text


async def test_polling_continues_when_the_server_is_back(channel, api):
    inbox = Inbox()
    await ready(channel, inbox)
    await api.say("one")
    await wait_until(lambda: inbox.texts == ["one"])
    await api.down()
    await wait_until(lambda: not channel.health().ok)
    with pytest.raises(ChannelError) as caught:
        await channel.send(CHAT, OutboundMessage("hi"), key="k")
    assert not isinstance(caught.value, UndeliverableError)
    await api.say("two")
    await api.up(api.port)
    await wait_until(lambda: inbox.texts == ["one", "two"] and channel.health().ok)


async def test_the_channel_starts_while_telegram_is_unreachable(api):
    inbox = Inbox()
    await api.down()
    channel = TelegramChannel("phone", token=TOKEN, base_url=api.url)
    await channel.start(inbox)
    assert not channel.health().ok
    await api.say("hello")
    await api.up(api.port)
    await wait_until(lambda: inbox.texts == ["hello"])
    assert channel.health().detail == "connected as @Agent_Bot"
    await channel.stop()


async def test_a_reply_goes_to_its_message_and_topic(channel, api):
    await ready(channel, Inbox())
    group = Address("phone", "-100", "9")
    id = await channel.send(group, OutboundMessage("yes", reply_to="3"), key="k")
    asked = api.chats[-100][id]["asked"]
    assert asked["message_thread_id"] == "9"
    assert json.loads(asked["reply_parameters"]) == {"message_id": 3, "allow_sending_without_reply": True}
    await channel.typing(group)
    await wait_until(
        lambda: ("sendchataction", {"chat_id": "-100", "action": "typing", "message_thread_id": "9"}) in api.calls
    )


async def test_a_message_can_be_changed_and_changed_to_the_same(channel, api):
    await ready(channel, Inbox())
    id = await channel.send(CHAT, OutboundMessage("thinking"), key="k")
    for _ in range(2):
        await channel.edit(CHAT, id, OutboundMessage("done"))
        assert api.texts() == ["done"]
    with pytest.raises(UndeliverableError, match="essage to edit not found"):
        await channel.edit(CHAT, "999", OutboundMessage("done"))


async def test_flood_control_sets_retry_after(channel, api):
    await ready(channel, Inbox())
    api.fail("sendmessage", 429, "Too Many Requests: retry after 14", retry_after=14)
    with pytest.raises(ChannelError, match="wait 14 s") as caught:
        await channel.send(CHAT, OutboundMessage("hi"), key="k")
    assert caught.value.retry_after == 14
    assert not isinstance(caught.value, UndeliverableError)
    api.fail("sendchataction", 429, "Too Many Requests", retry_after=1)
    await channel.typing(CHAT)  # no reason to fail
    await channel.send(CHAT, OutboundMessage("hi"), key="k")
    assert api.texts() == ["hi"]


@pytest.mark.parametrize(
    ("chat", "text", "failure", "words"),
    [
        ("7", "hi", (403, "Forbidden: bot was blocked by the user"), "blocked by the user"),
        ("8", "hi", None, "hat not found"),
        ("kitchen", "hi", None, "not the id of a Telegram chat"),
        ("", "hi", None, "not the id of a Telegram chat"),
        ("7", "", None, "text is empty"),
        ("7", "x" * 4097, None, "too long"),
    ],
)
async def test_permanent_errors_are_undeliverable(channel, api, chat, text, failure, words):
    await ready(channel, Inbox())
    if failure:
        api.fail("sendmessage", *failure)
    with pytest.raises(UndeliverableError, match=words):
        await channel.send(Address("phone", chat), OutboundMessage(text), key="k")


@pytest.mark.parametrize("failure", [(500, "Internal Server Error"), (502, "Bad Gateway"), (401, "Unauthorized")])
async def test_temporary_errors_are_not_undeliverable(channel, api, failure):
    await ready(channel, Inbox())
    api.fail("sendmessage", *failure)
    with pytest.raises(ChannelError) as caught:
        await channel.send(CHAT, OutboundMessage("hi"), key="k")
    assert not isinstance(caught.value, UndeliverableError)


async def test_a_group_that_became_a_supergroup_is_found(channel, api):
    await ready(channel, Inbox())
    api.chats[-200] = {}
    api.fail("sendmessage", 400, "Bad Request: group chat was upgraded", migrate_to_chat_id=-200)
    for text in ("one", "two"):
        await channel.send(Address("phone", "-100"), OutboundMessage(text), key=text)
    assert api.texts(-200) == ["one", "two"]


async def test_a_text_of_exactly_the_maximum_length_is_accepted(channel, api):
    await ready(channel, Inbox())
    text = "👋" * 2048
    assert channel.capabilities.length(text) == channel.capabilities.max_length
    await channel.send(CHAT, OutboundMessage(text), key="1")
    await channel.send(CHAT, OutboundMessage("not Unicode: \ud800"), key="2")
    assert api.texts() == [text, "not Unicode: ?"]


@given(st.text())
def test_length_is_the_number_of_utf16_units(text):
    count = TelegramChannel(token=TOKEN).capabilities.length
    assert count(text) == len(text.encode("utf-16-le", "surrogatepass")) // 2


async def test_a_second_program_for_the_same_bot_is_reported(channel, api):
    await ready(channel, Inbox())
    api.fail("getupdates", 409, "Conflict: terminated by other getUpdates request", times=2)
    await api.say("wake up")
    await wait_until(lambda: "another program fetches the messages of this bot" in channel.health().detail)
    await wait_until(lambda: channel.health().ok)


async def test_a_webhook_of_the_bot_is_reported(channel, api):
    api.webhook = True
    await channel.start(Inbox())
    await wait_until(lambda: "call deleteWebhook once" in channel.health().detail)
    api.webhook = False
    await wait_until(lambda: channel.health().ok)


async def test_a_rejected_token_is_reported_at_the_start(api):
    channel = TelegramChannel("phone", token="99:wrong", base_url=api.url)
    with pytest.raises(ChannelError, match="rejects the token of the bot") as caught:
        await channel.start(Inbox())
    assert "99:wrong" not in str(caught.value)
    await channel.stop()


async def test_the_token_is_in_no_log_and_no_error(api, caplog):
    caplog.set_level(logging.DEBUG)
    channel = TelegramChannel("phone", token=TOKEN, base_url=api.url)
    said = [repr(channel)]
    await ready(channel, Inbox())
    await api.say("hi")
    await channel.send(CHAT, OutboundMessage("hi"), key="k")
    for failure in ((500, f"what is {TOKEN}?"), (404, "Not Found"), (400, "Bad Request")):
        api.fail("sendmessage", *failure)
        try:
            await channel.send(CHAT, OutboundMessage("hi"), key="k")
        except ChannelError:
            said.append(traceback.format_exc())
    await api.down()
    try:
        await channel.send(CHAT, OutboundMessage("hi"), key="k")
    except ChannelError:
        said.append(traceback.format_exc())
    await wait_until(lambda: not channel.health().ok)
    said += [channel.health().detail, caplog.text]
    await channel.stop()
    assert "/botTOKEN/sendMessage" in caplog.text  # requests are logged, without it
    secret = TOKEN.split(":")[1]
    assert not [one for one in said if secret in one.replace(f"what is {TOKEN}?", "")]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": ""}, "needs a name"),
        ({"token": ""}, "@BotFather"),
        ({"token": "1:a/../b"}, "@BotFather"),
        ({"token": None}, "@BotFather"),
        ({"base_url": "localhost:1"}, "base_url is not a URL"),
        ({"proxy": "localhost:1"}, "proxy is not a URL"),
        ({"poll_timeout": 51}, "poll_timeout 51"),
    ],
)
def test_invalid_settings_are_rejected(settings, words):
    with pytest.raises(ChannelError, match=words) as caught:
        TelegramChannel(**{"token": TOKEN, **settings})
    assert "1:a/../b" not in str(caught.value)


def test_a_missing_package_is_reported(monkeypatch):
    monkeypatch.setattr("hookline.channels.telegram.channel.find_spec", lambda name: None)
    with pytest.raises(NotInstalledError, match=r"pip install .*\[channels\]"):
        TelegramChannel(token=TOKEN)


async def test_a_proxy_in_the_environment_is_used(api, monkeypatch):
    monkeypatch.setenv("http_proxy", api.url)
    channel = TelegramChannel("phone", token=TOKEN, base_url="http://telegram.invalid")
    with pytest.raises(ChannelError, match="rejects the token"):  # the proxy answered, which is no proxy
        await channel.start(Inbox())
    monkeypatch.setenv("no_proxy", "telegram.invalid")
    await channel.start(Inbox())
    assert not channel.health().ok
    await channel.stop()
