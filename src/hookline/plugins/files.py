"""Load Python files by path. A file is executed once; if it fails, its module is removed again."""

from __future__ import annotations

import ast
import hashlib
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from .._base.text import describe
from .errors import LoadError
from .trust import check_file

_loaded: dict[Path, tuple[str, ModuleType]] = {}


def load_file(path: Path) -> tuple[ModuleType, list[str]]:
    """Execute a file, and return its module and the names that it defines, in order, without imported names.

    While it is executed, it can import modules from its own folder.

    Raises:
        LoadError: the file does not exist, or fails; the message has the line.
        UntrustedFileError: others could have written the file, or the user has not trusted it.
    """
    given, path = path, path.resolve()
    try:
        data = path.read_bytes()
        check_file(given, data)
        source = data.decode()
        tree = ast.parse(source, str(path))
    except FileNotFoundError:
        raise LoadError(f"there is no file {path}") from None
    except SyntaxError as error:
        text = f": {error.text.strip()}" if error.text and error.text.strip() else ""
        raise LoadError(f"{path}, line {error.lineno}: {error.msg}{text}") from error
    except (OSError, ValueError) as error:
        raise LoadError(f"{path} cannot be read: {error}") from error
    known = _loaded.get(path)
    if known is None or known[0] != source:
        _loaded[path] = source, _run(path, source)
    return _loaded[path][1], list(dict.fromkeys(_defined_names(tree.body)))


@contextmanager
def importable(*folders: Path) -> Iterator[None]:
    """Make modules in these folders importable inside the block, after all others.

    Outside the block, a library that tries to import an optional package must not get a file of the user instead.
    """
    places = [str(folder) for folder in folders]
    sys.path += places
    try:
        yield
    finally:
        for place in places:
            _remove_last(place)


def _remove_last(place: str) -> None:
    """Remove the last occurrence from ``sys.path``; an earlier one was there before."""
    for index in reversed(range(len(sys.path))):
        if sys.path[index] == place:
            del sys.path[index]
            return


def _run(path: Path, source: str) -> ModuleType:
    name = f"_hookline_{path.stem}_{hashlib.sha256(str(path).encode()).hexdigest()[:8]}"
    module = ModuleType(name)
    module.__file__ = str(path)
    before = sys.modules.get(name)
    sys.modules[name] = module  # type hints and dataclasses look there
    try:
        with importable(path.parent):
            exec(compile(source, str(path), "exec"), vars(module))
    except BaseException as error:
        if before is None:
            del sys.modules[name]
        else:
            sys.modules[name] = before
        if isinstance(error, KeyboardInterrupt):
            raise
        raise LoadError(f"{_location(path, error)}: {describe(error)}") from error
    return module


def _location(path: Path, error: BaseException) -> str:
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == str(path)]
    return f"{path}, line {lines[-1]}" if lines else str(path)


def _defined_names(body: list[ast.stmt]) -> Iterator[str]:
    """Yield the names that these statements define, other than by import."""
    for node in body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                yield from (part.id for part in ast.walk(target) if isinstance(part, ast.Name))
        else:
            for field in ("body", "orelse", "finalbody"):
                yield from _defined_names(getattr(node, field, []))
            for handler in getattr(node, "handlers", []):
                yield from _defined_names(handler.body)
