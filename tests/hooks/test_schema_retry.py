"""SchemaRetryHook: help with invalid tool arguments."""

from typing import Literal

import pytest

from hookline import BEFORE_LLM, Agent, RegistrationError, call, get_model, hook, reply, tool
from hookline.hooks import SchemaRetryHook
from hookline.payloads import ToolSpec
from hookline.testing import scripted_agent


@tool
def pay(amount: int, to: str, how: Literal["cash", "card"] = "cash") -> str:
    """Pay somebody.

    Args:
        amount: in dollars.
        to: who gets it.
    """
    return f"paid {amount} to {to}"


GOOD, WRONG = call("pay", amount=5, to="Ann"), call("pay", amount="much")


def run(turns, *hooks, tools=(pay,)):
    agent = scripted_agent(turns, tools=tools, hooks=hooks or [SchemaRetryHook()])
    return agent.run("Pay Ann 5 dollars."), [request.tool_choice for request in agent.model.requests]


def test_the_model_gets_the_schema_and_must_call_the_tool_again():
    result, choices = run([WRONG, GOOD, reply("Done.")])
    hint = result.messages[2].content
    assert hint.startswith("Invalid arguments for pay")
    assert "- amount (integer, required): in dollars." in hint
    assert '- how (one of ["cash","card"], optional)' in hint
    assert choices == [None, "pay", None]
    assert result.reply == "Done."


def test_after_the_last_retry_of_a_tool_the_plain_error_stands():
    result, choices = run([WRONG, WRONG, reply("No.")])
    assert "Call pay again" in result.messages[2].content
    assert "Call pay again" not in result.messages[4].content
    assert choices == [None, "pay", None]
    _, choices = run([WRONG, WRONG, WRONG, reply("No.")], SchemaRetryHook(2))
    assert choices == [None, "pay", "pay", None]


def test_each_run_has_its_own_count():
    agent = scripted_agent([WRONG, reply("a"), WRONG, reply("b")], tools=[pay], hooks=[SchemaRetryHook()])
    assert "Call pay again" in agent.run("x").messages[2].content
    assert "Call pay again" in agent.run("x").messages[2].content


def test_an_unknown_tool_and_a_successful_call_are_not_changed():
    result, choices = run([call("play"), GOOD, reply("x")])
    assert "Unknown tool" in result.messages[2].content
    assert choices == [None, None, None]


@tool
def broken() -> str:
    """Break."""
    raise ConnectionError("lost")


def test_other_failures_are_retried_only_with_any_error():
    result, choices = run([call("broken"), reply("x")], tools=[broken])
    assert (result.messages[2].content, choices) == ("ConnectionError: lost", [None, None])
    result, choices = run([call("broken"), reply("x")], SchemaRetryHook(any_error=True), tools=[broken])
    assert (result.messages[2].content, choices) == ("ConnectionError: lost", [None, "broken"])


def test_a_timeout_is_not_retried():
    @tool
    def transfer() -> str:
        """Transfer."""
        raise TimeoutError("no answer")

    _, choices = run([call("transfer"), reply("x")], SchemaRetryHook(any_error=True), tools=[transfer])
    assert choices == [None, None]


def test_any_valid_schema_and_tool_name_works():
    @tool(name="before_llm")
    def odd(a: int) -> str:
        """Odd."""
        return "ok"

    odd.spec.parameters  # noqa: B018 - it is made once
    odd.__dict__["spec"] = ToolSpec("before_llm", "", {"properties": {"a": {"type": "integer"}, "b": True}})
    result, choices = run([call("before_llm", a="x"), reply("x")], tools=[odd])
    assert "- b (anything, optional)" in result.messages[2].content
    assert choices == [None, "before_llm"]


def test_a_tool_choice_of_another_hook_is_kept():
    @hook(BEFORE_LLM, priority=100)
    def none(ctx, request):
        return {"tool_choice": "none"}

    _, choices = run([WRONG, reply("x")], SchemaRetryHook(), none)
    assert choices == ["none", "none"]


def test_a_tool_that_is_no_longer_offered_is_not_required():
    @hook(BEFORE_LLM, priority=100)
    def without(ctx, request):
        return {"tools": ()} if request.hop else None

    _, choices = run([WRONG, reply("x")], SchemaRetryHook(), without)
    assert choices == [None, None]


@pytest.mark.parametrize("given", [0, -1, True, 1.0, "2", None])
def test_invalid_arguments_are_rejected(given):
    with pytest.raises(RegistrationError, match="max_retries_per_tool must be a whole number"):
        SchemaRetryHook(given)


@pytest.mark.slow
def test_the_embedded_model_calls_the_required_tool():
    attempts = []

    @tool
    def set_timer(minutes: int) -> str:
        """Set a timer for a number of minutes."""
        attempts.append(minutes)
        if len(attempts) == 1:
            raise ConnectionError("busy")
        return "Timer T45 is running."

    agent = Agent("small", llm=get_model("local"), tools=[set_timer], hooks=[SchemaRetryHook(any_error=True)])
    result = agent.run("Set a timer for 15 minutes.")
    assert result.steps[0].outcomes == ("error",)
    assert result.steps[1].tool_names == ("set_timer",)
    assert len(attempts) == 2


@tool
def tell(person: str, message: str, day: Literal["today", "tomorrow"] = "today", room: str = "hall") -> str:
    """Tell somebody something."""
    return f"told {person}"


def told(*turns, **options):
    hooks = [SchemaRetryHook(grounded=True, **options)]
    agent = scripted_agent([*turns, reply("Done.")], tools=[tell], hooks=hooks)
    result = agent.run("Please tell  Ann Lee to come.")
    return [m.content for m in result.messages if m.role == "tool"], [r.tool_choice for r in agent.model.requests]


def test_a_call_with_an_invented_text_is_made_again():
    results, choices = told(
        call("tell", person="Bob", message="Come!"), call("tell", person="ann lee", message="Come!")
    )
    assert results[0] == 'Nobody mentioned person "Bob". Call tell again, with the words of the request.'
    assert results[1] == "told ann lee"
    assert choices == [None, "tell", None]


def test_a_call_that_has_an_invented_text_twice_is_made():
    results, _ = told(*[call("tell", person="Bob", message="Come!")] * 2)
    assert results[1] == "told Bob"


@pytest.mark.parametrize("more", [{}, {"day": "tomorrow"}, {"room": "hall"}])
def test_texts_that_a_model_writes_choices_and_defaults_may_be_new(more):
    results, _ = told(call("tell", person="Ann", message="You are expected.", **more))
    assert results == ["told Ann"]


def test_without_the_option_a_model_may_invent_values():
    agent = scripted_agent(
        [call("tell", person="Bob", message="x"), reply("x")], tools=[tell], hooks=[SchemaRetryHook()]
    )
    assert agent.run("Tell somebody.").messages[2].content == "told Bob"
