"""The pages Hooks and Cost in a real browser."""

import pytest

from .browser import expect, in_browser, opened
from .counted import counted_agent
from .rig import console
from .test_runs import done

pytestmark = in_browser


async def test_numbers_of_hooks_come_by_themselves_and_lead_to_the_runs(browser, tmp_path):
    async with (
        console(tmp_path, counted_agent()) as made,
        made.browser() as client,
        opened(browser, made, "/console/hooks") as page,
    ):
        row = page.locator("#hooks-list tr", has_text="no_deleting").first
        await expect(row).to_contain_text("not called")
        run = await done(client, "a secret")
        await expect(row.locator(".h-v .vc")).to_have_text("blocked1")
        await done(client, "secret")
        await expect(row.locator(".h-v .vc")).to_have_text("blocked2")
        await page.keyboard.press("j")
        await expect(page.locator("[data-row]:focus")).to_have_count(1)
        await row.locator(".h-v .vc").click()
        await expect(page.locator(f"#row-{run['id']}")).to_be_visible()
        await expect(page.locator("[data-row]")).to_have_count(2)


async def test_cost_comes_by_itself_and_the_range_is_in_the_address(browser, tmp_path):
    async with (
        console(tmp_path, counted_agent()) as made,
        made.browser() as client,
        opened(browser, made, "/console/cost") as page,
    ):
        await expect(page.locator("#cost-chart")).to_contain_text("No model was called.")
        await done(client, "a")
        await expect(page.locator("#cost-totals")).to_contain_text("$1.00")
        await expect(page.locator("#cost-chart .bar")).to_have_count(24)
        await page.select_option("[name=range]", "month")
        await page.wait_for_url("**/console/cost?range=month")
        await expect(page.locator("#cost-chart .bar")).to_have_count(30)
        bar = await page.locator("#cost-chart .bar").last.bounding_box()
        chart = await page.locator("#cost-chart .plot").bounding_box()
        assert bar["height"] == pytest.approx(chart["height"], abs=2)
        assert await page.locator("#cost-chart .bar").last.evaluate("each => getComputedStyle(each).fill") != "none"
        await page.keyboard.press("j")
        await page.keyboard.press("Enter")
        await expect(page.locator("#runs-rows [data-row]")).to_have_count(1)


@pytest.mark.parametrize("path", ["/console/hooks", "/console/cost"])
async def test_the_pages_work_without_scripts(browser, tmp_path, path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as client:
        await done(client, "a secret")
        async with opened(browser, made, path, java_script_enabled=False) as page:
            await page.select_option("[name=range]", "hour")
            await page.click("noscript button")
            await page.wait_for_url(f"**{path}?range=hour")
            await expect(page.locator("[data-row]").first).to_be_visible()
