"""The stop switch in the console: a banner on every page for everybody, and a button for admins."""

import pytest

from hookline.server.console.render import NAVIGATION

from .rig import console

PAGES = [path for group in NAVIGATION for _, path, right in group if not right]
WHY = "by ada: it charges &lt;twice&gt;"


@pytest.mark.parametrize("path", PAGES)
async def test_every_page_says_that_runs_are_halted_and_why(tmp_path, path):
    async with console(tmp_path) as made, made.logged_in("read", "run") as browser:
        assert 'id="halt"' not in (await browser.get(path)).text
        made.server.service.store.halts.halt("it charges <twice>", by="ada")
        page = (await browser.get(path)).text
        assert 'id="halt"' in page
        assert WHY in page
        assert 'value="release"' not in page
        assert "/console/halt" not in page


async def test_admins_halt_and_release_runs_with_a_button_and_others_may_not(tmp_path):
    async with console(tmp_path) as made:
        halts = made.server.service.store.halts
        async with made.logged_in("read", "run") as browser:
            assert (await browser.get("/console/halt")).status_code == 403
            assert (await browser.post("/console/halt", data={"act": "halt", "reason": "x"})).status_code == 403
            assert halts.current() is None
        async with made.logged_in("read", "admin") as browser:
            assert "/console/halt" in (await browser.get("/")).text
            assert "Halt all runs" in (await browser.get("/console/halt")).text
            done = await browser.post("/console/halt", data={"act": "halt", "reason": "it charges twice"})
            assert (done.status_code, done.headers["location"]) == (303, "/console/halt")
            assert halts.current().reason == "it charges twice"
            page = (await browser.get("/console/runs")).text
            assert 'value="release"' in page
            scripted = {"accept": "application/json"}
            sections = (await browser.post("/console/halt", data={"act": "release"}, headers=scripted)).json()
            assert sections["halt"] == ""
            assert "it charges twice" in sections["halt-past"]
            assert halts.current() is None


async def test_a_reason_that_is_too_long_halts_nothing(tmp_path):
    async with console(tmp_path) as made, made.logged_in("read", "admin") as browser:
        done = await browser.post("/console/halt", data={"act": "halt", "reason": "x" * 1001})
        assert (done.status_code, made.server.service.store.halts.current()) == (422, None)


async def test_the_banner_does_not_name_the_files_of_a_switch_that_cannot_be_read(tmp_path, monkeypatch):
    async with console(tmp_path) as made, made.logged_in("read") as browser:
        monkeypatch.setattr("hookline._run.halt.GRACE_SECONDS", -1.0)
        page = (await browser.get("/")).text
        assert "because the stop switch cannot be read" in page
        assert str(tmp_path) not in page
