"""Recording a run: a hook that writes down all that the run gets from the world, and all that its hooks decide."""

from __future__ import annotations

import asyncio
import contextvars
import os
import threading
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from typing import Any

import msgspec

from .._base.files import name_in_file
from .._base.frozen import plain
from .._base.package import __version__
from .._kernel.errors import CallRefusedError, HookError, HooklineError, RegistrationError
from .._kernel.events import Event, PointFired
from .._kernel.payloads import ApprovalRequest, ModelRequest, RunStart, ToolCallRequest
from .._kernel.points import APPROVAL_REQUESTED, ON_RUN_END, ON_TOKEN
from .._kernel.results import HookAction, Verdict
from .._kernel.values import ErrorInfo, Message, ToolSpec
from .._run.budget import Budget
from .._run.context import AgentContext, for_call, report_of
from .._run.engine import Engine
from .._run.events import ToolStarted, log
from ..models.protocol import Model
from ..tools._tool import Checked, Tool, jsonable
from . import entries as on
from .draws import supply, unwrapped
from .errors import TapeError
from .lanes import INSIDE, LANE
from .recorded_model import RecordedModel

SUFFIX = ".tape"


class TapeHook:
    """Records each run on a tape, which :func:`hookline.replay` and ``hookline replay`` play again.

    On it is what the model was sent and what it said, what tools got and gave, what approvers said, what hooks read
    of ``ctx.clock``, ``ctx.random`` and ``ctx.new_id``, every event with every decision, and the same of the runs
    inside. It is as secret as the conversation: only you may read the file. A run whose tape cannot be written goes
    on, and tells so in its errors.

    Args:
        path: a file that ends in ``.tape``, which each run writes anew; or a folder, in which each run gets a file of
            its own, named after its id.

    Raises:
        RegistrationError: it is no path, or there is something else.
    """

    points = frozenset({ON_RUN_END})
    phase = "observe"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        if not isinstance(path, (str, os.PathLike)) or not os.fspath(path):
            raise RegistrationError(f"path= takes a file that ends in {SUFFIX}, or a folder, not {path!r:.80}")
        self.path = Path(path)
        self._is_file = self.path.suffix == SUFFIX
        if self.path.is_dir() if self._is_file else self.path.is_file():
            raise RegistrationError(f"{self.path} is a {'folder' if self._is_file else f'file: end it in {SUFFIX}'}")
        self._lock = threading.Lock()
        self._going: dict[str, Recording] = {}

    @property
    def own_files(self) -> tuple[str, ...]:
        """What tools may not change."""
        return (str(self.path),)

    def __call__(self, point: str, ctx: Any, payload: Any) -> None:
        """Tell of a tape that could not be written."""
        recording = self._going.get(ctx.run_id)
        if recording is not None and recording.problem:
            raise TapeError(recording.problem)

    def on_event(self, event: Event) -> None:
        """Write down an event."""
        recording = self._going.get(event.run_id)
        if recording is not None:
            recording.happened(event)

    def instrument(self, engine: Engine, start: RunStart) -> AbstractContextManager[None]:
        """Record while a run goes on, unless it is a replay."""
        return (
            nullcontext() if getattr(engine.environment.boundary, "is_replay", False) else self._recorded(engine, start)
        )

    @contextmanager
    def _recorded(self, engine: Engine, start: RunStart) -> Iterator[None]:
        ctx, outer, leave, lane = engine.ctx, engine.environment.boundary, None, None
        while isinstance(outer, Recording) and outer.owner is not self:
            outer = outer.inner
        if isinstance(outer, Recording):
            recording = outer
            lane = recording.enter_lane(recording.number(), start.ids.run_id)
        else:
            recording = Recording(self, self._file_of(start.ids.run_id), engine)
            engine.environment.boundary = recording
            leave = ctx.interrupt.subscribe(recording.cancelled)
        with self._lock:
            self._going[ctx.run_id] = recording
        try:
            recording.began(engine, start)
            yield
        finally:
            with self._lock:
                del self._going[ctx.run_id]
            if lane is not None:
                LANE.reset(lane)
            if leave is not None:
                leave()
                recording.close()

    def _file_of(self, run_id: str) -> Path:
        return self.path if self._is_file else self.path / f"{name_in_file(run_id)}{SUFFIX}"


class Recording:
    """One tape while it is written; what lies outside of its run (:class:`~hookline._run.environment.Boundary`)."""

    is_replay = False

    def __init__(self, owner: TapeHook, path: Path, engine: Engine) -> None:
        self.owner, self.problem = owner, ""
        self._path, self.inner = path, engine.environment.boundary
        self._lock = threading.RLock()
        self._numbers, self._asked = 0, dict[str, Sequence[Message]]()
        self._known: set[str] = set()
        self._draws: dict[int, list[tuple[str, Any]]] = {}
        self._alarms: dict[int, int] = {}
        self._clock = unwrapped(engine.environment.clock)
        self._zero = self._clock.monotonic()
        self._file: Any = None
        try:
            self._file = _opened(path)
        except OSError as error:
            self._fail(error)
        self.write(
            on.TapeBegan(version=on.VERSION, hookline=__version__, time=self._clock.time(), monotonic=self._zero)
        )
        supply(engine, self.draw, self.alarm)

    def draw(self, kind: str, real: Callable[[], Any]) -> Any:
        """Read a value, and note it."""
        value = real()
        if not INSIDE.get(self):
            with self._lock:
                self._draws.setdefault(LANE.get(self), []).append((kind, value))
        return value

    def alarm(self, clock: Any, seconds: float, callback: Callable[[], object]) -> Any:
        """Set an alarm, and write down when it rings."""
        with self._lock:
            self._alarms[LANE.get(self)] = number = self._alarms.get(LANE.get(self), 0) + 1

        def ring() -> None:
            self.write(on.AlarmRang(number=number))
            callback()

        later = getattr(clock, "call_later", None) or asyncio.get_running_loop().call_later
        return later(seconds, partial(contextvars.copy_context().run, ring))

    def enter_lane(self, lane: int, run: str = "", call_id: str = "", attempt: int = 0) -> Any:
        """Begin a lane for this task and what is started from it; ``LANE.reset`` takes the returned token."""
        parent = LANE.get(self)
        token = LANE.set(self, lane)
        self.write(on.LaneBegan(parent=parent, run=run, call_id=call_id, attempt=attempt))
        return token

    def write(self, entry: on.Entry) -> None:
        """Write an entry, after what was drawn before it."""
        at, lane = self._clock.monotonic() - self._zero, LANE.get(self)
        with self._lock:
            drawn = self._draws.pop(lane, ())
            lines = [on.Drawn(at, lane=lane, values=tuple(drawn))] if drawn else []
            self._put(*lines, msgspec.structs.replace(entry, at=at, lane=lane, inside=INSIDE.get(self)))

    def _put(self, *lines: on.Entry) -> None:
        if self._file is None:
            return
        try:
            self._file.write(b"".join(line.to_json() + b"\n" for line in lines))
            self._file.flush()
        except Exception as error:  # noqa: BLE001 - an event of a program's own may have no JSON form
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
            left, self._draws = self._draws, {}
            self._put(*(on.Drawn(lane=lane, values=tuple(values)) for lane, values in left.items()))
            file, self._file = self._file, None
        if file is not None:
            file.close()

    # What the run is, and what happens in it.

    def began(self, engine: Engine, start: RunStart) -> None:
        """A run begins."""
        ctx, session, state, budget = engine.ctx, engine.services.session, engine.state, engine.budget
        llm, tools = engine.services.llm, engine.tools
        offered: dict[str, ToolSpec] = {}
        with suppress(HooklineError):  # of a tool that cannot be offered, the run itself will tell
            offered = {spec.name: spec for spec in tools.offered(ctx)}
        self.write(
            on.RunBegan(
                ids=start.ids, task=start.task, instructions=state.system_prompt, metadata=plain(state.metadata),
                response_format=plain(state.response_format), messages=tuple(state.messages),
                session=on.TapedSession(
                    session.id, session.key, session.platform, session.personality_id,
                    plain(session.personality_changes), not session.started,
                ),
                tools=tuple(_taped(tool, offered) for tool in tools),
                model=llm.name if llm is not None else "", provider=llm.provider if llm is not None else "",
                limits=budget.without_hooks,
                ledgers=tuple(_ledgers(budget)),
                allowed_plugins=ctx.allowed_plugins,
            )
        )  # fmt: skip

    def happened(self, event: Event) -> None:
        """An event. Pieces of text that hooks let pass are left out."""
        if isinstance(event, ToolStarted):  # calls of a batch go on at once, each in a task of its own
            self.enter_lane(self.number(), event.run_id, event.call_id, event.attempt)
        if not (isinstance(event, PointFired) and event.point == ON_TOKEN and event.verb == HookAction.CONTINUE):
            self.write(on.Happened(event=event))

    def steered(self, run_id: str, text: str) -> None:
        """Somebody put a message in."""
        self.write(on.SteeredIn(run=run_id, text=text))
        if self.inner is not None:
            self.inner.steered(run_id, text)

    def cancelled(self, reason: str) -> None:
        """Somebody cancelled."""
        self.write(on.CancelledFrom(reason=reason))

    def number(self) -> int:
        """The next free number."""
        with self._lock:
            self._numbers += 1
            return self._numbers

    # Where the run meets the world.

    def model(self, model: Model) -> Model:
        """The model, with everything it says written down."""
        return RecordedModel(self, model if self.inner is None else self.inner.model(model))

    def validate(self, tool: Tool, arguments: Mapping[str, Any]) -> Checked | str:
        """The tool's own validation; what it changes or refuses is written down."""
        checked = tool.validate(arguments) if self.inner is None else self.inner.validate(tool, arguments)
        if isinstance(checked, str):
            self.write(on.ArgumentsChecked(tool=tool.name, arguments=arguments, problem=checked))
        elif checked.arguments != arguments:
            self.write(on.ArgumentsChecked(tool=tool.name, arguments=arguments, checked=checked.arguments))
        return checked

    async def call(self, request: ToolCallRequest, tool: Tool, values: Mapping[str, Any], ctx: Any) -> Any:
        """Call the tool, and write down what it gives."""
        number = self.number()
        lane = self.enter_lane(number)
        self.write(on.ToolCalled(number=number, run=request.ids.run_id, request=request, runs_agents=tool.runs_agents))
        answer = on.ToolAnswered(number=number)
        inside = None if tool.runs_agents or INSIDE.get(self) else INSIDE.set(self, number)
        given = ctx if ctx is None or inside is None else self._listening(ctx, number)
        try:
            work = tool.call(values, given) if self.inner is None else self.inner.call(request, tool, values, given)
            value = await work
            answer = msgspec.structs.replace(answer, value=jsonable(value))
            return value
        except BaseException as error:
            ending = on.ending_of(error)
            answer = msgspec.structs.replace(answer, refused=isinstance(error, CallRefusedError), **ending)
            raise
        finally:
            if inside is not None:
                INSIDE.reset(inside)
            self.write(answer)
            LANE.reset(lane)

    def _listening(self, ctx: AgentContext[Any], number: int) -> AgentContext[Any]:
        """The context of a call; what it reports is the run's, so that hooks may read and be heard."""
        tell = report_of(ctx)
        assert tell is not None  # it is the context of a tool call

        def report(fraction: float | None, message: str) -> None:
            inside, lane = INSIDE.set(self, 0), LANE.set(self, -number)
            try:
                self.write(on.LaneBegan(parent=number))
                self.write(on.ToolReported(number=number, fraction=fraction, message=message))
                tell(fraction, message)
            finally:
                INSIDE.reset(inside)
                LANE.reset(lane)

        return for_call(ctx, report)

    async def approve(
        self, asked: ApprovalRequest, ask: Callable[[], Awaitable[Verdict]], report: Callable[..., Awaitable[Any]]
    ) -> Verdict:
        """Ask the approvers, and write down what they say."""
        call = asked.call
        self.enter_lane(number := self.number())
        said = on.ApprovalAnswered(number=number, run=call.ids.run_id, call_id=call.id, attempt=call.attempt)
        try:
            verdict = await (ask() if self.inner is None else self.inner.approve(asked, ask, report))
            said = said.replace(answer=verdict.value, by=verdict.hook, failures=verdict.failures)
            return verdict
        except HookError as error:
            failures = error.verdict.failures if error.verdict is not None else ()
            said = said.replace(failures=failures)
            if error.point == APPROVAL_REQUESTED:
                info = ErrorInfo("hook", type(error.cause).__name__, str(error), error.hook)
                said = said.replace(failed=info)
            raise
        except BaseException:
            said = said.replace(cancelled=True)
            raise
        finally:
            self.write(said)

    def counted(self, key: str, value: float | None) -> None:
        """A number that the model gave; each is written once."""
        if key not in self._known:
            self._known.add(key)
            self.write(on.Counted(key=key, value=value))

    def asked(self, model: Model, request: ModelRequest) -> int:
        """A request goes to the model: its number."""
        run, messages = request.ids.run_id, request.messages
        with self._lock:
            number, before = self.number(), self._asked.get(run, ())
            kept = next((i for i, (a, b) in enumerate(zip(before, messages, strict=False)) if a != b), None)
            kept = min(len(before), len(messages)) if kept is None else kept
            self._asked[run] = messages
            self.write(
                on.ModelAsked(
                    number=number, run=run, request=request.replace(messages=tuple(messages[kept:])), kept=kept,
                    model=model.name, provider=model.provider, digests=on.digests_of(request),
                )
            )  # fmt: skip
        return number


def _taped(tool: Tool, offered: Mapping[str, Any]) -> on.TapedTool:
    return on.TapedTool(
        offered.get(tool.name) or tool.spec, tool.name in offered, tool.folder, tool.timeout, tool.untrusted,
        tool.dangerous, tuple(sorted(tool._path_params)),
    )  # fmt: skip


def _ledgers(budget: Budget) -> Iterator[on.Ledger]:
    """The budgets that a run counts in, but its own."""
    for above in list(budget.chain())[1:]:
        yield on.Ledger(
            above.limits, above._input, above._output, above._cached, above._cost, above._priced, above.tool_calls,
            None if above._began is None else above.elapsed,
        )  # fmt: skip


def _opened(path: Path) -> Any:
    """A new file that only its owner may read; a link or a tape in its place is replaced, not written through."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
