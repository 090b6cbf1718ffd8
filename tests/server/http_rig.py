"""The HTTP API behind a real gate, in the event loop of the test or on a real port."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import msgspec
from starlette.applications import Starlette

from hookline._web.http_server import HttpServer
from hookline.server.api import RunsApi
from hookline.server.approvals import ApprovalsApi
from hookline.server.decide.api import DecideApi
from hookline.server.openapi import OpenApi
from hookline.server.routing import Gate
from hookline.server.statistics import StatisticsApi
from hookline.stores.keys import KeyStore

from .rig import service_at

RIGHTS = {
    "me": ("read", "run", "approve"),
    "other": ("read", "run", "approve"),
    "admin": ("read", "run", "approve", "admin"),
}
FAST = {"rate": 1e9, "burst": 1_000_000, "decide_rate": 1e9, "decide_burst": 1_000_000, "max_runs_per_caller": 10_000}


class Served:
    """A served API and clients for its callers."""

    def __init__(self, folder, agents, audit, options):
        self.service = service_at(folder, *agents, **FAST | options)
        self.store = KeyStore(folder / "keys.db")
        known = {row.name for row in self.store.keys()}  # noqa: SIM118
        wanted = {name: scopes for name, scopes in RIGHTS.items() if f"{name}'s" not in known}
        self.secrets = {name: self.store.add(f"{name}'s", scopes)[1] for name, scopes in wanted.items()}
        self.apis = [RunsApi(self.service), ApprovalsApi(self.service, audit), StatisticsApi(self.service)]
        self.apis += [DecideApi(self.service), OpenApi(self.endpoints)]
        self.gate = Gate(self.store, self.service.options, audit=audit)
        self.app = Starlette(routes=self.routes())
        self.url = "http://127.0.0.1:8420"
        self._clients = {}

    def endpoints(self):
        return [endpoint for api in self.apis for endpoint in api.endpoints()]

    def routes(self):
        return [*self.gate.routes(self.endpoints()), self.gate.fallback()]

    def headers(self, name="me"):
        return {"Authorization": f"Bearer {self.secrets[name]}"}

    def client(self, name="me", *, scopes=None, real=False):
        """A client with the key of that name; a new key gets these scopes."""
        if name not in self.secrets:
            self.secrets[name] = self.store.add(f"{name}'s", scopes)[1]
        if (name, real) not in self._clients:
            transport = None if real else httpx.ASGITransport(self.app)
            self._clients[name, real] = httpx.AsyncClient(
                transport=transport, base_url=self.url, headers=self.headers(name), timeout=60, trust_env=False
            )
        return self._clients[name, real]

    async def close(self):
        for client in self._clients.values():
            await client.aclose()
        self.store.close()


@asynccontextmanager
async def api(folder, *agents, audit=None, real=False, **options):
    """Serve the API; with ``real``, on a port of this machine."""
    served = Served(folder, agents, audit, options)
    await served.service.open()
    host = HttpServer([served], port=0, grace=1.0) if real else None
    try:
        if host is not None:
            await host.start()
            served.url = host.url
        yield served
    finally:
        await served.service.close(grace=0)
        if host is not None:
            await host.stop()
        await served.close()


def events_in(text, most=None):
    """Parse the events in the text of a stream, and check their ids and types."""
    found = []
    for block in text.split("\n\n", -1 if most is None else most + 1):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if "data" in fields and (most is None or len(found) < most):
            event = msgspec.json.decode(fields["data"])
            assert (fields["id"], fields["event"]) == (str(event["seq"]), event["type"])
            found.append(event)
    return found


async def finished(client, task="hello", **fields):
    """A finished run."""
    answer = await client.post("/runs", json={"task": task, "wait": 30, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()


class Stream:
    """An event stream read directly from the app, which the reader can leave at any time."""

    def __init__(self, served, run_id, after=None, *, name="me", query=""):
        headers = {"host": "127.0.0.1", "authorization": f"Bearer {served.secrets[name]}"}
        if after is not None:
            headers["last-event-id"] = str(after)
        self._scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": "GET",
            "scheme": "http",
            "path": f"/runs/{run_id}/events",
            "raw_path": b"",
            "query_string": query.encode(),
            "root_path": "",
            "headers": [(key.encode(), value.encode()) for key, value in headers.items()],
            "client": ("127.0.0.1", 5),
            "server": ("127.0.0.1", 8420),
            "state": {},
        }
        self._app, self._sent, self._gone = served.app, asyncio.Queue(maxsize=1), asyncio.Event()
        self._asked = False
        self.over, self.status, self.text = False, 0, ""

    async def __aenter__(self):
        self._task = asyncio.create_task(self._app(self._scope, self._receive, self._sent.put))
        return self

    async def __aexit__(self, *_):
        self._gone.set()
        while not self._task.done():  # drop what is still sent, as uvicorn does
            if not self._sent.empty():
                self._sent.get_nowait()
            await asyncio.sleep(0.001)  # threads that read the store need the interpreter lock
        await self._task

    async def _receive(self):
        if not self._asked:
            self._asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await self._gone.wait()
        return {"type": "http.disconnect"}

    async def piece(self):
        """The next piece of the body."""
        message = await asyncio.wait_for(self._sent.get(), 60)
        if message["type"] == "http.response.start":
            self.status = message["status"]
            return await self.piece()
        self.over = not message.get("more_body", False)
        return message.get("body", b"").decode()

    async def events(self, many=None):
        """The next ``many`` events, or all."""
        found = []
        while not self.over and (many is None or len(found) < many):
            found += events_in(await self.piece(), None if many is None else many - len(found))
        return found
