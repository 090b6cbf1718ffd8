"""The inbox of the console in a real browser."""

import asyncio
from contextlib import asynccontextmanager

from .asking import cleaner, deleted, finished, waiting_call
from .browser import LOST, PHONE, expect, fits, in_browser, opened
from .rig import console

pytestmark = in_browser


@asynccontextmanager
async def asked(browser, folder, path="/console/approvals", **options):
    """A server whose agent asks, a client for it, and an open page."""
    deleted.clear()
    async with (
        console(folder, cleaner()) as made,
        made.browser() as client,
        opened(browser, made, path, **options) as page,
    ):
        yield made, client, page


async def test_a_call_arrives_by_itself_and_a_click_lets_it_run(browser, tmp_path):
    async with asked(browser, tmp_path) as (made, client, page):
        await expect(page.locator("#approvals-count")).to_contain_text("Nothing waits")
        run, _ = await waiting_call(made, client)
        await page.click(".ask >> text=Approve")
        await expect(page.locator(".ask")).to_have_count(0)
        await expect(page.locator("#approvals-decided .rule")).to_have_text("approved")
        assert (await finished(client, run))["reply"] == "a.txt is gone"
        assert deleted == ["a.txt"]


async def test_keys_choose_a_call_before_they_decide(browser, tmp_path):
    async with asked(browser, tmp_path) as (made, client, page):
        first, _ = await waiting_call(made, client, "a.txt")
        second, _ = await waiting_call(made, client, "b.txt")
        await expect(page.locator(".ask")).to_have_count(2)
        await page.keyboard.press("a")  # nothing is chosen yet: this chooses the first call
        await expect(page.locator(".ask").first).to_be_focused()
        await page.keyboard.press("j")
        await expect(page.locator(".ask").last).to_be_focused()
        await page.keyboard.press("a")
        assert (await finished(client, second))["reply"] == "b.txt is gone"
        await expect(page.locator(".ask")).to_have_count(1)
        await page.keyboard.press("j")
        await page.keyboard.press("d")
        await page.keyboard.type("and keep it")
        await page.keyboard.press("Enter")
        assert "and keep it" in (await finished(client, first))["reply"]
        assert deleted == ["b.txt"]


async def test_a_new_call_does_not_disturb_an_edit_and_a_mistake_in_it_is_shown(browser, tmp_path):
    async with asked(browser, tmp_path, allowed="422") as (made, client, page):
        run, row = await waiting_call(made, client)
        await expect(page.locator(".ask")).to_have_count(1)
        await page.keyboard.press("j")
        await page.keyboard.press("e")
        await page.fill("textarea", "{")
        await page.click("text=Run with these arguments")
        await expect(page.locator(".ask details .problem")).to_contain_text("not JSON")
        await page.fill("textarea", '{"path": "c.txt"}')
        await waiting_call(made, client, "b.txt")
        await expect(page.locator(".ask")).to_have_count(2)
        await expect(page.locator(f"#approval-{row.id} textarea")).to_have_value('{"path": "c.txt"}')
        await page.click(f"#approval-{row.id} >> text=Run with these arguments")
        assert (await finished(client, run))["reply"] == "c.txt is gone"


async def test_a_pattern_is_written_when_it_is_needed_and_revoked_below(browser, tmp_path):
    async with asked(browser, tmp_path) as (made, client, page):
        await waiting_call(made, client, "notes/a.txt")
        await expect(page.locator(".pattern")).to_be_hidden()
        await page.select_option("select", "always")
        await page.fill("[name='pattern.path']", "notes/*")
        await page.click(".ask >> text=Approve")
        await expect(page.locator(".grant .arguments")).to_have_text('{"path": "notes/*"}')
        run = (await client.post("/runs", json={"task": "notes/b.txt"})).json()["id"]
        assert (await finished(client, run))["reply"] == "notes/b.txt is gone"
        await page.click("text=Revoke")
        await expect(page.locator(".grant")).to_have_count(0)


async def test_a_page_that_lost_its_server_shows_later_calls_when_it_is_back(browser, tmp_path):
    async with asked(browser, tmp_path, allowed=LOST) as (made, _, page):
        await expect(page.locator("#approvals-count")).to_be_visible()
        await made.server.stop(grace=0)
        await expect(page.locator(".connection")).to_be_visible()
        port = int(made.url.rpartition(":")[2])
        async with console(tmp_path, cleaner(), port=port) as back, back.browser() as client:
            run, _ = await waiting_call(back, client)
            await page.click(".ask >> text=Approve")
            await expect(page.locator(".connection")).to_be_hidden()
            assert (await finished(client, run))["reply"] == "a.txt is gone"


async def test_the_inbox_fits_a_phone(browser, tmp_path):
    async with asked(browser, tmp_path, **PHONE) as (made, client, page):
        run, _ = await waiting_call(made, client, "long/" * 60)
        await expect(page.locator(".ask")).to_have_count(1)
        assert await fits(page)
        await page.tap(".ask >> text=Deny")
        await asyncio.wait_for(finished(client, run), 100)
        assert deleted == []
