"""The pages Hooks and Cost in a real browser."""

import pytest
import pytest_asyncio

from tests.chromium import CHROMIUM, needs_chromium

from .counted import counted_agent
from .rig import console
from .test_runs import done
from .test_runs_browser import PHONE, opened

playwright = pytest.importorskip("playwright.async_api", reason="the browser tests need: pip install playwright")
expect = playwright.expect
expect.set_options(timeout=100_000)
pytestmark = [pytest.mark.slow, needs_chromium, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser():
    """One browser for all tests, because starting it is slow."""
    async with playwright.async_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        await browser.close()


async def test_numbers_of_hooks_come_by_themselves_and_lead_to_the_runs(browser, tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as client:
        async with opened(browser, made, "/console/hooks") as page:
            row = page.locator("#hooks-list tr", has_text="no_deleting")
            await expect(row).to_contain_text("not called")
            run = await done(client, "a secret")
            await expect(row.locator(".pill")).to_have_text("blocked 1")
            await done(client, "secret")
            await expect(row.locator(".pill")).to_have_text("blocked 2")
            await page.keyboard.press("j")
            await expect(page.locator("[data-row]:focus")).to_have_count(1)
            await row.locator(".pill").click()
            await expect(page.locator(f"#row-{run['id']}")).to_be_visible()
            await expect(page.locator("[data-row]")).to_have_count(2)


async def test_cost_comes_by_itself_and_the_range_is_in_the_address(browser, tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as client:
        async with opened(browser, made, "/console/cost") as page:
            await expect(page.locator("#cost-chart")).to_contain_text("No model was called.")
            await done(client, "a")
            await expect(page.locator("#cost-totals")).to_contain_text("$1.00")
            await expect(page.locator("#cost-chart rect")).to_have_count(7)
            await page.select_option("[name=range]", "month")
            await page.wait_for_url("**/console/cost?range=month")
            await expect(page.locator("#cost-chart rect")).to_have_count(30)
            bar = await page.locator("#cost-chart rect").last.bounding_box()
            chart = await page.locator("#cost-chart svg").bounding_box()
            assert bar["height"] == pytest.approx(chart["height"], abs=2)
            assert await page.locator("#cost-chart rect").last.evaluate("each => getComputedStyle(each).fill") != "none"
            await page.keyboard.press("j")
            await page.keyboard.press("Enter")
            await expect(page.locator("#runs-rows [data-row]")).to_have_count(1)


@pytest.mark.parametrize("path", ["/console/hooks", "/console/cost"])
async def test_the_pages_fit_a_phone_and_work_without_scripts(browser, tmp_path, path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as client:
        await done(client, "a secret")
        for options in (PHONE, {**PHONE, "color_scheme": "dark"}, {"java_script_enabled": False}):
            async with opened(browser, made, path, **options) as page:
                await expect(page.locator("[data-row]").first).to_be_visible()
                width = page.viewport_size["width"]
                box = await page.locator("main").bounding_box()
                assert box["width"] <= width
                if "java_script_enabled" not in options:
                    assert await page.evaluate("document.documentElement.scrollWidth") <= width
                else:
                    await page.select_option("[name=range]", "hour")
                    await page.click(".filters button")
                    await page.wait_for_url(f"**{path}?range=hour")
                    await expect(page.locator("[data-row]").first).to_be_visible()
