"""Take the animated picture of the console: ``python docs/pictures/console.py``, with Chromium and pillow installed.

A real server with scripted agents; a real browser clicks through its pages.
"""

import asyncio
import io
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx
from PIL import Image
from playwright.async_api import Page, async_playwright

from hookline import (
    AFTER_TOOL,
    BEFORE_TOOL,
    Agent,
    AgentContext,
    HookResult,
    ScriptedModel,
    ToolCallRequest,
    ToolCallResult,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.config.settings import Settings
from hookline.payloads import Usage
from hookline.server.build import build_parts
from hookline.server.options import ServerOptions

TARGET = Path(__file__).with_name("console.gif")
WIDTH, HEIGHT = 1120, 700
COLORS = 200


@tool
async def read_invoice(number: int) -> str:
    """Read an invoice."""
    await asyncio.sleep(0.8)
    return f"Invoice {number}: 1,480 euros to Brick & Sons, account DE44 5001 0517 5407 3249 31."


@tool
async def search(words: str) -> str:
    """Search the web."""
    await asyncio.sleep(600)
    return ""


@tool
def pay(account: str, euros: int) -> str:
    """Pay an invoice."""
    return f"{euros} euros are on their way."


@tool
async def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    await asyncio.sleep(0.5)
    return f"sent to {to}"


@guard(BEFORE_TOOL, tools="send_*")
def stay_inside(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Block mail to strangers."""
    if not request.arguments["to"].endswith("@example.com"):
        return HookResult.block("Mail goes to colleagues only.", reason="mail would leave the company")
    return None


@guard(BEFORE_TOOL, tools="pay")
def large_sums(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Let a person decide about large sums."""
    if request.arguments["euros"] > 1000:
        return HookResult.ask("Pay this invoice?", reason="more than 1,000 euros")
    return None


@hook(AFTER_TOOL)
def hide_accounts(ctx: AgentContext, done: ToolCallResult) -> HookResult | None:
    """Hide account numbers from the model."""
    hidden = done.text.replace("DE44 5001 0517 5407 3249 31", "[account 1]")
    if hidden != done.text:
        return HookResult.replace(done.with_text(hidden), reason="an account number was in the result")
    return None


def agents() -> dict[str, Agent]:
    """Return the agents of the office, with what their models say."""

    def made(name: str, tools: list[Any], *turns: Any) -> Agent:
        model = ScriptedModel(turns, loop=True, delay=0.2)
        return Agent(name, llm=model, tools=tools, hooks=[stay_inside, large_sums, hide_accounts])

    def says(text: str = "", *calls: Any) -> Any:
        return reply(text, tool_calls=calls, usage=Usage(1240, 86), cost=0.0042)

    return {
        "clerk": made(
            "clerk",
            [read_invoice, send_mail],
            says("", call("read_invoice", number=221)),
            says("", call("send_mail", to="pal@example.org", text="Invoice 221: 1,480 euros to Brick & Sons.")),
            says("", call("send_mail", to="books@example.com", text="Invoice 221: 1,480 euros to Brick & Sons.")),
            says("I mailed invoice 221 to the books. I may not mail it to pal@example.org."),
        ),
        "accountant": made(
            "accountant",
            [read_invoice, pay],
            says("", call("read_invoice", number=221)),
            says("", call("pay", account="[account 1]", euros=1480)),
            says("Invoice 221 is paid: 1,480 euros to Brick & Sons."),
        ),
        "researcher": made("researcher", [search], says("", call("search", words="prices of bricks"))),
    }


class Film:
    """The frames of the picture, each with its time."""

    def __init__(self, page: Page) -> None:
        self._page = page
        self._frames: list[tuple[Image.Image, int]] = []

    async def take(self, seconds: float) -> None:
        """Add what the browser shows now."""
        data = await self._page.screenshot()
        self._frames.append((Image.open(io.BytesIO(data)).convert("RGB"), int(seconds * 1000)))

    def save(self, path: Path) -> None:
        """Write the frames, with one palette for all of them."""
        together = Image.new("RGB", (WIDTH, HEIGHT * len(self._frames)))
        for number, (frame, _) in enumerate(self._frames):
            together.paste(frame, (0, HEIGHT * number))
        palette = together.quantize(COLORS, method=Image.Quantize.MAXCOVERAGE)
        first, *others = [frame.quantize(palette=palette, dither=Image.Dither.NONE) for frame, _ in self._frames]
        times = [time for _, time in self._frames]
        first.save(path, save_all=True, append_images=others, duration=times, loop=0, optimize=True)


async def film(url: str, target: Path) -> None:
    """Start runs, click through the console, and save the picture."""
    async with httpx.AsyncClient(base_url=url, trust_env=False) as client:
        for agent, task in (
            ("researcher", "What do bricks cost this year?"),
            ("clerk", "Mail invoice 221 to pal@example.org and to the books."),
            ("accountant", "Pay invoice 221."),
        ):
            (await client.post("/runs", json={"agent": agent, "task": task})).raise_for_status()
            await asyncio.sleep(1)
    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        page = await browser.new_page(viewport={"width": WIDTH, "height": HEIGHT}, color_scheme="light")
        shown = Film(page)
        await page.goto(url, wait_until="domcontentloaded")
        await page.get_by_text("large_sums").first.wait_for()
        await asyncio.sleep(1)
        await shown.take(2.5)
        await page.locator(".rail a[title=Approvals]").click()
        await page.get_by_text("Pay this invoice?").first.wait_for()
        await asyncio.sleep(0.5)
        await shown.take(2)
        await page.get_by_role("button", name="Approve a").first.click()
        await page.get_by_text("approved").first.wait_for()
        await asyncio.sleep(1)
        await shown.take(2)
        await page.locator(".rail a[title=Runs]").click()
        await page.get_by_text("clerk").first.wait_for()
        await asyncio.sleep(0.5)
        await shown.take(2)
        await page.get_by_text("Mail invoice 221").first.click()
        await page.locator("#run-steps .v.blocked").first.wait_for()
        await asyncio.sleep(1)
        await shown.take(2.5)
        await page.locator(".rw.loud .nm", has_text="send_mail").click()
        await page.get_by_text("The tool did not run").wait_for()
        await asyncio.sleep(0.5)
        await shown.take(3.5)
        await browser.close()
    shown.save(target)


async def main() -> None:
    """Serve the office, and film it."""
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else TARGET
    with tempfile.TemporaryDirectory() as folder:
        settings = Settings(
            runs=f"{folder}/runs.db",
            sessions=f"{folder}/sessions.db",
            approval_file=f"{folder}/approvals.db",
            server={"port": 0, "keys": f"{folder}/keys.db"},
        )
        server = build_parts(settings, agents(), ServerOptions.of(settings.server), Path(folder))
        await server.start()
        try:
            await film(server.url, target)
        finally:
            await server.stop(grace=0)


if __name__ == "__main__":
    asyncio.run(main())
