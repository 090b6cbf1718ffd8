"""Promises of every page of the console, in a real browser.

A new page gets a line in ``PAGES``: its address, the element that shows news, and a function that makes some.
"""

import asyncio
import time
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
import pytest_asyncio

from hookline import Agent, Limits, ScriptedModel
from hookline.records import RecordHook
from hookline.server.console.now import NowPage
from hookline.server.console.render import NAVIGATION
from hookline.stores import AuditLog, StoreError
from hookline.stores.facts import Gate, ObservedRun, RunFact
from hookline.stores.tickets import TicketBoard
from hookline.testing import call, reply

from .asking import careful, delete, finished, not_outside, waiting_call
from .browser import LOST, NO_STREAM, PHONE, Proxy, accessibility_problems, expect, fits, in_browser, opened
from .rig import console

pytestmark = in_browser


@dataclass
class World:
    """A server whose stores have something for every page."""

    made: object
    client: object
    folder: Path
    run: str = ""

    async def fill(self):
        """Put something on every page, so that a look at it says something."""
        run, row = await waiting_call(self.made, self.client, "first.txt")
        await self.decide(row)
        await finished(self.client, run)
        await self.blocked("secrets")
        await self.chat("hello.txt")
        await self.ticket("Tidy up")
        for name in ("waits.txt", "waits-too.txt"):
            await waiting_call(self.made, self.client, name)

    async def decide(self, row, **fields):
        fields = {"decision": "approve", "digest": row.digest, **fields}
        answer = await self.client.post(f"/approvals/{row.id}", json=fields)
        assert answer.status_code == 200, answer.text

    # News, each with a name that the page shows then.

    async def waiting(self, name):
        await waiting_call(self.made, self.client, name)

    async def blocked(self, name):
        run = (await self.client.post("/runs", json={"task": f"/{name}"})).json()["id"]
        await finished(self.client, run)

    async def counted(self, name):
        """A hook and a model of this name were called."""
        run, now = ObservedRun("run_1", "cleaner", asked="cleaner", owner="local"), time.time()
        gates = (Gate(name, "guard", "block", 9, refused=True),)
        fire = RunFact(run, now, "fire", point="before_tool", hook=name, verb="block", refused=True, gates=gates)
        self.made.server.service.store.add([], [fire, RunFact(run, now, "model", model=name, source="model", cost=0.5)])
        await self.blocked(name)

    async def audited(self, name):
        with closing(AuditLog(self.folder / "audit.jsonl", fsync="never")) as log:
            log.record("deploy", version=name)

    async def chat(self, name):
        body, headers = {"id": f"message-of-{name:x<20}".replace(".", "-"), "text": f"/{name}"}, {"X-Chat": "talk"}
        answer = await self.client.post("/console/chat/messages?agent=cleaner", json=body, headers=headers)
        assert answer.status_code == 204, answer.text

    async def step(self, name):
        """Deny the next call of the open run, for this reason. The one after it is shown at once."""
        while not (rows := self.made.server.service.approvals.rows(status="pending", root_id=self.run)):
            await asyncio.sleep(0.005)
        await self.decide(rows[0], decision="deny", message=name)

    async def ticket(self, name):
        TicketBoard(self.folder / "tickets.db").create(name, by="ada")


@dataclass
class Page:
    path: str
    shows: str
    """The element that shows news."""
    happens: object = None
    """Makes news, as a function of the world and a name; without it, the page does not change."""
    keys: bool = False
    """Whether ``j`` and ``k`` go through its rows."""
    search: bool = False
    """Whether ``/`` goes to its search."""
    lost: str = ".connection"
    """The element that says that the connection is lost."""


PAGES = {
    "Now": Page("/", "#now-asks", World.waiting, keys=True),
    "Runs": Page("/console/runs", "#runs-rows", World.blocked, keys=True, search=True),
    "Run": Page("/console/runs/{run}", "#run-steps", World.step),
    "Approvals": Page("/console/approvals", "#approvals-waiting", World.waiting, keys=True),
    "Blocked": Page("/console/blocked", "#blocked-rows", World.blocked),
    "Refusals": Page("/console/blocked?by=events", "#blocked-rows", World.blocked, keys=True),
    "Hooks": Page("/console/hooks", "#hooks-list", World.counted, keys=True),
    "Cost": Page("/console/cost", "#cost-tables", World.counted, keys=True),
    "Replay": Page("/console/replay", "#replay-rows", World.blocked, keys=True, search=True),
    "Audit": Page("/console/audit", "#audit-rows", World.audited, keys=True, search=True),
    "Chat": Page("/console/chat?agent=cleaner&session=talk", "#log", World.chat, lost="#banner"),
    "Tickets": Page("/console/tickets", "#tickets-todo", World.ticket),
    "Log in": Page("/console/login", ".login"),
}
LIVE = {name: page for name, page in PAGES.items() if page.happens}
NEWS = "before.txt", "meanwhile.txt", "after.txt"


def turn(request):
    """Delete the files that the task names, one after the other."""
    task, *results = (each for each in request.messages if each.role in ("user", "tool"))
    files = task.content.split()
    return call("delete", path=files[len(results)]) if len(results) < len(files) else reply("All are gone.")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def world(tmp_path_factory):
    folder = tmp_path_factory.mktemp("console")
    agent = Agent(
        "cleaner",
        llm=ScriptedModel([turn], loop=True),
        tools=[delete],
        limits=Limits(steps=20),
        hooks=[not_outside, careful, RecordHook(folder / "records")],
    )
    (folder / "rules.py").write_text(
        "from hookline import guard\n\n@guard('before_tool')\ndef other(ctx, payload): ..."
    )
    files = {"tickets": folder / "tickets.db", "audit": folder / "audit.jsonl"}
    async with console(folder, agent, rules=["rules.py"], **files) as made, made.browser() as client:
        found = World(made, client, folder)
        await found.fill()
        yield found


async def address(world, page):
    """Return the address of a page. A run is begun for the page of a run, which shows each of its calls."""
    if "{run}" in page.path:
        task = " ".join(f"file-{number}" for number in range(len(NEWS)))
        world.run = (await world.client.post("/runs", json={"task": task})).json()["id"]
    return page.path.format(run=world.run)


async def test_every_page_of_the_navigation_is_tested():
    assert {path for group in NAVIGATION for _, path, _ in group} <= {
        page.path.partition("?")[0] for page in PAGES.values()
    }


@pytest.mark.parametrize("name", LIVE)
async def test_a_page_shows_news_at_once_and_catches_up_after_its_connection_was_lost(browser, world, name):
    first, second, third = (f"{name}-{each}" for each in NEWS)
    happens, path = partial(LIVE[name].happens, world), await address(world, LIVE[name])
    async with Proxy(world.made) as proxy, opened(browser, proxy, path, allowed=LOST) as page:
        news, lost = page.locator(LIVE[name].shows), page.locator(LIVE[name].lost)
        await expect(news).to_be_visible()
        await happens(first)
        await expect(news).to_contain_text(first)
        await expect(lost).to_be_hidden()
        await proxy.cut()
        await expect(lost).to_be_visible()
        await happens(second)
        await expect(news).not_to_contain_text(second)
        await proxy.mend()
        await expect(news).to_contain_text(second)
        await expect(lost).to_be_hidden()
        await happens(third)
        await expect(news).to_contain_text(third)


async def test_an_open_page_says_that_its_news_stopped_and_shows_them_when_they_go_on(browser, world, monkeypatch):
    def unreadable(*args, **options):
        raise StoreError("the disk is gone")

    async with opened(browser, world.made, "/") as page:
        news, notice = page.locator("#now-asks"), page.locator(".connection")
        await expect(news).to_be_visible()
        await expect(notice).to_be_hidden()
        with monkeypatch.context() as broken:
            broken.setattr(NowPage, "_render", unreadable)
            await world.waiting("Stopped-news.txt")
            await expect(notice).to_contain_text("This page is not up to date: the server cannot read its files now.")
            await expect(notice).to_contain_text("(since ")
            await expect(news).not_to_contain_text("Stopped-news.txt")
            assert await accessibility_problems(page) == []
        await expect(news).to_contain_text("Stopped-news.txt")
        await expect(notice).to_be_hidden()


async def test_an_open_page_shows_the_other_sections_if_one_cannot_be_drawn(browser, world, monkeypatch):
    def unknown(*args, **options):
        raise KeyError("quarantined")

    async with opened(browser, world.made, "/") as page:
        news, blocked = page.locator("#now-asks"), page.locator("#now-blocked")
        await expect(blocked).to_contain_text("not_outside")
        with monkeypatch.context() as broken:
            broken.setattr("hookline.server.console.now.refusal_groups", unknown)
            await world.waiting("Other-section.txt")
            await expect(news).to_contain_text("Other-section.txt")
            await expect(blocked).to_contain_text("could not be drawn")
            assert await fits(page)
            assert await accessibility_problems(page) == []
        await world.blocked("Mended-section.txt")
        await expect(blocked).to_contain_text("not_outside")


async def test_an_open_page_says_that_the_server_sends_no_stream(browser, world, monkeypatch):
    async def no_stream(*args, **options):
        raise ValueError("a bug")

    async with Proxy(world.made) as proxy, opened(browser, proxy, "/", allowed=(LOST, "500", NO_STREAM)) as page:
        notice = page.locator(".connection")
        await expect(page.locator("#now-asks")).to_be_visible()
        with monkeypatch.context() as broken:
            broken.setattr("hookline.server.console.live.LiveViews.stream", no_stream)
            await proxy.cut()
            await expect(notice).to_contain_text("Connection lost.")
            await proxy.mend()
            await expect(notice).to_contain_text("The server sends no news of this page.")
        await expect(notice).to_be_hidden()


@pytest.mark.parametrize("name", PAGES)
async def test_a_page_fits_a_phone(browser, world, name):
    async with opened(browser, world.made, await address(world, PAGES[name]), **PHONE) as page:
        await expect(page.locator(PAGES[name].shows)).to_be_visible()
        assert await fits(page)


@pytest.mark.parametrize("name", PAGES)
async def test_axe_finds_nothing_serious_on_a_page_in_light_and_dark(browser, world, name):
    async with opened(browser, world.made, await address(world, PAGES[name])) as page:
        await expect(page.locator(PAGES[name].shows)).to_be_visible()
        for scheme in ("light", "dark"):
            await page.emulate_media(color_scheme=scheme)
            assert await accessibility_problems(page) == []


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.keys])
async def test_keys_go_through_the_rows_of_a_list(browser, world, name):
    async with opened(browser, world.made, PAGES[name].path) as page:
        rows = page.locator("[data-row]")
        await expect(rows.nth(1)).to_be_visible()
        for key, row in (("j", 0), ("j", 1), ("k", 0), ("k", 0)):
            await page.keyboard.press(key)
            await expect(rows.nth(row)).to_be_focused()


@pytest.mark.parametrize("name", [name for name, page in PAGES.items() if page.search])
async def test_a_key_goes_to_the_search(browser, world, name):
    async with opened(browser, world.made, PAGES[name].path) as page:
        await page.keyboard.press("/")
        await page.keyboard.type("j/k")
        await expect(page.locator("[data-search]")).to_have_value("j/k")
