"""The server of the web chat: messages are neither lost nor duplicated, and access is checked."""

import asyncio
import json
import re
from collections import deque
from contextlib import asynccontextmanager
from http.cookies import SimpleCookie
from time import time

import httpx
import pytest

from hookline.channels.protocol import (
    Address,
    ApprovalOutcome,
    ApprovalPrompt,
    Channel,
    ChannelError,
    Draft,
    Step,
    StepVerdict,
    UndeliverableError,
)
from hookline.channels.web import channel as web
from hookline.channels.web.channel import WebChannel, hashed_chat_id
from hookline.channels.web.login import Login
from hookline.errors import AttachmentError
from hookline.payloads import InboundFile, OutboundMessage
from hookline.stores import chats

from ..waiting import wait_until
from .helpers import RecordingGateway, reply, served

ME = "m" * 32
TOKEN = "a token that nobody can guess"
HERE = Address("web", hashed_chat_id(ME))


@pytest.fixture
async def deliver():
    return RecordingGateway()


@pytest.fixture
async def channel(tmp_path):
    return WebChannel(store=tmp_path / "chats.db")


@pytest.fixture
async def url(channel, deliver):
    async with served(channel, deliver=deliver) as url:
        yield url


class Page:
    """A client that behaves like the page."""

    def __init__(self, client, events):
        self._client, self._events, self._heard, self.rev = client, events, deque(), 0

    async def say(self, kind, **fields):
        """Post something, and hear what became of it: ``taken``, ``later`` or ``refused``."""
        answer = await self._client.post(f"/{kind}", json=fields)
        what = "taken" if answer.is_success else "later" if answer.status_code >= 500 else "refused"
        self._heard.append({"type": what, "id": fields["id"], "why": answer.text})

    async def hear(self, *types):
        """Return the next part of one of these types."""
        async with asyncio.timeout(60):
            while True:
                while not self._heard:
                    parts = await anext(self._events)
                    for name, value in parts.items():
                        self._heard.append(
                            {"type": name.partition(":")[0], **(value if isinstance(value, dict) else {})}
                        )
                frame = self._heard.popleft()
                self.rev = max(self.rev, frame.get("rev", 0))
                if frame["type"] in types:
                    return frame

    async def messages(self, count):
        return [(await self.hear("message"))["text"] for _ in range(count)]

    async def ended(self):
        """Wait until the server ends the stream."""
        async with asyncio.timeout(60):
            async for _ in self._events:
                pass


def id_of(number):
    return f"message-number-{number:08}"


def client_of(url, chat=ME, **headers):
    headers = {"X-Chat": chat, **headers}
    return httpx.AsyncClient(base_url=url, headers=headers, trust_env=False, timeout=60)


@asynccontextmanager
async def opened(url, chat=ME, after=0, **headers):
    async with (
        client_of(url, chat, **headers) as client,
        client.stream("GET", "/stream", params={"after": after}) as stream,
    ):
        stream.raise_for_status()
        events = (json.loads(line[6:]) async for line in stream.aiter_lines() if line.startswith("data: "))
        page = Page(client, events)
        page.ready = await page.hear("ready")
        yield page


async def test_a_message_is_delivered_and_comes_before_its_reply(channel, tmp_path):
    async def answer(message):
        await reply(channel, message, f"you said {message.text}", f"r-{message.message_id}")

    async def at_once(message):
        await answer(message)
        return await deliver(message)

    deliver = RecordingGateway()
    async with served(channel, deliver=at_once) as url, opened(url) as page:
        assert isinstance(channel, Channel)
        await page.say("messages", id=id_of(1), text="hello")
        assert await page.messages(2) == ["hello", "you said hello"]
    (message,) = deliver.messages
    assert (message.text, message.platform, message.message_id) == ("hello", "web", id_of(1))
    assert message.chat_id == message.sender == hashed_chat_id(ME)
    assert ME not in message.chat_id


async def test_a_repeated_message_is_accepted_once(url, deliver):
    async with opened(url) as page, opened(url) as other:
        for _ in range(3):
            await page.say("messages", id=id_of(1), text="hello")
            assert (await page.hear("taken"))["id"] == id_of(1)
        assert await other.messages(1) == ["hello"]
    assert deliver.texts == ["hello"]
    async with opened(url) as page:
        assert await page.messages(1) == ["hello"]


async def test_a_page_that_was_offline_receives_exactly_the_missed_messages(url, channel):
    async with opened(url) as page:
        await channel.send(HERE, OutboundMessage("one"), key="k1")
        assert await page.messages(1) == ["one"]
    await channel.send(HERE, OutboundMessage("two"), key="k2")
    await channel.send(HERE, OutboundMessage("two"), key="k2")
    await channel.send(HERE, OutboundMessage("three"), key="k3")
    await channel.send(Address("web", hashed_chat_id("x" * 32)), OutboundMessage("not yours"), key="k4")
    async with opened(url, after=page.rev) as page:
        assert not page.ready["reset"]
        assert await page.messages(2) == ["two", "three"]
    async with opened(url) as page:
        assert await page.messages(3) == ["one", "two", "three"]


async def test_a_page_receives_the_activity_when_it_opens_and_when_it_changes(url, channel):
    channel.activity_changed(HERE, id_of(1), 2)
    async with opened(url) as page, opened(url, chat="x" * 32) as other:
        told = await page.hear("work")
        assert (told["answering"], told["waiting"]) == (id_of(1), 2)
        channel.activity_changed(HERE, "", 0)
        await channel.send(HERE, OutboundMessage("done", id_of(1)), key="k1")
        assert "answering" not in await page.hear("work")
        assert (await page.hear("message"))["to"] == id_of(1)
        await other.say("messages", id=id_of(1), text="hello")
        assert (await other.hear("work", "taken"))["type"] == "taken"


async def test_replies_survive_a_restart(tmp_path):
    first = WebChannel(store=tmp_path / "chats.db")
    await first.send(HERE, OutboundMessage("before"), key="k1")
    async with served(WebChannel(store=tmp_path / "chats.db")) as url, opened(url) as page:
        assert await page.messages(1) == ["before"]


async def test_a_page_is_reset_when_the_store_was_deleted(url, channel):
    async with opened(url, after=1_000_000) as page:
        assert page.ready["reset"]
        await channel.send(HERE, OutboundMessage("hello"), key="k1")
        assert await page.messages(1) == ["hello"]


async def test_typing_and_changed_messages_are_shown(url, channel):
    async with opened(url) as page:
        await wait_until(lambda: channel.health().detail.startswith("1 page "))
        await channel.typing(HERE)
        await page.hear("typing")
        seq = await channel.send(HERE, OutboundMessage("wor"), key="sign-1")
        other = await channel.send(HERE, OutboundMessage("another sign of life"), key="sign-2")
        assert seq != other
        assert await page.messages(2) == ["wor", "another sign of life"]
        await channel.edit(HERE, seq, OutboundMessage("working"))
        frame = await page.hear("message")
        assert (frame["text"], frame["seq"]) == ("working", int(seq))
    with pytest.raises(UndeliverableError):
        await channel.edit(HERE, "999999", OutboundMessage("x"))


async def test_messages_stored_by_another_process_are_shown(url, tmp_path, monkeypatch):
    monkeypatch.setattr(web, "POLL_INTERVAL", 0.02)
    another = WebChannel(store=tmp_path / "chats.db")
    async with opened(url) as page:
        await another.send(HERE, OutboundMessage("from elsewhere"), key="k")
        assert await page.messages(1) == ["from elsewhere"]


async def test_a_message_that_cannot_be_stored_is_sent_again_and_stored_once(channel, caplog):
    broken, kept = [RuntimeError("the disk is full")], RecordingGateway()

    async def deliver(message):
        if broken:
            raise broken.pop()
        return await kept(message)

    async with served(channel, deliver=deliver) as url, opened(url) as page:
        await page.say("messages", id=id_of(1), text="hello")
        await page.hear("later")
        await page.say("messages", id=id_of(1), text="hello")
        await page.hear("taken")
        await reply(channel, kept.messages[0], "here", "k")
        async with opened(url) as other:
            assert await other.messages(2) == ["hello", "here"]
    assert kept.texts == ["hello"]
    assert "disk is full" in caplog.text


async def test_an_invalid_text_is_refused_with_a_reason(url, deliver):
    async with opened(url) as page:
        for text in ("", "  \n", "x" * 32_001):
            await page.say("messages", id=id_of(1), text=text)
            assert "32000 characters" in (await page.hear("refused"))["why"]
        await page.say("messages", id=id_of(2), text="x" * 32_000)
        await page.hear("taken")
    assert len(deliver.messages) == 1


NONSENSE = {
    "no JSON": b"hello",
    "no fields": b"{}",
    "a short id": b'{"id":"1","text":"x"}',
    "an odd id": json.dumps({"id": "é" * 32, "text": "x"}).encode(),
    "deep": b'{"x":' + b"[" * 100_000,
    "half a character": b'{"id":"' + b"a" * 32 + b'","text":"\\ud800"}',
    "no UTF-8": b'{"id":"' + b"a" * 32 + b'","text":"\xff\xfe"}',
}


@pytest.mark.parametrize("path", ["/messages", "/decisions"])
async def test_an_invalid_request_is_refused(url, deliver, path):
    async with client_of(url) as client:
        for name, data in NONSENSE.items():
            assert (await client.post(path, content=data)).status_code == 400, name
        assert (await client.post(path, content=b"x" * 1_000_001)).status_code == 413
    async with client_of(url, chat="short") as client:
        assert (await client.post(path, json={"id": id_of(1), "text": "x"})).status_code == 400
        assert (await client.get("/stream")).status_code == 400
    assert deliver.texts == []


async def test_a_stream_shows_that_the_server_lives_while_nothing_happens(url):
    async with client_of(url) as client, client.stream("GET", "/stream") as stream, asyncio.timeout(60):
        lines = stream.aiter_lines()
        while await anext(lines) != ":":
            pass


async def test_many_pages_at_once_each_have_their_own_conversation(channel):
    async def answer(message):
        await reply(channel, message, f"to {message.text}", f"r-{message.message_id}")

    deliver = RecordingGateway(answer)

    async def one(url, number):
        async with opened(url, chat=f"conversation-number-{number:04}") as page:
            for turn in range(3):
                await page.say("messages", id=id_of(turn), text=f"{number}.{turn}")
            return await page.messages(6)

    async with served(channel, deliver=deliver) as url:
        heard = await asyncio.gather(*(one(url, number) for number in range(50)))
    for number, texts in enumerate(heard):
        asked = [f"{number}.{turn}" for turn in range(3)]
        assert [text for text in texts if not text.startswith("to ")] == asked
        assert sorted(text for text in texts if text.startswith("to ")) == [f"to {text}" for text in asked]
    assert len(deliver.messages) == 150


async def test_pages_are_asked_to_reconnect_when_the_channel_stops(url, channel):
    async with opened(url) as page:
        await channel.stop()
        await page.ended()
    async with client_of(url) as client:
        assert (await client.get("/stream")).status_code == 503
        assert (await client.post("/messages", json={"id": id_of(1), "text": "x"})).status_code == 503
    assert not channel.health().ok


@pytest.mark.sqlite
async def test_a_broken_store_is_reported(tmp_path):
    (tmp_path / "chats.db").write_text("my notes, " * 100)
    channel = WebChannel(store=tmp_path / "chats.db")
    with pytest.raises(ChannelError, match="not a SQLite database"):
        await channel.start(RecordingGateway())
    with pytest.raises(ChannelError, match="not a SQLite database"):
        await channel.send(HERE, OutboundMessage("x"), key="k")


# Approvals, steps and drafts

CALL = ApprovalPrompt("ABCD", "the-key", "d" * 64, 9e9, "bot", "write", '{"path": "a"}', ("careful asks: May it?",))


async def press(page, decision="approve", key="the-key", **fields):
    id = f"press-{decision}-{key}".ljust(24, "x")
    await page.say("decisions", id=id, key=key, decision=decision, digest="d" * 64, **fields)
    return id


@pytest.mark.parametrize(
    ("decision", "fields", "command"),
    [
        ("approve", {}, "/approve ABCD"),
        ("approve", {"remember": "session"}, "/approve ABCD session"),
        ("deny", {}, "/deny ABCD"),
        ("deny", {"message": "not\nnow"}, "/deny ABCD not now"),
        ("edit", {"arguments": '{"path": "b c"}'}, '/edit ABCD {"path": "b c"}'),
    ],
)
async def test_a_button_decides_about_exactly_the_call_above_it(url, channel, deliver, decision, fields, command):
    channel.approvals_changed(HERE, [CALL])
    async with opened(url) as page:
        (prompt,) = (await page.hear("asked"))["open"]
        assert (prompt["agent"], prompt["tool"], prompt["arguments"]) == ("bot", "write", '{"path": "a"}')
        assert (prompt["expires"], prompt["questions"]) == (9e9, ["careful asks: May it?"])
        await press(page, key="another")
        await press(page, decision, **fields)
        await wait_until(lambda: deliver.messages)
        assert [(each.text, each.digest) for each in deliver.messages] == [(command, "d" * 64)]
        assert channel._store.since("web", HERE.chat_id) == []  # the press is no message of the conversation


async def test_a_decision_without_the_digest_of_the_call_is_refused(url, channel, deliver):
    channel.approvals_changed(HERE, [CALL])
    async with opened(url) as page:
        for number, given in enumerate(({}, {"digest": ""})):
            await page.say("decisions", id=id_of(number), key="the-key", decision="approve", **given)
            await page.hear("refused")
    assert deliver.messages == []


async def test_stop_is_a_command_and_no_message_of_the_conversation(url, channel, deliver):
    async with opened(url) as page:
        await page.say("stop", id=id_of(1))
        await page.hear("taken")
    assert deliver.texts == ["/stop"]
    assert channel._store.since("web", HERE.chat_id) == []


async def test_the_outcome_of_a_call_is_shown_below_it_and_not_twice(url, channel, deliver):
    await channel.send(HERE, OutboundMessage("bot wants to call `write`"), key="the-key")
    channel.approvals_changed(HERE, [CALL])
    async with opened(url) as page:
        await page.hear("asked")
        id = await press(page)
        await wait_until(lambda: deliver.messages)
        by = f"web:{HERE.chat_id}"
        channel.approval_closed(HERE, ApprovalOutcome("the-key", f"write runs (approved by {by}).", by))
        await channel.send(HERE, OutboundMessage("ABCD: approved. write runs.", id), key="r")
        await wait_until(lambda: not channel._outcomes)
    texts = [each.text for each in channel._store.since("web", HERE.chat_id)]
    assert texts == ["bot wants to call `write`\n\n> write runs (approved by you)."]


async def test_a_refused_press_is_answered(url, channel, deliver):
    channel.approvals_changed(HERE, [CALL])
    async with opened(url) as page:
        await page.hear("asked")
        id = await press(page)
        await wait_until(lambda: deliver.messages)
        await channel.send(HERE, OutboundMessage("You are not allowed.", id), key="r")
        assert (await page.hear("message"))["text"] == "You are not allowed."


async def test_a_draft_is_sent_in_pieces_until_the_reply_is_there(url, channel):
    async with opened(url) as page:
        channel.draft_changed(HERE, Draft("m1", "Ada", "One"))
        frame = await page.hear("draft")
        assert (frame["to"], frame["speaker"], frame["text"]) == ("m1", "Ada", "One")
        channel.draft_changed(HERE, Draft("m1", "Ada", "One two"))
        frame = await page.hear("draft")
        assert (frame["text"], frame["more"]) == (" two", True)
        channel.draft_changed(HERE, Draft("m1", "Ada", "Three"))
        assert (await page.hear("draft"))["text"] == "Three"
        async with opened(url) as other:
            assert (await other.hear("draft"))["text"] == "Three"
        await channel.send(HERE, OutboundMessage("Three.", "m1"), key="r")
        assert "to" not in await page.hear("draft")


async def test_steps_are_kept_and_changed_in_place(url, channel):
    await channel.show_steps(HERE, "run", "m1", "Ada", [Step("1", "read", "reading")])
    blocked = Step("1", "read", "reading", "blocked", (StepVerdict("block", "careful", "no"),))
    await channel.show_steps(HERE, "run", "m1", "Ada", [blocked])
    async with opened(url) as page:
        frame = await page.hear("message")
    verdict = {"word": "blocked", "tone": "red", "gate": "blocked", "hook": "careful", "reason": "no"}
    (step,) = frame["steps"]
    assert (step["tool"], step["state"], step["tone"], step["verdicts"]) == ("read", "blocked", "red", [verdict])
    assert (frame["to"], frame.get("text", "")) == ("m1", "")


# The page


async def test_the_page_loads_nothing_from_other_servers(url):
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        page = await client.get("/")
        assert page.headers["content-type"].startswith("text/html")
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        parts = re.findall(r'(?:src|href)="([^"]+)"', page.text)
        assert parts
        for part in parts:
            assert "//" not in part.replace("http://www.w3.org/2000/svg", "")
            if not part.startswith("data:"):
                assert (await client.get(part)).status_code == 200
        script = (await client.get("/chat.js")).text + (await client.get("/text.js")).text
        assert "innerHTML" not in script
        assert (await client.get("/chat.js")).headers["content-type"].startswith("text/javascript")


async def test_the_title_is_escaped(tmp_path):
    channel = WebChannel(title='<b>"A & B"</b> $max', path="/talk", store=tmp_path / "c.db")
    async with served(channel) as url, httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        page = (await client.get("/talk", follow_redirects=True)).text
    assert "<b>" not in page
    assert "&lt;b&gt;&quot;A &amp; B&quot;&lt;/b&gt; $max" in page


# Access


async def test_without_a_token_only_the_local_machine_can_use_the_page(url):
    passed_on = {"X-Forwarded-For": "203.0.113.9"}
    async with httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client:
        assert (await client.get("/", headers=passed_on)).status_code == 403
        assert (await client.get("/", headers={"Host": "192.0.2.7"})).status_code == 403
    async with client_of(url, **passed_on) as client:
        assert (await client.get("/stream")).status_code == 403
        for path in ("/messages", "/decisions", "/stop"):
            assert (await client.post(path, json={"id": id_of(1)})).status_code == 403


@pytest.fixture
async def locked(tmp_path):
    async with (
        served(WebChannel(token=TOKEN, store=tmp_path / "c.db"), hosts=["chat.example"]) as url,
        httpx.AsyncClient(base_url=url, trust_env=False, timeout=60) as client,
    ):
        yield client


async def tries(client, cookie):
    headers = {"Cookie": cookie} if cookie else {}
    async with opened(str(client.base_url).rstrip("/"), **headers):
        return True


async def test_the_token_is_required_once(locked):
    with pytest.raises(httpx.HTTPStatusError, match="401"):
        await tries(locked, "")
    assert (await locked.get("/login")).status_code == 401
    wrong = await locked.post("/login", json={"token": "not the token at all"})
    assert (wrong.status_code, "set-cookie" in wrong.headers) == (401, False)
    right = await locked.post("/login", json={"token": TOKEN})
    assert right.status_code == 204
    (cookie,) = SimpleCookie(right.headers["set-cookie"]).values()
    assert (cookie["httponly"], cookie["samesite"], cookie["path"]) == (True, "strict", "/")
    assert not cookie["secure"]
    assert TOKEN not in cookie.value
    assert (await locked.get("/login")).status_code == 200
    assert await tries(locked, f"{cookie.key}={cookie.value}")


async def test_the_cookie_is_secure_if_the_page_uses_tls(locked):
    headers = {"Host": "chat.example", "Origin": "https://chat.example"}
    right = await locked.post("/login", json={"token": TOKEN}, headers=headers)
    assert "secure" in right.headers["set-cookie"].lower()


async def test_a_cookie_cannot_be_forged_or_extended(locked):
    cookie = (await locked.post("/login", json={"token": TOKEN})).headers["set-cookie"].partition(";")[0]
    name, _, value = cookie.partition("=")
    until_, _, mac = value.partition(".")
    wrong = [f"{int(until_) + 1}.{mac}", f"{until_}.{'0' * 64}", f"1.{mac}", until_, "", ".", f"{until_}.é", "9" * 5000]
    for one in wrong:
        with pytest.raises(httpx.HTTPStatusError, match="401"):
            await tries(locked, f"{name}={one}".encode())


def test_a_cookie_expires():
    login = Login("web", "/", TOKEN)
    assert login.is_logged_in({"hookline_web": login._cookie_value(str(int(time()) + 100))})
    assert not login.is_logged_in({"hookline_web": login._cookie_value(str(int(time()) - 1))})


async def test_wrong_tokens_are_rate_limited(locked):
    statuses = [(await locked.post("/login", json={"token": "wrong"})).status_code for _ in range(12)]
    assert statuses == [401] * 10 + [429] * 2
    assert (await locked.post("/login", json={"token": TOKEN})).status_code == 429


async def test_wrong_tokens_that_arrive_together_are_rate_limited(locked):
    body = json.dumps({"token": "wrong"}).encode()
    head = f"POST /login HTTP/1.1\r\nHost: {locked.base_url.netloc.decode()}\r\nContent-Type: application/json\r\n"
    head += f"Content-Length: {len(body)}\r\nExpect: 100-continue\r\nConnection: close\r\n\r\n"
    async with asyncio.timeout(30):
        opened = [await asyncio.open_connection(locked.base_url.host, locked.base_url.port) for _ in range(14)]
        for reader, writer in opened:
            writer.write(head.encode())
            assert b"100 Continue" in await reader.readuntil(b"\r\n\r\n")  # the server waits for the body
        for _, writer in opened:
            writer.write(body)
        answers = [await reader.read() for reader, _ in opened]
        for _, writer in opened:
            writer.close()
    assert sorted(int(answer.split()[1]) for answer in answers) == [401] * 10 + [429] * 4


async def test_the_login_accepts_only_a_token(locked):
    for body in (b"", b"x", b"[]", b'{"token":1}', b'{"token":"\xff"}', b"[" * 100_000):
        assert (await locked.post("/login", content=body)).status_code == 400, body[:20]


@pytest.mark.parametrize("options", [{"token": "short"}, {"token": ""}, {"name": "a b"}, {"path": "chat"}])
def test_invalid_settings_are_rejected(options):
    with pytest.raises(ChannelError):
        WebChannel(**options)


async def test_neither_tokens_nor_conversations_are_logged(locked, caplog):
    caplog.set_level("DEBUG")
    cookie = (await locked.post("/login", json={"token": TOKEN})).headers["set-cookie"].partition(";")[0]
    async with opened(str(locked.base_url).rstrip("/"), Cookie=cookie) as page:
        await page.say("messages", id=id_of(1), text="a private text")
        await page.hear("taken")
    ours = "\n".join(
        record.getMessage() for record in caplog.records if record.name.partition(".")[0] in ("hookline", "uvicorn")
    )
    for secret in (TOKEN, ME, "a private text"):
        assert secret not in ours


# files


async def upload(url, data, file=id_of(7), chat=ME, offset=0, **headers):
    headers = {"X-Chat": chat, "X-File": file, "X-Offset": str(offset)} | headers
    async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
        return await client.post(f"{url}/files", content=data, headers=headers)


async def test_a_file_is_uploaded_in_parts_and_belongs_to_its_message(url, channel, deliver):
    assert (await upload(url, b"12345")).json() == {"size": 5}
    assert (await upload(url, b"12345")).json() == {"size": 5}  # the same part again changes nothing
    assert (await upload(url, b"678", offset=5)).json() == {"size": 8}
    async with opened(url) as page:
        file = {"id": id_of(7), "name": "../a.txt"}
        await page.say("messages", id=id_of(1), text="", files=[file])
        assert await page.messages(1) == ["[a.txt]"]
    (message,) = deliver.messages
    assert (message.text, message.attachments) == ("[a.txt]", ("file",))
    (found,) = message.files
    assert (found.name, found.size) == ("a.txt", 8)
    assert await channel.read_file(found, 8) == b"12345678"
    with pytest.raises(AttachmentError, match="the limit for an attachment is 7 bytes"):
        await channel.read_file(found, 7)


async def test_a_chat_does_not_get_the_file_of_another(url, channel, deliver):
    await upload(url, b"secret", chat="n" * 32)
    async with opened(url) as page:
        for id in (id_of(7), f"{hashed_chat_id('n' * 32)}/{id_of(7)}", "../x"):
            await page.say("messages", id=id_of(1), text="look", files=[{"id": id, "name": "a.txt"}])
            assert "a.txt is not stored any more" in (await page.hear("refused"))["why"]
    assert deliver.messages == []
    with pytest.raises(ChannelError, match="is not stored any more"):
        await channel.read_file(InboundFile(f"{HERE.chat_id}/{id_of(7)}", "a.txt"), None)


@pytest.mark.parametrize(
    "headers", [{"X-Chat": "short"}, {"X-File": "../x"}, {"X-Offset": "-1"}, {"X-Offset": "x"}, {"X-Offset": ""}]
)
async def test_an_upload_with_wrong_headers_is_rejected(url, headers):
    assert (await upload(url, b"x", **headers)).status_code == 400


async def test_an_upload_over_the_limit_or_without_login_or_from_another_site_is_rejected(tmp_path):
    async with served(WebChannel(store=tmp_path / "a.db", max_file=8)) as url:
        assert (await upload(url, b"12345678")).status_code == 200
        refused = await upload(url, b"9", offset=8)
        assert (refused.status_code, refused.json()["error"]) == (413, "A file may have at most 8 bytes.")
        assert (await upload(url, b"x", Origin="https://example.com")).status_code == 403
    async with served(WebChannel(store=tmp_path / "b.db", token=TOKEN)) as url:
        assert (await upload(url, b"x")).status_code == 401


async def test_only_the_newest_files_of_a_chat_are_kept(url, channel, monkeypatch):
    for number in range(chats.MAX_FILES + 2):
        await upload(url, b"x", file=id_of(number))
    kept = [number for number in range(30) if channel._store.file_size("web", HERE.chat_id, id_of(number))]
    assert kept == list(range(2, chats.MAX_FILES + 2))
    monkeypatch.setattr(chats, "MAX_FILE_BYTES", 25)
    assert (await upload(url, b"123456", file=id_of(99))).status_code == 503


async def test_files_are_deleted_after_a_day(url, channel, monkeypatch):
    await upload(url, b"x")
    monkeypatch.setattr(chats, "_FILE_SECONDS", -1.0)
    await upload(url, b"y", file=id_of(8))
    assert channel._store.file("web", HERE.chat_id, id_of(7)) is None
