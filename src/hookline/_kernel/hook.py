"""The decorators for hooks, and all checks that are possible at registration."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypedDict, TypeVar, Unpack, get_args, overload

import msgspec

from .._base.frozen import Frozen
from .._base.text import did_you_mean, expected_hint, is_number
from .._base.workers import in_thread
from .errors import RegistrationError
from .points import Point, resolve

if TYPE_CHECKING:
    from .hook_types import GuardDecorator, HookDecorator, ObserverDecorator

A = TypeVar("A", bound=Frozen)
B = TypeVar("B", bound=Frozen)
C = TypeVar("C", bound=Frozen)
D = TypeVar("D", bound=Frozen)

Phase = Literal["rewrite", "guard", "observe"]
OnFailure = Literal["closed", "block", "open"]
OPTIONS = ("priority", "phase", "name", "on_failure", "timeout", "plugin", "tools")


class Hook(Protocol):
    """A callable with ``points``: a decorated function, or an object of your own. There is no base class.

    An object is called as ``hook(point, ctx, payload)``, or as ``hook(ctx, payload)`` if it takes two arguments.
    Further attributes are options; an option that differs by point is a dict. A hook that rewrites and then judges at
    the same point has two phases there, ``phase = {BEFORE_TOOL: ("rewrite", "guard")}``, and a keyword parameter
    ``phase`` that says which one it is called in.

    Example::

        class CountCalls:
            points = (BEFORE_TOOL,)
            priority = 50

            def __init__(self):
                self.calls = 0

            def __call__(self, point, ctx, payload):
                self.calls += 1
    """

    @property
    def points(self) -> Iterable[str]:
        """The points at which it is called."""
        ...

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return ``None``, a ``HookResult``, the payload, or an awaitable of one of them."""
        ...


class HookOptions(TypedDict, total=False):
    """The options of ``@guard`` and ``@observer``."""

    priority: float
    name: str | None
    on_failure: OnFailure | None
    timeout: float | None
    plugin: str | None
    tools: str | Collection[str] | None


class PhaseOptions(HookOptions, total=False):
    """The options of ``@hook``: also ``phase``."""

    phase: Phase | None


class DecoratedFunction:
    """A function decorated with ``@hook``, ``@guard`` or ``@observer``. Calling it calls the function."""

    def __init__(self, fn: Callable[..., Any], points: tuple[str, ...], options: PhaseOptions) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self._given = points
        self._options = options
        self.points = frozenset(resolve(point) for point in points)
        self.name: str = getattr(fn, "__name__", repr(fn))
        vars(self).update({key: value for key, value in options.items() if value is not None})
        if next(iter(inspect.signature(fn).parameters), "") != "self":  # a method can only be checked when it is bound
            list(compile_hook(self))  # report mistakes where the hook is defined

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type) -> DecoratedFunction:
        """Bind a decorated method to its object."""
        if instance is None:
            return self
        return DecoratedFunction(self.fn.__get__(instance, owner), self._given, self._options)

    def __repr__(self) -> str:
        return f"<hook {self.name} at {', '.join(sorted(self.points))}>"


def function_of(hook: Any) -> Any:
    """Return the function of a decorated hook; any other hook is returned unchanged."""
    return hook.fn if isinstance(hook, DecoratedFunction) else hook


def _decorator(points: tuple[Any, ...], options: PhaseOptions) -> Any:
    if not points or callable(points[0]):
        raise RegistrationError("name at least one point: @hook(BEFORE_TOOL)")
    return lambda fn: DecoratedFunction(fn, points, options)


@overload
def hook(a: Point[A], /, **options: Unpack[PhaseOptions]) -> HookDecorator[A]: ...
@overload
def hook(a: Point[A], b: Point[B], /, **options: Unpack[PhaseOptions]) -> HookDecorator[A | B]: ...
@overload
def hook(a: Point[A], b: Point[B], c: Point[C], /, **options: Unpack[PhaseOptions]) -> HookDecorator[A | B | C]: ...
@overload
def hook(
    a: Point[A], b: Point[B], c: Point[C], d: Point[D], /, **options: Unpack[PhaseOptions]
) -> HookDecorator[A | B | C | D]: ...
@overload
def hook(*points: str, **options: Unpack[PhaseOptions]) -> HookDecorator[Any]: ...
def hook(
    *points: str,
    priority: float = 0,
    phase: Phase | None = None,
    name: str | None = None,
    on_failure: OnFailure | None = None,
    timeout: float | None = None,
    plugin: str | None = None,
    tools: str | Collection[str] | None = None,
) -> Any:
    """Register a function as a hook at ``points``. It takes ``(ctx, payload)`` or ``(point, ctx, payload)``.

    Example::

        @hook(BEFORE_TOOL, tools="delete_*")
        def only_in_tmp(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
            if not str(request.arguments["path"]).startswith("/tmp/"):
                return HookResult.block("Only files in /tmp may be deleted.")
            return None

    Type checkers infer the payload type from the points (a union for several) and check the parameters and the return
    type of the function: ``None``, a ``HookResult``, the payload or a mapping. They do not check hooks whose points
    are given as strings, or that have more than four points.

    Args:
        points: constants or names; the names that other frameworks use for a point work too.
        priority: hooks with a higher priority are called first.
        phase: ``rewrite`` (every verb), ``guard`` (every verb except replace; sees validated arguments) or ``observe``
            (no verbs; always called).
        name: the name in events, errors and results; by default the name of the function.
        on_failure: ``closed`` (the action does not happen and the run fails), ``block`` (the call is blocked) or
            ``open`` (the failure is logged and ignored) (DESIGN 5.1).
        timeout: seconds; a longer call is a failure.
        plugin: the plugin that the hook belongs to.
        tools: one or several globs; the hook is only called for tools that match.

    Raises:
        RegistrationError: an unknown point, a wrong signature, or an option that does not apply.
    """
    options = PhaseOptions(
        priority=priority, phase=phase, name=name, on_failure=on_failure, timeout=timeout, plugin=plugin, tools=tools
    )
    return _decorator(points, options)


@overload
def guard(a: Point[A], /, **options: Unpack[HookOptions]) -> GuardDecorator[A]: ...
@overload
def guard(a: Point[A], b: Point[B], /, **options: Unpack[HookOptions]) -> GuardDecorator[A | B]: ...
@overload
def guard(a: Point[A], b: Point[B], c: Point[C], /, **options: Unpack[HookOptions]) -> GuardDecorator[A | B | C]: ...
@overload
def guard(
    a: Point[A], b: Point[B], c: Point[C], d: Point[D], /, **options: Unpack[HookOptions]
) -> GuardDecorator[A | B | C | D]: ...
@overload
def guard(*points: str, **options: Unpack[HookOptions]) -> GuardDecorator[Any]: ...
def guard(
    *points: str,
    priority: float = 0,
    name: str | None = None,
    on_failure: OnFailure | None = None,
    timeout: float | None = None,
    plugin: str | None = None,
    tools: str | Collection[str] | None = None,
) -> Any:
    """Register a function in the guard phase: it sees the final payload and may block it, but not replace it.

    Options as for :func:`hook`.

    Example::

        @guard(BEFORE_TOOL, tools="shell")
        def no_sudo(ctx: AgentContext, request: ToolCallRequest) -> HookResult | None:
            return HookResult.block("sudo is not allowed.") if "sudo" in request.arguments["command"] else None
    """
    options = PhaseOptions(
        priority=priority, phase="guard", name=name, on_failure=on_failure, timeout=timeout, plugin=plugin, tools=tools
    )
    return _decorator(points, options)


@overload
def observer(a: Point[A], /, **options: Unpack[HookOptions]) -> ObserverDecorator[A]: ...
@overload
def observer(a: Point[A], b: Point[B], /, **options: Unpack[HookOptions]) -> ObserverDecorator[A | B]: ...
@overload
def observer(
    a: Point[A], b: Point[B], c: Point[C], /, **options: Unpack[HookOptions]
) -> ObserverDecorator[A | B | C]: ...
@overload
def observer(
    a: Point[A], b: Point[B], c: Point[C], d: Point[D], /, **options: Unpack[HookOptions]
) -> ObserverDecorator[A | B | C | D]: ...
@overload
def observer(*points: str, **options: Unpack[HookOptions]) -> ObserverDecorator[Any]: ...
def observer(
    *points: str,
    priority: float = 0,
    name: str | None = None,
    on_failure: OnFailure | None = None,
    timeout: float | None = None,
    plugin: str | None = None,
    tools: str | Collection[str] | None = None,
) -> Any:
    """Register a function in the observe phase: it is always called, last, and returns nothing.

    A function with a parameter ``verdict`` also gets the verdict. Options as for :func:`hook`.

    Example::

        @observer(AFTER_TOOL)
        def count(ctx: AgentContext, result: ToolCallResult) -> None:
            metrics[result.name] += 1
    """
    options = PhaseOptions(
        priority=priority,
        phase="observe",
        name=name,
        on_failure=on_failure,
        timeout=timeout,
        plugin=plugin,
        tools=tools,
    )
    return _decorator(points, options)


class HookEntry(msgspec.Struct, frozen=True, eq=False):
    """One hook at one point, ready to be called. ``id_set`` contains the id of the hook.

    A guard with a parameter ``guards`` gets the other guards that are called with it (DESIGN 4.10): ``guards``.
    ``asks_as`` is its name in questions, which no other guard of its chain has.
    """

    hook: Any
    call: Callable[..., Any]
    name: str
    point: Point[Any]
    phase: Phase
    priority: float
    on_failure: OnFailure
    timeout: float | None
    plugin: str | None
    tools: tuple[str, ...]
    is_async: bool
    wants_verdict: bool
    id_set: frozenset[int]
    wants_guards: bool = False
    guards: tuple[HookEntry, ...] = ()
    asks_as: str = ""


def compile_hook(
    hook: Any, *, points: Iterable[str] | str | None = None, **overrides: Unpack[PhaseOptions]
) -> Iterator[HookEntry]:
    """Check a hook and yield an entry for each of its points. ``overrides`` take precedence over its attributes."""
    if not callable(hook) or isinstance(hook, type):
        raise RegistrationError(
            f"{hook!r:.80} is not a hook: {expected_hint(hook, 'an instance with points and __call__')}"
        )
    for key in overrides:
        if key not in OPTIONS:
            raise RegistrationError(f"unknown hook option {key!r}.{did_you_mean(key, OPTIONS)}")
    given: dict[str, Any] = {key: getattr(hook, key, None) for key in OPTIONS}
    given.update({key: value for key, value in overrides.items() if value is not None})
    name = getattr(hook, "__name__", None) or type(hook).__name__
    given = {key: _by_point(name, key, value) if isinstance(value, dict) else value for key, value in given.items()}
    wanted = points if points is not None else getattr(hook, "points", None)
    if wanted is None:
        raise RegistrationError(f"hook {name!r} names no points: decorate it with @hook(POINT) or pass points=")
    for point in dict.fromkeys(resolve(item) for item in ([wanted] if isinstance(wanted, str) else wanted)):
        here = {k: v.get(point) if isinstance(v, dict) else v for k, v in given.items()}
        phases = here["phase"] if isinstance(here["phase"], tuple) else (here["phase"],)
        for phase in phases:
            only_observes = phase == "observe" and len(phases) > 1  # it decides in another phase, with that policy
            on_failure = None if only_observes else here["on_failure"]
            yield _entry(hook, here["name"] or name, point, {**here, "phase": phase, "on_failure": on_failure})


def _by_point(hook: str, option: str, given: dict[str, Any]) -> dict[Point[Any], Any]:
    try:
        return {resolve(point): value for point, value in given.items()}
    except RegistrationError as error:
        raise RegistrationError(
            f"hook {hook!r}: option {option!r} is a dict, so its keys are points: {error}"
        ) from None


def _globs(given: Any) -> tuple[str, ...] | None:
    """Return the option ``tools`` as a tuple, or ``None`` if it is neither a glob nor a list of globs."""
    if given is None or isinstance(given, str):
        return (given,) if given else ()
    if not isinstance(given, Collection) or not all(isinstance(glob, str) for glob in given):
        return None
    return tuple(given)


def _entry(hook: Any, name: str, point: Point[Any], given: dict[str, Any]) -> HookEntry:
    def wrong(problem: str) -> RegistrationError:
        return RegistrationError(f"hook {name!r} at {point}: {problem}")

    phase: Any = given["phase"] or ("observe" if point.model == "observe" else "rewrite")
    if phase not in get_args(Phase):
        raise wrong(f"phase must be one of {', '.join(get_args(Phase))}, not {phase!r}")
    if phase == "guard" and point.model != "pipeline":
        raise wrong(f"guards exist only at pipeline points; this is a {point.model} point")
    if point.model == "observe" and phase != "observe":
        raise wrong("only observers exist at an observe point")
    on_failure: Any = given["on_failure"] or ("open" if phase == "observe" else "closed")
    if on_failure not in get_args(OnFailure):
        raise wrong(f"on_failure must be one of {', '.join(get_args(OnFailure))}, not {on_failure!r}")
    if on_failure == "block" and (point != "before_tool" or phase == "observe"):
        raise wrong("on_failure='block' is for hooks that decide at before_tool; use 'closed' or 'open'")
    timeout, priority = given["timeout"], given["priority"] or 0
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise wrong(f"timeout must be a positive number of seconds, not {timeout!r}")
    if not is_number(priority):
        raise wrong(f"priority must be a number, not {priority!r}")
    tools = _globs(given["tools"])
    if tools is None:
        own = not isinstance(hook, DecoratedFunction) and given["tools"] == getattr(hook, "tools", None)
        raise wrong(
            f"tools= takes a glob of tool names, or a list of them, not {given['tools']!r:.80}"
            + ("; the attribute 'tools' of a hook is read as that option: rename it if it means something else" * own)
        )
    if tools and not point.tool:
        raise wrong("tools= selects calls at tool points only")
    fn = function_of(hook)
    call, extras = _bind(fn, point, phase, wrong)
    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
    if timeout is not None and not is_async:
        call = functools.partial(in_thread, call)
    if tools:
        call = _if_selected(tools, call)
    return HookEntry(
        hook,
        call,
        name,
        point,
        phase,
        priority,
        on_failure,
        timeout,
        given["plugin"],
        tools,
        is_async and not tools,
        "verdict" in extras,
        frozenset((id(hook),)),
        "guards" in extras,
    )


def direct_call(entry: HookEntry) -> Callable[..., Any]:
    """Return the function of a hook as ``(ctx, payload)``, without its globs and without the thread of its timeout."""
    call, _ = _bind(function_of(entry.hook), entry.point, entry.phase, RegistrationError)
    return functools.partial(call, guards=entry.guards) if entry.wants_guards else call


def selects(tools: tuple[str, ...], payload: Any) -> bool:
    """Whether one of these globs matches the tool of a payload. Checked at each call: a rewrite may rename the tool."""
    return not tools or matches(tool_of(payload), tools)


def tool_of(payload: Any) -> str:
    """Return the name of the tool that a payload of a point with ``tool=True`` is about."""
    name: str = payload.tool if hasattr(payload, "tool") else getattr(payload, "name", "")
    return name


def matches(tool: str, globs: tuple[str, ...]) -> bool:
    """Whether one of these globs matches the name of a tool.

    The answers for names of usual length are remembered, because a program asks about the same few tools again and
    again. Names come from models, so neither their number nor their length may fill the memory.
    """
    return _remembered(tool, globs) if len(tool) <= _USUAL_LENGTH else _any_matches(tool, globs)


def _any_matches(tool: str, globs: tuple[str, ...]) -> bool:
    return any(fnmatchcase(tool, glob) for glob in globs)


_USUAL_LENGTH = 128
_remembered = functools.lru_cache(maxsize=4096)(_any_matches)


def unmatched_globs(entries: Iterable[HookEntry], tools: Iterable[str]) -> Iterator[tuple[HookEntry, str]]:
    """Yield the globs of these entries that match none of these tool names, and so are probably misspelt."""
    names = tuple(tools)
    for entry in entries:
        for glob in entry.tools:
            if not any(fnmatchcase(name, glob) for name in names):
                yield entry, glob


def _if_selected(tools: tuple[str, ...], call: Callable[..., Any]) -> Callable[..., Any]:
    """Return the call of a hook that is made only for tools that match."""

    def call_if_selected(ctx: Any, payload: Any, **extras: Any) -> Any:
        return call(ctx, payload, **extras) if selects(tools, payload) else None

    return call_if_selected


def _bind(
    fn: Callable[..., Any], point: Point[Any], phase: Phase, wrong: Callable[[str], RegistrationError]
) -> tuple[Callable[..., Any | Awaitable[Any]], frozenset[str]]:
    """Return the function as ``(ctx, payload)``, and which of ``verdict`` and ``guards`` it takes by name.

    A function with a keyword parameter ``phase`` gets its phase. One that is called in several phases gets the verdict
    as an observer, if ``verdict`` has a default.
    """
    try:
        signature = _signature(fn)
    except (TypeError, ValueError):  # a builtin without a signature
        return functools.partial(fn, point), frozenset()
    params = list(signature.parameters.values())
    # A positional parameter may be named "guards" and take the payload.
    by_name = {p.name for p in params if p.name == "verdict" or (p.name == "guards" and p.kind is p.KEYWORD_ONLY)}
    has_default = any(p.name == "verdict" and p.default is not p.empty for p in params)
    extras = frozenset(by_name - ({"verdict"} if has_default and phase != "observe" else set()))
    if "verdict" in extras and phase != "observe":
        raise wrong("only an observer gets a verdict; use @observer")
    if "guards" in extras and phase != "guard":
        raise wrong("only a guard gets the other guards; use @guard")
    if any(p.name == "phase" and p.kind is p.KEYWORD_ONLY for p in params):
        fn = functools.partial(fn, phase=phase)
        params = [p for p in params if p.name != "phase"]
    slots = [p for p in params if p.name not in by_name and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needs = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name not in by_name for p in params)
    required = 99 if needs else sum(p.default is p.empty for p in slots)  # it has required keyword parameters
    if len(slots) >= 2 >= required and (required == 2 or len(slots) == 2):
        bound = fn
        taken = slots[:2]
    elif required <= 3 and (len(slots) >= 3 or any(p.kind is p.VAR_POSITIONAL for p in params)):
        bound = functools.partial(fn, point)
        taken = slots[:3]
    else:
        raise wrong(f"it must take (ctx, payload) or (point, ctx, payload), not {signature}")
    if _misplaced(taken, point):
        raise wrong(f"its parameters are in the wrong order: (ctx, payload) or (point, ctx, payload), not {signature}")
    return bound, extras


def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a function. That of an object with ``__call__`` is read once for its class."""
    call = getattr(fn, "__call__", None)  # noqa: B004 - not whether it can be called, but how
    if (
        not inspect.ismethod(call)
        or call.__self__ is not fn
        or hasattr(fn, "__signature__")
        or hasattr(fn, "__wrapped__")
    ):
        return inspect.signature(fn)
    return _signature_of_method(call.__func__)


@functools.lru_cache(maxsize=256)
def _signature_of_method(method: Callable[..., Any]) -> inspect.Signature:
    """Return the signature of a method without ``self``."""
    return inspect.signature(method.__get__(object()))


def _misplaced(slots: list[inspect.Parameter], point: Point[Any]) -> bool:
    """Whether names or annotations show that context and payload are swapped."""
    if len(slots) < 2:  # the rest is *args
        return False
    ctx = slots[len(slots) - 2]
    others = [slot for slot in slots if slot is not ctx]
    if _annotation(ctx) == point.payload.__name__ or any(_annotation(slot) == "AgentContext" for slot in others):
        return True
    if _annotation(ctx) == "AgentContext" or ctx.name in _CONTEXT_NAMES:
        return False
    return ctx.name in ("point", "payload", "request") or any(slot.name in _CONTEXT_NAMES for slot in others)


_CONTEXT_NAMES = ("ctx", "context")


def _annotation(param: inspect.Parameter) -> str:
    """Return the plain name of an annotation, which may be a class, a string or a generic alias."""
    given = param.annotation
    if given is param.empty:
        return ""
    text = given if isinstance(given, str) else getattr(given, "__name__", "")
    return text.strip("\"' ").partition("[")[0].rpartition(".")[2]
