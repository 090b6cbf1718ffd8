"""Progress messages during a run."""

import asyncio

import pytest

from hookline._run.events import ToolEnded, ToolProgressed, ToolStarted
from hookline.channels import activity as module
from hookline.channels.activity import ActivityIndicator
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.protocol import Address, Capabilities


def started(call, **fields):
    return ToolStarted(at=0.0, run_id="run", call_id=call, tool=call, **fields)


def progress(call, message, fraction=None):
    return ToolProgressed(at=0.0, run_id="run", call_id=call, tool=call, message=message, fraction=fraction)


def ended(call, outcome):
    return ToolEnded(at=0.0, run_id="run", call_id=call, tool=call, outcome=outcome)


@pytest.fixture
def shown(monkeypatch):
    """Return the progress messages for some events."""
    monkeypatch.setattr(module, "PROGRESS_INTERVAL", 0.0)

    async def pass_on(message):
        return message

    async def show(*events):
        channel = MemoryChannel(capabilities=Capabilities(edit=True))
        address = Address("memory", "chat")
        async with ActivityIndicator(channel, address, pass_on, typing=False, progress=True) as indicator:
            for event in events:
                indicator(event)
            for _ in range(10):
                await asyncio.sleep(0)
        return channel.texts()

    return show


async def test_each_call_shows_its_own_progress(shown):
    events = started("a"), started("b"), progress("a", "reading"), progress("b", "writing", 0.5)
    assert await shown(*events) == ["· reading\n· writing (50%)"]


async def test_a_blocked_call_is_not_shown(shown):
    assert await shown(started("a"), ended("a", "blocked")) == []
    assert await shown(started("a"), started("b"), ended("a", "blocked"), ended("b", "ok")) == ["· b"]


async def test_only_the_latest_calls_are_shown(shown):
    assert await shown(*(started(str(n)) for n in range(9)), started("5", message="again")) == [
        "· 4\n· 6\n· 7\n· 8\n· again"
    ]
