"""The page Chat of the console in a real browser."""

from .asking import deleted
from .browser import PHONE, expect, fits, in_browser
from .test_approvals_browser import asked

pytestmark = in_browser


async def write(page, text):
    await page.fill("#text", text)
    await page.press("#text", "Enter")


async def test_a_conversation_with_a_file_an_approval_and_a_block(browser, tmp_path):
    async with asked(browser, tmp_path, "/console/chat") as (_, _, page):
        notes = {"name": "<b>notes.txt", "mimeType": "text/plain", "buffer": b"some text"}
        await page.set_input_files("input[type=file]", [notes])
        await expect(page.locator(".composer .files")).to_contain_text("<b>notes.txt")
        await write(page, "a **b**.txt")
        await expect(page.locator(".said .pill")).to_have_text("<b>notes.txt")
        await page.click(".ask >> text=Approve")
        await expect(page.locator(".markdown strong")).to_have_text("b")  # the reply is shown as Markdown
        await expect(page.locator(".ask")).to_have_count(0)
        await expect(page.locator(".steps")).to_contain_text("approved")
        assert deleted == ["a **b**.txt"]
        await write(page, "/etc/<i>passwd")
        await expect(page.locator(".exchange")).to_have_count(2)
        await expect(page.locator(".exchange").last.locator(".steps summary")).to_contain_text("1 blocked")
        await expect(page.locator("#text")).to_have_value("")
        await expect(page.locator("#chat-sessions a")).to_have_count(1)
        assert await page.locator(".exchange i, .exchange .pill b").count() == 0


async def test_the_page_fits_a_phone(browser, tmp_path):
    async with asked(browser, tmp_path, "/console/chat", **PHONE) as (_, _, page):
        await write(page, "long/" * 60)
        await expect(page.locator(".ask")).to_have_count(1)
        assert await fits(page)
        await page.tap(".ask >> text=Approve")
        await expect(page.locator(".steps")).to_contain_text("approved")
        assert await fits(page)
