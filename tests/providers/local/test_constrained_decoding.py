"""Constrained decoding: requests and parsing of replies."""

import json

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from hookline import Message, ModelRequest
from hookline.payloads import ToolCall, ToolSpec
from hookline.providers.apis.common import ToolNames
from hookline.providers.local.constrained_decoding import AnswerReader, ConstrainedApi

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]})
ASK = (Message("user", "What is 1 + 2?"),)
SHAPE = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def dialect(**options):
    return ConstrainedApi(ModelRequest(ASK, **{"tools": (ADD,), **options}))


def read(text, finish="stop", **options):
    return dialect(**options).read({"choices": [{"message": {"content": text}, "finish_reason": finish}]})


def body(*messages, **options):
    request = ModelRequest(messages or ASK, **options)
    return ConstrainedApi(request).body(request, "m", ToolNames.from_request(request))


@st.composite
def split(draw, texts):
    """A text in JSON, escaped or not, in pieces of any size."""
    text = draw(texts)
    raw = json.dumps({"answer": text}, ensure_ascii=draw(st.booleans()))
    cuts = sorted(draw(st.lists(st.integers(0, len(raw)), max_size=8)))
    return text, [raw[a:b] for a, b in zip([0, *cuts], [*cuts, len(raw)], strict=True)]


@given(split(st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from('\\"/\n\t😀é\u2028'))))
@example(("😀", list('{"answer": "\\ud83d\\ude00"}')))
@example(('\\"', list('{"answer": "\\\\\\""}')))
def test_an_answer_is_read_however_it_is_split(case):
    text, pieces = case
    reader = AnswerReader()
    assert "".join(map(reader.add, pieces)) == text
    assert AnswerReader().add("".join(pieces)) == text


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("\\ud83d", "?"),
        ("\\ude00", "?"),
        ("\\ud83d!", "?!"),
        ("\\ud83d\\n!", "?\n!"),
        ("\\ud83d\\u0041", "?A"),
        ("\\ud83d\\ud83d\\ude00", "?😀"),
        ("\\ude00\\ud83d", "??"),
        ("\\d", "\\d"),
    ],
)
def test_a_lone_surrogate_does_not_break_the_answer(written, text):
    raw = f'{{"answer": "{written}"}}'
    reader = AnswerReader()
    assert "".join(map(reader.add, raw)) == AnswerReader().add(raw) == text


@given(st.lists(st.sampled_from(['{"answer": "', '"', "\\", "u", "d83d", "\\ud83d", "\\ude00", "a", "}", "n"])))
def test_no_text_crashes_the_reader(pieces):
    reader = AnswerReader()
    assert "".join(map(reader.add, pieces)) == AnswerReader().add("".join(pieces))


@pytest.mark.parametrize("text", ["", "Hello", '{"tool": "add", "arguments": {}}', '{"answer": 5}', '["answer"]'])
def test_text_without_an_answer_shows_nothing(text):
    assert AnswerReader().add(text) == ""


def test_a_call_is_read():
    reply = read('{"tool": "add", "arguments": {"a": 1}}')
    assert [(call.name, dict(call.arguments), call.raw) for call in reply.tool_calls] == [("add", {"a": 1}, None)]
    assert (reply.content, reply.finish_reason) == ("", "tool_calls")


@pytest.mark.parametrize("text", ["three", "", 'say "3" \\ 😀'])
def test_an_answer_is_read(text):
    reply = read(json.dumps({"answer": text}))
    assert (reply.content, reply.tool_calls, reply.finish_reason) == (text, [], "stop")


@pytest.mark.parametrize(
    "text",
    [
        '{"tool": "add"',
        '{"tool": "add", "argu',
        '{"tool": "add", "arguments": ',
        '{"tool": "add", "arguments": {"a": 1',
    ],
)
def test_an_incomplete_call_is_never_taken_for_a_complete_one(text):
    reply = read(text, "length")
    (call,) = reply.tool_calls
    assert (call.name, dict(call.arguments)) == ("add", {})
    assert call.raw
    assert reply.finish_reason == "length"


def test_a_call_with_all_its_arguments_is_complete():
    reply = read('{"tool": "add", "arguments": {"a": 1}', "length")
    assert [(dict(call.arguments), call.raw) for call in reply.tool_calls] == [({"a": 1}, None)]


def test_the_name_in_a_cut_call_is_the_tools_own():
    assert read('{"tool": "sa\\"y\\u00fc", "arguments": {', "length").tool_calls[0].name == 'sa"yü'


@pytest.mark.parametrize("text", ['{"', '{"tool": "ad', '{"answer": ', '{"answer": "'])
def test_json_that_is_cut_before_any_content_is_empty(text):
    reply = read(text, "length")
    assert (reply.content, reply.tool_calls, reply.finish_reason) == ("", [], "length")


def test_an_incomplete_answer_keeps_its_text():
    assert read('{"answer": "one, two', "length").content == "one, two"


def test_a_structured_answer_is_its_json():
    reply = read('{"answer": {"n": 3}}', response_format=SHAPE)
    assert json.loads(reply.content) == {"n": 3}
    assert read('{"answer": {"n": 3', "length", response_format=SHAPE).content == '{"n": 3'


def test_deeply_nested_arguments_are_an_error():
    (call,) = read('{"tool": "add", "arguments": {"a": ' + "[" * 5000, "length").tool_calls
    assert call.raw.startswith('{"a": [')


def test_prose_stays_text():
    assert read("Hello!").content == "Hello!"
    assert read('{"tool": "add"', tools=()).content == '{"tool": "add"'


def test_only_the_answer_is_streamed():
    shown = {}
    for text in ('{"answer": "yes"}', '{"tool": "add", "arguments": {"a": 1}}'):
        stream = dialect().stream()
        shown[text] = "".join(stream.add({"choices": [{"index": 0, "delta": {"content": piece}}]}) for piece in text)
    assert list(shown.values()) == ["yes", ""]


def test_a_schema_is_sent_instead_of_tools():
    made = body(tools=(ADD,))
    assert "tools" not in made
    assert "tool_choice" not in made
    branches = made["response_format"]["json_schema"]["schema"]["anyOf"]
    assert [sorted(branch["properties"]) for branch in branches] == [["arguments", "tool"], ["answer"]]


@pytest.mark.parametrize(("choice", "tools"), [("required", ["add", "say"]), ("add", ["add"])])
def test_a_forced_call_leaves_no_other_branch(choice, tools):
    made = body(tools=(ADD, ToolSpec("say")), tool_choice=choice)
    branches = made["response_format"]["json_schema"]["schema"]["anyOf"]
    assert [branch["properties"]["tool"]["const"] for branch in branches] == tools


def test_without_tools_there_is_no_schema():
    made = body(tools=(ADD,), tool_choice="none")
    assert "response_format" not in made
    assert [message["role"] for message in made["messages"]] == ["user"]


def test_params_of_the_request_win():
    made = body(tools=(ADD,), params={"max_tokens": 7, "temperature": 0.5, "top_k": 3})
    assert (made["max_tokens"], made["temperature"], made["top_k"]) == (7, 0.5, 3)


@pytest.mark.parametrize("tools", [(), (ADD,)], ids=["alone", "with tools"])
def test_calls_and_results_become_text_that_the_template_can_show(tools):
    history = (
        Message("system", "Be brief."),
        *ASK,
        Message("assistant", "Let me see.", (ToolCall("1", "add", {"a": 1}), ToolCall("2", "add", {"a": 2}))),
        Message("tool", "1 it is", call_id="1", name="add"),
        Message("tool", "went wrong", call_id="2", name="add", is_error=True),
        Message("tool", "of nobody"),
        Message("assistant", "Done."),
        Message("user", "And now?"),
    )
    made = body(*history, tools=tools)["messages"]
    assert all(set(message) == {"role", "content"} and isinstance(message["content"], str) for message in made)
    calling, one, two, orphan, done, last = [message["content"] for message in made][-6:]
    written = calling.splitlines()
    assert written[0] == "Let me see."
    assert [json.loads(line) for line in written[1:]] == [
        {"tool": "add", "arguments": {"a": 1}},
        {"tool": "add", "arguments": {"a": 2}},
    ]
    assert "1 it is" in one
    assert "went wrong" in two
    assert one.split("1 it is")[0] != two.split("went wrong")[0]
    assert "of nobody" in orphan
    assert "Done." in done
    assert "And now?" in last
    assert made[0]["role"] == "system"
    assert "Be brief." in made[0]["content"]
    assert [message["role"] for message in made].count("system") == 1


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"type": "string"}}},
        {"type": ["object", "null"], "properties": {"a": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"type": "string"}}, "default": "x", "examples": [3]},
        {"anyOf": [{"type": "string"}]},
    ],
)
def test_the_arguments_of_a_tool_are_an_object_whatever_its_schema_says(schema):
    request = ModelRequest([Message("user", "go")], (ToolSpec("look", "Look.", schema),))
    body = ConstrainedApi(request).body(request, "m", ToolNames.from_request(request))
    call = json.loads(body["messages"][2]["content"])
    assert call["tool"] == "look"
    assert isinstance(call["arguments"], dict)
