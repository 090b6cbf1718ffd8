"""The event stream: numbering, sinks, and readers in any loop (DESIGN 6.5)."""

import asyncio
import logging
import threading
import time
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_TOOL,
    ON_RUN_END,
    Agent,
    AgentContext,
    Event,
    HookResult,
    ScriptedModel,
    guard,
    hook,
    tool,
)
from hookline._run.events import is_silent, listener
from hookline.events import (
    EventStream,
    HookExecuted,
    ModelCalled,
    ModelReplied,
    PointFired,
    RunFinished,
    RunStarted,
    StepStarted,
    SubagentEvent,
    TextDelta,
    ToolEnded,
    ToolSettled,
)
from hookline.models import ModelResponse
from hookline.payloads import Ids, ToolCall
from hookline.plugins import Plugin
from hookline.stores import RunStore


def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def call(name, **arguments):
    return ToolCall("", name, arguments)


def make(*sinks, keep=True):
    return EventStream("run_1", lambda: 12.5, sinks, keep)


def emit(stream, count, start=0):
    for n in range(start, start + count):
        stream.emit(StepStarted, index=n)


async def collect(stream, **options):
    return [event.seq async for event in stream.read(**options)]


def test_events_are_numbered_without_gaps_and_stamped():
    seen = []
    stream = make(seen.append)
    stream.emit(RunStarted, ids=Ids("hi"))
    stream.emit(TextDelta, text="x")
    assert [(e.seq, e.at, e.run_id) for e in seen] == [(1, 12.5, "run_1"), (2, 12.5, "run_1")]
    assert (seen[0].ids.run_id, seen[1].text) == ("hi", "x")


def test_every_sink_gets_every_event_in_order():
    one, two = [], []
    emit(make(one.append, two.append), 5)
    assert [e.seq for e in one] == [e.seq for e in two] == [1, 2, 3, 4, 5]


def test_a_sink_that_raises_is_logged_and_affects_nothing_else(caplog):
    def broken(event):
        raise ValueError("oh no")

    seen = []
    stream = make(broken, seen.append)
    with caplog.at_level(logging.ERROR, "hookline"):
        emit(stream, 2)
    assert [e.seq for e in seen] == [1, 2]
    assert "event sink" in caplog.text
    assert "seq 2" in caplog.text
    assert "oh no" in caplog.text


@pytest.mark.parametrize(("sinks", "keep", "wanted"), [((), False, False), ((), True, True), ((print,), False, True)])
def test_a_stream_wants_only_the_events_of_its_consumers(sinks, keep, wanted):
    assert EventStream("r", lambda: 0.0, sinks, keep).wants(StepStarted) is wanted


async def test_a_stream_without_consumers_creates_no_events():
    stream = make(keep=False)
    stream.emit(StepStarted, no_such_field=1)
    stream.close()
    assert await collect(stream) == []


async def test_a_reader_gets_past_and_future_events_until_the_end():
    stream = make()
    emit(stream, 2)
    reading = asyncio.create_task(collect(stream))
    await asyncio.sleep(0)
    emit(stream, 2)
    await asyncio.sleep(0.01)
    emit(stream, 1)
    stream.close()
    assert await reading == [1, 2, 3, 4, 5]


async def test_events_reach_a_reader_as_they_happen():
    stream = make()
    events = stream.read()
    for n in range(3):
        waiting = asyncio.ensure_future(anext(events))
        await asyncio.sleep(0)
        assert not waiting.done()
        emit(stream, 1, n)
        assert (await waiting).index == n
    await events.aclose()


@pytest.mark.parametrize(("after", "expected"), [(0, [1, 2, 3]), (1, [2, 3]), (3, []), (9, []), (-5, [1, 2, 3])])
async def test_a_reader_can_continue_after_a_number(after, expected):
    stream = make()
    emit(stream, 3)
    stream.close()
    assert await collect(stream, after=after) == expected


async def test_a_reader_can_wait_for_a_number_that_has_not_come_yet():
    stream = make()
    reading = asyncio.create_task(collect(stream, after=2))
    await asyncio.sleep(0)
    emit(stream, 4)
    stream.close()
    assert await reading == [3, 4]


async def test_many_readers_each_get_everything():
    stream = make()
    readers = [asyncio.create_task(collect(stream)) for _ in range(10)]
    for n in range(20):
        emit(stream, 1, n)
        await asyncio.sleep(0)
    stream.close()
    assert await asyncio.gather(*readers) == [list(range(1, 21))] * 10


async def test_a_reader_that_stops_affects_nothing_else():
    stream = make()
    leaving, staying = asyncio.create_task(collect(stream)), asyncio.create_task(collect(stream))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    emit(stream, 2)
    stream.close()
    assert await staying == [1, 2]


def test_readers_in_other_loops_and_threads_get_everything():
    stream = make()
    results, ready = [], threading.Barrier(5)

    async def read():
        ready.wait(60)
        results.append(await collect(stream))

    threads = [threading.Thread(target=lambda: asyncio.run(read())) for _ in range(4)]
    for thread in threads:
        thread.start()
    ready.wait(60)
    emit(stream, 500)
    stream.close()
    for thread in threads:
        thread.join(60)
    assert results == [list(range(1, 501))] * 4


def test_a_reader_whose_loop_is_closed_affects_nothing_else():
    stream = make()
    loop = asyncio.new_event_loop()
    reading = loop.create_task(collect(stream))
    loop.run_until_complete(asyncio.sleep(0))
    reading.cancel()
    loop.run_until_complete(asyncio.gather(reading, return_exceptions=True))
    loop.close()
    emit(stream, 1)
    stream.close()
    assert asyncio.run(collect(stream)) == [1]


@given(st.lists(st.sampled_from(["emit", "pause"]), max_size=20), st.integers(0, 10))
def test_no_event_is_lost_or_doubled_however_reading_and_writing_alternate(steps, after):
    async def main():
        stream = make()
        reading = asyncio.create_task(collect(stream, after=after))
        for step in steps:
            if step == "emit":
                emit(stream, 1)
            else:
                await asyncio.sleep(0)
        stream.close()
        return await reading

    assert asyncio.run(main()) == list(range(after + 1, steps.count("emit") + 1))


def test_events_emitted_from_many_threads_are_still_numbered_without_gaps():
    seen = []
    stream = make(seen.append)
    threads = [threading.Thread(target=emit, args=(stream, 300)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(e.seq for e in seen) == list(range(1, 1801))


async def test_the_events_of_a_run_are_numbered_from_one_without_gaps(scripted_agent):
    seen = []
    agent = scripted_agent(["hello"], sinks=[seen.append])
    result = await agent.arun("hi")
    assert [e.seq for e in seen] == list(range(1, len(seen) + 1))
    assert (type(seen[0]).__name__, type(seen[-1]).__name__) == ("RunStarted", "RunFinished")
    assert {e.run_id for e in seen} == {result.ids.run_id}


async def test_a_sink_that_raises_does_not_affect_a_run(scripted_agent):
    def broken(event):
        raise ValueError("oh no")

    assert (await scripted_agent(["hello"], sinks=[broken]).arun("hi")).reply == "hello"


class Listener:
    """A hook with ``on_event``."""

    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(self, *events, **attributes):
        self.seen, self.fired = [], 0
        if events:
            self.events = frozenset(events)
        vars(self).update(attributes)

    def on_event(self, event):
        self.seen.append(event)

    def __call__(self, point, ctx, payload):
        self.fired += 1


class Watched:
    """A model that records whether it streamed."""

    name = provider = "watched"

    def __init__(self):
        self.asked = []

    async def complete(self, request):
        self.asked.append("complete")
        return ModelResponse("hello")

    async def stream(self, request):
        self.asked.append("stream")
        yield "hello"
        yield ModelResponse("hello")

    def count_tokens(self, content):
        return 1


@pytest.mark.parametrize("layer", ["agent", "conversation", "run"])
async def test_a_hook_with_on_event_gets_the_events_of_each_run_it_takes_part_in_once(scripted_agent, layer):
    listener = Listener()
    agent = scripted_agent(["hello", "again"], hooks=[listener] if layer == "agent" else [])
    given = {
        "agent": {},
        "conversation": {"ctx": AgentContext(hooks=[listener])},
        "run": {"hooks": [listener]},
    }
    await agent.arun("hi", **given[layer])
    assert listener.fired == 1
    assert [event.seq for event in listener.seen] == list(range(1, len(listener.seen) + 1))
    assert (listener.seen[0].payload["type"], listener.seen[-1].payload["type"]) == ("run_started", "run_finished")


async def test_a_listener_registered_twice_gets_each_event_once(scripted_agent):
    listener = Listener()
    await scripted_agent(["hello"], hooks=[listener]).arun("hi", hooks=[listener])
    assert [event.seq for event in listener.seen] == list(range(1, len(listener.seen) + 1))


async def test_the_listener_of_a_plugin_that_is_not_allowed_gets_no_events(scripted_agent):
    listener = Listener()
    agent = scripted_agent(["hello", "again"], plugins=[Plugin("watch", [listener])])
    await agent.arun("hi", allowed_plugins=[])
    assert listener.seen == []
    await agent.arun("hi", allowed_plugins=["watch"])
    assert listener.seen


async def test_consumers_get_only_the_types_they_want_and_unwanted_events_are_not_numbered(scripted_agent):
    ends, replies = Listener(RunFinished), Listener(ModelReplied, RunFinished)
    await scripted_agent([call("add", a=1, b=2), "done"], tools=[add], hooks=[ends, replies]).arun("hi")
    assert [(type(event), event.seq) for event in ends.seen] == [(RunFinished, 3)]
    assert [(type(event), event.seq) for event in replies.seen] == [
        (ModelReplied, 1),
        (ModelReplied, 2),
        (RunFinished, 3),
    ]


ALL_KINDS = sorted((kind for kind in Event.__subclasses__() if kind.__module__.startswith("hookline.")), key=str)


@pytest.mark.parametrize("kind", ALL_KINDS, ids=lambda kind: kind.__name__)
async def test_a_consumer_of_one_type_gets_it_as_often_as_a_consumer_of_all(scripted_agent, kind):
    def talkative(ctx):
        ctx.progress(0.5, "half way")
        return "ok"

    async def count(*events):
        replies = [call("talkative"), call("add", a=1, b=2), [call("add", a=1, b=1), call("nowhere")], "done"]
        blocker = guard(BEFORE_TOOL, tools="talk*")(lambda ctx, request: HookResult.ask("may it?"))
        yes = hook(APPROVAL_REQUESTED)(lambda ctx, request: HookResult.approve())
        listener = Listener(*events)
        agent = scripted_agent(replies, tools=[talkative, add], hooks=[listener, blocker, yes])
        await agent.arun("hi")
        return sum(type(event) is kind for event in listener.seen)

    assert await count(kind) == await count()


async def test_text_is_streamed_only_if_a_consumer_wants_the_pieces():
    model = Watched()
    agent = Agent("a", llm=model)
    await agent.arun("hi", hooks=[Listener(ModelCalled, ModelReplied)])
    await agent.arun("hi", hooks=[Listener(TextDelta)])
    await agent.arun("hi", hooks=[Listener()])
    assert model.asked == ["complete", "stream", "stream"]


async def test_a_listener_may_ask_for_every_hook_call(scripted_agent):
    silent = hook(BEFORE_LLM, name="silent")(lambda ctx, request: None)
    for every_call, expected in ((False, 0), (True, 1)):
        listener = Listener(HookExecuted, every_call=every_call)
        await scripted_agent(["hello"], hooks=[listener, silent]).arun("hi")
        assert sum(event.hook == "silent" for event in listener.seen) == expected


async def test_the_record_of_a_hook_contains_the_id_of_the_tool_call(scripted_agent):
    listener = Listener(HookExecuted)
    no = guard(BEFORE_TOOL, name="no")(lambda ctx, request: HookResult.block("no"))
    shorten = hook(BEFORE_LLM, name="shorten")(lambda ctx, request: request.replace(params={"n": 1}))
    turns = [[call("add", a=1, b=2), call("add", a=3, b=4)], "done"]
    await scripted_agent(turns, tools=[add], hooks=[listener, no, shorten]).arun("hi")
    said = [(event.hook, event.call_id) for event in listener.seen]
    assert said == [("shorten", ""), ("no", "call_0_0"), ("no", "call_0_1"), ("shorten", "")]


async def test_a_model_called_event_contains_the_provider(scripted_agent):
    listener = Listener(ModelCalled)
    await scripted_agent(["hello"], hooks=[listener]).arun("hi")
    assert [(event.model, event.provider) for event in listener.seen] == [("scripted", "scripted")]


async def test_a_listener_that_raises_does_not_affect_a_run(scripted_agent, caplog):
    class Broken(Listener):
        def on_event(self, event):
            raise ValueError("oh no")

    seen = Listener()
    assert (await scripted_agent(["hello"], hooks=[Broken(), seen]).arun("hi")).reply == "hello"
    assert seen.seen
    assert "oh no" in caplog.text


# What a stream is for


def wanting(*kinds, every_call=False):
    log = []

    def sink(event):
        log.append(event)

    sink.events, sink.every_call, sink.log = frozenset(kinds), every_call, log
    return sink


def test_only_wanted_events_are_created():
    nobody = EventStream("r", lambda: 0.0)
    assert (nobody.wanted, nobody.wants(PointFired), nobody.wants(StepStarted)) == (frozenset(), False, False)
    some = EventStream("r", lambda: 0.0, [wanting(StepStarted), wanting(TextDelta, ModelReplied)])
    assert some.wanted == {StepStarted, TextDelta, ModelReplied}
    assert (some.wants(PointFired), some.wants(TextDelta), some.wants(RunStarted)) == (False, True, False)
    assert EventStream("r", lambda: 0.0, [wanting(PointFired)]).wants(PointFired)
    everything = EventStream("r", lambda: 0.0, [wanting(StepStarted), print])
    assert (everything.wanted, everything.wants(PointFired)) == (None, True)
    kept = EventStream("r", lambda: 0.0, [wanting(StepStarted)], keep=True)
    assert (kept.wanted, kept.wants(PointFired)) == (None, True)


def test_each_sink_gets_its_types_and_a_closed_stream_emits_nothing():
    some, other = wanting(StepStarted), wanting(TextDelta)
    stream = EventStream("r", lambda: 2.5, [some, other])
    for _ in range(2):
        stream.emit(StepStarted, index=1)
        stream.emit(TextDelta, text="a")
        stream.emit(RunStarted)
    assert some.log == [StepStarted(seq=n, at=2.5, run_id="r", index=1) for n in (1, 3)]
    assert [event.seq for event in other.log] == [2, 4]
    stream.close()
    stream.emit(StepStarted, index=2)
    assert (len(some.log), stream.wants(StepStarted)) == (2, False)


class Hears:
    """A hook with ``on_event``."""

    def __init__(self, *kinds, every_call=None):
        self.heard = []
        if kinds:
            self.events = frozenset(kinds)
        if every_call is not None:
            self.every_call = every_call

    def on_event(self, event):
        self.heard.append(event)


def test_the_listener_of_a_hook_wants_the_events_of_the_hook():
    plain, picky = listener(Hears()), listener(Hears(StepStarted, every_call=True))
    assert not hasattr(plain, "events")
    assert not hasattr(plain, "every_call")
    assert (picky.events, picky.every_call) == ({StepStarted}, True)


def test_removed_hooks_get_no_events_and_sinks_still_do():
    stays, goes, log = Hears(), Hears(), []
    stream = EventStream("r", lambda: 0.0, [listener(stays), listener(goes), log.append])
    assert stream.hooked
    emit(stream, 1)
    stream.keep_hooks([stays, goes])
    emit(stream, 1)
    stream.keep_hooks([stays])
    emit(stream, 1)
    assert (len(stays.heard), len(goes.heard), len(log)) == (3, 2, 3)
    assert stream.hooked
    stream.keep_hooks([])
    emit(stream, 1)
    assert (len(stays.heard), len(log), stream.hooked) == (3, 4, False)
    assert not EventStream("r", lambda: 0.0, [print]).hooked


def test_events_of_a_nested_run_are_relayed_to_sinks_and_readers_and_not_to_hooks():
    child, grandchild = Ids("child"), Ids("grandchild")
    hook_, log = Hears(), []
    stream = EventStream("r", lambda: 7.0, [listener(hook_), log.append])
    take = stream.relay(child)
    inner = StepStarted(seq=3, run_id="child", index=2)
    take(inner)
    take(SubagentEvent(seq=9, event=inner, ids=grandchild))
    assert log == [
        SubagentEvent(seq=1, at=7.0, run_id="r", event=inner, ids=child),
        SubagentEvent(seq=2, at=7.0, run_id="r", event=inner, ids=grandchild),
    ]
    assert hook_.heard == []
    stream.close()
    take(inner)
    assert len(log) == 2


def test_nothing_is_relayed_without_consumers():
    assert EventStream("r", lambda: 0.0).relay(Ids()) is None
    assert EventStream("r", lambda: 0.0, [listener(Hears())]).relay(Ids()) is None
    assert EventStream("r", lambda: 0.0, [wanting(StepStarted)]).relay(Ids()) is None
    assert EventStream("r", lambda: 0.0, [wanting(SubagentEvent)]).relay(Ids()) is not None
    assert EventStream("r", lambda: 0.0, [listener(Hears())], keep=True).relay(Ids()) is not None


async def test_an_event_from_another_thread_is_put_into_the_streams_own_loop():
    log, threads = [], []

    def sink(event):
        log.append(event)
        threads.append(threading.get_ident())

    stream = EventStream("r", lambda: 0.0, [sink])
    stream.begin()
    take = stream.relay(Ids("child"))
    await asyncio.to_thread(take, StepStarted(index=1))
    await asyncio.sleep(0)
    take(StepStarted(index=2))
    assert [event.event.index for event in log] == [1, 2]
    assert set(threads) == {threading.get_ident()}


def test_an_event_for_a_closed_loop_is_delivered_at_once():
    log = []
    stream = EventStream("r", lambda: 0.0, [log.append])

    async def begin():
        stream.begin()

    thread = threading.Thread(target=asyncio.run, args=[begin()])
    thread.start()
    thread.join()
    stream.relay(Ids("child"))(StepStarted(index=3))
    assert [event.event.index for event in log] == [3]


@pytest.mark.parametrize(
    ("fields", "silent"),
    [
        ({"verb": "cont", "duration": 0.1}, True),
        ({"verb": "cont"}, False),
        ({"verb": "cont", "duration": 0.1, "reason": "r"}, False),
        ({"verb": "cont", "duration": 0.1, "error": "e"}, False),
        ({"verb": "replace", "point": "on_token"}, True),
        ({"verb": "replace", "point": "on_token", "reason": "r"}, False),
        ({"verb": "replace", "point": "before_tool", "duration": 0.1}, False),
        ({"verb": "block", "point": "before_tool", "duration": 0.1}, False),
    ],
)
def test_a_record_without_a_decision_is_silent(fields, silent):
    assert is_silent(HookExecuted(**fields)) is silent


async def test_a_negative_start_reads_all_events():
    stream = make()
    emit(stream, 2)
    stream.close()
    assert await collect(stream, after=-5) == [1, 2]
    silent = EventStream("r", lambda: 0.0)
    silent.close()
    assert await collect(silent) == []


def test_the_decision_of_a_hook_carries_what_it_tells_the_model():
    told = []

    @hook("after_llm")
    def decided(ctx, answer):
        return HookResult.retry("Decide.", reason="rule 4") if answer.content == "maybe" else None

    @hook("on_stop")
    def unfinished(ctx, stopping):
        if not told:
            told.append(1)
            return HookResult.keep_going("Go on.")

    @hook("before_tool")
    def no_tools(ctx, request):
        return HookResult.block("Not this one.")

    seen = []
    model = ScriptedModel(["maybe", [call("add", a=1, b=2)], "yes", "done"])
    Agent("a", llm=model, tools=[add], hooks=[decided, unfinished, no_tools], sinks=[seen.append]).run("go")
    notes = [(event.verb, event.note) for event in seen if isinstance(event, HookExecuted)]
    assert notes == [("retry", "Decide."), ("block", ""), ("keep_going", "Go on.")]


class Noted(Event, frozen=True):
    thread: int = 0
    number: int = 0


THREADS, NOTES = 8, 25


class SlowClock:
    """A clock that lets other threads run while it is read, in the middle of creating an event."""

    monotonic = staticmethod(time.monotonic)

    def time(self):
        time.sleep(0.0005)
        return time.time()


async def test_events_from_many_threads_are_numbered_without_gaps_and_read_once():
    """Sinks are called one at a time, and a reader that starts again after any event misses none."""
    barrier, heard, busy = threading.Barrier(THREADS), [], []

    @tool
    def note(ctx: AgentContext, thread: int) -> str:
        """Note."""
        barrier.wait(10)
        for number in range(NOTES):
            ctx.emit(Noted, thread=thread, number=number)
        return "noted"

    def sink(event):
        busy.append(event)
        heard.append(event.seq)
        assert busy == [event]
        busy.clear()

    calls = [[call("note", thread=thread) for thread in range(THREADS)], "done"]
    agent = Agent("a", llm=ScriptedModel(calls), tools=[note], max_parallel_tools=THREADS)
    run = agent.start("x", sinks=[sink], ctx=AgentContext(clock=SlowClock()))
    read = []
    while not read or not isinstance(read[-1], RunFinished):
        async for event in run.events(after=len(read)):
            read.append(event)
            if len(read) % 7 == 0:
                break
    assert [event.seq for event in read] == list(range(1, len(read) + 1))
    assert heard == [event.seq for event in read]
    notes = [(event.thread, event.number) for event in read if isinstance(event, Noted)]
    assert sorted(notes) == [(thread, number) for thread in range(THREADS) for number in range(NOTES)]
    for thread in range(THREADS):
        assert [number for by, number in notes if by == thread] == list(range(NOTES))
    settled = next(i for i, event in enumerate(read) if isinstance(event, ToolSettled))
    assert max(i for i, event in enumerate(read) if isinstance(event, Noted)) < settled


async def test_an_event_from_a_thread_that_outlives_the_run_is_dropped():
    go_on, done = threading.Event(), threading.Event()

    @tool(timeout=0.01)
    def slow(ctx: AgentContext) -> str:
        """Go on after the run."""
        go_on.wait(10)
        ctx.emit(Noted)
        done.set()
        return ""

    run = Agent("a", llm=ScriptedModel([call("slow"), "done"]), tools=[slow]).start("x")
    await run.result()
    go_on.set()
    assert await asyncio.to_thread(done.wait, 10)
    events = [event async for event in run.events()]
    assert isinstance(events[-1], RunFinished)
    assert not [event for event in events if isinstance(event, Noted)]


async def test_no_event_follows_the_end_of_a_durable_run_while_its_result_is_stored(tmp_path):
    go_on, done, events = threading.Event(), threading.Event(), []

    @tool(timeout=0.01)
    def slow(ctx: AgentContext) -> str:
        """Go on after the run."""
        go_on.wait(10)
        ctx.emit(Noted)
        done.set()
        return ""

    def watch(event):
        events.append(event)
        if isinstance(event, RunFinished):
            go_on.set()
            assert done.wait(10)

    agent = Agent("a", llm=ScriptedModel([call("slow"), "done"]), tools=[slow])
    with closing(RunStore(tmp_path / "runs.db")) as store:
        await agent.arun("x", durable=store, sinks=[watch])
    assert isinstance(events[-1], RunFinished)


def test_the_events_of_a_run_whose_loop_was_closed_reach_the_sinks():
    @tool
    async def hang() -> str:
        """Never return."""
        started.set()
        await asyncio.Event().wait()
        return ""

    async def until_the_tool_runs():
        agent = Agent("a", llm=ScriptedModel([call("hang"), "done"]), tools=[hang])
        running.append(asyncio.ensure_future(agent.arun("x", sinks=[events.append])))
        await started.wait()

    started, running, events = asyncio.Event(), [], []
    loop = asyncio.new_event_loop()
    loop.run_until_complete(until_the_tool_runs())
    loop.close()
    running.pop().get_coro().close()  # as Python does when nothing refers to the run any more
    assert [event.tool for event in events if isinstance(event, ToolEnded)] == ["hang"]
