"""New runs of a file are stored together."""

import asyncio
import sqlite3

import pytest

from hookline.server.admission import Admission
from hookline.stores.errors import StoreError
from hookline.stores.runs import NewRun, RunRecord, RunStore, StoredEvent


class Counting(RunStore):
    writes = 0
    problem = ""

    def accept(self, new, **limits):
        self.writes += 1
        if self.problem:
            raise StoreError(self.problem) from sqlite3.OperationalError(self.problem)
        return super().accept(new, **limits)


def new(number):
    id = f"run_{number}"
    record = RunRecord(id, "helper", "me", "s", "s", id, id, "api", "task", last_seq=1, created=1.0)
    return NewRun(record, StoredEvent(id, 1, "run_accepted", 1.0, b"{}"))


@pytest.fixture
def store(tmp_path):
    store = Counting(tmp_path / "runs.db")
    yield store
    store.close()


async def test_runs_that_come_at_once_share_a_transaction(store):
    admission = Admission(store)
    accepted = await asyncio.gather(*(admission.accept(new(number)) for number in range(20)))
    assert all(each.stored for each in accepted)
    assert store.count() == 20
    assert [len(store.events(f"run_{number}")) for number in range(20)] == [1] * 20
    assert store.writes == 1


async def test_runs_that_come_while_others_are_stored_are_stored_after_them(store):
    admission = Admission(store)
    first = asyncio.create_task(admission.accept(new(1)))
    while not store.writes:
        await asyncio.sleep(0)
    await asyncio.gather(first, admission.accept(new(2)), admission.accept(new(3)))
    assert store.count() == 3
    assert store.writes == 2


async def test_every_caller_learns_that_runs_cannot_be_stored_and_later_ones_are_stored(store):
    admission, store.problem = Admission(store), "the disk is full"
    results = await asyncio.gather(*(admission.accept(new(number)) for number in range(3)), return_exceptions=True)
    assert [str(each) for each in results] == ["the disk is full"] * 3
    store.problem = ""
    assert (await admission.accept(new(4))).stored
    assert store.count() == 1
