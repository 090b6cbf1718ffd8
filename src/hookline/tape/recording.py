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
from .._kernel.points import APPROVAL_REQUESTED, ON_RUN_END
from .._kernel.results import Verdict
from .._kernel.validation import check_path
from .._kernel.values import ErrorInfo, Ids, Message, ModelResponse, ToolSpec
from .._run.boundary import Boundary, close_stream
from .._run.budget import Budget
from .._run.context import AgentContext, context_for_call, progress_reporter_of
from .._run.engine import Engine
from .._run.events import AllEventsExcept, Sink, ToolStarted, log
from .._run.replay_values import ErrorSnapshot, RequestDigests, outcome_of
from .._run.sources import install_sources, real_clock
from ..models.protocol import Model
from ..records.encoding import MomentEncoder, RunTree, changes, describe_hooks, encode_line, slim, without_payload
from ..records.format import NOT_MOMENTS, TAPE_SUFFIX, TAPE_VERSION
from ..records.hook import run_info
from ..tools._tool import CheckedArguments, Tool, jsonable, take_attachments
from ..tools.registry import ToolRegistry
from . import format as fmt
from .format import TapeError
from .order import PLACE
from .tape import TEXT_EVENTS

T = TypeVar("T")

Line = fmt.TapeEntry | tuple[Any, ...]
"""An entry, or the items of a line of a record."""

_places, _START = PLACE.values, PLACE.default  # read often, so without a function call

NO_TIME = fmt.TapeEntry().at
"""The time of an entry whose event has one. The encoder leaves out a default value only if it is the same object."""

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
        ctx, outer, unsubscribe = engine.ctx, engine.boundary, None
        while isinstance(outer, Recording) and outer.owner is not self:
            outer = outer.inner
        if isinstance(outer, Recording):
            recording = outer
            place = recording.enter_run(engine)
        elif self._is_file and start.ids.parent_run_id in self._in_file:
            self._in_file.add(start.ids.run_id)
            yield  # a detached run would replace the tape of its outer run
            return
        else:
            with self._lock:
                self._in_file.clear()
            recording = Recording(self, self._file_of(start.ids.run_id), engine)
            engine.set_boundary(recording)
            place = PLACE.set(recording, (0, 0))  # so that it can be reset: the task of the caller may go on for long
            unsubscribe = ctx.interrupt.subscribe(recording.cancelled)
        with self._lock:
            self._recordings[ctx.run_id] = recording
            self._in_file.add(ctx.run_id)
        try:
            recording.run_started(engine, start)
            yield
        finally:
            with self._lock:
                del self._recordings[ctx.run_id]
            recording.run_ended(ctx.run_id)
            PLACE.reset(place)
            if unsubscribe is not None:
                unsubscribe()
                recording.close()

    def _file_of(self, run_id: str) -> str:
        return self._path if self._is_file else os.path.join(self._path, file_name_for(run_id) + TAPE_SUFFIX)


class Recording(Boundary):
    """One tape being written: a boundary that records what the boundary behind it (``inner``) returns."""

    is_direct = False

    def __init__(self, owner: TapeHook, path: str, engine: Engine) -> None:
        self.owner, self.problem = owner, ""
        self._path, self.inner, self._root = path, engine.boundary, engine
        self.is_durable, self.continues = self.inner.is_durable, self.inner.continues
        self._lock = threading.RLock()
        self._numbers = count(1)
        self.digests = RequestDigests()
        self._counts: set[str] = set()
        self._readings: dict[int, list[tuple[str, Any]]] = {}
        self._timers: dict[int, int] = {}
        self._run_places: dict[str, tuple[int, int]] = {}
        """The places of the nested runs, by id."""
        self._call_places: dict[tuple[str, str], tuple[int, int]] = {}
        """The places of the tools that are being called, by run and id of the call."""
        self._awake: dict[int, asyncio.Task[Any] | None] = {}
        """By branch, the task that has continued at an entry of the tape and has not waited since."""
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

    def execute(self, engine: Engine, start: RunStart, work: Callable[[], Awaitable[T]]) -> Awaitable[T]:
        """Execute a nested run."""
        return self.inner.execute(engine, start, work)

    def journal_of(self, engine: Engine) -> Any:
        """Return the durable run whose outermost run this is, or ``None``."""
        return self.inner.journal_of(engine)

    def hand_off(self, run_id: str, agent: str, task: str) -> None:
        """Note that another agent continues the conversation after this run."""
        self.inner.hand_off(run_id, agent, task)

    def sinks_of(self, ids: Ids) -> tuple[Sink, ...]:
        """Return the sinks that the boundary adds to a run."""
        return self.inner.sinks_of(ids)

    def is_new(self, event: Event) -> bool:
        """Return whether an event was not delivered before."""
        return self.inner.is_new(event)

    def call_observers(self, firing: Firing, verdict: Verdict) -> Awaitable[None]:
        """Call the observers of a fire, unless they have been called before."""
        return self.inner.call_observers(firing, verdict)

    # Readings and timers.

    def read(self, kind: str, real: Callable[[], Any]) -> Any:
        """Read a value and record it."""
        value = real()
        branch, inside = _places.get().get(self, _START)
        if not inside:
            readings = self._readings.get(branch)
            if readings is None:
                self._readings[branch] = [(kind, value)]
            else:
                readings.append((kind, value))
        return value

    def set_timer(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Any:
        """Set a timer, and record when it fires."""
        branch, _ = PLACE.get(self)
        with self._lock:
            self._timers[branch] = number = self._timers.get(branch, 0) + 1

        def fire() -> None:
            self.write(fmt.TimerEntry, number=number)
            callback()

        return super().set_timer(clock, seconds, partial(contextvars.copy_context().run, fire))

    def enter_branch(self, branch: int, run: str = "", call_id: str = "", attempt: int = 0) -> Any:
        """Start a branch for this task and the tasks that it starts. ``PLACE.reset`` takes the returned token."""
        parent, inside = PLACE.get(self)
        token = PLACE.set(self, (branch, inside))
        self.write(fmt.BranchEntry, parent=parent, run=run, call_id=call_id, attempt=attempt)
        return token

    def enter_run(self, engine: Engine) -> Any:
        """Start the branch of a nested run, and return a token as :meth:`enter_branch` does.

        In a thread without a copy of the context, ``ctx=`` says which tool or run the code is part of.
        """
        ids = engine.ids
        if self not in _places.get():
            outer = self._run_places.get(ids.parent_run_id, _START)
            PLACE.set(self, self._call_places.get((ids.parent_run_id, engine.services.call_id), outer))
        token = self.enter_branch(self.number(), ids.run_id)
        self._run_places[ids.run_id] = PLACE.get(self)
        return token

    def write(self, kind: type[fmt.TapeEntry], **fields: Any) -> None:
        """Write an entry."""
        branch, inside = _places.get().get(self, _START)
        at = round(self._monotonic() - self._started, 6)
        lines = self._lines
        lines.append(kind(at, inside, branch, self._readings.pop(branch, ()), **fields))
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
                while data:  # a signal may interrupt a write
                    data = data[os.write(self._file, data) :]
            except OSError as error:
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
            for branch, values in self._readings.items():
                self._lines.append(fmt.ReadingsEntry(branch=branch, readings=values))
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
        encoder = MomentEncoder(self._moments, info, points, place=self._place)
        self._encoders[run_id] = encoder
        engine.add_fire_observer(encoder)

    def run_ended(self, run_id: str) -> None:
        """Record the end of a run."""
        self._run_places.pop(run_id, None)
        encoder = self._encoders.pop(run_id, None)
        if encoder is not None:
            encoder.finish()

    def _place(self) -> tuple[Any, ...]:
        """Return where the moment that is about to be written belongs in a replay."""
        branch, inside = _places.get().get(self, _START)
        readings = self._readings.pop(branch, None)
        return (branch, inside) if readings is None else (branch, inside, readings)

    def event(self, event: Event) -> None:
        """Record an event."""
        if type(event) is ToolStarted:  # the calls of a batch run concurrently, each in its own task
            self.enter_branch(self.number(), event.run_id, event.call_id, event.attempt)
        branch, inside = _places.get().get(self, _START)
        lines = self._lines
        lines.append(fmt.EventEntry(NO_TIME, inside, branch, self._readings.pop(branch, ()), event))
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
        return watch_await(work, cancelled=self._interrupted) if engine is self._root else work

    def _interrupted(self) -> None:
        """Record that the task of the run was cancelled, unless the run did that itself."""
        task = asyncio.current_task()
        if task is not None and self._root.cancellation.cancelled_from_outside:
            level = task.cancelling()
            # A hook that limits its own time takes its cancellation back, so that the next one has the same level.
            self._interruptions = [pair for pair in self._interruptions if pair[0] < level]
            self._interruptions.append((level, self.number()))
            self.write(fmt.InterruptionEntry, number=self._interruptions[-1][1])

    async def await_hook(
        self, firing: Firing, hook: HookEntry, result: Awaitable[Any], limit: float | None, is_grace: bool
    ) -> Any:
        """Await a hook, and record when and how that ended."""
        branch, _ = _places.get().get(self, _START)
        interrupted = waited = timed_out = False

        def suspended() -> None:
            nonlocal waited
            waited = True
            self._awake.pop(branch, None)

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
            elif waited and self._awake.get(branch) is not asyncio.current_task():
                self._woke(f"{hook.point} {hook.name}", timed_out=timed_out)

    async def wake_up(self, name: str, *, waited: bool = True) -> None:
        """Record that an await of the run's own code has ended."""
        await self.inner.wake_up(name, waited=waited)
        if waited and self in _places.get():  # a run that begins in a thread without a copy of the context has no place
            self._woke(name)

    def _woke(self, name: str, *, timed_out: bool = False) -> None:
        """Record a wakeup. Values that were read before belong to the next entry that a replay compares."""
        branch, inside = _places.get().get(self, _START)
        if not inside:
            self._awake[branch] = asyncio.current_task()
            self._lines.append(fmt.WakeupEntry(0.0, 0, branch, (), name, timed_out))

    def answered(self, kind: type[fmt.TapeEntry], **fields: Any) -> None:
        """Record an answer, at which the current task continues."""
        branch, _ = _places.get().get(self, _START)
        self._awake[branch] = asyncio.current_task()
        self.write(kind, **fields)

    def cancelled(self, reason: str) -> None:
        """Record the cancellation of the run."""
        by_caller = self._root.cancellation.by_caller and self._interruptions
        number = self._interruptions[0][1] if by_caller else 0
        self.write(fmt.CancellationEntry, reason=reason, interruption=number, within=self in _places.get())

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
        number, pieces = self._model_request(model, request), list[str]()
        given, ended = self.inner.stream(model, request, call), dict[str, Any]()
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

    async def call_tool(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
        """Call the tool and record its result."""
        number, called = self.number(), (request.ids.run_id, request.id)
        branch = self.enter_branch(number)
        self.write(
            fmt.ToolCallEntry,
            number=number,
            run=request.ids.run_id,
            request=slim(request),
            runs_agents=tool.runs_agents,
        )
        self.flush_soon()
        result: dict[str, Any] = {}
        is_inside = tool.runs_agents or PLACE.get(self)[1]
        inside = None if is_inside else PLACE.set(self, (number, number))
        given = ctx if ctx is None or inside is None else self._with_progress(ctx, number)
        self._call_places[called] = PLACE.get(self)
        try:
            value = await self.inner.call_tool(request, tool, values, given)
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
            self._call_places.pop(called, None)
            if inside is not None:
                PLACE.reset(inside)
            self.write(fmt.ToolResultEntry, number=number, **result)
            PLACE.reset(branch)

    def _with_progress(self, ctx: AgentContext[Any], number: int) -> AgentContext[Any]:
        """Return a context for a call whose progress reports are recorded in the run, where hooks see them."""
        progress = progress_reporter_of(ctx)
        assert progress is not None  # ``ctx`` is the context of a tool call

        def report(fraction: float | None, message: str) -> None:
            place = PLACE.set(self, (-number, 0))
            try:
                self.write(fmt.BranchEntry, parent=number)
                self.write(fmt.ToolProgressEntry, number=number, fraction=fraction, message=message)
                progress(fraction, message)
            finally:
                PLACE.reset(place)

        return context_for_call(ctx, report)

    async def approve(
        self, asked: ApprovalRequest, ask: Callable[[], Awaitable[Verdict]], report: Callable[..., Awaitable[Any]]
    ) -> Verdict:
        """Ask the approvers and record their decision."""
        call = asked.call
        self.enter_branch(number := self.number())
        decision: dict[str, Any] = {}
        self.flush_soon()
        try:
            verdict = await self.inner.approve(asked, ask, report)
            decision = {"answer": verdict.value, "by": verdict.hook, "failures": verdict.failures}
            return verdict
        except HookError as error:
            decision["failures"] = error.verdict.failures if error.verdict is not None else ()
            if error.point == APPROVAL_REQUESTED:
                decision["failed"] = ErrorInfo("hook", type(error.cause).__name__, str(error), error.hook)
            raise
        except BaseException:
            decision["cancelled"] = True
            raise
        finally:
            called = {"run": call.ids.run_id, "call_id": call.id, "attempt": call.attempt}
            self.write(fmt.ApprovalEntry, number=number, **called, **decision)

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
        encoder = self._encoders.get(run)
        arrived = ModelRequest() if encoder is None else encoder.request
        changed = {} if arrived is request else changes(arrived, request, fmt.REQUEST_PARTS)
        digests = self.digests.of(request)
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
    wrong = f"model {model.name!r} returned {type(response).__name__}, not a ModelResponse"
    return {"raised": ErrorSnapshot("ModelError", wrong, "model")}
