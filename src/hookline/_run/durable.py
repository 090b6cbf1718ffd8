"""Durable runs: a journal from which another process continues a run (DESIGN 6.17).

:class:`DurableRun` is the boundary of a durable run and of the runs nested in it. While the journal has entries, it
answers calls from these entries and compares each event with them. After that, it makes the calls and appends to the
journal.
"""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from functools import partial
from hashlib import sha256
from math import inf
from typing import Any, Never, TypeVar

import msgspec

from .._base.frozen import encoded, json_encoder, plain
from .._base.tasks import (
    StillRunningError,
    abandon,
    defer_cancellation,
    forever,
    raise_exit,
    settle,
    start_task,
    watch_await,
    with_timeout,
)
from .._base.text import without_addresses
from .._base.workers import in_thread
from .._kernel.dispatch import Firing
from .._kernel.errors import CallRefusedError, HookError, HooklineError
from .._kernel.events import Event, HookExecuted, PointFired
from .._kernel.hook import HookEntry
from .._kernel.payloads import ApprovalAnswer, ApprovalRequest, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import ON_TOKEN
from .._kernel.results import Verdict
from .._kernel.state import AgentResult
from .._kernel.values import ErrorInfo, Ids, Message, ModelResponse, StopSignal, Usage
from ..models.protocol import Model
from ..tools._tool import Tool, jsonable, take_attachments
from .boundary import CANCELLATION, Boundary, close_stream, wakeup_after
from .budget import Spending
from .engine import Engine
from .events import (
    ENGINE_EVENTS,
    AllEventsExcept,
    Discarded,
    RunFinished,
    Sink,
    SubagentEvent,
    TextDelta,
    compared_fields,
    is_silent,
    log,
)
from .halt import Halt, find_halt
from .journal import (
    CONTROL,
    Append,
    Claim,
    EventRow,
    Journal,
    JournalAnswer,
    JournalEntry,
    JournalStore,
    LeaseLostError,
    OutcomeUnknownError,
    RecoveryError,
    Refusal,
    RunHaltedError,
    RunHead,
    RunSuspendedError,
    RunWaitingError,
    Spent,
    Steering,
    Writer,
    answer_decoder,
    contents_of,
    entry_decoder,
    failures_decoder,
    following_id,
    head_of,
    listed_task,
    spent_decoder,
    steering_decoder,
    with_contents,
)
from .lanes import (
    INSIDE,
    LANE,
    LIVE,
    NEW,
    PAST,
    UNJOURNALED,
    WATCHING,
    WATCHING_PAST,
    Lane,
    in_lane,
    is_detached,
    is_part_of,
    run_of,
)
from .recovery import Recovery, describe
from .replay_values import (
    ErrorSnapshot,
    RequestDigests,
    approval_verdict,
    failed_approver,
    outcome_of,
    tool_result,
    wrong_reply,
)
from .session import Session
from .sources import install_sources
from .termination import RunStoppedError
from .turns import Turns
from .waiters import Awake

T = TypeVar("T")

QUIET_SECONDS = 0.02
"""A run that waits for approvals is suspended after this time without other activity."""


_RESULT = "result"
"""The name of the wakeup after the call of a tool."""
_TIMED_OUT = msgspec.Raw(b"true")
"""The data of a wakeup after a hook that exceeded its timeout."""
_TEXT = (TextDelta, Discarded)


class DurableRun(Boundary):
    """The boundary of a durable run.

    Args:
        journal: the journals of the store.
        claim: the right to execute the run.
        claimed_at: a monotonic time not later than the start of the lease.
        stores_events: whether the run stores its own events. Otherwise, the caller numbers them and calls
            :meth:`put_event`.
    """

    is_direct = False
    is_durable = True

    def __init__(self, journal: Journal, claim: Claim, claimed_at: float, *, stores_events: bool = True) -> None:
        self._journal, self._claim = journal, claim
        self.run_id = claim.run.run_id
        self._writer = Writer(journal, claim, claimed_at, self._fail)
        self._engines: dict[str, Engine] = {}
        self._root: Engine | None = None
        self.continues = bool(claim.entries)
        """Whether an earlier process began the run."""
        self.error: BaseException | None = None
        """The reason why this process stopped executing the run; ``None`` while it executes the run."""
        self.digests = RequestDigests()
        self._timers: dict[str, int] = {}
        self._waiting_timers: dict[tuple[str, int], Callable[[], None]] = {}
        self.stores_events = stores_events
        self._is_open = self._is_leaving = False
        self._last_write: asyncio.Future[bool] | None = None
        """The last write of this process. After it, another process may resume the run."""
        self._flying = 0
        self._beginning = 0
        """Number of calls whose first entry is being committed."""
        self._asking = 0
        """Number of approvals among the calls in flight."""
        self.may_have_asked = self.continues
        """Whether the run may have asked for approvals, in this process or an earlier one."""
        self._waiting: dict[str, ToolCallRequest] = {}
        self._suspending: asyncio.Future[bool] | None = None
        """The write that suspends the run because it waits for approvals."""
        self._late_cancel: bytes | None = None
        """The entry of a cancellation that arrived after the suspending write had been requested."""
        self._aio: asyncio.AbstractEventLoop
        """The event loop in which this process executes the run."""
        self._halt: Halt | None = None
        """The halt because of which this process suspends the run."""
        self._leaving: Any = None
        self._handoff: tuple[str, str] | None = None
        self._deciding: tuple[Any, frozenset[int]] = (None, frozenset())
        self._in_flight: dict[str, list[Call]] = {}
        """By lane, the calls that have begun and not ended, in this order."""
        self._awake = Awake()
        self._runs = 0
        """The number of consecutive runs that this process has begun."""
        self._tree = Lane().tree
        """That of all lanes of the journal."""
        self._deferred: list[Callable[[], object]] = []
        """Steering messages and cancellations that arrived during recovery."""
        self._is_repeating = False
        self._begun: dict[tuple[str, str], int] = {}
        """The number of calls so far, by lane and key."""
        recovery = self._recovery = Recovery(
            claim.entries, repeat=self._repeat, charge=self._charge, differ=self._differ, ended=self._recovered
        )
        self._script_turns = Turns(recovery.counts, recovery.entries, partial(self._put, "", "count"))
        self._writer.is_held = recovery.is_active
        last = recovery.last_time
        self._shift = 0.0 if last is None else last - time.monotonic()  # no time has passed for the run

    @property
    def is_recovering(self) -> bool:
        """Whether the journal has entries that recovery has not repeated yet."""
        return self._recovery.is_active

    @property
    def steering(self) -> list[Message]:
        """The steering messages that the run received before this process resumed it."""
        return [each.message for each in self._recovery.steering]

    # The life of the run.

    async def execute(self, engine: Engine, start: RunStart, work: Callable[[], Awaitable[T]]) -> T:
        """Execute the run, a run nested in it, or, inside :meth:`opened`, one of several consecutive runs."""
        if self._root is not None or engine.services.lane is not None:  # also a detached run that begins after the end
            return await self._execute_nested(engine, work)
        if self._is_open:
            return await self._execute_root(engine, work)
        stored = self._claim.run
        if stored.is_over:
            assert stored.result is not None
            ended = _result_of(stored.result, engine)
            _add_to_session(engine.services.session, head_of(stored).messages, ended.messages)
            await self._skip_turns(engine)
            return ended  # type: ignore[return-value]
        async with self.opened():
            result: Any = await self._execute_root(engine, work)
            if self._handoff is not None and result.status == "completed":
                self._writer.following = self._following(engine, *self._handoff)
            stored = engine.clean(RunFinished(run_id=self.run_id, result=result))
            await self.finish(result.status, json_encoder.encode(stored))
        return result  # type: ignore[no-any-return]

    async def _skip_turns(self, engine: Engine) -> None:
        """Skip the turns of a run that has ended, because later runs of the agent continue after them."""
        if hasattr(engine.agent.model, "skip_turn"):
            entries = map(entry_decoder.decode, await in_thread(self._journal.entries, self.run_id))
            counts = {entry.key: msgspec.json.decode(entry.data) for entry in entries if entry.kind == "count"}
            Turns(counts, (), partial(self._put, "", "count")).skip_steps(engine.agent.model, engine.ids.agent)

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Renew the lease inside the block. Nothing is written after the block."""
        self._is_open = True
        self._aio = asyncio.get_running_loop()
        self._writer.begin()
        tasks = [asyncio.ensure_future(self._writer.keep_lease()), asyncio.ensure_future(self._recovery.watch())]
        try:
            yield
        except GeneratorExit:
            raise  # the coroutine is being closed and must not await anything
        except BaseException:
            self.suspend()  # such as KeyboardInterrupt: another process may resume the run
            if self._last_write is not None:
                await asyncio.shield(self._last_write)
            await self.release()
            if self._late_cancel is not None and isinstance(self.error, RunWaitingError):
                await in_thread(self._store_late_cancel, self._late_cancel)
            raise
        finally:
            self._writer.muted = True
            for task in tasks:
                abandon(task)

    def hand_off(self, run_id: str, agent: str, task: str) -> None:
        """Create the following run in the transaction that ends this one, so that a crash cannot lose the handoff.

        A served run has one journal for all its agents, so it creates no following run.
        """
        if run_id == self.run_id and self.stores_events:
            self._handoff = agent, task

    def _following(self, engine: Engine, agent: str, task: str) -> tuple[str, str, bytes]:
        session, run_id = engine.services.session, following_id(self.run_id)
        head = RunHead(
            msgspec.structs.replace(engine.ids, run_id=run_id, agent=agent),
            task,
            tuple(session.messages),
            head_of(self._claim.run).metadata,
            fresh=False,
            spent=engine.budget.parents[0].spending if engine.budget.parents else Spending(),
            personality=session.personality_id,
            personality_changes=plain(session.personality_changes),
            handed_over_by=session.handed_over_by,
            settings=head_of(self._claim.run).settings,
            origin=engine.services.origin.name,
            listed=listed_task(task, engine.clean),
        )
        return run_id, agent, encoded(head)

    async def finish(self, status: str, result: bytes) -> None:
        """Store the end of the run.

        Raises:
            HooklineError: this process no longer executes the run, so its end was not stored.
        """
        if not await self._writer.flush(status, result) and self.error is not None:
            raise self.error

    async def stored(self) -> bool:
        """Wait until all entries are in the journal. Return false if this process no longer executes the run."""
        return await self._writer.flush()

    @property
    def written(self) -> int:
        """The number of entries that this process has written so far."""
        return self._writer.count

    async def commit(self, written: int) -> None:
        """Wait until this many entries are committed."""
        if self._writer.committed < written:
            await self._committed()

    async def suspend_after(self, grace: float) -> None:
        """Suspend the run when its calls in flight have finished, or after ``grace`` seconds.

        No further call begins. The process that resumes the run makes the calls again that did not finish.
        """
        self._is_leaving = True
        deadline = time.monotonic() + grace
        while time.monotonic() < deadline and self.error is None:
            before = self._writer.count
            await asyncio.sleep(QUIET_SECONDS)
            if self._flying + self._beginning == self._asking and self._writer.count == before:
                break
        self.suspend()
        if self._last_write is not None:
            await asyncio.shield(self._last_write)

    def suspend(self) -> None:
        """Suspend the run: stop executing it immediately, so that another process can resume it.

        All entries so far are written, and none after them. The run ends here with ``RunSuspendedError``, but it does
        not call hooks, save its session or emit events any more. If its end is already being stored, the run ends.
        """
        if self.error is not None:
            return
        if self._is_open:
            is_ending = self._writer.is_ending
            self._last_write = self._writer.close()
            if is_ending:
                return
        halt = self._halt
        self._fail(RunSuspendedError(self.run_id) if halt is None else RunHaltedError(self.run_id, halt))

    def lose(self) -> None:
        """Stop executing the run immediately: its lease has expired, and another claim of the run has succeeded."""
        self._fail(LeaseLostError(self.run_id))

    # The stop switch.

    def find_halt(self, engine: Engine) -> StopSignal | None:
        """Return a signal for runs inside a tool only: the journal does not continue them, so they stop."""
        return super().find_halt(engine) if self._place()[1] in UNJOURNALED else None

    async def wait_while_halted(self, engine: Engine) -> None:
        """Suspend the run before its next call if it is halted."""
        if self._place()[1] not in UNJOURNALED and not self.is_recovering:
            self._leave_if_halted()
            if self._is_leaving:
                await forever()

    def _leave_if_halted(self) -> None:
        """Begin no call and suspend the run after its calls in flight, if it is halted."""
        if self._halt is None and self._root is not None:
            self._halt = find_halt(self._root.services.halts)
            if self._halt is not None:
                self._is_leaving = True
                self._leaving = asyncio.run_coroutine_threadsafe(self.suspend_after(inf), self._aio)

    async def release(self) -> bool:
        """End the lease if this process still has it. Return false if the database cannot be used: try again later."""
        if self.error is None or isinstance(self.error, (LeaseLostError, RunWaitingError)):
            return True
        await self._writer.release()
        return self._writer.is_released

    def journal_of(self, engine: Engine) -> DurableRun | None:
        """Return this object if the run is the outermost run, before or while it is executed, and not a nested run."""
        return self if self._root is None or self._root is engine else None

    def sinks_of(self, ids: Ids) -> tuple[Sink, ...]:
        """Return the sink that stores the events of the outermost run."""
        return (self,) if self.stores_events and self.run_id == ids.run_id else ()

    def create_task(
        self, work: Coroutine[Any, Any, None], aio: asyncio.AbstractEventLoop, context: contextvars.Context
    ) -> asyncio.Task[None]:
        """Create the task of the outermost run."""
        context.run(_EXECUTING.set, self)
        return _DurableTask(self, work, aio, context)

    async def _execute_root(self, engine: Engine, work: Callable[[], Awaitable[T]]) -> T:
        if self.error is not None:
            raise self.error
        run_id = engine.ids.run_id
        self._root = self._engines[run_id] = engine
        engine.cancellation.postpone = self._when_suspended
        install_sources(engine, self)
        for budget in engine.budget.chain():  # including the budget of a conversation that begins with this run
            if budget._began is None:
                budget.clock = engine.environment.clock
        self._runs += 1
        recovery = self._recovery
        recovery.root, recovery.is_in_root = str(self._runs), True
        lane = engine.services.lane = Lane(recovery.root, tree=self._tree)
        unsubscribe = engine.services.interrupt.record(self._cancelled)
        try:
            with in_lane(lane):
                recovery.advance()
                result = await work()
        finally:
            self._root, recovery.is_in_root = None, False
            self._engines.pop(run_id, None)
            unsubscribe()
        if self.error is not None:
            raise self.error
        return result

    async def _execute_nested(self, engine: Engine, work: Callable[[], Awaitable[T]]) -> T:
        run_id = engine.ids.run_id
        self._engines[run_id] = engine
        engine.cancellation.postpone = self._when_suspended
        detached, unsubscribe = is_detached(_path_of(engine)), None
        if self.error is not None:
            engine.suspend()
        if not self._place()[1]:
            unsubscribe = engine.services.interrupt.record(partial(self._nested_cancelled, engine))
        try:
            if detached and self.error is not None:
                raise self.error
            await self._input_first()  # a run that began after a cancellation ends immediately
            result = await work()
        finally:
            self._engines.pop(run_id, None)
            if unsubscribe is not None:
                unsubscribe()
        if detached and self.error is not None:
            raise self.error
        return result

    def _place(self) -> tuple[str, str]:
        """Return the lane of the current task and its replay mode."""
        lane = LANE.get()
        return ("", LIVE) if lane is None or lane.tree is not self._tree else (lane.path, lane.mode)

    def _lane_in(self, mode: str) -> Lane:
        """Return the lane of the current task in another replay mode."""
        lane = LANE.get()
        return Lane("", mode, (), self._tree) if lane is None or lane.tree is not self._tree else lane.in_mode(mode)

    def _fail(self, error: BaseException) -> None:
        """Stop executing the run in this process: no hook is called and no entry is written after this."""
        if self.error is None:
            self.error = error
            self._writer.muted = True
            for engine in list(self._engines.values()):
                engine.suspend()
                if engine is self._root or is_detached(_path_of(engine)):  # others end with the run around them
                    engine.cancellation.abort(error)
            self._recovery.stop()

    async def _stop(self) -> Never:
        """End the current task, which is being cancelled, even if code inside the run suppressed the cancellation.

        Before and after the run, as while its session is loaded, nothing cancels the task: the error ends it. It
        also ends a run that a hook started in another thread: the hook may wait for it, and block the outermost run.
        """
        if self.error is not None and (self._root is None or not self._writer.is_in_own_loop):
            raise self.error
        if self._root is not None and self._root.cancellation.is_cancelled():
            raise asyncio.CancelledError
        await forever()

    async def _leave(self) -> Never:
        """Begin no call while the run is being suspended: the next process makes it."""
        if self._root is None:  # no call is in flight, and nothing cancels the task: see _stop()
            self.suspend()
            await self._stop()
        await forever()

    async def _diverge(self, journaled: str, now: str) -> Never:
        self._differ(journaled, now)
        await self._stop()

    def _differ(self, journaled: str, now: str) -> None:
        self._fail(
            RecoveryError(
                f"run {self.run_id} cannot be continued: its journal says {journaled}, but now it is {now}. Continue "
                "it with the hooks, instructions and tools that it started with; its journal is unchanged"
            )
        )

    def _recovered(self) -> None:
        """Go on live: everything in the journal has happened again."""
        self._writer.end_hold()
        deferred, self._deferred = self._deferred, []
        for steer in deferred:
            steer()

    async def _turn(self, position: int, wakeup_in: str | None = None) -> None:
        """Wait until recovery has repeated all entries before this position.

        With ``wakeup_in``, it is a wakeup in this lane, and does not wait after a cancellation or a time limit.
        """
        recovery = self._recovery
        is_in_journal = position < len(recovery.entries)  # otherwise, a cancellation may have ended the await
        turn = recovery.wait_for(position, wakeup_in)
        if is_in_journal and recovery.has_cuts and not recovery.was_cut(self._place()[0]):
            turn = defer_cancellation(turn)
        await turn
        if self.error is not None:
            await self._stop()

    # Wakeups: where a part of the run continued after it had awaited something of its own.

    async def wake_up(self, name: str, *, waited: bool = True) -> None:
        """Record that an await of the run's own code has ended; in recovery, wait until it ended in the journal.

        A run that begins in a thread without a copy of the context has no lane yet.
        """
        lane, mode = self._place()
        if lane and not mode:
            position = self._recovery.wakeup_of(lane, name)
            if position is None and name == CANCELLATION and self._recovery.was_cut(lane):
                self._woke(lane, name, None)  # the journal does not have this cancellation
            elif waited or position is not None:
                await self._continue(lane, name, position)

    async def await_hook(
        self, firing: Firing, hook: HookEntry, result: Awaitable[Any], limit: float | None, is_grace: bool
    ) -> Any:
        """Await a hook, and record when the run continued after it. In recovery, the journal says when, and if in time.

        A hook that finishes earlier than in the recording also waits for the input that interrupted it there. The hooks
        after a cancellation of the whole run have no place in the journal: their events may differ.
        """
        lane, mode = self._place()
        if mode or (is_grace and self._is_cancelled()):
            value = await with_timeout(limit, result, is_grace)
            await self._input_first()
            return value
        name, waited = wakeup_after(hook), False
        self._awake.waits(lane)

        def suspended() -> None:
            nonlocal waited
            waited = True
            self._awake.waits(lane)

        try:
            work = result if limit is None else self._in_time(lane, name, result, limit, is_grace)
            work = watch_await(work, suspended=suspended)
            recovery = self._recovery
            if recovery.has_cuts and recovery.wakeup_of(lane, name) is not None and not recovery.was_cut(lane):
                work = defer_cancellation(work)  # a cancellation of the nested run reached it later
            value = await work
        except StillRunningError:
            raise
        except Exception:
            await self._hook_ended(lane, name, waited=waited)
            raise
        await self._hook_ended(lane, name, waited=waited)
        return value

    async def _hook_ended(self, lane: str, name: str, *, waited: bool) -> None:
        await self._input_first()
        head = self._recovery.head(lane)
        if head is not None:
            if self._recovery.is_entry(head, "wakeup", name):  # otherwise, it did not wait then
                await self._continue(lane, name, head)
        elif (waited or self.is_recovering) and self._awake.is_asleep(lane) and not self._recovery.starts(lane):
            await self._continue(lane, name, None)

    def _is_cancelled(self) -> bool:
        """Return whether the outermost run has been cancelled."""
        return self._root is None or self._root.services.interrupt.cancelled

    async def _in_time(self, lane: str, name: str, result: Awaitable[Any], limit: float, is_grace: bool) -> Any:
        """Await a hook that has a timeout. If the journal says how that ended, no clock is read.

        Raises:
            StillRunningError: the hook exceeded its timeout.
        """
        calls, context = len(self._in_flight.get(lane, ())), contextvars.copy_context()
        task = start_task(result, context)
        position = self._recovery.wakeup_of(lane, name)
        try:
            if position is None:
                if self.is_recovering:  # its time begins when the journal has ended
                    end = asyncio.ensure_future(self._until_end(lane))
                    try:
                        await asyncio.wait({task, end}, return_when=asyncio.FIRST_COMPLETED)
                    finally:
                        abandon(end)
                return raise_exit(task.result() if task.done() else await with_timeout(limit, task, is_grace))
            if self._recovery.entries[position].data != _TIMED_OUT:
                return raise_exit(await with_timeout(inf, task, is_grace))
            turn = asyncio.ensure_future(self._turn(position, lane))
            try:
                await asyncio.wait({task, turn}, return_when=asyncio.FIRST_COMPLETED)
                if task.done() and self._recovery.head(lane) != position:
                    return raise_exit(task.result())  # a later call of the hook exceeded its timeout
                await turn
            finally:
                abandon(turn)
        except StillRunningError:
            if self.is_recovering and (self._recovery.head(lane) is not None or self._recovery.starts(lane)):
                raise  # the journal does not say how this call ended
            await self._until_end(lane)
        finally:
            abandon(task)
        for call in self._in_flight.get(lane, [])[calls:]:
            call.end(JournalAnswer(cut=True))
        # The hook may ignore its cancellation: it is no longer part of the run.
        context.run(LANE.set, self._lane_in(PAST))
        self._woke(lane, name, position, timed_out=True)
        raise StillRunningError

    async def _continue(self, lane: str, name: str, position: int | None) -> None:
        """Continue a lane at a wakeup; without one, when everything in the journal has happened again."""
        if position is None:
            await self._until_end(lane)
        else:
            self._recovery.claim(position)
            if not self._recovery.is_relaxed(position):
                await self._turn(position, lane)
        self._woke(lane, name, position)

    async def _until_end(self, lane: str) -> None:
        """Wait for the end of the journal: there, an await of this lane had not ended."""
        if self._recovery.waits_for_end(lane):
            await self._turn(len(self._recovery.entries), lane)

    def _woke(self, lane: str, name: str, position: int | None, *, timed_out: bool = False) -> None:
        """Record a wakeup, or mark the one at this position as repeated."""
        if position is None:
            self._put(lane, "wakeup", name, timed_out or None)
        elif self._recovery.has(lane, position):
            self._recovery.remove(lane, position)
        self._awake.continued(lane)

    async def _input_first(self) -> None:
        """Wait for the external input that the journal has before the next entry of this lane."""
        lane, mode = self._place()
        while not mode and (position := self._recovery.input_before_next(lane)) is not None:
            await self._turn(position + 1)
            await settle()  # let a cancellation reach its tasks

    def _repeat(self, entry: JournalEntry, position: int) -> None:
        """Repeat an external input."""
        if entry.kind == "steer":
            steering = with_contents(steering_decoder, entry.data)
            engine = self._engines.get(steering.run)
            before = self._recovery.entry_before_steering(position, "" if engine is None else _path_of(engine))
            if before is not None:
                self._recovery.after(before, partial(self._steer, steering))
            else:
                self._steer(steering)
            return
        data, root = msgspec.json.decode(entry.data), self._recovery.root
        if entry.kind == "timer" or not entry.lane:
            self._recovery.relax(run_of(entry.lane) or root, position)
        if entry.kind == "cancel":
            cancelled = (each for each in self._engines.values() if _path_of(each) == (entry.lane or root))
            self._is_repeating = True
            for engine in tuple(cancelled):
                engine.services.interrupt.cancel(data)
            self._is_repeating = False
        elif entry.kind == "timer" and (fire := self._waiting_timers.pop((entry.lane, data), None)) is not None:
            fire()

    def _steer(self, steering: Steering) -> None:
        engine = self._engines.get(steering.run)
        if engine is not None:
            engine.repeat_steering(steering.message)

    def _charge(self, entry: JournalEntry) -> None:
        """Repeat what a tool or an observer did to its run, because recovery does not call them again."""
        spent = spent_decoder.decode(entry.data)
        engine = self._engines.get(spent.run)
        outer = (each for each in self._engines.values() if is_part_of(entry.lane, _path_of(each)))
        payer = max(outer, key=lambda each: len(_path_of(each)), default=self._root) if engine is None else engine
        if spent.signal is not None:
            if engine is not None:
                engine.run_state.set_signals((*engine.run_state.signals, spent.signal))
            return
        if payer is None:
            return
        if spent.is_tool_call:
            payer.budget.count_tool_call()
        elif engine is None:
            payer.budget.charge(spent.usage, spent.cost)
        else:
            engine.run_state.charge(spent.usage, spent.cost)

    # Events and observers.

    def is_new(self, event: Event) -> bool:
        """Compare an event with the journal. Return whether it has not been stored and delivered before."""
        kind = type(event)
        if kind is SubagentEvent:  # already compared in the stream of the nested run
            return self.error is None
        lane, mode = self._place()
        if mode:
            return mode in NEW
        if kind is PointFired or (kind is HookExecuted and is_silent(event)):  # type: ignore[arg-type]
            return not self.is_repeating()
        if kind in _TEXT:
            is_new = not self._recovery.take_text(lane)
            name, key = "text", ""
        else:
            name, key = "event", _event_key(event)
            is_new = not self._recovery.take_event(lane, key)
        if is_new:
            self._put(lane, name, key)
        return is_new

    def is_repeating(self) -> bool:
        """Return whether the current task repeats what an earlier process did."""
        lane, mode = self._place()
        return mode not in NEW if mode else self._recovery.head(lane) is not None

    async def call_observers(self, firing: Firing, verdict: Verdict) -> None:
        """Call the observers of a fire, unless an earlier process called them."""
        lane, mode = self._place()
        head = self._recovery.head(lane) if not mode else None
        before, error = firing.failures, firing.error
        if mode in (PAST, WATCHING_PAST) or head is not None:
            failures: tuple[ErrorInfo, ...] | None = ()
            observed = head if head is not None and self._recovery.is_entry(head, "observed", firing.point) else None
            if observed is not None:
                failures = failures_decoder.decode(self._recovery.entries[observed].data)
            if failures is not None:
                deciding = self._deciding_hooks(firing)
                again = [entry for entry in firing.chain.observers if id(entry.hook) in deciding]
                await self._call_observers(firing, verdict, again, PAST)
            if observed is not None:
                if not self._recovery.is_relaxed(observed):
                    await self._turn(observed, lane)  # the run continued there after the observers
                self._recovery.remove(lane, observed)
                self._awake.continued(lane)
            if failures is not None:
                firing.failures, firing.error = (*before, *failures), error
                firing.has_results = firing.has_results or bool(failures)
                return
        await self._call_observers(firing, verdict, firing.chain.observers, INSIDE)
        if not mode and firing.point != ON_TOKEN:
            await self._until_end(lane)
            failed_closed = firing.error is not error
            self._awake.continued(lane)
            self._put(lane, "observed", firing.point, None if failed_closed else firing.failures[len(before) :])

    async def _call_observers(
        self, firing: Firing, verdict: Verdict, observers: Sequence[HookEntry], mode: str
    ) -> None:
        if not observers:
            return
        _, outer = self._place()
        if outer in UNJOURNALED:
            mode = outer
        elif firing.point != ON_TOKEN:
            watching = self._lane_in(WATCHING if mode == INSIDE else WATCHING_PAST)
            deciding, number = self._deciding_hooks(firing), 0
            placed: list[HookEntry] = []
            for entry in observers:
                if id(entry.hook) in deciding:  # async observers run concurrently, so each has a lane
                    number += 1
                    placed.append(_at(watching.of_observer(number), entry))
                else:
                    placed.append(entry)
            observers = placed
        lane = self._lane_in(mode)
        with in_lane(lane if mode == outer else lane.of_observer()):  # recovery does not count the runs that they start
            await firing.call_observers(tuple(observers), verdict)

    def _deciding_hooks(self, firing: Firing) -> frozenset[int]:
        """Return the ids of the hooks that also decide. Recovery calls their observers, to rebuild their state."""
        scope = firing.scope
        assert isinstance(scope, Engine)
        stack = scope.hooks.stack
        if self._deciding[0] is not stack:
            entries = (entry for point in stack.points for entry in stack.entries(point))
            self._deciding = stack, frozenset(id(entry.hook) for entry in entries if entry.phase != "observe")
        return self._deciding[1]

    # Writing.

    def _put(self, lane: str, kind: str, key: str = "", data: Any = None) -> None:
        self._writer.put(lane, kind, key, data)

    events = AllEventsExcept(PointFired, if_wanted=_TEXT)

    def __call__(self, event: Event) -> None:
        """Store an event for readers: the sink of the outermost run."""
        if not (isinstance(event, SubagentEvent) and type(event.event) is PointFired):
            self._writer.put_event(event)

    def put_event(self, row: EventRow) -> None:
        """Store an event that the caller has numbered."""
        self._writer.put_numbered(row)

    def put_record(self, database: Any, record: Any) -> bool:
        """Store a record about the run with the next entries, if the journal is in this database."""
        return self._journal.is_in(database) and self._writer.put_record(record)

    # Clocks, random numbers, ids and timers.

    def read(self, kind: str, real: Callable[[], Any]) -> Any:
        """Return the recorded value of the current lane; without one, read the actual value and record it."""
        lane, mode = self._place()
        if mode not in UNJOURNALED:
            known = self._recovery.draws.get((lane, kind))
            if known:
                return known.popleft()
        value = real() + self._shift if kind == "monotonic" else real()
        if mode not in UNJOURNALED:
            self._writer.put_draw(lane, kind, value)
        return value

    def set_timer(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Any:
        """Set a timer. In recovery, it fires at its position in the journal."""
        lane, mode = self._place()
        loop, context = asyncio.get_running_loop(), contextvars.copy_context()
        later = getattr(clock, "call_later", None) or loop.call_later
        if mode:  # part of a call or an observer
            return later(seconds, partial(context.run, callback))
        self._timers[lane] = number = self._timers.get(lane, 0) + 1
        timer = _Timer()

        def repeat() -> None:
            if not timer.cancelled:
                loop.call_soon(callback, context=context)

        def fire() -> None:
            if timer.cancelled:
                return
            if self.is_recovering:  # the time limit was not reached in the recording
                timer.handle = later(0.05, partial(context.run, fire))
                return
            self._put(lane, "timer", "", number)
            callback()

        if self._recovery.has_timer(lane, number):
            self._waiting_timers[lane, number] = repeat
        else:
            timer.handle = later(seconds, partial(context.run, fire))
        return timer

    # External input.

    def defer(self, action: Callable[[], object]) -> None:
        """Steer or cancel the run after recovery, so that the input follows the entries of the journal."""
        self._deferred.append(partial(contextvars.copy_context().run, action))

    def steer(self, engine: Engine, message: Message) -> bool:
        """Add a message to a run of the tree; in recovery, after the entries of the journal."""
        if self.is_stopping:
            return False
        if self.is_recovering:
            self.defer(partial(engine.steer, message))
            return True
        return super().steer(engine, message)

    def steered(self, run_id: str, message: Message) -> None:
        """Record a message for a run of the tree."""
        self._put("", "steer", CONTROL.get(), Steering(run_id, message, contents_of(message.attachments)))

    def _cancelled(self, reason: str) -> None:
        is_waiting = isinstance(self.error, RunWaitingError)  # the run is suspended, and its tasks are ending
        if self._is_repeating or (self.error is not None and not is_waiting):
            return
        if self.is_recovering:
            self._recovery.relax(self._recovery.root)
        if self._suspending is not None:  # the suspending write may have begun
            self._late_cancel = encoded(("", "cancel", CONTROL.get(), reason))
        else:
            self._put("", "cancel", CONTROL.get(), reason)

    def _nested_cancelled(self, engine: Engine, reason: str) -> None:
        """Record that a nested run was cancelled alone, unless the run's own code did it, which recovery repeats."""
        outer, lane = self._engines.get(engine.ids.parent_run_id), LANE.get()
        by_outer = outer is not None and outer.services.interrupt.cancelled
        by_own_code = lane is not None and lane.tree is self._tree and not lane.mode
        if self._is_repeating or self.is_stopping or by_outer or by_own_code:
            return
        if self.is_recovering:
            self._recovery.relax(_path_of(engine))
        self._put(_path_of(engine), "cancel", "", reason)

    def _store_late_cancel(self, entry: bytes) -> None:
        """Append a cancellation to the journal of the suspended run. The process that resumes the run cancels it."""
        try:
            claim = self._journal.claim(self.run_id, "", b"")
            if not claim.run.is_over:
                seq = len(claim.entries) + 1
                self._journal.append(Append(self.run_id, claim.epoch, seq, [entry], status="interrupted"))
        except HooklineError as error:  # for example, another process resumed the run after an approval
            log.error("the run %s is suspended, and its cancellation could not be stored: %s", self.run_id, error)

    # Calls.

    async def begin(self, key: str, run_id: str = "", *, commit: bool = False, repeatable: bool = True) -> Call:
        """Begin a call: return its answer from the journal, or the right to make it.

        Args:
            key: what is called.
            run_id: the run that calls a model.
            commit: whether to commit all entries so far before the call is made.
            repeatable: whether a call that was in flight may be made again.
        """
        lane, mode = self._place()
        if mode == WATCHING_PAST and self._recovery.head(lane) is None:
            mode = PAST
        if mode in UNJOURNALED or self._writer.muted:
            if self.error is not None:
                await self._stop()
            return Call(self, lane, key, None, unjournaled=True)
        if self.is_recovering:
            await self._input_first()
        self._begun[lane, key] = number = self._begun.get((lane, key), 0) + 1
        if number > 1:  # concurrent calls of one hook may have the same key
            key = f"{key}~{number}"
        head = self._recovery.find_asked(lane)
        if head is None:
            self._leave_if_halted()
            if self._is_leaving:
                await self._leave()
            self._put(lane, "asked", key)
        else:
            entry = self._recovery.entries[head]
            if entry.kind != "asked" or entry.key != key:
                await self._diverge(describe(entry), describe(JournalEntry(lane, "asked", key)))
            self._recovery.take(lane)
            answered = self._recovery.answer_to(lane, key)
            if answered is not None:
                return Call(self, lane, key, answered)
            self._make_void(lane, key, run_id)
            if not repeatable:
                await self._turn(len(self._recovery.entries))
                call = Call(self, lane, key, None)
                error = OutcomeUnknownError(
                    "The outcome of this call is unknown: the program ended while the call was running. "
                    "Find out whether it took effect before you call it again."
                )
                call.end(JournalAnswer(raised=ErrorSnapshot.from_error(error)))
                raise error
            self._leave_if_halted()
            if self._is_leaving:
                await self._leave()
        call = Call(self, lane, key, None)
        self._in_flight.setdefault(lane, []).append(call)
        self._beginning += 1
        try:
            await self._turn(len(self._recovery.entries))
            if commit:
                await self._committed()
                await self._writer.check_lease()
            if self.error is not None:
                await self._stop()
        finally:
            self._beginning -= 1
        return call

    async def _committed(self) -> None:
        if not await self._writer.flush() and self.error is not None:
            await self._stop()  # without an error, the run has ended, and a detached run continues

    def _make_void(self, lane: str, key: str, run_id: str) -> None:
        """Discard the partial output of a call that was in flight, because the call is retried."""
        was_shown = self._recovery.skip_text(lane)
        engine = self._engines.get(run_id)
        if was_shown and engine is not None:
            what, hop, attempt, *_ = key.rsplit(" ", 5)
            purpose = what.removeprefix("model ")
            engine.emit(Discarded, hop=int(hop), attempt=int(attempt), purpose=purpose, reason="interrupted")
        self._put(lane, "resumed", key)

    async def answer_of(self, call: Call) -> JournalAnswer:
        """Return the answer of a call from the journal, when recovery has reached its position."""
        position = call.answered
        assert position is not None
        self._recovery.skip_text(call.lane, position)
        try:
            await self._turn(position)
        except asyncio.CancelledError:
            self.give_up(call)
            raise
        self._recovery.remove(call.lane, position)
        self._awake.continued(call.lane)
        answer = self.peek(call)
        if answer.cut:
            await forever()
        if answer.raised is not None:
            raise answer.raised.error()
        if answer.refused is not None:
            raise answer.refused.error()
        return answer

    def peek(self, call: Call) -> JournalAnswer:
        """Return the answer of a call before recovery has reached its position."""
        assert call.answered is not None
        return with_contents(answer_decoder, self._recovery.entries[call.answered].data)

    def _answered(self, call: Call, answer: JournalAnswer) -> None:
        if call in (calls := self._in_flight.get(call.lane, [])):
            calls.remove(call)
        self._put(call.lane, "answered", call.key, answer)
        self._awake.continued(call.lane)

    def give_up(self, call: Call) -> None:
        """Skip the answer of a call that its caller no longer awaits."""
        if call.answered is not None and not self._recovery.is_done(call.answered):
            self._recovery.skip_text(call.lane, call.answered)
            self._recovery.remove(call.lane, call.answered)

    async def _begin_model_call(self, model: Model, request: ModelRequest) -> Call:
        digests = self.digests.of(request)
        place = f"model {request.purpose} {request.hop} {request.attempt}"
        key = f"{place} {' '.join(f'{name}={value}' for name, value in digests.items())}"
        call = await self.begin(key, request.ids.run_id)
        if call.answered is not None:
            self._script_turns.skip(model, call.lane, call.key)
        else:
            lane = LANE.get()
            tool = call.lane if lane is None or not lane.tools else lane.tools[0].path
            self._script_turns.take(model, request, tool, "" if call.unjournaled else call.key)
        return call

    async def complete(
        self, model: Model, request: ModelRequest, call: Callable[[], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Call a model, or return its recorded reply."""
        begun = await self._begin_model_call(model, request)
        if begun.answered is not None:
            response = (await self.answer_of(begun)).response
            assert response is not None
            return response

        async def work() -> tuple[ModelResponse, JournalAnswer]:
            response = _storable(await call())
            return response, _reply(model, response)

        response = await begun.make(work)
        if begun.unjournaled and isinstance(response, ModelResponse):
            self.spent(request.ids.run_id, response.usage, response.cost)
        return response

    async def stream(
        self, model: Model, request: ModelRequest, call: Callable[[], AsyncIterator[str | ModelResponse]]
    ) -> AsyncIterator[str | ModelResponse]:
        """Yield the pieces of a reply, and then the reply; from the journal if it has them."""
        begun = await self._begin_model_call(model, request)
        if begun.answered is not None:
            try:
                for piece in self.peek(begun).pieces:
                    yield piece
            except GeneratorExit:
                self.give_up(begun)
                raise
            response = (await self.answer_of(begun)).response
            assert response is not None
            yield response
            return
        pieces: list[str] = []
        answer = JournalAnswer(cut=True)
        response, given = None, call()
        self._flying += 1
        try:
            async for each in given:
                if isinstance(each, ModelResponse):
                    response = _storable(each)
                    answer = _reply(model, response)
                    break
                pieces.append(each)
                yield each
        except BaseException as error:
            answer = answer_of_error(error)
            raise
        finally:
            self._flying -= 1
            answer.pieces = pieces
            try:
                await close_stream(given)
            finally:
                begun.end(answer)  # at last: the run continues here
        if response is not None:
            if begun.unjournaled:
                self.spent(request.ids.run_id, response.usage, response.cost)
            yield response

    def counted(self, model: Model, key: str, count: Callable[[], Any], estimate: Callable[[], Any]) -> Any:
        """Return a number from a model, as it was counted first."""
        if self._place()[1] in UNJOURNALED:
            return count()
        name = f"{model.provider} {model.name} {key}"
        counts = self._recovery.counts
        if name not in counts:
            counts[name] = value = count()
            self._put("", "count", name, value)
        return counts[name]

    def was_changed(self, request: ToolCallRequest, changed: bool, *, after_approvals: bool) -> bool:
        """Return whether a hook changed the arguments of a call in place; an observer that did is not called again."""
        kind = f"changed {request.id} {request.attempt}{' after approvals' if after_approvals else ''}"
        if changed or self._recovery.draws.get((self._place()[0], kind)):
            return bool(self.read(kind, lambda: True))
        return False

    async def call_tool(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
        """Call a tool, or return its recorded result. A tool that only runs agents is always called."""
        lane, mode = self._place()
        if mode == INSIDE:  # recovery does not repeat it
            self._put(lane, "spent", "", Spent(request.ids.run_id, is_tool_call=True))
        if tool.runs_agents:
            return await self._call_agents(tool, values, ctx)
        arguments = sha256(json_encoder.encode(request.arguments)).hexdigest()[:16]
        key = f"tool {request.name} {request.id} {request.attempt} {arguments}"
        try:
            call = await self.begin(key, commit=True, repeatable=tool.repeatable)
        except OutcomeUnknownError:
            await self._committed()
            await self.wake_up(_RESULT)  # as after every result: recovery waits for it
            raise
        if call.answered is not None:
            try:
                answer = await self.answer_of(call)
            except Exception:
                await self.wake_up(_RESULT)
                raise
            await self.wake_up(_RESULT)
            if answer.timed_out:
                raise StillRunningError
            return tool_result(answer.value, answer.attachments)

        async def work() -> tuple[Any, JournalAnswer]:
            value = await Boundary.call_tool(self, request, tool, values, ctx)
            own, attachments = take_attachments(value)
            return value, JournalAnswer(value=jsonable(own), attachments=attachments, contents=contents_of(attachments))

        try:
            value = await call.make(work)
        except Exception:
            await self._result_committed(call)
            raise
        await self._result_committed(call)
        return value

    async def _result_committed(self, call: Call) -> None:
        """Wait until the result of a tool is committed, so that hooks and later calls never depend on a lost result."""
        if not call.unjournaled:
            await self._committed()
            await self.wake_up(_RESULT)

    async def _call_agents(self, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
        if tool.timeout is None:
            return await tool.call(values, ctx)
        task = asyncio.ensure_future(tool.call(values, ctx))
        late = asyncio.get_running_loop().create_future()
        timer = self.set_timer(None, tool.timeout, lambda: None if late.done() else late.set_result(None))
        try:
            await asyncio.wait({task, late}, return_when=asyncio.FIRST_COMPLETED)
            await self.wake_up(_RESULT)
            if task.done():
                return task.result()
            raise StillRunningError
        finally:
            timer.cancel()
            abandon(task)
            late.cancel()

    async def once(self, name: str, read: Callable[[], Awaitable[Any]]) -> Any:
        """Call a function of a hook, or return its recorded value."""
        call = await self.begin(f"once {name}")
        if call.answered is not None:
            return (await self.answer_of(call)).value

        async def work() -> tuple[Any, JournalAnswer]:
            value = await read()
            return value, JournalAnswer(value=value)

        return await call.make(work)

    async def approve(
        self, asked: ApprovalRequest, ask: Callable[[], Awaitable[Verdict]], report: Callable[..., Awaitable[Any]]
    ) -> Verdict:
        """Ask the approvers, or return their recorded decision."""
        request, self.may_have_asked = asked.call, True
        call = await self.begin(f"approval {request.name} {request.id} {request.attempt} {asked.digest}", commit=True)
        if call.answered is not None:
            return await self._decision(asked, await self.answer_of(call), report)

        async def work() -> tuple[Verdict, JournalAnswer | None]:
            self._asking += not call.unjournaled
            try:
                verdict = await ask()
            except HookError as error:
                if (failed := failed_approver(error)) is not None:
                    call.end(JournalAnswer(failed=failed))
                raise
            finally:
                self._asking -= not call.unjournaled
            answer = verdict.value
            if isinstance(answer, ApprovalAnswer) and answer.wait and not call.unjournaled:
                return verdict, None
            return verdict, JournalAnswer(approval=answer, by=verdict.hook, failures=verdict.failures)

        verdict = await call.make(work)
        if call.ended or call.unjournaled:
            return verdict
        return await self._wait_for(call.lane, request)

    async def _decision(
        self, asked: ApprovalRequest, answer: JournalAnswer, report: Callable[..., Awaitable[Any]]
    ) -> Verdict:
        failed, (_, mode) = answer.failed, self._place()
        with in_lane(self._lane_in(mode or PAST)):
            for failure in answer.failures if failed is None else (failed, *answer.failures):
                with suppress(RunStoppedError, HookError, CallRefusedError):
                    await report(failure)
        return approval_verdict(asked, answer.approval, answer.by, failed)

    async def _wait_for(self, lane: str, request: ToolCallRequest) -> Never:
        """Suspend the run when it waits only for approvals."""
        self._waiting[lane] = request
        while self._suspending is None and self.error is None:
            before = self._writer.count
            await asyncio.sleep(QUIET_SECONDS)
            if self._suspending is None and not self._flying and self._writer.count == before:
                waiting = [(each.ids.run_id, each.id, each.attempt) for each in self._waiting.values()]
                self._suspending = self._writer.suspend(json_encoder.encode(waiting))
                self._suspending.add_done_callback(self._suspended)
        if self._suspending is not None:
            await asyncio.shield(self._suspending)
        await self._stop()

    def _suspended(self, written: asyncio.Future[bool]) -> None:
        if written.result():
            self._fail(RunWaitingError(self.run_id, tuple(self._waiting.values())))

    def _when_suspended(self, action: Callable[[], object]) -> bool:
        """Call ``action`` after the write that suspends the run. Return false if no such write is under way."""
        if self._suspending is None or self.error is not None:
            return False
        self._suspending.add_done_callback(lambda _: action())
        return True

    @property
    def is_stopping(self) -> bool:
        """Whether this process is about to stop executing the run. Later entries are not written."""
        return self._suspending is not None or self.error is not None

    def signalled(self, engine: Engine, signal: StopSignal) -> None:
        """Record a signal that a tool or an observer set in its run: recovery does not call them again."""
        lane, mode = self._place()
        run = engine.services.lane
        if mode == INSIDE and run is not None and not run.mode:
            self._put(lane, "spent", "", Spent(engine.ids.run_id, signal=signal))

    def spent(self, run_id: str, usage: Usage, cost: float | None) -> None:
        """Record the usage of a model call that is not in the journal, because recovery does not repeat it."""
        lane, mode = self._place()
        if mode == INSIDE:
            self._put(lane, "spent", "", (run_id, usage, cost))


_EXECUTING: ContextVar[DurableRun | None] = ContextVar("hookline_durable_run", default=None)
"""The durable run that the current task belongs to."""


class _DurableTask(asyncio.Task[None]):
    """The task of a durable run. If code outside the run cancels it, the run is suspended.

    ``asyncio.run`` cancels all tasks when it ends. A time limit inside the run, such as ``asyncio.timeout`` in a tool,
    cancels the same task, but from a context of the run.
    """

    def __init__(
        self,
        run: DurableRun,
        work: Coroutine[Any, Any, None],
        aio: asyncio.AbstractEventLoop,
        context: contextvars.Context,
    ) -> None:
        super().__init__(work, loop=aio, context=context)
        self._run = run

    def cancel(self, msg: Any = None) -> bool:
        """Suspend the run; if the caller is inside the run, cancel the task."""
        if self.done() or _EXECUTING.get() is self._run:
            return super().cancel(msg)
        self._run.suspend()
        return True

    def cancel_run(self) -> bool:
        """Cancel the task, also for a caller outside the run, such as ``run.cancel()``."""
        return super().cancel()


class Call:
    """A call in the journal: ``answered`` is the position of its answer, or ``None`` if the call must be made."""

    def __init__(
        self, run: DurableRun, lane: str, key: str, answered: int | None, *, unjournaled: bool = False
    ) -> None:
        self.lane, self.key, self.answered = lane, key, answered
        self.unjournaled = unjournaled
        """Whether the call is inside a tool or an observer."""
        self.ended = False
        self._run = run

    async def make(self, work: Callable[[], Awaitable[tuple[T, JournalAnswer | None]]]) -> T:
        """Make the call and record its outcome. ``work`` returns the value and the answer for the journal."""
        if self.unjournaled:
            return (await work())[0]
        self._run._flying += 1
        answer: JournalAnswer | None = None
        try:
            with in_lane(self._run._lane_in(INSIDE)):
                value, answer = await work()
            return value
        except BaseException as error:
            answer = answer_of_error(error)
            raise
        finally:
            self._run._flying -= 1
            if answer is not None:
                self.end(answer)

    def end(self, answer: JournalAnswer) -> None:
        """Record the answer, once."""
        if not self.ended and not self.unjournaled:
            self.ended = True
            self._run._answered(self, answer)


def _reply(model: Model, response: Any) -> JournalAnswer:
    if isinstance(response, ModelResponse):
        return JournalAnswer(response=response)
    return JournalAnswer(raised=wrong_reply(model, response))


def _at(lane: Lane, entry: HookEntry) -> HookEntry:
    """Return a hook that is called in this lane."""

    async def finish(result: Awaitable[Any]) -> Any:
        with in_lane(lane):
            return await result

    def call(*args: Any, **named: Any) -> Any:
        with in_lane(lane):
            result = entry.call(*args, **named)
        return finish(result) if hasattr(result, "__await__") else result

    return msgspec.structs.replace(entry, call=call)


def answer_of_error(error: BaseException) -> JournalAnswer:
    """Return the answer for a call that raised."""
    if isinstance(error, StillRunningError):
        return JournalAnswer(timed_out=True)
    if isinstance(error, CallRefusedError):
        return JournalAnswer(refused=Refusal(str(error), error.status, error.reply, error.hook, error.reason))
    outcome = outcome_of(error)
    return JournalAnswer(cut=True) if "cancelled" in outcome else JournalAnswer(raised=outcome["raised"])


class _Timer:
    """A timer that can be cancelled."""

    def __init__(self) -> None:
        self.handle: Any = None
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True
        if self.handle is not None:
            self.handle.cancel()


def _event_key(event: Event) -> str:
    """Return a key that is equal for equal events: the type, a short description for people, and a digest."""
    kind = type(event)
    tag = str(event.__struct_config__.tag)
    if kind not in ENGINE_EVENTS:
        return tag  # an event of the program may contain anything
    if isinstance(event, RunFinished):
        return f"{tag} {event.result.status}"
    names = compared_fields(kind)
    data = json_encoder.encode([getattr(event, name) for name in names])
    if data.find(b" at 0x") >= 0:
        data = without_addresses(data.decode()).encode()
    told = ""
    if isinstance(event, HookExecuted):
        told = f" {event.point} {event.hook}: {event.verb}{f' ({event.reason})' if event.reason else ''}"
    elif name := next((getattr(event, each) for each in ("tool", "model") if each in names), ""):
        told = f" {name}"
    return f"{tag}{told} #{sha256(data).hexdigest()[:16]}"


def _path_of(engine: Engine) -> str:
    """Return the lane of a run."""
    return "" if engine.services.lane is None else engine.services.lane.path


def _storable(response: Any) -> Any:
    """Return a reply without lone surrogates, so that the run uses the same text as its journal."""
    try:
        json_encoder.encode(response)
    except UnicodeEncodeError:
        return msgspec.json.decode(encoded(response), type=ModelResponse)
    return response


def _result_of(stored: bytes, engine: Engine) -> AgentResult[Any]:
    """Return the result of a run that has ended, with its typed output."""
    result = msgspec.json.decode(stored, type=RunFinished).result
    if engine.output is None or result.output_or_none is None:
        return result
    return msgspec.structs.replace(result, output=engine.output.spec.read(result.reply).value)


def _add_to_session(session: Session, before: Sequence[Message], added: Sequence[Message]) -> None:
    """Add the messages of a run that has ended to a session that was not saved after it."""
    messages, metadata = session.snapshot()
    if tuple(messages) == tuple(before):
        session.save(messages, (*messages, *added), added, metadata)


def open_run(store: JournalStore, head: RunHead) -> DurableRun:
    """Take the lease of a run, or create it.

    Raises:
        RunHeldError: another process executes the run.
    """
    began = time.monotonic()
    claim = store.journal.claim(head.ids.run_id, head.ids.agent, json_encoder.encode(head))
    return DurableRun(store.journal, claim, began)


def hold_run(store: JournalStore, head: RunHead, halt: Halt) -> None:
    """Store a run that is halted before it begins, so that it can be resumed. Do nothing if the run has ended.

    Raises:
        RunHaltedError: the run has not ended.
        RunHeldError: another process executes the run.
    """
    journal, run_id = store.journal, head.ids.run_id
    stored = journal.get(run_id)
    if stored is None:
        claim = journal.claim(run_id, head.ids.agent, json_encoder.encode(head))
        journal.append(Append(run_id, claim.epoch, len(claim.entries) + 1, (), status="interrupted"))
    if stored is None or not stored.is_over:
        raise RunHaltedError(run_id, halt)
