"""Rules have no side effects, and what they read that was not recorded is named."""

import os
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import pytest

from hookline import BEFORE_TOOL, Agent, HookResult, ScriptedModel, guard, hook
from hookline.backtest import backtest
from tests.backtest.recording import Writer, commands, kinds, record


@pytest.fixture
def records(tmp_path):
    """A record with one call of the shell."""
    writer = Writer(tmp_path / "records" / "a.moments")
    writer.run("r1", "ls")
    return writer.write()


def connect(canary):
    with socket.create_connection(("127.0.0.1", 9), timeout=1):
        canary.touch()


ACTIONS = {
    "write": lambda canary: canary.write_text("written"),
    "append": lambda canary: canary.open("a").close(),
    "os.open": lambda canary: os.close(os.open(canary, os.O_WRONLY | os.O_CREAT)),
    "mkdir": lambda canary: canary.mkdir(),
    "rename": lambda canary: os.rename(canary.parent / "keep", canary),
    "remove": lambda canary: os.remove(canary.parent / "keep"),
    "system": lambda canary: os.system(f"touch {canary}"),  # noqa: S605
    "subprocess": lambda canary: subprocess.run(["touch", str(canary)], check=True),
    "connect": connect,
    "urlopen": lambda canary: urllib.request.urlopen("http://127.0.0.1:9/"),
    "getaddrinfo": lambda canary: socket.getaddrinfo("example.invalid", 80),
    "kill": lambda canary: os.kill(os.getpid(), 0),
}


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("workers", [0, 1])
def test_side_effects_are_refused_and_reported(records, tmp_path, action, workers):
    canary, keep = tmp_path / "canary", tmp_path / "keep"
    keep.write_text("kept")

    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        ACTIONS[action](canary)

    report = backtest([rule], records, workers=workers)
    assert not canary.exists()
    assert keep.read_text() == "kept"
    assert [(each.hook, each.problem, each.count) for each in report.failures] == [("rule", "refused", 1)]
    assert kinds(report) == {"raised": (0, 0, 1)}


def test_an_allowed_action_is_done(records, tmp_path):
    canary = tmp_path / "canary"
    rule = guard(BEFORE_TOOL, name="rule")(lambda ctx, request: canary.touch() and None)
    report = backtest([rule], records, workers=1, allow=["files"])
    assert canary.exists()
    assert report.failures == ()


def test_a_rule_that_hides_the_refusal_is_named_all_the_same(records, tmp_path):
    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        try:
            (tmp_path / "canary").touch()
        except Exception:  # noqa: BLE001 - the rule under test
            return HookResult.block("No.")

    report = backtest([rule], records)
    assert kinds(report) == {"newly_blocked": (0, 0, 1)}
    assert report.failed("refused") == 1


def test_a_thread_of_a_rule_is_confined_too(records, tmp_path):
    canary = tmp_path / "canary"

    def late():
        time.sleep(0.05)
        canary.touch()

    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        threading.Thread(target=late).start()

    backtest([rule, guard(BEFORE_TOOL, name="slow")(lambda ctx, request: time.sleep(0.2))], records, workers=1)
    assert not canary.exists()


def test_the_program_itself_may_still_do_everything(records, tmp_path):
    backtest([guard(BEFORE_TOOL, name="rule")(lambda ctx, request: None)], records)
    (tmp_path / "file").write_text("written")
    assert subprocess.run([sys.executable, "-c", ""], check=False).returncode == 0


@pytest.mark.parametrize(
    ("what", "read"),
    [
        ("refused", lambda ctx: ctx.detached()),
        ("refused", lambda ctx: Agent("b", llm=ScriptedModel(["x"])).run("t")),
        ("refused", lambda ctx: Agent("b", llm=ScriptedModel(["x"])).run("t", ctx=ctx)),
    ],
)
def test_runs_are_not_started(records, what, read):
    report = backtest([guard(BEFORE_TOOL, name="rule")(lambda ctx, request: read(ctx) and None)], records)
    assert report.failed(what) == 1


def test_models_are_not_called_unless_one_is_given(records):
    @guard(BEFORE_TOOL)
    async def judge(ctx, request):
        answer = await ctx.llm.complete("Is this fine?")
        return HookResult.block("The model says no.") if answer.content == "no" else None

    assert backtest([judge], records).failed("refused") == 1
    report = backtest([judge], records, allow=["model"], model=ScriptedModel(["no"]))
    assert kinds(report) == {"newly_blocked": (0, 0, 1)}
    assert [(each.hook, each.read) for each in report.guesses] == [("judge", "a reply of a model")]


@pytest.mark.parametrize(
    ("read", "named"),
    [
        (lambda ctx: ctx.deps, "ctx.deps"),
        (lambda ctx: ctx.memory, "ctx.memory"),
        (lambda ctx: ctx.artifacts, "ctx.artifacts"),
        (lambda ctx: ctx.session, "ctx.session"),
        (lambda ctx: ctx.budget, "ctx.budget"),
        (lambda ctx: ctx.random.random(), "ctx.random"),
        (lambda ctx: ctx.tool_registry, "ctx.tool_registry"),
        (lambda ctx: ctx.state.steps, "ctx.state.steps"),
        (lambda ctx: ctx.state.usage, "ctx.state.usage"),
        (lambda ctx: ctx.state.messages, "the messages of the run before its first model call"),
        (lambda ctx: Path(os.devnull).read_bytes(), f"the file {os.devnull}"),
    ],
)
def test_what_was_not_recorded_is_a_guess_and_named(records, read, named):
    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        read(ctx)
        return HookResult.block("No.")

    report = backtest([rule], records)
    assert kinds(report) == {"newly_blocked": (0, 0, 1)}
    assert [(each.hook, each.read, each.count) for each in report.guesses][0] == ("rule", named, 1)
    assert report.certainty.guess == 1


def test_what_was_recorded_is_not_a_guess(tmp_path):
    record(tmp_path, commands("a", "b"))

    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        assert ctx.ids.run_id == ctx.run_id == request.ids.run_id
        assert ctx.state.messages[0].content == "Work."
        assert (ctx.depth, ctx.agent_name, ctx.llm.name) == (0, "bob", "scripted")
        ctx.scratch["x"] = ctx.clock.time()
        ctx.tree_state[id(rule)] = ctx.hook_state.setdefault(id(rule), 1)
        import colorsys  # noqa: F401 - an import is not a read of a file

    report = backtest([rule], tmp_path)
    assert (report.guesses, report.failures, report.exact_share) == ((), (), 1.0)


def test_a_hook_that_guessed_once_in_a_run_goes_on_guessing_there(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "ls", "sudo a")
    writer.run("r2", "pwd", "sudo a")

    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        if request.arguments["command"] == "ls":
            ctx.hook_state[id(rule)] = ctx.deps
        return HookResult.block("No.") if "sudo" in request.arguments["command"] else None

    report = backtest([rule], writer.write())
    assert kinds(report) == {"newly_blocked": (1, 0, 1)}


def test_a_guess_after_the_first_difference_is_a_guess_in_the_share_of_moments_too(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "sudo a", "sudo b", "sudo c")

    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        return HookResult.block(f"No, {ctx.deps}.")

    report = backtest([rule], writer.write())
    assert kinds(report) == {"newly_blocked": (0, 0, 3)}
    assert report.certainty.guess == 3
    assert report.certainty.total == report.moments


def test_a_file_that_the_rules_read_when_they_are_loaded_is_no_guess(records, tmp_path):
    (tmp_path / "words").write_text("ls")
    (tmp_path / "rules.py").write_text(
        "from pathlib import Path\nfrom hookline import BEFORE_TOOL, HookResult, guard, hook\n"
        f"words = Path({str(tmp_path / 'words')!r}).read_text()\n"
        "@guard(BEFORE_TOOL)\ndef rule(ctx, request):\n"
        "    return HookResult.block('No.') if words in request.arguments['command'] else None\n"
    )
    report = backtest(str(tmp_path / "rules.py"), records)
    assert kinds(report) == {"newly_blocked": (1, 0, 0)}


def test_a_rule_that_raises_on_every_moment_is_counted_with_examples(tmp_path):
    writer = Writer(tmp_path / "a.moments")
    for number in range(20):
        writer.run(f"r{number}", "ls", "pwd")

    @hook(BEFORE_TOOL, on_failure="open")
    def soft(ctx, request):
        raise ValueError("soft")

    @guard(BEFORE_TOOL)
    def hard(ctx, request):
        raise KeyError(request.arguments["command"])

    report = backtest([soft, hard], writer.write())
    failures = {(each.hook, each.message): (each.count, len(each.examples)) for each in report.failures}
    assert failures == {
        ("soft", "ValueError: soft"): (40, 5),
        ("hard", "KeyError: 'ls'"): (20, 5),
        ("hard", "KeyError: 'pwd'"): (20, 5),
    }
    assert kinds(report) == {"raised": (20, 20, 0)}


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt()])
def test_a_rule_that_exits_does_not_end_the_backtest(tmp_path, error):
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "ls", "exit", "pwd")

    @guard(BEFORE_TOOL)
    def rule(ctx, request):
        if request.arguments["command"] == "exit":
            raise error

    report = backtest([rule], writer.write(), workers=1)
    assert len(report.failures) == 1
    assert report.total("same").exact == 2


@pytest.mark.parametrize(
    ("body", "read"),
    [
        ("time.time() > 0", "the clock of this computer"),
        ("datetime.datetime.now().year > 0", "the clock of this computer"),
        ("random.random() >= 0", "random numbers"),
        ("os.environ.get('PATH')", "the environment"),
        ("os.path.exists('/')", "which files exist"),
        ("pathlib.Path('/').is_dir()", "which files exist"),
        ("any(time.time() > number for number in (0, 1))", "the clock of this computer"),
        ("ctx.clock.time() > 0", None),
        ("request.arguments.get('time') or os.path.join('a', 'b')", None),
    ],
)
def test_a_hook_that_reads_the_clock_chance_the_environment_or_the_disk_guesses(tmp_path, body, read):
    names: dict = {}
    exec(
        "import datetime, os, pathlib, random, time\n"
        "from hookline import BEFORE_TOOL, HookResult, guard\n"
        "@guard(BEFORE_TOOL)\n"
        f"def rule(ctx, request):\n    return HookResult.block('no') if {body} else None\n",
        names,
    )
    writer = Writer(tmp_path / "a.moments")
    writer.run("r1", "ls")
    report = backtest([names["rule"]], writer.write())
    assert kinds(report) == {"newly_blocked": (1, 0, 0) if read is None else (0, 0, 1)}
    assert [each.read.partition(" (")[0] for each in report.guesses] == ([] if read is None else [read])
