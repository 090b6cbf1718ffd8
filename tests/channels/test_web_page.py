"""The page of the web chat, in a real browser."""

import asyncio
from contextlib import asynccontextmanager

import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline._web.http_server import HttpServer
from hookline.channels.gateway import Gateway
from hookline.channels.protocol import Address, Draft, Step
from hookline.channels.web.channel import WebChannel
from hookline.payloads import OutboundMessage, ToolCall
from hookline.stores import SqliteSessionStore
from hookline.stores.chats import ChatStore
from hookline.stores.mailbox import Mailbox
from tests.chromium import CHROMIUM, needs_chromium

from ..waiting import wait_until
from .approval_setup import ApprovalSetup
from .helpers import RecordingGateway, served

playwright = pytest.importorskip("playwright.async_api", reason="the browser tests need: pip install playwright")
pytestmark = [
    pytest.mark.slow,
    needs_chromium,
]

HOSTILE = """Look: <img src=x onerror="document.title='owned'"> <script>document.title='owned'</script>
[a link](javascript:document.title='owned') and [another](https://example.com/ok) and `<b>code</b>`

```html
</code></pre><script>document.title='owned'</script>
```
**<i>bold</i>**"""


@pytest.fixture(scope="module")
def one_loop():
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@pytest.fixture(scope="module")
def browser(one_loop):
    """One browser for all tests, because starting it is slow."""

    async def begin():
        driver = await playwright.async_playwright().start()
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        return driver, await driver.chromium.launch(executable_path=CHROMIUM, args=options)

    async def end(driver, browser):
        await browser.close()
        await driver.stop()

    driver, browser = one_loop.run_until_complete(begin())
    yield browser
    one_loop.run_until_complete(end(driver, browser))


def in_browser(test):
    """Run an async test in the event loop of the browser."""

    def run(browser, one_loop, tmp_path):
        async def whole():
            context = await browser.new_context(viewport={"width": 390, "height": 780})
            context.set_default_timeout(40_000)
            page = await context.new_page()
            problems = []
            page.on("pageerror", lambda problem: problems.append(str(problem)))
            try:
                await test(page, tmp_path)
            finally:
                await context.close()
            assert problems == []

        one_loop.run_until_complete(asyncio.wait_for(whole(), 100))

    run.__name__, run.__doc__ = test.__name__, test.__doc__
    return run


async def write(page, text):
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def texts(page, side):
    return await page.locator(f".message.{side} .text").all_inner_texts()


async def shows(page, side, *wanted):
    """Wait until exactly these messages are shown."""
    await page.wait_for_function(
        """([side, wanted]) => JSON.stringify([...document.querySelectorAll(`.message.${side} .text`)]
           .map((one) => one.innerText)) === JSON.stringify(wanted)""",
        arg=[side, list(wanted)],
    )


@in_browser
async def test_a_conversation_survives_a_reload(page, tmp_path):
    channel = WebChannel(title="Helper", store=tmp_path / "c.db")

    async def answer(message):
        here = Address("web", message.chat_id)
        await channel.typing(here)
        await channel.send(here, OutboundMessage(f"**You** said {message.text}"), key=f"r-{message.message_id}")

    deliver = RecordingGateway(answer)
    async with served(channel, deliver=deliver) as url:
        await page.goto(url)
        await page.wait_for_selector("#empty:visible")
        await write(page, "hello")
        await shows(page, "out", "You said hello")
        await write(page, "two\nlines <b>here</b>")
        await shows(page, "out", "You said hello", "You said two\nlines <b>here</b>")
        assert await page.locator(".message .who").all_inner_texts() == ["You", "Helper"] * 2
        assert await page.locator(".message.out strong").count() == 2
        await page.reload()
        await shows(page, "in", "hello", "two\nlines <b>here</b>")
        await shows(page, "out", "You said hello", "You said two\nlines <b>here</b>")
        assert len(deliver.messages) == 2
        assert len({message.chat_id for message in deliver.messages}) == 1


@in_browser
async def test_the_speaker_of_each_message_is_shown(page, tmp_path):
    channel = WebChannel(title="Helper", store=tmp_path / "c.db")

    async def answer(message):
        here = Address("web", message.chat_id)
        for number, speaker in enumerate(["Ada", "Ada", "<b>Ben</b>", ""]):
            await channel.send(here, OutboundMessage(str(number), speaker=speaker), key=f"r{number}")
        await channel.typing(here)

    async with served(channel, deliver=RecordingGateway(answer)) as url:
        await page.goto(url)
        await write(page, "hello")
        await shows(page, "out", "0", "1", "2", "3")
        shown = await page.locator(".message.out:not(.follows) .who").all_text_contents()
        assert shown == ["Ada", "<b>Ben</b>", "Helper"]


@in_browser
async def test_a_reply_cannot_inject_markup(page, tmp_path):
    channel = WebChannel(title="Helper", store=tmp_path / "c.db")

    async def answer(message):
        await channel.send(Address("web", message.chat_id), OutboundMessage(HOSTILE), key="r")

    async with served(channel, deliver=RecordingGateway(answer)) as url:
        await page.goto(url)
        await write(page, "<img src=x onerror=\"document.title='owned'\">")
        await page.wait_for_selector(".message.out pre")
        assert await page.title() == "Helper"
        assert await page.locator(".message img, .message script, .message b, .message i").count() == 0
        links = await page.locator(".message a").evaluate_all("all => all.map((one) => one.href)")
        assert links == ["https://example.com/ok"]
        assert "<img src=x" in (await texts(page, "out"))[0]


LINKS = [
    ("[bank.example](https://evil.example/login)", "bank.example (evil.example)"),
    ("[https://bank.example/login](https://evil.example)", "https://bank.example/login (evil.example)"),
    ("[Log in at BANK.example now](https://evil.example)", "Log in at BANK.example now (evil.example)"),
    ("[bank.example](https://bank.example@evil.example)", "bank.example (evil.example)"),
    ("[bank.example](https://bank.example.evil.example)", "bank.example (bank.example.evil.example)"),
    ("[ban\u200bk．example](https://evil.example)", "ban\\u200bk．example (evil.example)"),
    ("[bank。example](https://evil.example)", "bank。example (evil.example)"),
    ("[192.0.2.1](https://evil.example)", "192.0.2.1 (evil.example)"),
    ("[bank.example](https://xn--bnk-6cd.example)", "bank.example (xn--bnk-6cd.example)"),
    ("[b\u0430nk.example](https://b\u0430nk.example)", "b\u0430nk.example (xn--bnk-6cd.example)"),
    ("[our page](https://b\u0430nk.example)", "our page (xn--bnk-6cd.example)"),
    ("https://b\u0430nk.example/x", "https://b\u0430nk.example/x (xn--bnk-6cd.example)"),
    ("https://bank.example@evil.example/x", "https://bank.example@evil.example/x (evil.example)"),
    ("[bank.example](https://bank.example/login)", "bank.example"),
    ("[www.bank.example](https://bank.example:8443/a.b)", "www.bank.example"),
    ("[the page](https://example.com/ok)", "the page"),
    ("https://example.com/files/readme.md?to=bank.example.", "https://example.com/files/readme.md?to=bank.example"),
    ("[broken](https://[)", "broken"),
]


@in_browser
async def test_a_link_whose_text_is_another_host_shows_the_real_one(page, tmp_path):
    channel = WebChannel(title="Helper", store=tmp_path / "c.db")
    text = "\n".join(f"- {written}" for written, _ in LINKS)

    async def answer(message):
        await channel.send(Address("web", message.chat_id), OutboundMessage(text), key="r")

    async with served(channel, deliver=RecordingGateway(answer)) as url:
        await page.goto(url)
        await write(page, "links, please")
        await page.wait_for_selector(".message.out li")
        shown = await page.locator(".message.out li").all_text_contents()
    assert [line.removesuffix(".") for line in shown] == [expected for _, expected in LINKS]


@in_browser
async def test_messages_written_while_disconnected_arrive_once_and_in_order(page, tmp_path):
    channels = [WebChannel(store=tmp_path / "c.db") for _ in range(2)]
    deliver = RecordingGateway()
    host = HttpServer([channels[0]], port=0, grace=1)
    await channels[0].start(deliver)
    await host.start()
    await page.goto(host.url)
    await write(page, "one")
    await wait_until(lambda: deliver.texts == ["one"])
    await host.stop()
    await channels[0].stop()
    await page.wait_for_selector("#status[data-state=offline]")
    await write(page, "two")
    await write(page, "three")
    assert await page.locator(".message.waiting").count() == 2
    await channels[1].send(Address("web", deliver.messages[0].chat_id), OutboundMessage("while away"), key="r1")
    host = HttpServer([channels[1]], port=host.port, grace=1)
    await channels[1].start(deliver)
    await host.start()
    await shows(page, "out", "while away")
    await page.wait_for_selector(".message.waiting", state="detached")
    await shows(page, "in", "one", "two", "three")
    assert deliver.texts == ["one", "two", "three"]
    await page.reload()
    await shows(page, "in", "one", "two", "three")
    assert deliver.texts == ["one", "two", "three"]
    await host.stop()
    await channels[1].stop()


@in_browser
async def test_messages_written_offline_are_sent_after_a_reload(page, tmp_path):
    channel, deliver, refuse = WebChannel(store=tmp_path / "c.db"), RecordingGateway(), [True]

    async def moody(message):
        if refuse:
            raise RuntimeError("the disk is full")
        return await deliver(message)

    async with served(channel, deliver=moody) as url:
        await page.goto(url)
        await write(page, "do not lose me")
        await page.wait_for_selector(".message.waiting")
        await page.reload()
        await page.wait_for_selector(".message.waiting")
        assert deliver.messages == []
        refuse.clear()
        await page.wait_for_selector(".message.waiting", state="detached")
        await shows(page, "in", "do not lose me")
        kept = await page.evaluate("() => Object.keys(localStorage).filter((key) => key.includes(':out:'))")
        assert kept == []
    assert deliver.texts == ["do not lose me"]


@in_browser
async def test_a_run_is_shown_and_can_be_stopped(page, tmp_path):
    channel, deliver = WebChannel(store=tmp_path / "c.db"), RecordingGateway()
    async with served(channel, deliver=deliver) as url:
        await page.goto(url)
        await write(page, "count to a million")
        await wait_until(lambda: deliver.messages)
        here = Address("web", deliver.messages[0].chat_id)
        await channel.typing(here)
        asked = deliver.messages[0].message_id
        channel.activity_changed(here, asked, 0)
        await channel.show_steps(here, "steps", asked, "", [Step("1", "count", "counting")])
        await page.wait_for_selector("#working:visible")
        await page.locator(".step", has_text="counting").wait_for()
        await channel.show_steps(here, "steps", asked, "", [Step("1", "count", "still counting")])
        await page.locator(".step", has_text="still counting").wait_for()
        await page.click("#stop")
        await wait_until(lambda: deliver.texts == ["count to a million", "/stop"])
        channel.activity_changed(here, "", 0)
        await channel.send(here, OutboundMessage("Stopped.", asked), key="r")
        await shows(page, "out", "Stopped.")
        assert await page.locator(".message.out .steps summary").all_inner_texts() == ["1 step"]
        await page.wait_for_selector("#working", state="hidden")


class Held(ScriptedModel):
    """A model that calls a tool, then repeats the message once ``go`` is set."""

    def __init__(self):
        super().__init__()
        self.go = asyncio.Event()

    async def complete(self, request):
        last = request.messages[-1]
        if last.role == "user":
            return reply("", tool_calls=[ToolCall(f"c{len(request.messages)}", "note", {"text": last.content})])
        await self.go.wait()
        return reply(f"echo {[m.content for m in request.messages if m.role == 'user'][-1]}")

    async def stream(self, request):
        yield await self.complete(request)


@tool
def note(text: str, tags: str = "") -> str:
    """Note it."""
    return "noted"


@asynccontextmanager
async def office(folder, model, port=0):
    channel = WebChannel(title="Helper", store=folder / "c.db")
    host = HttpServer([channel], port=port, grace=1)
    gateway = Gateway(
        Agent("bot", llm=model, tools=[note]),
        [channel],
        mailbox=Mailbox(folder / "m.db"),
        sessions=SqliteSessionStore(folder / "s.db"),
        servers=[host],
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hookline.channels.activity.TYPING_INTERVAL", 600.0)  # the page must not depend on it
        await gateway.start()
        try:
            yield host
        finally:
            await gateway.stop(grace=0)


async def says(page, text):
    """Wait until the activity line shows this text."""
    await page.wait_for_function("text => document.getElementById('working-text').textContent === text", arg=text)
    assert await page.locator("#stop").is_visible() == bool(text)


@in_browser
async def test_the_page_shows_the_activity_while_more_messages_are_sent(page, tmp_path):
    model = Held()
    async with office(tmp_path, model) as host:
        await page.goto(host.url)
        await write(page, "first")
        await says(page, "Helper is working")
        await page.locator(".step .what", has_text="note: first").wait_for()
        await write(page, "/help")
        await page.wait_for_selector(".message.out:nth-child(4)")
        await says(page, "Helper is working")
        await write(page, "second")
        await says(page, "Helper is working · 1 message waiting")
        await page.reload()
        await says(page, "Helper is working · 1 message waiting")
        await page.locator(".step .what", has_text="note: first").wait_for()
    await page.wait_for_selector("#working", state="hidden")
    async with office(tmp_path, model, host.port):
        await says(page, "Helper is working · 1 message waiting")
        model.go.set()
        await page.get_by_text("echo second").wait_for()
        await says(page, "")
        replies = page.locator(".message.out")
        assert [text.split(":")[0] for text in await replies.locator(".text").all_inner_texts()] == [
            "/stop",
            "echo first",
            "echo second",
        ]
        assert await page.locator(".message .quote").all_inner_texts() == ["first"]
        assert await page.locator(".steps.live").count() == 0
        for word in ("first", "second"):  # the steps are below their own reply
            below = replies.filter(has_text=f"echo {word}").locator(".steps .what")
            assert set(await below.all_text_contents()) == {f"note: {word}"}
        await write(page, "third")
        await page.get_by_text("echo third").wait_for()
        assert await page.locator(".message .quote").count() == 1


@in_browser
async def test_the_command_new_empties_the_page_and_keeps_later_messages(page, tmp_path):
    model = Held()
    model.go.set()
    async with office(tmp_path, model) as host:
        await page.goto(host.url)
        await write(page, "old")
        await page.get_by_text("echo old").wait_for()
        await write(page, "/new")
        await page.wait_for_selector("#empty:visible")
        assert await page.locator(".message").count() == 0
        model.go.clear()
        await write(page, "older")
        await says(page, "Helper is working")
        await write(page, "/new")
        await page.get_by_text("after the current run").wait_for()
        await write(page, "new")
        await says(page, "Helper is working · 2 messages waiting")
        model.go.set()
        await page.get_by_text("echo new").wait_for()
        await shows(page, "in", "new")
        await page.reload()
        await page.get_by_text("echo new").wait_for()
        await shows(page, "in", "new")
        assert await page.locator(".message .quote").count() == 0
    kept = ChatStore(tmp_path / "c.db")
    (chat,) = kept.changed("web", 0)[1]
    assert "echo old" in [one.text for one in kept.since("web", chat)]


@in_browser
async def test_the_active_speaker_is_shown_after_a_reply_to_a_command(page, tmp_path):
    channel, deliver = WebChannel(title="Helper", store=tmp_path / "c.db"), RecordingGateway()
    async with served(channel, deliver=deliver) as url:
        await page.goto(url)
        await write(page, "a poem")
        await write(page, "/help")
        await wait_until(lambda: len(deliver.messages) == 2)
        here, (poem, help) = Address("web", deliver.messages[0].chat_id), [m.message_id for m in deliver.messages]
        channel.activity_changed(here, poem, 0)
        await channel.show_steps(here, "p", poem, "poet", [Step("1", "rhyme")])
        await says(page, "poet is working")
        await channel.send(here, OutboundMessage("these commands", help), key="h")
        await page.get_by_text("these commands").wait_for()
        await says(page, "poet is working")
        await channel.send(here, OutboundMessage("that of nobody", poem), key="r")
        await says(page, "Helper is working")


@in_browser
async def test_the_page_asks_for_the_token_once(page, tmp_path):
    channel, deliver = WebChannel(token="the token of this test", store=tmp_path / "c.db"), RecordingGateway()
    async with served(channel, deliver=deliver) as url:
        await page.goto(url)
        await page.wait_for_selector("#login:visible")
        await page.fill("#token", "not the token")
        await page.press("#token", "Enter")
        await page.wait_for_selector("#wrong:visible")
        await page.fill("#token", "the token of this test")
        await page.press("#token", "Enter")
        await page.wait_for_selector("#status[data-state=online]")
        await write(page, "hello")
        await wait_until(lambda: deliver.texts == ["hello"])
        await page.reload()
        await shows(page, "in", "hello")
        assert await page.locator("#login").is_hidden()
        assert await page.evaluate("document.cookie") == ""


@in_browser
async def test_two_tabs_share_a_conversation(page, tmp_path):
    channel, deliver = WebChannel(store=tmp_path / "c.db"), RecordingGateway()
    async with served(channel, deliver=deliver) as url:
        await page.goto(url)
        other = await page.context.new_page()
        await other.goto(url)
        await write(page, "from one")
        await shows(other, "in", "from one")
        await write(other, "from the other")
        await shows(page, "in", "from one", "from the other")
        await page.fill("#text", "x" * 32_001)
        await page.press("#text", "Enter")
        await page.wait_for_selector("#note:visible")
    assert deliver.texts == ["from one", "from the other"]


@in_browser
async def test_a_pending_call_has_buttons_that_decide(page, tmp_path):
    channel = WebChannel(title="Helper", store=tmp_path / "c.db")
    host = HttpServer([channel], port=0, grace=1)
    async with ApprovalSetup(tmp_path, ("*",), channel=channel, servers=[host]) as setup:
        await page.goto(host.url)
        await write(page, f"write notes/a.txt notes/b.txt/{'x' * 200}")
        pager = page.locator(".pager", has_text="1 of 2 calls wait for your answer")
        await pager.wait_for()
        await says(page, "Waiting for your answer")
        await page.reload()
        await pager.wait_for()
        asked = page.locator(".ask")
        assert await asked.count() == 1
        assert '"path": "notes/' in await asked.locator("pre").inner_text()
        hidden = "(pre) => pre.scrollWidth - pre.clientWidth"
        assert await asked.locator("pre").evaluate(hidden) == 0
        card = await asked.inner_text()
        first = "notes/a.txt" if "notes/a.txt" in card else f"notes/b.txt/{'x' * 200}"
        assert "bot wants to call write" in card
        assert "Without an answer by" in card
        assert "/" not in card.replace(f"notes/b.txt/{'x' * 200}", "").replace("notes/a.txt", "")  # no commands
        local = "new Date(document.querySelector('.ask time').dateTime).toLocaleTimeString([], {timeStyle: 'short'})"
        assert await page.evaluate(local) in card
        assert await page.title() == "(2) Helper"
        await asked.get_by_role("button", name="Approve").click()
        await page.get_by_text("write runs (approved by you).").wait_for()
        await pager.wait_for(state="detached")
        await page.fill(".ask .why", "not this one")
        await page.get_by_role("button", name="Deny").click()
        await page.get_by_text("write does not run (denied by you: not this one).").wait_for()
        await page.get_by_text("The tool said").wait_for()
        await asked.wait_for(state="detached")
        assert [text for text in await texts(page, "in") if text.startswith("/")] == []
        assert [path for path, _ in setup.wrote] == [first]
        (chat,) = {row.by for row in setup.store.rows()}
        assert chat.startswith("web:web-")


@in_browser
async def test_a_reply_is_shown_while_it_is_written(page, tmp_path):
    channel, deliver = WebChannel(title="Helper", store=tmp_path / "c.db"), RecordingGateway()
    async with served(channel, deliver=deliver) as url:
        await page.goto(url)
        await write(page, "a poem")
        await wait_until(lambda: deliver.messages)
        here, poem = Address("web", deliver.messages[0].chat_id), deliver.messages[0].message_id
        channel.activity_changed(here, poem, 0)
        channel.draft_changed(here, Draft(poem, "Poet", "Roses"))
        await shows(page, "out", "Roses")
        channel.draft_changed(here, Draft(poem, "Poet", "Roses **are** <b>red"))
        await shows(page, "out", "Roses are <b>red")
        await page.reload()
        await shows(page, "out", "Roses are <b>red")
        channel.draft_changed(here, Draft(poem, "Poet", ""))  # the model is asked again
        await shows(page, "out")
        channel.draft_changed(here, Draft(poem, "Poet", "Violets"))
        await shows(page, "out", "Violets")
        await channel.show_steps(here, "s", poem, "Poet", [Step("1", "rhyme", state="ok")])
        await channel.send(here, OutboundMessage("Violets are blue", poem, speaker="Poet"), key="r")
        await shows(page, "out", "Violets are blue")
        assert await page.locator(".draft").count() == 0
        assert await page.locator(".message.out .who").all_text_contents() == ["Poet"]
        assert await page.locator(".message.out .steps").count() == 1
        await page.reload()
        await shows(page, "out", "Violets are blue")
        assert await page.locator(".message.out .steps").count() == 1


@in_browser
async def test_a_blocked_call_is_a_card_with_its_verdict_and_without_the_text_for_the_model(page, tmp_path):
    @guard(BEFORE_TOOL)
    def careful(ctx, payload):
        return HookResult.block("Use another tool, dear model.", reason="files matter <b>")

    def play(request):
        return call("note", text="x") if request.messages[-1].role == "user" else "I may not."

    channel = WebChannel(title="Helper", store=tmp_path / "c.db")
    host = HttpServer([channel], port=0, grace=1)
    gateway = Gateway(
        Agent("bot", llm=ScriptedModel([play], loop=True), tools=[note], hooks=[careful]),
        [channel],
        mailbox=Mailbox(tmp_path / "m.db"),
        sessions=SqliteSessionStore(tmp_path / "s.db"),
        servers=[host],
    )
    await gateway.start()
    try:
        await page.goto(host.url)
        await write(page, "note it")
        await shows(page, "out", "I may not.")
        await page.locator(".steps summary", has_text="1 step, blocked").click()
        card = await page.locator(".message.out", has_text="I may not.").locator(".step").inner_text()
        assert [line for line in card.split("\n") if line] == ["note blocked", "careful blocked: files matter <b>"]
        assert "dear model" not in await page.content()
    finally:
        await gateway.stop(grace=0)


@in_browser
async def test_people_attach_files_and_the_agent_sees_them(page, tmp_path):
    png = b"\x89PNG\r\n\x1a\n" + b"pixels" * 200_000  # of more than one part
    model = ScriptedModel(["A cat."], loop=True)
    channel = WebChannel(title="Helper", store=tmp_path / "c.db", max_file=2_000_000)
    gateway = Gateway(
        Agent("helper", llm=model),
        [channel],
        mailbox=Mailbox(tmp_path / "gateway.db"),
        sessions=SqliteSessionStore(tmp_path / "sessions.db"),
        servers=[HttpServer([channel], port=0)],
    )
    await gateway.start()
    try:
        await page.goto(gateway.urls[0])
        large = {"name": "film.mp4", "mimeType": "video/mp4", "buffer": b"x" * 2_000_001}
        await page.set_input_files("#picker", [large])
        await page.wait_for_function("() => document.getElementById('note').textContent.includes('at most 2.00 MB')")
        photo = {"name": "<b>cat.png", "mimeType": "image/png", "buffer": png}
        notes = {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"some text"}
        await page.set_input_files("#picker", [photo, notes])
        await page.wait_for_function("() => !document.getElementById('send').disabled")
        assert await page.locator("#files .name").all_inner_texts() == ["<b>cat.png", "notes.txt"]
        await page.click("#files li:nth-child(2) button")
        await write(page, "What is this?")
        await shows(page, "in", "[<b>cat.png] What is this?")
        await shows(page, "out", "A cat.")
        assert await page.locator("#files li").count() == 0
    finally:
        await gateway.stop(grace=0)
    (attached,) = model.requests[0].messages[-1].attachments
    assert (attached.name, attached.media_type, attached.data) == ("<b>cat.png", "image/png", png)
