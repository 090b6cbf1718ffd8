"""Measure backtests: moments per second of CPU time, the gain of a second process, and the peak of the memory."""

import os
import random
import resource
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    AgentContext,
    HookResult,
    guard,
)
from hookline.backtest import Report, backtest
from hookline.payloads import Ids, ToolCallRequest
from hookline.records import format as fmt

STEPS = 20
COMMANDS = {
    "ls -la src": 20,
    "pytest -q tests/test_shop.py": 20,
    "git status --short": 15,
    "grep -rn TODO src | head -20": 15,
    "cat README.md": 10,
    "python manage.py migrate": 8,
    "git diff HEAD~1 -- src/shop/orders.py": 8,
    "rm -rf build": 2,
    "sudo systemctl restart shop": 2,
}
"""Commands of the shell, and how often they are called."""
_encode = msgspec.json.encode


@guard(BEFORE_TOOL, tools="shell", name="no_sudo")
def one_tool(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Judge one tool: one of the main moments in nine."""
    return HookResult.block("No rm.") if request.arguments["command"].startswith("rm ") else None


@guard(BEFORE_TOOL, name="no_sudo")
def every_call(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Judge every tool call: one of the main moments in four."""
    return HookResult.block("No rm.") if request.arguments.get("command", "").startswith("rm ") else None


@guard(
    ON_RUN_START,
    BEFORE_STEP,
    BEFORE_LLM,
    AFTER_LLM,
    BEFORE_TOOL,
    AFTER_TOOL,
    AFTER_STEP,
    ON_STOP,
    ON_RUN_END,
    name="no_sudo",
)
def every_moment(point: str, ctx: AgentContext, payload: Any) -> HookResult | None:
    """Judge every moment, except progress of tools, which nobody can guard."""
    is_bad = point == "before_tool" and payload.arguments.get("command", "").startswith("rm ")
    return HookResult.block("No rm.") if is_bad else None


RULES = {"one tool": one_tool, "every call": every_call, "every moment": every_moment}
POINTS: dict[str, set[str]] = {
    "main points": {
        str(each) for each in (ON_RUN_START, BEFORE_LLM, AFTER_LLM, BEFORE_TOOL, AFTER_TOOL, ON_STOP, ON_RUN_END)
    },
    "all points": {
        str(each)
        for each in (
            ON_RUN_START,
            BEFORE_LLM,
            AFTER_LLM,
            BEFORE_TOOL,
            AFTER_TOOL,
            BEFORE_STEP,
            ON_PROGRESS,
            AFTER_STEP,
            ON_STOP,
            ON_RUN_END,
        )
    },
    "calls": {str(BEFORE_TOOL)},
}
"""The points of a record: those of ``record = true``, those of ``points="all"``, or only tool calls."""


def write_records(path: Path, moments: int, points: str = "main points") -> int:
    """Write runs of twenty steps with texts of usual lengths, and return the number of moments.

    Half of the calls are of the shell, and a fiftieth of those was blocked.
    """
    chance = random.Random(1)
    words = ["".join(chance.choices("abcdefghijklmnopqrstuvwxyz", k=chance.randint(2, 10))) for _ in range(2000)]

    def text(length: int) -> str:
        return " ".join(chance.choices(words, k=length))

    at = {"before_tool": fmt.HookAtPoint("guard", 0, ("shell",))}
    written = run = 0
    with path.open("wb") as file:

        def write(*items: Any) -> None:
            file.write(_encode(items) + b"\n")

        write("hookline", fmt.Header(fmt.VERSION, "1.0", 1.79e9))
        write("hooks", "3f2a91", (fmt.HookInfo("no_sudo", at),))
        while written < moments:
            run += 1
            ids = Ids(f"run_{run:012x}", f"run_{run:012x}", f"run_{run:012x}", f"session_{run:x}", "bob")
            write("run", 0, fmt.RunInfo(ids, 1.79e9 + 60 * run, text(12), text(60), "model", hooks="3f2a91"))
            rows = [row for row in _run(chance, text, run) if row[0] in POINTS[points]]
            for n, (point, tool, *rest) in enumerate(rows):
                write(point, tool, 0, n, round(0.1 * n, 6), 0.00001, *rest)
            write("end", 0, fmt.RunEnd("completed", "completed", "", "done", STEPS, STEPS - 1))
            written += len(rows)
    return written


def _run(chance: random.Random, text: Callable[[int], str], run: int) -> list[list[Any]]:
    """Return the points, tools, payloads and decisions of one run."""
    rows: list[list[Any]] = [["on_run_start", "", {"task": text(12)}]]
    new: list[Any] = [{"role": "system", "content": text(60)}, {"role": "user", "content": text(12)}]
    kept = 0
    commands = [command for command, times in COMMANDS.items() for _ in range(times)]
    for hop in range(STEPS):
        notes = {"kept": kept, "tools_kept": bool(hop)}
        rows.append(["before_step", "", {"index": hop}])
        rows.append(["before_llm", "", {"messages": new, "model": "model", "hop": hop}, None, None, notes])
        kept += len(new)
        tool = "shell" if chance.random() < 0.5 else chance.choice(("read_file", "search", "calculator"))
        arguments = {"command": chance.choice(commands)} if tool == "shell" else {"path": text(1), "query": text(4)}
        call = {"id": f"call_{run:x}_{hop}", "name": tool, "arguments": arguments}
        calls = [call] if hop < STEPS - 1 else []
        usage = {"input_tokens": 900 + hop * 80, "output_tokens": 60, "cached_tokens": 0}
        said = text(25)
        reply = {"content": said, "tool_calls": calls, "hop": hop, "usage": usage, "cost": 0.002, "model": "model"}
        rows.append(["after_llm", "", reply])
        new = [{"role": "assistant", "content": said, "tool_calls": calls}]
        if calls:
            is_bad = "sudo" in arguments.get("command", "")
            decided = (
                [[["no_sudo", "guard", "block", "sudo", "No sudo."]], ["block", "no_sudo", "sudo"]] if is_bad else []
            )
            rows.append(["before_tool", tool, {**call, "hop": hop}, *decided])
            progress = {"call_id": call["id"], "tool": tool}
            if not is_bad:
                rows.append(
                    ["on_progress", tool, {"phase": "tool_start", **progress, "message": f"{tool}: {arguments}"}]
                )
                ended = {"message": f"{tool} finished in 30 ms", "outcome": "ok"}
                rows.append(["on_progress", tool, {"phase": "tool_end", **progress, **ended}])
            result = "No sudo." if is_bad else text(chance.choice((5, 20, 60, 150)))
            outcome = {"error": result, "outcome": "blocked"} if is_bad else {"result": result}
            rows.append(["after_tool", tool, {**call, **outcome, "duration": 0.03, "hop": hop}])
            new.append({"role": "tool", "content": result, "call_id": call["id"], "name": tool})
        finished = {"index": hop, "tool_names": [tool] * len(calls), "outcomes": ["ok"] * len(calls), "usage": usage}
        rows.append(["after_step", "", {**finished, "finish_reason": "stop", "duration": 0.07}])
    rows.append(["on_stop", "", {"signals": [{"kind": "completed", "message": "", "hook": ""}]}])
    rows.append(["on_run_end", "", {"reply": said, "tool_calls": STEPS - 1}])
    return rows


def rates(moments: int) -> dict[str, dict[str, float]]:
    """Return moments per second of CPU time in one process, and bytes per moment, by points and rule."""
    found: dict[str, dict[str, float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.moments"
        write_records(path, 100)
        _timed(every_moment, path)  # imports what a backtest needs
        for points in POINTS:
            write_records(path, moments, points)
            found[points] = {}
            for name, rule in RULES.items() if points != "calls" else [("every moment", every_call)]:
                report, seconds = _timed(rule, path)
                found[points][name] = report.moments / seconds
            found[points]["bytes"] = path.stat().st_size / report.moments
    return found


def _timed(rule: Any, path: Path) -> tuple[Report, float]:
    began = time.process_time()
    report = backtest([rule], path)
    return report, time.process_time() - began


def processes(moments: int) -> dict[str, float]:
    """Return moments per second of wall-clock time with one and with two processes."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.moments"
        write_records(path, moments)
        path.read_bytes()  # into the cache of the system
        for count in (1, 2):
            report = backtest([every_moment], path, workers=count)
            found[str(count)] = report.moments / report.seconds
    return found


def large(moments: int, copies: int) -> dict[str, float]:
    """Judge a file of ``copies`` times as many moments with one process; return its size and the peak of the memory."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "all.moments"
        write_records(path, moments)
        data = path.read_bytes()
        start = data.index(b'["run"')
        with path.open("ab") as file:
            for _ in range(copies - 1):
                file.write(memoryview(data)[start:])
        del data
        size = os.path.getsize(path)
        report = backtest([one_tool], path, workers=1)
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1e3
    return {
        "moments": report.moments,
        "GB": size / 1e9,
        "seconds": report.seconds,
        "rate": report.moments / report.seconds,
        "peak MB": peak,
    }
