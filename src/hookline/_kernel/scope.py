"""The scope of a fire: the data that dispatch needs besides the hooks, and the context of hooks outside a run."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from inspect import ismethod
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, get_origin, is_typeddict

import msgspec

from .._base.tasks import with_timeout
from .errors import HookTimeoutError
from .fire_observers import NO_FIRE_OBSERVERS
from .state import AgentState

if TYPE_CHECKING:
    from .events import Emit, Event
    from .hook import HookEntry
    from .results import Verdict

T = TypeVar("T")

NO_HOOKS: frozenset[int] = frozenset()


class HookCall(msgspec.Struct, eq=False, gc=False):
    """A call of a hook. When the hook has returned, ``hooks`` is empty.

    A call that was interrupted, by its timeout or a cancellation, is never emptied: its thread may still be running.
    """

    hooks: frozenset[int]
    """The id of the hook while it is running; for a nested run, the ids of all hooks that ran at its start."""
    outer: HookCall | None = None
    """The call of another hook that caused this one."""
    is_sync: bool = False

    def end(self, failure: BaseException | None = None) -> None:
        """Mark the call as ended, unless it was interrupted by its timeout."""
        if not isinstance(failure, HookTimeoutError):
            self.hooks = NO_HOOKS


HOOK_CALL: ContextVar[HookCall | None] = ContextVar("hookline_hook_call", default=None)
"""The hook that has called or started the current code. Each task and each thread has its own value: another thread
of the same run is not inside of a hook that happens to be running meanwhile."""
CURRENT: ContextVar[Scope | None] = ContextVar("hookline_scope", default=None)
"""The run whose hooks or tools are running. A nested run finds its outer run here."""
FIRED: ContextVar[Scope | None] = ContextVar("hookline_fired", default=None)
"""The scope of a fire that belongs to no run. The run that encloses it is still ``CURRENT``."""


_MISSING = object()


class HookState(dict[int, Any]):
    """The state of the hooks during one run, by the id of the hook."""

    __slots__ = ("_hooks",)

    def __init__(self) -> None:
        super().__init__()
        self._hooks: list[object] = []
        """The hooks that have a state, so that no other hook gets the id of one of them during the run."""

    def own(self, hook: object, factory: Callable[[], T]) -> T:
        """Return the state of a hook; see :meth:`BaseContext.own_state`."""
        state = self.get(id(hook), _MISSING)
        if state is _MISSING:
            return self._create(hook, factory)
        kind = dict if is_typeddict(factory) else get_origin(factory) or factory
        if isinstance(kind, type) and not isinstance(state, kind):
            raise TypeError(
                f"the state of the hook {hook!r:.80} in this run is a {type(state).__name__}, not a {kind.__name__}: "
                "a hook has one state, so give the same class to each own_state(hook, ...)"
            )
        return state  # type: ignore[no-any-return]

    def _create(self, hook: object, factory: Callable[[], T]) -> T:
        if isinstance(hook, int) or ismethod(getattr(hook, "fn", hook)):  # another object in the next call
            raise TypeError(f"own_state(hook, factory) takes the hook itself, such as self, not {hook!r:.80}")
        if not callable(factory):
            raise TypeError(f"own_state(hook, factory) takes a class or a function, such as dict, not {factory!r:.80}")
        state = self.setdefault(id(hook), factory())  # a hook with a timeout may do this in two threads at once
        self._hooks.append(hook)
        return state  # type: ignore[no-any-return]


class BaseContext:
    """The ``ctx`` of a hook when a point is fired outside a run. ``AgentContext`` adds the services of a run.

    It is read-only: a hook changes a run by returning a verb. Only ``scratch`` and the state of hooks
    may be written.
    """

    __slots__ = ("_hook_state", "_scope", "_scratch")
    _scope: Scope | None

    def __init__(self) -> None:
        self._hook_state = HookState()
        self._scratch: dict[str, Any] = {}
        self._scope = None

    @property
    def hook_state(self) -> dict[int, Any]:
        """Storage for the state of a hook during this run, under the key ``id(self)``; see :meth:`own_state`."""
        return self._hook_state

    def own_state(self, hook: object, factory: Callable[[], T]) -> T:
        """Return the state of a hook during this run. ``factory()`` creates it when the hook first asks for it.

        The state is that of ``hook_state[id(hook)]``: new for each run, and private to one hook. Both hooks and tools
        may call this.

        Args:
            hook: the hook: ``self``, or for a function its name.
            factory: a class, or a function that returns the state.

        Raises:
            TypeError: the state exists and is not an instance of this class.

        Example:
            >>> used = ctx.own_state(self, Counter[str])
            >>> used[request.name] += 1
        """
        return self._hook_state.own(hook, factory)

    @property
    def tree_state(self) -> dict[int, Any]:
        """Storage for the state of a hook during this run and all runs nested in it, under the key ``id(self)``."""
        return self._hook_state

    @property
    def scratch(self) -> dict[str, Any]:
        """A dict that hooks and tools share. The framework never writes to it."""
        return self._scratch

    def _enter(self) -> AbstractContextManager[None]:
        """Make the current code part of the run or tool call of this context, for its recording."""
        return nullcontext()

    @property
    def state(self) -> AgentState:
        """The current state. Hooks change it by returning ``state=``."""
        return scope_of(self).state


class Cancellable(Protocol):
    """The part of a cancellation that dispatch needs."""

    deadline: float | None
    """Monotonic time at which hooks must have finished; ``None`` before a cancellation."""

    def is_cancelled(self) -> bool:
        """Whether the current task is being cancelled; a hook may also raise CancelledError itself."""
        ...

    def start_grace_period(self) -> None:
        """Limit the time of all hooks that follow."""
        ...


class _Unlimited:
    """The cancellation of a fire outside a run: there is no deadline."""

    deadline: float | None = None

    def is_cancelled(self) -> bool:
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0

    def start_grace_period(self) -> None:
        pass


_UNLIMITED = _Unlimited()


def _drop(kind: type[Event], /, **fields: Any) -> None:
    """Discard the event: there is no run, and so no stream."""


class HookBoundary:
    """Awaits async hooks and calls observers. A recording notes how that ended; a replay repeats it (DESIGN 6.11)."""

    is_direct = True
    """Whether nothing is recorded or repeated."""

    def await_hook(
        self, firing: Any, hook: HookEntry, result: Awaitable[Any], limit: float | None, is_grace: bool
    ) -> Awaitable[Any]:
        """Return the result of an async hook.

        Args:
            firing: the fire, a ``Firing``.
            hook: the hook.
            result: what it returned.
            limit: its time limit in seconds.
            is_grace: whether the limit is the grace period after a cancellation.

        Raises:
            StillRunningError: the hook exceeded its time limit: now, or in the recording that is repeated.
        """
        return with_timeout(limit, result, is_grace)

    def call_observers(self, firing: Any, verdict: Verdict) -> Awaitable[None]:
        """Call the observers of a fire, unless they have been called before."""
        calls: Awaitable[None] = firing.call_observers(firing.chain.observers, verdict)
        return calls


_DIRECT = HookBoundary()


class Scope:
    """The context, state, events and cancellation of a fire. Hooks never get it.

    The engine of a run is a scope; this base class is used outside a run.
    """

    # Every step reads many of these. A run has more attributes than Python keeps in its fast form without slots.
    __slots__ = (
        "__weakref__",
        "_state",
        "boundary",
        "cancellation",
        "ctx",
        "emit",
        "ended_run",
        "fire_observers",
        "has_consumers",
    )
    is_run = False

    def __init__(self, ctx: Any, state: AgentState | None = None, emit: Emit = _drop) -> None:
        self.ctx: Any = ctx
        self.emit: Emit = emit
        """Adds an event to the stream of the run, if there is a run."""
        self.has_consumers = emit is not _drop
        """Whether a consumer wants any events."""
        self.fire_observers = NO_FIRE_OBSERVERS
        """Watch the fires of this scope."""
        self.boundary: HookBoundary = _DIRECT
        self.cancellation: Cancellable = _UNLIMITED
        self.ended_run: Scope | None = None
        """The run of the context, if it has ended: code that it left in a thread may still fire points."""
        self._state = state

    @property
    def state(self) -> AgentState:
        """The current state."""
        if self._state is None:
            self._state = AgentState()
        return self._state

    def accept_state(self, state: object) -> None:
        """Apply a hook's ``state=``.

        Raises:
            TypeError: it changes a field that hooks may not change.
        """
        self._state = self.state.accept(state)

    def clean(self, value: Any) -> Any:
        """Return a value as it may be stored. In a run, hooks declare what is replaced."""
        return value


def scope_of(ctx: Any) -> Scope:
    """Return the scope of a context, or a new scope for any other object."""
    if ctx is None:
        ctx = BaseContext()
    if not isinstance(ctx, BaseContext):
        return Scope(ctx)
    scope = ctx._scope
    if scope is None or scope.ctx is None:  # no run has started yet, or it has ended
        ended = scope if scope is not None and scope.is_run else None
        ctx._scope = scope = Scope(ctx, None if scope is None else scope.state)
        scope.ended_run = ended
    return scope


def running_hooks() -> frozenset[int]:
    """Return the ids of all hooks that have directly or indirectly called the current code and are still running."""
    call, running = HOOK_CALL.get(), NO_HOOKS
    while call is not None:
        running |= call.hooks
        call = call.outer
    return running


def is_in_sync_hook() -> bool:
    """Whether a sync hook has called the current code and is still running."""
    call = HOOK_CALL.get()
    return call is not None and call.is_sync and bool(call.hooks)


def is_being_closed(scope: Scope) -> bool:
    """Whether a GeneratorExit means that the coroutine is being closed, so that it must not await anything.

    Python closes a coroutine outside the context of its run. A hook or tool that raises GeneratorExit itself does so
    inside that context.
    """
    return scope is not CURRENT.get() and scope is not FIRED.get()
