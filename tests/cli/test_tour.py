"""The demo of ``make run`` on the embedded model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


TOUR = Path(__file__).parents[2] / "examples/tour"


def in_the_tour(*arguments):
    variables = {name: value for name, value in os.environ.items() if not name.startswith("HOOKLINE_M")}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=TOUR,
        env=variables | {"HOOKLINE_RUNS": "none"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_tour_ends_with_its_outcomes_and_what_a_stricter_rule_would_have_done(tmp_path):
    tape = str(tmp_path / "run.tape")
    done = in_the_tour("-m", "hookline", "run", "--hooks", "visitor.py", "--tape", tape, "Read a note: doctor.")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "Mailed: Taxes are due in April.\n"  # the result of the tool
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("completed · ")
    assert lines.count("  ◆ only_tools changed the request at before_llm: the model must call a tool") == 3
    assert "  ◆ next_task kept the run going at on_stop: there are more tasks" in lines
    assert "  ┃ keep_notes blocked the call at before_tool: notes are never thrown away" in lines
    assert "  ● mail_note approved by the demo, which has no terminal to ask at" in lines
    assert any(line.endswith("─●─■─○─  tool mail_note ok: Mailed: Taxes are due in April.") for line in lines)
    assert "4711" not in done.stdout + done.stderr  # the hook hides the code, whatever the model does

    shown = in_the_tour("outcomes.py", tape)
    assert shown.returncode == 0, shown.stderr
    assert [line.split(maxsplit=3)[:3] for line in shown.stdout.splitlines()] == [
        ["◆", "changed", "read_note:"],
        ["┃", "blocked", "discard_note"],
        ["●", "asked", "mail_note"],
        ["○", "finished", "Mailed:"],
        ["┃", "stricter", "stricter.py"],
    ]
    replayed = in_the_tour("-m", "hookline", "replay", tape, "--hooks", "visitor.py", "--hooks", "stricter.py")
    assert replayed.returncode == 1, replayed.stderr
    assert "replayed  ┃ no_mail blocked the call at before_tool: no mail at all" in replayed.stdout
    assert in_the_tour("-m", "hookline", "replay", tape, "--hooks", "visitor.py").returncode == 0
