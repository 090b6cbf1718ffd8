"""Skills: instructions that an agent learned and a person accepted, as Markdown files in a folder or in a database."""

from __future__ import annotations

import os
import re
import stat
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from .._base.files import distrust_reason, file_name_for, locked, locked_folder, open_folder_inside, replace_file
from .._base.frozen import Frozen, json_text
from .._base.own_files import OwnFile, register_own_file
from .._base.text import did_you_mean
from ..tools._tool import Tool
from .database import database_files, open_database
from .errors import StoreError
from .paths import SQLITE, checked_path, folder_advice, is_database_url
from .sql import Connection, Database, Schema, storable, upsert

if TYPE_CHECKING:
    from pathlib import Path

SkillState = Literal["accepted", "proposed", "rejected"]

MAX_NAME, MAX_DESCRIPTION, MAX_TEXT = 64, 1024, 50_000
"""Maximum lengths of a skill's name, description and text."""

_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*")
_FENCE = "---"
_DEVICES = {"aux", "con", "nul", "prn", *(f"{port}{number}" for port in ("com", "lpt") for number in range(10))}


class Skill(Frozen, frozen=True):
    """Instructions for a model on how to do a task.

    ``source_run``, ``source_task`` and ``source_tools`` describe the run that the skill was learned from. ``origin``
    is equal for runs with the same task and tools.
    """

    name: str
    description: str
    text: str
    state: SkillState = "accepted"
    date: str = ""
    source_run: str = ""
    source_task: str = ""
    source_tools: tuple[str, ...] = ()
    origin: str = ""


def is_skill_name(text: object) -> bool:
    """Whether this is a valid name of a skill: lower case letters and digits, in words joined by hyphens."""
    return (
        isinstance(text, str)
        and len(text) <= MAX_NAME
        and _NAME.fullmatch(text) is not None
        and text not in _DEVICES  # Windows does not allow such file names
    )


def _checked_name(name: object) -> str:
    """Return a name unchanged.

    Raises:
        StoreError: the name is not valid.
    """
    if not is_skill_name(name):
        raise StoreError(
            f"{name!r:.80} is not a valid name of a skill: use at most {MAX_NAME} lower case letters, digits and "
            "single hyphens, such as 'tidy-notes'"
        )
    return str(name)


def _checked(skill: Skill) -> Skill:
    """Return a skill with normalized white space.

    Raises:
        StoreError: its name, description or text is not valid.
    """
    _checked_name(skill.name)
    description = " ".join(skill.description.split())
    if not description or len(description) > MAX_DESCRIPTION:
        raise StoreError(f"the skill {skill.name} needs a description of 1 to {MAX_DESCRIPTION} characters")
    if not skill.text.strip() or len(skill.text) > MAX_TEXT:
        raise StoreError(f"the skill {skill.name} needs a text of 1 to {MAX_TEXT:,} characters below its front matter")
    return skill.replace(description=description, text=skill.text.strip())


def format_skill(skill: Skill) -> str:
    """Format a skill as the text of its file."""
    names = ("name", "description", "date", "source_run", "source_task", "source_tools", "origin")
    fields = {name: getattr(skill, name) for name in names}
    lines = [
        f"{name}: {value if is_skill_name(value) else json_text(value)}" for name, value in fields.items() if value
    ]
    text = "\n".join([_FENCE, *lines, _FENCE, "", skill.text.strip(), ""])
    return text.encode(errors="replace").decode()


def parse_skill(raw: str, name: str, state: SkillState) -> Skill:
    """Parse the text of a skill's file. Missing fields of the front matter get defaults.

    Args:
        raw: the text.
        name: name of the skill. The path of the file determines it, not the front matter.
        state: state of the skill.

    Raises:
        StoreError: the skill is not valid, for example because it has no text.
    """
    fields, text = front_matter(raw)
    first = next((line.strip() for line in text.splitlines() if line.strip() and line[0] not in "#-"), "")
    tools = fields.get("source_tools", ())
    return _checked(
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
    """Split a text into the fields of its front matter and the rest.

    Values are plain, quoted or JSON. An indented line continues the value before it.
    """
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
"""Seconds to wait while another process changes the folder."""

FILE = "SKILL.md"
STATES: tuple[SkillState, ...] = ("accepted", "proposed", "rejected")

_MAX_BYTES = 1_000_000
_MAX_READ = 16_000
_MAX_LISTED = 100
_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class SkillStore:
    """Store skills in one folder, each as ``NAME/SKILL.md``. It is also a toolset with the tool ``read_skill``.

    Proposals wait in ``.proposed/`` for a decision, and rejected ones stay in ``.rejected/``; models see neither. A
    name is used once, so that a rejected skill is not proposed again. Skills may be written by hand. Symbolic links are
    not followed. Threads and processes may share the folder.

    Args:
        folder: the folder, created with the first skill.

    Raises:
        TypeError: ``folder`` is not a path.

    Example::

        store = SkillStore("skills")
        store.propose(Skill("tidy-notes", "Tidy a file of notes.", "1. Read the notes. 2. Merge duplicates."))
        store.accept("tidy-notes")
        agent = Agent("helper", llm=model, tools=[store])
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        from pathlib import Path

        self.folder = Path(checked_path(folder, "SkillStore takes a folder")).expanduser().absolute()
        register_own_file(self, OwnFile(str(self.folder), "Hookline's folder of skills", is_folder=True))

    def __repr__(self) -> str:
        return f"SkillStore({str(self.folder)!r})"

    @property
    def place(self) -> str:
        """Where the skills are, for messages: the folder, or the database."""
        return str(self.folder)

    @property
    def own_files(self) -> tuple[str, ...]:
        """Files that an agent's tools must not write, because only a person may accept a skill."""
        return (str(self.folder),)

    def exists(self) -> bool:
        """Whether the folder exists."""
        return self.folder.exists()

    def location(self, name: str, state: SkillState = "accepted") -> str:
        """Return where a skill is, for messages.

        Raises:
            StoreError: the name is not valid.
        """
        return str(self.path(name, state))

    def queue(self, limit: int = 20) -> SkillQueue:
        """Return the queue of runs to analyse for skills, which is beside them, with at most ``limit`` runs."""
        return SkillQueue(self.folder, limit)

    def list(self, state: SkillState = "accepted") -> Sequence[Skill]:
        """Return skills in a state, sorted by name. Unreadable ones are omitted; see :meth:`problems`.

        Raises:
            StoreError: the folder cannot be read.
        """
        return self._scan(state)[0]

    def problems(self) -> Sequence[str]:
        """Return descriptions of the unreadable files in the folder.

        Raises:
            StoreError: the folder cannot be read.
        """
        return [problem for state in STATES for problem in self._scan(state)[1]]

    def get(self, name: str, state: SkillState = "accepted") -> Skill | None:
        """Return the skill with this name, or ``None`` if there is none in this state.

        Raises:
            StoreError: the skill cannot be read, or the name is not valid.
        """
        raw = self._raw(_checked_name(name), state)
        return None if raw is None else parse_skill(raw, name, state)

    def find(self, name: str) -> Skill:
        """Return the skill with this name, in any state.

        Raises:
            StoreError: the skill does not exist or cannot be read.
        """
        for state in STATES:
            if is_skill_name(name) and (found := self.get(name, state)) is not None:
                return found
        known = [skill.name for state in STATES for skill in self.list(state)]
        raise StoreError(f"there is no skill {name!r:.80} in {self.place}.{did_you_mean(name, known)}")

    def has_origin(self, origin: str) -> bool:
        """Whether a skill in any state was learned from a run with the same task and tools."""
        return any(skill.origin == origin for state in STATES for skill in self.list(state))

    def propose(self, skill: Skill) -> bool:
        """Add a proposal, unless a skill in any state has the same name; return whether it was added.

        Raises:
            StoreError: the skill is not valid or cannot be stored.
        """
        skill = _checked(skill)
        with self._changing("propose a skill"):
            if any(self._exists(skill.name, state) for state in STATES):
                return False
            self._write(skill.replace(date=skill.date or time.strftime("%Y-%m-%d")), "proposed")
        return True

    def revise(self, name: str, raw: str) -> Skill:
        """Replace the text of a proposal, including its front matter, which may contain a new name.

        Raises:
            StoreError: the proposal does not exist, or the text is not valid. Nothing is changed then.
        """
        fields, _ = front_matter(raw)
        new = _checked_name(fields.get("name") or name)
        skill = _checked(parse_skill(raw, new, "proposed"))
        with self._changing("change a proposal"):
            if not self._exists(name, "proposed"):
                raise StoreError(f"the proposal {name!r} no longer exists")
            if new != name:
                self._check_name_is_free(new, STATES)
            self._write(skill, "proposed")
            if new != name:
                self._remove(name, "proposed")
        return skill

    def accept(self, name: str, *, rename: str | None = None) -> Skill:
        """Accept a proposal or a rejected skill. No file is overwritten.

        Args:
            name: name of the proposal.
            rename: new name of the skill.

        Raises:
            StoreError: the proposal does not exist, or a skill with the name exists already.
        """
        new = _checked_name(name if rename is None else rename)
        with self._changing("accept a skill"):
            skill = self._undecided(name)
            self._check_name_is_free(new, ("accepted",) if new == name else STATES)
            self._write(skill.replace(name=new), "accepted")
            self._remove(name, skill.state)
        return skill.replace(name=new, state="accepted")

    def reject(self, name: str) -> Skill:
        """Reject a proposal. Its file is kept, so that it is not proposed again.

        Raises:
            StoreError: the proposal does not exist.
        """
        with self._changing("reject a skill"):
            skill = self._undecided(name, ("proposed",))
            self._write(skill, "rejected")
            self._remove(name, "proposed")
        return skill.replace(state="rejected")

    def raw(self, skill: Skill) -> str:
        """Return the text of a skill's file.

        Raises:
            StoreError: the file does not exist or cannot be read.
        """
        found = self._raw(skill.name, skill.state)
        if found is None:
            raise StoreError(f"the skill {skill.name} no longer exists")
        return found

    def path(self, name: str, state: SkillState = "accepted") -> Path:
        """Return path of a skill's file, which need not exist.

        Raises:
            StoreError: the name is not valid.
        """
        _checked_name(name)
        return self.folder / name / FILE if state == "accepted" else self.folder / f".{state}" / f"{name}.md"

    def tools(self) -> Sequence[Tool]:
        """Return the tool ``read_skill`` for a model."""
        return self._tools

    @cached_property
    def _tools(self) -> tuple[Tool, ...]:
        def read_skill(name: str) -> str:
            """Read a skill: step-by-step instructions for a task. Read it before you start the task.

            Args:
                name: the name of the skill
            """
            skill = self.get(name) if is_skill_name(name) else None
            if skill is None:
                known = [one.name for one in self.list()]
                there = f"Skills: {', '.join(known[:_MAX_LISTED])}" if known else "There are no skills"
                raise StoreError(f"there is no skill {name!r:.80}.{did_you_mean(name, known)} {there}")
            if len(skill.text) > _MAX_READ:
                return f"{skill.text[:_MAX_READ]}\n[{len(skill.text) - _MAX_READ} characters left out]"
            return skill.text

        return (Tool(read_skill, effects=[]),)

    def _undecided(self, name: str, states: tuple[SkillState, ...] = ("proposed", "rejected")) -> Skill:
        for state in states:
            if is_skill_name(name) and (found := self.get(name, state)) is not None:
                return found
        if is_skill_name(name) and self._exists(name, "accepted"):
            raise StoreError(f"the skill {name!r} is already accepted")
        known = [skill.name for state in states for skill in self.list(state)]
        raise StoreError(
            f"there is no proposal {name!r:.80}.{did_you_mean(name, known)} 'hookline skills list' shows all"
        )

    def _check_name_is_free(self, name: str, states: tuple[SkillState, ...]) -> None:
        for state in states:
            if self._exists(name, state):
                what = "a skill" if state == "accepted" else f"a {state} skill"
                raise StoreError(f"there is already {what} called {name!r}: give another name (--as NAME)")

    def _exists(self, name: str, state: SkillState) -> bool:
        return os.path.lexists(self.path(name, state))

    def _scan(self, state: SkillState) -> tuple[Sequence[Skill], Sequence[str]]:
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
            if not is_skill_name(name):
                problems.append(f"{place / entry}: not a skill name: use lower case letters, digits and hyphens")
                continue
            try:
                raw = self._raw(name, state)
                if raw is not None:
                    found.append(parse_skill(raw, name, state))
                elif state == "accepted":
                    problems.append(f"{place / entry}: the folder has no {FILE}")
            except StoreError as error:
                problems.append(str(error))
        return found, problems

    def _raw(self, name: str, state: SkillState) -> str | None:
        path = self.path(name, state)
        try:
            with open_folder_inside(self.folder.resolve(), self.folder.resolve() / path.parent.name) as place:
                file = os.open(path if place is None else path.name, _FLAGS, dir_fd=place)
                with os.fdopen(file, "rb") as reader:
                    about = os.fstat(file)
                    if not stat.S_ISREG(about.st_mode) or (place is None and path.is_symlink()):
                        raise OSError("it is not a regular file")
                    if about.st_size > _MAX_BYTES:
                        raise OSError(f"it has more than {_MAX_BYTES:,} bytes")
                    if problem := distrust_reason(path, self.folder):
                        raise OSError(problem)
                    return reader.read().decode(errors="replace")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StoreError(f"the skill {path} cannot be read: {error}") from error

    def _write(self, skill: Skill, state: SkillState) -> None:
        path, root = self.path(skill.name, state), self.folder.resolve()
        with open_folder_inside(root, root / path.parent.name, make=True) as place:
            replace_file(path, format_skill(skill).encode(), 0o600, place)

    def _remove(self, name: str, state: SkillState) -> None:
        path, root = self.path(name, state), self.folder.resolve()
        with open_folder_inside(root, root / path.parent.name) as place:
            os.unlink(path if place is None else path.name, dir_fd=place)

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """Lock the folder against changes by other processes."""
        try:
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            with locked_folder(self.folder, LOCK_SECONDS):
                yield
        except OSError as error:
            advice = folder_advice(self.folder, error)
            raise StoreError(f"cannot {what} in {self.folder}: {error}{advice}") from error


MAX_TRIES = 3
"""Maximum number of attempts to analyse a run."""
MAX_OUTCOMES = 500
"""Maximum number of stored outcomes."""

_MAX_ID = 150


class QueuedRun(Frozen, frozen=True):
    """A run that waits for analysis, with an excerpt of its transcript."""

    run_id: str
    task: str
    text: str
    tools: tuple[str, ...] = ()
    origin: str = ""
    allowed_plugins: tuple[str, ...] | None = None
    tries: int = 0


class AnalysisOutcome(Frozen, frozen=True):
    """Outcome of the analysis of a run: ``proposed``, ``nothing``, ``unusable`` or ``failed``, and the reason."""

    kind: str
    note: str = ""
    run_id: str = ""
    origin: str = ""
    at: float = 0.0


class SkillQueue:
    """A queue of runs to analyse for skills, as files in ``.queue/`` of a folder of skills.

    The files outlive the process, and processes may share them.

    Args:
        folder: the folder of skills.
        limit: maximum number of waiting runs.
    """

    def __init__(self, folder: str | os.PathLike[str], limit: int = 20) -> None:
        from pathlib import Path

        self.folder = Path(checked_path(folder, "SkillQueue takes a folder")).expanduser().absolute() / ".queue"
        self.limit = limit

    def add(self, run: QueuedRun) -> tuple[str, Sequence[str]]:
        """Add a run, and drop the oldest ones beyond the limit.

        Returns:
            The id of the entry, and the ids of the dropped entries.

        Raises:
            StoreError: the run cannot be stored.
        """
        try:
            name = file_name_for(run.run_id.encode(errors="replace").decode())[:_MAX_ID]
            ident = f"{time.time_ns():020d}-{name}"
            self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            replace_file(self._file(ident), msgspec.json.encode(run), 0o600)
            waiting = self.ids()
            dropped = [old for old in waiting[: max(0, len(waiting) - self.limit)] if old != ident]
            for old in dropped:
                self._drop(old)
        except OSError as error:
            advice = folder_advice(self.folder, error)
            raise StoreError(f"a run cannot be queued in {self.folder}: {error}{advice}") from error
        return ident, dropped

    def ids(self) -> Sequence[str]:
        """Return ids of the waiting runs, oldest first.

        Raises:
            StoreError: the folder cannot be read.
        """
        try:
            names = os.listdir(self.folder)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise StoreError(f"the waiting runs in {self.folder} cannot be listed: {error}") from error
        return sorted(name.removesuffix(".json") for name in names if name[:20].isdigit() and name.endswith(".json"))

    def get(self, ident: str) -> QueuedRun | None:
        """Return a waiting run, or ``None`` if it no longer waits or its file is damaged."""
        try:
            path = self._file(ident)
            if path.is_symlink() or path.stat().st_size > _MAX_BYTES:
                return None
            return msgspec.json.decode(path.read_bytes(), type=QueuedRun)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return None

    def has_origin(self, origin: str) -> bool:
        """Whether a run with the same task and tools waits or was analysed."""
        waiting = (self.get(ident) for ident in self.ids())
        return any(run.origin == origin for run in waiting if run is not None) or any(
            outcome.origin == origin for outcome in self.outcomes() if outcome.kind != "failed"
        )

    @contextmanager
    def claim(self, ident: str) -> Iterator[QueuedRun | None]:
        """Lock a waiting run for this process; ``None`` if another process has claimed it."""
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

    def finish(self, ident: str, run: QueuedRun, outcome: AnalysisOutcome) -> None:
        """Store the outcome of a claimed run. A failed run stays in the queue for up to ``MAX_TRIES`` attempts.

        Raises:
            StoreError: the outcome cannot be stored.
        """
        try:
            self._note(outcome.replace(run_id=run.run_id, origin=run.origin, at=outcome.at or time.time()))
            if outcome.kind == "failed" and run.tries + 1 < MAX_TRIES and self._file(ident).exists():
                replace_file(self._file(ident), msgspec.json.encode(run.replace(tries=run.tries + 1)), 0o600)
            else:
                self._drop(ident)
        except OSError as error:
            raise StoreError(f"the outcome of an analysis cannot be stored in {self.folder}: {error}") from error

    def outcomes(self) -> Sequence[AnalysisOutcome]:
        """Return the latest outcomes, oldest first. Unreadable lines are omitted."""
        try:
            lines = self._file("outcomes", "jsonl").read_bytes().splitlines()
        except OSError:
            return []
        found = []
        for line in lines[-MAX_OUTCOMES:]:
            with suppress(msgspec.DecodeError, UnicodeDecodeError):
                found.append(msgspec.json.decode(line, type=AnalysisOutcome))
        return found

    def _note(self, outcome: AnalysisOutcome) -> None:
        """Store an outcome. If two processes do so at once, one may be lost, and its run is analysed again."""
        lines = [msgspec.json.encode(one) for one in (*self.outcomes()[1 - MAX_OUTCOMES :], outcome)]
        replace_file(self._file("outcomes", "jsonl"), b"\n".join(lines) + b"\n", 0o600, sync=False)

    def _drop(self, ident: str) -> None:
        self._file(ident).unlink(missing_ok=True)

    def _file(self, ident: str, ending: str = "json") -> Path:
        return self.folder / f"{ident}.{ending}"


# Skills in a database.

SCHEMA = Schema(
    "skills",
    contents="skills",
    application_id=0x486B4C4C,
    version=1,
    statements=(
        "CREATE TABLE skills (name TEXT NOT NULL, state TEXT NOT NULL, raw TEXT NOT NULL, PRIMARY KEY (name, state))",
        """CREATE TABLE queue (
            id TEXT PRIMARY KEY, run BLOB NOT NULL, host TEXT, pid INTEGER, born REAL, claimed_at REAL
        )""",
        "CREATE TABLE outcomes (number INTEGER PRIMARY KEY AUTOINCREMENT, data BLOB NOT NULL)",
    ),
)
_SKILL = upsert("skills", ("name", "state", "raw"), ("name", "state"))
_FREE = "host = NULL, pid = NULL, born = NULL, claimed_at = NULL"


class DatabaseSkillStore(SkillStore):
    """Store skills in one SQLite file or in PostgreSQL, so that agents and people on several machines share them.

    The texts are those that a folder would have as files.

    Args:
        path: the file, created when first used; ``:memory:`` keeps everything in memory; or the address of a
            PostgreSQL database.

    Example::

        store = DatabaseSkillStore("postgresql://ada@db.example/shop")
        agent = Agent("helper", llm=model, tools=[store], hooks=[SkillsHook(store)])
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.db = open_database(path, SCHEMA)
        self._changes = threading.local()  # the transaction in which this thread changes the skills

    def __repr__(self) -> str:
        return f"DatabaseSkillStore({self.db.path!r})"

    @property
    def place(self) -> str:
        """The file, or the address without its password."""
        return self.db.path

    @property
    def own_files(self) -> tuple[str, ...]:
        """The SQLite file, which an agent's tools must not write."""
        return database_files(self.db)

    def exists(self) -> bool:
        """Whether there is a place for skills. Tables are created when they are first used."""
        return True

    def location(self, name: str, state: SkillState = "accepted") -> str:
        """Return the name of a skill, and its database."""
        return f"{_checked_name(name)} in {self.place}"

    def path(self, name: str, state: SkillState = "accepted") -> Path:
        """Raise an error: skills in a database have no files.

        Raises:
            StoreError: always.
        """
        raise StoreError(f"the skill {_checked_name(name)} has no file: it is in {self.place}")

    def queue(self, limit: int = 20) -> SkillQueue:
        """Return the queue of runs to analyse for skills, in the same database, with at most ``limit`` runs."""
        return DatabaseSkillQueue(self.db, limit)

    def close(self) -> None:
        """Close the database."""
        self.db.close()

    def _exists(self, name: str, state: SkillState) -> bool:
        return self._raw(_checked_name(name), state) is not None

    def _scan(self, state: SkillState) -> tuple[Sequence[Skill], Sequence[str]]:
        with self._reading() as db:
            rows = db.execute("SELECT name, raw FROM skills WHERE state = ? ORDER BY name", (state,)).fetchall()
        found, problems = [], []
        for name, raw in rows:
            try:
                found.append(parse_skill(raw, name, state))
            except StoreError as error:
                problems.append(f"{self.place}: {error}")
        return found, problems

    def _raw(self, name: str, state: SkillState) -> str | None:
        with self._reading() as db:
            row = db.execute("SELECT raw FROM skills WHERE name = ? AND state = ?", (name, state)).fetchone()
        return None if row is None else str(row[0])

    def _write(self, skill: Skill, state: SkillState) -> None:
        self._changes.db.execute(_SKILL, (skill.name, state, storable(format_skill(skill))))

    def _remove(self, name: str, state: SkillState) -> None:
        self._changes.db.execute("DELETE FROM skills WHERE name = ? AND state = ?", (name, state))

    @contextmanager
    def _changing(self, what: str) -> Iterator[None]:
        """Change skills in one transaction."""
        with self.db.transaction(write=True, lock="skills") as db:
            self._changes.db = db
            try:
                yield
            finally:
                self._changes.db = None

    @contextmanager
    def _reading(self) -> Iterator[Connection]:
        """Read in the transaction of a change, or in one of its own."""
        changing: Connection | None = getattr(self._changes, "db", None)
        if changing is not None:
            yield changing
        else:
            with self.db.transaction() as db:
                yield db


class DatabaseSkillQueue(SkillQueue):
    """A queue of runs to analyse for skills, in the database of the skills. Processes on several machines share it.

    Args:
        db: the database.
        limit: maximum number of waiting runs.
    """

    def __init__(self, db: Database, limit: int = 20) -> None:
        self.db = db
        self.limit = limit

    def add(self, run: QueuedRun) -> tuple[str, Sequence[str]]:
        """Add a run as :meth:`SkillQueue.add` does."""
        ident = f"{time.time_ns():020d}-{storable(run.run_id)[:_MAX_ID]}"
        with self.db.transaction(write=True, lock="queue") as db:
            db.execute("INSERT INTO queue (id, run) VALUES (?, ?)", (ident, msgspec.json.encode(run)))
            waiting = [id for (id,) in db.execute("SELECT id FROM queue ORDER BY id")]
            dropped = [old for old in waiting[: max(0, len(waiting) - self.limit)] if old != ident]
            for old in dropped:
                db.execute("DELETE FROM queue WHERE id = ?", (old,))
        return ident, dropped

    def ids(self) -> Sequence[str]:
        """Return ids of the waiting runs, oldest first.

        Raises:
            StoreError: the database cannot be used.
        """
        with self.db.transaction() as db:
            return [id for (id,) in db.execute("SELECT id FROM queue ORDER BY id")]

    def get(self, ident: str) -> QueuedRun | None:
        """Return a waiting run, or ``None`` if it no longer waits or cannot be read.

        Raises:
            StoreError: the database cannot be used.
        """
        with self.db.transaction() as db:
            row = db.execute("SELECT run FROM queue WHERE id = ?", (storable(ident),)).fetchone()
        return None if row is None else _decoded(row[0])

    @contextmanager
    def claim(self, ident: str) -> Iterator[QueuedRun | None]:
        """Lock a waiting run for this thread; ``None`` if another one that still runs, anywhere, has claimed it.

        Raises:
            StoreError: the database cannot be used.
        """
        owner = self.db.leases.owner()
        with self.db.transaction(write=True, lock="queue") as db:
            query = "SELECT run, host, pid, claimed_at, born FROM queue WHERE id = ?"
            raw, host, *claim = db.execute(query, (storable(ident),)).fetchone() or (None, None)
            is_claimed = host is not None and self.db.leases.is_held(host, *claim)
            run = None if raw is None or is_claimed else _decoded(raw)
            if run is not None:
                change = "UPDATE queue SET host = ?, pid = ?, born = ?, claimed_at = ? WHERE id = ?"
                db.execute(change, (*owner, time.time(), ident))
            elif raw is not None and not is_claimed:
                db.execute("DELETE FROM queue WHERE id = ?", (ident,))
        try:
            yield run
        finally:
            if run is not None:
                with self.db.transaction(write=True, lock="queue") as db:
                    db.execute(f"UPDATE queue SET {_FREE} WHERE id = ? AND host = ?", (ident, owner.host))

    def finish(self, ident: str, run: QueuedRun, outcome: AnalysisOutcome) -> None:
        """Store the outcome of a claimed run. A failed run stays in the queue for up to ``MAX_TRIES`` attempts.

        Raises:
            StoreError: the outcome cannot be stored.
        """
        stored = outcome.replace(run_id=run.run_id, origin=run.origin, at=outcome.at or time.time())
        with self.db.transaction(write=True, lock="queue") as db:
            db.execute("INSERT INTO outcomes (data) VALUES (?)", (msgspec.json.encode(stored),))
            newest = f"SELECT number FROM outcomes ORDER BY number DESC LIMIT {MAX_OUTCOMES}"
            db.execute(f"DELETE FROM outcomes WHERE number NOT IN ({newest})")
            if outcome.kind == "failed" and run.tries + 1 < MAX_TRIES:
                again = msgspec.json.encode(run.replace(tries=run.tries + 1))
                db.execute("UPDATE queue SET run = ? WHERE id = ?", (again, ident))
            else:
                db.execute("DELETE FROM queue WHERE id = ?", (ident,))

    def outcomes(self) -> Sequence[AnalysisOutcome]:
        """Return the latest outcomes, oldest first.

        Raises:
            StoreError: the database cannot be used.
        """
        with self.db.transaction() as db:
            rows = db.execute("SELECT data FROM outcomes ORDER BY number").fetchall()
        return [msgspec.json.decode(data, type=AnalysisOutcome) for (data,) in rows]


def _decoded(data: bytes) -> QueuedRun | None:
    try:
        return msgspec.json.decode(data, type=QueuedRun)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def skill_store_at(path: str | os.PathLike[str]) -> SkillStore:
    """Open a store of skills: PostgreSQL, a SQLite file if the extension says so, or a folder."""
    if is_database_url(path) or os.fspath(path).lower().endswith((*SQLITE, ":memory:")):
        return DatabaseSkillStore(path)
    return SkillStore(path)
