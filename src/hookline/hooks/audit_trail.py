"""A record of tool calls, in memory."""

from __future__ import annotations

import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any

from .._kernel.payloads import ToolCallResult
from .._kernel.points import AFTER_TOOL
from ._support.validation import check_integer


class AuditTrailHook:
    """Keeps a record of every tool call in memory, the blocked and failed ones too.

    An entry has ``tool``, ``timestamp`` (ISO 8601, UTC), ``blocked``, ``outcome``, ``run_id``, ``call_id``,
    ``attempt`` and ``duration`` in seconds. All runs of all agents that share the hook write to one record.

    Args:
        max_entries: beyond this, the oldest entries are dropped.

    Raises:
        RegistrationError: a maximum that is no whole number above 0.
    """

    points = frozenset({AFTER_TOOL})
    phase = "observe"

    def __init__(self, max_entries: int = 10_000) -> None:
        self._entries: deque[dict[str, Any]] = deque(maxlen=check_integer(max_entries, "max_entries"))
        self._lock = threading.Lock()

    def __call__(self, point: str, ctx: Any, result: ToolCallResult) -> None:
        """Record one call."""
        entry = {
            "tool": result.name,
            "timestamp": datetime.fromtimestamp(ctx.clock.time(), UTC).isoformat(),
            "blocked": result.outcome == "blocked",
            "outcome": result.outcome,
            "run_id": ctx.run_id,
            "call_id": result.id,
            "attempt": result.attempt,
            "duration": result.duration,
        }
        with self._lock:
            self._entries.append(entry)

    @property
    def log(self) -> list[dict[str, Any]]:
        """A copy of the entries, oldest first."""
        with self._lock:
            return [dict(entry) for entry in self._entries]

    def get_log(self) -> list[dict[str, Any]]:
        """The same as :attr:`log`."""
        return self.log
