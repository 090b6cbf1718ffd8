"""The runs API over HTTP."""

import asyncio
import json
import os
import time
from socket import gethostname

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import ScriptedModel, call, reply
from hookline.server import api as api_module
from hookline.server import live_run
from hookline.server.errors import ApiError
from hookline.server.routing import body_of
from hookline.server.views import RunRequest
from hookline.stores import runs as stored_runs
from hookline.stores.errors import StoreError
from hookline.stores.runs import Accepted, IdempotencyKey, NewRun, RunStore
from tests.properties import examples

from ..waiting import wait_until
from .http_rig import api, events_in, finished
from .rig import Blocker, make
from .walk import Keys, client_of, walk

JSON = {"Content-Type": "application/json"}
AS_JSON = {"Accept": "application/json"}


# Start


async def test_a_started_run_can_be_read_at_its_location(tmp_path):
    blocker = Blocker()
    async with api(tmp_path, blocker.agent()) as served:
        client = served.client()
        answer = await client.post("/runs", json={"task": "x", "session": "s", "task_id": "t", "correlation_id": "c"})
        run = answer.json()
        assert (answer.status_code, answer.headers["location"]) == (202, f"/runs/{run['id']}")
        assert [run[name] for name in ("agent", "session", "task_id", "correlation_id")] == ["helper", "s", "t", "c"]
        assert not {"host", "pid", "session_id"} & run.keys()
        await wait_until(lambda: blocker.entered)
        assert (await client.get(answer.headers["location"])).json()["status"] == "running"
        assert (await client.get(f"/runs/{run['id']}?wait=0.01")).json()["status"] == "running"
        blocker.open.set()
        over = (await client.get(f"/runs/{run['id']}?wait=30")).json()
        assert (over["status"], over["reply"], over["tool_calls"]) == ("completed", "done", 1)


async def test_wait_returns_the_finished_run_with_the_correlation_id_of_the_request(tmp_path):
    async with api(tmp_path) as served:
        headers = {"X-Correlation-ID": "order-17"}
        answer = await served.client().post("/runs", json={"task": "x", "wait": 30}, headers=headers)
        assert (answer.status_code, answer.json()["status"]) == (201, "completed")
        assert answer.json()["correlation_id"] == answer.headers["X-Correlation-ID"] == "order-17"


@pytest.mark.parametrize(
    ("body", "status", "expected_text"),
    [
        ('{"task": "x", "metadata": {"user_role": "admin"}}', 422, "metadata cannot be sent"),
        ('{"task": "x", "sesion": "a"}', 422, "no field sesion. Did you mean 'session'?"),
        ("{}", 422, "field task is missing"),
        ('{"task": 5}', 422, "task: expected `str`"),
        ('{"task": " "}', 422, "task:"),
        ('{"task": "x", "wait": 61}', 422, "wait:"),
        ('{"task": "x", "correlation_id": "a b"}', 422, "correlation_id:"),
        ('{"task": "x", "task_id": "a\\n"}', 422, "task_id:"),
        ('{"task": "x", "session": "a\\nb"}', 422, "session:"),
        ("[]", 422, "the body: expected `object`"),
        ("", 400, "the body is empty"),
        ("{", 400, "not valid JSON"),
        ('{"task": "\\ud800"}', 400, "not valid JSON"),
        (b'{"task": "\xff"}', 400, "not valid JSON"),
        ("[" * 100_000, 422, "expected `object`"),
        ('{"task": "x", "agent": "nobody"}', 404, "There are: helper"),
    ],
)
async def test_an_invalid_request_is_rejected_with_advice_and_starts_no_run(tmp_path, body, status, expected_text):
    async with api(tmp_path) as served:
        answer = await served.client().post("/runs", content=body, headers=JSON)
        assert (answer.status_code, expected_text in answer.json()["error"]["message"]) == (status, True), answer.text
        assert (await served.client().get("/runs")).json() == {"runs": [], "next": ""}


@pytest.mark.parametrize(
    "sent", [{}, {"Content-Type": "text/plain"}, {"Content-Type": "application/json; charset=utf-16"}]
)
async def test_a_body_that_is_not_sent_as_json_is_rejected(tmp_path, sent):
    async with api(tmp_path) as served:
        answer = await served.client().post("/runs", content='{"task": "x"}', headers=sent)
        assert answer.status_code == 415
        good = {"Content-Type": 'Application/JSON; charset="UTF-8"'}
        assert (await served.client().post("/runs", content='{"task": "x"}', headers=good)).status_code in (201, 202)


class Sent:
    """The part of a request that reading a body needs."""

    headers = {"content-type": "application/json"}

    def __init__(self, data):
        self._data = data

    async def body(self):
        return self._data


@settings(max_examples=examples(60))
@given(st.binary(max_size=60) | st.from_regex(rb'\{"(task|wait)": ?.{0,20}\}') | st.text(max_size=40).map(str.encode))
async def test_any_bytes_are_accepted_or_rejected_with_a_valid_response(data):
    try:
        asked = await body_of(Sent(data), RunRequest)
    except ApiError as error:
        refused = error
    else:
        assert asked.task.strip()
        return
    assert refused.status in (400, 422)
    assert json.dumps(str(refused)).encode()


# Idempotency keys


async def test_a_repeated_request_with_the_same_idempotency_key_returns_the_same_run(tmp_path):
    async with api(tmp_path) as served:
        client, headers = served.client(), {"Idempotency-Key": "order-1"}
        first = await client.post("/runs", json={"task": "x"}, headers=headers)
        again = await client.post("/runs", json={"wait": 30, "task": "x"}, headers=headers)
        assert (again.status_code, again.json()["id"]) == (201, first.json()["id"])
        other = await client.post("/runs", json={"task": "y"}, headers=headers)
        assert (other.status_code, other.json()["error"]["code"]) == (409, "other_request")
        theirs = await served.client("other").post("/runs", json={"task": "x"}, headers=headers)
        fresh = await client.post("/runs", json={"task": "x"}, headers={"Idempotency-Key": "order-2"})
        assert len({first.json()["id"], theirs.json()["id"], fresh.json()["id"]}) == 3
        bad = await client.post("/runs", json={"task": "x"}, headers={"Idempotency-Key": "a b"})
        assert bad.status_code == 400
        secrets = served.secrets
    async with api(tmp_path) as served:
        served.secrets = secrets
        later = await served.client().post("/runs", json={"task": "x"}, headers=headers)
        assert later.json()["id"] == first.json()["id"]


async def test_concurrent_requests_with_one_idempotency_key_start_one_run(tmp_path):
    async with api(tmp_path) as served:
        headers = {"Idempotency-Key": "k"}
        sending = [served.client().post("/runs", json={"task": "x"}, headers=headers) for _ in range(20)]
        answers = await asyncio.gather(*sending)
        assert len({answer.json()["id"] for answer in answers}) == 1
        assert len((await served.client().get("/runs")).json()["runs"]) == 1
        assert not served.service._keys._locks._locks


async def test_an_idempotency_key_can_be_reused_if_its_run_did_not_start(tmp_path):
    async with api(tmp_path) as served:
        headers = {"Idempotency-Key": "k"}
        answer = await served.client().post("/runs", json={"task": "x", "agent": "nobody"}, headers=headers)
        assert answer.status_code == 404
        assert (await served.client().post("/runs", json={"task": "x"}, headers=headers)).status_code in (201, 202)


async def test_an_idempotency_key_belongs_to_the_run_that_was_stored_with_it(tmp_path):
    async with api(tmp_path) as served:
        store, headers = served.service._store, {"Idempotency-Key": "k"}
        caller = (await served.client().post("/runs", json={"task": "x"})).json()["id"]
        owner = store.get(caller).owner
        with store.db.transaction(write=True) as db:  # as an earlier version left it, which reserved keys
            row = (owner, "k", "other", "run_gone", time.time(), gethostname(), os.getpid())
            db.execute(
                "INSERT INTO idempotency_keys (owner, key, digest, run_id, at, host, pid) VALUES (?,?,?,?,?,?,?)", row
            )
        first = await served.client().post("/runs", json={"task": "x"}, headers=headers)
        assert first.status_code in (201, 202)
        assert store.key(owner, "k").run_id == first.json()["id"]
        late = IdempotencyKey(owner, "k", "digest", "run_late", time.time())  # of a process that was paused
        run = msgspec.structs.replace(store.get(caller), id="run_late")
        assert store.accept([NewRun(run, store.events(caller)[0], key=late)]) == [
            Accepted(False, key=store.key(owner, "k"))
        ]
        assert store.get("run_late") is None


async def test_idempotency_keys_are_deleted_with_their_runs(tmp_path):
    async with api(tmp_path) as served:
        headers = {"Idempotency-Key": "k"}
        first = await served.client().post("/runs", json={"task": "x", "wait": 30}, headers=headers)
        await served.service._recorder.flushed()
        assert served.service._store.prune_served(1e-9) == 1
        again = await served.client().post("/runs", json={"task": "y"}, headers=headers)
        assert again.status_code in (201, 202)
        assert again.json()["id"] != first.json()["id"]


# Get and list


async def test_runs_are_listed_in_pages_and_filtered(tmp_path):
    async with api(tmp_path, make(), make([reply("x")] * 9, name="second")) as served:
        client = served.client()
        ids = [(await finished(client, str(n), session="a" if n % 2 else "b"))["id"] for n in range(5)]
        second = await finished(client, "z", agent="second")
        got, before = [], ""
        while True:
            page = (await client.get("/runs", params={"limit": 2, "before": before, "agent": "helper"})).json()
            got += [run["id"] for run in page["runs"]]
            if not (before := page["next"]):
                break
        assert got == ids[::-1]
        for query, wanted in (
            ({"session": "a"}, [ids[3], ids[1]]),
            ({"agent": "second"}, [second["id"]]),
            ({"status": "failed"}, []),
            ({"status": "completed", "limit": "1"}, [second["id"]]),
        ):
            found = (await client.get("/runs", params=query)).json()["runs"]
            assert [run["id"] for run in found] == wanted, query
        bad = [{"limit": "0"}, {"limit": "201"}, {"status": "odd"}, {"metadata": "x"}, {"limit": ["1", "2"]}]
        for query in bad:
            assert (await client.get("/runs", params=query)).status_code == 422, query
        assert (await client.get("/runs", params={"before": "run_none"})).status_code == 404


async def test_a_caller_sees_its_own_runs_only_and_an_admin_all(tmp_path):
    blocker = Blocker()
    async with api(tmp_path, blocker.agent()) as served:
        mine = (await served.client().post("/runs", json={"task": "x"})).json()["id"]
        await wait_until(lambda: blocker.entered)
        other, admin = served.client("other"), served.client("admin")
        assert (await other.get("/runs")).json()["runs"] == []
        for method, path, body in (
            ("GET", "", None),
            ("GET", "/events", None),
            ("HEAD", "/events", None),
            ("POST", "/cancel", {}),
            ("POST", "/messages", {"text": "x"}),
        ):
            answer = await other.request(method, f"/runs/{mine}{path}", json=body)
            unknown = await other.request(method, f"/runs/run_none{path}", json=body)
            assert answer.status_code == unknown.status_code == 404
            assert answer.text.replace(mine, "run_none") == unknown.text
        assert (await other.get("/runs", params={"before": mine})).status_code == 404
        assert [run["id"] for run in (await admin.get("/runs")).json()["runs"]] == [mine]
        assert (await admin.post(f"/runs/{mine}/cancel")).json()["status"] == "cancelled"


async def test_texts_of_a_run_need_the_right_read(tmp_path):
    async with api(tmp_path) as served:
        client = served.client("starter", scopes=("run",))
        run = await finished(client, "a secret")
        assert (run["status"], run["task"], run["reply"]) == ("completed", "", "")
        assert (await client.get(f"/runs/{run['id']}")).status_code == 403


async def test_a_page_of_long_runs_is_short_and_skips_none(tmp_path, monkeypatch):
    monkeypatch.setattr(stored_runs, "PAGE_SIZE", 250)
    async with api(tmp_path) as served:
        client = served.client()
        ids = [(await finished(client, "x" * size))["id"] for size in (10, 400, 100, 100, 10, 400, 400)]
        sizes, got, before = [], [], ""
        while True:
            page = (await client.get("/runs", params={"before": before})).json()
            got += [run["id"] for run in page["runs"]]
            sizes.append(len(page["runs"]))
            if not (before := page["next"]):
                break
        assert got == ids[::-1]
        assert sizes == [1, 1, 3, 1, 1]


async def test_a_page_of_long_events_is_short_and_skips_none(tmp_path, monkeypatch):
    monkeypatch.setattr(api_module, "PAGE_SIZE", 400)
    monkeypatch.setattr(live_run, "PAGE_BYTES", 400)
    async with api(tmp_path) as served:
        client = served.client()
        run = await finished(client, "x" * 1000)
        await wait_until(lambda: run["id"] not in served.service._live)  # from now on events are read from the file
        seen, pages, over = [], 0, False
        while not over:
            answer = await client.get(
                f"/runs/{run['id']}/events", params={"after": len(seen)}, headers={"accept": "application/json"}
            )
            page = answer.json()
            seen += [event["seq"] for event in page["events"]]
            assert page["last_seq"] == len(seen)
            pages, over = pages + 1, page["over"]
        assert seen == list(range(1, run["last_seq"] + 1))
        assert pages > 2


async def test_agents_are_listed(tmp_path):
    async with api(tmp_path, Blocker().agent(), make(name="b")) as served:
        found = (await served.client().get("/agents")).json()["agents"]
        assert found[0] == {"name": "helper", "description": "", "tools": ["blocker"]}
        assert [each["name"] for each in found] == ["helper", "b"]


# Steer, cancel and events


async def test_a_run_can_be_steered_and_cancelled_once(tmp_path):
    blocker = Blocker()
    async with api(tmp_path, blocker.agent()) as served:
        client = served.client()
        path = f"/runs/{(await client.post('/runs', json={'task': 'x'})).json()['id']}"
        await wait_until(lambda: blocker.entered)
        assert (await client.post(f"{path}/messages", json={"text": "hurry"})).status_code == 202
        assert (await client.post(f"{path}/messages", json={"text": ""})).status_code == 422
        answer = await client.post(f"{path}/cancel", json={"reason": "enough"})
        assert (answer.status_code, answer.json()["status"], answer.json()["reason"]) == (200, "cancelled", "enough")
        again = await client.post(f"{path}/cancel", json={"reason": "again"})
        assert (again.status_code, again.json()["reason"]) == (200, "enough")
        late = await client.post(f"{path}/messages", json={"text": "x"})
        assert (late.status_code, late.json()["error"]["code"]) == (409, "not_now")
        assert (await client.post(f"{path}/cancel", json={"why": "x"})).status_code == 422


async def test_events_are_read_as_json_in_pages(tmp_path):
    async with api(tmp_path) as served:
        client = served.client()
        run = await finished(client)
        path, got, after = f"/runs/{run['id']}/events", [], 0
        while True:
            page = (await client.get(path, params={"after": after, "limit": 7}, headers=AS_JSON)).json()
            got += page["events"]
            assert page["last_seq"] == len(got)
            after = page["last_seq"]
            if page["over"]:
                break
        assert got == events_in((await client.get(path)).text)
        assert [event["seq"] for event in got] == list(range(1, run["last_seq"] + 1))
        assert got[-1]["type"] == "run_closed"


async def test_a_json_client_can_wait_for_events(tmp_path):
    blocker = Blocker()
    async with api(tmp_path, blocker.agent()) as served:
        client = served.client()
        path = f"/runs/{(await client.post('/runs', json={'task': 'x'})).json()['id']}/events"
        page = {"last_seq": 0}
        while "tool_started" not in str(page):
            page = (await client.get(f"{path}?after={page['last_seq']}&wait=30", headers=AS_JSON)).json()
            assert page["events"]
        now = (await client.get(f"{path}?after={page['last_seq'] + 99}", headers=AS_JSON)).json()
        assert (now["events"], now["over"]) == ([], False)
        assert served.service.counts()["readers"] == 0


# Limits and errors


async def test_an_exceeded_limit_says_when_to_retry(tmp_path):
    async with api(tmp_path, Blocker().agent(), max_runs_per_caller=1) as served:
        assert (await served.client().post("/runs", json={"task": "x"})).status_code in (201, 202)
        answer = await served.client().post("/runs", json={"task": "y"})
        assert (answer.status_code, answer.json()["error"]["code"]) == (429, "busy")
        assert int(answer.headers["Retry-After"]) > 0
        await served.service.close(grace=0)
        answer = await served.client().post("/runs", json={"task": "y"})
        assert (answer.status_code, "Retry-After" in answer.headers) == (503, True)


async def test_a_store_error_is_reported_without_its_path(tmp_path, monkeypatch):
    async with api(tmp_path) as served:

        def broken(*_, **__):
            raise StoreError(f"{tmp_path}/runs.db is damaged")

        monkeypatch.setattr(RunStore, "get", broken)
        monkeypatch.setattr(RunStore, "key", broken)
        for answer in (
            await served.client().get("/runs/run_1"),
            await served.client().post("/runs", json={"task": "x"}, headers={"Idempotency-Key": "k"}),
        ):
            assert (answer.status_code, answer.json()["error"]["code"]) == (503, "store")
            assert str(tmp_path) not in answer.text


async def test_every_endpoint_needs_its_right(tmp_path):
    async with api(tmp_path, make(), rate=1e9, burst=1_000_000) as served:
        await finished(served.client())
        before = [run.id for run in served.service._store.runs()]
        untouched = lambda: [run.id for run in served.service._store.runs()] == before  # noqa: E731
        async with client_of(served.routes()) as client:
            filled = lambda path: path.replace("{id}", before[0])  # noqa: E731
            assert await walk(client, served.endpoints(), Keys.of(served.store), untouched, filled=filled) > 400


async def test_any_task_text_is_stored_and_returned_unchanged(tmp_path):
    texts = ["\0", "a\r\nb", "\u2028", "\U0001f600", "data: x\n\nid: 99"]
    model = ScriptedModel([lambda request: reply(request.messages[-1].content)], loop=True)
    async with api(tmp_path, make()) as served:
        served.service.agents._answerers["helper"].llm = model
        for text in texts:
            run = await finished(served.client(), f"x{text}")
            assert run["task"] == f"x{text}"
            stream = (await served.client().get(f"/runs/{run['id']}/events")).text
            assert [event["seq"] for event in events_in(stream)] == list(range(1, run["last_seq"] + 1))
            assert stream.splitlines() == stream.removesuffix("\n").split("\n"), (
                "a client could see an extra line break"
            )


# Filters of lists


async def test_a_list_is_filtered_by_everything_that_the_table_of_runs_shows(tmp_path):
    async with api(tmp_path, make(), make([call("nothing"), reply("a Red house")], name="painter")) as served:
        client = served.client()
        first = await finished(client, "say hello", correlation_id="c-1")
        second = await finished(client, "paint", agent="painter")
        await finished(served.client("other"), "theirs")
        for query, found in {
            "": [second, first],
            "status=completed&status=failed": [second, first],
            "status=failed&status=waiting": [],
            "status=": [second, first],
            "agent=painter": [second],
            "text=red%20HOUSE": [second],
            "correlation_id=c-1": [first],
            "tool=nothing": [second],
            "hook=none": [],
            "verb=block": [],
            f"since={second['created']}": [second],
            f"until={second['created']}": [first],
            f"owner={first['owner']}": [second, first],
            "owner=somebody": [],
        }.items():
            runs = (await client.get(f"/runs?{query}")).json()["runs"]
            assert [run["id"] for run in runs] == [run["id"] for run in found], query
        admins = (await served.client("admin").get(f"/runs?owner={first['owner']}")).json()["runs"]
        assert [run["id"] for run in admins] == [second["id"], first["id"]]


@pytest.mark.parametrize("query", ["status=done", "since=-1", "agent=a&agent=b", "until=soon", "state=failed"])
async def test_a_wrong_filter_is_rejected(tmp_path, query):
    async with api(tmp_path) as served:
        answer = await served.client().get(f"/runs?{query}")
        assert (answer.status_code, answer.json()["error"]["code"]) == (422, "bad_field")
