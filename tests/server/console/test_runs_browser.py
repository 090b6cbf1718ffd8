"""The lists of runs and of what was blocked, in a real browser."""

import pytest

from .browser import LOST, PHONE, expect, fits, in_browser, opened
from .rig import console
from .test_runs import agent, done

pytestmark = in_browser


async def test_new_runs_come_to_the_top_by_themselves_and_the_chosen_row_stays_chosen(browser, tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as client:
        first = await done(client, "say hello")
        async with opened(browser, made, "/console/runs") as page:
            rows = page.locator("#runs-rows tr")
            await expect(rows).to_have_count(1)
            await page.keyboard.press("j")
            await expect(page.locator(f"#row-{first['id']}")).to_be_focused()
            second = await done(client, "delete it")
            await expect(rows).to_have_count(2)
            await expect(rows.first).to_contain_text("delete it")
            await expect(rows.first.locator(".g.blocked")).to_have_count(1)
            await expect(rows.first.locator(".status")).to_have_text("completed")
            await expect(page.locator(f"#row-{first['id']}")).to_be_focused()
            await page.keyboard.press("k")
            await expect(page.locator(f"#row-{second['id']}")).to_be_focused()
            await page.keyboard.press("j")
            await page.keyboard.press("j")  # the last row is the last
            await page.keyboard.press("Enter")
            await page.wait_for_url(f"**/console/runs/{first['id']}")


async def test_a_filter_is_in_the_address_and_stays_while_rows_come_in(browser, tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as client:
        await done(client, "say hello")
        async with opened(browser, made, "/console/runs") as page:
            await page.click(".chip >> text=completed")
            await page.wait_for_url("**/console/runs?status=completed")
            await page.click(".chip >> text=failed")
            await page.wait_for_url("**/console/runs?status=completed&status=failed")
            await page.keyboard.press("/")
            await expect(page.locator("[data-search]")).to_be_focused()
            await page.keyboard.type("Delete")
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/console/runs?text=Delete&status=completed&status=failed")
            await expect(page.locator("#runs-rows")).to_contain_text("No run matches.")
            await done(client, "say hello again")
            run = await done(client, "delete it")
            await expect(page.locator("#runs-rows [data-row]")).to_have_count(1)
            await expect(page.locator(f"#row-{run['id']}")).to_be_visible()
            await page.click("text=Show all")
            await expect(page.locator("#runs-rows tr")).to_have_count(3)


async def test_a_page_that_lost_its_server_has_later_runs_when_it_is_back(browser, tmp_path):
    async with (
        console(tmp_path, agent()) as made,
        opened(browser, made, "/console/blocked", allowed=LOST) as page,
    ):
        await expect(page.locator("#blocked-rows")).to_contain_text("has refused anything")
        await made.server.stop(grace=0)
        await expect(page.locator(".connection")).to_be_visible()
        port = int(made.url.rpartition(":")[2])
        async with console(tmp_path, agent(), port=port) as back, back.browser() as client:
            await done(client, "delete it")
            await expect(page.locator("#blocked-rows")).to_contain_text("rule 3 <img src=x")
            await expect(page.locator(".connection")).to_be_hidden()


async def test_the_lists_fit_a_phone_and_the_filters_fold(browser, tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as client:
        await done(client, "delete " + "everything/" * 60)
        for path in ("/console/runs", "/console/blocked"):
            async with opened(browser, made, path, **PHONE) as page:
                await expect(page.locator("[data-row]").first).to_be_visible()
                assert await fits(page)
                await expect(page.locator("[name=hook]")).to_be_hidden()
                await page.tap(".filter summary")
                await page.fill("[name=hook]", "nobody")
                await page.tap(".filter button")
                await page.wait_for_url(f"**{path}?hook=nobody")
                await expect(page.locator("[data-row]")).to_have_count(0)


@pytest.mark.parametrize("path", ["/console/runs", "/console/blocked"])
async def test_the_lists_work_without_scripts(browser, tmp_path, path):
    async with console(tmp_path, agent()) as made, made.browser() as client:
        await done(client, "delete it")
        async with opened(browser, made, path, java_script_enabled=False) as page:
            await page.click(".filter summary")
            await page.fill("[name=tool]", "delete")
            await page.click(".filter button")
            await expect(page.locator("[data-row]").first).to_be_visible()
            await page.click(".filter summary")
            await page.fill("[name=tool]", "nothing")
            await page.click(".filter button")
            await expect(page.locator("[data-row]")).to_have_count(0)
