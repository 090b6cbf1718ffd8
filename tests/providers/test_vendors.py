"""Models by the name of their vendor, against local servers that behave like each vendor."""

import json
import os
import re
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hookline import Agent, Attachment, Message, ModelRequest, RegistrationError, get_model, tool
from hookline.events import TextDelta
from hookline.models import (
    AuthError,
    BadRequestError,
    ContextOverflowError,
    ModelResponse,
    OverloadedError,
    Price,
    ProviderError,
    RateLimitError,
    UnknownModelError,
    UnreachableError,
)
from hookline.payloads import ToolCall, ToolSpec, Usage
from hookline.providers import remote
from hookline.providers.apis.compatible import CompatibleApi, Quirks, short_id
from hookline.providers.vendors import VENDORS

from .conftest import KEY
from .servers import Said, sse, whole

USAGE = {"prompt_tokens": 1000, "completion_tokens": 10}
KEYED = [name for name, vendor in VENDORS.items() if not vendor.is_local and name not in ("vertex", "azure")]
LOCAL = [name for name, vendor in VENDORS.items() if vendor.is_local]
SIMPLE = [*KEYED, *LOCAL]
SOME = pytest.mark.parametrize(
    "vendor", ["groq", *(pytest.param(name, marks=pytest.mark.slow) for name in ("gemini", "mistral", "ollama"))]
)


def completion(content="Hi.", calls=(), finish="stop", usage=USAGE, **message):
    made = {"role": "assistant", "content": content, **message}
    if calls:
        made["tool_calls"] = list(calls)
        finish = "tool_calls"
    return {"model": "m-1", "choices": [{"index": 0, "message": made, "finish_reason": finish}], "usage": usage}


def called(id="call_0123456789", name="add", arguments='{"a": 1}', **extra):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}, **extra}


def chunk(finish=None, usage=None, **delta):
    return {"model": "m-1", "choices": [{"index": 0, "delta": delta, "finish_reason": finish}], "usage": usage}


def model_of(vendor, script, **options):
    return get_model(f"{vendor}:m-1", **{"base_url": script.url, "api_key": KEY, "max_retries": 0, **options})


ASKED = ModelRequest((Message("user", "Hi."),))
HISTORY = (
    Message("user", "1 + 2?"),
    Message("assistant", "", (ToolCall("call_0123456789", "add", {"a": 1}),)),
    Message("tool", "3", call_id="call_0123456789"),
)
ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}})
SUB = ToolSpec("sub", "Subtract.", {"type": "object", "properties": {}})


async def streamed(model, request=ASKED):
    *pieces, last = [piece async for piece in model.stream(request)]
    return "".join(pieces), last


# Every vendor


@pytest.mark.parametrize("vendor", SIMPLE)
async def test_a_request_goes_to_the_vendor_with_its_key_and_the_reply_has_its_name(vendor, script, monkeypatch):
    monkeypatch.setenv(VENDORS[vendor].keys[-1], KEY)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-of-openai")
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-openai")
    script.say(whole(completion()))
    got = await get_model(f"{vendor}:m-1", base_url=f"{script.url}/v1").complete(ASKED)
    ((path, headers, body),) = script.requests
    assert (path, headers["authorization"], body["model"]) == ("/v1/chat/completions", f"Bearer {KEY}", "m-1")
    assert headers.get("openai-organization") is None
    assert (got.content, got.provider, got.model, got.usage) == ("Hi.", vendor, "m-1", Usage(1000, 10))


@pytest.mark.parametrize("vendor", ["gemini", "mistral", "openrouter", "vllm"])
async def test_a_streamed_reply_is_the_same_as_a_whole_one(vendor, script):
    model = model_of(vendor, script)
    first = {"index": 0, "id": "abcdefghi", "function": {"name": "add", "arguments": '{"a"'}}
    rest = {"index": 0, "function": {"arguments": ": 1}"}}
    script.say(
        sse(
            chunk(role="assistant", content="H"),
            chunk(content="i."),
            chunk(tool_calls=[first]),
            chunk(tool_calls=[rest]),
            chunk("tool_calls", USAGE),
            done=True,
        ),
        whole(completion(calls=[called("abcdefghi")])),
    )
    text, last = await streamed(model)
    assert (text, last) == ("Hi.", await model.complete(ASKED))
    assert last.tool_calls == (ToolCall("abcdefghi", "add", {"a": 1}),)


@pytest.mark.parametrize("vendor", SIMPLE)
def test_the_address_is_that_of_the_vendor_or_of_an_environment_variable(vendor, monkeypatch):
    assert get_model(f"{vendor}:m", api_key=KEY).base_url == VENDORS[vendor].url
    monkeypatch.setenv(f"{vendor.upper()}_BASE_URL", "http://127.0.0.1:9/v1")
    assert get_model(f"{vendor}:m", api_key=KEY).base_url == "http://127.0.0.1:9/v1"


@pytest.mark.parametrize("vendor", KEYED)
def test_a_missing_key_is_reported_with_its_variable_when_the_agent_is_made(vendor):
    with pytest.raises(AuthError, match=f"no key for {vendor}: set {VENDORS[vendor].keys[0]}"):
        Agent("a", llm=f"{vendor}:m")


@pytest.mark.parametrize("vendor", LOCAL)
def test_a_server_on_this_machine_needs_no_key(vendor):
    assert Agent("a", llm=f"{vendor}:m").model.provider == vendor


@pytest.mark.parametrize("vendor", SIMPLE)
def test_a_bad_address_or_a_missing_name_is_reported_when_the_model_is_made(vendor):
    with pytest.raises(RegistrationError, match="base_url= must be a URL such as .* not 'localhost:11434'"):
        get_model(f"{vendor}:m", api_key=KEY, base_url="localhost:11434")
    with pytest.raises(RegistrationError, match=f"a model of {vendor} needs a name: write {vendor}:NAME"):
        get_model(f"{vendor}:", api_key=KEY)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("grog:x", "Did you mean 'groq'?"),
        ("grok:x", "Did you mean 'xai'?"),
        ("google:x", "Did you mean 'gemini'?"),
        ("misral:x", "Did you mean 'mistral'?"),
        ("LM-Studio:x", "Did you mean 'lmstudio'?"),
        ("olama:x", "Did you mean 'ollama'?"),
        ("claude:x", "Did you mean 'anthropic'?"),
        ("open-router:x", "Did you mean 'openrouter'?"),
    ],
)
def test_a_misspelt_vendor_is_an_error_with_a_suggestion(name, hint):
    with pytest.raises(RegistrationError) as problem:
        get_model(name)
    assert hint in str(problem.value)
    assert "groq:NAME" in str(problem.value)


def test_an_option_of_another_vendor_is_an_error():
    with pytest.raises(RegistrationError, match="a 'groq' model has no option region; it has: base_url, api_key"):
        get_model("groq:m", region="eu")


# Replies that no server should send


PAGE = Said([b"<!doctype html><html><body>Welcome</body></html>"], headers={"Content-Type": "text/html"})
BAD = {
    "a web page": (PAGE, UnreachableError),
    "a web page as an error": (Said(PAGE.chunks, 502, PAGE.headers), OverloadedError),
    "no JSON": (Said([b"{"], headers={"Content-Type": "application/json"}), UnreachableError),
    "a list": (whole([]), UnreachableError),
    "nothing": (Said([]), UnreachableError),
    "no choices": (whole({"choices": []}), OverloadedError),
    "an error with status 200": (whole({"error": {"message": "Slow down", "code": 429}}), RateLimitError),
    "an error as a text with status 200": (whole({"error": "Out of order"}), ProviderError),
    "a choice of a wrong type": (whole({"choices": ["Hi."]}), OverloadedError),
    "a text of a wrong type": (whole(completion({"text": 3})), None),
    "calls of a wrong type": (whole(completion("", calls=["add"])), OverloadedError),
    "a number as the id": (whole(completion("", calls=[called(7)])), OverloadedError),
}


@SOME
@pytest.mark.parametrize("bad", BAD)
async def test_a_malformed_reply_is_one_of_our_errors(vendor, bad, script):
    turn, kind = BAD[bad]
    script.say(turn)
    if kind is None:
        assert isinstance(await model_of(vendor, script).complete(ASKED), ModelResponse)
        return
    with pytest.raises(kind, match=vendor):
        await model_of(vendor, script).complete(ASKED)


@SOME
@pytest.mark.parametrize(
    ("turn", "kind"),
    [
        (PAGE, UnreachableError),
        (sse(chunk(content="Hi")), OverloadedError),
        (sse(chunk(content="Hi"), cut=True), UnreachableError),
        (sse({"choices": "none"}), OverloadedError),
        (sse(chunk(tool_calls=["add"])), OverloadedError),
        (sse(done=True), OverloadedError),
    ],
    ids=["a web page", "truncated", "cut off", "wrong type", "wrong call", "empty"],
)
async def test_a_malformed_stream_is_one_of_our_errors(vendor, turn, kind, script):
    script.say(turn)
    with pytest.raises(kind, match=vendor):
        await streamed(model_of(vendor, script))


@SOME
async def test_a_reply_that_does_not_end_is_an_error(vendor, script, monkeypatch):
    monkeypatch.setattr(remote, "MAX_REPLY_BYTES", 10_000)
    script.say(Said([b" " * 1000] * 11, headers={"Content-Type": "application/json"}))
    script.say(sse(*[chunk(content="and so on ")] * 200))
    with pytest.raises(UnreachableError, match=rf"{vendor} at .*its reply is longer than 10,000 bytes"):
        await model_of(vendor, script).complete(ASKED)
    with pytest.raises(UnreachableError, match=rf"{vendor} at .*its reply is longer than 10,000 bytes"):
        await streamed(model_of(vendor, script))


# Errors, as each vendor sends them


ERRORS = [
    (
        "gemini",
        400,
        [{"error": {"code": 400, "message": "API key not valid. Please pass a valid API key.", "status": "INVALID"}}],
        AuthError,
        "Set GEMINI_API_KEY to a valid key",
    ),
    ("gemini", 404, [{"error": {"code": 404, "message": "models/x is not found"}}], UnknownModelError, "no model"),
    ("gemini", 429, [{"error": {"code": 429, "message": "Resource exhausted"}}], RateLimitError, "exhausted"),
    ("xai", 400, {"code": "invalid", "error": "Incorrect API key provided: xa***."}, AuthError, "Set XAI_API_KEY"),
    ("mistral", 401, {"detail": "Unauthorized"}, AuthError, "Unauthorized. Set MISTRAL_API_KEY"),
    (
        "mistral",
        422,
        {"object": "error", "message": {"detail": [{"loc": ["body", "n"], "msg": "Extra inputs are not permitted"}]}},
        BadRequestError,
        "Extra inputs are not permitted",
    ),
    (
        "groq",
        400,
        {"error": {"message": "Failed to call a function.", "type": "invalid", "code": "tool_use_failed"}},
        OverloadedError,
        "Failed to call a function",
    ),
    ("deepseek", 402, {"error": {"message": "Insufficient Balance"}}, AuthError, "Add credit"),
    ("openrouter", 200, {"error": {"code": 429, "message": "Slow down"}}, RateLimitError, "Slow down"),
    (
        "openrouter",
        200,
        {"choices": [{"error": {"code": 502, "message": "Upstream failed"}, "finish_reason": "error"}]},
        OverloadedError,
        "Upstream failed",
    ),
    (
        "ollama",
        404,
        {"error": {"message": "model 'm-1' not found", "type": "not_found_error", "code": None}},
        UnknownModelError,
        "model 'm-1' not found",
    ),
    (
        "vllm",
        400,
        {"object": "error", "message": "This model's maximum context length is 8 tokens.", "code": 400},
        ContextOverflowError,
        "Shorten the history",
    ),
    ("lmstudio", 400, {"error": "Model unloaded."}, BadRequestError, "Model unloaded"),
    ("fireworks", 404, {"error": {"object": "error", "message": "Model not found"}}, UnknownModelError, "Check the"),
    ("together", 503, {"error": {"message": "overloaded", "type": "server_error"}}, OverloadedError, "Try again"),
]


@pytest.mark.parametrize(("vendor", "status", "body", "kind", "text"), ERRORS)
async def test_an_error_of_the_vendor_is_one_of_ours_without_the_key(vendor, status, body, kind, text, script):
    script.say(whole(body, status))
    with pytest.raises(kind) as problem:
        await model_of(vendor, script).complete(ASKED)
    assert text in str(problem.value)
    assert str(problem.value).startswith((vendor, "the request is too long for 'm-1' of vllm"))
    assert KEY not in str(problem.value)


async def test_an_error_in_the_middle_of_a_stream_ends_it(script):
    error = {"error": {"code": 429, "message": "Slow down"}, **chunk("error")}
    script.say(sse(chunk(content="Hi"), error))
    with pytest.raises(RateLimitError, match="Slow down"):
        await streamed(model_of("openrouter", script))


# Quirks, each with a server that insists on it


async def test_mistral_gets_no_unknown_parameter_and_ids_of_nine_characters(script):
    def strict(body):
        known = {"model", "messages", "tools", "tool_choice", "max_tokens", "random_seed", "stream", "temperature"}
        ids = re.findall(r'"(?:id|tool_call_id)": "([^"]*)"', json.dumps(body["messages"]))
        if set(body) - known or not all(re.fullmatch(r"[a-zA-Z0-9]{9}", id) for id in ids):
            return whole({"object": "error", "message": f"{set(body) - known} {ids}"}, 422)
        return sse(chunk("model_length", USAGE, content="3"), done=True) if body.get("stream") else whole(completion())

    script.say(strict)
    model = model_of("mistral", script)
    request = ModelRequest(HISTORY, tools=(ADD,), params={"seed": 1, "max_tokens": 5})
    text, last = await streamed(model, request)
    assert (text, last.finish_reason, last.usage) == ("3", "length", Usage(1000, 10))
    await model.complete(request)
    assert script.bodies[0]["random_seed"] == 1
    id = script.bodies[0]["messages"][2]["tool_call_id"]
    assert id == script.bodies[0]["messages"][1]["tool_calls"][0]["id"] == short_id("call_0123456789")
    assert short_id("abcdefghi") == "abcdefghi"


async def test_a_text_in_parts_is_joined_without_the_thoughts(script):
    parts = [{"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, {"type": "text", "text": "Hi."}]
    script.say(whole(completion(parts)))
    assert (await model_of("mistral", script).complete(ASKED)).content == "Hi."


@pytest.mark.parametrize(("vendor", "name"), [("groq", "max_completion_tokens"), ("together", "max_tokens")])
async def test_the_limit_of_a_reply_has_the_name_that_the_vendor_knows(vendor, name, script):
    script.say(whole(completion()))
    await model_of(vendor, script).complete(ModelRequest(ASKED.messages, params={"max_tokens": 5}))
    assert script.bodies[0][name] == 5


async def test_groq_reports_the_usage_of_a_stream_in_a_field_of_its_own(script):
    script.say(sse(chunk(content="Hi."), {**chunk("stop"), "usage": None, "x_groq": {"usage": USAGE}}, done=True))
    _, last = await streamed(model_of("groq", script))
    assert last.usage.output_tokens == 10


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("vendor", ["gemini", "vertex"])
async def test_gemini_gets_its_signature_back_with_the_call(vendor, streams, script, tmp_path, monkeypatch, google):
    def signed(body):
        for message in body["messages"]:
            calls = message.get("tool_calls") or []
            if calls and not calls[0].get("extra_content", {}).get("google", {}).get("thought_signature"):
                return whole([{"error": {"code": 400, "message": "missing a thought_signature"}}], 400)
        if body["messages"][-1]["role"] == "tool":
            return sse(chunk("stop", USAGE, content="3"), done=True) if body.get("stream") else whole(completion("3"))
        call = called(extra_content={"google": {"thought_signature": "sig-1"}})
        if body.get("stream"):
            return sse(chunk(tool_calls=[{"index": 0, **call}]), chunk("stop", USAGE), done=True)
        return whole(completion("", [call]))

    @tool
    def add(a: int) -> str:
        """Add."""
        return "3"

    script.say(signed)
    options = {} if vendor == "vertex" else {"api_key": KEY}
    model = get_model(f"{vendor}:m-1", base_url=script.url, max_retries=0, **options)
    agent = Agent("a", llm=model, tools=[add], stream="live")
    if streams:
        shown = [event.text async for event in agent.stream("1 + 2?") if isinstance(event, TextDelta)]
    else:
        shown = [(await agent.arun("1 + 2?")).reply]
    assert shown == ["3"]
    sent = script.bodies[1]["messages"][-2]["tool_calls"][0]
    assert sent["extra_content"] == {"google": {"thought_signature": "sig-1"}}
    # A call from elsewhere, such as a stored conversation with another model, says that it has no signature.
    await model.complete(ModelRequest(HISTORY))
    sent = script.bodies[-1]["messages"][1]["tool_calls"][0]
    assert sent["extra_content"]["google"]["thought_signature"] == (
        "skip_thought_signature_validator" if sent["id"] != "call_0123456789" else "sig-1"
    )


async def test_a_call_without_a_signature_says_so(script):
    script.say(whole(completion()))
    await model_of("gemini", script).complete(ModelRequest(HISTORY))
    sent = script.bodies[0]["messages"][1]["tool_calls"][0]
    assert sent["extra_content"] == {"google": {"thought_signature": "skip_thought_signature_validator"}}


@pytest.mark.parametrize("streams", [False, True])
async def test_deepseek_gets_the_reasoning_before_a_call_back(streams, script):
    call = called("call_r")
    if streams:
        parts = (
            {"reasoning_content": "One and "},
            {"reasoning_content": "two."},
            {"tool_calls": [{"index": 0, **call}]},
        )
        script.say(sse(*(chunk(**part) for part in parts), chunk("tool_calls", USAGE), done=True), whole(completion()))
    else:
        script.say(whole(completion("", [call], reasoning_content="One and two.")), whole(completion()))
    model = model_of("deepseek", script)
    first = (await streamed(model))[1] if streams else await model.complete(ASKED)
    assert (first.content, first.tool_calls[0].id) == ("", "call_r")
    history = (Message("user", "?"), Message("assistant", "", first.tool_calls), Message("tool", "3", call_id="call_r"))
    await model.complete(ModelRequest(history))
    assert script.bodies[1]["messages"][1]["reasoning_content"] == "One and two."


async def test_deepseek_gets_a_schema_as_instructions_and_reports_its_cache(script):
    script.say(whole(completion('{"a": 1}', usage={**USAGE, "prompt_cache_hit_tokens": 600})))
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}}
    got = await model_of("deepseek", script).complete(ModelRequest(ASKED.messages, response_format=schema))
    body = script.bodies[0]
    assert body["response_format"] == {"type": "json_object"}
    assert '"properties":{"a":{"type":"integer"}}' in body["messages"][0]["content"].replace(" ", "")
    assert got.usage == Usage(1000, 10, 600)


async def test_openrouter_reports_the_cost_and_gets_the_reasoning_back(script):
    details = [{"type": "reasoning.encrypted", "data": "xyz"}]
    script.say(whole(completion("", [called("c1")], reasoning_details=details, usage={**USAGE, "cost": 0.0123})))
    model = model_of("openrouter", script)
    got = await model.complete(ASKED)
    assert got.cost == 0.0123
    await model.complete(ModelRequest((Message("user", "?"), Message("assistant", "", got.tool_calls))))
    assert script.bodies[1]["messages"][1]["reasoning_details"] == details


@pytest.mark.parametrize("cost", [-1, "much", None, True])
async def test_a_cost_that_is_none_is_ignored(cost, script):
    script.say(whole(completion(usage={**USAGE, "cost": cost})))
    assert (await model_of("openrouter", script).complete(ASKED)).cost is None


async def test_lm_studio_gets_a_named_choice_as_the_only_tool(script):
    def strict(body):
        if not isinstance(body.get("tool_choice"), str):
            return whole({"error": "Invalid tool_choice type: 'object'."}, 400)
        return whole(completion("", [called()]))

    script.say(strict)
    request = ModelRequest(ASKED.messages, tools=(ADD, SUB), tool_choice="sub")
    await model_of("lmstudio", script).complete(request)
    assert [each["function"]["name"] for each in script.bodies[0]["tools"]] == ["sub"]
    assert script.bodies[0]["tool_choice"] == "required"


async def test_together_ends_a_text_in_its_own_words(script):
    script.say(whole(completion(finish="eos")))
    assert (await model_of("together", script).complete(ASKED)).finish_reason == "stop"


def test_the_fields_to_send_back_are_kept_for_a_limited_number_of_calls(monkeypatch):
    monkeypatch.setattr("hookline.providers.apis.compatible.MAX_REMEMBERED", 2)
    api = CompatibleApi(Quirks(echo=("reasoning_content",)))
    for id in ("a", "b", "c"):
        api.read(completion("", [called(id)], reasoning_content=f"because {id}"))
    assert list(api._remembered) == ["b", "c"]


# Azure


@pytest.mark.parametrize("suffix", ["", "/", "/openai", "/openai/v1"])
async def test_azure_takes_the_endpoint_of_a_resource_and_the_name_of_a_deployment(suffix, script, monkeypatch):
    monkeypatch.setenv("AZURE_OPENAI_ENDPOINT", script.url + suffix)
    monkeypatch.setenv("AZURE_OPENAI_API_KEY", KEY)
    script.say(whole(completion()))
    got = await get_model("azure:my-deployment").complete(ModelRequest(ASKED.messages, params={"max_tokens": 5}))
    ((path, headers, body),) = script.requests
    assert (path, headers["api-key"]) == ("/openai/v1/chat/completions", KEY)
    assert (body["model"], body["max_completion_tokens"], got.provider) == ("my-deployment", 5, "azure")


def test_azure_without_an_endpoint_or_a_key_says_what_to_set(monkeypatch):
    with pytest.raises(RegistrationError, match="set AZURE_OPENAI_ENDPOINT, or pass base_url="):
        get_model("azure:d", api_key=KEY)
    with pytest.raises(AuthError, match="set AZURE_OPENAI_API_KEY"):
        get_model("azure:d", base_url="https://x.openai.azure.com")


# Ollama


@pytest.mark.parametrize(
    ("host", "url"),
    [
        ("192.168.1.5", "http://192.168.1.5:11434/v1"),
        ("0.0.0.0:8000", "http://127.0.0.1:8000/v1"),
        ("https://ollama.example.com", "https://ollama.example.com/v1"),
    ],
)
def test_ollama_has_the_address_that_ollama_itself_uses(host, url, monkeypatch):
    monkeypatch.setenv("OLLAMA_HOST", host)
    assert get_model("ollama:m").base_url == url
    assert get_model("ollama:m", base_url="http://localhost:1/v1").base_url == "http://localhost:1/v1"


# Vertex


class TokenServer(ThreadingHTTPServer):
    """Gives out access tokens for the signed requests of a service account, as Google does."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _TokenHandler)
        self.asked, self.refuse = [], False


class _TokenHandler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        self.server.asked.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        token = {"access_token": f"token-{len(self.server.asked)}", "expires_in": 3600, "token_type": "Bearer"}
        answer = json.dumps({"error": "invalid_grant"} if self.server.refuse else token).encode()
        self.send_response(400 if self.server.refuse else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


@pytest.fixture(scope="module")
def private_key():
    """The key of a service account; making one is slow."""
    pytest.importorskip("google.auth")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()


@pytest.fixture
def google(tmp_path, monkeypatch, private_key):
    """Credentials of a service account and the server that accepts them."""
    server = TokenServer()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    account = {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "k",
        "private_key": private_key,
        "client_email": "agent@p.iam.example.com",
        "token_uri": f"http://127.0.0.1:{server.server_port}/token",
    }
    file = tmp_path / "account.json"
    file.write_text(json.dumps(account))
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(file))
    yield server
    server.shutdown()
    server.server_close()
    thread.join()


async def test_vertex_signs_in_as_a_service_account_and_keeps_its_token(script, google):
    script.say(whole(completion()))
    model = get_model("vertex:gemini-2.5-flash", base_url=script.url)
    await model.complete(ASKED)
    await model.complete(ASKED)
    assert [headers["authorization"] for _, headers, _ in script.requests] == ["Bearer token-1"] * 2
    assert script.bodies[0]["model"] == "google/gemini-2.5-flash"
    assert "assertion=" in google.asked[0]


async def test_vertex_takes_images_and_audio_and_can_be_told_to_take_fewer_types(script, google):
    photo, report = Attachment.of(b"\x89PNG\r\n\x1a\n", name="a.png"), Attachment.of(b"%PDF-1.7", name="a.pdf")
    song = Attachment.of(b"ID3\x04", name="a.mp3")
    script.say(whole(completion()))
    model = get_model("vertex:m", base_url=script.url)
    await model.complete(ModelRequest((Message("user", "x", attachments=(photo, song)),)))
    assert [part["type"] for part in script.bodies[0]["messages"][0]["content"]] == ["text", "image_url", "input_audio"]
    fewer = get_model("vertex:m", base_url=script.url, attachments=["image/png"])
    for refused, wrong in ((model, report), (fewer, song)):
        with pytest.raises(BadRequestError, match=f"does not take {wrong.name}"):
            await refused.complete(ModelRequest((Message("user", "x", attachments=(wrong,)),)))
    with pytest.raises(RegistrationError, match="attachments= has 'application/pdf'"):
        get_model("vertex:m", base_url=script.url, attachments=["application/pdf"])
    assert len(script.requests) == 1


async def test_vertex_without_valid_credentials_says_what_to_do(script, google):
    google.refuse = True
    script.say(whole(completion()))
    with pytest.raises(AuthError, match="gcloud auth application-default login"):
        await get_model("vertex:m", base_url=script.url).complete(ASKED)
    assert script.requests == []


def test_vertex_has_an_address_for_each_project_and_region(monkeypatch):
    with pytest.raises(RegistrationError, match="set GOOGLE_CLOUD_PROJECT, or pass project="):
        get_model("vertex:m")
    monkeypatch.setenv("GOOGLE_CLOUD_PROJECT", "p1")
    path = "/v1/projects/p1/locations/{}/endpoints/openapi"
    assert get_model("vertex:m").base_url == "https://aiplatform.googleapis.com" + path.format("global")
    regional = get_model("vertex:m", location="europe-west1").base_url
    assert regional == "https://europe-west1-aiplatform.googleapis.com" + path.format("europe-west1")


# Prices


@pytest.mark.parametrize("vendor", ["openai", "anthropic", *SIMPLE])
def test_a_price_can_be_given_for_every_vendor(vendor):
    model = get_model(f"{vendor}:unheard-of", api_key=KEY, price=Price(input=0.5, output=1.5))
    assert model.price(Usage(1_000_000, 2_000_000)) == 3.5
    assert get_model(f"{vendor}:unheard-of", api_key=KEY).price(Usage(1, 1)) is None


async def test_a_given_price_is_the_cost_of_a_reply_also_beside_the_price_list(script):
    script.say(whole(completion(usage={**USAGE, "cost": 9, "prompt_tokens_details": {"cached_tokens": 500}})))
    model = model_of("openrouter", script, price=Price(input=1, output=2, cached=0.1))
    assert (await model.complete(ASKED)).cost == pytest.approx((500 * 1 + 500 * 0.1 + 10 * 2) / 1e6)
    other = await model.complete(ModelRequest(ASKED.messages, model="another"))
    assert other.cost == 9, "the price is that of one model, and a hook chose another"


@pytest.mark.parametrize(
    "vendor", ["gemini:gemini-2.5-flash", "mistral:mistral-large-latest", "deepseek:deepseek-chat"]
)
def test_the_price_list_knows_the_models_of_vendors(vendor):
    assert get_model(vendor, api_key=KEY).price(Usage(1_000_000, 0)) > 0


@pytest.mark.parametrize(("given", "output"), [(-1, 1), ("1", 1), (1, None), (float("nan"), 1)])
def test_a_price_that_is_none_is_an_error(given, output):
    with pytest.raises(RegistrationError, match="must be USD for a million tokens"):
        Price(given, output)


# Attachments, beyond test_attachments.py


PICTURE = Attachment.of(b"\x89PNG\r\n\x1a\n" + bytes(20), "image/png", "a.png")


async def test_the_types_that_a_model_takes_can_be_given(script):
    model = model_of("groq", script, attachments=[])
    with pytest.raises(BadRequestError, match="it takes text only"):
        await model.complete(ModelRequest((Message("user", "Look.", attachments=(PICTURE,)),)))
    with pytest.raises(RegistrationError, match="attachments= has 'video/mp4'"):
        model_of("groq", script, attachments=["video/mp4"])


# On the command line


def test_the_command_line_takes_a_vendor_and_a_price(script, tmp_path):
    script.say(sse(chunk(content="Hello."), chunk("stop", USAGE), done=True))
    prices = {"groq:m-1": {"input": 1000, "output": 0}}
    env = {**os.environ, "HOME": str(tmp_path), "GROQ_API_KEY": KEY, "HOOKLINE_PRICES": json.dumps(prices)}
    command = [sys.executable, "-m", "hookline", "run", "--model", "groq:m-1", "--base-url", script.url, "Hi."]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=env, check=False)
    assert done.returncode == 0, done.stderr
    assert "Hello." in done.stdout
    assert "cost $1.0000" in done.stdout + done.stderr
    assert script.requests[0][1]["authorization"] == f"Bearer {KEY}"
