"""What ``make run`` shows, on the real model."""

import os
import subprocess
import sys
from pathlib import Path

TOUR = Path(__file__).parents[2] / "examples/tour"


def test_the_tour_runs_under_its_hooks_to_its_limit():
    """Its first reply to each request must be a call, so that it cannot be done before its limit."""
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
    assert done.returncode == 3, done.stderr
    told = done.stderr.splitlines()
    assert told[-1].startswith("stopped (Step limit reached: 5/5) · 5 steps · ")
    assert told.count("  hook look_first rewrites at before_llm: look before you answer") >= 3
    assert "  hook work_through_the_list keeps it going at on_stop: the list is not done" in told
    assert sum(line.startswith("  calls ") for line in told) >= 3
    assert "4711" not in done.stdout + done.stderr  # whatever the model did, no code left its note
    for number, line in enumerate(told):
        if line.startswith("  calls discard_note"):
            assert told[number + 1] == "  hook keep_notes blocks at before_tool: nobody may throw notes away"
