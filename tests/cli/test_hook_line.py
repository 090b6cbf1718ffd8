"""The hook line: the same signs, words and colours on the terminal and on pages."""

import asyncio
import io
import json
import re
import subprocess

import pytest
from rich.console import Console

from hookline import AFTER_TOOL, APPROVAL_REQUESTED, BEFORE_TOOL, HookResult, call, guard, hook, tool
from hookline.cli.live_view import LiveView
from hookline.cli.output import state_style
from hookline.cli.views import PlainView
from hookline.explain import SIGNS
from hookline.explain.words import DECISIONS, GATES, OUTCOMES, STATUSES
from hookline.records import RecordHook
from hookline.server.console.render import _environment
from hookline.testing import scripted_agent
from tests.shown import without_duration

from .conftest import COMMAND


@tool
def pay(euros: int) -> str:
    """Pay a sum."""
    if euros < 0:
        raise ValueError("not a sum")
    return f"paid {euros}"


@hook(BEFORE_TOOL)
def rounded(ctx, request):
    if request.arguments["euros"] % 10:
        return request.replace(arguments={"euros": request.arguments["euros"] // 10 * 10})


@guard(BEFORE_TOOL)
def no_millions(ctx, request):
    if request.arguments["euros"] >= 1_000_000:
        return HookResult.block("Not that much.", reason="rule 1")


@guard(BEFORE_TOOL)
def large(ctx, request):
    if request.arguments["euros"] > 100:
        return HookResult.ask("Pay it?", reason="rule 2")


@hook(APPROVAL_REQUESTED)
def boss(ctx, request):
    if request.call.arguments["euros"] > 1000:
        return HookResult.deny("No.", by="the boss")
    return HookResult.approve(by="the boss")


@hook(AFTER_TOOL)
def polite(ctx, done):
    return done.replace(result=f"{done.result}, please") if done.result == "paid 10" else None


HOOKS = [rounded, no_millions, large, boss, polite]
LINES = {
    20: "─○─○─○─■─○─  tool pay ok: paid 20",
    25: "─◆─○─○─■─○─  tool pay ok: paid 20",
    10: "─○─○─○─■─◆─  tool pay ok: paid 10, please",
    200: "─○─○─●─■─○─  tool pay ok: paid 200",
    2000: "─○─○─⊘┄□┄○┄  tool pay blocked: No.",
    -10: "─○─○─○─✗─○─  tool pay error: ",
}


def shown(out, euros, view, hooks=HOOKS):
    scripted_agent([call("pay", euros=euros), "done"], tools=[pay], hooks=hooks, sinks=[view]).run("task")
    return [line.strip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize(("euros", "line"), LINES.items())
def test_a_call_is_a_line_and_hooks_are_gates_on_it(euros, line):
    out = io.StringIO()
    assert any(each.startswith(line) for each in shown(out, euros, PlainView(out)))


def test_a_blocked_call_is_cut_where_it_was_blocked():
    out = io.StringIO()
    lines = shown(out, 1_000_000, PlainView(out))
    assert "┃ no_millions blocked the call at before_tool: rule 1" in lines
    assert "─○─┃┄□┄○┄  tool pay blocked: Not that much." in lines


@pytest.mark.parametrize("ends", ["cancelled", "interrupted"])
def test_a_call_that_nobody_answered_is_shown_neither_as_answered_nor_as_waiting(ends, tmp_path, in_process):
    @hook(APPROVAL_REQUESTED)
    async def nobody(ctx, request):
        asked.set()
        await asyncio.Event().wait()

    async def cancel():
        view, record = PlainView(out), RecordHook(tmp_path / "records")
        hooks = [large, nobody, polite, record]
        run = scripted_agent([call("pay", euros=200), "done"], tools=[pay], hooks=hooks, sinks=[view]).start("task")
        await asyncio.wait_for(asked.wait(), 60)
        run.cancel()
        await run.result()

    asked, out = asyncio.Event(), io.StringIO()
    asyncio.run(cancel())
    if ends == "cancelled":
        lines = [line.strip() for line in out.getvalue().splitlines()]
        assert "◌ pay cancelled" in lines
        assert any(line.startswith("─◌┄□") for line in lines)
    else:
        (record,) = (tmp_path / "records").glob("*.moments")
        lines = record.read_bytes().splitlines(keepends=True)
        asks = next(n for n, line in enumerate(lines) if b'"ask"' in line)
        record.write_bytes(b"".join(lines[: asks + 1]))
    code, shown, _ = in_process("explain", "last", "--records", str(tmp_path / "records"))
    assert code == 0
    assert shown.startswith(ends)
    assert "─◌┄□" in shown
    steps = shown.partition("Step 1")[2]
    assert "◌ large" in steps
    assert not {"●", "◉"} & set(steps)
    page = tmp_path / "run.html"
    in_process("explain", "last", "--records", str(tmp_path / "records"), "--html", str(page))
    (data,) = re.findall(r'<script type="application/json">(.*?)</script>', page.read_text(encoding="utf-8"))
    assert set(json.loads(data)["asked"].values()) == {"unanswered"}


def test_with_many_hooks_those_that_passed_are_counted():
    def passes(number):
        return guard(BEFORE_TOOL, name=f"guard {number}")(lambda ctx, request: None)

    out = io.StringIO()
    lines = shown(out, 25, PlainView(out), [*HOOKS, *(passes(number) for number in range(20))])
    assert "─○22─◆─■─○1─  tool pay ok: paid 20" in lines


def test_a_terminal_without_unicode_gets_ascii_signs():
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="latin-1", errors="strict")
    scripted_agent([call("pay", euros=200), "done"], tools=[pay], hooks=HOOKS, sinks=[PlainView(out)]).run("task")
    lines = raw.getvalue().decode("ascii").splitlines()
    assert "  ? pay approved by the boss" in lines
    assert "  -o-o-?-#-o-  tool pay ok: paid 200" in lines


def test_a_terminal_without_unicode_gets_plain_punctuation(env, folder, script):
    model = script({"tool": "calculate", "arguments": {"expression": "2*3"}}, "Six \u263a")
    ascii = env | {"PYTHONIOENCODING": "ascii", "PYTHONUTF8": "0"}
    words = {"capture_output": True, "text": True, "cwd": folder, "env": ascii}
    run = subprocess.run([*COMMAND, "run", "Six?", "--model", model], check=True, **words)
    assert "Six \\u263a" in run.stdout
    assert "completed - 2 steps - 1 tool call - " in run.stdout + run.stderr
    explained = subprocess.run([*COMMAND, "explain", "last"], check=True, **words).stdout
    assert " - 2 steps - 1 tool call - " in explained
    assert "\\x" not in explained


def test_without_colours_the_signs_tell_verdicts_apart(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = io.StringIO()
    with LiveView(Console(file=out, force_terminal=True, width=80, highlight=False), live=False) as view:
        lines = shown(out, 2000, view)
    assert "\x1b[3" not in out.getvalue()  # no colour
    assert any("denied by the boss" in line and "⊘" in line for line in lines)
    assert len({sign.glyph for sign in SIGNS.values()}) == len(SIGNS)


def test_a_terminal_shows_how_long_a_call_took():
    out = io.StringIO()
    with LiveView(Console(file=out, force_terminal=True, width=80, color_system=None), live=False) as view:
        lines = shown(out, 20, view)
    (line,) = (line for line in lines if line.startswith("─○─○─○─■─○─ tool pay ok: paid 20"))
    assert without_duration(line) != line


def test_every_state_of_a_gate_has_one_sign_and_pages_draw_it():
    assert set(GATES.values()) <= SIGNS.keys()
    macros = _environment().get_template("macros.html").module
    for state, sign in SIGNS.items():
        assert len(sign.glyph) == len(sign.ascii) == 1
        assert sign.ascii.isascii()
        drawn = str(macros.gate(state))
        assert all(f"<{name} " in drawn and attributes.get("d", "") in drawn for name, attributes in sign.shapes)


@pytest.mark.parametrize("words", [STATUSES, OUTCOMES, DECISIONS], ids=["statuses", "outcomes", "decisions"])
def test_the_terminal_has_the_colours_of_the_pages(words):
    colours = {"red": "red", "amber": "yellow", "violet": "magenta", "blue": "cyan", "grey": "dim"}
    assert {word: state_style(word) for word in words} == {word: colours[tone] for word, tone in words.items()}
