"""The context of hooks in a backtest: what was recorded of a run, and a note of everything else that a hook reads."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from .._base.frozen import plain
from .._kernel.errors import HooklineError
from .._kernel.payloads import ModelReply, ModelRequest
from .._kernel.registry import HookRegistry
from .._kernel.scope import HookState, Scope
from .._kernel.state import AgentState
from .._kernel.values import Ids, ModelResponse
from .._run.budget import Budget, BudgetView
from .._run.cancellation import Interrupt
from .._run.context import AgentContext, GatedModel
from .._run.environment import make_id
from .._run.session import Session
from ..models.protocol import Model
from ..records.format import RunInfo, ToolInfo
from ..tools._tool import Tool, jsonable
from ..tools.registry import ToolRegistry, ToolsView

if TYPE_CHECKING:
    from .history import RestoredState


class RefusedError(HooklineError):
    """A hook tried something that a backtest does not do, such as calling a model or writing a file."""


class Probe:
    """Watches the hook that is running: what it reads that was not recorded, and what it was refused.

    There is one for each process, because a process judges one moment at a time.
    """

    def __init__(self) -> None:
        self.active = False
        """Whether a hook is running."""
        self.hooks: tuple[str, ...] = ()
        """The names of the hooks by their number."""
        self.allowed: frozenset[str] = frozenset()
        """The actions that hooks may take: some of :data:`hookline.backtest.confinement.ACTIONS`."""
        self.position: Any = [0, 0, 0, 0]
        """The number of the moment, the number of the hook that was called last, a counter of the timer, and the
        number before the first moment of the unit: in memory that the parent process sees, so that it can name the
        hook and the moment if this process hangs or dies."""
        self.noted = False
        """Whether there is anything in ``reads`` or ``refusals``."""
        self.reads: dict[tuple[str, str], None] = {}
        self.refusals: dict[tuple[str, str], None] = {}

    @property
    def hook(self) -> str:
        """The name of the hook that is running."""
        number: int = self.position[1]
        return self.hooks[number]

    def clear(self) -> None:
        """Forget what was noted."""
        self.noted = False
        self.reads.clear()
        self.refusals.clear()

    def note(self, read: str) -> None:
        """Note that the running hook reads something that was not recorded."""
        if self.active:
            self.noted = True
            self.reads[self.hook, read] = None

    def refuse(self, what: str) -> RefusedError:
        """Note that the running hook was refused something, and return the error to raise."""
        self.noted = True
        self.refusals[self.hook, what] = None
        return RefusedError(f"a backtest refuses {what}")


PROBE = Probe()


@contextmanager
def unwatched() -> Iterator[None]:
    """Let code of the backtest itself run while a hook is running."""
    active, PROBE.active = PROBE.active, False
    try:
        yield
    finally:
        PROBE.active = active


class RecordedClock:
    """``ctx.clock``: the time at which the moment was recorded. ``moment`` is its line."""

    __slots__ = ("moment", "started")

    def __init__(self) -> None:
        self.started = 0.0
        self.moment: Any = None

    def monotonic(self) -> float:
        """Return the seconds since the outermost run started."""
        return self.moment.at - self.moment.took  # type: ignore[no-any-return]

    perf_counter = monotonic

    def time(self) -> float:
        """Return the Unix time of the moment."""
        return self.started + self.monotonic()

    stamp = time

    def time_ns(self) -> int:
        """Return the Unix time of the moment in nanoseconds."""
        return int(self.time() * 1e9)

    def monotonic_ns(self) -> int:
        """Return the nanoseconds since the outermost run started."""
        return int(self.monotonic() * 1e9)


_NOT_RECORDED = frozenset(("steps", "usage", "signals", "errors", "response_format"))


class RecordedState(AgentState, frozen=True):
    """``ctx.state`` in a backtest. Parts that were not recorded are empty, and reading them is noted."""

    def __getattribute__(self, name: str) -> Any:
        if name in _NOT_RECORDED:
            PROBE.note(f"ctx.state.{name}")
        return AgentState.__getattribute__(self, name)

    @property
    def step_count(self) -> int:
        """The number of finished steps, which is not recorded."""
        return len(self.steps)


class _NotCancelled:
    """The cancellation of a recorded run: there is none."""

    deadline: float | None = None

    def is_cancelled(self) -> bool:
        """Return that nothing is being cancelled."""
        return False

    def start_grace_period(self) -> None:
        """Do nothing."""


_NOT_CANCELLED = _NotCancelled()


class RunSource(Protocol):
    """The recorded run that a context describes."""

    @property
    def info(self) -> RunInfo:
        """The line of the run."""
        ...

    @property
    def depth(self) -> int:
        """The nesting depth."""
        ...

    def state(self) -> RestoredState:
        """Return the state of the run at the moment that is being judged."""
        ...


class BacktestScope(Scope):
    """The scope of a fire in a backtest."""

    def __init__(self, ctx: BacktestContext, run: RunSource) -> None:
        super().__init__(ctx)
        self.cancellation = _NOT_CANCELLED
        self._run = run
        self._given: dict[str, Any] = {}

    @property
    def state(self) -> AgentState:
        """The state as far as it was recorded, with what the tested hooks changed."""
        recorded = self._run.state()
        if recorded.missing:
            PROBE.note(recorded.missing)
        with unwatched():  # creating the state reads all its parts
            return RecordedState(
                recorded.messages,
                self._given.get("metadata", recorded.metadata),
                self._given.get("system_prompt", recorded.system_prompt),
                ids=self._run.info.ids,
                version=1,
            )

    def accept_state(self, state: object) -> None:
        """Keep the metadata and the system prompt that a hook returned. The messages remain the recorded ones."""
        with unwatched():  # the comparison reads all parts
            now = self.state
            accepted = now.accept(state)
            for part in ("metadata", "system_prompt"):
                if getattr(accepted, part) is not getattr(now, part):
                    self._given[part] = getattr(accepted, part)


class RefusingModel:
    """The model of a recorded run. It is not called."""

    def __init__(self, name: str, provider: str) -> None:
        self.name, self.provider = name, provider

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Refuse the call."""
        raise PROBE.refuse("model calls")

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Refuse the call."""
        raise PROBE.refuse("model calls")
        yield ""

    def count_tokens(self, content: Any) -> int:
        """Estimate the number of tokens: four characters each."""
        PROBE.note("ctx.llm.count_tokens")
        text = content if isinstance(content, str) else "".join(message.content for message in content)
        return len(text) // 4


async def _ask(model: Model, request: ModelRequest) -> ModelReply:
    PROBE.note("a reply of a model")
    response = await model.complete(request)
    return ModelReply(
        response.content,
        response.tool_calls,
        purpose=request.purpose,
        usage=response.usage,
        cost=response.cost,
        finish_reason=response.finish_reason,
        model=response.model,
        provider=response.provider,
        request=request,
    )


class BacktestContext(AgentContext[Any]):
    """The ``ctx`` of hooks in a backtest: the ids, the clock and the state of a recorded run.

    Everything else was not recorded: it is empty, and the hook that reads it is named in the report. Actions are
    refused. The context is created for each recorded run, so that hooks with state per run work.
    """

    __slots__ = ("_clock", "_model", "_random", "_run", "_tree_state")

    def __init__(
        self, run: RunSource, clock: RecordedClock, tree_state: dict[int, Any], model: Model | None = None
    ) -> None:
        self._hook_state = HookState()
        self._scratch = {}
        self._run = run
        self._clock = clock
        self._tree_state = tree_state
        self._model = model
        self._random: Random | None = None
        self._report = None
        self._scope = None

    @property
    def scope(self) -> BacktestScope:
        """The scope of fires with this context. Most contexts never need it."""
        if self._scope is None:
            self._scope = BacktestScope(self, self._run)
        return self._scope  # type: ignore[return-value]

    @property
    def state(self) -> AgentState:
        """The state of the recorded run, as far as it was recorded."""
        return self.scope.state

    @property
    def _services(self) -> NoReturn:  # type: ignore[override]
        """Nothing may use the services of a run, for example to start a nested run."""
        raise PROBE.refuse("starting runs")

    # Recorded.

    @property
    def ids(self) -> Ids:
        """All ids of the recorded run."""
        return self._run.info.ids

    @property
    def run_id(self) -> str:
        """The id of the recorded run."""
        return self._run.info.ids.run_id

    @property
    def task_id(self) -> str:
        """The id of its task."""
        return self._run.info.ids.task_id

    @property
    def correlation_id(self) -> str:
        """The id that connects it to its origin."""
        return self._run.info.ids.correlation_id

    @property
    def agent_name(self) -> str:
        """The name of the agent."""
        return self._run.info.ids.agent

    @property
    def depth(self) -> int:
        """The nesting depth."""
        return self._run.depth

    @property
    def tree_state(self) -> dict[int, Any]:
        """Storage for the state of a hook that all runs of a tree share."""
        return self._tree_state

    @property
    def clock(self) -> Any:
        """The time at which the moment was recorded."""
        return self._clock

    @property
    def new_id(self) -> Callable[[str], str]:
        """A function that creates ids."""
        return make_id

    @property
    def llm(self) -> GatedModel | None:
        """The model of the run by name. Calls are refused, unless a model is given for them."""
        info = self._run.info
        model = self._model if self._model is not None else RefusingModel(info.model, info.provider)
        return GatedModel(model, _ask)

    @property
    def is_replay(self) -> bool:
        """``True``: nothing is called."""
        return True

    # Not recorded.

    @property
    def deps(self) -> Any:
        """``None``: the object of the caller was not recorded."""
        PROBE.note("ctx.deps")
        return None

    @property
    def memory(self) -> Any:
        """``None``: the memory was not recorded."""
        PROBE.note("ctx.memory")
        return None

    @property
    def artifacts(self) -> Any:
        """``None``: the artifacts were not recorded."""
        PROBE.note("ctx.artifacts")
        return None

    @property
    def blackboard(self) -> Any:
        """``None``: the blackboard was not recorded."""
        PROBE.note("ctx.blackboard")
        return None

    @property
    def session(self) -> Session:
        """A session that has only its id."""
        PROBE.note("ctx.session")
        return Session(self.ids.session_id)

    @property
    def hooks(self) -> HookRegistry:
        """No hooks."""
        PROBE.note("ctx.hooks")
        return HookRegistry()

    @property
    def budget(self) -> BudgetView:
        """A budget without limits."""
        PROBE.note("ctx.budget")
        return BudgetView(Budget(clock=self._clock))

    @property
    def allowed_plugins(self) -> tuple[str, ...] | None:
        """``None``: the filter was not recorded."""
        PROBE.note("ctx.allowed_plugins")
        return None

    @property
    def interrupt(self) -> Interrupt:
        """An interrupt that is not cancelled."""
        PROBE.note("ctx.interrupt")
        return Interrupt()

    @property
    def random(self) -> Random:
        """Random numbers that are the same for each recorded run."""
        PROBE.note("ctx.random")
        if self._random is None:
            self._random = Random(self.run_id)
        return self._random

    @property
    def tool_registry(self) -> ToolsView | None:
        """The tools with the effects that they declared. Their folders and parameters were not recorded."""
        PROBE.note("ctx.tool_registry")
        return ToolsView(_registry(self._run.info.tools))

    # Actions.

    async def once(self, name: str, read: Callable[[], Any]) -> Any:
        """Return what a hook reads now: moments do not contain what it read in the run."""
        PROBE.note("ctx.once")
        found = read()
        return plain(jsonable(await found if hasattr(found, "__await__") else found))

    async def fire(self, point: str, payload: Any) -> Any:
        """Refuse to fire a point."""
        raise PROBE.refuse("ctx.fire")

    def emit(self, kind: Any, /, **fields: Any) -> None:
        """Drop the event."""

    def wants(self, kind: Any) -> bool:
        """Return that nobody wants an event."""
        return False

    def is_cancelled(self) -> bool:
        """Return that nothing is being cancelled."""
        return False

    def detached(self, *, budget: Any = None) -> Any:
        """Refuse to start runs."""
        raise PROBE.refuse("starting runs")


_registries: dict[tuple[ToolInfo, ...], ToolRegistry] = {}


def _registry(tools: tuple[ToolInfo, ...]) -> ToolRegistry:
    """Return stand-ins for the tools of a run."""
    if tools not in _registries:
        _registries.clear()
        _registries[tools] = ToolRegistry([_stand_in(tool) for tool in tools])
    return _registries[tools]


def _stand_in(info: ToolInfo) -> Tool[..., Any]:
    def call(**arguments: Any) -> Awaitable[Any]:
        raise PROBE.refuse("tool calls")

    effects: Any = info.effects
    tool: Tool[..., Any] = Tool(
        call, name=info.name, description="", effects=effects, untrusted=info.untrusted, dangerous=info.dangerous
    )
    tool.sandbox = info.sandbox
    return tool
