"""Group commit: the work of several threads becomes one transaction, and each thread gets its own result or error."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from hookline.stores.database import open_database
from hookline.stores.errors import StoreError
from hookline.stores.group_commit import GroupCommit
from hookline.stores.sql import Schema
from tests.waiting import block_until

SCHEMA = Schema("notes", "notes", 0x11223344, 1, ("CREATE TABLE notes (text TEXT NOT NULL UNIQUE)",))


class Counting:
    """A database that counts its transactions, and fails after ``good`` ones."""

    def __init__(self, database, good=100):
        self._database, self._good, self.outages, self.transactions = database, good, database.outages, 0

    @contextmanager
    def transaction(self, **options):
        self.transactions += 1
        if self.transactions > self._good:
            raise StoreError("the disk is full") from self.outages[0]("no")
        with self._database.transaction(**options) as db:
            yield db


@pytest.fixture
def database(place):
    opened = open_database(place / "notes.db" if hasattr(place, "joinpath") else place, SCHEMA)
    yield opened
    opened.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    return tmp_path if request.param == "sqlite" else request.getfixturevalue("postgres_url")


def add(text):
    return lambda db: db.execute("INSERT INTO notes (text) VALUES (?) RETURNING text", (text,)).fetchone()[0]


def notes(database):
    with database.transaction() as db:
        return sorted(text for (text,) in db.execute("SELECT text FROM notes").fetchall())


def at_once(group, works):
    """Do the first work, and all others while it is under way. Return the result or the error of each."""
    begun, go_on = threading.Event(), threading.Event()

    def first(db):
        begun.set()
        assert go_on.wait(60)
        return works[0](db)

    def outcome(key, work):
        try:
            return group.do(key, work)
        except Exception as error:  # noqa: BLE001 - it is compared
            return error

    with ThreadPoolExecutor(len(works)) as pool:
        found = [pool.submit(outcome, "0", first)]
        assert begun.wait(60)
        found += [pool.submit(outcome, str(number), work) for number, work in enumerate(works[1:], 1)]
        block_until(lambda: len(group._waiting) == len(works) - 1)
        go_on.set()
        return [each.result() for each in found]


def test_work_that_comes_during_a_transaction_shares_the_next_one(database):
    counting = Counting(database)
    group = GroupCommit(counting, list)
    assert at_once(group, [add(f"{n}") for n in range(6)]) == [f"{n}" for n in range(6)]
    assert notes(database) == [f"{n}" for n in range(6)]
    assert counting.transactions == 2


def test_work_that_fails_fails_alone(database):
    group = GroupCommit(database, list)

    def fail(db):
        add("half")(db)
        raise ValueError("wrong")

    one, two, error, same, four = at_once(group, [add("one"), add("two"), fail, add("one"), add("four")])
    assert (one, two, four) == ("one", "two", "four")
    assert isinstance(error, ValueError)
    assert isinstance(same, StoreError)
    assert notes(database) == ["four", "one", "two"]


def test_an_outage_is_the_error_of_all_and_is_tried_once(database):
    counting = Counting(database, good=1)
    found = at_once(GroupCommit(counting, list), [add("one"), add("two"), add("three")])
    assert found[0] == "one"
    assert [str(each) for each in found[1:]] == ["the disk is full"] * 2
    assert counting.transactions == 2


def test_records_of_all_work_are_stored_together_at_the_end(database):
    stored = []

    def adding(records):
        stored.append(list(records))
        return add(",".join(records))

    group = GroupCommit(database, adding)
    assert group.do("a", add("one"), ["x", "y"]) == "one"
    assert stored == [["x", "y"]]
    assert notes(database) == ["one", "x,y"]


def test_work_alone_needs_no_transaction(database):
    counting = Counting(database)
    group = GroupCommit(counting, list)
    assert group.do("a", add("never"), alone=lambda: "alone") == "alone"
    assert counting.transactions == 0


def test_later_work_is_done_after_an_interruption(database):
    group = GroupCommit(database, list)

    def interrupt(db):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        group.do("a", interrupt)
    assert group.do("a", add("later")) == "later"
