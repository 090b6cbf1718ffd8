"""Skills: what an agent has learned to do, as files that a person has accepted."""

from __future__ import annotations

import os
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING

from .._base.files import folder_below, locked_folder, replace_file
from .._base.text import did_you_mean
from ..tools._tool import Tool
from .errors import StoreError
from .paths import checked_path, folder_advice
from .skill_files import Skill, State, checked, checked_name, front_matter, is_name, read, written

if TYPE_CHECKING:
    from pathlib import Path

LOCK_SECONDS = 10.0
"""How long to wait for another program that changes the folder."""

FILE = "SKILL.md"
STATES: tuple[State, ...] = ("accepted", "proposed", "rejected")

_MAX_BYTES = 1_000_000
_MAX_READ = 16_000
_MAX_LISTED = 100
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class SkillStore:
    """Keeps skills in one folder: ``NAME/SKILL.md`` each. A toolset, too (``read_skill``).

    What was proposed waits in ``.proposed/`` and what was rejected is kept in ``.rejected/``; no model is given either.
    A name is taken once, whatever became of it, so what a person rejected is not proposed again. Skills may be written
    by hand. Links are not followed. Threads and programs may share the folder.

    Args:
        folder: made with the first skill.

    Raises:
        TypeError: that is no path.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from pathlib import Path

        self.folder = Path(checked_path(folder, "SkillStore takes a folder")).expanduser().absolute()

    def __repr__(self) -> str:
        return f"SkillStore({str(self.folder)!r})"

    def list(self, state: State = "accepted") -> Sequence[Skill]:
        """The skills in a state, by name; those that cannot be read are left out: see :meth:`problems`.

        Raises:
            StoreError: the folder cannot be read.
        """
        return self._scan(state)[0]

    def problems(self) -> Sequence[str]:
        """What is wrong with files of the folder.

        Raises:
            StoreError: the folder cannot be read.
        """
        return [problem for state in STATES for problem in self._scan(state)[1]]

    def get(self, name: str, state: State = "accepted") -> Skill | None:
        """The skill of that name, ``None`` if there is none in that state.

        Raises:
            StoreError: it cannot be read, or nothing can be called so.
        """
        raw = self._raw(checked_name(name), state)
        return None if raw is None else read(raw, name, state)

    def find(self, name: str) -> Skill:
        """The skill of that name, in whatever state.

        Raises:
            StoreError: there is none, or it cannot be read.
        """
        for state in STATES:
            if is_name(name) and (found := self.get(name, state)) is not None:
                return found
        known = [skill.name for state in STATES for skill in self.list(state)]
        raise StoreError(f"there is no skill {name!r:.80} in {self.folder}.{did_you_mean(name, known)}")

    def knows(self, origin: str) -> bool:
        """Whether a skill in any state came from a run with the same task and tools."""
        return any(skill.origin == origin for state in STATES for skill in self.list(state))

    def propose(self, skill: Skill) -> bool:
        """Have a skill wait for a person; false if the name is taken, whatever became of that one.

        Raises:
            StoreError: it cannot be kept.
        """
        skill = checked(skill)
        with self._changing("propose a skill"):
            if any(self._exists(skill.name, state) for state in STATES):
                return False
            self._write(skill.replace(date=skill.date or time.strftime("%Y-%m-%d")), "proposed")
        return True

    def revise(self, name: str, raw: str) -> Skill:
        """Put another text, front matter and all, in the place of a proposal; the name in it may be another.

        Raises:
            StoreError: there is no such proposal, or the text cannot be used; nothing is changed.
        """
        fields, _ = front_matter(raw)
        new = checked_name(fields.get("name") or name)
        skill = checked(read(raw, new, "proposed"))
        with self._changing("change a proposal"):
            if not self._exists(name, "proposed"):
                raise StoreError(f"there is no proposal {name!r} any more")
            if new != name:
                self._refuse_taken(new, STATES)
            self._write(skill, "proposed")
            if new != name:
                self._remove(name, "proposed")
        return skill

    def accept(self, name: str, *, rename: str | None = None) -> Skill:
        """Make a skill of a proposal, or of one that was rejected; nothing is overwritten.

        Args:
            name: what it was proposed as.
            rename: what it is to be called.

        Raises:
            StoreError: there is no such proposal, or there is a skill of that name already.
        """
        new = checked_name(name if rename is None else rename)
        with self._changing("accept a skill"):
            skill = self._waiting(name)
            self._refuse_taken(new, ("accepted",) if new == name else STATES)
            self._write(skill.replace(name=new), "accepted")
            self._remove(name, skill.state)
        return skill.replace(name=new, state="accepted")

    def reject(self, name: str) -> Skill:
        """Say no to a proposal; it is kept, and not proposed again.

        Raises:
            StoreError: there is no such proposal.
        """
        with self._changing("reject a skill"):
            skill = self._waiting(name, ("proposed",))
            self._write(skill, "rejected")
            self._remove(name, "proposed")
        return skill.replace(state="rejected")

    def raw(self, skill: Skill) -> str:
        """The text of a skill's file.

        Raises:
            StoreError: it is gone, or cannot be read.
        """
        found = self._raw(skill.name, skill.state)
        if found is None:
            raise StoreError(f"the skill {skill.name} is gone")
        return found

    def path(self, name: str, state: State = "accepted") -> Path:
        """Where the file of a skill is, or would be.

        Raises:
            StoreError: nothing can be called so.
        """
        checked_name(name)
        return self.folder / name / FILE if state == "accepted" else self.folder / f".{state}" / f"{name}.md"

    def tools(self) -> Sequence[Tool]:
        """``read_skill`` for a model."""
        return self._tools

    @cached_property
    def _tools(self) -> tuple[Tool, ...]:
        def read_skill(name: str) -> str:
            """Read a skill: how to do something, step by step. Read it before you do that.

            Args:
                name: the name of the skill
            """
            skill = self.get(name) if is_name(name) else None
            if skill is None:
                known = [one.name for one in self.list()]
                there = f"There are {', '.join(known[:_MAX_LISTED])}" if known else "There are none"
                raise StoreError(f"there is no skill {name!r:.80}.{did_you_mean(name, known)} {there}")
            if len(skill.text) > _MAX_READ:
                return f"{skill.text[:_MAX_READ]}\n[{len(skill.text) - _MAX_READ} characters left out]"
            return skill.text

        return (Tool(read_skill),)

    def _waiting(self, name: str, states: tuple[State, ...] = ("proposed", "rejected")) -> Skill:
        for state in states:
            if is_name(name) and (found := self.get(name, state)) is not None:
                return found
        if is_name(name) and self._exists(name, "accepted"):
            raise StoreError(f"the skill {name!r} is accepted already")
        known = [skill.name for state in states for skill in self.list(state)]
        raise StoreError(
            f"there is no proposal {name!r:.80}.{did_you_mean(name, known)} 'hookline skills list' shows all"
        )

    def _refuse_taken(self, name: str, states: tuple[State, ...]) -> None:
        for state in states:
            if self._exists(name, state):
                what = "a skill" if state == "accepted" else f"a {state} skill"
                raise StoreError(f"there is {what} called {name!r} already: give another name (--as NAME)")

    def _exists(self, name: str, state: State) -> bool:
        return os.path.lexists(self.path(name, state))

    def _scan(self, state: State) -> tuple[Sequence[Skill], Sequence[str]]:
        place = self.folder if state == "accepted" else self.folder / f".{state}"
        try:
            entries = sorted(os.listdir(place))
        except FileNotFoundError:
            return [], []
        except OSError as error:
            advice = folder_advice(self.folder, error, "read")
            raise StoreError(f"the skills in {place} cannot be listed: {error}{advice}") from error
        found, problems = [], []
        for entry in entries:
            if entry.startswith("."):
                continue
            name = entry if state == "accepted" else entry.removesuffix(".md")
            if state == "accepted" and not os.path.isdir(place / entry):
                continue
            if not is_name(name):
                problems.append(f"{place / entry}: nothing can be called so: use lower case, digits and hyphens")
                continue
            try:
                raw = self._raw(name, state)
                if raw is not None:
                    found.append(read(raw, name, state))
                elif state == "accepted":
                    problems.append(f"{place / entry}: there is no {FILE} in it")
            except StoreError as error:
                problems.append(str(error))
        return found, problems

    def _raw(self, name: str, state: State) -> str | None:
        path = self.path(name, state)
        try:
            with folder_below(self.folder.resolve(), self.folder.resolve() / path.parent.name) as place:
                file = os.open(path if place is None else path.name, _FLAGS, dir_fd=place)
                with os.fdopen(file, "rb") as reader:
                    about = os.fstat(file)
                    if not stat.S_ISREG(about.st_mode) or (place is None and path.is_symlink()):
                        raise OSError("it is not an ordinary file")
                    if about.st_size > _MAX_BYTES:
                        raise OSError(f"it has more than {_MAX_BYTES:,} bytes")
                    return reader.read().decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"the skill {path} cannot be read: {error}") from error

    def _write(self, skill: Skill, state: State) -> None:
        path, root = self.path(skill.name, state), self.folder.resolve()
        with folder_below(root, root / path.parent.name, make=True) as place:
            replace_file(path, written(skill).encode(), 0o600, place)

    def _remove(self, name: str, state: State) -> None:
        path, root = self.path(name, state), self.folder.resolve()
        with folder_below(root, root / path.parent.name) as place:
            os.unlink(path if place is None else path.name, dir_fd=place)

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """The folder, for one program at a time."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked_folder(self.folder, LOCK_SECONDS):
                yield
        except OSError as error:
            advice = folder_advice(self.folder, error)
            raise StoreError(f"cannot {what} in {self.folder}: {error}{advice}") from error
