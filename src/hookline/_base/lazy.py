"""Public modules that import a name when it is first used.

Each public module consists of a stub (``points.pyi``), which lists its names for type checkers and editors, and a
module (``points.py``), which reads the same list when a name is first used. So ``import hookline`` is fast, and a
program imports only the parts that it uses. Reading a stub takes less than a millisecond.

The library ``lazy-loader`` has ``attach_stub`` for this. It is not used because it would be a dependency of every
installation for these few lines, and because it rejects imports from a parent package (``from ..providers``).
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # importing typing would take longer than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_read: dict[str, dict[str, tuple[str, str]]] = {}


def exports(module: str) -> Mapping[str, tuple[str, str]]:
    """Return the names in the stub of an imported module, each with its original module and name."""
    if module not in _read:
        _read[module] = _names_in_stub(sys.modules[module].__spec__)
    return _read[module]


def _names_in_stub(spec: Any) -> dict[str, tuple[str, str]]:
    """Return the names in the stub of a module, which need not be imported."""
    import ast
    from importlib.util import resolve_name

    stub = ast.parse(spec.loader.get_data(f"{spec.origin.rpartition('.')[0]}.pyi"))
    found: dict[str, tuple[str, str]] = {}
    for line in stub.body:
        if isinstance(line, ast.ImportFrom):
            home = resolve_name("." * line.level + (line.module or ""), spec.parent)
            found |= {alias.asname or alias.name: (home, alias.name) for alias in line.names}
    return found


def attach(module: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return ``__getattr__`` and ``__dir__`` for a public module; ``__getattr__`` also provides ``__all__``.

    Example::

        __getattr__, __dir__ = attach(__name__)
    """

    def load(name: str) -> Any:
        value: Any
        if name == "__all__":
            value = sorted(export for export in exports(module) if not export.startswith("_"))
        elif name in exports(module):
            home, original = exports(module)[name]
            value = getattr(import_module(home), original)
        else:
            elsewhere = "" if name.startswith("_") else _home_of(module, name)
            if elsewhere and _is_import_of_names(sys._getframe(1)):
                found = f"it is in {elsewhere}. Write: from {elsewhere} import {name}"
                raise ImportError(f"cannot import name {name!r} from {module!r}: {found}", name=module)
            hint = f": it is in {elsewhere}" if elsewhere else ""
            raise AttributeError(f"module {module!r} has no attribute {name!r}{hint}", name=name)
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *load("__all__")})

    return load, names


def _home_of(module: str, name: str) -> str:
    """Return the public module of the same package that has a name which this module does not have; empty if none."""
    from contextlib import suppress
    from importlib.util import find_spec
    from pkgutil import iter_modules

    package = module.partition(".")[0]
    for each in iter_modules(sys.modules[package].__path__, f"{package}."):
        with suppress(OSError):  # a module without a stub
            if not each.name.rpartition(".")[2].startswith("_") and name in _names_in_stub(find_spec(each.name)):
                return each.name
    return ""


def _is_import_of_names(frame: Any) -> bool:
    """Whether a frame executes ``from MODULE import NAME``.

    Python replaces an ``AttributeError`` there by its own ``ImportError``, without our message.
    """
    from dis import opmap

    return bool(frame.f_code.co_code[frame.f_lasti] == opmap["IMPORT_FROM"])
