"""Pages of the console in a real browser. The fixture ``browser`` is in conftest.py."""

import asyncio
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from tests.chromium import CHROMIUM, needs_chromium

playwright = pytest.importorskip("playwright.async_api", reason="the browser tests need: pip install playwright")
expect = playwright.expect
expect.set_options(timeout=100_000)

in_browser = [pytest.mark.slow, needs_chromium, pytest.mark.asyncio(loop_scope="module")]
"""The marks of a module with browser tests."""

DESKTOP = {"viewport": {"width": 1300, "height": 900}}
PHONE = {"viewport": {"width": 390, "height": 844}, "is_mobile": True, "has_touch": True}
LOST = "ERR_"
"""Chromium's message about a connection that is lost."""
NO_STREAM = "EventSource"
"""Chromium's message about a server that answers with something else than a stream."""


@asynccontextmanager
async def chromium():
    """A browser without windows."""
    async with playwright.async_playwright() as driver:
        options = ["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        browser = await driver.chromium.launch(executable_path=CHROMIUM, args=options)
        yield browser
        await browser.close()


@asynccontextmanager
async def opened(browser, made, path, *, allowed=(), login=None, clock=False, **options):
    """Open a page. Fail if it reports an error or a violation of its policy, or requests anything from elsewhere.

    ``allowed`` is a part, or parts, of the errors that a test expects.
    ``login`` are the rights of a new key to log in with.
    With ``clock``, the test can let time pass in the page: ``page.clock``.
    """
    context = await browser.new_context(**{**DESKTOP, **options})
    context.set_default_timeout(0)  # pytest's own timeout is the limit
    if login is not None:
        async with made.logged_in(*login) as client:
            cookies = [{"name": name, "value": value, "url": made.url} for name, value in client.cookies.items()]
            await context.add_cookies(cookies)
    page = await context.new_page()
    if clock:
        await page.clock.install()
    problems, requests = [], []
    page.on("pageerror", lambda problem: problems.append(str(problem)))
    page.on("console", lambda message: problems.append(message.text))
    page.on("request", lambda request: requests.append(request.url))
    try:
        await page.goto(made.url + path, wait_until="domcontentloaded")
        yield page
        parts = (allowed,) if isinstance(allowed, str) else allowed
        problems = [each for each in problems if not any(part in each for part in parts)]
        assert not problems, problems
        elsewhere = [url for url in requests if not url.startswith(made.url)]
        assert not elsewhere, elsewhere
    finally:
        await context.close()


async def fits(page):
    """Return whether a page does not scroll sideways."""
    return await page.evaluate("document.documentElement.scrollWidth <= innerWidth")


async def accessibility_problems(page):
    """Return what axe-core calls serious or critical, as the rule, the elements and the advice."""
    axe = pytest.importorskip("axe_playwright_python.async_playwright", reason="pip install axe-playwright-python")
    found = await axe.Axe().run(page)
    return [
        (each["id"], node["html"][:200], node["failureSummary"])
        for each in found.response["violations"]
        if each["impact"] in ("serious", "critical")
        for node in each["nodes"]
    ]


class Proxy:
    """A connection to a server that can be cut. Use it in place of the server's address."""

    def __init__(self, made):
        self._made = made
        self._target = urlsplit(made.url)
        self._server = None
        self._port = 0
        self._open = set()
        self.url = ""

    def logged_in(self, *scopes):
        return self._made.logged_in(*scopes)

    async def __aenter__(self):
        await self.mend()
        return self

    async def __aexit__(self, *error):
        await self.cut()

    async def mend(self):
        """Let connections through."""
        self._server = await asyncio.start_server(self._connect, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{self._port}"

    async def cut(self):
        """Abort all connections, and refuse new ones."""
        self._server.close()
        for each in list(self._open):
            each.transport.abort()
        await self._server.wait_closed()

    async def _connect(self, reader, writer):
        there, back = await asyncio.open_connection(self._target.hostname, self._target.port)
        both = {writer, back}
        self._open |= both
        try:
            await asyncio.gather(self._copy(reader, back), self._copy(there, writer))
        finally:
            self._open -= both
            for each in both:
                each.transport.abort()

    @staticmethod
    async def _copy(source, target):
        try:
            while data := await source.read(65_536):
                target.write(data)
                await target.drain()
        except OSError:
            pass
        target.transport.abort()
