"""Notifications about the waiting calls of all programs that share an approvals file."""

import asyncio

import pytest

from hookline.hooks import watch_approvals
from hookline.stores import ApprovalStore

from ..waiting import wait_until
from .test_approval_links import waiting


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr("hookline.hooks.approvals.WATCH_INTERVAL", 0.01)


@pytest.fixture
async def watched(tmp_path):
    """A store, and a function that watches it with another connection, as another program would."""
    store, other = ApprovalStore(tmp_path / "approvals.db"), ApprovalStore(tmp_path / "approvals.db")
    tasks = []

    def watch(notify):
        tasks.append(asyncio.create_task(watch_approvals(other, notify)))

    yield store, watch
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    store.close()
    other.close()


async def test_each_waiting_call_is_announced_once(watched):
    store, watch = watched
    announced = []

    async def notify(row):
        announced.append(row.id)

    first = waiting(store)
    watch(notify)
    await wait_until(lambda: announced == [first.id])
    second = waiting(store)
    await wait_until(lambda: announced == [first.id, second.id])
    store.decide(first.id, decision="deny", digest=first.digest, by="ann")
    third = waiting(store)
    await wait_until(lambda: announced == [first.id, second.id, third.id])


async def test_a_notification_ends_when_its_call_is_decided_and_when_watching_ends(watched):
    store, watch = watched
    began, ended = [], []

    async def notify(row):
        began.append(row.id)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            ended.append(row.id)

    first, second = waiting(store), waiting(store)
    watch(notify)
    await wait_until(lambda: len(began) == 2)
    store.decide(first.id, decision="approve", digest=first.digest, by="ann")
    await wait_until(lambda: ended == [first.id])
    assert store.find(second.id).status == "pending"


async def test_a_notification_that_fails_is_logged_and_does_not_stop_the_others(watched, caplog):
    store, watch = watched
    announced = []

    async def notify(row):
        announced.append(row.id)
        raise OSError("the line is dead")

    waiting(store)
    watch(notify)
    await wait_until(lambda: len(announced) == 1)
    waiting(store)
    await wait_until(lambda: len(announced) == 2)
    await wait_until(lambda: caplog.text.count("the line is dead") == 2)


async def test_a_file_that_cannot_be_read_is_tried_again(watched, caplog):
    store, watch = watched
    announced = []

    async def notify(row):
        announced.append(row.id)

    row = waiting(store)
    path = store.path
    store.close()
    with open(path, "rb") as file:
        whole = file.read()
    with open(path, "wb") as file:
        file.write(b"not a database" * 100)
    watch(notify)
    await wait_until(lambda: "cannot be read" in caplog.text)
    with open(path, "wb") as file:
        file.write(whole)
    await wait_until(lambda: announced == [row.id])
