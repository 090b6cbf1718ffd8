"""The ``deps`` of served runs are made for their caller, at every door."""

import asyncio
import json
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx
import msgspec
import pytest
from starlette.applications import Starlette
from starlette.routing import Mount

from hookline import Agent, AgentContext, HookResult, Limits, ScriptedModel, ToolCallRequest, call, guard, tool
from hookline.channels import Gateway, MemoryChannel
from hookline.channels.factory import build_gateway
from hookline.config import Settings
from hookline.config.errors import ConfigError
from hookline.plugins.errors import LoadError
from hookline.server import Caller, asgi, build_server
from hookline.server.build import build_worker
from hookline.stores import Mailbox, RunStore
from hookline.stores.approvals import ApprovalStore
from hookline.stores.sessions import SqliteSessionStore
from hookline.teams import Team

from ..waiting import wait_until
from .rig import make

ANN = Caller("ann", "Ann", {"read", "run", "approve"}, {"plan": "free"})


@dataclass
class Shop:
    owner: str
    plan: str = ""


def shop_of(caller: Caller) -> Shop:
    return Shop(caller.id, caller.metadata.get("plan", ""))


async def shop_of_later(caller: Caller) -> Shop:
    await asyncio.sleep(0)
    return shop_of(caller)


@tool(effects=[])
def owner(ctx: AgentContext[Shop]) -> str:
    """Name the owner."""
    return f"{ctx.deps.owner} {ctx.deps.plan}".strip()


def shop_agent(*, ask=False, **options):
    @guard("before_tool")
    def asks(ctx: AgentContext[Shop], request: ToolCallRequest):
        assert ctx.deps.owner  # the hooks have them too
        return HookResult.ask(f"For {ctx.deps.owner}?") if ask else None

    def turn(request):
        last = request.messages[-1]
        return last.content if last.role == "tool" else call("owner")

    model = ScriptedModel([turn], loop=True)
    return Agent("shop", llm=model, tools=[owner], hooks=[asks], deps_type=Shop, **options)


def settings_in(folder, **server):
    files = {"runs": "runs.db", "sessions": "sessions.db", "approval_file": "approvals.db"}
    paths = {name: str(folder / file) for name, file in files.items()}
    return Settings(**paths, server={"rate": 1e9, "burst": 1_000_000, "port": 0, **server})


def mounted(folder, agent, **options):
    return asgi(agent, authenticate=lambda request: ANN, home=folder, **options)


async def post(agents, path, body=None):
    app = Starlette(routes=[Mount("/agents", agents)])
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://host/agents") as client:
        return (await client.post(path, json=body or {})).json()


@pytest.mark.parametrize("make", [shop_of, shop_of_later, partial(shop_of_later)])
async def test_deps_are_made_for_the_caller_of_a_request(tmp_path, make):
    async with mounted(tmp_path, shop_agent(), settings=settings_in(tmp_path), deps=make) as agents:
        done = await post(agents, "/runs", {"wait": 10, "task": "Whose is it?"})
        chat = await post(
            agents, "/v1/chat/completions", {"model": "shop", "messages": [{"role": "user", "content": "?"}]}
        )
    assert (done["status"], done["reply"]) == ("completed", "ann free")
    assert chat["choices"][0]["message"]["content"] == "ann free"


async def test_subagents_and_limits_of_the_settings_are_those_of_other_runs(tmp_path):
    team = Team([shop_agent(description="knows")])
    async with mounted(tmp_path, team, settings=settings_in(tmp_path), deps=shop_of) as agents:
        done = await post(agents, "/runs", {"wait": 10, "task": "Whose?"})
    assert done["reply"] == "ann free"
    settings = Settings(max_steps=1)
    agent = shop_agent(limits=Limits(steps=9))
    async with mounted(tmp_path, agent, settings=settings, deps=shop_of) as agents:
        done = await post(agents, "/runs", {"wait": 10, "task": "Whose?"})
    assert (done["status"], done["reason"]) == ("stopped", "steps_limit: Step limit reached: 1/1")


async def test_a_function_that_fails_fails_its_run_and_its_message_is_only_in_the_log(tmp_path, caplog):
    def broken(caller):
        raise OSError("password hunter2 rejected")

    async with mounted(tmp_path, shop_agent(), settings=settings_in(tmp_path), deps=broken) as agents:
        done = await post(agents, "/runs", {"wait": 10, "task": "Whose?"})
    assert (done["status"], done["error"]) == ("failed", "the deps of this run could not be created (OSError)")
    assert "hunter2" not in json.dumps(done)
    assert "the deps of a run of ann could not be created" in caplog.text


async def test_deps_of_another_type_fail_the_run(tmp_path, caplog):
    async with mounted(tmp_path, shop_agent(), settings=settings_in(tmp_path), deps=lambda caller: "ann") as agents:
        done = await post(agents, "/runs", {"wait": 10, "task": "Whose?"})
    assert done["status"] == "failed"
    assert "deps= of agent 'shop' takes a Shop, not a str" in caplog.text


async def test_a_durable_run_that_goes_on_at_another_server_makes_them_anew(tmp_path):
    made = []

    def make(caller):
        made.append(caller)
        return shop_of(caller)

    settings, approvals = settings_in(tmp_path, durable=True, grace=0), ApprovalStore(tmp_path / "approvals.db")
    async with mounted(tmp_path, shop_agent(ask=True), settings=settings, deps=make) as agents:
        run = await post(agents, "/runs", {"task": "Whose?"})
        await wait_until(lambda: approvals.rows(status="pending"))
    (asked,) = approvals.rows(status="pending")
    approvals.decide(asked.id, decision="approve", digest=asked.digest, by="boss")
    async with mounted(tmp_path, shop_agent(ask=True), settings=settings, deps=make):
        runs = RunStore(tmp_path / "runs.db")
        await wait_until(lambda: runs.get(run["id"]).is_over)
    assert (runs.get(run["id"]).status, runs.get(run["id"]).reply) == ("completed", "ann free")
    assert [(caller.id, caller.name, caller.scopes, caller.metadata["plan"]) for caller in made] == [
        ("ann", "Ann", frozenset(), "free")
    ] * len(made)
    assert len(made) >= 2


async def go_on(tmp_path, monkeypatch, make):
    """A durable run that waits for its approval, and goes on at a server with another function."""
    monkeypatch.setattr("hookline.server.durable.FIRST_PAUSE", 0.01)
    monkeypatch.setattr("hookline.server.durable.DEPS_TRIES", 4)
    settings, approvals = settings_in(tmp_path, durable=True, grace=0), ApprovalStore(tmp_path / "approvals.db")
    async with mounted(tmp_path, shop_agent(ask=True), settings=settings, deps=shop_of) as agents:
        run = await post(agents, "/runs", {"task": "Whose?"})
        await wait_until(lambda: approvals.rows(status="pending"))
    (asked,) = approvals.rows(status="pending")
    approvals.decide(asked.id, decision="approve", digest=asked.digest, by="boss")
    async with mounted(tmp_path, shop_agent(ask=True), settings=settings, deps=make):
        runs = RunStore(tmp_path / "runs.db")
        await wait_until(lambda: runs.get(run["id"]).is_over)
    return runs.get(run["id"])


async def test_a_durable_run_waits_for_a_function_that_fails_for_a_while(tmp_path, monkeypatch, caplog):
    calls = []

    def make(caller):
        calls.append(caller)
        if len(calls) < 4:
            raise ConnectionError("password hunter2 rejected")
        return shop_of(caller)

    ended = await go_on(tmp_path, monkeypatch, make)
    assert (ended.status, ended.reply, len(calls)) == ("completed", "ann free", 4)
    assert "is interrupted: the deps of this run could not be created (ConnectionError)" in caplog.text


async def test_a_durable_run_fails_if_the_function_never_works(tmp_path, monkeypatch):
    calls = []

    def make(caller):
        calls.append(caller)
        raise KeyError("ann")

    ended = await go_on(tmp_path, monkeypatch, make)
    assert (ended.status, len(calls)) == ("failed", 4)
    assert ended.error == "the deps of this run could not be created (KeyError)"


@pytest.mark.parametrize("build", [build_server, build_worker])
def test_an_agent_that_needs_deps_is_refused_when_nothing_makes_them(tmp_path, build):
    with pytest.raises(ConfigError, match=r"agent 'shop' needs deps of the type Shop: give deps=lambda caller"):
        build(settings_in(tmp_path), shop_agent())
    with pytest.raises(ConfigError, match="deps= must be a function of a caller"):
        build(settings_in(tmp_path), shop_agent(), deps=Shop("ann"))
    build(settings_in(tmp_path), shop_agent(), deps=shop_of)
    build(settings_in(tmp_path), make(deps_type=Path | None))


DEPS = """
def make(caller):
    return {"who": caller.id}

WHO = "nobody"
"""


def settings_with(folder, deps):
    (folder / "deps.py").write_text(DEPS)
    return Settings(deps=deps, server={"port": 0})


def asking_agent():
    @tool(effects=[])
    def who(ctx) -> str:
        """Name the caller."""
        return ctx.deps["who"]

    def turn(request):
        last = request.messages[-1]
        return last.content if last.role == "tool" else call("who")

    return Agent("who", llm=ScriptedModel([turn], loop=True), tools=[who])


async def test_settings_name_the_function(tmp_path):
    settings = settings_with(tmp_path, f"{tmp_path}/deps.py:make")
    async with mounted(tmp_path, asking_agent(), settings=settings) as agents:
        done = await post(agents, "/runs", {"wait": 10, "task": "Who?"})
    assert done["reply"] == "ann"


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("deps.py", "does not name a function"),
        ("deps.py:mak", "Did you mean 'make'"),
        ("deps.py:WHO", "is a str, not a fu"),
    ],
)
def test_settings_that_name_no_function_are_refused(tmp_path, name, problem):
    with pytest.raises(LoadError, match=problem):
        build_server(settings_with(tmp_path, f"{tmp_path}/{name}"), asking_agent())


def gateway_at(folder, channel, agent=None, **options):
    store = {"mailbox": Mailbox(folder / "mail.db"), "sessions": SqliteSessionStore(folder / "sessions.db")}
    return Gateway(agent or shop_agent(), [channel], **store, **options)


@pytest.mark.parametrize("durable", [False, True])
async def test_a_gateway_makes_them_for_the_sender_of_a_message(tmp_path, durable):
    channel = MemoryChannel()
    options = {"durable": RunStore(tmp_path / "runs.db", pinned=True)} if durable else {}
    gateway = gateway_at(tmp_path, channel, deps=shop_of_later, metadata={"plan": "pro"}, **options)
    await gateway.start()
    try:
        await channel.say("Whose?", sender="ann")
        assert list(await channel.replies(1)) == ["memory:ann pro"]
    finally:
        await gateway.stop()


async def test_a_gateway_whose_function_fails_says_that_there_is_no_answer(tmp_path, caplog):
    channel = MemoryChannel()
    gateway = gateway_at(tmp_path, channel, deps=lambda caller: {}["hunter2"])
    await gateway.start()
    try:
        await channel.say("Whose?")
        (said,) = await channel.replies(1)
    finally:
        await gateway.stop()
    assert said.startswith("Sorry, something went wrong")
    assert "could not be created" in caplog.text


def test_a_gateway_of_settings_takes_them_too(tmp_path):
    settings = Settings(
        channels=["console"], sessions=str(tmp_path / "s.db"), gateway={"database": str(tmp_path / "m.db")}
    )
    with pytest.raises(ConfigError, match="agent 'shop' needs deps of the type Shop"):
        build_gateway(settings, shop_agent(), home=tmp_path)
    build_gateway(settings, shop_agent(), home=tmp_path, deps=shop_of)
    named = msgspec.structs.replace(settings, deps=settings_with(tmp_path, f"{tmp_path}/deps.py:make").deps)
    build_gateway(named, shop_agent(), home=tmp_path)
