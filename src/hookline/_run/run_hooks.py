"""Which hooks take part in a run: those of the run around it, its agent, its conversation, its own (DESIGN 4.1)."""

from __future__ import annotations

from typing import Any, Protocol

from .._kernel.dispatch import Chain
from .._kernel.hook import Entry
from .._kernel.points import Point
from .._kernel.registry import HookRegistry, HookStack
from .._kernel.scope import ACTIVE
from .budget import Limits, declared_limits


class HookOwner(Protocol):
    """What is needed of an agent to know its hooks."""

    hooks: HookRegistry


class RunHooks:
    """The hooks of one run, compiled; compiled anew when a registry changes.

    Args:
        agent: its registry stays live, so hooks may come and go while the run goes on.
        conversation: the hooks of the context that the run was given.
        own: hooks of this run only.
        outer: the hooks of the run that this one is inside of, which come first.
        allowed_plugins: the plugins that take part; ``None`` for all.
        running: ids of the hooks that are running already, which this run does not call again (DESIGN 4.8).
    """

    def __init__(
        self,
        agent: HookOwner,
        conversation: HookRegistry,
        own: HookStack,
        outer: RunHooks | None,
        allowed_plugins: tuple[str, ...] | None,
        running: frozenset[int],
    ) -> None:
        self._agent = agent
        self._conversation = conversation
        self._own = own
        self._outer = outer
        self.allowed_plugins = allowed_plugins
        self.running = running
        self._nested: tuple[HookStack | None, frozenset[int], HookStack] = (None, running, own)
        self.compile()

    def compile(self) -> None:
        """Take over the registrations as they are now."""
        self.seen = HookRegistry.changes
        """The number of changes to registries that were taken over."""
        self.allowed = self.all().only(self.allowed_plugins)
        """All hooks that take part, those that are running around this run too: they still hear of its events."""
        self.stack = self.allowed.without(self.running)
        """The hooks that are called at the points of this run."""

    def all(self) -> HookStack:
        """All hooks of this run, whatever filter holds; those of the run around it come first."""
        own = self._agent.hooks.stack
        conversation = self._conversation.stack
        if self._outer is not None:
            conversation = _inheritable(conversation)
        extra = [layer for layer in (*conversation.layers, *self._own.layers) if layer]
        if extra:
            own = HookStack(*own.layers, *extra)
        return own if self._outer is None else _joined(self._outer.inheritable(), own)

    def limits(self) -> tuple[tuple[str, Limits], ...]:
        """The limits that the run's own hooks declare; those of inherited hooks are on the ledger above."""
        stacks = [self._agent.hooks.stack, self._own]
        if self._outer is None:
            stacks.append(self._conversation.stack)
        stacks = [stack for stack in stacks if stack.limiting]
        return declared_limits(stacks, self.allowed_plugins) if stacks else ()

    def own(self) -> HookStack:
        """The hooks of the agent and of this run, without those of the conversation and of the run around."""
        return HookStack(*self._agent.hooks.stack.layers, *self._own.layers).only(self.allowed_plugins)

    def inheritable(self) -> HookStack:
        """The hooks that hold in the runs inside this one too: all but those that say ``inherit = False``."""
        return _inheritable(self.all())

    def chain(self, point: Point[Any]) -> Chain:
        """The hooks to call at a point now: without those that are running around the caller."""
        active = ACTIVE.get()
        if active is self.running or not active:
            return self.stack.chain(point)
        if self._nested[0] is not self.stack or self._nested[1] != active:
            self._nested = self.stack, active, self.stack.without(active)
        return self._nested[2].chain(point)


def _inheritable(hooks: HookStack) -> HookStack:
    return hooks.where(lambda entry: getattr(entry.hook, "inherit", True))


def _joined(outer: HookStack, own: HookStack) -> HookStack:
    """The hooks of a run inside another: those of the other come first, and one that both have counts once."""
    if not outer.layers or own is outer:
        return own
    known = {(_rule(entry), entry.plugin) for layer in outer.layers for entry in layer}
    firm = {_rule(entry) for layer in own.layers for entry in layer if entry.plugin is None}
    rest = (tuple(e for e in layer if not known & {(_rule(e), None), (_rule(e), e.plugin)}) for layer in own.layers)
    # A hook that belongs to a plugin outside and to nobody here holds whatever the filter: this one stays.
    first = (tuple(e for e in layer if e.plugin is None or _rule(e) not in firm) for layer in outer.layers)
    return HookStack(*first, *filter(None, rest))


def _rule(entry: Entry) -> tuple[object, ...]:
    """What makes two entries the same rule: a hook that only watches in one run may judge in another."""
    hook = getattr(entry.hook, "interceptor", entry.hook)  # each agent wraps its interceptor in a hook of its own
    return id(hook), entry.point, entry.phase, entry.on_failure, entry.timeout, entry.tools
