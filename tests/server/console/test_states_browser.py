"""What a page says when it cannot show the present: its server hangs, or does not know the browser any more."""

import signal

from .browser import accessibility_problems, expect, in_browser, opened
from .own_process import own_process

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
