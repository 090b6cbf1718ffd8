"""DESIGN 7.1 for the whole product: its parts together fire every point of the table."""

import pytest

from hookline import (
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    Agent,
    HookRegistry,
    HookResult,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)
from hookline.channels import Gateway, MemoryChannel
from hookline.hooks import Compactor, ContextCompactionHook
from hookline.points import BEFORE_TICKET_COMPLETE, POINTS
from hookline.stores import Mailbox, SqliteSessionStore, TicketBoard, ticket_tools
from hookline.teams import Roster

OF_A_MESSAGE = ("message_received", "inbound_claim", "message_sending", "before_dispatch", "message_sent")
OF_A_TICKET = ("before_ticket_complete", "after_ticket_revision")
OF_A_SUBAGENT = ("subagent_spawning", "subagent_spawned", "subagent_ended")
PERSONALITIES = {
    "lead": 'instructions = "Lead."\ndelegates = ["helper"]',
    "helper": 'instructions = "Help."\ntools = []',
}


@tool
def read_file(path: str, ctx) -> str:
    """Read a file."""
    ctx.progress(0.5, "half of it")
    return "a long line " * 50


@tool
def publish() -> str:
    """Publish it."""
    return "published"


@tool
def fetch_mail() -> str:
    """Fetch the mail."""
    raise ConnectionError("the line is dead")


@guard(BEFORE_TOOL, tools="publish")
def ask_first(ctx, request):
    return HookResult.ask("Publish it?")


@hook(APPROVAL_REQUESTED)
def approve(ctx, request):
    return HookResult.approve()


@hook(BEFORE_TICKET_COMPLETE)
def want_proof(ctx, ticket):
    return None if "proof" in ticket.summary else HookResult.claim(reason="there is no proof")


def players():
    """Return the reply: the next line for the lead agent, a fixed text for the helper and for summaries."""
    lines = iter(
        [
            [call("read_file", path="notes.txt"), call("fetch_mail")],
            [call("ticket_start", id="T-1"), call("publish")],
            call("delegate", to="helper", task="Look it over."),
            call("ticket_complete", id="T-1", summary="It is written."),
            call("ticket_complete", id="T-1", summary="It is written; the proof is in notes.txt."),
            reply("All is done."),
        ]
    )

    def say(request):
        if request.purpose != "step":
            return reply("They read the notes.")
        return reply("It looks good.") if request.messages[0].content == "Help." else next(lines)

    return ScriptedModel([say], loop=True)


class Witness:
    """One observer for each point of the table, on one registry; it records the payloads."""

    def __init__(self, points, registry):
        self.seen = []
        for point in points:
            registry.register(observer(point, name=f"see_{point}")(self._see))

    def _see(self, point, ctx, payload):
        self.seen.append((str(point), payload, ctx.session))

    def names(self, among):
        return [name for name, _, _ in self.seen if name in among]

    def of_the_talk(self, since, until=None):
        """Return the points that one message of a channel fired, without those of its run and nested runs."""
        shown = (*OF_A_MESSAGE, "personality_switched", "session_start", "on_run_start", "on_run_end")
        return [name for name, _, session in self.seen[since:until] if name in shown and session.platform == "memory"]


@pytest.fixture
def built_in():
    """Return the points of the table, without those of tests or plugins."""
    return [point for point in POINTS.values() if not point.startswith("test_")]


async def test_the_parts_together_fire_every_point_with_its_payload(tmp_path, built_in):
    for name, text in PERSONALITIES.items():
        (tmp_path / f"{name}.toml").write_text(text)
    board = TicketBoard(tmp_path / "board.db")
    board.create("Write it", by="person:ann", criteria=["it is written"])
    compaction = ContextCompactionHook(Compactor(max_tokens=200, keep_last=2, max_summary_tokens=20))
    registry = HookRegistry([ask_first, approve, want_proof, compaction])
    witness = Witness(built_in, registry)
    base = Agent("base", llm=players(), tools=[read_file, publish, fetch_mail, *ticket_tools(board)], hooks=registry)
    roster, channel = Roster(base, tmp_path), MemoryChannel()
    mailbox, sessions = Mailbox(tmp_path / "gateway.db"), SqliteSessionStore(tmp_path / "sessions.db")
    gateway = Gateway(roster, [channel], mailbox=mailbox, sessions=sessions)
    assert roster.hooks is registry

    await gateway.start()
    try:
        await channel.say("/personality lead")
        await gateway.wait_until_idle()
        switched = len(witness.seen)
        await channel.say("Write it, and say when it is done.")
        await gateway.wait_until_idle()
    finally:
        await gateway.stop(grace=0)

    assert channel.texts() == ["Switched to lead.", "All is done."]
    assert board.get("T-1").column == "done"

    assert len(built_in) == 29
    assert {str(point) for point in built_in} - {name for name, _, _ in witness.seen} == set()
    for name, payload, session in witness.seen:
        assert type(payload) is POINTS[name].payload
        assert isinstance(session, Session)

    assert witness.of_the_talk(0, switched) == [
        "message_received",
        "inbound_claim",
        "personality_switched",
        "message_sending",
        "before_dispatch",
        "message_sent",
    ]
    assert witness.of_the_talk(switched) == [
        "message_received",
        "inbound_claim",
        "session_start",
        "on_run_start",
        "on_run_end",
        "message_sending",
        "before_dispatch",
        "message_sent",
    ]
    assert witness.names(OF_A_SUBAGENT) == list(OF_A_SUBAGENT)
    assert witness.names(OF_A_TICKET) == ["before_ticket_complete", "after_ticket_revision", "before_ticket_complete"]
