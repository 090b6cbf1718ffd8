"""Several servers share one PostgreSQL database: every run can be used through each of them."""

import asyncio
import base64
import json
import signal

import httpx
import pytest

from ..conftest import MISSING
from ..waiting import wait_until
from .a2a.test_push import receiving
from .http_rig import events_in
from .replica import replica

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
JSON = {"accept": "application/json"}
A2A = {"A2A-Version": "1.0"}


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
    assert answer.is_success, answer.text
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


async def waiting_call(client, run_id):
    """The call of a run that waits for approval."""
    while not (found := (await client.get(f"/approvals?run={run_id}")).json()["approvals"]):
        await asyncio.sleep(0.01)
    return found[0]


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


# Conversations


async def test_the_runs_of_a_conversation_are_executed_in_order_by_all_replicas(clients, tmp_path):
    one, two = clients
    first = await start(one, f"wait {tmp_path / 'go'}", session="talk")
    await stream(one, first, until="tool_started")
    second = await start(two, "hello", session="talk")
    third = await start(one, "bye", session="talk")
    other = await start(two, "hello", session="another talk")
    assert (await two.get(f"/runs/{other}?wait=30")).json()["status"] == "completed"
    assert [(await one.get(f"/runs/{run}")).json()["status"] for run in (second, third)] == ["queued", "queued"]
    (tmp_path / "go").touch()
    ended = [(await one.get(f"/runs/{run}?wait=30")).json() for run in (first, second, third)]
    assert [run["status"] for run in ended] == ["completed"] * 3
    assert ended[0]["ended"] <= ended[1]["started"]
    assert ended[1]["ended"] <= ended[2]["started"]


async def test_a_killed_replica_does_not_block_its_conversations(clients, url, tmp_path):
    one, _ = clients
    with replica(url) as dying:
        async with httpx.AsyncClient(base_url=dying.url, timeout=60, trust_env=False) as client:
            first = await start(client, f"wait {tmp_path / 'never'}", session="cut off")
            await stream(client, first, until="tool_started")
        second = await start(one, "hello", session="cut off")
        dying.send_signal(signal.SIGKILL)
        dying.wait()
    assert (await one.get(f"/runs/{second}?wait=60")).json()["status"] == "completed"
    assert (await one.get(f"/runs/{first}")).json()["status"] == "interrupted"


# A2A


def rpc(method, **params):
    return {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}


def task_message(text, **configuration):
    message = {"message_id": "m", "role": "ROLE_USER", "parts": [{"text": text}]}
    return {"message": message, "configuration": {"return_immediately": True, **configuration}}


async def start_task(client, text, **configuration):
    answer = await client.post(
        "/a2a/helper", json=rpc("SendMessage", **task_message(text, **configuration)), headers=A2A
    )
    return answer.json()["result"]["task"]["id"]


async def test_a_task_is_followed_at_another_replica(clients, tmp_path):
    one, two = clients
    task = await start_task(one, f"wait {tmp_path / 'go'}")
    states = []
    async with two.stream("POST", "/a2a/helper", json=rpc("SubscribeToTask", id=task), headers=A2A) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                result = json.loads(line[6:])["result"]
                states.append(next(iter(result.values())).get("status", {}).get("state"))
                (tmp_path / "go").touch()
    assert states[-1] == "TASK_STATE_COMPLETED"


@pytest.mark.slow
async def test_push_notifications_of_a_killed_replica_are_sent_once_by_another(clients, url, tmp_path):
    one, two = clients
    with receiving() as receiver:
        task = await start_task(one, f"wait {tmp_path / 'go'}")
        with replica(url) as killed:
            async with httpx.AsyncClient(base_url=killed.url, timeout=60, trust_env=False) as client:
                wanted = {"task_id": task, "url": receiver.url}
                answer = await client.post(
                    "/a2a/helper", json=rpc("CreateTaskPushNotificationConfig", **wanted), headers=A2A
                )
                assert "result" in answer.json(), answer.text
            killed.kill()
        (tmp_path / "go").touch()
        assert (await one.get(f"/runs/{task}?wait=60")).json()["status"] == "completed"
        await wait_until(lambda: "COMPLETED" in receiver.states)
        await asyncio.sleep(0.5)  # both replicas look for receivers every 0.1 s
        assert receiver.states.count("COMPLETED") == 1


# The end of a replica


@pytest.mark.slow
async def test_the_run_of_a_killed_replica_ends_at_the_others(clients, url, tmp_path):
    one, _ = clients
    with replica(url) as killed:
        async with httpx.AsyncClient(base_url=killed.url, timeout=60, trust_env=False) as client:
            run = await start(client, f"wait {tmp_path / 'never'}")
            seen = await stream(client, run, until="tool_started")
            assert (await one.get(f"/runs/{run}")).json()["status"] == "running"
        killed.kill()
    while (left := (await one.get(f"/runs/{run}")).json())["status"] == "running":
        await asyncio.sleep(0.05)
    assert (left["status"], left["reason"]) == ("interrupted", "its process ended")
    events = await stream(one, run)
    assert events[: len(seen)] == seen
    assert [event["seq"] for event in events] == list(range(1, len(events) + 1))


@pytest.mark.slow
async def test_a_paused_replica_cannot_change_a_run_that_was_ended(clients, url, tmp_path):
    one, _ = clients
    with replica(url) as paused:
        async with httpx.AsyncClient(base_url=paused.url, timeout=60, trust_env=False) as client:
            run = await start(client, f"wait {tmp_path / 'go'}")
            await stream(client, run, until="tool_started")
            paused.send_signal(signal.SIGSTOP)
            while (await one.get(f"/runs/{run}")).json()["status"] == "running":
                await asyncio.sleep(0.05)
            before = await stream(one, run)
            (tmp_path / "go").touch()
            paused.send_signal(signal.SIGCONT)
            other = await start(client, "hello", wait=60)  # its events are written after those of the first run
            assert (await one.get(f"/runs/{other}?wait=60")).json()["status"] == "completed"
            assert (await client.get(f"/runs/{run}?wait=60")).json()["status"] == "interrupted"
    assert await stream(one, run) == before


async def test_a_killed_replica_leaves_no_key_whose_run_is_never_executed(cluster):
    """It is killed while it stores the run. The caller sends the request again, and gets a run that completes."""
    import psycopg

    url, body, headers = cluster.url("killed"), {"task": "hello"}, {"Idempotency-Key": "k"}
    with replica(url, durable=True) as one, psycopg.connect(url.partition("&schema")[0]) as locking:
        locking.execute("LOCK TABLE killed_runs.durable_runs IN EXCLUSIVE MODE")
        async with httpx.AsyncClient(base_url=one.url, timeout=60, trust_env=False) as client:
            accepting = asyncio.create_task(client.post("/runs", json=body, headers=headers))
            waiting = (
                "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'killed_runs.durable_runs'::regclass"
            )
            await wait_until(lambda: locking.execute(waiting).fetchone() != (0,))
            one.send_signal(signal.SIGKILL)
            with pytest.raises(httpx.HTTPError):
                await accepting
        locking.rollback()
        with replica(url, durable=True) as two:
            async with httpx.AsyncClient(base_url=two.url, timeout=60, trust_env=False) as client:
                answer = await client.post("/runs", json={**body, "wait": 30}, headers=headers)
                assert (answer.status_code, answer.json()["status"], answer.json()["reply"]) == (
                    201,
                    "completed",
                    "hello",
                )
                assert len((await client.get("/runs")).json()["runs"]) == 1


# Limits


@pytest.mark.slow
async def test_a_caller_has_one_rate_limit_and_one_limit_of_runs_at_all_replicas(cluster, tmp_path):
    url, limits = cluster.url("limits"), {"rate": 0.001, "burst": 8, "max_runs_per_caller": 2}
    with replica(url, **limits) as one, replica(url, **limits) as two:
        clients = [httpx.AsyncClient(base_url=each.url, timeout=60, trust_env=False) for each in (one, two)]
        async with clients[0], clients[1]:
            tasks = [clients[n % 2].post("/runs", json={"task": f"wait {tmp_path / 'go'}"}) for n in range(4)]
            started = sorted([answer.status_code for answer in await asyncio.gather(*tasks)])
            assert started == [202, 202, 429, 429]
            (tmp_path / "go").touch()
            answers = [await clients[n % 2].get("/runs") for n in range(6)]
            assert [answer.status_code for answer in answers] == [200] * 4 + [429] * 2


# Control


async def test_a_run_is_cancelled_through_another_replica(clients, tmp_path):
    one, two = clients
    run = await start(one, f"wait {tmp_path / 'never'}")
    await stream(one, run, until="tool_started")
    answer = await two.post(f"/runs/{run}/cancel", json={"reason": "not needed"})
    assert (answer.json()["status"], answer.json()["reason"]) == ("cancelled", "not needed")
    again = await two.post(f"/runs/{run}/cancel", json={"reason": "too late"})
    assert (again.status_code, again.json()["reason"]) == (200, "not needed")


async def test_messages_to_a_run_through_another_replica_arrive_once_and_in_order(clients, tmp_path):
    one, two = clients
    run = await start(one, f"wait {tmp_path / 'go'}")
    await stream(one, run, until="tool_started")
    for text in ("first", "second", "third"):
        assert (await two.post(f"/runs/{run}/messages", json={"text": text})).status_code == 202
    (tmp_path / "go").touch()
    events = await stream(two, run)
    assert [event["text"] for event in events if event["type"] == "steered"] == ["first", "second", "third"]
    assert events[-1]["reply"] == "third"


async def test_a_finished_run_refuses_messages_at_every_replica(clients):
    one, two = clients
    run = await start(one, "hello", wait=60)
    answers = [await each.post(f"/runs/{run}/messages", json={"text": "more"}) for each in (one, two)]
    assert [answer.status_code for answer in answers] == [409, 409]
    assert answers[0].json() == answers[1].json()


async def test_a_file_goes_to_the_replica_of_the_run(clients, tmp_path):
    one, two = clients
    run = await start(one, f"wait {tmp_path / 'go'}")
    await stream(one, run, until="tool_started")
    file = {"data": base64.b64encode(b"%PDF-1.4 canary").decode(), "media_type": "application/pdf", "name": "a.pdf"}
    answer = await two.post(f"/runs/{run}/messages", json={"text": "look", "attachments": [file]})
    assert answer.is_success, answer.text
    (tmp_path / "go").touch()
    steered = next(event for event in await stream(two, run) if event["type"] == "steered")
    digest = steered["attachments"][0]["digest"]
    assert (await two.get(f"/runs/{run}/attachments/{digest}")).content == b"%PDF-1.4 canary"


async def test_a_decision_at_another_replica_lets_the_run_go_on(clients, tmp_path):
    one, two = clients
    run = await start(one, f"ask {tmp_path / 'notes'}")
    await stream(two, run, until="approval_asked")
    asked = await waiting_call(two, run)
    decision = {"decision": "approve", "digest": asked["digest"]}
    assert (await two.post(f"/approvals/{asked['id']}", json=decision)).status_code == 200
    assert (await stream(two, run))[-1]["status"] == "completed"
    assert (tmp_path / "notes").read_text() == "line\n"
