"""Parsing of chat requests."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline._kernel.values import Message
from hookline.server.chat.request import ChatError, ChatTask, parse_request
from tests.properties import examples

HI = {"role": "user", "content": "Hi."}


def asked(*messages, **fields):
    return parse_request(json.dumps({"model": "helper", "messages": messages or [HI], **fields}).encode())


def refusal(*messages, **fields):
    with pytest.raises(ChatError) as caught:
        asked(*messages, **fields)
    assert caught.value.status == 400
    return caught.value.code, caught.value.param, str(caught.value)


def test_the_last_user_message_is_the_task_and_the_rest_is_the_history():
    found = asked(HI, {"role": "assistant", "content": "Hello."}, {"role": "user", "content": "And now?"})
    assert found == ChatTask(
        "helper", "And now?", (Message("user", "Hi."), Message("assistant", "Hello.")), False, False
    )


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert asked({"role": "user", "content": parts}).task == "one\ntwo"


@pytest.mark.parametrize("role", ["system", "developer"])
def test_system_messages_of_a_caller_become_user_messages(role):
    instruction = {"role": role, "content": "You are a pirate."}
    for messages in ([instruction, HI], [HI, instruction]):
        found = asked(*messages)
        assert found.task == "Hi."
        assert found.history == (Message("user", f"[{role} message of the caller]\nYou are a pirate."),)


def test_calls_and_results_of_the_callers_tools_become_text():
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"city":"Bonn"}'}}
    found = asked(
        HI,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "rain"},
        {"role": "assistant", "content": "old", "function_call": {"name": "f", "arguments": ""}},
        {"role": "function", "name": "f", "content": "x"},
        {"role": "assistant", "content": ""},
        {"role": "user", "content": "So?"},
    )
    assert [(message.role, message.content) for message in found.history] == [
        ("user", "Hi."),
        ("assistant", '[called weather with {"city":"Bonn"}]'),
        ("user", "[result of weather, which the caller ran]\nrain"),
        ("assistant", "old\n[called f with nothing]"),
        ("user", "[result of f, which the caller ran]\nx"),
    ]
    assert not any(message.tool_calls or message.call_id for message in found.history)


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"n": 2}, "n"),
        ({"n": 0}, "n"),
        ({"tools": [{"type": "function"}]}, "tools"),
        ({"functions": [{}]}, "functions"),
        ({"logprobs": True}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"audio": {"voice": "x"}}, "audio"),
    ],
)
def test_unsupported_parameters_are_rejected_by_name(fields, param):
    assert refusal(**fields)[:2] == ("unsupported_parameter", param)


@pytest.mark.parametrize(
    ("role", "part"),
    [
        ("user", {"type": "video_url"}),
        ("user", {}),
        ("system", {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}}),
        ("assistant", {"type": "input_audio", "input_audio": {}}),
    ],
)
def test_parts_that_a_message_cannot_have_are_rejected_with_advice(role, part):
    given = {"role": role, "content": [{"type": "text", "text": "look"}, part]}
    code, param, message = refusal(given, {"role": "user", "content": "x"})
    assert (code, param) == ("unsupported_parameter", "messages[0].content[1]")
    assert "describe it in words" in message


@pytest.mark.parametrize(
    ("part", "why"),
    [
        ({"type": "image_url", "image_url": {"url": "data:"}}, "expected data:TYPE;base64,DATA"),
        ({"type": "image_url", "image_url": {"url": "file:///etc/passwd"}}, "expected a URL that begins with data:"),
        ({"type": "input_audio", "input_audio": {}}, "expected text in Base64"),
        ({"type": "file", "file": {"file_id": "f"}}, "file_data: expected text"),
        ({"type": "image_url", "image_url": {"url": "data:image/png;base64,QUJD"}}, "does not begin like such a file"),
    ],
)
def test_files_that_cannot_be_attached_are_rejected_by_name(part, why):
    code, param, message = refusal({"role": "user", "content": [{"type": "text", "text": "look"}, part]})
    assert (code, param) == ("invalid_request", "messages[0].content[1]")
    assert why in message


def test_files_of_the_user_are_attached_to_their_messages():
    def picture(name):
        return {"type": "image_url", "image_url": {"url": f"https://example.com/{name}.png"}}

    found = asked(
        {"role": "user", "content": [{"type": "text", "text": "first"}, picture("one")]},
        {"role": "assistant", "content": "A cat."},
        {"role": "user", "content": [{"type": "text", "text": "and this?"}, picture("two")]},
    )
    assert (found.task, [each.name for each in found.attachments]) == ("and this?", ["two.png"])
    assert [[each.name for each in message.attachments] for message in found.history] == [["one.png"], []]


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([{"role": "system", "content": "x"}], "messages"),
        ([HI, {"role": "assistant", "content": "I"}], "messages"),
        ([HI, {"role": "tool", "content": "x"}], "messages"),
        ([{"role": "user", "content": " "}], "messages[0].content"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "king", "content": "x"}], "messages[0].role"),
        ([{"role": "user", "content": 1}], "messages[0].content"),
        ([{"role": "user", "content": [{"type": "text", "text": 1}]}], "messages[0].content[0]"),
    ],
)
def test_a_conversation_without_a_task_is_rejected(messages, param):
    assert refusal(*messages)[:2] == ("invalid_request", param)


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b"\xff", b'{"model":"x"}', b'{"model":"","messages":[]}', b"[" * 100_000]
)
def test_an_invalid_chat_request_is_rejected(body):
    with pytest.raises(ChatError) as caught:
        parse_request(body)
    assert caught.value.status == 400


def test_model_settings_are_accepted_and_have_no_effect():
    ignored = {
        "temperature": 2,
        "top_p": 0.1,
        "max_tokens": 5,
        "max_completion_tokens": 5,
        "stop": ["x"],
        "seed": 1,
        "user": "u",
        "metadata": {"user_role": "admin"},
        "n": 1,
        "tools": [],
        "logprobs": False,
        "store": True,
        "response_format": {"type": "text"},
        "tool_choice": "none",
        "parallel_tool_calls": True,
        "future": [1],
    }
    assert asked(**ignored) == asked()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)
part = st.fixed_dictionaries(
    {}, optional={"type": st.sampled_from(["text", "refusal", "image_url"]) | json_values, "text": json_values}
)
call = st.fixed_dictionaries({}, optional={"id": json_values, "function": json_values, "custom": json_values})
message = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "user", "assistant", "tool", "function"])},
    optional={
        "content": st.text(max_size=5) | st.lists(part, max_size=2) | json_values,
        "tool_calls": st.lists(call, max_size=2) | json_values,
        "function_call": json_values,
        "tool_call_id": json_values,
        "name": json_values,
    },
)
body = json_values | st.fixed_dictionaries(
    {"model": st.just("helper") | json_values, "messages": st.lists(message, max_size=4) | json_values},
    optional=dict.fromkeys(
        ("stream", "stream_options", "n", "tools", "response_format", "modalities", "logprobs", "audio"), json_values
    ),
)


@pytest.mark.slow
@settings(max_examples=examples(60))
@given(body)
def test_any_json_is_accepted_or_rejected(value):
    try:
        found = parse_request(json.dumps(value).encode())
    except ChatError as error:
        refused = error.status
    else:
        refused = None
        assert found.task.strip()
        assert {message.role for message in found.history} <= {"user", "assistant"}
    assert refused in (None, 400)


@settings(max_examples=examples(25))
@given(st.binary(max_size=40))
def test_any_bytes_are_accepted_or_rejected(value):
    with pytest.raises(ChatError):
        parse_request(value)
