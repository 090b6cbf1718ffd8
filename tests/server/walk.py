"""Call every route of an app without the right to."""

import time
from dataclasses import dataclass, field

import httpx
from starlette.applications import Starlette

from hookline.server.auth import PUBLIC
from hookline.stores.keys import RIGHTS

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS")
GARBAGE = "hl_aaaaaaaa_" + "x" * 43


@dataclass
class Keys:
    """Keys of all kinds in a store."""

    store: object
    by_scopes: dict = field(default_factory=dict)
    revoked: str = ""
    expired: str = ""

    @classmethod
    def of(cls, store):
        made = cls(store)
        row, made.revoked = store.add("revoked", RIGHTS)
        store.revoke(row.id)
        expires = time.time() + 3600
        row, made.expired = store.add("expired", RIGHTS, expires=expires)
        with store._database.transaction(write=True) as db:
            db.execute("UPDATE keys SET expires = 1 WHERE id = ?", (row.id,))
        store._until = 0.0
        return made

    def key(self, *scopes):
        """A key with these rights."""
        wanted = tuple(right for right in RIGHTS if right in scopes)
        if wanted not in self.by_scopes:
            self.by_scopes[wanted] = self.store.add("-".join(wanted), wanted)[1]
        return self.by_scopes[wanted]


def bearer(key):
    return {"Authorization": f"Bearer {key}"}


def client_of(routes, *, peer=("127.0.0.1", 50000), base="http://127.0.0.1:8420"):
    """A client of routes without a network; ``peer`` is its apparent address."""
    transport = httpx.ASGITransport(Starlette(routes=list(routes)), client=peer)
    return httpx.AsyncClient(transport=transport, base_url=base)


async def walk(client, endpoints, keys, untouched, *, filled=lambda path: path, body=b"{}"):
    """Call every path with every method, without a valid key or with all rights except the needed ones.

    Args:
        client: an ``httpx.AsyncClient`` of the app, whose rates are high enough.
        endpoints: what it serves.
        keys: :class:`Keys` of its store.
        untouched: called after each request; raises or is false if something happened.
        filled: makes a path of a template.
        body: what is sent.

    Returns how many requests were refused.
    """
    table = {}
    for endpoint in endpoints:
        table.setdefault(endpoint.path, {})[endpoint.method] = endpoint.scopes
    refused = 0

    async def expect(method, path, headers, status, what):
        nonlocal refused
        # Pages answer a browser with a page or a redirect, and their scripts, which accept JSON only, with an error.
        headers = {"Accept": "application/json", **headers}
        answer = await client.request(method, filled(path), headers=headers, content=body)
        description = f"{method} {path} {what}: {answer.status_code} {answer.text}"
        assert answer.status_code == status, description
        assert answer.headers["X-Correlation-ID"], description
        assert method == "HEAD" or set(answer.json()["error"]) >= {"code", "message"}, description
        assert (answer.headers.get("WWW-Authenticate") == "Bearer") == (status == 401), description
        assert untouched(), f"{description}: something happened"
        refused += 1

    for path, ways in [*table.items(), ("/no/such/path", {})]:
        for method in METHODS:
            scopes = ways.get(method) or (method == "HEAD" and ways.get("GET")) or None
            if scopes == PUBLIC:
                continue
            await expect(method, path, {}, 401, "without a key")
            for what, key in (("revoked", keys.revoked), ("expired", keys.expired)):
                await expect(method, path, bearer(key), 401, f"with a key that is {what}")
                await expect(method, path, {"X-API-Key": key}, 401, f"with a key that is {what}")
            if scopes is None:
                continue
            others = [right for right in RIGHTS if right not in scopes]
            if others and (method != "HEAD" or "HEAD" in ways):
                for right in others:
                    await expect(method, path, bearer(keys.key(right)), 403, f"with {right} alone")
                await expect(method, path, bearer(keys.key(*others)), 403, f"with {others}")
    return refused


async def walk_with_garbage(client_for, endpoints, untouched, *, filled=lambda path: path):
    """The same with unknown keys; ``client_for(n)`` has the n-th address, because each address may try only a few."""
    refused = 0
    for n, endpoint in enumerate(endpoint for endpoint in endpoints if endpoint.scopes != PUBLIC):
        async with client_for(n) as client:
            for garbage in (GARBAGE, "hl_", "x", "hl_a_b_c"):
                headers = {"Accept": "application/json", **bearer(garbage)}
                answer = await client.request(endpoint.method, filled(endpoint.path), headers=headers)
                assert answer.status_code == 401, f"{endpoint.method} {endpoint.path}: {answer.status_code}"
                assert garbage not in answer.text or len(garbage) < 5
                assert untouched()
                refused += 1
    return refused
