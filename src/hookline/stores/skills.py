"""Skills: instructions that an agent learned and a person accepted, as Markdown files in one folder."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .._base.files import file_name_for, locked, locked_folder, open_folder_inside, replace_file
from .._base.frozen import Frozen, json_text
from .._base.text import did_you_mean
from ..tools._tool import Tool
from .errors import StoreError
from .paths import checked_path, folder_advice

if TYPE_CHECKING:
    from pathlib import Path

State = Literal["accepted", "proposed", "rejected"]

MAX_NAME, MAX_DESCRIPTION, MAX_TEXT = 64, 1024, 50_000

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FENCE = "---"
_DEVICES = {"aux", "con", "nul", "prn", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}


class Skill(Frozen, frozen=True):
    """How to do something, in words for a model.

    ``source_run``, ``source_task`` and ``source_tools`` tell which run it was learned from, if it was; ``origin`` is
    the same for runs with the same task and tools.
    """

    name: str
    description: str
    text: str
    state: State = "accepted"
    date: str = ""
    source_run: str = ""
    source_task: str = ""
    source_tools: tuple[str, ...] = ()
    origin: str = ""


def is_name(text: object) -> bool:
    """Whether a skill may be called so: lower case letters and digits, in words with hyphens between them."""
    return (
        isinstance(text, str)
        and len(text) <= MAX_NAME
        and _NAME.fullmatch(text) is not None
        and text not in _DEVICES  # no file can be called so everywhere
    )


def checked_name(name: object) -> str:
    """The name of a skill.

    Raises:
        StoreError: nothing can be called so.
    """
    if not is_name(name):
        raise StoreError(
            f"{name!r:.80} cannot be the name of a skill: use lower case letters, digits and single hyphens, "
            f"at most {MAX_NAME}, such as 'tidy-notes'"
        )
    return str(name)


def checked(skill: Skill) -> Skill:
    """A skill that can be kept.

    Raises:
        StoreError: its name, description or text cannot be used.
    """
    checked_name(skill.name)
    description = " ".join(skill.description.split())
    if not description or len(description) > MAX_DESCRIPTION:
        raise StoreError(f"the skill {skill.name} needs a description of 1 to {MAX_DESCRIPTION} characters")
    if not skill.text.strip() or len(skill.text) > MAX_TEXT:
        raise StoreError(f"the skill {skill.name} needs a text of 1 to {MAX_TEXT:,} characters below its front matter")
    return skill.replace(description=description, text=skill.text.strip())


def written(skill: Skill) -> str:
    """A skill as the text of its file."""
    fields = {
        "name": skill.name, "description": skill.description, "date": skill.date, "source_run": skill.source_run,
        "source_task": skill.source_task, "source_tools": skill.source_tools, "origin": skill.origin,
    }  # fmt: skip
    lines = [f"{name}: {value if is_name(value) else json_text(value)}" for name, value in fields.items() if value]
    text = "\n".join([_FENCE, *lines, _FENCE, "", skill.text.strip(), ""])
    return text.encode(errors="replace").decode()


def read(raw: str, name: str, state: State) -> Skill:
    """The skill in the text of a file; what its front matter lacks is made up for.

    Args:
        raw: the text.
        name: what the skill is called: where its file is says so, not the front matter.
        state: what it is.

    Raises:
        StoreError: there is no text in it.
    """
    fields, text = front_matter(raw)
    first = next((line.strip() for line in text.splitlines() if line.strip() and line[0] not in "#-"), "")
    tools = fields.get("source_tools", ())
    return checked(
        Skill(
            name,
            _text(fields.get("description")) or first[:MAX_DESCRIPTION] or name,
            text,
            state,
            _text(fields.get("date")),
            _text(fields.get("source_run")),
            _text(fields.get("source_task")),
            tuple(map(_text, tools)) if isinstance(tools, list) else (),
            _text(fields.get("origin")),
        )
    )


def front_matter(raw: str) -> tuple[Mapping[str, Any], str]:
    """The fields at the head of a text, and the rest: values are plain, quoted or JSON; what is indented goes on."""
    lines = raw.removeprefix("\ufeff").replace("\r\n", "\n").split("\n")
    if not lines or lines[0].rstrip() != _FENCE:
        return {}, raw
    end = next((i for i, line in enumerate(lines[1:], 1) if line.rstrip() == _FENCE), 0)
    if not end:
        return {}, raw
    given: dict[str, str] = {}
    key = ""
    for line in lines[1:end]:
        head, colon, value = line.partition(":")
        if colon and head and head == head.strip() and head[0] not in "#-":
            key, given[head] = head, value.strip().removeprefix(">").removeprefix("|").removeprefix("-").strip()
        elif key and line[:1].isspace():
            given[key] = f"{given[key]} {line.strip()}".strip()
    return {name: _value(text) for name, text in given.items()}, "\n".join(lines[end + 1 :])


def _value(text: str) -> Any:
    if text[:1] == "'" and text[-1:] == "'" and len(text) > 1:
        return text[1:-1].replace("''", "'")
    if text[:1] in ('"', "["):
        try:
            return msgspec.json.decode(text)
        except msgspec.DecodeError:
            return text
    return text


def _text(value: Any) -> str:
    text = value if isinstance(value, str) else "" if value is None else json_text(value)
    return " ".join(text.split())


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
            with open_folder_inside(self.folder.resolve(), self.folder.resolve() / path.parent.name) as place:
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
        with open_folder_inside(root, root / path.parent.name, make=True) as place:
            replace_file(path, written(skill).encode(), 0o600, place)

    def _remove(self, name: str, state: State) -> None:
        path, root = self.path(name, state), self.folder.resolve()
        with open_folder_inside(root, root / path.parent.name) as place:
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


MAX_TRIES = 3
"""How often a run is looked at if that fails."""
KEPT = 500
"""How many outcomes are remembered."""

_MAX_ID = 150


class QueuedRun(Frozen, frozen=True):
    """What is known of a run that waits: its beginning and end in words, never the whole of it."""

    run_id: str
    task: str
    text: str
    tools: tuple[str, ...] = ()
    origin: str = ""
    allowed_plugins: tuple[str, ...] | None = None
    tries: int = 0


class Outcome(Frozen, frozen=True):
    """What came of a run: ``proposed``, ``nothing``, ``unusable`` or ``failed``, and why."""

    kind: str
    note: str = ""
    run_id: str = ""
    origin: str = ""
    at: float = 0.0


class SkillQueue:
    """The runs that wait, oldest first, in ``.queue/`` of a folder of skills. Programs may share it.

    Args:
        folder: the folder of skills.
        limit: how many may wait.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = 20) -> None:
        from pathlib import Path

        self.folder = Path(checked_path(folder, "SkillQueue takes a folder")).expanduser().absolute() / ".queue"
        self.limit = limit

    def add(self, run: QueuedRun) -> tuple[str, Sequence[str]]:
        """Have a run wait; what it waits under, and the ids of those that had to go for it.

        Raises:
            StoreError: it cannot be written.
        """
        try:
            name = file_name_for(run.run_id.encode(errors="replace").decode())[:_MAX_ID]
            ident = f"{time.time_ns():020d}-{name}"
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file(ident), msgspec.json.encode(run), 0o600)
            waiting = self.ids()
            gone = [old for old in waiting[: max(0, len(waiting) - self.limit)] if old != ident]
            for old in gone:
                self._drop(old)
        except OSError as error:
            advice = folder_advice(self.folder, error)
            raise StoreError(f"a run cannot be queued in {self.folder}: {error}{advice}") from error
        return ident, gone

    def ids(self) -> Sequence[str]:
        """What the runs wait under, oldest first.

        Raises:
            StoreError: the folder cannot be read.
        """
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"the runs that wait in {self.folder} cannot be listed: {error}") from error
        return sorted(name.removesuffix(".json") for name in names if name[:20].isdigit() and name.endswith(".json"))

    def get(self, ident: str) -> QueuedRun | None:
        """A run that waits; ``None`` if it does not any more, or if its file is damaged."""
        try:
            path = self._file(ident)
            if path.is_symlink() or path.stat().st_size > _MAX_BYTES:
                return None
            return msgspec.json.decode(path.read_bytes(), type=QueuedRun)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def holds(self, origin: str) -> bool:
        """Whether a run with the same task and tools waits, or has been looked at."""
        waiting = (self.get(ident) for ident in self.ids())
        return any(run.origin == origin for run in waiting if run is not None) or any(
            outcome.origin == origin for outcome in self.outcomes() if outcome.kind != "failed"
        )

    @contextmanager
    def claimed(self, ident: str) -> Iterator[QueuedRun | None]:
        """A run, for one program at a time: ``None`` if another has it, or had it."""
        with ExitStack() as stack:
            run, lock = None, self._file(ident, "lock")
            with suppress(OSError, TimeoutError):
                file = os.open(lock, os.O_RDWR | os.O_CREAT, 0o600)
                stack.callback(os.close, file)
                stack.enter_context(locked(file, 0))
                run = self.get(ident)
                if run is None and self._file(ident).exists():
                    os.replace(self._file(ident), self._file(ident, "damaged"))
            yield run
            if not self._file(ident).exists():
                with suppress(OSError):
                    lock.unlink()

    def settle(self, ident: str, run: QueuedRun, outcome: Outcome) -> None:
        """What came of a run that is claimed; one that failed waits for another try, up to ``MAX_TRIES``.

        Raises:
            StoreError: it cannot be written.
        """
        try:
            self._note(outcome.replace(run_id=run.run_id, origin=run.origin, at=outcome.at or time.time()))
            if outcome.kind == "failed" and run.tries + 1 < MAX_TRIES and self._file(ident).exists():
                replace_file(self._file(ident), msgspec.json.encode(run.replace(tries=run.tries + 1)), 0o600)
            else:
                self._drop(ident)
        except OSError as error:
            raise StoreError(f"what came of a run cannot be written in {self.folder}: {error}") from error

    def outcomes(self) -> Sequence[Outcome]:
        """What came of the last runs, oldest first; lines that cannot be read are left out."""
        try:
            lines = self._file("outcomes", "jsonl").read_bytes().splitlines()
        except OSError:
            return []
        found = []
        for line in lines[-KEPT:]:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                found.append(msgspec.json.decode(line, type=Outcome))
        return found

    def _note(self, outcome: Outcome) -> None:
        """Remember an outcome. Of two at the same moment one may be forgotten: a run is then looked at again."""
        lines = [msgspec.json.encode(one) for one in (*self.outcomes()[1 - KEPT :], outcome)]
        replace_file(self._file("outcomes", "jsonl"), b"\n".join(lines) + b"\n", 0o600, sync=False)

    def _drop(self, ident: str) -> None:
        self._file(ident).unlink(missing_ok=True)

    def _file(self, ident: str, ending: str = "json") -> Path:
        return self.folder / f"{ident}.{ending}"
