"""What people are told of a tool call while it goes on: one short line each time."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from .._base.text import duration_text
from .._kernel.payloads import ToolCallRequest, ToolCallResult

_NAME, _VALUE, _NOTE = 80, 60, 200
_ARGUMENTS = 4


def started_text(request: ToolCallRequest) -> str:
    """``read_file: notes.txt``: the tool, and what it is called with."""
    about = _about(request.arguments)
    again = f" (attempt {request.attempt})" if request.attempt > 1 else ""
    return f"{_line(request.name, _NAME)}{f': {about}' if about else ' started'}{again}"


def progressed_text(request: ToolCallRequest, note: str, fraction: float | None) -> str:
    """``shell: half way (50%)``: what the tool says, and how far it is."""
    name, note = _line(request.name, _NAME), _line(note, _NOTE)
    if fraction is None:
        return f"{name}: {note}" if note else f"{name} is running"
    return f"{name}: {note} ({fraction:.0%})" if note else f"{name}: {fraction:.0%}"


def ended_text(result: ToolCallResult, *, ran: bool, by: str = "", denied: bool = False) -> str:
    """``read_file finished in 0.2 s``: how it ended. It tells nothing of the result, which hooks may still change.

    Args:
        result: how the call ended.
        ran: whether the tool was called at all.
        by: the hook or person that blocked, denied or answered the call.
        denied: whether that was an approver.
    """
    name, someone = _line(result.name, _NAME), f" by {_line(by, _NAME)}" if by else ""
    match result.outcome:
        case "ok":
            return f"{name} finished in {duration_text(result.duration)}"
        case "error":
            return f"{name} failed after {duration_text(result.duration)}" if ran else f"{name} could not be called"
        case "blocked":
            return f"{name} was {'denied' if denied else 'blocked'}{someone}"
        case "answered":
            return f"{name} was answered{someone}"
    return f"{name} was cancelled" + (f" after {duration_text(result.duration)}" if ran else "")


def _about(arguments: Mapping[str, Any]) -> str:
    """The arguments that say something, in a few words, however many and large they are."""
    arguments = {name: value for name, value in arguments.items() if value is not None and value != ""}
    if len(arguments) == 1:
        return _line(_value(next(iter(arguments.values()))), _VALUE)
    some = [f"{name}={_value(value)[:_VALUE]}" for name, value in islice(arguments.items(), _ARGUMENTS)]
    return _line(", ".join(some), 2 * _VALUE) + (", …" if len(arguments) > _ARGUMENTS else "")


def _value(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, (Mapping, list, tuple)):
        return f"{len(value)} {'fields' if isinstance(value, Mapping) else 'items'}"
    return str(value).lower()[:_VALUE]


def _line(text: str, width: int) -> str:
    """The text as one line of at most ``width`` characters that can all be shown."""
    text = " ".join(text.split()) if len(text) <= width else f"{' '.join(text[: width - 1].split())}…"
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)
