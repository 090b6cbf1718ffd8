"""The git repositories in the folders that commands in a sandbox may write to, and above them.

Git runs the programs that a repository names, in its settings and hooks. A command could name one there, and it would
run outside the sandbox, when the user next asks for the status. So while a command runs:

- Settings, hooks, and the files that settings name are read-only.
- The repository's own folder is not writable at all. Commands see a copy of its top level; after each command, the
  state that git keeps there (``HEAD``, ``index`` and so on) is brought back, and nothing else.
- Links cannot be made read-only, nor files in folders that do not exist. So afterwards replaced links are made again,
  and such files get another name.
- A command may create repositories. So afterwards all are compared with what they were. A new one that names programs
  is held back: its settings and hooks, or what leads to them, get another name.

This needs mounts, which only bubblewrap makes. With Landlock, changes are only found and reported.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from .._base.files import is_below
from .processes import search_path

_HARMLESS = {
    "branch": "description gh-merge-base merge pushremote rebase remote vscode-merge-base",
    "core": (
        "autocrlf bare eol filemode ignorecase logallrefupdates precomposeunicode protecthfs protectntfs "
        "repositoryformatversion safecrlf symlinks"
    ),
    "fetch": "prune",
    "gc": "auto",
    "init": "defaultbranch",
    "pull": "ff rebase",
    "push": "autosetupremote default",
    "remote": "fetch gh-resolved prune pushurl tagopt url",
    "user": "email name",
}
"""Settings with which git runs no program and reads no other folder to print the state of a repository."""
_OF_CLONES = {"extensions": "objectformat partialclone refstorage", "submodule": "active url"}
"""Further harmless settings, which git writes itself when it clones a repository."""

_FILES_OF_SETTINGS = ("config", "config.worktree", "commondir")
_DECIDING = (*_FILES_OF_SETTINGS, "hooks", "index")
"""The files that decide which programs git runs in a repository; the index decides which files it writes."""
_INCLUDES = re.compile(r"include(if\..*)?\.path", re.DOTALL)
_STATE = re.compile(
    r"HEAD|index|sharedindex\.[0-9a-f]+|packed-refs|shallow|AUTO_MERGE|COMMIT_EDITMSG|FETCH_HEAD|ORIG_HEAD|"
    r"(MERGE|CHERRY_PICK|REVERT)_HEAD|(MERGE|SQUASH)_MSG|MERGE_MODE"
)
"""Files in the folder of a repository in which git keeps its state. They name no programs."""
_DATA = ("objects", "refs", "logs", "info", "reftable", "lfs", "rr-cache")
"""Folders of a repository with data, which name no programs."""
_BRANCH = re.compile(rb"ref: refs/[^\0\n]+\n?|[0-9a-f]{40,64}\n?")
_BREAKS = re.compile(r"""(?<!\\)[\s'"!;&|()<>=]+""")
_FINE_BREAKS = re.compile(r"""[\s'"!;&|()<>=`$(){},:]+""")
_COMPUTED = re.compile(r"""[\s'"*?$`{}\[\]]|://""")
"""What the shell replaces in a word, or what no file in a command has in its name."""
_COMPUTED_FOLDER = re.compile(r"""(\$\([^()]*\)|`[^`]*`|\$\{[^{}]*\}|\$\w+)["']?/""")
_MOST_FOLDERS = 50_000
"""How many folders are searched for repositories."""
_SECONDS = 10.0
_TICK = 100_000_000
_LARGE = 10_000_000
"""A file of more bytes is compared by its size and times, and settings of more bytes are not read."""
_SHA256 = re.compile(rb"objectformat\s*=\s*\"?sha256", re.IGNORECASE)


class Mount(NamedTuple):
    """A path that commands see, the path that they see there, and whether they may write to it."""

    path: str
    source: str
    writable: bool


class _Found(NamedTuple):
    """A place where git would find a repository.

    Args:
        place: the file, link or folder ``.git``, or the folder of a bare repository.
        folder: the repository's own folder, with links resolved; empty if there is none.
        work: the folder in which git runs hooks: the one with the files, or the folder of a bare repository.
    """

    place: str
    folder: str
    work: str


class _Setting(NamedTuple):
    """A setting of git: its file, its name in lower case, its value, and the file that it includes, if it does so."""

    file: str
    key: str
    value: str
    included: str = ""


class _Named(NamedTuple):
    """The files and folders inside the writable folders that a repository names, and that decide what git runs."""

    files: frozenset[str]
    folders: frozenset[str]
    settings: frozenset[str]


class _Folder(NamedTuple):
    """The contents of a folder, and when it last changed. Only folders that have changed are searched again.

    A folder is closed if this user may not list or enter it.
    """

    changed: int
    has_git: bool
    is_bare: bool
    inner: tuple[str, ...]
    is_closed: bool


_State = tuple[int, int, int, int]


class _Pair(NamedTuple):
    """The state of a file in a repository and in the copy; ``None`` where it is missing."""

    outside: _State | None
    inside: _State | None


class Repositories:
    """The git repositories in some folders, and the copies that commands see of them.

    Args:
        roots: the folders, with links resolved.
        copies: the folder for the copies, which must be private; empty if commands see the repositories themselves.
    """

    def __init__(self, roots: Sequence[str], copies: str) -> None:
        self._roots, self._copies = roots, copies
        self._lock = threading.Lock()
        self._created: set[str] = set()
        """Places of repositories that commands have created. Commands may change and remove them."""
        self._same: dict[str, dict[str, _Pair]] = {}
        """For each repository, the files of its state, as they were when last the same outside and in the copy."""
        self._settings: dict[_Found, tuple[dict[str, tuple[_State | None, ...]], Sequence[_Setting]]] = {}
        self._named: dict[_Found, _Named] = {}
        self._folders: dict[str, _Folder] = {}
        self._holders: set[str] = set()
        """Folders with a repository. They are searched first, so that a command cannot hide them among many others."""

    def before(self) -> Snapshot:
        """Look at all repositories before a command runs, and bring their copies up to date."""
        with self._lock:
            self._named.clear()
            found = {each.place: each for each in self._find()}
            self._created &= found.keys()
            self._created |= {place for place, each in found.items() if _is_new_to_running_commands(each)}
            existing = {each.folder for each in found.values() if each.place not in self._created}
            prints = {place: self._fingerprint(each) for place, each in found.items()}
            snapshot = Snapshot(prints, existing - {""}, {each.place for each in found.values() if each.folder})
            if self._copies:
                self._mount([found[place] for place in found.keys() - self._created], snapshot)
            snapshot.roots, snapshot.known = self._roots, frozenset(each[:2] for each in found.values())
            snapshot.closed = {path for path, folder in self._folders.items() if folder.is_closed}
            with _running_lock:
                _running.add(snapshot)
            return snapshot

    def after(self, snapshot: Snapshot) -> list[str]:
        """Bring back the state that git changed, and return what the user must know about the repositories."""
        with self._lock:
            with _running_lock:
                _running.discard(snapshot)
            notes = [note for folder in snapshot.copied for note in self._bring_back(folder, snapshot)]
            for path in snapshot.made:
                with suppress(OSError):
                    if os.path.getsize(path) == 0:
                        os.unlink(path)
            for path in {os.path.dirname(path) for path in (*snapshot.links, *snapshot.missing)}:
                self._open_again(path, snapshot)
            notes += [note for link in snapshot.links for note in self._restore(link, snapshot)]
            notes += [note for path in snapshot.missing for note in self._take_away(path, snapshot)]
            self._named.clear()
            now = {found.place: found for found in self._find(snapshot)}
            for place, before in snapshot.prints.items():
                found = now.get(place)
                if place not in self._created and (found is None or self._fingerprint(found) != before):
                    notes.append(
                        f"The git repository {place} is not what it was before the command: its place, settings, hooks "
                        "or a file that these name. Look at it before you use git here, because git runs what they name"
                    )
            for place, found in now.items():
                if place not in snapshot.complete and self._inside(place):
                    self._created.add(place)
                if place in self._created and self._fingerprint(found) != snapshot.prints.get(place):
                    notes += self._hold_back(found, snapshot)
            return notes

    # --- Finding ---

    def _find(self, snapshot: Snapshot | None = None) -> Iterator[_Found]:
        """Return all repositories. After a command, folders that it has closed are opened: git may run there."""
        first, waiting, folders = list(self._holders), list(self._roots), dict[str, _Folder]()
        seen, holders = set[str](), set[str]()
        for path in {str(parent) for root in self._roots for parent in Path(root).parents}:
            yield from self._find_at(path, seen)
            if _is_bare(os.path.lexists(os.path.join(path, name)) for name in _OF_BARE):
                yield _Found(path, path, path)
        while (first or waiting) and len(folders) < _MOST_FOLDERS:
            path = first.pop() if first else waiting.pop()
            if path in folders:
                continue
            folder = _look(path, self._folders.get(path))
            if folder.is_closed and snapshot is not None and self._open_again(path, snapshot):
                folder = _look(path, None)
            folders[path] = folder
            waiting += folder.inner
            place = os.path.join(path, ".git")
            if folder.has_git or path in self._holders:  # a command may have forbidden to list it
                yield from self._find_at(path, seen)
            if folder.has_git and not os.path.islink(place) and not _resolved(place):
                waiting.append(place)  # no repository, but maybe a folder with one
            if folder.is_bare:
                yield _Found(path, path, path)
            if folder.has_git or folder.is_bare or (path in self._holders and os.path.lexists(place)):
                holders.add(path)
        self._folders, self._holders = folders, holders

    def _open_again(self, path: str, snapshot: Snapshot) -> bool:
        """Open a folder that a command has closed, and those above it. Return whether one was opened."""
        opened = False
        for folder in (*map(str, reversed(Path(path).parents)), path):
            if self._inside(folder) and folder not in snapshot.closed and _is_closed(folder):
                with suppress(OSError):
                    _allow_owner(folder)
                    opened = True
        return opened

    def _find_at(self, path: str, seen: set[str]) -> Iterator[_Found]:
        """Return the repository whose files are in a folder, and those inside it."""
        place = os.path.join(path, ".git")
        if not os.path.lexists(place):
            return
        own = _resolved(place)
        yield _Found(place, own, path)
        if own and own not in seen and self._inside(own):
            seen.add(own)
            yield from self._find_inside(own, path)

    def _find_inside(self, own: str, work: str) -> Iterator[_Found]:
        """Return the repositories of submodules and linked working trees, which are inside another one."""
        waiting = [os.path.join(own, name) for name in ("modules", "worktrees")]
        while waiting:
            folder = waiting.pop()
            names = _names_in(folder)
            if "HEAD" in names:
                yield _Found(folder, folder, work)
                names = {name: names[name] for name in ("modules", "worktrees") if name in names}
            waiting += [os.path.join(folder, name) for name, is_folder in names.items() if is_folder]

    def _inside(self, path: str) -> bool:
        return any(is_below(path, root) for root in self._roots)

    def _settings_of(self, found: _Found) -> Sequence[_Setting]:
        """Return the settings of a repository, and remember them until a file that git read for them changes."""
        known = self._settings.get(found)
        if known is None or any(_states(path) != states for path, states in known[0].items()):
            folders = {found.folder, _common(found.folder)}
            read = {os.path.join(folder, name) for folder in folders for name in _FILES_OF_SETTINGS}
            before = {path: _states(path) for path in read}
            settings = list(_settings(found.folder, found.work))
            if any(_states(path) != states for path, states in before.items()):
                settings.append(_unreadable(found.folder))
            read |= {each.file for each in settings} | {each.included for each in settings if each.included}
            known = self._settings[found] = {path: _states(path) for path in read}, settings
        return known[1]

    def _names(self, found: _Found) -> _Named:
        """Return what the settings of a repository name, as it was when :meth:`before` or :meth:`after` began."""
        if found not in self._named:
            self._named[found] = self._look_up(found)
        return self._named[found]

    def _look_up(self, found: _Found) -> _Named:
        common = _common(found.folder)
        files = {os.path.join(common, "config"), os.path.join(found.folder, "config.worktree")}
        folders = {os.path.join(common, "hooks"), os.path.join(found.folder, "hooks")}
        keys, kinds = set(), _Kinds()
        for setting in self._settings_of(found):
            key, value = setting.key, setting.value
            files.add(setting.file)
            if self._inside_either(setting.file):
                keys.add(key)
            path = os.path.normpath(os.path.join(found.work, os.path.expanduser(value)))
            if key == "core.hookspath":
                folders.add(path)
                if os.path.basename(path) == "_" and (parent := os.path.dirname(path)) not in self._roots:
                    folders.add(parent)  # husky's own hooks are in this folder, and run the user's, which are above it
            elif key == "init.templatedir":
                folders.add(path)
            elif setting.included:
                files.add(setting.included)
            elif not is_harmless(key, of_clones=True):
                files.update(_files_of_command(value, found.work, kinds))
        for folder in folders:
            entries = (os.path.join(folder, name) for name in _names_in(folder))
            files.update(path for path in entries if os.path.islink(path))
        inside = [frozenset(filter(self._inside_either, paths)) for paths in (files, folders)]
        return _Named(inside[0], inside[1], frozenset(keys))

    def _inside_either(self, path: str) -> bool:
        return self._inside(path) or self._inside(_real(path))

    # --- Copies ---

    def _mount(self, repositories: Iterable[_Found], snapshot: Snapshot) -> None:
        """Add what commands must see instead of these repositories."""
        for found in repositories:
            if not self._inside(found.place):
                pass  # commands cannot change it
            elif target := _link(found.place):
                snapshot.links[found.place] = target
            elif os.path.isfile(found.place):
                _separate(found.place)
                snapshot.mount(found.place)
            if not found.folder:
                continue
            if self._inside(found.folder) and found.folder not in self._roots and found.folder not in snapshot.copied:
                self._copy(found.folder, snapshot)
            named = self._names(found)
            for path in (*named.files, *named.folders):
                snapshot.links |= {link: _link(link) for link in _links_to(path) if self._inside(link)}
                real = _real(path)
                self._make(real, path in named.folders, snapshot)
                if self._inside(real) and os.path.exists(real):
                    for file in _all_files(real) if path in named.folders else (real,):
                        _separate(file)
                    snapshot.mount(real)
        for folder in {os.path.dirname(link) for link in snapshot.links}:
            # A command could rename a folder with a link, but not a mount.
            read_only = (mount.path for mount in snapshot.mounts.values() if not mount.writable)
            if self._inside(folder) and not any(is_below(folder, path) for path in read_only):
                snapshot.mount(folder, writable=True)

    def _copy(self, folder: str, snapshot: Snapshot) -> None:
        """Bring the copy of the top level of a repository up to date."""
        copy, same = self._copy_of(folder), self._same.setdefault(folder, {})
        os.makedirs(copy, mode=0o700, exist_ok=True)
        snapshot.copied.append(folder)
        snapshot.mount(folder, copy, writable=True)
        is_linked = os.path.lexists(os.path.join(folder, "commondir"))
        for name in ("logs", "refs") if is_linked else _DATA[:4]:
            with suppress(OSError):  # a command would create it in the copy, and lose what git writes there
                os.makedirs(os.path.join(folder, name), exist_ok=True)
        names = _names_in(folder)
        for name, is_folder in names.items():
            outside, inside = os.path.join(folder, name), os.path.join(copy, name)
            if is_folder:
                if not os.path.isdir(inside):
                    _remove(inside)
                    os.mkdir(inside)
                snapshot.mount(outside, writable=name in _DATA)
            elif os.path.islink(outside):
                _remove(inside)
                os.symlink(os.readlink(outside), inside)
            elif _STATE.fullmatch(name):
                _separate(outside)
                if name not in same or _state(outside) != same[name].outside:
                    try:
                        same[name] = _copied(outside, inside)
                    except FileNotFoundError:
                        pass  # another git has just removed it
                    except PermissionError:  # of another user: git says so in the sandbox too
                        snapshot.mount(outside)
            else:
                if os.path.isdir(inside):
                    _remove(inside)
                _separate(outside)
                snapshot.mount(outside)
        for name in same.keys() - names:
            _remove(os.path.join(copy, name))
            del same[name]

    def _bring_back(self, folder: str, snapshot: Snapshot) -> Iterator[str]:
        """Bring the state that git changed in the copy back into the repository."""
        copy, same = self._copy_of(folder), self._same[folder]
        for name in sorted({name for name in _names_in(copy) if _STATE.fullmatch(name)} | same.keys()):
            inside, outside = os.path.join(copy, name), os.path.join(folder, name)
            if outside in snapshot.mounts:
                continue  # it could not be copied
            before, now = same.pop(name, _Pair(None, None)), _state(inside)
            if now == before.inside:
                same[name] = before
            elif _state(outside) != before.outside:
                yield f"{outside} was changed outside while a command changed it too: yours was kept"
            elif problem := _replace(outside, inside):
                yield f"{outside} was kept, because {problem}"
            elif now is not None:
                same[name] = _Pair(_state(outside), now)
            if name not in same and not os.path.lexists(outside):
                _remove(inside)

    def _copy_of(self, folder: str) -> str:
        return os.path.join(self._copies, hashlib.sha256(folder.encode(errors="surrogateescape")).hexdigest()[:32])

    def _make(self, path: str, is_folder: bool, snapshot: Snapshot) -> None:
        """Create a file or folder that git would look for and that is missing, so that a command cannot."""
        parent = os.path.dirname(path)
        if os.path.lexists(path) or not self._inside(parent):
            return
        try:
            if is_folder:
                os.makedirs(path)
            elif parent not in snapshot.copied:  # otherwise commands see a copy, and what is new there stays in it
                os.close(os.open(path, os.O_CREAT | os.O_EXCL, 0o600))
                snapshot.made.append(path)
        except FileExistsError:
            pass
        except OSError:  # the folder is missing, or a command has made it read-only
            while not os.path.lexists(parent):
                parent = os.path.dirname(parent)
            snapshot.missing[path] = parent

    # --- After a command ---

    def _fingerprint(self, found: _Found) -> object:
        """Return what must be the same after a command: where the repository is, and all that names programs."""
        place: object = _link(found.place) or _content(found.place)
        if os.path.isdir(found.place) and (state := _state(found.place)) is not None:
            place = place or state[0]
        if not found.folder:
            return place
        named = self._names(found)
        files = [*named.files, *(path for folder in named.folders for path in _all_files(folder))]
        contents = {path: content for path in files if (content := _content(path))}
        links = [_link(os.path.join(found.folder, name)) for name in _DECIDING]
        index = _state(os.path.join(found.folder, "index")) if found.place in self._created else None
        return place, found.folder, _content(os.path.join(found.folder, "commondir")), contents, links, index

    def _restore(self, link: str, snapshot: Snapshot) -> Iterator[str]:
        """Make a link again that a command has replaced."""
        target = snapshot.links[link]
        if _link(link) == target:
            return
        again = ""
        with suppress(OSError):
            if os.path.lexists(link):
                again = f" What the command left there is now {_set_aside(link)}."
            os.symlink(target, link)
            yield f"A command replaced {link}, a link to {target}. It is that link again.{again}"

    def _take_away(self, path: str, snapshot: Snapshot) -> Iterator[str]:
        """Set aside what a command has created where git would look for a file that was missing."""
        at = snapshot.missing[path]
        if not os.path.lexists(path):
            return
        for name in os.path.relpath(path, at).split("/"):
            at = os.path.join(at, name)
            if os.path.islink(at) or (at == path and os.path.lexists(at)):
                try:
                    done = f"It is now {_set_aside(at)}: look before you name it back"
                except OSError as error:
                    done = f"It could not be set aside ({error}). Do not use git there"
                yield f"A command created {at}, which a setting of git names. {done}"
                return

    def _hold_back(self, found: _Found, snapshot: Snapshot) -> Iterator[str]:
        """Make a repository that a command created harmless, if git would run programs that it names."""
        if _depends_on_the_process(found.place) or (not found.folder and not os.path.isdir(found.place)):
            names, reason = [found.place], f"A command made {found.place} lead git to a place that cannot be checked"
        elif not found.folder:
            return
        elif found.folder in snapshot.existing or not self._inside(found.folder):
            names, reason = [found.place], f"A command made {found.place} lead git to the repository {found.folder}"
        else:
            reasons = sorted(self._programs(found))
            if not reasons:
                return
            names = [os.path.join(found.folder, name) for name in (*_FILES_OF_SETTINGS, "hooks")]
            index = os.path.join(found.folder, "index")
            if os.path.islink(index) or not _is_index(index):
                names.append(index)
            reason = f"A command created the git repository {found.place} with {', '.join(reasons[:5])}"
        held, done = [], "so {} got the ending .held: look before you name it back"
        for path in filter(os.path.lexists, names):
            try:
                _set_aside(path)
            except OSError as error:
                done = f"and it could not be made harmless ({error}). Do not use git there"
            held.append(os.path.basename(path))
        yield f"{reason}. Git would run that outside the sandbox, {done.format(' and '.join(held))}"

    def _programs(self, found: _Found) -> Iterator[str]:
        """Return the settings and hooks of a repository that make git run programs."""
        for key in self._names(found).settings:
            if not is_harmless(key, of_clones=True):
                yield f"the setting {key}"
        common = _common(found.folder)
        if not self._inside(common) or _depends_on_the_process(os.path.join(found.folder, "commondir")):
            yield f"the settings of {common}"
        for folder in {found.folder, common}:
            yield from (f"a link {name}" for name in _DECIDING if os.path.islink(os.path.join(folder, name)))
            if not _is_index(os.path.join(folder, "index")):
                yield "an index that is not one of git, or names files in .git"
        for folder in {os.path.join(found.folder, "hooks"), os.path.join(common, "hooks")}:
            if os.path.isdir(folder) and not os.access(folder, os.R_OK):
                yield "hooks that cannot be listed"
            yield from (f"the hook {name}" for name in _names_in(folder) if not name.endswith(".sample"))


class Snapshot:
    """The repositories before a command, and what the command must see of them.

    Args:
        prints: what may not change, for the place of each repository.
        existing: the folders of the repositories that no command has created.
        complete: the places that lead to a repository.
    """

    def __init__(self, prints: Mapping[str, object], existing: Set[str], complete: Set[str]) -> None:
        self.prints, self.existing, self.complete = prints, existing, complete
        self.roots: Sequence[str] = ()
        self.known: frozenset[tuple[str, str]] = frozenset()
        """Place and folder of the repositories that the command cannot move, while it may write to ``roots``."""
        self.mounts: dict[str, Mount] = {}
        self.copied: list[str] = []
        """Repositories of which commands see a copy."""
        self.made: list[str] = []
        """Empty files that were created so that commands cannot."""
        self.links: dict[str, str] = {}
        """Links to repositories and to files that they name, and where each leads."""
        self.missing: dict[str, str] = {}
        """Paths that repositories name and that are missing, and for each the nearest folder above that exists."""
        self.closed: Set[str] = frozenset()
        """Folders that this user could not list or enter before the command."""

    def mount(self, path: str, source: str = "", *, writable: bool = False) -> None:
        """Add a mount; what is read-only stays so."""
        if not (writable and path in self.mounts):
            self.mounts[path] = Mount(path, source or path, writable)


_running: set[Snapshot] = set()
"""The snapshots of all running commands of this process."""
_running_lock = threading.Lock()


def _is_new_to_running_commands(found: _Found) -> bool:
    """Return whether a command that runs may have created this repository.

    It can then put a link to another folder in its place at any moment, so Hookline must not write there.
    """
    with _running_lock:
        unaware = [snapshot for snapshot in _running if found[:2] not in snapshot.known]
    return any(is_below(path, root) for each in unaware for root in each.roots for path in found[:2] if path)


def is_harmless(key: str, *, of_clones: bool = False) -> bool:
    """Return whether a setting of a repository, in lower case, makes git run nothing."""
    section, _, name = key.partition(".")
    tables = (_HARMLESS, _OF_CLONES) if of_clones else (_HARMLESS,)
    return any(name.rpartition(".")[2] in table.get(section, "").split() for table in tables)


def _settings(folder: str, work: str) -> Iterator[_Setting]:
    """Return the settings that git uses in a repository.

    Git itself reads them, because only it knows where it looks. It runs nothing to print them.
    """
    git = shutil.which("git", path=search_path())
    if git is None:
        return
    env = {name: value for name in ("HOME", "XDG_CONFIG_HOME") if (value := os.environ.get(name))}
    env |= {"PATH": search_path(), "GIT_DIR": folder, "GIT_WORK_TREE": work}
    command = [git, "config", "--list", "--show-origin", "-z", "--includes"]
    quiet = subprocess.DEVNULL
    try:
        with subprocess.Popen(command, cwd=work, env=env, stdin=quiet, stdout=subprocess.PIPE, stderr=quiet) as running:
            assert running.stdout is not None
            timer = threading.Timer(_SECONDS, running.kill)
            timer.start()
            data = running.stdout.read(_LARGE)
            timer.cancel()
            if len(data) == _LARGE:
                running.kill()
    except OSError:
        yield _unreadable(folder)
        return
    if running.returncode == -signal.SIGKILL:
        yield _unreadable(folder)
        return
    parts = os.fsdecode(data).split("\0")
    for origin, setting in zip(parts[::2], parts[1::2], strict=False):
        key, _, value = setting.partition("\n")
        kind, _, path = origin.partition(":")
        if kind == "file":
            path, key, included = os.path.normpath(os.path.join(work, path)), key.lower(), ""
            if _INCLUDES.fullmatch(key):
                included = os.path.normpath(os.path.join(os.path.dirname(path), os.path.expanduser(value)))
            yield _Setting(path, key, value, included)


def _unreadable(folder: str) -> _Setting:
    """Return what stands for settings that may name any program."""
    return _Setting(os.path.join(folder, "config"), "that cannot be read", "")


class _Kinds(dict[str, int]):
    """What is at a path, looked up once: the type in its mode, 0 if nothing is there. Aliases have many equal words."""

    def __missing__(self, path: str) -> int:
        try:
            self[path] = stat.S_IFMT(os.stat(path).st_mode)
        except (OSError, ValueError):
            self[path] = stat.S_IFLNK if os.path.islink(path) else 0
        return self[path]


def _files_of_command(value: str, work: str, kinds: _Kinds) -> Iterator[str]:
    """Return the files that a setting names: those that exist, and paths that are missing.

    The value is a path, or a command of which only the shell knows what it means. So each part of it that names a file
    counts, from the working tree or from a folder that another part names, also without its first folders, which may be
    computed.
    """
    words = _words(value)
    names = {name for word in words for name in _endings(word, work, kinds)}
    folders = {_joined(work, name) for name in names}
    bases = [work, *(path for path in folders if kinds[path] == stat.S_IFDIR and is_below(path, work))]
    for path in {_joined(base, name) for base in bases for name in names}:
        if kinds[path] == stat.S_IFREG:
            yield path
    for word in words:
        if "/" in word and not _COMPUTED.search(word):
            path = _joined(work, os.path.expanduser(word))
            if not kinds[path]:
                yield path


def _joined(folder: str, name: str) -> str:
    return f"{folder}/{name}" if name.isidentifier() else os.path.normpath(os.path.join(folder, name))


@lru_cache(10_000)
def _words(value: str) -> frozenset[str]:
    """Return the parts of a command that may be paths: its words, however they are quoted, and its quoted texts."""
    found = set()
    for text in (value, _COMPUTED_FOLDER.sub("./", value)):
        parts = {text, *text.split("'"), *text.split('"'), *_BREAKS.split(text), *_FINE_BREAKS.split(text)}
        found |= {part.strip("\"'").replace("\\", "") for part in parts}
    found |= {word[2:] for word in found if word.startswith("-")}  # the value of an option
    return frozenset(found - {""})


def _endings(word: str, work: str, kinds: _Kinds) -> Iterator[str]:
    """Return a path, and if it does not exist, the path without its first folders."""
    path = os.path.expanduser(word)
    yield path
    if "/" in path and not kinds[_joined(work, path)]:
        names = path.split("/")
        yield from ("/".join(names[at:]) for at in range(1, len(names)) if names[at])


def _look(path: str, known: _Folder | None) -> _Folder:
    """Search a folder, unless it has not changed since. Commands cannot set this time back."""
    try:
        changed = os.lstat(path).st_ctime_ns
    except OSError:
        changed = 0
    if known is not None and known.changed == changed:
        return known
    if changed > time.time_ns() - _TICK:  # it may change again at what the clock of the file system calls the same time
        changed = -1
    names = _names_in(path)
    is_bare = _is_bare(name in names for name in _OF_BARE)
    inner = tuple(os.path.join(path, name) for name, is_folder in names.items() if is_folder and name != ".git")
    return _Folder(changed, ".git" in names, is_bare, inner, _is_closed(path))


def _is_closed(folder: str) -> bool:
    """Return whether this user may not list or enter a folder."""
    return not os.access(folder, os.R_OK | os.X_OK)


_OF_BARE = ("HEAD", "commondir", "objects", "refs")


def _is_bare(exist: Iterable[bool]) -> bool:
    """Return whether a folder is a repository of its own, from which of ``_OF_BARE`` exist in it."""
    head, commondir, objects, refs = exist
    return head and (commondir or (objects and refs))


def _names_in(folder: str) -> dict[str, bool]:
    """Return the names in a folder, and whether each is a folder itself; nothing if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return {entry.name: entry.is_dir(follow_symlinks=False) for entry in entries}
    except OSError:
        return {}


def _real(path: str) -> str:
    """Return a path with links resolved. A command that runs may replace one at that moment, which Python reports."""
    for _ in range(100):
        with suppress(OSError):
            return os.path.realpath(path)
    return path


def _link(path: str) -> str:
    """Return where a link leads; empty if it is none."""
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _depends_on_the_process(path: str) -> bool:
    """Return whether a path leads through a link in ``/proc`` or ``/dev``, where each process finds something else.

    The path may be a file that names another one, as ``.git`` and ``commondir`` do.
    """
    named = "" if os.path.islink(path) else _path_in(path).removeprefix("gitdir: ")
    links = [*_links_to(path), *(_links_to(os.path.join(os.path.dirname(path), named)) if named else ())]
    return any(is_below(link, root) for link in links for root in ("/proc", "/dev"))


def _resolved(place: str) -> str:
    """Return the folder of the repository that ``.git`` is or names; empty if there is none."""
    if os.path.isfile(place):
        text = _path_in(place)
        if not text.startswith("gitdir: "):
            return ""
        place = os.path.join(os.path.dirname(place), text.removeprefix("gitdir: "))
    folder = _real(place)
    return folder if os.path.lexists(os.path.join(folder, "HEAD")) else ""  # for git, a link to nowhere is enough


def _links_to(path: str) -> Iterator[str]:
    """Return the links that the system follows to open a path."""
    place, left = "/", path.split("/")[::-1]
    for _ in range(1000):  # links may lead in a circle
        if not left:
            break
        name = left.pop()
        step = os.path.normpath(os.path.join(place, name))
        if name and (target := _link(step)):
            yield step
            left += target.split("/")[::-1]
            place = "/" if target.startswith("/") else place
        else:
            place = step


def _common(folder: str) -> str:
    """Return the folder with the settings and hooks of a repository: for a linked working tree, another one."""
    named = _path_in(os.path.join(folder, "commondir"))
    return _real(os.path.join(folder, named)) if named else folder


def _path_in(file: str) -> str:
    """Return the path that is written in a file, as git reads it: blanks belong to it, and it ends at a zero byte."""
    data = _content(file)[:5000].rstrip(b"\r\n")
    return os.fsdecode(data.partition(b"\0")[0])


def _content(path: str) -> bytes:
    """Return the content of a file, shortened to its beginning and a digest if it is long; empty if there is none."""
    try:
        with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
            state = os.fstat(file.fileno())
            if not stat.S_ISREG(state.st_mode):  # to read from a pipe would never end
                return b""
            data = file.read(10_000) if state.st_size > _LARGE else file.read(_LARGE + 1)
    except OSError:
        return b""
    if len(data) < 10_000:
        return data
    rest = repr(_state(path)).encode() if state.st_size > _LARGE else data
    return data[:5000] + hashlib.sha256(rest).digest()


def _all_files(folder: str) -> Iterator[str]:
    waiting = [folder]  # a command may nest folders deeper than Python calls functions
    while waiting:
        place = waiting.pop()
        for name, is_folder in _names_in(place).items():
            path = os.path.join(place, name)
            if is_folder:
                waiting.append(path)
            else:
                yield path


def _state(path: str) -> _State | None:
    try:
        state = os.lstat(path)
    except OSError:
        return None
    return state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns


def _states(path: str) -> tuple[_State | None, ...]:
    """Return the state of a file, and of the one that it is a link to."""
    return _state(path), _state(_real(path))


def _copied(outside: str, inside: str) -> _Pair:
    """Copy a file with its times, because git compares the time of the index with the times of files.

    Commands that run may change the copy at any moment, so the new file is made beside the folder that they see.
    """
    state, staged = _state(outside), f"{os.path.dirname(inside)}.new"
    _copy_file(outside, staged)
    _remove(inside)
    os.replace(staged, inside)
    return _Pair(state, _state(inside))


def _copy_file(source: str, target: str) -> None:
    """Copy a file with its mode and times.

    Raises:
        OSError: the source is no file. A link is not followed, because a command may put one there at any moment.
    """
    flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with open(os.open(source, flags), "rb") as file, open(target, "wb") as copy:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError(f"{source} is not a file")
        shutil.copyfileobj(file, copy)
    os.chmod(target, stat.S_IMODE(state.st_mode) & 0o777)
    os.utime(target, ns=(state.st_atime_ns, state.st_mtime_ns))


def _replace(outside: str, inside: str) -> str:
    """Replace a file of the state as git does it, with a lock. Return why not, if it is kept.

    What is checked is the copy in the lock, which no command sees.
    """
    lock, name = f"{outside}.lock", os.path.basename(outside)
    try:
        os.close(os.open(lock, os.O_CREAT | os.O_EXCL, 0o600))
    except FileExistsError:
        return f"another git holds {lock}"
    except OSError as error:
        return f"it cannot be replaced ({error.strerror})"
    try:
        if os.path.lexists(inside):
            _copy_file(inside, lock)
            if not _is_state(name, lock):
                return _NO_STATE
            os.replace(lock, outside)
        elif name == "HEAD":  # git would look for another repository
            return _NO_STATE
        else:
            os.unlink(outside)
    except OSError:
        return _NO_STATE
    finally:
        _remove(lock)
    return ""


_NO_STATE = "a command left something else than a state of git there"


def _is_state(name: str, path: str) -> bool:
    """Return whether git can have left a file with this content."""
    if name == "HEAD":
        return _BRANCH.fullmatch(_content(path)) is not None
    return not name.startswith(("index", "sharedindex")) or _is_index(path)


def _is_index(path: str) -> bool:
    """Return whether a file is an index of git without files in ``.git``, or is missing.

    Git does not check the names in an index: with ``git checkout`` it would write a hook that such an index names.
    """
    try:
        with open(path, "rb") as file:
            names = list(_names_in_index(file.read(), 32 if _SHA256.search(_content(_config_of(path))) else 20))
    except FileNotFoundError:
        return True
    except (OSError, ValueError, IndexError):
        return False
    return _NOT_IN_INDEX.search(b"\0".join(names)) is None


_NOT_IN_INDEX = re.compile(rb"(?:\A|[\0/])(?:/|(?:\.\.?|\.git|git~1)(?:[\0/]|\Z))", re.IGNORECASE)
"""Names, separated by zero bytes, one of which has an empty part or one of these. It may end with a slash."""


def _config_of(index: str) -> str:
    return os.path.join(_common(os.path.dirname(index)), "config")


def _names_in_index(data: bytes, digest: int) -> Iterator[bytes]:
    """Yield the names of the files in an index.

    Raises:
        ValueError: it is not one.
        IndexError: it ends too early.
    """
    version, count = int.from_bytes(data[4:8], "big"), int.from_bytes(data[8:12], "big")
    if data[:4] != b"DIRC" or version not in (2, 3, 4):
        raise ValueError("not an index")
    at, name = 12, b""
    fixed = 40 + digest
    whole: dict[int, int] = {}  # where entries with a whole name begin, and their numbers
    for number in range(count):
        start, at = at, at + fixed + 2
        flags = data[at - 2] << 8 | data[at - 1]
        at += 2 if flags & 0x4000 else 0  # further flags
        if version == 4:  # only the end of the name, and how much of the name before is replaced
            byte, at = data[at], at + 1
            cut = byte & 127
            while byte & 128:
                byte, at = data[at], at + 1
                cut = ((cut + 1) << 7) | (byte & 127)
            keep = len(name) - cut
            if keep < 0:
                raise ValueError("a name that is too short")
            end = data.index(0, at)
            name = name[:keep] + data[at:end]
            at = end + 1
        else:
            keep, end = 0, data.index(0, at)
            name = data[at:end]
            at = start + (end - start + 8 & ~7)
        if flags & 0xFFF != min(len(name), 0xFFF):  # git counts, and does not look for the zero byte
            raise ValueError("a wrong length of a name")
        yield name
        if not keep:
            whole[start] = number
    # Git may read the entries from the places that the extension IEOT names, or look for extensions elsewhere (EOIE).
    last = len(data) - 12 - 2 * digest
    if data[last : last + 4] == b"EOIE" and int.from_bytes(data[last + 8 : last + 12], "big") != at:
        raise ValueError("other extensions")
    while at < len(data) - digest:
        end = at + 8 + int.from_bytes(data[at + 4 : at + 8], "big")
        words = [int.from_bytes(data[place : place + 4], "big") for place in range(at + 12, end, 4)]
        if data[at : at + 4] == b"IEOT" and [whole.get(place) for place in words[::2]] != [
            sum(words[1:place:2]) for place in range(0, len(words), 2)
        ]:
            raise ValueError("other entries")
        at = end


def _remove(path: str) -> None:
    with suppress(OSError):
        shutil.rmtree(path) if os.path.isdir(path) and not os.path.islink(path) else os.unlink(path)


def _set_aside(path: str) -> str:
    """Give a file or folder a name with the ending ``.held``, and return its new path.

    Raises:
        OSError: this is not possible, such as when a command has put a link in the place of a folder above.
    """
    number, held = 1, f"{path}.held"
    while os.path.lexists(held):
        held = f"{path}.held{(number := number + 1)}"
    _allow_owner(os.path.dirname(path))  # the command may have forbidden changes
    folder = _open_folder(os.path.dirname(path))
    try:
        os.rename(os.path.basename(path), os.path.basename(held), src_dir_fd=folder, dst_dir_fd=folder)
    finally:
        os.close(folder)
    return held


def _separate(path: str) -> None:
    """Give a file a content of its own if it has several names (hard links), by which a command could change it."""
    state = _regular(path)
    if state is None or state.st_nlink < 2:
        return
    with suppress(OSError):  # this user may not: then a change is found afterwards
        folder = _open_folder(os.path.dirname(path))
        name = os.path.basename(path)
        staged = f"{name}.{os.urandom(6).hex()}.new"
        try:
            flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
            with open(os.open(name, flags, dir_fd=folder), "rb") as file:
                state = os.fstat(file.fileno())
                made = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600, dir_fd=folder)
                with open(made, "wb") as copy:
                    shutil.copyfileobj(file, copy)
                    os.fchown(made, state.st_uid, state.st_gid)
                    os.fchmod(made, stat.S_IMODE(state.st_mode) & 0o777)
            os.utime(staged, ns=(state.st_atime_ns, state.st_mtime_ns), dir_fd=folder)
            os.rename(staged, name, src_dir_fd=folder, dst_dir_fd=folder)
        finally:
            with suppress(OSError):
                os.unlink(staged, dir_fd=folder)
            os.close(folder)


def _regular(path: str) -> os.stat_result | None:
    """Return the state of a file; ``None`` if it is missing, a link, or no ordinary file."""
    with suppress(OSError):
        state = os.lstat(path)
        return state if stat.S_ISREG(state.st_mode) else None
    return None


def _allow_owner(folder: str) -> None:
    """Let the owner of a folder list, enter and change it.

    Raises:
        OSError: this is not possible, such as when it is a link now.
    """
    opened = _open_folder(folder)
    try:
        os.chmod(f"/proc/self/fd/{opened}", stat.S_IMODE(os.fstat(opened).st_mode) | stat.S_IRWXU)
    finally:
        os.close(opened)


def _open_folder(path: str) -> int:
    """Open a folder without following a link on the way, and return its descriptor."""
    flags = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
    folder = os.open("/", flags)
    for name in path.strip("/").split("/"):
        try:
            inner = os.open(name or ".", flags, dir_fd=folder)
        finally:
            os.close(folder)
        folder = inner
    return folder


def outermost(paths: Iterable[str]) -> list[str]:
    """Return the paths that are not inside another one of them."""
    found: list[str] = []
    for path in sorted(paths):
        if not any(is_below(path, other) for other in found):
            found.append(path)
    return found
