"""Playing a tape: what the run asks of the world is answered from the tape, in the order in which it was then."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from random import Random
from typing import Any, Never

from .._base.tasks import StillRunningError, abandon
from .._kernel.errors import CallRefusedError, HookError
from .._kernel.events import Event
from .._kernel.payloads import ApprovalRequest, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import APPROVAL_REQUESTED, ON_RUN_END
from .._kernel.results import HookAction, Verdict
from .._kernel.scope import CURRENT
from .._kernel.values import ModelResponse
from .._run.engine import Engine
from .._run.events import ToolStarted
from ..models.protocol import Model
from ..tools._tool import Checked, Tool
from . import entries as on
from .draws import supply
from .lanes import LANE
from .playback import Playback
from .played_model import PlayedModel
from .played_readings import Alarm, PlayedReadings
from .positions import Positions
from .tape import Tape


class Player:
    """The boundary of a replayed run (:class:`~hookline._run.environment.Boundary`), and a hook that only listens.

    Args:
        tape: the tape.
        strict: whether a request or a call that is not the one on the tape ends the replay.
    """

    is_replay = True
    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(self, tape: Tape, strict: bool) -> None:
        self.tape, self.strict = tape, strict
        self.playback = Playback(tape)
        self.clock = self.playback.clock
        self._positions = Positions(tape.entries)
        self.counted: Mapping[str, float | None] = self._positions.counted
        self._readings = PlayedReadings(tape.entries, self.playback.order, self.clock, tape.head)
        self._ids = [tape.run.ids.run_id]

    # A hook that listens.

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Decide nothing."""

    def instrument(self, engine: Engine, start: RunStart) -> AbstractContextManager[None]:
        """Have the run read clocks, chance and ids from the tape."""
        if engine.environment.clock is not self.clock:
            return self._run_inside(engine.ids.run_id)
        engine.environment.random = Random(self.tape.run.ids.run_id)
        supply(engine, self.draw, self.alarm)
        self.playback.passed(self._positions.runs[self.tape.run.ids.run_id])
        return nullcontext()

    @contextmanager
    def _run_inside(self, run_id: str) -> Iterator[None]:
        lane = LANE.set(self.playback, self._positions.lanes.get((run_id, "", 0), self.playback.lane))
        if run_id in self._positions.runs:
            self.playback.passed(self._positions.runs[run_id])
        try:
            yield
        finally:
            LANE.reset(lane)

    def on_event(self, event: Event) -> None:
        """Compare an event with the one on the tape; the start of a call begins the lane that it had then."""
        if isinstance(event, ToolStarted):
            call = event.run_id, event.call_id, event.attempt
            LANE.set(self.playback, self._positions.lanes.get(call, self.playback.lane))
        self.playback.happened(event)

    # What is read.

    def draw(self, kind: str, real: Callable[[], Any]) -> Any:
        """What was read at this place; the value of here and now where nothing was."""
        return self._readings.read(self.playback.lane, kind, real)

    def alarm(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Alarm:
        """Set an alarm, which rings where it did then."""
        return self.playback.alarms.set(self.playback.lane, callback)

    def new_id(self, prefix: str = "id") -> str:
        """The ids that a run has before it begins."""
        from .._run.environment import make_id

        return self._ids.pop() if prefix == "run" and self._ids else make_id(prefix)

    # Where the run meets the world.

    def model(self, model: Model) -> Model:
        """A model that answers from the tape."""
        return PlayedModel(self, self.playback, model)

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> Checked | str:
        """The tool's own validation."""
        return tool.validate(arguments)

    async def call(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
        """What the tool gave. One that only runs agents is called, for these are on the tape."""
        known = self._positions.called.get((request.ids.run_id, request.id, request.attempt))
        if known is None:
            return await self.playback.leave(f"{request.name} was not called there then")
        position, called = known
        if self.strict and called.request.arguments != request.arguments:
            return await self.playback.leave(f"{request.name} was called with other arguments then")
        lane = LANE.set(self.playback, called.number)
        try:
            return await self._answer_of(request, called, position, tool, values, ctx)
        finally:
            LANE.reset(lane)
            self._forget(called.number)

    async def _answer_of(
        self, request: ToolCallRequest, called: on.ToolCalled, position: int, tool: Tool, values: Any, ctx: Any
    ) -> Any:
        self.playback.passed(position)
        given = self._positions.results.get(called.number)
        timed_out = self._timed_out(called, given) if tool.timeout is not None else None
        if tool.runs_agents and called.runs_agents:
            return await self._until(timed_out, tool.call(values, ctx))
        for index, report in self._positions.reports.get(called.number, ()):
            await self.playback.turn_of(index)
            self.playback.passed(index)
            lane = LANE.set(self.playback, -called.number)
            if ctx is not None:
                ctx.progress(report.fraction, report.message)
            LANE.reset(lane)
        if timed_out is not None:
            await self.playback.turn_of(timed_out)
            raise StillRunningError
        ended, outcome = self._positions.ended.get(
            (called.run, request.id, request.attempt), (len(self.tape.entries), "")
        )
        if outcome == "cancelled" or (given is not None and given[1].cancelled):
            await self.playback.wait_to_be_cancelled(ended if given is None else min(ended, given[0]))
        if given is None:
            return await self.playback.leave(f"the tape ends before {request.name} does")
        end, answer = given
        await self.playback.turn_of(end)
        self.playback.passed(end)
        self._charge(called)
        if answer.refused:
            return await self.playback.leave(
                f"a hook refused a model call inside {request.name}, which is not replayed"
            )
        if answer.raised is not None:
            raise answer.raised.error()
        return answer.value

    def _forget(self, number: int) -> None:
        """Wait no longer for what a call did after the run had given it up."""
        left = [position for position, _ in self._positions.reports.get(number, ())]
        if (given := self._positions.results.get(number)) is not None:
            left.append(given[0])
        for position in left:
            if self.playback.order.is_open(position):
                self.playback.passed(position)

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
        task, limit = asyncio.ensure_future(work), asyncio.ensure_future(self.playback.order.wait_for(position))
        try:
            await asyncio.wait({task, limit}, return_when=asyncio.FIRST_COMPLETED)
            if task.done():
                return task.result()
            raise StillRunningError
        finally:
            abandon(task)
            abandon(limit)

    def _charge(self, called: on.ToolCalled) -> None:
        """Count what was used inside a tool, which nobody uses now."""
        for entry in self._positions.inside.get(called.number, ()):
            engine = CURRENT.get()
            assert isinstance(engine, Engine)  # the run whose tool this is
            if isinstance(entry, on.ToolCalled):
                engine.budget.count_tool_call()
            elif (known := self._positions.replies.get(entry.number)) and (response := known[1].response) is not None:
                payer = engine.run_state if entry.run == called.run else engine.budget
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
        LANE.set(self.playback, said.number)
        if said.cancelled:
            await self._wait_to_be_cancelled(position)
        failed = said.failed
        for failure in said.failures if failed is None else (failed, *said.failures):
            with suppress(HookError, CallRefusedError) if failed is not None else nullcontext():
                await report(failure)
        await self.playback.turn_of(position)
        self.playback.passed(position)
        if failed is not None:
            raise HookError(failed.source, APPROVAL_REQUESTED, on.Raised(failed.type, failed.message).error())
        action = HookAction.CONTINUE if said.answer is None else HookAction.CLAIM
        return Verdict(asked, action, said.answer, said.by)

    async def _wait_to_be_cancelled(self, position: int) -> Never:
        try:
            await self.playback.wait_to_be_cancelled(position)
        finally:
            self.playback.passed(position)

    def steered(self, run_id: str, text: str) -> None:
        """It was steered by the tape itself."""

    async def answer_to(self, request: ModelRequest) -> tuple[on.ModelAnswered, int]:
        """What the model said to this request, and where on the tape."""
        digests, wanted = on.digests_of(request), (request.ids.run_id, request.purpose)
        asked = [pair for pair in self._positions.asked if (pair[1].run, pair[1].request.purpose) == wanted]
        if not asked:
            what = "model call" if request.purpose == "step" else f"model call for {request.purpose!r}"
            return await self.playback.leave(f"the tape has no further {what}")
        same = [pair for pair in asked if pair[1].digests == digests]
        position, entry = (same or asked)[0]
        if not same and self.strict:
            parts = [name for name, value in digests.items() if entry.digests.get(name) != value]
            return await self.playback.leave(f"the model would have been sent other {' and '.join(parts)}")
        self._positions.asked.remove((position, entry))
        self.playback.passed(position)
        known = self._positions.replies.get(entry.number)
        if known is None:
            return await self.playback.leave("the tape ends before the model's reply")
        return known[1], known[0]

    async def end_of(self, answer: on.ModelAnswered, end: int) -> ModelResponse | None:
        """Wait until it is the turn of an answer, and give how it ended."""
        if answer.cancelled:
            await self._wait_to_be_cancelled(end)
        if answer.closed:
            return await self.playback.leave("what was broken off there then would have gone on")
        await self.playback.turn_of(end)
        self.playback.passed(end)
        if answer.raised is not None:
            raise answer.raised.error()
        return answer.response
