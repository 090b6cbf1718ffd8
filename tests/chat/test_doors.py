"""The chat component in a real browser, the same at both doors: the web channel and the console."""

import pytest

pytest.importorskip("playwright.async_api", reason="the browser tests need: pip install playwright")

from ..chromium import needs_chromium
from ..server.console.browser import PHONE, accessibility_problems, expect, fits
from .doors import DOORS, talking

pytestmark = [needs_chromium, pytest.mark.asyncio(loop_scope="module"), pytest.mark.parametrize("door", DOORS)]
IN_VIEW = """() => {
    const [ask, composer] = [".ask", ".composer"].map((each) => document.querySelector(each).getBoundingClientRect());
    const approve = document.querySelector(".ask .yes").getBoundingClientRect();
    return ask.top >= 0 && ask.bottom <= composer.top && approve.bottom <= ask.bottom && composer.bottom <= innerHeight;
}"""
AT_END = """() => {
    const each = document.getElementById("scroll");
    return each.scrollHeight - each.scrollTop - each.clientHeight < 5;
}"""


async def test_a_call_in_a_long_conversation_is_docked_above_the_composer(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        await talk.say("long")
        await expect(talk.replies).to_contain_text("Paragraph 11.")
        await talk.say("notes/a.txt")
        await expect(talk.ask).to_contain_text("clerk wants to call delete")
        await expect(talk.ask).to_contain_text("careful asks: May this file go? (files matter)")
        await expect(talk.page.locator("#say")).to_contain_text("waits for your answer")
        assert await talk.page.evaluate(IN_VIEW)
        await talk.page.wait_for_function(AT_END)
        await expect(talk.page.locator("#text")).to_be_focused()  # a call does not take the focus from a message
        await talk.ask.get_by_role("button", name="Approve").click()
        await expect(talk.replies.last).to_have_text("notes/a.txt is gone")
        await expect(talk.ask).to_have_count(0)
        await expect(talk.page.locator(".steps").last).to_contain_text("approved")
        await talk.page.wait_for_function(AT_END)
        assert talk.office.deleted == ["notes/a.txt"]


@pytest.mark.slow
async def test_a_call_is_edited_or_denied_with_a_reason_also_with_keys(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        await talk.say("a.txt")
        await talk.ask.get_by_role("button", name="Edit").click()
        editor = talk.ask.locator("textarea")
        await expect(editor).to_be_focused()
        await editor.fill("{")
        await talk.page.click("text=Run with these arguments")
        await expect(talk.ask.locator(".problem")).to_contain_text("not JSON")
        await editor.fill('["b.txt"]')
        await talk.page.click("text=Run with these arguments")
        await expect(talk.ask.locator(".problem")).to_contain_text("must be a JSON object")
        await editor.fill('{"path": "b.txt"}')
        await talk.page.click("text=Run with these arguments")
        await expect(talk.replies.last).to_have_text("b.txt is gone")
        await talk.say("c.txt")
        await expect(talk.ask).to_be_visible()
        await talk.ask.focus()
        await talk.page.keyboard.press("d")
        await expect(talk.ask.locator(".why")).to_be_focused()
        await talk.page.keyboard.type("keep it")
        await talk.page.keyboard.press("Escape")
        await expect(talk.ask).to_be_focused()
        await talk.page.keyboard.press("d")
        await talk.page.keyboard.press("Enter")
        await expect(talk.replies.last).to_contain_text("keep it")
        await talk.say("d.txt")
        await expect(talk.ask).to_be_visible()
        await talk.ask.focus()
        await talk.page.keyboard.press("a")
        await expect(talk.replies.last).to_have_text("d.txt is gone")
        assert talk.office.deleted == ["b.txt", "d.txt"]


@pytest.mark.slow
async def test_an_approval_can_hold_for_the_conversation(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        await talk.say("a.txt")
        await talk.ask.get_by_label("How long the approval holds").select_option("session")
        await talk.ask.get_by_role("button", name="Approve").click()
        await expect(talk.replies.last).to_have_text("a.txt is gone")
        await talk.say("a.txt")
        await expect(talk.replies.filter(has_text="a.txt is gone")).to_have_count(2)
        assert talk.office.deleted == ["a.txt", "a.txt"]


@pytest.mark.slow
async def test_replies_have_tables_and_no_text_can_hide_or_turn_around(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        await talk.say("rich")
        rows = talk.page.locator(".text table tr")
        await expect(rows).to_have_count(3)
        cells = [await row.locator("th, td").all_text_contents() for row in await rows.all()]
        assert cells == [
            ["item", "euros", "due"],
            ["bricks | tiles", "1,480", "a|b"],
            ["\\u202egnp.exe", """<img src=x onerror="document.title='owned'">""", ""],
        ]
        assert await rows.nth(1).locator("td").nth(1).evaluate("each => getComputedStyle(each).textAlign") == "end"
        hebrew = talk.page.locator(".text p", has_text="שלום")
        assert await hebrew.evaluate("each => getComputedStyle(each).direction") == "rtl"
        assert await talk.page.locator(".text img").count() == 0
        await talk.say("outside\u202egnp")
        await expect(talk.page.locator(".message.in .text").last).to_have_text("outside\\u202egnp")
        await expect(talk.page.locator(".steps").last).to_contain_text("1 step, blocked")
        await talk.page.locator(".steps").last.locator("summary").first.click()
        verdict = talk.page.locator(".verdict").last
        await expect(verdict).to_have_text("careful blocked: outside of \\u202ethe folder")
        await expect(verdict.locator(".gate .cut")).to_have_count(1)
        assert "\u202e" not in await talk.page.inner_text("body")


@pytest.mark.slow
async def test_the_opening_screen_offers_what_could_be_written_first(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        offered = talk.page.locator("#suggestions button")
        await expect(offered).to_have_text(["say hello", "What is <b>old</b>?"])
        await expect(talk.page.locator("#about")).to_contain_text("Keeps the files")
        await offered.first.click()
        await expect(talk.replies).to_have_text("hello")
        await expect(talk.page.locator("#empty")).to_be_hidden()
        await expect(talk.page.locator("#text")).to_be_focused()


@pytest.mark.slow
async def test_a_lost_connection_is_said_and_what_is_written_meanwhile_is_sent_once(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        banner, status = talk.page.locator("#banner"), talk.page.locator("#status")
        await expect(status).to_have_text("Connected")
        await talk.say("say one")
        await expect(talk.replies).to_have_text("one")
        await talk.proxy.cut()
        await expect(banner).to_contain_text("The connection is lost.")
        await talk.say("say two")
        await expect(talk.page.locator(".message.waiting")).to_contain_text("Will be sent when you are online")
        await talk.page.wait_for_timeout(300)
        await talk.proxy.mend()
        await expect(talk.replies).to_have_text(["one", "two"])
        await expect(banner).to_be_hidden()
        await expect(talk.page.locator(".message.waiting")).to_have_count(0)
        await talk.page.reload()
        await expect(talk.replies).to_have_text(["one", "two"])
        await expect(talk.page.locator(".message.in .text")).to_have_text(["say one", "say two"])


@pytest.mark.slow
async def test_a_server_that_hangs_is_a_lost_connection(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        banner, status = talk.page.locator("#banner"), talk.page.locator("#status")
        await expect(status).to_have_text("Connected")
        talk.proxy.flows.clear()
        await expect(banner).to_contain_text("The connection is lost.", timeout=6_000)  # it says so after 3 s
        await expect(status).to_have_attribute("data-state", "offline")
        talk.proxy.flows.set()
        await expect(status).to_have_text("Connected")
        await expect(banner).to_be_hidden()
        await talk.say("say hello")
        await expect(talk.replies).to_have_text("hello")


@pytest.mark.slow
async def test_conversations_are_kept_apart_and_are_a_drawer_on_a_phone(browser, tmp_path, door):
    async with talking(browser, tmp_path, door, **PHONE) as talk:
        for words in ("first", "second"):
            await expect(talk.page.locator("#empty")).to_be_visible()
            await talk.say(f"say {words}")
            await expect(talk.replies).to_have_text(words)
            if words == "first":
                await talk.page.click("#fresh")
        listed = talk.page.locator("#chat-list li")
        await expect(listed).to_have_count(2)
        await expect(listed.first).to_be_hidden()
        assert await fits(talk.page)
        await talk.page.click("#open-chats")
        await expect(listed.locator("b")).to_have_text(["say second", "say first"])
        await listed.last.locator("a, button").click()
        await expect(talk.replies).to_have_text("first")
        await expect(listed.first).to_be_hidden()
        await talk.page.reload()
        await expect(talk.replies).to_have_text("first")
        await talk.say("long")
        await expect(talk.replies.last).to_contain_text("Paragraph 11.")
        await talk.say(f"{'long/' * 60}x.txt")
        await expect(talk.ask).to_be_visible()
        assert await talk.page.evaluate(IN_VIEW)
        assert await fits(talk.page)


@pytest.mark.slow
async def test_a_personality_is_chosen(browser, tmp_path, door):
    async with talking(browser, tmp_path, door, personalities=True) as talk:
        choice = talk.page.locator("#speaker")
        await expect(choice).to_have_value("ada")
        await expect(talk.page.locator("#suggestions button")).to_have_text("say I am ada")
        await choice.select_option("ben")
        await expect(choice).to_have_value("ben")
        await expect(talk.page.locator("#status")).to_have_text("Connected")
        await talk.say("say hello")
        await expect(talk.page.locator(".message.out", has_text="hello").locator(".who")).to_have_text(
            "Ben" if door == "web channel" else "ben"
        )
        await expect(choice).to_have_value("ben")


@pytest.mark.slow
async def test_a_reader_who_has_scrolled_up_stays_there(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        await talk.say("long")
        await expect(talk.replies).to_contain_text("Paragraph 11.")
        await talk.page.wait_for_function(AT_END)
        await talk.say("a.txt")
        await expect(talk.ask).to_be_visible()
        await talk.page.evaluate("document.getElementById('scroll').scrollTop = 0")
        await talk.page.wait_for_timeout(100)
        await talk.ask.get_by_role("button", name="Approve").click()
        await expect(talk.page.locator("#latest")).to_be_visible()
        assert await talk.page.evaluate("document.getElementById('scroll').scrollTop") == 0
        await talk.page.click("#latest")
        await talk.page.wait_for_function(AT_END)


@pytest.mark.slow
async def test_axe_finds_nothing_serious_in_a_conversation_in_light_and_dark(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        await expect(talk.page.locator("#suggestions button").first).to_be_visible()
        assert await accessibility_problems(talk.page) == []
        await talk.say("rich")
        await talk.say("outside.txt")
        await expect(talk.page.locator(".steps").last).to_contain_text("1 step, blocked")
        await talk.page.locator(".steps summary").first.click()
        await talk.say("a.txt")
        await expect(talk.ask).to_be_visible()
        for scheme in ("light", "dark"):
            await talk.page.emulate_media(color_scheme=scheme)
            assert await accessibility_problems(talk.page) == []


@pytest.mark.slow
async def test_files_are_attached_and_reach_the_agent(browser, tmp_path, door):
    async with talking(browser, tmp_path, door) as talk:
        names = ("<b>a.txt", "b.txt", "\u202egnp.txt")
        files = [{"name": name, "mimeType": "text/plain", "buffer": b"some text"} for name in names]
        await talk.page.set_input_files("#picker", files)
        await expect(talk.page.locator("#files .name")).to_have_text(["<b>a.txt", "b.txt", "\\u202egnp.txt"])
        await talk.page.click("#files li:nth-child(2) button")
        await expect(talk.page.locator("#files .name")).to_have_count(2)
        await talk.say("")
        await expect(talk.replies).to_contain_text("<b>a.txt: 9 and ")
        await expect(talk.page.locator(".message.in .text")).to_contain_text("[<b>a.txt]")
        await expect(talk.page.locator("#files .name")).to_have_count(0)
        assert "\u202e" not in await talk.page.inner_text("body")
