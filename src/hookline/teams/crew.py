"""The personalities of a folder as agents, made anew when their files change."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import msgspec

from .._base.text import describe, did_you_mean, error_text
from .._kernel.errors import HooklineError
from .._kernel.registry import HookRegistry
from .._run.agent import Agent
from ..config.errors import ConfigError
from ..config.factory import code_files
from .agents import Models, make_agent, make_hooks
from .personalities import MAIN, TEXT, Personality, PersonalityFiles, main_files, outside
from .watch import Watch

log = logging.getLogger("hookline")

Keep = Callable[[list[str]], Iterable[Any]]
"""Gives hooks that keep tools from changing these files."""


class Member(msgspec.Struct, frozen=True):
    """A personality, the agent that it is, and what both were made of."""

    personality: Personality
    agent: Agent[Any, Any]
    hooks: HookRegistry
    files: PersonalityFiles
    code: tuple[bytes, ...]
    base: tuple[object, ...]


class Crew:
    """The personalities in a folder, looked at again by :meth:`refresh`.

    A file that cannot be used leaves the last good personality of it in place, and does not concern the others.

    Args:
        base: the agent that they are made on top of.
        folder: their folder.
        home: the folder that modules are looked for in.
        models: gives models by name.
        keep: gives hooks that keep the code of personalities outside ``folder`` from being changed.
        tools: gives further tools of a personality.
        first: the one that stays even if its file goes.

    Raises:
        ConfigError: there is no such folder.
    """

    def __init__(
        self,
        base: Agent[Any, Any],
        folder: Path,
        *,
        home: Path,
        models: Models,
        keep: Keep | None = None,
        tools: Callable[[Personality], tuple[Any, ...]] = lambda personality: (),
        first: str = "",
    ) -> None:
        if not folder.is_dir():
            raise ConfigError(
                f"personalities: there is no folder {str(folder)!r}; 'hookline new personality NAME' writes a first one"
            )
        self.base, self.folder, self.home, self.first = base, folder, home, first
        self.members: Mapping[str, Member] = {}
        self.problems: Mapping[str, str] = {}
        """What is wrong now, by file."""
        self.based: tuple[object, ...] = ()
        """What the agents are made on top of now."""
        self._models, self._keep, self._tools = models, keep, tools
        self._by_file: dict[Path, Member] = {}
        self._watch, self._lock = Watch(), threading.Lock()
        self._kept: list[str] = []
        self._release: list[Callable[[], None]] = []
        self.refresh()

    def refresh(self) -> None:
        """Look whether files have changed, and make the personalities anew whose files have."""
        with self._lock:
            try:
                mains = main_files(self.folder)
            except ConfigError as error:
                self._tell({str(self.folder): f"{error_text(error)}; the last good ones are used"})
                self._watch.forget()
                return
            changed = self._watch.changed(self._files(mains)) or self._base() != self.based
            if changed or self.problems:  # what is wrong may be elsewhere, such as a file that is missing
                self.based = self._base()
                self._read(mains)

    def _base(self) -> tuple[object, ...]:
        """What would make all agents out of date if it changed."""
        base = self.base
        return base.tools, base.plugins, base.model, base.instructions, base.params, base.limits

    def _files(self, mains: list[Path]) -> list[Path]:
        texts = [main.with_name(TEXT) for main in mains if main.name == MAIN]
        return [*mains, *texts, *(file for member in self.members.values() for file in member.personality.code)]

    def _read(self, mains: list[Path]) -> None:
        members: dict[str, Member] = {}
        problems: dict[str, str] = {}
        by_file: dict[Path, Member] = {}
        for main in sorted(mains, key=lambda main: main not in self._by_file):  # who has an id keeps it
            old = self._by_file.get(main)
            try:
                member = self._member(main, old)
                taken = next((m for m in members.values() if _same(m, member)), None)
                if taken is not None:
                    id, other = member.personality.id, taken.files.main
                    raise ConfigError(f"{main}: id: {id!r} is also that of {other}: give one of them another")
            except Exception as error:  # noqa: BLE001 - code of the user's runs here; the others go on
                text = error_text(error) if isinstance(error, HooklineError) else f"{main}: {describe(error)}"
                if old is None or any(_same(m, old) for m in members.values()):
                    problems[str(main)] = text
                    continue
                problems[str(main)], member = f"{text}; the last good one is used", old
            members[member.personality.id] = by_file[main] = member
        if (first := self.members.get(self.first)) is not None and self.first not in members:
            problems[str(first.files.main)] = f"{first.files.main} is gone; the last good one is used"
            members[self.first] = by_file[first.files.main] = first
        for member in members.values():
            self._check_delegates(member, members, problems)
        for id in self.members.keys() - members.keys():
            log.warning("the personality %s is gone", id)
        self._by_file = by_file
        self.members = {id: members[id] for id in sorted(members)}
        self._keep_code()
        self._tell(problems)

    def _member(self, main: Path, old: Member | None) -> Member:
        files = PersonalityFiles.read(main)
        personality = files.personality()
        code = tuple(_code(file) for file in personality.code)
        hooks = None
        if old is not None and old.files == files and old.code == code:
            if old.base == self.based:
                return old
            hooks = old.hooks  # what its guards know stays
        try:
            hooks = hooks or make_hooks(self.base.hooks, personality, self.home)
            agent = make_agent(self.base, personality, hooks, self.home, self._models, self._tools(personality))
        except HooklineError as error:
            raise ConfigError(f"{main}: {error_text(error)}") from error
        return Member(personality, agent, hooks, files, code, self.based)

    def _check_delegates(self, member: Member, members: Mapping[str, Member], problems: dict[str, str]) -> None:
        file = str(member.files.main)
        for name in member.personality.delegates:
            if not any(fnmatchcase(id, name) for id in members) and file not in problems:
                near = did_you_mean(name, members)
                problems[file] = f"{file}: delegates: there is no personality {name!r}.{near} It does without"

    def _keep_code(self) -> None:
        """Nobody may change the code of any personality; what is in their folder is kept already."""
        if self._keep is None:
            return
        references = [
            item if isinstance(item, str) else item.use
            for member in self.members.values()
            for item in (*member.personality.guards, *(member.personality.tools or ()))
        ]
        kept = outside(list(map(Path, code_files(references, self.home))), self.folder)
        if kept != self._kept:
            released, self._kept = self._release, kept
            self._release = [self.base.hooks.register(guard) for guard in self._keep(kept)] if kept else []
            for release in released:
                release()

    def _tell(self, problems: Mapping[str, str]) -> None:
        for file, text in problems.items():
            if self.problems.get(file) != text:
                log.warning("%s", text)
        for file in self.problems.keys() - problems.keys():
            log.info("%s can be used again", file)
        self.problems = problems


def _same(one: Member, other: Member) -> bool:
    return one.personality.id.casefold() == other.personality.id.casefold()


def _code(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""  # loading it says what is wrong
