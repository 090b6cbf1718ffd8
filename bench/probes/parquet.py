"""Measure records in Parquet: export, queries about the columns, and backtests with DuckDB as the reader."""

import os
import random
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import msgspec

from hookline import BEFORE_TOOL, AgentContext, HookResult, guard
from hookline.backtest import backtest
from hookline.payloads import ToolCallRequest
from hookline.records.parquet import export_parquet

STEPS = 25
MOMENTS_A_RUN = 4 * STEPS + 2
_encode = msgspec.json.Encoder().encode


@guard(BEFORE_TOOL, tools="shell")
def one_tool(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Block some calls of one tool, a twelfth of the moments."""
    return HookResult.block("no") if "/9" in str(request.arguments["command"]) else None


@guard(BEFORE_TOOL)
def every_call(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
    """Block some calls of all tools, a quarter of the moments."""
    return HookResult.block("no") if "/9" in str(request.arguments["command"]) else None


def write_records(path: Path, moments: int) -> None:
    """Write runs of 25 steps with one model call and one tool call each."""
    chance = random.Random(1)
    words = [
        "invoice",
        "customer",
        "folder",
        "report",
        "please",
        "read",
        "the",
        "file",
        "and",
        "send",
        "a",
        "short",
        "summary",
        "of",
        "it",
        "to",
        "the",
        "team",
    ]

    def text(length: int) -> str:
        return " ".join(chance.choices(words, k=length))

    with path.open("wb") as file:
        file.write(_encode(["hookline", {"format": 1, "hookline": "1.0", "time": 1790000000.0}]) + b"\n")
        for run in range(max(1, moments // MOMENTS_A_RUN)):
            ids = {"run_id": f"run-{run:08d}", "session_id": f"session-{run // 3}", "agent": "bench"}
            lines: list[Any] = [["run", 0, {"ids": ids, "time": 1790000000.0 + 60 * run, "task": "Read it"}]]
            lines.append(["on_run_start", "", 0, 0, 0.0, 0.0, {"task": "Read it"}])
            for step in range(STEPS):
                n, at, call, tool = 4 * step + 1, step * 1.5, f"call_{step}", ("shell", "read", "search")[step % 3]
                arguments = {"command": f"cat /srv/data/{chance.randrange(1000)}.txt"}
                messages = [{"role": "tool", "content": text(60), "call_id": call, "name": tool}]
                calls = [{"id": call, "name": tool, "arguments": arguments}]
                usage = {"input_tokens": 900 + step, "output_tokens": 40, "cached_tokens": 0}
                call_of = {"id": call, "name": tool, "arguments": arguments, "hop": step}
                lines += [
                    ["before_llm", "", 0, n, at, 0.0, {"messages": messages, "model": "m"}, None, None, {"kept": step}],
                    [
                        "after_llm",
                        "",
                        0,
                        n + 1,
                        at + 1,
                        0.0,
                        {"content": text(30), "tool_calls": calls, "usage": usage},
                    ],
                    ["before_tool", tool, 0, n + 2, at + 1.1, 0.0, call_of],
                    ["after_tool", tool, 0, n + 3, at + 1.4, 0.0, {**call_of, "result": text(60), "duration": 0.3}],
                ]
            lines.append(["on_run_end", "", 0, 4 * STEPS + 1, 40.0, 0.0, {"reply": text(20)}])
            lines.append(["end", 0, {"status": "completed", "steps": STEPS}])
            file.write(b"".join(_encode(line) + b"\n" for line in lines))


def rates(moments: int) -> dict[str, float]:
    """Return moments per second of CPU time for each kind of work, and the sizes of the files in bytes per moment."""
    with tempfile.TemporaryDirectory() as name:
        records, tables = Path(name) / "all.moments", Path(name) / "tables"
        write_records(records, moments)
        began = time.process_time()
        done = export_parquet([records], tables)
        found = {"export": done.moments / (time.process_time() - began)}
        found["line bytes"] = os.path.getsize(records) / done.moments
        found["parquet bytes"] = done.size / done.moments
        files = f"{tables}/*.parquet"
        with duckdb.connect(config={"threads": 1}) as connection:

            def query(sql: str) -> None:
                connection.execute(sql, [files]).fetchall()

            found["scan"] = _rate(done.moments, query, "select point, count(*) from read_parquet(?) group by 1")
            where = "point = 'before_tool' and tool = 'shell'"
            found["filter"] = _rate(done.moments, query, f"select count(*) from read_parquet(?) where {where}")
        for rule in (one_tool, every_call):
            found[rule.name] = _rate(done.moments, lambda hook: backtest([hook], [tables]), rule)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        found["peak MB"] = peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
        return found


def _rate(moments: int, work: Callable[[Any], object], given: Any) -> float:
    """Return moments per second of CPU time: the best of three."""
    best = 0.0
    for _ in range(3):
        began = time.process_time()
        work(given)
        best = max(best, moments / (time.process_time() - began))
    return best
