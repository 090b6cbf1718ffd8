"""What is told of a tool call while it goes on, to ``on_progress`` and in the events (DESIGN 4.5)."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from .._base.tasks import running_loop
from .._kernel.payloads import Progress, ToolCallResult
from .._kernel.points import ON_PROGRESS
from .context import CallContext
from .course import Course
from .events import ToolEnded, ToolProgressed, ToolStarted
from .progress import ended_text, progressed_text, started_text
from .slot import Slot


class Reports:
    """Tells of the calls of a batch: each attempt begins once, may report how far it is, and ends once."""

    def __init__(self, loop: Course) -> None:
        self._loop = loop

    async def start(self, slot: Slot) -> None:
        """Report that the attempt begins."""
        ctx, request = self._loop.ctx, slot.request
        slot.started, slot.began = True, ctx.clock.monotonic()
        if (told := ctx.wants(ToolStarted)) or ON_PROGRESS in self._loop.heard:
            message = started_text(request)
            if told:
                ctx.emit(
                    ToolStarted, call_id=request.id, tool=request.name, arguments=request.arguments,
                    attempt=request.attempt, message=message,
                )  # fmt: skip
            await self._progress(slot, "tool_start", message)

    async def close(self, slot: Slot) -> None:
        """Report the outcome, once; a call that never ran gets its start here too."""
        if slot.ended or slot.result is None:
            return
        slot.ended = True
        ran, result = slot.started, slot.result
        try:
            if not ran:
                await self.start(slot)
            if slot.pump is not None:
                await slot.pump
        finally:
            message = self.tell_end(slot, result, ran=ran)
            await self._progress(slot, "tool_end", message, outcome=result.outcome)

    def tell_end(self, slot: Slot, result: ToolCallResult, *, ran: bool = True) -> str:
        """Put the outcome into the events; what people are told of it, if anybody is."""
        ctx = self._loop.ctx
        if not (told := ctx.wants(ToolEnded)) and ON_PROGRESS not in self._loop.heard:
            return ""
        message = ended_text(result, ran=ran, by=slot.by, denied=slot.denied)
        if told:
            ctx.emit(
                ToolEnded, call_id=result.id, tool=result.name, outcome=result.outcome, duration=result.duration,
                attempt=result.attempt, message=message,
            )  # fmt: skip
        return message

    def ctx_of(self, slot: Slot) -> CallContext:
        """The context a tool gets; its progress may be reported from any thread."""

        def report(fraction: float | None, message: str) -> None:
            if running_loop() is self._loop.aio:
                self._queue(slot, fraction, message)
                return
            with suppress(RuntimeError):  # the run's loop is closed: an abandoned thread still talks
                self._loop.aio.call_soon_threadsafe(self._queue, slot, fraction, message)

        return CallContext(self._loop.ctx, report)

    def _queue(self, slot: Slot, fraction: float | None, message: str) -> None:
        if slot.ended:
            return
        slot.pending += ((fraction, message),)
        if slot.pump is None or slot.pump.done():
            slot.pump = self._loop.aio.create_task(self._pump(slot))

    async def _pump(self, slot: Slot) -> None:
        request, ctx = slot.request, self._loop.ctx
        while slot.pending:
            (fraction, note), slot.pending = slot.pending[0], slot.pending[1:]
            message = progressed_text(request, note, fraction)
            ctx.emit(
                ToolProgressed, call_id=request.id, tool=request.name, fraction=fraction, message=message,
                attempt=request.attempt,
            )  # fmt: skip
            try:
                await self._progress(slot, "progress", message, fraction=fraction)
            except BaseException as error:  # noqa: BLE001 - every cause becomes a status
                self._loop.abort(error)
                return

    async def _progress(self, slot: Slot, phase: Any, message: str, **fields: Any) -> None:
        if ON_PROGRESS not in self._loop.heard:
            return
        request = slot.request
        await self._loop.fire(
            ON_PROGRESS,
            Progress(phase, request.id, request.name, message, attempt=request.attempt, ids=request.ids, **fields),
        )
