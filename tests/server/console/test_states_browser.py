"""What a page says when it cannot show the present: its server hangs, or does not know the browser any more."""

import re
import signal

from .asking import cleaner, waiting_call
from .browser import LOST, accessibility_problems, expect, in_browser, opened
from .own_process import own_process
from .rig import console

pytestmark = in_browser


async def test_a_page_says_within_three_seconds_that_its_server_hangs_and_catches_up_when_it_goes_on(browser, tmp_path):
    async with own_process(tmp_path) as server, opened(browser, server, "/", clock=True) as page:
        notice = page.locator(".connection")
        await expect(page.locator("#now-running")).to_be_visible()
        await page.evaluate("new Promise((done) => setTimeout(done, 4000))")  # beats come meanwhile
        await expect(notice).to_be_hidden()
        server.send_signal(signal.SIGSTOP)
        await page.clock.run_for(3000)
        await expect(notice).to_contain_text("The server does not answer. Trying again … (since ")
        assert await accessibility_problems(page) == []
        server.send_signal(signal.SIGCONT)
        await expect(notice).to_be_hidden()


async def test_escape_closes_what_is_open_at_once(browser, tmp_path):
    async with console(tmp_path) as made, opened(browser, made, "/") as page:
        for key, name in (("Control+k", "#find"), ("?", "#keys")):
            await page.keyboard.press(key)
            await expect(page.locator(name)).to_be_visible()
            if name == "#find":
                await page.keyboard.type("words")
            await page.keyboard.press("Escape")
            await expect(page.locator(name)).to_be_hidden()


async def test_what_takes_long_shows_that_it_loads(browser, tmp_path):
    async with own_process(tmp_path) as server, opened(browser, server, "/", clock=True, allowed=LOST) as page:
        await expect(page.locator("#now-running")).to_be_visible()
        server.send_signal(signal.SIGSTOP)
        await page.keyboard.press("Control+k")
        await page.keyboard.type("run")
        await page.clock.run_for(500)
        await expect(page.locator("body[data-loading]")).to_have_count(1)
        server.send_signal(signal.SIGCONT)
        await expect(page.locator("#found")).to_contain_text("Nothing has this in its name")
        await expect(page.locator("body[data-loading]")).to_have_count(0)


async def test_a_page_that_does_not_change_counts_calls_that_wait(browser, tmp_path):
    async with (
        console(tmp_path, cleaner()) as made,
        made.browser() as client,
        opened(browser, made, "/console/runs/none", allowed="404") as page,
    ):
        await expect(page.locator("#waiting")).to_be_hidden()
        await waiting_call(made, client)
        await expect(page.locator("#waiting")).to_contain_text("1")
        await expect(page).to_have_title(re.compile(r"^\(1\) Error 404"))


FOCUSED = """() => {
  const each = document.activeElement;
  const label = each.getAttribute("aria-label") || each.labels?.[0]?.textContent || each.textContent || each.name;
  return label.replace(/\\s+/g, " ").trim();
}"""


async def order(page, count):
    """Return what the key Tab goes to in the content of a page, as a screen reader would read it."""
    await page.locator("main").focus()
    found = []
    for _ in range(count):
        await page.keyboard.press("Tab")
        found.append(await page.evaluate(FOCUSED))
    return found


async def test_the_keyboard_goes_through_approvals_and_a_run_in_the_order_of_reading(browser, tmp_path):
    async with console(tmp_path, cleaner()) as made, made.browser() as client:
        run, _ = await waiting_call(made, client)
        card = [
            "Arguments",
            "the run “a.txt”",
            "Approve a",
            "How long the approval holds",
            "Deny d",
            "Reason for the model",
            "Edit e",
        ]
        async with opened(browser, made, "/console/approvals") as page:
            assert await order(page, len(card)) == card
        async with opened(browser, made, f"/console/runs/{run}") as page:
            await expect(page.locator("[id='row-1.1']")).to_be_visible()
            found = await order(page, 40)
            card[1] = "the run"
            wanted = ["Runs", "Send", "Cancel …", *card, "Find in the calls", "delete"]
            assert [each for each in found if each in wanted][: len(wanted)] == wanted  # then it begins again
