"""Logs: a JSON object in each line for programs, or short coloured lines for people; without secrets in both."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from math import isfinite
from typing import Any, Literal, TextIO, get_args

from ..hooks._sensitive.credentials import is_value, name_of_secret
from ..hooks._sensitive.redactor import Redactor
from .log_fields import log_fields

Kind = Literal["auto", "json", "text"]
KINDS: tuple[Kind, ...] = get_args(Kind)

OTHERS = ("a2a", "asyncio", "httpcore", "httpcore2", "httpx", "httpx2", "mcp", "sse_starlette", "uvicorn")
"""Loggers of libraries that say too much below a warning: whole requests, and where they go."""

_SCANNED_TRACE, _MORE = 200_000, 1_000
_DEEPEST, _WIDEST = 4, 50
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_OURS = frozenset(("time", "level", "logger", "message", "exception", "stack"))

_HEADER = r"(?i)(?<![\w-])(?:(?:proxy-)?authorization|x-api-key|(?:set-)?cookie)"
_KEY = re.compile(r"(?<![A-Za-z0-9])hl_[\w-]{16,}")
_LONGEST, _LONGEST_TRACE, _LONGEST_NAME = 8_000, 16_000, 100
_SECRETS = Redactor(
    ["secret"],
    extra={
        "api-key": _KEY,
        "authorization": rf"{_HEADER}[\"']?\s*(?:[:=]\s*(?:b?[\"'])?|,\s*b?[\"'])"
        r"(?:digest\b[^\n]*|(?:(?:bearer|basic|negotiate|token|apikey|hmac|aws4-hmac-sha256)\s+)?[^\s\"',]{4,})",
        "bearer": r"(?i)\b(?:bearer|basic)\s+(?=[\w.~+/=-]*\d)[\w.~+/=-]{12,}",
    },
)


def redacted(text: str, longest: int = _LONGEST) -> str:
    """The text without secrets, and not longer than that; a secret that stands where it is cut is not cut in two."""
    seen = text[: longest + _MORE]
    cut = _SECRETS.render(seen, _SECRETS.find(seen), 0, min(longest, len(seen)))
    return cut if len(text) <= longest else f"{cut}... ({len(text) - longest:,} more characters)"


class _Formatter(logging.Formatter):
    """What both forms have in common. It never raises: an odd value is no reason to lose what was to be said."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as text."""
        try:
            return self.write(record)
        except Exception as error:  # noqa: BLE001
            given = {"name": "hookline", "levelno": logging.ERROR, "levelname": "ERROR"}
            said = f"a record of {_text(record.name)} could not be written: {type(error).__name__}"
            return self.write(logging.makeLogRecord({**given, "msg": said}))

    def write(self, record: logging.LogRecord) -> str:
        """The record as text, if all is well."""
        raise NotImplementedError


class JsonFormatter(_Formatter):
    """One JSON object in a line of ASCII: time, level, logger, message, the ids, ``extra`` fields, and exceptions."""

    def write(self, record: logging.LogRecord) -> str:
        """The record as a line of JSON."""
        said: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": _text(record.levelname),
            "logger": _text(record.name),
            "message": message_of(record),
            **fields_of(record),
        }
        if trace := trace_of(record):
            said["exception"] = trace
        if record.stack_info:
            said["stack"] = redacted(_text(record.stack_info))
        return json.dumps(_storable(said))


class TextFormatter(_Formatter):
    """A short line for people, with the lines of an exception below it. What the message tells is not told again."""

    _COLORS = ((logging.ERROR, "31"), (logging.WARNING, "33"), (logging.INFO, "32"), (0, "2"))

    def __init__(self, *, color: bool = False) -> None:
        super().__init__()
        self._color = color

    def write(self, record: logging.LogRecord) -> str:
        """The record as a line."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = _printable(_text(record.levelname)).lower()
        code = next(code for least, code in self._COLORS if record.levelno >= least or not least)
        said = _printable(message_of(record))
        plain = {name: _text(value) for name, value in fields_of(record).items() if not isinstance(value, (dict, list))}
        given = {_printable(name): _printable(value) for name, value in plain.items()}
        fields = " ".join(f"{name}={value}" for name, value in given.items() if value not in said)
        source = "" if record.name.startswith("hookline") else f"{_printable(_text(record.name))}: "
        line = f"{self._in(time, '2')} {self._in(f'{level:<7}', code)} {source}{said}"
        below = [trace_of(record), redacted(_text(record.stack_info)) if record.stack_info else ""]
        lines = [f"    {_printable(each)}" for text in below for each in text.split("\n") if text]
        return "\n".join([f"{line}  {self._in(fields, '2')}" if fields else line, *lines])

    def _in(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color else text


def setup_logs(
    kind: Kind = "auto", debug: bool = False, *, stream: TextIO | None = None, handler: logging.Handler | None = None
) -> Callable[[], None]:
    """Write what is logged in this program to stderr; gives a function that undoes it.

    Args:
        kind: ``json``, ``text``, or ``auto``: text at a terminal, else JSON.
        debug: whether the library tells everything. Other libraries never tell more than warnings.
        stream: where it goes instead.
        handler: gets it in place of a stream.

    Raises:
        ValueError: another kind.
    """
    if kind not in KINDS:
        raise ValueError(f"logs are {', '.join(KINDS)}, not {kind!r:.80}")
    output: TextIO = sys.stderr if stream is None else stream
    is_terminal = output.isatty()
    if kind == "auto":
        kind = "text" if is_terminal else "json"
    color = handler is None and is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler = handler or logging.StreamHandler(output)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter(color=color))
    levels = {**dict.fromkeys(("", *OTHERS), logging.WARNING), "hookline": logging.DEBUG if debug else logging.INFO}
    before = [(logger, logger.level, logger.propagate) for logger in map(logging.getLogger, levels)]
    for (logger, _, _), level in zip(before, levels.values(), strict=True):
        logger.setLevel(level)
        logger.propagate = True
    logging.getLogger().addHandler(handler)

    def undo() -> None:
        logging.getLogger().removeHandler(handler)
        while before:
            logger, level, propagate = before.pop()
            logger.setLevel(level)
            logger.propagate = propagate

    return undo


def message_of(record: logging.LogRecord) -> str:
    """What a record says, without secrets."""
    try:
        said = record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit, or cannot be printed
        said = f"{_text(record.msg)} {_text(record.args)}"
    return redacted(said)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The ids of the request and the run, and what was given as ``extra``."""
    fields = {name: _KEY.sub("[api-key]", _text(value)[:_LONGEST_NAME]) for name, value in log_fields.get().items()}
    for given, value in vars(record).items():
        if given not in _STANDARD:
            name = _text(given)[:_LONGEST_NAME]
            fields[f"{name}_" if name in _OURS else name] = _plain(value, name)
    return fields


def trace_of(record: logging.LogRecord) -> str:
    """The traceback of a record, without secrets, and the end of it if it is long."""
    error = _error_of(record)
    if error is None:
        return ""
    given = (type(error), error, error.__traceback__)
    trace = logging.Formatter().formatException(given)[-_SCANNED_TRACE:]
    return redacted(trace, len(trace))[-_LONGEST_TRACE:]


def _error_of(record: logging.LogRecord) -> BaseException | None:
    given = record.exc_info
    return given[1] if isinstance(given, tuple) and len(given) == 3 and isinstance(given[1], BaseException) else None


def _plain(value: Any, name: str = "", depth: int = 0) -> Any:
    """A value as JSON has it: bounded, without secrets, and as text if it is anything odd."""
    if value is None or isinstance(value, bool):
        return value
    if (type(value) is int and abs(value) < 2**63) or (type(value) is float and isfinite(value)):
        return value
    if type(value) is str:
        return "[secret]" if name_of_secret(name) and is_value(value) else redacted(value)
    if depth < _DEEPEST and isinstance(value, dict):
        items = list(value.items())[:_WIDEST]
        return {_text(key)[:_LONGEST_NAME]: _plain(item, _text(key), depth + 1) for key, item in items}
    if depth < _DEEPEST and isinstance(value, (list, tuple)):
        return [_plain(item, name, depth + 1) for item in value[:_WIDEST]]
    return redacted(_text(value))


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__} that cannot be printed>"


def _storable(value: Any) -> Any:
    """The same without halves of characters, which strict readers refuse."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_storable(key): _storable(item) for key, item in value.items()}
    return [_storable(item) for item in value] if isinstance(value, list) else value


def _printable(text: str) -> str:
    """The text in one line, with control characters shown and not obeyed."""
    return text if text.isprintable() else re.sub(r"[^ -~]", _shown, text)


def _shown(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else ascii(found[0])[1:-1]
