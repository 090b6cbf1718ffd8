"""The context of a run: what hooks and tools see of it (DESIGN 6.4). It only shows; verbs change."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol

from .._base.frozen import EMPTY, json_text
from .._base.text import is_number
from .._base.workers import in_thread
from .._kernel.errors import HooklineError
from .._kernel.events import Event
from .._kernel.payloads import ModelReply, ModelRequest
from .._kernel.points import Point, resolve
from .._kernel.registry import HookRegistry
from .._kernel.results import Verdict
from .._kernel.scope import BaseContext, Scope, scope_of
from .._kernel.state import AgentState
from .._kernel.values import Ids, Message, ToolSpec
from ..models.protocol import Model
from ..tools.registry import ToolRegistry, ToolsView
from .budget import Budget, BudgetView
from .cancellation import Interrupt
from .environment import Environment, make_id
from .events import ENGINE_EVENTS
from .session import Session

if TYPE_CHECKING:
    from random import Random

    from typing_extensions import TypeVar

    from .._kernel.hook import Hook

    # Type variables with defaults come with Python 3.13; type checkers know them from typing_extensions.
    DepsT = TypeVar("DepsT", default=object)
    DepsT_co = TypeVar("DepsT_co", default=object, covariant=True)
else:
    from typing import TypeVar

    DepsT = TypeVar("DepsT")
    DepsT_co = TypeVar("DepsT_co", covariant=True)


class GatedModel:
    """An async handle on the run's model (DESIGN 4.8)."""

    __slots__ = ("_ask", "_environment", "_model")

    def __init__(
        self,
        model: Model,
        ask: Callable[[Model, ModelRequest], Awaitable[ModelReply]],
        environment: Environment | None = None,
    ) -> None:
        self._model = model
        self._ask = ask
        self._environment = environment

    def using(self, model: Model) -> GatedModel:
        """The same handle on another model: its calls pass the same hooks and count in the same budget."""
        return GatedModel(model, self._ask, self._environment)

    @property
    def model(self) -> Model:
        """The model behind it, for an agent of your own; what is asked of it directly passes no hooks."""
        return self._model

    @property
    def name(self) -> str:
        """The model's name."""
        return self._model.name

    @property
    def provider(self) -> str:
        """Who serves it."""
        return self._model.provider

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """How many tokens a text or some messages take."""
        return self._counter.count_tokens(content)

    estimate_tokens = count_tokens

    async def count_request(self, request: ModelRequest) -> int:
        """How many tokens a whole request takes, its tools too: exactly, where the model can tell."""
        return int(await in_thread(getattr(self._counter, "count_request", self._count_parts), request))

    @property
    def _counter(self) -> Model:
        """The model that counts tokens; in a replay, the counts come from the tape."""
        return self._model if self._environment is None else self._environment.model(self._model)

    def _count_parts(self, request: ModelRequest) -> int:
        tools = "".join(f"{tool.name} {tool.description} {json_text(tool.parameters)}\n" for tool in request.tools)
        return self.count_tokens(request.messages) + (self.count_tokens(tools) if tools else 0)

    def complete(
        self,
        messages: str | Sequence[Message],
        *,
        purpose: str = "hook",
        tools: Sequence[ToolSpec] = (),
        response_format: Mapping[str, Any] | None = None,
        tool_choice: str | None = None,
        params: Mapping[str, Any] = EMPTY,
    ) -> Awaitable[ModelReply]:
        """Ask the model. The call fires ``before_llm`` and ``after_llm`` and counts in the budget.

        Args:
            messages: a conversation (messages, or mappings of their fields), or one user message as text.
            purpose: what the call is for, as hooks see it.
            tools: tools the model may call; calls come back in the reply and are not run.
            response_format: a JSON schema for the reply.
            tool_choice: ``None``, ``"none"``, ``"required"`` or a tool's name.
            params: further settings for the model.

        Raises:
            CallRefusedError: the call was ended, stopped, out of budget, or failed.
            HooklineError: it was made from sync code.
        """
        if purpose == "step":
            raise HooklineError('purpose "step" is for the calls of the loop itself; name another')
        given = (Message("user", messages),) if isinstance(messages, str) else tuple(map(Message.of, messages))
        request = ModelRequest(
            given, tuple(tools), self.name, purpose=purpose, response_format=response_format,
            tool_choice=tool_choice, params=params,
        )  # fmt: skip
        return self._ask(self._model, request)


class RunView(Protocol):
    """What the context of a run needs of its engine."""

    @property
    def state(self) -> Any:
        """The state as it is now."""
        ...

    def fire_from_hook(self, point: Point[Any], payload: Any) -> Awaitable[Verdict]:
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
        "agent_name",
        "allowed_plugins",
        "artifacts",
        "blackboard",
        "budget",
        "deps",
        "depth",
        "environment",
        "hooks",
        "ids",
        "interrupt",
        "llm",
        "memory",
        "origin",
        "run",
        "session",
        "tools",
    )  # fmt: skip

    def __init__(
        self,
        *,
        environment: Environment,
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
        self.environment = environment
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
        new.environment = self.environment.copy()
        new.tools = new.llm = new.run = new.origin = None
        return new


class AgentContext(BaseContext, Generic[DepsT_co]):
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
            environment=Environment(clock, new_id, random),
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
        return self._services.environment.clock

    @property
    def random(self) -> Random:
        """Where chance comes from; a seeded one makes runs repeatable."""
        return self._services.environment.random

    @property
    def new_id(self) -> Callable[[str], str]:
        """Makes fresh ids: ``ctx.new_id("note")``."""
        return self._services.environment.new_id

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
        return await run.fire_from_hook(resolve(point), payload)

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
        return build_context(services, Scope(None, AgentState(metadata=self.state.metadata)), hook_state={}, scratch={})


def build_context(
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


def context_for_call(ctx: AgentContext[Any], report: Callable[[float | None, str], None]) -> AgentContext[Any]:
    """The context of a run as one tool call gets it: its ``progress`` reports for that call."""
    return build_context(
        ctx._services, ctx._scope, hook_state=ctx._hook_state, scratch=ctx._scratch, report=report
    )  # fmt: skip


def new_services(budget: Budget, interrupt: Interrupt) -> Services:
    """The services of a run that was given no context."""
    return Services(
        environment=Environment(time, make_id),
        session=Session(make_id("session")),
        hooks=HookRegistry(),
        budget=budget,
        interrupt=interrupt,
    )


def services_of(ctx: AgentContext[Any]) -> Services:
    """The services behind a context, for the engine."""
    return ctx._services


def progress_reporter_of(ctx: AgentContext[Any]) -> Callable[[float | None, str], None] | None:
    """Where the context of a tool call reports progress, for the engine."""
    return ctx._report
