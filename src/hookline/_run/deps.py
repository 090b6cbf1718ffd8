"""The types of ``ctx.deps``: what an agent needs, and what its hooks and tools take (DESIGN 6.4).

Type checkers compare these types precisely. The checks here are for programs without one: they report only what is
certainly wrong, and accept a type that they cannot read.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from types import NoneType, UnionType
from typing import Annotated, Any, NewType, Union, get_args, get_origin, is_typeddict

from .._kernel.errors import RegistrationError
from .._kernel.hook import function_of
from ..tools._tool import Tool
from .context import AgentContext

_PROMOTED = {float: (int,), complex: (int, float)}
"""Types that type checkers accept instead of another one without a common class."""


def check_deps(agent: str, deps_type: Any, deps: object) -> None:
    """Check the ``deps`` of a run.

    Raises:
        TypeError: they are missing, or have another type than ``deps_type``.
    """
    if _is_instance(deps, deps_type):
        return
    wanted = _name(deps_type)
    if deps is None:
        raise TypeError(
            f"agent {agent!r} needs deps: give it a {wanted} as deps=..., or as ctx=AgentContext(deps=...). A nested "
            "run has the deps of its outer run"
        )
    raise TypeError(f"deps= of agent {agent!r} takes a {wanted}, not a {type(deps).__name__}")


def need_of_deps(answerer: Any) -> str:
    """Return why runs of an agent, a team or a roster cannot start without ``deps``; empty if they can."""
    members = getattr(answerer, "members", None)
    for agent in members.values() if isinstance(members, Mapping) else (getattr(answerer, "base", answerer),):
        deps_type = getattr(agent, "deps_type", None)
        if not _is_instance(None, deps_type):
            return f"agent {agent.name!r} needs deps of the type {_name(deps_type)}"
    return ""


def check_context_types(agent: str, deps_type: Any, hooks: Iterable[Any] = (), tools: Iterable[Tool] = ()) -> None:
    """Check the annotations of hooks and tools against the ``deps_type`` of their agent.

    Raises:
        RegistrationError: one of them takes an ``AgentContext`` with ``deps`` of another type.
    """
    if deps_type is None:
        return
    for kind, items in (("hook", hooks), ("tool", tools)):
        for item in items:
            function = item.fn if isinstance(item, Tool) else function_of(item)
            taken = _taken_deps(_code_of(function))
            if not _may_be(deps_type, taken):
                name = getattr(item, "name", None)
                name = name if isinstance(name, str) else getattr(item, "__name__", type(item).__name__)
                raise RegistrationError(
                    f"{kind} {name!r} takes an AgentContext[{_name(taken)}], but the deps_type of agent {agent!r} is "
                    f"{_name(deps_type)}"
                )


def _code_of(function: Any) -> Any:
    """Return the function with the annotations: of an object that can be called, its method."""
    while isinstance(function, partial):
        function = function.func
    function = inspect.unwrap(function)
    if not inspect.isroutine(function):
        function = inspect.unwrap(type(function).__call__)
    return getattr(function, "__func__", function)


@lru_cache(maxsize=1000)  # some programs make an agent for each request, with the same hooks
def _taken_deps(function: Any) -> Any:
    """Return ``Deps`` if a parameter of a function has the type ``AgentContext[Deps]``, else ``Any``."""
    try:
        annotations = [hint for name, hint in function.__annotations__.items() if name != "return"]
    except Exception:  # noqa: BLE001 - a builtin has none, and a deferred annotation may raise anything
        return Any
    for annotation in annotations:
        for member in _members(_evaluated(annotation, function)):
            if get_origin(member) is AgentContext:
                return get_args(member)[0]
    return Any


def _evaluated(annotation: Any, function: Any) -> Any:
    """Return the type that an annotation means, or the annotation itself if that is unknown.

    ``get_type_hints`` would fail if any other annotation is unknown.
    """
    if not isinstance(annotation, str):
        return annotation
    try:
        return eval(annotation, function.__globals__)
    except Exception:  # noqa: BLE001 - a local name, or one that only type checkers know
        return annotation


def _may_be(given: Any, wanted: Any) -> bool:
    """Whether a value of one type may be one of another type. False only if that is certain."""
    return any(_is_related(one, other) for one in _members(given) for other in _members(wanted))


def _is_related(given: Any, wanted: Any) -> bool:
    one, other = _class_of(given), _class_of(wanted)
    if one is None or other is None:
        return True
    try:  # a subclass is accepted both ways: the deps of a run may be more specific than the deps_type
        return issubclass(one, other) or issubclass(other, one) or one in _PROMOTED.get(other, ())
    except Exception:  # noqa: BLE001 - a metaclass may raise anything
        return True


def _is_instance(value: object, kind: Any) -> bool:
    """Whether a value has a type; true for a type that cannot be checked."""
    if kind is None:
        return True
    for member in _members(kind):
        cls = _class_of(member)
        if cls is None or isinstance(value, (cls, *_PROMOTED.get(cls, ()))):
            return True
    return False


def _members(kind: Any) -> tuple[Any, ...]:
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def _class_of(kind: Any) -> type | None:
    """Return the class of a type, or ``None`` for a type that ``isinstance`` cannot check."""
    while True:
        if get_origin(kind) is Annotated:
            kind = get_args(kind)[0]
        elif isinstance(kind, NewType):
            kind = kind.__supertype__
        else:
            break
    kind = NoneType if kind is None else get_origin(kind) or kind
    if not isinstance(kind, type) or kind is Any or is_typeddict(kind) or getattr(kind, "_is_protocol", False):
        return None
    return kind


def _name(kind: Any) -> str:
    is_class = isinstance(kind, type) and not get_args(kind)
    return kind.__name__ if is_class else str(kind).replace("typing.", "")
