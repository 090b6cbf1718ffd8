"""The embedded model: runs, streams, forced calls, schemas, truncation and cancellation."""

import asyncio
import json

import pytest

from hookline import (
    AFTER_LLM,
    ON_TOKEN,
    Agent,
    HookResult,
    Limits,
    Message,
    ModelRequest,
    RegistrationError,
    RunFailedError,
    hook,
    observer,
    tool,
)
from hookline.models import ModelResponse
from hookline.models.protocol import FINISH_REASONS, Model
from hookline.payloads import ToolCall, ToolSpec
from hookline.providers.local import weights
from hookline.providers.local.model import LocalModel

GREEDY = {"temperature": 0, "max_tokens": 30}
ADD = ToolSpec(
    "math.add",
    "Add two numbers.",
    {
        "type": "object",
        "properties": {"a": {"type": "integer", "maximum": 9}, "b": {"type": "integer", "maximum": 9}},
        "required": ["a", "b"],
    },
)
PING = ToolSpec("ping", "Ping.", {"type": "object", "properties": {}})
HISTORY = (
    Message("user", "Add 1 and 2."),
    Message("assistant", "", (ToolCall("c", "math.add", {"a": 1, "b": 2}),)),
    Message("tool", "3", call_id="c", name="math.add"),
)


def asking(*messages, tools=(ADD,), params=GREEDY, **options):
    return ModelRequest(messages or (Message("user", "Add 2 and 3."),), tools=tools, params=params, **options)


async def streamed(model, request):
    *pieces, reply = [item async for item in model.stream(request)]
    return pieces, reply


def test_the_embedded_model_has_the_model_protocol(local):
    assert isinstance(local, Model)
    assert (local.name, local.provider) == (weights.NAME, "local")


def test_a_run_with_tools_completes(local):
    replies = []

    @observer(AFTER_LLM)
    def note(ctx, reply):
        replies.append(reply)

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    agent = Agent("helper", llm="local", tools=[add], hooks=[note], limits=Limits(steps=2), params={"max_tokens": 40})
    result = agent.run("Add 2 and 3.")
    assert result.status in ("completed", "stopped")
    assert 1 <= len(replies) <= 2
    for reply in replies:
        assert (reply.provider, reply.model, reply.cost) == ("local", weights.NAME, 0.0)
        assert reply.finish_reason in FINISH_REASONS
        assert reply.usage.input_tokens > 20
        assert reply.usage.output_tokens > 0
        assert all(call.name == "add" and call.id for call in reply.tool_calls)
    assert result.usage.input_tokens == sum(reply.usage.input_tokens for reply in replies)
    assert result.usage.output_tokens == sum(reply.usage.output_tokens for reply in replies)
    called = [call.id for reply in replies for call in reply.tool_calls]
    assert [message.call_id for message in result.messages if message.role == "tool"] == called


async def test_streamed_pieces_make_up_the_text(local):
    pieces, reply = await streamed(local, asking(tools=(), params={"max_tokens": 6}))
    assert len(pieces) > 1
    assert "".join(pieces) == reply.content
    assert reply.finish_reason == "length"
    assert reply.usage.output_tokens == 6


async def test_streamed_pieces_of_an_answer_are_text_and_not_json(local):
    shape = asking(*HISTORY, params={"max_tokens": 14, "temperature": 0})
    pieces, reply = await streamed(local, shape)
    assert "".join(pieces) == reply.content
    assert not reply.content.startswith("{")


@pytest.mark.parametrize(("choice", "allowed"), [("required", {"math.add", "ping"}), ("ping", {"ping"})])
async def test_a_forced_call_is_made(local, choice, allowed):
    pieces, reply = await streamed(local, asking(Message("user", "Hi."), tools=(ADD, PING), tool_choice=choice))
    assert pieces == []
    assert {call.name for call in reply.tool_calls} <= allowed
    assert len(reply.tool_calls) == 1
    assert reply.finish_reason == "tool_calls"
    assert reply.tool_calls[0].raw is None


async def test_a_call_matches_its_schema(local):
    reply = await local.complete(asking(tool_choice="math.add"))
    (call,) = reply.tool_calls
    assert set(call.arguments) == {"a", "b"}
    assert all(type(value) is int and value <= 9 for value in call.arguments.values())


async def test_with_tool_choice_none_there_is_no_call(local):
    pieces, reply = await streamed(local, asking(tool_choice="none", params={"max_tokens": 4}))
    assert reply.tool_calls == ()
    assert "".join(pieces) == reply.content


@pytest.mark.parametrize("tools", [(), (ADD,)], ids=["alone", "with tools"])
async def test_a_reply_matches_the_requested_schema(local, tools):
    shape = {
        "type": "object",
        "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["sum"],
    }
    pieces, reply = await streamed(local, asking(*HISTORY, tools=tools, response_format=shape))
    if not reply.tool_calls:
        value = json.loads(reply.content)
        assert set(value) == {"sum"}
        assert 0 <= value["sum"] <= 9
    assert tools or reply.content
    assert "".join(pieces) in ("", reply.content)


@pytest.mark.parametrize("max_tokens", [5, 9])
async def test_an_incomplete_call_has_the_reason_length(local, max_tokens):
    request = asking(tool_choice="math.add", params={"max_tokens": max_tokens, "temperature": 0})
    reply = await local.complete(request)
    assert reply.finish_reason == "length"
    assert reply.content == ""
    assert all(call.raw and not call.arguments for call in reply.tool_calls)


def test_an_incomplete_call_is_an_error_for_the_model(local):
    ran = []

    @tool
    def ping(text: str) -> str:
        """Ping."""
        ran.append(text)
        return "pong"

    @hook("before_llm")
    def force(ctx, request):
        return request.replace(tool_choice="ping")

    result = Agent(
        "helper", llm=local, tools=[ping], hooks=[force], limits=Limits(steps=1), params={"max_tokens": 9}
    ).run("Hi.")
    assert result.status == "stopped"
    assert ran == []
    (answer,) = [message for message in result.messages if message.role == "tool"]
    assert answer.is_error


def test_a_hook_can_end_the_run_in_mid_stream(local):
    shown = []

    @hook(ON_TOKEN)
    def enough(ctx, token):
        shown.append(token.delta)
        return HookResult.end("Enough.") if len(shown) == 3 else None

    result = Agent("helper", llm=local, hooks=[enough], params={"max_tokens": 200}).run("Tell a long story.")
    assert (result.status, result.reply) == ("ended", "Enough.")
    assert len(shown) == 3
    assert 0 < result.usage.output_tokens < 10
    assert result.usage.input_tokens > 5


async def test_a_run_can_be_cancelled_in_mid_stream(local):
    begun, pieces = asyncio.Event(), []

    @observer(ON_TOKEN)
    def note(ctx, token):
        pieces.append(token.delta)
        begun.set()

    run = Agent("helper", llm=local, hooks=[note], params={"max_tokens": 300}).start("Tell a long story.")
    await begun.wait()
    run.cancel("enough")
    result = await run.result()
    assert result.status == "cancelled"
    assert len(pieces) < 30
    assert isinstance(await local.complete(asking(tools=(), params={"max_tokens": 1})), ModelResponse)


def test_an_agent_fails_with_the_models_error(local):
    with pytest.raises(RunFailedError) as raised:
        Agent("helper", llm=local, params={"temperature": "hot"}).run("Hi.")
    assert raised.value.result.errors[0].type == "BadRequestError"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "No such file"), (b"", "not a GGUF file"), (b"PK\3\4 a zip", "llama.cpp loads only GGUF files")],
)
def test_a_file_that_is_not_a_model_is_rejected(tmp_path, content, message):
    path = tmp_path / "model.gguf"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RegistrationError, match=message):
        LocalModel(path)
    with pytest.raises(RegistrationError, match=message):
        Agent("helper", llm=f"local:{path}")


def test_a_folder_is_rejected(tmp_path):
    with pytest.raises(RegistrationError, match="Is a directory"):
        LocalModel(tmp_path)


@pytest.mark.parametrize("context", [0, 255, -1, "4096", True, float("nan")])
def test_an_invalid_context_is_rejected(context):
    with pytest.raises(RegistrationError, match="at least 256"):
        LocalModel(context=context)


def test_a_model_is_named_after_its_file(taught):
    assert taught.name == "smol.tools"


def test_a_broken_file_fails_the_run_with_a_message(tmp_path, local):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF\3\0\0\0")
    with pytest.raises(RunFailedError, match=r"cannot load .*model\.gguf"):
        Agent("helper", llm=f"local:{path}").run("Hi.")
