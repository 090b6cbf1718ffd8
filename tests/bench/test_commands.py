"""The default guards interrupt few commands of a developer's agent in a sandbox, also of those set aside."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def interrupted(name, sandboxed):
    code = f"import json; from probes.commands import interrupted as i; print(json.dumps(i({name!r}, {sandboxed})))"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "bench"), str(ROOT / "src")))}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(("name", "fewest", "share"), [("reading", 240, 0.02), ("working", 70, 0.1)])
def test_a_sandbox_lets_nearly_all_ordinary_commands_run(name, fewest, share):
    halves = interrupted(name, True)
    assert sum(found["commands"] for found in halves.values()) >= fewest
    for half, found in halves.items():
        assert (found["asked"] + found["blocked"]) / found["commands"] <= share, half


def test_without_a_sandbox_nothing_works_without_a_question():
    """The lists can tell: the strict profile asks about nearly every command that works."""
    halves = interrupted("working", False)
    assert all((found["asked"] + found["blocked"]) / found["commands"] > 0.9 for found in halves.values())
