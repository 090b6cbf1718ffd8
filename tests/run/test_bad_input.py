"""Mistakes of models, users and hooks have a defined outcome, never a hang or a stray traceback."""

import pytest

from hookline import (
    BEFORE_LLM,
    BEFORE_TOOL,
    HookError,
    HookRegistry,
    RegistrationError,
    RunFailedError,
    hook,
    observer,
    reply,
    tool,
)
from hookline.models import ModelResponse
from hookline.payloads import ToolCall
from hookline.testing import EventLog, scripted_agent

seen = []


@tool
def note(text: str = "", data: dict | None = None) -> str:
    """Note something."""
    seen.append((text, data))
    return f"{len(text)}"


def run_with(*calls, hooks=()):
    seen.clear()
    agent = scripted_agent(
        [ModelResponse(tool_calls=calls), reply("done")], tools=[note], hooks=hooks, sinks=[EventLog()]
    )
    result = agent.run("x")
    assert result.status == "completed"
    return [m.content for m in result.messages if m.role == "tool"], result


@pytest.mark.parametrize("sent", ["[1, 2]", "3", '"text"', "true", [1, 2], 3])
def test_arguments_that_are_json_but_no_object(sent):
    (text,), result = run_with(ToolCall("c", "note", sent))
    assert text.startswith("The arguments of note are not a JSON object. You sent: ")
    assert result.steps[0].outcomes == ("error",)
    assert seen == []


@pytest.mark.parametrize("sent", ['{"text": ', "text=hello", "{'text': 'x'}", "\ud800"])
def test_arguments_that_are_no_json(sent):
    (text,), result = run_with(ToolCall("c", "note", sent))
    assert "not a JSON object" in text
    assert result.messages[1].tool_calls[0].arguments == {}
    assert result.messages[1].tool_calls[0].raw == sent
    assert seen == []


@pytest.mark.parametrize("sent", ["", "  ", None, "null", {}])
def test_no_arguments_at_all_are_an_empty_object(sent):
    (text,), _ = run_with(ToolCall("c", "note", sent))
    assert text == "0"


def test_a_hook_can_repair_the_arguments_of_the_model():
    @hook(BEFORE_TOOL)
    def mend(ctx, request):
        if request.raw:
            return request.replace(arguments={"text": request.raw.removeprefix("text=")})

    (text,), _ = run_with(ToolCall("c", "note", "text=hello"), hooks=[mend])
    assert text == "5"
    assert seen == [("hello", None)]


def test_the_error_for_an_unknown_tool_suggests_a_similar_name():
    (text,), _ = run_with(ToolCall("c", "notes", {}))
    assert text == "Unknown tool 'notes'. Did you mean 'note'? Available tools: note."


def test_an_empty_tool_name():
    (text,), _ = run_with(ToolCall("c", "", {}))
    assert text == "The tool name is empty. Available tools: note."


def test_duplicate_and_empty_call_ids_are_replaced():
    texts, result = run_with(*(ToolCall(i, "note", {"text": t}) for i, t in [("a", "x"), ("a", "xx"), ("", "xxx")]))
    assert texts == ["1", "2", "3"]
    ids = [c.id for c in result.messages[1].tool_calls]
    assert ids[0] == "a"
    assert len(set(ids)) == 3
    assert [m.call_id for m in result.messages if m.role == "tool"] == ids


def test_a_ten_megabyte_argument_works():
    (text,), _ = run_with(ToolCall("c", "note", '{"text": "' + "x" * 10_000_000 + '"}'))
    assert text == "10000000"


@pytest.mark.parametrize("depth", [198, 250, 5000, 200_000])
def test_deeply_nested_arguments(depth):
    sent = '{"data": ' + '{"a": ' * depth + "1" + "}" * depth + "}"
    (text,), result = run_with(ToolCall("c", "note", sent))
    assert ("not a JSON object" in text) == (depth > 198)
    assert result.steps[0].outcomes == (("ok",) if depth == 198 else ("error",))


def test_a_reply_with_neither_text_nor_calls_stops_the_run_with_a_message():
    result = scripted_agent([ModelResponse()]).run("x")
    assert (result.status, result.stop.kind, result.reply) == ("stopped", "unknown", "")
    assert "neither text nor tool calls" in result.stop.message


@pytest.mark.parametrize("value", [True, "yes", 0, object(), [1]])
def test_a_hook_that_returns_a_bare_value_fails_and_the_error_says_what_is_allowed(value):
    @hook(BEFORE_LLM)
    def wrong(ctx, request):
        return value

    expected = r"hook 'wrong' at before_llm returned .*expected None or a HookResult or a ModelRequest"
    with pytest.raises(RunFailedError, match=expected):
        scripted_agent([reply("x")], hooks=[wrong]).run("x")


def test_an_unknown_point_is_an_error_at_registration_with_the_nearest_name():
    with pytest.raises(RegistrationError, match=r"unknown point 'befor_tool'\. Did you mean 'before_tool'\?"):
        hook("befor_tool")(lambda ctx, payload: None)
    with pytest.raises(RegistrationError, match="Did you mean"):
        HookRegistry().on("BeforeToolUs", lambda ctx, payload: None)


async def test_errors_name_hook_and_point():
    registry = HookRegistry([hook(BEFORE_LLM, name="mine")(lambda ctx, p: 1 / 0)])
    with pytest.raises(HookError, match="hook 'mine' failed at before_llm: ZeroDivisionError"):
        await registry.fire(BEFORE_LLM, {})


def test_text_that_is_no_valid_unicode_breaks_nothing():
    @tool
    def names() -> list[str]:
        """List names."""
        return ["ok", "bad \udcff"]

    log = EventLog()
    result = scripted_agent(
        [ModelResponse(tool_calls=(ToolCall("c", "names", {}),)), reply("done \udcff")], tools=[names], sinks=[log]
    ).run("x \udcff")
    assert result.status == "completed"
    assert "bad ?" in result.messages[2].content
    assert result.to_json()
    assert all(event.to_json() for event in log)


@pytest.mark.parametrize("error", [SystemExit(3), StopIteration("x"), GeneratorExit()])
def test_odd_exceptions_of_tools_are_error_results(error):
    @tool
    def odd() -> str:
        """Raise."""
        raise error

    agent = scripted_agent([ModelResponse(tool_calls=(ToolCall("c", "odd", {}),)), reply("ok")], tools=[odd])
    result = agent.run("x")
    assert result.status == "completed"
    assert result.steps[0].outcomes == ("error",)


def test_an_exception_that_cannot_be_printed_breaks_nothing():
    class Unprintable(Exception):
        def __str__(self):
            raise ValueError("no")

    @tool
    def odd() -> str:
        """Raise."""
        raise Unprintable

    @observer(BEFORE_LLM)
    def watch(ctx, request):
        raise Unprintable

    agent = scripted_agent(
        [ModelResponse(tool_calls=(ToolCall("c", "odd", {}),)), reply("ok")], tools=[odd], hooks=[watch]
    )
    result = agent.run("x")
    assert result.status == "completed"
    assert result.messages[2].content == "Unprintable: an error that cannot be printed"
