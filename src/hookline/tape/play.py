"""Playing a tape: what the run asks of the world is answered from the tape, in the order in which it was then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from random import Random
from typing import Any, Never

from .._base.event import Event
from .._base.tasks import OutOfTime, abandon
from .._kernel.errors import CallRefused, HookError
from .._kernel.payloads import ApprovalRequest, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import APPROVAL_REQUESTED, ON_RUN_END
from .._kernel.results import HookAction, Verdict
from .._kernel.scope import ACTIVE, entered
from .._kernel.values import ModelResponse
from .._run.context import AgentContext
from .._run.events import ToolStarted
from .._run.handle import Run
from ..models.protocol import Model
from ..tools.tool import Checked, Tool
from . import entries as on
from .compare import Comparison, Decision
from .draws import supply
from .lanes import LANE
from .order import Order, turns
from .played_model import PlayedModel
from .played_readings import Alarm, PlayedAlarms, PlayedClock, PlayedReadings
from .positions import Positions
from .tape import Tape


class Player:
    """What lies outside of a replayed run (:class:`~hookline._run.outside.Outside`), and its hook, which only listens.

    Args:
        tape: the tape.
        strict: whether a request or a call that is not the one on the tape ends the replay.
    """

    is_replay = True
    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(self, tape: Tape, strict: bool) -> None:
        self.tape, self.strict = tape, strict
        self.left = ""
        """Why it left the tape, if it did."""
        self.run: Run | None = None
        self.compare = Comparison(tape)
        self.clock = PlayedClock(tape.head)
        self._entries = tape.entries
        self.order = Order(self._entries, self._repeat, self._missing)
        self._positions = Positions(self._entries)
        self.counted: Mapping[str, float | None] = self._positions.counted
        self._readings = PlayedReadings(self._entries, self.order, self.clock, tape.head)
        self._alarms = PlayedAlarms()
        self._ids = [tape.run.ids.run_id]
        self._hooks_around, self._cancelled, self._end = entered(), False, len(self._entries)
        self._exact = False

    # A hook that listens.

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Decide nothing."""

    def around(self, ctx: AgentContext, payload: Any) -> AbstractContextManager[None] | None:
        """Have the run read clocks, chance and ids from the tape."""
        if type(payload) is RunStart and ctx.clock is self.clock:
            ctx._random = Random(self.tape.run.ids.run_id)
            supply(ctx, self.draw, self.alarm)
            self.passed(self._positions.runs[self.tape.run.ids.run_id])
        elif type(payload) is RunStart:
            return self._run_inside(ctx.run_id)
        return nullcontext()

    @contextmanager
    def _run_inside(self, run_id: str) -> Iterator[None]:
        lane = LANE.set(self, self._positions.lanes.get((run_id, "", 0), LANE.get(self)))
        if run_id in self._positions.runs:
            self.passed(self._positions.runs[run_id])
        yield
        LANE.reset(lane)

    def on_event(self, event: Event) -> None:
        """Compare an event with the one on the tape."""
        if self.left:
            return
        if isinstance(event, ToolStarted):
            call = event.run_id, event.call_id, event.attempt
            LANE.set(self, self._positions.lanes.get(call, LANE.get(self)))
        lane = LANE.get(self)
        position, difference = self.compare.take(event, lane, lambda: self.order.next_in(lane))
        if difference and (self.order.kept or not self.compare.first):
            self.compare.differ(self.order.diverge(lane), difference)
        if position is not None:
            self.clock.advance(event_offset(self._entries[position], self.tape))
            self.passed(position)

    # The order.

    def passed(self, position: int) -> None:
        """An entry has come again; the time is what it was then."""
        self.clock.advance(self._entries[position].at)
        self.order.produced(position)

    def _missing(self, position: int) -> None:
        self.compare.missing(position, self._entries[position])

    def _repeat(self, entry: on.Entry) -> None:
        """Do again to the run what was done to it from outside."""
        self.clock.advance(entry.at)
        if isinstance(entry, on.SteeredIn) and self.run is not None and entry.run == self.tape.run.ids.run_id:
            self.run.steer(entry.text)
        elif isinstance(entry, on.AlarmRang):
            self._alarms.ring(entry)
        elif isinstance(entry, on.CancelledFrom) and self.run is not None:
            self._cancelled = True
            self.run.cancel(entry.reason)
            self.order.let_go()  # how fast each task notices is not on the tape

    async def _turn_of(self, position: int) -> None:
        """Wait until everything recorded before an answer of this lane has come again."""
        await self.order.wait_for(position, LANE.get(self), in_hook=self._in_hook())

    def _in_hook(self) -> bool:
        return ACTIVE.get() > self._hooks_around

    async def _wait_to_be_cancelled(self, position: int) -> Never:
        """Wait for what cancelled a call then: the run's owner, a time limit, a failure beside it, or a hook.

        All but the last are on the tape. So where they have come again and the call goes on, the replay has no answer.
        A hook that awaits the call may have a timer of its own: the replay waits for that.
        """
        in_hook = self._in_hook()
        try:
            await self._turn_of(position)
            await turns()
            if not self.order.kept:
                self.order.repeat_before(position)
                await turns()
            if self.order.repeat_cancellation(position, at_once=in_hook):
                await turns()
            if not self._cancelled and not (in_hook and self.order.kept):
                await self.leave("what was broken off there then would have gone on", position)
            await _forever()
        finally:
            self.passed(position)

    async def leave(self, why: str, position: int | None = None) -> Never:
        """End the replay, as soon as everything recorded before has come again: the tape has no answer."""
        await self._turn_of(self.order.give_up(LANE.get(self)) if position is None else position)
        if not self.left:
            self.left = why
            self._end, self._exact = self.order.reached, self.order.kept
            if self._exact:
                self.compare.forget()
            else:
                self._end = self.order.furthest
            assert self.run is not None  # it was started with this
            self.run.cancel("the replay has left the tape")
        await _forever()

    def finish(self) -> tuple[list[Decision], list[Decision]]:
        """The decisions then and now, after the last event."""
        if not self.left:
            self.compare.finish(self.order.kept)
        return self.compare.decisions(self._end, self._exact)

    # What is read.

    def draw(self, kind: str, real: Callable[[], Any]) -> Any:
        """What was read at this place; the value of here and now where nothing was."""
        return self._readings.read(LANE.get(self), kind, real)

    def alarm(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Alarm:
        """Set an alarm, which rings where it did then."""
        return self._alarms.set(LANE.get(self), callback)

    def new_id(self, prefix: str = "id") -> str:
        """The ids that a run has before it begins."""
        from .._run.interrupt import make_id

        return self._ids.pop() if prefix == "run" and self._ids else make_id(prefix)

    # Where the run meets the world.

    def model(self, model: Model) -> Model:
        """A model that answers from the tape."""
        return PlayedModel(self, model)

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> Checked | str:
        """The tool's own validation."""
        return tool.validate(arguments)

    async def call(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
        """What the tool gave. One that only runs agents is called, for these are on the tape."""
        known = self._positions.called.get((request.ids.run_id, request.id, request.attempt))
        if known is None:
            return await self.leave(f"{request.name} was not called there then")
        position, called = known
        if self.strict and called.request.arguments != request.arguments:
            return await self.leave(f"{request.name} was called with other arguments then")
        lane = LANE.set(self, called.number)
        try:
            return await self._answer_of(request, called, position, tool, values, ctx)
        finally:
            LANE.reset(lane)

    async def _answer_of(
        self, request: ToolCallRequest, called: on.ToolCalled, position: int, tool: Tool, values: Any, ctx: Any
    ) -> Any:
        self.passed(position)
        given = self._positions.results.get(called.number)
        timed_out = self._timed_out(called, given) if tool.timeout is not None else None
        if tool.runs_agents and called.runs_agents:
            try:
                return await self._until(timed_out, tool.call(values, ctx))
            finally:
                if given is not None:
                    self.passed(given[0])
        for index, report in self._positions.reports.get(called.number, ()):
            await self._turn_of(index)
            self.passed(index)
            lane = LANE.set(self, -called.number)
            if ctx is not None:
                ctx.progress(report.fraction, report.message)
            LANE.reset(lane)
        if timed_out is not None:
            await self._turn_of(timed_out)
            if given is not None:
                self.passed(given[0])
            raise OutOfTime
        if given is None:
            return await self.leave(f"the tape ends before {request.name} does")
        end, answer = given
        if answer.cancelled:
            await self._wait_to_be_cancelled(end)
        await self._turn_of(end)
        self.passed(end)
        self._charge(called, ctx)
        if answer.refused:
            return await self.leave(f"a hook refused a model call inside {request.name}, which is not replayed")
        if answer.raised is not None:
            raise answer.raised.error()
        return answer.value

    def _timed_out(self, called: on.ToolCalled, given: tuple[int, on.ToolAnswered] | None) -> int | None:
        """The position at which the time limit of a tool was reached before it had given anything, if it was."""
        request = called.request
        ended, outcome = self._positions.ended.get((called.run, request.id, request.attempt), (-1, ""))
        if outcome != "error" or (given is not None and given[0] < ended and not given[1].cancelled):
            return None
        return ended if given is None else min(ended, given[0])

    async def _until(self, position: int | None, work: Awaitable[Any]) -> Any:
        """Await, but not longer than to this position on the tape."""
        if position is None:
            return await work
        task, limit = asyncio.ensure_future(work), asyncio.ensure_future(self.order.wait_for(position))
        try:
            await asyncio.wait({task, limit}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise OutOfTime
        finally:
            abandon(task)
            abandon(limit)

    def _charge(self, called: on.ToolCalled, ctx: Any) -> None:
        """Count what was used inside a tool, which nobody uses now."""
        for entry in self._positions.inside.get(called.number, ()) if ctx is not None else ():
            if isinstance(entry, on.ToolCalled):
                ctx.budget.count_tool_call()
            elif (known := self._positions.replies.get(entry.number)) and (response := known[1].response) is not None:
                payer = ctx._ctx if entry.run == called.run else ctx.budget
                payer.charge(response.usage, response.cost)

    async def approve(
        self, asked: ApprovalRequest, ask: Callable[[], Awaitable[Verdict]], report: Callable[..., Awaitable[Any]]
    ) -> Verdict:
        """What the approvers said then; they are not asked again. Where nobody was asked then, nobody approves."""
        call = asked.call
        known = self._positions.approved.get((call.ids.run_id, call.id, call.attempt))
        if known is None:
            return Verdict(asked)
        position, said = known
        LANE.set(self, said.number)
        if said.cancelled:
            await self._wait_to_be_cancelled(position)
        failed = said.failed
        for failure in said.failures if failed is None else (failed, *said.failures):
            with suppress(HookError, CallRefused) if failed is not None else nullcontext():
                await report(failure)
        await self._turn_of(position)
        self.passed(position)
        if failed is not None:
            raise HookError(failed.source, APPROVAL_REQUESTED, on.Raised(failed.type, failed.message).error())
        action = HookAction.CONTINUE if said.answer is None else HookAction.CLAIM
        return Verdict(asked, action, said.answer, said.by)

    def steered(self, run_id: str, text: str) -> None:
        """It was steered by the tape itself."""

    async def answer_to(self, request: ModelRequest) -> tuple[on.ModelAnswered, int]:
        """What the model said to this request, and where on the tape."""
        digests, wanted = on.digests_of(request), (request.ids.run_id, request.purpose)
        asked = [pair for pair in self._positions.asked if (pair[1].run, pair[1].request.purpose) == wanted]
        if not asked:
            what = "model call" if request.purpose == "step" else f"model call for {request.purpose!r}"
            return await self.leave(f"the tape has no further {what}")
        same = [pair for pair in asked if pair[1].digests == digests]
        position, entry = (same or asked)[0]
        if not same and self.strict:
            parts = [name for name, value in digests.items() if entry.digests.get(name) != value]
            return await self.leave(f"the model would have been sent other {' and '.join(parts)}")
        self._positions.asked.remove((position, entry))
        self.passed(position)
        known = self._positions.replies.get(entry.number)
        if known is None:
            return await self.leave("the tape ends before the model's reply")
        return known[1], known[0]

    async def end_of(self, answer: on.ModelAnswered, end: int) -> ModelResponse | None:
        """Wait for the place of an answer, and give how it ended."""
        if answer.cancelled:
            await self._wait_to_be_cancelled(end)
        if answer.closed:
            return await self.leave("what was broken off there then would have gone on")
        await self._turn_of(end)
        self.passed(end)
        if answer.raised is not None:
            raise answer.raised.error()
        return answer.response


async def _forever() -> Never:
    await asyncio.get_running_loop().create_future()
    raise AssertionError("nobody gives it a result")


def event_offset(entry: on.Entry, tape: Tape) -> float:
    """When an event happened, counted from the beginning of the tape."""
    return float(entry.event["at"]) - tape.head.time if isinstance(entry, on.Happened) else entry.at
