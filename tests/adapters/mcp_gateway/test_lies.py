"""Servers and clients that do not keep to the protocol."""

from __future__ import annotations

import asyncio
import json

import pytest

from hookline import BEFORE_TOOL, HookResult, guard, hook

from .scenes import a_text, text_of

FORM = {"message": "Who are you?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}


@guard(BEFORE_TOOL)
def nothing(ctx, request):
    return HookResult.block("Nothing runs.")


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":1,"method":"ping","method":"tools/call","params":{"name":"echo"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"ping","Method":"tools/call","params":{"name":"echo"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","NAME":"other"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":1,"a":2}}}',
        b'[{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}]',
        b'{"jsonrpc":"2.0","id":1.5,"method":"tools/call","params":{"name":"echo"}}',
        b'{"jsonrpc":"2.0","id":true,"method":"tools/call","params":{"name":"echo"}}',
        b'{"jsonrpc":"2.0","id":null,"method":"tools/call","params":{"name":"echo"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":NaN}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":["echo"]}',
        b'{"jsonrpc":"2.0","id":1,"method":["tools/call"],"params":{"name":"echo"}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","arguments":{"a":"\\ud800"}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo","task":{}}}',
        b'{"jsonrpc":"2.0","id":1,"method":"tasks/result","params":{"taskId":"x"}}',
        b"\xef\xbb\xbf" + b'{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}',
        '{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"name":"echo"}}'.encode("utf-16"),
        b'{"a":' * 100_000,
        b"hello",
    ],
)
async def test_a_message_that_parsers_may_read_differently_does_not_reach_the_server(scene, line):
    s = scene()
    await s.names()
    before = len(s.server_got)
    await s.gateway.from_client(line)
    assert len(s.server_got) == before
    assert "error" in json.loads(s.client_got[-1])
    assert text_of(await s.call("echo", text="still there")) == "still there"


@pytest.mark.parametrize("params", [{"name": 7}, {"name": "echo", "arguments": "x"}, {"arguments": {}}])
async def test_a_call_with_wrong_types_is_an_error(scene, params):
    s = scene()
    assert (await s.request("tools/call", params))["error"]["code"] == -32602
    assert s.calls_at_server() == []


async def test_a_call_without_an_id_reaches_nobody(scene):
    s = scene()
    await s.names()
    before = list(s.server_got)
    await s.send({"jsonrpc": "2.0", "method": "tools/call", "params": {"name": "echo"}})
    assert s.server_got == before


@pytest.mark.parametrize(
    "line",
    [
        b'{"jsonrpc":"2.0","id":999,"result":{"content":[{"type":"text","text":"evil"}]}}',
        b'{"jsonrpc":"2.0","id":"hookline-0","result":{}}',
        b'{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"evil"}}',
        b'{"jsonrpc":"2.0","id":{"evil":1},"result":{}}',
        b'[{"jsonrpc":"2.0","method":"evil"}]',
        b'{"jsonrpc":"2.0","method":7}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":"evil"}',
        b'{"jsonrpc":"2.0","method":"notifications/cancelled","params":{"requestId":1}}',
        b"Server running on stdio: evil",
        b"\xff\xfe evil",
    ],
)
async def test_what_nobody_asked_for_does_not_reach_the_client(scene, line):
    s = scene()
    await s.names()
    before = list(s.client_got)
    await s.gateway.from_server(line)
    assert s.client_got == before
    assert text_of(await s.call("echo", text="still there")) == "still there"


async def test_a_second_answer_is_dropped(scene):
    s = scene()
    await s.names()
    s.answers["tools/call"] = None
    future = s.begin("tools/call", {"name": "echo"}, 5)
    while not s.calls_at_server():
        await asyncio.sleep(0)
    await s.from_server(a_text("first"), 5)
    await s.from_server(a_text("second"), 5)
    assert text_of(await future) == "first"
    await s.from_server(a_text("third"), 5)
    assert not any(b"second" in line or b"third" in line for line in s.client_got)


async def test_an_answer_before_the_call_was_allowed_is_dropped(scene):
    s = scene(nothing)
    await s.names()
    future = s.begin("tools/call", {"name": "echo"}, 5)
    await asyncio.sleep(0)
    await s.from_server(a_text("evil"), 5)
    assert text_of(await future) == "Nothing runs."


@pytest.mark.parametrize("method", ["sampling/createMessage", "elicitation/create", "roots/list", "tools/call", "x/y"])
async def test_requests_that_nobody_expects_are_refused(scene, method):
    s = scene(answer_client=lambda message: pytest.fail("the client was asked"))
    await s.start()
    await s.server_asks(method, {})
    assert json.loads(s.server_got[-1])["error"]["code"] == -32601
    s = scene(answer_client=lambda message: pytest.fail("the client was asked"))
    await s.start(sampling={}, elicitation={})
    await s.server_asks("sampling/createMessage", {"messages": []})
    assert "no call in flight" in json.loads(s.server_got[-1])["error"]["message"]


async def in_a_call(s, method, params, answers=1):
    """Have the server ask in the middle of a call, and return what it gets."""
    await s.names()
    s.answers["tools/call"] = None
    s.begin("tools/call", {"name": "echo"}, 5)
    while not s.calls_at_server():
        await asyncio.sleep(0)
    before = len(s.server_got)
    for number in range(answers):
        await s.server_asks(method, params, f"s{number}")
    while len(s.server_got) < before + answers:
        await asyncio.sleep(0)
    return [json.loads(line) for line in s.server_got[before:]]


async def test_what_a_server_asks_in_a_call_is_judged_and_says_who_asks(scene):
    asked = []
    answer = {"action": "accept", "content": {"name": "Ann"}}
    s = scene(answer_client=lambda message: asked.append(message["params"]) or answer)
    await s.start(elicitation={})
    (got,) = await in_a_call(s, "elicitation/create", FORM)
    assert got["result"] == answer
    assert asked[0]["message"] == "The MCP server 'demo' asks: Who are you?"
    assert asked[0]["requestedSchema"] == FORM["requestedSchema"]


async def test_a_rule_blocks_sampling(scene):
    @guard(BEFORE_TOOL, tools=["sampling", "elicitation"])
    def no_sampling(ctx, request):
        return HookResult.block(f"{request.arguments['server']} may not.")

    got = []
    for method, params in (("sampling/createMessage", {"messages": [], "maxTokens": 5}), ("elicitation/create", FORM)):
        s = scene(no_sampling, answer_client=lambda message: pytest.fail("the client was asked"))
        await s.start(sampling={}, elicitation={})
        got += await in_a_call(s, method, params)
    assert (got[0]["error"]["message"], got[1]["result"]) == ("demo may not.", {"action": "decline"})


async def test_a_rule_changes_what_sampling_sends(scene):
    @hook(BEFORE_TOOL, tools="sampling")
    def small(ctx, request):
        return request.replace(arguments={**request.arguments, "maxTokens": 5})

    asked = []
    answer = {"role": "assistant", "content": {"type": "text", "text": "hi"}, "model": "m"}
    s = scene(small, answer_client=lambda message: asked.append(message["params"]) or answer)
    await s.start(sampling={})
    (got,) = await in_a_call(s, "sampling/createMessage", {"messages": [], "maxTokens": 100_000})
    assert (got["result"], asked) == (answer, [{"messages": [], "maxTokens": 5}])


@pytest.mark.parametrize(
    "params",
    [
        {"message": "Log in", "requestedSchema": {"properties": {"Password": {"type": "string"}}}},
        {"message": "Log in", "requestedSchema": {"properties": {"github_token": {"type": "string"}}}},
        {"mode": "url", "message": "Open", "url": "file:///etc/passwd", "elicitationId": "1"},
        {"mode": "url", "message": "Open", "url": "https://bank.example@evil.example", "elicitationId": "1"},
    ],
)
async def test_a_server_that_asks_for_secrets_is_declined(scene, params):
    s = scene(answer_client=lambda message: pytest.fail("the client was asked"))
    await s.start(elicitation={})
    (got,) = await in_a_call(s, "elicitation/create", params)
    assert got["result"] == {"action": "decline"}


async def test_a_server_that_asks_without_end_is_refused(scene):
    s = scene(answer_client=lambda message: {"action": "decline"})
    await s.start(elicitation={})
    got = await in_a_call(s, "elicitation/create", FORM, answers=25)
    assert sum("too many questions" in str(each) for each in got) == 5


async def test_a_server_that_ends_answers_every_request_with_an_error(scene):
    s = scene()
    await s.names()
    s.answers["tools/call"] = None
    futures = [s.begin("tools/call", {"name": "echo"}), s.begin("resources/list")]
    while len(s.server_got) < 3:
        await asyncio.sleep(0)
    await s.gateway.server_ended("The MCP server has ended.")
    assert [text_of(await future) for future in futures] == [
        "The server has ended, so there is no result.",
        "The MCP server has ended.",
    ]
    assert "ended" in text_of(await s.call("echo"))


async def test_capabilities_that_hide_results_are_not_offered(scene):
    opened = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}, "tasks": {"requests": {}}}}
    s = scene(answers={"initialize": opened})
    response = await s.start(tasks={"list": {}}, roots={})
    assert response["result"]["capabilities"] == {"tools": {}}
    assert json.loads(s.server_got[0])["params"]["capabilities"] == {"roots": {}}
