"""A spending limit at the doors of a server: its callers, durable runs, the console."""

import html
import re

import pytest

from hookline import Agent
from hookline.hooks import SpendingLimit
from hookline.models import ModelResponse
from hookline.payloads import Usage
from hookline.stores import SpendingStore

from .console.rig import console


class Costly:
    """A model whose replies cost 3 cents."""

    name, provider = "costly", "test"

    async def complete(self, request):
        return ModelResponse("Here you are.", usage=Usage(10, 20), cost=0.03)

    def price(self, usage):
        return usage.total_tokens / 1000

    def count_tokens(self, content):
        return 10


def agent_of(folder, **options):
    limit = SpendingLimit(0.05, store=SpendingStore(folder / "spending.db"), max_reply_tokens=20, **options)
    return Agent("clerk", llm=Costly(), hooks=[limit])


async def done(browser, task="Help."):
    response = await browser.post("/runs", json={"task": task, "wait": 30})
    assert response.status_code == 201, response.text
    return response.json()


def limits_of(page):
    """The rows of the section with the limits."""
    found = re.search(r'<section id="cost-limits".*?</section>', page.text, re.DOTALL)
    if found is None:
        return []
    rows = re.findall(r"<tr>(.*?)</tr>", found[0].partition("<tbody>")[2], re.DOTALL)
    return [" ".join(html.unescape(re.sub(r"<[^>]+>", " ", row)).split()) for row in rows]


async def test_each_caller_has_an_allowance_and_is_told_when_there_is_room_again(tmp_path):
    async with (
        console(tmp_path, agent_of(tmp_path)) as made,
        made.logged_in("read", "run") as ann,
        made.logged_in("read", "run") as ben,
    ):
        assert [(await done(ann))["status"] for _ in range(2)] == ["completed", "stopped"]
        run = await done(ann)
        assert run["reason"].startswith("cost_limit: Spending limit of user ")
        assert "reached: $0.0300 of $0.0500 used today, and this call may cost up to $0.0300." in run["reason"]
        assert "There is room again at" in run["reason"]
        assert (await done(ben))["status"] == "completed"


async def test_durable_runs_count_like_others(tmp_path):
    async with console(tmp_path, agent_of(tmp_path), durable=True) as made, made.logged_in("read", "run") as ann:
        assert [(await done(ann))["status"] for _ in range(2)] == ["completed", "stopped"]
    (account,) = SpendingStore(tmp_path / "spending.db").accounts()
    assert (account.spent.usd, account.reserved.usd, account.calls) == (0.03, 0.0, 1)


async def test_the_cost_page_shows_what_is_left_to_operators_and_to_a_caller_its_own(tmp_path):
    async with console(tmp_path, agent_of(tmp_path)) as made:
        async with made.logged_in("read", "run") as ann, made.logged_in("read", "run") as ben:
            await done(ann)
            await done(ben)
            assert [row[: row.index(" 20")] for row in limits_of(await ann.get("/console/cost"))] == [
                "you user 1d $0.0500 $0.0300 $0.00 $0.0200"
            ]
        async with made.logged_in("read", "admin") as ada:
            page = await ada.get("/console/cost")
            names = sorted(key.name for key in made.keys.keys())[:2]  # noqa: SIM118 - no dict
            assert sorted(row.partition(" user")[0] for row in limits_of(page)) == names


async def test_a_limit_that_is_not_per_user_is_for_operators_only(tmp_path):
    async with console(tmp_path, agent_of(tmp_path, per="agent")) as made:
        async with made.logged_in("read", "run") as ann:
            await done(ann)
            assert limits_of(await ann.get("/console/cost")) == []
        async with made.logged_in("read", "admin") as ada:
            assert [row.split(" $")[0] for row in limits_of(await ada.get("/console/cost"))] == ["clerk agent 1d"]


@pytest.mark.sqlite  # the file is damaged
async def test_the_page_says_that_the_store_cannot_be_read(tmp_path):
    (tmp_path / "spending.db").write_text("this is not a database, and long enough to be read as one " * 20)
    async with console(tmp_path, agent_of(tmp_path)) as made, made.logged_in("read", "admin") as ada:
        page = await ada.get("/console/cost")
        assert page.status_code == 200
        assert "What was spent cannot be read, so no model is called." in page.text


async def test_without_a_limit_there_is_no_section(tmp_path):
    async with console(tmp_path) as made, made.logged_in("read", "admin") as ada:
        assert 'id="cost-limits"' not in (await ada.get("/console/cost")).text
