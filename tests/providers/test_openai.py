"""OpenAI's two APIs: requests, replies and streams."""

import json
from typing import Annotated, Literal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field

from hookline import Agent, Message, ModelRequest, RegistrationError, get_model, hook, tool
from hookline._run.output import OutputSpec
from hookline.errors import NotInstalledError
from hookline.models import AuthError, Model, OverloadedError, UnreachableError
from hookline.payloads import ToolCall, ToolSpec, Usage
from hookline.providers.apis.chat_completions import ChatCompletionsApi, ChatCompletionsStream
from hookline.providers.openai import OpenAIModel

from .servers import Said, sse, whole

READ = ToolSpec("files.read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
TIME = ToolSpec("time")
ASKED = ModelRequest((Message("user", "Hi."),))
STORY = (
    Message("system", "Be brief."),
    Message("user", "Read a and b."),
    Message("assistant", "", (ToolCall("c1", "files.read", {"path": "a"}), ToolCall("c2", "files.read", "{broken"))),
    Message("tool", "A", call_id="c1", name="files.read"),
    Message("tool", "no such file", call_id="c2", name="files.read", is_error=True),
    Message("assistant", "One is there."),
    Message("user", "Good."),
)


@pytest.fixture
def chat(script):
    return OpenAIModel("gpt-x", base_url=script.url, max_retries=0)


@pytest.fixture
def responses(script):
    return OpenAIModel("gpt-x", api="responses", base_url=script.url, max_retries=0)


async def streamed(model, request=ASKED):
    *pieces, response = [item async for item in model.stream(request)]
    return pieces, response


def completion(message, finish="stop", **fields):
    usage = {"prompt_tokens": 20, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 12}}
    choices = [{"index": 0, "message": {"role": "assistant", **message}, "finish_reason": finish}]
    return {"id": "1", "model": "gpt-x-2026", "choices": choices, "usage": usage, **fields}


def chunk(delta=None, finish=None, **fields):
    choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
    return {"id": "1", "model": "gpt-x-2026", "choices": choices, **fields}


def part(index, name=None, arguments="", call_id=None):
    named = {} if name is None else {"name": name}
    given = {} if call_id is None else {"id": call_id, "type": "function"}
    return {"tool_calls": [{"index": index, **given, "function": {**named, "arguments": arguments}}]}


LAST = chunk(usage=completion({})["usage"])


# Requests of Chat Completions


async def test_a_conversation_is_sent_as_chat_messages(script, chat):
    script.say(whole(completion({"content": "Yes."})))
    await chat.complete(ModelRequest(STORY, (READ, TIME)))
    (path, headers, body) = script.requests[0]
    assert path == "/chat/completions"
    assert headers["Authorization"].startswith("Bearer ")
    assert body["model"] == "gpt-x"
    assert "stream" not in body
    assert "tool_choice" not in body

    def sent(call_id, arguments):
        return {"id": call_id, "type": "function", "function": {"name": "files_read", "arguments": arguments}}

    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Read a and b."},
        {"role": "assistant", "content": None, "tool_calls": [sent("c1", '{"path":"a"}'), sent("c2", "{}")]},
        {"role": "tool", "tool_call_id": "c1", "content": "A"},
        {"role": "tool", "tool_call_id": "c2", "content": "no such file"},
        {"role": "assistant", "content": "One is there."},
        {"role": "user", "content": "Good."},
    ]
    assert body["tools"][0]["function"] == {
        "name": "files_read",
        "description": "Read a file.",
        "parameters": READ.parameters,
    }
    assert body["tools"][1]["function"]["parameters"] == {"type": "object", "properties": {}}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ("files.read", {"type": "function", "function": {"name": "files_read"}}),
    ],
)
async def test_the_tool_choice_is_sent_in_chat(script, chat, choice, sent):
    script.say(whole(completion({"content": "Yes."})))
    await chat.complete(ASKED.replace(tools=[READ], tool_choice=choice))
    await chat.complete(ASKED.replace(tool_choice=choice))
    assert script.bodies[0]["tool_choice"] == sent
    assert "tool_choice" not in script.bodies[1]


async def test_params_are_sent_under_the_names_of_the_api(script, chat):
    script.say(whole(completion({"content": "Yes."})))
    params = {"temperature": 0.5, "max_tokens": 9, "top_p": 0.9, "stop": ["\n"], "seed": 7, "own_setting": {"a": 1}}
    await chat.complete(ASKED.replace(params=params))
    assert script.bodies[0] == {"model": "gpt-x", "messages": [{"role": "user", "content": "Hi."}], **params}


@pytest.mark.parametrize(
    ("url", "name"),
    [(None, "max_completion_tokens"), ("https://eu.example.org/v1", "max_tokens")],
)
def test_max_completion_tokens_is_used_only_at_openai(url, name):
    model = OpenAIModel("gpt-x", base_url=url, api_key="k")
    assert model._api.body(ASKED.replace(params={"max_tokens": 5}), "gpt-x", None)[name] == 5


async def test_a_hook_may_choose_another_model(script, chat):
    script.say(whole(completion({"content": "Yes."}, model=None)))
    response = await chat.complete(ASKED.replace(model="other"))
    assert script.bodies[0]["model"] == response.model == "other"


CLOSED = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(("schema", "strict"), [(CLOSED, True), ({"type": "object"}, False)])
async def test_a_schema_is_sent(script, chat, responses, schema, strict):
    script.say(whole(completion({"content": "{}"})), whole({"status": "completed", "output": []}))
    for model in (chat, responses):
        await model.complete(ASKED.replace(response_format=schema))
    shape = {"name": "reply", "schema": schema, "strict": strict}
    assert script.bodies[0]["response_format"] == {"type": "json_schema", "json_schema": shape}
    assert script.bodies[1]["text"] == {"format": {"type": "json_schema", **shape}}


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"


class Address(BaseModel):
    city: str = Field("?", min_length=1)


class Person(BaseModel):
    name: str
    home: Address = Field(Address(), description="Where the person lives.")
    kind: Literal["friend"] = "friend"
    pet: Annotated[Cat | Dog, Field(discriminator="kind")] | None = None


async def test_the_schema_of_an_output_type_is_sent_in_strict_mode(script, chat, responses):
    message_item = '{"name": "Ada", "home": {"city": "London"}, "kind": "friend", "pet": {"kind": "cat"}}'
    block = {"type": "message", "content": [{"type": "output_text", "text": message_item}]}
    script.say(whole(completion({"content": message_item})), whole({"status": "completed", "output": [block]}))
    for model in (chat, responses):
        result = await Agent("a", llm=model, output_type=Person).arun("Who?")
        assert result.output == Person(name="Ada", home=Address(city="London"), pet=Cat())
    shape = script.bodies[0]["response_format"]["json_schema"]
    assert script.bodies[1]["text"]["format"] == {"type": "json_schema", **shape}
    assert shape["strict"] is True
    schema = shape["schema"]
    assert schema["required"] == ["name", "home", "kind", "pet"]
    assert schema["additionalProperties"] is False
    assert schema["properties"]["home"] == {"$ref": "#/$defs/Address"}
    assert schema["properties"]["kind"]["enum"] == ["friend"]
    assert schema["$defs"]["Address"]["properties"]["city"] == {"title": "City", "type": "string"}
    sent = json.dumps(schema)
    assert not any(f'"{word}"' in sent for word in ("oneOf", "discriminator", "default", "const", "minLength"))


@pytest.mark.parametrize(
    ("output_type", "strict"), [(list[int], True), (dict[str, int], False), (tuple[int, str], False)]
)
async def test_a_schema_that_cannot_be_strict_is_sent_unchanged(script, chat, output_type, strict):
    spec = OutputSpec(output_type)
    script.say(whole(completion({"content": "{}"})))
    await chat.complete(ASKED.replace(response_format=spec.schema))
    sent = script.bodies[0]["response_format"]["json_schema"]
    assert sent["strict"] is strict
    if not strict:
        assert sent["schema"] == spec.schema


async def test_lone_surrogates_do_not_break_a_request(script, chat):
    script.say(whole(completion({"content": "Yes."})))
    await chat.complete(ModelRequest((Message("user", "a\ud800b"),)))
    assert script.bodies[0]["messages"][0]["content"] == "a?b"


# Requests of the Responses API


async def test_a_conversation_is_sent_as_response_items(script, responses):
    script.say(whole({"status": "completed", "output": []}))
    params = {"max_tokens": 9, "seed": 1, "reasoning": {"effort": "low"}, "temperature": 0}
    request = ModelRequest(STORY, (READ,), tool_choice="files.read", params=params)
    await responses.complete(request)
    assert script.requests[0][0] == "/responses"

    def sent(call_id, arguments):
        return {"type": "function_call", "call_id": call_id, "name": "files_read", "arguments": arguments}

    assert script.bodies[0] == {
        "model": "gpt-x",
        "store": False,
        "input": [
            {"type": "message", "role": "system", "content": "Be brief."},
            {"type": "message", "role": "user", "content": "Read a and b."},
            sent("c1", '{"path":"a"}'),
            sent("c2", "{}"),
            {"type": "function_call_output", "call_id": "c1", "output": "A"},
            {"type": "function_call_output", "call_id": "c2", "output": "no such file"},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "One is there."}]},
            {"type": "message", "role": "user", "content": "Good."},
        ],
        "tools": [
            {
                "type": "function",
                "name": "files_read",
                "description": "Read a file.",
                "parameters": READ.parameters,
                "strict": False,
            }
        ],
        "tool_choice": {"type": "function", "name": "files_read"},
        "max_output_tokens": 9,
        "reasoning": {"effort": "low"},
        "temperature": 0,
    }


@pytest.mark.parametrize("choice", ["auto", "none", "required"])
async def test_the_tool_choice_is_sent_in_responses(script, responses, choice):
    script.say(whole({"status": "completed", "output": []}))
    await responses.complete(ASKED.replace(tools=[READ], tool_choice=choice))
    assert script.bodies[0]["tool_choice"] == choice


async def test_a_schema_is_merged_with_other_text_settings(script, responses):
    script.say(whole({"status": "completed", "output": []}))
    await responses.complete(ASKED.replace(response_format=CLOSED, params={"text": {"verbosity": "low"}}))
    assert set(script.bodies[0]["text"]) == {"format", "verbosity"}


# Replies of Chat Completions


async def test_a_chat_reply_with_text_calls_and_usage(script, chat):
    calls = [
        {"id": "a", "type": "function", "function": {"name": "files_read", "arguments": '{"path": "x"}'}},
        {"id": "b", "type": "function", "function": {"name": "time", "arguments": "{oops"}},
        {"id": "c", "type": "function", "function": {"name": "unheard_of", "arguments": ""}},
    ]
    script.say(
        whole(completion({"content": "Let me look.", "tool_calls": calls}, "tool_calls"), openai_organization="org-1")
    )
    response = await chat.complete(ASKED.replace(tools=[READ, TIME]))
    assert response.content == "Let me look."
    assert response.tool_calls == (
        ToolCall("a", "files.read", {"path": "x"}),
        ToolCall("b", "time", {}, "{oops"),
        ToolCall("c", "unheard_of"),
    )
    assert response.usage == Usage(20, 7, 12)
    assert (response.model, response.provider, response.organization_id) == ("gpt-x-2026", "openai", "org-1")
    assert response.finish_reason == "tool_calls"
    assert response.cost is None


@pytest.mark.parametrize(
    ("finish", "message", "reason"),
    [
        ("stop", {"content": "x"}, "stop"),
        ("length", {"content": "x"}, "length"),
        ("content_filter", {"content": "x"}, "content_filter"),
        ("eos", {"content": "x"}, "other"),
        ("stop", {"content": None, "refusal": "x"}, "content_filter"),
        ("stop", {"content": "x", "tool_calls": [{"function": {"name": "time"}}]}, "tool_calls"),
    ],
)
async def test_the_finish_reason_of_a_chat_reply_is_mapped(script, chat, finish, message, reason):
    script.say(whole(completion(message, finish)), sse(chunk(message), chunk({}, finish), LAST, done=True))
    response = await chat.complete(ASKED)
    assert (response.content, response.finish_reason) == ("x", reason)
    assert await streamed(chat) == (["x"], response)


async def test_usage_is_estimated_if_the_server_does_not_report_it(script, chat):
    script.say(whole(completion({"content": "Well, hello there."}, usage=None)))
    usage = (await chat.complete(ASKED)).usage
    assert 0 < usage.input_tokens < 20
    assert 0 < usage.output_tokens < 20


async def test_a_reply_without_content_is_an_error(script, chat):
    script.say(whole({"choices": []}))
    with pytest.raises(OverloadedError):
        await chat.complete(ASKED)


async def test_a_server_without_the_api_is_unreachable(script, chat):
    script.say(Said([b"<html>Welcome!</html>"], headers={"Content-Type": "text/html"}))
    with pytest.raises(UnreachableError, match="base_url"):
        await chat.complete(ASKED)


# Streams of Chat Completions


async def test_a_chat_stream_requests_usage_and_yields_pieces_then_the_reply(script, chat):
    script.say(
        sse(
            chunk({"role": "assistant", "content": ""}),
            chunk({"content": "Hel"}),
            chunk({"content": "lo."}),
            chunk({}, "stop"),
            LAST,
            done=True,
        ),
        whole(completion({"content": "Hello."})),
    )
    pieces, response = await streamed(chat)
    assert script.bodies[0]["stream"] is True
    assert script.bodies[0]["stream_options"] == {"include_usage": True}
    assert pieces == ["Hel", "lo."]
    assert response == await chat.complete(ASKED)


STREAMS = {
    "interleaved": [
        chunk({"role": "assistant", "content": None}),
        chunk(part(0, "files_read", "", "a")),
        chunk(part(1, "time", "", "b")),
        chunk(part(0, None, '{"pa')),
        chunk(part(1, None, "{}")),
        chunk(part(0, None, 'th": "x"}')),
    ],
    "the second call first": [
        chunk(part(1, "time", "{}", "b")),
        chunk(part(0, "files_read", '{"path": "x"}', "a")),
    ],
    "whole calls in one piece": [
        chunk(
            {
                "tool_calls": [
                    part(0, "files_read", '{"path": "x"}', "a")["tool_calls"][0],
                    part(1, "time", "{}", "b")["tool_calls"][0],
                ]
            }
        ),
    ],
    "all under index 0": [
        chunk(part(0, "files_read", '{"path": "x"}', "a")),
        chunk(part(0, "time", "{}", "b")),
    ],
    "no index": [
        chunk({"tool_calls": [{"id": "a", "function": {"name": "files_read", "arguments": '{"path": '}}]}),
        chunk({"tool_calls": [{"function": {"arguments": '"x"}'}}]}),
        chunk({"tool_calls": [{"id": "b", "function": {"name": "time", "arguments": "{}"}}]}),
    ],
    "id and name every time": [
        chunk(part(0, "files_read", '{"path": ', "a")),
        chunk(part(0, "files_read", '"x"}', "a")),
        chunk(part(1, "time", "", "b")),
        chunk(part(1, "time", "{}", "b")),
    ],
    "arguments as an object": [
        chunk(part(0, "files_read", {"path": "x"}, "a")),
        chunk(part(1, "time", {}, "b")),
    ],
}


@pytest.mark.parametrize("fragments", STREAMS.values(), ids=STREAMS)
async def test_fragments_of_calls_are_put_together(script, chat, fragments):
    script.say(sse(*fragments, chunk({}, "tool_calls"), LAST, done=True))
    pieces, response = await streamed(chat, ASKED.replace(tools=[READ, TIME]))
    assert pieces == []
    assert response.tool_calls == (ToolCall("a", "files.read", {"path": "x"}), ToolCall("b", "time"))
    assert response.finish_reason == "tool_calls"
    assert response.usage == Usage(20, 7, 12)


@given(st.text(max_size=30), st.lists(st.dictionaries(st.text(max_size=5), st.text(max_size=5)), max_size=3), st.data())
def test_a_stream_cut_into_any_fragments_is_the_same_reply(text, arguments, data):
    calls = [
        {"id": f"c{i}", "function": {"name": f"t{i}", "arguments": json.dumps(each)}}
        for i, each in enumerate(arguments)
    ]

    def cut(whole_text):
        at = sorted(data.draw(st.sets(st.integers(0, len(whole_text)), max_size=4)))
        return [whole_text[a:b] for a, b in zip([0, *at], [*at, len(whole_text)], strict=True)]

    events = [chunk({"content": piece}) for piece in cut(text)]
    lanes = [
        [
            chunk(part(i, call["function"]["name"] if n == 0 else None, piece, call["id"] if n == 0 else None))
            for n, piece in enumerate(cut(call["function"]["arguments"]))
        ]
        for i, call in enumerate(calls)
    ]
    while any(lanes):
        lane = data.draw(st.sampled_from([lane for lane in lanes if lane]))
        events.append(lane.pop(0))
    stream = ChatCompletionsStream()
    shown = "".join(stream.add(event) for event in [*events, chunk({}, "stop"), LAST])
    api = ChatCompletionsApi("max_tokens")
    assert shown == text
    assert api.read(stream.whole()) == api.read(completion({"content": text, "tool_calls": calls}))


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sets(st.integers(1, 400), max_size=8))
async def test_the_reply_does_not_depend_on_the_chunks_of_bytes(script, chat, cuts):
    text = b"".join(sse(chunk({"content": "Grüße"}), chunk({"content": " 😀"}, "stop"), LAST, done=True).chunks)
    at = [0, *sorted(cut for cut in cuts if cut < len(text)), len(text)]
    portions = [text[a:b] for a, b in zip(at, at[1:], strict=False)]
    script.turns[:] = [Said(portions, headers={"Content-Type": "text/event-stream"})]
    assert (await streamed(chat))[0] == ["Grüße", " 😀"]


@pytest.mark.parametrize("cut", [False, True])
async def test_an_incomplete_chat_stream_is_an_error(script, chat, cut):
    script.say(sse(chunk({"content": "Hel"}), cut=cut))
    with pytest.raises((OverloadedError, UnreachableError)):
        await streamed(chat)


async def test_text_before_an_error_has_been_yielded(script, chat):
    script.say(sse(chunk({"content": "Hel"}), cut=True))
    stream = chat.stream(ASKED)
    assert await anext(stream) == "Hel"
    with pytest.raises((OverloadedError, UnreachableError)):
        await anext(stream)


# Replies and streams of the Responses API


def response(*output, status="completed", **fields):
    usage = {"input_tokens": 20, "output_tokens": 7, "input_tokens_details": {"cached_tokens": 12}}
    return {"id": "r", "model": "gpt-x-2026", "status": status, "output": list(output), "usage": usage, **fields}


def message_item(text, kind="output_text", field="text"):
    return {"type": "message", "role": "assistant", "content": [{"type": kind, field: text}]}


LOOK = {"type": "function_call", "id": "fc", "call_id": "a", "name": "files_read", "arguments": '{"path": "x"}'}


async def test_a_response_is_the_same_whole_and_streamed(script, responses):
    thought = {"type": "reasoning", "summary": []}
    final = response(thought, message_item("Let me look."), LOOK)
    script.say(
        whole(final),
        sse(
            {"type": "response.created", "response": {"status": "in_progress"}},
            {"type": "response.output_text.delta", "delta": "Let me "},
            {"type": "response.output_text.delta", "delta": "look."},
            {"type": "response.output_item.done", "item": LOOK},
            {"type": "response.completed", "response": final},
            named=True,
        ),
    )
    asked = ASKED.replace(tools=[READ])
    complete = await responses.complete(asked)
    assert complete.content == "Let me look."
    assert complete.tool_calls == (ToolCall("a", "files.read", {"path": "x"}),)
    assert (complete.finish_reason, complete.usage) == ("tool_calls", Usage(20, 7, 12))
    assert await streamed(responses, asked) == (["Let me ", "look."], complete)
    assert script.bodies[1]["stream"] is True


async def test_items_left_out_of_the_last_event_are_taken_from_the_stream(script, responses):
    items = [{"type": "response.output_item.done", "item": item} for item in (message_item("Hi."), LOOK)]
    script.say(sse(*items, {"type": "response.completed", "response": response()}, named=True))
    _, got = await streamed(responses, ASKED.replace(tools=[READ]))
    assert got.content == "Hi."
    assert got.tool_calls[0].name == "files.read"


@pytest.mark.parametrize(
    ("final", "reason"),
    [
        (response(message_item("x")), "stop"),
        (
            response(message_item("x"), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            "length",
        ),
        (
            response(message_item("x"), status="incomplete", incomplete_details={"reason": "content_filter"}),
            "content_filter",
        ),
        (response(message_item("x"), status="incomplete"), "other"),
        (response(message_item("x", "refusal", "refusal")), "content_filter"),
    ],
)
async def test_the_finish_reason_of_a_response_is_mapped(script, responses, final, reason):
    event = {"type": "response.incomplete", "response": final}
    script.say(whole(final), sse(event, named=True))
    complete = await responses.complete(ASKED)
    assert (complete.content, complete.finish_reason) == ("x", reason)
    assert (await streamed(responses))[1] == complete


async def test_an_incomplete_response_stream_is_an_error(script, responses):
    script.say(sse({"type": "response.output_text.delta", "delta": "Hel"}, named=True))
    with pytest.raises(OverloadedError):
        await streamed(responses)


# Options


def test_a_model_needs_a_key_or_a_base_url(monkeypatch):
    with pytest.raises(AuthError, match="set OPENAI_API_KEY, or pass base_url="):
        get_model("openai:gpt-x")
    model = get_model("openai:gpt-x", base_url="http://localhost:1/v1")
    assert isinstance(model, Model)
    assert model.name == "gpt-x"
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert get_model("openai:gpt-x").base_url == "https://api.openai.com/v1"


async def test_missing_options_come_from_the_environment(script, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-env")
    monkeypatch.setenv("OPENAI_BASE_URL", script.url)
    monkeypatch.setenv("OPENAI_ORG_ID", "org-of-env")
    script.say(whole(completion({"content": "Yes."})))
    answer = await get_model("openai:gpt-x").complete(ASKED)
    headers = script.requests[0][1]
    assert headers["Authorization"] == "Bearer key-of-env"
    assert headers["OpenAI-Organization"] == "org-of-env"
    assert answer.organization_id == "org-of-env"


async def test_whitespace_around_a_key_is_removed(script, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", " key-of-env\n")
    script.say(whole(completion({"content": "Yes."})))
    await OpenAIModel("gpt-x", base_url=script.url).complete(ASKED)
    assert script.requests[0][1]["Authorization"] == "Bearer key-of-env"


@pytest.mark.parametrize("key", ["sk-…", "sk-one\nsk-two"])
def test_an_invalid_key_is_reported_without_the_key(key):
    with pytest.raises(AuthError, match="copy it again") as raised:
        OpenAIModel("gpt-x", api_key=key)
    assert "sk-" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "options", "problem"),
    [
        ("openai:", {}, "openai:NAME"),
        ("openai", {}, "openai:NAME"),
        ("openai:x", {"api": "respones"}, "Did you mean 'responses'"),
        ("openai:x", {"base_url": "localhost:8080/v1"}, "http://"),
        ("openai:x", {"base_url": "http://localhost:port/v1"}, "http://"),
        ("openai:x", {"base_url": "http://[::1/v1"}, "http://"),
        ("openai:x", {"base_url": "http://"}, "http://"),
        ("openai:x", {"colour": "red"}, "colour"),
        ("openai:x", {"timeout": 0}, "timeout"),
        ("openai:x", {"max_retries": -1}, "max_retries"),
    ],
)
def test_invalid_options_are_rejected(name, options, problem):
    with pytest.raises(RegistrationError, match=problem):
        get_model(name, **{"api_key": "k", **options})


def test_the_api_can_be_chosen_by_name():
    assert get_model("openai:x", api_key="k", api="responses")._api.path == "/responses"


def test_a_missing_package_says_how_to_install_it(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "openai", None)
    with pytest.raises(NotInstalledError, match=r"pip install .*\[openai\]"):
        OpenAIModel("gpt-x", api_key="k")


# In an agent


def test_an_agent_calls_tools_whose_names_the_api_does_not_allow(script, chat):
    @tool(name="files.read")
    def read(path: str) -> str:
        """Read a file."""
        return f"<{path}>"

    script.say(
        sse(*STREAMS["no index"][:2], chunk({}, "tool_calls"), LAST, done=True),
        sse(chunk({"content": "It says <x>."}), chunk({}, "stop"), LAST, done=True),
    )

    @hook("on_token")
    def listen(ctx, token):
        return None

    agent = Agent("reader", llm=chat, tools=[read], hooks=[listen])
    result = agent.run("Read x.")
    assert result.reply == "It says <x>."
    assert result.tool_names == ("files.read",)
    assert script.bodies[1]["messages"][-1] == {"role": "tool", "tool_call_id": "a", "content": "<x>"}
