"""Describe a record of an audit log in one line, the same in the terminal and in the console."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import msgspec

from ..._base.text import counted, printable, shorten
from .format import UNREADABLE, parse_envelope

Record = dict[str, Any]
"""A record as the log has it: its fields by name."""

NO_RECORD = "no record"
"""The type of a line that is not a record."""
LENGTH = 1000
"""Maximum length of a description in characters."""
FAILURES = frozenset(("block", "end", "failed", "error", "blocked", "cancelled", "denied", "retry", "stopped", "ended"))
"""Verbs, outcomes, decisions and statuses that are shown in red."""

_COMMON_FIELDS = frozenset(
    (
        "v",
        "seq",
        "time",
        "type",
        "run_id",
        "task_id",
        "correlation_id",
        "session_id",
        "agent",
        "parent_run_id",
        "prev",
        "sig",
    )
)
_TEXT_FIELDS = ("text", "content", "result", "error", "message", "reply")


def parse_record(line: bytes) -> Record:
    """Parse one line. A line that is not a record, as ``verify`` sees it, becomes one of the type ``no record``."""
    with suppress(*UNREADABLE):
        record: Record = msgspec.json.decode(line)
        if parse_envelope(line) is not None:
            return record
    return {"type": NO_RECORD, "about": line.decode(errors="replace").strip()}


def is_failure(record: Record) -> bool:
    """Whether a record says that something failed or was refused, or is damaged."""
    if record["type"] in ("error", "lost", NO_RECORD):
        return True
    # A record that was changed may have anything in these fields.
    return any(str(record.get(name)) in FAILURES for name in ("verb", "outcome", "decision", "status"))


def is_view(type: Any, decision: Any, method: Any, route: Any) -> bool:
    """Whether a record only says that somebody who may do so looked at a page of the console."""
    path = str(route)
    is_page = path in ("/", "/console") or path.startswith("/console/")
    return type == "auth" and decision == "granted" and method in ("GET", "HEAD") and is_page


def names_in(value: Any) -> list[Any]:
    """Return a field that should be a list of names, and may be anything in a record that was changed."""
    return value if isinstance(value, list) else []


def short_run_id(run_id: Any) -> str:
    """Return a run's id without the prefix ``run_``."""
    return str(run_id or "").removeprefix("run_")


def describe(record: Record) -> str:
    """Describe a record in one line."""
    describe_type = _DESCRIPTIONS.get(str(record["type"]))
    try:
        parts = describe_type(record) if describe_type is not None else []
    except (TypeError, ValueError, KeyError):  # the record was changed and lacks a field
        parts = []
    if not parts:
        parts = [f"{name}={value}" for name, value in record.items() if name not in _COMMON_FIELDS]
    elif text := next((str(record[name]) for name in _TEXT_FIELDS if record.get(name)), ""):
        parts.append(f"“{text}”")
    line = " ".join(" · ".join(part for part in parts if part).split())
    return shorten(printable(line), LENGTH)


def _cost(cost: float | None) -> str:
    return "cost unknown" if cost is None else f"cost ${cost:.4f}"


def _ms(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _describe_model_call(r: Record) -> list[str]:
    calls = ", ".join(names_in(r["tool_calls"]))
    return [
        f"{r['provider']}/{r['model']}",
        f"{r['input_tokens']:,} in, {r['output_tokens']:,} out",
        _cost(r["cost"]) if r["cost"] else "",
        f"calls {calls}" if calls else r["finish_reason"],
        "" if r["purpose"] == "step" else r["purpose"],
        "" if r["verb"] == "cont" else r["verb"],
        f"attempt {r['attempt']}" if r["attempt"] > 1 else "",
        _ms(r["duration_ms"]),
    ]


def _describe_run_end(r: Record) -> list[str]:
    why = r["hook_ended"] or (r["stop"] if r["status"] == "stopped" else "")
    tokens = r["input_tokens"] + r["output_tokens"]
    return [
        f"{r['status']} ({why})" if why else r["status"],
        counted(r["steps"], "step"),
        counted(r["tool_calls"], "tool call"),
        counted(tokens, "token"),
        _cost(r["cost"]),
        _ms(r["elapsed_ms"]),
        counted(r["errors"], "error") if r["errors"] else "",
    ]


def _verdict_text(r: Record) -> str:
    return f"{r['hook']} {r['verb']} at {r['point']}" + (f": {r['reason']}" if r["reason"] else "")


_DESCRIPTIONS: dict[str, Any] = {
    "run_start": lambda r: [r["agent"], f"in {r['parent_run_id']}" if r["parent_run_id"] else ""],
    "run_end": _describe_run_end,
    "task": lambda r: [counted(r["chars"], "character")],
    "steered": lambda r: [counted(r["chars"], "character")],
    "model": _describe_model_call,
    "verdict": lambda r: [_verdict_text(r)],
    "shadow": lambda r: [f"would have: {_verdict_text(r)}"],
    "notice": lambda r: [f"{r['kind']} at {r['point']}: {r['hook']}", r["about"]],
    "tool_start": lambda r: [r["tool"], r["call_id"]],
    "tool": lambda r: [
        f"{r['tool']} {r['outcome']}",
        f"attempt {r['attempt']}" if r["attempt"] > 1 else "",
        _ms(r["duration_ms"]),
    ],
    "approval_asked": lambda r: [f"may {r['tool']} run?", r["call_id"]],
    "approval": lambda r: [r["decision"] + (f" by {r['by']}" if r["by"] else ""), r["call_id"]],
    "stop": lambda r: [r["kind"], r["hook"]],
    "error": lambda r: [f"{r['where']}: {r['error_type']}", r["source"], "fatal" if r["fatal"] else ""],
    "auth": lambda r: [
        f"{r['decision']}: {r['name'] or r['caller'] or 'nobody'}" + (f", {r['why']}" if r["why"] else ""),
        f"{r['method']} {r['route']}",
        f"needs {r['right']}" if r["right"] else "",
        f"from {r['address']}",
    ],
    "halt": lambda r: [f"all runs {r['action']}" + (f" by {r['by']}" if r["by"] else ""), r["reason"]],
    "open": lambda r: [
        f"hookline {r['version']}, process {r['pid']}",
        f"signed by {r['key']}" if r["key"] else "",
        f"after an incomplete line of {r['torn']:,} bytes" if r["torn"] else "",
        "without a checkpoint of the lines above" if r.get("unproven") else "",
    ],
    "rotate": lambda r: [f"this file is {r['file']} from now on"],
    "prune": lambda r: [f"{counted(r['files'], 'old file')} deleted, up to record {r['last']:,}"],
    "lost": lambda r: [f"{counted(r['count'], 'record')} could not be written: {r['why']}"],
}
