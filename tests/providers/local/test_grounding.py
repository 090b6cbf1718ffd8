"""Arguments from the conversation: which values the grammar allows."""

import json
import random
import re
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Message, tool
from hookline.providers.local.grounding import ConversationWords, call_grammar


@tool
def order(item: str, quantity: int = 1, note: str = "") -> str:
    """Order an item.

    Args:
        item: what to order.
        quantity: how many.
        note: anything else.
    """
    return item


class Letters:
    """A tokenizer with a token for each letter."""

    def __call__(self, texts):
        return [[ord(letter) for letter in text] for text in texts]


def grammar(made, *texts, role="user"):
    return call_grammar(made.spec, ConversationWords([Message(role, text, call_id="1") for text in texts]), Letters())


def spans(text):
    """Return all values that the rules of ``span`` allow."""
    rules = {
        name: [part.split() for part in choices.split(" | ")]
        for name, choices in re.findall(r"^(span|w\d+_\d+): (.*)$", text, re.MULTILINE)
    }

    def values(name):
        for choice in rules[name]:
            begin = "".join(chr(int(token[2:-2])) for token in choice if token.startswith("<["))
            rest = [rule for rule in choice if not rule.startswith("<[")]
            yield from (begin + more for more in values(rest[0])) if rest else [begin]

    return {json.loads(f'"{value}"') for value in values("span")}


@tool
def book_cabin(ship: str, side: Literal["inside", "outside"]) -> str:
    """Book a place to sleep on a ship.

    Args:
        ship: which ship.
        side: inside or outside.
    """
    return ship


@pytest.mark.parametrize(
    ("text", "allowed"),
    [
        ("I want an outside place on Polaris", False),
        ("I want an outside place on the Outside Star", True),
        ("I want a place on the Star, inside or outside", True),
    ],
)
def test_a_word_that_is_the_value_of_a_choice_is_no_text_unless_it_stands_twice(text, allowed):
    found = spans(grammar(book_cabin, text))
    assert any("outside" in value.casefold() for value in found) is allowed
    assert any("Polaris" in value or "Star" in value for value in found)


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


@given(st.lists(WORDS, min_size=1, max_size=12).map(" ".join), st.randoms())
def test_every_text_that_the_grammar_allows_stands_in_the_conversation(text, chance: random.Random):
    made = grammar(order, text)
    if "\nspan: " in made:
        found = sorted(spans(made))
        for value in chance.sample(found, min(5, len(found))):
            assert value
            assert value in " ".join(text.split())


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Order apples.", "apples"),
        ("Please order green apples for the party", "green apples"),
        ('Order "The Old Man and the Sea" now', "The Old Man and the Sea"),
        ("What about /var/log/x-07?", "/var/log/x-07"),
        ("Write to ann@example.org, please", "ann@example.org"),
        ("Ask Dr. Singh.", "Dr. Singh"),
        ("Go to 12 Green Street, Springfield", "12 Green Street, Springfield"),
        ("Käse für Zoë", "Käse für Zoë"),
        ("It is 2026-03-14 today", "2026-03-14"),
    ],
)
def test_a_value_may_be_any_run_of_words(text, value):
    assert value in spans(grammar(order, text))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("Order apples in the shop", "apples in"),
        ("Order apples in the shop", "the shop"),
        ("Order the blue item", "blue item"),
        ("Please order apples", "order apples"),
        ("Apples. Pears!", "Apples. Pears"),
        ("Pick apples, then pears", "apples, then"),
        ("Order apples", "app"),
    ],
)
def test_a_value_has_no_words_around_it(text, value):
    assert value not in spans(grammar(order, text))


def test_values_of_tool_results_can_be_used_and_their_keys_cannot():
    made = spans(grammar(order, '{"doctor": "Ana Novak", "floor": [3, {"door": "blue"}]}', role="tool"))
    assert made == {"Ana", "Novak", "Ana Novak", "3", "blue"}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("Add 6 eggs", [6]),
        ("68.5 kg and 1.75 m", [68.5, 1.75]),
        ("It was -3 degrees", [-3]),
        ("Pay $75 or 1,200 euros", [75, 1200]),
        ("on 2026-03-14 at 18:30 in web-07", []),
        ("run 5km in twelve minutes", [5, 12]),
        ("9" * 5000, []),
    ],
)
def test_the_numbers_of_a_conversation_are_those_that_stand_alone(text, numbers):
    assert ConversationWords([Message("user", text)]).numbers == numbers


@pytest.mark.parametrize(
    ("text", "quantity"),
    [("Order apples", None), ("Order 6 apples", '("6")'), ("Order apples for 2026-03-14", None)],
)
def test_an_optional_number_is_given_only_if_the_user_named_one(text, quantity):
    start = grammar(order, text).splitlines()[1]
    assert ("quantity" in start) == (quantity is not None)
    assert quantity is None or f'quantity\\": " {quantity}' in start


def test_composed_text_and_parameters_that_opt_out_are_free():
    made = tool(lambda to, body, topic: None, name="write", description="Write.")
    fields = {"to": {"type": "string"}, "body": {"type": "string"}, "topic": {"type": "string", "x-grounded": False}}
    spec = made.spec.replace(parameters={"type": "object", "properties": fields, "required": list(fields)})
    text = call_grammar(spec, ConversationWords([Message("user", "Write to Ann")]), Letters())
    start = text.splitlines()[1]
    assert re.findall(r'\\"(\w+)\\": " "\\"" span', start) == ["to"]
    assert re.findall(r'\\"(\w+)\\": " json', start) == ["body", "topic"]


def test_a_conversation_without_words_leaves_text_free():
    assert "span" not in grammar(order, "👍 — of the")


@pytest.mark.parametrize("text", ['Order 3 apples \\ for "Zoë\'s" <|im_end|> party\n{x}', "?", "ab " * 2000])
def test_llama_accepts_the_grammar_of_any_conversation(engine, text):
    fields = {
        "größe": {"type": "string"},
        "many": {"type": "array", "items": {"type": "string"}},
        "kind": {"enum": ["a", "b"]},
        "deep": {"type": "object", "properties": {"x": {"type": "number"}}},
        "maybe": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
    }
    spec = order.spec.replace(parameters={"type": "object", "properties": fields, "required": ["größe", "kind"]})
    made = call_grammar(spec, ConversationWords([Message("user", text)]), engine.tokenize)
    replies = []
    engine._server.handle_completions(
        {"prompt": "x", "n_predict": 60, "temperature": 0.0, "grammar": made}, replies.append
    )
    assert replies[-1]["choices"][0]["text"].startswith('{"tool": "order", "arguments": {"größe": "')


@tool
def carry(item: str, quantity: int) -> str:
    """Carry something."""
    return item


def test_a_number_that_the_tool_needs_is_not_part_of_a_text():
    found = spans(grammar(carry, "Get me 25 bags of rice."))
    assert "rice" in found
    assert not any("25" in value for value in found)


def test_of_more_numbers_than_the_tool_needs_each_may_be_part_of_a_text():
    assert "Mill Road 8" in spans(grammar(carry, "Bring 2 pizzas to Mill Road 8."))
