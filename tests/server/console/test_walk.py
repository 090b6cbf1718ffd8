"""A random walk over the console: what a person can click, type or open breaks no page, and the numbers agree."""

import asyncio
import os
import random
import re
import tempfile
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.payloads import Usage
from hookline.records import RecordHook
from tests.chromium import needs_chromium

from .rig import console

pytestmark = needs_chromium

STEPS = 300 if "FUZZ_EXAMPLES" in os.environ else 12
ODD = "<b>invoice</b> \u202egnp.exe " + "long" * 60
KEYS = ("j", "k", "n", "p", "?", "Escape", "/", "Enter", "a", "d", "e", "Control+k", "Tab")
NOT_WALKED = ("/console/logout", "/console/static/", "/explain", "/tape")


@tool
def delete(path: str) -> str:
    """Delete a file."""
    if path == "missing":
        raise FileNotFoundError(path)
    return f"{path} is gone"


@guard(BEFORE_TOOL)
def not_outside(ctx, request):
    return HookResult.block("outside", reason=f"rule 3 {ODD}") if request.arguments["path"].startswith("/") else None


@guard(BEFORE_TOOL)
def careful(ctx, request):
    return HookResult.ask("May this file go?") if request.arguments["path"].startswith("ask") else None


def turn(request):
    task, *results = (each.content for each in request.messages if each.role in ("user", "tool"))
    paths = task.split()
    if "crash" in paths:
        raise RuntimeError("the model is down")
    if len(results) < len(paths):
        return reply("", tool_calls=(call("delete", path=paths[len(results)]),), usage=Usage(100, 10), cost=0.25)
    return reply(ODD, usage=Usage(100, 10), cost=0.25)


@pytest.fixture(scope="module", autouse=True)
def _playwright():
    pytest.importorskip("playwright.async_api", reason="the browser tests need: pip install playwright")


@settings(max_examples=1, deadline=None, phases=[Phase.generate])  # a shorter walk says nothing more
@given(seed=st.integers(0, 2**32))
def test_a_random_walk_over_the_console_breaks_nothing(seed):
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_walk(random.Random(seed), Path(folder)))


async def _walk(rnd, folder):
    from .browser import chromium

    agent = Agent(
        "clerk",
        llm=ScriptedModel([turn], loop=True),
        tools=[delete],
        hooks=[not_outside, careful, RecordHook(folder / "records")],
    )
    files = {"tickets": folder / "tickets.db", "audit": folder / "audit.jsonl"}
    async with console(folder, agent, rate=100_000, **files) as made, made.browser() as client, chromium() as browser:
        for task in ("a b", "/etc c", f"{ODD} missing", "crash", "ask-1", "x ask-2", "ask-3"):
            await _started(client, task)
        walker = _Walker(rnd, made, client, await browser.new_page())
        await walker.visit("/")
        for _ in range(STEPS):
            await walker.step()
        await walker.check_numbers()


try:
    from playwright.async_api import Error
except ImportError:  # the test is skipped
    Error = RuntimeError


async def _started(client, task):
    """Start a run, and wait until it ends or waits for a person."""
    run = (await client.post("/runs", json={"task": task})).json()["id"]
    while (await client.get(f"/runs/{run}")).json()["status"] in ("queued", "running"):
        await asyncio.sleep(0.02)


class _Walker:
    """A person who does anything. What it did is in the message of each problem."""

    def __init__(self, rnd, made, client, page):
        self.rnd, self.made, self.client, self.page = rnd, made, client, page
        self.did, self.problems = [], []
        page.set_default_timeout(8_000)
        page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        page.on("console", self._said)
        page.on("response", self._answered)
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))

    def _said(self, message):
        if not re.search(r"status of 4(00|09|10|13|22)", message.text):  # forms that were not filled in
            self.problems.append(message.text)

    def _answered(self, response):
        if response.status >= 500 or (response.status == 404 and response.request.method == "GET"):
            self.problems.append(f"{response.status} {response.url}")

    async def visit(self, path):
        self.did.append(path)
        await self.page.goto(self.made.url + path, wait_until="domcontentloaded")
        await self._check()

    async def step(self):
        """Do something: go somewhere, press a key, open or press something, or decide about a call."""
        act = self.rnd.choice((self._link, self._link, self._link, self._key, self._press, self._choose, self._more))
        with suppress(Error):  # what is pressed may be gone by then: its page goes on
            await act()
        await self._check()

    async def _link(self):
        hrefs = await self.page.eval_on_selector_all(
            "a[href]", "all => all.map((each) => new URL(each.getAttribute('href'), document.baseURI).href)"
        )
        paths = sorted({url.removeprefix(self.made.url) for url in hrefs if url.startswith(self.made.url)})
        await self.visit(self.rnd.choice([each for each in paths if not any(no in each for no in NOT_WALKED)]))

    async def _key(self):
        key = self.rnd.choice(KEYS)
        self.did.append(f"key {key}")
        await self.page.keyboard.press(key)

    async def _press(self):
        shown = "main button:visible, main summary:visible, main [data-call]:visible, .icons button:visible"
        await self._click(await self.page.query_selector_all(shown))

    async def _choose(self):
        found = [each for each in await self.page.query_selector_all("main select") if await each.is_visible()]
        if found:
            chosen = self.rnd.choice(found)
            values = await chosen.evaluate("each => [...each.options].map((option) => option.value)")
            self.did.append(f"choose one of {values[:5]}")
            await chosen.select_option(self.rnd.choice(values))

    async def _more(self):
        task = self.rnd.choice(("a", "/b", "crash", f"ask-{len(self.did)}", ODD))
        self.did.append(f"run {task}")
        await _started(self.client, task)

    async def _click(self, found):
        if not found:
            return
        chosen = self.rnd.choice(found)
        self.did.append(f"click {(await chosen.inner_text()).strip()[:40]!r}")
        if "Halt" not in self.did[-1]:
            await chosen.evaluate(
                "each => each.dispatchEvent(new MouseEvent('click', {bubbles: true, cancelable: true}))"
            )

    async def _check(self):
        """Wait until the page rests, and fail if anything went wrong."""
        text = ""
        while not text:
            with suppress(Error):  # it goes to another page at this moment
                await self.page.wait_for_load_state("domcontentloaded")
                text = await self.page.inner_text("body", timeout=30_000)
        assert self.problems == [], (self.did[-12:], self.problems)
        assert "could not be drawn" not in text, self.did[-12:]
        assert "\u202e" not in text, self.did[-12:]

    async def check_numbers(self):
        """The numbers of the pages are those of the API."""
        waiting = (await self.client.get("/approvals?status=pending")).json()["approvals"]
        hooks, costs = (await self.client.get("/hooks")).json(), (await self.client.get("/costs")).json()
        blocked = sum(each["verbs"].get("block", 0) for each in hooks["hooks"])
        await self.visit("/")
        assert await self.page.get_attribute("#waiting", "data-count") == str(len(waiting))
        assert await self.page.locator("#now-asks article").count() == len(waiting)
        await self.visit("/console/hooks")
        row = self.page.locator("#hooks-list tr", has_text="not_outside").first
        assert f"blocked\n{blocked}" in await row.inner_text() or f"blocked{blocked}" in await row.inner_text()
        await self.visit("/console/cost")
        assert f"${costs['total']['cost']:.2f}" in await self.page.inner_text("#cost-totals")
        await self.visit("/console/blocked?hook=not_outside")
        counts = re.findall(r"\d+", " ".join(await self.page.locator(".grp .cnt").all_inner_texts()))
        assert sum(map(int, counts)) == blocked
        assert urlsplit(self.page.url).path == "/console/blocked"
