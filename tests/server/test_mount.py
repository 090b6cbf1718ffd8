"""Agents mounted in another application: same endpoints and rights, the application's own authentication."""

import asyncio
import json
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import openai
import pytest
import uvicorn
from a2a.client import A2ACardResolver, ClientConfig, ClientFactory
from a2a.types import Message, Part, Role, SendMessageRequest
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import PlainTextResponse
from starlette.routing import Mount, Route
from starlette.testclient import TestClient

from hookline import BEFORE_LLM, Agent, ScriptedModel, call, hook, reply, tool
from hookline.config.errors import ConfigError
from hookline.config.settings import Settings
from hookline.events import RunFinished
from hookline.hooks import AuditLogHook, ObservabilityHook, RoleBasedAccessHook
from hookline.server import Caller, asgi, auth
from hookline.stores import RunStore, verify_audit
from hookline.stores.keys import KeyStore
from hookline.teams import Roster, Team

from ..waiting import wait_until
from .http_rig import events_in
from .rig import Blocker, make

pytestmark = pytest.mark.slow  # real processes and servers

ANN = Caller("ann", "Ann", {"read", "run"}, {"user_role": "editor"})
BOB = Caller("bob", scopes={"read", "run", "approve"})
LINKS = {"secret": "0123456789abcdef0123456789abcdef", "webhook": "https://chat.example.com/hook"}
ROOT = Caller("root", scopes=frozenset(auth.RIGHTS))
USERS = {"ann": ANN, "bob": BOB, "root": ROOT, "reader": Caller("reader", scopes={"read"})}


def by_header(request):
    """Trust a header, as an application behind its own gateway does."""
    return USERS.get(request.headers.get("x-user", ""))


def settings_in(folder, **server):
    return Settings(
        runs=str(folder / "runs.db"),
        sessions=str(folder / "sessions.db"),
        approval_file=str(folder / "approvals.db"),
        server={"rate": 1e9, "burst": 1_000_000, **server},
    )


def mounted(folder, agents=None, authenticate=by_header, server=None, **settings):
    given = settings_in(folder, **(server or {}))
    return asgi(agents or make(), authenticate=authenticate, settings=given, home=folder, **settings)


async def home(request):
    return PlainTextResponse("the host")


def host_of(agents, prefix="/agents", **options):
    return Starlette(routes=[Route("/", home), Mount(prefix, agents)], lifespan=agents.lifespan, **options)


@asynccontextmanager
async def listening(app):
    """Serve an application as its owner would: with uvicorn, on a real port, with its lifespan."""
    config = uvicorn.Config(app, port=0, log_config=None, lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None
    serving = asyncio.create_task(server._serve())
    await wait_until(lambda: server.started or serving.done())
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


@asynccontextmanager
async def client_of(app, user="ann", prefix="/agents", **options):
    async with listening(app) as url:
        headers = {"x-user": user} if user else {}
        async with httpx.AsyncClient(
            base_url=url + prefix, headers=headers, timeout=60, trust_env=False, **options
        ) as client:
            yield client


# The endpoints, under a prefix


async def test_runs_and_their_events_are_served_under_the_prefix_beside_the_host(tmp_path):
    async with client_of(host_of(mounted(tmp_path), "/api/agents"), prefix="/api/agents") as client:
        made = await client.post("/runs", json={"task": "hello", "wait": 30})
        assert (made.status_code, made.json()["reply"]) == (201, "done")
        assert made.headers["location"] == f"/api/agents/runs/{made.json()['id']}"
        root = str(client.base_url).replace("/api/agents/", "")
        assert (await client.get(root + made.headers["location"])).json() == made.json()
        events = events_in((await client.get(f"{root}{made.headers['location']}/events")).text)
        assert (events[0]["type"], events[-1]["type"]) == ("run_accepted", "run_closed")
        assert (await client.get(root)).text == "the host"
        assert (await client.get("/readyz")).json() == {"status": "ready"}
        missing = await client.get("/nothing")
    assert missing.status_code == 404
    assert "/api/agents/openapi.json" in missing.json()["error"]["message"]


async def test_events_arrive_while_the_run_is_running(tmp_path):
    blocker = Blocker()
    async with client_of(host_of(mounted(tmp_path, blocker.agent()))) as client:
        run = (await client.post("/runs", json={"task": "go"})).json()["id"]
        async with client.stream("GET", f"/runs/{run}/events") as stream:
            lines = []
            async for line in stream.aiter_lines():
                lines.append(line)
                if line == "event: tool_started":
                    assert (blocker.left, "event: run_closed" in lines) == (0, False)
                    blocker.open.set()
    assert (blocker.left, "event: run_closed" in lines) == (1, True)


@pytest.mark.parametrize("with_middleware", [False, True])
async def test_a_reader_that_leaves_is_noticed_also_behind_the_middleware_of_the_host(tmp_path, with_middleware):
    blocker = Blocker()
    agents = mounted(tmp_path, blocker.agent(), server={"heartbeat": 0.1})
    host = host_of(agents)
    if with_middleware:
        host.add_middleware(BaseHTTPMiddleware, dispatch=lambda request, call_next: call_next(request))
    async with client_of(host) as client:
        run = (await client.post("/runs", json={"task": "go"})).json()["id"]
        async with client.stream("GET", f"/runs/{run}/events") as stream:
            async for line in stream.aiter_lines():
                if line == "event: tool_started":
                    break
            assert agents.server.service.counts()["readers"] == 1
        await wait_until(lambda: agents.server.service.counts()["readers"] == 0)
        blocker.open.set()


async def test_the_official_openai_client_works_with_the_prefix_in_its_base_url(tmp_path):
    headers = {"x-user": "ann"}
    async with (
        listening(host_of(mounted(tmp_path))) as url,
        openai.AsyncOpenAI(base_url=f"{url}/agents/v1", api_key="-", default_headers=headers) as client,
    ):
        chat = client.chat.completions
        asked = {"model": "helper", "messages": [{"role": "user", "content": "hi"}]}
        said = await chat.create(**asked)
        streamed = await chat.create(**asked, stream=True)
        pieces = [chunk.choices[0].delta.content or "" async for chunk in streamed if chunk.choices]
    assert (said.choices[0].message.content, "".join(pieces)) == ("done", "done")


async def test_an_a2a_client_follows_the_url_in_the_agent_card(tmp_path):
    async with client_of(host_of(mounted(tmp_path))) as http:
        card = await A2ACardResolver(http, str(http.base_url).rstrip("/")).get_agent_card()
        urls = {each.url for each in card.supported_interfaces}
        assert urls == {f"{http.base_url}a2a/helper"}
        assert not card.security_schemes, "the card promises API keys, which the application does not use"
        client = ClientFactory(ClientConfig(httpx_client=http)).create(card)
        message = Message(message_id="m1", role=Role.ROLE_USER, parts=[Part(text="hello")])
        events = [each async for each in client.send_message(SendMessageRequest(message=message))]
        await client.close()
    assert "done" in str(events)


async def test_the_api_description_has_the_prefix_and_no_keys(tmp_path):
    async with client_of(host_of(mounted(tmp_path), "/x/agents"), prefix="/x/agents") as client:
        found = (await client.get("/openapi.json")).json()
    assert found["servers"] == [{"url": "/x/agents"}]
    assert "/runs" in found["paths"]
    assert "security" not in found
    assert "securitySchemes" not in found["components"]


async def test_a_public_url_wins_over_the_prefix(tmp_path):
    url = "https://agents.example.com/bots"
    async with client_of(host_of(mounted(tmp_path, server={"public_url": url}))) as client:
        assert (await client.get("/openapi.json")).json()["servers"] == [{"url": url}]
        card = (await client.get("/.well-known/agent-card.json")).json()
        made = await client.post("/runs", json={"task": "hello", "wait": 30})
    assert card["supportedInterfaces"][0]["url"] == f"{url}/a2a/helper"
    assert made.headers["location"] == f"/bots/runs/{made.json()['id']}"


async def test_a_mount_in_a_mounted_app_has_the_whole_prefix(tmp_path):
    agents = mounted(tmp_path)
    app = Starlette(routes=[Mount("/api/", host_of(agents, "/agents/"))], lifespan=agents.lifespan)
    async with client_of(app, prefix="/api/agents") as client:
        made = await client.post("/runs", json={"task": "hello", "wait": 30})
    assert made.headers["location"] == f"/api/agents/runs/{made.json()['id']}"


async def test_a_lifespan_in_a_mounted_app_is_not_run_and_the_answer_says_where_it_belongs(tmp_path):
    app = Starlette(routes=[Mount("/api", host_of(mounted(tmp_path)))])
    async with client_of(app, prefix="/api/agents") as client:
        refused = await client.post("/runs", json={"task": "hello"})
    assert refused.status_code == 503
    assert "lifespan=agents.lifespan to the outermost application" in refused.json()["error"]["message"]


@pytest.mark.parametrize("own", [False, True], ids=["unlisted", "listed by the program"])
async def test_runs_that_the_program_starts_with_a_mounted_agent_obey_the_stop_switch_of_the_list(tmp_path, own):
    hooks = [ObservabilityHook(tmp_path / "runs.db")] if own else []
    agent = Agent("bot", llm=ScriptedModel([reply("one"), reply("two")]), hooks=hooks)
    agents = mounted(tmp_path, agent)
    RunStore(tmp_path / "runs.db").halts.halt("it charges twice", by="ada")
    async with client_of(host_of(agents)):
        result = await agent.arun("Pay.")
        assert (result.status, result.stop.message) == ("stopped", "halted by ada: it charges twice")
        assert [event.result.stop.kind async for event in agent.stream("Pay.") if isinstance(event, RunFinished)] == [
            "halted"
        ]
        assert agent.model.requests == []
    assert (await agent.arun("Pay.")).reply == "one"  # the list went with the server


@pytest.mark.parametrize("named", [False, True], ids=["each personality", "as one agent"])
async def test_a_mounted_roster_obeys_it_too(tmp_path, named):
    (tmp_path / "people").mkdir()
    (tmp_path / "people" / "poet.toml").write_text('instructions = "You are the poet."\n')
    roster = Roster(Agent("bot", llm=ScriptedModel([reply("one")])), tmp_path / "people", first="poet")
    RunStore(tmp_path / "runs.db").halts.halt("it charges twice", by="ada")
    async with client_of(host_of(mounted(tmp_path, {"poets": roster} if named else roster))):
        assert (await roster.arun("Pay.")).stop.kind == "halted"


async def test_two_mounts_of_one_app_keep_their_agents_apart(tmp_path):
    first, second = tmp_path / "first", tmp_path / "second"
    first.mkdir()
    second.mkdir()
    one, two = mounted(first, make(name="one")), mounted(second, make(name="two"))

    @asynccontextmanager
    async def lifespan(app):
        async with one, two:
            yield

    app = Starlette(routes=[Mount("/one", one), Mount("/two", two)], lifespan=lifespan)
    async with client_of(app, prefix="") as client:
        made = await client.post("/one/runs", json={"task": "hello", "wait": 30})
        path = made.headers["location"]
        assert (path.startswith("/one/runs/"), made.json()["agent"]) == (True, "one")
        assert (await client.get(path)).status_code == 200
        assert (await client.get(path.replace("/one", "/two"))).status_code == 404
        assert (await client.get("/two/agents")).json()["agents"][0]["name"] == "two"


async def test_it_is_an_application_of_its_own_too(tmp_path):
    async with client_of(mounted(tmp_path), prefix="") as client:
        made = await client.post("/runs", json={"task": "hello", "wait": 30})
    assert (made.status_code, made.headers["location"]) == (201, f"/runs/{made.json()['id']}")


async def test_several_agents_are_served_by_name(tmp_path):
    agents = [make([], "first"), make([], "second")]
    async with client_of(host_of(mounted(tmp_path, agents))) as client:
        assert [each["name"] for each in (await client.get("/agents")).json()["agents"]] == ["first", "second"]
        run = (await client.post("/runs", json={"task": "hi", "agent": "second", "wait": 30})).json()
    assert (run["agent"], run["status"]) == ("second", "completed")


async def test_each_personality_of_a_roster_is_served_under_its_own_name(tmp_path):
    (tmp_path / "people").mkdir()
    for name in ("clerk", "poet"):
        (tmp_path / "people" / f"{name}.toml").write_text(f'instructions = "You are the {name}."\n')
    roster = Roster(make(), tmp_path / "people", first="poet")
    async with client_of(host_of(mounted(tmp_path, roster))) as client:
        assert [each["name"] for each in (await client.get("/agents")).json()["agents"]] == ["poet", "clerk"]
        run = (await client.post("/runs", json={"task": "hi", "agent": "clerk", "wait": 30})).json()
    assert (run["agent"], run["status"]) == ("clerk", "completed")


# Authentication by the application


class Users:
    async def __call__(self, request):
        return by_header(request)


async def later(request):
    await asyncio.sleep(0)
    return by_header(request)


@pytest.mark.parametrize("authenticate", [by_header, later, Users()], ids=["function", "coroutine", "object"])
async def test_the_application_names_the_caller_and_none_is_401(tmp_path, authenticate):
    async with client_of(host_of(mounted(tmp_path, authenticate=authenticate))) as client:
        assert (await client.get("/runs")).status_code == 200
        for path in ("/runs", "/openapi.json", "/nothing", "/v1/models", "/.well-known/agent-card.json", "/metrics"):
            refused = await client.get(path, headers={"x-user": "mallory"})
            assert (refused.status_code, refused.json()["error"]["code"]) == (401, "unauthorized"), path
        assert (await client.get("/healthz", headers={"x-user": ""})).status_code == 200


@pytest.mark.parametrize("path", ["/", "/console", "/console/inbox", "/console/login"])
async def test_a_browser_that_the_application_does_not_know_is_asked_to_log_in_there(tmp_path, path):
    async with client_of(host_of(mounted(tmp_path)), user="") as client:
        answer = await client.get(path, headers={"accept": "text/html"}, follow_redirects=True)
        assert (answer.status_code, answer.headers["content-type"]) == (401, "text/html; charset=utf-8")
        assert "This application does not know the caller: log in first." in answer.text
        assert "<form" not in answer.text


async def test_a_caller_has_the_same_rights_as_a_key(tmp_path):
    async with client_of(host_of(mounted(tmp_path))) as client:
        run = (await client.post("/runs", json={"task": "hi", "wait": 30})).json()["id"]
        statuses = {user: (await client.get(f"/runs/{run}", headers={"x-user": user})).status_code for user in USERS}
        refused = await client.post("/runs", json={"task": "hi"}, headers={"x-user": "reader"})
        assert (await client.get("/metrics")).status_code == 403
        assert (await client.get("/metrics", headers={"x-user": "root"})).status_code == 200
    assert statuses == {"ann": 200, "bob": 404, "root": 200, "reader": 404}
    assert refused.status_code == 403
    assert refused.json()["error"]["message"] == "the caller does not have the right run, which the request needs"


async def test_two_callers_with_the_same_name_for_a_conversation_do_not_share_it(tmp_path):
    helper = Agent("helper", llm=ScriptedModel([lambda request: str(len(request.messages))], loop=True))
    async with client_of(host_of(mounted(tmp_path, helper))) as client:
        task = {"task": "hello", "session": "main", "wait": 30}
        replies = [
            (await client.post("/runs", json=task, headers={"x-user": user})).json()["reply"]
            for user in ("ann", "bob", "ann")
        ]
    assert replies == ["1", "1", "3"]


async def test_the_metadata_of_the_caller_reaches_the_hooks(tmp_path):
    seen = []

    @hook(BEFORE_LLM)
    def look(ctx, request):
        seen.append(dict(ctx.state.metadata))

    agent = Agent("helper", llm=ScriptedModel([reply("done")]), hooks=[look])
    async with client_of(host_of(mounted(tmp_path, agent))) as client:
        await client.post("/runs", json={"task": "hi", "wait": 30})
    assert seen[0]["user_role"] == "editor"


async def test_a_role_that_the_application_has_taken_away_does_not_come_back_with_an_old_conversation(tmp_path):
    wiped = []

    @tool
    def wipe() -> str:
        """Wipe it."""
        wiped.append(True)
        return "wiped"

    def authenticate(request):
        role = request.headers.get("x-role")
        return Caller("ann", scopes={"run"}, metadata={"user_role": role} if role else {})

    roles = RoleBasedAccessHook({"wipe": "admin"})
    turns = [call("wipe"), reply("Tried.")]
    agent = Agent("helper", llm=ScriptedModel(turns, loop=True), tools=[wipe], hooks=[roles])
    task = {"task": "Wipe it.", "session": "main", "wait": 30}
    async with client_of(host_of(mounted(tmp_path, agent, authenticate))) as client:
        await client.post("/runs", json=task, headers={"x-role": "admin"})
        assert wiped == [True]
        await client.post("/runs", json=task)
    assert wiped == [True]


async def test_the_function_gets_the_request_with_its_host_application(tmp_path):
    seen = []

    def authenticate(request):
        seen.append((request.app.state.database, request.url.path, request.cookies.get("session")))
        return ANN

    host = host_of(mounted(tmp_path, authenticate=authenticate))
    host.state.database = "users"
    async with client_of(host, cookies={"session": "s1"}) as client:
        await client.get("/runs")
    assert seen == [("users", "/agents/runs", "s1")]


async def test_an_http_exception_of_the_application_is_the_answer(tmp_path):
    def authenticate(request):
        raise HTTPException(403, "Your subscription has ended.", {"X-Reason": "subscription"})

    async with client_of(host_of(mounted(tmp_path, authenticate=authenticate))) as client:
        refused = await client.get("/runs")
    assert (refused.status_code, refused.headers["x-reason"]) == (403, "subscription")
    assert refused.json()["error"]["message"] == "Your subscription has ended."


@pytest.mark.parametrize(
    ("returned", "problem"),
    [
        ("ann", "authenticate= returned str: return a hookline.server.Caller or None"),
        ({"id": "ann"}, "authenticate= returned dict"),
        (Caller("", scopes={"admin"}), "give it an id of its own"),
        (Caller("local", scopes={"admin"}), "give it an id of its own"),
        (RuntimeError("the database is gone"), "the database is gone"),
    ],
)
async def test_a_function_that_fails_lets_nobody_in(tmp_path, caplog, returned, problem):
    def authenticate(request):
        if isinstance(returned, Exception):
            raise returned
        return returned

    blocker = make()
    async with client_of(host_of(mounted(tmp_path, blocker, authenticate=authenticate))) as client:
        refused = await client.post("/runs", json={"task": "hi", "wait": 30})
    assert (refused.status_code, refused.json()["error"]["code"]) == (500, "internal")
    assert problem in caplog.text
    assert problem not in refused.text
    assert blocker.model.requests == []


@pytest.mark.parametrize(
    "later",
    [None, BOB, Caller("ann", scopes={"read"}), HTTPException(401), RuntimeError("the database is gone")],
    ids=["nobody", "another", "other rights", "rejected", "failed"],
)
async def test_a_stream_ends_when_the_application_no_longer_accepts_its_caller(tmp_path, monkeypatch, later):
    monkeypatch.setattr(auth, "CHECK_SECONDS", 0.0)
    named, blocker = [ANN], Blocker()

    def authenticate(request):
        if isinstance(named[0], Exception):
            raise named[0]
        return named[0]

    agents = mounted(tmp_path, blocker.agent(), authenticate=authenticate, server={"heartbeat": 0.1})
    async with client_of(host_of(agents)) as client:
        run = (await client.post("/runs", json={"task": "go"})).json()["id"]
        with pytest.raises(httpx.RemoteProtocolError):
            async with client.stream("GET", f"/runs/{run}/events") as stream:
                async for _ in stream.aiter_lines():
                    named[0] = later
        blocker.open.set()


async def test_every_decision_is_audited(tmp_path):
    log = tmp_path / "audit.jsonl"
    audit = AuditLogHook(log)
    agent = Agent("helper", llm=ScriptedModel([reply("done")]), hooks=[audit])
    async with client_of(host_of(mounted(tmp_path, agent))) as client:
        await client.post("/runs", json={"task": "hi", "wait": 30})
        await client.get("/runs", headers={"x-user": "mallory"})
    audit.log.close()
    records = [json.loads(line) for line in log.read_text().splitlines()]
    decisions = [(each.get("decision"), each.get("caller")) for each in records if each["type"] == "auth"]
    assert decisions == [("granted", "ann"), ("denied", "")]
    assert verify_audit(log).ok


async def test_without_a_function_every_caller_needs_a_key_even_from_this_machine(tmp_path):
    async with client_of(host_of(mounted(tmp_path, authenticate=None)), user="") as client:
        assert (await client.get("/runs")).status_code == 401
    keys = KeyStore(tmp_path / "keys.db")
    _, secret = keys.add("ci", ("read",))
    keys.close()
    async with client_of(host_of(mounted(tmp_path, authenticate=None)), user="") as client:
        client.headers["Authorization"] = f"Bearer {secret}"
        assert (await client.get("/runs")).status_code == 200
        assert "securitySchemes" in (await client.get("/openapi.json")).json()["components"]


# Pages of other sites


async def test_pages_of_other_sites_cannot_send_requests_with_the_users_cookie(tmp_path):
    spa = "https://app.example.com"
    async with client_of(host_of(mounted(tmp_path, server={"origins": [spa]}))) as client:
        own = str(client.base_url.copy_with(raw_path=b"")).rstrip("/")
        found = {
            origin: (await client.post("/runs", json={"task": "hi"}, headers={"origin": origin})).status_code
            for origin in (own, spa, "https://evil.example.com", "null")
        }
    assert found == {own: 202, spa: 202, "https://evil.example.com": 403, "null": 403}


@pytest.mark.parametrize(("authenticate", "cookies"), [(by_header, "true"), (None, None)])
async def test_pages_of_a_listed_origin_may_read_and_send_cookies_only_to_the_application(
    tmp_path, authenticate, cookies
):
    spa = "https://app.example.com"
    agents = mounted(tmp_path, authenticate=authenticate, server={"origins": [spa]})
    async with client_of(host_of(agents)) as client:
        asked = {"origin": spa, "access-control-request-method": "POST", "access-control-request-headers": "x-any"}
        preflight = await client.options("/runs", headers=asked)
        response = await client.get("/runs", headers={"origin": spa})
        other = await client.get("/runs", headers={"origin": "https://evil.example.com"})
    assert (preflight.status_code, preflight.headers["access-control-allow-headers"]) == (200, "x-any")
    assert response.headers["access-control-allow-origin"] == spa
    assert response.headers.get("access-control-allow-credentials") == cookies
    assert "access-control-allow-origin" not in other.headers


async def test_the_cors_middleware_of_the_application_may_stay(tmp_path):
    spa = "https://app.example.com"
    host = host_of(mounted(tmp_path, server={"origins": [spa]}))
    host.add_middleware(CORSMiddleware, allow_origins=[spa], allow_headers=["*"], allow_credentials=True)
    async with client_of(host) as client:
        response = await client.post("/runs", json={"task": "hi"}, headers={"origin": spa})
    assert (response.status_code, response.headers.get_list("access-control-allow-origin")) == (202, [spa])


async def test_long_bodies_are_rejected(tmp_path):
    async with client_of(host_of(mounted(tmp_path, server={"max_body": 1000}))) as client:
        refused = await client.post("/runs", json={"task": "x" * 2000})
    assert (refused.status_code, refused.json()["error"]["code"]) == (413, "too_long")


# Start and stop


async def test_before_the_lifespan_every_request_is_503_and_says_what_to_do(tmp_path):
    agents = mounted(tmp_path)
    async with client_of(Starlette(routes=[Mount("/agents", agents)])) as client:
        refused = await client.post("/runs", json={"task": "hi"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_started")
    assert "lifespan=agents.lifespan" in refused.json()["error"]["message"]
    assert list(tmp_path.iterdir()) == []


async def test_the_lifespan_of_the_application_can_contain_that_of_the_agents(tmp_path):
    agents, order = mounted(tmp_path), []

    @asynccontextmanager
    async def lifespan(app):
        order.append("host")
        async with agents:
            order.append(agents.server.state)
            yield
        order.append(agents.server)

    async with client_of(Starlette(routes=[Mount("/agents", agents)], lifespan=lifespan)) as client:
        assert (await client.post("/runs", json={"task": "hi", "wait": 30})).status_code == 201
    assert order == ["host", "running", None]


def test_it_can_be_started_again_and_leaves_no_hook_behind(tmp_path):
    agent = make()
    host = host_of(mounted(tmp_path, agent))
    hooks = list(agent.hooks)
    for _ in range(2):
        with TestClient(host, headers={"x-user": "ann"}) as client:
            assert client.post("/agents/runs", json={"task": "hi", "wait": 30}).status_code == 201
    assert list(agent.hooks) == hooks


async def test_it_runs_once_at_a_time(tmp_path):
    agents = mounted(tmp_path)
    async with agents:
        with pytest.raises(RuntimeError, match="run already: start them once"):
            async with agents:
                pass
        assert agents.server.state == "running"


async def test_a_run_that_does_not_finish_in_the_grace_period_is_interrupted_when_the_host_stops(tmp_path):
    blocker = Blocker()
    async with client_of(host_of(mounted(tmp_path, blocker.agent(), server={"grace": 0}))) as client:
        run = (await client.post("/runs", json={"task": "go"})).json()["id"]
        await wait_until(lambda: blocker.entered)
    async with client_of(host_of(mounted(tmp_path))) as client:
        found = (await client.get(f"/runs/{run}")).json()
    assert (found["status"], found["reason"]) == ("interrupted", "the server stopped")


async def test_a_host_stops_although_a_stream_is_open(tmp_path):
    blocker = Blocker()
    agents = mounted(tmp_path, blocker.agent(), server={"grace": 0})
    async with listening(host_of(agents)) as url:
        client = httpx.AsyncClient(base_url=url + "/agents", headers={"x-user": "ann"}, trust_env=False, timeout=60)
        run = (await client.post("/runs", json={"task": "go"})).json()["id"]
        request = client.build_request("GET", f"/runs/{run}/events")
        stream = await client.send(request, stream=True)
    assert agents.server is None
    await stream.aclose()
    await client.aclose()


# Mistakes


@pytest.mark.parametrize(
    ("agents", "options", "message"),
    [
        ([], {}, "there is no agent to serve"),
        ("helper", {}, "'helper' is not an agent or a roster"),
        ({"a": Agent}, {}, "is not an agent or a roster"),
        ([make(), make()], {}, "two agents have the same name: pass a dict"),
        ([make(), make(name="shop", deps_type=Path)], {}, "agent 'shop' needs deps of the type Path: give deps="),
        ({"team": Team([make(), make(name="shop", deps_type=Path)])}, {}, "agent 'shop' needs deps of the type Path"),
        (make(), {"authenticate": "secret"}, "authenticate= must be a function of a request"),
        (make(), {"settings": Settings(server={"origins": ["app.example.com"]})}, "origins has 'app.example.com'"),
        (make(), {"settings": Settings(server={"origins": ["*"]})}, r"origins has '\*'"),
        (make(), {"settings": Settings(server={"prot": 1})}, "Did you mean 'port'"),
        (make(), {"settings": Settings(server={"agents": ["helpr"]})}, "Did you mean 'helper'"),
        (make(), {"settings": Settings(server={"approval_links": LINKS})}, "approval_links needs server.public_url"),
    ],
)
def test_a_mistake_is_reported_when_the_app_is_made(agents, options, message):
    with pytest.raises(ConfigError, match=message):
        asgi(agents, **options)


def test_the_number_of_a_user_as_the_id_of_a_caller_is_an_error():
    with pytest.raises(ValueError, match=r"must be a text, not 5: write Caller\(str\(user.id\)"):
        Caller(5, scopes={"read"})


@pytest.mark.parametrize(
    ("scopes", "message"), [({"reed"}, "there is no right 'reed'. Did you mean 'read'"), ("read", "must be a set")]
)
def test_a_caller_with_an_unknown_right_is_an_error(scopes, message):
    with pytest.raises(ValueError, match=message):
        Caller("ann", scopes=scopes)


async def test_a_caller_of_the_application_has_no_key(tmp_path):
    async with client_of(host_of(mounted(tmp_path))) as client:
        halted = (await client.post("/halt", json={"reason": "it charges twice"}, headers={"x-user": "root"})).json()
        await client.delete("/halt", headers={"x-user": "root"})
    assert (halted["by"], halted["text"]) == ("root", "halted by root: it charges twice")
