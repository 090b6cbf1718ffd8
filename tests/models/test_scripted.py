"""The scripted model."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import Message, ModelRequest, ScriptedModel, call, reply
from hookline.compat import ScriptedLLM
from hookline.errors import ModelError
from hookline.models import Model, ModelResponse
from hookline.payloads import Usage

REQUEST = ModelRequest((Message("user", "one two three"),))


async def play(*turns, times=1, **options):
    model = ScriptedModel(turns, **options)
    return [await model.complete(REQUEST) for _ in range(times)][-1]


def test_it_is_a_model():
    assert isinstance(ScriptedModel(), Model)
    assert ScriptedLLM is ScriptedModel
    assert (ScriptedModel().name, ScriptedModel(name="other").name, ScriptedModel().provider) == (
        "scripted",
        "other",
        "scripted",
    )


async def test_turns_are_returned_in_order_and_requests_recorded():
    model = ScriptedModel(["one", reply("two"), lambda request: f"heard {request.messages[-1].content}"])
    requests = [REQUEST.replace(hop=n) for n in range(3)]
    assert [(await model.complete(r)).content for r in requests] == ["one", "two", "heard one two three"]
    assert model.requests == requests


@pytest.mark.parametrize(
    ("turn", "text", "names", "finish"),
    [
        ("hello", "hello", [], "stop"),
        (reply("hello", finish_reason="length"), "hello", [], "length"),
        (call("read", path="a"), "", ["read"], "tool_calls"),
        ([call("read"), call("write")], "", ["read", "write"], "tool_calls"),
        (["let me see", call("read")], "let me see", ["read"], "tool_calls"),
        (["only text"], "only text", [], "stop"),
        (lambda request: call("read"), "", ["read"], "tool_calls"),
        (lambda request: [call("read")], "", ["read"], "tool_calls"),
    ],
    ids=["text", "reply", "call", "calls", "text and call", "list of text", "function", "function of a list"],
)
async def test_kinds_of_turns(turn, text, names, finish):
    response = await play(turn)
    assert (response.content, [c.name for c in response.tool_calls], response.finish_reason) == (text, names, finish)


async def test_calls_get_ids_of_their_own():
    model = ScriptedModel([[call("a"), call("b")], call("a"), reply("text", tool_calls=(call("c"),))])
    calls = [c for _ in range(3) for c in (await model.complete(REQUEST)).tool_calls]
    ids = [c.id for c in calls]
    assert all(ids)
    assert len(set(ids)) == 4


def test_a_call_holds_its_arguments_whatever_they_are_called():
    made = call("search", name="x", self=1, query={"a": [1]})
    assert (made.name, made.arguments) == ("search", {"name": "x", "self": 1, "query": {"a": [1]}})


@pytest.mark.parametrize("turn", [ValueError("oh no"), lambda request: ValueError("oh no")])
async def test_an_exception_in_the_script_is_raised(turn):
    with pytest.raises(ValueError, match="oh no"):
        await play(turn)


async def test_a_script_without_turns_left_raises():
    with pytest.raises(ModelError, match="the script has only 1 turn, but this is request 2"):
        await play("one", times=2)


async def test_a_script_can_start_again():
    model = ScriptedModel(["one", "two"], loop=True)
    assert [(await model.complete(REQUEST)).content for _ in range(5)] == ["one", "two", "one", "two", "one"]


async def test_an_empty_script_raises_at_once():
    for loop in (False, True):
        with pytest.raises(ModelError, match="the script has only 0 turns"):
            await play(loop=loop)


async def test_usage_counts_words_unless_given():
    assert (await play("four words in all")).usage == Usage(3, 4)
    assert (await play(reply("x", usage=Usage(7, 8, 9)))).usage == Usage(7, 8, 9)


async def test_cost_is_nothing_unless_given():
    assert (await play("x")).cost == 0.0
    assert (await play(reply("x", cost=0.5))).cost == 0.5


def test_tokens_are_words():
    model = ScriptedModel()
    assert model.count_tokens("one two  three\n") == 3
    assert model.count_tokens([Message("user", "one two"), Message("assistant", "three")]) == 3
    assert model.count_tokens("") == model.count_tokens([]) == 0


async def streamed(text):
    return [piece async for piece in ScriptedModel([text]).stream(REQUEST)]


async def test_a_stream_gives_words_and_then_the_whole_reply():
    *pieces, last = await streamed("one two\nthree ")
    assert pieces == ["one", " two", "\nthree", " "]
    assert isinstance(last, ModelResponse)
    assert last.content == "one two\nthree "


@given(st.text())
def test_the_pieces_of_a_stream_are_the_text(text):
    *pieces, last = asyncio.run(streamed(text))
    assert "".join(pieces) == last.content == text


async def test_a_stream_of_calls_has_no_pieces():
    (only,) = await streamed(call("read"))
    assert only.tool_calls[0].name == "read"


async def test_a_delay_comes_before_each_reply_and_each_streamed_word(monkeypatch):
    delays = []

    async def sleep(seconds):
        delays.append(seconds)

    monkeypatch.setattr("hookline.models.scripted.asyncio.sleep", sleep)
    await play("one", delay=0.02)
    assert delays == [0.02]
    assert len([p async for p in ScriptedModel(["a b"], delay=0.03).stream(REQUEST)]) == 3
    assert delays == [0.02, 0.03, 0.03]


@pytest.mark.parametrize("turn", [5, None, {"tool": "read"}, [call("read"), reply("no part of a list")], [["nested"]]])
async def test_an_object_that_is_no_turn_raises_at_construction_or_at_its_request(turn):
    with pytest.raises(TypeError, match="not a turn of a script: expected reply"):
        ScriptedModel([turn])
    with pytest.raises(TypeError, match="not a turn of a script: expected reply"):
        await play(lambda request: turn)


@pytest.mark.parametrize("alone", ["hello", reply("hello"), call("read")], ids=["text", "reply", "call"])
def test_a_single_turn_without_a_list_is_not_taken_for_the_list(alone):
    with pytest.raises(TypeError, match=r"turns must be a list: write ScriptedModel\(\["):
        ScriptedModel(alone)


async def test_a_function_in_place_of_the_list_answers_every_request():
    model = ScriptedModel(lambda request: f"reply {len(request.messages)}")
    said = [await model.complete(ModelRequest([Message("user", "x")] * number)) for number in (1, 2, 3)]
    assert [response.content for response in said] == ["reply 1", "reply 2", "reply 3"]


@pytest.mark.parametrize("turns", [5, None, ValueError("x")])
def test_the_error_about_turns_that_are_no_list_suggests_one(turns):
    with pytest.raises(TypeError, match=r"turns must be a list: write ScriptedModel\(\["):
        ScriptedModel(turns)
