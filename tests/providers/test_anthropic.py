"""Anthropic's Messages API: requests, replies and streams."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Agent, Message, ModelRequest, RegistrationError, get_model, tool
from hookline.errors import NotInstalledError
from hookline.models import AuthError, BadRequestError, Model, OverloadedError, UnreachableError
from hookline.payloads import ToolCall, ToolSpec, Usage
from hookline.providers.anthropic import AnthropicModel
from hookline.providers.apis.common import ToolNames
from hookline.providers.apis.messages import ANSWER, OPENING, MessagesApi, MessagesStream

from .servers import sse, whole

READ = ToolSpec("files.read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
TIME = ToolSpec("time")
ASKED = ModelRequest((Message("user", "Hi."),))


@pytest.fixture
def model(script):
    return AnthropicModel("claude-x", base_url=script.url, max_retries=0)


async def streamed(model, request=ASKED):
    *pieces, response = [item async for item in model.stream(request)]
    return pieces, response


def text(content):
    return {"type": "text", "text": content}


def message(*content, stop="end_turn", **fields):
    usage = {
        "input_tokens": 5,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 20,
        "output_tokens": 7,
    }
    base = {"id": "m", "type": "message", "role": "assistant", "model": "claude-x-2026", "usage": usage}
    return {**base, "content": list(content), "stop_reason": stop, **fields}


def turns(*messages, **fields):
    request = ModelRequest(messages, **fields)
    return MessagesApi(10).body(request, "claude-x", ToolNames.from_request(request))["messages"]


def events(final):
    """The stream that the documentation shows for a message."""
    usage = {**final["usage"], "output_tokens": 1}
    yield {"type": "message_start", "message": {**final, "content": [], "stop_reason": None, "usage": usage}}
    for index, block in enumerate(final["content"]):
        if block["type"] == "text":
            yield {"type": "content_block_start", "index": index, "content_block": text("")}
            deltas = [{"type": "text_delta", "text": word} for word in block["text"].split(" ")]
        else:
            yield {"type": "content_block_start", "index": index, "content_block": {**block, "input": {}}}
            sent = json.dumps(block["input"])
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in ("", sent[:3], sent[3:])]
        yield {"type": "ping"}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    stop = {"stop_reason": final["stop_reason"], "stop_sequence": None}
    usage = {"output_tokens": final["usage"]["output_tokens"], "input_tokens": None}
    yield {"type": "message_delta", "delta": stop, "usage": usage}
    yield {"type": "message_stop"}


# Requests


@pytest.mark.slow
async def test_a_conversation_is_sent_in_alternating_turns(script, model):
    script.say(whole(message(text("Yes."))))
    history = (
        Message("system", "Be brief."),
        Message("user", "Read a and b."),
        Message("assistant", "", (ToolCall("c.1", "files.read", {"path": "a"}), ToolCall("c2", "time", "{broken"))),
        Message("tool", "A", call_id="c.1", name="files.read"),
        Message("tool", "", call_id="c2", name="time", is_error=True),
        Message("user", "Well?"),
        Message("system", "Be kind."),
        Message("assistant", "One is there."),
        Message("user", "Good."),
    )
    await model.complete(ModelRequest(history, (READ, TIME)))
    path, headers, body = script.requests[0]
    assert path == "/v1/messages"
    assert headers["anthropic-version"]
    assert body["system"] == "Be brief.\n\nBe kind."
    assert body["max_tokens"] == 4096
    assert "tool_choice" not in body
    assert body["messages"] == [
        {"role": "user", "content": [text("Read a and b.")]},
        {
            "role": "assistant",
            "content": [
                {"type": "tool_use", "id": "c_1", "name": "files_read", "input": {"path": "a"}},
                {"type": "tool_use", "id": "c2", "name": "time", "input": {}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c_1", "content": "A"},
                {"type": "tool_result", "tool_use_id": "c2", "content": "The call failed.", "is_error": True},
                text("Well?"),
            ],
        },
        {"role": "assistant", "content": [text("One is there.")]},
        {"role": "user", "content": [text("Good.")]},
    ]
    assert body["tools"] == [
        {"name": "files_read", "description": "Read a file.", "input_schema": READ.parameters},
        {"name": "time", "description": "", "input_schema": {"type": "object", "properties": {}}},
    ]


def test_a_conversation_that_starts_with_the_assistant_gets_an_opening():
    user, assistant = {"role": "user", "content": [text(OPENING)]}, {"role": "assistant", "content": [text("Hi.")]}
    assert turns(Message("assistant", "Hi.")) == [user, assistant]
    assert turns(Message("system", "Be brief.")) == [user]


def test_empty_messages_are_dropped():
    got = turns(Message("user", "Go."), Message("assistant", "  "), Message("user", ""), Message("user", "Go on."))
    assert got == [{"role": "user", "content": [text("Go."), text("Go on.")]}]


def test_the_last_assistant_text_is_stripped():
    assert turns(Message("user", "Go."), Message("assistant", "So: "))[-1]["content"] == [text("So:")]


ROLES = st.sampled_from(["system", "user", "assistant"])


@given(st.lists(st.builds(Message, ROLES, st.sampled_from(["", " ", "a", "b"])), max_size=8))
def test_turns_always_alternate_and_are_never_empty(messages):
    got = turns(*messages)
    assert [turn["role"] for turn in got] == [("user", "assistant")[i % 2] for i in range(len(got))]
    assert all(block["text"].strip() for turn in got for block in turn["content"])


@pytest.mark.parametrize(
    ("choice", "sent"),
    [("none", {"type": "none"}), ("required", {"type": "any"}), ("files.read", {"type": "tool", "name": "files_read"})],
)
async def test_the_tool_choice_is_sent(script, model, choice, sent):
    script.say(whole(message(text("Yes."))))
    await model.complete(ASKED.replace(tools=[READ], tool_choice=choice))
    assert script.bodies[0]["tool_choice"] == sent


async def test_params_are_sent_under_the_names_of_the_api(script, model):
    script.say(whole(message(text("Yes."))))
    params = {
        "temperature": 0.5,
        "max_tokens": 9,
        "top_p": 0.9,
        "stop": "END",
        "seed": 7,
        "top_k": 3,
        "parallel_tool_calls": False,
    }
    await model.complete(ASKED.replace(params=params, tools=[TIME]))
    body = script.bodies[0]
    assert body["stop_sequences"] == ["END"]
    assert body["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert {key: body[key] for key in ("temperature", "max_tokens", "top_p", "top_k")} == {
        "temperature": 0.5,
        "max_tokens": 9,
        "top_p": 0.9,
        "top_k": 3,
    }
    assert not {"stop", "seed", "parallel_tool_calls"} & set(body)


SHAPE = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
ANSWERED = {"type": "tool_use", "id": "f", "name": ANSWER, "input": {"a": 1}}


async def test_a_schema_is_sent_as_a_forced_tool(script, model):
    script.say(whole(message(ANSWERED, stop="tool_use")))
    got = await model.complete(ASKED.replace(response_format=SHAPE))
    (sent,) = script.bodies[0]["tools"]
    assert (sent["name"], sent["input_schema"]) == (ANSWER, SHAPE)
    assert script.bodies[0]["tool_choice"] == {"type": "tool", "name": ANSWER}
    assert (got.content, got.tool_calls, got.finish_reason) == ('{"a":1}', (), "stop")


@pytest.mark.parametrize(
    ("choice", "params", "sent", "offered"),
    [
        (None, {}, {"type": "any"}, True),
        ("auto", {"parallel_tool_calls": False}, {"type": "any", "disable_parallel_tool_use": True}, True),
        ("none", {}, {"type": "tool", "name": ANSWER}, True),
        ("required", {}, {"type": "any"}, False),
        ("time", {}, {"type": "tool", "name": "time"}, False),
        (None, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, None, True),
        (None, {"thinking": {"type": "disabled"}}, {"type": "any"}, True),
    ],
)
async def test_the_final_answer_is_an_additional_tool(script, model, choice, params, sent, offered):
    script.say(whole(message(text("Yes."))))
    await model.complete(ASKED.replace(response_format=SHAPE, tools=[TIME], tool_choice=choice, params=params))
    assert [each["name"] for each in script.bodies[0]["tools"]] == ["time", *([ANSWER] if offered else [])]
    assert script.bodies[0].get("tool_choice") == sent


async def test_a_final_answer_beside_other_calls_is_ignored(script, model):
    script.say(whole(message(BARE, ANSWERED, stop="tool_use")))
    got = await model.complete(ASKED.replace(response_format=SHAPE, tools=[TIME]))
    assert (got.content, got.tool_calls, got.finish_reason) == ("", (ToolCall("b", "time"),), "tool_calls")


async def test_a_final_answer_is_streamed_as_text(script, model):
    script.say(sse(*events(message(ANSWERED, stop="tool_use")), named=True))
    pieces, got = await streamed(model, ASKED.replace(response_format=SHAPE))
    assert len(pieces) > 1
    assert "".join(pieces) == got.content == '{"a": 1}'
    assert got.tool_calls == ()


async def test_an_incomplete_final_answer_is_incomplete_text(script, model):
    begun = {"type": "content_block_start", "index": 0, "content_block": {**ANSWERED, "input": {}}}
    cut = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"a'}}
    first, *_, last, end = events(message(stop="max_tokens"))
    script.say(sse(first, begun, cut, last, end, named=True))
    pieces, got = await streamed(model, ASKED.replace(response_format=SHAPE))
    assert (pieces, got.content, got.finish_reason) == (['{"a'], '{"a', "length")


def test_tools_of_the_history_are_sent_beside_the_final_answer():
    history = (
        Message("user", "Time?"),
        Message("assistant", "", (ToolCall("c", "the.time"),)),
        Message("tool", "Noon.", call_id="c"),
        Message("user", "Sum up."),
    )
    request = ModelRequest(history, response_format=SHAPE)
    body = MessagesApi(10).body(request, "claude-x", ToolNames.from_request(request))
    assert [tool["name"] for tool in body["tools"]] == ["the_time", ANSWER]
    assert body["tool_choice"] == {"type": "tool", "name": ANSWER}


async def test_a_tool_of_the_same_name_is_a_bad_request(model):
    with pytest.raises(BadRequestError, match="rename"):
        await model.complete(ASKED.replace(response_format=SHAPE, tools=[ToolSpec(ANSWER)]))


async def test_a_run_with_an_output_type_calls_tools_and_then_answers(script):
    @tool
    def time() -> str:
        """The time."""
        return "noon"

    used = {"type": "tool_use", "id": "t", "name": "time", "input": {}}
    wrong = {**ANSWERED, "input": {"value": "many"}}
    right = {**ANSWERED, "input": {"value": 12}}
    script.say(*(whole(message(block, stop="tool_use")) for block in (used, wrong, right)))
    model = AnthropicModel("claude-x", base_url=script.url, max_retries=0)
    result = await Agent("a", llm=model, tools=[time], output_type=int).arun("Which hour?")
    assert result.output == 12
    assert [message.role for message in result.messages] == ["user", "assistant", "tool", "assistant"]
    retried = script.bodies[2]["messages"]
    assert [turn["role"] for turn in retried] == ["user", "assistant", "user", "assistant", "user"]
    assert "valid integer" in retried[-1]["content"][0]["text"]


async def test_a_schema_that_is_not_an_object_is_merged_into_output_config(script, model):
    script.say(whole(message(text("[]"))))
    schema = {"type": "array", "items": {**SHAPE}}
    await model.complete(ASKED.replace(response_format=schema, params={"output_config": {"effort": "low"}}))
    sent = script.bodies[0]["output_config"]
    assert sent["effort"] == "low"
    assert sent["format"]["type"] == "json_schema"
    assert sent["format"]["schema"]["items"]["additionalProperties"] is False
    assert "tools" not in script.bodies[0]


async def test_a_schema_that_cannot_be_sent_is_a_bad_request(model):
    with pytest.raises(BadRequestError, match="response_format"):
        await model.complete(ASKED.replace(response_format={"properties": {}}))


def test_tools_of_calls_in_the_history_are_sent_even_if_none_are_offered():
    history = (
        Message("user", "Time?"),
        Message("assistant", "", (ToolCall("c", "the.time"),)),
        Message("tool", "Noon.", call_id="c"),
        Message("user", "Sum up."),
    )
    request = ModelRequest(history)
    body = MessagesApi(10).body(request, "claude-x", ToolNames.from_request(request))
    assert [tool["name"] for tool in body["tools"]] == ["the_time"]
    assert body["tool_choice"] == {"type": "none"}


# Replies and streams

USED = {"type": "tool_use", "id": "a", "name": "files_read", "input": {"path": "x"}}
BARE = {"type": "tool_use", "id": "b", "name": "time", "input": {}}


async def test_a_message_is_the_same_whole_and_streamed(script, model):
    final = message(text("Let me look."), USED, BARE, stop="tool_use")
    script.say(whole(final, anthropic_organization_id="org-1"), sse(*events(final), named=True))
    asked = ASKED.replace(tools=[READ, TIME])
    complete = await model.complete(asked)
    assert complete.content == "Let me look."
    assert complete.tool_calls == (ToolCall("a", "files.read", {"path": "x"}), ToolCall("b", "time"))
    assert complete.usage == Usage(125, 7, 100)
    assert (complete.model, complete.provider) == ("claude-x-2026", "anthropic")
    assert (complete.finish_reason, complete.organization_id) == ("tool_calls", "org-1")
    pieces, got = await streamed(model, asked)
    assert pieces == ["Let", "me", "look."]
    assert got == complete.replace(content="Letmelook.", organization_id="")
    assert script.bodies[1]["stream"] is True


@pytest.mark.parametrize(
    ("stop", "reason"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "other"),
        ("something_new", "other"),
    ],
)
async def test_the_finish_reason_of_a_message_is_mapped(script, model, stop, reason):
    final = message(text("x"), stop=stop)
    script.say(whole(final), sse(*events(final), named=True))
    complete = await model.complete(ASKED)
    assert complete.finish_reason == reason
    assert await streamed(model) == (["x"], complete)


async def test_input_that_is_not_json_is_kept(script, model):
    begun = {"type": "content_block_start", "index": 0, "content_block": {**USED, "input": {}}}
    broken = {"type": "content_block_delta", "index": 0, "delta": {"type": "input_json_delta", "partial_json": '{"pa'}}
    first, *_, last, end = events(message(stop="max_tokens"))
    script.say(sse(first, begun, broken, last, end, named=True))
    _, got = await streamed(model, ASKED.replace(tools=[READ]))
    assert got.tool_calls == (ToolCall("a", "files.read", {}, '{"pa'),)
    assert got.finish_reason == "length"


@given(st.text(max_size=20), st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3), st.data())
def test_a_stream_cut_into_any_fragments_is_the_same_reply(content, given_input, data):
    final = message(text(content), {**USED, "input": given_input}, stop="tool_use")

    def cut(index, kind, field, sent):
        at = sorted(data.draw(st.sets(st.integers(0, len(sent)), max_size=4)))
        for a, b in zip([0, *at], [*at, len(sent)], strict=True):
            yield {"type": "content_block_delta", "index": index, "delta": {"type": kind, field: sent[a:b]}}

    first, *_, last, end = events(final)
    lanes = [
        list(cut(0, "text_delta", "text", content)),
        list(cut(1, "input_json_delta", "partial_json", json.dumps(given_input))),
    ]
    starts = [
        {"type": "content_block_start", "index": 0, "content_block": text("")},
        {"type": "content_block_start", "index": 1, "content_block": {**USED, "input": {}}},
    ]
    middle = []
    while any(lanes):
        middle.append(data.draw(st.sampled_from([lane for lane in lanes if lane])).pop(0))
    stream = MessagesStream()
    shown = "".join(stream.add(event) for event in [first, *starts, *middle, last, end])
    assert shown == content
    assert MessagesApi(1).read(stream.whole()) == MessagesApi(1).read(final)


@pytest.mark.parametrize("cut", [False, True])
async def test_an_incomplete_stream_is_an_error(script, model, cut):
    first, *rest = events(message(text("Hello there.")))
    script.say(sse(first, *rest[:4], named=True, cut=cut))
    with pytest.raises((OverloadedError, UnreachableError)):
        await streamed(model)


# Options


def test_a_model_needs_a_key_or_a_base_url(monkeypatch):
    with pytest.raises(AuthError, match="set ANTHROPIC_API_KEY, or pass base_url="):
        get_model("anthropic:claude-x")
    model = get_model("anthropic:claude-x", base_url="http://localhost:1")
    assert isinstance(model, Model)
    assert model.name == "claude-x"
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")
    assert get_model("anthropic:claude-x").base_url == "https://api.anthropic.com"


async def test_missing_options_come_from_the_environment(script, monkeypatch):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-env")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", script.url)
    script.say(whole(message(text("Yes."))))
    await get_model("anthropic:claude-x", max_tokens=77).complete(ASKED)
    _, headers, body = script.requests[0]
    assert "key-of-env" in (headers["Authorization"] or headers["X-Api-Key"])
    assert body["max_tokens"] == 77


def test_invalid_options_are_rejected():
    with pytest.raises(RegistrationError, match="anthropic:NAME"):
        get_model("anthropic:", api_key="k")
    with pytest.raises(RegistrationError, match="http://"):
        get_model("anthropic:x", base_url="localhost")


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "anthropic", None)
    with pytest.raises(NotInstalledError, match=r"pip install .*\[anthropic\]"):
        AnthropicModel("claude-x", api_key="k")


def test_an_agent_calls_tools_and_sends_their_results(script, model):
    @tool(name="files.read")
    def read(path: str) -> str:
        """Read a file."""
        raise OSError("no such file")

    script.say(whole(message(text("Well,"), USED, stop="tool_use")), whole(message(text("It is gone."))))
    result = Agent("reader", llm=model, tools=[read]).run("Read x.")
    assert result.reply == "It is gone."
    assert result.tool_names == ("files.read",)
    assert result.usage == Usage(250, 14, 200)
    sent = script.bodies[1]["messages"][-1]["content"][0]
    assert (sent["type"], sent["tool_use_id"], sent["is_error"]) == ("tool_result", "a", True)
