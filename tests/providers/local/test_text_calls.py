"""Calls in the text of a reply, and a model file whose template supports tools."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Agent, Message, ModelRequest, tool
from hookline.payloads import ToolSpec
from hookline.providers.apis.common import ToolNames
from hookline.providers.local.text_calls import TextCallsApi, find_calls

ADD = ToolSpec("add", "Add.", {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}})
SAY = ToolSpec("say", "Say.", {"type": "object", "properties": {"text": {"type": "string"}}})
READ = ToolSpec("files.read", "Read a file.", {"type": "object", "properties": {"path": {"type": "string"}}})
TOOLS = (ADD, SAY, READ)


def found(text):
    left, calls = find_calls(text, TOOLS)
    return left, [(call.name, dict(call.arguments)) for call in calls]


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "add", "arguments": {"a": 1}}',
        '{"name": "add", "arguments": "{\\"a\\": 1}"}',
        '{"tool": "add", "parameters": {"a": 1}}',
        '{"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}',
        '[{"name": "add", "arguments": {"a": 1}}]',
        '```json\n{"name": "add", "arguments": {"a": 1}}\n```',
        '```\n{"name": "add", "arguments": {"a": 1}}',
        "```python\nadd(a=1)\n```",
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>',
        '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n',
        "<function_call>add(a=1)</function_call>",
        "add(a=1)",
        "add(1)",
        "[add(a=1)]",
        "`add(a=1)`",
        " add( a = 1 ) ",
    ],
)
def test_a_call_is_found_in_every_form(text):
    assert found(text) == ("", [("add", {"a": 1})])


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("""say(text="he said \\"hi\\", 'bye' and (so) on")""", {"text": """he said "hi", 'bye' and (so) on"""}),
        ("""say(text='{"name": "add"}')""", {"text": '{"name": "add"}'}),
        ('{"name": "say", "arguments": {"text": "a \\"b\\" \\u00fc 😀"}}', {"text": 'a "b" ü 😀'}),
        ("say(text=[1, {'x': None}, -1.5, True, (2,)])", {"text": [1, {"x": None}, -1.5, True, [2]]}),
        ("say(text='''two\nlines''')", {"text": "two\nlines"}),
        ("say()", {}),
    ],
)
def test_arguments_are_read_as_they_are_written(text, arguments):
    assert found(text) == ("", [("say", arguments)])


@pytest.mark.parametrize(
    "text",
    [
        '[{"name": "add", "arguments": {"a": 1}}, {"name": "say", "arguments": {"text": "]"}}]',
        '{"name": "add", "arguments": {"a": 1}}\n{"name": "say", "arguments": {"text": "]"}}',
        "[add(a=1), say(text=']')]",
        "add(1), say(']')",
        "add(a=1)\nsay(text=']')",
        "```\nadd(a=1)\n```\n```\nsay(text=']')\n```",
        '<tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call><tool_call>say("]")</tool_call>',
    ],
)
def test_several_calls_are_found_in_order(text):
    assert found(text) == ("", [("add", {"a": 1}), ("say", {"text": "]"})])


def test_text_around_calls_is_kept():
    text = 'First.\nadd(a=1)\nThen\n<tool_call>{"name": "say"}</tool_call> last.'
    left, calls = found(text)
    assert left.split() == ["First.", "Then", "last."]
    assert [name for name, _ in calls] == ["add", "say"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "add",
        "I would call add(a=1) for this.",
        "Use `add(a=1)` or say nothing.",
        "add(a=1) + 1",
        "x = add(a=1)",
        "subtract(a=1)",
        '{"name": "subtract", "arguments": {}}',
        '[{"name": "add", "arguments": {}}, {"name": "subtract", "arguments": {}}]',
        "[add(a=1), subtract(b=2)]",
        '{"name": "add", "arguments": {"a": 1',
        '<tool_call>{"name": "add", "arguments": {"a": 1</tool_call>',
        '{"name": ["add"]}',
        '"add"',
        "[]",
        "add(a=b)",
        "add(a=open('x'))",
        "add(1, 2, 3)",
        "add(*[1])",
        "add(**{'a': 1})",
        "add(a={1, 2})",
        "add(a=b'1')",
        "add(a=1)(b=2)",
    ],
)
def test_text_that_is_not_a_call_stays_text(text):
    assert find_calls(text, TOOLS) == (text, [])


PARTS = st.sampled_from(
    [
        "add(",
        "add",
        "a=1",
        "{",
        "}",
        "[",
        "]",
        ")",
        '"',
        "'",
        "\\",
        "\n",
        "`",
        "```",
        "<tool_call>",
        "</tool_call>",
        ",",
        '"name": "add"',
        '"arguments": ',
        "{}",
        "(",
        ".",
        "*",
        "lambda: ",
        "\\d",
        "\0",
        "é",
        "1e999",
        "say",
        ":",
        " ",
    ]
)


@given(st.text() | st.lists(PARTS, max_size=12).map("".join))
def test_no_text_crashes_the_search(text):
    left, calls = find_calls(text, TOOLS)
    assert calls or left == text
    assert all(call.name in ("add", "say", "files.read") and call.raw is None for call in calls)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 5000,
        '{"name":' * 3000,
        "add(" * 3000,
        "add" + "(1)" * 3000,
        "add(a=" + "[" * 3000,
        "add(a=" + "9" * 6000 + ")",
        "add(a=" + "-" * 3000 + "1)",
        "add(a=1+" * 500,
    ],
    ids=lambda text: text[:12],
)
def test_deeply_nested_text_stays_text(text):
    assert find_calls(text, TOOLS) == (text, [])


def chunks(*pieces):
    yield from ({"choices": [{"index": 0, "delta": {"content": piece}, "finish_reason": None}]} for piece in pieces)
    yield {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def streamed(*pieces, **options):
    request = ModelRequest((Message("user", "Hi."),), tools=TOOLS, **options)
    dialect = TextCallsApi(request, ToolNames.from_request(request))
    stream = dialect.stream()
    shown = [stream.add(chunk) for chunk in chunks(*pieces)]
    return "".join(shown), dialect.read(stream.whole())


def test_text_is_shown_as_it_arrives():
    shown, reply = streamed("The", " sum", " is 3.")
    assert shown == reply.content == "The sum is 3."
    assert (reply.tool_calls, reply.finish_reason) == ([], "stop")


@pytest.mark.parametrize(
    "pieces",
    [("ad", "d(", "a=1)"), ("<tool", '_call>{"name": "add", ', '"arguments": {"a": 1}}'), ("\n", "```\n", "add(a=1)")],
)
def test_a_call_that_arrives_in_pieces_is_not_shown(pieces):
    shown, reply = streamed(*pieces)
    assert (shown, reply.content) == ("", "")
    assert [(call.name, dict(call.arguments)) for call in reply.tool_calls] == [("add", {"a": 1})]
    assert reply.finish_reason == "tool_calls"


@pytest.mark.parametrize("written", ["files_read", "files.read"])
def test_a_tool_may_be_called_by_its_encoded_name(written):
    _, reply = streamed(f'{{"name": "{written}", "arguments": {{"path": "x"}}}}')
    names = ToolNames.from_request(ModelRequest((), tools=TOOLS))
    assert [names.decode(call.name) for call in reply.tool_calls] == ["files.read"]


def test_with_tool_choice_none_no_call_is_found():
    shown, reply = streamed("add(a=1)", tool_choice="none")
    assert shown == reply.content == "add(a=1)"
    assert (reply.tool_calls, reply.finish_reason) == ([], "stop")


def test_a_model_with_a_tool_template_gets_the_tools_through_it(taught):
    plain = ModelRequest((Message("user", "Hi."),))
    request = plain.replace(tools=TOOLS)
    names = ToolNames.from_request(request)
    body = taught._api(taught.load(), request, names).body(request, "m", names)
    assert [entry["function"]["name"] for entry in body["tools"]] == ["add", "say", "files_read"]
    assert "grammar" not in body
    assert "response_format" not in body


async def test_the_template_really_shows_the_tools(taught):
    plain = ModelRequest((Message("user", "Hi."),), params={"max_tokens": 1})
    without = await taught.complete(plain)
    with_tool = await taught.complete(plain.replace(tools=(ADD,)))
    assert with_tool.usage.input_tokens > without.usage.input_tokens + 20
    assert without.usage.input_tokens == taught.count_tokens(plain.messages)


@pytest.mark.parametrize(
    "written", ["math_add(a=1, b=2)", '<tool_call>\n{"name": "math_add", "arguments": {"a": 1, "b": 2}}\n</tool_call>']
)
async def test_a_call_that_the_model_writes_is_found(taught, written):
    shown = (Message("user", "1 and 2"), Message("assistant", written)) * 2
    tools, params = (ADD.replace(name="math.add"),), {"max_tokens": 40, "temperature": 0}
    request = ModelRequest((*shown, Message("user", "1 and 2")), tools=tools, params=params)
    *pieces, reply = [item async for item in taught.stream(request)]
    assert [call.name for call in reply.tool_calls] == ["math.add"]
    assert reply.finish_reason == "tool_calls"
    assert "".join(pieces) == reply.content


async def test_a_model_with_a_tool_template_can_be_forced_to_call(taught):
    request = ModelRequest(
        (Message("user", "Hi."),), tools=(ADD,), tool_choice="required", params={"max_tokens": 40, "temperature": 0}
    )
    reply = await taught.complete(request)
    assert [call.name for call in reply.tool_calls] == ["add"]


@pytest.mark.parametrize("tools", [(), (ADD,)], ids=["alone", "with tools"])
async def test_a_model_with_a_tool_template_follows_a_schema_that_llama_cpp_would_drop(taught, tools):
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer", "minimum": 2, "maximum": 4}},
        "required": ["n"],
        "not": {"required": ["m"]},
        "minProperties": 1,
    }
    request = ModelRequest(
        (Message("user", "Hi."),), tools=tools, response_format=schema, params={"max_tokens": 30, "temperature": 0}
    )
    reply = await taught.complete(request)
    assert reply.tool_calls or reply.content in ('{"n": 2}', '{"n": 3}', '{"n": 4}', '{"n":2}', '{"n":3}', '{"n":4}')


def test_a_run_on_a_model_with_a_tool_template_ends(taught):
    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    result = Agent("helper", llm=taught, tools=[add], params={"max_tokens": 8}).run("1 + 2?")
    assert result.status in ("completed", "stopped")
    assert result.usage.input_tokens > 0
