"""The view for terminals."""

import io

import pytest
from rich.console import Console

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, reply, tool
from hookline.cli.live_view import LiveView
from hookline.events import ToolStarted
from hookline.testing import scripted_agent


@tool
def copy(path: str, ctx) -> str:
    """Copy a file."""
    ctx.progress(0.5, "halfway")
    return "copied"


@guard(BEFORE_TOOL)
def no_secrets(ctx, request):
    if request.arguments["path"] == "secret":
        return HookResult.block("Not that one.", reason="rule 3")


@pytest.fixture
def screen():
    out = io.StringIO()
    return Console(file=out, force_terminal=True, width=70, color_system=None), out


def lines_of(out):
    return [line.rstrip() for line in out.getvalue().replace("\r", "\n").splitlines()]


def test_finished_events_stay_on_the_screen_with_their_icon(screen):
    console, out = screen
    turns = [call("copy", path="a"), call("copy", path="secret"), "done"]
    with LiveView(console) as view:
        scripted_agent(turns, tools=[copy], hooks=[no_secrets], sinks=[view]).run("Copy two files.")
    shown = lines_of(out)
    for line in (
        "> Copy two files.",
        "─ step 1",
        '→ calls copy {"path":"a"}',
        "✓ tool copy ok: copied",
        "⛊ hook no_secrets blocks at before_tool: rule 3",
        "✗ tool copy blocked: Not that one.",
    ):
        assert any(each.endswith(line) for each in shown), (line, shown)


def test_each_running_tool_has_a_line_with_its_progress_until_it_ends(screen):
    console, _ = screen
    view, seen = LiveView(console), []

    def look(event):
        view(event)
        if type(event).__name__ in ("ToolStarted", "ToolProgressed", "ToolEnded"):
            with console.capture() as captured:
                console.print(view)
            seen.append([line.strip() for line in captured.get().splitlines()])

    scripted_agent([[call("copy", path="a"), call("copy", path="b")], "done"], tools=[copy], sinks=[look]).run("go")
    both = next(lines for lines in seen if "2 tools are running" in lines[-1])
    assert len(both) == 3
    half = next(line for lines in seen for line in lines if "copy: halfway (50%)" in line)
    assert "━━━━━━━━━━" in half
    assert half.endswith((" ms", " µs", " s"))
    assert len(seen[-1]) == 1
    assert "deciding" in seen[-1][0]


def test_of_many_running_tools_some_are_shown_and_the_others_counted(screen):
    console, _ = screen
    view = LiveView(console)
    for n in range(9):
        view(ToolStarted(n, 0.0, "r", f"c{n}", "copy", message=f"copy: {n}\x1b[2J"))
    with console.capture() as captured:
        console.print(view)
    shown = captured.get()
    assert [f"copy: {n}" in shown for n in range(9)] == [True] * 6 + [False] * 3
    assert "and 3 more" in shown
    assert "\x1b[2J" not in shown


def test_the_last_line_shows_the_current_activity_and_usage(screen):
    console, out = screen
    view = LiveView(console)
    with view:
        agent = scripted_agent([reply("one two three", cost=0.25)], sinks=[view])
        agent.run("go")
        with console.capture() as captured:
            console.print(view)
    status = captured.get()
    assert "step 1" in status
    assert "4 tokens" in status  # one word in, three out
    assert "cost $0.2500" in status


def test_a_long_text_shows_its_end_within_the_width_of_the_screen(screen):
    console, _ = screen
    view = LiveView(console)
    words = " ".join(f"word{number}" for number in range(200))
    seen = []

    def look(event):
        view(event)
        if type(event).__name__ == "TextDelta" and "word199" in event.text:
            with console.capture() as captured:
                console.print(view)
            seen.append(captured.get())

    scripted_agent([words], sinks=[look]).run("go")
    text = [line for line in seen[0].splitlines() if "word" in line]
    assert len(text) == 6
    assert "word199" in text[-1]
    assert all(len(line.rstrip()) <= 70 for line in text)


def test_nothing_is_drawn_while_a_question_is_open(screen):
    console, out = screen
    with LiveView(console) as view:
        with view.paused():
            before = out.getvalue()
            assert before.count("\x1b[?25h") == before.count("\x1b[?25l")  # the cursor is back
        assert out.getvalue() != before


def test_control_characters_in_names_are_escaped_in_the_live_view(screen):
    console, out = screen
    evil = "evil\x1b]0;X\x07\x1b[2J"
    view = LiveView(console)

    def look(event):
        view(event)
        if type(event).__name__ == "ModelCalled":
            console.print(view)

    with view:
        Agent("a", llm=ScriptedModel([call(evil), "done"], name=evil), sinks=[look]).run(f"task {evil}")
    shown = out.getvalue()
    assert r"evil\x1b]0;X\x07\x1b[2J is reading" in shown
    assert r"→ calls evil\x1b]0;X\x07\x1b[2J {}" in shown
    assert "\x1b]" not in shown
    assert "\x1b[2J" not in shown
