"""Durable runs of a gateway: continued after an interruption, and suspended while a call waits for approval."""

import asyncio
import re
from contextlib import closing

import pytest

from hookline import APPROVAL_REQUESTED, BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, hook, tool
from hookline._run.journal import JOURNAL_FORMAT
from hookline.channels import notices
from hookline.channels.access import Access
from hookline.channels.conversations import key_of
from hookline.channels.gateway import Gateway
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.options import GatewayOptions
from hookline.channels.protocol import Address
from hookline.config.errors import ConfigError
from hookline.hooks import PlanModeHook
from hookline.stores import RunStore
from hookline.stores.approvals import ApprovalStore
from hookline.stores.mailbox import LEASE, Mailbox
from hookline.stores.messages import InboundMessage
from hookline.stores.sessions import SqliteSessionStore
from hookline.teams import Team

from ..journals import set_format
from ..waiting import wait_until
from .test_files import PNG, FileChannel

CODE = re.compile(r"(?m)^([A-Z2-9]{4}):")


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr("hookline.channels.approvals.HOLD_SECONDS", 0.01)
    monkeypatch.setattr("hookline.channels.runner.FIRST_DELAY", 0.01)


class World:
    """A folder with the files of a gateway, its channel, and what its tool has done. Gateways come and go."""

    def __init__(self, folder, url=""):
        self.folder, self.url = folder, url
        self.channel = MemoryChannel()
        self.approvals = ApprovalStore(url or folder / "approvals.db")
        self.runs = RunStore(url or folder / "runs.db", lease_seconds=10.0)
        self.done = []
        self.started = asyncio.Event()
        self.go = asyncio.Event()
        self.go.set()
        self.asked = 0

    def gateway(self, *, hooks=(), instructions="", channel=None, answerer=None, **options):
        @tool
        async def write(path: str, ctx) -> str:
            """Write a file."""
            self.started.set()
            await self.go.wait()
            self.done.append(path)
            return f"wrote {path}"

        def play(request):
            self.asked += 1
            last = request.messages[-1]
            if last.role == "tool":
                return f"The tool said: {last.content}"
            if last.content.startswith("write "):
                return [call("write", path=path) for path in last.content.split()[1:]]
            return f"echo {last.content}"

        agent = Agent(
            "bot", llm=ScriptedModel([play], loop=True), tools=[write], hooks=[*hooks], instructions=instructions
        )
        channel = channel or self.channel
        return Gateway(
            answerer or agent,
            [channel],
            mailbox=Mailbox(self.url or self.folder / "gateway.db", lease=LEASE if not self.url else 3600.0),
            sessions=SqliteSessionStore(self.url or self.folder / "sessions.db"),
            options=GatewayOptions(**{"grace": 0.0, **options}),
            access={channel.name: Access(mention=False, approve=["ada"])},
            approvals=self.approvals,
            durable=self.runs,
            servers=(),
        )

    async def say(self, text, **fields):
        await self.channel.say(text, **{"sender": "ada", **fields})

    def statuses(self):
        return sorted(run.status for run in self.runs.journal.runs())

    async def code(self):
        await wait_until(lambda: any("wants to call" in text for text in self.channel.texts()))
        return next(CODE.search(text)[1] for text in self.channel.texts() if "wants to call" in text)

    async def wait_until_suspended(self):
        await wait_until(lambda: "waiting" in self.statuses())

    async def stop_in_tool(self, gateway, go=None):
        """Stop a gateway that executes a tool. The tool ends when the gateway suspends the run."""
        stopping = asyncio.create_task(gateway.stop(grace=0))
        await wait_until(lambda: any(active.interrupted for active in gateway._runner._active.values()))
        (go or self.go).set()
        await stopping

    async def interrupted(self):
        """Start a gateway, and stop it while its tool writes ``a``."""
        self.go.clear()
        gateway = self.gateway()
        await gateway.start()
        await self.say("write a")
        await self.started.wait()
        await self.stop_in_tool(gateway)

    def session(self):
        """Return the only stored conversation."""
        with closing(SqliteSessionStore(self.folder / "sessions.db")) as sessions:
            (stored,) = sessions.list()
            return sessions.load(stored.id)


@pytest.fixture
def worlds(tmp_path):
    """Makes worlds, and closes their stores at the end."""
    made = []

    def make(url=""):
        made.append(World(tmp_path, url))
        return made[-1]

    yield make
    for world in made:
        world.approvals.close()
        world.runs.close()


@pytest.fixture
def world(worlds):
    return worlds()


ASKS = [PlanModeHook(["write"])]


async def test_a_message_is_answered_and_its_run_has_a_journal(world):
    gateway = world.gateway()
    await gateway.start()
    await world.say("hello")
    assert await world.channel.replies(1) == ["echo hello"]
    await gateway.stop()
    (run,) = world.runs.journal.runs()
    assert run.status == "completed"


async def test_a_run_that_is_interrupted_by_a_stop_is_continued_by_the_next_gateway(world):
    await world.interrupted()
    assert world.channel.texts() == []
    assert world.statuses() == ["interrupted"]
    second = world.gateway()
    await second.start()
    assert await world.channel.replies(1) == ["The tool said: wrote a"]
    await second.stop()
    assert world.done == ["a"]
    assert world.asked == 2
    assert world.statuses() == ["completed"]


async def test_a_run_that_waits_for_approval_is_suspended_and_taken_up_when_somebody_decides_elsewhere(world):
    gateway = world.gateway(hooks=ASKS)
    await gateway.start()
    await world.say("write a")
    await world.wait_until_suspended()
    await world.say("and then")
    await wait_until(lambda: not gateway._runner._active)
    (row,) = world.approvals.rows(status="pending")
    world.approvals.decide(row.id, decision="approve", digest=row.digest, by="an operator")
    await wait_until(lambda: "echo and then" in world.channel.texts())
    await gateway.stop()
    texts = world.channel.texts()
    assert "wants to call" in texts[0]
    assert "approved by an operator" in texts[1]
    assert texts[2:] == ["The tool said: wrote a", "echo and then"]
    assert world.done == ["a"]


@pytest.mark.parametrize("words", ["/approve {code}", "yes", "/deny {code} no"])
async def test_a_call_is_decided_in_the_conversation_after_a_restart_of_all_gateways(world, words):
    first = world.gateway(hooks=ASKS)
    await first.start()
    await world.say("write a")
    code = await world.code()
    await world.wait_until_suspended()
    await first.stop()
    second = world.gateway(hooks=ASKS)
    await second.start()
    await world.say(words.format(code=code))
    await wait_until(lambda: any(text.startswith("The tool said") for text in world.channel.texts()))
    await second.stop()
    requests = [text for text in world.channel.texts() if "wants to call" in text]
    assert len(requests) == 1
    assert world.done == ([] if "deny" in words else ["a"])
    assert world.statuses() == ["completed"]


async def test_a_decision_that_came_while_no_gateway_ran_counts(world):
    first = world.gateway(hooks=ASKS)
    await first.start()
    await world.say("write a")
    await world.wait_until_suspended()
    await first.stop()
    (row,) = world.approvals.rows(status="pending")
    world.approvals.decide(row.id, decision="edit", digest=row.digest, by="anna", arguments={"path": "b"})
    second = world.gateway(hooks=ASKS)
    await second.start()
    await wait_until(lambda: "The tool said: wrote b" in world.channel.texts())
    await second.stop()
    assert world.done == ["b"]


async def test_a_run_that_was_suspended_is_stopped_by_the_user(world):
    gateway = world.gateway(hooks=ASKS)
    await gateway.start()
    await world.say("write a")
    await world.wait_until_suspended()
    await world.say("/stop")
    await world.say("hello")
    await wait_until(lambda: "echo hello" in world.channel.texts())
    await gateway.stop()
    assert notices.STOPPED in world.channel.texts()
    assert sorted(run.status for run in world.runs.journal.runs()) == ["cancelled", "completed"]
    assert [row.status for row in world.approvals.rows()] == ["cancelled"]
    assert world.done == []


async def test_a_run_that_is_being_suspended_is_stopped_by_the_user(world, monkeypatch):
    gateway = world.gateway(hooks=ASKS)
    leaving, go_on, leave = asyncio.Event(), asyncio.Event(), gateway._runner._leave

    async def slowly(active):
        await leave(active)
        leaving.set()
        await go_on.wait()

    monkeypatch.setattr(gateway._runner, "_leave", slowly)
    await gateway.start()
    await world.say("write a")
    await leaving.wait()
    await world.say("/stop")
    await wait_until(lambda: notices.STOPPED in world.channel.texts())
    go_on.set()
    await wait_until(lambda: world.statuses() == ["cancelled"])
    await gateway.stop()
    assert [row.status for row in world.approvals.rows()] == ["cancelled"]
    assert world.done == []


async def test_a_call_that_nobody_decides_in_time_does_not_run(world):
    gateway = world.gateway(hooks=ASKS, approval_seconds=1.0)
    await gateway.start()
    await world.say("write a")
    await wait_until(lambda: any("Nobody approved" in text for text in world.channel.texts()))
    await gateway.stop()
    assert world.done == []


async def test_an_approver_that_waits_is_asked_again_after_growing_delays(world):
    asked = []

    @hook(APPROVAL_REQUESTED)
    def later(ctx, request):
        asked.append(request.call.name)
        return HookResult.approve() if len(asked) == 3 else HookResult.wait()

    @guard(BEFORE_TOOL)
    def ask(ctx, request):
        return HookResult.ask("May I?")

    gateway = world.gateway(hooks=[ask, later])
    await gateway.start()
    await world.say("write a")
    assert await world.channel.replies(1) == ["The tool said: wrote a"]
    await gateway.stop()
    assert len(asked) == 3
    assert gateway._runner._delays == {}
    assert world.done == ["a"]


async def test_a_gateway_with_other_hooks_refuses_to_continue_a_run(world, caplog):
    await world.interrupted()
    second = world.gateway(instructions="Be brief.")
    await second.start()
    assert await world.channel.replies(1) == [notices.CHANGED]
    await second.stop()
    assert world.statuses() == ["failed"]
    assert "other hooks, instructions or tools" in caplog.text


def stored(runs):
    return [runs.db.execute(f"SELECT * FROM {name}") for name in ("durable_runs", "journal", "events", "runs")]


async def test_a_run_of_another_journal_format_waits_unchanged_for_the_version_that_began_it(world, caplog):
    await world.interrupted()
    (run,) = world.runs.journal.runs()
    set_format(world.runs, 1, "of the other version")
    before = stored(world.runs)
    second = world.gateway()
    await second.start()
    await wait_until(lambda: caplog.text.count("its journal has format 1") >= 2)  # it is tried again
    assert f"run {run.run_id} cannot be continued" in caplog.text
    assert "Continue it with the version of Hookline that began it" in caplog.text
    await second.stop()
    assert stored(world.runs) == before
    assert (world.channel.texts(), world.done) == ([], ["a"])
    set_format(world.runs, JOURNAL_FORMAT)
    third = world.gateway()
    await third.start()
    assert await world.channel.replies(1) == ["The tool said: wrote a"]
    await third.stop()


async def test_a_run_of_another_journal_format_can_be_stopped(world, caplog):
    await world.interrupted()
    set_format(world.runs, 1, "of the other version")
    second = world.gateway()
    await second.start()
    await wait_until(lambda: "its journal has format 1" in caplog.text)
    await world.say("/stop")
    await wait_until(lambda: world.statuses() == ["cancelled"])
    await world.say("hello")
    await wait_until(lambda: "echo hello" in world.channel.texts())
    await second.stop()


async def test_a_suspended_run_that_waits_for_a_free_place_can_be_stopped(world, caplog):
    await world.interrupted()
    set_format(world.runs, 1, "of the other version")
    second = world.gateway(max_concurrent=1)
    await second.start()
    await wait_until(lambda: "its journal has format 1" in caplog.text)
    world.started.clear()
    world.go.clear()
    await world.say("write b", chat="another")  # it takes the only place
    await world.started.wait()
    await wait_until(lambda: all(task.done() for task in second._runner._take_ups.values()))
    await world.say("/stop")
    await wait_until(lambda: notices.stopped(True, 0, 0) in world.channel.texts())
    world.go.set()
    await wait_until(lambda: world.statuses() == ["cancelled", "completed"])
    await second.stop()


@pytest.fixture
def short_grace(monkeypatch):
    """For gateways that hang when they are stopped."""
    monkeypatch.setattr("hookline.channels.gateway.CANCEL_GRACE", 0.5)


@pytest.mark.usefixtures("short_grace")
async def test_the_replies_of_a_run_that_had_ended_are_sent_without_another_run(world, monkeypatch):
    first = world.gateway()
    ended = asyncio.Event()

    async def never(*_, **__):
        ended.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(first._outbox, "reply", never)
    await first.start()
    await world.say("hello")
    await ended.wait()
    await first.stop(grace=0)
    assert world.statuses() == ["completed"]
    second = world.gateway()
    await second.start()
    assert await world.channel.replies(1) == ["echo hello"]
    await second.stop()
    assert world.asked == 1


@pytest.mark.usefixtures("short_grace")
async def test_a_conversation_that_was_saved_before_an_interruption_is_not_saved_twice(world, monkeypatch):
    first = world.gateway()
    saved = asyncio.Event()
    save = first._conversations.save

    async def save_and_wait(session):
        await save(session)
        saved.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(first._conversations, "save", save_and_wait)
    await first.start()
    await world.say("hello")
    await saved.wait()
    await first.stop(grace=0)
    second = world.gateway()
    await second.start()
    assert await world.channel.replies(1) == ["echo hello"]
    await world.say("again")
    assert await world.channel.replies(2) == ["echo hello", "echo again"]
    await second.stop()
    session = world.session()
    assert [message.content for message in session.messages] == ["hello", "echo hello", "again", "echo again"]


async def test_a_message_steered_into_a_run_is_answered_with_it_after_an_interruption(world):
    world.go.clear()
    first = world.gateway(when_busy="steer")
    await first.start()
    await world.say("write a")
    await world.started.wait()
    await world.say("be quick")
    await wait_until(lambda: any(active.steered for active in first._runner._active.values()))
    await world.stop_in_tool(first)
    second = world.gateway(when_busy="steer")
    await second.start()
    assert await world.channel.replies(1) == ["echo be quick"]
    await world.say("more")
    assert await world.channel.replies(2) == ["echo be quick", "echo more"]
    await second.stop()
    session = world.session()
    said = [message.content for message in session.messages if message.role == "user"]
    assert said == ["write a", "be quick", "more"]
    assert world.done == ["a"]


async def test_a_message_that_always_ends_the_process_is_given_up(world, caplog):
    gateway = world.gateway()
    await gateway._mailbox.open()
    message = InboundMessage("boom", "memory", "chat", "ada", "m1", direct=True)
    key = key_of(Address("memory", "chat", "", ""))
    accepted = await gateway._mailbox.accept(key, "memory", message)
    for _ in range(3):
        await gateway._mailbox.begin_attempt(accepted.inbox[0], 0)
    await gateway._mailbox.close()
    gateway = world.gateway()
    await gateway.start()
    assert await world.channel.replies(1) == [notices.FAILED]
    await gateway.stop()
    assert world.statuses() == ["failed"]


async def test_durable_runs_need_a_store(world):
    with pytest.raises(ConfigError, match="durable=RunStore"):
        Gateway(
            Agent("bot", llm=ScriptedModel([])),
            [world.channel],
            mailbox=Mailbox(":memory:"),
            sessions=SqliteSessionStore(":memory:"),
            options=GatewayOptions(durable=True),
        )


async def test_a_team_goes_on_with_the_agent_that_took_over_after_a_restart(world):
    entered, opened = [], asyncio.Event()

    def team():
        @tool
        async def look() -> str:
            """Look."""
            entered.append("look")
            await opened.wait()
            return "seen"

        def clerk(request):
            return call("handoff", to="expert", message="yours")

        def expert(request):
            return "It is done." if request.messages[-1].content == "seen" else [call("look")]

        made = Team()
        made.add(Agent("clerk", llm=ScriptedModel([clerk], loop=True), tools=[made]))
        made.add(Agent("expert", llm=ScriptedModel([expert], loop=True), tools=[made, look]))
        return made

    first = world.gateway(answerer=team())
    await first.start()
    await world.say("Help.")
    await wait_until(lambda: entered)
    await world.stop_in_tool(first, opened)
    second = world.gateway(answerer=team())
    await second.start()
    await wait_until(lambda: "It is done." in world.channel.texts())
    await second.stop()
    session = world.session()
    assert entered == ["look"]
    assert session.personality_id == "expert"
    assert world.statuses() == ["completed"]


async def test_a_file_of_a_message_is_read_once_and_is_still_there_after_a_restart(world):
    channel = FileChannel(cat=PNG)
    world.go.clear()
    first = world.gateway(channel=channel)
    await first.start()
    await channel.share("cat", text="write a", sender="ada")
    await world.started.wait()
    await world.stop_in_tool(first)
    second = world.gateway(channel=channel)
    await second.start()
    assert await channel.replies(1) == ["The tool said: wrote a"]
    await second.stop()
    session = world.session()
    assert channel.read == ["cat"]
    assert session.messages[0].attachments[0].data == PNG


async def test_old_journals_of_a_gateway_are_deleted_and_those_of_programs_are_kept(world, monkeypatch):
    monkeypatch.setattr("hookline.channels.durable.PRUNE_SECONDS", 0.0)
    gateway = world.gateway(keep_days=1e-9)
    await gateway.start()
    await world.say("hello")
    await world.channel.replies(1)
    await gateway.wait_until_idle()
    await Agent("other", llm=ScriptedModel(["Hi."])).arun("Hi.", durable=world.runs, run_id="mine")
    await gateway._journals.prune()
    await gateway.stop()
    assert [run.run_id for run in world.runs.journal.runs()] == ["mine"]


# Two gateways on one PostgreSQL database


@pytest.fixture
async def pair(worlds, postgres_url, monkeypatch):
    """Two gateways that hear of each other by announcements only, each with a channel of its own."""
    monkeypatch.setattr("hookline.stores.mailbox.WATCHED_POLL_SECONDS", 600.0)
    monkeypatch.setattr("hookline.stores.approvals.WATCHED_POLL_SECONDS", 600.0)
    world, other = worlds(postgres_url), MemoryChannel()
    one, two = world.gateway(hooks=ASKS, when_busy="steer"), world.gateway(hooks=ASKS, channel=other, when_busy="steer")
    await one.start()
    await two.start()
    yield world, other
    await one.stop()
    await two.stop()


@pytest.mark.parametrize("words", ["/approve {code}", "yes"])
async def test_a_decision_through_another_gateway_reaches_the_run(pair, words):
    world, other = pair
    await world.say("write a", message_id="m1")
    code = await world.code()
    await world.wait_until_suspended()
    await other.say(words.format(code=code), sender="ada", message_id="m2")
    await wait_until(lambda: "The tool said: wrote a" in world.channel.texts())
    assert world.done == ["a"]
    assert other.texts() == []


async def test_messages_and_stops_through_another_gateway_reach_the_run(pair):
    world, other = pair
    world.go.clear()
    await world.say("write a", message_id="m1")
    await world.code()
    await other.say("yes", sender="ada", message_id="m2")
    await world.started.wait()
    await other.say("be quick", sender="ada", message_id="m3")
    world.go.set()
    await wait_until(lambda: "echo be quick" in world.channel.texts())
    await world.say("write b", message_id="m4")
    await world.wait_until_suspended()
    await other.say("/stop", sender="ada", message_id="m5")
    await wait_until(lambda: "cancelled" in world.statuses())
    await wait_until(lambda: notices.STOPPED in world.channel.texts())
    assert world.done == ["a"]
    assert other.texts() == []


async def test_the_other_gateway_continues_when_one_stops(worlds, postgres_url, monkeypatch):
    monkeypatch.setattr("hookline.stores.mailbox.WATCHED_POLL_SECONDS", 600.0)
    world, other = worlds(postgres_url), MemoryChannel()
    one, two = world.gateway(), world.gateway(channel=other)
    await one.start()
    await two.start()
    world.go.clear()
    await world.say("write a", message_id="m1")
    await world.started.wait()
    await world.stop_in_tool(one)
    assert await other.replies(1) == ["The tool said: wrote a"]
    await two.stop()
    assert world.done == ["a"]
    assert world.channel.texts() == []
