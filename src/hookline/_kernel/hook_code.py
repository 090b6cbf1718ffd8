"""What the code of a hook shows, without calling it: the attributes of modules and classes that it uses, the verbs that
it returns, and the fields of the request to the model that it changes.
"""

from __future__ import annotations

import ast
import dis
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from inspect import getsource, isclass, isfunction, ismodule, unwrap
from textwrap import dedent
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

GENERATED = "<string>"
"""The file name of generated code. Since Python 3.13, ``inspect`` takes the text of ``python -c`` for its source."""


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
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_DEREF"):
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
    declared = _declared(hook, "verbs", point)
    if declared is not None:
        return declared
    possible = frozenset((point.model,)) if point.model in ("merge", "claim") else point.verbs
    return frozenset(_verbs(hook)) & possible


def changes_of(hook: Any, point: Point[Any]) -> frozenset[str]:
    """Return the fields that a hook changes at a point, as far as it declares them or its code shows them.

    A hook declares them with an attribute ``changes``: a list of fields, or a list for each of its points. Otherwise
    the same functions as for :func:`verbs_of` are searched for ``replace(FIELD=...)``, ``replace({"FIELD": ...})`` and,
    in the hook itself, ``return {"FIELD": ...}``. The field ``tools`` counts only if tools are added, as in
    ``(*request.tools, mine)``.

    Example::

        @hook(BEFORE_LLM)
        def cheap(ctx, request):
            return request.replace(model="small")

        changes_of(cheap, BEFORE_LLM)  # frozenset({"model"})
    """
    declared = _declared(hook, "changes", point)
    if declared is not None:
        return declared
    main = code_of(hook)
    changed = [each for function in _functions(hook) for each in _changed(function.__code__, function is main)]
    return frozenset([name for name, value in changed if name != "tools" or _adds(value)])


def _declared(hook: Any, name: str, point: Point[Any]) -> frozenset[str] | None:
    declared = getattr(hook, name, None)
    if isinstance(declared, Mapping):
        declared = declared.get(point, ())
    return frozenset(map(str, declared)) if isinstance(declared, (tuple, list, set, frozenset)) else None


def _functions(hook: Any) -> Iterator[Any]:
    """Yield the function of a hook, the methods of its class, and the functions of its module that these call."""
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
        yield function
        for value, name in mentions(function.__code__, function.__globals__):
            if not name and isfunction(value) and value.__module__ == main.__module__:
                functions.append(value)


def _verbs(hook: Any) -> Iterator[str]:
    for function in _functions(hook):
        for value, name in mentions(function.__code__, function.__globals__):
            if value is HookResult and name in _BY_METHOD:
                yield _BY_METHOD[name]


@lru_cache(maxsize=1000)  # some programs make an agent for each request, with the same hooks
def _changed(code: CodeType, returns: bool) -> tuple[tuple[str, ast.expr], ...]:
    """Return the fields that a function changes, each with the expression of its value.

    With ``returns``, a mapping that it returns contains such fields.
    """
    if code.co_filename == GENERATED:
        return ()
    try:
        tree = ast.parse(dedent(getsource(code)))
    except (OSError, SyntaxError, TypeError):
        return ()  # no source, or a lambda in the middle of an expression
    return tuple(_changes_in(tree, returns))


def _changes_in(tree: ast.Module, returns: bool) -> Iterator[tuple[str, ast.expr]]:
    # Only a parameter, or a part of one, may be the payload or the state. What else is replaced are other objects.
    known = {"HookResult", *[node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)]}
    for node in ast.walk(tree):
        given: Iterable[ast.expr | None] = ()
        if isinstance(node, ast.Return) and returns:
            given = [node.value]
        elif isinstance(node, ast.Call) and known & set(_replaced(node)):
            given = node.args
            yield from [(keyword.arg, keyword.value) for keyword in node.keywords if keyword.arg is not None]
        for mapping in given:
            if isinstance(mapping, ast.Dict):
                for key, value in zip(mapping.keys, mapping.values, strict=True):
                    if isinstance(key, ast.Constant):
                        yield str(key.value), value


def _replaced(call: ast.Call) -> Iterator[str]:
    """Yield the names of the objects of which a call may make a changed copy: x in x.replace() and replace(x)."""
    if getattr(call.func, "attr", getattr(call.func, "id", "")) != "replace":
        return
    for each in (getattr(call.func, "value", None), *call.args[:1]):
        node = each
        while isinstance(node, ast.Attribute):
            node = node.value
        if isinstance(node, ast.Name):
            yield node.id


def _adds(tools: ast.expr) -> bool:
    """Whether an expression adds tools to existing ones: ``(*request.tools, mine)`` or ``request.tools + mine``."""
    if isinstance(tools, (ast.Tuple, ast.List)):
        starred = [isinstance(each, ast.Starred) for each in tools.elts]
        return any(starred) and (not all(starred) or len(starred) > 1)
    return isinstance(tools, ast.BinOp) and isinstance(tools.op, ast.Add)
