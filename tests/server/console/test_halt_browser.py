"""The stop switch of the console in a real browser."""

from .browser import PHONE, accessibility_problems, expect, fits, in_browser, opened
from .rig import console

pytestmark = in_browser


async def test_the_banner_comes_and_goes_by_itself_on_an_open_page(browser, tmp_path):
    async with console(tmp_path) as made, opened(browser, made, "/", login=("read",)) as page:
        await expect(page.locator("#now-counts")).to_be_visible()
        await expect(page.locator("#halt")).to_have_count(0)
        made.server.service.store.halts.halt("it charges twice", by="ada")
        await expect(page.locator("#halt")).to_contain_text("by ada: it charges twice")
        assert await page.locator("#halt button").count() == 0
        made.server.service.store.halts.release(by="ada")
        await expect(page.locator("#halt")).to_have_count(0)


async def test_an_admin_halts_all_runs_and_releases_them_from_another_page(browser, tmp_path):
    async with console(tmp_path) as made, opened(browser, made, "/", login=("read", "admin")) as page:
        await page.click(".rail a[title=Halt]")
        await page.fill("#halt-reason", "it charges twice")
        await page.click("#halt-switch button")
        await expect(page.locator("#halt")).to_contain_text("it charges twice")
        assert await accessibility_problems(page) == []
        await page.goto(f"{made.url}/console/runs")
        await page.click("#halt button")
        await expect(page.locator("#halt")).to_have_count(0)
        assert made.server.service.store.halts.current() is None


async def test_the_banner_fits_on_a_phone(browser, tmp_path):
    async with console(tmp_path) as made:
        made.server.service.store.halts.halt("a reason that is longer than a line of a phone " * 3, by="ada")
        async with opened(browser, made, "/console/halt", login=("read", "admin"), **PHONE) as page:
            await expect(page.locator("#halt")).to_be_visible()
            assert await fits(page)
