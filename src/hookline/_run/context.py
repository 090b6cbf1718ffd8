"""The context of a run, which hooks and tools get as ``ctx`` (DESIGN 6.4). It is read-only."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Protocol

from .._base.frozen import EMPTY, json_text
from .._base.text import is_number
from .._base.workers import in_thread
from .._kernel.errors import HooklineError
from .._kernel.events import Event
from .._kernel.payloads import ApprovalAnswer, ModelReply, ModelRequest, ToolCallRequest
from .._kernel.points import Point, resolve
from .._kernel.registry import HookRegistry, plugin_names
from .._kernel.results import Verdict
from .._kernel.scope import BaseContext, HookState, Scope, scope_of
from .._kernel.state import AgentState
from .._kernel.values import Ids, Message, ToolSpec, Usage
from ..models.protocol import Model
from ..tools.registry import ToolRegistry, ToolsView
from .budget import NO_LIMITS, Budget, BudgetView, Limits
from .cancellation import Interrupt
from .environment import Environment, make_id
from .events import ENGINE_EVENTS
from .halt import HaltSwitch
from .lanes import Lane, in_lane, lane_in
from .session import Session

if TYPE_CHECKING:
    from random import Random

    from typing_extensions import TypeVar

    from .._kernel.hook import Hook

    # Type variables with defaults need Python 3.13; for type checkers, typing_extensions provides them.
    DepsT = TypeVar("DepsT", default=object)
    DepsT_co = TypeVar("DepsT_co", default=object, covariant=True)
    DepsT_contra = TypeVar("DepsT_contra", default=object, contravariant=True)
else:
    from typing import TypeVar

    DepsT = TypeVar("DepsT")
    DepsT_co = TypeVar("DepsT_co", covariant=True)
    DepsT_contra = TypeVar("DepsT_contra", contravariant=True)


Ask = Callable[[str, Mapping[str, Any], str], Awaitable[ApprovalAnswer]]
"""Asks the approvers in the middle of a tool call: the question, the arguments, and who asks."""


class GatedModel:
    """``ctx.llm``: the model of the run for hooks and tools, subject to the hooks and the budget (DESIGN 4.8).

    Example::

        @hook(AFTER_TOOL, tools="read_page")
        async def summarise(ctx, result):
            reply = await ctx.llm.complete(f"Summarise: {result.text}", purpose="summary")
            return HookResult.replace({"result": reply.content})
    """

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
        """Return a handle for another model, with the same hooks and the same budget."""
        return GatedModel(model, self._ask, self._environment)

    def _in_lane(self, lane: Lane) -> GatedModel:
        """Return a handle whose calls are part of this lane, also in a thread without a copy of the context."""
        ask = self._ask

        def ask_in_lane(model: Model, request: ModelRequest) -> Awaitable[ModelReply]:
            return _awaited_in(lane, ask(model, request))

        return GatedModel(self._model, ask_in_lane, self._environment)

    @property
    def model(self) -> Model:
        """The model itself. Direct calls of it bypass the hooks."""
        return self._model

    @property
    def name(self) -> str:
        """The name of the model."""
        return self._model.name

    @property
    def provider(self) -> str:
        """The name of the provider."""
        return self._model.provider

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Return the number of tokens in a text or in messages."""
        return self._counter.count_tokens(content)

    estimate_tokens = count_tokens

    async def count_request(self, request: ModelRequest) -> int:
        """Return the number of tokens in a whole request, including tools; exact if the model supports it."""
        return int(await in_thread(getattr(self._counter, "count_request", self._count_parts), request))

    def price(self, usage: Usage) -> float | None:
        """Return the price of these tokens in USD; ``None`` if it is not known."""
        price: Callable[[Usage], float | None] | None = getattr(self._counter, "price", None)
        return None if price is None else price(usage)

    @property
    def _counter(self) -> Model:
        """The model that counts tokens. In a replay, the counts come from the recording."""
        return self._model if self._environment is None else self._environment.boundary.model(self._model)

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
        """Call the model. The call fires ``before_llm`` and ``after_llm`` and counts in the budget.

        Args:
            messages: a list of messages (or mappings of their fields), or one user message as text.
            purpose: the purpose of the call, for hooks.
            tools: tools that the model may call. The calls are in the reply; they are not run.
            response_format: a JSON schema for the reply.
            tool_choice: ``None``, ``"none"``, ``"required"`` or a tool's name.
            params: settings for the model.

        Raises:
            CallRefusedError: the call failed, exceeded the budget, or was ended or stopped.
            HooklineError: the call was made from sync code.
        """
        if purpose == "step":
            raise HooklineError('the purpose "step" is reserved for calls of the loop: use another one')
        given = (Message("user", messages),) if isinstance(messages, str) else tuple(map(Message.of, messages))
        request = ModelRequest(
            given,
            tuple(tools),
            self.name,
            purpose=purpose,
            response_format=response_format,
            tool_choice=tool_choice,
            params=params,
        )
        return self._ask(self._model, request)


async def _awaited_in(lane: Lane, reply: Awaitable[ModelReply]) -> ModelReply:
    with in_lane(lane):
        return await reply


class RunAccess(Protocol):
    """The part of the engine that the context needs."""

    @property
    def state(self) -> Any:
        """The current state."""
        ...

    def fire_from_hook(self, point: Point[Any], payload: Any) -> Awaitable[Verdict]:
        """Fire a point for a hook or a tool."""
        ...

    def emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Add an event to the stream."""
        ...

    def wants(self, kind: type[Event]) -> bool:
        """Whether a consumer wants events of this type."""
        ...


CALLED_MODEL: ContextVar[Model | None] = ContextVar("hookline_called_model", default=None)
"""The model of the call that the current code is part of."""

CALL: ContextVar[ToolCallRequest | None] = ContextVar("hookline_call", default=None)
"""The tool call that the current code is part of."""


class RunOrigin(NamedTuple):
    """Where a run came from, for the list of runs.

    ``root_id`` is the id of the listed run that this run is a part of, if it has one: a server lists all runs that
    answer a request as one.
    """

    name: str = "library"
    root_id: str = ""


class Services:
    """The services of a run, shared by all its contexts. Private to the engine."""

    __slots__ = (
        "agent_name",
        "allowed_plugins",
        "artifacts",
        "blackboard",
        "budget",
        "call_id",
        "deps",
        "depth",
        "detached_from",
        "environment",
        "halts",
        "hooks",
        "ids",
        "interrupt",
        "lane",
        "llm",
        "memory",
        "origin",
        "run",
        "session",
        "tools",
        "tree_state",
    )

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
        halts: tuple[HaltSwitch, ...] = (),
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
        self.halts = halts
        """The stop switches that the run obeys."""
        self.ids = Ids()
        self.agent_name = ""
        self.depth = 0
        self.call_id = ""
        """The tool call of the outer run in which this run was started."""
        self.lane: Lane | None = None
        """The lane of the run, if it is recorded, replayed or durable."""
        self.tree_state: dict[int, Any] = {}
        """The state of hooks that a run shares with the runs nested in it."""
        self.tools: ToolRegistry | None = None
        self.llm: GatedModel | None = None
        self.run: RunAccess | None = None
        """The engine, while the run is active."""
        self.detached_from: RunAccess | None = None
        """The engine of the run from which this context was detached."""
        self.origin = RunOrigin()
        """Where the run came from."""

    def copy(self) -> Services:
        """Return the same services for another run."""
        new = Services.__new__(Services)
        for name in Services.__slots__:
            setattr(new, name, getattr(self, name))
        new.environment = self.environment.copy()
        new.tools = new.llm = new.run = new.detached_from = None
        return new


class AgentContext(BaseContext, Generic[DepsT_co]):
    """The context of a run for hooks and tools: ids, services and the current state.

    Create one for a conversation and pass it to the runs with ``ctx=``; each run derives its own context from it. The
    context cannot change the run; a hook does that with the verb that it returns. ``limits`` hold for all runs of the
    conversation together; conversations that share limits get one ``budget``. You may write to ``scratch``, and
    ``deps`` can be any object that your tools and hooks need. With a stop switch as ``halts``, such as
    ``RunStore("runs.db").halts``, its runs and the runs nested in them begin no call while that switch is on.

    Example:
        >>> ctx = AgentContext(deps=Database("shop.db"), limits=Limits(cost=0.50))
        >>> agent.run("How many orders are open?", ctx=ctx)
    """

    __slots__ = ("_ask", "_call", "_lane", "_report", "_services")

    def __init__(
        self,
        *,
        session: Session | None = None,
        hooks: HookRegistry | Iterable[Hook] = (),
        limits: Limits | None = None,
        budget: Budget | None = None,
        memory: Any = None,
        artifacts: Any = None,
        blackboard: Any = None,
        deps: DepsT_co | None = None,
        interrupt: Interrupt | None = None,
        allowed_plugins: Iterable[str] | None = None,
        halts: HaltSwitch | None = None,
        clock: Any = time,
        random: Random | None = None,
        new_id: Callable[[str], str] = make_id,
    ) -> None:
        super().__init__()
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget= takes a Budget(Limits(tokens=...)), not {type(budget).__name__}")
        if limits is not None and not isinstance(limits, Limits):
            raise TypeError(f"limits= takes Limits(tokens=20000, cost=0.50), not {limits!r:.80}")
        if limits is not None and budget is not None:
            raise TypeError("give limits= or budget=, which has limits of its own: budget=Budget(Limits(cost=0.50))")
        if halts is not None and not isinstance(halts, HaltSwitch):
            raise TypeError(f"halts= takes a stop switch such as RunStore('runs.db').halts, not {type(halts).__name__}")
        self._report: Callable[[float | None, str], None] | None = None
        self._ask: Ask | None = None
        self._call: ToolCallRequest | None = None
        self._lane: Lane | None = None
        self._services = Services(
            environment=Environment(clock, new_id, random),
            session=session if session is not None else Session(new_id("session")),
            hooks=hooks if isinstance(hooks, HookRegistry) else HookRegistry(hooks),
            budget=budget if budget is not None else Budget(NO_LIMITS if limits is None else limits, clock=clock),
            interrupt=interrupt if interrupt is not None else Interrupt(),
            memory=memory,
            artifacts=artifacts,
            blackboard=blackboard,
            deps=deps,
            allowed_plugins=plugin_names(allowed_plugins),
            halts=() if halts is None else (halts,),
        )

    # Ids.

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
        """The id of the task of this run."""
        return self._services.ids.task_id

    @property
    def correlation_id(self) -> str:
        """The id that connects this run to its origin."""
        return self._services.ids.correlation_id

    @property
    def agent_name(self) -> str:
        """The name of the running agent."""
        return self._services.agent_name

    @property
    def tree_state(self) -> dict[int, Any]:
        """Storage for the state of a hook, under the key ``id(self)``, that a run shares with the runs nested in it."""
        return self._services.tree_state

    @property
    def depth(self) -> int:
        """The nesting depth: 0 for a run that is not nested."""
        return self._services.depth

    @property
    def allowed_plugins(self) -> tuple[str, ...] | None:
        """The plugins that take part; ``None`` for all."""
        return self._services.allowed_plugins

    # Services.

    @property
    def deps(self) -> DepsT_co:
        """The object that the caller passed for hooks and tools."""
        return self._services.deps  # type: ignore[no-any-return]

    @property
    def session(self) -> Session:
        """The session: the conversation across runs."""
        return self._services.session

    @property
    def hooks(self) -> HookRegistry:
        """The hooks of the conversation."""
        return self._services.hooks

    @property
    def budget(self) -> BudgetView:
        """The usage so far, and the remaining budget."""
        return BudgetView(self._services.budget)

    @property
    def memory(self) -> Any:
        """The memory that the caller passed."""
        return self._services.memory

    @property
    def artifacts(self) -> Any:
        """The artifact store that the caller passed."""
        return self._services.artifacts

    @property
    def blackboard(self) -> Any:
        """The blackboard that the caller passed."""
        return self._services.blackboard

    @property
    def interrupt(self) -> Interrupt:
        """The interrupt: whether the run is cancelled, and how to cancel it."""
        return self._services.interrupt

    @property
    def tool_registry(self) -> ToolsView | None:
        """The tools of this run, read-only."""
        return None if self._services.tools is None else ToolsView(self._services.tools)

    @property
    def llm(self) -> GatedModel | None:
        """The model, subject to the hooks and the budget of this run; ``None`` outside a run."""
        llm, lane = self._services.llm, lane_of(self)
        return llm if llm is None or lane is None or lane_in(lane) is not lane else llm._in_lane(lane)

    @property
    def called_model(self) -> GatedModel | None:
        """At the points of a model call: its model, which is not that of ``llm`` after ``ctx.llm.using(model)``.

        Elsewhere it is that of ``llm``.
        """
        llm, model = self.llm, CALLED_MODEL.get()
        return llm if llm is None or model is None or model is llm.model else llm.using(model)

    @property
    def is_replay(self) -> bool:
        """Whether the run is a replay or a backtest: nothing is called, so nothing outside the run should change."""
        return self._services.environment.boundary.is_replay

    @property
    def clock(self) -> Any:
        """The clock. Use it instead of ``time``, so that runs can be replayed."""
        return self._services.environment.clock

    @property
    def random(self) -> Random:
        """The random number generator. Use it instead of ``random``, so that runs can be replayed."""
        return self._services.environment.random

    @property
    def new_id(self) -> Callable[[str], str]:
        """A function that creates ids: ``ctx.new_id("note")``."""
        return self._services.environment.new_id

    @property
    def is_durable(self) -> bool:
        """Whether this run has a journal, from which another process can continue it (``durable=``)."""
        return self._services.environment.boundary.is_durable

    @property
    def is_suspended(self) -> bool:
        """Whether this process has suspended the durable run: this or another process may resume it."""
        run = self._services.run
        return run is not None and bool(getattr(run, "suspended", False))

    @property
    def call_key(self) -> str:
        """In a tool, a key of this attempt at this call: the same if a durable run makes the call again.

        Pass it to a service as its idempotency key, so that the service does the work only once.

        Raises:
            HooklineError: the context is not that of a tool call.

        Example:
            >>> stripe.charges.create(amount=amount, idempotency_key=ctx.call_key)
        """
        call = self._call
        if call is None:
            raise HooklineError(
                "ctx.call_key works only with the context of a tool call: give the tool a 'ctx' parameter"
            )
        text = f"{call.ids.run_id}\n{call.id}\n{call.attempt}"  # a model can choose the call id, so it may be anything
        return sha256(text.encode(errors="replace")).hexdigest()[:32]

    # Actions.

    def _enter(self) -> AbstractContextManager[None]:
        """Make the current code part of the run or tool call of this context, for its recording.

        It is already, except in a thread without a copy of the context.
        """
        return in_lane(lane_in(lane_of(self)))

    async def once(self, name: str, read: Callable[[], Any]) -> Any:
        """Call ``read()``, sync or async, and return its result as JSON; in a durable run, once.

        A hook that decides by something outside the run, such as a file, uses this: if another process continues the
        run, or a tape of it is replayed, the hook gets the same value and decides the same.

        Example:
            >>> holidays = await ctx.once("holidays", lambda: json.loads(Path("holidays.json").read_text()))
        """
        with self._enter():
            return await self._services.environment.once(name, read)

    async def fire(self, point: str, payload: Any) -> Verdict:
        """Fire a point from a hook or a tool. Hooks that are already running are not called again.

        Raises:
            HookError: a hook failed closed.
            CallRefusedError: a model call in one of the hooks was refused.
            HooklineError: there is no run, or only the loop may fire this point.

        Example:
            >>> verdict = await ctx.fire(DEPLOYED, Deployment(version="1.2"))
        """
        run = self._services.run
        if run is None:
            raise HooklineError("ctx.fire works only inside a run: outside, use registry.fire(point, payload)")
        with self._enter():
            return await run.fire_from_hook(resolve(point), payload)

    def emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Add an event of your own type to the stream of the run.

        Raises:
            TypeError: only the loop may emit this type.

        Example:
            >>> ctx.emit(CacheHit, key="weather/Berlin")
        """
        if issubclass(kind, tuple(ENGINE_EVENTS)):
            raise TypeError(f"{kind.__name__} is emitted by the loop: define your own Event class")
        if self._services.run is not None:
            with self._enter():
                self._services.run.emit(kind, **fields)

    def wants(self, kind: type[Event]) -> bool:
        """Whether a consumer wants events of this type. Check it before creating an expensive event."""
        return self._services.run is not None and self._services.run.wants(kind)

    def is_cancelled(self) -> bool:
        """Whether the current task is being cancelled; a hook may also raise CancelledError itself."""
        return scope_of(self).cancellation.is_cancelled()

    def progress(self, fraction: float | None = None, message: str = "") -> None:
        """Report the progress of a tool, from any thread; ``fraction`` is between 0 and 1.

        Raises:
            HooklineError: the context is not that of a tool call.
            ValueError: the fraction is not between 0 and 1.
            TypeError: the fraction is not a number, or the message is not text.
        """
        if self._report is None:
            raise HooklineError(
                "ctx.progress works only with the context of a tool call: give the tool a 'ctx' parameter"
            )
        if fraction is not None and not is_number(fraction):
            raise TypeError(f"progress(fraction, message): fraction must be a number from 0 to 1, not {fraction!r:.80}")
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"fraction must be between 0 and 1, not {fraction!r}")
        if not isinstance(message, str):
            raise TypeError(f"message must be text, not {type(message).__name__}")
        self._report(fraction, message)

    async def ask(self, question: str, arguments: Mapping[str, Any] = EMPTY, *, asked_by: str = "") -> ApprovalAnswer:
        """Ask the approvers of the run in the middle of a tool call, and return their answer.

        The question is an approval like any other, at every place where people decide: they approve, deny or edit the
        arguments, which are then in ``edit``. A remembered permission never answers it. The answer is a denial if
        nobody can be asked, and in a durable run, which cannot wait in the middle of a call.

        Args:
            question: what to ask.
            arguments: values that people see and may edit.
            asked_by: who asks, by default the tool.

        Raises:
            HooklineError: the context is not that of a tool call.

        Example::

            @tool
            async def book(seat: str, ctx: AgentContext) -> str:
                answer = await ctx.ask("The seat costs 12 EUR more. Book it?", {"seat": seat})
                return "booked" if answer.approve else "not booked"
        """
        if self._ask is None:
            raise HooklineError("ctx.ask works only with the context of a tool call: give the tool a 'ctx' parameter")
        return await self._ask(question, arguments, asked_by)

    def detached(self, *, budget: Budget | None = None) -> AgentContext[DepsT_co]:
        """Return a context for work that may outlive this run.

        Runs started with it have the same hooks and plugin filter. They are not cancelled with this run, which does not
        wait for them. Until it ends, they are in its stream and on its tape. They count in its budget unless another
        ``budget`` is given. A durable run does not start them again after a crash: give them a journal of their own.

        Example:
            >>> reviewer.start("Review the report.", ctx=ctx.detached())
        """
        services = self._services.copy()
        services.interrupt = Interrupt()
        services.detached_from = self._services.run
        if budget is not None:
            services.budget = budget
        scope = Scope(None, AgentState(metadata=self.state.metadata))
        return build_context(services, scope, hook_state=HookState(), scratch={}, lane=self._lane)


def build_context(
    services: Services,
    scope: Scope | None,
    *,
    hook_state: HookState,
    scratch: dict[str, Any],
    report: Callable[[float | None, str], None] | None = None,
    ask: Ask | None = None,
    call: ToolCallRequest | None = None,
    lane: Lane | None = None,
) -> AgentContext[Any]:
    """Create a context with these services and the state of this scope; for a tool, with the lane of its code."""
    ctx: AgentContext[Any] = AgentContext.__new__(AgentContext)
    ctx._services = services
    ctx._scope = scope
    ctx._hook_state = hook_state
    ctx._scratch = scratch
    ctx._report = report
    ctx._ask = ask
    ctx._call = call
    ctx._lane = lane
    return ctx


def context_for_call(
    ctx: AgentContext[Any],
    report: Callable[[float | None, str], None],
    call: ToolCallRequest | None = None,
    lane: Lane | None = None,
    ask: Ask | None = None,
) -> AgentContext[Any]:
    """Create the context for one tool call, with its own ``progress`` and ``ask``; by default of the same call."""
    return build_context(
        ctx._services,
        ctx._scope,
        hook_state=ctx._hook_state,
        scratch=ctx._scratch,
        report=report,
        ask=ask or ctx._ask,
        call=call or ctx._call,
        lane=lane or ctx._lane,
    )


def lane_of(ctx: AgentContext[Any]) -> Lane | None:
    """Return the lane of the run or tool call of a context, for the engine."""
    return ctx._lane or ctx._services.lane


def call_of(ctx: AgentContext[Any] | None) -> ToolCallRequest | None:
    """Return the tool call that a context or the current code is part of, for the engine."""
    return CALL.get() if ctx is None or ctx._call is None else ctx._call


def new_services(budget: Budget, interrupt: Interrupt) -> Services:
    """Create the services of a run without a given context."""
    return Services(
        environment=Environment(time, make_id),
        session=Session(make_id("session")),
        hooks=HookRegistry(),
        budget=budget,
        interrupt=interrupt,
    )


def services_of(ctx: AgentContext[Any]) -> Services:
    """Return the services of a context, for the engine."""
    return ctx._services


def obey(ctx: AgentContext[Any], *switches: HaltSwitch) -> None:
    """Make the runs of a context obey these stop switches too, for programs that execute runs."""
    services = ctx._services
    services.halts = tuple(dict.fromkeys((*services.halts, *switches)))


def set_origin(ctx: AgentContext[Any], name: str, root_id: str = "") -> None:
    """Say where the runs of a context come from, for programs that execute runs: see :class:`RunOrigin`."""
    ctx._services.origin = RunOrigin(name, root_id)


def set_deps(ctx: AgentContext[Any], deps: Any) -> None:
    """Set the ``deps`` of the runs of a context, for programs that execute runs."""
    ctx._services.deps = deps


def progress_reporter_of(ctx: AgentContext[Any]) -> Callable[[float | None, str], None] | None:
    """Return the progress callback of the context of a tool call, for the engine."""
    return ctx._report
