"""Tools for testing your own hooks: a scripted model, a clock, single fires, and faults on demand.

With Hookline installed, pytest offers the fixtures ``scripted_agent``, ``fire_hook`` and
``inject_fault``; they are these functions.
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
from ._kernel.hook import compile_hook
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
    """A payload for a point; what you do not give is empty.

    Raises:
        TypeError: a field the payload does not have, or of the wrong type.
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
        point: where to fire.
        payload: the payload; a :func:`sample` made of ``fields`` if left out.
        ctx: a context; a fresh one if left out.
        fields: fields of the payload.

    Raises:
        HookError: the hook failed closed.
        RegistrationError: it is no hook at that point.
    """
    where = resolve(point)
    registry = HookRegistry()
    registry.register(hook, points=None if hasattr(hook, "points") else where)
    if not registry.at(where):
        raise RegistrationError(f"{hook!r} is not a hook at {where}: nothing would be tested")
    given = payload if payload is not None else sample(where, **fields)
    return await registry.fire(where, given, ctx=ctx if ctx is not None else AgentContext())


def fire_hook(hook: Any, point: str, payload: Any = None, *, ctx: Any = None, **fields: Any) -> Verdict:
    """:func:`afire_hook`, for tests that are not async.

    Raises:
        RuntimeError: it is called in an async test.
    """
    if running_loop() is not None:
        raise RuntimeError("an event loop is running: use await hookline.testing.afire_hook(...) in an async test")
    return asyncio.run(afire_hook(hook, point, payload, ctx=ctx, **fields))


def make_context(
    *, tools: Iterable[Tool | Callable[..., Any] | Toolset] = (), **options: Unpack[ContextOptions]
) -> AgentContext[Any]:
    """A context with the tools of a run, for hooks that are tried outside of one; options as for :class:`AgentContext`.

    Example:
        >>> fire_hook(guard, BEFORE_TOOL, name="delete_file", ctx=make_context(tools=[delete_file]))
    """
    ctx: AgentContext[Any] = AgentContext(**options)
    services_of(ctx).tools = ToolRegistry(tools)
    return ctx


@overload
def scripted_agent(
    turns: Iterable[Any], *, name: str = "test", instructions: str = "",
    output_type: None = None, **options: Unpack[CommonAgentOptions[DepsT]],
) -> Agent[DepsT, str]: ...  # fmt: skip
@overload
def scripted_agent(
    turns: Iterable[Any], *, name: str = "test", instructions: str = "",
    output_type: type[OutputT], **options: Unpack[CommonAgentOptions[DepsT]],
) -> Agent[DepsT, OutputT]: ...  # fmt: skip
@overload
def scripted_agent(
    turns: Iterable[Any], *, name: str = "test", instructions: str = "",
    output_type: Any, **options: Unpack[CommonAgentOptions[Any]],
) -> Agent[Any, Any]: ...  # fmt: skip
def scripted_agent(
    turns: Iterable[Any], *, name: str = "test", instructions: str = "",
    output_type: Any = None, **options: Unpack[CommonAgentOptions[Any]],
) -> Agent[Any, Any]:  # fmt: skip
    """An agent on a :class:`ScriptedModel` that plays ``turns``; options as for :class:`Agent`."""
    return Agent(name, "", instructions, llm=ScriptedModel(turns), output_type=output_type, **options)


class FakeClock:
    """A clock that stands still until you advance it: ``AgentContext(clock=FakeClock(datetime(2026, 11, 14, 3)))``.

    Args:
        start: what time it is, as a ``datetime`` or in seconds since 1970; ``monotonic()`` begins at 0.
    """

    def __init__(self, start: datetime | float = 1_700_000_000.0) -> None:
        self._start = start.timestamp() if isinstance(start, datetime) else float(start)
        self._passed = 0.0

    def time(self) -> float:
        """Seconds since 1970, as ``time.time()`` gives them."""
        return self._start + self._passed

    def monotonic(self) -> float:
        """Seconds since it was made, as ``time.monotonic()`` gives them."""
        return self._passed

    def advance(self, seconds: float) -> None:
        """Let time pass.

        Raises:
            ValueError: a number below 0.
        """
        if not seconds >= 0:
            raise ValueError(f"time does not go back: advance by 0 seconds or more, not by {seconds!r}")
        self._passed += seconds


class EventLog(list[Event]):
    """A sink that keeps the events: ``Agent(..., sinks=[log := EventLog()])``."""

    def __init__(self, *, every_call: bool = False) -> None:
        super().__init__()
        self.every_call = every_call

    def __call__(self, event: Event) -> None:
        """Keep one event."""
        self.append(event)

    def of(self, kind: type[Event]) -> list[Any]:
        """The events of one type."""
        return [event for event in self if isinstance(event, kind)]


@contextmanager
def inject_fault(
    hooks: Agent[Any, Any] | HookRegistry, name: str, fault: Fault, *, seconds: float | None = None
) -> Iterator[list[str]]:
    """Make the hook called ``name`` fail at every call, until the block is left.

    Args:
        hooks: the agent or registry that holds it.
        name: the hook's name.
        fault: ``raise`` an error, ``hang`` for ``seconds``, or return ``nonsense``.
        seconds: how long a hanging hook hangs; for ever, if it has a timeout and this is left out.

    Yields:
        A list that grows by the name of the point at each call.

    Raises:
        RegistrationError: there is no hook of that name, or it is to hang and has no timeout.
    """
    if fault not in get_args(Fault):
        raise ValueError(f"unknown fault {fault!r}; expected one of {', '.join(get_args(Fault))}")
    registry = hooks.hooks if isinstance(hooks, Agent) else hooks
    before, calls = registry._entries, []
    if not any(entry.name == name for entry in before):
        raise RegistrationError(f"no hook is called {name!r}.{did_you_mean(name, [entry.name for entry in before])}")

    if fault == "hang" and seconds is None and any(e.name == name and e.timeout is None for e in before):
        raise RegistrationError(f"hook {name!r} has no timeout: a hang would never be noticed; give it timeout=")

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

    spoiled = {id(entry): failing(entry) for entry in before if entry.name == name}
    healed = {id(bad): entry for entry in before if (bad := spoiled.get(id(entry)))}
    registry._change(lambda entries: tuple(spoiled.get(id(entry), entry) for entry in entries))
    try:
        yield calls
    finally:
        registry._change(lambda entries: tuple(healed.get(id(entry), entry) for entry in entries))
