"""Finding runs, agents, hooks and tools; and what is around all pages."""

import html
import re

from .asking import cleaner, waiting_call
from .rig import console

JSON = {"accept": "application/json"}


def found(text):
    return [html.unescape(each) for each in re.findall(r'<span class="what">([^<]*)</span>', text)]


async def test_runs_hooks_and_tools_are_found_by_a_part_of_their_name(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.browser() as browser:
        run, _ = await waiting_call(made, browser, "invoice.txt")
        for text, name, path in (
            ("invoice", "invoice.txt", f"/console/runs/{run}"),
            (run, "invoice.txt", f"/console/runs/{run}"),
            ("clean", "cleaner", "/console/runs?agent=cleaner"),
            ("OUTSIDE", "not_outside", "/console/hooks?hook=not_outside"),
            ("dele", "delete", "/console/runs?tool=delete"),
        ):
            answer = await browser.get("/console/find", params={"text": text}, headers=JSON)
            assert name in found(answer.json()["found"]), text
            page = await browser.get("/console/find", params={"text": text})  # without a script
            assert f'href="{path}"' in page.text, text
            assert (await browser.get(path)).status_code == 200
        assert found((await browser.get("/console/find?text=nobody")).text) == []


async def test_nobody_finds_the_runs_of_others(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in("read", "run") as ann:
        run, _ = await waiting_call(made, ann, "invoice.txt")
        async with made.logged_in("read", "run") as bob:
            for text in ("invoice", run):
                assert found((await bob.get("/console/find", params={"text": text})).text) == []
        assert found((await ann.get("/console/find?text=invoice")).text) == ["invoice.txt"]


async def test_every_page_says_how_many_calls_wait_for_its_caller(tmp_path):
    async with console(tmp_path, cleaner()) as made, made.logged_in("read", "run") as ann:
        assert "<title>Runs · Hookline</title>" in (await ann.get("/console/runs")).text
        for name in ("a.txt", "b.txt"):
            await waiting_call(made, ann, name)
        for path in ("/", "/console/runs", "/console/cost", "/console/find"):
            page = (await ann.get(path)).text
            assert "<title>(2) " in page, path
            assert 'data-count="2"' in page, path
        async with made.logged_in("read", "run") as bob:
            assert 'data-count="0" hidden' in (await bob.get("/console/runs")).text


async def test_an_error_page_keeps_the_navigation_and_says_what_to_do(tmp_path):
    async with console(tmp_path, tickets=tmp_path / "tickets.db") as made, made.logged_in("read", "admin") as browser:
        page = await browser.get("/console/nothing")
        assert page.status_code == 404
        assert all(f">{name}</span>" in page.text for name in ("Now", "Audit", "Tickets"))
        assert 'data-live="/console/live/frame"' in page.text
    async with console(tmp_path) as made, made.logged_in("read") as browser:
        page = await browser.get("/console/runs/run_none")
        assert page.status_code == 404
        assert 'aria-label="Pages"' in page.text
        assert "It may have been deleted, or belong to somebody else." in page.text
        page = await browser.get("/console/halt")
        assert page.status_code == 403
        assert "Ask an administrator for a key with this right." in page.text
