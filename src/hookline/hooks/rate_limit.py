"""Limit the number of tool calls per run and its subagents, per tool and per minute."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import ceil
from typing import Any, ClassVar

import msgspec

from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest
from .._kernel.points import AFTER_TOOL, BEFORE_TOOL
from .._kernel.results import HookResult
from .._kernel.validation import check_integer
from .._run.sources import real_clock

_MINUTE = 60.0


_Key = tuple[str, str, int]
"""A call: its run, its id and its attempt."""


class _AllowedCall(msgspec.Struct):
    """A call that was allowed: its tool and its step."""

    tool: str
    hop: int


class RateLimitHook:
    """Blocks tool calls above a limit per run, per tool or per minute.

    A run and the runs nested in it, such as those of subagents, are counted together.
    The model gets the reason and may continue without the call. Calls that a hook blocks or answers do not count. An
    edited call counts once; each retry counts again.

    Args:
        max_calls_per_run: maximum number of calls in one run and its subagents; ``None`` for no limit.
        per_tool: maximum number of calls of each tool in them, or a mapping from globs of tool names to such
            numbers; if several globs match, the lowest number applies.
        per_minute: maximum number of calls in any 60 seconds, in all runs that share this hook.

    Raises:
        RegistrationError: a limit is not a whole number above 0, or there is no limit.
    """

    points = frozenset({BEFORE_TOOL, AFTER_TOOL})
    phase: ClassVar[Mapping[str, str]] = {BEFORE_TOOL: "guard", AFTER_TOOL: "observe"}
    priority = 200

    def __init__(
        self,
        max_calls_per_run: int | None = 50,
        *,
        per_tool: int | Mapping[str, int] | None = None,
        per_minute: int | None = None,
    ) -> None:
        for value, name in ((max_calls_per_run, "max_calls_per_run"), (per_minute, "per_minute")):
            if value is not None:
                check_integer(value, name)
        if per_tool is not None and not isinstance(per_tool, Mapping):
            per_tool = {"*": per_tool}
        self.per_tool: dict[str, int] = dict(per_tool or {})
        for glob, value in self.per_tool.items():
            if not isinstance(glob, str) or not glob:
                raise RegistrationError(
                    f"per_tool must be a number, or a mapping from globs of tool names to numbers, not {glob!r}"
                )
            check_integer(value, f"per_tool of {glob!r}")
        if max_calls_per_run is None and per_minute is None and not self.per_tool:
            raise RegistrationError("give a limit: max_calls_per_run=, per_tool= or per_minute=")
        self.max_calls_per_run, self.per_minute = max_calls_per_run, per_minute
        self._window: dict[_Key, float] = {}  # time of each allowed call, oldest first
        self._lock = threading.Lock()

    async def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Count a call before it runs, and undo the count if it did not run."""
        with self._lock:
            allowed: dict[_Key, _AllowedCall] = ctx.tree_state.setdefault(id(self), {})
            key = ctx.run_id, payload.id, payload.attempt
            if point != BEFORE_TOOL:
                if payload.outcome in ("blocked", "answered"):
                    self._uncount(key, allowed)
                return None
            if key in allowed:  # the call was edited
                return None
            problem = self._judge(ctx, payload, allowed)
            if not problem:
                allowed[key] = _AllowedCall(payload.name, payload.hop)
        if not problem and self.per_minute is not None:
            # The calls of other runs count too, so a run that continues in another process must not count again.
            problem = await ctx.once(
                "calls in a minute", lambda: self._count_in_minute(key, real_clock(ctx.clock).monotonic())
            )
            if problem:
                with self._lock:
                    self._uncount(key, allowed)
        if not problem:
            return None
        again = " This call has run and is not retried." if payload.attempt > 1 else ""
        return HookResult.block(f"Rate limit exceeded: {problem}{again}", reason="rate limit")

    def _judge(self, ctx: Any, request: ToolCallRequest, allowed: dict[_Key, _AllowedCall]) -> str:
        """Return the limit of the run that one more call would exceed, or an empty text."""
        if request.attempt == 1:  # no call of its batch has run yet: calls that are already blocked will not run
            for error in ctx.state.errors if allowed else ():
                blocked = ctx.run_id, error.call_id, 1
                before = allowed.get(blocked) if error.type == "Blocked" else None
                if before is not None and before.hop == request.hop:
                    self._uncount(blocked, allowed)
        tool = request.name
        if self.max_calls_per_run is not None and len(allowed) >= self.max_calls_per_run:
            return f"{len(allowed) + 1}/{self.max_calls_per_run} tool calls."
        limits = [limit for glob, limit in self.per_tool.items() if fnmatchcase(tool, glob)]
        if limits:
            count = sum(call.tool == tool for call in allowed.values()) + 1
            if count > min(limits):
                return f'{count}/{min(limits)} calls of "{tool}".'
        return ""

    def _count_in_minute(self, key: _Key, now: float) -> str:
        """Count a call of the last minute, or return the limit that it would exceed."""
        assert self.per_minute is not None
        with self._lock:
            while self._window and next(iter(self._window.values())) <= now - _MINUTE:
                del self._window[next(iter(self._window))]
            count = len(self._window) + 1
            if count > self.per_minute:
                oldest = next(iter(self._window.values()))
                wait = max(1, ceil(oldest + _MINUTE - now))
                return f"{count}/{self.per_minute} tool calls in a minute. Try again in {wait} s."
            self._window[key] = now
            return ""

    def _uncount(self, key: _Key, allowed: dict[_Key, _AllowedCall]) -> None:
        allowed.pop(key, None)
        self._window.pop(key, None)
