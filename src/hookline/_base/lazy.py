"""Public modules that import a name when it is first used.

Each public module is a stub (``points.pyi``) that lists its names once, for type checkers and editors, and a module
(``points.py``) that reads the same list when the first name is asked for. So ``import hookline`` costs next to nothing,
and a program imports only the parts that it uses. Reading a stub takes less than a millisecond.

The library ``lazy-loader`` does the same with its ``attach_stub``. It is not used because it would be a dependency of
every installation for these few lines, and because it accepts no import from a parent package (``from ..providers``).
"""

from __future__ import annotations

import sys
from importlib import import_module

TYPE_CHECKING = False  # typing itself takes longer to import than everything else here
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

_read: dict[str, dict[str, tuple[str, str]]] = {}


def exports(module: str) -> Mapping[str, tuple[str, str]]:
    """The names in the stub of a module that has been imported: for each, the module and the name it comes from."""
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
    """The ``__getattr__`` and ``__dir__`` of a public module; ``__getattr__`` also makes its ``__all__``.

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
