"""``hookline backtest`` as a program."""

import json

import pytest

from tests.backtest.recording import Writer, commands, record

RULES = """
from hookline import BEFORE_TOOL, HookResult, guard

@guard(BEFORE_TOOL, tools="shell")
def no_sudo(ctx, request):
    print("judging")
    return HookResult.block("No sudo.", reason="rule 1") if "sudo" in request.arguments["command"] else None
"""
OLD = RULES.replace("sudo", "curl").replace("no_curl", "no_sudo")


@pytest.fixture
def work(folder, monkeypatch):
    """A folder with rules and recorded runs."""
    monkeypatch.chdir(folder)
    (folder / "rules.py").write_text(RULES)
    (folder / "old.py").write_text(OLD)
    record(folder / "records", commands("ls", "sudo a", "curl b", "sudo c"))
    return folder


@pytest.fixture
def run(hookline, work):
    """Run the program; its exit code must be the expected one."""

    def run(*args, code=0):
        done = hookline("backtest", *args)
        assert done.returncode == code, done.stderr
        return done

    return run


def test_the_table_shows_what_differs_with_examples(run, work):
    out = run("rules.py", "records").stdout
    assert "1 of 1 run would differ: 2 newly blocked." in out
    assert "1 of 2 differences is certain; 1 came later in a run that would have differed before." in out
    row = next(line for line in out.splitlines() if line.startswith("no_sudo"))
    assert row.split() == ["no_sudo", "before_tool", "shell", "newly", "blocked", "1", "1"]
    assert "passed → blocked by no_sudo (rule 1): No sudo." in out
    assert " --records records/" in out
    assert "judging" not in out


def test_the_command_of_an_example_shows_the_moment(run, hookline):
    out = run("rules.py", "records").stdout
    command = next(line for line in out.splitlines() if "hookline explain" in line).split(": ")[-1].split()
    shown = hookline(*command[1:])
    assert shown.returncode == 0, shown.stderr
    assert "sudo a" in shown.stdout


def test_the_command_is_short_for_runs_that_explain_finds_by_itself(run, hookline, work):
    (work / "hookline.toml").write_text('records = "records"\n')
    out = run("rules.py").stdout
    command = next(line for line in out.splitlines() if "hookline explain" in line).split(": ")[-1].split()
    assert "--records" not in command
    assert "sudo a" in hookline(*command[1:]).stdout


def test_the_table_breaks_no_word_in_a_narrow_terminal(terminal, work):
    name = "no_command_as_root"
    (work / "long.py").write_text(RULES.replace("no_sudo", name))
    shown = terminal("backtest", "long.py", "records", COLUMNS="80")
    assert shown.end() == 0
    words = {word for line in shown.text.splitlines() for word in line.split()}
    assert {name, "before_tool", "shell", "conditional", "guess"} <= words


def test_json_is_the_whole_report(run, work):
    report = json.loads(run("rules.py", "records", "--json").stdout)
    assert report["rules"] == ["no_sudo"]
    assert report["different_runs"] == 1
    assert [cell["count"] for cell in report["cells"] if cell["kind"] == "newly_blocked"] == [
        {"exact": 1, "conditional": 1, "guess": 0}
    ]


def test_html_is_one_file(run, work):
    run("rules.py", "records", "--html", "report.html")
    page = (work / "report.html").read_text()
    assert "newly blocked" in page
    assert "<script src" not in page


def test_a_condition_decides_the_exit_code(run, work):
    done = run("rules.py", "records", "--fail-if", "newly_blocked > 1", "--fail-if", "raised > 0", code=1)
    assert "note: --fail-if newly_blocked > 1: newly_blocked is 2" in done.stderr
    run("rules.py", "records", "--fail-if", "newly_blocked > 2")


def test_rules_are_compared_with_a_baseline(run, work):
    out = run("rules.py", "records", "--baseline", "old.py").stdout
    assert "newly blocked" in out
    assert "no longer blocked" in out


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["nothing.py", "records"], "nothing.py"),
        (["rules.py", "nowhere"], "nowhere"),
        (["rules.py"], "no runs are recorded in"),
        (["records", "rules.py"], "Name the rules first, and then the records"),
        (["rules.py", "records", "--fail-if", "newly_bloked > 0"], "Did you mean 'newly_blocked'"),
        (["rules.py", "records", "--where", "tol=x"], "Did you mean 'tool'"),
        (["rules.py", "records", "--since", "yesterday"], "--since"),
        (["rules.py", "records", "--allow", "everything"], "allow"),
        (["rules.py", "records", "--workers", "0"], "workers"),
        (["rules.py", "records", "--html", "no/such/folder.html"], "cannot be written"),
    ],
)
def test_invalid_input_is_an_error_with_code_2(run, args, message):
    done = run(*args, code=2)
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_records_without_runs_are_not_a_success(run, work):
    (work / "empty.moments").touch()
    assert "The records contain no runs" in run("rules.py", "empty.moments", code=5).stdout


def test_a_rule_that_raises_is_not_a_success(run, work):
    (work / "bad.py").write_text(RULES.replace("return", "raise MemoryError\n    return"))
    done = run("bad.py", "records", code=5)
    assert "1 of 1 run would differ: 4 raised." in done.stdout
    assert "no_sudo: out of memory at 4 moments: MemoryError\n" in done.stdout


def test_skipped_lines_are_listed_and_have_their_own_exit_code(run, work):
    writer = Writer(work / "records" / "bad.moments")
    writer.run("r1", "ls")
    writer.lines.insert(2, b"garbage")
    writer.write()
    done = run("rules.py", "records", code=5)
    assert "note: records/bad.moments: skipped 1: the line is not JSON, first in line 3" in done.stderr
    run("rules.py", "records", "--fail-if", "skipped > 0", code=1)


def test_a_rule_that_hangs_fails_and_guesses_is_named(run, work):
    (work / "bad.py").write_text(
        "from hookline import BEFORE_TOOL, HookResult, guard, hook\n"
        "@guard(BEFORE_TOOL)\ndef slow(ctx, request):\n"
        "    while 'sudo' in request.arguments['command']: pass\n"
        "@hook(BEFORE_TOOL, on_failure='open')\ndef broken(ctx, request):\n"
        "    ctx.deps\n    open('canary', 'w')\n"
    )
    done = run("bad.py", "records", "--time-limit", "0.2", "--workers", "2", code=5)
    assert not (work / "canary").exists()
    assert "slow: timed out at 2 moments" in done.stdout
    assert "broken: refused at 2 moments: writing files: canary" in done.stdout
    assert "broken: ctx.deps" in done.stdout


def test_the_records_of_the_project_are_the_default(run, work):
    (work / "hookline.toml").write_text('records = "records"\n')
    assert "2 newly blocked" in run("rules.py", "--trust").stdout


def test_a_terminal_shows_progress_with_rate(work, terminal):
    program = terminal("backtest", "rules.py", "records", TERM="xterm")
    program.wait_for("newly blocked")
    assert "moments" in program.text
    assert "/s" in program.text
