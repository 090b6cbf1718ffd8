"""What clients of OpenAI's API expect beyond its methods, of the server that ``hookline serve`` starts."""

from contextlib import asynccontextmanager

import httpx
import openai
import pytest

from hookline import Agent, ScriptedModel, reply
from hookline.config import Settings
from hookline.server import build_server

PAGE = "https://chat.example.com"
PNG = "data:image/png;base64,iVBORw0KGgo="
COMPLETIONS = "/v1/chat/completions"


@asynccontextmanager
async def served(folder, **options):
    """A server and an HTTP client for it."""
    agent = Agent("helper", llm=ScriptedModel([reply("seen")], loop=True))
    files = {"runs": folder / "runs.db", "sessions": folder / "sessions", "approval_file": folder / "approvals.db"}
    paths = {name: str(path) for name, path in files.items()}
    server = build_server(Settings(**paths, server={"port": 0, "grace": 1, **options}), agent)
    await server.start()
    try:
        async with httpx.AsyncClient(base_url=server.url, verify=False, timeout=60) as http:
            yield http, agent.model
    finally:
        await server.stop()


def task(content="Hi."):
    return {"model": "helper", "messages": [{"role": "user", "content": content}]}


async def test_a_message_may_have_only_an_image(tmp_path):
    async with served(tmp_path) as (http, model):
        answer = await http.post(COMPLETIONS, json=task([{"type": "image_url", "image_url": {"url": PNG}}]))
        assert answer.json()["choices"][0]["message"]["content"] == "seen"
        (request,) = model.requests
        assert (request.messages[-1].content, request.messages[-1].attachments[0].media_type) == ("", "image/png")
        empty = await http.post(COMPLETIONS, json=task([{"type": "text", "text": " "}]))
        assert (empty.status_code, empty.json()["error"]["param"]) == (400, "messages[0].content")


async def test_every_error_below_v1_has_the_fields_that_clients_read(tmp_path):
    async with served(tmp_path, max_body=1000) as (http, _):
        for method, path, body, status, code in (
            ("POST", "/v1/embeddings", {}, 404, "not_found"),
            ("GET", "/v1", None, 404, "not_found"),
            ("GET", "/v1/models/nobody", None, 404, "model_not_found"),
            ("GET", COMPLETIONS, None, 405, "method_not_allowed"),
            ("POST", COMPLETIONS, {"model": "helper"}, 400, "invalid_request"),
            ("POST", COMPLETIONS, task("x" * 2000), 413, "too_long"),
        ):
            answer = await http.request(method, path, json=body)
            error = answer.json()["error"]
            assert (answer.status_code, error["code"]) == (status, code)
            assert set(error) == {"message", "type", "param", "code"}
            assert error["type"] == "invalid_request_error"


async def test_rejections_of_hosts_and_origins_below_v1_have_the_fields_and_the_request_id(tmp_path):
    async with served(tmp_path) as (http, _):
        for headers, status, code in (
            ({"Origin": PAGE}, 403, "other_origin"),
            ({"Host": "evil.example"}, 421, "unknown_host"),
            ({"Host": "a@b"}, 400, "bad_host"),
        ):
            answer = await http.post(COMPLETIONS, json=task(), headers={**headers, "X-Request-ID": "mine"})
            error = answer.json()["error"]
            assert (answer.status_code, error["code"], set(error)) == (
                status,
                code,
                {"message", "type", "param", "code"},
            )
            assert answer.headers["x-request-id"] == answer.headers["x-correlation-id"] == "mine"
            elsewhere = await http.post("/runs", json={}, headers=headers)
            assert (elsewhere.status_code, set(elsewhere.json()["error"])) == (status, {"message", "code"})
            assert elsewhere.headers["x-request-id"] != ""
            page = await http.post("/console/halt", headers=headers)
            assert (page.status_code, page.headers["content-type"]) == (status, "text/html; charset=utf-8")


async def test_every_response_names_its_request_for_clients(tmp_path):
    async with served(tmp_path, max_body=1000) as (http, _):
        for path, body in ((COMPLETIONS, task()), ("/v1/nothing", {}), (COMPLETIONS, task("x" * 2000))):
            answer = await http.post(path, json=body)
            assert answer.headers["x-request-id"] == answer.headers["x-correlation-id"] != ""
            own = await http.post(path, json=body, headers={"X-Request-ID": "mine"})
            assert own.headers["x-request-id"] == "mine"
        async with openai.AsyncOpenAI(base_url=str(http.base_url.join("/v1")), api_key="x", max_retries=0) as client:
            completion = await client.chat.completions.create(**task())
            assert completion._request_id


async def test_an_address_with_a_slash_at_its_end_is_the_same(tmp_path):
    async with served(tmp_path) as (http, _):
        assert (await http.post(f"{COMPLETIONS}/", json=task())).status_code == 200
        assert (await http.get("/v1/models/")).json()["data"][0]["id"] == "helper"
        assert (await http.get("/v1/models/helper/")).json()["id"] == "helper"


async def test_pages_of_listed_origins_may_call_the_server_and_read_its_answers_and_others_may_not(tmp_path):
    preflight = {
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization,x-stainless-os",
    }
    async with served(tmp_path, origins=[PAGE]) as (http, _):
        asked = await http.options(COMPLETIONS, headers={"Origin": PAGE, **preflight})
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == PAGE
        assert asked.headers["access-control-allow-headers"] == "authorization,x-stainless-os"
        answer = await http.post(COMPLETIONS, json=task(), headers={"Origin": PAGE})
        assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (200, PAGE)
        assert {"X-Request-ID", "X-Hookline-Run"} <= set(answer.headers["access-control-expose-headers"].split(", "))
        assert "access-control-allow-credentials" not in answer.headers, "the login cookie is for our own pages"
        wrong = await http.post(COMPLETIONS, json={}, headers={"Origin": PAGE})
        assert (wrong.status_code, wrong.headers["access-control-allow-origin"]) == (400, PAGE)
        for origin in ("https://evil.example.com", "null", f"{PAGE}.evil.example.com"):
            asked = await http.options(COMPLETIONS, headers={"Origin": origin, **preflight})
            assert "access-control-allow-origin" not in asked.headers
            assert (await http.post(COMPLETIONS, json=task(), headers={"Origin": origin})).status_code == 403


async def test_without_the_setting_no_page_of_another_origin_may_call_the_server(tmp_path):
    async with served(tmp_path) as (http, _):
        refused = await http.post(COMPLETIONS, json=task(), headers={"Origin": PAGE})
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "other_origin")
        read = await http.get("/v1/models", headers={"Origin": PAGE})
        assert "access-control-allow-origin" not in read.headers


@pytest.mark.parametrize("origin", ["*", "chat.example.com", "https://chat.example.com/", "https://Chat.example.com"])
def test_a_value_that_is_no_origin_is_an_error(origin, tmp_path):
    with pytest.raises(Exception, match="an origin is a scheme and a host in lower case"):
        build_server(Settings(server={"origins": [origin]}), Agent("helper", llm=ScriptedModel([])))
