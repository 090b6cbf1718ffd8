"""The rules in force: a digest of the hooks of a run that decide, with their code, their arguments and their order.

Records, facts and the audit log name it with each verdict, so a change of rules shows in every list. Versions of agents
(:mod:`hookline.stores.pinning`) are made of the same parts.

Python has no library for this. Pickling an object would compare too much (open files, caches, what a hook remembers)
and its class too little: pickle stores the name of a class, not its code.
"""

from __future__ import annotations

import ast
import dis
import enum
import functools
import hashlib
import inspect
import logging
import pathlib
import re
import sys
import sysconfig
import textwrap
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from types import CodeType, FunctionType, ModuleType
from typing import Any

from .._base.frozen import encoded
from .._base.text import without_addresses
from .._kernel.hook import function_of
from .._kernel.hook_code import GENERATED
from .._kernel.registry import HookStack

log = logging.getLogger("hookline")

_SECRET = re.compile(r"(?:^|_)(?:password|passphrase|secret|token|credential|(?:api|secret|private)_key)$")
_MAX_DEPTH = 5
_MAX_REACHED = 200
"""Maximum number of functions, classes and constants of a project that count as the code of one hook."""
_PLAIN = (str, int, float, bool, type(None))
_STATE = (*_PLAIN, list, dict, set, bytearray)
"""Types of attributes that an object may change: they are arguments only if the constructor has such a parameter."""
SHORT_DIGEST = 8
"""Number of characters of a digest that people read."""
_MAX_STACKS = 64
_known: dict[int, tuple[Callable[[], Any], str]] = {}
_stacks: dict[int, tuple[HookStack, str]] = {}
_rules: dict[tuple[tuple[int, ...], ...], tuple[Any, str]] = {}
"""Digests by the entries of the hooks, which are kept with them so that no other object gets their ids."""


def rules_of(stack: HookStack) -> str:
    """Return the digest of the rules: the hooks that do not only observe; empty without any.

    A hook is looked at when it is first seen, which is before its first run: what it remembers later is not part of its
    arguments. Stacks are immutable, so the result is kept, for all stacks that differ only in observers: a server makes
    one for each run. A hook that cannot be looked at, because one of its attributes raises an error, never stops a run:
    the digest is ``unknown``.
    """
    known = _stacks.get(id(stack))
    if known is None or known[0] is not stack:
        if len(_stacks) >= _MAX_STACKS:
            _stacks.clear()
        known = _stacks[id(stack)] = stack, _digest_of(stack)
    return known[1]


def _digest_of(stack: HookStack) -> str:
    deciding = tuple(tuple(entry for entry in layer if entry.phase != "observe") for layer in stack.layers)
    key = tuple(tuple(map(id, layer)) for layer in deciding)
    known = _rules.get(key)
    if known is None:
        try:
            parts = rule_parts(stack)
            found = digest(sorted(parts.items()), 16) if parts else ""
        except Exception:
            log.exception("a hook has an attribute that cannot be read, so the rules have no digest")
            found = "unknown"
        if len(_rules) >= _MAX_STACKS:
            _rules.clear()
        known = _rules[key] = deciding, found
    return known[1]


def rule_parts(stack: HookStack, owner: str = "") -> dict[str, str]:
    """Return a digest for each hook that does not only observe, with its place at each point."""
    found: dict[tuple[int, str], list[Any]] = {}
    for point in sorted(stack.points):
        deciding = [entry for entry in stack.entries(point) if entry.phase != "observe"]
        for order, entry in enumerate(deciding):
            at = str(point), entry.phase, entry.priority, entry.tools, entry.on_failure, entry.timeout, order
            found.setdefault((id(entry.hook), entry.name), [entry.hook]).append(at)
    parts: dict[str, str] = {}
    for (_, name), (hook, *places) in found.items():
        key = f"hook {without_addresses(name)}{owner}"
        number = sum(each.partition(" #")[0] == key for each in parts)
        content = hook_digest(hook)
        parts[f"{key} #{number + 1}" if number else key] = digest([content, places])
    return parts


def hook_digest(hook: Any) -> str:
    """Return a digest of the code and the arguments of a hook."""
    return once(function_of(hook), lambda hook: digest([rule_of(hook), describe(hook)]))


def once(thing: Any, describe: Callable[[Any], str]) -> str:
    """Return the description of an object, made when it is first seen."""
    key = id(thing)
    known = _known.get(key)
    if known is None or known[0]() is not thing:
        text = describe(thing)
        try:
            found: Callable[[], Any] = weakref.ref(thing, lambda _: _known.pop(key, None))
        except TypeError:  # an object without weak references is kept
            found = functools.partial(_same, thing)
        known = _known[key] = found, text
    return known[1]


def _same(thing: Any) -> Any:
    return thing


def digest(value: Any, length: int = 8) -> str:
    """Return the beginning of the SHA-256 digest of a value as JSON."""
    return hashlib.sha256(encoded(value)).hexdigest()[:length]


# Code.


def code_of(thing: Any) -> str:
    """Return a digest of the code of a function, or of the class of an object with its base classes.

    Comments, docstrings and formatting make no difference, nor does the module. Functions that it calls are not part.
    """
    return digest([_normal_source(each) for each in _code_objects(thing)])


def rule_of(thing: Any) -> str:
    """Return a digest of the code of a hook, with the code and the constants of its project that it uses.

    It is computed once for all functions of one definition, and for all objects of one class.
    """
    code = _code_objects(thing)
    first = code[0] if code else type(thing)
    return once(getattr(first, "__code__", first), lambda _: digest([code_of(thing), _reached(code)]))


def _code_objects(thing: Any) -> list[Any]:
    """Return a function, or the class of an object with its base classes."""
    while isinstance(thing, functools.partial):
        thing = thing.func
    thing = inspect.unwrap(getattr(thing, "__func__", thing))
    if inspect.isroutine(thing):
        return [thing]
    home = thing if isinstance(thing, type) else type(thing)
    return [base for base in home.__mro__ if base.__module__ not in ("builtins", "typing", "abc", "typing_extensions")]


def _reached(start: Iterable[Any]) -> list[tuple[str, Any]]:
    """Return what code names, directly or through what it names, in the modules of its own project.

    A function or class has its source, a constant its value. Python code can also reach functions in other ways, such
    as through an attribute of an object or a dict of functions: those are not found.
    """
    found: dict[tuple[str, int], tuple[str, Any]] = {}
    seen = {id(each) for each in start}
    waiting = [each for each in start if _is_of_project(each)]
    while waiting and len(found) < _MAX_REACHED:
        named: dict[tuple[str, str], Any] = {}
        for function in (each for thing in waiting for each in _functions_of(thing)):
            named |= _named_in(function)
        waiting = []
        for (_, name), value in sorted(named.items()):
            if id(value) in seen and not isinstance(value, _CONSTANTS):
                continue
            if isinstance(value, (FunctionType, type)):
                seen.add(id(value))
                if _is_of_project(value):
                    found[name, id(value)] = name, [_normal_source(each) for each in _code_objects(value)]
                    waiting.append(value)
            elif _is_constant(value) and not _SECRET.search(name.lower()):
                found[name, id(value)] = name, describe(value)
    return sorted(found.values(), key=encoded)


def _functions_of(thing: Any) -> list[FunctionType]:
    """Return a function, or the functions of a class."""
    own = [thing] if not isinstance(thing, type) else [getattr(each, "fget", each) for each in vars(thing).values()]
    functions = [
        inspect.unwrap(getattr(each, "__func__", each)) for each in own if callable(each) or hasattr(each, "__func__")
    ]
    return [each for each in functions if isinstance(each, FunctionType)]


def _named_in(function: FunctionType) -> dict[tuple[str, str], Any]:
    """Return the global variables that a function reads, by module and name, and those of the modules that it names."""
    names, changed, codes = set[str](), set[str](), [function.__code__]
    while codes:
        code = codes.pop()
        names.update(code.co_names)
        changed |= {str(each.argval) for each in dis.get_instructions(code) if each.opname == "STORE_GLOBAL"}
        codes += [each for each in code.co_consts if isinstance(each, CodeType)]
    found: dict[tuple[str, str], Any] = {}
    for name in sorted(names - changed):
        value = function.__globals__.get(name)
        if isinstance(value, ModuleType):
            if _is_project_module(value):
                inner = vars(value)
                found |= {(name, each): inner[each] for each in names if each in inner}
        elif name in function.__globals__:
            found["", name] = value
    return {key: value for key, value in found.items() if not isinstance(value, ModuleType)}


_CONSTANTS = (*_PLAIN, tuple, frozenset, re.Pattern)


def _is_constant(value: Any) -> bool:
    """Whether a value cannot change: a list or a dict may be what a module remembers."""
    return isinstance(value, _CONSTANTS) and (
        not isinstance(value, (tuple, frozenset)) or all(map(_is_constant, value))
    )


def _is_of_project(thing: Any) -> bool:
    module = sys.modules.get(getattr(thing, "__module__", None) or "")
    return module is not None and _is_project_module(module)


@functools.cache
def _foreign_folders() -> tuple[pathlib.Path, ...]:
    """Return the folders of Python, of installed packages and of Hookline."""
    folders = [sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")]
    return (*(pathlib.Path(folder).resolve() for folder in folders), pathlib.Path(__file__).resolve().parents[1])


def _is_project_module(module: ModuleType) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and _is_project_file(file)


@functools.lru_cache(maxsize=1_000)
def _is_project_file(file: str) -> bool:
    path = pathlib.Path(file).resolve()
    if {"site-packages", "dist-packages"} & set(path.parts):
        return False
    return not any(path.is_relative_to(folder) for folder in _foreign_folders())


@functools.lru_cache(maxsize=1_000)
def _file_digest(file: str) -> str:
    try:
        return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()
    except OSError:  # in an archive
        return ""


def _normal_source(thing: Any) -> str:
    """Return the source of a function or class without comments and docstrings, or its byte code if there is none.

    For Hookline's own hooks it is a digest of the file, because parsing all of them would take a tenth of a second.
    """
    if _package(thing) == __name__.partition(".")[0]:
        return f"{thing.__qualname__} {_file_digest(sys.modules[thing.__module__].__file__ or '')}"
    code = getattr(thing, "__code__", None)
    try:
        if code is not None and code.co_filename == GENERATED:
            raise OSError("no file has its source")
        source = textwrap.dedent(inspect.getsource(thing))
    except (OSError, TypeError):
        return str(getattr(thing, "__qualname__", "")) if code is None else f"{code.co_code.hex()} {code.co_names}"
    with suppress(SyntaxError):  # such as a lambda in the middle of a statement
        tree = ast.parse(source)
        for node in ast.walk(tree):
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and ast.get_docstring(node):
                node.body = node.body[1:] or [ast.Pass()]
        return ast.unparse(tree)
    return source


# Arguments.


def describe(value: Any, above: tuple[Any, ...] = ()) -> Any:
    """Return a value that JSON can hold and that is the same in every process, for the arguments of a hook."""
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, _PLAIN):
        return value
    if isinstance(value, (pathlib.PurePath, range)):
        return str(value)
    if isinstance(value, (bytes, bytearray)):
        return "bytes"  # such as a random key
    if isinstance(value, re.Pattern):
        return [str(value.pattern), value.flags]
    if isinstance(value, type):
        return value.__qualname__
    if len(above) >= _MAX_DEPTH or any(value is each for each in above):
        return type(value).__qualname__
    inner = (*above, value)
    if isinstance(value, Mapping):
        pairs = [[describe(key, inner), describe(each, inner)] for key, each in value.items()]
        return sorted(pairs, key=encoded)
    if isinstance(value, (set, frozenset)):
        return sorted([describe(each, inner) for each in value], key=encoded)
    if isinstance(value, (list, tuple)):
        return [describe(each, inner) for each in value]
    if isinstance(value, functools.partial):
        return [rule_of(value), describe([value.args, value.keywords], inner)]
    if inspect.isroutine(value):
        return [rule_of(value), describe(_enclosed(value), inner), describe(getattr(value, "__self__", None), inner)]
    return [type(value).__qualname__, {name: describe(each, inner) for name, each in _arguments(value, above)}]


def _enclosed(function: Any) -> dict[str, Any]:
    """Return the variables of enclosing functions that a function uses."""
    function = inspect.unwrap(getattr(function, "__func__", function))
    if getattr(function, "__closure__", None) is None:
        return {}
    found: dict[str, Any] = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__, strict=True):
        with suppress(ValueError):  # it has no value yet
            found[name] = cell.cell_contents
    return found


def _arguments(value: Any, above: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of an object that come from its arguments, without secrets, which change without a reason.

    They are named like a parameter of the constructor, with or without an underscore, or are objects that were made of
    them: a counter or a time that an object notes for itself is neither. Models, stores and objects of other packages
    than the hook's are places, not rules.
    """
    if hasattr(value, "complete"):
        yield "name", getattr(value, "name", "")
        return
    fields: Iterable[str] = getattr(value, "__struct_fields__", ()) or getattr(value, "__dataclass_fields__", ())
    if fields:
        yield from ((name, getattr(value, name, None)) for name in fields if not _SECRET.search(name))
    elif _package(value) == _package(above[0] if above else value) and not _is_store(value):
        parameters = _parameters(type(value))  # type: ignore[arg-type] # mypy thinks that a class has no hash
        if parameters is None:
            return
        for name, each in sorted(getattr(value, "__dict__", {}).items()):
            given = name.lstrip("_") in parameters or not isinstance(each, _STATE)
            if given and not _SECRET.search(name):
                yield name, each


@functools.lru_cache(maxsize=1_000)
def _parameters(cls: type) -> frozenset[str] | None:
    """Return the names of the parameters of a class; ``None`` for a class without a signature."""
    try:
        return frozenset(inspect.signature(cls).parameters)
    except (ValueError, TypeError):
        return None


def _package(thing: Any) -> str:
    return str(getattr(thing, "__module__", "")).partition(".")[0]


def _is_store(thing: Any) -> bool:
    return type(thing).__module__.startswith("hookline.stores")
