"""Section: one call of ``hookline agent-hook``, with and without the resident process."""

import json
import os
import resource
import socket
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from environments import HERE
from figures import prose, shown, spread, table
from lab import Lab
from section import Section

RULES = """
from hookline.hooks import PathGuard, SensitiveDataHook, TerminalGuard

hooks = [TerminalGuard("."), PathGuard(".", write=True), SensitiveDataHook()]
"""
WAYS = {
    "a call, with a resident process": ["-P", "-m", "hookline", "agent-hook", "--agent", "claude", "rules.py"],
    "the first call, or `--once`: load the guards and answer": [
        *("-P", "-m", "hookline", "agent-hook", "--agent", "claude", "rules.py", "--once"),
    ],
    "`python -c pass`, for comparison": ["-c", "pass"],
}


def measure(lab: Lab) -> dict[str, Any]:
    """Return the CPU milliseconds of each way to answer one event."""
    with tempfile.TemporaryDirectory(prefix="hl") as name:
        folder = Path(name)
        (folder / "rules.py").write_text(RULES)
        event = {
            "session_id": "bench",
            "hook_event_name": "PreToolUse",
            "cwd": name,
            "tool_name": "Bash",
            "tool_input": {"command": "grep -rn TODO ."},
        }
        env = {
            **os.environ,
            "PYTHONPATH": str(HERE.parent / "src"),
            "XDG_RUNTIME_DIR": name,
            "CLAUDE_PROJECT_DIR": name,
        }
        taken: dict[str, list[float]] = {way: [] for way in WAYS}
        try:
            _cpu(WAYS["a call, with a resident process"], event, env)  # starts the process
            for way in lab.turns(WAYS, lab.pick(21, 1)):
                taken[way].append(_cpu(WAYS[way], event, env))
        finally:
            _end(folder)
    return {way: spread(times) for way, times in taken.items()}


def _cpu(arguments: list[str], event: dict[str, Any], env: dict[str, str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = subprocess.run(
        [sys.executable, *arguments], input=json.dumps(event).encode(), env=env, check=True, capture_output=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert not done.stdout, "the guards must allow this command"
    return 1000 * (after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _end(folder: Path) -> None:
    """End the resident process."""
    for path in (folder / "hookline").glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            os.kill(pid, 9)


def render(data: Any) -> str:
    """Return the text and the table."""
    return prose(
        "`hookline agent-hook` with the terminal guard, the path guard and the sensitive-data hook, as Claude Code "
        "starts it for a tool call: CPU of the whole process, from its start to its answer, with compiled files. The "
        "resident process keeps the guards in memory; its own work for a call is not included."
    ) + table(["", "CPU"], [[way, shown(time, "ms")] for way, time in data.items()])


SECTION = Section("agent_hook", "Guards in Claude Code", measure, render)
