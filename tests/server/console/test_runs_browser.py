"""The lists of runs and of what was blocked, in a real browser."""

from contextlib import asynccontextmanager

import pytest
import pytest_asyncio

from tests.chromium import CHROMIUM, needs_chromium

from .rig import console
from .test_runs import agent, done

playwright = pytest.importorskip("playwright.async_api", reason="the browser tests need: pip install playwright")
expect = playwright.expect
expect.set_options(timeout=100_000)
pytestmark = [pytest.mark.slow, needs_chromium, pytest.mark.asyncio(loop_scope="module")]

PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    """One browser for all tests, because starting it is slow."""
    async with playwright.async_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(browser, made, path, *, allowed="\0", **options):
    """Open a page. Fail if it reports an error or a violation of its policy, or requests anything from elsewhere."""
    context = await browser.new_context(**{"viewport": {"width": 1300, "height": 900}, **options})
    context.set_default_timeout(0)  # pytest's own timeout is the limit
    page = await context.new_page()
    problems, requests = [], []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    try:
        await page.goto(made.url + path, wait_until="domcontentloaded")
        yield page
        assert [each for each in problems if allowed not in each] == []
        assert all(url.startswith(made.url) for url in requests)
    finally:
        await context.close()


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
            await expect(rows.first.locator(".pill.red")).to_have_text("blocked")
            await expect(rows.first.locator(".pill.green")).to_have_text("completed")
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
            await page.click("text=completed >> nth=0")
            await page.wait_for_url("**/console/runs?status=completed")
            await page.click(".chip >> text=failed")
            await page.wait_for_url("**/console/runs?status=completed&status=failed")
            await page.keyboard.press("/")
            await expect(page.locator("[data-search]")).to_be_focused()
            await page.keyboard.type("Delete")
            await page.keyboard.press("Enter")
            await page.wait_for_url("**/console/runs?status=completed&status=failed&text=Delete")
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
        opened(browser, made, "/console/blocked", allowed="ERR_") as page,
    ):
        await expect(page.locator("#blocked-rows")).to_contain_text("has refused anything")
        await made.server.stop(grace=0)
        await expect(page.locator(".connection")).to_be_visible()
        port = int(made.url.rpartition(":")[2])
        async with console(tmp_path, agent(), port=port) as back, back.browser() as client:
            await done(client, "delete it")
            await expect(page.locator("#blocked-rows .row")).to_contain_text("rule 3 <img src=x")
            await expect(page.locator(".connection")).to_be_hidden()


async def test_the_lists_fit_a_phone_and_the_filters_fold(browser, tmp_path):
    async with console(tmp_path, agent()) as made, made.browser() as client:
        await done(client, "delete " + "everything/" * 60)
        for path in ("/console/runs", "/console/blocked"):
            async with opened(browser, made, path, **PHONE) as page:
                await expect(page.locator("[data-row]")).to_be_visible()
                assert await page.evaluate("document.documentElement.scrollWidth") <= 390
                await expect(page.locator("[name=hook]")).to_be_hidden()
                await page.tap(".more summary")
                await page.fill("[name=hook]", "nobody")
                await page.tap("text=Filter >> nth=-1")
                await page.wait_for_url(f"**{path}?hook=nobody")
                await expect(page.locator("[data-row]")).to_have_count(0)


@pytest.mark.parametrize("path", ["/console/runs", "/console/blocked"])
async def test_the_lists_work_without_scripts(browser, tmp_path, path):
    async with console(tmp_path, agent()) as made, made.browser() as client:
        await done(client, "delete it")
        async with opened(browser, made, path, java_script_enabled=False) as page:
            await page.fill("[name=tool]", "delete")
            await page.click(".buttons button")
            await expect(page.locator("[data-row]")).to_have_count(1)
            await page.fill("[name=tool]", "nothing")
            await page.click(".buttons button")
            await expect(page.locator("[data-row]")).to_have_count(0)
