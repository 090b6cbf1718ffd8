"""Where hooks are registered, and the immutable stack they compile to (DESIGN 4.1)."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from inspect import ismethod
from typing import Any, Protocol, Unpack, overload

from .._base.frozen import Frozen
from .dispatch import Chain, fire
from .errors import RegistrationError
from .hook import Entry, Hook, OnFailure, Phase, PhaseOptions, compile_hook
from .points import POINTS, Point, resolve
from .results import Verdict
from .scope import CURRENT, Scope, scope_of

_NOTHING = Chain()
_lock = threading.Lock()


class Interceptor(Protocol):
    """One object that takes part at every point, in place of an agent's hooks: a hook for all of them."""

    def intercept(self, point: Point[Any], payload: Any, ctx: Any) -> Any:
        """See the payload; return what a hook at this point may return, or an awaitable of it."""
        ...


class PassThrough:
    """The interceptor that lets everything pass: an agent without hooks. Subclass it to act at some points only."""

    def intercept(self, point: Point[Any], payload: Any, ctx: Any) -> Any:
        """Let the payload pass."""
        return None


def interceptor_entries(interceptor: Interceptor | HookStack) -> tuple[Entry, ...]:
    """An interceptor as hooks: those of a stack, else one at every declared point.

    Raises:
        RegistrationError: it is no interceptor.
    """
    if isinstance(interceptor, HookStack):
        return tuple(entry for layer in interceptor.layers for entry in layer)
    if type(interceptor) is PassThrough:
        return ()
    if not callable(getattr(interceptor, "intercept", None)):
        raise RegistrationError(
            f"interceptor= takes an object with intercept(point, payload, ctx), not {type(interceptor).__name__}"
        )

    def intercept(point: Point[Any], ctx: Any, payload: Any) -> Any:
        return interceptor.intercept(point, payload, ctx)

    vars(intercept)["interceptor"] = interceptor
    return tuple(compile_hook(intercept, points=tuple(POINTS), name=type(interceptor).__name__))


class HookStack:
    """Hooks in firing order: phase, layer, priority, registration. Immutable.

    ``layers`` are entries as registered: agent, conversation, run. ``points`` are those with hooks, ``listeners``
    the hooks that want events too, ``wrappers`` those that go around what happens, ``instruments`` those that stand
    between the run and the world, ``limiting`` those with ``limits``.
    """

    __slots__ = ("_chains", "instruments", "layers", "limiting", "listeners", "points", "wrappers")

    def __init__(self, *layers: Iterable[Entry]) -> None:
        self.layers: tuple[tuple[Entry, ...], ...] = tuple(tuple(layer) for layer in layers)
        by_point: dict[Point[Any], list[Entry]] = {}
        for layer in self.layers:
            for entry in sorted(layer, key=lambda e: -e.priority):
                by_point.setdefault(entry.point, []).append(entry)
        self._chains = {point: _chain(entries) for point, entries in by_point.items()}
        self.points = frozenset(self._chains)
        hooks = {id(e.hook): e.hook for layer in self.layers for e in layer}.values()
        names = ("on_event", "wrap", "instrument", "limits")
        self.listeners, self.wrappers, self.instruments, self.limiting = (
            tuple(hook for hook in hooks if hasattr(hook, name)) for name in names
        )

    def with_hook(
        self, hook: Any, points: Iterable[str] | str | None = None, **options: Unpack[PhaseOptions]
    ) -> HookStack:
        """A new stack with this hook in the last layer; options as for :func:`hookline.hook`."""
        *rest, last = self.layers or ((),)
        return HookStack(*rest, (*last, *compile_hook(hook, points=points, **options)))

    def entries(self, point: str) -> tuple[Entry, ...]:
        """The entries at a point, in firing order."""
        chain = self.chain(resolve(point))
        return (*chain.rewriters, *chain.guards, *chain.observers)

    def at(self, point: str) -> list[Any]:
        """The hooks at a point, in firing order."""
        return [entry.hook for entry in self.entries(point)]

    def only(self, allowed_plugins: Iterable[str] | None) -> HookStack:
        """Built-ins plus the hooks of these plugins; ``None`` means no filter."""
        if allowed_plugins is None:
            return self
        if isinstance(allowed_plugins, str):
            raise TypeError(f"allowed_plugins is a list of names: [{allowed_plugins!r}]")
        allowed = frozenset(allowed_plugins)
        return self.where(lambda e: e.plugin is None or e.plugin in allowed)

    def without(self, hooks: frozenset[int]) -> HookStack:
        """This stack without the hooks of these ids."""
        return self.where(lambda e: id(e.hook) not in hooks) if hooks else self

    def where(self, keep: Callable[[Entry], bool]) -> HookStack:
        """This stack with the entries that ``keep`` accepts."""
        layers = tuple(tuple(filter(keep, layer)) for layer in self.layers)
        return self if layers == self.layers else HookStack(*layers)

    def chain(self, point: Point[Any]) -> Chain:
        """The hooks of a point, ready to be fired."""
        return self._chains.get(point, _NOTHING)


EMPTY_STACK = HookStack()


def _chain(entries: list[Entry]) -> Chain:
    rewriters, guards, observers = (
        tuple(entry for entry in entries if entry.phase == phase) for phase in ("rewrite", "guard", "observe")
    )
    return Chain(rewriters, guards, observers, simple=not guards and not observers)


class HookRegistry:
    """A mutable set of hooks. Changes count from the next fire on, never within one.

    ``changes`` grows with every change of any registry, so that runs notice without asking each.
    """

    changes = 0

    def __init__(self, hooks: Iterable[Hook] | HookRegistry = ()) -> None:
        self._entries: tuple[Entry, ...] = ()
        self._stack: HookStack | None = None
        if hooks:
            self.extend(hooks)

    @overload
    def register(
        self, hook: Hook, points: Iterable[str] | str | None = None, priority: float | None = None,
        name: str | None = None, *, phase: Phase | None = None, on_failure: OnFailure | None = None,
        timeout: float | None = None, plugin: str | None = None, tools: str | Collection[str] | None = None,
    ) -> Callable[[], None]: ...  # fmt: skip
    @overload
    def register(
        self, hook: Callable[..., Any], points: Iterable[str] | str, priority: float | None = None,
        name: str | None = None, *, phase: Phase | None = None, on_failure: OnFailure | None = None,
        timeout: float | None = None, plugin: str | None = None, tools: str | Collection[str] | None = None,
    ) -> Callable[[], None]: ...  # fmt: skip
    def register(
        self, hook: Any, points: Iterable[str] | str | None = None, priority: float | None = None,
        name: str | None = None, **options: Any,
    ) -> Callable[[], None]:  # fmt: skip
        """Register a hook; what is given here beats its own attributes. The closure unregisters it.

        ``RegistrationError`` says why one cannot work.
        """
        if priority is not None:
            options["priority"] = priority
        added = tuple(compile_hook(hook, points=points, name=name, **options))
        self._change(lambda entries: (*entries, *added))
        return lambda: self._change(lambda entries: tuple(e for e in entries if not any(e is a for a in added)))

    def on(self, point: str, handler: Callable[..., Any], **options: Unpack[PhaseOptions]) -> Callable[[], None]:
        """Register a function at one point."""
        return self.register(handler, points=resolve(point), **options)

    def extend(self, hooks: Iterable[Hook] | HookRegistry) -> None:
        """Register all of these, or all that another registry holds."""
        if isinstance(hooks, HookRegistry):
            self._change(lambda entries: (*entries, *hooks._entries))
            return
        if isinstance(hooks, str) or not isinstance(hooks, Iterable):
            raise RegistrationError(f"hooks are a list of hooks or a HookRegistry, not {type(hooks).__name__}")
        added = tuple(entry for hook in hooks for entry in compile_hook(hook))
        self._change(lambda entries: (*entries, *added))

    @classmethod
    def of(cls, interceptor: Interceptor | HookStack) -> HookRegistry:
        """A registry that holds an interceptor."""
        registry = cls()
        registry._entries = interceptor_entries(interceptor)
        return registry

    def unregister(self, hook: Any) -> None:
        """Take a hook out of every point."""
        is_method = ismethod(hook)  # obj.method is a new object each time, but an equal one
        self._change(lambda all_: tuple(e for e in all_ if not (e.hook is hook or (is_method and e.hook == hook))))

    def unregister_plugin(self, plugin: str) -> None:
        """Take out every hook of a plugin."""
        self._change(lambda entries: tuple(e for e in entries if e.plugin != plugin))

    def copy(self) -> HookRegistry:
        """Another registry with the same hooks."""
        return HookRegistry(self)

    def at(self, point: str) -> list[Any]:
        """The hooks at a point, in firing order."""
        return self.stack.at(point)

    def __iter__(self) -> Iterator[Any]:
        return iter({id(e.hook): e.hook for e in self._entries}.values())

    def __len__(self) -> int:
        return len({id(e.hook) for e in self._entries})

    @property
    def stack(self) -> HookStack:
        """The compiled hooks. The same object until something changes."""
        while (stack := self._stack) is None:
            entries = self._entries
            if not entries:
                return EMPTY_STACK
            compiled = HookStack(entries)
            with _lock:
                if self._entries is entries:
                    self._stack = compiled
        return stack

    def _change(self, how: Callable[[tuple[Entry, ...]], tuple[Entry, ...]]) -> None:
        with _lock:
            self._entries, self._stack = how(self._entries), None
            HookRegistry.changes += 1

    async def fire(
        self, point: str, payload: Frozen | Mapping[str, Any], *, ctx: Any = None,
        allowed_plugins: Iterable[str] | None = None,
    ) -> Verdict:  # fmt: skip
        """Fire a point, outside or inside a run, with its payload or a mapping of that payload's fields.

        Without a ``ctx`` it is a bare one. ``allowed_plugins``: ``None`` no filter; ``[]`` built-ins only; a
        list: those plugins too. A closed failure raises ``HookError``: ``point.closed`` says what that means.
        """
        where = resolve(point)
        chain = self.stack.only(allowed_plugins).chain(where)
        return await fire_outside_run(chain, where, where.payload.of(payload), scope_of(ctx))


async def fire_outside_run(chain: Chain, point: Point[Any], payload: Any, scope: Scope) -> Verdict:
    """Fire a point that no loop fires.

    Raises:
        HookError: a hook failed closed.
        CallRefusedError: a model call was refused inside a hook, and the hook let that pass.
    """
    token = CURRENT.set(scope)
    try:
        verdict, firing = await fire(chain, point, payload, scope)
    finally:
        CURRENT.reset(token)
    if firing is not None and firing.error is not None:
        raise firing.error
    return verdict
