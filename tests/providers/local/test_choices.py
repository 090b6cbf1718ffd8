"""A request that says it plainly decides: values of enumerations, switches, and which of two opposite tools."""

from typing import Literal

import pytest

from hookline import Agent, Message, ModelRequest, tool
from hookline.providers.local.choices import RequestWords, open_question, possible, with_answer
from tests.cases import each_case


@each_case(
    ("text", "values", "left"),
    [
        ("Turn off the lights", ["on", "off"], ["off"]),
        ("Please turn the lights off.", ["on", "off"], ["off"]),
        ("Turn off the lights on the terrace", ["on", "off"], ["off"]),
        ("Switch on the lamp", ["on", "off"], ["on"]),
        ("The lights on the terrace are too dark", ["on", "off"], ["on", "off"]),
        ("Unlock the front door", ["lock", "open"], ["open"]),
        ("Unlock the front door", ["locked", "unlocked"], ["unlocked"]),
        ("Close the valve", ["open", "closed"], ["closed"]),
        ("Shut the valve", ["open", "closed"], ["closed"]),
        ("Stop the pump", ["started", "stopped"], ["stopped"]),
        ("Rotate it to the left", ["left", "right"], ["left"]),
        ("Rotate it clockwise", ["left", "right"], ["left", "right"]),
        ("It is out of stock", ["in_stock", "out_of_stock"], ["out_of_stock"]),
        ("Paint it dark green", ["green", "dark green"], ["dark green"]),
        ("Label it bug or feature", ["bug", "feature", "question"], ["bug", "feature"]),
        ("Don't turn the heating off", ["on", "off"], ["on", "off"]),
        ("Reserve a table for 4", [2, 4, 6], [4]),
        ("One ticket please", ["on", "off"], ["on", "off"]),
    ],
)
def test_values_that_the_request_names_are_left(text, values, left):
    assert RequestWords(text).choose(values) == left


@each_case(
    ("text", "name", "value"),
    [
        ("Make it urgent", "urgent", True),
        ("It is not urgent", "is_urgent", False),
        ("Send it without express", "express", False),
        ("Disable the alarm", "enabled", False),
        ("Unlock it", "locked", False),
        ("Send the parcel", "express", None),
        ("Send the parcel, express no", "express", False),
    ],
)
def test_a_switch_is_true_if_the_request_names_it(text, name, value):
    assert RequestWords(text).switch(name) is value


@tool
def lock_door(door: str) -> str:
    """Lock a door."""
    return f"The {door} door is locked."


@tool
def weather_in(city: str) -> str:
    """Look up the weather in a city."""
    return "14 degrees"


@tool
def set_light(room: str, state: Literal["on", "off"]) -> str:
    """Switch the light of a room.

    Args:
        room: the name of the room.
        state: on or off.
    """
    return f"The light in the {room} is {state}."


@tool
def send_parcel(to: str, insured: bool) -> str:
    """Send a parcel to a person."""
    return "sent"


def request(text, *tools, before=()):
    return ModelRequest([*before, Message("user", text)], tools=[made.spec for made in tools])


@each_case(
    ("text", "left"),
    [
        ("Unlock the front door", ["weather_in"]),
        ("Lock the front door", ["lock_door", "weather_in"]),
        ("Lock the front door and unlock the back door", ["lock_door", "weather_in"]),
        ("Find out the weather in Rome", ["lock_door", "weather_in"]),
        ("Lock the door: unlock codes are on the list", ["lock_door", "weather_in"]),
    ],
)
def test_a_tool_that_does_the_opposite_is_not_possible(text, left):
    assert [spec.name for spec in possible(request(text, lock_door, weather_in)).tools] == left


@tool
def convert_units(amount: float) -> str:
    """Convert an amount."""
    return "2"


@tool
def discard_card(name: str) -> str:
    """Discard a card."""
    return "discarded"


@tool
def block_card(card: str) -> str:
    """Block a library card."""
    return "blocked"


@each_case(
    ("text", "made", "is_left"),
    [
        ("Unblock card L-377", block_card, False),
        ("Allow card L-377 again", block_card, False),
        ("Block card L-377", block_card, True),
        ("Convert its 5 miles", convert_units, True),
        ("Throw the red card away", discard_card, True),
    ],
)
def test_a_word_has_the_opposites_of_the_list_and_those_with_a_prefix(text, made, is_left):
    assert bool(possible(request(text, made)).tools) is is_left


@each_case(
    ("text", "made", "question"),
    [
        ("Switch the light of the kitchen", set_light, "Which state: on or off?"),
        ("Switch off the light of the kitchen", set_light, ""),
        ("Send a parcel to Ada", send_parcel, "Is it insured: yes or no?"),
        ("Send an insured parcel to Ada", send_parcel, ""),
    ],
)
def test_a_choice_that_the_request_leaves_open_is_asked(text, made, question):
    asked = request(text, made)
    assert open_question(asked, made.name, asked.messages) == question


def test_the_answer_to_a_question_completes_the_request_and_another_request_does_not():
    before = [Message("user", "Switch the light of the kitchen."), Message("assistant", "Which state: on or off?")]
    (whole,) = with_answer([*before, Message("user", "off, please")])
    assert whole.content == "Switch the light of the kitchen, state off, please"
    other = [*before, Message("user", "What is the weather in Rome?")]
    assert with_answer(other) == other


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_embedded_model_does_what_was_said_or_asks(local):
    agent = Agent("house", llm=local, tools=[set_light, lock_door])
    done = agent.run("Turn off the light in the kitchen")
    assert [call.arguments["state"] for message in done.messages for call in message.tool_calls] == ["off"]
    unlocked = agent.run("Unlock the front door")
    assert unlocked.reply == "I have no tool for that, only one for the opposite: Lock a door."
    assert [call for message in unlocked.messages for call in message.tool_calls] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_reply_after_two_calls_has_both_results(local):
    agent = Agent("house", llm=local, tools=[weather_in, lock_door])
    result = agent.run("Look up the weather in Rome, then lock the front door")
    assert [call.name for message in result.messages for call in message.tool_calls] == ["weather_in", "lock_door"]
    assert "14" in result.reply
    assert "locked" in result.reply
