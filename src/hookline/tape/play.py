"""Playing a tape: what the run asks of the world is answered from it, at the place where it was answered then."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from random import Random
from typing import Any, Never

from .._base.event import Event
from .._base.tasks import OutOfTime
from .._kernel.errors import CallRefused, HookError
from .._kernel.payloads import ApprovalRequest, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import APPROVAL_REQUESTED, ON_RUN_END
from .._kernel.results import HookAction, Verdict
from .._kernel.values import ModelResponse
from .._run.context import AgentContext
from .._run.handle import Run
from ..models.protocol import Model
from ..tools._tool import Checked, Tool
from . import entries as on
from .clock import PlayedClock
from .compare import Comparison
from .draws import supply
from .lanes import LANE
from .places import Places
from .played_model import PlayedModel
from .tape import Tape

PATIENCE = 0.25
"""Seconds that an answer waits for what came before it then, while nothing happens; it does not come any more."""
IDLE = 0.02
"""Seconds without anything after which a call that was broken off then is broken off now."""


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
        self._passed = [not _is_flow(entry) for entry in self._entries]
        self._lanes: dict[int, list[int]] = {}
        for index, entry in enumerate(self._entries):
            if not self._passed[index]:
                self._lanes.setdefault(entry.lane, []).append(index)
        self._cursor = self._front = 0
        self._waiting: list[tuple[int, asyncio.Future[None]]] = []
        self._places = Places(self._entries)
        self.counted: Mapping[str, float | None] = self._places.counted
        self._draws: dict[tuple[int, str], list[tuple[int, Any]]] = {}
        for index, entry in enumerate(self._entries):
            for kind, value in entry.values if isinstance(entry, on.Drawn) else ():
                ahead = self._lanes.get(entry.lane, [])
                place = bisect_left(ahead, index)
                before = ahead[place] if place < len(ahead) else len(self._entries)
                self._draws.setdefault((entry.lane, kind), []).append((before, value))
        self._ids = [tape.run.ids.run_id]
        self._skip()

    # A hook that listens.

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Decide nothing."""

    def around(self, ctx: AgentContext, payload: Any) -> AbstractContextManager[None] | None:
        """Have the run read clocks, chance and ids from the tape."""
        if type(payload) is RunStart and ctx.clock is self.clock:
            ctx._random = Random(self.tape.run.ids.run_id)
            supply(ctx, self.draw)
            self.passed(next(i for i, entry in enumerate(self._entries) if entry is self.tape.run))
        elif type(payload) is RunStart:
            began = [i for i, e in enumerate(self._entries) if isinstance(e, on.RunBegan) and e.ids == ctx.ids]
            for index in began:
                self.passed(index)
        return nullcontext()

    def on_event(self, event: Event) -> None:
        """Compare an event with the one on the tape."""
        if not self.left:
            position = self.compare.take(event, LANE.get(self))
            if position is not None:
                self.clock.advance(event_offset(self._entries[position], self.tape))
                self.passed(position)
            elif self.compare.differs:
                self._stir()

    # The place on the tape.

    @property
    def place(self) -> int:
        """How far it has come."""
        return self._front

    def passed(self, position: int) -> None:
        """This has happened again; time is what it was then, and what came from outside next comes again."""
        self._passed[position] = True
        self._front = max(self._front, position + 1)
        self.clock.advance(self._entries[position].at)
        self._skip()

    def _skip(self) -> None:
        before = self._cursor
        while self._cursor < len(self._entries):
            entry = self._entries[self._cursor]
            if not self._passed[self._cursor] and not self._come_from_outside(entry):
                break
            self._passed[self._cursor] = True
            self._cursor += 1
        if self._cursor != before:
            self._stir()

    def _come_from_outside(self, entry: on.Entry) -> bool:
        """Do again what somebody did to the run, if this is it."""
        if isinstance(entry, on.SteeredIn):
            if self.run is not None and entry.run == self.tape.run.ids.run_id and not self.compare.differs:
                self.run.steer(entry.text)
            return True
        if isinstance(entry, on.CancelledFrom):
            self._cancel()
            return True
        return False

    def _cancel(self) -> bool:
        if self.run is None or not self._places.cancels:
            return False
        self.run.cancel(self._places.cancels.pop(0))
        return True

    def _stir(self) -> None:
        """Wake up those whose turn it is; after a difference, all of them."""
        waiting, self._waiting = self._waiting, []
        for position, future in waiting:
            if position > self._cursor and not self.compare.differs:
                self._waiting.append((position, future))
            else:
                _finish(future)

    async def _turn(self, position: int) -> None:
        """Wait for all that had happened before, as long as anything happens."""
        while self._cursor < position and not self.compare.differs:
            before = self._front
            await self._moved(position, PATIENCE)
            if self._front == before:
                return

    async def _moved(self, position: int, patience: float) -> None:
        """Wait until it is the turn of this place, or for so long."""
        aio = asyncio.get_running_loop()
        future: asyncio.Future[None] = aio.create_future()
        self._waiting.append((position, future))
        alarm = aio.call_later(patience, _finish, future)
        try:
            await future
        finally:
            alarm.cancel()
            self._waiting = [pair for pair in self._waiting if pair[1] is not future]

    async def _hang(self, patience: float) -> Never:
        """Wait to be broken off, as it was then: by somebody, by a time limit, or by what went wrong beside it."""
        tries = 0
        while True:
            before = self._cursor
            await asyncio.sleep(IDLE)
            tries += 1
            if self._cursor == before:
                if before < len(self._entries):
                    self.clock.advance(self._entries[before].at)
                if tries > 1 and not self._cancel() and tries > patience / IDLE:
                    await self.leave("what was broken off there then would have gone on")

    async def leave(self, why: str) -> Never:
        """End the replay: from here on the tape has no answers."""
        if not self.left:
            self.left = why
            assert self.run is not None  # it was started with this
            self.run.cancel("the replay has left the tape")
        while True:
            await asyncio.sleep(3600)

    # What is read.

    def draw(self, kind: str, real: Callable[[], Any]) -> Any:
        """What was read at this place; the value of here and now where nothing was."""
        lane = LANE.get(self)
        values, ahead = self._draws.get((lane, kind), []), self._lanes.get(lane, [])
        while ahead and self._passed[ahead[0]]:
            ahead.pop(0)
        here = ahead[0] if ahead else len(self._entries)
        while values and values[0][0] < here:
            values.pop(0)
        early = bool(values) and values[0][0] > here and (kind != "id" or self.compare.differs)
        if not values or early:
            return real()
        value = values.pop(0)[1]
        if kind == "monotonic":
            self.clock.advance(value - self.tape.head.monotonic)
        return value

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
        known = self._places.called.get((request.ids.run_id, request.id, request.attempt))
        if known is None:
            return await self.leave(f"{request.name} was not called there then")
        position, called = known
        if self.strict and called.request.arguments != request.arguments:
            return await self.leave(f"{request.name} was called with other arguments then")
        LANE.set(self, called.number)
        self.passed(position)
        given = self._places.results.get(called.number)
        if tool.runs_agents and called.runs_agents:
            try:
                return await tool.call(values, ctx)
            finally:
                if given is not None:
                    self.passed(given[0])
        for index, report in self._places.reports.get(called.number, ()):
            await self._turn(index)
            self.passed(index)
            lane = LANE.set(self, -called.number)
            if ctx is not None:
                ctx.progress(report.fraction, report.message)
            LANE.reset(lane)
        given_up = self._given_up(called, given)
        if given_up is not None and tool.timeout is not None:
            await self._turn(given_up)
            raise OutOfTime
        if given is None:
            return await self.leave(f"the tape ends before {request.name} does")
        end, answer = given
        if answer.cancelled:
            await self._broken_off(end, answer.at - called.at)
        await self._turn(end)
        self.passed(end)
        self._charge(called, ctx)
        if answer.refused:
            return await self.leave(f"a hook refused a model call inside {request.name}, which is not replayed")
        if answer.raised is not None:
            raise answer.raised.error()
        return answer.value

    def _given_up(self, called: on.ToolCalled, given: tuple[int, on.ToolAnswered] | None) -> int | None:
        """Where on the tape its run gave up waiting for a tool, if it did: before the tool gave anything."""
        request = called.request
        place, outcome = self._places.ended.get((called.run, request.id, request.attempt), (-1, ""))
        return place if outcome == "error" and (given is None or place < given[0]) else None

    def _charge(self, called: on.ToolCalled, ctx: Any) -> None:
        """Count what was used inside a tool, which nobody uses now."""
        for entry in self._places.inside.get(called.number, ()) if ctx is not None else ():
            if isinstance(entry, on.ToolCalled):
                ctx.budget.count_tool_call()
            elif (known := self._places.replies.get(entry.number)) and (response := known[1].response) is not None:
                payer = ctx._ctx if entry.run == called.run else ctx.budget
                payer.charge(response.usage, response.cost)

    async def _broken_off(self, end: int, after: float) -> None:
        try:
            await self._hang(after + PATIENCE)
        finally:
            self.passed(end)

    async def approve(
        self, asked: ApprovalRequest, ask: Callable[[], Awaitable[Verdict]], report: Callable[..., Awaitable[Any]]
    ) -> Verdict:
        """What the approvers said then; they are not asked again. Where nobody was asked then, nobody approves."""
        call = asked.call
        known = self._places.approved.get((call.ids.run_id, call.id, call.attempt))
        if known is None:
            return Verdict(asked)
        position, said = known
        LANE.set(self, said.number)
        if said.cancelled:
            await self._broken_off(position, said.at)
        failed = said.failed
        for failure in said.failures if failed is None else (failed, *said.failures):
            with suppress(HookError, CallRefused) if failed is not None else nullcontext():
                await report(failure)
        await self._turn(position)
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
        asked = [pair for pair in self._places.asked if (pair[1].run, pair[1].request.purpose) == wanted]
        if not asked:
            what = "model call" if request.purpose == "step" else f"model call for {request.purpose!r}"
            return await self.leave(f"the tape has no further {what}")
        same = [pair for pair in asked if pair[1].digests == digests]
        position, entry = (same or asked)[0]
        if not same and self.strict:
            parts = [name for name, value in digests.items() if entry.digests.get(name) != value]
            return await self.leave(f"the model would have been sent other {' and '.join(parts)}")
        self._places.asked.remove((position, entry))
        self.passed(position)
        known = self._places.replies.get(entry.number)
        if known is None:
            return await self.leave("the tape ends before the model's reply")
        return known[1], known[0]

    async def end_of(self, answer: on.ModelAnswered, end: int) -> ModelResponse | None:
        """Wait for the place of an answer, and give how it ended."""
        if answer.cancelled:
            await self._broken_off(end, answer.at - self._places.began[answer.number])
        await self._turn(end)
        self.passed(end)
        if answer.raised is not None:
            raise answer.raised.error()
        return answer.response


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def event_offset(entry: on.Entry, tape: Tape) -> float:
    """When an event happened, counted from the beginning of the tape."""
    return float(entry.event["at"]) - tape.head.time if isinstance(entry, on.Happened) else entry.at


def _is_flow(entry: on.Entry) -> bool:
    """Whether a replay comes to it by itself, or does it: all but what is only data, or happened inside a tool."""
    if isinstance(entry, on.Happened):
        return Comparison.is_compared(entry)
    if isinstance(entry, (on.SteeredIn, on.CancelledFrom)):
        return True
    data = (on.TapeBegan, on.Drawn, on.Counted, on.ArgumentsChecked)
    return not entry.inside and not isinstance(entry, data)
