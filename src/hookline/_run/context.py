"""The context of a run: services, identity and state, for hooks and tools (DESIGN 6.4)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from .._base.event import Event
from .._base.frozen import EMPTY, Growing, as_history, private_copy
from .._base.names import is_number
from .._base.tasks import OutOfTime, within
from .._kernel.errors import HooklineError
from .._kernel.points import Point, resolve
from .._kernel.registry import HookRegistry, Interceptor
from .._kernel.results import Verdict
from .._kernel.scope import Scope
from .._kernel.state import AgentState
from .._kernel.values import ErrorInfo, Ids, Message, Step, StopSignal, Usage
from ..tools.registry import ToolRegistry
from .budget import Budget
from .events import EventStream
from .interrupt import Interrupt, make_id
from .llm import GatedModel
from .outside import Outside
from .session import Session

if TYPE_CHECKING:
    from random import Random

GRACE = 5.0
"""Seconds that hooks get, in all, after a cancellation."""


class AgentContext(Scope):
    """Make one for a conversation and hand it to its runs; each run gets a child of it.

    ``scratch`` is yours to write; ``deps`` is whatever your tools and hooks need.
    """

    __slots__ = (
        "_cancels", "_debts", "_errors", "_events", "_fire", "_handed", "_held", "_keep", "_messages", "_metadata",
        "_open", "_opened", "_random", "_response_format", "_signals", "_steps", "_system_prompt", "_task", "_whole",
        "agent_name", "allowed_plugins", "artifacts", "blackboard", "budget", "call_ids", "clock", "deps", "depth",
        "hooks", "ids", "interrupt", "llm", "memory", "new_id", "outside", "session", "spent", "tool_registry",
    )  # fmt: skip

    def __init__(
        self,
        *,
        session: Session | None = None,
        hooks: HookRegistry | Sequence[Any] = (),
        budget: Budget | None = None,
        memory: Any = None,
        artifacts: Any = None,
        blackboard: Any = None,
        deps: Any = None,
        interrupt: Interrupt | None = None,
        allowed_plugins: Sequence[str] | None = None,
        clock: Any = time,
        random: Random | None = None,
        new_id: Callable[[str], str] = make_id,
    ) -> None:
        super().__init__()
        if budget is not None and not isinstance(budget, Budget):
            raise TypeError(f"budget= takes a Budget(max_tokens=...), not {type(budget).__name__}")
        self.session = session if session is not None else Session(new_id("session"))
        self.hooks = hooks if isinstance(hooks, HookRegistry) else HookRegistry(hooks)
        self.budget = budget if budget is not None else Budget(clock=clock)
        self.memory, self.artifacts, self.blackboard, self.deps = memory, artifacts, blackboard, deps
        self.interrupt = interrupt if interrupt is not None else Interrupt()
        self.clock, self.new_id, self._random = clock, new_id, random
        self.outside: Outside | None = None
        """What the calls of models and tools, and approvals, go through; ``None`` for nothing."""
        self.tool_registry: ToolRegistry | None = None
        self.llm: GatedModel | None = None
        self.allowed_plugins = None if allowed_plugins is None else tuple(allowed_plugins)
        self.agent_name = ""
        self.ids = Ids()
        self.depth = 0
        """How many runs this one is inside of."""
        self.spent: Usage | None = None
        self._events: EventStream | None = None
        self._fire: Callable[[Point, Any], Awaitable[Verdict]] | None = None
        self._whole: Callable[[], Interceptor] | None = None
        self._keep: Callable[[], None] | None = None
        self._debts: dict[Future[None], Callable[[str], None]] | None = None
        self._open: Message | None = None
        self._held: tuple[Message, ...] = ()
        self._opened = False
        self._handed: tuple[AgentState, ...] = ()
        self._task: asyncio.Task[Any] | None = None
        self._cancels = 0

    @property
    def random(self) -> Random:
        """Where chance comes from; a seeded one makes runs repeatable."""
        if self._random is None:
            from random import Random

            self._random = Random()
        return self._random

    @property
    def run_id(self) -> str:
        """The id of this run."""
        return self.ids.run_id

    @property
    def task_id(self) -> str:
        """The id of the task this run works on."""
        return self.ids.task_id

    @property
    def correlation_id(self) -> str:
        """The id that ties this run to what caused it."""
        return self.ids.correlation_id

    def is_cancelled(self) -> bool:
        """Whether the current task is being cancelled since the run began in it."""
        task = asyncio.current_task()
        return task is not None and task.cancelling() > (self._cancels if task is self._task else 0)

    def hurry(self) -> None:
        """From here on hooks get ``GRACE`` seconds in all."""
        if self.deadline is None:
            self.deadline = time.monotonic() + GRACE

    def began_in(self, task: asyncio.Task[Any] | None) -> None:
        """Remember the run's task, and how often somebody had cancelled it before."""
        self._task, self._cancels = task, task.cancelling() if task is not None else 0

    def wants(self, kind: type[Event]) -> bool:
        """Whether anybody would get such an event: one that is costly to make need not be made."""
        events = self._events
        return events is not None and events.listening and (events.wanted is None or kind in events.wanted)

    def emit(self, kind: type[Event], /, **fields: Any) -> None:
        """Put an event into the run's stream."""
        if self._events is not None:
            self._events.emit(kind, fields)

    async def fire(self, point: str, payload: Any) -> Verdict:
        """Fire a point from a hook or a tool: all hooks of this run take part, but those that are running.

        Raises:
            HookError: a hook failed closed.
            CallRefused: a model call that one of them made was refused.
            HooklineError: there is no run.
        """
        if self._fire is None:
            raise HooklineError("ctx.fire belongs to a run: outside of one, use registry.fire(point, payload)")
        return await self._fire(resolve(point), payload)

    def progress(self, fraction: float | None = None, message: str = "") -> None:
        """Report how far a tool is (``fraction`` of 1). Safe from any thread.

        Raises:
            HooklineError: called outside a tool.
            ValueError: a fraction outside 0 to 1.
            TypeError: a fraction that is no number, or a message that is not text.
        """
        raise HooklineError("ctx.progress belongs to a tool call: give the tool a 'ctx' parameter and use that one")

    def child(self) -> AgentContext:
        """A context for one run, with the same services and no state of its own yet."""
        new = AgentContext.__new__(AgentContext)
        Scope.__init__(new)
        new.scratch = self.scratch
        for name in _SHARED:
            setattr(new, name, getattr(self, name))
        new.tool_registry = new.llm = new._events = new._fire = new._keep = new._open = new._debts = None
        new._held, new.spent = (), None
        new._opened, new._task, new._cancels = False, None, 0
        return new

    def owe(self, cancel: Callable[[str], None]) -> Future[None]:
        """Have the run not end before something that began in it: give it a result when that is over.

        At its end the run calls ``cancel(reason)`` for what is still going on, and waits a little.
        """
        debts = self._debts = {} if self._debts is None else self._debts
        debt: Future[None] = Future()
        debts[debt] = cancel
        debt.add_done_callback(lambda paid: debts.pop(paid, None))
        return debt

    async def settle_debts(self) -> None:
        """Break off what began in this run and is not over, and wait for it. For the loop."""
        debts = dict(self._debts or ())
        for cancel in debts.values():
            cancel("the run is over")
        if waiting := [asyncio.wrap_future(debt) for debt in debts if not debt.done()]:
            left = GRACE if self.deadline is None else max(0.0, self.deadline - time.monotonic())
            with suppress(OutOfTime):  # the other half is for the hooks at the end of this run
                await within(left / 2, asyncio.wait(waiting), shielded=True)

    def heir(self, *, budget: Budget | None = None) -> AgentContext:
        """A context for work that may outlive this run: what is run with it has the same hooks and plugin filter.

        It is not cancelled with the run, and counts in the run's ledger unless it is given one of its own.
        """
        new = self.child()
        new.interrupt, new.scratch = Interrupt(), {}
        if budget is not None:
            new.budget = budget
        new._whole = self._whole  # as they are then: what is switched off meanwhile does not fire
        if self._opened:
            new.open((), self._metadata, "", None)
        return new

    @property
    def state(self) -> AgentState:
        """The state as it is now. Hooks change it by returning ``state=``."""
        # A hook can change the copy that it was given, say with eval(text, ctx.state.metadata): then make a new one.
        if self._state is None or self._state.metadata != self._metadata:
            if not self._opened:
                self.open((), EMPTY, "", None)
            self._state = AgentState(
                self._messages.view(), private_copy(self._metadata), self._system_prompt,
                private_copy(self._response_format),
                self._steps.view(), self.budget.usage, self._signals, self._errors, self.ids,
            )  # fmt: skip
            self._handed = (*self._handed[-7:], self._state)
        return self._state

    def open(
        self, messages: Sequence[Message], metadata: Mapping[str, Any], system_prompt: str, response_format: Any
    ) -> None:
        """Start from this state. For the loop; hooks return ``state=`` instead."""
        self._opened = True
        self._messages: Growing[Message] = Growing(messages)
        self._steps: Growing[Step] = Growing()
        self._metadata, self._system_prompt = private_copy(metadata), system_prompt
        self._response_format = response_format
        self._handed = ()
        self.call_ids = {call.id for message in messages for call in message.tool_calls}
        self._signals: tuple[StopSignal, ...] = ()
        self._errors: tuple[ErrorInfo, ...] = ()
        self._state = None

    def accept_state(self, state: AgentState) -> None:
        """Take over a hook's ``state=``; messages added while calls are open wait for their results."""
        now = self.state
        # A hook may have read the state, waited, and changed what it had read: the loop's part may have moved on.
        seen = next(
            (old for old in reversed(self._handed) if old.usage == state.usage and old.steps == state.steps), now
        )
        accepted = seen.accept(state)
        if accepted.messages is not seen.messages:
            if seen.messages is not now.messages and seen.messages != now.messages:
                raise TypeError("AgentState.messages: the transcript went on meanwhile; read ctx.state again")
            self._take_messages(accepted.messages, now.messages if seen.messages is now.messages else seen.messages)
        if accepted.metadata is not seen.metadata:
            self._metadata = private_copy(accepted.metadata)
        if accepted.system_prompt is not seen.system_prompt:
            self._system_prompt = accepted.system_prompt
        if accepted.response_format is not seen.response_format:
            self._response_format = accepted.response_format
        self._state = None
        if self._keep is not None:
            self._keep()

    def _take_messages(self, messages: Sequence[Message], before: Sequence[Message]) -> None:
        tail = as_history(messages).tail_after(before)
        known = {call.id for message in before for call in message.tool_calls} if tail is None else set()
        new = messages if tail is None else tail
        fresh = {call.id for message in new for call in message.tool_calls} - known
        if fresh & self.call_ids:
            raise TypeError("AgentState.messages: a new call has the id of an old one")
        self.call_ids |= fresh
        if tail is not None and self._open is None:
            for message in tail:
                self._messages.append(message)
            return
        if self._open is not None:
            ids = [call.id for call in self._open.tool_calls]
            found = [i for i, message in enumerate(messages) if [call.id for call in message.tool_calls] == ids]
            self._held += tuple(messages[found[-1] + 1 :])
            messages = messages[: found[-1] + 1]
        self._messages = Growing(messages)

    def append(self, message: Message) -> None:
        """Add to the transcript. For the loop; hooks return ``state=`` instead."""
        self._state = None
        self._messages.append(message)

    def finish_step(self, step: Step) -> None:
        """Add a finished step. For the loop."""
        self._steps.append(step)
        self._state = None

    def set_signals(self, signals: tuple[StopSignal, ...]) -> None:
        """Record stop signals. For the loop."""
        self._signals, self._state = signals, None

    def add_error(self, error: ErrorInfo) -> None:
        """Record an error. For the loop."""
        self._errors, self._state = (*self._errors, error), None

    def set_system_prompt(self, text: str) -> None:
        """Put the joined system prompt in place. For the loop."""
        self._system_prompt, self._state = text, None

    def charge(self, usage: Usage, cost: float | None) -> None:
        """Count a model call. For the loop."""
        self.budget.charge(usage, cost)
        self.spent = usage if self.spent is None else self.spent + usage
        self._state = None


_SHARED = (
    "agent_name", "allowed_plugins", "artifacts", "blackboard", "budget", "clock", "depth", "deps", "hooks", "ids",
    "interrupt", "memory", "new_id", "outside", "_random", "session", "_whole",
)  # fmt: skip


class CallContext:
    """A run's context, seen from inside one tool call: its ``progress`` knows the call."""

    __slots__ = ("_ctx", "_report")

    def __init__(self, ctx: AgentContext, report: Callable[[float | None, str], None]) -> None:
        self._ctx, self._report = ctx, report

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    def progress(self, fraction: float | None = None, message: str = "") -> None:
        """Report how far this call is: see :meth:`AgentContext.progress`."""
        if fraction is not None and not is_number(fraction):
            raise TypeError(f"progress(fraction, message): fraction is a number from 0 to 1, not {fraction!r:.80}")
        if fraction is not None and not 0 <= fraction <= 1:
            raise ValueError(f"fraction goes from 0 to 1, not {fraction!r}")
        if not isinstance(message, str):
            raise TypeError(f"message is text, not {type(message).__name__}")
        self._report(fraction, message)
