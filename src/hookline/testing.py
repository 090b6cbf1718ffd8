"""Helpers for tests of your own hooks: a scripted model, a fake clock, single fires and injected faults.

If Hookline is installed, pytest has the fixtures ``scripted_agent``, ``fire_hook`` and ``inject_fault``, which are the
functions of this module.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args, overload

import msgspec

from ._base.frozen import Frozen
from ._base.tasks import running_loop
from ._base.text import did_you_mean
from ._kernel.errors import RegistrationError
from ._kernel.events import Event
from ._kernel.hook import compile_hook, selects, tool_of
from ._kernel.points import resolve
from ._kernel.registry import HookRegistry
from ._kernel.results import Verdict
from ._run.agent import Agent
from ._run.context import AgentContext, DepsT, services_of
from ._run.output import OutputT
from .models.scripted import ScriptedModel, call, reply
from .tools._tool import Tool
from .tools.registry import ToolRegistry, Toolset

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from typing_extensions import Unpack

    from ._kernel.hook import Hook
    from ._run.agent import CommonAgentOptions
    from ._run.budget import Budget
    from ._run.cancellation import Interrupt
    from ._run.session import Session

    class ContextOptions(TypedDict, total=False):
        """The keyword options of :class:`AgentContext`."""

        session: Session | None
        hooks: HookRegistry | Sequence[Hook]
        budget: Budget | None
        memory: Any
        artifacts: Any
        blackboard: Any
        deps: Any
        interrupt: Interrupt | None
        allowed_plugins: Sequence[str] | None
        clock: Any
        random: Random | None
        new_id: Callable[[str], str]


__all__ = [
    "EventLog",
    "FakeClock",
    "Fault",
    "ScriptedModel",
    "afire_hook",
    "call",
    "fire_hook",
    "inject_fault",
    "make_context",
    "reply",
    "sample",
    "scripted_agent",
]

Fault = Literal["raise", "hang", "nonsense"]

_SAMPLES: dict[Any, Any] = {str: "", int: 0, float: 0.0, bool: False}


def sample(point: str, **fields: Any) -> Frozen:
    """Create a payload for a point. Fields that are not given are empty.

    Raises:
        TypeError: the payload does not have such a field, or it has another type.

    Example:
        >>> sample(BEFORE_TOOL, name="delete_file", arguments={"path": "/etc/passwd"})
    """
    kind: type[Frozen] = resolve(point).payload
    empty = {
        field.name: _sample_of(field.type)
        for field in msgspec.structs.fields(kind)
        if field.default is msgspec.NODEFAULT and field.default_factory is msgspec.NODEFAULT
    }
    return kind(**empty).replace(fields)


def _sample_of(kind: Any) -> Any:
    if kind in _SAMPLES:
        return _SAMPLES[kind]
    if isinstance(kind, type) and issubclass(kind, Frozen):
        required = [f for f in msgspec.structs.fields(kind) if f.required]
        return kind(**{field.name: _sample_of(field.type) for field in required})
    choices = getattr(kind, "__args__", ())
    return choices[0] if choices and all(isinstance(choice, str) for choice in choices) else ()


async def afire_hook(hook: Any, point: str, payload: Any = None, *, ctx: Any = None, **fields: Any) -> Verdict:
    """Fire one point with one hook, as the loop would.

    Args:
        hook: the hook.
        point: the point.
        payload: the payload; by default a :func:`sample` with ``fields``.
        ctx: the context; by default a new one.
        fields: fields of the payload.

    Raises:
        HookError: the hook failed closed.
        RegistrationError: the hook is not registered at this point, or its ``tools=`` does not select the tool of the
            payload. Nothing would be tested.

    Example:
        >>> verdict = await afire_hook(no_sudo, BEFORE_TOOL, name="shell", arguments={"command": "sudo ls"})
        >>> assert verdict.action == "block"
    """
    where = resolve(point)
    registry = HookRegistry()
    registry.register(hook, points=None if hasattr(hook, "points") else where)
    entries = registry.stack.entries(where)
    if not entries:
        raise RegistrationError(f"{hook!r} is not a hook at {where}, so nothing would be tested")
    given = payload if payload is not None else sample(where, **fields)
    if not any(selects(entry.tools, given) for entry in entries):
        raise RegistrationError(
            f"hook {entries[0].name!r} has tools={', '.join(entries[0].tools)}, which does not select "
            f"{tool_of(given)!r}, so nothing would be tested"
        )
    return await registry.fire(where, given, ctx=ctx if ctx is not None else AgentContext())


def fire_hook(hook: Any, point: str, payload: Any = None, *, ctx: Any = None, **fields: Any) -> Verdict:
    """Call :func:`afire_hook` in a test that is not async.

    Raises:
        RuntimeError: the test is async.

    Example:
        >>> assert fire_hook(no_sudo, BEFORE_TOOL, name="shell", arguments={"command": "ls"}).action == "cont"
    """
    if running_loop() is not None:
        raise RuntimeError("an event loop is running: use await hookline.testing.afire_hook(...) in an async test")
    return asyncio.run(afire_hook(hook, point, payload, ctx=ctx, **fields))


def make_context(
    *, tools: Iterable[Tool | Callable[..., Any] | Toolset] = (), **options: Unpack[ContextOptions]
) -> AgentContext[Any]:
    """Create a context with tools, to test hooks outside a run; options as for :class:`AgentContext`.

    Example:
        >>> fire_hook(guard, BEFORE_TOOL, name="delete_file", ctx=make_context(tools=[delete_file]))
    """
    ctx: AgentContext[Any] = AgentContext(**options)
    services_of(ctx).tools = ToolRegistry(tools)
    return ctx


@overload
def scripted_agent(
    turns: Iterable[Any],
    *,
    name: str = "test",
    instructions: str = "",
    output_type: None = None,
    **options: Unpack[CommonAgentOptions[DepsT]],
) -> Agent[DepsT, str]: ...
@overload
def scripted_agent(
    turns: Iterable[Any],
    *,
    name: str = "test",
    instructions: str = "",
    output_type: type[OutputT],
    **options: Unpack[CommonAgentOptions[DepsT]],
) -> Agent[DepsT, OutputT]: ...
@overload
def scripted_agent(
    turns: Iterable[Any],
    *,
    name: str = "test",
    instructions: str = "",
    output_type: Any,
    **options: Unpack[CommonAgentOptions[DepsT]],
) -> Agent[DepsT, Any]: ...
def scripted_agent(
    turns: Iterable[Any],
    *,
    name: str = "test",
    instructions: str = "",
    output_type: Any = None,
    **options: Unpack[CommonAgentOptions[Any]],
) -> Agent[Any, Any]:
    """Create an agent with a :class:`ScriptedModel` of these ``turns``; options as for :class:`Agent`.

    Example:
        >>> agent = scripted_agent([call("shell", command="sudo ls"), "done"], tools=[shell], hooks=[no_sudo])
        >>> assert agent.run("Try it.").tool_calls == 1
    """
    return Agent(name, "", instructions, llm=ScriptedModel(turns), output_type=output_type, **options)


class FakeClock:
    """A clock that only moves when you advance it.

    Args:
        start: the initial time, as a ``datetime`` or in seconds since 1970. ``monotonic()`` starts at 0.

    Example:
        >>> clock = FakeClock(datetime(2026, 11, 14, 3))
        >>> ctx = AgentContext(clock=clock)
        >>> clock.advance(60)
    """

    def __init__(self, start: datetime | float = 1_700_000_000.0) -> None:
        self._start = start.timestamp() if isinstance(start, datetime) else float(start)
        self._passed = 0.0

    def time(self) -> float:
        """Return seconds since 1970, like ``time.time()``."""
        return self._start + self._passed

    def monotonic(self) -> float:
        """Return seconds since the clock was created, like ``time.monotonic()``."""
        return self._passed

    def advance(self, seconds: float) -> None:
        """Advance the clock.

        Raises:
            ValueError: ``seconds`` is negative.
        """
        if not seconds >= 0:
            raise ValueError(f"the clock cannot go back: advance it by 0 seconds or more, not by {seconds!r}")
        self._passed += seconds


class EventLog(list[Event]):
    """A list that collects the events of a run.

    Example:
        >>> log = EventLog()
        >>> scripted_agent(["hello"], sinks=[log]).run("hi")
        >>> assert len(log.of(ModelReplied)) == 1
    """

    def __init__(self, *, every_call: bool = False) -> None:
        super().__init__()
        self.every_call = every_call

    def __call__(self, event: Event) -> None:
        """Append an event."""
        self.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        """Return the events of one type."""
        return [event for event in self if isinstance(event, kind)]


@contextmanager
def inject_fault(
    hooks: Agent[Any, Any] | HookRegistry, name: str, fault: Fault, *, seconds: float | None = None
) -> Iterator[list[str]]:
    """Make a hook fail at every call inside the ``with`` block.

    Args:
        hooks: the agent or registry that contains the hook.
        name: the name of the hook.
        fault: ``raise`` an error, ``hang`` for ``seconds``, or return ``nonsense``.
        seconds: how long the hook hangs; by default until its timeout.

    Yields:
        A list to which each call appends the name of its point.

    Raises:
        RegistrationError: there is no hook with this name, or it would hang without a timeout.

    Example:
        >>> with inject_fault(agent, "no_sudo", "raise") as calls, pytest.raises(RunFailedError):
        ...     agent.run("Try it.")
        >>> assert calls == ["before_tool"]
    """
    if fault not in get_args(Fault):
        raise ValueError(f"unknown fault {fault!r}; expected one of {', '.join(get_args(Fault))}")
    registry = hooks.hooks if isinstance(hooks, Agent) else hooks
    before, calls = registry._entries, []
    if not any(entry.name == name for entry in before):
        raise RegistrationError(
            f"there is no hook named {name!r}.{did_you_mean(name, [entry.name for entry in before])}"
        )

    if fault == "hang" and seconds is None and any(e.name == name and e.timeout is None for e in before):
        raise RegistrationError(
            f"hook {name!r} has no timeout and would hang forever: register it with timeout=, or pass seconds="
        )

    def failing(entry: Any) -> Any:
        async def hang(ctx: Any, payload: Any) -> None:
            calls.append(str(entry.point))
            await asyncio.sleep(3600 if seconds is None else seconds)

        def fail(ctx: Any, payload: Any) -> Any:
            calls.append(str(entry.point))
            if fault == "raise":
                raise RuntimeError(f"injected fault in {name!r}")
            return object()

        options = {
            key: getattr(entry, key) for key in ("priority", "phase", "on_failure", "timeout", "plugin", "tools")
        }
        made: Callable[..., Any] = hang if fault == "hang" else fail
        (bad,) = compile_hook(made, points=entry.point, name=name, **options)
        return msgspec.structs.replace(bad, hook=entry.hook, id_set=entry.id_set)

    faulty = {id(entry): failing(entry) for entry in before if entry.name == name}
    originals = {id(bad): entry for entry in before if (bad := faulty.get(id(entry)))}
    registry._change(lambda entries: tuple(faulty.get(id(entry), entry) for entry in entries))
    try:
        yield calls
    finally:
        registry._change(lambda entries: tuple(originals.get(id(entry), entry) for entry in entries))
