"""The engine's side of a fire, and the context that hooks are given where there is no run."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol

from .state import AgentState

if TYPE_CHECKING:
    from .._kernel.events import Event
    from .hook import Entry

ACTIVE: ContextVar[frozenset[int]] = ContextVar("hookline_active", default=frozenset())
"""Ids of the async hooks that are running around the current code."""
CURRENT: ContextVar[Scope | None] = ContextVar("hookline_scope", default=None)
"""The scope whose hooks or tools are running: how nested runs find the run they are in."""


class BaseContext:
    """What a hook gets as ``ctx`` when a point is fired outside a run. ``AgentContext`` adds the services of a run.

    It only shows: a hook changes something by returning a verb. ``scratch`` and ``hook_state`` are the user's.
    """

    __slots__ = ("_hook_state", "_scope", "_scratch")
    _scope: Scope | None

    def __init__(self) -> None:
        self._hook_state: dict[int, Any] = {}
        self._scratch: dict[str, Any] = {}
        self._scope = None

    @property
    def hook_state(self) -> dict[int, Any]:
        """A hook's own state for this run, under ``id(self)``."""
        return self._hook_state

    @property
    def scratch(self) -> dict[str, Any]:
        """A scratchpad for the user's hooks and tools; the framework never writes to it."""
        return self._scratch

    @property
    def state(self) -> AgentState:
        """The state as it is now. Hooks change it by returning ``state=``."""
        return scope_of(self).state


class Cancellable(Protocol):
    """What dispatch asks about cancellation."""

    deadline: float | None
    """When hooks must have finished, by the monotonic clock; ``None`` until something was cancelled."""

    def is_cancelled(self) -> bool:
        """Whether the current task is really being cancelled; a hook may raise CancelledError itself."""
        ...

    def start_grace_period(self) -> None:
        """Give the hooks that follow only a short time."""
        ...


class _Unlimited:
    """Outside a run nobody sets a deadline."""

    deadline: float | None = None

    def is_cancelled(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def start_grace_period(self) -> None:
        pass


_UNLIMITED = _Unlimited()


class Emit(Protocol):
    """Puts an event of a type, with these fields, into the stream of a run."""

    def __call__(self, kind: type[Event], /, **fields: Any) -> None:
        """Make the event, if anybody wants it."""
        ...


def _drop(kind: type[Event], /, **fields: Any) -> None:
    """Outside a run nobody hears of events."""


class Scope:
    """What dispatch needs besides the hooks: their context, the state, events, and whether to hurry.

    Hooks never get it. A run's engine is one; this base class serves fires outside a run.
    """

    recording = False
    """Whether somebody wants a record of every fire."""
    tracing = False
    """Whether somebody wants a record of every hook call."""

    def __init__(self, ctx: Any, state: AgentState | None = None, emit: Emit = _drop) -> None:
        self.ctx: Any = ctx
        self.emit: Emit = emit
        """Puts an event into the stream of the run, if there is one."""
        self.cancellation: Cancellable = _UNLIMITED
        self.entry: Entry | None = None
        """The sync hook that is running now."""
        self._state = state

    @property
    def state(self) -> AgentState:
        """The state as it is now."""
        if self._state is None:
            self._state = AgentState()
        return self._state

    def accept_state(self, state: object) -> None:
        """Take over a hook's ``state=``.

        Raises:
            TypeError: it changes something that hooks may not change.
        """
        self._state = self.state.accept(state)


def scope_of(ctx: Any) -> Scope:
    """The scope behind a context; a fresh one for an object that is no context of ours."""
    if ctx is None:
        ctx = BaseContext()
    if not isinstance(ctx, BaseContext):
        return Scope(ctx)
    if ctx._scope is None or ctx._scope.ctx is None:  # there was no run yet, or it is over
        ctx._scope = Scope(ctx, None if ctx._scope is None else ctx._scope.state)
    return ctx._scope


def running_hooks() -> frozenset[int]:
    """Ids of all hooks that are running around the caller, sync and async, at any depth."""
    scope, active = CURRENT.get(), ACTIVE.get()
    if scope is not None and scope.entry is not None:
        return active | {id(scope.entry.hook)}
    return active


def is_being_closed(scope: Scope) -> bool:
    """Whether a GeneratorExit means that the coroutine is being closed, so that nothing can be awaited any more.

    A coroutine is closed by whoever drops it, outside the context of its run; a hook or tool that raises
    GeneratorExit itself does so inside it.
    """
    return CURRENT.get() is not scope
