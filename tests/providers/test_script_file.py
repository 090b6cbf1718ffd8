"""``scripted:FILE``: the forms a script may have."""

import json

import pytest

from hookline import Agent, RegistrationError, RunFailedError, get_model, tool
from hookline.models import UnreachableError


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@pytest.fixture
def model(tmp_path):
    def write(text):
        (tmp_path / "turns").write_text(text)
        return get_model(f"scripted:{tmp_path / 'turns'}")

    return write


CALL = {"tool": "add", "arguments": {"a": 1, "b": 2}}


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([CALL, "three"]),
        json.dumps({"turns": [CALL, "three"]}, indent=2),
        f'{json.dumps(CALL)}\n\n"three"\n',
        json.dumps([["let me see", CALL], "three"]),
    ],
)
def test_a_list_an_object_and_lines_are_the_same_script(model, text):
    result = Agent("a", llm=model(text), tools=[add]).run("add")
    assert (result.reply, result.tool_names) == ("three", ("add",))


def test_a_script_can_set_its_delay_and_loop(model):
    made = model('{"turns": ["hi"], "delay": 0.001, "loop": true}')
    assert (made.delay, made.loop) == (0.001, True)
    assert [Agent("a", llm=made).run("x").reply for _ in range(3)] == ["hi"] * 3


def test_a_script_can_fail_like_a_provider(model):
    with pytest.raises(RunFailedError, match="no connection") as failure:
        Agent("a", llm=model('[{"error": "UnreachableError", "message": "no connection"}]')).run("x")
    assert isinstance(failure.value.__cause__, UnreachableError)


@pytest.mark.parametrize(
    "text",
    [
        "[3]",
        '[{"tol": "x"}]',
        "nonsense",
        '{"turns": ["a"], "dely": 1}',
        '[{"error": "Nonsense"}]',
        '{"turns": 3}',
        '[{"tool": "add", "arguments": [1]}]',
        '[{"tool": "add", "arguments": null}]',
        '[{"error": ["a"]}]',
    ],
)
def test_an_invalid_script_is_rejected(model, text):
    with pytest.raises(RegistrationError, match="is not a list of turns"):
        model(text)


def test_a_list_in_a_script_holds_texts_and_calls_only(model):
    with pytest.raises(RegistrationError, match="not a list of turns: .* is not a turn"):
        model('[["Let me see.", {"error": "RateLimitError"}]]')
