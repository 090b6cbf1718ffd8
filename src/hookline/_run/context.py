"""The context of a run: what hooks and tools see of it (DESIGN 6.4). It only shows; verbs change."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol

from .._base.text import is_number
from .._kernel.errors import HooklineError
from .._kernel.events import Event
from .._kernel.points import Point, resolve
from .._kernel.registry import HookRegistry
from .._kernel.results import Verdict
from .._kernel.scope import Scope, Window, scope_of
from .._kernel.state import AgentState
from .._kernel.values import Ids
from ..tools.registry import ToolRegistry, ToolsView
from .budget import Budget, BudgetView
from .events import ENGINE_EVENTS
from .interrupt import Interrupt, make_id
from .llm import GatedModel
from .session import Session
from .type_vars import DepsT_co
from .world import World

if TYPE_CHECKING:
    from random import Random

    from .._kernel.hook import Hook


class RunView(Protocol):
    """What the context of a run needs of its engine."""

    @property
    def state(self) -> Any:
        """The state as it is now."""
        ...

    def fire_for(self, point: Point[Any], payload: Any) -> Awaitable[Verdict]:
        """Fire a point for a hook or a tool."""
        ...

    def emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Put an event into the stream."""
        ...

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody would get such an event."""
        ...


class Services:
    """What a context hands to hooks and tools, in one place: all contexts of a run share it. Private to the engine."""

    __slots__ = (
        "agent_name", "allowed_plugins", "artifacts", "blackboard", "budget", "deps", "depth", "hooks", "ids",
        "interrupt", "llm", "memory", "origin", "run", "session", "tools", "world",
    )  # fmt: skip

    def __init__(
        self,
        *,
        world: World,
        session: Session,
        hooks: HookRegistry,
        budget: Budget,
        interrupt: Interrupt,
        memory: Any = None,
        artifacts: Any = None,
        blackboard: Any = None,
        deps: Any = None,
        allowed_plugins: tuple[str, ...] | None = None,
    ) -> None:
        self.world = world
        self.session = session
        self.hooks = hooks
        self.budget = budget
        self.interrupt = interrupt
        self.memory = memory
        self.artifacts = artifacts
        self.blackboard = blackboard
        self.deps = deps
        self.allowed_plugins = allowed_plugins
        self.ids = Ids()
        self.agent_name = ""
        self.depth = 0
        self.tools: ToolRegistry | None = None
        self.llm: GatedModel | None = None
        self.run: RunView | None = None
        """The engine of the run, while it goes on."""
        self.origin: RunView | None = None
        """The engine of the run that this context was detached from."""

    def copy(self) -> Services:
        """The same services, for a run of its own."""
        new = Services.__new__(Services)
        for name in Services.__slots__:
            setattr(new, name, getattr(self, name))
        new.world = self.world.copy()
        new.tools = new.llm = new.run = new.origin = None
        return new


class AgentContext(Window, Generic[DepsT_co]):
    """What hooks and tools see of a run: who and where, services, and the state, to read.

    Make one for a conversation and hand it to its runs with ``ctx=``; each run gets one of its own from it. Nothing on
    it changes the run: a hook does that with the verb it returns. ``scratch`` is yours to write, ``deps`` is whatever
    your tools and hooks need.

    Example:
        >>> ctx = AgentContext(deps=Database("shop.db"), budget=Budget(Limits(cost=0.50)))
        >>> agent.run("How many orders are open?", ctx=ctx)
    """

    __slots__ = ("_report", "_services")

    def __init__(
        self,
        *,
        session: Session | None = None,
        hooks: HookRegistry | Sequence[Hook] = (),
        budget: Budget | None = None,
        memory: Any = None,
        artifacts: Any = None,
        blackboard: Any = None,
        deps: DepsT_co | None = None,
        interrupt: Interrupt | None = None,
        allowed_plugins: Sequence[str] | None = None,
        clock: Any = time,
        random: Random | None = None,
        new_id: Callable[[str], str] = make_id,
    ) -> None:
        super().__init__()
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget= takes a Budget(Limits(tokens=...)), not {type(budget).__name__}")
        self._report: Callable[[float | None, str], None] | None = None
        self._services = Services(
            world=World(clock, new_id, random),
            session=session if session is not None else Session(new_id("session")),
            hooks=hooks if isinstance(hooks, HookRegistry) else HookRegistry(hooks),
            budget=budget if budget is not None else Budget(clock=clock),
            interrupt=interrupt if interrupt is not None else Interrupt(),
            memory=memory,
            artifacts=artifacts,
            blackboard=blackboard,
            deps=deps,
            allowed_plugins=None if allowed_plugins is None else tuple(allowed_plugins),
        )

    # Who and where.

    @property
    def ids(self) -> Ids:
        """All ids of this run."""
        return self._services.ids

    @property
    def run_id(self) -> str:
        """The id of this run; empty outside a run."""
        return self._services.ids.run_id

    @property
    def task_id(self) -> str:
        """The id of the task this run works on."""
        return self._services.ids.task_id

    @property
    def correlation_id(self) -> str:
        """The id that ties this run to what caused it."""
        return self._services.ids.correlation_id

    @property
    def agent_name(self) -> str:
        """The name of the agent that runs."""
        return self._services.agent_name

    @property
    def depth(self) -> int:
        """How many runs this one is inside of."""
        return self._services.depth

    @property
    def allowed_plugins(self) -> tuple[str, ...] | None:
        """The plugins that take part; ``None`` for all."""
        return self._services.allowed_plugins

    # Services.

    @property
    def deps(self) -> DepsT_co:
        """Whatever the caller gave for hooks and tools to use."""
        return self._services.deps  # type: ignore[no-any-return]

    @property
    def session(self) -> Session:
        """The conversation across runs."""
        return self._services.session

    @property
    def hooks(self) -> HookRegistry:
        """The hooks of the conversation."""
        return self._services.hooks

    @property
    def budget(self) -> BudgetView:
        """What was used so far, and what is left."""
        return BudgetView(self._services.budget)

    @property
    def memory(self) -> Any:
        """The memory that the caller gave."""
        return self._services.memory

    @property
    def artifacts(self) -> Any:
        """The store of artifacts that the caller gave."""
        return self._services.artifacts

    @property
    def blackboard(self) -> Any:
        """The blackboard that the caller gave."""
        return self._services.blackboard

    @property
    def interrupt(self) -> Interrupt:
        """Whether the run is cancelled, and the switch that cancels it."""
        return self._services.interrupt

    @property
    def tool_registry(self) -> ToolsView | None:
        """The tools of this run, to look at."""
        return None if self._services.tools is None else ToolsView(self._services.tools)

    @property
    def llm(self) -> GatedModel | None:
        """The model, behind the hooks and the budget of this run; ``None`` outside a run."""
        return self._services.llm

    @property
    def clock(self) -> Any:
        """Where time comes from, so that runs can be replayed."""
        return self._services.world.clock

    @property
    def random(self) -> Random:
        """Where chance comes from; a seeded one makes runs repeatable."""
        return self._services.world.random

    @property
    def new_id(self) -> Callable[[str], str]:
        """Makes fresh ids: ``ctx.new_id("note")``."""
        return self._services.world.new_id

    # What a hook or tool may do.

    async def fire(self, point: str, payload: Any) -> Verdict:
        """Fire a point from a hook or a tool: all hooks of this run take part, but those that are running.

        Raises:
            HookError: a hook failed closed.
            CallRefusedError: a model call that one of them made was refused.
            HooklineError: there is no run.
        """
        run = self._services.run
        if run is None:
            raise HooklineError("ctx.fire belongs to a run: outside of one, use registry.fire(point, payload)")
        return await run.fire_for(resolve(point), payload)

    def emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Put an event of your own type into the run's stream.

        Raises:
            TypeError: the type is one that the loop makes itself.
        """
        if issubclass(kind, tuple(ENGINE_EVENTS)):
            raise TypeError(f"{kind.__name__} is made by the loop: define an Event class of your own")
        if self._services.run is not None:
            self._services.run.emit(kind, **fields)

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody would get such an event: one that is costly to make need not be made."""
        return self._services.run is not None and self._services.run.wants(kind)

    def is_cancelled(self) -> bool:
        """Whether the current task is being cancelled; a hook may also raise CancelledError itself."""
        return scope_of(self).cancellation.is_cancelled()

    def progress(self, fraction: float | None = None, message: str = "") -> None:
        """Report how far a tool is (``fraction`` of 1). Safe from any thread.

        Raises:
            HooklineError: called outside a tool.
            ValueError: a fraction outside 0 to 1.
            TypeError: a fraction that is no number, or a message that is not text.
        """
        if self._report is None:
            raise HooklineError("ctx.progress belongs to a tool call: give the tool a 'ctx' parameter and use that one")
        if fraction is not None and not is_number(fraction):
            raise TypeError(f"progress(fraction, message): fraction is a number from 0 to 1, not {fraction!r:.80}")
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"fraction goes from 0 to 1, not {fraction!r}")
        if not isinstance(message, str):
            raise TypeError(f"message is text, not {type(message).__name__}")
        self._report(fraction, message)

    def detached(self, *, budget: Budget | None = None) -> AgentContext[DepsT_co]:
        """A context for work that may outlive this run: runs started with it have the same hooks and plugin filter.

        It is not cancelled with the run, and counts in the run's ledger unless it is given one of its own.
        """
        services = self._services.copy()
        services.interrupt = Interrupt()
        services.origin = self._services.run
        if budget is not None:
            services.budget = budget
        return make_window(services, Scope(None, AgentState(metadata=self.state.metadata)), hook_state={}, scratch={})


def make_window(
    services: Services,
    scope: Scope | None,
    *,
    hook_state: dict[int, Any],
    scratch: dict[str, Any],
    report: Callable[[float | None, str], None] | None = None,
) -> AgentContext[Any]:
    """A context that shows these services and the state of this scope."""
    ctx: AgentContext[Any] = AgentContext.__new__(AgentContext)
    ctx._services = services
    ctx._scope = scope
    ctx._hook_state = hook_state
    ctx._scratch = scratch
    ctx._report = report
    return ctx


def for_call(ctx: AgentContext[Any], report: Callable[[float | None, str], None]) -> AgentContext[Any]:
    """The context of a run as one tool call gets it: its ``progress`` reports for that call."""
    return make_window(
        ctx._services, ctx._scope, hook_state=ctx._hook_state, scratch=ctx._scratch, report=report
    )  # fmt: skip


def new_services(budget: Budget, interrupt: Interrupt) -> Services:
    """The services of a run that was given no context."""
    return Services(
        world=World(time, make_id), session=Session(make_id("session")), hooks=HookRegistry(), budget=budget,
        interrupt=interrupt,
    )  # fmt: skip


def services_of(ctx: AgentContext[Any]) -> Services:
    """The services behind a context, for the engine."""
    return ctx._services


def report_of(ctx: AgentContext[Any]) -> Callable[[float | None, str], None] | None:
    """Where the context of a tool call reports progress, for the engine."""
    return ctx._report
