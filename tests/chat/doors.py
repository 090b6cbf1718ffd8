"""The two doors of the chat component, with the same agent behind them: the web channel and the console."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, guard, tool
from hookline._web.http_server import HttpServer
from hookline.channels import Gateway, WebChannel
from hookline.channels.access import Access
from hookline.stores import ApprovalStore, Mailbox, SqliteSessionStore
from hookline.teams import Roster
from hookline.testing import call, reply

from ..server.console.browser import DESKTOP, LOST, Proxy
from ..server.console.rig import console

LONG = "\n\n".join(f"Paragraph {n}. {'Lorem ipsum dolor sit amet. ' * 12}" for n in range(12))
RICH = """## Invoices

| item | euros | due |
|:---|---:|:---:|
| bricks \\| tiles | 1,480 | `a|b` |
| \u202egnp.exe | <img src=x onerror="document.title='owned'"> |

שלום עולם

```
print("hi")
```
"""


class Office:
    """An agent that answers some words with long texts, and deletes what other messages name, if a person approves."""

    def __init__(self, folder, *, personalities=False):
        self.deleted = []

        @tool
        def delete(path: str) -> str:
            """Delete a file."""
            self.deleted.append(path)
            return f"{path} is gone"

        @guard(BEFORE_TOOL)
        def careful(ctx, payload):
            if payload.arguments["path"].startswith("outside"):
                return HookResult.block("outside", reason="outside of \u202ethe folder")
            return HookResult.ask("May this file go?", reason="files matter")

        def turn(request):
            last = request.messages[-1]
            if last.role == "tool":
                return reply(last.content)
            if last.attachments:
                return reply(" and ".join(f"{each.name}: {each.size}" for each in last.attachments))
            if last.content in ("long", "rich"):
                return reply({"long": LONG, "rich": RICH}[last.content])
            if last.content.startswith("say "):
                return reply(last.content.removeprefix("say "))
            return call("delete", path=last.content)

        model = ScriptedModel([turn], loop=True)
        options = {"tools": [delete], "hooks": [careful], "suggestions": ["say hello", "What is <b>old</b>?"]}
        self.agent = Agent("clerk", "Keeps the files", llm=model, **options)
        if personalities:
            (folder / "people").mkdir()
            for name in ("ada", "ben"):
                text = f'name = "{name.title()}"\nsuggestions = ["say I am {name}"]'
                (folder / "people" / f"{name}.toml").write_text(text)
            self.agent = Roster(self.agent, folder / "people", first="ada")


class Held(Proxy):
    """A connection to a server that can also hang: it stays open, and nothing gets through."""

    def __init__(self, made):
        super().__init__(made)
        self.flows = asyncio.Event()
        self.flows.set()

    async def _copy(self, reader, writer):
        try:
            while data := await reader.read(65_536):
                await self.flows.wait()
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        writer.transport.abort()


class Served:
    def __init__(self, url):
        self.url = url


@asynccontextmanager
async def _web(folder, office):
    channel = WebChannel(title="Helper", store=folder / "chats.db")
    server = HttpServer([channel], port=0, grace=1)
    gateway = Gateway(
        office.agent,
        [channel],
        mailbox=Mailbox(folder / "mailbox.db"),
        sessions=SqliteSessionStore(folder / "sessions.db"),
        access={"web": Access(approve=("*",))},
        servers=[server],
        approvals=ApprovalStore(folder / "approvals.db"),
    )
    await gateway.start()
    try:
        yield Served(server.url), "/"
    finally:
        await gateway.stop(grace=0)


@asynccontextmanager
async def _console(folder, office):
    async with console(folder, office.agent) as made:
        yield made, "/console/chat"


DOORS = {"web channel": _web, "console": _console}


class Talk:
    """An open page of a door, and what a person does there."""

    def __init__(self, page, proxy, office, path):
        self.page, self.proxy, self.office, self.path = page, proxy, office, path

    async def say(self, text):
        await self.page.fill("#text", text)
        await self.page.press("#text", "Enter")

    @property
    def replies(self):
        return self.page.locator(".message.out:not(.draft):not([hidden]) .text")

    @property
    def ask(self):
        return self.page.locator(".ask")


@asynccontextmanager
async def talking(browser, folder, door, *, personalities=False, allowed=(), **options):
    """Open the page of a door. Fail if it reports an error or a violation of its policy."""
    office = Office(folder, personalities=personalities)
    async with AsyncExitStack() as stack:
        made, path = await stack.enter_async_context(DOORS[door](folder, office))
        proxy = await stack.enter_async_context(Held(made))
        context = await browser.new_context(**{**DESKTOP, **options})
        stack.push_async_callback(context.close)
        context.set_default_timeout(0)  # pytest's own timeout is the limit
        page = await context.new_page()
        problems = []
        page.on("pageerror", lambda problem: problems.append(str(problem)))
        page.on("console", lambda message: problems.append(message.text))
        await page.goto(proxy.url + path, wait_until="domcontentloaded")
        yield Talk(page, proxy, office, path)
        proxy.flows.set()
        problems = [each for each in problems if not any(part in each for part in (LOST, *allowed))]
        assert not problems, problems
