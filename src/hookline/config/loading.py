"""Load hooks and tools from files (``FILE.py``, ``FILE.py:name``, ``FILE.toml``) and modules (``module:name``)."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import msgspec

from .._base.text import describe, did_you_mean, error_text
from .._kernel.errors import RegistrationError
from .._kernel.hook import function_of
from .._kernel.registry import HookRegistry
from ..hooks._catalog import BUILTINS, load_builtin
from ..hooks.shadow_mode import Shadow
from ..plugins.errors import LoadError
from ..plugins.files import importable, load_file
from ..plugins.plugin import Plugin
from ..tools._tool import Tool
from .secrets import mask, mask_values
from .settings import DeclaredHook
from .sources import Reference, parse_reference

_HOOK_HELP = (
    "A hook is a function decorated with @hook, @guard or @observer, an object with points, or an item of a list named "
    "'hooks'; imported hooks do not count"
)


class LoadedHook(msgspec.Struct, frozen=True):
    """A loaded hook, and the options to register it with."""

    hook: Any
    options: Mapping[str, Any]
    use: str

    def register(self, registry: HookRegistry) -> None:
        """Register the hook.

        Raises:
            LoadError: the hook or its options are invalid.
        """
        try:
            registry.register(self.hook, **self.options)
        except RegistrationError as error:
            where = f"{self.use} with {', '.join(self.options)}" if self.options else source_location(self.hook)
            raise LoadError(f"{where}: {error}") from error


def load_hooks(items: Iterable[str | DeclaredHook], home: Path) -> tuple[list[LoadedHook], list[Plugin]]:
    """Load hooks and plugins by reference.

    Args:
        items: references, or hooks declared in a configuration file.
        home: the folder in which modules are searched after the Python path.

    Raises:
        LoadError: a reference cannot be resolved, or is not a hook.
    """
    hooks: list[LoadedHook] = []
    plugins: list[Plugin] = []
    for item in items:
        declared = item if isinstance(item, DeclaredHook) else DeclaredHook(item)
        found = _load_hook(declared, home)
        kind = "a plugin" if any(isinstance(value, Plugin) for value in found) else "a bundle of hooks"
        if declared.options and (len(found) > 1 or kind == "a plugin"):
            given = ", ".join(declared.options)
            raise LoadError(f"{declared.use} is {kind}, so {given} cannot be set for it. Name its hooks one by one")
        for value in found:
            if isinstance(value, Plugin):
                plugins.append(value)
            else:
                loaded = LoadedHook(value, declared.options, declared.use)
                loaded.register(HookRegistry())  # report every mistake now
                hooks.append(loaded)
    return hooks, plugins


def load_tools(items: Iterable[str], home: Path) -> list[Any]:
    """Load tools by reference.

    Raises:
        LoadError: a reference cannot be resolved, or is not a tool.
    """
    tools: list[Any] = []
    for item in items:
        reference = parse_reference(item)
        if reference.is_data:
            raise LoadError(f"{item} has rules, not tools: name it in hooks")
        if reference.file is not None and not reference.name:
            module, names = load_file(reference.file)
            found = _find_in_file(module, names, "tools", lambda value: isinstance(value, Tool))
            if not found:
                raise LoadError(
                    f"{reference.file} has no tools. A tool is a function decorated with @tool, or an item of a list "
                    "named 'tools'"
                )
        else:
            value = _lookup(reference, home, "tool")
            found = list(value) if isinstance(value, (list, tuple)) else [value]
        for tool in found:
            if isinstance(tool, type) or not (callable(tool) or callable(getattr(tool, "tools", None))):
                raise LoadError(f"{item} is a {type(tool).__name__}, not a tool: decorate a function with @tool")
            if not any(tool is known for known in tools):
                tools.append(tool)
    return tools


def load_function(use: str, home: Path) -> Callable[..., Any]:
    """Load a function by reference.

    Raises:
        LoadError: the reference cannot be resolved, or is not a function.
    """
    reference = parse_reference(use)
    if not reference.name:
        raise LoadError(f"{use!r} does not name a function: write FILE.py:name or module:name")
    value = _lookup(reference, home, "function")
    if not callable(value):
        raise LoadError(f"{use} is a {type(value).__name__}, not a function")
    return value  # type: ignore[no-any-return]


def source_location(hook: Any) -> str:
    """Return where a hook is defined, as ``file:line``; the name of its class if that is unknown."""
    hook = hook.hook if isinstance(hook, Shadow) else hook
    if isinstance(place := getattr(hook, "place", None), str):  # of a rule in a file
        return place
    target = function_of(hook)
    target = inspect.unwrap(getattr(target, "__func__", target))
    code = getattr(target, "__code__", None)
    if code is not None:
        return f"{code.co_filename}:{code.co_firstlineno}"
    kind: Any = type(target)
    return _class_location(kind)


@lru_cache(maxsize=256)  # it reads and parses the file
def _class_location(kind: Any) -> str:
    try:
        return f"{inspect.getsourcefile(kind)}:{inspect.getsourcelines(kind)[1]}"
    except (OSError, TypeError):
        return f"{kind.__module__}.{kind.__qualname__}"


def _load_hook(declared: DeclaredHook, home: Path) -> list[Any]:
    reference = parse_reference(declared.use)
    if reference.is_data:
        return list(_construct(load_builtin("load_rules"), _with_path(declared)))
    if reference.file is not None and not reference.name:
        if declared.args:
            raise LoadError(f"{declared.use}: args need a single hook: name it, as in FILE.py:NAME")
        module, names = load_file(reference.file)
        found = _find_in_file(module, names, "hooks", _is_hook)
        if not found:
            classes = [name for name in names if isinstance(getattr(module, name, None), type)]
            hint = f" Name its class: {reference.file.name}:{classes[0]}" if classes else ""
            raise LoadError(f"{reference.file} has no hooks. {_HOOK_HELP}.{hint}")
        return found
    built_in = reference.file is None and ":" not in declared.use
    value = _built_in(declared.use, home) if built_in else _lookup(reference, home, "hook")
    if isinstance(value, type) or ((built_in or declared.args) and callable(value) and not _is_hook(value)):
        value = _construct(value, declared)
    elif declared.args:
        raise LoadError(f"{declared.use} takes no args: it is a {type(value).__name__}")
    if isinstance(value, HookRegistry):
        value = list(value)
    values = list(value) if isinstance(value, (list, tuple)) else [value]
    for item in values:
        if not (_is_hook(item) or isinstance(item, Plugin) or (callable(item) and declared.points)):
            raise LoadError(f"{declared.use} is a {type(item).__name__}, not a hook. {_HOOK_HELP}.")
    return values


def _with_path(declared: DeclaredHook) -> DeclaredHook:
    """Return the declaration of a file of rules as one of the function that reads it."""
    return msgspec.structs.replace(declared, args={**declared.args, "path": declared.use})


def _is_hook(value: Any) -> bool:
    return not isinstance(value, (type, HookRegistry)) and callable(value) and hasattr(value, "points")


def _find_in_file(module: Any, names: list[str], list_name: str, wanted: Callable[[Any], bool]) -> list[Any]:
    found: list[Any] = []
    for name in names:
        value = getattr(module, name, None)
        if name == list_name and isinstance(value, (list, tuple)):
            items = list(value)
        else:
            items = [value] if wanted(value) else []
        found += [item for item in items if not any(item is known for known in found)]
    return found


def _construct(value: Any, declared: DeclaredHook) -> Any:
    check_args(value, declared.use, declared.args)
    try:
        return value(**declared.args)
    except Exception as error:
        args = ", ".join(f"{name}={given!r:.60}" for name, given in mask(declared.args).items())
        reason = mask_values(declared.args, describe(error))
        raise LoadError(f"{declared.use} cannot be created with ({args}): {reason}") from error


def check_args(make: Any, use: str, args: Mapping[str, Any]) -> None:
    """Check the names of arguments against a signature. Errors do not show values, which may be secrets.

    Raises:
        LoadError: an argument is unknown, or a required one is missing.
    """
    try:
        takes = inspect.signature(make)
    except (TypeError, ValueError):  # a builtin without a signature
        return
    try:
        takes.bind(**args)
    except TypeError as error:
        named = [p for p in takes.parameters.values() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
        known = [p.name for p in named]
        for name in args:
            if name not in known:
                what = f"It takes {', '.join(known)}" if known else "It takes no args"
                raise LoadError(f"{use} has no argument {name!r}.{did_you_mean(name, known)} {what}") from error
        missing = [p.name for p in named if p.default is p.empty and p.name not in args]
        if not missing:  # it needs a positional-only argument
            return
        given = ", ".join(f"{name} = ..." for name in (*args, *missing))
        example = f'{{ use = "{use}", args = {{ {given} }} }}'
        raise LoadError(f"{use} needs {', '.join(missing)}: {example}") from error


def _built_in(name: str, home: Path) -> Any:
    """Return the class of a built-in hook, or the function that creates a bundle of hooks."""
    if name not in BUILTINS:
        kind = name.removesuffix("s").title()  # "guards" means each of PathGuard, EgressGuard, ...
        alike = [f"{name}.py"] if (home / f"{name}.py").is_file() else [b for b in BUILTINS if b.endswith(kind)]
        is_clear = 0 < len(alike) < 10
        known = f" Did you mean {' or '.join(map(repr, alike))}?" if is_clear else did_you_mean(name, BUILTINS)
        own = "For your own hook, write FILE.py, FILE.py:name or module:name"
        raise LoadError(f"there is no built-in hook {name!r}.{known} 'hookline hooks --built-in' shows all. {own}")
    return load_builtin(name)


def _lookup(reference: Reference, home: Path, kind: str) -> Any:
    """Return the object that a reference with a name refers to."""
    if reference.file is not None:
        module: Any = load_file(reference.file)[0]
        names = [name for name in vars(module) if not name.startswith("__")]
    else:
        if not reference.name or not reference.module:
            raise LoadError(f"{reference.text!r} is not a {kind}: write FILE.py, FILE.py:name or module:name")
        module = _import_module(reference, home)
        names = dir(module)
    value = module
    for part in reference.name.split("."):
        if not hasattr(value, part):
            place = reference.file or reference.module
            raise LoadError(f"{place} has no {reference.name!r}.{did_you_mean(part, names)}")
        value = getattr(value, part)
        names = dir(value)
    return value


def _import_module(reference: Reference, home: Path) -> Any:
    try:
        with importable(home, Path.cwd()):
            return importlib.import_module(reference.module)
    except ModuleNotFoundError as error:
        if error.name and (reference.module == error.name or reference.module.startswith(f"{error.name}.")):
            raise LoadError(f"{reference.text}: there is no module {error.name!r}") from error
        raise LoadError(f"{reference.text}: {error_text(error)}") from error
    except Exception as error:
        raise LoadError(f"{reference.text}: the module cannot be imported: {describe(error)}") from error
