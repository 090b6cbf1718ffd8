"""A tool call of the embedded model over A2A."""

import pytest
from google.protobuf.json_format import MessageToDict

from hookline import Agent, Limits, get_model, hook, tool

from .rig import assemble, message_request, serving_a2a, state, stream_events, text_of
from .test_handler import updates

pytestmark = pytest.mark.slow


@tool
def look_up(word: str, ctx) -> str:
    """Look up a word in the dictionary."""
    ctx.progress(0.5, "turning pages")
    return "a colour"


@hook("before_llm")
def must_look(ctx, request):
    """Let the model choose the word."""
    return request.replace(tool_choice="look_up")


async def test_a_tool_call_of_the_embedded_model_is_streamed(tmp_path):
    pytest.importorskip("xllamacpp")
    agent = Agent(
        "helper",
        llm=get_model("local"),
        tools=[look_up],
        hooks=[must_look],
        params={"max_tokens": 24},
        limits=Limits(steps=1),
    )
    async with serving_a2a(tmp_path, agent) as rig, rig.client() as client:
        events = await stream_events(
            client, message_request("What does mauve mean?", metadata={"correlation_id": "q-1"})
        )
        steps = [each for each in updates(events) if "phase" in each.metadata]
        seen = [MessageToDict(each.metadata) for each in steps]
        assert [(each["phase"], each["tool"]) for each in seen[:3]] == [
            ("tool_start", "look_up"),
            ("progress", "look_up"),
            ("tool_end", "look_up"),
        ]
        assert all(text_of(each.status.message) for each in steps)
        assert {each["correlation_id"] for each in seen} == {"q-1"}
        assert state(assemble(events)) == "FAILED"  # stopped by the limit of one step
