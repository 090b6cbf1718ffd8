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
        import ast
        from importlib.util import resolve_name

        spec: Any = sys.modules[module].__spec__
        stub = ast.parse(spec.loader.get_data(f"{spec.origin.rpartition('.')[0]}.pyi"))
        found: dict[str, tuple[str, str]] = {}
        for line in stub.body:
            if isinstance(line, ast.ImportFrom):
                home = resolve_name("." * line.level + (line.module or ""), spec.parent)
                found |= {alias.asname or alias.name: (home, alias.name) for alias in line.names}
        _read[module] = found
    return _read[module]


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
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        setattr(sys.modules[module], name, value)
        return value

    def names() -> list[str]:
        return sorted({*vars(sys.modules[module]), *load("__all__")})

    return load, names
