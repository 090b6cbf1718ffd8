"""Static types for ``@hook``, ``@guard`` and ``@observer``, which type checkers use.

This module is never imported at run time. A decorator takes the payload type from its points and then accepts a
function of one of these shapes, sync or async, with or without annotations:

* ``(ctx, payload)`` or ``(point, ctx, payload)``; a method has ``self`` before them;
* for observers, each of them with an additional parameter ``verdict``.

Each shape is an overload, because a type variable cannot be bounded by the payload type of the decorator.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Concatenate, ParamSpec, Protocol, Self, TypeVar, overload

from .results import HookResult, Verdict
from .state import AgentState

Decision = HookResult | Mapping[str, Any] | None
"""The return type of a hook, besides its payload. A mapping is short for result fields, a claim or changed fields.

At ``before_tool``, ``{"error": message}`` is short for a block, and ``{"args": arguments}`` for changed arguments.
"""

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
Bound = ParamSpec("Bound")
Given = TypeVar("Given")
First = TypeVar("First")
Payload = TypeVar("Payload")
Decided = TypeVar("Decided", bound=Decision | Awaitable[Decision])
Observed = TypeVar("Observed", bound=Awaitable[None] | None)
Ctx = TypeVar("Ctx", bound="HookContext")
Ctx_contra = TypeVar("Ctx_contra", bound="HookContext", contravariant=True)
AnyCtx_contra = TypeVar("AnyCtx_contra", contravariant=True)
First_contra = TypeVar("First_contra", contravariant=True)
Payload_contra = TypeVar("Payload_contra", contravariant=True)


class HookContext(Protocol):
    """The part of the context that also exists outside a run. ``AgentContext`` has more."""

    @property
    def scratch(self) -> dict[str, Any]:
        """Values that hooks and tools share during a conversation."""
        ...

    @property
    def state(self) -> AgentState:
        """The current state."""
        ...


class ShortHook(Protocol[AnyCtx_contra]):
    """A hook ``(ctx, payload)`` that takes this type of context; further parameters are not checked."""

    @property
    def points(self) -> Iterable[str]:
        """The points at which the hook is called."""
        ...

    def __call__(self, ctx: AnyCtx_contra, payload: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the hook."""
        ...


class LongHook(Protocol[AnyCtx_contra]):
    """A hook ``(point, ctx, payload)`` that takes this type of context; further parameters are not checked."""

    @property
    def points(self) -> Iterable[str]:
        """The points at which the hook is called."""
        ...

    def __call__(self, point: Any, ctx: AnyCtx_contra, payload: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call the hook."""
        ...


HookFor = ShortHook[AnyCtx_contra] | LongHook[AnyCtx_contra]
"""A hook that takes this type of context: ``HookFor[AgentContext[Deps]]``."""


class HookFunction(Protocol[P, R_co]):
    """A decorated function. Calling it, in a test for example, calls the function itself."""

    @property
    def points(self) -> frozenset[str]:
        """The points at which the hook is called."""
        ...

    @property
    def name(self) -> str:
        """The name in events, errors and results."""
        ...

    @property
    def fn(self) -> Callable[P, R_co]:
        """The function."""
        ...

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Call the function itself."""
        ...

    @overload
    def __get__(self, instance: None, owner: type, /) -> Self: ...
    @overload
    def __get__(
        self: HookFunction[Concatenate[Any, Bound], Given], instance: object, owner: type, /
    ) -> HookFunction[Bound, Given]: ...


class VerdictFunction(Protocol[R_co]):
    """A decorated observer with ``verdict``, which may be a keyword, so its parameters are not checked."""

    @property
    def points(self) -> frozenset[str]:
        """The points at which the hook is called."""
        ...

    @property
    def name(self) -> str:
        """The name in events, errors and results."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> R_co:
        """Call the function itself."""
        ...

    def __get__(self, instance: object, owner: type, /) -> Self: ...


class WithVerdict(Protocol[Ctx_contra, Payload_contra, R_co]):
    """An observer ``(ctx, payload, verdict)``."""

    def __call__(self, ctx: Ctx_contra, payload: Payload_contra, /, *, verdict: Verdict) -> R_co:
        """Observe the verdict."""
        ...


class FirstWithVerdict(Protocol[First_contra, Ctx_contra, Payload_contra, R_co]):
    """An observer ``(point, ctx, payload, verdict)``, or a method."""

    def __call__(self, first: First_contra, ctx: Ctx_contra, payload: Payload_contra, /, *, verdict: Verdict) -> R_co:
        """Observe the verdict."""
        ...


class GuardDecorator(Protocol[Payload]):
    """The decorator ``@guard(POINT)``, for functions that decide but do not replace."""

    @overload
    def __call__(self, fn: Callable[[Ctx, Payload], Decided], /) -> HookFunction[[Ctx, Payload], Decided]: ...
    @overload
    def __call__(
        self, fn: Callable[[First, Ctx, Payload], Decided], /
    ) -> HookFunction[[First, Ctx, Payload], Decided]: ...
    @overload
    def __call__(
        self, fn: Callable[[First, str, Ctx, Payload], Decided], /
    ) -> HookFunction[[First, str, Ctx, Payload], Decided]: ...


class HookDecorator(Protocol[Payload]):
    """The decorator ``@hook(POINT)``, for functions that decide or return a changed payload."""

    # Overloads that keep the exact return type come first; mypy notes that a mapping is a decision in both kinds.
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[[Ctx, Payload], Decided], /
    ) -> HookFunction[[Ctx, Payload], Decided]: ...
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, fn: Callable[[First, Ctx, Payload], Decided], /
    ) -> HookFunction[[First, Ctx, Payload], Decided]: ...
    @overload
    def __call__(
        self, fn: Callable[[First, str, Ctx, Payload], Decided], /
    ) -> HookFunction[[First, str, Ctx, Payload], Decided]: ...
    @overload
    def __call__(
        self, fn: Callable[[First, Ctx, Payload], Awaitable[Payload | Decision]], /
    ) -> HookFunction[[First, Ctx, Payload], Awaitable[Payload | Decision]]: ...
    @overload
    def __call__(
        self, fn: Callable[[First, Ctx, Payload], Payload | Decision], /
    ) -> HookFunction[[First, Ctx, Payload], Payload | Decision]: ...
    @overload
    def __call__(
        self, fn: Callable[[Ctx, Payload], Awaitable[Payload | Decision]], /
    ) -> HookFunction[[Ctx, Payload], Awaitable[Payload | Decision]]: ...
    @overload
    def __call__(
        self, fn: Callable[[Ctx, Payload], Payload | Decision], /
    ) -> HookFunction[[Ctx, Payload], Payload | Decision]: ...


class ObserverDecorator(Protocol[Payload]):
    """The decorator ``@observer(POINT)``, for functions that return nothing."""

    @overload
    def __call__(self, fn: FirstWithVerdict[First, Ctx, Payload, Observed], /) -> VerdictFunction[Observed]: ...
    @overload
    def __call__(self, fn: WithVerdict[Ctx, Payload, Observed], /) -> VerdictFunction[Observed]: ...
    @overload
    def __call__(
        self, fn: Callable[[First, str, Ctx, Payload], Observed], /
    ) -> HookFunction[[First, str, Ctx, Payload], Observed]: ...
    @overload
    def __call__(
        self, fn: Callable[[First, Ctx, Payload], Observed], /
    ) -> HookFunction[[First, Ctx, Payload], Observed]: ...
    @overload
    def __call__(self, fn: Callable[[Ctx, Payload], Observed], /) -> HookFunction[[Ctx, Payload], Observed]: ...
