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
        [sys.executable, "-m", "hookline", *arguments],
        cwd=TOUR,
        env=variables | {"HOOKLINE_RUNS": "none"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_tour_shows_every_hook_and_its_recording_shows_what_a_stricter_rule_changes(tmp_path):
    tape = str(tmp_path / "run.tape")
    done = in_the_tour("run", "--hooks", "visitor.py", "--tape", tape, "Read a note: doctor.")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("completed · ")
    assert lines.count("  hook look_first rewrites at before_llm: look before you answer") >= 3
    assert "  hook work_through_the_list keeps it going at on_stop: the list is not done" in lines
    assert "  hook keep_notes blocks at before_tool: nobody may throw notes away" in lines
    assert "  approval approved by nobody, in a demo" in lines
    assert "  tool mail_note ok: Mailed: Taxes are due in April." in lines
    assert "4711" not in done.stdout + done.stderr  # the hook hides the code, whatever the model does
    again = in_the_tour("replay", tape, "--hooks", "visitor.py", "--hooks", "stricter.py")
    assert again.returncode == 1, again.stderr
    assert "replayed  before_tool no_mail: block (new rule: no mail)" in again.stdout
    assert in_the_tour("replay", tape, "--hooks", "visitor.py").returncode == 0
