"""Run a hook in shadow mode: it reports its decisions and changes nothing."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Awaitable
from reprlib import Repr
from typing import Any

from .._base.tasks import StillRunningError, with_timeout
from .._base.text import describe, shorten
from .._kernel.errors import CallRefusedError, HookTimeoutError, InvalidResultError, RegistrationError
from .._kernel.events import Event
from .._kernel.hook import HookEntry, compile_hook
from .._kernel.results import HookAction, HookResult, parse_result
from .._kernel.scope import HOOK_CALL, HookCall, running_hooks, scope_of
from .._kernel.state import AgentState
from ..tools.registry import ToolView

log = logging.getLogger("hookline")

MAX_DECISIONS = 1000
_MAX_TEXT = 200
_FAILED = {
    "closed": "would have failed closed",
    "block": "would have failed and blocked the call",
    "open": "would have failed open",
}

_brief = Repr()
_brief.maxstring = _brief.maxother = 80
_brief.repr_FrozenDict, _brief.repr_FrozenList = _brief.repr_dict, _brief.repr_list  # type: ignore[attr-defined]


class ShadowDecided(Event, frozen=True):
    """Decision of a hook under :func:`shadow`; the verb is ``failed`` if the hook failed."""

    point: str = ""
    hook: str = ""
    verb: str = ""
    reason: str = ""
    text: str = ""

    @property
    def would(self) -> str:
        """The decision as text."""
        done = self.reason if self.verb == "failed" else f"would {self.verb}"
        because = f" ({self.reason})" if self.reason and self.verb != "failed" else ""
        return f"{done}{because}: {self.text}"


def shadow(hook: Any) -> Shadow:
    """Wrap a hook so that it runs and reports its decisions, but changes nothing.

    The wrapper has the points, phases, priorities and tools of the hook. Each decision is an event
    (:class:`ShadowDecided`), a line in the log, and one of the last 1,000 entries of ``decisions``. Side effects of the
    hook are real, such as files it writes and model calls it makes. Do not register the same object also without
    ``shadow``: both would share their state.

    Example::

        trial = shadow(PathGuard("project"))
        agent = Agent("a", llm=model, tools=[read_file], hooks=[trial])
        agent.run("Read the notes.")
        print([decision.would for decision in trial.decisions])

    Args:
        hook: a function under ``@hook`` or ``@guard``, or an object with ``points``.

    Raises:
        RegistrationError: ``hook`` is not a hook, or is an observer, which changes nothing anyway.
    """
    shadowed = Shadow(hook)
    return ShadowOfGuards(hook) if shadowed.wants_guards else shadowed


class Shadow:
    """A hook in shadow mode, made by :func:`shadow`."""

    on_failure = "open"
    holds_text = False  # its decisions have no effect

    def __init__(self, hook: Any) -> None:
        if isinstance(hook, Shadow):
            raise RegistrationError(f"{hook!r} is already in shadow mode")
        self.hook = hook
        self._entries: dict[str, HookEntry] = {}
        for entry in compile_hook(hook):
            self._entries.setdefault(entry.point, entry)  # of several phases at a point, the first one
        entries = self._entries.values()
        if all(entry.phase == "observe" for entry in entries):
            raise RegistrationError(f"{hook!r} is an observer, which changes nothing: register it without shadow()")
        self.name = f"shadow({next(iter(entries)).name})"
        self.wants_guards = any(entry.wants_guards for entry in entries)
        self.points = frozenset(self._entries)
        self.phase = {entry.point: entry.phase for entry in entries}
        self.priority = {entry.point: entry.priority for entry in entries}
        self.tools = {entry.point: entry.tools for entry in entries}
        self.plugin = {entry.point: entry.plugin for entry in entries}
        if (wrap := getattr(hook, "wrap", None)) is not None:
            self.wrap = wrap  # it sees the calls, and cannot affect them
        for name in ("check_tools", "reads_arguments"):  # of rules in a file
            if hasattr(hook, name):
                setattr(self, name, getattr(hook, name))
        self._decisions: deque[ShadowDecided] = deque(maxlen=MAX_DECISIONS)
        self._lock = threading.Lock()

    @property
    def decisions(self) -> tuple[ShadowDecided, ...]:
        """Return the last decisions, oldest first."""
        with self._lock:
            return tuple(self._decisions)

    def __repr__(self) -> str:
        return f"<{self.name} at {', '.join(sorted(self.points))}>"

    def covers(self, tool: ToolView) -> bool:
        """Whether it judges calls of a tool: it never does, because its decisions have no effect."""
        return False

    def __call__(self, point: str, ctx: Any, payload: Any) -> Awaitable[None] | None:
        """Run the hook, and report its result."""
        return self._call(point, ctx, payload)

    def _call(self, point: str, ctx: Any, payload: Any, **extras: Any) -> Awaitable[None] | None:
        if id(self.hook) in running_hooks():  # the hook itself is running here, and is not re-entered
            return None
        entry, before = self._entries[point], scope_of(ctx).state
        call = HookCall(entry.id_set, HOOK_CALL.get(), True)
        HOOK_CALL.set(call)
        try:
            result = entry.call(ctx, payload, **extras)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - every failure is only reported
            call.end()
            self._report_failure(entry, ctx, failure)
            return None
        finally:
            HOOK_CALL.set(call.outer)
        if hasattr(result, "__await__"):
            call.is_sync = False
            return self._wait(entry, ctx, payload, before, result, call)
        call.end()
        self._judge(entry, ctx, payload, before, result)
        return None

    async def _wait(
        self, entry: HookEntry, ctx: Any, payload: Any, before: AgentState, result: Awaitable[Any], call: HookCall
    ) -> None:
        HOOK_CALL.set(call)
        try:
            value = await (result if entry.timeout is None else with_timeout(entry.timeout, result))
        except StillRunningError:
            self._report_failure(entry, ctx, HookTimeoutError(f"still running after {entry.timeout:g} s"))
        except asyncio.CancelledError as failure:
            if scope_of(ctx).cancellation.is_cancelled():
                raise
            call.end()
            self._report_failure(entry, ctx, failure)
        except Exception as failure:  # noqa: BLE001 - every failure is only reported
            call.end()
            self._report_failure(entry, ctx, failure)
        else:
            call.end()
            self._judge(entry, ctx, payload, before, value)
        finally:
            if HOOK_CALL.get() is call:  # not if Python closes this coroutine in another context
                HOOK_CALL.set(call.outer)

    def _judge(self, entry: HookEntry, ctx: Any, payload: Any, before: AgentState, result: Any) -> None:
        if result is None:
            return
        try:
            decision = parse_result(result, entry.point, payload, entry.name, entry.phase)
            if decision.state is not None:
                _check_state(entry, decision.state, before, scope_of(ctx).state)
        except InvalidResultError as failure:
            self._report_failure(entry, ctx, failure)
            return
        if decision.action is not HookAction.CONT or decision.state is not None:
            self._report(entry, ctx, str(decision.action), decision.reason, _text(decision, payload))

    def _report_failure(self, entry: HookEntry, ctx: Any, failure: BaseException) -> None:
        refused = isinstance(
            failure, CallRefusedError
        )  # a model call of the hook was refused, which is not a failure of the hook
        how = "would have ended the run" if refused else _FAILED[entry.on_failure]
        self._report(entry, ctx, "failed", how, describe(failure))

    def _report(self, entry: HookEntry, ctx: Any, verb: str, reason: str, text: str) -> None:
        text = shorten(text, _MAX_TEXT)
        at, run_id = getattr(ctx, "clock", time).time(), getattr(ctx, "run_id", "")
        decided = ShadowDecided(0, at, run_id, str(entry.point), entry.name, verb, reason, text)
        with self._lock:
            self._decisions.append(decided)
        level = logging.WARNING if verb == "failed" else logging.INFO
        log.log(level, "%s at %s %s", self.name, entry.point, decided.would)
        scope_of(ctx).emit(ShadowDecided, point=decided.point, hook=entry.name, verb=verb, reason=reason, text=text)


class ShadowOfGuards(Shadow):
    """The shadow of a guard that gets the other guards of its chain, such as ``Strict`` (DESIGN 4.10)."""

    def __call__(
        self, point: str, ctx: Any, payload: Any, *, guards: tuple[HookEntry, ...] = ()
    ) -> Awaitable[None] | None:
        """Run the guard, and report its result."""
        return self._call(point, ctx, payload, guards=guards)


def _check_state(entry: HookEntry, state: AgentState, before: AgentState, now: AgentState) -> None:
    where = f"hook {entry.name!r} at {entry.point}"
    if entry.point.model != "pipeline" or entry.phase == "observe":
        raise InvalidResultError(f"{where}: state= is only for hooks that decide at a pipeline point")
    try:
        before.accept(state)
    except TypeError:
        try:
            now.accept(state)  # the hook may have read the state while it ran
        except TypeError as error:
            raise InvalidResultError(f"{where}: {error}") from error


def _text(decision: HookResult, payload: Any) -> str:
    """Describe the value of a decision in a few words."""
    parts = []
    if decision.action is HookAction.REPLACE:
        changed = [name for name in payload if getattr(decision.value, name) is not getattr(payload, name)]
        parts = [f"{name}: {_short(getattr(decision.value, name))}" for name in changed] or ["the same"]
    elif decision.value is not None:
        parts = [_short(decision.value)]
    if decision.state is not None:
        parts.append("and changes the state" if parts else "changes the state")
    return ", ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    content = getattr(value, "content", None)
    return content[:_MAX_TEXT] if isinstance(content, str) and content else _brief.repr(value)
