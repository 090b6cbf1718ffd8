"""The plain API before a real gate: in the test's own loop, or behind a real web server."""

import json
from contextlib import asynccontextmanager

import httpx
from starlette.applications import Starlette

from hookline.server.api import RunsApi
from hookline.server.approvals_api import ApprovalsApi
from hookline.server.gate import Gate
from hookline.server.openapi import OpenApi
from hookline.stores.keys import KeyStore
from hookline.web.host import HttpHost

from .rig import service_at

RIGHTS = {
    "me": ("read", "run", "approve"),
    "other": ("read", "run", "approve"),
    "admin": ("read", "run", "approve", "admin"),
}
FAST = {"rate": 1e9, "burst": 1_000_000, "max_runs_per_caller": 10_000}


class Served:
    """An API that is served, with clients for its callers."""

    def __init__(self, folder, agents, audit, options):
        self.service = service_at(folder, *agents, **FAST | options)
        self.store = KeyStore(folder / "keys.db")
        known = {row.name for row in self.store.keys()}
        self.secrets = {name: self.store.add(name, scopes)[1] for name, scopes in RIGHTS.items() if name not in known}
        self.parts = [RunsApi(self.service), ApprovalsApi(self.service, audit)]
        self.parts.append(OpenApi(self.endpoints))
        self.gate = Gate(self.store, self.service.options, audit=audit)
        self.app = Starlette(routes=self.routes())
        self.url = "http://127.0.0.1:8420"
        self._clients = {}

    def endpoints(self):
        return [endpoint for part in self.parts for endpoint in part.endpoints()]

    def routes(self):
        return [*self.gate.routes(self.endpoints()), self.gate.rest()]

    def headers(self, name="me"):
        return {"Authorization": f"Bearer {self.secrets[name]}"}

    def client(self, name="me", *, scopes=None, real=False):
        """A client with the key of that name; with these rights, if it is a new one."""
        if name not in self.secrets:
            self.secrets[name] = self.store.add(name, scopes)[1]
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
    """The API; with ``real``, at a port of this machine."""
    served = Served(folder, agents, audit, options)
    await served.service.open()
    host = HttpHost([served], port=0, grace=1.0) if real else None
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


def events_in(text):
    """The events in the text of a stream, as dicts; their ids and types are checked."""
    found = []
    for block in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines() if line and not line.startswith(":"))
        if "data" in fields:
            event = json.loads(fields["data"])
            assert (fields["id"], fields["event"]) == (str(event["seq"]), event["type"])
            found.append(event)
    return found


async def finished(client, task="hello", **fields):
    """A run that is over."""
    answer = await client.post("/runs", json={"task": task, "wait": 30, **fields})
    assert answer.status_code == 201, answer.text
    return answer.json()
