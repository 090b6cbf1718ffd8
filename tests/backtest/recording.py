"""Record runs for the tests of backtests, and write records by hand."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from hookline import Agent, Limits, ScriptedModel, call, reply, tool
from hookline.backtest.report import Report
from hookline.payloads import Ids
from hookline.records import RecordHook
from hookline.records import format as fmt


@tool
def shell(command: str) -> str:
    """Run a command."""
    return f"ran {command}"


@tool
def add(a: int, b: int = 5) -> int:
    """Add two numbers."""
    return a + b


def record(
    folder: Path, turns: Iterable[Any], *, hooks: Iterable[Any] = (), task: str = "Work.", **options: Any
) -> Any:
    """Run an agent once under these hooks, and record it."""
    model = ScriptedModel([*turns, reply("done")])
    agent = Agent(
        "bob", llm=model, tools=[shell, add], hooks=[*hooks, RecordHook(folder)], limits=Limits(steps=50), **options
    )
    return agent.run(task)


def commands(*texts: str) -> list[Any]:
    """Return turns of a model that calls the shell."""
    return [call("shell", command=text) for text in texts]


def kinds(report: Report) -> dict[str, tuple[int, int, int]]:
    """Return the differences of a report: by kind, how many are exact, conditional, a guess."""
    found: dict[str, tuple[int, int, int]] = {}
    for cell in report.cells:
        if cell.kind != "same":
            count = report.total(cell.kind)
            found[cell.kind] = (count.exact, count.conditional, count.guess)
    return found


class Writer:
    """Writes a file of moments by hand: runs whose moments are calls of the shell."""

    def __init__(self, path: Path, version: int = fmt.VERSION) -> None:
        self.path = path
        self.lines: list[bytes] = []
        self.add("hookline", fmt.Header(version, "1.0", 1e9))

    def add(self, *items: Any) -> None:
        self.lines.append(msgspec.json.encode(items))

    def run(self, run_id: str, *calls: str, hooks: str = "", decisions: dict[str, Any] | None = None) -> None:
        self.add("run", 0, fmt.RunInfo(Ids(run_id, agent="bob"), 1e9, "task", hooks=hooks))
        for n, command in enumerate(calls):
            payload = {"id": f"{run_id}_{n}", "name": "shell", "arguments": {"command": command}}
            self.add("before_tool", "shell", 0, n, 0.1 * n, 0.0, payload, *(decisions or {}).get(command, ()))
        self.add("end", 0, fmt.RunEnd("completed"))

    def write(self) -> Path:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(b"".join(line + b"\n" for line in self.lines))
        return self.path
