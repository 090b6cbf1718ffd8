"""Record a run to a tape."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from .._base.files import file_name_for
from .._base.frozen import plain
from .._base.own_files import OwnFile, register_own_file
from .._base.package import __version__
from .._kernel.errors import CallRefusedError, HookError, HooklineError, RegistrationError
from .._kernel.events import Event, PointFired
from .._kernel.payloads import ApprovalRequest, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import APPROVAL_REQUESTED, ON_RUN_END, ON_TOKEN
from .._kernel.results import HookAction, Verdict
from .._kernel.validation import check_path
from .._kernel.values import ErrorInfo, Message, ModelResponse, ToolSpec, Usage
from .._run.budget import Budget
from .._run.context import AgentContext, context_for_call, progress_reporter_of
from .._run.engine import Engine
from .._run.events import ToolStarted, log
from ..models.protocol import Model
from ..tools._tool import CheckedArguments, Tool, jsonable
from . import format as fmt
from .format import TapeError
from .order import BRANCH, INSIDE_CALL
from .sources import install_sources, real_clock

SUFFIX = ".tape"


class TapeHook:
    """Record each run to a tape, which :func:`hookline.replay` and ``hookline replay`` can play again.

    The tape holds the requests to the model and its replies, the calls of tools and their results, the decisions of
    approvers, the values that hooks read from ``ctx.clock``, ``ctx.random`` and ``ctx.new_id``, every event with every
    decision, and the same for nested runs. It is as confidential as the conversation, so only its owner may read the
    file. If the tape cannot be written, the run goes on and reports this in its errors.

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

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(check_path(path, f"path must be a file that ends in {SUFFIX}, or a folder"))
        self._is_file = self.path.suffix == SUFFIX
        if self.path.is_dir() if self._is_file else self.path.is_file():
            problem = "is a folder" if self._is_file else f"is a file, but its name does not end in {SUFFIX}"
            raise RegistrationError(f"{self.path} {problem}: give TapeHook another path")
        tape = OwnFile(str(self.path), "Hookline's tape of a run", beside=self._is_file, is_folder=not self._is_file)
        register_own_file(self, tape)
        self._lock = threading.Lock()
        self._recordings: dict[str, Recording] = {}

    @property
    def own_files(self) -> tuple[str, ...]:
        """The files that tools may not change."""
        return (str(self.path),)

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Report a tape that could not be written."""
        recording = self._recordings.get(ctx.run_id)
        if recording is not None and recording.problem:
            raise TapeError(recording.problem)

    def on_event(self, event: Event) -> None:
        """Record an event."""
        recording = self._recordings.get(event.run_id)
        if recording is not None:
            recording.event(event)

    def instrument(self, engine: Engine, start: RunStart) -> AbstractContextManager[None]:
        """Record a run, unless it is a replay."""
        return (
            nullcontext() if getattr(engine.environment.boundary, "is_replay", False) else self._recorded(engine, start)
        )

    @contextmanager
    def _recorded(self, engine: Engine, start: RunStart) -> Iterator[None]:
        ctx, outer, unsubscribe, branch = engine.ctx, engine.environment.boundary, None, None
        while isinstance(outer, Recording) and outer.owner is not self:
            outer = outer.inner
        if isinstance(outer, Recording):
            recording = outer
            branch = recording.enter_branch(recording.number(), start.ids.run_id)
        else:
            recording = Recording(self, self._file_of(start.ids.run_id), engine)
            engine.environment.boundary = recording
            unsubscribe = ctx.interrupt.subscribe(recording.cancelled)
        with self._lock:
            self._recordings[ctx.run_id] = recording
        try:
            recording.run_started(engine, start)
            yield
        finally:
            with self._lock:
                del self._recordings[ctx.run_id]
            if branch is not None:
                BRANCH.reset(branch)
            if unsubscribe is not None:
                unsubscribe()
                recording.close()

    def _file_of(self, run_id: str) -> Path:
        return self.path if self._is_file else self.path / f"{file_name_for(run_id)}{SUFFIX}"


class Recording:
    """One tape being written. It is the :class:`~hookline._run.environment.Boundary` of its run."""

    is_replay = False

    def __init__(self, owner: TapeHook, path: Path, engine: Engine) -> None:
        self.owner, self.problem = owner, ""
        self._path, self.inner = path, engine.environment.boundary
        self._lock = threading.RLock()
        self._numbers, self._last_messages = 0, dict[str, Sequence[Message]]()
        self._counts: set[str] = set()
        self._readings: dict[int, list[tuple[str, Any]]] = {}
        self._timers: dict[int, int] = {}
        self._clock = real_clock(engine.environment.clock)
        self._started = self._clock.monotonic()
        self._file: Any = None
        try:
            self._file = _opened(path)
        except OSError as error:
            self._fail(error)
        self.write(
            fmt.HeaderEntry(version=fmt.VERSION, hookline=__version__, time=self._clock.time(), monotonic=self._started)
        )
        install_sources(engine, self.read, self.set_timer)

    def read(self, kind: str, real: Callable[[], Any]) -> Any:
        """Read a value and record it."""
        value = real()
        if not INSIDE_CALL.get(self):
            with self._lock:
                self._readings.setdefault(BRANCH.get(self), []).append((kind, value))
        return value

    def set_timer(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Any:
        """Set a timer, and record when it fires."""
        with self._lock:
            self._timers[BRANCH.get(self)] = number = self._timers.get(BRANCH.get(self), 0) + 1

        def fire() -> None:
            self.write(fmt.TimerEntry(number=number))
            callback()

        later = getattr(clock, "call_later", None) or asyncio.get_running_loop().call_later
        return later(seconds, partial(contextvars.copy_context().run, fire))

    def enter_branch(self, branch: int, run: str = "", call_id: str = "", attempt: int = 0) -> Any:
        """Start a branch for this task and the tasks that it starts. ``BRANCH.reset`` takes the returned token."""
        parent = BRANCH.get(self)
        token = BRANCH.set(self, branch)
        self.write(fmt.BranchEntry(parent=parent, run=run, call_id=call_id, attempt=attempt))
        return token

    def write(self, entry: fmt.Entry) -> None:
        """Write an entry, after the readings that came before it."""
        at, branch = self._clock.monotonic() - self._started, BRANCH.get(self)
        with self._lock:
            readings = self._readings.pop(branch, ())
            lines = [fmt.ReadingsEntry(at, branch=branch, values=tuple(readings))] if readings else []
            self._put(*lines, msgspec.structs.replace(entry, at=at, branch=branch, inside=INSIDE_CALL.get(self)))

    def _put(self, *lines: fmt.Entry) -> None:
        if self._file is None:
            return
        try:
            self._file.write(b"".join(line.to_json() + b"\n" for line in lines))
            self._file.flush()
        except Exception as error:  # noqa: BLE001 - an event defined by a user may not be serializable to JSON
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        self.problem = f"the tape {self._path} cannot be written: {error}"
        log.warning("%s", self.problem)
        file, self._file = self._file, None
        if file is not None:
            with suppress(OSError):
                file.close()

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            left, self._readings = self._readings, {}
            self._put(*(fmt.ReadingsEntry(branch=branch, values=tuple(values)) for branch, values in left.items()))
            file, self._file = self._file, None
        if file is not None:
            file.close()

    def run_started(self, engine: Engine, start: RunStart) -> None:
        """Record the start of a run."""
        ctx, session, state, budget = engine.ctx, engine.services.session, engine.state, engine.budget
        llm, tools = engine.services.llm, engine.tools
        offered: dict[str, ToolSpec] = {}
        with suppress(HooklineError):  # the run itself reports a tool that cannot be offered
            offered = {spec.name: spec for spec in tools.offered(ctx)}
        self.write(
            fmt.RunEntry(
                ids=start.ids,
                task=start.task,
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
                tools=tuple(_recorded_tool(tool, offered) for tool in tools),
                model=llm.name if llm is not None else "",
                provider=llm.provider if llm is not None else "",
                limits=budget.without_hooks,
                budgets=tuple(_outer_budgets(budget)),
                allowed_plugins=ctx.allowed_plugins,
                stream="live" if engine.live else "safe",
            )
        )

    def event(self, event: Event) -> None:
        """Record an event. Pieces of text that hooks did not change are left out."""
        if isinstance(event, ToolStarted):  # the calls of a batch run concurrently, each in its own task
            self.enter_branch(self.number(), event.run_id, event.call_id, event.attempt)
        if not (isinstance(event, PointFired) and event.point == ON_TOKEN and event.verb == HookAction.CONTINUE):
            self.write(fmt.EventEntry(event=event))

    def steered(self, run_id: str, text: str) -> None:
        """Record a message that was sent into a run."""
        self.write(fmt.SteeringEntry(run=run_id, text=text))
        if self.inner is not None:
            self.inner.steered(run_id, text)

    def cancelled(self, reason: str) -> None:
        """Record the cancellation of the run."""
        self.write(fmt.CancellationEntry(reason=reason))

    def number(self) -> int:
        """Return the next free number."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    # The calls of the run.

    def model(self, model: Model) -> Model:
        """Return the model wrapped so that its replies are recorded."""
        return RecordedModel(self, model if self.inner is None else self.inner.model(model))

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> CheckedArguments | str:
        """Validate arguments with the tool, and record arguments that it changes or rejects."""
        checked = tool.validate(arguments) if self.inner is None else self.inner.validate(tool, arguments)
        if isinstance(checked, str):
            self.write(fmt.ValidationEntry(tool=tool.name, arguments=arguments, problem=checked))
        elif checked.arguments != arguments:
            self.write(fmt.ValidationEntry(tool=tool.name, arguments=arguments, checked=checked.arguments))
        return checked

    async def call(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
        """Call the tool and record its result."""
        number = self.number()
        branch = self.enter_branch(number)
        self.write(
            fmt.ToolCallEntry(number=number, run=request.ids.run_id, request=request, runs_agents=tool.runs_agents)
        )
        answer = fmt.ToolResultEntry(number=number)
        inside = None if tool.runs_agents or INSIDE_CALL.get(self) else INSIDE_CALL.set(self, number)
        given = ctx if ctx is None or inside is None else self._with_progress(ctx, number)
        try:
            work = tool.call(values, given) if self.inner is None else self.inner.call(request, tool, values, given)
            value = await work
            answer = msgspec.structs.replace(answer, value=jsonable(value))
            return value
        except BaseException as error:
            refused = isinstance(error, CallRefusedError)
            answer = msgspec.structs.replace(answer, refused=refused, **fmt.outcome_of(error))
            raise
        finally:
            if inside is not None:
                INSIDE_CALL.reset(inside)
            self.write(answer)
            BRANCH.reset(branch)

    def _with_progress(self, ctx: AgentContext[Any], number: int) -> AgentContext[Any]:
        """Return a context for a call whose progress reports are recorded in the run, where hooks see them."""
        progress = progress_reporter_of(ctx)
        assert progress is not None  # ``ctx`` is the context of a tool call

        def report(fraction: float | None, message: str) -> None:
            inside, branch = INSIDE_CALL.set(self, 0), BRANCH.set(self, -number)
            try:
                self.write(fmt.BranchEntry(parent=number))
                self.write(fmt.ToolProgressEntry(number=number, fraction=fraction, message=message))
                progress(fraction, message)
            finally:
                INSIDE_CALL.reset(inside)
                BRANCH.reset(branch)

        return context_for_call(ctx, report)

    async def approve(
        self, asked: ApprovalRequest, ask: Callable[[], Awaitable[Verdict]], report: Callable[..., Awaitable[Any]]
    ) -> Verdict:
        """Ask the approvers and record their decision."""
        call = asked.call
        self.enter_branch(number := self.number())
        entry = fmt.ApprovalEntry(number=number, run=call.ids.run_id, call_id=call.id, attempt=call.attempt)
        try:
            verdict = await (ask() if self.inner is None else self.inner.approve(asked, ask, report))
            entry = entry.replace(answer=verdict.value, by=verdict.hook, failures=verdict.failures)
            return verdict
        except HookError as error:
            failures = error.verdict.failures if error.verdict is not None else ()
            entry = entry.replace(failures=failures)
            if error.point == APPROVAL_REQUESTED:
                info = ErrorInfo("hook", type(error.cause).__name__, str(error), error.hook)
                entry = entry.replace(failed=info)
            raise
        except BaseException:
            entry = entry.replace(cancelled=True)
            raise
        finally:
            self.write(entry)

    def counted(self, key: str, value: float | None) -> None:
        """Record a number from the model, once for each key."""
        if key not in self._counts:
            self._counts.add(key)
            self.write(fmt.CountEntry(key=key, value=value))

    def model_request(self, model: Model, request: ModelRequest) -> int:
        """Record a request to the model and return its number."""
        run, messages = request.ids.run_id, request.messages
        with self._lock:
            number, before = self.number(), self._last_messages.get(run, ())
            kept = next((i for i, (a, b) in enumerate(zip(before, messages, strict=False)) if a != b), None)
            kept = min(len(before), len(messages)) if kept is None else kept
            self._last_messages[run] = messages
            self.write(
                fmt.ModelRequestEntry(
                    number=number,
                    run=run,
                    request=request.replace(messages=tuple(messages[kept:])),
                    kept=kept,
                    model=model.name,
                    provider=model.provider,
                    digests=fmt.digests_of(request),
                )
            )
        return number


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


def _opened(path: Path) -> Any:
    """Create a file that only its owner may read. A link or an older tape at the path is replaced."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")


class RecordedModel:
    """A model whose replies are recorded."""

    def __init__(self, tape: Recording, model: Model) -> None:
        self._tape, self._model = tape, model
        self.name, self.provider = model.name, model.provider
        if hasattr(model, "stream"):
            self.stream = self._stream
        for name in ("price", "count_request"):
            if hasattr(model, name):
                setattr(self, name, getattr(self, f"_{name}"))

    async def complete(self, request: ModelRequest) -> ModelResponse:
        """Return the whole reply."""
        answer = fmt.ModelReplyEntry(number=self._tape.model_request(self._model, request))
        try:
            response = await self._model.complete(request)
            answer = answer.replace(**_reply_fields(self._model, response))
            return response
        except BaseException as error:
            answer = answer.replace(**fmt.outcome_of(error))
            raise
        finally:
            self._tape.write(answer)

    async def _stream(self, request: ModelRequest) -> AsyncIterator[str | ModelResponse]:
        number, pieces = self._tape.model_request(self._model, request), list[str]()
        given, ended = self._model.stream(request), dict[str, Any]()
        response: ModelResponse | None = None
        try:
            async for piece in given:
                if isinstance(piece, ModelResponse):
                    response, ended = piece, _reply_fields(self._model, piece)
                    break
                pieces.append(piece)
                yield piece
        except GeneratorExit:
            task = asyncio.current_task()
            ended = {"cancelled" if task is not None and task.cancelling() else "closed": True}
            raise
        except BaseException as error:
            ended = fmt.outcome_of(error)
            raise
        finally:
            self._tape.write(fmt.ModelReplyEntry(number=number, pieces=tuple(pieces)).replace(**ended))
            if (close := getattr(given, "aclose", None)) is not None:
                await close()
        if response is not None:
            yield response

    def count_tokens(self, content: str | Sequence[Message]) -> int:
        """Return the number of tokens of a text or of messages."""
        tokens = self._model.count_tokens(content)
        self._tape.counted(fmt.count_key(content), tokens)
        return tokens

    def _count_request(self, request: ModelRequest) -> int:
        tokens = int(self._model.count_request(request))  # type: ignore[attr-defined]
        self._tape.counted(fmt.request_key(request), tokens)
        return tokens

    def _price(self, usage: Usage) -> float | None:
        price: float | None = self._model.price(usage)  # type: ignore[attr-defined]
        self._tape.counted(fmt.price_key(usage), price)
        return price


def _reply_fields(model: Model, response: Any) -> dict[str, Any]:
    if isinstance(response, ModelResponse):
        return {"response": msgspec.structs.replace(response, content=response.content or "")}
    wrong = f"model {model.name!r} returned {type(response).__name__}, not a ModelResponse"
    return {"raised": fmt.RecordedError("ModelError", wrong, "model")}
