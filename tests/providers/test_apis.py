"""Tool names and schemas that the APIs allow."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookline import Message, ModelRequest
from hookline.payloads import ToolCall, ToolSpec
from hookline.providers.apis.chat_completions import ChatCompletionsApi
from hookline.providers.apis.common import ToolNames, is_strict, is_valid_name
from hookline.providers.apis.messages import MessagesApi
from hookline.providers.apis.responses import ResponsesApi


def test_a_valid_name_is_sent_unchanged():
    assert ToolNames(["read_file", "a-b"]).encode("read_file") == "read_file"


def test_a_dot_becomes_an_underscore():
    names = ToolNames(["files.read"])
    assert names.encode("files.read") == "files_read"
    assert names.decode("files_read") == "files.read"


def test_a_valid_name_wins_over_one_that_would_become_equal():
    names = ToolNames(["files.read", "files_read"])
    assert names.encode("files_read") == names.decode("files_read") == "files_read"
    assert names.decode(names.encode("files.read")) == "files.read"


def test_an_unknown_name_is_returned_unchanged():
    assert ToolNames([]).decode("made_up") == "made_up"


def test_names_in_the_history_are_known_too():
    request = ModelRequest((Message("assistant", "", (ToolCall("c", "old.tool"),)),), (ToolSpec("new.tool"),))
    names = ToolNames.from_request(request)
    assert [names.decode(name) for name in ("old_tool", "new_tool")] == ["old.tool", "new.tool"]


@given(st.lists(st.text(max_size=80), max_size=6))
@example(["a.b", "a_b", "a b"])
@example(["x" * 70, "x" * 71, ""])
def test_every_name_becomes_valid_and_converts_back(given_names):
    names = ToolNames(given_names)
    sent = [names.encode(name) for name in given_names]
    assert all(map(is_valid_name, sent))
    assert [names.decode(name) for name in sent] == given_names


CLOSED = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"], "additionalProperties": False}


@pytest.mark.parametrize(
    ("schema", "strict"),
    [
        (CLOSED, True),
        ({**CLOSED, "properties": {"a": CLOSED}}, True),
        ({**CLOSED, "properties": {"a": {"type": "array", "items": CLOSED}}}, True),
        ({**CLOSED, "properties": {"a": {"enum": [{"default": 1}]}}}, True),
        ({**CLOSED, "properties": {"default": {"type": "string"}}, "required": ["default"]}, True),
        ({"type": "array", "items": CLOSED}, False),
        ({"type": "object"}, False),
        ({**CLOSED, "required": []}, False),
        ({**CLOSED, "additionalProperties": True}, False),
        ({**CLOSED, "properties": {"a": {"type": "object"}}}, False),
        ({**CLOSED, "properties": {"a": {"type": "array", "items": {"type": "object"}}}}, False),
        ({**CLOSED, "properties": {"a": {"type": "string", "default": "x"}}}, False),
        ({**CLOSED, "$defs": {"b": {"type": "object"}}}, False),
        ({**CLOSED, "properties": {"a": {"title": "Anything"}}}, False),
        ({**CLOSED, "properties": {"a": {"type": "array", "items": {}}}}, False),
    ],
)
def test_a_schema_is_strict_if_all_its_parts_are(schema, strict):
    assert is_strict(schema) is strict


@pytest.mark.parametrize("dialect", [ChatCompletionsApi("max_tokens"), ResponsesApi(), MessagesApi(10)])
def test_a_result_without_a_call_is_sent_as_a_user_message(dialect):
    body = dialect.body(ModelRequest((Message("tool", "Noon."),)), "m", ToolNames(()))
    (sent,) = body.get("messages") or body["input"]
    assert sent["role"] == "user"
