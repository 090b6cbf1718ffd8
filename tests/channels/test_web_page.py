"""The page of the web chat, in a real browser."""

import asyncio
import os
import shutil

import pytest

from hookline import OutboundMessage
from hookline.channels.http import HttpHost
from hookline.channels.protocol import Address
from hookline.channels.web import WebChannel

from .rig import Remembering, served, until

CHROMIUM = os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("google-chrome")
playwright = pytest.importorskip("playwright.async_api", reason="the browser tests need: pip install playwright")
pytestmark = pytest.mark.skipif(
    not CHROMIUM, reason="the browser tests need Chromium: install it (apt install chromium), or set CHROMIUM"
)

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
    """One browser for all tests: to start it takes most of the time."""

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
    """Run an async test in the loop that the browser lives in."""

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
async def test_a_talk_that_survives_a_reload(page, tmp_path):
    channel = WebChannel(title="Helper", store=tmp_path / "c.db")

    async def answer(message):
        here = Address("web", message.chat_id)
        await channel.typing(here)
        await channel.send(here, OutboundMessage(f"**You** said {message.text}"), key=f"r-{message.message_id}")

    deliver = Remembering(answer)
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
async def test_who_speaks_is_shown_and_two_speakers_are_told_apart(page, tmp_path):
    channel = WebChannel(title="Helper", store=tmp_path / "c.db")

    async def answer(message):
        here = Address("web", message.chat_id)
        for number, speaker in enumerate(["Ada", "Ada", "<b>Ben</b>", ""]):
            await channel.send(here, OutboundMessage(str(number), speaker=speaker), key=f"r{number}")
        await channel.typing(here)

    async with served(channel, deliver=Remembering(answer)) as url:
        await page.goto(url)
        await write(page, "hello")
        await shows(page, "out", "0", "1", "2", "3")
        shown = await page.locator(".message.out:not(.follows) .who").all_text_contents()
        assert shown == ["Ada", "<b>Ben</b>", "Helper"]


@in_browser
async def test_nothing_in_a_reply_is_markup_of_the_page(page, tmp_path):
    channel = WebChannel(title="Helper", store=tmp_path / "c.db")

    async def answer(message):
        await channel.send(Address("web", message.chat_id), OutboundMessage(HOSTILE), key="r")

    async with served(channel, deliver=Remembering(answer)) as url:
        await page.goto(url)
        await write(page, "<img src=x onerror=\"document.title='owned'\">")
        await page.wait_for_selector(".message.out pre")
        assert await page.title() == "Helper"
        assert await page.locator(".message img, .message script, .message b, .message i").count() == 0
        links = await page.locator(".message a").evaluate_all("all => all.map((one) => one.href)")
        assert links == ["https://example.com/ok"]
        assert "<img src=x" in (await texts(page, "out"))[0]


@in_browser
async def test_what_is_written_while_the_server_is_away_arrives_once_and_in_order(page, tmp_path):
    channels = [WebChannel(store=tmp_path / "c.db") for _ in range(2)]
    deliver = Remembering()
    host = HttpHost([channels[0]], port=0, grace=1)
    await channels[0].start(deliver)
    await host.start()
    await page.goto(host.url)
    await write(page, "one")
    await until(lambda: deliver.texts == ["one"])
    await host.stop()
    await channels[0].stop()
    await page.wait_for_selector("#status[data-state=offline]")
    await write(page, "two")
    await write(page, "three")
    assert await page.locator(".message.waiting").count() == 2
    await channels[1].send(Address("web", deliver.messages[0].chat_id), OutboundMessage("while away"), key="r1")
    host = HttpHost([channels[1]], port=host.port, grace=1)
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
async def test_what_was_written_offline_is_sent_after_a_reload(page, tmp_path):
    channel, deliver, refuse = WebChannel(store=tmp_path / "c.db"), Remembering(), [True]

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
async def test_work_is_shown_and_can_be_stopped(page, tmp_path):
    channel, deliver = WebChannel(store=tmp_path / "c.db"), Remembering()
    async with served(channel, deliver=deliver) as url:
        await page.goto(url)
        await write(page, "count to a million")
        await until(lambda: deliver.messages)
        here = Address("web", deliver.messages[0].chat_id)
        await channel.typing(here)
        progress = await channel.send(here, OutboundMessage("· counting"), key="")
        await page.wait_for_selector("#working:visible")
        await page.wait_for_selector(".message.progress")
        await channel.edit(here, progress, OutboundMessage("· counting\n· still counting"))
        await shows(page, "out", "· counting\n· still counting")
        await page.click("#stop")
        await until(lambda: deliver.texts == ["count to a million", "/stop"])
        await channel.send(here, OutboundMessage("Stopped."), key="r")
        await shows(page, "out", "· counting\n· still counting", "Stopped.")
        await page.wait_for_selector("#working", state="hidden")


@in_browser
async def test_the_token_is_asked_for_once_on_the_page(page, tmp_path):
    channel, deliver = WebChannel(token="the token of this test", store=tmp_path / "c.db"), Remembering()
    async with served(channel, deliver=deliver) as url:
        await page.goto(url)
        await page.wait_for_selector("#door:visible")
        await page.fill("#token", "not the token")
        await page.press("#token", "Enter")
        await page.wait_for_selector("#wrong:visible")
        await page.fill("#token", "the token of this test")
        await page.press("#token", "Enter")
        await page.wait_for_selector("#status[data-state=online]")
        await write(page, "hello")
        await until(lambda: deliver.texts == ["hello"])
        await page.reload()
        await shows(page, "in", "hello")
        assert await page.locator("#door").is_hidden()
        assert await page.evaluate("document.cookie") == ""


@in_browser
async def test_two_tabs_are_in_one_conversation(page, tmp_path):
    channel, deliver = WebChannel(store=tmp_path / "c.db"), Remembering()
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
