"""A server with a console, built from settings, on a port of this machine."""

from contextlib import asynccontextmanager

import httpx

from hookline import Agent, ScriptedModel
from hookline.config.settings import Settings
from hookline.server import build_server


def echo_agent(name="echo"):
    return Agent(name, llm=ScriptedModel([lambda request: f"echo {request.messages[-1].content}"], loop=True))


class Console:
    """A running server, and browsers without keys."""

    def __init__(self, server):
        self.server = server
        self.url = server.url
        self.keys = server.keys  # its own, so that it sees new keys at once

    def browser(self, **options):
        """Return a client that keeps cookies and sends what browsers send with requests of a page of this server."""
        headers = {"origin": self.url, "sec-fetch-site": "same-origin"}
        return httpx.AsyncClient(base_url=self.url, headers=headers, trust_env=False, timeout=60, **options)

    @asynccontextmanager
    async def logged_in(self, *scopes):
        """A browser that is logged in with a new key with these rights."""
        _, secret = self.keys.add(f"key {len(self.keys.keys())}", scopes)
        async with self.browser() as browser:
            response = await browser.post("/console/login", data={"key": secret})
            assert response.status_code == 303, response.text
            yield browser


@asynccontextmanager
async def console(folder, agent=None, *, tapes="", tickets="", audit="", audit_index="", policy=None, **options):
    settings = Settings(
        tapes=str(tapes),
        tickets=str(tickets),
        audit=str(audit),
        audit_index=str(audit_index),
        runs=str(folder / "runs.db"),
        sessions=str(folder / "sessions.db"),
        approval_file=str(folder / "approvals.db"),
        approval_policy=policy or {},
        server={"port": 0, "keys": str(folder / "keys.db"), "heartbeat": 0.2, **options},
    )
    server = build_server(settings, agent or echo_agent(), home=folder)
    await server.start()
    made = Console(server)
    try:
        yield made
    finally:
        await server.stop(grace=0)
