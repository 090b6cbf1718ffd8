"""The view for terminals."""

import io
import threading
import time

import pytest
from rich.console import Console
from rich.live import Live

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, call, guard, hook, reply, tool
from hookline.cli.live_view import REFRESH_SECONDS, LiveView
from hookline.events import TextDelta, ToolStarted
from hookline.testing import scripted_agent
from tests.shown import without_duration


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
    """Return the lines on a screen, without the time that calls and hooks took."""
    return [without_duration(line.rstrip()) for line in out.getvalue().replace("\r", "\n").splitlines()]


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
        "─○─■─ tool copy ok: copied",
        "┃ no_secrets blocked the call at before_tool: rule 3",
        "─┃┄□┄ tool copy blocked: Not that one.",
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


@pytest.fixture
def conversation(screen):
    """Run turns in a conversation; the lines that stay on the screen."""
    console, out = screen

    def run(*turns, mode="live", **options):
        view = LiveView(console, conversation=True, live=False)
        result = scripted_agent(turns, sinks=[view], **options).run("hello", stream=mode)
        view.finish(result.reply)
        return lines_of(out)

    return run


def test_a_conversation_shows_the_reply_as_markdown_once(conversation):
    assert conversation("# Plan\n\nBuy **milk**.\n\n- one\n- two\n") == [
        "  Plan",
        "",
        "  Buy milk.",
        "",
        "   • one",
        "   • two",
    ]


@pytest.mark.parametrize(
    ("mode", "shown"),
    [
        ("safe", ["  Good day."]),
        ("live", ["  Hi you.", "◆ the text above was rejected, and replaced by this:", "  Good day."]),
    ],
)
def test_a_reply_that_a_hook_changed_is_shown_once_and_live_text_is_withdrawn(conversation, mode, shown):
    @hook("after_llm")
    def polite(ctx, answer):
        return answer.replace(content="Good day.")

    found = conversation("Hi you.", mode=mode, hooks=[polite])
    assert [line for line in found if "polite changed" not in line] == shown


@pytest.mark.parametrize("mode", ["safe", "live"])
def test_text_before_a_call_and_text_that_a_hook_does_not_accept_are_shown_where_they_belong(conversation, mode):
    told = []

    @hook("on_stop")
    def unfinished(ctx, stopping):
        if not told:
            told.append(1)
            return HookResult.keep_going("Say why.")

    turns = [["I copy it.", call("copy", path="a")], "Done.", "Because."]
    assert conversation(*turns, mode=mode, tools=[copy], hooks=[unfinished]) == [
        "  I copy it.",
        '→ calls copy {"path":"a"}',
        "─■─ tool copy ok: copied",
        "  Done.",
        "◆ unfinished kept the run going at on_stop",
        "· it tells the model: Say why.",
        "  Because.",
    ]


def test_a_reply_that_was_shown_before_the_limit_of_keep_going_is_not_repeated(conversation):
    @hook("on_stop")
    def never(ctx, stopping):
        return HookResult.keep_going("More.")

    assert conversation(*(f"reply {n}." for n in range(9)), hooks=[never]).count("  reply 8.") == 1


def test_the_status_line_tells_the_model_the_usage_and_how_to_interrupt(screen):
    console, _ = screen
    view, seen = LiveView(console, conversation=True, hint="Esc interrupts"), []

    def look(event):
        view(event)
        if type(event).__name__ == "TextDelta":
            with console.capture() as captured:
                console.print(view)
            seen.append(captured.get().splitlines())

    Agent("a", llm=ScriptedModel([reply("one two", cost=0.5)], name="small"), sinks=[look]).run("go")
    assert seen[-1][0].rstrip() == "  one two"
    assert "small is writing" in seen[-1][-1]
    assert "2 tokens · cost $0.0000 · Esc interrupts" in seen[-1][-1]


def test_nothing_is_drawn_in_the_middle_of_a_print(screen, monkeypatch):
    """A drawing between the two halves of a print would erase lines above."""
    console, _ = screen
    printing, crossed = threading.Event(), []
    plain, drawn = console.print, Live.refresh

    def slow(*args, **options):
        printing.set()
        time.sleep(3 * REFRESH_SECONDS)  # the thread that draws has its turn
        plain(*args, **options)
        printing.clear()

    def refresh(live):
        crossed.extend([1] if printing.is_set() else [])
        drawn(live)

    monkeypatch.setattr(Live, "refresh", refresh)
    with LiveView(console, conversation=True) as view:
        monkeypatch.setattr(console, "print", slow)
        view(TextDelta(1, 0.0, "r", "one\n\ntwo"))
        view(TextDelta(2, 0.0, "r", "\n\nthree"))
        monkeypatch.undo()
    assert crossed == []
