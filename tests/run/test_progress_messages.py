"""The messages about tool calls for people: one short line for any input."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hookline import (
    APPROVAL_REQUESTED,
    BEFORE_TOOL,
    HookResult,
    ToolCallRequest,
    ToolCallResult,
    call,
    guard,
    hook,
    tool,
)
from hookline._base.text import duration_text
from hookline._run.tool_call import ended_text, progressed_text, started_text
from hookline.events import ToolEnded, ToolProgressed, ToolStarted
from hookline.testing import EventLog, scripted_agent


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "t started"),
        ({"path": "notes.txt"}, "t: notes.txt"),
        ({"a": 1, "b": False, "c": True, "d": [1, 2]}, "t: a=1, b=false, c=true, d=2 items"),
        ({"title": "water", "criteria": None, "description": "", "n": 0}, "t: title=water, n=0"),
        ({"title": "water", "criteria": None, "description": ""}, "t: water"),
        ({"title": "", "criteria": None}, "t started"),
        ({"a": {"x": 1}}, "t: 1 fields"),
        (dict.fromkeys("abcdef", 1), "t: a=1, b=1, c=1, d=1, …"),
        ({"text": "two\n\nlines\t here"}, "t: two lines here"),
        ({"text": "a\x1b[2J\ud800"}, "t: a\ufffd[2J\ufffd"),
        ({"text": "x" * 10**6}, f"t: {'x' * 59}…"),
    ],
)
def test_the_start_message_summarises_the_arguments(arguments, message):
    assert started_text(ToolCallRequest("c", "t", arguments)) == message


def test_the_start_message_contains_the_attempt():
    assert started_text(ToolCallRequest("c", "t", attempt=2)) == "t started (attempt 2)"


@pytest.mark.parametrize(
    ("note", "fraction", "message"),
    [
        ("half way", 0.5, "t: half way (50%)"),
        ("", 0.5, "t: 50%"),
        ("going", None, "t: going"),
        ("", None, "t is running"),
    ],
)
def test_the_progress_message_contains_the_note_and_the_fraction(note, fraction, message):
    assert progressed_text(ToolCallRequest("c", "t"), note, fraction) == message


@pytest.mark.parametrize(
    ("outcome", "options", "message"),
    [
        ("ok", {"ran": True}, "t finished in 0.2 s"),
        ("error", {"ran": True}, "t failed after 0.2 s"),
        ("error", {"ran": False}, "t could not be called"),
        ("blocked", {"ran": False, "by": "PlanModeHook"}, "t was blocked by PlanModeHook"),
        ("blocked", {"ran": False, "by": "Ann", "denied": True}, "t was denied by Ann"),
        ("blocked", {"ran": False, "denied": True}, "t was denied"),
        ("answered", {"ran": False, "by": "cache"}, "t was answered by cache"),
        ("cancelled", {"ran": True}, "t was cancelled after 0.2 s"),
        ("cancelled", {"ran": False}, "t was cancelled"),
    ],
)
def test_the_end_message_contains_the_outcome_and_its_author(outcome, options, message):
    assert ended_text(ToolCallResult("c", "t", outcome=outcome, duration=0.2), **options) == message


def test_the_end_message_does_not_contain_the_result():
    result = ToolCallResult("c", "t", {"key": "secret-1"}, "secret-2", "secret-3", "error", 0.1)
    assert "secret" not in ended_text(result, ran=True)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=300),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=20), inner, max_size=6),
    max_leaves=10,
)


@given(st.text(st.characters(), max_size=200), st.dictionaries(st.text(st.characters()), anything, max_size=8))
def test_every_message_is_one_short_printable_line(name, arguments):
    request = ToolCallRequest("c", name, arguments)
    for line in (
        started_text(request),
        progressed_text(request, name * 3, 1.0),
        ended_text(ToolCallResult("c", name, duration=1.0), ran=True, by=name),
    ):
        assert line.isprintable()
        assert 0 < len(line) < 320


@pytest.mark.parametrize(
    ("seconds", "message"),
    [
        (0, "0 ms"),
        (0.0000123, "12 µs"),
        (0.0123, "12 ms"),
        (0.0996, "0.1 s"),
        (0.24, "0.2 s"),
        (59.94, "59.9 s"),
        (59.96, "1 min 0 s"),
        (125, "2 min 5 s"),
        (3725, "1 h 2 min"),
        (1e7, "2,777 h 46 min"),
    ],
)
def test_a_duration_is_shown_in_a_suitable_unit(seconds, message):
    assert duration_text(seconds) == message


async def test_the_events_of_a_run_contain_the_messages():
    @tool
    async def build(target: str, ctx) -> str:
        ctx.progress(0.5, "compiling")
        await asyncio.sleep(0)
        return "built"

    @guard(BEFORE_TOOL)
    def careful(ctx, request):
        match request.arguments["target"]:
            case "web":
                return HookResult.block("no")
            case "docs":
                return HookResult.ask("really?")
            case "old":
                return HookResult.answer("there")

    nobody = hook(APPROVAL_REQUESTED, name="Ann")(lambda ctx, request: HookResult.deny("no"))
    targets = [call("build", target=target) for target in ("app", "web", "docs", "old")]
    log = EventLog()
    await scripted_agent([targets, "x"], tools=[build], hooks=[careful, nobody], sinks=[log]).arun("x")
    assert [event.message for event in log.of(ToolStarted)] == ["build: app"]
    assert [event.message for event in log.of(ToolProgressed)] == ["build: compiling (50%)"]
    assert {event.message for event in log.of(ToolEnded) if event.outcome != "ok"} == {
        "build was blocked by careful",
        "build was denied by Ann",
        "build was answered by careful",
    }


async def test_a_message_that_is_not_text_is_the_tools_error():
    @tool
    async def build(ctx) -> str:
        ctx.progress(0.5, 3)

    result = await scripted_agent([call("build"), "x"], tools=[build]).arun("x")
    assert result.messages[2].content == "TypeError: message must be text, not int"
