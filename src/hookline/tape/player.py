"""Play a tape: it provides the answers of the model, the tools and the approvers to the replayed run."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext, suppress
from random import Random
from typing import Any, Never, TypeVar

from .._base.tasks import (
    StillRunningError,
    abandon,
    defer_cancellation,
    forever,
    raise_exit,
    settle,
    start_task,
    with_timeout,
)
from .._kernel.dispatch import Firing
from .._kernel.errors import CallRefusedError, HookError
from .._kernel.events import Event, PointFired
from .._kernel.fire_observers import FireObserver, FireReport
from .._kernel.hook import HookEntry
from .._kernel.payloads import ApprovalRequest, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import ON_RUN_END
from .._kernel.results import Verdict
from .._kernel.scope import CURRENT, running_hooks
from .._kernel.values import ErrorInfo, ModelResponse, StopSignal
from .._run.boundary import Boundary, wakeup_after
from .._run.engine import Engine
from .._run.events import AllEventsExcept, Failed, RunFinished, Signalled, ToolEnded
from .._run.lanes import LANE, Lane, in_lane
from .._run.replay_values import RequestDigests, approval_verdict, tool_result
from .._run.run import Run
from .._run.sources import install_sources
from .._run.termination import RunStoppedError
from ..models.protocol import Model
from ..tools._tool import Tool
from . import format as fmt
from .compare import AnyEvent, Comparison, Decision
from .fires import OrderedFires
from .order import Order
from .sources import ReplayClock, ReplayReadings, ReplayTimer, ReplayTimers
from .tape import TEXT_EVENTS, Tape

T = TypeVar("T")

ENDED = "the replay has ended"
NO_ANSWERS = "the tape has no further answers"
NOT_CANCELLED = "a call that was cancelled in the recording was not cancelled in the replay"


class Player(Boundary):
    """The :class:`~hookline._run.boundary.Boundary` of a replayed run, and a hook of it that observes only.

    Args:
        tape: the tape.
        strict: whether a request or call that differs from the tape ends the replay.
    """

    is_replay = True
    is_direct = False
    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(self, tape: Tape, strict: bool) -> None:
        self.tape, self.strict = tape, strict
        self.playback = Playback(tape, self._charge, self._cancel_nested)
        self.clock = self.playback.clock
        self._index = EntryIndex(tape.entries)
        if tape.run.ids.run_id in self._index.finished:
            self.playback.outlived = frozenset(self._index.runs) - self._index.finished
        self._root: Engine | None = None
        self._inside: dict[str, Engine] = {}
        """The runs inside the replayed one that have not ended."""
        self._ended: Future[None] = Future()
        """Done when the replayed run has ended. Detached runs in other event loops wait for it."""
        self.digests = RequestDigests()
        self._readings = ReplayReadings(tape.entries, self.playback.order, self.clock, tape.header)
        self._ids = [tape.run.ids.run_id]
        # A fire observer compares the fires. Text is streamed if it was streamed in the recording.
        streamed = tape.text_runs or any(reply.pieces for _, reply in self._index.replies.values())
        self.events = AllEventsExcept(PointFired, if_wanted=() if streamed else TEXT_EVENTS)

    # Methods of the hook.

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Do nothing: this hook only observes events."""

    def instrument(self, engine: Engine, start: RunStart) -> AbstractContextManager[None]:
        """Make the run read clock, random numbers and ids from the tape."""
        engine.add_fire_observer(OrderedFires(engine, Fires(engine.ids.run_id, self.playback)))
        if engine.environment.clock is not self.clock:
            if engine.ids.run_id in self._index.runs:
                self.playback.produced(self._index.runs[engine.ids.run_id])
            return nullcontext()
        self._root = engine
        engine.environment.random = Random(self.tape.run.ids.run_id)
        install_sources(engine, self)
        self.playback.interrupt = engine.cancellation.interrupt
        engine.services.lane = self.playback.lane
        engine.services.interrupt.record(self.playback.cancelled)  # a hook may do that
        self.playback.produced(self._index.runs[self.tape.run.ids.run_id])
        return in_lane(self.playback.lane)

    async def execute(self, engine: Engine, start: RunStart, work: Callable[[], Awaitable[T]]) -> T:
        """Execute a run. A detached run that began after the recorded run had ended does not begin in the replay."""
        lane, run_id = engine.services.lane, start.ids.run_id
        if engine.environment.clock is self.clock:
            return await work()
        if self._index.finished and lane is not None and self.playback.is_unrecorded(lane.path):
            await asyncio.shield(asyncio.wrap_future(self._ended))
        self._inside[run_id] = engine
        if self._ended.done():
            engine.services.interrupt.cancel(ENDED)
        try:
            return await work()
        finally:
            self._inside.pop(run_id, None)

    def _cancel_nested(self, lane: str, reason: str) -> None:
        """Cancel a nested run alone."""
        for engine in list(self._inside.values()):
            if engine.services.lane is not None and engine.services.lane.path == lane:
                engine.services.interrupt.cancel(reason)

    def end_detached(self) -> None:
        """Cancel the detached runs that outlived the recording: the tape does not say how they went on."""
        self._ended.set_result(None)
        for engine in list(self._inside.values()):
            engine.services.interrupt.cancel(ENDED)

    def on_event(self, event: Event) -> None:
        """Compare an event with the one on the tape."""
        self.playback.compare_event(event)

    def await_hook(
        self, firing: Firing, hook: HookEntry, result: Awaitable[Any], limit: float | None, is_grace: bool
    ) -> Awaitable[Any]:
        """Return the result of a hook, at its place on the tape."""
        return self.playback.await_hook(firing, hook, result, limit, is_grace)

    def find_halt(self, engine: Engine) -> StopSignal | None:
        """Return the signal that halted the run at this place of the tape, if one did."""
        return self.playback.next_halt(engine.ids.run_id)

    # Clock readings, random numbers and ids.

    def read(self, kind: str, real: Callable[[], Any]) -> Any:
        """Return the value that was recorded at this position, or the actual one if there is none."""
        return self._readings.read(self.playback.path, kind, real)

    def set_timer(self, clock: Any, seconds: float, callback: Callable[[], object]) -> ReplayTimer:
        """Set a timer, which fires at its position on the tape."""
        return self.playback.timers.set(self.playback.path, callback)

    def new_id(self, prefix: str = "id") -> str:
        """Make the ids that a run needs before it starts."""
        from .._run.environment import make_id

        return self._ids.pop() if prefix == "run" and self._ids else make_id(prefix)

    # The calls of the run.

    def streams(self, model: Model) -> bool:
        """Return true: the tape has the pieces of a reply that was streamed."""
        return True

    async def complete(
        self, model: Model, request: ModelRequest, call: Callable[[], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Return the recorded reply."""
        answer, end = await self._answer_to(request)
        response = await self._end_of(answer, end)
        if response is None:
            return await self.playback.stop("the recorded reply is incomplete")
        return response

    async def stream(
        self, model: Model, request: ModelRequest, call: Callable[[], AsyncIterator[str | ModelResponse]]
    ) -> AsyncIterator[str | ModelResponse]:
        """Yield the recorded pieces, and then the recorded reply."""
        answer, end = await self._answer_to(request)
        try:
            for piece in answer.pieces:
                yield piece
        except GeneratorExit:
            self.playback.produced(end)
            raise
        response = await self._end_of(answer, end)
        if response is not None:
            yield response

    def counted(self, model: Model, key: str, count: Callable[[], Any], estimate: Callable[[], Any]) -> Any:
        """Return the recorded number, or an estimate."""
        known = self._index.counted.get(key)
        return estimate() if known is None else known

    async def call_tool(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
        """Return the recorded result of the call.

        A tool that only runs agents is called, because the calls of these agents are on the tape.
        """
        known = self._index.called.get((request.ids.run_id, request.id, request.attempt))
        if known is None:
            return await self.playback.stop(f"{request.name} was not called at this position in the recording")
        position, called = known
        if self.strict and called.request.arguments != request.arguments:
            return await self.playback.stop(f"{request.name} was called with other arguments in the recording")
        try:
            return await self._answer_of(request, called, position, tool, values, ctx)
        finally:
            self._forget(called.lane)

    async def _answer_of(
        self, request: ToolCallRequest, called: fmt.ToolCallEntry, position: int, tool: Tool, values: Any, ctx: Any
    ) -> Any:
        self.playback.produced(position)
        given = self._index.results.get(called.lane)
        timed_out = given is not None and given[1].timed_out
        if tool.runs_agents and called.runs_agents:
            value = await self._until(given[0] if given is not None and timed_out else None, tool.call(values, ctx))
            if given is not None:
                await self.playback.wait_for_answer(given[0])
            return value
        for index, report in self._index.reports.get(called.lane, ()):
            if given is not None and index > given[0]:
                break  # the run no longer waited for the tool
            await self.playback.wait_for_answer(index)
            self.playback.produced(index)
            if ctx is not None:
                ctx.progress(report.fraction, report.message)
        ended, outcome = self._index.ended.get((called.run, request.id, request.attempt), (len(self.tape.entries), ""))
        if not timed_out and (outcome == "cancelled" or (given is not None and given[1].cancelled)):
            await self.playback.wait_for_cancellation(ended if given is None else min(ended, given[0]))
        if given is None:
            return await self.playback.stop(f"the tape ends before {request.name} does")
        end, answer = given
        await self.playback.wait_for_answer(end)
        self.playback.produced(end)
        for before in range(position, end):  # what has not been charged, because the order is lost
            self._charge(before)
        if answer.timed_out:
            raise StillRunningError
        if answer.refused:
            return await self.playback.stop(f"a hook refused a model call inside {request.name}, which is not replayed")
        if answer.raised is not None:
            raise answer.raised.error()
        return tool_result(answer.value, answer.attachments)

    def _forget(self, lane: str) -> None:
        """Stop waiting for entries that a call produced after the run had stopped waiting for it."""
        left = [position for position, _ in self._index.reports.get(lane, ())]
        if (given := self._index.results.get(lane)) is not None:
            left.append(given[0])
        for position in left:
            if self.playback.order.is_pending(position):
                self.playback.produced(position)

    async def _until(self, position: int | None, work: Awaitable[Any]) -> Any:
        """Await work, but not beyond this position on the tape."""
        if position is None:
            return await work
        task, limit = asyncio.ensure_future(work), asyncio.ensure_future(self.playback.order.wait_for(position))
        try:
            await asyncio.wait({task, limit}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise StillRunningError
        finally:
            abandon(task)
            abandon(limit)

    def _charge(self, position: int) -> None:
        """Repeat what happened inside a tool, where it did: usage, errors of hooks and signals are those of the run."""
        inside = self._index.inside.pop(position, None)
        if inside is None:
            return
        made, called = inside
        root = self._root if called.run == self.tape.run.ids.run_id else None
        engine = self._inside.get(called.run, root)
        if engine is None:
            return  # the run that called the tool has ended
        if isinstance(made, ErrorInfo):
            engine.run_state.add_error(made)
        elif isinstance(made, StopSignal):
            engine.run_state.set_signals((*engine.run_state.signals, made))
        elif isinstance(made, fmt.ToolCallEntry):
            engine.budget.count_tool_call()
        elif (known := self._index.replies.get(made.number)) and (response := known[1].response) is not None:
            payer = engine.run_state if made.run == called.run else engine.budget
            payer.charge(response.usage, response.cost)

    async def approve(
        self, asked: ApprovalRequest, ask: Callable[[], Awaitable[Verdict]], report: Callable[..., Awaitable[Any]]
    ) -> Verdict:
        """Return the recorded decision. A call without a recorded decision is not approved."""
        call = asked.call
        known = self._index.approved.get((call.ids.run_id, call.id, call.attempt))
        if known is None:
            return Verdict(asked)
        position, approval = known
        if approval.cancelled:
            await self._wait_for_cancellation(position)
        failed = approval.failed
        for failure in approval.failures if failed is None else (failed, *approval.failures):
            with suppress(RunStoppedError, HookError, CallRefusedError) if failed is not None else nullcontext():
                await report(failure)
        await self.playback.wait_for_answer(position)
        self.playback.produced(position)
        return approval_verdict(asked, approval.answer, approval.by, failed)

    async def _wait_for_cancellation(self, position: int) -> Never:
        try:
            await self.playback.wait_for_cancellation(position)
        finally:
            self.playback.produced(position)

    async def once(self, name: str, read: Callable[[], Awaitable[Any]]) -> Any:
        """Return the recorded value when its turn comes, or read it if the tape has none."""
        known = self._index.once.get((self.playback.path, name))
        if not known:
            return await read()
        position, entry = known.popleft()
        try:
            await self.playback.continue_at(position)
            if entry.cancelled:
                await forever()
        except asyncio.CancelledError:
            if not entry.cancelled:  # the value is that of a later call
                known.appendleft((position, entry))
            raise
        if entry.raised is not None:
            raise entry.raised.error()
        return entry.value

    async def wake_up(self, name: str, *, waited: bool = True) -> None:
        """Wait until an await of the run's own code had ended in the recording."""
        position = self.playback.order.wakeup_of(self.playback.path, name)
        if position is not None:
            await self.playback.continue_at(position)
        elif waited:
            await self.playback.wait_for_input()

    async def _answer_to(self, request: ModelRequest) -> tuple[fmt.ModelReplyEntry, int]:
        """Return the recorded reply to this request, and its position."""
        digests = self.digests.of(request)
        asked = self._index.asked.get((request.ids.run_id, request.purpose))
        if not asked:
            what = "model call" if request.purpose == "step" else f"model call for {request.purpose!r}"
            return await self.playback.stop(f"the tape has no further {what}")
        same = next((i for i, (_, entry) in enumerate(asked) if entry.digests == digests), None)
        position, entry = asked[same or 0]
        if same is None and self.strict:
            parts = [name for name, value in digests.items() if entry.digests.get(name) != value]
            return await self.playback.stop(
                f"the next request to the model has other {' and '.join(parts)} than the recorded one, "
                "so the reply to it is not known"
            )
        del asked[same or 0]
        self.playback.produced(position)
        known = self._index.replies.get(entry.number)
        if known is None:
            return await self.playback.stop("the tape ends before the model's reply")
        return known[1], known[0]

    async def _end_of(self, answer: fmt.ModelReplyEntry, end: int) -> ModelResponse | None:
        """Wait until a reply may be returned, and return its response."""
        if answer.cancelled:
            await self._wait_for_cancellation(end)
        if answer.closed:
            return await self.playback.stop(NOT_CANCELLED)
        await self.playback.wait_for_answer(end)
        self.playback.produced(end)
        if answer.raised is not None:
            raise answer.raised.error()
        return answer.response


class Fires(FireObserver):
    """Compares the fires of one run with the moments on the tape."""

    def __init__(self, run_id: str, playback: Playback) -> None:
        self.points = fmt.recorded_points()
        self._run_id, self._playback = run_id, playback

    def fire_ended(self, fire: FireReport) -> None:
        """Compare a fire."""
        verdict = fire.verdict
        event = PointFired(0, 0.0, self._run_id, fire.point, verdict.action, verdict.hook, verdict.reason)
        self._playback.compare_event(event)


class Playback:
    """Synchronizes a replayed run with its tape: compares events, repeats external input, and ends the run.

    Args:
        tape: the tape.
        passed: called with each position when everything up to it has been produced.
        cancel_nested: cancels the nested run with a lane, for a reason.
    """

    def __init__(self, tape: Tape, passed: Callable[[int], None], cancel_nested: Callable[[str, str], None]) -> None:
        self.tape, self._cancel_nested = tape, cancel_nested
        self.run: Run[Any] | None = None
        """The replayed run, once it is started."""
        self.interrupt: Callable[[], None] = lambda: None
        """Cancels the task of the replayed run."""
        self.stop_reason = ""
        """Why the replay stopped before the end of the tape, if it did."""
        self.clock, self.timers = ReplayClock(tape.header), ReplayTimers()
        self.compare = Comparison(tape)
        self.order = Order(tape.entries, self._repeat, self._missing, passed)
        self.lane = Lane()
        """The lane of the replayed run."""
        self._outer_hooks = running_hooks()
        self._cancelled = self._exact = False
        self._is_cutting = False
        """Whether a cancellation, of the run or of a nested one, reaches one part after another."""
        self._end = len(tape.entries)
        self.outlived: frozenset[str] = frozenset()
        """The detached runs that had not ended when the recorded run ended."""

    @property
    def path(self) -> str:
        """The lane of the current task on the tape."""
        lane = LANE.get()
        return "" if lane is None or lane.tree is not self.lane.tree else lane.path

    def compare_event(self, event: Event) -> None:
        """Compare an event with the one on the tape."""
        if self.stop_reason:
            return
        lane = self.path
        position, difference = self.compare.take(event, lane, self.order.next_in)
        if difference and (self.order.intact or not self.compare.first):
            self.compare.differ(self.order.diverge(lane), difference)
        if position is not None:
            entry = self.tape.entries[position]
            if type(entry) is fmt.EventEntry:
                self.clock.advance(_event_time(entry.event) - self.tape.header.time)
            self.produced(position)

    def is_unrecorded(self, lane: str) -> bool:
        """Return whether a lane is that of a detached run that is not on the tape."""
        return "&" in lane and self.order.intact and not self.order.lanes.has(lane)

    def next_halt(self, run_id: str) -> StopSignal | None:
        """Return the signal of a halt if that is the next entry of the lane: a checkpoint of this run found it."""
        position = self.order.next_in(self.path) if self.order.intact else self._end
        entry = self.tape.entries[position] if position < self._end else None
        event = entry.event if type(entry) is fmt.EventEntry else None
        if isinstance(event, Signalled) and event.run_id == run_id and event.signal.kind == "halted":
            return event.signal
        return None

    def produced(self, position: int) -> None:
        """Mark an entry as produced and set the clock to its time."""
        at = self.tape.entries[position].at
        if at:
            self.clock.advance(at)
        self.order.produced(position)

    def _missing(self, position: int) -> None:
        self.compare.missing(position, self.tape.entries[position])

    def _repeat(self, entry: fmt.TapeEntry) -> None:
        """Repeat an external input."""
        self.clock.advance(entry.at)
        if isinstance(entry, fmt.SteeringEntry) and self.run is not None and entry.run == self.tape.run.ids.run_id:
            self.run.steer(entry.text, entry.attachments)
        elif isinstance(entry, fmt.TimerEntry):
            self.timers.fire(entry)
            self.order.end_turns()
        elif isinstance(entry, fmt.CancellationEntry) and entry.run:
            self._is_cutting = True
            self._cancel_nested(entry.run, entry.reason)
        elif isinstance(entry, (fmt.CancellationEntry, fmt.InterruptionEntry)) and self.run is not None:
            self.cancelled()
            if isinstance(entry, fmt.CancellationEntry):
                self.run.cancel(entry.reason)
            else:
                self.interrupt()

    def cancelled(self, reason: str = "") -> None:
        """Give up the order when the run is cancelled: the tape does not record how fast each task reacts."""
        if not self.stop_reason:
            self._cancelled = self._is_cutting = True
            self.order.abandon()

    async def wait_until(self, position: int, *, is_wakeup: bool = False) -> None:
        """Wait until everything recorded before an answer of this lane has been produced."""
        self.order.skip_wakeups(self.path, position)
        await self.order.wait_for(position, self.path, in_hook=self._in_hook(), is_wakeup=is_wakeup)

    async def continue_at(self, position: int) -> None:
        """Wait for the turn of a wakeup of this lane, and repeat it."""
        self.order.claim(self.path, position)
        try:
            if not self.stop_reason:
                await self._uninterrupted(self.wait_until(position, is_wakeup=True))
        finally:
            self.order.woke(position)

    async def wait_for_answer(self, position: int) -> None:
        """Wait until an answer may be returned. A cancellation meanwhile comes after it, as in the recording."""
        await self._uninterrupted(self.wait_until(position))

    async def await_hook(
        self, firing: Firing, hook: HookEntry, result: Awaitable[Any], limit: float | None, is_grace: bool
    ) -> Any:
        """Return the result of a hook. A cancellation interrupts it if it did so in the recording, and only then.

        The run continues after the hook where it did in the recording, and the timeout of the hook is the tape's. While
        external input is to come, the hook also waits for its turn, so that no part of the run is ahead of it.
        """
        position = self.order.interruption_of(hook, self.path)
        if position is None:
            return await self._uninterrupted(self._in_turn(hook, self._in_time(hook, result, limit, is_grace)))
        self.order.lanes.interruptions(self.path).remove(position)
        value = await result
        if not firing.scope.cancellation.is_cancelled():  # the hook was faster than in the recording
            await self.wait_until(position)
            await settle()
        return value

    async def _in_time(self, hook: HookEntry, result: Awaitable[Any], limit: float | None, is_grace: bool) -> Any:
        """Await a hook. If the tape says how that ended, its timeout is the tape's, and no clock is read.

        Raises:
            StillRunningError: the hook exceeded its timeout.
        """
        position = None if limit is None else self.order.wakeup_of(self.path, wakeup_after(hook))
        if position is None:
            return await with_timeout(limit, result, is_grace)
        entry = self.tape.entries[position]
        assert isinstance(entry, fmt.WakeupEntry)
        if not entry.timed_out:
            return await result
        task, turn = start_task(result), asyncio.ensure_future(self.order.wait_for(position))
        try:
            await asyncio.wait({task, turn}, return_when=asyncio.FIRST_COMPLETED)
            if task.done() and not (self.order.intact and self.order.is_next(hook, self.path, position)):
                return raise_exit(task.result())  # a later call of the hook exceeded its timeout
            await self.continue_at(position)
            raise StillRunningError
        finally:
            abandon(task)
            abandon(turn)

    async def _in_turn(self, hook: HookEntry, result: Awaitable[Any]) -> Any:
        try:
            value = await result
        except StillRunningError:
            raise
        except Exception:
            await self._wait_for_turn(hook)
            raise
        await self._wait_for_turn(hook)
        return value

    async def _wait_for_turn(self, hook: HookEntry) -> None:
        position = self.order.wakeup_of(self.path, wakeup_after(hook))
        if position is not None and self.order.is_next(hook, self.path, position):
            await self.continue_at(position)
        elif self.order.has_turns:
            await self.wait_for_input()

    async def wait_for_input(self) -> None:
        """Wait for the external input before the next entry of this lane; without one, for the end of the tape."""
        following = self.order.next_from(self.path)
        if self.stop_reason:
            return
        if not self.order.has_turns:
            await settle()  # a cancellation or time limit that is under way arrives
        elif self.order.expects_input:
            await self.wait_until(following)
        elif following == len(self.tape.entries):
            await self.order.wait_for(following)

    async def _uninterrupted(self, result: Awaitable[Any]) -> Any:
        """Await something to its end. A cancellation meanwhile comes at the next ``await`` after it."""
        if not self._is_cutting and not self.order.expects_input:  # there will be none
            return await result
        return await defer_cancellation(result)

    def _in_hook(self) -> bool:
        return running_hooks() > self._outer_hooks

    async def wait_for_cancellation(self, position: int) -> Never:
        """Wait for the event that cancelled a call in the recording.

        The run's owner, a time limit, the failure of a concurrent call or a hook cancelled it. All but the last are on
        the tape. So if they have been repeated and the call goes on, the replay has no answer. A hook that awaits the
        call may have its own timer, and the replay waits for that.
        """
        in_hook = self._in_hook()
        await self._uninterrupted(self.wait_until(position))  # a cancellation reached the call there
        await settle()
        if not self.order.intact:
            self.order.repeat_before(position)
            await settle()
        if self.order.repeat_cancellation(position, at_once=in_hook):
            await settle()
        if not self._cancelled and not (in_hook and self.order.intact):
            await self.stop(NOT_CANCELLED, position)
        await forever()

    async def stop(self, why: str, position: int | None = None) -> Never:
        """Stop the replay because the tape has no answer, once everything recorded before has been produced.

        A detached run that outlived the recorded run waits instead: what follows was not recorded.
        """
        current = CURRENT.get()
        if isinstance(current, Engine) and current.ids.run_id in self.outlived:
            await forever()
        await self.order.hold(self.path)
        await self.wait_until(self.order.give_up(self.path) if position is None else position)
        if not self.stop_reason:
            self.stop_reason = why
            self._end, self._exact = self.order.reached, self.order.intact
            if self._exact:
                self.compare.forget()
            else:
                self._end = self.order.furthest
            assert self.run is not None  # areplay() sets it
            self.run.cancel(NO_ANSWERS)
        if isinstance(current, Engine):
            current.services.interrupt.cancel(NO_ANSWERS)  # a hook may wait in a thread for a detached run
        await forever()

    def finish(self) -> tuple[list[Decision], list[Decision]]:
        """Return the recorded decisions and those of the replay, after the last event."""
        if not self.stop_reason:
            self.compare.finish(self.order.intact)
        return self.compare.decisions(self._end, self._exact)


def _event_time(event: AnyEvent) -> float:
    """Return the Unix time of an event."""
    return event.at if isinstance(event, Event) else float(event["at"])


Inside = fmt.ModelRequestEntry | fmt.ToolCallEntry | ErrorInfo | StopSignal
"""A request or call that a tool made; the error of a hook, or a signal, that came of that."""
Call = tuple[str, str, int]
"""The run id, call id and attempt of a tool call."""


class EntryIndex:
    """The entries from which a replay answers, each with its position, indexed by the keys of lookups.

    Args:
        entries: the entries of the tape.
    """

    def __init__(self, entries: Sequence[fmt.TapeEntry]) -> None:
        self.asked: dict[tuple[str, str], deque[tuple[int, fmt.ModelRequestEntry]]] = {}
        """The requests that a replay makes too, in order, by run and purpose."""
        self.replies: dict[int, tuple[int, fmt.ModelReplyEntry]] = {}
        self.called: dict[Call, tuple[int, fmt.ToolCallEntry]] = {}
        """The calls that a replay makes too."""
        self.reports: dict[str, list[tuple[int, fmt.ToolProgressEntry]]] = {}
        """The progress reports of a tool call, by its lane."""
        self.results: dict[str, tuple[int, fmt.ToolResultEntry]] = {}
        """The result of a tool call, by its lane."""
        self.ended: dict[Call, tuple[int, str]] = {}
        """The position at which the run finished a call, and its outcome."""
        self.approved: dict[Call, tuple[int, fmt.ApprovalEntry]] = {}
        self.counted: dict[str, float | None] = {}
        self.once: dict[tuple[str, str], deque[tuple[int, fmt.OnceEntry]]] = {}
        """The values that hooks read with ``ctx.once``, in order, by lane and name."""
        self.inside: dict[int, tuple[Inside, fmt.ToolCallEntry]] = {}
        """Requests, calls, errors and signals inside tools, with the calls of these tools, by position. The position of
        a request is that of its reply. A replay does not repeat them."""
        self._calls: dict[str, fmt.ToolCallEntry] = {}
        self._requests: dict[int, fmt.ModelRequestEntry] = {}
        self.runs: dict[str, int] = {}
        """The position at which each run started, by its id."""
        self.finished: set[str] = set()
        """The runs that ended."""
        for position, entry in enumerate(entries):
            if type(entry) is not fmt.MomentEntry:
                self._put(position, entry)

    def _put(self, position: int, entry: fmt.TapeEntry) -> None:
        match entry:
            case fmt.EventEntry():
                if isinstance(event := entry.event, ToolEnded):
                    self.ended.setdefault((event.run_id, event.call_id, event.attempt), (position, event.outcome))
                elif isinstance(event, RunFinished):
                    self.finished.add(event.run_id)
                elif isinstance(event, (Failed, Signalled)) and entry.inside:
                    call = self._calls[entry.inside]
                    if event.run_id == call.run:
                        self.inside[position] = event.error if isinstance(event, Failed) else event.signal, call
            case fmt.RunEntry() if not entry.inside:
                self.runs.setdefault(entry.ids.run_id, position)
            case fmt.ModelRequestEntry() | fmt.ToolCallEntry():
                self._begin(position, entry)
            case fmt.ModelReplyEntry():
                self.replies[entry.number] = position, entry
                if (request := self._requests.pop(entry.number, None)) is not None:
                    self.inside[position] = request, self._calls[request.inside]
            case fmt.ToolProgressEntry() if not entry.inside:
                self.reports.setdefault(entry.lane.removesuffix("!"), []).append((position, entry))
            case fmt.ToolResultEntry() if not entry.inside:
                self.results[entry.lane] = position, entry
            case fmt.ApprovalEntry() if not entry.inside:
                self.approved[entry.run, entry.call_id, entry.attempt] = position, entry
            case fmt.OnceEntry() if not entry.inside:
                self.once.setdefault((entry.lane, entry.name), deque()).append((position, entry))
            case fmt.CountEntry():
                self.counted[entry.key] = entry.value

    def _begin(self, position: int, entry: fmt.ModelRequestEntry | fmt.ToolCallEntry) -> None:
        if isinstance(entry, fmt.ToolCallEntry) and not entry.inside:
            self._calls[entry.lane] = entry
        if entry.inside and isinstance(entry, fmt.ModelRequestEntry):
            self._requests[entry.number] = entry
        elif entry.inside:
            self.inside[position] = entry, self._calls[entry.inside]
        elif isinstance(entry, fmt.ModelRequestEntry):
            self.asked.setdefault((entry.run, entry.purpose), deque()).append((position, entry))
        else:
            self.called[entry.run, entry.request.id, entry.request.attempt] = position, entry
