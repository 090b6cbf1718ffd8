"""Recorders: every fire of a recorded point is recorded once, with the results of its hooks (DESIGN 6.13)."""

from contextlib import contextmanager

import pytest

from hookline import (
    AFTER_LLM,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    ON_TOKEN,
    Agent,
    HookResult,
    ScriptedModel,
    call,
    guard,
    hook,
    observer,
    reply,
    tool,
)

ALL = frozenset((BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_TOKEN, ON_RUN_END))


class Recorder:
    """Records the fires of the points that it is given."""

    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(self, points=ALL):
        self.recorded, self.fires = frozenset(points), []

    def __call__(self, point, ctx, payload):
        pass

    @contextmanager
    def instrument(self, engine, start):
        engine.add_recorder(self, self.recorded)
        yield

    def passed(self, point, payload, verdict):
        if point in self.recorded:
            self.fires.append((str(point), payload, (), str(verdict.action)))

    def take(self, firing, verdict):
        if firing.point in self.recorded:
            results = tuple((r.entry.name, r.result and str(r.result.action), r.error) for r in firing.recorded_results)
            self.fires.append((str(firing.point), firing.arrived, results, str(verdict.action)))

    def at(self, point):
        return [fire[1:] for fire in self.fires if fire[0] == point]


@tool(effects=[])
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


def agent(*hooks, stream="safe"):
    return Agent(
        "x", llm=ScriptedModel([call("add", a=1), reply("three is the sum")]), tools=[add], hooks=hooks, stream=stream
    )


def test_every_fire_of_a_recorded_point_is_recorded_once():
    recorder = Recorder()
    assert agent(recorder).run("Add").status == "completed"
    assert [fire[0] for fire in recorder.fires if fire[0] != "on_token"] == [
        "before_llm", "after_llm", "before_tool", "after_tool", "before_llm", "after_llm", "on_run_end",
    ]  # fmt: skip


def test_points_that_are_not_recorded_are_not_fired_for_the_recorder():
    recorder = Recorder({BEFORE_TOOL})
    agent(recorder).run("Add")
    assert [fire[0] for fire in recorder.fires] == ["before_tool"]


def test_the_payload_is_recorded_as_it_arrived_with_the_result_of_each_hook():
    @hook(BEFORE_TOOL)
    def double(ctx, request):
        return HookResult.replace(request.replace(arguments={"a": 20}), reason="more")

    @guard(BEFORE_TOOL)
    def silent(ctx, request):
        return None

    @guard(BEFORE_TOOL)
    def refuse(ctx, request):
        return HookResult.block("No.")

    recorder = Recorder()
    agent(double, silent, refuse, recorder).run("Add")
    ((payload, results, verdict),) = recorder.at("before_tool")
    assert payload.arguments == {"a": 1}
    assert results == (("double", "replace", None), ("refuse", "block", None))
    assert verdict == "block"


def test_a_failure_is_recorded():
    @guard(BEFORE_TOOL, on_failure="block")
    def broken(ctx, request):
        raise ValueError("oops")

    recorder = Recorder()
    agent(broken, recorder).run("Add")
    ((_, results, verdict),) = recorder.at("before_tool")
    assert results == (("broken", None, "hook 'broken' failed at before_tool: ValueError: oops"),)
    assert verdict == "block"


@pytest.mark.parametrize("stream", ["safe", "live"])
def test_streamed_text_is_recorded_once_although_its_observers_are_called_later(stream):
    @hook(AFTER_LLM)
    def holds_text(ctx, reply):
        return None

    @observer(ON_TOKEN)
    def watch(ctx, token):
        pieces.append(token.delta)

    pieces, recorder = [], Recorder()
    agent(holds_text, watch, recorder, stream=stream).run("Add")
    texts = [payload.delta for payload, _, _ in recorder.at("on_token")]
    assert "".join(texts) == "".join(pieces)


def test_two_recorders_of_a_run_see_the_points_that_each_of_them_records():
    calls, everything = Recorder({BEFORE_TOOL, AFTER_TOOL}), Recorder()
    agent(calls, everything).run("Add")
    assert [fire[0] for fire in calls.fires] == ["before_tool", "after_tool"]
    assert [fire for fire in everything.fires if fire[0] in calls.recorded] == calls.fires
