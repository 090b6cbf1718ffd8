"""A run as plain lines."""

import io
import re

import pytest

from hookline import HookResult, RunFailedError, call, guard, hook, tool
from hookline.cli.views import PlainView
from hookline.models.errors import OverloadedError
from hookline.testing import scripted_agent


@tool
def copy(path: str, ctx) -> str:
    """Copy a file."""
    ctx.progress(0.5, "halfway")
    return "copied\nall of it"


@guard("before_tool", tools="copy")
def no_secrets(ctx, request):
    if "secret" in request.arguments["path"]:
        return HookResult.block("Not that one.", reason="rule 3")


@hook("on_error")
def again(ctx, failure):
    return HookResult.retry()


@hook("after_llm")
def no_maybe(ctx, answer):
    if answer.content == "maybe":
        return HookResult.retry("Be sure.")


@pytest.fixture
def lines():
    def run(*turns, hooks=(), tools=(copy,)):
        out = io.StringIO()
        agent = scripted_agent(turns, tools=tools, hooks=hooks, sinks=[PlainView(out)])
        try:
            agent.run("task")
        except RunFailedError:
            pass  # the lines are what matters
        return out.getvalue().splitlines()

    return run


def test_tools_their_progress_and_their_outcomes_have_a_line_each(lines):
    assert lines(call("copy", path="a"), "done") == [
        "step 1",
        '  calls copy {"path":"a"}',
        "  tool copy: halfway (50%)",
        "  ─■─  tool copy ok: copied all of it",
        "step 2",
    ]


def test_a_decision_of_a_hook_is_shown_with_its_reason(lines):
    shown = lines(call("copy", path="secret"), "done", hooks=[no_secrets])
    assert "  ┃ no_secrets blocked the call at before_tool: rule 3" in shown
    assert "  ─┃┄□┄  tool copy blocked: Not that one." in shown


def test_a_recovered_failure_is_shown_at_once_and_a_final_one_at_the_end(lines):
    assert "  model failed: too busy" in lines(OverloadedError("too busy"), "done", hooks=[again])
    assert lines(OverloadedError("too busy")) == ["step 1"]


def test_a_rejected_reply_is_shown(lines):
    assert "  ◆ the reply was rejected; asking again" in lines("maybe", "yes", hooks=[no_maybe])


def test_a_hook_that_fails_open_is_shown(lines):
    @hook("before_llm", on_failure="open")
    def broken(ctx, request):
        raise ValueError("oops")

    (shown,) = [line for line in lines("hi", hooks=[broken]) if "oops" in line]
    assert re.fullmatch(r"  ✗ hook 'broken' failed at before_llm: ValueError: oops \(test_plain\.py:\d+\)", shown)


def test_an_error_is_shown_to_its_end_with_the_advice(lines):
    advice = "move it away, or give another path"

    @hook("before_llm", on_failure="open")
    def broken(ctx, request):
        raise ValueError(f"{'x' * 200} {advice}")

    @tool
    def torn() -> str:
        """Fail."""
        raise ValueError(f"{'x' * 200} {advice}")

    shown = lines(call("torn"), "hi", hooks=[broken], tools=[torn])
    assert [line.split(" ")[2] for line in shown if advice in line] == ["✗", "─✗─", "✗"]

    @hook("before_llm", on_failure="open")
    def endless(ctx, request):
        raise ValueError("x" * 9000)

    assert max(map(len, lines("hi", hooks=[endless]))) < 510


def test_a_terminal_gets_lines_that_are_broken_between_words(monkeypatch):
    class Screen(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setenv("COLUMNS", "40")
    out = Screen()
    PlainView(out).write("  hook 'broken' failed: move it away, or give another path")
    assert out.getvalue() == "  hook 'broken' failed: move it away, or\n    give another path\n"


@pytest.mark.parametrize(("point", "told"), [("before_tool", True), ("on_run_start", True), ("before_llm", False)])
def test_a_hook_that_judges_before_a_rewrite_is_reported_at_guarded_points(lines, point, told):
    @hook(point, priority=9)
    def early(ctx, payload):
        return None

    @hook(point)
    def late(ctx, payload):
        changes = {"before_tool": {"arguments": {"path": "b"}}, "on_run_start": {"task": "b"}}
        return payload.replace(changes.get(point, {"params": {"b": 1}}))

    shown = lines(call("copy", path="a"), "done", hooks=[early, late])
    assert (f"  early judged at {point} before late changed it; use @guard" in shown) is told


def test_control_characters_in_names_are_escaped_in_plain_lines():
    evil = "evil\x1b]0;X\x07\x1b[2J\nstep 9"
    out = io.StringIO()
    agent = scripted_agent([call(evil), "done"], sinks=[PlainView(out)])
    agent.run("task")
    shown = out.getvalue()
    assert r"calls evil\x1b]0;X\x07\x1b[2J\nstep 9 {}" in shown
    assert all(line.isprintable() for line in shown.splitlines())
    assert "step 9" not in shown.splitlines()


def test_what_a_hook_tells_the_model_is_shown(lines):
    told = []

    @hook("after_llm")
    def no_maybes(ctx, answer):
        if answer.content == "maybe":
            return HookResult.retry("Decide: yes\nor no.", reason="rule 4")

    @hook("on_stop")
    def unfinished(ctx, stopping):
        if not told:
            told.append(1)
            return HookResult.keep_going("The tests fail. Fix them.")

    shown = lines("maybe", "yes", "fixed", hooks=[no_maybes, unfinished])
    at = shown.index("  ◆ no_maybes requested a retry at after_llm: rule 4")
    assert shown[at + 1] == "  it tells the model: Decide: yes or no."
    at = shown.index("  ◆ unfinished kept the run going at on_stop")
    assert shown[at + 1] == "  it tells the model: The tests fail. Fix them."
