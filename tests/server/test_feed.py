"""One stream with the events of all runs that a caller may see."""

import json

import pytest

from hookline.server import feed

from ..waiting import wait_until
from .http_rig import api, finished
from .rig import make


@pytest.fixture(autouse=True)
def often(monkeypatch):
    monkeypatch.setattr(feed, "INTERVAL", 0.02)


class Follower:
    """A client that reads events until it has seen the ends of a number of runs."""

    def __init__(self, served, name, query="", last=""):
        headers = {"last-event-id": last} if last else {}
        self._stream = served.client(name, real=True).stream("GET", f"/events{query}", headers=headers)
        self.events, self.last = [], last

    async def __aenter__(self):
        self._answer = await self._stream.__aenter__()
        assert self._answer.status_code == 200
        self._lines = self._answer.aiter_lines()
        assert await anext(self._lines) == "retry: 2000"  # the stream has begun
        return self

    async def __aexit__(self, *_):
        await self._stream.__aexit__(None, None, None)

    async def until_closed(self, *runs):
        missing = {run["id"] for run in runs}
        async for line in self._lines:
            if line.startswith("id: "):
                self.last = line[4:]
            elif line.startswith("data: "):
                found = json.loads(line[6:])
                self.events.append((found["run"], found["event"]["seq"], found["event"]["type"]))
                if found["event"]["type"] == "run_closed":
                    missing.discard(found["run"])
                    if not missing:
                        return

    def numbers(self, run):
        return [seq for run_id, seq, _ in self.events if run_id == run["id"]]


def all_of(run):
    return list(range(1, run["last_seq"] + 1))


async def test_a_stream_has_all_events_of_the_callers_runs_in_their_order_and_no_others(tmp_path):
    async with api(tmp_path, make(), real=True, heartbeat=0.1) as served:
        before = await finished(served.client(real=True))
        async with Follower(served, "me") as mine, Follower(served, "admin") as admins:
            runs = [await finished(served.client(real=True)) for _ in range(3)]
            others = await finished(served.client("other", real=True))
            await mine.until_closed(*runs)
            await admins.until_closed(*runs, others)
            for run in runs:
                assert mine.numbers(run) == admins.numbers(run) == all_of(run)
            assert admins.numbers(others) == all_of(others)
            assert {run_id for run_id, _, _ in mine.events} == {run["id"] for run in runs}
            assert before["id"] not in {run_id for run_id, _, _ in admins.events}


async def test_a_stream_that_ended_continues_without_loss(tmp_path):
    async with api(tmp_path, make(), real=True) as served:
        async with Follower(served, "me") as first:
            seen = await finished(served.client(real=True))
            await first.until_closed(seen)
        missed = [await finished(served.client(real=True)) for _ in range(2)]
        async with Follower(served, "me", last=first.last) as second:
            live = await finished(served.client(real=True))
            await second.until_closed(*missed, live)
            for run in (*missed, live):
                assert second.numbers(run) == all_of(run)


async def test_a_stream_may_have_some_types_only(tmp_path):
    query = "?type=run_accepted&type=run_closed"
    async with api(tmp_path, make(), real=True) as served, Follower(served, "me", query) as follower:
        run = await finished(served.client(real=True))
        await follower.until_closed(run)
        assert [type for _, _, type in follower.events] == ["run_accepted", "run_closed"]


@pytest.mark.parametrize("last", ["x", "-1", "1e3", "1.1234567", "9" * 20])
async def test_a_wrong_place_is_rejected(tmp_path, last):
    async with api(tmp_path) as served:
        answer = await served.client().get("/events", headers={"last-event-id": last})
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "bad_event_id")


async def test_streams_of_a_caller_are_limited_and_a_closed_one_frees_its_place(tmp_path):
    async with api(tmp_path, make(), real=True, max_streams_per_caller=1) as served:
        async with Follower(served, "me"):
            assert (await served.client(real=True).get("/events")).status_code == 429
        await wait_until(lambda: not served.service.counts()["readers"])
        async with Follower(served, "me") as follower:
            await follower.until_closed(await finished(served.client(real=True)))


async def test_a_server_that_stops_ends_the_streams(tmp_path):
    async with api(tmp_path, make(), real=True) as served, Follower(served, "me") as follower:
        await served.service.drain()
        assert [line async for line in follower._lines if line.startswith("data")] == []
