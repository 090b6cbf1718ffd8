"""Many concurrent clients: each gets everything in order, and nothing is left behind."""

import asyncio
import json
import random

import pytest

from hookline.server import live_run

from ..waiting import wait_until
from .rig import ME, serving
from .wire import TalkingBlocker, Wire, is_whole, served

pytestmark = pytest.mark.slow


async def test_a_hundred_streams_over_all_apis_are_complete_and_in_order(tmp_path):
    blocker = TalkingBlocker()

    async def plain():
        async with Wire(server.url) as wire:
            return await wire.events(await wire.start())

    async def a2a():
        async with Wire(server.url) as wire:
            return await wire.a2a()

    async def chat():
        async with Wire(server.url) as wire:
            return await wire.chat()

    async with served(tmp_path, blocker.talker) as server:
        kinds = [plain] * 70 + [a2a] * 15 + [chat] * 15
        tasks = [asyncio.create_task(kind()) for kind in kinds]
        await wait_until(lambda: server.service.counts()["readers"] == 100 and blocker.entered == 100)
        blocker.open.set()
        found = await asyncio.gather(*tasks)
    assert all(is_whole(events) for events in found[:70])
    for updates in found[70:85]:
        states = [each["statusUpdate"]["status"]["state"] for each in updates if "statusUpdate" in each]
        assert (states[0], states[-1]) == ("TASK_STATE_WORKING", "TASK_STATE_COMPLETED")
        seqs = [each["statusUpdate"]["metadata"]["seq"] for each in updates if "statusUpdate" in each]
        assert seqs == sorted(set(seqs))
        pieces = [each["artifactUpdate"] for each in updates if "artifactUpdate" in each]
        begun = max(number for number, each in enumerate(pieces) if not each.get("append"))
        assert "".join(each["artifact"]["parts"][0].get("text", "") for each in pieces[begun:]) == "one two three"
    for chunks in found[85:]:
        assert chunks[-1] == "[DONE]"
        text = "".join(json.loads(chunk)["choices"][0]["delta"].get("content") or "" for chunk in chunks[:-1])
        assert text.endswith("one two three")


async def test_readers_that_reconnect_lose_nothing_and_see_nothing_twice(tmp_path):
    blocker, chance = TalkingBlocker("a few words more to say " * 3, closed=False), random.Random(3)
    left = 0

    async def comes_and_goes():
        nonlocal left
        async with Wire(server.url) as wire:
            run_id = await wire.start()
        seen = []
        while not seen or seen[-1]["type"] != "run_closed":
            async with Wire(server.url) as wire:
                seen += await wire.events(run_id, len(seen), most=chance.randint(1, 12))
                left += 1
        return seen

    async with served(tmp_path, blocker.talker) as server:
        found = await asyncio.gather(*(comes_and_goes() for _ in range(25)))
    assert all(map(is_whole, found))
    assert left > 150


async def test_five_hundred_runs_and_readers_share_one_service(tmp_path):
    blocker = TalkingBlocker()
    room = {"max_runs": 500, "max_runs_per_caller": 500, "max_streams_per_caller": 500}
    async with serving(tmp_path, blocker.talker, **room) as service:
        before = asyncio.all_tasks()

        async def one(number):
            run = await service.start(ME, "go", history=())  # no session is stored
            reader = await service.read(run.id, ME)
            try:
                return [json.loads(event.data) async for event in reader]
            finally:
                reader.close()

        tasks = [asyncio.create_task(one(number)) for number in range(500)]
        await wait_until(lambda: service.counts()["running"] == service.counts()["readers"] == blocker.entered == 500)
        blocker.open.set()
        found = await asyncio.gather(*tasks)
        assert all(map(is_whole, found))
        assert len({events[0]["run_id"] for events in found}) == 500
        await wait_until(lambda: not any(service.counts().values()) and asyncio.all_tasks() == before)
        assert not service._live
        assert not service._executor._session_locks._locks


@pytest.mark.parametrize("where", ["in memory", "in the file"])
@pytest.mark.parametrize("much", [1_000, 100_000])
async def test_events_kept_in_memory_are_bounded_by_size(tmp_path, monkeypatch, much, where):
    """A reader that is far behind gets all events in small pages."""
    monkeypatch.setattr(live_run, "PAGE_BYTES", 50_000)
    monkeypatch.setattr(live_run, "KEPT_BYTES", 10_000_000 if where == "in memory" else 100_000)
    blocker = TalkingBlocker(" ".join(["x" * much] * (500_000 // much)), before=True)
    most = 0
    committed = live_run.LiveRun.mark_stored

    def looked(self, seq):
        nonlocal most
        committed(self, seq)
        most = max(most, sum(len(event.data) for event in self._events if event.seq <= seq))

    monkeypatch.setattr(live_run.LiveRun, "mark_stored", looked)
    async with serving(tmp_path, blocker.talker) as service:
        run = await service.start(ME, "go")
        reader = await service.read(run.id, ME)
        await wait_until(lambda: blocker.entered)
        pages = [await reader.more() for _ in range(2)]
        blocker.open.set()
        while (page := await reader.more()) is not None:
            pages.append(page)
        reader.close()
        assert len(service._store.events(run.id, size=1)) == 1
    assert is_whole([json.loads(event.data) for page in pages for event in page])
    assert 0 < most <= live_run.KEPT_BYTES
    for page in pages:
        assert sum(len(event.data) for event in page[:-1]) < 50_000, "a page ends with the event that fills it"
