"""EchoedPayloadHook: echoed JSON becomes a sentence."""

import json

import pytest

from hookline import BEFORE_LLM, RegistrationError, Session, call, hook, reply, tool
from hookline.hooks import EchoedPayloadHook
from hookline.testing import scripted_agent

DATA = {"item": "lamp", "price": 12, "in_stock": True, "colors": ["red", "blue"]}
WORDS = "Item: lamp, price: 12, in stock: yes, colors: red, blue."


@tool
def price_of(item: str) -> dict:
    """Look up a price."""
    return DATA


@tool
def news() -> str:
    """Tell the news."""
    return "Nothing happened."


def final(text, turn=None, hooks=None, **options):
    turns = [turn or call("price_of", item="lamp"), reply(text)]
    agent = scripted_agent(turns, tools=[price_of, news], hooks=hooks or [EchoedPayloadHook()], **options)
    return agent.run("How much is a lamp?").reply


@pytest.mark.parametrize(
    "echo",
    [
        json.dumps(DATA),
        json.dumps(DATA, indent=2),
        f"```json\n{json.dumps(DATA)}\n```",
        f"```\n{json.dumps(DATA, indent=4)}\n```",
        f"  {json.dumps(DATA)}\n",
        '{"price": 12}',
        json.dumps(DATA, separators=(",", ":"))[:30],
        '```json\n{"item": "lamp", "price": 1',
    ],
)
def test_an_echo_becomes_a_sentence_made_of_the_result(echo):
    assert final(echo) == WORDS


@pytest.mark.parametrize(
    "text",
    [
        "A lamp costs 12 dollars.",
        f"Here it is: {json.dumps(DATA)}",
        '{"price": 13}',
        '{"greeting": "hello"}',
        '{"price": 12, "greeting": "hello"}',
        '["red"]',
        "[12]",
        "{",
        "[1] is a footnote",
        "12",
        "",
    ],
)
def test_other_replies_stay_unchanged(text):
    assert final(text) == text


def test_a_sentence_from_a_tool_stays_unchanged():
    assert final("Nothing happened.", call("news")) == "Nothing happened."


def test_with_a_response_format_an_echo_stays():
    assert final(json.dumps(DATA), response_format={"type": "object"}) == json.dumps(DATA)


def test_if_the_user_asked_for_json_an_echo_stays():
    turns = [call("price_of", item="lamp"), reply('{"price": 12}')]
    agent = scripted_agent(turns, tools=[price_of], hooks=[EchoedPayloadHook()])
    assert agent.run("The price of a lamp as JSON, please").reply == '{"price": 12}'


def test_only_a_complete_array_is_an_echo():
    @tool
    def ids() -> list:
        """Ids."""
        return [1, 2]

    for text, said in {"[1, 2]": "1, 2.", "[1]": "[1]"}.items():
        agent = scripted_agent([call("ids"), reply(text)], tools=[ids], hooks=[EchoedPayloadHook()])
        assert agent.run("Which?").reply == said


def test_data_of_an_earlier_turn_is_not_an_echo():
    agent = scripted_agent(
        [call("price_of", item="lamp"), reply("12"), reply(json.dumps(DATA))],
        tools=[price_of],
        hooks=[EchoedPayloadHook()],
    )
    run = agent.run("a")
    assert agent.run("b", session=Session(messages=run.messages)).reply == json.dumps(DATA)


def test_the_fallback_can_be_a_text_or_a_function():
    assert final('{"price": 12}', hooks=[EchoedPayloadHook("Found: {result}")]) == f"Found: {WORDS}"
    assert final('{"price": 12}', hooks=[EchoedPayloadHook("Please ask again.")]) == "Please ask again."
    assert final('{"price": 12}', hooks=[EchoedPayloadHook(lambda value: f"${value['price']}")]) == "$12"


def test_model_calls_of_hooks_stay_unchanged():
    seen = []

    @hook(BEFORE_LLM)
    async def judge(ctx, request):
        if request.hop == 1 and request.purpose == "step":
            seen.append((await ctx.llm.complete("Data?", purpose="judge")).content)

    turns = [call("price_of", item="lamp"), reply('{"price": 12}'), reply("12 dollars")]
    assert scripted_agent(turns, tools=[price_of], hooks=[EchoedPayloadHook(), judge]).run("x").reply == "12 dollars"
    assert seen == ['{"price": 12}']


@pytest.mark.parametrize("fallback", [None, "", "  ", 3, ["a"]])
def test_invalid_arguments_are_rejected(fallback):
    with pytest.raises(RegistrationError, match="fallback must be a text, or a function"):
        EchoedPayloadHook(fallback)
