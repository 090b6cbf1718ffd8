"""The gate: authentication, limits, logs and the audit log."""

import asyncio
import json
import logging
import sqlite3
import time

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, StreamingResponse

from hookline._web.http_server import HttpServer
from hookline.server import Caller
from hookline.server import auth as auth_module
from hookline.server.auth import LOCAL, PUBLIC
from hookline.server.errors import ApiError
from hookline.server.options import ServerOptions
from hookline.server.rate_limits import WrongKeyLimiter
from hookline.server.routing import Endpoint, Gate, caller_of, correlation_of
from hookline.stores import keys as keys_module
from hookline.stores.audit.log import AuditLog
from hookline.stores.keys import RIGHTS, KeyStore
from tests.properties import examples

from .console.rig import console
from .walk import GARBAGE, Keys, bearer, client_of, walk, walk_with_garbage

FAST = ServerOptions(rate=1e9, burst=1_000_000)


class Things:
    """Endpoints that return their caller."""

    def __init__(self):
        self.calls = []
        self.endpoints = [
            Endpoint("GET", "/healthz", self.call, PUBLIC, "health"),
            Endpoint("GET", "/runs", self.call, ("read",), "list"),
            Endpoint("POST", "/runs", self.call, ("run",), "start"),
            Endpoint("GET", "/runs/{id}", self.call, ("read", "run"), "show"),
            Endpoint("POST", "/approvals/{id}", self.call, ("approve",), "decide"),
            Endpoint("GET", "/metrics", self.call, ("admin",), "metrics"),
        ]

    async def call(self, request):
        self.calls.append(caller_of(request))
        return JSONResponse(
            {
                "caller": caller_of(request).id,
                "correlation_id": correlation_of(request),
                "scheme": request.url.scheme,
                "client": request.client and request.client.host,
            }
        )

    def routes(self, gate):
        return [*gate.routes(self.endpoints), gate.fallback()]


@pytest.fixture
def store(tmp_path):
    store = KeyStore(tmp_path / "keys.db")
    yield store
    store.close()


@pytest.fixture
def things():
    return Things()


def one(call, scopes=("run",), path="/x", method="GET", **more):
    return Endpoint(method, path, call, scopes, "one", **more)


async def get(gate, endpoints, path="/x", headers=None, **where):
    async with client_of([*gate.routes(endpoints), gate.fallback()], **where) as client:
        return await client.get(path, headers=headers)


# Authentication


async def test_local_requests_need_no_key_while_none_exists(store, things):
    answer = await get(Gate(store), things.endpoints, "/runs")
    assert (answer.status_code, answer.json()["caller"]) == (200, LOCAL)
    assert things.calls == [Caller(LOCAL, LOCAL, frozenset(RIGHTS))]


@pytest.mark.parametrize(
    ("where", "headers"),
    [
        ({"peer": ("192.0.2.7", 1)}, {}),
        ({"base": "http://agents.example"}, {}),
        ({}, {"X-Forwarded-For": "127.0.0.1"}),
        ({}, {"Forwarded": "for=127.0.0.1"}),
        ({}, {"X-Real-IP": "127.0.0.1"}),
        ({"peer": ("", 0)}, {}),
        ({}, {"CF-Connecting-IP": "127.0.0.1"}),
        ({}, {"X-Client-IP": "127.0.0.1"}),
        ({}, {"X-Original-Host": "agents.example.com"}),
    ],
)
async def test_remote_and_forwarded_requests_always_need_a_key(store, things, where, headers):
    answer = await get(Gate(store), things.endpoints, "/runs", headers, **where)
    assert (answer.status_code, things.calls) == (401, [])


async def test_after_the_first_key_local_requests_need_one_even_if_it_is_revoked(store, things):
    gate = Gate(store)
    assert (await get(gate, things.endpoints, "/runs")).status_code == 200
    row, key = store.add("ci", ["read"])
    assert (await get(gate, things.endpoints, "/runs")).status_code == 401
    assert (await get(gate, things.endpoints, "/runs", bearer(key))).json()["caller"] == row.id
    store.revoke("ci")
    assert (await get(gate, things.endpoints, "/runs", bearer(key))).status_code == 401
    for each in (gate, Gate(store)):
        assert (await get(each, things.endpoints, "/runs")).status_code == 401


@pytest.mark.parametrize(
    "options",
    [
        ServerOptions(host="0.0.0.0"),
        ServerOptions(hosts=("agents.example",)),
        ServerOptions(trusted_proxies=("127.0.0.1",)),
        ServerOptions(public_url="https://agents.example"),
    ],
)
async def test_an_exposed_server_needs_keys_before_one_exists(store, things, options):
    assert (await get(Gate(store, options), things.endpoints, "/runs")).status_code == 401


async def test_without_a_key_store_no_key_is_valid(things):
    assert (await get(Gate(None), things.endpoints, "/runs", bearer(GARBAGE))).status_code == 200
    assert (await get(Gate(None, keys_required=True), things.endpoints, "/runs", bearer(GARBAGE))).status_code == 401
    assert things.calls[0].id == LOCAL


async def test_a_key_is_accepted_in_both_headers_and_not_in_the_query(store, things):
    _, key = store.add("ci", ["read"], metadata={"user_role": "customer"})
    for headers in (
        bearer(key),
        {"X-API-Key": key},
        {"Authorization": f"bearer  {key} "},
        bearer(key) | {"X-API-Key": key},
    ):
        assert (await get(Gate(store), things.endpoints, "/runs", headers)).status_code == 200
    assert things.calls[0].metadata == {"user_role": "customer"}
    for path, headers in (
        (f"/runs?key={key}&api_key={key}&access_token={key}", {}),
        ("/runs", bearer(key) | {"X-API-Key": GARBAGE}),
        ("/runs", {"Authorization": f"Basic {key}"}),
        ("/runs", {"Authorization": key}),
        ("/runs", {"Cookie": f"key={key}"}),
    ):
        assert (await get(Gate(store), things.endpoints, path, headers)).status_code == 401, (path, headers)


async def test_every_route_rejects_a_key_without_the_right(store, things):
    keys, gate = Keys.of(store), Gate(store, FAST)
    async with client_of(things.routes(gate)) as client:
        refused = await walk(client, things.endpoints, keys, lambda: not things.calls)
    assert refused > 200


async def test_every_route_rejects_garbage_keys(store, things):
    store.add("ci", RIGHTS)
    gate = Gate(store, FAST)
    refused = await walk_with_garbage(
        lambda n: client_of(things.routes(gate), peer=(f"192.0.2.{n}", 1)), things.endpoints, lambda: not things.calls
    )
    assert refused == 20


async def test_public_endpoints_accept_wrong_keys_and_work_without_the_key_store(tmp_path, things):
    (tmp_path / "keys.db").write_bytes(b"no database" * 500)
    gate = Gate(KeyStore(tmp_path / "keys.db"), keys_required=True)
    answer = await get(gate, things.endpoints, "/healthz", bearer(GARBAGE))
    assert (answer.status_code, answer.json()["caller"]) == (200, "")


async def test_the_error_names_the_missing_right(store, things):
    _, key = store.add("ci", ["approve", "admin"])
    answer = await get(Gate(store), things.endpoints, "/runs/1", bearer(key))
    assert answer.status_code == 403
    assert "read or run" in answer.json()["error"]["message"]


async def test_only_callers_with_a_key_learn_that_a_path_or_method_is_unknown(store, things):
    _, key = store.add("ci", ["read"])
    async with client_of(things.routes(Gate(store))) as client:
        missing = await client.get("/nothing", headers=bearer(key))
        wrong = await client.delete("/runs", headers=bearer(key))
        assert (await client.get("/runs/", headers=bearer(key))).status_code == 404
        assert (await client.get("/runs/")).status_code == 401
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    assert (wrong.status_code, wrong.headers["Allow"]) == (405, "GET, HEAD, POST")


async def test_head_requests_work_wherever_get_does_except_for_streams(things):
    stream = one(things.call, path="/events", media="text/event-stream")
    async with client_of(Gate(None).routes([*things.endpoints, stream])) as client:
        assert (await client.head("/healthz")).status_code == 200
        assert (await client.head("/events")).status_code == 405


@pytest.mark.parametrize("scopes", [(), ("reed",), ("open", "run"), "run", ("read", "")])
def test_an_endpoint_without_scopes_is_an_error(scopes, things):
    with pytest.raises(ValueError, match="PUBLIC"):
        Gate(None).routes([one(things.call, scopes)])


def test_a_duplicate_endpoint_is_an_error(things):
    with pytest.raises(ValueError, match="twice"):
        Gate(None).routes([one(things.call), one(things.call)])


rights = st.frozensets(st.sampled_from(RIGHTS))


ways = st.tuples(st.sampled_from(["/a", "/b", "/c"]), st.sampled_from(["GET", "POST", "PUT"]), rights)


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(ways, unique_by=lambda way: way[:2]), rights)
def test_a_request_is_allowed_exactly_if_the_key_has_one_of_the_rights(table, held):
    store, things = KeyStore(":memory:"), Things()
    key = store.add("ci", held or ["admin"])[1] if held else GARBAGE
    store.add("other", ["admin"])
    endpoints = [Endpoint(m, path, things.call, tuple(r) or PUBLIC, "x") for path, m, r in table]

    async def call_all():
        async with client_of([*(gate := Gate(store, FAST)).routes(endpoints), gate.fallback()]) as client:
            for n, (path, method, needed) in enumerate(table):
                gate._authenticator._wrong_keys = WrongKeyLimiter()
                status = (await client.request(method, path, headers=bearer(key))).status_code
                allowed = not needed or bool(held & needed)
                assert status == (200 if allowed else 403 if held else 401), (n, method, path, needed, held)

    asyncio.run(call_all())
    store.close()
    assert len(things.calls) == sum(not needed or bool(held & needed) for *_, needed in table)


header_bytes = st.binary(max_size=80) | st.sampled_from(
    [b"Bearer", b"Bearer ", b"bearer hl_", b"Bearer hl__", b"Basic Og=="]
)


header_names = st.sampled_from([b"authorization", b"x-api-key", b"x-correlation-id", b"x-forwarded-for", b"forwarded"])


@settings(max_examples=examples(80), deadline=None)
@given(st.lists(st.tuples(header_names, header_bytes), max_size=4))
def test_random_headers_never_authenticate_and_never_cause_an_error(headers):
    store, things = KeyStore(":memory:"), Things()
    store.add("ci", RIGHTS)
    options = ServerOptions(rate=1e9, burst=1_000_000, trusted_proxies=("127.0.0.1",))
    blocker, sent = Gate(store, options).routes(things.endpoints)[1], []

    async def call():
        scope = {
            "type": "http",
            "method": "GET",
            "path": "/runs",
            "headers": [(b"host", b"localhost"), *headers],
            "client": ("127.0.0.1", 1),
            "query_string": b"",
            "scheme": "http",
        }
        await blocker.app(scope, None, lambda message: asyncio.sleep(0, sent.append(message)))

    asyncio.run(call())
    store.close()
    assert (sent[0]["status"], things.calls) == (401, [])


# Unreadable keys


def break_file(path, how):
    if how == "corrupt":
        path.write_bytes(b"this is no database " * 500)
    elif how == "missing":
        path.rename(path.with_suffix(".away"))
    elif how == "a folder":
        path.rename(path.with_suffix(".away"))
        path.mkdir()
    elif how == "another database":
        path.rename(path.with_suffix(".away"))
        other = sqlite3.connect(path)
        other.execute("CREATE TABLE keys (id)")
        other.commit()
        other.close()


@pytest.mark.parametrize("how", ["corrupt", "missing", "a folder", "another database"])
@pytest.mark.sqlite
async def test_unreadable_keys_reject_all_requests(store, things, how, tmp_path, monkeypatch):
    monkeypatch.setattr(keys_module, "CACHE_SECONDS", 0.0)
    _, key = store.add("ci", RIGHTS)
    gate = Gate(store)
    assert (await get(gate, things.endpoints, "/runs", bearer(key))).status_code == 200
    store.flush()
    for left in (tmp_path / "keys.db-wal", tmp_path / "keys.db-shm"):
        if how == "corrupt":
            store._database.close()
            store._marking.close()
            store._database = keys_module._database(store.path)
            left.unlink(missing_ok=True)
    break_file(tmp_path / "keys.db", how)
    for headers in ({}, bearer(key), bearer(GARBAGE)):
        answer = await get(gate, things.endpoints, "/runs", headers)
        assert (answer.status_code, answer.json()["error"]["code"]) == (503, "keys_unreadable")
        assert "keys.db" not in answer.text
    assert len(things.calls) == 1


@pytest.mark.sqlite
async def test_keys_in_an_unreadable_folder_reject_all_requests(things, tmp_path):
    (tmp_path / "file").touch()
    gate = Gate(KeyStore(tmp_path / "file" / "keys.db"))
    assert ((await get(gate, things.endpoints, "/runs")).status_code, things.calls) == (503, [])


@pytest.mark.sqlite
async def test_unreadable_keys_reject_requests_between_refreshes(things, tmp_path, monkeypatch):
    monkeypatch.setattr(keys_module, "CACHE_SECONDS", 3600.0)
    (tmp_path / "keys.db").write_bytes(b"no database" * 500)
    gate = Gate(KeyStore(tmp_path / "keys.db"))
    statuses = [(await get(gate, things.endpoints, "/runs")).status_code for _ in range(3)]
    assert (statuses, things.calls) == ([503] * 3, [])


@pytest.mark.sqlite
async def test_locked_keys_reject_requests_until_they_are_unlocked(store, things, tmp_path, monkeypatch):
    monkeypatch.setattr(keys_module, "CACHE_SECONDS", 0.0)
    monkeypatch.setattr("hookline.stores.sqlite.BUSY_SECONDS", 0.05)
    _, key = store.add("ci", RIGHTS)
    store.close()
    holder = sqlite3.connect(tmp_path / "keys.db", isolation_level=None)
    holder.execute("PRAGMA locking_mode=EXCLUSIVE")
    holder.execute("BEGIN EXCLUSIVE")
    again = KeyStore(tmp_path / "keys.db")
    gate = Gate(again)
    assert (await get(gate, things.endpoints, "/runs", bearer(key))).status_code == 503
    assert (await get(gate, things.endpoints, "/runs")).status_code == 503
    holder.execute("COMMIT")
    holder.close()
    assert (await get(gate, things.endpoints, "/runs", bearer(key))).status_code == 200
    again.close()


async def test_an_emptied_key_file_does_not_open_the_server(store, things, tmp_path, monkeypatch):
    monkeypatch.setattr(keys_module, "CACHE_SECONDS", 0.0)
    store.add("ci", RIGHTS)
    gate = Gate(store)
    assert (await get(gate, things.endpoints, "/runs")).status_code == 401
    with store._database.transaction(write=True) as db:
        db.execute("DELETE FROM keys")
    assert (await get(gate, things.endpoints, "/runs")).status_code == 401
    assert store.is_empty


# Limits


async def test_requests_beyond_the_rate_limit_have_to_wait(store, things):
    _, key = store.add("ci", RIGHTS)
    _, other = store.add("other", RIGHTS)
    async with client_of(things.routes(Gate(store, ServerOptions(rate=0.1, burst=3)))) as client:
        statuses = [(await client.get("/runs", headers=bearer(key))).status_code for _ in range(5)]
        late = await client.get("/runs", headers=bearer(key))
        assert (await client.get("/runs", headers=bearer(other))).status_code == 200
    assert statuses == [200, 200, 200, 429, 429]
    assert 500 < int(late.headers["Retry-After"]) <= 600


async def test_after_ten_wrong_keys_an_address_has_to_wait(store, things, tmp_path):
    _, key = store.add("ci", RIGHTS)
    audit = AuditLog(tmp_path / "audit.jsonl")
    gate = Gate(store, audit=audit)
    async with client_of(things.routes(gate)) as client:
        statuses = [(await client.get("/runs", headers=bearer(f"{GARBAGE}{n}"))).status_code for n in range(12)]
        assert statuses == [401] * 10 + [429] * 2
        late = await client.get("/runs", headers=bearer(key))
        assert (late.status_code, 0 < int(late.headers["Retry-After"]) <= 60) == (429, True)
        assert (await client.get("/healthz")).status_code == 200
    assert (await get(gate, things.endpoints, "/runs", bearer(key), peer=("192.0.2.1", 1))).status_code == 200
    audit.close()
    assert "aaaaaaaa" not in (tmp_path / "audit.jsonl").read_text()


async def test_wrong_keys_that_arrive_together_are_counted_one_by_one(store, things, tmp_path, monkeypatch):
    _, key = store.add("ci", RIGHTS)
    refresh = KeyStore.refresh
    monkeypatch.setattr(KeyStore, "refresh", lambda self: (time.sleep(0.1), refresh(self)))  # all requests wait for it
    gate = Gate(KeyStore(store.path))
    async with client_of(things.routes(gate)) as client:
        answers = await asyncio.gather(*(client.get("/runs", headers=bearer(f"{GARBAGE}{n}")) for n in range(30)))
        assert sorted(each.status_code for each in answers) == [401] * 10 + [429] * 20
        assert (await client.get("/runs", headers=bearer(key))).status_code == 429


async def test_a_revoked_key_does_not_count_as_a_wrong_key(store, things):
    _, old = store.add("old", RIGHTS)
    store.revoke("old")
    _, key = store.add("ci", RIGHTS)
    async with client_of(things.routes(Gate(store))) as client:
        assert {(await client.get("/runs", headers=bearer(old))).status_code for _ in range(20)} == {401}
        assert (await client.get("/runs", headers=bearer(key))).status_code == 200


async def test_requests_without_a_key_cannot_fill_the_log(store, things, tmp_path):
    store.add("ci", RIGHTS)
    audit = AuditLog(tmp_path / "audit.jsonl")
    async with client_of(things.routes(Gate(store, ServerOptions(rate=1, burst=5), audit=audit))) as client:
        statuses = [(await client.get("/runs")).status_code for _ in range(20)]
    audit.close()
    assert statuses == [401] * 5 + [429] * 15
    assert len([line for line in records(tmp_path / "audit.jsonl") if line["type"] == "auth"]) == 5


@pytest.mark.sqlite
async def test_requests_cannot_fill_the_logs_while_keys_are_unreadable(things, tmp_path, caplog):
    (tmp_path / "keys.db").write_bytes(b"no database" * 500)
    audit = AuditLog(tmp_path / "audit.jsonl")
    gate = Gate(KeyStore(tmp_path / "keys.db"), ServerOptions(rate=1, burst=5), audit=audit)
    async with client_of(things.routes(gate)) as client:
        statuses = [(await client.get("/runs")).status_code for _ in range(20)]
    audit.close()
    assert statuses == [503] * 5 + [429] * 15
    assert len([line for line in records(tmp_path / "audit.jsonl") if line["type"] == "auth"]) == 5
    assert len([record for record in caplog.records if "cannot be read" in record.message]) == 5


# Logs and errors


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


async def test_the_audit_log_has_every_decision_and_no_secret(store, things, tmp_path):
    row, key = store.add("ci", ["read"])
    gone, old = store.add("old", ["read"])
    store.revoke("old")
    audit = AuditLog(tmp_path / "audit.jsonl")
    gate = Gate(store, ServerOptions(trusted_proxies=("127.0.0.1",)), audit=audit)
    through = {"X-Forwarded-For": "203.0.113.9"}
    async with client_of(things.routes(gate)) as client:
        for headers in ({}, bearer(GARBAGE), bearer(old), bearer(key), through | bearer(key)):
            await client.get("/runs/7?secret=q", headers=headers | {"X-Correlation-ID": "c-1"})
        await client.post("/runs", headers=bearer(key))
        await client.get("/nothing", headers=bearer(key))
        await client.get("/healthz")
    audit.close()
    auth_records = [line for line in records(tmp_path / "audit.jsonl") if line["type"] == "auth"]
    assert [(line["decision"], line["why"], line["caller"], line["route"], line["right"]) for line in auth_records] == [
        ("denied", "no key was given", "", "/runs/{id}", "read,run"),
        ("denied", "no such key", "", "/runs/{id}", "read,run"),
        ("denied", "the key is revoked", gone.id, "/runs/{id}", "read,run"),
        ("granted", "", row.id, "/runs/{id}", "read,run"),
        ("granted", "", row.id, "/runs/{id}", "read,run"),
        ("denied", "a right is missing", row.id, "/runs", "run"),
        ("granted", "", row.id, "*", ""),
    ]
    assert [line["correlation_id"] for line in auth_records][:4] == ["c-1"] * 4
    assert [line["address"] for line in auth_records][3:5] == ["127.0.0.1", "203.0.113.9"]
    text = (tmp_path / "audit.jsonl").read_text()
    assert not [secret for secret in (key[12:], old[12:], GARBAGE[12:], GARBAGE[3:11], "secret=q") if secret in text]


async def test_the_access_log_has_no_query_header_or_body(store, things, caplog):
    row, key = store.add("ci", RIGHTS)
    counted = []
    gate = Gate(store, count=lambda *given: counted.append(given[:3]))
    with caplog.at_level(logging.INFO, "hookline.access"):
        async with client_of(things.routes(gate)) as client:
            await client.post("/runs?q=secret", headers=bearer(key) | {"X-Request-ID": "r1"}, content=b"secret")
            await client.request("BREW", "/runs", headers=bearer(key))
            await client.get("/no%0A/%E2%80%A8x", headers=bearer(key))
    assert counted == [("POST", "/runs", 200), ("other", "/runs", 405), ("GET", "*", 404)]
    first = caplog.records[0]
    assert first.getMessage().startswith("POST /runs 200 ")
    assert first.getMessage().endswith(f"caller={row.id} correlation_id=r1")
    assert (first.route, first.status, first.caller) == ("/runs", 200, row.id)
    assert "secret" not in caplog.text
    assert key not in caplog.text


@pytest.mark.parametrize(
    ("headers", "given"),
    [
        ({"X-Correlation-ID": "abc-123"}, "abc-123"),
        ({"X-Request-ID": "abc"}, "abc"),
        ({"X-Correlation-ID": "a", "X-Request-ID": "b"}, "a"),
        ({"X-Correlation-ID": "a b", "X-Request-ID": "b"}, "b"),
        ({"X-Correlation-ID": "x" * 129}, None),
        ({"X-Correlation-ID": "é".encode()}, None),
        ({"X-Correlation-ID": ""}, None),
        ({"X-Correlation-ID": f"hl_4k2m9x7q_{'s' * 43}"}, None),
        ({}, None),
    ],
)
async def test_a_plain_correlation_id_is_kept_and_any_other_replaced(things, headers, given):
    answer = await get(Gate(None), things.endpoints, "/runs", headers)
    id = answer.headers["X-Correlation-ID"]
    assert id == answer.json()["correlation_id"]
    assert id == given if given else (len(id) == 32 and id not in headers.values())


async def test_errors_are_json_and_internal_errors_have_no_details(things, caplog):
    async def refuse(request):
        raise ApiError(409, "busy", "come again", {"Retry-After": "3"})

    async def fail(request):
        raise ValueError("the password is hunter2")

    async def bad(request):
        raise HTTPException(400, "no form")

    endpoints = [one(refuse, path="/refuse"), one(fail, path="/fail"), one(bad, path="/bad")]
    answer = await get(Gate(None), endpoints, "/refuse")
    assert (answer.status_code, answer.headers["Retry-After"]) == (409, "3")
    assert answer.json() == {"error": {"code": "busy", "message": "come again"}}
    answer = await get(Gate(None), endpoints, "/fail", {"X-Correlation-ID": "c-9"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal")
    assert "c-9" in answer.json()["error"]["message"]
    assert "hunter2" not in answer.text
    assert "correlation id c-9" in caplog.text
    answer = await get(Gate(None), endpoints, "/bad")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "no form")


# Proxies and revoked keys


async def test_only_trusted_proxies_are_believed(store, things):
    _, key = store.add("ci", RIGHTS)
    options = ServerOptions(trusted_proxies=("10.0.0.0/8",))
    headers = bearer(key) | {"X-Forwarded-For": "203.0.113.9, 10.1.1.1", "X-Forwarded-Proto": "https"}
    believed = await get(Gate(store, options), things.endpoints, "/runs", headers, peer=("10.0.0.2", 1))
    ignored = await get(Gate(store, options), things.endpoints, "/runs", headers, peer=("192.0.2.2", 1))
    assert (believed.json()["client"], believed.json()["scheme"]) == ("203.0.113.9", "https")
    assert (ignored.json()["client"], ignored.json()["scheme"]) == ("192.0.2.2", "http")


@pytest.mark.parametrize("how", ["revoke", "expire", pytest.param("lose", marks=pytest.mark.sqlite)])
async def test_a_stream_ends_when_its_key_is_revoked(store, tmp_path, monkeypatch, how):
    monkeypatch.setattr(keys_module, "CACHE_SECONDS", 0.0)
    now, sent, release = [time.time()], [], asyncio.Semaphore(1)
    store._clock = lambda: now[0]

    async def stream(request):
        async def pieces():
            for n in range(4):
                await release.acquire()
                sent.append(n)
                yield f"{n}\n"

        return StreamingResponse(pieces())

    _, key = store.add("ci", ["run"], expires=now[0] + 60)
    audit = AuditLog(tmp_path / "audit.jsonl")
    gate = Gate(store, audit=audit)

    class Part:
        def routes(self):
            return gate.routes([one(stream)])

    host = HttpServer([Part()], port=0, grace=1)
    await host.start()
    seen = []
    try:
        async with (
            httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=60) as client,
            client.stream("GET", "/x", headers=bearer(key)) as answer,
        ):
            with pytest.raises(httpx.RemoteProtocolError):
                async for line in answer.aiter_lines():
                    seen.append(line)
                    if how == "revoke":
                        store.revoke("ci")
                    elif how == "expire":
                        now[0] += 60
                    else:
                        store.flush()
                        (tmp_path / "keys.db").rename(tmp_path / "away.db")
                    release.release()
    finally:
        await host.stop()
    audit.close()
    assert (seen, sent) == (["0"], [0, 1])
    last = records(tmp_path / "audit.jsonl")[-1]
    assert (last["decision"], last["caller"] != "") == ("denied", True)


@pytest.mark.parametrize(
    ("how", "refused"),
    [
        ("revoke", (401, "unauthorized")),
        pytest.param("lose", (503, "keys_unreadable"), marks=pytest.mark.sqlite),
    ],
)
async def test_a_late_response_is_not_sent_to_a_revoked_key(store, tmp_path, monkeypatch, how, refused):
    for module in (keys_module, auth_module):
        monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    _, key = store.add("ci", ["run"])

    async def wait(request):
        if how == "revoke":
            store.revoke("ci")
        else:
            store.flush()
            (tmp_path / "keys.db").rename(tmp_path / "away.db")
        return JSONResponse("secret")

    audit = AuditLog(tmp_path / "audit.jsonl")
    answer = await get(Gate(store, audit=audit), [one(wait)], headers=bearer(key))
    audit.close()
    assert (answer.status_code, answer.json()["error"]["code"]) == refused
    decisions = [line["decision"] for line in records(tmp_path / "audit.jsonl") if line["type"] == "auth"]
    assert decisions == ["granted", "denied"]


async def test_a_slow_body_starts_no_run_for_a_key_revoked_meanwhile(store, monkeypatch):
    for module in (keys_module, auth_module):
        monkeypatch.setattr(module, "CACHE_SECONDS", 0.0)
    _, key = store.add("ci", ["run"])
    entered, begun = asyncio.Event(), []

    async def begin(request):
        entered.set()
        begun.append(await request.body())
        return JSONResponse("begun")

    async def body():
        yield b"x"
        await entered.wait()
        store.revoke("ci")
        yield b"y"

    gate = Gate(store)

    class Part:
        def routes(self):
            return gate.routes([one(begin, method="POST")])

    host = HttpServer([Part()], port=0, grace=1)
    await host.start()
    try:
        async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=60) as client:
            answer = await client.post("/x", content=body(), headers=bearer(key))
    finally:
        await host.stop()
    assert (answer.status_code, begun) == (401, [])


async def test_the_gate_works_over_a_real_connection(store, things, caplog):
    async def broken(request):
        async def pieces():
            yield b"first"
            raise ValueError("hunter2")

        return StreamingResponse(pieces())

    async def read(request):
        return JSONResponse(len(await request.body()))

    async def catch(request):
        try:
            return await read(request)
        except Exception:  # noqa: BLE001 - as a2a does
            return JSONResponse("all is well")

    _, key = store.add("ci", RIGHTS)
    gate = Gate(store)
    endpoints = [
        *things.endpoints,
        one(broken, path="/broken"),
        one(read, path="/read", method="POST"),
        one(catch, path="/catch", method="POST"),
    ]

    class Part:
        def routes(self):
            return [*gate.routes(endpoints), gate.fallback()]

    host = HttpServer([Part()], port=0, max_body=1000, grace=1)
    await host.start()
    try:
        async with httpx.AsyncClient(base_url=host.url, trust_env=False, timeout=60) as client:
            assert (await client.get("/runs")).status_code == 401
            assert (await client.get("/runs", headers=bearer(key))).status_code == 200
            assert (await client.head("/healthz")).status_code == 200
            with caplog.at_level(logging.INFO, "hookline.access"):
                for path in ("/read", "/catch"):
                    long = await client.post(path, content=b"x" * 1001, headers=bearer(key) | {"X-Request-ID": "r2"})
                    assert (long.status_code, long.json()["error"]["code"]) == (413, "too_long")
                    assert long.headers["X-Correlation-ID"] == "r2"
                    assert f"POST {path} 413" in caplog.text
            with pytest.raises(httpx.RemoteProtocolError):
                await client.get("/broken", headers=bearer(key) | {"X-Request-ID": "r3"})
            assert "correlation id r3" in caplog.text
            assert (await client.get("/runs", headers=bearer(key))).status_code == 200
    finally:
        await host.stop()


async def test_without_a_key_a_path_that_exists_is_answered_like_one_that_does_not(tmp_path):
    async with console(tmp_path) as made:
        made.keys.add("ann", ["read"])
        async with httpx.AsyncClient(base_url=made.url, trust_env=False) as nobody:
            for known, unknown in (
                ("/v1/models", "/v1/unknown"),
                ("/v1/chat/completions", "/v1/chat/unknown"),
                ("/v1/models", "/v1"),
                ("/runs", "/unknown"),
                ("/console/audit", "/console/unknown"),
            ):
                for method in ("GET", "POST", "DELETE"):
                    answers = [
                        await nobody.request(method, path, headers={"X-Correlation-Id": "same"})
                        for path in (known, unknown)
                    ]
                    seen = [
                        (each.status_code, each.content.replace(path.encode(), b""), each.headers.get("content-type"))
                        for each, path in zip(answers, (known, unknown), strict=True)
                    ]
                    assert seen[0] == seen[1], (method, known)
