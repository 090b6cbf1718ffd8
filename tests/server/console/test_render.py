"""Tests of the parts that all pages of the console share."""

import re
from importlib.resources import files

from hookline.server.console.render import SHARED, static_file

from .rig import console


def test_all_scripts_and_styles_together_are_small():
    own = [each.name for each in (files("hookline.server.console") / "static").iterdir()]
    assert sum(len(static_file(name)) for name in (*own, *SHARED)) < 150_000


async def test_a_page_loads_its_files_from_this_server_only_and_browsers_keep_them(tmp_path):
    async with console(tmp_path) as made, made.browser() as browser:
        page = await browser.get("/")
        addresses = re.findall(r'(?:src|href)="([^"#]*)"', page.text)
        assert all(each.startswith("/") for each in addresses)
        static = [each for each in addresses if each.startswith("/console/static/")]
        assert len(static) > 3
        for each in static:
            answer = await browser.get(each)
            assert (answer.status_code, "immutable" in answer.headers["cache-control"]) == (200, True)
        assert "default-src 'none'" in page.headers["content-security-policy"]
        assert "require-trusted-types-for 'script'" in page.headers["content-security-policy"]


async def test_only_a_browser_that_is_logged_in_can_log_out(tmp_path):
    async with console(tmp_path) as made, made.browser() as anybody:
        assert "Log out" not in (await anybody.get("/")).text
        async with made.logged_in("read") as browser:
            assert "Log out" in (await browser.get("/")).text
