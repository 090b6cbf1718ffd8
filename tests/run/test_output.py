"""Typed output: supported types, valid replies, and retries after invalid ones."""

import copy
import dataclasses
import enum
import json
import pickle
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict, Union

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import AfterValidator, AliasGenerator, BaseModel, ConfigDict, Field, model_serializer
from pydantic.alias_generators import to_camel
from pydantic.dataclasses import dataclass as pydantic_dataclass

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_LLM,
    ON_ERROR,
    ON_RUN_END,
    ON_STOP,
    Agent,
    AgentContext,
    AgentResult,
    Budget,
    HookResult,
    Limits,
    Message,
    RegistrationError,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    hook,
    observer,
    reply,
    tool,
)
from hookline._kernel.state import output_text
from hookline._run.output import InvalidOutputError, OutputSpec, find_json
from hookline.errors import HooklineError, OutputError
from hookline.events import Discarded, ModelReplied, OutputChecked, RunFinished, TextDelta
from hookline.payloads import ErrorInfo, Usage
from hookline.tape import TapeHook, replay
from hookline.teams import Team
from hookline.testing import EventLog, scripted_agent
from tests.cases import each_case


class City(BaseModel):
    name: str
    people: int = 0


class Tree(BaseModel):
    children: list["Tree"] = []


class Camel(BaseModel):
    model_config = ConfigDict(alias_generator=AliasGenerator(validation_alias=to_camel, serialization_alias=to_camel))
    first_name: str


@dataclasses.dataclass
class Point:
    x: int
    y: int


@pydantic_dataclass
class Range:
    low: int = Field(ge=0)


class Movie(TypedDict):
    title: str


class Star(msgspec.Struct):
    mass: float


class Planet(msgspec.Struct):
    moons: int


class Nested(msgspec.Struct):
    children: list["Nested"] = []


class Cat(msgspec.Struct, tag=True):
    lives: int


class Dog(msgspec.Struct, tag=True):
    barks: bool


@dataclasses.dataclass
class System:
    star: Star


class Colour(enum.Enum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 3


Even = Annotated[int, Field(multiple_of=2)]

# Types


@each_case(
    ("output_type", "text", "value", "form"),
    [
        (City, '{"name": "Rome"}', City(name="Rome"), {"name": "Rome", "people": 0}),
        (Tree, '{"children": [{}]}', Tree(children=[Tree()]), {"children": [{"children": []}]}),
        (Camel, '{"firstName": "Ada"}', Camel(firstName="Ada"), {"firstName": "Ada"}),
        (Point, '{"x": 1, "y": 2}', Point(1, 2), {"x": 1, "y": 2}),
        (Range, '{"low": 1}', Range(1), {"low": 1}),
        (Movie, '{"title": "M"}', {"title": "M"}, {"title": "M"}),
        (Star, '{"mass": 1.5}', Star(1.5), {"mass": 1.5}),
        (System, '{"star": {"mass": 1.5}}', System(Star(1.5)), {"star": {"mass": 1.5}}),
        (dict[str, int], '{"a": 1}', {"a": 1}, {"a": 1}),
        (int, '{"value": 3}', 3, 3),
        (float, '{"value": 3}', 3.0, 3.0),
        (bool, '{"value": true}', True, True),
        (Even, '{"value": 4}', 4, 4),
        (list[str], '{"value": ["a"]}', ["a"], ["a"]),
        (tuple[int, str], '{"value": [1, "a"]}', (1, "a"), [1, "a"]),
        (set[int], '{"value": [1]}', {1}, [1]),
        (date, '{"value": "2026-11-16"}', date(2026, 11, 16), "2026-11-16"),
        (Path, '{"value": "a/b"}', Path("a/b"), "a/b"),
        (Colour, '{"value": "red"}', Colour.RED, "red"),
        (Level, '{"value": 3}', Level.HIGH, 3),
        (Literal["yes", "no"], '{"value": "no"}', "no", "no"),
        (list[City], '{"value": [{"name": "Rome"}]}', [City(name="Rome")], [{"name": "Rome", "people": 0}]),
        (list[Star], '{"value": [{"mass": 1}]}', [Star(1.0)], [{"mass": 1.0}]),
        (int | None, '{"value": null}', None, None),
        (Optional[Star], '{"value": null}', None, None),  # noqa: UP045 - both ways to write it
        (Union[int, str], '{"value": "x"}', "x", "x"),  # noqa: UP007
        (City | Point, '{"value": {"x": 1, "y": 2}}', Point(1, 2), {"x": 1, "y": 2}),
        (Cat | Dog, '{"value": {"type": "Dog", "barks": true}}', Dog(True), {"type": "Dog", "barks": True}),
        (Star | Planet, '{"value": {"moons": 2}}', Planet(2), {"moons": 2}),
        (Star | City, '{"value": {"name": "Rome"}}', City(name="Rome"), {"name": "Rome", "people": 0}),
        (Any, '{"value": [1]}', [1], [1]),
    ],
)
def test_a_reply_becomes_a_value_of_the_type(output_type, text, value, form):
    agent = scripted_agent([text], output_type=output_type)
    log = EventLog()
    seen = []

    @observer(ON_RUN_END)
    def watch(ctx, result):
        seen.append(result.output)

    result = agent.run("x", sinks=[log], hooks=[watch])
    assert result.output == value
    assert type(result.output) is type(value)
    assert result.reply == text
    assert seen == [form]  # hooks and events get the JSON form
    assert log.of(RunFinished)[0].result.output == form
    assert json.loads(result.to_json())["output"] == json.loads(log.of(RunFinished)[0].to_json())["result"]["output"]
    assert AgentResult.from_json(result.to_json()).output == form
    assert result.output_text == (form if isinstance(form, str) else text if form is None else output_text(form, ""))
    schema = agent.model.requests[0].response_format
    assert schema["type"] == "object"
    assert schema == OutputSpec(output_type).schema


def test_without_an_output_type_the_output_is_the_reply():
    for options in ({}, {"output_type": str}):
        agent = scripted_agent(["hello"], **options)
        result = agent.run("x")
        assert (result.output, result.output_text) == ("hello", "hello")
        assert agent.model.requests[0].response_format is None

    @hook(ON_RUN_END)
    def shout(ctx, result):
        return result.replace(reply=result.reply.upper())

    assert scripted_agent(["hello"], hooks=[shout]).run("x").output == "HELLO"


def test_a_run_may_have_another_type():
    agent = scripted_agent(['{"value": 1}', '{"name": "Rome"}', "true"], output_type=int)
    assert agent.run("x").output == 1
    assert agent.run("x", output_type=City).output == City(name="Rome")
    assert agent.run("x", output_type=str).output == "true"
    assert agent.model.requests[2].response_format is None


class Strange:
    pass


class Holder(msgspec.Struct):
    city: City


@pytest.mark.parametrize(
    ("wrong", "named"),
    [
        (Strange, "Strange"),
        ("City", "'City'"),
        (3, "3"),
        (len, "len"),
        (City(name="x"), "City"),
        (Holder, "Holder"),
        (list[Strange], "Strange"),
        (Star | Strange, "Strange"),
    ],
)
def test_a_type_that_cannot_be_read_is_found_when_the_agent_is_made(wrong, named):
    with pytest.raises(RegistrationError, match=f"output_type: .*{named}.* cannot be read from JSON"):
        scripted_agent([], output_type=wrong)
    with pytest.raises(RegistrationError, match="cannot be read from JSON"):
        scripted_agent(["x"]).run("x", output_type=wrong)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"output_retries": -1}, "output_retries"),
        ({"output_retries": True}, "output_retries"),
        ({"output_type": int, "response_format": {"type": "object"}}, "exclude each other"),
    ],
)
def test_wrong_options_are_rejected(options, problem):
    with pytest.raises(RegistrationError, match=problem):
        scripted_agent([], **options)


def test_two_types_of_one_name_in_a_union_are_rejected():
    def make(name, fields):
        return msgspec.defstruct(name, fields)

    with pytest.raises(RegistrationError, match="two types in it are called Same"):
        OutputSpec(make("Same", [("a", int)]) | make("Same", [("b", int)]))


# What counts as JSON


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Rome"}',
        ' \n{"name": "Rome"}\n',
        '```json\n{"name": "Rome"}\n```',
        '```\n{"name": "Rome"}```',
        'Here it is: {"name": "Rome"}. "Done", as you {said}!',
        'Sure.\n```json\n{"name": "Rome"}\n```\nAnything else?',
    ],
)
def test_one_json_object_is_found_in_the_text_around_it(text):
    assert OutputSpec(City).read(text).value == City(name="Rome")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the reply is empty"),
        (" \n", "the reply is empty"),
        ("Rome", "the reply is not JSON"),
        ('{"name": "Rome"', "the reply is not JSON"),
        ('{"name": {"name": "Rome"}', "the reply is not JSON"),  # never the inner part of an incomplete reply
        ('{"name": "Rome', "the reply is not JSON"),
        ('{"name": "Rome"} or {"name": "Oslo"}', "2 JSON objects"),
        ('```json\n{"name": "Rome"}\n```\n```json\n{"name": "Oslo"}\n```', "2 JSON objects"),
        ("{}", "name: field required"),
        ('{"name": 3, "people": "x"}', "name: input should be a valid string, not 3; people: "),
        ("[1]", "object"),
        ("[" * 5000, "the reply is not JSON"),
    ],
)
def test_anything_else_is_invalid_and_the_problem_says_why(text, problem):
    with pytest.raises(InvalidOutputError) as raised:
        OutputSpec(City).read(text)
    assert problem in str(raised.value)


def test_a_plain_value_may_come_without_its_object():
    assert OutputSpec(int).read("3").value == 3
    assert OutputSpec(list[int]).read("```json\n[1, 2]\n```").value == [1, 2]
    with pytest.raises(InvalidOutputError, match="not JSON"):
        OutputSpec(Literal["yes"]).read("yes")


class Boxed(BaseModel):
    value: int


def test_a_type_with_a_property_called_value_is_read_with_and_without_its_object():
    spec = OutputSpec(Boxed | City)
    assert spec.read('{"value": {"value": 3}}').value == spec.read('{"value": 3}').value == Boxed(value=3)


def test_numbers_are_read_as_they_were_written():
    assert OutputSpec(int).read('{"value": 123456789012345678901234567890}').value == 123456789012345678901234567890


def test_text_that_is_no_unicode_can_be_read():
    assert OutputSpec(City).read('{"name": "a\ud800b"}').value == City(name="a?b")


@given(st.text(alphabet='{}"\\a:,[]1 \n`'))
def test_every_text_contains_json_or_has_a_problem(text):
    try:
        found = find_json(text)
    except InvalidOutputError:
        return
    json.loads(found)


def test_a_value_that_is_too_deep_for_the_events_of_a_run_is_invalid():
    text = "{}"
    for _ in range(150):
        text = f'{{"children": [{text}]}}'
    with pytest.raises(InvalidOutputError, match="levels deep"):
        OutputSpec(Nested).read(text)
    with pytest.raises(InvalidOutputError, match="recursion limit exceeded at line 1 column [0-9]+$"):
        OutputSpec(Tree).read(text)


class OneWay(BaseModel):
    name: str

    @model_serializer
    def no(self):
        raise KeyError("oops")


def test_a_type_that_cannot_be_written_has_the_json_that_the_model_wrote():
    assert OutputSpec(OneWay).read('{"name": "Rome"}').json == {"name": "Rome"}


def test_many_problems_are_shortened():
    with pytest.raises(InvalidOutputError) as raised:
        OutputSpec(list[int]).read(json.dumps({"value": ["x"] * 100}))
    assert str(raised.value).count(";") == 9


# Replies that do not fit


def test_an_invalid_reply_is_requested_again_with_the_problem():
    agent = scripted_agent(["Rome.", '{"people": 1}', '{"name": "Rome"}'], output_type=City)
    session = Session("s")
    result = agent.run("Which city?", session=session)
    assert result.output == City(name="Rome")
    first, second, third = agent.model.requests
    assert [request.attempt for request in agent.model.requests] == [1, 2, 3]
    asked, rejected, note = second.messages
    assert asked == Message("user", "Which city?")
    assert rejected == Message("assistant", "Rome.")
    assert (note.role, "the reply is not JSON" in note.content) == ("user", True)
    assert [message.content for message in third.messages[:2]] == ["Which city?", '{"people": 1}']
    assert "name: field required" in third.messages[2].content
    # The conversation contains only the accepted reply.
    kept = [Message("user", "Which city?"), Message("assistant", '{"name": "Rome"}')]
    assert list(result.messages) == list(session.messages) == kept
    assert len(result.steps) == 1


def test_when_no_retries_are_left_the_run_fails_with_the_last_reply():
    agent = scripted_agent(["one", "two", "three", "four"], output_type=City)
    session = Session("s")
    reported = []

    @observer(ON_ERROR)
    def watch(ctx, failure):
        reported.append((failure.where, failure.fatal, failure.errors[0].type))

    with pytest.raises(RunFailedError) as failed:
        agent.run("x", session=session, hooks=[watch])
    cause = failed.value.__cause__
    assert isinstance(cause, OutputError)
    assert (cause.reply, cause.problem) == ("three", "the reply is not JSON")
    assert str(failed.value) == "the final reply does not match City: the reply is not JSON. The reply was: 'three'"
    result = failed.value.result
    assert (result.status, result.output_or_none, result.reply) == ("failed", None, "")
    assert [(error.where, error.type) for error in result.errors] == [("output", "OutputError")]
    assert reported == [("output", True, "OutputError")]
    assert list(session.messages) == [Message("user", "x")]
    assert len(agent.model.requests) == 3


@pytest.mark.parametrize("retries", [0, 1, 4])
def test_the_agent_says_how_many_retries_there_are(retries):
    agent = scripted_agent(["no"] * 9, output_type=int, output_retries=retries)
    with pytest.raises(RunFailedError):
        agent.run("x")
    assert len(agent.model.requests) == retries + 1


def test_a_hook_cannot_recover_a_failed_output():
    @hook(ON_ERROR)
    def again(ctx, failure):
        return HookResult.retry("please")

    agent = scripted_agent(["no"] * 9, output_type=int, output_retries=0, hooks=[again])
    with pytest.raises(RunFailedError) as failed:
        agent.run("x")
    assert isinstance(failed.value.__cause__, OutputError)
    assert len(agent.model.requests) == 1


def test_a_validator_that_breaks_fails_the_run_at_once():
    def broken(value):
        raise KeyError("oops")

    agent = scripted_agent(["1", "2"], output_type=Annotated[int, AfterValidator(broken)])
    with pytest.raises(RunFailedError) as failed:
        agent.run("x")
    cause = failed.value.__cause__
    assert isinstance(cause, OutputError)
    assert isinstance(cause.__cause__, KeyError)
    assert cause.reply == "1"
    assert len(agent.model.requests) == 1


def test_an_empty_reply_is_requested_again():
    agent = scripted_agent(["", "3"], output_type=int)
    assert agent.run("x").output == 3
    assert "the reply is empty" in agent.model.requests[1].messages[-1].content


@tool
def look() -> str:
    """Look."""
    return "seen"


def test_only_a_reply_without_calls_is_checked():
    agent = scripted_agent([["Let me look.", call("look")], "3"], output_type=int, tools=[look])
    result = agent.run("x")
    assert (result.output, len(agent.model.requests)) == (3, 2)


def test_calls_of_hooks_are_not_checked():
    @hook(AFTER_LLM)
    async def judge(ctx, reply):
        if reply.purpose == "step":
            assert (await ctx.llm.complete("fine?")).content == "it is"

    agent = scripted_agent(["3", "it is"], output_type=int, hooks=[judge])
    assert agent.run("x").output == 3


# Hooks


def test_every_attempt_passes_the_hooks():
    seen = []

    @observer(BEFORE_LLM)
    def before(ctx, request):
        seen.append(("before", request.attempt, request.response_format["properties"]["value"]["type"]))

    @observer(AFTER_LLM)
    def after(ctx, reply):
        seen.append(("after", reply.attempt, reply.content))

    assert scripted_agent(["no", "3"], output_type=int, hooks=[before, after]).run("x").output == 3
    assert seen == [("before", 1, "integer"), ("after", 1, "no"), ("before", 2, "integer"), ("after", 2, "3")]


def test_what_left_after_llm_is_checked():
    @hook(AFTER_LLM)
    def mend(ctx, reply):
        return reply.replace(content="3") if reply.content == "three" else None

    agent = scripted_agent(["three"], output_type=int, hooks=[mend])
    assert agent.run("x").output == 3


def test_retries_of_hooks_and_of_the_output_have_limits_of_their_own():
    rejections = iter(("too short", "too long"))

    @hook(AFTER_LLM)
    def picky(ctx, reply):
        return HookResult.retry(next(rejections)) if reply.content in ("a", "c") else None

    agent = scripted_agent(["a", "b", "c", "d", "3"], output_type=int, hooks=[picky])
    result = agent.run("x")
    assert (result.output, result.status) == (3, "completed")
    assert [request.attempt for request in agent.model.requests] == [1, 2, 3, 4, 5]


def test_a_hooks_answer_is_checked_too():
    answers = iter(("no", "3"))

    @hook(BEFORE_LLM)
    def serve(ctx, request):
        return HookResult.answer(next(answers))

    agent = scripted_agent([], output_type=int, hooks=[serve])
    assert agent.run("x").output == 3


def test_a_run_that_a_hook_ends_has_no_output():
    @hook(BEFORE_LLM)
    def close(ctx, request):
        return HookResult.end("We are closed.")

    result = scripted_agent([], output_type=int, hooks=[close]).run("x")
    assert (result.status, result.reply, result.output_or_none) == ("ended", "We are closed.", None)
    assert result.output_text == "We are closed."


def ended_run():
    ends = hook(BEFORE_LLM)(lambda ctx, request: HookResult.end("We are closed.", reason="holiday"))
    return scripted_agent([], output_type=int, hooks=[ends]).run("x")


def stopped_run():
    return scripted_agent([call("look")] * 2, output_type=int, tools=[look], limits=Limits(steps=1)).run("x")


def failed_run():
    with pytest.raises(RunFailedError) as failed:
        scripted_agent(["three"], output_type=int, output_retries=0).run("x")
    return failed.value.result


def cancelled_run():
    ctx = AgentContext()
    cancels = hook(BEFORE_LLM)(lambda ctx, request: ctx.interrupt.cancel("lunch"))
    return scripted_agent(["3"], output_type=int, hooks=[cancels]).run("x", ctx=ctx)


def run_completed_by_a_hook():
    stops = hook(AFTER_TOOL)(lambda ctx, result: HookResult.stop("Enough.", kind="completed"))
    return scripted_agent([call("look"), "3"], output_type=int, tools=[look], hooks=[stops]).run("x")


@pytest.mark.parametrize(
    ("run", "problem"),
    [
        (ended_run, "ended with the status ended (holiday) and has no output"),
        (stopped_run, "ended with the status stopped (steps_limit) and has no output"),
        (failed_run, "ended with the status failed (OutputError: the final reply does not match"),
        (cancelled_run, "ended with the status cancelled (user_requested) and has no output"),
        (run_completed_by_a_hook, "ended with the status completed and has no output"),
    ],
)
def test_reading_a_missing_output_is_an_error_that_names_the_cause(run, problem):
    result = run()
    for each in (result, AgentResult.from_json(result.to_json()), pickle.loads(pickle.dumps(result))):
        with pytest.raises(HooklineError) as missing:
            each.output  # noqa: B018
        assert str(missing.value).startswith(f"run {result.ids.run_id} {problem}")
        assert str(missing.value).endswith("check result.status, or use result.output_or_none")
        assert (each.output_or_none, each["output"], dict(each)["output"]) == (None, None, None)
    assert json.loads(result.to_json())["output"] is None
    assert result.replace(output=3).output == 3


def test_an_output_may_be_null():
    def stops(ctx, step):
        return HookResult.stop("Enough.") if step.index == 0 else None

    agent = scripted_agent(['{"value": null}'] * 2, output_type=int | None)
    for result in (agent.run("x"), agent.run("x", hooks=[hook(AFTER_STEP)(stops)])):
        assert (result.output, result.output_or_none, result.output_text) == (None, None, '{"value": null}')
        assert AgentResult.from_json(result.to_json()).output is None
    assert result.status == "stopped"


def test_the_output_of_an_agent_without_a_type_is_the_reply_whatever_the_status():
    ends = hook(BEFORE_LLM)(lambda ctx, request: HookResult.end("We are closed."))
    fails = hook(AFTER_LLM)(lambda ctx, reply: 1 / 0)
    with pytest.raises(RunFailedError) as failed:
        scripted_agent(["a"], hooks=[fails]).run("x")
    stopped = scripted_agent([call("look")] * 2, tools=[look], limits=Limits(steps=1)).run("x")
    for result in (failed.value.result, stopped, scripted_agent([], hooks=[ends]).run("x")):
        assert result.status != "completed"
        assert result.output == result.output_or_none == result.reply


def test_hooks_may_change_the_result_of_a_run_without_output(tmp_path):
    @hook(ON_RUN_END)
    def apologise(ctx, result):
        return result.replace(reply=f"Sorry: {result.status}.")

    @hook(ON_RUN_END)
    def by_mapping(ctx, result):
        return {**dict(result), "hook_ended": "by_mapping"}

    options = {"tools": [look], "limits": Limits(steps=1), "hooks": [apologise, by_mapping], "record": tmp_path}
    agent = scripted_agent([call("look")] * 2, output_type=int, **options)
    result = agent.run("x", hooks=[TapeHook(tmp_path / "run.tape")])
    assert (result.reply, result.hook_ended, result.output_or_none) == ("Sorry: stopped.", "by_mapping", None)
    assert replay(tmp_path / "run.tape", agent).first_difference == ""


def test_the_output_follows_the_reply_that_a_hook_changed_at_the_end():
    @hook(ON_RUN_END)
    def double(ctx, result):
        return result.replace(reply='{"value": 6}')

    seen = []

    @observer(ON_RUN_END)
    def watch(ctx, result):
        seen.append(result.output)

    log = EventLog()
    result = scripted_agent(["3"], output_type=int, hooks=[double, watch]).run("x", sinks=[log])
    assert (result.output, log.of(RunFinished)[0].result.output, seen) == (6, 6, [6])


def test_a_hook_that_breaks_the_output_at_the_end_fails_the_run():
    @hook(ON_RUN_END)
    def spoil(ctx, result):
        return result.replace(reply="three")

    seen = []

    @observer(ON_RUN_END)
    def watch(ctx, result):
        seen.append((result.reply, result.output_or_none))

    with pytest.raises(RunFailedError, match="on_run_end") as failed:
        scripted_agent(["3"], output_type=int, hooks=[spoil, watch]).run("x")
    assert seen == [("three", None)]
    assert failed.value.__cause__.reply == "three"
    assert (failed.value.result.status, failed.value.result.output_or_none) == ("failed", None)
    message = str(failed.value.__cause__)
    assert failed.value.result.errors == (ErrorInfo("output", "OutputError", message, fatal=True),)


def test_a_reply_that_no_hook_changed_at_the_end_is_not_read_again():
    read = []

    def noted(value):
        read.append(value)
        return value

    @hook(ON_RUN_END)
    def rename(ctx, result):
        return result.replace(task="other")

    result = scripted_agent(["3"], output_type=Annotated[int, AfterValidator(noted)], hooks=[rename]).run("x")
    assert (result.output, result.task, read) == (3, "other", [3])


def test_a_run_that_fails_at_its_end_has_no_output():
    @hook(ON_RUN_END)
    def fail(ctx, result):
        raise ValueError("no room")

    with pytest.raises(RunFailedError, match="no room") as failed:
        scripted_agent(["3"], output_type=int, hooks=[fail]).run("x")
    assert (failed.value.result.reply, failed.value.result.output_or_none) == ("3", None)


def test_a_validator_that_breaks_on_what_a_hook_wrote_fails_the_run():
    def odd(value):
        if value == 6:
            raise KeyError("oops")
        return value

    @hook(ON_RUN_END)
    def double(ctx, result):
        return result.replace(reply="6")

    with pytest.raises(RunFailedError, match="KeyError"):
        scripted_agent(["3"], output_type=Annotated[int, AfterValidator(odd)], hooks=[double]).run("x")


def test_a_hook_cannot_change_the_output_behind_the_reply():
    @hook(ON_RUN_END)
    def change(ctx, result):
        return result.replace(output=[9])

    with pytest.raises(RunFailedError, match="may not change output"):
        scripted_agent(["[1]"], output_type=list[int], hooks=[change]).run("x")

    @observer(ON_RUN_END)
    def write(ctx, result):
        result.output.append(9)

    assert scripted_agent(["[1]"], output_type=list[int], hooks=[write]).run("x").output == [1]


def test_keep_going_gives_the_output_of_the_last_reply():
    @hook(ON_STOP)
    def more(ctx, stopping):
        return HookResult.keep_going("Again.") if len(ctx.state.steps) < 2 else None

    agent = scripted_agent(["1", "no", "2"], output_type=int, hooks=[more])
    assert agent.run("x").output == 2


# Budget, streams, sessions


def test_every_attempt_counts_in_the_budget():
    agent = scripted_agent([reply("no", usage=Usage(5, 2))] * 2 + [reply("3")], output_type=int)
    result = agent.run("x")
    assert result.usage.input_tokens > 10
    assert result.steps[0].usage == result.usage


def test_a_budget_that_runs_out_while_retrying_stops_the_run():
    turn = reply("no", usage=Usage(50))
    agent = scripted_agent([turn, turn, turn], output_type=int)
    result = agent.run("x", ctx=AgentContext(budget=Budget(Limits(tokens=60))))
    assert (result.status, result.stop.kind, result.output_or_none) == ("stopped", "token_limit", None)
    assert len(agent.model.requests) == 2


def test_a_run_stopped_before_its_final_reply_has_no_output():
    agent = scripted_agent([call("look"), call("look")], output_type=int, tools=[look], limits=Limits(steps=2))
    result = agent.run("x")
    assert (result.status, result.output_or_none) == ("stopped", None)


def test_a_stream_discards_the_text_of_a_rejected_reply():
    log = EventLog()
    agent = scripted_agent(["no", "3"], output_type=int)
    agent.run("x", sinks=[log])
    kinds = (TextDelta, OutputChecked, Discarded, ModelReplied)
    reported = [event for event in log if isinstance(event, kinds)]
    assert [type(event) for event in reported] == [
        TextDelta,
        OutputChecked,
        Discarded,
        TextDelta,
        OutputChecked,
        ModelReplied,
    ]
    rejected, accepted = log.of(OutputChecked)
    assert (rejected.output_type, rejected.content, rejected.problem) == ("int", "no", "the reply is not JSON")
    assert (rejected.retries_left, rejected.attempt, rejected.output) == (2, 1, None)
    assert (accepted.content, accepted.problem, accepted.output) == ("3", "", 3)
    assert (accepted.retries_left, accepted.attempt) == (1, 2)
    assert log.of(Discarded)[0].attempt == 1


async def test_a_streamed_run_ends_with_its_output():
    agent = scripted_agent(['{"name": "Rome"}'], output_type=City)
    events = [event async for event in agent.stream("x")]
    assert events[-1].result.output == {"name": "Rome", "people": 0}
    run = agent.__class__("b", llm=ScriptedModel(['{"name": "Oslo"}']), output_type=City).start("x")
    assert (await run.result()).output == City(name="Oslo")


# Subagents and tapes


def test_a_subagent_gives_its_output_as_json():
    expert = Agent("expert", llm=ScriptedModel(["no", 'Sure: {"name": "Rome"}']), output_type=City)
    count = Agent("count", llm=ScriptedModel(['{"value": 3}']), output_type=int)
    team = Team([expert, count])
    asking = [call("delegate", to="expert", task="a city"), call("delegate", to="count", task="a number")]
    boss = Agent("boss", llm=ScriptedModel([*asking, "done"]), tools=[team])
    result = boss.run("x")
    results = [message.content for message in result.messages if message.role == "tool"]
    assert results == ['{"name":"Rome","people":0}', "3"]
    assert result.output == "done"


def test_a_subagent_whose_output_failed_is_an_error_for_the_one_that_asked():
    expert = Agent("expert", llm=ScriptedModel(["no"]), output_type=City, output_retries=0)
    boss = Agent(
        "boss",
        llm=ScriptedModel([call("delegate", to="expert", task="x"), "3"]),
        tools=[Team([expert])],
        output_type=int,
    )
    result = boss.run("x")
    reported = next(message for message in result.messages if message.role == "tool")
    assert reported.is_error
    assert "the final reply does not match City" in reported.content
    assert result.output == 3


@pytest.mark.parametrize("turns", [["no", 'So: {"name": "Rome"}'], ["no", "no", "no"], ['{"name": "Rome"}']], ids=len)
@pytest.mark.parametrize("of_run", [False, True], ids=["agent's type", "run's type"])
def test_a_replay_gives_the_same_output(tmp_path, turns, of_run):
    path = tmp_path / "run.tape"
    options, run_options = ({}, {"output_type": City}) if of_run else ({"output_type": City}, {})
    agent = scripted_agent(turns, **options)
    try:
        output = agent.run("x", hooks=[TapeHook(path)], **run_options).output
    except RunFailedError as failed:
        output = failed.result.output_or_none
    form = None if output is None else {"name": "Rome", "people": 0}
    again = replay(path)
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert again.result.output_or_none == form
    again = replay(path, agent)
    assert (again.first_difference, again.stop_reason) == ("", "")
    assert again.result.output_or_none == (form if of_run else output)
    assert again.tape.result.output_or_none == form


def test_results_with_outputs_are_compared_by_them():
    one, other = (scripted_agent([text], output_type=int).run("x") for text in ("1", "2"))
    assert one == one.replace(output=1)
    assert one != one.replace(output=other.output)
    city = scripted_agent(['{"name": "Rome"}'], output_type=City).run("x")
    assert city.replace(reply="changed").output == City(name="Rome")
    assert city.replace(output=City(name="Oslo")).output == City(name="Oslo")
    assert copy.deepcopy(city) == pickle.loads(pickle.dumps(city)) == city
    assert dict(city)["output"] == {"name": "Rome", "people": 0}
