"""What dispatch needs of a context: the state, the event stream, and which hook is running."""

from __future__ import annotations

import asyncio
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from .state import AgentState

if TYPE_CHECKING:
    from .._base.event import Event
    from .hook import Entry

# Around the code that asks: the ids of the async hooks that are running, and the scope whose hooks fire.
ACTIVE: ContextVar[frozenset[int]] = ContextVar("hookline_active", default=frozenset())
CURRENT: ContextVar[Scope | None] = ContextVar("hookline_scope", default=None)


class Scope:
    """The part of a context that the kernel knows. ``AgentContext`` is a scope with services."""

    __slots__ = ("_state", "began", "deadline", "entry", "hook_state", "listening", "recording", "scratch", "tracing")

    def __init__(self) -> None:
        self._state: AgentState | None = None
        self.entry: Entry | None = None
        self.deadline: float | None = None
        self.listening = self.recording = self.tracing = False  # to events, of every fire, of every hook call
        self.began = 0.0
        self.hook_state: dict[int, Any] = {}
        self.scratch: dict[str, Any] = {}

    @property
    def state(self) -> AgentState:
        """The state as it is now. Hooks change it by returning ``state=``."""
        if self._state is None:
            self._state = AgentState()
        return self._state

    def accept_state(self, state: AgentState) -> None:
        """Take over a hook's ``state=``; raises ``TypeError`` where it may not change."""
        self._state = self.state.accept(state)

    def is_cancelled(self) -> bool:
        """Whether the current task is really being cancelled; a hook may raise CancelledError itself."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def hurry(self) -> None:
        """Something was cancelled: do not wait long from here on."""

    def emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Put an event into the stream. A bare scope has none."""


def entered() -> frozenset[int]:
    """Ids of all hooks that are running around the caller, sync and async, at any depth."""
    scope, active = CURRENT.get(), ACTIVE.get()
    if scope is not None and scope.entry is not None:
        return active | {id(scope.entry.hook)}
    return active
