"""The demo of ``make run`` on the embedded model."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow


TOUR = Path(__file__).parents[2] / "examples/tour"


def test_the_tour_ends_with_an_answer_and_shows_every_hook():
    done = subprocess.run(
        [sys.executable, "-m", "hookline", "run", "Read a note: doctor."],
        cwd=TOUR,
        env={name: value for name, value in os.environ.items() if not name.startswith("HOOKLINE_M")}
        | {"HOOKLINE_RUNS": "none"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip()
    lines = done.stderr.splitlines()
    assert lines[-1].startswith("completed · ")
    assert lines.count("  hook look_first rewrites at before_llm: look before you answer") >= 3
    assert "  hook work_through_the_list keeps it going at on_stop: the list is not done" in lines
    assert sum(line.startswith("  calls ") for line in lines) >= 3
    assert "4711" not in done.stdout + done.stderr  # the hook hides the code, whatever the model does
    for number, line in enumerate(lines):
        if line.startswith("  calls discard_note"):
            assert lines[number + 1] == "  hook keep_notes blocks at before_tool: nobody may throw notes away"
