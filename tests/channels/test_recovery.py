"""Recovery after crashes: no message is lost, and the order is kept."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import tempfile
from itertools import groupby
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import Agent, ScriptedModel, reply
from hookline.channels.gateway import Gateway
from hookline.channels.in_memory import MemoryChannel
from hookline.channels.options import GatewayOptions
from hookline.channels.protocol import Capabilities, ChannelError
from hookline.channels.runner import MAX_TRIES
from hookline.stores.mailbox import Mailbox
from hookline.stores.sessions import SqliteSessionStore
from tests.environment import with_source
from tests.properties import examples

from ..lines import read_lines
from ..waiting import block_until
from .helpers import crash

pytestmark = pytest.mark.slow


WORKER = Path(__file__).with_name("worker.py")


class Forgetful(Mailbox):
    """A mailbox whose lease ends when its process does."""

    async def detach(self):
        await self.transact(lambda db: db.execute("DELETE FROM programs WHERE id = ?", (self._me,)))
        await super().detach()


def made(folder, channel, turns=None):
    model = ScriptedModel(turns or [lambda request: f"echo {request.messages[-1].content}"], loop=True)
    return Gateway(
        Agent("bot", llm=model),
        [channel],
        mailbox=Forgetful(folder / "gateway.db"),
        sessions=SqliteSessionStore(folder / "sessions.db"),
        options=GatewayOptions(max_waiting=None, max_queued=None),
    )


async def test_unanswered_messages_are_answered_by_the_next_process(tmp_path):
    started = asyncio.Event()

    class Stuck(ScriptedModel):
        async def complete(self, request):
            started.set()
            await asyncio.Event().wait()

        async def stream(self, request):
            yield await self.complete(request)

    channel = MemoryChannel()
    first = made(tmp_path, channel)
    first._runner._answerer.model = Stuck()
    await first.start()
    for text in ("one", "two"):
        await channel.say(text, message_id=text)
    await started.wait()
    await crash(first)
    second = made(tmp_path, channel)
    await second.start()
    assert not await channel.say("two", message_id="two")
    assert await channel.replies(2) == ["echo one", "echo two"]
    await second.stop()


async def test_a_reply_that_was_being_sent_during_a_crash_is_sent_again_and_logged(tmp_path, caplog):
    sending = asyncio.Event()

    class Slow(MemoryChannel):
        async def send(self, address, message, *, key):
            self.keys = [*getattr(self, "keys", []), key]
            if not sending.is_set():
                sending.set()
                await asyncio.Event().wait()
            return await super().send(address, message, key=key)

    channel = Slow()
    first = made(tmp_path, channel)
    await first.start()
    await channel.say("one")
    await sending.wait()
    await crash(first)
    second = made(tmp_path, channel)
    await second.start()
    await channel.replies(1)
    await second.stop()
    assert channel.texts() == ["echo one"]
    assert len(channel.keys) == 2
    assert len(set(channel.keys)) == 1
    assert "may arrive twice" in caplog.text


async def test_an_idempotent_platform_shows_a_repeated_send_once(tmp_path, caplog):
    sent = asyncio.Event()

    class Deaf(MemoryChannel):
        async def send(self, address, message, *, key):
            id = await super().send(address, message, key=key)
            if not sent.is_set():
                sent.set()
                await asyncio.Event().wait()
            return id

    channel = Deaf(capabilities=Capabilities(idempotent=True))
    first = made(tmp_path, channel)
    await first.start()
    await channel.say("one")
    await sent.wait()
    await crash(first)
    second = made(tmp_path, channel)
    await second.start()
    await second.wait_until_idle()
    await second.stop()
    assert channel.texts() == ["echo one"]
    assert "twice" not in caplog.text


async def test_an_answer_that_was_saved_before_a_crash_is_not_generated_again(tmp_path):
    channel, saved = MemoryChannel(), asyncio.Event()
    first = made(tmp_path, channel)
    save = first._conversations.save

    async def save_and_end(session):
        await save(session)
        saved.set()
        await asyncio.Event().wait()

    first._conversations.save = save_and_end
    await first.start()
    await channel.say("one")
    await saved.wait()
    await crash(first)
    second = made(tmp_path, channel, ["another answer"])
    await second.start()
    await second.wait_until_idle()
    await second.stop()
    assert channel.texts() == ["echo one"]


async def test_a_message_that_always_crashes_the_process_is_given_up(tmp_path, caplog):
    channel = MemoryChannel()
    for round in range(5):
        started = asyncio.Event()

        class Deadly(ScriptedModel):
            async def complete(self, request):
                started.set()
                await asyncio.Event().wait()

            async def stream(self, request):
                yield await self.complete(request)

        gateway = made(tmp_path, channel)
        gateway._runner._answerer.model = Deadly()
        await gateway.start()
        if not round:
            await channel.say("boom")
        waits = [asyncio.create_task(started.wait()), asyncio.create_task(channel.replies(1))]
        done, rest = await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for task in rest:
            task.cancel()
        await crash(gateway)
        if waits[1] in done:
            break
    assert round == 3
    assert "something went wrong" in channel.texts()[0]


async def test_a_process_that_lost_its_lease_does_not_answer(tmp_path, caplog):
    model_go = asyncio.Event()
    asked = asyncio.Event()

    class Slow(ScriptedModel):
        async def complete(self, request):
            asked.set()
            await model_go.wait()
            return reply("late")

        async def stream(self, request):
            yield await self.complete(request)

    one, other = MemoryChannel(), MemoryChannel()
    sleepy = made(tmp_path, one)
    sleepy._runner._answerer.model = Slow()
    await sleepy.start()
    sleepy._polling.cancel()
    await one.say("hi", message_id="m1")
    await asked.wait()
    await sleepy._mailbox.transact(lambda db: db.execute("UPDATE programs SET until = 0"))
    awake = made(tmp_path, other)
    await awake.start()
    assert await other.replies(1) == ["echo hi"]
    model_go.set()
    await sleepy.wait_until_idle()
    assert one.texts() == []
    assert "another process has claimed" in caplog.text
    await sleepy.stop(grace=0)
    await awake.stop()


@pytest.mark.usefixtures("polls_often")
async def test_a_process_that_lost_its_lease_reloads_the_session(tmp_path, monkeypatch):
    said = [lambda request: " ".join(message.content for message in request.messages if message.role == "user")]
    one, other = MemoryChannel(), MemoryChannel()
    sleepy, awake = made(tmp_path, one, said), made(tmp_path, other, said)
    monkeypatch.setattr(sleepy, "_idle_conversations", lambda: [])  # it has no time to give the conversation back
    await sleepy.start()
    await awake.start()
    await one.say("1", message_id="m1")
    await one.replies(1)
    await sleepy.wait_until_idle()
    forget = "UPDATE conversations SET owner = 'somebody who is gone'"
    await sleepy._mailbox.transact(lambda db: db.execute(forget))
    await other.say("2", message_id="m2")
    assert await other.replies(1) == ["1 2"]
    monkeypatch.undo()
    while sleepy._conversations.keys or awake._conversations.keys:
        await asyncio.sleep(0.01)
    await one.say("3", message_id="m3")
    assert await one.replies(2) == ["1", "1 2 3"]
    await sleepy.stop()
    await awake.stop()


async def test_a_process_that_gets_a_conversation_back_reloads_the_session_at_once(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.stores.mailbox.POLL_SECONDS", 600.0)
    said = [lambda request: " ".join(message.content for message in request.messages if message.role == "user")]
    one, other = MemoryChannel(), MemoryChannel()
    sleepy, awake = made(tmp_path, one, said), made(tmp_path, other, said)
    await sleepy.start()
    await awake.start()
    await one.say("1", message_id="m1")
    await one.replies(1)
    for channel, number, heard in ((other, "2", ["1 2"]), (one, "3", ["1", "1 2 3"])):
        for gateway in (sleepy, awake):  # a reply that is not noted as sent would be sent again
            await gateway.wait_until_idle()
        lose = "UPDATE conversations SET owner = 'somebody who is gone'"
        await sleepy._mailbox.transact(lambda db, lose=lose: db.execute(lose))
        await channel.say(number, message_id=f"m{number}")
        assert await channel.replies(len(heard)) == heard
    await sleepy.stop()
    await awake.stop()


@pytest.mark.usefixtures("polls_often")
async def test_a_message_accepted_by_another_process_goes_to_the_owner_of_the_conversation(tmp_path):
    go, asked = asyncio.Event(), asyncio.Event()

    class Slow(ScriptedModel):
        async def complete(self, request):
            asked.set()
            await go.wait()
            return reply(f"first: {request.messages[-1].content}")

        async def stream(self, request):
            yield await self.complete(request)

    one, other = MemoryChannel(), MemoryChannel()
    first, second = made(tmp_path, one), made(tmp_path, other)
    first._runner._answerer.model = Slow()
    await first.start()
    await second.start()
    await one.say("1", message_id="m1")
    await asked.wait()
    assert await other.say("2", message_id="m2")
    assert not await other.say("1", message_id="m1")
    assert await one.say("3", message_id="m3")
    go.set()
    assert await one.replies(3) == ["first: 1", "first: 2", "first: 3"]
    assert other.texts() == []
    await first.stop()
    await second.stop()


async def test_a_full_disk_delays_messages_and_answers(tmp_path, monkeypatch):
    import sqlite3

    channel = MemoryChannel()
    gateway = made(tmp_path, channel)
    await gateway.start()
    works = gateway._mailbox.database.transaction
    broken = True

    @contextlib.contextmanager
    def transaction(**options):
        from hookline.stores.errors import StoreError

        with works(**options) as db:
            yield db
            if broken:
                raise StoreError("the disk is full") from sqlite3.OperationalError("full")

    monkeypatch.setattr(gateway._mailbox.database, "transaction", transaction)
    with pytest.raises(Exception, match="the disk is full"):
        await channel.say("one", message_id="m1")
    broken = False
    assert await channel.say("one", message_id="m1")
    assert await channel.replies(1) == ["echo one"]
    await gateway.stop()


def test_unusual_texts_and_ids_are_handled(tmp_path):
    async def main():
        channel = MemoryChannel()
        gateway = made(tmp_path, channel)
        await gateway.start()
        odd = ["\ud800 half", "a\0b", "x" * 100_000, "'; DROP TABLE inbox; --"]
        for text in odd:
            await channel.say(text, chat=text, message_id=text, sender=text)
        await gateway.wait_until_idle()
        answered = {each.address.chat_id for each in channel.sent}
        await gateway.stop()
        return answered == set(odd)

    assert asyncio.run(main())


actions = st.lists(
    st.tuples(st.just("say"), st.sampled_from("abc")) | st.sampled_from([("fail", ""), ("crash", ""), ("pause", "")]),
    min_size=1,
    max_size=25,
)


@settings(max_examples=examples(20), deadline=None)
@given(actions)
@example([("say", "a"), *[("crash", "")] * 4, ("say", "a")])
def test_every_message_is_answered_in_order_despite_failures(actions):
    async def main(folder):
        channel, said = MemoryChannel(), {}
        gateway = made(folder, channel)
        await gateway.start()
        for what, chat in actions:
            if what == "say":
                number = said[chat] = said.get(chat, 0) + 1
                await channel.say(str(number), chat=chat, message_id=f"{chat}{number}")
            elif what == "fail":
                channel.failures.append(ChannelError("not now", retry_after=0.001))
            elif what == "pause":
                await asyncio.sleep(0.005)
            else:
                await crash(gateway)
                gateway = made(folder, channel)
                await gateway.start()
        await gateway.wait_until_idle()
        await gateway.stop()
        for chat, count in said.items():
            seen = [each.key for each in channel.sent if each.address.chat_id == chat]
            told = [text for (_, text), _ in groupby(zip(seen, channel.texts(chat), strict=True))]
            given_up = ("Sorry, something went wrong",) if actions.count(("crash", "")) >= MAX_TRIES else ()
            assert len(told) == count
            assert all(text == f"echo {n}" or text.startswith(given_up) for n, text in enumerate(told, 1)), told
            assert len(set(seen)) == count  # a message that arrived twice has the same key

    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(Path(folder)))


@pytest.fixture
def workers(tmp_path):
    running = []
    env = with_source()

    def start(*arguments):
        running.append(subprocess.Popen([sys.executable, str(WORKER), str(tmp_path), *arguments], env=env))
        return running[-1]

    yield start
    for process in running:
        process.kill()
        process.wait()


def arrived(folder):
    """Return the messages that arrived whole."""
    return read_lines(folder / "arrived")


def test_killed_and_concurrent_processes_lose_nothing_and_keep_the_order(tmp_path, workers):
    said = {f"chat{n}": 20 for n in range(20)}
    (tmp_path / "said").write_text(json.dumps(said))
    for least in (30, 120):
        process = workers()
        block_until(lambda: len(arrived(tmp_path)) >= least or process.poll() is not None)
        process.send_signal(signal.SIGKILL)
        process.wait()
    processes = [workers(), workers()]
    block_until(lambda: len(arrived(tmp_path)) >= 220)
    processes[0].send_signal(signal.SIGKILL)
    processes[0].wait()
    block_until(lambda: len({key for _, _, key in arrived(tmp_path)}) >= sum(said.values()))
    check_order(said, arrived(tmp_path))


def test_two_gateways_on_one_postgresql_keep_the_order_and_one_takes_over_from_the_other(
    tmp_path, workers, postgres_url
):
    said = {f"chat{n}": 10 for n in range(10)}
    (tmp_path / "said").write_text(json.dumps(said))
    one, two = workers(postgres_url), workers(postgres_url)
    block_until(lambda: len(arrived(tmp_path)) >= 20 or one.poll() is not None)
    one.send_signal(signal.SIGKILL)
    one.wait()
    block_until(lambda: len({key for _, _, key in arrived(tmp_path)}) >= sum(said.values()) or two.poll() is not None)
    assert two.poll() is None
    check_order(said, arrived(tmp_path))


def check_order(said, sent):
    """Each message was answered once, and those of a chat in order; only a reply in flight may have arrived twice."""
    for chat, count in said.items():
        mine = [(text, key) for where, text, key in sent if where == chat]
        assert [text for (text, key), _ in groupby(mine)] == [f"echo {n}" for n in range(count)]
        assert len({key for _, key in mine}) == count
