"""A random walk over the console: what a person can click, type or open breaks no page, and the numbers agree."""

import asyncio
import os
import random
import re
import tempfile
from collections import Counter
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, Limits, ScriptedModel, call, guard, reply, tool
from hookline.payloads import Usage
from hookline.records import RecordHook
from hookline.stores.tickets import TicketBoard
from tests.chromium import needs_chromium

from .rig import console

pytestmark = needs_chromium

ODD = "<b>invoice</b> \u202egnp.exe " + "long" * 60
STEPS = 300 if "FUZZ_EXAMPLES" in os.environ else 12
TASKS = ("a b", "/etc c", f"{ODD} missing", "crash", "ask-1", "x ask-2", "ask-3", "end", "many " * 9, "slow")
"""Runs that complete, are blocked, fail, wait, are ended by a hook, stop at a limit, and do not end."""
KEYS = ("j", "k", "n", "p", "?", "Escape", "/", "Enter", "a", "d", "e", "Control+k", "Tab")
NOT_WALKED = ("/console/logout", "/console/static/", "/explain", "/tape")
"""Links that leave the console. They are read, but not opened."""
EXPECTED = r"status of 4(00|09|10|13|22)|ERR_|EventSource"
"""Messages about forms that were not filled in, and about a server that is gone for a moment."""
RULES = """
from hookline import HookResult, guard

@guard("before_tool")
def not_outside(ctx, request):
    return HookResult.block("no") if request.arguments["path"] == "a" else None
"""


@tool
async def delete(path: str) -> str:
    """Delete a file."""
    if path == "missing":
        raise FileNotFoundError(path)
    if path == "slow":
        await asyncio.sleep(3600)
    return f"{path} is gone"


@guard(BEFORE_TOOL)
def not_outside(ctx, request):
    return HookResult.block("outside", reason=f"rule 3 {ODD}") if request.arguments["path"].startswith("/") else None


@guard(BEFORE_TOOL)
def final(ctx, request):
    return HookResult.end("That is enough.") if request.arguments["path"] == "end" else None


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


def seed_of(config):
    """Return the number that decides about the walk: the seed of the round in ``make fuzz``, otherwise always the same.

    An example of hypothesis would not do: the first one is the simplest one, whatever the seed is.
    """
    return config.getoption("--hypothesis-seed") or 0


@pytest.mark.hypothesis
def test_a_random_walk_over_the_console_breaks_nothing(pytestconfig):
    seed = seed_of(pytestconfig)
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_walk(random.Random(seed), Path(folder)))


async def _walk(rnd, folder):
    from .browser import chromium

    (folder / "strict.py").write_text(RULES)
    TicketBoard(folder / "tickets.db").create(ODD[:100], by="ada")
    async with _Server(folder) as server, chromium() as browser:
        for task in TASKS:
            await server.start(task)
        walker = _Walker(rnd, server, await browser.new_page())
        await walker.visit("/")
        for step in range(STEPS):
            await walker.step()
            if step % 50 == 49:
                await walker.check_numbers()
        await walker.restart()
        await walker.check_numbers()


class _Server:
    """A server that can be restarted at its address. Its runs go on or are interrupted then."""

    def __init__(self, folder):
        self._folder, self._stack, self._options = folder, AsyncExitStack(), {"rate": 100_000, "max_runs": 4}
        self.client = None
        self.url = ""

    async def __aenter__(self):
        await self._begin()
        return self

    async def __aexit__(self, *error):
        await self._stack.aclose()

    async def _begin(self):
        folder = self._folder
        agent = Agent(
            "clerk",
            llm=ScriptedModel([turn], loop=True),
            tools=[delete],
            hooks=[not_outside, careful, final, RecordHook(folder / "records")],
            limits=Limits(steps=6),
        )
        files = {"tickets": folder / "tickets.db", "audit": folder / "audit.jsonl", "rules": ["strict.py"]}
        made = await self._stack.enter_async_context(console(folder, agent, **files, **self._options))
        self.client = await self._stack.enter_async_context(made.browser())
        self.url = made.url
        self._options["port"] = int(made.url.rpartition(":")[2])

    async def restart(self):
        await self._stack.aclose()
        await self._begin()

    async def get(self, path):
        return (await self.client.get(path)).json()

    async def start(self, task):
        """Start a run, and wait until it ends, waits for a person, or calls the slow tool."""
        run = (await self.client.post("/runs", json={"task": task})).json().get("id")
        while run and "slow" not in task:
            if (await self.get(f"/runs/{run}"))["status"] not in ("queued", "running"):
                return
            await asyncio.sleep(0.02)

    async def runs(self):
        found, before = [], ""
        while True:
            page = await self.get(f"/runs?limit=200&before={before}")
            found += page["runs"]
            before = page["next"]
            if not before:
                return found


try:
    from playwright.async_api import Error
except ImportError:  # the test is skipped
    Error = RuntimeError


class _Walker:
    """A person who does anything, and what they have not done yet more often than the rest.

    What it did is in the message of each problem.
    """

    def __init__(self, rnd, server, page):
        self.rnd, self.server, self.page = rnd, server, page
        self.did, self.problems, self.done, self.read = [], [], Counter(), set()
        self.is_halted = False  # then no run begins: 503
        page.set_default_timeout(4_000)
        page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        page.on("console", self._said)
        page.on("response", self._answered)
        page.on("dialog", lambda dialog: self.problems.append(dialog.message))

    def _said(self, message):
        if not re.search(EXPECTED, message.text) and not (self.is_halted and "503" in message.text):
            self.problems.append(message.text)

    def _answered(self, response):
        gone = "call=", "/replay/job_"  # the server forgets tries when it ends
        is_get = response.request.method == "GET"
        is_dead = response.status == 404 and is_get and not any(each in response.url for each in gone)
        if (response.status >= 500 and not (self.is_halted and response.status == 503)) or is_dead:
            self.problems.append(f"{response.status} {response.url}")

    async def visit(self, path):
        self.did.append(path)
        await self.page.goto(self.server.url + path, wait_until="domcontentloaded")
        await self._check()

    async def step(self):
        """Do something: go somewhere, press a key, fill in or press something, or decide about a call."""
        acts = self._link, self._link, self._press, self._press, self._key, self._choose, self._write, self._decide
        rare = self._run, self._cancel, self._halt, self.restart
        act = self.rnd.choice((*acts, *acts, *acts, *rare))
        with suppress(Error):  # what is pressed may be gone by then: its page goes on
            await act()
        await self._check()

    def _pick(self, named):
        """Return the name of one of several things to do: often one that was done seldom."""
        names = sorted(named)
        if self.rnd.random() < 0.7:
            least = min(self.done[each] for each in names)
            names = [each for each in names if self.done[each] == least]
        chosen = self.rnd.choice(names)
        self.done[chosen] += 1
        return chosen

    async def _links(self):
        hrefs = await self.page.eval_on_selector_all(
            "a[href]:not([href^='#'])",  # places of the page itself, which may say that a field was filled in wrongly
            "all => all.map((each) => new URL(each.getAttribute('href'), document.baseURI).href)",
        )
        return {url.removeprefix(self.server.url) for url in hrefs if url.startswith(self.server.url)}

    async def _link(self):
        paths = [each for each in await self._links() if not any(no in each for no in NOT_WALKED)]
        kinds = {re.sub(r"run_\w+|job_\w+|\d+", "N", path): path for path in sorted(paths)}
        await self.visit(kinds[self._pick(kinds)])

    async def _key(self):
        key = self._pick(KEYS)
        self.did.append(f"key {key}")
        await self.page.keyboard.press(key)

    async def _press(self):
        shown = "main button:visible, main summary:visible, main [data-call]:visible, .icons button:visible"
        found = await self.page.query_selector_all(f"{shown}, main label:visible:has([type=checkbox])")
        words = {re.sub(r"\d+", "N", (await each.text_content()).strip()[:40]): each for each in found}
        words = {word: each for word, each in words.items() if "Halt" not in word}
        if words:
            word = self._pick(words)
            self.did.append(f"click {word!r} on {self.page.url}")
            click = "new MouseEvent('click', {bubbles: true, cancelable: true})"
            await words[word].evaluate(f"each => each.isConnected && each.dispatchEvent({click})")

    async def _choose(self):
        found = [each for each in await self.page.query_selector_all("main select") if await each.is_visible()]
        if found:
            chosen = self.rnd.choice(found)
            values = await chosen.evaluate("each => [...each.options].map((option) => option.value)")
            self.did.append(f"choose one of {values[:5]}")
            await chosen.select_option(self.rnd.choice(values))

    async def _write(self):
        """Fill in a field of the page, and send it."""
        fields = await self.page.query_selector_all("main input:visible:not(#halt-reason), main textarea:visible")
        types = {"text", "search", None, "datetime-local"}
        found = [each for each in fields if await each.get_attribute("type") in types]
        if found:
            field, text = (
                self.rnd.choice(found),
                self.rnd.choice(("delete", "not_outside", ODD, "clerk", "2026-01-01T10:00")),
            )
            self.did.append(f"write {text[:20]!r} into {await field.get_attribute('name')} on {self.page.url}")
            await field.fill(text)
            await field.press("Enter")

    async def _decide(self):
        """Approve, deny or edit a call that waits."""
        waiting = (await self.server.get("/approvals?status=pending"))["approvals"]
        if not waiting:
            await self.server.start(f"ask-{len(self.did)}")
        path = self._pick(("/console/approvals", "/", f"/console/runs/{waiting[0]['run_id'] if waiting else ''}"))
        how = self._pick(("approve", "deny", "edit", "always"))
        await self.visit("/console/approvals" if path.endswith("/runs/") else path)
        card = self.page.locator("article.ask").first
        self.did.append(how)
        if how == "always":
            await card.locator("select").select_option("always")
        elif how == "deny":
            await card.locator("[name=message]").fill(ODD)
        elif how == "edit":
            await card.locator("details summary").click()
            await card.locator("textarea").fill('{"path": "edited"}')
        button = {"deny": "Deny", "edit": "Run with these arguments"}.get(how, "Approve")
        await card.get_by_role("button", name=button).click()

    async def _run(self):
        task = self.rnd.choice((*TASKS, f"ask-{len(self.did)}", "/b", ODD))
        self.did.append(f"run {task}")
        await self.server.start(task)

    async def _cancel(self):
        """Cancel a run that does not end, in the page."""
        await self.server.start("slow")
        open_runs = [each["id"] for each in await self.server.runs() if each["status"] in ("running", "queued")]
        if open_runs:
            await self.visit(f"/console/runs/{self.rnd.choice(open_runs)}")
            await self.page.click("#run-cancel summary")
            await self.page.fill("#cancel-reason", ODD)
            await self.page.click("#run-cancel button")
            self.did.append("cancel")

    async def _halt(self):
        """Halt all runs, look at a page, and release them."""
        await self.visit("/console/halt")
        self.is_halted = True  # also if what follows takes too long: until a later release
        await self.page.fill("#halt-reason", ODD)
        await self.page.click("#halt-switch button")
        await self.page.wait_for_selector(".halted")
        await self._link()
        self.did.append("release")
        await self.page.click(".halted button")
        await self.page.wait_for_selector(".halted", state="detached")
        self.is_halted = False

    async def restart(self):
        """Restart the server under the open page, which catches up by itself."""
        self.did.append(f"restart under {self.page.url}")
        await self.server.restart()
        if "/replay/job_" in self.page.url:
            await self.page.get_by_text("The server no longer has what this page shows.").wait_for(timeout=60_000)
            await self.visit("/")
        await self.page.wait_for_selector(".connection", state="hidden", timeout=60_000)

    async def _check(self):
        """Wait until the page rests, and fail if anything went wrong."""
        text = ""
        while not text:
            with suppress(Error):  # it goes to another page at this moment
                await self.page.wait_for_load_state("domcontentloaded")
                text = await self.page.inner_text("body", timeout=30_000)
                await self.page.evaluate("new Promise((done) => requestAnimationFrame(done))")
        assert self.problems == [], (self.did[-12:], self.problems)
        assert "could not be drawn" not in text, self.did[-12:]
        assert "could not be shown" not in text, self.did[-12:]
        assert "\u202e" not in text, self.did[-12:]
        new = {re.sub(r"#.*", "", each) for each in await self._links()} - self.read
        self.read |= new
        for path in self.rnd.sample(sorted(new), min(len(new), 5)):
            answer = await self.server.client.get(path)
            assert answer.status_code < 400, (path, answer.status_code, self.did[-12:])

    async def check_numbers(self):
        """The numbers of the pages are those of the API."""
        waiting = (await self.server.get("/approvals?status=pending"))["approvals"]
        hooks, costs = await self.server.get("/hooks"), await self.server.get("/costs")
        blocked = sum(each["verbs"].get("block", 0) for each in hooks["hooks"] if each["hook"] == "not_outside")
        states = Counter(each["status"] for each in await self.server.runs())
        await self.visit("/")
        assert await self.page.get_attribute("#waiting", "data-count") == str(len(waiting))
        assert await self.page.locator("#now-asks article").count() == min(len(waiting), 20)
        running = await self.page.locator("#now-counts .tile").first.locator(".tn").inner_text()
        assert int(running) == states["running"]
        await self.visit("/console/runs")
        shown = {state: await self.page.inner_text(f"#runs-count-{state}") for state in states}
        assert shown == {state: str(count) for state, count in states.items()}
        await self.visit("/console/hooks")
        row = self.page.locator("#hooks-list tr", has_text="not_outside").first
        if blocked:
            assert f"blocked\n{blocked}" in await row.inner_text() or f"blocked{blocked}" in await row.inner_text()
        await self.visit("/console/cost")
        assert f"${costs['total']['cost']:.2f}" in await self.page.inner_text("#cost-totals")
        await self.visit("/console/blocked?hook=not_outside")
        counts = re.findall(r"\d+", " ".join(await self.page.locator(".grp .cnt").all_inner_texts()))
        assert sum(map(int, counts)) == blocked
        assert urlsplit(self.page.url).path == "/console/blocked"
