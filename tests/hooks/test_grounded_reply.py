"""GroundedReplyHook: an omitted tool result is added to the reply."""

import pytest

from hookline import call, reply, tool
from hookline.hooks import GroundedReplyHook
from hookline.testing import scripted_agent


def final(text, given, task="What is it?", **options):
    @tool
    def look() -> object:
        """Look."""
        if isinstance(given, Exception):
            raise given
        return given

    agent = scripted_agent([call("look"), reply(text)], tools=[look], hooks=[GroundedReplyHook()], **options)
    return agent.run(task).reply


@pytest.mark.parametrize(
    ("text", "given", "added"),
    [
        ("It is done.", {"degrees": 14, "sky": "rain"}, "Degrees: 14, sky: rain."),
        ("It is done.", 132, "132."),
        ("It is done.", "9.1 meters", "9.1 meters."),
        ("It is 555-1343.", "555-0134", "555-0134."),
        ("The timer is 35.", {"status": "ok", "timer_id": "tm-35"}, "Status: ok, timer id: tm-35."),
        ("Good morning!", "The order comes on Friday.", "The order comes on Friday."),
        ("It is 1.10.", {"price": -3}, "Price: -3."),
        ("Yes.", ["oak", "ash"], "Oak, ash."),
    ],
)
def test_an_omitted_result_is_added(text, given, added):
    assert final(text, given) == f"{text} {added}"


@pytest.mark.parametrize(
    ("text", "given"),
    [
        ("It is 14 degrees and rainy.", {"degrees": 14, "sky": "rain"}),
        ("132.", 132),
        ("It is 70.", 70.0),
        ("It is 70.0 now", 70),
        ("It comes on friday", "The order comes on Friday."),
        ("An OAK.", ["oak", "ash"]),
        ("Done.", None),
        ("Done.", True),
        ("Done.", {}),
        ("Done.", ""),
        ("", {"degrees": 14}),
    ],
)
def test_a_reply_with_the_result_stays_unchanged(text, given):
    assert final(text, given) == text


def test_words_of_the_user_are_not_new_information():
    assert final("It is done.", "Order B52 is delivered", "When is order B52 delivered? Is it?") == "It is done."


def test_of_many_numbers_one_word_is_enough():
    assert final("There are 3 of them.", list(range(20))) == "There are 3 of them."
    assert final("There are some.", list(range(20))).startswith("There are some. 0, 1, 2")


def test_a_failed_call_adds_nothing():
    assert final("That did not work.", ValueError("code 17")) == "That did not work."


def test_with_a_response_format_nothing_is_added():
    assert final("{}", {"degrees": 14}, response_format={"type": "object"}) == "{}"


def test_a_run_without_tool_calls_stays_unchanged():
    assert scripted_agent([reply("Hello 5.")], hooks=[GroundedReplyHook()]).run("Hi").reply == "Hello 5."


def test_a_huge_result_is_added_in_short_form():
    assert len(final("Done.", "word " * 1_000_000 + "99")) < 300
