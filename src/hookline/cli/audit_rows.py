"""Records of an audit log as rows for people."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from ..config.errors import ConfigError
from ..stores.audit.format import MAX_LINE, timestamp
from .text import cost_text, counted, short
from .times import seconds_of

Record = dict[str, Any]

POLL = 0.2
NARROW = 110
"""Columns below which a row has only the time of day; the date stands above the rows of a day."""
_HEAD = frozenset((
    "v", "seq", "time", "type", "run_id", "task_id", "correlation_id", "session_id", "agent", "parent_run_id", "prev",
    "sig",
))  # fmt: skip
_TEXTS = ("text", "content", "result", "error", "message", "reply")
_BAD = frozenset(("block", "end", "failed", "error", "blocked", "cancelled", "denied", "retry", "stopped", "ended"))
_STYLES = {
    "run_start": "bold", "run_end": "bold", "model": "cyan", "tool": "blue", "tool_start": "blue", "verdict": "magenta",
    "approval": "yellow", "approval_asked": "yellow", "auth": "green", "error": "red", "lost": "bold red",
    "open": "dim", "rotate": "dim", "no record": "bold red",
}  # fmt: skip


def read(path: Path) -> Iterator[tuple[bytes, Record]]:
    """The lines of a file, each with what it says; what is no record is told as such."""
    with open(path, "rb") as file:
        while line := file.readline(MAX_LINE):
            yield line, record_of(line)


def record_of(line: bytes) -> Record:
    """What a line says."""
    try:
        record = msgspec.json.decode(line)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        record = None
    if isinstance(record, dict) and isinstance(record.get("type"), str):
        return record
    return {"type": "no record", "about": line.decode(errors="replace").strip()}


def followed(path: Path) -> Iterator[tuple[bytes, Record]]:
    """The lines that are written from now on, also into the next file."""
    file = open(path, "rb")  # noqa: SIM115 - it is changed for the next one
    try:
        file.seek(0, os.SEEK_END)
        begun = b""
        while True:
            begun += file.readline(MAX_LINE)
            if begun.endswith(b"\n"):
                yield begun, record_of(begun)
                begun = b""
            elif _is_other(path, file.fileno()) and not file.peek(1):
                file.close()
                file, begun = open(path, "rb"), b""  # noqa: SIM115
            else:
                time.sleep(POLL)
    finally:
        file.close()


def _is_other(path: Path, fd: int) -> bool:
    try:
        return not os.path.samestat(os.stat(path), os.fstat(fd))
    except OSError:
        return False


def moment(text: str | None, option: str) -> str:
    """A time as the log writes it: so long ago, or in ISO 8601 (this machine's time zone if it names none).

    Raises:
        ConfigError: it is neither.
    """
    if text is None:
        return ""
    ago = seconds_of(text)
    try:
        if ago is not None:
            return timestamp(time.time() - ago).decode()
        return timestamp(datetime.fromisoformat(text).timestamp()).decode()
    except (ValueError, OverflowError, OSError):
        raise ConfigError(f"{option} takes 10m, 2h, 1d or a time such as 2026-11-15T10:00, not {text!r:.80}") from None


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """Which records are wanted."""

    run: str | None
    types: tuple[str, ...]
    tool: str | None
    hook: str | None
    verb: str | None
    model: str | None
    since: str
    until: str

    def takes(self, record: Record) -> bool:
        """Whether this one is."""
        at = str(record.get("time", ""))
        return (
            (not self.types or record["type"] in self.types)
            and (self.run is None or _bare(record.get("run_id")).startswith(_bare(self.run)))
            and (self.tool is None or self.tool in (record.get("tool"), *_names(record.get("tool_calls"))))
            and (self.model is None or self.model in (record.get("model"), _whole_name(record)))
            and all(
                wanted is None or record.get(name) == wanted
                for name, wanted in (("hook", self.hook), ("verb", self.verb))
            )
            and (not self.since or at >= self.since)
            and (not self.until or at <= self.until)
        )


def _names(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


class Printer:
    """Prints records, one a line."""

    def __init__(self, json: bool) -> None:
        from .screen import console

        self.json, self.shown = json, 0
        self._out = console()
        self._narrow, self._day = self._out.width < NARROW, ""

    def show(self, line: bytes, record: Record) -> None:
        """Print one."""
        from rich.text import Text

        if self.json:
            sys.stdout.write(line.decode(errors="backslashreplace").rstrip("\n") + "\n")
        else:
            if not self.shown:
                time_head = "UTC" if self._narrow else "time (UTC)"
                head = f"{'record':>8}  {time_head:<{self._wide}}  {'run':<6}  {'type':<14}  what"
                self._out.print(Text(head, style="bold"), no_wrap=True, overflow="ellipsis")
            kind, said = str(record["type"]), what(record)
            bad = any(record.get(name) in _BAD for name in ("verb", "outcome", "decision", "status"))
            at = self._time(str(record.get("time", "")))
            row = Text.assemble(
                (f"{short(str(record.get('seq', '')), 8):>8}  {short(at, self._wide):<{self._wide}}  ", "dim"),
                (f"{short(_bare(record.get('run_id'))[:6], 6):<6}  ", "dim"),
                (f"{short(kind, 14):<14}  ", _STYLES.get(kind, "")),
                (said, "red" if bad or kind in ("error", "lost", "no record") else ""),
            )
            self._out.print(row, no_wrap=True, overflow="ellipsis", crop=True)
        self.shown += 1

    @property
    def _wide(self) -> int:
        return 8 if self._narrow else 23

    def _time(self, at: str) -> str:
        """The time as a row has it; on a narrow screen, the date is printed when it changes."""
        from rich.text import Text

        day, _, clock = at.removesuffix("Z").partition("T")
        if not self._narrow:
            return f"{day} {clock}".strip()
        if day and day != self._day:
            self._day = day
            self._out.print(Text(f"{'':>8}  {short(day, 10)}", style="dim"), no_wrap=True)
        return clock[:8]


def what(record: Record) -> str:
    """What a record says, in one line."""
    tell = _TELL.get(str(record["type"]))
    try:
        parts = tell(record) if tell is not None else []
    except (TypeError, ValueError, KeyError):  # somebody changed it
        parts = []
    if not parts:
        parts = [f"{name}={value}" for name, value in record.items() if name not in _HEAD]
    elif text := next((str(record[name]) for name in _TEXTS if record.get(name)), ""):
        parts.append(f"“{text}”")
    return short(" · ".join(part for part in parts if part), 1000)


def _ms(value: float) -> str:
    return f"{value / 1000:.1f} s" if value >= 1000 else f"{value:.0f} ms" if value >= 10 else f"{value:.1f} ms"


def _model(r: Record) -> list[str]:
    calls = ", ".join(_names(r["tool_calls"]))
    return [
        f"{r['provider']}/{r['model']}", f"{r['input_tokens']:,} in, {r['output_tokens']:,} out",
        cost_text(r["cost"]) if r["cost"] else "", f"calls {calls}" if calls else r["finish_reason"],
        "" if r["purpose"] == "step" else r["purpose"], "" if r["verb"] == "cont" else r["verb"],
        f"attempt {r['attempt']}" if r["attempt"] > 1 else "", _ms(r["duration_ms"]),
    ]  # fmt: skip


def _end(r: Record) -> list[str]:
    why = r["hook_ended"] or (r["stop"] if r["status"] == "stopped" else "")
    tokens = r["input_tokens"] + r["output_tokens"]
    return [
        f"{r['status']} ({why})" if why else r["status"], counted(r["steps"], "step"),
        counted(r["tool_calls"], "tool call"), counted(tokens, "token"), cost_text(r["cost"]), _ms(r["elapsed_ms"]),
        counted(r["errors"], "error") if r["errors"] else "",
    ]  # fmt: skip


def _about(r: Record) -> str:
    return f"{r['hook']} {r['verb']} at {r['point']}" + (f": {r['reason']}" if r["reason"] else "")


_TELL: dict[str, Any] = {
    "run_start": lambda r: [r["agent"], f"in {r['parent_run_id']}" if r["parent_run_id"] else ""],
    "run_end": _end,
    "task": lambda r: [counted(r["chars"], "character")],
    "steered": lambda r: [counted(r["chars"], "character")],
    "model": _model,
    "verdict": lambda r: [_about(r)],
    "shadow": lambda r: [f"would have: {_about(r)}"],
    "notice": lambda r: [f"{r['kind']} at {r['point']}: {r['hook']}", r["about"]],
    "tool_start": lambda r: [r["tool"], r["call_id"]],
    "tool": lambda r: [
        f"{r['tool']} {r['outcome']}", f"attempt {r['attempt']}" if r["attempt"] > 1 else "", _ms(r["duration_ms"]),
    ],
    "approval_asked": lambda r: [f"may {r['tool']} run?", r["call_id"]],
    "approval": lambda r: [r["decision"] + (f" by {r['by']}" if r["by"] else ""), r["call_id"]],
    "stop": lambda r: [r["kind"], r["hook"]],
    "error": lambda r: [f"{r['where']}: {r['error_type']}", r["source"], "fatal" if r["fatal"] else ""],
    "auth": lambda r: [
        f"{r['decision']}: {r['name'] or r['caller'] or 'nobody'}" + (f", {r['why']}" if r["why"] else ""),
        f"{r['method']} {r['route']}", f"needs {r['right']}" if r["right"] else "", f"from {r['address']}",
    ],
    "open": lambda r: [
        f"hookline {r['version']}, process {r['pid']}", f"signed by {r['key']}" if r["key"] else "",
        f"after half a line of {r['torn']:,} bytes" if r["torn"] else "",
    ],
    "rotate": lambda r: [f"this file is {r['file']} from now on"],
    "lost": lambda r: [f"{counted(r['count'], 'record')} could not be written: {r['why']}"],
}  # fmt: skip


def _bare(run_id: Any) -> str:
    """A run's id without what all of them begin with."""
    return str(run_id or "").removeprefix("run_")


def _whole_name(record: Record) -> str:
    return f"{record.get('provider')}/{record.get('model')}"
