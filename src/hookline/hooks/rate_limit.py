"""A guard that limits how many tool calls run, in a run and in a minute."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from fnmatch import fnmatchcase
from math import ceil
from typing import Any, ClassVar

import msgspec

from .._kernel.errors import RegistrationError
from .._kernel.payloads import ToolCallRequest, ToolCallResult
from .._kernel.points import AFTER_TOOL, BEFORE_TOOL
from .._kernel.results import HookResult
from ._support.validation import check_integer

_MINUTE = 60.0


class _Passed(msgspec.Struct):
    """A call that was let pass: which tool, and in which step."""

    tool: str
    hop: int


class RateLimitHook:
    """Blocks tool calls past a number of calls in a run, of one tool, or in a minute.

    The model is told and may go on without the call. Calls that some hook blocks or answers do not count; an
    edited call counts once, a retried one again.

    Args:
        max_calls_per_run: how many calls may run in one run; ``None`` for any number.
        per_tool: how many calls of each tool may run in one run, or a mapping of globs of tool names to
            such numbers; where several globs match, the lowest number holds.
        per_minute: how many calls may run in any 60 seconds, in all runs that share this hook.

    Raises:
        RegistrationError: a limit that is no whole number above 0, or no limit at all.
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
                raise RegistrationError(f"per_tool is a number, or maps globs of tool names to numbers; not {glob!r}")
            check_integer(value, f"per_tool of {glob!r}")
        if max_calls_per_run is None and per_minute is None and not self.per_tool:
            raise RegistrationError("name a limit: max_calls_per_run=, per_tool= or per_minute=")
        self.max_calls_per_run, self.per_minute = max_calls_per_run, per_minute
        self._window: dict[tuple[str, str, int], float] = {}  # when a call passed, oldest first
        self._lock = threading.Lock()

    def __call__(self, point: str, ctx: Any, payload: Any) -> HookResult | None:
        """Judge one call before it runs; give its place back if it did not."""
        with self._lock:
            passed: dict[tuple[str, int], _Passed] = ctx.hook_state.setdefault(id(self), {})
            if point == BEFORE_TOOL:
                return self._judge(ctx, payload, passed)
            self._settle(ctx, payload, passed)
            return None

    def _judge(self, ctx: Any, request: ToolCallRequest, passed: dict[tuple[str, int], _Passed]) -> HookResult | None:
        key = request.id, request.attempt
        if key in passed:  # it was edited
            return None
        if request.attempt == 1:  # none of its batch has run: what is blocked by now will not
            for error in ctx.state.errors if passed else ():
                before = passed.get((error.call_id, 1)) if error.type == "Blocked" else None
                if before is not None and before.hop == request.hop:
                    self._forget(ctx, (error.call_id, 1), passed)
        now = ctx.clock.monotonic()
        problem = self._problem(request.name, passed, now)
        if problem:
            again = " This call has run and does not run again." if request.attempt > 1 else ""
            return HookResult.block(f"Rate limit exceeded: {problem}{again}", reason="rate limit")
        passed[key] = _Passed(request.name, request.hop)
        if self.per_minute is not None:
            self._window[ctx.run_id, *key] = now
        return None

    def _problem(self, tool: str, passed: dict[tuple[str, int], _Passed], now: float) -> str:
        """The limit that one more call would go past."""
        if self.max_calls_per_run is not None and len(passed) >= self.max_calls_per_run:
            return f"{len(passed) + 1}/{self.max_calls_per_run} tool calls."
        limits = [limit for glob, limit in self.per_tool.items() if fnmatchcase(tool, glob)]
        if limits:
            count = sum(call.tool == tool for call in passed.values()) + 1
            if count > min(limits):
                return f'{count}/{min(limits)} calls of "{tool}".'
        if self.per_minute is not None:
            while self._window and next(iter(self._window.values())) <= now - _MINUTE:
                del self._window[next(iter(self._window))]
            count = len(self._window) + 1
            if count > self.per_minute:
                oldest = next(iter(self._window.values()))
                wait = max(1, ceil(oldest + _MINUTE - now))
                return f"{count}/{self.per_minute} tool calls in a minute. Try again in {wait} s."
        return ""

    def _settle(self, ctx: Any, result: ToolCallResult, passed: dict[tuple[str, int], _Passed]) -> None:
        if result.outcome in ("blocked", "answered"):
            self._forget(ctx, (result.id, result.attempt), passed)

    def _forget(self, ctx: Any, key: tuple[str, int], passed: dict[tuple[str, int], _Passed]) -> None:
        passed.pop(key, None)
        self._window.pop((ctx.run_id, *key), None)
