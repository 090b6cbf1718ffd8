"""The options of a run, typed, and the engine that is made of them (DESIGN 6.6)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypedDict

from .._base.frozen import freeze
from .._kernel.errors import HooklineError
from .._kernel.hook import unmatched_globs
from .._kernel.registry import EMPTY_STACK, HookRegistry, HookStack
from .._kernel.scope import CURRENT, running_hooks
from .._kernel.values import Ids
from ..plugins.loading import without_plugins
from .budget import Budget, Limits
from .cancellation import Cancellation, Interrupt
from .context import AgentContext, DepsT, Services, new_services, services_of
from .engine import AgentSetup, Engine
from .events import EventStream, Sink, listener, log
from .model_call import make_gated_model
from .output import OutputSpec, RunOutput, output_spec
from .run_hooks import RunHooks
from .session import Session
from .state import RunState

if TYPE_CHECKING:
    from .._kernel.hook import Hook


class RunOptions(TypedDict, Generic[DepsT], total=False):
    """The keyword options of ``agent.run``, ``arun``, ``stream`` and ``start``, all but ``output_type``."""

    ctx: AgentContext[Any] | None
    """The conversation's context; a fresh one if left out."""
    session: Session | None
    """The transcript to go on with; the context's if left out."""
    hooks: Iterable[Hook]
    """Hooks for this run only."""
    metadata: Mapping[str, Any]
    """The user's data for ``ctx.state.metadata``."""
    deps: DepsT | None
    """Whatever hooks and tools need, as ``ctx.deps``."""
    task_id: str | None
    """An id of the task; the run's own if left out."""
    correlation_id: str | None
    """Ties the run to what caused it; the task id if left out."""
    allowed_plugins: Iterable[str] | None
    """``None`` all; ``[]`` none; a list: these."""
    sinks: Sequence[Sink]
    """Callables that get every event."""
    every_call: bool
    """Whether every hook call becomes an event, not only those that said something."""
    inherit: bool
    """Whether the hooks, the budget, the metadata and the cancellation of the run around this one hold here too.

    Inside a run (in a tool or a hook) that is the default; ``False`` is the explicit way out. With the ``ctx`` of that
    run, ``False`` leaves out its hooks and metadata only: the context brings its budget and its cancellation.
    """


_SILENT = EventStream("", time.time)
"""The stream of all runs that nobody listens to."""

KNOWN = frozenset((*RunOptions.__annotations__, "output_type"))
_OF_CONTEXT = frozenset(("artifacts", "blackboard", "budget", "clock", "interrupt", "memory", "new_id", "random"))


class RunAgent(AgentSetup, Protocol):
    """What preparing a run needs to know of its agent."""

    name: str
    instructions: str
    response_format: Any
    output_spec: OutputSpec | None
    output_retries: int
    limits: Limits
    deps_type: Any
    allowed_plugins: tuple[str, ...] | None
    sinks: tuple[Sink, ...]
    unchecked_globs: bool
    """Whether nobody has looked yet if the ``tools=`` of its hooks fit any tool."""


def check_options(task: object, options: Mapping[str, Any]) -> None:
    """Say what is wrong with the options of a run, before anything happens.

    Raises:
        TypeError: an unknown option, or a value of the wrong type.
    """
    if not isinstance(task, str):
        raise TypeError(f"the task is text, not {type(task).__name__}")
    if not options:
        return
    if unknown := sorted(options.keys() - KNOWN):
        of_context = [name for name in unknown if name in _OF_CONTEXT]
        hint = f"; say ctx=AgentContext({of_context[0]}=...)" if of_context else ""
        raise TypeError(f"unknown option {', '.join(unknown)}{hint}; known: {', '.join(sorted(KNOWN))}")
    ctx, session, metadata = options.get("ctx"), options.get("session"), options.get("metadata")
    if ctx is not None and not isinstance(ctx, AgentContext):
        raise TypeError(f"ctx= takes an AgentContext, not {type(ctx).__name__}")
    if session is not None and not isinstance(session, Session):
        raise TypeError(f"session= takes a Session, not {type(session).__name__}")
    if metadata and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata= takes a dict such as {{'user_role': 'admin'}}, not {metadata!r:.80}")


def plugin_names(allowed_plugins: Iterable[str] | None) -> tuple[str, ...] | None:
    """A filter of plugins as a tuple.

    Raises:
        TypeError: it is one name instead of a list of names.
    """
    if isinstance(allowed_plugins, str):
        raise TypeError(f"allowed_plugins is a list of names: [{allowed_plugins!r}]")
    return None if allowed_plugins is None else tuple(allowed_plugins)


class Preparation:
    """Makes the engine of a run from the agent, the options and the run around it, part by part."""

    def __init__(self, agent: RunAgent, task: str, options: RunOptions[Any], output_type: Any, *, keep: bool) -> None:
        check_options(task, options)
        self._agent = agent
        self._options = options
        self._output_type = output_type
        self._keep = keep
        self._given = options.get("ctx")
        self._inherit = options.get("inherit", True)
        self._cancellation = Cancellation()
        self.outer = self._find_outer()
        """The run that this one is inside of, if it is."""
        self._services = self._make_services()
        self.base = self._services.session.messages
        """The transcript that the run goes on from."""
        self.engine = self._make_engine()

    def _find_outer(self) -> Engine | None:
        """The run around this one: the one of the given context, else the one whose tool or hook is calling."""
        current = CURRENT.get()
        around = current if isinstance(current, Engine) and current.services.run is current else None
        if self._given is not None:
            services = services_of(self._given)
            outer = services.run or services.origin
            if outer is None and services.ids.run_id:
                raise HooklineError(
                    f"the run of this context is over: give {self._agent.name!r} a ctx.detached() made while it runs"
                )
            if isinstance(outer, Engine):
                return outer
        return around if self._inherit else None

    # Services and identity.

    def _make_services(self) -> Services:
        agent, options = self._agent, self._options
        base = self._base_services()
        services = base.copy() if self._given is not None or self.outer is not None else base
        parent = self.outer.services if self.outer is not None else base
        services.depth = parent.depth + bool(parent.ids.run_id)
        services.session = self._session(base)
        if (deps := options.get("deps")) is not None:
            services.deps = deps
            if isinstance(agent.deps_type, type) and not isinstance(deps, agent.deps_type):
                wanted, got = agent.deps_type.__name__, type(deps).__name__
                raise TypeError(f"deps= of agent {agent.name!r} takes a {wanted}, not a {got}")
        run_id = services.environment.new_id("run")
        task_id = str(options.get("task_id") or run_id)
        correlation_id = str(options.get("correlation_id") or parent.ids.correlation_id or task_id)
        services.ids = Ids(run_id, task_id, correlation_id, services.session.id, agent.name, parent.ids.run_id)
        services.agent_name = agent.name
        services.allowed_plugins = self._allowed_plugins(parent if self._inherits else base)
        services.budget = self._budget(base)
        if services is not base:
            services.interrupt = Interrupt(self._cancellation.request)
        return services

    def _base_services(self) -> Services:
        """Where the services come from: the given context, else the run around, else nothing but defaults."""
        if self._given is not None:
            return services_of(self._given)
        if self.outer is not None:
            return self.outer.services
        return new_services(Budget(self._agent.limits), Interrupt(self._cancellation.request))

    def _session(self, base: Services) -> Session:
        session = self._options.get("session")
        if session is None:  # a run inside a run is a conversation of its own
            session = Session() if base.ids.run_id else base.session
        if not session.id:
            session.id = base.environment.new_id("session")
        return session

    def _allowed_plugins(self, base: Services) -> tuple[str, ...] | None:
        """The narrowest of all filters: a run can only be given fewer plugins."""
        allowed = base.allowed_plugins
        if (names := plugin_names(self._options.get("allowed_plugins"))) is not None:
            allowed = _intersection(names, allowed if self._inherits else None)
        if self._agent.allowed_plugins is not None:
            allowed = _intersection(self._agent.allowed_plugins, allowed)
        return allowed

    def _budget(self, base: Services) -> Budget:
        if self._given is None and self.outer is None:
            return base.budget
        detached = base.origin is not None  # it counts where it was told to, not in the run that it left
        outer = None if self.outer is None or detached else self.outer.budget
        return base.budget.child(self._agent.limits, outer=outer)

    @property
    def _inherits(self) -> bool:
        return self.outer is not None and self._inherit

    # State, hooks and events.

    def _make_engine(self) -> Engine:
        agent, services, options = self._agent, self._services, self._options
        output = agent.output_spec if self._output_type is None else output_spec(self._output_type)
        state = RunState(
            services.ids, services.budget, self.base, self._metadata(), agent.instructions,
            agent.response_format if output is None else output.schema,
        )  # fmt: skip
        own = options.get("hooks")
        hooks = RunHooks(
            agent,
            services.hooks,
            HookRegistry(without_plugins(own)).stack if own else EMPTY_STACK,
            self.outer.hooks if self.outer is not None and self._inherit else None,
            services.allowed_plugins,
            running_hooks(),
        )
        events, every_call = self._make_events(hooks)
        shared = self._given or (self.outer.ctx if self.outer is not None else None)
        engine = Engine(
            agent, services, state, hooks, events, self._cancellation, {} if shared is None else shared.scratch,
            every_call=every_call,
        )  # fmt: skip
        if output is not None:
            engine.output = RunOutput(output, agent.output_retries)
        services.llm = make_gated_model(engine, agent.model)
        if agent.unchecked_globs:
            agent.unchecked_globs = False
            _warn_of_unmatched_globs(agent.name, hooks.own(), [tool.name for tool in engine.tools])
        return engine

    def _metadata(self) -> Mapping[str, Any]:
        metadata = self._services.session.metadata
        if self._inherits and self.outer is not None and (inherited := self.outer.run_state.metadata):
            metadata = freeze({**metadata, **inherited})  # its hooks judge by them
        if given := self._options.get("metadata"):
            metadata = freeze({**metadata, **given})
        return metadata

    def _make_events(self, hooks: RunHooks) -> tuple[EventStream, bool]:
        services, outer = self._services, self.outer
        listeners = {id(hook): hook for hook in hooks.allowed.listeners}
        sinks = [*map(listener, listeners.values()), *self._agent.sinks, *(self._options.get("sinks") or ())]
        every_call = bool(self._options.get("every_call"))
        if outer is not None and (relay := outer.events.relay(services.ids)) is not None:
            sinks.append(relay)
            every_call = every_call or outer.tracing
        every_call = every_call or any(getattr(sink, "every_call", False) for sink in sinks)
        if not sinks and not self._keep:
            return _SILENT, False
        clock = services.environment.clock
        return EventStream(services.ids.run_id, getattr(clock, "stamp", clock.time), sinks, self._keep), every_call


def _warn_of_unmatched_globs(agent: str, hooks: HookStack, tools: list[str]) -> None:
    """Say once which ``tools=`` fits no tool of an agent: it is probably misspelt, and guards nothing.

    Hooks of the run around are for the tools of that run, so they are not looked at.
    """
    entries = [entry for point in hooks.points for entry in hooks.entries(point)]
    for name, glob in dict.fromkeys((entry.name, glob) for entry, glob in unmatched_globs(entries, tools)):
        log.warning(
            "hook %r: tools=%r matches no tool of agent %r (tools: %s)", name, glob, agent, ", ".join(tools) or "none"
        )


def _intersection(names: tuple[str, ...], filtered: tuple[str, ...] | None) -> tuple[str, ...]:
    return names if filtered is None else tuple(name for name in names if name in filtered)
