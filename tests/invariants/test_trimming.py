"""DESIGN 7.12: trimming and compaction keep the current user message and whole groups, and always end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hookline import (
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_START,
    Agent,
    HookResult,
    Message,
    ModelRequest,
    ScriptedModel,
    Session,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.events import HookExecuted
from hookline.hooks import Compactor, ContextCompactionHook, TokenBudgetHook
from hookline.hooks.compaction import MARK
from hookline.payloads import ToolCall
from hookline.testing import EventLog
from tests.properties import examples

from .strategies import check_transcript

TASK = "the task of now"
SYSTEM = "be good"


class Counting(ScriptedModel):
    """A scripted model that counts characters as tokens, plus a few for each message and its tools."""

    def count_tokens(self, content: Any) -> int:
        if isinstance(content, str):
            return len(content)
        return sum(4 + len(m.content) + sum(len(c.name) + len(str(c.arguments)) for c in m.tool_calls) for m in content)

    def count_request(self, request: ModelRequest) -> int:
        return self.count_tokens(request.messages) + 10 * len(request.tools)


@tool
def give(n: int) -> str:
    """Return a text of n characters."""
    return "x" * n


@tool
def fail(n: int) -> str:
    """Fail with a text of n characters."""
    raise ValueError("e" * n)


@guard(BEFORE_TOOL)
def block_some(ctx: Any, request: Any) -> HookResult | None:
    return HookResult.block("b" * request.arguments["n"]) if request.arguments["n"] % 7 == 3 else None


sizes = st.one_of(st.integers(0, 60), st.sampled_from([0, 300, 3000]))
texts = sizes.map(lambda n: "t" * n)
batches = st.lists(sizes, min_size=1, max_size=3)
pieces = st.one_of(
    st.tuples(st.just("user"), texts),
    st.tuples(st.just("assistant"), texts),
    st.tuples(st.just("system"), st.sampled_from(["", "a rule"])),
    st.tuples(st.just("summary"), texts),
    st.tuples(st.just("batch"), batches),
)


@st.composite
def histories(draw: st.DrawFn) -> tuple[Message, ...]:
    messages: list[Message] = []
    for kind, value in draw(st.lists(pieces, max_size=12)):
        if kind == "batch":
            calls = [ToolCall(f"old_{len(messages)}_{i}", "give", {"n": n}) for i, n in enumerate(value)]
            messages.append(Message("assistant", "", tuple(calls)))
            messages += [Message("tool", "r" * c.arguments["n"], (), c.id, "give") for c in calls]
        elif kind == "summary":
            messages.append(Message("user", f"{MARK}\n{value}"))
        else:
            messages.append(Message(kind, value))
    return tuple(messages)


scripts = st.lists(
    st.lists(
        st.builds(lambda name, n: call(name, n=n), st.sampled_from(["give", "fail"]), sizes), min_size=1, max_size=3
    ),
    max_size=5,
)


def is_part(some: Any, whole: Any) -> bool:
    """Whether these messages occur in this order in ``whole``; tool results may be shortened."""
    left = iter(whole)
    return all(any(_same(message, other) for other in left) for message in some)


def _same(message: Message, other: Message) -> bool:
    shortened = message.role == "tool" and "characters left out" in message.content
    return message == (other.replace(content=message.content) if shortened else other)


def last_group(messages: Any) -> tuple[Message, ...]:
    start = len(messages) - 1
    while start and messages[start].role == "tool":
        start -= 1
    return tuple(messages[start:])


def least_request(request_messages: Any) -> list[Message]:
    """Return the messages that must stay, in their shortest form."""
    task = max(i for i, m in enumerate(request_messages) if m.role == "user")
    newest = len(request_messages) - len(last_group(request_messages))
    left = [m for i, m in enumerate(request_messages) if m.role == "system" or i == task or i >= newest]
    return [m.replace(content=m.content[:100]) if m.role == "tool" else m for m in left]


@settings(max_examples=examples(200), deadline=None)
@given(histories(), scripts, st.integers(40, 900))
@example((), [[call("give", n=3000)]], 250)
@example((Message("user", "t" * 3000), Message("assistant", "a")), [], 60)
def test_a_trimmed_request_fits_and_keeps_what_it_must_or_the_run_stops(
    history: tuple[Message, ...], script: list[Any], limit: int
) -> None:
    model, log, session = Counting([*script, reply("done")]), EventLog(), Session("s", history)
    seen: list[Any] = []

    @hook("before_llm")
    def note(ctx: Any, request: Any) -> None:
        seen.append(request)

    agent = Agent("a", "", SYSTEM, llm=model, tools=[give, fail], hooks=[block_some, note, TokenBudgetHook(limit)])
    agent.register_hook(TokenBudgetHook(limit), name="again", priority=-201)
    result = asyncio.run(agent.arun(TASK, session=session, sinks=[log]))

    for request, whole in zip(model.requests, seen, strict=False):
        assert model.count_request(request) <= limit
        check_transcript(request.messages)
        assert is_part(request.messages, whole.messages)
        assert [m for m in request.messages if m.role == "user"][-1] == Message("user", TASK)
        assert [m for m in request.messages if m.role == "system"] == [m for m in whole.messages if m.role == "system"]
        assert is_part(request.messages[-1:], last_group(whole.messages)[-1:])
        if request != whole:
            assert model.count_request(whole) > limit, "it was left alone"
    if result.status == "stopped":
        assert result.stop is not None
        assert result.stop.kind == "token_limit"
        assert len(seen) == len(model.requests) + 1
        least = model.count_tokens(least_request(seen[-1].messages)) + 20
        assert least > limit, "it could have been made to fit"
        assert str(limit) in result.stop.message
    else:
        assert result.status == "completed"
        assert len(model.requests) == len(script) + 1
    assert not [e for e in log.of(HookExecuted) if e.hook == "again" and e.verb == "replace"]
    transcript = list(session.messages)
    assert transcript[: len(history)] == list(history)
    assert not any("characters left out" in m.content for m in transcript)


summaries = st.sampled_from(["short", "", "s" * 200, "s" * 5000, "down"])


def summarising(script: list[Any], says: list[str]) -> Counting:
    steps, words, model = iter([*script, "done"]), iter(says), Counting([], loop=True)

    def turn(request: ModelRequest) -> Any:
        if request.purpose != "compaction":
            return next(steps)
        said = next(words, "short")
        return OSError("down") if said == "down" else said

    model.turns = [turn]
    return model


class Watch:
    """Records the transcript right before and after the compaction."""

    def __init__(self) -> None:
        self.pairs: list[tuple[str, tuple[Message, ...], tuple[Message, ...]]] = []

    def hooks(self) -> list[Any]:
        before: list[Any] = []

        @hook(ON_RUN_START, BEFORE_STEP, priority=41)
        def look(ctx: Any, payload: Any) -> None:
            before[:] = [tuple(ctx.state.messages)]

        @hook(ON_RUN_START, BEFORE_STEP, priority=39)
        def look_again(point: Any, ctx: Any, payload: Any) -> None:
            self.pairs.append((str(point), before[0], tuple(ctx.state.messages)))

        return [look, look_again]


@pytest.mark.slow
@settings(max_examples=examples(200), deadline=None)
@given(histories(), scripts, st.integers(100, 900), st.integers(0, 8), st.lists(summaries, max_size=4))
@example((Message("user", "t" * 3000), Message("assistant", "a")), [[call("give", n=300)]] * 4, 400, 2, [])
def test_a_compacted_transcript_is_shorter_and_keeps_what_it_must(
    history: tuple[Message, ...], script: list[Any], limit: int, keep: int, says: list[str]
) -> None:
    model, watch, session = summarising(script, says), Watch(), Session("s", history)
    compaction = ContextCompactionHook(Compactor(limit, keep_last=keep, max_summary_tokens=50))
    agent = Agent("a", "", SYSTEM, llm=model, tools=[give, fail], hooks=[block_some, compaction, *watch.hooks()])
    result = asyncio.run(agent.arun(TASK, session=session))

    assert result.status == "completed"
    assert {e.type for e in result.errors} <= {"ValueError", "Blocked", "OSError", "CompactionError"}
    for point, before, after in watch.pairs:
        check_transcript(after)
        if after == before:
            continue
        coming = [Message("user", TASK)] if point == "on_run_start" else []
        assert model.count_tokens([*before, *coming]) > limit, "it was left alone"
        assert model.count_tokens(after) < model.count_tokens(before)
        (at,) = [i for i, m in enumerate(after) if not any(m is old for old in before)]
        assert after[at].role == "user"
        assert after[at].content.startswith(MARK)
        kept = after[:at] + after[at + 1 :]
        assert is_part(kept, before)
        assert all(m.role == "system" for m in after[:at])
        assert [m for m in kept if m.role == "system"] == [m for m in before if m.role == "system"]
        if point == "before_step":
            assert [m for m in after if m.role == "user"][-1] == Message("user", TASK)
            assert last_group(after) == last_group(before)
    for request in model.requests:
        check_transcript(request.messages)
        if request.purpose == "step":
            assert [m for m in request.messages if m.role == "user"][-1] == Message("user", TASK)
    check_transcript(session.messages)


@settings(max_examples=examples(100), deadline=None)
@given(histories(), sizes, st.integers(100, 900), st.integers(0, 8))
def test_compacting_again_and_again_ends_and_leaves_alone_what_fits(
    history: tuple[Message, ...], newest: int, limit: int, keep: int
) -> None:
    model = summarising([call("give", n=newest)], [])
    compactor, sizes = Compactor(limit, keep_last=keep, max_summary_tokens=50), []

    @hook(BEFORE_STEP)
    async def again(ctx: Any, payload: Any) -> None:
        messages: Any = tuple(ctx.state.messages) if payload.index else None
        while messages is not None:
            sizes.append(model.count_tokens(messages))
            assert len(sizes) <= len(history) + 2
            messages = await compactor.compact(ctx, messages)

    agent = Agent("a", llm=model, tools=[give], hooks=[again])
    result = asyncio.run(agent.arun(TASK, session=Session("s", history)))
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(sizes)) == len(sizes)
    assert sum(size <= limit for size in sizes) <= 1
    musts = [m for m in history if m.role == "system"] + list(result.messages[:3])
    shortest = model.count_tokens([*musts, Message("user", f"{MARK}\nshort")])
    if shortest <= limit - 50 and not any(m.content.startswith(MARK) for m in history):
        assert sizes[-1] <= limit
