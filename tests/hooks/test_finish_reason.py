"""FinishReasonHook: complete a run for a finish reason."""

import pytest

from hookline import HookRegistry, RegistrationError, call, reply, tool
from hookline.hooks import FinishReasonHook
from hookline.models import FINISH_REASONS
from hookline.testing import scripted_agent


@tool
def work() -> str:
    """Work."""
    return "worked"


def turn(reason):
    return reply("so far").replace(tool_calls=[call("work")], finish_reason=reason)


@pytest.mark.parametrize("reason", FINISH_REASONS)
async def test_a_step_that_finished_for_the_reason_completes_the_run(reason):
    agent = scripted_agent([turn(reason), reply("never")], tools=[work], hooks=[FinishReasonHook([reason])])
    result = await agent.arun("x")
    assert (result.status, result.reply, result.stop.kind) == ("completed", "so far", "finish_reason")
    assert result.stop.message == f"The model finished: {reason}"
    assert len(agent.model.requests) == 1


async def test_other_reasons_do_not_stop_the_run():
    agent = scripted_agent([turn("tool_calls"), reply("done")], tools=[work], hooks=[FinishReasonHook(["length"])])
    result = await agent.arun("x")
    assert (result.reply, result.stop.kind) == ("done", "completed")


async def test_a_resolver_takes_the_reason_from_the_state():
    seen = []
    resolver = lambda state: seen.append(state.step_count) or state.metadata["reason"]  # noqa: E731
    agent = scripted_agent([turn("tool_calls"), reply("never")], tools=[work])
    agent.register_hook(FinishReasonHook(("length", "stop"), resolver))
    result = await agent.arun("x", metadata={"reason": "length"})
    assert (result.stop.message, seen) == ("The model finished: length", [1])


async def test_a_resolver_may_return_none():
    agent = scripted_agent([reply("done")], hooks=[FinishReasonHook(["stop"], lambda state: None)])
    assert (await agent.arun("x")).stop.kind == "completed"


def test_it_runs_last_after_a_step():
    ((entry,),) = HookRegistry([FinishReasonHook(["stop"])]).stack.layers
    assert (str(entry.point), entry.priority) == ("after_step", -200)


@pytest.mark.parametrize(
    ("reasons", "problem"),
    [
        ("stop", r"stop_reasons must be a list: \['stop'\]"),
        ([], "at least one"),
        (None, "at least one"),
        ([1], "list of names"),
        (["stopp"], "unknown finish reason 'stopp'. Did you mean 'stop'\\? Known: stop, tool_calls"),
    ],
)
def test_unknown_reasons_are_rejected(reasons, problem):
    with pytest.raises(RegistrationError, match=problem):
        FinishReasonHook(reasons)


def test_a_resolver_must_be_callable():
    with pytest.raises(RegistrationError, match="function of the state"):
        FinishReasonHook(["stop"], "stop")
