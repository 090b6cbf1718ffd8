"""Delegation on the real embedded model."""

import pytest

from hookline import Agent, Limits, get_model, hook, observer
from hookline.events import SubagentEvent
from hookline.teams import Team

pytestmark = pytest.mark.slow


@hook("before_llm")
def must_delegate(ctx, request):
    """Force a delegate call; the model chooses its arguments."""
    return request.replace(tool_choice="delegate")


must_delegate.inherit = False


def test_the_model_delegates_to_the_only_member():
    pytest.importorskip("xllamacpp")
    events, fired, model = [], [], get_model("local")

    @observer("subagent_spawned", "subagent_ended")
    def see(point, ctx, payload):
        fired.append((str(point), payload.child.agent))

    team = Team(max_handoffs=0)
    desk = Agent(
        "desk", llm=model, tools=[team], hooks=[must_delegate, see], params={"max_tokens": 60}, limits=Limits(steps=1)
    )
    team.add(desk)
    team.add(Agent("poet", "writes poems", llm=model, params={"max_tokens": 8}))
    result = team.run("Have the poet write a line about the sea.", sinks=[events.append])
    assert result.tool_names == ("delegate",)
    assert fired == [("subagent_spawned", "poet"), ("subagent_ended", "poet")]
    answer = next(message for message in result.messages if message.role == "tool")
    assert answer.content
    assert {event.ids.agent for event in events if isinstance(event, SubagentEvent)} == {"poet"}
    assert result.usage.total_tokens > sum(step.usage.total_tokens for step in result.steps)
