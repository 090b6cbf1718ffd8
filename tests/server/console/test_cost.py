"""The page Cost."""

import html
import re
import time
from types import SimpleNamespace
from urllib.parse import parse_qs, urlsplit

from hookline.stores.facts import ObservedRun, RunFact

from .counted import HOSTILE, counted_agent
from .rig import console
from .test_runs import done, listed

DAY = 86400.0
CLERK = ObservedRun("run_1", "clerk", asked="clerk", owner="local")


def text_of(part):
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", part)).split())


def table(page, caption):
    """The rows of a table as texts."""
    found = re.search(rf"<caption[^>]*>{caption}</caption>(.*?)</table>", page.text, re.DOTALL)
    return [text_of(row) for row in re.findall(r"<tr>(.*?)</tr>", found[1].partition("<tbody>")[2], re.DOTALL)]


def links(page, caption):
    found = re.search(rf"<caption[^>]*>{caption}</caption>(.*?)</table>", page.text, re.DOTALL)
    return [html.unescape(each) for each in re.findall(r'href="([^"]*)"', found[1])]


def minute(at):
    return time.strftime("%Y-%m-%dT%H:%M", time.gmtime(at))


async def test_the_page_has_total_and_cost_by_time_model_agent_and_caller(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        runs = [await done(browser, "a b"), await done(browser, "a")]
        page = await browser.get("/console/cost?range=week")
        assert page.status_code == 200, page.text
        assert sum(run["cost"] for run in runs) == 2.5
        totals = text_of(re.search(r'<ul class="tiles" id="cost-totals">(.*?)</ul>', page.text, re.DOTALL)[1])
        assert totals.startswith("Today (UTC) $2.50 yesterday $0.00 The last 7 days $2.50 5 model calls Tokens in 500 ")
        today = time.strftime("%Y-%m-%d", time.gmtime())
        assert table(page, "Tokens and cost over time, the newest first") == [f"{today} 550 $2.50"]
        assert table(page, "Tokens and cost by model") == [
            f"large{HOSTILE} 3 300 120 30 $1.50",
            "small 2 200 80 20 $1.00",
        ]
        assert table(page, "Tokens and cost by agent") == ["clerk 5 500 200 50 $2.50"]
        assert table(page, "Tokens and cost by caller") == ["you 5 500 200 50 $2.50"]


async def test_of_very_many_callers_those_that_cost_most_are_listed(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        runs = [ObservedRun(f"run_{n}", "clerk", asked="clerk", owner=f"key_{n}") for n in range(60)]
        facts = [RunFact(run, time.time(), "model", model="m", source="model", cost=n) for n, run in enumerate(runs, 1)]
        made.server.service.store.add([], facts)
        page = await browser.get("/console/cost")
        listed = table(page, "Tokens and cost by caller")
        assert [row.split()[0] for row in listed] == [f"key_{n}" for n in range(59, 9, -1)]
        assert "These are the first 50 of 60." in text_of(page.text)


async def test_the_lines_of_the_chart_are_at_round_numbers(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        for cost, lines in ((0.134, "$0.15 $0.10 $0.05 0"), (41.4, "$50.00 $40.00 $30.00 $20.00 $10.00 0")):
            fact = RunFact(CLERK, time.time(), "model", model="large", source="model", cost=cost)
            made.server.service.store.add([], [fact])
            page = await browser.get("/console/cost")
            assert text_of(re.search(r'<div class="axis"[^>]*>(.*?)</div>', page.text, re.DOTALL)[1]) == lines


async def test_every_row_leads_to_its_runs(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        two, one = await done(browser, "a b"), await done(browser, "a")
        runs = [one["id"], two["id"]]
        page = await browser.get("/console/cost?range=week")
        midnight = time.time() // DAY * DAY
        (today,), (agent,) = (
            links(page, "Tokens and cost over time, the newest first"),
            links(page, "Tokens and cost by agent"),
        )
        assert listed(await browser.get(today)) == listed(await browser.get(agent)) == runs
        assert parse_qs(urlsplit(today).query) == {"since": [minute(midnight)], "until": [minute(midnight + DAY)]}
        assert parse_qs(urlsplit(agent).query) == {"since": [minute(midnight - 6 * DAY)], "agent": ["clerk"]}
        large, small = links(page, "Tokens and cost by model")
        assert "model=small" in small
        assert listed(await browser.get(small)) == listed(await browser.get(large)) == runs
        assert listed(await browser.get(small.replace("model=small", "model=smaller"))) == []


async def test_the_chart_has_a_bar_for_each_day_with_its_height_and_words(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        for days, cost in ((0, 1.0), (2, 4.0), (6, 2.0), (7, 8.0)):
            used = {"input_tokens": 10, "output_tokens": 1, "cost": cost}
            called = RunFact(CLERK, time.time() - days * 86400, "model", model="small", source="model", **used)
            made.server.service.store.add([], [called])
        page = await browser.get("/console/cost?range=week")
        chart = re.search(r'<svg class="plot".*?</svg>', page.text, re.DOTALL)[0]
        heights = [float(each) for each in re.findall(r'<rect [^>]*height="([\d.]+)"', chart)]
        assert heights == [25, 0, 0, 0, 50, 0, 12.5]
        assert 'role="img" aria-labelledby="chart-words"' in chart
        assert re.search(r'<title id="chart-words">Cost from [\d-]+, in 7 bars', chart)
        assert "$4.00, 11 tokens; the week before $0.00</title>" in chart
        assert "$1.00, 11 tokens; the week before $8.00</title>" in chart
        assert chart.count('class="was"') == 1
        assert chart.count("<title") == 8
        month = await browser.get("/console/cost?range=month")
        assert len(re.findall('<rect class="bar', month.text)) == 30
        assert "$15.00" in month.text
        for period, count in (("day", 24), ("all", 8)):
            text = (await browser.get(f"/console/cost?range={period}")).text
            assert len(re.findall('<rect class="bar', text)) == count
        assert "yesterday $0.00" in text_of(page.text)


async def test_costs_without_a_price_are_shown_as_tokens(tmp_path):
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        used = {"input_tokens": 500, "output_tokens": 100}
        called = RunFact(CLERK, time.time(), "model", model="local model", source="model", **used)
        made.server.service.store.add([], [called, called])
        page = await browser.get("/console/cost?range=day")
        assert "Tokens over time" in page.text
        assert table(page, "Tokens and cost by model") == ["local model 2 1,000 0 200 price unknown"]
        assert "2 calls of models without a known price are not in the cost" in page.text


async def test_an_open_page_of_the_last_hour_goes_on_with_the_time(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.server.console.figures.DELAY", 0.0)
    clock = SimpleNamespace(time=time.time, monotonic=time.monotonic)
    monkeypatch.setattr("hookline.stores.run_figures.time", clock)
    async with console(tmp_path, counted_agent()) as made, made.browser() as browser:
        await done(browser, "a")
        async with browser.stream("GET", "/console/live/cost?range=hour") as answer:
            lines = answer.aiter_lines()
            while "$1.00" not in await anext(lines):
                pass
            clock.time = lambda: time.time() + 2 * 3600
            while "No model was called." not in await anext(lines):
                pass


async def test_without_calls_the_page_says_so(tmp_path):
    async with console(tmp_path) as made, made.browser() as browser:
        for period in ("hour", "week", "all"):
            page = await browser.get(f"/console/cost?range={period}")
            assert page.status_code == 200
            assert "No model was called." in page.text


async def test_a_caller_sees_its_own_cost_and_no_other_callers(tmp_path):
    async with (
        console(tmp_path, counted_agent()) as made,
        made.logged_in("run", "read") as ann,
        made.logged_in("run", "read") as bob,
        made.logged_in("read", "admin") as boss,
    ):
        run = await done(ann, "a")
        assert "$0.00" in (await bob.get("/console/cost")).text
        page = await ann.get("/console/cost")
        assert "$1.00" in page.text
        assert "By caller" not in page.text
        page = await boss.get("/console/cost")
        assert table(page, "Tokens and cost by caller") == ["key 0 2 200 80 20 $1.00"]
        (link,) = links(page, "Tokens and cost by caller")
        assert listed(await boss.get(link)) == [run["id"]]
        assert "$0.00" in (await bob.get(f"/console/cost?caller={run['owner']}")).text
