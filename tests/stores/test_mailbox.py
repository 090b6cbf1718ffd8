import asyncio
import sqlite3
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline.payloads import InboundMessage, OutboundMessage
from hookline.stores import MemoryStore
from hookline.stores.errors import StoreError
from hookline.stores.mailbox import Lost, Mailbox, gateway_database
from hookline.stores.pairing import is_known, new_code, pair, people
from hookline.stores.sqlite import GroupCommit

KEY = '["c", "", "1", ""]'


def said(id, text="hi"):
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


async def test_a_message_is_kept_once(boxes):
    box = await boxes()
    first = await box.accept(KEY, "c", said("m1"))
    assert [letter.message for letter in first.letters] == [said("m1")]
    assert not (await box.accept(KEY, "c", said("m1", "another text"))).new
    assert (await box.accept('["d", "", "1", ""]', "d", said("m1"))).new
    assert (await box.accept(KEY, "c", said("m1").replace(chat_id="2"))).new


async def test_replies_and_the_end_of_their_letters_are_one_thing(boxes):
    box = await boxes()
    (letter,) = (await box.accept(KEY, "c", said("m1"))).letters
    parcels = await box.answer(KEY, "c", [letter], [OutboundMessage("one"), OutboundMessage("two")])
    assert [parcel.message.text for parcel in parcels] == ["one", "two"]
    assert len({parcel.token for parcel in parcels}) == 2
    await box.close()
    later = await boxes()
    left = await later.look_around(["c"])
    assert left.letters == []
    assert [(parcel.message.text, parcel.token, parcel.in_doubt) for parcel in left.parcels] == [
        ("one", parcels[0].token, False),
        ("two", parcels[1].token, False),
    ]


async def test_what_was_being_sent_when_a_program_ended_is_in_doubt(boxes):
    box = await boxes(lease=1.0)
    (letter,) = (await box.accept(KEY, "c", said("m1"))).letters
    one, two = await box.answer(KEY, "c", [letter], [OutboundMessage("one"), OutboundMessage("two")])
    await box.sending(one)
    await box.postpone(one, 5.0, "not now")
    await box.sending(one)
    await box.close()
    later = await boxes()
    left = await later.look_around(["c"])
    assert [(p.in_doubt, p.tries, p.due) for p in left.parcels] == [(True, 2, 5.0), (False, 0, 0.0)]
    await later.sent(left.parcels[0], "id")
    await later.failed(left.parcels[1], "gone")
    assert await later.release([KEY]) == {KEY}
    assert (await later.look_around(["c"])).parcels == []


async def test_a_conversation_is_of_one_program_until_that_is_gone(boxes):
    one, other = await boxes(), await boxes()
    (letter,) = (await one.accept(KEY, "c", said("m1"))).letters
    assert (await other.accept(KEY, "c", said("m2"))).letters == ()
    assert (await other.look_around(["c"])).letters == []
    with pytest.raises(Lost):
        await other.begin(letter, 0)
    handed = (await one.accept(KEY, "c", said("m3"))).letters
    assert [letter.message.message_id for letter in handed] == ["m2", "m3"]
    assert (await one.look_around(["c"])).letters == []
    assert await one.release([KEY]) == set()
    await one.begin(letter, 4)
    await one.abandon()
    assert (await other.look_around(["c"])).letters == []
    await other.do(lambda db: db.execute("UPDATE programs SET until = ? WHERE id = ?", (time.time() - 1, one._me)))
    assert (await other.look_around(["d"])).letters == []
    left = (await other.look_around(["c"])).letters
    assert [letter.message.message_id for letter in left] == ["m1", "m2", "m3"]
    assert (left[0].tries, left[0].base, left[0].recovered) == (1, 4, True)


async def test_what_another_program_leaves_in_the_outbox_is_sent_by_whom_the_conversation_belongs(boxes):
    one, other = await boxes(), await boxes()
    await one.accept(KEY, "c", said("m1"))
    notice = await other.accept(KEY, "c", said("m2"), done=True, replies=[OutboundMessage("who are you?")])
    assert notice.parcels == ()
    left = await one.look_around(["c"])
    assert [parcel.message.text for parcel in left.parcels] == ["who are you?"]
    assert (await one.look_around(["c"])).parcels == []


async def test_a_program_that_is_not_running_any_more_is_noticed_at_once(boxes):
    one, other = await boxes(), await boxes()
    await one.accept(KEY, "c", said("m1"))
    await one.do(lambda db: db.execute("UPDATE programs SET pid = 2147483646 WHERE id = ?", (one._me,)))
    await one.abandon()
    assert [letter.message.message_id for letter in (await other.look_around(["c"])).letters] == ["m1"]


async def test_a_clock_that_is_set_takes_no_conversation_from_a_program_that_is_running(boxes, monkeypatch):
    mine, other = await boxes(lease=1e9), await boxes(lease=1e9)
    (letter,) = (await mine.accept(KEY, "c", said("m1"))).letters
    late = time.time() + 3600
    monkeypatch.setattr(time, "time", lambda: late)
    await mine.look_around(["c"])
    assert (await other.look_around(["c"])).letters == []
    await mine.begin(letter, 0)


async def taken(loser, winner):
    """Let one take over what the other has, as if that had been asleep."""
    await winner.do(lambda db: db.execute("DELETE FROM programs WHERE id = ?", (loser._me,)))
    found = await winner.look_around(["c"])
    await loser.open()
    return found


async def test_who_gets_a_conversation_back_does_not_answer_what_another_answered_meanwhile(boxes):
    sleepy, awake = await boxes(), await boxes()
    (first,) = (await sleepy.accept(KEY, "c", said("m1"))).letters
    (same,) = (await taken(sleepy, awake)).letters
    await awake.answer(KEY, "c", [same])
    assert await awake.release([KEY]) == {KEY}
    (second,) = (await sleepy.accept(KEY, "c", said("m2"))).letters
    for stale in (sleepy.begin(first, 0), sleepy.answer(KEY, "c", [second, first], [OutboundMessage("again")])):
        with pytest.raises(Lost):
            await stale
    assert [each.message.text for each in await sleepy.answer(KEY, "c", [second], [OutboundMessage("new")])] == ["new"]


async def test_what_another_sent_is_not_sent_again_by_who_had_tried_before(boxes):
    sleepy, awake = await boxes(), await boxes()
    (letter,) = (await sleepy.accept(KEY, "c", said("m1"))).letters
    (parcel,) = await sleepy.answer(KEY, "c", [letter], [OutboundMessage("one")])
    await sleepy.sending(parcel)
    (same,) = (await taken(sleepy, awake)).parcels
    await awake.sending(same)
    await awake.sent(same, "1")
    for late in (sleepy.postpone(parcel, 0, "no answer"), sleepy.failed(parcel, "gone")):
        with pytest.raises(Lost):
            await late
    await sleepy.close()
    await awake.close()
    assert (await (await boxes()).look_around(["c"])).parcels == []


async def test_a_conversation_that_another_has_taken_is_told_when_it_is_given_back(boxes):
    sleepy, awake = await boxes(), await boxes()
    await sleepy.accept(KEY, "c", said("m1"))
    assert await sleepy.release([KEY]) == set()
    await taken(sleepy, awake)
    assert await sleepy.release([KEY]) == {KEY}


async def test_what_is_done_with_is_forgotten_in_the_end(boxes):
    box = await boxes(keep_days=1)
    for id in ("old", "new"):
        (letter,) = (await box.accept(KEY, "c", said(id))).letters
        (parcel,) = await box.answer(KEY, "c", [letter], [OutboundMessage("x")])
        await box.sent(parcel, "1")
    await box.do(lambda db: db.execute("UPDATE inbox SET at = 0 WHERE identity LIKE '%old%'"))
    await box.look_around(["c"])
    assert (await box.accept(KEY, "c", said("old"))).new
    assert not (await box.accept(KEY, "c", said("new"))).new


async def test_a_session_is_followed_by_another(boxes):
    box = await boxes()
    await box.accept(KEY, "c", said("m1"))
    assert await box.generation(KEY) == 0
    assert await box.generation(KEY, next=True) == 1
    assert await box.generation(KEY) == 1


async def test_one_bad_piece_of_work_does_not_spoil_the_others(tmp_path):
    group = GroupCommit(gateway_database(tmp_path / "g.db"))
    person = "INSERT INTO people VALUES (?, 'x', 0)"

    def bad(db):
        db.execute(person, ("lost",))
        raise KeyError("bad")

    good = [lambda db, n=n: db.execute(person, (f"kept{n}",)) for n in range(5)]
    out = await asyncio.gather(*map(group.do, [*good[:2], bad, *good[2:]]), return_exceptions=True)
    assert [type(each).__name__ for each in out].count("KeyError") == 1
    rows = await group.do(lambda db: db.execute("SELECT channel FROM people").fetchall())
    assert sorted(rows) == [(f"kept{n}",) for n in range(5)]
    await group.close()


async def test_work_that_comes_together_is_committed_together(tmp_path):
    group, commits = GroupCommit(gateway_database(tmp_path / "g.db")), []
    transaction = group.db.transaction

    def counted(**options):
        commits.append(1)
        return transaction(**options)

    group.db.transaction = counted
    await asyncio.gather(*(group.do(lambda db: db.execute("SELECT 1").fetchone()) for _ in range(100)))
    assert len(commits) == 1
    await group.close()


async def test_a_file_that_cannot_be_used_is_told_to_everybody_who_waits(tmp_path):
    (tmp_path / "g.db").write_bytes(b"this is no database at all" * 100)
    group = GroupCommit(gateway_database(tmp_path / "g.db"))
    out = await asyncio.gather(*(group.do(lambda db: None) for _ in range(3)), return_exceptions=True)
    assert {type(each) for each in out} == {StoreError}
    await group.close()


def test_the_file_outlives_a_power_failure(tmp_path):
    database = gateway_database(tmp_path / "g.db")
    with database.transaction(write=True) as db:
        assert db.execute("PRAGMA synchronous").fetchone() == (2,)
    database.close()


def test_a_code_is_good_for_once_and_for_an_hour(tmp_path):
    database = gateway_database(tmp_path / "g.db")
    with database.transaction(write=True) as db:
        code = new_code(db, "c", "ada")
        late = new_code(db, "c", "bob")
        assert new_code(db, "c", "ada") is None
        db.execute("UPDATE codes SET until = ? WHERE sender = 'bob'", (time.time() - 1,))
    assert [person.sender for person in people(database)] == ["ada"]
    with pytest.raises(StoreError, match="expired"):
        pair(database, late)
    assert pair(database, f" {code.lower()} ").sender == "ada"
    with database.transaction(write=True) as db:
        assert is_known(db, "c", "ada")
        assert not is_known(db, "d", "ada")
        assert not is_known(db, "c", "bob")
    database.close()


@settings(max_examples=25, deadline=None)
@given(st.text(), st.text(), st.text(min_size=1))
def test_any_text_comes_back_as_it_was(text, chat, id):
    async def main():
        box = Mailbox(":memory:")
        await box.open()
        message = InboundMessage(text, "c", chat, "ada", id)
        (letter,) = (await box.accept(KEY, "c", message)).letters
        await box.close()
        return letter.message == message

    assert asyncio.run(main())


def test_only_the_files_of_a_gateway_are_taken(tmp_path):
    sqlite3.connect(tmp_path / "g.db").execute("CREATE TABLE mine (x)").connection.close()
    with pytest.raises(StoreError, match="not one of messages"):
        people(gateway_database(tmp_path / "g.db"))


async def test_a_file_of_another_kind_of_store_is_left_alone(tmp_path):
    MemoryStore(tmp_path / "memory.db").set_preference("name", "Ada")
    with pytest.raises(StoreError, match="not one of messages"):
        await Mailbox(tmp_path / "memory.db").open()
