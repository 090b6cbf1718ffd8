"""Small programs as data, and the interpreter that builds real agents of them and runs them.

A program is an agent under a guard. Its tools and hooks start runs, fire points, ask the model and cancel, in tasks and
threads. The *world* of a program interprets it, and the *ledger* notes what happened: what the guard of the outermost
agent accepted, what tool functions got, which runs ended how, and which replies models gave.

Every call of a tool has the arguments ``at``, its position in the program, and ``value``, by which hooks decide. So
hooks decide by what they see, and a replay and a recovery decide the same.
"""

from __future__ import annotations

import asyncio
import contextvars
import faulthandler
import hashlib
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from functools import cache, partial
from itertools import count
from typing import Any, Literal

from hypothesis import strategies as st

from hookline import (
    AFTER_LLM,
    AFTER_STEP,
    AFTER_TOOL,
    APPROVAL_REQUESTED,
    BEFORE_LLM,
    BEFORE_STEP,
    BEFORE_TOOL,
    ON_PROGRESS,
    ON_RUN_END,
    ON_RUN_START,
    ON_STOP,
    Agent,
    AgentContext,
    AgentResult,
    Budget,
    HookRegistry,
    HookResult,
    Limits,
    Message,
    ModelRequest,
    RunFailedError,
    Session,
    hook,
    observer,
    tool,
)
from hookline._kernel import points as points_module
from hookline.adapters._foreign import Adapter, RunOverError, Support
from hookline.agents import Run
from hookline.errors import HooklineError
from hookline.events import Event, SubagentEvent
from hookline.models import ModelResponse
from hookline.payloads import Frozen, ToolCall, Usage
from hookline.points import Point
from hookline.teams import Team
from tests.waiting import wait_until

PAUSE = 0.02
"""The longest time in seconds that parts of a program wait for each other; they go on then."""
HANG = 60.0
"""A program that takes longer hangs."""
REPLY = Usage(10, 1)
"""The usage of each reply of a model."""
DEPTH = 5
"""Actions nested deeper than this are skipped: a hook may start itself again from a thread of its own."""


# Programs.


class Part:
    """A part of a program. Its representation is the code that makes it, without the defaults."""

    def __repr__(self) -> str:
        given = {each.name: getattr(self, each.name) for each in fields(self)}  # type: ignore[arg-type]
        defaults = {each.name: each.default for each in fields(self)}  # type: ignore[arg-type]
        shown = [f"{name}={_code(value)}" for name, value in given.items() if value != defaults[name]]
        return f"{type(self).__name__}({', '.join(shown)})"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(repr(self))  # hypothesis would show the call of each strategy, which takes minutes


def _code(value: Any) -> str:
    if isinstance(value, Point):
        return value.upper()
    if isinstance(value, Limits):
        limits = {name: getattr(value, name) for name in ("steps", "tokens", "tool_calls")}
        return f"Limits({', '.join(f'{name}={limit}' for name, limit in limits.items() if limit is not None)})"
    if isinstance(value, tuple):
        return f"({''.join(f'{_code(each)}, ' for each in value).strip()})"
    return repr(value)


Door = Literal["arun", "run", "start", "stream"]
Place = Literal["here", "to_thread", "thread", "copied_thread", "pool", "copied_pool"]


@dataclass(frozen=True, repr=False)
class Start(Part):
    """Start a run of another agent, in a tool or a hook."""

    agent: Script
    door: Door = "arun"
    place: Place = "here"
    ctx: Literal["none", "given", "detached"] = "none"
    inherit: bool = True
    leave: bool = False
    """Whether not to wait for it."""
    beside_guard: bool = False
    """Whether to start it while the guard is busy elsewhere."""


@dataclass(frozen=True, repr=False)
class Fire(Part):
    """Fire a point of the program, whose only hook performs these actions."""

    does: tuple[Action, ...]
    via: Literal["ctx", "registry", "registry with ctx"] = "registry"
    place: Place = "here"
    is_async: bool = True


@dataclass(frozen=True, repr=False)
class Do(Part):
    """Ask the model, cancel the run, steer the outermost run, report progress, fail, or let others go on."""

    what: Literal["ask", "cancel", "steer", "progress", "fail", "yield"]


Action = Start | Fire | Do


@dataclass(frozen=True, repr=False)
class Call(Part):
    """A call that a model makes. A ``delegate`` gives a task to a subagent; the body of other tools is ``does``."""

    tool: Literal["work", "block", "hang", "delegate"] = "work"
    value: int = 0
    does: tuple[Action, ...] = ()
    to: Script | None = None


@dataclass(frozen=True, repr=False)
class Rule(Part):
    """A hook that does something at one point, if the value of the call or the number of the step is ``on``."""

    point: Point[Any]
    phase: Literal["rewrite", "guard", "observe"] = "rewrite"
    verb: str = "nothing"
    on: int = 0
    is_async: bool = False
    inherit: bool = True
    priority: int = 0
    does: tuple[Action, ...] = ()


@dataclass(frozen=True, repr=False)
class Script(Part):
    """An agent: the calls of each step of its model, its hooks and its limits."""

    steps: tuple[tuple[Call, ...], ...] = ()
    rules: tuple[Rule, ...] = ()
    limits: Limits = Limits()


@dataclass(frozen=True, repr=False)
class Warden(Part):
    """The guard of the outermost agent."""

    refuses: frozenset[int] = frozenset({3})
    layer: Literal["agent", "conversation", "run"] = "agent"
    is_async: bool = False
    in_thread: bool = False
    """Whether it has a timeout, so that a sync guard runs in a worker thread."""
    busy: bool = False
    """Whether the same hook also listens at on_progress, and is busy there until a run starts beside it."""
    does: tuple[Action, ...] = ()
    """The actions of the hook before it decides, for the calls with the value 1."""


@dataclass(frozen=True, repr=False)
class Program(Part):
    """An agent under a guard, and how it is run."""

    agent: Script
    warden: Warden = Warden()
    approver: Literal["approve", "deny", "edit to 2", "edit to 3", "none"] = "approve"
    door: Door = "arun"
    watched: bool = True
    """Whether the events of its runs are consumed. Without consumers, most of the loop takes shorter ways."""
    cancel: int | None = None
    """Cancel it from outside when this many tools have started."""
    steer: int | None = None
    then: Script | None = None
    """The agent that the outermost agent hands over to."""


# The ledger.


@dataclass
class Ledger:
    """A list of the events in all processes and replays of a program."""

    accepted: dict[str, tuple[str, dict[str, Any]]] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    approved: set[str] = field(default_factory=set)
    """The calls that a hook asked about, and those that the approver approved or edited."""
    ran: list[tuple[str, str]] = field(default_factory=list)
    """The key and position of each call that a tool function got."""
    violations: list[str] = field(default_factory=list)
    replies: Counter[bool] = field(default_factory=Counter)
    """The replies of models, by whether they count in the budget of the outermost run."""
    ends: Counter[str] = field(default_factory=Counter)
    """How often ``on_run_end`` fired for each run."""
    events: dict[str, list[Event]] = field(default_factory=dict)
    stream: list[Event] = field(default_factory=list)
    """The events of the outermost run."""
    results: list[AgentResult[Any]] = field(default_factory=list)
    """The results that callers got."""
    lock: Any = field(default_factory=threading.Lock)

    def judge(self, key: str, name: str = "", arguments: dict[str, Any] | None = None, *, accepts: bool) -> None:
        """Note the latest decision of the guard, or the denial of the approver, about an attempt of a call."""
        with self.lock:
            self.accepted.pop(key, None)
            if accepts:
                self.accepted[key] = name, arguments or {}

    def run(self, key: str, name: str, arguments: dict[str, Any], *, guarded: bool) -> None:
        """Note that a tool function got these arguments. Each acceptance is good for one call."""
        with self.lock:
            self.ran.append((key, arguments["at"]))
            accepted = self.accepted.pop(key, None)
            if key in self.asked - self.approved:
                self.violations.append(f"{name} ran with {arguments}, and nobody approved it")
            if guarded and accepted != (name, arguments):
                self.violations.append(f"{name} ran with {arguments}, and the guard accepted {accepted}")


@dataclass(frozen=True)
class Frame:
    """The rules for code inside a program, as DESIGN 4.8 and 6.6 define them."""

    guarded: bool = True
    """Whether the guard of the outermost agent judges the calls of runs that are started here."""
    counted: bool = True
    """Whether model calls of these runs count in the budget of the outermost run."""
    visible: bool = True
    """Whether a run that is started here finds its outer run without ``ctx=``."""
    blocks: bool = False
    """Whether an event loop waits for this code: a run in the shared background loop might never begin."""
    outlives: bool = False
    """Whether the run may outlive the outermost run: it is detached, or in no other run."""

    def of(self, start: Start, *, has_ctx: bool) -> Frame:
        """Return the frame of a run that is started here."""
        given = has_ctx and start.ctx != "none"
        found = given or self.visible
        return Frame(
            guarded=self.guarded and found and start.inherit,
            counted=self.counted and found and (start.inherit or given),
            blocks=self.blocks or start.door == "run",
            outlives=self.outlives or not found or start.ctx == "detached" or not (given or start.inherit),
        )

    def at(self, place: Place) -> Frame:
        """Return the frame of code in another thread. A thread without a copy of the context sees no outer run."""
        return replace(self, visible=self.visible and place not in ("thread", "pool"))


INSIDE_GUARD: ContextVar[bool] = ContextVar("inside_guard", default=False)
"""Whether the guard itself has called the current code: a hook does not judge the runs that it started (DESIGN 4.8)."""


class Moment(Frozen, frozen=True):
    at: str = ""


def declare_point() -> Point[Any]:
    """Declare the point that programs fire."""
    return Point("test_moment", Moment, verbs=("replace",), when="a program fired it", fired_by="a program")


@contextmanager
def declared_point() -> Iterator[None]:
    """Declare the point that programs fire, and remove it afterwards."""
    before = dict(points_module.TABLE), dict(points_module.NAMES)
    World.point = declare_point()
    try:
        yield
    finally:
        for table, was in zip((points_module.TABLE, points_module.NAMES), before, strict=True):
            table.clear()
            table.update(was)


def key_of(run_id: str, call_id: str, attempt: int) -> str:
    """Return the ``ctx.call_key`` of an attempt of a call."""
    return hashlib.sha256(f"{run_id}\n{call_id}\n{attempt}".encode()).hexdigest()[:32]


ENDLESS = 200
"""The number of bodies after which a program does nothing more: a hook may judge the runs that it starts itself."""


class World:
    """One process that executes a program.

    Args:
        program: the program.
        ledger: notes what happens.
        replaying: whether tools and models must not be called, because a tape or a journal has their answers.
    """

    point: Point[Any]

    def __init__(self, program: Program, ledger: Ledger, *, replaying: bool = False) -> None:
        self.program = program
        self.ledger = ledger
        self.replaying = replaying
        self.budget = Budget()
        self.run: Run[Any] | None = None
        """The outermost run, if there is a handle of it."""
        self.cancel: Callable[[], object] = lambda: None
        """Cancels the outermost run from outside."""
        self.foreign = False
        self._performed = count()
        self.frames: dict[str, Frame] = {}
        self.bodies: dict[str, tuple[Action, ...]] = {}
        self.left: list[Run[Any]] = []
        self.active = 0
        """The number of threads that do something for the program."""
        self.busy, self.begun = threading.Event(), threading.Event()
        self.started = 0
        self.warden = self._warden(program.warden)

    # Building agents.

    def root(self, *hooks: Any) -> Any:
        """Return the outermost agent; or the team of it and the agent that it hands over to."""
        program = self.program
        more = [self.warden] if program.warden.layer == "agent" else []
        more = [*more, self._approver(), *hooks]
        if program.then is None:
            return self.build(program.agent, Frame(), "a", *more)
        team = Team(max_depth=9)
        team.add(self.build(program.agent, Frame(), "a", *more, team=team))
        team.add(self.build(program.then, Frame(), "b"))
        return team

    def options(self) -> dict[str, Any]:
        """Return the options of the outermost run."""
        layer = self.program.warden.layer
        hooks = [self.warden] if layer == "conversation" else []
        options: dict[str, Any] = {"ctx": AgentContext(session=Session("s"), budget=self.budget, hooks=hooks)}
        if layer == "run":
            options["hooks"] = [self.warden]
        if self.program.watched:
            options["sinks"] = [self.ledger.stream.append]
        return options

    def build(self, script: Script, frame: Frame, path: str, *hooks: Any, team: Team | None = None) -> Agent:
        """Build an agent. Its name says where it is in the program, and what holds there."""
        name = path + ("" if frame.guarded else "!") + ("" if frame.counted else "?") + ("~" if frame.outlives else "")
        self.frames[name] = frame
        members: list[Agent] = []
        fires: list[Any] = []
        turns: list[tuple[ToolCall, ...]] = []
        for number, step in enumerate(script.steps):
            calls = []
            for index, call in enumerate(step):
                at, id = f"{path}_{number}.{index}", f"{name}:{number}.{index}"
                if call.tool == "delegate" and call.to is not None:
                    members.append(self.build(call.to, frame, f"{at}d"))
                    calls.append(ToolCall(id, "delegate", {"to": members[-1].name, "task": "go"}))
                else:
                    self.bodies[at] = call.does
                    fires += self._performers(call.does, at)
                    name_ = "work" if call.tool == "delegate" else call.tool
                    calls.append(ToolCall(id, name_, {"at": at, "value": call.value}))
            turns.append(tuple(calls))
        if team is not None:
            turns.append((ToolCall(f"{name}:over", "handoff", {"to": "b", "message": "go"}),))
        rules = [self._rule(rule, f"{path}r{i}") for i, rule in enumerate(script.rules)]
        for i, rule in enumerate(script.rules):
            fires += self._performers(rule.does, f"{path}r{i}")
        if path == "a":
            fires += self._performers(self.program.warden.does, "w")
        end = observer(ON_RUN_END, name=f"{path} end")(self._ended)
        end.inherit = False  # type: ignore[attr-defined]
        teams: list[Any] = [Team(members, max_depth=9, max_handoffs=0)] if members else []
        if team is not None:
            (handoff,) = [each for each in team.tools() if each.name == "handoff"]
            teams.append(Toolset([handoff], team.tool_hooks))
        return Agent(
            name,
            llm=CountingModel(self, name, frame.counted, turns),
            tools=[*self._tools(frame), *teams],
            hooks=[*hooks, *rules, *fires, end],
            sinks=[self._event] if self.program.watched else [],
            limits=script.limits,
        )

    def _ended(self, ctx: Any, result: Any) -> None:
        self.ledger.ends[result.ids.run_id] += 1

    def _event(self, event: Event) -> None:
        if not isinstance(event, SubagentEvent):
            self.ledger.events.setdefault(event.run_id, []).append(event)

    def _tools(self, frame: Frame) -> list[Any]:
        async def work(at: str, value: int, ctx: AgentContext) -> str:
            """Do something."""
            self.tool_started("work", at, value, ctx, frame)
            await self.perform(self.bodies[at], ctx, frame, at)
            return f"did {value}"

        def block(at: str, value: int, ctx: AgentContext) -> str:
            """Do something in a thread."""
            self.tool_started("block", at, value, ctx, frame)
            with self.working():
                self.perform_sync(self.bodies[at], ctx, frame, at)
            return f"did {value}"

        async def hang(at: str, value: int, ctx: AgentContext) -> None:
            """Do something that does not end."""
            self.tool_started("hang", at, value, ctx, frame)
            await asyncio.Event().wait()

        return [tool(work), tool(block), tool(timeout=PAUSE)(hang)]

    def tool_started(self, name: str, at: str, value: int, ctx: AgentContext | None, frame: Frame) -> None:
        """Note that a tool function was called."""
        key = at if self.foreign or ctx is None else ctx.call_key
        if self.replaying and frame.counted:
            self.ledger.violations.append(f"a replay called {name} at {at}")
        self.ledger.run(key, name, {"at": at, "value": value}, guarded=frame.guarded)
        self.started += 1
        if self.started == self.program.steer and self.run is not None:
            self.run.steer("quickly")
        if self.started == self.program.cancel:
            self.cancel()

    # Hooks.

    def frame_of(self, ctx: Any) -> Frame:
        """Return the frame of a hook that is called now."""
        frame = self.frames.get(ctx.agent_name, Frame())
        return replace(frame, guarded=frame.guarded and not INSIDE_GUARD.get(), blocks=True)

    def _warden(self, warden: Warden) -> Any:
        world = self

        class Guard:
            points = frozenset({BEFORE_TOOL, ON_PROGRESS} if warden.busy else {BEFORE_TOOL})
            phase = {BEFORE_TOOL: "guard", ON_PROGRESS: "observe"}
            timeout = {BEFORE_TOOL: HANG} if warden.in_thread else {}
            name = "warden"

            def decide(self, payload: Any) -> HookResult | None:
                arguments = dict(payload.arguments)
                if "at" not in arguments:
                    return None  # a delegation or handoff, whose own calls are judged
                value = arguments["value"]
                accepts = value not in warden.refuses
                world.ledger.judge(world._key(payload), payload.name, arguments, accepts=accepts)
                return None if accepts else HookResult.block("refused")

        class Sync(Guard):
            def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
                if point == ON_PROGRESS:
                    return None
                if payload.arguments.get("value") == 1:
                    token = INSIDE_GUARD.set(True)
                    world.perform_sync(warden.does, ctx, world.frame_of(ctx), f"w@{ctx.agent_name}", "w")
                    INSIDE_GUARD.reset(token)
                return self.decide(payload)

        class Async(Guard):
            async def __call__(self, point: str, ctx: Any, payload: Any) -> Any:
                if point == ON_PROGRESS:
                    if payload.phase == "progress":
                        world.begun.clear()
                        world.busy.set()
                        await wait_briefly(world.begun)
                        world.busy.clear()
                    return None
                if payload.arguments.get("value") == 1:
                    token = INSIDE_GUARD.set(True)
                    await world.perform(warden.does, ctx, world.frame_of(ctx), f"w@{ctx.agent_name}", "w")
                    INSIDE_GUARD.reset(token)
                await asyncio.sleep(0)
                return self.decide(payload)

        return Async() if warden.is_async or warden.busy else Sync()

    def _key(self, request: Any) -> str:
        """Return the key of an attempt of a call; in the loop of another framework, tools know only its position."""
        at: str = request.arguments.get("at", "")
        return at if self.foreign else key_of(request.ids.run_id, request.id, request.attempt)

    def _approver(self) -> Any:
        answer = self.program.approver

        @hook(APPROVAL_REQUESTED, name="approver")
        async def approve(ctx: Any, request: Any) -> HookResult | None:
            await asyncio.sleep(0)
            if answer in ("none", "deny"):
                self.ledger.judge(self._key(request.call), accepts=False)
            else:
                self.ledger.approved.add(self._key(request.call))
            if answer == "none":
                return None
            if answer in ("approve", "deny"):
                return getattr(HookResult, answer)()  # type: ignore[no-any-return]
            return HookResult.edit({**request.call.arguments, "value": int(answer[-1])})

        return approve

    def _rule(self, rule: Rule, path: str) -> Any:
        world = self

        def applies(payload: Any) -> bool:
            if rule.point == ON_PROGRESS:
                return payload.phase == ("tool_start", "tool_end")[rule.on % 2]
            if rule.point in (BEFORE_TOOL, AFTER_TOOL):
                return payload.arguments.get("value", 0) == rule.on and payload.attempt == 1
            if rule.point in (BEFORE_LLM, AFTER_LLM):
                return payload.purpose == "step" and payload.hop == rule.on and payload.attempt == 1
            if rule.point in (BEFORE_STEP, AFTER_STEP):
                return payload.index == rule.on
            return True

        async def act_async(ctx: Any, payload: Any) -> Any:
            if not applies(payload):
                return None
            await world.perform(rule.does, ctx, world.frame_of(ctx), f"{path}@{ctx.agent_name}", path)
            if rule.verb == "hang":
                await asyncio.Event().wait()
            await asyncio.sleep(0)
            return say(rule, world, payload)

        def act(ctx: Any, payload: Any) -> Any:
            if not applies(payload):
                return None
            world.perform_sync(rule.does, ctx, world.frame_of(ctx), f"{path}@{ctx.agent_name}", path)
            return say(rule, world, payload)

        made = hook(
            rule.point,
            name=path,
            phase=rule.phase if rule.point.model == "pipeline" else "observe",
            priority=rule.priority,
            timeout=PAUSE if rule.verb == "hang" else None,
        )(act_async if rule.is_async or rule.verb == "hang" else act)
        made.inherit = rule.inherit  # type: ignore[attr-defined]
        return made

    def _performers(self, actions: tuple[Action, ...], at: str) -> list[Any]:
        """Return the hooks for fires with ``ctx.fire`` among these actions: they belong to the agent."""
        found = [(f"{at}.{i}", action) for i, action in enumerate(actions) if isinstance(action, Fire)]
        return [self.performer(fire, path) for path, fire in found if fire.via == "ctx"]

    def performer(self, fire: Fire, path: str, enclosing: Any = None, frame: Frame | None = None) -> Any:
        """Return the hook of a fire. Without a run, its own context has no services, so it uses the enclosing one."""

        def site(ctx: Any) -> tuple[Any, Frame, str]:
            own = enclosing if enclosing is not None or not isinstance(ctx, AgentContext) else ctx
            if frame is not None:
                return own, frame, f"{path}f"
            return own, self.frame_of(ctx), f"{path}@{ctx.agent_name}f"  # the name says how deep it is nested

        @hook(self.point, name=f"fired {path}")
        async def perform(ctx: Any, payload: Any) -> None:
            if payload.at == path:
                await self.perform(fire.does, *site(ctx))

        @hook(self.point, name=f"fired {path}")
        def perform_sync(ctx: Any, payload: Any) -> None:
            if payload.at == path:
                self.perform_sync(fire.does, *site(ctx))

        return perform if fire.is_async else perform_sync

    # Performing actions.

    async def perform(self, actions: tuple[Action, ...], ctx: Any, frame: Frame, path: str, fired: str = "") -> None:
        """Perform actions in a task. ``fired`` is the position under which the hooks of fires were registered."""
        if next(self._performed) > ENDLESS:
            return
        for index, action in enumerate(actions):
            at = f"{path}.{index}"
            match action:
                case Do():
                    await self._do(action, ctx)
                case Start(place="here"):
                    await self._start(action, ctx, frame, at)
                case Start():
                    await self._elsewhere(action.place, partial(self._start_sync, action, ctx, frame, at))
                case Fire(place="here"):
                    await self._fire(action, ctx, frame, at, f"{fired or path}.{index}")
                case Fire():
                    inner, name = frame.at(action.place), f"{fired or path}.{index}"
                    await self._elsewhere(action.place, partial(self._fire_sync, action, ctx, inner, at, name))

    def perform_sync(self, actions: tuple[Action, ...], ctx: Any, frame: Frame, path: str, fired: str = "") -> None:
        """Perform actions in a sync function: a tool in a worker thread, or a hook in the event loop."""
        if next(self._performed) > ENDLESS:
            return
        for index, action in enumerate(actions):
            at = f"{path}.{index}"
            match action:
                case Do(what="ask" | "yield"):
                    pass  # needs an event loop
                case Do():
                    self._do_sync(action, ctx)
                case Start(place="here"):
                    self._start_sync(action, ctx, frame, at)
                case Start():
                    self._blocking(action.place, partial(self._start_sync, action, ctx, frame, at))
                case Fire():
                    place: Place = "copied_thread" if action.place == "here" else action.place
                    inner, name = frame.at(place), f"{fired or path}.{index}"
                    self._blocking(place, partial(self._fire_sync, action, ctx, inner, at, name))

    async def _do(self, action: Do, ctx: Any) -> None:
        if action.what == "ask" and ctx is not None:
            await ctx.llm.complete("What do you think?")
        elif action.what == "yield":
            await asyncio.sleep(0.001)
        else:
            self._do_sync(action, ctx)

    def _do_sync(self, action: Do, ctx: Any) -> None:
        if action.what == "cancel" and ctx is not None:
            ctx.interrupt.cancel("by the program")
        elif action.what == "steer" and self.run is not None:
            self.run.steer("quickly")
        elif action.what == "progress" and ctx is not None:
            with suppress(HooklineError):  # it is the context of a hook
                ctx.progress(0.5, "half")
        elif action.what == "fail":
            raise ValueError("a fault of the program")

    def _prepare(self, start: Start, ctx: Any, frame: Frame, at: str) -> tuple[Agent, dict[str, Any]] | None:
        frame = frame.at(start.place)
        if at.count("f") + at.count("s") > DEPTH:
            return None
        if start.beside_guard and ctx is not None:
            with suppress(HooklineError):
                ctx.progress(0.5, "beside")
        agent = self.build(start.agent, frame.of(start, has_ctx=ctx is not None), f"{at}s")
        options: dict[str, Any] = {}
        if ctx is not None and start.ctx != "none":
            options["ctx"] = ctx if start.ctx == "given" else ctx.detached()
        if not start.inherit:
            options["inherit"] = False
        return agent, options

    async def _start(self, start: Start, ctx: Any, frame: Frame, at: str) -> None:
        if (prepared := self._prepare(start, ctx, frame, at)) is None:
            return
        agent, options = prepared
        if start.beside_guard:
            await wait_briefly(self.busy)
        if start.leave:
            self.left.append(agent.start("go", **options))
        elif start.door == "start":
            self._got(await agent.start("go", **options).result())
        elif start.door == "stream":
            async for _ in agent.stream("go", **options):
                pass
        elif start.door == "run":
            self._got(agent.run("go", **options))
        else:
            self._got(await agent.arun("go", **options))
        self.begun.set()

    def _start_sync(self, start: Start, ctx: Any, frame: Frame, at: str) -> None:
        if (frame.blocks or start.door in ("arun", "stream")) and not start.leave and not _in_loop():
            start = replace(start, door="stream" if start.door == "stream" else "arun")
            asyncio.run(self._with_runs_left(self._start(start, ctx, frame, at)))
            return
        if (prepared := self._prepare(start, ctx, frame, at)) is None:
            return
        agent, options = prepared
        if start.beside_guard:
            self.busy.wait(PAUSE)
        if start.leave:
            self.left.append(agent.start("go", **options))
        elif start.door == "start" and not _in_loop():
            self._got(agent.start("go", **options).wait())
        else:
            self._got(agent.run("go", **options))
        self.begun.set()

    def _got(self, result: AgentResult[Any]) -> None:
        self.ledger.results.append(result)

    async def _fire(self, fire: Fire, ctx: Any, frame: Frame, at: str, registered: str) -> None:
        if fire.via == "ctx" and ctx is not None:
            await ctx.fire(self.point, Moment(registered))
            return
        with_ctx = fire.via == "registry with ctx" and ctx is not None
        inner = replace(frame, visible=frame.visible or with_ctx)
        registry = HookRegistry([self.performer(fire, at, ctx, inner)])
        await registry.fire(self.point, Moment(at), ctx=ctx if with_ctx else None)

    def _fire_sync(self, fire: Fire, ctx: Any, frame: Frame, at: str, registered: str) -> None:
        asyncio.run(self._with_runs_left(self._fire(fire, ctx, frame, at, registered)))

    async def _with_runs_left(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work in an event loop of its own, and wait for the runs that were left there before the loop is closed.

        ``asyncio.run`` would cancel them, and what their hooks start then would never end.
        """
        try:
            await work
        finally:
            aio = asyncio.get_running_loop()
            while own := [run for run in self.left if run._aio is aio and not run.done]:
                await own[0].settled()

    # Threads.

    @contextmanager
    def working(self) -> Iterator[None]:
        """Note that a thread works, also if the run has abandoned it."""
        with self.ledger.lock:
            self.active += 1
        try:
            yield
        finally:
            with self.ledger.lock:
                self.active -= 1

    def _placed(self, place: Place, work: Callable[[], object]) -> Callable[[], object]:
        """Return work for a thread, with a copy of the context or without one."""

        def noted() -> object:
            with self.working():
                return work()

        if place in ("thread", "pool"):
            return noted
        context = contextvars.copy_context()
        return lambda: context.run(noted)

    async def _elsewhere(self, place: Place, work: Callable[[], object]) -> None:
        """Do work in another thread, and wait for it."""
        if place == "to_thread":
            await asyncio.to_thread(self._placed(place, work))
            return
        pool = ThreadPoolExecutor(1, "program")
        future = pool.submit(self._placed(place, work))
        pool.shutdown(wait=False)
        await asyncio.wrap_future(future)

    def _blocking(self, place: Place, work: Callable[[], object]) -> None:
        """Do work in another thread, and block this one."""
        placed = self._placed(place, work)
        if place.endswith("pool"):
            with ThreadPoolExecutor(1, "program") as pool:
                pool.submit(placed).result()
            return
        outcome: Future[object] = Future()

        def run() -> None:
            try:
                outcome.set_result(placed())
            except BaseException as error:
                outcome.set_exception(error)

        threading.Thread(target=run, name="program").start()
        outcome.result()

    # The end of the program.

    async def settle(self) -> None:
        """Wait for what the program has left behind."""
        await wait_until(lambda: not self.active)
        for run in self.left:  # more may come meanwhile
            await run.settled()


def say(rule: Rule, world: World, payload: Any) -> Any:
    """Return the result of a rule, or do what hooks must not do."""
    match rule.verb:
        case "nothing" | "hang":
            return None
        case "raise":
            raise ValueError("a fault of a hook")
        case "ask":
            world.ledger.asked.add(world._key(payload))
        case "mutate":
            dict.__setitem__(payload.arguments, "value", 3)
            return None
        case "replace" if rule.point == BEFORE_TOOL:
            return payload.replace(arguments={**payload.arguments, "value": (rule.on + 2) % 4})
        case "replace" if rule.point == AFTER_TOOL:
            return payload.replace(result="changed", error=None)
    return getattr(HookResult, rule.verb)("said")


VERBS = {
    BEFORE_TOOL: {
        "rewrite": ("block", "answer", "ask", "end", "stop", "raise", "mutate", "replace", "hang"),
        "guard": ("block", "answer", "ask", "end", "stop", "raise", "mutate"),
        "observe": ("mutate", "raise"),
    },
    AFTER_TOOL: {"rewrite": ("retry", "replace", "end", "raise"), "guard": ("retry", "end"), "observe": ()},
    BEFORE_LLM: {"rewrite": ("answer", "end", "stop", "raise"), "guard": ("end", "stop"), "observe": ()},
    AFTER_LLM: {"rewrite": ("retry", "end", "raise"), "guard": ("retry",), "observe": ()},
    BEFORE_STEP: {"rewrite": ("stop", "end"), "guard": (), "observe": ()},
    AFTER_STEP: {"rewrite": ("stop",), "guard": (), "observe": ()},
    ON_STOP: {"rewrite": ("keep_going",), "guard": (), "observe": ()},
    ON_RUN_START: {"rewrite": ("end",), "guard": (), "observe": ()},
    ON_PROGRESS: {"observe": ()},
    ON_RUN_END: {"rewrite": ("raise",), "guard": (), "observe": ()},
}
"""The verbs of rules, by point and phase, besides ``nothing``."""
COMMON: list[tuple[Point[Any], str, str]] = [
    (BEFORE_TOOL, "guard", "ask"),
    (BEFORE_TOOL, "guard", "ask"),
    (BEFORE_TOOL, "rewrite", "replace"),
    (BEFORE_TOOL, "observe", "mutate"),
    (AFTER_TOOL, "rewrite", "retry"),
]
"""Rules that decide about the arguments of a call or let it run again: guards are lost around these."""


class Toolset:
    """Some tools of a team, with its hooks."""

    def __init__(self, tools: list[Any], hooks: tuple[Any, ...]) -> None:
        self._tools, self.tool_hooks = tools, hooks

    def tools(self) -> list[Any]:
        return self._tools


class CountingModel:
    """A model that answers by the calls in the transcript, so that any process can continue."""

    name, provider = "counting", "test"

    def __init__(self, world: World, agent: str, counted: bool, turns: list[tuple[ToolCall, ...]]) -> None:
        self.world, self.agent, self.counted, self.turns = world, agent, counted, turns

    async def complete(self, request: Any) -> ModelResponse:
        return self._reply(request)

    async def stream(self, request: Any) -> AsyncIterator[str | ModelResponse]:
        yield "well "
        yield self._reply(request)

    def count_tokens(self, content: Any) -> int:
        return 1

    def _reply(self, request: Any) -> ModelResponse:
        ledger = self.world.ledger
        if self.world.replaying and self.counted:
            ledger.violations.append(f"a replay asked the model of {self.agent}")
        with ledger.lock:
            ledger.replies[self.counted] += 1
        done = sum(any(c.id.startswith(f"{self.agent}:") for c in m.tool_calls) for m in request.messages)
        calls = self.turns[done] if request.purpose == "step" and done < len(self.turns) else ()
        return ModelResponse("well", calls, usage=REPLY, finish_reason="tool_calls" if calls else "stop", cost=0.0)


def _in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


async def wait_briefly(event: threading.Event) -> None:
    """Wait until an event is set, but not for long."""
    for _ in range(30):
        if event.is_set():
            return
        await asyncio.sleep(PAUSE / 30)


# Running programs.


def run_program(program: Program, play: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Run a program in a thread and an event loop of its own, and check that nothing of it is left.

    A program that hangs fails the test with the stacks of all threads, so that hypothesis reports it.
    """
    outcome: list[Any] = []

    async def main() -> None:
        outcome.append(await play())
        tasks: set[Any] = set()
        threads: list[str] = []
        end = time.monotonic() + HANG / 3
        while time.monotonic() < end:
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            threads = [each.name for each in threading.enumerate() if each.name.startswith(("hookline-run", "program"))]
            if not tasks and not threads:
                break
            await asyncio.sleep(0.005)
        assert not tasks, f"left behind: {tasks}"
        assert not threads, f"left behind: {threads}"

    def target() -> None:
        try:
            asyncio.run(main())
        except BaseException as error:
            outcome.append(error)

    thread = threading.Thread(target=target, name="main-program", daemon=True)
    thread.start()
    thread.join(HANG)
    if thread.is_alive():
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file)
            file.seek(0)
            raise AssertionError(f"the program hangs: {program}\n{file.read()}")
    if isinstance(outcome[-1], BaseException):
        raise outcome[-1]
    return outcome[0]


async def execute(
    world: World, agent: Any, options: dict[str, Any], door: Door | None = None
) -> AgentResult[Any] | None:
    """Run the outermost agent through the door of the program, or another one.

    The result is ``None`` if the caller was cancelled.
    """
    door = door or world.program.door
    if world.program.then is not None and door != "run":
        door = "arun"  # a handle is that of one run, and another run follows
    try:
        if door == "run":
            aio = asyncio.get_running_loop()
            interrupt = options["ctx"].interrupt
            world.cancel = lambda: interrupt.cancel("from outside")
            return await aio.run_in_executor(None, lambda: agent.run("go", **options))
        if door == "arun":
            task = asyncio.ensure_future(agent.arun("go", **options))
            aio = asyncio.get_running_loop()
            world.cancel = lambda: aio.call_soon_threadsafe(task.cancel)
            await asyncio.wait([task])
            return None if task.cancelled() else task.result()
        world.run = run = agent.start("go", **options)
        world.cancel = lambda: run.cancel("from outside")
        if door == "stream":
            async for _ in run.events():
                pass
        result: AgentResult[Any] = await run.result()
        return result
    except RunFailedError as failed:
        return failed.result


# Strategies.

DOORS: tuple[Door, ...] = ("arun", "run", "start", "stream")
PLACES: tuple[Place, ...] = ("here", "here", "to_thread", "thread", "copied_thread", "pool", "copied_pool")
LIMITS = (Limits(),) * 9 + (Limits(steps=1), Limits(tokens=25), Limits(tool_calls=1))
values = st.sampled_from((0, 0, 0, 1, 2, 3))


Feature = Literal["sync", "threads", "timeouts", "left", "cancellation", "steering"]
FEATURES: tuple[Feature, ...] = ("sync", "threads", "timeouts", "left", "cancellation", "steering")
"""Parts of programs that a test may leave out: sync hooks, actions in other threads and event loops, hooks that exceed
their timeout, runs that nobody waits for, cancellation, and steering messages."""


class Programs:
    """The strategies of the parts of a program.

    Args:
        features: what programs may contain.
        repeatable: whether its hooks must decide the same in a replay and in recovery.
    """

    def __init__(self, *features: Feature, repeatable: bool = True) -> None:
        self.features = frozenset(features)
        self.repeatable = repeatable

    def has(self, feature: Feature) -> bool:
        """Return whether programs may have a feature."""
        return feature in self.features

    @cache
    def starts(self, depth: int, *, fired: bool = False) -> st.SearchStrategy[Start]:
        """A run of an agent that starts no runs deeper than this; ``fired`` by a hook that a tool may have called."""
        # A hook does not know the tool that fired its point, and neither does a thread without its context.
        places = self.places(bare=not (fired and self.repeatable))
        return st.builds(
            Start,
            self.scripts(depth, most=1),
            st.sampled_from(DOORS if self.has("threads") else ("arun", "start", "stream")),
            places,
            st.sampled_from(("none", "none", "given", "detached") if self.has("left") else ("none", "given")),
            inherit=st.sampled_from((True, True, True, False)) if self.has("left") else st.just(True),
            leave=st.sampled_from((False, False, False, True)) if self.has("left") else st.just(False),
            beside_guard=st.booleans(),
        ).map(partial(self.without_races, fired=fired))

    def without_races(self, start: Start, fired: bool) -> Start:
        """Wait for a run that must be repeated if hooks use threads: its outer run would cancel it, if not detached."""
        is_waited = self.repeatable and start.ctx != "detached" and (fired or self.has("threads"))
        return replace(start, leave=False) if is_waited else start

    def places(self, *, bare: bool = True) -> st.SearchStrategy[Place]:
        """Where an action is done; ``bare`` threads have no copy of the context."""
        places = PLACES if self.has("threads") else PLACES[:1]
        return st.sampled_from([place for place in places if bare or place not in ("thread", "pool")])

    @cache
    def actions(self, depth: int, least: int = 0, most: int = 1) -> st.SearchStrategy[tuple[Action, ...]]:
        """An action of a tool or a hook."""
        doings = ["ask", "progress", "fail", "yield", "yield"]
        doings += ["steer"] * self.has("steering") + ["cancel"] * self.has("cancellation")
        options: list[st.SearchStrategy[Any]] = [st.builds(Do, st.sampled_from(doings))]
        if depth:
            start = self.starts(depth - 1)
            fire = st.builds(
                Fire,
                st.tuples(self.starts(depth - 1, fired=True)),
                st.sampled_from(("ctx", "registry", "registry with ctx")),
                self.places(),
                self.async_or_sync(),
            )
            options = [start, fire, *options]
        return st.lists(st.one_of(*options), min_size=least, max_size=most).map(tuple)

    def async_or_sync(self) -> st.SearchStrategy[bool]:
        """Whether a hook is async."""
        return st.booleans() if self.has("sync") else st.just(True)

    @cache
    def rules(self, depth: int) -> st.SearchStrategy[Rule]:
        """A hook with a verb that its point allows."""
        choices = [
            (point, phase, verb)
            for point in VERBS
            for phase, verbs in VERBS[point].items()
            for verb in ("nothing", *verbs)
            if verb != "hang" or self.has("timeouts")
        ]
        choices += COMMON * (len(choices) // len(COMMON))  # half of all
        return st.builds(
            lambda choice, **options: Rule(*choice, **options),
            st.sampled_from(choices),
            on=st.sampled_from((0, 0, 0, 1, 2)),
            is_async=self.async_or_sync(),
            inherit=st.sampled_from((True, True, False)),
            priority=st.integers(-1, 1),
            does=self.actions(depth),
        ).map(self.in_known_threads)

    def in_known_threads(self, rule: Rule) -> Rule:
        """Give the threads of an observer a copy of its context: recovery does not call it, but decides again."""
        if not self.repeatable or (rule.phase != "observe" and rule.point.model == "pipeline"):
            return rule
        bare: dict[str, Place] = {"thread": "copied_thread", "pool": "copied_pool"}
        does = (
            each if isinstance(each, Do) else replace(each, place=bare.get(each.place, each.place))
            for each in rule.does
        )
        return replace(rule, does=tuple(does))

    @cache
    def calls(self, depth: int) -> st.SearchStrategy[Call]:
        """A call of a tool, or a delegation to a subagent."""
        tools = ("work", "work", "work", "block", "block", "block", "hang")
        plain = st.builds(Call, st.sampled_from(tools), values, self.actions(depth, least=min(depth, 1), most=2))
        if not depth:
            return plain
        return st.one_of(plain, plain, st.builds(Call, st.just("delegate"), to=self.scripts(depth - 1, most=1)))

    @cache
    def scripts(self, depth: int, most: int = 2, ruled: int = 0) -> st.SearchStrategy[Script]:
        """An agent with at least this many hooks, and all agents that it can start."""
        steps = st.lists(st.lists(self.calls(depth), min_size=1, max_size=most).map(tuple), min_size=1, max_size=most)
        rules = st.lists(self.rules(min(depth, 1)), min_size=ruled, max_size=most + ruled)
        return st.builds(Script, steps.map(tuple), rules.map(tuple), st.sampled_from(LIMITS))

    def wardens(self) -> st.SearchStrategy[Warden]:
        """The guard of the outermost agent."""
        return st.builds(
            Warden,
            st.sampled_from((frozenset({3}), frozenset({2, 3}), frozenset({0, 3}))),
            st.sampled_from(("agent", "conversation", "run")),
            self.async_or_sync(),
            st.booleans() if self.has("threads") else st.just(False),
            st.booleans(),
            self.actions(1),
        )

    def programs(self) -> st.SearchStrategy[Program]:
        """A program: an agent with several hooks, or one whose tools and hooks start runs inside runs."""
        return st.builds(
            Program,
            st.one_of(self.scripts(0, ruled=1), self.scripts(1, most=1, ruled=1), self.scripts(1), self.scripts(2)),
            self.wardens(),
            st.sampled_from(("approve", "deny", "edit to 2", "edit to 3", "none")),
            st.sampled_from(DOORS),
            st.booleans(),
            cancel=st.sampled_from((None, None, None, None, None, 1, 2, 3) if self.has("cancellation") else (None,)),
            steer=st.sampled_from((None, 1, 2) if self.has("steering") else (None,)),
            then=st.none() if self.repeatable else st.none() | self.scripts(0, most=1),
        )


programs = Programs(*FEATURES, repeatable=False).programs()


# The loop of another framework.

SUPPORT = Support("Program", "msgspec", "0", "1000")  # a package that is always there


async def execute_foreign(world: World) -> None:
    """Run the outermost agent in a loop of a few lines, as a framework does, with Hookline's hooks attached."""
    world.foreign = True
    agent = world.root()
    adapter = Adapter(SUPPORT, [agent.hooks], {"name": "a", "limits": agent.limits, "llm": agent.model})
    names = [each.spec for each in agent.tools]
    messages = [Message("user", "go")]

    async def work(name: str, arguments: dict[str, Any]) -> str:
        at, value = arguments.get("at", ""), arguments.get("value", 0)
        if at:
            world.tool_started(name, at, value, None, Frame())
            await world.perform(world.bodies[at], None, Frame(), at)
        return f"did {value}"

    run = adapter.start("go")
    world.cancel = lambda: run.run.cancel("from outside")
    with suppress(RunOverError, RunFailedError):
        while True:
            request = ModelRequest(tuple(messages), tuple(names), "counting")
            settled = await run.call_model(request, agent.model.complete)
            messages.append(Message("assistant", settled.reply.content, settled.reply.tool_calls))
            if not settled.reply.tool_calls and not settled.again:
                break
            made = [run.call_tool(call, work) for call in settled.reply.tool_calls]
            for call, result in zip(
                settled.reply.tool_calls, await asyncio.gather(*made, return_exceptions=True), strict=True
            ):
                if isinstance(result, (RunOverError, RunFailedError)):
                    raise result
                text = str(result) if isinstance(result, BaseException) else result.text
                messages.append(Message("tool", text, (), call.id, call.name))
        await run.end()
    await run.run.settled()
