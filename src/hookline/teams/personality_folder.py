"""Load the personalities of a folder as agents, and reload them when their files change."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from .._base.own_files import OwnFile, register_own_file
from .._base.text import describe, did_you_mean, error_text
from .._kernel.errors import HooklineError
from .._kernel.hook import HookEntry
from .._kernel.registry import HookRegistry, HookStack
from .._run.agent import Agent
from .._run.budget import Limits
from ..config.errors import ConfigError
from ..config.factory import code_files
from ..config.loading import load_hooks, load_tools
from ..config.sources import parse_reference
from ..models.protocol import Model
from ..tools.registry import ToolRegistry
from .personality import MAIN, TEXT, Personality, PersonalityFiles, files_outside, main_files, read_fields

log = logging.getLogger("hookline")

Models = Callable[[str], Model]
"""Returns a model by name."""

RACY = 2_000_000_000
"""Nanoseconds within which two changes of a file may get the same time stamp, because those are coarse."""


class LoadedPersonality(msgspec.Struct, frozen=True):
    """A personality and its agent, with the inputs that both were made from."""

    personality: Personality
    agent: Agent[Any, Any]
    hooks: HookRegistry
    files: PersonalityFiles
    code: tuple[bytes, ...]
    base: tuple[object, ...]


class _CodeFiles:
    """Files of code that tools must not change, as long as this object exists."""

    def __init__(self, paths: Iterable[str]) -> None:
        for path in paths:
            is_folder = not Path(path).suffix
            register_own_file(self, OwnFile(path, "code of a personality", is_folder=is_folder, optional=True))


class PersonalityFolder:
    """The personalities in a folder; :meth:`refresh` loads changed ones again.

    If a file cannot be used, the last valid version of its personality stays, and the others are not affected.

    Args:
        base: the agent that the personalities are derived from.
        folder: their folder.
        home: the folder to import modules from.
        models: returns models by name.
        tools: returns further tools for a personality.
        first: the id of a personality that stays even if its file is deleted.

    Raises:
        ConfigError: the folder does not exist.
    """

    def __init__(
        self,
        base: Agent[Any, Any],
        folder: Path,
        *,
        home: Path,
        models: Models,
        tools: Callable[[Personality], tuple[Any, ...]] = lambda personality: (),
        first: str = "",
    ) -> None:
        if not folder.is_dir():
            raise ConfigError(
                f"personalities: there is no folder {str(folder)!r}; 'hookline new personality NAME' creates one"
            )
        self.base, self.folder, self.home, self.first = base, folder, home, first
        self.loaded: Mapping[str, LoadedPersonality] = {}
        self.problems: Mapping[str, str] = {}
        """The current errors, by file."""
        self.base_state: tuple[object, ...] = ()
        """The state of the base that the agents were made from."""
        self._models, self._tools = models, tools
        self._by_file: dict[Path, LoadedPersonality] = {}
        self._watch, self._lock = FileWatcher(), threading.Lock()
        register_own_file(self, OwnFile(str(folder), "the folder of personalities", is_folder=True))
        self._code_files = _CodeFiles(())
        self.refresh()

    def refresh(self) -> None:
        """Reload the personalities whose files have changed."""
        with self._lock:
            try:
                mains = main_files(self.folder)
            except ConfigError as error:
                self._report({str(self.folder): f"{error_text(error)}; the last valid versions are used"})
                self._watch.forget()
                return
            changed = self._watch.changed(self._files(mains)) or self._state_of_base() != self.base_state
            if changed or self.problems:  # the cause of a problem may be elsewhere, such as a missing module
                self.base_state = self._state_of_base()
                self._load(mains)

    def _state_of_base(self) -> tuple[object, ...]:
        base = self.base
        return base.tools, base.plugins, base.model, base.instructions, base.params, base.limits

    def _files(self, mains: list[Path]) -> list[Path]:
        texts = [main.with_name(TEXT) for main in mains if main.name == MAIN]
        return [*mains, *texts, *(file for each in self.loaded.values() for file in each.personality.code)]

    def _load(self, mains: list[Path]) -> None:
        loaded: dict[str, LoadedPersonality] = {}
        problems: dict[str, str] = {}
        by_file: dict[Path, LoadedPersonality] = {}
        for main in sorted(mains, key=lambda main: main not in self._by_file):  # a known file keeps its id
            old = self._by_file.get(main)
            try:
                new = self._load_one(main, old)
                taken = next((each for each in loaded.values() if _same_id(each, new)), None)
                if taken is not None:
                    id, other = new.personality.id, taken.files.main
                    raise ConfigError(f"{main}: id: {id!r} is also the id of {other}: change one of them")
            except Exception as error:  # noqa: BLE001 - user code runs here, and must not affect other personalities
                text = error_text(error) if isinstance(error, HooklineError) else f"{main}: {describe(error)}"
                if old is None or any(_same_id(each, old) for each in loaded.values()):
                    problems[str(main)] = text
                    continue
                problems[str(main)], new = f"{text}; the last valid version is used", old
            loaded[new.personality.id] = by_file[main] = new
        if (first := self.loaded.get(self.first)) is not None and self.first not in loaded:
            problems[str(first.files.main)] = f"{first.files.main} was deleted; the last valid version is used"
            loaded[self.first] = by_file[first.files.main] = first
        for each in loaded.values():
            _check_delegates(each, loaded, problems)
        for id in self.loaded.keys() - loaded.keys():
            log.warning("the personality %s was deleted", id)
        self._by_file = by_file
        self.loaded = {id: loaded[id] for id in sorted(loaded)}
        self._protect_code()
        self._report(problems)

    def _load_one(self, main: Path, old: LoadedPersonality | None) -> LoadedPersonality:
        files = PersonalityFiles.read(main)
        personality = files.personality()
        code = tuple(_read_code(file) for file in personality.code)
        hooks = None
        if old is not None and old.files == files and old.code == code:
            if old.base == self.base_state:
                return old
            hooks = old.hooks  # keep the agent, and with it the state of its guards
        try:
            hooks = hooks or make_hooks(self.base.hooks, personality, self.home)
            agent = make_agent(self.base, personality, hooks, self.home, self._models, self._tools(personality))
        except HooklineError as error:
            raise ConfigError(f"{main}: {error_text(error)}") from error
        return LoadedPersonality(personality, agent, hooks, files, code, self.base_state)

    def _protect_code(self) -> None:
        """Protect the code of all personalities. Files in their folder are already protected."""
        references = [
            item if isinstance(item, str) else item.use
            for each in self.loaded.values()
            for item in (*each.personality.guards, *(each.personality.tools or ()))
        ]
        self._code_files = _CodeFiles(files_outside(list(map(Path, code_files(references, self.home))), self.folder))

    def _report(self, problems: Mapping[str, str]) -> None:
        for file, text in problems.items():
            if self.problems.get(file) != text:
                log.warning("%s", text)
        for file in self.problems.keys() - problems.keys():
            log.info("%s is valid again", file)
        self.problems = problems


def _check_delegates(
    each: LoadedPersonality, loaded: Mapping[str, LoadedPersonality], problems: dict[str, str]
) -> None:
    file = str(each.files.main)
    for name in each.personality.delegates:
        if not any(fnmatchcase(id, name) for id in loaded) and file not in problems:
            hint = did_you_mean(name, loaded)
            problems[file] = f"{file}: delegates: there is no personality {name!r}.{hint} It is ignored"


def _same_id(one: LoadedPersonality, other: LoadedPersonality) -> bool:
    return one.personality.id.casefold() == other.personality.id.casefold()


def _read_code(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # loading it reports the error


# Agents from personalities.


def make_hooks(base: HookRegistry, personality: Personality, home: Path) -> LayeredRegistry:
    """Make a registry with the hooks of ``base`` and the guards of a personality on top.

    Raises:
        LoadError: a guard cannot be loaded.
        ConfigError: a plugin is among the guards.
    """
    hooks, plugins = load_hooks(personality.guards, home)
    if plugins:
        raise ConfigError(
            f"guards: {plugins[0].name} is a plugin: switch it on in the settings, and list it in plugins"
        )
    registry = LayeredRegistry(base)
    for hook in hooks:
        hook.register(registry)
    return registry


def make_agent(
    base: Agent[Any, Any],
    personality: Personality,
    hooks: HookRegistry,
    home: Path,
    models: Models,
    extra: tuple[Any, ...] = (),
) -> Agent[Any, Any]:
    """Make the agent of a personality.

    Args:
        base: the agent that it is derived from.
        personality: the differences.
        hooks: its hooks.
        home: the folder to import modules from.
        models: returns models by name.
        extra: further tools.

    Raises:
        ConfigError: a tool or plugin does not exist.
        LoadError: a tool cannot be loaded.
        RegistrationError: a model or tool is invalid.
        AuthError: the API key of the model is missing.
    """
    check_plugins(base, personality)
    agent = Agent(
        personality.id or base.name,
        personality.description,
        base.instructions if personality.instructions is None else personality.instructions,
        llm=base.model if personality.model is None else models(personality.model),
        deps_type=base.deps_type,
        tools=[*_tools(base, personality, home), *extra],
        hooks=hooks,
        allowed_plugins=_intersection(base.allowed_plugins, personality.plugins),
        limits=base.limits.stricter(Limits(steps=personality.max_steps, soft=base.limits.soft)),
        max_parallel_tools=base.max_parallel_tools,
        max_attachment=base.max_attachment,
        params={**base.params, **personality.params},
        response_format=base.response_format,
        output_type=base.output_type,
        output_retries=base.output_retries,
        stream=base.stream_mode,
        sinks=base.sinks,
        suggestions=base.suggestions if personality.suggestions is None else personality.suggestions,
    )
    base.share_plugins_with(agent)  # not Agent(plugins=...): their hooks are already in the registry of the base
    return agent


def check_plugins(base: Agent[Any, Any], personality: Personality) -> None:
    """Check that the plugins of a personality are on: a missing guard must not go unnoticed.

    Raises:
        ConfigError: a plugin is not on.
    """
    known = {plugin.name for plugin in base.plugins}
    known |= {entry.plugin for layer in base.hooks.stack.layers for entry in layer if entry.plugin is not None}
    for name in personality.plugins or ():
        if name not in known:
            active = f"Active plugins: {', '.join(sorted(known))}" if known else "No plugin is active"
            raise ConfigError(f"plugins: {name!r} is not active in the settings.{did_you_mean(name, known)} {active}")


def change_personality(personality: Personality, changes: Mapping[str, Any], where: str) -> Personality:
    """Return a personality with changed fields. Guards are added to the existing ones.

    Raises:
        ConfigError: a field is unknown or a value is invalid.
    """
    if "delegates" in changes:
        raise ConfigError(f"{where}: delegates cannot be changed for one session: change the file")
    folder = Path(personality.file).parent if personality.file else Path.cwd()
    fields = read_fields({name: value for name, value in changes.items() if name != "id"}, folder, where)
    return personality.replace({**fields, "guards": (*personality.guards, *fields.get("guards", ()))})


def _tools(base: Agent[Any, Any], personality: Personality, home: Path) -> list[Any]:
    """Return the tools of the base that a personality names, in their order, and the other tools that it refers to."""
    wanted = personality.tools
    if wanted is None:
        return list(base.tools)
    chosen: set[str] = set()
    references: list[str] = []
    for item in wanted:
        reference = parse_reference(item)
        if reference.file is not None or reference.name:
            references.append(item)
            continue
        found = [tool.name for tool in base.tools if fnmatchcase(tool.name, item)]
        if not found and item != "*":
            known = [tool.name for tool in base.tools]
            choices = f"There are {', '.join(known)}" if known else "There are none"
            raise ConfigError(
                f"tools: there is no tool {item!r}.{did_you_mean(item, known)} {choices}. "
                "For a tool of your own, write FILE.py, FILE.py:name or module:name"
            )
        chosen |= set(found)
        _check_plugin_of_tool(base, personality, item)
    return [*(tool for tool in base.tools if tool.name in chosen), *load_tools(references, home)]


def _check_plugin_of_tool(base: Agent[Any, Any], personality: Personality, name: str) -> None:
    """Check that the plugin of a named tool is used too."""
    for plugin in base.plugins if personality.plugins is not None else ():
        if plugin.name not in (personality.plugins or ()) and name in ToolRegistry(plugin.tools):
            raise ConfigError(f"tools: {name!r} belongs to the plugin {plugin.name!r}: list that in plugins too")


def _intersection(base: tuple[str, ...] | None, own: tuple[str, ...] | None) -> tuple[str, ...] | None:
    return base if own is None else own if base is None else tuple(name for name in own if name in base)


class LayeredRegistry(HookRegistry):
    """A registry with a layer of its own after the hooks of ``base``. Changes of ``base`` take effect.

    Args:
        base: the registry below; its hooks cannot be removed here.
        hooks: hooks of the own layer.
    """

    def __init__(self, base: HookRegistry, hooks: Iterable[Any] = ()) -> None:
        self._base = base
        self._own: tuple[HookEntry, ...] = ()
        self._made: tuple[HookStack, tuple[HookEntry, ...], HookStack] | None = None
        super().__init__(hooks)

    @property
    def _entries(self) -> tuple[HookEntry, ...]:
        return (*self._base._entries, *self._own)

    @_entries.setter  # the base class assigns to it
    def _entries(self, entries: tuple[HookEntry, ...]) -> None:  # pyright: ignore[reportIncompatibleVariableOverride]
        below = {id(entry) for entry in self._base._entries}
        self._own = tuple(entry for entry in entries if id(entry) not in below)

    @property
    def stack(self) -> HookStack:
        """The compiled hooks: the same object until a hook changes, here or in the base."""
        below, own, made = self._base.stack, self._own, self._made
        if made is None or made[0] is not below or made[1] is not own:
            self._made = made = below, own, HookStack(*below.layers, own) if own else below
        return made[2]

    def copy(self) -> HookRegistry:
        """Return another registry on the same base, with the same hooks in its own layer."""
        new = LayeredRegistry(self._base)
        new._own = self._own
        return new


class FileWatcher:
    """Detects changed files by their metadata. A file that was just written counts as changed once more."""

    def __init__(self) -> None:
        self._seen: dict[Path, tuple[int, ...] | None] | None = None
        self._racy = False

    def changed(self, files: Iterable[Path]) -> bool:
        """Return whether these files may differ from those of the last call."""
        now = time.time_ns()
        seen = {file: _metadata(file) for file in files}
        if seen == self._seen and not self._racy:
            return False
        self._seen = seen
        self._racy = any(stat is not None and abs(now - max(stat[:2])) < RACY for stat in seen.values())
        return True

    def forget(self) -> None:
        """Report all files as changed at the next call."""
        self._seen = None


def _metadata(file: Path) -> tuple[int, ...] | None:
    try:
        stat = os.stat(file)
    except OSError:
        return None
    return stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino, stat.st_mode, stat.st_uid
