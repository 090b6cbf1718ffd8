"""Typed output of the embedded model, with and without tools."""

import enum
from typing import Annotated, Literal

import pytest
from pydantic import BaseModel, Field

from hookline import AFTER_LLM, Agent, Limits, Message, ModelRequest, observer, tool
from hookline._run.output import OutputSpec
from hookline.payloads import ToolSpec
from hookline.providers.apis.common import ToolNames
from hookline.providers.local.constrained_decoding import ConstrainedApi

SHORT = {"temperature": 0, "max_tokens": 60}


class Mood(enum.Enum):
    GOOD = "good"
    BAD = "bad"


class Review(BaseModel):
    mood: Mood
    stars: int = Field(ge=1, le=5)
    words: list[Annotated[str, Field(max_length=8)]] = Field(max_length=2)


def test_a_run_returns_a_value_of_its_output_type(local):
    agent = Agent("critic", llm=local, params=SHORT, output_type=Review)
    result = agent.run("The film was good. Describe this review.")
    assert result.status == "completed"
    assert isinstance(result.output, Review)
    assert 1 <= result.output.stars <= 5
    assert len(result.output.words) <= 2


@pytest.mark.parametrize("output_type", [bool, Literal["red", "blue"], Mood, Annotated[int, Field(ge=0, le=9)] | None])
def test_a_plain_value_is_wrapped_in_an_object(local, output_type):
    result = Agent("a", llm=local, params=SHORT, output_type=output_type).run("Choose.")
    assert result.reply.startswith('{"value": ')
    assert result.messages[-1].content == result.reply
    assert OutputSpec(output_type).read(result.reply).value == result.output


def test_with_tools_a_reply_is_a_call_or_a_value_of_the_type(local):
    replies = []

    @observer(AFTER_LLM)
    def note(ctx, reply):
        replies.append(reply)

    @tool
    def stars(film: Annotated[str, Field(max_length=8)]) -> int:
        """How many stars a film has."""
        return 4

    agent = Agent(
        "critic", llm=local, params=SHORT, tools=[stars], hooks=[note], output_type=Review, limits=Limits(steps=2)
    )
    result = agent.run("Describe the film M.")
    assert replies
    for reply in replies:
        if reply.tool_calls:
            assert {call.name for call in reply.tool_calls} == {"stars"}
        else:
            OutputSpec(Review).read(reply.content)
    assert result.status in ("completed", "stopped")
    assert isinstance(result.output, Review) is (result.status == "completed")


def test_the_final_answer_is_one_branch_of_the_grammar():
    schema = OutputSpec(int).schema
    request = ModelRequest((Message("user", "x"),), (ToolSpec("ping", "Ping."),), response_format=schema)
    body = ConstrainedApi(request).body(request, "m", ToolNames.from_request(request))
    call, answer = body["response_format"]["json_schema"]["schema"]["anyOf"]
    assert call["properties"]["tool"] == {"const": "ping"}
    assert answer["properties"]["answer"]["properties"] == {"value": {"type": "integer"}}
