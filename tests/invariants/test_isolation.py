"""DESIGN 7.7 to 7.10: runs share nothing, hooks change nothing in place, every model call counts."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_ERROR,
    ON_RUN_START,
    Agent,
    AgentContext,
    Budget,
    HookResult,
    Limits,
    Message,
    ModelReply,
    ModelRequest,
    RunFailedError,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    observer,
)
from hookline._base.frozen import History
from hookline.errors import CallRefusedError
from hookline.models import ModelResponse
from hookline.payloads import AgentState, Frozen, ToolCall, Usage
from hookline.points import POINTS
from hookline.stores import JsonSessionStore
from hookline.testing import sample
from tests.cases import each_case
from tests.properties import examples
from tests.waiting import until_others_wait

from .strategies import FAULTS, LOOP_POINTS, check_transcript, say

quick = settings(max_examples=examples(60), deadline=None)


# 7.7 Concurrent runs share nothing.


class Counting:
    """A hook that keeps its state in ``own_state`` (DESIGN 6.2)."""

    points = frozenset((ON_RUN_START, BEFORE_STEP, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, AFTER_STEP))

    def __init__(self) -> None:
        self.seen: dict[str, Any] = {}

    async def __call__(self, point: Any, ctx: Any, payload: Any) -> HookResult:
        own = ctx.own_state(self, lambda: {"calls": 0, "run": ctx.run_id})
        own["calls"] += 1
        await asyncio.sleep(0)
        assert own["run"] == ctx.run_id == ctx.state.ids.run_id == payload_run(payload, ctx)
        who = ctx.state.metadata["who"]
        tasks = [message.content for message in ctx.state.messages if message.role == "user"]
        assert tasks in ([], [f"task of {who}"])
        self.seen[ctx.run_id] = own["calls"]
        marks = ctx.state.metadata.get("marks", 0)
        return HookResult.cont(state=ctx.state.with_metadata(marks=marks + 1, last=f"{point} of {who}"))


def payload_run(payload: Any, ctx: Any) -> str:
    return payload.ids.run_id if hasattr(payload, "ids") else ctx.run_id


async def wait(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "waited"


def script(request: Any) -> Any:
    """A stateless model: one call, then an answer that contains the task."""
    task = next(message.content for message in request.messages if message.role == "user")
    if request.messages[-1].role == "tool":
        return f"answer to {task}"
    return call("wait", seconds=(hash(task) % 5) / 1000)


@quick
@given(st.integers(2, 6), st.booleans())
def test_concurrent_runs_of_one_agent_share_nothing(number: int, listening: bool) -> None:
    counting, sessions = Counting(), [Session(metadata={"who": str(i)}) for i in range(number)]
    agent = Agent("a", llm=ScriptedModel([script], loop=True), tools=[wait], hooks=[counting])

    async def all_of_them() -> list[Any]:
        options = [{"session": session, "metadata": {"who": session.metadata["who"]}} for session in sessions]
        if listening:
            runs = [agent.start(f"task of {i}", **option) for i, option in enumerate(options)]
            return [await run.result() for run in runs]
        return await asyncio.gather(*(agent.arun(f"task of {i}", **option) for i, option in enumerate(options)))

    results = asyncio.run(all_of_them())
    assert [result.reply for result in results] == [f"answer to task of {i}" for i in range(number)]
    assert [len(result.messages) for result in results] == [4] * number
    assert len({result.ids.run_id for result in results}) == number
    assert len({result.ids.session_id for result in results}) == number
    fires = 1 + 2 * (BEFORE_STEP in counting.points) * 4 + 2
    assert list(counting.seen.values()) == [fires] * number
    for i, session in enumerate(sessions):
        assert session.metadata == {"who": str(i), "marks": fires, "last": f"after_step of {i}"}
        assert list(session.messages) == list(results[i].messages)
    assert len({(result.usage, result.cost, result.tool_calls) for result in results}) == 1


async def test_two_instances_of_one_hook_share_no_state() -> None:
    first, second = Counting(), Counting()
    agent = Agent("a", llm=ScriptedModel(["hello"]), hooks=[first, second])
    await agent.arun("task of 1", metadata={"who": "1"})
    assert list(first.seen.values()) == list(second.seen.values()) == [5]


async def test_hook_state_is_gone_after_the_run() -> None:
    kept = []
    keep = hook(ON_RUN_START)(lambda ctx, start: kept.append(dict(ctx.hook_state)) or ctx.hook_state.update({1: 2}))
    ctx = AgentContext(hooks=[keep])
    agent = Agent("a", llm=ScriptedModel(["one", "two"]))
    await agent.arun("a task", ctx=ctx)
    await agent.arun("a task", ctx=ctx)
    assert kept == [{}, {}]
    assert ctx.hook_state == {}


async def test_runs_that_share_a_session_lose_none_of_its_messages() -> None:
    session, runs = Session("s"), []
    agent = Agent("a", llm=ScriptedModel(["hello"], loop=True))

    @observer(AFTER_STEP)
    def start_another(ctx: Any, step: Any) -> None:
        runs.append(agent.start("two", session=session, inherit=False))

    await agent.arun("one", session=session, hooks=[start_another])
    await runs[0].result()
    await asyncio.gather(*(agent.arun(f"task {i}", session=session) for i in range(3)))
    tasks = [message.content for message in session.messages if message.role == "user"]
    assert sorted(tasks) == ["one", "task 0", "task 1", "task 2", "two"]
    check_transcript(session.messages)


# 7.8 Nothing is changed in place.


def reachable(value: Any, depth: int = 0) -> list[Any]:
    """Yield this value and everything reachable from its public attributes."""
    found = [value]
    if depth > 8:
        return found
    if isinstance(value, msgspec.Struct):
        parts = [getattr(value, name) for name in value.__struct_fields__]
    elif isinstance(value, dict):
        parts = list(value.values())
    elif isinstance(value, (list, tuple, History)):
        parts = list(value)
    else:
        parts = []
    for part in parts:
        found += reachable(part, depth + 1)
    return found


def vandalise(value: Any) -> None:
    """Try to change a value in place in every way."""
    for thing in reachable(value):
        attempts: list[Any] = []
        if isinstance(thing, msgspec.Struct):
            for name in thing.__struct_fields__:
                attempts += [
                    lambda t=thing, n=name: setattr(t, n, "spoilt"),
                    lambda t=thing, n=name: delattr(t, n),
                    lambda t=thing, n=name: t.__setitem__(n, "spoilt"),
                ]
        elif isinstance(thing, dict):
            attempts += [
                lambda t=thing: t.update(spoilt=1),
                lambda t=thing: t.clear(),
                lambda t=thing: t.popitem(),
                lambda t=thing: t.setdefault("spoilt", 1),
                lambda t=thing: t.__setitem__("spoilt", 1),
                lambda t=thing: t.__ior__({"spoilt": 1}),
                lambda t=thing: t.pop(next(iter(t))),
                lambda t=thing: t.__delitem__(next(iter(t))),
                lambda t=thing: t.__init__(spoilt=1),
                lambda t=thing: t.copy().update(spoilt=1),
            ]
        elif isinstance(thing, (list, History)):
            attempts += [
                lambda t=thing: t.append(1),
                lambda t=thing: t.extend([1]),
                lambda t=thing: t.clear(),
                lambda t=thing: t.insert(0, 1),
                lambda t=thing: t.pop(),
                lambda t=thing: t.reverse(),
                lambda t=thing: t.__setitem__(0, 1),
                lambda t=thing: t.__delitem__(0),
                lambda t=thing: t.sort(),
                lambda t=thing: t.__iadd__([1]),
                lambda t=thing: t.__imul__(2),
                lambda t=thing: t.__init__([1]),
            ]
        for attempt in attempts:
            with suppress(TypeError, AttributeError, KeyError, IndexError, StopIteration):
                attempt()


def spoil_copies(value: Any) -> None:
    """Change everything in the plain copies of dict access."""
    if isinstance(value, dict):
        for item in value.values():
            spoil_copies(item)
        value["spoilt"] = True
    elif isinstance(value, list):
        for item in value:
            spoil_copies(item)
        value.append("spoilt")


def snapshot(value: Any) -> bytes:
    return value.to_json() if hasattr(value, "to_json") else repr(value).encode()


def vandals(changed: list[str], *points: Any) -> list[Any]:
    def vandal(point: Any, ctx: Any, payload: Any) -> None:
        before = snapshot(payload), snapshot(ctx.state)
        vandalise(payload)
        vandalise(ctx.state)
        for thing in (payload, ctx.state):
            copied = dict(thing)
            spoil_copies(copied)
            for name in thing:
                spoil_copies(thing[name])
        if (snapshot(payload), snapshot(ctx.state)) != before:
            changed.append(point)

    def watcher(point: Any, ctx: Any, payload: Any, verdict: Any) -> None:
        vandal(point, ctx, payload)
        before = repr(verdict)
        vandalise(verdict)
        if repr(verdict) != before:
            changed.append(f"verdict at {point}")

    deciders = [hook(p, priority=50)(vandal) for p in points if p.model != "observe"]
    return [*deciders, *(observer(p, priority=50)(watcher) for p in points)]


def nested(items: list[Any], path: str = "a") -> dict[str, Any]:
    return {"items": items, "deep": {"list": [1, {"x": 2}]}}


async def story(*hooks: Any) -> tuple[Any, ...]:
    """Run an agent with all features; return everything that could show a change."""
    ask = guard(BEFORE_TOOL, priority=-1)(lambda ctx, request: HookResult.ask("may it?"))
    edit = hook("approval_requested", priority=-1)(lambda ctx, request: HookResult.edit({"items": [[1], {"a": 2}]}))
    more = hook("before_prompt_build", priority=-1)(lambda ctx, built: {"append_system": "more"})
    model = ScriptedModel([[call("nested", items=[[1]]), call("missing")], RuntimeError("down"), "an answer"])
    retry = hook(ON_ERROR, priority=-1)(lambda c, failure: HookResult.retry() if failure.where == "model" else None)
    agent = Agent(
        "a",
        "",
        "instructions",
        llm=model,
        tools=[nested],
        hooks=[ask, edit, more, retry, *hooks],
        params={"stop": ["x"], "deep": {"a": [1]}},
        response_format={"type": "object", "required": ["a"]},
    )
    session = Session("s", metadata={"list": [1, {"x": [2]}]})
    result = await agent.arun("a task", session=session)
    requests = [(list(r.messages), r.tools, r.params, r.response_format) for r in model.requests]
    return list(session.messages), session.metadata, requests, result.reply, result.status, result.errors


async def test_in_place_changes_of_everything_reachable_have_no_effect() -> None:
    changed: list[str] = []
    spoilt = await story(*vandals(changed, *LOOP_POINTS))
    assert not changed
    assert spoilt == await story()


@each_case("point", POINTS.values())
def test_nothing_reachable_from_a_payload_can_be_changed(point: Any) -> None:
    payload = sample(point)
    before = snapshot(payload)
    vandalise(payload)
    spoil_copies(dict(payload))
    assert snapshot(payload) == before


json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=examples(100), deadline=None)
@given(st.dictionaries(st.text(max_size=3), json, max_size=3), json)
def test_json_inside_a_payload_is_frozen_all_the_way_down(arguments: dict[str, Any], result: Any) -> None:
    kept = msgspec.json.encode([arguments, result])
    payload = sample(AFTER_TOOL, arguments=arguments, result=result)
    copied = dict(payload)
    assert [copied["arguments"], copied["result"]] == msgspec.json.decode(kept)
    vandalise(payload)
    spoil_copies(copied)
    spoil_copies([arguments, result])  # the original values belong to the caller
    assert msgspec.json.encode([payload["arguments"], payload["result"]]) == kept
    assert payload.replace(dict(payload)) == payload


@pytest.mark.parametrize("point", [BEFORE_STEP, BEFORE_LLM, BEFORE_TOOL, AFTER_TOOL, AFTER_STEP])
@pytest.mark.parametrize("policy", ["closed", "open"])
async def test_an_observer_cannot_change_who_failed_and_why(point: Any, policy: str) -> None:
    @guard(point, name="the_guard", on_failure=policy)
    def fail(ctx: Any, payload: Any) -> None:
        raise RuntimeError("the reason")

    @observer(point)
    def cover_up(ctx: Any, payload: Any, verdict: Any) -> None:
        for error in (verdict.error, *verdict.failures):
            with suppress(AttributeError, TypeError):
                error.hook = "nobody"
            with suppress(AttributeError, TypeError):
                error.message = "nothing happened"
            with suppress(AttributeError, TypeError):
                error.args = ("nothing happened",)

    agent = Agent("a", llm=ScriptedModel([call("nested", items=[]), "done"]), tools=[nested], hooks=[fail, cover_up])
    try:
        result = await agent.arun("a task")
    except RunFailedError as failed:
        result = failed.result
    assert {error.source for error in result.errors} == {"the_guard"}
    assert all("'the_guard'" in error.message and "the reason" in error.message for error in result.errors)


@pytest.mark.parametrize("place", ["request", "state"])
async def test_a_list_that_a_hook_puts_into_a_value_stays_its_own(place: str) -> None:
    mine: list[Any] = []
    seen = []

    @hook(BEFORE_LLM, priority=1)
    def put(ctx: Any, request: Any) -> Any:
        message = Message("assistant", "hello", tool_calls=mine)  # type: ignore[arg-type]
        if place == "state":
            return HookResult.cont(state=ctx.state.with_messages(message))
        return request.replace(messages=[*request.messages, message])

    @hook(BEFORE_LLM)
    def change(ctx: Any, request: Any) -> None:
        mine.append("spoilt")

    @observer(BEFORE_LLM)
    def look(ctx: Any, request: Any) -> None:
        seen.append([message.tool_calls for message in (*request.messages, *ctx.state.messages)])

    with suppress(RunFailedError):  # rejecting such a value is also fine
        await Agent("a", llm=ScriptedModel(["hello"]), hooks=[put, change, look]).arun("a task")
    assert all(not calls for calls in seen[0])


# 7.9 Every model call passes the hooks and is counted.

COST = Usage(7, 3)


def paid(text: str = "", *calls: Any) -> ModelResponse:
    return ModelResponse(text, calls, COST, cost=0.25)


async def think(times: int, ctx: Any) -> str:
    for _ in range(times):
        await ctx.llm.complete("hm", purpose="tool")
    return "thought"


THINKERS = (ON_RUN_START, BEFORE_STEP, BEFORE_TOOL, AFTER_TOOL)


@settings(max_examples=examples(80), deadline=None)
@given(
    st.lists(st.sampled_from(THINKERS), max_size=3),
    st.integers(0, 2),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
)
def test_every_model_call_passes_the_hooks_and_is_counted(
    points: list[Any], in_tool: int, retries: int, streaming: bool, observing: bool
) -> None:
    asked, heard = [], []

    def answer(request: Any) -> Any:
        if request.purpose != "step" or any(message.role == "tool" for message in request.messages):
            return paid("well")
        call_it = call("think", times=in_tool).replace(id=f"c{len(asked)}")
        return paid("some words", call_it)

    async def thinker(ctx: Any, payload: Any) -> None:
        await ctx.llm.complete("hm")

    @hook(AFTER_LLM)
    def again(ctx: Any, reply: Any) -> HookResult | None:
        return HookResult.retry("again") if reply.purpose == "step" and reply.attempt <= retries else None

    hooks = [hook(point, name=f"thinker_{i}")(thinker) for i, point in enumerate(points)]
    hooks.append(hook(BEFORE_LLM, priority=9)(lambda ctx, request: asked.append(request.purpose)))
    hooks.append(hook(AFTER_LLM, priority=9)(lambda ctx, reply: heard.append(reply.purpose)))
    if streaming:
        hooks.append(observer("on_token")(lambda ctx, delta: None))
    model = ScriptedModel([answer], loop=True)
    agent = Agent("a", llm=model, tools=[think], hooks=[*hooks, again])
    ctx = AgentContext(budget=Budget(Limits(tokens=10**6)))
    result = asyncio.run(agent.arun("a task", ctx=ctx, sinks=[lambda event: None] if observing else []))
    made = [request.purpose for request in model.requests]
    assert Counter(asked) == Counter(heard) == Counter(made)
    assert result.status == "completed"
    assert Counter(made)["tool"] == in_tool
    number = len(made)
    assert (result.usage, result.cost) == (Usage(7 * number, 3 * number), 0.25 * number)
    assert (ctx.budget.usage, ctx.budget.cost) == (result.usage, result.cost)
    assert ctx.budget.tool_calls == result.tool_calls == 1


@pytest.mark.parametrize("point", [AFTER_LLM, AFTER_STEP, "on_stop", "on_run_end"])
async def test_a_model_call_at_the_end_leaves_the_run_completed(point: Any) -> None:
    @hook(point)
    async def reflect(ctx: Any, payload: Any) -> None:
        await ctx.llm.complete("was that good?")

    ctx, model = AgentContext(), ScriptedModel([paid("an answer")], loop=True)
    result = await Agent("a", llm=model, hooks=[reflect]).arun("a task", ctx=ctx)
    assert (result.status, result.reply) == ("completed", "an answer")
    assert ctx.budget.tokens == 10 * len(model.requests)


async def test_a_hook_is_not_called_for_its_own_model_call_but_all_others_are() -> None:
    entered = Counter()

    def thinker(name: str) -> Any:
        @hook(BEFORE_LLM, name=name)
        async def ask_first(ctx: Any, request: Any) -> None:
            entered[name, request.purpose] += 1
            await ctx.llm.complete("is this fine?", purpose=f"{request.purpose} by {name}")

        return ask_first

    await Agent("a", llm=ScriptedModel(["yes"], loop=True), hooks=[thinker("one"), thinker("two")]).arun("a task")
    assert entered == {
        ("one", "step"): 1,
        ("two", "step by one"): 1,
        ("two", "step"): 1,
        ("one", "step by two"): 1,
    }


async def test_hooks_judge_the_model_calls_of_hooks() -> None:
    refused = []

    @hook(BEFORE_STEP)
    async def thinker(ctx: Any, step: Any) -> None:
        try:
            await ctx.llm.complete("something secret")
        except CallRefusedError as error:
            refused.append(error.status)

    @guard(BEFORE_LLM)
    def no_secrets(ctx: Any, request: Any) -> HookResult | None:
        return HookResult.end("no") if "secret" in request.messages[-1].content else None

    model = ScriptedModel(["hello"])
    result = await Agent("a", llm=model, hooks=[thinker, no_secrets]).arun("a task")
    assert refused == ["ended"]
    assert len(model.requests) == 1
    assert result.reply == "hello"


@pytest.mark.parametrize("timeout", [None, 0.05])
async def test_a_model_call_in_a_sync_hook_raises_with_advice(timeout: float | None) -> None:
    @hook(BEFORE_STEP, timeout=timeout)
    def thinker(ctx: Any, step: Any) -> None:
        ctx.llm.complete("hm")

    model = ScriptedModel(["hello"])
    with pytest.raises(RunFailedError, match="async"):
        await Agent("a", llm=model, hooks=[thinker]).arun("a task")
    assert not model.requests


async def test_the_budget_stops_a_hook_that_calls_the_model_too_often() -> None:
    @hook(BEFORE_STEP)
    async def thinker(ctx: Any, step: Any) -> None:
        for _ in range(50):
            await ctx.llm.complete("hm")

    model = ScriptedModel([lambda request: paid("well")], loop=True)
    ctx = AgentContext(budget=Budget(Limits(tokens=35)))
    result = await Agent("a", llm=model, hooks=[thinker]).arun("a task", ctx=ctx)
    assert result.status == "stopped"
    assert len(model.requests) == 4


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_model_call_that_fails_half_way_is_counted_as_far_as_it_got(fault: str) -> None:
    limit = 0.02 if fault == "hang" else None

    @hook("on_token", timeout=limit)
    async def fail(ctx: Any, delta: Any) -> Any:
        if fault == "hang":
            await asyncio.sleep(3600)
        return say(fault, "on_token", ctx, delta)

    with pytest.raises(RunFailedError) as caught:
        await Agent("a", llm=ScriptedModel(["some words"]), hooks=[fail]).arun("two words")
    assert caught.value.result.usage.input_tokens == 2
    assert caught.value.result.usage.output_tokens >= 1


# 7.10 A child counts live in its parent's ledger.


def delegate(child: Agent, seen: list[Any]) -> Any:
    async def hand_over(ctx: Any) -> str:
        result = await child.arun("a part", ctx=ctx)
        seen.append((result.status, result.usage, ctx.budget.usage, ctx.budget.steps))
        return result.reply

    return hand_over


async def test_a_child_counts_live_in_its_parents_budget() -> None:
    live, seen = [], []
    child = Agent("child", llm=ScriptedModel([paid("", call("work").replace(id="c")), paid("done")]), tools=[work])
    parent = Agent("parent", llm=ScriptedModel([paid("", call("hand_over").replace(id="p")), paid("done")]))
    parent = Agent("parent", llm=parent.model, tools=[delegate(child, seen)])
    ctx = AgentContext()
    child.register_hook(observer(AFTER_LLM)(lambda c, reply: live.append((c.budget.tokens, ctx.budget.tokens))))
    result = await parent.arun("a task", ctx=ctx)
    assert live == [(10, 20), (20, 30)]
    assert seen == [("completed", Usage(14, 6), Usage(21, 9), 1)]
    assert (ctx.budget.tokens, ctx.budget.cost, ctx.budget.tool_calls) == (40, 1.0, 2)
    assert result.usage == Usage(28, 12)


def work() -> str:
    return "worked"


@pytest.mark.parametrize("limit", [{"tokens": 20}, {"cost": 0.5}, {"tool_calls": 2}])
async def test_a_child_at_its_parents_limit_is_stopped_and_so_is_the_parent(limit: dict[str, Any]) -> None:
    seen: list[Any] = []
    child_model = ScriptedModel([lambda request: paid("", call("work").replace(id=str(len(child_model.requests))))])
    child_model.loop = True
    child = Agent("child", llm=child_model, tools=[work])
    model = ScriptedModel([paid("", call("hand_over").replace(id="p")), paid("done")])
    parent = Agent("parent", llm=model, tools=[delegate(child, seen)])
    result = await parent.arun("a task", ctx=AgentContext(budget=Budget(Limits(**limit))))
    assert [status for status, *_ in seen] == ["stopped"]
    assert len(child_model.requests) == 1
    assert len(model.requests) == 1
    assert result.status == "stopped"
    check_transcript(result.messages)


async def test_cancelling_the_parent_cancels_the_child() -> None:
    ends: list[str] = []
    child = Agent("child", llm=ScriptedModel([call("wait", seconds=3600)]), tools=[wait])
    child.register_hook(observer("on_run_end")(lambda ctx, result: ends.append(result.status)))
    parent = Agent("parent", llm=ScriptedModel([call("hand_over")]), tools=[delegate(child, [])])
    run = parent.start("a task")
    await until_others_wait()
    run.cancel()
    assert (await run.result()).status == "cancelled"
    assert ends == ["cancelled"]


# C code changes a dict without asking its methods: nothing that runs share may be reached that way.


def pollute(mapping: Any) -> None:
    """Add ``__builtins__`` to a mapping, as ``eval`` does."""
    eval("1 < 2", mapping)
    assert "__builtins__" in mapping


async def test_changing_a_copy_of_the_metadata_has_no_effect() -> None:
    seen: list[Any] = []

    @hook(BEFORE_STEP, priority=1)
    def first(ctx: Any, step: Any) -> None:
        pollute(ctx.state.metadata)
        pollute(ctx.session.metadata)
        pollute(ctx.session.personality_changes)

    @hook(BEFORE_STEP)
    def second(ctx: Any, step: Any) -> None:
        seen.append((dict(ctx.state.metadata), dict(ctx.session.metadata), dict(ctx.session.personality_changes)))

    session = Session(metadata={"who": "me"})
    agent = Agent("a", llm=ScriptedModel(["hello"], loop=True), hooks=[first, second])
    await agent.arun("a task", session=session)
    assert seen == [({"who": "me"}, {"who": "me"}, {})]
    assert session.metadata == {"who": "me"}


@each_case("point", sorted(POINTS))
def test_changing_an_empty_mapping_affects_only_its_payload(point: Any) -> None:
    for value in empty_mappings(sample(point)):
        pollute(value)
    assert all(value == {} for value in empty_mappings(sample(point)))
    assert Session().metadata == AgentState().metadata == ToolCall("c", "t").arguments == {}
    assert ModelRequest().params == ModelReply().request.params == {}


def empty_mappings(value: Any) -> list[Any]:
    """Yield every empty mapping inside a payload."""
    if isinstance(value, Frozen):
        return [found for name in value for found in empty_mappings(getattr(value, name))]
    if isinstance(value, (tuple, list, History)):
        return [found for item in value for found in empty_mappings(item)]
    return [value] if isinstance(value, dict) and not value else []


async def test_a_new_session_can_be_saved_after_hooks_misbehaved_in_other_runs(tmp_path: Path) -> None:
    @hook(ON_RUN_START, BEFORE_LLM, AFTER_LLM)
    def spoil(ctx: Any, payload: Any) -> None:
        for mapping in (ctx.state.metadata, ctx.session.metadata, *empty_mappings(payload)):
            pollute(mapping)

    await Agent("a", llm=ScriptedModel(["hello"]), hooks=[spoil]).arun("a task")
    fresh = Session("fresh")
    await Agent("b", llm=ScriptedModel(["hello"])).arun("a task", session=fresh)
    store = JsonSessionStore(tmp_path)
    store.save(fresh)
    assert store.load("fresh").metadata == {}


async def test_changing_the_settings_of_an_agent_affects_only_its_run() -> None:
    seen: list[Any] = []

    @hook(BEFORE_LLM)
    def spoil(ctx: Any, request: Any) -> None:
        seen.append((dict(request.params), dict(request.response_format)))
        pollute(request.params)
        pollute(request.response_format)
        pollute(ctx.state.response_format)

    settings = {"params": {"seed": 1}, "response_format": {"type": "object"}}
    agent = Agent("a", llm=ScriptedModel(["{}"], loop=True), hooks=[spoil], **settings)
    for _ in range(2):
        await agent.arun("a task")
    assert seen == [({"seed": 1}, {"type": "object"})] * 2
    assert (agent.params, agent.response_format) == ({"seed": 1}, {"type": "object"})
