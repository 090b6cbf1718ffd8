"""Every route of the whole server needs its right."""

import json

import httpx
import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.config.settings import Settings
from hookline.server import Caller
from hookline.server.auth import PUBLIC
from hookline.server.build import build_server
from hookline.stores.keys import RIGHTS

from ..waiting import wait_until
from .walk import Keys, bearer, client_of, walk, walk_with_garbage

PATHS = {
    "GET /healthz",
    "GET /readyz",
    "GET /metrics",
    "GET /openapi.json",
    "GET /agents",
    "POST /runs",
    "GET /runs",
    "GET /events",
    "GET /runs/{id}",
    "GET /runs/{id}/events",
    "HEAD /runs/{id}/events",
    "POST /runs/{id}/cancel",
    "POST /runs/{id}/messages",
    "GET /runs/{id}/attachments/{digest}",
    "GET /runs/{id}/explain",
    "GET /runs/{id}/verdicts",
    "GET /hooks",
    "GET /costs",
    "GET /stats",
    "GET /audit/records",
    "GET /audit/records/{id}",
    "POST /audit/verifications",
    "GET /audit/verifications/{id}",
    "POST /audit/verifications/{id}/cancel",
    "GET /recordings",
    "GET /runs/{id}/tape",
    "GET /runs/{id}/record",
    "GET /rules",
    "POST /replays",
    "GET /replays",
    "GET /replays/{id}",
    "POST /replays/{id}/cancel",
    "GET /approvals",
    "GET /approvals/{id}",
    "POST /approvals/{id}",
    "GET /halt",
    "POST /halt",
    "DELETE /halt",
    "GET /grants",
    "DELETE /grants/{id}",
    "GET /.well-known/agent-card.json",
    "POST /a2a/{agent}",
    "GET /a2a/{agent}/.well-known/agent-card.json",
    "GET /v1/models",
    "GET /v1/models/{model}",
    "POST /v1/chat/completions",
    "POST /decide",
    "GET /decide/{id}",
    "GET /decide/schema",
    "GET /decide/client.ts",
    "POST /beta/litellm_basic_guardrail_api",
}
"""All endpoints of the API. Add new ones here, after deciding who may call them."""

PAGES = {
    "GET /",
    "GET /console",
    "GET /console/now",
    "GET /console/find",
    "GET /console/static/{version}/{name}",
    "GET /console/login",
    "POST /console/login",
    "GET /console/login/{secret}",
    "POST /console/login/{secret}",
    "POST /console/logout",
    "GET /console/runs",
    "GET /console/live/frame",
    "GET /console/live/runs",
    "GET /console/blocked",
    "GET /console/live/blocked",
    "GET /console/hooks",
    "GET /console/live/hooks",
    "GET /console/cost",
    "GET /console/live/cost",
    "GET /console/runs/{id}",
    "GET /console/runs/{id}/live",
    "GET /console/runs/{id}/call",
    "GET /console/runs/{id}/text",
    "POST /console/runs/{id}/messages",
    "POST /console/runs/{id}/cancel",
    "GET /console/runs/{id}/tape",
    "GET /console/approvals",
    "GET /console/approvals/live",
    "GET /console/halt",
    "GET /console/halt/live",
    "POST /console/halt",
    "POST /console/approvals/{id}",
    "POST /console/approvals/grants/{id}/revoke",
    "GET /console/replay",
    "POST /console/replay",
    "GET /console/live/replay",
    "GET /console/replay/{id}",
    "GET /console/replay/{id}/live",
    "POST /console/replay/{id}/cancel",
    "GET /console/audit",
    "GET /console/live/audit",
    "GET /console/audit/records/{id}",
    "GET /console/audit/lines/{name}/{line}",
    "POST /console/audit/verify",
    "POST /console/audit/verify/{id}/cancel",
    "GET /console/chat",
    "GET /console/chat/stream",
    "POST /console/chat/messages",
    "POST /console/chat/decisions",
    "POST /console/chat/stop",
}
"""All endpoints of the console."""


@tool
def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@guard(BEFORE_TOOL)
def ask(ctx, payload):
    """Ask for approval of every call."""
    return HookResult.ask("May it?")


class Rig:
    """A server with a waiting run of another caller, a permission, and keys of all kinds."""

    def __init__(self, folder):
        def turn(request):
            last = request.messages[-1]
            return reply("done") if last.role == "tool" else call("delete", path=last.content)

        agent = Agent("helper", llm=ScriptedModel([turn], loop=True), tools=[delete], hooks=[ask])
        self.server = build_server(
            Settings(
                server={
                    "port": 0,
                    "rate": 1e9,
                    "burst": 1_000_000,
                    "push_hosts": ["127.0.0.1"],
                },
                runs=str(folder / "runs.db"),
                sessions=str(folder / "sessions"),
                approval_file=str(folder / "approvals.db"),
            ),
            agent,
            home=folder,
        )
        self.service, self.keys = self.server.service, Keys.of(self.server.keys)

    async def begin(self):
        await self.service.open()
        row, self.owners = self.server.keys.add("owner", RIGHTS[:3])
        owner = Caller(row.id, row.name, frozenset(RIGHTS[:3]))
        approvals = self.service.approvals
        first = await self.service.start(owner, "old.txt")
        await wait_until(lambda: approvals.rows(status="pending"))
        (row,) = approvals.rows(status="pending")
        approvals.decide(row.id, decision="approve", digest=row.digest, by="me", remember="always")
        (self.grant,) = approvals.grants()
        await self.service.wait(first.id, owner)
        self.run = await self.service.start(owner, "new.txt")
        await wait_until(lambda: approvals.rows(status="pending"))
        (self.call,) = approvals.rows(status="pending")
        await wait_until(lambda: self.service.counts()["waiting"])
        await self.service.list(owner)  # wait until everything is stored
        self.before = self.now()

    def now(self):
        """Everything that a request could change."""
        runs = [(run.id, run.status, run.last_seq) for run in self.service._store.runs(limit=100)]
        return runs, self.service.approvals.rows(limit=100), self.service.approvals.grants(), self.service.counts()

    def untouched(self):
        return self.now() == self.before

    def filled(self, path):
        id = self.grant.id if "grants" in path else self.call.id if "approvals" in path else self.run.id
        return (
            path.replace("{id}", id)
            .replace("{agent}", "helper")
            .replace("{model}", "helper")
            .replace("{digest}", "0" * 64)
        )


@pytest.fixture
async def rig(tmp_path):
    made = Rig(tmp_path)
    await made.begin()
    yield made
    await made.service.close(grace=0)
    for close in made.server._closing:
        close()


async def test_only_the_listed_endpoints_are_served(rig):
    endpoints = rig.server.endpoints()
    assert {f"{each.method} {each.path}" for each in endpoints} == PATHS | PAGES
    routes = rig.server.routes()
    assert {route.path for route in routes} == {each.path for each in endpoints} | {"/{path:path}"}
    assert routes[-1].path == "/{path:path}", "unknown paths are behind the gate too"
    public = {"/healthz", "/readyz", "/console/login", "/console/login/{secret}", "/console/static/{version}/{name}"}
    assert {each.path for each in endpoints if each.scopes == PUBLIC} == public
    async with client_of(routes) as client:
        described = (await client.get("/openapi.json", headers=bearer(rig.keys.key("read")))).json()
    assert set(described["paths"]) == {each.path for each in endpoints if each.described}
    assert {each.path for each in endpoints if not each.described} == {page.split()[1] for page in PAGES}


@pytest.mark.slow
async def test_every_route_rejects_missing_keys_and_wrong_rights(rig):
    endpoints, routes = rig.server.endpoints(), rig.server.routes()
    async with client_of(routes) as client:
        assert await walk(client, endpoints, rig.keys, rig.untouched, filled=rig.filled) > 500
    fresh = rig.server.gate.routes(endpoints)
    made = await walk_with_garbage(
        lambda n: client_of(fresh, peer=(f"10.1.{n}.1", 5000)), endpoints, rig.untouched, filled=rig.filled
    )
    assert made > 50


async def test_without_admin_a_caller_cannot_access_objects_of_others(rig):
    _, key = rig.server.keys.add("stranger", RIGHTS[:3])
    async with client_of(rig.server.routes()) as client:
        for each in rig.server.endpoints():
            if "{id}" not in each.path:
                continue
            body = {"text": "x"} if "messages" in each.path else {}
            if "approvals" in each.path:
                body = {"decision": "approve", "digest": rig.call.digest}
            answer = await client.request(each.method, rig.filled(each.path), headers=bearer(key), json=body)
            hidden = 403 if each.scopes == ("admin",) else 404  # 403 for every id, so it says nothing about this one
            assert answer.status_code == hidden, (each.method, each.path, answer.text)
            assert rig.untouched()
        for path, name in (("/runs", "runs"), ("/approvals?status=pending", "approvals"), ("/grants", "grants")):
            assert (await client.get(path, headers=bearer(key))).json()[name] == []
            assert len((await client.get(path, headers=bearer(rig.owners))).json()[name]) >= 1


METHODS = {
    "SendMessage": "run",
    "SendStreamingMessage": "run",
    "CancelTask": "run",
    "GetTask": "read",
    "ListTasks": "read",
    "SubscribeToTask": "read",
    "CreateTaskPushNotificationConfig": "run",
    "GetTaskPushNotificationConfig": "read",
    "ListTaskPushNotificationConfigs": "read",
    "DeleteTaskPushNotificationConfig": "run",
    "message/send": "run",
    "message/stream": "run",
    "tasks/cancel": "run",
    "tasks/get": "read",
    "tasks/resubscribe": "read",
    "tasks/pushNotificationConfig/set": "run",
    "tasks/pushNotificationConfig/get": "read",
    "tasks/pushNotificationConfig/list": "read",
    "tasks/pushNotificationConfig/delete": "run",
}
"""The JSON-RPC methods, and the right that each needs."""


def params(method, run_id):
    if method in ("SendMessage", "SendStreamingMessage"):
        return {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "x.txt"}]}}
    if method in ("message/send", "message/stream"):
        return {"message": {"messageId": "m", "role": "user", "parts": [{"kind": "text", "text": "x.txt"}]}}
    url = "http://127.0.0.1:9/x"
    return {
        "CreateTaskPushNotificationConfig": {"taskId": run_id, "url": url},
        "GetTaskPushNotificationConfig": {"taskId": run_id, "id": "c"},
        "ListTaskPushNotificationConfigs": {"taskId": run_id},
        "DeleteTaskPushNotificationConfig": {"taskId": run_id, "id": "c"},
        "tasks/pushNotificationConfig/set": {"taskId": run_id, "pushNotificationConfig": {"url": url}},
        "tasks/pushNotificationConfig/get": {"id": run_id, "pushNotificationConfigId": "c"},
        "tasks/pushNotificationConfig/list": {"id": run_id},
        "tasks/pushNotificationConfig/delete": {"id": run_id, "pushNotificationConfigId": "c"},
        "ListTasks": {},
    }.get(method, {"id": run_id})


async def test_every_a2a_method_needs_its_right_and_hides_tasks_of_others(rig):
    _, stranger = rig.server.keys.add("stranger", RIGHTS[:3])
    async with client_of(rig.server.routes()) as client:

        async def ask_for(method, key):
            version = {} if "/" in method else {"A2A-Version": "1.0"}
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params(method, rig.run.id)}
            answer = await client.post("/a2a/helper", json=body, headers=bearer(key) | version)
            assert answer.status_code == 200, answer.text
            text = answer.text.strip()
            return json.loads(text.partition("data: ")[2].partition("\n")[0] if "data: " in text else text)

        for method, right in METHODS.items():
            for wrong in [each for each in RIGHTS[:3] if each != right]:
                response = await ask_for(method, rig.keys.key(wrong))
                assert "error" in response, (method, wrong, response)
                assert "right" in response["error"]["message"], (method, wrong, response)
                assert rig.untouched(), (method, wrong)
            if method in ("SendMessage", "SendStreamingMessage", "message/send", "message/stream"):
                continue  # this starts a run of the other caller itself
            response = await ask_for(method, stranger)
            if method == "ListTasks":
                assert not response["result"].get("tasks"), response
            else:
                assert "error" in response, (method, response)
            assert rig.run.id not in json.dumps(response.get("result", "")), (method, response)
            assert rig.untouched(), method
            unknown = await client.post("/a2a/helper", headers=bearer(rig.keys.key("admin")), json={})
            assert unknown.status_code == 403


async def test_routes_are_protected_over_a_real_connection_too(rig):
    await rig.server._http.start()
    try:
        async with httpx.AsyncClient(base_url=rig.server.url, timeout=60) as client:
            for each in rig.server.endpoints():
                if each.scopes != PUBLIC:
                    headers = {"Accept": "application/json"}
                    answer = await client.request(each.method, rig.filled(each.path), headers=headers, content=b"{}")
                    assert answer.status_code == 401, (each.method, each.path)
            assert rig.untouched()
    finally:
        await rig.server._http.stop()
