"""Logging in and out in a real browser, and what open pages do when a login ends."""

import pytest

from .browser import LOST, NO_STREAM, expect, in_browser, opened
from .rig import console

pytestmark = in_browser

ENDED = (LOST, NO_STREAM, "401")
"""Chromium's messages when a login ends."""


@pytest.mark.parametrize("path", ["/", "/console/runs?status=failed"])
async def test_an_open_page_goes_to_the_login_when_its_key_is_revoked_and_back_with_another_key(
    browser, tmp_path, path
):
    async with console(tmp_path) as made, opened(browser, made, path, login=("read",), allowed=ENDED) as page:
        await expect(page.locator(".who")).to_have_text("key 0")
        made.keys.revoke("key 0")
        await expect(page.locator("#key")).to_be_focused()
        _, secret = made.keys.add("another", ("read",))
        await page.fill("#key", secret)
        await page.press("#key", "Enter")
        await expect(page.locator(".who")).to_have_text("another")
        assert page.url == made.url + path


async def test_logging_out_in_one_tab_ends_the_pages_in_the_others(browser, tmp_path):
    async with (
        console(tmp_path) as made,
        opened(browser, made, "/console/runs", login=("read",), allowed=ENDED) as page,
    ):
        await expect(page.locator(".runs")).to_be_visible()
        other = await page.context.new_page()
        await other.goto(made.url, wait_until="domcontentloaded")
        await other.click("text=Log out")
        await expect(other.locator("#key")).to_be_visible()
        await expect(page.locator("#key")).to_be_visible()


async def test_a_page_that_gets_no_stream_although_it_is_logged_in_stays_and_tries_again(browser, tmp_path):
    async with console(tmp_path) as made, opened(browser, made, "/console/login", allowed="503") as page:
        await page.route("**/console/now", lambda route: route.fulfill(status=503))
        await page.goto(made.url, wait_until="domcontentloaded")
        await expect(page.locator(".connection")).to_be_visible()
        await page.unroute("**/console/now")
        await expect(page.locator(".connection")).to_be_hidden()
        assert page.url == f"{made.url}/"
