"""The stop switch of a gateway: people get the reason, and durable runs go on after the release (DESIGN 6.19)."""

from contextlib import asynccontextmanager

import pytest

from hookline import Agent, AgentContext, ScriptedModel
from hookline.channels import notices
from hookline.channels.gateway import Gateway
from hookline.channels.in_memory import MemoryChannel
from hookline.stores import RunStore
from hookline.stores.mailbox import Mailbox
from hookline.stores.sessions import SqliteSessionStore

from ..waiting import wait_until
from .test_durable import World

WHY = "halted by ada: it charges twice"
REFUSED, WAITS = notices.halted(WHY), notices.waits_until_released(WHY)


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr("hookline.channels.runner.FIRST_DELAY", 0.01)
    monkeypatch.setattr("hookline.channels.runner.POLL_SECONDS", 0.01)


def halt(runs):
    runs.halts.halt("it charges twice", by="ada")


@asynccontextmanager
async def halted_during_a_tool(world):
    """A gateway that was halted during a tool call of a durable run, which waits for the release now."""
    world.go.clear()
    gateway = world.gateway()
    await gateway.start()
    try:
        await world.say("write a")
        await world.started.wait()
        halt(world.runs)
        world.go.set()
        await wait_until(lambda: world.channel.texts() == [WAITS])
        yield
    finally:
        await gateway.stop(grace=0)


async def test_a_message_gets_the_reason_while_runs_are_halted_and_an_answer_after_the_release(tmp_path):
    runs, channel = RunStore(tmp_path / "runs.db"), MemoryChannel()
    model = ScriptedModel([lambda request: f"echo {request.messages[-1].content}"], loop=True)
    gateway = Gateway(
        Agent("bot", llm=model),
        [channel],
        mailbox=Mailbox(tmp_path / "gateway.db"),
        sessions=SqliteSessionStore(tmp_path / "sessions.db"),
        context=lambda session: AgentContext(session=session, halts=runs.halts),
        servers=(),
    )
    await gateway.start()
    try:
        halt(runs)
        await channel.say("hello")
        await wait_until(lambda: channel.texts() == [REFUSED])
        assert model.requests == []
        runs.halts.release()
        await channel.say("again")
        await wait_until(lambda: channel.texts() == [REFUSED, "echo again"])
    finally:
        await gateway.stop(grace=0)


async def test_a_durable_gateway_refuses_new_messages_with_the_reason(tmp_path):
    world = World(tmp_path)
    gateway = world.gateway()
    await gateway.start()
    try:
        halt(world.runs)
        await world.say("write a")
        await wait_until(lambda: world.channel.texts() == [REFUSED])
        assert (world.done, world.asked, world.statuses()) == ([], 0, [])
    finally:
        await gateway.stop(grace=0)


async def test_a_durable_run_in_progress_waits_says_so_once_and_answers_after_the_release(tmp_path):
    world = World(tmp_path)
    async with halted_during_a_tool(world):
        assert (world.done, world.asked) == (["a"], 1)
        world.runs.halts.release()
        await wait_until(lambda: world.channel.texts() == [WAITS, "The tool said: wrote a"])
        assert world.done == ["a"]


async def test_a_gateway_that_starts_while_runs_are_halted_continues_none(tmp_path):
    world = World(tmp_path)
    await world.interrupted()
    halt(world.runs)
    gateway = world.gateway()
    await gateway.start()
    try:
        await wait_until(lambda: world.channel.texts() == [WAITS])
        assert world.asked == 1
        world.runs.halts.release()
        await wait_until(lambda: world.channel.texts() == [WAITS, "The tool said: wrote a"])
    finally:
        await gateway.stop(grace=0)


async def test_stop_ends_a_durable_run_that_waits_for_the_release(tmp_path):
    world = World(tmp_path)
    async with halted_during_a_tool(world):
        await world.say("/stop")
        await wait_until(lambda: world.statuses() == ["cancelled"])
        assert world.channel.texts() == [WAITS, notices.STOPPED]
