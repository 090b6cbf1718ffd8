"""Check every file before its code runs: whether other users could have written it, and whether its content is trusted.

Owners and permissions are always checked. Contents are checked inside :func:`only_trusted`, which the command line uses
while a configuration file is in use: in the folders of the project, a file runs only if its digest is known. The check
is part of the import system, because only there it is certain which files are loaded. It compiles the bytes that it has
checked, so bytecode in ``__pycache__``, or a file that is swapped meanwhile, has no effect.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from .._base.files import distrust_reason
from .errors import UntrustedFileError

IsTrusted = Callable[[Path, str], bool]
"""Returns whether the user trusts a file with this digest."""


def digest(data: bytes) -> str:
    """Return the SHA-256 digest of a file's content."""
    return hashlib.sha256(data).hexdigest()


class TrustedFiles:
    """The files that may be used while a configuration file is in use.

    Args:
        folders: the folders of the project, in which each file must be trusted.
        is_trusted: returns whether the user trusts a file with this digest.
        named: files and folders that the user named on the command line or in the environment, trusted for this run.
    """

    def __init__(self, folders: Iterable[Path], is_trusted: IsTrusted, named: Iterable[Path] = ()) -> None:
        self.folders = tuple(dict.fromkeys(folder.resolve() for folder in folders))
        self._is_trusted = is_trusted
        self._named = {path.resolve() for path in named}

    def add(self, paths: Iterable[Path]) -> None:
        """Trust files or folders that the user named, until the end of this run."""
        self._named.update(path.resolve() for path in paths)

    @property
    def named(self) -> tuple[Path, ...]:
        """The files and folders that the user named."""
        return tuple(sorted(self._named))

    def top(self, path: Path) -> Path | None:
        """Return the folder of the project that contains a resolved path."""
        return next((folder for folder in self.folders if path.is_relative_to(folder)), None)

    def check(self, path: Path, data: bytes) -> None:
        """Raise ``UntrustedFileError`` if a file belongs to the project and its content is not trusted."""
        real = path.resolve()
        if not belongs_to(path, self.folders) or not self._named.isdisjoint((real, *real.parents)):
            return
        if not self._is_trusted(real, digest(data)):
            run = f"hookline trust {shlex.quote(str(real))}"
            raise UntrustedFileError(f"{real} is not trusted, or has changed: read it, then run '{run}'")


_current: TrustedFiles | None = None


def check_file(path: Path, data: bytes) -> None:
    """Check a file before its content is used.

    Args:
        path: the file.
        data: its content.

    Raises:
        UntrustedFileError: others could have written the file, or the user has not trusted its content.
    """
    real = path.resolve()
    top = None if _current is None else _current.top(real)
    if not is_installed(real) and (problem := distrust_reason(path, top)):
        raise UntrustedFileError(f"{path} is not used: {problem}. Change its owner or permissions: chmod go-w, chown")
    if _current is not None:
        _current.check(path, data)


@contextmanager
def only_trusted(files: TrustedFiles | None) -> Iterator[None]:
    """Inside the block, files of a project are loaded only if they are trusted; ``None`` changes nothing.

    This applies to the whole process, like the import system.
    """
    global _current
    if files is None:
        yield
        return
    before, finder = _current, _TrustFinder(files)
    _installation()  # now, because the finder needs it to check the modules that it imports
    _current = files
    sys.meta_path.insert(0, finder)
    try:
        yield
    finally:
        _current = before
        sys.meta_path.remove(finder)


def files_in_use() -> TrustedFiles | None:
    """Return the files that may be used in this process; ``None`` if every file may be."""
    return _current


def trust_named(*paths: Path) -> None:
    """Trust files or folders that the user has named as arguments of a command, until it ends."""
    if _current is not None:
        _current.add(paths)


class SourceLoader(importlib.machinery.SourceFileLoader):
    """Loads a source file after :func:`check_file`, without a bytecode cache: that could be out of date, or forged."""

    def get_code(self, fullname: str) -> CodeType:
        """Compile the content that was checked."""
        path = self.get_filename(fullname)
        data = self.get_data(path)
        check_file(Path(path), data)
        return self.source_to_code(data, path)


class _TrustFinder(importlib.abc.MetaPathFinder):
    """Finds modules with the other finders, and checks those that belong to the project."""

    def __init__(self, files: TrustedFiles) -> None:
        self._files = files

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        spec = find_module(name, path, target)
        if spec is None or not spec.has_location or isinstance(spec.loader, SourceLoader):
            return spec
        file = Path(spec.origin)
        if not belongs_to(file, self._files.folders):
            return spec
        if type(spec.loader) is importlib.machinery.SourceFileLoader:
            spec.loader, spec.cached = SourceLoader(name, spec.origin), None
            return spec
        try:
            check_file(file, file.read_bytes())  # an extension module, or bytecode without source
        except OSError as error:
            raise UntrustedFileError(f"the module {name} at {spec.origin} cannot be checked: {error}") from error
        return spec


def find_module(name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> Any:
    """Find a module as an import would, without executing anything; ``None`` if there is none.

    Args:
        name: its full name.
        path: the folders of its package; ``None`` for a module without a package.
        target: a hint for finders.
    """
    for finder in sys.meta_path:
        find = getattr(finder, "find_spec", None)
        if find is None or isinstance(finder, _TrustFinder):
            continue
        if (spec := find(name, path, target)) is not None:
            return spec
    return None


def belongs_to(path: Path, folders: Iterable[Path]) -> bool:
    """Return whether a file belongs to a project with these folders: it, or a link to it, is there.

    A link that leads out of the project is a file of the project, because its author chose the target.
    """
    if is_installed(path.absolute()):  # most imports end here
        return False
    forms = {path.absolute(), path.resolve()}
    return any(form.is_relative_to(folder) for form in forms for folder in folders) and not is_installed(path.resolve())


def is_installed(path: Path | str) -> bool:
    """Return whether an absolute path belongs to the Python installation, its packages, or Hookline itself.

    A path that is a text must be normalised.
    """
    # Compared as text, because this is asked about each module that is loaded: ``Path`` takes 20 times as long.
    return os.path.join(os.path.normcase(path), "").startswith(_installation())


@lru_cache(1)
def _installation() -> tuple[str, ...]:
    """Return the folders of the installation, each with a separator at its end."""
    import site
    import sysconfig

    names = ("stdlib", "platstdlib", "purelib", "platlib")
    places = [*map(sysconfig.get_path, names), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        places.append(site.getusersitepackages())
    places.append(str(Path(__file__).parents[1]))
    forms = [form for place in places for form in (Path(place).absolute(), Path(place).resolve())]
    return tuple(dict.fromkeys(os.path.join(os.path.normcase(form), "") for form in forms))
