"""What hooks decide about the calls of an MCP client."""

from __future__ import annotations

import asyncio
import json

import pytest

from hookline import AFTER_TOOL, BEFORE_TOOL, HookResult, Limits, guard, hook
from hookline.points import APPROVAL_REQUESTED

from .scenes import a_text, a_tool, text_of


@guard(BEFORE_TOOL, tools="echo")
def no_secrets(ctx, request):
    return HookResult.block("No secrets.") if "secret" in str(request.arguments) else None


@hook(AFTER_TOOL, tools="echo")
def redact(ctx, result):
    return result.with_text(result.text.replace("4711", "[pin]")) if "4711" in result.text else None


@guard(BEFORE_TOOL, tools="echo")
def ask(ctx, request):
    return HookResult.ask("Really?")


async def test_a_blocked_call_does_not_reach_the_server_and_the_model_reads_why(scene):
    s = scene(no_secrets)
    response = await s.call("echo", text="my secret")
    assert (text_of(response), response["result"]["isError"]) == ("No secrets.", True)
    assert s.calls_at_server() == []


async def test_what_no_hook_changes_passes_byte_for_byte(scene):
    s = scene(no_secrets, redact)
    odd = (
        b'{ "jsonrpc":"2.0", "id" : 7,"method":"tools/call","params":{"name":"echo",'
        b'"arguments":{"n":1.0,"big":123456789012345678901234567890,"t":"\\u00e9"}} }'
    )
    reply = b'{"id":7, "jsonrpc":"2.0","result":{"content":[{"type":"text","text":"\\u00e9"}], "_meta":{"x":1e2}}}'
    s.answers["tools/call"] = reply
    future = s._waiting[7] = asyncio.get_running_loop().create_future()
    await s.gateway.from_client(odd)
    await future
    assert odd in s.server_got
    assert s.client_got == [reply]


async def test_other_messages_pass_byte_for_byte_in_both_directions(scene):
    s = scene(no_secrets)
    up = b'{"jsonrpc":"2.0","id":"x","method":"completion/complete","params":{ "a": [1, 2.50]}}'
    await s.gateway.from_client(up)
    down = b'{"jsonrpc":"2.0", "id":"x","result":{"completion":{"values":[]}}}'
    note = b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":1,"progress":0.50}}'
    await s.gateway.from_server(note)
    await s.gateway.from_server(down)
    assert s.server_got == [up]
    assert s.client_got == [note, down]


async def test_a_hook_rewrites_arguments_and_the_server_gets_the_new_ones(scene):
    @hook(BEFORE_TOOL, tools="echo")
    def upper(ctx, request):
        return request.replace(arguments={"text": request.arguments["text"].upper()})

    s = scene(upper)
    assert text_of(await s.call("echo", text="hi")) == "HI"
    assert s.calls_at_server() == [{"name": "echo", "arguments": {"text": "HI"}}]


async def test_a_call_that_a_hook_renames_is_that_of_an_approved_tool(scene):
    @hook(BEFORE_TOOL, tools="echo")
    def elsewhere(ctx, request):
        return request.replace(name=request.arguments["to"])

    s = scene(elsewhere)
    assert not (await s.call("echo", to="other"))["result"].get("isError")
    assert "no tool" in text_of(await s.call("echo", to="unknown"))
    assert [each["name"] for each in s.calls_at_server()] == ["other"]


async def test_redaction_reaches_the_structured_content_too(scene):
    s = scene(redact, tools=[a_tool("echo", outputSchema={"type": "object"})])
    s.answers["tools/call"] = a_text("code 4711", structuredContent={"result": "code 4711"}, _meta={"copy": "4711"})
    response = await s.call("echo")
    assert response["result"] == {
        "content": [{"type": "text", "text": "code [pin]"}],
        "structuredContent": {"result": "code [pin]"},
    }


async def test_structured_content_that_says_more_than_the_text_is_judged_with_it(scene):
    seen = []

    @hook(AFTER_TOOL)
    def look(ctx, result):
        seen.append(result.text)

    s = scene(look, redact)
    s.answers["tools/call"] = a_text("nothing to see", structuredContent={"code": "4711"})
    response = await s.call("echo")
    assert "4711" in seen[0]
    assert "4711" not in json.dumps(response)


async def test_a_tool_whose_results_may_change_promises_no_schema(scene):
    tools = [a_tool("echo", outputSchema={"type": "object"})]
    changing, blocking = scene(redact, tools=tools), scene(no_secrets, tools=tools)
    assert "outputSchema" not in (await changing.request("tools/list"))["result"]["tools"][0]
    assert "outputSchema" in (await blocking.request("tools/list"))["result"]["tools"][0]


async def test_an_image_is_an_attachment_for_hooks_and_stays_beside_a_changed_text(scene):
    seen = []

    @hook(AFTER_TOOL)
    def look(ctx, result):
        seen.append([each.media_type for each in result.attachments])

    image = {"type": "image", "data": "iVBORw0KGgo=", "mimeType": "image/png"}
    s = scene(look, redact)
    s.answers["tools/call"] = {"content": [{"type": "text", "text": "4711"}, image]}
    response = await s.call("echo")
    assert seen == [["image/png"]]
    assert response["result"]["content"] == [{"type": "text", "text": "[pin]"}, image]


@pytest.mark.parametrize(
    "bad", [{"content": "no list"}, {"content": [7]}, {"task": {"taskId": "1"}}, {"resultType": "task"}, 7, None]
)
async def test_a_result_that_cannot_be_judged_is_withheld(scene, bad):
    s = scene(redact)
    s.answers["tools/call"] = lambda message: json.dumps(
        {"jsonrpc": "2.0", "id": message["id"], "result": bad}
    ).encode()
    assert (await s.call("echo"))["result"]["isError"]


async def test_the_error_of_a_tool_passes_and_is_redacted(scene):
    s = scene(redact)
    s.answers["tools/call"] = a_text("cannot open 4711", isError=True)
    response = await s.call("echo")
    assert response["result"] == {"content": [{"type": "text", "text": "cannot open [pin]"}], "isError": True}
    s.answers["tools/call"] = {"code": -32602, "message": "bad 4711"}
    assert text_of(await s.call("echo")) == "bad [pin]"
    s.answers["tools/call"] = {"code": -32602, "message": "bad"}
    assert (await s.call("echo"))["error"] == {"code": -32602, "message": "bad"}


async def test_a_failing_guard_runs_nothing_and_the_next_call_is_judged_anew(scene):
    @guard(BEFORE_TOOL)
    def broken(ctx, request):
        if request.arguments.get("text") == "break":
            raise ValueError("oh")

    s = scene(broken)
    assert "A guard failed" in text_of(await s.call("echo", text="break"))
    assert text_of(await s.call("echo", text="fine")) == "fine"
    assert len(s.calls_at_server()) == 1


async def test_a_limit_ends_the_session_for_good(scene):
    s = scene(options={"limits": Limits(tool_calls=2)})
    assert [text_of(await s.call("echo", text="x")) for _ in range(2)] == ["x", "x"]
    for _ in range(3):
        response = await s.call("echo", text="x")
        assert response["result"]["isError"]
        assert "limit" in text_of(response)
    assert len(s.calls_at_server()) == 2


async def test_a_failing_guard_does_not_renew_the_limits(scene):
    @guard(BEFORE_TOOL, tools="other")
    def broken(ctx, request):
        raise ValueError("oh")

    s = scene(broken, options={"limits": Limits(tool_calls=2)})
    for _ in range(4):
        await s.call("echo", text="x")
        await s.call("other")
    assert len(s.calls_at_server()) == 2


async def test_a_hook_that_ends_the_run_answers_all_calls(scene):
    @guard(BEFORE_TOOL, tools="other")
    def over(ctx, request):
        return HookResult.end("Enough.")

    s = scene(over)
    assert text_of(await s.call("echo", text="a")) == "a"
    assert "Enough." in text_of(await s.call("other"))
    assert "Enough." in text_of(await s.call("echo", text="b"))


async def test_resources_and_prompts_are_judged_like_calls(scene):
    @guard(BEFORE_TOOL, tools=["read_resource", "get_prompt"])
    def no_keys(ctx, request):
        return HookResult.block("No keys.") if "key" in str(request.arguments) else None

    @hook(AFTER_TOOL)
    def clean(ctx, result):
        return result.with_text(result.text.replace("4711", "[pin]")) if "4711" in result.text else None

    s = scene(no_keys, clean)
    s.answers["resources/read"] = {"contents": [{"uri": "file:///a", "text": "code 4711"}]}
    s.answers["prompts/get"] = {"messages": [{"role": "assistant", "content": {"type": "text", "text": "fine"}}]}
    assert text_of(await s.request("resources/read", {"uri": "file:///key"})) == "No keys."
    response = await s.request("resources/read", {"uri": "file:///a"})
    assert response["result"]["contents"] == [{"uri": "file:///a", "mimeType": "text/plain", "text": "code [pin]"}]
    assert text_of(await s.request("prompts/get", {"name": "key"})) == "No keys."
    assert (await s.request("prompts/get", {"name": "p"}))["result"] == s.answers["prompts/get"]


# Questions.


async def test_without_anybody_to_ask_a_question_is_a_denial(scene):
    s = scene(ask)
    await s.start()
    assert "Nobody approved this call" in text_of(await s.call("echo"))
    assert s.calls_at_server() == []


@pytest.mark.parametrize(
    ("answer", "runs"),
    [
        ({"action": "accept", "content": {"run": True}}, True),
        ({"action": "accept", "content": {"run": False}}, False),
        ({"action": "accept"}, False),
        ({"action": "decline"}, False),
        ({}, False),
    ],
)
async def test_the_user_of_a_client_that_can_ask_decides(scene, answer, runs):
    asked = []
    s = scene(ask, answer_client=lambda message: asked.append(message) or answer)
    await s.start(elicitation={})
    response = await s.call("echo", text="hi\x1b[2J")
    assert bool(s.calls_at_server()) is runs
    assert response["result"].get("isError", False) is not runs
    text = asked[0]["params"]["message"]
    assert "Really?" in text
    assert "echo of demo" in text
    assert "\x1b" not in text


async def test_other_approvers_are_asked_before_the_client(scene):
    @hook(APPROVAL_REQUESTED)
    def person(ctx, request):
        return HookResult.approve(by="ann")

    s = scene(ask, person, answer_client=lambda message: pytest.fail("the client was asked"))
    await s.start(elicitation={})
    assert text_of(await s.call("echo", text="hi")) == "hi"


async def test_a_client_of_the_stateless_protocol_returns_with_the_answer(scene):
    s = scene(ask, modern=True)
    first = (await s.call("echo", text="hi"))["result"]
    assert first["resultType"] == "input_required"
    (key,) = first["inputRequests"]
    given = {"name": "echo", "arguments": {"text": "hi"}, "requestState": first["requestState"]}
    given["inputResponses"] = {key: {"action": "accept", "content": {"run": True}}}
    assert text_of(await s.request("tools/call", given)) == "hi"
    assert s.calls_at_server()[0].keys() == {"name", "arguments", "_meta"}
    again = await s.request("tools/call", given)
    assert "another call, or came too late" in text_of(again)
    assert len(s.calls_at_server()) == 1


@pytest.mark.parametrize("change", [{"name": "other"}, {"arguments": {"text": "rm"}}, {"requestState": "hookline:x"}])
async def test_an_approval_holds_for_the_exact_call_only(scene, change):
    s = scene(ask, modern=True)
    first = (await s.call("echo", text="hi"))["result"]
    (key,) = first["inputRequests"]
    given = {"name": "echo", "arguments": {"text": "hi"}, "requestState": first["requestState"]}
    given["inputResponses"] = {key: {"action": "accept", "content": {"run": True}}}
    assert "another call" in text_of(await s.request("tools/call", {**given, **change}))
    if "requestState" not in change:
        assert "another call" in text_of(await s.request("tools/call", given)), "a state is used once"
    assert s.calls_at_server() == []


async def test_a_server_of_the_stateless_protocol_asks_in_the_middle_of_a_call(scene):
    def answer(message):
        params = message["params"]
        if "inputResponses" not in params:
            ask = {"method": "elicitation/create", "params": {"message": "Your name?", "requestedSchema": {}}}
            return {"resultType": "input_required", "requestState": "mine", "inputRequests": {"q": ask}}
        assert params["requestState"] == "mine"
        return a_text(f"Hello {params['inputResponses']['q']['content']['name']}, {params['arguments']['text']}")

    @hook(BEFORE_TOOL, tools="echo")
    def upper(ctx, request):
        return request.replace(arguments={"text": request.arguments["text"].upper()})

    s = scene(upper, modern=True)
    s.answers["tools/call"] = answer
    first = (await s.call("echo", text="hi"))["result"]
    assert "'demo' asks: Your name?" in first["inputRequests"]["q"]["params"]["message"]
    given = {"name": "echo", "arguments": {"text": "hi"}, "requestState": first["requestState"]}
    given["inputResponses"] = {"q": {"action": "accept", "content": {"name": "Ann"}}}
    assert text_of(await s.request("tools/call", given)) == "Hello Ann, HI"


# Many calls, cancelled calls.


async def test_a_thousand_calls_in_flight_are_answered_in_any_order(scene):
    s = scene(no_secrets)
    await s.names()
    held = []
    s.answers["tools/call"] = lambda message: held.append(message["id"])
    futures = {
        number: s.begin("tools/call", {"name": "echo", "arguments": {"n": number}}, number)
        for number in range(10_000, 11_000)
    }
    while len(held) < 1000:
        await asyncio.sleep(0)
    for ident in reversed(held):
        await s.from_server(a_text(f"answer {ident}"), ident)
    async with asyncio.timeout(30):
        for number, future in futures.items():
            assert text_of(await future) == f"answer {number}"


async def test_a_cancelled_call_ends_alone(scene):
    s = scene(no_secrets)
    await s.names()
    s.answers["tools/call"] = None
    slow = s.begin("tools/call", {"name": "echo", "arguments": {}}, 50)
    while not s.calls_at_server():
        await asyncio.sleep(0)
    await s.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 50}})
    assert json.loads(s.server_got[-1])["method"] == "notifications/cancelled"
    await s.from_server(a_text("too late"), 50)
    s.answers["tools/call"] = a_text("fine")
    assert text_of(await s.call("echo")) == "fine"
    assert not slow.done()
    assert [type(each).__name__ for each in s.events].count("RunFinished") == 0


async def test_a_call_that_is_cancelled_while_a_person_is_asked_never_runs(scene):
    asked = asyncio.Event()
    s = scene(ask, answer_client=lambda message: asked.set())
    await s.start(elicitation={})
    s.begin("tools/call", {"name": "echo", "arguments": {}}, 50)
    await asked.wait()
    question = json.loads(s.client_got[-1])["id"]
    await s.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 50}})
    while json.loads(s.client_got[-1]).get("method") != "notifications/cancelled":
        await asyncio.sleep(0)
    accepted = {"action": "accept", "content": {"run": True}}
    await s.send({"jsonrpc": "2.0", "id": question, "result": accepted})
    await asyncio.sleep(0.01)
    assert s.calls_at_server() == []


async def test_an_id_that_is_in_flight_cannot_be_used_again(scene):
    s = scene()
    await s.names()
    s.answers["tools/call"] = None
    s.begin("tools/call", {"name": "echo"}, 5)
    while not s.calls_at_server():
        await asyncio.sleep(0)
    await s.send({"jsonrpc": "2.0", "id": 5, "method": "tools/call", "params": {"name": "other"}})
    assert "in flight" in json.loads(s.client_got[-1])["error"]["message"]
    assert len(s.calls_at_server()) == 1


# The list of runs.


async def test_a_session_is_one_run_with_its_calls(scene):
    s = scene(no_secrets)
    await s.start()
    await s.call("echo", text="secret")
    await s.call("echo", text="hi")
    await s.run.end()
    kinds = [type(each).__name__ for each in s.events]
    assert (kinds.count("RunStarted"), kinds.count("RunFinished")) == (1, 1)
    settled = [(each.tool, each.outcome, each.text) for each in s.events if type(each).__name__ == "ToolSettled"]
    assert settled == [("echo", "blocked", "No secrets."), ("echo", "ok", "hi")]
    (task,) = [each.task for each in s.events if type(each).__name__ == "TaskTaken"]
    assert task == "A session of tester with demo"
