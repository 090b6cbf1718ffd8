"""A gateway on a channel in memory, stopped when the test is over."""

import pytest

from hookline import Agent, ScriptedModel
from hookline.channels.gateway import Gateway
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.options import GatewayOptions
from hookline.stores.mailbox import Mailbox
from hookline.stores.sessions import SqliteSessionStore


def echo(request):
    return f"echo {request.messages[-1].content}"


@pytest.fixture
async def api(request):
    """The server of the platform that a module is about: its ``API``."""
    async with request.module.API() as api:
        yield api


@pytest.fixture
def polls_often(monkeypatch):
    """Let gateways look into the mailbox often, wherever it is."""
    for name in ("POLL_SECONDS", "WATCHED_POLL_SECONDS"):
        monkeypatch.setattr(f"hookline.stores.mailbox.{name}", 0.02)


@pytest.fixture
async def gateways(tmp_path):
    """Make gateways on the same files: ``await gateways(turns, hooks=..., answerer=..., channel=..., **options)``."""
    made = []

    async def make(
        turns=None,
        *,
        hooks=(),
        tools=(),
        answerer=None,
        channel=None,
        access=None,
        lease=30.0,
        metadata=None,
        **options,
    ):
        channel = channel or MemoryChannel()
        answerer = answerer or Agent(
            "bot", llm=ScriptedModel([echo] if turns is None else turns, loop=turns is None), hooks=hooks, tools=tools
        )
        gateway = Gateway(
            answerer,
            [channel],
            mailbox=Mailbox(tmp_path / "gateway.db", lease=lease),
            sessions=SqliteSessionStore(tmp_path / "sessions.db"),
            options=GatewayOptions(**{"grace": 5.0, **options}),
            access={channel.name: access} if access else None,
            metadata=metadata or {},
        )
        await gateway.start()
        made.append(gateway)
        return gateway, channel

    yield make
    for gateway in made:
        await gateway.stop(grace=0)
