"""Fire observers: each gets every fire of its points once, and the calls of hooks that it wants (DESIGN 4.11)."""

import asyncio
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
from hookline._kernel.fire_observers import FireObserver
from hookline.errors import RunFailedError
from hookline.events import HookExecuted, PointFired, TextDelta
from hookline.records import RecordHook, read_runs
from hookline.tape import TapeHook, replay
from hookline.testing import EventLog

ALL = frozenset((BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_TOKEN, ON_RUN_END))


class Seen(FireObserver):
    """Keeps the reports."""

    def __init__(self, points, wants):
        self.points, self.fires, self.calls = frozenset(points), [], []
        vars(self).update(wants)

    def fire_ended(self, fire):
        self.fires.append(fire)

    def hook_called(self, call):
        self.calls.append(call)


class Watching:
    """A hook that adds a fire observer to each run."""

    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(self, points=ALL, **wants):
        self.seen = Seen(points, wants)

    def __call__(self, point, ctx, payload):
        pass

    @contextmanager
    def instrument(self, engine, start):
        engine.add_fire_observer(self.seen)
        yield

    def at(self, point):
        return [fire for fire in self.seen.fires if fire.point == point]

    @property
    def fired(self):
        return [str(fire.point) for fire in self.seen.fires]


@tool(effects=[])
def add(a: int, b: int = 2) -> int:
    """Add."""
    return a + b


def agent(*hooks, stream="safe"):
    return Agent(
        "x", llm=ScriptedModel([call("add", a=1), reply("three is the sum")]), tools=[add], hooks=hooks, stream=stream
    )


def summary(fire):
    calls = [(c.entry.name, c.result and str(c.result.action), c.error) for c in fire.calls]
    return str(fire.point), calls, str(fire.verdict.action)


@guard(BEFORE_TOOL)
def silent(ctx, request):
    return None


@guard(BEFORE_TOOL)
def approve(ctx, request):
    return HookResult.cont(reason="fine")


@hook(BEFORE_TOOL)
def double(ctx, request):
    return HookResult.replace(request.replace(arguments={"a": 20}), reason="more")


@guard(BEFORE_TOOL)
def refuse(ctx, request):
    return HookResult.block("No.")


def test_every_fire_of_a_watched_point_is_reported_once():
    watching = Watching()
    assert agent(watching).run("Add").status == "completed"
    assert [point for point in watching.fired if point != "on_token"] == [
        "before_llm", "after_llm", "before_tool", "after_tool", "before_llm", "after_llm", "on_run_end",
    ]  # fmt: skip


def test_points_that_are_not_watched_are_not_fired_for_the_observer():
    watching = Watching({BEFORE_TOOL})
    agent(watching).run("Add")
    assert watching.fired == ["before_tool"]


def test_the_payload_is_reported_as_it_arrived_with_the_result_of_each_hook():
    watching = Watching()
    agent(double, silent, refuse, watching).run("Add")
    (fire,) = watching.at("before_tool")
    assert fire.payload.arguments == {"a": 1}
    assert summary(fire) == ("before_tool", [("double", "replace", None), ("refuse", "block", None)], "block")


def test_a_failure_is_reported():
    @guard(BEFORE_TOOL, on_failure="block")
    def broken(ctx, request):
        raise ValueError("oops")

    watching = Watching()
    agent(broken, watching).run("Add")
    (fire,) = watching.at("before_tool")
    failed = ("broken", None, "hook 'broken' failed at before_tool: ValueError: oops")
    assert summary(fire) == ("before_tool", [failed], "block")


@pytest.mark.parametrize("stream", ["safe", "live"])
def test_streamed_text_is_reported_once_although_its_observers_are_called_later(stream):
    @hook(AFTER_LLM)
    def holds_text(ctx, reply):
        return None

    @observer(ON_TOKEN)
    def watch(ctx, token):
        pieces.append(token.delta)

    pieces, watching = [], Watching()
    agent(holds_text, watch, watching, stream=stream).run("Add")
    assert "".join(fire.payload.delta for fire in watching.at("on_token")) == "".join(pieces)


def test_each_observer_gets_the_fires_of_the_points_that_it_watches():
    calls, everything = Watching({BEFORE_TOOL, AFTER_TOOL}), Watching()
    agent(calls, everything).run("Add")
    assert calls.fired == ["before_tool", "after_tool"]
    assert [fire for fire in everything.seen.fires if fire.point in {BEFORE_TOOL, AFTER_TOOL}] == calls.seen.fires


@pytest.mark.parametrize(
    ("wants", "given"),
    [("none", []), ("results", ["double", "refuse"]), ("all", ["double", "silent", "refuse"])],
)
def test_an_observer_gets_the_calls_that_it_wants(wants, given):
    watching, other = Watching({ON_RUN_END}, wants_calls=wants), Watching({ON_RUN_END}, wants_calls="results")
    agent(double, silent, refuse, watching, other).run("Add")
    assert [call.entry.name for call in watching.seen.calls if call.point == BEFORE_TOOL] == given
    assert [call.entry.name for call in other.seen.calls] == ["double", "refuse"]  # another's wish changes nothing
    assert [call.payload.arguments["a"] for call in other.seen.calls] == [1, 20]  # what each hook got


def test_calls_are_timed_for_the_observers_that_want_the_time():
    untimed, timed = Watching({BEFORE_TOOL}), Watching({AFTER_TOOL}, wants_time=True)

    @guard(AFTER_TOOL)
    def look(ctx, result):
        return HookResult.cont(reason="fine")

    agent(double, look, untimed, timed).run("Add")
    (before,), (after,) = untimed.at("before_tool"), timed.at("after_tool")
    assert (before.took, [call.took for call in before.calls]) == (0, [0])
    assert after.took > after.calls[0].took > 0


def test_a_point_without_hooks_takes_no_time():
    watching = Watching({BEFORE_LLM}, wants_time=True)
    agent(watching).run("Add")
    assert [(fire.took, fire.calls) for fire in watching.at("before_llm")] == [(0, ()), (0, ())]


def test_an_observer_changes_no_event():
    """The events are the same, with and without others who watch the same fires."""
    alone, watched = EventLog(), EventLog()
    agent(double, silent, refuse).run("Add", sinks=[alone])
    watching = Watching(wants_time=True, wants_calls="all")
    agent(double, silent, refuse, watching).run("Add", sinks=[watched])
    kept = [event.replace(at=0, run_id="") for event in alone.of(PointFired) + alone.of(HookExecuted)]
    assert kept
    assert [event.replace(at=0, run_id="") for event in watched.of(PointFired) + watched.of(HookExecuted)] == kept
    assert {event.duration for event in watched.of(HookExecuted)} == {None}


def test_a_consumer_that_wants_every_call_does_not_make_the_run_fire_points_without_hooks():
    """Otherwise metrics of hooks would also make the model stream."""
    pieces = EventLog(every_call=True)
    pieces.events = frozenset({HookExecuted})
    model = ScriptedModel([call("add", a=1), reply("three")])
    streamed = []
    model.stream = streamed.append
    Agent("x", llm=model, tools=[add], hooks=[silent]).run("Add", sinks=[pieces])
    assert [event.hook for event in pieces.of(HookExecuted)] == ["silent"]
    assert streamed == []


def test_text_is_streamed_for_a_consumer_of_text_beside_an_observer():
    watching, text = Watching({BEFORE_TOOL}), EventLog()
    text.events = frozenset({TextDelta})
    agent(watching).run("Add", sinks=[text])
    assert "".join(event.text for event in text.of(TextDelta)) == "three is the sum"
    assert watching.fired == ["before_tool"]


async def test_a_record_and_a_tape_contain_a_fire_whose_event_makes_a_consumer_cancel_the_run(tmp_path):
    def cancel(event):
        if isinstance(event, PointFired) and event.point == BEFORE_TOOL:
            run.cancel("seen")

    run = agent(silent, RecordHook(tmp_path / "records"), TapeHook(tmp_path / "a.tape")).start("Add", sinks=[cancel])
    assert (await run.result()).status == "cancelled"
    await asyncio.sleep(0)
    for place in (tmp_path / "records", tmp_path / "a.tape"):
        (recorded,) = read_runs([place])
        assert "before_tool" in [moment.point for moment in recorded.moments]


@pytest.mark.parametrize("others", [(), (approve,)], ids=["alone", "after another"])
@pytest.mark.parametrize("how", ["unwatched", "every call", "recorded", "taped"])
def test_a_hook_that_cancels_the_run_and_raises_has_failed_whoever_watches(tmp_path, how, others):
    """A sync hook cannot be interrupted, so the exception is its own."""

    @guard(BEFORE_TOOL)
    def rude(ctx, request):
        ctx.interrupt.cancel("stop")
        raise asyncio.CancelledError("my own")

    watching = {"recorded": [RecordHook(tmp_path / "records")], "taped": [TapeHook(tmp_path / "a.tape")]}.get(how, [])
    log = EventLog(every_call=how == "every call")
    bot = agent(*others, rude, *watching)
    with pytest.raises(RunFailedError, match="hook 'rude' failed at before_tool: CancelledError: my own"):
        bot.run("Add", sinks=[log])
    assert [event.hook for event in log.of(HookExecuted) if event.refused] == ["rude"]


def verb_and_hook(verdict):
    return ("cont", "") if verdict is None else (verdict.verb, verdict.hook)


@pytest.mark.parametrize("every_call", [False, True])
def test_records_tapes_events_and_replays_watch_the_same_fires(tmp_path, every_call):
    log = EventLog(every_call=every_call)
    bot = agent(double, silent, refuse, RecordHook(tmp_path / "records", points="all"), TapeHook(tmp_path / "a.tape"))
    bot.run("Add", sinks=[log])
    fired = [(str(e.point), str(e.verb), e.hook) for e in log.of(PointFired) if e.point != ON_TOKEN]
    for place in (tmp_path / "records", tmp_path / "a.tape"):
        (recorded,) = read_runs([place])
        assert [(m.point, *verb_and_hook(m.verdict)) for m in recorded.moments] == fired
    assert replay(tmp_path / "a.tape", bot).same
