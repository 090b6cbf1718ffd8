"""A run as plain lines."""

import io

import pytest

from hookline import HookResult, RunFailed, call, guard, hook, reply, tool
from hookline.cli.plain import PlainView
from hookline.cli.stream import StreamView
from hookline.models.errors import Overloaded
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
    def run(*turns, hooks=()):
        out = io.StringIO()
        agent = scripted_agent(turns, tools=[copy], hooks=hooks, sinks=[PlainView(out)])
        try:
            agent.run("task")
        except RunFailed:
            pass  # the lines are what matters
        return out.getvalue().splitlines()

    return run


def test_tools_their_progress_and_their_outcomes_have_a_line_each(lines):
    assert lines(call("copy", path="a"), "done") == [
        "step 1",
        '  calls copy {"path":"a"}',
        "  tool copy: 50% halfway",
        "  tool copy ok: copied all of it",
        "step 2",
    ]


def test_what_a_hook_decided_is_told_with_its_reason(lines):
    shown = lines(call("copy", path="secret"), "done", hooks=[no_secrets])
    assert "  hook no_secrets blocks at before_tool: rule 3" in shown
    assert "  tool copy blocked: Not that one." in shown


def test_a_failure_that_was_mended_is_told_and_one_that_was_not_is_left_to_the_end(lines):
    assert "  model failed: too busy" in lines(Overloaded("too busy"), "done", hooks=[again])
    assert lines(Overloaded("too busy")) == ["step 1"]


def test_a_rejected_reply_is_told(lines):
    assert "  the reply was rejected; asking again" in lines("maybe", "yes", hooks=[no_maybe])


def test_a_hook_that_fails_open_is_told(lines):
    @hook("before_llm", on_failure="open")
    def broken(ctx, request):
        raise ValueError("oops")

    assert "  hook broken failed: hook 'broken' failed at before_llm: ValueError: oops" in lines("hi", hooks=[broken])


def test_a_streamed_reply_that_a_hook_changed_is_shown_as_it_counts():
    @hook("after_llm")
    def polite(ctx, answer):
        return answer.replace(content="Good day.")

    out, notes = io.StringIO(), io.StringIO()
    view = StreamView(out, notes)
    result = scripted_agent([reply("Hi you.")], hooks=[polite], sinks=[view]).run("hello")
    view.finish(result.reply)
    assert out.getvalue() == "Hi you.\nGood day.\n"


def test_names_that_a_model_made_up_are_shown_and_not_obeyed():
    evil = "evil\x1b]0;X\x07\x1b[2J\nstep 9"
    out = io.StringIO()
    agent = scripted_agent([call(evil), "done"], sinks=[PlainView(out)])
    agent.run("task")
    shown = out.getvalue()
    assert r"calls evil\x1b]0;X\x07\x1b[2J\nstep 9 {}" in shown
    assert all(line.isprintable() for line in shown.splitlines())
    assert "step 9" not in shown.splitlines()


def test_a_terminal_shows_that_the_model_is_reading_and_takes_it_away_again():
    out, notes = io.StringIO(), io.StringIO()
    view = StreamView(out, notes, patience=True)
    scripted_agent([call("copy", path="a"), "Done."], tools=[copy], sinks=[view]).run("go")
    view.finish("Done.")
    assert out.getvalue() == "...\r\x1b[K...\r\x1b[KDone.\n"
    assert "  calls copy" in notes.getvalue()
