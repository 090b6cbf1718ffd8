"""Several servers share one PostgreSQL database: every run can be used through each of them."""

import asyncio

import httpx
import pytest

from ..conftest import MISSING
from .http_rig import events_in
from .replica import replica

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
JSON = {"accept": "application/json"}


@pytest.fixture(scope="module")
def url(cluster):
    return cluster.url("replicas")


@pytest.fixture(scope="module")
def replicas(url):
    with replica(url) as one, replica(url) as two:
        yield one, two


@pytest.fixture
async def clients(replicas):
    one, two = (httpx.AsyncClient(base_url=each.url, timeout=60, trust_env=False) for each in replicas)
    async with one, two:
        yield one, two


async def start(client, task, **fields):
    answer = await client.post("/runs", json={"task": task, **fields})
    assert answer.status_code == 202, answer.text
    return answer.json()["id"]


async def stream(client, run_id, after=0, until=None):
    """The events of a run after a number, up to the first one of a type."""
    found = []
    headers = {"last-event-id": str(after)}
    async with client.stream("GET", f"/runs/{run_id}/events", headers=headers) as answer:
        block = ""
        async for line in answer.aiter_lines():
            block += f"{line}\n"
            if not line:
                found += events_in(block)
                block = ""
                if until and found and found[-1]["type"] == until:
                    break
    return found


# Following


async def test_a_stream_resumes_on_another_replica_at_the_same_event(clients, tmp_path):
    one, two = clients
    run = await start(one, f"wait {tmp_path / 'go'}")
    first = await stream(one, run, until="tool_started")
    rest = asyncio.create_task(stream(two, run, after=first[-1]["seq"]))
    (tmp_path / "go").touch()
    events = [*first, *await rest]
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))
    assert (events[-1]["type"], events[-1]["status"]) == ("run_closed", "completed"), events[-1]["error"]
    assert events == await stream(one, run)


async def test_pages_of_events_go_on_at_another_replica(clients, tmp_path):
    one, two = clients
    run = await start(one, f"wait {tmp_path / 'go'}")
    await stream(one, run, until="tool_started")
    (tmp_path / "go").touch()
    seen, after = [], 0
    while not seen or seen[-1]["type"] != "run_closed":
        client = clients[len(seen) % 2]
        page = await client.get(f"/runs/{run}/events?after={after}&limit=2&wait=30", headers=JSON)
        seen += page.json()["events"]
        after = seen[-1]["seq"]
    assert [event["seq"] for event in seen] == list(range(1, len(seen) + 1))


async def test_waiting_for_a_run_works_at_another_replica(clients, tmp_path):
    one, two = clients
    run = await start(one, f"wait {tmp_path / 'go'}")
    waiting = asyncio.create_task(two.get(f"/runs/{run}?wait=30"))
    (tmp_path / "go").touch()
    assert (await waiting).json()["status"] == "completed"
