"""Write logs as JSON lines or as short coloured text, with the ids of the request and the run, and without secrets.

This uses the standard library and not structlog: the records of other libraries come from ``logging`` anyway, and most
of this module is redaction and bounds for odd values, which structlog leaves to its users.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar, Token
from datetime import UTC, datetime
from math import isfinite
from typing import TYPE_CHECKING, Any, Literal, TextIO, get_args

from .._base.frozen import EMPTY
from .._kernel.payloads import RunStart
from .._kernel.points import SESSION_START
from .._run.run_hooks import clean_with
from .._sensitive.assignments import is_value, name_of_secret
from .._sensitive.redactor import Redactor

if TYPE_CHECKING:
    from ..stores.approvals import ApprovalRow

approval_log = logging.getLogger("hookline.waiting")

AUDIT_LOGGER = "hookline.audit"
"""The logger of the records of the audit log, which are written as they are."""

LogFormat = Literal["auto", "json", "text"]
LOG_FORMATS: tuple[LogFormat, ...] = get_args(LogFormat)

NOISY_LIBRARIES = ("a2a", "asyncio", "httpcore", "httpcore2", "httpx", "httpx2", "mcp", "sse_starlette", "uvicorn")
"""Libraries that log whole requests and their destinations below the level of warnings."""

_MAX_MESSAGE, _MAX_NAME = 8_000, 100
_MAX_TRACE, _SCANNED_TRACE = 16_000, 200_000
_LOOKAHEAD = 1_000  # scanned beyond the limit, to find a secret that begins before it
_MAX_DEPTH, _MAX_ITEMS = 4, 50
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime"}
_RESERVED = frozenset(("time", "level", "logger", "message", "exception", "stack"))

_HEADER = r"(?i)(?<![\w-])(?:(?:proxy-)?authorization|x-api-key|(?:set-)?cookie)"
_KEY = re.compile(r"(?<![A-Za-z0-9])hl_[\w-]{16,}")
_SECRETS = Redactor(
    ["secret"],
    extra={
        "api-key": _KEY,
        "authorization": rf"{_HEADER}[\"']?\s*(?:[:=]\s*(?:b?[\"'])?|,\s*b?[\"'])"
        r"(?:digest\b[^\n]*|(?:(?:bearer|basic|negotiate|token|apikey|hmac|aws4-hmac-sha256)\s+)?[^\s\"',]{4,})",
        "bearer": r"(?i)\b(?:bearer|basic)\s+(?=[\w.~+/=-]*\d)[\w.~+/=-]{12,}",
    },
)


log_fields: ContextVar[Mapping[str, str]] = ContextVar("hookline_log_fields", default=EMPTY)
"""The log fields of the current task, inherited by the tasks and threads that it starts."""


class logging_with:  # noqa: N801 - used like a function
    """Add fields to everything logged inside a ``with`` block; empty fields are left out.

    Example::

        with logging_with(correlation_id="order-17"):
            log.info("checking the order")
    """

    def __init__(self, **fields: str) -> None:
        self._fields = {name: value for name, value in fields.items() if value}
        self._token: Token[Mapping[str, str]] | None = None

    def __enter__(self) -> None:
        self._token = log_fields.set({**log_fields.get(), **self._fields})

    def __exit__(self, *_: object) -> None:
        token, self._token = self._token, None
        if token is not None:
            with suppress(ValueError):  # a generator may be closed in another context, which does not have these fields
                log_fields.reset(token)


class LogFieldsHook:
    """Add the ids of a run to everything logged inside it, also by tools and other libraries."""

    points = frozenset({SESSION_START})
    phase = "observe"
    priority = 0

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Do nothing: only :meth:`instrument` matters."""

    def instrument(self, engine: Any, start: RunStart) -> AbstractContextManager[None]:
        """Set the log fields for the duration of a run."""
        ids = start.ids
        return logging_with(run_id=ids.run_id, task_id=ids.task_id, correlation_id=ids.correlation_id)


async def log_approval_request(row: ApprovalRow) -> None:
    """Log that a call waits for approval, and how to see it. Arguments are left out because they may be private."""
    approval_log.info("%s waits for approval of %s: hookline approvals show %s", row.root_id, row.tool, row.id[5:13])


class cleaned_for:  # noqa: N801 - used like a function
    """Inside a ``with`` block, remove from log lines what hooks declare for everything that is stored.

    Args:
        redactions: returns what the hooks of the agents of this process declare.
    """

    def __init__(self, redactions: Callable[[], Iterable[Any]]) -> None:
        self._redactions = redactions

    def __enter__(self) -> None:
        _declared.append(self._redactions)

    def __exit__(self, *_: object) -> None:
        _declared.remove(self._redactions)


_declared: list[Callable[[], Iterable[Any]]] = []


def redacted(text: str, max_length: int = _MAX_MESSAGE) -> str:
    """Remove secrets and cut the text at ``max_length``, but never through a secret."""
    seen = text[: max_length + _LOOKAHEAD]
    for redactions in _declared:
        seen = clean_with(redactions(), seen)
    if len(text) > max_length:  # what the end of the searched part cuts in two is not recognized
        max_length = max(0, min(max_length, len(seen) - _LOOKAHEAD))
    cut = _SECRETS.render(seen, _SECRETS.find(seen), 0, min(max_length, len(seen)))
    return cut if len(text) <= max_length else f"{cut}... ({len(text) - max_length:,} more characters)"


class _Formatter(logging.Formatter, ABC):
    """A formatter that never raises, so that no record is lost because of an unusual value."""

    def format(self, record: logging.LogRecord) -> str:
        """Format a record. One of the audit log is a JSON object already, whose fields have their own limits."""
        try:
            return record.getMessage() if record.name == AUDIT_LOGGER else self.write(record)
        except Exception as error:  # noqa: BLE001
            given = {"name": "hookline", "levelno": logging.ERROR, "levelname": "ERROR"}
            message = f"a record of {_text(record.name)} could not be formatted: {type(error).__name__}"
            return self.write(logging.makeLogRecord({**given, "msg": message}))

    @abstractmethod
    def write(self, record: logging.LogRecord) -> str:
        """Format a record; exceptions are handled by :meth:`format`."""


class JsonFormatter(_Formatter):
    """One line of ASCII JSON per record: time, level, logger, message, ids, ``extra`` fields and exceptions."""

    def write(self, record: logging.LogRecord) -> str:
        """Format a record as JSON."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")[:-6] + "Z",
            "level": _text(record.levelname),
            "logger": _text(record.name),
            "message": message_of(record),
            **fields_of(record),
        }
        if trace := trace_of(record):
            fields["exception"] = trace
        if record.stack_info:
            fields["stack"] = redacted(_text(record.stack_info))
        return json.dumps(_encodable(fields))


class TextFormatter(_Formatter):
    """One short line per record, with exceptions below it. Fields that the message already contains are left out."""

    _COLORS = ((logging.ERROR, "31"), (logging.WARNING, "33"), (logging.INFO, "32"), (0, "2"))

    def __init__(self, *, color: bool = False) -> None:
        super().__init__()
        self._color = color

    def write(self, record: logging.LogRecord) -> str:
        """Format a record as text."""
        time = datetime.fromtimestamp(record.created).strftime("%H:%M:%S")
        level = _printable(_text(record.levelname)).lower()
        code = next(code for least, code in self._COLORS if record.levelno >= least or not least)
        message = _printable(message_of(record))
        plain = {name: _text(value) for name, value in fields_of(record).items() if not isinstance(value, (dict, list))}
        given = {_printable(name): _printable(value) for name, value in plain.items()}
        fields = " ".join(f"{name}={value}" for name, value in given.items() if value not in message)
        source = "" if record.name.startswith("hookline") else f"{_printable(_text(record.name))}: "
        line = f"{self._colored(time, '2')} {self._colored(f'{level:<7}', code)} {source}{message}"
        below = [trace_of(record), redacted(_text(record.stack_info)) if record.stack_info else ""]
        lines = [f"    {_printable(each)}" for text in below for each in text.split("\n") if text]
        return "\n".join([f"{line}  {self._colored(fields, '2')}" if fields else line, *lines])

    def _colored(self, text: str, code: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._color else text


def setup_logs(
    kind: LogFormat = "auto",
    debug: bool = False,
    *,
    stream: TextIO | None = None,
    handler: logging.Handler | None = None,
) -> Callable[[], None]:
    """Write the logs of this program to stderr. Return a function that restores the previous configuration.

    Example::

        undo = setup_logs("json")

    Args:
        kind: ``json``, ``text``, or ``auto``: text on a terminal, otherwise JSON.
        debug: whether Hookline logs details too. Other libraries log warnings only.
        stream: a stream to write to instead of stderr.
        handler: a handler to use instead of a stream.

    Raises:
        ValueError: ``kind`` has another value.
    """
    if kind not in LOG_FORMATS:
        raise ValueError(f"the log format must be one of {', '.join(LOG_FORMATS)}, not {kind!r:.80}")
    output: TextIO = sys.stderr if stream is None else stream
    is_terminal = output.isatty()
    if kind == "auto":
        kind = "text" if is_terminal else "json"
    color = handler is None and is_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
    handler = handler or logging.StreamHandler(output)
    handler.setFormatter(JsonFormatter() if kind == "json" else TextFormatter(color=color))
    levels = {
        **dict.fromkeys(("", *NOISY_LIBRARIES), logging.WARNING),
        "hookline": logging.DEBUG if debug else logging.INFO,
    }
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
    """Return the message of a record, without secrets."""
    try:
        message = record.getMessage()
    except Exception:  # noqa: BLE001 - the arguments may not fit the format, or fail to print
        message = f"{_text(record.msg)} {_text(record.args)}"
    return redacted(message)


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """Return the ids of the request and the run, and the ``extra`` fields of a record."""
    fields = {name: _KEY.sub("[api-key]", _text(value)[:_MAX_NAME]) for name, value in log_fields.get().items()}
    for given, value in vars(record).items():
        if given not in _STANDARD:
            name = _text(given)[:_MAX_NAME]
            fields[f"{name}_" if name in _RESERVED else name] = _plain(value, name)
    return fields


def trace_of(record: logging.LogRecord) -> str:
    """Return the traceback of a record, without secrets; only the end of a long one."""
    error = _error_of(record)
    if error is None:
        return ""
    given = (type(error), error, error.__traceback__)
    trace = logging.Formatter().formatException(given)[-_SCANNED_TRACE:]
    return redacted(trace, len(trace))[-_MAX_TRACE:]


def _error_of(record: logging.LogRecord) -> BaseException | None:
    given = record.exc_info
    return given[1] if isinstance(given, tuple) and len(given) == 3 and isinstance(given[1], BaseException) else None


def _plain(value: Any, name: str = "", depth: int = 0) -> Any:
    """Convert a value to bounded JSON without secrets; unknown types become text."""
    if value is None or isinstance(value, bool):
        return value
    if (type(value) is int and abs(value) < 2**63) or (type(value) is float and isfinite(value)):
        return value
    if type(value) is str:
        return "[secret]" if name_of_secret(name) and is_value(value) else redacted(value)
    if depth < _MAX_DEPTH and isinstance(value, dict):
        items = list(value.items())[:_MAX_ITEMS]
        return {_text(key)[:_MAX_NAME]: _plain(item, _text(key), depth + 1) for key, item in items}
    if depth < _MAX_DEPTH and isinstance(value, (list, tuple)):
        return [_plain(item, name, depth + 1) for item in value[:_MAX_ITEMS]]
    return redacted(_text(value))


def _text(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001
        return f"<{type(value).__name__} that cannot be printed>"


def _encodable(value: Any) -> Any:
    """Escape lone surrogates, which strict JSON readers reject."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list) else value


def _printable(text: str) -> str:
    """Return the text in one line, with control characters escaped."""
    return text if text.isprintable() else re.sub(r"[^ -~]", _escaped, text)


def _escaped(found: re.Match[str]) -> str:
    return found[0] if found[0].isprintable() else ascii(found[0])[1:-1]
