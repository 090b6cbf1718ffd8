"""Record a run to a tape."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from .._base.attachment import Attachment
from .._base.attachment_files import ATTACHMENTS_SUFFIX, remove_contents, save_contents
from .._base.errors import NotInstalledError
from .._base.files import file_name_for
from .._base.frozen import json_encoder, plain
from .._base.own_files import OwnFile, register_own_file
from .._base.package import __version__
from .._base.tasks import StillRunningError, watch_await
from .._kernel.dispatch import Firing
from .._kernel.errors import CallRefusedError, HookError, HooklineError, RegistrationError
from .._kernel.events import Event, PointFired
from .._kernel.hook import HookEntry
from .._kernel.payloads import ApprovalRequest, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import ON_RUN_END
from .._kernel.results import Verdict
from .._kernel.scope import running_hooks
from .._kernel.validation import check_path
from .._kernel.values import Ids, Message, ModelResponse, StopSignal, ToolSpec
from .._run.boundary import Boundary, close_stream, wakeup_after
from .._run.budget import Budget
from .._run.context import AgentContext, context_for_call, progress_reporter_of
from .._run.engine import Engine
from .._run.events import AllEventsExcept, Sink, log
from .._run.lanes import LANE, Lane, in_lane
from .._run.replay_values import RequestDigests, failed_approver, outcome_of, wrong_reply
from .._run.sources import install_sources, real_clock
from .._run.waiters import Awake
from .._sensitive.encryption import DataKeyError, encrypted_lines
from ..models.protocol import Model
from ..records.encoding import MomentEncoder, RunTree, changes, describe_hooks, encode_line, slim, without_payload
from ..records.format import NOT_MOMENTS, TAPE_SUFFIX, TAPE_VERSION
from ..records.hook import run_info
from ..tools._tool import CheckedArguments, Tool, jsonable, take_attachments
from ..tools.registry import ToolRegistry
from . import format as fmt
from .fires import OrderedFires
from .format import TapeError
from .tape import TEXT_EVENTS

T = TypeVar("T")

Line = fmt.TapeEntry | tuple[Any, ...]
"""An entry, or the items of a line of a record."""

NO_TIME = fmt.TapeEntry().at
"""The time of an entry whose event has one. The encoder leaves out a default value only if it is the same object."""

NO_REQUEST = ModelRequest()

FLUSH_SECONDS = 0.05
"""Maximum time for which lines are kept in memory while a model, a tool or an approver is called."""

MAX_LINES = 500
"""Maximum number of lines that are kept in memory before they are written to the file."""


class TapeHook:
    """Record each run to a tape, which :func:`hookline.replay` and ``hookline replay`` can play again.

    The tape holds the requests to the model and its replies, the calls of tools and their results, the decisions of
    approvers, the values that hooks read from ``ctx.clock``, ``ctx.random`` and ``ctx.new_id``, every event with every
    decision, and the same for nested runs. The contents of attachments are in a folder beside it,
    ``NAME.tape.attachments``. The tape is as confidential as the conversation, so only its owner may read the files. If
    it cannot be written, the run goes on and reports this in its errors.

    Args:
        path: a file that ends in ``.tape``, which each run overwrites; or a folder, in which each run gets a file
            named after its id.

    Raises:
        RegistrationError: ``path`` is not a path, is an existing file without this suffix, or is a folder with it.

    Example::

        agent = Agent("bob", llm="openai:gpt-5-mini", hooks=[TapeHook("tapes/")])
    """

    points = frozenset({ON_RUN_END})
    phase = "observe"
    events = AllEventsExcept(PointFired, if_wanted=TEXT_EVENTS)  # a fire is recorded as a moment

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(check_path(path, f"path must be a file that ends in {TAPE_SUFFIX}, or a folder"))
        self._path = str(self.path)
        self._is_file = self.path.suffix == TAPE_SUFFIX
        if self.path.is_dir() if self._is_file else self.path.is_file():
            problem = "is a folder" if self._is_file else f"is a file, but its name does not end in {TAPE_SUFFIX}"
            raise RegistrationError(f"{self.path} {problem}: give TapeHook another path")
        tape = OwnFile(str(self.path), "Hookline's tape of a run", beside=self._is_file, is_folder=not self._is_file)
        register_own_file(self, tape)
        self._lock = threading.Lock()
        self._recordings: dict[str, Recording] = {}
        self._in_file: set[str] = set()
        """The runs on the tape, if this is a file for one tape, and the runs detached from them."""

    @property
    def own_files(self) -> tuple[str, ...]:
        """The files that tools may not change."""
        return (str(self.path),)

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Report a tape that could not be written."""
        recording = self._recordings.get(ctx.run_id)
        if recording is not None:
            recording.flush()
            if recording.problem:
                raise TapeError(recording.problem)

    def on_event(self, event: Event) -> None:
        """Record an event."""
        recording = self._recordings.get(event.run_id)
        if recording is not None:
            recording.event(event)

    def instrument(self, engine: Engine, start: RunStart) -> AbstractContextManager[None]:
        """Record a run, unless it is a replay."""
        return nullcontext() if engine.boundary.is_replay else self._recorded(engine, start)

    @contextmanager
    def _recorded(self, engine: Engine, start: RunStart) -> Iterator[None]:
        ctx, outer = engine.ctx, engine.boundary
        while isinstance(outer, Recording) and outer.owner is not self:
            outer = outer.inner
        if isinstance(outer, Recording):
            recording, unsubscribe = outer, None
        elif self._is_file and start.ids.parent_run_id in self._in_file:
            self._in_file.add(start.ids.run_id)
            yield  # a detached run would replace the tape of its outer run
            return
        else:
            with self._lock:
                self._in_file.clear()
            recording = Recording(self, self._file_of(start.ids.run_id), engine)
            engine.set_boundary(recording)
            unsubscribe = ctx.interrupt.record(recording.cancelled)
        with self._lock:
            self._recordings[ctx.run_id] = recording
            self._in_file.add(ctx.run_id)
        try:
            with in_lane(engine.services.lane):
                recording.run_started(engine, start)
                yield
        finally:
            with self._lock:
                del self._recordings[ctx.run_id]
            recording.run_ended(engine)
            if unsubscribe is not None:
                unsubscribe()
            if engine is recording.root:
                recording.close()

    def _file_of(self, run_id: str) -> str:
        return self._path if self._is_file else os.path.join(self._path, file_name_for(run_id) + TAPE_SUFFIX)


class Recording(Boundary):
    """One tape being written: a boundary that records what the boundary behind it (``inner``) returns."""

    is_direct = False

    def __init__(self, owner: TapeHook, path: str, engine: Engine) -> None:
        self.owner, self.problem = owner, ""
        self._path, self.inner, self.root = path, engine.boundary, engine
        self.is_durable, self.continues = self.inner.is_durable, self.inner.continues
        self._outer_hooks = running_hooks()
        self._lock = threading.RLock()
        self._numbers = count(1)
        self.digests = RequestDigests()
        self._counts: set[str] = set()
        if engine.services.lane is None:
            engine.services.lane = Lane()
        self._lane = lane = engine.services.lane
        """The lane of the recorded run."""
        self._outer, self._tools = len(lane.on_tape), len(lane.tools)
        self._readings: dict[str, list[tuple[str, Any]]] = {}
        self._timers: dict[str, int] = {}
        self._awake = Awake()
        self._interruptions: list[tuple[int, int]] = []
        """The cancellations of the task that were not taken back: their level and their number."""
        self._clock = real_clock(engine.environment.clock)
        self._monotonic = self._clock.monotonic
        self._started = self._monotonic()
        self._lines: list[Line] = []
        """Lines for the next flush. All values in them are immutable, so they can be encoded then.

        There is no lock: threads may append while another one flushes, because a list is changed in one operation.
        """
        self._moments = RunTree(take=self._lines.append)
        self._encoders: dict[str, MomentEncoder] = {}
        self._engines: dict[str, Engine] = {}
        """The runs on the tape that have not ended, by id."""
        self._flushed = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._file: int | None = None
        try:
            self._file = _opened(path)
            remove_contents(f"{path}{ATTACHMENTS_SUFFIX}")  # of the tape that this one replaces
        except OSError as error:
            self._fail(error)
        now = self._clock.time()
        self.write(fmt.HeaderEntry, version=TAPE_VERSION, hookline=__version__, time=now, monotonic=self._started)
        install_sources(engine, self)

    # The life of a run: as without a tape.

    async def execute(self, engine: Engine, start: RunStart, work: Callable[[], Awaitable[T]]) -> T:
        """Execute a run inside the recorded one, and record if it is cancelled alone, whichever hooks it has."""
        unsubscribe = engine.services.interrupt.record(partial(self.nested_cancelled, engine))
        try:
            return await self.inner.execute(engine, start, work)
        finally:
            unsubscribe()

    def signalled(self, engine: Engine, signal: StopSignal) -> None:
        """Handle a stop signal that was set in a run. Its event is on the tape."""
        self.inner.signalled(engine, signal)

    def journal_of(self, engine: Engine) -> Any:
        """Return the durable run whose outermost run this is, or ``None``."""
        return self.inner.journal_of(engine)

    def hand_off(self, run_id: str, agent: str, task: str) -> None:
        """Note that another agent continues the conversation after this run."""
        self.inner.hand_off(run_id, agent, task)

    def sinks_of(self, ids: Ids) -> tuple[Sink, ...]:
        """Return the sinks that the boundary adds to a run."""
        return self.inner.sinks_of(ids)

    def put_record(self, database: Any, record: Any) -> bool:
        """Store a record about the run with its journal, if that is in this database. Return whether it will be."""
        return self.inner.put_record(database, record)

    def is_new(self, event: Event) -> bool:
        """Return whether an event was not delivered before."""
        return self.inner.is_new(event)

    def is_repeating(self) -> bool:
        """Return whether the current task repeats what an earlier process did."""
        return self.inner.is_repeating()

    def call_observers(self, firing: Firing, verdict: Verdict) -> Awaitable[None]:
        """Call the observers of a fire, unless they have been called before."""
        return self.inner.call_observers(firing, verdict)

    # The stop switch: a replay finds a halt by the signal that it set.

    def find_halt(self, engine: Engine) -> StopSignal | None:
        """Return the signal that stops a run because it is halted."""
        return self.inner.find_halt(engine)

    async def wait_while_halted(self, engine: Engine) -> None:
        """Wait before a call if the run is halted and can go on later."""
        await self.inner.wait_while_halted(engine)

    # Readings and timers.

    def read(self, kind: str, real: Callable[[], Any]) -> Any:
        """Read a value and record it."""
        value = real()
        lane, inside = self._place()
        if not inside:
            readings = self._readings.get(lane)
            if readings is None:
                self._readings[lane] = [(kind, value)]
            else:
                readings.append((kind, value))
        return value

    def set_timer(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Any:
        """Set a timer, and record when it fires."""
        lane, _ = self._place()
        with self._lock:
            self._timers[lane] = number = self._timers.get(lane, 0) + 1

        def fire() -> None:
            self.write(fmt.TimerEntry, number=number)
            callback()

        return super().set_timer(clock, seconds, partial(contextvars.copy_context().run, fire))

    def _place(self) -> tuple[str, str]:
        """Return the lane of the current task on this tape, and that of the tool call that the task is part of."""
        lane = LANE.get()
        if lane is None or lane.tree is not self._lane.tree:
            return "", ""
        if not self._outer and not lane.tools:  # nearly always
            return lane.on_tape, ""
        tools = lane.tools[self._tools :]
        return lane.on_tape[self._outer :], tools[0].on_tape[self._outer :] if tools else ""

    def _is_within(self) -> bool:
        """Return whether the current task is part of the recorded run."""
        lane = LANE.get()
        return lane is not None and lane.tree is self._lane.tree and lane.on_tape.startswith(self._lane.on_tape)

    def write(self, kind: type[fmt.TapeEntry], **fields: Any) -> None:
        """Write an entry."""
        lane, inside = self._place()
        at = round(self._monotonic() - self._started, 6)
        lines = self._lines
        lines.append(kind(at, inside, lane, self._readings.pop(lane, ()), **fields))
        if len(lines) > MAX_LINES:
            self.flush()

    def flush_soon(self) -> None:
        """Write the lines so far to the file: at once, or with others if that was done less than a moment ago.

        This is called before anything that may take long or end the program.
        """
        if time.monotonic() - self._flushed >= FLUSH_SECONDS:
            self.flush()
        elif self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_SECONDS, self.flush)

    def flush(self) -> None:
        """Write the lines so far to the file."""
        with self._lock:
            timer, self._timer = self._timer, None
            if timer is not None:
                timer.cancel()
            self._flushed = time.monotonic()
            lines = self._lines[:]
            del self._lines[: len(lines)]
            if self._file is None:
                return
            data, problem = _encoded(lines)
            try:
                data = encrypted_lines(data)
                while data:  # a signal may interrupt a write
                    data = data[os.write(self._file, data) :]
            except (OSError, DataKeyError, NotInstalledError) as error:
                problem = problem or error
            if problem is not None:
                self._fail(problem)

    def _fail(self, error: Exception) -> None:
        self.problem = f"the tape {self._path} cannot be written: {error}"
        log.warning("%s", self.problem)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                os.close(file)

    def close(self) -> None:
        """Write the remaining lines and close the file."""
        with self._lock:
            for lane, values in self._readings.items():
                self._lines.append(fmt.ReadingsEntry(lane=lane, readings=values))
            self.flush()
            file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def run_started(self, engine: Engine, start: RunStart) -> None:
        """Record the start of a run."""
        ctx, session, state, budget = engine.ctx, engine.services.session, engine.state, engine.budget
        llm, tools = engine.services.llm, engine.tools
        offered: tuple[ToolSpec, ...] = ()
        with suppress(HooklineError):  # the run itself reports a tool that cannot be offered
            offered = tools.offered(ctx)
        self.write(
            fmt.RunEntry,
            ids=start.ids,
            task=start.task,
            attachments=start.attachments,
            instructions=state.system_prompt,
            metadata=plain(state.metadata),
            response_format=plain(state.response_format),
            messages=tuple(state.messages),
            session=fmt.RecordedSession(
                session.id,
                session.key,
                session.platform,
                session.personality_id,
                plain(session.personality_changes),
                not session.started,
            ),
            tools=_recorded_tools(tools, offered),
            model=llm.name if llm is not None else "",
            provider=llm.provider if llm is not None else "",
            limits=budget.without_hooks,
            budgets=tuple(_outer_budgets(budget)),
            allowed_plugins=ctx.allowed_plugins,
            stream="live" if engine.live else "safe",
        )
        self._save_contents([*start.attachments, *(each for m in state.messages for each in m.attachments)])
        self._engines[start.ids.run_id] = engine
        self._record_moments(engine, start)

    def _save_contents(self, attachments: Sequence[Attachment]) -> None:
        """Save the contents of attachments beside the tape, which contains their digests."""
        if attachments and self._file is not None:
            try:
                save_contents(f"{self._path}{ATTACHMENTS_SUFFIX}", attachments)
            except OSError as error:
                self._fail(error)

    def _record_moments(self, engine: Engine, start: RunStart) -> None:
        """Record the fires of the run's points as moments."""
        run_id, outer = start.ids.run_id, self._encoders.get(start.ids.parent_run_id)
        digest, hooks = describe_hooks(engine.hooks.stack)
        self._moments.line("hooks", digest, hooks)
        points = fmt.recorded_points()
        info = run_info(engine, start, digest, None if outer is None else outer.number)
        encoder = MomentEncoder(self._moments, info, points, place=self._place_of_moment)
        self._encoders[run_id] = encoder
        engine.add_fire_observer(OrderedFires(engine, encoder))

    def run_ended(self, engine: Engine) -> None:
        """Record the end of a run."""
        run_id = engine.ids.run_id
        self._engines.pop(run_id, None)
        encoder = self._encoders.pop(run_id, None)
        if encoder is not None:
            encoder.finish(engine.result)

    def _place_of_moment(self) -> tuple[Any, ...]:
        """Return where the moment that is about to be written belongs in a replay."""
        lane, inside = self._place()
        readings = self._readings.pop(lane, None)
        return (lane, inside) if readings is None else (lane, inside, readings)

    def event(self, event: Event) -> None:
        """Record an event."""
        lane, inside = self._place()
        lines = self._lines
        lines.append(fmt.EventEntry(NO_TIME, inside, lane, self._readings.pop(lane, ()), event))
        if len(lines) > MAX_LINES:
            self.flush()

    def steer(self, engine: Engine, message: Message) -> bool:
        """Add a message to a run before its next model call. Return false if there will be none in this process."""
        return self.inner.steer(engine, message)

    def steered(self, run_id: str, message: Message) -> None:
        """Record a message that was sent into a run."""
        self._save_contents(message.attachments)
        self.write(fmt.SteeringEntry, run=run_id, text=message.content, attachments=message.attachments)
        self.inner.steered(run_id, message)

    def watch(self, engine: Engine, work: Awaitable[T]) -> Awaitable[T]:
        """Record where the task of the outermost run is cancelled, before the run sees the exception."""
        work = self.inner.watch(engine, work)
        return watch_await(work, cancelled=self._interrupted) if engine is self.root else work

    def _interrupted(self) -> None:
        """Record that the task of the run was cancelled, unless the run did that itself."""
        task = asyncio.current_task()
        if task is not None and self.root.cancellation.cancelled_from_outside:
            level = task.cancelling()
            # A hook that limits its own time takes its cancellation back, so that the next one has the same level.
            self._interruptions = [pair for pair in self._interruptions if pair[0] < level]
            self._interruptions.append((level, self.number()))
            self.write(fmt.InterruptionEntry, number=self._interruptions[-1][1])

    async def await_hook(
        self, firing: Firing, hook: HookEntry, result: Awaitable[Any], limit: float | None, is_grace: bool
    ) -> Any:
        """Await a hook, and record when and how that ended."""
        lane, _ = self._place()
        interrupted = waited = timed_out = False

        def suspended() -> None:
            nonlocal waited
            waited = True
            self._awake.waits(lane)

        def cancelled() -> None:
            nonlocal interrupted
            interrupted = True

        try:
            work = self.inner.await_hook(firing, hook, result, limit, is_grace)
            return await watch_await(work, suspended=suspended, cancelled=cancelled)
        except StillRunningError:
            timed_out = True
            raise
        finally:
            if (
                interrupted and firing.scope.cancellation.is_cancelled()
            ):  # a hook that limits its own time takes it back
                self.write(fmt.HookInterruptionEntry, point=hook.point, hook=hook.name)
            elif waited and self._awake.is_asleep(lane):
                self._woke(wakeup_after(hook), timed_out=timed_out)

    async def wake_up(self, name: str, *, waited: bool = True) -> None:
        """Record that an await of the run's own code has ended."""
        await self.inner.wake_up(name, waited=waited)
        if waited:
            self._woke(name)

    def _woke(self, name: str, *, timed_out: bool = False) -> None:
        """Record a wakeup. Values that were read before belong to the next entry that a replay compares."""
        lane, inside = self._place()
        if not inside:
            self._awake.continued(lane)
            self._lines.append(fmt.WakeupEntry(0.0, "", lane, (), name, timed_out))

    def answered(self, kind: type[fmt.TapeEntry], **fields: Any) -> None:
        """Record an answer, at which the current task continues."""
        lane, _ = self._place()
        self._awake.continued(lane)
        self.write(kind, **fields)

    def cancelled(self, reason: str) -> None:
        """Record the cancellation of the run."""
        by_caller = self.root.cancellation.by_caller and self._interruptions
        number = self._interruptions[0][1] if by_caller else 0
        within = self._is_within()
        lane, inside = self._place()
        is_called_again = not inside and not lane.endswith("?")  # a replay calls no approver
        by_hook = within and is_called_again and running_hooks() > self._outer_hooks
        self.write(fmt.CancellationEntry, reason=reason, interruption=number, within=within, by_hook=by_hook)

    def nested_cancelled(self, engine: Engine, reason: str) -> None:
        """Record that a nested run was cancelled alone, unless the run's own code did it, which a replay executes."""
        outer, (_, inside) = self._engines.get(engine.ids.parent_run_id), self._place()
        by_outer = outer is not None and outer.services.interrupt.cancelled
        if by_outer or (self._is_within() and not inside):
            return
        run = engine.services.lane
        assert run is not None  # it is recorded
        self.write(fmt.CancellationEntry, run=run.on_tape[self._outer :], reason=reason)

    def number(self) -> int:
        """Return the next free number."""
        return next(self._numbers)

    # The calls of the run.

    async def complete(
        self, model: Model, request: ModelRequest, call: Callable[[], Awaitable[ModelResponse]]
    ) -> ModelResponse:
        """Call a model and record its reply."""
        number = self._model_request(model, request)
        ended: dict[str, Any] = {}
        try:
            response = await self.inner.complete(model, request, call)
            ended = _reply_fields(model, response)
            return response
        except BaseException as error:
            ended = outcome_of(error)
            raise
        finally:
            self.answered(fmt.ModelReplyEntry, number=number, **ended)

    async def stream(
        self, model: Model, request: ModelRequest, call: Callable[[], AsyncIterator[str | ModelResponse]]
    ) -> AsyncIterator[str | ModelResponse]:
        """Yield the pieces of a reply, and then the reply, and record them."""
        number, given = self._model_request(model, request), self.inner.stream(model, request, call)
        pieces: list[str] = []
        ended: dict[str, Any] = {}
        response: ModelResponse | None = None
        try:
            async for piece in given:
                if isinstance(piece, ModelResponse):
                    response, ended = piece, _reply_fields(model, piece)
                    break
                pieces.append(piece)
                yield piece
        except GeneratorExit:
            task = asyncio.current_task()
            ended = {"cancelled" if task is not None and task.cancelling() else "closed": True}
            raise
        except BaseException as error:
            ended = outcome_of(error)
            raise
        finally:
            try:
                await close_stream(given)
            finally:  # at last: the run continues here
                self.answered(fmt.ModelReplyEntry, number=number, pieces=tuple(pieces), **ended)
        if response is not None:
            yield response

    def counted(self, model: Model, key: str, count: Callable[[], Any], estimate: Callable[[], Any]) -> Any:
        """Return a number from a model, and record it once for each key."""
        value = self.inner.counted(model, key, count, estimate)
        with self._lock:
            if key not in self._counts:
                self._counts.add(key)
                self.write(fmt.CountEntry, key=key, value=value)
        return value

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> CheckedArguments | str:
        """Validate arguments with the tool, and record arguments that it changes or rejects."""
        checked = self.inner.validate(tool, arguments)
        if isinstance(checked, str):
            self.write(fmt.ValidationEntry, tool=tool.name, arguments=arguments, problem=checked)
        elif checked.arguments != arguments:
            self.write(fmt.ValidationEntry, tool=tool.name, arguments=arguments, checked=checked.arguments)
        return checked

    def was_changed(self, request: ToolCallRequest, changed: bool, *, after_approvals: bool) -> bool:
        """Return whether a hook changed the arguments of a call in place after they were validated."""
        return self.inner.was_changed(request, changed, after_approvals=after_approvals)

    async def call_tool(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
        """Call the tool and record its result."""
        self.write(fmt.ToolCallEntry, run=request.ids.run_id, request=slim(request), runs_agents=tool.runs_agents)
        self.flush_soon()
        result: dict[str, Any] = {}
        if ctx is not None and not tool.runs_agents and not self._place()[1]:
            ctx = self._with_progress(ctx)
        try:
            value = await self.inner.call_tool(request, tool, values, ctx)
            own, attachments = take_attachments(value)
            result["value"] = jsonable(own)
            if attachments:
                result["attachments"] = attachments
                self._save_contents(attachments)
            return value
        except StillRunningError:
            result["timed_out"] = True
            raise
        except BaseException as error:
            result = {"refused": isinstance(error, CallRefusedError), **outcome_of(error)}
            raise
        finally:
            self.write(fmt.ToolResultEntry, **result)

    def _with_progress(self, ctx: AgentContext[Any]) -> AgentContext[Any]:
        """Return a context for a call whose progress reports are recorded in the run, where hooks see them."""
        progress, lane = progress_reporter_of(ctx), LANE.get()
        assert progress is not None and lane is not None  # noqa: PT018 - the context of a tool call that is recorded
        of_reports = lane.of_progress()

        def report(fraction: float | None, message: str) -> None:
            with in_lane(of_reports):
                self.write(fmt.ToolProgressEntry, fraction=fraction, message=message)
                progress(fraction, message)

        return context_for_call(ctx, report)

    async def approve(
        self, asked: ApprovalRequest, ask: Callable[[], Awaitable[Verdict]], report: Callable[..., Awaitable[Any]]
    ) -> Verdict:
        """Ask the approvers and record their decision."""
        call = asked.call
        decision: dict[str, Any] = {}
        self.flush_soon()
        try:
            verdict = await self.inner.approve(asked, ask, report)
            decision = {"answer": verdict.value, "by": verdict.hook, "failures": verdict.failures}
            return verdict
        except HookError as error:
            decision["failures"] = error.verdict.failures if error.verdict is not None else ()
            decision["failed"] = failed_approver(error)
            raise
        except BaseException:
            decision["cancelled"] = True
            raise
        finally:
            called = {"run": call.ids.run_id, "call_id": call.id, "attempt": call.attempt}
            self.write(fmt.ApprovalEntry, **called, **decision)

    async def once(self, name: str, read: Callable[[], Awaitable[Any]]) -> Any:
        """Read a value for a hook and record it."""
        result: dict[str, Any] = {}
        try:
            result["value"] = value = await self.inner.once(name, read)
            return value
        except BaseException as error:
            result = outcome_of(error)
            raise
        finally:
            self.answered(fmt.OnceEntry, name=name, **result)

    def _model_request(self, model: Model, request: ModelRequest) -> int:
        """Record a request to the model and return its number."""
        run, number = request.ids.run_id, self.number()
        engine, digests = self._engines.get(run), self.digests.of(request)
        if engine is None or engine.events.is_in_other_thread:  # the moment of its fire may follow
            parts = {name: getattr(request, name) for name in fmt.REQUEST_PARTS if name != "messages"}
            changed = {**parts, **changes(NO_REQUEST, request, ("messages",))}
        else:
            arrived = self._encoders[run].request
            changed = {} if arrived is request else changes(arrived, request, fmt.REQUEST_PARTS)
        self.write(
            fmt.ModelRequestEntry,
            number=number,
            run=run,
            purpose=request.purpose,
            changed=changed,
            model=model.name,
            provider=model.provider,
            digests=digests,
        )
        self.flush_soon()
        return number


def _encoded(lines: Sequence[Line]) -> tuple[bytes, Exception | None]:
    """Encode lines. If one of them cannot be encoded, return those before it and the error."""
    try:
        return json_encoder.encode_lines(lines), None
    except Exception:  # noqa: BLE001 - a payload or an event of the program may contain anything
        pass  # find the line
    data = []
    for line in lines:
        try:
            data.append(_encoded_line(line))
        except Exception as error:  # noqa: BLE001 - the run reports it
            return b"".join(data), error
    return b"".join(data), None


def _encoded_line(line: Line) -> bytes:
    try:
        return encode_line(line)
    except Exception:
        if isinstance(line, tuple) and line[0] not in NOT_MOMENTS:
            return encode_line(without_payload(line))
        raise


_tools: WeakKeyDictionary[ToolRegistry, tuple[tuple[ToolSpec, ...], str, tuple[fmt.RecordedTool, ...]]] = (
    WeakKeyDictionary()
)
"""By registry, the tools of the last run: what was offered, the working folder, and the recorded tools."""


def _recorded_tools(tools: ToolRegistry, offered: tuple[ToolSpec, ...]) -> tuple[fmt.RecordedTool, ...]:
    """Describe the tools of a run. They are usually those of the last run with this registry, which is immutable."""
    folder = ""
    with suppress(OSError):  # somebody has deleted it
        folder = os.getcwd()
    known = _tools.get(tools)
    if known is None or known[0] is not offered or known[1] != folder:
        specs = {spec.name: spec for spec in offered}
        known = _tools[tools] = offered, folder, tuple(_recorded_tool(tool, specs) for tool in tools)
    return known[2]


def _recorded_tool(tool: Tool, offered: Mapping[str, Any]) -> fmt.RecordedTool:
    return fmt.RecordedTool(
        offered.get(tool.name) or tool.spec,
        tool.name in offered,
        tool.folder,
        tool.timeout,
        tool.untrusted,
        tool.dangerous,
        None if tool.effects is None else tuple(sorted(tool.effects)),
        tool.sandbox,
        tuple(sorted(tool._path_params)),
        tuple(sorted(tool.texts)),
    )


def _outer_budgets(budget: Budget) -> Iterator[fmt.RecordedBudget]:
    """Yield the outer budgets that the usage of a run is charged to."""
    for outer in list(budget.chain())[1:]:
        yield fmt.RecordedBudget(
            outer.limits,
            outer._input,
            outer._output,
            outer._cached,
            outer._cost,
            outer._priced,
            outer.tool_calls,
            None if outer._began is None else outer.elapsed,
        )


def _opened(path: str) -> int:
    """Create a file that only its owner may read. A link or an older tape at the path is replaced."""
    create = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    try:
        return os.open(path, create, 0o600)
    except FileNotFoundError:
        os.makedirs(os.path.dirname(path), 0o700, exist_ok=True)
    except FileExistsError:
        os.unlink(path)
    return os.open(path, create, 0o600)


def _reply_fields(model: Model, response: Any) -> dict[str, Any]:
    if isinstance(response, ModelResponse):
        return {"response": slim(response)}
    return {"raised": wrong_reply(model, response)}
