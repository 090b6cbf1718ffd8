"""The options of a run, and the preparation of its engine (DESIGN 6.6)."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, Required, TypedDict

from .._base.attachment import Attachment, attachments_of
from .._base.frozen import freeze, plain
from .._kernel.errors import HooklineError, RegistrationError
from .._kernel.registry import EMPTY_STACK, plugin_names, stack_of
from .._kernel.scope import CURRENT, running_hooks
from .._kernel.validation import check_bool
from .._kernel.values import Ids
from ..plugins.loading import without_plugins
from .budget import Budget, Limits, Spending
from .cancellation import Cancellation, Interrupt
from .context import AgentContext, DepsT, Services, call_of, lane_of, new_services, services_of
from .deps import check_context_types, check_deps
from .engine import Engine
from .environment import Environment
from .events import EventStream, Sink, listener
from .halt import HaltSwitch
from .lanes import Lane, lane_in
from .model_call import make_gated_model
from .output import RunOutput, output_spec
from .run_agent import STREAM_MODES, RunAgent, StreamMode
from .run_hooks import RunHooks, clean_with
from .session import Session
from .state import RunState

if TYPE_CHECKING:
    from .._kernel.hook_types import HookFor
    from .journal import JournalStore, RunHead


class CommonRunOptions(TypedDict, Generic[DepsT], total=False):
    """The keyword options of a run except ``ctx``, ``deps`` and ``output_type``."""

    session: Session | None
    """The conversation to continue; by default that of the context."""
    hooks: Iterable[HookFor[AgentContext[DepsT]]]
    """Additional hooks for this run."""
    metadata: Mapping[str, Any]
    """Data for ``ctx.state.metadata``."""
    limits: Limits | None
    """Limits of this run. Those of the agent and of the conversation apply too."""
    task_id: str | None
    """The id of the task; by default the id of the run."""
    correlation_id: str | None
    """An id that connects the run to its origin; by default the id of the task."""
    allowed_plugins: Iterable[str] | None
    """The names of the plugins that take part: ``None`` for all, ``[]`` for none."""
    attachments: Iterable[Attachment | str | os.PathLike[str] | bytes]
    """Images, PDF, audio and other files for the model: attachments, paths, URLs or bytes."""
    sinks: Iterable[Sink]
    """Callables that get every event of the run."""
    every_call: bool
    """Whether every hook call becomes an event, not only those with a result."""
    stream: StreamMode
    """When text is shown; by default as the agent's ``stream`` says.

    With ``safe``, the text of a reply is held until no hook can reject or change it: that is, if a hook decides at
    ``after_llm`` and does not also judge ``on_token``. With ``live``, text is shown at once, and a
    :class:`~hookline.events.Discarded` event withdraws rejected text. A nested run has the mode of its outer run
    and may only choose ``safe``.
    """
    durable: JournalStore | None
    """A :class:`hookline.stores.RunStore`. The run writes a journal, from which another process can continue it."""
    run_id: str | None
    """The id of a durable run. If the store has the run, it is continued; if it has ended, its result is returned."""
    inherit: bool
    """Whether a nested run inherits the hooks, budget, metadata and cancellation of the outer run; true by default.

    A nested run is started inside another run, in a tool or a hook. With the ``ctx`` of the outer run, ``False`` only
    leaves out its hooks and metadata: the context contains its budget and its cancellation.
    """


class RunOptions(CommonRunOptions[DepsT], Generic[DepsT], total=False):
    """The keyword options of ``agent.run``, ``arun``, ``stream`` and ``start`` except ``output_type``."""

    ctx: AgentContext[Any] | None
    """The context of the conversation; a new one by default."""
    deps: DepsT | None
    """An object for hooks and tools, as ``ctx.deps``. An agent with a ``deps_type`` needs it, here or in ``ctx``."""


class OptionsWithDeps(CommonRunOptions[DepsT], Generic[DepsT], total=False):
    """The options of a run that needs ``deps``, if they are given."""

    ctx: AgentContext[Any] | None
    deps: Required[DepsT]


class OptionsWithContext(CommonRunOptions[DepsT], Generic[DepsT], total=False):
    """The options of a run that needs ``deps``, if they are in its context."""

    ctx: Required[AgentContext[DepsT]]
    deps: DepsT | None


_RUN_ID = re.compile(r"[A-Za-z0-9_.:@+-]{1,200}")

_SILENT = EventStream("", time.time)
"""The stream of all runs without consumers of events."""

KNOWN_OPTIONS = frozenset((*RunOptions.__optional_keys__, "output_type"))
_OF_CONTEXT = frozenset(
    ("artifacts", "blackboard", "budget", "clock", "halts", "interrupt", "memory", "new_id", "random")
)


def check_options(task: object, options: Mapping[str, Any]) -> None:
    """Check the options of a run before anything happens.

    Raises:
        TypeError: an unknown option, or a value of the wrong type.
    """
    if not isinstance(task, str):
        raise TypeError(f"the task must be text, not {type(task).__name__}")
    if not options:
        return
    if unknown := sorted(options.keys() - KNOWN_OPTIONS):
        of_context = [name for name in unknown if name in _OF_CONTEXT]
        hint = f"; use ctx=AgentContext({of_context[0]}=...)" if of_context else ""
        raise TypeError(f"unknown option {', '.join(unknown)}{hint}; known: {', '.join(sorted(KNOWN_OPTIONS))}")
    ctx, session, metadata = options.get("ctx"), options.get("session"), options.get("metadata")
    if ctx is not None and not isinstance(ctx, AgentContext):
        raise TypeError(f"ctx= takes an AgentContext, not {type(ctx).__name__}")
    if session is not None and not isinstance(session, Session):
        raise TypeError(f"session= takes a Session, not {type(session).__name__}")
    if metadata and not isinstance(metadata, Mapping):
        raise TypeError(f"metadata= takes a dict such as {{'user_role': 'admin'}}, not {metadata!r:.80}")
    if (limits := options.get("limits")) is not None and not isinstance(limits, Limits):
        raise TypeError(f"limits= takes Limits(steps=10, tokens=20000), not {limits!r:.80}")
    if options.get("run_id") is not None and options.get("durable") is None:
        raise TypeError("run_id= identifies a durable run: give durable=RunStore('runs.db') too")
    if (run_id := options.get("run_id")) is not None and not (isinstance(run_id, str) and _RUN_ID.fullmatch(run_id)):
        raise TypeError(f"run_id= takes letters, digits and any of '_.:@+-', at most 200, not {run_id!r:.80}")
    if (mode := options.get("stream", "safe")) not in STREAM_MODES:
        raise TypeError(f"stream must be one of {', '.join(STREAM_MODES)}, not {mode!r:.80}")
    if (store := options.get("durable")) is not None and not hasattr(store, "journal"):
        raise TypeError(f"durable= takes a store such as RunStore('runs.db'), not {store!r:.80}")
    for name in ("every_call", "inherit"):
        check_bool(options.get(name, False), name)


def event_sinks(sinks: Iterable[Sink]) -> tuple[Sink, ...]:
    """Return the consumers of events that ``sinks=`` names.

    Raises:
        RegistrationError: it is not a list of callables.
    """
    expected = "sinks must be a list of callables that take an event"
    if callable(sinks) or isinstance(sinks, (str, Mapping)) or not isinstance(sinks, Iterable):
        raise RegistrationError(f"{expected}, not {type(sinks).__name__}: write sinks=[...]")
    found = tuple(sinks)
    for sink in found:
        if not callable(sink):
            raise RegistrationError(f"{expected}: {sink!r:.80} cannot be called")
    return found


class Preparation:
    """Creates the engine of a run from the agent, the options and the outer run."""

    def __init__(
        self, agent: RunAgent, task: str, options: RunOptions[Any], output_type: Any, *, keep: bool, run_id: str = ""
    ) -> None:
        check_options(task, options)
        self._run_id = run_id
        sys.audit("hookline.run", agent.name)  # a backtest refuses it
        self._agent = agent
        self._options = options
        self._keep = keep
        self._given = options.get("ctx")
        self._inherit = options.get("inherit", True)
        # Before a durable run takes its lease: a wrong option must not leave a run that nobody executes.
        self._sinks = event_sinks(sinks) if (sinks := options.get("sinks")) else ()
        self._hooks = EMPTY_STACK
        if own := options.get("hooks"):
            self._hooks = stack_of(without_plugins(own))
            check_context_types(agent.name, agent.deps_type, self._hooks.hooks)
        self._output = agent.output_spec if output_type is None else output_spec(output_type)
        self._cancellation = Cancellation()
        self.is_detached = self._given is not None and services_of(self._given).detached_from is not None
        """Whether the run has a context of ``ctx.detached()``: it has the hooks of the outer run and may outlive it."""
        self.outer = self._find_outer()
        """The outer run, if this is a nested run."""
        self.task = task
        self._head = self._stored_head()
        self._services = self._make_services()
        given = options.get("attachments")
        self.attachments = attachments_of(given, agent.max_attachment) if given else ()
        self.base = self._services.session.messages
        """The transcript at the start of the run."""
        if self._head is not None:
            if tuple(self.base) != self._head.messages:  # the conversation was saved before the process ended
                self.base = self._head.messages
            self.attachments = self._head.attachments
        if (store := options.get("durable")) is not None:
            self._make_durable(store)
        self.engine = self._make_engine()

    def _find_outer(self) -> Engine | None:
        """Return the outer run: that of the given context, or else the run whose tool or hook is calling.

        Raises:
            HooklineError: that run has ended, so that its hooks would not apply.
        """
        if self._given is not None:
            services = services_of(self._given)
            outer = services.run or services.detached_from
            if outer is None and services.ids.run_id:
                raise HooklineError(
                    f"the run of this context has ended: give {self._agent.name!r} a ctx.detached() of the run"
                )
            if isinstance(outer, Engine):
                return outer
        enclosing = CURRENT.get()
        if not self._inherit or not isinstance(enclosing, Engine):
            return None
        if enclosing.services.run is not enclosing:
            raise HooklineError(
                f"the run {enclosing.ids.run_id} that started this code has ended, and its hooks with it: give "
                f"{self._agent.name!r} a ctx.detached() of that run, or inherit=False for a run without its hooks"
            )
        return enclosing

    # Durable runs.

    def _stored_head(self) -> RunHead | None:
        """Return the input of a durable run that the store has, or ``None``.

        Raises:
            HooklineError: the stored run is that of another agent or task.
        """
        store, run_id = self._options.get("durable"), self._options.get("run_id")
        if store is None:
            return None
        if self.outer is not None and self._outer_environment.boundary.is_durable:
            raise HooklineError("a run inside a durable run is part of its journal: leave out durable=")
        if run_id is None:
            return None
        from .journal import stored_head

        return stored_head(store.journal, run_id, self._agent.name, self.task)

    def _make_durable(self, store: JournalStore) -> None:
        """Take the lease of the run, and make its journal the boundary of the run.

        Raises:
            RunHaltedError: the run is halted, and has not ended.
        """
        from .durable import hold_run, open_run
        from .journal import RunHead, contents_of, listed_task

        services, head = self._services, self._head
        halt = next(filter(None, (switch.current() for switch in services.halts)), None)
        if head is None:
            head = RunHead(
                services.ids,
                self.task,
                tuple(self.base),
                plain(self._metadata()),
                not services.session.started,
                self.attachments,
                contents_of(self.attachments),
                spent=self._base_services().budget.spending if self._given is not None else Spending(),
                settings=getattr(store, "begun_with", None),
                origin=services.origin.name,
                listed=listed_task(self.task, self._cleaned),
            )
        if halt is not None:
            hold_run(store, head, halt)
        services.environment.boundary = open_run(store, head)

    def _cleaned(self, text: str) -> str:
        """Return a text as it may be stored, by the hooks that the run will have."""
        stacks = self._agent.hooks.stack, self._services.hooks.stack, self._hooks
        return clean_with([each for stack in stacks for each in stack.redactions], text)

    # Services and identity.

    def _make_services(self) -> Services:
        agent, options = self._agent, self._options
        base = self._base_services()
        services = base.copy() if self._given is not None or self.outer is not None else base
        parent = self.outer.services if self.outer is not None else base
        services.depth = parent.depth + bool(parent.ids.run_id)
        services.tree_state = parent.tree_state if self._inherits else {}
        services.session = self._session(base)
        services.origin = parent.origin
        if self.is_detached:
            services.environment = self._outer_environment
        if (deps := options.get("deps")) is not None:
            services.deps = deps
        if agent.deps_type is not None and not services.environment.boundary.is_replay:  # a recording has no deps
            check_deps(agent.name, agent.deps_type, services.deps)
        if self._head is not None:
            services.ids = self._head.ids
            base.budget.resume(self._head.spent)
        else:
            run_id = options.get("run_id") or self._run_id or self._new_run_id(services.environment)
            task_id = str(options.get("task_id") or run_id)
            correlation_id = str(options.get("correlation_id") or parent.ids.correlation_id or task_id)
            services.ids = Ids(run_id, task_id, correlation_id, services.session.id, agent.name, parent.ids.run_id)
        if self.outer is not None and (call := call_of(self._given)) is not None:
            services.call_id = call.id if call.ids.run_id == parent.ids.run_id else ""
        services.lane = self._lane(services.environment)
        services.agent_name = agent.name
        services.allowed_plugins = self._allowed_plugins(parent if self._inherits else base)
        services.budget = self._budget(base)
        services.halts = self._halts(base)
        if services is not base:
            services.interrupt = Interrupt(self._cancellation.request)
        return services

    def _new_run_id(self, environment: Environment) -> str:
        if self._given is None:
            return environment.new_id("run")
        with self._given._enter():  # the id is on the tape of the run or tool call whose context it is
            return environment.new_id("run")

    def _lane(self, environment: Environment) -> Lane | None:
        """Return the lane of a nested run. The boundary of an outermost run gives it a lane.

        In a thread without a copy of the context, ``ctx=`` says which tool or run the code is part of.
        """
        if self.outer is None or environment.boundary.is_direct:
            return None
        lane = lane_in(self.outer.services.lane if self._given is None else lane_of(self._given))
        return None if lane is None else lane.of_run(detached=self.is_detached)

    @property
    def _outer_environment(self) -> Environment:
        """The environment of the outer run; for a detached run without its tape and journal, if they are closed."""
        assert self.outer is not None
        environment = self._base_services().environment
        return environment.copy() if self.outer.services.run is self.outer else environment.detached()

    def _base_services(self) -> Services:
        """Return the services to start from: those of the given context, else of the outer run, else defaults."""
        if self._given is not None:
            return services_of(self._given)
        if self.outer is not None:
            return self.outer.services
        return new_services(Budget(self._limits), Interrupt(self._cancellation.request))

    def _session(self, base: Services) -> Session:
        session = self._options.get("session")
        if session is None:  # a nested run has its own conversation
            session = Session() if base.ids.run_id else base.session
        if self._head is not None and session.id != self._head.ids.session_id:
            if session.id and (self._options.get("session") is not None or self._given is not None):
                raise HooklineError(f"run {self._head.ids.run_id} belongs to session {self._head.ids.session_id}")
            session = session._of_stored_run(self._head.ids.session_id, self._head.messages, fresh=self._head.fresh)
        if not session.id:
            session.id = base.environment.new_id("session")
        return session

    def _allowed_plugins(self, base: Services) -> tuple[str, ...] | None:
        """Return the intersection of all filters: a run can only allow fewer plugins."""
        allowed = base.allowed_plugins
        if (names := plugin_names(self._options.get("allowed_plugins"))) is not None:
            allowed = _intersection(names, allowed if self._inherits else None)
        if self._agent.allowed_plugins is not None:
            allowed = _intersection(self._agent.allowed_plugins, allowed)
        return allowed

    def _budget(self, base: Services) -> Budget:
        if self._given is None and self.outer is None:
            return base.budget
        # A detached run counts in the budget of its context, which need not be that of the outer run.
        outer = None if self.outer is None or self.is_detached else self.outer.budget
        return base.budget.child(self._limits, outer=outer)

    @property
    def _limits(self) -> Limits:
        """The limits of the run that no hook declares."""
        own: Limits | None = self._options.get("limits")
        return self._agent.limits if own is None else self._agent.limits.stricter(own)

    def _halts(self, base: Services) -> tuple[HaltSwitch, ...]:
        """Return the stop switches of the context, of the lists of runs, of the journal, and of all outer runs.

        Those of outer runs count whatever ``inherit`` says.
        """
        found = [*base.halts]
        for stack in (self._agent.hooks.stack, base.hooks.stack, self._hooks):
            for hook in stack.halting:
                if hook.halts is not None:
                    found.append(hook.halts)
        store = self._options.get("durable")
        if store is not None and (own := getattr(store, "halts", None)) is not None:
            found.append(own)
        for run in (self.outer, CURRENT.get()):
            if run is not None and isinstance(run, Engine):
                found += run.services.halts
        return tuple(dict.fromkeys(found)) if found else ()

    @property
    def _inherits(self) -> bool:
        return self.outer is not None and self._inherit

    # State, hooks and events.

    def _make_engine(self) -> Engine:
        agent, services, options = self._agent, self._services, self._options
        output = self._output
        state = RunState(
            services.ids,
            services.budget,
            self.base,
            self._metadata(),
            agent.instructions,
            agent.response_format if output is None else output.schema,
        )
        hooks = RunHooks(
            agent,
            services.hooks,
            self._hooks,
            self.outer.hooks if self.outer is not None and self._inherit else None,
            services.allowed_plugins,
            running_hooks(),
            tuple(services.session._guards.values()),
        )
        events = self._make_events(hooks)
        shared = self._given or (self.outer.ctx if self.outer is not None else None)
        engine = Engine(
            agent,
            services,
            state,
            hooks,
            events,
            self._cancellation,
            {} if shared is None else shared.scratch,
        )
        # The text of a nested run is also in the stream of the outer run, so it is live only if that is.
        outer_mode: StreamMode = "live" if self.outer is not None and self.outer.live else "safe"
        mode = options.get("stream", outer_mode if self.outer is not None else agent.stream_mode)
        engine.live = mode == "live" and (self.outer is None or self.outer.live)
        if output is not None:
            engine.output = RunOutput(output, agent.output_retries)
        services.llm = make_gated_model(engine, agent.model)
        if agent.unchecked_globs:
            agent.unchecked_globs = False
            hooks.warn_about_unmatched_globs([tool.name for tool in engine.tools])
            hooks.check_tools([tool.spec for tool in engine.tools])
        return engine

    def _metadata(self) -> Mapping[str, Any]:
        if self._head is not None:
            stored: Mapping[str, Any] = freeze(self._head.metadata or {})
            return stored
        metadata = self._services.session.metadata
        if self._inherits and self.outer is not None and (inherited := self.outer.run_state.metadata):
            metadata = freeze({**metadata, **inherited})  # the inherited hooks depend on it
        if given := self._options.get("metadata"):
            metadata = freeze({**metadata, **given})
        return metadata

    def _make_events(self, hooks: RunHooks) -> EventStream:
        services, outer = self._services, self.outer
        listeners = {id(hook): hook for hook in hooks.allowed.listeners}
        boundary = services.environment.boundary
        sinks = [*map(listener, listeners.values()), *self._agent.sinks, *self._sinks, *boundary.sinks_of(services.ids)]
        if outer is not None and (relay := outer.events.relay(services.ids)) is not None:
            sinks.append(relay)
        if not sinks and not self._keep:
            return _SILENT
        clock = services.environment.clock
        now, every_call = getattr(clock, "stamp", clock.time), bool(self._options.get("every_call"))
        stream = EventStream(services.ids.run_id, now, sinks, self._keep, every_call=every_call)
        stream.is_new = None if boundary.is_direct else boundary.is_new
        return stream


def _intersection(names: tuple[str, ...], filtered: tuple[str, ...] | None) -> tuple[str, ...]:
    return names if filtered is None else tuple(name for name in names if name in filtered)
