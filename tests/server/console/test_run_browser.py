"""The page of a run in a real browser."""

import pytest

from hookline import call, reply
from hookline.records.hook import RecordHook

from .asking import cleaner, deleted
from .browser import LOST, accessibility_problems, expect, fits, in_browser, opened
from .rig import console
from .working import Work

pytestmark = in_browser

SLOW = [call("delete", path="a.txt"), call("slow", what="the work"), reply("It is done.")]


async def started(made, task="Do it"):
    async with made.browser() as client:
        return (await client.post("/runs", json={"task": task})).json()["id"]


async def test_the_page_follows_a_run_and_keeps_what_the_reader_folded(browser, tmp_path):
    work = Work(SLOW)
    async with console(tmp_path, work.agent) as made:
        run = await started(made)
        async with opened(browser, made, f"/console/runs/{run}") as page:
            await expect(page.locator("#run-step-2 .v.now")).to_have_text("runs")
            await page.locator("[id='open-2'] > summary").click()
            await expect(page.locator("[id='open-2']")).not_to_have_attribute("open", "")
            work.go_on.set()
            await expect(page.locator("#run-step-3")).to_contain_text("It is done.")
            await expect(page.locator("#run-head .status")).to_have_text("completed")
            await expect(page.locator("#run-step-2 .v.now")).to_have_count(0)
            assert await page.locator("[id='open-2']").get_attribute("open") is None
            await expect(page.locator("#run-actions")).to_be_hidden()


async def test_keys_go_from_verdict_to_verdict_and_show_each_call_in_full(browser, tmp_path):
    async with console(tmp_path, Work().agent) as made:
        run = await started(made)
        async with made.browser() as client:
            await client.get(f"/runs/{run}?wait=60")
        async with opened(browser, made, f"/console/runs/{run}") as page:
            drawer = page.locator("#run-drawer")
            await expect(drawer).to_be_hidden()
            await page.keyboard.press("n")
            await expect(drawer).to_contain_text("The tool did not run")
            await expect(drawer).to_be_focused()
            assert page.url.endswith("?call=1.1")
            await page.keyboard.press("n")
            await expect(drawer).to_contain_text("arguments.name")
            assert await accessibility_problems(page) == []
            await page.keyboard.press("p")
            await expect(drawer).to_contain_text("The tool did not run")
            await page.keyboard.press("Escape")
            await expect(drawer).to_be_hidden()
            assert await page.evaluate("document.activeElement.id") == "row-1.1"
            await page.click("#show-verdicts")
            await expect(page.locator("[id='line-1.1']")).to_be_visible()
            await expect(page.locator("[id='line-3']")).to_be_hidden()
            await page.click("#show-all")
            await page.locator("#run-strip a").first.click()
            await expect(drawer).to_contain_text("no_deleting")


async def test_a_message_and_a_cancellation_are_sent_from_the_page(browser, tmp_path):
    work = Work([call("slow", what="one"), call("slow", what="two"), reply("done")])
    async with console(tmp_path, work.agent) as made:
        run = await started(made)
        async with opened(browser, made, f"/console/runs/{run}") as page:
            await expect(page.locator("#run-step-1")).to_contain_text("runs")
            await page.fill("#steer-text", "<i>faster</i>")
            await page.click(".steer button")
            await expect(page.locator("#steer-text")).to_have_value("")
            work.go_on.set()
            await expect(page.locator("#run-steps")).to_contain_text("<i>faster</i>")
        work.go_on.clear()
        run = await started(made)
        async with opened(browser, made, f"/console/runs/{run}") as page:
            await page.click("#run-cancel summary")
            await page.fill("#cancel-reason", "enough")
            await page.click("#run-cancel button")
            await expect(page.locator("#run-head .status")).to_have_text("cancelled")
            await expect(page.locator(".why")).to_contain_text("enough")


async def test_an_approval_goes_from_the_click_to_the_result_of_the_tool(browser, tmp_path):
    deleted.clear()
    async with console(tmp_path, cleaner()) as made:
        run = await started(made, "old.txt")
        async with opened(browser, made, f"/console/runs/{run}") as page:
            await expect(page.locator("#run-head .status")).to_have_text("waiting")
            assert deleted == []
            await page.click("#run-asks [data-key=a]")
            await expect(page.locator("#run-steps")).to_contain_text("approved by")
            await expect(page.locator("#run-head .status")).to_have_text("completed")
            await expect(page.locator("#run-asks article")).to_have_count(0)
            assert deleted == ["old.txt"]


async def test_a_page_whose_server_was_restarted_goes_on(browser, tmp_path):
    async with console(tmp_path, Work(SLOW).agent) as made:
        run = await started(made)
        port = int(made.url.rpartition(":")[2])
        async with opened(browser, made, f"/console/runs/{run}", allowed=LOST) as page:
            await expect(page.locator("#run-step-2")).to_contain_text("runs")
            await made.server.stop(grace=0)
            await expect(page.locator(".connection")).to_be_visible()
            async with console(tmp_path, Work(SLOW).agent, port=port):
                await expect(page.locator("#run-head .status")).to_have_text("interrupted")
                await expect(page.locator(".connection")).to_be_hidden()


@pytest.mark.parametrize("query", ["", "?from=record"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_the_page_fits_on_a_phone(browser, tmp_path, scheme, query):
    work = Work(hooks=[RecordHook(tmp_path / "records", redact=False)])
    async with console(tmp_path, work.agent) as made:
        run = await started(made, "Look at Jane and at " + "everyone else " * 20)
        async with made.browser() as client:
            await client.get(f"/runs/{run}?wait=60")
        size = {"width": 360, "height": 740}
        async with opened(browser, made, f"/console/runs/{run}{query}", viewport=size, color_scheme=scheme) as page:
            await expect(page.locator("#run-step-3")).to_be_visible()
            assert await fits(page)
            await expect(page.locator("#run-step-2")).to_contain_text("read_card")
