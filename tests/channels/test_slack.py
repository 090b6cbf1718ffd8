"""The Slack channel against a server that speaks Slack's protocol."""

import logging
import subprocess
import sys
import traceback

import httpx
import pytest

from hookline import Agent, ScriptedModel
from hookline._base.errors import NotInstalledError
from hookline.channels.factory import build_gateway
from hookline.channels.protocol import Address, ApprovalOutcome, ApprovalPrompt, ChannelError, UndeliverableError
from hookline.channels.slack.blocks import render
from hookline.channels.slack.channel import SlackChannel
from hookline.config.settings import DeclaredChannel, Settings
from hookline.errors import AttachmentError
from hookline.stores.messages import InboundFile, OutboundMessage

from ..waiting import wait_until
from .approval_setup import ApprovalSetup
from .conformance import ApiRig, Conformance, ready
from .helpers import served
from .platforms import Inbox
from .slack_api import (
    ADA,
    APP_TOKEN,
    BEN,
    CHANNEL,
    DIRECT,
    ME,
    SIGNING_SECRET,
    TOKEN,
    SlackApi,
    buttons,
    event_body,
    shown,
    signed,
)

API = SlackApi
CHAT = Address("work", DIRECT, bot=ME)


@pytest.fixture
async def channel(api):
    channel = SlackChannel("work", token=TOKEN, app_token=APP_TOKEN, base_url=api.url)
    yield channel
    await channel.stop()


def http_channel(api, **settings):
    return SlackChannel(
        **{"name": "work", "token": TOKEN, "signing_secret": SIGNING_SECRET, "base_url": api.url} | settings
    )


class TestConformance(Conformance):
    @pytest.fixture
    def rig(self, channel, api):
        return ApiRig(channel, api, DIRECT)


async def received(channel, api, *events):
    """The messages that the gateway receives, once all events are acknowledged."""
    inbox = Inbox()
    await ready(channel, inbox)
    for event in events:
        await api.happens(event)
    await wait_until(lambda: not api.unacknowledged)
    await channel.stop()
    return inbox.messages


# receiving


async def test_a_direct_message_has_its_sender_and_chat(channel, api):
    (message,) = await received(channel, api, api.event("hi 👋"))
    assert (message.text, message.chat_id, message.sender, message.thread_id) == ("hi 👋", DIRECT, ADA, "")
    assert (message.direct, message.mentioned, message.bot, message.platform) == (True, False, ME, "slack")


async def test_a_mention_in_a_channel_begins_a_conversation_in_its_thread(channel, api):
    first = api.event(f"<@{ME}> hello", CHANNEL)
    second = api.event(f"<@{ME}> more", CHANNEL, BEN, thread_ts=first["ts"])
    one, two = await received(channel, api, *api.events(first), *api.events(second))
    assert (one.text, one.thread_id, one.message_id) == ("hello", first["ts"], first["ts"])
    assert (two.text, two.thread_id, two.sender) == ("more", first["ts"], BEN)
    assert not one.direct
    assert one.mentioned


async def test_the_two_events_of_a_mention_are_one_message(channel, api):
    inbox = Inbox()
    await ready(channel, inbox)
    await api.say(f"<@{ME}> hello", CHANNEL)
    await wait_until(lambda: not api.unacknowledged)
    assert inbox.texts == ["hello"]
    assert list(inbox.offered.values()) == [2]


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        (f"<@{ME}>, what is 👋?", "what is 👋?"),
        (f"what is it, <@{ME}|agent>?", "what is it?"),
        (f"tell <@{ME}> that", "tell @agent that"),
        (f"<@{ME}>", "@agent"),
        (f"<@{ME}> /stop all", "/stop all"),
        (f"<@{ME}> ask <@UBEN> in <#C9|general>, <!here>", "ask @UBEN in #general, @here"),
        (
            f"<@{ME}> see <https://a.example/x|the page> and <https://b.example>",
            "see the page (https://a.example/x) and https://b.example",
        ),
        (f"<@{ME}> mail <mailto:a@b.example|a@b.example>", "mail a@b.example"),
        (f"<@{ME}> if a &lt; b &amp;&amp; c &gt; d", "if a < b && c > d"),
        (f"<@{ME}> write &lt;!channel&gt;", "write <!channel>"),
    ],
)
async def test_markup_of_slack_becomes_plain_text(channel, api, text, plain):
    (message,) = await received(channel, api, api.event(text, CHANNEL))
    assert (message.text, message.mentioned) == (plain, True)


async def test_a_reply_in_a_thread_of_the_bot_mentions_it_and_other_messages_do_not(channel, api):
    events = [
        api.event("yes", CHANNEL, thread_ts="1.1", parent_user_id=ME),
        api.event("hello all", CHANNEL),
        api.event("<@UBEN> hello", CHANNEL),
    ]
    assert [message.mentioned for message in await received(channel, api, *events)] == [True, False, False]


async def test_files_are_named_in_the_text_and_those_elsewhere_are_received_as_a_note(channel, api):
    files = [
        {"id": "F1", "filetype": "png", "name": "../cat.png", "size": 7},
        {"id": "F2"},
        {"id": "F3", "filetype": "gdoc", "mode": "external"},
    ]
    (message,) = await received(channel, api, api.event("look", subtype="file_share", files=files))
    assert message.text == "[cat.png] [file] [gdoc: not readable here] look"
    assert message.attachments == ("png", "file", "gdoc")
    assert message.files == (InboundFile("F1", "cat.png", 7), InboundFile("F2", "file"))


async def test_a_file_is_read_within_the_limit(channel, api):
    api.share("F1", b"12345")
    api.share("F2", b"12345", size=1)
    with pytest.raises(ChannelError, match="is not started"):
        await channel.read_file(InboundFile("F1"), 5)
    await ready(channel, Inbox())
    assert await channel.read_file(InboundFile("F1"), 5) == b"12345"
    for id in ("F1", "F2"):
        with pytest.raises(AttachmentError, match="the limit for an attachment is 4 bytes"):
            await channel.read_file(InboundFile(id), 4)
    with pytest.raises(ChannelError, match="file_not_found"):
        await channel.read_file(InboundFile("F9"), 5)
    api.fail("files.info", "missing_scope", needed="files:read")
    with pytest.raises(ChannelError, match="lacks the scope files:read"):
        await channel.read_file(InboundFile("F1"), 5)


@pytest.mark.parametrize("url", ["https://example.com/a.png", "http://files.slack.com/a", "file:///etc/passwd", ""])
async def test_the_token_is_not_sent_to_another_host_for_a_file(channel, api, url):
    api.share("F1", b"12345", url_private_download=url, url_private=url)
    await ready(channel, Inbox())
    with pytest.raises(ChannelError, match="is not stored by Slack"):
        await channel.read_file(InboundFile("F1"), None)
    assert api.downloads == []


@pytest.mark.parametrize(
    "fields",
    [
        {"subtype": "message_changed", "message": {}},
        {"subtype": "message_deleted"},
        {"subtype": "channel_join"},
        {"subtype": "bot_message", "bot_id": "B2", "user": None},
        {"bot_id": "B2"},
        {"user": ME},
        {"user": None},
        {"ts": None},
        {"type": "reaction_added"},
    ],
)
async def test_what_no_person_wrote_is_acknowledged_and_ignored(channel, api, fields):
    assert await received(channel, api, {**api.event("x", CHANNEL), **fields}) == []


async def test_an_event_that_slack_repeats_is_delivered_once(channel, api):
    inbox = Inbox()
    inbox.open.clear()
    await ready(channel, inbox)
    await api.say("hello")
    await wait_until(lambda: inbox.messages)
    await api.send_again()
    inbox.open.set()
    await wait_until(lambda: not api.unacknowledged and sum(inbox.offered.values()) == 2)
    assert inbox.texts == ["hello"]


async def test_a_message_is_acknowledged_only_once_it_is_stored(channel, api):
    inbox = Inbox()
    inbox.open.clear()
    await ready(channel, inbox)
    await api.say("hello")
    await wait_until(lambda: inbox.messages)
    waiting = len(api.unacknowledged)
    inbox.open.set()
    assert waiting == 1
    await wait_until(lambda: not api.unacknowledged)


async def test_a_thread_keeps_its_order_and_does_not_wait_for_others(channel, api):
    inbox = Inbox()
    inbox.open.clear()
    await ready(channel, inbox)
    await api.say("one")
    await api.say("two")
    await api.say(f"<@{ME}> elsewhere", CHANNEL)
    await wait_until(lambda: "elsewhere" in inbox.texts)
    before = inbox.texts
    inbox.open.set()
    await wait_until(lambda: len(inbox.texts) == 3)
    assert (before, inbox.texts) == (["one", "elsewhere"], ["one", "elsewhere", "two"])


async def test_messages_that_arrive_during_a_new_connection_are_not_lost(channel, api):
    inbox = Inbox()
    await ready(channel, inbox)
    await api.refresh()
    await wait_until(lambda: sum(method == "apps.connections.open" for method, _ in api.calls) == 2)
    await api.say("hello")
    await wait_until(lambda: inbox.texts == ["hello"])


async def test_a_lost_connection_is_reported_and_opened_again_with_a_new_address(channel, api):
    inbox = Inbox()
    await ready(channel, inbox)
    await api.down()
    await wait_until(lambda: not channel.health().ok)
    await api.say("hello")
    await api.up(api.port)
    api.fail("apps.connections.open", "internal_error", 500)
    await wait_until(lambda: inbox.texts == ["hello"])
    assert channel.health().detail == "connected as @agent"


async def test_slack_may_be_down_when_the_channel_starts(api):
    await api.down()
    inbox = Inbox()
    channel = SlackChannel("work", token=TOKEN, app_token=APP_TOKEN, base_url=api.url)
    await channel.start(inbox)
    assert not channel.health().ok
    await api.say("hello")
    await api.up(api.port)
    await wait_until(lambda: inbox.texts == ["hello"])
    await channel.stop()


# HTTP


async def test_messages_and_buttons_arrive_over_http(api):
    inbox, channel = Inbox(), http_channel(api)
    async with served(channel, deliver=inbox) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        await wait_until(lambda: channel.health().ok)
        challenge = await http.post("/slack/work", **signed({"type": "url_verification", "challenge": "c4"}))
        assert (challenge.status_code, challenge.json()) == (200, {"challenge": "c4"})
        event = event_body(api.event("hello"))
        for _ in range(2):  # Slack repeats what took too long
            assert (await http.post("/slack/work", **signed(event))).status_code == 200
        channel.approvals_changed(CHAT, [ApprovalPrompt("ABCD", "k", "d1")])
        ts = await channel.send(CHAT, OutboundMessage("a call"), key="k")
        press = api.press_body(DIRECT, ts, "Deny")
        assert (await http.post("/slack/work", **signed(press, form=True))).status_code == 200
    assert inbox.texts == ["hello", "/deny ABCD"]
    assert inbox.messages[1].digest == "d1"
    assert channel.health().detail == "stopped"


@pytest.mark.parametrize(
    ("options", "status"),
    [
        ({"secret": "0" * 32}, 401),
        ({"age": 600}, 401),
        ({"age": -600}, 401),
    ],
)
async def test_a_request_with_a_wrong_signature_is_rejected(api, options, status, caplog):
    inbox = Inbox()
    async with served(http_channel(api), deliver=inbox) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        response = await http.post("/slack/work", **signed(event_body(api.event("hello")), **options))
        assert response.status_code == status
        assert (await http.post("/slack/work", content=b"{}")).status_code == 401
        challenge = {"type": "url_verification", "challenge": "c4"}
        assert (await http.post("/slack/work", json=challenge)).status_code == 401
    assert inbox.messages == []
    assert caplog.text.count("wrong signature") == 1  # of three: anyone can cause them
    assert "hello" not in caplog.text


@pytest.mark.parametrize(
    ("enterprise", "texts"),
    [
        (None, []),  # another customer of the same app
        ("E2", []),
        ("E1", ["hello", "/approve ABCD"]),  # another workspace of the organization that installed the app
    ],
)
async def test_requests_of_another_workspace_with_a_valid_signature_are_ignored(api, enterprise, texts, caplog):
    api.organization = "E1"
    inbox, channel = Inbox(), http_channel(api)
    event = event_body(api.event("hello"))
    event |= {"team_id": "T2", "authorizations": [{"team_id": "T2", "enterprise_id": enterprise, "user_id": ME}]}
    async with served(channel, deliver=inbox) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        await wait_until(lambda: channel.health().ok)
        assert (await http.post("/slack/work", **signed(event))).status_code == 200
        channel.approvals_changed(CHAT, [ApprovalPrompt("ABCD", "k", "d1")])
        ts = await channel.send(CHAT, OutboundMessage("a call"), key="k")
        press = {**api.press_body(DIRECT, ts, "Approve"), "team": {"id": "T2"}, "enterprise": {"id": enterprise}}
        assert (await http.post("/slack/work", **signed(press, form=True))).status_code == 200
    assert inbox.texts == texts
    assert caplog.text.count("a request of another workspace (T2) was ignored") == (not texts)


@pytest.mark.parametrize(("enterprise", "texts"), [("E2", []), ("E1", ["hello", "/approve ABCD"])])
async def test_requests_that_name_only_another_organization_are_ignored(api, enterprise, texts):
    api.organization = "E1"
    inbox, channel = Inbox(), http_channel(api)
    event = event_body(api.event("hello"))
    event |= {"authorizations": [{"team_id": None, "enterprise_id": enterprise, "user_id": ME}]}
    async with served(channel, deliver=inbox) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        await wait_until(lambda: channel.health().ok)
        assert (await http.post("/slack/work", **signed(event))).status_code == 200
        channel.approvals_changed(CHAT, [ApprovalPrompt("ABCD", "k", "d1")])
        ts = await channel.send(CHAT, OutboundMessage("a call"), key="k")
        press = {**api.press_body(DIRECT, ts, "Approve"), "team": None, "enterprise": {"id": enterprise}}
        assert (await http.post("/slack/work", **signed(press, form=True))).status_code == 200
    assert inbox.texts == texts


@pytest.mark.parametrize("body", [b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b"{", b"payload=%7B"])
async def test_a_body_that_is_no_request_of_slack_does_no_harm(api, body):
    inbox = Inbox()
    kind = "application/x-www-form-urlencoded" if body.startswith(b"payload") else "application/json"
    async with served(http_channel(api), deliver=inbox) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        response = await http.post("/slack/work", content=body, headers={"Content-Type": kind})
        assert response.status_code in (400, 401)
        assert (await http.post("/slack/work", **signed(event_body(api.event("hi"))))).status_code == 200
    assert inbox.texts == ["hi"]


async def test_a_request_before_the_bot_is_known_is_repeated_by_slack(api):
    await api.down()
    channel = http_channel(api)
    async with served(channel, deliver=Inbox()) as url, httpx.AsyncClient(base_url=url, timeout=60) as http:
        first = await http.post("/slack/work", **signed(event_body(api.event("hi"))))
        await api.up(api.port)
        await wait_until(lambda: channel.health().ok)
        second = await http.post("/slack/work", **signed(event_body(api.event("hi"))))
    assert (first.status_code, second.status_code) == (503, 200)


def test_only_http_needs_a_web_server():
    socket_mode = SlackChannel(token=TOKEN, app_token=APP_TOKEN)
    assert not hasattr(socket_mode, "routes")
    assert [route.path for route in SlackChannel(token=TOKEN, signing_secret=SIGNING_SECRET).routes()] == [
        "/slack/slack"
    ]


# sending


async def test_a_reply_goes_to_its_thread(channel, api):
    await ready(channel, Inbox())
    ts = await channel.send(Address("work", CHANNEL, "1.1"), OutboundMessage("yes"), key="k")
    assert api.chats[CHANNEL][ts]["thread_ts"] == "1.1"
    ts = await channel.send(CHAT, OutboundMessage("yes"), key="k")
    assert "thread_ts" not in api.chats[DIRECT][ts]


async def test_a_message_can_be_changed(channel, api):
    await ready(channel, Inbox())
    ts = await channel.send(CHAT, OutboundMessage("thinking"), key="k")
    await channel.edit(CHAT, ts, OutboundMessage("done"))
    assert api.texts() == ["done"]
    with pytest.raises(UndeliverableError, match="message_not_found"):
        await channel.edit(CHAT, "1.1", OutboundMessage("done"))


async def test_a_text_of_a_model_mentions_nobody_and_hides_no_link(channel, api):
    await ready(channel, Inbox())
    text = "<!channel> <@UADA> <https://evil.example|bank> [bank](https://evil.example)"
    await channel.send(CHAT, OutboundMessage(text), key="k")
    (message,) = api.chats[DIRECT].values()
    assert shown(message) == text
    elements = message["blocks"][0]["elements"][0]["elements"]
    assert {element["type"] for element in elements} == {"text", "link"}
    assert not [element for element in elements if element["type"] == "link" and "text" in element]
    assert "<" not in message["text"]


def test_markdown_is_rendered_as_far_as_it_is_safe():
    text = "see **this** and `x < y`, https://a.example/b.\n```python\nprint('```')\n```\nend ```"
    (block,) = render(text)
    section, code, rest = block["elements"]
    assert section["elements"] == [
        {"type": "text", "text": "see "},
        {"type": "text", "text": "this", "style": {"bold": True}},
        {"type": "text", "text": " and "},
        {"type": "text", "text": "x < y", "style": {"code": True}},
        {"type": "text", "text": ", "},
        {"type": "link", "url": "https://a.example/b"},
        {"type": "text", "text": "."},
    ]
    assert code == {"type": "rich_text_preformatted", "elements": [{"type": "text", "text": "print('```')"}]}
    assert rest["elements"] == [{"type": "text", "text": "end ```"}]
    assert render("```\n\n```")[0]["elements"][0]["elements"]


async def test_too_many_requests_set_retry_after(channel, api):
    await ready(channel, Inbox())
    api.fail("chat.postMessage", "ratelimited", 429, headers={"Retry-After": "14"})
    with pytest.raises(ChannelError, match="too many requests") as caught:
        await channel.send(CHAT, OutboundMessage("hi"), key="k")
    assert caught.value.retry_after == 14
    assert not isinstance(caught.value, UndeliverableError)


@pytest.mark.parametrize(
    ("chat", "text", "error", "words"),
    [
        (DIRECT, "hi", "is_archived", "is_archived"),
        ("C404", "hi", None, "invite it"),
        ("kitchen", "hi", None, "not the id of a Slack conversation"),
        (DIRECT, " ", None, "text is empty"),
        (DIRECT, "x" * 3001, None, "too long"),
    ],
)
async def test_permanent_errors_are_undeliverable(channel, api, chat, text, error, words):
    await ready(channel, Inbox())
    if error:
        api.fail("chat.postMessage", error)
    with pytest.raises(UndeliverableError, match=words):
        await channel.send(Address("work", chat), OutboundMessage(text), key="k")


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        ("internal_error", 500, "internal_error"),
        ("service_unavailable", 503, "service_unavailable"),
        ("token_revoked", 200, "install the app again"),
        ("missing_scope", 200, "lacks the scope chat:write"),
    ],
)
async def test_temporary_errors_are_not_undeliverable(channel, api, error, status, words):
    await ready(channel, Inbox())
    api.fail("chat.postMessage", error, status, needed="chat:write")
    with pytest.raises(ChannelError, match=words) as caught:
        await channel.send(CHAT, OutboundMessage("hi"), key="k")
    assert not isinstance(caught.value, UndeliverableError)


# settings


async def test_a_rejected_token_is_reported_at_the_start(api):
    channel = SlackChannel("work", token="xoxb-wrong", app_token=APP_TOKEN, base_url=api.url)
    with pytest.raises(ChannelError, match="rejects a token of the app") as caught:
        await channel.start(Inbox())
    assert "xoxb-wrong" not in str(caught.value)
    await channel.stop()


async def test_a_rejected_app_token_is_reported_as_health(api):
    channel = SlackChannel("work", token=TOKEN, app_token="xapp-wrong", base_url=api.url)
    await channel.start(Inbox())
    await wait_until(lambda: "rejects a token of the app" in channel.health().detail)
    await channel.stop()


async def test_the_tokens_are_in_no_log_and_no_error(api, caplog):
    caplog.set_level(logging.DEBUG)
    channel = SlackChannel("work", token=TOKEN, app_token=APP_TOKEN, base_url=api.url)
    said = [repr(channel)]
    await ready(channel, Inbox())
    await api.say("a private text")
    for error in ("internal_error", "is_archived", f"what is {TOKEN}"):
        api.fail("chat.postMessage", error)
        try:
            await channel.send(CHAT, OutboundMessage("hi"), key="k")
        except ChannelError:
            said.append(traceback.format_exc())
    await api.down()
    await wait_until(lambda: not channel.health().ok)
    said += [channel.health().detail, caplog.text]
    await channel.stop()
    assert not [one for one in said if "secret-of-this" in one or "ticket=" in one or "a private text" in one]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"name": ""}, "not a valid channel name"),
        ({"token": "xoxp-1"}, "begins with xoxb-"),
        ({"token": None}, "begins with xoxb-"),
        ({"app_token": "xoxb-1"}, "begins with xapp-"),
        ({"app_token": None}, "either app_token"),
        ({"signing_secret": SIGNING_SECRET}, "either app_token"),
        ({"app_token": None, "signing_secret": "short"}, "signing secret"),
        ({"base_url": "localhost:1"}, "base_url is not a URL"),
        ({"proxy": "localhost:1"}, "proxy is not a URL"),
        ({"path": "events"}, "not a valid path"),
    ],
)
def test_invalid_settings_are_rejected(settings, words):
    with pytest.raises(ChannelError, match=words):
        SlackChannel(**{"token": TOKEN, "app_token": APP_TOKEN, **settings})


def test_a_missing_package_is_reported(monkeypatch):
    monkeypatch.setattr("hookline.channels.slack.channel.find_spec", lambda name: None)
    with pytest.raises(NotInstalledError, match=r"pip install .*\[slack\]"):
        SlackChannel(token=TOKEN, app_token=APP_TOKEN)


def test_the_library_is_imported_only_when_the_channel_starts():
    code = (
        "import sys; from hookline.channels import SlackChannel;"
        f"SlackChannel(token={TOKEN!r}, app_token={APP_TOKEN!r});"
        "print([name for name in sys.modules if name.split('.')[0] in ('slack_bolt', 'slack_sdk', 'aiohttp')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# approvals

APPROVE, SESSION, DENY = "Approve", "Approve for this conversation", "Deny"


@pytest.fixture
async def setup(api, tmp_path):
    channel = SlackChannel("work", token=TOKEN, app_token=APP_TOKEN, base_url=api.url)
    async with ApprovalSetup(tmp_path, (ADA,), channel=channel, progress=False) as setup:
        await wait_until(lambda: channel.health().ok)
        yield setup


async def request_of(api, chat=DIRECT, count=1):
    """The last message that asks for approval, once it has buttons."""

    def found():
        return [ts for ts, message in api.chats[chat].items() if buttons(message)]

    await wait_until(lambda: len(found()) >= count)
    return found()[-1]


async def test_a_button_approves_the_call_above_it_and_the_message_shows_who_decided(api, setup):
    thread = await api.say(f"<@{ME}> write a.txt", CHANNEL, BEN)
    ts = await request_of(api, CHANNEL)
    message = api.chats[CHANNEL][ts]
    assert message["thread_ts"] == thread
    assert '{"path": "a.txt", "text": ""}' in shown(message)
    assert "with the buttons. Without a decision it does not run." in shown(message)
    assert "/approve" not in shown(message)  # Slack takes commands for itself
    assert [each["text"]["text"] for each in buttons(message)] == [APPROVE, SESSION, DENY]
    await api.press(CHANNEL, ts, APPROVE)
    await wait_until(lambda: any("The tool said: wrote a.txt" in text for text in api.texts(CHANNEL)))
    await wait_until(lambda: not buttons(message))
    assert setup.wrote == [("a.txt", "")]
    assert "write runs (approved by @UADA)." in shown(message)
    assert setup.store.rows()[0].by == f"work:{ADA}"
    (whisper,) = api.whispers
    assert whisper[0] == ADA
    assert "approved. write runs." in whisper[1]
    assert whisper[2] == thread


async def test_a_denied_call_does_not_run(api, setup):
    await api.say("write a.txt")
    ts = await request_of(api)
    await api.press(DIRECT, ts, DENY)
    await wait_until(lambda: any("The tool said" in text for text in api.texts()))
    await wait_until(lambda: "write does not run (denied by @UADA)." in shown(api.chats[DIRECT][ts]))
    assert setup.wrote == []


async def test_a_decision_for_the_conversation_covers_the_next_call(api, setup):
    await api.say("write a.txt")
    await api.press(DIRECT, await request_of(api), SESSION)
    await wait_until(lambda: setup.wrote == [("a.txt", "")])
    await api.say("write a.txt")
    await wait_until(lambda: setup.wrote == [("a.txt", "")] * 2)


async def test_others_get_a_private_refusal_and_decide_nothing(api, setup):
    await api.say(f"<@{ME}> write a.txt", CHANNEL)
    ts = await request_of(api, CHANNEL)
    before = api.texts(CHANNEL)
    await api.press(CHANNEL, ts, APPROVE, user=BEN)
    await wait_until(lambda: api.whispers)
    assert api.whispers[0][:2] == (BEN, "You are not allowed to decide about calls here.")
    assert api.texts(CHANNEL) == before
    assert buttons(api.chats[CHANNEL][ts])
    assert setup.store.rows(status="pending")
    assert setup.wrote == []


async def test_a_person_who_may_not_even_talk_gets_the_refusal_too(api, tmp_path):
    from hookline.channels.access import Access

    channel = SlackChannel("work", token=TOKEN, app_token=APP_TOKEN, base_url=api.url)
    setup = ApprovalSetup(tmp_path, (ADA,), channel=channel, progress=False)
    setup.gateway._access["work"] = setup.gateway._inbox._access["work"] = Access([ADA], approve=[ADA])
    async with setup:
        await wait_until(lambda: channel.health().ok)
        await api.say(f"<@{ME}> write a.txt", CHANNEL)
        await api.press(CHANNEL, await request_of(api, CHANNEL), APPROVE, user=BEN)
        await wait_until(lambda: api.whispers)
    assert api.whispers == [(BEN, "You are not allowed to decide about calls here.", api.whispers[0][2])]
    assert setup.wrote == []


async def test_a_button_is_bound_to_the_digest_of_the_call_that_was_shown(api, setup):
    await api.say("write a.txt")
    ts = await request_of(api)
    body = api.press_body(DIRECT, ts, APPROVE)
    digest = setup.store.rows()[0].digest
    assert digest in body["actions"][0]["value"]
    body["actions"][0]["value"] = body["actions"][0]["value"].replace(digest, "0" * len(digest))
    await api.envelope("interactive", body)
    await wait_until(lambda: api.whispers)
    assert "out of date: nothing was decided" in api.whispers[0][1]
    assert setup.store.rows()[0].status == "pending"
    assert setup.wrote == []


async def test_two_presses_decide_once(api, setup):
    await api.say("write a.txt")
    ts = await request_of(api)
    approve, deny = api.press_body(DIRECT, ts, APPROVE), api.press_body(DIRECT, ts, DENY)
    await api.envelope("interactive", approve)
    await api.envelope("interactive", approve)  # Slack repeats it
    await api.envelope("interactive", deny)
    await wait_until(lambda: len(api.whispers) == 2)
    assert "out of date" in api.whispers[1][1]
    await wait_until(lambda: setup.wrote == [("a.txt", "")])


async def test_a_call_that_is_decided_elsewhere_loses_its_buttons_and_shows_the_outcome(api, setup):
    await api.say("write a.txt")
    ts = await request_of(api)
    row = setup.store.rows()[0]
    setup.store.decide(row.id, decision="deny", digest=row.digest, by="ann@terminal", message="not <today>")
    await wait_until(lambda: not buttons(api.chats[DIRECT][ts]))
    await wait_until(lambda: "(denied by ann@terminal: not <today>)" in shown(api.chats[DIRECT][ts]))


async def test_arguments_in_several_messages_have_their_buttons_below_the_last(api, setup):
    path = "x" * 8000 + "```<!channel>"
    await api.say(f"write {path}".replace("<", "&lt;").replace(">", "&gt;"))
    ts = await request_of(api)
    assert ts == list(api.chats[DIRECT])[-1]
    assert sum(bool(buttons(message)) for message in api.chats[DIRECT].values()) == 1
    texts = "".join(api.texts()).replace("```\n", "").replace("\n```", "")
    assert texts.count("x") >= 8000
    assert "<!channel>" in texts
    await api.press(DIRECT, ts, APPROVE)
    await wait_until(lambda: setup.wrote == [(path, "")])


async def test_arguments_that_are_too_long_have_no_buttons_and_are_left_to_an_operator(api, setup):
    await api.say(f"write {'x' * 31_000}")
    await wait_until(lambda: any("too many to show here" in text for text in api.texts()))
    assert "hookline approvals" in api.texts()[-1]
    assert not any(buttons(message) for message in api.chats[DIRECT].values())
    assert setup.wrote == []


async def test_buttons_appear_even_if_the_first_attempts_fail(channel, api):
    await ready(channel, Inbox())
    ts = await channel.send(CHAT, OutboundMessage("a call"), key="k")
    api.fail("chat.update", "ratelimited", 429, headers={"Retry-After": "0"})
    channel.approvals_changed(CHAT, [ApprovalPrompt("ABCD", "k", "d")])
    await wait_until(lambda: buttons(api.chats[DIRECT][ts]))
    channel.approval_closed(CHAT, ApprovalOutcome("k", "write runs.", ""))
    channel.approvals_changed(CHAT, [])
    await wait_until(lambda: shown(api.chats[DIRECT][ts]) == "a call\nwrite runs.")


@pytest.mark.parametrize(
    "change",
    [
        {"actions": []},
        {"actions": [{"action_id": "hookline_approve", "value": "x", "action_ts": "1"}]},
        {"actions": [{"action_id": "other", "value": "{}", "action_ts": "1"}]},
        {"channel": None},
    ],
)
async def test_a_button_of_another_form_is_acknowledged_and_ignored(channel, api, change):
    inbox = Inbox()
    await ready(channel, inbox)
    channel.approvals_changed(CHAT, [ApprovalPrompt("ABCD", "k", "d")])
    ts = await channel.send(CHAT, OutboundMessage("a call"), key="k")
    await api.envelope("interactive", api.press_body(DIRECT, ts, APPROVE) | change)
    await api.say("still there")
    await wait_until(lambda: inbox.texts == ["still there"])


# through the gateway


@pytest.fixture
async def gateway(api, tmp_path, monkeypatch):
    """A gateway from settings, with an agent that repeats what it hears."""
    monkeypatch.setenv("SLACK_APP_TOKEN", APP_TOKEN)
    args = {"token": TOKEN, "app_token": {"env": "SLACK_APP_TOKEN"}, "base_url": api.url}
    settings = Settings(
        channels=(DeclaredChannel("slack", "work", args),),
        gateway={"database": str(tmp_path / "gateway.db"), "grace": 5.0},
        sessions=str(tmp_path / "sessions"),
        approval_file=str(tmp_path / "approvals.db"),
    )

    def echo(request):
        return f"{len(request.messages)}: {request.messages[-1].content}"

    gateway = build_gateway(settings, Agent("bot", llm=ScriptedModel([echo], loop=True)), home=tmp_path)
    await gateway.start()
    await wait_until(lambda: gateway.channels["work"].health().ok)
    yield gateway
    await gateway.stop(grace=0)


async def test_people_are_answered_once_where_they_wrote(api, gateway):
    assert gateway.urls == []  # socket mode needs no web server
    await api.say("hello")
    await api.say("to nobody in particular", CHANNEL)
    thread = await api.say(f"<@{ME}> hi", CHANNEL)
    await api.send_again()
    await wait_until(lambda: api.texts() and api.texts(CHANNEL))
    await api.say(f"<@{ME}> more", CHANNEL, BEN, thread_ts=thread)
    other = await api.say(f"<@{ME}> another thread", CHANNEL)
    await wait_until(lambda: len(api.chats[CHANNEL]) == 3)
    await gateway.wait_until_idle()
    assert api.texts() == ["1: hello"]
    answers = {(message["thread_ts"], shown(message)) for message in api.chats[CHANNEL].values()}
    assert answers == {(thread, "1: hi"), (thread, "3: more"), (other, "1: another thread")}


async def test_a_long_reply_is_split(api, gateway):
    await api.say("word " * 2000)
    await wait_until(lambda: " ".join(api.texts()).count("word") == 2000)
    assert len(api.texts()) == 4
    assert max(map(len, api.texts())) <= 3000


async def test_commands_work_after_a_mention_or_a_space(api, gateway):
    await api.say(f"<@{ME}> /help", CHANNEL)
    await api.say(" /help")
    await wait_until(lambda: api.texts() and api.texts(CHANNEL))
    assert "/stop" in api.texts()[0]
    assert "/stop" in api.texts(CHANNEL)[0]


async def test_a_conversation_goes_on_after_many_repeats_by_slack(api, gateway):
    event = api.event("hello")
    for _ in range(5):
        await api.happens(event)
    await wait_until(lambda: not api.unacknowledged and api.texts())
    await gateway.wait_until_idle()
    assert api.texts() == ["1: hello"]
    assert gateway.status().duplicates == 4
