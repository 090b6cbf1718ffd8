"""Every door tells the same story about every vector: which hook decided what, why, and what became of it."""

import logging

import pytest

from .doors.coding_agents import AGENTS, CodingAgent
from .doors.deciding import Decide
from .doors.foreign import FRAMEWORKS
from .doors.library import Durable, Killed, Loop, Replay, TapeDoor
from .doors.mcp_gateway import McpGateway
from .doors.observed import Audit, Metrics, OpenTelemetry, Statistics
from .doors.recorded import Backtest, Explain, Records
from .doors.served import A2a, Api, Console
from .stories import check
from .vectors import vectors

DOORS = (
    Loop(),
    Durable(),
    Killed(),
    TapeDoor(),
    Replay(),
    Records(),
    Backtest(),
    Explain(),
    Statistics(),
    Audit(),
    Metrics(),
    OpenTelemetry(),
    Api(),
    Console(),
    A2a(),
    *map(CodingAgent, AGENTS),
    McpGateway(),
    Decide(),
    *(door for door in FRAMEWORKS if door.id == "plain-loop"),  # test-adapters runs the others
)


@pytest.fixture(autouse=True)
def quiet():
    """Many hooks fail on purpose."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


@pytest.mark.parametrize("door", DOORS, ids=lambda door: door.id)
async def test_a_door_tells_the_story_of_every_vector(door, tmp_path):
    await check(door, tmp_path)


NOT_AT_ANY_TIME = {
    "on_token/replace": "a reply in flight is made again, so its text is judged again",
    "on_token/end": "a reply in flight is made again, so its text is judged again",
    "failures/closed-on-token": "a run that is killed between the failure and the end of the reply is not continued",
    "failures/observer": "what observers do is stored beside the journal, so a cut between two entries loses it",
    "subagents/approve": "what approvers do is stored beside the journal, so a cut between two entries loses it",
}
"""Vectors that tell more or less if the process is killed at certain entries, with the reason."""


@pytest.mark.slow
@pytest.mark.timeout(900)
async def test_a_run_that_is_killed_at_any_time_tells_the_same_story(tmp_path):
    await check(Killed(step=3), tmp_path, [each for each in vectors() if each.id not in NOT_AT_ANY_TIME])
