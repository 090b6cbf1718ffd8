"""Section: one call of ``hookline agent-hook``, with and without the resident process."""

import json
import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
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
ENTRY = str(HERE.parent / "src" / "hookline" / "adapters" / "coding_agents" / "entry.py")
CALL = ["agent-hook", "--agent", "claude", "rules.py"]
RESIDENT = "a call, as the settings start it"
WAYS = {
    RESIDENT: [sys.executable, "-I", "-S", ENTRY, *CALL],
    "a call of the program `hookline`": [sys.executable, "-P", "-m", "hookline", *CALL],
    "the first call, or `--once`: load the guards and answer": [sys.executable, "-P", ENTRY, *CALL, "--once"],
    "`python -I -S -c pass`, for comparison": [sys.executable, "-I", "-S", "-c", "pass"],
    "`python -c pass`": [sys.executable, "-c", "pass"],
    "`perl -e 1`": ["perl", "-e", "1"],
    "`node -e 1`": ["node", "-e", "1"],
}
"""The programs, of which those that are not installed are left out."""


def measure(lab: Lab) -> dict[str, Any]:
    """Return the milliseconds, of CPU and in all, of each way to answer one event."""
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
        ways = {way: command for way, command in WAYS.items() if shutil.which(command[0])}
        cpu: dict[str, list[float]] = {way: [] for way in ways}
        wall: dict[str, list[float]] = {way: [] for way in ways}
        try:
            _run(WAYS[RESIDENT], event, env)  # starts the process
            for way in lab.turns(ways, lab.pick(41, 1)):
                used, taken = _run(ways[way], event, env)
                cpu[way].append(used)
                wall[way].append(taken)
        finally:
            _end(folder)
    return {way: {"cpu": spread(cpu[way]), "wall": spread(wall[way])} for way in ways}


def _run(command: list[str], event: dict[str, Any], env: dict[str, str]) -> tuple[float, float]:
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, input=json.dumps(event).encode(), env=env, check=True, capture_output=True)
    end, after = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    assert not done.stdout, "the guards must allow this command"
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return 1000 * cpu, 1000 * (end - start)


def _end(folder: Path) -> None:
    """End the resident process."""
    for path in (folder / "hookline").glob("*.sock"):
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(path))
            pid = struct.unpack("3i", connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            os.kill(pid, 9)


def render(data: Any) -> str:
    """Return the text and the table."""
    rows = [[way, shown(found["cpu"], "ms"), shown(found["wall"], "ms")] for way, found in data.items()]
    return prose(
        "`hookline agent-hook` with the terminal guard, the path guard and the sensitive-data hook, as Claude Code "
        "starts it for a tool call: the whole process, from its start to its answer, with compiled files. The "
        "resident process keeps the guards in memory; its own CPU for a call is not included. The settings start an "
        "isolated Python without installed packages, which only asks the resident process. Perl would start faster, "
        "but is not everywhere; Node.js starts slower than all of them. CPU hardly depends on what else the machine "
        "does; elapsed times do, so compare them with each other only."
    ) + table(["", "CPU", "elapsed"], rows)


SECTION = Section("agent_hook", "Guards in Claude Code", measure, render)
