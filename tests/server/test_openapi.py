"""The API description, and whether the server matches it for any request."""

import asyncio
import threading

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.server.auth import PUBLIC
from hookline.server.openapi import OpenApi, describe
from hookline.server.routing import Endpoint

from ..waiting import wait_until
from .http_rig import api, finished
from .rig import make

CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
    checks.negative_data_rejection,
    checks.positive_data_acceptance,
    checks.unsupported_method,
]
EXAMPLES = 8


@tool
def delete(path: str) -> str:
    """Delete a file."""
    return f"{path} is gone"


@guard(BEFORE_TOOL)
def ask(ctx, payload):
    return HookResult.ask("Really?")


def asker():
    """An agent whose calls all need approval."""
    model = ScriptedModel(
        [lambda request: reply("done") if request.messages[-1].role == "tool" else call("delete", path="a")], loop=True
    )
    return Agent("asker", llm=model, tools=[delete], hooks=[ask])


class Fuzzed:
    """A real server in its own thread, with runs and approvals."""

    def __init__(self, folder):
        self._folder, self._ready, self._stop = folder, threading.Event(), None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve()))

    async def _serve(self):
        self._loop, self._stop = asyncio.get_running_loop(), asyncio.Event()
        async with api(self._folder, make(), asker(), real=True) as served:
            client = served.client(real=True)
            run = await finished(client)
            self.ids = {"runs": [run["id"]], "approvals": [], "grants": [], "open": []}
            for _ in range(8):
                answer = await client.post("/runs", json={"task": "delete it", "agent": "asker"})
                self.ids["open"].append(answer.json()["id"])
            waiting = lambda: len(served.service.approvals.rows(status="pending")) == 8  # noqa: E731
            await wait_until(waiting)
            rows = served.service.approvals.rows()
            self.ids["approvals"] = [row.id for row in rows]
            self.digest = rows[0].digest
            served.service.approvals.decide(
                rows[0].id, decision="approve", digest=self.digest, by="x", remember="session"
            )
            self.ids["grants"] = [grant.id for grant in served.service.approvals.grants()]
            self.url, self.headers = served.url, served.headers()
            self.description = (await client.get("/openapi.json")).json()
            self._ready.set()
            await self._stop.wait()
            self.counts = served.service.counts()

    def __enter__(self):
        self._thread.start()
        assert self._ready.wait(60)
        return self

    def __exit__(self, *_):
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(60)


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Fuzzed(tmp_path_factory.mktemp("fuzzed")) as server:
        yield server
    assert server.counts["readers"] == 0


def known(server, path):
    """Existing ids for a path."""
    if path.startswith("/runs/"):
        return server.ids["open" if path.endswith(("cancel", "messages")) else "runs"]
    return server.ids.get(path.split("/")[1], ["decision_unknown"])


OPERATIONS = [
    ("POST", "/runs"),
    ("GET", "/runs"),
    ("GET", "/runs/{id}"),
    ("POST", "/runs/{id}/cancel"),
    ("POST", "/runs/{id}/messages"),
    ("GET", "/runs/{id}/attachments/{digest}"),
    ("GET", "/runs/{id}/events"),
    ("HEAD", "/runs/{id}/events"),
    ("GET", "/runs/{id}/verdicts"),
    ("GET", "/hooks"),
    ("GET", "/costs"),
    ("GET", "/stats"),
    ("GET", "/agents"),
    ("GET", "/approvals"),
    ("GET", "/approvals/{id}"),
    ("POST", "/approvals/{id}"),
    ("GET", "/grants"),
    ("DELETE", "/grants/{id}"),
    ("POST", "/decide"),
    ("GET", "/decide/{id}"),
    ("GET", "/decide/schema"),
    ("GET", "/decide/client.ts"),
    ("POST", "/beta/litellm_basic_guardrail_api"),
    ("GET", "/openapi.json"),
]
ENDLESS = ("GET", "/events")
"""A stream that ends only with its client, which the fuzzer never does."""


@pytest.mark.slow
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_every_response_matches_the_description(server, method, path):
    import requests

    schema = schemathesis.openapi.from_dict(server.description)
    operation = schema[path][method]
    modes = schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE
    decides = (method, path) == ("POST", "/approvals/{id}")  # a valid decision may come too late, or not match the call
    checked = [check for check in CHECKS if check is not checks.positive_data_acceptance or not decides]
    negatable = bool(operation.body or operation.query or operation.headers)
    session = requests.Session()
    session.trust_env = False

    @seed(7)
    @settings(
        max_examples=EXAMPLES,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.explicit, Phase.generate),
    )
    @given(st.data())
    def fuzz(data):
        mode = data.draw(st.sampled_from(modes if negatable else modes[:1]))
        case = data.draw(operation.as_strategy(mode))
        if "{id}" in path and data.draw(st.booleans()):
            case.path_parameters["id"] = data.draw(st.sampled_from(known(server, path)))
        if mode is modes[0] and isinstance(case.body, dict):
            case.body.pop("attachments", None)  # the description cannot say which contents are files of their type
        if decides and mode is modes[0] and data.draw(st.booleans()):
            case.body["digest"] = server.digest
        answer = case.call_and_validate(server.url, session, headers=server.headers, checks=checked, timeout=60)
        assert answer.status_code != 429, "later checks would be skipped"

    with session:
        fuzz()


def test_every_described_operation_is_fuzzed(server):
    found = [(method.upper(), path) for path, ways in server.description["paths"].items() for method in ways]
    assert sorted(found) == sorted([*OPERATIONS, ENDLESS])


def parts_of(value):
    """Every object in a document."""
    if isinstance(value, dict):
        yield value
        for each in value.values():
            yield from parts_of(each)
    elif isinstance(value, list):
        for each in value:
            yield from parts_of(each)


def test_the_description_is_a_valid_openapi_document(server):
    document = server.description
    for part in parts_of(document):
        if "$ref" in part:
            found = document
            for name in part["$ref"].removeprefix("#/").split("/"):
                found = found[name]
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    names = [operation["operationId"] for operation in operations]
    assert len(set(names)) == len(names)
    for schema in document["components"]["schemas"].values():
        Draft202012Validator.check_schema(schema)
        assert "``" not in schema.get("description", "")
    assert document["security"] == [{"bearer": []}, {"key": []}]
    assert all({"401", "403", "429", "500", "503"} <= operation["responses"].keys() for operation in operations)
    bodies = [operation["responses"].keys() for operation in operations if "requestBody" in operation]
    assert bodies
    assert all({"400", "408", "413", "415", "422"} <= responses for responses in bodies)


def test_a_stream_is_described_with_its_json_alternative(server):
    answers = server.description["paths"]["/runs/{id}/events"]["get"]["responses"]
    assert answers["200"]["content"].keys() == {"text/event-stream", "application/json"}
    assert "204" in answers


async def test_public_endpoints_and_endpoints_without_types_are_described():
    async def nothing(request):
        raise NotImplementedError

    table = [
        Endpoint("GET", "/healthz", nothing, PUBLIC, "health"),
        Endpoint("POST", "/a2a/{agent}", nothing, ("run",), "a2a", body=dict),
        Endpoint("GET", "/metrics", nothing, ("admin",), "metrics", media="text/plain"),
    ]
    made = describe(table, url="https://agents.example.com")
    assert made["servers"] == [{"url": "https://agents.example.com"}]
    paths = made["paths"]
    assert paths["/healthz"]["get"]["security"] == []
    assert not {"401", "403"} & paths["/healthz"]["get"]["responses"].keys()
    assert paths["/a2a/{agent}"]["post"]["parameters"][0]["name"] == "agent"
    assert "text/plain" in paths["/metrics"]["get"]["responses"]["200"]["content"]
    assert "openapi" in {endpoint.name for endpoint in OpenApi(lambda: table).endpoints()}
