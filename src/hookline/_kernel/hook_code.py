"""Read the code of a hook without calling it: the attributes of modules and classes that it uses, and its verbs."""

from __future__ import annotations

import dis
import sys
from collections.abc import Iterator, Mapping
from inspect import isclass, isfunction, ismodule, unwrap
from types import CodeType
from typing import Any

from .hook import function_of
from .points import Point
from .results import HookAction, HookResult

_BY_METHOD: Mapping[str, str] = {
    "cont": "cont",
    "approve": "claim",
    "deny": "claim",
    "edit": "claim",
    **{str(action): str(action) for action in HookAction},
}


def code_of(hook: Any) -> Any:
    """Return the function that is called for a hook, or ``None`` if it is not written in Python."""
    function: Any = unwrap(function_of(hook))
    if not hasattr(function, "__code__"):
        function = unwrap(type(function).__call__)
    return function if hasattr(function, "__code__") else None


def mentions(code: CodeType, scope: Mapping[str, Any]) -> Iterator[tuple[Any, str]]:
    """Yield what code loads: a named object (object, ""), or an attribute of an object (object, attribute).

    The object is ``None`` if it is not known, as for an attribute of a parameter.
    """
    value: Any = None
    for step in dis.get_instructions(code):
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF"):
            name = str(step.argval)
            value = scope.get(name, sys.modules.get(name))  # a module may be imported in the function
            yield value, ""
        elif step.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            name = str(step.argval)
            if ismodule(value) or isclass(value):
                yield value, name
                value = getattr(value, name, None)
            else:
                yield None, name
        elif step.opname not in ("CACHE", "PUSH_NULL", "EXTENDED_ARG"):
            value = None
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from mentions(constant, scope)


def verbs_of(hook: Any, point: Point[Any]) -> frozenset[str]:
    """Return the verbs that a hook may return at a point, as far as it declares them or its code shows them.

    A hook declares them with an attribute ``verbs``: a list of verbs, or a list for each of its points. Otherwise its
    function, the methods of its class and the functions of its module that they call are searched for
    ``HookResult.VERB``.

    Example::

        @guard(AFTER_LLM)
        def no_promises(ctx, reply):
            return HookResult.retry("Promise nothing.") if "promise" in reply.content else None

        verbs_of(no_promises, AFTER_LLM)  # frozenset({"retry"})
    """
    declared = getattr(hook, "verbs", None)
    if isinstance(declared, Mapping):
        declared = declared.get(point, ())
    if isinstance(declared, (tuple, list, set, frozenset)):
        return frozenset(map(str, declared))
    possible = frozenset((point.model,)) if point.model in ("merge", "claim") else point.verbs
    return frozenset(_verbs(hook)) & possible


def _verbs(hook: Any) -> Iterator[str]:
    main = code_of(hook)
    if main is None:
        return
    functions = [main]
    if main.__name__ == "__call__" and not isfunction(hook):
        functions += [each for kind in type(hook).__mro__[:-1] for each in vars(kind).values() if isfunction(each)]
    seen: set[int] = set()
    while functions:
        function = functions.pop()
        if id(function) in seen:
            continue
        seen.add(id(function))
        for value, name in mentions(function.__code__, function.__globals__):
            if value is HookResult and name in _BY_METHOD:
                yield _BY_METHOD[name]
            elif not name and isfunction(value) and value.__module__ == main.__module__:
                functions.append(value)
