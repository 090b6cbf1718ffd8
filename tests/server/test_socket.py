"""The Unix socket of a server: its callers are this user, and need no key."""

from contextlib import asynccontextmanager

import httpx
import pytest

from hookline.config.settings import Settings
from hookline.server.build import build_server
from tests.server.rig import make

QUESTION = {"point": "before_tool", "session": "s", "payload": {"id": "c1", "name": "read"}}


@asynccontextmanager
async def serving(folder, **options):
    """A server with a key, and a client of its socket."""
    settings = Settings(
        runs=str(folder / "runs.db"), server={"port": 0, "socket": "run/h.sock", "grace": 0.0, **options}
    )
    server = build_server(settings, make(), home=folder)
    _, secret = server.keys.add("ci", ["run"])
    await server.start()
    transport = httpx.AsyncHTTPTransport(uds="run/h.sock")
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            yield server, client, secret
    finally:
        await server.stop(0)


@pytest.fixture(autouse=True)
def short(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # the address of a socket has about 100 bytes at most


async def test_the_socket_needs_no_key_where_the_port_does(tmp_path):
    async with serving(tmp_path) as (server, client, _), httpx.AsyncClient(trust_env=False) as other:
        assert (await other.post(f"{server.url}/decide", json=QUESTION)).status_code == 401
        answer = await client.post("/decide", json=QUESTION)
        assert answer.json()["action"] == "allow"
        (run,) = (await client.get("/runs")).json()["runs"]
        assert run["owner"] == "local"


async def test_a_key_that_is_sent_over_the_socket_counts(tmp_path):
    async with serving(tmp_path) as (_, client, secret):
        own = {"Authorization": f"Bearer {secret}"}
        assert (await client.post("/decide", json=QUESTION, headers=own)).status_code == 200
        assert (await client.get("/runs", headers=own)).status_code == 403
        for wrong in ({"X-API-Key": "hl_wrong"}, own | {"X-API-Key": "hl_wrong"}, {"Authorization": "Basic eDp5"}):
            assert (await client.post("/decide", json=QUESTION, headers=wrong)).status_code == 401


async def test_a_request_that_a_proxy_passes_on_to_the_socket_needs_a_key(tmp_path):
    async with serving(tmp_path, hosts=["agents.example.com"]) as (_, client, _):
        for passed_on in ({"X-Forwarded-For": "203.0.113.9"}, {"Host": "agents.example.com"}):
            assert (await client.post("/decide", json=QUESTION, headers=passed_on)).status_code == 401
