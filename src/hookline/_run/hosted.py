"""The loop of a run that a host executes and asks about, moment by moment (DESIGN 6.14).

A *host* is a program with a loop of its own that can be asked only about single moments: a coding agent, or a caller of
``POST /decide``. :class:`HostedLoop` is the loop of an agent with all its hooks, events and limits. It opens the run,
then waits until the host says that the run is over, and finishes as every run does. Meanwhile each question is
answered in a task of its own, in the context of the run:

    host                                     run
    a prompt                        ------>  session_start, on_run_start, before_prompt_build
    "may I make this call?"         ------>  before_tool, the approvers: allowed, refused or asked
    the result, much later          ------>  after_tool, tool_end_with_path: the result as hooks left it
    any other moment                ------>  its point
    "I am about to stop"            ------>  on_stop (a hook may keep the run going), on_run_end

A tool call is the same exchange as that of a framework (``foreign.py``), in two halves: the loop asks for the call, and
the result comes with a later question. Between questions, nothing runs.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterable, Mapping
from contextvars import Context, ContextVar, copy_context
from copy import copy
from typing import Any, Literal, TypeVar

import msgspec

from .._base.errors import PlainError
from .._base.frozen import fingerprint
from .._base.text import describe
from .._kernel.errors import CallRefusedError, HookError, HooklineError
from .._kernel.payloads import (
    ApprovalAnswer,
    ApprovalRequest,
    Question,
    ToolCallRequest,
    ToolCallResult,
)
from .._kernel.points import AFTER_TOOL, APPROVAL_REQUESTED, TOOL_END_WITH_PATH, Point
from .._kernel.results import HookAction, Verdict
from .._kernel.state import AgentResult
from .._kernel.values import Ids, Message, ModelResponse, ToolCall
from ..tools._tool import Effect, Tool
from .agent import Agent
from .batch import Batch
from .engine import DONE, Engine
from .events import ApprovalAsked, ApprovalDecided, Steered, log
from .foreign import EXCHANGE, Exchange, ForeignTools, Work, end_as
from .loop import Loop
from .run import Run
from .termination import RunEndedError, RunStoppedError, signal_rank
from .tool_call import CallReports, PendingCall

replace = msgspec.structs.replace
T = TypeVar("T")

Unasked = Callable[[ToolCallRequest, tuple[Question, ...]], str]
"""Returns why the host cannot ask its own user these questions about a call; an empty text if it can."""

MAX_SETTLED = 20
"""Settled calls of a run whose answers are kept, because a host may report a result twice."""
KEEP_GOING = "Continue: the task is not finished."
"""The note of a hook that keeps a run going without one."""

_NO_RESULT = "no result of this call was reported"
_TOOL: ContextVar[Tool | None] = ContextVar("hookline_hosted_tool", default=None)
_ABOUT: ContextVar[Any] = ContextVar("hookline_hosted_about", default=None)


class Judged(msgspec.Struct, frozen=True):
    """The decision about a call.

    Args:
        outcome: ``allowed``, with the arguments of ``request``; ``refused``; or ``asked``: no approver has answered,
            and the host may ask its own user. A call whose result is reported then was approved.
        request: the call after the hooks.
        questions: what to ask the user.
        result: the result of a refused call, which the model reads in place of that of the tool. Its outcome says
            whether the call was blocked, answered by a hook, or cancelled because of a limit or the end of the run.
        by: the hook or person that refused or answered the call.
        over: why the run must not go on; empty if it may.
        failure: the failure of a hook because of which the call is refused.
    """

    outcome: Literal["allowed", "refused", "asked"]
    request: ToolCallRequest
    questions: tuple[Question, ...] = ()
    result: ToolCallResult | None = None
    by: str = ""
    over: str = ""
    failure: Exception | None = None


class Settled(msgspec.Struct, frozen=True):
    """A result after the hooks.

    Args:
        result: the result as the model should read it.
        retry: the note of a hook that wants the call to be made again; ``None`` if none does.
        over: why the run must not go on; empty if it may.
        failure: the failure of a hook because of which the result is withheld.
    """

    result: ToolCallResult
    retry: str | None = None
    over: str = ""
    failure: Exception | None = None


class ReportedError(PlainError):
    """The error of a call, as the host reported it."""


class HostedModel:
    """The model of a host, which hooks cannot call.

    Args:
        name: the name of the host.
    """

    provider = ""
    attachment_types = frozenset[str]()

    def __init__(self, name: str) -> None:
        self.name = name

    async def complete(self, request: Any) -> ModelResponse:
        """Refuse the call."""
        raise HooklineError(f"{self.name} calls its model itself, so hooks have none")

    def count_tokens(self, content: Any) -> int:
        """Estimate the number of tokens."""
        texts = [content] if isinstance(content, str) else [message.content for message in content]
        return sum(len(text) // 4 + 1 for text in texts)


class HostedTools(ForeignTools):
    """The tools that a host has called, or declared. Hooks see the tool of the current question.

    Args:
        tools: tools that the host has declared.
        effects: the effects of other tools, by name. The others are undeclared.
    """

    def __init__(self, tools: Iterable[Tool] = (), effects: Mapping[str, Iterable[Effect]] | None = None) -> None:
        super().__init__(effects or {})
        for tool in tools:
            self.add(tool)

    def add(self, tool: Tool) -> None:
        """Add a tool, or replace the one of the same name."""
        if self._tools.get(tool.name) is not tool:
            self._tools = {**self._tools, tool.name: tool}
            vars(self).pop("specs", None)

    def get(self, name: str) -> Tool | None:
        """Return the tool of this name: that of the current question first."""
        tool = _TOOL.get()
        return tool if tool is not None and tool.name == name else super().get(name)


def question_of_host() -> Any:
    """Return what the host has said about the current question (``about=``), for its own hooks."""
    return _ABOUT.get()


class HostedBatch(Batch):
    """One tool call of a host: judged now, and settled when the result is reported.

    Args:
        loop: the run.
        call: the call, with an id that the run has not used.
        unasked: why the user of the host cannot be asked.
        earlier: the same call in flight, if the host asks about it again: it is judged again, and counts once.
        given: the id by which the host calls it.
    """

    failures_end_run = False

    def __init__(
        self,
        loop: HostedLoop,
        call: ToolCall,
        unasked: Unasked | None = None,
        earlier: HostedCall | None = None,
        given: str = "",
    ) -> None:
        has_started = earlier is not None and earlier.batch.pending.started
        reports = _RepeatedReports(loop.engine) if has_started else CallReports(loop.engine)
        super().__init__(loop.engine, [call], loop.engine.hop, loop.withdrawn, reports, call.id)
        self._given = given or call.id
        if attempt := loop.repeated.get(self._given, 0):
            self.calls = [self._pending(call, 0, attempt + 1)]
        self.exchange = Exchange("tool", call)
        self.seconds: float | None = None
        """How long the call took, if the host says it."""
        self.retry: str | None = None
        self.failure: Exception | None = None
        self.is_void = False
        """Whether the call is judged again, so that nothing counts that happens here."""
        self.task: asyncio.Task[None]
        """The task in which the call is judged and waits for its result."""
        self._loop, self._unasked = loop, unasked

    @property
    def pending(self) -> PendingCall:
        """The call."""
        return self.calls[0]

    async def judge(self) -> None:
        """Judge the call, wait for its result, and let the hooks judge that."""
        EXCHANGE.set(self.exchange)
        if over := self._loop.over:
            self.pending.settle(self.engine, "cancelled", error=f"Cancelled: {over}")
            await self._collect_cause(self._reports.end(self.pending))
        else:
            await self._attempt(self.calls)
        await self._conclude()

    async def accept(self, result: Any, error: str | None) -> None:
        """Let the hooks judge the result of a call that was not judged here."""
        call, engine = self.pending, self.engine
        call.tool = engine.tools.get(call.request.name)
        call.began = engine.environment.clock.monotonic() - (self.seconds or 0.0)
        call.started = True
        engine.budget.count_tool_call()
        if engine.reports_calls:
            await self._collect_cause(self._reports.start(call))
        call.settle(engine, "ok" if error is None else "error", result, error)
        await self._collect_cause(self._reports.end(call))
        if error is not None:
            await self._collect_cause(self._report(call, ReportedError.__name__, error))
        await self._conclude()

    async def _conclude(self) -> None:
        if self.is_void:
            return
        engine = self.engine
        if engine.has_listeners(AFTER_TOOL) or engine.has_listeners(TOOL_END_WITH_PATH):
            await self._after(0)
        if self.retry is None:
            self._loop.repeated.pop(self._given, None)
        if self._loop.is_finishing:
            self.of_reply = 0  # the transcript ends with the reply, and not with calls that were never made
        else:
            call = replace(self.pending.call, arguments=self.pending.request.arguments)
            engine.run_state.open_calls(Message("assistant", "", (call,)))
        self._append_results()
        if isinstance(self.cause, RunEndedError):
            await engine.note_cause(self.cause)
        elif isinstance(self.cause, Exception) and not isinstance(self.cause, RunStoppedError):
            self.failure = self.cause
        elif self.cause is not None and not isinstance(self.cause, RunStoppedError):
            self.failure = HooklineError(f"a hook raised {describe(self.cause)}")
        assert self.pending.result is not None  # each attempt sets one
        self.exchange.settle(self.pending.result)

    async def _unanswered(self, call: PendingCall) -> ApprovalAnswer:
        """Let the host ask its user, if it can. The call was approved if its result is reported."""
        if self._unasked is None:
            return await super()._unanswered(call)
        if why := self._unasked(call.request, call.asks):
            return ApprovalAnswer(deny=why)
        answer: ApprovalAnswer = await self.exchange.ask("approve", call)
        return answer

    async def _call_tool(self, call: PendingCall) -> Any:
        try:
            return await super()._call_tool(call)
        finally:
            if self.seconds is not None:
                call.began = self.engine.environment.clock.monotonic() - self.seconds

    async def _retry(self, index: int, note: str | None) -> None:
        """Leave it to the host to make the call again."""
        self.retry = note or "The result is not good enough: call the tool again."
        self._loop.repeated[self._given] = self.pending.request.attempt
        assert self.pending.result is not None  # it was judged
        await self._report_paths(self.pending.result)

    def _why_cancelled(self) -> str:
        return f"Cancelled: {self._loop.over or _NO_RESULT}"

    async def _note_cause(self, cause: BaseException) -> None:
        if not isinstance(cause, asyncio.CancelledError):  # of this task only: the run is cancelled in its own task
            await super()._note_cause(cause)

    def withdraw(self) -> None:
        """Let nothing count that happens here from now on."""
        self.is_void, self.pending.asking, self.pending.end_reported = True, False, True
        if self.pending.started:
            self.engine.budget.count_tool_call(-1)
        self.task.cancel()

    def withhold(self) -> None:
        """Settle the call without a result, because nothing has judged it to the end."""
        if not self.exchange.settled and not self.is_void:
            self.pending.settle(self.engine, "cancelled", error=self._why_cancelled())
            self.exchange.settle(self.pending.result)  # type: ignore[arg-type]


class _RepeatedReports(CallReports):
    """The reports of a call that is judged again: that it started was reported already."""

    async def start(self, call: PendingCall) -> None:
        """Report nothing."""


class HostedCall:
    """A call in flight: it was judged, and its result has not been reported."""

    def __init__(self, given: ToolCall, batch: HostedBatch, work: Work) -> None:
        self.given, self.batch, self.work = given, batch, work

    def is_same(self, call: ToolCall) -> bool:
        """Whether the host means this call, by its name and its arguments, before or after the hooks."""
        request = self.batch.pending.request
        return (call.name, call.arguments) in (
            (self.given.name, self.given.arguments),
            (request.name, request.arguments),
        )


class HostedLoop(Loop):
    """One run of a host."""

    withdrawn = frozenset[str]()
    """The tools that hooks removed from the last request, which the model must not call."""

    def __init__(self, engine: Engine, *given: Any) -> None:
        super().__init__(engine, *given)
        self.context: Context | None = None
        """The context of the run, in which questions are answered."""
        self.opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.calls: list[HostedCall] = []
        self.is_finishing = False
        self._ending: asyncio.Future[tuple[str | None, BaseException | None]] | None = None
        self._answer: asyncio.Future[str] | None = None
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._batches: dict[HostedBatch, None] = {}
        self._ids = set[str]()
        self.repeated: dict[str, int] = {}
        """How often calls were made whose results hooks rejected, by the ids that the host gave them."""

    @property
    def over(self) -> str:
        """Why the run must not go on; empty if it may."""
        engine = self.engine
        cause = engine.cause
        if isinstance(cause, RunEndedError):
            return cause.reply or f"Hook {cause.hook!r} ended the run."
        signals = [signal for signal in self.state.signals if signal.kind not in DONE]
        if not signals:
            return ""
        first = min(signals, key=signal_rank)
        return first.message or f"Hook {first.hook!r} stopped the run."

    # Questions.

    def ask(self, work: Coroutine[Any, Any, T], tool: Tool | None, about: Any) -> asyncio.Task[T]:
        """Answer a question in a task of its own, in the context of the run."""
        assert self.context is not None  # the run is open
        context = self.context.copy()
        context.run(_TOOL.set, tool)
        context.run(_ABOUT.set, about)
        task = asyncio.get_running_loop().create_task(work, context=context)
        self._tasks[task] = None
        task.add_done_callback(self._tasks.pop)
        return task

    def start(self, batch: HostedBatch, work: Coroutine[Any, Any, None], tool: Tool | None, about: Any) -> None:
        """Begin the work on a call."""
        self._batches[batch] = None
        batch.task = self.ask(work, tool, about)

        def ended(task: asyncio.Task[None]) -> None:
            del self._batches[batch]
            if not task.cancelled() and (error := task.exception()) is not None:
                log.error("a call of run %s could not be judged", self.engine.ids.run_id, exc_info=error)
            batch.withhold()

        batch.task.add_done_callback(ended)

    def find(self, call: ToolCall, *, exactly: bool) -> HostedCall | None:
        """Return the call in flight that the host means: by its id, or without one by its name and arguments.

        Args:
            call: the call.
            exactly: whether a call with the same id must have the same name and arguments, too.
        """
        for held in self.calls:
            if held.given.id == call.id and call.id and (not exactly or held.is_same(call)):
                return held
        if call.id and any(held.given.id == call.id for held in self.calls):
            return None
        same = (held for held in self.calls if held.is_same(call) and not (call.id and held.given.id))
        return next(same, None)

    def with_free_id(self, call: ToolCall) -> ToolCall:
        """Return a call with an id that the run has not used: hosts use ids again, and transcripts may not."""
        id = base = call.id or self.engine.ctx.new_id("call")
        number = 2
        while id in self._ids or id in self.state.call_ids:
            id, number = f"{base}_{number}", number + 1
        self._ids.add(id)
        return replace(call, id=id)

    def resume_if_released(self) -> None:
        """Go on if the run was halted, and no longer is. The host decides when its run is over."""
        if any(signal.kind == "halted" for signal in self.state.signals):
            engine = self.engine
            if engine.boundary.find_halt(engine) is None:
                self.state.set_signals(tuple(each for each in self.state.signals if each.kind != "halted"))

    def end(self, reply: str | None, error: BaseException | None) -> asyncio.Future[str]:
        """Say that the host is about to stop. The future has a note if the run must go on."""
        assert self._ending is not None  # the run is open
        self._answer = asyncio.get_running_loop().create_future()
        if not self._ending.done():  # otherwise the run is ending
            self._ending.set_result((reply, error))
        return self._answer

    # The steps of the loop.

    async def _begin(self) -> None:
        if not self.engine.goes_on:
            await super()._begin()
            return
        self.engine.budget.begin()
        self.engine.start_time_limit()
        self._task_added = True
        if self.task:
            self.state.append(Message("user", self.task))

    def _may_skip_checkpoint(self) -> bool:
        return False

    async def _may_continue(self) -> bool:
        """Wait until the host is about to stop, as often as a hook keeps the run going. Return false at the end."""
        engine = self.engine
        if not await super()._may_continue():
            return False
        self.context = copy_context()
        while True:
            self._ending = asyncio.get_running_loop().create_future()
            if not self.opened.done():
                self.opened.set_result(None)
            reply, error = await self._ending
            if engine.cause is not None:
                return False
            await end_as(engine, reply, error)
            kept = self._kept_going
            if not await super()._may_continue():
                return False
            last = self.state.messages[-1]
            note = last.content if last.role == "user" and self._kept_going > kept else ""
            note = note or "\n".join(message.content for message in engine.steered) or KEEP_GOING
            engine.append_steered()
            assert self._answer is not None  # the host has asked
            self._answer.set_result(note)

    async def _finish(self) -> AgentResult[Any]:
        """Finish the run. Calls without a result count as cancelled."""
        self.calls.clear()
        self.is_finishing = True
        if tasks := [task for task in self._tasks if not task.done()]:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks, timeout=self.engine.cancellation.grace_left / 2)
        return await super()._finish()

    def _result(self) -> AgentResult[Any]:
        result = super()._result()
        if result.usage.total_tokens or not isinstance(self.engine.agent.model, HostedModel):
            return result
        return replace(result, cost=None)  # the host does not say what its model calls cost

    def close(self, _: object = None) -> None:
        """Settle the calls whose tasks have ignored the end of the run."""
        for batch in [*self._batches]:
            batch.withhold()


class HostedRun:
    """The host's side of a run. All methods are called in the event loop of the run.

    Example::

        run = await agent.host("Tidy up.", session=Session("s1"))
        judged = await run.judge_call(ToolCall("c1", "shell", {"command": "rm -r build"}))
        if judged.outcome == "allowed":
            output = execute(judged.request.arguments)
            settled = await run.settle_call("c1", output)
        await run.end("Done.")
    """

    def __init__(self, run: Run[Any], loop: HostedLoop, tools: HostedTools) -> None:
        self.run = run
        """The handle of the run, to cancel or steer it."""
        self.tools = tools
        """The tools that the run knows."""
        self._loop, self._engine = loop, loop.engine
        self._settled: OrderedDict[str, tuple[bytes, Settled]] = OrderedDict()

    async def open(self) -> HostedRun:
        """Begin the run, and wait until the hooks have judged the task. A hook may have ended it.

        Raises:
            HookError, CallRefusedError: a hook failed closed, so the run has failed.
        """
        self.run.begin(asyncio.get_running_loop())
        await self._until(self._loop.opened)
        self._raise_failure()
        return self

    def _raise_failure(self) -> None:
        cause = self._engine.cause
        if self.done and isinstance(cause, (HookError, CallRefusedError)):
            raise cause

    @property
    def id(self) -> str:
        """The id of the run."""
        return self.run.id

    @property
    def ids(self) -> Ids:
        """All ids of the run."""
        return self.run.ids

    @property
    def ctx(self) -> Any:
        """The context of the run, for nested runs; ``None`` when it has ended."""
        return self._engine.ctx

    @property
    def task(self) -> str:
        """The task, as hooks left it."""
        return self._loop.task

    @property
    def system_prompt(self) -> str:
        """The text that hooks add to the system prompt."""
        return self._loop.state.system_prompt

    @property
    def done(self) -> bool:
        """Whether the run has ended."""
        return self.run.done

    @property
    def result(self) -> AgentResult[Any] | None:
        """The result of the run, when it has ended."""
        return self._engine.result

    @property
    def over(self) -> str:
        """Why the run must not go on, although the host has not ended it; empty if it may."""
        return self._loop.over

    @property
    def in_flight(self) -> tuple[ToolCallRequest, ...]:
        """The calls that were judged and have no result yet, as the hooks left them."""
        return tuple(held.batch.pending.request for held in self._loop.calls)

    @property
    def engine(self) -> Engine:
        """The engine, for the part of the loop that is about model calls."""
        return self._engine

    def withdraw(self, tools: frozenset[str]) -> None:
        """Let no call of these tools run until the next request."""
        self._loop.withdrawn = tools

    @property
    def is_ended(self) -> bool:
        """Whether a hook has ended the run, with the reply in :attr:`over`. The host need not end it."""
        return isinstance(self._engine.cause, RunEndedError)

    def begin(self, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Begin work that belongs to the run, in its context. The end of the run cancels it."""
        return self._loop.ask(work, None, None)

    async def work(self, question: Coroutine[Any, Any, T]) -> T:
        """Answer a question of another kind, in the context of the run."""
        return await self.begin(question)

    # Points.

    async def fire(self, point: Point[Any], payload: Any, *, tool: Tool | None = None, about: Any = None) -> Verdict:
        """Fire a point in the run, and return the verdict. A hook that ends the run has its reason in ``over``.

        Args:
            point: the point.
            payload: its payload.
            tool: the tool that the payload is about, for hooks.
            about: anything, for hooks of the host: see :func:`question_of_host`.

        Raises:
            HookError, CallRefusedError: a hook failed closed. The run goes on; the host decides what that means.
        """
        return await self._answered(self._fire(point, payload), tool, about)

    async def _answered(self, work: Coroutine[Any, Any, T], tool: Tool | None, about: Any) -> T:
        if self.done:
            work.close()
        self._check_open()
        task, caller = self._loop.ask(work, tool, about), asyncio.current_task()
        try:
            return await task
        except asyncio.CancelledError:
            if caller is not None and caller.cancelling():
                raise
            raise HooklineError(f"the run {self.id} has ended") from None

    async def _fire(self, point: Point[Any], payload: Any) -> Verdict:
        engine = self._engine
        try:
            return await engine.fire(point, payload, fatal=False)
        except RunEndedError as ended:
            await engine.note_cause(ended)
            return ended.verdict
        except RunStoppedError:
            return Verdict(payload)

    def continue_with(self, prompt: str) -> None:
        """Add a message of the user to the run, which continues with it."""
        self._check_open()
        self._loop.state.append(Message("user", prompt))
        self._engine.emit(Steered, text=prompt, attachments=())

    async def ask(
        self, request: ToolCallRequest, *questions: Question, tool: Tool | None = None, about: Any = None
    ) -> ApprovalAnswer | None:
        """Ask the approvers about a call, because the host wants to know. ``None`` if none of them answers.

        Raises:
            HookError, CallRefusedError: an approver failed closed.
        """
        return await self._answered(self._ask(request, questions), tool, about)

    async def _ask(self, request: ToolCallRequest, questions: tuple[Question, ...]) -> ApprovalAnswer | None:
        engine = self._engine
        asked = ApprovalRequest(request, questions, request.digest)
        verdict = await self._fire(APPROVAL_REQUESTED, asked)
        answer: ApprovalAnswer | None = verdict.value
        if answer is None:
            return None
        if answer.wait:
            answer = ApprovalAnswer(deny="Nobody has approved this call yet, and this run cannot wait.")
        same = {"call_id": request.id, "tool": request.name, "digest": request.digest}
        texts = tuple([question.text for question in questions])
        engine.emit(ApprovalAsked, arguments=request.arguments, questions=texts, **same)
        decision = "edited" if answer.edit is not None else "approved" if answer.approve else "denied"
        by = answer.by or verdict.hook
        engine.emit(ApprovalDecided, decision=decision, by=by, message=answer.deny or "", **same)
        return answer

    # Tool calls.

    async def judge_call(
        self, call: ToolCall, *, tool: Tool | None = None, unasked: Unasked | None = None, about: Any = None
    ) -> Judged:
        """Let the hooks judge a call that the host is about to make.

        If the host asks about a call in flight again, with the same id or without one, it is judged again, and counts
        once.

        Args:
            call: the call; without an id, its result is found by name and arguments.
            tool: the tool, for hooks; by default one with this name, whose effects are undeclared.
            unasked: says whether the host can ask its own user; by default it cannot.
            about: anything, for hooks of the host.

        Raises:
            HooklineError: the run has ended.
        """
        self._check_open()
        loop = self._loop
        earlier = loop.find(call, exactly=True)
        loop.resume_if_released()
        if earlier is not None:
            call = replace(call, id=earlier.given.id)
            self._drop(earlier)
            earlier.batch.withdraw()
            batch = HostedBatch(loop, replace(call, id=earlier.batch.pending.request.id), unasked, earlier)
        else:
            batch = HostedBatch(loop, loop.with_free_id(call), unasked, given=call.id)
        if tool is not None:
            self.tools.add(tool)
        loop.start(batch, batch.judge(), tool, about)
        item = await self._next(batch)
        pending = batch.pending
        if isinstance(item, Work):
            loop.calls.append(HostedCall(call, batch, item))
            is_asked = item.kind == "approve"
            return Judged("asked" if is_asked else "allowed", pending.request, pending.asks if is_asked else ())
        return Judged("refused", pending.request, (), item, pending.by, loop.over, batch.failure)

    async def settle_call(
        self,
        call: ToolCall | str,
        result: Any = None,
        *,
        error: str | None = None,
        seconds: float | None = None,
        approved_by: str = "",
        tool: Tool | None = None,
        about: Any = None,
    ) -> Settled:
        """Let the hooks judge the result of a call. The result of a call that was not judged here is judged too.

        Args:
            call: the call, or its id if it was judged here.
            result: what the tool returned, as JSON.
            error: the error of a call that failed.
            seconds: how long the call took, if the host knows.
            approved_by: who approved the call if the host was to ask its user.
            tool: the tool, for hooks, if the call was not judged here.
            about: anything, for hooks of the host.

        Raises:
            HooklineError: there is no call with this id, or the run has ended.
        """
        self._check_open()
        loop = self._loop
        is_id = isinstance(call, str)
        given = ToolCall(call, "", {}) if isinstance(call, str) else call
        held = loop.find(given, exactly=False)
        digest = fingerprint([result, error])
        if held is None and given.id and (known := self._settled.get(given.id)) and known[0] == digest:
            return known[1]  # the host reports it twice
        if held is None and is_id:
            raise HooklineError(f"no call {given.id!r:.80} is in flight: give the whole call")
        settled = None
        if held is not None:
            self._drop(held)
            settled = await self._settle(held, result, error, seconds, approved_by)
            given = held.given
        if settled is None:
            if tool is not None:
                self.tools.add(tool)
            batch = HostedBatch(loop, loop.with_free_id(given))
            batch.seconds = seconds
            loop.start(batch, batch.accept(result, error), tool, about)
            final = await self._next(batch)
            settled = Settled(final, batch.retry, loop.over, batch.failure)
        if given.id:
            self._settled[given.id] = digest, settled
            while len(self._settled) > MAX_SETTLED:
                self._settled.popitem(last=False)
        return settled

    async def _settle(
        self, held: HostedCall, result: Any, error: str | None, seconds: float | None, approved_by: str
    ) -> Settled | None:
        """Settle a call in flight. Return ``None`` if it has been refused meanwhile, although the host made it."""
        batch, item = held.batch, held.work
        batch.seconds = seconds
        if item.kind == "approve":
            item.done(ApprovalAnswer(approve=True, by=approved_by))
            item = await self._next(batch)
            if not isinstance(item, Work):
                return None
        if error is None:
            item.done(result)
        else:
            item.fail(ReportedError(error))
        final = await self._next(batch)
        return Settled(final, batch.retry, self._loop.over, batch.failure)

    async def deny_call(self, id: str, message: str = "Denied.", *, by: str = "") -> ToolCallResult:
        """Settle a call about which the host asked its user, who said no.

        Raises:
            HooklineError: there is no such call.
        """
        held = self._loop.find(ToolCall(id, "", {}), exactly=False)
        if held is None or held.work.kind != "approve":
            raise HooklineError(f"no call {id!r:.80} waits for an answer of the user")
        self._drop(held)
        held.work.done(ApprovalAnswer(deny=message, by=by))
        result: ToolCallResult = await self._next(held.batch)
        return result

    def _drop(self, held: HostedCall) -> None:
        self._loop.calls.remove(held)

    async def _next(self, batch: HostedBatch) -> Any:
        """Wait until a call is judged, or settled."""
        try:
            return await batch.exchange.take()
        except asyncio.CancelledError:  # the host does not wait any longer, so the call must not be made
            batch.task.cancel()
            raise

    def _check_open(self) -> None:
        if self.done or self._engine.ctx is None:
            raise HooklineError(f"the run {self.id} has ended: start another one")

    async def _until(self, future: asyncio.Future[Any]) -> None:
        """Wait until a future is done, or the run has ended."""
        run = self.run._task
        assert run is not None  # it has begun
        await asyncio.wait({future, run}, return_when=asyncio.FIRST_COMPLETED)

    # The end.

    def go_on(self) -> None:
        """Note that the host goes on although a hook has ended or stopped the run. Limits and halts still hold."""
        engine = self._engine
        if isinstance(engine.cause, RunEndedError):
            engine.cause = None
        signals = engine.run_state.signals
        if any(signal.kind == "stop_requested" for signal in signals):
            engine.run_state.set_signals(tuple(each for each in signals if each.kind != "stop_requested"))

    async def end(self, reply: str | None = None, *, error: BaseException | None = None) -> str | None:
        """Say that the host is about to stop. Return why it must go on, or ``None``: then the run has ended.

        Args:
            reply: the last reply of the model.
            error: the error with which the host failed.

        Raises:
            HookError, CallRefusedError: a hook failed closed, so the run has failed.
        """
        if self.done:
            return None
        answer = self._loop.end(reply, error)
        await self._until(answer)
        if answer.done():
            return answer.result()
        self._raise_failure()
        return None

    async def refuse(self, reply: str, *, by: str) -> None:
        """End the run because the host cannot do what the hooks want.

        Args:
            reply: what the user reads.
            by: who refuses it.
        """
        self._check_open()
        await self._engine.note_cause(RunEndedError(Verdict(None, HookAction.END, reply, by)))
        await self.end()

    async def suspend(self) -> None:
        """Stop executing the run here: nothing is fired or recorded any more. Another process goes on with it."""
        if not self.done:
            self._engine.suspend()
            await self.cancel("the process has ended")

    async def cancel(self, reason: str) -> None:
        """End the run because the host does not go on with it."""
        self.run.cancel(reason)
        await self.run.settled()


class HostedAgent(Agent[Any, Any]):
    """The hooks, plugins, limits and other options of an agent whose loop is a program that asks.

    Args:
        name: the name of the agent.
        options: those of an :class:`~hookline.Agent`.
    """

    _loop_type = HostedLoop

    def __init__(self, name: str, **options: Any) -> None:
        llm: Any = options.pop("llm", None) or HostedModel(name)
        super().__init__(name, llm=llm, **options)
        self.unchecked_globs = False  # the tools are known when they are called

    async def host(
        self,
        task: str,
        *,
        goes_on: bool = False,
        run_id: str = "",
        tools: HostedTools | None = None,
        call_id: str = "",
        max_keep_going: int | None = None,
        **options: Any,
    ) -> HostedRun:
        """Start a run, and let the hooks judge the task. A run that a hook ended is ``done``.

        Args:
            task: the user's message.
            goes_on: whether the run began before this process was asked about it: nothing is fired at its start.
            run_id: the id of the run; by default a new one.
            tools: the tools that are known; others are added when they are called.
            call_id: the call of the outer run that started this one.
            max_keep_going: how often hooks may keep the run going.
            options: see :class:`~hookline.RunOptions`.

        Raises:
            HookError, CallRefusedError: a hook failed closed, so the run has failed.
        """
        tools = HostedTools() if tools is None else tools
        agent = copy(self)
        agent.tools = tools
        run = agent._prepare(task, options, None, run_id=run_id)
        loop = run._loop
        assert isinstance(loop, HostedLoop)
        run.when_done(loop.close)
        loop.engine.goes_on = goes_on
        if max_keep_going is not None:
            loop.max_keep_going = max_keep_going
        if call_id:
            loop.engine.services.call_id = call_id
        if isinstance(self.model, HostedModel):
            loop.engine.services.llm = None
        return await HostedRun(run, loop, tools).open()
