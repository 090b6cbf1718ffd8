"""Messages as mappings: our own fields, OpenAI's format, and errors that name the path and the key."""

import re

import pytest

from hookline import (
    BEFORE_LLM,
    Agent,
    HookResult,
    Message,
    ModelRequest,
    RunFailedError,
    ScriptedModel,
    Session,
    hook,
)
from hookline._kernel.payloads import Compaction
from hookline._kernel.values import StopSignal
from hookline.models import ModelResponse
from hookline.payloads import AgentState, ToolCall
from hookline.stores.channel_points import Outbound
from tests.cases import each_case

OPENAI = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "What is"}, {"type": "text", "text": "6 * 7?"}]},
    {
        "role": "assistant",
        "content": None,
        "refusal": None,
        "annotations": [],
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "calculate", "arguments": '{"text": "6*7"}'},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "42"},
    {"role": "assistant", "content": "42.", "tool_calls": None},
]
OURS = [
    Message("system", "Be brief."),
    Message("user", "What is\n6 * 7?"),
    Message("assistant", "", (ToolCall("call_1", "calculate", {"text": "6*7"}),)),
    Message("tool", "42", call_id="call_1"),
    Message("assistant", "42."),
]


async def asked(ctx_messages):
    """Return the request when a hook calls the model with these messages."""
    model = ScriptedModel(["hello", "hello"])

    @hook(BEFORE_LLM)
    async def ask(ctx, request):
        if request.purpose == "step":
            await ctx.llm.complete(ctx_messages)

    await Agent("a", llm=model, hooks=[ask]).arun("a task")
    return model.requests[0].messages


async def replaced(messages):
    """Return the request when a hook replaces its messages."""
    model = ScriptedModel(["hello"])
    change = hook(BEFORE_LLM)(lambda ctx, request: HookResult.replace({"messages": messages}))
    await Agent("a", llm=model, hooks=[change]).arun("a task")
    return model.requests[0].messages


WAYS = {
    "Message.of": lambda messages: [Message.of(message) for message in messages],
    "Session": lambda messages: Session(messages=messages).messages,
    "request.replace": lambda messages: ModelRequest().replace(messages=messages).messages,
    "request.accept": lambda messages: ModelRequest().accept({"messages": messages}).messages,
    "state.replace": lambda messages: AgentState().replace(messages=messages).messages,
    "state.with_messages": lambda messages: AgentState().with_messages(*messages).messages,
    "compaction.replace": lambda messages: Compaction([]).replace(messages=messages).messages,
    "ctx.llm.complete": asked,
    "HookResult.replace": replaced,
}


async def through(way, messages):
    found = WAYS[way](messages)
    return list(await found if way in ("ctx.llm.complete", "HookResult.replace") else found)


@pytest.mark.parametrize("way", WAYS)
async def test_messages_in_openais_format_are_understood_everywhere(way):
    assert await through(way, OPENAI) == OURS


@pytest.mark.parametrize("way", WAYS)
async def test_mappings_of_our_own_fields_are_understood_everywhere(way):
    assert await through(way, [dict(message) for message in OURS]) == OURS


CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
NOT_UNDERSTOOD = [
    ({"role": "user", "contnet": "x"}, "has no field 'contnet'. Did you mean 'content'?"),
    ({"role": "tool", "tool_cal_id": "c"}, "has no field 'tool_cal_id'. Did you mean 'tool_call_id'?"),
    ({"role": "tool", "tool_call_id": "c", "call_id": "d"}, "has two call ids"),
    ({"role": "assistant", "refusal": "I will not."}, "has no field 'refusal'"),
    ({"role": "assistant", "audio": {"id": "a"}}, "has no field 'audio'"),
    ({"role": "assistant", "function_call": {"name": "f"}}, "has no field 'function_call'"),
    ({"role": "function", "content": "x"}, ".role: Invalid enum value 'function'"),
    ({"content": "x"}, "missing required field `role`"),
    ({"role": "user", "content": 0}, ".content: Expected `str`, got `int`"),
    ({"role": "user", "content": {"text": "x"}}, ".content: Expected `str`"),
    ({"role": "user", "content": ["x"]}, ".content[0] is of type 'str'; a message may contain parts of type text"),
    ({"role": "user", "content": [{"type": "video_url"}]}, ".content[0] is of type 'video_url'"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": {}}]}, ".content[0].image_url.url: expected text"),
    ({"role": "user", "content": [{"type": "image_url", "image_url": 7}]}, ".content[0].image_url: expected a mapping"),
    (
        {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}]},
        ".content[0].image_url.url: expected a URL that begins with data:",
    ),
    (
        {"role": "user", "content": [{"type": "file", "file": {"file_data": "data:application/pdf,plain"}}]},
        ".content[0].file.file_data: expected data:TYPE;base64,DATA",
    ),
    (
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": "???", "format": "wav"}}]},
        ".content[0].input_audio.data: expected text in Base64",
    ),
    (
        {"role": "user", "content": [{"type": "text", "txt": "x"}]},
        ".content[0] has no field 'txt'. Did you mean 'text'?",
    ),
    (
        {"role": "user", "content": [{"type": "text", "text": "x", "tyype": "text"}]},
        ".content[0] has no field 'tyype'. Did you mean 'type'?",
    ),
    ({"role": "user", "content": [{"type": "text"}]}, ".content[0].text: expected text, got NoneType"),
    ({"role": "user", "content": [{"type": "text", "text": 7}]}, ".content[0].text: expected text, got int"),
    ({"role": "assistant", "tool_calls": [{**CALL, "type": "custom"}]}, ".tool_calls[0].type: expected 'function'"),
    ({"role": "assistant", "tool_calls": [{**CALL, "index": 0}]}, ".tool_calls[0] has no field 'index'"),
    ({"role": "assistant", "tool_calls": [{**CALL, "name": "g"}]}, ".tool_calls[0] has 'name' twice"),
    (
        {"role": "assistant", "tool_calls": [{**CALL, "function": "f"}]},
        ".tool_calls[0].function: expected a mapping, got str",
    ),
    (
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"nmae": "f"}}]},
        ".tool_calls[0].function has no field 'nmae'. Did you mean 'name'?",
    ),
    (
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "argument": "{}"}}]},
        ".tool_calls[0].function has no field 'argument'. Did you mean 'arguments'?",
    ),
    (
        {"role": "assistant", "tool_calls": [{"id": "c", "name": "f", "argument": {}}]},
        ".tool_calls[0] has no field 'argument'. Did you mean 'arguments'?",
    ),
    ({"role": "assistant", "tool_calls": {}}, ".tool_calls: Expected `array`"),
]


@each_case(("message", "why"), NOT_UNDERSTOOD)
def test_an_unknown_key_raises_and_names_its_path(message, why):
    with pytest.raises(TypeError, match=re.escape(why)):
        Message.of(message)
    place = "ModelRequest.messages[1]"
    with pytest.raises(TypeError, match=re.escape(f"{place}{why}" if why[0] == "." else why)) as caught:
        ModelRequest().replace(messages=[{"role": "user"}, message])
    assert str(caught.value).startswith(place)


@pytest.mark.parametrize("way", WAYS)
async def test_a_misspelt_key_is_an_error_everywhere(way):
    with pytest.raises((TypeError, RunFailedError), match="has no field 'contnet'. Did you mean 'content'?"):
        await through(way, [{"role": "user", "contnet": "x"}])


def test_arguments_that_are_no_json_object_are_kept_as_the_model_sent_them():
    call = Message.of(
        {"role": "assistant", "tool_calls": [{"id": "c", "function": {"name": "f", "arguments": "{oops"}}]}
    ).tool_calls[0]
    assert (call.arguments, call.raw) == ({}, "{oops")


def test_an_answer_of_a_hook_may_have_calls_in_openais_format():
    answer = ModelResponse.of({"content": "", "tool_calls": [CALL], "usage": {"input_tokens": 3}})
    assert answer.tool_calls == (ToolCall("c", "f"),)
    with pytest.raises(TypeError, match=r"ModelResponse\.usage has no field 'inputs'"):
        ModelResponse.of({"usage": {"inputs": 3}})


def test_unknown_keys_of_every_nested_value_raise():
    with pytest.raises(TypeError, match=r"AgentState\.signals\[0\] has no field 'mesage'. Did you mean 'message'\?"):
        AgentState().replace(signals=[{"kind": "error", "mesage": "x"}])
    with pytest.raises(TypeError, match=r"Outbound\.message has no field 'txt'. Did you mean 'text'\?"):
        Outbound.of({"chat_id": "c", "message": {"txt": "x"}})
    assert AgentState().replace(signals=[{"kind": "error", "message": "x"}]).signals == (StopSignal("error", "x"),)


def test_free_json_inside_a_payload_keeps_every_key():
    request = ModelRequest().replace(params={"any": {"key": [1]}}, tools=[{"name": "f", "parameters": {"x": {"y": 1}}}])
    assert request.params == {"any": {"key": [1]}}
    assert request.tools[0].parameters == {"x": {"y": 1}}


def test_json_that_another_version_stored_is_read_without_its_unknown_keys():
    assert Message.from_json('{"role": "user", "content": "x", "colour": 1}') == Message("user", "x")
    state = AgentState.from_json('{"messages": [{"role": "user", "content": "x", "colour": 1}]}')
    assert list(state.messages) == [Message("user", "x")]
