"""Everything that does not need Linux works on Windows and macOS, and missing parts say so.

There is neither of them here: a Linux without the modules and functions that the other system does not have takes
their place (``other_platform.py``).
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.slow
@pytest.mark.parametrize(
    ("platform", "shell"),
    [
        ("win32", "the shell tool needs a POSIX system"),
        (
            "darwin",
            "commands cannot be confined on this machine. bubblewrap: it needs Linux; landlock: it needs Linux.",
        ),
    ],
)
def test_everything_but_the_sandbox_works_without_linux(platform, shell, tmp_path):
    command = [sys.executable, HERE / "other_platform.py", platform, HERE / "platform_scene.py"]
    env = os.environ | {"HOME": str(tmp_path / "home"), "HOOKLINE_TRUST": "1"}
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    status, results, again, refusal, *commands = done.stdout.splitlines()
    assert status == "completed done"
    assert results.startswith("['Mail goes to colleagues only.', 'hello', \"'../scene.txt' is not allowed")
    assert again == "same"
    assert refusal.startswith(shell)
    assert commands[:4] == ["hookline points: 0", "hookline explain: 0", "True True", "hookline audit: 0"]
