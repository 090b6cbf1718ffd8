"""What the hooks of an adapter cannot see: calls that a framework or a vendor makes itself, and agents without hooks.

A tool whose calls certainly bypass the hooks is refused before the model is called. An agent without hooks that the
function of a tool seems to start is reported in the log, because the code of the function only suggests it.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from inspect import isfunction, ismethod, ismodule, unwrap
from types import CodeType
from typing import Any
from weakref import WeakKeyDictionary

from .._kernel.errors import RegistrationError
from .._kernel.points import AFTER_LLM, AFTER_TOOL, BEFORE_LLM, BEFORE_TOOL, ON_TOKEN, Point
from .._kernel.registry import HookRegistry
from .._kernel.scope import CURRENT
from .._run.engine import Engine
from .._run.events import log

TOOL_POINTS: tuple[Point[Any], ...] = (BEFORE_TOOL, AFTER_TOOL)
CALL_POINTS: tuple[Point[Any], ...] = (BEFORE_LLM, ON_TOKEN, AFTER_LLM, *TOOL_POINTS)
"""The points around the calls of models and tools."""

_GLOBAL = frozenset(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_DEREF"))


class UnseenCalls:
    """Refuses and reports what the hooks of one adapter cannot see.

    Args:
        framework: the name of the framework.
        hooks: the hooks of the adapter.
        unguarded: the names of the tools that no hook needs to judge.
    """

    def __init__(self, framework: str, hooks: HookRegistry, unguarded: frozenset[str]) -> None:
        self._framework, self._hooks, self._unguarded = framework, hooks, unguarded
        self._reported: set[str] = set()
        self._searched: WeakKeyDictionary[Any, set[str]] = WeakKeyDictionary()
        """The functions that were searched; of objects with such methods, the names of these."""

    def refuse(
        self, name: str, what: str, instead: str = "Remove it", points: Sequence[Point[Any]] = TOOL_POINTS
    ) -> None:
        """Refuse a tool whose calls hooks cannot judge, unless it is named in ``unguarded=``.

        Args:
            name: the name of the tool.
            what: what it is, such as "the tool 'search' is run by the provider".
            instead: what to do instead of allowing it.
            points: where a hook must be; ``CALL_POINTS`` for a tool that runs another agent.

        Raises:
            RegistrationError: there is a hook at one of these points.
        """
        if judging := self._points(name, points):
            point = judging[0]
            raise RegistrationError(
                f"{what}: hooks at {point} cannot judge its calls. {instead}, or allow it with unguarded=[{name!r}]"
            )

    def report_agent(self, name: str, what: str, instead: str) -> None:
        """Log a warning about an agent without hooks, once, unless it is named in ``unguarded=``.

        Args:
            name: the name of the tool or agent.
            what: what runs the agent, such as "the tool 'ask' uses the agent 'helper'".
            instead: what to do.
        """
        if what not in self._reported and self._points(name, CALL_POINTS):
            self._reported.add(what)
            log.warning(
                "%s: %s, whose calls Hookline's hooks do not judge. %s, or allow it with unguarded=[%r]",
                self._framework,
                what,
                instead,
                name,
            )

    def report_agents_of(self, tool: str, function: Any, name_of: Callable[[Any], str | None], instead: str) -> None:
        """Log a warning about each agent without hooks that the function of a tool uses.

        Args:
            tool: the name of the tool.
            function: its function.
            name_of: returns the name of an agent without hooks, and ``None`` for other values.
            instead: what to do.
        """
        for value in self.new_values_of(function):
            if (name := name_of(value)) is not None:
                self.report_agent(tool, f"the tool {tool!r} uses the agent {name!r}", instead)

    def new_values_of(self, function: Any) -> Iterator[Any]:
        """Yield the objects that a function uses (:func:`values_of`), if it was not searched before."""
        owner = function if isfunction(function) else getattr(function, "__self__", function)
        try:
            searched = self._searched.setdefault(owner, set())
        except TypeError:  # it has no hash or no weak reference
            searched = set()
        name = str(getattr(function, "__name__", ""))
        if name not in searched:
            searched.add(name)
            yield from values_of(function)

    def _points(self, name: str, points: Sequence[Point[Any]]) -> list[Point[Any]]:
        """Return the points that have a hook: of this adapter, or of the run in which the framework is started."""
        if name in self._unguarded:
            return []
        outer = CURRENT.get()
        stacks = [self._hooks.stack, *([outer.hooks.inheritable()] if isinstance(outer, Engine) else [])]
        return [point for point in points if any(stack.at(point) for stack in stacks)]


def values_of(function: Any) -> Iterator[Any]:
    """Yield the objects that a function uses by name: of its module, its closure, and of the object that it belongs to.

    Functions of the same module that it calls are searched too.

    Example::

        helper = Agent(...)

        def ask(question: str) -> str:
            return helper(question)

        list(values_of(ask))  # [helper]
    """
    module = getattr(_plain(function), "__module__", None)
    waiting, seen = [function], set[int]()
    while waiting:
        given = waiting.pop()
        if id(given) in seen:
            continue
        seen.add(id(given))
        if isinstance(given, partial):
            yield from (*given.args, *given.keywords.values())
        if ismethod(given) and hasattr(given.__self__, "__dict__"):
            yield given.__self__
            yield from vars(given.__self__).values()
        plain = _plain(given)
        if not isfunction(plain):
            if callable(plain) and hasattr(plain, "__dict__"):
                yield from vars(plain).values()
                waiting.append(type(plain).__call__)
            continue
        for value in _named(plain.__code__, _scope(plain)):
            yield value
            if isfunction(value) and value.__module__ == module:
                waiting.append(value)


def _plain(function: Any) -> Any:
    while isinstance(function, partial):
        function = function.func
    return unwrap(getattr(function, "__func__", function))


def _scope(function: Any) -> Mapping[str, Any]:
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    closed = {name: cell.cell_contents for name, cell in cells if _is_filled(cell)}
    return {**function.__globals__, **closed}


def _is_filled(cell: Any) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - an empty cell raises
    except ValueError:
        return False
    return True


def _named(code: CodeType, scope: Mapping[str, Any]) -> Iterator[Any]:
    """Yield the values of the names that code loads from outside, and of attributes of modules."""
    module: Any = None
    for step in dis.get_instructions(code):
        if step.opname in _GLOBAL:
            module = value = scope.get(str(step.argval))
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD") and ismodule(module):
            module = value = getattr(module, str(step.argval), None)
        else:
            if step.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG"):
                module = None
            continue
        if value is not None:
            yield value
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _named(constant, scope)
