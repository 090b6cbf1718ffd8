"""The hooks of a run: inherited ones, and those of the agent, the conversation and the run itself (DESIGN 4.1)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from .._kernel.hook import HookEntry, unmatched_globs
from .._kernel.registry import EMPTY_STACK, REGISTRATIONS, HookRegistry, HookStack
from .._kernel.scope import HOOK_CALL, HookCall, running_hooks
from .._kernel.values import ToolSpec
from .budget import Limits, declared_limits
from .events import log
from .run_agent import RunAgent

T = TypeVar("T")


class GuardSource:
    """The guards of a run that handed its conversation over, for later runs. Changes of its registries take effect.

    A hook counts as a guard, with all its points, if it judges in the guard phase or fails closed at one of them. The
    plugin filter is that of the run that handed over: the next agent must not switch a guard off.

    Args:
        agent: the agent of that run.
        conversation: the hooks of its context.
        own: the additional hooks of that run.
        allowed_plugins: the plugins that took part; ``None`` for all.
    """

    def __init__(
        self, agent: RunAgent, conversation: HookRegistry, own: HookStack, allowed_plugins: tuple[str, ...] | None
    ) -> None:
        self._agent, self._conversation, self._own = agent, conversation, own
        self._allowed_plugins = allowed_plugins

    def guards(self) -> HookStack:
        """Return the guards that are registered now."""
        layers = (*self._agent.hooks.stack.layers, *self._conversation.stack.layers, *self._own.layers)
        stack = _inheritable(HookStack(*layers).only(self._allowed_plugins))
        judging = _guards_among(stack)
        kept = stack.where(lambda entry: id(entry.hook) in judging)
        return HookStack(*([msgspec.structs.replace(entry, plugin=None) for entry in layer] for layer in kept.layers))


class RunHooks:
    """The compiled hooks of one run. They are compiled again when a registry changes.

    Args:
        agent: the agent, whose registry may change during the run.
        conversation: the hooks of the given context.
        own: additional hooks for this run.
        outer: the hooks of the outer run, which come first.
        allowed_plugins: the plugins that take part; ``None`` for all.
        running: ids of the hooks that are running already, which this run does not call again (DESIGN 4.8).
        earlier: the guards of the runs that handed the conversation over.
    """

    def __init__(
        self,
        agent: RunAgent,
        conversation: HookRegistry,
        own: HookStack,
        outer: RunHooks | None,
        allowed_plugins: tuple[str, ...] | None,
        running: frozenset[int],
        earlier: tuple[GuardSource, ...] = (),
    ) -> None:
        self._agent = agent
        self._earlier = earlier
        self._conversation = conversation
        self._own = own
        self._outer = outer
        self.allowed_plugins = allowed_plugins
        self.running = running
        self.hook_call = HookCall(running) if running else None
        """Marks these hooks as running in the tasks of this run."""
        self._is_silent = False
        self._nested: tuple[HookStack | None, frozenset[int], HookStack] = (None, running, own)
        self.compile()

    def compile(self) -> None:
        """Compile the current registrations."""
        self.seen = REGISTRATIONS.changes
        """The value of ``REGISTRATIONS.changes`` at the last compilation."""
        self.allowed = EMPTY_STACK if self._is_silent else self.all().only(self.allowed_plugins)
        """All hooks that take part, including those that are running: they still get the events of this run."""
        self.stack = self.allowed.in_run().without(self.running)
        """The hooks that are called at points of this run."""

    def silence(self) -> None:
        """Call no hook any more."""
        self._is_silent = True
        self.compile()

    def all(self) -> HookStack:
        """Return all hooks of this run before any filter; inherited hooks come first."""
        own = self._agent.hooks.stack
        conversation = self._conversation.stack
        if self._outer is not None:
            conversation = _inheritable(conversation)
        extra = [layer for layer in (*conversation.layers, *self._own.layers) if layer]
        if extra:
            own = own.with_layers(*extra)
        for source in reversed(self._earlier):
            own = _joined(source.guards(), own)
        return own if self._outer is None else _joined(self._outer.inheritable(), own)

    def guard_source(self) -> GuardSource:
        """Return the guards of this run, without those that it inherited or got by a handoff."""
        return GuardSource(self._agent, self._conversation, self._own, self.allowed_plugins)

    def limits(self) -> tuple[tuple[str, Limits], ...]:
        """Return the limits that hooks of this run declare. Limits of inherited hooks are in the parent budget."""
        stacks = [self._agent.hooks.stack, self._own]
        if self._outer is None:
            stacks.append(self._conversation.stack)
        stacks = [stack for stack in stacks if stack.limiting]
        return declared_limits(stacks, self.allowed_plugins) if stacks else ()

    def own(self) -> HookStack:
        """Return the hooks of the agent and of this run, without those of the conversation and the outer run."""
        return HookStack(*self._agent.hooks.stack.layers, *self._own.layers).only(self.allowed_plugins)

    def warn_about_unmatched_globs(self, tools: Sequence[str]) -> None:
        """Warn about ``tools=`` globs that match no tool of the agent: they are probably misspelt and guard nothing.

        Inherited hooks are not checked, because they are meant for the tools of the outer run.
        """
        own = self.own()
        entries = [entry for point in own.points for entry in own.entries(point)]
        for hook, glob in dict.fromkeys((entry.name, glob) for entry, glob in unmatched_globs(entries, tools)):
            given, agent = ", ".join(tools) or "none", self._agent.name
            log.warning("hook %r: tools=%r matches no tool of agent %r (tools: %s)", hook, glob, agent, given)

    def check_tools(self, specs: Sequence[ToolSpec]) -> None:
        """Let hooks that know arguments of tools, such as rules of a file, check them against the tools of the agent.

        Raises:
            RegistrationError: a hook asks for something that no tool has.
        """
        for hook in self.own().hooks:
            if callable(check := getattr(hook, "check_tools", None)):
                check(specs)

    def inheritable(self) -> HookStack:
        """Return the hooks that nested runs inherit: all except those with ``inherit = False``.

        The guards of plugins that take part here are inherited without the name of their plugin: the plugin filter of a
        nested run must not switch them off.
        """
        stack = _inheritable(self.all())
        allowed, judging = self.allowed_plugins, _guards_among(stack)
        if not any(entry.plugin is not None and id(entry.hook) in judging for layer in stack.layers for entry in layer):
            return stack
        return HookStack(
            *(
                [
                    msgspec.structs.replace(entry, plugin=None)
                    if id(entry.hook) in judging and (allowed is None or entry.plugin in allowed)
                    else entry
                    for entry in layer
                ]
                for layer in stack.layers
            )
        )

    def callable(self) -> HookStack:
        """Return the hooks that may be called now: all except those that are running."""
        call = HOOK_CALL.get()
        if call is None or call is self.hook_call:
            return self.stack
        active, nested = running_hooks(), self._nested
        if nested[0] is not self.stack or nested[1] != active:
            self._nested = nested = self.stack, active, self.stack.without(active)
        return nested[2]


def redactions_of(answerer: Any) -> tuple[Any, ...]:
    """Return what the hooks of an agent declare for everything that is stored; of all agents of a roster or a team."""
    found = dict[int, Any]()
    for agent in _agents_in(answerer):
        found |= {id(each): each for each in agent.hooks.stack.redactions}
    return tuple(found.values())


def clean_for(answerer: Any, value: T) -> T:
    """Return a value as it may be stored before or after a run of an agent, a roster or a team."""
    return clean_with(redactions_of(answerer), value)


def clean_with(redactions: Iterable[Any], value: T) -> T:
    """Return a value with everything replaced that hooks declare."""
    for redaction in redactions:
        value = redaction.clean(value)
    return value


def _agents_in(answerer: Any) -> Iterator[Any]:
    members = answerer if isinstance(answerer, Mapping) else getattr(answerer, "members", None)
    if isinstance(members, Mapping):  # a roster or a team
        for member in (*members.values(), getattr(answerer, "base", None)):
            yield from _agents_in(member)
    elif isinstance(getattr(getattr(answerer, "hooks", None), "stack", None), HookStack):
        yield answerer


def _guards_among(hooks: HookStack) -> set[int]:
    """Return the ids of the hooks that count as guards, with all their points."""
    entries = (entry for layer in hooks.layers for entry in layer)
    return {id(entry.hook) for entry in entries if entry.phase == "guard" or entry.on_failure == "closed"}


def _inheritable(hooks: HookStack) -> HookStack:
    return hooks.where(lambda entry: getattr(entry.hook, "inherit", True))


def _joined(outer: HookStack, own: HookStack) -> HookStack:
    """Combine the hooks of an outer and a nested run. The outer hooks come first, and duplicates are removed."""
    if not outer.layers or own is outer:
        return own
    known = {(_rule(entry), entry.plugin) for layer in outer.layers for entry in layer}
    firm = {_rule(entry) for layer in own.layers for entry in layer if entry.plugin is None}
    rest = (tuple(e for e in layer if not known & {(_rule(e), None), (_rule(e), e.plugin)}) for layer in own.layers)
    # A hook that belongs to a plugin in the outer run but to no plugin here must not be filtered: keep this one.
    first = (tuple(e for e in layer if e.plugin is None or _rule(e) not in firm) for layer in outer.layers)
    return HookStack(*first, *filter(None, rest))


def _rule(entry: HookEntry) -> tuple[object, ...]:
    """Return the identity of an entry. The same hook may observe in one run and guard in another."""
    return id(entry.hook), entry.point, entry.phase, entry.on_failure, entry.timeout, entry.tools
