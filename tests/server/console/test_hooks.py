"""The page Hooks."""

import html
import json
import re

import pytest

from .counted import HOSTILE, counted_agent
from .rig import console
from .test_runs import done, listed


def rows_of(text):
    """The text of the rows of the page by the name of the hook, of those at ``before_tool`` and ``after_tool``."""
    found = {}
    for row in re.findall(r"<tr[^>]*>(.*?)</tr>", text, re.DOTALL):
        name = re.search(r"<b>(.*?)</b>", row)
        if name:
            found[html.unescape(name[1])] = " ".join(html.unescape(re.sub(r"<[^>]+>", " ", row)).split())
    return found


async def shown(browser, query=""):
    page = await browser.get(f"/console/hooks?{query}")
    assert page.status_code == 200, page.text
    return page


async def test_the_page_has_the_slowest_rules_first_with_their_numbers_and_the_firing_order(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        await done(browser, "a secret b")
        page = await shown(browser)
        rows = rows_of(page.text)
        order = page.text.partition('aria-label="Firing order of clerk"')[2]
        names = re.findall(r'<span class="cn">(no_deleting|never_angry|shadow\(strict\))', order)
        assert names == ["no_deleting", "never_angry", "shadow(strict)"]
        assert " 3 " in rows["no_deleting"]
        assert " blocked 1 " in rows["no_deleting"]
        figures = (await browser.get("/hooks")).json()
        seconds = {each["hook"]: each["seconds"] for each in figures["hooks"] if each["layer"] == "agent"}
        shown_rules = [name for name in rows if seconds.get(name)]
        assert shown_rules[:2] == sorted(shown_rules[:2], key=lambda name: -seconds[name])
        assert f"{seconds['no_deleting'] * 1e6:.0f} µs" in rows["no_deleting"] or " ms " in rows["no_deleting"]
        assert figures["run_seconds"] > 0
        assert re.search(r" \d+ µs| \d+ ms", rows["no_deleting"])
        assert " would have blocked 2 " in rows["shadow(strict)"]
        assert " never spoke " in rows["never_angry"]
        assert re.search(r"failures.*[1-9]|[1-9] fails", rows[f"broken{HOSTILE}"])
        assert "<b>Hooks took " in page.text


async def test_hooks_that_no_run_called_are_there_too(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        rows = rows_of((await shown(browser)).text)
        assert " 0 " in rows["no_deleting"]
        assert " not called " in rows["no_deleting"]


async def test_the_rules_are_sorted_by_what_the_address_says(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        await done(browser, "a secret b")
        figures = (await browser.get("/hooks")).json()["hooks"]
        rules = [each for each in figures if each["layer"] == "agent" and each["phase"] != "observe"]
        measures = {"calls": lambda each: each["calls"], "failures": lambda each: each["verbs"].get("failed", 0)}
        for sort, measure in measures.items():
            first = next(iter(rows_of((await shown(browser, f"sort={sort}")).text)))
            assert first in [each["hook"] for each in rules if measure(each) == max(map(measure, rules))], sort
        assert list(rows_of((await shown(browser, "hook=never_angry")).text)) == ["never_angry"]


async def test_each_number_leads_to_the_runs_with_this_verdict(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        blocked, passed = await done(browser, "secret"), await done(browser, "a")
        page = await shown(browser)
        links = [html.unescape(each) for each in re.findall(r'<a class="vc[^"]*" href="([^"]*)"', page.text)]
        assert len(links) == 3
        assert all(re.search(r"since=20\d\d-\d\d-\d\dT\d\d%3A00", each) for each in links)
        assert "since" not in "".join(
            re.findall(r'<a class="vc[^"]*" href="([^"]*)"', (await shown(browser, "range=all")).text)
        )
        found = {
            re.search(r"hook=([^&]*)&verb=(\w+)", each).groups(): listed(await browser.get(each)) for each in links
        }
        assert found == {
            ("no_deleting", "block"): [blocked["id"]],
            ("shadow%28strict%29", "shadow"): [passed["id"]],
            ("broken%3Cscript%3Ealert%281%29%3C%2Fscript%3E", "failed"): [passed["id"], blocked["id"]],
        }


async def test_the_address_chooses_the_time_the_agent_and_the_caller(tmp_path):
    async with (
        console(tmp_path, counted_agent()) as made,
        made.logged_in("run", "read") as ann,
        made.logged_in("run", "read", "admin") as boss,
    ):
        run = await done(ann, "secret")
        await done(boss, "secret")
        expected = {
            "": 2,
            "range=hour": 2,
            "range=all": 2,
            f"caller={run['owner']}": 1,
            "agent=clerk": 2,
        }
        for query, calls in expected.items():
            page = await shown(boss, query)
            assert f" blocked {calls}" in rows_of(page.text)["no_deleting"], query
            stream = html.unescape(re.search(r'data-live="([^"]*)"', page.text)[1])
            assert stream.startswith("/console/live/hooks")
            assert f" blocked {calls}" in rows_of(await first(boss, stream))["no_deleting"], query
        assert "no_deleting" not in (await shown(boss, "agent=nobody")).text


async def test_a_caller_sees_only_the_figures_of_its_own_runs_and_no_files(tmp_path):
    async with (
        console(tmp_path, counted_agent()) as made,
        made.logged_in("run", "read") as ann,
        made.logged_in("run", "read") as bob,
        made.logged_in("read", "admin") as boss,
    ):
        await done(ann, "secret")
        assert " not called " in rows_of((await shown(bob)).text)["no_deleting"]
        assert " blocked 1" in rows_of((await shown(ann)).text)["no_deleting"]
        assert "counted.py" not in (await shown(ann)).text
        assert "counted.py" in (await shown(boss)).text
        assert 'name="caller"' not in (await shown(ann)).text
        assert 'name="caller"' in (await shown(boss)).text


async def first(browser, path):
    """The first sections of a stream."""
    async with browser.stream("GET", path) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                return "".join(json.loads(line[6:]).values())


@pytest.mark.parametrize("path", ["hooks", "cost"])
async def test_an_open_page_gets_new_figures_by_itself(tmp_path, monkeypatch, path):
    monkeypatch.setattr("hookline.server.console.figures.DELAY", 0.0)
    async with (
        console(tmp_path, counted_agent()) as made,
        made.browser() as browser,
        browser.stream("GET", f"/console/live/{path}") as answer,
    ):
        lines = answer.aiter_lines()
        while not (await anext(lines)).startswith("data: "):
            pass
        await done(browser, "secret")
        wanted = {"hooks": "blocked</span>1", "cost": "$1.00"}[path]
        while wanted not in await anext(lines):
            pass


async def test_a_wrong_filter_is_an_error_page(tmp_path):
    async with console(tmp_path) as made, made.browser() as browser:
        for path in ("/console/hooks", "/console/live/hooks", "/console/cost", "/console/live/cost"):
            for query in ("range=year", "range=", "nothing=1", "agent=a&agent=b"):
                page = await browser.get(f"{path}?{query}")
                assert page.status_code == 422
                assert page.headers["content-type"].startswith("text/html")


async def test_names_from_runs_and_code_are_only_text(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        await done(browser, "a")
        for path in ("/console/hooks", "/console/cost"):
            page = await browser.get(path)
            assert HOSTILE not in page.text
            assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page.text
            assert "style=" not in page.text
