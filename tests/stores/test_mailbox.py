"""Mailbox: each message is answered once, even with several processes. Pairing codes."""

import asyncio
import sqlite3
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.payloads import InboundMessage, OutboundMessage
from hookline.stores import MemoryStore
from hookline.stores.errors import StoreError
from hookline.stores.group_commit import AsyncGroupCommit
from hookline.stores.mailbox import LeaseLostError, Mailbox, gateway_database
from hookline.stores.pairing import create_code, is_paired, pair, people
from tests.properties import examples

KEY = '["c", "", "1", ""]'


def received(id, text="hi"):
    return InboundMessage(text, "c", "1", "ada", id)


@pytest.fixture
async def boxes(tmp_path):
    made = []

    async def make(**options):
        box = Mailbox(tmp_path / "gateway.db", **options)
        await box.open()
        made.append(box)
        return box

    yield make
    for box in made:
        if not box.database._closed:
            await box.close()


async def test_a_message_that_is_delivered_twice_is_accepted_once(boxes):
    box = await boxes()
    first = await box.accept(KEY, "c", received("m1"))
    assert [item.message for item in first.inbox] == [received("m1")]
    assert not (await box.accept(KEY, "c", received("m1", "another text"))).is_new
    assert (await box.accept('["d", "", "1", ""]', "d", received("m1"))).is_new
    assert (await box.accept(KEY, "c", received("m1").replace(chat_id="2"))).is_new


async def test_a_message_is_read_back_with_all_its_fields(boxes):
    box = await boxes()
    message = received("m1").replace(automated=True, attachments=("photo", "voice"))
    (item,) = (await box.accept(KEY, "c", message)).inbox
    assert item.message == message
    await box.close()
    (item,) = (await (await boxes()).poll(["c"])).inbox
    assert item.message == message


async def test_replies_are_stored_together_with_the_end_of_their_messages(boxes):
    box = await boxes()
    (item,) = (await box.accept(KEY, "c", received("m1"))).inbox
    replies = await box.complete(KEY, "c", [item], [OutboundMessage("one"), OutboundMessage("two")])
    assert [reply.message.text for reply in replies] == ["one", "two"]
    assert len({reply.token for reply in replies}) == 2
    await box.close()
    later = await boxes()
    left = await later.poll(["c"])
    assert left.inbox == []
    assert [(reply.message.text, reply.token, reply.in_doubt) for reply in left.outbox] == [
        ("one", replies[0].token, False),
        ("two", replies[1].token, False),
    ]


async def test_a_message_is_in_doubt_if_its_process_ended_while_sending_it(boxes):
    box = await boxes(lease=1.0)
    (item,) = (await box.accept(KEY, "c", received("m1"))).inbox
    one, two = await box.complete(KEY, "c", [item], [OutboundMessage("one"), OutboundMessage("two")])
    await box.mark_sending(one)
    await box.postpone(one, 5.0, "not now")
    await box.mark_sending(one)
    await box.close()
    later = await boxes()
    left = await later.poll(["c"])
    assert [(p.in_doubt, p.tries, p.due) for p in left.outbox] == [(True, 2, 5.0), (False, 0, 0.0)]
    await later.mark_sent(left.outbox[0], "id")
    await later.mark_failed(left.outbox[1], "gone")
    assert await later.release([KEY]) == {KEY}
    assert (await later.poll(["c"])).outbox == []


async def test_a_conversation_belongs_to_one_process_until_that_process_is_gone(boxes):
    one, other = await boxes(), await boxes()
    (item,) = (await one.accept(KEY, "c", received("m1"))).inbox
    assert (await other.accept(KEY, "c", received("m2"))).inbox == ()
    assert (await other.poll(["c"])).inbox == []
    with pytest.raises(LeaseLostError):
        await other.begin_attempt(item, 0)
    handed = (await one.accept(KEY, "c", received("m3"))).inbox
    assert [item.message.message_id for item in handed] == ["m2", "m3"]
    assert (await one.poll(["c"])).inbox == []
    assert await one.release([KEY]) == set()
    await one.begin_attempt(item, 4)
    await one.detach()
    assert (await other.poll(["c"])).inbox == []
    await other.transact(
        lambda db: db.execute("UPDATE programs SET until = ? WHERE id = ?", (time.time() - 1, one._me))
    )
    assert (await other.poll(["d"])).inbox == []
    left = (await other.poll(["c"])).inbox
    assert [item.message.message_id for item in left] == ["m1", "m2", "m3"]
    assert (left[0].tries, left[0].base, left[0].recovered) == (1, 4, True)


async def test_a_reply_that_another_process_stored_is_sent_by_the_owner_of_the_conversation(boxes):
    one, other = await boxes(), await boxes()
    await one.accept(KEY, "c", received("m1"))
    notice = await other.accept(KEY, "c", received("m2"), done=True, replies=[OutboundMessage("who are you?")])
    assert notice.outbox == ()
    left = await one.poll(["c"])
    assert [reply.message.text for reply in left.outbox] == ["who are you?"]
    assert (await one.poll(["c"])).outbox == []


@pytest.mark.sqlite  # on PostgreSQL when the lease of the process has expired
async def test_the_conversations_of_a_dead_process_are_claimed_at_once(boxes):
    one, other = await boxes(), await boxes()
    await one.accept(KEY, "c", received("m1"))
    await one.transact(lambda db: db.execute("UPDATE programs SET pid = 2147483646 WHERE id = ?", (one._me,)))
    await one.detach()
    assert [item.message.message_id for item in (await other.poll(["c"])).inbox] == ["m1"]


async def test_a_clock_change_takes_no_conversation_from_a_running_process(boxes, monkeypatch):
    mine, other = await boxes(lease=1e9), await boxes(lease=1e9)
    (item,) = (await mine.accept(KEY, "c", received("m1"))).inbox
    late = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: late)
    await mine.poll(["c"])
    assert (await other.poll(["c"])).inbox == []
    await mine.begin_attempt(item, 0)


async def take_over(loser, winner):
    """Let ``winner`` claim the conversations of ``loser``, as if ``loser`` had been suspended."""
    await winner.transact(lambda db: db.execute("DELETE FROM programs WHERE id = ?", (loser._me,)))
    found = await winner.poll(["c"])
    await loser.open()
    return found


async def test_a_process_that_claims_a_conversation_again_does_not_repeat_answers_of_another_process(boxes):
    suspended, running = await boxes(), await boxes()
    (first,) = (await suspended.accept(KEY, "c", received("m1"))).inbox
    (same,) = (await take_over(suspended, running)).inbox
    await running.complete(KEY, "c", [same])
    assert await running.release([KEY]) == {KEY}
    (second,) = (await suspended.accept(KEY, "c", received("m2"))).inbox
    for stale in (
        suspended.begin_attempt(first, 0),
        suspended.complete(KEY, "c", [second, first], [OutboundMessage("again")]),
    ):
        with pytest.raises(LeaseLostError):
            await stale
    assert [each.message.text for each in await suspended.complete(KEY, "c", [second], [OutboundMessage("new")])] == [
        "new"
    ]


async def test_a_reply_sent_by_another_process_is_not_sent_again(boxes):
    suspended, running = await boxes(), await boxes()
    (item,) = (await suspended.accept(KEY, "c", received("m1"))).inbox
    (reply,) = await suspended.complete(KEY, "c", [item], [OutboundMessage("one")])
    await suspended.mark_sending(reply)
    (same,) = (await take_over(suspended, running)).outbox
    await running.mark_sending(same)
    await running.mark_sent(same, "1")
    for late in (suspended.postpone(reply, 0, "no answer"), suspended.mark_failed(reply, "gone")):
        with pytest.raises(LeaseLostError):
            await late
    await suspended.close()
    await running.close()
    assert (await (await boxes()).poll(["c"])).outbox == []


async def test_release_reports_conversations_that_another_process_has_claimed(boxes):
    suspended, running = await boxes(), await boxes()
    await suspended.accept(KEY, "c", received("m1"))
    assert await suspended.release([KEY]) == set()
    await take_over(suspended, running)
    assert await suspended.release([KEY]) == {KEY}


async def test_removing_a_channel_does_not_release_messages_that_another_process_holds(boxes):
    one, two = await boxes(), await boxes()
    other_chat = '["c", "", "2", ""]'
    (mine,) = (await one.accept(KEY, "c", received("m1"))).inbox
    (theirs,) = (await two.accept(other_chat, "c", received("m2").replace(chat_id="2"))).inbox
    await one.release_channel("c")
    await two.begin_attempt(theirs, 0)
    (reply,) = await two.complete(other_chat, "c", [theirs], [OutboundMessage("done")])
    await one.release_channel("c")
    await two.mark_sending(reply)
    assert [item.seq for item in (await two.poll(["c"])).inbox] == [mine.seq]


async def test_finished_messages_are_deleted_after_keep_days(boxes):
    box = await boxes(keep_days=1)
    for id in ("old", "new"):
        (item,) = (await box.accept(KEY, "c", received(id))).inbox
        (reply,) = await box.complete(KEY, "c", [item], [OutboundMessage("x")])
        await box.mark_sent(reply, "1")
    await box.transact(lambda db: db.execute("UPDATE inbox SET at = 0 WHERE identity LIKE '%old%'"))
    await box.poll(["c"])
    assert (await box.accept(KEY, "c", received("old"))).is_new
    assert not (await box.accept(KEY, "c", received("new"))).is_new


async def test_a_conversation_can_start_a_new_session(boxes):
    box = await boxes()
    await box.accept(KEY, "c", received("m1"))
    assert await box.generation(KEY) == 0
    assert await box.generation(KEY, next=True) == 1
    assert await box.generation(KEY) == 1


async def test_a_failing_change_does_not_roll_back_the_others_of_its_batch(tmp_path):
    group = AsyncGroupCommit(gateway_database(tmp_path / "g.db"))
    person = "INSERT INTO people VALUES (?, 'x', 0)"

    def bad(db):
        db.execute(person, ("lost",))
        raise KeyError("bad")

    good = [lambda db, n=n: db.execute(person, (f"kept{n}",)) for n in range(5)]
    out = await asyncio.gather(*map(group.transact, [*good[:2], bad, *good[2:]]), return_exceptions=True)
    assert [type(each).__name__ for each in out].count("KeyError") == 1
    rows = await group.transact(lambda db: db.execute("SELECT channel FROM people").fetchall())
    assert sorted(rows) == [(f"kept{n}",) for n in range(5)]
    await group.close()


async def test_concurrent_changes_share_one_transaction(tmp_path):
    group, commits = AsyncGroupCommit(gateway_database(tmp_path / "g.db")), []
    transaction = group.db.transaction

    def counted(**options):
        commits.append(1)
        return transaction(**options)

    group.db.transaction = counted
    await asyncio.gather(*(group.transact(lambda db: db.execute("SELECT 1").fetchone()) for _ in range(100)))
    assert len(commits) == 1
    await group.close()


@pytest.mark.sqlite
async def test_every_caller_gets_the_error_if_the_file_cannot_be_used(tmp_path):
    (tmp_path / "g.db").write_bytes(b"this is no database at all" * 100)
    group = AsyncGroupCommit(gateway_database(tmp_path / "g.db"))
    out = await asyncio.gather(*(group.transact(lambda db: None) for _ in range(3)), return_exceptions=True)
    assert {type(each) for each in out} == {StoreError}
    await group.close()


@pytest.mark.sqlite
def test_the_file_is_synced_to_disk_with_each_commit(tmp_path):
    database = gateway_database(tmp_path / "g.db")
    with database.transaction(write=True) as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    database.close()


def test_a_pairing_code_works_once_and_expires_after_an_hour(tmp_path):
    database = gateway_database(tmp_path / "g.db")
    with database.transaction(write=True) as db:
        code = create_code(db, "c", "ada")
        late = create_code(db, "c", "bob")
        assert create_code(db, "c", "ada") is None
        db.execute("UPDATE codes SET until = ? WHERE sender = 'bob'", (time.time() - 1,))
    assert [person.sender for person in people(database)] == ["ada"]
    with pytest.raises(StoreError, match="expired"):
        pair(database, late)
    assert pair(database, f" {code.lower()} ").sender == "ada"
    with database.transaction(write=True) as db:
        assert is_paired(db, "c", "ada")
        assert not is_paired(db, "d", "ada")
        assert not is_paired(db, "c", "bob")
    database.close()


@settings(max_examples=examples(25), deadline=None)
@given(st.text(), st.text(), st.text(min_size=1))
def test_any_text_is_read_back_unchanged(text, chat, id):
    async def main():
        box = Mailbox(":memory:")
        await box.open()
        message = InboundMessage(text, "c", chat, "ada", id)
        (item,) = (await box.accept(KEY, "c", message)).inbox
        await box.close()
        return item.message == message

    assert asyncio.run(main())


@pytest.mark.sqlite
def test_a_sqlite_file_of_another_program_is_refused(tmp_path):
    sqlite3.connect(tmp_path / "g.db").execute("CREATE TABLE mine (x)").connection.close()
    with pytest.raises(StoreError, match="not one of messages"):
        people(gateway_database(tmp_path / "g.db"))


@pytest.mark.sqlite
async def test_a_file_of_another_store_is_refused(tmp_path):
    MemoryStore(tmp_path / "memory.db").set_preference("name", "Ada")
    with pytest.raises(StoreError, match="not one of messages"):
        await Mailbox(tmp_path / "memory.db").open()
