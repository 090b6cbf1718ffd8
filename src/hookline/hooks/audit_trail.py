"""Keep a list of tool calls in memory."""

from __future__ import annotations

import threading
from collections import deque
from datetime import UTC, datetime
from typing import Any

from .._kernel.payloads import ToolCallResult
from .._kernel.points import AFTER_TOOL
from .._kernel.validation import check_integer


class AuditTrailHook:
    """Keeps a record of every tool call in memory, including blocked and failed calls.

    An entry has ``tool``, ``timestamp`` (ISO 8601, UTC), ``blocked``, ``outcome``, ``run_id``, ``call_id``,
    ``attempt`` and ``duration`` in seconds. All agents that share the hook write to the same list.

    Example::

        trail = AuditTrailHook()
        agent = Agent("a", llm=model, tools=[search], hooks=[trail])
        agent.run("Look it up.")
        print(trail.log[0]["tool"], trail.log[0]["outcome"])

    Args:
        max_entries: maximum number of entries; the oldest are dropped.

    Raises:
        RegistrationError: ``max_entries`` is not a whole number above 0.
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
        """Return a copy of the entries, oldest first."""
        with self._lock:
            return [dict(entry) for entry in self._entries]

    def get_log(self) -> list[dict[str, Any]]:
        """Return the same as :attr:`log`."""
        return self.log
