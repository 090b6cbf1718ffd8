"""A hook on trial: it runs, and only tells what it would have done."""

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
from .._kernel.hook import Entry, compile_hook
from .._kernel.results import HookAction, HookResult, parse_result
from .._kernel.scope import ACTIVE, running_hooks
from .._kernel.state import AgentState

log = logging.getLogger("hookline")

KEPT = 1000
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
    """What a hook under :func:`shadow` would have done; its verb is ``failed`` if it would have failed."""

    point: str = ""
    hook: str = ""
    verb: str = ""
    reason: str = ""
    text: str = ""

    @property
    def would(self) -> str:
        """The decision in words."""
        done = self.reason if self.verb == "failed" else f"would {self.verb}"
        because = f" ({self.reason})" if self.reason and self.verb != "failed" else ""
        return f"{done}{because}: {self.text}"


def shadow(hook: Any) -> Shadow:
    """A hook that runs the given one, reports what it would have done, and changes nothing.

    It fires where the given hook would: same points, phases, priorities and tools. Each decision is an event
    (:class:`ShadowDecided`), a line in the log, and one of the last 1,000 in ``decisions``. What the hook does besides
    deciding is real: what it writes, and what it asks of a model. Give it an object of its own, not one that is
    registered too: they would share their state.

    Args:
        hook: a hook that decides: a function under ``@hook`` or ``@guard``, or an object with ``points``.

    Raises:
        RegistrationError: it is no hook, or an observer, which changes nothing anyway.
    """
    return Shadow(hook)


class Shadow:
    """What :func:`shadow` makes."""

    on_failure = "open"

    def __init__(self, hook: Any) -> None:
        if isinstance(hook, Shadow):
            raise RegistrationError(f"{hook!r} is a shadow already")
        self.hook = hook
        self._entries: dict[str, Entry] = {entry.point: entry for entry in compile_hook(hook)}
        entries = self._entries.values()
        if all(entry.phase == "observe" for entry in entries):
            raise RegistrationError(f"{hook!r} only observes, which changes nothing: register it as it is")
        self.name = f"shadow({next(iter(entries)).name})"
        self.points = frozenset(self._entries)
        self.phase = {entry.point: entry.phase for entry in entries}
        self.priority = {entry.point: entry.priority for entry in entries}
        self.tools = {entry.point: entry.tools for entry in entries}
        self.plugin = {entry.point: entry.plugin for entry in entries}
        self._decisions: deque[ShadowDecided] = deque(maxlen=KEPT)
        self._lock = threading.Lock()

    @property
    def decisions(self) -> tuple[ShadowDecided, ...]:
        """The last decisions, oldest first."""
        with self._lock:
            return tuple(self._decisions)

    def __repr__(self) -> str:
        return f"<{self.name} at {', '.join(sorted(self.points))}>"

    def __call__(self, point: str, ctx: Any, payload: Any) -> Awaitable[None] | None:
        """Run the hook and report what it returns."""
        if id(self.hook) in running_hooks():  # it is running around this for real, and is never entered again
            return None
        entry, before = self._entries[point], ctx.state
        token = ACTIVE.set(ACTIVE.get() | entry.id_set)
        try:
            result = entry.call(ctx, payload)
        except (Exception, asyncio.CancelledError) as failure:  # noqa: BLE001 - whatever it is, it is only reported
            self._report_failure(entry, ctx, failure)
            return None
        finally:
            ACTIVE.reset(token)
        if hasattr(result, "__await__"):
            return self._wait(entry, ctx, payload, before, result)
        self._judge(entry, ctx, payload, before, result)
        return None

    async def _wait(self, entry: Entry, ctx: Any, payload: Any, before: AgentState, result: Awaitable[Any]) -> None:
        token = ACTIVE.set(ACTIVE.get() | entry.id_set)
        try:
            said = await (result if entry.timeout is None else with_timeout(entry.timeout, result))
        except StillRunningError:
            self._report_failure(entry, ctx, HookTimeoutError(f"still running after {entry.timeout:g} s"))
        except asyncio.CancelledError as failure:
            if ctx.is_cancelled():
                raise
            self._report_failure(entry, ctx, failure)
        except Exception as failure:  # noqa: BLE001 - whatever it is, it is only reported
            self._report_failure(entry, ctx, failure)
        else:
            self._judge(entry, ctx, payload, before, said)
        finally:
            ACTIVE.reset(token)

    def _judge(self, entry: Entry, ctx: Any, payload: Any, before: AgentState, result: Any) -> None:
        if result is None:
            return
        try:
            said = parse_result(result, entry.point, payload, entry.name, entry.phase)
            if said.state is not None:
                _check_state(entry, said.state, before, ctx.state)
        except InvalidResultError as failure:
            self._report_failure(entry, ctx, failure)
            return
        if said.action is not HookAction.CONTINUE or said.state is not None:
            self._report(entry, ctx, str(said.action), said.reason, _text(said, payload))

    def _report_failure(self, entry: Entry, ctx: Any, failure: BaseException) -> None:
        refused = isinstance(failure, CallRefusedError)  # a model call that it made, which is not its own failure
        how = "would have ended the run" if refused else _FAILED[entry.on_failure]
        self._report(entry, ctx, "failed", how, describe(failure))

    def _report(self, entry: Entry, ctx: Any, verb: str, reason: str, text: str) -> None:
        text = shorten(text, _MAX_TEXT)
        at, run_id = getattr(ctx, "clock", time).time(), getattr(ctx, "run_id", "")
        decided = ShadowDecided(0, at, run_id, str(entry.point), entry.name, verb, reason, text)
        with self._lock:
            self._decisions.append(decided)
        level = logging.WARNING if verb == "failed" else logging.INFO
        log.log(level, "%s at %s %s", self.name, entry.point, decided.would)
        ctx.emit(ShadowDecided, point=decided.point, hook=entry.name, verb=verb, reason=reason, text=text)


def _check_state(entry: Entry, state: AgentState, before: AgentState, now: AgentState) -> None:
    where = f"hook {entry.name!r} at {entry.point}"
    if entry.point.model != "pipeline" or entry.phase == "observe":
        raise InvalidResultError(f"{where}: state= is for hooks that decide at a pipeline point")
    try:
        before.accept(state)
    except TypeError:
        try:
            now.accept(state)  # it may have read the state while it ran
        except TypeError as error:
            raise InvalidResultError(f"{where}: {error}") from error


def _text(said: HookResult, payload: Any) -> str:
    """The value of a verb in a few words."""
    parts = []
    if said.action is HookAction.MODIFY:
        changed = [name for name in payload if getattr(said.value, name) is not getattr(payload, name)]
        parts = [f"{name}: {_short(getattr(said.value, name))}" for name in changed] or ["the same"]
    elif said.value is not None:
        parts = [_short(said.value)]
    if said.state is not None:
        parts.append("and changes the state" if parts else "changes the state")
    return ", ".join(parts)


def _short(value: Any) -> str:
    if isinstance(value, str):
        return value[:_MAX_TEXT]
    content = getattr(value, "content", None)
    return content[:_MAX_TEXT] if isinstance(content, str) and content else _brief.repr(value)
