"""Measure how long a call takes to be judged by rules of a file, beside the same rules in Python."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hookline import AFTER_TOOL, BEFORE_TOOL, HookRegistry, HookResult, guard
from hookline.hooks import load_rules
from hookline.payloads import ToolCallRequest, ToolCallResult
from hookline.testing import make_context

MANY, APPLY = 50, 25
"""Rules in all; each ``APPLY``-th is about the tool that is called."""


def _tool(number: int) -> str:
    return "refund" if number % APPLY == 0 else f"tool_{number}"


def _rule(name: str, tools: str, when: str) -> str:
    return f'[[rules]]\nname = "{name}"\ntools = "{tools}"\nwhen = """{when}"""\nthen = "block"\nmessage = "No."\n'


def _python(number: int) -> Any:
    @guard(BEFORE_TOOL, tools=_tool(number), name=f"guard-{number}")
    def limit(ctx: Any, request: ToolCallRequest) -> HookResult | None:
        arguments = request.arguments
        return HookResult.block("No.") if arguments["amount"] > 100 + number and arguments["order"] != "x" else None

    return limit


def _sets(folder: Path) -> dict[str, Iterable[Any]]:
    """Return sets of hooks by name."""
    plain = "call.arguments.amount > {} && call.arguments.order != 'x'"
    files = {
        "50 rules, 2 of this tool": "".join(_rule(f"r{n}", _tool(n), plain.format(100 + n)) for n in range(MANY)),
        "2 rules": "".join(_rule(f"r{n}", "refund", plain.format(100 + n)) for n in range(2)),
        "a rule with called()": _rule("r", "refund", "called('nothing')"),
        "a rule that reads history": _rule("r", "refund", "history.exists(c, c.tool == 'nothing')"),
    }
    found: dict[str, Iterable[Any]] = {
        "50 guards in Python, 2 of this tool": [_python(n) for n in range(MANY)],
        "2 guards in Python": [_python(n * APPLY) for n in range(2)],
    }
    for number, (name, text) in enumerate(files.items()):
        (folder / f"{number}.toml").write_text(text)
        found[name] = load_rules(folder / f"{number}.toml")
    return found


def judged(reps: int, batch: int, history: int) -> dict[str, list[float]]:
    """Return the microseconds of one fire of ``before_tool``, for each set of hooks, with so many calls before it.

    The lowest of several batches is one figure, because a batch of a few milliseconds is often interrupted.
    """
    with TemporaryDirectory() as name:
        sets = _sets(Path(name))
        taken: dict[str, list[float]] = {}
        for _ in range(reps):
            for label, hooks in sets.items():
                size = history if "called" in label or "history" in label else 0
                key = f"{label}, {size} calls before" if size else label
                taken.setdefault(key, []).append(asyncio.run(_fires(hooks, batch, size)))
    return taken


async def _fires(hooks: Iterable[Any], batch: int, history: int) -> float:
    registry, ctx = HookRegistry(hooks), make_context()
    for number in range(history):
        arguments = {"path": f"notes/{number}.txt", "limit": number}
        await registry.fire(BEFORE_TOOL, ToolCallRequest(f"h{number}", "read_file", arguments), ctx=ctx)
        await registry.fire(AFTER_TOOL, ToolCallResult(f"h{number}", "read_file", arguments, "text"), ctx=ctx)
    request = ToolCallRequest("call", "refund", {"order": "A1", "amount": 5.0})
    return min([await _batch(lambda: registry.fire(BEFORE_TOOL, request, ctx=ctx), batch) for _ in range(batch)])


async def _batch(fire: Callable[[], Any], size: int) -> float:
    began = time.perf_counter()
    for _ in range(size):
        await fire()
    return (time.perf_counter() - began) / size * 1e6
