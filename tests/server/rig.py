"""A run service in the event loop of the test, with scripted agents."""

import asyncio
import json
from contextlib import asynccontextmanager

import msgspec

from hookline import Agent, ScriptedModel, call, reply, tool
from hookline.server import Caller
from hookline.server.agents import Agents
from hookline.server.auth import RIGHTS
from hookline.server.options import ServerOptions
from hookline.server.runs import RunService
from hookline.stores.approvals import ApprovalStore
from hookline.stores.runs import RunStore
from hookline.stores.sessions import JsonSessionStore

ME = Caller("key_me", "me", frozenset(("read", "run", "approve")))
OTHER = Caller("key_other", "other", frozenset(("read", "run", "approve")))
ADMIN = Caller("key_admin", "admin", frozenset(RIGHTS))


def make(turns=(), name="helper", **options):
    """An agent with a scripted model; without turns it always replies ``done``."""
    return Agent(name, llm=ScriptedModel(list(turns) or [reply("done")], loop=not turns), **options)


class Blocker:
    """A tool that does not return before it is opened, and agents that call it."""

    def __init__(self, *, closed=True):
        self.open, self.entered, self.left = asyncio.Event(), 0, 0
        if not closed:
            self.open.set()

        @tool
        async def blocker() -> str:
            """Wait."""
            self.entered += 1
            await self.open.wait()
            self.left += 1
            return "through"

        self.tool = blocker

    def agent(self, text="done", *, name="helper"):
        """An agent that calls the tool in every run and then replies with the text."""

        def turn(request):
            return reply(text) if request.messages[-1].role == "tool" else call("blocker")

        return Agent(name, llm=ScriptedModel([turn], loop=True), tools=[self.tool])


def service_at(folder, *agents, required=False, **options):
    """A service with its files in a folder."""
    agents = agents or (make(),)
    return RunService(
        Agents({getattr(agent, "name", "helper"): agent for agent in agents}),
        RunStore(folder / "runs.db", pinned=True),
        approvals=ApprovalStore(folder / "approvals.db"),
        sessions=JsonSessionStore(folder / "sessions"),
        options=msgspec.convert(options, ServerOptions),
        required=required,
    )


@asynccontextmanager
async def serving(folder, *agents, **options):
    service = service_at(folder, *agents, **options)
    await service.open()
    try:
        yield service
    finally:
        await service.close(grace=0)


async def read_all(service, run_id, caller=ME, after=0):
    """All events of a run, as dicts."""
    reader = await service.read(run_id, caller, after)
    try:
        return [json.loads(event.data) async for event in reader]
    finally:
        reader.close()
