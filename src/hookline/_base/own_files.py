"""The files that the tools of an agent must not write: those of Hookline itself, and those that make git run code.

A sandbox, the file tools and the guards all use this list. Hookline's files are not listed by name: code is found in
the modules that this process has loaded, and whatever opens a file of Hookline registers it here.
"""

from __future__ import annotations

import os
import stat
import sys
import weakref
from collections.abc import Iterator
from functools import cache
from itertools import count
from typing import Any, NamedTuple

from .files import fold_path, is_below, matches_globs, user_folder

CONFIG_FILE = "hookline.toml"
"""The name of the configuration file."""

DATA_KEY_FILE = "HOOKLINE_DATA_KEY_FILE"
"""The variable that names the file with the keys for stored data."""

_NAMES = {
    "Hookline's configuration": (CONFIG_FILE,),
    "the recording of a run": ("*.tape", "*.moments"),
    "a setting of git, which can name programs to run": (".gitconfig", ".config/git"),
    "a hook of git, which git runs": (".githooks", ".husky"),
    "a setting of a coding agent, which says that it must ask Hookline, and can name programs to run": (
        *(".claude/settings.json", ".claude/settings.local.json", ".codex/hooks.json", ".codex/config.toml"),
        *(".cursor/hooks.json", ".gemini/settings.json", ".qwen/settings.json", ".github/hooks/*.json"),
        *(
            ".copilot/hooks",
            ".copilot/settings.json",
            ".opencode",
            ".config/opencode",
            "opencode.json",
            "opencode.jsonc",
        ),
        *(".github/copilot/settings.json", ".github/copilot/settings.local.json", ".claude/hooks", ".claude.json"),
        *(".mcp.json", ".cursor/mcp.json"),
    ),
}
"""Files that control an agent, or the programs of its user, in whatever folder they are."""
_PARENTS = tuple(
    f"/{name}/"
    for name in (
        ".claude",
        ".codex",
        ".copilot",
        ".cursor",
        ".gemini",
        ".qwen",
        ".github",
        ".github/copilot",
        ".config",
    )
)
"""The folders of the files above: a folder that is moved or copied to one of these names brings them along."""
_GIT = "part of a git repository, which can name programs to run"
_GIT_PARTS = frozenset({"commondir", "config", "objects", "refs"})
"""Names that make a folder with a file ``HEAD`` a repository, and the file that names programs."""
_ALL_NAMES = (".git", "git~1", *(glob for globs in _NAMES.values() for glob in globs))
MAX_ENTRIES = 50_000
"""Maximum number of files and folders in a folder that a tool may delete or move."""
_CODE_SUFFIXES = (".py", ".pyc", ".so", ".pyd")
_AT_START = frozenset({"sitecustomize", "usercustomize"})
"""Modules that Python imports when it starts, if it finds them."""


class OwnFile(NamedTuple):
    """A file or folder that Hookline uses.

    Args:
        path: the path.
        description: what it is, for messages.
        beside: whether Hookline replaces the file, or creates others beside it, such as the journal of a database. Then
            a sandbox must protect its folder too.
        is_folder: whether it is a folder, which may not exist yet.
        imported: whether modules are imported from the folder. A guard then protects only what would replace a module;
            a sandbox cannot tell, and protects the whole folder.
        others: a glob of further files in the same folder, such as old files of a log.
        optional: whether the file may be missing. A sandbox protects it once it exists.
    """

    path: str
    description: str
    beside: bool = False
    is_folder: bool = False
    imported: bool = False
    others: str = ""
    optional: bool = False


_registered: dict[int, OwnFile] = {}
_numbers = count()


def register_own_file(owner: object, file: OwnFile) -> None:
    """Register a file that Hookline uses, for as long as its ``owner`` exists."""
    number = next(_numbers)
    _registered[number] = file._replace(path=os.path.abspath(file.path))
    weakref.finalize(owner, _registered.pop, number, None).atexit = False


def own_files() -> Iterator[OwnFile]:
    """Return the files and folders that this process uses, with links resolved. Some may not exist yet.

    They include the links in the path of a file, because replacing a link replaces the file.
    """
    for file in (*list(_registered.values()), *_user_files(), *_environment()):
        if not file.optional or os.path.lexists(file.path):
            yield from _with_links(file)
    yield from _import_folders()


def protection_of(path: str, *, removes: bool = False, places: bool = False) -> str | None:
    """Return what a file is, if the tools of an agent must not write it; ``None`` if they may.

    The case of letters does not matter, and links are resolved.

    Args:
        path: a full path, which need not exist.
        removes: whether the file or folder would be deleted or moved: then the files inside it count too.
        places: whether a whole folder may be put there: then the files count that it may contain.
    """
    spelled = os.path.abspath(path)
    forms = dict.fromkeys((os.path.realpath(path), spelled))
    for form in forms:
        if (found := _named(form)) is not None:
            return found
        if places and f"{fold_path(form)}/".endswith(_PARENTS):
            return "a folder for settings that can name programs to run"
    folded = {fold_path(form): form for form in forms}
    files = [*_guarded(), *_loaded_modules()]
    for file, own in files:
        if any(_covers(file, own, *each) or (removes and is_below(own, each[0])) for each in folded.items()):
            return file.description
        packages = folded.items() if places and file.imported and not os.path.lexists(path) else ()
        if any(_covers(file, own, f"{each}/__init__.py", f"{form}/__init__.py") for each, form in packages):
            return file.description
    return _linked(spelled, [file for file, _ in files]) or (_inside(spelled) if removes else None)


def _named(path: str) -> str | None:
    """Return what a file is by its name, or by the git repository that it is in."""
    if _is_git(path):
        return _GIT
    return next((about for about, globs in _NAMES.items() if matches_globs(path, globs)), None)


def _inside(folder: str) -> str | None:
    """Return what a folder is if it contains files that must not be written, at any depth."""
    top = os.path.realpath(folder)
    todo, count = [top], 0
    while todo:
        place = todo.pop()
        try:
            entries = list(os.scandir(place))
        except (OSError, ValueError):  # not a folder
            continue
        count += len(entries)
        if count > MAX_ENTRIES:
            return f"a folder with more than {MAX_ENTRIES:,} files and folders, which takes too long to check"
        names = {entry.name.casefold() for entry in entries}
        found = "head" in names and not names.isdisjoint(_GIT_PARTS)
        about, path = (_GIT, os.path.join(place, "HEAD")) if found else ("", "")
        for entry in () if found else entries:
            if matches_globs(entry.path, _ALL_NAMES, place):
                about, path = _named(entry.path) or "", entry.path
                break
            if entry.is_dir(follow_symlinks=False):
                todo.append(entry.path)
        if about:
            return f"a folder that contains {os.path.relpath(path, top)!r:.200}, {about}"
    return None


def _guarded() -> Iterator[tuple[OwnFile, str]]:
    """Return the files and folders that a guard protects, except loaded modules, and their folded paths.

    A guard sees which file is written, and so can be more exact than a sandbox.
    """
    for known in (*list(_registered.values()), *_user_files()):
        for file in _with_links(known):
            yield file, fold_path(file.path)
    yield from _python_folders()
    for entry in dict.fromkeys(sys.path):
        if not os.path.isfile(entry):  # a folder of PYTHONPATH may not exist yet
            folder = os.path.realpath(entry)
            what = "a module that Python would import"
            yield OwnFile(folder, what, is_folder=True, imported=True), fold_path(folder)


def _covers(file: OwnFile, own: str, path: str, spelled: str) -> bool:
    """Return whether a path is the file, belongs to it, or is inside the folder. ``own`` and ``path`` are folded."""
    if file.is_folder:
        return is_below(path, own) and (not file.imported or _replaces_module(own, path, spelled))
    if path == own or (file.beside and path.startswith((f"{own}-", f"{own}."))):
        return True
    folder, name = os.path.split(path)
    return bool(file.others) and folder == os.path.dirname(own) and matches_globs(name, (file.others,))


def _linked(path: str, files: list[OwnFile]) -> str | None:
    """Return what a file is if it is a hard link to one of these."""
    try:
        state = os.stat(path)
    except (OSError, ValueError):
        return None
    if stat.S_ISREG(state.st_mode) and state.st_nlink > 1:
        for file in files:
            if not file.is_folder and os.path.exists(file.path) and os.path.samestat(state, os.stat(file.path)):
                return file.description
    return None


def _is_git(path: str) -> bool:
    """Return whether a path is in a git repository's own folder, or would make a folder look like one.

    Git takes a folder with ``HEAD``, ``objects`` and ``refs`` for a repository, whatever its name is, and then runs the
    programs that the file ``config`` in it names.
    """
    names = [_plain_name(name) for name in fold_path(path).split("/")]
    if ".git" in names or "git~1" in names or names[-1] == "head":
        return True
    folder = os.path.dirname(path)
    while True:
        if os.path.lexists(os.path.join(folder, "HEAD")) and (
            names[len(fold_path(folder).rstrip("/").split("/"))] in _GIT_PARTS
            or os.path.lexists(os.path.join(folder, "commondir"))
            or all(os.path.isdir(os.path.join(folder, name)) for name in ("objects", "refs"))
        ):
            return True
        if (above := os.path.dirname(folder)) == folder:
            return False
        folder = above


def _plain_name(name: str) -> str:
    """Return a name without the invisible characters that macOS ignores in names of files."""
    if name.isascii():
        return name
    from unicodedata import category

    return "".join(letter for letter in name if category(letter) != "Cf")


def _with_links(file: OwnFile) -> Iterator[OwnFile]:
    """Return a file with its links resolved, and the links among its path and the folders above it."""
    place, *names = file.path.split(os.sep)
    place += os.sep
    for name in names:
        place = os.path.join(place, name)
        if os.path.islink(place):
            yield OwnFile(place, f"a link to {file.description}", beside=True)
            place = os.path.realpath(place)
    yield file._replace(path=place)


def _user_files() -> Iterator[OwnFile]:
    for folder in (user_folder("data"), user_folder("cache")):
        yield OwnFile(str(folder), "Hookline's folder for the user's data", is_folder=True)
    yield OwnFile(str(user_folder("config")), "Hookline's folder for the user's rules", is_folder=True)
    if keys := os.environ.get(DATA_KEY_FILE):
        yield OwnFile(os.path.abspath(keys), "Hookline's file of keys for stored data", optional=True)


def _environment() -> Iterator[OwnFile]:
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix)):
        yield OwnFile(prefix, "the Python environment", is_folder=True)
    for entry in dict.fromkeys(sys.path):
        description = "a place from which Python imports modules (sys.path)"
        yield OwnFile(os.path.abspath(entry), description, is_folder=os.path.isdir(entry or "."))


@cache
def _python_folders() -> tuple[tuple[OwnFile, str], ...]:
    """Return the folders of Python, its packages and its programs, and their folded paths.

    The prefix itself may be ``/usr``.
    """
    import sysconfig

    names = ("stdlib", "platstdlib", "purelib", "platlib", "scripts")
    folders = {os.path.realpath(path) for name in names if (path := sysconfig.get_path(name))}
    if sys.prefix != sys.base_prefix:
        folders.add(os.path.realpath(sys.prefix))
    found = [OwnFile(folder, "part of the Python environment", is_folder=True) for folder in sorted(folders)]
    return tuple((file, fold_path(file.path)) for file in found)


def _import_folders() -> Iterator[OwnFile]:
    """Return the folders from which modules were imported, and the files that were loaded by their path."""
    found: dict[str, OwnFile] = {}
    for name, file, was_imported in _modules():
        code = _import_folder(name, file, was_imported)
        found.setdefault(code.path, code)
    yield from found.values()


_known: tuple[dict[str, Any], tuple[tuple[OwnFile, str], ...]] = {}, ()
"""The modules that were loaded at the last call of ``_loaded_modules``, and what it returned."""


def _loaded_modules() -> tuple[tuple[OwnFile, str], ...]:
    """Return the packages, modules and files of code that were loaded, and their folded paths.

    Those of the Python environment are left out. Each write of a file asks, and a program has thousands of modules.
    """
    global _known
    loaded, answer = _known
    if loaded != sys.modules:
        loaded = dict(sys.modules)
        found: dict[str, OwnFile] = {}
        for name, file, was_imported in _modules():
            for code in _loaded_module(name, file, was_imported):
                found.setdefault(code.path, code)
        answer = tuple((file, fold_path(file.path)) for file in found.values())
        _known = loaded, answer
    return answer


def _modules() -> Iterator[tuple[str, str, bool]]:
    """Return the full names and the files of the loaded modules, and whether they were imported by name."""
    for name, module in list(sys.modules.items()):
        file, spec = getattr(module, "__file__", None), getattr(module, "__spec__", None)
        if isinstance(file, str):
            yield getattr(spec, "name", name), file, spec is not None  # a program started with -m is called __main__


@cache  # each command in a sandbox asks, and a program has thousands of modules
def _import_folder(name: str, file: str, was_imported: bool) -> OwnFile:
    if not was_imported:  # a script, or a file of hooks
        return OwnFile(os.path.realpath(file), "code that this program has loaded")
    description = f"the folder from which this program has imported {name.partition('.')[0]}"
    return OwnFile(os.path.realpath(_searched_folder(name, file)), description, is_folder=True)


def _searched_folder(name: str, file: str) -> str:
    """Return the folder that was searched: a package or a compiled module there would be found before the module."""
    folder = os.path.dirname(file)
    for _ in range(name.count(".") + (os.path.basename(file).partition(".")[0] == "__init__")):
        folder = os.path.dirname(folder)
    return folder


@cache
def _loaded_module(name: str, file: str, was_imported: bool) -> tuple[OwnFile, ...]:
    real, description = os.path.realpath(file), "code that this program has loaded"
    if any(is_below(real, folder.path) for folder, _ in _python_folders()):
        return ()
    top = name.partition(".")[0]
    folder = os.path.realpath(_searched_folder(name, file))
    package = os.path.join(folder, top)
    if was_imported and real.startswith(f"{package}{os.sep}"):  # packages often load their modules later
        return (OwnFile(package, description, is_folder=True),)
    own = OwnFile(real, description)
    if not was_imported:
        return (own,)
    # A package, a compiled module or bytecode of the same name would be loaded instead of the module.
    from importlib.machinery import EXTENSION_SUFFIXES

    compiled = [OwnFile(f"{package}{suffix}", description) for suffix in EXTENSION_SUFFIXES]
    cached = OwnFile(os.path.join(folder, "__pycache__", top), description, beside=True)
    return own, OwnFile(package, description, is_folder=True), cached, *compiled


def _replaces_module(folder: str, path: str, spelled: str) -> bool:
    """Return whether a file in a folder of modules would be imported instead of another module of the same name."""
    depth = path[len(folder.rstrip("/")) :].count("/")
    *packages, file = spelled.replace(os.sep, "/").split("/")[-depth:]  # Python finds a module only by its exact name
    if not depth or not path.endswith(_CODE_SUFFIXES):
        return False
    name = file.partition(".")[0]
    modules = packages if packages and name == "__init__" else [*packages, name]
    if len(modules) == 1 and modules[0].casefold() in (_AT_START | sys.stdlib_module_names) - {"test"}:
        return True
    from importlib.machinery import PathFinder

    others = [entry for entry in sys.path if fold_path(os.path.realpath(entry)) != folder]
    try:
        for module in modules[:-1]:  # parts of a package without __init__.py may be in several folders
            spec = PathFinder.find_spec(module, others)
            if spec is None or spec.origin is not None:
                return False
            others = list(spec.submodule_search_locations or ())
        return PathFinder.find_spec(modules[-1], others) is not None
    except (ImportError, ValueError, OSError):
        return False
