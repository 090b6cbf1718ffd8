"""The loop of a run whose model calls and tool calls another framework makes (DESIGN 6.14).

:class:`ForeignLoop` is the loop of an agent in a task of its own, with all its hooks, events and limits. It never
calls a model or a tool. It waits until the framework is about to do so, lets the hooks judge, and hands the work back:

    framework                                loop
    "I am about to call the model"  ------>  before_step, before_llm
    sends the request               <------  "send this request"
    the response                    ------>  after_llm (a hook may retry: "send this request" again)
    uses the reply                  <------  the settled reply

Tool calls are exchanged in the same way; several may be in flight at once. So the framework's own code always runs in
the task or thread of the framework, and the hooks always run in one event loop, whether the framework is sync or async.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal

import msgspec

from .._base.attachment import Attachment
from .._base.frozen import freeze, thaw
from .._base.tasks import running_loop
from .._base.text import describe, error_text
from .._kernel.errors import HooklineError, ModelError, RegistrationError
from .._kernel.events import Event
from .._kernel.payloads import ModelReply, ModelRequest, ToolCallResult
from .._kernel.state import AgentResult
from .._kernel.values import ErrorInfo, Message, ModelResponse, ToolCall, ToolSpec, Usage
from ..models.attachments import ANY_TYPE
from ..providers.prices import Price, cost_of
from ..tools._tool import CheckedArguments, Effect, Tool
from ..tools.registry import ToolRegistry
from .agent import Agent
from .batch import Batch
from .engine import DONE, Engine
from .loop import COMPLETED, Loop
from .run import Run
from .strict import check_strict
from .tool_call import CallReports

replace = msgspec.structs.replace

_OWN_ENDS = DONE | {"unknown"}
"""Stop signals of a reply without tool calls. A framework ends its run itself after such a reply."""


Validate = Callable[[str, Mapping[str, Any]], CheckedArguments | str]
"""Validates the arguments of a tool call: returns the arguments for the tool, or a text that describes the problem."""


class SettledReply(msgspec.Struct, frozen=True):
    """A model reply after all hooks, for the framework.

    ``again`` is true if a hook at ``on_stop`` continues the run, or if a steering message arrived: the framework must
    call the model again, with ``note`` as an additional user message unless it is empty.
    """

    reply: ModelReply
    again: bool = False
    note: str = ""


WorkKind = Literal["send", "stream", "next", "call", "approve"]


class Work(msgspec.Struct, frozen=True):
    """Work for the framework: send a request, read the next piece of the reply, call a tool, or ask its user."""

    kind: WorkKind
    argument: Any
    aio: asyncio.AbstractEventLoop
    future: asyncio.Future[Any]

    def done(self, value: Any) -> None:
        """Return the outcome to the loop, from any thread. It is ignored if the loop no longer waits for it."""
        self._deliver(self.future.set_result, value)

    def fail(self, error: BaseException) -> None:
        """Raise an error in the loop, from any thread."""
        if isinstance(error, (StopIteration, StopAsyncIteration)):  # a future cannot raise these
            error = RuntimeError(describe(error))
        self._deliver(self.future.set_exception, error)

    def _deliver(self, method: Callable[[Any], None], outcome: Any) -> None:
        def deliver() -> None:
            if not self.future.done():
                method(outcome)

        if running_loop() is self.aio:
            deliver()
        elif not self.aio.is_closed():
            self.aio.call_soon_threadsafe(deliver)


class Exchange:
    """One request of the framework to the loop, until it is settled: a model call, a tool call, or the end of the run.

    Args:
        kind: what the framework is about to do.
        argument: the request to the model, the tool call, or how the run ended.
        streaming: whether the framework reads a reply in pieces.
        validate: the framework's own check of the arguments of a tool call; see :meth:`Tool.validate`.
    """

    def __init__(
        self,
        kind: Literal["model", "tool", "end"],
        argument: Any,
        *,
        streaming: bool = False,
        validate: Validate | None = None,
    ) -> None:
        self.validate = validate
        self.kind = kind
        self.argument = argument
        self.streaming = streaming
        self.settled = False
        self.withdrawn = False
        self.task: asyncio.Task[Any] | None = None
        """The task in which a tool call is judged."""
        self._items: deque[Any] = deque()
        self._waiter: concurrent.futures.Future[Any] | asyncio.Future[Any] | None = None
        self._lock = threading.Lock()

    async def ask(self, kind: WorkKind, argument: Any = None) -> Any:
        """Ask the framework to do something, and wait for the outcome. Called by the loop."""
        aio = asyncio.get_running_loop()
        future: asyncio.Future[Any] = aio.create_future()
        self.put(Work(kind, argument, aio, future))
        return await future

    def settle(self, outcome: SettledReply | ToolCallResult | AgentResult[Any] | HooklineError) -> None:
        """Finish the exchange. Later calls are ignored."""
        if not self.settled:
            self.settled = True
            self.put(outcome)

    def withdraw(self) -> None:
        """Cancel the call, because the framework no longer waits for it. Called in the event loop of the run."""
        self.withdrawn = True
        if self.task is not None:
            self.task.cancel()

    def put(self, item: Any) -> None:
        """Pass an item to the framework."""
        with self._lock:
            if self._waiter is None or self._waiter.done():
                self._items.append(item)
                return
            waiter, self._waiter = self._waiter, None
        if isinstance(waiter, asyncio.Future):
            aio = waiter.get_loop()
            if aio is running_loop():  # the usual case, and much cheaper
                waiter.set_result(item)
            elif not aio.is_closed():
                aio.call_soon_threadsafe(self._deliver, waiter, item)
        elif waiter.set_running_or_notify_cancel():
            waiter.set_result(item)
        else:
            self.put(item)

    def _deliver(self, waiter: asyncio.Future[Any], item: Any) -> None:
        if waiter.done():  # cancelled in the meantime
            self.put(item)
        else:
            waiter.set_result(item)

    async def take(self) -> Any:
        """Wait for the next item, in an event loop. Only one caller may wait at a time."""
        with self._lock:
            if self._items:
                return self._items.popleft()
            waiter = self._waiter = asyncio.get_running_loop().create_future()
        return await waiter

    def next(self) -> concurrent.futures.Future[Any]:
        """Return a future of the next item, for a thread. Only one caller may wait at a time."""
        future: concurrent.futures.Future[Any] = concurrent.futures.Future()
        with self._lock:
            if self._items:
                future.set_result(self._items.popleft())
            else:
                self._waiter = future
        return future


Arrival = Exchange | asyncio.Task[Any]
"""An item that the loop waits for: a request of the framework, or a finished task in which a tool call was judged."""


class Inbox:
    """A queue of arrivals (see :data:`Arrival`) with one consumer."""

    def __init__(self) -> None:
        self._arrivals: deque[Arrival] = deque()
        self._waiter: asyncio.Future[None] | None = None

    def put(self, arrival: Arrival) -> None:
        """Add an arrival. Called in the event loop of the run."""
        self._arrivals.append(arrival)
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def put_back(self, exchange: Exchange) -> None:
        """Put an exchange back at the front of the queue."""
        self._arrivals.appendleft(exchange)

    async def take(self) -> Arrival:
        """Wait for the next arrival."""
        while not self._arrivals:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return self._arrivals.popleft()

    async def take_exchange(self) -> Exchange:
        """Wait for the next request of the framework. Skip finished tasks of earlier batches."""
        while isinstance(arrival := await self.take(), asyncio.Task):
            pass
        return arrival


EXCHANGE: ContextVar[Exchange | None] = ContextVar("hookline_exchange", default=None)
"""The exchange that the current code is part of."""


class ForeignModel:
    """The model of a framework. It can be called only while the framework is about to call its model.

    Args:
        name: the name of the framework.
        price: the price of its model; by default from the price list, by the name of the model.
        check: ``check(given, changed)`` raises an error if the framework cannot send the request as hooks changed it.
    """

    provider = ""
    attachment_types = ANY_TYPE  # the framework rejects types that its model does not take

    def __init__(
        self,
        name: str,
        price: Price | None = None,
        check: Callable[[ModelRequest, ModelRequest], None] = lambda given, changed: None,
    ) -> None:
        self.name = name
        self._price = price
        self._check = check

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Ask the framework to send the request, and return the reply."""
        exchange = self._exchange()
        request = self._sendable(request, exchange)
        response: ModelResponse = self._priced(await exchange.ask("send", request), request)
        return response

    def _sendable(self, request: ModelRequest, exchange: Exchange) -> ModelRequest:
        given: ModelRequest = exchange.argument
        if request.model == self.name:  # a hook called ctx.llm, which does not know the name of the framework's model
            request = replace(request, model=given.model)
        self._check(given, request)
        return request

    def _priced(self, response: Any, request: ModelRequest) -> Any:
        """Return the response with its cost, because frameworks report tokens but no cost."""
        if not isinstance(response, ModelResponse) or response.cost is not None or not response.usage.total_tokens:
            return response
        usage = response.usage
        names = [name for name in (response.model, request.model) if name]
        cost = cost_of(usage, *names, url=None) if self._price is None else self._price.of(usage)
        return response if cost is None else replace(response, cost=cost)

    async def stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        """Ask the framework to send the request, and yield the pieces of the reply, if it streams."""
        exchange = self._exchange()
        if not exchange.streaming:
            yield await self.complete(request)
            return
        request = self._sendable(request, exchange)
        await exchange.ask("stream", request)
        while True:
            piece = self._priced(await exchange.ask("next"), request)
            yield piece
            if isinstance(piece, ModelResponse):
                return

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Estimate the number of tokens, because the framework does not report it."""
        texts = [content] if isinstance(content, str) else [message.content for message in content]
        return sum(len(text) for text in texts) // 4

    def price(self, usage: Usage) -> float | None:
        """Return the price of these tokens in USD; ``None`` if it is unknown."""
        if self._price is not None:
            return self._price.of(usage)
        exchange = EXCHANGE.get()
        if exchange is None or exchange.kind != "model":
            return None
        return cost_of(usage, exchange.argument.model, url=None)

    def _exchange(self) -> Exchange:
        exchange = EXCHANGE.get()
        if exchange is None or exchange.kind != "model" or exchange.settled:
            raise ModelError(
                f"{self.name} calls the model itself, so hooks can use ctx.llm only around its model calls: "
                "give the adapter llm= with a model for hooks"
            )
        return exchange


class OutsideTool(Tool):
    """A tool that something else than Hookline calls, which checks its arguments too."""

    def validate(self, arguments: Mapping[str, Any]) -> CheckedArguments | str:
        """Validate the arguments with the validator of the exchange. Without one, return them unchanged."""
        exchange = EXCHANGE.get()
        if exchange is not None and exchange.validate is not None:
            return exchange.validate(self.name, arguments)
        try:
            checked = freeze(arguments)
            return CheckedArguments.of(self.name, checked, thaw(checked))
        except (TypeError, ValueError) as error:
            return f"Invalid arguments for {self.name}: {describe(error):.200}"

    async def call(self, values: Mapping[str, Any], ctx: Any) -> Any:
        """Ask for a call of the tool, and return the result."""
        exchange = EXCHANGE.get()
        assert exchange is not None, "such a tool runs only in an exchange"
        return await exchange.ask("call", (self.name, dict(values)))


class ForeignTool(OutsideTool):
    """A tool of a framework. The framework checks its arguments and calls it."""

    def __init__(self, spec: ToolSpec, effects: Iterable[Effect] | None) -> None:
        async def run(**arguments: Any) -> Any:
            return await self.call(arguments, None)

        super().__init__(run, name=spec.name, description=spec.description, effects=effects)
        self.spec = ToolSpec(spec.name, spec.description, {"properties": {}, **thaw(spec.parameters)})


class ForeignTools(ToolRegistry):
    """The tools of a framework that its requests have named. Other tools are added when they are called.

    Args:
        effects: the effects of tools, by name. The others are undeclared.
    """

    def __init__(self, effects: Mapping[str, Iterable[Effect]]) -> None:
        super().__init__()
        self._effects = effects
        self.learned: tuple[ToolSpec, ...] = ()

    def learn(self, specs: tuple[ToolSpec, ...]) -> bool:
        """Add the tools of a request. Return false if all of them were known."""
        if specs == self.learned:
            return False
        for spec in specs:
            known = self._tools.get(spec.name)
            if known is None or known.spec.parameters != spec.parameters:
                self._add(spec)
        self.learned = specs
        return True

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name; ``None`` only if no tool can have this name."""
        return self._tools.get(name) or self._add(ToolSpec(name))

    def _add(self, spec: ToolSpec) -> Tool | None:
        try:
            tool = ForeignTool(spec, self._effects.get(spec.name))
        except (RegistrationError, TypeError, ValueError):
            return None
        self._tools = {**self._tools, spec.name: tool}
        vars(self).pop("specs", None)
        return tool


class ForeignBatch(Batch):
    """The tool calls of one reply, which the framework makes in its own order, one by one or concurrently.

    A call is judged when the framework is about to make it, with the arguments that the framework has then.
    """

    def __init__(
        self,
        engine: Engine,
        calls: Sequence[ToolCall],
        hop: int,
        withdrawn: frozenset[str],
        reports: CallReports,
        inbox: Inbox,
        name: str = "",
    ) -> None:
        super().__init__(engine, calls, hop, withdrawn, reports, name)
        self._inbox = inbox
        self._main = asyncio.current_task()

    async def run(self) -> None:
        """Wait for the framework to make the calls. Afterwards the transcript contains one result for each call.

        Raises:
            RunStoppedError, RunEndedError, HookError, CancelledError: the reason why the run does not continue.
        """
        waiting = {call.call.id: index for index, call in enumerate(self.calls)}
        tasks: dict[asyncio.Task[Any], tuple[int, Exchange]] = {}
        finished: set[int] = set()
        try:
            while waiting or tasks:
                arrival = await self._inbox.take()
                if isinstance(arrival, asyncio.Task):
                    if arrival in tasks:
                        finished.add(self._settled(*tasks.pop(arrival), arrival))
                    continue
                index = waiting.pop(arrival.argument.id, None) if arrival.kind == "tool" else None
                if index is None and arrival.kind == "tool" and tasks:  # a tool that is running calls another one
                    index = len(self.calls)
                    self.calls.append(self._pending(arrival.argument, index, attempt=1))
                if index is None:  # the framework continues without making some of the calls
                    self._inbox.put_back(arrival)
                    break
                tasks[self._begin(index, arrival)] = index, arrival
            while tasks:
                done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    assert isinstance(task, asyncio.Task)
                    finished.add(self._settled(*tasks.pop(task), task))
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self._note_cause(cause)
        if tasks:
            for task in tasks:
                task.cancel()
            done, _ = await asyncio.wait(tasks, timeout=self.engine.cancellation.grace_left / 2)
            finished |= {index for task, (index, _) in tasks.items() if task in done}
        for index, call in enumerate(self.calls):
            if index not in finished:
                if call.result is None:
                    call.settle(self.engine, "cancelled", error="Cancelled: the call did not finish.")
                await self._collect_cause(self._reports.end(call))
                await self._after(index)
        self._append_results()
        if self.cause is not None:
            raise self.cause

    def _begin(self, index: int, exchange: Exchange) -> asyncio.Task[Any]:
        call: ToolCall = exchange.argument
        known = self.calls[index].call
        if (call.name, call.arguments) != (known.name, known.arguments):  # the framework changed it
            self.calls[index] = self._pending(call, index, attempt=1)
        task = exchange.task = asyncio.get_running_loop().create_task(self._make(index, exchange))
        task.add_done_callback(self._inbox.put)
        return task

    async def _make(self, index: int, exchange: Exchange) -> None:
        EXCHANGE.set(exchange)
        if self.cause is None:
            await self._attempt([self.calls[index]])
        else:
            self.calls[index].settle(self.engine, "cancelled", error="Cancelled: the run is ending.")
            await self._collect_cause(self._reports.end(self.calls[index]))
        await self._after(index)

    def _settled(self, index: int, exchange: Exchange, task: asyncio.Task[Any]) -> int:
        task.result()
        result = self.calls[index].result
        if self.cause is None and result is not None:  # otherwise the end of the run settles it
            exchange.settle(result)
        return index

    async def _note_cause(self, cause: BaseException) -> None:
        # A cancellation of the run reaches the tasks of calls too. Only the task of the run can resolve it.
        if isinstance(cause, asyncio.CancelledError) and asyncio.current_task() is not self._main:
            return
        await super()._note_cause(cause)


class CallsBatch(ForeignBatch):
    """Tool calls without a model reply: a host makes them as they come, until it ends the run.

    They are not in the transcript, and a finished call is forgotten, because such a run may last for months.
    """

    GRACE = 5.0
    """Seconds that the calls in flight get when one of them has ended the run."""

    async def run(self) -> None:
        """Judge the calls that the host makes, until it ends the run or a call does.

        Raises:
            RunStoppedError, RunEndedError, HookError, CancelledError: the reason why the run does not continue.
        """
        tasks: dict[asyncio.Task[Any], tuple[int, Exchange]] = {}
        free: list[int] = []
        try:
            while self.cause is None:
                arrival = await self._inbox.take()
                if isinstance(arrival, asyncio.Task):
                    if arrival in tasks:
                        free.append(index := self._settled(*tasks.pop(arrival), arrival))
                        self._report_settled(self.calls[index])
                        if self.engine.run_state.signals and not tasks:
                            return
                elif arrival.kind != "tool":
                    self._inbox.put_back(arrival)
                    break
                elif not arrival.withdrawn:
                    index = free.pop() if free else len(self.calls)
                    self.calls[index : index + 1] = [self._pending(arrival.argument, index, attempt=1)]
                    tasks[self._begin(index, arrival)] = index, arrival
            if tasks and self.cause is not None:
                await asyncio.wait(tasks, timeout=self.GRACE)
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self._note_cause(cause)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks, timeout=self.engine.cancellation.grace_left / 2)
        for task, (index, _) in tasks.items():
            call = self.calls[index]
            if not task.done():
                call.settle(self.engine, "cancelled", error="Cancelled: the call did not finish.")
                await self._collect_cause(self._reports.end(call))
            self._report_settled(call)
        if self.cause is not None:
            raise self.cause


class ForeignLoop(Loop):
    """One run in the loop of another framework."""

    def __init__(
        self, engine: Engine, task: str, base: Sequence[Message], attachments: tuple[Attachment, ...] = ()
    ) -> None:
        super().__init__(engine, task, base, attachments)
        self._given_task = task
        self._inbox = Inbox()
        self._open: list[Exchange] = []
        self._current: Exchange | None = None
        """The exchange of this step."""
        self._reply: ModelReply | None = None
        self._over: AgentResult[Any] | None = None
        self._closed = False
        self._prompt: tuple[str, str] | None = None
        """The system prompt of the framework, and the prompt after the hooks."""
        self._seen: int | None = None
        """The number of messages in the framework's last request."""
        self._steered = False
        self._earlier_calls = 0
        """The number of calls that the framework made before their reply."""

    def offer(self, exchange: Exchange) -> None:
        """Accept a request of the framework. Called in the event loop of the run."""
        if self._closed:
            exchange.settle(self._outcome())
            return
        self._open = [*(each for each in self._open if not each.settled), exchange]
        self._inbox.put(exchange)

    def show(self, event: Event) -> None:
        """Pass streamed text to the framework, if it reads the reply in pieces."""
        current = self._current
        if current is not None and current.streaming and not current.settled:
            current.put(event)

    # The steps of the loop.

    async def _begin(self) -> None:
        await self._open_run()  # the system prompt is known with the first request

    def _may_skip_checkpoint(self) -> bool:
        return False

    async def _may_continue(self) -> bool:
        """Wait until the framework is about to call the model, or has ended. Return whether it continues."""
        state = self.state
        while True:
            if not super()._may_skip_checkpoint():
                kept, steered = self._kept_going, bool(self.engine.steered)
                going = await super()._may_continue()
                if not going and not self._ends_by_itself():
                    return False
                if self._reply is not None:
                    kept_going, last = self._kept_going > kept, state.messages[-1]
                    note = last.content if kept_going and last.role == "user" else ""
                    self._settle_model(again=going and (steered or kept_going), note=note)
            exchange = await self._inbox.take_exchange()
            if exchange.kind == "end":
                await end_as(self.engine, *exchange.argument)
                return False
            if not state.signals and self.engine.limit_reached() is None:
                self._current = exchange
                return True
            self._inbox.put_back(exchange)
            state.set_signals(())  # the framework continues after a reply without tool calls

    def _ends_by_itself(self) -> bool:
        return bool(self.state.signals) and all(signal.kind in _OWN_ENDS for signal in self.state.signals)

    async def _step(self) -> None:
        exchange = self._current
        assert exchange is not None  # _may_continue sets it
        EXCHANGE.set(exchange)
        if exchange.kind == "tool":  # a call of an earlier reply: the framework resumed a run
            await self._make_earlier_call(exchange)
            return
        try:
            await self._read(exchange.argument)
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self.engine.note_cause(cause)
            return
        self._steered = self._steered or bool(self.engine.steered)
        await super()._step()

    async def _make_earlier_call(self, exchange: Exchange) -> None:
        self._earlier_calls += 1
        hop, calls = self._steps_begun, (exchange.argument,)
        name = f"{hop}-{self._earlier_calls}"
        batch = ForeignBatch(self.engine, calls, hop, frozenset(), self._reports, self._inbox, name)
        self._inbox.put_back(exchange)  # the batch takes it
        try:
            await batch.run()
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self.engine.note_cause(cause)

    async def _read(self, request: ModelRequest) -> None:
        """Copy new tools, messages and a new system prompt from a request of the framework."""
        tools = self.engine.tools
        if isinstance(tools, ForeignTools) and tools.learn(request.tools):
            names = [spec.name for spec in request.tools]
            check_strict(self.engine.ids.agent, tools, self.engine.hooks.own())
            self.engine.hooks.warn_about_unmatched_globs(names)
            self.engine.hooks.check_tools(request.tools)
        system, messages = _split(request.messages)
        if self._prompt is None:
            self.state.set_system_prompt(system)
            await self._build_prompt()
            self._prompt = system, self.state.system_prompt
        if self._seen is not None:
            for message in messages[self._seen :]:
                known = message.role == "assistant" or message.call_id in self.state.call_ids
                if not known and message != self.state.messages[-1]:
                    self.state.append(message)
        self._seen = len(messages)

    def _request(self, hop: int) -> ModelRequest:
        assert self._current is not None
        given: ModelRequest = self._current.argument
        state, messages = self.state, given.messages
        system, rest = _split(messages)
        if state.edited or self._steered:
            messages = (*self._system(system), *_originals(state.messages, rest))
        elif state.system_prompt != system or self.task != self._given_task:
            messages = (*self._system(system), *self._with_task(rest))
        response_format = given.response_format if state.response_format is None else state.response_format
        return replace(given, messages=messages, hop=hop, response_format=response_format, ids=self.engine.ids)

    def _system(self, given: str) -> tuple[Message, ...]:
        """Return the system prompt of the hooks, or that of the framework if the framework has changed it since."""
        before, after = self._prompt or (given, given)
        text = self.state.system_prompt if given == before or self.state.system_prompt != after else given
        return (Message("system", text),) if text else ()

    def _with_task(self, messages: Sequence[Message]) -> list[Message]:
        """Return the messages with the task that the hooks of ``on_run_start`` returned."""
        changed = list(messages)
        for index in reversed(range(len(changed))) if self.task != self._given_task else ():
            if changed[index].role == "user" and changed[index].content == self._given_task:
                changed[index] = replace(changed[index], content=self.task)
                break
        return changed

    def _append_reply(self, reply: ModelReply) -> None:
        self._reply = reply
        super()._append_reply(reply)
        if reply.tool_calls:
            self._settle_model()

    def _settle_model(self, *, again: bool = False, note: str = "") -> None:
        current, reply, self._reply = self._current, self._reply, None
        assert current is not None
        assert reply is not None
        current.settle(SettledReply(reply, again, note))

    def _batch(self, reply: ModelReply, withdrawn: frozenset[str]) -> Batch:
        return ForeignBatch(self.engine, reply.tool_calls, reply.hop, withdrawn, self._reports, self._inbox)

    async def _finish(self) -> AgentResult[Any]:
        self._over = await super()._finish()
        return self._over

    def close(self, _: object = None) -> None:
        """Settle all exchanges, after the run has ended and its hooks have finished."""
        self._closed = True
        for exchange in self._open:
            exchange.settle(self._outcome())

    def _outcome(self) -> AgentResult[Any] | HooklineError:
        return HooklineError("the run ended without a result") if self._over is None else self._over


async def end_as(engine: Engine, reply: str | None, error: BaseException | None) -> None:
    """End a run as the framework, or the host, has ended it: with its final text, or its error."""
    if isinstance(error, Exception):
        name = engine.agent.model.name
        await engine.report(ErrorInfo("framework", type(error).__name__, error_text(error), name, fatal=True))
    if error is not None:
        raise error
    state = engine.run_state
    last = state.messages[-1] if state.messages else None
    if reply is not None and (last is None or last.role != "assistant" or last.content != reply):
        state.append(Message("assistant", reply))
    if not state.signals:
        engine.signal(COMPLETED)


def _split(messages: Sequence[Message]) -> tuple[str, Sequence[Message]]:
    """Return the text of the system prompt, and the other messages."""
    if messages and messages[0].role == "system":
        return messages[0].content, messages[1:]
    return "", messages


def _originals(messages: Sequence[Message], given: Sequence[Message]) -> Iterator[Message]:
    """Yield messages. For messages of the framework, yield its own objects, which adapters translate without loss."""
    position = 0
    for message in messages:
        found = next((i for i in range(position, len(given)) if given[i] == message), None)
        yield message if found is None else given[found]
        position = position if found is None else found + 1


class ForeignAgent(Agent[Any, Any]):
    """The hooks, plugins, limits and other options of an agent whose model and tools belong to a framework."""

    _loop_type = ForeignLoop

    def prepare(self, task: str, options: Any) -> tuple[Run[Any], ForeignLoop]:
        """Return a run that has not started, and its loop."""
        run = self._prepare(task, options, None)
        loop = run._loop
        assert isinstance(loop, ForeignLoop)
        run.when_done(loop.close)
        return run, loop


class CallsLoop(ForeignLoop):
    """One run of a host that only makes tool calls, such as an MCP client. Its model is nowhere to be seen."""

    async def _step(self) -> None:
        exchange = self._current
        assert exchange is not None  # _may_continue sets it
        self._inbox.put_back(exchange)  # the batch takes it
        batch = CallsBatch(self.engine, (), self._steps_begun, frozenset(), self._reports, self._inbox)
        try:
            await batch.run()
        except BaseException as cause:  # noqa: BLE001 - every cause becomes a status
            await self.engine.note_cause(cause)


class CallsAgent(ForeignAgent):
    """The hooks and options of a host that only makes tool calls."""

    _loop_type = CallsLoop
