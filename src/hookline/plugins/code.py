"""The code of one plugin: loaded as a package of its own, and taken out again without a trace."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import itertools
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from .._base.frozen import EMPTY
from .._base.text import describe, did_you_mean
from .._kernel.hook import DecoratedFunction
from .._kernel.points import Point
from ..tools._tool import Tool
from .errors import LoadError
from .points import captured

PREFIX = "_hookline_plugin_"
_FILE = re.compile(r"(?P<file>.+)\.py(?::(?P<name>[\w.]+))?")
_MODULE = re.compile(r"(?P<module>[\w.]+):(?P<name>[\w.]+)")
T = TypeVar("T")
_numbers = itertools.count(1)


class _Source(importlib.machinery.SourceFileLoader):
    """Code as the file has it now: compiled files are as old as a second, and would be left behind in the folder."""

    def path_stats(self, path: Any) -> Any:
        raise OSError("no compiled files")


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the modules of plugins that are folders."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        if not name.startswith(PREFIX) or not path:
            return None
        place = Path(path[0]) / name.rpartition(".")[2]
        file, folders = place.with_suffix(".py"), None
        if place.is_dir():
            file, folders = place / "__init__.py", [str(place)]
        if not file.is_file():
            if folders is None:
                return None
            spec = importlib.machinery.ModuleSpec(name, None, is_package=True)
            spec.submodule_search_locations = folders
            return spec
        loader = _Source(name, str(file))
        return importlib.util.spec_from_file_location(name, file, loader=loader, submodule_search_locations=folders)


_finder = _Finder()


class Code:
    """The modules of one plugin.

    Args:
        plugin: its id.
        folder: where they are.
        package: the name under which Python finds them, if they are installed; else they get one that is theirs alone.
        settings: what classes and functions with a parameter ``settings`` are called with.
        before: code of an older version, which must not stand in the way.
    """

    def __init__(
        self, plugin: str, folder: Path | None, package: str = "", settings: Mapping[str, Any] = EMPTY,
        before: Any = None,
    ) -> None:  # fmt: skip
        self.folder, self.installed, self.settings = folder, bool(package), settings
        self.package = package or f"{PREFIX}{re.sub(r'[^0-9a-z]', '_', plugin)}_{next(_numbers)}"
        self.points: list[Point[Any]] = []
        self._modules: dict[str, ModuleType] = {}
        self._before = before if isinstance(before, Code) else None

    def load(self, work: Callable[[], T]) -> T:
        """Do work that imports the code; its points are declared meanwhile, and not after it.

        If it fails, nothing is left in ``sys.modules``, and an older version is there again.
        """
        before = self._before
        if before is not None and self.installed:  # the same names: they must be imported anew
            before.unload()
        known = dict(sys.modules)
        try:
            with captured(() if before is None else before.points) as self.points:
                self._open()
                made = work()
        except BaseException:
            self._collect(known)
            self.unload()
            if before is not None:
                before.put_back()
            raise
        self._collect(known)
        return made

    def unload(self) -> None:
        """Take its modules out of ``sys.modules``."""
        for name, module in self._modules.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]

    def put_back(self) -> None:
        """The opposite: an older version goes on after all."""
        sys.modules.update(self._modules)

    def _open(self) -> None:
        importlib.invalidate_caches()
        if self.folder is None or self.installed:
            return
        if _finder not in sys.meta_path:
            sys.meta_path.insert(0, _finder)  # before the one that keeps compiled files
        start = self.folder / "__init__.py"
        loader = _Source(self.package, str(start)) if start.is_file() else None
        spec = importlib.machinery.ModuleSpec(self.package, loader, origin=str(start), is_package=True)
        spec.submodule_search_locations = [str(self.folder)]
        spec.has_location = loader is not None
        package = importlib.util.module_from_spec(spec)
        sys.modules[self.package] = package
        if loader is not None:
            self._guarded("__init__.py", lambda: loader.exec_module(package))

    def _collect(self, known: Mapping[str, ModuleType]) -> None:
        top = self.package.partition(".")[0]
        for name, module in list(sys.modules.items()):
            if known.get(name) is not module and name.partition(".")[0] == top:
                self._modules[name] = module

    def values(self, kind: str, texts: Iterable[str]) -> list[Any]:
        """What these references point at; the kinds are fields of a manifest. For :meth:`load`.

        Raises:
            LoadError: one leads nowhere, or its code fails.
        """
        return [value for text in texts for value in self._found(kind, text)]

    def _found(self, kind: str, text: str) -> list[Any]:
        module, name = self._module(text)
        if not name:
            if kind not in ("hooks", "tools"):
                raise LoadError(f"{kind}: {text!r} names a whole file: write {text}:NAME")
            return self._in_file(kind, text, module)
        value: Any = module
        for part in name.split("."):
            if not hasattr(value, part):
                raise LoadError(f"{kind}: {text} has no {name!r}.{did_you_mean(part, dir(value))}")
            value = getattr(value, part)
        if kind in ("hooks", "tools") and _wants_settings(value):
            value = self._made(kind, text, value)
        return list(value) if kind in ("hooks", "tools") and isinstance(value, (list, tuple)) else [value]

    def _made(self, kind: str, text: str, make: Any) -> Any:
        takes = "settings" in inspect.signature(make).parameters
        try:
            return make(settings=self.settings) if takes else make()
        except Exception as error:
            raise LoadError(f"{kind}: {text} cannot be made: {describe(error)}") from error

    def _in_file(self, kind: str, text: str, module: ModuleType) -> list[Any]:
        found: list[Any] = list(getattr(module, kind, ()))
        wanted = DecoratedFunction if kind == "hooks" else Tool
        for value in vars(module).values():
            own = isinstance(value, wanted) and getattr(value.fn, "__module__", "") == module.__name__
            if own and not any(value is known for known in found):
                found.append(value)
        if not found:
            raise LoadError(f"{kind}: {text} holds none: name one, as in {text}:NAME")
        return found

    def _module(self, text: str) -> tuple[ModuleType, str]:
        assert self.folder is not None  # only a manifest has references
        if match := _FILE.fullmatch(text):
            path = Path(match["file"])
            if path.is_absolute() or ".." in path.parts:
                raise LoadError(f"{text!r} is not in the plugin's own folder")
            if not (self.folder / f"{match['file']}.py").is_file():
                raise LoadError(f"{text!r}: there is no file {self.folder / match['file']}.py")
            return self._imported(text, f"{self.package}.{'.'.join(path.parts)}"), match["name"] or ""
        if not (match := _MODULE.fullmatch(text)):
            raise LoadError(f"{text!r} names no code: write FILE.py:NAME or module:NAME")
        inside = self.folder / match["module"].replace(".", "/")
        mine = inside.with_suffix(".py").is_file() or inside.is_dir()
        name = f"{self.package}.{match['module']}" if mine else match["module"]
        return self._imported(text, name), match["name"]

    def _imported(self, text: str, name: str) -> Any:
        return self._guarded(text, lambda: importlib.import_module(name))

    def _guarded(self, text: str, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except KeyboardInterrupt:
            raise
        except LoadError:
            raise
        except BaseException as error:
            hint, folder = "", self.folder
            if folder and isinstance(error, ModuleNotFoundError) and error.name and "." not in error.name:
                beside = folder / error.name
                if beside.with_suffix(".py").is_file() or beside.is_dir():
                    hint = f". It is in the plugin's own folder: write 'from . import {error.name}'"
            raise LoadError(f"{text}: {self._place(error)}{describe(error)}{hint}") from error

    def _place(self, error: BaseException) -> str:
        if isinstance(error, SyntaxError):
            return f"{error.filename}, line {error.lineno}: "
        frames = [f for f in traceback.extract_tb(error.__traceback__) if _inside(f.filename, self.folder)]
        return f"{frames[-1].filename}, line {frames[-1].lineno}: " if frames else ""


def _wants_settings(value: Any) -> bool:
    """Whether it makes hooks or tools: a class, or a function with nothing but ``settings``."""
    if isinstance(value, type):
        return True
    return inspect.isfunction(value) and list(inspect.signature(value).parameters) == ["settings"]


def _inside(file: Any, folder: Path | None) -> bool:
    return folder is not None and isinstance(file, str) and Path(file).is_relative_to(folder)
