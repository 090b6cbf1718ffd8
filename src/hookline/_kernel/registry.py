"""The registry of hooks, and the immutable stack that it compiles to (DESIGN 4.1)."""

from __future__ import annotations

import functools
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from inspect import ismethod
from itertools import chain, count
from operator import is_
from typing import Any, Unpack, overload

import msgspec

from .._base.frozen import Frozen
from .dispatch import Chain, fire
from .errors import RegistrationError
from .hook import Hook, HookEntry, OnFailure, Phase, PhaseOptions, compile_hook
from .points import AFTER_LLM, ON_TOKEN, POINTS, Point, resolve
from .results import Verdict
from .scope import CURRENT, FIRED, BaseContext, Scope, scope_of

_NOTHING = Chain()
_lock = threading.Lock()


class PassThrough:
    """A hook at every point that lets everything pass. Subclass it and override :meth:`intercept`.

    Example::

        class NoTools(PassThrough):
            def intercept(self, point, payload, ctx):
                return HookResult.block("No tools today.") if point == BEFORE_TOOL else None


        agent = Agent("helper", llm=model, tools=[shell], hooks=[NoTools()])
    """

    holds_text = True
    """Text is held until ``after_llm`` has settled it. Set it to ``False`` if :meth:`intercept` never rejects text."""

    @property
    def points(self) -> tuple[Point[Any], ...]:
        """All declared points. A ``PassThrough`` that is not subclassed need not be called at any of them."""
        return () if type(self) is PassThrough else tuple(POINTS.values())

    def __call__(self, point: Point[Any], ctx: Any, payload: Any) -> Any:
        """Call :meth:`intercept`."""
        return self.intercept(point, payload, ctx)

    def intercept(self, point: Point[Any], payload: Any, ctx: Any) -> Any:
        """Return any value that a hook may return at this point, or an awaitable of it."""
        return None


def plugin_names(allowed_plugins: Iterable[str] | None) -> tuple[str, ...] | None:
    """Return a list of plugin names as a tuple.

    Raises:
        TypeError: it is not a list of names.
    """
    if allowed_plugins is None:
        return None
    if isinstance(allowed_plugins, str):
        raise TypeError(f"allowed_plugins must be a list of names: [{allowed_plugins!r}]")
    is_list = isinstance(allowed_plugins, Iterable) and not isinstance(allowed_plugins, Mapping)
    names = tuple(allowed_plugins) if is_list else ()
    if not is_list or not all(isinstance(name, str) for name in names):
        raise TypeError(f"allowed_plugins must be a list of names, not {allowed_plugins!r:.80}")
    return names


class HookStack:
    """An immutable collection of hooks in firing order: by phase, layer, priority and registration.

    ``layers`` are the entries of the agent, the conversation and the run, as registered. ``hooks`` are their hooks, and
    ``points`` the points that have hooks. Hooks with special methods: ``listeners`` have ``on_event``, ``wrappers``
    have ``wrap``, ``instruments`` have ``instrument``, ``watchers`` have ``observe_fires``, ``limiting`` have
    ``limits``, and ``halting`` have ``halts``, a stop switch or ``None`` (DESIGN 6.19). ``redactions`` are the values
    of ``storage_redaction``: they clean everything that is stored about a run (DESIGN 6.20). A watcher is not called at
    its ``watched_in_runs`` in a run, because its fire observer handles these points; elsewhere it is. ``holds_text`` is
    true if a hook may reject the text of a reply after it was streamed, so that it must not be shown before (DESIGN
    7.14).
    """

    __slots__ = (
        "_by_point",
        "_chains",
        "_extended",
        "_in_run",
        "halting",
        "holds_text",
        "hooks",
        "instruments",
        "layers",
        "limiting",
        "listeners",
        "points",
        "redactions",
        "watchers",
        "wrappers",
    )

    def __init__(self, *layers: Iterable[HookEntry]) -> None:
        self.layers: tuple[tuple[HookEntry, ...], ...] = tuple(tuple(layer) for layer in layers)
        by_point: dict[Point[Any], list[HookEntry]] = {}
        for layer in self.layers:
            for entry in sorted(layer, key=lambda e: -e.priority):
                by_point.setdefault(entry.point, []).append(entry)
        self._by_point = by_point
        self._chains: dict[Point[Any], Chain] = {}
        """Made when they are first used: of many stacks, only the layers are."""
        self._extended: HookStack | None = None
        self._in_run: HookStack | None = None
        self.points = frozenset(by_point)
        self.holds_text = self.may_change_text(AFTER_LLM)
        self.hooks = tuple({id(e.hook): e.hook for layer in self.layers for e in layer}.values())
        names = ("on_event", "wrap", "instrument", "limits", "observe_fires", "halts")
        self.listeners, self.wrappers, self.instruments, self.limiting, self.watchers, self.halting = (
            tuple([hook for hook in self.hooks if hasattr(hook, name)]) for name in names
        )
        declared = [getattr(hook, "storage_redaction", None) for hook in self.hooks]
        self.redactions: tuple[Any, ...] = tuple([each for each in declared if each is not None])

    def may_change_text(self, point: Point[Any]) -> bool:
        """Whether a hook decides at this point about text that it has not judged at ``on_token``."""
        return point in self.points and _holds_text(self.chain(point), self.chain(ON_TOKEN))

    def with_layers(self, *layers: tuple[HookEntry, ...]) -> HookStack:
        """Return a stack with more layers: the same stack for the same layers as last time, as in the runs of a server.

        What is made of a stack, such as its chains and its digest, is made once then.
        """
        found, size = self._extended, len(self.layers)
        if found is None or len(found.layers) != size + len(layers) or not all(map(is_, found.layers[size:], layers)):
            found = self._extended = HookStack(*self.layers, *layers)
        return found

    def with_hook(
        self, hook: Any, points: Iterable[str] | str | None = None, **options: Unpack[PhaseOptions]
    ) -> HookStack:
        """Return a new stack with this hook in the last layer; options as for :func:`hookline.hook`."""
        *rest, last = self.layers or ((),)
        return HookStack(*rest, (*last, *compile_hook(hook, points=points, **options)))

    def entries(self, point: str) -> tuple[HookEntry, ...]:
        """Return the entries at a point, in firing order."""
        chain = self.chain(resolve(point))
        return (*chain.rewriters, *chain.guards, *chain.observers)

    def at(self, point: str) -> list[Any]:
        """Return the hooks at a point, in firing order."""
        return [entry.hook for entry in self.entries(point)]

    def only(self, allowed_plugins: Iterable[str] | None) -> HookStack:
        """Return a stack without the hooks of other plugins; ``None`` means no filter."""
        names = plugin_names(allowed_plugins)
        if names is None:
            return self
        allowed = frozenset(names)
        return self.where(lambda e: e.plugin is None or e.plugin in allowed)

    def without(self, hooks: frozenset[int]) -> HookStack:
        """Return a stack without the hooks of these ids."""
        return self.where(lambda e: id(e.hook) not in hooks) if hooks else self

    def in_run(self) -> HookStack:
        """Return a stack without entries at ``watched_in_runs``: their hooks observe the fires of a run instead."""
        if self._in_run is None:
            self._in_run = self.where(lambda e: e.point not in getattr(e.hook, "watched_in_runs", ()))
        return self._in_run

    def where(self, keep: Callable[[HookEntry], bool]) -> HookStack:
        """Return a stack with the entries that ``keep`` accepts."""
        layers = tuple(tuple(filter(keep, layer)) for layer in self.layers)
        return self if layers == self.layers else HookStack(*layers)

    def chain(self, point: Point[Any]) -> Chain:
        """Return the hooks of a point in calling order."""
        found = self._chains.get(point)
        if found is None:
            entries = self._by_point.get(point)
            found = self._chains[point] = _NOTHING if entries is None else _chain(entries)
        return found


EMPTY_STACK = HookStack()


def _chain(entries: list[HookEntry]) -> Chain:
    rewriters, guards, observers = (
        tuple(entry for entry in entries if entry.phase == phase) for phase in ("rewrite", "guard", "observe")
    )
    if len({entry.name for entry in guards}) < len(guards):
        guards = tuple(_with_own_names(guards))
    if any(entry.wants_guards for entry in guards):
        guards = tuple(_with_guards(entry, guards) if entry.wants_guards else entry for entry in guards)
    return Chain(rewriters, guards, observers, simple=not guards and not observers)


def _with_own_names(guards: Sequence[HookEntry]) -> Iterator[HookEntry]:
    """Number guards that share a name, because a remembered approval answers the questions of one guard only.

    The first one is numbered too: elsewhere, the name alone may be that of another of them.
    """
    names = Counter(entry.name for entry in guards)
    taken = set(names)
    for entry in guards:
        if names[entry.name] == 1:
            yield entry
            continue
        own = next(name for n in count(1) if (name := f"{entry.name} ({n})") not in taken)
        taken.add(own)
        yield msgspec.structs.replace(entry, asks_as=own)


def _with_guards(entry: HookEntry, guards: tuple[HookEntry, ...]) -> HookEntry:
    """Give a guard the others of its chain. A chain never changes, so these are exactly the guards that judge too."""
    others = tuple(other for other in guards if not other.wants_guards)
    return msgspec.structs.replace(entry, call=functools.partial(entry.call, guards=others), guards=others)


def _holds_text(replies: Chain, tokens: Chain) -> bool:
    """Whether a hook that decides about replies has not judged their text at ``on_token``.

    A hook may declare this with an attribute ``holds_text``: ``False`` if it never rejects or changes text, ``True`` if
    being called at ``on_token`` does not mean that it judges text there.
    """
    judges = {id(entry.hook) for entry in (*tokens.rewriters, *tokens.guards)}
    for entry in (*replies.rewriters, *replies.guards):
        declared = getattr(entry.hook, "holds_text", None)
        if (id(entry.hook) not in judges) if declared is None else declared:
            return True
    return False


class Registrations:
    """Counts the changes of all registries, so that a run can detect a change cheaply."""

    __slots__ = ("changes",)

    def __init__(self) -> None:
        self.changes = 0


REGISTRATIONS = Registrations()


class HookRegistry:
    """A mutable collection of hooks. A change takes effect with the next fire of a point.

    Example::

        registry = HookRegistry([RateLimit(10)])
        unregister = registry.on(BEFORE_TOOL, check)
        agent = Agent("helper", llm=model, hooks=registry)
        unregister()
    """

    def __init__(self, hooks: Iterable[Hook] | HookRegistry | HookStack = ()) -> None:
        self._entries: tuple[HookEntry, ...] = ()
        self._stack: HookStack | None = None
        if hooks:
            self.extend(hooks)

    @overload
    def register(
        self,
        hook: Hook,
        points: Iterable[str] | str | None = None,
        priority: float | None = None,
        name: str | None = None,
        *,
        phase: Phase | None = None,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
        plugin: str | None = None,
        tools: str | Collection[str] | None = None,
    ) -> Callable[[], None]: ...
    @overload
    def register(
        self,
        hook: Callable[..., Any],
        points: Iterable[str] | str,
        priority: float | None = None,
        name: str | None = None,
        *,
        phase: Phase | None = None,
        on_failure: OnFailure | None = None,
        timeout: float | None = None,
        plugin: str | None = None,
        tools: str | Collection[str] | None = None,
    ) -> Callable[[], None]: ...
    def register(
        self,
        hook: Any,
        points: Iterable[str] | str | None = None,
        priority: float | None = None,
        name: str | None = None,
        **options: Any,
    ) -> Callable[[], None]:
        """Register a hook and return a function that unregisters it.

        Options given here override the attributes of the hook.

        Raises:
            RegistrationError: the hook cannot work; the message says why.
        """
        if priority is not None:
            options["priority"] = priority
        added = tuple(compile_hook(hook, points=points, name=name, **options))
        self._change(lambda entries: (*entries, *added))
        return lambda: self._change(lambda entries: tuple(e for e in entries if not any(e is a for a in added)))

    def on(self, point: str, handler: Callable[..., Any], **options: Unpack[PhaseOptions]) -> Callable[[], None]:
        """Register a function at one point and return a function that unregisters it."""
        return self.register(handler, points=resolve(point), **options)

    def extend(self, hooks: Iterable[Hook] | HookRegistry | HookStack) -> None:
        """Register several hooks, or all hooks of another registry or of a stack."""
        added = _entries(hooks)
        self._change(lambda entries: (*entries, *added))

    def unregister(self, hook: Any) -> None:
        """Remove a hook from all points."""
        is_method = ismethod(hook)  # each access to obj.method creates a new object, so compare by equality
        self._change(lambda all_: tuple(e for e in all_ if not (e.hook is hook or (is_method and e.hook == hook))))

    def unregister_plugin(self, plugin: str) -> None:
        """Remove all hooks of a plugin."""
        self._change(lambda entries: tuple(e for e in entries if e.plugin != plugin))

    def copy(self) -> HookRegistry:
        """Return another registry with the same hooks."""
        return HookRegistry(self)

    def at(self, point: str) -> list[Any]:
        """Return the hooks at a point, in firing order."""
        return self.stack.at(point)

    def __iter__(self) -> Iterator[Any]:
        return iter({id(e.hook): e.hook for e in self._entries}.values())

    def __len__(self) -> int:
        return len({id(e.hook) for e in self._entries})

    @property
    def stack(self) -> HookStack:
        """The compiled hooks; the same object until the registry changes."""
        while (stack := self._stack) is None:
            entries = self._entries
            if not entries:
                return EMPTY_STACK
            compiled = HookStack(entries)
            with _lock:
                if self._entries is entries:
                    self._stack = compiled
        return stack

    def _change(self, how: Callable[[tuple[HookEntry, ...]], tuple[HookEntry, ...]]) -> None:
        with _lock:
            self._entries, self._stack = how(self._entries), None
            REGISTRATIONS.changes += 1

    async def fire(
        self,
        point: str,
        payload: Frozen | Mapping[str, Any],
        *,
        ctx: Any = None,
        allowed_plugins: Iterable[str] | None = None,
    ) -> Verdict:
        """Fire a point, inside or outside a run.

        Args:
            point: the point.
            payload: its payload, or a mapping of the payload's fields.
            ctx: the context for the hooks; a minimal one by default. A run that one of them starts is nested in the
                run in which this is called, whatever the context is.
            allowed_plugins: ``None`` for no filter, or the names of the plugins whose hooks take part.

        Raises:
            HookError: a hook failed closed; ``point.closed`` says what that means at this point.
        """
        where = resolve(point)
        chain = self.stack.only(allowed_plugins).chain(where)
        with ctx._enter() if isinstance(ctx, BaseContext) else nullcontext():
            return await fire_outside_run(chain, where, where.payload.of(payload), scope_of(ctx))


def _entries(hooks: Iterable[Hook] | HookRegistry | HookStack) -> tuple[HookEntry, ...]:
    """Check hooks and return their entries."""
    if isinstance(hooks, HookRegistry):
        return hooks._entries
    if isinstance(hooks, HookStack):
        return tuple(chain.from_iterable(hooks.layers))
    if isinstance(hooks, str) or not isinstance(hooks, Iterable):
        raise RegistrationError(f"hooks must be a list of hooks or a HookRegistry, not {type(hooks).__name__}")
    return tuple(entry for hook in hooks for entry in compile_hook(hook))


def stack_of(hooks: Iterable[Hook] | HookRegistry | HookStack) -> HookStack:
    """Return hooks as a stack, without a registry: a new one makes all runs look for changes.

    Raises:
        RegistrationError: a hook cannot work; the message says why.
    """
    return hooks if isinstance(hooks, HookStack) else HookStack(_entries(hooks))


async def fire_outside_run(chain: Chain, point: Point[Any], payload: Any, scope: Scope) -> Verdict:
    """Fire a point outside the loop of a run.

    Raises:
        HookError: a hook failed closed.
        CallRefusedError: a model call inside a hook was refused, and the hook did not catch that.
    """
    # A run that a hook starts stays in the enclosing run: the run of the given context may lack its guards. If that
    # run has ended, the hook can start none, because there would be no guards.
    run = scope if scope.is_run else scope.ended_run
    entered = CURRENT.set(run) if run is not None and CURRENT.get() is None else None
    token = FIRED.set(scope)
    try:
        verdict, firing = await fire(chain, point, payload, scope)
    finally:
        FIRED.reset(token)
        if entered is not None:
            CURRENT.reset(entered)
    if firing is not None and firing.error is not None:
        raise firing.error
    return verdict
