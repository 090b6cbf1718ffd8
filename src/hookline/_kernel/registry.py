"""Where hooks are registered, and the immutable stack they compile to (DESIGN 4.1)."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from inspect import ismethod
from typing import Any, Protocol

from .._base.frozen import Frozen
from .dispatch import PLAIN, Chain, fire
from .errors import RegistrationError
from .hook import Entry, compile_hook
from .points import Point, resolve
from .results import HookAction, Verdict
from .scope import CURRENT, Scope
from .tally import How

_NOTHING = Chain()
_lock = threading.Lock()


class Interceptor(Protocol):
    """What the loop talks to at every point. ``HookStack`` is one; put your own in its place."""

    def intercept(self, point: Point, payload: Any, ctx: Any, how: How = PLAIN) -> Awaitable[Verdict]:
        """Conclude what happens at ``point`` with ``payload``; ``how`` may ask for validation."""


class PassThrough:
    """The interceptor that lets everything pass; arguments are still validated."""

    async def intercept(self, point: Point, payload: Any, ctx: Any, how: How = PLAIN) -> Verdict:
        """The payload, unchanged."""
        if how.validate is not None:
            payload, problem = how.validate(payload)
            if problem is not None:
                return Verdict(payload, HookAction.INVALID, problem)
        return Verdict(payload)


class HookStack:
    """Hooks in firing order: phase, layer, priority, registration. Immutable.

    ``layers`` are entries as registered: agent, conversation, run. ``points`` are those with hooks, ``listeners``
    the hooks that want events too, ``wrappers`` those that go around what happens, ``limiting`` those with ``limits``.
    """

    __slots__ = ("_chains", "layers", "limiting", "listeners", "points", "wrappers")

    def __init__(self, *layers: Iterable[Entry]) -> None:
        self.layers: tuple[tuple[Entry, ...], ...] = tuple(tuple(layer) for layer in layers)
        by_point: dict[Point, list[Entry]] = {}
        for layer in self.layers:
            for entry in sorted(layer, key=lambda e: -e.priority):
                by_point.setdefault(entry.point, []).append(entry)
        self._chains = {point: _chain(entries) for point, entries in by_point.items()}
        self.points = frozenset(self._chains)
        hooks = {id(e.hook): e.hook for layer in self.layers for e in layer}.values()
        names = ("on_event", "around", "limits")
        self.listeners, self.wrappers, self.limiting = (tuple(h for h in hooks if hasattr(h, n)) for n in names)

    def with_hook(self, hook: Any, points: Iterable[str] | str | None = None, **options: Any) -> HookStack:
        """A new stack with this hook in the last layer; options as for :func:`hookline.hook`."""
        *rest, last = self.layers or ((),)
        return HookStack(*rest, (*last, *compile_hook(hook, points=points, **options)))

    def entries(self, point: str) -> tuple[Entry, ...]:
        """The entries at a point, in firing order."""
        chain = self._chains.get(resolve(point), _NOTHING)
        return (*(pair[0] for pair in (*chain.rewriters, *chain.guards)), *chain.observers)

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
        return self._where(lambda e: e.plugin is None or e.plugin in allowed)

    def without(self, hooks: frozenset[int]) -> HookStack:
        """This stack without the hooks of these ids."""
        return self._where(lambda e: id(e.hook) not in hooks) if hooks else self

    def _where(self, keep: Callable[[Entry], bool]) -> HookStack:
        layers = tuple(tuple(filter(keep, layer)) for layer in self.layers)
        return self if layers == self.layers else HookStack(*layers)

    def intercept(self, point: Point, payload: Any, ctx: Any, how: How = PLAIN) -> Awaitable[Verdict]:
        """Fire the point: see :class:`Interceptor`."""
        return fire(self._chains.get(point, _NOTHING), point, payload, ctx, how)


EMPTY_STACK = HookStack()


def _chain(entries: list[Entry]) -> Chain:
    rewriters = tuple((e, e.call) for e in entries if e.phase == "rewrite")
    guards = tuple((e, e.call) for e in entries if e.phase == "guard")
    observers = tuple(e for e in entries if e.phase == "observe")
    mixed = tuple((e, call, e.alone if e.quick else None) for e, call in rewriters)
    quick = mixed if any(e.quick for e, _ in rewriters) else None
    return Chain(rewriters, guards, observers, not guards and not observers, quick)


class HookRegistry:
    """A mutable set of hooks. Changes count from the next fire on, never within one.

    ``changes`` grows with every change of any registry, so that runs notice without asking each.
    """

    changes = 0

    def __init__(self, hooks: Iterable[Any] | HookRegistry = ()) -> None:
        self._entries: tuple[Entry, ...] = ()
        self._stack: HookStack | None = None
        if hooks:
            self.extend(hooks)

    def register(
        self, hook: Any, points: Iterable[str] | str | None = None, priority: float | None = None,
        name: str | None = None, **options: Any,
    ) -> Callable[[], None]:  # fmt: skip
        """Register a hook; what is given here beats its own attributes. The closure unregisters it.

        ``RegistrationError`` says why one cannot work.
        """
        added = tuple(compile_hook(hook, points=points, priority=priority, name=name, **options))
        self._change(lambda entries: (*entries, *added))
        return lambda: self._change(lambda entries: tuple(e for e in entries if not any(e is a for a in added)))

    def on(self, point: str, handler: Callable[..., Any], **options: Any) -> Callable[[], None]:
        """Register a function at one point."""
        return self.register(handler, points=resolve(point), **options)

    def extend(self, hooks: Iterable[Any] | HookRegistry) -> None:
        """Register all of these, or all that another registry holds."""
        if isinstance(hooks, HookRegistry):
            self._change(lambda entries: (*entries, *hooks._entries))
            return
        if isinstance(hooks, str) or not isinstance(hooks, Iterable):
            raise RegistrationError(f"hooks are a list of hooks or a HookRegistry, not {type(hooks).__name__}")
        added = tuple(entry for hook in hooks for entry in compile_hook(hook))
        self._change(lambda entries: (*entries, *added))

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
        payload = where.payload.of(payload)
        scope = Scope() if ctx is None else ctx
        token = CURRENT.set(scope)
        try:
            return await self.stack.only(allowed_plugins).intercept(where, payload, scope)
        finally:
            CURRENT.reset(token)
