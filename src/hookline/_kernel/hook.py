"""Hooks: the decorators, and all checks that can be made before one is ever called."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from typing import Any, Literal, Protocol, get_args

import msgspec

from .._base.names import is_number, nearest, remedy
from .._base.workers import in_thread
from .errors import RegistrationError
from .points import Point, resolve

Phase = Literal["rewrite", "guard", "observe"]
OnFailure = Literal["closed", "block", "open"]
OPTIONS = ("priority", "phase", "name", "on_failure", "timeout", "plugin", "tools")


class Hook(Protocol):
    """What a hook object looks like; options are further attributes, or dicts of them by point. No base class."""

    points: Iterable[str]

    def __call__(self, point: str, ctx: Any, payload: Any, /) -> Any:
        """See the payload; return ``None`` or a ``HookResult``, or an awaitable of one."""


class FunctionHook:
    """A function under ``@hook``, ``@guard`` or ``@observer``; still callable as itself."""

    def __init__(self, fn: Callable[..., Any], points: tuple[str, ...], options: dict[str, Any]) -> None:
        functools.update_wrapper(self, fn)
        self.fn, self._given, self._options = fn, points, options
        self.points = frozenset(resolve(point) for point in points)
        self.name: str = getattr(fn, "__name__", repr(fn))
        vars(self).update(options)
        if next(iter(inspect.signature(fn).parameters), "") != "self":  # a method is checked once it is bound
            list(compile_hook(self))  # every mistake shows where the hook is written

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function itself."""
        return self.fn(*args, **kwargs)

    def __get__(self, instance: object, owner: type) -> FunctionHook:
        """A decorated method, taken from an object, is a hook with its ``self``."""
        return self if instance is None else FunctionHook(self.fn.__get__(instance, owner), self._given, self._options)

    def __repr__(self) -> str:
        return f"<hook {self.name} at {', '.join(sorted(self.points))}>"


def _decorator(points: tuple[Any, ...], options: dict[str, Any]) -> Callable[[Callable[..., Any]], FunctionHook]:
    if not points or callable(points[0]):
        raise RegistrationError("name at least one point: @hook(BEFORE_TOOL)")
    return lambda fn: FunctionHook(fn, points, {key: value for key, value in options.items() if value is not None})


def hook(
    *points: str, priority: float = 0, phase: Phase | None = None, name: str | None = None,
    on_failure: OnFailure | None = None, timeout: float | None = None, plugin: str | None = None,
    tools: str | Iterable[str] | None = None,
) -> Callable[[Callable[..., Any]], FunctionHook]:  # fmt: skip
    """Make a function a hook at ``points``; it takes ``(ctx, payload)`` or ``(point, ctx, payload)``.

    Args:
        points: names or constants; the names other systems use work too.
        priority: higher runs first.
        phase: ``rewrite`` (may use every verb), ``guard`` (every verb but replace; sees the
            validated arguments), ``observe`` (decides nothing, is always called).
        name: how it shows in events, errors and results.
        on_failure: ``closed``, ``block`` or ``open`` (DESIGN 5.1).
        timeout: seconds; running past it is a failure.
        plugin: the plugin it belongs to.
        tools: glob or globs of tool names; only calls of those reach it.

    Raises:
        RegistrationError: an unknown point, a wrong signature, or an option that makes no sense there.
    """
    return _decorator(points, {k: v for k, v in locals().items() if k != "points"})


def guard(*points: str, **options: Any) -> Callable[[Callable[..., Any]], FunctionHook]:
    """Like :func:`hook`, in the guard phase: judges what will really run, and may not replace it."""
    return hook(*points, **{"phase": "guard", **options})


def observer(*points: str, **options: Any) -> Callable[[Callable[..., Any]], FunctionHook]:
    """Like :func:`hook`, in the observe phase: always called, last, with ``verdict`` if it asks for it."""
    return hook(*points, **{"phase": "observe", **options})


class Entry(msgspec.Struct, frozen=True, eq=False):
    """One hook at one point, ready to be called; ``alone`` is its id, in a set."""

    hook: Any
    call: Callable[..., Any]
    name: str
    point: Point
    phase: Phase
    priority: float
    on_failure: OnFailure
    timeout: float | None
    plugin: str | None
    tools: tuple[str, ...]
    is_async: bool
    wants_verdict: bool
    alone: frozenset[int]


def compile_hook(hook: Any, *, points: Iterable[str] | str | None = None, **overrides: Any) -> Iterator[Entry]:
    """Check a hook and give an entry for each of its points; ``overrides`` beat its own options."""
    if not callable(hook) or isinstance(hook, type):
        raise RegistrationError(f"{hook!r:.80} is not a hook: {remedy(hook, 'an instance with points and __call__')}")
    for key in overrides:
        if key not in OPTIONS:
            raise RegistrationError(f"unknown hook option {key!r}.{nearest(key, OPTIONS)}")
    given = {key: getattr(hook, key, None) for key in OPTIONS} | {k: v for k, v in overrides.items() if v is not None}
    given = {k: {resolve(point): o for point, o in v.items()} if isinstance(v, dict) else v for k, v in given.items()}
    name = getattr(hook, "__name__", None) or type(hook).__name__
    wanted = points if points is not None else getattr(hook, "points", None)
    if wanted is None:
        raise RegistrationError(f"hook {name!r} names no points: decorate it with @hook(POINT) or pass points=")
    for point in dict.fromkeys(resolve(item) for item in ([wanted] if isinstance(wanted, str) else wanted)):
        here = {k: v.get(point) if isinstance(v, dict) else v for k, v in given.items()}
        yield _entry(hook, here["name"] or name, point, here)


def _entry(hook: Any, name: str, point: Point, given: dict[str, Any]) -> Entry:
    def wrong(problem: str) -> RegistrationError:
        return RegistrationError(f"hook {name!r} at {point}: {problem}")

    phase: Any = given["phase"] or ("observe" if point.model == "observe" else "rewrite")
    if phase not in get_args(Phase):
        raise wrong(f"phase {phase!r} is none of {', '.join(get_args(Phase))}")
    if phase == "guard" and point.model != "pipeline":
        raise wrong(f"guards exist only at pipeline points; this is a {point.model} point")
    if point.model == "observe" and phase != "observe":
        raise wrong("only observers exist at an observe point")
    on_failure: Any = given["on_failure"] or ("open" if phase == "observe" else "closed")
    if on_failure not in get_args(OnFailure):
        raise wrong(f"on_failure {on_failure!r} is none of {', '.join(get_args(OnFailure))}")
    if on_failure == "block" and (point != "before_tool" or phase == "observe"):
        raise wrong("on_failure='block' is for hooks that decide at before_tool; use 'closed' or 'open'")
    timeout, priority = given["timeout"], given["priority"] or 0
    if timeout is not None and not (is_number(timeout) and timeout > 0):
        raise wrong(f"timeout must be a positive number of seconds, not {timeout!r}")
    if not is_number(priority):
        raise wrong(f"priority must be a number, not {priority!r}")
    tools = given["tools"] or ()
    tools = (tools,) if isinstance(tools, str) else tuple(tools)
    if not all(isinstance(glob, str) for glob in tools):
        raise wrong(f"tools= takes globs of tool names, not {tools!r}")
    if tools and not point.tool:
        raise wrong("tools= selects calls at tool points only")
    fn = hook.fn if isinstance(hook, FunctionHook) else hook
    call, wants_verdict = _bind(fn, point, phase, wrong)
    is_async = inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(type(fn).__call__)
    if timeout is not None and not is_async:
        call = functools.partial(in_thread, call)
    if tools:
        call = functools.partial(_if_selected, tools, call)
    return Entry(
        hook, call, name, point, phase, priority, on_failure, timeout, given["plugin"], tools,
        is_async and not tools, wants_verdict, frozenset((id(hook),)),
    )  # fmt: skip


def selects(tools: tuple[str, ...], payload: Any) -> bool:
    """Whether these globs take in the tool of a payload, as it is now: a rewrite may rename the call."""
    name: str = payload.tool if hasattr(payload, "tool") else getattr(payload, "name", "")
    return not tools or matches(name, tools)


def matches(tool: str, globs: tuple[str, ...]) -> bool:
    """Whether one of these globs takes in the name of a tool."""
    return any(fnmatchcase(tool, glob) for glob in globs)


def _if_selected(tools: tuple[str, ...], call: Callable[..., Any], ctx: Any, payload: Any, **verdict: Any) -> Any:
    return call(ctx, payload, **verdict) if selects(tools, payload) else None


def _bind(
    fn: Callable[..., Any], point: Point, phase: Phase, wrong: Callable[[str], RegistrationError]
) -> tuple[Callable[..., Any | Awaitable[Any]], bool]:
    try:
        params = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):  # a builtin that does not tell
        return functools.partial(fn, point), False
    wants_verdict = any(p.name == "verdict" for p in params)
    if wants_verdict and phase != "observe":
        raise wrong("only an observer gets a verdict; use @observer")
    slots = [p for p in params if p.name != "verdict" and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    needs = any(p.kind is p.KEYWORD_ONLY and p.default is p.empty and p.name != "verdict" for p in params)
    required = 99 if needs else sum(p.default is p.empty for p in slots)  # nobody would give what it needs
    if len(slots) >= 2 >= required and (required == 2 or len(slots) == 2):
        return fn, wants_verdict
    if required <= 3 and (len(slots) >= 3 or any(p.kind is p.VAR_POSITIONAL for p in params)):
        return functools.partial(fn, point), wants_verdict
    raise wrong(f"it must take (ctx, payload) or (point, ctx, payload), not {inspect.signature(fn)}")
