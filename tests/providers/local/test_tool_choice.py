"""Which tools a request is about, from the likelihood of its words."""

import pytest

from hookline import Message, ModelRequest, tool
from hookline.payloads import ToolCall
from hookline.providers.local.tool_choice import named_tool, plan, planned_calls


@tool
def weather(city: str) -> str:
    """Tell the weather."""
    return city


@tool
def timer(minutes: int) -> str:
    """Start a timer."""
    return str(minutes)


def shared_words(prompt, text):
    """A likelihood that knows only whether a word is in the prompt."""
    return [-1.0 if word.strip(".,?!").casefold() in prompt.casefold() else -6.0 for word in text.split()]


def request(text, **options):
    return ModelRequest([Message("user", text)], [weather.spec, timer.spec], **options)


@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("How is the weather?", [("weather", "How is the weather?")]),
        ("hello", []),
        ("", []),
        ("Start a timer 5, tell the weather.", [("timer", "Start a timer 5,"), ("weather", "tell the weather.")]),
        ("Tell the weather and start a timer.", [("weather", "Tell the weather"), ("timer", "and start a timer.")]),
    ],
)
def test_a_request_is_divided_among_the_tools_that_its_words_are_about(text, calls):
    assert planned_calls(request(text), shared_words) == calls


def test_a_required_call_is_planned_for_a_greeting_too():
    assert len(planned_calls(request("hello", tool_choice="required"), shared_words)) == 1


def test_of_many_tools_those_with_words_of_the_request_are_looked_at():
    others = [timer.spec.replace(name=f"other_{index}", description="Do something.") for index in range(40)]
    looked = []

    def likelihood(prompt, text):
        looked.append(prompt)
        return shared_words(prompt, text)

    many = ModelRequest([Message("user", "How is the weather?")], [*others, weather.spec])
    assert [call.tool for call in planned_calls(many, likelihood)] == ["weather"]
    assert len(looked) < 20


def test_a_tool_that_explains_nothing_more_is_not_called():
    assert plan({"a": [-1, -1, -1], "b": [-2, -2, -2]}, [[-9, -9, -9]]) == ["a"]


@pytest.mark.parametrize(
    ("text", "tools"),
    [
        ("Start a timer.", []),
        ("Start a timer of 5 minutes.", ["timer"]),
        ("Start a timer of five minutes.", ["timer"]),
        ("Tell the weather and start a timer.", ["weather", "timer"]),
    ],
)
def test_a_tool_is_not_the_first_to_be_called_if_its_number_would_be_invented(text, tools):
    assert [call.tool for call in planned_calls(request(text), shared_words)] == tools


def test_a_result_does_not_change_the_plan():
    asked = request("Tell the weather.")
    calls = (ToolCall("1", "weather", {"city": "Rome"}),)
    later = [*asked.messages, Message("assistant", "", calls), Message("tool", "It is 25 degrees.", call_id="1")]
    assert planned_calls(asked.replace(messages=later), shared_words) == planned_calls(asked, shared_words)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Tell the weather: Rome", "weather"),
        ("Please start a timer of 5 minutes.", "timer"),
        ("Tell the weather and start a timer", None),
        ("Start a timer. Is it cold?", None),
        ("How is the weather?", None),
        ("", None),
    ],
)
def test_a_request_in_the_words_of_one_description_needs_no_plan(text, name):
    assert named_tool(request(text)) == name
