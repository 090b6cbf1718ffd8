"""The embedded model chooses tools by likelihood and takes arguments from the conversation."""

import pytest

from hookline import Agent, Message, ModelRequest, RegistrationError, tool
from hookline.models import LocalModel
from hookline.payloads import ToolCall
from hookline.providers.local.constrained_decoding import divided

pytestmark = pytest.mark.timeout(600)


@tool
def weather(city: str) -> dict:
    """Look up the weather in a city.

    Args:
        city: the name of the city.
    """
    return {"degrees": 14, "sky": "rain"}


@tool
def phone_number(name: str) -> str:
    """Look up the phone number of a person.

    Args:
        name: the name of the person.
    """
    return "555-0134"


@tool
def start_timer(minutes: int) -> str:
    """Start a timer.

    Args:
        minutes: how long.
    """
    return "started"


TOOLS = [weather, phone_number, start_timer]


async def calls_for(model, *messages, **options):
    request = ModelRequest(messages, tools=[made.spec for made in TOOLS], **options)
    return [(call.name, dict(call.arguments)) for call in (await model.complete(request)).tool_calls]


@pytest.mark.slow
@pytest.mark.parametrize("text", ["hello", "Thank you!", "How are you?"])
async def test_small_talk_is_answered_without_a_call(local, text):
    assert await calls_for(local, Message("user", text), params={"max_tokens": 5}) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("What is the weather in Timbuktu?", ("weather", {"city": "Timbuktu"})),
        ("Give me the phone number of Xavier.", ("phone_number", {"name": "Xavier"})),
        ("Start a timer of 37 minutes.", ("start_timer", {"minutes": 37})),
    ],
)
async def test_the_arguments_of_a_call_are_values_of_the_request(local, text, call):
    assert await calls_for(local, Message("user", text)) == [call]


@pytest.mark.slow
def test_a_request_for_two_calls_gets_both_in_order(local):
    text = "Look up the weather in Timbuktu, then start a timer of 37 minutes."
    result = Agent("a", llm=local, tools=TOOLS).run(text)
    made = [(call.name, dict(call.arguments)) for message in result.messages for call in message.tool_calls]
    assert made == [("weather", {"city": "Timbuktu"}), ("start_timer", {"minutes": 37})]
    assert result.status == "completed"


@pytest.mark.slow
async def test_a_required_call_is_made_even_if_all_planned_calls_are_done(local):
    call = ToolCall("1", "weather", {"city": "Rome"})
    history = (
        Message("user", "What is the weather in Rome?"),
        Message("assistant", "", (call,)),
        Message("tool", "rain", call_id="1", name="weather"),
    )
    assert await calls_for(local, *history) == []
    assert len(await calls_for(local, *history, tool_choice="required")) == 1


async def test_without_grounding_the_model_itself_decides(local, engine, monkeypatch):
    monkeypatch.setattr(engine, "likelihood", lambda prompt, text: pytest.fail("a likelihood was asked for"))
    await calls_for(LocalModel(ground=False), Message("user", "hello"), params={"max_tokens": 3})


def test_grounding_is_on_or_off():
    with pytest.raises(RegistrationError, match="ground"):
        LocalModel(ground="yes")


def test_a_divided_request_asks_for_one_call_at_a_time():
    first = Message("assistant", "", (ToolCall("1", "weather", {"city": "Rome"}),))
    result = Message("tool", "rain", call_id="1")
    parts = {"weather": "the weather in Rome", "start_timer": "and a timer"}
    asked = Message("user", "the weather in Rome and a timer")
    assert [m.content for m in divided([asked], parts, "weather")] == ["the weather in Rome"]
    texts = [m.content for m in divided([asked, first, result], parts, "start_timer")]
    assert texts == ["the weather in Rome", "", "rain", "and a timer"]
