"""EchoingHook: a line for every fire."""

import pytest

from hookline import (
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_RUN_START,
    HookResult,
    RegistrationError,
    call,
    guard,
    hook,
    reply,
    tool,
)
from hookline.hooks import EchoingHook
from hookline.testing import fire_hook, scripted_agent


@tool
def add(a: int, b: int) -> int:
    """Add."""
    return a + b


def test_each_of_the_six_default_points_prints_a_line():
    lines = []
    agent = scripted_agent([call("add", a=1, b=2), reply("three")], tools=[add], hooks=[EchoingHook(lines.append)])
    agent.run("add them")
    assert [line.split()[0] for line in lines] == [
        "on_run_start",
        "before_llm",
        "after_llm",
        "before_tool",
        "after_tool",
        "before_llm",
        "after_llm",
        "on_run_end",
    ]
    assert lines[0] == "on_run_start add them"
    assert lines[1] == "before_llm   1 messages, 1 tools: user: add them"
    assert lines[3] == 'before_tool  add({"a":1,"b":2})'
    assert lines[4].startswith("after_tool   add ok, 0.0")
    assert lines[4].endswith(" s: 3")
    assert "completed, 2 steps" in lines[7]
    assert lines[7].endswith(": three")


def test_it_writes_to_stderr_by_default(capsys):
    scripted_agent([reply("ok")], hooks=[EchoingHook()]).run("hello")
    out = capsys.readouterr().err.splitlines()
    assert out[0] == "on_run_start hello"
    assert len(out) == 4


def test_the_line_has_the_verdict_of_the_hooks():
    @guard(BEFORE_TOOL)
    def careful(ctx, request):
        return HookResult.block("no")

    lines = []
    hooks = [careful, EchoingHook(lines.append)]
    scripted_agent([call("add", a=1, b=2), reply("ok")], tools=[add], hooks=hooks).run("x")
    assert 'before_tool  block by careful: add({"a":1,"b":2})' in lines
    assert "after_tool   add blocked, 0.000 s: no" in lines


def test_a_line_is_short_and_has_no_line_breaks():
    lines = []
    echo = EchoingHook(lines.append)
    for text in ("x" * 5_000_000, "a\nb\r\x1b[31m\x07\u202e\ud800é", "\n" * 200):
        fire_hook(echo, ON_RUN_START, task=text)
        fire_hook(echo, AFTER_TOOL, id="c", name=text[:1000], result=text)
        fire_hook(echo, BEFORE_TOOL, id="c", name="t", arguments={"k": text})
    assert max(map(len, lines)) == 100
    assert all(line.isprintable() for line in lines)
    assert lines[3] == r"on_run_start a\nb\r\x1b[31m\x07\u202e\ud800é"


def test_model_calls_of_hooks_are_printed_with_their_purpose():
    @hook(ON_RUN_START)
    async def ask(ctx, start):
        await ctx.llm.complete("hello", purpose="judge")

    lines = []
    scripted_agent([reply("yes"), reply("ok")], hooks=[ask, EchoingHook(lines.append)]).run("x")
    assert lines[0] == "before_llm   1 messages, 0 tools, for judge: user: hello"


def test_other_points_can_be_chosen():
    lines = []
    echo = EchoingHook(lines.append, points=[BEFORE_STEP, "before_llm"])
    scripted_agent([reply("ok")], hooks=[echo]).run("x")
    assert [line.split()[0] for line in lines] == ["before_step", "before_llm"]
    assert EchoingHook.points != echo.points


def test_a_request_without_messages_prints_a_line():
    lines = []
    fire_hook(EchoingHook(lines.append), BEFORE_LLM)
    assert lines == ["before_llm   0 messages, 0 tools: "]


def test_a_writer_that_fails_does_not_stop_the_run():
    def broken(line):
        raise OSError("closed")

    result = scripted_agent([reply("ok")], hooks=[EchoingHook(broken)]).run("x")
    assert result.status == "completed"
    assert result.errors[0].source == "EchoingHook"


@pytest.mark.parametrize(
    ("write", "points"),
    [("x", [BEFORE_LLM]), (None, [BEFORE_LLM]), (print, "before_llm"), (print, []), (print, ["no"])],
)
def test_invalid_arguments_are_rejected(write, points):
    with pytest.raises(RegistrationError):
        EchoingHook(write, points=points)
