"""LiteLLM's guardrail API: what its texts and calls are judged as. `make test-kits` runs LiteLLM itself."""

import asyncio

import pytest

from hookline import HookResult, guard, hook, observer
from hookline.points import AFTER_LLM, BEFORE_LLM
from tests.server.decide.rig import agent_of, deciding

PATH = "/beta/litellm_basic_guardrail_api"


async def send(server, kind="request", **fields):
    given = {"input_type": kind, "request_data": {}, "litellm_trace_id": "trace", "litellm_version": "1", **fields}
    answer = await server.caller().post(PATH, **given)
    assert answer.status_code == 200, answer.text
    return answer.json()


def call_of(name, arguments="{}"):
    return {"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}, "index": 0}


async def test_hooks_see_the_messages_that_the_texts_come_from(tmp_path):
    seen = []

    @observer(BEFORE_LLM)
    def look(ctx, request):
        seen.append([(each.role, each.content, each.call_id) for each in request.messages])
        seen.append([tool.name for tool in request.tools])

    rows = [
        {"role": "developer", "content": "Help."},
        {
            "role": "user",
            "content": [{"type": "text", "text": "a"}, {"type": "image_url"}, {"type": "text", "text": "b"}],
        },
        {"role": "assistant", "content": None, "tool_calls": [call_of("read")]},
        {"role": "tool", "content": "text", "tool_call_id": "call_1"},
    ]
    tools = [{"type": "function", "function": {"name": "read", "parameters": {}}}, {"type": "web_search"}]
    async with deciding(tmp_path, agent_of(look)) as server:
        texts = ["Help.", "a", "b", "text"]
        assert await send(server, texts=texts, structured_messages=rows, tools=tools) == {"action": "NONE"}
        assert seen == [
            [("system", "Help.", None), ("user", "a", None), ("user", "b", None), ("tool", "text", "call_1")],
            ["read"],
        ]
        await send(server, texts=["other"], structured_messages=rows)
        assert seen[2] == [("user", "other", None)]


async def test_changed_texts_come_back_in_their_order(tmp_path):
    @hook(BEFORE_LLM)
    def redact(ctx, request):
        return request.replace(
            messages=[{**dict(each), "content": each.content.replace("1234", "[card]")} for each in request.messages]
        )

    @hook(AFTER_LLM)
    def shout(ctx, reply):
        return reply.replace(content=reply.content.upper())

    async with deciding(tmp_path, agent_of(redact, shout)) as server:
        judged = await send(server, texts=["my card", "is 1234"])
        assert judged == {"action": "GUARDRAIL_INTERVENED", "texts": ["my card", "is [card]"]}
        judged = await send(server, "response", texts=["one", "two"])
        assert judged == {"action": "GUARDRAIL_INTERVENED", "texts": ["ONE", "TWO"]}


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda request: request.replace(model="other"), "A hook changed more than the texts"),
        (lambda request: request.replace(tools=[{"name": "read"}]), "A hook changed more than the texts"),
        (lambda request: request.replace(params={"max_tokens": 5}), "A hook changed more than the texts"),
        (lambda request: request.replace(messages=[]), "A hook added or removed messages"),
        (lambda request: HookResult.answer("Hello."), "A hook answered instead of the model"),
        (lambda request: HookResult.end("Never."), "Never."),
        (lambda request: HookResult.stop("Enough."), "Enough."),
    ],
)
async def test_what_litellm_cannot_do_is_blocked(tmp_path, change, reason):
    @hook(BEFORE_LLM)
    def decide(ctx, request):
        return change(request)

    async with deciding(tmp_path, agent_of(decide)) as server:
        judged = await send(server, texts=["hi"], model="a-model")
        assert judged["action"] == "BLOCKED"
        assert judged["blocked_reason"].startswith(reason)


async def test_tool_calls_of_a_reply_are_judged_as_calls(tmp_path):
    async with deciding(tmp_path) as server:
        allowed = call_of("send_mail", '{"to": "ann@example.com"}')
        assert await send(server, "response", texts=["ok"], tool_calls=[allowed]) == {"action": "NONE"}
        assert await send(server, "response", tool_calls=[allowed]) == {"action": "NONE"}
        judged = await send(server, "response", texts=["ok"], tool_calls=[allowed, call_of("send_mail")])
        assert judged == {"action": "BLOCKED", "blocked_reason": "Mail goes to colleagues only."}
        judged = await send(server, "response", tool_calls=[call_of("convert")])
        assert judged["blocked_reason"] == "A hook changed the arguments of convert, which LiteLLM cannot do."
        wrong = await server.caller().post(PATH, input_type="response", tool_calls=[{"id": "x"}])
        assert wrong.status_code == 422


async def test_calls_in_the_history_of_a_request_are_not_judged_again(tmp_path):
    async with deciding(tmp_path) as server:
        assert await send(server, texts=["hi"], tool_calls=[call_of("send_mail")]) == {"action": "NONE"}


async def test_a_call_that_nobody_has_approved_is_blocked(tmp_path, monkeypatch):
    monkeypatch.setattr("hookline.server.decide.litellm.WAIT_SECONDS", 0.0)
    async with deciding(tmp_path) as server:
        judged = await send(server, "response", tool_calls=[call_of("pay", '{"amount": 5}')])
        assert judged["blocked_reason"] == "This call needs an approval, and nobody has given it yet."


async def test_a_failing_hook_blocks(tmp_path):
    @guard(BEFORE_LLM)
    def broken(ctx, request):
        raise RuntimeError("a bug")

    async with deciding(tmp_path, agent_of(broken)) as server:
        assert await send(server, texts=["hi"]) == {"action": "BLOCKED", "blocked_reason": "Hook 'broken' failed."}


async def test_a_conversation_is_one_run_and_old_ones_make_room(tmp_path):
    async with deciding(tmp_path, max_sessions_per_caller=2) as server:
        await send(server, texts=["hi"])
        await send(server, "response", texts=["Hello."])
        (run,) = (await server.caller().get("/runs"))["runs"]
        assert (run["transport"], run["steps"], run["session"]) == ("litellm", 1, "trace")
        for number in range(3):
            await send(server, texts=["hi"], litellm_trace_id=f"trace {number}")
            await asyncio.sleep(0.001)  # a session that is in use is not the oldest
        states = [each["status"] for each in (await server.caller().get("/runs"))["runs"]]
        assert sorted(states) == ["completed", "completed", "running", "running"]
